//! A test rig: one connection, its session, and helpers that build the PDUs of the target.

use crate::connection::initiator::{
    Command, ConnectionLimits, ConnectionOptions, InitiatorConnection, Input, Output,
};
use crate::framing::{Header, Pdu, SegmentDigest, TaskId};
use crate::login::SessionType;
use crate::login::initiator::InitiatorLoginOptions;
use crate::pdu::*;
use crate::session::initiator::{
    InitiatorSession, InitiatorSessionOptions, Input as ToMachine, Output as FromMachine,
};
use crate::text::{Offer, TextBuilder, parse};
use bytes::Bytes;
use lunar_wire::{Lun, SerialNumber, Time, U24};
use std::collections::VecDeque;
use std::time::Duration;
use std::vec::Vec;

pub const CMD_SN: SerialNumber = SerialNumber(u32::MAX - 2);
const STAT_SN: SerialNumber = SerialNumber(u32::MAX - 1);

pub struct Rig {
    pub now: Time,
    pub session: InitiatorSession,
    /// True to deliver messages of the session at once, not only when the machine is idle.
    pub session_is_prompt: bool,
    pub machine: InitiatorConnection,
    /// PDUs that the initiator sent and the test has not examined.
    pub sent: VecDeque<Pdu>,
    /// Digests given for open PDUs.
    pub digests: Vec<Option<u32>>,
    /// All other outputs that the test has not examined.
    pub outputs: VecDeque<Output>,
    pub wait: Option<Time>,
    pub stat_sn: SerialNumber,
    pub exp_cmd_sn: SerialNumber,
    pub max_cmd_sn: SerialNumber,
}

pub fn limits() -> ConnectionLimits {
    ConnectionLimits { ping_interval: None, ..ConnectionLimits::default() }
}

impl Rig {
    /// Creates a rig after login, with all offers accepted and a window of 16 commands.
    pub fn with(offer: Offer, limits: ConnectionLimits) -> Self {
        let mut rig = Self::before_login(offer, limits);
        rig.log_in();
        rig
    }

    pub fn new() -> Self {
        Self::with(Offer::initiator(), limits())
    }

    pub fn before_login(offer: Offer, limits: ConnectionLimits) -> Self {
        let mut session = InitiatorSession::new(InitiatorSessionOptions {
            isid: [0x80, 1, 2, 3, 0, 0],
            cmd_sn: CMD_SN,
            queue_requests_max: 64,
        });
        let numbers = session.open(7).expect("the leading connection");
        let login = InitiatorLoginOptions {
            initiator_name: "iqn.2026-01.example:host".into(),
            alias: None,
            target_name: Some("iqn.2026-01.example:disk".into()),
            session_type: SessionType::Normal,
            isid: numbers.isid,
            tsih: numbers.tsih,
            cid: 7,
            initiator_task_tag: 0,
            cmd_sn: numbers.cmd_sn,
            offer,
            chap: None,
            entropy: [9; 33],
        };
        let now = Time::from_nanos(1_000);
        let options = ConnectionOptions { login, session: None, limits };
        let mut rig = Self {
            session_is_prompt: false,
            now,
            session,
            machine: InitiatorConnection::new(now, options),
            sent: VecDeque::new(),
            digests: Vec::new(),
            outputs: VecDeque::new(),
            wait: None,
            stat_sn: STAT_SN,
            exp_cmd_sn: CMD_SN,
            max_cmd_sn: CMD_SN.plus(15),
        };
        rig.run();
        rig
    }

