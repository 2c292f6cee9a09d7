//! The paths of a disk: the number of sessions to each portal.

use super::RemoteDisk;
use crate::commands::Unit;
use crate::options::random_isid;
use crate::paths::{DiskPath, PATHS_MAX, PathKey, Paths};
use crate::port_groups::access_state_of_error;
use crate::recovery::Backoff;
use crate::target_connector::no_random;
use crate::{Error, ErrorKind, Initiator, SessionOptions, Url};
use bytes::Bytes;
use futures_util::future::join_all;
use lunar_scsi::sense::SenseKey;
use std::collections::BTreeSet;
use std::sync::{Arc, Weak};
use std::time::Duration;
use tokio::sync::Mutex;
use tokio::time::Instant;

/// Time the commands of a removed path have to end.
const DRAIN_TIME: Duration = Duration::from_secs(30);
/// Interval between two checks of the paths of a disk that stays connected.
const LINK_PAUSE: Duration = Duration::from_secs(2);
/// CDB of TEST UNIT READY.
const TEST_UNIT_READY: [u8; 6] = [0; 6];
/// Interval between two checks whether the commands of a removed path have ended.
const DRAIN_PAUSE: Duration = Duration::from_millis(10);
/// Time the existing paths have to report a reset before another one is added.
const RESET_REPORT_TIME: Duration = Duration::from_secs(2);
/// Number of ISIDs reserved for one portal; they are consecutive.
const SESSIONS_PER_PORTAL_MAX: u16 = PATHS_MAX as u16;
/// Minimum pause between two attempts to establish a missing path.
const RETRY_PAUSE: Duration = Duration::from_secs(5);

/// Establishes and removes the paths of a disk.
#[derive(Debug)]
pub(super) struct Layout {
    plan: Arc<Plan>,
    /// Paths that are missing and being established. Locked while paths are added or removed.
    missing: Arc<Mutex<BTreeSet<PathKey>>>,
}

#[derive(Debug)]
struct Plan {
    url: Url,
    /// All portals; the portal of `url` is first.
    portals: Vec<(String, u16)>,
    /// With the ISID from which the ISIDs of all paths are derived.
    options: SessionOptions,
}

impl Plan {
    fn new(url: &Url, options: &SessionOptions) -> Result<Self, Error> {
        let mut options = options.clone();
        options.isid = Some(options.isid.map_or_else(|| random_isid().map_err(no_random), Ok)?);
        let mut portals = vec![(url.host.clone(), url.port)];
        for portal in std::mem::take(&mut options.portals) {
            if !portals.contains(&portal) {
                portals.push(portal);
            }
        }
        if portals.len() > PATHS_MAX {
            let what = format!("{} portals are given; the maximum is {PATHS_MAX}", portals.len());
            return Err(Error::new(ErrorKind::Login, what));
        }
        Ok(Self { url: url.clone(), portals, options })
    }

    /// Returns URL and options for the session of `key`, with this number of connections.
    fn url_and_options(&self, key: PathKey, connections: u16) -> (Url, SessionOptions) {
        let (mut url, mut options) = (self.url.clone(), self.options.clone());
        let mut others = self.portals.clone();
        if usize::from(key.portal) < others.len() {
            (url.host, url.port) = others.remove(key.portal.into());
        }
        options.portals = others;
        options.connections = connections;
        options.isid = options.isid.map(|isid| isid_of(isid, key));
        (url, options)
    }

    async fn log_in(&self, key: PathKey, connections: u16) -> Result<Initiator, Error> {
        let (url, options) = self.url_and_options(key, connections);
        Initiator::connect(&url, &options).await
    }

    fn lun(&self) -> u16 {
        self.url.unit.as_ref().map_or(0, |unit| unit.lun)
    }

