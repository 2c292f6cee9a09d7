//! A hostile target: PDUs of all kinds with wrong tags, numbers and lengths, at an initiator
//! connection with commands whose data moves as a whole and in pieces.

use bytes::Bytes;
use lunar_iscsi::connection::initiator::{
    Command, ConnectionLimits, ConnectionOptions, InitiatorConnection, Input, Output,
    StreamingCommand,
};
use lunar_iscsi::framing::{DataDestination, Header, SegmentDigest, TaskId};
use lunar_iscsi::login::SessionType;
use lunar_iscsi::login::initiator::InitiatorLoginOptions;
use lunar_iscsi::pdu::{Opcode, TAG_RESERVED, TaskAttribute};
use lunar_iscsi::session::initiator::{
    InitiatorSession, InitiatorSessionOptions, Input as ToSession, Output as FromSession,
};
use lunar_iscsi::text::{Digest, Offer};
use lunar_wire::{Lun, SerialNumber, Time};
use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

const CID: u16 = 7;
const RECORD_BYTES: usize = 12;
const CMD_SN: u32 = u32::MAX - 2;
/// Length of the data of each command, in each direction that it has.
const DATA_BYTES: u32 = 4000;
const PREFIX_BYTES: usize = 700;
/// Commands: data-out, data-in, and whether the data moves in pieces.
const COMMANDS: [(bool, bool, bool); 5] = [
    (true, false, false),
    (false, true, false),
    (true, false, true),
    (false, true, true),
    (true, true, true),
];

/// Runs an input. The first byte selects the negotiated keys. Records of twelve bytes follow, one
/// per PDU: opcode, flags, tag, transfer tag, offset / 16, length / 16, number, data / 16, two for
/// the answer of the caller to a request for data, index and new value of one header byte.
pub fn run(input: &[u8]) {
    let Some((choice, records)) = input.split_first() else { return };
    let mut fuzzed = FuzzedInitiator::logged_in(*choice);
    for record in records.chunks_exact(RECORD_BYTES) {
        if fuzzed.closed {
            break;
        }
        fuzzed.pdu(record);
        fuzzed.answer_data_request(record[8], record[9]);
    }
    fuzzed.end();
}

/// A connection, its session, and a caller.
struct FuzzedInitiator {
    connection: InitiatorConnection,
    session: InitiatorSession,
    now: Time,
    deadline: Option<Time>,
    stat_sn: u32,
    /// Initiator Task Tags of the commands that were sent.
    tags: Vec<u32>,
    destination: Option<DataDestination>,
    /// Ranges that were requested and not provided.
    wanted: VecDeque<(TaskId, u32, u32)>,
    /// Open PDUs: Initiator Task Tag and missing bytes.
    open: BTreeMap<u32, usize>,
    completed: Vec<TaskId>,
    login: Option<Vec<u8>>,
    closed: bool,
}

impl FuzzedInitiator {
    fn logged_in(choice: u8) -> Self {
        let mut session = InitiatorSession::new(InitiatorSessionOptions {
            isid: [0x80, 1, 2, 3, 0, 0],
            cmd_sn: SerialNumber(CMD_SN),
            queue_requests_max: 64,
        });
        let numbers = session.open(CID).expect("the leading connection");
        let digest = if choice & 1 != 0 { Digest::Crc32c } else { Digest::None };
        let in_order = choice & 2 == 0;
        let login = InitiatorLoginOptions {
            initiator_name: "iqn.2026-01.example:i".into(),
            alias: None,
            target_name: Some("iqn.2026-01.example:t".into()),
            session_type: SessionType::Normal,
            isid: numbers.isid,
            tsih: numbers.tsih,
            cid: CID,
            initiator_task_tag: 0,
            cmd_sn: numbers.cmd_sn,
            offer: Offer {
                initial_r2t: choice & 4 == 0,
                immediate_data: choice & 8 == 0,
                first_burst_bytes: 1024,
                max_burst_bytes: 8192,
                max_recv_data_segment_bytes: 1024,
                max_outstanding_r2t: 1 + u16::from(choice >> 6),
                data_digest: vec![digest],
                data_pdu_in_order: in_order,
                data_sequence_in_order: in_order,
                ..Offer::initiator()
            },
            chap: None,
            entropy: [9; 33],
        };
        let now = Time::from_nanos(1);
        let options =
            ConnectionOptions { login, session: None, limits: ConnectionLimits::default() };
        let mut fuzzed = Self {
            connection: InitiatorConnection::new(now, options),
            session,
            now,
            deadline: None,
            stat_sn: 5,
            tags: Vec::new(),
            destination: None,
            wanted: VecDeque::new(),
            open: BTreeMap::new(),
            completed: Vec::new(),
            login: None,
            closed: false,
        };
        fuzzed.poll();
        fuzzed.answer_login();
        for (number, (writes, reads, streams)) in (1..).zip(COMMANDS) {
            fuzzed.execute(TaskId(number), writes, reads, streams);
        }
        assert_eq!(fuzzed.tags.len(), COMMANDS.len(), "the window is open");
        fuzzed
    }

