//! A well-behaved host that opens one session after the other: it logs in, registers a reservation
//! key, reads a block, removes the key and logs out. An attack that locks hosts out stops it.
//! Beside some attacks it also resets a LUN of its target.

use super::cdb;
use super::connection::TcpConnection;
use super::good_client::{BLOCK_BYTES, BLOCKS, LAST_CONTENT, SucceededRequest};
use super::login::LoginParameters;
use super::server::{LUN_NEIGHBOUR, LUN_SHARED, TARGET_SHARED};
use super::session::{RESERVED_TAG, RawSession};
use anyhow::{Context, Result, ensure};
use lunar_testkit::raw::opcode;
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// Maximum time that one step may take before the session is tried again from the start.
const STEP_MAX: Duration = Duration::from_secs(3);
/// Pause from the end of a session to the start of the next.
const PAUSE: Duration = Duration::from_millis(100);
/// Pause after an attempt that failed.
const RETRY_PAUSE: Duration = Duration::from_millis(20);
/// PERSISTENT RESERVE OUT: REGISTER AND IGNORE EXISTING KEY. SPC-4 §6.14.2.
const REGISTER_AND_IGNORE: u8 = 6;

/// Results of these sessions.
#[derive(Debug, Default)]
pub struct NewSessionReport {
    /// Sessions that succeeded, each measured from its first attempt to its end.
    pub sessions: Vec<SucceededRequest>,
    /// Time of the first attempt of a session that never succeeded.
    pub unfinished: Option<Instant>,
    /// Error of the last attempt that failed.
    pub last_error: String,
    /// True when a session read other data than was written.
    pub data_is_wrong: bool,
}

/// Opens sessions until `stop` is set. Each resets the neighbour LUN if `resets_neighbour`.
pub fn run(server: SocketAddr, resets_neighbour: bool, stop: &AtomicBool) -> NewSessionReport {
    let mut report = NewSessionReport::default();
    while !stop.load(Ordering::Relaxed) {
        let begun = *report.unfinished.get_or_insert_with(Instant::now);
        match use_once(server, resets_neighbour) {
            Ok(is_right) => {
                report.data_is_wrong |= !is_right;
                let ended = Instant::now();
                report.sessions.push(SucceededRequest { ended, latency: ended - begun });
                report.unfinished = None;
                std::thread::sleep(PAUSE);
            }
            Err(error) => {
                report.last_error = format!("{error:#}");
                std::thread::sleep(RETRY_PAUSE);
            }
        }
    }
    report
}

/// Opens one session; returns whether the block held the expected data.
fn use_once(server: SocketAddr, resets_neighbour: bool) -> Result<bool> {
    let login = LoginParameters {
        initiator: "iqn.2026-11.org.lunarsan.test:new-sessions".to_owned(),
        isid: 0x0000_c043,
        target: Some(TARGET_SHARED.to_owned()),
        ..LoginParameters::default()
    };
    let mut connection = TcpConnection::open(server, Ipv4Addr::LOCALHOST, STEP_MAX)?;
    let negotiated = login.run(&mut connection, STEP_MAX)?;
    let mut session = RawSession::new(connection, negotiated, LUN_SHARED, 0);
    if resets_neighbour {
        reset_neighbour(&mut session)?;
    }
    register(&mut session, 1)?;
    let last = BLOCKS - 1;
    let sectors = (BLOCK_BYTES / 512) as u32;
    let read = cdb::read(last * u64::from(sectors), sectors);
    let outcome = session.execute(&read, &[], BLOCK_BYTES as u32, STEP_MAX)?;
    ensure!(outcome.status == 0, "READ ended with status {:#04x}", outcome.status);
    let is_right = outcome.data == LAST_CONTENT.bytes(last, BLOCK_BYTES);
    register(&mut session, 0)?;
    let logout = session.immediate_request(opcode::LOGOUT, 0x80).put(8, &[0; 8]);
    session.queue(&logout);
    session.wait(Instant::now() + STEP_MAX);
    Ok(is_right)
}

/// Registers this key; zero removes the registration.
fn register(session: &mut RawSession, key: u64) -> Result<()> {
    let command = cdb::reserve_out(REGISTER_AND_IGNORE, 0);
    let outcome = session.execute(&command, &cdb::reserve_list(0, key), 0, STEP_MAX)?;
    let codes = outcome.sense_codes();
    ensure!(outcome.status == 0, "REGISTER ended with {:#04x}, {codes:02x?}", outcome.status);
    Ok(())
}

/// Resets the neighbour LUN, whose sessions all belong to the attacker.
fn reset_neighbour(session: &mut RawSession) -> Result<()> {
    const LUN_RESET: u8 = 5;
    const TASK_MANAGEMENT_RESPONSE: u8 = 0x22;
    let until = Instant::now() + STEP_MAX;
    let reset = session.task_management(LUN_RESET, RESERVED_TAG, session.cmd_sn);
    session.queue(&reset.put(8, &[0, LUN_NEIGHBOUR]));
    loop {
        let pdu = session.wait(until).context("no answer to LUN RESET")?;
        if pdu.opcode() == TASK_MANAGEMENT_RESPONSE {
            ensure!(pdu.header[2] == 0, "LUN RESET ended with response {}", pdu.header[2]);
            return Ok(());
        }
    }
}
