//! Late data: the connection is closed at the limit, and not earlier. Decision 088.

use super::requests::*;
use super::rig::Rig;
use crate::connection::target::{
    CloseReason, DATA_OUT_BYTES_PER_SECOND_MIN, DATA_OUT_COUNTED_BYTES_MAX, Input,
};
use crate::framing::{Header, TaskId};
use crate::pdu::{ManagementFunction, Opcode, ReadyToTransfer};
use alloc::collections::VecDeque;
use alloc::vec;
use alloc::vec::Vec;
use core::time::Duration;
use lunar_wire::Time;
use proptest::prelude::*;
use std::string::ToString;

const KEYS: &str = "MaxRecvDataSegmentLength=65536 FirstBurstLength=65536 MaxBurstLength=65536 \
                    InitialR2T=No ImmediateData=Yes MaxOutstandingR2T=1";
const SMALL_BURSTS: &str = "MaxRecvDataSegmentLength=8192 FirstBurstLength=512 MaxBurstLength=512 \
                            InitialR2T=Yes ImmediateData=No";
const LIMIT: Duration = Duration::from_secs(30);
const SECOND: Duration = Duration::from_secs(1);
const MOMENT: Duration = Duration::from_nanos(1);

/// Creates a session whose initiator is not pinged for the duration of a test.
fn rig() -> Rig {
    with_keys(KEYS)
}

fn with_keys(keys: &str) -> Rig {
    let mut rig = Rig::new();
    rig.limits.ping_after_seconds = 1_000_000;
    rig.login(1, keys);
    rig
}

/// Asserts that nothing happens until just before `span` has passed, and that the connection is
/// then closed for late data.
#[track_caller]
fn closes_after(rig: &mut Rig, span: Duration) {
    rig.wait(span - MOMENT);
    assert_eq!(rig.link(1).closed, None, "too early");
    rig.wait(MOMENT);
    assert_late(rig);
}

#[track_caller]
fn assert_late(rig: &mut Rig) {
    let closed = rig.link(1).closed.clone();
    let late = matches!(&closed, Some(CloseReason::TimedOut(why)) if why.contains("data_out"));
    assert!(late, "{closed:?}");
    let answers = rig.sent(1).iter().filter(|pdu| pdu.opcode() == Opcode::SCSI_RESPONSE).count();
    assert_eq!(answers, 0, "no response before the last due PDU");
    rig.assert_nothing_left();
    assert!(rig.ended, "the session ended with its connection");
}

/// Starts a write and returns the R2T for all of it.
fn asked(rig: &mut Rig, number: u32, bytes: u32) -> (TaskId, ReadyToTransfer) {
    rig.send(1, write(number, 100 + number, bytes).encode(), &[]);
    let task = rig.started(1).id;
    rig.wants(1, task, bytes);
    (task, ReadyToTransfer::decode(&rig.sent_one(1).bhs))
}

/// Goal: requested data that never arrives closes the connection.
#[test]
fn an_unanswered_r2t_closes_the_connection() {
    let mut rig = rig();
    let (task, _) = asked(&mut rig, 0, 512);
    closes_after(&mut rig, LIMIT);
    assert_eq!(rig.link(1).aborts, [task]);
}

/// Goal: announced unsolicited data that never arrives closes the connection, whether its command
/// was delivered or waits behind a missing one.
#[test]
fn missing_unsolicited_data_closes_the_connection() {
    for number in [0, 1] {
        let mut rig = rig();
        rig.send(1, write_unsolicited(number, 5, 1024).encode(), &[]);
        closes_after(&mut rig, LIMIT);
    }
}

/// Goal: announced immediate data that never arrives completely closes the connection, although its
/// command has a buffer.
#[test]
fn incomplete_immediate_data_closes_the_connection() {
    let mut rig = rig();
    let mut bhs = write(0, 5, 512).encode();
    bhs[6..8].copy_from_slice(&512_u16.to_be_bytes());
    rig.input(1, Input::Header(Header { bhs, ahs: vec![].into() }));
    closes_after(&mut rig, LIMIT);
}

/// Goal: a failed command is answered once its data has arrived (RFC 7143 §11.4.2); if the data
/// never arrives, the connection is closed as with any other command.
#[test]
fn missing_data_of_a_failed_command_closes_the_connection() {
    let mut rig = rig();
    let (_, r2t) = asked(&mut rig, 0, 2048);
    rig.wait(10 * SECOND);
    rig.send(1, data_out(100, r2t.target_transfer_tag, 7, 0, false).encode(), &[1; 512]);
    assert_eq!(rig.link(1).faults.len() + rig.link(1).aborts.len(), 1, "a wrong DataSN");
    closes_after(&mut rig, 20 * SECOND + Duration::from_nanos(512 * 1_000_000_000 / (64 << 10)));
}

