//! Counting of one connection's commands, at the inputs and outputs of its machine.

use super::OperationClass;
use super::counters::{ErrorKind, LunCounters, Moved, add};
use super::target_counters::{Counters, TargetCounters};
use crate::session::Session;
use crate::task_map::{self, TaskMap};
use crate::unit::Unit;
use lunar_iscsi::connection::target::{Outcome, Task};
use lunar_iscsi::framing::TaskId;
use lunar_net::Clock;
use lunar_wire::{Lun, LunForm, Time};
use std::collections::BTreeMap;
use std::sync::Arc;

/// The commands of a connection that have not ended, or not been counted yet.
///
/// Ended commands are counted when answers are about to be sent, before any of them is: many
/// commands then cost one look at the clock, and one addition.
#[derive(Debug)]
pub(crate) struct Commands {
    clock: Clock,
    target: Option<Arc<TargetCounters>>,
    luns: Vec<Arc<LunCounters>>,
    /// Index into `luns` of each LUN's counters.
    lun_indices: BTreeMap<Option<u16>, usize>,
    /// The LUN field that came last, whether it has a unit, and the index of its counters.
    last: Option<(Lun, bool, usize)>,
    /// The command that was started last: most end before the next one starts.
    newest: Option<(TaskId, RunningCommand)>,
    /// Earlier commands, which count as started.
    underway: TaskMap<RunningCommand>,
    ended: Vec<EndedCommands>,
}

#[derive(Clone, Copy, Debug)]
struct RunningCommand {
    since: Time,
    lun_index: usize,
    operation: OperationClass,
    /// Data-out that the initiator announced, in bytes.
    out_bytes: u32,
    /// Data-in that the initiator expects, in bytes.
    in_bytes: u32,
    /// Data-in that was sent before the end.
    sent_bytes: u64,
    aborted: bool,
}

/// Number of entries for which room is kept while no command has ended.
const ENDED_KEPT_MAX: usize = 16;

/// Commands of one kind that started together and have ended.
#[derive(Debug)]
struct EndedCommands {
    since: Time,
    lun_index: usize,
    operation: OperationClass,
    commands: u64,
    /// Commands that do not count as started yet.
    started: u64,
    moved: Moved,
}

impl EndedCommands {
    fn is_like(&self, command: &RunningCommand) -> bool {
        self.lun_index == command.lun_index
            && self.operation == command.operation
            && self.since == command.since
    }
}

impl Commands {
    pub(crate) fn new(clock: Clock) -> Self {
        Self {
            clock,
            target: None,
            luns: Vec::new(),
            lun_indices: BTreeMap::new(),
            last: None,
            newest: None,
            ended: Vec::new(),
            underway: TaskMap::default(),
        }
    }

    /// Called when the connection has joined this session.
    pub(crate) fn joined(&mut self, counters: &Counters, session: &Session) {
        self.target = session.key.target_name.as_deref().map(|name| counters.target(name));
        if let Some(target) = &self.target {
            add(&target.logins, 1);
        }
    }

    /// Memory of the commands, including spare capacity.
    pub(crate) fn memory_bytes(&self) -> usize {
        task_map::memory_bytes(&self.underway) + self.ended.capacity() * size_of::<EndedCommands>()
    }

    /// Frees memory that many commands needed once and that is unused now.
    pub(crate) fn free_spare_memory(&mut self) {
        task_map::free_spare(&mut self.underway);
        if self.ended.is_empty() && self.ended.capacity() > ENDED_KEPT_MAX {
            self.ended = Vec::new();
        }
    }

    /// Called before the machine receives the end of a command.
    pub(crate) fn done(&mut self, task: TaskId, outcome: &Outcome) {
        if let Some((_, command)) = self.newest.take_if(|(id, _)| *id == task) {
            self.end(&command, outcome, 1);
        } else if let Some(command) = self.underway.remove(&task) {
            self.end(&command, outcome, 0);
        }
    }

    /// Counts data-in that is sent before the end of a command.
    pub(crate) fn data_in(&mut self, task: TaskId, bytes: usize) {
        if let Some(command) = self.running(task) {
            command.sent_bytes = command.sent_bytes.saturating_add(bytes as u64);
        }
    }

