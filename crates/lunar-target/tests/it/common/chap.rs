//! Logins with CHAP, step by step.

use super::{TARGET, TEST_TIMEOUT};
use lunar_iscsi::login::chap::Challenge;
use lunar_iscsi::login::{ChapAlgorithm, ChapRequirement, Credential, Secret};
use lunar_target::ChapEntry;
use lunar_testkit::raw::{RawAnswer, RawClient};

/// Returns a CHAP entry for the initiator of this number, or for all initiators without an entry of
/// their own.
pub fn entry(initiator: Option<u32>, user: &str, secret: &str) -> ChapEntry {
    ChapEntry {
        initiator: initiator.map(|n| format!("iqn.2026-11.org.lunarsan.test:RAW-{n}")),
        requirement: ChapRequirement {
            algorithms: vec![ChapAlgorithm::Md5],
            initiator: Credential { user: user.into(), secret: Secret::new(secret) },
            target: None,
        },
    }
}

/// Logs in with CHAP under the initiator name of this number; returns the status.
pub fn prove(raw: &mut RawClient, number: u32, user: &str, secret: &str) -> u16 {
    match ask(raw, opening(number).as_bytes(), 0x00) {
        (0, challenge) => answer(raw, &challenge, user, secret),
        (status, _) => status,
    }
}

/// Returns the first text of a CHAP login.
pub fn opening(number: u32) -> String {
    format!(
        "InitiatorName=iqn.2026-11.org.lunarsan.test:raw-{number}\0TargetName={TARGET}\0\
         AuthMethod=CHAP\0CHAP_A=5\0"
    )
}

/// Answers the challenge in this text; returns the status.
pub fn answer(raw: &mut RawClient, text: &str, user: &str, secret: &str) -> u16 {
    let value = |key: &str| {
        let pair = text.split('\0').find(|pair| pair.starts_with(key)).unwrap();
        pair.split_once('=').unwrap().1.to_owned()
    };
    let challenge =
        Challenge::received(ChapAlgorithm::Md5, &value("CHAP_I"), &value("CHAP_C")).unwrap();
    let response = challenge.response(&Secret::new(secret));
    let response: String = response.iter().map(|byte| format!("{byte:02x}")).collect();
    let proof = format!("CHAP_N={user}\0CHAP_R=0x{response}\0");
    ask(raw, proof.as_bytes(), 0x83).0
}

/// Sends a Login Request of the security stage with these flags; returns the status and text of the
/// reply.
pub fn ask(raw: &mut RawClient, text: &[u8], flags: u8) -> (u16, String) {
    let request = raw.login(text).put(1, &[flags]);
    raw.send(&request).unwrap();
    let RawAnswer::Pdu(answer) = raw.answer(TEST_TIMEOUT).unwrap() else { panic!("no answer") };
    raw.exp_stat_sn = answer.u32_at(24).wrapping_add(1);
    let status = u16::from_be_bytes([answer.header[36], answer.header[37]]);
    (status, String::from_utf8(answer.data).unwrap())
}
