//! Who makes another session when one is lost, as long as somebody waits for it.

use crate::attentions::Attentions;
use crate::recovery::Backoff;
use crate::session::Session;
use crate::session_context::SessionContext;
use crate::target_connector::{Group, TargetConnector};
use crate::uncertain_writes::LostSessionWrites;
use crate::{Error, ErrorKind};
use std::sync::atomic::{AtomicU16, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;
use tokio::runtime::Handle;
use tokio::sync::watch;
use tokio::time::{Instant, Sleep};

/// Where the sessions of an initiator stand.
#[derive(Clone, Debug)]
pub(crate) enum SessionState {
    /// The last session. It may be over.
    Up(Session),
    /// The target does not let us in any more.
    Refused(Error),
    /// Logged out; no session follows.
    Closed,
}

/// The sessions of one initiator, one after the other.
#[derive(Debug)]
pub(crate) struct SessionSupervisor {
    way: TargetConnector,
    /// Where every session of it has to be.
    group: Group,
    attentions: Arc<Attentions>,
    held: Arc<LostSessionWrites>,
    /// The runtime that sessions live on: that of the first.
    runtime: Handle,
    line: watch::Sender<SessionState>,
    /// How many connections a session should have.
    connections: AtomicU16,
    work: Mutex<Work>,
}

#[derive(Debug, Default)]
struct Work {
    /// Somebody logs in, for those who wait until then.
    until: Option<Instant>,
    /// Of the last session.
    number: u64,
    /// Logins since the last session was lost, and how the last of them failed.
    tries: u32,
    failure: Option<Error>,
    /// The first of them is not tried before so much time has passed since the loss.
    waits: Option<Duration>,
}

/// The task that logs in. Whatever ends it, those who wait are told.
struct Task {
    keeper: Weak<SessionSupervisor>,
    ended: bool,
}

impl SessionSupervisor {
    /// Makes the first session, in a task of the current tokio runtime.
    pub(crate) async fn connect(way: TargetConnector) -> Result<(Arc<Self>, Session), Error> {
        let (attentions, held) =
            (Arc::<Attentions>::default(), Arc::<LostSessionWrites>::default());
        let news = SessionContext {
            number: 1,
            attentions: Arc::clone(&attentions),
            held: Arc::clone(&held),
        };
        let session = way.log_in(news, None).await?;
        let keeper = Self {
            connections: AtomicU16::new(way.options.connections),
            way,
            group: session.group(),
            attentions,
            held,
            runtime: Handle::current(),
            line: watch::Sender::new(SessionState::Up(session.clone())),
            work: Mutex::new(Work { number: 1, ..Work::default() }),
        };
        Ok((Arc::new(keeper), session))
    }

    pub(crate) fn way(&self) -> &TargetConnector {
        &self.way
    }

    pub(crate) fn attentions(&self) -> &Attentions {
        &self.attentions
    }

    /// Where things stand now.
    pub(crate) fn standing(&self) -> watch::Ref<'_, SessionState> {
        self.line.borrow()
    }

    /// Where things stand, and when that changes.
    pub(crate) fn line(&self) -> watch::Receiver<SessionState> {
        self.line.subscribe()
    }

    /// A timer that needs no runtime of whoever waits for it.
    pub(crate) fn timer(&self, until: Instant) -> Sleep {
        let _entered = self.runtime.enter();
        tokio::time::sleep_until(until)
    }

    /// Has the runtime that sessions live on do something.
    pub(crate) fn spawn(&self, work: impl Future<Output = ()> + Send + 'static) {
        self.runtime.spawn(work);
    }

    /// Gives `session`, and those that follow it, so many connections.
    ///
    /// # Errors
    /// The runtime that sessions live on has ended.
    pub(crate) async fn set_connections(&self, session: Session, wanted: u16) -> Result<(), Error> {
        self.want_connections(wanted);
        let adjusted = self.runtime.spawn(async move { session.set_connections(wanted).await });
        adjusted
            .await
            .map_err(|_| Error::new(ErrorKind::SessionLost, "the runtime of the session has ended"))
    }

    /// Has another session made, at least until then; `false`: there is one, or will be none.
    pub(crate) fn keep(self: &Arc<Self>, until: Instant) -> bool {
        let mut work = self.work();
        let wait = match &*self.line.borrow() {
            SessionState::Up(session) if !session.is_over() => return false,
            SessionState::Closed => return false,
            // RFC 7143 §13.15: so long before a logout that is implicit in a login.
            SessionState::Up(lost) => lost.established().session.time_to_wait_seconds,
            SessionState::Refused(_) => 0,
        };
        if let Some(kept) = work.until {
            work.until = Some(kept.max(until));
            return true;
        }
        work.until = Some(until);
        (work.tries, work.failure) = (0, None);
        let wait = Duration::from_secs(wait.into());
        work.waits = (!wait.is_zero()).then_some(wait);
        drop(work);
        let portal = self.way.url.portal();
        tracing::warn!(portal, "the connection is lost; logging in again");
        let task = Task { keeper: Arc::downgrade(self), ended: false };
        self.runtime.spawn(task.run(wait));
        true
    }

    /// No session follows. Returns the last, if it was not lost.
    pub(crate) fn close(&self) -> Option<Session> {
        let _order = self.work();
        match self.line.send_replace(SessionState::Closed) {
            SessionState::Up(session) if !session.is_over() => Some(session),
            _ => None,
        }
    }

    /// The target has ended all that its sessions began.
    pub(crate) fn settled(&self) {
        self.held.replaced(u64::MAX);
    }

    /// Some of what lost sessions began may still be executed.
    pub(crate) fn is_in_doubt(&self) -> bool {
        self.held.is_any()
    }

    /// How many connections sessions that follow are to have.
    pub(crate) fn want_connections(&self, wanted: u16) {
        self.connections.store(wanted, Ordering::Relaxed);
    }

    /// What was done to get another session.
    pub(crate) fn tried(&self) -> String {
        let work = self.work();
        match (&work.failure, work.tries) {
            (Some(failure), 1) => format!("a login failed: {failure}"),
            (Some(failure), tries) => format!("{tries} logins failed, the last: {failure}"),
            (None, _) => match work.waits.map(|wait| wait.as_secs()) {
                Some(seconds) => format!(
                    "no login was tried, for the target wants {seconds} s between a loss and the \
                     next login (DefaultTime2Wait)"
                ),
                None => "the first login has not come to its end".to_owned(),
            },
        }
    }

    fn work(&self) -> MutexGuard<'_, Work> {
        self.work.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Task {
    async fn run(mut self, wait: Duration) {
        let mut backoff = Backoff::by_chance();
        tokio::time::sleep(wait).await;
        while let Some((way, group, news)) = self.next() {
            match way.log_in(news, Some(group)).await {
                Ok(session) => return self.end(SessionState::Up(session)),
                // Asked again it says the same, and may hold it against us.
                Err(error) if error.kind == ErrorKind::Authentication => {
                    return self.end(SessionState::Refused(error));
                }
                Err(error) => self.failed(error),
            }
            tokio::time::sleep(backoff.next_pause()).await;
        }
    }

    /// The next login, if anybody still waits for it.
    fn next(&mut self) -> Option<(TargetConnector, Group, SessionContext)> {
        let keeper = self.keeper.upgrade()?;
        let mut work = keeper.work();
        let wanted = work.until.is_some_and(|until| Instant::now() < until)
            && !matches!(*keeper.line.borrow(), SessionState::Closed);
        if !wanted {
            work.until = None;
            self.ended = true;
            return None;
        }
        work.number += 1;
        work.waits = None;
        let (attentions, held) = (Arc::clone(&keeper.attentions), Arc::clone(&keeper.held));
        let mut way = keeper.way.clone();
        way.options.connections = keeper.connections.load(Ordering::Relaxed);
        Some((way, keeper.group, SessionContext { number: work.number, attentions, held }))
    }

    fn failed(&self, error: Error) {
        if let Some(keeper) = self.keeper.upgrade() {
            tracing::debug!(%error, "login again");
            if error.kind == ErrorKind::Connect {
                keeper.way.quirks.forget_losses();
            }
            let mut work = keeper.work();
            work.tries = work.tries.saturating_add(1);
            work.failure = Some(error);
        }
    }

    fn end(&mut self, line: SessionState) {
        self.ended = true;
        let Some(keeper) = self.keeper.upgrade() else { return };
        let mut work = keeper.work();
        work.until = None;
        // A session that nobody wants any more is dropped, and so logged out.
        if !matches!(*keeper.line.borrow(), SessionState::Closed) {
            match &line {
                SessionState::Up(session) => {
                    tracing::warn!(portal = session.portal(), "logged in again");
                    keeper.held.replaced(session.number());
                }
                SessionState::Refused(error) => tracing::warn!(%error, "not let in again"),
                SessionState::Closed => {}
            }
            keeper.line.send_replace(line);
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
