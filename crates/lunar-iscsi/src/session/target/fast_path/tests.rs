//! Tests that the fast path and the general path agree.

use super::super::{Input, Output, SessionLimits};
use super::*;
use crate::framing::TaskId;
use crate::pdu::{MANAGEMENT_FUNCTIONS, ManagementFunction, ManagementResponse, TaskAttribute};
use crate::text::{SessionParameters, TaskReporting};
use alloc::collections::BTreeSet;
use alloc::format;
use alloc::vec;
use alloc::vec::Vec;
use lunar_wire::Lun;
use proptest::prelude::*;
use proptest::strategy::ValueTree;
use proptest::test_runner::{TestCaseResult, TestRunner};

macro_rules! kinds {
    ($($pattern:pat => $name:ident,)+) => {
        /// Names of all kinds of inputs.
        const KINDS: &[&str] = &[$(stringify!($name)),+];

        /// Name of the kind of an input. Without a wildcard: a new input does not compile before it
        /// has a row, and `every_input_is_generated` fails before a step generates it.
        fn kind(input: &Input) -> &'static str {
            match input {
                $($pattern => stringify!($name)),+
            }
        }
    };
}

kinds! {
    Input::Connection(_, ToSession::Arrived { request: Arrival::Command { .. }, .. }) => Command,
    Input::Connection(_, ToSession::Arrived { request: Arrival::Management { .. }, .. })
        => Function,
    Input::Connection(_, ToSession::Arrived { request: Arrival::Other, .. }) => Other,
    Input::Connection(_, ToSession::TaskEnded(_)) => TaskEnded,
    Input::Connection(_, ToSession::FenceResponse(_)) => FenceResponse,
    Input::Connection(_, ToSession::ConnectionClosing) => ConnectionClosing,
    Input::Connection(_, ToSession::ConnectionClosed) => ConnectionClosed,
    Input::Connection(_, ToSession::Logout { cid: None }) => SessionLogout,
    Input::Connection(_, ToSession::Logout { cid: Some(_) }) => ConnectionLogout,
    Input::Connection(_, ToSession::DropSession) => DropSession,
    Input::Connection(_, ToSession::Fenced(_)) => Fenced,
    Input::Join(_) => Join,
    Input::TaskEnded(_) => DetachedTaskEnded,
    Input::Replace(_) => Replace,
    Input::Managed { .. } => Managed,
    Input::AbortedByOther { .. } => AbortedByOther,
    Input::End => End,
}

/// Kinds that the fast path handles.
const FAST_KINDS: [&str; 2] = ["Command", "TaskEnded"];

/// Properties of a session that do not change.
#[derive(Clone, Debug)]
struct Setting {
    first_cmd_sn: u32,
    window_commands: u32,
    task_reporting: TaskReporting,
    error_recovery_level: u8,
    protocol_level: u8,
    /// The session knows that only unit 0 exists.
    knows_units: bool,
    administers: bool,
    refuses_resets: bool,
}

/// Description of an input, independent of the state of the session.
#[derive(Clone, Debug)]
enum Step {
    Arrive {
        cid: u16,
        /// Distance of the CmdSN from the last one that arrived in order.
        ahead: u32,
        immediate: bool,
        request: Request,
    },
    TaskEnded(OneTask),
    FenceResponse(OneTask),
    Fenced {
        nth: usize,
    },
    ConnectionClosing(u16),
    ConnectionClosed(u16),
    DetachedTaskEnded {
        nth: usize,
    },
    Logout {
        cid: u16,
        closed: Option<u16>,
    },
    DropSession(u16),
    Join(u16),
    Replace(u16),
    Managed {
        nth: usize,
        succeeds: bool,
    },
    AbortedByOther(Option<u16>),
    End,
}

#[derive(Clone, Debug)]
enum Request {
    Command { unit: u16 },
    Function { function: ManagementFunction, unit: u16, referenced: OneTask },
    Other,
}

/// One of the tasks of a connection.
#[derive(Clone, Copy, Debug)]
struct OneTask {
    cid: u16,
    nth: usize,
}

