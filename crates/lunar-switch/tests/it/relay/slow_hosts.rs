//! Hosts that do not take the data of their relayed READs: others continue.

use super::{BLOCK, BLOCKS, LINEAR, NAME, Rig, TestCommand};
use crate::memory;
use bytes::Bytes;
use lunar_block::{BlockRange, Error};
use lunar_switch::relay::COMMAND_BYTES_MAX;
use lunar_switch::{
    DeviceExtent, MigrationEnd, MigrationOptions, MigrationPhase, MigrationRecord, RecordOutcome,
};
use lunar_testkit::raw::{RawAnswer, RawClient, RawPdu};
use std::io;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::task::JoinHandle;

/// Number of READs, with more data than the sockets between the switch and a host hold.
const READS: usize = 24;
/// Longest wait for anything.
const LIMIT: Duration = Duration::from_secs(20);

fn rig() -> Rig {
    Rig::new(LINEAR, true)
}

/// Logs in a host whose READs and WRITEs of the first storage are relayed.
fn log_in(rig: &Rig) -> RawClient {
    let mut raw = RawClient::log_in(&rig.switch.addresses()[0].to_string(), NAME).unwrap();
    let end = Instant::now() + LIMIT;
    for is_write in [false, true] {
        let before = rig.relayed().commands;
        while rig.relayed().commands == before {
            assert!(Instant::now() < end, "nothing is relayed");
            match is_write {
                true => raw.write_blocks(0, &[0; BLOCK]).unwrap(),
                false => drop(raw.read_block(0).unwrap()),
            }
        }
    }
    raw
}

/// Sends READs and takes none of their data; returns when data is held, while another host
/// reads all the time.
fn send_reads(rig: &Rig, raw: &mut RawClient, other: &lunar_initiator::Initiator) {
    let blocks = BLOCKS as u32 / 2;
    let bytes = blocks * BLOCK as u32;
    let read = TestCommand::transfer(0x88, 0, 0, blocks, None, bytes);
    for _ in 0..READS {
        let command = raw.command(0xc1, &read.cdb, bytes);
        raw.send(&command).unwrap();
    }
    let one = TestCommand::transfer(0x88, 0, 0, 1, None, BLOCK as u32);
    let end = Instant::now() + LIMIT;
    let mut rounds = 0;
    while rounds < 300 {
        assert!(Instant::now() < end, "nothing is held");
        rig.execute(other, &one);
        let is_held = rig.switch.buffers().in_use_bytes() >= COMMAND_BYTES_MAX;
        rounds = if is_held { rounds + 1 } else { 0 };
    }
}

/// Takes all data of the READs.
fn take_reads(raw: &mut RawClient, mut commands: usize) {
    while commands > 0 {
        let RawAnswer::Pdu(pdu) = raw.answer(LIMIT).unwrap() else { panic!("no answer") };
        let has_status = pdu.opcode() == 0x21 || (pdu.opcode() == 0x25 && pdu.header[1] & 1 != 0);
        commands -= usize::from(has_status);
    }
}

/// Fault: the status of a relayed WRITE was not read from the storage while the host did not take
/// the data of a READ, so its blocks stayed locked, for other hosts too.
#[test]
fn untaken_reads_keep_no_blocks_locked() {
    const WRITES: usize = 4;
    let rig = rig();
    let other = rig.host(false);
    let mut raw = log_in(&rig);
    send_reads(&rig, &mut raw, &other);
    let before = rig.relayed().commands;
    let cdb = TestCommand::transfer(0x8a, 0, 7, 1, None, 0).cdb;
    for _ in 0..WRITES {
        let command = raw.command(0xa1, &cdb, BLOCK as u32).with_data([1; BLOCK]);
        raw.send(&command).unwrap();
    }
    // COMPARE AND WRITE, which waits for the WRITEs of its block.
    let cdb = [&[0x89, 0][..], &7u64.to_be_bytes(), &[0, 0, 0, 1, 0, 0]].concat();
    let data_out = Bytes::from([[1; BLOCK], [2; BLOCK]].concat());
    let compare = TestCommand { cdb, data_out, data_in: 0 };
    let end = Instant::now() + LIMIT;
    while rig.relayed().commands < before + WRITES as u64 {
        assert!(Instant::now() < end, "the WRITEs do not end");
        let TestCommand { cdb, data_out, data_in } = compare.clone();
        let reply = other.execute(lunar_wire::Lun::new(0), cdb, data_out, data_in);
        let reply = rig.runtime.block_on(async { tokio::time::timeout(LIMIT, reply).await });
        assert!(reply.is_ok(), "the block is locked");
    }
    take_reads(&mut raw, READS + WRITES);
    drop(raw);
    rig.end(vec![other]);
}

