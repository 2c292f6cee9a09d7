//! A hostile session: requests of all kinds with wrong tags, numbers and lengths, at a target
//! connection and its session.

use bytes::Bytes;
use lunar_iscsi::connection::target::{
    ConnectionLimits, Input, Outcome, Output, TargetConnection, TargetRecord, Task,
};
use lunar_iscsi::framing::{DataDestination, Header, SegmentDigest, TaskId};
use lunar_iscsi::login::{Admission, AdmissionDecision};
use lunar_iscsi::pdu::{Opcode, TAG_RESERVED};
use lunar_iscsi::session::target::{self as session, SessionLimits, TargetSession, ToSession};
use lunar_iscsi::text::Offer;
use lunar_wire::{SerialNumber, Time};
use std::collections::VecDeque;
use std::time::Duration;

const CID: u16 = 1;
const RECORD_BYTES: usize = 14;
/// The declared MaxRecvDataSegmentLength of the initiator: the default.
const SEGMENT_BYTES_MAX: usize = 8192;
const BURST_BYTES_MAX: u32 = 262_144;
/// Maximum data-in of the executor for a read, whatever the expected length.
const DATA_IN_BYTES_MAX: u32 = 40_000;

/// Runs an input. The first byte selects the negotiated keys. Records of fourteen bytes follow, one
/// per PDU: opcode, flags, LUN, tag, transfer tag, two for a length, CmdSN (difference), CDB,
/// referenced tag, bytes of data / 16, DataSN, index and new value of one header byte.
pub fn run(input: &[u8]) {
    let Some((choice, records)) = input.split_first() else { return };
    let mut fuzzed = FuzzedConnection::logged_in(*choice);
    for record in records.chunks_exact(RECORD_BYTES) {
        if fuzzed.closed {
            break;
        }
        fuzzed.request(record);
    }
    fuzzed.end();
}

/// A connection, its session, and an executor controlled by the CDB.
struct FuzzedConnection {
    connection: TargetConnection,
    session: Option<TargetSession>,
    inputs: VecDeque<Input>,
    now: Time,
    deadline: Option<Time>,
    cmd_sn: u32,
    /// Transfer tag of the last R2T.
    transfer_tag: u32,
    destination: Option<DataDestination>,
    /// Tasks that were started, neither done nor aborted.
    held: Vec<Task>,
    /// Open PDUs: Initiator Task Tag and missing bytes.
    open: Vec<(u32, usize)>,
    closed: bool,
    in_session: bool,
    ended: bool,
}

impl FuzzedConnection {
    fn logged_in(choice: u8) -> Self {
        let mut fuzzed = Self {
            connection: TargetConnection::new(ConnectionLimits::default(), SerialNumber(0)),
            session: None,
            inputs: VecDeque::new(),
            now: Time::from_nanos(1),
            deadline: None,
            cmd_sn: u32::MAX - 1,
            transfer_tag: TAG_RESERVED,
            destination: None,
            held: Vec::new(),
            open: Vec::new(),
            closed: false,
            in_session: false,
            ended: false,
        };
        let yes = |bit: u8| if choice & (1 << bit) != 0 { "Yes" } else { "No" };
        let mut text = format!(
            "InitiatorName=iqn.2026-01.example:i\0InitialR2T={}\0ImmediateData={}\0\
             MaxOutstandingR2T={}\0",
            yes(0),
            yes(1),
            1 + (choice >> 6)
        );
        text += match choice & 0x0c {
            0x0c => "SessionType=Discovery\0",
            0x08 => "TargetName=iqn.2026-01.example:t\0TaskReporting=ResponseFence\0",
            _ => "TargetName=iqn.2026-01.example:t\0",
        };
        let mut bhs = [0; 48];
        (bhs[0], bhs[1], bhs[8], bhs[13], bhs[21]) = (0x43, 0x87, 0x80, 1, 1);
        bhs[24..28].copy_from_slice(&fuzzed.cmd_sn.to_be_bytes());
        fuzzed.deliver(bhs, text.as_bytes());
        assert!(fuzzed.in_session && !fuzzed.closed, "a valid login succeeds");
        fuzzed
    }

