//! Responses that no initiator reads: the memory that the server uses for them must be bounded.

use crate::adversary::attack::Attack;
use crate::adversary::attacker::{Attacker, Destination};
use crate::adversary::cdb::{self, CdbBytes, cdb};
use crate::adversary::flood::Flood;
use crate::adversary::session::{RawSession, flags};
use anyhow::Result;
use lunar_testkit::raw::opcode;
use std::time::Duration;

/// Number of blocks in 8 MiB, the longest transfer by default.
const BLOCKS_8M: u32 = (8 << 20) / 512;

/// The attacks of this file.
pub const ATTACKS: &[Attack] = &[
    Attack::new("read-8m-edtl-1", 1, |attacker| read_8m(attacker, 1, Destination::Neighbour, 1))
        .fault(1)
        .summary("READ (16) of 8 MiB with ExpectedDataTransferLength 1, answers unread"),
    Attack::new("read-8m-edtl-1-chap", 1, |attacker| read_8m(attacker, 1, Destination::Chap, 1))
        .fault(1)
        .limits("data_in_bytes = 16777216")
        .summary("The same after CHAP, with data_in_bytes of 16 MiB"),
    Attack::new("read-8m", 16, |attacker| read_8m(attacker, 16, Destination::Neighbour, 8 << 20))
        .summary("16 sessions: READ (16) of 8 MiB, answers unread"),
    Attack::new("read-8m-64-sessions", 64, |attacker| {
        read_8m(attacker, 64, Destination::Neighbour, 4096)
    })
    .summary("64 sessions: READ (16) of 8 MiB with an expected length of 4 KiB, answers unread"),
    Attack::new("read-8m-in-512-bytes", 4, short_pdus)
        .summary("READ (16) of 8 MiB in Data-In PDUs of 512 bytes, answers unread"),
    Attack::new("read-half-closed", 256, half_closed).summary(
        "256 sessions: 16 READs of 1 MiB, then the sending half is closed, answers unread",
    ),
    Attack::new("read-wrong-flags", 4, read_wrong_flags)
        .summary("READ (6, 10, 12, 16) without R, with W, with both, with EDTL 0, unread"),
    Attack::new("replies-edtl-1", 4, |attacker| replies(attacker, 1))
        .summary("INQUIRY, REPORT LUNS, PR IN, REPORT SUPPORTED OPCODES … with EDTL 1, unread"),
    Attack::new("replies-unread", 4, |attacker| replies(attacker, 65_535))
        .summary("The same commands with room for their full answers, unread"),
    Attack::new("replies-of-4-bytes", 8, short_replies)
        .summary("READ BUFFER of 4 bytes as fast as possible, answers unread"),
    Attack::new("replies-held-back", 1024, held_back_replies)
        .summary("1,024 sessions: READ BUFFER with W and without F, no Data-Out follows"),
    Attack::new("pings-64k-cut", 64, cut_pings)
        .summary("64 sessions: NOP-Out with 64 KiB of data, echoes of 512 bytes unread"),
    Attack::new("pings-64k", 4, |attacker| pings(attacker, false))
        .summary("NOP-Out with 64 KiB of data each, echoes unread"),
    Attack::new("pings-64k-immediate", 4, |attacker| pings(attacker, true))
        .summary("NOP-Out for immediate delivery with 64 KiB of data, echoes unread"),
    Attack::new("failing-commands", 8, failing_commands)
        .summary("Commands that end CHECK CONDITION, sense data unread"),
    Attack::new("rejects-unread", 8, rejects)
        .summary("PDUs that are rejected with a copy of their header, Rejects unread"),
    Attack::new("read-then-reset", 8, read_then_reset)
        .summary("READs of 8 MiB are sent and the connection is reset, as fast as possible"),
];

fn read_8m(
    attacker: &Attacker,
    sessions: usize,
    destination: Destination,
    expected_bytes: u32,
) -> Result<()> {
    unread(sessions, destination).unread(attacker, |session| {
        let cdb = cdb::read(0, BLOCKS_8M);
        let command = session.command(flags::SIMPLE | flags::READ, &cdb, expected_bytes);
        session.queue(&command);
    })
}

