//! Operational negotiation, key by key and as a whole.

use crate::login::SessionType;
use crate::text::{
    Digest, KEYS, Key, Negotiation, Offer, Role, Rule, TaskReporting, TextBuilder, Violation, parse,
};
use alloc::string::String;
use alloc::vec;

fn target(offer: Offer) -> Negotiation {
    Negotiation::new(Role::Target, offer, SessionType::Normal, true)
}

fn initiator(offer: Offer) -> Negotiation {
    Negotiation::new(Role::Initiator, offer, SessionType::Normal, true)
}

/// Returns the answers of `negotiation` to `text`, in which `;` stands for the zero byte.
fn answer(negotiation: &mut Negotiation, text: &str) -> Result<String, Violation> {
    let text = text.replace(';', "\0");
    let mut answers = TextBuilder::new();
    negotiation.receive(&parse(text.as_bytes())?, &mut answers)?;
    Ok(String::from_utf8(answers.into_bytes()).unwrap().replace('\0', ";"))
}

/// Goal: the target answers each kind of proposal correctly, valid or not. RFC 7143 §6.2, §13.
#[test]
fn answers_of_a_target() {
    let offer = Offer { time_to_wait_seconds: 5, initial_r2t: true, ..Offer::target() };
    for (proposal, expected) in [
        ("HeaderDigest=CRC32C,None;", "HeaderDigest=CRC32C;"),
        ("DataDigest=Y-com.example.sum,None,CRC32C;", "DataDigest=None;"),
        ("HeaderDigest=Y-com.example.sum;", "HeaderDigest=Reject;"),
        ("HeaderDigest=;", "HeaderDigest=Reject;"),
        ("MaxConnections=65535;", "MaxConnections=8;"),
        ("MaxConnections=0x2;", "MaxConnections=2;"),
        ("MaxConnections=0;", "MaxConnections=Reject;"),
        ("MaxConnections=65536;", "MaxConnections=Reject;"),
        ("MaxConnections=-1;", "MaxConnections=Reject;"),
        ("MaxBurstLength=511;", "MaxBurstLength=Reject;"),
        ("MaxBurstLength=16777215;", "MaxBurstLength=1048576;"),
        ("DefaultTime2Wait=0;", "DefaultTime2Wait=5;"),
        ("DefaultTime2Wait=3600;", "DefaultTime2Wait=3600;"),
        ("DefaultTime2Wait=3601;", "DefaultTime2Wait=Reject;"),
        ("DefaultTime2Retain=0;", "DefaultTime2Retain=0;"),
        ("InitialR2T=No;", "InitialR2T=Yes;"),
        ("ImmediateData=No;", "ImmediateData=No;"),
        ("ImmediateData=yes;", "ImmediateData=Reject;"),
        ("DataPDUInOrder=No;", "DataPDUInOrder=Yes;"),
        ("ErrorRecoveryLevel=2;", "ErrorRecoveryLevel=0;"),
        ("ErrorRecoveryLevel=3;", "ErrorRecoveryLevel=Reject;"),
        ("TaskReporting=FastAbort,ResponseFence,RFC3720;", "TaskReporting=FastAbort;"),
        ("TaskReporting=ResponseFence,RFC3720,FastAbort;", "TaskReporting=ResponseFence;"),
        ("TaskReporting=RFC3720,ResponseFence;", "TaskReporting=RFC3720;"),
        ("iSCSIProtocolLevel=0;", "iSCSIProtocolLevel=0;"),
        ("iSCSIProtocolLevel=1;", "iSCSIProtocolLevel=1;"),
        ("iSCSIProtocolLevel=2;", "iSCSIProtocolLevel=2;"),
        ("iSCSIProtocolLevel=31;", "iSCSIProtocolLevel=2;"),
        ("iSCSIProtocolLevel=32;", "iSCSIProtocolLevel=Reject;"),
        ("IFMarker=Yes;", "IFMarker=No;"),
        ("OFMarker=No;", "OFMarker=No;"),
        ("IFMarker=no;", "IFMarker=Reject;"),
        ("IFMarkInt=1~2;", "IFMarkInt=Reject;"),
        ("OFMarkInt=2048;", "OFMarkInt=Reject;"),
        ("X-com.example.a=1;", "X-com.example.a=NotUnderstood;"),
        ("FutureKey=1;", "FutureKey=NotUnderstood;"),
        ("MaxRecvDataSegmentLength=512;", ""),
        ("X#NodeArchitecture=ExampleOS/1;", ""),
    ] {
        let mut target = target(offer.clone());
        assert_eq!(answer(&mut target, proposal).as_deref(), Ok(expected), "{proposal}");
    }
}

