//! The state that the commands of a host and the socket of a storage share: requests in one
//! direction, data and ends in the other.

use super::session::StorageInput;
use super::shares::SharedCommand;
use super::{COMMAND_BYTES_MAX, LINK_BYTES_MAX, LINK_COMMANDS_MAX, SEGMENT_BYTES_MAX};
use lunar_block::{Buffer, BufferPool, MemoryCharge};
use lunar_iscsi::framing::TaskId;
use lunar_net::{InFlightBytes, InFlightMeter};
use lunar_target::{RelayFailure, RelayedPiece};
use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, VecDeque};
use std::rc::Rc;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};
use std::time::Duration;
use tokio::sync::oneshot;
use tokio::time::Instant;

/// Time for which commands are executed by the device after one has failed.
const AVOID_TIME: Duration = Duration::from_secs(2);

/// Minimum number of bytes that a segment counts in the data that is held: its buffer has at least
/// a page, and a storage may send segments of one byte.
const SEGMENT_COUNTED_MIN: usize = 4 << 10;

/// State of a connection between one host connection and one storage, which both sides use. READs
/// and WRITEs have connections of their own: that of READs is not read while the host does not take
/// their data.
#[derive(Clone, Debug)]
pub(super) struct StorageLink(Rc<RefCell<LinkState>>);

/// Time until which the device executes all commands of one host connection to one storage.
#[derive(Clone, Debug, Default)]
pub(super) struct StorageAvoidance(Rc<Cell<Option<Instant>>>);

impl StorageAvoidance {
    fn avoid(&self, time: Duration) {
        self.0.set(self.0.get().max(Some(Instant::now() + time)));
    }

    fn is_avoided(&self) -> bool {
        self.0.get().is_some_and(|until| Instant::now() < until)
    }
}

/// WRITEs that may still have an effect. Their holders wait until the values are dropped.
pub(super) type UnsettledWrites = BTreeMap<TaskId, oneshot::Sender<()>>;

/// State of a link.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) enum LinkPhase {
    /// Not connected; not to be tried before this time.
    Down(Instant),
    /// Being connected or logged in.
    Connecting,
    /// Commands are passed on.
    Up,
}

#[derive(Debug)]
struct LinkState {
    phase: LinkPhase,
    requests: VecDeque<StorageInput>,
    /// Waker of the socket.
    socket: Option<Waker>,
    transfers: BTreeMap<TaskId, Transfer>,
    /// Senders that are dropped when a WRITE can have no further effect.
    unsettled: UnsettledWrites,
    /// Commands that were aborted and that the storage still has.
    aborted: BTreeMap<TaskId, SharedCommand>,
    next_id: u64,
    /// Data in flight of all READs; wakes the socket when the host has taken data.
    in_flight: Arc<InFlightMeter>,
    /// Memory that is reserved for the READs that have not ended, in bytes.
    reserved_bytes: usize,
    /// READs that may have no room for a further segment.
    full: Vec<TaskId>,
    avoidance: StorageAvoidance,
    is_host_gone: bool,
}

/// The data of a command of the host that has not ended.
#[derive(Debug)]
struct Transfer {
    /// Memory of a READ; `None` of a WRITE.
    memory: Option<ReadReserve>,
    in_flight: Arc<InFlightMeter>,
    /// Data of a READ that has not begun to arrive, in bytes.
    missing_bytes: usize,
    pieces: VecDeque<RelayedPiece>,
    wants: VecDeque<(u32, u32)>,
    end: Option<Result<(), RelayFailure>>,
    waker: Option<Waker>,
}

/// Memory of a READ.
#[derive(Debug)]
struct ReadReserve {
    buffers: BufferPool,
    /// Memory that is reserved for the data in flight and not used by a buffer.
    charge: MemoryCharge,
    reserved_bytes: usize,
}

/// Memory to reserve for a READ of `bytes`.
fn reserve_bytes(bytes: u32) -> usize {
    if bytes == 0 { 0 } else { BufferPool::charged_bytes(bytes as usize).min(COMMAND_BYTES_MAX) }
}

/// Event of a WRITE.
pub(super) enum WriteEvent {
    Wants(u32, u32),
    End(Result<(), RelayFailure>),
}

