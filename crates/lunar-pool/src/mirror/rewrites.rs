//! Regions of a mirror that are rewritten on the member that has them.

use super::Mirror;
use super::change::Targets;
use super::member::{MirrorMember, contains};
use crate::format::{MemberSet, RegionSet};
use lunar_block::{BlockRange, BufferPool, Error, ErrorKind};
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Length of the range that is read and rewritten at a time.
const PIECE_BYTES: u64 = 1 << 20;

/// Regions that only one member has, and for which its flush proves nothing. After a failed flush,
/// a device may consider its blocks clean: reads return them, no later flush writes them, and a
/// power cut undoes them. Such a region is rewritten from the content of the member before its mark
/// is removed and before it is copied to another member.
///
/// Regions are urgent after a loss that the pool has seen: a flush succeeds only after they were
/// rewritten. The others wait for a copy: they were marked when the pool was opened, and a flush
/// may have failed before.
#[derive(Debug)]
pub(super) struct Rewrites {
    state: Mutex<RewriteState>,
    is_empty: AtomicBool,
    /// Held while regions are rewritten; acquired before all other locks.
    exclusive: tokio::sync::Mutex<()>,
}

#[derive(Debug)]
struct RewriteState {
    regions: RegionSet,
    urgent: RegionSet,
    additions: u64,
}

impl Rewrites {
    pub(super) fn new(regions: RegionSet) -> Self {
        let urgent = RegionSet::new(regions.regions());
        Self {
            is_empty: AtomicBool::new(regions.is_empty()),
            state: Mutex::new(RewriteState { regions, urgent, additions: 0 }),
            exclusive: tokio::sync::Mutex::default(),
        }
    }

    fn state(&self) -> MutexGuard<'_, RewriteState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Adds regions, behind the membership lock held alone.
    pub(super) fn add(&self, more: &RegionSet) {
        let mut state = self.state();
        state.regions.insert_all(more);
        state.additions += 1;
        self.is_empty.store(state.regions.is_empty(), SeqCst);
    }

    /// Adds regions for which flushes wait, behind the membership lock held alone.
    pub(super) fn add_urgent(&self, more: &RegionSet) {
        self.state().urgent.insert_all(more);
        self.add(more);
    }

    /// Continues with another number of regions. There are none to be rewritten.
    pub(super) fn grow(&self, regions: u32) {
        let mut state = self.state();
        debug_assert!(state.regions.is_empty());
        (state.regions, state.urgent) = (RegionSet::new(regions), RegionSet::new(regions));
        state.additions += 1;
    }

    pub(super) fn is_empty(&self) -> bool {
        self.is_empty.load(SeqCst)
    }

    pub(super) fn contains(&self, region: u32) -> bool {
        !self.is_empty.load(SeqCst) && self.state().regions.contains(region)
    }

    pub(super) fn next_urgent(&self) -> Option<u32> {
        if self.is_empty.load(SeqCst) { None } else { self.state().urgent.next(0) }
    }

    fn additions(&self) -> u64 {
        self.state().additions
    }

    /// Removes a region that was rewritten, unless regions were added since.
    fn remove(&self, region: u32, additions: u64) {
        let mut state = self.state();
        if state.additions == additions {
            state.regions.remove(region);
            state.urgent.remove(region);
            self.is_empty.store(state.regions.is_empty(), SeqCst);
        }
    }
}

impl Mirror {
    /// Rewrites the regions for which flushes wait. Called without any lock.
    pub(super) async fn rewrite_urgent(self: &Arc<Self>) -> Result<(), Error> {
        if self.rewrites.next_urgent().is_none() {
            return Ok(());
        }
        let _exclusive = self.rewrites.exclusive.lock().await;
        while let Some(region) = self.rewrites.next_urgent() {
            self.rewrite_alone(region).await?;
        }
        Ok(())
    }

    /// Rewrites a region that is about to be copied. Called without any lock.
    pub(super) async fn rewrite_region(self: &Arc<Self>, region: u32) -> Result<(), Error> {
        if !self.rewrites.contains(region) {
            return Ok(());
        }
        let _exclusive = self.rewrites.exclusive.lock().await;
        self.rewrite_alone(region).await
    }

    /// Rewrites a region. Each further attempt follows a loss, or a member that was left out and
    /// whose regions another one has now.
    async fn rewrite_alone(self: &Arc<Self>, region: u32) -> Result<(), Error> {
        while self.rewrites.contains(region) {
            let additions = self.rewrites.additions();
            let written = self.rewrite_pieces(region).await?;
            for member in &written {
                // The member is left out, or its content is accepted: then more regions are
                // rewritten.
                self.leave_out_if_lossy(member).await?;
            }
            let roster = self.roster.read().await;
            if written.iter().all(|member| member.is_current()) {
                self.rewrites.remove(region, additions);
            }
            drop(roster);
        }
        Ok(())
    }

    /// Returns the members that were written.
    async fn rewrite_pieces(
        self: &Arc<Self>,
        region: u32,
    ) -> Result<Vec<Arc<MirrorMember>>, Error> {
        let mut written = Vec::new();
        for piece in self.pieces(region, PIECE_BYTES) {
            // Without a holder there is nothing to write, and reads fail.
            let Some(holder) = self.choose(piece, MemberSet::default()) else { continue };
            if !contains(&written, &holder) {
                written.push(Arc::clone(&holder));
            }
            let buffers = self.buffers();
            self.change_with(piece, Targets::One(holder), move |member| {
                let (cloned, buffers) = (Arc::clone(member), buffers.clone());
                member.tracked(async move { read_and_rewrite(&cloned, piece, &buffers).await })
            })
            .await?;
        }
        Ok(written)
    }

    /// Splits a region.
    pub(super) fn pieces(
        &self,
        region: u32,
        piece_bytes: u64,
    ) -> impl Iterator<Item = BlockRange> + use<> {
        let region_blocks = self.intents.region_blocks();
        let first = u64::from(region) * region_blocks;
        let end = (first + region_blocks).min(self.geometry().block_count);
        let piece = piece_bytes / u64::from(self.geometry().block_bytes);
        (first..end).step_by(piece as usize).map(move |at| BlockRange::new(at, piece.min(end - at)))
    }
}

/// Rewrites blocks from the member itself. A block that cannot be read stays as it is.
async fn read_and_rewrite(
    member: &Arc<MirrorMember>,
    range: BlockRange,
    buffers: &BufferPool,
) -> Result<(), Error> {
    let block_bytes = member.device.layout().block_bytes as usize;
    let mut rest = vec![range];
    while let Some(range) = rest.pop() {
        let buffer = buffers.take(range.count as usize * block_bytes);
        match member.read(range, buffer).await {
            Ok(data) => member.write(range, data.freeze(), false).await?,
            Err(error) if error.kind == ErrorKind::Medium && range.count > 1 => {
                let half = range.count / 2;
                rest.push(BlockRange::new(range.lba + half, range.count - half));
                rest.push(BlockRange::new(range.lba, half));
            }
            Err(error) if error.kind == ErrorKind::Medium => {}
            Err(error) => return Err(error),
        }
    }
    Ok(())
}
