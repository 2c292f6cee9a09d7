//! Admission of commands to a device: a limited number at a time, shared fairly between owners.

use super::contention::{BusyShare, BusyShares};
use crate::{Error, ErrorKind, MemoryOwner};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use tokio::sync::oneshot;
use tokio::time::Instant;

#[cfg(test)]
mod tests;

/// The owner of a command, compared by identity; `None` for the server itself.
pub(super) type CommandOwner = Option<Arc<MemoryOwner>>;

/// Limits on the commands that are in progress at a time.
///
/// There are `owners_max` permits for the first commands of owners, and `shared_max` further ones.
/// When all permits for first commands are in use, the first command of an owner takes a shared
/// permit; if there are more owners than permits, each owner gets a permit in turn. An owner may
/// hold at most as many shared permits as it free free, so a single owner gets half of them. The
/// more of the time other owners use the device, the fewer permits an owner gets, so that their
/// commands do not wait in the device behind many of its own. The limits do not depend on the
/// durations of commands, which owners can influence. An owner among others gets more than half of
/// the permits that it gets alone, so another owner that is always active does not halve its
/// throughput where commands do not wait for each other.
#[derive(Clone, Copy, Debug)]
pub(super) struct FairLimits {
    /// Number of permits for the first commands of owners.
    pub(super) owners_max: usize,
    /// Number of shared permits: maximum number of further commands in progress.
    pub(super) shared_max: usize,
    /// Maximum number of commands of an owner while other owners use the device all the time.
    pub(super) contended_max: usize,
    /// An owner begins no second command while it has this much data in progress.
    pub(super) owner_bytes_max: usize,
    /// `owner_bytes_max` while other owners use the device all the time.
    pub(super) contended_bytes_max: usize,
    /// While all owners together have this much data in progress, no owner that has its even share
    /// of it begins a second command.
    pub(super) bytes_max: usize,
}

impl FairLimits {
    /// Maximum number of commands of an owner if others use the device for this share of the time,
    /// and the limit on its data.
    fn of_owner(&self, others: f64) -> (usize, usize) {
        let free = (1.0 - others).clamp(0.0, 1.0);
        let between =
            |min: usize, max: usize| min + (max.saturating_sub(min) as f64 * free).round() as usize;
        let alone_max = 1 + self.shared_max / 2;
        let count = between(self.contended_max, alone_max);
        (count, between(self.contended_bytes_max, self.owner_bytes_max))
    }
}

/// Admits commands to a device. Owners take turns, and of the commands of an owner those come first
/// for which other owners wait.
///
/// The work for a command does not grow with the number of owners, except for searches in trees: a
/// turn is looked for among the owners with commands in progress, of which there are at most as
/// many as permits, and the first one of all other owners, which have equal rights.
#[derive(Debug)]
pub(super) struct FairQueue {
    limits: FairLimits,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    /// Number of the next waiting command.
    next_number: u64,
    /// Turn of the next owner that is put at the end of the order.
    next_turn: u64,
    /// Number of owners that have a command in progress.
    running_owners: usize,
    /// Number of commands in progress.
    running: usize,
    /// Data of all commands in progress.
    bytes: usize,
    /// Owners that have commands, or had some recently.
    owners: BTreeMap<OwnerKey, OwnerCommands>,
    /// Owners with waiting commands and none in progress, in the order of their turns.
    waiting_idle: BTreeSet<(u64, OwnerKey)>,
    /// Owners with waiting commands and others in progress, in the order of their turns.
    waiting_running: BTreeSet<(u64, OwnerKey)>,
    /// Owners without commands, by the time from which they are forgotten.
    forgotten_at: BTreeSet<(Instant, OwnerKey)>,
    /// Shares of all owners in the recent time.
    busy: BusyShares,
}

/// The address of an owner, which the queue keeps alive; 0 for the server itself.
type OwnerKey = usize;

#[derive(Debug)]
struct OwnerCommands {
    owner: CommandOwner,
    turn: u64,
    /// Waiting commands for which commands of other owners wait, by number.
    urgent: BTreeMap<u64, WaitingCommand>,
    /// Other waiting commands by number, which is their order of arrival.
    waiting: BTreeMap<u64, WaitingCommand>,
    running: usize,
    bytes: usize,
    busy: BusyShare,
}