    /// Establishes a path whose unit has reported its attentions to the new initiator port. Earlier
    /// resets are reported by the existing paths; if none of them answers, one reset may have been
    /// missed and is counted.
    async fn path(&self, key: PathKey, connections: u16, paths: &Paths) -> Result<DiskPath, Error> {
        let initiator = self.log_in(key, connections).await?;
        let unit = Unit::new(initiator.clone(), self.lun());
        let attentions = initiator.attentions_of(unit.lun());
        match unit.test_ready().await {
            // The port is in standby and can become active.
            Err(error) if error.sense().is_some_and(|s| s.key == SenseKey::NOT_READY) => {}
            ready => ready?,
        }
        if let Some(session) = initiator.session_now() {
            attentions.record_session_start(session.number());
        }
        let resets = attentions.resets();
        let answered =
            tokio::time::timeout(RESET_REPORT_TIME, paths.has_answering_path()).await == Ok(true);
        Ok(DiskPath::new(unit, key, if answered { resets } else { resets.saturating_sub(1) }))
    }
}

/// Returns the ISID of a path: only the qualifier, the last two bytes, differs (RFC 7143
/// §11.12.5).
fn isid_of(isid: [u8; 6], key: PathKey) -> [u8; 6] {
    let [a, b, c, d, high, low] = isid;
    let offset = key.portal.wrapping_mul(SESSIONS_PER_PORTAL_MAX).wrapping_add(key.session);
    let [high, low] = u16::from_be_bytes([high, low]).wrapping_add(offset).to_be_bytes();
    [a, b, c, d, high, low]
}

/// Number of connections of session number `session` when `wanted` connections are spread over
/// sessions of at most `connections_max`; 0 if there is no such session.
fn share(wanted: u16, connections_max: u16, session: u16) -> u16 {
    let before = session.saturating_mul(connections_max.max(1));
    wanted.max(1).saturating_sub(before).min(connections_max.max(1))
}

impl RemoteDisk {
    /// Logs in and opens the LUN of `url` over all its paths: to its portal and each of
    /// [`SessionOptions::portals`], with one session or as many as [`SessionOptions::connections`]
    /// requires. One portal that accepts the login is enough; the others are retried as long as the
    /// disk is open.
    ///
    /// # Errors
    /// The errors of [`Initiator::connect`] and [`open`](Self::open).
    pub async fn connect(url: &Url, options: &SessionOptions) -> Result<Self, Error> {
        let plan = Plan::new(url, options)?;
        let mut disk = first_of(&plan).await?;
        let wanted = options.connections;
        disk.layout = Some(Layout { plan: Arc::new(plan), missing: Arc::default() });
        disk.adjust_connections(wanted).await;
        Ok(disk)
    }

    /// Number of connections that are logged in, on all paths.
    pub fn connections(&self) -> usize {
        self.paths.all().iter().map(|path| path.unit.initiator().connections()).sum()
    }

    /// Keeps [`link`](lunar_block::BlockDevice::link) and the size of the disk current as long as
    /// the disk exists, also without commands of callers: re-establishes lost sessions, and sends
    /// TEST UNIT READY, whose response reports changes of the unit.
    pub fn stay_connected(self: &Arc<Self>) {
        let disk = Arc::downgrade(self);
        self.unit.initiator().spawn(async move {
            loop {
                tokio::time::sleep(LINK_PAUSE).await;
                let Some(disk) = disk.upgrade() else { return };
                if disk.paths.are_closed() {
                    return;
                }
                disk.paths.reestablish_lost();
                // The response reports changes, and a new session verifies the unit.
                let _ = disk.send(TEST_UNIT_READY.into(), Bytes::new(), None).await;
            }
        });
    }

    /// Number of paths that are logged in.
    pub fn paths(&self) -> usize {
        let up = |path: &&Arc<DiskPath>| path.unit.initiator().session_now().is_some();
        self.paths.all().iter().filter(up).count()
    }

    /// Sets the number of connections to each portal: of one session as far as the target allows,
    /// then of further sessions. Adds missing connections, and removes excess ones when their
    /// commands have ended. A connection that cannot be established is logged and retried. For a
    /// disk that was opened over the caller's own session, sets the connections of that session.
    pub async fn set_connections(&self, wanted: u16) {
        self.paths.all().iter().for_each(|path| path.unit.initiator().reset_connection_limits());
        self.adjust_connections(wanted).await;
    }

