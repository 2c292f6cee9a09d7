//! Replacement of the catalogue without a restart.

use crate::Error;
use crate::catalogue::{Catalogue, IndexedCatalogue};
use crate::lun_table::{LunChange, LunTable};
use crate::options::TargetOptions;
use crate::pieces::Pieces;
use crate::rights;
use crate::server::Server;
use crate::session::Session;
use crate::session_table::SessionTable;
use crate::unit::Unit;
use futures_util::future::{FutureExt, LocalBoxFuture};
use futures_util::stream::{FuturesUnordered, StreamExt};
use std::collections::{HashMap, HashSet};
use std::rc::Rc;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::sync::oneshot;

/// Seconds that an initiator has to log out when its session must end.
const LEAVE_SECONDS: u16 = 3;
/// Time to wait until a long operation of a unit that is no longer served stops between two pieces;
/// one that does not stop is left running.
const OPERATION_WAIT_MAX: Duration = Duration::from_secs(5);
/// Time for which the last sync of such a unit is waited for; later it continues alone, since a
/// disk that hangs must not block all other changes.
const RETIRE_SYNC_MAX: Duration = Duration::from_secs(60);
/// Units of work that a session counts as, even if it sees fewer units.
const SESSION_UNITS: usize = 16;
const OPERATION_POLL: Duration = Duration::from_millis(10);

/// Effects of a change of the catalogue.
#[derive(Debug, Default)]
pub struct Replaced {
    /// Sessions whose LUNs changed, and which continue.
    pub sessions_changed: usize,
    /// Sessions that had to end: their target is gone, redirected, in another portal group, or no
    /// longer accessible to them.
    pub sessions_ended: usize,
    /// Units that are no longer served. Their devices close when the last of these is dropped.
    pub units_gone: Vec<Arc<dyn Unit>>,
    /// Units among them whose last sync failed, with the reason.
    pub failed_syncs: Vec<(String, String)>,
}

impl Server {
    /// The current catalogue.
    pub fn catalogue(&self) -> Catalogue {
        self.catalogue.load().catalogue.clone()
    }

    /// Serves `catalogue` from now on. A unit that is in both catalogues is the same `Arc` in both.
    ///
    /// Affected sessions change: one whose LUNs change continues, its tasks on removed LUNs are
    /// aborted, and its other units report REPORTED LUNS DATA HAS CHANGED; one that must end
    /// receives a request to log out, and is cut after a few seconds. Changes of administrators
    /// take effect at once. Credentials and negotiated keys apply from the next login on. Units
    /// that are no longer served are synced. Returns when all of that is done.
    ///
    /// # Errors
    /// The catalogue contradicts itself; nothing has changed then.
    pub async fn replace(&self, catalogue: Catalogue) -> Result<Replaced, Error> {
        let new = Arc::new(IndexedCatalogue::new(catalogue)?);
        let _alone = self.replacing.lock().await;
        let before = self.catalogue.units();
        let after = new.catalogue.units();
        let address = |unit: &Arc<dyn Unit>| Arc::as_ptr(unit).addr();
        let [known, kept] =
            [&before, &after].map(|units| units.iter().map(address).collect::<HashSet<_>>());
        for unit in after.iter().filter(|unit| !known.contains(&address(unit))) {
            self.begin(unit);
        }
        let old = self.catalogue.swap(Arc::clone(&new));
        let sessions = Arc::clone(&self.manager.sessions);
        let settled =
            self.on_core(move || async move { apply_to_sessions(&sessions, &old, &new).await });
        let settled = settled.await;
        let mut replaced = settled.unwrap_or_default();
        for unit in before.iter().filter(|unit| !kept.contains(&address(unit))) {
            if let Err(why) = retire(unit).await {
                replaced.failed_syncs.push((unit.name().to_owned(), why));
            }
            replaced.units_gone.push(Arc::clone(unit));
        }
        Ok(replaced)
    }

    /// Ends a session: requests its initiator to log out, and cuts it after a few seconds. Returns
    /// `false` if there is no such session.
    pub async fn log_out(&self, tsih: u16) -> bool {
        let Some(session) = self.manager.sessions.lock().get(tsih) else { return false };
        self.on_core(move || async move { dismiss(&session).await }).await;
        true
    }

