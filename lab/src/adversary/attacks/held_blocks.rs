//! Blocks that the sessions of one host keep locked for long, and another host that needs exclusive
//! access to them. The writes of all hosts wait behind that exclusive request.

use crate::adversary::attack::Attack;
use crate::adversary::attacker::{Attacker, Destination};
use crate::adversary::cdb;
use crate::adversary::flood::Flood;
use crate::adversary::server::SHARED_LBA;
use crate::adversary::session::{RawSession, flags};
use anyhow::Result;
use std::time::Duration;

/// Blocks of 8 MiB, the longest transfer.
const BLOCKS_MAX: u32 = 16_384;
/// Blocks of an ORWRITE in the attacker's half; its other blocks are the well-behaved client's.
const OWN_BLOCKS: u64 = 8;
/// Number of the initiator on the second host.
const SECOND_NUMBER: usize = 1000;

/// The attacks of this file.
pub const ATTACKS: &[Attack] = &[
    Attack::new("verify-then-caw", 65, |attacker| verify(attacker, 64)).from_hosts(2).summary(
        "64 sessions VERIFY the well-behaved client's blocks, another host has COMPARE AND WRITE \
         of them",
    ),
    Attack::new("verify-then-caw-4", 5, |attacker| verify(attacker, 4)).from_hosts(2).summary(
        "4 sessions VERIFY the well-behaved client's blocks, another host has COMPARE AND WRITE \
         of them",
    ),
    Attack::new("verify-pattern-then-orwrite", 65, verify_pattern).from_hosts(2).summary(
        "64 sessions VERIFY against one block, another host has ORWRITE of these and the \
         well-behaved client's blocks",
    ),
    Attack::new("write-same-then-orwrite", 65, write_same).from_hosts(2).summary(
        "64 sessions zero blocks, another host has ORWRITE of these and the well-behaved client's \
             blocks",
    ),
    Attack::new("unmap-then-orwrite", 65, unmap).from_hosts(2).summary(
        "64 sessions UNMAP lists, another host has ORWRITE of these and the well-behaved client's \
             blocks",
    ),
    Attack::new("busy-write-then-orwrite", 1001, busy_write)
        .from_hosts(2)
        .on_a_memory_lun()
        .summary(
            "1,000 sessions VERIFY elsewhere, one WRITEs a block, another host has ORWRITE of it \
             and the well-behaved client's blocks",
        ),
];

/// Sends the commands of `locking` in `sessions` sessions of the first host, and those of
/// `exclusive`, which need exclusive access to the same blocks, in one session of the second.
fn lock_and_contend(
    attacker: &Attacker,
    sessions: usize,
    locking: fn(&mut RawSession),
    exclusive: fn(&mut RawSession),
) -> Result<()> {
    attacker.in_threads(2, |thread| {
        let flood = match thread {
            0 => Flood::new(sessions, Destination::Shared).reading(attacker, locking, |_, _| {}),
            _ => Flood::new(1, Destination::Shared)
                .numbered_from(SECOND_NUMBER)
                .at_host(1)
                .paced(Duration::from_millis(20))
                .reading(attacker, exclusive, RawSession::keep_r2t),
        };
        drop(flood); // it ends when the attack is over
    });
    Ok(())
}

fn verify(attacker: &Attacker, sessions: usize) -> Result<()> {
    let locking = |session: &mut RawSession| {
        let lba = u64::from(BLOCKS_MAX) * session.random.below(4);
        let command = session.command(flags::SIMPLE, &cdb::cdb_16(0x8f, 0, lba, BLOCKS_MAX), 0);
        session.queue(&command);
    };
    lock_and_contend(attacker, sessions, locking, compare_and_write)
}

/// Sends COMPARE AND WRITE whose compare data never matches, so that nothing is written.
fn compare_and_write(session: &mut RawSession) {
    const BLOCKS: u8 = 32;
    let lba = 64 * session.random.below(u64::from(SHARED_LBA) / 64);
    let mut cdb = cdb::cdb_16(0x89, 0, lba, 0);
    cdb[13] = BLOCKS;
    let bytes = 1024 * u32::from(BLOCKS);
    let command = session.command(flags::SIMPLE | flags::WRITE, &cdb, bytes);
    let data = crate::random::pattern(session.random.next_u64(), bytes as usize);
    session.queue(&command.with_data(data));
}

