//! A unit that attaches nexuses as late as their first commands reports the same to them as if they
//! had been attached since their logins.

use crate::unit::support::{options, port};
use lunar_scsi::attention::Attention;
use lunar_scsi::long_operation::{LongOperation, OperationKind, OperationWork};
use lunar_scsi::plan::{NexusId, Plan, Refusal};
use lunar_scsi::primary::PrimaryUnit;
use lunar_scsi::reservations::ItNexus;
use lunar_scsi::sense::{Sense, SenseKey};
use lunar_scsi::unit::{BlockUnit, Context, InitiatorPort, Logins, NexusOptions};
use proptest::prelude::*;
use std::cell::RefCell;

const INITIATORS: usize = 4;
const READY: [u8; 6] = [0; 6];
const REPORT_LUNS: [u8; 12] = [0xa0, 0, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0];

/// A session of an initiator.
#[derive(Clone, Debug)]
struct Session {
    nexus: NexusId,
    options: NexusOptions,
    /// True if the nexus is attached.
    is_attached: bool,
    /// True if its loss by I_T NEXUS RESET was reported to the unit.
    is_lost: bool,
    /// True if the initiator's last session was lost.
    follows_lost: bool,
}

/// The sessions for a unit; the index is the initiator's number.
#[derive(Debug, Default)]
struct Sessions(RefCell<[Option<Session>; INITIATORS]>);

impl Logins for Sessions {
    fn attach(&self, ports: &ItNexus, unit: &mut PrimaryUnit) {
        let mut sessions = self.0.borrow_mut();
        let mut there = sessions.iter_mut().flatten();
        if let Some(session) = there.find(|session| *session.options.ports == *ports) {
            attach(session, unit);
        }
    }
}

fn attach(session: &mut Session, unit: &mut PrimaryUnit) {
    if !session.is_attached {
        unit.attach_with(session.nexus, session.options.clone());
        session.is_attached = true;
    }
}

/// A unit with its sessions.
struct Rig {
    unit: BlockUnit,
    sessions: Sessions,
    /// True if nexuses are attached when they log in.
    early: bool,
    /// Initiators whose last session was lost.
    lost: [bool; INITIATORS],
    /// Ended sessions whose nexuses stay attached until their initiators return.
    kept: [Option<Session>; INITIATORS],
}

#[derive(Clone, Debug)]
enum Step {
    LogIn(usize),
    LogOut(usize),
    /// The session ends without a logout.
    Lose(usize),
    Announce(Attention),
    /// LOGICAL UNIT RESET.
    Reset(usize),
    /// I_T NEXUS RESET.
    NexusReset(usize),
    /// Query the pending unit attention of this nexus: QUERY ASYNCHRONOUS EVENT.
    Ask(usize),
    /// Send a command with its parameter list.
    Send(usize, Vec<u8>, Vec<u8>),
    BeginOperation(usize),
    EndOperation,
}

/// Unit attentions that an initiator received, and the end of its command.
#[derive(Clone, Debug, Default, PartialEq)]
struct ReceivedAttentions {
    attentions: Vec<u16>,
    end: Option<Result<bool, Refusal>>,
    event: Option<[u8; 3]>,
}

fn ports(initiator: usize) -> InitiatorPort {
    InitiatorPort { name: format!("iqn.2026-11.org.lunarsan:{initiator}"), isid: [0; 6] }
}

impl Rig {
    fn new(early: bool) -> Self {
        let (unit, sessions) = (BlockUnit::new(options()), Sessions::default());
        Self { unit, sessions, early, lost: [false; INITIATORS], kept: Default::default() }
    }

    /// Returns the nexus of an initiator, and attaches it.
    fn reach(&mut self, initiator: usize) -> Option<NexusId> {
        let mut sessions = self.sessions.0.borrow_mut();
        let session = sessions[initiator].as_mut()?;
        attach(session, &mut self.unit);
        Some(session.nexus)
    }

    fn known(&self, initiator: usize) -> Option<NexusId> {
        let sessions = self.sessions.0.borrow();
        sessions[initiator].as_ref().filter(|session| session.is_attached).map(|its| its.nexus)
    }

