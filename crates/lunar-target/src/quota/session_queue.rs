//! The commands of one session at one unit that wait, in order.
//!
//! They wait before they enter the unit's task set, so that nobody else's command is kept waiting
//! by them; and are judged anew when they enter, as commands that have just come. What need not
//! wait for a limit goes past them, unless an ORDERED one or one at the HEAD OF QUEUE is in between
//! (SAM-5 §8).

use super::InitiatorLimiters;
use super::limit::{Cost, Limit};
use super::rate_limiter::{InitiatorKey, RateLimiter, SessionLimiter};
use crate::memory::OwnerKey;
use crate::ranges::{RangeGuard, RangeLocks, RangeQueued};
use lunar_block::{BufferPool, MemoryCharge};
use lunar_iscsi::pdu::TaskAttribute;
use lunar_scsi::plan::LbaRange;
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// The whole line is one range: its head has it alone.
const HEAD: LbaRange = LbaRange { lba: 0, count: 1 };

/// Memory of a session at a unit with limits, once it has sent a command there: its line, and what
/// the limits know of its initiator and of its owner. 4,870 bytes were measured, with short names.
const LINE_BYTES: usize = 6 << 10;

/// There is no memory for another line.
#[derive(Debug)]
pub(crate) struct NoRoomForLine;

/// The limits of a unit.
#[derive(Debug, Default)]
pub(crate) struct UnitQuota {
    all: Arc<RateLimiter>,
    initiators: InitiatorLimiters,
}

impl UnitQuota {
    pub(crate) fn limit(&self) -> Limit {
        self.all.limit()
    }

    pub(crate) fn set_limit(&self, limit: Limit) {
        self.all.set(limit);
    }

    pub(crate) fn initiators(&self) -> &InitiatorLimiters {
        &self.initiators
    }

    fn is_limited(&self) -> bool {
        self.all.is_limited() || self.initiators.is_limited()
    }
}

/// What a session has to do with limits.
#[derive(Debug)]
pub(crate) struct SessionQuota {
    initiator: InitiatorKey,
    /// The session has a part of this owner's share of each limit.
    owner: OwnerKey,
    at_target: Arc<RateLimiter>,
    /// Lines are charged to it.
    memory: BufferPool,
    lines: Mutex<Vec<Arc<SessionQueue>>>,
    /// How many wait, at all units.
    waiting: Arc<AtomicUsize>,
}

impl SessionQuota {
    /// Of a session of this owner, whose initiator uses a target with these gates.
    pub(crate) fn new(
        initiator: InitiatorKey,
        owner: OwnerKey,
        target: &InitiatorLimiters,
        memory: BufferPool,
    ) -> Self {
        Self {
            at_target: target.of(&initiator),
            initiator,
            owner,
            memory,
            lines: Mutex::default(),
            waiting: Arc::default(),
        }
    }

    /// How many commands wait for a limit.
    pub(crate) fn waiting(&self) -> usize {
        self.waiting.load(SeqCst)
    }

    /// True if there is anything to wait for at a unit: a limit, or commands that wait already.
    #[inline]
    pub(crate) fn is_limited_at(&self, unit: &UnitQuota) -> bool {
        unit.is_limited() || self.at_target.is_limited() || self.waiting() > 0
    }

    /// The line at a unit, if a command of the session has been in it.
    pub(crate) fn known_line(&self, unit: &Arc<UnitQuota>) -> Option<Arc<SessionQueue>> {
        find(&self.lines(), unit)
    }

    /// The line at a unit, if there is memory for it.
    pub(crate) fn line(&self, unit: &Arc<UnitQuota>) -> Result<Arc<SessionQueue>, NoRoomForLine> {
        let mut lines = self.lines();
        if let Some(line) = find(&lines, unit) {
            return Ok(line);
        }
        let charge = self.memory.try_charge(LINE_BYTES).ok_or(NoRoomForLine)?;
        Ok(self.add_line(&mut lines, unit, charge))
    }

    /// The line at a unit, for a command that has begun.
    pub(crate) fn line_of_begun(&self, unit: &Arc<UnitQuota>) -> Arc<SessionQueue> {
        let mut lines = self.lines();
        let charge = || self.memory.charge(LINE_BYTES);
        find(&lines, unit).unwrap_or_else(|| self.add_line(&mut lines, unit, charge()))
    }

    fn add_line(
        &self,
        lines: &mut Vec<Arc<SessionQueue>>,
        unit: &Arc<UnitQuota>,
        charge: MemoryCharge,
    ) -> Arc<SessionQueue> {
        let gates = [
            unit.initiators.of(&self.initiator),
            Arc::clone(&self.at_target),
            Arc::clone(&unit.all),
        ];
        let line = Arc::new(SessionQueue {
            unit: Arc::clone(unit),
            order: Arc::default(),
            heads: Arc::default(),
            waiting: AtomicUsize::new(0),
            barriers: AtomicUsize::new(0),
            session_waiting: Arc::clone(&self.waiting),
            ways: gates.map(|gate| SessionLimiter::new(gate, &self.owner)),
            _charge: charge,
        });
        lines.push(Arc::clone(&line));
        line
    }

