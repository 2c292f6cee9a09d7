//! CHAP: known answers, and all attacks.

use super::super::chap::{Challenge, choose, list};
use super::*;
use crate::text::value;
use proptest::prelude::*;

/// Goal: all four hashes match an independent implementation.
/// Method: `testdata/chap.txt`, written by `testdata/make_chap.py`.
#[test]
fn known_answers() {
    let vectors = include_str!("../../../../../testdata/chap.txt");
    let unhex = |text: &str| match text {
        "-" => vec![],
        digits => value::binary(&alloc::format!("0x{digits}"), 1024).unwrap(),
    };
    let mut answers = [0; 4];
    for line in vectors.lines().filter(|line| !line.starts_with('#')) {
        let fields: Vec<&str> = line.split_whitespace().collect();
        let number = value::number(fields[0]).unwrap();
        let challenge = Challenge {
            algorithm: ChapAlgorithm::numbered(number).unwrap(),
            identifier: fields[1].parse().unwrap(),
            bytes: unhex(fields[3]),
        };
        let secret = Secret::new(unhex(fields[2]));
        let response = challenge.response(&secret);
        assert_eq!(response, unhex(fields[4]), "{line}");
        assert_eq!(response.len(), challenge.algorithm.hash_bytes());
        assert!(challenge.is_answered_by(&value::hex_text(&response), &secret));
        answers[number as usize - 5] += 1;
    }
    assert_eq!(answers, [5; 4], "five for each hash");
}

/// Goal: the proposer's order decides, unknown entries are skipped, invalid lists are refused.
#[test]
fn algorithm_lists() {
    use ChapAlgorithm::{Md5, Sha1, Sha3_256, Sha256};
    assert_eq!(choose("5,6,7,8", &ChapAlgorithm::ALL), Some(Md5));
    assert_eq!(choose("8,7,6,5", &ChapAlgorithm::ALL), Some(Sha3_256));
    assert_eq!(choose("5,6,7", &[Sha256, Sha1]), Some(Sha1));
    assert_eq!(choose("99,x,,0x7", &ChapAlgorithm::ALL), Some(Sha256));
    for refused in ["", ",", "56", "5 6", "-5", "4", "MD5", "18446744073709551621"] {
        assert_eq!(choose(refused, &ChapAlgorithm::ALL), None, "{refused}");
    }
    assert_eq!(choose("5", &[]), None);
    assert_eq!(list(&[Sha3_256, Md5]), "8,5");
}

fn credential(user: &str, secret: &str) -> Credential {
    Credential { user: user.into(), secret: Secret::new(secret.as_bytes().to_vec()) }
}

fn requirement() -> ChapRequirement {
    ChapRequirement {
        algorithms: vec![ChapAlgorithm::Sha256, ChapAlgorithm::Md5],
        initiator: credential("user", "one secret"),
        target: Some(credential("target", "another secret")),
    }
}

/// Returns a script that has received its challenge.
fn challenged(requirement: ChapRequirement) -> (InitiatorScript, Challenge) {
    let algorithm = requirement.algorithms[0];
    let mut script = InitiatorScript::new(Some(requirement));
    script.exchange((0, 1, true), &(names() + "AuthMethod=CHAP;"), (0, 1, false));
    let text = alloc::format!("CHAP_A={};", algorithm.number());
    let answer = script.exchange((0, 1, false), &text, (0, 1, false));
    let mut fields = answer.split([';', '=']);
    let mut after = |key: &str| {
        assert_eq!(fields.next(), Some(key));
        fields.next().unwrap()
    };
    assert_eq!(after("CHAP_A"), text.trim_matches(['C', 'H', 'A', 'P', '_', '=', ';']));
    let (chap_i, chap_c) = (after("CHAP_I"), after("CHAP_C"));
    let challenge = Challenge::received(algorithm, chap_i, chap_c).unwrap();
    assert_eq!(challenge.bytes.len(), algorithm.hash_bytes());
    (script, challenge)
}

fn proof(challenge: &Challenge, secret: &str) -> String {
    value::hex_text(&challenge.response(&Secret::new(secret.as_bytes().to_vec())))
}

const FAILED: LoginStatus = LoginStatus::AUTHENTICATION_FAILURE;
const WRONG: LoginStatus = LoginStatus::INITIATOR_ERROR;
const MISSING: LoginStatus = LoginStatus::MISSING_PARAMETER;

