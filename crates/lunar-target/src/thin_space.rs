//! Space on thin disks: the warning to initiators before it runs out, and the handling of writes
//! when it has.

use crate::Error;
use crate::disk_unit::{DiskUnit, DiskUnitOptions};
use crate::lock::lock;
use crate::ranges::ClaimedBlocks;
use lunar_block::SpaceUsage;
use lunar_scsi::plan::NexusId;
use lunar_scsi::unit::{Resources, Threshold};
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::Ordering::SeqCst;
use std::time::Duration;
use tokio::sync::watch;

/// Handling of a write that finds no room.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub enum OutOfSpace {
    /// The write fails with SPACE ALLOCATION FAILED WRITE PROTECT.
    #[default]
    Fail,
    /// The write waits until there is room.
    Hold,
}

/// Interval of the checks of room of units.
const ROOM_INTERVAL: Duration = Duration::from_secs(1);
/// Interval of the tries of a write that waits for room.
pub(crate) const HOLD_INTERVAL: Duration = Duration::from_millis(500);
/// Number of writes of one unit that may wait for room; further ones get BUSY. It is lower than the
/// number of commands that a session may have in flight, so that its other units can still be
/// reached.
const HELD_WRITES_MAX: usize = 32;
/// Size of a threshold set, the SCSI unit of room.
const THRESHOLD_SET_BYTES: u64 = 1 << 20;

/// The threshold of a unit, as the number of available threshold sets at which it is reached.
pub(crate) fn threshold(options: &DiskUnitOptions) -> Result<Option<Threshold>, Error> {
    let Some(percent) = options.thin_threshold_percent else { return Ok(None) };
    let refuse = |what: &str| {
        let name = options.device.name();
        Err(Error::Options(format!("thin_threshold is not possible for {name}: {what}")))
    };
    if !options.thin {
        return refuse("the disk is not thin");
    }
    let room = match options.device.sparse() {
        Some(sparse) => sparse.space_usage()?,
        None => None,
    };
    let Some(room) = room else {
        return refuse("its free space is unknown; only sparse files have a threshold");
    };
    let left = u128::from(room.total_bytes) * u128::from(100 - percent.min(99)) / 100;
    let sets = left / u128::from(THRESHOLD_SET_BYTES);
    let block_bytes = u64::from(options.device.geometry().block_bytes);
    Ok(Some(Threshold {
        set_exponent: (THRESHOLD_SET_BYTES / block_bytes).max(2).ilog2() as u8,
        available_sets: u32::try_from(sets).unwrap_or(u32::MAX).max(1),
    }))
}

/// Checks the room of the units of `served` that have a threshold, and the writes that wait for
/// room, until stopped.
pub(crate) async fn watch(
    served: impl Fn() -> Vec<Arc<DiskUnit>>,
    mut stop: watch::Receiver<bool>,
) {
    loop {
        let units = served();
        for unit in &units {
            unit.report_if_none_is_held();
            unit.end_lack_of_space();
        }
        for unit in units {
            if unit.options().thin_threshold_percent.is_some() {
                measure_free_space(&unit).await;
            }
        }
        let stopped = stop.wait_for(|stop| *stop);
        if tokio::time::timeout(ROOM_INTERVAL, stopped).await.is_ok() {
            served().iter().for_each(|unit| unit.report_end_of_waits());
            return;
        }
    }
}

async fn measure_free_space(unit: &Arc<DiskUnit>) {
    let asked = Arc::clone(unit);
    // A file system that does not respond blocks a thread of its own, and no other unit's data.
    let room = tokio::task::spawn_blocking(move || {
        asked.device().sparse().map_or(Ok(None), |sparse| sparse.space_usage())
    });
    let Ok(Ok(Some(room))) = room.await else { return };
    let resources =
        Resources { used_bytes: room.used_bytes, available_bytes: room.available_bytes };
    let (device, available_bytes) = (unit.device().name(), room.available_bytes);
    let was_low = unit.is_below_threshold();
    if unit.scsi().observe_free_space(resources) {
        tracing::warn!(
            device,
            available_bytes,
            "free space is below the threshold: initiators are notified"
        );
    } else if was_low && !unit.is_below_threshold() {
        tracing::warn!(device, available_bytes, "free space is above the threshold again");
    }
}

/// Free space that ends a lack of space, in addition to the least that was seen.
const REGAINED_BYTES_MIN: u64 = 1 << 20;
/// Number of checks without a failed write after which a lack of space ends, unless the device is
/// known to be full.
const QUIET_CHECKS: u32 = 60;

/// Whether writes fail for lack of space.
#[derive(Debug, Default)]
pub(crate) struct SpaceLack {
    /// True from the first failed write until the lack has ended.
    lasts: bool,
    /// Number of checks since the last failed write.
    quiet_checks: u32,
    /// The least free space that was seen since the first failed write.
    least_free_bytes: u64,
}