    async fn adjust_connections(&self, wanted: u16) {
        let Some(layout) = &self.layout else {
            // If the session is lost, the next command finds it.
            let _ = self.unit.initiator().adjust_connections(wanted).await;
            return;
        };
        let mut missing = layout.missing.lock().await;
        let connections_max = self.unit.initiator().established().session.max_connections.max(1);
        let wanted = wanted.clamp(1, connections_max.saturating_mul(SESSIONS_PER_PORTAL_MAX));
        let excess = self.paths.retain(|path| share(wanted, connections_max, path.key.session) > 0);
        let left = join_all(excess.iter().map(|path| drain_and_log_out(path))).await;
        for (path, left) in excess.into_iter().zip(left) {
            if !left {
                self.unit.initiator().spawn(keep_until_drained(path, Arc::downgrade(&self.paths)));
            }
        }
        let existing: BTreeSet<PathKey> = self.paths.all().iter().map(|path| path.key).collect();
        let adjust = self.paths.all().into_iter().map(|path| async move {
            let connections = share(wanted, connections_max, path.key.session);
            path.unit.initiator().want_connections(connections);
            if path.unit.initiator().session_now().is_some() {
                let _ = path.unit.initiator().adjust_connections(connections).await;
            }
        });
        join_all(adjust).await;
        let portals = layout.plan.portals.len() as u16;
        let sessions = (0..).take_while(|session| share(wanted, connections_max, *session) > 0);
        let mut keys: Vec<PathKey> = sessions
            .flat_map(|session| (0..portals).map(move |portal| PathKey { portal, session }))
            .collect();
        if keys.len() > PATHS_MAX {
            tracing::warn!(
                disk = &*self.name,
                "{PATHS_MAX} paths are used instead of {}: this is the maximum",
                keys.len()
            );
            keys.truncate(PATHS_MAX);
        }
        missing.retain(|key| keys.contains(key));
        keys.retain(|key| !existing.contains(key) && !missing.contains(key));
        let opening = keys.iter().map(|key| async {
            let connections = share(wanted, connections_max, key.session);
            (*key, layout.plan.path(*key, connections, &self.paths).await)
        });
        for (key, path) in join_all(opening).await {
            match path {
                Ok(path) => drop(self.paths.add(path)),
                Err(error) => {
                    tracing::warn!(
                        disk = &*self.name,
                        %error,
                        "a path cannot be opened; it will be retried"
                    );
                    missing.insert(key);
                    self.retry_path(layout, key, share(wanted, connections_max, key.session));
                }
            }
        }
    }

    /// Retries to establish a path until it exists or is no longer wanted.
    fn retry_path(&self, layout: &Layout, key: PathKey, connections: u16) {
        let (plan, paths) = (Arc::clone(&layout.plan), Arc::downgrade(&self.paths));
        let missing = Arc::clone(&layout.missing);
        self.unit.initiator().spawn(retry_path(plan, paths, missing, key, connections));
    }

    /// Logs out.
    ///
    /// # Errors
    /// The errors of [`log_out`](Self::log_out).
    pub async fn close(self) -> Result<(), Error> {
        self.log_out().await
    }

    /// Logs out on all paths, also when others still hold the disk.
    ///
    /// # Errors
    /// The errors of [`Initiator::log_out`].
    pub async fn log_out(&self) -> Result<(), Error> {
        if let Some(layout) = &self.layout {
            layout.missing.lock().await.clear();
        }
        // Close all paths first: a command that waits for one must not switch to another.
        let all = self.paths.all();
        let sessions: Vec<_> =
            all.iter().filter_map(|path| path.unit.initiator().close()).collect();
        let left = join_all(sessions.iter().map(|session| session.log_out())).await;
        left.into_iter().collect()
    }
}

