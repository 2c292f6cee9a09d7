//! Admission of commands to a device: a limited number at a time, shared fairly between owners.

use super::contention::BusyShare;
use crate::{Error, ErrorKind, MemoryOwner};
use std::collections::{BTreeMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use tokio::sync::oneshot;
use tokio::time::Instant;

/// The owner of a command, compared by identity; `None` for the server itself.
pub(super) type CommandOwner = Option<Arc<MemoryOwner>>;

/// Limits on the commands that are in progress at a time.
///
/// Each owner has one place of its own, and its first command takes a shared place when all of
/// these are in use: of more owners than there are places, each gets one when its turn comes. Of
/// the shared places it may take at most as many as it leaves free: a single owner gets half of
/// them. The more other owners use the device, the fewer it gets, so that their commands do not
/// wait in the device behind many of its own. The limits do not follow the times of commands, which
/// owners can influence. Those beside others are more than half of those alone: where commands do
/// not wait for each other, an owner that is always there costs no other one half.
#[derive(Clone, Copy, Debug)]
pub(super) struct FairLimits {
    /// Number of places for the first commands of owners.
    pub(super) owners_max: usize,
    /// Maximum number of commands in progress besides these.
    pub(super) shared_max: usize,
    /// Maximum number of commands of an owner while other owners use the device all the time.
    pub(super) contended_max: usize,
    /// An owner begins no second command while it has this much data in progress.
    pub(super) owner_bytes_max: usize,
    /// The same while other owners use the device all the time.
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
        let between = |least: usize, most: usize| {
            least + (most.saturating_sub(least) as f64 * free).round() as usize
        };
        let alone_max = 1 + self.shared_max / 2;
        let count = between(self.contended_max, alone_max);
        (count, between(self.contended_bytes_max, self.owner_bytes_max))
    }
}

/// Admits commands to a device. Owners take turns, and of the commands of an owner those come first
/// for which other owners wait.
#[derive(Debug)]
pub(super) struct FairQueue {
    limits: FairLimits,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    next_number: u64,
    /// Number of owners that have a command in progress.
    running_owners: usize,
    /// Number of commands in progress.
    running: usize,
    /// Data of all commands in progress.
    bytes: usize,
    /// Owners with commands, or active until lately, in the order of their turns.
    owners: VecDeque<OwnerCommands>,
}

#[derive(Debug)]
struct OwnerCommands {
    owner: CommandOwner,
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
    admitted: oneshot::Sender<Result<Place, Error>>,
}

/// The place of a command in progress; returned when dropped.
#[derive(Debug)]
pub(super) struct Place {
    queue: Arc<FairQueue>,
    owner: CommandOwner,
    bytes: usize,
    pub(super) began: Instant,
}

/// A command that waits for a place. It leaves the queue when dropped.
#[derive(Debug)]
pub(super) struct QueuedCommand {
    queue: Arc<FairQueue>,
    owner: CommandOwner,
    number: u64,
    pub(super) admitted: oneshot::Receiver<Result<Place, Error>>,
}

/// Places that were given to waiting commands, to be sent without the lock.
type Grants = Vec<(oneshot::Sender<Result<Place, Error>>, Place)>;

impl FairQueue {
    pub(super) fn new(limits: FairLimits) -> Arc<Self> {
        Arc::new(Self { limits, state: Mutex::default() })
    }

    /// Returns a place for a command that moves `bytes`, or queues the command.
    pub(super) fn enter(
        self: &Arc<Self>,
        owner: CommandOwner,
        bytes: usize,
        is_urgent: bool,
    ) -> Result<Place, QueuedCommand> {
        let now = Instant::now();
        let mut state = self.state();
        let at = state.entry(&owner, now);
        let is_first = state.owners[at].waiting_count() == 0;
        if is_first && state.may_run(at, &self.limits, now) {
            let place = self.begin(&mut state, at, bytes, now);
            return Ok(place);
        }
        let number = state.next_number;
        state.next_number += 1;
        let (sender, admitted) = oneshot::channel();
        let commands = &mut state.owners[at];
        let waiting = if is_urgent { &mut commands.urgent } else { &mut commands.waiting };
        waiting.insert(number, WaitingCommand { bytes, since: now, admitted: sender });
        commands.update_busy(now);
        drop(state);
        Err(QueuedCommand { queue: Arc::clone(self), owner, number, admitted })
    }

