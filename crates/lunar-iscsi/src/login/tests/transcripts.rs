//! The examples of RFC 7143 Appendix B for implemented features, step by step.

use super::super::chap::Challenge;
use super::*;
use crate::text::value;

fn credential(user: &str) -> Credential {
    Credential { user: user.into(), secret: Secret::new(user.as_bytes().to_vec()) }
}

fn requirement() -> ChapRequirement {
    ChapRequirement {
        algorithms: ChapAlgorithm::ALL.to_vec(),
        initiator: credential("initiator"),
        target: Some(credential("target")),
    }
}

/// Reads our challenge from an answer of the target.
fn challenge(answer: &str) -> Challenge {
    let field = |key: &str| {
        let mut pairs = answer.split(';').filter_map(|pair| pair.split_once('='));
        pairs.find(|(name, _)| *name == key).unwrap().1
    };
    let algorithm = ChapAlgorithm::numbered(value::number(field("CHAP_A")).unwrap()).unwrap();
    Challenge::received(algorithm, field("CHAP_I"), field("CHAP_C")).unwrap()
}

/// "… the initiator and target authenticate each other via CHAP".
#[test]
fn mutual_chap() {
    let mut script = InitiatorScript::new(Some(requirement()));
    let text = names() + "AuthMethod=KRB5,CHAP,None;";
    let answer = script.exchange((0, 0, false), &text, (0, 0, false));
    assert_eq!(answer, "TargetPortalGroupTag=3;TargetAlias=a target;AuthMethod=CHAP;");
    let answer = script.exchange((0, 0, false), "CHAP_A=7,5;", (0, 0, false));
    let ours = challenge(&answer);
    assert_eq!(ours.algorithm, ChapAlgorithm::Sha256);
    let theirs = Challenge { identifier: 1, bytes: vec![7; 16], ..ours.clone() };
    let response = value::hex_text(&ours.response(&credential("initiator").secret));
    let chap_c = value::hex_text(&theirs.bytes);
    let text = alloc::format!("CHAP_N=initiator;CHAP_R={response};CHAP_I=1;CHAP_C={chap_c};");
    let answer = script.exchange((0, 1, true), &text, (0, 1, true));
    let response = value::hex_text(&theirs.response(&credential("target").secret));
    assert_eq!(answer, alloc::format!("CHAP_N=target;CHAP_R={response};"));
    let answer = script.exchange((1, 0, false), "FirstBurstLength=8192;", (1, 0, false));
    assert_eq!(answer, "FirstBurstLength=8192;MaxRecvDataSegmentLength=262144;");
    script.exchange((1, 0, false), "MaxBurstLength=8192;", (1, 0, false));
    script.exchange((1, 3, true), "", (1, 3, true));
    let established = script.ended.unwrap().unwrap();
    assert_eq!(established.join.session.first_burst_bytes, 8192);
    assert_eq!(established.join.user.as_deref(), Some("initiator"));
    assert_eq!(established.next_stat_sn, SerialNumber(7));
}

/// "… only the initiator is authenticated by the target via CHAP".
#[test]
fn one_way_chap() {
    let mut script = InitiatorScript::new(Some(ChapRequirement { target: None, ..requirement() }));
    script.exchange((0, 1, false), &(names() + "AuthMethod=KRB5,CHAP,None;"), (0, 1, false));
    let answer = script.exchange((0, 0, false), "CHAP_A=5;", (0, 0, false));
    let response = challenge(&answer).response(&credential("initiator").secret);
    let text = alloc::format!("CHAP_N=initiator;CHAP_R={};", value::hex_text(&response));
    assert_eq!(script.exchange((0, 1, true), &text, (0, 1, true)), "");
    script.exchange((1, 0, false), "MaxConnections=2;", (1, 0, false));
    script.exchange((1, 3, true), "", (1, 3, true));
    assert_eq!(script.ended.unwrap().unwrap().join.session.max_connections, 2);
}

