//! `lunar pool`: creates pools, and shows and changes those of a running server.

mod change;
mod resolve;
mod scrub;
mod status;

use crate::device_url::ServedDevices;
use crate::output::{self, Failure, Format};
use lunar_block::BlockDevice;
use lunar_control::config::rules;
use lunar_control::device_url::{DeviceOptions, DeviceUrl, Opener, is_pool_name};
use lunar_control::units::parse_size;
use lunar_pool::{OpenOptions, Pool, PoolError, PoolSpec, STRIPE_UNIT_BYTES};
use serde::Serialize;
use std::fmt::Write as _;
use std::sync::Arc;

/// Join disks to pools: concatenations, stripes and mirrors
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:\n  \
    lunar pool create safe --kind mirror a.img b.img --size 10G\n  \
    lunar pool status\n  \
    lunar pool replace safe 1 /srv/new.img --wait\n  \
    lunar pool scrub safe --wait\n  \
    lunar pool clear old.img")]
pub struct PoolCommand {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, clap::Subcommand)]
enum Command {
    Create(Create),
    Status(status::StatusCommand),
    Add(change::AddCommand),
    Replace(change::ReplaceCommand),
    Remove(change::RemoveCommand),
    Scrub(scrub::ScrubCommand),
    Resolve(resolve::ResolveCommand),
    Clear(Clear),
}

/// Label disks as the members of a new pool, and print the lines for the configuration
///
/// The data on the disks is lost. Nothing is written if one of them is a member of a pool already.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:\n  \
    lunar pool create safe --kind mirror a.img b.img --size 10G >> lunar.toml\n  \
    lunar pool create fast --kind stripe --unit 256K iscsi://10.0.0.1/iqn.2026-11.org.example:a/0 \
    iscsi://10.0.0.2/iqn.2026-11.org.example:b/0\n  \
    lunar pool create both --kind raid10 a.img b.img c.img d.img")]
struct Create {
    /// Name, for pool:NAME
    name: String,
    /// Kind of the pool
    #[arg(long, value_enum)]
    kind: Kind,
    /// The members: a path, file:PATH, or iscsi://HOST/TARGET/LUN
    #[arg(value_name = "MEMBER-URL", required = true, num_args = 2..)]
    members: Vec<String>,
    /// Length of a stripe unit
    #[arg(long, value_name = "SIZE", value_parser = parse_size)]
    unit: Option<u64>,
    /// Create files that do not exist, with this size
    #[arg(long, value_name = "SIZE", value_parser = parse_size)]
    size: Option<u64>,
    /// Logical block size of files
    #[arg(long, value_name = "SIZE", default_value = "512", value_parser = parse_size)]
    block_size: u64,
}

/// Kind of a pool.
#[derive(Clone, Copy, Debug, Eq, PartialEq, clap::ValueEnum)]
enum Kind {
    /// The blocks of each member follow those of the member before
    Concat,
    /// Consecutive blocks go to all members in turn (RAID 0)
    Stripe,
    /// All members have the same blocks (RAID 1)
    Mirror,
    /// A stripe of mirrors of two members each (RAID 10)
    Raid10,
}

/// Remove the label of a disk, so that it is no member of a pool any more
///
/// Its pool does not find the disk again: a mirror loses one copy of its data, a stripe all of it.
#[derive(Debug, clap::Args)]
#[command(after_help = "Example:\n  lunar pool clear old.img")]
struct Clear {
    /// The member: a path, file:PATH, or iscsi://HOST/TARGET/LUN
    #[arg(value_name = "MEMBER-URL")]
    member: String,
    /// Logical block size of a file
    #[arg(long, value_name = "SIZE", default_value = "512", value_parser = parse_size)]
    block_size: u64,
}

/// A pool that was created.
#[derive(Debug, Serialize)]
struct CreatedPool {
    name: String,
    id: String,
    kind: &'static str,
    members: Vec<String>,
}

