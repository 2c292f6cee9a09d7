//! Handle of a session, usable from any thread, that outlasts the loss of connections.

use crate::attentions::UnitAttentions;
use crate::connection_handle::Executed;
use crate::recovery::RetryDeadline;
use crate::session::Session;
use crate::session_context::SessionContext;
use crate::session_supervisor::{SessionState, SessionSupervisor};
use crate::target_connector::TargetConnector;
use crate::{Error, ErrorKind, SessionOptions, Url};
use bytes::Bytes;
use lunar_block::{Buffer, BufferPool};
use lunar_iscsi::connection::initiator::{Cdb, CommandResult};
use lunar_iscsi::connection::target::TargetRecord;
use lunar_iscsi::login::initiator::Established;
use lunar_wire::Lun;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;
use tokio::time::Instant;

/// Pause before a command is sent again that the session refused without ending.
pub(crate) const REFUSED_PAUSE: Duration = Duration::from_millis(50);

/// A session with one target, over one or more connections ([`SessionOptions::connections`]): each
/// command uses the connection with the fewest bytes in flight, and stays on it (RFC 7143
/// §4.2.5.1). Handles are cheap to clone and may be used from any thread. The session is logged out
/// when the last handle is dropped. A command whose future is dropped is aborted at the target.
///
/// When a connection is lost with commands in flight, the session is lost (ErrorRecoveryLevel 0):
/// the other connections are closed. An idle connection that is lost is re-established while the
/// session continues; after eight failed attempts in a row the session continues without it. If a
/// target closes one of several busy connections in three sessions within ten minutes, as targets
/// do that require commands in the order of their CmdSN, all commands use one connection from then
/// on.
///
/// The next request after the loss of a session establishes another one, on the runtime of the
/// first. It has the same ISID, so that it replaces the lost one at the target, and is retried with
/// growing pauses. It must reach the same portal group (RFC 7143 §6.3.5); a session in another one
/// is not used. A command that was not sent waits for the new session, up to
/// [`SessionOptions::recovery_seconds`]. A command that was sent fails: only its caller can decide
/// whether it may be repeated. [`RemoteDisk`](crate::RemoteDisk) repeats its own commands.
///
/// A unit reports a power-on or a nexus loss to a new session by a unit attention; other state of
/// the old session, such as RESERVE (6), is gone. Persistent reservations remain, because they
/// belong to the initiator port.
#[derive(Clone, Debug)]
pub struct Initiator {
    shared: Arc<Shared>,
}

#[derive(Debug)]
struct Shared {
    supervisor: Arc<SessionSupervisor>,
    /// The last session.
    last: Mutex<Arc<LastSession>>,
    /// Number of the last session, readable without the lock.
    last_number: AtomicU64,
    recovery: Duration,
    pool: BufferPool,
}

#[derive(Debug)]
struct LastSession {
    number: u64,
    established: Arc<Established>,
    portal: String,
}

impl Drop for Shared {
    fn drop(&mut self) {
        self.supervisor.close();
    }
}

/// Response to a command, with the data received.
#[derive(Clone, Debug)]
pub struct CommandReply {
    /// Status, sense, residuals.
    pub result: CommandResult,
    /// The data received, `result.data_in_bytes` long.
    pub data_in: Bytes,
}

impl Initiator {
    /// Logs in to the target of `url`, in a task of the current tokio runtime.
    ///
    /// Follows at most four redirects. A first login that fails is not retried, except when the
    /// target closes the connection without answering, as old targets do: the login is then
    /// repeated, and at last sent without the keys that RFC 3720 lacks
    /// ([`SessionOptions::protocol_level`]).
    ///
    /// # Errors
    /// `Connect` · `Authentication` · `Login`.
    pub async fn connect(url: &Url, options: &SessionOptions) -> Result<Self, Error> {
        let Some(unit) = &url.unit else {
            return Err(Error::new(ErrorKind::Login, "the URL contains no target")
                .hint("write iscsi://HOST/TARGET/LUN"));
        };
        let connector = TargetConnector::new(url, Some(unit.target.clone()), options)?;
        let recovery = Duration::from_secs(options.recovery_seconds.into());
        let (supervisor, session) = SessionSupervisor::connect(connector).await?;
        let last = Mutex::new(Arc::new(LastSession::of(&session)));
        let last_number = AtomicU64::new(session.number());
        let pool = BufferPool::default();
        Ok(Self { shared: Arc::new(Shared { supervisor, last, last_number, recovery, pool }) })
    }

    /// Result of the last login: negotiated keys, portal group, alias.
    pub fn established(&self) -> Arc<Established> {
        Arc::clone(&self.last().established)
    }

    /// Name of the target.
    pub fn target_name(&self) -> Option<&str> {
        self.shared.supervisor.connector().target_name.as_deref()
    }

    /// The portal that was connected to last, as `host:port`.
    pub fn portal(&self) -> String {
        self.last().portal.clone()
    }