/// Goal: an aborted task has its own time limit, and its connection continues.
#[test]
fn late_data_of_an_aborted_task_keeps_the_connection() {
    let mut rig = rig();
    asked(&mut rig, 0, 512);
    rig.send(1, management(1, 7, ManagementFunction::ABORT_TASK_SET).encode(), &[]);
    rig.wait(1000 * SECOND);
    assert_eq!(rig.link(1).closed, None);
}

/// Goal: no time passes while no data is due: the executor may take any time before the first R2T
/// and between two.
#[test]
fn time_without_due_data_does_not_count() {
    let mut rig = rig();
    rig.send(1, write(0, 5, 512).encode(), &[]);
    let task = rig.started(1).id;
    rig.wait(1000 * SECOND);
    rig.wants(1, task, 512);
    let r2t = ReadyToTransfer::decode(&rig.sent_one(1).bhs);
    rig.wait(LIMIT - MOMENT);
    rig.send(1, data_out(5, r2t.target_transfer_tag, 0, 0, true).encode(), &[1; 512]);
    assert_eq!(rig.link(1).runs, [task]);
    rig.wait(1000 * SECOND);
    assert_eq!(rig.link(1).closed, None, "a running task has no data due");
    rig.good(1, task);
    assert_eq!(rig.sent_one(1).opcode(), Opcode::SCSI_RESPONSE);
    rig.assert_nothing_left();
}

/// Goal: a peer that accepts data sent earlier is not late with data requested later; but accepting
/// single bytes does not help.
#[test]
fn a_peer_that_accepts_data_is_not_late() {
    for (bytes, late) in [(2 * DATA_OUT_BYTES_PER_SECOND_MIN, false), (1, true)] {
        let mut rig = rig();
        asked(&mut rig, 0, 512);
        for _ in 0..100 {
            rig.wait(SECOND);
            if rig.link(1).closed.is_none() {
                rig.input(1, Input::PeerAccepts { bytes });
            }
        }
        assert_eq!(rig.link(1).closed.is_some(), late, "{bytes} bytes a second");
    }
}

/// Goal: other data of the connection does not keep a task alive forever that never receives its
/// own.
#[test]
fn a_starved_task_times_out() {
    let mut rig = rig();
    asked(&mut rig, 0, 512);
    let mut seconds = 0;
    for number in 1..10_000 {
        let (task, r2t) = asked(&mut rig, number, 65_536);
        rig.wait(SECOND / 2);
        seconds += 1;
        if rig.link(1).closed.is_some() {
            break;
        }
        let whole = data_out(100 + number, r2t.target_transfer_tag, 0, 0, true);
        rig.send(1, whole.encode(), &[1; 65_536]);
        rig.good(1, task);
        rig.sent(1);
    }
    let seconds_min = LIMIT.as_secs() + DATA_OUT_COUNTED_BYTES_MAX / DATA_OUT_BYTES_PER_SECOND_MIN;
    assert!((seconds_min..=seconds_min + 1).contains(&(seconds / 2)), "{} s", seconds / 2);
    assert_late(&mut rig);
}

/// Data that was requested from an initiator and not yet sent.
struct Due {
    tag: u32,
    r2t: ReadyToTransfer,
    sent_bytes: u32,
    data_sn: u32,
}

/// Records R2Ts.
fn note(rig: &mut Rig, due: &mut VecDeque<Due>) {
    for pdu in rig.sent(1) {
        if pdu.opcode() == Opcode::READY_TO_TRANSFER {
            let r2t = ReadyToTransfer::decode(&pdu.bhs);
            due.push_back(Due { tag: r2t.initiator_task_tag, r2t, sent_bytes: 0, data_sn: 0 });
        }
    }
}

/// Sends `bytes` of the due data; `true` if these were the last.
fn send(rig: &mut Rig, due: &mut Due, bytes: u32) -> bool {
    let left = due.r2t.desired_length_bytes - due.sent_bytes;
    let bytes = bytes.min(left);
    let offset = due.r2t.buffer_offset_bytes + due.sent_bytes;
    let pdu = data_out(due.tag, due.r2t.target_transfer_tag, due.data_sn, offset, bytes == left);
    rig.send(1, pdu.encode(), &vec![1; bytes as usize]);
    due.sent_bytes += bytes;
    due.data_sn += 1;
    bytes == left
}

