//! `lunar pool add`, `replace` and `remove`: changes of a mirror that is served.

use super::status::{human, pool};
use crate::commands::api_args::ApiArgs;
use crate::commands::progress::ProgressMeter;
use crate::output::{self, Failure, Format};
use lunar_control::api::pools::{NewMember, PoolChanged, PoolReport};
use lunar_control::client::{ApiClient, ApiPath, Method};
use lunar_control::device_url::DeviceUrl;
use std::time::Duration;

/// Interval at which the progress is read.
const PROGRESS_INTERVAL: Duration = Duration::from_millis(250);

/// Make a device a member of a mirror while it is in use
///
/// The data on the device is lost; the mirror is copied to it. The configuration file lists the
/// device before, so that the mirror finds it at the next start.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:\n  \
    lunar pool add safe /srv/c.img\n  \
    lunar pool add safe iscsi://10.0.0.3/iqn.2026-11.org.example:c/0 --wait\n\n\
    First write the device into `members` of the [[pool]]; an apply is not necessary.")]
pub struct AddCommand {
    /// The pool
    name: String,
    /// The new member: a path, file:PATH, or iscsi://HOST/TARGET/LUN
    #[arg(value_name = "DEVICE-URL")]
    device: String,
    /// Wait until the device has all data
    #[arg(long)]
    wait: bool,
    #[command(flatten)]
    api: ApiArgs,
}

/// Give the slot of a member of a mirror to another device while the mirror is in use
///
/// The data on the new device is lost; the mirror is copied to it. The configuration file lists the
/// new device before. The old device keeps its label.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:\n  \
    lunar pool replace safe 1 /srv/new.img --wait\n  \
    lunar pool replace safe /srv/b.img /srv/new.img\n\n\
    First write the new device into `members` of the [[pool]], instead of the old one; an\n\
    apply is not necessary.")]
pub struct ReplaceCommand {
    /// The pool
    name: String,
    /// The member: its slot or its device, as `lunar pool status` shows them
    member: String,
    /// The new device: a path, file:PATH, iscsi://HOST/TARGET/LUN, or for a copy of a mirrored
    /// virtual LUN extent:STORAGE:START+LENGTH
    #[arg(value_name = "DEVICE-URL")]
    device: String,
    /// Wait until the device has all data
    #[arg(long)]
    wait: bool,
    #[command(flatten)]
    api: ApiArgs,
}

/// Remove a member of a mirror for good while the mirror is in use
///
/// The label of the device is cleared. A mirror keeps at least two members. Remove the device from
/// the configuration file afterwards.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:\n  \
    lunar pool remove safe 2\n  \
    lunar pool remove safe /srv/c.img\n\n\
    Then remove the device from `members` of the [[pool]].")]
pub struct RemoveCommand {
    /// The pool
    name: String,
    /// The member: its slot or its device, as `lunar pool status` shows them
    member: String,
    #[command(flatten)]
    api: ApiArgs,
}

/// Runs `lunar pool add`.
///
/// # Errors
/// The reason why the device does not become a member.
pub fn add(args: &AddCommand, format: Format) -> Result<(), Failure> {
    let client = args.api.client()?;
    let device = device(&args.device)?;
    crate::commands::runtime()?.block_on(async {
        let path = ApiPath::new(&["pools", &args.name, "members"]);
        let body = NewMember { device: device.clone() };
        let changed = client.send(Method::POST, &path, &body).await?;
        end(&client, &device, changed, args.wait, format).await
    })
}

/// Runs `lunar pool replace`.
///
/// # Errors
/// The reason why the device does not become a member.
pub fn replace(args: &ReplaceCommand, format: Format) -> Result<(), Failure> {
    let client = args.api.client()?;
    let device = device(&args.device)?;
    crate::commands::runtime()?.block_on(async {
        let slot = slot(&pool(&client, &args.name).await?, &args.member)?;
        let path = ApiPath::new(&["pools", &args.name, "members", &slot.to_string(), "replace"]);
        let body = NewMember { device: device.clone() };
        let changed = client.send(Method::POST, &path, &body).await?;
        end(&client, &device, changed, args.wait, format).await
    })
}

/// Beginning of the name of an extent, a copy of a mirrored virtual LUN.
const EXTENT: &str = "extent:";

/// The name of a device, which stays the same in another directory.
fn device(text: &str) -> Result<String, Failure> {
    match text.starts_with(EXTENT) {
        true => Ok(text.to_owned()),
        false => Ok(super::absolute(text)?.to_string()),
    }
}

/// True if a member with this name is the device that a user names.
fn is_named(text: &str, member: &str) -> bool {
    text == member || DeviceUrl::parse(text).is_ok_and(|url| url.is_device(member))
}

/// Runs `lunar pool remove`.
///
/// # Errors
/// The reason why the member is not removed.
pub fn remove(args: &RemoveCommand, format: Format) -> Result<(), Failure> {
    let client = args.api.client()?;
    let changed = crate::commands::runtime()?.block_on(async {
        let slot = slot(&pool(&client, &args.name).await?, &args.member)?;
        let path = ApiPath::new(&["pools", &args.name, "members", &slot.to_string()]);
        client.delete(&path).await
    })?;
    print_changed(&changed, format)
}

/// The slot of the member that a user names by its slot or device.
fn slot(pool: &PoolReport, member: &str) -> Result<u16, Failure> {
    let found = match member.parse::<u16>() {
        Ok(slot) => pool.members.iter().find(|one| one.slot == slot),
        Err(_) => {
            pool.members.iter().find(|one| !one.device.is_empty() && is_named(member, &one.device))
        }
    };
    found.map(|one| one.slot).ok_or_else(|| {
        Failure::not_found(format!("the pool {} has no member {member}", pool.name))
            .hint(format!("see `lunar pool status {}` for its members", pool.name))
    })
}

/// Waits for the copy to a new member, if wanted, and prints the result.
async fn end(
    client: &ApiClient,
    device: &str,
    mut changed: PoolChanged,
    waits: bool,
    format: Format,
) -> Result<(), Failure> {
    if waits {
        changed.pool = wait_for_copy(client, changed.pool, device).await?;
    }
    print_changed(&changed, format)
}

async fn wait_for_copy(
    client: &ApiClient,
    mut now: PoolReport,
    device: &str,
) -> Result<PoolReport, Failure> {
    let meter = ProgressMeter::begin("copy", now.size_bytes);
    loop {
        let Some(member) = now.members.iter().find(|member| is_named(device, &member.device))
        else {
            let what = format!("{device} is no member of the pool {} any more", now.name);
            return Err(Failure::conflict(what).hint("see the log of the server"));
        };
        meter.set(now.size_bytes.saturating_sub(member.missing_bytes));
        if member.state == "current" && member.missing_bytes == 0 {
            return Ok(now);
        }
        tokio::time::sleep(PROGRESS_INTERVAL).await;
        now = pool(client, &now.name).await?;
    }
}

fn print_changed(changed: &PoolChanged, format: Format) -> Result<(), Failure> {
    match format {
        Format::Json => output::print_json(changed),
        Format::Human => {
            let mut text = human(&changed.pool);
            if !changed.toml.is_empty() {
                text += "change the configuration, which lists other members:\n";
                text += &changed.toml;
            }
            output::print_text(&text)
        }
    }
}
