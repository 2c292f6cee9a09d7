//! Sessions that use up a limit of the well-behaved client's LUN.

use super::held_blocks::busy_elsewhere;
use crate::adversary::attack::Attack;
use crate::adversary::attacker::{Attacker, Destination};
use crate::adversary::flood::Flood;
use crate::adversary::good_client;
use crate::adversary::runner::read_at_depth;
use crate::adversary::server::{DISK_BLOCKS, SHARED_LBA};
use anyhow::Result;

/// The attacks of this file.
pub const ATTACKS: &[Attack] = &[
    Attack::new("limited-unit-2000-sessions", 2000, |attacker| {
        read_shared(attacker, 2000, 2, |flood| flood)
    })
    .on_a_limited_lun("limit = { iops = 5000 }", 2)
    .summary("2,000 sessions read 4 KiB, 2 at a time, from the shared LUN, limited to 5,000 IOPS"),
    Attack::new("limited-unit-busy-host", 1064, |attacker| {
        attacker.in_threads(2, |thread| {
            let flood = match thread {
                0 => busy_elsewhere(attacker, 1000),
                _ => read_at_depth(
                    attacker,
                    Flood::new(64, Destination::Shared).numbered_from(1 << 14),
                    2,
                    SHARED_LBA..DISK_BLOCKS,
                ),
            };
            drop(flood); // it ends when the attack is over
        });
        Ok(())
    })
    .on_a_limited_lun("limit = { iops = 5000 }", 2)
    .summary("1,000 sessions VERIFY elsewhere, 64 read the shared LUN, limited to 5,000 IOPS"),
    Attack::new("claimed-name-uses-limit", 200, |attacker| {
        read_shared(attacker, 200, 8, |flood| {
            flood.with_login(|login| good_client::NAME.clone_into(&mut login.initiator))
        })
    })
    .on_a_limited_lun("initiator_limit = [{ iops = 5000 }]", 1)
    .summary(
        "200 sessions claim the name of the well-behaved client and use its limit of 5,000 IOPS",
    ),
];

/// Reads the attacker's part of the shared LUN over this many sessions.
fn read_shared(
    attacker: &Attacker,
    sessions: usize,
    depth: usize,
    form: impl Fn(Flood) -> Flood + Sync,
) -> Result<()> {
    attacker.in_threads(2, |thread| {
        let flood = Flood::new(sessions / 2, Destination::Shared).numbered_from(thread << 14);
        // Returns no error, whatever happens to its sessions.
        drop(read_at_depth(attacker, form(flood), depth, SHARED_LBA..DISK_BLOCKS));
    });
    Ok(())
}