fn setting() -> impl Strategy<Value = Setting> {
    let first_cmd_sn = (u32::MAX - 20)..u32::MAX;
    let task_reporting = prop::sample::select(&[
        TaskReporting::Rfc3720,
        TaskReporting::ResponseFence,
        TaskReporting::FastAbort,
    ]);
    let flags = (prop::bool::weighted(0.3), prop::bool::weighted(0.8), prop::bool::weighted(0.2));
    let levels = (prop::sample::select(&[0u8, 2]), 1u8..3);
    (first_cmd_sn, 1u32..9, task_reporting, levels, flags).prop_map(
        |(first_cmd_sn, window_commands, task_reporting, levels, flags)| {
            let (error_recovery_level, protocol_level) = levels;
            let (knows_units, administers, refuses_resets) = flags;
            Setting {
                first_cmd_sn,
                window_commands,
                task_reporting,
                error_recovery_level,
                protocol_level,
                knows_units,
                administers,
                refuses_resets,
            }
        },
    )
}

/// The CID of one of two connections, mostly 1.
fn cid() -> impl Strategy<Value = u16> {
    prop_oneof![5 => Just(1u16), 1 => Just(2u16)]
}

fn unit() -> impl Strategy<Value = u16> {
    prop_oneof![4 => Just(0u16), 1 => Just(1u16)]
}

fn one_task() -> impl Strategy<Value = OneTask> {
    (cid(), 0usize..8).prop_map(|(cid, nth)| OneTask { cid, nth })
}

fn arrive() -> impl Strategy<Value = Step> {
    // Mostly the next number.
    let ahead = prop_oneof![12 => Just(1u32), 1 => Just(0u32), 1 => 2u32..4];
    let request = prop_oneof![
        30 => unit().prop_map(|unit| Request::Command { unit }),
        1 => Just(Request::Other),
    ];
    (cid(), ahead, prop::bool::weighted(0.1), request).prop_map(
        |(cid, ahead, immediate, request)| Step::Arrive { cid, ahead, immediate, request },
    )
}

/// A task management function. Half of them are immediate, and may overtake commands.
fn function() -> impl Strategy<Value = Step> {
    let function = prop_oneof![
        2 => Just(ManagementFunction::ABORT_TASK),
        3 => Just(ManagementFunction::QUERY_TASK_SET),
        6 => prop::sample::select(MANAGEMENT_FUNCTIONS).prop_map(|info| info.function),
    ];
    (cid(), 1u32..4, any::<bool>(), function, unit(), one_task()).prop_map(
        |(cid, ahead, immediate, function, unit, referenced)| {
            let ahead = if immediate { ahead } else { 1 };
            Step::Arrive {
                cid,
                ahead,
                immediate,
                request: Request::Function { function, unit, referenced },
            }
        },
    )
}

fn step() -> impl Strategy<Value = Step> {
    let closed = prop_oneof![2 => Just(None), 3 => (1u16..4).prop_map(Some)];
    let lun = prop_oneof![1 => Just(None), 2 => unit().prop_map(Some)];
    let managed = (0usize..3, prop::bool::weighted(0.8));
    prop_oneof![
        120 => arrive(),
        20 => function(),
        110 => one_task().prop_map(Step::TaskEnded),
        16 => one_task().prop_map(Step::FenceResponse),
        12 => (0usize..3).prop_map(|nth| Step::Fenced { nth }),
        3 => Just(Step::ConnectionClosing(1)),
        12 => Just(Step::ConnectionClosing(2)),
        1 => Just(Step::ConnectionClosed(1)),
        12 => Just(Step::ConnectionClosed(2)),
        24 => (0usize..3).prop_map(|nth| Step::DetachedTaskEnded { nth }),
        2 => (cid(), closed).prop_map(|(cid, closed)| Step::Logout { cid, closed }),
        1 => cid().prop_map(Step::DropSession),
        1 => Just(Step::Join(1)),
        16 => Just(Step::Join(2)),
        1 => cid().prop_map(Step::Replace),
        18 => managed.prop_map(|(nth, succeeds)| Step::Managed { nth, succeeds }),
        4 => lun.prop_map(Step::AbortedByOther),
        1 => Just(Step::End),
    ]
}

/// A case: the setting, and the steps, each with whether the outputs are taken after it.
fn case() -> impl Strategy<Value = (Setting, Vec<(Step, bool)>)> {
    let steps = (step(), prop::bool::weighted(0.8));
    (setting(), prop::collection::vec(steps, 1..100))
}

fn session(setting: &Setting) -> TargetSession {
    let limits = SessionLimits { window_commands: setting.window_commands };
    let parameters = SessionParameters {
        task_reporting: setting.task_reporting,
        error_recovery_level: setting.error_recovery_level,
        protocol_level: setting.protocol_level,
        ..SessionParameters::default()
    };
    let first_cmd_sn = SerialNumber(setting.first_cmd_sn);
    let mut session = TargetSession::new(1, parameters, first_cmd_sn, limits);
    if setting.knows_units {
        session.set_units([Lun::ZERO].into());
    }
    session.set_administers(setting.administers);
    session.set_refuses_resets(setting.refuses_resets);
    session
}

