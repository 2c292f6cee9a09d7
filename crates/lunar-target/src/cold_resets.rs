//! End of the sessions of a target for TARGET COLD RESET, RFC 7143 §11.5.1.
//!
//! A walk visits the sessions of the server one by one and keeps no list of them, in turns with
//! other functions ([`crate::visit_pace`]). The requests of one owner for the same LUNs share their
//! walks: while one walk runs, the requests that arrive are served by the next one. A request is
//! answered before its walk, so that its function need not wait for the walk.

use crate::lock::lock;
use crate::session::Session;
use crate::session_table::SessionTable;
use crate::view::View;
use lunar_net::OwnerId;
use lunar_scsi::plan::NexusId;
use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::sync::{Arc, Mutex};

/// The walks of a server.
#[derive(Debug, Default)]
pub(crate) struct ColdResets {
    /// The walks under way, each with the requests for the next one.
    walks: Mutex<HashMap<WalkKey, Option<EndRequests>>>,
}

/// Requests with the same key share their walks.
#[derive(Clone, Copy, Debug, Eq, Hash, PartialEq)]
struct WalkKey {
    owner: OwnerId,
    /// Address of the table of the LUNs that the requesting sessions see. It is of one target, and
    /// the walk keeps it alive.
    luns: usize,
}

/// Requests that are served by one walk.
#[derive(Clone, Copy, Debug)]
struct EndRequests {
    /// Nexus that sent the last request. Its session ends by itself.
    by: NexusId,
    /// The last request concerns nexuses up to this one.
    up_to: NexusId,
    /// The earlier requests concern nexuses up to this one.
    earlier_up_to: Option<NexusId>,
}

/// Entry of a walk that is under way.
struct WalkEntry<'a> {
    resets: &'a ColdResets,
    key: WalkKey,
    is_removed: bool,
}

impl ColdResets {
    /// Ends every session of the target with a nexus up to `up_to`, for a TARGET COLD RESET that is
    /// answered. The requesting session ends by itself once it has its answer. Only the units that
    /// the requesting initiator sees count as the target: a session that also uses other units
    /// continues, but loses its tasks on the units that the initiator sees.
    ///
    /// Returns at once if the current walk for such requests will be followed by one that serves
    /// this request as well.
    pub(crate) async fn end_sessions(
        &self,
        sessions: &SessionTable,
        by: &Arc<Session>,
        up_to: NexusId,
    ) {
        let view = Arc::clone(&by.view());
        let key = WalkKey { owner: by.time_owner, luns: Arc::as_ptr(view.luns()).addr() };
        let Some(mut entry) = self.enter(key, by.nexus, up_to) else { return };
        let mut next = Some(EndRequests { by: by.nexus, up_to, earlier_up_to: None });
        while let Some(requests) = next {
            walk(sessions, by, &view, requests).await;
            next = entry.take_next();
        }
    }

    /// Adds an entry for a walk of the caller, or adds the request to those that wait for the end
    /// of the current walk.
    fn enter(&self, key: WalkKey, by: NexusId, up_to: NexusId) -> Option<WalkEntry<'_>> {
        match lock(&self.walks).entry(key) {
            Entry::Occupied(mut next) => {
                let earlier = next.get().map(|next| next.earlier_up_to.max(Some(next.up_to)));
                let earlier_up_to = earlier.flatten();
                next.insert(Some(EndRequests { by, up_to, earlier_up_to }));
                None
            }
            Entry::Vacant(entry) => {
                entry.insert(None);
                Some(WalkEntry { resets: self, key, is_removed: false })
            }
        }
    }
}

impl WalkEntry<'_> {
    /// Takes the requests for the next walk, and removes the entry if there are none.
    fn take_next(&mut self) -> Option<EndRequests> {
        let mut walks = lock(&self.resets.walks);
        let next = walks.get_mut(&self.key)?.take();
        if next.is_none() {
            walks.remove(&self.key);
            self.is_removed = true;
        }
        next
    }
}

impl Drop for WalkEntry<'_> {
    fn drop(&mut self) {
        if !self.is_removed {
            lock(&self.resets.walks).remove(&self.key);
        }
    }
}

impl EndRequests {
    /// True if one of the requests concerns this nexus.
    fn concerns(&self, nexus: NexusId) -> bool {
        nexus <= self.up_to && nexus != self.by || Some(nexus) <= self.earlier_up_to
    }
}