/// Goal: no key of RFC 7143 is ever answered with NotUnderstood, with any value and in either role.
/// RFC 7143 §6.2. Method: every key of the table, values of every kind.
#[test]
fn known_keys_are_understood() {
    let values = ["", "0", "1", "Yes", "No", "None", "CRC32C", "1~2", "0x10", "FastAbort", "x,y"];
    let mut answered = 0;
    for info in KEYS {
        for value in values {
            for (role, session_type) in [
                (Role::Target, SessionType::Normal),
                (Role::Target, SessionType::Discovery),
                (Role::Initiator, SessionType::Normal),
            ] {
                for leading in [true, false] {
                    let mut side = Negotiation::new(role, Offer::target(), session_type, leading);
                    let text = alloc::format!("{}={value};", info.name);
                    let Ok(answer) = answer(&mut side, &text) else { continue };
                    assert!(!answer.contains("NotUnderstood"), "{role:?} {text} {answer}");
                    answered += usize::from(!answer.is_empty());
                }
            }
        }
    }
    assert!(answered > 500, "{answered} answers");
    for key in ["IFMarker", "OFMarker", "IFMarkInt", "OFMarkInt"] {
        assert!(KEYS.iter().any(|info| info.name == key), "{key}");
    }
}

/// Goal: defaults and result functions of every key match RFC 7143 §13.
#[test]
fn defaults_and_result_functions() {
    use crate::text::Rule::{And, FirstSupported, Maximum, Minimum, Or};
    let expected = [
        ("HeaderDigest", "None", FirstSupported),
        ("DataDigest", "None", FirstSupported),
        ("MaxConnections", "1", Minimum),
        ("InitialR2T", "Yes", Or),
        ("ImmediateData", "Yes", And),
        ("MaxRecvDataSegmentLength", "8192", Rule::Declare),
        ("MaxBurstLength", "262144", Minimum),
        ("FirstBurstLength", "65536", Minimum),
        ("DefaultTime2Wait", "2", Maximum),
        ("DefaultTime2Retain", "20", Minimum),
        ("MaxOutstandingR2T", "1", Minimum),
        ("DataPDUInOrder", "Yes", Or),
        ("DataSequenceInOrder", "Yes", Or),
        ("ErrorRecoveryLevel", "0", Minimum),
        ("SessionType", "Normal", Rule::Declare),
        ("TaskReporting", "RFC3720", FirstSupported),
        ("iSCSIProtocolLevel", "1", Minimum),
    ];
    for (name, default, rule) in expected {
        let info = Key::named(name).unwrap().info();
        assert_eq!(info.default.map(|value| info.value_text(value)).as_deref(), Some(default));
        assert_eq!(info.rule, rule, "{name}");
    }
    for role in [Role::Target, Role::Initiator] {
        let silent = Negotiation::new(role, Offer::target(), SessionType::Normal, true);
        let (session, connection) = silent.finish().unwrap();
        assert_eq!((session.max_connections, session.max_outstanding_r2t), (1, 1));
        assert!(session.initial_r2t && session.immediate_data);
        assert!(session.data_pdu_in_order && session.data_sequence_in_order);
        assert_eq!((session.max_burst_bytes, session.first_burst_bytes), (262_144, 65_536));
        assert_eq!((session.time_to_wait_seconds, session.time_to_retain_seconds), (2, 20));
        assert_eq!((session.error_recovery_level, session.protocol_level), (0, 1));
        assert_eq!(session.task_reporting, TaskReporting::Rfc3720);
        assert_eq!(connection.send_data_segment_bytes_max, 8192);
        assert!(!connection.digests.header && !connection.digests.data);
    }
}

/// Goal: violations of an initiator are refused.
#[test]
fn violations_of_an_initiator() {
    for text in [
        "MaxConnections=Reject;",
        "HeaderDigest=NotUnderstood;",
        "X-com.example.a=Irrelevant;",
        "TargetAlias=a;",
        "TargetPortalGroupTag=1;",
        "MaxRecvDataSegmentLength=511;",
        "MaxRecvDataSegmentLength=16777216;",
        "MaxRecvDataSegmentLength=many;",
        "SendTargets=All;",
        "CHAP_A=5;",
    ] {
        assert!(answer(&mut target(Offer::target()), text).is_err(), "{text}");
    }
}

/// Goal: FirstBurstLength never exceeds MaxBurstLength, in either order. §13.14.
#[test]
fn first_burst_in_any_order() {
    for texts in [
        vec!["FirstBurstLength=65536;MaxBurstLength=8192;"],
        vec!["MaxBurstLength=8192;FirstBurstLength=65536;"],
        vec!["FirstBurstLength=65536;", "MaxBurstLength=8192;"],
        vec!["MaxBurstLength=8192;", "FirstBurstLength=65536;"],
        vec!["MaxBurstLength=8192;"],
    ] {
        let mut target = target(Offer::target());
        for text in &texts {
            answer(&mut target, text).unwrap();
        }
        let (session, _) = target.finish().unwrap();
        assert_eq!(session.first_burst_bytes, 8192, "{texts:?}");
    }
}

