//! [`PassThrough`]: a host and a storage target, and between them a target machine and an initiator
//! machine back to back, which pass commands and their data on in pieces.
//!
//! Nothing is collected: of a task, the relay holds the data that came with its command, data that
//! came unsolicited, and the segment that is arriving. It stops reading from one side while more
//! than [`WAITING_BYTES_MAX`] wait for the other, and asserts that what it holds stays within
//! [`TASK_BYTES_MAX`] and [`RELAY_BYTES_MAX`].
//!
//! A segment is passed on as a whole once it is checked, or as it arrives (*cut through*). Data
//! that is not checked is sent on with its own digest only, and its last part waits for the check.

use super::disk::refusal;
use super::host::BackEvent;
use super::pair::{Pair, PairOptions};
use super::rng::Rng;
use super::server::RelayedEvent;
use crate::connection::initiator::{
    Command, CommandResult, Input as Ask, Management, RequestFailure, Residual, StreamingCommand,
};
use crate::connection::target::{Input as Serve, Outcome, Task, TransferFault};
use crate::framing::{SegmentDigest, TaskId};
use crate::pdu::{ManagementFunction, TaskAttribute};
use alloc::boxed::Box;
use alloc::collections::{BTreeMap, VecDeque};
use alloc::vec::Vec;
use bytes::Bytes;
use core::time::Duration;
use lunar_wire::{Lun, Time};

/// Maximum MaxRecvDataSegmentLength of the relay, in both of its roles.
pub const SEGMENT_BYTES_MAX: u32 = 8192;
/// Maximum FirstBurstLength of the relay's target role.
pub const FIRST_BURST_BYTES_MAX: u32 = 8192;
/// Maximum number of commands of the host at a time.
pub const COMMANDS_MAX: u32 = 8;
/// Bytes that wait for one side, at which the relay stops reading from the other.
pub const WAITING_BYTES_MAX: usize = 16 << 10;
/// Maximum number of bytes that the relay reads at once.
pub const READ_BYTES_MAX: usize = 4 << 10;
/// Maximum data that the relay holds for one task: what came unsolicited, and a segment of each
/// direction.
pub const TASK_BYTES_MAX: usize = (FIRST_BURST_BYTES_MAX + 2 * SEGMENT_BYTES_MAX) as usize;
/// Headers, padding and digests of what one reading causes to be sent.
const HEADERS_BYTES_MAX: usize = 8 << 10;
/// Maximum number of bytes that the relay holds in all.
pub const RELAY_BYTES_MAX: usize = (COMMANDS_MAX * FIRST_BURST_BYTES_MAX) as usize
    + 2 * (WAITING_BYTES_MAX + SEGMENT_BYTES_MAX as usize + READ_BYTES_MAX + HEADERS_BYTES_MAX);

/// A host, a relay and a storage target.
#[derive(Debug)]
pub struct PassThrough {
    /// The host, and the relay's target role.
    pub front: Pair,
    /// The relay's initiator role, and the storage target.
    pub back: Pair,
    rng: Rng,
    relay: Relay,
    /// Side that is not read from for a number of steps, to make it the slower one.
    stall: Option<(Side, usize)>,
    /// The most that was held for one task, and in all.
    pub held_bytes: (usize, usize),
    /// Number of segments that were passed on as they arrived.
    pub cut_through_segments: usize,
    /// Side whose segments the relay damages in its memory after the check of their digests.
    pub damages_from: Option<Side>,
    /// Number of damaged segments.
    pub damaged_segments: usize,
}

/// One of the peers of the relay.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Side {
    /// The initiator that sends the commands.
    Host,
    /// The target that executes them.
    Storage,
}

/// State of the relay.
#[derive(Debug, Default)]
struct Relay {
    tasks: BTreeMap<TaskId, Relayed>,
    /// Segments that are arriving, from the host and from the storage target.
    arriving: [Option<Arriving>; 2],
}

