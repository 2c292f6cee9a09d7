//! Number of commands that are in progress at a logical unit at a time: adapted to a unit that
//! refuses commands (BUSY, TASK SET FULL), and not limited for any other unit.

#[cfg(test)]
mod tests;

use lunar_scsi::sense::Status;
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use tokio::sync::oneshot;
use tokio::time::{Instant, Sleep};

/// Number of commands executed without a refusal after which one more is allowed.
const GROWTH_COMMANDS: u32 = 16;
/// Time without a refusal after which the number of commands is unlimited again.
const QUIET_TIME: Duration = Duration::from_secs(10);
/// Number of refusals up to which a command is sent again when another one has ended. A command
/// that is refused more often is refused for another reason than the number of commands.
const RESENDS_MAX: u32 = 4;
/// Time without any progress after which a waiting command is sent although the limit is reached:
/// the caller of a command that has ended may not poll its future.
const STALL_TIME: Duration = Duration::from_secs(1);
/// One command in [`QueueDepth::outstanding`]; the bits below count bytes.
const ONE_COMMAND: u64 = 1 << 44;

/// Numbers of commands in the order in which they first waited or were refused, on any path.
static NEXT_NUMBER: AtomicU64 = AtomicU64::new(0);

/// Admits commands to a logical unit.
///
/// If a command is refused while others are in progress, the unit holds as many as these: no more
/// are sent until one of them ends. Refused commands are sent again first, in their order; new
/// commands wait behind them. If a command is refused while none is in progress, the unit has
/// another reason: the command is sent again after a pause, and does not delay others.
#[derive(Debug, Default)]
pub(crate) struct QueueDepth {
    /// Number of commands in progress, and the bytes that they count for: one operation changes
    /// both.
    outstanding: AtomicU64,
    /// True while the number of commands is limited.
    is_limited: AtomicBool,
    state: Mutex<State>,
}

#[derive(Debug)]
struct State {
    /// Maximum number of commands in progress; at least 1.
    commands_max: usize,
    /// Number of commands that were executed since the last refusal or growth.
    executed: u32,
    /// True if the last refusal was no sign of too many commands: the limit then grows fast.
    is_restarting: bool,
    /// True if a command was refused while no other was in progress, and none was executed since.
    refuses_all: bool,
    last_refusal: Option<Instant>,
    /// Time at which a command last began or ended.
    last_progress: Option<Instant>,
    /// Commands that may be sent when the limit allows it.
    waiting: BTreeMap<WaitingOrder, oneshot::Sender<()>>,
    /// Refused commands that pause.
    pausing: BTreeMap<PausingOrder, oneshot::Sender<()>>,
}

/// Order of waiting commands: those that were refused come before new ones.
#[derive(Clone, Copy, Debug, Eq, Ord, PartialEq, PartialOrd)]
struct WaitingOrder {
    is_new: bool,
    number: u64,
}

/// Order of pausing commands: those come last whose pause does not end with another command.
#[derive(Clone, Copy, Debug, Eq, Ord, PartialEq, PartialOrd)]
struct PausingOrder {
    is_fixed: bool,
    number: u64,
}

/// State of a command between its attempts.
#[derive(Debug, Default)]
pub(crate) struct RetryTurn {
    /// Place in the order, once the command has waited.
    number: Option<u64>,
    /// Number of times the command was refused.
    pub(crate) refusals: u32,
    /// Pause after the last refusal.
    pub(crate) pause: Duration,
    /// Time for which the refused command has waited while the unit executed others.
    pub(crate) waited: Duration,
}

/// A command in progress; no longer counted when dropped.
#[derive(Debug)]
pub(crate) struct CommandInProgress<'a> {
    depth: &'a QueueDepth,
    counted: u64,
    /// Number of times the command was refused before.
    refusals: u32,
    answer: Option<UnitAnswer>,
}

/// Answer of the unit to a command.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum UnitAnswer {
    /// The command was executed, well or not.
    Executed,
    /// The unit has no room for the command at present.
    Refused,
}

impl UnitAnswer {
    pub(crate) fn of(status: u8) -> Self {
        match Status(status) {
            Status::BUSY | Status::TASK_SET_FULL => Self::Refused,
            _ => Self::Executed,
        }
    }
}

/// A command that waits. It leaves the queue when dropped.
#[derive(Debug)]
struct QueuedCommand<'a> {
    depth: &'a QueueDepth,
    number: u64,
    refusals: u32,
    /// End of the pause, while it lasts.
    pauses_until: Option<Instant>,
    has_paused: bool,
    /// Time since which the command waits without a pause.
    since: Instant,
    granted: oneshot::Receiver<()>,
    /// True when the place was taken over by a [`CommandInProgress`].
    is_taken: bool,
}

impl QueueDepth {
    /// Bytes that the commands in progress count for.
    pub(crate) fn outstanding_bytes(&self) -> u64 {
        self.outstanding.load(Ordering::Relaxed) % ONE_COMMAND
    }

