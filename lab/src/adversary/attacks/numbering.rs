//! Wrong sequence numbers, tags and digests. RFC 7143 §4.2.2, §11.

use crate::adversary::attack::Attack;
use crate::adversary::attacker::{Attacker, Destination};
use crate::adversary::cdb;
use crate::adversary::flood::Flood;
use crate::adversary::session::{IMMEDIATE, RESERVED_TAG, RawSession, flags};
use anyhow::Result;
use lunar_testkit::raw::{RawPdu, opcode};
use std::time::Duration;

/// The attacks of this file.
pub const ATTACKS: &[Attack] = &[
    Attack::new("cmdsn-far-ahead", 8, far_ahead)
        .summary("Commands whose CmdSN is far outside the window, with 64 KiB of data each"),
    Attack::new("cmdsn-gap", 32, gap)
        .summary("32 sessions fill their windows with 256 KiB WRITEs behind a missing CmdSN"),
    Attack::new("cmdsn-gap-reset", 8, gap_then_reset)
        .summary("The same, then the connection is reset, as fast as possible"),
    Attack::new("same-tag", 8, same_tag).summary("Every command has the same Initiator Task Tag"),
    Attack::new("expstatsn-wrong", 8, exp_stat_sn)
        .summary("Commands acknowledge statuses that were never sent, or none at all"),
    Attack::new("snacks", 8, snacks)
        .summary("SNACKs of all kinds, for everything, at error recovery level 0"),
    Attack::new("data-out-wrong-tags", 8, |attacker| data_out(attacker, false))
        .summary("Data-Out for unknown transfer tags, 8 KiB each"),
    Attack::new("data-out-wrong-offsets", 8, |attacker| data_out(attacker, true))
        .summary("R2Ts are answered with wrong offsets, numbers and lengths"),
    Attack::new("unsolicited-over-the-limit", 8, over_first_burst)
        .summary("More unsolicited data than FirstBurstLength and InitialR2T allow"),
    Attack::new("wrong-digests", 8, wrong_digests)
        .summary("Digests are negotiated and always wrong; log in again"),
    Attack::new("responses-to-the-target", 8, responses)
        .summary("PDUs that only a target may send"),
    Attack::new("logout-other-cids", 8, logouts)
        .summary("Endless logouts of connections that do not exist, and for recovery"),
    Attack::new("random-requests", 16, random_requests)
        .summary("Valid opcodes, everything else random"),
];

fn far_ahead(attacker: &Attacker) -> Result<()> {
    Flood::new(8, Destination::Neighbour).unread(attacker, |session| {
        let ahead = session.cmd_sn.wrapping_add(1 << 20);
        let command = write(session).put_u32(24, ahead);
        session.queue(&command.with_data(vec![0; 65_536]));
    })
}

/// Builds a WRITE of 256 KiB.
fn write(session: &mut RawSession) -> RawPdu {
    session.command(flags::SIMPLE | flags::WRITE, &cdb::write(0, 512), 262_144)
}

fn gap(attacker: &Attacker) -> Result<()> {
    Flood::new(32, Destination::Neighbour).reading(
        attacker,
        |session| {
            // The first number of the session is never used.
            let command = write(session);
            let ahead = command.u32_at(24).wrapping_add(1);
            session.queue(&command.put_u32(24, ahead).with_data(vec![0; 262_144]));
        },
        |_, _| {},
    )
}

fn gap_then_reset(attacker: &Attacker) -> Result<()> {
    attacker.in_threads(2, |thread| {
        for number in (thread..).step_by(2).take_while(|_| !attacker.is_over()) {
            let Ok(mut session) = attacker.log_in(Destination::Neighbour, number % 8) else {
                continue;
            };
            session.cmd_sn = session.cmd_sn.wrapping_add(1);
            for _ in 0..32 {
                let command = write(&mut session).with_data(vec![0; 262_144]);
                session.queue(&command);
            }
            session.connection.send_all(Duration::from_millis(100));
            attacker.count(&mut session);
        }
    });
    Ok(())
}

fn same_tag(attacker: &Attacker) -> Result<()> {
    Flood::new(8, Destination::Neighbour).reading(
        attacker,
        |session| {
            let cdb = cdb::read(0, 128);
            let command = session.command(flags::SIMPLE | flags::READ, &cdb, 65_536);
            session.queue(&command.put_u32(16, 7));
        },
        |_, _| {},
    )
}

fn exp_stat_sn(attacker: &Attacker) -> Result<()> {
    Flood::new(8, Destination::Neighbour).reading(
        attacker,
        |session| {
            let number = [0, u32::MAX / 2, session.random.next_u64() as u32];
            let number = number[session.random.below(3) as usize];
            let command = session.command(flags::SIMPLE | flags::READ, &cdb::read(0, 8), 4096);
            session.queue(&command.put_u32(28, number));
        },
        |_, _| {},
    )
}

