//! Tests of initiators that may not administer a target or a LUN.

use crate::common::*;
use lunar_block::MemoryDevice;
use lunar_target::{DiskUnit, DiskUnitOptions, LunOptions};
use lunar_testkit::raw::{RawAnswer, RawClient};
use std::sync::Arc;

const DENIED: u16 = 0x2002;
const INQUIRY_CHANGED: u16 = 0x3f03;
const RESET: u16 = 0x2903;
/// Responses: function complete, and function authorization failed. RFC 7143 §11.6.1.
const COMPLETE: u8 = 0;
const AUTHORIZATION_FAILED: u8 = 6;

const ADMINISTRATOR: u32 = 1;
const NEIGHBOUR: u32 = 2;

fn name(number: u32) -> String {
    format!("iqn.2026-11.org.lunarsan.test:raw-{number}")
}

fn only(number: u32) -> Option<Vec<String>> {
    Some(vec![name(number).to_uppercase()])
}

/// Creates a server whose target is administered by one initiator.
fn rig() -> Rig {
    Rig::with(|options| options.targets[0].administer = only(ADMINISTRATOR))
}

/// Returns the sense code of a command, including unit attentions; 0 for GOOD.
fn check(raw: &mut RawClient, lun: u8, cdb: &[u8], list: &[u8]) -> u16 {
    raw.lun = [0, lun, 0, 0, 0, 0, 0, 0];
    let flags = if list.is_empty() { 0xc0 } else { 0xa0 };
    let bytes = if list.is_empty() { 4096 } else { list.len() as u32 };
    let command = raw.command(flags, cdb, bytes).with_data(list);
    raw.send(&command).unwrap();
    let (status, _, sense) = raw.outcome().unwrap();
    match status {
        0 => 0,
        2 => u16::from_be_bytes([sense[14], sense[15]]),
        other => panic!("status {other:#x}"),
    }
}

/// Runs a task management function for LUN 0; returns its response.
fn function(raw: &mut RawClient, function: u8) -> u8 {
    let tag = send_function(raw, function, u32::MAX);
    answer_to(raw, tag).header[2]
}

/// Returns a MODE SELECT (6) that sets or clears SWP, with its list.
fn protect(on: bool) -> ([u8; 6], [u8; 16]) {
    let swp = if on { 0x08 } else { 0 };
    let list = [0, 0, 0, 0, 0x0a, 10, 0x22, 0x10, swp, 0, 0, 0, 0, 0, 0, 0];
    ([0x15, 0x10, 0, 0, 16, 0], list)
}

/// SET TARGET PORT GROUPS: group 1 is active/optimized.
const SET_GROUPS: [u8; 12] = [0xa4, 0x0a, 0, 0, 0, 0, 0, 0, 0, 8, 0, 0];
const GROUPS: [u8; 8] = [0, 0, 0, 0, 0, 0, 0, 1];
const FORMAT: [u8; 6] = [0x04, 0, 0, 0, 0, 0];
const BLOCK_ERASE: [u8; 10] = [0x48, 0x02, 0, 0, 0, 0, 0, 0, 0, 0];
const OVERWRITE: [u8; 10] = [0x48, 0x01, 0, 0, 0, 0, 0, 0, 8, 0];
const PATTERN: [u8; 8] = [1, 0, 0, 4, 0, 0, 0, 0];
const STOP: [u8; 6] = [0x1b, 0, 0, 0, 0, 0];
const START: [u8; 6] = [0x1b, 0, 0, 0, 1, 0];
const READY: [u8; 6] = [0; 6];

/// Sends SET TARGET PORT GROUPS that changes nothing; the result is 0 for an administrator.
fn set_groups(raw: &mut RawClient, lun: u8) -> u16 {
    check(raw, lun, &SET_GROUPS, &GROUPS)
}