fn outputs(session: &mut TargetSession) -> Vec<Output> {
    core::iter::from_fn(|| session.poll()).collect()
}

/// Two sessions with the same inputs, one of which never uses the fast path.
struct Sessions {
    fast: TargetSession,
    general: TargetSession,
    /// Outputs of both since they were last compared.
    pending_outputs: [Vec<Output>; 2],
    /// Management functions and fences that wait for their answer.
    managed: Vec<u64>,
    fences: Vec<(u16, u64)>,
}

impl Sessions {
    fn new(setting: &Setting) -> Self {
        let (fast, general) = (session(setting), session(setting));
        let (pending_outputs, managed, fences) = Default::default();
        let mut sessions = Self { fast, general, pending_outputs, managed, fences };
        sessions.step(&Input::Join(1));
        sessions
    }

    /// Returns the input that a step means now; `None` if it means none. `number` is a new one for
    /// each step.
    fn input(&mut self, step: &Step, number: u32) -> Option<Input> {
        Some(match *step {
            Step::Arrive { cid, ahead, immediate, ref request } => {
                let request = self.request(request, number);
                let cmd_sn = self.general.window().0.minus(1).plus(ahead);
                let ticket = number.into();
                Input::Connection(cid, ToSession::Arrived { ticket, immediate, cmd_sn, request })
            }
            Step::TaskEnded(task) => {
                Input::Connection(task.cid, ToSession::TaskEnded(self.task(task)?))
            }
            Step::FenceResponse(task) => {
                Input::Connection(task.cid, ToSession::FenceResponse(self.task(task)?))
            }
            Step::Fenced { nth } => {
                let nth = nth.checked_rem(self.fences.len())?;
                let (cid, id) = self.fences.remove(nth);
                Input::Connection(cid, ToSession::Fenced(id))
            }
            Step::ConnectionClosing(cid) => Input::Connection(cid, ToSession::ConnectionClosing),
            Step::ConnectionClosed(cid) => Input::Connection(cid, ToSession::ConnectionClosed),
            Step::DetachedTaskEnded { nth } => {
                let left = self.general.tasks.iter().filter(|(_, known)| known.cid.is_none());
                let left: Vec<_> = left.map(|(task, _)| task).collect();
                Input::TaskEnded(left[nth.checked_rem(left.len())?])
            }
            Step::Logout { cid, closed } => {
                Input::Connection(cid, ToSession::Logout { cid: closed })
            }
            Step::DropSession(cid) => Input::Connection(cid, ToSession::DropSession),
            Step::Join(cid) => Input::Join(cid),
            Step::Replace(cid) => Input::Replace(cid),
            Step::Managed { nth, succeeds } => {
                let id = self.managed.remove(nth.checked_rem(self.managed.len())?);
                let response = match succeeds {
                    true => ManagementResponse::FUNCTION_COMPLETE,
                    false => ManagementResponse::LUN_DOES_NOT_EXIST,
                };
                Input::Managed { id, response, information: [0, 0, 1] }
            }
            Step::AbortedByOther(unit) => {
                Input::AbortedByOther { id: number.into(), lun: unit.map(Lun::new) }
            }
            Step::End => Input::End,
        })
    }

    fn request(&self, request: &Request, number: u32) -> Arrival {
        let initiator_task_tag = number;
        match *request {
            Request::Command { unit } => {
                let (task, lun) = (TaskId(number.into()), Lun::new(unit));
                let attribute = TaskAttribute::SIMPLE;
                Arrival::Command { task, initiator_task_tag, lun, attribute }
            }
            Request::Function { function, unit, referenced } => {
                let task = self.task(referenced).and_then(|task| self.general.tasks.get(task));
                let (tag, cmd_sn) = task
                    .map_or_else(Default::default, |task| (task.initiator_task_tag, task.cmd_sn.0));
                Arrival::Management {
                    initiator_task_tag,
                    function,
                    lun: Lun::new(unit),
                    referenced_task_tag: tag,
                    ref_cmd_sn: SerialNumber(cmd_sn),
                }
            }
            Request::Other => Arrival::Other,
        }
    }

    fn task(&self, task: OneTask) -> Option<TaskId> {
        let mine = self.general.tasks.iter().filter(|(_, known)| known.cid == Some(task.cid));
        let mine: Vec<_> = mine.map(|(task, _)| task).collect();
        Some(mine[task.nth.checked_rem(mine.len())?])
    }

