//! Arbitrary input of a peer. Method: random sessions of up to three connections, with mostly
//! almost correct PDUs and an executor that answers late and in any order; invariants of all
//! outputs are checked after each step.

use super::super::{Input, Outcome};
use super::requests::*;
use super::rig::{Rig, pattern};
use crate::framing::{DataDestination, Pdu, TaskId};
use crate::pdu::{
    CommandFlags, DataIn, DataInFlags, HEADER_BYTES, LogoutReason, ManagementFunction, NopIn,
    Opcode, ReadyToTransfer, ScsiCommand, ScsiResponse, TAG_RESERVED,
};
use crate::session::target::{self as session, SessionLimits};
use alloc::collections::BTreeMap;
use alloc::vec::Vec;
use bytes::Bytes;
use core::time::Duration;
use lunar_wire::{Field, Lun, SerialNumber};

const WINDOW: u32 = 8;
const DATA_OUT_BYTES_MAX: u32 = 8192;

/// splitmix64.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    fn below(&mut self, bound: u32) -> u32 {
        (self.next() % u64::from(bound)) as u32
    }

    fn one_in(&mut self, bound: u32) -> bool {
        self.below(bound) == 0
    }

    fn pick<T: Copy>(&mut self, from: &[T]) -> T {
        from[self.below(from.len() as u32) as usize]
    }
}

/// Checks the invariants of all PDUs that a connection has sent.
#[derive(Default)]
struct InvariantChecker {
    next_stat_sn: u32,
    exp_cmd_sn: Option<SerialNumber>,
    max_cmd_sn: Option<SerialNumber>,
    /// Open R2Ts that may be answered: task tag, transfer tag, offset, length, next DataSN.
    open_r2ts: Vec<(u32, u32, u32, u32, u32)>,
}

impl InvariantChecker {
    fn check(&mut self, pdu: &Pdu, expected: &BTreeMap<u32, u32>) {
        let stat_sn = u32::get(&pdu.bhs[24..28]);
        let opcode = pdu.opcode();
        let takes = match opcode {
            Opcode::DATA_IN => DataIn::decode(&pdu.bhs).flags.has(DataInFlags::STATUS),
            Opcode::NOP_IN => NopIn::decode(&pdu.bhs).initiator_task_tag != TAG_RESERVED,
            Opcode::READY_TO_TRANSFER => false,
            _ => true,
        };
        if takes || opcode != Opcode::DATA_IN {
            assert_eq!(stat_sn, self.next_stat_sn, "StatSN of {opcode:?}");
        }
        self.next_stat_sn = self.next_stat_sn.wrapping_add(u32::from(takes));
        let exp_cmd_sn = SerialNumber::get(&pdu.bhs[28..32]);
        let max_cmd_sn = SerialNumber::get(&pdu.bhs[32..36]);
        assert!(self.exp_cmd_sn.is_none_or(|before| !exp_cmd_sn.before(before)));
        assert!(self.max_cmd_sn.is_none_or(|before| !max_cmd_sn.before(before)));
        assert!(!max_cmd_sn.before(exp_cmd_sn.minus(1)));
        assert!(max_cmd_sn.next().since(exp_cmd_sn) <= WINDOW);
        (self.exp_cmd_sn, self.max_cmd_sn) = (Some(exp_cmd_sn), Some(max_cmd_sn));
        if opcode == Opcode::SCSI_RESPONSE && ScsiResponse::decode(&pdu.bhs).status == 2 {
            assert!(pdu.data.len() > 2, "CHECK CONDITION without sense: RFC 7143 §11.4.7");
        }
        if opcode == Opcode::READY_TO_TRANSFER {
            let r2t = ReadyToTransfer::decode(&pdu.bhs);
            let end = r2t.buffer_offset_bytes + r2t.desired_length_bytes;
            assert!(end <= expected[&r2t.initiator_task_tag] && end <= DATA_OUT_BYTES_MAX);
            assert!((1..=2048).contains(&r2t.desired_length_bytes));
            self.open_r2ts.push((
                r2t.initiator_task_tag,
                r2t.target_transfer_tag,
                r2t.buffer_offset_bytes,
                r2t.desired_length_bytes,
                0,
            ));
        }
    }
}

struct RandomTraffic {
    rig: Rig,
    random: Random,
    next: u32,
    cids: Vec<u16>,
    checkers: BTreeMap<u16, InvariantChecker>,
    expected: BTreeMap<u32, u32>,
    /// Tasks that the executor is processing.
    executing: Vec<(u16, TaskId)>,
    good_writes: u32,
}

