//! Logins: unfinished, endless, failing, repeated, and far more sessions than are needed.

use crate::adversary::attack::Attack;
use crate::adversary::attacker::{AttackCounters, Attacker, Destination};
use crate::adversary::connection::TcpConnection;
use crate::adversary::held_connections::HeldConnections;
use crate::adversary::login::{CONTINUES, ChapCredential, LoginParameters};
use crate::adversary::session::{RawSession, flags};
use crate::adversary::{cdb, server};
use anyhow::Result;
use lunar_testkit::raw::{RawPdu, opcode};
use std::collections::{HashSet, VecDeque};
use std::time::{Duration, Instant};

/// Number of addresses over which failing logins are spread.
const HOSTS: usize = 8192;

/// Number of connections that log in again and again, number of hosts that they are spread over,
/// and number of their first initiator.
const CHURN_CONNECTIONS: usize = 64;
const CHURN_HOSTS: usize = 16;
const CHURN_NUMBER: usize = 10_000;

/// The attacks of this file.
pub const ATTACKS: &[Attack] = &[
    Attack::new("login-c-bit", 16_384, |attacker| continued(attacker, 16_384))
        .before_login()
        .fault(4)
        .summary("16,384 logins of 7 PDUs of 8 KiB with the C bit that never end"),
    Attack::new("login-c-bit-without-end", 64, endless_text)
        .before_login()
        .summary("64 logins with endless text, sent as fast as it is accepted"),
    Attack::new("login-without-end", 64, endless_negotiation).before_login().summary(
        "64 logins that stay in the operational stage and propose 8 KiB of keys in each request",
    ),
    Attack::new("login-pipelined", 256, pipelined)
        .before_login()
        .summary("256 logins that send 1,000 Login Requests at once and read no answer"),
    Attack::new("login-refused", 16, refused)
        .before_login()
        .summary("Logins to targets and sessions that do not exist, from 8,192 addresses"),
    Attack::new("chap-wrong-answers", 16, chap_wrong)
        .before_login()
        .summary("CHAP with wrong secrets, from 8,192 addresses"),
    Attack::new("chap-stalled", 4096, chap_stalled)
        .before_login()
        .summary("4,096 logins that stop after the CHAP challenge"),
    Attack::new("logout-and-zeroes", 2, logout_and_zeroes)
        .summary("Log in, log out, and send zeroes on the logged-out connection"),
    Attack::new("login-logout", 2, login_logout).summary("Log in and log out, as fast as possible"),
    Attack::new("login-logout-many-units", CHURN_CONNECTIONS, |attacker| {
        churn(attacker, Destination::Many)
    })
    .from_hosts(CHURN_HOSTS)
    .summary("16 hosts log in to a target of 256 logical units and log out, repeatedly"),
    Attack::new("chap-login-beside-4096", CHURN_CONNECTIONS, chap_beside_many)
        .from_hosts(CHURN_HOSTS)
        .summary("16 hosts log in with CHAP and log out, repeatedly, beside 4,096 such sessions"),
    Attack::new("reinstatement", 4, |attacker| reinstatement(attacker, false))
        .summary("The same initiator name and ISID logs in repeatedly (reinstatement)"),
    Attack::new("reinstatement-under-load", 4, |attacker| reinstatement(attacker, true))
        .summary("The same, each time with 64 READs of 8 MiB and 64 open WRITEs outstanding"),
    Attack::new("sessions-4096", 4096, many_sessions)
        .summary("4,096 idle sessions in full feature phase"),
    Attack::new("sessions-1024-unread", 1024, many_sessions_unread)
        .summary("1,024 sessions with 64 READs of 64 KiB each, answers unread"),
    Attack::new("connections-of-a-session", 8, connections_of_a_session)
        .summary("Sessions of 8 connections, one of which is silent and withholds a command"),
];

fn continued(attacker: &Attacker, count: usize) -> Result<()> {
    HeldConnections::new(count).from_hosts(4).hold(attacker, |number, connection| {
        let login = attacker.login(Destination::Shared, number);
        for part in 0..7 {
            let request = login.request(0x04 | CONTINUES, part, &[b'A'; 8192]);
            connection.queue(&request);
        }
        Ok(())
    })
}

