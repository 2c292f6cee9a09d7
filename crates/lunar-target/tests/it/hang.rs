//! Tests of a disk that hangs: its commands can be aborted in every way, other units continue, and
//! a hung write never takes effect after an initiator has read the blocks without it.

use crate::common::*;
use lunar_block::{BlockDevice, Effect, Fault, FaultDevice, FaultOperation, MemoryDevice};
use lunar_target::{DiskUnit, DiskUnitOptions, LunOptions};
use lunar_testkit::raw::{RawAnswer, RawClient, RawPdu, opcode};
use std::sync::Arc;
use std::time::Duration;

/// Time without a reply after which a command counts as waiting.
const SILENCE: Duration = Duration::from_millis(100);

/// Starts a server with a second disk as LUN 1, which never fails.
fn with_neighbour() -> Rig {
    Rig::with(|options| {
        let memory = Arc::new(MemoryDevice::new(1 << 20, 512, 4096).unwrap());
        let uuid = uuid::Uuid::from_u128(2);
        let unit = DiskUnit::open(DiskUnitOptions::new(uuid, memory)).unwrap();
        options.targets[0].luns.push(LunOptions::new(1, unit));
    })
}

/// Sends a write that hangs, and waits until it has begun.
fn hang_a_write(rig: &Rig, raw: &mut RawClient, lba: u32, byte: u8) -> u32 {
    rig.device.inject(Fault::new(Effect::Hang).on(FaultOperation::Write).times(1));
    let hanging = rig.device.hanging();
    let tag = send_write(raw, lba, 1, byte);
    rig.wait_for("it hangs", |rig| rig.device.hanging() == hanging + 1);
    tag
}

/// Asserts that a read of one block of LUN 1 works.
fn neighbour_works(raw: &mut RawClient) {
    loop {
        let mut pdu = raw.command(0xc1, &ten(0x28, 0, 1), 512);
        pdu.header[9] = 1;
        raw.send(&pdu).unwrap();
        let answer = answer_to(raw, pdu.u32_at(16));
        if answer.opcode() == opcode::DATA_IN {
            return;
        }
        assert_eq!(answer.data[4] & 0xf, 6, "nothing but unit attentions: {answer:02x?}");
    }
}

/// Reads and writes blocks next to the one that hangs.
fn other_blocks_work(raw: &mut RawClient) {
    raw.write_blocks(8, &[3; 512]).unwrap();
    assert_eq!(raw.read_block(8).unwrap(), [3; 512]);
    assert_eq!(raw.read_block(1).unwrap(), [0; 512]);
}

/// Asserts that the command of this tag gets no reply, and aborts it.
fn waits_and_is_aborted(raw: &mut RawClient, tag: u32) {
    assert_eq!(raw.answer(SILENCE).unwrap(), RawAnswer::TimedOut);
    let abort = send_function(raw, ABORT_TASK, tag);
    let answer = answer_to(raw, abort);
    assert_eq!((answer.opcode(), answer.header[2]), (0x22, 0), "function complete");
}

/// Goal: a write that hangs can be aborted in each way, with a reply while it hangs. After that,
/// other blocks and other units work. Commands on its blocks wait, can be aborted, and see the
/// write done once the disk works again.
#[test]
fn a_hanging_write_is_aborted_in_every_way() {
    let ways = [ABORT_TASK, ABORT_TASK_SET, CLEAR_TASK_SET, LOGICAL_UNIT_RESET, TARGET_WARM_RESET];
    for way in ways {
        let rig = with_neighbour();
        let mut raw = rig.log_in(1);
        let mut other = rig.log_in(2);
        let hung = hang_a_write(&rig, &mut raw, 0, 7);
        neighbour_works(&mut raw);
        let by_other = way == LOGICAL_UNIT_RESET;
        let asks = if by_other { &mut other } else { &mut raw };
        let abort = send_function(asks, way, if way == ABORT_TASK { hung } else { u32::MAX });
        let answer = answer_to(asks, abort);
        assert_eq!((answer.opcode(), answer.header[2]), (0x22, 0), "function {way}");
        assert_eq!(rig.device.hanging(), 1, "the write still hangs");
        other_blocks_work(&mut raw);
        neighbour_works(&mut raw);
        other_blocks_work(&mut other);
        for tag in [send_read(&mut other, 0, 1), send_write(&mut other, 0, 1, 9)] {
            waits_and_is_aborted(&mut other, tag);
        }
        let read = send_read(&mut other, 0, 4);
        assert_eq!(other.answer(SILENCE).unwrap(), RawAnswer::TimedOut);
        rig.device.release();
        assert_eq!(answer_to(&mut other, read).data[..512], [7; 512], "the aborted write, not 9");
        assert_eq!(raw.read_block(0).unwrap(), [7; 512]);
        log_out(raw);
        log_out(other);
        rig.stop_cleanly();
    }
}