    /// Accepts the first value of each proposal.
    fn answer_login(&mut self) {
        let request = self.login.take().expect("a Login Request");
        let mut text = b"TargetPortalGroupTag=1\0".to_vec();
        for pair in request.split(|byte| *byte == 0) {
            let pair = std::str::from_utf8(pair).unwrap();
            let Some((name, values)) = pair.split_once('=') else { continue };
            if !["InitiatorName", "TargetName", "SessionType"].contains(&name) {
                let value = values.split(',').next().unwrap();
                text.extend_from_slice(format!("{name}={value}\0").as_bytes());
            }
        }
        let mut bhs = [0; 48];
        (bhs[0], bhs[1], bhs[15]) = (Opcode::LOGIN_RESPONSE.0, 0x87, 5);
        self.write_numbers(&mut bhs);
        self.deliver(bhs, &text);
        assert!(!self.closed, "a valid login succeeds");
    }

    fn execute(&mut self, id: TaskId, writes: bool, reads: bool, streams: bool) {
        let data_out_bytes = if writes { DATA_BYTES } else { 0 };
        let available_bytes = if streams { PREFIX_BYTES } else { DATA_BYTES as usize };
        let command = Command {
            id,
            lun: Lun::new(1),
            cdb: [0x53; 10].into(),
            attribute: TaskAttribute::SIMPLE,
            priority: 0,
            data_out: Bytes::from(vec![1; if writes { available_bytes } else { 0 }]),
            data_in_bytes_max: if reads { DATA_BYTES } else { 0 },
            immediate: false,
        };
        self.input(match streams {
            true => Input::Stream(Box::new(StreamingCommand {
                command,
                data_out_bytes,
                prefix_digest: Some(5),
            })),
            false => Input::Execute(command),
        });
    }

    /// Writes StatSN and the window, and counts the StatSN.
    fn write_numbers(&mut self, bhs: &mut [u8; 48]) {
        bhs[24..28].copy_from_slice(&self.stat_sn.to_be_bytes());
        bhs[28..32].copy_from_slice(&CMD_SN.to_be_bytes());
        bhs[32..36].copy_from_slice(&CMD_SN.wrapping_add(30).to_be_bytes());
        let opcode = bhs[0] & 0x3f;
        let has_status = bhs[1] & 1 != 0;
        let counts = match opcode {
            0x25 => has_status,
            0x31 => false,
            0x20 => bhs[16..20] != TAG_RESERVED.to_be_bytes(),
            _ => true,
        };
        self.stat_sn = self.stat_sn.wrapping_add(u32::from(counts));
    }

    fn pdu(&mut self, record: &[u8]) {
        let [opcode, flags, tag, transfer, offset, length, number, data, .., at, value] = *record
        else {
            return;
        };
        let mut bhs = [0; 48];
        (bhs[0], bhs[1]) = (opcode & 0x3f, flags);
        let tag = match self.tags.get(usize::from(tag & 7)) {
            Some(tag) => *tag,
            None => TAG_RESERVED,
        };
        bhs[16..20].copy_from_slice(&tag.to_be_bytes());
        let transfer = if transfer == 0xff { TAG_RESERVED } else { u32::from(transfer) };
        bhs[20..24].copy_from_slice(&transfer.to_be_bytes());
        self.write_numbers(&mut bhs);
        bhs[36..40].copy_from_slice(&u32::from(number).to_be_bytes());
        bhs[40..44].copy_from_slice(&(u32::from(offset) * 16).to_be_bytes());
        bhs[44..48].copy_from_slice(&(u32::from(length) * 16).to_be_bytes());
        if let Some(byte) = bhs.get_mut(usize::from(at)) {
            *byte = value;
        }
        self.deliver(bhs, &vec![2; usize::from(data) * 16]);
    }

    /// Delivers one PDU, header and payload.
    fn deliver(&mut self, mut bhs: [u8; 48], data: &[u8]) {
        bhs[4] = 0;
        let bytes = u32::try_from(data.len()).unwrap().to_be_bytes();
        bhs[5..8].copy_from_slice(&bytes[1..]);
        self.input(Input::Header(Header::new(bhs)));
        if data.is_empty() || self.closed {
            return;
        }
        let data = match self.destination.take().expect("a destination for the segment") {
            DataDestination::Control => Bytes::copy_from_slice(data),
            DataDestination::Task { offset_bytes, .. }
            | DataDestination::Stream { offset_bytes, .. } => {
                let end = u64::from(offset_bytes) + data.len() as u64;
                assert!(end <= u64::from(DATA_BYTES), "past the end of the data-in");
                Bytes::new()
            }
            DataDestination::Discard => Bytes::new(),
        };
        self.input(Input::Payload { data, digest: SegmentDigest::None });
    }