/// Opens `count` connections and lets `step` act on each in turn; closed ones are opened again.
fn each(
    attacker: &Attacker,
    count: usize,
    mut step: impl FnMut(usize, &mut TcpConnection),
) -> Result<()> {
    let mut open: Vec<TcpConnection> = Vec::new();
    while !attacker.is_over() {
        open.retain(|connection| !connection.is_closed());
        while open.len() < count && !attacker.is_over() {
            let Ok(connection) = attacker.connect() else { break };
            open.push(connection);
        }
        for (number, connection) in open.iter_mut().enumerate() {
            step(number, connection);
            connection.send();
            AttackCounters::add(&attacker.sent.bytes, connection.take_sent_bytes());
        }
        attacker.pause(Duration::from_millis(1));
    }
    Ok(())
}

fn endless_text(attacker: &Attacker) -> Result<()> {
    each(attacker, 64, |number, connection| {
        while connection.receive().is_some() {}
        if connection.unsent_bytes() == 0 {
            let login = attacker.login(Destination::Shared, number);
            connection.queue(&login.request(0x04 | CONTINUES, 0, &[b'A'; 8192]));
        }
    })
}

fn endless_negotiation(attacker: &Attacker) -> Result<()> {
    let keys: String =
        (0..200).map(|number| format!("X-org.example.{number}={number:020}\0")).collect();
    let mut begun = HashSet::new();
    each(attacker, 64, |number, connection| {
        let login = attacker.login(Destination::Shared, number);
        if begun.insert(number) {
            connection.queue(&login.request(0x04, 0, login.names().as_bytes()));
        }
        match connection.receive() {
            Some(answer) => {
                let next = answer.u32_at(24).wrapping_add(1);
                connection.queue(&login.request(0x04, next, keys.as_bytes()));
            }
            None if connection.is_closed() => drop(begun.remove(&number)),
            None => {}
        }
    })
}

fn pipelined(attacker: &Attacker) -> Result<()> {
    HeldConnections::new(256).with_small_buffers().hold(attacker, |number, connection| {
        let login = attacker.login(Destination::Shared, number);
        connection.queue(&login.request(0x04, 0, login.names().as_bytes()));
        for part in 1..1000 {
            connection.queue(&login.request(0x04, part, b"HeaderDigest=None\0"));
        }
        Ok(())
    })
}

fn refused(attacker: &Attacker) -> Result<()> {
    attacker.in_threads(2, |thread| {
        for number in (thread..).step_by(2).take_while(|_| !attacker.is_over()) {
            let Ok(mut connection) = attacker.connect_from(number % HOSTS) else { continue };
            let mut login = attacker.login(Destination::Shared, number);
            if number % 4 < 2 {
                login.target = Some(format!("iqn.2026-11.org.lunarsan.test:{number:0190}"));
            } else {
                login.joins = (number as u16 | 1, 1);
            }
            // The server may delay the refusal; this connection does not wait for it.
            drop(login.run(&mut connection, Duration::from_millis(100)));
            AttackCounters::add(&attacker.sent.bytes, connection.take_sent_bytes());
        }
    });
    Ok(())
}

fn chap_wrong(attacker: &Attacker) -> Result<()> {
    attacker.in_threads(2, |thread| {
        for number in (thread..).step_by(2).take_while(|_| !attacker.is_over()) {
            let Ok(mut connection) = attacker.connect_from(number % HOSTS) else { continue };
            let wrong = ChapCredential { secret: "not-the-secret-1", ..server::CREDENTIAL };
            let login = LoginParameters {
                credential: Some(wrong),
                ..attacker.login(Destination::Chap, number)
            };
            // The server may delay the refusal; this connection does not wait for it.
            drop(login.run(&mut connection, Duration::from_millis(100)));
            AttackCounters::add(&attacker.sent.bytes, connection.take_sent_bytes());
        }
    });
    Ok(())
}

fn chap_stalled(attacker: &Attacker) -> Result<()> {
    HeldConnections::new(4096).from_hosts(16).hold(attacker, |number, connection| {
        let login = attacker.login(Destination::Chap, number);
        let names = format!("{}AuthMethod=CHAP\0", login.names());
        connection.queue(&login.request(0, 0, names.as_bytes()));
        connection.queue(&login.request(0, 1, b"CHAP_A=7\0"));
        Ok(())
    })
}