/// Runs the command.
///
/// # Errors
/// The devices that do not fit; fails if no server is found.
pub fn run(args: &PoolCommand, format: Format) -> Result<(), Failure> {
    match &args.command {
        Command::Create(args) => create(args, format),
        Command::Status(args) => status::run(args, format),
        Command::Add(args) => change::add(args, format),
        Command::Replace(args) => change::replace(args, format),
        Command::Remove(args) => change::remove(args, format),
        Command::Scrub(args) => scrub::run(args, format),
        Command::Resolve(args) => resolve::run(args, format),
        Command::Clear(args) => clear(args, format),
    }
}

/// Opens members as a server does.
struct MemberOpener {
    devices: ServedDevices,
    options: DeviceOptions,
}

impl MemberOpener {
    fn new(block_size: u64, size_bytes: Option<u64>) -> Result<Self, Failure> {
        let default = DeviceOptions::default();
        let physical = u64::from(default.physical_block_bytes);
        rules::check_block_sizes(block_size, physical)
            .map_err(|why| Failure::usage(format!("invalid block size: {block_size}")).hint(why))?;
        let options = DeviceOptions { size_bytes, block_bytes: block_size as u32, ..default };
        Ok(Self { devices: ServedDevices::default(), options })
    }

    fn open(&self, url: &DeviceUrl) -> Result<Arc<dyn BlockDevice>, Failure> {
        // An existing file keeps its size.
        let is_new = url.path().is_some_and(|path| !path.exists());
        let size_bytes = self.options.size_bytes.filter(|_| is_new);
        if is_new && size_bytes.is_none() {
            return Err(Failure::new(format!("{url} does not exist"))
                .hint("use an existing file, or add --size 10G to create it"));
        }
        self.devices.open(url, &DeviceOptions { size_bytes, ..self.options.clone() })
    }
}

fn create(args: &Create, format: Format) -> Result<(), Failure> {
    if !is_pool_name(&args.name) {
        return Err(Failure::usage(format!("{:?} is no valid name of a pool", args.name))
            .hint("use 1 to 64 letters, digits, `-`, `_` and `.`"));
    }
    if args.unit.is_some() && !matches!(args.kind, Kind::Stripe | Kind::Raid10) {
        return Err(Failure::usage("only a stripe has a --unit").hint("omit --unit"));
    }
    let unit_bytes = args.unit.unwrap_or(u64::from(STRIPE_UNIT_BYTES));
    let unit_bytes = u32::try_from(unit_bytes)
        .map_err(|_| Failure::usage("--unit is too large").hint("use at most 1G"))?;
    if args.kind == Kind::Raid10 && !args.members.len().is_multiple_of(2) {
        return Err(Failure::usage("raid10 requires an even number of members"));
    }
    let opener = MemberOpener::new(args.block_size, args.size)?;
    let urls = args.members.iter().map(|text| absolute(text)).collect::<Result<Vec<_>, _>>()?;
    let devices = urls.iter().map(|url| opener.open(url)).collect::<Result<Vec<_>, _>>()?;
    let names: Vec<String> = urls.iter().map(ToString::to_string).collect();
    let created = super::runtime()?.block_on(async {
        match args.kind {
            Kind::Concat => join(&args.name, PoolSpec::Concat, devices, names).await,
            Kind::Stripe => join(&args.name, PoolSpec::Stripe { unit_bytes }, devices, names).await,
            Kind::Mirror => join(&args.name, mirror(&devices), devices, names).await,
            Kind::Raid10 => stripe_of_mirrors(&args.name, unit_bytes, devices, &names).await,
        }
    });
    report_created(&created.map_err(|error| refused(&error))?, args.block_size, format)
}

/// The URL of a member, which stays the same in another directory.
fn absolute(text: &str) -> Result<DeviceUrl, Failure> {
    match DeviceUrl::parse(text)? {
        DeviceUrl::File(path) => {
            let whole = std::path::absolute(&path);
            Ok(DeviceUrl::File(whole.unwrap_or(path)))
        }
        DeviceUrl::Iscsi(url) => Ok(DeviceUrl::Iscsi(url)),
        other => Err(Failure::usage(format!("{other} cannot be a member of a pool"))
            .hint("use a file or a remote LUN")),
    }
}

