//! What one connection counts: it sees what goes into the machine and what comes out.

use super::counters::{ErrorKind, LunCounters, Moved};
use super::operation::Operation;
use super::{Counters, TargetCounters, add};
use crate::session::Session;
use crate::task_map::TaskMap;
use crate::view::View;
use iscsi::connection::target::{Input, Outcome, Task};
use iscsi::framing::TaskId;
use net::Clock;
use std::collections::BTreeMap;
use std::sync::Arc;
use wire::{LunForm, Time};

/// The commands of a connection that have not ended.
#[derive(Debug)]
pub(crate) struct Commands {
    clock: Clock,
    target: Option<Arc<TargetCounters>>,
    luns: Vec<Arc<LunCounters>>,
    /// Where a LUN's counters are in `luns`.
    places: BTreeMap<Option<u16>, usize>,
    underway: TaskMap<Underway>,
}

#[derive(Debug)]
struct Underway {
    since: Time,
    place: usize,
    operation: Operation,
    /// Data-out that the initiator announced.
    out_bytes: u32,
    /// Data-in that it expects.
    in_bytes: u32,
    aborted: bool,
}

impl Commands {
    pub(crate) fn new(clock: Clock) -> Self {
        Self {
            clock,
            target: None,
            luns: Vec::new(),
            places: BTreeMap::new(),
            underway: TaskMap::default(),
        }
    }

    /// The connection belongs to this session now.
    pub(crate) fn joined(&mut self, counters: &Counters, session: &Session) {
        self.target = session.key.target_name.as_deref().map(|name| counters.target(name));
        if let Some(target) = &self.target {
            add(&target.logins, 1);
        }
    }

    /// Before the machine is told `input`.
    pub(crate) fn input(&mut self, input: &Input) {
        match input {
            Input::Done { task, outcome } | Input::Failed { task, outcome } => {
                if let Some(command) = self.underway.remove(task) {
                    self.end(&command, outcome);
                }
            }
            Input::HeaderDigestError => {
                if let Some(target) = &self.target {
                    add(&target.header_digest_errors, 1);
                }
            }
            Input::Payload { digest_ok: false, .. } => {
                if let Some(target) = &self.target {
                    add(&target.data_digest_errors, 1);
                }
            }
            _ => {}
        }
    }

    /// Before a command that has come to its turn is planned.
    pub(crate) fn start(&mut self, now: Time, task: &Task, view: &View) {
        let Some(target) = &self.target else { return };
        let lun = match task.lun.form() {
            LunForm::Unit(id) => Some(id).filter(|_| view.unit(task.lun).is_some()),
            _ => None,
        };
        let place = *self.places.entry(lun).or_insert_with(|| {
            self.luns.push(target.lun(lun));
            self.luns.len() - 1
        });
        let operation = Operation::of(&task.cdb);
        let (out_bytes, in_bytes) = match task.write {
            true => (task.expected_bytes, task.expected_read_bytes.unwrap_or(0)),
            false => (0, task.expected_bytes),
        };
        if let Some(counters) = self.luns.get(place) {
            counters.started(operation);
        }
        let command =
            Underway { since: now, place, operation, out_bytes, in_bytes, aborted: false };
        self.underway.insert(task.id, command);
    }

    /// Before a command is aborted.
    pub(crate) fn abort(&mut self, task: TaskId) {
        if let Some(command) = self.underway.get_mut(&task) {
            command.aborted = true;
        }
    }

    fn end(&self, command: &Underway, outcome: &Outcome) {
        let Some(counters) = self.luns.get(command.place) else { return };
        let error = match command.aborted {
            true => Some(ErrorKind::Aborted),
            false => ErrorKind::of(outcome.status, &outcome.sense),
        };
        let moved = match error {
            Some(_) => Moved::default(),
            None => Moved {
                received_bytes: command.out_bytes.min(outcome.data_out_bytes).into(),
                sent_bytes: (outcome.data_in.len() as u64).min(command.in_bytes.into()),
            },
        };
        let took = self.clock.now().since(command.since);
        let nanos = u64::try_from(took.as_nanos()).unwrap_or(u64::MAX);
        counters.ended(command.operation, nanos, moved);
        if let Some(error) = error {
            counters.failed(command.operation, error);
        }
    }
}

impl Drop for Commands {
    /// What a connection takes with it is in flight no more.
    fn drop(&mut self) {
        for (_, mut command) in std::mem::take(&mut self.underway) {
            command.aborted = true;
            self.end(&command, &Outcome::default());
        }
    }
}
