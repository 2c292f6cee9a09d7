//! Tests that [`TargetConnection::handle_with_session`] agrees with [`TargetConnection::handle`].

use super::super::{Input, Outcome, Output, TargetConnection, Task};
use super::requests::{management, nop_out, read, write};
use super::rig::Rig;
use crate::framing::{Header, Pdu, SegmentDigest, TaskId};
use crate::pdu::{HEADER_BYTES, ManagementFunction, ManagementResponse};
use crate::session::target::{self as session, TargetSession, ToConnection, ToSession};
use alloc::collections::VecDeque;
use alloc::vec::Vec;
use bytes::Bytes;
use core::time::Duration;
use lunar_wire::{Field, Time, U24};
use proptest::prelude::*;

const CID: u16 = 1;
const KEYS: &str = "ImmediateData=Yes InitialR2T=No MaxOutstandingR2T=2 FirstBurstLength=1024";

/// A connection and its session. The connection calls the session directly, or by outputs that
/// the driver passes on.
struct Driver {
    machine: TargetConnection,
    session: TargetSession,
    /// True if the connection calls the session directly.
    is_direct: bool,
    now: Time,
    running: Vec<Task>,
    /// Answers that wait until the machine has no output.
    pending_inputs: VecDeque<Input>,
    log: Vec<Event>,
    closed: bool,
}

#[derive(Debug, PartialEq)]
enum Event {
    Start(Task),
    ToSession(ToSession),
    Send(Pdu),
    /// Any other output.
    Other(alloc::string::String),
}

/// An action of the initiator or of the executor.
#[derive(Clone, Debug)]
enum Step {
    /// A command without data-out, `ahead` of the next CmdSN; `at_once`: it ends as it starts.
    Read {
        ahead: u32,
        tag: u32,
        data_bytes: usize,
        at_once: bool,
    },
    /// A WRITE of 512 bytes, with immediate data or not.
    Write {
        tag: u32,
        with_data: bool,
        at_once: bool,
    },
    Function {
        function: ManagementFunction,
        tag: u32,
    },
    Ping {
        tag: u32,
    },
    /// The executor ends one of the running tasks.
    End {
        nth: usize,
        fenced: bool,
        status: u8,
    },
    /// The executor wants the data-out of a task.
    Wants {
        nth: usize,
    },
    Wait,
}

fn step() -> impl Strategy<Value = Step> {
    let tag = 0_u32..6;
    let functions = prop::sample::select(alloc::vec![
        ManagementFunction::ABORT_TASK_SET,
        ManagementFunction::LOGICAL_UNIT_RESET,
    ]);
    prop_oneof![
        8 => (prop_oneof![9 => Just(0), 1 => 1_u32..3], tag.clone(), 0_usize..1500, any::<bool>())
            .prop_map(|(ahead, tag, data_bytes, at_once)| {
                Step::Read { ahead, tag, data_bytes, at_once }
            }),
        4 => (tag.clone(), any::<bool>(), any::<bool>())
            .prop_map(|(tag, with_data, at_once)| Step::Write { tag, with_data, at_once }),
        1 => (functions, tag.clone()).prop_map(|(function, tag)| Step::Function { function, tag }),
        1 => tag.prop_map(|tag| Step::Ping { tag }),
        6 => (any::<prop::sample::Index>(), any::<bool>(), prop_oneof![4 => Just(0), 1 => Just(2)])
            .prop_map(|(nth, fenced, status)| {
                Step::End { nth: nth.index(8), fenced: fenced && status != 0, status }
            }),
        2 => (0_usize..4).prop_map(|nth| Step::Wants { nth }),
        1 => Just(Step::Wait),
    ]
}

impl Driver {
    fn new(is_direct: bool) -> Self {
        let mut rig = Rig::normal(KEYS);
        let now = rig.now;
        let machine = rig.links.remove(&CID).unwrap().machine;
        let session = rig.session.take().unwrap();
        let (running, pending_inputs, log) = (Vec::new(), VecDeque::new(), Vec::new());
        Self { machine, session, is_direct, now, running, pending_inputs, log, closed: false }
    }

    /// Passes a message to the session, which answers at once if it can.
    fn try_send_to_session(
        session: &mut TargetSession,
        log: &mut Vec<Event>,
        message: &ToSession,
    ) -> Option<ToConnection> {
        let answer = session.try_handle(CID, message)?;
        log.push(Event::ToSession(message.clone()));
        Some(answer)
    }

    fn send_to_session(&mut self, message: ToSession) {
        let Self { session, log, .. } = self;
        if let Some(answer) = Self::try_send_to_session(session, log, &message) {
            return self.machine.handle(self.now, Input::Session(answer));
        }
        self.log.push(Event::ToSession(message.clone()));
        self.session.handle(self.now, session::Input::Connection(CID, message));
        self.follow_session();
    }

    fn follow_session(&mut self) {
        while let Some(output) = self.session.poll() {
            match output {
                session::Output::ToConnection(_, message) => {
                    self.machine.handle(self.now, Input::Session(message));
                }
                session::Output::Manage { id, .. } => {
                    let response = ManagementResponse::FUNCTION_COMPLETE;
                    let done = session::Input::Managed { id, response, information: [0; 3] };
                    self.session.handle(self.now, done);
                }
                session::Output::OthersAborted { .. } | session::Output::Ended => {}
            }
        }
    }

