//! Tests of rate limits over TCP: commands beyond their share wait, and delay no other commands.
//!
//! A large VERIFY puts a limit into debt for most of a minute, so commands that must wait are known
//! without a clock, and continue at once when the limit is removed.

use crate::common::copy::{Segment, copy_cdb, cscd, list};
use crate::common::*;
use lunar_block::{BufferPool, MemoryDevice};
use lunar_target::{
    BYTES_PER_SECOND_MIN, DiskUnit, DiskUnitOptions, InitiatorLimit, Limit, LunOptions,
};
use lunar_testkit::raw::{RawAnswer, RawClient};
use std::sync::Arc;
use std::time::{Duration, Instant};

const SIMPLE: u8 = 1;
const ORDERED: u8 = 2;
const HEAD_OF_QUEUE: u8 = 3;
const TEST_UNIT_READY: [u8; 6] = [0; 6];
/// Time without a reply: long enough for a reply that is not delayed, short enough to wait for.
const SILENCE: Duration = Duration::from_millis(100);

fn lowest() -> Limit {
    Limit::new(None, Some(BYTES_PER_SECOND_MIN)).unwrap()
}

fn of(number: u32, limit: Limit) -> Vec<InitiatorLimit> {
    let initiator = Some(format!("iqn.2026-11.org.lunarsan.test:raw-{number}"));
    vec![InitiatorLimit { initiator, limit }]
}

/// Starts a target with two units.
fn two_units() -> (Rig, [Arc<DiskUnit>; 2]) {
    let units = [1, 2].map(|number| {
        let memory = MemoryDevice::new(64 << 20, 512, 4096).unwrap();
        let options = DiskUnitOptions::new(uuid::Uuid::from_u128(number), Arc::new(memory));
        DiskUnit::open(DiskUnitOptions { transfer_bytes: 64 << 20, ..options }).unwrap()
    });
    let luns =
        [0, 1].map(|id| LunOptions::new(id, Arc::<DiskUnit>::clone(&units[usize::from(id)])));
    (Rig::with(|options| options.targets[0].luns = luns.into()), units)
}

/// Logs in and takes the first unit attention of both units.
fn log_in(rig: &Rig, number: u32) -> RawClient {
    let mut raw = rig.log_in(number);
    raw.lun[1] = 1;
    raw.execute(&TEST_UNIT_READY, 0).unwrap();
    raw.lun[1] = 0;
    raw
}

fn send(raw: &mut RawClient, attribute: u8, lun: u8, cdb: &[u8], bytes: u32) -> u32 {
    raw.lun[1] = lun;
    let flags = if bytes > 0 { 0xc0 } else { 0x80 };
    let pdu = raw.command(flags | attribute, cdb, bytes);
    raw.lun[1] = 0;
    raw.send(&pdu).unwrap();
    pdu.u32_at(16)
}

fn read(raw: &mut RawClient, lun: u8, blocks: u16) -> u32 {
    send(raw, SIMPLE, lun, &ten(0x28, 0, blocks), u32::from(blocks) * 512)
}

/// Puts the limits of LUN 0 into debt for fifty seconds, longer than any test here takes: VERIFY of
/// the whole unit is charged like a read, and sends nothing.
fn indebt(raw: &mut RawClient) {
    let mut verify = [0; 16];
    verify[0] = 0x8f;
    verify[10..14].copy_from_slice(&(131_072_u32).to_be_bytes());
    let tag = send(raw, SIMPLE, 0, &verify, 0);
    assert_eq!(receive_ends(raw, 1), [tag]);
}

/// Returns the tags of the next commands that end, which must all succeed.
#[track_caller]
fn receive_ends(raw: &mut RawClient, count: usize) -> Vec<u32> {
    let mut tags = Vec::new();
    while tags.len() < count {
        match raw.answer(TEST_TIMEOUT).unwrap() {
            RawAnswer::Pdu(pdu) if is_end(pdu.opcode(), pdu.header[1]) => {
                raw.exp_stat_sn = pdu.u32_at(24).wrapping_add(1);
                assert_eq!(pdu.header[3], 0, "GOOD");
                tags.push(pdu.u32_at(16));
            }
            RawAnswer::Pdu(_) => {}
            other => panic!("{other:?} after {tags:?}"),
        }
    }
    tags
}

