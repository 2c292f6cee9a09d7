//! A session with a storage target in which commands are passed on: a state machine without I/O.
//!
//! The protocol machine of the initiator role checks the tags, numbers, offsets and lengths that
//! the storage sends. This machine begins the session, keeps the mapping table, and determines the
//! results of the commands.

use super::mapping::{MappingTable, TransferDirection};
use super::setup::{Setup, SetupProgress, is_unit_attention};
use super::{BURST_BYTES_MAX, OUTSTANDING_R2T_MAX, SEGMENT_BYTES_MAX};
use bytes::Bytes;
use lunar_block::BlockRange;
use lunar_iscsi::connection::initiator::{
    CloseReason, Command, CommandResult, ConnectionOptions, InitiatorConnection, Input, Management,
    Output, RequestFailure, Residual, StreamingCommand,
};
use lunar_iscsi::framing::{DataDestination, Digests, Header, Pdu, SegmentDigest, TaskId};
use lunar_iscsi::login::initiator::Established;
use lunar_iscsi::pdu::{
    LogoutReason, ManagementFunction, ManagementResponse, ServiceResponse, TaskAttribute,
};
use lunar_iscsi::session::initiator::{
    InitiatorSession, Input as ToMachine, Output as FromMachine,
};
use lunar_scsi::cdb::sbc::Blocks16;
use lunar_scsi::commands::opcode;
use lunar_scsi::sense::{Sense, SenseKey, Status};
use lunar_target::{RelayFailure, RelayedPiece};
use lunar_wire::{Lun, Time};
use std::collections::VecDeque;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

/// The connection of the session.
const CID: u16 = 0;
/// Time that the storage has to answer ABORT TASK; after it the connection is dropped.
const ABORT_TIME: Duration = Duration::from_secs(30);
/// Time that the storage has to answer a command of the setup; after it the connection is dropped.
const SETUP_TIME: Duration = Duration::from_secs(30);
/// Maximum number of ABORT TASK functions at a time: targets reject more immediate requests than
/// they have room for.
const ABORTS_MAX: usize = 8;
/// FUA of READ and WRITE.
const FUA: u8 = 0x08;

/// The unit that a session is for.
pub trait StorageUnit: fmt::Debug {
    /// Its LUN.
    fn lun(&self) -> Lun;
    /// Returns whether the unit has this identity: the body of the device identification page, and
    /// the data of READ CAPACITY (16).
    fn is_same(&self, designators: &[u8], capacity: &[u8]) -> bool;
    /// Called when the storage reports the failure of a command that it had acknowledged.
    fn deferred_error(&self);
}

/// A command to pass on.
#[derive(Clone, Debug)]
pub struct RelayedCommand {
    /// Number of the command, never reused in a session.
    pub id: TaskId,
    /// Direction of its data.
    pub direction: TransferDirection,
    /// The blocks.
    pub range: BlockRange,
    /// Length of the data.
    pub bytes: u32,
    /// True to bypass volatile caches.
    pub fua: bool,
    /// The beginning of the data of a WRITE, as far as it has arrived.
    pub prefix: RelayedPiece,
}

/// Input of a session.
#[derive(Debug)]
pub enum StorageInput {
    /// A header of the storage.
    Header(Header),
    /// A header with a wrong digest.
    HeaderDigestError,
    /// The data segment of the last header is complete. `data` is the data of a segment for the
    /// session itself, otherwise empty.
    Payload {
        /// The data.
        data: Bytes,
        /// Result of the check of the data digest.
        digest: SegmentDigest,
    },
    /// Pass a command on. Answered by exactly one [`StorageOutput::End`], unless it is aborted.
    Begin(RelayedCommand),
    /// Data of a WRITE that was asked for: the first part of the oldest range not given yet.
    DataOut {
        /// The command.
        id: TaskId,
        /// Position of the data.
        offset_bytes: u32,
        /// The data.
        piece: RelayedPiece,
    },
    /// Abort a command whose holder was dropped. Answered by [`StorageOutput::Settled`].
    Abort(TaskId),
    /// Log out.
    LogOut,
    /// The deadline has passed.
    Deadline,
    /// The storage has closed the connection, or the socket failed.
    PeerClosed,
}