    fn log_in(&mut self) {
        let request = self.sent.pop_front().expect("a Login Request");
        let header = LoginRequest::decode(&request.bhs);
        let mut text = TextBuilder::default();
        for pair in parse(&request.data).expect("text") {
            let (name, value) = (pair.name, pair.value);
            if !["InitiatorName", "TargetName", "SessionType"].contains(&name) {
                text.pair(name, value.split(',').next().expect("a value"));
            }
        }
        text.pair("TargetPortalGroupTag", 1);
        let response = LoginResponse {
            first: FirstByte::plain(Opcode::LOGIN_RESPONSE),
            flags: LoginFlags::stage(
                Stage::OPERATIONAL_NEGOTIATION,
                Some(Stage::FULL_FEATURE_PHASE),
            ),
            version_max: 0,
            version_active: 0,
            total_ahs_words: 0,
            data_segment_length: U24::default(),
            isid: header.isid,
            tsih: 5,
            initiator_task_tag: header.initiator_task_tag,
            stat_sn: self.stat_sn.take(),
            exp_cmd_sn: self.exp_cmd_sn,
            max_cmd_sn: self.max_cmd_sn,
            status: LoginStatus::SUCCESS,
        };
        self.target(response.encode(), &text.into_bytes());
        let logged_in = self.outputs.iter().any(|output| matches!(output, Output::LoggedIn(_)));
        assert!(logged_in, "{:?}", self.outputs);
        self.outputs.clear();
    }

    pub fn handle(&mut self, input: Input) {
        self.machine.handle(self.now, input);
        self.run();
    }

    /// Delivers a PDU of the target with its data segment.
    pub fn target(&mut self, bhs: [u8; 48], data: &[u8]) {
        let pdu = Pdu::with_data(bhs, Bytes::copy_from_slice(data));
        let before = self.outputs.len();
        self.handle(Input::Header(Header::new(pdu.bhs)));
        let wanted =
            self.outputs.iter().skip(before).any(|output| matches!(output, Output::Receive(_)));
        if wanted {
            self.handle(Input::Payload { data: pdu.data, digest: SegmentDigest::None });
        }
    }

    pub fn later(&mut self, seconds: u64) {
        self.now = self.now.after(Duration::from_secs(seconds));
        if self.wait.is_some_and(|wait| wait <= self.now) {
            self.handle(Input::Deadline);
        }
    }

    fn run(&mut self) {
        loop {
            match self.machine.poll() {
                Output::Send(pdu) => self.sent.push_back(pdu),
                Output::SendData { initiator_task_tag: tag, data, digest } => {
                    let is_meant =
                        |pdu: &&mut Pdu| pdu.missing_bytes() > 0 && pdu.initiator_task_tag() == tag;
                    let pdu = self.sent.iter_mut().find(is_meant).expect("an open PDU");
                    assert!((1..=pdu.missing_bytes()).contains(&data.len()));
                    pdu.data = [&pdu.data[..], &data].concat().into();
                    if pdu.missing_bytes() == 0 {
                        self.digests.push(digest);
                    }
                }
                Output::ToSession(message) => {
                    self.session.handle(ToMachine::Connection(7, message));
                    if self.session_is_prompt {
                        self.deliver_session_messages();
                    }
                }
                Output::Wait(wait) => {
                    self.wait = wait;
                    if !self.deliver_session_messages() {
                        return;
                    }
                }
                other => self.outputs.push_back(other),
            }
        }
    }

    /// Delivers the messages of the session; returns whether there were any.
    fn deliver_session_messages(&mut self) -> bool {
        let mut delivered = false;
        while let Some(output) = self.session.poll() {
            if let FromMachine::ToConnection(7, message) = output {
                self.machine.handle(self.now, Input::Session(message));
                delivered = true;
            }
        }
        delivered
    }

    pub fn execute(&mut self, id: u64, data_out: &[u8], data_in_bytes_max: u32) {
        self.handle(Input::Execute(command(id, data_out, data_in_bytes_max)));
    }

    /// Takes the next PDU that the initiator sent.
    pub fn sent(&mut self, opcode: Opcode) -> Pdu {
        let pdu = self.sent.pop_front().expect("a PDU");
        assert_eq!(pdu.opcode(), opcode);
        pdu
    }

    pub fn sent_command(&mut self) -> ScsiCommand {
        ScsiCommand::decode(&self.sent(Opcode::SCSI_COMMAND).bhs)
    }