    fn lines(&self) -> MutexGuard<'_, Vec<Arc<SessionQueue>>> {
        self.lines.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn find(lines: &[Arc<SessionQueue>], unit: &Arc<UnitQuota>) -> Option<Arc<SessionQueue>> {
    lines.iter().find(|line| Arc::ptr_eq(&line.unit, unit)).cloned()
}

/// The commands of one session at one unit that wait.
#[derive(Debug)]
pub(crate) struct SessionQueue {
    unit: Arc<UnitQuota>,
    order: Arc<RangeLocks>,
    /// Held by those at the HEAD OF QUEUE that wait.
    heads: Arc<RangeLocks>,
    waiting: AtomicUsize,
    /// Those that nothing may pass.
    barriers: AtomicUsize,
    session_waiting: Arc<AtomicUsize>,
    /// Of the initiator at the unit, at the target; of all at the unit. One after the other, the
    /// last one being the one that most share.
    ways: [SessionLimiter; 3],
    _charge: MemoryCharge,
}

/// A command in line; it leaves when dropped.
#[derive(Debug)]
pub(crate) struct QueuedCommand {
    line: Arc<SessionQueue>,
    barrier: bool,
    queued: Option<RangeQueued>,
    first: Option<RangeGuard>,
    /// Of one at the HEAD OF QUEUE.
    at_head: Option<RangeQueued>,
    /// How many gates it has passed.
    passed: usize,
}

impl SessionQueue {
    /// Whether a command has to queue here before anyone looks at what it does.
    pub(crate) fn holds(&self, attribute: TaskAttribute) -> bool {
        match attribute {
            TaskAttribute::HEAD_OF_QUEUE => false,
            TaskAttribute::ORDERED => self.waiting.load(SeqCst) > 0,
            _ => self.barriers.load(SeqCst) > 0,
        }
    }

    /// Nobody waits.
    pub(crate) fn is_empty(&self) -> bool {
        self.waiting.load(SeqCst) == 0
    }

    /// Takes the last place, or the first for HEAD OF QUEUE. Before were `passed` gates.
    pub(crate) fn enter(
        self: &Arc<Self>,
        attribute: TaskAttribute,
        passed: usize,
    ) -> QueuedCommand {
        let at_head = attribute == TaskAttribute::HEAD_OF_QUEUE;
        let barrier = at_head || attribute == TaskAttribute::ORDERED;
        self.waiting.fetch_add(1, SeqCst);
        self.session_waiting.fetch_add(1, SeqCst);
        self.barriers.fetch_add(usize::from(barrier), SeqCst);
        let queued = if at_head { self.order.at_head(HEAD) } else { self.order.queue(HEAD, true) };
        QueuedCommand {
            line: Arc::clone(self),
            barrier,
            queued: Some(queued),
            first: None,
            at_head: at_head.then(|| self.heads.at_head(HEAD)),
            passed,
        }
    }

    /// Passes the gates as far as that needs no waiting; an error says how many.
    pub(crate) fn try_pass(&self, cost: Cost) -> Result<(), usize> {
        let mut ways = self.ways.iter().enumerate();
        ways.find(|(_, way)| !way.try_pass(cost)).map_or(Ok(()), |(passed, _)| Err(passed))
    }

    /// Pays for a part of a command that runs.
    pub(crate) async fn pay(&self, cost: Cost) {
        for way in &self.ways {
            way.pass(cost).await;
        }
    }
}

impl QueuedCommand {
    /// Waits until all who came before have gone.
    pub(crate) async fn first(&mut self) {
        if let Some(queued) = self.queued.take() {
            self.first = Some(queued.granted().await);
        }
    }

    /// Being the first, waits until it may go. Each gate is paid when it is passed.
    pub(crate) async fn pass(&mut self, cost: Cost) {
        self.first().await;
        for way in self.line.ways.iter().skip(self.passed) {
            way.pass(cost).await;
            self.passed += 1;
        }
        if self.at_head.is_none() {
            // Those that came to the head meanwhile go before it.
            drop(self.line.heads.lock(HEAD, true).await);
        }
    }
}

impl Drop for QueuedCommand {
    fn drop(&mut self) {
        self.line.barriers.fetch_sub(usize::from(self.barrier), SeqCst);
        self.line.waiting.fetch_sub(1, SeqCst);
        self.line.session_waiting.fetch_sub(1, SeqCst);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use lunar_block::{MemoryBudget, MemoryKind};

    /// Goal: a line is charged until its session is over; without memory there is no new one, but
    /// for a command that has begun, and those that there are go on.
    #[test]
    fn lines_are_charged() {
        const LIMIT: usize = 16 << 20;
        let budget = MemoryBudget::new(LIMIT);
        let pool = BufferPool::with_budget(&budget);
        let owner = Arc::default();
        let account = pool.account(&owner, MemoryKind::Session);
        let initiator = InitiatorKey { name: "iqn.a".to_owned(), origin: None };
        let of_address = OwnerKey::of_address(std::net::Ipv4Addr::LOCALHOST.into());
        let quota =
            SessionQuota::new(initiator, of_address, &InitiatorLimiters::default(), account);
        let units: [Arc<UnitQuota>; 3] = Default::default();
        assert!(!quota.is_limited_at(&units[0]) && quota.known_line(&units[0]).is_none());
        units[0].set_limit(Limit::new(Some(100), None).unwrap());
        assert!(quota.is_limited_at(&units[0]) && !quota.is_limited_at(&units[1]));
        let line = quota.line(&units[0]).unwrap();
        assert!(Arc::ptr_eq(&line, &quota.line(&units[0]).unwrap()), "one for each unit");
        assert_eq!(budget.usage().used_bytes, LINE_BYTES);
        let full = pool.charge(LIMIT);
        assert!(quota.line(&units[1]).is_err() && quota.known_line(&units[1]).is_none());
        assert!(quota.line(&units[0]).is_ok() && quota.known_line(&units[0]).is_some());
        drop(quota.line_of_begun(&units[2]));
        assert_eq!(budget.usage().used_bytes, LIMIT + 2 * LINE_BYTES);
        drop((full, line, quota));
        assert_eq!(budget.usage().used_bytes, 0);
    }
}
