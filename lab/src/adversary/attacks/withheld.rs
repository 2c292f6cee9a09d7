//! Data that was announced and never arrives, or arrives and is never released: buffers and task
//! set entries stay in use.

use crate::adversary::attack::Attack;
use crate::adversary::attacker::{Attacker, Destination};
use crate::adversary::cdb::{self, CdbBytes, cdb};
use crate::adversary::flood::Flood;
use crate::adversary::server::SHARED_LBA;
use crate::adversary::session::{RawSession, flags};
use anyhow::Result;
use lunar_testkit::raw::{RawPdu, opcode};
use std::time::{Duration, Instant};

/// Number of blocks in 8 MiB.
const BLOCKS_8M: u32 = (8 << 20) / 512;
const BYTES_8M: u32 = 8 << 20;

/// The attacks of this file.
pub const ATTACKS: &[Attack] = &[
    Attack::new("write-withheld-ordered", 2, |attacker| {
        ordered_behind(attacker, write_of_a_block())
    })
    .fault(2)
    .summary("A WRITE to the shared LUN without its data, then ORDERED commands"),
    Attack::new("reserve-out-withheld", 2, |attacker| ordered_behind(attacker, reserve_out()))
        .fault(2)
        .summary("PERSISTENT RESERVE OUT without its 24 bytes, then ORDERED commands"),
    Attack::new("write-withheld-same-session", 1, same_session)
        .fault(2)
        .summary("A WRITE without its data, then ORDERED and HEAD OF QUEUE in its session"),
    Attack::new("write-withheld-foreign-blocks", 1, foreign_blocks)
        .summary("WRITEs without their data to the blocks of the well-behaved client"),
    Attack::new("write-withheld-overlap", 1, overlap)
        .summary("128 WRITEs without their data to one block of the shared LUN, and READs of it"),
    Attack::new("writes-8m-deep", 1, |attacker| whole_writes(attacker, 1, Destination::Slow))
        .fault(3)
        .on_a_slow_disk()
        .summary("Complete WRITEs of 8 MiB at depth 128 to a slow disk"),
    Attack::new("writes-8m-aborted", 4, aborted_writes)
        .on_a_slow_disk()
        .summary("Complete WRITEs of 8 MiB to a slow disk, then LUN RESET, repeatedly"),
    Attack::new("writes-8m-deep-16-sessions", 16, |attacker| {
        whole_writes(attacker, 16, Destination::Neighbour)
    })
    .fault(3)
    .summary("16 sessions: complete WRITEs of 8 MiB at depth 128 to a fast disk"),
    Attack::new("writes-8m-same-blocks", 4, same_blocks)
        .fault(3)
        .summary("4 sessions: complete WRITEs of 8 MiB to the same blocks at depth 128"),
    Attack::new("writes-all-but-the-last", 16, all_but_the_last)
        .fault(3)
        .summary("16 sessions: WRITEs of 8 MiB at depth 128, all data but the last PDU"),
    Attack::new("writes-half-then-reset", 8, half_then_reset).summary(
        "WRITEs of 8 MiB with half of their data, then the connection is reset, repeatedly",
    ),
    Attack::new("write-wrong-lengths", 4, wrong_lengths)
        .summary("WRITEs whose ExpectedDataTransferLength is 0, 1, too small, or 4 GiB"),
    Attack::new("r2t-per-512-bytes", 4, short_bursts)
        .summary("WRITEs of 8 MiB with MaxBurstLength 512: an R2T for each 512 bytes"),
    Attack::new("parameter-lists-withheld", 8, parameter_lists).summary(
        "8 sessions: 128 MODE SELECT, UNMAP, EXTENDED COPY … without their parameter lists",
    ),
    Attack::new("unsolicited-withheld", 16, unsolicited_withheld)
        .summary("16 sessions: immediate data of 64 KiB and no further data, at depth 128"),
];

fn write_of_a_block() -> (CdbBytes, u32) {
    (cdb::write(u64::from(SHARED_LBA), 1), 512)
}

fn reserve_out() -> (CdbBytes, u32) {
    (cdb::reserve_out(0, 0), 24)
}

/// Builds a WRITE of 8 MiB to a random address of the neighbour's LUN.
fn random_write(session: &mut RawSession) -> RawPdu {
    let lba = session.random.below(8) * u64::from(BLOCKS_8M);
    session.command(flags::SIMPLE | flags::WRITE, &cdb::write(lba, BLOCKS_8M), BYTES_8M)
}

