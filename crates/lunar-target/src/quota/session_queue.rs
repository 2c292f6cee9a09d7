//! Queue of the commands of one session at one unit that wait for a limit.
//!
//! They wait before they enter the unit's task set, so that they delay no command of another
//! session; they are checked again when they enter, like commands that have just arrived. Commands
//! that need not wait for a limit pass them, unless an ORDERED or HEAD OF QUEUE command is in
//! between (SAM-5 §8).

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

/// The range that stands for the whole queue: its head holds it alone.
const HEAD: LbaRange = LbaRange { lba: 0, count: 1 };

/// Memory of a session at a unit with limits, once it has sent a command there: its queue, and the
/// limiters' state for its initiator and its owner. 4,870 bytes were measured, with short names.
const SESSION_QUEUE_BYTES: usize = 6 << 10;

/// Error: there is no memory for another queue.
#[derive(Debug)]
pub(crate) struct QueueMemoryError;

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

/// Quota state of a session.
#[derive(Debug)]
pub(crate) struct SessionQuota {
    initiator: InitiatorKey,
    /// Owner whose share of each limit the session takes part in.
    owner: OwnerKey,
    at_target: Arc<RateLimiter>,
    /// Account to which queues are charged.
    memory: BufferPool,
    queues: Mutex<Vec<Arc<SessionQueue>>>,
    /// Number of waiting commands, at all units.
    waiting: Arc<AtomicUsize>,
}

impl SessionQuota {
    /// Quota of a session of this owner, whose initiator uses a target with these limiters.
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
            queues: Mutex::default(),
            waiting: Arc::default(),
        }
    }

    /// Number of commands that wait for a limit.
    pub(crate) fn waiting(&self) -> usize {
        self.waiting.load(SeqCst)
    }

    /// True if commands may have to wait at a unit: for a limit, or behind commands that wait
    /// already.
    #[inline]
    pub(crate) fn is_limited_at(&self, unit: &UnitQuota) -> bool {
        unit.is_limited() || self.at_target.is_limited() || self.waiting() > 0
    }

    /// The queue at a unit, if a command of the session has been in it.
    pub(crate) fn known_queue(&self, unit: &Arc<UnitQuota>) -> Option<Arc<SessionQueue>> {
        find(&self.queues(), unit)
    }

    /// The queue at a unit, if there is memory for it.
    pub(crate) fn queue(
        &self,
        unit: &Arc<UnitQuota>,
    ) -> Result<Arc<SessionQueue>, QueueMemoryError> {
        let mut queues = self.queues();
        if let Some(queue) = find(&queues, unit) {
            return Ok(queue);
        }
        let charge = self.memory.try_charge(SESSION_QUEUE_BYTES).ok_or(QueueMemoryError)?;
        Ok(self.add_queue(&mut queues, unit, charge))
    }

    /// The queue at a unit, for a command that has begun.
    pub(crate) fn queue_of_begun(&self, unit: &Arc<UnitQuota>) -> Arc<SessionQueue> {
        let mut queues = self.queues();
        let charge = || self.memory.charge(SESSION_QUEUE_BYTES);
        find(&queues, unit).unwrap_or_else(|| self.add_queue(&mut queues, unit, charge()))
    }

    fn add_queue(
        &self,
        queues: &mut Vec<Arc<SessionQueue>>,
        unit: &Arc<UnitQuota>,
        charge: MemoryCharge,
    ) -> Arc<SessionQueue> {
        let limiters = [
            unit.initiators.of(&self.initiator),
            Arc::clone(&self.at_target),
            Arc::clone(&unit.all),
        ];
        let queue = Arc::new(SessionQueue {
            unit: Arc::clone(unit),
            order: Arc::default(),
            heads: Arc::default(),
            waiting: AtomicUsize::new(0),
            barriers: AtomicUsize::new(0),
            session_waiting: Arc::clone(&self.waiting),
            limiters: limiters.map(|limiter| SessionLimiter::new(limiter, &self.owner)),
            _charge: charge,
        });
        queues.push(Arc::clone(&queue));
        queue
    }

    fn queues(&self) -> MutexGuard<'_, Vec<Arc<SessionQueue>>> {
        self.queues.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn find(queues: &[Arc<SessionQueue>], unit: &Arc<UnitQuota>) -> Option<Arc<SessionQueue>> {
    queues.iter().find(|queue| Arc::ptr_eq(&queue.unit, unit)).cloned()
}