    /// Builds a SCSI Response with correct numbers.
    pub fn response(&mut self, tag: u32) -> ScsiResponse {
        ScsiResponse {
            first: FirstByte::plain(Opcode::SCSI_RESPONSE),
            flags: ResponseFlags::FINAL,
            response: ServiceResponse::COMMAND_COMPLETED,
            status: 0,
            total_ahs_words: 0,
            data_segment_length: U24::default(),
            status_qualifier: 0,
            initiator_task_tag: tag,
            snack_tag: 0,
            stat_sn: self.stat_sn.take(),
            exp_cmd_sn: self.exp_cmd_sn,
            max_cmd_sn: self.max_cmd_sn,
            exp_data_sn: 0,
            bidi_read_residual_bytes: 0,
            residual_bytes: 0,
        }
    }

    pub fn data_in(&self, tag: u32, data_sn: u32, offset: u32) -> DataIn {
        DataIn {
            first: FirstByte::plain(Opcode::DATA_IN),
            flags: DataInFlags::FINAL,
            status: 0,
            total_ahs_words: 0,
            data_segment_length: U24::default(),
            lun: Lun::ZERO,
            initiator_task_tag: tag,
            target_transfer_tag: TAG_RESERVED,
            stat_sn: SerialNumber(0),
            exp_cmd_sn: self.exp_cmd_sn,
            max_cmd_sn: self.max_cmd_sn,
            data_sn,
            buffer_offset_bytes: offset,
            residual_bytes: 0,
        }
    }

    pub fn r2t(&self, tag: u32, r2t_sn: u32, offset: u32, bytes: u32) -> ReadyToTransfer {
        ReadyToTransfer {
            first: FirstByte::plain(Opcode::READY_TO_TRANSFER),
            flags: FinalFlag::FINAL,
            total_ahs_words: 0,
            data_segment_length: U24::default(),
            lun: Lun::new(3),
            initiator_task_tag: tag,
            target_transfer_tag: 0x100 + r2t_sn,
            stat_sn: self.stat_sn,
            exp_cmd_sn: self.exp_cmd_sn,
            max_cmd_sn: self.max_cmd_sn,
            r2t_sn,
            buffer_offset_bytes: offset,
            desired_length_bytes: bytes,
        }
    }

    pub fn management(&mut self, tag: u32, response: ManagementResponse) -> [u8; 48] {
        TaskManagementResponse {
            first: FirstByte::plain(Opcode::TASK_MANAGEMENT_RESPONSE),
            flags: FinalFlag::FINAL,
            response,
            total_ahs_words: 0,
            data_segment_length: U24::default(),
            information: [0; 3],
            initiator_task_tag: tag,
            stat_sn: self.stat_sn.take(),
            exp_cmd_sn: self.exp_cmd_sn,
            max_cmd_sn: self.max_cmd_sn,
        }
        .encode()
    }

    /// Takes the outputs to the driver, except `Receive`.
    pub fn outputs(&mut self) -> Vec<Output> {
        self.outputs.drain(..).filter(|output| !matches!(output, Output::Receive(_))).collect()
    }

    pub fn assert_nothing_left(&mut self) {
        assert!(self.machine.is_idle(), "{:?}", self.machine);
        assert!(self.session.is_idle(), "{:?}", self.session);
        assert!(self.sent.is_empty(), "{:?}", self.sent);
    }
}

pub fn command(id: u64, data_out: &[u8], data_in_bytes_max: u32) -> Command {
    Command {
        id: TaskId(id),
        lun: Lun::new(3),
        cdb: Bytes::from_static(&[0x28, 0, 0, 0, 0, 0, 0, 0, 1, 0]).into(),
        attribute: TaskAttribute::SIMPLE,
        priority: 0,
        data_out: Bytes::copy_from_slice(data_out),
        data_in_bytes_max,
        immediate: false,
    }
}
