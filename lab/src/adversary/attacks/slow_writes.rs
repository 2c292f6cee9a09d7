//! Sessions that write to a slow file system, through the page cache.

use crate::adversary::attack::{Attack, SlowExt4};
use crate::adversary::attacker::{Attacker, Destination};
use crate::adversary::cdb;
use crate::adversary::flood::Flood;
use crate::adversary::server::{LUN_SLOW_EXT4, SLOW_LUNS};
use crate::adversary::session::{RawSession, flags};
use anyhow::Result;

/// LUNs that fill most of their file system.
const LITTLE_ROOM: SlowExt4 = SlowExt4 { room_mib: 600, lun_mib: 24 };

/// LUNs that are longer than the memory of the server, on a file system with room for all.
const LITTLE_MEMORY: SlowExt4 = SlowExt4 { room_mib: 6000, lun_mib: 64 };

/// The attacks of this file.
pub const ATTACKS: &[Attack] = &[
    Attack::new("writes-slow-ext4", 4, |attacker| write_all(attacker, LITTLE_ROOM))
        .on_a_slow_ext4(LITTLE_ROOM)
        .summary("4 sessions: WRITEs of 4 KiB to 16 write-back LUNs on a slow ext4, 600 MiB"),
    Attack::new("writes-slow-ext4-memory", 4, |attacker| write_all(attacker, LITTLE_MEMORY))
        .on_a_slow_ext4(LITTLE_MEMORY)
        .summary("4 sessions: WRITEs of 4 KiB to 16 write-back LUNs of 64 MiB on a slow ext4"),
];

/// Writes 4 KiB at random offsets of all LUNs.
fn write_all(attacker: &Attacker, slow: SlowExt4) -> Result<()> {
    const BLOCKS: u32 = 8;
    let offsets = (slow.lun_mib << 20) / (512 * u64::from(BLOCKS));
    Flood::new(4, Destination::SlowExt4).reading(
        attacker,
        |session| {
            session.lun = LUN_SLOW_EXT4 + session.random.below(u64::from(SLOW_LUNS)) as u8;
            let lba = u64::from(BLOCKS) * session.random.below(offsets);
            let (cdb, bytes) = (cdb::write(lba, BLOCKS), 512 * BLOCKS);
            let command = session.command(flags::SIMPLE | flags::WRITE, &cdb, bytes);
            session.queue(&command.with_data(vec![7; bytes as usize]));
        },
        RawSession::keep_r2t,
    )
}
