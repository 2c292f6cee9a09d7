//! The task that owns a connection: it drives the protocol machines and serves the handles.

use crate::attentions::Attentions;
use crate::{Error, ErrorKind};
use block::Buffer;
use bytes::Bytes;
use iscsi::connection::initiator::{
    CloseReason, Command, CommandResult, ConnectionOptions, Failure, InitiatorConnection, Input,
    Output, SendTargets,
};
use iscsi::connection::target::TargetRecord;
use iscsi::framing::{Header, Place, TaskId};
use iscsi::login::initiator::{Established, LoginFailure};
use iscsi::pdu::{AsyncEvent, LoginStatus, LogoutReason};
use iscsi::session::initiator::{
    InitiatorSession, Input as SessionInput, Output as SessionOutput, ToSession,
};
use net::Outbox;
use std::collections::HashMap;
use std::sync::{Arc, OnceLock};
use std::task::{Context, Poll};
use tokio::sync::{mpsc, oneshot};
use wire::{Lun, Time};

/// The only connection of a session.
pub(crate) const CID: u16 = 0;
/// Requests taken from the handles and not yet answered.
const PENDING_MAX: usize = 512;

/// What a handle asks for.
pub(crate) enum Request {
    /// Execute a command; data-in goes to `data_in`, as long as is expected.
    Execute {
        lun: Lun,
        cdb: Bytes,
        data_out: Bytes,
        data_in: Option<Buffer>,
        answer: oneshot::Sender<Result<Executed, Error>>,
    },
    /// Ask for targets.
    SendTargets { answer: oneshot::Sender<Result<Vec<TargetRecord>, Error>> },
    /// Log out and end.
    Logout { answer: oneshot::Sender<Result<(), Error>> },
}

/// A command that the target answered.
pub(crate) struct Executed {
    pub(crate) result: CommandResult,
    pub(crate) data_in: Option<Buffer>,
}

impl Executed {
    /// The data that came.
    pub(crate) fn data_in(&self) -> &[u8] {
        let data = self.data_in.as_deref().unwrap_or_default();
        data.get(..self.result.data_in_bytes as usize).unwrap_or(data)
    }
}

enum Pending {
    Command {
        lun: Lun,
        data_in: Option<Buffer>,
        answer: oneshot::Sender<Result<Executed, Error>>,
        /// The machine did not take it, because the connection was about to end.
        unsent: bool,
    },
    Targets {
        answer: oneshot::Sender<Result<Vec<TargetRecord>, Error>>,
    },
}

/// Where the payload in hand goes.
enum Filling {
    Nowhere,
    Control { buffer: Vec<u8>, filled: usize },
    Command { id: TaskId, at: usize },
}

/// How a login went.
pub(crate) type LoginAnswer = oneshot::Sender<Result<Box<Established>, Ended>>;

/// Why a connection is over.
#[derive(Clone, Debug)]
pub(crate) struct Ended {
    pub(crate) error: Error,
    /// Log in there instead.
    pub(crate) redirect: Option<String>,
}

/// A connection's machines and what waits for them.
pub(crate) struct Client {
    machine: InitiatorConnection,
    /// The machine's first outputs were taken.
    started: bool,
    session: InitiatorSession,
    requests: mpsc::Receiver<Request>,
    /// All handles are gone, or a logout was asked for.
    closing: bool,
    /// The target wants to be left; the machine logs out. Nothing more is begun.
    leaving: bool,
    pending: HashMap<TaskId, Pending>,
    /// Of these, what the machine did not take, and why.
    refused: Vec<(TaskId, &'static str)>,
    next_id: u64,
    filling: Filling,
    segment_bytes: usize,
    deadline: Option<Time>,
    over: Option<CloseReason>,
    login: Option<LoginAnswer>,
    logout: Option<oneshot::Sender<Result<(), Error>>>,
    portal: String,
    news: News,
}

/// What a session tells those who hold it, besides answers.
#[derive(Clone, Debug)]
pub(crate) struct News {
    /// The session's number among those of its [`Initiator`](crate::Initiator).
    pub(crate) number: u64,
    /// What units said unasked.
    pub(crate) attentions: Arc<Attentions>,
    /// Why it ended.
    pub(crate) ended: Arc<OnceLock<Error>>,
}

impl Client {
    pub(crate) fn new(
        options: ConnectionOptions,
        session: InitiatorSession,
        requests: mpsc::Receiver<Request>,
        login: LoginAnswer,
        portal: String,
        news: News,
        now: Time,
    ) -> Self {
        Self {
            machine: InitiatorConnection::new(now, options),
            started: false,
            session,
            requests,
            closing: false,
            leaving: false,
            pending: HashMap::new(),
            refused: Vec::new(),
            next_id: 0,
            filling: Filling::Nowhere,
            segment_bytes: 0,
            deadline: None,
            over: None,
            login: Some(login),
            logout: None,
            portal,
            news,
        }
    }

