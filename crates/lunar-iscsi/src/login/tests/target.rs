//! Violations of the login's rules by an initiator.

use super::*;
use crate::login::chap::Challenge;
use crate::login::target::{LOGIN_PDUS_MAX, Step};
use crate::pdu::{BasicHeader, TAG_RESERVED};
use crate::text::{PAIRS_MAX, TEXT_BYTES_MAX, value};
use proptest::prelude::*;

const WRONG: LoginStatus = LoginStatus::INITIATOR_ERROR;

/// Goal: names, session type and their absence in the first request are handled. RFC 7143 §6.3.1.
#[test]
fn the_first_request() {
    let missing = LoginStatus::MISSING_PARAMETER;
    for (text, status) in [
        ("", missing),
        ("InitiatorName=iqn.a;", missing),
        ("TargetName=iqn.a;", missing),
        ("InitiatorName=;TargetName=iqn.a;", WRONG),
        ("InitiatorName=iqn.\u{7};TargetName=iqn.a;", WRONG),
        ("InitiatorName=iqn.a;SessionType=Other;", WRONG),
        ("InitiatorName=iqn.a;InitiatorName=iqn.a;TargetName=iqn.b;", WRONG),
        ("InitiatorName=iqn.a;TargetName=iqn.b;MaxConnections=1;MaxConnections=1;", WRONG),
        ("InitiatorName=iqn.a;TargetName=iqn.b", WRONG),
        ("garbage;", WRONG),
    ] {
        InitiatorScript::new(None).exchange_refused((1, 3, true), text, status);
    }
    let mut script = InitiatorScript::new(None);
    let text = "InitiatorName=IQN.A;SessionType=Discovery;";
    let answer = script.exchange((1, 3, true), text, (1, 3, true));
    assert!(answer.starts_with("TargetPortalGroupTag=3;MaxRecv"), "no alias: {answer}");
    let claim = script.ended.unwrap().unwrap().join.claim;
    assert_eq!(claim.initiator_name, "iqn.a", "in lower case");
    assert_eq!((claim.target_name, claim.session_type), (None, SessionType::Discovery));
}

/// Goal: no name exceeds the maximum length in lower case: saved with a registration it would be
/// cut, two names would become equal, and the unit's state could not be read again. Method: a
/// letter of two bytes whose lower case has three, as often as fits before and after.
#[test]
fn names_are_no_longer_in_lower_case() {
    for (letters, fits) in [(73, true), (74, false), (109, false)] {
        let name = "\u{23a}".repeat(letters);
        let text = alloc::format!("InitiatorName=iqn.{name};SessionType=Discovery;");
        let mut script = InitiatorScript::new(None);
        if fits {
            script.exchange((1, 3, true), &text, (1, 3, true));
            let claim = script.ended.unwrap().unwrap().join.claim;
            assert_eq!(claim.initiator_name.len(), 223);
        } else {
            script.exchange_refused((1, 3, true), &text, WRONG);
        }
    }
}

/// Goal: each rule of the header is checked. RFC 7143 §11.12.
#[test]
fn headers() {
    type Change = fn(&mut LoginRequest);
    let cases: [(&str, Change, LoginStatus); 9] = [
        ("version", |r| (r.version_min, r.version_max) = (1, 1), LoginStatus::UNSUPPORTED_VERSION),
        ("stage 2", |r| r.flags = LoginFlags::stage(Stage(2), None), WRONG),
        ("stage 3", |r| r.flags = LoginFlags::stage(Stage(3), None), WRONG),
        ("1 to 1", |r| r.flags = LoginFlags::stage(Stage(1), Some(Stage(1))), WRONG),
        ("1 to 0", |r| r.flags = LoginFlags::stage(Stage(1), Some(Stage(0))), WRONG),
        ("0 to 2", |r| r.flags = LoginFlags::stage(Stage(0), Some(Stage(2))), WRONG),
        ("T and C", |r| r.flags = LoginFlags(0xc7), WRONG),
        ("a tag", |r| r.initiator_task_tag = TAG_RESERVED, WRONG),
        ("AHS", |r| r.total_ahs_words = 1, WRONG),
    ];
    for (what, change, status) in cases {
        let mut script = InitiatorScript::new(None);
        script.request.flags = LoginFlags::stage(Stage(1), Some(Stage(3)));
        change(&mut script.request);
        let (response, _) = script.send(names().replace(';', "\0").into_bytes()).unwrap();
        script.assert_refused(response, status, what);
    }
}