/// A command that is passed on. Its id is the same on both sides.
#[derive(Debug, Default)]
struct Relayed {
    expected_out_bytes: u32,
    expected_in_bytes: u32,
    /// Length of the data that was sent on with the command.
    prefix_bytes: usize,
    /// Checked data-out that the storage target has not asked for, with the digests of whole
    /// segments.
    unasked: VecDeque<(u32, Bytes, Option<u32>)>,
    /// Ranges that the storage target asked for and that were not given: start and end.
    wanted: VecDeque<(u32, u32)>,
    /// True once the command was given to the initiator machine.
    is_sent: bool,
    end: End,
}

/// Way in which a task ends.
#[derive(Clone, Copy, Debug, Default)]
enum End {
    #[default]
    Result,
    Aborted,
    Failed(TransferFault),
}

/// A data segment that is arriving.
#[derive(Debug)]
struct Arriving {
    task: TaskId,
    offset_bytes: u32,
    segment_bytes: u32,
    /// Bytes that were not passed on.
    held: Vec<u8>,
    received_bytes: u32,
    is_cut_through: bool,
}

impl PassThrough {
    /// The only link of each pair.
    const LINK: usize = 0;

    /// Creates the three, logged in. `front` and `back` are the options of both sides; lengths are
    /// cut to the limits of the relay.
    pub fn new(seed: u64, mut front: PairOptions, mut back: PairOptions) -> Self {
        front.session_limits.window_commands =
            front.session_limits.window_commands.min(COMMANDS_MAX);
        for offer in [&mut front.target, &mut back.initiator] {
            let segment = &mut offer.max_recv_data_segment_bytes;
            *segment = (*segment).min(SEGMENT_BYTES_MAX);
        }
        let first_burst = &mut front.target.first_burst_bytes;
        *first_burst = (*first_burst).min(FIRST_BURST_BYTES_MAX);
        // Data is given in the order of the R2Ts, and forwarded in this order.
        for offer in [&mut front.initiator, &mut back.initiator] {
            (offer.data_pdu_in_order, offer.data_sequence_in_order) = (true, true);
        }
        let mut front = Pair::new(seed, front);
        let mut back = Pair::new(seed ^ 0xbac, back);
        front.relay_target();
        front.login();
        back.login();
        back.relay_initiator(Self::LINK);
        (front.piece_bytes_max, back.piece_bytes_max) = (READ_BYTES_MAX, READ_BYTES_MAX);
        let rng = Rng::new(seed ^ 0x5e1a);
        let relay = Relay::default();
        Self {
            front,
            back,
            rng,
            relay,
            stall: None,
            held_bytes: (0, 0),
            cut_through_segments: 0,
            damages_from: None,
            damaged_segments: 0,
        }
    }

    /// Takes one random possible step. `false` if only a timer can cause further steps.
    pub fn step(&mut self) -> bool {
        self.stall = match self.stall {
            Some((side, steps)) => (steps > 0).then(|| (side, steps - 1)),
            None if self.rng.once_in(100) => {
                let side = *self.rng.pick(&[Side::Host, Side::Storage]);
                Some((side, 50 + self.rng.below(400)))
            }
            None => None,
        };
        self.hold();
        let front_first = self.rng.once_in(2);
        let mut stepped = if front_first { self.front.step() } else { self.back.step() };
        if !stepped {
            stepped = if front_first { self.back.step() } else { self.front.step() };
        }
        self.relay();
        self.check();
        // A stall alone does not end a run.
        stepped || self.stall.take().is_some()
    }

    /// Runs until nothing can happen any more while one side receives nothing.
    pub fn run_stalled(&mut self, side: Side) {
        loop {
            self.stall = Some((side, usize::MAX));
            if !self.step() || self.stall.is_none() {
                return;
            }
        }
    }

