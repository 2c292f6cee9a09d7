//! Tests of the login: a harness that runs both roles against each other, and one that lets a test
//! play the initiator.

mod chap;
mod initiator;
mod keys;
mod pair;
mod target;
mod transcripts;

use super::initiator::{
    ChapAnswer, Established, InitiatorLogin, InitiatorLoginOptions, LoginFailure,
    Step as InitiatorStep,
};
use super::target::{Step as TargetStep, TargetLogin};
use super::*;
use crate::framing::{Header, Pdu};
use crate::pdu::{FirstByte, LoginFlags, LoginRequest, LoginResponse, Opcode, Stage};
use crate::text::{Offer, TEXT_BYTES_MAX};
use alloc::vec;
use alloc::vec::Vec;

pub(super) const INITIATOR_NAME: &str = "iqn.1999-07.com.os:hostid.77";
pub(super) const TARGET_NAME: &str = "iqn.1999-07.com.example:diskarray.sn.88";

pub(super) fn options(offer: Offer, chap: Option<ChapAnswer>) -> InitiatorLoginOptions {
    InitiatorLoginOptions {
        initiator_name: INITIATOR_NAME.into(),
        alias: Some("a host".into()),
        target_name: Some(TARGET_NAME.into()),
        session_type: SessionType::Normal,
        isid: [0x80, 1, 2, 3, 4, 5],
        tsih: 0,
        cid: 7,
        initiator_task_tag: 0x1234,
        cmd_sn: SerialNumber(123),
        offer,
        chap,
        entropy: [0x5a; 33],
    }
}

pub(super) fn admission(offer: Offer, chap: Option<ChapRequirement>) -> Admission {
    Admission {
        portal_group_tag: 3,
        target_alias: Some("a target".into()),
        chap,
        offer,
        entropy: core::array::from_fn(|at| at as u8),
    }
}

/// The result of a login between our two roles.
#[derive(Debug)]
pub(super) struct LoginResult {
    pub initiator: Result<Established, LoginFailure>,
    pub target: Option<Result<super::target::Established, LoginStatus>>,
    pub requests: Vec<Pdu>,
    pub responses: Vec<Pdu>,
}

/// Runs both roles until the initiator is done.
pub(super) fn run(options: InitiatorLoginOptions, answer: &AdmissionDecision) -> LoginResult {
    let mut initiator = InitiatorLogin::new(options);
    let mut target = TargetLogin::new(SerialNumber(u32::MAX), TEXT_BYTES_MAX);
    let (mut requests, mut responses, mut of_target) = (vec![], vec![], None);
    let mut initiator_steps = vec![];
    initiator.start(&mut initiator_steps);
    loop {
        let mut to_target = vec![];
        for step in core::mem::take(&mut initiator_steps) {
            match step {
                InitiatorStep::Send(pdu) => to_target.push(pdu),
                InitiatorStep::Complete(established) => {
                    assert!(initiator.is_over());
                    let initiator = Ok(*established);
                    return LoginResult { initiator, target: of_target, requests, responses };
                }
                InitiatorStep::Failed(failure) => {
                    assert!(initiator.is_over());
                    let initiator = Err(failure);
                    return LoginResult { initiator, target: of_target, requests, responses };
                }
            }
        }
        assert_eq!(to_target.len(), 1, "one request outstanding");
        let mut to_initiator = vec![];
        for pdu in to_target {
            let mut steps = vec![];
            if target.on_header(&Header::new(pdu.bhs), &mut steps) {
                target.on_payload(pdu.data.clone(), &mut steps);
            }
            requests.push(pdu);
            drive(&mut target, answer, steps, &mut to_initiator, &mut of_target);
        }
        for pdu in to_initiator {
            if initiator.on_header(&Header::new(pdu.bhs), &mut initiator_steps) {
                initiator.on_payload(pdu.data.clone(), &mut initiator_steps);
            }
            responses.push(pdu);
        }
    }
}

/// Answers the requests of the target, collects its PDUs.
fn drive(
    target: &mut TargetLogin,
    answer: &AdmissionDecision,
    mut steps: Vec<TargetStep>,
    sent: &mut Vec<Pdu>,
    ended: &mut Option<Result<super::target::Established, LoginStatus>>,
) {
    while !steps.is_empty() {
        for step in core::mem::take(&mut steps) {
            match step {
                TargetStep::Send(pdu) => sent.push(pdu),
                TargetStep::Identify(_) => target.identified(answer.clone(), &mut steps),
                TargetStep::Join(join) => {
                    let tsih = if join.claim.tsih == 0 { 9 } else { join.claim.tsih };
                    let exp_cmd_sn = join.cmd_sn;
                    let max_cmd_sn = exp_cmd_sn.plus(31);
                    let joined = Joined {
                        tsih,
                        session: join.session,
                        exp_cmd_sn,
                        max_cmd_sn,
                        connection_serial: 1,
                    };
                    target.joined(Ok(joined), &mut steps);
                }
                TargetStep::Complete(established) => *ended = Some(Ok(*established)),
                TargetStep::Refused(status) => *ended = Some(Err(status)),
                TargetStep::Close(why) => panic!("closed: {why}"),
            }
        }
    }
}

