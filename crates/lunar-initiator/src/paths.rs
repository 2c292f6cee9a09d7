//! The paths to a disk: sessions of their own that lead to the same unit.
//!
//! A path is an initiator port of its own (an ISID) at one portal of the target. A command uses,
//! among the paths that are up and in the best access state, the one with the fewest bytes in
//! flight, or the next in turn. A path whose session is lost is logged in again in the background.

use crate::attentions::{CacheLossCounts, UnitAttentions};
use crate::commands::Unit;
use crate::port_groups::{TargetPortGroups, rank};
use crate::queue_depth::QueueDepth;
use crate::recovery::RetryDeadline;
use crate::session::Session;
use crate::{Error, ErrorKind, PathPolicy};
use arc_swap::ArcSwap;
use lunar_block::DeviceLink;
use lunar_scsi::ports::AccessState;
use std::sync::atomic::{AtomicU8, AtomicU32, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use tokio::time::Instant;

/// Maximum number of paths of a disk.
pub(crate) const PATHS_MAX: usize = 32;
/// Time for which an unusable path is avoided.
const PATH_PAUSE: Duration = Duration::from_millis(100);
/// Time after which a login is retried on a path whose target refused it.
const REFUSED_PAUSE: Duration = Duration::from_secs(30);
/// Time for which a lost path is logged in again without another request.
const REESTABLISH_TIME: Duration = Duration::from_secs(24 * 3600);
/// Time after which a path that led to another unit is verified again.
const WRONG_UNIT_TIME: Duration = Duration::from_secs(1);
/// Value for a port without target port group; no group has this number.
const NO_GROUP: u32 = u32::MAX;

/// One path to a disk.
#[derive(Debug)]
pub(crate) struct DiskPath {
    pub(crate) unit: Unit,
    pub(crate) attentions: Arc<UnitAttentions>,
    /// The portal of the disk, and the session there.
    pub(crate) key: PathKey,
    /// Resets that the unit reported before the path was used.
    resets_before: u64,
    /// Target port group of the path's port; [`NO_GROUP`] if the unit does not report it.
    group: AtomicU32,
    access: AtomicU8,
    pub(crate) queue_depth: QueueDepth,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    checked: Option<Checked>,
    /// Time until which other paths are preferred.
    paused_until: Option<Instant>,
    /// Time until which no new login is attempted after a refusal.
    refused_until: Option<Instant>,
}

/// Key of a path: the number of a portal, and of a session there.
#[derive(Clone, Copy, Debug, Default, Eq, Hash, Ord, PartialEq, PartialOrd)]
pub(crate) struct PathKey {
    pub(crate) portal: u16,
    pub(crate) session: u16,
}

/// Result of verifying the unit in a session, after `attentions` unit attentions.
#[derive(Clone, Debug)]
struct Checked {
    session: u64,
    attentions: u64,
    result: Result<(), Error>,
    at: Instant,
}

impl DiskPath {
    /// Returns a path to `unit` that is used from now on.
    pub(crate) fn new(unit: Unit, key: PathKey, resets_before: u64) -> Self {
        let attentions = unit.initiator().attentions_of(unit.lun());
        Self {
            unit,
            attentions,
            key,
            resets_before,
            group: AtomicU32::new(NO_GROUP),
            access: AtomicU8::new(AccessState::ACTIVE_OPTIMIZED.0),
            queue_depth: QueueDepth::default(),
            state: Mutex::default(),
        }
    }

    /// True when no command is in flight.
    pub(crate) fn is_idle(&self) -> bool {
        self.queue_depth.outstanding_bytes() == 0
    }

    /// Returns the result of verifying the unit in this session, unless the unit has reported an
    /// attention since.
    pub(crate) fn verdict(&self, session: &Session) -> Option<Result<(), Error>> {
        let state = self.state();
        let checked = state.checked.as_ref()?;
        let now = (session.number(), self.attentions.count());
        // An unused wrong unit would not report that the right one is back.
        let stale = checked.result.is_err() && checked.at.elapsed() > WRONG_UNIT_TIME;
        let holds = (checked.session, checked.attentions) == now && !stale;
        holds.then(|| checked.result.clone())
    }

    /// Records the result of verifying the unit, after `attentions` unit attentions.
    pub(crate) fn record_verification(
        &self,
        session: &Session,
        attentions: u64,
        result: Result<(), Error>,
    ) {
        let (session, at) = (session.number(), Instant::now());
        self.state().checked = Some(Checked { session, attentions, result, at });
    }

    /// Has the unit verified again before the path is used.
    pub(crate) fn forget_verification(&self) {
        self.state().checked = None;
    }

    fn link(&self) -> DeviceLink {
        let initiator = self.unit.initiator();
        match initiator.session_now() {
            Some(session) => match self.verdict(&session) {
                Some(Err(error)) if error.kind == ErrorKind::Changed => DeviceLink::Failed,
                _ => DeviceLink::Connected,
            },
            None if initiator.is_refused() || initiator.is_closed() => DeviceLink::Failed,
            None => DeviceLink::Waiting,
        }
    }

    /// Avoids the path for a while, and has its unit verified again before the path is used.
    pub(crate) fn pause(&self, met: Option<AccessState>) {
        if let Some(met) = met {
            self.access.store(met.0, Ordering::Relaxed);
        }
        let mut state = self.state();
        state.paused_until = Some(Instant::now() + PATH_PAUSE);
        state.checked = None;
    }

    /// Reads the group of the path's port and the access states of all groups. Returns true when
    /// commands may be sent through the port, as far as the unit reports.
    pub(crate) async fn read_access_states(
        &self,
        unit: &Unit,
        paths: &Paths,
    ) -> Result<bool, Error> {
        let group = unit.port_group().await?;
        self.group.store(group.map_or(NO_GROUP, u32::from), Ordering::Relaxed);
        let groups = unit.port_groups().await?;
        paths.note_groups(&groups);
        if group.is_none_or(|group| !groups.contains_key(&group)) {
            // A state met earlier may be outdated; TEST UNIT READY shows the current one.
            self.access.store(AccessState::ACTIVE_OPTIMIZED.0, Ordering::Relaxed);
        }
        Ok(self.rank().is_some())
    }

    fn is_paused(&self) -> bool {
        self.state().paused_until.is_some_and(|until| Instant::now() < until)
    }

    fn reported_losses(&self) -> CacheLossCounts {
        let losses = self.attentions.reported_losses();
        CacheLossCounts { resets: losses.resets.saturating_sub(self.resets_before), ..losses }
    }

    fn rank(&self) -> Option<u8> {
        rank(AccessState(self.access.load(Ordering::Relaxed)))
    }

    /// Has the session re-established in the background, unless the target has just refused it.
    pub(crate) fn reestablish(&self) {
        let now = Instant::now();
        let initiator = self.unit.initiator();
        let mut state = self.state();
        if initiator.is_refused() {
            if state.refused_until.is_some_and(|until| now < until) {
                return;
            }
            state.refused_until = Some(now + REFUSED_PAUSE);
        }
        drop(state);
        initiator.reestablish(now + REESTABLISH_TIME);
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// All paths to a disk; at least one.
#[derive(Debug)]
pub(crate) struct Paths {
    set: ArcSwap<Set>,
    policy: PathPolicy,
    turn: AtomicUsize,
}

#[derive(Clone, Debug)]
struct Set {
    all: Vec<Arc<DiskPath>>,
    /// Cache losses reported on paths that were removed.
    losses_of_removed_paths: CacheLossCounts,
}

/// Result of choosing a path.
enum Choice {
    Use(Arc<DiskPath>),
    /// No path is usable now, but one may become usable.
    Wait(Error),
    /// No path is usable, and waiting does not help.
    Never(Error),
}

impl Paths {
    /// Returns the set with one path.
    pub(crate) fn new(first: DiskPath, policy: PathPolicy) -> Self {
        let set =
            Set { all: vec![Arc::new(first)], losses_of_removed_paths: CacheLossCounts::default() };
        Self { set: ArcSwap::from_pointee(set), policy, turn: AtomicUsize::new(0) }
    }

    /// Returns all paths.
    pub(crate) fn all(&self) -> Vec<Arc<DiskPath>> {
        self.set.load().all.clone()
    }

    /// Returns the path through which the disk was opened.
    pub(crate) fn first(&self) -> Arc<DiskPath> {
        Arc::clone(&self.set.load().all[0])
    }

    /// Adds a path; `false` if there are [`PATHS_MAX`] already.
    pub(crate) fn add(&self, path: DiskPath) -> bool {
        let path = Arc::new(path);
        let before = self.set.rcu(|set| {
            let mut set = Set::clone(set);
            if set.all.len() < PATHS_MAX {
                set.all.push(Arc::clone(&path));
            }
            set
        });
        // With one path, the unit's access states were not read.
        self.forget_verifications();
        before.all.len() < PATHS_MAX
    }

    /// Has the unit verified again on each path before the path is used.
    pub(crate) fn forget_verifications(&self) {
        self.set.load().all.iter().for_each(|path| path.forget_verification());
    }

    /// Removes the paths that are not wanted, except the first; returns them.
    pub(crate) fn retain(&self, wanted: impl Fn(&DiskPath) -> bool) -> Vec<Arc<DiskPath>> {
        let before = self.set.rcu(|set| {
            let first = set.all.first();
            let stays = |path: &&Arc<DiskPath>| {
                wanted(path) || first.is_some_and(|first| Arc::ptr_eq(first, path))
            };
            let (all, gone): (Vec<_>, Vec<_>) = set.all.iter().partition(stays);
            let losses_of_removed_paths = gone
                .iter()
                .fold(set.losses_of_removed_paths, |sum, path| sum + path.reported_losses());
            let all = all.into_iter().map(Arc::clone).collect();
            Set { all, losses_of_removed_paths }
        });
        let stay = self.all();
        let gone = |path: &&Arc<DiskPath>| !stay.iter().any(|other| Arc::ptr_eq(path, other));
        before.all.iter().filter(gone).cloned().collect()
    }

    /// Cache losses reported on all paths.
    pub(crate) fn reported_losses(&self) -> CacheLossCounts {
        let set = self.set.load();
        set.all.iter().fold(set.losses_of_removed_paths, |sum, path| sum + path.reported_losses())
    }

    /// Records access states, which hold for all paths.
    pub(crate) fn note_groups(&self, groups: &TargetPortGroups) {
        for path in &self.set.load().all {
            let group = u16::try_from(path.group.load(Ordering::Relaxed)).ok();
            if let Some(state) = group.and_then(|group| groups.get(&group)) {
                path.access.store(state.0, Ordering::Relaxed);
            }
        }
    }

    /// True when there are several paths.
    pub(crate) fn are_several(&self) -> bool {
        self.set.load().all.len() > 1
    }

    /// Returns the path for the next command, if one is usable at once.
    pub(crate) fn pick_now(&self) -> Option<Arc<DiskPath>> {
        match self.choose() {
            Choice::Use(path) => Some(path),
            Choice::Wait(_) | Choice::Never(_) => None,
        }
    }

    /// Returns the path for the next command, waiting if need be. A single path is returned whether
    /// it is up or not.
    ///
    /// # Errors
    /// When `deadline` is over · the result of verifying the unit, if it is wrong on every path.
    pub(crate) async fn pick(&self, deadline: &mut RetryDeadline) -> Result<Arc<DiskPath>, Error> {
        loop {
            let why = match self.choose() {
                Choice::Use(path) => return Ok(path),
                Choice::Never(error) => return Err(error),
                Choice::Wait(why) => why,
            };
            match deadline.until() {
                Some(until) if Instant::now() < until => {}
                Some(_) => return Err(deadline.over(&self.describe_attempts())),
                None => drop(deadline.lost(why.not_sent())?),
            }
            self.first().unit.initiator().pause(PATH_PAUSE).await;
        }
    }

    fn choose(&self) -> Choice {
        let set = self.set.load();
        let all = &set.all;
        if let [only] = &**all {
            return Choice::Use(Arc::clone(only));
        }
        let turn = self.turn.fetch_add(1, Ordering::Relaxed) % all.len();
        let (from, to) = all.split_at(turn);
        let mut best: Option<(u8, u64, &Arc<DiskPath>)> = None;
        let (mut wait, mut never) = (None, None);
        for path in to.iter().chain(from) {
            match path.usable() {
                Ok(rank) => {
                    let bytes = match self.policy {
                        PathPolicy::LeastOutstanding => path.queue_depth.outstanding_bytes(),
                        PathPolicy::RoundRobin => 0,
                    };
                    if best.is_none_or(|(r, b, _)| (rank, bytes) < (r, b)) {
                        best = Some((rank, bytes, path));
                    }
                }
                Err(Unusable::Transient(why)) => wait = Some(why),
                Err(Unusable::Wrong(why)) => never = Some(why),
            }
        }
        match (best, wait, never) {
            (Some((_, _, path)), ..) => Choice::Use(Arc::clone(path)),
            (None, Some(why), _) => Choice::Wait(why),
            (None, None, why) => Choice::Never(why.unwrap_or_else(no_path)),
        }
    }

    /// Has the sessions of all lost paths re-established.
    pub(crate) fn reestablish_lost(&self) {
        for path in &self.set.load().all {
            let initiator = path.unit.initiator();
            if initiator.session_now().is_none() && !initiator.is_closed() {
                path.reestablish();
            }
        }
    }

    /// State of the best path.
    pub(crate) fn link(&self) -> DeviceLink {
        let set = self.set.load();
        let has = |state| set.all.iter().any(|path| path.link() == state);
        let mut better = [DeviceLink::Connected, DeviceLink::Waiting].into_iter();
        better.find(|state| has(*state)).unwrap_or(DeviceLink::Failed)
    }

    /// True when all paths were logged out.
    pub(crate) fn are_closed(&self) -> bool {
        self.set.load().all.iter().all(|path| path.unit.initiator().is_closed())
    }

    /// True when one path answers and so has reported all resets so far.
    pub(crate) async fn has_answering_path(&self) -> bool {
        for path in self.all() {
            let Some(session) = path.unit.initiator().session_now() else { continue };
            let unit = path.unit.in_session(&session);
            if unit.test_ready().await.is_ok() && session.wait_for_commands(unit.lun()).await {
                return true;
            }
        }
        false
    }

    /// Describes the attempts to re-establish lost paths.
    pub(crate) fn describe_attempts(&self) -> String {
        let set = self.set.load();
        let lost = set.all.iter().filter(|path| path.unit.initiator().session_now().is_none());
        let descriptions: Vec<String> = lost
            .map(|path| {
                let initiator = path.unit.initiator();
                format!("at {} {}", initiator.portal(), initiator.describe_attempts())
            })
            .collect();
        if descriptions.is_empty() {
            "no path is active".to_owned()
        } else {
            descriptions.join("; ")
        }
    }
}

/// Reason why a path is not used.
enum Unusable {
    /// The path may be usable later.
    Transient(Error),
    /// The path leads to another unit, or is closed.
    Wrong(Error),
}

impl DiskPath {
    /// Rank of the path's access state, if it can be used now. Has a lost path logged in again.
    fn usable(&self) -> Result<u8, Unusable> {
        let initiator = self.unit.initiator();
        let portal = || initiator.portal();
        let Some(session) = initiator.session_now() else {
            if initiator.is_closed() {
                let what = format!("the session with {} was logged out", portal());
                return Err(Unusable::Wrong(Error::new(ErrorKind::NotSent, what)));
            }
            self.reestablish();
            let what = format!("the session with {} is lost", portal());
            return Err(Unusable::Transient(Error::new(ErrorKind::SessionLost, what)));
        };
        if session.connections() == 0 {
            let what = format!("the session with {} accepts no commands at the moment", portal());
            return Err(Unusable::Transient(Error::new(ErrorKind::NotSent, what)));
        }
        if self.is_paused() {
            let what = format!("the unit is not ready through {}", portal());
            return Err(Unusable::Transient(Error::new(ErrorKind::NotSent, what)));
        }
        match (self.verdict(&session), self.rank()) {
            (Some(Err(wrong)), _) => Err(Unusable::Wrong(wrong)),
            // The unit is verified before the path is used.
            (None, rank) => Ok(rank.unwrap_or(u8::MAX)),
            (Some(Ok(())), Some(rank)) => Ok(rank),
            (Some(Ok(())), None) => {
                let what = format!("the target port at {} is not active", portal());
                self.pause(None);
                Err(Unusable::Transient(Error::new(ErrorKind::NotSent, what)))
            }
        }
    }
}

fn no_path() -> Error {
    Error::new(ErrorKind::NotSent, "no path to the disk is available")
}
