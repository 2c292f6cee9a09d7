//! Attacks with many logical units, each with a little work: the state that a session or a task
//! management function leaves at each of them, and the time to visit all of them.

use super::withheld::clear_unit_attentions;
use crate::adversary::attack::Attack;
use crate::adversary::attacker::{Attacker, Destination};
use crate::adversary::cdb;
use crate::adversary::server::MANY_LUNS;
use crate::adversary::session::{RawSession, flags};
use anyhow::Result;
use lunar_testkit::raw::opcode;
use std::time::Duration;

/// Number of commands of a burst: a WRITE, and ORDERED commands that wait for it.
const BURST_COMMANDS: usize = 126;
/// Number of sessions that have a burst at each unit.
const BURST_SESSIONS: usize = 64;

/// Number of sessions with commands ahead of a gap, and number of those commands.
const GAP_SESSIONS: usize = 400;
const GAP_COMMANDS: u16 = 126;
/// Number of sessions that reset a unit each.
const RESET_SESSIONS: usize = 256;

/// Number of idle sessions that no function concerns.
const IDLE_SESSIONS: usize = 3000;
/// Number of units at which keys are preempted, each by a thread of its own.
const PREEMPTED_UNITS: usize = 4;
/// Number of sessions that are preempted at each of these units.
const PREEMPTED_SESSIONS: usize = 100;

const LUN_RESET: u8 = 5;
const TASK_MANAGEMENT_RESPONSE: u8 = 0x22;
const REGISTER_AND_IGNORE: u8 = 6;
const PREEMPT_AND_ABORT: u8 = 5;
/// Write exclusive, registrants only. SPC-4 §6.13.3.4.
const REGISTRANTS_ONLY: u8 = 5;
/// Maximum time of a command while the attack is prepared.
const STEP_MAX: Duration = Duration::from_secs(2);

/// The attacks of this file.
pub const ATTACKS: &[Attack] = &[
    Attack::new("bursts-at-256-units", BURST_SESSIONS, bursts).summary(
        "64 sessions: a WRITE with late data and 125 ORDERED commands, at each of 256 LUNs",
    ),
    Attack::new("resets-of-256-units", GAP_SESSIONS + RESET_SESSIONS, resets).summary(
        "256 sessions: LUN RESET of a LUN each; 400 sessions: 126 commands ahead of a CmdSN",
    ),
    Attack::new("preempt-beside-3000", PREEMPTED_UNITS * PREEMPTED_SESSIONS, preempts)
        .summary("Endless PREEMPT AND ABORT of 400 sessions, beside 3,000 idle sessions"),
];

/// A session that has a burst at one unit after the other.
struct Burst {
    session: RawSession,
    unanswered: usize,
}

impl Burst {
    fn begin(&mut self) {
        let session = &mut self.session;
        let ready = session.command(flags::SIMPLE, &cdb::TEST_UNIT_READY, 0);
        session.queue(&ready); // takes the unit attention
        let write = session.command(flags::SIMPLE | flags::WRITE, &cdb::write(0, 1), 512);
        session.queue(&write);
        for _ in 2..BURST_COMMANDS {
            let ready = session.command(flags::ORDERED, &cdb::TEST_UNIT_READY, 0);
            session.queue(&ready);
        }
        self.unanswered = BURST_COMMANDS;
        session.connection.send();
    }

    fn advance(&mut self, attacker: &Attacker) {
        while let Some(pdu) = self.session.receive() {
            match pdu.opcode() {
                opcode::R2T => self.session.answer_r2t_with(&pdu, &[0; 512]),
                opcode::SCSI_RESPONSE => self.unanswered = self.unanswered.saturating_sub(1),
                _ => {}
            }
        }
        self.session.connection.send();
        attacker.count(&mut self.session);
        if self.unanswered == 0 {
            self.session.lun = self.session.lun.wrapping_add(1);
            self.begin();
        }
    }
}

fn bursts(attacker: &Attacker) -> Result<()> {
    attacker.in_threads(2, |thread| {
        let log_in = |number| attacker.log_in(Destination::Many, number);
        let mut all = Vec::new();
        for number in (thread..BURST_SESSIONS).step_by(2) {
            let Some(session) = attacker.retry(|| log_in(number)) else { return };
            let mut burst = Burst { session, unanswered: 0 };
            burst.begin();
            all.push(burst);
        }
        while attacker.pause(Duration::from_millis(1)) {
            all.iter_mut().for_each(|burst| burst.advance(attacker));
        }
    });
    Ok(())
}

