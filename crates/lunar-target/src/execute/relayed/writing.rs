//! WRITE whose data a relay passes on as the initiator sends it.
//!
//! The blocks stay locked until the storage can have no further effect on them: an aborted WRITE
//! is waited for, and then detached, as one of any other device.

use super::super::{Run, Step, Stop};
use super::RelayedTransfer;
use crate::detached_writes::TrackedChange;
use crate::disk_unit::RelayedPlan;
use crate::plan_result::internal_failure;
use crate::ranges::RangeGuard;
use crate::relay::{PartWriteEvent, PartWriter, RelayFailure, RelayedPiece};
use crate::streams::{DataOutError, DataOutPiece, DataOutReader};
use crate::unit::Unit;
use futures_util::FutureExt;
use lunar_block::RelayPart;
use lunar_scsi::plan::{LbaRange, Refusal};
use std::collections::{BTreeMap, VecDeque};
use std::future::poll_fn;
use std::pin::pin;
use std::task::Poll;
use std::time::Duration;

/// Longest beginning of the data-out that is kept until the WRITE has ended. A WRITE that fails
/// before more was passed on can be executed by the device.
const KEPT_BYTES_MAX: u32 = 256 << 10;

/// Time after which a WRITE that has failed ends BUSY if the storage may still execute it: that a
/// lost session has to be replaced, or an abort to be answered.
const SETTLE_TIME: Duration = Duration::from_secs(10);

/// Data-out that is passed on in order.
struct RelayedDataOut {
    reader: DataOutReader,
    /// Pieces that were not passed on, by their positions.
    arrived: BTreeMap<u32, RelayedPiece>,
    /// Position of the next byte to pass on.
    next_bytes: u32,
    /// Position up to which data is wanted of the initiator.
    wanted_bytes: u32,
    /// All that was passed on; `None` if it was too much to be kept.
    kept: Option<Vec<RelayedPiece>>,
}

/// Event of a part that is being written.
enum PartProgress {
    Storage(PartWriteEvent),
    /// Data of the initiator has come.
    Data,
}

impl RelayedDataOut {
    /// Takes the next bytes, at most `bytes_max`, if they are here.
    fn take(&mut self, bytes_max: u32) -> Option<RelayedPiece> {
        let mut piece = self.arrived.remove(&self.next_bytes)?;
        if let Some(rest) = piece.split_off(bytes_max as usize) {
            self.arrived.insert(self.next_bytes + bytes_max, rest);
        }
        // A piece is part of a transfer below 4 GiB.
        self.next_bytes += piece.data.len() as u32;
        match &mut self.kept {
            Some(kept) if self.next_bytes <= KEPT_BYTES_MAX => kept.push(piece.clone()),
            kept => *kept = None,
        }
        Some(piece)
    }

    /// Wants the data-out up to this position.
    fn want_until(&mut self, end_bytes: u32) {
        if end_bytes > self.wanted_bytes {
            self.reader.want(end_bytes - self.wanted_bytes);
            self.wanted_bytes = end_bytes;
        }
    }

    /// Takes the next piece of the initiator in; `false`: all that is wanted has come.
    async fn receive(&mut self) -> Result<bool, DataOutError> {
        let Some(DataOutPiece { offset_bytes, data, digest }) = self.reader.next().await? else {
            return Ok(false);
        };
        if !data.is_empty() {
            self.arrived.insert(offset_bytes, RelayedPiece { data, digest: digest.value() });
        }
        Ok(true)
    }

    /// Returns what has arrived before the storage asks for anything.
    async fn prefix(&mut self, bytes_max: u32) -> RelayedPiece {
        self.reader.wait_for_immediate_data().await;
        while let Some(Ok(true)) = self.receive().now_or_never() {}
        self.take(bytes_max).unwrap_or_default()
    }
}

impl From<DataOutError> for Stop {
    fn from(error: DataOutError) -> Self {
        match error {
            DataOutError::Aborted | DataOutError::TransferFailed => Self::Aborted,
            DataOutError::NoMemory | DataOutError::Refused(Refusal::Busy) => Self::Busy,
            DataOutError::Refused(refusal) => refusal.into(),
        }
    }
}