/// Creates sessions with small receive buffers that learn their command window from another
/// connection.
fn unread(sessions: usize, destination: Destination) -> Flood {
    Flood::new(sessions, destination)
        .with_small_buffers()
        .with_observer()
        .paced(Duration::from_millis(10))
}

fn short_pdus(attacker: &Attacker) -> Result<()> {
    unread(4, Destination::Neighbour).with_login(|login| login.receive_bytes_max = 512).unread(
        attacker,
        |session| {
            let cdb = cdb::read(0, BLOCKS_8M);
            let command = session.command(flags::SIMPLE | flags::READ, &cdb, 8 << 20);
            session.queue(&command);
        },
    )
}

fn half_closed(attacker: &Attacker) -> Result<()> {
    let mut sessions = Vec::new();
    while !attacker.is_over() && sessions.len() < 256 {
        let login = attacker.login(Destination::Neighbour, sessions.len());
        let session = attacker.connect_small().and_then(|connection| {
            attacker.log_in_over(connection, &login, Destination::Neighbour)
        });
        let Ok(mut session) = session else { continue };
        for _ in 0..16 {
            let cdb = cdb::read(0, 2048);
            let command = session.command(flags::SIMPLE | flags::READ, &cdb, 1 << 20);
            session.queue(&command);
        }
        session.connection.send_all(Duration::from_millis(100));
        session.connection.close_sending();
        attacker.count(&mut session);
        sessions.push(session);
    }
    attacker.wait_until_over();
    Ok(())
}

fn read_wrong_flags(attacker: &Attacker) -> Result<()> {
    let reads =
        [cdb(&[0x08, 0, 0, 0, 0]), cdb::cdb_10(0x28, 0, 0, 0x4000), cdb::read(0, BLOCKS_8M), {
            let mut read_12 = cdb(&[0xa8]);
            read_12[8] = 0x40;
            read_12
        }];
    let kinds = [0, flags::READ, flags::WRITE, flags::READ | flags::WRITE];
    unread(4, Destination::Neighbour).unread(attacker, |session| {
        let kind = kinds[pick(session, kinds.len())];
        let cdb = reads[pick(session, reads.len())];
        let expected = [0, 1, 512, 8 << 20, u32::MAX][pick(session, 5)];
        let command = session.command(flags::SIMPLE | kind, &cdb, expected);
        session.queue(&command);
    })
}

fn replies(attacker: &Attacker, expected_bytes: u32) -> Result<()> {
    unread(4, Destination::Neighbour).unread(attacker, |session| {
        let commands = large_reply_commands();
        let cdb = commands[pick(session, commands.len())];
        let command = session.command(flags::SIMPLE | flags::READ, &cdb, expected_bytes);
        session.queue(&command);
    })
}

/// Returns commands whose data does not come from the disk, each with the largest allocation
/// length.
fn large_reply_commands() -> Vec<CdbBytes> {
    let long = |operation, action| {
        let mut cdb = cdb(&[operation, action]);
        cdb[10..14].copy_from_slice(&[0, 0, 0xff, 0xff]);
        cdb
    };
    let mut report_opcodes = cdb(&[0xa3, 0x0c, 0x80]);
    report_opcodes[6..10].copy_from_slice(&[0, 0, 0xff, 0xff]);
    let mut report_luns = cdb(&[0xa0]);
    report_luns[6..10].copy_from_slice(&[0, 0, 0xff, 0xff]);
    vec![
        cdb(&[0x12, 0, 0, 0xff, 0xff]),
        cdb(&[0x12, 1, 0x83, 0xff, 0xff]),
        report_luns,
        report_opcodes,
        // PERSISTENT RESERVE IN: READ FULL STATUS.
        cdb(&[0x5e, 3, 0, 0, 0, 0, 0, 0xff, 0xff]),
        // MODE SENSE (10) and LOG SENSE of all pages.
        cdb(&[0x5a, 0, 0x3f, 0xff, 0, 0, 0, 0xff, 0xff]),
        cdb(&[0x4d, 0, 0x40, 0, 0, 0, 0, 0xff, 0xff]),
        // GET LBA STATUS, READ CAPACITY (16).
        long(0x9e, 0x12),
        long(0x9e, 0x10),
        // RECEIVE COPY RESULTS: OPERATING PARAMETERS.
        long(0x84, 3),
        // REPORT TARGET PORT GROUPS and READ BUFFER.
        cdb(&[0xa3, 0x0a, 0, 0, 0, 0, 0, 0, 0xff, 0xff]),
        cdb(&[0x3c, 2, 0, 0, 0, 0, 0, 0x10, 0]),
    ]
}

