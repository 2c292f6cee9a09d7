//! Text in full feature phase: both roles against each other, and a hostile initiator.

use crate::connection::target::TargetRecord;
use crate::login::SessionType;
use crate::pdu::TextResponse;
use crate::pdu::{FirstByte, Opcode, RejectReason, TAG_RESERVED, TextFlags, TextRequest};
use crate::text::exchange::{
    ExchangeStep, InitiatorExchange, TargetExchange, TextSegment, TextStep, parse_targets,
};
use crate::text::{TEXT_BYTES_MAX, TextBuilder};
use alloc::format;
use alloc::string::ToString;
use alloc::vec;
use alloc::vec::Vec;
use lunar_wire::{Lun, SerialNumber, U24};
use proptest::prelude::*;

const OWN: &str = "iqn.2026-01.example:t1";

fn request(tag: u32, segment: &TextSegment) -> TextRequest {
    TextRequest {
        first: FirstByte::plain(Opcode::TEXT_REQUEST),
        flags: segment.flags,
        total_ahs_words: 0,
        data_segment_length: U24::truncate(0),
        lun: segment.lun,
        initiator_task_tag: tag,
        target_transfer_tag: segment.target_transfer_tag,
        cmd_sn: SerialNumber(0),
        exp_stat_sn: SerialNumber(0),
    }
}

fn response(tag: u32, segment: &TextSegment) -> TextResponse {
    TextResponse {
        first: FirstByte::plain(Opcode::TEXT_RESPONSE),
        flags: segment.flags,
        total_ahs_words: 0,
        data_segment_length: U24::truncate(0),
        lun: segment.lun,
        initiator_task_tag: tag,
        target_transfer_tag: segment.target_transfer_tag,
        stat_sn: SerialNumber(0),
        exp_cmd_sn: SerialNumber(0),
        max_cmd_sn: SerialNumber(0),
    }
}

fn segment(flags: TextFlags, tag: u32, text: &'static [u8]) -> TextSegment {
    TextSegment { flags, target_transfer_tag: tag, lun: Lun::ZERO, data: text.into() }
}

/// Sends one request; returns the resulting steps.
fn ask(exchange: &mut TargetExchange, text: &'static [u8]) -> Vec<TextStep> {
    let segment = segment(TextFlags::FINAL, TAG_RESERVED, text);
    let mut steps = vec![];
    exchange.request(&request(5, &segment), &segment.data, 8192, &mut steps);
    steps
}

fn normal() -> TargetExchange {
    TargetExchange::new(SessionType::Normal, Some(OWN.into()), TEXT_BYTES_MAX)
}

fn records(count: usize) -> Vec<TargetRecord> {
    (0..count)
        .map(|at| TargetRecord {
            name: format!("iqn.2026-01.example:disk.{at}"),
            addresses: (0..at % 4).map(|nth| (format!("[::{nth}]:3260"), nth as u16)).collect(),
        })
        .collect()
}

/// Returns the answer of a driver that lists `all`, which are in the order of names.
fn page(all: &[TargetRecord], step: &TextStep) -> (Vec<TargetRecord>, bool) {
    let TextStep::ListTargets { only: None, after, text_bytes } = step else { panic!("{step:?}") };
    let behind = all.partition_point(|record| Some(&record.name) <= after.as_ref());
    let (mut bytes, mut records) = (0, vec![]);
    for record in &all[behind..] {
        if bytes >= *text_bytes {
            return (records, true);
        }
        bytes += record.text_bytes();
        records.push(record.clone());
    }
    (records, false)
}

