//! Context of a running attack: the server's address and names, and the stop flag.

use super::connection::TcpConnection;
use super::login::{ChapCredential, LoginParameters};
use super::server::{self, LUN_NEIGHBOUR, LUN_SHARED, LUN_SLOW};
use super::session::RawSession;
use anyhow::Result;
use lunar_testkit::raw::RawPdu;
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

/// Maximum time that a connection attempt or a login of an attack may take.
const STEP_MAX: Duration = Duration::from_secs(2);

/// Pause after a refusal before an attack tries again.
const RETRY_PAUSE: Duration = Duration::from_millis(5);

/// LUN that the commands of an attack go to.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Destination {
    /// The LUN of the well-behaved client; only blocks from
    /// [`SHARED_LBA`](server::SHARED_LBA) on are the attacker's.
    Shared,
    /// Another LUN of the same target.
    Neighbour,
    /// The LUN of a target of the attacker's own.
    Own,
    /// Another LUN of the attacker's own target, on a disk that takes half a second for each call.
    Slow,
    /// The first of [`SLOW_LUNS`](server::SLOW_LUNS) LUNs of the attacker's own target, on a slow
    /// file system.
    SlowExt4,
    /// A LUN of a target that demands CHAP; the attacker knows the secret.
    Chap,
    /// The first LUN of a target that has 256 of them.
    Many,
    /// The first LUN of a target that has 256 LUNs, all of them files.
    Files,
}

impl Destination {
    /// Returns target name, LUN and credential.
    fn login_target(self) -> (&'static str, u8, Option<ChapCredential>) {
        match self {
            Self::Shared => (server::TARGET_SHARED, LUN_SHARED, None),
            Self::Neighbour => (server::TARGET_SHARED, LUN_NEIGHBOUR, None),
            Self::Own => (server::TARGET_OWN, 0, None),
            Self::Slow => (server::TARGET_OWN, LUN_SLOW, None),
            Self::SlowExt4 => (server::TARGET_OWN, server::LUN_SLOW_EXT4, None),
            Self::Many => (server::TARGET_MANY, 0, None),
            Self::Files => (server::TARGET_FILES, 0, None),
            Self::Chap => (server::TARGET_CHAP, 0, Some(server::CREDENTIAL)),
        }
    }
}

/// Counters of the connections, logins, PDUs and bytes of an attack.
#[derive(Debug, Default)]
pub struct AttackCounters {
    /// TCP connections that the server accepted.
    pub connections: AtomicU64,
    /// Logins that reached full feature phase.
    pub logins: AtomicU64,
    /// PDUs queued.
    pub pdus: AtomicU64,
    /// Bytes that sockets took.
    pub bytes: AtomicU64,
}

impl AttackCounters {
    /// Adds to a counter.
    pub fn add(counter: &AtomicU64, count: u64) {
        counter.fetch_add(count, Ordering::Relaxed);
    }

    /// Returns the counters as text: `1200 connections, 1200 logins, 5 PDUs, 300 bytes`.
    pub fn text(&self) -> String {
        let value = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        format!(
            "{} connections, {} logins, {} PDUs, {} bytes",
            value(&self.connections),
            value(&self.logins),
            value(&self.pdus),
            value(&self.bytes)
        )
    }
}

/// Context of a running attack.
#[derive(Clone)]
pub struct Attacker {
    /// Address that the server listens on.
    pub server: SocketAddr,
    /// Determines every random choice.
    pub seed: u64,
    /// Counters of the work done so far.
    pub sent: Arc<AttackCounters>,
    stop: Arc<AtomicBool>,
}

impl Attacker {
    /// Creates an attacker of this server that runs until `stop` is set.
    pub fn new(server: SocketAddr, seed: u64, stop: Arc<AtomicBool>) -> Self {
        Self { server, seed, sent: Arc::default(), stop }
    }

    /// True when the attack has to end.
    pub fn is_over(&self) -> bool {
        self.stop.load(Ordering::Relaxed)
    }

    /// Pauses, and returns whether the attack continues.
    pub fn pause(&self, time: Duration) -> bool {
        std::thread::sleep(time);
        !self.is_over()
    }

    /// Waits until the attack has to end.
    pub fn wait_until_over(&self) {
        while self.pause(Duration::from_millis(20)) {}
    }