/// Returns commands that affect all users of the unit, with their lists.
fn restricted() -> Vec<(Vec<u8>, Vec<u8>)> {
    let (protect_on, list) = protect(true);
    vec![
        (FORMAT.to_vec(), vec![]),
        (BLOCK_ERASE.to_vec(), vec![]),
        (OVERWRITE.to_vec(), PATTERN.to_vec()),
        (STOP.to_vec(), vec![]),
        (protect_on.to_vec(), list.to_vec()),
        (SET_GROUPS.to_vec(), GROUPS.to_vec()),
    ]
}

/// Goal: a neighbour cannot erase, stop, protect or re-path the unit, and its data is still there;
/// the administrator may do all of this.
#[test]
fn commands_that_act_on_all_are_for_administrators() {
    let rig = rig();
    let (mut administrator, mut neighbour) = (rig.log_in(ADMINISTRATOR), rig.log_in(NEIGHBOUR));
    administrator.write_blocks(0, &[0x5a; 512]).unwrap();
    for (cdb, list) in restricted() {
        assert_eq!(check(&mut neighbour, 0, &cdb, &list), DENIED, "{cdb:02x?}");
        assert_eq!(administrator.read_block(0).unwrap(), [0x5a; 512], "{cdb:02x?}");
        assert_eq!(neighbour.read_block(0).unwrap(), [0x5a; 512], "{cdb:02x?}");
    }
    neighbour.write_blocks(1, &[0x5b; 512]).unwrap();
    for (cdb, list) in restricted() {
        assert_eq!(check(&mut administrator, 0, &cdb, &list), 0, "{cdb:02x?}");
        let (protect_off, off) = protect(false);
        let put_right = match cdb[0] {
            0x1b => check(&mut administrator, 0, &START, &[]),
            0x15 => check(&mut administrator, 0, &protect_off, &off),
            _ => 0,
        };
        assert_eq!(put_right, 0, "{cdb:02x?}");
    }
    assert_eq!(neighbour.read_block(1).unwrap(), [0; 512], "formatted");
    log_out(administrator);
    log_out(neighbour);
    rig.stop_cleanly();
}

/// Goal: a neighbour cannot reset the target, and its own session continues; it may reset the unit,
/// which error recovery needs.
#[test]
fn resets_of_the_target_are_for_administrators() {
    let rig = rig();
    let (mut administrator, mut neighbour) = (rig.log_in(ADMINISTRATOR), rig.log_in(NEIGHBOUR));
    for reset in [TARGET_WARM_RESET, TARGET_COLD_RESET] {
        assert_eq!(function(&mut neighbour, reset), AUTHORIZATION_FAILED);
        assert_eq!(check(&mut administrator, 0, &READY, &[]), 0, "not informed");
        assert_eq!(check(&mut neighbour, 0, &READY, &[]), 0);
    }
    for harmless in [ABORT_TASK_SET, CLEAR_TASK_SET] {
        assert_eq!(function(&mut neighbour, harmless), COMPLETE);
    }
    assert_eq!(function(&mut neighbour, LOGICAL_UNIT_RESET), COMPLETE);
    assert_eq!(check(&mut administrator, 0, &READY, &[]), RESET);
    assert_eq!(function(&mut administrator, TARGET_WARM_RESET), COMPLETE);
    assert_eq!(check(&mut neighbour, 0, &READY, &[]), RESET);
    assert_eq!(function(&mut administrator, TARGET_COLD_RESET), COMPLETE);
    neighbour.wait_until_closed(TEST_TIMEOUT).unwrap();
    administrator.wait_until_closed(TEST_TIMEOUT).unwrap();
    rig.stop_cleanly();
}