/// Goal: fields that must stay the same during a login are checked. RFC 7143 §11.12.4 to §11.12.8.
#[test]
fn names_cannot_change_during_a_login() {
    let changes: [fn(&mut LoginRequest); 6] = [
        |r| r.isid[5] ^= 1,
        |r| r.tsih = 1,
        |r| r.cid += 1,
        |r| r.initiator_task_tag += 1,
        |r| r.version_max = 1,
        |r| r.cmd_sn = r.cmd_sn.next(),
    ];
    for change in changes {
        let mut script = InitiatorScript::new(None);
        script.exchange((1, 0, false), &names(), (1, 0, false));
        change(&mut script.request);
        script.exchange_refused((1, 3, true), "", WRONG);
    }
    // In an existing session, other connections continue. §11.12.8.
    let mut script = InitiatorScript::new(None);
    script.request.tsih = 5;
    script.exchange((1, 0, false), &names(), (1, 0, false));
    script.request.cmd_sn = script.request.cmd_sn.plus(3);
    script.exchange((1, 3, true), "", (1, 3, true));
    let established = script.ended.unwrap().unwrap();
    assert_eq!((established.join.claim.tsih, established.joined.tsih), (5, 5));
    assert_eq!(established.join.cmd_sn, SerialNumber(126));
}

/// Goal: stages are entered as negotiated, keys stay in their stage, and come once. RFC 7143 §6.3.
#[test]
fn stages_and_keys() {
    let mut script = InitiatorScript::new(None);
    script.exchange((0, 1, true), &(names() + "AuthMethod=None;"), (0, 1, true));
    script.exchange_refused((0, 1, true), "", WRONG);
    for text in [
        "SendTargets=All;",
        "SessionType=Normal;",
        "TargetName=iqn.b;",
        "TargetAddress=a;",
        "HeaderDigest=Reject;",
        "X-a=1;X-a=2;",
    ] {
        let mut script = InitiatorScript::new(None);
        script.exchange((1, 0, false), &names(), (1, 0, false));
        script.exchange_refused((1, 3, true), text, WRONG);
    }
    let mut script = InitiatorScript::new(None);
    script.exchange((1, 0, false), &(names() + "MaxBurstLength=512;"), (1, 0, false));
    script.exchange_refused((1, 3, true), "MaxBurstLength=512;", WRONG);
}

fn requirement() -> ChapRequirement {
    ChapRequirement {
        algorithms: ChapAlgorithm::ALL.to_vec(),
        initiator: Credential { user: "u".into(), secret: Secret::new("s") },
        target: None,
    }
}

/// Fault: AuthMethod=None in the operational stage ended the login of initiators that propose
/// it there, although no authentication was required.
///
/// Goal: the key is answered with None in the first request or a later one, once in a login, and
/// only if the initiator accepts no authentication.
#[test]
fn a_late_auth_method_without_authentication() {
    for methods in ["None", "CHAP,None", "None,CHAP", "KRB5,X-a,None"] {
        let text = alloc::format!("AuthMethod={methods};MaxBurstLength=512;");
        let mut first = InitiatorScript::new(None);
        let answer = first.exchange((1, 3, true), &(names() + &text), (1, 3, true));
        assert!(answer.contains("AuthMethod=None;MaxBurstLength=512;"), "{answer}");
        let join = first.ended.unwrap().unwrap().join;
        assert_eq!((join.user, join.session.max_burst_bytes), (None, 512));
        let mut later = InitiatorScript::new(None);
        later.exchange((1, 0, false), &names(), (1, 0, false));
        let answer = later.exchange((1, 3, true), &text, (1, 3, true));
        assert_eq!(answer, "AuthMethod=None;MaxBurstLength=512;");
        assert!(later.ended.unwrap().is_ok());
    }
    for methods in ["CHAP", "none", "", "NoneX", "SRP,CHAP"] {
        let text = names() + &alloc::format!("AuthMethod={methods};");
        let mut script = InitiatorScript::new(None);
        script.exchange_refused((1, 3, true), &text, LoginStatus::AUTHENTICATION_FAILURE);
    }
    // The security stage has already negotiated the method.
    let mut twice = InitiatorScript::new(None);
    twice.exchange((0, 1, true), &(names() + "AuthMethod=None;"), (0, 1, true));
    twice.exchange_refused((1, 3, true), "AuthMethod=None;", WRONG);
    let mut twice = InitiatorScript::new(None);
    twice.exchange((1, 0, false), &(names() + "AuthMethod=None;"), (1, 0, false));
    twice.exchange_refused((1, 3, true), "AuthMethod=None;", WRONG);
    // Keys of CHAP stay keys of the security stage.
    for text in ["AuthMethod=None;CHAP_A=5;", "CHAP_A=5;", "CHAP_N=u;CHAP_R=0x00;"] {
        InitiatorScript::new(None).exchange_refused((1, 3, true), &(names() + text), WRONG);
    }
}

