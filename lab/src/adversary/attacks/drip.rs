//! Bytes that arrive one by one, and windows that are kept closed, so that no PDU ever completes
//! soon.

use crate::adversary::attack::Attack;
use crate::adversary::attacker::{Attacker, Destination};
use crate::adversary::cdb;
use crate::adversary::flood::Flood;
use crate::adversary::held_connections::HeldConnections;
use crate::adversary::session::{RawSession, flags};
use anyhow::Result;
use lunar_testkit::raw::opcode;
use std::time::Duration;

/// The attacks of this file.
pub const ATTACKS: &[Attack] = &[
    Attack::new("login-by-bytes", 1024, login_by_bytes)
        .before_login()
        .summary("1,024 logins that send one byte every 10 ms"),
    Attack::new("commands-by-bytes", 64, commands_by_bytes)
        .summary("64 sessions that send commands and data one byte at a time"),
    Attack::new("data-out-of-1-byte", 4, |attacker| data_out_pieces(attacker, 1))
        .summary("R2Ts are answered by Data-Out PDUs of one byte each"),
    Attack::new("data-out-of-0-bytes", 4, |attacker| data_out_pieces(attacker, 0))
        .summary("R2Ts are answered by endless Data-Out PDUs without data"),
    Attack::new("answers-by-bytes", 16, answers_by_bytes)
        .summary("16 sessions read the answers to READs of 8 MiB a few bytes at a time"),
    Attack::new("write-1k-a-second", 16, slow_writes)
        .summary("16 sessions: 128 WRITEs of 8 MiB to the shared LUN, data sent at 1 KiB/s"),
];

fn login_by_bytes(attacker: &Attacker) -> Result<()> {
    HeldConnections::new(1024).dripping(Duration::from_millis(10)).hold(
        attacker,
        |number, connection| {
            let login = attacker.login(Destination::Shared, number);
            connection.queue(&login.request(0x87, 0, login.names().as_bytes()));
            Ok(())
        },
    )
}

fn commands_by_bytes(attacker: &Attacker) -> Result<()> {
    let mut sessions: Vec<RawSession> = Vec::new();
    while !attacker.is_over() {
        sessions.retain(|session| !session.connection.is_closed());
        while sessions.len() < 64 && !attacker.is_over() {
            let Ok(session) = attacker.log_in(Destination::Shared, sessions.len()) else { break };
            sessions.push(session);
        }
        for session in &mut sessions {
            if session.connection.unsent_bytes() == 0 {
                let lba = u64::from(crate::adversary::server::SHARED_LBA);
                let write = cdb::write(lba, 8);
                let command = session.command(flags::SIMPLE | flags::WRITE, &write, 4096);
                session.queue(&command.with_data(vec![0; 4096]));
            }
            session.connection.send_at_most(1);
            while session.receive().is_some() {}
            attacker.count(session);
        }
        attacker.pause(Duration::from_millis(1));
    }
    Ok(())
}

/// Answers each R2T in pieces of this size; pieces of zero bytes never complete the transfer.
fn data_out_pieces(attacker: &Attacker, piece: usize) -> Result<()> {
    const BYTES: u32 = 65_536;
    let mut transfers = std::collections::HashMap::new();
    let transfers = std::cell::RefCell::new(&mut transfers);
    Flood::new(4, Destination::Neighbour).reading(
        attacker,
        |session| {
            let mut transfers = transfers.borrow_mut();
            let id = session.negotiated.tsih;
            let Some((tag, transfer_tag, offset, end, number)) = transfers.get_mut(&id) else {
                let cdb = cdb::write(0, BYTES / 512);
                let command = session.command(flags::SIMPLE | flags::WRITE, &cdb, BYTES);
                transfers.insert(id, (command.u32_at(16), 0, 0, 0, 0_u32));
                return session.queue(&command);
            };
            if *offset >= *end {
                return;
            }
            let is_final = *offset + piece as u32 >= *end;
            let data_out = session.data_out(*tag, *transfer_tag, *offset, is_final);
            let data_out = data_out.put_u32(36, *number).with_data(vec![7; piece]);
            *offset += piece as u32;
            *number += 1;
            session.queue(&data_out);
        },
        |session, pdu| {
            let mut transfers = transfers.borrow_mut();
            let id = session.negotiated.tsih;
            let (begin, length) = (pdu.u32_at(40), pdu.u32_at(44));
            match pdu.opcode() {
                opcode::R2T => {
                    let tags = (pdu.u32_at(16), pdu.u32_at(20));
                    transfers.insert(id, (tags.0, tags.1, begin, begin + length, 0));
                }
                opcode::SCSI_RESPONSE => drop(transfers.remove(&id)),
                _ => {}
            }
        },
    )
}

fn answers_by_bytes(attacker: &Attacker) -> Result<()> {
    let mut sessions: Vec<RawSession> = Vec::new();
    while !attacker.is_over() {
        sessions.retain(|session| !session.connection.is_closed());
        while sessions.len() < 16 && !attacker.is_over() {
            let connect = || -> Result<RawSession> {
                let connection = attacker.connect_small()?;
                let login = attacker.login(Destination::Shared, sessions.len());
                attacker.log_in_over(connection, &login, Destination::Shared)
            };
            let Ok(mut session) = connect() else { break };
            for _ in 0..64 {
                let cdb = cdb::read(0, 16_384);
                let command = session.command(flags::SIMPLE | flags::READ, &cdb, 8 << 20);
                session.queue(&command);
            }
            sessions.push(session);
        }
        for session in &mut sessions {
            session.connection.send();
            session.connection.discard(8);
            attacker.count(session);
        }
        attacker.pause(Duration::from_millis(1));
    }
    Ok(())
}

fn slow_writes(attacker: &Attacker) -> Result<()> {
    // 1 KiB a second for each of 16 sessions, in pieces of 512 bytes.
    let flood = Flood::new(16, Destination::Shared).paced(Duration::from_millis(500));
    let mut asked: std::collections::HashMap<u16, (u32, u32, u32, u32)> = Default::default();
    let asked = std::cell::RefCell::new(&mut asked);
    flood.reading(
        attacker,
        |session| {
            let lba = u64::from(crate::adversary::server::SHARED_LBA);
            let cdb = cdb::write(lba, 16_384);
            let command = session.command(flags::SIMPLE | flags::WRITE, &cdb, 8 << 20);
            session.queue(&command);
            let mut asked = asked.borrow_mut();
            if let Some((tag, transfer_tag, offset, number)) =
                asked.get_mut(&session.negotiated.tsih)
            {
                let data_out = session.data_out(*tag, *transfer_tag, *offset, false);
                let data_out = data_out.put_u32(36, *number).with_data(vec![0; 512]);
                *offset += 512;
                *number += 1;
                session.queue(&data_out);
            }
        },
        |session, pdu| {
            if pdu.opcode() == opcode::R2T {
                let first = (pdu.u32_at(16), pdu.u32_at(20), pdu.u32_at(40), 0);
                asked.borrow_mut().entry(session.negotiated.tsih).or_insert(first);
            }
        },
    )
}