    fn end(&mut self, initiator: usize, lost: bool) {
        let session = self.sessions.0.borrow_mut()[initiator].take();
        let Some(session) = session.filter(|session| session.is_attached) else { return };
        if lost {
            self.unit.nexus_loss(session.nexus);
        }
        self.unit.detach(session.nexus);
        self.lost[initiator] = lost || session.is_lost;
    }

    /// Ends a session that was never reported to the unit: unit attentions of an earlier lost nexus
    /// stay pending. A rig that attached the nexus early keeps it for the next session.
    fn end_before_attachment(&mut self, initiator: usize) {
        if !self.follows_lost(initiator) {
            return self.end(initiator, false);
        }
        self.kept[initiator] = self.sessions.0.borrow_mut()[initiator].take();
    }

    fn follows_lost(&self, initiator: usize) -> bool {
        let sessions = self.sessions.0.borrow();
        sessions[initiator].as_ref().is_some_and(|session| session.follows_lost)
    }

    fn run(&mut self, nexus: NexusId, cdb: &[u8], list: &[u8]) -> Result<Plan, Refusal> {
        let port = port();
        let context = Context { logins: &self.sessions, ..Context::new(&[], &port) };
        match self.unit.plan(nexus, &context, cdb)? {
            Plan::Parameters { awaiting, .. } => self.unit.resume(nexus, &context, awaiting, list),
            plan => Ok(plan),
        }
    }

    /// Sends the command until there is no unit attention any more.
    fn send(&mut self, nexus: NexusId, cdb: &[u8], list: &[u8]) -> ReceivedAttentions {
        let mut received = ReceivedAttentions::default();
        loop {
            match self.run(nexus, cdb, list) {
                Err(Refusal::Check(Sense { key: SenseKey::UNIT_ATTENTION, code, .. })) => {
                    received.attentions.push(code);
                }
                // The list of nexuses whose tasks must be aborted may differ.
                end => {
                    received.end = Some(end.map(|plan| matches!(plan, Plan::Reply(_))));
                    return received;
                }
            }
        }
    }

    fn take(&mut self, step: &Step) -> ReceivedAttentions {
        match step {
            Step::LogOut(initiator) | Step::Lose(initiator) => {
                self.end(*initiator, matches!(step, Step::Lose(_)));
            }
            Step::Announce(attention) => self.unit.raise(attention.0, None),
            Step::Reset(initiator) => {
                let by = self.reach(*initiator);
                self.unit.reset(by);
            }
            Step::NexusReset(initiator) => {
                if let Some(nexus) = self.known(*initiator) {
                    self.unit.nexus_loss(nexus);
                    self.sessions.0.borrow_mut()[*initiator].as_mut().unwrap().is_lost = true;
                }
            }
            Step::Ask(initiator) => {
                if let Some(nexus) = self.reach(*initiator) {
                    let event = self.unit.pending_event(nexus);
                    return ReceivedAttentions { event, ..ReceivedAttentions::default() };
                }
            }
            Step::Send(initiator, cdb, list) => {
                if let Some(nexus) = self.reach(*initiator) {
                    return self.send(nexus, cdb, list);
                }
            }
            Step::BeginOperation(initiator) => {
                if let Some(nexus) = self.reach(*initiator) {
                    let operation = LongOperation {
                        kind: OperationKind::SANITIZE,
                        unrestricted_exit: false,
                        work: OperationWork::Deallocate,
                    };
                    let _ = self.unit.begin_operation(operation, nexus);
                }
            }
            Step::EndOperation => {
                if self.unit.operation().is_some() {
                    self.unit.set_operation_done();
                    self.unit.end_operation();
                }
            }
            Step::LogIn(_) => {}
        }
        ReceivedAttentions::default()
    }

    fn log_in(&mut self, initiator: usize, nexus: NexusId, options: &NexusOptions) {
        if let Some(session) = self.kept[initiator].take() {
            self.sessions.0.borrow_mut()[initiator] = Some(session);
            return;
        }
        let follows_lost = std::mem::take(&mut self.lost[initiator]);
        let (options, is_attached, is_lost) = (options.clone(), false, false);
        let mut session = Session { nexus, options, is_attached, is_lost, follows_lost };
        if self.early {
            attach(&mut session, &mut self.unit);
        }
        self.sessions.0.borrow_mut()[initiator] = Some(session);
    }
}

