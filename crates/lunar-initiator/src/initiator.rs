//! The handle of a session that any thread may use, and that outlives the loss of its connection.

use crate::attentions::UnitAttentions;
use crate::client::Executed;
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

/// Before a command is sent again that a session which goes on did not take.
pub(crate) const REFUSED_PAUSE: Duration = Duration::from_millis(50);

/// A session with one target, over one or more connections
/// ([`SessionOptions::connections`]): each command goes to the one with the least data under way,
/// and stays there (RFC 7143 §4.2.5.1). Handles are cheap to clone and may be used from any thread.
/// When the last is dropped the session is logged out. When the future of a command is dropped, the
/// command is aborted at the target.
///
/// When a connection is lost with commands under way, so is the session (ErrorRecoveryLevel 0): the
/// others are closed. One that had nothing to do is made again while the session goes on; after
/// eight tries in a row that come to nothing the session goes on without it. Where a target closes
/// one of several busy connections in three sessions within ten minutes, as those do that want
/// commands in the order of their CmdSN, all commands use one connection from then on. The next
/// request after the loss of a session has another one made, on the runtime of the first: with the
/// same ISID, so that it takes the place of the lost one at the target, and tried again with
/// growing pauses. It does so in the same portal group only (RFC 7143 §6.3.5); a session in another
/// one is not used. A command that was not sent waits for it, up to
/// [`SessionOptions::recovery_seconds`]. One that was sent fails: only
/// who gave it knows whether it may be repeated. [`RemoteDisk`](crate::RemoteDisk) repeats its own.
///
/// A unit tells a new session of a power-on or of the loss of the nexus by a unit attention; what
/// else the session held at the target, such as RESERVE (6), is gone. Persistent reservations
/// stay, for they belong to the initiator port.
#[derive(Clone, Debug)]
pub struct Initiator {
    shared: Arc<Shared>,
}

#[derive(Debug)]
struct Shared {
    keeper: Arc<SessionSupervisor>,
    /// The last session there was.
    last: Mutex<Arc<LastSession>>,
    /// Its number, so that nobody takes the lock to find it known.
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
        self.keeper.close();
    }
}

/// What a command came to: the target's answer, and the data it sent.
#[derive(Clone, Debug)]
pub struct CommandReply {
    /// Status, sense, residuals.
    pub result: CommandResult,
    /// The data that came, `result.data_in_bytes` long.
    pub data_in: Bytes,
}

impl Initiator {
    /// Logs in to the target that `url` names, in a task of the current tokio runtime.
    ///
    /// A redirect by the target is followed, at most four times. A first login that fails is not
    /// tried again, but for one that an old target answers by closing the connection: once, without
    /// the keys that it does not know ([`SessionOptions::protocol_level`]).
    ///
    /// # Errors
    /// `Connect` · `Authentication` · `Login`.
    pub async fn connect(url: &Url, options: &SessionOptions) -> Result<Self, Error> {
        let Some(unit) = &url.unit else {
            return Err(Error::new(ErrorKind::Login, "the URL names no target")
                .hint("write iscsi://HOST/TARGET/LUN"));
        };
        let way = TargetConnector::new(url, Some(unit.target.clone()), options)?;
        let recovery = Duration::from_secs(options.recovery_seconds.into());
        let (keeper, session) = SessionSupervisor::connect(way).await?;
        let last = Mutex::new(Arc::new(LastSession::of(&session)));
        let last_number = AtomicU64::new(session.number());
        let pool = BufferPool::default();
        Ok(Self { shared: Arc::new(Shared { keeper, last, last_number, recovery, pool }) })
    }

    /// What the last login brought: negotiated keys, portal group, alias.
    pub fn established(&self) -> Arc<Established> {
        Arc::clone(&self.last().established)
    }

    /// The target's name.
    pub fn target_name(&self) -> Option<&str> {
        self.shared.keeper.way().target_name.as_deref()
    }

    /// The portal that was connected to last, as `host:port`.
    pub fn portal(&self) -> String {
        self.last().portal.clone()
    }

    /// How many connections of the session are logged in; 0 while it is lost.
    pub fn connections(&self) -> usize {
        match &*self.shared.keeper.standing() {
            SessionState::Up(session) if !session.is_over() => session.connections(),
            _ => 0,
        }
    }

    /// Adds connections to the session, or takes the last away once their commands have ended:
    /// at least one, at most as many as the target allows (MaxConnections), or as many as it
    /// takes. Sessions that follow a lost one have as many. Commands use all of them again, if they
    /// had come to use one. Returns how many there are.
    ///
    /// # Errors
    /// As [`execute`](Self::execute), when there is no session.
    pub async fn set_connections(&self, wanted: u16) -> Result<usize, Error> {
        self.forget_order();
        self.adjust_connections(wanted).await
    }

    /// Several connections are tried anew, though the target seemed to bear one only.
    pub(crate) fn forget_order(&self) {
        self.shared.keeper.way().quirks.forget_order();
    }

    /// Adds connections or takes some away, as [`set_connections`](Self::set_connections) does, and
    /// leaves what was found out about the target.
    pub(crate) async fn adjust_connections(&self, wanted: u16) -> Result<usize, Error> {
        let session = self.session(&mut self.patience()).await?;
        self.shared.keeper.set_connections(session.clone(), wanted).await?;
        Ok(session.connections())
    }

    /// Where data-in buffers come from.
    pub fn pool(&self) -> &BufferPool {
        &self.shared.pool
    }

