//! Tests of task sets: an initiator delays only itself, whatever data it withholds or commands it
//! sends, and within a session CmdSN and attribute determine the order. SAM-5 §8, decision 087.

use crate::common::*;
use lunar_block::{BlockRange, Effect, Fault, FaultOperation, MemoryDevice};
use lunar_target::{Access, DiskUnit, DiskUnitOptions, LunOptions};
use lunar_testkit::raw::{RawAnswer, RawClient, RawPdu, opcode};
use std::sync::Arc;
use std::time::Duration;

const SIMPLE: u8 = 1;
const ORDERED: u8 = 2;
const HEAD_OF_QUEUE: u8 = 3;
const REGISTER: u8 = 0;
const RESERVE: u8 = 1;
const EXCLUSIVE_ACCESS: u8 = 3;
/// The CDB of PERSISTENT RESERVE OUT, REGISTER.
const REGISTER_CDB: [u8; 10] = [0x5f, REGISTER, 0, 0, 0, 0, 0, 0, 24, 0];
/// Time without a reply: long enough for a reply that is not delayed, short enough to wait for.
const SILENCE: Duration = Duration::from_millis(100);

/// Sends READ (10) of one block with this attribute; returns its tag.
fn start_read(raw: &mut RawClient, attribute: u8, lba: u32) -> u32 {
    let pdu = raw.command(0xc0 | attribute, &ten(0x28, lba, 1), 512);
    raw.send(&pdu).unwrap();
    pdu.u32_at(16)
}

/// Sends a command without its data; returns the R2T that requests it.
fn withhold(raw: &mut RawClient, cdb: &[u8], bytes: u32) -> RawPdu {
    let pdu = raw.command(0xa0 | SIMPLE, cdb, bytes);
    raw.send(&pdu).unwrap();
    let r2t = answer_to(raw, pdu.u32_at(16));
    assert_eq!(r2t.opcode(), opcode::R2T);
    r2t
}

/// Sends the data that an R2T requests.
fn send_data(raw: &mut RawClient, r2t: &RawPdu, data: Vec<u8>) {
    let pdu = RawPdu::new(opcode::DATA_OUT, 0x80)
        .put_u32(16, r2t.u32_at(16))
        .put_u32(20, r2t.u32_at(20))
        .put_u32(28, raw.exp_stat_sn)
        .put_u32(40, r2t.u32_at(40));
    raw.send(&pdu.with_data(data)).unwrap();
}

#[track_caller]
fn is_silent(raw: &mut RawClient) {
    assert_eq!(raw.answer(SILENCE).unwrap(), RawAnswer::TimedOut);
}

#[track_caller]
fn ends_good(raw: &mut RawClient, tag: u32) {
    let answer = answer_to(raw, tag);
    assert!(matches!(answer.opcode(), opcode::SCSI_RESPONSE | opcode::DATA_IN), "{answer:02x?}");
    assert_eq!(answer.header[3], 0, "GOOD");
}

/// Asserts that reads of every attribute, and writes, are answered.
#[track_caller]
fn is_served(raw: &mut RawClient) {
    for lba in 0..4 {
        for attribute in [SIMPLE, ORDERED, HEAD_OF_QUEUE] {
            let tag = start_read(raw, attribute, lba);
            ends_good(raw, tag);
        }
        let tag = send_write(raw, 100 + lba, 1, 5);
        ends_good(raw, tag);
    }
}

fn reserve_out(raw: &mut RawClient, action: u8, kind: u8, keys: [u64; 2]) {
    let mut list = [keys[0].to_be_bytes(), keys[1].to_be_bytes()].concat();
    list.resize(24, 0);
    let cdb = [0x5f, action, kind, 0, 0, 0, 0, 0, 24, 0];
    let pdu = raw.command(0xa0 | SIMPLE, &cdb, 24).with_data(list);
    raw.send(&pdu).unwrap();
    ends_good(raw, pdu.u32_at(16));
}

/// Goal: a WRITE whose data never comes, and an ORDERED command behind it, delay no other
/// initiator; within the session the ORDERED command waits for the WRITE. Fault: all initiators
/// waited until one of them reset the unit.
#[test]
fn a_withheld_write_delays_only_its_own_nexus() {
    let rig = Rig::new();
    let (mut one, mut two) = (rig.log_in(1), rig.log_in(2));
    let r2t = withhold(&mut one, &ten(0x2a, 0, 1), 512);
    let ordered = start_read(&mut one, ORDERED, 0);
    let behind = start_read(&mut one, SIMPLE, 0);
    is_served(&mut two);
    is_silent(&mut one);
    send_data(&mut one, &r2t, vec![7; 512]);
    ends_good(&mut one, r2t.u32_at(16));
    assert_eq!(answer_to(&mut one, ordered).data, [7; 512], "after the write");
    ends_good(&mut one, behind);
    log_out(one);
    log_out(two);
    rig.stop_cleanly();
}