/// Goal: sessions and connections can end while one of their writes hangs: logout, reinstatement, a
/// lost connection, TARGET COLD RESET. The next login works at once.
#[test]
fn sessions_end_while_a_write_hangs() {
    let rig = with_neighbour();
    for (round, end) in ["logout", "reinstatement", "lost", "cold reset"].into_iter().enumerate() {
        let mut raw = rig.log_in(1);
        let block = 16 + round as u32;
        hang_a_write(&rig, &mut raw, block, 7);
        let mut next = match end {
            "logout" => {
                log_out(raw);
                rig.log_in(1)
            }
            "reinstatement" => {
                let next = rig.log_in(1);
                raw.wait_until_closed(TEST_TIMEOUT).unwrap();
                next
            }
            "lost" => {
                drop(raw);
                rig.log_in(1)
            }
            _ => {
                let reset = send_function(&mut raw, TARGET_COLD_RESET, u32::MAX);
                assert_eq!(answer_to(&mut raw, reset).header[2], 0, "function complete");
                raw.wait_until_closed(TEST_TIMEOUT).unwrap();
                rig.log_in(1)
            }
        };
        assert_eq!(rig.device.hanging(), round + 1, "{end}");
        other_blocks_work(&mut next);
        neighbour_works(&mut next);
        let read = send_read(&mut next, block, 1);
        waits_and_is_aborted(&mut next, read);
        log_out(next);
    }
    rig.device.release();
    let mut raw = rig.log_in(1);
    for block in 16..20 {
        assert_eq!(raw.read_block(block).unwrap(), [7; 512]);
    }
    log_out(raw);
    rig.stop_cleanly();
}

/// Goal: an aborted write never overwrites a later one. Method: another session writes the same
/// block again after each abort.
#[test]
fn a_later_write_is_written_last() {
    let rig = Rig::new();
    let (mut one, mut two) = (rig.log_in(1), rig.log_in(2));
    let hung = hang_a_write(&rig, &mut one, 0, 1);
    let abort = send_function(&mut one, ABORT_TASK, hung);
    assert_eq!(answer_to(&mut one, abort).header[2], 0);
    let later = send_write(&mut two, 0, 1, 2);
    let mut compare = [0; 16];
    (compare[0], compare[13]) = (0x89, 1);
    let compared = two.command(0xa1, &compare, 1024);
    two.send(&compared.clone().with_data([[2; 512], [3; 512]].concat())).unwrap();
    assert_eq!(two.answer(SILENCE).unwrap(), RawAnswer::TimedOut);
    rig.device.release();
    assert_eq!(answer_to(&mut two, later).header[3], 0, "GOOD");
    assert_eq!(answer_to(&mut two, compared.u32_at(16)).header[3], 0, "it compared with the 2");
    assert_eq!(one.read_block(0).unwrap(), [3; 512]);
    log_out(one);
    log_out(two);
    rig.stop_cleanly();
}