    fn request(&mut self, record: &[u8]) {
        let [opcode, flags, lun, tag, transfer, high, low, sn, cdb, referenced, data, data_sn, ..] =
            *record
        else {
            return;
        };
        let length = u32::from(u16::from_be_bytes([high, low])) * 64;
        let mut bhs = [0; 48];
        (bhs[0], bhs[1], bhs[9]) = (opcode, flags, lun & 3);
        let mut put = |at: usize, number: u32| {
            bhs[at..at + 4].copy_from_slice(&number.to_be_bytes());
        };
        put(16, if tag == 0xff { TAG_RESERVED } else { u32::from(tag & 7) });
        let transfer_tag = match transfer {
            0 => self.transfer_tag,
            0xff => TAG_RESERVED,
            other => u32::from(other),
        };
        put(20, if opcode & 0x3f == 1 { length } else { transfer_tag });
        let difference = i32::from(i8::from_be_bytes([sn]));
        put(24, self.cmd_sn.wrapping_add_signed(difference));
        put(32, if opcode & 0x3f == 2 { u32::from(referenced) } else { u32::from(cdb) << 24 });
        put(36, u32::from(data_sn));
        put(40, length);
        if let Some(byte) = bhs.get_mut(usize::from(record[12])) {
            *byte = record[13];
        }
        if opcode & 0x40 == 0 && difference == 0 && opcode != 5 {
            self.cmd_sn = self.cmd_sn.wrapping_add(1);
        }
        self.deliver(bhs, &vec![cdb; usize::from(data) * 16]);
    }

    /// Delivers one PDU, header and payload.
    fn deliver(&mut self, mut bhs: [u8; 48], data: &[u8]) {
        bhs[4] = 0;
        let bytes = u32::try_from(data.len()).unwrap().to_be_bytes();
        bhs[5..8].copy_from_slice(&bytes[1..]);
        assert!(self.connection.can_receive(), "the driver and the session have answered");
        self.input(Input::Header(Header::new(bhs)));
        if data.is_empty() || self.closed {
            return;
        }
        let destination = self.destination.take().unwrap();
        let data = match destination {
            DataDestination::Control => Bytes::copy_from_slice(data),
            DataDestination::Task { offset_bytes, buffer_bytes, .. } => {
                let end = u64::from(offset_bytes) + data.len() as u64;
                assert!(end <= u64::from(buffer_bytes), "past the end of the buffer");
                assert!(buffer_bytes <= ConnectionLimits::default().data_out_bytes_max);
                Bytes::new()
            }
            DataDestination::Stream { task, offset_bytes } => {
                self.check_range(task, offset_bytes, data.len());
                Bytes::new()
            }
            DataDestination::Discard => Bytes::new(),
        };
        self.input(Input::Payload { data, digest: SegmentDigest::None });
    }

    fn input(&mut self, input: Input) {
        self.inputs.push_back(input);
        while let Some(input) = self.inputs.pop_front() {
            self.connection.handle(self.now, input);
            loop {
                match self.connection.poll() {
                    Output::Wait(deadline) => {
                        self.deadline = deadline;
                        break;
                    }
                    output => self.handle_output(output),
                }
            }
        }
    }

