//! The well-behaved client: reads and writes with several commands in flight, checks every byte,
//! and measures each request from the first time it was sent to its success.
//!
//! A lost session is re-established, and requests in flight are sent again; a request that ends
//! BUSY or TASK SET FULL is repeated. The delay is part of the request's latency.

use super::cdb;
use super::connection::TcpConnection;
use super::login::LoginParameters;
use super::server::{LUN_SHARED, SHARED_LBA, TARGET_SHARED};
use super::session::{RawSession, flags};
use crate::ledger::{Content, Entry, Ledger};
use crate::random::Random;
use anyhow::{Context, Result, bail, ensure};
use lunar_testkit::raw::{RawOutcome, RawPdu, opcode};
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// Name of the client's initiator, which logs in without authentication.
pub const NAME: &str = "iqn.2026-11.org.lunarsan.test:good";
/// Number of requests in flight at once.
pub const DEPTH: usize = 8;
/// Length of a block of the ledger, and of most requests, in bytes.
pub const BLOCK_BYTES: usize = 4096;
/// Number of sectors in such a block.
const BLOCK_SECTORS: u64 = BLOCK_BYTES as u64 / 512;
/// Number of blocks of a large request, whose data needs R2Ts.
const LARGE_BLOCKS: u64 = 32;
/// Interval of large requests: one request in this many is large.
const LARGE_EVERY: u64 = 32;
/// Number of blocks that belong to the client. The last is never written again after the start.
pub const BLOCKS: u64 = SHARED_LBA as u64 / BLOCK_SECTORS;
/// Content of the last block.
pub const LAST_CONTENT: Content = Content::Stamp(u64::MAX);

/// Maximum time that one attempt to log in may take.
const LOGIN_MAX: Duration = Duration::from_secs(3);
/// Pause before the client tries again, after a refusal and after BUSY.
const RETRY_PAUSE: Duration = Duration::from_millis(20);
/// Sense key UNIT ATTENTION.
const UNIT_ATTENTION: u8 = 6;

/// A request that succeeded.
#[derive(Clone, Copy, Debug)]
pub struct SucceededRequest {
    /// Time of its success.
    pub ended: Instant,
    /// Time from when it was first sent to its success.
    pub latency: Duration,
}

/// Results of the client.
#[derive(Debug)]
pub struct ClientReport {
    /// Requests that succeeded, in order of completion.
    pub requests: Vec<SucceededRequest>,
    /// Times at which the requests that never succeeded were first sent.
    pub unfinished: Vec<Instant>,
    /// Sessions that the server ended.
    pub sessions_lost: u32,
    /// The first few status codes other than GOOD, BUSY, TASK SET FULL and unit attentions.
    pub refusals: Vec<String>,
    /// Description of data that was read and differs from the data written.
    pub data_error: Option<String>,
    /// Writes that were acknowledged.
    pub ledger: Ledger,
}

/// The client.
pub struct GoodClient<'a> {
    server: SocketAddr,
    stop: &'a AtomicBool,
    completed: &'a AtomicU64,
    random: Random,
    session: Option<RawSession>,
    login_at: Instant,
    slots: Vec<Slot>,
    report: ClientReport,
}

/// One request in flight.
struct Slot {
    action: Action,
    blocks: std::ops::Range<u64>,
    bytes: Vec<u8>,
    first_sent: Instant,
    /// Its tag while it is sent in the current session.
    tag: Option<u32>,
    received: Vec<u8>,
    send_at: Instant,
}

#[derive(Clone, Copy)]
enum Action {
    Read,
    Write(Entry),
}

impl<'a> GoodClient<'a> {
    /// Logs in and writes the last block; `completed` will count the requests that succeed.
    ///
    /// # Errors
    /// The server does not accept the client.
    pub fn start(
        server: SocketAddr,
        seed: u64,
        stop: &'a AtomicBool,
        completed: &'a AtomicU64,
    ) -> Result<Self> {
        let mut session = log_in(server)?;
        let mut ledger = Ledger::new(usize::try_from(BLOCKS)?, BLOCK_BYTES);
        let last = BLOCKS - 1;
        let entry = ledger.begin([last], LAST_CONTENT);
        let write = cdb::write(last * BLOCK_SECTORS, BLOCK_SECTORS as u32);
        let data = LAST_CONTENT.bytes(last, BLOCK_BYTES);
        let outcome = session.execute(&write, &data, 0, LOGIN_MAX)?;
        ensure!(outcome.status == 0, "the first write ended with {outcome:02x?}");
        ledger.acknowledge(entry, true);
        let report = ClientReport {
            requests: Vec::new(),
            unfinished: Vec::new(),
            sessions_lost: 0,
            refusals: Vec::new(),
            data_error: None,
            ledger,
        };
        Ok(Self {
            server,
            stop,
            completed,
            random: Random::new(seed),
            session: Some(session),
            login_at: Instant::now(),
            slots: Vec::new(),
            report,
        })
    }