fn snacks(attacker: &Attacker) -> Result<()> {
    Flood::new(8, Destination::Neighbour).reading(
        attacker,
        |session| {
            let kind = session.random.below(5) as u8;
            let run = session.random.next_u64() as u32;
            let snack = session.immediate_request(opcode::SNACK, 0x80 | kind);
            let snack = snack.put(0, &[opcode::SNACK]).put_u32(20, RESERVED_TAG);
            session.queue(&snack.put_u32(40, 0).put_u32(44, run));
        },
        |_, _| {},
    )
}

fn data_out(attacker: &Attacker, answers_r2ts: bool) -> Result<()> {
    Flood::new(8, Destination::Neighbour).reading(
        attacker,
        move |session| {
            if answers_r2ts {
                let command = write(session);
                return session.queue(&command);
            }
            let tag = session.random.next_u64() as u32;
            let data_out = session.data_out(tag, tag ^ 1, 0, true);
            session.queue(&data_out.with_data(vec![0xee; 8192]));
        },
        move |session, pdu| {
            if pdu.opcode() == opcode::R2T && answers_r2ts {
                let offset = session.random.next_u64() as u32 & !511;
                let data_out =
                    session.data_out(pdu.u32_at(16), pdu.u32_at(20), offset, offset & 512 == 0);
                let number = session.random.below(4) as u32;
                session.queue(&data_out.put_u32(36, number).with_data(vec![0xee; 8192]));
            }
        },
    )
}

fn over_first_burst(attacker: &Attacker) -> Result<()> {
    Flood::new(8, Destination::Neighbour).reading(
        attacker,
        |session| {
            let command = write(session).with_data(vec![0xee; 65_536]);
            let tag = command.u32_at(16);
            session.queue(&command);
            for number in 0..8 {
                let offset = 65_536 * (number + 1);
                let data_out = session.data_out(tag, RESERVED_TAG, offset, number == 7);
                session.queue(&data_out.put_u32(36, number).with_data(vec![0xee; 65_536]));
            }
        },
        |_, _| {},
    )
}

fn wrong_digests(attacker: &Attacker) -> Result<()> {
    Flood::new(8, Destination::Neighbour).with_login(|login| login.digests = true).reading(
        attacker,
        |session| {
            let command = write(session).with_data(vec![0; 65_536]);
            if session.random.below(8) == 0 {
                // The header digest is wrong: the connection ends.
                session.connection.queue_bytes(&command.bytes()[..48]);
                session.connection.queue_bytes(&[0xde, 0xad, 0xbe, 0xef]);
            } else {
                // The data digest is wrong: the command is rejected.
                session.connection.data_digest = false;
                session.queue(&command);
                session.connection.data_digest = true;
                session.connection.queue_bytes(&[0xde, 0xad, 0xbe, 0xef]);
            }
        },
        |_, _| {},
    )
}

fn responses(attacker: &Attacker) -> Result<()> {
    Flood::new(8, Destination::Neighbour).reading(
        attacker,
        |session| {
            let opcode = 0x20 + session.random.below(0x20) as u8;
            let pdu = session.immediate_request(opcode & !IMMEDIATE, 0x80).put(0, &[opcode]);
            session.queue(&pdu);
        },
        |_, _| {},
    )
}

fn logouts(attacker: &Attacker) -> Result<()> {
    Flood::new(8, Destination::Neighbour).reading(
        attacker,
        |session| {
            // Reason 1: close a connection; 2: remove it for recovery. RFC 7143 §11.14.1.
            let reason = 1 + session.random.below(2) as u8;
            let cid = 1 + session.random.below(60_000) as u16;
            let logout = session.immediate_request(opcode::LOGOUT, 0x80 | reason);
            session.queue(&logout.put(8, &[0; 8]).put(20, &cid.to_be_bytes()));
        },
        |_, _| {},
    )
}

fn random_requests(attacker: &Attacker) -> Result<()> {
    // Random commands may write anywhere, so they go to the attacker's own disk.
    Flood::new(16, Destination::Own).reading(
        attacker,
        |session| {
            let opcodes = [0x00, 0x01, 0x02, 0x04, 0x05, 0x10, 0x41, 0x42, 0x40, 0x44];
            let opcode = opcodes[session.random.below(opcodes.len() as u64) as usize];
            let mut pdu = RawPdu::new(opcode, session.random.next_u64() as u8);
            for at in (8..48).step_by(8) {
                pdu = pdu.put(at, &session.random.next_u64().to_be_bytes());
            }
            if session.random.below(4) != 0 {
                let template = session.request(opcode & 0x3f, 0x80);
                pdu = pdu.put(8, &[0; 8]).put(24, &template.header[24..32]);
            }
            let length = session.random.below(600) as usize;
            session.queue(&pdu.with_data(vec![0xa5; length]));
        },
        |_, _| {},
    )
}