proptest! {
    /// Goal: a list of targets arrives completely with any segment length of the initiator, and
    /// each response fits; at most a response and a record are held, and nothing is left at the
    /// target.
    #[test]
    fn send_targets_of_any_length(count in 0usize..200, segment_max in 1u32..9000) {
        let mut listed = records(count);
        listed.sort_by(|a, b| a.name.cmp(&b.name));
        let mut target = TargetExchange::new(SessionType::Discovery, None, TEXT_BYTES_MAX);
        let (mut initiator, mut next) = InitiatorExchange::send_targets(None);
        let mut rounds = 0;
        let text = loop {
            let mut steps = vec![];
            target.request(&request(7, &next), &next.data, segment_max, &mut steps);
            while let [asked @ TextStep::ListTargets { .. }] = &steps[..] {
                prop_assert!(target.is_waiting_for_driver());
                let (records, more) = page(&listed, asked);
                steps.clear();
                target.targets(&records, more, segment_max, &mut steps);
            }
            prop_assert!(target.held_bytes() <= 200, "{} are held", target.held_bytes());
            let [TextStep::Respond(answer)] = steps.as_slice() else {
                panic!("{steps:?}");
            };
            prop_assert!(answer.data.len() <= segment_max as usize);
            let final_response = answer.flags == TextFlags::FINAL;
            prop_assert_eq!(final_response, answer.target_transfer_tag == TAG_RESERVED);
            rounds += 1;
            match initiator.response(&response(7, answer), &answer.data).unwrap() {
                ExchangeStep::Request(segment) => next = segment,
                ExchangeStep::Done(text) => break text,
            }
        };
        prop_assert_eq!(rounds, text.len().div_ceil(segment_max as usize).max(1));
        prop_assert_eq!(parse_targets(&text).unwrap(), listed);
        prop_assert!(!target.is_waiting_for_driver());
    }

    /// Goal: no text and no flags make the target panic or hold more than one exchange.
    #[test]
    fn random_requests_do_no_harm(
        requests in proptest::collection::vec(
            (any::<u8>(), 0u32..3, any::<bool>(), proptest::collection::vec(any::<u8>(), 0..99)),
            0..20,
        ),
        discovery: bool,
    ) {
        let kind = if discovery { SessionType::Discovery } else { SessionType::Normal };
        let mut target = TargetExchange::new(kind, Some(OWN.into()), TEXT_BYTES_MAX);
        for (flags, tag, fresh, text) in requests {
            let transfer_tag = if fresh { TAG_RESERVED } else { TargetExchange::TAG_BIT + tag };
            let mut segment = segment(TextFlags(flags), transfer_tag, b"");
            segment.data = text.into();
            let mut steps = vec![];
            target.request(&request(tag, &segment), &segment.data, 512, &mut steps);
            prop_assert_eq!(steps.len(), 1, "one request, one answer: {:?}", steps);
            if target.is_waiting_for_driver() {
                target.targets(&[], false, 512, &mut steps);
                prop_assert!(!target.is_waiting_for_driver());
            }
        }
    }

    /// Goal: no answer of a target makes the initiator panic.
    #[test]
    fn random_answers_never_panic(text in proptest::collection::vec(any::<u8>(), 0..2000)) {
        let _ = parse_targets(&text);
    }
}