/// Destination of a data segment.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum IncomingDestination {
    /// The session itself: the data is given with [`StorageInput::Payload`].
    Session,
    /// A piece of data-in of this command.
    Command(TaskId),
    /// The data is discarded.
    Discarded,
}

/// Output of a session.
#[derive(Debug)]
pub enum StorageOutput {
    /// Send this PDU.
    Send(Pdu),
    /// Send a part of an open PDU.
    SendData {
        /// Initiator Task Tag of the PDU.
        initiator_task_tag: u32,
        /// The part.
        data: Bytes,
        /// With the last part: the digest to send.
        digest: Option<u32>,
    },
    /// Destination of the data segment of the header.
    Receive(IncomingDestination),
    /// Enable these digests.
    FullFeature(Digests),
    /// Commands can be passed on from now on (`true`), or no longer (`false`).
    Up(bool),
    /// The data segment received last has passed the check of its digest.
    DataIn {
        /// The command.
        id: TaskId,
        /// Position of the segment in the data of the command: segments follow each other.
        offset_bytes: u32,
        /// Length of the segment.
        bytes: u32,
        /// Its digest, if data digests are in use.
        digest: Option<u32>,
    },
    /// The storage asks for data of a WRITE. The ranges of a command follow each other.
    Wants {
        /// The command.
        id: TaskId,
        /// Position of the range.
        offset_bytes: u32,
        /// Length of the range.
        bytes: u32,
    },
    /// A command has ended: it was executed completely, or not.
    End {
        /// The command.
        id: TaskId,
        /// `Ok`: the storage answered GOOD, and all data has moved.
        result: Result<(), RelayFailure>,
    },
    /// A command can have no further effect: it was answered, or its abort was. Follows the end of
    /// each command, unless the session was lost.
    Settled(TaskId),
    /// Nothing more will be sent. Commands that were not settled are settled by the login of a
    /// session that replaces this one.
    Close(CloseReason),
}

/// A session with a storage.
#[derive(Debug)]
pub struct StorageSession {
    connection: InitiatorConnection,
    session: InitiatorSession,
    pending_inputs: VecDeque<Input>,
    outputs: VecDeque<StorageOutput>,
    unit: Arc<dyn StorageUnit>,
    table: MappingTable,
    phase: SessionPhase,
    setup: Setup,
    /// Task of the current command of the setup.
    setup_task: Option<TaskId>,
    /// Time by which that command must be answered.
    setup_until: Option<Time>,
    /// Data of the segment of the setup that has arrived and is being checked.
    setup_data: Bytes,
    /// True while a segment arrives for the setup.
    is_setup_segment: bool,
    /// Commands that ended with the connection, until the reason is known.
    lost: Vec<TaskId>,
    /// Aborted commands for which no ABORT TASK was sent.
    waiting_aborts: VecDeque<TaskId>,
    /// Number of ABORT TASK functions without an answer.
    open_aborts: usize,
    next_own: u64,
    deadline: Option<Time>,
    /// Maximum time for which a command may wait for the storage.
    command_time: Option<Duration>,
    /// Time of the next check for late commands: not after the time at which the first one becomes
    /// late.
    next_late_check: Option<Time>,
    established: Option<Box<Established>>,
    /// True if the session is to be logged out.
    is_logout_requested: bool,
    reset: UnitReset,
}

/// LOGICAL UNIT RESET of a session.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum UnitReset {
    /// Not to be sent.
    Never,
    /// To be sent when the unit was checked.
    Planned,
    /// Sent, with this number.
    Sent(TaskId),
    /// Answered.
    Done,
}

