//! Tests of session traces: their contents, their end, and that no command waits for them.

use crate::common::*;
use lunar_target::{Direction, TRACES_MAX, TappedPdu, Trace, TraceError};
use lunar_testkit::raw::{RawClient, opcode};
use std::future::poll_fn;

const ALL: usize = usize::MAX;
/// Mask of the opcode in the BHS of a PDU.
const OPCODE: u8 = 0x3f;

fn tsih(rig: &Rig, number: usize) -> u16 {
    rig.server().sessions()[number].tsih
}

fn next(trace: &mut Trace) -> Option<TappedPdu> {
    block_on(async {
        let next = poll_fn(|context| trace.poll_next(context));
        tokio::time::timeout(TEST_TIMEOUT, next).await.unwrap()
    })
}

/// Returns the rest of a trace: the direction and opcode of each PDU.
fn rest(trace: &mut Trace) -> Vec<(Direction, u8)> {
    std::iter::from_fn(|| next(trace)).map(|pdu| (pdu.direction, pdu.bytes[0] & OPCODE)).collect()
}

/// Goal: a trace contains both directions, in order and complete, including the Logout Response
/// with which the session and the trace end.
#[test]
fn a_trace_ends_with_its_session() {
    let rig = Rig::new();
    let mut raw = rig.log_in(1);
    let mut trace = rig.server().trace(tsih(&rig, 0), ALL).unwrap();
    let write = send_write(&mut raw, 8, 3, 0x5a);
    answer_to(&mut raw, write);
    let read = send_read(&mut raw, 8, 3);
    answer_to(&mut raw, read);
    let sent = next(&mut trace).unwrap();
    assert_eq!((sent.direction, sent.wire_bytes), (Direction::Received, 48 + 3 * 512));
    assert_eq!((sent.bytes[0] & OPCODE, sent.first), (opcode::SCSI_COMMAND, true));
    assert_eq!(sent.bytes[16..20], write.to_be_bytes());
    assert!(sent.bytes[48..].iter().all(|byte| *byte == 0x5a));
    assert_eq!(sent.local.to_string(), rig.address);
    log_out(raw);
    use Direction::{Received, Sent};
    let wanted = [
        (Sent, opcode::SCSI_RESPONSE),
        (Received, opcode::SCSI_COMMAND),
        (Sent, opcode::DATA_IN),
        (Received, opcode::LOGOUT),
        (Sent, 0x26),
    ];
    assert_eq!(rest(&mut trace), wanted);
    assert_eq!(trace.dropped(), 0);
    rig.stop_cleanly();
}

/// Goal: when a connection joins a traced session, its login is not traced, but later PDUs are.
#[test]
fn no_login_is_traced() {
    let rig = Rig::with(|options| options.targets[0].offer.max_connections = 2);
    let mut leading = RawClient::connect(&rig.address).unwrap();
    let (status, handle) = join(&mut leading, 1, 0, 0);
    assert_eq!(status, 0);
    let mut trace = rig.server().trace(handle, ALL).unwrap();
    let mut second = RawClient::connect(&rig.address).unwrap();
    let (status, _) = join(&mut second, 1, handle, 1);
    assert_eq!(status, 0);
    assert_eq!(second.execute(&[0; 6], 0).unwrap().0, 0);
    assert!(rig.server().end_trace(handle) && !rig.server().end_trace(handle));
    let recorded = rest(&mut trace);
    let command = [(Direction::Received, opcode::SCSI_COMMAND), (Direction::Sent, 0x21)];
    assert_eq!(recorded, command.repeat(2), "the first ends in a unit attention");
    drop((leading, second));
    rig.stop_cleanly();
}

/// Goal: the number of traces is limited to one per session and to a total; a dropped trace makes
/// room.
#[test]
fn traces_are_bounded() {
    let rig = Rig::new();
    let sessions = TRACES_MAX + 1;
    let raws: Vec<RawClient> = (0..sessions as u32).map(|number| rig.log_in(number)).collect();
    let handles: Vec<u16> = (0..sessions).map(|number| tsih(&rig, number)).collect();
    let trace = |number: usize| rig.server().trace(handles[number], ALL);
    let mut traces: Vec<Trace> = (0..TRACES_MAX - 1).map(|number| trace(number).unwrap()).collect();
    assert_eq!(trace(0).err(), Some(TraceError::Traced));
    assert_eq!(rig.server().trace(0xffff, ALL).err(), Some(TraceError::NoSession));
    traces.push(trace(TRACES_MAX - 1).unwrap());
    assert_eq!(trace(TRACES_MAX).err(), Some(TraceError::TooMany));
    drop(traces.remove(0));
    traces.push(trace(0).unwrap());
    // A trace that was ended does not block the next one, and its own end does not affect the next
    // one.
    assert!(rig.server().end_trace(handles[1]));
    let old = traces.remove(0);
    assert_eq!(trace(1).err(), Some(TraceError::TooMany), "the ended trace is still open");
    drop(old);
    let mut new = trace(1).unwrap();
    new.stop();
    assert!(next(&mut new).is_none());
    drop((raws, traces, new));
    rig.stop_cleanly();
}

/// Goal: a trace that is not read delays no command; PDUs that did not fit are counted.
#[test]
fn no_session_waits_for_a_trace() {
    const READS: usize = 200;
    const BLOCKS: u16 = 128;
    let rig = Rig::new();
    let mut raw = rig.log_in(1);
    let mut trace = rig.server().trace(tsih(&rig, 0), ALL).unwrap();
    for _ in 0..READS {
        let read = send_read(&mut raw, 0, BLOCKS);
        answer_to(&mut raw, read);
    }
    let dropped = trace.dropped();
    assert!(dropped > 0, "{READS} reads of 64 KiB are more than it holds");
    trace.stop();
    let mut kept = 0;
    let mut dropped_before = 0;
    while let Some(pdu) = next(&mut trace) {
        kept += 1;
        dropped_before += pdu.dropped_before;
    }
    assert_eq!(kept + dropped, 2 * READS as u64);
    assert!(dropped_before <= dropped);
    log_out(raw);
    rig.stop_cleanly();
}
