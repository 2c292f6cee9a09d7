//! Deallocation on concatenations and stripes.

use super::JoinedDevice;
use super::block_map::BlockMap;
use super::shapes::JoinedShape;
use crate::member_io::{join_changes, member_failed};
use lunar_block::{
    BlockDevice, BlockRange, BoxFuture, Clear, Error, ErrorKind, Extent, SpaceUsage, Sparse,
};

/// Maximum length of a range whose parts several members clear concurrently.
const CLEAR_BYTES_MAX: u64 = 16 << 20;

/// A member's extents from some block on, read as far as needed.
struct MemberExtents<'a> {
    sparse: &'a dyn Sparse,
    data_start: u64,
    /// The blocks of the member that belong to the range.
    part: BlockRange,
    /// Extents in blocks of the member's data, in reverse order.
    extents: Vec<Extent>,
}

impl MemberExtents<'_> {
    /// Returns the part of the extent of block `lba` that begins with this block and ends within
    /// the range of the member.
    async fn extent_at(&mut self, lba: u64, extents_max: usize) -> Result<Option<Extent>, Error> {
        while self.extents.last().is_some_and(|extent| end(extent.range) <= lba) {
            self.extents.pop();
        }
        if self.extents.is_empty() {
            let rest = BlockRange::new(self.data_start + lba, end(self.part) - lba);
            self.extents = self.sparse.status(rest, extents_max).await?;
            for extent in &mut self.extents {
                extent.range.lba -= self.data_start;
            }
            self.extents.reverse();
        }
        Ok(self.extents.last().copied())
    }
}

fn end(range: BlockRange) -> u64 {
    range.lba + range.count
}

impl JoinedDevice {
    fn sparse_of<'a>(
        &self,
        shape: &'a JoinedShape,
        member: usize,
    ) -> Result<&'a dyn Sparse, Error> {
        let (device, _) = shape.member(member);
        let none =
            || Error::new(ErrorKind::Medium, device.name(), "it does not support deallocation");
        device.sparse().ok_or_else(none)
    }

    /// Changes the parts of all members, by `change` of a member's blocks.
    async fn change_parts<'a>(
        &'a self,
        range: BlockRange,
        change: impl Fn(&'a dyn Sparse, BlockRange) -> BoxFuture<'a, Result<(), Error>>,
    ) -> Result<(), Error> {
        let (shape, losses) = (self.shape(), self.cache_losses());
        shape.geometry().checked_range(&self.name, range)?;
        let mut changes = Vec::new();
        for (member, part) in shape.map().parts(range) {
            let (_, part) = shape.on_device((member, part));
            changes.push(change(self.sparse_of(shape, member)?, part));
        }
        let changed = join_changes(changes).await;
        self.change_ended(losses);
        changed.map_err(|error| member_failed(&self.name, Some(range), error))
    }

    /// Clears the first piece of `ranges`. Returns the first block behind it.
    async fn clear_first(
        &self,
        ranges: Vec<BlockRange>,
        clear: Clear,
        durable: bool,
    ) -> Result<u64, Error> {
        let shape = self.shape();
        for range in &ranges {
            shape.geometry().checked_range(&self.name, *range)?;
        }
        let Some(first) = ranges.iter().find(|range| range.count > 0) else {
            return Ok(ranges.last().map_or(0, |range| range.lba));
        };
        let only_run = match shape.map() {
            BlockMap::Concat { .. } => Some(shape.map().first_run(*first)),
            BlockMap::Stripe { .. } => shape.map().only_run(*first),
        };
        if let Some(run) = only_run {
            let failed = |error| member_failed(&self.name, Some(run.range), error);
            let (_, part) = shape.on_device((run.member, run.member_range()));
            let sparse = self.sparse_of(shape, run.member)?;
            let cleared = sparse.clear_piece(vec![part], clear, durable);
            return Ok(first.lba + (cleared.await.map_err(failed)? - part.lba));
        }
        let piece_blocks = CLEAR_BYTES_MAX / u64::from(shape.geometry().block_bytes);
        let piece =
            BlockRange::new(first.lba, first.count.min(piece_blocks - first.lba % piece_blocks));
        match clear {
            Clear::Unmap => self.unmap(piece, durable).await?,
            Clear::Zero { may_unmap } => self.write_zeroes(piece, may_unmap, durable).await?,
        }
        Ok(end(piece))
    }

    async fn extents(&self, range: BlockRange, extents_max: usize) -> Result<Vec<Extent>, Error> {
        let shape = self.shape();
        shape.geometry().checked_range(&self.name, range)?;
        let mut members = Vec::new();
        for member in 0..shape.map().members() {
            members.push(MemberExtents {
                sparse: self.sparse_of(shape, member)?,
                data_start: shape.member(member).1,
                part: shape.map().member_range(member, range),
                extents: Vec::new(),
            });
        }
        let mut done: Vec<Extent> = Vec::new();
        let mut at = range.lba;
        while at < end(range) && extents_max > 0 {
            let next = self.next_extent(shape, (at, range), &mut members, extents_max).await?;
            let Some(next) = next else { break };
            at = end(next.range);
            let count = done.len();
            match done.last_mut() {
                Some(last) if last.state == next.state => last.range.count += next.range.count,
                _ if count == extents_max => break,
                _ => done.push(next),
            }
        }
        Ok(done)
    }

    /// Returns blocks from `at` on that have one state.
    async fn next_extent(
        &self,
        shape: &JoinedShape,
        (at, range): (u64, BlockRange),
        members: &mut [MemberExtents<'_>],
        extents_max: usize,
    ) -> Result<Option<Extent>, Error> {
        let run = shape.map().first_run(BlockRange::new(at, end(range) - at));
        let failed = |error| member_failed(&self.name, Some(range), error);
        let own = members[run.member].extent_at(run.member_lba, extents_max).await;
        let Some(own) = own.map_err(failed)? else { return Ok(None) };
        let count = (end(own.range) - run.member_lba).min(run.range.count);
        let mut extent = Extent { range: BlockRange::new(at, count), state: own.state };
        if count == run.range.count && matches!(shape.map(), BlockMap::Stripe { .. }) {
            // An extent covers many stripe units if all members have the same state there.
            let mut common_end = end(range);
            for (index, member) in members.iter_mut().enumerate() {
                let part = shape.map().member_range(index, BlockRange::new(at, end(range) - at));
                if part.count == 0 {
                    continue;
                }
                let other = member.extent_at(part.lba, extents_max).await.map_err(failed)?;
                let Some(other) = other.filter(|other| other.state == own.state) else {
                    return Ok(Some(extent));
                };
                let behind = end(other.range).min(end(part));
                if behind < end(part) {
                    common_end = common_end.min(shape.map().pool_end(index, behind, at));
                }
            }
            extent.range.count = extent.range.count.max(common_end - at);
        }
        Ok(Some(extent))
    }
}

