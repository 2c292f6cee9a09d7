//! What changes: sizes, LUNs, logins, sessions.

use crate::administrators;
use crate::output::{self, Failure, Format};
use lunar_control::api::changes::{self, Changed};
use lunar_control::api::sessions::LoggedOut;
use lunar_control::api::targets::Targets;
use lunar_control::client::{ApiPath, Client, Method};
use lunar_control::config::limit_settings::LimitSettings;
use lunar_control::config::lun::LunSettings;
use lunar_control::units::parse_size;
use std::path::Path;

/// Where, and what to print.
#[derive(Debug, clap::Args)]
pub(super) struct Common {
    /// The target's iSCSI name; not needed where there is only one
    #[arg(long, value_name = "IQN")]
    target: Option<String>,
    /// Make the change, and print only the lines that keep it, to paste into the configuration;
    /// they keep all else that differs from it (the drift) as well
    #[arg(long)]
    print_toml: bool,
}

/// Give a LUN another size while it is used; initiators are told
///
/// A larger size is not taken back by itself: a configuration with the old one is refused, unless
/// it is applied with `lunar apply --shrink`. Put the new size into the file.
#[derive(Debug, clap::Args)]
#[command(after_help = "Example:\n  lunar ctl resize 0 20G")]
pub struct Resize {
    /// The LUN's number
    lun: u16,
    /// Its new size
    #[arg(value_name = "SIZE", value_parser = parse_size)]
    size: u64,
    /// Take a smaller size too: what lies beyond it is lost
    #[arg(long)]
    shrink: bool,
    /// Its device, where several LUNs have this number
    #[arg(long, value_name = "DEVICE")]
    device: Option<String>,
    #[command(flatten)]
    common: Common,
}

/// Serve one more LUN
///
/// A device that is served already becomes, with the same settings, a further LUN over the same
/// disk: two LUNs with one identity.
#[derive(Debug, clap::Args)]
#[command(after_help = "Example:\n  lunar ctl add-lun more.img --size 5G --print-toml")]
pub struct AddLun {
    /// What to serve: a path (a file or a block device), file:PATH, or mem:SIZE
    device: String,
    /// Its number [default: the lowest that is free]
    #[arg(long)]
    id: Option<u16>,
    /// Its identity [default: as the device had before, or a new one]
    #[arg(long)]
    uuid: Option<uuid::Uuid>,
    /// Create a missing file with this size, sparse
    #[arg(long, value_name = "SIZE", value_parser = parse_size)]
    size: Option<u64>,
    /// When a write is acknowledged: write-through or write-back
    #[arg(long, value_name = "MODE")]
    cache: Option<String>,
    /// Through the page cache, or past it: buffered or direct
    #[arg(long, value_name = "HOW")]
    io: Option<String>,
    /// Logical block size: 512, 1024, 2048 or 4096
    #[arg(long, value_name = "SIZE", value_parser = parse_size)]
    block_size: Option<u64>,
    /// Physical block size, a power of two
    #[arg(long, value_name = "SIZE", value_parser = parse_size)]
    physical_block_size: Option<u64>,
    /// Refuse writes
    #[arg(long)]
    read_only: bool,
    /// Show the disk as a removable medium
    #[arg(long)]
    removable: bool,
    /// Do not offer deallocation (UNMAP)
    #[arg(long)]
    no_thin: bool,
    /// Tell initiators when so much of the file system behind a sparse file is taken, like 90%
    #[arg(long, value_name = "PERCENT")]
    thin_threshold: Option<String>,
    /// What becomes of a write for which there is no room: fail or hold
    #[arg(long, value_name = "WHAT")]
    out_of_space: Option<String>,
    /// SANITIZE and FORMAT UNIT go through it no faster than this, like 1Gbit
    #[arg(long, value_name = "RATE")]
    maintenance_rate: Option<String>,
    /// Only this initiator, of those that may log in, sees it; may be given again
    #[arg(long, value_name = "IQN")]
    initiator: Vec<String>,
    /// It is seen only from this network; may be given again
    #[arg(long, value_name = "ADDRESS/PREFIX")]
    network: Vec<String>,
    /// Only this initiator may format, sanitize, stop or write-protect it; may be given again.
    /// none: nobody [default: those of the target]
    #[arg(long, value_name = "IQN|none")]
    administer: Vec<String>,
    /// So many commands that read or write a second, all initiators together, from 10
    #[arg(long, value_name = "N")]
    limit_iops: Option<u64>,
    /// No more than this a second, like 200Mbit, from 10Mbit
    #[arg(long, value_name = "RATE")]
    limit_bandwidth: Option<String>,
    #[command(flatten)]
    common: Common,
}