/// Returns true for a SCSI Response, or the last Data-In with its status.
fn is_end(opcode: u8, flags: u8) -> bool {
    opcode == 0x21 || (opcode == 0x25 && flags & 1 != 0)
}

#[track_caller]
fn is_silent(raw: &mut RawClient) {
    assert_eq!(raw.answer(SILENCE).unwrap(), RawAnswer::TimedOut);
}

/// Goal: only commands beyond the limit of their LUN wait; other LUNs of the session and other
/// commands do not. Removing the limit releases the waiting command at once.
#[test]
fn a_limited_lun_waits_alone() {
    let (rig, [limited, _]) = two_units();
    let mut raw = log_in(&rig, 1);
    limited.set_limit(lowest());
    assert_eq!(limited.limit(), lowest());
    indebt(&mut raw);
    let waits = [read(&mut raw, 0, 1), read(&mut raw, 0, 1)];
    let passes = [
        read(&mut raw, 1, 1),
        send(&mut raw, SIMPLE, 0, &TEST_UNIT_READY, 0),
        send(&mut raw, HEAD_OF_QUEUE, 0, &TEST_UNIT_READY, 0),
        send(&mut raw, ORDERED, 1, &ten(0x28, 0, 1), 512),
        send(&mut raw, SIMPLE, 0, &[0x12, 0, 0, 0, 96, 0], 96),
    ];
    assert_eq!(receive_ends(&mut raw, passes.len()), passes);
    is_silent(&mut raw);
    limited.set_limit(Limit::NONE);
    assert_eq!(receive_ends(&mut raw, 2), waits, "in order");
    log_out(raw);
    rig.stop_cleanly();
}

/// Goal: the order of SAM-5 §8 holds among all commands of a session at a unit, waiting or not.
#[test]
fn order_is_kept_while_waiting() {
    let (rig, [limited, _]) = two_units();
    let mut raw = log_in(&rig, 1);
    limited.set_limit(lowest());
    indebt(&mut raw);
    let first = read(&mut raw, 0, 1);
    let ordered = send(&mut raw, ORDERED, 0, &TEST_UNIT_READY, 0);
    let behind = send(&mut raw, SIMPLE, 0, &TEST_UNIT_READY, 0);
    let last = read(&mut raw, 0, 1);
    let head = send(&mut raw, HEAD_OF_QUEUE, 0, &ten(0x28, 0, 1), 512);
    is_silent(&mut raw);
    limited.set_limit(Limit::NONE);
    assert_eq!(receive_ends(&mut raw, 5), [head, first, ordered, behind, last]);
    log_out(raw);
    rig.stop_cleanly();
}

/// Goal: an initiator's limit, at a unit or at the target, applies to all its sessions and to no
/// other initiator; ORDERED commands of other initiators do not wait for delayed ones.
#[test]
fn an_initiator_waits_alone() {
    for at_target in [false, true] {
        let (rig, [unit, other_unit]) = two_units();
        let limit = |limits: Vec<InitiatorLimit>| match at_target {
            true => rig.server().set_initiator_limits(TARGET, limits),
            false => unit.set_initiator_limits(limits),
        };
        let mut noisy = log_in(&rig, 1);
        limit(of(1, lowest()));
        indebt(&mut noisy);
        // A second session of the same initiator, under another ISID.
        let mut second = RawClient::connect(&rig.address).unwrap();
        let text = format!(
            "InitiatorName=iqn.2026-11.org.lunarsan.test:RAW-1\0TargetName={TARGET}\0\
             SessionType=Normal\0"
        );
        second.send(&second.login(text.as_bytes()).put(13, &[9])).unwrap();
        second.exp_stat_sn = second.expect(0x23).unwrap().u32_at(24).wrapping_add(1);
        second.execute(&TEST_UNIT_READY, 0).unwrap();
        let mut quiet = log_in(&rig, 2);
        let waits = [
            send(&mut noisy, ORDERED, 0, &ten(0x28, 0, 1), 512),
            send(&mut noisy, SIMPLE, 0, &ten(0x28, 0, 1), 512),
        ];
        let waits_too = read(&mut second, 0, 1);
        let elsewhere = read(&mut noisy, 1, 1);
        for attribute in [SIMPLE, ORDERED, HEAD_OF_QUEUE] {
            let tag = send(&mut quiet, attribute, 0, &ten(0x28, 0, 1), 512);
            assert_eq!(receive_ends(&mut quiet, 1), [tag]);
        }
        is_silent(&mut second);
        if at_target {
            is_silent(&mut noisy);
        } else {
            assert_eq!(receive_ends(&mut noisy, 1), [elsewhere], "the limit is of one unit");
        }
        limit(Vec::new());
        let mut ended = receive_ends(&mut noisy, if at_target { 3 } else { 2 });
        ended.retain(|tag| *tag != elsewhere);
        assert_eq!(ended, waits);
        assert_eq!(receive_ends(&mut second, 1), [waits_too]);
        assert!(other_unit.limit().is_none() && unit.initiator_limits().is_empty());
        [noisy, second, quiet].into_iter().for_each(log_out);
        rig.stop_cleanly();
    }
}