/// Sends zeroes after a logout: bytes without meaning, which the server still has to read.
fn logout_and_zeroes(attacker: &Attacker) -> Result<()> {
    let zeroes = vec![0; 1 << 20];
    attacker.in_threads(2, |thread| {
        for number in (thread..).step_by(2).take_while(|_| !attacker.is_over()) {
            let Ok(mut session) = attacker.log_in(Destination::Own, number % 8) else { continue };
            let logout = session.immediate_request(opcode::LOGOUT, 0x80).put(8, &[0; 8]);
            session.queue(&logout);
            while !session.connection.is_closed() && !attacker.is_over() {
                if session.connection.unsent_bytes() == 0 {
                    session.connection.queue_bytes(&zeroes);
                }
                session.connection.send();
            }
            attacker.count(&mut session);
        }
    });
    Ok(())
}

/// Opens connections of [`CHURN_HOSTS`] that log in, log out and close, as fast as possible.
fn churn(attacker: &Attacker, destination: Destination) -> Result<()> {
    attacker.in_threads(2, |thread| {
        let numbers = (thread..CHURN_CONNECTIONS).step_by(2);
        let begin = |number| LoginLoop::new(attacker, destination, number);
        let mut churning: Vec<LoginLoop> = numbers.map(begin).collect();
        while !attacker.is_over() {
            let progress = churning.iter_mut().fold(false, |any, one| any | one.step(attacker));
            if !progress {
                attacker.pause(Duration::from_micros(200));
            }
        }
    });
    Ok(())
}

/// A connection that logs in and out again and again.
struct LoginLoop {
    host: usize,
    destination: Destination,
    login: LoginParameters,
    /// A login under way, and how many of its requests were sent.
    connection: Option<(TcpConnection, usize)>,
    session: Option<RawSession>,
}

impl LoginLoop {
    fn new(attacker: &Attacker, destination: Destination, number: usize) -> Self {
        let login = attacker.login(destination, CHURN_NUMBER + number);
        let host = 1 + number % CHURN_HOSTS;
        Self { host, destination, login, connection: None, session: None }
    }

    /// Makes as much progress as is possible without waiting; returns whether there was any.
    fn step(&mut self, attacker: &Attacker) -> bool {
        if let Some(session) = &mut self.session {
            session.connection.send();
            let is_over = session.receive().is_some() || session.connection.is_closed();
            if is_over {
                attacker.count(session);
                self.session = None;
            }
            return is_over;
        }
        let Some((mut connection, sent)) = self.connection.take() else {
            let connection = attacker.connect_from(self.host);
            return connection.is_ok_and(|connection| self.go_on(attacker, connection, 0, None));
        };
        connection.send();
        match connection.receive() {
            Some(answer) => self.go_on(attacker, connection, sent, Some(&answer)),
            None if connection.is_closed() => true,
            None => {
                self.connection = Some((connection, sent));
                false
            }
        }
    }

    /// Sends the next request of the login, or logs out of the session that the login established.
    fn go_on(
        &mut self,
        attacker: &Attacker,
        mut connection: TcpConnection,
        sent: usize,
        answer: Option<&RawPdu>,
    ) -> bool {
        match (self.login.request_at(sent, answer), answer) {
            (Ok(Some(request)), _) => {
                connection.queue(&request);
                connection.send();
                self.connection = Some((connection, sent + 1));
            }
            (Ok(None), Some(answer)) => {
                let session = attacker.log_in_by(&self.login, connection, answer, self.destination);
                self.session = session.ok();
                if let Some(session) = &mut self.session {
                    let logout = session.immediate_request(opcode::LOGOUT, 0x80);
                    session.queue(&logout.put(8, &[0; 8]));
                    session.connection.send();
                }
            }
            _ => {} // refused: try again
        }
        true
    }
}

fn chap_beside_many(attacker: &Attacker) -> Result<()> {
    let mut held = Vec::new();
    while held.len() < 4096 && !attacker.is_over() {
        let host = 1 + held.len() % CHURN_HOSTS;
        let login = attacker.login(Destination::Chap, held.len());
        let Ok(connection) = attacker.connect_from(host) else { continue };
        held.extend(attacker.log_in_over(connection, &login, Destination::Chap));
    }
    churn(attacker, Destination::Chap)
}

