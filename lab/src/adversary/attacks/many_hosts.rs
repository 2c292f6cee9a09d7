//! Several hosts together, each with its own share of processing time: the cost of one step
//! alongside many sessions, and the resources that one host holds while another waits.

use crate::adversary::attack::Attack;
use crate::adversary::attacker::{Attacker, Destination};
use crate::adversary::cdb::{self, cdb};
use crate::adversary::flood::Flood;
use crate::adversary::session::{RESERVED_TAG, RawSession, flags};
use anyhow::Result;
use lunar_testkit::raw::opcode;
use std::time::Duration;

/// Number of idle sessions that see the unit.
const IDLE_SESSIONS: usize = 4096;
/// Number of their first initiator, and number of hosts that they are spread over.
const IDLE_NUMBER: usize = 20_000;
const IDLE_HOSTS: usize = 16;

/// The attacks of this file.
pub const ATTACKS: &[Attack] = &[
    Attack::new("mode-select-beside-4096", 16, mode_select)
        .from_hosts(16)
        .summary("16 hosts send MODE SELECT to their own LUN, which 4,096 idle sessions see"),
    Attack::new("release-beside-4096", 16, release)
        .from_hosts(16)
        .summary("16 registered hosts RESERVE and RELEASE their own LUN, which 4,096 sessions see"),
    Attack::new("compare-and-write-busy-hosts", 160, compare_and_write).from_hosts(16).summary(
        "160 busy sessions of 16 hosts: COMPARE AND WRITE of the well-behaved client's blocks \
         that fails",
    ),
];

/// Opens idle sessions, as long as the attack continues.
fn idle_sessions(attacker: &Attacker) -> Vec<RawSession> {
    let mut idle = Vec::new();
    while idle.len() < IDLE_SESSIONS && !attacker.is_over() {
        let login = attacker.login(Destination::Own, IDLE_NUMBER + idle.len());
        let Ok(connection) = attacker.connect_from(1 + idle.len() % IDLE_HOSTS) else { continue };
        idle.extend(attacker.log_in_over(connection, &login, Destination::Own));
    }
    idle
}

/// Sends MODE SELECT, which establishes a unit attention for all sessions of the unit.
fn mode_select(attacker: &Attacker) -> Result<()> {
    let _idle = idle_sessions(attacker);
    Flood::new(16, Destination::Own).from_hosts(16).reading(
        attacker,
        |session| {
            // The control mode page: D_SENSE in byte 2, TST 001b. SPC-4 §7.5.8.
            let format = if session.random.below(2) == 0 { 0x04 } else { 0 };
            let page = 0x22 | format;
            let list = [0, 0, 0, 0, 0x0a, 0x0a, page, 0x10, 0, 0, 0, 0, 0, 0, 0, 0];
            let command =
                session.command(flags::SIMPLE | flags::WRITE, &cdb(&[0x15, 0x10, 0, 0, 16]), 16);
            session.queue(&command.with_data(list));
        },
        |_, _| {},
    )
}

/// Releases a reservation of all registrants, which reports a unit attention to each registrant.
fn release(attacker: &Attacker) -> Result<()> {
    const RESERVE: u8 = 1;
    const RELEASE: u8 = 2;
    const ALL_REGISTRANTS: u8 = 7;
    let mut idle = idle_sessions(attacker);
    for session in idle.iter_mut().take(64) {
        let list = cdb::reserve_list(0, 1);
        session.execute(&cdb::reserve_out(0, 0), &list, 0, Duration::from_secs(2))?;
    }
    let mut commands = 0;
    Flood::new(16, Destination::Own).from_hosts(16).reading(
        attacker,
        |session| {
            commands += 1;
            let (action, kind, key) = match commands % 8 {
                1 => (0, 0, 0),
                number if number % 2 == 0 => (RESERVE, ALL_REGISTRANTS, 1),
                _ => (RELEASE, ALL_REGISTRANTS, 1),
            };
            let cdb = cdb::reserve_out(action, kind);
            let command = session.command(flags::SIMPLE | flags::WRITE, &cdb, 24);
            session.queue(&command.with_data(cdb::reserve_list(key, 1)));
        },
        |_, _| {},
    )
}

/// Sends COMPARE AND WRITE whose compare data never matches, so that nothing is written; text
/// requests keep the sessions waiting for processing time of their hosts.
fn compare_and_write(attacker: &Attacker) -> Result<()> {
    let keys: String = (0..200).map(|key| format!("X-org.example.{key}=1\0")).collect();
    let mut commands = 0;
    Flood::new(160, Destination::Shared).from_hosts(16).reading(
        attacker,
        |session| {
            commands += 1;
            if commands % 4 != 0 {
                let request = session.request(opcode::TEXT, 0x80).put_u32(20, RESERVED_TAG);
                let request = request.put(8, &[0; 8]).with_data(keys.as_bytes());
                session.queue(&request);
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