    /// Hands an input to the machine, and does what it asks for.
    fn handle(&mut self, now: Time, input: Input, out: &mut Outbox) {
        self.machine.handle(now, input);
        self.pump(now, out);
    }

    fn pump(&mut self, now: Time, out: &mut Outbox) {
        loop {
            match self.machine.poll() {
                Output::Wait(deadline) => {
                    self.deadline = deadline;
                    self.settle_refused();
                    return;
                }
                Output::ToSession(said) => self.tell_session(now, said),
                output => self.obey(output, out),
            }
        }
    }

    /// The session's answers go back at once.
    fn tell_session(&mut self, now: Time, said: ToSession) {
        self.session.handle(SessionInput::Connection(CID, said));
        while let Some(output) = self.session.poll() {
            if let SessionOutput::ToConnection(_, said) = output {
                self.machine.handle(now, Input::Session(said));
            }
        }
    }

    fn obey(&mut self, output: Output, out: &mut Outbox) {
        match output {
            Output::Receive(place) => self.receive(place),
            Output::Send(pdu) => out.push(&pdu),
            Output::FullFeature(parameters) => out.set_digests(parameters.digests),
            Output::LoggedIn(established) => {
                if let Some(answer) = self.login.take() {
                    // Nobody waits any more: the handle's future was dropped.
                    let _ = answer.send(Ok(Box::new(established)));
                }
            }
            Output::Completed { id, result } => self.completed(id, result),
            Output::Targets { result: Err(Failure::Lost), .. } => {}
            Output::Targets { id, result } => {
                if let Some(Pending::Targets { answer }) = self.pending.remove(&id) {
                    let _ = answer.send(result.map_err(|failure| self.failed(failure)));
                }
            }
            Output::LoggedOut { result } => {
                if let Some(answer) = self.logout.take() {
                    let _ = answer.send(result.map(drop).map_err(|failure| self.failed(failure)));
                }
            }
            Output::Event(event) => {
                tracing::info!(?event, portal = %self.portal, "told by the target");
                self.leaving |= event.event == AsyncEvent::LOGOUT_REQUESTED;
            }
            Output::Close(reason) => self.over = Some(reason),
            // Never asked for here; pings are the machine's own.
            Output::Managed { .. } | Output::Pong { .. } | Output::Text { .. } => {}
            Output::ToSession(_) | Output::Wait(_) => {}
        }
    }

    fn receive(&mut self, place: Place) {
        self.filling = match place {
            Place::Control => Filling::Control { buffer: vec![0; self.segment_bytes], filled: 0 },
            Place::Task { task, offset_bytes, .. } => {
                Filling::Command { id: task, at: offset_bytes as usize }
            }
            Place::Discard => Filling::Nowhere,
        };
    }

    fn completed(&mut self, id: TaskId, result: Result<CommandResult, Failure>) {
        match result {
            // `finish` tells why, once that is known.
            Err(Failure::Lost | Failure::LoggedOut) => return,
            Err(Failure::Refused(why)) => return self.refused.push((id, why)),
            _ => {}
        }
        let Some(Pending::Command { lun, data_in, answer, .. }) = self.pending.remove(&id) else {
            return;
        };
        let result = match result {
            Ok(result) => {
                // In the order in which the target spoke, before anyone acts on it.
                self.news.attentions.see(lun, self.news.number, &result);
                Ok(Executed { result, data_in })
            }
            Err(failure) => Err(self.failed(failure)),
        };
        let _ = answer.send(result);
    }