    /// Executes a SCSI command: `cdb` of 1 to 1,020 bytes, `data_out` sent as it is, at most
    /// `data_in_max` bytes received. Any SCSI status is an answer, not an error.
    ///
    /// # Errors
    /// `SessionLost`: whether it had an effect is not known · `NotSent`: it had none · `Refused`.
    pub async fn execute(
        &self,
        lun: Lun,
        cdb: impl Into<Cdb>,
        data_out: Bytes,
        data_in_max: u32,
    ) -> Result<CommandReply, Error> {
        let cdb = cdb.into();
        let mut patience = self.patience();
        loop {
            let session = self.session(&mut patience).await?;
            let reply = self.execute_on(&session, lun, &cdb, &data_out, data_in_max).await;
            match reply {
                Err(error) if error.kind == ErrorKind::NotSent => {
                    patience.lost(error)?;
                    if !session.is_over() {
                        // It takes nothing for now, or what it took arrived damaged.
                        self.pause(REFUSED_PAUSE).await;
                    }
                }
                reply => return reply,
            }
        }
    }

    /// The same, in this session or not at all.
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

    /// Room for data-in; none for none.
    pub(crate) fn buffer(&self, bytes: u32) -> Option<Buffer> {
        (bytes > 0).then(|| self.shared.pool.take(bytes as usize))
    }

    /// For one command.
    pub(crate) fn patience(&self) -> RetryDeadline {
        RetryDeadline::new(self.shared.recovery)
    }

    /// Waits, on whatever thread.
    pub(crate) async fn pause(&self, time: Duration) {
        self.shared.keeper.timer(Instant::now() + time).await;
    }

    /// Its session, if it is not lost; does not wait.
    pub(crate) fn session_now(&self) -> Option<Session> {
        match &*self.shared.keeper.standing() {
            SessionState::Up(session) if !session.is_over() => {
                self.remember(session);
                Some(session.clone())
            }
            _ => None,
        }
    }

    /// Has a lost session made again, at least until then, and does not wait.
    pub(crate) fn revive(&self, until: Instant) {
        self.shared.keeper.keep(until);
    }

    /// It was logged out.
    pub(crate) fn is_closed(&self) -> bool {
        matches!(*self.shared.keeper.standing(), SessionState::Closed)
    }

    /// The target does not let it in any more.
    pub(crate) fn is_refused(&self) -> bool {
        matches!(*self.shared.keeper.standing(), SessionState::Refused(_))
    }

    /// What was done to get a lost session back.
    pub(crate) fn tried(&self) -> String {
        self.shared.keeper.tried()
    }

    /// A timer that needs no runtime of whoever waits for it.
    pub(crate) fn timer(&self, until: Instant) -> tokio::time::Sleep {
        self.shared.keeper.timer(until)
    }

    /// Has the runtime of its sessions do something meanwhile.
    pub(crate) fn spawn(&self, work: impl Future<Output = ()> + Send + 'static) {
        self.shared.keeper.spawn(work);
    }

    /// What the unit `lun` says unasked, from now on.
    pub(crate) fn attentions_of(&self, lun: Lun) -> Arc<UnitAttentions> {
        self.shared.keeper.attentions().of(lun)
    }

    /// The session, once there is one.
    ///
    /// # Errors
    /// When `patience` is over, or the target does not let us in any more.
    pub(crate) async fn session(&self, patience: &mut RetryDeadline) -> Result<Session, Error> {
        let keeper = &self.shared.keeper;
        let mut line = keeper.line();
        loop {
            let now = line.borrow_and_update().clone();
            let loss = match now {
                SessionState::Up(session) if !session.is_over() => {
                    self.remember(&session);
                    return Ok(session);
                }
                SessionState::Up(session) => session.why().not_sent(),
                SessionState::Refused(error) if patience.until().is_some() => return Err(error),
                SessionState::Refused(error) => error.not_sent(),
                SessionState::Closed => {
                    let what = format!("the session with {} was logged out", self.portal());
                    return Err(Error::new(ErrorKind::NotSent, what));
                }
            };
            let until = match patience.until() {
                Some(until) => until,
                None => patience.lost(loss)?,
            };
            let timer = keeper.timer(until);
            if keeper.keep(until) {
                tokio::select! {
                    biased;
                    _ = line.changed() => {}
                    () = timer => return Err(patience.over(&keeper.tried())),
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
            self.shared.keeper.settled();
        }
        Ok(())
    }

    /// No session follows; returns the last, if it was not lost, to be logged out.
    pub(crate) fn close(&self) -> Option<Session> {
        self.shared.keeper.close()
    }

    /// Some of what lost sessions began may still be executed.
    pub(crate) fn is_in_doubt(&self) -> bool {
        self.shared.keeper.is_in_doubt()
    }

    /// How many connections sessions that follow are to have.
    pub(crate) fn want_connections(&self, wanted: u16) {
        self.shared.keeper.want_connections(wanted);
    }

    /// How long a command waits for a lost session.
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

/// Asks the portal of `url` which targets this initiator may see. RFC 7143 Appendix C. What is
/// lost half-way is not repeated.
///
/// # Errors
/// As [`Initiator::connect`].
pub async fn discover(url: &Url, options: &SessionOptions) -> Result<Vec<TargetRecord>, Error> {
    let way = TargetConnector::new(url, None, options)?;
    let news = SessionContext { number: 0, attentions: Arc::default(), held: Arc::default() };
    let session = way.log_in(news, None).await?;
    let targets = session.send_targets().await?;
    // The answer is here; a logout that fails takes nothing from it.
    if let Err(error) = session.log_out().await {
        tracing::debug!(%error, "logout of the discovery session");
    }
    Ok(targets)
}
