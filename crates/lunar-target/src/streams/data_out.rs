//! Data-out that a unit takes as it arrives.
//!
//! The reader of a command requests ranges: for each it counts the bytes as in flight and charges
//! their memory, and only then is the R2T sent. So every segment that arrives has its room.
//!
//! A segment becomes a piece of its own when its digest was checked, unless it is short: short
//! segments of one sequence share a buffer, because a buffer has at least a page.

use super::{DATA_OUT_RANGE_BYTES_MAX, FlightLimit, InFlight, TaskInputs};
use crate::plan_result::PlanResult;
use crate::session::Session;
use crate::unit::{ArrivedCommand, Unit};
use bytes::Bytes;
use futures_util::future::{Either, select};
use futures_util::task::AtomicWaker;
use lunar_block::{Buffer, BufferPool, MemoryCharge};
use lunar_iscsi::connection::target::{Input, Task};
use lunar_iscsi::framing::{SegmentDigest, TaskId};
use lunar_scsi::plan::Refusal;
use std::collections::VecDeque;
use std::fmt;
use std::future::poll_fn;
use std::pin::pin;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll};
use std::time::Duration;

/// Length from which a segment is a piece of its own. Shorter ones are collected up to it.
const SHORT_BYTES: usize = 16 << 10;

/// A piece of data-out that has arrived and was checked.
#[derive(Clone, Debug)]
pub struct DataOutPiece {
    /// Position of the piece in the data-out. Pieces follow each other, unless several R2Ts are
    /// open and the initiator answers them alternately.
    pub offset_bytes: u32,
    /// The data, in a buffer that is charged to the owner of the command until the last share is
    /// dropped. Until then it also counts as in flight.
    pub data: Bytes,
    /// [`SegmentDigest::Matched`] if the piece is one segment whose digest was checked: the segment
    /// may be sent on with it. Otherwise [`SegmentDigest::None`].
    pub digest: SegmentDigest,
}

/// Reason why a command gets no more data-out.
#[derive(Debug)]
pub enum DataOutError {
    /// The command was aborted: by task management, by a reset, or with its connection, which also
    /// ends when data does not arrive in time.
    Aborted,
    /// The transfer failed, for instance by a wrong digest. The initiator gets sense data of the
    /// fault, whatever the command ends with.
    TransferFailed,
    /// No memory was free in time.
    NoMemory,
    /// The unit refuses the command since its state has changed
    /// ([`Unit::check_again`](crate::Unit::check_again)).
    Refused(Refusal),
}

impl From<DataOutError> for PlanResult {
    fn from(error: DataOutError) -> Self {
        match error {
            DataOutError::Aborted | DataOutError::TransferFailed => Self::Aborted,
            DataOutError::NoMemory | DataOutError::Refused(Refusal::Busy) => Self::Busy,
            DataOutError::Refused(Refusal::Check(sense)) => Self::Check(sense),
            DataOutError::Refused(Refusal::ReservationConflict) => Self::Conflict,
        }
    }
}

/// The check of a command at the time when its first data comes.
pub(crate) struct SecondCheck {
    session: Arc<Session>,
    unit: Arc<dyn Unit>,
    task: Task,
}

impl fmt::Debug for SecondCheck {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("SecondCheck")
    }
}

impl SecondCheck {
    pub(crate) fn new(session: &Arc<Session>, unit: &Arc<dyn Unit>, task: &Task) -> Self {
        Self { session: Arc::clone(session), unit: Arc::clone(unit), task: task.clone() }
    }

    fn check(&self) -> Result<(), Refusal> {
        let Self { session, unit, task } = self;
        let view = session.view();
        // The tasks of a unit that is gone are aborted.
        let Some(nexus) = view.nexus(task.lun).filter(|nexus| Arc::ptr_eq(&nexus.unit, unit))
        else {
            return Ok(());
        };
        unit.check_again(&ArrivedCommand {
            cdb: &task.cdb,
            expected_data_out_bytes: task.expected_data_out_bytes(),
            expected_data_in_bytes: task.expected_data_in_bytes(),
            session,
            view: &view,
            nexus,
            relay: None,
        })
    }
}

