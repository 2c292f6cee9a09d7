//! READ and WRITE whose data a relay moves between the storage and the connection.
//!
//! All checks, waits and locks are those of the general path. If the relay cannot finish a part of
//! which nothing was sent, the device reads the rest.

mod writing;

use super::{
    CheckedCommand, PlanContext, READ_PIECE_BYTES, ReadMemory, Run, Step, Stop, block_range,
    read_failed,
};
use crate::abort::Aborted;
use crate::disk_unit::{DiskUnit, RelayedPlan};
use crate::long_operation::Generation;
use crate::plan_result::{PlanResult, internal_failure};
use crate::relay::{PartReader, RelayFailure, RelayedPiece};
use crate::streams::DataStreams;
use crate::tasks::{Execution, ExecutionEnd, ExecutionFuture};
use crate::unit::{CommandData, Unit};
use bytes::Bytes;
use lunar_block::{ErrorKind, RelayPart};
use lunar_scsi::plan::{LbaRange, Plan};
use std::collections::VecDeque;
use std::future::poll_fn;
use std::sync::Arc;

/// The data of a command that a relay moves.
struct RelayedTransfer {
    plan: Box<RelayedPlan>,
    streams: Box<DataStreams>,
}

/// Runs a READ or WRITE whose data a relay moves, when its turn has come.
///
/// Relayed commands have futures of their own, because those of other commands are larger: a large
/// part of the time of a relayed command is the allocation and the move of its future.
pub(crate) fn run_relayed(
    unit: Arc<DiskUnit>,
    (plan, generation): (Plan, Generation),
    relayed: Box<RelayedPlan>,
    execution: Execution,
) -> ExecutionFuture {
    match plan {
        Plan::Read { range, from_medium } => {
            let read = async move |run: &Run<'_>, transfer| {
                run.flush_before_read(from_medium).await?;
                run.read_relayed(range, transfer).await
            };
            Box::pin(run_in_turn(unit, (plan, generation), relayed, execution, read))
        }
        Plan::Write { range, durable } => {
            let write = async move |run: &Run<'_>, transfer| {
                run.write_relayed(range, transfer, durable).await?;
                run.check_recoveries()?;
                Ok(RelayedPiece::default())
            };
            Box::pin(run_in_turn(unit, (plan, generation), relayed, execution, write))
        }
        _ => execution.fail(),
    }
}

async fn run_in_turn(
    unit: Arc<DiskUnit>,
    (plan, generation): (Plan, Generation),
    relayed: Box<RelayedPlan>,
    mut execution: Execution,
    work: impl AsyncFnOnce(&Run<'_>, RelayedTransfer) -> Step<RelayedPiece>,
) -> ExecutionEnd {
    let result = match execution.begin().await {
        Ok(CommandData::Streams(streams)) => {
            let checked = CheckedCommand::new(generation, execution.cdb.clone());
            let context = PlanContext {
                session: &execution.session,
                checked: &checked,
                data: Bytes::new(),
                read_memory: ReadMemory::None,
                abort: execution.abort.clone(),
                quota_charge: execution.quota_charge.clone(),
                memory: execution.memory.clone(),
            };
            let (run, ..) = Run::new(&unit, &plan, context);
            let done = work(&run, RelayedTransfer { plan: relayed, streams }).await;
            done.map_or_else(PlanResult::from, PlanResult::GoodRelayed)
        }
        Ok(_) => PlanResult::Check(internal_failure()),
        Err(Aborted) => PlanResult::Aborted,
    };
    execution.end(result)
}

/// Maximum length of the data of the parts of a READ that are in progress together; a single part
/// may be longer. The data fits the memory of the command: a part that waits for the part before it
/// does not stop reads from its storage's socket.
const AHEAD_BYTES_MAX: u64 = 512 << 10;

/// Sends data-in in order. The last piece is kept, to be sent with the end of the command.
struct OrderedDataIn<'a> {
    streams: &'a DataStreams,
    /// Position of the next piece in the data-in.
    next_bytes: u64,
    last: RelayedPiece,
}

impl OrderedDataIn<'_> {
    /// Adds the next piece, and sends the one before.
    async fn add(&mut self, piece: RelayedPiece) -> Step<()> {
        let offset_bytes = self.sent_bytes();
        let before = std::mem::replace(&mut self.last, piece);
        self.next_bytes += self.last.data.len() as u64;
        if before.data.is_empty() {
            return Ok(());
        }
        // A transfer is below 4 GiB.
        Ok(self.streams.data_in.send_piece(offset_bytes as u32, before).await?)
    }

    /// Length of the data-in that was sent.
    fn sent_bytes(&self) -> u64 {
        self.next_bytes - self.last.data.len() as u64
    }

    /// Removes the data from `start_bytes` on, so that it can be read again. Returns `false` if
    /// some of it was sent.
    fn discard_from(&mut self, start_bytes: u64) -> bool {
        if self.sent_bytes() >= start_bytes && self.next_bytes > start_bytes {
            self.next_bytes = self.sent_bytes();
            self.last = RelayedPiece::default();
        }
        self.next_bytes == start_bytes
    }
}