/// "… the initiator does not offer any security parameters".
#[test]
fn operational_at_once() {
    let mut script = InitiatorScript::new(None);
    let answer = script.exchange((1, 3, true), &(names() + "InitialR2T=No;"), (1, 3, true));
    let expected = "TargetPortalGroupTag=3;TargetAlias=a target;InitialR2T=No;\
        MaxRecvDataSegmentLength=262144;";
    assert_eq!(answer, expected);
    let established = script.ended.unwrap().unwrap();
    assert_eq!(established.join.connection.send_data_segment_bytes_max, 8192);
    assert_eq!(established.join.connection.receive_data_segment_bytes_max, 262_144);
}

/// "… the initiator does offer security parameters …, but the target does not choose any".
#[test]
fn security_offered_and_declined() {
    let mut script = InitiatorScript::new(None);
    let text = names() + "AuthMethod=KRB5,SRP,None;";
    let answer = script.exchange((0, 1, true), &text, (0, 1, true));
    assert!(answer.ends_with("AuthMethod=None;"), "{answer}");
    script.exchange((1, 0, false), "ImmediateData=No;", (1, 0, false));
    script.exchange((1, 3, true), "", (1, 3, true));
    assert!(!script.ended.unwrap().unwrap().join.session.immediate_data);
}

/// §6.3.1: the initiator is willing to authenticate but proposes nothing, and the target skips
/// security.
#[test]
fn security_skipped() {
    let mut script = InitiatorScript::new(None);
    let answer = script.exchange((0, 1, true), &names(), (0, 1, true));
    assert_eq!(answer, "TargetPortalGroupTag=3;TargetAlias=a target;");
    script.exchange((1, 3, true), "", (1, 3, true));
    assert!(script.ended.unwrap().is_ok());
}

/// §6.3: from the security stage directly into full feature phase, with all defaults.
#[test]
fn no_operational_stage() {
    let mut script = InitiatorScript::new(None);
    script.exchange((0, 3, true), &(names() + "AuthMethod=None;"), (0, 3, true));
    let join = script.ended.unwrap().unwrap().join;
    assert_eq!(join.session, crate::text::SessionParameters::default());
    assert_eq!(join.connection, crate::text::ConnectionParameters::default());
}

/// Goal: libiscsi with a CHAP user logs in to a target that requires none. Method: its texts; it
/// opens the second stage with its names again, which is only allowed with unchanged values.
#[test]
fn repeated_names_in_a_login() {
    let names = "InitiatorName=iqn.a;SessionType=Normal;TargetName=iqn.t;";
    let open = |script: &mut InitiatorScript| {
        let answer = script.exchange(
            (0, 1, true),
            &alloc::format!("{names}AuthMethod=CHAP,None;"),
            (0, 1, true),
        );
        assert!(answer.ends_with("AuthMethod=None;"), "{answer}");
    };
    let mut script = InitiatorScript::new(None);
    open(&mut script);
    let answer =
        script.exchange((1, 3, true), &alloc::format!("{names}HeaderDigest=None;"), (1, 3, true));
    assert_eq!(answer, "HeaderDigest=None;MaxRecvDataSegmentLength=262144;");
    let claim = script.ended.unwrap().unwrap().join.claim;
    assert_eq!((claim.initiator_name.as_str(), claim.tsih), ("iqn.a", 0));

    for changed in ["InitiatorName=iqn.b;", "SessionType=Discovery;", "TargetName=iqn.b;"] {
        let mut script = InitiatorScript::new(None);
        open(&mut script);
        script.exchange_refused((1, 3, true), changed, LoginStatus::INITIATOR_ERROR);
    }
    let mut script = InitiatorScript::new(None);
    open(&mut script);
    script.exchange((1, 0, false), names, (1, 0, false));
    script.exchange_refused((1, 3, true), names, LoginStatus::INITIATOR_ERROR);
}
