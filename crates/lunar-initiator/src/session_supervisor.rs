//! Re-establishes a lost session while callers wait.

use crate::attentions::Attentions;
use crate::relogin_pace::ReloginPace;
use crate::session::Session;
use crate::session_context::SessionContext;
use crate::target_connector::{PortalGroup, TargetConnector};
use crate::uncertain_writes::LostSessionWrites;
use crate::{Error, ErrorKind};
use std::sync::atomic::{AtomicU16, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;
use tokio::runtime::Handle;
use tokio::sync::watch;
use tokio::time::{Instant, Sleep};

/// State of an initiator's sessions.
#[derive(Clone, Debug)]
pub(crate) enum SessionState {
    /// The last session. It may be over.
    Up(Session),
    /// The target refuses further logins.
    Refused(Error),
    /// Logged out; no session follows.
    Closed,
}

/// Supervises the sessions of one initiator, one after the other.
#[derive(Debug)]
pub(crate) struct SessionSupervisor {
    connector: TargetConnector,
    /// Portal group that every session must reach.
    group: PortalGroup,
    attentions: Arc<Attentions>,
    lost_session_writes: Arc<LostSessionWrites>,
    /// Runtime of all sessions: that of the first.
    runtime: Handle,
    states: watch::Sender<SessionState>,
    /// Number of connections that a session should have.
    connections: AtomicU16,
    work: Mutex<ReloginState>,
}

#[derive(Debug)]
struct ReloginState {
    /// Set while the task logs in; until then callers wait.
    until: Option<Instant>,
    /// Number of the last session.
    number: u64,
    /// Number of failed logins since the last session was lost, and the last failure.
    tries: u32,
    failure: Option<Error>,
    /// Pause between the loss and the first login that the target requires, while it lasts.
    waits: Option<Duration>,
    pace: ReloginPace,
}

impl ReloginState {
    /// State after the login of the first session.
    fn new() -> Self {
        Self {
            until: None,
            number: 1,
            tries: 0,
            failure: None,
            waits: None,
            pace: ReloginPace::new(),
        }
    }
}

/// The task that logs in. Callers are notified however it ends.
struct Task {
    supervisor: Weak<SessionSupervisor>,
    ended: bool,
}

impl SessionSupervisor {
    /// Establishes the first session, in a task of the current tokio runtime.
    pub(crate) async fn connect(connector: TargetConnector) -> Result<(Arc<Self>, Session), Error> {
        let (attentions, lost_session_writes) =
            (Arc::<Attentions>::default(), Arc::<LostSessionWrites>::default());
        let session_context = SessionContext {
            number: 1,
            attentions: Arc::clone(&attentions),
            lost_session_writes: Arc::clone(&lost_session_writes),
        };
        let session = connector.log_in(session_context, None).await?;
        let supervisor = Self {
            connections: AtomicU16::new(connector.options.connections),
            connector,
            group: session.group(),
            attentions,
            lost_session_writes,
            runtime: Handle::current(),
            states: watch::Sender::new(SessionState::Up(session.clone())),
            work: Mutex::new(ReloginState::new()),
        };
        Ok((Arc::new(supervisor), session))
    }

    pub(crate) fn connector(&self) -> &TargetConnector {
        &self.connector
    }

    pub(crate) fn attentions(&self) -> &Attentions {
        &self.attentions
    }

    /// Returns the current state.
    pub(crate) fn current(&self) -> watch::Ref<'_, SessionState> {
        self.states.borrow()
    }

    /// Returns a receiver of the state and its changes.
    pub(crate) fn subscribe(&self) -> watch::Receiver<SessionState> {
        self.states.subscribe()
    }

    /// Returns a timer on the sessions' runtime; the caller needs no runtime of its own.
    pub(crate) fn timer(&self, until: Instant) -> Sleep {
        let _entered = self.runtime.enter();
        tokio::time::sleep_until(until)
    }

    /// Spawns a task on the sessions' runtime.
    pub(crate) fn spawn(&self, work: impl Future<Output = ()> + Send + 'static) {
        self.runtime.spawn(work);
    }

    /// Sets the number of connections of `session` and those that follow it.
    ///
    /// # Errors
    /// The sessions' runtime has ended.
    pub(crate) async fn set_connections(&self, session: Session, wanted: u16) -> Result<(), Error> {
        self.want_connections(wanted);
        let adjusted = self.runtime.spawn(async move { session.set_connections(wanted).await });
        adjusted
            .await
            .map_err(|_| Error::new(ErrorKind::SessionLost, "the runtime of the session has ended"))
    }

    /// Has a lost session re-established, retrying at least until `until`; `false` if there is a
    /// session, or none will follow.
    pub(crate) fn reestablish(self: &Arc<Self>, until: Instant) -> bool {
        let mut work = self.work();
        let lost = match &*self.states.borrow() {
            SessionState::Up(session) if !session.is_over() => return false,
            SessionState::Closed => return false,
            SessionState::Up(lost) => Some(lost.clone()),
            SessionState::Refused(_) => None,
        };
        if let Some(kept) = work.until {
            work.until = Some(kept.max(until));
            return true;
        }
        work.until = Some(until);
        (work.tries, work.failure) = (0, None);
        let wait = match lost {
            Some(lost) => self.pause_after_loss(&lost, &mut work),
            None => {
                work.pace.restart();
                Duration::ZERO
            }
        };
        self.warn_of_loss(&work.pace);
        drop(work);
        let task = Task { supervisor: Arc::downgrade(self), ended: false };
        self.runtime.spawn(task.run(wait));
        true
    }

    /// Returns the pause between the loss of `lost` and the next login.
    fn pause_after_loss(&self, lost: &Session, work: &mut ReloginState) -> Duration {
        // Pause before a login that implies a logout, RFC 7143 §13.15.
        let required = lost.established().session.time_to_wait_seconds;
        let required = Duration::from_secs(required.into());
        work.waits = (!required.is_zero()).then_some(required);
        work.pace.session_lost(lost.has_answered_commands()).max(required)
    }

    fn warn_of_loss(&self, pace: &ReloginPace) {
        let portal = self.connector.url.portal();
        match pace.short_sessions() {
            0 => tracing::warn!(portal, "session lost; logging in again"),
            short if pace.is_worth_a_warning() => tracing::warn!(
                portal,
                sessions = short,
                "session lost soon after its login; logging in again, with growing pauses"
            ),
            short => {
                tracing::debug!(portal, sessions = short, "session lost soon after its login");
            }
        }
    }

    /// Closes the supervisor: no session follows. Returns the last session if it was not lost.
    pub(crate) fn close(&self) -> Option<Session> {
        let _order = self.work();
        match self.states.send_replace(SessionState::Closed) {
            SessionState::Up(session) if !session.is_over() => Some(session),
            _ => None,
        }
    }

    /// Releases all uncertain writes: the target has ended all commands of its sessions.
    pub(crate) fn release_uncertain_writes(&self) {
        self.lost_session_writes.release_before(u64::MAX);
    }

    /// True when commands of lost sessions may still be executed.
    pub(crate) fn has_uncertain_writes(&self) -> bool {
        self.lost_session_writes.has_any()
    }

    /// Sets the number of connections of later sessions.
    pub(crate) fn want_connections(&self, wanted: u16) {
        self.connections.store(wanted, Ordering::Relaxed);
    }

    /// Describes the attempts to re-establish the session.
    pub(crate) fn describe_attempts(&self) -> String {
        let work = self.work();
        match (&work.failure, work.tries) {
            (Some(failure), 1) => format!("a login failed: {failure}"),
            (Some(failure), tries) => format!("{tries} logins failed, the last one: {failure}"),
            (None, _) => match work.waits.map(|wait| wait.as_secs()) {
                Some(seconds) => format!(
                    "no login was attempted, because the target requires a wait of {seconds} s \
                     before the next login (DefaultTime2Wait)"
                ),
                None => match work.pace.short_sessions() {
                    0 => "the first login is not complete".to_owned(),
                    1 => "the last session was lost soon after its login".to_owned(),
                    short => format!("the last {short} sessions were lost soon after their login"),
                },
            },
        }
    }

    fn work(&self) -> MutexGuard<'_, ReloginState> {
        self.work.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Task {
    async fn run(mut self, wait: Duration) {
        tokio::time::sleep(wait).await;
        while let Some((connector, group, session_context)) = self.next() {
            match connector.log_in(session_context, Some(group)).await {
                Ok(session) => return self.end(SessionState::Up(session)),
                // A repeated login would fail too, and the target may count failures.
                Err(error) if error.kind == ErrorKind::Authentication => {
                    return self.end(SessionState::Refused(error));
                }
                Err(error) => tokio::time::sleep(self.failed(error)).await,
            }
        }
    }

    /// Returns the parameters of the next login if a caller still waits for it.
    fn next(&mut self) -> Option<(TargetConnector, PortalGroup, SessionContext)> {
        let supervisor = self.supervisor.upgrade()?;
        let mut work = supervisor.work();
        let wanted = work.until.is_some_and(|until| Instant::now() < until)
            && !matches!(*supervisor.states.borrow(), SessionState::Closed);
        if !wanted {
            work.until = None;
            self.ended = true;
            return None;
        }
        work.number += 1;
        work.waits = None;
        let (attentions, lost_session_writes) =
            (Arc::clone(&supervisor.attentions), Arc::clone(&supervisor.lost_session_writes));
        let mut connector = supervisor.connector.clone();
        connector.options.connections = supervisor.connections.load(Ordering::Relaxed);
        Some((
            connector,
            supervisor.group,
            SessionContext { number: work.number, attentions, lost_session_writes },
        ))
    }

    /// Records a failed login. Returns the pause before the next one.
    fn failed(&self, error: Error) -> Duration {
        let Some(supervisor) = self.supervisor.upgrade() else { return Duration::ZERO };
        tracing::debug!(%error, "a login failed; trying again");
        if error.kind == ErrorKind::Connect {
            supervisor.connector.quirks.forget_losses();
        }
        let mut work = supervisor.work();
        work.tries = work.tries.saturating_add(1);
        work.failure = Some(error);
        work.pace.login_failed()
    }

    fn end(&mut self, state: SessionState) {
        self.ended = true;
        let Some(supervisor) = self.supervisor.upgrade() else { return };
        let mut work = supervisor.work();
        work.until = None;
        // A session that is no longer wanted is dropped, and so logged out.
        if !matches!(*supervisor.states.borrow(), SessionState::Closed) {
            match &state {
                SessionState::Up(session) => {
                    let portal = session.portal();
                    match work.pace.is_worth_a_warning() {
                        true => tracing::warn!(portal, "session re-established"),
                        false => tracing::debug!(portal, "session re-established"),
                    }
                    work.pace.logged_in();
                    supervisor.lost_session_writes.release_before(session.number());
                }
                SessionState::Refused(error) => tracing::warn!(
                    %error,
                    "the target refused to re-establish the session"
                ),
                SessionState::Closed => {}
            }
            supervisor.states.send_replace(state);
        }
    }
}

impl Drop for Task {
    fn drop(&mut self) {
        if !self.ended {
            let what = "the runtime of the session has ended";
            self.end(SessionState::Refused(Error::new(ErrorKind::SessionLost, what)));
        }
    }
}