/// Begins a command in one session and withholds its data; another session sends ORDERED commands.
fn ordered_behind(attacker: &Attacker, (cdb, bytes): (CdbBytes, u32)) -> Result<()> {
    while !attacker.is_over() {
        let log_in = |number| attacker.retry(|| attacker.log_in(Destination::Shared, number));
        let (Some(mut holder), Some(mut second)) = (log_in(0), log_in(1)) else { return Ok(()) };
        clear_unit_attentions(&mut holder);
        clear_unit_attentions(&mut second);
        let command = holder.command(flags::SIMPLE | flags::WRITE, &cdb, bytes);
        holder.queue(&command);
        until_closed(attacker, &mut [&mut holder, &mut second], |sessions| {
            let session = &mut sessions[1];
            let ready = session.command(flags::ORDERED, &cdb::TEST_UNIT_READY, 0);
            session.queue(&ready);
        });
    }
    Ok(())
}

fn same_session(attacker: &Attacker) -> Result<()> {
    while let Some(mut session) = attacker.retry(|| attacker.log_in(Destination::Shared, 0)) {
        clear_unit_attentions(&mut session);
        let (cdb, bytes) = write_of_a_block();
        let command = session.command(flags::SIMPLE | flags::WRITE, &cdb, bytes);
        session.queue(&command);
        let mut kinds = [flags::ORDERED, flags::HEAD_OF_QUEUE].into_iter().cycle();
        until_closed(attacker, &mut [&mut session], |sessions| {
            let kind = kinds.next().unwrap_or(flags::ORDERED);
            let command = sessions[0].command(kind, &cdb::TEST_UNIT_READY, 0);
            sessions[0].queue(&command);
        });
    }
    Ok(())
}

fn overlap(attacker: &Attacker) -> Result<()> {
    while let Some(mut session) = attacker.retry(|| attacker.log_in(Destination::Shared, 0)) {
        clear_unit_attentions(&mut session);
        let block = u64::from(SHARED_LBA);
        until_closed(attacker, &mut [&mut session], |sessions| {
            for _ in 0..64 {
                let session = &mut sessions[0];
                let write = session.command(
                    flags::SIMPLE | flags::WRITE,
                    &cdb::write(block, BLOCKS_8M),
                    BYTES_8M,
                );
                session.queue(&write);
                let read = session.command(flags::SIMPLE | flags::READ, &cdb::read(block, 8), 4096);
                session.queue(&read);
            }
        });
    }
    Ok(())
}

/// Announces writes of which not one byte is sent, so that not one byte may change.
fn foreign_blocks(attacker: &Attacker) -> Result<()> {
    Flood::new(1, Destination::Shared).reading(
        attacker,
        |session| {
            let lba = session.random.below(2) * u64::from(BLOCKS_8M);
            let cdb = cdb::write(lba, BLOCKS_8M);
            let command = session.command(flags::SIMPLE | flags::WRITE, &cdb, BYTES_8M);
            session.queue(&command);
        },
        |_, _| {},
    )
}

/// Calls `act` every 100 ms and receives responses, until a session is closed or the attack is
/// over. R2Ts are not answered; pings of the server are.
fn until_closed(
    attacker: &Attacker,
    sessions: &mut [&mut RawSession],
    mut act: impl FnMut(&mut [&mut RawSession]),
) {
    while !attacker.is_over() {
        let until = Instant::now() + Duration::from_millis(100);
        if sessions[sessions.len() - 1].window_is_open() {
            act(sessions);
        }
        for session in sessions.iter_mut() {
            session.connection.send();
            while session.receive().is_some() {}
            session.connection.send();
            attacker.count(session);
        }
        if sessions.iter().any(|session| session.connection.is_closed()) {
            return;
        }
        std::thread::sleep(until.saturating_duration_since(Instant::now()));
    }
}

/// Clears a new session's unit attentions, which would end the commands that are to wait.
pub(super) fn clear_unit_attentions(session: &mut RawSession) {
    // A server that does not respond here is attacked all the same.
    drop(session.execute(&cdb::TEST_UNIT_READY, &[], 0, Duration::from_secs(1)));
}

fn whole_writes(attacker: &Attacker, sessions: usize, destination: Destination) -> Result<()> {
    Flood::new(sessions, destination).reading(
        attacker,
        |session| {
            let command = random_write(session);
            session.queue(&command);
        },
        RawSession::keep_r2t,
    )
}

