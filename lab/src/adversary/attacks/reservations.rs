//! Persistent reservations. SPC-4 §5.13, §6.14.
//!
//! A reservation on the shared LUN would stop the well-behaved client, as it should. So
//! reservations and preempts go to a LUN beside it, and only registrations to the shared one.

use crate::adversary::attack::Attack;
use crate::adversary::attacker::{Attacker, Destination};
use crate::adversary::cdb::{self, cdb};
use crate::adversary::flood::Flood;
use crate::adversary::login::LoginParameters;
use crate::adversary::session::{RawSession, flags};
use anyhow::Result;
use std::time::Duration;

/// Service actions of PERSISTENT RESERVE OUT.
const REGISTER: u8 = 0;
const RESERVE: u8 = 1;
const RELEASE: u8 = 2;
const CLEAR: u8 = 3;
const PREEMPT: u8 = 4;
const PREEMPT_AND_ABORT: u8 = 5;
const REGISTER_AND_IGNORE: u8 = 6;
const REGISTER_AND_MOVE: u8 = 7;

/// Maximum time that a command of a storm may take.
const STEP_MAX: Duration = Duration::from_secs(2);

/// The attacks of this file.
pub const ATTACKS: &[Attack] = &[
    Attack::new("registrations-by-isid", 2, |attacker| registrations(attacker, true))
        .fault(7)
        .summary("One initiator registers at the shared LUN, each time with a new ISID"),
    Attack::new("registrations-by-name", 2, |attacker| registrations(attacker, false))
        .fault(7)
        .summary("One host registers at the shared LUN, each time with a new initiator name"),
    Attack::new("registrations-by-spec-i-pt", 2, spec_i_pt)
        .fault(7)
        .summary("One initiator registers 40 others with each command (SPEC_I_PT)"),
    Attack::new("register-storm", 4, |attacker| {
        storm(attacker, Destination::Shared, &[REGISTER_AND_IGNORE])
    })
    .summary("4 initiators endlessly register and unregister at the shared LUN"),
    Attack::new("register-storm-64-sessions", 64, register_storm)
        .summary("64 sessions register at the shared LUN at depth 128 with changing keys (APTPL)"),
    Attack::new("full-status-8-bytes", 12, full_status_cut)
        .summary("12 sessions: READ FULL STATUS of hundreds of registrations, allocation length 8"),
    Attack::new("reserve-preempt-storm", 4, |attacker| {
        storm(attacker, Destination::Neighbour, ALL)
    })
    .summary("4 initiators endlessly reserve, preempt, clear and move at a neighbour LUN"),
    Attack::new("read-full-status-unread", 4, full_status)
        .summary("PR IN of a neighbour LUN with hundreds of registrations, answers unread"),
];

const ALL: &[u8] = &[
    REGISTER,
    RESERVE,
    RELEASE,
    CLEAR,
    PREEMPT,
    PREEMPT_AND_ABORT,
    REGISTER_AND_IGNORE,
    REGISTER_AND_MOVE,
];

/// Logs in under new initiator names or ISIDs and registers.
fn registrations(attacker: &Attacker, by_isid: bool) -> Result<()> {
    attacker.in_threads(2, |thread| {
        for number in (thread..).step_by(2).take_while(|_| !attacker.is_over()) {
            register_as(attacker, Destination::Shared, number, by_isid);
        }
    });
    Ok(())
}

/// Makes one more registration and closes its session; returns whether the target accepted the key.
fn register_as(
    attacker: &Attacker,
    destination: Destination,
    number: usize,
    by_isid: bool,
) -> bool {
    let name = attacker.login(destination, if by_isid { 0 } else { number }).initiator;
    let login = LoginParameters { initiator: name, ..attacker.login(destination, number) };
    let Ok(mut session) = attacker.log_in_as(&login, destination) else { return false };
    let list = cdb::reserve_list(0, 1 + number as u64);
    let outcome = session.execute(&cdb::reserve_out(REGISTER, 0), &list, 0, STEP_MAX);
    attacker.count(&mut session);
    outcome.is_ok_and(|outcome| outcome.status == 0)
}