    fn handle_output(&mut self, output: Output) {
        assert!(!self.closed, "Close is the last output: {output:?}");
        match output {
            Output::Receive(to) => assert!(self.destination.replace(to).is_none()),
            Output::Send(pdu) => {
                assert!(pdu.data.len() + pdu.missing_bytes() <= SEGMENT_BYTES_MAX);
                let tag = pdu.initiator_task_tag();
                if pdu.missing_bytes() > 0 {
                    assert!(self.open.iter().all(|(open, _)| *open != tag), "two open PDUs");
                    self.open.push((tag, pdu.missing_bytes()));
                }
                if pdu.opcode() == Opcode::READY_TO_TRANSFER {
                    self.transfer_tag = number_at(&pdu.bhs, 20);
                    assert!((1..=BURST_BYTES_MAX).contains(&number_at(&pdu.bhs, 44)));
                }
            }
            Output::SendData { initiator_task_tag, data, .. } => {
                let at = self.open.iter().position(|(tag, _)| *tag == initiator_task_tag);
                let (_, missing) = &mut self.open[at.expect("a part without an open PDU")];
                assert!((1..=*missing).contains(&data.len()));
                *missing -= data.len();
                self.open.retain(|(_, missing)| *missing > 0);
            }
            Output::DataOut { task, offset_bytes, bytes, .. } => {
                self.check_range(task, offset_bytes, bytes as usize);
            }
            Output::Identify(_) => {
                let admission = Admission {
                    portal_group_tag: 1,
                    target_alias: None,
                    chap: None,
                    offer: Offer::target(),
                    entropy: [7; 33],
                };
                self.inputs
                    .push_back(Input::Identified(Box::new(AdmissionDecision::Admit(admission))));
            }
            Output::Join(join) => {
                let mut session = session_for(&join);
                session.handle(self.now, session::Input::Join(CID));
                self.inputs.push_back(Input::Joined(Ok(session.joined(CID))));
                self.session = Some(session);
                self.in_session = true;
                self.handle_session_outputs();
            }
            Output::ListTargets { .. } => {
                let name = "iqn.2026-01.example:t".to_owned();
                let record = TargetRecord { name, addresses: vec![("[::1]:3260".into(), 1)] };
                self.inputs.push_back(Input::Targets { records: vec![record; 400], more: true });
            }
            Output::ToSession(message) => {
                self.in_session &= message != ToSession::ConnectionClosed;
                self.handle_in_session(session::Input::Connection(CID, message));
            }
            Output::Start(task) => self.start(task),
            Output::DetachedTaskEnded(_) => panic!("ErrorRecoveryLevel 0 keeps no task"),
            Output::Run(id) | Output::Abort(id) => self.done(id, Outcome::default()),
            Output::Fail { task, .. } => {
                self.held.retain(|held| held.id != task);
                self.inputs.push_back(Input::Failed { task, outcome: Outcome::default() });
            }
            Output::FullFeature(_) | Output::Wait(_) => {}
            Output::Close(_) => {
                assert!(!self.in_session, "the session was informed before");
                self.closed = true;
            }
        }
    }

    /// Checks that a range of data-out is within that of its task.
    fn check_range(&self, task: TaskId, offset_bytes: u32, bytes: usize) {
        if let Some(task) = self.held.iter().find(|held| held.id == task) {
            let end = u64::from(offset_bytes) + bytes as u64;
            assert!(end <= u64::from(task.expected_data_out_bytes()), "past the end of the data");
        }
    }

    /// Starts a task whose data moves in pieces, right or wrong.
    fn start_pieces(&mut self, task: Task) {
        let (id, code) = (task.id, task.cdb[0]);
        let (expected, is_wrong) = (task.expected_bytes.min(DATA_IN_BYTES_MAX), code & 8 != 0);
        let writes = task.write;
        self.held.push(task);
        let piece = |bytes: u32| Bytes::from(vec![0x5a; bytes as usize]);
        let (third, skipped) = (expected / 3, u32::from(is_wrong));
        let mut input = |input| self.inputs.push_back(input);
        if code & 1 != 0 && writes {
            input(Input::Stream(id));
            input(Input::Wants { task: id, offset_bytes: 0, bytes: third });
            input(Input::Wants { task: id, offset_bytes: third + skipped, bytes: expected });
        }
        let (task, offset_bytes) = (id, 0);
        let digest = (code & 8 != 0).then_some(7);
        input(Input::DataIn { task, offset_bytes, data: piece(third), digest });
        let offset_bytes = third + skipped;
        input(Input::DataInBegin { task, offset_bytes, bytes: third + 100 });
        input(Input::DataInPart { task, data: piece(third), digest: None });
        if code & 2 != 0 {
            input(Input::DataInPart { task, data: piece(100 + skipped), digest: Some(7) });
            let data_in = piece(if code & 0x10 != 0 { expected } else { 0 });
            self.done(id, Outcome { data_in, ..Outcome::default() });
        }
    }