    /// Number of bytes that wait for the relay to read them from this side.
    pub fn unread_bytes(&self, side: Side) -> usize {
        match side {
            Side::Host => self.front.waiting_up(Self::LINK).0,
            Side::Storage => self.back.waiting_down(Self::LINK).0,
        }
    }

    /// Stops reading from a side for whose data the other one is too slow. An open PDU waits for
    /// the segment that is arriving, so that is read on.
    fn hold(&mut self) {
        let is_full = |(waiting, is_open): (usize, bool)| waiting >= WAITING_BYTES_MAX && !is_open;
        self.front.holds_up = is_full(self.back.waiting_up(Self::LINK));
        // Data of aborted commands is dropped, so it does not wait for a host that is gone.
        let sends = self.relay.tasks.values().any(|relayed| matches!(relayed.end, End::Result));
        self.back.holds_down = sends && is_full(self.front.waiting_down(Self::LINK));
        self.front.holds_down = matches!(self.stall, Some((Side::Host, _)));
        self.back.holds_up = matches!(self.stall, Some((Side::Storage, _)));
    }

    /// Runs until only a timer can cause further steps.
    pub fn run(&mut self) {
        /// More steps than any test needs.
        const STEPS_MAX: u32 = 5_000_000;
        for _ in 0..STEPS_MAX {
            if !self.step() {
                return;
            }
        }
        panic!("a run without end");
    }

    /// Advances the time: delivers every deadline on the way, and runs its consequences.
    pub fn pass(&mut self, span: Duration) {
        let end = self.front.now().max(self.back.now()).after(span);
        self.run();
        let next = |front: &Pair, back: &Pair| {
            let deadlines = [front.next_deadline(), back.next_deadline()];
            deadlines.into_iter().flatten().min().filter(|next| *next <= end)
        };
        while let Some(next) = next(&self.front, &self.back) {
            self.deliver_deadlines(next);
            self.run();
        }
        self.deliver_deadlines(end);
    }

    fn deliver_deadlines(&mut self, now: Time) {
        self.front.deliver_deadlines(now);
        self.back.deliver_deadlines(now);
        self.relay();
    }

    /// Asserts that nothing is left on any side.
    ///
    /// # Panics
    /// If anything is left.
    pub fn assert_nothing_left(&self) {
        self.front.assert_nothing_left();
        self.back.assert_nothing_left();
        assert!(self.relay.tasks.is_empty(), "{:?}", self.relay);
    }

    /// Handles everything that both machines have reported.
    fn relay(&mut self) {
        loop {
            if let Some(event) = self.front.next_front_event() {
                self.on_front(event);
            } else if let Some(event) = self.back.next_back_event(Self::LINK) {
                self.on_back(event);
            } else {
                return;
            }
        }
    }

    fn on_front(&mut self, event: RelayedEvent) {
        match event {
            RelayedEvent::Start(task) => self.start(&task),
            RelayedEvent::Segment { task, offset_bytes, bytes } => {
                self.begin_segment(Side::Host, task, offset_bytes, bytes);
            }
            RelayedEvent::Bytes(bytes) => self.arrive(Side::Host, &bytes),
            RelayedEvent::DataOut { task, offset_bytes, bytes, digest } => {
                self.checked(Side::Host, task, offset_bytes, bytes, digest);
            }
            RelayedEvent::Abort(task) => self.end(task, End::Aborted),
            RelayedEvent::Fail { task, fault } => self.end(task, End::Failed(fault)),
        }
    }

    fn on_back(&mut self, event: BackEvent) {
        match event {
            BackEvent::Wants { id, offset_bytes, bytes } => {
                let Some(relayed) = self.relay.tasks.get_mut(&id) else { return };
                relayed.wanted.push_back((offset_bytes, offset_bytes + bytes));
                self.serve(Serve::Wants { task: id, offset_bytes, bytes });
                self.give(id);
            }
            BackEvent::Segment { id, offset_bytes, bytes } => {
                self.begin_segment(Side::Storage, id, offset_bytes, bytes);
            }
            BackEvent::Bytes(bytes) => self.arrive(Side::Storage, &bytes),
            BackEvent::DataIn { id, offset_bytes, bytes, digest } => {
                self.checked(Side::Storage, id, offset_bytes, bytes, digest);
            }
            BackEvent::Completed { id, result } => self.completed(id, result),
        }
    }

