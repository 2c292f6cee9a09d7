//! The state machine: login, full feature phase, end. RFC 7143 §8.1.

use super::full_feature::FullFeature;
use super::limits::seconds;
use super::task::{Entry, Phase};
use super::{CloseReason, ConnectionLimits, Input, Output, Outputs, Task};
use crate::framing::{DataDestination, Digests, Pdu, TaskId};
use crate::login::target::{Step, TargetLogin};
use crate::pdu::Opcode;
use crate::session::target::{ToConnection, ToSession};
use alloc::boxed::Box;
use alloc::vec::Vec;
use lunar_wire::{SerialNumber, Time};

/// One iSCSI connection in the target role: no socket, no clock, no lock.
///
/// After each [`handle`](Self::handle), call [`poll`](Self::poll) until it returns
/// [`Output::Wait`]; also once before the first `handle`, for the deadline of the login. At
/// [`Output::Close`] no task of this connection can have an effect any more, and the session has
/// been informed. A task that the session keeps is an exception: the executor continues with it,
/// and answers `Done` as ever, which becomes [`Output::DetachedTaskEnded`].
#[derive(Debug)]
pub struct TargetConnection {
    state: State,
    outputs: Outputs,
}

/// Maximum capacity of the output queue kept while it is empty.
const OUTPUTS_KEPT_MAX: usize = 16;

#[derive(Debug)]
enum State {
    Login(Box<Login>),
    FullFeature(Box<FullFeature>),
    Over(Box<Closed>),
}

/// The rest of a connection that has closed.
#[derive(Debug)]
struct Closed {
    /// Tasks that were left to the session and have not ended.
    detached: Vec<TaskId>,
}

impl State {
    /// Stamps the command window, which responses of the login already carry.
    fn stamp_window(&mut self, pdu: &mut Pdu) {
        if let Self::FullFeature(phase) = self
            && pdu.opcode() != Opcode::LOGIN_RESPONSE
        {
            phase.numbering.stamp_window(&mut pdu.bhs);
        }
    }

    /// Ends the connection.
    #[cold]
    fn close(&mut self) {
        let detached = match self {
            Self::FullFeature(phase) => core::mem::take(&mut phase.detached),
            Self::Login(_) | Self::Over(_) => Vec::new(),
        };
        *self = Self::Over(Box::new(Closed { detached }));
    }
}

impl Closed {
    /// Reports the end of a task that was left to the session.
    #[cold]
    fn done(&mut self, task: TaskId, out: &mut Outputs) {
        if let Some(at) = self.detached.iter().position(|left| *left == task) {
            self.detached.swap_remove(at);
            out.push_back(Output::DetachedTaskEnded(task));
        }
    }
}

#[derive(Debug)]
struct Login {
    limits: ConnectionLimits,
    login: TargetLogin,
    /// Set by the first input.
    deadline: Option<Time>,
    /// True while the session is being created or found.
    joining: bool,
    /// Reason to close once the session has answered.
    closing: Option<CloseReason>,
}

impl TargetConnection {
    /// Creates an accepted connection; `first_stat_sn` goes into its first response.
    pub fn new(limits: ConnectionLimits, first_stat_sn: SerialNumber) -> Self {
        let login = Login {
            login: TargetLogin::new(first_stat_sn, limits.text_bytes_max),
            limits,
            deadline: None,
            joining: false,
            closing: None,
        };
        Self { state: State::Login(Box::new(login)), outputs: Outputs::new() }
    }

    /// Handles one input. Infallible: protocol violations of the peer are answered on the wire.
    #[inline(always)]
    pub fn handle(&mut self, now: Time, input: Input) {
        self.handle_with_session(now, input, |_| None);
    }

    /// Handles one input, and asks the session at once instead of by [`Output::ToSession`]: `ask`
    /// hands it a message and returns the answer, if the session has a single one. If a command is
    /// thereby delivered, its task is returned, without an [`Output::Start`].
    ///
    /// Most commands pass without a message in a queue that way, as they arrive and as they end.
    #[inline(always)]
    pub fn handle_with_session(
        &mut self,
        now: Time,
        input: Input,
        ask: impl FnOnce(&ToSession) -> Option<ToConnection>,
    ) -> Option<&Task> {
        if !matches!(self.state, State::FullFeature(_)) {
            self.handle_outside(now, input);
            return None;
        }
        match &mut self.state {
            State::FullFeature(phase) => phase.handle(now, input, &mut self.outputs, ask),
            State::Login(_) | State::Over(_) => None,
        }
    }