/// Phase of a session.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum SessionPhase {
    LoggingIn,
    /// The unit is being checked: no command is passed on.
    Checking,
    Up,
    /// No further command is passed on; the session is logged out when all commands have ended.
    Draining,
    LoggedOut,
    Closed,
}

/// First number of the session's own requests; those of commands are below.
const OWN_IDS: u64 = 1 << 63;

impl StorageSession {
    /// Begins a session: its outputs are the Login Request. `options` are made with the numbers of
    /// the connection that `session` has opened.
    pub fn new(
        now: Time,
        unit: Arc<dyn StorageUnit>,
        session: InitiatorSession,
        mut options: ConnectionOptions,
    ) -> Self {
        let offer = &mut options.login.offer;
        offer.max_connections = 1;
        let segment_bytes_max = &mut offer.max_recv_data_segment_bytes;
        *segment_bytes_max = SEGMENT_BYTES_MAX.min(*segment_bytes_max);
        offer.data_pdu_in_order = true;
        offer.data_sequence_in_order = true;
        offer.error_recovery_level = 0;
        offer.max_burst_bytes = BURST_BYTES_MAX;
        offer.max_outstanding_r2t = OUTSTANDING_R2T_MAX;
        let mut new = Self {
            connection: InitiatorConnection::new(now, options),
            session,
            pending_inputs: VecDeque::new(),
            outputs: VecDeque::new(),
            unit,
            table: MappingTable::default(),
            phase: SessionPhase::LoggingIn,
            setup: Setup::new(),
            setup_task: None,
            setup_until: None,
            setup_data: Bytes::new(),
            is_setup_segment: false,
            lost: Vec::new(),
            waiting_aborts: VecDeque::new(),
            open_aborts: 0,
            next_own: OWN_IDS,
            deadline: None,
            command_time: None,
            next_late_check: None,
            established: None,
            is_logout_requested: false,
            reset: UnitReset::Never,
        };
        new.handle_outputs(now);
        new
    }

    /// Sets the time after which a command ends if the storage sends no data, no request for data
    /// and no response for it. `None`, the initial value, means no limit.
    pub fn limit_commands(&mut self, command_time: Option<Duration>) {
        self.command_time = command_time;
    }

    /// Called when the socket of the storage is read again after a pause.
    pub fn resumed(&mut self, now: Time) {
        self.table.restart(now);
        self.setup_until = self.setup_task.map(|_| now.after(SETUP_TIME));
    }

    /// Makes this a session that only resets the unit, after a check of it: all commands of the
    /// unit end, those of other sessions, too. To be called before the first input.
    pub fn reset_unit(&mut self) {
        self.reset = UnitReset::Planned;
    }

    /// True if the storage has reset the unit.
    pub fn has_reset_unit(&self) -> bool {
        self.reset == UnitReset::Done
    }

    /// Returns the next output.
    pub fn poll(&mut self) -> Option<StorageOutput> {
        self.outputs.pop_front()
    }

    /// Time at which [`StorageInput::Deadline`] is due.
    pub fn deadline(&self) -> Option<Time> {
        let aborted = self.table.first_abort().map(|at| at.after(ABORT_TIME));
        let times = [self.deadline, aborted, self.next_late_check, self.setup_until];
        times.into_iter().flatten().min()
    }

    /// True if commands are passed on.
    pub fn is_up(&self) -> bool {
        self.phase == SessionPhase::Up
    }

    /// True when the connection is to be closed.
    pub fn is_closed(&self) -> bool {
        self.phase == SessionPhase::Closed
    }

    /// Number of commands that the storage has not answered.
    pub fn commands(&self) -> usize {
        self.table.len()
    }

    /// The result of the login; `None` before it is complete.
    pub fn established(&self) -> Option<&Established> {
        self.established.as_deref()
    }