    /// Provides the requested data, or none, or wrong data.
    fn answer_data_request(&mut self, choice: u8, amount: u8) {
        let Some((id, offset_bytes, bytes)) = self.wanted.pop_front() else { return };
        let some = (u32::from(amount) * 16).clamp(1, bytes);
        let data = Bytes::from(vec![3; some as usize]);
        match choice & 7 {
            0 | 1 => {
                let digest = (choice & 1 == 0).then_some(6);
                self.input(Input::DataOut { id, offset_bytes, data, digest });
                if some < bytes {
                    self.wanted.push_front((id, offset_bytes + some, bytes - some));
                }
            }
            2 => {
                self.input(Input::DataOutBegin { id, offset_bytes, bytes });
                self.input(Input::DataOutPart { id, data, digest: Some(4) });
            }
            3 => {
                self.input(Input::DataOutBegin { id, offset_bytes, bytes });
                let data = Bytes::from(vec![3; bytes as usize]);
                self.input(Input::DataOutPart { id, data, digest: None });
            }
            4 => {
                let offset_bytes = offset_bytes ^ 16;
                self.input(Input::DataOut { id, offset_bytes, data, digest: None });
            }
            5 => self.input(Input::DataOutPart { id, data, digest: None }),
            6 => self.wait(),
            _ => self.wanted.push_back((id, offset_bytes, bytes)),
        }
    }

    /// Lets time pass to the next deadline.
    fn wait(&mut self) {
        if let Some(deadline) = self.deadline.filter(|_| !self.closed) {
            self.now = self.now.max(deadline);
            self.input(Input::Deadline);
        }
    }

    fn input(&mut self, input: Input) {
        self.connection.handle(self.now, input);
        self.poll();
    }

    fn poll(&mut self) {
        loop {
            match self.connection.poll() {
                Output::Wait(deadline) => {
                    self.deadline = deadline;
                    let Some(FromSession::ToConnection(_, message)) = self.session.poll() else {
                        return;
                    };
                    self.connection.handle(self.now, Input::Session(message));
                }
                output => self.handle_output(output),
            }
        }
    }

    fn handle_output(&mut self, output: Output) {
        match output {
            Output::Receive(to) => assert!(self.destination.replace(to).is_none()),
            Output::Send(pdu) => {
                let (opcode, tag) = (pdu.opcode(), pdu.initiator_task_tag());
                assert!(!self.closed, "sent after Close");
                if opcode == Opcode::LOGIN_REQUEST {
                    self.login = Some(pdu.data.to_vec());
                } else if opcode == Opcode::SCSI_COMMAND {
                    self.tags.push(tag);
                }
                if pdu.missing_bytes() > 0 {
                    let other = self.open.insert(tag, pdu.missing_bytes());
                    assert_eq!(other, None, "two open PDUs of one task");
                }
            }
            Output::SendData { initiator_task_tag: tag, data, .. } => {
                let missing = self.open.get_mut(&tag).expect("a part without an open PDU");
                assert!((1..=*missing).contains(&data.len()));
                *missing -= data.len();
                self.open.retain(|_, missing| *missing > 0);
            }
            Output::Wants { id, offset_bytes, bytes } => {
                assert!(bytes > 0 && offset_bytes >= PREFIX_BYTES as u32);
                assert!(offset_bytes + bytes <= DATA_BYTES);
                self.wanted.push_back((id, offset_bytes, bytes));
            }
            Output::DataIn { offset_bytes, bytes, .. } => {
                assert!(bytes > 0 && offset_bytes + bytes <= DATA_BYTES);
            }
            Output::ToSession(message) => self.session.handle(ToSession::Connection(CID, message)),
            Output::Completed { id, .. } => {
                assert!(!self.completed.contains(&id), "completed twice");
                self.completed.push(id);
                self.wanted.retain(|(wanted, ..)| *wanted != id);
            }
            Output::Close(_) => {
                assert!(!self.closed, "closed twice");
                self.closed = true;
            }
            _ => {}
        }
    }

    /// Lets time pass and closes the connection; nothing may be left.
    fn end(&mut self) {
        for _ in 0..4 {
            self.wait();
        }
        if !self.closed {
            self.input(Input::PeerClosed);
        }
        self.now = self.now.after(Duration::from_secs(100));
        self.input(Input::Deadline);
        assert!(self.closed && self.connection.is_idle(), "the connection is still open");
        assert_eq!(self.completed.len(), COMMANDS.len(), "every command has ended");
        assert_eq!(self.deadline, None);
    }
}
