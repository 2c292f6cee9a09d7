//! Unlimited task management requests. RFC 7143 §11.5.
//!
//! By default every initiator may reset any unit or target that it can reach, as the standard has
//! it; resets therefore go to a LUN or a target beside the well-behaved client's, and aborts to the
//! attacker's own tasks.

use super::withheld::clear_unit_attentions;
use crate::adversary::attack::Attack;
use crate::adversary::attacker::{Attacker, Destination};
use crate::adversary::cdb;
use crate::adversary::flood::Flood;
use crate::adversary::server::{LUN_NEIGHBOUR, MANY_LUNS, SHARED_LBA};
use crate::adversary::session::{RawSession, flags};
use anyhow::Result;
use std::time::{Duration, Instant};

const ABORT_TASK: u8 = 1;
const ABORT_TASK_SET: u8 = 2;
const CLEAR_ACA: u8 = 3;
const CLEAR_TASK_SET: u8 = 4;
const LUN_RESET: u8 = 5;
const TARGET_WARM_RESET: u8 = 6;
const TARGET_COLD_RESET: u8 = 7;
const TASK_REASSIGN: u8 = 8;

/// Operation code of a Task Management Function Response.
const TASK_MANAGEMENT_RESPONSE: u8 = 0x22;

/// Number of sessions of [`many_sessions`].
const MANY_SESSIONS: usize = 512;

/// Number of sessions of [`terminated_tags`], and of those that are added between two resets.
const TAGS_SESSIONS: usize = 1024;
const TAGS_BATCH: usize = 32;

/// Number of idle sessions that use the LUN which the well-behaved host resets.
const IDLE_SESSIONS: usize = 1024;
/// Number of their first initiator.
const IDLE_NUMBER: usize = 20_000;
/// Number of sessions that use all LUNs of the attacker, so that each reset visits them.
const USING_SESSIONS: usize = 64;
/// Maximum time of one wait for a response while the attack is prepared.
const PREPARE_MAX: Duration = Duration::from_secs(2);

/// Pause of the sessions before they reset again.
const WAVE_PAUSE: Duration = Duration::from_millis(20);

/// The attacks of this file.
pub const ATTACKS: &[Attack] = &[
    Attack::new("abort-unknown-tasks", 4, |attacker| {
        requests(attacker, Destination::Shared, ABORT_TASK)
    })
    .summary("ABORT TASK for tags that do not exist, on the shared LUN"),
    Attack::new("abort-own-tasks", 4, abort_own)
        .summary("WRITEs and READs on the shared LUN, each followed by its ABORT TASK"),
    Attack::new("abort-task-set", 4, |attacker| {
        mixed_with_reads(attacker, Destination::Shared, ABORT_TASK_SET)
    })
    .summary("READs of 1 MiB on the shared LUN and ABORT TASK SET between them"),
    Attack::new("lun-reset", 4, |attacker| {
        mixed_with_reads(attacker, Destination::Neighbour, LUN_RESET)
    })
    .summary("READs of 1 MiB and LUN RESET between them, on a neighbour LUN"),
    Attack::new("clear-task-set", 4, |attacker| {
        mixed_with_reads(attacker, Destination::Neighbour, CLEAR_TASK_SET)
    })
    .summary("READs of 1 MiB and CLEAR TASK SET between them, on a neighbour LUN"),
    Attack::new("warm-reset", 4, |attacker| {
        requests(attacker, Destination::Own, TARGET_WARM_RESET)
    })
    .summary("Endless TARGET WARM RESET of the attacker's own target"),
    Attack::new("cold-reset", 4, |attacker| {
        requests(attacker, Destination::Own, TARGET_COLD_RESET)
    })
    .summary("Endless TARGET COLD RESET of the attacker's own target, with new logins"),
    Attack::new("lun-reset-512-sessions", 512, |attacker| {
        many_sessions(attacker, Destination::Neighbour, LUN_RESET)
    })
    .summary("256 sessions: WRITEs without their data, then ORDERED commands; 256: LUN RESET"),
    Attack::new("warm-reset-512-sessions", 512, |attacker| {
        many_sessions(attacker, Destination::Own, TARGET_WARM_RESET)
    })
    .summary("The same to the attacker's own target, with TARGET WARM RESET"),
    Attack::new("terminated-tags-1024-sessions", 1024, terminated_tags)
        .limits("memory_bytes_max = \"64MiB\"")
        .summary("1,024 sessions: WRITEs solicited by 960 R2Ts, LUN RESET, never acknowledged"),
    Attack::new("lun-reset-beside-256-resets", 256, beside_resets)
        .beside_resets_of_the_neighbour()
        .summary("Endless LUN RESET of 256 LUNs; new sessions reset a LUN that 1,024 sessions use"),
    Attack::new("functions-of-all-kinds", 4, all_kinds)
        .summary("CLEAR ACA, TASK REASSIGN and functions that do not exist"),
    Attack::new("management-unread", 4, unread)
        .summary("ABORT TASK and LUN RESET of a neighbour LUN, answers unread"),
];

