//! Comparison of all current members, and repair of their differences.

mod piece;

use super::Mirror;
use super::background_rate::{BackgroundRateLimiter, Rates};
use super::bounded::RunToEnd;
use crate::PoolError;
use lunar_block::BlockRange;
use std::num::NonZeroU64;
use std::sync::{Arc, MutexGuard, PoisonError};

/// Length of the range that is compared at a time; the memory for it is taken for each member.
const PIECE_BYTES: u64 = 256 << 10;

/// Default rate of a scrub while users have operations.
const BUSY_BYTES_PER_SECOND: u64 = 32 << 20;

/// Options of a scrub. Rates are in bytes of the mirror.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct ScrubOptions {
    /// Maximum rate while users have no operations; `None`: as fast as the members.
    pub bytes_per_second_max: Option<NonZeroU64>,
    /// Maximum rate while users have operations; `None`: as fast as the members.
    pub busy_bytes_per_second_max: Option<NonZeroU64>,
}

impl Default for ScrubOptions {
    fn default() -> Self {
        Self {
            bytes_per_second_max: None,
            busy_bytes_per_second_max: NonZeroU64::new(BUSY_BYTES_PER_SECOND),
        }
    }
}

/// The progress of a scrub.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct ScrubProgress {
    /// True while the scrub runs.
    pub is_running: bool,
    /// Number of bytes of the mirror.
    pub total_bytes: u64,
    /// Results up to now.
    pub report: ScrubReport,
}

/// The results of a scrub.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct ScrubReport {
    /// Number of bytes of the mirror that were compared.
    pub checked_bytes: u64,
    /// Number of bytes that were not compared, because fewer than two members had them.
    pub skipped_bytes: u64,
    /// Number of blocks in which members differed.
    pub different_blocks: u64,
    /// Number of different blocks for which the wrong member is unknown, because there were only
    /// two members or no content had a majority. The content of the first current member was kept.
    pub undecided_blocks: u64,
    /// Number of blocks that no member could read.
    pub unreadable_blocks: u64,
    /// Members with wrong blocks, in the order of their slots.
    pub members: Vec<ScrubbedMember>,
}

/// The wrong blocks of a member. They were repaired, or the member was left out.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct ScrubbedMember {
    /// Slot of the member.
    pub slot: u16,
    /// Number of blocks that the member could not read, and another one could.
    pub unreadable_blocks: u64,
    /// Number of blocks in which the majority of at least three members had another content.
    pub outvoted_blocks: u64,
}

impl ScrubReport {
    /// Returns the results of a member.
    fn of(&mut self, slot: u16) -> &mut ScrubbedMember {
        let at = self.members.partition_point(|member| member.slot < slot);
        if self.members.get(at).is_none_or(|member| member.slot != slot) {
            let member = ScrubbedMember { slot, unreadable_blocks: 0, outvoted_blocks: 0 };
            self.members.insert(at, member);
        }
        &mut self.members[at]
    }
}

/// A scrub that runs until this value is dropped.
struct RunningScrub<'a>(&'a Mirror);

impl<'a> RunningScrub<'a> {
    fn begin(mirror: &'a Mirror) -> Result<Self, PoolError> {
        let mut scrub = mirror.scrub_state();
        if scrub.as_ref().is_some_and(|scrub| scrub.is_running) {
            return Err(PoolError::ScrubRuns);
        }
        let total_bytes = mirror.geometry().size_bytes();
        let report = ScrubReport::default();
        *scrub = Some(ScrubProgress { is_running: true, total_bytes, report });
        Ok(Self(mirror))
    }
}

impl Drop for RunningScrub<'_> {
    fn drop(&mut self) {
        if let Some(scrub) = self.0.scrub_state().as_mut() {
            scrub.is_running = false;
        }
    }
}

impl Mirror {
    fn scrub_state(&self) -> MutexGuard<'_, Option<ScrubProgress>> {
        self.scrub.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn scrub_progress(&self) -> Option<ScrubProgress> {
        self.scrub_state().clone()
    }

    /// Adds results to those of the running scrub, or of one that was just stopped.
    fn record_scrub(&self, record: impl FnOnce(&mut ScrubReport)) {
        if let Some(scrub) = self.scrub_state().as_mut() {
            record(&mut scrub.report);
        }
    }

    /// Compares and repairs all pieces.
    pub(super) async fn scrub_all(
        self: &Arc<Self>,
        options: ScrubOptions,
    ) -> Result<ScrubReport, PoolError> {
        self.check_writable()?;
        let running = RunningScrub::begin(self)?;
        let rates =
            Rates { busy: options.busy_bytes_per_second_max, idle: options.bytes_per_second_max };
        let mut limiter = BackgroundRateLimiter::new(self);
        let block_bytes = u64::from(self.geometry().block_bytes);
        let mut lba = 0;
        // The mirror and its regions may grow meanwhile.
        while lba < self.geometry().block_count {
            let region_blocks = self.intents.region_blocks();
            let region_end = (lba / region_blocks + 1) * region_blocks;
            let end = region_end.min(lba + PIECE_BYTES / block_bytes);
            let piece = BlockRange::new(lba, end.min(self.geometry().block_count) - lba);
            limiter.wait(self, rates).await;
            limiter.begin_piece(piece.count * block_bytes);
            self.refuse_closed(false)?;
            RunToEnd::new(Arc::clone(self).scrub_and_record(piece)).await?;
            lba += piece.count;
        }
        drop(running);
        Ok(self.scrub_progress().map(|scrub| scrub.report).unwrap_or_default())
    }

    async fn scrub_and_record(
        self: Arc<Self>,
        piece: BlockRange,
    ) -> Result<(), lunar_block::Error> {
        let bytes = piece.count * u64::from(self.geometry().block_bytes);
        let is_compared = self.scrub_piece(piece).await?;
        self.record_scrub(|report| match is_compared {
            true => report.checked_bytes += bytes,
            false => report.skipped_bytes += bytes,
        });
        Ok(())
    }
}
