//! Tests that memory for connections and commands is counted, released, and limited, whichever peer
//! causes it.

use crate::common::*;
use lunar_block::{BufferPool, MemoryBudget, MemoryKind};
use lunar_testkit::raw::{RawClient, RawPdu, opcode};
use std::time::Duration;

const MIB: usize = 1 << 20;
/// Number of commands in progress that a session has in addition to a WRITE.
const COMMANDS: usize = 127;
/// Minimum charge of a connection.
const CONNECTION_BYTES: usize = 16 << 10;
/// A command with the task attribute ORDERED, RFC 7143 §11.3.1, and no data.
const ORDERED: u8 = 0x82;

fn used(rig: &Rig, kind: MemoryKind) -> usize {
    rig.server().buffers().budget().usage().by_kind[kind as usize]
}

fn rig() -> Rig {
    Rig::with(|options| options.buffers = BufferPool::with_budget(&MemoryBudget::new(64 * MIB)))
}

/// Sends a WRITE that waits for its data, and ORDERED commands that wait for the WRITE.
fn be_busy(raw: &mut RawClient) -> anyhow::Result<()> {
    let write = raw.command(0xa1, &ten(0x2a, 0, 1), 512);
    raw.send(&write)?;
    for _ in 0..COMMANDS {
        let ready = raw.command(ORDERED, &[0; 6], 0);
        raw.send(&ready)?;
    }
    Ok(())
}

/// Goal: waiting commands are counted, and their memory is released when they have ended. Named by:
/// 798 sessions with 127 ORDERED commands each, behind a WRITE whose data never came, took 512 MiB
/// that was not counted; sessions that had ended such commands kept 131 kB each.
#[test]
fn waiting_commands_are_charged_and_released() {
    let rig = rig();
    let mut raw = rig.log_in(1);
    let before = used(&rig, MemoryKind::Session);
    be_busy(&mut raw).unwrap();
    let bytes_min = COMMANDS * 1024;
    rig.wait_for("they are counted", |_| used(&rig, MemoryKind::Session) > before + bytes_min);
    let r2t = raw.expect(opcode::R2T).unwrap();
    let data = RawPdu::new(opcode::DATA_OUT, 0x80)
        .put_u32(16, r2t.u32_at(16))
        .put_u32(20, r2t.u32_at(20))
        .with_data(vec![1; 512]);
    raw.send(&data).unwrap();
    for _ in 0..=COMMANDS {
        let response = raw.expect(opcode::SCSI_RESPONSE).unwrap();
        assert_eq!(response.header[3], 0, "GOOD");
    }
    rig.wait_for("they are given back", |_| used(&rig, MemoryKind::Session) <= before + (12 << 10));
    log_out(raw);
    rig.stop_cleanly();
}

/// Goal: announced data takes no memory before it arrives. Fault: the header of a NOP-Out with
/// 256 KiB of data took that much at once; 1,000 of them stopped all other initiators.
#[test]
fn announced_data_takes_memory_as_it_arrives() {
    const PING_BYTES: usize = 256 << 10;
    let rig = rig();
    let mut raw = rig.log_in(1);
    let ping = RawPdu::new(opcode::NOP_OUT, 0x80)
        .put_u32(16, 0x1000_0000)
        .put_u32(20, u32::MAX)
        .put_u32(24, raw.cmd_sn)
        .with_data(vec![7; PING_BYTES]);
    let bytes = ping.bytes();
    let (first, rest) = bytes.split_at(48 + 1000);
    raw.send_bytes(first).unwrap();
    rig.wait_for("some has come", |_| used(&rig, MemoryKind::Control) > 0);
    assert!(used(&rig, MemoryKind::Control) <= 8 << 10);
    raw.send_bytes(rest).unwrap();
    let echo = raw.expect(opcode::NOP_IN).unwrap();
    assert!(!echo.data.is_empty() && echo.data.iter().all(|byte| *byte == 7));
    log_out(raw);
    rig.stop_cleanly();
}

/// Goal: when one initiator's commands take all memory, its own connections are dropped, and
/// another initiator continues.
#[test]
fn an_initiator_that_takes_all_memory_is_disconnected() {
    const SESSIONS: usize = 250;
    let rig = rig();
    let mut other = connect_from("127.0.0.2", &rig.address);
    assert_eq!(join(&mut other, 1, 0, 1).0, 0);
    let mut held = Vec::new();
    for number in 0..SESSIONS as u32 {
        let mut raw = RawClient::connect(&rig.address).unwrap();
        if join(&mut raw, 2 + number, 0, 1).0 != 0 {
            continue;
        }
        // Any of the connections may be dropped meanwhile.
        if raw.execute(&[0; 6], 0).is_ok() && be_busy(&mut raw).is_ok() {
            held.push(raw);
        }
        other.read_block(number % 64).unwrap();
        assert!(rig.server().buffers().budget().usage().used_bytes <= 64 * MIB);
    }
    assert!(rig.sessions() < SESSIONS - 50, "{} sessions", rig.sessions());
    drop(held);
    rig.wait_for("they are gone", |rig| rig.sessions() == 1);
    other.read_block(0).unwrap();
    rig.wait_for("their memory is back", |rig| used(rig, MemoryKind::Session) < MIB);
    log_out(other);
    assert_eq!(rig.stop(Duration::from_secs(5)), 0);
}

/// Goal: a session is charged for the units that it sees, and refused when there is no memory for
/// them. Fault: 2,322 idle sessions of a target with 256 LUNs took 512 MiB although each was
/// charged 16 KiB.
#[test]
fn a_session_is_charged_for_its_units() {
    let rig = rig();
    let of_connection = |used: usize| used.checked_sub(CONNECTION_BYTES);
    let raw = rig.log_in(1);
    assert!(of_connection(used(&rig, MemoryKind::Session)).is_some_and(|bytes| bytes >= 1024));
    let taken = rig.server().buffers().take(62 * MIB);
    let mut other = connect_from("127.0.0.2", &rig.address);
    const OUT_OF_RESOURCES: u16 = 0x0302;
    assert_eq!(join(&mut other, 2, 0, 1).0, OUT_OF_RESOURCES);
    drop(taken);
    let mut other = connect_from("127.0.0.2", &rig.address);
    assert_eq!(join(&mut other, 2, 0, 1).0, 0);
    log_out(other);
    log_out(raw);
    rig.wait_for("they are gone", |rig| rig.sessions() == 0);
    rig.wait_for("nothing is charged", |_| used(&rig, MemoryKind::Session) == 0);
    rig.stop_cleanly();
}
