//! Tasks and the connections that they came on. RFC 7143 §4.2.5.1, §7.6.

use super::requests::*;
use super::rig::Rig;
use crate::connection::target::Input;
use crate::framing::TaskId;
use alloc::collections::BTreeSet;
use alloc::vec::Vec;
use proptest::prelude::*;

const KEYS: &str = "MaxConnections=4";

/// A session whose connections come and go, under few CIDs.
struct Session {
    rig: Rig,
    /// Number of requests sent so far.
    requests: u32,
    /// Tasks that have been started.
    tasks: Vec<(u16, TaskId)>,
    /// Ids of all tasks that ever were.
    ids: BTreeSet<TaskId>,
}

impl Session {
    fn new() -> Self {
        let rig = Rig::normal(KEYS);
        Self { rig, requests: 0, tasks: Vec::new(), ids: BTreeSet::new() }
    }

    fn step(&mut self, cid: u16, step: u8) -> Result<(), TestCaseError> {
        let is_open = self.rig.links.get(&cid).is_some_and(|link| link.closed.is_none());
        match step {
            _ if !is_open => self.rig.login(cid, KEYS),
            // The first connection stays, and the session with it.
            0 if cid > 1 => {
                self.rig.input(cid, Input::PeerClosed);
                self.tasks.retain(|(its, _)| *its != cid);
            }
            1 | 2 => {
                let its = self.tasks.iter().position(|(its, _)| *its == cid);
                if let Some(at) = its {
                    let (_, task) = self.tasks.swap_remove(at);
                    self.rig.good(cid, task);
                }
            }
            _ => {
                self.rig.send(cid, read(self.requests, self.requests, 0).encode(), &[]);
                self.requests += 1;
                let task = self.rig.started(cid).id;
                prop_assert!(self.ids.insert(task), "{:?} was the id of an earlier task", task);
                self.tasks.push((cid, task));
            }
        }
        let session = self.rig.session.as_ref().expect("a session");
        prop_assert_eq!(session.tasks(), self.tasks.len());
        Ok(())
    }
}

proptest! {
    /// Goal: no two tasks of a session have the same id, on whichever connections they came, also
    /// when a CID is used again.
    #[test]
    fn ids_of_tasks_are_unique(
        steps in prop::collection::vec((1u16..4, 0u8..8), 0..100),
    ) {
        let mut session = Session::new();
        for (cid, step) in steps {
            session.step(cid, step)?;
        }
        for (cid, task) in core::mem::take(&mut session.tasks) {
            session.rig.good(cid, task);
        }
        session.rig.assert_nothing_left();
    }
}