impl SpaceLack {
    /// Records a failed write. Returns `true` if it is the first one, which is to be logged.
    fn fail(&mut self) -> bool {
        let is_first = !self.lasts;
        let least_free_bytes = if is_first { u64::MAX } else { self.least_free_bytes };
        *self = Self { lasts: true, quiet_checks: 0, least_free_bytes };
        is_first
    }

    /// Called once in [`ROOM_INTERVAL`] with the free space, if known. Returns `true` if the lack
    /// has ended.
    fn check(&mut self, free_bytes: Option<u64>) -> bool {
        if !self.lasts {
            return false;
        }
        let is_quiet = self.quiet_checks >= QUIET_CHECKS;
        self.quiet_checks += 1;
        let has_ended = match free_bytes {
            // The space is measured at another interval, perhaps before the failure.
            Some(free_bytes) => {
                self.least_free_bytes = self.least_free_bytes.min(free_bytes);
                let regained_bytes = free_bytes - self.least_free_bytes;
                self.quiet_checks > 1 && regained_bytes >= REGAINED_BYTES_MIN
                    || is_quiet && free_bytes >= REGAINED_BYTES_MIN
            }
            None => is_quiet,
        };
        self.lasts = !has_ended;
        has_ended
    }
}

/// The writes of a unit that wait for room, or behind one that does, and the state of their log
/// lines.
#[derive(Debug, Default)]
pub(crate) struct HeldWrites {
    /// In order of arrival.
    writes: Vec<HeldWrite>,
    next_id: u64,
    /// True when the log already reports that writes wait.
    announced: bool,
    /// True when a write has waited since the last check.
    recent: bool,
}

/// Entry of one waiting write.
#[derive(Debug)]
struct HeldWrite {
    id: u64,
    nexus: NexusId,
    blocks: ClaimedBlocks,
}

impl HeldWrites {
    /// Number of waiting writes.
    pub(crate) fn count(&self) -> usize {
        self.writes.len()
    }

    /// Adds a waiting write. Returns its id, and `true` if the wait is to be logged.
    fn add(&mut self, nexus: NexusId, blocks: ClaimedBlocks) -> (u64, bool) {
        let id = self.next_id;
        self.next_id += 1;
        self.writes.push(HeldWrite { id, nexus, blocks });
        self.recent = true;
        (id, !std::mem::replace(&mut self.announced, true))
    }

    fn remove(&mut self, id: u64) {
        self.writes.retain(|write| write.id != id);
    }

    /// True if a write of this nexus that came before `id` (`None`: before now) covers some of
    /// these blocks.
    fn is_behind(&self, nexus: NexusId, blocks: &ClaimedBlocks, id: Option<u64>) -> bool {
        self.writes.iter().any(|write| {
            write.nexus == nexus
                && id.is_none_or(|id| write.id < id)
                && write.blocks.overlap(blocks)
        })
    }

    /// Called once in [`ROOM_INTERVAL`]. Returns `true` if no write has waited for that long, and
    /// that is to be logged. If it were logged earlier, an initiator that aborts its writes and
    /// sends others would fill the log.
    fn have_ceased(&mut self) -> bool {
        let count = self.count();
        let recent = std::mem::replace(&mut self.recent, count > 0);
        let ceased = self.announced && count == 0 && !recent;
        self.announced &= !ceased;
        ceased
    }
}

/// Counts a write that waits for room while it lives. Later writes of its nexus to the same blocks
/// wait until it is dropped.
#[derive(Debug)]
pub(crate) struct HeldWriteGuard {
    unit: Arc<DiskUnit>,
    id: u64,
}

impl DiskUnit {
    /// Adds an entry to the writes that wait for room, if there may be more.
    pub(crate) fn hold(
        self: &Arc<Self>,
        nexus: NexusId,
        blocks: ClaimedBlocks,
    ) -> Option<HeldWriteGuard> {
        let mut writes = self.held();
        if writes.count() >= HELD_WRITES_MAX {
            return None;
        }
        let (id, is_to_be_told) = writes.add(nexus, blocks);
        self.held_count.store(writes.count(), SeqCst);
        drop(writes);
        if is_to_be_told {
            let device = self.device().name();
            tracing::warn!(
                device,
                "no space left: writes wait until space is free (out_of_space = hold)"
            );
        }
        Some(HeldWriteGuard { unit: Arc::clone(self), id })
    }

    /// Records a write that failed for lack of space.
    pub(crate) fn observe_lack_of_space(&self) {
        if lock(&self.space_lack).fail() {
            let device = self.device().name();
            tracing::error!(device, "no space left: writes fail (out_of_space = fail)");
        }
    }

