//! Growth of a mirror whose devices have grown, or can grow.
//!
//! State after a power cut, in the order of the steps:
//! 1. Each member gets its label again, in a new generation: first at the new end of the device,
//!    then at its beginning. Before this step only the label at the beginning is found, because the
//!    other copy is where the device ended before it grew. After this step both copies are found,
//!    also during the next step, which may take long.
//! 2. The new blocks are zeroed on all members, also those with the former second copies of labels.
//!    No label includes these blocks yet.
//! 3. The labels have the new size, and larger regions if that is necessary, in a new generation.
//!    Members whose labels do not have it yet are stale at the next opening.
//! 4. The intent pages have the new number of regions. A page with another number counts as having
//!    all marks, so an opening between the last two steps copies everything.

use super::bounded::{JointLimit, LimitFrom, MemberFailure, RunToEnd, run};
use super::clears::ZEROED_BYTES_MAX;
use super::member::MirrorMember;
use super::membership::RosterGuard;
use super::slots::MemberSlot;
use super::{Mirror, MirrorDevice};
use crate::format::Label;
use bytes::Bytes;
use futures_util::future::join_all;
use lunar_block::{BlockRange, BoxFuture, Error, ErrorKind, Geometry, Resize};
use std::sync::Arc;
use std::sync::atomic::Ordering::SeqCst;

/// Length of the range to which zeroes are written at a time.
const PIECE_BYTES: u64 = 1 << 20;

impl Resize for MirrorDevice {
    fn resize(&self, size_bytes: u64) -> BoxFuture<'_, Result<(), Error>> {
        Box::pin(RunToEnd::new(Arc::clone(&self.0).grow(size_bytes)))
    }
}

impl Mirror {
    pub(super) fn geometry(&self) -> Geometry {
        Geometry { block_count: self.block_count.load(SeqCst), ..self.first_geometry }
    }

    async fn grow(self: Arc<Self>, size_bytes: u64) -> Result<(), Error> {
        let _exclusive = self.reshaping.lock().await;
        self.check_writable()?;
        let now = self.geometry();
        let next =
            Geometry::new(&self.name, size_bytes, now.block_bytes, now.physical_block_bytes)?;
        if next.block_count <= now.block_count {
            let is_same = next.block_count == now.block_count;
            let refused = || self.refused("it cannot become smaller".to_owned());
            return if is_same { Ok(()) } else { Err(refused()) };
        }
        self.check_complete()?;
        for member in self.present() {
            member.device.grow(next.block_count).await?;
        }
        let mut roster = self.recorded().await?;
        self.check_growable(next.block_count)?;
        let current = self.current();
        self.set_current(&mut roster, current, false).await?;
        drop(roster);
        let new = BlockRange::new(now.block_count, next.block_count - now.block_count);
        self.zero_new(new).await?;
        let mut roster = self.recorded().await?;
        self.check_growable(next.block_count)?;
        let label = roster.label.with_data_blocks(next.block_count);
        self.set_size(&mut roster, label).await?;
        drop(roster);
        self.recover_stale();
        Ok(())
    }

    fn refused(&self, why: String) -> Error {
        Error::new(ErrorKind::Open, &*self.name, format!("it cannot be resized: {why}"))
    }

    /// Fails unless all members are current and complete.
    fn check_complete(&self) -> Result<(), Error> {
        for (slot, taken) in (0..).zip(self.slots.all().iter()) {
            let member = match taken {
                MemberSlot::Vacant => continue,
                MemberSlot::Missing => {
                    return Err(self.refused(format!("member {slot} is missing")));
                }
                MemberSlot::Taken(member) => member,
            };
            let name = member.device.name();
            if !member.is_complete() {
                return Err(self.refused(format!("member {name} does not have all data")));
            }
        }
        Ok(())
    }

    /// Fails unless all members are current, are complete, and have room for more blocks.
    fn check_growable(&self, block_count: u64) -> Result<(), Error> {
        self.check_complete()?;
        for member in self.present() {
            let name = member.device.name();
            let room = member.device.layout().data_blocks_max();
            if room < block_count {
                let why = format!("member {name} has room for {room} blocks, not {block_count}");
                return Err(self.refused(why));
            }
        }
        if !self.rewrites.is_empty() {
            return Err(
                self.refused("some regions have to be rewritten: flush the pool first".into())
            );
        }
        Ok(())
    }

    /// Makes blocks beyond the end zero on all members.
    async fn zero_new(&self, new: BlockRange) -> Result<(), Error> {
        let block_bytes = u64::from(self.first_geometry.block_bytes);
        let is_sparse = self.present().all(|member| member.device.device().sparse().is_some());
        let piece_blocks = if is_sparse { ZEROED_BYTES_MAX } else { PIECE_BYTES } / block_bytes;
        let zeroes = Bytes::from(vec![0; if is_sparse { 0 } else { PIECE_BYTES as usize }]);
        let end = new.lba + new.count;
        for lba in (new.lba..end).step_by(piece_blocks as usize) {
            self.refuse_closed(false)?;
            let piece = BlockRange::new(lba, piece_blocks.min(end - lba));
            let bytes = (piece.count * block_bytes) as usize;
            let data = zeroes.slice(..bytes.min(zeroes.len()));
            let work = self.current().into_iter().map(|member| {
                let data = data.clone();
                let work = member.change(piece, move |device, range| match device.sparse() {
                    Some(sparse) => sparse.write_zeroes(range, true, false),
                    None => device.write(range, data, false),
                });
                (member, work)
            });
            let failed = run(self.options.member_wait, LimitFrom::Success, work).await;
            if let Some(failed) = failed.into_iter().next() {
                return Err(match failed.failure {
                    MemberFailure::Device(error) => error,
                    other => Error::new(
                        ErrorKind::Medium,
                        failed.member.device.name(),
                        other.to_string(),
                    ),
                });
            }
        }
        Ok(())
    }

    /// Records the new size, and makes it visible to users.
    async fn set_size(&self, roster: &mut RosterGuard<'_>, label: Label) -> Result<(), Error> {
        let old = self.geometry().block_count;
        let new = BlockRange::new(old, label.data_blocks - old);
        self.intents.grow(&label, new).await;
        self.rewrites.grow(label.regions());
        self.present().for_each(|member| member.grow(label.regions()));
        let block_count = label.data_blocks;
        roster.label = label;
        let current = self.current();
        // Covers the zeroes, too: a label is flushed.
        self.set_current(roster, current, false).await?;
        // All changes wait, so the pages of all members have one limit together.
        let limit = JointLimit::begin(self.options.member_wait);
        let write = async |member: Arc<MirrorMember>| {
            let written = self.intents.write_pages(&member, 2, limit).await;
            (member, written)
        };
        let written = join_all(self.current().into_iter().map(write)).await;
        let failed = written.into_iter().filter_map(|(member, written)| {
            member.fail(written.err()?);
            Some(member)
        });
        let failed: Vec<_> = failed.collect();
        if !failed.is_empty() {
            self.leave_out_alone(roster, &failed).await?;
        }
        self.block_count.store(block_count, SeqCst);
        tracing::info!("{}: resized to {block_count} blocks", self.name);
        Ok(())
    }
}
