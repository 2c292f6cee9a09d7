//! Additional header segments: long ones, invalid ones, and ones that are announced and never sent.
//! RFC 7143 §11.2.2.

use crate::adversary::attack::Attack;
use crate::adversary::attacker::{Attacker, Destination};
use crate::adversary::cdb;
use crate::adversary::flood::Flood;
use crate::adversary::session::flags;
use anyhow::Result;

/// The attacks of this file.
pub const ATTACKS: &[Attack] = &[
    Attack::new("ahs-1020-bytes", 8, long)
        .summary("READs with 1,020 bytes of header segments, valid and not"),
    Attack::new("ahs-false-lengths", 8, false_lengths)
        .summary("Header segments whose lengths are zero, too long, overlapping or repeated"),
    Attack::new("ahs-withheld", 256, withheld)
        .summary("256 sessions: a command announces 1,020 bytes of header segments, then silence"),
];

/// Type: extended CDB.
const EXTENDED_CDB: u8 = 1;
/// Type: expected bidirectional read length.
const BIDIRECTIONAL: u8 = 2;

fn long(attacker: &Attacker) -> Result<()> {
    Flood::new(8, Destination::Neighbour).reading(
        attacker,
        |session| {
            let mut command = session.command(flags::SIMPLE | flags::READ, &cdb::read(0, 8), 4096);
            command.segments = match session.random.below(3) {
                // One segment of the longest kind, none of any defined type, or many short ones.
                0 => [&[0x03, 0xf9, EXTENDED_CDB, 0][..], &[0; 1016]].concat(),
                1 => vec![0x3f; 1020],
                _ => [0, 5, BIDIRECTIONAL, 0, 0, 0, 2, 0].repeat(127),
            };
            session.queue(&command);
        },
        |_, _| {},
    )
}

fn false_lengths(attacker: &Attacker) -> Result<()> {
    let lies: [&[u8]; 6] = [
        &[0, 0, EXTENDED_CDB, 0],
        &[0xff, 0xff, EXTENDED_CDB, 0],
        &[0, 9, EXTENDED_CDB, 0, 1, 2, 3, 4],
        &[0, 5, BIDIRECTIONAL, 0, 0, 0, 2, 0, 0, 5, BIDIRECTIONAL, 0, 0, 0, 2, 0],
        &[0, 5, 0x3f, 0, 0, 0, 2, 0],
        &[0, 0, 0, 0],
    ];
    Flood::new(8, Destination::Neighbour).reading(
        attacker,
        |session| {
            let mut command = session.command(flags::SIMPLE | flags::READ, &cdb::read(0, 8), 4096);
            command.segments = lies[session.random.below(6) as usize].to_vec();
            session.queue(&command);
        },
        |_, _| {},
    )
}

fn withheld(attacker: &Attacker) -> Result<()> {
    let mut sessions = Vec::new();
    while !attacker.is_over() && sessions.len() < 256 {
        let Ok(mut session) = attacker.log_in(Destination::Neighbour, sessions.len()) else {
            continue;
        };
        let mut header = session.command(flags::SIMPLE, &cdb::TEST_UNIT_READY, 0).bytes();
        header[4] = 255;
        session.connection.queue_bytes(&header);
        session.connection.send();
        attacker.count(&mut session);
        sessions.push(session);
    }
    attacker.wait_until_over();
    Ok(())
}