fn requests(attacker: &Attacker, destination: Destination, function: u8) -> Result<()> {
    Flood::new(4, destination).reading(
        attacker,
        move |session| {
            let tag = session.random.next_u64() as u32;
            let request = session.task_management(function, tag, session.cmd_sn);
            session.queue(&request);
        },
        |_, _| {},
    )
}

/// Keeps commands that do not end by themselves pending in half of the sessions. The other half
/// send one reset each, all at once, and again when they have their responses.
fn many_sessions(attacker: &Attacker, destination: Destination, function: u8) -> Result<()> {
    attacker.in_threads(2, |thread| {
        let mut sessions = Vec::new();
        let mut next_number = thread;
        while !attacker.is_over() {
            if sessions.len() < MANY_SESSIONS / 2 {
                let number = next_number % MANY_SESSIONS;
                next_number += 2;
                if let Ok(session) = attacker.log_in(destination, number) {
                    let resets = (number / 2).is_multiple_of(2);
                    let mut session = ResetSession { session, resets, is_waiting: false };
                    clear_unit_attentions(&mut session.session);
                    sessions.push(session);
                    continue;
                }
            }
            sessions.iter_mut().for_each(|session| session.exchange_pdus(attacker));
            sessions.retain(|resetting| !resetting.session.connection.is_closed());
            attacker.pause(Duration::from_millis(1));
            // Sent after the commands that the resets are to abort.
            if sessions.iter().all(ResetSession::is_ready) && attacker.pause(WAVE_PAUSE) {
                sessions.iter_mut().for_each(|session| session.reset(function));
            }
        }
    });
    Ok(())
}

/// Resets each of many LUNs, again as soon as the reset before is answered. Other sessions have
/// used these LUNs, and the LUN that the well-behaved host resets, so that each reset visits them.
fn beside_resets(attacker: &Attacker) -> Result<()> {
    attacker.in_threads(4, |thread| {
        let mut resetting = Vec::new();
        for number in (thread..usize::from(MANY_LUNS)).step_by(4) {
            let log_in = || attacker.log_in(Destination::Many, number);
            let Some(mut session) = attacker.retry(log_in) else { return };
            if number < USING_SESSIONS {
                use_luns(attacker, &mut session, 0..=u8::MAX);
            }
            session.lun = number as u8;
            resetting.push(ResetSession { session, resets: true, is_waiting: false });
        }
        let mut idle = Vec::new();
        while attacker.pause(Duration::from_millis(1)) {
            if idle.len() < IDLE_SESSIONS / 4 {
                let number = IDLE_NUMBER + 4 * idle.len() + thread;
                if let Ok(mut session) = attacker.log_in(Destination::Neighbour, number) {
                    use_luns(attacker, &mut session, LUN_NEIGHBOUR..=LUN_NEIGHBOUR);
                    idle.push(session);
                }
            }
            for session in &mut resetting {
                session.exchange_pdus(attacker);
                if session.is_ready() {
                    session.reset(LUN_RESET);
                    session.session.connection.send();
                }
            }
        }
    });
    Ok(())
}

/// Sends a command to each of these LUNs, and waits for all responses.
fn use_luns(attacker: &Attacker, session: &mut RawSession, luns: std::ops::RangeInclusive<u8>) {
    let (mut luns, mut unanswered) = (luns, 0);
    while (!luns.is_empty() || unanswered > 0) && !session.connection.is_closed() {
        while session.window_is_open()
            && let Some(lun) = luns.next()
        {
            session.lun = lun;
            let command = session.command(flags::SIMPLE, &cdb::TEST_UNIT_READY, 0);
            session.queue(&command);
            unanswered += 1;
        }
        if session.wait(Instant::now() + PREPARE_MAX).is_some() {
            unanswered -= 1;
        } else if attacker.is_over() {
            return;
        }
    }
}

/// A session of [`many_sessions`] or [`beside_resets`].
struct ResetSession {
    session: RawSession,
    /// True when the session sends resets; otherwise it has commands that resets abort.
    resets: bool,
    /// True while its reset has no response.
    is_waiting: bool,
}

impl ResetSession {
    /// True if the session awaits nothing before the next resets.
    fn is_ready(&self) -> bool {
        if self.resets { !self.is_waiting } else { !self.session.window_is_open() }
    }

    fn reset(&mut self, function: u8) {
        if self.resets {
            let reset = self.session.task_management(function, u32::MAX, self.session.cmd_sn);
            self.session.queue(&reset);
            self.is_waiting = true;
        }
    }

