//! One connection of a session: the handle for its users, and the task that runs it.

use crate::client::{ConnectionClient, HandleRequest, LoginAnswer};
use crate::connection_end::ConnectionEnd;
use crate::numbering::{ConnectionMessage, ConnectionMessageSender, Numbering};
use crate::recovery::Backoff;
use crate::session_context::SessionContext;
use crate::target_connector::{PortalAddress, TargetConnector};
use crate::{Error, ErrorKind};
use lunar_iscsi::framing::TaskId;
use lunar_iscsi::login::initiator::Established;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;
use tokio::net::TcpStream;
use tokio::sync::{mpsc, oneshot, watch};
use tokio::task::AbortHandle;
use tokio::time::Instant;

/// Greatest number of requests queued between the handles and the connection.
const QUEUE_REQUESTS_MAX: usize = 256;
/// Load that a command counts for besides its data, in bytes.
const COMMAND_BYTES: u64 = 512;
/// Greatest number of attempts in a row to re-establish a connection that never becomes usable;
/// after them the session continues without it.
const RETRIES_MAX: u32 = 8;
/// Time after which a connection counts as having worked, even if it executed no command.
const WORKED_TIME: Duration = Duration::from_secs(60);

/// Handle of a connection, for sending requests. The session is logged out when the last handle is
/// dropped.
#[derive(Debug)]
pub(crate) struct ConnectionHandle {
    pub(crate) requests: mpsc::Sender<HandleRequest>,
    pub(crate) state: Arc<ConnectionState>,
    /// Closed when the connection has ended for good.
    alive: watch::Receiver<()>,
}

impl ConnectionHandle {
    /// True when the session continues without this connection, or is over.
    pub(crate) fn is_gone(&self) -> bool {
        self.alive.has_changed().is_err()
    }

    /// Removes the connection from the session; returns when its commands and the connection itself
    /// have ended.
    pub(crate) async fn dismiss(&self) {
        self.state.set_up(false);
        self.state.retired.store(true, Ordering::Release);
        // A connection that has already ended has nothing to retire.
        let _ = self.state.mailbox.put(ConnectionMessage::Retire);
        let mut alive = self.alive.clone();
        while alive.changed().await.is_ok() {}
    }
}

/// State shared by a connection's task and its handles.
#[derive(Debug)]
pub(crate) struct ConnectionState {
    pub(crate) cid: u16,
    pub(crate) mailbox: Arc<ConnectionMessageSender>,
    /// True while the connection is logged in and takes requests.
    up: AtomicBool,
    /// True when the session continues without the connection.
    retired: AtomicBool,
    outstanding_bytes: AtomicU64,
    next_id: AtomicU64,
}

impl ConnectionState {
    /// Returns the state of a connection that is not logged in.
    pub(crate) fn new(cid: u16) -> Arc<Self> {
        Arc::new(Self {
            cid,
            mailbox: Arc::default(),
            up: AtomicBool::new(false),
            retired: AtomicBool::new(false),
            outstanding_bytes: AtomicU64::new(0),
            next_id: AtomicU64::new(0),
        })
    }

    pub(crate) fn is_up(&self) -> bool {
        self.up.load(Ordering::Acquire)
    }

    pub(crate) fn set_up(&self, up: bool) {
        self.up.store(up, Ordering::Release);
    }

    pub(crate) fn is_retired(&self) -> bool {
        self.retired.load(Ordering::Acquire)
    }

    /// Returns an ID for a task, unique on this connection.
    pub(crate) fn new_id(&self) -> TaskId {
        TaskId(self.next_id.fetch_add(1, Ordering::Relaxed))
    }

    /// Bytes of commands and data that were queued on the connection and are not answered.
    pub(crate) fn outstanding_bytes(&self) -> u64 {
        self.outstanding_bytes.load(Ordering::Relaxed)
    }

    /// Counts a command with `data_bytes` of data as outstanding until the result is dropped.
    pub(crate) fn load(self: &Arc<Self>, data_bytes: usize) -> CommandLoad {
        let bytes = COMMAND_BYTES + data_bytes as u64;
        self.outstanding_bytes.fetch_add(bytes, Ordering::Relaxed);
        CommandLoad { link: Arc::clone(self), bytes }
    }
}

/// Load that one command adds to its connection; subtracted on drop.
#[derive(Debug)]
pub(crate) struct CommandLoad {
    link: Arc<ConnectionState>,
    bytes: u64,
}

impl Drop for CommandLoad {
    fn drop(&mut self) {
        self.link.outstanding_bytes.fetch_sub(self.bytes, Ordering::Relaxed);
    }
}

/// The task of a connection: logs in, and reconnects while its session continues.
#[derive(Clone, Debug)]
pub(crate) struct ConnectionTask {
    pub(crate) connector: TargetConnector,
    pub(crate) door: PortalAddress,
    pub(crate) numbering: Arc<Numbering>,
    pub(crate) session_context: SessionContext,
    pub(crate) state: Arc<ConnectionState>,
}

/// Aborts the connection's task unless its login was awaited to the end: a login that was given up
/// must not take the place of a later one.
struct LoginGuard(Option<AbortHandle>);

impl Drop for LoginGuard {
    fn drop(&mut self) {
        if let Some(task) = self.0.take() {
            task.abort();
        }
    }
}