fn aborted_writes(attacker: &Attacker) -> Result<()> {
    const LUN_RESET: u8 = 5;
    let mut reset_at = Instant::now();
    Flood::new(4, Destination::Slow).reading(
        attacker,
        |session| {
            let command = random_write(session);
            session.queue(&command);
            if reset_at.elapsed() > Duration::from_secs(1) {
                reset_at = Instant::now();
                let reset = session.task_management(LUN_RESET, u32::MAX, session.cmd_sn);
                session.queue(&reset);
            }
        },
        RawSession::keep_r2t,
    )
}

fn same_blocks(attacker: &Attacker) -> Result<()> {
    Flood::new(4, Destination::Neighbour).reading(
        attacker,
        |session| {
            let cdb = cdb::write(0, BLOCKS_8M);
            let command = session.command(flags::SIMPLE | flags::WRITE, &cdb, BYTES_8M);
            session.queue(&command);
        },
        RawSession::keep_r2t,
    )
}

fn wrong_lengths(attacker: &Attacker) -> Result<()> {
    Flood::new(4, Destination::Neighbour).reading(
        attacker,
        |session| {
            let expected = [0, 1, 512, u32::MAX][session.random.below(4) as usize];
            let blocks = [0, 1, BLOCKS_8M, u32::MAX][session.random.below(4) as usize];
            let cdb = cdb::write(0, blocks);
            let command = session.command(flags::SIMPLE | flags::WRITE, &cdb, expected);
            session.queue(&command);
        },
        RawSession::keep_r2t,
    )
}

fn short_bursts(attacker: &Attacker) -> Result<()> {
    Flood::new(4, Destination::Neighbour).with_login(|login| login.burst_bytes_max = 512).reading(
        attacker,
        |session| {
            let command = random_write(session);
            session.queue(&command);
        },
        RawSession::keep_r2t,
    )
}

fn all_but_the_last(attacker: &Attacker) -> Result<()> {
    Flood::new(16, Destination::Neighbour).reading(
        attacker,
        |session| {
            let command = random_write(session);
            session.queue(&command);
        },
        |session, pdu| {
            if pdu.opcode() != opcode::R2T {
                return;
            }
            let asked = pdu.u32_at(44) as usize;
            // The last PDU of the command is withheld.
            let is_last = pdu.u32_at(40) + pdu.u32_at(44) == BYTES_8M;
            let piece = session.negotiated.data_bytes_max;
            let bytes = if is_last { asked.saturating_sub(piece) } else { asked };
            session.answer_r2t_with(pdu, &vec![0; bytes]);
        },
    )
}

fn half_then_reset(attacker: &Attacker) -> Result<()> {
    attacker.in_threads(2, |thread| {
        for number in (thread..).step_by(2).take_while(|_| !attacker.is_over()) {
            let Ok(mut session) = attacker.log_in(Destination::Neighbour, number % 8) else {
                continue;
            };
            for _ in 0..8 {
                let command = random_write(&mut session);
                session.queue(&command);
            }
            let until = Instant::now() + Duration::from_millis(50);
            while let Some(pdu) = session.wait(until) {
                if pdu.opcode() == opcode::R2T {
                    let bytes = vec![0; pdu.u32_at(44) as usize / 2];
                    session.answer_r2t_with(&pdu, &bytes);
                }
            }
            attacker.count(&mut session);
        }
    });
    Ok(())
}

fn parameter_lists(attacker: &Attacker) -> Result<()> {
    let lists: [(CdbBytes, u32); 6] = [
        (cdb(&[0x55, 0x10, 0, 0, 0, 0, 0, 0x10, 0]), 4096),
        (cdb(&[0x42, 0, 0, 0, 0, 0, 0, 0x10, 0]), 4096),
        (cdb(&[0x83, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0x10, 0]), 4096),
        (cdb::reserve_out(0, 0), 24),
        (cdb(&[0x3b, 2, 0, 0, 0, 0, 0, 0x10, 0]), 4096),
        (cdb(&[0x89, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 255]), 2 * 255 * 512),
    ];
    Flood::new(8, Destination::Neighbour).reading(
        attacker,
        |session| {
            let (cdb, bytes) = lists[session.random.below(6) as usize];
            let command = session.command(flags::SIMPLE | flags::WRITE, &cdb, bytes);
            session.queue(&command);
        },
        |_, _| {},
    )
}

fn unsolicited_withheld(attacker: &Attacker) -> Result<()> {
    Flood::new(16, Destination::Neighbour).reading(
        attacker,
        |session| {
            let command = random_write(session).with_data(vec![0; 65_536]);
            session.queue(&command);
        },
        |_, _| {},
    )
}