    fn end_lack_of_space(&self) {
        let free_bytes = self.space_usage().map(|space| space.available_bytes);
        if lock(&self.space_lack).check(free_bytes) {
            let device = self.device().name();
            tracing::warn!(device, free_bytes, "writes no longer fail for lack of space");
        }
    }

    /// True if writes have failed for lack of space, and no space has become free since.
    pub fn lacks_space(&self) -> bool {
        lock(&self.space_lack).lasts
    }

    /// True if the threshold of free space is reached.
    pub fn is_below_threshold(&self) -> bool {
        self.scsi().is_below_threshold()
    }

    /// The space of the disk, as measured in the last seconds; `None` if unknown.
    pub fn space_usage(&self) -> Option<SpaceUsage> {
        self.backing().space()
    }

    /// True if writes wait for room.
    pub(crate) fn holds_writes(&self) -> bool {
        self.held_count.load(SeqCst) > 0
    }

    /// True if a write of this nexus that came before `held`, or before now, waits for room and
    /// covers some of these blocks.
    pub(crate) fn is_behind_held(
        &self,
        nexus: NexusId,
        blocks: &ClaimedBlocks,
        held: Option<&HeldWriteGuard>,
    ) -> bool {
        self.holds_writes() && self.held().is_behind(nexus, blocks, held.map(|held| held.id))
    }

    /// Logs the end of the waits when the server stops, which makes no further checks.
    fn report_end_of_waits(&self) {
        self.held().recent = false;
        self.report_if_none_is_held();
    }

    fn report_if_none_is_held(&self) {
        if self.held().have_ceased() {
            tracing::warn!(device = self.device().name(), "no writes wait for free space any more");
        }
    }
}

impl HeldWriteGuard {
    /// Waits until no earlier write of the nexus is ahead.
    pub(crate) async fn wait_until_first(&self, nexus: NexusId, blocks: &ClaimedBlocks) {
        loop {
            let mut ended = pin!(self.unit.held_ended.notified());
            ended.as_mut().enable();
            if !self.unit.is_behind_held(nexus, blocks, Some(self)) {
                return;
            }
            ended.await;
        }
    }
}

impl Drop for HeldWriteGuard {
    fn drop(&mut self) {
        let mut writes = self.unit.held();
        writes.remove(self.id);
        self.unit.held_count.store(writes.count(), SeqCst);
        drop(writes);
        self.unit.held_ended.notify_waiters();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use lunar_scsi::plan::LbaRange;

    /// Goal: a lack of space is reported once, lasts while the device is full, and ends when space
    /// was freed.
    #[test]
    fn a_lack_of_space_lasts_until_space_is_free() {
        const MEBIBYTE: u64 = 1 << 20;
        let mut lack = SpaceLack::default();
        assert!(!lack.check(Some(0)));
        assert!(lack.fail(), "the first one");
        assert!(!lack.fail());
        assert!(!lack.check(Some(8 * MEBIBYTE)), "measured before the failure");
        assert!((0..3 * QUIET_CHECKS).all(|_| !lack.check(Some(4096))), "the device is full");
        assert!(!lack.check(Some(MEBIBYTE - 1)), "too little");
        assert!(lack.check(Some(2 * MEBIBYTE)));
        assert!(!lack.check(Some(2 * MEBIBYTE)), "it ends once");
        // Space that became free before the first check does not leave the fault for ever.
        for free_bytes in [Some(8 * MEBIBYTE), None] {
            assert!(lack.fail());
            assert!((0..QUIET_CHECKS).all(|_| !lack.check(free_bytes)));
            assert!(lack.check(free_bytes));
        }
    }

    /// Goal: the log reports once that writes wait, and once that none does, however often the last
    /// one is aborted and another one comes.
    #[test]
    fn repeated_held_writes_are_logged_once() {
        let mut writes = HeldWrites::default();
        let range = LbaRange { lba: 0, count: 1 };
        let add = |writes: &mut HeldWrites| writes.add(NexusId(1), range.into());
        let mut lines = 0;
        for _ in 0..10 {
            for _ in 0..1000 {
                let (id, is_told) = add(&mut writes);
                lines += u32::from(is_told);
                writes.remove(id);
            }
            assert!(!writes.have_ceased(), "some have waited since the last look");
        }
        assert_eq!(lines, 1);
        assert!(writes.have_ceased());
        assert!(!writes.have_ceased(), "the message is logged once");
        let (id, is_told) = add(&mut writes);
        assert!(is_told, "again");
        assert!((0..3).all(|_| !writes.have_ceased()), "the write still waits");
        writes.remove(id);
        assert!(!writes.have_ceased(), "it did a moment ago");
        assert!(writes.have_ceased());
    }
}