impl StorageLink {
    pub(super) fn new(avoidance: StorageAvoidance) -> Self {
        Self(Rc::new(RefCell::new(LinkState {
            phase: LinkPhase::Down(Instant::now()),
            requests: VecDeque::new(),
            socket: None,
            transfers: BTreeMap::new(),
            unsettled: BTreeMap::new(),
            aborted: BTreeMap::new(),
            next_id: 0,
            // `reserved_bytes` limits it.
            in_flight: InFlightMeter::for_connection(usize::MAX),
            reserved_bytes: 0,
            full: Vec::new(),
            avoidance,
            is_host_gone: false,
        })))
    }

    pub(super) fn phase(&self) -> LinkPhase {
        self.0.borrow().phase
    }

    pub(super) fn set_phase(&self, phase: LinkPhase) {
        self.0.borrow_mut().phase = phase;
    }

    pub(super) fn is_avoided(&self) -> bool {
        self.0.borrow().avoidance.is_avoided()
    }

    /// True if a further command can be passed on, with this data-in.
    pub(super) fn has_room(&self, data_in_bytes: u32) -> bool {
        let state = self.0.borrow();
        let reserved_bytes = state.reserved_bytes + reserve_bytes(data_in_bytes);
        state.phase == LinkPhase::Up
            && !state.avoidance.is_avoided()
            && state.transfers.len() + state.aborted.len() < LINK_COMMANDS_MAX
            && reserved_bytes <= LINK_BYTES_MAX
    }

    /// Begins a transfer; `None` if there is no room for it, or no memory. The data of a READ takes
    /// memory of `buffers`. `request` makes the request from the number of the command.
    pub(super) fn begin(
        &self,
        bytes: u32,
        buffers: Option<&BufferPool>,
        request: impl FnOnce(TaskId) -> StorageInput,
    ) -> Option<TaskId> {
        if !self.has_room(if buffers.is_some() { bytes } else { 0 }) {
            return None;
        }
        let memory = match buffers {
            Some(buffers) => {
                let reserved_bytes = reserve_bytes(bytes);
                let charge = buffers.try_charge(reserved_bytes)?;
                Some(ReadReserve { buffers: buffers.clone(), charge, reserved_bytes })
            }
            None => None,
        };
        let state = &mut *self.0.borrow_mut();
        state.reserved_bytes += memory.as_ref().map_or(0, |memory| memory.reserved_bytes);
        state.next_id += 1;
        let id = TaskId(state.next_id);
        // The last segment of a READ whose data fits may be a short one.
        let held_max = COMMAND_BYTES_MAX + SEGMENT_COUNTED_MIN;
        let in_flight = InFlightMeter::for_task(held_max, &state.in_flight);
        let transfer = Transfer {
            memory,
            in_flight,
            missing_bytes: bytes as usize,
            pieces: VecDeque::new(),
            wants: VecDeque::new(),
            end: None,
            waker: None,
        };
        state.transfers.insert(id, transfer);
        state.push(request(id));
        Some(id)
    }

    /// Returns a future that ends when a WRITE can have no further effect.
    pub(super) fn settled(&self, id: TaskId) -> oneshot::Receiver<()> {
        let (sender, receiver) = oneshot::channel();
        self.0.borrow_mut().unsettled.insert(id, sender);
        receiver
    }

    /// Ends a transfer for its holder; the storage aborts it if it has not ended. Its command
    /// counts until then.
    pub(super) fn end(&self, id: TaskId, command: Option<SharedCommand>) {
        let state = &mut *self.0.borrow_mut();
        let Some(transfer) = state.transfers.remove(&id) else { return };
        state.reserved_bytes -= transfer.memory.as_ref().map_or(0, |memory| memory.reserved_bytes);
        if transfer.end.is_none() {
            state.push(StorageInput::Abort(id));
            state.aborted.extend(command.map(|command| (id, command)));
        }
        state.end_when_empty();
    }

    /// Adds a request of a transfer.
    pub(super) fn request(&self, input: StorageInput) {
        self.0.borrow_mut().push(input);
    }

    /// Returns the next piece of a READ, or its end.
    pub(super) fn poll_piece(
        &self,
        id: TaskId,
        context: &Context<'_>,
    ) -> Poll<Result<Option<RelayedPiece>, RelayFailure>> {
        let mut state = self.0.borrow_mut();
        let Some(transfer) = state.transfers.get_mut(&id) else {
            return Poll::Ready(Err(RelayFailure::Lost));
        };
        if let Some(piece) = transfer.pieces.pop_front() {
            return Poll::Ready(Ok(Some(piece)));
        }
        if let Some(end) = transfer.end {
            return Poll::Ready(end.map(|()| None));
        }
        transfer.waker = Some(context.waker().clone());
        Poll::Pending
    }