/// Goal: if authentication is required, no key in the operational stage replaces it: neither in a
/// login that begins there, nor in one that leaves the security stage for it.
#[test]
fn a_late_auth_method_does_not_authenticate() {
    let failure = LoginStatus::AUTHENTICATION_FAILURE;
    for text in ["", "AuthMethod=None;", "AuthMethod=CHAP;", "AuthMethod=CHAP,None;"] {
        for turn in [(1, 3, true), (1, 0, false)] {
            InitiatorScript::new(Some(requirement())).exchange_refused(
                turn,
                &(names() + text),
                failure,
            );
        }
    }
    InitiatorScript::new(Some(requirement())).exchange_refused(
        (0, 1, true),
        &(names() + "AuthMethod=None;"),
        failure,
    );
    // The stage cannot be left before the proof, however often this is requested.
    let mut script = InitiatorScript::new(Some(requirement()));
    script.exchange((0, 1, true), &names(), (0, 0, false));
    script.exchange_refused((1, 3, true), "AuthMethod=None;", WRONG);
    let mut script = InitiatorScript::new(Some(requirement()));
    script.exchange((0, 3, true), &(names() + "AuthMethod=CHAP;"), (0, 0, false));
    script.exchange_refused((0, 3, true), "AuthMethod=None;", WRONG);
    // After the proof, the method cannot be negotiated again.
    let mut script = InitiatorScript::new(Some(requirement()));
    let text = names() + "AuthMethod=CHAP;CHAP_A=5;";
    let challenge = script.exchange((0, 0, false), &text, (0, 0, false));
    let response = response_to(&challenge);
    script.exchange((0, 1, true), &response, (0, 1, true));
    script.exchange_refused((1, 3, true), "AuthMethod=None;", WRONG);
}

/// Builds the proof of the secret of [`requirement`] by MD5.
fn response_to(challenge: &str) -> String {
    let field = |key: &str| {
        let mut pairs = challenge.split(';').filter_map(|pair| pair.split_once('='));
        pairs.find(|(name, _)| *name == key).unwrap().1
    };
    let theirs = Challenge::received(ChapAlgorithm::Md5, field("CHAP_I"), field("CHAP_C")).unwrap();
    let response = value::hex_text(&theirs.response(&Secret::new("s")));
    alloc::format!("CHAP_N=u;CHAP_R={response};")
}

/// Goal: a PDU other than a Login Request is refused, before and after the login began.
/// RFC 7143 §4.2.4.
#[test]
fn other_requests() {
    for opcode in (0..=0x3f).map(Opcode).filter(|opcode| *opcode != Opcode::LOGIN_REQUEST) {
        let mut header = [0; 48];
        header[0] = opcode.0;
        let mut steps = vec![];
        let mut target = TargetLogin::new(SerialNumber(0), TEXT_BYTES_MAX);
        assert!(!target.on_header(&Header::new(header), &mut steps));
        assert!(matches!(steps.as_slice(), [Step::Close(_)]), "{steps:?}");
        assert!(target.is_over());

        let mut script = InitiatorScript::new(None);
        script.exchange((1, 0, false), &names(), (1, 0, false));
        steps.clear();
        assert!(!script.target.on_header(&Header::new(header), &mut steps));
        let invalid = LoginStatus::INVALID_DURING_LOGIN;
        assert!(
            matches!(steps.as_slice(), [Step::Send(_), Step::Refused(status)] if *status == invalid)
        );
    }
}

