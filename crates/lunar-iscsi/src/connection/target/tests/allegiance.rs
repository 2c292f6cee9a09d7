//! Tasks and the connections that they came on. RFC 7143 §4.2.5.1, §7.6.

use super::requests::*;
use super::rig::Rig;
use crate::connection::target::{CloseReason, Input};
use crate::framing::TaskId;
use crate::pdu::LogoutReason;
use crate::session::target as session;
use crate::text::Offer;
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

/// Tasks of connection 2: one that only reads, one whose data-out has come, and one that waits for
/// data-out.
struct Tasks {
    reads: TaskId,
    has_data: TaskId,
    needs_data: TaskId,
}

/// A session of this ErrorRecoveryLevel with two connections, and the tasks of the second one.
fn with_tasks(error_recovery_level: u8) -> (Rig, Tasks) {
    let mut rig = Rig::new();
    rig.offer = Offer { error_recovery_level, ..Offer::target() };
    rig.login(1, "MaxConnections=4 ErrorRecoveryLevel=2");
    rig.login(2, "MaxConnections=4");
    rig.aborts_at_once = false;
    let level = rig.session.as_ref().map(|session| session.parameters().error_recovery_level);
    assert_eq!(level, Some(error_recovery_level));
    rig.send(2, read(0, 10, 512).encode(), &[]);
    let reads = rig.started(2).id;
    rig.send(2, write(1, 11, 512).encode(), &[1; 512]);
    let has_data = rig.started(2).id;
    rig.send(2, write(2, 12, 512).encode(), &[]);
    let needs_data = rig.started(2).id;
    rig.wants(2, needs_data, 512);
    assert_eq!(rig.sent(2).len(), 1, "an R2T");
    (rig, Tasks { reads, has_data, needs_data })
}

impl Tasks {
    /// Ends the tasks as the executor, and checks that nothing is left of the connection.
    fn end(self, mut rig: Rig) {
        for task in [self.needs_data, self.reads, self.has_data] {
            rig.good(2, task);
        }
        assert!(rig.link(2).closed.is_some() && rig.sent(2).is_empty());
        rig.assert_nothing_left();
    }
}

/// Goal: below ErrorRecoveryLevel 2 all tasks end with their connection. At level 2 those that need
/// nothing more from the initiator continue, and the session ends no sooner than they do.
#[test]
fn tasks_of_a_lost_connection() {
    for level in 0..=2 {
        let (mut rig, tasks) = with_tasks(level);
        rig.input(2, Input::PeerClosed);
        let aborted = core::mem::take(&mut rig.link(2).aborts);
        if level < 2 {
            assert_eq!(aborted, [tasks.reads, tasks.has_data, tasks.needs_data]);
            tasks.end(rig);
            continue;
        }
        assert_eq!(aborted, [tasks.needs_data], "no connection brings its data");
        rig.good(2, tasks.needs_data);
        assert_eq!(rig.link(2).closed, Some(CloseReason::Ended), "it waits for no other task");
        assert_eq!(rig.session.as_ref().map(session::TargetSession::tasks), Some(2));
        rig.good(2, tasks.reads);
        rig.input(1, Input::PeerClosed);
        assert!(!rig.ended, "a task is left");
        rig.good(2, tasks.has_data);
        assert!(rig.ended && rig.sent(2).is_empty());
        rig.assert_nothing_left();
    }
}

/// Goal: tasks end with their connection at every level if the initiator logs it out, or if the
/// session ends. RFC 7143 §7.6 a), d).
#[test]
fn tasks_end_with_a_logout_and_with_the_session() {
    for level in [0, 2] {
        let (mut rig, tasks) = with_tasks(level);
        rig.send(1, logout(3, 13, LogoutReason::CLOSE_CONNECTION, 2).encode(), &[]);
        assert_eq!(rig.link(2).aborts, [tasks.reads, tasks.has_data, tasks.needs_data]);
        tasks.end(rig);
        let (mut rig, tasks) = with_tasks(level);
        rig.at_session(session::Input::End);
        assert_eq!(rig.link(2).aborts, [tasks.reads, tasks.has_data, tasks.needs_data]);
        tasks.end(rig);
    }
}

/// Goal: a login that replaces a connection ends its tasks below ErrorRecoveryLevel 2 only.
/// RFC 7143 §6.3.4.
#[test]
fn tasks_of_a_replaced_connection() {
    for (level, ends) in [(0, 3), (1, 3), (2, 1)] {
        let (mut rig, tasks) = with_tasks(level);
        rig.at_session(session::Input::Replace(2));
        assert_eq!(rig.link(2).aborts.len(), ends, "level {level}");
        tasks.end(rig);
    }
}