    fn running(&mut self, task: TaskId) -> Option<&mut RunningCommand> {
        let newest = self.newest.as_mut().filter(|(id, _)| *id == task);
        newest.map(|(_, command)| command).or_else(|| self.underway.get_mut(&task))
    }

    /// Counts a wrong header digest.
    pub(crate) fn header_digest_error(&self) {
        if let Some(target) = &self.target {
            add(&target.header_digest_errors, 1);
        }
    }

    /// Counts a wrong data digest.
    pub(crate) fn data_digest_error(&self) {
        if let Some(target) = &self.target {
            add(&target.data_digest_errors, 1);
        }
    }

    /// Called before a command whose turn has come is checked by its `unit`; `None`: its LUN has no
    /// unit.
    pub(crate) fn start(&mut self, now: Time, task: &Task, unit: Option<&dyn Unit>) {
        let operation = match unit {
            Some(unit) => unit.operation_class(&task.cdb),
            None => OperationClass::of(&task.cdb),
        };
        self.start_as(now, task, operation, unit.is_some());
    }

    fn start_as(&mut self, now: Time, task: &Task, operation: OperationClass, seen: bool) {
        let Some(lun_index) = self.lun_index(task.lun, seen) else { return };
        let (out_bytes, in_bytes) = match task.write {
            true => (task.expected_bytes, task.expected_read_bytes.unwrap_or(0)),
            false => (0, task.expected_bytes),
        };
        let (sent_bytes, aborted) = (0, false);
        let command = RunningCommand {
            since: now,
            lun_index,
            operation,
            out_bytes,
            in_bytes,
            sent_bytes,
            aborted,
        };
        self.keep_newest();
        self.newest = Some((task.id, command));
    }

    /// Index of the counters of a LUN; `None` if nothing is counted.
    fn lun_index(&mut self, lun: Lun, seen: bool) -> Option<usize> {
        if let Some((last, last_seen, lun_index)) = self.last
            && (last, last_seen) == (lun, seen)
        {
            return Some(lun_index);
        }
        let target = self.target.as_ref()?;
        let number = match lun.form() {
            LunForm::Unit(id) if seen => Some(id),
            _ => None,
        };
        let lun_index = *self.lun_indices.entry(number).or_insert_with(|| {
            self.luns.push(target.lun(number));
            self.luns.len() - 1
        });
        self.last = Some((lun, seen, lun_index));
        Some(lun_index)
    }

    /// Counts the newest command as started, since it has not ended at once.
    fn keep_newest(&mut self) {
        let Some((task, command)) = self.newest.take() else { return };
        if let Some(counters) = self.luns.get(command.lun_index) {
            counters.started(command.operation, 1);
        }
        self.underway.insert(task, command);
    }

    /// Counts the ended commands, with the current time as their end.
    pub(crate) fn count_ended(&mut self) {
        self.keep_newest();
        if self.ended.is_empty() {
            return;
        }
        self.count_at(self.clock.now());
    }

    fn count_at(&mut self, now: Time) {
        for ended in self.ended.drain(..) {
            let Some(counters) = self.luns.get(ended.lun_index) else { continue };
            if ended.started > 0 {
                counters.started(ended.operation, ended.started);
            }
            let took = now.since(ended.since);
            let nanos = u64::try_from(took.as_nanos()).unwrap_or(u64::MAX);
            counters.ended(ended.operation, ended.commands, nanos, ended.moved);
        }
    }

    /// Called before a command is aborted.
    pub(crate) fn abort(&mut self, task: TaskId) {
        if let Some(command) = self.running(task) {
            command.aborted = true;
        }
    }

    /// Ends a command. `started` is 1 if it does not count as started yet.
    fn end(&mut self, command: &RunningCommand, outcome: &Outcome, started: u64) {
        let error = match command.aborted {
            true => Some(ErrorKind::Aborted),
            false => ErrorKind::of(outcome.status, &outcome.sense),
        };
        let moved = match error {
            Some(error) => {
                if let Some(counters) = self.luns.get(command.lun_index) {
                    counters.failed(command.operation, error);
                }
                Moved::default()
            }
            None => Moved {
                received_bytes: command.out_bytes.min(outcome.data_out_bytes).into(),
                sent_bytes: (command.sent_bytes + outcome.data_in.len() as u64)
                    .min(command.in_bytes.into()),
            },
        };
        match self.ended.last_mut() {
            Some(ended) if ended.is_like(command) => {
                ended.commands += 1;
                ended.started += started;
                ended.moved.received_bytes += moved.received_bytes;
                ended.moved.sent_bytes += moved.sent_bytes;
            }
            _ => {
                let RunningCommand { since, lun_index, operation, .. } = *command;
                self.ended.push(EndedCommands {
                    since,
                    lun_index,
                    operation,
                    commands: 1,
                    started,
                    moved,
                });
            }
        }
    }
}