    fn serve(&mut self, input: Serve) {
        self.front.handle_at_target(Self::LINK, input);
    }

    fn ask(&mut self, input: Ask) {
        self.back.ask(Self::LINK, input);
    }

    /// Passes a command on, with the data that came with it.
    fn start(&mut self, task: &Task) {
        let id = task.id;
        let relayed = Relayed {
            expected_out_bytes: task.expected_data_out_bytes(),
            expected_in_bytes: task.expected_data_in_bytes(),
            ..Relayed::default()
        };
        let expected_out_bytes = relayed.expected_out_bytes;
        self.relay.tasks.insert(id, relayed);
        let (mut prefix, mut digest) = (Bytes::new(), SegmentDigest::None);
        if expected_out_bytes > 0 {
            self.serve(Serve::Stream(id));
            if let Some(collected) = self.front.take_collected(id) {
                (prefix, digest) = collected;
                prefix = self.damaged(Side::Host, prefix, digest);
            }
        }
        let Some(relayed) = self.relay.tasks.get_mut(&id) else { return };
        (relayed.prefix_bytes, relayed.is_sent) = (prefix.len(), true);
        let command = Command {
            id,
            lun: Lun::new(1),
            cdb: (&*task.cdb).into(),
            attribute: TaskAttribute::SIMPLE,
            priority: 0,
            data_out: prefix,
            data_in_bytes_max: relayed.expected_in_bytes,
            immediate: false,
        };
        self.back.add_source(&command.data_out);
        let streaming = StreamingCommand {
            command,
            data_out_bytes: expected_out_bytes,
            prefix_digest: digest.value(),
        };
        self.ask(Ask::Stream(Box::new(streaming)));
    }

    /// Begins a segment. Passes it on as it arrives if the other side is ready for it.
    fn begin_segment(&mut self, from: Side, task: TaskId, offset_bytes: u32, bytes: u32) {
        let wants_it = match (from, self.relay.tasks.get_mut(&task)) {
            (_, None) => false,
            (Side::Storage, Some(_)) => true,
            (Side::Host, Some(relayed)) => {
                let fits = |(start, end): &(u32, u32)| {
                    *start == offset_bytes
                        && u64::from(offset_bytes) + u64::from(bytes) <= u64::from(*end)
                };
                relayed.unasked.is_empty() && relayed.wanted.front().is_some_and(fits)
            }
        };
        let may = wants_it && self.may_cut_through(from, bytes);
        let is_cut_through = may && self.rng.once_in(2);
        if is_cut_through {
            self.cut_through_segments += 1;
            match from {
                Side::Storage => self.serve(Serve::DataInBegin { task, offset_bytes, bytes }),
                Side::Host => {
                    self.take_wanted(task, bytes);
                    self.ask(Ask::DataOutBegin { id: task, offset_bytes, bytes });
                }
            }
        }
        self.relay.arriving[from as usize] = Some(Arriving {
            task,
            offset_bytes,
            segment_bytes: bytes,
            held: Vec::new(),
            received_bytes: 0,
            is_cut_through,
        });
    }

    /// True if data that is not checked may be sent on: the other side has no digests, or the
    /// digest of the segment is that of one PDU there, or there is nothing to check.
    fn may_cut_through(&self, from: Side, bytes: u32) -> bool {
        let (from, to) = match from {
            Side::Host => (&self.front, &self.back),
            Side::Storage => (&self.back, &self.front),
        };
        let (checked, checks) = (from.digests(Self::LINK).data, to.digests(Self::LINK).data);
        !checked || !checks || bytes <= to.relay_segment_bytes_max(Self::LINK)
    }