async fn walk(sessions: &SessionTable, by: &Session, seen: &View, requests: EndRequests) {
    let visit = |session: Arc<Session>| {
        let is_concerned = requests.concerns(session.nexus)
            && session.key.target_name == by.key.target_name
            && !session.is_ending();
        if !is_concerned || !seen.shows_all_of(&session.view()) {
            return 0;
        }
        let tasks = session.tasks();
        session.end();
        tasks
    };
    sessions.visits.visit_all(by.time_owner, sessions.each(), visit).await;
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::manage::TaskManager;
    use crate::session::tests::Rig;
    use futures_util::FutureExt;
    use std::cell::Cell;

    /// Number of sessions: several turns of a walk.
    const SESSIONS: u8 = 200;
    /// Number of a session that lasts.
    const OTHER: u8 = 201;

    /// Fault: each TARGET COLD RESET listed the nexuses of all sessions of the server, uncharged,
    /// and its function kept the list for all turns of its visits. A host that logged in, reset the
    /// target and logged in again left thousands of such functions.
    #[test]
    fn cold_resets_of_an_owner_share_a_walk() {
        let rig = Rig::new();
        let management = rig.management();
        let other = rig.log_in(OTHER);
        let is_over = Cell::new(false);
        let busy = (0..).take_while(|_| !is_over.get());
        let mut busy = Box::pin(rig.sessions().visits.visit_all(OwnerId(9), busy, |_: u64| 0));
        assert!((&mut busy).now_or_never().is_none(), "the walk has its turn");
        let mut functions = Vec::new();
        for _ in 0..100 {
            let by = rig.log_in(1);
            let (management, up_to) = (Arc::clone(management), rig.sessions().next_nexus());
            let requester = Arc::clone(&by);
            functions.push(Box::pin(async move {
                let TaskManager { sessions, cold_resets, .. } = &*management;
                cold_resets.end_sessions(sessions, &requester, up_to).await;
            }));
            functions.retain_mut(|function| function.now_or_never().is_none());
            rig.lose(&by);
        }
        assert_eq!(functions.len(), 1, "the others have ended");
        assert_eq!(lock(&management.cold_resets.walks).len(), 1);
        is_over.set(true);
        rig.runtime.block_on(busy);
        rig.runtime.block_on(functions.remove(0));
        assert!(other.is_ending());
        assert!(lock(&management.cold_resets.walks).is_empty());
        rig.lose(&other);
        rig.end();
    }

    /// Goal: a reset ends each session of its target that existed when it was requested, however
    /// many end or log in meanwhile, and no session of a later login; this holds for a request that
    /// arrives during the walk for an earlier one, too.
    #[test]
    fn a_cold_reset_ends_the_sessions_that_existed_when_requested() {
        let rig = Rig::new();
        let management = rig.management();
        let mut sessions: Vec<_> = (0..SESSIONS).map(|number| rig.log_in(number)).collect();
        let is_over = Cell::new(false);
        let busy = (0..).take_while(|_| !is_over.get());
        let mut busy = Box::pin(rig.sessions().visits.visit_all(OwnerId(9), busy, |_: u64| 0));
        assert!((&mut busy).now_or_never().is_none(), "the walk has its turn");
        let by = sessions.remove(3);
        let up_to = rig.sessions().next_nexus();
        let mut first = Box::pin(management.cold_resets.end_sessions(rig.sessions(), &by, up_to));
        assert!((&mut first).now_or_never().is_none());
        for gone in sessions.drain(40..80) {
            rig.lose(&gone);
        }
        let between = rig.log_in(OTHER);
        rig.lose(&sessions.remove(0));
        let again = rig.log_in_of(OTHER + 1, 3);
        let up_to = rig.sessions().next_nexus();
        let second = management.cold_resets.end_sessions(rig.sessions(), &again, up_to);
        assert!(second.now_or_never().is_some(), "the next walk serves this request");
        let later = rig.log_in(OTHER + 2);
        is_over.set(true);
        rig.runtime.block_on(busy);
        rig.runtime.block_on(first);
        assert!(sessions.iter().all(|session| session.is_ending()));
        assert!(between.is_ending(), "for the second request");
        assert!(by.is_ending(), "for the second request");
        assert!(!again.is_ending(), "the requesting session ends by itself");
        assert!(!later.is_ending());
        sessions.extend([by, between, again, later]);
        sessions.iter().for_each(|session| rig.lose(session));
        rig.end();
    }

    /// Goal: after a walk is dropped, a later request begins a walk of its own.
    #[test]
    fn a_dropped_walk_blocks_no_later_request() {
        let rig = Rig::new();
        let management = rig.management();
        let sessions = [1, 2].map(|number| rig.log_in(number));
        let mut busy = Box::pin(rig.sessions().visits.visit_all(OwnerId(9), 0.., |_: u64| 0));
        assert!((&mut busy).now_or_never().is_none(), "the walk has its turn");
        let end = || {
            let up_to = rig.sessions().next_nexus();
            management.cold_resets.end_sessions(rig.sessions(), &sessions[0], up_to)
        };
        let mut dropped = Box::pin(end());
        assert!((&mut dropped).now_or_never().is_none());
        drop((dropped, busy));
        rig.runtime.block_on(end());
        assert_eq!(sessions.each_ref().map(|session| session.is_ending()), [false, true]);
        sessions.iter().for_each(|session| rig.lose(session));
        rig.end();
    }
}