    /// Number of connections of the session that are logged in; 0 while it is lost.
    pub fn connections(&self) -> usize {
        match &*self.shared.supervisor.current() {
            SessionState::Up(session) if !session.is_over() => session.connections(),
            _ => 0,
        }
    }

    /// Adds connections to the session, or removes the last ones once their commands have ended: at
    /// least one, at most as many as the target allows (MaxConnections) and accepts. Later sessions
    /// have as many. If commands had been restricted to one connection, they use all of them again.
    /// Returns the number of connections.
    ///
    /// # Errors
    /// The errors of [`execute`](Self::execute), when there is no session.
    pub async fn set_connections(&self, wanted: u16) -> Result<usize, Error> {
        self.reset_connection_limits();
        self.adjust_connections(wanted).await
    }

    /// Forgets that the target seemed to support one connection only.
    pub(crate) fn reset_connection_limits(&self) {
        self.shared.supervisor.connector().quirks.reset_connection_limits();
    }

    /// Adds or removes connections as [`set_connections`](Self::set_connections) does, but keeps
    /// the quirks found in the target.
    pub(crate) async fn adjust_connections(&self, wanted: u16) -> Result<usize, Error> {
        let session = self.session(&mut self.retry_deadline()).await?;
        self.shared.supervisor.set_connections(session.clone(), wanted).await?;
        Ok(session.connections())
    }

    /// Pool of the data-in buffers.
    pub fn pool(&self) -> &BufferPool {
        &self.shared.pool
    }

    /// Executes a SCSI command: `cdb` has 1 to 1,020 bytes, `data_out` is sent, at most
    /// `data_in_max` bytes are received. Any SCSI status is a result, not an error.
    ///
    /// # Errors
    /// `SessionLost`: the outcome is unknown · `NotSent`: the command had no effect · `Refused`.
    pub async fn execute(
        &self,
        lun: Lun,
        cdb: impl Into<Cdb>,
        data_out: Bytes,
        data_in_max: u32,
    ) -> Result<CommandReply, Error> {
        let cdb = cdb.into();
        let mut deadline = self.retry_deadline();
        loop {
            let session = self.session(&mut deadline).await?;
            let reply = self.execute_on(&session, lun, &cdb, &data_out, data_in_max).await;
            match reply {
                Err(error) if error.kind == ErrorKind::NotSent => {
                    deadline.lost(error)?;
                    if !session.is_over() {
                        // The session takes no commands for now, or data arrived damaged.
                        self.pause(REFUSED_PAUSE).await;
                    }
                }
                reply => return reply,
            }
        }
    }

    /// Executes a command as [`execute`](Self::execute) does, in this session only.
    pub(crate) async fn execute_on(
        &self,
        session: &Session,
        lun: Lun,
        cdb: &Cdb,
        data_out: &Bytes,
        data_in_max: u32,
    ) -> Result<CommandReply, Error> {
        let buffer = self.buffer(data_in_max);
        let executed = session.execute(lun, cdb.clone(), data_out.clone(), buffer, None).await?;
        let Executed { result, data_in } = executed;
        let data_in = match data_in {
            Some(mut buffer) => {
                buffer.truncate(result.data_in_bytes as usize);
                buffer.freeze()
            }
            None => Bytes::new(),
        };
        Ok(CommandReply { result, data_in })
    }

    /// Returns a buffer for data-in; `None` for 0 bytes.
    pub(crate) fn buffer(&self, bytes: u32) -> Option<Buffer> {
        (bytes > 0).then(|| self.shared.pool.take(bytes as usize))
    }

    /// The target of the sessions.
    pub(crate) fn connector(&self) -> &TargetConnector {
        self.shared.supervisor.connector()
    }

    /// Time after which an unanswered command fails; `None` without a limit.
    pub(crate) fn command_time(&self) -> Option<Duration> {
        self.shared.supervisor.connector().command_time()
    }

    /// Returns the retry deadline of one command.
    pub(crate) fn retry_deadline(&self) -> RetryDeadline {
        RetryDeadline::new(self.shared.recovery)
    }

    /// Waits, on any thread.
    pub(crate) async fn pause(&self, time: Duration) {
        self.shared.supervisor.timer(Instant::now() + time).await;
    }

    /// Returns the session if it is not lost, without waiting.
    pub(crate) fn session_now(&self) -> Option<Session> {
        match &*self.shared.supervisor.current() {
            SessionState::Up(session) if !session.is_over() => {
                self.remember(session);
                Some(session.clone())
            }
            _ => None,
        }
    }

    /// Starts to re-establish a lost session, at least until `until`, without waiting.
    pub(crate) fn reestablish(&self, until: Instant) {
        self.shared.supervisor.reestablish(until);
    }

    /// True when the session was logged out.
    pub(crate) fn is_closed(&self) -> bool {
        matches!(*self.shared.supervisor.current(), SessionState::Closed)
    }

