//! Unit attentions go to exactly the I_T nexuses concerned. SAM-5 §5.14, SPC-4 §5.12.
//!
//! Four sessions observe them: the one that acts; another initiator; one that reaches the same
//! unit through another target; one that sees another unit only. After each event every observer
//! lists the unit attentions that it received.

use crate::common::{
    CLEAR_TASK_SET, LOGICAL_UNIT_RESET, Rig, TARGET, answer_to, log_out, send_function, send_read,
};
use lunar_block::MemoryDevice;
use lunar_target::{Access, DiskUnit, DiskUnitOptions, LunOptions};
use lunar_testkit::raw::{RawClient, opcode};
use std::sync::Arc;

const OTHER_TARGET: &str = "iqn.2026-11.org.lunarsan.test:other-port";
const ABORT_TASK_SET: u8 = 2;

const MODE_PARAMETERS_CHANGED: u16 = 0x2a01;
const RESERVATIONS_PREEMPTED: u16 = 0x2a03;
const RESERVATIONS_RELEASED: u16 = 0x2a04;
const REGISTRATIONS_PREEMPTED: u16 = 0x2a05;
const ASYMMETRIC_ACCESS_STATE_CHANGED: u16 = 0x2a06;
const RESET_BY_FUNCTION: u16 = 0x2903;

/// Unit attentions that an observer received, in order.
type Attentions = Vec<u16>;

/// Sessions of the observers, the actor first.
struct ObservingSessions {
    all: Vec<RawClient>,
    rig: Rig,
}

/// Indexes of the observers in [`ObservingSessions::all`] and in the result of
/// [`ObservingSessions::take_all`].
const ACTOR: usize = 0;
const STRANGER: usize = 1;
const OTHER_PORT: usize = 2;
const OTHER_UNIT: usize = 3;

impl ObservingSessions {
    fn new() -> Self {
        let memory = MemoryDevice::new(1 << 20, 512, 4096).unwrap();
        let uuid = uuid::Uuid::from_u128(2);
        let second = DiskUnit::open(DiskUnitOptions::new(uuid, Arc::new(memory))).unwrap();
        let rig = Rig::with(|options| {
            let unit = Arc::clone(&options.targets[0].luns[0].unit);
            // Only the initiator of number 9 sees the second unit, as LUN 0.
            let nine = vec!["iqn.2026-11.org.lunarsan.test:raw-9".to_owned()];
            let others = (1..9).map(|n| format!("iqn.2026-11.org.lunarsan.test:raw-{n}"));
            options.targets[0].luns[0].access.initiators = others.collect();
            let only_nine = Access { initiators: nine, ..Access::default() };
            options.targets[0]
                .luns
                .push(LunOptions { access: only_nine, ..LunOptions::new(0, second) });
            options.targets.push(crate::common::target(OTHER_TARGET, unit));
        });
        let ports = [(1, TARGET), (2, TARGET), (3, OTHER_TARGET), (9, TARGET)];
        let log_in = |(number, target)| RawClient::log_in_as(&rig.address, target, number).unwrap();
        let mut observers = Self { all: ports.map(log_in).into(), rig };
        observers.take_all(); // takes those of the power on
        observers
    }

    /// Returns the unit attentions that each observer receives now, until there are no more.
    fn take_all(&mut self) -> Vec<Attentions> {
        self.all.iter_mut().map(take_attention_codes).collect()
    }

    /// Asserts that the observers received these unit attentions and no others.
    #[track_caller]
    fn assert_only(&mut self, what: &str, expected: &[(usize, u16)]) {
        let received = self.take_all();
        for (index, codes) in received.iter().enumerate() {
            let wanted = expected.iter().filter(|(who, _)| *who == index).map(|(_, code)| *code);
            assert_eq!(
                *codes,
                wanted.collect::<Attentions>(),
                "{what}: observer {index} of {received:04x?}"
            );
        }
    }

    #[track_caller]
    fn function(&mut self, function: u8) {
        let actor = &mut self.all[ACTOR];
        let tag = send_function(actor, function, u32::MAX);
        assert_eq!(answer_to(actor, tag).header[2], 0, "function complete");
    }

    /// Runs a command of `who` with a parameter list and asserts that it ends GOOD.
    #[track_caller]
    fn send_list(&mut self, who: usize, cdb: &[u8], list: &[u8]) {
        let raw = &mut self.all[who];
        let pdu = raw.command(0xa1, cdb, list.len() as u32);
        raw.send(&pdu.clone().with_data(list)).unwrap();
        let answer = answer_to(raw, pdu.u32_at(16));
        assert_eq!((answer.opcode(), answer.header[3]), (opcode::SCSI_RESPONSE, 0), "{cdb:02x?}");
    }

    /// Sends PERSISTENT RESERVE OUT.
    #[track_caller]
    fn reserve(&mut self, who: usize, action: u8, kind: u8, keys: [u64; 2]) {
        let mut list = [keys[0].to_be_bytes(), keys[1].to_be_bytes()].concat();
        list.resize(24, 0);
        self.send_list(who, &[0x5f, action, kind, 0, 0, 0, 0, 0, 24, 0], &list);
    }

    fn end(self) {
        self.all.into_iter().for_each(log_out);
        self.rig.stop_cleanly();
    }
}

