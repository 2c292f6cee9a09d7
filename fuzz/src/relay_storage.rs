//! A hostile storage of a relay: PDUs of all kinds with wrong tags, numbers, offsets and lengths,
//! at a session with commands of a host. A command of the host gets only the data that the storage
//! sent for it, in order, and ends with GOOD only if all of the data came.

use bytes::Bytes;
use lunar_block::BlockRange;
use lunar_iscsi::connection::initiator::{ConnectionLimits, ConnectionOptions};
use lunar_iscsi::framing::{Header, SegmentDigest, TaskId};
use lunar_iscsi::login::SessionType;
use lunar_iscsi::login::initiator::InitiatorLoginOptions;
use lunar_iscsi::pdu::{Opcode, TAG_RESERVED};
use lunar_iscsi::session::initiator::{InitiatorSession, InitiatorSessionOptions};
use lunar_iscsi::text::Offer;
use lunar_switch::relay::{
    IncomingDestination, RelayedCommand, SEGMENT_BYTES_MAX, StorageInput, StorageOutput,
    StorageSession, StorageUnit, TransferDirection,
};
use lunar_wire::{Lun, SerialNumber, Time};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

const RECORD_BYTES: usize = 12;
const CMD_SN: u32 = u32::MAX - 2;
/// Length of the data of each command.
const DATA_BYTES: u32 = 4096;
/// Commands: direction, and the data of a WRITE that is there from the beginning.
const COMMANDS: [(TransferDirection, u32); 4] = [
    (TransferDirection::In, 0),
    (TransferDirection::In, 0),
    (TransferDirection::Out, 0),
    (TransferDirection::Out, 512),
];

/// Runs an input. The first byte selects how the session begins. Records of twelve bytes follow,
/// one per PDU: opcode, flags, tag, transfer tag, offset / 16, length / 16, number, data / 16, two
/// for what the host does, index and new value of one header byte.
pub fn run(input: &[u8]) {
    let Some((choice, records)) = input.split_first() else { return };
    let mut relay = FuzzedRelay::begin(*choice);
    for record in records.chunks_exact(RECORD_BYTES) {
        if relay.session.is_closed() {
            break;
        }
        relay.pdu(record);
        relay.act_as_host(record[8], record[9]);
    }
    relay.end();
}

#[derive(Debug)]
struct Disk;

impl StorageUnit for Disk {
    fn lun(&self) -> Lun {
        Lun::new(1)
    }
    fn is_same(&self, designators: &[u8], capacity: &[u8]) -> bool {
        designators == [1, 2, 3, 4] && capacity.len() == 32
    }
    fn deferred_error(&self) {}
}

/// A command of the host.
#[derive(Debug, Default)]
struct HostCommand {
    is_write: bool,
    /// Data that has come, or was given.
    moved_bytes: u32,
    /// Data of a WRITE that was asked for.
    wanted_bytes: u32,
    ended: bool,
    aborted: bool,
    settled: bool,
}

/// A session, and a host.
struct FuzzedRelay {
    session: StorageSession,
    now: Time,
    stat_sn: u32,
    commands: BTreeMap<TaskId, HostCommand>,
    /// Initiator Task Tags of all commands that were sent.
    tags: Vec<u32>,
    /// The commands of the host, by their Initiator Task Tags.
    host_tags: BTreeMap<u32, TaskId>,
    destination: Option<IncomingDestination>,
    /// Tag, offset and length of the segment that is being delivered.
    delivered: (u32, u32, u32),
    login: Option<Vec<u8>>,
    closed: bool,
}

impl FuzzedRelay {
    fn begin(choice: u8) -> Self {
        let mut session = InitiatorSession::new(InitiatorSessionOptions {
            isid: [0x80, 1, 2, 3, 0, 0],
            cmd_sn: SerialNumber(CMD_SN),
            queue_requests_max: 64,
        });
        let numbers = session.open(0).expect("the leading connection");
        let login = InitiatorLoginOptions {
            initiator_name: "iqn.2026-01.example:i".into(),
            alias: None,
            target_name: Some("iqn.2026-01.example:t".into()),
            session_type: SessionType::Normal,
            isid: numbers.isid,
            tsih: numbers.tsih,
            cid: 0,
            initiator_task_tag: 0,
            cmd_sn: numbers.cmd_sn,
            offer: Offer {
                initial_r2t: choice & 1 == 0,
                immediate_data: choice & 2 == 0,
                ..Offer::initiator()
            },
            chap: None,
            entropy: [9; 33],
        };
        let now = Time::from_nanos(1);
        let limits = ConnectionLimits::default();
        let options = ConnectionOptions { login, session: None, limits };
        let mut relay = Self {
            session: StorageSession::new(now, Arc::new(Disk), session, options),
            now,
            stat_sn: 5,
            commands: BTreeMap::new(),
            tags: Vec::new(),
            host_tags: BTreeMap::new(),
            destination: None,
            delivered: (0, 0, 0),
            login: None,
            closed: false,
        };
        relay.poll();
        relay.answer_login();
        if choice & 4 == 0 {
            relay.answer_setup();
            assert!(relay.session.is_up(), "an honest unit");
        }
        for (number, (direction, prefix_bytes)) in (1..).zip(COMMANDS) {
            relay.command(TaskId(number), direction, prefix_bytes);
        }
        relay
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
        assert!(!self.closed, "an honest login");
    }

