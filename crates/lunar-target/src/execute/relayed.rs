//! READ and WRITE whose data a relay moves between the storage and the connection.
//!
//! All checks, waits and locks are those of the general path. If the relay cannot finish a READ,
//! the device reads the rest: nothing of it has an effect twice.

mod writing;

use super::{READ_PIECE_BYTES, Run, Step, Stop, block_range, read_failed};
use crate::disk_unit::RelayedPlan;
use crate::relay::{PartReader, RelayFailure};
use crate::streams::DataStreams;
use crate::unit::Unit;
use bytes::Bytes;
use lunar_block::{ErrorKind, RelayPart};
use lunar_scsi::plan::LbaRange;
use std::future::poll_fn;

/// The data of a command that a relay moves.
pub(crate) struct RelayedTransfer {
    pub(crate) plan: RelayedPlan,
    pub(crate) streams: DataStreams,
}

/// Data-in that goes out in order: the last piece is kept, to be sent with the end of the command.
struct InOrder<'a> {
    streams: &'a DataStreams,
    /// Position of the next piece in the data-in.
    next_bytes: u64,
    last: Bytes,
}

impl InOrder<'_> {
    /// Adds the next piece, and sends the one before.
    async fn add(&mut self, piece: Bytes) -> Step<()> {
        let before = std::mem::replace(&mut self.last, piece);
        let offset_bytes = self.next_bytes - before.len() as u64;
        self.next_bytes += self.last.len() as u64;
        if before.is_empty() {
            return Ok(());
        }
        // A transfer is below 4 GiB.
        Ok(self.streams.data_in.send(offset_bytes as u32, before).await?)
    }
}

impl Run<'_> {
    /// Passes the data of `range` on as it comes, and returns the last piece.
    pub(super) async fn read_relayed(
        &self,
        range: LbaRange,
        transfer: RelayedTransfer,
    ) -> Step<Bytes> {
        self.abort.unless(self.unit.ranges.wait_until_readable(range)).await?;
        self.enter()?;
        let RelayedTransfer { plan, streams } = transfer;
        let mut data_in = InOrder { streams: &streams, next_bytes: 0, last: Bytes::new() };
        for part in &plan.parts {
            match self.read_part(&plan, part, &mut data_in).await? {
                Ok(()) => {}
                Err(RelayFailure::Violated) => return Err(self.violated(range)),
                Err(RelayFailure::NotExecuted | RelayFailure::Lost) => {
                    self.unit.common().relay_counts.taken_over();
                    Box::pin(self.read_rest(range, &mut data_in)).await?;
                    return Ok(data_in.last);
                }
            }
        }
        self.unit.common().relay_counts.relayed();
        Ok(data_in.last)
    }

    /// Passes the data of one part on.
    async fn read_part(
        &self,
        plan: &RelayedPlan,
        part: &RelayPart,
        data_in: &mut InOrder<'_>,
    ) -> Step<Result<(), RelayFailure>> {
        let Some(mut reader) = plan.relay.read(part, &self.memory.buffers) else {
            return Ok(Err(RelayFailure::NotExecuted));
        };
        loop {
            let next = self.abort.unless(next_of(&mut *reader)).await?;
            // Unfinished states of a long operation may not be read.
            self.check_generation()?;
            match next {
                Ok(Some(piece)) => data_in.add(piece).await?,
                Ok(None) => return Ok(Ok(())),
                Err(failure) => return Ok(Err(failure)),
            }
        }
    }

    /// Reads the rest of `range` from the device, in pieces. If a part of a block was sent, the
    /// command ends BUSY: the other part could be of a later version of the block.
    async fn read_rest(&self, range: LbaRange, data_in: &mut InOrder<'_>) -> Step<()> {
        if !data_in.next_bytes.is_multiple_of(self.block_bytes) {
            return Err(Stop::Busy);
        }
        let blocks_max = (READ_PIECE_BYTES as u64 / self.block_bytes).max(1);
        let mut done = data_in.next_bytes / self.block_bytes;
        while done < range.count {
            let count = (range.count - done).min(blocks_max);
            let buffer = self.get(LbaRange { lba: range.lba + done, count }).await?;
            data_in.add(buffer.freeze()).await?;
            done += count;
        }
        Ok(())
    }

    /// The end of a command whose storage violated the protocol.
    fn violated(&self, range: LbaRange) -> Stop {
        let name = self.unit.device().name();
        let what = "the storage violated the protocol; its data is not used";
        let error = lunar_block::Error::new(ErrorKind::Disconnected, name, what);
        read_failed(error.at(block_range(range)))
    }
}

async fn next_of(reader: &mut dyn PartReader) -> Result<Option<Bytes>, RelayFailure> {
    poll_fn(|context| reader.poll_next(context)).await
}
