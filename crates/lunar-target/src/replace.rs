//! Serving something else without stopping.

use crate::Error;
use crate::access;
use crate::catalogue::{Catalogue, Indexed};
use crate::options::TargetOptions;
use crate::server::{Server, Shared, begin};
use crate::session::Session;
use crate::unit::LogicalUnit;
use crate::view::{self, LunTable};
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::sync::oneshot;

/// Seconds that an initiator has to log out when its session must end.
const LEAVE_SECONDS: u16 = 3;
/// A long operation of a unit that is served no more stops between two pieces; one that does not
/// is left to itself.
const OPERATION_WAIT_MAX: Duration = Duration::from_secs(5);
/// The last sync of such a unit is waited for so long, and goes on alone after: a disk that hangs
/// must not keep everything else from being changed.
const RETIRE_SYNC_MAX: Duration = Duration::from_secs(60);
const OPERATION_POLL: Duration = Duration::from_millis(10);

/// What changed when the catalogue did.
#[derive(Debug, Default)]
pub struct Replaced {
    /// Sessions that see other LUNs than before, and go on.
    pub sessions_changed: usize,
    /// Sessions that had to end: their target is gone, redirected, in another portal group, or not
    /// for them any more.
    pub sessions_ended: usize,
    /// Units that are served no more. Their devices close when the last of these is dropped.
    pub units_gone: Vec<Arc<LogicalUnit>>,
    /// Those of them whose last sync failed, with the reason.
    pub failed_syncs: Vec<(String, String)>,
}

impl Server {
    /// What is served at this moment.
    pub fn catalogue(&self) -> Catalogue {
        self.shared.catalogue().catalogue.clone()
    }

    /// Serves `catalogue` from now on. A unit that is in both is the same `Arc` in both.
    ///
    /// Sessions notice what concerns them: one whose LUNs change goes on, its tasks on LUNs that
    /// went are aborted, and its other units tell it REPORTED LUNS DATA HAS CHANGED; one that must
    /// end is asked to log out, and cut after a few seconds. Who administers holds at once.
    /// Credentials and negotiated keys concern the next login. Units that are served no more are
    /// synced. Returns when all of that is done.
    ///
    /// # Errors
    /// A catalogue that contradicts itself; nothing has changed then.
    pub async fn replace(&self, catalogue: Catalogue) -> Result<Replaced, Error> {
        let new = Arc::new(Indexed::new(catalogue)?);
        let _alone = self.replacing.lock().await;
        let before = self.shared.units();
        let after = new.catalogue.units();
        let missing = |among: &[Arc<LogicalUnit>], unit: &Arc<LogicalUnit>| {
            !among.iter().any(|other| Arc::ptr_eq(other, unit))
        };
        for unit in after.iter().filter(|unit| missing(&before, unit)) {
            begin(&self.shared, &self.cores, Arc::clone(unit));
        }
        let old = self.shared.swap_catalogue(Arc::clone(&new));
        let shared = Arc::clone(&self.shared);
        let settled = self.on_core(move || async move { settle(&shared, &old, &new).await }).await;
        let mut replaced = settled.unwrap_or_default();
        for unit in before.into_iter().filter(|unit| missing(&after, unit)) {
            if let Err(why) = retire(&unit).await {
                replaced.failed_syncs.push((unit.device().name().to_owned(), why));
            }
            replaced.units_gone.push(unit);
        }
        Ok(replaced)
    }

    /// Ends a session: its initiator is asked to log out, and cut after a few seconds. `false`:
    /// there is no such session.
    pub async fn log_out(&self, tsih: u16) -> bool {
        let Some(session) = self.shared.sessions().get(tsih) else { return false };
        let shared = Arc::clone(&self.shared);
        self.on_core(move || async move { dismiss(&shared, &session).await }).await;
        true
    }

    /// Runs work that sessions take part in where they live.
    async fn on_core<T, F>(&self, work: impl FnOnce() -> F + Send + 'static) -> Option<T>
    where
        T: Send + 'static,
        F: Future<Output = T> + 'static,
    {
        let (done, result) = oneshot::channel();
        self.cores.spawn(move || async move {
            let _ = done.send(work().await); // who asked may have given up
        });
        result.await.ok()
    }
}

/// What becomes of a session.
enum Lot<'t> {
    /// It is not concerned, but for what it may do.
    Stays(Option<&'t Arc<TargetOptions>>),
    Sees(&'t Arc<TargetOptions>, Arc<LunTable>),
    Ends,
}

/// All sessions at once: one whose initiator takes its time holds up no other.
async fn settle(shared: &Arc<Shared>, old: &Indexed, new: &Indexed) -> Replaced {
    // Whoever logs in after the swap sees the new catalogue, and is no concern of ours.
    let sessions = shared.sessions().all();
    let each = sessions.iter().map(|session| async move {
        match lot(session, old, new) {
            Lot::Stays(target) => {
                target.into_iter().for_each(|target| session.set_rights(target));
                (0, 0)
            }
            Lot::Sees(target, luns) => {
                session.set_rights(target);
                view::show(shared, session, luns).await;
                (1, 0)
            }
            Lot::Ends => {
                dismiss(shared, session).await;
                (0, 1)
            }
        }
    });
    let lots = futures_util::future::join_all(each).await;
    Replaced {
        sessions_changed: lots.iter().map(|(changed, _)| changed).sum(),
        sessions_ended: lots.iter().map(|(_, ended)| ended).sum(),
        ..Replaced::default()
    }
}

fn lot<'t>(session: &Session, old: &Indexed, new: &'t Indexed) -> Lot<'t> {
    let Some(name) = session.key.target_name.as_deref() else { return Lot::Stays(None) };
    let Some(target) = new.target(name) else { return Lot::Ends };
    let (initiator, address) = (&session.key.initiator_name, session.path.peer.ip());
    let was = old.target(name);
    let differs =
        |of: fn(&TargetOptions) -> (Option<&str>, u16)| was.is_none_or(|was| of(was) != of(target));
    // A new address is for new logins only; this one logged in where it was told to.
    let sent_away = target.redirect.is_some() && differs(|t| (t.redirect.as_deref(), 0));
    let moved = differs(|t| (None, t.portal_group));
    if sent_away || moved || !access::admits(target, initiator, address) {
        return Lot::Ends;
    }
    let luns = new.visible_luns(name, initiator, address);
    match session.view().shows(&luns) {
        true => Lot::Stays(Some(target)),
        false => Lot::Sees(target, luns),
    }
}

/// Asks the initiator to log out; cuts it when it does not.
async fn dismiss(shared: &Arc<Shared>, session: &Arc<Session>) {
    session.ask_to_leave(LEAVE_SECONDS);
    let grace = Duration::from_secs(LEAVE_SECONDS.into());
    if tokio::time::timeout(grace, session.ended()).await.is_err() {
        session.end(shared);
        // Its tasks may hang in a device.
        let _ = tokio::time::timeout(grace, session.ended()).await;
    }
}

/// The last sync of a unit that is served no more.
async fn retire(unit: &Arc<LogicalUnit>) -> Result<(), String> {
    unit.stop_operation(true);
    let until = Instant::now() + OPERATION_WAIT_MAX;
    while unit.operates() && Instant::now() < until {
        tokio::time::sleep(OPERATION_POLL).await;
    }
    if unit.is_read_only() {
        return Ok(());
    }
    match tokio::time::timeout(RETIRE_SYNC_MAX, unit.device().flush()).await {
        Ok(synced) => synced.map_err(|error| error.to_string()),
        Err(_) => Err(format!("it has not ended in {} s", RETIRE_SYNC_MAX.as_secs())),
    }
}
