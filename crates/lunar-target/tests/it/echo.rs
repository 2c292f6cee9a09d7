//! A unit that is no disk behind the target: a CDB of 200 bytes and bidirectional data, driven by
//! the initiator of this workspace.

mod streams;
mod unit;

use crate::common::*;
use bytes::Bytes;
use lunar_block::MemoryKind;
use lunar_initiator::{CommandReply, Initiator, Residual, SessionOptions};
use lunar_target::{Limit, LunOptions, OperationClass, Unit};
use lunar_testkit::raw::{RawAnswer, RawClient, RawPdu, opcode};
use lunar_wire::Lun;
use std::sync::Arc;
use std::sync::atomic::Ordering::SeqCst;
use unit::{CDB_BYTES, DEVICE_TYPE, Echo, EchoState, EchoUnit, FAILED};

/// Number of the unit; LUN 0 is a disk.
const LUN: u16 = 5;
const GOOD: u8 = 0;
const CHECK_CONDITION: u8 = 2;
const TASK_SET_FULL: u8 = 0x28;
const POWER_ON: u16 = 0x2900;
const RESET_BY_FUNCTION: u16 = 0x2903;
const LUNS_CHANGED: u16 = 0x3f0e;
/// No unit attention.
const NONE: [u16; 0] = [];

/// A server with a disk and an echo unit.
struct EchoRig {
    rig: Rig,
    unit: Arc<EchoUnit>,
}

impl EchoRig {
    fn new() -> Self {
        Self::with(|_| {})
    }

    fn with(change: impl FnOnce(&mut lunar_target::ServerOptions)) -> Self {
        let unit = Arc::new(EchoUnit::new(7));
        let shown: Arc<dyn Unit> = Arc::<EchoUnit>::clone(&unit);
        let rig = Rig::with(|options| {
            options.targets[0].luns.push(LunOptions::new(LUN, shown));
            change(options);
        });
        let budget = rig.server().buffers().budget().clone();
        unit.state().budget.set(budget).unwrap();
        Self { rig, unit }
    }

    fn state(&self) -> &EchoState {
        self.unit.state()
    }

    /// Logs in, and takes the first unit attention of the unit.
    async fn connect(&self) -> Initiator {
        let url = format!("iscsi://{}/{TARGET}/{LUN}", self.rig.address).parse().unwrap();
        let options = SessionOptions::new("iqn.2026-11.org.lunarsan.test:echo");
        let initiator = Initiator::connect(&url, &options).await.unwrap();
        assert_eq!(attentions(&initiator).await, [POWER_ON]);
        initiator
    }

    /// Logs in with the raw client of this number, and takes the first unit attention of the unit.
    fn log_in(&self, number: u32) -> RawClient {
        let mut raw = self.rig.log_in(number);
        raw.lun[1] = LUN as u8;
        assert_eq!(codes(&mut raw), [POWER_ON]);
        raw
    }

    /// Stops the server, and asserts that nothing is left.
    fn end(self) {
        self.rig.wait_until_alone();
        assert_eq!(self.state().nexuses(), 0);
        self.rig.stop_cleanly();
    }
}

/// Sends TEST UNIT READY until it ends GOOD; returns the unit attentions before that.
async fn attentions(initiator: &Initiator) -> Vec<u16> {
    let mut codes = Vec::new();
    loop {
        let reply = execute(initiator, vec![0; 6], &[], 0).await;
        if reply.result.status == GOOD {
            return codes;
        }
        codes.push(sense_code(&reply));
    }
}

fn sense_code(reply: &CommandReply) -> u16 {
    assert_eq!(reply.result.status, CHECK_CONDITION);
    u16::from_be_bytes([reply.result.sense[12], reply.result.sense[13]])
}