/// PERSISTENT RESERVE OUT with two keys; reserves for registrants only.
fn keyed(action: u8, key: u8, new: u8) -> (Vec<u8>, Vec<u8>) {
    let mut list = vec![0; 24];
    (list[7], list[15]) = (key, new);
    (vec![0x5f, action, 5, 0, 0, 0, 0, 0, 24, 0], list)
}

fn steps() -> impl Strategy<Value = Step> {
    let who = || 0..INITIATORS;
    let announced = prop::sample::select(vec![
        Attention::RESET_BY_FUNCTION,
        Attention::CAPACITY_DATA_HAS_CHANGED,
        Attention::MEDIUM_MAY_HAVE_CHANGED,
        Attention::REPORTED_LUNS_DATA_HAS_CHANGED,
    ]);
    let out = (who(), prop::sample::select(vec![0_u8, 1, 2, 3, 4, 5, 6]), who());
    let out = out.prop_map(move |(by, action, other)| {
        let (own, other) = (by as u8 + 1, other as u8 + 1);
        let (cdb, list) = match action {
            6 => keyed(action, 0, own),
            0 => keyed(action, own, 0),
            _ => keyed(action, own, other),
        };
        Step::Send(by, cdb, list)
    });
    let select = (who(), any::<bool>()).prop_map(|(by, is_descriptor)| {
        let mut list = vec![0, 0, 0, 0, 10, 10, 0, 0x10, 0, 0, 0, 0, 0, 0, 0, 0];
        list[6] = 0x22 | u8::from(is_descriptor) << 2;
        Step::Send(by, vec![0x15, 0x10, 0, 0, 16, 0], list)
    });
    prop_oneof![
        6 => who().prop_map(Step::LogIn),
        2 => who().prop_map(Step::LogOut),
        2 => who().prop_map(Step::Lose),
        3 => announced.prop_map(Step::Announce),
        1 => who().prop_map(Step::Reset),
        1 => who().prop_map(Step::NexusReset),
        2 => who().prop_map(Step::Ask),
        4 => who().prop_map(|by| Step::Send(by, READY.into(), vec![])),
        1 => who().prop_map(|by| Step::Send(by, REPORT_LUNS.into(), vec![])),
        1 => who().prop_map(|by| Step::Send(by, vec![0x16, 0, 0, 0, 0, 0], vec![])),
        1 => who().prop_map(|by| Step::Send(by, vec![0x17, 0, 0, 0, 0, 0], vec![])),
        2 => select,
        8 => out,
        1 => who().prop_map(Step::BeginOperation),
        1 => Just(Step::EndOperation),
    ]
}

/// True if the unit attentions of a nexus that was attached late, and whose loss the unit
/// remembered, are equivalent to those of a nexus attached all the time: the unit cannot determine
/// which of them came before the login, and a reset or a nexus loss implies all earlier ones.
fn is_as_good(late: &[u16], early: &[u16]) -> bool {
    let says_all = |code: &u16| {
        let all = [Attention::POWER_ON_RESET, Attention::RESET_BY_FUNCTION, Attention::NEXUS_LOSS];
        all.contains(&Attention(*code))
    };
    let implies = |received: &[u16], code: &u16| {
        received.contains(code) || !says_all(code) && received.first().is_some_and(says_all)
    };
    // Initiators whose nexus was lost are informed of an operation that they may have missed; a
    // nexus that stayed attached also of one that began between two of its sessions.
    let is_of_operation = |code: &u16| *code == Attention::MEDIUM_MAY_HAVE_CHANGED.0;
    let are_implied = |codes: &[u16], by: &[u16]| {
        codes.iter().all(|code| is_of_operation(code) || implies(by, code))
    };
    are_implied(late, early) && are_implied(early, late)
}