/// The data-out of a command, as it arrives.
///
/// To be used by the future of the command's execution, which the connection polls.
#[derive(Debug)]
pub struct DataOutReader {
    task: TaskId,
    stream: Arc<DataOutStream>,
    inputs: TaskInputs,
    limit: FlightLimit,
    /// Time to wait for memory.
    wait_max: Duration,
    /// `None` once the command was checked again.
    second_check: Option<SecondCheck>,
    /// Ends of the ranges that are wanted and not requested completely.
    wanted: VecDeque<u32>,
    /// End of the last of them.
    wanted_end: u32,
    /// End of the last range that the machine was given.
    requested_end: u32,
    /// Number of bytes given to the unit.
    given_bytes: u32,
    /// True if all data-out came with the command.
    came_with_command: bool,
}

impl DataOutReader {
    pub(crate) fn new(
        task: TaskId,
        stream: &Arc<DataOutStream>,
        inputs: &TaskInputs,
        limit: FlightLimit,
        wait_max: Duration,
        second_check: Option<SecondCheck>,
    ) -> Self {
        Self {
            task,
            stream: Arc::clone(stream),
            inputs: inputs.clone(),
            limit,
            wait_max,
            second_check,
            wanted: VecDeque::new(),
            wanted_end: 0,
            requested_end: 0,
            given_bytes: 0,
            came_with_command: false,
        }
    }

    /// Sets whether all data-out came with the command.
    pub(crate) fn set_came_with_command(&mut self, came_with_command: bool) {
        self.came_with_command = came_with_command;
    }

    /// Waits until the data-out can be taken, if all of it came with the command: the machine hands
    /// it over after the first poll of the command.
    pub(crate) async fn wait_for_immediate_data(&self) {
        if self.came_with_command && self.given_bytes == 0 {
            poll_fn(|context| self.stream.poll_arrival(context)).await;
        }
    }

    /// Length of the data-out that the command runs with.
    pub fn bytes(&self) -> u32 {
        self.stream.total_bytes
    }

    /// Wants the next `bytes` of the data-out, as one range: no R2T crosses its end. More than the
    /// rest is the rest. Several ranges may be wanted at a time; they are requested by
    /// [`next`](Self::next), as far as the limits allow. Unsolicited data comes unwanted.
    pub fn want(&mut self, bytes: u32) {
        let end = self.wanted_end.saturating_add(bytes).min(self.stream.total_bytes);
        if end > self.wanted_end {
            self.wanted_end = end;
            self.wanted.push_back(end);
            self.stream.want(end);
        }
    }

    /// Wants all data-out that is not wanted yet.
    pub fn want_all(&mut self) {
        self.want(u32::MAX);
    }

    /// Waits for the next piece; returns `None` when all that was wanted has been given. The future
    /// may be dropped, and nothing is lost.
    ///
    /// A piece that is not dropped keeps its part of
    /// [`DATA_OUT_TASK_BYTES_MAX`](super::DATA_OUT_TASK_BYTES_MAX): a unit that keeps that much
    /// gets nothing more.
    ///
    /// # Errors
    /// No more data-out will come.
    pub async fn next(&mut self) -> Result<Option<DataOutPiece>, DataOutError> {
        loop {
            self.request_now();
            if let Some(piece) = self.stream.pop()? {
                self.check()?;
                self.given_bytes = self.given_bytes.saturating_add(piece.data.len() as u32);
                return Ok(Some(piece));
            }
            if self.given_bytes >= self.wanted_end {
                self.check()?;
                return Ok(None);
            }
            self.wait().await?;
        }
    }

    /// Checks the command again when it gets its first data.
    fn check(&mut self) -> Result<(), DataOutError> {
        let Some(second_check) = self.second_check.take() else { return Ok(()) };
        second_check.check().map_err(DataOutError::Refused)
    }

    /// Waits until a piece has arrived, the stream has ended, or a range was requested.
    async fn wait(&mut self) -> Result<(), DataOutError> {
        let Some(bytes) = self.next_range() else {
            poll_fn(|context| self.stream.poll_arrival(context)).await;
            return Ok(());
        };
        if let Some((in_flight, charge)) = self.arrival_or_room(bytes).await? {
            self.request(bytes, in_flight, charge);
        }
        Ok(())
    }

    /// Waits for room for a range of `bytes`; returns `None` if a piece or the end comes before.
    async fn arrival_or_room(
        &self,
        bytes: u32,
    ) -> Result<Option<(InFlight, MemoryCharge)>, DataOutError> {
        let arrival = pin!(poll_fn(|context| self.stream.poll_arrival(context)));
        let room = pin!(self.room(bytes));
        let either = select(arrival, room);
        let first = match self.limit.is_unused() {
            // Nothing else will come.
            true => match tokio::time::timeout(self.wait_max, either).await {
                Ok(first) => first,
                Err(_) => return Err(DataOutError::NoMemory),
            },
            false => either.await,
        };
        Ok(match first {
            Either::Left(_) => None,
            Either::Right((room, _)) => room,
        })
    }

