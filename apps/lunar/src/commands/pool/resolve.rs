//! `lunar pool resolve`: decides which side of a split mirror is kept.

use crate::device_url::ServedDevices;
use crate::output::{self, Failure, Format};
use lunar_block::BlockDevice;
use lunar_control::config;
use lunar_control::config::model::PoolConfig;
use lunar_control::device_url::{DeviceUrl, Opener, REMOTE_OPEN_TIME_MAX};
use lunar_pool::{MirrorSide, Pool, PoolError, SplitMirror};
use std::path::PathBuf;
use std::sync::Arc;

/// Decide which side of a split mirror is kept
///
/// A mirror is split when its members were written without each other, for example because each was
/// served alone. It is refused then, because each side has data that the other has not. Without
/// --keep, shows both sides. With --keep, the other side becomes stale: at the next start it gets
/// all data of the kept side, and WHAT WAS WRITTEN TO IT IS LOST. No server may have the members
/// open.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:\n  \
    lunar pool resolve safe --config /etc/lunar/lunar.toml\n  \
    lunar pool resolve safe --config /etc/lunar/lunar.toml --keep /srv/a.img")]
pub struct ResolveCommand {
    /// The pool
    name: String,
    /// The configuration with the members of the pool
    #[arg(long, value_name = "FILE")]
    config: PathBuf,
    /// A member of the side whose data is kept: its device, as the configuration names it
    #[arg(long, value_name = "DEVICE-URL")]
    keep: Option<String>,
}

/// Runs the command.
///
/// # Errors
/// Fails if the members cannot be opened, the mirror is not split, or no side is to be kept.
pub fn run(args: &ResolveCommand, format: Format) -> Result<(), Failure> {
    let configuration = config::load(&args.config)?;
    let found = config::pools::find(&configuration.pools, &args.name);
    let pool = found.map_err(|hint| {
        Failure::not_found(format!("{} has no [[pool]] {}", args.config.display(), args.name))
            .hint(hint)
    })?;
    let devices = open(&pool)?;
    let runtime = crate::commands::runtime()?;
    let split = match runtime.block_on(Pool::check(devices.clone())) {
        Err(PoolError::Split(split)) => split,
        Err(error) => return Err(Failure::new(format!("the pool {}: {error}", args.name))),
        Ok(()) => return report_whole(&args.name, format),
    };
    let Some(keep) = &args.keep else { return show(&args.name, &split, format) };
    let (kept, other) = sides(&args.name, &split, keep)?;
    let resolved = runtime.block_on(Pool::resolve(devices, kept));
    resolved.map_err(|error| {
        Failure::new(format!("the pool {} is still split: {error}", args.name))
            .hint("correct the cause, and repeat the command")
    })?;
    match format {
        Format::Json => output::print_json(&serde_json::json!({
            "kept": kept.devices, "stale": other.devices,
        })),
        Format::Human => output::print_text(&format!(
            "{} keep their data; {} get it at the next start of the server\n",
            kept.devices.join(", "),
            other.devices.join(", ")
        )),
    }
}

/// Opens all members, which no server may have open.
fn open(pool: &PoolConfig) -> Result<Vec<Arc<dyn BlockDevice>>, Failure> {
    let devices = ServedDevices::default();
    let open = |member| {
        devices.open_member(member, REMOTE_OPEN_TIME_MAX).map_err(|failure| {
            let hint = failure.hint.clone().unwrap_or_else(|| {
                "stop the server that has it open, and make all members available".to_owned()
            });
            Failure::new(format!("the pool {}: {}", pool.name, failure.what)).hint(hint)
        })
    };
    if pool.members.iter().any(|member| matches!(member.device, DeviceUrl::Pool(_))) {
        let what = format!("the pool {} consists of pools", pool.name);
        return Err(Failure::usage(what).hint("name the mirror inside that is split"));
    }
    pool.members.iter().map(open).collect()
}

fn report_whole(name: &str, format: Format) -> Result<(), Failure> {
    match format {
        Format::Json => output::print_json(&serde_json::json!({ "kept": [], "stale": [] })),
        Format::Human => output::print_text(&format!("the pool {name} is not split\n")),
    }
}

/// Shows both sides, and fails: the mirror is still split.
fn show(name: &str, split: &SplitMirror, format: Format) -> Result<(), Failure> {
    if format == Format::Human {
        let mut text = format!("{name} is split since generation {}:\n", split.common_generation);
        for side in &split.sides {
            text += &format!("  {side}\n");
        }
        output::print_text(&text)?;
    }
    let sides: Vec<_> = split.sides.iter().map(MirrorSide::to_string).collect();
    let keep = split.sides[0].devices.first().cloned().unwrap_or_default();
    Err(Failure::conflict(format!("the pool {name} is split: {}", sides.join(" and ")))
        .hint(format!("read both sides if in doubt, then add --keep {keep}, or the other side")))
}

/// The side that is kept, and the other one.
fn sides<'a>(
    name: &str,
    split: &'a SplitMirror,
    keep: &str,
) -> Result<(&'a MirrorSide, &'a MirrorSide), Failure> {
    let url = DeviceUrl::parse(keep)?;
    let has = |side: &MirrorSide| side.devices.iter().any(|device| url.is_device(device));
    let [first, second] = &split.sides;
    match (has(first), has(second)) {
        (true, _) => Ok((first, second)),
        (_, true) => Ok((second, first)),
        _ => {
            let sides: Vec<_> = split.sides.iter().map(MirrorSide::to_string).collect();
            Err(Failure::not_found(format!("{keep} is on no side of the pool {name}"))
                .hint(format!("the sides are {}", sides.join(" and "))))
        }
    }
}
