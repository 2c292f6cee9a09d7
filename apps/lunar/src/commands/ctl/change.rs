//! Commands that change a server: sizes, LUNs, logins, sessions.

use crate::administrators;
use crate::output::{self, Failure, Format};
use lunar_control::api::changes::{self, ChangeResult};
use lunar_control::api::sessions::LoggedOut;
use lunar_control::api::targets::Targets;
use lunar_control::client::{ApiClient, ApiPath, Method};
use lunar_control::config::limit_settings::LimitSettings;
use lunar_control::config::lun::{DeviceChapSettings, LunSettings};
use lunar_control::units::parse_size;
use std::path::{Path, PathBuf};

/// Options common to changes of a target.
#[derive(Debug, Default, clap::Args)]
pub(super) struct Common {
    /// The target's iSCSI name; not needed if there is only one target
    #[arg(long, value_name = "IQN")]
    target: Option<String>,
    /// Make the change, and print only the lines to paste into the configuration to keep it; they
    /// also keep all other differences from the configuration (the drift)
    #[arg(long)]
    print_toml: bool,
}

/// Resize a LUN while it is in use; initiators are notified
///
/// A larger size remains: a configuration with the old size is refused, unless it is applied with
/// `lunar apply --shrink`. Put the new size into the file.
#[derive(Debug, clap::Args)]
#[command(after_help = "Example:\n  lunar ctl resize 0 20G")]
pub struct ResizeCommand {
    /// The LUN's number
    lun: u16,
    /// The new size
    #[arg(value_name = "SIZE", value_parser = parse_size)]
    size: u64,
    /// Permit a smaller size: data beyond it is lost
    #[arg(long)]
    shrink: bool,
    /// The LUN's device, where several LUNs have this number
    #[arg(long, value_name = "DEVICE")]
    device: Option<String>,
    #[command(flatten)]
    common: Common,
}

/// Add a LUN
///
/// If the device is served already and the settings are the same, the new LUN shows the same disk:
/// two LUNs with one identity.
///
/// An apply or a restart removes the LUN again, also from a target that was added with --persist,
/// unless the lines of --print-toml are in the configuration.
#[derive(Debug, clap::Args)]
#[command(after_help = "Example:\n  lunar ctl add-lun more.img --size 5G --print-toml")]
pub struct AddLun {
    /// The device: a path (a file or a block device), file:PATH, mem:SIZE, or the LUN of another
    /// target, iscsi://HOST/TARGET/LUN
    device: String,
    /// Name for the login to the target of a remote LUN (a device iscsi://…)
    #[arg(long, value_name = "NAME", requires = "device_chap_secret_file")]
    device_chap_user: Option<String>,
    /// File with the secret of --device-chap-user, which the server reads
    #[arg(long, value_name = "FILE", requires = "device_chap_user")]
    device_chap_secret_file: Option<PathBuf>,
    /// Identity that initiators see: own, or device for that of the remote LUN
    #[arg(long, value_name = "WHOSE")]
    identity: Option<String>,
    /// The LUN's number [default: the lowest free one]
    #[arg(long)]
    id: Option<u16>,
    /// The disk's identity [default: the device's previous one, or a new one]
    #[arg(long)]
    uuid: Option<uuid::Uuid>,
    /// Create a missing file with this size, sparse
    #[arg(long, value_name = "SIZE", value_parser = parse_size)]
    size: Option<u64>,
    /// When a write is acknowledged: write-through or write-back
    #[arg(long, value_name = "MODE")]
    cache: Option<String>,
    /// Use the page cache, or bypass it: buffered or direct
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
    /// Notify initiators when the file system of a sparse file reaches this fill level, like 90%
    #[arg(long, value_name = "PERCENT")]
    thin_threshold: Option<String>,
    /// Handling of writes without free space: fail or hold
    #[arg(long, value_name = "WHAT")]
    out_of_space: Option<String>,
    /// Maximum rate of SANITIZE and FORMAT UNIT, like 1Gbit
    #[arg(long, value_name = "RATE")]
    maintenance_rate: Option<String>,
    /// Show the LUN only to this initiator, which must be allowed to log in; may be repeated
    #[arg(long, value_name = "IQN")]
    initiator: Vec<String>,
    /// Show the LUN only to this network; may be repeated
    #[arg(long, value_name = "ADDRESS/PREFIX")]
    network: Vec<String>,
    /// Let only this initiator format, sanitize, stop or write-protect the disk; may be repeated.
    /// none: nobody [default: those of the target]
    #[arg(long, value_name = "IQN|none")]
    administer: Vec<String>,
    /// Maximum number of reads and writes per second, all initiators together, at least 10
    #[arg(long, value_name = "N")]
    limit_iops: Option<u64>,
    /// Maximum data rate, like 200Mbit, at least 10Mbit
    #[arg(long, value_name = "RATE")]
    limit_bandwidth: Option<String>,
    #[command(flatten)]
    common: Common,
}