/// Queues commands behind a CmdSN that never comes, each to another LUN.
fn queue_after_gap(session: &mut RawSession) {
    session.cmd_sn = session.cmd_sn.wrapping_add(1);
    for number in 0..GAP_COMMANDS {
        let [high, low] = (0x4000 | (1000 + number)).to_be_bytes(); // flat space, SAM-5 §4.7
        let ready = session.command(flags::SIMPLE, &cdb::TEST_UNIT_READY, 0);
        session.queue(&ready.put(8, &[high, low]));
    }
    session.connection.send();
}

fn resets(attacker: &Attacker) -> Result<()> {
    let mut gaps = Vec::new();
    for number in 0..GAP_SESSIONS {
        let log_in = || attacker.log_in(Destination::Neighbour, number);
        let Some(mut session) = attacker.retry(log_in) else { return Ok(()) };
        queue_after_gap(&mut session);
        attacker.count(&mut session);
        gaps.push(session);
    }
    attacker.in_threads(2, |thread| {
        let mut all = Vec::new();
        for number in (thread..RESET_SESSIONS).step_by(2) {
            let log_in = || attacker.log_in(Destination::Many, GAP_SESSIONS + number);
            let Some(mut session) = attacker.retry(log_in) else { return };
            session.lun = (number % usize::from(MANY_LUNS)) as u8;
            reset(&mut session);
            all.push(session);
        }
        while attacker.pause(Duration::from_millis(1)) {
            for session in &mut all {
                while let Some(pdu) = session.receive() {
                    if pdu.opcode() == TASK_MANAGEMENT_RESPONSE {
                        reset(session);
                    }
                }
                session.connection.send();
                attacker.count(session);
            }
        }
    });
    Ok(())
}

fn reset(session: &mut RawSession) {
    let reset = session.task_management(LUN_RESET, u32::MAX, session.cmd_sn);
    session.queue(&reset);
    session.connection.send();
}

fn preempts(attacker: &Attacker) -> Result<()> {
    let mut idle = Vec::new();
    for number in 0..IDLE_SESSIONS {
        let log_in = || attacker.log_in(Destination::Own, 20_000 + number);
        let Some(session) = attacker.retry(log_in) else { return Ok(()) };
        idle.push(session);
    }
    attacker.in_threads(PREEMPTED_UNITS, |unit| {
        let log_in = |number: usize| {
            let number = unit * (PREEMPTED_SESSIONS + 1) + number;
            let mut session = attacker.log_in(Destination::Many, number)?;
            session.lun = unit as u8;
            clear_unit_attentions(&mut session);
            Ok(session)
        };
        let mut sessions = Vec::new();
        for number in 0..=PREEMPTED_SESSIONS {
            let Some(session) = attacker.retry(|| log_in(number)) else { return };
            sessions.push(session);
        }
        let Some(mut preempting) = sessions.pop() else { return };
        let own = own_key(PREEMPTED_SESSIONS);
        let register = cdb::reserve_out(REGISTER_AND_IGNORE, 0);
        let list = cdb::reserve_list(0, own);
        let _ = preempting.execute(&register, &list, 0, STEP_MAX);
        while !attacker.is_over() {
            for (number, session) in sessions.iter_mut().enumerate() {
                let register = cdb::reserve_list(0, own_key(number));
                reserve_out(session, REGISTER_AND_IGNORE, 0, &register);
            }
            sessions.iter_mut().for_each(|session| wait(attacker, session, 1));
            for number in 0..PREEMPTED_SESSIONS {
                let list = cdb::reserve_list(own, own_key(number));
                reserve_out(&mut preempting, PREEMPT_AND_ABORT, REGISTRANTS_ONLY, &list);
            }
            wait(attacker, &mut preempting, PREEMPTED_SESSIONS);
            for session in &mut sessions {
                let ready = session.command(flags::SIMPLE, &cdb::TEST_UNIT_READY, 0);
                session.queue(&ready); // takes the unit attention
                session.connection.send();
            }
            sessions.iter_mut().for_each(|session| wait(attacker, session, 1));
        }
    });
    Ok(())
}

/// Returns the reservation key of a session of this number at its unit.
fn own_key(number: usize) -> u64 {
    1000 + number as u64
}

fn reserve_out(session: &mut RawSession, action: u8, kind: u8, list: &[u8]) {
    let cdb = cdb::reserve_out(action, kind);
    let command = session.command(flags::SIMPLE | flags::WRITE, &cdb, list.len() as u32);
    session.queue(&command.with_data(list));
    session.connection.send();
}

/// Waits for this many statuses, or until the attack is over.
fn wait(attacker: &Attacker, session: &mut RawSession, mut statuses: usize) {
    while statuses > 0 && !attacker.is_over() && !session.connection.is_closed() {
        let until = std::time::Instant::now() + Duration::from_millis(100);
        let Some(pdu) = session.wait(until) else { continue };
        statuses -= usize::from(pdu.opcode() == opcode::SCSI_RESPONSE);
    }
    attacker.count(session);
}