impl Sparse for JoinedDevice {
    fn unmap(&self, range: BlockRange, durable: bool) -> BoxFuture<'_, Result<(), Error>> {
        Box::pin(self.change_parts(range, move |sparse, part| sparse.unmap(part, durable)))
    }

    fn write_zeroes(
        &self,
        range: BlockRange,
        may_unmap: bool,
        durable: bool,
    ) -> BoxFuture<'_, Result<(), Error>> {
        Box::pin(
            self.change_parts(range, move |sparse, part| {
                sparse.write_zeroes(part, may_unmap, durable)
            }),
        )
    }

    /// Clears one piece of one range. With `durable`, each piece is made durable at once, because
    /// the last piece may lie on other members.
    fn clear_piece(
        &self,
        ranges: Vec<BlockRange>,
        clear: Clear,
        durable: bool,
    ) -> BoxFuture<'_, Result<u64, Error>> {
        Box::pin(self.clear_first(ranges, clear, durable))
    }

    fn status(
        &self,
        range: BlockRange,
        extents_max: usize,
    ) -> BoxFuture<'_, Result<Vec<Extent>, Error>> {
        Box::pin(self.extents(range, extents_max))
    }

    fn granularity_bytes(&self) -> u32 {
        let shape = self.shape();
        let sparse = shape.devices().iter().filter_map(|device| device.sparse());
        let longest = sparse.map(Sparse::granularity_bytes).max();
        longest.unwrap_or(shape.geometry().block_bytes)
    }

    /// Returns the space of all devices together, if all know theirs.
    fn space_usage(&self) -> Result<Option<SpaceUsage>, Error> {
        let mut sum = SpaceUsage { used_bytes: 0, available_bytes: 0, total_bytes: 0 };
        for device in self.shape().devices() {
            let usage = device.sparse().map_or(Ok(None), Sparse::space_usage)?;
            let Some(usage) = usage else { return Ok(None) };
            sum.used_bytes = sum.used_bytes.saturating_add(usage.used_bytes);
            sum.available_bytes = sum.available_bytes.saturating_add(usage.available_bytes);
            sum.total_bytes = sum.total_bytes.saturating_add(usage.total_bytes);
        }
        Ok(Some(sum))
    }
}