/// Goal: a nexus that is excluded by a reservation delays no nexus that the reservation admits.
/// Fault: a PERSISTENT RESERVE OUT, which no reservation refuses, did so if its 24 bytes never
/// came.
#[test]
fn a_fenced_nexus_delays_no_other_nexus() {
    let rig = Rig::new();
    let (mut fenced, mut holder) = (rig.log_in(1), rig.log_in(2));
    reserve_out(&mut holder, REGISTER, 0, [0, 2]);
    reserve_out(&mut holder, RESERVE, EXCLUSIVE_ACCESS, [2, 0]);
    withhold(&mut fenced, &REGISTER_CDB, 24);
    for attribute in [ORDERED, HEAD_OF_QUEUE] {
        let ready = fenced.command(0x80 | attribute, &[0; 6], 0);
        fenced.send(&ready).unwrap();
    }
    is_served(&mut holder);
    log_out(holder);
    drop(fenced);
    rig.stop_cleanly();
}

/// Goal: a flood of ORDERED and HEAD OF QUEUE commands delays no other initiator. Method: as many
/// commands as fit the window, all for a block where the disk hangs.
#[test]
fn a_flood_of_attributes_delays_no_other_session() {
    let rig = Rig::new();
    let (mut flood, mut other) = (rig.log_in(1), rig.log_in(2));
    let block_999 = BlockRange::new(999, 1);
    rig.device.inject(Fault::new(Effect::Hang).on(FaultOperation::Read).at(block_999));
    let attributes = [ORDERED, HEAD_OF_QUEUE, ORDERED, SIMPLE];
    let tags: Vec<_> = (0..120).map(|at| start_read(&mut flood, attributes[at % 4], 999)).collect();
    rig.wait_for("the flood is in the disk", |rig| rig.device.hanging() > 0);
    is_served(&mut other);
    assert!(rig.device.hanging() > 0, "all the while");
    rig.device.heal();
    rig.device.release();
    let mut ended: Vec<_> = tags.iter().map(|_| next_end(&mut flood)).collect();
    ended.sort_unstable();
    assert_eq!(ended, tags);
    log_out(flood);
    log_out(other);
    rig.stop_cleanly();
}

/// Returns the tag of the next command that ends, which must succeed.
#[track_caller]
fn next_end(raw: &mut RawClient) -> u32 {
    loop {
        let RawAnswer::Pdu(pdu) = raw.answer(TEST_TIMEOUT).unwrap() else { panic!("no answer") };
        if pdu.opcode() == opcode::DATA_IN {
            assert_eq!(pdu.header[1] & 1, 1, "one block, with its status");
            raw.exp_stat_sn = pdu.u32_at(24).wrapping_add(1);
            return pdu.u32_at(16);
        }
    }
}

/// Starts a session of two connections.
fn two_connections(rig: &Rig) -> (RawClient, RawClient) {
    let mut first = RawClient::connect(&rig.address).unwrap();
    let (status, tsih) = join(&mut first, 1, 0, 0);
    assert_eq!(status, 0);
    assert_eq!(first.execute(&[0; 6], 0).unwrap().0, 0);
    let mut second = RawClient::connect(&rig.address).unwrap();
    second.cmd_sn = first.cmd_sn;
    assert_eq!(join(&mut second, 1, tsih, 1), (0, tsih));
    (first, second)
}

/// Goal: over two connections of a session an ORDERED command waits for the data of an earlier
/// WRITE, and later commands wait for the ORDERED one.
#[test]
fn ordered_waits_for_data_of_another_connection() {
    let rig = Rig::new();
    let (mut first, mut second) = two_connections(&rig);
    let r2t = withhold(&mut first, &ten(0x2a, 0, 1), 512);
    second.cmd_sn = first.cmd_sn;
    let ordered = start_read(&mut second, ORDERED, 0);
    first.cmd_sn = second.cmd_sn;
    let behind = start_read(&mut first, SIMPLE, 0);
    is_silent(&mut second);
    is_silent(&mut first);
    send_data(&mut first, &r2t, vec![7; 512]);
    ends_good(&mut first, r2t.u32_at(16));
    assert_eq!(answer_to(&mut second, ordered).data, [7; 512], "after the write");
    ends_good(&mut first, behind);
    drop((first, second));
    rig.stop_cleanly();
}