    /// Handles an input.
    pub fn handle(&mut self, now: Time, input: StorageInput) {
        match input {
            StorageInput::Header(header) => self.feed(now, Input::Header(header)),
            StorageInput::HeaderDigestError => self.feed(now, Input::HeaderDigestError),
            StorageInput::Payload { mut data, digest } => {
                if std::mem::take(&mut self.is_setup_segment) {
                    self.setup_data = std::mem::take(&mut data);
                }
                self.feed(now, Input::Payload { data, digest });
            }
            StorageInput::Begin(command) => self.begin(now, command),
            StorageInput::DataOut { id, offset_bytes, piece: RelayedPiece { data, digest } } => {
                let bytes = u32::try_from(data.len()).unwrap_or(u32::MAX);
                if let Some(entry) = self.table.active(id) {
                    entry.moved_bytes = entry.moved_bytes.saturating_add(bytes);
                    entry.progressed(now);
                    self.feed(now, Input::DataOut { id, offset_bytes, data, digest });
                }
            }
            StorageInput::Abort(id) => self.abort(now, id),
            StorageInput::LogOut => {
                self.is_logout_requested = true;
                if matches!(self.phase, SessionPhase::Checking | SessionPhase::Up) {
                    self.set_phase(SessionPhase::Draining);
                }
            }
            StorageInput::Deadline => self.elapsed(now),
            StorageInput::PeerClosed => self.feed(now, Input::PeerClosed),
        }
        self.log_out_when_drained(now);
    }

    fn elapsed(&mut self, now: Time) {
        let is_overdue = |at: Time| at.after(ABORT_TIME) <= now;
        let is_setup_overdue = self.setup_until.is_some_and(|until| until <= now);
        if is_setup_overdue || self.table.first_abort().is_some_and(is_overdue) {
            return self.feed(now, Input::PeerClosed);
        }
        if self.next_late_check.is_some_and(|at| at <= now) {
            self.end_late_commands(now);
        }
        if self.deadline.is_some_and(|deadline| deadline <= now) {
            self.feed(now, Input::Deadline);
        }
    }

    /// Ends the commands that the storage has not continued in time, and aborts them there.
    fn end_late_commands(&mut self, now: Time) {
        self.next_late_check = None;
        let Some(time) = self.command_time else { return };
        let late: Vec<_> = self
            .table
            .waiting_for_storage()
            .filter(|(_, since)| since.after(time) <= now)
            .collect();
        for (id, _) in late {
            let result = Err(RelayFailure::NotExecuted);
            self.outputs.push_back(StorageOutput::End { id, result });
            self.abort(now, id);
        }
        // The time limit of a command that waits for data restarts when the data arrives, not
        // before now.
        let active = !self.table.is_empty();
        let first = self.table.waiting_for_storage().map(|(_, since)| since).min().unwrap_or(now);
        self.next_late_check = active.then(|| first.after(time));
    }

    fn begin(&mut self, now: Time, command: RelayedCommand) {
        let RelayedCommand { id, direction, range, bytes, fua, prefix } = command;
        if !self.is_up() {
            let result = Err(RelayFailure::NotExecuted);
            self.outputs.push_back(StorageOutput::End { id, result });
            return self.outputs.push_back(StorageOutput::Settled(id));
        }
        let RelayedPiece { data: prefix, digest: prefix_digest } = prefix;
        let prefix_bytes = u32::try_from(prefix.len()).unwrap_or(u32::MAX);
        self.table.insert(id, direction, bytes, prefix_bytes, now);
        if self.next_late_check.is_none() {
            self.next_late_check = self.command_time.map(|time| now.after(time));
        }
        let (name, data_out_bytes, data_in_bytes_max) = match direction {
            TransferDirection::In => (opcode("READ (16)"), 0, bytes),
            TransferDirection::Out => (opcode("WRITE (16)"), bytes, 0),
        };
        let (flags, lba) = (if fua { FUA } else { 0 }, range.lba);
        // The parts of a transfer fit the limits of the storage, far below 2^32 blocks.
        let count = range.count as u32;
        let cdb = Blocks16 { opcode: name, flags, lba, count, group: 0, control: 0 };
        let command = Command {
            id,
            lun: self.unit.lun(),
            cdb: cdb.encode().into(),
            attribute: TaskAttribute::SIMPLE,
            priority: 0,
            data_out: prefix,
            data_in_bytes_max,
            immediate: false,
        };
        let command = StreamingCommand { command, data_out_bytes, prefix_digest };
        self.feed(now, Input::Stream(Box::new(command)));
    }