    /// Waits for room for a range of `bytes`.
    async fn room(&self, bytes: u32) -> Option<(InFlight, MemoryCharge)> {
        let in_flight = self.limit.acquire(bytes).await?;
        let charged_bytes = BufferPool::charged_bytes(bytes as usize);
        Some((in_flight, self.stream.buffers.charge_when_free(charged_bytes).await))
    }

    /// Requests wanted ranges as far as there is room now.
    fn request_now(&mut self) {
        while let Some(bytes) = self.next_range() {
            let Some(in_flight) = self.limit.try_acquire(bytes) else { return };
            let charged_bytes = BufferPool::charged_bytes(bytes as usize);
            let Some(charge) = self.stream.buffers.try_charge(charged_bytes) else { return };
            self.request(bytes, in_flight, charge);
        }
    }

    /// Length of the next range to request; `None` when the stream has ended.
    fn next_range(&mut self) -> Option<u32> {
        let start = self.stream.state().next_start()?;
        while self.wanted.front().is_some_and(|end| *end <= start) {
            self.wanted.pop_front();
        }
        let bytes = self.wanted.front()? - start;
        Some(bytes.min(DATA_OUT_RANGE_BYTES_MAX).min(self.limit.task_bytes()))
    }

    /// Requests the next range, for which there is room.
    fn request(&mut self, bytes: u32, in_flight: InFlight, charge: MemoryCharge) {
        let end = {
            let mut state = self.stream.state();
            let Some(start) = state.next_start() else { return };
            // Unsolicited data may have come meanwhile, and needs less room.
            let wanted_end = self.wanted.front().map_or(start, |end| start.max(*end));
            let end = start.saturating_add(bytes).min(wanted_end);
            if end == start {
                return;
            }
            state.covered_end = end;
            let missing_bytes = end - start;
            state.ranges.push_back(Range { start, end, missing_bytes, in_flight, charge });
            end
        };
        let (task, offset_bytes) = (self.task, self.requested_end);
        self.requested_end = end;
        self.inputs.push(Input::Wants { task, offset_bytes, bytes: end - offset_bytes });
    }
}

/// Data-out of one command that arrives: shared by its connection and its reader.
#[derive(Debug)]
pub(crate) struct DataOutStream {
    total_bytes: u32,
    /// The account of the connection's data-out.
    buffers: BufferPool,
    state: Mutex<StreamState>,
    /// True when the stream has ended: nothing is kept any more.
    is_over: AtomicBool,
    /// Waker of the reader.
    reader: AtomicWaker,
}

#[derive(Debug, Default)]
struct StreamState {
    /// Requested ranges whose data has not all begun to arrive.
    ranges: VecDeque<Range>,
    /// End of the data that was requested or came unsolicited.
    covered_end: u32,
    /// End of the data that is wanted.
    wanted_end: u32,
    /// Number of bytes that have arrived and were checked.
    checked_bytes: u32,
    /// The segment that has arrived and whose digest is being checked.
    unchecked: Option<Filling>,
    /// Short segments that wait for the next ones of their sequences.
    fillings: Vec<Filling>,
    pieces: VecDeque<DataOutPiece>,
    end: Option<StreamEnd>,
}

/// Way in which a stream ended.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum StreamEnd {
    Aborted,
    TransferFailed,
}

/// A range that was requested.
#[derive(Debug)]
struct Range {
    start: u32,
    end: u32,
    /// Bytes of which no segment has begun to arrive.
    missing_bytes: u32,
    in_flight: InFlight,
    charge: MemoryCharge,
}

/// A buffer of one segment, or of several short ones.
#[derive(Debug)]
struct Filling {
    offset_bytes: u32,
    /// Length of the segments that were checked.
    checked_bytes: usize,
    buffer: Buffer,
    in_flight: Option<InFlight>,
    digest: SegmentDigest,
    /// True if the last segment ends a sequence.
    is_final: bool,
}

/// Memory of a piece.
struct PieceBuffer {
    buffer: Buffer,
    _in_flight: Option<InFlight>,
}

impl AsRef<[u8]> for PieceBuffer {
    fn as_ref(&self) -> &[u8] {
        &self.buffer
    }
}