/// Serve a LUN no more; its device stays as it is
#[derive(Debug, clap::Args)]
#[command(after_help = "Example:\n  lunar ctl remove-lun 1")]
pub struct RemoveLun {
    /// The LUN's number
    lun: u16,
    /// Its device, where several LUNs have this number
    #[arg(long, value_name = "DEVICE")]
    device: Option<String>,
    #[command(flatten)]
    common: Common,
}

/// Have a LUN take writes again after a sync of its disk has failed
///
/// The disk is synced once more, and what the system has cached of it is dropped, so that reads
/// show what the medium has. A file that another program has truncated gets its size again, with
/// zeroes. Initiators are told that the medium may have changed.
#[derive(Debug, clap::Args)]
#[command(after_help = "Example:\n  lunar ctl recover 0 --accept-loss")]
pub struct Recover {
    /// The LUN's number
    lun: u16,
    /// What was written since the last good sync may be lost: without this nothing is done
    #[arg(long, required = true)]
    accept_loss: bool,
    /// The target's iSCSI name; not needed where there is only one
    #[arg(long, value_name = "IQN")]
    target: Option<String>,
    /// Its device, where several LUNs have this number
    #[arg(long, value_name = "DEVICE")]
    device: Option<String>,
}

/// Ask an initiator to log out, and cut its session when it does not; it may log in again
#[derive(Debug, clap::Args)]
#[command(after_help = "Example:\n  lunar ctl sessions\n  lunar ctl logout 1")]
pub struct Logout {
    /// The session's handle, as `lunar ctl sessions` tells it
    tsih: u16,
}

/// Send a target's logins elsewhere; its sessions end
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:\n  lunar ctl redirect 192.0.2.8:3260\n  lunar ctl redirect none")]
pub struct Redirect {
    /// Where: HOST:PORT, or none to take logins here again
    #[arg(value_name = "HOST:PORT|none")]
    to: String,
    #[command(flatten)]
    common: Common,
}

/// `lunar ctl resize`.
pub async fn resize(client: &Client, args: &Resize, format: Format) -> Result<(), Failure> {
    let target = target(client, &args.common).await?;
    let lun = args.lun.to_string();
    let path = ApiPath::new(&["targets", &target, "luns", &lun, "resize"]);
    let path = of_device(path, args.device.as_deref());
    let body = changes::Resize { size_bytes: args.size, shrink: args.shrink };
    tell(&client.send(Method::POST, &path, &body).await?, &args.common, format)
}

/// `lunar ctl add-lun`.
pub async fn add_lun(client: &Client, args: &AddLun, format: Format) -> Result<(), Failure> {
    let target = target(client, &args.common).await?;
    let settings = LunSettings {
        id: args.id,
        uuid: args.uuid,
        device: absolute(&args.device),
        size: args.size.map(|bytes| bytes.to_string()),
        cache: args.cache.clone(),
        io: args.io.clone(),
        block_size: args.block_size,
        physical_block_size: args.physical_block_size,
        read_only: args.read_only.then_some(true),
        removable: args.removable.then_some(true),
        thin: args.no_thin.then_some(false),
        thin_threshold: args.thin_threshold.clone(),
        out_of_space: args.out_of_space.clone(),
        maintenance_rate: args.maintenance_rate.clone(),
        initiators: some(&args.initiator),
        networks: some(&args.network),
        administer: administrators::given(&args.administer),
        limit: limit_of(args),
        initiator_limit: None,
    };
    let path = ApiPath::new(&["targets", &target, "luns"]);
    tell(&client.send(Method::POST, &path, &settings).await?, &args.common, format)
}

/// `lunar ctl remove-lun`.
pub async fn remove_lun(client: &Client, args: &RemoveLun, format: Format) -> Result<(), Failure> {
    let target = target(client, &args.common).await?;
    let path = ApiPath::new(&["targets", &target, "luns", &args.lun.to_string()]);
    let path = of_device(path, args.device.as_deref());
    tell(&client.delete(&path).await?, &args.common, format)
}