    fn abort(&mut self, now: Time, id: TaskId) {
        if self.table.abort(id, now) {
            self.waiting_aborts.push_back(id);
            self.send_aborts();
            self.feed_pending_inputs(now);
        }
    }

    /// Sends ABORT TASK for commands that have not ended, as many as may be open.
    fn send_aborts(&mut self) {
        while self.open_aborts < ABORTS_MAX
            && let Some(id) = self.waiting_aborts.pop_front()
        {
            if !self.table.contains(id) {
                continue;
            }
            self.open_aborts += 1;
            let management = Management {
                id: self.own_id(),
                function: ManagementFunction::ABORT_TASK,
                lun: self.unit.lun(),
                referenced: Some(id),
            };
            self.pending_inputs.push_back(Input::Manage(management));
        }
    }

    fn send_reset(&mut self) {
        let id = self.own_id();
        self.reset = UnitReset::Sent(id);
        self.set_phase(SessionPhase::Draining);
        self.pending_inputs.push_back(Input::Manage(Management {
            id,
            function: ManagementFunction::LOGICAL_UNIT_RESET,
            lun: self.unit.lun(),
            referenced: None,
        }));
    }

    fn own_id(&mut self) -> TaskId {
        self.next_own += 1;
        TaskId(self.next_own)
    }

    fn set_phase(&mut self, phase: SessionPhase) {
        let was_up = self.is_up();
        self.phase = phase;
        if was_up != self.is_up() {
            self.outputs.push_back(StorageOutput::Up(self.is_up()));
        }
    }

    fn log_out_when_drained(&mut self, now: Time) {
        let is_resetting = matches!(self.reset, UnitReset::Sent(_));
        let is_idle = self.table.is_empty() && self.setup_task.is_none() && !is_resetting;
        if self.phase == SessionPhase::Draining && is_idle {
            self.set_phase(SessionPhase::LoggedOut);
            let logout = Input::Logout { reason: LogoutReason::CLOSE_SESSION, cid: None };
            self.feed(now, logout);
        }
    }

    fn feed_pending_inputs(&mut self, now: Time) {
        if let Some(input) = self.pending_inputs.pop_front() {
            self.feed(now, input);
        }
    }

    fn feed(&mut self, now: Time, input: Input) {
        if self.is_closed() {
            return;
        }
        self.connection.handle(now, input);
        self.handle_outputs(now);
    }

    fn handle_outputs(&mut self, now: Time) {
        loop {
            match self.connection.poll() {
                Output::Wait(deadline) => {
                    self.deadline = deadline;
                    match self.pending_inputs.pop_front() {
                        Some(input) => self.connection.handle(now, input),
                        None => return,
                    }
                }
                output => self.handle_output(now, output),
            }
        }
    }

