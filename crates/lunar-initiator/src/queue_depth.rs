//! Number of commands that are in progress at a logical unit at a time: adapted to a unit that
//! refuses commands (BUSY, TASK SET FULL), and not limited for any other unit.
//!
//! A unit refuses a command because it holds many, or because it lacks memory for the data. The
//! status does not tell which, but a unit without room for a long command may have room for short
//! ones. A refusal therefore limits the commands that are as long as the refused one, and longer
//! ones, never shorter ones. If the number is the reason, short commands are refused as well.

#[cfg(test)]
mod tests;

use lunar_scsi::sense::Status;
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
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
/// Number of length classes: below 16 KiB, 64 KiB, 256 KiB, 1 MiB, 4 MiB, and longer.
const LENGTH_CLASSES: usize = 6;

/// Numbers of commands in the order in which they first waited or were refused, on any path.
static NEXT_NUMBER: AtomicU64 = AtomicU64::new(0);

/// Admits commands to a logical unit.
///
/// If a command is refused while others are in progress that are at least as long, the unit holds
/// as many as these: no more of that length are sent until one of them ends. Refused commands are
/// sent again first, in their order; new commands wait behind them. If a command is refused while
/// none is in progress, or only shorter ones are, the unit has another reason: the command is sent
/// again after a pause or when another one was executed, and does not delay others.
#[derive(Debug, Default)]
pub(crate) struct QueueDepth {
    /// Number of commands in progress, and the bytes that they count for: one operation changes
    /// both.
    outstanding: AtomicU64,
    /// Numbers of commands in progress of each length class but the shortest.
    longer: [AtomicUsize; LENGTH_CLASSES - 1],
    /// True while the number of commands of any length is limited.
    is_limited: AtomicBool,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    /// Limits by length class.
    limits: [LengthLimit; LENGTH_CLASSES],
    /// True if a command was refused while no other was in progress, and none was executed since.
    refuses_all: bool,
}

/// Limit on the number of commands of a length class and of all longer classes, with the commands
/// that wait for it.
#[derive(Debug)]
struct LengthLimit {
    /// Maximum number of commands in progress; at least 1.
    commands_max: usize,
    /// Number of commands that were executed since the last refusal or growth.
    executed: u32,
    /// True if the last refusal did not show that there were too many commands: the limit then
    /// grows fast.
    is_restarting: bool,
    last_refusal: Option<Instant>,
    /// Time at which a command last began or ended.
    last_progress: Option<Instant>,
    /// Commands of this length class that may be sent when the limits allow it.
    waiting: BTreeMap<WaitingOrder, oneshot::Sender<()>>,
    /// Refused commands of this length class that pause.
    pausing: BTreeMap<PausingOrder, oneshot::Sender<()>>,
}

/// Order of waiting commands: those that were refused come before new ones.
#[derive(Clone, Copy, Debug, Eq, Ord, PartialEq, PartialOrd)]
struct WaitingOrder {
    is_new: bool,
    number: u64,
}

/// Order of pausing commands: commands whose pause another command cannot end come last.
#[derive(Clone, Copy, Debug, Eq, Ord, PartialEq, PartialOrd)]
struct PausingOrder {
    is_fixed: bool,
    number: u64,
}