async fn execute(
    initiator: &Initiator,
    cdb: Vec<u8>,
    data_out: &[u8],
    data_in_max: u32,
) -> CommandReply {
    let data_out = Bytes::copy_from_slice(data_out);
    initiator.execute(Lun::new(LUN), cdb, data_out, data_in_max).await.unwrap()
}

fn pattern(bytes: usize) -> Vec<u8> {
    (0..bytes).map(|at| (at * 7 + at / 251) as u8).collect()
}

/// Sends an ECHO of `bytes` zeroes as a raw bidirectional command with immediate data; returns its
/// tag.
fn send_echo(raw: &mut RawClient, echo: Echo) -> u32 {
    let (cdb, bytes) = (echo.cdb(), echo.data_out_bytes);
    let mut pdu = raw.command(0xe1, &cdb[..16], bytes);
    // Header segments: the rest of the CDB, and the expected length of the data-in.
    pdu.segments = ((CDB_BYTES - 15) as u16).to_be_bytes().to_vec();
    pdu.segments.extend([1, 0]);
    pdu.segments.extend(&cdb[16..]);
    pdu.segments.extend([0, 5, 2, 0]);
    pdu.segments.extend(echo.allocation_bytes.to_be_bytes());
    raw.send(&pdu.clone().with_data(vec![0; bytes as usize])).unwrap();
    pdu.u32_at(16)
}

/// Sends LOGICAL UNIT RESET for the unit; returns the response.
fn reset(raw: &mut RawClient) -> u8 {
    manage(raw, LOGICAL_UNIT_RESET, u32::MAX)
}

/// Sends a task management function for the unit; returns the response.
fn manage(raw: &mut RawClient, function: u8, referenced: u32) -> u8 {
    let tag = raw.new_tag();
    let pdu = RawPdu::new(0x40 | opcode::TASK_MANAGEMENT, 0x80 | function)
        .put(8, &raw.lun)
        .put_u32(16, tag)
        .put_u32(20, referenced)
        .put_u32(24, raw.cmd_sn)
        .put_u32(28, raw.exp_stat_sn);
    raw.send(&pdu).unwrap();
    answer_to(raw, tag).header[2]
}

/// Goal: a 200-byte CDB arrives whole, and data of any length comes back: immediate, unsolicited,
/// and in several bursts.
#[test]
fn data_comes_back() {
    let rig = EchoRig::new();
    block_on(async {
        let initiator = rig.connect().await;
        for bytes in [0, 1, 511, 8192, 65_537, 300_000, (2 << 20) + 3] {
            let echo = Echo { key: 0xa5, ..Echo::of(bytes) };
            let sent = pattern(bytes as usize);
            let reply = execute(&initiator, echo.cdb(), &sent, bytes).await;
            assert_eq!(reply.result.status, GOOD, "{bytes}");
            let expected: Vec<u8> = sent.iter().map(|byte| byte ^ 0xa5).collect();
            assert!(reply.data_in == expected, "{bytes}");
            let residuals = (reply.result.residual, reply.result.read_residual);
            assert_eq!(residuals, (Residual::None, Residual::None), "{bytes}");
        }
        drop(initiator);
    });
    rig.end();
}