/// Plays the initiator against [`TargetLogin`].
pub(super) struct InitiatorScript {
    pub target: TargetLogin,
    pub answer: AdmissionDecision,
    pub request: LoginRequest,
    pub ended: Option<Result<super::target::Established, LoginStatus>>,
}

/// CSG, NSG and T in the notation of Appendix B: `(0, 1, true)`.
pub(super) type StageFlags = (u8, u8, bool);

impl InitiatorScript {
    pub fn new(chap: Option<ChapRequirement>) -> Self {
        Self::with(AdmissionDecision::Admit(admission(Offer::target(), chap)))
    }

    pub fn with(answer: AdmissionDecision) -> Self {
        let request = LoginRequest {
            first: FirstByte::immediate(Opcode::LOGIN_REQUEST),
            flags: LoginFlags::NONE,
            version_max: 0,
            version_min: 0,
            total_ahs_words: 0,
            data_segment_length: lunar_wire::U24::truncate(0),
            isid: [0x80, 1, 2, 3, 4, 5],
            tsih: 0,
            initiator_task_tag: 1,
            cid: 0,
            cmd_sn: SerialNumber(123),
            exp_stat_sn: SerialNumber(0),
        };
        let target = TargetLogin::new(SerialNumber(1), TEXT_BYTES_MAX);
        Self { target, answer, request, ended: None }
    }

    /// Sends one request; returns the response, if any, with `;` for the zero byte.
    pub fn say(&mut self, turn: StageFlags, text: &str) -> Option<(LoginResponse, String)> {
        let (current, next, transit) = turn;
        self.request.flags = LoginFlags::stage(Stage(current), transit.then_some(Stage(next)));
        self.send(text.replace(';', "\0").into_bytes())
    }

    /// Sends `self.request` with this data segment.
    pub fn send(&mut self, data: Vec<u8>) -> Option<(LoginResponse, String)> {
        let pdu = Pdu::with_data(self.request.encode(), data.into());
        let mut steps = vec![];
        if self.target.on_header(&Header::new(pdu.bhs), &mut steps) {
            self.target.on_payload(pdu.data, &mut steps);
        }
        let mut sent = vec![];
        drive(&mut self.target, &self.answer.clone(), steps, &mut sent, &mut self.ended);
        assert!(sent.len() <= 1, "one response a request");
        sent.pop().map(|pdu| {
            let text = String::from_utf8(pdu.data.to_vec()).unwrap().replace('\0', ";");
            (LoginResponse::decode(&pdu.bhs), text)
        })
    }

    /// Like `say`, and checks that the login continues with `expected` as T, CSG and NSG of the
    /// response.
    pub fn exchange(&mut self, turn: StageFlags, text: &str, expected: StageFlags) -> String {
        let (response, answer) = self.say(turn, text).expect("a response");
        assert_eq!(response.status, LoginStatus::SUCCESS, "{text}: {:?}", self.target.reason());
        let flags = response.flags;
        let transit = flags.has(LoginFlags::TRANSIT);
        let next = if transit { flags.next().0 } else { expected.1 };
        assert_eq!((flags.current().0, next, transit), expected, "{text}");
        answer
    }

    /// Like `say`, and checks that the login ends with `status`.
    pub fn exchange_refused(&mut self, turn: StageFlags, text: &str, status: LoginStatus) {
        let (response, answer) = self.say(turn, text).expect("a response");
        self.assert_refused(response, status, text);
        assert_eq!(answer, "");
    }

    pub fn assert_refused(&mut self, response: LoginResponse, status: LoginStatus, what: &str) {
        assert_eq!(response.status, status, "{what}: {:?}", self.target.reason());
        assert_eq!(response.flags, LoginFlags::NONE, "T, CSG, NSG are reserved");
        assert_eq!(self.ended, Some(Err(status)), "{what}");
        assert!(self.target.is_over() && self.target.reason().is_some());
        assert_eq!(self.say((1, 3, true), ""), None, "no response follows");
    }
}

/// InitiatorName and TargetName for a first request.
pub(super) fn names() -> String {
    alloc::format!("InitiatorName={INITIATOR_NAME};TargetName={TARGET_NAME};")
}