/// Goal: while an answer of the driver is due, a second request is refused, and a late answer is
/// ignored.
#[test]
fn one_request_outstanding() {
    let mut target = TargetLogin::new(SerialNumber(0), TEXT_BYTES_MAX);
    let mut script = InitiatorScript::new(None);
    script.request.flags = LoginFlags::stage(Stage(1), Some(Stage(3)));
    let text = names().replace(';', "\0").into_bytes();
    let pdu = Pdu::with_data(script.request.encode(), text.into());
    let mut steps = vec![];
    assert!(target.on_header(&Header::new(pdu.bhs), &mut steps));
    target.on_payload(pdu.data, &mut steps);
    assert!(matches!(steps.as_slice(), [Step::Identify(_)]) && target.is_waiting_for_driver());
    target.joined(Err(WRONG), &mut steps);
    assert_eq!(steps.len(), 1, "the requested stage was not granted");
    steps.clear();
    assert!(!target.on_header(&Header::new(pdu.bhs), &mut steps));
    assert!(matches!(steps.as_slice(), [Step::Send(_), Step::Refused(WRONG)]), "{steps:?}");
    steps.clear();
    target.identified(script.answer.clone(), &mut steps);
    assert!(steps.is_empty() && target.is_over());
}

/// Goal: the session's refusal reaches the initiator.
#[test]
fn a_login_refused_by_the_session() {
    let mut script = InitiatorScript::new(None);
    script.request.flags = LoginFlags::stage(Stage(1), Some(Stage(3)));
    let text = names().replace(';', "\0").into_bytes();
    let pdu = Pdu::with_data(script.request.encode(), text.into());
    let mut steps = vec![];
    script.target.on_header(&Header::new(pdu.bhs), &mut steps);
    script.target.on_payload(pdu.data, &mut steps);
    script.target.identified(script.answer.clone(), &mut steps);
    assert!(matches!(steps.as_slice(), [Step::Identify(_), Step::Join(_)]), "{steps:?}");
    let gone = LoginStatus::SESSION_DOES_NOT_EXIST;
    steps.clear();
    script.target.joined(Err(gone), &mut steps);
    let [Step::Send(pdu), Step::Refused(status)] = steps.as_slice() else { panic!("{steps:?}") };
    assert_eq!((*status, LoginResponse::decode(&pdu.bhs).status), (gone, gone));
}

/// Goal: a data segment of exactly 8192 bytes is accepted, one byte more is not. Method: an alias
/// cannot be that long, so unknown keys fill the text.
#[test]
fn segments_around_8192_bytes() {
    for (length, fits) in [(8191, true), (8192, true), (8193, false)] {
        let mut text = names().replace(';', "\0").into_bytes();
        text.extend_from_slice(b"X-fill=");
        text.resize(length - 1, b'x');
        text.push(0);
        let mut script = InitiatorScript::new(None);
        script.request.flags = LoginFlags::stage(Stage(1), Some(Stage(3)));
        let (response, answer) = script.send(text).unwrap();
        if fits {
            assert_eq!(response.status, LoginStatus::SUCCESS);
            assert!(answer.contains("X-fill=NotUnderstood;"), "{answer}");
        } else {
            script.assert_refused(response, WRONG, "8193 bytes");
        }
    }
}

/// Goal: endless text and endless requests end at their limits.
#[test]
fn a_login_that_never_ends_is_closed() {
    let mut script = InitiatorScript::new(None);
    script.request.flags = LoginFlags::stage(Stage(1), None).with(LoginFlags::CONTINUE);
    let mut bytes = 0;
    let refused = loop {
        let (response, answer) = script.send(vec![b'x'; 8000]).unwrap();
        if response.status != LoginStatus::SUCCESS {
            break response;
        }
        assert_eq!(answer, "");
        bytes += 8000;
    };
    assert_eq!(bytes, TEXT_BYTES_MAX / 8000 * 8000);
    script.assert_refused(refused, WRONG, "too much text");

    let mut script = InitiatorScript::new(None);
    script.exchange((1, 0, false), &names(), (1, 0, false));
    for _ in 1..LOGIN_PDUS_MAX {
        script.exchange((1, 0, false), "", (1, 0, false));
    }
    script.exchange_refused((1, 0, false), "", WRONG);
}

