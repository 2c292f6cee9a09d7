//! Tests of one unit through two target ports: port states, and reservations across ports.

use crate::common::*;
use lunar_block::{BlockRange, Effect, Fault, FaultOperation};
use lunar_target::Portal;
use lunar_testkit::raw::{RawAnswer, RawClient, opcode};
use std::time::Duration;

const TAGS: [u16; 2] = [1, 300];
const STANDBY: u8 = 2;
const UNAVAILABLE: u8 = 3;
const CONFLICT: (u8, u16) = (0x18, 0);
const GOOD: (u8, u16) = (0, 0);
const REGISTRATIONS_PREEMPTED: u16 = 0x2a05;
const STATE_CHANGED: u16 = 0x2a06;
const COMMANDS_CLEARED: u16 = 0x2f00;
const REGISTER: u8 = 0;
const RESERVE: u8 = 1;
const PREEMPT_AND_ABORT: u8 = 5;
const EXCLUSIVE_ACCESS: u8 = 3;
const EXCLUSIVE_REGISTRANTS_ONLY: u8 = 6;
const ALL_TG_PT: u8 = 0x04;

fn rig() -> Rig {
    Rig::with(|options| {
        let portal =
            |tag| Portal { portal_group: Some(tag), ..Portal::new("127.0.0.1:0".parse().unwrap()) };
        options.portals = TAGS.map(portal).to_vec();
    })
}

/// Logs in initiator 1 through both ports, then initiator 2, and takes the power-on unit
/// attentions.
fn sessions(rig: &Rig) -> [RawClient; 4] {
    [(1, 0), (1, 1), (2, 0), (2, 1)].map(|(number, portal)| {
        let mut raw = RawClient::log_in_as(&rig.addresses[portal], TARGET, number).unwrap();
        assert_eq!(raw.execute(&[0; 6], 0).unwrap().0, 0);
        raw
    })
}

/// Returns the status and additional sense code of a command, and its data-in.
fn outcome(raw: &mut RawClient, tag: u32) -> ((u8, u16), Vec<u8>) {
    let mut data = Vec::new();
    loop {
        let pdu = answer_to(raw, tag);
        if pdu.opcode() == opcode::DATA_IN {
            data.extend_from_slice(&pdu.data);
            if pdu.header[1] & 1 == 0 {
                continue;
            }
            return ((pdu.header[3], 0), data);
        }
        // The sense data follow their length.
        let code = pdu.data.get(14..16).map_or(0, |code| u16::from_be_bytes([code[0], code[1]]));
        return ((pdu.header[3], code), data);
    }
}

fn run(raw: &mut RawClient, cdb: &[u8]) -> (u8, u16) {
    let pdu = raw.command(0xc1, cdb, 512);
    raw.send(&pdu).unwrap();
    outcome(raw, pdu.u32_at(16)).0
}

fn read(raw: &mut RawClient) -> (u8, u16) {
    run(raw, &ten(0x28, 0, 1))
}

fn send(raw: &mut RawClient, cdb: &[u8], list: Vec<u8>) -> (u8, u16) {
    let pdu = raw.command(0xa1, cdb, list.len() as u32).with_data(list);
    raw.send(&pdu).unwrap();
    outcome(raw, pdu.u32_at(16)).0
}

/// Sends SET TARGET PORT GROUPS for one group.
fn set(raw: &mut RawClient, state: u8, group: u16) -> (u8, u16) {
    let mut list = vec![0, 0, 0, 0, state, 0];
    list.extend_from_slice(&group.to_be_bytes());
    send(raw, &[0xa4, 0x0a, 0, 0, 0, 0, 0, 0, 0, 8, 0, 0], list)
}

/// Sends PERSISTENT RESERVE OUT.
fn reserve(raw: &mut RawClient, action: u8, kind: u8, keys: [u64; 2], flags: u8) -> (u8, u16) {
    let mut list = [keys[0].to_be_bytes(), keys[1].to_be_bytes()].concat();
    list.extend_from_slice(&[0, 0, 0, 0, flags, 0, 0, 0]);
    send(raw, &[0x5f, action, kind, 0, 0, 0, 0, 0, 24, 0], list)
}

fn vpd_page(raw: &mut RawClient, code: u8) -> Vec<u8> {
    let (status, data) = raw.execute(&[0x12, 1, code, 4, 0, 0], 1024).unwrap();
    assert_eq!(status, 0);
    data[4..].to_vec()
}

