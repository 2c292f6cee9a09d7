//! The statistics of a running server: its counters, combined with values that are not counted.

use crate::admission::Connections;
use crate::catalogue::CurrentCatalogue;
use crate::session_table::SessionTable;
use crate::statistics::{Counters, Statistics, TargetStatistics};
use lunar_block::BufferPool;
use std::collections::BTreeMap;
use std::sync::{Arc, Weak};

/// Reads the statistics of a server, also while it stops, without keeping it alive.
#[derive(Clone, Debug)]
pub struct Observer {
    server: Weak<Observed>,
}

/// Parts of a server that have statistics.
#[derive(Debug)]
pub(crate) struct Observed {
    pub(crate) catalogue: Arc<CurrentCatalogue>,
    pub(crate) sessions: Arc<SessionTable>,
    pub(crate) connections: Arc<Connections>,
    pub(crate) counters: Arc<Counters>,
    pub(crate) buffers: BufferPool,
}

impl Observer {
    pub(crate) fn new(server: &Arc<Observed>) -> Self {
        Self { server: Arc::downgrade(server) }
    }

    /// Reads the statistics; `None` if the server is gone. The values are not of one instant:
    /// commands continue meanwhile.
    pub fn statistics(&self) -> Option<Statistics> {
        self.server.upgrade().map(|server| server.statistics())
    }

    /// The memory of the server; `None` if the server is gone.
    pub fn buffers(&self) -> Option<BufferPool> {
        self.server.upgrade().map(|server| server.buffers.clone())
    }
}

impl Observed {
    fn statistics(&self) -> Statistics {
        let mut targets: BTreeMap<String, TargetStatistics> = BTreeMap::new();
        self.counters.retain(|name| self.catalogue.target(name).is_some());
        for target in &self.catalogue.load().catalogue.targets {
            let statistics = self.counters.target(&target.name).read(target);
            targets.insert(target.name.to_ascii_lowercase(), statistics);
        }
        let mut discovery_sessions = 0;
        for session in self.sessions.each() {
            match session.key.target_name.as_ref().map(|name| targets.get_mut(name)) {
                None => discovery_sessions += 1,
                Some(None) => {} // its target is gone; it will end
                Some(Some(target)) => {
                    target.sessions += 1;
                    target.connections += session.members().len() as u64;
                }
            }
        }
        Statistics {
            targets: targets.into_values().collect(),
            connections: self.connections.count() as u64,
            discovery_sessions,
            memory: self.buffers.budget().usage(),
            login_failures: self.counters.login_failures(),
        }
    }
}