/// A mirror of new disks is equal from the beginning if they can be deallocated.
pub(super) fn mirror(devices: &[Arc<dyn BlockDevice>]) -> PoolSpec {
    PoolSpec::Mirror { erase: devices.iter().all(|device| device.sparse().is_some()) }
}

async fn join(
    name: &str,
    spec: PoolSpec,
    devices: Vec<Arc<dyn BlockDevice>>,
    members: Vec<String>,
) -> Result<Vec<CreatedPool>, PoolError> {
    let kind = match spec {
        PoolSpec::Concat => "concat",
        PoolSpec::Stripe { .. } => "stripe",
        PoolSpec::Mirror { .. } => "mirror",
    };
    let id = Pool::create(spec, devices).await?.to_string();
    Ok(vec![CreatedPool { name: name.to_owned(), id, kind, members }])
}

/// Mirrors neighbours, then joins the mirrors to a stripe.
async fn stripe_of_mirrors(
    name: &str,
    unit_bytes: u32,
    devices: Vec<Arc<dyn BlockDevice>>,
    members: &[String],
) -> Result<Vec<CreatedPool>, PoolError> {
    let mut created = Vec::new();
    let mut mirrors: Vec<Arc<Pool>> = Vec::new();
    for (at, (pair, names)) in devices.chunks(2).zip(members.chunks(2)).enumerate() {
        let part = format!("{name}-{at}");
        created.extend(join(&part, mirror(pair), pair.to_vec(), names.to_vec()).await?);
        mirrors.push(Pool::open(&part, pair.to_vec(), OpenOptions::default()).await?);
    }
    let inner = mirrors.iter().map(|mirror| Arc::clone(mirror) as Arc<dyn BlockDevice>).collect();
    let names = created.iter().map(|mirror| format!("pool:{}", mirror.name)).collect();
    created.extend(join(name, PoolSpec::Stripe { unit_bytes }, inner, names).await?);
    for mirror in mirrors {
        mirror.close().await?;
    }
    Ok(created)
}

pub(super) fn refused(error: &PoolError) -> Failure {
    let failure = Failure::new(error.to_string());
    match error {
        PoolError::InUse { .. } | PoolError::InUnknownUse { .. } => {
            failure.hint("to discard the data of the disk: lunar pool clear MEMBER-URL")
        }
        _ => failure,
    }
}

fn report_created(pools: &[CreatedPool], block_size: u64, format: Format) -> Result<(), Failure> {
    if format == Format::Json {
        return output::print_json(&serde_json::json!({ "pools": pools }));
    }
    let mut text = String::new();
    for pool in pools {
        let members: Vec<_> = pool.members.iter().map(|member| format!("{member:?}")).collect();
        let _ = writeln!(text, "# {} {}", pool.kind, pool.id);
        let _ = writeln!(text, "[[pool]]\nname = {:?}", pool.name);
        let _ = writeln!(text, "members = [{}]", members.join(", "));
        if block_size != u64::from(DeviceOptions::default().block_bytes) {
            let _ = writeln!(text, "block_size = {block_size}");
        }
        text.push('\n');
    }
    output::print_text(&text)
}

fn clear(args: &Clear, format: Format) -> Result<(), Failure> {
    let opener = MemberOpener::new(args.block_size, None)?;
    let url = absolute(&args.member)?;
    let device = opener.open(&url)?;
    let cleared = super::runtime()?.block_on(Pool::clear_label(device));
    cleared.map_err(|error| refused(&error))?;
    match format {
        Format::Json => output::print_json(&serde_json::json!({ "cleared": url.to_string() })),
        Format::Human => output::print_text(&format!("{url} is no member of a pool any more\n")),
    }
}