/// Opens the disk through the first portal that accepts the login and whose port gives access to
/// the unit. If there is none, returns the error of the first portal.
async fn first_of(plan: &Plan) -> Result<RemoteDisk, Error> {
    let mut first = None;
    for portal in 0..plan.portals.len() as u16 {
        let key = PathKey { portal, session: 0 };
        let error = match plan.log_in(key, plan.options.connections).await {
            Ok(initiator) => {
                let unit = Unit::new(initiator, plan.lun());
                let policy = plan.options.path_policy;
                match RemoteDisk::open_at(unit, &plan.url, key, policy).await {
                    Err(error) if access_state_of_error(&error).is_some() => error,
                    opened => return opened,
                }
            }
            Err(error) => error,
        };
        first.get_or_insert(error);
    }
    Err(first.unwrap_or_else(|| Error::new(ErrorKind::Login, "no portal is given")))
}

async fn retry_path(
    plan: Arc<Plan>,
    paths: Weak<Paths>,
    missing: Arc<Mutex<BTreeSet<PathKey>>>,
    key: PathKey,
    connections: u16,
) {
    let mut backoff = Backoff::with_system_entropy();
    loop {
        tokio::time::sleep(RETRY_PAUSE + backoff.next_pause()).await;
        let Some(paths) = paths.upgrade() else { return };
        if !missing.lock().await.contains(&key) {
            return;
        }
        match plan.path(key, connections, &paths).await {
            Ok(path) => {
                if missing.lock().await.remove(&key) {
                    tracing::info!(portal = path.unit.initiator().portal(), "a path was opened");
                    paths.add(path);
                }
                return;
            }
            Err(error) => tracing::debug!(%error, "a missing path still cannot be opened"),
        }
    }
}

/// Logs a path out once its commands have ended. Returns `false` if they have not ended in time, or
/// commands of a lost session may still be executed.
async fn drain_and_log_out(path: &DiskPath) -> bool {
    let until = Instant::now() + DRAIN_TIME;
    let initiator = path.unit.initiator();
    let over = || path.is_idle() && !initiator.has_uncertain_writes();
    while !over() && Instant::now() < until {
        path.reestablish();
        initiator.pause(DRAIN_PAUSE).await;
    }
    // A lost session with nothing in flight needs no logout.
    if !over() {
        return false;
    }
    let _ = initiator.log_out().await;
    true
}

/// Keeps a removed path until its commands have ended, so that later writes wait for them.
async fn keep_until_drained(path: Arc<DiskPath>, paths: Weak<Paths>) {
    while !drain_and_log_out(&path).await && paths.strong_count() > 0 {}
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal: sessions together have as many connections as wanted, none more than its limit.
    #[test]
    fn connections_are_shared_out() {
        for (wanted, connections_max, shares) in [
            (1, 1, vec![1]),
            (4, 1, vec![1, 1, 1, 1]),
            (4, 8, vec![4]),
            (10, 4, vec![4, 4, 2]),
            (0, 0, vec![1]),
        ] {
            let all = (0..).map(|session| share(wanted, connections_max, session));
            let all: Vec<u16> = all.take_while(|share| *share > 0).collect();
            assert_eq!(all, shares, "{wanted} of {connections_max}");
        }
        assert_eq!(share(u16::MAX, u16::MAX, u16::MAX), 0);
    }

    /// Goal: no two paths have the same ISID, and the type and naming authority stay.
    #[test]
    fn each_session_has_its_isid() {
        let base = [0x80, 1, 2, 3, 0xff, 0xfe];
        let mut all = BTreeSet::new();
        for portal in 0..PATHS_MAX as u16 {
            for session in 0..SESSIONS_PER_PORTAL_MAX {
                let isid = isid_of(base, PathKey { portal, session });
                assert_eq!(isid[..4], base[..4]);
                assert!(all.insert(isid), "portal {portal}, session {session}");
            }
        }
        assert_eq!(isid_of(base, PathKey::default()), base);
    }
}
