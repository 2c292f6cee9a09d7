//! Violations of the login's rules by a target.

use super::*;
use crate::login::chap::Challenge;
use crate::text::value;
use proptest::prelude::*;

/// Plays the target against [`InitiatorLogin`].
struct TargetScript {
    login: InitiatorLogin,
    response: LoginResponse,
    last: Option<Pdu>,
    ended: Option<Result<Established, LoginFailure>>,
}

impl TargetScript {
    fn new(chap: Option<ChapAnswer>) -> Self {
        Self::with(options(Offer::initiator(), chap))
    }

    fn with(options: InitiatorLoginOptions) -> Self {
        let mut login = InitiatorLogin::new(options);
        let mut steps = vec![];
        login.start(&mut steps);
        let response = LoginResponse {
            first: FirstByte::plain(Opcode::LOGIN_RESPONSE),
            flags: LoginFlags::NONE,
            version_max: 0,
            version_active: 0,
            total_ahs_words: 0,
            data_segment_length: lunar_wire::U24::truncate(0),
            isid: [0x80, 1, 2, 3, 4, 5],
            tsih: 0,
            initiator_task_tag: 0x1234,
            stat_sn: SerialNumber(5),
            exp_cmd_sn: SerialNumber(123),
            max_cmd_sn: SerialNumber(123),
            status: LoginStatus::SUCCESS,
        };
        let mut play = Self { login, response, last: None, ended: None };
        play.note(steps);
        play
    }

    fn note(&mut self, steps: Vec<InitiatorStep>) {
        assert!(steps.len() <= 1, "{steps:?}");
        self.last = None;
        for step in steps {
            match step {
                InitiatorStep::Send(pdu) => self.last = Some(pdu),
                InitiatorStep::Complete(established) => self.ended = Some(Ok(*established)),
                InitiatorStep::Failed(failure) => self.ended = Some(Err(failure)),
            }
        }
    }

    /// Sends a response; returns the next request and its text, if there is one.
    fn say(&mut self, turn: StageFlags, text: &str) -> Option<(LoginRequest, String)> {
        let (current, next, transit) = turn;
        self.response.flags = LoginFlags::stage(Stage(current), transit.then_some(Stage(next)));
        self.send(text.replace(';', "\0").into_bytes())
    }

    fn send(&mut self, data: Vec<u8>) -> Option<(LoginRequest, String)> {
        let pdu = Pdu::with_data(self.response.encode(), data.into());
        self.response.stat_sn = self.response.stat_sn.next();
        let mut steps = vec![];
        if self.login.on_header(&Header::new(pdu.bhs), &mut steps) {
            self.login.on_payload(pdu.data, &mut steps);
        }
        self.note(steps);
        self.last.as_ref().map(|pdu| {
            let text = String::from_utf8(pdu.data.to_vec()).unwrap().replace('\0', ";");
            (LoginRequest::decode(&pdu.bhs), text)
        })
    }

    fn fails(mut self, turn: StageFlags, text: &str) {
        assert_eq!(self.say(turn, text), None, "{text}");
        assert!(matches!(self.ended, Some(Err(_))), "{text}: {:?}", self.ended);
        assert!(self.login.is_over());
        assert_eq!(self.say((1, 3, true), ""), None, "no request follows");
    }
}

/// Goal: invalid responses in a login without CHAP are refused.
#[test]
fn wrong_answers() {
    for text in [
        "MaxBurstLength=16777215;",
        "HeaderDigest=CRC32C;",
        "InitiatorName=iqn.a;",
        "AuthMethod=None;",
        "TargetPortalGroupTag=65536;",
        "TargetPortalGroupTag=1;TargetPortalGroupTag=1;",
        "MaxRecvDataSegmentLength=1;",
        "InitialR2T",
        "no zero",
        "X-a=Reject;",
        "IFMarker=No;",
    ] {
        let mut play = TargetScript::new(None);
        play.response.tsih = 1;
        play.fails((1, 3, true), text);
    }
    let mut play = TargetScript::new(None);
    play.response.tsih = 0;
    play.fails((1, 3, true), "");
}