    /// Works until the stop flag is set or data is wrong.
    pub fn run(mut self) -> ClientReport {
        while !self.stop.load(Ordering::Relaxed) && self.report.data_error.is_none() {
            while self.slots.len() < DEPTH {
                let slot = self.new_slot();
                self.slots.push(slot);
            }
            match self.exchange() {
                Ok(()) => {}
                Err(_) => self.lose_session(),
            }
        }
        self.report.unfinished = self.slots.iter().map(|slot| slot.first_sent).collect();
        self.report
    }

    /// Sends requests that are due and receives pending responses.
    fn exchange(&mut self) -> Result<()> {
        if self.session.is_none() {
            if Instant::now() < self.login_at {
                std::thread::sleep(Duration::from_millis(1));
                return Ok(());
            }
            self.login_at = Instant::now() + RETRY_PAUSE;
            self.session = log_in(self.server).ok();
        }
        let Some(mut session) = self.session.take() else { return Ok(()) };
        self.send_due(&mut session);
        session.connection.send();
        session.connection.wait_readable(Duration::from_millis(2));
        while let Some(pdu) = session.receive() {
            self.take(&mut session, &pdu)?;
        }
        ensure!(!session.connection.is_closed(), "the server closed the connection");
        session.connection.send();
        self.session = Some(session);
        Ok(())
    }

    fn send_due(&mut self, session: &mut RawSession) {
        let now = Instant::now();
        for slot in self.slots.iter_mut().filter(|slot| slot.tag.is_none() && slot.send_at <= now) {
            if session.window_is_open() {
                slot.send(session);
            }
        }
    }

    /// Handles one PDU from the server.
    fn take(&mut self, session: &mut RawSession, pdu: &RawPdu) -> Result<()> {
        let tag = pdu.u32_at(16);
        let found = self.slots.iter().position(|slot| slot.tag == Some(tag));
        match (pdu.opcode(), found) {
            (opcode::R2T, Some(at)) => {
                let begin = pdu.u32_at(40) as usize;
                let bytes = self.slots[at].bytes.get(begin..begin + pdu.u32_at(44) as usize);
                session
                    .answer_r2t_with(pdu, bytes.context("an R2T exceeds the data of its command")?);
            }
            (opcode::DATA_IN, Some(at)) => {
                let slot = &mut self.slots[at];
                ensure!(pdu.u32_at(40) as usize == slot.received.len(), "Data-In out of order");
                slot.received.extend_from_slice(&pdu.data);
                if pdu.header[1] & 1 != 0 {
                    self.end(at, pdu.header[3], Vec::new());
                }
            }
            (opcode::SCSI_RESPONSE, Some(at)) => {
                let sense = pdu.data.get(2..).unwrap_or_default().to_vec();
                self.end(at, pdu.header[3], sense);
            }
            (opcode::NOP_IN, _) => {}
            // An event may request a logout; a host then opens another session.
            (opcode::ASYNC_MESSAGE, _) if pdu.header[36] == 0 => {}
            (other, _) => bail!("unexpected PDU {other:#04x}"),
        }
        Ok(())
    }

    /// Handles the end of a request with this status.
    fn end(&mut self, at: usize, status: u8, sense: Vec<u8>) {
        const GOOD: u8 = 0;
        const BUSY: u8 = 0x08;
        const TASK_SET_FULL: u8 = 0x28;
        let outcome = RawOutcome { status, data: Vec::new(), sense };
        if status != GOOD {
            let is_attention = status == 2 && outcome.sense_codes().0 == UNIT_ATTENTION;
            if !is_attention && ![BUSY, TASK_SET_FULL].contains(&status) {
                self.refused(&outcome);
            }
            let pause = if is_attention { Duration::ZERO } else { RETRY_PAUSE };
            let slot = &mut self.slots[at];
            (slot.tag, slot.send_at) = (None, Instant::now() + pause);
            slot.received.clear();
            return;
        }
        let slot = self.slots.swap_remove(at);
        let ended = Instant::now();
        self.completed.fetch_add(1, Ordering::Relaxed);
        self.report.requests.push(SucceededRequest { ended, latency: ended - slot.first_sent });
        match slot.action {
            Action::Write(entry) => self.report.ledger.acknowledge(entry, true),
            Action::Read if slot.received == slot.bytes => {}
            Action::Read => self.report.data_error = Some(slot.difference()),
        }
    }