/// Goal: the unit is known by its own peripheral device type, beside the disk, and its commands are
/// counted in the classes that it gives.
#[test]
fn the_unit_is_no_disk() {
    let rig = EchoRig::new();
    block_on(async {
        let initiator = rig.connect().await;
        let inquiry = execute(&initiator, vec![0x12, 0, 0, 0, 36, 0], &[], 36).await;
        assert_eq!((inquiry.data_in[0], inquiry.data_in.len()), (DEVICE_TYPE, 36));
        let mut report = vec![0; 12];
        (report[0], report[9]) = (0xa0, 64);
        let luns = execute(&initiator, report, &[], 64).await.data_in;
        assert_eq!((luns.len(), luns[9], luns[17]), (24, 0, LUN as u8));
        let unknown = execute(&initiator, vec![0x28, 0, 0, 0, 0, 0, 0, 0, 1, 0], &[], 512).await;
        assert_eq!(sense_code(&unknown), 0x2000, "INVALID COMMAND OPERATION CODE");
        assert_eq!(unknown.result.residual, Residual::Underflow(512));
        let mut wrong = Echo::of(4).cdb();
        wrong[9] = 2; // another service action
        assert_eq!(sense_code(&execute(&initiator, wrong, &[0; 4], 4).await), 0x2400);
        assert_eq!(execute(&initiator, Echo::of(4).cdb(), &[0; 4], 4).await.data_in.len(), 4);
        drop(initiator);
    });
    rig.rig.wait_until_alone();
    let statistics = rig.rig.server().observer().statistics().unwrap();
    let lun = &statistics.targets[0].luns[1];
    assert_eq!((lun.id, lun.uuid, &*lun.io_tier), (LUN, rig.unit.uuid(), "echo"));
    let echoes = &lun.operations[OperationClass::Write as usize];
    assert_eq!(echoes.durations.count(), 2, "one of them failed");
    assert_eq!((echoes.received_bytes, echoes.sent_bytes, echoes.in_flight), (4, 4, 0));
    assert_eq!(lun.operations[OperationClass::Read as usize].durations.count(), 0);
    rig.end();
}

/// Goal: of data that one side does not announce, or has no room for, only the rest moves; both
/// residuals say so. RFC 7143 §11.4.5.
#[test]
fn lengths_that_differ_become_residuals() {
    use Residual::{None, Overflow, Underflow};
    let rig = EchoRig::new();
    block_on(async {
        let initiator = rig.connect().await;
        // Lengths in the CDB, data sent and room for data, then residuals and data received.
        let cases = [
            ((1000, 1000), (1000, 1000), (None, None), 1000),
            ((1000, 1000), (1200, 1000), (Underflow(200), None), 1000),
            ((1000, 1000), (700, 700), (Overflow(300), None), 700),
            ((1000, 400), (1000, 1000), (None, Underflow(600)), 400),
            ((1000, 1000), (1000, 100), (None, Overflow(900)), 100),
            ((0, 0), (64, 64), (Underflow(64), Underflow(64)), 0),
            ((1000, 0), (1000, 64), (None, Underflow(64)), 0),
        ];
        for ((data_out_bytes, allocation_bytes), (sent, room), residuals, received) in cases {
            let echo = Echo { data_out_bytes, allocation_bytes, ..Echo::default() };
            let data = pattern(sent);
            let reply = execute(&initiator, echo.cdb(), &data, room).await;
            let case = format!("{echo:?} with {sent} bytes, and room for {room}");
            assert_eq!(reply.result.status, GOOD, "{case}");
            let found = (reply.result.residual, reply.result.read_residual);
            assert_eq!(found, residuals, "{case}");
            assert_eq!(reply.data_in, data[..received], "{case}");
        }
        drop(initiator);
    });
    rig.end();
}

/// Goal: CHECK CONDITION is possible after data-in: the initiator gets both.
#[test]
fn a_command_may_fail_after_its_data() {
    let rig = EchoRig::new();
    block_on(async {
        let initiator = rig.connect().await;
        let data = pattern(100_000);
        let echo = Echo { fail: true, ..Echo::of(100_000) };
        let reply = execute(&initiator, echo.cdb(), &data, 100_000).await;
        assert_eq!(sense_code(&reply), FAILED.code);
        assert_eq!((reply.data_in.len(), reply.result.data_in_bytes), (100_000, 100_000));
        assert!(reply.data_in == data);
        assert_eq!(reply.result.residual, Residual::None);
        drop(initiator);
    });
    rig.end();
}