    /// True while commands may have to wait.
    pub(crate) fn is_limited(&self) -> bool {
        self.is_limited.load(Ordering::SeqCst)
    }

    /// Counts a command that counts for `bytes` as in progress, without waiting.
    pub(crate) fn begin(&self, bytes: u64) -> CommandInProgress<'_> {
        let counted = ONE_COMMAND + bytes;
        self.outstanding.fetch_add(counted, Ordering::Relaxed);
        CommandInProgress { depth: self, counted, refusals: 0, answer: None }
    }

    /// Waits until the command may be sent. `timer` returns a timer on any thread.
    pub(crate) async fn wait(
        &self,
        turn: &mut RetryTurn,
        timer: impl Fn(Instant) -> Sleep,
    ) -> CommandInProgress<'_> {
        let mut queued = match self.enter(turn) {
            Ok(in_progress) => return in_progress,
            Err(queued) => queued,
        };
        loop {
            let until = queued.next_check();
            tokio::select! {
                biased;
                _ = &mut queued.granted => break,
                () = timer(until) => if queued.check(Instant::now()) { break },
            }
        }
        if turn.refusals > 0 && !queued.has_paused && !self.state().refuses_all {
            turn.waited += queued.since.elapsed();
        }
        queued.is_taken = true;
        self.granted(turn.refusals)
    }

    /// Admits the command, or queues it.
    fn enter(&self, turn: &mut RetryTurn) -> Result<CommandInProgress<'_>, QueuedCommand<'_>> {
        let now = Instant::now();
        let number =
            *turn.number.get_or_insert_with(|| NEXT_NUMBER.fetch_add(1, Ordering::Relaxed));
        let refusals = turn.refusals;
        let mut state = self.state();
        let in_progress = self.commands();
        let must_pause = state.refuses_all || in_progress == 0 || refusals > RESENDS_MAX;
        let pauses = refusals > 0 && must_pause;
        if !pauses && state.waiting.is_empty() && in_progress < state.commands_max {
            self.outstanding.fetch_add(ONE_COMMAND, Ordering::SeqCst);
            state.last_progress = Some(now);
            return Ok(self.granted(refusals));
        }
        let (sender, granted) = oneshot::channel();
        let pauses_until = pauses.then(|| now + turn.pause);
        if pauses {
            let order = PausingOrder { is_fixed: refusals > RESENDS_MAX, number };
            state.pausing.insert(order, sender);
        } else {
            state.waiting.insert(WaitingOrder { is_new: refusals == 0, number }, sender);
        }
        drop(state);
        Err(QueuedCommand {
            depth: self,
            number,
            refusals,
            pauses_until,
            has_paused: pauses,
            since: now,
            granted,
            is_taken: false,
        })
    }

    /// Returns the guard of a command that is counted already, without bytes.
    fn granted(&self, refusals: u32) -> CommandInProgress<'_> {
        CommandInProgress { depth: self, counted: ONE_COMMAND, refusals, answer: None }
    }

    /// Number of commands in progress.
    fn commands(&self) -> usize {
        (self.outstanding.load(Ordering::SeqCst) / ONE_COMMAND) as usize
    }

    /// Uncounts a command that was refused, and limits the number of commands.
    fn refuse(&self, counted: u64, refusals: u32) {
        let mut state = self.state();
        self.outstanding.fetch_sub(counted, Ordering::SeqCst);
        let in_progress = self.commands();
        state.refuses_all |= in_progress == 0;
        if refusals < RESENDS_MAX {
            self.is_limited.store(true, Ordering::SeqCst);
            state.limit(in_progress, Instant::now());
        }
        self.admit(state, false);
    }

    /// Uncounts a command that has ended in another way.
    fn end(&self, counted: u64, is_executed: bool) {
        // A command that waits has set `is_limited` before it reads the number of commands.
        self.outstanding.fetch_sub(counted, Ordering::SeqCst);
        if !self.is_limited() {
            return;
        }
        let now = Instant::now();
        let mut state = self.state();
        if is_executed {
            state.refuses_all = false;
            self.is_limited.store(!state.grow(now), Ordering::SeqCst);
        }
        self.admit(state, is_executed);
    }

    /// Admits waiting commands as far as the limit allows, in their order. If a command was
    /// executed, the pauses of refused commands end.
    fn admit(&self, mut state: MutexGuard<'_, State>, is_executed: bool) {
        state.last_progress = Some(Instant::now());
        let mut granted = Vec::new();
        while self.commands() < state.commands_max {
            let Some(next) = state.pop_next(is_executed) else { break };
            self.outstanding.fetch_add(ONE_COMMAND, Ordering::SeqCst);
            granted.push(next);
        }
        drop(state);
        for sender in granted {
            let _ = sender.send(()); // a command that is dropped returns its place
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Default for State {
    fn default() -> Self {
        Self {
            commands_max: usize::MAX,
            executed: 0,
            is_restarting: false,
            refuses_all: false,
            last_refusal: None,
            last_progress: None,
            waiting: BTreeMap::new(),
            pausing: BTreeMap::new(),
        }
    }
}

impl State {
    /// Limits the number of commands after a refusal that left `in_progress` in progress.
    fn limit(&mut self, in_progress: usize, now: Instant) {
        self.commands_max = self.commands_max.min(in_progress).max(1);
        self.is_restarting = in_progress == 0;
        self.executed = 0;
        self.last_refusal = Some(now);
    }

    /// Counts a command that was executed, and raises the limit. Returns true if the limit ends.
    fn grow(&mut self, now: Instant) -> bool {
        let is_quiet = |last: Instant| now.saturating_duration_since(last) >= QUIET_TIME;
        if self.last_refusal.is_none_or(is_quiet) {
            self.commands_max = usize::MAX;
            return true;
        }
        self.executed += 1;
        let needed = if self.is_restarting { 1 } else { GROWTH_COMMANDS };
        if self.executed >= needed {
            self.executed = 0;
            self.commands_max = self.commands_max.saturating_add(1);
        }
        false
    }

    /// Removes the command that may be sent next. If another one `was_executed`, the pause of a
    /// refused command may end.
    fn pop_next(&mut self, was_executed: bool) -> Option<oneshot::Sender<()>> {
        if let Some(first) = self.pausing.first_entry() {
            let pausing = first.key();
            let order = WaitingOrder { is_new: false, number: pausing.number };
            let is_next = self.waiting.first_key_value().is_none_or(|(other, _)| order < *other);
            if was_executed && !pausing.is_fixed && is_next {
                return Some(first.remove());
            }
        }
        self.waiting.pop_first().map(|(_, sender)| sender)
    }
}

impl RetryTurn {
    /// Records that the command was refused, and is sent again after `pause` at the latest if no
    /// other command is in progress.
    pub(crate) fn record_refusal(&mut self, pause: Duration) {
        self.refusals += 1;
        self.pause = pause;
    }
}

impl CommandInProgress<'_> {
    /// Adds bytes that the command counts for.
    pub(crate) fn add_bytes(&mut self, bytes: u64) {
        self.depth.outstanding.fetch_add(bytes, Ordering::Relaxed);
        self.counted += bytes;
    }

    /// Ends the command with the answer of the unit, if there was one.
    pub(crate) fn end(mut self, answer: Option<UnitAnswer>) {
        self.answer = answer;
    }
}

impl Drop for CommandInProgress<'_> {
    fn drop(&mut self) {
        match self.answer {
            Some(UnitAnswer::Refused) => self.depth.refuse(self.counted, self.refusals),
            answer => self.depth.end(self.counted, answer.is_some()),
        }
    }
}