/// Goal: a MaxBurstLength that neither side sends has its default, and no answer exceeds it; an
/// initiator proposes both. §13.14.
#[test]
fn the_default_first_burst_is_reduced() {
    let large = |offer| Offer { max_burst_bytes: 1 << 20, first_burst_bytes: 1 << 20, ..offer };
    let mut target = target(large(Offer::target()));
    let answers = answer(&mut target, "FirstBurstLength=524288;").unwrap();
    assert_eq!(answers, "FirstBurstLength=262144;");
    let answers = answer(&mut target, "MaxBurstLength=1048576;").unwrap();
    assert_eq!(answers, "MaxBurstLength=1048576;");
    assert_eq!(target.finish().unwrap().0.first_burst_bytes, 262_144);
    let mut initiator =
        Negotiation::new(Role::Initiator, large(Offer::initiator()), SessionType::Normal, true);
    let mut text = TextBuilder::new();
    initiator.propose(&mut text);
    let text = String::from_utf8(text.into_bytes()).unwrap();
    assert!(text.contains("FirstBurstLength=1048576"), "{text}");
}

/// Goal: a session key on a later connection is refused and has no effect. §13 "LO".
#[test]
fn session_keys_lead() {
    let offer = Offer::target();
    let mut target = Negotiation::new(Role::Target, offer, SessionType::Normal, false);
    let text = "MaxConnections=4;HeaderDigest=CRC32C;";
    let answers = answer(&mut target, text).unwrap();
    assert_eq!(answers, "MaxConnections=Reject;HeaderDigest=CRC32C;");
}

/// Goal: discovery sessions have one connection and ERL 0, whatever is offered. §13.21.
#[test]
fn discovery_overrides() {
    let offer = Offer { error_recovery_level: 2, max_connections: 9, ..Offer::target() };
    let mut target = Negotiation::new(Role::Target, offer, SessionType::Discovery, true);
    let answers = answer(&mut target, "MaxConnections=9;ErrorRecoveryLevel=2;").unwrap();
    assert_eq!(answers, "MaxConnections=1;ErrorRecoveryLevel=0;");
}

/// Goal: invalid answers of a target are refused, valid ones are accepted.
#[test]
fn answers_to_an_initiator() {
    let offer = Offer {
        header_digest: vec![Digest::Crc32c],
        immediate_data: false,
        task_reporting: vec![TaskReporting::ResponseFence, TaskReporting::Rfc3720],
        ..Offer::initiator()
    };
    let proposed = || {
        let mut initiator = initiator(offer.clone());
        let mut text = TextBuilder::new();
        initiator.propose(&mut text);
        initiator
    };
    for good in [
        "HeaderDigest=CRC32C;",
        "MaxBurstLength=512;",
        "MaxBurstLength=Reject;",
        "FirstBurstLength=Irrelevant;",
        "TaskReporting=NotUnderstood;",
        "DefaultTime2Wait=3600;",
        "ImmediateData=No;",
    ] {
        assert_eq!(answer(&mut proposed(), good).as_deref(), Ok(""), "{good}");
    }
    for bad in [
        "HeaderDigest=None;",
        "MaxBurstLength=511;",
        "MaxBurstLength=16777215;",
        "MaxConnections=NotUnderstood;",
        "DefaultTime2Wait=1;",
        "ImmediateData=Yes;",
        "TaskReporting=FastAbort;",
        "InitiatorAlias=me;",
        "MaxRecvDataSegmentLength=Reject;",
    ] {
        assert!(answer(&mut proposed(), bad).is_err(), "{bad}");
    }
    assert_eq!(proposed().finish(), Err(Violation::Unacceptable("HeaderDigest")));
}

/// Goal: an optional answer may be missing. RFC 7143 §6.2.2.
#[test]
fn optional_answers() {
    let offer = Offer { immediate_data: false, initial_r2t: true, ..Offer::initiator() };
    let mut initiator = initiator(offer);
    initiator.propose(&mut TextBuilder::new());
    let (session, _) = initiator.finish().unwrap();
    assert!(!session.immediate_data && session.initial_r2t);
}

/// Goal: several outstanding R2Ts are only allowed where recovery permits them. §13.19.
#[test]
fn one_r2t_with_recovery_in_order() {
    let offer = Offer { error_recovery_level: 1, ..Offer::target() };
    let mut target = target(offer);
    answer(&mut target, "ErrorRecoveryLevel=1;MaxOutstandingR2T=4;").unwrap();
    assert_eq!(target.finish().unwrap().0.max_outstanding_r2t, 1);
}

/// Goal: an empty list of digests means None; TaskReporting is proposed as §13.23 requires.
#[test]
fn incomplete_lists_of_values() {
    let offer = Offer {
        header_digest: vec![],
        task_reporting: vec![TaskReporting::FastAbort],
        ..Offer::initiator()
    };
    let mut proposer = initiator(offer);
    let mut text = TextBuilder::new();
    proposer.propose(&mut text);
    let text = String::from_utf8(text.into_bytes()).unwrap();
    assert!(text.contains("HeaderDigest=None\0"), "{text}");
    assert!(text.contains("TaskReporting=FastAbort,ResponseFence,RFC3720\0"), "{text}");
    assert!(proposer.finish().is_ok());
    let silent = Offer { task_reporting: vec![TaskReporting::Rfc3720], ..Offer::initiator() };
    let mut text = TextBuilder::new();
    initiator(silent).propose(&mut text);
    assert!(!String::from_utf8(text.into_bytes()).unwrap().contains("TaskReporting"));
}
