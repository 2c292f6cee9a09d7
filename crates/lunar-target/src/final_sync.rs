//! The final sync of all disks at once, so that a disk that hangs delays no other. Its progress is
//! reported, and it is never cut short.

use crate::unit::Unit;
use futures_util::stream::{FuturesUnordered, StreamExt};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Interval of the progress reports.
const PROGRESS_INTERVAL: Duration = Duration::from_secs(1);
/// Number of disks named in one report; of the others only the number is given.
const NAMED_MAX: usize = 4;

/// Syncs all writable units; returns the names of those whose sync failed, with the reason.
pub(crate) fn sync_all(
    units: Vec<Arc<dyn Unit>>,
    progress: &mut dyn FnMut(&str),
) -> Vec<(String, String)> {
    let units: Vec<_> = units.into_iter().filter(|unit| !unit.is_read_only()).collect();
    let names: Vec<_> = units.iter().map(|unit| unit.name().to_owned()).collect();
    if units.is_empty() {
        return Vec::new();
    }
    progress(&format!("syncing {}", listed(&names)));
    match tokio::runtime::Builder::new_current_thread().enable_time().build() {
        Ok(runtime) => runtime.block_on(sync(units, names, progress)),
        Err(error) => names.into_iter().map(|name| (name, error.to_string())).collect(),
    }
}

async fn sync(
    units: Vec<Arc<dyn Unit>>,
    mut pending: Vec<String>,
    progress: &mut dyn FnMut(&str),
) -> Vec<(String, String)> {
    let (all, began) = (units.len(), Instant::now());
    let mut failed = Vec::new();
    let mut flushes: FuturesUnordered<_> = units
        .into_iter()
        .map(|unit| async move {
            let flushed = unit.flush().await;
            (unit.name().to_owned(), flushed)
        })
        .collect();
    let mut report_timer = tokio::time::interval(PROGRESS_INTERVAL);
    report_timer.tick().await; // the first tick is immediate
    loop {
        tokio::select! {
            ended = flushes.next() => {
                let Some((name, flushed)) = ended else { return failed };
                pending.retain(|other| *other != name);
                if let Err(error) = flushed {
                    failed.push((name, error.to_string()));
                }
            }
            _ = report_timer.tick() => {
                let (done, seconds) = (all - pending.len(), began.elapsed().as_secs());
                let pending = listed(&pending);
                let dirty = dirty().unwrap_or_default();
                progress(&format!(
                    "syncing: {done} of {all} done after {seconds} s, waiting for {pending}{dirty}"
                ));
            }
        }
    }
}

/// Data that the operating system has yet to write, of all its disks.
fn dirty() -> Option<String> {
    let memory = std::fs::read_to_string("/proc/meminfo").ok()?;
    let line = memory.lines().find_map(|line| line.strip_prefix("Dirty:"))?;
    let kib: u64 = line.trim().strip_suffix("kB")?.trim().parse().ok()?;
    Some(format!(" ({} MiB of dirty data on the whole machine)", kib >> 10))
}

fn listed(names: &[String]) -> String {
    let named = names.iter().take(NAMED_MAX).map(String::as_str).collect::<Vec<_>>().join(", ");
    match names.len().saturating_sub(NAMED_MAX) {
        0 => named,
        more => format!("{named} and {more} more"),
    }
}