/// A segment that is arriving.
#[derive(Debug)]
pub(crate) struct StreamSegment {
    stream: Arc<DataOutStream>,
    pub(crate) task: TaskId,
    filling: Filling,
    /// Number of bytes that have arrived.
    arrived_bytes: usize,
    segment_bytes: usize,
}

impl StreamSegment {
    /// The room for the next bytes: none once the stream has ended.
    pub(crate) fn room(&mut self) -> &mut [u8] {
        if self.stream.is_over.load(Relaxed) {
            return &mut [];
        }
        let start = self.filling.checked_bytes;
        let (at, end) = (start + self.arrived_bytes, start + self.segment_bytes);
        self.filling.buffer.get_mut(at..end).unwrap_or_default()
    }

    pub(crate) fn filled(&mut self, bytes: usize) {
        self.arrived_bytes += bytes;
    }

    /// Keeps the segment, which has arrived, until it is checked.
    pub(crate) fn finish(self) {
        let mut state = self.stream.state();
        if state.end.is_none() {
            state.unchecked = Some(self.filling);
        }
    }
}

impl DataOutStream {
    pub(crate) fn new(total_bytes: u32, buffers: &BufferPool) -> Self {
        Self {
            total_bytes,
            buffers: buffers.clone(),
            state: Mutex::default(),
            is_over: AtomicBool::new(false),
            reader: AtomicWaker::new(),
        }
    }

    fn state(&self) -> MutexGuard<'_, StreamState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes the room for a segment whose header has arrived.
    pub(crate) fn begin_segment(
        self: &Arc<Self>,
        task: TaskId,
        offset_bytes: u32,
        segment_bytes: u32,
        is_final: bool,
    ) -> Option<StreamSegment> {
        let mut state = self.state();
        if state.end.is_some() {
            return None;
        }
        let bytes = segment_bytes as usize;
        let mut continued = state.take_filling(offset_bytes);
        let has_buffer = continued
            .as_ref()
            .is_some_and(|filling| filling.checked_bytes + bytes <= filling.buffer.len());
        let buffer_bytes = match (has_buffer, is_final) {
            (true, _) => 0,
            (false, true) => bytes,
            (false, false) => bytes.max(SHORT_BYTES),
        };
        let (in_flight, released) = state.take_room(offset_bytes, segment_bytes, buffer_bytes);
        let filling = match continued.take_if(|_| has_buffer) {
            Some(mut filling) => {
                match (&mut filling.in_flight, in_flight) {
                    (Some(all), Some(more)) => all.add(more),
                    (all, more) => *all = all.take().or(more),
                }
                filling.is_final = is_final;
                filling
            }
            None => {
                if let Some(filling) = continued {
                    self.give(&mut state, filling);
                }
                // Bounded by the range, whose charge gives way to it, or by FirstBurstLength.
                let buffer = self.buffers.take(buffer_bytes);
                let digest = SegmentDigest::None;
                Filling { offset_bytes, checked_bytes: 0, buffer, in_flight, digest, is_final }
            }
        };
        drop(state);
        drop(released);
        let stream = Arc::clone(self);
        Some(StreamSegment { stream, task, filling, arrived_bytes: 0, segment_bytes: bytes })
    }

    /// Gives the segment that has arrived last to the reader, now that it is checked. Returns
    /// `false` if it did not arrive here, but in the buffer of the task.
    pub(crate) fn segment_checked(
        &self,
        offset_bytes: u32,
        bytes: u32,
        digest: SegmentDigest,
    ) -> bool {
        let mut state = self.state();
        let Some(mut filling) = state.unchecked.take() else { return false };
        state.checked_bytes = state.checked_bytes.saturating_add(bytes);
        debug_assert_eq!(filling.offset_bytes + filling.checked_bytes as u32, offset_bytes);
        filling.digest = if filling.checked_bytes == 0 { digest } else { SegmentDigest::None };
        filling.checked_bytes += bytes as usize;
        if filling.is_final || filling.checked_bytes >= SHORT_BYTES.min(filling.buffer.len()) {
            self.give(&mut state, filling);
        } else {
            state.fillings.push(filling);
        }
        self.give_wanted(&mut state);
        true
    }

    fn want(&self, end: u32) {
        let mut state = self.state();
        state.wanted_end = end;
        self.give_wanted(&mut state);
    }

