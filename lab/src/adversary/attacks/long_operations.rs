//! Commands that take long, or change the properties of a unit.
//!
//! By default every initiator may send them to any LUN it can reach, as the standard has it;
//! destructive commands therefore go to a LUN beside the well-behaved client's.

use crate::adversary::attack::Attack;
use crate::adversary::attacker::{Attacker, Destination};
use crate::adversary::cdb::{self, CdbBytes, cdb};
use crate::adversary::flood::Flood;
use crate::adversary::server::{MANY_LUNS, SHARED_LBA};
use crate::adversary::session::{RawSession, flags};
use anyhow::Result;
use std::time::Duration;

/// The attacks of this file.
pub const ATTACKS: &[Attack] = &[
    Attack::new("write-same", 4, |attacker| write_same(attacker, 4, Destination::Neighbour))
        .summary("WRITE SAME (16) of 65,535 blocks over a neighbour LUN at depth 128"),
    Attack::new("write-same-shared", 4, |attacker| write_same(attacker, 4, Destination::Shared))
        .summary("The same over the attacker's half of the shared LUN"),
    Attack::new("write-same-aborted", 64, write_same_aborted).summary(
        "64 sessions: 100 WRITE SAME of 32 MiB of zeroes on the shared LUN, then ABORT TASK SET",
    ),
    Attack::new("write-same-400-sessions", 400, |attacker| {
        write_same(attacker, 400, Destination::Neighbour)
    })
    .summary("400 sessions: WRITE SAME (16) of 65,535 blocks over a neighbour LUN at depth 128"),
    Attack::new("write-atomic-beside-zeroing", 65, write_atomic_beside_zeroing)
        .on_a_memory_lun()
        .summary(
            "64 sessions: WRITE SAME of zeroes and UNMAP of a disk in memory; one: WRITE ATOMIC",
        ),
    Attack::new("unmap-descriptors", 4, |attacker| unmap(attacker, 4, &[256, 4095])).summary(
        "UNMAP with 256 and with 4,096 descriptors, on the attacker's half of the shared LUN",
    ),
    Attack::new("unmap-descriptors-64-sessions", 64, |attacker| unmap(attacker, 64, &[250]))
        .summary(
            "64 sessions: UNMAP with 250 descriptors, on the attacker's half of the shared LUN",
        ),
    Attack::new("compare-and-write", 16, compare_and_write)
        .summary("16 sessions: COMPARE AND WRITE of one block of the shared LUN"),
    Attack::new("compare-and-write-wide", 64, compare_and_write_wide).summary(
        "64 sessions: COMPARE AND WRITE of one block and of 8,192 others, and VERIFY of all of \
         them",
    ),
    Attack::new("compare-and-write-foreign-blocks", 300, compare_and_write_foreign).summary(
        "300 sessions: COMPARE AND WRITE of the well-behaved client's blocks that fails, \
         and VERIFY",
    ),
    Attack::new("compare-and-write-16-hosts", 160, compare_and_write_hosts)
        .from_hosts(16)
        .summary("160 sessions of 16 hosts: endless failing COMPARE AND WRITE of one block"),
    Attack::new("verify", 4, |attacker| verify(attacker, 4, Destination::Shared, 0))
        .summary("VERIFY (16) of 8 MiB of the shared LUN at depth 128"),
    Attack::new("verify-64-sessions", 64, |attacker| {
        verify(attacker, 64, Destination::Neighbour, 0)
    })
    .summary("64 sessions: VERIFY (16) of 8 MiB of a neighbour LUN at depth 128"),
    Attack::new("verify-one-block-beside-claims", 16, verify_one_block).on_a_memory_lun().summary(
        "16 sessions: VERIFY of 8 MiB against one block, beside COMPARE AND WRITE, in memory",
    ),
    Attack::new("verify-256-files", 8, |attacker| many_files(attacker, 0x8f))
        .on_many_files()
        .summary("8 sessions: VERIFY (16) of 8 MiB of 256 LUNs, all files, at depth 128"),
    Attack::new("prefetch-256-files", 8, |attacker| many_files(attacker, 0x90))
        .on_many_files()
        .summary("8 sessions: PRE-FETCH (16) of 8 MiB of 256 LUNs, all files, at depth 128"),
    Attack::new("verify-data", 4, |attacker| verify(attacker, 4, Destination::Shared, 1 << 1))
        .summary("VERIFY (16) with BYTCHK of 8 MiB of the shared LUN, data never sent"),
    Attack::new("pre-fetch", 4, pre_fetch)
        .summary("PRE-FETCH and SYNCHRONIZE CACHE of the whole shared LUN at depth 128"),
    Attack::new("reads-slow-disk", 16, |attacker| slow_disk(attacker, reads))
        .on_a_slow_disk()
        .summary("16 sessions: READs of 1 MiB from a slow disk at depth 128"),
    Attack::new("pieces-slow-disk", 16, |attacker| slow_disk(attacker, pieces))
        .on_a_slow_disk()
        .summary("16 sessions: VERIFY, WRITE SAME, COMPARE AND WRITE on a slow disk at depth 128"),
    Attack::new("sanitize", 4, |attacker| {
        commands(attacker, &[cdb(&[0x48, 2]), cdb(&[0x48, 0x1f])])
    })
    .summary("Endless SANITIZE of a neighbour LUN"),
    Attack::new("sanitize-256-units", 4, sanitize_many)
        .summary("Endless SANITIZE (OVERWRITE, 31 passes, IMMED) of 256 disks in memory"),
    Attack::new("format-unit", 4, |attacker| commands(attacker, &[cdb(&[0x04])]))
        .summary("Endless FORMAT UNIT of a neighbour LUN"),
    Attack::new("start-stop", 4, |attacker| commands(attacker, START_STOP))
        .summary("Endless START STOP UNIT of a neighbour LUN"),
    Attack::new("mode-select-swp", 4, mode_select)
        .summary("Endless MODE SELECT that sets and clears SWP of a neighbour LUN"),
    Attack::new("reserve-release-6", 4, |attacker| {
        commands(attacker, &[cdb(&[0x16]), cdb(&[0x17])])
    })
    .summary("Endless RESERVE (6) and RELEASE (6) of a neighbour LUN"),
];