/// State of a command between its attempts.
#[derive(Debug, Default)]
pub(crate) struct RetryState {
    /// Position in the order, once the command has waited.
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
    /// Bytes that the command counts for.
    bytes: u64,
    length_class: usize,
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
    length_class: usize,
    number: u64,
    refusals: u32,
    /// End of the pause, while it lasts.
    pauses_until: Option<Instant>,
    has_paused: bool,
    /// Time since which the command waits without a pause.
    since: Instant,
    granted: oneshot::Receiver<()>,
    /// True when a [`CommandInProgress`] has replaced this entry of the queue.
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
        let length_class = length_class(bytes);
        self.count(length_class, bytes);
        CommandInProgress { depth: self, bytes, length_class, refusals: 0, answer: None }
    }

    /// Waits until the command, which counts for `bytes`, may be sent. `timer` returns a timer on
    /// any thread.
    pub(crate) async fn wait(
        &self,
        turn: &mut RetryState,
        bytes: u64,
        timer: impl Fn(Instant) -> Sleep,
    ) -> CommandInProgress<'_> {
        let mut queued = match self.enter(turn, bytes) {
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
        self.granted(bytes, turn.refusals)
    }

    /// Admits the command, or queues it.
    fn enter(
        &self,
        turn: &mut RetryState,
        bytes: u64,
    ) -> Result<CommandInProgress<'_>, QueuedCommand<'_>> {
        let now = Instant::now();
        let number =
            *turn.number.get_or_insert_with(|| NEXT_NUMBER.fetch_add(1, Ordering::Relaxed));
        let (length_class, refusals) = (length_class(bytes), turn.refusals);
        let mut state = self.state();
        let is_alone = self.commands(length_class) == 0;
        let must_pause = state.refuses_all || is_alone || refusals > RESENDS_MAX;
        let pauses = refusals > 0 && must_pause;
        let may_run = self.blocking_class(&state, length_class).is_none();
        if !pauses && may_run && self.next_class(&state, false).is_none() {
            self.count(length_class, 0);
            state.record_progress(length_class, now);
            return Ok(self.granted(bytes, refusals));
        }
        let (sender, granted) = oneshot::channel();
        let pauses_until = pauses.then(|| now + turn.pause);
        let limit = &mut state.limits[length_class];
        if pauses {
            let order = PausingOrder { is_fixed: refusals > RESENDS_MAX, number };
            limit.pausing.insert(order, sender);
        } else {
            limit.waiting.insert(WaitingOrder { is_new: refusals == 0, number }, sender);
        }
        drop(state);
        Err(QueuedCommand {
            depth: self,
            length_class,
            number,
            refusals,
            pauses_until,
            has_paused: pauses,
            since: now,
            granted,
            is_taken: false,
        })
    }

    /// Returns the guard of a command that is counted already, without its bytes.
    fn granted(&self, bytes: u64, refusals: u32) -> CommandInProgress<'_> {
        self.outstanding.fetch_add(bytes, Ordering::Relaxed);
        let length_class = length_class(bytes);
        CommandInProgress { depth: self, bytes, length_class, refusals, answer: None }
    }

    /// Counts a command as in progress.
    fn count(&self, length_class: usize, bytes: u64) {
        if length_class > 0 {
            self.longer[length_class - 1].fetch_add(1, Ordering::SeqCst);
        }
        self.outstanding.fetch_add(ONE_COMMAND + bytes, Ordering::SeqCst);
    }

    fn uncount(&self, length_class: usize, bytes: u64) {
        self.outstanding.fetch_sub(ONE_COMMAND + bytes, Ordering::SeqCst);
        if length_class > 0 {
            self.longer[length_class - 1].fetch_sub(1, Ordering::SeqCst);
        }
    }

    /// Number of commands in progress of this length class and of longer ones.
    fn commands(&self, length_class: usize) -> usize {
        match length_class {
            0 => (self.outstanding.load(Ordering::SeqCst) / ONE_COMMAND) as usize,
            _ => {
                let longer = &self.longer[length_class - 1..];
                longer.iter().map(|commands| commands.load(Ordering::SeqCst)).sum()
            }
        }
    }

    /// Returns the length class whose limit is reached, if a command of `length_class` may not be
    /// sent. Longer commands may not be sent either.
    fn blocking_class(&self, state: &State, length_class: usize) -> Option<usize> {
        (0..=length_class).find(|class| self.commands(*class) >= state.limits[*class].commands_max)
    }

    /// Returns the length class of the command that is sent next, if any may be sent.
    fn next_class(&self, state: &State, was_executed: bool) -> Option<usize> {
        let is_allowed = |class: &usize| self.commands(*class) < state.limits[*class].commands_max;
        let allowed = (0..LENGTH_CLASSES).take_while(is_allowed);
        let next = allowed.filter_map(|class| {
            state.limits[class].next_order(was_executed).map(|order| (order, class))
        });
        next.min().map(|(_, class)| class)
    }

    /// Uncounts a command that was refused, and limits the number of commands as long as it.
    fn refuse(&self, length_class: usize, bytes: u64, refusals: u32) {
        let mut state = self.state();
        self.uncount(length_class, bytes);
        state.refuses_all |= self.commands(0) == 0;
        if refusals < RESENDS_MAX {
            self.is_limited.store(true, Ordering::SeqCst);
            state.limits[length_class].lower(self.commands(length_class), Instant::now());
        }
        self.admit(state, length_class, false);
    }

    /// Uncounts a command that has ended in another way.
    fn end(&self, length_class: usize, bytes: u64, is_executed: bool) {
        // A command that waits has set `is_limited` before it reads the number of commands.
        self.uncount(length_class, bytes);
        if !self.is_limited() {
            return;
        }
        let now = Instant::now();
        let mut state = self.state();
        if is_executed {
            state.refuses_all = false;
            self.is_limited.store(state.grow(length_class, now), Ordering::SeqCst);
        }
        self.admit(state, length_class, is_executed);
    }

    /// Admits waiting commands as far as the limits allow, in their order, after the end of a
    /// command. If it was executed, the pauses of refused commands end.
    fn admit(&self, mut state: MutexGuard<'_, State>, ended_class: usize, was_executed: bool) {
        let now = Instant::now();
        state.record_progress(ended_class, now);
        let mut granted = Vec::new();
        while let Some(class) = self.next_class(&state, was_executed) {
            let Some(next) = state.limits[class].pop_next(was_executed) else { break };
            self.count(class, 0);
            state.record_progress(class, now);
            granted.push(next);
        }
        drop(state);
        for sender in granted {
            let _ = sender.send(()); // a command that is dropped gives its permission back
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Returns the length class of a command that counts for `bytes`.
fn length_class(bytes: u64) -> usize {
    const CLASS_SHIFT: u32 = 2;
    const SHORTEST_SHIFT: u32 = 12;
    let class = (bytes >> SHORTEST_SHIFT).max(1).ilog2() / CLASS_SHIFT;
    (class as usize).min(LENGTH_CLASSES - 1)
}

impl Default for LengthLimit {
    fn default() -> Self {
        Self {
            commands_max: usize::MAX,
            executed: 0,
            is_restarting: false,
            last_refusal: None,
            last_progress: None,
            waiting: BTreeMap::new(),
            pausing: BTreeMap::new(),
        }
    }
}

impl State {
    /// Raises the limits after a command was executed. Returns true while any limit holds.
    fn grow(&mut self, length_class: usize, now: Instant) -> bool {
        for (class, limit) in self.limits.iter_mut().enumerate() {
            limit.grow(class <= length_class, now);
        }
        self.limits.iter().any(|limit| limit.last_refusal.is_some())
    }

    /// Records that a command has begun or ended.
    fn record_progress(&mut self, length_class: usize, now: Instant) {
        for limit in &mut self.limits[..=length_class] {
            limit.last_progress = Some(now);
        }
    }
}

impl LengthLimit {
    /// Limits the number of commands after a refusal that left `in_progress` in progress.
    fn lower(&mut self, in_progress: usize, now: Instant) {
        self.commands_max = self.commands_max.min(in_progress).max(1);
        self.is_restarting = in_progress == 0;
        self.executed = 0;
        self.last_refusal = Some(now);
    }

    /// Raises the limit if the executed command `counts` for it, and removes the limit after
    /// [`QUIET_TIME`] without a refusal.
    fn grow(&mut self, counts: bool, now: Instant) {
        let Some(last) = self.last_refusal else { return };
        if now.saturating_duration_since(last) >= QUIET_TIME {
            (self.commands_max, self.last_refusal) = (usize::MAX, None);
        } else if counts {
            self.executed += 1;
            let needed = if self.is_restarting { 1 } else { GROWTH_COMMANDS };
            if self.executed >= needed {
                self.executed = 0;
                self.commands_max = self.commands_max.saturating_add(1);
            }
        }
    }

    /// Returns the position of the command that may be sent next. If another command
    /// `was_executed`, the pause of a refused command may end.
    fn next_order(&self, was_executed: bool) -> Option<WaitingOrder> {
        let waiting = self.waiting.first_key_value().map(|(order, _)| *order);
        let pausing = self.pausing.first_key_value().map(|(order, _)| *order);
        let pausing = pausing.filter(|order| was_executed && !order.is_fixed);
        let ends = pausing.map(|order| WaitingOrder { is_new: false, number: order.number });
        waiting.into_iter().chain(ends).min()
    }

    /// Removes the command of [`next_order`](Self::next_order).
    fn pop_next(&mut self, was_executed: bool) -> Option<oneshot::Sender<()>> {
        let order = self.next_order(was_executed)?;
        let ends = PausingOrder { is_fixed: false, number: order.number };
        self.waiting.remove(&order).or_else(|| self.pausing.remove(&ends))
    }
}

impl RetryState {
    /// Records that the command was refused, and is sent again after `pause` at the latest if no
    /// other command is in progress.
    pub(crate) fn record_refusal(&mut self, pause: Duration) {
        self.refusals += 1;
        self.pause = pause;
    }
}

impl CommandInProgress<'_> {
    /// Ends the command with the answer of the unit, if there was one.
    pub(crate) fn end(mut self, answer: Option<UnitAnswer>) {
        self.answer = answer;
    }
}

impl Drop for CommandInProgress<'_> {
    fn drop(&mut self) {
        match self.answer {
            Some(UnitAnswer::Refused) => {
                self.depth.refuse(self.length_class, self.bytes, self.refusals);
            }
            answer => self.depth.end(self.length_class, self.bytes, answer.is_some()),
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

    /// Returns the time at which the command is sent although a limit is reached, unless a command
    /// that counts for this limit begins or ends before then. The first waiting command has an
    /// earlier time than the others.
    fn stalls_at(&self, state: &State) -> Instant {
        let blocking = self.depth.blocking_class(state, self.length_class);
        let limits = &state.limits[blocking.unwrap_or(self.length_class)..];
        let waiting = limits.iter().filter_map(|limit| limit.waiting.first_key_value());
        let first = waiting.map(|(order, _)| *order).min();
        let last = limits[0].last_progress.map_or(self.since, |last| last.max(self.since));
        let is_first = first == Some(self.waiting_order());
        last + if is_first { STALL_TIME } else { 2 * STALL_TIME }
    }

    /// Ends the pause, or a wait without progress. Returns true if the command may be sent.
    fn check(&mut self, now: Instant) -> bool {
        let (depth, class, order) = (self.depth, self.length_class, self.waiting_order());
        let mut state = depth.state();
        if let Some(sender) = state.limits[class].pausing.remove(&self.pausing_order()) {
            (self.pauses_until, self.since) = (None, now);
            state.limits[class].waiting.insert(order, sender);
            depth.admit(state, class, false);
            return false;
        }
        if !state.limits[class].waiting.contains_key(&order) {
            return true;
        }
        if now < self.stalls_at(&state) {
            return false;
        }
        state.limits[class].waiting.remove(&order);
        state.record_progress(class, now);
        depth.count(class, 0);
        true
    }
}

impl Drop for QueuedCommand<'_> {
    fn drop(&mut self) {
        if self.is_taken {
            return;
        }
        let mut state = self.depth.state();
        let limit = &mut state.limits[self.length_class];
        let waited = limit.waiting.remove(&self.waiting_order()).is_some();
        let paused = limit.pausing.remove(&self.pausing_order()).is_some();
        drop(state);
        if !waited && !paused {
            self.depth.end(self.length_class, 0, false); // the permission that was granted
        }
    }
}