/// `lunar ctl redirect`.
pub async fn redirect(client: &Client, args: &Redirect, format: Format) -> Result<(), Failure> {
    let target = target(client, &args.common).await?;
    let path = ApiPath::new(&["targets", &target, "redirect"]);
    let changed = match args.to.as_str() {
        "none" => client.delete(&path).await?,
        to => {
            let body = changes::Redirect { address: to.to_owned() };
            client.send(Method::PUT, &path, &body).await?
        }
    };
    tell(&changed, &args.common, format)
}

/// `lunar ctl recover`.
pub async fn recover(client: &Client, args: &Recover, format: Format) -> Result<(), Failure> {
    let common = Common { target: args.target.clone(), print_toml: false };
    let target = target(client, &common).await?;
    let path = ApiPath::new(&["targets", &target, "luns", &args.lun.to_string(), "recover"]);
    let path = of_device(path, args.device.as_deref());
    let body = changes::Recover { accept_loss: args.accept_loss };
    let done: changes::Recovered = client.send(Method::POST, &path, &body).await?;
    match format {
        Format::Json => output::print_json(&done),
        Format::Human => {
            output::print_text(&format!("LUN {} of {} takes writes\n", done.lun, done.target))
        }
    }
}

/// `lunar ctl logout`.
pub async fn logout(client: &Client, args: &Logout, format: Format) -> Result<(), Failure> {
    let path = ApiPath::new(&["sessions", &args.tsih.to_string()]);
    let ended: LoggedOut = client.delete(&path).await?;
    match format {
        Format::Json => output::print_json(&ended),
        Format::Human => output::print_text(&format!("session {} has ended\n", ended.tsih)),
    }
}

pub(super) fn of_device(path: ApiPath, device: Option<&str>) -> ApiPath {
    match device {
        Some(device) => path.query("device", &absolute(device)),
        None => path,
    }
}

/// The target that is named, or the only one.
pub(super) async fn target(client: &Client, common: &Common) -> Result<String, Failure> {
    if let Some(name) = &common.target {
        return Ok(name.clone());
    }
    let found: Targets = client.get(&ApiPath::new(&["targets"])).await?;
    match found.targets.as_slice() {
        [only] => Ok(only.name.clone()),
        [] => Err(Failure::new("the server has no target")),
        several => {
            let names: Vec<_> = several.iter().map(|target| target.name.as_str()).collect();
            Err(Failure::usage(format!("there are {} targets", several.len()))
                .hint(format!("name one of them with --target: {}", names.join(" "))))
        }
    }
}

/// A list, where it says anything.
fn some(list: &[String]) -> Option<Vec<String>> {
    (!list.is_empty()).then(|| list.to_vec())
}

fn limit_of(args: &AddLun) -> Option<LimitSettings> {
    let limit = LimitSettings { iops: args.limit_iops, bandwidth: args.limit_bandwidth.clone() };
    (limit.iops.is_some() || limit.bandwidth.is_some()).then_some(limit)
}

/// A device as the server, which runs elsewhere, has to be told it.
fn absolute(device: &str) -> String {
    if device.starts_with("mem:") || device.starts_with("iscsi:") {
        return device.to_owned();
    }
    let path = device.strip_prefix("file:").unwrap_or(device);
    // What cannot be made absolute the server refuses.
    match std::path::absolute(Path::new(path)) {
        Ok(path) => format!("file:{}", path.display()),
        Err(_) => device.to_owned(),
    }
}

pub(super) fn tell(changed: &Changed, common: &Common, format: Format) -> Result<(), Failure> {
    match (format, common.print_toml) {
        (Format::Json, _) => output::print_json(changed),
        (Format::Human, true) => output::print_text(&changed.toml),
        (Format::Human, false) => {
            let mut text = String::new();
            for change in &changed.applied.difference.changes {
                text.push_str(&format!("{}\n", change.line));
            }
            if changed.applied.difference.changes.is_empty() {
                text.push_str("nothing to change\n");
            }
            for warning in &changed.applied.warnings {
                text.push_str(&format!("warning: {warning}\n"));
            }
            output::print_text(&text)
        }
    }
}