/// Goal: every command that changes blocks can be aborted while the disk hangs at it, and leaves
/// nothing locked once it is over.
#[test]
fn every_change_can_be_aborted() {
    let rig = Rig::new();
    let mut raw = rig.log_in(1);
    let sixteen = |operation: u8, flags: u8, blocks: u8| {
        let mut cdb = vec![0; 16];
        (cdb[0], cdb[1], cdb[13]) = (operation, flags, blocks);
        cdb
    };
    let mut unmap = vec![0, 22, 0, 16, 0, 0, 0, 0];
    unmap.extend([0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0, 0]);
    let changes = [
        ("WRITE AND VERIFY", ten(0x2e, 0, 1).to_vec(), vec![1; 512]),
        ("WRITE ATOMIC", sixteen(0x9c, 0, 8), vec![1; 4096]),
        ("COMPARE AND WRITE", sixteen(0x89, 0, 1), vec![0; 1024]),
        ("ORWRITE", sixteen(0x8b, 0, 1), vec![1; 512]),
        ("WRITE SAME", ten(0x41, 0, 8).to_vec(), vec![1; 512]),
        ("WRITE SAME of zeroes", sixteen(0x93, 1, 8), vec![]),
        ("UNMAP", vec![0x42, 0, 0, 0, 0, 0, 0, 0, 24, 0], unmap),
    ];
    for (name, cdb, data) in changes {
        rig.device.inject(Fault::new(Effect::Hang).on(FaultOperation::Write));
        rig.device.inject(Fault::new(Effect::Hang).on(FaultOperation::WriteZeroes));
        rig.device.inject(Fault::new(Effect::Hang).on(FaultOperation::Unmap));
        let pdu = raw.command(0xa1, &cdb, data.len() as u32);
        let pdu = if cdb[0] == 0x9c { pdu.put(46, &cdb[14..16]) } else { pdu };
        raw.send(&pdu.clone().with_data(data)).unwrap();
        rig.wait_for(name, |rig| rig.device.hanging() == 1);
        waits_and_is_aborted(&mut raw, pdu.u32_at(16));
        assert_eq!(rig.device.hanging(), 1, "{name} still hangs");
        let read = send_read(&mut raw, 0, 1);
        waits_and_is_aborted(&mut raw, read);
        let status =
            raw.command(0xc1, &[0x9e, 0x12, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 32, 0, 0], 32);
        raw.send(&status).unwrap();
        waits_and_is_aborted(&mut raw, status.u32_at(16));
        rig.device.heal();
        rig.device.release();
        raw.write_blocks(0, &[0; 4096]).unwrap();
    }
    log_out(raw);
    rig.stop_cleanly();
}

/// Goal: a sync that hangs can be aborted, and its session can end; commands that need no sync go
/// on.
#[test]
fn a_hanging_sync_is_aborted() {
    let rig = with_neighbour();
    let mut raw = rig.log_in(1);
    rig.device.inject(Fault::new(Effect::Hang).on(FaultOperation::Flush));
    let sync = raw.command(0x81, &ten(0x35, 0, 0), 0);
    raw.send(&sync).unwrap();
    rig.wait_for("it hangs", |rig| rig.device.hanging() == 1);
    waits_and_is_aborted(&mut raw, sync.u32_at(16));
    assert_eq!(raw.read_block(0).unwrap(), [0; 512]);
    neighbour_works(&mut raw);
    let sync = raw.command(0x81, &ten(0x35, 0, 0), 0);
    raw.send(&sync).unwrap();
    rig.wait_for("the next hangs", |rig| rig.device.hanging() == 1);
    log_out(raw);
    rig.stop_cleanly();
}

/// Goal: while many aborted writes hang, further ones get BUSY, because each holds its data.
#[test]
fn aborted_writes_that_hang_are_few() {
    let rig = Rig::new();
    let mut raw = rig.log_in(1);
    rig.device.inject(Fault::new(Effect::Hang).on(FaultOperation::Write));
    for round in 0..5 {
        let tags: Vec<_> =
            (0..16).map(|lba| send_write(&mut raw, 100 * round + lba, 1, 1)).collect();
        if round == 4 {
            for tag in tags {
                assert_eq!(answer_to(&mut raw, tag).header[3], 8, "BUSY");
            }
            break;
        }
        let abort = send_function(&mut raw, ABORT_TASK_SET, u32::MAX);
        assert_eq!(answer_to(&mut raw, abort).header[2], 0, "function complete");
    }
    assert_eq!(rig.device.hanging(), 64, "as many as the limit allows");
    raw.read_block(50).unwrap();
    log_out(raw);
    rig.stop_cleanly();
}