/// READ BUFFER (10) of the descriptor: 4 bytes.
fn read_buffer() -> CdbBytes {
    cdb(&[0x3c, 2, 0, 0, 0, 0, 0, 0, 4])
}

fn short_replies(attacker: &Attacker) -> Result<()> {
    let flood = Flood::new(8, Destination::Neighbour).with_small_buffers().with_observer();
    flood.unread(attacker, |session| {
        let command = session.command(flags::SIMPLE | flags::READ, &read_buffer(), 4);
        session.queue(&command);
    })
}

/// Commands that are done before their data arrives: RFC 7143 §11.4.2 lets their response wait for
/// it.
fn held_back_replies(attacker: &Attacker) -> Result<()> {
    let flood = Flood::new(1024, Destination::Neighbour);
    flood.with_login(|login| login.unsolicited_data = true).unread(attacker, |session| {
        let flags = flags::SIMPLE | flags::READ | flags::WRITE;
        let command = session.request(opcode::SCSI_COMMAND, flags);
        let command = command.put_u32(20, 512).put(32, &read_buffer());
        session.queue(&command);
    })
}

fn cut_pings(attacker: &Attacker) -> Result<()> {
    unread(64, Destination::Neighbour).with_login(|login| login.receive_bytes_max = 512).unread(
        attacker,
        |session| {
            let ping = session.ping(true).with_data(vec![0x50; 65_536]);
            session.queue(&ping);
        },
    )
}

fn pings(attacker: &Attacker, immediate: bool) -> Result<()> {
    unread(4, Destination::Neighbour).unread(attacker, |session| {
        let ping = session.ping(immediate).with_data(vec![0x50; 65_536]);
        session.queue(&ping);
    })
}

fn failing_commands(attacker: &Attacker) -> Result<()> {
    unread(8, Destination::Neighbour).unread(attacker, |session| {
        let wrong = [cdb(&[0xff]), cdb::read(u64::MAX, 1), cdb(&[0x12, 1, 0x77, 0, 0xff])];
        let cdb = wrong[pick(session, wrong.len())];
        let command = session.command(flags::SIMPLE | flags::READ, &cdb, 4096);
        session.queue(&command);
    })
}

fn rejects(attacker: &Attacker) -> Result<()> {
    unread(8, Destination::Neighbour).unread(attacker, |session| {
        // A SNACK, which error recovery level 0 does not support, and an undefined opcode.
        let number = pick(session, 2);
        let opcode = [opcode::SNACK, 0x1c][number];
        let request = session.immediate_request(opcode, 0x81);
        session.queue(&request);
    })
}

fn read_then_reset(attacker: &Attacker) -> Result<()> {
    attacker.in_threads(2, |thread| {
        for number in (thread..).step_by(2).take_while(|_| !attacker.is_over()) {
            let Ok(mut session) = attacker.log_in(Destination::Neighbour, number % 8) else {
                continue;
            };
            for _ in 0..32 {
                let cdb = cdb::read(0, BLOCKS_8M);
                let command = session.command(flags::SIMPLE | flags::READ, &cdb, 8 << 20);
                session.queue(&command);
            }
            session.connection.send_all(Duration::from_millis(100));
            attacker.count(&mut session);
        }
    });
    Ok(())
}

/// Returns a random index below `count`.
fn pick(session: &mut RawSession, count: usize) -> usize {
    session.random.below(count as u64) as usize
}