/// Sends ORWRITE of zeroes, which change nothing.
fn or_write_at_border(session: &mut RawSession) {
    let lba = u64::from(SHARED_LBA) + OWN_BLOCKS - u64::from(BLOCKS_MAX);
    let cdb = cdb::cdb_16(0x8b, 0, lba, BLOCKS_MAX);
    let command = session.command(flags::SIMPLE | flags::WRITE, &cdb, BLOCKS_MAX * 512);
    session.queue(&command);
}

/// Sends VERIFY with BYTCHK 11b: each block is compared with the one block that is sent.
fn verify_pattern(attacker: &Attacker) -> Result<()> {
    let locking = |session: &mut RawSession| {
        let cdb = cdb::cdb_16(0x8f, 0x06, u64::from(SHARED_LBA), BLOCKS_MAX);
        let command = session.command(flags::SIMPLE | flags::WRITE, &cdb, 512);
        session.queue(&command.with_data([0; 512]));
    };
    lock_and_contend(attacker, 64, locking, or_write_at_border)
}

/// Sends WRITE SAME with and without deallocation, with NDOB.
fn write_same(attacker: &Attacker) -> Result<()> {
    let locking = |session: &mut RawSession| {
        let options = if session.random.below(2) == 0 { 0x01 } else { 0x09 };
        let cdb = cdb::cdb_16(0x93, options, u64::from(SHARED_LBA), 0xffff);
        let command = session.command(flags::SIMPLE, &cdb, 0);
        session.queue(&command);
    };
    lock_and_contend(attacker, 64, locking, or_write_at_border)
}

/// Writes a block that another host locks exclusively, alongside a thousand sessions that keep
/// their host waiting for processing time.
fn busy_write(attacker: &Attacker) -> Result<()> {
    const BUSY_SESSIONS: usize = 1000;
    let write = |session: &mut RawSession| {
        let cdb = cdb::cdb_16(0x8a, 0, u64::from(SHARED_LBA), 1);
        let command = session.command(flags::SIMPLE | flags::WRITE, &cdb, 512);
        session.queue(&command.with_data([7; 512]));
    };
    attacker.in_threads(3, |thread| {
        let flood = match thread {
            0 => busy_elsewhere(attacker, BUSY_SESSIONS),
            1 => Flood::new(1, Destination::Shared).numbered_from(BUSY_SESSIONS).reading(
                attacker,
                write,
                RawSession::keep_r2t,
            ),
            _ => Flood::new(1, Destination::Shared)
                .numbered_from(2 * BUSY_SESSIONS)
                .at_host(1)
                .reading(attacker, or_write_at_border, RawSession::keep_r2t),
        };
        drop(flood); // it ends when the attack is over
    });
    Ok(())
}

/// Keeps sessions of the first host busy with VERIFY at a LUN of its own.
pub(super) fn busy_elsewhere(attacker: &Attacker, sessions: usize) -> Result<()> {
    let verify = |session: &mut RawSession| {
        let command = session.command(flags::SIMPLE, &cdb::cdb_16(0x8f, 0, 0, 512), 0);
        session.queue(&command);
    };
    Flood::new(sessions, Destination::Own).reading(attacker, verify, |_, _| {})
}

fn unmap(attacker: &Attacker) -> Result<()> {
    let locking = |session: &mut RawSession| {
        let first = u64::from(SHARED_LBA);
        let (cdb, list) = cdb::unmap((0..256).map(|at| (first + at * 16, 8)));
        let bytes = list.len() as u32;
        let command = session.command(flags::SIMPLE | flags::WRITE, &cdb, bytes);
        session.queue(&command.with_data(list));
    };
    lock_and_contend(attacker, 64, locking, or_write_at_border)
}