    fn handle_output(&mut self, now: Time, output: Output) {
        match output {
            Output::Send(pdu) => self.outputs.push_back(StorageOutput::Send(pdu)),
            Output::SendData { initiator_task_tag, data, digest } => {
                self.outputs.push_back(StorageOutput::SendData {
                    initiator_task_tag,
                    data,
                    digest,
                });
            }
            Output::Receive(destination) => self.receive(destination),
            Output::Wants { id, offset_bytes, bytes } => {
                if let Some(entry) = self.table.active(id) {
                    entry.wanted_bytes = entry.wanted_bytes.saturating_add(bytes);
                    entry.progressed(now);
                    self.outputs.push_back(StorageOutput::Wants { id, offset_bytes, bytes });
                }
            }
            Output::DataIn { id, offset_bytes, bytes, digest } => {
                if self.setup_task == Some(id) {
                    self.setup.data_in(offset_bytes, &std::mem::take(&mut self.setup_data));
                } else if let Some(entry) = self.table.active(id) {
                    entry.moved_bytes = entry.moved_bytes.saturating_add(bytes);
                    entry.progressed(now);
                    let digest = digest.value();
                    let data_in = StorageOutput::DataIn { id, offset_bytes, bytes, digest };
                    self.outputs.push_back(data_in);
                }
            }
            Output::FullFeature(parameters) => {
                self.outputs.push_back(StorageOutput::FullFeature(parameters.digests));
            }
            Output::LoggedIn(established) => self.logged_in(now, established),
            Output::ToSession(message) => {
                self.session.handle(ToMachine::Connection(CID, message));
                while let Some(output) = self.session.poll() {
                    if let FromMachine::ToConnection(_, message) = output {
                        self.pending_inputs.push_back(Input::Session(message));
                    }
                }
            }
            Output::Completed { id, result } => self.completed(now, id, result),
            Output::Managed { id, result, .. } => self.managed(id, &result),
            // All events ask for a logout, or announce the end.
            Output::Event(_) if self.phase != SessionPhase::LoggedOut => {
                self.set_phase(SessionPhase::Draining);
            }
            Output::Close(reason) => self.close(reason),
            Output::Event(_)
            | Output::Pong { .. }
            | Output::Targets { .. }
            | Output::Text { .. }
            | Output::LoggedOut { .. }
            | Output::Wait(_) => {}
        }
    }

    fn receive(&mut self, destination: DataDestination) {
        self.is_setup_segment = false;
        let destination = match destination {
            DataDestination::Control => IncomingDestination::Session,
            DataDestination::Stream { task, .. } if self.setup_task == Some(task) => {
                self.is_setup_segment = true;
                IncomingDestination::Session
            }
            DataDestination::Stream { task, .. } if self.table.active(task).is_some() => {
                IncomingDestination::Command(task)
            }
            _ => IncomingDestination::Discarded,
        };
        self.outputs.push_back(StorageOutput::Receive(destination));
    }

    fn logged_in(&mut self, now: Time, established: Box<Established>) {
        let session = &established.session;
        let fits = !self.is_logout_requested
            && session.data_pdu_in_order
            && session.data_sequence_in_order
            && session.error_recovery_level == 0;
        self.established = Some(established);
        if fits {
            self.check_unit(now);
        } else {
            self.set_phase(SessionPhase::Draining);
        }
    }

    /// Begins to check the unit. No command is passed on meanwhile.
    fn check_unit(&mut self, now: Time) {
        self.set_phase(SessionPhase::Checking);
        self.setup = Setup::new();
        if self.setup_task.is_none() {
            self.send_setup(now);
        }
    }

    fn send_setup(&mut self, now: Time) {
        let (cdb, data_in_bytes_max) = self.setup.command();
        let id = self.own_id();
        self.setup_task = Some(id);
        self.setup_until = Some(now.after(SETUP_TIME));
        let command = Command {
            id,
            lun: self.unit.lun(),
            cdb: cdb.into(),
            attribute: TaskAttribute::SIMPLE,
            priority: 0,
            data_out: Bytes::new(),
            data_in_bytes_max,
            immediate: false,
        };
        let command = StreamingCommand { command, data_out_bytes: 0, prefix_digest: None };
        self.pending_inputs.push_back(Input::Stream(Box::new(command)));
    }