    fn arrive(&mut self, from: Side, bytes: &[u8]) {
        let Some(arriving) = &mut self.relay.arriving[from as usize] else { return };
        arriving.held.extend_from_slice(bytes);
        arriving.received_bytes += bytes.len() as u32;
        // The last part waits for the digest.
        if arriving.is_cut_through && arriving.received_bytes < arriving.segment_bytes {
            let (task, part) = (arriving.task, core::mem::take(&mut arriving.held));
            self.send_part(from, task, part.into(), None);
        }
    }

    fn send_part(&mut self, from: Side, task: TaskId, data: Bytes, digest: Option<u32>) {
        if !self.relay.tasks.contains_key(&task) {
            return;
        }
        match from {
            Side::Host => {
                self.back.add_source(&data);
                self.ask(Ask::DataOutPart { id: task, data, digest });
            }
            Side::Storage => {
                self.front.add_source(&data);
                self.serve(Serve::DataInPart { task, data, digest });
            }
        }
    }

    /// Passes a checked segment on, or the rest of it.
    fn checked(
        &mut self,
        from: Side,
        task: TaskId,
        offset_bytes: u32,
        bytes: u32,
        digest: SegmentDigest,
    ) {
        let arriving = self.relay.arriving[from as usize].take();
        let Some(arriving) = arriving.filter(|arriving| arriving.task == task) else {
            // Unsolicited data that was arriving in the buffer when the command was passed on.
            if let Some(data) = self.front.collected(task, offset_bytes, bytes) {
                self.add_unasked(task, offset_bytes, data, digest);
            }
            return;
        };
        assert_eq!((arriving.offset_bytes, arriving.segment_bytes), (offset_bytes, bytes));
        let data = Bytes::from(arriving.held);
        assert!(digest.is_ok(), "reported as checked");
        if arriving.is_cut_through {
            return self.send_part(from, task, data, digest.value());
        }
        match from {
            Side::Host => self.add_unasked(task, offset_bytes, data, digest),
            Side::Storage => {
                let data = self.damaged(from, data, digest);
                self.front.add_source(&data);
                let digest = digest.value();
                self.serve(Serve::DataIn { task, offset_bytes, data, digest });
            }
        }
    }

    /// Damages a segment in the memory of the relay, in a test that does so.
    fn damaged(&mut self, from: Side, data: Bytes, digest: SegmentDigest) -> Bytes {
        if self.damages_from != Some(from) || digest.value().is_none() || data.is_empty() {
            return data;
        }
        self.damaged_segments += 1;
        let mut damaged = data.to_vec();
        let at = self.rng.below(damaged.len());
        damaged[at] ^= 1 << self.rng.below(8);
        damaged.into()
    }

    fn add_unasked(&mut self, task: TaskId, offset_bytes: u32, data: Bytes, digest: SegmentDigest) {
        let data = self.damaged(Side::Host, data, digest);
        if let Some(relayed) = self.relay.tasks.get_mut(&task) {
            relayed.unasked.push_back((offset_bytes, data, digest.value()));
            self.give(task);
        }
    }

    /// Gives data to the storage target as far as it has asked for it.
    fn give(&mut self, task: TaskId) {
        while let Some(relayed) = self.relay.tasks.get_mut(&task)
            && let (Some((offset, data, digest)), Some((start, end))) =
                (relayed.unasked.front_mut(), relayed.wanted.front())
        {
            assert_eq!(offset, start, "data in the order of the requests");
            let offset_bytes = *offset;
            let piece = data.split_to(data.len().min((end - start) as usize));
            *offset += piece.len() as u32;
            // Taken: it is not that of the rest.
            let digest = digest.take().filter(|_| data.is_empty());
            if data.is_empty() {
                relayed.unasked.pop_front();
            }
            self.take_wanted(task, piece.len() as u32);
            self.back.add_source(&piece);
            self.ask(Ask::DataOut { id: task, offset_bytes, data: piece, digest });
        }
    }