/// Fault: a reset aborted the tasks of one session after the other, and waited 300 ms for each that
/// hung: one initiator with many sessions could delay it without limit. Method: one after the other
/// these aborts would take longer than the test waits for a reply.
#[test]
fn a_reset_aborts_all_sessions_at_once() {
    const SESSIONS: u32 = 40;
    let rig = Rig::new();
    let mut asks = rig.log_in(1);
    let mut others: Vec<_> = (0..SESSIONS).map(|number| rig.log_in(2 + number)).collect();
    for (raw, block) in others.iter_mut().zip(0..) {
        hang_a_write(&rig, raw, block, 7);
    }
    let reset = send_function(&mut asks, LOGICAL_UNIT_RESET, u32::MAX);
    assert_eq!(answer_to(&mut asks, reset).header[2], 0, "function complete");
    assert_eq!(rig.unit().detached_write_count(), SESSIONS as usize);
    rig.device.release();
    others.into_iter().for_each(log_out);
    log_out(asks);
    rig.stop_cleanly();
}

/// Sends PERSISTENT RESERVE OUT, exclusive access.
fn reserve_out(raw: &mut RawClient, lun: u8, action: u8, keys: [u64; 2]) {
    let mut list = [keys[0].to_be_bytes(), keys[1].to_be_bytes()].concat();
    list.resize(24, 0);
    loop {
        let mut pdu = raw.command(0xa1, &[0x5f, action, 3, 0, 0, 0, 0, 0, 24, 0], 24);
        pdu.header[9] = lun;
        raw.send(&pdu.clone().with_data(list.clone())).unwrap();
        let answer = answer_to(raw, pdu.u32_at(16));
        if answer.header[3] == 0 {
            return;
        }
        assert_eq!(answer.data[4] & 0xf, 6, "nothing but unit attentions: {answer:02x?}");
    }
}

/// Goal: an initiator that fences another one off by PREEMPT AND ABORT gets its reply although a
/// write of the other one hangs, and its own later writes stay.
#[test]
fn fenced_off_while_a_write_hangs() {
    let rig = Rig::new();
    let (mut old, mut new) = (rig.log_in(1), rig.log_in(2));
    reserve_out(&mut old, 0, 0, [0, 1]);
    reserve_out(&mut new, 0, 0, [0, 2]);
    hang_a_write(&rig, &mut old, 0, 1);
    reserve_out(&mut new, 0, 5, [2, 1]);
    assert_eq!(rig.device.hanging(), 1);
    let mine = send_write(&mut new, 0, 1, 2);
    assert_eq!(new.answer(SILENCE).unwrap(), RawAnswer::TimedOut);
    rig.device.release();
    assert_eq!(answer_to(&mut new, mine).header[3], 0, "GOOD");
    assert_eq!(new.read_block(0).unwrap(), [2; 512]);
    log_out(old);
    log_out(new);
    rig.stop_cleanly();
}

/// Fault: PREEMPT AND ABORT aborted the tasks of one session after the other, and all other changes
/// of the reservations waited for its end. Method: as with [`a_reset_aborts_all_sessions_at_once`].
#[test]
fn fencing_aborts_all_sessions_at_once() {
    const SESSIONS: u32 = 40;
    let rig = Rig::new();
    let mut new = rig.log_in(1);
    let mut old: Vec<_> = (0..SESSIONS).map(|number| rig.log_in(2 + number)).collect();
    reserve_out(&mut new, 0, 0, [0, 2]);
    for (raw, block) in old.iter_mut().zip(0..) {
        reserve_out(raw, 0, 0, [0, 1]);
        hang_a_write(&rig, raw, block, 1);
    }
    reserve_out(&mut new, 0, 5, [2, 1]);
    assert_eq!(rig.unit().detached_write_count(), SESSIONS as usize);
    rig.device.release();
    old.into_iter().for_each(log_out);
    log_out(new);
    rig.stop_cleanly();
}