/// Sends REGISTER with TransportIDs of 40 other initiators at a time. SPC-4 §6.14.3, §7.6.4.8.
fn spec_i_pt(attacker: &Attacker) -> Result<()> {
    let mut next = 0_u32;
    Flood::new(2, Destination::Shared).reading(
        attacker,
        |session| {
            let mut ids = Vec::new();
            for _ in 0..40 {
                next += 1;
                ids.extend(transport_id(next));
            }
            let mut list = cdb::reserve_list(0, 77);
            list[20] = 0x08;
            list.extend((ids.len() as u32).to_be_bytes());
            list.extend(ids);
            let mut cdb = cdb::reserve_out(REGISTER, 0);
            cdb[5..9].copy_from_slice(&(list.len() as u32).to_be_bytes());
            let command = session.command(flags::SIMPLE | flags::WRITE, &cdb, list.len() as u32);
            session.queue(&command.with_data(list));
            // The session removes its own registration only: REGISTER needs an unregistered one.
            let cdb = cdb::reserve_out(REGISTER_AND_IGNORE, 0);
            let command = session.command(flags::SIMPLE | flags::WRITE, &cdb, 24);
            session.queue(&command.with_data(cdb::reserve_list(0, 0)));
        },
        |_, _| {},
    )
}

/// Builds the TransportID of an iSCSI initiator port: name and ISID.
fn transport_id(number: u32) -> Vec<u8> {
    let mut name =
        format!("iqn.2026-11.org.lunarsan.test:foreign,i,0x80{number:08x}00\0").into_bytes();
    name.resize(name.len().next_multiple_of(4), 0);
    [&[0x45, 0, 0, name.len() as u8][..], &name].concat()
}

/// Runs sessions that send these service actions with keys of each other.
fn storm(attacker: &Attacker, destination: Destination, actions: &[u8]) -> Result<()> {
    Flood::new(4, destination).reading(
        attacker,
        |session| {
            let action = actions[session.random.below(actions.len() as u64) as usize];
            let mut key = || session.random.below(5);
            let (key, service_action_key) = (key(), key());
            let kind = [1, 3, 5, 6, 7, 8][session.random.below(6) as usize];
            let cdb = cdb::reserve_out(action, kind);
            let command = session.command(flags::SIMPLE | flags::WRITE, &cdb, 24);
            let list = cdb::reserve_list(key, service_action_key);
            session.queue(&command.with_data(list));
            let ready = session.command(flags::SIMPLE, &cdb::TEST_UNIT_READY, 0);
            session.queue(&ready);
        },
        |_, _| {},
    )
}

/// Sends registrations, each of which the target saves.
fn register_storm(attacker: &Attacker) -> Result<()> {
    const APTPL: u8 = 0x01;
    let mut key = 0;
    Flood::new(64, Destination::Shared).reading(
        attacker,
        |session| {
            key += 1;
            let cdb = cdb::reserve_out(REGISTER_AND_IGNORE, 0);
            let command = session.command(flags::SIMPLE | flags::WRITE, &cdb, 24);
            let mut list = cdb::reserve_list(0, key);
            list[20] = APTPL;
            session.queue(&command.with_data(list));
        },
        |_, _| {},
    )
}

fn full_status_cut(attacker: &Attacker) -> Result<()> {
    const READ_FULL_STATUS: u8 = 3;
    const ALLOCATION_BYTES: u8 = 8;
    for number in (0..400).take_while(|_| !attacker.is_over()) {
        register_as(attacker, Destination::Shared, 100 + number, true);
    }
    Flood::new(12, Destination::Shared).reading(
        attacker,
        |session| {
            let cdb = cdb(&[0x5e, READ_FULL_STATUS, 0, 0, 0, 0, 0, 0, ALLOCATION_BYTES]);
            let bytes = u32::from(ALLOCATION_BYTES);
            let command = session.command(flags::SIMPLE | flags::READ, &cdb, bytes);
            session.queue(&command);
        },
        |_, _| {},
    )
}

fn full_status(attacker: &Attacker) -> Result<()> {
    for number in 0..500 {
        if attacker.is_over() {
            break;
        }
        register_as(attacker, Destination::Neighbour, 100 + number, true);
    }
    let flood = Flood::new(4, Destination::Neighbour).with_small_buffers();
    flood.paced(Duration::from_millis(10)).unread(attacker, read_status)
}

fn read_status(session: &mut RawSession) {
    // READ KEYS, READ FULL STATUS.
    let action = [0, 3][session.random.below(2) as usize];
    let expected = [1, 65_535][session.random.below(2) as usize];
    let cdb = cdb(&[0x5e, action, 0, 0, 0, 0, 0, 0xff, 0xff]);
    let command = session.command(flags::SIMPLE | flags::READ, &cdb, expected);
    session.queue(&command);
}