    fn take_wanted(&mut self, task: TaskId, bytes: u32) {
        let Some(relayed) = self.relay.tasks.get_mut(&task) else { return };
        let Some((start, end)) = relayed.wanted.front_mut() else { return };
        *start += bytes;
        if start == end {
            relayed.wanted.pop_front();
        }
    }

    /// Aborts a command at the storage target; the host's machine is answered when it has ended.
    fn end(&mut self, task: TaskId, end: End) {
        self.front.forget_collected(task);
        let Some(relayed) = self.relay.tasks.get_mut(&task) else {
            // The task was never started.
            if let End::Failed(fault) = end {
                let (key, code) = fault.sense();
                self.serve(Serve::Failed { task, outcome: refusal(key, code) });
            }
            return;
        };
        relayed.end = end;
        if relayed.is_sent {
            let function = ManagementFunction::ABORT_TASK;
            let id = self.back.new_id_apart();
            let referenced = Some(task);
            self.ask(Ask::Manage(Management { id, function, lun: Lun::new(1), referenced }));
        }
    }

    /// Passes the result of a command on.
    fn completed(&mut self, task: TaskId, result: Result<CommandResult, RequestFailure>) {
        let Some(relayed) = self.relay.tasks.remove(&task) else { return };
        self.front.forget_collected(task);
        let input = match relayed.end {
            End::Aborted => Serve::Done { task, outcome: Outcome::default() },
            End::Failed(fault) => {
                let (key, code) = fault.sense();
                Serve::Failed { task, outcome: refusal(key, code) }
            }
            End::Result => {
                let outcome = match result {
                    Ok(result) => outcome(&relayed, result),
                    Err(_) => refusal(0x0b, 0x0000),
                };
                Serve::Done { task, outcome }
            }
        };
        self.serve(input);
    }

    /// Asserts that no more is held than the limits allow.
    fn check(&mut self) {
        let arriving = |task: TaskId| {
            let all = self.relay.arriving.iter().flatten().filter(move |held| held.task == task);
            all.map(|held| held.held.len()).sum::<usize>()
        };
        let (mut all, mut most) = (0, 0);
        for (task, relayed) in &self.relay.tasks {
            let unasked = relayed.unasked.iter().map(|(_, data, _)| data.len()).sum::<usize>();
            let held = relayed.prefix_bytes + unasked + arriving(*task);
            assert!(held <= TASK_BYTES_MAX, "{held} bytes of {task:?}");
            all += held;
            most = most.max(held);
        }
        all += self.front.waiting_down(Self::LINK).0 + self.back.waiting_up(Self::LINK).0;
        assert!(all <= RELAY_BYTES_MAX, "{all} bytes in all");
        self.held_bytes = (self.held_bytes.0.max(most), self.held_bytes.1.max(all));
    }
}

/// The outcome for the host, with the residuals of the storage target.
fn outcome(relayed: &Relayed, result: CommandResult) -> Outcome {
    let moved = |expected_bytes: u32, residual| match residual {
        Residual::None => expected_bytes,
        Residual::Underflow(bytes) => expected_bytes.saturating_sub(bytes),
        Residual::Overflow(bytes) => expected_bytes.saturating_add(bytes),
    };
    let in_residual =
        if relayed.expected_out_bytes > 0 { result.read_residual } else { result.residual };
    Outcome {
        status: result.status,
        status_qualifier: result.status_qualifier,
        sense: result.sense,
        data_in_bytes: moved(relayed.expected_in_bytes, in_residual),
        data_out_bytes: moved(relayed.expected_out_bytes, result.residual),
        ..Outcome::default()
    }
}
