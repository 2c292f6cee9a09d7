//! Room for what is written: telling initiators before it runs out, and what happens when it has.

use crate::Error;
use crate::server::Shared;
use crate::unit::{LogicalUnit, LogicalUnitOptions};
use scsi::unit::{Resources, Threshold};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;
use tokio::sync::watch;

/// What becomes of a write for which there is no room.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub enum OutOfSpace {
    /// It fails: SPACE ALLOCATION FAILED WRITE PROTECT.
    #[default]
    Fail,
    /// It waits until there is room.
    Hold,
}

/// How often the room of units with a threshold is looked at.
const ROOM_INTERVAL: Duration = Duration::from_secs(1);
/// How often a write that waits for room tries again.
pub(crate) const HOLD_INTERVAL: Duration = Duration::from_millis(500);
/// Writes of one unit that wait for room; those beyond get BUSY. They are fewer than a session may
/// have in flight, so that its other units can still be reached.
const HELD_WRITES_MAX: usize = 32;
/// A threshold set: what SCSI counts room in.
const THRESHOLD_SET_BYTES: u64 = 1 << 20;

/// The threshold of a unit, in threshold sets that are available when it is reached.
pub(crate) fn threshold(options: &LogicalUnitOptions) -> Result<Option<Threshold>, Error> {
    let Some(percent) = options.thin_threshold_percent else { return Ok(None) };
    let refuse = |what: &str| {
        let name = options.device.name();
        Err(Error::Options(format!("a threshold of room makes no sense for {name}: {what}")))
    };
    if !options.thin {
        return refuse("it is not thin");
    }
    let room = match options.device.sparse() {
        Some(sparse) => sparse.room()?,
        None => None,
    };
    let Some(room) = room else { return refuse("its room is not known; a sparse file has one") };
    let left = u128::from(room.total_bytes) * u128::from(100 - percent.min(99)) / 100;
    let sets = left / u128::from(THRESHOLD_SET_BYTES);
    let block_bytes = u64::from(options.device.geometry().block_bytes);
    Ok(Some(Threshold {
        set_exponent: (THRESHOLD_SET_BYTES / block_bytes).max(2).ilog2() as u8,
        available_sets: u32::try_from(sets).unwrap_or(u32::MAX).max(1),
    }))
}

/// Looks at the room of the units that have a threshold until it is told to stop.
pub(crate) async fn watch(shared: Arc<Shared>, mut stop: watch::Receiver<bool>) {
    loop {
        for unit in shared.units() {
            if unit.options().thin_threshold_percent.is_some() {
                look(&unit).await;
            }
        }
        let stopped = stop.wait_for(|stop| *stop);
        if tokio::time::timeout(ROOM_INTERVAL, stopped).await.is_ok() {
            return;
        }
    }
}

async fn look(unit: &Arc<LogicalUnit>) {
    let asked = Arc::clone(unit);
    // A file system that does not answer holds up a thread of its own, and no other unit's data.
    let room = tokio::task::spawn_blocking(move || {
        asked.device().sparse().map_or(Ok(None), |sparse| sparse.room())
    });
    let Ok(Ok(Some(room))) = room.await else { return };
    let resources =
        Resources { used_bytes: room.used_bytes, available_bytes: room.available_bytes };
    if unit.scsi().observe_room(resources) {
        let device = unit.device().name();
        let available_bytes = room.available_bytes;
        tracing::warn!(device, available_bytes, "little room is left: initiators are told");
    }
}

/// A write that waits for room is counted while this lives.
#[derive(Debug)]
pub(crate) struct Held<'a> {
    unit: &'a LogicalUnit,
}

impl LogicalUnit {
    /// A place among the writes that wait for room, if one is free.
    pub(crate) fn hold(&self) -> Option<Held<'_>> {
        let before = self.held.fetch_add(1, Ordering::SeqCst);
        let held = Held { unit: self };
        if before == 0 {
            let device = self.device().name();
            tracing::warn!(device, "no room is left: writes wait until there is (out_of_space)");
        }
        (before < HELD_WRITES_MAX).then_some(held)
    }
}

impl Drop for Held<'_> {
    fn drop(&mut self) {
        if self.unit.held.fetch_sub(1, Ordering::SeqCst) == 1 {
            tracing::warn!(device = self.unit.device().name(), "no write waits for room any more");
        }
    }
}