/// Goal: the answer to many unknown keys is split by the C bit, fetched with empty requests, and
/// the transit granted with its last piece.
#[test]
fn a_long_answer() {
    let keys: String = (0..PAIRS_MAX - 10).map(|at| alloc::format!("X-{at:055}=;")).collect();
    let text = (names() + &keys).replace(';', "\0").into_bytes();
    let (head, tail) = text.split_at(8192);
    let mut script = InitiatorScript::new(None);
    script.request.flags = LoginFlags::stage(Stage(1), None).with(LoginFlags::CONTINUE);
    let (_, answer) = script.send(head.to_vec()).unwrap();
    assert_eq!(answer, "");
    script.request.flags = LoginFlags::stage(Stage(1), Some(Stage(3)));
    let (response, first) = script.send(tail.to_vec()).unwrap();
    assert_eq!(response.flags, LoginFlags::stage(Stage(1), None).with(LoginFlags::CONTINUE));
    assert_eq!(first.len(), 8192);
    assert!(script.ended.is_none());
    let rest = script.exchange((1, 3, true), "", (1, 3, true));
    let answer = first + &rest;
    assert_eq!(answer.matches("=NotUnderstood;").count(), PAIRS_MAX - 10);
    assert!(script.ended.unwrap().is_ok());

    // An initiator that sends text instead of fetching is out of turn.
    let mut script = InitiatorScript::new(None);
    script.request.flags = LoginFlags::stage(Stage(1), None).with(LoginFlags::CONTINUE);
    script.send(head.to_vec());
    script.request.flags = LoginFlags::stage(Stage(1), Some(Stage(3)));
    script.send(tail.to_vec());
    script.exchange_refused((1, 3, true), "X-more=1;", WRONG);
}

proptest! {
    /// Goal: however the C bit splits the first text, the login ends the same.
    #[test]
    fn any_split(cuts in proptest::collection::vec(0usize..400, 0..40)) {
        let text = (names() + "HeaderDigest=CRC32C;MaxBurstLength=0x4000;FirstBurstLength=9000;\
            X-com.example.a=1;InitialR2T=No;").replace(';', "\0");
        let mut whole = InitiatorScript::new(None);
        let expected = whole.say((1, 3, true), &text).unwrap();
        let mut cuts: Vec<usize> = cuts.into_iter().map(|cut| cut.min(text.len())).collect();
        cuts.sort_unstable();
        let mut script = InitiatorScript::new(None);
        let mut at = 0;
        for cut in cuts {
            script.request.flags =
                LoginFlags::stage(Stage(1), None).with(LoginFlags::CONTINUE);
            let (response, answer) = script.send(text.as_bytes()[at..cut].to_vec()).unwrap();
            prop_assert_eq!(response.flags, LoginFlags::stage(Stage(1), None));
            prop_assert_eq!(answer, "");
            at = cut;
        }
        let (response, answer) = script.say((1, 3, true), &text[at..]).unwrap();
        let stat_sn = expected.0.stat_sn;
        prop_assert_eq!(LoginResponse { stat_sn, ..response }, expected.0);
        prop_assert_eq!(answer, expected.1);
        let join = |script: InitiatorScript| script.ended.unwrap().unwrap().join;
        prop_assert_eq!(join(script), join(whole));
    }

    /// Goal: no sequence of PDUs makes the target panic, respond twice, or send after its end.
    #[test]
    fn random_requests(
        requests in proptest::collection::vec((any::<u8>(), "(\\PC{0,9}=\\PC{0,9};){0,5}"), 1..9),
        raw in proptest::collection::vec(any::<u8>(), 0..99),
        demanded: bool,
    ) {
        let mut script = InitiatorScript::new(demanded.then(requirement));
        for (flags, text) in &requests {
            script.request.flags = LoginFlags(*flags);
            let text = names() + text;
            let sent = script.send(text.replace(';', "\0").into_bytes());
            prop_assert_eq!(sent.is_some() || script.target.is_over(), true);
            if demanded {
                let admitted = matches!(script.ended, Some(Ok(_)));
                prop_assert!(!admitted, "admitted without authentication");
            }
        }
        let mut script = InitiatorScript::new(None);
        script.request.flags = LoginFlags(requests[0].0);
        script.send(raw);
    }

    /// Goal: no header causes a panic.
    #[test]
    fn random_headers(headers in proptest::collection::vec(any::<[u8; 24]>(), 1..9)) {
        let mut target = TargetLogin::new(SerialNumber(0), TEXT_BYTES_MAX);
        for start in headers {
            let mut bhs = [0; 48];
            bhs[..24].copy_from_slice(&start);
            bhs[0] = if start[0] < 0x80 { 0x43 } else { start[0] };
            let mut steps = vec![];
            let length = BasicHeader::decode(&bhs).data_segment_length.value();
            if target.on_header(&Header::new(bhs), &mut steps) {
                prop_assert!((1..=8192).contains(&length));
                target.on_payload(vec![0; length as usize].into(), &mut steps);
            }
            prop_assert!(steps.len() <= 2);
        }
    }
}
