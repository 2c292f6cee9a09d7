//! Tests of task management for units that do not exist.

use crate::common::*;
use lunar_testkit::raw::{RawClient, RawPdu, opcode};

const ABORT_TASK_SET: u8 = 2;
const LUN_DOES_NOT_EXIST: u8 = 2;
const NO_SUCH_LUN: [u8; 2] = [0, 9];

/// Sends a WRITE (10) for a unit that does not exist and announces unsolicited data; returns its
/// tag.
fn write_nowhere(raw: &mut RawClient) -> u32 {
    let mut write = raw.command(0x20, &ten(0x2a, 0, 1), 512);
    write.header[8..10].copy_from_slice(&NO_SUCH_LUN);
    raw.send(&write).unwrap();
    write.u32_at(16)
}

/// Goal: a function for a unit that does not exist aborts nothing: a write for it that still waits
/// for its data is answered like any command for such a unit. RFC 7143 §11.6.1. Method: each
/// function overtakes the data of a write. The initiator receives the response that the unit does
/// not exist, then sends the data and waits for the status.
#[test]
fn functions_without_a_unit_abort_no_task() {
    let rig = Rig::new();
    let mut raw = RawClient::connect(&rig.address).unwrap();
    let text = format!(
        "InitiatorName=iqn.2026-11.org.lunarsan.test:raw-1\0TargetName={TARGET}\0\
         InitialR2T=No\0ImmediateData=No\0"
    );
    let login = raw.login(text.as_bytes());
    raw.send(&login).unwrap();
    let answer = raw.expect(opcode::LOGIN_RESPONSE).unwrap();
    assert_eq!(answer.header[36..38], [0, 0], "login status");
    raw.exp_stat_sn = answer.u32_at(24).wrapping_add(1);
    for function in [ABORT_TASK_SET, CLEAR_TASK_SET, LOGICAL_UNIT_RESET] {
        let write = write_nowhere(&mut raw);
        let tag = raw.new_tag();
        let request = RawPdu::new(0x40 | opcode::TASK_MANAGEMENT, 0x80 | function)
            .put(8, &NO_SUCH_LUN)
            .put_u32(16, tag)
            .put_u32(20, u32::MAX)
            .put_u32(24, raw.cmd_sn)
            .put_u32(28, raw.exp_stat_sn);
        raw.send(&request).unwrap();
        let answer = answer_to(&mut raw, tag);
        assert_eq!((answer.opcode(), answer.header[2]), (0x22, LUN_DOES_NOT_EXIST), "{function}");
        let data = RawPdu::new(opcode::DATA_OUT, 0x80)
            .put(8, &NO_SUCH_LUN)
            .put_u32(16, write)
            .put_u32(20, u32::MAX)
            .with_data(vec![7; 512]);
        raw.send(&data).unwrap();
        let answer = answer_to(&mut raw, write);
        assert_eq!((answer.opcode(), answer.header[3]), (0x21, 2), "{function}");
        assert_eq!(answer.data[14..16], [0x25, 0], "LOGICAL UNIT NOT SUPPORTED");
    }
    drop(raw);
    rig.stop_cleanly();
}