/// The parts of a READ that are begun.
struct BegunParts<'a> {
    plan: &'a RelayedPlan,
    readers: VecDeque<(Box<dyn PartReader>, u64)>,
    /// Number of parts that were begun.
    begun: usize,
    /// Length of the data of the parts in `readers`.
    bytes: u64,
}

impl BegunParts<'_> {
    /// Begins further parts, as far as their data fits; returns the next one.
    fn next(&mut self, run: &Run<'_>) -> Option<Box<dyn PartReader>> {
        while let Some(part) = self.plan.parts.get(self.begun) {
            let bytes = run.bytes_of_part(part);
            if !self.readers.is_empty() && self.bytes + bytes > AHEAD_BYTES_MAX {
                break;
            }
            let Some(reader) = self.plan.relay.read(part, &run.memory.buffers) else { break };
            self.readers.push_back((reader, bytes));
            self.begun += 1;
            self.bytes += bytes;
        }
        let (reader, bytes) = self.readers.pop_front()?;
        self.bytes -= bytes;
        Some(reader)
    }
}

impl Run<'_> {
    /// Passes the data of `range` on as it arrives, and returns the last piece.
    async fn read_relayed(&self, range: LbaRange, transfer: RelayedTransfer) -> Step<RelayedPiece> {
        self.abort.unless(self.unit.ranges.wait_until_readable(range)).await?;
        self.enter()?;
        let RelayedTransfer { plan, streams } = transfer;
        let mut data_in =
            OrderedDataIn { streams: &streams, next_bytes: 0, last: RelayedPiece::default() };
        if !self.unit.is_still_mapped(range, &plan.parts) {
            return self.read_rest_from_device(range, data_in).await;
        }
        let mut parts = BegunParts { plan: &plan, readers: VecDeque::new(), begun: 0, bytes: 0 };
        for part in &plan.parts {
            let start_bytes = data_in.next_bytes;
            let result = match parts.next(self) {
                Some(mut reader) => self.read_part(&mut *reader, &mut data_in).await?,
                None => Err(RelayFailure::NotExecuted),
            };
            match result {
                Ok(()) if data_in.next_bytes - start_bytes == self.bytes_of_part(part) => {}
                Err(RelayFailure::Violated) => return Err(self.violated(range)),
                // RFC 7143 §11.4.7: the data of a command that did not end well is not used.
                _ if !data_in.discard_from(start_bytes) => return Err(Stop::Busy),
                _ => {
                    drop(parts);
                    return self.read_rest_from_device(range, data_in).await;
                }
            }
        }
        self.unit.common().relay_counts.relayed();
        Ok(data_in.last)
    }

    /// Reads the rest of `range` from the device, and returns the last piece.
    async fn read_rest_from_device(
        &self,
        range: LbaRange,
        mut data_in: OrderedDataIn<'_>,
    ) -> Step<RelayedPiece> {
        self.unit.common().relay_counts.taken_over();
        Box::pin(self.read_rest(range, &mut data_in)).await?;
        Ok(data_in.last)
    }

    fn bytes_of_part(&self, part: &RelayPart) -> u64 {
        part.range.count.saturating_mul(self.block_bytes)
    }

    /// Passes the data of one part on.
    async fn read_part(
        &self,
        reader: &mut dyn PartReader,
        data_in: &mut OrderedDataIn<'_>,
    ) -> Step<Result<(), RelayFailure>> {
        loop {
            let next = poll_fn(|context| reader.poll_next(context));
            let next = self.abort.unless(next).await?;
            // Unfinished states of a long operation may not be read.
            self.check_generation()?;
            match next {
                Ok(Some(piece)) => data_in.add(piece).await?,
                Ok(None) => return Ok(Ok(())),
                Err(failure) => return Ok(Err(failure)),
            }
        }
    }

    /// Reads the rest of `range`, from the beginning of a part on, from the device, in pieces.
    async fn read_rest(&self, range: LbaRange, data_in: &mut OrderedDataIn<'_>) -> Step<()> {
        let blocks_max = (READ_PIECE_BYTES as u64 / self.block_bytes).max(1);
        let mut done = data_in.next_bytes / self.block_bytes;
        while done < range.count {
            let count = (range.count - done).min(blocks_max);
            let buffer = self.read_blocks(LbaRange { lba: range.lba + done, count }).await?;
            data_in.add(buffer.freeze().into()).await?;
            done += count;
        }
        Ok(())
    }

    /// Returns the error of a command whose storage violated the protocol.
    fn violated(&self, range: LbaRange) -> Stop {
        let name = self.unit.device().name();
        let what = "the storage violated the protocol; its data is not used";
        let error = lunar_block::Error::new(ErrorKind::Disconnected, name, what);
        read_failed(error.at(block_range(range)))
    }
}