/// Remove a LUN; its device stays as it is
#[derive(Debug, clap::Args)]
#[command(after_help = "Example:\n  lunar ctl remove-lun 1")]
pub struct RemoveLun {
    /// The LUN's number
    lun: u16,
    /// The LUN's device, where several LUNs have this number
    #[arg(long, value_name = "DEVICE")]
    device: Option<String>,
    #[command(flatten)]
    common: Common,
}

/// Make a LUN accept writes again after a failed sync
///
/// The disk is synced once more, and the system's cache of it is dropped, so that reads return the
/// data on the medium. A file that another program has truncated gets its size back, filled with
/// zeroes. Initiators are notified that the medium may have changed.
#[derive(Debug, clap::Args)]
#[command(after_help = "Example:\n  lunar ctl recover 0 --accept-loss")]
pub struct RecoverCommand {
    /// The LUN's number
    lun: u16,
    /// Accept that data written since the last successful sync may be lost; required
    #[arg(long, required = true)]
    accept_loss: bool,
    /// The target's iSCSI name; not needed if there is only one target
    #[arg(long, value_name = "IQN")]
    target: Option<String>,
    /// The LUN's device, where several LUNs have this number
    #[arg(long, value_name = "DEVICE")]
    device: Option<String>,
}

/// Request a logout from an initiator, and end its session if none comes; it may log in again
#[derive(Debug, clap::Args)]
#[command(after_help = "Example:\n  lunar ctl sessions\n  lunar ctl logout 1")]
pub struct Logout {
    /// The session's handle, as listed by `lunar ctl sessions`
    tsih: u16,
}

/// Redirect a target's logins to another address; its sessions end
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:\n  lunar ctl redirect 192.0.2.8:3260\n  lunar ctl redirect none")]
pub struct RedirectCommand {
    /// The address HOST:PORT, or none to stop redirecting
    #[arg(value_name = "HOST:PORT|none")]
    to: String,
    #[command(flatten)]
    common: Common,
}

/// Runs `lunar ctl resize`.
pub async fn resize(
    client: &ApiClient,
    args: &ResizeCommand,
    format: Format,
) -> Result<(), Failure> {
    let target = target(client, &args.common).await?;
    let lun = args.lun.to_string();
    let path = ApiPath::new(&["targets", &target, "luns", &lun, "resize"]);
    let path = of_device(path, args.device.as_deref());
    let body = changes::Resize { size_bytes: args.size, shrink: args.shrink };
    print_change(&client.send(Method::POST, &path, &body).await?, &args.common, format)
}

/// Runs `lunar ctl add-lun`.
pub async fn add_lun(client: &ApiClient, args: &AddLun, format: Format) -> Result<(), Failure> {
    let target = target(client, &args.common).await?;
    let settings = LunSettings {
        id: args.id,
        uuid: args.uuid,
        device: absolute(&args.device),
        device_chap: device_chap(args),
        identity: args.identity.clone(),
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
        initiators: non_empty(&args.initiator),
        networks: non_empty(&args.network),
        administer: administrators::given(&args.administer),
        limit: limit_of(args),
        initiator_limit: None,
    };
    let path = ApiPath::new(&["targets", &target, "luns"]);
    print_change(&client.send(Method::POST, &path, &settings).await?, &args.common, format)
}

fn device_chap(args: &AddLun) -> Option<DeviceChapSettings> {
    let user = args.device_chap_user.clone()?;
    let file = args.device_chap_secret_file.as_deref()?;
    let file = std::path::absolute(file).unwrap_or_else(|_| file.to_owned());
    let secret_file = file.to_string_lossy().into_owned();
    Some(DeviceChapSettings { user, secret_file, ..DeviceChapSettings::default() })
}

