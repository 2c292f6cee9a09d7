//! Deallocation on mirrors.

use super::bounded::RunToEnd;
use super::change::{Change, not_sparse};
use super::member::MirrorMember;
use super::{Mirror, MirrorDevice};
use crate::format::MemberSet;
use crate::member_io::member_failed;
use lunar_block::{
    BlockDevice, BlockRange, BoxFuture, Clear, Error, Extent, ExtentState, SpaceUsage, Sparse,
};
use std::sync::Arc;
use std::sync::atomic::Ordering::SeqCst;

impl Mirror {
    pub(super) fn prefetch(&self, range: BlockRange) {
        if let Some(member) = self.choose(range, MemberSet::default()) {
            member.prefetch(range);
        }
    }

    async fn extents(&self, range: BlockRange, extents_max: usize) -> Result<Vec<Extent>, Error> {
        self.geometry().checked_range(&self.name, range)?;
        if range.count == 0 || extents_max == 0 {
            return Ok(Vec::new());
        }
        let mut tried = MemberSet::default();
        let mut last = None;
        while let Some(member) = self.choose(range, tried) {
            tried.insert(member.slot);
            match member.extents(range, extents_max).await {
                Ok(extents) if !member.has_lost() => return Ok(extents),
                Ok(_) => {}
                Err(error) => last = Some(error),
            }
        }
        match last {
            Some(error) => Err(member_failed(&self.name, Some(range), error)),
            // Different members have parts of the range: their state is not known as a whole.
            None => Ok(vec![Extent { range, state: ExtentState::Mapped }]),
        }
    }
}

impl MirrorDevice {
    fn clear(&self, range: BlockRange, change: Change) -> BoxFuture<'_, Result<(), Error>> {
        let checked = self.0.geometry().checked_range(self.name(), range);
        match checked.and_then(|_| self.check_writable(range)) {
            Ok(()) => self.change(range, change),
            Err(error) => Box::pin(std::future::ready(Err(error))),
        }
    }
}

impl Sparse for MirrorDevice {
    fn unmap(&self, range: BlockRange, durable: bool) -> BoxFuture<'_, Result<(), Error>> {
        self.clear(range, Change::Unmap { durable })
    }

    fn write_zeroes(
        &self,
        range: BlockRange,
        may_unmap: bool,
        durable: bool,
    ) -> BoxFuture<'_, Result<(), Error>> {
        self.clear(range, Change::Zero { may_unmap, durable })
    }

    /// Clears one piece of one range, for which the members are waited for together. With
    /// `durable`, each piece is durable: a flush at the end would not notice that all members lost
    /// an earlier piece, if another caller has been told of the loss.
    fn clear_piece(
        &self,
        ranges: Vec<BlockRange>,
        clear: Clear,
        durable: bool,
    ) -> BoxFuture<'_, Result<u64, Error>> {
        let change = match clear {
            Clear::Unmap => Change::Unmap { durable },
            Clear::Zero { may_unmap } => Change::Zero { may_unmap, durable },
        };
        let all = ranges.iter().copied();
        let checked = all.clone().try_for_each(|range| {
            self.0.geometry().checked_range(self.name(), range)?;
            self.check_writable(range)
        });
        let mirror = Arc::clone(&self.0);
        match (checked, all.clone().find(|range| range.count > 0)) {
            (Err(error), _) => Box::pin(std::future::ready(Err(error))),
            (Ok(()), None) => {
                let end = all.last().map_or(0, |range| range.lba);
                Box::pin(std::future::ready(Ok(end)))
            }
            (Ok(()), Some(range)) => Box::pin(RunToEnd::new(async move {
                mirror.foreground.fetch_add(1, SeqCst);
                mirror.clear_first(range, &change).await
            })),
        }
    }

    fn status(
        &self,
        range: BlockRange,
        extents_max: usize,
    ) -> BoxFuture<'_, Result<Vec<Extent>, Error>> {
        Box::pin(self.0.extents(range, extents_max))
    }

    fn granularity_bytes(&self) -> u32 {
        let granularity = |member: Arc<MirrorMember>| {
            member.device.device().sparse().map(Sparse::granularity_bytes)
        };
        let longest = self.0.present().filter_map(granularity).max();
        longest.unwrap_or(self.0.geometry().block_bytes)
    }

    /// Returns the space of the member with the least available space.
    fn space_usage(&self) -> Result<Option<SpaceUsage>, Error> {
        let mut smallest: Option<SpaceUsage> = None;
        for member in self.0.current() {
            let device = member.device.device();
            let sparse = device.sparse().ok_or_else(|| not_sparse(device.name()))?;
            let Some(usage) = sparse.space_usage()? else { return Ok(None) };
            if smallest.is_none_or(|smallest| usage.available_bytes < smallest.available_bytes) {
                smallest = Some(usage);
            }
        }
        Ok(smallest)
    }
}

impl MirrorMember {
    fn prefetch(&self, range: BlockRange) {
        self.device.device().prefetch(self.on_device(range));
    }

    /// Returns the extents of blocks of the pool.
    async fn extents(&self, range: BlockRange, extents_max: usize) -> Result<Vec<Extent>, Error> {
        let device = self.device.device();
        let sparse = device.sparse().ok_or_else(|| not_sparse(device.name()))?;
        let on_device = self.on_device(range);
        let mut extents = sparse.status(on_device, extents_max).await?;
        for extent in &mut extents {
            extent.range.lba = extent.range.lba - on_device.lba + range.lba;
        }
        Ok(extents)
    }
}