    /// Fails the commands that have waited since `before` or longer: the device was away for all
    /// the time that a command may wait for it.
    pub(super) fn fail_waiting(&self, before: Instant, device: &str) {
        let now = Instant::now();
        let mut state = self.state();
        let mut failed = Vec::new();
        for commands in &mut state.owners {
            for waiting in [&mut commands.urgent, &mut commands.waiting] {
                failed.extend(waiting.extract_if(.., |_, command| command.since <= before));
            }
            commands.update_busy(now);
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
        self.state().owners.iter().map(OwnerCommands::waiting_count).sum()
    }

    /// Number of commands in progress.
    #[cfg(test)]
    pub(super) fn running(&self) -> usize {
        self.state().owners.iter().map(|commands| commands.running).sum()
    }

    /// Takes a place for a command of the owner at this position, whose turn is then over.
    fn begin(self: &Arc<Self>, state: &mut State, at: usize, bytes: usize, now: Instant) -> Place {
        let owner = state.begin(at, bytes, now);
        Place { queue: Arc::clone(self), owner, bytes, began: now }
    }

    /// Gives places to waiting commands as long as any may run.
    fn grant(self: &Arc<Self>, state: &mut State, now: Instant) -> Grants {
        let mut grants = Vec::new();
        while let Some(at) = state.next_owner(&self.limits, now) {
            let Some(command) = state.owners[at].pop() else { break };
            grants.push((command.admitted, self.begin(state, at, command.bytes, now)));
        }
        grants
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    /// Returns the position of the owner's commands. A new owner comes last.
    fn entry(&mut self, owner: &CommandOwner, now: Instant) -> usize {
        if let Some(at) = self.position(owner) {
            return at;
        }
        self.owners.retain(|commands| !commands.busy.is_forgotten(now));
        self.owners.push_back(OwnerCommands::new(owner.clone(), now));
        self.owners.len() - 1
    }

    fn position(&self, owner: &CommandOwner) -> Option<usize> {
        self.owners.iter().position(|commands| is_same(&commands.owner, owner))
    }

    /// Returns the position of the owner whose waiting command may run next.
    fn next_owner(&self, limits: &FairLimits, now: Instant) -> Option<usize> {
        let mut owners = 0..self.owners.len();
        owners.find(|at| self.owners[*at].waiting_count() > 0 && self.may_run(*at, limits, now))
    }

    /// True if the owner at this position may begin another command.
    fn may_run(&self, at: usize, limits: &FairLimits, now: Instant) -> bool {
        let commands = &self.owners[at];
        let shared = self.running - self.running_owners.min(limits.owners_max);
        let leaves = limits.shared_max.saturating_sub(shared);
        if commands.running == 0 {
            return self.running_owners < limits.owners_max || leaves > 0;
        }
        if commands.running > leaves || !self.has_room(commands, limits) {
            return false;
        }
        let is_within = |(count_max, bytes_max): (usize, usize)| {
            commands.running < count_max && commands.bytes < bytes_max
        };
        is_within(limits.of_owner(1.0)) || is_within(limits.of_owner(self.others_share(at, now)))
    }

    /// True if data of all owners leaves room for another command of this one. Data beyond the
    /// limit is that of owners with more than their share.
    fn has_room(&self, commands: &OwnerCommands, limits: &FairLimits) -> bool {
        let share = limits.bytes_max / self.running_owners.max(1);
        self.bytes < limits.bytes_max || commands.bytes < share
    }

    /// Returns the share of the time for which other owners than the one at this position use the
    /// device.
    fn others_share(&self, at: usize, now: Instant) -> f64 {
        let others = self.owners.iter().enumerate().filter(|(other, _)| *other != at);
        others.map(|(_, other)| other.busy.at(now)).sum()
    }

    /// Counts a command of the owner at this position, who then comes last. Returns the owner.
    fn begin(&mut self, at: usize, bytes: usize, now: Instant) -> CommandOwner {
        let commands = &mut self.owners[at];
        self.running_owners += usize::from(commands.running == 0);
        self.running += 1;
        commands.running += 1;
        commands.bytes += bytes;
        commands.update_busy(now);
        self.bytes += bytes;
        let owner = commands.owner.clone();
        if let Some(commands) = self.owners.remove(at) {
            self.owners.push_back(commands);
        }
        owner
    }

    /// Uncounts a command that has ended.
    fn end(&mut self, owner: &CommandOwner, bytes: usize, now: Instant) {
        let Some(at) = self.position(owner) else { return };
        let commands = &mut self.owners[at];
        commands.running -= 1;
        commands.bytes -= bytes;
        commands.update_busy(now);
        self.running_owners -= usize::from(commands.running == 0);
        self.running -= 1;
        self.bytes -= bytes;
    }
}

impl OwnerCommands {
    fn new(owner: CommandOwner, now: Instant) -> Self {
        Self {
            owner,
            urgent: BTreeMap::new(),
            waiting: BTreeMap::new(),
            running: 0,
            bytes: 0,
            busy: BusyShare::new(now),
        }
    }

    fn waiting_count(&self) -> usize {
        self.urgent.len() + self.waiting.len()
    }

    /// Records after a change whether the owner has commands.
    fn update_busy(&mut self, now: Instant) {
        self.busy.set(self.running > 0 || self.waiting_count() > 0, now);
    }

    fn pop(&mut self) -> Option<WaitingCommand> {
        let next = self.urgent.pop_first().or_else(|| self.waiting.pop_first());
        next.map(|(_, command)| command)
    }
}

impl QueuedCommand {
    /// Lets the command come before the others of its owner.
    pub(super) fn promote(&self) {
        let mut state = self.queue.state();
        if let Some(at) = state.position(&self.owner) {
            let commands = &mut state.owners[at];
            if let Some(command) = commands.waiting.remove(&self.number) {
                commands.urgent.insert(self.number, command);
            }
        }
    }
}

impl Drop for QueuedCommand {
    fn drop(&mut self) {
        let mut state = self.queue.state();
        if let Some(at) = state.position(&self.owner) {
            let commands = &mut state.owners[at];
            let removed = commands.urgent.remove(&self.number);
            let removed = removed.or_else(|| commands.waiting.remove(&self.number));
            commands.update_busy(Instant::now());
            drop(state);
            drop(removed);
        }
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let now = Instant::now();
        let mut state = self.queue.state();
        state.end(&self.owner, self.bytes, now);
        let grants = self.queue.grant(&mut state, now);
        drop(state);
        for (admitted, place) in grants {
            let _ = admitted.send(Ok(place)); // a place that nobody takes is returned
        }
    }
}

/// Returns true if both are the same owner.
fn is_same(one: &CommandOwner, other: &CommandOwner) -> bool {
    match (one, other) {
        (Some(one), Some(other)) => Arc::ptr_eq(one, other),
        (one, other) => one.is_none() && other.is_none(),
    }
}