#[derive(Debug)]
struct WaitingCommand {
    bytes: usize,
    since: Instant,
    admitted: oneshot::Sender<Result<FairPermit, Error>>,
}

/// The permit of a command in progress. Returned to the queue when dropped.
#[derive(Debug)]
pub(super) struct FairPermit {
    queue: Arc<FairQueue>,
    owner: CommandOwner,
    bytes: usize,
    pub(super) began: Instant,
}

/// A command that waits for a permit. It free the queue when dropped.
#[derive(Debug)]
pub(super) struct QueuedCommand {
    queue: Arc<FairQueue>,
    owner: CommandOwner,
    number: u64,
    pub(super) admitted: oneshot::Receiver<Result<FairPermit, Error>>,
}

/// Permits for waiting commands, to be sent after the lock is released.
type Grants = Vec<(oneshot::Sender<Result<FairPermit, Error>>, FairPermit)>;

impl FairQueue {
    pub(super) fn new(limits: FairLimits) -> Arc<Self> {
        Arc::new(Self { limits, state: Mutex::default() })
    }

    /// Returns a permit for a command that moves `bytes`, or queues the command.
    pub(super) fn enter(
        self: &Arc<Self>,
        owner: CommandOwner,
        bytes: usize,
        is_urgent: bool,
    ) -> Result<FairPermit, QueuedCommand> {
        let (key, now) = (key_of(&owner), Instant::now());
        let mut state = self.state();
        state.enter(key, &owner, now);
        if state.may_begin(key, &self.limits, now) {
            state.begin(key, now, |_| Some((bytes, ())));
            return Ok(FairPermit { queue: Arc::clone(self), owner, bytes, began: now });
        }
        let number = state.next_number;
        state.next_number += 1;
        let (sender, admitted) = oneshot::channel();
        state.update(key, now, |commands| {
            let waiting = if is_urgent { &mut commands.urgent } else { &mut commands.waiting };
            waiting.insert(number, WaitingCommand { bytes, since: now, admitted: sender });
        });
        drop(state);
        Err(QueuedCommand { queue: Arc::clone(self), owner, number, admitted })
    }

    /// Fails the commands that have waited since `before` or longer: the device was unreachable for
    /// all the time that a command may wait for it.
    pub(super) fn fail_waiting(&self, before: Instant, device: &str) {
        let now = Instant::now();
        let mut state = self.state();
        let mut failed = Vec::new();
        let waiting = state.waiting_idle.iter().chain(&state.waiting_running);
        let keys: Vec<OwnerKey> = waiting.map(|(_, key)| *key).collect();
        for key in keys {
            state.update(key, now, |commands| {
                for waiting in [&mut commands.urgent, &mut commands.waiting] {
                    failed.extend(waiting.extract_if(.., |_, command| command.since <= before));
                }
            });
        }
        drop(state);
        let device: Arc<str> = device.into();
        for (_, command) in failed {
            let what = "the device could not be reached for too long; the command was not sent";
            let error = Error::new(ErrorKind::Disconnected, Arc::clone(&device), what);
            let _ = command.admitted.send(Err(error)); // the receiver may be gone
        }
    }

    /// Number of commands that wait.
    #[cfg(test)]
    pub(super) fn waiting(&self) -> usize {
        self.state().owners.values().map(OwnerCommands::waiting_count).sum()
    }

    /// Number of commands in progress.
    #[cfg(test)]
    pub(super) fn running(&self) -> usize {
        self.state().owners.values().map(|commands| commands.running).sum()
    }

    /// Number of owners that are remembered.
    #[cfg(test)]
    pub(super) fn owners(&self) -> usize {
        self.state().owners.len()
    }

