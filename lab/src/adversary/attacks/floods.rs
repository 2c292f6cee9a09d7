//! Valid requests at any rate and with any task attribute, and the benign load that shows how much
//! of their effect is mere load.

use crate::adversary::attack::Attack;
use crate::adversary::attacker::{Attacker, Destination};
use crate::adversary::cdb;
use crate::adversary::flood::Flood;
use crate::adversary::runner::benign_readers;
use crate::adversary::server::SHARED_LBA;
use crate::adversary::session::flags;
use anyhow::Result;

/// Run of the same form without an attack, for comparison.
pub const CONTROL: &[Attack] =
    &[Attack::new("benign-readers", 8, |attacker| benign_readers(attacker, 8, 1))
        .summary("No attack: 8 well-behaved sessions read 4 KiB each, 8 at a time")];

/// The attacks of this file.
pub const ATTACKS: &[Attack] = &[
    Attack::new("ping-flood", 4, |attacker| pings(attacker, false))
        .summary("4 sessions send NOP-Out as fast as it is answered"),
    Attack::new("ping-flood-immediate", 4, |attacker| pings(attacker, true))
        .summary("4 sessions send NOP-Out for immediate delivery as fast as possible"),
    Attack::new("immediate-commands", 4, immediate_commands)
        .summary("4 sessions send TEST UNIT READY for immediate delivery as fast as possible"),
    Attack::new("ordered-flood", 4, |attacker| attribute_flood(attacker, flags::ORDERED))
        .summary("4 sessions send ORDERED READs and WRITEs to the shared LUN"),
    Attack::new("head-of-queue-flood", 4, |attacker| {
        attribute_flood(attacker, flags::HEAD_OF_QUEUE)
    })
    .summary("4 sessions send HEAD OF QUEUE READs and WRITEs to the shared LUN"),
    Attack::new("reads-8m", 16, large_reads)
        .summary("16 sessions read 8 MiB at depth 128 from the shared LUN and receive the answers"),
];

fn pings(attacker: &Attacker, immediate: bool) -> Result<()> {
    Flood::new(4, Destination::Shared).reading(
        attacker,
        move |session| {
            let ping = session.ping(immediate);
            session.queue(&ping);
        },
        |_, _| {},
    )
}

fn immediate_commands(attacker: &Attacker) -> Result<()> {
    Flood::new(4, Destination::Shared).reading(
        attacker,
        |session| {
            let command = session.immediate_command(flags::SIMPLE, &cdb::TEST_UNIT_READY, 0);
            session.queue(&command);
        },
        |_, _| {},
    )
}

fn attribute_flood(attacker: &Attacker, attribute: u8) -> Result<()> {
    Flood::new(4, Destination::Shared).reading(
        attacker,
        move |session| {
            let lba = u64::from(SHARED_LBA) + session.random.below(1024) * 8;
            let command = if session.random.below(2) == 0 {
                session.command(attribute | flags::READ, &cdb::read(lba, 8), 4096)
            } else {
                let write = session.command(attribute | flags::WRITE, &cdb::write(lba, 8), 4096);
                write.with_data(vec![0; 4096])
            };
            session.queue(&command);
        },
        |_, _| {},
    )
}

fn large_reads(attacker: &Attacker) -> Result<()> {
    Flood::new(16, Destination::Shared).reading(
        attacker,
        |session| {
            let command =
                session.command(flags::SIMPLE | flags::READ, &cdb::read(0, 16_384), 8 << 20);
            session.queue(&command);
        },
        |_, _| {},
    )
}