    /// Gives short segments once all that is wanted has arrived: the end of their sequence may have
    /// been a PDU without data.
    fn give_wanted(&self, state: &mut StreamState) {
        let wanted_end = state.wanted_end;
        while state.checked_bytes >= wanted_end
            && let Some(at) = state.fillings.iter().position(|its| its.offset_bytes < wanted_end)
        {
            let filling = state.fillings.swap_remove(at);
            self.give(state, filling);
        }
    }

    /// Gives the reader data that came before the command began.
    pub(crate) fn add(
        &self,
        offset_bytes: u32,
        mut buffer: Buffer,
        bytes: u32,
        digest: SegmentDigest,
    ) {
        let mut state = self.state();
        if state.end.is_some() {
            return;
        }
        state.covered_end = state.covered_end.max(offset_bytes.saturating_add(bytes));
        state.checked_bytes = state.checked_bytes.saturating_add(bytes);
        buffer.truncate(bytes as usize);
        let filling = Filling {
            offset_bytes,
            checked_bytes: bytes as usize,
            buffer,
            in_flight: None,
            digest,
            is_final: true,
        };
        self.give(&mut state, filling);
    }

    fn give(&self, state: &mut StreamState, filling: Filling) {
        let Filling { offset_bytes, checked_bytes, mut buffer, in_flight, digest, .. } = filling;
        let rest_bytes = self.total_bytes.saturating_sub(offset_bytes) as usize;
        if rest_bytes > 0 {
            // A segment that is cut has another digest.
            let digest = if checked_bytes > rest_bytes { SegmentDigest::None } else { digest };
            buffer.truncate(checked_bytes.min(rest_bytes));
            let data = Bytes::from_owner(PieceBuffer { buffer, _in_flight: in_flight });
            state.pieces.push_back(DataOutPiece { offset_bytes, data, digest });
            self.reader.wake();
        }
    }

    fn pop(&self) -> Result<Option<DataOutPiece>, DataOutError> {
        let mut state = self.state();
        match state.end {
            None => Ok(state.pieces.pop_front()),
            Some(StreamEnd::Aborted) => Err(DataOutError::Aborted),
            Some(StreamEnd::TransferFailed) => Err(DataOutError::TransferFailed),
        }
    }

    /// Ready when there is a piece, or the stream has ended.
    fn poll_arrival(&self, context: &Context<'_>) -> Poll<()> {
        self.reader.register(context.waker());
        let state = self.state();
        match state.end.is_some() || !state.pieces.is_empty() {
            true => Poll::Ready(()),
            false => Poll::Pending,
        }
    }

    /// Ends the stream: what it holds is dropped, and the reader gets an error.
    pub(crate) fn end(&self, end: StreamEnd) {
        let mut state = self.state();
        let ended = StreamState { end: Some(state.end.unwrap_or(end)), ..StreamState::default() };
        let held = std::mem::replace(&mut *state, ended);
        self.is_over.store(true, Relaxed);
        drop(state);
        drop(held);
        self.reader.wake();
    }
}

impl StreamState {
    /// Start of the next range to request; `None` when the stream has ended.
    fn next_start(&self) -> Option<u32> {
        self.end.is_none().then_some(self.covered_end)
    }

    /// Takes the room of a segment from the range that it belongs to; unsolicited data has none.
    /// Returns the bytes in flight, and a range that needs no room any more.
    fn take_room(
        &mut self,
        offset_bytes: u32,
        bytes: u32,
        buffer_bytes: usize,
    ) -> (Option<InFlight>, Option<Range>) {
        self.covered_end = self.covered_end.max(offset_bytes.saturating_add(bytes));
        let is_in = |range: &Range| (range.start..range.end).contains(&offset_bytes);
        let Some(at) = self.ranges.iter().position(is_in) else { return (None, None) };
        let range = &mut self.ranges[at];
        range.missing_bytes = range.missing_bytes.saturating_sub(bytes);
        let in_flight = range.in_flight.take(bytes as usize);
        if buffer_bytes > 0 {
            let charged_bytes = BufferPool::charged_bytes(buffer_bytes);
            range.charge.set(range.charge.bytes().saturating_sub(charged_bytes));
        }
        let is_used_up = range.missing_bytes == 0;
        (in_flight, if is_used_up { self.ranges.remove(at) } else { None })
    }

    /// Takes the short segments that end here.
    fn take_filling(&mut self, end: u32) -> Option<Filling> {
        let ends_here =
            |filling: &Filling| filling.offset_bytes + filling.checked_bytes as u32 == end;
        let at = self.fillings.iter().position(ends_here)?;
        Some(self.fillings.swap_remove(at))
    }
}