/// Blocks that [`compare_and_write_wide`] spreads over: as many as the commands of 64 windows.
const WIDE_BLOCKS: u64 = 64 * 128;

const START_STOP: &[CdbBytes] = &[
    [0x1b, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0],
    [0x1b, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0],
];

/// Sends these commands, which move no data, again and again.
fn commands(attacker: &Attacker, cdbs: &[CdbBytes]) -> Result<()> {
    Flood::new(4, Destination::Neighbour).reading(
        attacker,
        |session| {
            let cdb = cdbs[session.random.below(cdbs.len() as u64) as usize];
            let command = session.command(flags::SIMPLE, &cdb, 0);
            session.queue(&command);
        },
        |_, _| {},
    )
}

fn write_same(attacker: &Attacker, sessions: usize, destination: Destination) -> Result<()> {
    let first = if destination == Destination::Shared { u64::from(SHARED_LBA) } else { 0 };
    Flood::new(sessions, destination).reading(
        attacker,
        |session| {
            let cdb = cdb::cdb_16(0x93, 0, first, 0xffff);
            let command = session.command(flags::SIMPLE | flags::WRITE, &cdb, 512);
            session.queue(&command.with_data(vec![0x5a; 512]));
        },
        |_, _| {},
    )
}

/// Sends atomic writes that cross a border of the chunks that the disk is locked by.
fn write_atomic_beside_zeroing(attacker: &Attacker) -> Result<()> {
    const CHUNK_BLOCKS: u64 = (64 << 10) / 512;
    const PAUSE: Duration = Duration::from_millis(5);
    let first = u64::from(SHARED_LBA);
    let write = |session: &mut RawSession| {
        let lba = first + CHUNK_BLOCKS * (1 + session.random.below(10)) - 8;
        let mut cdb = cdb::cdb_16(0x9c, 0, lba, 0);
        cdb[12..14].copy_from_slice(&16_u16.to_be_bytes());
        let command = session.command(flags::SIMPLE | flags::WRITE, &cdb, 8192);
        session.queue(&command.with_data(vec![0x5a; 8192]));
    };
    let zero = |session: &mut RawSession| {
        const BLOCKS: u32 = 60_000;
        let lba = first + 2048;
        let (cdb, data) = match session.random.below(3) {
            0 => cdb::unmap([(lba, BLOCKS)]),
            _ => (cdb::cdb_16(0x93, 0, lba, BLOCKS), vec![0; 512]),
        };
        let bytes = data.len() as u32;
        let command = session.command(flags::SIMPLE | flags::WRITE, &cdb, bytes);
        session.queue(&command.with_data(data));
    };
    attacker.in_threads(2, |thread| {
        let flood = Flood::new(if thread == 0 { 64 } else { 1 }, Destination::Shared);
        drop(match thread {
            0 => flood.reading(attacker, zero, |_, _| {}),
            _ => {
                flood.numbered_from(64).paced(PAUSE).reading(attacker, write, RawSession::keep_r2t)
            }
        });
    });
    Ok(())
}