/// The waiting commands of one session at one unit.
#[derive(Debug)]
pub(crate) struct SessionQueue {
    unit: Arc<UnitQuota>,
    order: Arc<RangeLocks>,
    /// Held by waiting HEAD OF QUEUE commands.
    heads: Arc<RangeLocks>,
    waiting: AtomicUsize,
    /// Number of commands that no other may pass.
    barriers: AtomicUsize,
    session_waiting: Arc<AtomicUsize>,
    /// Limiters of the initiator at the unit, of the initiator at the target, and of all initiators
    /// at the unit. A command passes them in this order, the most widely shared one last.
    limiters: [SessionLimiter; 3],
    _charge: MemoryCharge,
}

/// A command in the queue; it leaves when dropped.
#[derive(Debug)]
pub(crate) struct QueuedCommand {
    queue: Arc<SessionQueue>,
    barrier: bool,
    queued: Option<RangeQueued>,
    first: Option<RangeGuard>,
    /// Set for a HEAD OF QUEUE command.
    at_head: Option<RangeQueued>,
    /// Number of limiters that it has passed.
    passed: usize,
}

impl SessionQueue {
    /// True when a command has to queue here before its plan is checked.
    pub(crate) fn holds(&self, attribute: TaskAttribute) -> bool {
        match attribute {
            TaskAttribute::HEAD_OF_QUEUE => false,
            TaskAttribute::ORDERED => self.waiting.load(SeqCst) > 0,
            _ => self.barriers.load(SeqCst) > 0,
        }
    }

    /// True when no command waits.
    pub(crate) fn is_empty(&self) -> bool {
        self.waiting.load(SeqCst) == 0
    }

    /// Adds a command at the end, or at the front for HEAD OF QUEUE. It has passed `passed`
    /// limiters already.
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
            queue: Arc::clone(self),
            barrier,
            queued: Some(queued),
            first: None,
            at_head: at_head.then(|| self.heads.at_head(HEAD)),
            passed,
        }
    }

    /// Passes the limiters as far as no waiting is needed; the error is the number of those passed.
    pub(crate) fn try_pass(&self, cost: Cost) -> Result<(), usize> {
        let mut limiters = self.limiters.iter().enumerate();
        limiters
            .find(|(_, limiter)| !limiter.try_pass(cost))
            .map_or(Ok(()), |(passed, _)| Err(passed))
    }

    /// Charges a part of a running command.
    pub(crate) async fn charge(&self, cost: Cost) {
        for limiter in &self.limiters {
            limiter.pass(cost).await;
        }
    }
}

impl QueuedCommand {
    /// Waits until all earlier commands have gone.
    pub(crate) async fn first(&mut self) {
        if let Some(queued) = self.queued.take() {
            self.first = Some(queued.granted().await);
        }
    }

    /// Waits until the command is the first, and then until it may go. Each limiter is charged when
    /// it is passed.
    pub(crate) async fn pass(&mut self, cost: Cost) {
        self.first().await;
        for limiter in self.queue.limiters.iter().skip(self.passed) {
            limiter.pass(cost).await;
            self.passed += 1;
        }
        if self.at_head.is_none() {
            // Commands that came to the head meanwhile go before it.
            drop(self.queue.heads.lock(HEAD, true).await);
        }
    }
}

impl Drop for QueuedCommand {
    fn drop(&mut self) {
        self.queue.barriers.fetch_sub(usize::from(self.barrier), SeqCst);
        self.queue.waiting.fetch_sub(1, SeqCst);
        self.queue.session_waiting.fetch_sub(1, SeqCst);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use lunar_block::{MemoryBudget, MemoryKind};

    /// Goal: a queue is charged until its session ends; without memory no new queue is made, except
    /// for a command that has begun, and existing queues continue.
    #[test]
    fn queues_are_charged() {
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
        assert!(!quota.is_limited_at(&units[0]) && quota.known_queue(&units[0]).is_none());
        units[0].set_limit(Limit::new(Some(100), None).unwrap());
        assert!(quota.is_limited_at(&units[0]) && !quota.is_limited_at(&units[1]));
        let queue = quota.queue(&units[0]).unwrap();
        assert!(Arc::ptr_eq(&queue, &quota.queue(&units[0]).unwrap()), "one for each unit");
        assert_eq!(budget.usage().used_bytes, SESSION_QUEUE_BYTES);
        let full = pool.charge(LIMIT);
        assert!(quota.queue(&units[1]).is_err() && quota.known_queue(&units[1]).is_none());
        assert!(quota.queue(&units[0]).is_ok() && quota.known_queue(&units[0]).is_some());
        drop(quota.queue_of_begun(&units[2]));
        assert_eq!(budget.usage().used_bytes, LIMIT + 2 * SESSION_QUEUE_BYTES);
        drop((full, queue, quota));
        assert_eq!(budget.usage().used_bytes, 0);
    }
}