    /// What the machine did not take is refused, or, if the connection ends, told with its end.
    fn settle_refused(&mut self) {
        let ending = self.over.is_some() || self.leaving || self.closing;
        for (id, why) in std::mem::take(&mut self.refused) {
            if let (true, Some(Pending::Command { unsent, .. })) =
                (ending, self.pending.get_mut(&id))
            {
                *unsent = true;
            } else if let Some(Pending::Command { answer, .. }) = self.pending.remove(&id) {
                let _ = answer.send(Err(self.failed(Failure::Refused(why))));
            }
        }
    }

    fn failed(&self, failure: Failure) -> Error {
        let portal = &self.portal;
        match failure {
            Failure::Refused(why) => Error::new(ErrorKind::Refused, format!("not sent: {why}")),
            Failure::Rejected(reason) => Error::new(
                ErrorKind::Refused,
                format!("the target at {portal} rejected the request: {reason:?}"),
            ),
            Failure::Aborted => {
                Error::new(ErrorKind::Refused, format!("aborted by the target at {portal}"))
            }
            Failure::LoggedOut | Failure::Lost => {
                Error::new(ErrorKind::SessionLost, format!("the session with {portal} was lost"))
            }
        }
    }

    fn ask(&mut self, now: Time, request: Request, out: &mut Outbox) {
        let id = TaskId(self.next_id);
        self.next_id += 1;
        match request {
            Request::Execute { lun, cdb, data_out, data_in, answer } => {
                let data_in_bytes_max = data_in.as_ref().map_or(0, |buffer| buffer.len() as u32);
                self.pending.insert(id, Pending::Command { lun, data_in, answer, unsent: false });
                let attribute = iscsi::pdu::TaskAttribute::SIMPLE;
                let command = Command {
                    id,
                    lun,
                    cdb,
                    attribute,
                    priority: 0,
                    data_out,
                    data_in_bytes_max,
                    immediate: false,
                };
                self.handle(now, Input::Execute(command), out);
            }
            Request::SendTargets { answer } => {
                self.pending.insert(id, Pending::Targets { answer });
                self.handle(now, Input::SendTargets { id, which: SendTargets::All }, out);
            }
            Request::Logout { answer } => {
                self.logout = Some(answer);
                self.close(now, out);
            }
        }
    }

    /// Requests wait meanwhile in the channel; a logout is always taken.
    fn takes_requests(&self) -> bool {
        !self.closing && !self.leaving && self.pending.len() < PENDING_MAX
    }

    fn close(&mut self, now: Time, out: &mut Outbox) {
        if !self.closing {
            self.closing = true;
            let logout = Input::Logout { reason: LogoutReason::CLOSE_SESSION, cid: None };
            self.handle(now, logout, out);
        }
    }

