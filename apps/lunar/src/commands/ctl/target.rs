//! `lunar ctl add-target`, `remove-target` and `stop`.

use super::change::{Common, absolute, non_empty, print_change};
use crate::output::{self, Failure, Format};
use lunar_control::api::changes::{AddTarget, ChangeResult, StopResult};
use lunar_control::api::status::Status;
use lunar_control::client::{ApiClient, ApiPath, Method};
use lunar_control::config::lun::LunSettings;
use lunar_control::config::target::{TargetChapSettings, TargetSettings};
use lunar_control::units::parse_size;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// Pause between two looks at a server that stops.
const STOP_POLL: Duration = Duration::from_millis(50);

/// Add a target with one LUN for each device
///
/// A target that exists with the same settings is left as it is, so that the command can be
/// repeated; one with other settings is refused. A persisted target is kept as it was added, apart
/// from the sizes of its disks: name all its devices at once. LUNs and limits that are added later
/// last until the next apply or restart.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:\n  \
    lunar ctl add-target iqn.2026-11.org.example:vol1 /srv/vol1.img --size 5G --persist\n  \
    lunar ctl add-target iqn.2026-11.org.example:vol2 /srv/a.img /srv/b.img --persist")]
pub struct AddTargetCommand {
    /// The target's iSCSI name
    #[arg(value_name = "IQN")]
    name: String,
    /// The devices of LUN 0, 1, …: a path, file:PATH, mem:SIZE, iscsi://HOST/TARGET/LUN, pool:NAME
    #[arg(value_name = "DEVICE", required = true)]
    devices: Vec<String>,
    /// Keep the target over restarts and applies, in the server's state directory; the file of a
    /// disk must then exist at each start
    #[arg(long)]
    persist: bool,
    /// Create missing files with this size, sparse
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
    /// Refuse writes
    #[arg(long)]
    read_only: bool,
    /// Admit only this initiator; may be repeated
    #[arg(long, value_name = "IQN")]
    initiator: Vec<String>,
    /// Admit only this network; may be repeated
    #[arg(long, value_name = "ADDRESS/PREFIX")]
    network: Vec<String>,
    /// Name that initiators must log in with
    #[arg(long, value_name = "NAME", requires = "chap_secret_file")]
    chap_user: Option<String>,
    /// File with the initiators' secret, which the server reads
    #[arg(long, value_name = "FILE", requires = "chap_user")]
    chap_secret_file: Option<PathBuf>,
    /// Name of the target, for initiators that authenticate it (mutual CHAP)
    #[arg(long, value_name = "NAME", requires_all = ["chap_user", "mutual_chap_secret_file"])]
    mutual_chap_user: Option<String>,
    /// File with the target's own secret, which the server reads
    #[arg(long, value_name = "FILE", requires = "mutual_chap_user")]
    mutual_chap_secret_file: Option<PathBuf>,
}

/// Remove a target; its sessions end, its devices stay as they are
///
/// There need not be such a target, so that the command can be repeated.
#[derive(Debug, clap::Args)]
#[command(after_help = "Example:\n  \
    lunar ctl remove-target iqn.2026-11.org.example:vol1 --persist")]
pub struct RemoveTargetCommand {
    /// The target's iSCSI name
    #[arg(value_name = "IQN")]
    name: String,
    /// Remove the target also from the server's state directory; without this, a target that was
    /// added with --persist returns with the next apply or restart
    #[arg(long)]
    persist: bool,
}

/// Stop the server, and wait until it has ended
///
/// Initiators have five seconds to log out, running commands finish, and disks are synced. The
/// server's exit status and log tell whether the syncs succeeded.
#[derive(Debug, clap::Args)]
#[command(after_help = "Example:\n  lunar ctl stop")]
pub struct StopCommand {
    /// Return at once
    #[arg(long)]
    no_wait: bool,
}

/// Runs `lunar ctl add-target`.
pub async fn add_target(
    client: &ApiClient,
    args: &AddTargetCommand,
    format: Format,
) -> Result<(), Failure> {
    let lun = |device: &String| LunSettings {
        device: absolute(device),
        size: args.size.map(|size| size.to_string()),
        cache: args.cache.clone(),
        io: args.io.clone(),
        block_size: args.block_size,
        read_only: args.read_only.then_some(true),
        ..LunSettings::default()
    };
    let target = TargetSettings {
        name: args.name.clone(),
        initiators: non_empty(&args.initiator),
        networks: non_empty(&args.network),
        chap: chap(args).map(|chap| vec![chap]),
        lun: args.devices.iter().map(lun).collect(),
        ..TargetSettings::default()
    };
    let body = AddTarget { target, persist: args.persist };
    let changed = client.send(Method::POST, &ApiPath::new(&["targets"]), &body).await?;
    print_change(&changed, &Common::default(), format)
}

fn chap(args: &AddTargetCommand) -> Option<TargetChapSettings> {
    let file = |path: &Path| {
        let path = std::path::absolute(path).unwrap_or_else(|_| path.to_owned());
        path.to_string_lossy().into_owned()
    };
    Some(TargetChapSettings {
        user: args.chap_user.clone()?,
        secret_file: file(args.chap_secret_file.as_deref()?),
        mutual_user: args.mutual_chap_user.clone(),
        mutual_secret_file: args.mutual_chap_secret_file.as_deref().map(file),
        ..TargetChapSettings::default()
    })
}

/// Runs `lunar ctl remove-target`.
pub async fn remove_target(
    client: &ApiClient,
    args: &RemoveTargetCommand,
    format: Format,
) -> Result<(), Failure> {
    let path = ApiPath::new(&["targets", &args.name]);
    let path = if args.persist { path.query("persist", "true") } else { path };
    let changed: ChangeResult = client.delete(&path).await?;
    print_change(&changed, &Common::default(), format)
}

/// Runs `lunar ctl stop`.
pub async fn stop(client: &ApiClient, args: &StopCommand, format: Format) -> Result<(), Failure> {
    let path = ApiPath::new(&["stop"]);
    let stopping: StopResult = client.send(Method::POST, &path, &serde_json::json!({})).await?;
    let status = ApiPath::new(&["status"]);
    // The API answers until all disks are synced.
    while !args.no_wait && client.get::<Status>(&status).await.is_ok() {
        tokio::time::sleep(STOP_POLL).await;
    }
    let what = if args.no_wait { "stops" } else { "has stopped" };
    match format {
        Format::Json => output::print_json(&stopping),
        Format::Human => output::print_text(&format!("process {} {what}\n", stopping.process)),
    }
}