    /// Returns the next range that a WRITE is to give, or its end.
    pub(super) fn poll_write(&self, id: TaskId, context: &Context<'_>) -> Poll<WriteEvent> {
        let mut state = self.0.borrow_mut();
        let Some(transfer) = state.transfers.get_mut(&id) else {
            return Poll::Ready(WriteEvent::End(Err(RelayFailure::Lost)));
        };
        if let Some(end) = transfer.end {
            return Poll::Ready(WriteEvent::End(end));
        }
        if let Some((offset_bytes, bytes)) = transfer.wants.pop_front() {
            return Poll::Ready(WriteEvent::Wants(offset_bytes, bytes));
        }
        transfer.waker = Some(context.waker().clone());
        Poll::Pending
    }

    /// Called when the connection of the host is over, with all of its commands.
    pub(super) fn host_gone(&self) {
        let state = &mut *self.0.borrow_mut();
        state.is_host_gone = true;
        state.end_when_empty();
    }
}

/// The side of the socket.
impl StorageLink {
    /// Returns the next request, or registers the waker, which is also woken when the host has
    /// taken data.
    pub(super) fn poll_request(&self, context: &Context<'_>) -> Poll<StorageInput> {
        let state = &mut *self.0.borrow_mut();
        if !state.may_receive() {
            state.in_flight.wait(context);
        }
        match state.requests.pop_front() {
            Some(input) => Poll::Ready(input),
            None => {
                state.socket = Some(context.waker().clone());
                Poll::Pending
            }
        }
    }

    /// True while a further segment fits the limits of each READ.
    pub(super) fn may_receive(&self) -> bool {
        self.0.borrow_mut().may_receive()
    }

    /// Takes the memory for a segment of a READ; `None`: it is discarded.
    pub(super) fn begin_segment(&self, id: TaskId, bytes: u32) -> Option<(Buffer, InFlightBytes)> {
        let state = &mut *self.0.borrow_mut();
        let transfer = state.transfers.get_mut(&id)?;
        let bytes = bytes as usize;
        let counted_bytes = bytes.max(SEGMENT_COUNTED_MIN);
        let Some(in_flight) = transfer.in_flight.try_add(counted_bytes) else {
            // Not reached: nothing is received while a segment does not fit.
            transfer.end = Some(Err(RelayFailure::NotExecuted));
            transfer.wake();
            return None;
        };
        transfer.missing_bytes = transfer.missing_bytes.saturating_sub(bytes);
        if transfer.is_full() {
            state.full.push(id);
        }
        let memory = transfer.memory.as_mut()?;
        // The memory of the buffers is charged separately.
        let left = memory.reserved_bytes.saturating_sub(transfer.in_flight.bytes());
        memory.charge.set(left);
        Some((memory.buffers.take(bytes), in_flight))
    }

    /// Gives a segment that was checked to its holder.
    pub(super) fn data_in(&self, id: TaskId, piece: RelayedPiece) {
        if let Some(transfer) = self.0.borrow_mut().transfers.get_mut(&id) {
            transfer.pieces.push_back(piece);
            transfer.wake();
        }
    }

    pub(super) fn wants(&self, id: TaskId, offset_bytes: u32, bytes: u32) {
        if let Some(transfer) = self.0.borrow_mut().transfers.get_mut(&id) {
            transfer.wants.push_back((offset_bytes, bytes));
            transfer.wake();
        }
    }

    pub(super) fn ended(&self, id: TaskId, result: Result<(), RelayFailure>) {
        let state = &mut *self.0.borrow_mut();
        let Some(transfer) = state.transfers.get_mut(&id) else { return };
        transfer.end.get_or_insert(result);
        transfer.wake();
        if result.is_err() {
            // The command is repeated, and the device reports the reason.
            state.avoidance.avoid(AVOID_TIME);
        }
    }

    /// Called when a command can have no further effect: ends the waits for a WRITE.
    pub(super) fn settle(&self, id: TaskId) {
        let state = &mut *self.0.borrow_mut();
        drop((state.unsettled.remove(&id), state.aborted.remove(&id)));
    }

    /// Takes the WRITEs that may still have an effect, of a session that is lost. They are settled
    /// when the result is dropped.
    pub(super) fn take_unsettled(&self) -> UnsettledWrites {
        std::mem::take(&mut self.0.borrow_mut().unsettled)
    }