impl Drop for Commands {
    /// Ends the commands that end with the connection, so that they are no longer in flight.
    fn drop(&mut self) {
        self.keep_newest();
        for (_, mut command) in std::mem::take(&mut self.underway) {
            command.aborted = true;
            self.end(&command, &Outcome::default(), 0);
        }
        self.count_ended();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use bytes::Bytes;
    use lunar_iscsi::connection::target::HeaderCdb;
    use lunar_iscsi::pdu::TaskAttribute;

    const READ: OperationClass = OperationClass::Read;

    fn read_at_lun_3(id: u64) -> Task {
        let mut cdb = [0; 16];
        cdb[0] = 0x28;
        Task {
            id: TaskId(id),
            lun: Lun::new(3),
            cdb: HeaderCdb::new(cdb, &[]),
            attribute: TaskAttribute::SIMPLE,
            priority: 0,
            read: true,
            write: false,
            expected_bytes: 512,
            expected_read_bytes: None,
            has_all_data: false,
        }
    }

    fn at(nanos: u64) -> Time {
        Time::from_nanos(nanos)
    }

    /// Goal: when answers are about to be sent every command is counted once, with its duration,
    /// whether it ended before the next one started, later, or with the connection.
    #[test]
    fn each_is_counted_once_before_it_is_answered() {
        let target = Arc::new(TargetCounters::default());
        let mut commands = Commands::new(Clock::start());
        commands.target = Some(Arc::clone(&target));
        let good = Outcome { data_in: Bytes::from_static(&[0; 512]), ..Outcome::default() };
        let look = || {
            let reads = target.lun(Some(3)).read().swap_remove(OperationClass::Read as usize);
            let durations = reads.durations;
            (durations.count(), durations.sum_nanos, reads.sent_bytes, reads.in_flight)
        };
        for id in 1..=4 {
            commands.start_as(at(1_000), &read_at_lun_3(id), READ, true);
        }
        commands.done(TaskId(4), &good);
        commands.done(TaskId(2), &good);
        commands.done(TaskId(2), &good);
        commands.keep_newest();
        commands.count_at(at(11_000));
        assert_eq!(look(), (2, 20_000, 1024, 2));

        commands.start_as(at(20_000), &read_at_lun_3(5), READ, true);
        commands.start_as(at(20_000), &read_at_lun_3(6), READ, true);
        commands.abort(TaskId(6));
        commands.abort(TaskId(1));
        for id in [5, 6, 1] {
            commands.done(TaskId(id), &good);
        }
        commands.keep_newest();
        commands.count_at(at(21_000));
        assert_eq!(look(), (5, 20_000 + 1_000 + 1_000 + 20_000, 1536, 1));
        commands.start_as(at(30_000), &read_at_lun_3(7), READ, true);
        drop(commands);
        let (count, _, sent_bytes, in_flight) = look();
        assert_eq!((count, sent_bytes, in_flight), (7, 1536, 0));
        let aborted: Vec<_> = target.lun(Some(3)).errors().iter().map(|e| e.count).collect();
        assert_eq!(aborted, [4], "two that were aborted, two that went with the connection");
    }

    /// Goal: commands for a LUN without a unit are counted separately, also once it has one.
    #[test]
    fn a_lun_is_counted_with_its_unit_and_without() {
        let target = Arc::new(TargetCounters::default());
        let mut commands = Commands::new(Clock::start());
        commands.target = Some(Arc::clone(&target));
        for (id, seen) in [(1, false), (2, true), (3, true), (4, false)] {
            commands.start_as(at(0), &read_at_lun_3(id), READ, seen);
        }
        commands.keep_newest();
        commands.count_at(at(0));
        let in_flight = |lun| target.lun(lun).read()[OperationClass::Read as usize].in_flight;
        assert_eq!((in_flight(Some(3)), in_flight(None)), (2, 2));
    }
}