    /// Handles an input before or after full feature phase.
    #[inline(never)]
    fn handle_outside(&mut self, now: Time, input: Input) {
        match &mut self.state {
            State::Login(login) => {
                if let Some(next) = login.handle(now, input, &mut self.outputs) {
                    self.state = State::FullFeature(next);
                }
            }
            State::Over(closed) => {
                if let Input::Done { task, .. } | Input::Failed { task, .. } = input {
                    closed.done(task, &mut self.outputs);
                }
            }
            State::FullFeature(_) => {}
        }
    }

    /// Returns the next output. ExpCmdSN and MaxCmdSN are stamped here, as late as possible.
    #[inline(always)]
    pub fn poll(&mut self) -> Output {
        // Stamped in the queue, because moving outputs is expensive.
        match self.outputs.front_mut() {
            Some(Output::Send(pdu)) => self.state.stamp_window(pdu),
            Some(Output::Close(_)) => self.state.close(),
            Some(_) => {}
            None => return self.wait(),
        }
        match self.outputs.pop_front() {
            Some(output) => output,
            None => Output::Wait(None),
        }
    }

    /// Returns `Wait`, or a NOP-In if the window has opened and no PDU has reported it.
    #[inline(never)]
    fn wait(&mut self) -> Output {
        if let State::FullFeature(phase) = &mut self.state
            && let Some(mut nop_in) = phase.window_update()
        {
            self.state.stamp_window(&mut nop_in);
            return Output::Send(nop_in);
        }
        Output::Wait(self.waits_until())
    }

    fn waits_until(&self) -> Option<Time> {
        match &self.state {
            // No deadline while only the answer of the session is missing before the end.
            State::Login(login) if login.closing.is_some() => None,
            State::Login(login) => Some(login.deadline.unwrap_or_default()),
            State::FullFeature(phase) => phase.deadline(),
            State::Over(_) => None,
        }
    }

    /// The digests in force once all outputs so far are carried out.
    pub fn digests(&self) -> Digests {
        match &self.state {
            State::FullFeature(phase) => phase.parameters.digests,
            State::Login(_) | State::Over(_) => Digests::default(),
        }
    }

    /// True if the next PDU may be passed: no answer of the driver or the session is due that must
    /// come first.
    pub fn can_receive(&self) -> bool {
        match &self.state {
            State::Login(login) => !login.login.is_waiting_for_driver(),
            State::FullFeature(phase) => phase.can_receive(),
            State::Over(_) => false,
        }
    }

    /// Memory of current and former tasks and requests, of the login or the text exchange, and of
    /// the Target Transfer Tags of terminated tasks, including the session's entries for them.
    pub fn task_memory_bytes(&self) -> usize {
        let outputs = self.outputs.capacity().saturating_sub(OUTPUTS_KEPT_MAX);
        match &self.state {
            State::FullFeature(phase) => phase.task_memory_bytes() + outputs * size_of::<Output>(),
            State::Login(login) => login.login.memory_bytes(),
            State::Over(closed) => closed.detached.capacity() * size_of::<TaskId>(),
        }
    }

    /// Frees memory that is not needed any more.
    pub fn free_spare_memory(&mut self) {
        if self.outputs.is_empty() && self.outputs.capacity() > OUTPUTS_KEPT_MAX {
            self.outputs = Outputs::new();
        }
        if let State::FullFeature(phase) = &mut self.state {
            phase.tasks.free_spare();
        }
    }

    /// True once `Close` was returned: no input has an effect any more, except the ends of tasks
    /// that were left to the session.
    pub fn is_over(&self) -> bool {
        matches!(self.state, State::Over(_))
    }

    /// The tasks that were left to the session and have not ended.
    pub fn detached_tasks(&self) -> &[TaskId] {
        match &self.state {
            State::Over(closed) => &closed.detached,
            State::Login(_) | State::FullFeature(_) => &[],
        }
    }