fn login_logout(attacker: &Attacker) -> Result<()> {
    attacker.in_threads(2, |thread| {
        while !attacker.is_over() {
            let Ok(mut session) = attacker.log_in(Destination::Shared, thread) else { continue };
            let logout = session.immediate_request(opcode::LOGOUT, 0x80).put(8, &[0; 8]);
            session.queue(&logout);
            session.wait(Instant::now() + Duration::from_secs(1));
            attacker.count(&mut session);
        }
    });
    Ok(())
}

fn reinstatement(attacker: &Attacker, with_load: bool) -> Result<()> {
    attacker.in_threads(2, |_| {
        // The old connections stay open until the server closes them, or for a while.
        let mut old = VecDeque::new();
        while !attacker.is_over() {
            let Ok(mut session) = attacker.log_in(Destination::Neighbour, 0) else { continue };
            if with_load {
                load(&mut session);
                session.connection.send_all(Duration::from_millis(20));
            }
            attacker.count(&mut session);
            old.push_back(session);
            if old.len() > 8 {
                old.pop_front();
            }
        }
    });
    Ok(())
}

fn load(session: &mut RawSession) {
    for number in 0..64 {
        let lba = number % 8 * 16_384;
        let read = session.command(flags::SIMPLE | flags::READ, &cdb::read(lba, 16_384), 8 << 20);
        session.queue(&read);
        let cdb = cdb::write(lba, 16_384);
        let write = session.command(flags::SIMPLE | flags::WRITE, &cdb, 8 << 20);
        session.queue(&write);
    }
}

fn many_sessions(attacker: &Attacker) -> Result<()> {
    hold_sessions(attacker, 4096, |_| {})
}

fn many_sessions_unread(attacker: &Attacker) -> Result<()> {
    hold_sessions(attacker, 1024, |session| {
        for _ in 0..64 {
            let cdb = cdb::read(0, 128);
            let command = session.command(flags::SIMPLE | flags::READ, &cdb, 65_536);
            session.queue(&command);
        }
    })
}

/// Logs in until there are `count` sessions, and holds them.
fn hold_sessions(
    attacker: &Attacker,
    count: usize,
    begin: impl Fn(&mut RawSession) + Sync,
) -> Result<()> {
    attacker.in_threads(2, |thread| {
        let mut sessions: Vec<RawSession> = Vec::new();
        while !attacker.is_over() {
            if sessions.len() >= count / 2 {
                attacker.pause(Duration::from_millis(20));
                for session in &mut sessions {
                    session.connection.send();
                }
                continue;
            }
            let number = sessions.len() * 2 + thread;
            let Ok(mut session) = attacker.log_in(Destination::Neighbour, number) else {
                attacker.pause(Duration::from_millis(5));
                continue;
            };
            begin(&mut session);
            session.connection.send();
            attacker.count(&mut session);
            sessions.push(session);
        }
    });
    Ok(())
}

fn connections_of_a_session(attacker: &Attacker) -> Result<()> {
    for round in 0.. {
        let login = attacker.login(Destination::Shared, round);
        let Some(first) = attacker.retry(|| attacker.log_in_as(&login, Destination::Shared)) else {
            break;
        };
        let tsih = first.negotiated.tsih;
        let mut cmd_sn = first.cmd_sn;
        let mut connections = vec![first];
        for cid in 1..8 {
            let login = LoginParameters { joins: (tsih, cid), ..login.clone() };
            connections.extend(attacker.log_in_as(&login, Destination::Shared).ok());
        }
        // The first connection never sends one command; the others send the commands that follow
        // it.
        for _ in 0..64 {
            for session in connections.iter_mut().skip(1) {
                cmd_sn = cmd_sn.wrapping_add(1);
                session.cmd_sn = cmd_sn;
                let lba = u64::from(server::SHARED_LBA);
                let write = cdb::write(lba, 128);
                let command = session.command(flags::SIMPLE | flags::WRITE, &write, 65_536);
                session.queue(&command.with_data(vec![0; 65_536]));
            }
        }
        let until = Instant::now() + Duration::from_secs(1);
        while Instant::now() < until && !attacker.is_over() {
            for session in &mut connections {
                session.connection.send();
                while session.receive().is_some() {}
                attacker.count(session);
            }
            attacker.pause(Duration::from_millis(5));
        }
        if attacker.is_over() {
            break;
        }
    }
    Ok(())
}