/// Goal: for commands the list of a LUN replaces that of the target; for resets of the target only
/// the target's list counts.
#[test]
fn the_list_of_a_lun_comes_before_that_of_the_target() {
    let device = Arc::new(MemoryDevice::new(1 << 20, 512, 4096).unwrap());
    let second = DiskUnitOptions::new(uuid::Uuid::from_u128(2), device);
    let second = DiskUnit::open(second).unwrap();
    let rig = Rig::with(|options| {
        let target = &mut options.targets[0];
        target.administer = only(ADMINISTRATOR);
        let own = LunOptions { administer: only(NEIGHBOUR), ..LunOptions::new(1, second) };
        let nobodys = Arc::clone(&target.luns[0].unit);
        target.luns.push(own);
        // The unit of LUN 0 under another number, which no initiator administers.
        target.luns.push(LunOptions { administer: Some(vec![]), ..LunOptions::new(2, nobodys) });
    });
    let (mut administrator, mut neighbour) = (rig.log_in(ADMINISTRATOR), rig.log_in(NEIGHBOUR));
    for raw in [&mut administrator, &mut neighbour] {
        assert_eq!(check(raw, 1, &READY, &[]), 0x2900);
    }
    assert_eq!(set_groups(&mut neighbour, 1), 0);
    assert_eq!(set_groups(&mut administrator, 1), DENIED, "it is not on that list");
    for lun in [0, 2] {
        assert_eq!(set_groups(&mut administrator, lun), DENIED, "by LUN 2, of LUN {lun}");
        assert_eq!(set_groups(&mut neighbour, lun), DENIED);
    }
    assert_eq!(function(&mut neighbour, TARGET_WARM_RESET), AUTHORIZATION_FAILED);
    assert_eq!(function(&mut administrator, TARGET_WARM_RESET), COMPLETE);
    drop((administrator, neighbour));
    rig.stop_cleanly();
}

/// Goal: running sessions continue when the list changes. Their rights change at once, and units
/// whose replies change report it to them.
#[test]
fn a_change_of_the_list_applies_at_once() {
    let rig = Rig::new();
    let (mut one, mut two) = (rig.log_in(ADMINISTRATOR), rig.log_in(NEIGHBOUR));
    assert_eq!(set_groups(&mut two, 0), 0, "by default all may");
    let tsihs = |rig: &Rig| rig.server().sessions().iter().map(|s| s.tsih).collect::<Vec<_>>();
    let before = tsihs(&rig);
    let replaced = rig.replace(|targets| targets[0].administer = only(ADMINISTRATOR));
    assert_eq!((replaced.sessions_changed, replaced.sessions_ended), (0, 0));
    assert_eq!(tsihs(&rig), before);
    assert_eq!(check(&mut one, 0, &READY, &[]), 0, "nothing has changed for it");
    assert_eq!(check(&mut two, 0, &READY, &[]), INQUIRY_CHANGED);
    assert_eq!(set_groups(&mut two, 0), DENIED);
    assert_eq!(function(&mut two, TARGET_COLD_RESET), AUTHORIZATION_FAILED);
    assert_eq!(set_groups(&mut one, 0), 0);

    // A right that is removed while a list is on its way is gone when the list arrives.
    let command = one.command(0xa0, &OVERWRITE, PATTERN.len() as u32);
    one.send(&command).unwrap();
    let RawAnswer::Pdu(ready) = one.answer(TEST_TIMEOUT).unwrap() else { panic!("no R2T") };
    assert_eq!(ready.opcode(), lunar_testkit::raw::opcode::R2T);
    rig.replace(|targets| targets[0].luns[0].administer = only(NEIGHBOUR));
    let data = lunar_testkit::raw::RawPdu::new(lunar_testkit::raw::opcode::DATA_OUT, 0x80)
        .put_u32(16, command.u32_at(16))
        .put_u32(20, ready.u32_at(20))
        .put_u32(28, one.exp_stat_sn)
        .with_data(PATTERN);
    one.send(&data).unwrap();
    let (status, _, sense) = one.outcome().unwrap();
    assert_eq!((status, u16::from_be_bytes([sense[14], sense[15]])), (2, DENIED));

    assert_eq!(check(&mut two, 0, &READY, &[]), INQUIRY_CHANGED);
    assert_eq!(set_groups(&mut two, 0), 0);
    assert_eq!(function(&mut two, TARGET_COLD_RESET), AUTHORIZATION_FAILED, "the LUN, no more");
    assert_eq!(tsihs(&rig), before);
    log_out(one);
    log_out(two);
    rig.stop_cleanly();
}