    /// True when the target refuses further logins.
    pub(crate) fn is_refused(&self) -> bool {
        matches!(*self.shared.supervisor.current(), SessionState::Refused(_))
    }

    /// Describes the attempts to re-establish a lost session.
    pub(crate) fn describe_attempts(&self) -> String {
        self.shared.supervisor.describe_attempts()
    }

    /// Returns a timer on the sessions' runtime; the caller needs no runtime of its own.
    pub(crate) fn timer(&self, until: Instant) -> tokio::time::Sleep {
        self.shared.supervisor.timer(until)
    }

    /// Spawns a task on the sessions' runtime.
    pub(crate) fn spawn(&self, work: impl Future<Output = ()> + Send + 'static) {
        self.shared.supervisor.spawn(work);
    }

    /// Records the unit attentions of the unit `lun` from now on.
    pub(crate) fn attentions_of(&self, lun: Lun) -> Arc<UnitAttentions> {
        self.shared.supervisor.attentions().of(lun)
    }

    /// Returns the session, once there is one.
    ///
    /// # Errors
    /// When `deadline` is over, or the target refuses further logins.
    pub(crate) async fn session(&self, deadline: &mut RetryDeadline) -> Result<Session, Error> {
        let supervisor = &self.shared.supervisor;
        let mut states = supervisor.subscribe();
        loop {
            let now = states.borrow_and_update().clone();
            let loss = match now {
                SessionState::Up(session) if !session.is_over() => {
                    self.remember(&session);
                    return Ok(session);
                }
                SessionState::Up(session) => session.end_error().not_sent(),
                SessionState::Refused(error) if deadline.until().is_some() => return Err(error),
                SessionState::Refused(error) => error.not_sent(),
                SessionState::Closed => {
                    let what = format!("the session with {} was logged out", self.portal());
                    return Err(Error::new(ErrorKind::NotSent, what));
                }
            };
            let until = match deadline.until() {
                Some(until) => until,
                None => deadline.lost(loss)?,
            };
            let timer = supervisor.timer(until);
            if supervisor.reestablish(until) {
                tokio::select! {
                    biased;
                    _ = states.changed() => {}
                    () = timer => return Err(deadline.over(&supervisor.describe_attempts())),
                }
            }
        }
    }

    /// Logs out and ends the session, for all handles.
    ///
    /// # Errors
    /// When the target did not answer the logout.
    pub async fn log_out(&self) -> Result<(), Error> {
        if let Some(session) = self.close() {
            session.log_out().await?;
            self.shared.supervisor.release_uncertain_writes();
        }
        Ok(())
    }

    /// Closes the supervisor; returns the last session, to be logged out, if it was not lost.
    pub(crate) fn close(&self) -> Option<Session> {
        self.shared.supervisor.close()
    }

    /// True when commands of lost sessions may still be executed.
    pub(crate) fn has_uncertain_writes(&self) -> bool {
        self.shared.supervisor.has_uncertain_writes()
    }

    /// Sets the number of connections of later sessions.
    pub(crate) fn want_connections(&self, wanted: u16) {
        self.shared.supervisor.want_connections(wanted);
    }

    /// Time a command waits for a lost session.
    pub(crate) fn recovery(&self) -> Duration {
        self.shared.recovery
    }

    fn last(&self) -> Arc<LastSession> {
        Arc::clone(&self.shared.last.lock().unwrap_or_else(PoisonError::into_inner))
    }

    fn remember(&self, session: &Session) {
        if self.shared.last_number.load(Ordering::Acquire) >= session.number() {
            return;
        }
        let mut last = self.shared.last.lock().unwrap_or_else(PoisonError::into_inner);
        if last.number < session.number() {
            *last = Arc::new(LastSession::of(session));
            self.shared.last_number.store(session.number(), Ordering::Release);
        }
    }
}

impl LastSession {
    fn of(session: &Session) -> Self {
        Self {
            number: session.number(),
            established: Arc::clone(session.established()),
            portal: session.portal().to_owned(),
        }
    }
}

/// Lists the targets that the portal of `url` shows to this initiator. RFC 7143 Appendix C. A
/// discovery that is interrupted is not repeated.
///
/// # Errors
/// The errors of [`Initiator::connect`].
pub async fn discover(url: &Url, options: &SessionOptions) -> Result<Vec<TargetRecord>, Error> {
    let connector = TargetConnector::new(url, None, options)?;
    let session_context = SessionContext {
        number: 0,
        attentions: Arc::default(),
        lost_session_writes: Arc::default(),
    };
    let session = connector.log_in(session_context, None).await?;
    let targets = session.send_targets().await?;
    // The targets have been received; a failed logout does not matter.
    if let Err(error) = session.log_out().await {
        tracing::debug!(%error, "the logout of a discovery session failed");
    }
    Ok(targets)
}
