//! The commands of one session at one unit that wait, in order.
//!
//! They wait before they enter the unit's task set, so that nobody else's command is kept waiting
//! by them; and are judged anew when they enter, as commands that have just come. What need not
//! wait for a limit goes past them, unless an ORDERED one or one at the HEAD OF QUEUE is in between
//! (SAM-5 §8).

use super::InitiatorGates;
use super::gate::{Gate, InitiatorKey, Way};
use super::limit::{Cost, Limit};
use crate::memory::OwnerKey;
use crate::ranges::{RangeGuard, RangeLocks, RangeQueued};
use lunar_iscsi::pdu::TaskAttribute;
use lunar_scsi::plan::LbaRange;
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// The whole line is one range: its head has it alone.
const HEAD: LbaRange = LbaRange { lba: 0, count: 1 };

/// The limits of a unit.
#[derive(Debug, Default)]
pub(crate) struct UnitQuota {
    all: Arc<Gate>,
    initiators: InitiatorGates,
}

impl UnitQuota {
    pub(crate) fn limit(&self) -> Limit {
        self.all.limit()
    }

    pub(crate) fn set_limit(&self, limit: Limit) {
        self.all.set(limit);
    }

    pub(crate) fn initiators(&self) -> &InitiatorGates {
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
    at_target: Arc<Gate>,
    lines: Mutex<Vec<Arc<Line>>>,
    /// How many wait, at all units.
    waiting: Arc<AtomicUsize>,
}

impl SessionQuota {
    /// Of a session of this owner, whose initiator uses a target with these gates.
    pub(crate) fn new(initiator: InitiatorKey, owner: OwnerKey, target: &InitiatorGates) -> Self {
        Self {
            at_target: target.of(&initiator),
            initiator,
            owner,
            lines: Mutex::default(),
            waiting: Arc::default(),
        }
    }

    /// How many commands wait for a limit.
    pub(crate) fn waiting(&self) -> usize {
        self.waiting.load(SeqCst)
    }

    /// The line at a unit, if there is anything to wait for: a limit, or those that wait already.
    #[inline]
    pub(crate) fn line(&self, unit: &Arc<UnitQuota>) -> Option<Arc<Line>> {
        if !unit.is_limited() && !self.at_target.is_limited() && self.waiting() == 0 {
            return None;
        }
        Some(self.found_line(unit))
    }

    fn found_line(&self, unit: &Arc<UnitQuota>) -> Arc<Line> {
        let mut lines = self.lines();
        if let Some(line) = lines.iter().find(|line| Arc::ptr_eq(&line.unit, unit)) {
            return Arc::clone(line);
        }
        let gates = [
            unit.initiators.of(&self.initiator),
            Arc::clone(&self.at_target),
            Arc::clone(&unit.all),
        ];
        let line = Arc::new(Line {
            unit: Arc::clone(unit),
            order: Arc::default(),
            heads: Arc::default(),
            waiting: AtomicUsize::new(0),
            barriers: AtomicUsize::new(0),
            session_waiting: Arc::clone(&self.waiting),
            ways: gates.map(|gate| Way::new(gate, &self.owner)),
        });
        lines.push(Arc::clone(&line));
        line
    }

    fn lines(&self) -> MutexGuard<'_, Vec<Arc<Line>>> {
        self.lines.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The commands of one session at one unit that wait.
#[derive(Debug)]
pub(crate) struct Line {
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
    ways: [Way; 3],
}

/// A command in line; it leaves when dropped.
#[derive(Debug)]
pub(crate) struct InLine {
    line: Arc<Line>,
    barrier: bool,
    queued: Option<RangeQueued>,
    first: Option<RangeGuard>,
    /// Of one at the HEAD OF QUEUE.
    at_head: Option<RangeQueued>,
    /// How many gates it has passed.
    passed: usize,
}

impl Line {
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
    pub(crate) fn enter(self: &Arc<Self>, attribute: TaskAttribute, passed: usize) -> InLine {
        let at_head = attribute == TaskAttribute::HEAD_OF_QUEUE;
        let barrier = at_head || attribute == TaskAttribute::ORDERED;
        self.waiting.fetch_add(1, SeqCst);
        self.session_waiting.fetch_add(1, SeqCst);
        self.barriers.fetch_add(usize::from(barrier), SeqCst);
        let queued = if at_head { self.order.at_head(HEAD) } else { self.order.queue(HEAD, true) };
        InLine {
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

impl InLine {
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

impl Drop for InLine {
    fn drop(&mut self) {
        self.line.barriers.fetch_sub(usize::from(self.barrier), SeqCst);
        self.line.waiting.fetch_sub(1, SeqCst);
        self.line.session_waiting.fetch_sub(1, SeqCst);
    }
}
