//! Reinstatement: fate of a session whose initiator logs in again while its connection still
//! stands.

use crate::cuts::load::DISK_BLOCKS;
use crate::cuts::peers::{Keys, Peer};
use crate::targets::TargetKind;
use anyhow::{Result, ensure};
use lunar_testkit::raw::{RawAnswer, RawClient};
use std::time::Duration;

/// WRITE (10) of two blocks at 0.
const WRITE: [u8; 10] = [0x2a, 0, 0, 0, 0, 0, 0, 0, 2, 0];
const BYTES: usize = 1024;
/// Offsets at which the first connection stops in its write: after its header, and in its data.
const STOPS: [usize; 3] = [48, 148, 560];

/// Sends half of a write, logs in again as the same initiator under the same ISID, writes there,
/// then sends the other half of the first write; returns the content of the disk.
fn late_half(peer: &Peer, stop: usize) -> Result<u8> {
    let mut old = RawClient::log_in_as(peer.address(), peer.target(), 1)?;
    old.lun[1] = peer.lun as u8;
    old.execute(&[0; 6], 0)?;
    let write = old.command(0xa1, &WRITE, BYTES as u32).with_data(vec![1; BYTES]).bytes();
    old.send_bytes(&write[..stop])?;
    let mut new = RawClient::log_in_as(peer.address(), peer.target(), 1)?;
    new.lun[1] = peer.lun as u8;
    new.execute(&[0; 6], 0)?;
    new.write_blocks(0, &[2; BYTES])?;
    if old.send_bytes(&write[stop..]).is_ok() {
        // A response or the end of the connection shows that the target has received the rest.
        let answer = old.answer(Duration::from_secs(10));
        ensure!(!matches!(answer, Ok(RawAnswer::TimedOut)), "neither answered nor closed");
    }
    Ok(new.read_block(0)?[0])
}

/// Goal: a login replaces the session before it (RFC 7143 §6.3.5): data that arrives late on a
/// connection of the old session changes nothing.
#[test]
fn our_target_ends_the_old_session() -> Result<()> {
    let peer = Peer::start(TargetKind::Own, Keys::of(0), DISK_BLOCKS, 1)?;
    for stop in STOPS {
        ensure!(late_half(&peer, stop)? == 2, "stopped at {stop}: the late write was executed");
    }
    peer.check_no_sessions()
}

/// Goal: tgt does not end the old session, so an initiator cannot keep late packets from
/// overwriting the data that it wrote again. If this test fails, tgt was fixed: let its connections
/// linger in the scenes.
#[test]
fn tgt_does_not_end_the_old_session() -> Result<()> {
    let peer = Peer::start(TargetKind::Tgt, Keys::of(0), DISK_BLOCKS, 1)?;
    for stop in STOPS {
        ensure!(late_half(&peer, stop)? == 1, "stopped at {stop}: the late write had no effect");
    }
    peer.check_no_sessions()
}