impl ConnectionTask {
    /// Logs in over `tcp`, in a task of the current tokio runtime.
    pub(crate) async fn begin(
        self,
        tcp: TcpStream,
    ) -> Result<(ConnectionHandle, Box<Established>), ConnectionEnd> {
        let (requests, inbox) = mpsc::channel(QUEUE_REQUESTS_MAX);
        let (life, alive) = watch::channel(());
        let link = ConnectionHandle { requests, state: Arc::clone(&self.state), alive };
        let (answer, logged_in) = oneshot::channel();
        let clock = lunar_net::Clock::start();
        let portal = self.door.portal.clone();
        let client = self.client(inbox, Some(answer), clock)?;
        let task = tokio::spawn(self.run(tcp, client, clock, life));
        let mut unawaited = LoginGuard(Some(task.abort_handle()));
        let answer = logged_in.await;
        unawaited.0 = None;
        match answer {
            Ok(Ok(established)) => Ok((link, established)),
            Ok(Err(ended)) => Err(ended),
            Err(_) => Err(gone(&portal).into()),
        }
    }

    /// Returns the connection's state machines, ready to log in.
    fn client(
        &self,
        inbox: mpsc::Receiver<HandleRequest>,
        login: Option<LoginAnswer>,
        clock: lunar_net::Clock,
    ) -> Result<ConnectionClient, Error> {
        let session = self.numbering.parameters();
        let Some(numbers) = self.numbering.open(self.state.cid, &self.state.mailbox) else {
            let what =
                format!("the session with {} accepts no further connection", self.door.portal);
            return Err(Error::new(ErrorKind::Login, what));
        };
        let options = self.connector.connection_options(self.state.cid, numbers, session);
        let options = options.inspect_err(|error| {
            let ending = lunar_iscsi::session::initiator::Ending::NotJoined;
            self.numbering.part(self.state.cid, ending, None, error);
        })?;
        Ok(ConnectionClient::new(options, self, inbox, login, clock.now()))
    }

    /// Runs the connection until its session is over or continues without it.
    async fn run(
        self,
        mut tcp: TcpStream,
        mut client: ConnectionClient,
        clock: lunar_net::Clock,
        life: watch::Sender<()>,
    ) {
        let mut retries = Retries::new();
        let (error, mut requests) = loop {
            let begin = Instant::now();
            lunar_net::drive(tcp, &mut client, clock).await;
            if client.has_worked() || (client.was_up() && begin.elapsed() >= WORKED_TIME) {
                retries = Retries::new();
            }
            let (ended, mut requests) = client.finish();
            tracing::debug!(portal = %self.door.portal, "connection ended: {}", ended.error);
            match self.again(&mut requests, &mut retries, &ended.error).await {
                Some(socket) => match self.client(requests, None, clock) {
                    Ok(next) => (tcp, client) = (socket, next),
                    Err(_) => return self.settle_mail(),
                },
                None => break (ended.error, requests),
            }
        };
        self.settle_mail();
        drop(life);
        while let Some(request) = requests.recv().await {
            request.refuse(&error);
        }
    }

    /// Closes the mailbox, which has no reader any more, and keeps the uncertain writes found in
    /// it.
    fn settle_mail(&self) {
        for mail in self.state.mailbox.close() {
            if let ConnectionMessage::Abort(_, Some(uncertain)) = mail {
                self.session_context.hold(&self.numbering, uncertain);
            }
        }
    }

    /// Connects another socket for a session that continues, and refuses requests meanwhile.
    /// Returns `None` when the session is over or continues without this connection.
    async fn again(
        &self,
        requests: &mut mpsc::Receiver<HandleRequest>,
        retries: &mut Retries,
        error: &Error,
    ) -> Option<TcpStream> {
        let wanted = || !self.numbering.is_over() && !self.state.is_retired();
        while wanted() {
            let Some(pause) = retries.next_pause() else {
                self.give_up(error);
                return None;
            };
            let pause = tokio::time::sleep(pause);
            tokio::pin!(pause);
            loop {
                tokio::select! {
                    request = requests.recv() => request?.refuse(error),
                    () = &mut pause => break,
                }
            }
            let end = Instant::now() + self.connector.options.login_time;
            match self.door.connect(end).await {
                Ok(tcp) if wanted() => return Some(tcp),
                Ok(_) => {}
                Err(error) => tracing::debug!(%error, "cannot re-establish a connection"),
            }
        }
        None
    }

    /// Logs that the session continues with the remaining connections.
    fn give_up(&self, error: &Error) {
        if self.connector.quirks.tells_of_fewer() {
            tracing::warn!(
                portal = %self.door.portal,
                %error,
                "a connection was closed or refused {RETRIES_MAX} times in a row; the session \
                 continues with the others"
            );
        }
    }
}

/// Counts the attempts in a row to re-establish a connection, with the pauses before them.
struct Retries {
    begun: u32,
    backoff: Backoff,
}

impl Retries {
    fn new() -> Self {
        Self { begun: 0, backoff: Backoff::by_chance() }
    }

    /// Returns the pause before the next attempt; `None` when all attempts are used up.
    fn next_pause(&mut self) -> Option<Duration> {
        if self.begun == RETRIES_MAX {
            return None;
        }
        self.begun += 1;
        Some(self.backoff.next_pause())
    }
}

/// Returns the error for a session that is over.
pub(crate) fn gone(portal: &str) -> Error {
    Error::new(ErrorKind::SessionLost, format!("the session with {portal} has ended"))
}

/// Time a connection that logs out waits for its commands.
pub(crate) const DRAIN_TIME: Duration = Duration::from_secs(30);