/// Goal: fencing works in the same way if the other initiator writes by a copy, which is a task of
/// another unit.
#[test]
fn fenced_off_while_a_copy_hangs() {
    let second = FaultDevice::new(Arc::new(MemoryDevice::new(1 << 20, 512, 4096).unwrap()), 1);
    let to = Arc::<FaultDevice>::clone(&second);
    let rig = Rig::with(|options| {
        let device: Arc<dyn BlockDevice> = to;
        let uuid = uuid::Uuid::from_u128(2);
        let unit = DiskUnit::open(DiskUnitOptions::new(uuid, device)).unwrap();
        options.targets[0].luns.push(LunOptions::new(1, unit));
    });
    let (mut old, mut new) = (rig.log_in(1), rig.log_in(2));
    old.write_blocks(0, &[1; 4096]).unwrap();
    reserve_out(&mut old, 1, 0, [0, 1]);
    reserve_out(&mut new, 1, 0, [0, 2]);
    second.inject(Fault::new(Effect::Hang).on(FaultOperation::Write).times(1));
    let segment = copy::Segment { from: 0, to: 1, blocks: 8, source_lba: 0, destination_lba: 0 };
    let list = copy::list(1, &[copy::cscd(1, 512), copy::cscd(2, 512)], &[segment]);
    let copying = old.command(0xa1, &copy::copy_cdb(list.len()), list.len() as u32);
    old.send(&copying.with_data(list)).unwrap();
    rig.wait_for("a piece hangs", |_| second.hanging() == 1);
    reserve_out(&mut new, 1, 5, [2, 1]);
    assert_eq!(second.hanging(), 1);
    let mut mine = new.command(0xa1, &ten(0x2a, 0, 1), 512);
    mine.header[9] = 1;
    new.send(&mine.clone().with_data(vec![2; 512])).unwrap();
    assert_eq!(new.answer(SILENCE).unwrap(), RawAnswer::TimedOut);
    second.release();
    assert_eq!(answer_to(&mut new, mine.u32_at(16)).header[3], 0, "GOOD");
    let mut read = new.command(0xc1, &ten(0x28, 0, 1), 512);
    read.header[9] = 1;
    new.send(&read).unwrap();
    let read: RawPdu = answer_to(&mut new, read.u32_at(16));
    assert_eq!(read.data, [2; 512]);
    log_out(old);
    log_out(new);
    rig.stop_cleanly();
}

/// Goal: a disk that hangs does not keep the server from changing its catalogue: the disk is
/// removed, and its unfinished last sync is reported.
#[test]
fn a_disk_whose_last_sync_hangs_can_be_removed() {
    let rig = with_neighbour();
    let mut raw = rig.log_in(1);
    rig.device.inject(Fault::new(Effect::Hang).on(FaultOperation::Flush));
    let mut catalogue = rig.server().catalogue();
    let mut target = (*catalogue.targets[0]).clone();
    target.luns.remove(0);
    catalogue.targets = vec![Arc::new(target)];
    let replaced = block_on_without_waiting(rig.server().replace(catalogue)).unwrap();
    let [(_, why)] = &replaced.failed_syncs[..] else { panic!("{replaced:?}") };
    assert!(why.contains("did not end within"), "{why}");
    neighbour_works(&mut raw);
    drop((replaced, raw));
    rig.stop_cleanly();
}

/// Goal: a disk keeps its size while a write to the blocks beyond the new size hangs.
#[test]
fn a_disk_does_not_shrink_below_a_write_that_hangs() {
    let rig = Rig::new();
    let mut raw = rig.log_in(1);
    let tag = hang_a_write(&rig, &mut raw, 100_000, 7);
    let unit = rig.unit();
    let resized = block_on_without_waiting(unit.resize(32 << 20, lunar_target::Shrink::Allowed));
    assert!(resized.unwrap_err().to_string().contains("do not complete"));
    rig.device.release();
    assert_eq!(answer_to(&mut raw, tag).header[3], 0, "GOOD");
    assert_eq!(raw.read_block(100_000).unwrap(), [7; 512]);
    drop((unit, raw));
    rig.stop_cleanly();
}