    /// Gives permits to waiting commands as long as any may run.
    fn grant(self: &Arc<Self>, state: &mut State, now: Instant) -> Grants {
        let mut grants = Vec::new();
        while let Some(key) = state.next_owner(&self.limits, now) {
            let Some((owner, bytes, admitted)) = state.begin(key, now, OwnerCommands::pop) else {
                break;
            };
            grants
                .push((admitted, FairPermit { queue: Arc::clone(self), owner, bytes, began: now }));
        }
        grants
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    /// Adds the owner, which comes last, unless it is known.
    fn enter(&mut self, key: OwnerKey, owner: &CommandOwner, now: Instant) {
        if self.owners.contains_key(&key) {
            return;
        }
        while let Some((at, forgotten)) = self.forgotten_at.first().copied()
            && at <= now
        {
            self.forgotten_at.pop_first();
            if let Some(commands) = self.owners.remove(&forgotten) {
                self.busy.remove(&commands.busy, now);
            }
        }
        let busy = BusyShare::new(now);
        self.busy.add(&busy, now);
        let commands = OwnerCommands::new(owner.clone(), self.next_turn, busy);
        self.next_turn += 1;
        self.forgotten_at.insert((busy.forgotten_at(), key));
        self.owners.insert(key, commands);
    }

    /// Changes the commands of an owner, and its position in the orders.
    fn update<T>(
        &mut self,
        key: OwnerKey,
        now: Instant,
        change: impl FnOnce(&mut OwnerCommands) -> T,
    ) -> Option<T> {
        let commands = self.owners.get_mut(&key)?;
        let before = commands.position();
        let changed = change(commands);
        let after = commands.position();
        if before != after {
            if commands.is_busy() != commands.busy.is_busy() {
                self.forgotten_at.remove(&(commands.busy.forgotten_at(), key));
                self.busy.remove(&commands.busy, now);
                commands.busy.set(commands.is_busy(), now);
                self.busy.add(&commands.busy, now);
                if !commands.is_busy() {
                    self.forgotten_at.insert((commands.busy.forgotten_at(), key));
                }
            }
            self.set_order(before, key, false);
            self.set_order(after, key, true);
        }
        Some(changed)
    }

    /// Adds a waiting owner to the order of turns, or removes it.
    fn set_order(&mut self, position: OwnerPosition, key: OwnerKey, is_added: bool) {
        let order = match (position.is_waiting, position.is_running) {
            (false, _) => return,
            (true, false) => &mut self.waiting_idle,
            (true, true) => &mut self.waiting_running,
        };
        match is_added {
            true => order.insert((position.turn, key)),
            false => order.remove(&(position.turn, key)),
        };
    }

    /// Returns the owner whose waiting command may run next.
    fn next_owner(&self, limits: &FairLimits, now: Instant) -> Option<OwnerKey> {
        let may_run = |(_, key): &&(u64, OwnerKey)| {
            self.owners.get(key).is_some_and(|commands| self.may_run(commands, limits, now))
        };
        // All owners without a command in progress have the same right to one.
        let idle = self.waiting_idle.first().filter(may_run);
        let running = self.waiting_running.iter().find(may_run);
        idle.into_iter().chain(running).min().map(|(_, key)| *key)
    }

    /// True if a new command of the owner need not wait.
    fn may_begin(&self, key: OwnerKey, limits: &FairLimits, now: Instant) -> bool {
        self.owners.get(&key).is_some_and(|commands| {
            commands.waiting_count() == 0 && self.may_run(commands, limits, now)
        })
    }

    /// True if the owner may begin another command.
    fn may_run(&self, commands: &OwnerCommands, limits: &FairLimits, now: Instant) -> bool {
        let shared = self.running - self.running_owners.min(limits.owners_max);
        let free = limits.shared_max.saturating_sub(shared);
        if commands.running == 0 {
            return self.running_owners < limits.owners_max || free > 0;
        }
        if commands.running > free || !self.has_room(commands, limits) {
            return false;
        }
        let is_within = |(count_max, bytes_max): (usize, usize)| {
            commands.running < count_max && commands.bytes < bytes_max
        };
        is_within(limits.of_owner(1.0))
            || is_within(limits.of_owner(self.busy.others(&commands.busy, now)))
    }

    /// True if data of all owners free room for another command of this one. Data beyond the
    /// limit is that of owners with more than their share.
    fn has_room(&self, commands: &OwnerCommands, limits: &FairLimits) -> bool {
        let share = limits.bytes_max / self.running_owners.max(1);
        self.bytes < limits.bytes_max || commands.bytes < share
    }

    /// Begins the command that `next` returns with the length of its data. The owner then comes
    /// last.
    fn begin<T>(
        &mut self,
        key: OwnerKey,
        now: Instant,
        next: impl FnOnce(&mut OwnerCommands) -> Option<(usize, T)>,
    ) -> Option<(CommandOwner, usize, T)> {
        let turn = self.next_turn;
        self.next_turn += 1;
        let begun = self.update(key, now, |commands| {
            let (bytes, next) = next(commands)?;
            commands.turn = turn;
            commands.running += 1;
            commands.bytes += bytes;
            Some((commands.owner.clone(), bytes, next, commands.running == 1))
        });
        let (owner, bytes, next, is_first) = begun.flatten()?;
        self.running_owners += usize::from(is_first);
        self.running += 1;
        self.bytes += bytes;
        Some((owner, bytes, next))
    }

    /// Uncounts a command that has ended.
    fn end(&mut self, key: OwnerKey, bytes: usize, now: Instant) {
        let ended = self.update(key, now, |commands| {
            commands.running -= 1;
            commands.bytes -= bytes;
            commands.running == 0
        });
        self.running_owners -= usize::from(ended == Some(true));
        self.running -= 1;
        self.bytes -= bytes;
    }
}

/// The part of an owner's state that determines its position in the orders of owners.
#[derive(Clone, Copy, Eq, PartialEq)]
struct OwnerPosition {
    turn: u64,
    is_waiting: bool,
    is_running: bool,
}

impl OwnerCommands {
    fn new(owner: CommandOwner, turn: u64, busy: BusyShare) -> Self {
        Self {
            owner,
            turn,
            urgent: BTreeMap::new(),
            waiting: BTreeMap::new(),
            running: 0,
            bytes: 0,
            busy,
        }
    }