    fn start(&mut self, started: Option<Task>) {
        let Some(task) = started else { return };
        self.log.push(Event::Start(task.clone()));
        // The step sets this bit of the CDB for a command that ends at once.
        match task.cdb[1] & 0x80 != 0 {
            true => {
                self.pass(done(task.id, Outcome { data_in: data_of(&task), ..Outcome::default() }));
            }
            false => self.running.push(task),
        }
    }

    /// Passes an input that may start or end a task.
    fn pass(&mut self, input: Input) {
        if !self.is_direct {
            return self.machine.handle(self.now, input);
        }
        let Self { machine, session, log, now, .. } = self;
        let started = machine.handle_with_session(*now, input, |message| {
            Self::try_send_to_session(session, log, message)
        });
        let started = started.cloned();
        self.start(started);
    }

    fn run_until_idle(&mut self) {
        loop {
            match self.machine.poll() {
                Output::Wait(deadline) => {
                    self.log.push(Event::Other(alloc::format!("{deadline:?}")));
                    match self.pending_inputs.pop_front() {
                        Some(input) => self.machine.handle(self.now, input),
                        None => return,
                    }
                }
                Output::ToSession(message) => self.send_to_session(message),
                Output::Start(task) => self.start(Some(task)),
                Output::Send(pdu) => self.log.push(Event::Send(pdu)),
                Output::Abort(task) => {
                    self.running.retain(|running| running.id != task);
                    self.log.push(Event::Other(alloc::format!("abort {task:?}")));
                    let outcome = Outcome::default();
                    self.pending_inputs.push_back(Input::Done { task, outcome });
                }
                output => {
                    self.closed |= matches!(output, Output::Close(_));
                    self.log.push(Event::Other(alloc::format!("{output:?}")));
                }
            }
        }
    }

    fn receive(&mut self, mut bhs: [u8; HEADER_BYTES], data: &[u8]) {
        U24::new(data.len() as u32).unwrap().put(&mut bhs[5..8]);
        self.pass(Input::Header(Header { bhs, ahs: [].into() }));
        self.run_until_idle();
        if !data.is_empty() && !self.closed {
            let (data, digest) = (Bytes::new(), SegmentDigest::None);
            self.pass(Input::Payload { data, digest });
            self.run_until_idle();
        }
    }

    fn step(&mut self, next: &mut u32, step: &Step) {
        let ends = |mut bhs: [u8; HEADER_BYTES], at_once: bool| {
            bhs[33] |= u8::from(at_once) << 7;
            bhs
        };
        match *step {
            Step::Read { ahead, tag, data_bytes, at_once } => {
                let number = next.wrapping_add(ahead);
                *next = next.wrapping_add(u32::from(ahead == 0));
                let pdu = read(number, tag, data_bytes as u32);
                self.receive(ends(pdu.encode(), at_once), &[]);
            }
            Step::Write { tag, with_data, at_once } => {
                let number = *next;
                *next = next.wrapping_add(1);
                let pdu = write(number, tag, 512);
                let data: &[u8] = if with_data { &[7; 512] } else { &[] };
                self.receive(ends(pdu.encode(), at_once && with_data), data);
            }
            Step::Function { function, tag } => {
                self.receive(management(*next, tag, function).encode(), &[]);
            }
            Step::Ping { tag } => {
                self.receive(nop_out(*next, tag).encode(), &[]);
                *next = next.wrapping_add(1);
            }
            Step::End { nth, fenced, status } if !self.running.is_empty() => {
                let task = self.running.remove(nth % self.running.len());
                let data_in = data_of(&task);
                self.pass(done(task.id, Outcome { fenced, status, data_in, ..Outcome::default() }));
                self.run_until_idle();
            }
            Step::Wants { nth } if !self.running.is_empty() => {
                let task = &self.running[nth % self.running.len()];
                let (task, bytes) = (task.id, task.expected_data_out_bytes());
                self.machine.handle(self.now, Input::Wants { task, offset_bytes: 0, bytes });
                self.run_until_idle();
            }
            Step::End { .. } | Step::Wants { .. } => {}
            Step::Wait => {
                self.now = self.now.after(Duration::from_secs(20));
                self.machine.handle(self.now, Input::Deadline);
                self.run_until_idle();
            }
        }
    }
}

fn done(task: TaskId, outcome: Outcome) -> Input {
    Input::Done { task, outcome }
}

fn data_of(task: &Task) -> Bytes {
    Bytes::from(super::rig::pattern(task.expected_data_in_bytes() as usize))
}

proptest! {
    /// Goal: commands arrive, start, answer and end in the same way whether the connection calls
    /// the session directly or by outputs: the same messages, PDUs and deadlines in the same order.
    #[test]
    fn direct_calls_change_nothing(steps in prop::collection::vec(step(), 1..80)) {
        let (mut at_once, mut by_outputs) = (Driver::new(true), Driver::new(false));
        let (mut next, mut same_next) = (0, 0);
        for step in &steps {
            at_once.step(&mut next, step);
            by_outputs.step(&mut same_next, step);
            prop_assert_eq!(&at_once.log, &by_outputs.log, "{:?}", step);
            prop_assert_eq!(&at_once.running, &by_outputs.running);
            prop_assert_eq!(at_once.machine.tasks(), by_outputs.machine.tasks());
            if at_once.closed {
                break;
            }
        }
    }
}