/// Goal: a waiting command can be aborted, ends with its connection, and leaves nothing behind.
#[test]
fn waiting_commands_can_be_aborted() {
    let (rig, [limited, _]) = two_units();
    let mut raw = log_in(&rig, 1);
    limited.set_limit(lowest());
    indebt(&mut raw);
    let first = read(&mut raw, 0, 1);
    let second = send_write(&mut raw, 0, 8, 7);
    let third = send(&mut raw, ORDERED, 0, &TEST_UNIT_READY, 0);
    let function = send_function(&mut raw, ABORT_TASK, first);
    assert_eq!(answer_to(&mut raw, function).header[2], 0, "FUNCTION COMPLETE");
    is_silent(&mut raw);
    let function = send_function(&mut raw, LOGICAL_UNIT_RESET, 0);
    assert_eq!(answer_to(&mut raw, function).header[2], 0, "FUNCTION COMPLETE");
    is_silent(&mut raw);
    let mut other = log_in(&rig, 2);
    read(&mut other, 0, 1);
    read(&mut other, 0, 1);
    drop(other);
    limited.set_limit(Limit::NONE);
    is_silent(&mut raw);
    let _ = raw.execute(&TEST_UNIT_READY, 0).unwrap(); // reports the reset
    assert_eq!(raw.read_block(0).unwrap(), [0; 512], "the write was never begun");
    assert!(![first, second, third].contains(&raw.new_tag()));
    log_out(raw);
    rig.stop_cleanly();
}

/// Goal: waiting writes leave half of a connection's buffers, and part of the command window, to
/// other units; further writes get TASK SET FULL.
#[test]
fn waiting_writes_leave_resources_to_other_units() {
    let (rig, [limited, _]) = {
        let (rig, units) = two_units();
        drop(rig);
        let luns =
            [0, 1].map(|id| LunOptions::new(id, Arc::<DiskUnit>::clone(&units[usize::from(id)])));
        let rig = Rig::with(|options| {
            options.targets[0].luns = luns.into();
            // Twice the charge of four buffers of a page.
            options.limits.data_out_bytes = 2 * 4 * BufferPool::charged_bytes(4096);
            options.limits.window_commands = 32;
        });
        (rig, units)
    };
    let mut raw = log_in(&rig, 1);
    limited.set_limit(lowest());
    indebt(&mut raw);
    let waits: Vec<_> = (0..4).map(|_| send_write(&mut raw, 0, 8, 1)).collect();
    let refused = send_write(&mut raw, 0, 8, 1);
    assert_eq!(answer_to(&mut raw, refused).header[3], 0x28, "TASK SET FULL");
    raw.lun[1] = 1;
    raw.write_blocks(0, &[5; 16 << 10]).unwrap();
    raw.lun[1] = 0;
    let more: Vec<_> = (0..20).map(|_| read(&mut raw, 0, 1)).collect();
    let refused = read(&mut raw, 0, 1);
    assert_eq!(answer_to(&mut raw, refused).header[3], 0x28, "TASK SET FULL");
    let elsewhere = read(&mut raw, 1, 1);
    assert_eq!(receive_ends(&mut raw, 1), [elsewhere]);
    is_silent(&mut raw);
    limited.set_limit(Limit::NONE);
    assert_eq!(receive_ends(&mut raw, 24), [waits, more].concat());
    log_out(raw);
    rig.stop_cleanly();
}

