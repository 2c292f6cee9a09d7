//! Thousands of sessions, each with a small amount of state that the server has to keep.

use super::withheld::clear_unit_attentions;
use crate::adversary::attack::Attack;
use crate::adversary::attacker::{Attacker, Destination};
use crate::adversary::cdb;
use crate::adversary::flood::Flood;
use crate::adversary::session::{RawSession, flags};
use anyhow::Result;
use lunar_testkit::raw::{RawPdu, opcode};
use std::time::Duration;

/// The attacks of this file.
pub const ATTACKS: &[Attack] = &[
    Attack::new("sessions-1024-ordered", 1024, |attacker| {
        hold(attacker, 1024, ordered, Answers::Read)
    })
    .summary("1,024 sessions: a WRITE without its data, then 127 ORDERED commands"),
    Attack::new("sessions-2048-ping-announced", 2048, |attacker| {
        hold(attacker, 2048, announced_ping, Answers::Read)
    })
    .summary("2,048 sessions: the header of a NOP-Out whose 256 KiB of data are never sent"),
    Attack::new("sessions-1024-pings-ahead", 1024, |attacker| {
        hold(attacker, 1024, pings_ahead, Answers::Read)
    })
    .summary("1,024 sessions: 4 NOP-Outs of 256 KiB behind a missing CmdSN"),
    Attack::new("sessions-8192-commands-ahead", 8192, |attacker| {
        hold(attacker, 8192, commands_ahead, Answers::Read)
    })
    .summary("8,192 sessions: 127 commands behind a missing CmdSN"),
    Attack::new("sessions-4096-once-busy", 4096, |attacker| {
        hold(attacker, 4096, ordered, Answers::ReadAndGiveData)
    })
    .summary("4,096 idle sessions that had 128 outstanding commands before"),
    Attack::new("sessions-4096-reads-wait", 4096, |attacker| {
        hold(attacker, 4096, large_read, Answers::Leave)
    })
    .summary("4,096 sessions, 32 of which have outstanding READs of 8 MiB, answers unread"),
    Attack::new("sessions-2048-reads-at-once", 2048, |attacker| {
        hold(attacker, 2048, two_reads, Answers::Leave)
    })
    .summary("2,048 sessions: two READs of 900 KiB each, answers unread"),
    Attack::new("sessions-2048-ping-flood", 2048, ping_flood)
        .summary("2,048 sessions send NOP-Outs that request no answer, as fast as possible"),
];

/// Policy of a session for PDUs that the server sends.
#[derive(Clone, Copy, PartialEq)]
enum Answers {
    Leave,
    Read,
    ReadAndGiveData,
}

/// Length of the data of a NOP-Out: the most that our targets accept.
const PING_BYTES: u32 = 256 << 10;

/// Number of commands that fill the window of a session but for one.
const COMMANDS: usize = 127;

/// Action of a session of this number once it is logged in.
type Begin = fn(&mut RawSession, usize);

/// Logs in until there are `count` sessions, and holds them; sessions that the server ends are
/// replaced.
fn hold(attacker: &Attacker, count: usize, begin: Begin, answers: Answers) -> Result<()> {
    attacker.in_threads(2, |thread| {
        let mut sessions: Vec<RawSession> = Vec::new();
        for number in (thread..).step_by(2) {
            while sessions.len() >= count / 2 && !attacker.is_over() {
                attacker.pause(Duration::from_millis(20));
                go_on(attacker, &mut sessions, answers);
            }
            if attacker.is_over() {
                return;
            }
            let Ok(mut session) = attacker.log_in(Destination::Neighbour, number % (2 * count))
            else {
                attacker.pause(Duration::from_millis(5));
                go_on(attacker, &mut sessions, answers);
                continue;
            };
            clear_unit_attentions(&mut session);
            begin(&mut session, number);
            session.connection.send();
            attacker.count(&mut session);
            sessions.push(session);
            if number % 512 < 2 {
                go_on(attacker, &mut sessions, answers);
            }
        }
    });
    Ok(())
}

/// Sends queued PDUs, and removes the sessions that have ended.
fn go_on(attacker: &Attacker, sessions: &mut Vec<RawSession>, answers: Answers) {
    for session in sessions.iter_mut() {
        session.connection.send();
        while answers != Answers::Leave
            && let Some(pdu) = session.receive()
        {
            if answers == Answers::ReadAndGiveData && pdu.opcode() == opcode::R2T {
                session.answer_r2t_with(&pdu, &[0; 512]);
            }
        }
        attacker.count(session);
    }
    sessions.retain(|session| !session.connection.is_closed());
}

fn ordered(session: &mut RawSession, _: usize) {
    let write = session.command(flags::SIMPLE | flags::WRITE, &cdb::write(0, 1), 512);
    session.queue(&write);
    for _ in 0..COMMANDS {
        let ready = session.command(flags::ORDERED, &cdb::TEST_UNIT_READY, 0);
        session.queue(&ready);
    }
}

fn announced_ping(session: &mut RawSession, _: usize) {
    let ping = session.ping(false);
    let [_, high, middle, low] = PING_BYTES.to_be_bytes();
    session.queue(&ping.put(5, &[high, middle, low]));
}

fn pings_ahead(session: &mut RawSession, _: usize) {
    for _ in 0..4 {
        let ping = ahead(session.ping(false));
        session.queue(&ping.with_data(vec![0; PING_BYTES as usize]));
    }
}

fn commands_ahead(session: &mut RawSession, _: usize) {
    for _ in 0..COMMANDS {
        let ready = ahead(session.command(flags::SIMPLE, &cdb::TEST_UNIT_READY, 0));
        session.queue(&ready);
    }
}

/// Skips one CmdSN before this request, which is never used.
fn ahead(request: RawPdu) -> RawPdu {
    let ahead = request.u32_at(24).wrapping_add(1);
    request.put_u32(24, ahead)
}

fn two_reads(session: &mut RawSession, _: usize) {
    for _ in 0..2 {
        let read = session.command(flags::SIMPLE | flags::READ, &cdb::read(0, 1800), 1800 * 512);
        session.queue(&read);
    }
}

fn ping_flood(attacker: &Attacker) -> Result<()> {
    attacker.in_threads(2, |thread| {
        let flood = Flood::new(1024, Destination::Neighbour).numbered_from(1024 * thread);
        let _ = flood.unread(attacker, |session| {
            let ping = session.ping(true).put_u32(16, u32::MAX);
            session.queue(&ping);
        });
    });
    Ok(())
}

fn large_read(session: &mut RawSession, number: usize) {
    if number.is_multiple_of(128) {
        for _ in 0..8 {
            let read = session.command(flags::SIMPLE | flags::READ, &cdb::read(0, 16384), 8 << 20);
            session.queue(&read);
        }
    }
}