impl RandomTraffic {
    fn new(seed: u64) -> Self {
        let mut random = Random(seed);
        let mut rig = Rig::new();
        rig.session_limits = SessionLimits { window_commands: WINDOW };
        rig.limits.data_out_bytes_max = DATA_OUT_BYTES_MAX;
        rig.limits.immediate_commands_max = 4;
        rig.aborts_at_once = false;
        let keys = alloc::format!(
            "MaxConnections=3 MaxRecvDataSegmentLength=512 FirstBurstLength=1024 \
             MaxBurstLength=2048 MaxOutstandingR2T=2 InitialR2T={} ImmediateData={} \
             TaskReporting={}",
            random.pick(&["Yes", "No"]),
            random.pick(&["Yes", "No"]),
            random.pick(&["RFC3720", "ResponseFence"]),
        );
        let cids: Vec<u16> = (1..=1 + random.below(3) as u16).collect();
        cids.iter().for_each(|cid| rig.login(*cid, &keys));
        let checkers = cids.iter().map(|cid| (*cid, InvariantChecker::default())).collect();
        Self {
            rig,
            random,
            next: 0,
            cids,
            checkers,
            expected: BTreeMap::new(),
            executing: Vec::new(),
            good_writes: 0,
        }
    }

    fn run(&mut self) {
        for _ in 0..300 {
            if self.rig.ended {
                break;
            }
            match self.random.below(10) {
                0..4 => self.request(),
                4..6 => self.answer_r2t(),
                6..9 => self.execute(),
                _ => self.disturb(),
            }
            self.check();
        }
        self.finish();
    }

    /// Returns a command number, mostly the next in order, so that gaps are filled eventually.
    fn number(&mut self) -> u32 {
        let expected = self.rig.session.as_ref().unwrap().window().0.since(cmd_sn(0));
        self.next = expected;
        match self.random.below(16) {
            0 => expected.wrapping_add(self.random.below(20)).wrapping_sub(10),
            1..4 => expected + self.random.below(4),
            _ => expected,
        }
    }

    fn request(&mut self) {
        let cid = self.random.pick(&self.cids);
        let (number, tag) = (self.number(), self.random.below(12));
        let bytes = self.random.pick(&[0, 1, 512, 1024, 3000, 20_000]);
        let data = pattern(self.random.pick(&[0, 0, 0, 1, 512, 1024]));
        let mut bhs = match self.random.below(12) {
            0..3 => read(number, tag, bytes).encode(),
            3..7 => {
                let last = CommandFlags::NONE.with_if(self.random.one_in(2), CommandFlags::FINAL);
                command(number, tag, CommandFlags::WRITE | last, bytes).encode()
            }
            7 => {
                let function = ManagementFunction(1 + self.random.below(9) as u8);
                let mut pdu = management(self.next, tag | 0x100, function);
                pdu.referenced_task_tag = self.random.below(12);
                pdu.ref_cmd_sn = cmd_sn(self.next.wrapping_sub(self.random.below(4)));
                pdu.encode()
            }
            8 => text(number, tag).encode(),
            9 => nop_out(number, tag).encode(),
            10 => data_out(tag, self.random.below(9), 0, 0, self.random.one_in(2)).encode(),
            _ => pong(number, TAG_RESERVED, self.acknowledged(cid)).encode(),
        };
        bhs[15] = 0;
        if matches!(bhs[0] & 0x3f, 0x00..=0x04) && self.random.one_in(12) {
            bhs[0] ^= 0x40;
        }
        if self.random.one_in(60) {
            let at = self.random.below(HEADER_BYTES as u32) as usize;
            // The rig sets AHS and length.
            if !(4..8).contains(&at) {
                bhs[at] ^= 1 << self.random.below(8);
            }
        }
        let data = if bhs[0] & 0x3f == 0x02 { Vec::new() } else { data };
        if bhs[0] & 0x3f == Opcode::SCSI_COMMAND.0 {
            self.note_command(&bhs);
        }
        let digest_ok = !self.random.one_in(20);
        self.send(cid, bhs, &data, digest_ok);
    }

