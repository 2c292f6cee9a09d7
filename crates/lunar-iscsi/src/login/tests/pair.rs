//! Both roles of a login against each other.

use super::*;
use crate::text::{ConnectionParameters, Digest, TaskReporting};
use proptest::prelude::*;

/// Goal: a login without authentication takes one request and one response, and both sides agree.
#[test]
fn one_exchange_without_chap() {
    let answer = AdmissionDecision::Admit(admission(Offer::target(), None));
    let ended = run(options(Offer::initiator(), None), &answer);
    let initiator = ended.initiator.unwrap();
    let target = ended.target.unwrap().unwrap();
    assert_eq!((ended.requests.len(), ended.responses.len()), (1, 1));
    assert_eq!(initiator.session, target.join.session);
    assert!(!initiator.session.initial_r2t && initiator.session.immediate_data);
    assert_eq!(initiator.session.task_reporting, TaskReporting::FastAbort);
    assert_eq!(initiator.session.protocol_level, 2);
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

/// Goal: one-way and mutual CHAP succeed with every hash; the target learns the authenticated name.
#[test]
fn chap_with_every_hash() {
    for algorithm in ChapAlgorithm::ALL {
        for mutual in [false, true] {
            let initiator =
                Credential { user: "0xuser".into(), secret: Secret::new(b"one".to_vec()) };
            let target =
                Credential { user: "0btarget".into(), secret: Secret::new(b"two".to_vec()) };
            let requirement = ChapRequirement {
                algorithms: ChapAlgorithm::ALL.to_vec(),
                initiator: initiator.clone(),
                target: Some(target.clone()),
            };
            let chap = ChapAnswer {
                algorithms: vec![algorithm],
                credential: initiator,
                expect_target: mutual.then_some(target),
            };
            let answer = AdmissionDecision::Admit(admission(Offer::target(), Some(requirement)));
            let ended = run(options(Offer::initiator(), Some(chap)), &answer);
            assert!(ended.initiator.is_ok(), "{algorithm:?} {mutual}: {:?}", ended.initiator);
            let target = ended.target.unwrap().unwrap();
            assert_eq!(target.join.user.as_deref(), Some("0xuser"));
            assert_eq!(ended.requests.len(), 4);
        }
    }
}

pub(super) fn offers() -> impl Strategy<Value = Offer> {
    let digests = || {
        prop_oneof![
            Just(vec![Digest::None]),
            Just(vec![Digest::Crc32c, Digest::None]),
            Just(vec![Digest::None, Digest::Crc32c]),
            Just(vec![Digest::Crc32c]),
        ]
    };
    let reporting = prop_oneof![
        Just(vec![TaskReporting::Rfc3720]),
        Just(vec![TaskReporting::ResponseFence, TaskReporting::Rfc3720]),
        Just(vec![TaskReporting::FastAbort, TaskReporting::ResponseFence, TaskReporting::Rfc3720]),
    ];
    let lists = (digests(), digests(), reporting);
    let flags = any::<[bool; 4]>();
    // Includes values outside the valid ranges: an operator may write anything.
    let bytes = (any::<u32>(), 0u32..2_000_000, 0u32..2_000_000);
    let numbers = (any::<u16>(), 0u16..4000, 0u16..4000, any::<u16>(), 0u8..4, 0u8..40);
    (lists, flags, bytes, numbers).prop_map(|(lists, flags, bytes, numbers)| Offer {
        header_digest: lists.0,
        data_digest: lists.1,
        task_reporting: lists.2,
        initial_r2t: flags[0],
        immediate_data: flags[1],
        data_pdu_in_order: flags[2],
        data_sequence_in_order: flags[3],
        max_recv_data_segment_bytes: bytes.0,
        max_burst_bytes: bytes.1,
        first_burst_bytes: bytes.2,
        max_connections: numbers.0,
        time_to_wait_seconds: numbers.1,
        time_to_retain_seconds: numbers.2,
        max_outstanding_r2t: numbers.3,
        error_recovery_level: numbers.4,
        protocol_level: numbers.5,
    })
}

proptest! {
    /// Goal: whatever the two sides offer, both end with the same parameters, within the limits of
    /// the RFC and of both; or both fail.
    #[test]
    fn both_sides_agree(ours in offers(), theirs in offers(), discovery: bool, join: bool) {
        let mut options = options(ours.clone(), None);
        // A discovery session has one connection. RFC 7143 §13.2.
        let join = join && !discovery;
        if discovery {
            options.session_type = SessionType::Discovery;
            options.target_name = None;
        }
        options.tsih = if join { 77 } else { 0 };
        let ended = run(options, &AdmissionDecision::Admit(admission(theirs.clone(), None)));
        let digests = |own: &[Digest], other: &[Digest]| {
            own.iter().any(|one| other.contains(one))
        };
        let possible = digests(&ours.header_digest, &theirs.header_digest)
            && digests(&ours.data_digest, &theirs.data_digest);
        // Without a common value the default, None, may still be acceptable to the target.
        let is_acceptable = |own: &[Digest], other: &[Digest]| {
            digests(own, other) || own.contains(&Digest::None)
        };
        let is_admitted = is_acceptable(&theirs.header_digest, &ours.header_digest)
            && is_acceptable(&theirs.data_digest, &ours.data_digest);
        prop_assert_eq!(ended.initiator.is_ok(), possible, "{:?}", ended.initiator);
        prop_assert_eq!(matches!(ended.target, Some(Ok(_))), is_admitted, "{:?}", ended.target);
        let (Ok(initiator), Some(Ok(target))) = (ended.initiator, ended.target) else {
            return Ok(());
        };
        let session = initiator.session;
        prop_assert_eq!(session, target.join.session);
        prop_assert!(session.first_burst_bytes <= session.max_burst_bytes);
        prop_assert!((512..=0xff_ffff).contains(&session.max_burst_bytes));
        if discovery {
            prop_assert_eq!((session.max_connections, session.error_recovery_level), (1, 0));
        }
        let ConnectionParameters {
            digests,
            send_data_segment_bytes_max: to_target,
            receive_data_segment_bytes_max: to_initiator,
        } = initiator.connection;
        prop_assert_eq!(target.join.connection, ConnectionParameters {
            digests,
            send_data_segment_bytes_max: to_initiator,
            receive_data_segment_bytes_max: to_target,
        });
        prop_assert_eq!(initiator.tsih, if join { 77 } else { 9 });
        prop_assert_eq!(initiator.exp_stat_sn, target.next_stat_sn);
    }
}

/// Goal: a temporary or permanent redirect reaches the initiator with its address. §11.13.5.
#[test]
fn redirects() {
    for permanent in [false, true] {
        let answer = AdmissionDecision::Redirect { address: "[::1]:3261,4".into(), permanent };
        let ended = run(options(Offer::initiator(), None), &answer);
        let failure = ended.initiator.unwrap_err();
        assert_eq!(failure.redirect, Some(("[::1]:3261".into(), permanent)));
        assert_eq!(failure.status.map(|status| status.0 >> 8), Some(1));
        assert!(matches!(ended.target, Some(Err(_))));
    }
}

/// Goal: a refusal by the policy reaches the initiator with its status.
#[test]
fn refusals() {
    for status in [LoginStatus::NOT_FOUND, LoginStatus::AUTHORIZATION_FAILURE] {
        let ended = run(options(Offer::initiator(), None), &AdmissionDecision::Refuse(status));
        assert_eq!(ended.initiator.unwrap_err().status, Some(status));
        assert_eq!(ended.target, Some(Err(status)));
        assert_eq!(ended.responses.len(), 1);
    }
}

/// Goal: an initiator with a secret logs in where none is required, unless the target has to
/// authenticate.
#[test]
fn a_target_that_requires_no_chap() {
    let credential = |user: &str| Credential {
        user: user.into(),
        secret: Secret::new(user.as_bytes().to_vec()),
    };
    for expect_target in [None, Some(credential("target"))] {
        let mutual = expect_target.is_some();
        let chap = ChapAnswer {
            algorithms: ChapAlgorithm::ALL.to_vec(),
            credential: credential("initiator"),
            expect_target,
        };
        let answer = AdmissionDecision::Admit(admission(Offer::target(), None));
        let ended = run(options(Offer::initiator(), Some(chap)), &answer);
        assert_eq!(ended.initiator.is_ok(), !mutual, "{:?}", ended.initiator);
    }
}
