//! Growth of a stripe whose devices have grown or can grow, and of the last member of a
//! concatenation.
//!
//! State after a power cut, in the order of the steps:
//! 1. Members that grow get their labels again, first at the present ends of the devices: the
//!    copies where the devices ended before are not found any more.
//! 2. The new blocks become zero, also where these copies were.
//! 3. All members get labels of a new generation with the new size, the last one at the end. The
//!    pool has the size of its oldest label, so it grows with the last one.

use super::DeviceExtent;
use super::labelled::{LabelledDevice, data_extent};
use crate::assembly::FoundMember;
use crate::create::random_id;
use crate::format::{Label, PoolKind};
use crate::mirror::RunToEnd;
use bytes::Bytes;
use lunar_block::{BlockDevice, BlockRange, BoxFuture, Error, ErrorKind, Geometry, Resize};
use std::sync::Arc;
use std::sync::atomic::Ordering::SeqCst;

/// Length of the range to which zeroes are written at a time.
const PIECE_BYTES: u64 = 1 << 20;

/// A handle of an open concatenation or stripe.
#[derive(Debug)]
pub(crate) struct SharedLabelledDevice(pub(crate) Arc<LabelledDevice>);

impl Resize for SharedLabelledDevice {
    fn resize(&self, size_bytes: u64) -> BoxFuture<'_, Result<(), Error>> {
        let device = Arc::clone(&self.0);
        Box::pin(RunToEnd::new(async move { device.grow(size_bytes).await }))
    }
}

impl LabelledDevice {
    async fn grow(&self, size_bytes: u64) -> Result<(), Error> {
        let mut members = self.labelled.lock().await;
        let (now, name) = (self.joined.geometry(), &*self.joined.name);
        let next = Geometry::new(name, size_bytes, now.block_bytes, now.physical_block_bytes)?;
        if next.block_count == now.block_count {
            return Ok(());
        }
        let labels = self.next_labels(&members, next.block_count)?;
        for (member, label) in members.iter().zip(&labels) {
            member.device.grow(label.data_blocks).await?;
            if let Err(why) = label.check(member.device.layout()) {
                let device = member.device.name();
                return Err(self.refused(format!("of the label of {device}: {why}")));
            }
        }
        let losses = self.joined.cache_losses();
        for (index, (member, label)) in members.iter().zip(&labels).enumerate() {
            let new = label.data_blocks - self.data_blocks(index);
            if new > 0 {
                member.device.write_label(&member.label, self.joined.buffers()).await?;
                let first = label.data_blocks - new;
                self.zero(index, BlockRange::new(first, new)).await?;
                member.device.flush().await?;
            }
        }
        if self.joined.cache_losses() != losses {
            return Err(self.refused("a member may have lost writes".into()));
        }
        for (member, label) in members.iter_mut().zip(labels) {
            member.device.write_label(&label, self.joined.buffers()).await?;
            member.label = label;
        }
        let extent = |member: &FoundMember| data_extent(member, member.label.data_blocks);
        let extents: Vec<DeviceExtent> = members.iter().map(extent).collect();
        self.generation.store(members[0].label.generation, SeqCst);
        self.joined.extend(&extents)?;
        tracing::info!("{name}: resized to {} blocks", next.block_count);
        Ok(())
    }

    fn refused(&self, why: String) -> Error {
        Error::new(ErrorKind::Open, &*self.joined.name, format!("it cannot be resized: {why}"))
    }

    /// Returns the number of blocks of data on a member that users see.
    fn data_blocks(&self, index: usize) -> u64 {
        let shape = self.joined.shape();
        let all = BlockRange::new(0, shape.geometry().block_count);
        shape.map().member_range(index, all).count
    }

    /// Returns the labels of a larger pool, in the order of the members.
    fn next_labels(&self, members: &[FoundMember], block_count: u64) -> Result<Vec<Label>, Error> {
        if block_count < self.joined.geometry().block_count {
            return Err(self.refused("it cannot become smaller".into()));
        }
        if !self.joined.shapes.has_room() {
            return Err(self.refused("it was resized too often since it was opened".into()));
        }
        let last = members.len() - 1;
        let newest = members.iter().map(|member| &member.label).max_by_key(|one| one.generation);
        let newest = newest.ok_or_else(|| self.refused("it has no members".into()))?;
        let id = random_id()
            .map_err(|error| self.refused("there are no random numbers".into()).because(error))?;
        let next = newest.next(newest.current, id);
        let mut labels = Vec::new();
        for (index, member) in members.iter().enumerate() {
            let before = self.data_blocks(index);
            let (data_blocks, unit_blocks) = if next.kind == PoolKind::CONCAT {
                let more = block_count - self.joined.geometry().block_count;
                (if index == last { before + more } else { before }, block_count)
            } else {
                (block_count / members.len() as u64, next.unit_blocks)
            };
            let label = Label { data_blocks, unit_blocks, ..next.at(member.label.slot) };
            let width = next.unit_blocks * members.len() as u64;
            if next.kind != PoolKind::CONCAT && !block_count.is_multiple_of(width) {
                let why = format!("the size must be a multiple of {width} blocks");
                return Err(self.refused(why));
            }
            labels.push(label);
        }
        Ok(labels)
    }

    /// Makes blocks beyond the end of a member's data zero.
    async fn zero(&self, index: usize, new: BlockRange) -> Result<(), Error> {
        let (device, on_device) = self.joined.shape().on_device((index, new));
        if let Some(sparse) = device.sparse() {
            return sparse.write_zeroes(on_device, true, false).await;
        }
        let block_bytes = self.joined.block_bytes() as u64;
        let piece_blocks = PIECE_BYTES / block_bytes;
        let zeroes = Bytes::from(vec![0; PIECE_BYTES as usize]);
        let end = on_device.lba + on_device.count;
        for lba in (on_device.lba..end).step_by(piece_blocks as usize) {
            let count = piece_blocks.min(end - lba);
            let data = zeroes.slice(..(count * block_bytes) as usize);
            device.write(BlockRange::new(lba, count), data, false).await?;
        }
        Ok(())
    }
}