    /// Records the largest length of any command with this tag: an R2T may belong to an earlier
    /// one.
    fn note_command(&mut self, bhs: &[u8; HEADER_BYTES]) {
        let pdu = ScsiCommand::decode(bhs);
        let expected = self.expected.entry(pdu.initiator_task_tag).or_default();
        *expected = (*expected).max(pdu.expected_data_transfer_length);
    }

    fn acknowledged(&self, cid: u16) -> SerialNumber {
        SerialNumber(self.checkers[&cid].next_stat_sn)
    }

    fn answer_r2t(&mut self) {
        let cid = self.random.pick(&self.cids);
        let Some(checker) = self.checkers.get_mut(&cid) else { return };
        if checker.open_r2ts.is_empty() {
            return;
        }
        let (tag, ttt, offset, bytes, data_sn) = checker.open_r2ts[0];
        let part = bytes.min(self.random.pick(&[512, 1024, 2048]));
        let last = part == bytes;
        if last {
            checker.open_r2ts.remove(0);
        } else {
            checker.open_r2ts[0] = (tag, ttt, offset + part, bytes - part, data_sn + 1);
        }
        let mut pdu = data_out(tag, ttt, data_sn, offset, last);
        pdu.lun = Lun::new(1);
        match self.random.below(40) {
            0 => pdu.data_sn += 1,
            1 => pdu.buffer_offset_bytes ^= 4,
            2 => pdu.target_transfer_tag ^= 1,
            3 => pdu.flags.0 ^= 0x80,
            _ => {}
        }
        let digest_ok = !self.random.one_in(40);
        self.send(cid, pdu.encode(), &pattern(part as usize), digest_ok);
    }

    fn send(&mut self, cid: u16, bhs: [u8; HEADER_BYTES], data: &[u8], digest_ok: bool) {
        if self.rig.link(cid).closed.is_none() {
            self.rig.send_whole(cid, bhs, &[], data, digest_ok);
        }
    }

    fn execute(&mut self) {
        for cid in self.cids.clone() {
            if self.random.one_in(3) {
                self.answer_fault(cid);
            }
            let started = core::mem::take(&mut self.rig.link(cid).started);
            for task in started {
                self.executing.push((cid, task.id));
                if task.write {
                    let wanted = self.random.pick(&[0, 512, task.expected_bytes, u32::MAX]);
                    self.rig.wants(cid, task.id, wanted.min(1 << 20));
                }
            }
        }
        if self.executing.is_empty() {
            return;
        }
        let at = self.random.below(self.executing.len() as u32) as usize;
        let (cid, task) = self.executing[at];
        let ready = self.rig.link(cid).runs.contains(&task) || self.random.one_in(4);
        if ready || self.rig.link(cid).aborts.contains(&task) {
            self.executing.swap_remove(at);
            self.good_writes += u32::from(self.rig.link(cid).runs.contains(&task));
            let status = self.random.pick(&[0, 0, 0, 2]);
            let data_in = Bytes::from(pattern(self.random.pick(&[0, 512, 5000])));
            // Sense data with each CHECK CONDITION, as from the real target.
            let sense = if status == 2 { Bytes::from_static(&[0x70; 18]) } else { Bytes::new() };
            let outcome = Outcome { status, sense, data_in, ..Outcome::default() };
            self.rig.done(cid, task, outcome);
        }
    }

    fn answer_fault(&mut self, cid: u16) {
        self.rig.answer_fault(cid);
        self.rig.run_until_idle();
    }

    fn disturb(&mut self) {
        let cid = self.random.pick(&self.cids);
        match self.random.below(60) {
            0 => self.rig.input(cid, Input::PeerClosed),
            1 => {
                let reason = LogoutReason(self.random.below(3) as u8);
                let pdu = logout(self.next, 0x200, reason, self.random.pick(&[1, 2, 3]));
                self.send(cid, pdu.encode(), &[], true);
            }
            2 => self.rig.at_session(session::Input::End),
            3..10 => {
                let lun = self.random.pick(&[None, Some(Lun::new(1)), Some(Lun::new(5))]);
                self.rig.at_session(session::Input::AbortedByOther { id: 1, lun });
            }
            10..20 => self.rig.wait(Duration::from_secs(u64::from(self.random.below(8)))),
            20..30 => {
                let pdu = pong(self.next, TAG_RESERVED, self.acknowledged(cid));
                self.send(cid, pdu.encode(), &[], true);
            }
            _ => self.manage(),
        }
    }

    fn manage(&mut self) {
        for (id, ..) in core::mem::take(&mut self.rig.managed) {
            self.rig.managed(id);
        }
    }

