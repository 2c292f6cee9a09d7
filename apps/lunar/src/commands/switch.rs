//! `lunar switch`: serves virtual LUNs, whose blocks lie on the LUNs of other targets.

pub(super) mod migrate;

use super::serve_api::ServeApiArgs;
use super::{pool, target};
use crate::device_url::ServedDevices;
use crate::output::{self, Failure, Format};
use lunar_control::config::model::Configuration;
use lunar_control::config::{self, model::PoolConfig};
use lunar_control::daemon::SmallerFile;
use lunar_control::device_url::{DeviceUrl, Opener, REMOTE_OPEN_TIME_MAX};
use lunar_pool::Pool;
use lunar_switch::relay::SwitchRelays;
use lunar_target::RelayFactory;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// Serve virtual LUNs on the LUNs of storage targets, in the foreground
///
/// A configuration lists the storages, and the extents of each virtual LUN.
#[derive(Debug, clap::Args)]
#[command(
    args_conflicts_with_subcommands = true,
    after_help = "Examples:\n  \
        lunar check switch.toml --connect\n  \
        lunar switch --config switch.toml\n  \
        lunar switch --config switch.toml --path fast\n  \
        lunar switch create-mirror iqn.2026-11.org.example:virtual 0 --config switch.toml\n  \
        lunar switch migrate iqn.2026-11.org.example:virtual 0 --extent 1 --to c:0 --wait"
)]
pub struct SwitchCommand {
    /// The configuration; `lunar check` validates it
    #[arg(long, value_name = "FILE", required = true)]
    config: Option<PathBuf>,
    /// The path of READ and WRITE commands: both give the same results
    #[arg(long, value_enum, default_value = "slow")]
    path: DataPath,
    #[command(flatten)]
    api: ServeApiArgs,
    #[command(subcommand)]
    command: Option<Command>,
}

/// The path of commands through the switch.
#[derive(Clone, Copy, Debug, Eq, PartialEq, clap::ValueEnum)]
enum DataPath {
    /// The data of READ and WRITE is forwarded as it arrives, without collecting it, where possible
    Fast,
    /// The switch collects the data of each command, and executes the command itself
    Slow,
}

#[derive(Debug, clap::Subcommand)]
enum Command {
    CreateMirror(CreateMirror),
    Migrate(migrate::MigrateCommand),
}

/// Label the extents of a mirrored LUN as the members of a new mirror
///
/// To be done once, before the LUN is served. The data on the extents is lost. Nothing is written
/// if one of them is a member of a mirror already.
#[derive(Debug, clap::Args)]
#[command(after_help = "Example:\n  \
    lunar switch create-mirror iqn.2026-11.org.example:virtual 0 --config switch.toml")]
struct CreateMirror {
    /// The target in the configuration
    #[arg(value_name = "TARGET")]
    target: String,
    /// The number of the LUN
    #[arg(value_name = "LUN")]
    lun: u16,
    /// The configuration
    #[arg(long, value_name = "FILE")]
    config: PathBuf,
}

/// Runs the command.
///
/// # Errors
/// Fails if the configuration is invalid or has no storage, an address cannot be listened on, or
/// the final sync fails.
pub fn run(args: &SwitchCommand, format: Format) -> Result<(), Failure> {
    match &args.command {
        Some(Command::CreateMirror(args)) => return create_mirror(args, format),
        Some(Command::Migrate(args)) => return migrate::run(args, format),
        None => {}
    }
    let Some(file) = &args.config else {
        return Err(Failure::usage("--config is missing").hint("add --config FILE"));
    };
    let relays: Option<Arc<dyn RelayFactory>> = match args.path {
        DataPath::Fast => Some(Arc::new(SwitchRelays::new())),
        DataPath::Slow => None,
    };
    target::serve(file, &args.api, (format, SmallerFile::Keeps), relays, &|configuration| {
        require_storage(configuration, file)?;
        Ok(ServedDevices::default())
    })
}

fn require_storage(configuration: &Configuration, file: &Path) -> Result<(), Failure> {
    match configuration.storages.is_empty() {
        false => Ok(()),
        true => Err(Failure::new(format!("{}: no [[storage]] is configured", file.display()))
            .hint("add a [[storage]], or serve the configuration with lunar target --config FILE")),
    }
}

fn create_mirror(args: &CreateMirror, format: Format) -> Result<(), Failure> {
    let configuration = config::load(&args.config)?;
    let mirror = mirror_of(&configuration, args)?;
    let devices = ServedDevices::default();
    let open = |member| devices.open_member(member, REMOTE_OPEN_TIME_MAX);
    let opened = mirror.members.iter().map(open).collect::<Result<Vec<_>, _>>()?;
    let spec = pool::mirror(&opened);
    let id = super::runtime()?.block_on(Pool::create(spec, opened));
    let id = id.map_err(|error| pool::refused(&error))?.to_string();
    let extents: Vec<_> = mirror.members.iter().map(|member| member.device.to_string()).collect();
    match format {
        Format::Json => output::print_json(&serde_json::json!({
            "target": args.target, "lun": args.lun, "id": id, "members": extents,
        })),
        Format::Human => output::print_text(&format!(
            "LUN {} of {} is a mirror now: {}\n",
            args.lun,
            args.target,
            extents.join(", ")
        )),
    }
}

fn mirror_of<'c>(
    configuration: &'c Configuration,
    args: &CreateMirror,
) -> Result<&'c PoolConfig, Failure> {
    let named = |name: &str| name.eq_ignore_ascii_case(&args.target);
    let targets = configuration.targets.iter().filter(|target| named(&target.name));
    let mut luns = targets.flat_map(|target| &target.luns).filter(|lun| lun.id == args.lun);
    let mirror = luns.find_map(|lun| match lun.unit.device {
        DeviceUrl::Virtual(_) => lun.unit.options.pool.as_deref(),
        _ => None,
    });
    mirror.ok_or_else(|| {
        Failure::not_found(format!("{} has no LUN {} that is a mirror", args.target, args.lun))
            .hint("name a LUN of the configuration with mirror = […]")
    })
}
