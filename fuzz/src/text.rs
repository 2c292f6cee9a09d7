//! A hostile text: parsed, negotiated by both roles, sent to a target in full feature phase, and
//! parsed as an answer to SendTargets.

use lunar_iscsi::login::SessionType;
use lunar_iscsi::pdu::{FirstByte, Opcode, TAG_RESERVED, TextFlags, TextRequest};
use lunar_iscsi::text::exchange::{TargetExchange, TextStep, parse_targets};
use lunar_iscsi::text::{
    Negotiation, Offer, PAIRS_MAX, Role, TEXT_BYTES_MAX, TextBuilder, parse, value,
};
use lunar_wire::{Lun, SerialNumber, U24};

/// Runs an input. The first byte selects the session type and the position of the split; the rest
/// is the text.
pub fn run(input: &[u8]) {
    let Some((selector, text)) = input.split_first() else { return };
    let session_type = if selector & 1 == 0 { SessionType::Normal } else { SessionType::Discovery };
    read(text);
    for role in [Role::Initiator, Role::Target] {
        negotiate(role, session_type, text);
    }
    exchange(session_type, usize::from(selector >> 1), text);
}

fn read(text: &[u8]) {
    if let Ok(pairs) = parse(text) {
        assert!(pairs.len() <= PAIRS_MAX);
        for pair in pairs {
            let _ = (value::number(pair.value), value::range(pair.value));
            assert!(value::binary(pair.value, 32).is_none_or(|bytes| bytes.len() <= 32));
        }
    }
    if let Ok(records) = parse_targets(text) {
        let names: usize = records.iter().map(|record| record.name.len()).sum();
        assert!(names <= text.len());
    }
}

fn negotiate(role: Role, session_type: SessionType, text: &[u8]) {
    let Ok(pairs) = parse(text) else { return };
    let mut negotiation = Negotiation::new(role, Offer::target(), session_type, true);
    if role == Role::Initiator {
        negotiation.propose(&mut TextBuilder::new());
    }
    let mut answers = TextBuilder::new();
    let result = negotiation.receive(&pairs, &mut answers);
    // An answer is a key of the text and a short value.
    assert!(answers.into_bytes().len() <= pairs.len() * 128);
    if let (Ok(()), Ok((session, connection))) = (result, negotiation.finish()) {
        assert!(session.first_burst_bytes <= session.max_burst_bytes);
        assert!((512..1 << 24).contains(&connection.send_data_segment_bytes_max));
    }
}

/// Sends the text in two requests, the first with the C bit.
fn exchange(session_type: SessionType, split_at_byte: usize, text: &[u8]) {
    let own = Some("iqn.2026-01.example:t".into());
    let mut target = TargetExchange::new(session_type, own, TEXT_BYTES_MAX);
    let (head, tail) = text.split_at(split_at_byte.min(text.len()));
    let mut target_transfer_tag = TAG_RESERVED;
    for (flags, data) in [(TextFlags::CONTINUE, head), (TextFlags::FINAL, tail)] {
        let request = TextRequest {
            first: FirstByte::immediate(Opcode::TEXT_REQUEST),
            flags,
            total_ahs_words: 0,
            data_segment_length: U24::truncate(0),
            lun: Lun::ZERO,
            initiator_task_tag: 1,
            target_transfer_tag,
            cmd_sn: SerialNumber(0),
            exp_stat_sn: SerialNumber(0),
        };
        let mut steps = Vec::new();
        target.request(&request, data, 512, &mut steps);
        assert!((1..=2).contains(&steps.len()), "{steps:?}");
        match &steps[0] {
            TextStep::Respond(segment) => {
                assert!(segment.data.len() <= 512);
                target_transfer_tag = segment.target_transfer_tag;
            }
            TextStep::ListTargets { .. } => assert!(target.is_waiting_for_driver()),
            TextStep::Reject(_) => return,
            TextStep::PeerSegmentBytesMax(_) => panic!("before the last response"),
        }
    }
}