    fn refused(&mut self, outcome: &RawOutcome) {
        const REFUSALS_MAX: usize = 5;
        if self.report.refusals.len() < REFUSALS_MAX {
            let (key, code) = outcome.sense_codes();
            let text = format!("status {:#04x}, sense {key:x}/{code:04x}", outcome.status);
            self.report.refusals.push(text);
        }
    }

    /// Drops the session; requests in flight are sent again in the next one.
    fn lose_session(&mut self) {
        self.report.sessions_lost += 1;
        self.session = None;
        for slot in &mut self.slots {
            (slot.tag, slot.send_at) = (None, Instant::now());
            slot.received.clear();
        }
    }

    /// Creates a request for blocks that no other request uses.
    fn new_slot(&mut self) -> Slot {
        let is_large = self.random.below(LARGE_EVERY) == 0;
        let count = if is_large { LARGE_BLOCKS } else { 1 };
        let blocks = loop {
            let first = self.random.below(BLOCKS - count);
            let overlaps =
                |slot: &Slot| slot.blocks.start < first + count && first < slot.blocks.end;
            if !self.slots.iter().any(overlaps) {
                break first..first + count;
            }
        };
        let ledger = &mut self.report.ledger;
        let (action, content) = if self.random.below(2) == 0 {
            (Action::Read, None)
        } else {
            let stamp = Content::Stamp(ledger.stamp());
            (Action::Write(ledger.begin(blocks.clone(), stamp)), Some(stamp))
        };
        let content = |lba| content.unwrap_or_else(|| ledger.content(lba));
        let bytes = blocks.clone().flat_map(|lba| content(lba).bytes(lba, BLOCK_BYTES)).collect();
        let now = Instant::now();
        let (tag, received) = (None, Vec::new());
        Slot { action, blocks, bytes, first_sent: now, tag, received, send_at: now }
    }
}

impl Slot {
    fn send(&mut self, session: &mut RawSession) {
        let lba = self.blocks.start * BLOCK_SECTORS;
        let sectors = (self.bytes.len() / 512) as u32;
        let bytes = self.bytes.len() as u32;
        let command = match self.action {
            Action::Read => {
                session.command(flags::SIMPLE | flags::READ, &cdb::read(lba, sectors), bytes)
            }
            Action::Write(_) => {
                let cdb = cdb::write(lba, sectors);
                let command = session.command(flags::SIMPLE | flags::WRITE, &cdb, bytes);
                let is_small = self.bytes.len() == BLOCK_BYTES;
                command.with_data(if is_small { &self.bytes[..] } else { &[] })
            }
        };
        self.tag = Some(command.u32_at(16));
        session.queue(&command);
    }

    /// Describes the first difference between data read and data written.
    fn difference(&self) -> String {
        let differs = |at: &usize| self.received.get(*at) != self.bytes.get(*at);
        let at = (0..self.bytes.len()).find(differs).unwrap_or(self.bytes.len());
        let lba = self.blocks.start + (at / BLOCK_BYTES) as u64;
        let begin = at - at % 512;
        let head = |bytes: &[u8]| format!("{:02x?}", bytes.get(begin..begin + 24));
        format!(
            "block {lba}, byte {}: expected {}…, read {}…",
            at % BLOCK_BYTES,
            head(&self.bytes),
            head(&self.received)
        )
    }
}

/// Opens a session of the client, from 127.0.0.1.
fn log_in(server: SocketAddr) -> Result<RawSession> {
    let login = LoginParameters {
        initiator: NAME.to_owned(),
        isid: 0x0000_600d,
        target: Some(TARGET_SHARED.to_owned()),
        ..LoginParameters::default()
    };
    let mut connection = TcpConnection::open(server, Ipv4Addr::LOCALHOST, LOGIN_MAX)?;
    let negotiated = login.run(&mut connection, LOGIN_MAX)?;
    Ok(RawSession::new(connection, negotiated, LUN_SHARED, 0))
}