    /// Number of tasks that have not ended.
    pub fn tasks(&self) -> usize {
        match &self.state {
            State::FullFeature(phase) => phase.tasks.len(),
            State::Over(closed) => closed.detached.len(),
            State::Login(_) => 0,
        }
    }

    /// Number of requests that wait for delivery or for the answer of the session.
    pub fn requests(&self) -> usize {
        match &self.state {
            State::FullFeature(phase) => {
                let waits = |entry: &&Entry| entry.phase == Phase::Waiting;
                phase.requests.len() + phase.tasks.entries().filter(waits).count()
            }
            State::Login(_) | State::Over(_) => 0,
        }
    }
}

impl Login {
    /// Handles one input; returns the full feature phase when the login is complete.
    #[cold]
    fn handle(&mut self, now: Time, input: Input, out: &mut Outputs) -> Option<Box<FullFeature>> {
        let deadline = *self.deadline.get_or_insert(now.after(seconds(self.limits.login_seconds)));
        let mut steps = Vec::new();
        match input {
            Input::Header(header) => {
                let has_data = header.data_segment_bytes() > 0;
                let wanted = self.closing.is_none() && self.login.on_header(&header, &mut steps);
                if has_data {
                    let destination =
                        if wanted { DataDestination::Control } else { DataDestination::Discard };
                    out.push_back(Output::Receive(destination));
                }
            }
            Input::Payload { data, digest: _ } => self.login.on_payload(data, &mut steps),
            Input::Identified(answer) => self.login.identified(*answer, &mut steps),
            Input::Joined(answer) => {
                self.joining = false;
                if let Some(reason) = self.closing.take() {
                    if answer.is_ok() {
                        out.push_back(Output::ToSession(ToSession::ConnectionClosed));
                    }
                    out.push_back(Output::Close(reason));
                    return None;
                }
                self.login.joined(answer, &mut steps);
            }
            Input::Deadline if deadline <= now => {
                self.close(CloseReason::TimedOut("the login took too long"), out);
            }
            Input::HeaderDigestError => {
                let what = "a header digest is not allowed during the login";
                self.close(CloseReason::Violation(what.into()), out);
            }
            Input::PeerClosed => self.close(CloseReason::Ended, out),
            Input::Shutdown { .. } | Input::Session(ToConnection::Close) => {
                self.close(CloseReason::Dropped, out);
            }
            // Inputs of the full feature phase cannot occur yet.
            Input::Deadline
            | Input::PeerAccepts { .. }
            | Input::Session(_)
            | Input::Targets { .. }
            | Input::Wants { .. }
            | Input::Stream(_)
            | Input::DataIn { .. }
            | Input::DataInBegin { .. }
            | Input::DataInPart { .. }
            | Input::Done { .. }
            | Input::Failed { .. } => {}
        }
        self.execute_steps(now, steps, out)
    }

    fn execute_steps(
        &mut self,
        now: Time,
        steps: Vec<Step>,
        out: &mut Outputs,
    ) -> Option<Box<FullFeature>> {
        let mut next = None;
        for step in steps {
            match step {
                Step::Send(pdu) => out.push_back(Output::Send(pdu)),
                Step::Identify(claim) => out.push_back(Output::Identify(Box::new(claim))),
                Step::Join(join) => {
                    self.joining = true;
                    out.push_back(Output::Join(Box::new(join)));
                }
                Step::Complete(established) => {
                    out.push_back(Output::FullFeature(established.join.connection));
                    let phase = FullFeature::new(now, self.limits.clone(), *established);
                    next = Some(Box::new(phase));
                }
                Step::Refused(status) => {
                    let why = self.login.reason().unwrap_or_default().into();
                    self.close(CloseReason::LoginRefused { status, why }, out);
                }
                Step::Close(why) => self.close(CloseReason::Violation(why.into()), out),
            }
        }
        next
    }

    fn close(&mut self, reason: CloseReason, out: &mut Outputs) {
        if self.closing.is_some() {
            return;
        }
        self.closing = Some(reason.clone());
        // The session must learn of the end if it was created for a connection that is gone.
        if !self.joining {
            out.push_back(Output::Close(reason));
        }
    }
}