/// Goal: headers that contradict the request are refused. RFC 7143 §6.3, §11.13.
#[test]
fn wrong_headers() {
    let cases: [fn(&mut LoginResponse); 9] = [
        |r| r.first = FirstByte::plain(Opcode::TEXT_RESPONSE),
        |r| r.first = FirstByte::plain(Opcode::REJECT),
        |r| r.initiator_task_tag += 1,
        |r| r.version_active = 1,
        |r| r.flags = LoginFlags::stage(Stage(0), None),
        |r| r.flags = LoginFlags::stage(Stage(1), Some(Stage(1))),
        |r| r.flags = LoginFlags::stage(Stage(1), Some(Stage(2))),
        |r| r.flags = LoginFlags(0xc7),
        |r| r.data_segment_length = lunar_wire::U24::truncate(8193),
    ];
    for (at, change) in cases.into_iter().enumerate() {
        let mut play = TargetScript::new(None);
        play.response.flags = LoginFlags::stage(Stage(1), None);
        change(&mut play.response);
        let mut steps = vec![];
        assert!(!play.login.on_header(&Header::new(play.response.encode()), &mut steps), "{at}");
        assert!(matches!(steps.as_slice(), [InitiatorStep::Failed(_)]), "{at}: {steps:?}");
    }
}

/// Goal: a target may take several rounds, propose its own keys, and respond in pieces.
#[test]
fn a_slow_target() {
    let mut play = TargetScript::new(None);
    let (request, text) = play.say((1, 0, false), "X-com.example.q=1;").unwrap();
    assert_eq!(text, "X-com.example.q=NotUnderstood;");
    assert_eq!(request.flags, LoginFlags::stage(Stage(1), Some(Stage(3))));
    assert_eq!(request.exp_stat_sn, SerialNumber(6));
    play.response.flags = LoginFlags::stage(Stage(1), None).with(LoginFlags::CONTINUE);
    let (request, text) = play.send(b"MaxBurst".to_vec()).unwrap();
    assert_eq!((request.flags, text), (LoginFlags::stage(Stage(1), None), String::new()));
    let (_, text) = play.say((1, 0, false), "Length=4096;FutureKey=2;").unwrap();
    assert_eq!(text, "FutureKey=NotUnderstood;");
    play.response.tsih = 4;
    assert_eq!(play.say((1, 3, true), ""), None);
    let established = play.ended.unwrap().unwrap();
    assert_eq!(established.session.max_burst_bytes, 4096);
    assert_eq!(established.session.first_burst_bytes, 4096);
    assert_eq!(established.connection.send_data_segment_bytes_max, 8192, "nothing was declared");
    assert_eq!(established.portal_group_tag, None);
}

/// Goal: the login reports unanswered newer keys exactly while the first response to them is due:
/// an old target closes the connection then, and the login is repeated without them.
#[test]
fn unanswered_newer_keys_are_reported() {
    let unanswered = |play: &TargetScript| play.login.newer_keys_are_unanswered();
    let mut play = TargetScript::new(None);
    assert!(unanswered(&play));
    play.say((1, 0, false), "").unwrap();
    assert!(!unanswered(&play), "the target has answered");

    let mut play = TargetScript::new(Some(chap(false)));
    assert!(!unanswered(&play), "they come in the next stage");
    let (_, text) = play.say((0, 1, true), "AuthMethod=None;").unwrap();
    assert!(text.contains("TaskReporting=") && text.contains("iSCSIProtocolLevel=2"), "{text}");
    assert!(unanswered(&play));
    play.response.tsih = 1;
    assert_eq!(play.say((1, 3, true), ""), None);
    assert!(!unanswered(&play) && play.ended.unwrap().is_ok());

    let changes: [fn(&mut InitiatorLoginOptions); 4] = [
        |options| options.tsih = 7,
        |options| options.session_type = SessionType::Discovery,
        |options| options.offer = Offer::initiator().without_newer_keys(),
        |options| options.target_name = None,
    ];
    for (at, change) in changes.into_iter().enumerate() {
        let mut options = options(Offer::initiator(), None);
        change(&mut options);
        let play = TargetScript::with(options);
        assert!(!unanswered(&play), "case {at}");
        let last_text = play.last.map(|pdu| String::from_utf8(pdu.data.to_vec()).unwrap());
        let last_text = last_text.unwrap_or_default();
        assert!(
            !last_text.contains("TaskReporting") && !last_text.contains("iSCSIProtocolLevel"),
            "{last_text}"
        );
    }
}