    fn setup_completed(&mut self, now: Time, result: Result<CommandResult, RequestFailure>) {
        (self.setup_task, self.setup_until) = (None, None);
        if self.phase != SessionPhase::Checking {
            return;
        }
        match self.setup.completed(result) {
            SetupProgress::Next => self.send_setup(now),
            SetupProgress::Known(designators, capacity)
                if self.unit.is_same(&designators, &capacity) =>
            {
                match self.reset {
                    UnitReset::Never => self.set_phase(SessionPhase::Up),
                    _ => self.send_reset(),
                }
            }
            SetupProgress::Known(..) | SetupProgress::Failed => {
                self.set_phase(SessionPhase::Draining);
            }
        }
    }

    fn completed(&mut self, now: Time, id: TaskId, result: Result<CommandResult, RequestFailure>) {
        if self.setup_task == Some(id) {
            return self.setup_completed(now, result);
        }
        if let Ok(result) = &result {
            self.note_sense(now, result);
        }
        if let Err(RequestFailure::Lost | RequestFailure::LoggedOut) = result {
            return self.lost.push(id);
        }
        let Some(entry) = self.table.remove(id) else { return };
        if entry.aborted_at.is_none() {
            let is_whole = entry.moved_bytes == entry.bytes;
            let result = match result {
                Ok(result) if is_whole && is_good(&result) => Ok(()),
                _ => Err(RelayFailure::NotExecuted),
            };
            self.outputs.push_back(StorageOutput::End { id, result });
        }
        self.outputs.push_back(StorageOutput::Settled(id));
    }

    /// A unit attention may mean that the LUN now leads to another unit; a deferred error reports
    /// the failure of a write that was acknowledged.
    fn note_sense(&mut self, now: Time, result: &CommandResult) {
        let is_check = Status(result.status) == Status::CHECK_CONDITION;
        let is_recovered = || {
            Sense::decode(&result.sense).is_some_and(|sense| sense.key == SenseKey::RECOVERED_ERROR)
        };
        if is_check && Sense::is_deferred(&result.sense) && !is_recovered() {
            self.unit.deferred_error();
        }
        if is_unit_attention(result) && self.is_up() {
            self.check_unit(now);
        }
    }

    /// If the storage does not execute ABORT TASK, its commands remain without a holder: the login
    /// of another session ends them.
    fn managed(&mut self, id: TaskId, result: &Result<ManagementResponse, RequestFailure>) {
        if self.reset == UnitReset::Sent(id) {
            let is_done = *result == Ok(ManagementResponse::FUNCTION_COMPLETE);
            self.reset = if is_done { UnitReset::Done } else { UnitReset::Never };
            return;
        }
        let is_answer = matches!(
            *result,
            Ok(ManagementResponse::FUNCTION_COMPLETE | ManagementResponse::TASK_DOES_NOT_EXIST)
        );
        if !is_answer && !self.is_closed() {
            self.pending_inputs.push_back(Input::PeerClosed);
        }
        self.open_aborts = self.open_aborts.saturating_sub(1);
        self.send_aborts();
    }

    fn close(&mut self, reason: CloseReason) {
        let failure = match reason {
            CloseReason::Violation(_) => RelayFailure::Violated,
            _ => RelayFailure::Lost,
        };
        self.set_phase(SessionPhase::Closed);
        for id in std::mem::take(&mut self.lost) {
            let entry = self.table.remove(id);
            if entry.is_some_and(|entry| entry.aborted_at.is_none()) {
                self.outputs.push_back(StorageOutput::End { id, result: Err(failure) });
            }
        }
        self.outputs.push_back(StorageOutput::Close(reason));
    }
}

/// True for GOOD without a residual.
fn is_good(result: &CommandResult) -> bool {
    result.response == ServiceResponse::COMMAND_COMPLETED
        && Status(result.status) == Status::GOOD
        && result.residual == Residual::None
        && result.read_residual == Residual::None
}