/// Goal: SendTargets accepts the values of Appendix C for each session type.
#[test]
fn send_targets_values() {
    let list = |name: &str| {
        let only = Some(name.to_string());
        vec![TextStep::ListTargets { only, after: None, text_bytes: 8192 }]
    };
    let own = list(OWN);
    let refused = vec![TextStep::Reject(RejectReason::PROTOCOL_ERROR)];
    let normal_cases: [(&'static [u8], &Vec<TextStep>); 8] = [
        (b"SendTargets=\0", &own),
        (b"SendTargets=All\0", &own),
        (b"SendTargets=iqn.2026-01.example:T1\0", &own),
        (b"SendTargets=iqn.2026-01.example:other\0", &refused),
        (b"SendTargets=Alle\0", &refused),
        (b"SendTargets=A\0", &refused),
        (b"sENDtARGETS=aLL\0", &refused),
        (b"SendTargetsPlease=All\0", &refused),
    ];
    for (text, expected) in normal_cases {
        assert_eq!(&ask(&mut normal(), text), expected, "{text:?}");
    }
    let mut discovery = TargetExchange::new(SessionType::Discovery, None, TEXT_BYTES_MAX);
    for text in [b"SendTargets=\0".as_slice(), b"SendTargets=Alle\0", b"X-a=b\0"] {
        assert_eq!(ask(&mut discovery, text), refused, "{text:?}");
    }
    assert_eq!(ask(&mut discovery, b"SendTargets=iqn.X\0"), list("iqn.x"));
}

/// Goal: a refusal resets the exchange, and an empty list is an empty final answer.
#[test]
fn a_refused_exchange_holds_no_memory() {
    let mut exchange = normal();
    for text in [
        b"no zero".as_slice(),
        b"MaxRecvDataSegmentLength=511\0",
        b"MaxRecvDataSegmentLength=512\0MaxRecvDataSegmentLength=512\0",
        b"MaxRecvDataSegmentLength=Reject\0",
        b"MaxBurstLength=512\0",
        b"TargetAlias=a\0",
        b"SendTargets=All\0X-a=b\0",
        b"X-a=NotUnderstood\0",
    ] {
        assert_eq!(
            ask(&mut exchange, text),
            [TextStep::Reject(RejectReason::PROTOCOL_ERROR)],
            "{text:?}"
        );
    }
    assert_eq!(ask(&mut exchange, b"SendTargets=All\0").len(), 1);
    let mut steps = vec![];
    exchange.targets(&[], false, 8192, &mut steps);
    let empty = segment(TextFlags::FINAL, TAG_RESERVED, b"");
    assert_eq!(steps, [TextStep::Respond(empty)]);
    assert!(!exchange.is_waiting_for_driver());
}

/// Goal: MaxRecvDataSegmentLength may change in full feature phase, once the sequence is complete;
/// a reset before that discards it. RFC 7143 §6.4.
#[test]
fn a_new_segment_length() {
    let mut exchange = normal();
    let declared = b"MaxRecvDataSegmentLength=4096\0X-unknown=1\0";
    let first = segment(TextFlags::NONE, TAG_RESERVED, declared);
    let mut steps = vec![];
    exchange.request(&request(5, &first), &first.data, 8192, &mut steps);
    let [TextStep::Respond(answer)] = steps.as_slice() else { panic!("{steps:?}") };
    assert_eq!(answer.flags, TextFlags::NONE);
    assert_eq!(&answer.data[..], b"X-unknown=NotUnderstood\0");
    let tag = answer.target_transfer_tag;
    assert_ne!(tag, TAG_RESERVED);

    let end = segment(TextFlags::FINAL, tag, b"");
    let mut steps = vec![];
    exchange.request(&request(5, &end), b"", 8192, &mut steps);
    let empty = segment(TextFlags::FINAL, TAG_RESERVED, b"");
    assert_eq!(steps, [TextStep::Respond(empty), TextStep::PeerSegmentBytesMax(4096)]);

    let mut steps = vec![];
    exchange.request(&request(5, &first), &first.data, 8192, &mut steps);
    steps.clear();
    exchange.request(&request(6, &end), b"", 8192, &mut steps);
    let stale = TextStep::Reject(RejectReason::PROTOCOL_ERROR);
    assert_eq!(steps, core::slice::from_ref(&stale), "a tag of an exchange that is over");
    steps.clear();
    exchange.request(&request(5, &end), b"", 8192, &mut steps);
    assert_eq!(steps, [stale], "reset by the refusal");
}

/// Goal: a request with another Initiator Task Tag and the reserved Target Transfer Tag starts a
/// new negotiation: earlier values are discarded, and the earlier tag is invalid. RFC 7143 §6.4.
#[test]
fn a_new_request_resets_the_negotiation() {
    let mut exchange = normal();
    let open = |exchange: &mut TargetExchange, tag, text: &'static [u8]| {
        let first = segment(TextFlags::NONE, TAG_RESERVED, text);
        let mut steps = vec![];
        exchange.request(&request(tag, &first), &first.data, 8192, &mut steps);
        let [TextStep::Respond(answer)] = steps.as_slice() else { panic!("{steps:?}") };
        assert!(!answer.flags.has(TextFlags::FINAL));
        answer.target_transfer_tag
    };
    let end = |exchange: &mut TargetExchange, tag, transfer_tag| {
        let last = segment(TextFlags::FINAL, transfer_tag, b"");
        let mut steps = vec![];
        exchange.request(&request(tag, &last), b"", 8192, &mut steps);
        steps
    };
    let old = open(&mut exchange, 5, b"MaxRecvDataSegmentLength=4096\0");
    let new = open(&mut exchange, 6, b"X-one=1\0");
    assert_ne!(old, new);
    let done = TextStep::Respond(segment(TextFlags::FINAL, TAG_RESERVED, b""));
    assert_eq!(end(&mut exchange, 6, new), [done], "4096 is forgotten");
    open(&mut exchange, 7, b"X-one=1\0");
    let stale = [TextStep::Reject(RejectReason::PROTOCOL_ERROR)];
    assert_eq!(end(&mut exchange, 5, old), stale);
}