    /// Answers TEST UNIT READY, INQUIRY and READ CAPACITY (16).
    fn answer_setup(&mut self) {
        let page = [0, 0x83, 0, 4, 1, 2, 3, 4];
        for data in [&[][..], &page, &[0; 32]] {
            let tag = *self.tags.last().expect("a command of the setup");
            if !data.is_empty() {
                let mut bhs = [0; 48];
                (bhs[0], bhs[1]) = (Opcode::DATA_IN.0, 0x80);
                bhs[16..20].copy_from_slice(&tag.to_be_bytes());
                bhs[20..24].copy_from_slice(&TAG_RESERVED.to_be_bytes());
                self.write_numbers(&mut bhs);
                self.deliver(bhs, data);
            }
            let mut bhs = [0; 48];
            (bhs[0], bhs[1]) = (Opcode::SCSI_RESPONSE.0, 0x80);
            if data.len() == page.len() {
                bhs[1] |= 2; // an underflow
                bhs[44..48].copy_from_slice(&(1024 - 8_u32).to_be_bytes());
            }
            let data_sn = u32::from(!data.is_empty());
            bhs[36..40].copy_from_slice(&data_sn.to_be_bytes());
            bhs[16..20].copy_from_slice(&tag.to_be_bytes());
            self.write_numbers(&mut bhs);
            self.deliver(bhs, &[]);
        }
    }

    fn command(&mut self, id: TaskId, direction: TransferDirection, prefix_bytes: u32) {
        let is_write = direction == TransferDirection::Out;
        let command = HostCommand {
            is_write,
            moved_bytes: prefix_bytes,
            wanted_bytes: prefix_bytes,
            ..HostCommand::default()
        };
        self.commands.insert(id, command);
        let sent = self.tags.len();
        self.input(StorageInput::Begin(RelayedCommand {
            id,
            direction,
            range: BlockRange::new(id.0 * 8, 8),
            bytes: DATA_BYTES,
            fua: false,
            prefix: Bytes::from(vec![1; prefix_bytes as usize]).into(),
        }));
        if let Some(tag) = self.tags.get(sent) {
            self.host_tags.insert(*tag, id);
        }
    }

