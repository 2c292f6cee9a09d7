//! `testdata/negotiation.txt`: results of keys and values.

use crate::vectors::{bytes_of, lines};
use lunar_iscsi::login::SessionType;
use lunar_iscsi::text::{
    ConnectionParameters, Digest, Negotiation, Offer, Role, SessionParameters, TaskReporting,
    TextBuilder, parse, value,
};

const ERROR: &str = "error";

fn offer(role: Role) -> Offer {
    match role {
        Role::Initiator => Offer::initiator(),
        Role::Target => Offer::target(),
    }
}

/// Builds an offer with the value `ours` of `key`.
fn wanting(role: Role, key: &str, ours: &str) -> Offer {
    let mut offer = offer(role);
    let number = || ours.parse::<u32>().unwrap();
    let short = || u16::try_from(number()).unwrap();
    let byte = || u8::try_from(number()).unwrap();
    let yes = ours == "Yes";
    let digest = |word| if word == "CRC32C" { Digest::Crc32c } else { Digest::None };
    let digests = || ours.split(',').map(digest).collect();
    match key {
        "MaxConnections" => offer.max_connections = short(),
        "MaxBurstLength" => offer.max_burst_bytes = number(),
        "FirstBurstLength" => {
            offer.first_burst_bytes = number();
            offer.max_burst_bytes = 0xff_ffff;
        }
        "DefaultTime2Wait" => offer.time_to_wait_seconds = short(),
        "DefaultTime2Retain" => offer.time_to_retain_seconds = short(),
        "MaxOutstandingR2T" => offer.max_outstanding_r2t = short(),
        "ErrorRecoveryLevel" => offer.error_recovery_level = byte(),
        "iSCSIProtocolLevel" => offer.protocol_level = byte(),
        "InitialR2T" => offer.initial_r2t = yes,
        "ImmediateData" => offer.immediate_data = yes,
        "DataPDUInOrder" => offer.data_pdu_in_order = yes,
        "DataSequenceInOrder" => offer.data_sequence_in_order = yes,
        "HeaderDigest" => offer.header_digest = digests(),
        "DataDigest" => offer.data_digest = digests(),
        "TaskReporting" => {
            offer.task_reporting = ours.split(',').map(reporting).collect();
        }
        _ => assert_eq!(ours.trim_start_matches('-').trim_start_matches("1024"), "", "{key}"),
    }
    offer
}

fn reporting(word: &str) -> TaskReporting {
    match word {
        "RFC3720" => TaskReporting::Rfc3720,
        "ResponseFence" => TaskReporting::ResponseFence,
        _ => TaskReporting::FastAbort,
    }
}

/// The effective value of `key`.
fn result(key: &str, session: &SessionParameters, connection: &ConnectionParameters) -> String {
    let yes = |value| if value { "Yes" } else { "No" }.to_string();
    let digest = |on| if on { "CRC32C" } else { "None" }.to_string();
    match key {
        "MaxConnections" => session.max_connections.to_string(),
        "MaxBurstLength" => session.max_burst_bytes.to_string(),
        "FirstBurstLength" => session.first_burst_bytes.to_string(),
        "DefaultTime2Wait" => session.time_to_wait_seconds.to_string(),
        "DefaultTime2Retain" => session.time_to_retain_seconds.to_string(),
        "MaxOutstandingR2T" => session.max_outstanding_r2t.to_string(),
        "ErrorRecoveryLevel" => session.error_recovery_level.to_string(),
        "iSCSIProtocolLevel" => session.protocol_level.to_string(),
        "InitialR2T" => yes(session.initial_r2t),
        "ImmediateData" => yes(session.immediate_data),
        "DataPDUInOrder" => yes(session.data_pdu_in_order),
        "DataSequenceInOrder" => yes(session.data_sequence_in_order),
        "HeaderDigest" => digest(connection.digests.header),
        "DataDigest" => digest(connection.digests.data),
        "TaskReporting" => match session.task_reporting {
            TaskReporting::Rfc3720 => "RFC3720".into(),
            TaskReporting::ResponseFence => "ResponseFence".into(),
            TaskReporting::FastAbort => "FastAbort".into(),
        },
        "MaxRecvDataSegmentLength" => connection.send_data_segment_bytes_max.to_string(),
        _ => "-".into(),
    }
}

/// Receives `key=value_text`; returns our answer and the result.
fn receive(negotiation: &mut Negotiation, key: &str, value_text: &str) -> (String, String) {
    let mut text = TextBuilder::new();
    text.pair(key, value_text);
    let text = text.into_bytes();
    let mut answers = TextBuilder::new();
    let received = parse(&text).and_then(|pairs| negotiation.receive(&pairs, &mut answers));
    if received.is_err() {
        return (ERROR.into(), ERROR.into());
    }
    let answer = String::from_utf8(answers.into_bytes()).unwrap();
    let answer = answer.trim_end_matches('\0').split_once('=').map_or("", |(_, answer)| answer);
    let result = match negotiation.finish() {
        Ok((session, connection)) => result(key, &session, &connection),
        Err(_) => ERROR.into(),
    };
    (answer.into(), result)
}

fn negotiation(role: Role, key: &str, ours: &str) -> Negotiation {
    Negotiation::new(role, wanting(role, key, ours), SessionType::Normal, true)
}

fn target(key: &str, offered: &str, ours: &str) -> String {
    let offered = if offered == "-" { "" } else { offered };
    let (answer, result) = receive(&mut negotiation(Role::Target, key, ours), key, offered);
    format!("{answer} {}", if answer == ERROR { "-" } else { &result })
}

fn initiator(key: &str, ours: &str, answered: &str) -> String {
    let mut negotiation = negotiation(Role::Initiator, key, ours);
    negotiation.propose(&mut TextBuilder::new());
    let (answer, result) = receive(&mut negotiation, key, answered);
    assert!(answer.is_empty() || answer == ERROR, "an answer is not answered: {answer}");
    result
}

/// Goal: negotiations and values have the results of the vectors.
#[test]
fn rows() {
    let mut rows = 0;
    for line in lines(include_str!("../../../../../testdata/negotiation.txt")) {
        let words: Vec<&str> = line.split(' ').collect();
        let (want, got) = match words[..] {
            ["target", key, offered, ours, answer, result] => {
                (format!("{answer} {result}"), target(key, offered, ours))
            }
            ["initiator", key, ours, answered, result] => {
                (result.into(), initiator(key, ours, answered))
            }
            ["declare", value_text, result] => {
                let key = "MaxRecvDataSegmentLength";
                let mut negotiation = negotiation(Role::Initiator, key, "-");
                (result.into(), receive(&mut negotiation, key, value_text).1)
            }
            ["number", value_text, result] => {
                (result.into(), value::number(value_text).map_or(ERROR.into(), |n| n.to_string()))
            }
            ["binary", bytes_max, value_text, result] => {
                let got = value::binary(value_text, bytes_max.parse().unwrap());
                let want = (result != ERROR).then(|| bytes_of(result));
                assert_eq!(got, want, "{line}");
                (String::new(), String::new())
            }
            _ => panic!("{line}"),
        };
        assert_eq!(got, want, "{line}");
        rows += 1;
    }
    assert!(rows > 500, "{rows} rows");
}