/// Runs `lunar ctl remove-lun`.
pub async fn remove_lun(
    client: &ApiClient,
    args: &RemoveLun,
    format: Format,
) -> Result<(), Failure> {
    let target = target(client, &args.common).await?;
    let path = ApiPath::new(&["targets", &target, "luns", &args.lun.to_string()]);
    let path = of_device(path, args.device.as_deref());
    print_change(&client.delete(&path).await?, &args.common, format)
}

/// Runs `lunar ctl redirect`.
pub async fn redirect(
    client: &ApiClient,
    args: &RedirectCommand,
    format: Format,
) -> Result<(), Failure> {
    let target = target(client, &args.common).await?;
    let path = ApiPath::new(&["targets", &target, "redirect"]);
    let changed = match args.to.as_str() {
        "none" => client.delete(&path).await?,
        to => {
            let body = changes::Redirect { address: to.to_owned() };
            client.send(Method::PUT, &path, &body).await?
        }
    };
    print_change(&changed, &args.common, format)
}

/// Runs `lunar ctl recover`.
pub async fn recover(
    client: &ApiClient,
    args: &RecoverCommand,
    format: Format,
) -> Result<(), Failure> {
    let common = Common { target: args.target.clone(), print_toml: false };
    let target = target(client, &common).await?;
    let path = ApiPath::new(&["targets", &target, "luns", &args.lun.to_string(), "recover"]);
    let path = of_device(path, args.device.as_deref());
    let body = changes::RecoverRequest { accept_loss: args.accept_loss };
    let done: changes::RecoverResult = client.send(Method::POST, &path, &body).await?;
    match format {
        Format::Json => output::print_json(&done),
        Format::Human => output::print_text(&format!(
            "LUN {} of {} accepts writes again\n",
            done.lun, done.target
        )),
    }
}

/// Runs `lunar ctl logout`.
pub async fn logout(client: &ApiClient, args: &Logout, format: Format) -> Result<(), Failure> {
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

/// The named target, or the only one.
pub(super) async fn target(client: &ApiClient, common: &Common) -> Result<String, Failure> {
    if let Some(name) = &common.target {
        return Ok(name.clone());
    }
    let found: Targets = client.get(&ApiPath::new(&["targets"])).await?;
    match found.targets.as_slice() {
        [only] => Ok(only.name.clone()),
        [] => Err(Failure::new("the server serves no target")),
        several => {
            let names: Vec<_> = several.iter().map(|target| target.name.as_str()).collect();
            Err(Failure::usage(format!("the server has {} targets", several.len()))
                .hint(format!("select one with --target: {}", names.join(" "))))
        }
    }
}

/// The list, or `None` if it is empty.
pub(super) fn non_empty(list: &[String]) -> Option<Vec<String>> {
    (!list.is_empty()).then(|| list.to_vec())
}

fn limit_of(args: &AddLun) -> Option<LimitSettings> {
    let limit = LimitSettings { iops: args.limit_iops, bandwidth: args.limit_bandwidth.clone() };
    (limit.iops.is_some() || limit.bandwidth.is_some()).then_some(limit)
}

/// The device with an absolute path, as the server has another working directory.
pub(super) fn absolute(device: &str) -> String {
    if device.starts_with("mem:") || device.starts_with("iscsi:") || device.starts_with("pool:") {
        return device.to_owned();
    }
    let path = device.strip_prefix("file:").unwrap_or(device);
    // The server refuses a path that cannot be made absolute.
    match std::path::absolute(Path::new(path)) {
        Ok(path) => format!("file:{}", path.display()),
        Err(_) => device.to_owned(),
    }
}

pub(super) fn print_change(
    changed: &ChangeResult,
    common: &Common,
    format: Format,
) -> Result<(), Failure> {
    match (format, common.print_toml) {
        (Format::Json, _) => output::print_json(changed),
        (Format::Human, true) => output::print_text(&changed.toml),
        (Format::Human, false) => {
            let mut text = String::new();
            for change in &changed.applied.difference.changes {
                text.push_str(&format!("{}\n", change.line));
            }
            if changed.applied.difference.changes.is_empty() {
                text.push_str("no change necessary\n");
            }
            for warning in &changed.applied.warnings {
                text.push_str(&format!("warning: {warning}\n"));
            }
            output::print_text(&text)
        }
    }
}