/// Splits page 83h at its first designator of a port: designators of the unit, and the rest.
fn unit_and_port(page: &[u8]) -> (&[u8], &[u8]) {
    let mut at = 0;
    while page[at + 1] & 0x30 == 0 {
        at += 4 + usize::from(page[at + 3]);
    }
    page.split_at(at)
}

/// Goal: a multipath driver can find out that two paths lead to one unit, the port of each path,
/// and the list of all ports.
#[test]
fn one_unit_by_two_ports() {
    let rig = rig();
    let mut all = sessions(&rig);
    let pages = [0, 1].map(|path| vpd_page(&mut all[path], 0x83));
    let [(unit, near), (same, far)] = [&pages[0], &pages[1]].map(|page| unit_and_port(page));
    assert_eq!(unit, same);
    assert_ne!(near, far);
    for (port, tag) in [(near, TAGS[0]), (far, TAGS[1])] {
        let [high, low] = tag.to_be_bytes();
        assert_eq!(port[..8], [0x51, 0x94, 0, 4, 0, 0, high, low], "relative target port");
        assert_eq!(port[8..16], [0x51, 0x95, 0, 4, 0, 0, high, low], "target port group");
    }
    assert_eq!(vpd_page(&mut all[0], 0x88), vpd_page(&mut all[1], 0x88));
    let report = [0xa3, 0x2a, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0];
    let expected = [
        [0, 0, 0, 28, 0x10, 0, 0, 0].to_vec(),
        vec![0, 0x0f, 0, 1, 0, 0, 0, 1, 0, 0, 0, 1],
        vec![0, 0x0f, 1, 44, 0, 0, 0, 1, 0, 0, 1, 44],
    ];
    for raw in &mut all {
        assert_eq!(raw.execute(&report, 256).unwrap(), (0, expected.concat()));
        let (_, standard) = raw.execute(&[0x12, 0, 0, 0, 96, 0], 96).unwrap();
        assert_eq!(standard[5..7], [0x38, 0x10], "TPGS and 3PC, MULTIP");
    }
    all.into_iter().for_each(log_out);
    rig.stop_cleanly();
}

/// Goal: a state set by one session for a port applies to all sessions through that port, and every
/// other session is informed once, through either port.
#[test]
fn a_port_is_put_into_standby_and_back() {
    let rig = rig();
    let mut all = sessions(&rig);
    for (state, refused) in [(STANDBY, (2, 0x040b)), (UNAVAILABLE, (2, 0x040c))] {
        assert_eq!(set(&mut all[0], state, TAGS[1]), GOOD);
        assert_eq!(read(&mut all[0]), GOOD, "the requesting session gets no unit attention");
        for (path, raw) in all.iter_mut().enumerate().skip(1) {
            assert_eq!(read(raw), (2, STATE_CHANGED), "path {path}");
            let through = if path % 2 == 1 { refused } else { GOOD };
            assert_eq!(read(raw), through, "path {path}");
        }
        assert_eq!(set(&mut all[3], 0, TAGS[1]), GOOD, "requested through the port itself");
        assert_eq!(read(&mut all[3]), GOOD);
        for raw in &mut all[..3] {
            assert_eq!(read(raw), (2, STATE_CHANGED));
            assert_eq!(read(raw), GOOD);
        }
    }
    assert_eq!(set(&mut all[0], STANDBY, TAGS[1]), GOOD);
    all[1..].iter_mut().for_each(|raw| assert_eq!(read(raw).1, STATE_CHANGED));
    assert_eq!(set(&mut all[0], STANDBY, TAGS[0]), (2, 0x2600), "one port must stay active");
    all.into_iter().for_each(log_out);
    rig.stop_cleanly();
}

/// Goal: with ALL_TG_PT one path registers for both ports of its initiator, and for no other
/// initiator.
#[test]
fn one_path_registers_for_both() {
    let rig = rig();
    let mut all = sessions(&rig);
    assert_eq!(reserve(&mut all[0], REGISTER, 0, [0, 7], ALL_TG_PT), GOOD);
    let kind = EXCLUSIVE_REGISTRANTS_ONLY;
    assert_eq!(reserve(&mut all[1], RESERVE, kind, [7, 0], 0), GOOD);
    assert_eq!(all.each_mut().map(read), [GOOD, GOOD, CONFLICT, CONFLICT]);
    assert_eq!(reserve(&mut all[2], REGISTER, 0, [0, 8], 0), GOOD);
    assert_eq!(all.each_mut().map(read), [GOOD, GOOD, GOOD, CONFLICT], "one path alone");
    let (status, keys) = all[3].execute(&[0x5e, 0, 0, 0, 0, 0, 0, 1, 0, 0], 256).unwrap();
    assert_eq!((status, &keys[4..8]), (0, &[0, 0, 0, 24][..]));
    all.into_iter().for_each(log_out);
    rig.stop_cleanly();
}