#[test]
fn a_reset_implies_other_attentions_but_no_other_reset() {
    const CAPACITY: u16 = Attention::CAPACITY_DATA_HAS_CHANGED.0;
    const RESET: u16 = Attention::RESET_BY_FUNCTION.0;
    const LOSS: u16 = Attention::NEXUS_LOSS.0;
    assert!(is_as_good(&[RESET, CAPACITY], &[RESET]));
    assert!(is_as_good(&[RESET], &[RESET, CAPACITY]));
    assert!(!is_as_good(&[CAPACITY], &[]));
    assert!(!is_as_good(&[], &[CAPACITY]));
    assert!(!is_as_good(&[LOSS], &[RESET]));
}

/// Goal: a registered nexus whose session has not sent a command yet is informed of changes to its
/// registration, and PREEMPT AND ABORT aborts its tasks: it may have sent commands that the unit
/// has not received.
#[test]
fn a_registered_nexus_need_not_have_sent_a_command() {
    const REGISTER_IGNORING: u8 = 6;
    const PREEMPT_AND_ABORT: u8 = 5;
    for (early, back) in [(true, true), (false, true), (false, false)] {
        let mut rig = Rig::new(early);
        let log_in = |rig: &mut Rig, initiator, nexus| {
            rig.log_in(initiator, NexusId(nexus), &NexusOptions::new(&ports(initiator), &port()));
        };
        for initiator in [0, 1] {
            log_in(&mut rig, initiator, initiator as u64);
            let (cdb, list) = keyed(REGISTER_IGNORING, 0, initiator as u8 + 1);
            let received = rig.take(&Step::Send(initiator, cdb, list));
            assert_eq!(received.end, Some(Ok(true)));
        }
        rig.end(0, false);
        if back {
            log_in(&mut rig, 0, 2);
        }
        let (cdb, list) = keyed(PREEMPT_AND_ABORT, 2, 1);
        let plan = rig.run(NexusId(1), &cdb, &list);
        if !back {
            assert_eq!(plan, Ok(Plan::Reply(vec![])));
            continue;
        }
        let nexuses = vec![NexusId(2)];
        assert_eq!(plan, Ok(Plan::AbortTasksOf { nexuses, save: false }), "{early}");
        let received = rig.take(&Step::Send(0, READY.into(), vec![]));
        let codes = [Sense::POWER_ON_RESET.code, Sense::REGISTRATIONS_PREEMPTED.code];
        assert_eq!(received.attentions, codes, "{early}");
    }
}

proptest! {
    /// Goal: whatever the order of logins, announcements and first commands, a nexus gets the same
    /// unit attentions, and its commands end in the same way, as if attached since its login.
    #[test]
    fn late_and_early_attachment_are_equivalent(
        steps in prop::collection::vec(steps(), 1..60),
    ) {
        let (mut early, mut late) = (Rig::new(true), Rig::new(false));
        for (at, step) in steps.iter().enumerate() {
            match *step {
                Step::LogIn(initiator) if late.sessions.0.borrow()[initiator].is_none() => {
                    let nexus = NexusId(at as u64);
                    let options = NexusOptions::new(&ports(initiator), &port());
                    early.log_in(initiator, nexus, &options);
                    late.log_in(initiator, nexus, &options);
                    continue;
                }
                Step::LogOut(initiator) | Step::Lose(initiator)
                    if late.known(initiator).is_none() =>
                {
                    early.end_before_attachment(initiator);
                    late.end(initiator, false);
                    continue;
                }
                // The unit has no state of this nexus that could be lost.
                Step::NexusReset(initiator) if late.known(initiator).is_none() => continue,
                _ => {}
            }
            let follows_lost = match *step {
                Step::Ask(initiator) | Step::Send(initiator, ..) => early.follows_lost(initiator),
                _ => false,
            };
            let (told_early, told_late) = (early.take(step), late.take(step));
            if !follows_lost {
                prop_assert_eq!(told_late, told_early, "{:?} of step {}", step, at);
                continue;
            }
            prop_assert_eq!(&told_late.end, &told_early.end, "{:?} of step {}", step, at);
            prop_assert_eq!(told_late.event.is_some(), told_early.event.is_some());
            prop_assert!(
                is_as_good(&told_late.attentions, &told_early.attentions),
                "{:04x?} for {:04x?} at step {}", told_late, told_early, at
            );
        }
    }
}
