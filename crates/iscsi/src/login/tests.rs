//! Both roles of a login against each other.

use super::initiator::{InitiatorLogin, InitiatorLoginOptions, Step as InitiatorStep};
use super::target::{Step as TargetStep, TargetLogin};
use super::*;
use crate::framing::{Header, Pdu};
use crate::text::Offer;
use alloc::vec;
use alloc::vec::Vec;

pub(super) const INITIATOR_NAME: &str = "iqn.1999-07.com.os:hostid.77";
pub(super) const TARGET_NAME: &str = "iqn.1999-07.com.example:diskarray.sn.88";

pub(super) fn options(offer: Offer, chap: Option<initiator::ChapAnswer>) -> InitiatorLoginOptions {
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

pub(super) fn admission(offer: Offer, chap: Option<ChapDemand>) -> Admission {
    Admission {
        portal_group_tag: 3,
        target_alias: Some("a target".into()),
        chap,
        offer,
        entropy: core::array::from_fn(|at| at as u8),
    }
}

/// How a login between our two roles ended.
#[derive(Debug)]
pub(super) struct Ended {
    pub initiator: Result<initiator::Established, initiator::LoginFailure>,
    pub target: Option<Result<target::Established, LoginStatus>>,
    pub requests: Vec<Pdu>,
    pub responses: Vec<Pdu>,
}

/// Runs both roles until the initiator is through.
pub(super) fn run(options: InitiatorLoginOptions, answer: &Identified) -> Ended {
    let mut initiator = InitiatorLogin::new(options);
    let mut target = TargetLogin::new(SerialNumber(u32::MAX));
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
                    return Ended { initiator, target: of_target, requests, responses };
                }
                InitiatorStep::Failed(failure) => {
                    assert!(initiator.is_over());
                    let initiator = Err(failure);
                    return Ended { initiator, target: of_target, requests, responses };
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

/// Answers what the target asks, collects what it sends.
fn drive(
    target: &mut TargetLogin,
    answer: &Identified,
    mut steps: Vec<TargetStep>,
    sent: &mut Vec<Pdu>,
    ended: &mut Option<Result<target::Established, LoginStatus>>,
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
                    let joined = Joined { tsih, exp_cmd_sn, max_cmd_sn };
                    target.joined(Ok(joined), &mut steps);
                }
                TargetStep::Complete(established) => *ended = Some(Ok(*established)),
                TargetStep::Refused(status) => *ended = Some(Err(status)),
                TargetStep::Close(why) => panic!("closed: {why}"),
            }
        }
    }
}

/// Goal: a login without proof takes one request and one response, and both sides agree.
#[test]
fn one_exchange_without_chap() {
    let answer = Identified::Admit(admission(Offer::target(), None));
    let ended = run(options(Offer::initiator(), None), &answer);
    let initiator = ended.initiator.unwrap();
    let target = ended.target.unwrap().unwrap();
    assert_eq!((ended.requests.len(), ended.responses.len()), (1, 1));
    assert_eq!(initiator.session, target.join.session);
    assert!(!initiator.session.initial_r2t && initiator.session.immediate_data);
    assert_eq!(initiator.session.task_reporting, crate::text::TaskReporting::ResponseFence);
    assert_eq!(initiator.connection, target.join.connection);
    assert_eq!(initiator.connection.send_data_segment_bytes_max, 262_144);
    assert_eq!(initiator.tsih, 9);
    assert_eq!(initiator.exp_stat_sn, target.next_stat_sn);
    assert_eq!(target.next_stat_sn, SerialNumber(0), "it wrapped");
    assert_eq!(initiator.max_cmd_sn, SerialNumber(154));
    assert_eq!(initiator.portal_group_tag, Some(3));
    assert_eq!(initiator.target_alias.as_deref(), Some("a target"));
    assert_eq!(target.join.claim.initiator_alias.as_deref(), Some("a host"));
}

/// Goal: one-way and mutual CHAP succeed with every hash; the name is proven to the target.
#[test]
fn chap_with_every_hash() {
    for algorithm in ChapAlgorithm::ALL {
        for mutual in [false, true] {
            let initiator =
                Credential { user: "0xuser".into(), secret: Secret::new(b"one".to_vec()) };
            let target =
                Credential { user: "0btarget".into(), secret: Secret::new(b"two".to_vec()) };
            let demand = ChapDemand {
                algorithms: ChapAlgorithm::ALL.to_vec(),
                initiator: initiator.clone(),
                target: Some(target.clone()),
            };
            let chap = initiator::ChapAnswer {
                algorithms: vec![algorithm],
                credential: initiator,
                expect_target: mutual.then_some(target),
            };
            let answer = Identified::Admit(admission(Offer::target(), Some(demand)));
            let ended = run(options(Offer::initiator(), Some(chap)), &answer);
            assert!(ended.initiator.is_ok(), "{algorithm:?} {mutual}: {:?}", ended.initiator);
            let target = ended.target.unwrap().unwrap();
            assert_eq!(target.join.user.as_deref(), Some("0xuser"));
            assert_eq!(ended.requests.len(), 4);
        }
    }
}