    fn waiting_count(&self) -> usize {
        self.urgent.len() + self.waiting.len()
    }

    fn is_busy(&self) -> bool {
        self.running > 0 || self.waiting_count() > 0
    }

    fn position(&self) -> OwnerPosition {
        let is_waiting = self.waiting_count() > 0;
        OwnerPosition { turn: self.turn, is_waiting, is_running: self.running > 0 }
    }

    /// Removes the command that comes next; returns the length of its data and its sender.
    fn pop(&mut self) -> Option<(usize, oneshot::Sender<Result<FairPermit, Error>>)> {
        let next = self.urgent.pop_first().or_else(|| self.waiting.pop_first());
        next.map(|(_, command)| (command.bytes, command.admitted))
    }
}

impl QueuedCommand {
    /// Lets the command come before the others of its owner.
    pub(super) fn promote(&self) {
        let mut state = self.queue.state();
        let Some(commands) = state.owners.get_mut(&key_of(&self.owner)) else { return };
        if let Some(command) = commands.waiting.remove(&self.number) {
            commands.urgent.insert(self.number, command);
        }
    }
}

impl Drop for QueuedCommand {
    fn drop(&mut self) {
        let mut state = self.queue.state();
        let removed = state.update(key_of(&self.owner), Instant::now(), |commands| {
            let removed = commands.urgent.remove(&self.number);
            removed.or_else(|| commands.waiting.remove(&self.number))
        });
        drop(state);
        drop(removed);
    }
}

impl Drop for FairPermit {
    fn drop(&mut self) {
        let now = Instant::now();
        let mut state = self.queue.state();
        state.end(key_of(&self.owner), self.bytes, now);
        let grants = self.queue.grant(&mut state, now);
        drop(state);
        for (admitted, permit) in grants {
            let _ = admitted.send(Ok(permit)); // if the receiver is gone, the permit is returned
        }
    }
}

fn key_of(owner: &CommandOwner) -> OwnerKey {
    owner.as_ref().map_or(0, |owner| Arc::as_ptr(owner).addr())
}