/// Goal: WRITE SAME of much more than any transfer is charged piece by piece, delays no other LUN,
/// and can be aborted in between.
#[test]
fn long_commands_are_charged_while_they_run() {
    let (rig, [limited, _]) = two_units();
    let mut raw = log_in(&rig, 1);
    limited.set_limit(lowest());
    // 32 MiB take 26 seconds; nothing was charged before.
    let pdu = raw.command(0xa1, &ten(0x41, 0, 65_535), 512);
    raw.send(&pdu.clone().with_data(vec![7; 512])).unwrap();
    is_silent(&mut raw);
    let other = read(&mut raw, 1, 1);
    assert_eq!(receive_ends(&mut raw, 1), [other]);
    let function = send_function(&mut raw, ABORT_TASK, pdu.u32_at(16));
    assert_eq!(answer_to(&mut raw, function).header[2], 0, "FUNCTION COMPLETE");
    limited.set_limit(Limit::NONE);
    assert_eq!(raw.read_block(0).unwrap(), [7; 512]);
    assert_eq!(raw.read_block(65_000).unwrap(), [0; 512], "it had not come so far");
    let again = raw.command(0xa1, &ten(0x41, 0, 65_535), 512).with_data(vec![7; 512]);
    raw.send(&again).unwrap();
    assert_eq!(receive_ends(&mut raw, 1).len(), 1);
    assert_eq!(raw.read_block(65_000).unwrap(), [7; 512]);
    log_out(raw);
    rig.stop_cleanly();
}

/// Goal: an initiator whose copy or WRITE SAME waits for its limit delays no other initiator, not
/// even one with an ORDERED command or commands behind it; the copy or WRITE SAME continues.
#[test]
fn commands_that_wait_for_a_limit_delay_no_others() {
    let (rig, [limited, _]) = two_units();
    let mut noisy = log_in(&rig, 1);
    let (mut strict, mut other) = (log_in(&rig, 2), log_in(&rig, 3));
    strict.lun[1] = 1;
    let source = strict.command(0xa1, &ten(0x41, 0, 65_535), 512).with_data(vec![7; 512]);
    strict.lun[1] = 0;
    strict.send(&source).unwrap();
    assert_eq!(receive_ends(&mut strict, 1).len(), 1);
    let segment = Segment { from: 1, to: 0, blocks: 65_535, source_lba: 0, destination_lba: 0 };
    let copy = list(1, &[cscd(1, 512), cscd(2, 512)], &[segment]);
    let same = (ten(0x41, 0, 65_535).to_vec(), vec![7; 512]);
    for (cdb, data) in [same, (copy_cdb(copy.len()), copy)] {
        // 32 MiB take 26 seconds.
        limited.set_initiator_limits(of(1, lowest()));
        let long = noisy.command(0xa1, &cdb, data.len() as u32).with_data(data);
        noisy.send(&long).unwrap();
        is_silent(&mut noisy);
        let ordered = send(&mut strict, ORDERED, 0, &ten(0x28, 0, 1), 512);
        assert_eq!(receive_ends(&mut strict, 1), [ordered]);
        let behind = read(&mut other, 0, 1);
        assert_eq!(receive_ends(&mut other, 1), [behind]);
        is_silent(&mut noisy);
        limited.set_initiator_limits(Vec::new());
        assert_eq!(receive_ends(&mut noisy, 1), [long.u32_at(16)]);
    }
    assert_eq!(other.read_block(65_000).unwrap(), [7; 512]);
    [noisy, strict, other].into_iter().for_each(log_out);
    rig.stop_cleanly();
}

/// Goal: a rate is kept and used; the bounds are wide because the machine may be busy.
#[test]
fn a_rate_is_kept_and_used() {
    let (rig, [limited, _]) = two_units();
    let mut raw = log_in(&rig, 1);
    limited.set_limit(Limit::new(Some(500), None).unwrap());
    let began = Instant::now();
    for _ in 0..32 {
        read(&mut raw, 0, 8);
    }
    let mut done = 32_u32;
    while began.elapsed() < Duration::from_secs(2) {
        receive_ends(&mut raw, 1);
        read(&mut raw, 0, 8);
        done += 1;
    }
    receive_ends(&mut raw, 32);
    let rate = f64::from(done) / began.elapsed().as_secs_f64();
    assert!((50.0..650.0).contains(&rate), "{rate} commands a second instead of 500");
    log_out(raw);
    rig.stop_cleanly();
}