/// Goal: PREEMPT AND ABORT ends the other initiator's running commands through either port, reports
/// the reason to it, and excludes it; the aborted commands get no response.
#[test]
fn preempt_and_abort_reaches_every_path() {
    let rig = rig();
    let mut all = sessions(&rig);
    assert_eq!(reserve(&mut all[0], REGISTER, 0, [0, 7], ALL_TG_PT), GOOD);
    assert_eq!(reserve(&mut all[2], REGISTER, 0, [0, 8], ALL_TG_PT), GOOD);
    assert_eq!(reserve(&mut all[2], RESERVE, EXCLUSIVE_REGISTRANTS_ONLY, [8, 0], 0), GOOD);
    rig.device.inject(Fault::new(Effect::Hang).on(FaultOperation::Read));
    let tags = [2, 3].map(|path: usize| send_read(&mut all[path], 0, 1));
    rig.wait_for("both reads are in the disk", |rig| rig.device.hanging() == 2);
    let preempt = reserve(&mut all[0], PREEMPT_AND_ABORT, EXCLUSIVE_ACCESS, [7, 8], 0);
    assert_eq!(preempt, GOOD);
    rig.device.heal();
    rig.device.release();
    assert_eq!(read(&mut all[0]), GOOD);
    // The same initiator through the other port is another nexus: only the first one holds the new
    // reservation.
    assert_eq!(read(&mut all[1]), (2, 0x2a04), "RESERVATIONS RELEASED");
    assert_eq!(read(&mut all[1]), CONFLICT);
    for (path, tag) in [2, 3].into_iter().zip(tags) {
        let raw = &mut all[path];
        let silent = raw.answer(Duration::from_millis(50)).unwrap();
        assert_eq!(silent, RawAnswer::TimedOut, "the read {tag} was aborted");
        let mut attentions = [read(raw), read(raw)];
        attentions.sort_unstable();
        assert_eq!(attentions, [(2, REGISTRATIONS_PREEMPTED), (2, COMMANDS_CLEARED)]);
        assert_eq!(read(raw), CONFLICT);
    }
    all.into_iter().for_each(log_out);
    rig.stop_cleanly();
}

/// Goal: HEAD OF QUEUE works within its nexus as page 86h says; another nexus of the same
/// initiator, through the other port, is not delayed. SAM-5 §8. Method: one such read hangs in the
/// disk. SIMPLE commands behind it wait; another HEAD OF QUEUE does not, even when an ORDERED
/// command waits.
#[test]
fn head_of_queue_goes_first() {
    let rig = rig();
    let [mut one, mut other, ..] = sessions(&rig);
    let block_5 = BlockRange::new(5, 1);
    rig.device.inject(Fault::new(Effect::Hang).on(FaultOperation::Read).at(block_5));
    let start = |raw: &mut RawClient, attribute: u8, lba: u32| {
        let pdu = raw.command(0xc0 | attribute, &ten(0x28, lba, 1), 512);
        raw.send(&pdu).unwrap();
        pdu.u32_at(16)
    };
    let (simple, ordered, head) = (1, 2, 3);
    let hangs = start(&mut one, head, 5);
    rig.wait_for("the read is in the disk", |rig| rig.device.hanging() == 1);
    let waits = start(&mut one, ordered, 9);
    let behind = start(&mut one, simple, 9);
    assert_eq!(one.answer(Duration::from_millis(100)).unwrap(), RawAnswer::TimedOut);
    let first = start(&mut one, head, 9);
    assert_eq!(outcome(&mut one, first).0, GOOD);
    for attribute in [simple, ordered, head] {
        let tag = start(&mut other, attribute, 9);
        assert_eq!(outcome(&mut other, tag).0, GOOD);
    }
    rig.device.heal();
    rig.device.release();
    assert_eq!(outcome(&mut one, hangs).0, GOOD);
    assert_eq!(outcome(&mut one, waits).0, GOOD);
    assert_eq!(outcome(&mut one, behind).0, GOOD);
    log_out(one);
    log_out(other);
    rig.stop_cleanly();
}