    fn exchange_pdus(&mut self, attacker: &Attacker) {
        let session = &mut self.session;
        while let Some(pdu) = session.receive() {
            self.is_waiting &= pdu.opcode() != TASK_MANAGEMENT_RESPONSE;
        }
        while !self.resets && session.window_is_open() {
            let command = if session.cmd_sn.is_multiple_of(8) {
                session.command(flags::SIMPLE | flags::WRITE, &cdb::write(0, 1), 512)
            } else {
                session.command(flags::ORDERED, &cdb::TEST_UNIT_READY, 0)
            };
            session.queue(&command);
        }
        session.connection.send();
        attacker.count(session);
    }
}

/// Opens sessions with FastAbort whose WRITEs have eight R2Ts each, and one session that resets the
/// LUN: the target has to keep the tags, since no session acknowledges the end of the tasks. RFC
/// 7143 §4.2.3.4.
fn terminated_tags(attacker: &Attacker) -> Result<()> {
    attacker.in_threads(2, |thread| {
        let Some(mut resetter) =
            attacker.retry(|| attacker.log_in(Destination::Neighbour, TAGS_SESSIONS + thread))
        else {
            return;
        };
        let mut sessions: Vec<RawSession> = Vec::new();
        for number in (thread..TAGS_SESSIONS).step_by(2).cycle() {
            if attacker.is_over() {
                return;
            }
            if sessions.len() < TAGS_SESSIONS / 2 {
                let mut login = attacker.login(Destination::Neighbour, number);
                (login.burst_bytes_max, login.fast_abort) = (512, true);
                if let Ok(mut session) = attacker.log_in_as(&login, Destination::Neighbour) {
                    clear_unit_attentions(&mut session);
                    sessions.push(session);
                    if !sessions.len().is_multiple_of(TAGS_BATCH) {
                        continue;
                    }
                }
            }
            for session in &mut sessions {
                fill_with_writes(session);
                attacker.count(session);
            }
            attacker.pause(WAVE_PAUSE);
            let reset = resetter.task_management(LUN_RESET, u32::MAX, resetter.cmd_sn);
            resetter.queue(&reset);
            resetter.connection.send();
            while resetter.receive().is_some() {}
            sessions.retain(|session| !session.connection.is_closed());
        }
    });
    Ok(())
}

/// Receives PDUs and sends WRITEs up to the window, without their data.
fn fill_with_writes(session: &mut RawSession) {
    while session.receive().is_some() {}
    while session.window_is_open() {
        let write = session.command(flags::SIMPLE | flags::WRITE, &cdb::write(0, 8), 4096);
        session.queue(&write);
    }
    session.connection.send();
}

fn abort_own(attacker: &Attacker) -> Result<()> {
    Flood::new(4, Destination::Shared).reading(
        attacker,
        |session| {
            let lba = u64::from(SHARED_LBA);
            let command = if session.random.below(2) == 0 {
                session.command(flags::SIMPLE | flags::READ, &cdb::read(0, 2048), 1 << 20)
            } else {
                session.command(flags::SIMPLE | flags::WRITE, &cdb::write(lba, 2048), 1 << 20)
            };
            session.queue(&command);
            let abort = session.task_management(ABORT_TASK, command.u32_at(16), command.u32_at(24));
            session.queue(&abort);
        },
        // R2Ts are answered even if their task no longer exists.
        RawSession::keep_r2t,
    )
}

/// Sends reads of 1 MiB; one request in sixteen is the task management function.
fn mixed_with_reads(attacker: &Attacker, destination: Destination, function: u8) -> Result<()> {
    Flood::new(4, destination).reading(
        attacker,
        move |session| {
            let request = if session.random.below(16) == 0 {
                session.task_management(function, u32::MAX, session.cmd_sn)
            } else {
                session.command(flags::SIMPLE | flags::READ, &cdb::read(0, 2048), 1 << 20)
            };
            session.queue(&request);
        },
        |_, _| {},
    )
}

fn all_kinds(attacker: &Attacker) -> Result<()> {
    Flood::new(4, Destination::Shared).reading(
        attacker,
        |session| {
            let beyond = 9 + session.random.below(119) as u8;
            let function = [CLEAR_ACA, TASK_REASSIGN, 0, beyond][session.random.below(4) as usize];
            let request = session.task_management(function, 1, session.cmd_sn);
            session.queue(&request);
        },
        |_, _| {},
    )
}

fn unread(attacker: &Attacker) -> Result<()> {
    Flood::new(4, Destination::Neighbour).with_small_buffers().unread(attacker, |session| {
        let function = [ABORT_TASK, LUN_RESET][session.random.below(2) as usize];
        let request = session.task_management(function, 1, session.cmd_sn);
        session.queue(&request);
    })
}