    /// Runs work on a core, where the sessions live.
    async fn on_core<T, F>(&self, work: impl FnOnce() -> F + Send + 'static) -> Option<T>
    where
        T: Send + 'static,
        F: Future<Output = T> + 'static,
    {
        let (done, result) = oneshot::channel();
        self.cores.spawn(move || async move {
            let _ = done.send(work().await); // the caller may have stopped waiting
        });
        result.await.ok()
    }
}

/// Effect of a new catalogue on a session.
enum SessionChange<'t> {
    /// The session sees the same LUNs, but its rights may change.
    Stays(Option<&'t Arc<TargetOptions>>),
    Sees(&'t Arc<TargetOptions>, Rc<LunChange>),
    Ends,
}

/// Work that remains once a wait is over.
enum NextStep<'a> {
    /// The aborted tasks of the session are quiet.
    EndShow(&'a Session),
    /// The session has not ended by itself.
    Cut(&'a Arc<Session>),
    Nothing,
}

type Wait<'a> = LocalBoxFuture<'a, NextStep<'a>>;

/// A change from one catalogue to another.
struct Change<'a> {
    old: &'a IndexedCatalogue,
    new: &'a IndexedCatalogue,
    /// Changes of LUNs by the addresses of the tables, which are kept alive here.
    luns: HashMap<(usize, usize), (Arc<LunTable>, Rc<LunChange>)>,
    /// True if rights may have changed, by the addresses of the new targets.
    rights: HashMap<usize, bool>,
}

/// Applies a change to each session, in pieces. A session that is waited for delays no other.
pub(crate) async fn apply_to_sessions(
    table: &SessionTable,
    old: &IndexedCatalogue,
    new: &IndexedCatalogue,
) -> Replaced {
    // Sessions that log in after the swap already use the new catalogue.
    let sessions = table.lock().all();
    let mut change = Change { old, new, luns: HashMap::new(), rights: HashMap::new() };
    let (mut pieces, mut replaced) = (Pieces::default(), Replaced::default());
    let mut waits = FuturesUnordered::<Wait<'_>>::new();
    for session in &sessions {
        pieces.count(SESSION_UNITS).await;
        match change.of(session, &mut pieces).await {
            SessionChange::Stays(None) => {}
            SessionChange::Stays(Some(target)) => {
                session.set_rights(target, change.changes_rights(target), &mut pieces).await;
            }
            SessionChange::Sees(target, luns) => {
                replaced.sessions_changed += 1;
                session.set_rights(target, change.changes_rights(target), &mut pieces).await;
                pieces.count(session.view().luns().len()).await;
                let aborted = session.begin_show(&luns);
                waits.push(Box::pin(async move {
                    for tasks in aborted {
                        let _ = tasks.await; // the session may be over
                    }
                    NextStep::EndShow(session)
                }));
            }
            SessionChange::Ends => {
                replaced.sessions_ended += 1;
                session.request_logout(LEAVE_SECONDS);
                waits.push(Box::pin(async move {
                    if ends_in_time(session).await {
                        NextStep::Nothing
                    } else {
                        NextStep::Cut(session)
                    }
                }));
            }
        }
        // Begins each wait at once: all of them in one piece would take long.
        while let Some(Some(next)) = waits.next().now_or_never() {
            waits.extend(next.run(&mut pieces).await);
        }
    }
    while let Some(next) = waits.next().await {
        waits.extend(next.run(&mut pieces).await);
    }
    replaced
}

impl<'a> NextStep<'a> {
    async fn run(self, pieces: &mut Pieces) -> Option<Wait<'a>> {
        pieces.count(SESSION_UNITS).await;
        match self {
            Self::EndShow(session) => session.end_show(pieces).await,
            Self::Cut(session) => {
                pieces.count(session.view().luns().len()).await;
                session.end();
                return Some(Box::pin(async move {
                    ends_in_time(session).await; // its tasks may hang in a device
                    NextStep::Nothing
                }));
            }
            Self::Nothing => {}
        }
        None
    }
}

impl<'a> Change<'a> {
    async fn of(&mut self, session: &Session, pieces: &mut Pieces) -> SessionChange<'a> {
        let Some(name) = session.key.target_name.as_deref() else {
            return SessionChange::Stays(None);
        };
        let Some(served) = self.new.target(name) else { return SessionChange::Ends };
        let target = served.options;
        let (initiator, address) = (&session.key.initiator_name, session.path.peer.ip());
        let was = self.old.target(name).map(|was| was.options);
        let differs = |field: fn(&TargetOptions) -> (Option<&str>, u16)| {
            was.is_none_or(|was| field(was) != field(target))
        };
        // A new redirect address applies to new logins only; this session logged in at the old one.
        let sent_away = target.redirect.is_some() && differs(|t| (t.redirect.as_deref(), 0));
        let moved = differs(|t| (None, t.portal_group));
        if sent_away || moved || !served.admits(initiator, address) {
            return SessionChange::Ends;
        }
        let seen = Arc::clone(session.view().luns());
        let luns = served.visible_luns(initiator, address);
        let tables = (Arc::as_ptr(&seen).addr(), Arc::as_ptr(&luns).addr());
        let luns = match self.luns.get(&tables) {
            Some((_, luns)) => Rc::clone(luns),
            None => {
                pieces.count(seen.len() + luns.len()).await;
                let luns = Rc::new(LunChange::new(&seen, luns));
                self.luns.insert(tables, (seen, Rc::clone(&luns)));
                luns
            }
        };
        match luns.is_none {
            true => SessionChange::Stays(Some(target)),
            false => SessionChange::Sees(target, luns),
        }
    }

    fn changes_rights(&mut self, target: &Arc<TargetOptions>) -> bool {
        let changes = || {
            let was = self.old.target(&target.name);
            was.is_none_or(|was| rights::may_change_rights(was.options, target))
        };
        *self.rights.entry(Arc::as_ptr(target).addr()).or_insert_with(changes)
    }
}

async fn ends_in_time(session: &Session) -> bool {
    let grace = Duration::from_secs(LEAVE_SECONDS.into());
    tokio::time::timeout(grace, session.ended()).await.is_ok()
}

/// Requests the initiator to log out, and cuts the session if it does not.
async fn dismiss(session: &Arc<Session>) {
    session.request_logout(LEAVE_SECONDS);
    if !ends_in_time(session).await {
        session.end();
        ends_in_time(session).await; // its tasks may hang in a device
    }
}

/// Syncs a unit that is no longer served.
async fn retire(unit: &Arc<dyn Unit>) -> Result<(), String> {
    unit.stop_operation(true);
    let until = Instant::now() + OPERATION_WAIT_MAX;
    while unit.has_running_operation() && Instant::now() < until {
        tokio::time::sleep(OPERATION_POLL).await;
    }
    if unit.is_read_only() {
        return Ok(());
    }
    match tokio::time::timeout(RETIRE_SYNC_MAX, unit.flush()).await {
        Ok(synced) => synced.map_err(|error| error.to_string()),
        Err(_) => Err(format!("the sync did not end within {} s", RETIRE_SYNC_MAX.as_secs())),
    }
}