    fn check(&mut self) {
        for cid in self.cids.clone() {
            for pdu in self.rig.sent(cid) {
                self.checkers.get_mut(&cid).unwrap().check(&pdu, &self.expected);
            }
            let link = self.rig.link(cid);
            for destination in core::mem::take(&mut link.receives) {
                if let DataDestination::Task { offset_bytes, buffer_bytes, .. } = destination {
                    assert!(offset_bytes <= buffer_bytes && buffer_bytes <= DATA_OUT_BYTES_MAX);
                }
            }
        }
        let tasks = self.rig.session.as_ref().unwrap().tasks();
        assert!(tasks <= (WINDOW + 4 * 3) as usize, "{tasks} tasks");
    }

    /// Ends everything and checks that nothing is left.
    fn finish(&mut self) {
        for cid in self.cids.clone() {
            self.rig.input(cid, Input::PeerClosed);
            let started = core::mem::take(&mut self.rig.link(cid).started);
            self.executing.extend(started.into_iter().map(|task| (cid, task.id)));
        }
        for (cid, task) in core::mem::take(&mut self.executing) {
            self.rig.good(cid, task);
        }
        for cid in self.cids.clone() {
            while !self.rig.link(cid).faults.is_empty() {
                self.answer_fault(cid);
            }
        }
        self.check();
        assert!(self.rig.links.values().all(|link| link.closed.is_some()));
        assert!(self.rig.ended);
        let waiting = self.rig.others_aborted.len();
        self.rig.at_session(session::Input::AbortedByOther { id: 9, lun: None });
        assert_eq!(self.rig.others_aborted[waiting..], [(9, 0)]);
        self.rig.assert_nothing_left();
    }
}

/// Goal: no panic, no wrong number, nothing held beyond its limits, nothing left at the end.
#[test]
fn random_sessions() {
    let mut written = 0;
    for seed in 0..1000 {
        std::println!("seed {seed}");
        let mut traffic = RandomTraffic::new(seed);
        traffic.run();
        written += traffic.good_writes;
    }
    assert!(written > 1500, "the sessions reach execution: {written} tasks ran with their data");
}

/// Goal: the same holds for bytes that are no valid requests. Method: random headers, random
/// lengths.
#[test]
fn random_headers() {
    for seed in 0..2000 {
        std::println!("seed {seed}");
        let mut random = Random(seed);
        let mut rig = Rig::new();
        rig.limits.data_out_bytes_max = DATA_OUT_BYTES_MAX;
        rig.login(1, random.pick(&["", "InitialR2T=No", "SessionType=Discovery"]));
        for _ in 0..30 {
            let mut bhs = [0; HEADER_BYTES];
            bhs.iter_mut().for_each(|byte| *byte = random.next() as u8);
            let opcode = random.pick(&[0x00, 0x01, 0x02, 0x04, 0x05, 0x10, 0x40, 0x41, 0x44, 0x3f]);
            bhs[0] = opcode;
            bhs[1] |= random.pick(&[0, 0x80, 0xa0]);
            bhs[24..28].copy_from_slice(&cmd_sn(random.below(10)).0.to_be_bytes());
            let ahs = pattern(4 * random.pick(&[0, 0, 0, 1, 7]));
            let data = pattern(random.pick(&[0, 0, 1, 8191, 8192, 8193]));
            rig.send_whole(1, bhs, &ahs, &data, !random.one_in(8));
            if rig.link(1).closed.is_some() {
                break;
            }
        }
        rig.input(1, Input::PeerClosed);
        for task in core::mem::take(&mut rig.link(1).started) {
            rig.good(1, task.id);
        }
        assert!(rig.ended);
        rig.assert_nothing_left();
    }
}

/// Goal: a session works normally after garbage. Method: rejected and ignored PDUs, then a read.
#[test]
fn the_session_is_usable_after_garbage() {
    let mut rig = Rig::normal("");
    for opcode in [0x07, 0x1c, 0x20, 0x3e, 0x10, 0x03] {
        let mut bhs = [0x55; HEADER_BYTES];
        bhs[0] = opcode;
        rig.send(1, bhs, &[1; 9]);
    }
    rig.sent(1);
    rig.send(1, read(0, 5, 0).encode(), &[]);
    let task = rig.started(1).id;
    rig.good(1, task);
    assert_eq!(ScsiResponse::decode(&rig.sent_one(1).bhs).status, 0);
}