fn seconds_for(bytes: u32, per_second: u64) -> Duration {
    Duration::from_nanos(u64::from(bytes) * 1_000_000_000 / per_second)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]

    /// Goal: a slow initiator above the minimum rate is never disconnected, however many writes it
    /// has open, in whatever order it serves them, and although each write waits for the others far
    /// longer than the limit.
    #[test]
    fn slow_initiators_above_the_minimum_rate_are_kept(
        per_second in
            (DATA_OUT_BYTES_PER_SECOND_MIN * 11 / 10)..(DATA_OUT_BYTES_PER_SECOND_MIN * 4),
        sizes in prop::collection::vec(1_u32..400, 1..48), depth in 1_usize..32,
        pdu_bytes in 512_u32..60_000, in_turns: bool,
        mut latency in 0_u64..29,
    ) {
        let mut rig = rig();
        let mut due = VecDeque::new();
        let mut commands = (0_u32..).zip(sizes.iter().map(|kib| kib * 1024));
        let mut running = 0;
        loop {
            while running < depth && let Some((number, bytes)) = commands.next() {
                rig.send(1, write(number, 100 + number, bytes).encode(), &[]);
                let task = rig.started(1).id;
                rig.wants(1, task, bytes);
                running += 1;
            }
            note(&mut rig, &mut due);
            rig.wait(Duration::from_secs(core::mem::take(&mut latency)));
            let Some(mut next) = due.pop_front() else { break };
            let bytes = pdu_bytes.min(next.r2t.desired_length_bytes - next.sent_bytes);
            rig.wait(seconds_for(bytes, per_second));
            prop_assert_eq!(&rig.link(1).closed, &None);
            if !send(&mut rig, &mut next, pdu_bytes) {
                if in_turns { due.push_back(next) } else { due.push_front(next) }
            }
            for task in core::mem::take(&mut rig.link(1).runs) {
                rig.good(1, task);
                running -= 1;
            }
        }
        rig.assert_nothing_left();
    }

    /// Goal: whole PDUs that are too small or too rare do not help: the time is limited by the
    /// amount of data.
    #[test]
    fn tiny_or_rare_pdus_do_not_extend_the_limit(
        bytes in 1_u32..100_000,
        millis in 10_u64..29_000,
    ) {
        let interval = Duration::from_millis(millis);
        let per_second = u128::from(bytes) * 1_000 / u128::from(millis);
        prop_assume!(per_second < u128::from(DATA_OUT_BYTES_PER_SECOND_MIN) / 2);
        let mut rig = rig();
        let began = rig.now;
        let (_, r2t) = asked(&mut rig, 0, 8 << 20);
        let mut due = VecDeque::from([Due { tag: 100, r2t, sent_bytes: 0, data_sn: 0 }]);
        let mut sent = 0_u64;
        while rig.link(1).closed.is_none() {
            rig.wait(interval);
            if rig.link(1).closed.is_none() && let Some(mut next) = due.pop_front() {
                let before = next.sent_bytes;
                let last = send(&mut rig, &mut next, bytes);
                sent += u64::from(next.sent_bytes - before);
                if !last {
                    due.push_front(next);
                }
                note(&mut rig, &mut due);
            }
            let age = rig.now.since(began);
            prop_assert!(age < Duration::from_secs(3600), "not closed within an hour");
        }
        let allowed = LIMIT + Duration::from_nanos(sent * 1_000_000_000 / (64 << 10));
        prop_assert!(rig.now.since(began) <= allowed + interval);
        let closed = rig.link(1).closed.as_ref().map(|reason| alloc::format!("{reason:?}"));
        prop_assert!(closed.is_some_and(|reason| reason.contains(&"data_out".to_string())));
    }
}

/// Goal: a task whose data is requested in several pieces has one time limit for all: small bursts
/// do not each have their own.
#[test]
fn small_bursts_have_one_time() {
    let mut rig = with_keys(SMALL_BURSTS);
    let began: Time = rig.now;
    let (_, r2t) = asked(&mut rig, 0, 65_536);
    let mut due = VecDeque::from([Due { tag: 100, r2t, sent_bytes: 0, data_sn: 0 }]);
    while rig.link(1).closed.is_none()
        && let Some(mut next) = due.pop_front()
    {
        assert!(send(&mut rig, &mut next, 512), "a burst");
        note(&mut rig, &mut due);
        rig.wait(20 * SECOND);
    }
    assert_eq!(rig.now.since(began), 40 * SECOND);
    let bursts: Vec<_> = due.iter().map(|due| due.r2t.buffer_offset_bytes).collect();
    assert_eq!(bursts, [1024], "two were sent");
    assert_late(&mut rig);
}