    /// Address of the attacker's host of this number: 127.66.0.1 and up.
    pub fn host(number: usize) -> Ipv4Addr {
        let number = number as u16 + 1;
        let [high, low] = number.to_be_bytes();
        Ipv4Addr::new(127, 66, high, low)
    }

    /// Connects from the attacker's first host.
    ///
    /// # Errors
    /// The server refuses or does not answer in time.
    pub fn connect(&self) -> Result<TcpConnection> {
        self.connect_from(0)
    }

    /// Connects from the attacker's host of this number.
    ///
    /// # Errors
    /// The server refuses or does not answer in time.
    pub fn connect_from(&self, host: usize) -> Result<TcpConnection> {
        let connection = TcpConnection::open(self.server, Self::host(host), STEP_MAX)?;
        AttackCounters::add(&self.sent.connections, 1);
        Ok(connection)
    }

    /// Connects from the attacker's first host with small buffers.
    ///
    /// # Errors
    /// The server refuses or does not answer in time.
    pub fn connect_small(&self) -> Result<TcpConnection> {
        let connection = TcpConnection::open_small(self.server, Self::host(0), STEP_MAX)?;
        AttackCounters::add(&self.sent.connections, 1);
        Ok(connection)
    }

    /// Returns the login of the attacker's initiator of this number.
    pub fn login(&self, destination: Destination, number: usize) -> LoginParameters {
        let (target, _, credential) = destination.login_target();
        LoginParameters {
            initiator: format!("iqn.2026-11.org.lunarsan.test:adversary-{number}"),
            isid: number as u32,
            target: Some(target.to_owned()),
            credential,
            ..LoginParameters::default()
        }
    }

    /// Opens a session of the attacker's initiator of this number, from its first host.
    ///
    /// # Errors
    /// The server refuses or does not answer in time.
    pub fn log_in(&self, destination: Destination, number: usize) -> Result<RawSession> {
        self.log_in_as(&self.login(destination, number), destination)
    }

    /// Opens a session with this login, from the attacker's first host.
    ///
    /// # Errors
    /// The server refuses or does not answer in time.
    pub fn log_in_as(
        &self,
        login: &LoginParameters,
        destination: Destination,
    ) -> Result<RawSession> {
        self.log_in_over(self.connect()?, login, destination)
    }

    /// Opens a session with this login over a connection that is open.
    ///
    /// # Errors
    /// The server refuses or does not answer in time.
    pub fn log_in_over(
        &self,
        mut connection: TcpConnection,
        login: &LoginParameters,
        destination: Destination,
    ) -> Result<RawSession> {
        let negotiated = login.run(&mut connection, STEP_MAX)?;
        AttackCounters::add(&self.sent.logins, 1);
        let seed = self.seed ^ u64::from(login.isid) << 32;
        Ok(RawSession::new(connection, negotiated, destination.login_target().1, seed))
    }

    /// Creates a session from the last Login Response.
    ///
    /// # Errors
    /// The login is not complete.
    pub fn log_in_by(
        &self,
        login: &LoginParameters,
        mut connection: TcpConnection,
        answer: &RawPdu,
        destination: Destination,
    ) -> Result<RawSession> {
        let negotiated = login.take_answer(&mut connection, answer)?;
        AttackCounters::add(&self.sent.logins, 1);
        Ok(RawSession::new(connection, negotiated, destination.login_target().1, self.seed))
    }

    /// Repeats `attempt` until it succeeds; `None`: the attack ended before that.
    pub fn retry<T>(&self, mut attempt: impl FnMut() -> Result<T>) -> Option<T> {
        while !self.is_over() {
            if let Ok(value) = attempt() {
                return Some(value);
            }
            std::thread::sleep(RETRY_PAUSE);
        }
        None
    }

    /// Runs `work` in this many threads at once, each with its number, until all return.
    pub fn in_threads(&self, count: usize, work: impl Fn(usize) + Sync) {
        std::thread::scope(|scope| {
            for number in 0..count {
                let work = &work;
                scope.spawn(move || work(number));
            }
        });
    }

    /// Counts the bytes and PDUs that a connection and its session have sent.
    pub fn count(&self, session: &mut RawSession) {
        AttackCounters::add(&self.sent.pdus, session.take_sent_pdus());
        AttackCounters::add(&self.sent.bytes, session.connection.take_sent_bytes());
    }
}