/// Fault: a discovery login failed when an old target answered it with TSIH 0.
///
/// Goal: a discovery session needs no handle; a normal session has one.
#[test]
fn a_discovery_session_needs_no_handle() {
    let log_in = |session_type| {
        let options = InitiatorLoginOptions { session_type, ..options(Offer::initiator(), None) };
        let mut play = TargetScript::with(options);
        assert_eq!(play.say((1, 3, true), ""), None);
        play.ended.unwrap()
    };
    assert_eq!(log_in(SessionType::Discovery).map(|established| established.tsih), Ok(0));
    assert!(log_in(SessionType::Normal).is_err());
}

/// Goal: a login that the target never ends times out.
#[test]
fn a_login_that_the_target_never_ends_fails() {
    let mut play = TargetScript::new(None);
    let mut rounds = 0;
    while play.say((1, 0, false), "").is_some() {
        rounds += 1;
    }
    assert_eq!(rounds, crate::login::target::LOGIN_PDUS_MAX);
    assert!(matches!(play.ended, Some(Err(_))));
    let mut play = TargetScript::new(None);
    play.response.flags = LoginFlags::stage(Stage(1), None).with(LoginFlags::CONTINUE);
    let mut bytes = 0;
    while play.send(vec![b'x'; 8192]).is_some() {
        bytes += 8192;
    }
    assert_eq!(bytes, crate::text::TEXT_BYTES_MAX);
}

fn credential(user: &str) -> Credential {
    Credential { user: user.into(), secret: Secret::new(user.as_bytes().to_vec()) }
}

fn chap(mutual: bool) -> ChapAnswer {
    ChapAnswer {
        algorithms: vec![ChapAlgorithm::Sha256, ChapAlgorithm::Md5],
        credential: credential("initiator"),
        expect_target: mutual.then(|| credential("target")),
    }
}

/// Goal: invalid responses during CHAP are refused.
#[test]
fn wrong_chap_steps() {
    for text in ["", "AuthMethod=SRP;", "AuthMethod=Reject;", "AuthMethod=CHAP;CHAP_A=7;"] {
        TargetScript::new(Some(chap(false))).fails((0, 0, false), text);
    }
    TargetScript::new(Some(chap(false))).fails((0, 1, true), "AuthMethod=CHAP;");
    let mut further_than_asked = TargetScript::new(Some(chap(false)));
    further_than_asked.response.tsih = 1;
    further_than_asked.fails((0, 3, true), "AuthMethod=None;");
    TargetScript::new(Some(chap(true))).fails((0, 1, true), "AuthMethod=None;");
    TargetScript::new(Some(chap(true))).fails((0, 1, true), "");
    for text in [
        "",
        "CHAP_A=7;CHAP_I=1;",
        "CHAP_A=7;CHAP_C=0x01;",
        "CHAP_A=6;CHAP_I=1;CHAP_C=0x01;",
        "CHAP_A=7;CHAP_I=256;CHAP_C=0x01;",
        "CHAP_A=7;CHAP_I=1;CHAP_C=01;",
        "CHAP_A=7;CHAP_I=1;CHAP_C=0x;",
        "CHAP_A=7;CHAP_I=1;CHAP_C=0x01;CHAP_N=me;",
        "HeaderDigest=None;",
    ] {
        let mut play = TargetScript::new(Some(chap(false)));
        let (request, answer) = play.say((0, 0, false), "AuthMethod=CHAP;").unwrap();
        assert_eq!((answer.as_str(), request.flags.0), ("CHAP_A=7,5;", 0));
        play.fails((0, 0, false), text);
    }
    let mut play = TargetScript::new(Some(chap(false)));
    play.say((0, 0, false), "AuthMethod=CHAP;").unwrap();
    let long = alloc::format!("CHAP_A=7;CHAP_I=1;CHAP_C=0x{};", "00".repeat(1025));
    play.fails((0, 0, false), &long);
}

/// Returns a play in which both challenges were sent, and the initiator's challenge.
fn challenged() -> (TargetScript, Challenge, String) {
    let mut play = TargetScript::new(Some(chap(true)));
    play.say((0, 0, false), "AuthMethod=CHAP;").unwrap();
    let (_, text) = play.say((0, 0, false), "CHAP_A=7;CHAP_I=1;CHAP_C=0x0102;").unwrap();
    let field = |key: &str| {
        let mut pairs = text.split(';').filter_map(|pair| pair.split_once('='));
        pairs.find(|(name, _)| *name == key).unwrap().1
    };
    let theirs =
        Challenge::received(ChapAlgorithm::Sha256, field("CHAP_I"), field("CHAP_C")).unwrap();
    let response = String::from(field("CHAP_R"));
    (play, theirs, response)
}