/// Goal: the right proof passes in hex of either case and in base64, padded or not, and the
/// initiator decides when the stage ends.
#[test]
fn a_correct_proof_is_accepted() {
    let hex = |response: &[u8]| value::hex_text(response);
    let upper = |response: &[u8]| value::hex_text(response).to_uppercase();
    let base64 = |response: &[u8]| {
        let engine = base64::engine::general_purpose::STANDARD;
        alloc::format!("0b{}", base64::Engine::encode(&engine, response))
    };
    let bare = |response: &[u8]| base64(response).trim_end_matches('=').into();
    let encodings: [Encoding<'_>; 4] = [&hex, &upper, &base64, &bare];
    for encoding in encodings {
        passes(encoding);
    }
}

type Encoding<'a> = &'a dyn Fn(&[u8]) -> String;

fn passes(encoding: Encoding<'_>) {
    let (mut script, challenge) = challenged(requirement());
    let response = challenge.response(&Secret::new("one secret"));
    let text = alloc::format!("CHAP_N=user;CHAP_R={};", encoding(&response));
    script.exchange((0, 1, false), &text, (0, 1, false));
    script.exchange((0, 1, true), "", (0, 1, true));
    script.exchange((1, 3, true), "", (1, 3, true));
    let established = script.ended.unwrap().unwrap();
    assert_eq!(established.join.user.as_deref(), Some("user"));
}

/// Goal: every wrong proof is refused with 0201h, and none is accepted partially.
#[test]
fn wrong_proofs() {
    let right = |challenge: &Challenge| proof(challenge, "one secret");
    type WrongProof = fn(&str) -> String;
    let wrong: [(&str, WrongProof); 8] = [
        ("user", |_| "0x00".into()),
        ("user", |right| right[..right.len() - 2].into()),
        ("user", |right| alloc::format!("{right}00")),
        ("user", |right| right.trim_start_matches("0x").into()),
        ("user", |_| alloc::format!("0b{}", "A".repeat(2000))),
        ("User", |right| right.into()),
        ("", |right| right.into()),
        ("userx", |right| right.into()),
    ];
    for (user, response) in wrong {
        let (mut script, challenge) = challenged(requirement());
        let text = alloc::format!("CHAP_N={user};CHAP_R={};", response(&right(&challenge)));
        script.exchange_refused((0, 1, true), &text, FAILED);
    }
    let (mut script, challenge) = challenged(requirement());
    let text = alloc::format!("CHAP_N=user;CHAP_R={};", proof(&challenge, "another secret"));
    script.exchange_refused((0, 1, true), &text, FAILED);
}

/// Goal: missing or misordered steps are refused. Conformance notes 31.
#[test]
fn steps_out_of_order() {
    for (text, status) in [
        ("", MISSING),
        ("CHAP_N=user;", MISSING),
        ("CHAP_R=0x00;", MISSING),
        ("CHAP_A=7;", WRONG),
        ("AuthMethod=None;", WRONG),
        ("HeaderDigest=None;", WRONG),
        ("InitiatorName=iqn.other;", WRONG),
        ("TargetPortalGroupTag=1;", WRONG),
    ] {
        let (mut script, _) = challenged(requirement());
        script.exchange_refused((0, 1, true), text, status);
    }
    for (text, status) in [
        ("AuthMethod=None;", FAILED),
        ("AuthMethod=SRP,KRB5;", FAILED),
        ("AuthMethod=;", FAILED),
        ("AuthMethod=CHAP;CHAP_A=;", FAILED),
        ("AuthMethod=CHAP;CHAP_A=56;", FAILED),
        ("CHAP_A=7;", WRONG),
        ("CHAP_N=user;CHAP_R=0x00;", WRONG),
        ("AuthMethod=CHAP;CHAP_N=user;", WRONG),
        ("MaxConnections=1;", WRONG),
    ] {
        let mut script = InitiatorScript::new(Some(requirement()));
        script.exchange_refused((0, 1, true), &(names() + text), status);
    }
    let mut script = InitiatorScript::new(Some(requirement()));
    script.exchange((0, 1, true), &(names() + "AuthMethod=CHAP;"), (0, 1, false));
    script.exchange_refused((0, 1, true), "", MISSING);
    let mut script = InitiatorScript::new(Some(requirement()));
    script.exchange_refused((1, 3, true), &names(), FAILED);
}

/// Goal: an initiator that proposes nothing gets a proposal of CHAP, once. RFC 7143 §6.3.2.
#[test]
fn the_target_proposes() {
    for (text, status) in [("", MISSING), ("AuthMethod=Reject;", FAILED)] {
        let mut script = InitiatorScript::new(Some(requirement()));
        let answer = script.exchange((0, 1, true), &names(), (0, 1, false));
        assert!(answer.ends_with("AuthMethod=CHAP;"), "{answer}");
        script.exchange_refused((0, 1, true), text, status);
    }
    let mut script = InitiatorScript::new(Some(requirement()));
    script.exchange((0, 1, true), &names(), (0, 1, false));
    let answer = script.exchange((0, 1, false), "AuthMethod=CHAP;CHAP_A=5;", (0, 1, false));
    assert!(answer.starts_with("CHAP_A=5;CHAP_I="), "{answer}");
}

/// Goal: mutual CHAP proves the target; each attack of RFC 7143 §9.2.1 is refused.
#[test]
fn mutual_attacks() {
    let theirs = Challenge { algorithm: ChapAlgorithm::Sha256, identifier: 9, bytes: vec![1; 32] };
    let asked = |challenge: &Challenge, chap_c: &str| {
        let response = proof(challenge, "one secret");
        alloc::format!("CHAP_N=user;CHAP_R={response};CHAP_I=9;CHAP_C={chap_c};")
    };
    let (mut script, challenge) = challenged(requirement());
    let text = asked(&challenge, &value::hex_text(&theirs.bytes));
    let answer = script.exchange((0, 1, true), &text, (0, 1, true));
    let expected = proof(&theirs, "another secret");
    assert_eq!(answer, alloc::format!("CHAP_N=target;CHAP_R={expected};"));

    let (mut script, challenge) = challenged(requirement());
    let reflected = asked(&challenge, &value::hex_text(&challenge.bytes));
    script.exchange_refused((0, 1, true), &reflected, FAILED);

    let same =
        ChapRequirement { target: Some(credential("target", "one secret")), ..requirement() };
    let (mut script, challenge) = challenged(same);
    script.exchange_refused((0, 1, true), &asked(&challenge, "0x01"), FAILED);

    let (mut script, challenge) = challenged(ChapRequirement { target: None, ..requirement() });
    script.exchange_refused((0, 1, true), &asked(&challenge, "0x01"), FAILED);

    let (mut script, challenge) = challenged(requirement());
    let longest = alloc::format!("0x{}", "5a".repeat(1024));
    script.exchange((0, 1, true), &asked(&challenge, &longest), (0, 1, true));

    for (chap_c, status) in [("0x", WRONG), ("plain", WRONG), ("0b====", WRONG)] {
        let (mut script, challenge) = challenged(requirement());
        script.exchange_refused((0, 1, true), &asked(&challenge, chap_c), status);
    }
    let (mut script, challenge) = challenged(requirement());
    let long = alloc::format!("0x{}", "00".repeat(1025));
    script.exchange_refused((0, 1, true), &asked(&challenge, &long), WRONG);
    let (mut script, challenge) = challenged(requirement());
    let half = asked(&challenge, "0x01").replace("CHAP_I=9;", "");
    script.exchange_refused((0, 1, true), &half, MISSING);
}

/// Goal: a response that the target would have sent itself is a failure, also if the target was not
/// asked for a proof. RFC 7143 §9.2.1: "If the CHAP response received by one end of an iSCSI
/// connection is the same as the CHAP response that the receiving endpoint would have generated for
/// the same CHAP challenge, the response MUST be treated as an authentication failure".
#[test]
fn a_reflected_chap_response_is_refused() {
    let same =
        ChapRequirement { target: Some(credential("target", "one secret")), ..requirement() };
    let (mut script, challenge) = challenged(same);
    let text = alloc::format!("CHAP_N=user;CHAP_R={};", proof(&challenge, "one secret"));
    script.exchange_refused((0, 1, true), &text, FAILED);
}

/// Goal: AuthMethod is None only if None was offered. RFC 7143 §6.2.1.
#[test]
fn authmethod_none_only_if_offered() {
    for (offered, chosen) in [("None", true), ("CHAP,None", true), ("CHAP", false), ("KRB5", false)]
    {
        let mut script = InitiatorScript::new(None);
        let text = alloc::format!("{}AuthMethod={offered};", names());
        if chosen {
            let answer = script.exchange((0, 1, true), &text, (0, 1, true));
            assert!(answer.ends_with("AuthMethod=None;"), "{answer}");
        } else {
            script.exchange_refused((0, 1, true), &text, FAILED);
        }
    }
}

/// Goal: fresh random bytes make fresh challenges; the secret is never shown.
#[test]
fn challenges_and_secrets() {
    let one = Challenge::fresh(ChapAlgorithm::Md5, &[1; 33]);
    let other = Challenge::fresh(ChapAlgorithm::Md5, &[2; 33]);
    assert_ne!(one, other);
    let shown =
        alloc::format!("{:?}", Credential { user: "u".into(), secret: Secret::new("s3cr") });
    assert!(!shown.contains("s3cr"), "{shown}");
}

proptest! {
    /// Goal: random text in place of CHAP values never logs in and never panics.
    #[test]
    fn random_proofs(user in "[ -~]{0,40}", response in "[ -~]{0,300}", more in "[ -~]{0,99}") {
        let (mut script, _) = challenged(requirement());
        let text = alloc::format!("CHAP_N={user};CHAP_R={response};CHAP_I=1;CHAP_C={more};");
        let (answer, _) = script.say((0, 1, true), &text).unwrap();
        prop_assert_ne!(answer.status, LoginStatus::SUCCESS);
    }
}