    /// The connection is over: whoever still waits is told why.
    fn finish(&mut self) -> Ended {
        // First of all: whoever hears of the end finds that nothing is taken any more.
        self.requests.close();
        let reason = self.over.clone().unwrap_or(CloseReason::PeerClosed);
        let ended = ended(&reason, &self.portal);
        let _ = self.news.ended.set(ended.error.clone());
        if let Some(answer) = self.login.take() {
            let _ = answer.send(Err(ended.clone()));
        }
        for (_, pending) in self.pending.drain() {
            match pending {
                Pending::Command { answer, unsent: true, .. } => {
                    drop(answer.send(Err(ended.error.clone().not_sent())));
                }
                Pending::Command { answer, .. } => drop(answer.send(Err(ended.error.clone()))),
                Pending::Targets { answer } => drop(answer.send(Err(ended.error.clone()))),
            }
        }
        if let Some(answer) = self.logout.take() {
            let logged_out = matches!(reason, CloseReason::LoggedOut);
            let _ = answer.send(if logged_out { Ok(()) } else { Err(ended.error.clone()) });
        }
        ended
    }
}

/// Drives `client` over `tcp` until it is over; later requests are told why it ended.
pub(crate) async fn run(tcp: tokio::net::TcpStream, mut client: Client, clock: net::Clock) {
    net::drive(tcp, &mut client, clock).await;
    let ended = client.finish();
    tracing::debug!(portal = %client.portal, "session over: {}", ended.error);
    while let Some(request) = client.requests.recv().await {
        match request {
            Request::Execute { answer, .. } => {
                drop(answer.send(Err(ended.error.clone().not_sent())));
            }
            Request::SendTargets { answer } => drop(answer.send(Err(ended.error.clone()))),
            Request::Logout { answer } => drop(answer.send(Ok(()))),
        }
    }
}

fn ended(reason: &CloseReason, portal: &str) -> Ended {
    let lost = |what: String| Error::new(ErrorKind::SessionLost, what);
    let error = match reason {
        CloseReason::LoginFailed(failure) => {
            let redirect = failure.redirect.as_ref().map(|(address, _)| address.clone());
            return Ended { error: login_error(failure, portal), redirect };
        }
        CloseReason::LoggedOut => lost(format!("logged out from {portal}")),
        CloseReason::Violation(violation) => {
            lost(format!("{portal} broke the protocol: {violation}"))
        }
        CloseReason::TimedOut(what) => lost(format!("{portal} did not answer in time: {what}")),
        CloseReason::PeerClosed => lost(format!("{portal} closed the connection")),
        CloseReason::Dropped => lost(format!("the session with {portal} was dropped")),
    };
    Ended { error, redirect: None }
}

fn login_error(failure: &LoginFailure, portal: &str) -> Error {
    let what = format!("login to {portal} failed: {}", failure.what);
    match failure.status {
        Some(LoginStatus::AUTHENTICATION_FAILURE) => Error::new(ErrorKind::Authentication, what)
            .hint("check --chap-user and the secret, also those of the target"),
        Some(LoginStatus::AUTHORIZATION_FAILURE) => Error::new(ErrorKind::Authentication, what)
            .hint("the target does not let this initiator name or address in"),
        Some(LoginStatus::NOT_FOUND) => Error::new(ErrorKind::Login, what)
            .hint("lunar discover lists the targets that may be seen"),
        _ => Error::new(ErrorKind::Login, what),
    }
}

impl net::Role for Client {
    fn header(&mut self, now: Time, header: Header, out: &mut Outbox) {
        self.segment_bytes = header.data_segment_bytes() as usize;
        self.filling = Filling::Nowhere;
        self.handle(now, Input::Header(header), out);
    }

    fn header_digest_error(&mut self, now: Time, out: &mut Outbox) {
        self.handle(now, Input::HeaderDigestError, out);
    }

    fn payload_room(&mut self, _missing: usize) -> &mut [u8] {
        match &mut self.filling {
            Filling::Nowhere => &mut [],
            Filling::Control { buffer, filled } => buffer.get_mut(*filled..).unwrap_or_default(),
            Filling::Command { id, at } => match self.pending.get_mut(id) {
                Some(Pending::Command { data_in: Some(buffer), .. }) => {
                    buffer.get_mut(*at..).unwrap_or_default()
                }
                _ => &mut [],
            },
        }
    }

    fn payload_filled(&mut self, bytes: usize) {
        match &mut self.filling {
            Filling::Nowhere => {}
            Filling::Control { filled, .. } => *filled += bytes,
            Filling::Command { at, .. } => *at += bytes,
        }
    }

    fn payload_end(&mut self, now: Time, digest_ok: bool, out: &mut Outbox) {
        let data = match std::mem::replace(&mut self.filling, Filling::Nowhere) {
            Filling::Control { buffer, .. } => Bytes::from(buffer),
            _ => Bytes::new(),
        };
        self.handle(now, Input::Payload { data, digest_ok }, out);
    }

    fn poll_work(&mut self, now: Time, context: &mut Context<'_>, out: &mut Outbox) -> Poll<()> {
        let mut worked = false;
        if !self.started {
            // The login request lies ready in the machine since it was made.
            self.started = true;
            self.pump(now, out);
            worked = true;
        }
        // Requests made during the login wait in the channel.
        while self.login.is_none() && self.takes_requests() {
            match self.requests.poll_recv(context) {
                Poll::Ready(Some(request)) => self.ask(now, request, out),
                Poll::Ready(None) => self.close(now, out),
                Poll::Pending => break,
            }
            worked = true;
        }
        if worked { Poll::Ready(()) } else { Poll::Pending }
    }

    fn deadline(&self) -> Option<Time> {
        self.deadline
    }

    fn elapsed(&mut self, now: Time, out: &mut Outbox) {
        self.handle(now, Input::Deadline, out);
    }

    fn peer_closed(&mut self, now: Time, out: &mut Outbox) {
        self.handle(now, Input::PeerClosed, out);
    }

    fn can_receive(&self) -> bool {
        true
    }

    fn is_over(&self) -> bool {
        self.over.is_some()
    }
}