fn unmap(attacker: &Attacker, sessions: usize, counts: &[u64]) -> Result<()> {
    Flood::new(sessions, Destination::Shared).reading(
        attacker,
        |session| {
            let count = counts[session.random.below(counts.len() as u64) as usize];
            let first = u64::from(SHARED_LBA);
            // Selects every second physical block, so that no range can be merged with its
            // neighbour.
            let (cdb, list) = cdb::unmap((0..count).map(|at| (first + at * 16 % 65_000, 8)));
            let bytes = list.len() as u32;
            let command = session.command(flags::SIMPLE | flags::WRITE, &cdb, bytes);
            session.queue(&command.with_data(list));
        },
        |_, _| {},
    )
}

fn compare_and_write(attacker: &Attacker) -> Result<()> {
    Flood::new(16, Destination::Shared).reading(
        attacker,
        |session| {
            let mut cdb = cdb::cdb_16(0x89, 0, u64::from(SHARED_LBA), 0);
            cdb[13] = 1;
            let command = session.command(flags::SIMPLE | flags::WRITE, &cdb, 1024);
            let byte = session.random.below(2) as u8;
            session.queue(&command.with_data([[0; 512], [byte; 512]].concat()));
        },
        |_, _| {},
    )
}

/// Sends commands of which half lock blocks of their own and the other half wait for one shared
/// block; one command in 121 is a VERIFY of all these blocks, which other commands wait behind.
fn compare_and_write_wide(attacker: &Attacker) -> Result<()> {
    let first = u64::from(SHARED_LBA);
    let mut commands = 0;
    Flood::new(64, Destination::Shared).reading(
        attacker,
        |session| {
            commands += 1;
            if commands % 121 == 0 {
                let cdb = cdb::cdb_16(0x8f, 0, first, 1 + WIDE_BLOCKS as u32);
                let command = session.command(flags::SIMPLE, &cdb, 0);
                session.queue(&command);
                return;
            }
            let own = 1 + commands / 2 % WIDE_BLOCKS;
            let lba = if commands % 2 == 0 { first } else { first + own };
            let mut cdb = cdb::cdb_16(0x89, 0, lba, 0);
            cdb[13] = 1;
            let command = session.command(flags::SIMPLE | flags::WRITE, &cdb, 1024);
            session.queue(&command.with_data(vec![0; 1024]));
        },
        |_, _| {},
    )
}