    /// Gives both sessions an input; returns whether the fast path handled it.
    fn step(&mut self, input: &Input) -> bool {
        let reply = match input {
            Input::Connection(cid, message) => {
                self.fast.try_handle(*cid, message).map(|reply| Output::ToConnection(*cid, reply))
            }
            _ => None,
        };
        self.general.step(input.clone());
        let is_fast_path = reply.is_some();
        match reply {
            // The caller has the reply before any output that it has not taken yet.
            Some(reply) => self.pending_outputs[0].push(reply),
            None => self.fast.step(input.clone()),
        }
        is_fast_path
    }

    /// Takes and compares all outputs, and compares the states.
    fn compare(&mut self) -> TestCaseResult {
        self.pending_outputs[0].append(&mut outputs(&mut self.fast));
        self.pending_outputs[1].append(&mut outputs(&mut self.general));
        let [fast, general] = core::mem::take(&mut self.pending_outputs);
        prop_assert_eq!(&fast, &general);
        prop_assert_eq!(format!("{:?}", self.fast), format!("{:?}", self.general));
        for output in general {
            match output {
                Output::Manage { id, .. } => self.managed.push(id),
                Output::ToConnection(cid, ToConnection::Fence { id }) => {
                    self.fences.push((cid, id));
                }
                _ => {}
            }
        }
        Ok(())
    }
}

/// Kinds of the inputs that were generated, and of those that the fast path handled.
#[derive(Default)]
struct InputCounts {
    all: BTreeSet<&'static str>,
    fast: BTreeSet<&'static str>,
}

fn run(setting: &Setting, steps: &[(Step, bool)], seen: &mut InputCounts) -> TestCaseResult {
    let mut sessions = Sessions::new(setting);
    for (number, (step, takes_outputs)) in (1u32..).zip(steps) {
        if sessions.general.state == State::Ended {
            sessions.compare()?;
            sessions = Sessions::new(setting);
        }
        let Some(input) = sessions.input(step, number) else { continue };
        seen.all.insert(kind(&input));
        if sessions.step(&input) {
            seen.fast.insert(kind(&input));
        }
        if *takes_outputs {
            sessions.compare()?;
        }
    }
    sessions.compare()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(1024))]

    /// Goal: the fast path has the same result as the general path, and leaves the session in the
    /// same state, whatever else is happening in the session.
    /// Method: two sessions with the same steps, one of which never uses the fast path.
    #[test]
    fn a_reply_is_the_result_of_the_general_path((setting, steps) in case()) {
        run(&setting, &steps, &mut InputCounts::default())?;
    }
}

/// Goal: the property above covers every input of a session.
#[test]
fn every_input_is_generated() {
    let mut runner = TestRunner::deterministic();
    let mut seen = InputCounts::default();
    for _ in 0..100 {
        let (setting, steps) = case().new_tree(&mut runner).expect("a case").current();
        run(&setting, &steps, &mut seen).expect("both agree");
    }
    assert_eq!(seen.all, KINDS.iter().copied().collect());
    assert_eq!(seen.fast, FAST_KINDS.into());
}

/// Goal: the steps of every command use the fast path.
#[test]
fn a_command_uses_the_fast_path() {
    let limits = SessionLimits { window_commands: 4 };
    let parameters = SessionParameters::default();
    let mut session = TargetSession::new(1, parameters, SerialNumber(7), limits);
    session.step(Input::Join(1));
    assert_eq!(outputs(&mut session).len(), 1);
    let (lun, attribute) = (Lun::ZERO, TaskAttribute::SIMPLE);
    let task = TaskId(5);
    let request = Arrival::Command { task, initiator_task_tag: 9, lun, attribute };
    let cmd_sn = SerialNumber(7);
    let arrived = ToSession::Arrived { ticket: 3, immediate: false, cmd_sn, request };
    let [exp_cmd_sn, max_cmd_sn] = [8, 10].map(SerialNumber);
    let delivered = ToConnection::Deliver { ticket: 3, exp_cmd_sn, max_cmd_sn };
    assert_eq!(session.try_handle(1, &arrived), Some(delivered));
    let max_cmd_sn = SerialNumber(11);
    let window = ToConnection::Window { exp_cmd_sn, max_cmd_sn };
    assert_eq!(session.try_handle(1, &ToSession::TaskEnded(TaskId(5))), Some(window));
}
