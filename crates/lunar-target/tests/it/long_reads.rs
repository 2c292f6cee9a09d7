//! READs that are read and sent in pieces, over TCP.

use crate::common::*;
use lunar_block::{
    BlockDevice, BlockRange, Buffer, BufferPool, Effect, ErrorKind, Fault, FaultOperation,
};
use lunar_testkit::raw::RawClient;

/// Length of a piece in blocks.
const PIECE_BLOCKS: u16 = 512;

/// Fills the first blocks of the disk, each with its number.
fn fill(rig: &Rig, blocks: u16) -> Vec<u8> {
    let mut buffer: Buffer = BufferPool::default().take(usize::from(blocks) * 512);
    for (number, block) in (0_u32..).zip(buffer.chunks_mut(512)) {
        block.chunks_mut(4).for_each(|word| word.copy_from_slice(&number.to_be_bytes()));
    }
    let data = buffer.freeze();
    block_on(rig.device.write(BlockRange::new(0, blocks.into()), data.clone(), false)).unwrap();
    data.to_vec()
}

fn read_16(raw: &mut RawClient, lba: u16, blocks: u16, expected_bytes: u32) -> (u8, Vec<u8>) {
    let mut cdb = [0; 16];
    cdb[0] = 0x88;
    cdb[8..10].copy_from_slice(&lba.to_be_bytes());
    cdb[12..14].copy_from_slice(&blocks.to_be_bytes());
    raw.execute(&cdb, expected_bytes).unwrap()
}

/// Goal: READs of all lengths around the borders of pieces return their data, also if the initiator
/// expects less or more.
#[test]
fn long_reads_return_their_data() {
    let rig = Rig::new();
    let disk = fill(&rig, 33 * PIECE_BLOCKS);
    let mut raw = rig.log_in(1);
    for blocks in [1, 2, 3, 31].map(|pieces| pieces * PIECE_BLOCKS) {
        for count in [blocks - 1, blocks, blocks + 1] {
            let bytes = usize::from(count) * 512;
            for expected in [bytes, bytes - 1, bytes + 1000, bytes / 2 + 3] {
                for lba in [0, 33 * PIECE_BLOCKS - count] {
                    let (status, data) = read_16(&mut raw, lba, count, expected as u32);
                    assert_eq!(status, 0, "{count} blocks from {lba} on");
                    let from = usize::from(lba) * 512;
                    let wanted = &disk[from..from + bytes.min(expected)];
                    assert!(data == wanted, "{count} blocks from {lba} on, {expected} expected");
                }
            }
        }
    }
    log_out(raw);
    rig.stop_cleanly();
}

/// Goal: a READ whose third piece cannot be read sends the two pieces before it, and ends with
/// CHECK CONDITION; the session continues.
#[test]
fn a_long_read_that_fails_late_ends_with_sense_data() {
    let rig = Rig::new();
    let disk = fill(&rig, 4 * PIECE_BLOCKS);
    let bytes = disk.len() as u32;
    let mut raw = rig.log_in(1);
    let bad = u64::from(2 * PIECE_BLOCKS) + 7;
    let fault = Fault::new(Effect::Fail(ErrorKind::Medium)).on(FaultOperation::Read);
    rig.device.inject(fault.at(BlockRange::new(bad, 1)));
    let mut cdb = [0; 10];
    cdb[0] = 0x28;
    cdb[7..9].copy_from_slice(&(4 * PIECE_BLOCKS).to_be_bytes());
    let outcome = raw.run(&cdb, bytes).unwrap();
    assert_eq!((outcome.status, outcome.sense_codes()), (2, (3, 0x1100)));
    let sent = usize::from(2 * PIECE_BLOCKS) * 512;
    assert!(outcome.data == disk[..sent], "{} bytes were sent", outcome.data.len());
    rig.device.heal();
    assert_eq!(read_16(&mut raw, 0, 4 * PIECE_BLOCKS, bytes), (0, disk));
    log_out(raw);
    rig.stop_cleanly();
}