impl Run<'_> {
    /// Writes `range`, whose data comes from the initiator meanwhile.
    pub(super) async fn write_relayed(
        &self,
        range: LbaRange,
        transfer: RelayedTransfer,
        durable: bool,
    ) -> Step<()> {
        let mut guard = self.lock(range, false).await?;
        self.abort.check()?;
        if self.unit.detached_writes.are_too_many(self.memory.buffers.owner()) {
            return Err(Stop::Busy);
        }
        let RelayedTransfer { plan, streams } = transfer;
        let mut data = RelayedDataOut {
            reader: streams.data_out,
            arrived: BTreeMap::new(),
            next_bytes: 0,
            wanted_bytes: 0,
            kept: Some(Vec::new()),
        };
        for part in &plan.parts {
            let done = self.write_part(guard, &plan, part, &mut data, durable).await?;
            guard = match done {
                (guard, Ok(())) => guard,
                (_, Err(RelayFailure::Violated)) => return Err(self.violated(range)),
                (guard, Err(RelayFailure::NotExecuted | RelayFailure::Lost)) => {
                    drop(guard);
                    self.unit.common().relay_counts.taken_over();
                    // Boxed, because it is rare.
                    return Box::pin(self.write_by_device(range, data, durable)).await;
                }
            };
        }
        self.unit.common().relay_counts.relayed();
        Ok(())
    }

    /// Writes a part. Returns the lock when the storage can have no further effect.
    async fn write_part(
        &self,
        guard: RangeGuard,
        plan: &RelayedPlan,
        part: &RelayPart,
        data: &mut RelayedDataOut,
        durable: bool,
    ) -> Step<(RangeGuard, Result<(), RelayFailure>)> {
        let bytes = u32::try_from(part.range.count * self.block_bytes)
            .map_err(|_| Stop::from(internal_failure()))?;
        let start_bytes = data.next_bytes;
        let prefix = self.abort.unless(data.prefix(bytes)).await?;
        let Some(mut writer) = plan.relay.write(part, prefix, durable) else {
            return Ok((guard, Err(RelayFailure::NotExecuted)));
        };
        let owner = self.memory.buffers.owner();
        // The blocks there belong to the unit until the storage can have no further effect, also
        // when nobody waits for this any more.
        let (held, ended) = (part.held.clone(), writer.ended());
        let ended = async move {
            ended.await;
            drop(held);
            Ok(())
        };
        let ended = ended.boxed();
        let mut change = TrackedChange::new(owner, self.abort.io_context(owner), ended);
        // From here on it counts as begun.
        let _ = change.ended().now_or_never();
        let moving = self.move_part(&mut *writer, data, start_bytes);
        let moved = self.abort.unless(moving).await.map_err(Stop::from).flatten();
        drop(writer); // aborts what has not ended
        let result = match moved {
            Ok(Ok(())) => return Ok((guard, Ok(()))),
            // A command that the storage owes an answer to is aborted, and may be executed until
            // the abort is answered.
            Ok(Err(failure)) => {
                let ended = tokio::time::timeout(SETTLE_TIME, change.ended());
                match self.abort.unless(ended).await {
                    Ok(Ok(_)) => return Ok((guard, Err(failure))),
                    Ok(Err(_)) => Stop::Busy,
                    Err(aborted) => aborted.into(),
                }
            }
            Err(stop) => stop,
        };
        self.unit.finish_or_detach(guard, change).await;
        Err(result)
    }

    /// Passes the data of a part on, which begins at `start_bytes` of the data-out, as the storage
    /// asks for it.
    async fn move_part(
        &self,
        writer: &mut dyn PartWriter,
        data: &mut RelayedDataOut,
        start_bytes: u32,
    ) -> Step<Result<(), RelayFailure>> {
        // Ends of the ranges that the storage has asked for, and the end of the last one.
        let (mut asked, mut asked_bytes) = (VecDeque::new(), data.next_bytes);
        loop {
            while let Some(end_bytes) = asked.front() {
                let Some(piece) = data.take(end_bytes - data.next_bytes) else { break };
                let offset_bytes = data.next_bytes - piece.data.len() as u32 - start_bytes;
                writer.give(offset_bytes, piece);
                asked.pop_front_if(|end_bytes| *end_bytes == data.next_bytes);
            }
            match progress(writer, data, !asked.is_empty()).await? {
                PartProgress::Storage(PartWriteEvent::Wants { bytes, .. }) => {
                    asked_bytes = asked_bytes.saturating_add(bytes);
                    asked.push_back(asked_bytes);
                    data.want_until(asked_bytes);
                }
                PartProgress::Storage(PartWriteEvent::End(result)) => return Ok(result),
                PartProgress::Data => {}
            }
        }
    }

    /// Has the device write `range`, if all data that was passed on is still here.
    async fn write_by_device(
        &self,
        range: LbaRange,
        mut data: RelayedDataOut,
        durable: bool,
    ) -> Step<()> {
        let Some(kept) = data.kept.take() else { return Err(Stop::Busy) };
        // The storage may have refused the data because it was damaged here.
        if !kept.iter().all(RelayedPiece::is_intact) {
            return Err(Stop::Busy);
        }
        let mut buffer = self.take_buffer(self.bytes(range)).await?;
        let mut at = 0;
        for RelayedPiece { data, .. } in kept {
            put(&mut buffer, at, &data);
            at += data.len();
        }
        data.reader.want_all();
        loop {
            while let Some((offset_bytes, piece)) = data.arrived.pop_first() {
                put(&mut buffer, offset_bytes as usize, &piece.data);
            }
            if !self.abort.unless(data.receive()).await?? {
                break;
            }
        }
        self.write(range, buffer.freeze(), durable).await
    }
}

/// Copies a piece to its offset, if it is within the buffer.
fn put(buffer: &mut [u8], at: usize, piece: &[u8]) {
    if let Some(room) = buffer.get_mut(at..at + piece.len()) {
        room.copy_from_slice(piece);
    }
}

/// Waits for an event of the storage, or, if `awaits_data`, for data of the initiator.
async fn progress(
    writer: &mut dyn PartWriter,
    data: &mut RelayedDataOut,
    awaits_data: bool,
) -> Step<PartProgress> {
    let mut receiving = pin!(data.receive());
    poll_fn(|context| {
        if let Poll::Ready(event) = writer.poll_event(context) {
            return Poll::Ready(Ok(PartProgress::Storage(event)));
        }
        if !awaits_data {
            return Poll::Pending;
        }
        match receiving.as_mut().poll(context) {
            Poll::Ready(Ok(true)) => Poll::Ready(Ok(PartProgress::Data)),
            // All data of the command has arrived, and yet the storage lacks some.
            Poll::Ready(Ok(false)) => Poll::Ready(Err(internal_failure().into())),
            Poll::Ready(Err(error)) => Poll::Ready(Err(error.into())),
            Poll::Pending => Poll::Pending,
        }
    })
    .await
}