/// Goal: a unit has one task set in a session, under all its numbers, and keeps it when the map of
/// the session changes.
#[test]
fn one_task_set_under_all_numbers() {
    let rig = Rig::with(|options| {
        let unit = Arc::clone(&options.targets[0].luns[0].unit);
        options.targets[0].luns.push(LunOptions {
            id: 1,
            unit,
            access: Access::default(),
            administer: None,
        });
    });
    let mut raw = rig.log_in(1);
    let r2t = withhold(&mut raw, &ten(0x2a, 0, 1), 512);
    let memory = Arc::new(MemoryDevice::new(1 << 20, 512, 4096).unwrap());
    let new = DiskUnit::open(DiskUnitOptions::new(uuid::Uuid::from_u128(2), memory)).unwrap();
    rig.replace(|targets| {
        targets[0].luns.push(LunOptions {
            id: 2,
            unit: new,
            access: Access::default(),
            administer: None,
        });
    });
    let ready = raw.command(0x80 | HEAD_OF_QUEUE, &[0; 6], 0);
    raw.send(&ready).unwrap();
    assert_eq!(answer_to(&mut raw, ready.u32_at(16)).header[3], 2, "LUNs have changed");
    raw.lun[1] = 1;
    let ordered = start_read(&mut raw, ORDERED, 0);
    is_silent(&mut raw);
    send_data(&mut raw, &r2t, vec![7; 512]);
    ends_good(&mut raw, r2t.u32_at(16));
    assert_eq!(answer_to(&mut raw, ordered).data, [7; 512], "after the write");
    log_out(raw);
    rig.stop_cleanly();
}

/// Goal: an ORDERED command overtakes no earlier one of its session, however late the connection of
/// the earlier one delivers it. Method: a WRITE comes over one connection and an ORDERED READ of
/// its block over another, both ahead of their turn. The missing command comes over the second
/// connection, which can deliver at once, while the first one has to be woken.
#[test]
fn ordered_waits_for_commands_of_other_connections() {
    let rig = Rig::new();
    let (mut first, mut second) = two_connections(&rig);
    let mut next = first.cmd_sn;
    for round in 0..50 {
        let [missing, write, read] = [0, 1, 2].map(|at| next + at);
        next += 3;
        first.cmd_sn = write;
        let write = send_write(&mut first, 0, 1, round);
        second.cmd_sn = read;
        let read = start_read(&mut second, ORDERED, 0);
        second.cmd_sn = missing;
        let ready = second.command(0x80 | SIMPLE, &[0; 6], 0);
        second.send(&ready).unwrap();
        assert_eq!(answer_to(&mut second, read).data, [round; 512], "round {round}");
        ends_good(&mut first, write);
    }
    drop((first, second));
    rig.stop_cleanly();
}

/// Goal: data that does not arrive in time ends the connection and leaves the unit free for its own
/// initiator: its commands are aborted, and another session may begin at once. RFC 7143 §11.4.2.
/// Method: each kind of missing data, with an ORDERED command behind it that has to wait.
#[test]
fn missing_data_ends_its_connection() {
    let rig = Rig::with(|options| options.limits.data_out_seconds = 1);
    let mut bystander = rig.log_in(2);
    for owe in ["an R2T", "24 bytes", "single bytes"] {
        let mut raw = rig.log_in(1);
        match owe {
            "an R2T" => drop(withhold(&mut raw, &ten(0x2a, 0, 8), 4096)),
            "24 bytes" => drop(withhold(&mut raw, &REGISTER_CDB, 24)),
            _ => drip(&mut raw),
        }
        let ordered = raw.command(0xc0 | ORDERED, &ten(0x28, 0, 1), 512);
        let _ = raw.send(&ordered); // it may be closed already
        raw.wait_until_closed(TEST_TIMEOUT).unwrap_or_else(|error| panic!("{owe}: {error}"));
        let mut again = rig.log_in(1);
        let ordered = start_read(&mut again, ORDERED, 0);
        assert_eq!(answer_to(&mut again, ordered).data, [0; 512], "{owe}: nothing was written");
        is_served(&mut bystander);
        log_out(again);
    }
    log_out(bystander);
    rig.stop_cleanly();
}

/// Withholds 4096 bytes, and sends single ones until the connection is closed.
#[track_caller]
fn drip(raw: &mut RawClient) {
    let r2t = withhold(raw, &ten(0x2a, 0, 8), 4096);
    let drop = RawPdu::new(opcode::DATA_OUT, 0)
        .put_u32(16, r2t.u32_at(16))
        .put_u32(20, r2t.u32_at(20))
        .with_data([7]);
    for at in 0..100 {
        let drop = drop.clone().put_u32(36, at).put_u32(40, at);
        if raw.send(&drop).is_err() || raw.answer(SILENCE / 2).unwrap() == RawAnswer::Closed {
            return;
        }
    }
    panic!("still open after 5 seconds");
}
