//! Tests of many concurrent resets: each gets a response, aborted tasks get none, and unit
//! attentions are the same as for sequential resets. SAM-5 §5.14, RFC 7143 §11.5.

use crate::common::{
    LOGICAL_UNIT_RESET, Rig, TARGET_WARM_RESET, answer_to, log_out, send_function, send_write, ten,
};
use lunar_target::LunOptions;
use lunar_testkit::raw::{RawClient, opcode};
use std::sync::Arc;

const SESSIONS: u32 = 16;
const RESET_BY_FUNCTION: u16 = 0x2903;
const ORDERED: u8 = 0x80 | 2;

/// Starts a session with a WRITE whose data does not come and ORDERED commands behind it.
fn holder(rig: &Rig, number: u32) -> RawClient {
    let mut raw = rig.log_in(number);
    let write = raw.command(0xa1, &ten(0x2a, 0, 8), 8 * 512);
    raw.send(&write).unwrap();
    for _ in 0..99 {
        let ready = raw.command(ORDERED, &[0; 6], 0);
        raw.send(&ready).unwrap();
    }
    let r2t = answer_to(&mut raw, write.u32_at(16));
    assert_eq!(r2t.opcode(), opcode::R2T);
    raw
}

/// Sends TEST UNIT READY until it succeeds; returns the codes of the unit attentions before that.
fn take_attention_codes(raw: &mut RawClient) -> Vec<u16> {
    let mut codes = Vec::new();
    loop {
        let ready = raw.command(0x80, &[0; 6], 0);
        raw.send(&ready).unwrap();
        let (status, _, sense) = raw.outcome().unwrap();
        if status == 0 {
            return codes;
        }
        codes.push(u16::from_be_bytes([sense[14], sense[15]]));
    }
}

/// Goal: with as many resetting sessions as sessions with tasks, and each requester affected by the
/// others' resets, all resets get a response, no task does, and all sessions but a single requester
/// are informed.
#[test]
fn many_resets_of_many_sessions() {
    let rig = Rig::new();
    let mut holders: Vec<_> = (0..SESSIONS).map(|number| holder(&rig, 1 + number)).collect();
    let mut requesters: Vec<_> = (0..SESSIONS).map(|number| rig.log_in(100 + number)).collect();
    for round in 0..3 {
        let functions = [LOGICAL_UNIT_RESET, TARGET_WARM_RESET];
        let tags: Vec<_> = requesters
            .iter_mut()
            .enumerate()
            .map(|(index, raw)| send_function(raw, functions[(index + round) % 2], u32::MAX))
            .collect();
        for (raw, tag) in requesters.iter_mut().zip(tags) {
            assert_eq!(answer_to(raw, tag).header[2], 0, "function complete");
        }
        for raw in holders.iter_mut().chain(&mut requesters) {
            // The next PDU is the unit attention, not the response of an aborted task.
            assert_eq!(take_attention_codes(raw), [RESET_BY_FUNCTION]);
        }
    }
    let tag = send_function(&mut requesters[0], LOGICAL_UNIT_RESET, u32::MAX);
    assert_eq!(answer_to(&mut requesters[0], tag).header[2], 0);
    assert!(take_attention_codes(&mut requesters[0]).is_empty(), "it knows of its own reset");
    assert_eq!(take_attention_codes(&mut requesters[1]), [RESET_BY_FUNCTION]);
    holders.into_iter().chain(requesters).for_each(log_out);
    rig.stop_cleanly();
}

/// Goal: resets that arrive while another one waits for a disk that hangs all get a response, and
/// the aborted write gets none.
#[test]
fn resets_that_wait_are_answered_in_the_end() {
    let rig = Rig::with(|options| {
        // The unit has a second number as well.
        let unit = Arc::clone(&options.targets[0].luns[0].unit);
        options.targets[0].luns.push(LunOptions::new(7, unit));
    });
    let mut writes = rig.log_in(1);
    rig.device.inject(lunar_block::Fault::new(lunar_block::Effect::Hang));
    send_write(&mut writes, 0, 8, 0x5a);
    rig.wait_for("the write hangs", |rig| rig.device.hanging() == 1);
    let mut requesters: Vec<_> = (0..SESSIONS).map(|number| rig.log_in(100 + number)).collect();
    let tags: Vec<_> =
        requesters.iter_mut().map(|raw| send_function(raw, LOGICAL_UNIT_RESET, u32::MAX)).collect();
    for (raw, tag) in requesters.iter_mut().zip(tags) {
        assert_eq!(answer_to(raw, tag).header[2], 0, "function complete");
    }
    assert_eq!(rig.unit().detached_write_count(), 1, "it is detached");
    rig.device.heal();
    rig.device.release();
    rig.wait_for("the write has returned", |rig| rig.unit().detached_write_count() == 0);
    for raw in requesters.iter_mut().chain([&mut writes]) {
        assert_eq!(take_attention_codes(raw), [RESET_BY_FUNCTION]);
    }
    requesters.push(writes);
    requesters.into_iter().for_each(log_out);
    rig.stop_cleanly();
}