impl QueuedCommand<'_> {
    fn waiting_order(&self) -> WaitingOrder {
        WaitingOrder { is_new: self.refusals == 0, number: self.number }
    }

    fn pausing_order(&self) -> PausingOrder {
        PausingOrder { is_fixed: self.refusals > RESENDS_MAX, number: self.number }
    }

    /// Returns the time of the next [`check`](Self::check).
    fn next_check(&self) -> Instant {
        self.pauses_until.unwrap_or_else(|| self.stalls_at(&self.depth.state()))
    }

    /// Returns the time at which the command is sent although the limit is reached, unless a
    /// command begins or ends before. The first one comes before the others.
    fn stalls_at(&self, state: &State) -> Instant {
        let is_first =
            state.waiting.first_key_value().map(|(order, _)| *order) == Some(self.waiting_order());
        let last = state.last_progress.map_or(self.since, |last| last.max(self.since));
        last + if is_first { STALL_TIME } else { 2 * STALL_TIME }
    }

    /// Ends the pause, or a wait without progress. Returns true if the command may be sent.
    fn check(&mut self, now: Instant) -> bool {
        let (depth, order) = (self.depth, self.waiting_order());
        let mut state = depth.state();
        if let Some(sender) = state.pausing.remove(&self.pausing_order()) {
            (self.pauses_until, self.since) = (None, now);
            state.waiting.insert(order, sender);
            depth.admit(state, false);
            return false;
        }
        if !state.waiting.contains_key(&order) {
            return true;
        }
        if now < self.stalls_at(&state) {
            return false;
        }
        state.waiting.remove(&order);
        state.last_progress = Some(now);
        depth.outstanding.fetch_add(ONE_COMMAND, Ordering::SeqCst);
        true
    }
}

impl Drop for QueuedCommand<'_> {
    fn drop(&mut self) {
        if self.is_taken {
            return;
        }
        let mut state = self.depth.state();
        let waited = state.waiting.remove(&self.waiting_order()).is_some();
        let paused = state.pausing.remove(&self.pausing_order()).is_some();
        drop(state);
        if !waited && !paused {
            self.depth.end(ONE_COMMAND, false); // the place that was granted
        }
    }
}