/// Sends COMPARE AND WRITE whose compare data never matches, so that nothing is written; three of
/// four commands are there to lengthen the scheduling rounds of the sessions.
fn compare_and_write_foreign(attacker: &Attacker) -> Result<()> {
    let mut commands = 0;
    Flood::new(300, Destination::Shared).reading(
        attacker,
        |session| {
            commands += 1;
            if commands % 4 != 0 {
                let cdb = cdb::cdb_16(0x8f, 0, u64::from(SHARED_LBA), 512);
                let command = session.command(flags::SIMPLE, &cdb, 0);
                session.queue(&command);
                return;
            }
            let mut cdb = cdb::cdb_16(0x89, 0, 8 * session.random.below(8), 0);
            cdb[13] = 1;
            let command = session.command(flags::SIMPLE | flags::WRITE, &cdb, 1024);
            let data = crate::random::pattern(session.random.next_u64(), 1024);
            session.queue(&command.with_data(data));
        },
        |_, _| {},
    )
}

/// Lets the maximum number of requests wait for the lock of one block; the well-behaved client uses
/// other blocks.
fn compare_and_write_hosts(attacker: &Attacker) -> Result<()> {
    Flood::new(160, Destination::Shared).from_hosts(16).reading(
        attacker,
        |session| {
            let mut cdb = cdb::cdb_16(0x89, 0, u64::from(SHARED_LBA), 0);
            cdb[13] = 1;
            let command = session.command(flags::SIMPLE | flags::WRITE, &cdb, 1024);
            let data = crate::random::pattern(session.random.next_u64(), 1024);
            session.queue(&command.with_data(data));
        },
        |_, _| {},
    )
}

/// Writes zeroes without data (NDOB) and unmaps them in turn: slow jobs that wait for each other.
fn write_same_aborted(attacker: &Attacker) -> Result<()> {
    const NDOB: u8 = 0x01;
    const UNMAP: u8 = 0x08;
    const ABORT_TASK_SET: u8 = 2;
    let mut commands = 0;
    Flood::new(64, Destination::Shared).reading(
        attacker,
        |session| {
            commands += 1;
            if commands % 101 == 0 {
                let abort = session.task_management(ABORT_TASK_SET, u32::MAX, session.cmd_sn);
                session.queue(&abort);
                return;
            }
            let unmap = if commands % 2 == 0 { UNMAP } else { 0 };
            let cdb = cdb::cdb_16(0x93, NDOB | unmap, u64::from(SHARED_LBA), 0xffff);
            let command = session.command(flags::SIMPLE, &cdb, 0);
            session.queue(&command);
        },
        |_, _| {},
    )
}

/// Maximum number of blocks that one command may verify.
const LONGEST: u32 = 16_384;

/// Sends commands of this operation to all LUNs of the target of files.
fn many_files(attacker: &Attacker, operation: u8) -> Result<()> {
    Flood::new(8, Destination::Files).reading(
        attacker,
        |session| {
            session.lun = session.random.below(u64::from(MANY_LUNS)) as u8;
            let cdb = cdb::cdb_16(operation, 0, 0, LONGEST);
            let command = session.command(flags::SIMPLE, &cdb, 0);
            session.queue(&command);
        },
        |_, _| {},
    )
}

fn verify(
    attacker: &Attacker,
    sessions: usize,
    destination: Destination,
    flags_of_cdb: u8,
) -> Result<()> {
    Flood::new(sessions, destination).reading(
        attacker,
        |session| {
            let cdb = cdb::cdb_16(0x8f, flags_of_cdb, 0, LONGEST);
            let command = match flags_of_cdb {
                0 => session.command(flags::SIMPLE, &cdb, 0),
                _ => session.command(flags::SIMPLE | flags::WRITE, &cdb, 8 << 20),
            };
            session.queue(&command);
        },
        |_, _| {},
    )
}

/// Compares the attacker's half of the shared LUN, which is all zeroes, with one block of data-out.
/// Every second command needs a block exclusively and changes nothing.
fn verify_one_block(attacker: &Attacker) -> Result<()> {
    const ONE_BLOCK: u8 = 3 << 1;
    let first = u64::from(SHARED_LBA);
    let mut commands = 0;
    Flood::new(16, Destination::Shared).reading(
        attacker,
        |session| {
            commands += 1;
            let (cdb, bytes) = if commands % 2 == 0 {
                (cdb::cdb_16(0x8f, ONE_BLOCK, first, LONGEST), 512)
            } else {
                let mut cdb = cdb::cdb_16(0x89, 0, first + u64::from(LONGEST), 0);
                cdb[13] = 1;
                (cdb, 1024)
            };
            let command = session.command(flags::SIMPLE | flags::WRITE, &cdb, bytes);
            session.queue(&command.with_data(vec![0; bytes as usize]));
        },
        |_, _| {},
    )
}