/// Goal: a target that does not authenticate is refused. RFC 7143 §9.2.1.
#[test]
fn a_target_that_fails_to_authenticate_is_refused() {
    let (mut play, challenge, _) = challenged();
    let right = value::hex_text(&challenge.response(&credential("target").secret));
    let text = alloc::format!("CHAP_N=target;CHAP_R={right};");
    let (request, _) = play.say((0, 1, true), &text).unwrap();
    assert_eq!(request.flags.current(), Stage::OPERATIONAL_NEGOTIATION);

    let own = value::hex_text(&challenge.response(&credential("initiator").secret));
    let (_, _, echo) = challenged();
    for text in [
        String::new(),
        "CHAP_N=target;".into(),
        alloc::format!("CHAP_N=other;CHAP_R={right};"),
        alloc::format!("CHAP_N=target;CHAP_R={own};"),
        alloc::format!("CHAP_N=target;CHAP_R={echo};"),
        alloc::format!("CHAP_N=target;CHAP_R={right}00;"),
        "CHAP_N=target;CHAP_R=0b;".into(),
    ] {
        let (play, _, _) = challenged();
        play.fails((0, 1, true), &text);
    }
    // Without mutual CHAP an unrequested proof is a step out of order.
    let mut play = TargetScript::new(Some(chap(false)));
    play.say((0, 0, false), "AuthMethod=CHAP;").unwrap();
    play.say((0, 0, false), "CHAP_A=7;CHAP_I=1;CHAP_C=0x0102;").unwrap();
    play.fails((0, 1, true), "CHAP_N=target;CHAP_R=0x00;");
}

/// Goal: a refusal contains the hash of our last proof, if it is the response to this proof.
#[test]
fn a_refusal_names_the_hash_of_the_proof() {
    let refused = |turns: &[&str]| {
        let mut play = TargetScript::new(Some(chap(false)));
        turns.iter().for_each(|text| drop(play.say((0, 0, false), text).unwrap()));
        play.response.status = LoginStatus::INITIATOR_ERROR;
        assert_eq!(play.say((0, 0, false), ""), None);
        play.ended.unwrap().unwrap_err().proven_by
    };
    assert_eq!(refused(&[]), None);
    assert_eq!(refused(&["AuthMethod=CHAP;"]), None);
    for (number, hash) in [(7, ChapAlgorithm::Sha256), (5, ChapAlgorithm::Md5)] {
        let challenge = alloc::format!("CHAP_A={number};CHAP_I=1;CHAP_C=0x0102;");
        assert_eq!(refused(&["AuthMethod=CHAP;", &challenge]), Some(hash));
    }
}

/// Goal: a target that guessed our challenge, and one secret for both directions, are refused
/// before any proof is sent.
#[test]
fn reused_secrets_and_guessed_challenges_are_refused() {
    let mut play = TargetScript::new(Some(chap(true)));
    play.say((0, 0, false), "AuthMethod=CHAP;").unwrap();
    let guess = alloc::format!("CHAP_A=7;CHAP_I=1;CHAP_C=0x{};", "5a".repeat(32));
    play.fails((0, 0, false), &guess);
    let same = ChapAnswer { expect_target: Some(credential("initiator")), ..chap(false) };
    let play = TargetScript::new(Some(same));
    assert!(play.last.is_none() && matches!(play.ended, Some(Err(_))));
}

proptest! {
    /// Goal: no sequence of responses makes the initiator panic, or log in without TSIH.
    #[test]
    fn random_responses(
        responses in proptest::collection::vec(
            (any::<u8>(), any::<u16>(), "([A-Z]\\PC{0,9}=\\PC{0,9};){0,5}", any::<bool>()), 1..9,
        ),
        with_chap: bool,
    ) {
        let mut play = TargetScript::new(with_chap.then(|| chap(true)));
        for (flags, status, text, success) in responses {
            play.response.flags = LoginFlags(flags);
            play.response.status = LoginStatus(if success { 0 } else { status });
            play.send(text.replace(';', "\0").into_bytes());
        }
        prop_assert!(!matches!(play.ended, Some(Ok(_))), "TSIH was 0");
    }
}