/// Sends TEST UNIT READY until it succeeds; returns the codes of the unit attentions before that.
fn take_attention_codes(raw: &mut RawClient) -> Attentions {
    let mut codes = Vec::new();
    loop {
        let pdu = raw.command(0x80, &[0; 6], 0);
        raw.send(&pdu).unwrap();
        let (status, _, sense) = raw.outcome().unwrap();
        if status == 0 {
            return codes;
        }
        // The fixed-format sense data follow their length.
        assert_eq!((status, sense[4] & 0x0f), (2, 6), "a unit attention: {sense:02x?}");
        codes.push(u16::from_be_bytes([sense[14], sense[15]]));
    }
}

#[test]
fn mode_select_informs_other_nexuses() {
    let mut observers = ObservingSessions::new();
    let page = control_page(&mut observers.all[ACTOR]);
    for swp in [0x08, 0] {
        let mut list = [&[0; 4], &page[..]].concat();
        list[4 + 4] = list[4 + 4] & !0x08 | swp;
        observers.send_list(ACTOR, &[0x15, 0x10, 0, 0, list.len() as u8, 0], &list);
        let expected = [STRANGER, OTHER_PORT].map(|who| (who, MODE_PARAMETERS_CHANGED));
        observers.assert_only("MODE SELECT", &expected);
    }
    observers.end();
}

/// Returns the control page by MODE SENSE (6), without block descriptors.
fn control_page(raw: &mut RawClient) -> Vec<u8> {
    let (status, data) = raw.execute(&[0x1a, 0x08, 0x0a, 0, 255, 0], 255).unwrap();
    assert_eq!(status, 0);
    data[4..].to_vec()
}

/// Goal: a reset is reported to all nexuses that reach the unit. SPC and SAM leave it open whether
/// the nexus that requested the reset is informed, too.
#[test]
fn a_reset_is_reported_to_all_nexuses_of_the_unit() {
    let mut observers = ObservingSessions::new();
    observers.function(LOGICAL_UNIT_RESET);
    let received = observers.take_all();
    for who in [STRANGER, OTHER_PORT] {
        assert_eq!(received[who], [RESET_BY_FUNCTION], "{received:04x?}");
    }
    assert!(received[OTHER_UNIT].is_empty(), "{received:04x?}");
    observers.end();
}

/// Goal: CLEAR TASK SET, like ABORT TASK SET, affects tasks of the requesting nexus only (TST is
/// 001b: each nexus has its own task set), so no unit attention is sent. SPC-4 §7.5.8, SAM-5 §7.
#[test]
fn clearing_reaches_the_own_nexus_only() {
    let mut observers = ObservingSessions::new();
    let hang = lunar_block::Fault::new(lunar_block::Effect::Hang);
    observers.rig.device.inject(hang);
    let others = send_read(&mut observers.all[OTHER_PORT], 0, 8);
    for (count, function) in [ABORT_TASK_SET, CLEAR_TASK_SET].into_iter().enumerate() {
        send_read(&mut observers.all[ACTOR], 0, 8);
        observers.rig.wait_for("both reads hang", |rig| rig.device.hanging() == 2);
        observers.function(function);
        assert_eq!(observers.rig.device.hanging(), 1, "function {count}: its own is gone");
    }
    observers.rig.device.heal();
    observers.rig.device.release();
    let answer = answer_to(&mut observers.all[OTHER_PORT], others);
    assert_eq!((answer.opcode(), answer.data.len()), (opcode::DATA_IN, 8 * 512));
    observers.assert_only("CLEAR TASK SET", &[]);
    observers.end();
}

/// Goal: RELEASE informs the other registered nexuses if all registrants were concerned, PREEMPT
/// those whose registrations it removes, CLEAR the other registered ones. SPC-4 §5.12.11.
#[test]
fn changed_reservations_are_reported_to_registered_nexuses() {
    let mut observers = ObservingSessions::new();
    observers.reserve(ACTOR, 0, 0, [0, 1]);
    observers.reserve(STRANGER, 0, 0, [0, 2]);
    observers.assert_only("REGISTER", &[]);
    // A release of write exclusive, registrants only, concerns all registrants.
    observers.reserve(ACTOR, 1, 5, [1, 0]);
    observers.assert_only("RESERVE", &[]);
    observers.reserve(ACTOR, 2, 5, [1, 0]);
    observers.assert_only("RELEASE", &[(STRANGER, RESERVATIONS_RELEASED)]);
    observers.reserve(ACTOR, 4, 5, [1, 2]);
    observers.assert_only("PREEMPT", &[(STRANGER, REGISTRATIONS_PREEMPTED)]);
    observers.reserve(OTHER_PORT, 0, 0, [0, 3]);
    observers.reserve(ACTOR, 3, 0, [1, 0]);
    observers.assert_only("CLEAR", &[(OTHER_PORT, RESERVATIONS_PREEMPTED)]);
    observers.end();
}

/// Goal: a new state is reported to every nexus but the one that set it; an unchanged state is not
/// reported. SPC-4 §5.15.2.8.
#[test]
fn set_target_port_groups_informs_other_nexuses() {
    let mut observers = ObservingSessions::new();
    const ACTIVE_NON_OPTIMIZED: u8 = 1;
    let list = [0, 0, 0, 0, ACTIVE_NON_OPTIMIZED, 0, 0, 1];
    let cdb = [0xa4, 0x0a, 0, 0, 0, 0, 0, 0, 0, 8, 0, 0];
    observers.send_list(ACTOR, &cdb, &list);
    let expected = [STRANGER, OTHER_PORT].map(|who| (who, ASYMMETRIC_ACCESS_STATE_CHANGED));
    observers.assert_only("SET TARGET PORT GROUPS", &expected);
    observers.send_list(ACTOR, &cdb, &list);
    observers.assert_only("the same again", &[]);
    observers.end();
}