/// A record that is always free.
#[derive(Debug)]
struct FreeRecord;

impl MigrationRecord for FreeRecord {
    fn commit(&self) -> RecordOutcome {
        RecordOutcome::Committed
    }

    fn revert(&self) -> io::Result<()> {
        Ok(())
    }
}

/// Moves the first extent. Returns when the destination is in use; the task ends when the former
/// one is not.
fn move_first_extent(rig: &Rig) -> JoinHandle<Result<MigrationEnd, Error>> {
    let to = DeviceExtent {
        device: memory(BLOCKS * BLOCK as u64, 512, 512),
        blocks: BlockRange::new(0, BLOCKS / 2),
    };
    let migration = rig.disk.prepare_migration(0, to, MigrationOptions::default()).unwrap();
    let migration = Arc::new(migration);
    let moving = Arc::clone(&migration);
    let run = rig.runtime.spawn(async move { moving.run(&FreeRecord).await });
    let end = Instant::now() + LIMIT;
    while migration.progress().phase != MigrationPhase::Moved {
        assert!(Instant::now() < end, "{:?}", migration.progress());
        std::thread::yield_now();
    }
    run
}

/// Fault: a READ that waited for an ORDERED command was relayed to where its blocks were when it
/// came, so it missed the change of that command if they had been moved meanwhile.
#[test]
fn a_read_that_waited_reads_the_destination() {
    let rig = rig();
    let mut raw = log_in(&rig);
    // COMPARE AND WRITE of zeroes, without its data.
    let cdb = [&[0x89, 0][..], &7u64.to_be_bytes(), &[0, 0, 0, 1, 0, 0]].concat();
    let compare = raw.command(0xa2, &cdb, 2 * BLOCK as u32);
    raw.send(&compare).unwrap();
    let RawAnswer::Pdu(r2t) = raw.answer(LIMIT).unwrap() else { panic!("no answer") };
    assert_eq!(r2t.opcode(), 0x31);
    let read = TestCommand::transfer(0x88, 0, 7, 1, None, BLOCK as u32).cdb;
    let read = raw.command(0xc1, &read, BLOCK as u32);
    raw.send(&read).unwrap();
    // The answer to a ping tells that the READ has arrived.
    let ping = RawPdu::new(0x40, 0x80).put_u32(16, raw.new_tag()).put_u32(20, u32::MAX);
    let ping = ping.put_u32(24, raw.cmd_sn).put_u32(28, raw.exp_stat_sn);
    raw.send(&ping).unwrap();
    let RawAnswer::Pdu(pong) = raw.answer(LIMIT).unwrap() else { panic!("no answer") };
    assert_eq!(pong.opcode(), 0x20);
    let run = move_first_extent(&rig);
    let data = [[0; BLOCK], [2; BLOCK]].concat();
    let data_out = RawPdu::new(0x05, 0x80).put(8, &r2t.header[8..24]).with_data(data);
    raw.send(&data_out).unwrap();
    let mut found = Vec::new();
    for _ in 0..2 {
        let RawAnswer::Pdu(pdu) = raw.answer(LIMIT).unwrap() else { panic!("no answer") };
        assert_eq!(pdu.header[3], 0, "a status");
        if pdu.opcode() == 0x25 {
            found = pdu.data;
        }
    }
    assert!(found == [2; BLOCK], "data of before the change: {:?}", found.first());
    assert_eq!(rig.runtime.block_on(run).unwrap().unwrap(), MigrationEnd::Moved);
    drop(raw);
    rig.end(Vec::new());
}

/// Fault: a move did not begin to copy while a host did not take the data of a relayed READ. The
/// source is in use until the host has taken it.
#[test]
fn untaken_reads_keep_no_move_from_copying() {
    let rig = rig();
    let other = rig.host(false);
    let mut raw = log_in(&rig);
    send_reads(&rig, &mut raw, &other);
    let run = move_first_extent(&rig);
    assert!(!run.is_finished(), "READs use the source");
    take_reads(&mut raw, READS);
    assert_eq!(rig.runtime.block_on(run).unwrap().unwrap(), MigrationEnd::Moved);
    drop(raw);
    rig.end(vec![other]);
}