/// Sends SANITIZE to one LUN after the other, with a parameter list of the overwrite count and a
/// pattern of four bytes. SBC-4 §5.38.
fn sanitize_many(attacker: &Attacker) -> Result<()> {
    const IMMED_OVERWRITE: u8 = 0x80 | 0x01;
    const LIST: [u8; 8] = [31, 0, 0, 4, 0x5a, 0xa5, 0x5a, 0xa5];
    let mut commands = 0;
    Flood::new(4, Destination::Many).reading(
        attacker,
        |session| {
            session.lun = (commands % MANY_LUNS) as u8;
            commands = commands.wrapping_add(1);
            let cdb = cdb(&[0x48, IMMED_OVERWRITE, 0, 0, 0, 0, 0, 0, LIST.len() as u8]);
            let command = session.command(flags::SIMPLE | flags::WRITE, &cdb, LIST.len() as u32);
            session.queue(&command.with_data(LIST.to_vec()));
        },
        |_, _| {},
    )
}

fn pre_fetch(attacker: &Attacker) -> Result<()> {
    Flood::new(4, Destination::Shared).reading(
        attacker,
        |session| {
            let operation = [0x90, 0x91][session.random.below(2) as usize];
            let command = session.command(flags::SIMPLE, &cdb::cdb_16(operation, 0, 0, 0), 0);
            session.queue(&command);
        },
        |_, _| {},
    )
}

/// Sends these commands to the slow disk and receives the responses.
fn slow_disk(attacker: &Attacker, next: fn(&mut RawSession)) -> Result<()> {
    Flood::new(16, Destination::Slow).reading(attacker, next, RawSession::keep_r2t)
}

fn reads(session: &mut RawSession) {
    let lba = session.random.below(64) * 2048;
    let command = session.command(flags::SIMPLE | flags::READ, &cdb::read(lba, 2048), 1 << 20);
    session.queue(&command);
}

fn pieces(session: &mut RawSession) {
    // Addresses differ, so that commands wait for more than a lock.
    let lba = session.random.below(64) * 2048;
    let (data, cdb) = match session.random.below(3) {
        0 => (Vec::new(), cdb::cdb_16(0x8f, 0, lba, 2048)),
        1 => (vec![0x5a; 512], cdb::cdb_16(0x93, 0, lba, 2048)),
        _ => {
            let mut cdb = cdb::cdb_16(0x89, 0, lba, 0);
            cdb[13] = 128;
            (vec![0; 2 * 128 * 512], cdb)
        }
    };
    let flag = if data.is_empty() { 0 } else { flags::WRITE };
    let bytes = data.len() as u32;
    let command = session.command(flags::SIMPLE | flag, &cdb, bytes);
    let immediate = &data[..data.len().min(65_536)];
    session.queue(&command.with_data(immediate));
}

fn mode_select(attacker: &Attacker) -> Result<()> {
    Flood::new(4, Destination::Neighbour).reading(
        attacker,
        |session: &mut RawSession| {
            // The control mode page: TST 001b, GLTSD, any order, and SWP in byte 4. SPC-4 §7.5.8.
            let protect = if session.random.below(2) == 0 { 0x08 } else { 0 };
            let list = [0, 0, 0, 0, 0x0a, 0x0a, 0x22, 0x10, protect, 0, 0, 0, 0, 0, 0, 0];
            let cdb = cdb(&[0x15, 0x10, 0, 0, 16]);
            let command = session.command(flags::SIMPLE | flags::WRITE, &cdb, 16);
            session.queue(&command.with_data(list));
        },
        |_, _| {},
    )
}