    /// Ends all transfers, because the session is over, and drops the requests.
    pub(super) fn lost(&self) {
        let state = &mut *self.0.borrow_mut();
        state.requests.clear();
        state.aborted.clear();
        for transfer in state.transfers.values_mut() {
            transfer.end.get_or_insert(Err(RelayFailure::Lost));
            transfer.wake();
        }
    }
}

impl LinkState {
    fn push(&mut self, input: StorageInput) {
        self.requests.push_back(input);
        self.socket.take().into_iter().for_each(Waker::wake);
    }

    fn may_receive(&mut self) -> bool {
        let transfers = &self.transfers;
        self.full.retain(|id| transfers.get(id).is_some_and(Transfer::is_full));
        self.full.is_empty()
    }

    /// Has the session logged out once the host is gone and no transfer is left.
    fn end_when_empty(&mut self) {
        if self.is_host_gone && self.transfers.is_empty() {
            self.push(StorageInput::LogOut);
        }
    }
}

impl Transfer {
    /// True while a further segment may not fit. A READ whose data fits completely is never full,
    /// so its socket is read even while the READ waits for other parts.
    fn is_full(&self) -> bool {
        let next_bytes = self.missing_bytes.min(SEGMENT_BYTES_MAX as usize);
        next_bytes > 0 && self.in_flight.room_bytes() < next_bytes.max(SEGMENT_COUNTED_MIN)
    }

    fn wake(&mut self) {
        self.waker.take().into_iter().for_each(Waker::wake);
    }
}

#[cfg(test)]
mod tests {
    use super::super::shares::StorageShares;
    use super::*;
    use lunar_net::OwnerId;
    use std::sync::Weak;

    fn read(link: &StorageLink, bytes: u32) -> TaskId {
        link.set_phase(LinkPhase::Up);
        link.begin(bytes, Some(&BufferPool::default()), StorageInput::Abort).unwrap()
    }

    /// Takes segments of these lengths until the socket may not be read. Returns their number.
    fn receive(link: &StorageLink, id: TaskId, segments: impl Iterator<Item = u32>) -> usize {
        let mut count = 0;
        for bytes in segments {
            if !link.may_receive() {
                break;
            }
            let (buffer, in_flight) = link.begin_segment(id, bytes).unwrap();
            link.data_in(id, in_flight.attach(buffer).into());
            count += 1;
        }
        count
    }

    /// Fault: only the bytes of a segment counted, so a storage that sent single bytes to a host
    /// that took none made the relay hold 4 GiB for a READ of 512 KiB.
    #[test]
    fn short_segments_count_with_their_buffers() {
        let link = StorageLink::new(StorageAvoidance::default());
        let id = read(&link, COMMAND_BYTES_MAX as u32);
        let count = receive(&link, id, std::iter::repeat_n(1, COMMAND_BYTES_MAX));
        assert!((100..=130).contains(&count), "{count} segments");
    }

    /// Fault: READs that were aborted at once did not count while the storage still had them, so a
    /// host that aborted all of its READs had any number of them there.
    #[test]
    fn aborted_commands_count_until_they_are_settled() {
        let link = StorageLink::new(StorageAvoidance::default());
        link.set_phase(LinkPhase::Up);
        let share = StorageShares::default().share(&Weak::new(), OwnerId(1));
        let begin = || share.begin().filter(|_| link.has_room(512));
        let mut ids = Vec::new();
        while let Some(command) = begin() {
            let id = read(&link, 512);
            link.end(id, Some(command));
            ids.push(id);
            assert!(ids.len() <= LINK_COMMANDS_MAX);
        }
        assert_eq!(ids.len(), LINK_COMMANDS_MAX);
        assert!(!link.has_room(512), "the connection counts them, not only the owner's share");
        link.settle(ids[0]);
        assert!(link.has_room(512));
    }

    /// Goal: a READ whose data fits is received to its end, also with a short last segment.
    #[test]
    fn data_that_fits_is_received() {
        for first in [8 << 10, 65_100, SEGMENT_BYTES_MAX] {
            let link = StorageLink::new(StorageAvoidance::default());
            let id = read(&link, COMMAND_BYTES_MAX as u32);
            let (all, rest) = (COMMAND_BYTES_MAX as u32 / first, COMMAND_BYTES_MAX as u32 % first);
            let last = (rest > 0).then_some(rest);
            let segments = std::iter::repeat_n(first, all as usize).chain(last);
            let expected = all as usize + usize::from(rest > 0);
            assert_eq!(receive(&link, id, segments), expected);
            assert!(link.may_receive(), "the data is complete");
        }
    }
}