    /// Starts a task; the low bits of the operation code select the action of the executor.
    fn start(&mut self, task: Task) {
        let (id, expected) = (task.id, task.expected_bytes);
        if task.cdb[0] & 4 != 0 {
            return self.start_pieces(task);
        }
        match task.cdb[0] & 3 {
            0 => {
                let bytes = expected.min(DATA_IN_BYTES_MAX) as usize;
                let data_in = Bytes::from(vec![0x5a; bytes + usize::from(task.cdb[0] >> 4)]);
                self.held.push(task);
                self.done(id, Outcome { data_in, ..Outcome::default() });
            }
            1 if task.write => {
                self.held.push(task);
                self.inputs.push_back(Input::Wants { task: id, offset_bytes: 0, bytes: expected });
            }
            2 => {
                let sense = Bytes::from_static(&[0x70, 0, 5]);
                self.held.push(task);
                self.done(id, Outcome { status: 2, sense, ..Outcome::default() });
            }
            _ => self.held.push(task),
        }
    }

    fn done(&mut self, task: TaskId, outcome: Outcome) {
        // The executor answers once per task, whatever the request.
        if let Some(at) = self.held.iter().position(|held| held.id == task) {
            self.held.swap_remove(at);
            self.inputs.push_back(Input::Done { task, outcome });
        }
    }

    fn handle_in_session(&mut self, input: session::Input) {
        if let Some(session) = &mut self.session {
            session.handle(self.now, input);
            self.handle_session_outputs();
        }
    }

    fn handle_session_outputs(&mut self) {
        let Some(session) = &mut self.session else { return };
        let mut managed = Vec::new();
        while let Some(output) = session.poll() {
            match output {
                session::Output::ToConnection(_, message) => {
                    if self.in_session {
                        self.inputs.push_back(Input::Session(message));
                    }
                }
                session::Output::Manage { id, .. } => managed.push(id),
                session::Output::OthersAborted { .. } => {}
                session::Output::Ended => {
                    assert!(!self.ended, "a session ends once");
                    self.ended = true;
                }
            }
        }
        for id in managed {
            let response = lunar_iscsi::pdu::ManagementResponse::FUNCTION_COMPLETE;
            self.handle_in_session(session::Input::Managed { id, response, information: [0; 3] });
        }
    }

    /// Lets time pass and closes the connection; nothing may be left.
    fn end(&mut self) {
        for _ in 0..4 {
            let Some(deadline) = self.deadline.filter(|_| !self.closed) else { break };
            self.now = self.now.max(deadline);
            self.input(Input::Deadline);
        }
        if !self.closed {
            self.input(Input::PeerClosed);
        }
        for _ in 0..4 {
            self.now = self.now.after(Duration::from_secs(10));
            self.input(Input::Deadline);
        }
        assert!(self.closed && self.connection.is_over(), "the connection is still open");
        assert_eq!(self.connection.tasks(), 0);
        assert_eq!(self.held, [], "tasks that were not aborted");
        assert_eq!(self.open, [], "PDUs that were not completed");
        assert_eq!(self.session.as_ref().map_or(0, TargetSession::tasks), 0);
        assert!(self.ended, "the session continues without a connection");
    }
}

fn session_for(join: &lunar_iscsi::login::Join) -> TargetSession {
    let limits = SessionLimits::default();
    TargetSession::new(9, join.session, join.cmd_sn, limits)
}

fn number_at(bhs: &[u8; 48], at: usize) -> u32 {
    u32::from_be_bytes([bhs[at], bhs[at + 1], bhs[at + 2], bhs[at + 3]])
}