/// Goal: a command whose caller is gone is aborted at the unit, whether it runs or waits for
/// memory, and leaves nothing behind; the session continues.
#[test]
fn aborted_commands_end() {
    const BYTES: u32 = 1 << 20;
    // Room for the data-in of one command.
    let rig = EchoRig::with(|options| options.limits.data_in_bytes = BYTES as usize);
    block_on(async {
        let initiator = rig.connect().await;
        let held = Echo { hold: true, ..Echo::of(BYTES) };
        let data = vec![1; BYTES as usize];
        let mut runs = Box::pin(execute(&initiator, held.cdb(), &data, BYTES));
        let mut waits = Box::pin(execute(&initiator, held.cdb(), &data, BYTES));
        let usage = || rig.rig.server().buffers().budget().usage();
        let collected = || usage().by_kind[MemoryKind::DataOut as usize];
        until(&mut runs, || rig.state().begun.load(SeqCst) == 1).await;
        until(&mut waits, || collected() >= 2 * BYTES as usize).await;
        drop((runs, waits));
        // The session sends the aborts before it answers, but the unit may end later.
        let deadline = tokio::time::Instant::now() + MINUTE;
        while rig.state().aborted.load(SeqCst) == 0 || collected() > 0 {
            assert!(tokio::time::Instant::now() < deadline, "timed out");
            assert_eq!(attentions(&initiator).await, NONE);
        }
        assert_eq!(rig.state().aborted.load(SeqCst), 1);
        assert_eq!(rig.state().begun.load(SeqCst), 1, "the other one has not begun");
        let reply = execute(&initiator, Echo::of(4).cdb(), &[1, 2, 3, 4], 4).await;
        assert_eq!(reply.data_in[..], [1, 2, 3, 4]);
        drop(initiator);
    });
    rig.end();
}

/// Polls `future`, which does not end, until `is` holds.
async fn until<T>(future: &mut (impl Future<Output = T> + Unpin), is: impl Fn() -> bool) {
    let deadline = tokio::time::Instant::now() + MINUTE;
    while !is() {
        assert!(tokio::time::Instant::now() < deadline, "timed out");
        let moment = std::time::Duration::from_millis(1);
        let ended = tokio::time::timeout(
            moment,
            std::future::poll_fn(|context| std::pin::Pin::new(&mut *future).poll(context)),
        );
        assert!(ended.await.is_err(), "it has ended");
    }
}

/// Goal: LOGICAL UNIT RESET of another initiator aborts the commands of the unit and no others, and
/// is reported by the unit alone.
#[test]
fn a_reset_aborts_the_commands_of_the_unit() {
    let rig = EchoRig::new();
    let (mut raw, mut other) = (rig.log_in(1), rig.log_in(2));
    send_echo(&mut raw, Echo { hold: true, ..Echo::of(1024) });
    rig.rig.wait_for("it has begun", |_| rig.state().begun.load(SeqCst) == 1);
    assert_eq!(reset(&mut other), 0, "FUNCTION COMPLETE");
    assert_eq!(rig.state().aborted.load(SeqCst), 1, "before the response");
    assert_eq!(codes(&mut raw), [RESET_BY_FUNCTION]);
    assert_eq!(codes(&mut other), NONE, "it has requested the reset");
    raw.lun[1] = 0;
    assert_eq!(codes(&mut raw), NONE, "the disk was not reset");
    let tag = send_echo(&mut other, Echo::of(64));
    assert_eq!(answer_to(&mut other, tag).data.len(), 64);
    assert_eq!(answer_to(&mut other, tag).header[3], GOOD);
    log_out(raw);
    log_out(other);
    rig.end();
}

/// Sends TEST UNIT READY until it ends GOOD; returns the unit attentions before that.
fn codes(raw: &mut RawClient) -> Vec<u16> {
    let mut codes = Vec::new();
    loop {
        let pdu = raw.command(0x80, &[0; 6], 0);
        raw.send(&pdu).unwrap();
        let (status, _, sense) = raw.outcome().unwrap();
        if status == GOOD {
            return codes;
        }
        codes.push(u16::from_be_bytes([sense[14], sense[15]]));
    }
}