    /// Writes StatSN and the window, and counts the StatSN.
    fn write_numbers(&mut self, bhs: &mut [u8; 48]) {
        bhs[24..28].copy_from_slice(&self.stat_sn.to_be_bytes());
        bhs[28..32].copy_from_slice(&CMD_SN.to_be_bytes());
        bhs[32..36].copy_from_slice(&CMD_SN.wrapping_add(30).to_be_bytes());
        let has_status = bhs[1] & 1 != 0;
        let counts = match bhs[0] & 0x3f {
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
        let tag = match self.tags.get(usize::from(tag & 15)) {
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
        let bytes = u32::try_from(data.len()).unwrap();
        bhs[5..8].copy_from_slice(&bytes.to_be_bytes()[1..]);
        let field = |at: usize| u32::from_be_bytes(bhs[at..at + 4].try_into().unwrap());
        self.delivered = (field(16), field(40), bytes);
        self.input(StorageInput::Header(Header::new(bhs)));
        if data.is_empty() || self.closed {
            return;
        }
        assert!(bytes <= SEGMENT_BYTES_MAX, "longer than negotiated");
        let data = match self.destination.take().expect("a destination of the segment") {
            IncomingDestination::Session => Bytes::copy_from_slice(data),
            IncomingDestination::Command(_) | IncomingDestination::Discarded => Bytes::new(),
        };
        self.input(StorageInput::Payload { data, digest: SegmentDigest::None });
    }

    /// Sends requested data, all or a part of it, aborts a command, or waits.
    fn act_as_host(&mut self, choice: u8, amount: u8) {
        let id = TaskId(1 + u64::from(choice >> 4) % COMMANDS.len() as u64);
        let Some(command) = self.commands.get_mut(&id) else { return };
        match choice & 3 {
            0 if command.is_write && !command.aborted && !command.ended => {
                let wanted_bytes = command.wanted_bytes - command.moved_bytes;
                let bytes = (u32::from(amount) * 16).min(wanted_bytes);
                let offset_bytes = command.moved_bytes;
                if bytes > 0 {
                    command.moved_bytes += bytes;
                    let piece = Bytes::from(vec![3; bytes as usize]).into();
                    self.input(StorageInput::DataOut { id, offset_bytes, piece });
                }
            }
            1 if !command.ended && !command.aborted => {
                command.aborted = true;
                self.input(StorageInput::Abort(id));
            }
            2 if amount == 0 => self.wait(),
            3 if amount == 0 => self.input(StorageInput::LogOut),
            _ => {}
        }
    }

    /// Lets time pass to the next deadline.
    fn wait(&mut self) {
        if let Some(deadline) = self.session.deadline().filter(|_| !self.closed) {
            self.now = self.now.max(deadline);
            self.input(StorageInput::Deadline);
        }
    }

    fn input(&mut self, input: StorageInput) {
        self.session.handle(self.now, input);
        self.poll();
    }

    fn poll(&mut self) {
        while let Some(output) = self.session.poll() {
            self.handle_output(output);
        }
    }

    fn handle_output(&mut self, output: StorageOutput) {
        match output {
            StorageOutput::Receive(to) => assert!(self.destination.replace(to).is_none()),
            StorageOutput::Send(pdu) => {
                assert!(!self.closed, "sent after Close");
                match pdu.opcode() {
                    Opcode::LOGIN_REQUEST => self.login = Some(pdu.data.to_vec()),
                    Opcode::SCSI_COMMAND => self.tags.push(pdu.initiator_task_tag()),
                    _ => {}
                }
            }
            StorageOutput::DataIn { id, offset_bytes, bytes, .. } => {
                let (tag, sent_offset, sent_bytes) = self.delivered;
                assert_eq!(self.host_tags.get(&tag), Some(&id), "data of another command");
                assert_eq!((sent_offset, sent_bytes), (offset_bytes, bytes));
                let command = self.commands.get_mut(&id).unwrap();
                assert!(!command.is_write && !command.ended && !command.aborted);
                assert_eq!(offset_bytes, command.moved_bytes, "out of order");
                command.moved_bytes += bytes;
                assert!(command.moved_bytes <= DATA_BYTES, "more than was asked for");
            }
            StorageOutput::Wants { id, offset_bytes, bytes } => {
                let command = self.commands.get_mut(&id).unwrap();
                assert!(command.is_write && !command.ended && !command.aborted);
                assert_eq!(offset_bytes, command.wanted_bytes, "out of order");
                command.wanted_bytes += bytes;
                assert!(command.wanted_bytes <= DATA_BYTES, "more than there is");
            }
            StorageOutput::End { id, result } => {
                let command = self.commands.get_mut(&id).unwrap();
                assert!(!command.ended && !command.aborted, "ended twice, or after its abort");
                command.ended = true;
                assert!(result.is_err() || command.moved_bytes == DATA_BYTES, "not all has moved");
            }
            StorageOutput::Settled(id) => {
                let command = self.commands.get_mut(&id).unwrap();
                assert!(command.ended || command.aborted, "settled before its end");
                assert!(!std::mem::replace(&mut command.settled, true), "settled twice");
            }
            StorageOutput::Close(_) => {
                assert!(!std::mem::replace(&mut self.closed, true), "closed twice");
            }
            StorageOutput::SendData { .. } => panic!("no PDU is open"),
            StorageOutput::FullFeature(_) | StorageOutput::Up(_) => {}
        }
    }

    /// Lets time pass and closes the connection; nothing may be left.
    fn end(&mut self) {
        for _ in 0..4 {
            self.wait();
        }
        if !self.closed {
            self.input(StorageInput::PeerClosed);
        }
        self.now = self.now.after(Duration::from_secs(100));
        self.input(StorageInput::Deadline);
        assert!(self.closed && self.session.is_closed(), "the session is still open");
        assert_eq!(self.session.commands(), 0);
        for command in self.commands.values() {
            assert!(command.ended || command.aborted, "a command has no end: {command:?}");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Fault: a session whose storage accepted the login and never answered the check of the unit,
    /// only pings, was kept for ever, also after its host had gone.
    #[test]
    fn a_check_of_the_unit_has_a_limit_of_time() {
        const SETUP_UNANSWERED: u8 = 4;
        let mut relay = FuzzedRelay::begin(SETUP_UNANSWERED);
        relay.input(StorageInput::LogOut);
        assert!(!relay.session.is_closed(), "an answer may come");
        relay.now = relay.now.after(Duration::from_secs(31));
        relay.input(StorageInput::Deadline);
        assert!(relay.session.is_closed());
    }
}
