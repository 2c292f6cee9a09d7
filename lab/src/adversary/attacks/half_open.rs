//! Connections that never become sessions: idle, cut off within a header, or gone at once.

use crate::adversary::attack::Attack;
use crate::adversary::attacker::{AttackCounters, Attacker, Destination};
use crate::adversary::held_connections::HeldConnections;
use crate::adversary::session::flags;
use crate::adversary::{cdb, connection::TcpConnection};
use anyhow::Result;
use lunar_testkit::raw::opcode;
use std::time::Duration;

/// The attacks of this file.
pub const ATTACKS: &[Attack] = &[
    Attack::new("idle-connections", 8192, |attacker| idle(attacker, 8192, 1))
        .before_login()
        .fault(5)
        .limits("connections = 4096")
        .summary("8,192 connections from one address that send nothing; the limit is 4,096"),
    Attack::new("idle-connections-64-hosts", 16_384, |attacker| idle(attacker, 17_000, 64))
        .before_login()
        .fault(5)
        .summary("17,000 connections from 64 addresses that send nothing; the limit is 16,384"),
    Attack::new("idle-connections-few-files", 1100, |attacker| {
        HeldConnections::new(1100).hold(attacker, |_, _| Ok(()))
    })
    .before_login()
    .fault(5)
    .descriptors(1024)
    .summary("1,100 idle connections to a server with a limit of 1,024 open files"),
    Attack::new("header-47-bytes", 4096, |attacker| prefix(attacker, 47, |_| {}))
        .before_login()
        .summary("4,096 connections that send 47 of the 48 bytes of a header"),
    Attack::new("login-ahs-announced", 4096, |attacker| {
        prefix(attacker, 48, |bytes| bytes[4] = 255)
    })
    .before_login()
    .summary(
        "4,096 Login Requests that announce 1,020 bytes of header segments and never send them",
    ),
    Attack::new("login-16m-announced", 4096, |attacker| prefix(attacker, 48, announce_16m))
        .before_login()
        .summary("4,096 Login Requests that announce 16 MiB of text"),
    Attack::new("login-8k-announced", 4096, |attacker| prefix(attacker, 48, announce_8k))
        .before_login()
        .summary("4,096 Login Requests that announce 8 KiB of text and never send it"),
    Attack::new("session-16m-announced", 512, |attacker| in_session(attacker, 0x00ff_ffff))
        .summary("512 sessions: a command that announces 16 MiB of immediate data"),
    Attack::new("session-256k-announced", 512, |attacker| in_session(attacker, 262_144))
        .summary("512 sessions: a command whose 256 KiB of immediate data are never sent"),
    Attack::new("connect-and-reset", 16, connect_and_reset)
        .before_login()
        .summary("Connections that are reset immediately, as fast as possible, from 16 addresses"),
    Attack::new("garbage", 64, garbage)
        .before_login()
        .summary("Random bytes, zeros and HTTP instead of a login"),
];

fn idle(attacker: &Attacker, count: usize, hosts: usize) -> Result<()> {
    HeldConnections::new(count).from_hosts(hosts).hold(attacker, |_, _| Ok(()))
}

fn announce_16m(header: &mut [u8]) {
    header[5..8].copy_from_slice(&[0xff; 3]);
}

fn announce_8k(header: &mut [u8]) {
    header[5..8].copy_from_slice(&[0, 0x20, 0]);
}

/// Opens connections that send the first bytes of a Login Request with changed lengths.
fn prefix(attacker: &Attacker, bytes: usize, change: fn(&mut [u8])) -> Result<()> {
    HeldConnections::new(4096).hold(attacker, |number, connection| {
        let mut header = attacker.login(Destination::Shared, number).request(0x87, 0, b"").bytes();
        change(&mut header);
        connection.queue_bytes(&header[..bytes]);
        Ok(())
    })
}

/// Opens sessions that send the header of a WRITE that announces this much immediate data.
fn in_session(attacker: &Attacker, bytes: u32) -> Result<()> {
    let mut sessions = Vec::new();
    for number in 0.. {
        if attacker.is_over() {
            break;
        }
        if sessions.len() == 512 {
            attacker.wait_until_over();
            break;
        }
        let Ok(mut session) = attacker.log_in(Destination::Neighbour, number) else {
            attacker.pause(Duration::from_millis(5));
            continue;
        };
        let command = session.command(flags::SIMPLE | flags::WRITE, &cdb::write(0, 512), 262_144);
        let mut header = command.bytes();
        header[5..8].copy_from_slice(&bytes.to_be_bytes()[1..]);
        session.connection.queue_bytes(&header);
        session.connection.send();
        attacker.count(&mut session);
        sessions.push(session);
    }
    Ok(())
}

fn connect_and_reset(attacker: &Attacker) -> Result<()> {
    attacker.in_threads(2, |thread| {
        for number in (thread..).step_by(2).take_while(|_| !attacker.is_over()) {
            // A refused connection serves this attack as well as an accepted one.
            drop(attacker.connect_from(number % 16));
        }
    });
    Ok(())
}

fn garbage(attacker: &Attacker) -> Result<()> {
    let mut random = crate::random::Random::new(attacker.seed);
    let mut open: Vec<TcpConnection> = Vec::new();
    while !attacker.is_over() {
        let Ok(mut connection) = attacker.connect() else { continue };
        match random.below(4) {
            0 => connection.queue_bytes(&b"GET / HTTP/1.1\r\nHost: x\r\n\r\n".repeat(8)),
            1 => connection.queue_bytes(&[0; 4096]),
            2 => {
                let mut bytes = vec![0x40 | opcode::LOGIN; 48];
                bytes.extend(crate::random::pattern(random.next_u64(), 8192));
                connection.queue_bytes(&bytes);
            }
            _ => connection.queue_bytes(&crate::random::pattern(random.next_u64(), 4096)),
        }
        connection.send();
        AttackCounters::add(&attacker.sent.bytes, connection.take_sent_bytes());
        open.push(connection);
        if open.len() > 64 {
            open.remove(0);
        }
    }
    Ok(())
}
