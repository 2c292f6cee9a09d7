//! Tests the keys of a login against the table of keys.

use super::pair::offers;
use super::*;
use crate::text::{Key, KeyStage, Pair, Senders, Use, parse};
use proptest::prelude::*;

/// A kind of login, which determines the allowed keys.
#[derive(Clone, Copy, Debug)]
struct Kind {
    leading: bool,
    discovery: bool,
    /// The initiator has a secret; the target requires it; the target has to authenticate, too.
    chap: (bool, bool, bool),
    alias: bool,
}

fn kinds() -> impl Strategy<Value = Kind> {
    let chap = prop_oneof![
        Just((false, false, false)),
        Just((true, false, false)),
        Just((true, true, false)),
        Just((true, true, true)),
    ];
    // A discovery session has one connection. RFC 7143 §13.2.
    let connections = prop_oneof![Just((true, false)), Just((true, true)), Just((false, false))];
    (connections, chap, any::<bool>()).prop_map(|((leading, discovery), chap, alias)| Kind {
        leading,
        discovery,
        chap,
        alias,
    })
}

fn credential(user: &str) -> Credential {
    Credential { user: user.into(), secret: Secret::new(user.as_bytes().to_vec()) }
}

fn log_in(kind: Kind, ours: Offer, theirs: Offer) -> LoginResult {
    let (configured, demanded, mutual) = kind.chap;
    let answer = configured.then(|| ChapAnswer {
        algorithms: ChapAlgorithm::ALL.to_vec(),
        credential: credential("initiator"),
        expect_target: mutual.then(|| credential("target")),
    });
    let requirement = demanded.then(|| ChapRequirement {
        algorithms: ChapAlgorithm::ALL.to_vec(),
        initiator: credential("initiator"),
        target: Some(credential("target")),
    });
    let mut options = options(ours, answer);
    options.tsih = if kind.leading { 0 } else { 77 };
    if !kind.alias {
        options.alias = None;
    }
    if kind.discovery {
        options.session_type = SessionType::Discovery;
        options.target_name = None;
    }
    run(options, &AdmissionDecision::Admit(admission(theirs, requirement)))
}

/// Returns the complete texts of a login's requests, each with its stage.
fn texts(requests: &[Pdu]) -> Vec<(Stage, Vec<u8>)> {
    let (mut texts, mut text) = (vec![], vec![]);
    for pdu in requests {
        let flags = LoginRequest::decode(&pdu.bhs).flags;
        text.extend_from_slice(&pdu.data);
        if !flags.has(LoginFlags::CONTINUE) {
            texts.push((flags.current(), core::mem::take(&mut text)));
        }
    }
    texts
}

/// Returns why the table of keys forbids this key in a login of this kind.
fn forbidden(kind: Kind, stage: Stage, pair: &Pair<'_>) -> Option<&'static str> {
    let Some(info) = pair.key.map(Key::info) else { return Some("a key of no table") };
    let in_stage = match info.stage {
        KeyStage::Any => true,
        KeyStage::Security => stage == Stage::SECURITY_NEGOTIATION,
        KeyStage::Operational => stage == Stage::OPERATIONAL_NEGOTIATION,
    };
    if info.senders == Senders::Target {
        Some("a key that only targets send")
    } else if info.used == Use::FullFeatureOnly {
        Some("a key of full feature phase")
    } else if info.used == Use::LeadingOnly && !kind.leading {
        Some("a key of the leading login")
    } else if info.normal_only && kind.discovery {
        Some("a key of normal sessions")
    } else if !in_stage {
        Some("a key of another stage")
    } else {
        None
    }
}

proptest! {
    /// Fault: SessionType was sent in the login of every connection; LIO refuses each further
    /// connection that sends it.
    ///
    /// Goal: in a login of any kind the initiator sends each key at most once, and only keys that
    /// the table allows there; the names come first on every connection. RFC 7143 §6.3, §13.
    #[test]
    fn every_key_is_allowed_where_it_is_sent(
        kind in kinds(), ours in offers(), theirs in offers(),
    ) {
        let ended = log_in(kind, ours, theirs);
        let mut sent_keys = vec![];
        for (at, (stage, text)) in texts(&ended.requests).iter().enumerate() {
            let pairs = parse(text).unwrap();
            for pair in &pairs {
                let why = forbidden(kind, *stage, pair);
                prop_assert_eq!(why, None, "{}={} in {:?}", pair.name, pair.value, kind);
                prop_assert!(!sent_keys.contains(&pair.key), "{} twice", pair.name);
                sent_keys.push(pair.key);
            }
            let has = |key| pairs.iter().any(|pair| pair.key == Some(key));
            if at == 0 {
                prop_assert!(has(Key::InitiatorName), "{:?}", kind);
                prop_assert_eq!(has(Key::TargetName), !kind.discovery, "{:?}", kind);
                prop_assert_eq!(has(Key::SessionType), kind.leading, "{:?}", kind);
            }
        }
    }
}

/// Goal: a session type equal to that of the session is ignored on a further connection, although
/// it is not allowed there (RFC 7143 §13.21): initiators send it. A different one is passed to the
/// target's policy to decide.
#[test]
fn a_session_type_on_a_further_connection() {
    for (sent_keys, expected) in [
        ("", SessionType::Normal),
        ("SessionType=Normal;", SessionType::Normal),
        ("SessionType=Discovery;", SessionType::Discovery),
    ] {
        let mut script = InitiatorScript::new(None);
        script.request.tsih = 5;
        let answer = script.exchange((1, 3, true), &(names() + sent_keys), (1, 3, true));
        assert!(!answer.contains("SessionType"), "{answer}");
        let established = script.ended.unwrap().unwrap();
        assert_eq!(established.join.claim.session_type, expected);
        assert_eq!(established.joined.tsih, 5);
    }
}