/// Goal: text split into any number of pieces by the C bit is answered once, each piece with an
/// empty response; T and C exclude each other.
#[test]
fn pieces_by_the_c_bit() {
    let mut exchange = normal();
    let text = b"X-one=1\0X-two=2\0";
    let mut tag = TAG_RESERVED;
    let mut steps = vec![];
    for at in 0..text.len() {
        let flags = if at + 1 == text.len() { TextFlags::FINAL } else { TextFlags::CONTINUE };
        let piece = segment(flags, tag, &text[at..=at]);
        steps.clear();
        exchange.request(&request(5, &piece), &piece.data, 8192, &mut steps);
        let [TextStep::Respond(answer)] = steps.as_slice() else { panic!("{steps:?}") };
        tag = answer.target_transfer_tag;
        assert_eq!(answer.data.is_empty(), flags == TextFlags::CONTINUE);
    }
    let both = segment(TextFlags::FINAL | TextFlags::CONTINUE, TAG_RESERVED, b"");
    steps.clear();
    exchange.request(&request(5, &both), b"", 8192, &mut steps);
    assert_eq!(steps, [TextStep::Reject(RejectReason::PROTOCOL_ERROR)]);
}

/// Goal: the initiator parses the examples of Appendix C, and refuses contradictory answers.
#[test]
fn answers_as_in_appendix_c() {
    let text = b"TargetName=iqn.1993-11.com.example:diskarray.sn.8675309\0\
        TargetAddress=10.1.0.45:3000,1\0TargetAddress=10.1.1.45:3000,2\0\
        TargetName=iqn.1993-11.com.example:diskarray.sn.1234567\0\
        TargetAddress=[1080::8:800:200C:417A]\0";
    let records = parse_targets(text).unwrap();
    assert_eq!(records.len(), 2);
    assert_eq!(records[0].addresses[1], ("10.1.1.45:3000".into(), 2));
    assert_eq!(records[1].addresses, [("[1080::8:800:200C:417A]".to_string(), 1)]);
    assert!(parse_targets(b"TargetAddress=10.1.0.45:3000,1\0").is_err());
    assert!(parse_targets(b"TargetName=iqn.a\0TargetAddress=a,65536\0").is_err());
    assert!(parse_targets(b"SendTargets=Reject\0").is_err());
    let (mut initiator, _) = InitiatorExchange::new(TextBuilder::new());
    let endless = segment(TextFlags::NONE, TAG_RESERVED, b"");
    assert!(initiator.response(&response(1, &endless), b"").is_err());
}
