//! The sessions of a server, and the turns of functions that visit many of them.

use crate::lock::lock;
use crate::session::{BegunAborts, Session, SessionKey};
use crate::unit::LogicalUnit;
use crate::visit_pace::VisitPace;
use lunar_scsi::plan::NexusId;
use lunar_scsi::primary::PrimaryUnit;
use lunar_scsi::reservations::ItNexus;
use lunar_scsi::unit::Logins;
use std::collections::{BTreeMap, HashMap};
use std::ops::Bound;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};

/// Upper bound of the memory of a function for each nexus whose tasks it aborts. 235 bytes were
/// measured, without the other session's part.
pub(crate) const ABORT_BYTES: usize = 1 << 10;

/// The sessions of a server.
#[derive(Debug, Default)]
pub(crate) struct SessionTable {
    sessions: Mutex<Sessions>,
    last_nexus: AtomicU64,
    /// Turns of the functions that visit sessions.
    pub(crate) visits: VisitPace,
}

impl SessionTable {
    /// Returns a nexus that is greater than all before.
    pub(crate) fn next_nexus(&self) -> NexusId {
        NexusId(self.last_nexus.fetch_add(1, Ordering::Relaxed) + 1)
    }

    pub(crate) fn lock(&self) -> MutexGuard<'_, Sessions> {
        lock(&self.sessions)
    }

    /// The sessions in the order of their TSIHs. Each step locks the table for itself, so that a
    /// walk of many sessions delays no login: sessions that begin or end meanwhile may be missing.
    pub(crate) fn each(&self) -> impl Iterator<Item = Arc<Session>> {
        let mut last = 0;
        std::iter::from_fn(move || {
            let session = self.lock().after(last)?;
            last = session.tsih;
            Some(session)
        })
    }

    /// Aborts the tasks of a nexus on a unit on behalf of another nexus. Returns `None` if its
    /// session is over.
    pub(crate) fn abort_tasks(
        &self,
        nexus: NexusId,
        unit: &Arc<LogicalUnit>,
    ) -> Option<(Arc<Session>, BegunAborts)> {
        let session = self.lock().of_nexus(nexus)?;
        let begun = session.abort_on_unit(unit);
        Some((session, begun))
    }
}

/// The sessions by TSIH, by nexus, and by the key that makes two logins the same session.
#[derive(Debug, Default)]
pub(crate) struct Sessions {
    by_tsih: BTreeMap<u16, Arc<Session>>,
    by_key: HashMap<SessionKey, Arc<Session>>,
    by_nexus: HashMap<NexusId, Arc<Session>>,
    last_tsih: u16,
}

impl Sessions {
    /// A free TSIH. 0 is reserved, RFC 7143 §11.12.6.
    pub(crate) fn free_tsih(&mut self) -> Option<u16> {
        for _ in 0..u16::MAX {
            self.last_tsih = self.last_tsih.checked_add(1).unwrap_or(1);
            if !self.by_tsih.contains_key(&self.last_tsih) {
                return Some(self.last_tsih);
            }
        }
        None
    }

    /// Adds a session; no session may have its key yet.
    pub(crate) fn insert(&mut self, session: Arc<Session>) {
        let other = self.by_key.insert(session.key.clone(), Arc::clone(&session));
        debug_assert!(other.is_none());
        self.by_nexus.insert(session.nexus, Arc::clone(&session));
        self.by_tsih.insert(session.tsih, session);
    }

    pub(crate) fn find(&self, key: &SessionKey) -> Option<Arc<Session>> {
        self.by_key.get(key).cloned()
    }

    pub(crate) fn get(&self, tsih: u16) -> Option<Arc<Session>> {
        self.by_tsih.get(&tsih).cloned()
    }

    /// The session with the smallest TSIH greater than `tsih`.
    pub(crate) fn after(&self, tsih: u16) -> Option<Arc<Session>> {
        let mut later = self.by_tsih.range((Bound::Excluded(tsih), Bound::Unbounded));
        later.next().map(|(_, session)| Arc::clone(session))
    }

    pub(crate) fn count(&self) -> usize {
        self.by_tsih.len()
    }

    pub(crate) fn remove(&mut self, tsih: u16) {
        if let Some(session) = self.by_tsih.remove(&tsih) {
            self.by_key.remove(&session.key);
            self.by_nexus.remove(&session.nexus);
        }
    }

    /// The session of a nexus, if it exists.
    pub(crate) fn of_nexus(&self, nexus: NexusId) -> Option<Arc<Session>> {
        self.by_nexus.get(&nexus).cloned()
    }

    pub(crate) fn all(&self) -> Vec<Arc<Session>> {
        self.by_tsih.values().cloned().collect()
    }
}

/// The sessions that see one unit, for the unit itself.
#[derive(Debug)]
pub(crate) struct UnitLogins<'a> {
    pub(crate) sessions: &'a SessionTable,
    pub(crate) unit: &'a Arc<LogicalUnit>,
}

impl Logins for UnitLogins<'_> {
    /// Called under the lock of the unit's SCSI state, which is taken before those of the sessions.
    fn attach(&self, ports: &ItNexus, scsi: &mut PrimaryUnit) {
        let session = self.sessions.lock().find(&SessionKey::of_nexus(ports));
        if let Some(session) = session {
            session.attach_to(self.unit, scsi);
        }
    }
}
