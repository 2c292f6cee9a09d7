//! A hostile login: a sequence of PDUs at a target, or at an initiator.

use lunar_iscsi::framing::{Header, Pdu};
use lunar_iscsi::login::initiator::{self, ChapAnswer, InitiatorLogin, InitiatorLoginOptions};
use lunar_iscsi::login::target::{LOGIN_SEGMENT_BYTES_MAX, Step, TargetLogin};
use lunar_iscsi::login::{
    Admission, AdmissionDecision, ChapAlgorithm, ChapRequirement, Credential, Joined, Secret,
    SessionType,
};
use lunar_iscsi::text::{Offer, TEXT_BYTES_MAX};
use lunar_wire::SerialNumber;

/// Runs an input. The first byte selects: bit 0 the attacked role, bit 1 whether it requires CHAP.
/// PDUs follow: index and new value of one header byte, the flags, and a text up to the next FFh.
pub fn run(input: &[u8]) {
    let Some((choice, pdus)) = input.split_first() else { return };
    let with_chap = choice & 2 != 0;
    let pdus = pdus.split(|byte| *byte == 0xff);
    if choice & 1 == 0 { at_target(pdus, with_chap) } else { at_initiator(pdus, with_chap) }
}

fn credential(user: &str, secret: &str) -> Credential {
    Credential { user: user.into(), secret: Secret::new(secret.as_bytes().to_vec()) }
}

/// Builds a PDU of an opcode, with one header byte changed.
fn pdu(opcode: u8, piece: &[u8]) -> Pdu {
    let [at, value, flags, text @ ..] = piece else { return Pdu::new([opcode; 48]) };
    let mut bhs = [0; 48];
    (bhs[0], bhs[1], bhs[19]) = (opcode, *flags, 1);
    if let Some(byte) = bhs.get_mut(usize::from(*at)) {
        *byte = *value;
    }
    Pdu::with_data(bhs, text.to_vec().into())
}

fn at_target<'a>(pdus: impl Iterator<Item = &'a [u8]>, with_chap: bool) {
    let mut target = TargetLogin::new(SerialNumber(0), TEXT_BYTES_MAX);
    let requirement = ChapRequirement {
        algorithms: ChapAlgorithm::ALL.to_vec(),
        initiator: credential("user", "never sent"),
        target: Some(credential("target", "never sent either")),
    };
    let admission = Admission {
        portal_group_tag: 1,
        target_alias: None,
        chap: with_chap.then_some(requirement),
        offer: Offer::target(),
        entropy: [7; 33],
    };
    for piece in pdus {
        let pdu = pdu(0x43, piece);
        let mut steps = Vec::new();
        if target.on_header(&Header::new(pdu.bhs), &mut steps) {
            assert!(pdu.data.len() <= LOGIN_SEGMENT_BYTES_MAX);
            target.on_payload(pdu.data, &mut steps);
        }
        let mut responses = 0;
        while let Some(step) = (!steps.is_empty()).then(|| steps.remove(0)) {
            match step {
                Step::Identify(_) => {
                    target.identified(AdmissionDecision::Admit(admission.clone()), &mut steps);
                }
                Step::Join(join) => {
                    let exp_cmd_sn = join.cmd_sn;
                    let joined = Joined {
                        tsih: 1,
                        session: join.session,
                        exp_cmd_sn,
                        max_cmd_sn: exp_cmd_sn,
                        connection_serial: 1,
                    };
                    target.joined(Ok(joined), &mut steps);
                }
                Step::Send(_) => responses += 1,
                Step::Complete(_) => assert!(!with_chap, "admitted without authentication"),
                Step::Refused(_) | Step::Close(_) => assert!(target.is_over()),
            }
        }
        assert!(responses <= 1 && !target.is_waiting_for_driver());
    }
}

fn at_initiator<'a>(pdus: impl Iterator<Item = &'a [u8]>, with_chap: bool) {
    let chap = ChapAnswer {
        algorithms: ChapAlgorithm::ALL.to_vec(),
        credential: credential("user", "one"),
        expect_target: Some(credential("target", "never sent")),
    };
    let mut login = InitiatorLogin::new(InitiatorLoginOptions {
        initiator_name: "iqn.2026-01.example:i".into(),
        alias: None,
        target_name: Some("iqn.2026-01.example:t".into()),
        session_type: SessionType::Normal,
        isid: [0; 6],
        tsih: 0,
        cid: 0,
        initiator_task_tag: 1,
        cmd_sn: SerialNumber(1),
        offer: Offer::initiator(),
        chap: with_chap.then_some(chap),
        entropy: [9; 33],
    });
    let mut steps = Vec::new();
    login.start(&mut steps);
    for piece in pdus {
        steps.clear();
        let pdu = pdu(0x23, piece);
        if login.on_header(&Header::new(pdu.bhs), &mut steps) {
            assert!(pdu.data.len() <= LOGIN_SEGMENT_BYTES_MAX);
            login.on_payload(pdu.data, &mut steps);
        }
        assert!(steps.len() <= 1, "{steps:?}");
        if let Some(initiator::Step::Complete(established)) = steps.first() {
            assert!(!with_chap, "accepted without authentication of the target");
            assert_ne!(established.tsih, 0);
        }
    }
}