/// Goal: a change of the LUNs is reported by the unit, and no more once the initiator has read the
/// list there.
#[test]
fn changed_luns_are_reported_by_the_unit() {
    let rig = EchoRig::new();
    let mut raw = rig.log_in(1);
    let more: Arc<dyn Unit> = Arc::new(EchoUnit::new(8));
    let mut report = [0; 12];
    (report[0], report[9]) = (0xa0, 64);
    rig.rig.replace(|targets| targets[0].luns.push(LunOptions::new(6, more)));
    assert_eq!(raw.execute(&report, 64).unwrap().1.len(), 8 + 3 * 8);
    assert_eq!(codes(&mut raw), NONE);
    rig.rig.replace(|targets| targets[0].luns.truncate(2));
    assert_eq!(codes(&mut raw), [LUNS_CHANGED]);
    log_out(raw);
    rig.end();
}

/// Goal: the data-in of bidirectional commands counts against the limit of reads: a command whose
/// data-in finds no room waits with its data-out, then ends TASK SET FULL, or runs when there is
/// room.
#[test]
fn data_in_counts_as_that_of_reads() {
    const BYTES: u32 = 8192;
    let rig = EchoRig::with(|options| {
        options.limits.data_in_bytes = BYTES as usize;
        options.limits.memory_wait_seconds = 1;
    });
    let mut raw = rig.log_in(1);
    let used =
        |kind: MemoryKind| rig.rig.server().buffers().budget().usage().by_kind[kind as usize];
    let first = send_echo(&mut raw, Echo { hold: true, ..Echo::of(BYTES) });
    let second = send_echo(&mut raw, Echo { hold: true, ..Echo::of(BYTES) });
    let refused = answer_to(&mut raw, second);
    assert_eq!((refused.opcode(), refused.header[3]), (opcode::SCSI_RESPONSE, TASK_SET_FULL));
    assert_eq!(rig.state().begun.load(SeqCst), 1);
    assert!(used(MemoryKind::DataIn) < 2 * BYTES as usize);
    assert!(used(MemoryKind::DataOut) < 2 * BYTES as usize, "the data of the second is freed");
    let third = send_echo(&mut raw, Echo::of(BYTES));
    rig.state().release();
    for tag in [first, third] {
        assert_eq!(answer_to(&mut raw, tag).data.len(), BYTES as usize);
        assert_eq!(answer_to(&mut raw, tag).header[3], GOOD);
    }
    log_out(raw);
    rig.end();
}

/// Goal: commands of the unit are charged at its limits, with the data of both directions, by the
/// cost that the unit gives.
#[test]
fn commands_are_charged_at_the_limits() {
    const BYTES: u32 = 8192;
    let rig = EchoRig::new();
    let mut raw = rig.log_in(1);
    let lowest = Limit::new(None, Some(lunar_target::BYTES_PER_SECOND_MIN)).unwrap();
    rig.unit.common().set_limit(lowest);
    // A cost of hours, by its allocation length.
    let debt = Echo { allocation_bytes: u32::MAX, ..Echo::of(BYTES) };
    let tag = send_echo(&mut raw, debt);
    assert_eq!(answer_to(&mut raw, tag).data.len(), BYTES as usize, "the first may go");
    assert_eq!(answer_to(&mut raw, tag).header[3], GOOD);
    let waits = send_echo(&mut raw, Echo::of(BYTES));
    assert_eq!(codes(&mut raw), NONE, "free commands go on");
    assert_eq!(rig.state().begun.load(SeqCst), 1);
    rig.unit.common().set_limit(Limit::NONE);
    assert_eq!(answer_to(&mut raw, waits).data.len(), BYTES as usize);
    assert_eq!(answer_to(&mut raw, waits).header[3], GOOD);
    log_out(raw);
    rig.end();
}
