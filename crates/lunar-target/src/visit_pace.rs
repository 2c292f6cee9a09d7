//! Pace of the functions that visit other sessions: resets, PREEMPT AND ABORT, TARGET COLD RESET.
//!
//! One function of a server visits at a time. Owners take turns, and the functions of one owner
//! take the owner's turns in the order of their arrival. An owner with a function at each of its
//! units delays a function of another owner by one turn of its own at a time. A turn covers several
//! visits, since each change of the function costs a pass through the queue of a core.
//!
//! A function that several owners wait for has turns of each of them ([`Visitor`]).

use crate::lock::lock;
use futures_util::task::AtomicWaker;
use lunar_net::OwnerId;
use std::collections::{BTreeMap, HashMap, HashSet};
use std::future::poll_fn;
use std::sync::{Arc, Mutex, MutexGuard};
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

/// Number of visits, and of tasks aborted in them, before other work of the core has its turn. Each
/// task makes work for its connection, which is done out of turn.
pub(crate) const VISITS_AT_ONCE: usize = 64;

/// Time of visits, before other work of the core has its turn.
const VISIT_TIME_MAX: Duration = Duration::from_micros(100);

/// Lets functions visit other sessions by turns, and yields to other work of the core in between.
/// Many functions do no more at once than one.
#[derive(Debug, Default)]
pub(crate) struct VisitPace {
    turns: Mutex<VisitTurns>,
}

/// A function that visits other sessions, and the owners that wait for it. It waits in the queue of
/// each of these owners and visits in each turn that one of them grants: the other functions of one
/// owner do not delay what another owner waits for, too.
#[derive(Debug, Default)]
pub(crate) struct Visitor {
    owners: Mutex<VisitorOwners>,
    /// Waker of the function while it waits for a turn.
    waker: AtomicWaker,
}

#[derive(Debug, Default)]
struct VisitorOwners {
    /// Each owner once, in the order of their arrival.
    in_order: Vec<OwnerId>,
    known: HashSet<OwnerId>,
}

#[derive(Debug, Default)]
struct VisitTurns {
    /// The function that has its turn, or is about to have it, and the owner whose turn it is.
    current: Option<(OwnerId, Arc<Visitor>)>,
    /// Work since the last yield, at the end of the last turn.
    spent: TimeSpent,
    /// Owners of the waiting functions, except the current one, by their positions.
    order: BTreeMap<u64, OwnerId>,
    /// Waiting functions of each owner. No queue is empty.
    queues: HashMap<OwnerId, OwnerQueue>,
    /// Number of positions given so far, in `order` and in the queues.
    positions: u64,
}

#[derive(Debug, Default)]
struct OwnerQueue {
    /// Position of the owner in the order of turns; `None` while it is the current one.
    position: Option<u64>,
    /// Functions by their positions, in the order of their arrival.
    visitors: BTreeMap<u64, Arc<Visitor>>,
}

/// Work since other work of the core had its turn.
#[derive(Clone, Copy, Debug, Default)]
struct TimeSpent {
    visits: usize,
    time: Duration,
}

/// A function that makes its visits. Its turn ends, and it leaves the queues, when this is dropped.
struct Visiting<'a> {
    pace: &'a VisitPace,
    visitor: &'a Arc<Visitor>,
    /// Positions of the function in the queues of its owners.
    positions: HashMap<OwnerId, u64>,
    /// Number of owners whose queues the function has entered.
    entered: usize,
    /// Work since the last yield, during a turn of the function.
    spent: Option<TimeSpent>,
}

impl Visitor {
    pub(crate) fn of(owner: OwnerId) -> Arc<Self> {
        let visitor = Arc::<Self>::default();
        visitor.add(owner);
        visitor
    }

    /// Adds an owner that waits for the function, which may have begun.
    pub(crate) fn add(&self, owner: OwnerId) {
        {
            let mut owners = lock(&self.owners);
            if !owners.known.insert(owner) {
                return;
            }
            owners.in_order.push(owner);
        }
        self.waker.wake();
    }
}

impl VisitPace {
    /// Makes visits, in turns of `owner`. `visit` returns the number of tasks that it aborted. The
    /// iterator is advanced only in these turns.
    pub(crate) async fn visit_all<V>(
        &self,
        owner: OwnerId,
        visits: impl IntoIterator<Item = V>,
        visit: impl FnMut(V) -> usize,
    ) {
        self.visit_all_as(&Visitor::of(owner), visits, visit).await;
    }

    /// Makes visits as [`Self::visit_all`] does, in turns of the owners of `visitor`, which makes
    /// no other visits at the same time.
    pub(crate) async fn visit_all_as<V>(
        &self,
        visitor: &Arc<Visitor>,
        visits: impl IntoIterator<Item = V>,
        mut visit: impl FnMut(V) -> usize,
    ) {
        let mut visits = visits.into_iter();
        let mut visiting = Visiting::new(self, visitor);
        loop {
            let spent = visiting.turn().await;
            if spent.is_half_over() {
                tokio::task::yield_now().await;
                *spent = TimeSpent::default();
            }
            let (began, spent_before) = (Instant::now(), spent.time);
            while !spent.is_over() {
                let Some(next) = visits.next() else { return };
                spent.visits += 1 + visit(next);
                spent.time = spent_before + began.elapsed();
            }
            visiting.end_turn();
        }
    }

    fn turns(&self) -> MutexGuard<'_, VisitTurns> {
        lock(&self.turns)
    }
}

impl<'a> Visiting<'a> {
    fn new(pace: &'a VisitPace, visitor: &'a Arc<Visitor>) -> Self {
        Self { pace, visitor, positions: HashMap::new(), entered: 0, spent: None }
    }

    /// Waits for the next turn of the function.
    async fn turn(&mut self) -> &mut TimeSpent {
        let spent = poll_fn(|context| self.poll_turn(context)).await;
        self.spent.insert(spent)
    }

    fn poll_turn(&mut self, context: &Context<'_>) -> Poll<TimeSpent> {
        self.visitor.waker.register(context.waker());
        let mut turns = self.pace.turns();
        {
            let owners = lock(&self.visitor.owners);
            for owner in &owners.in_order[self.entered..] {
                self.positions.insert(*owner, turns.enter(*owner, self.visitor));
            }
            self.entered = owners.in_order.len();
        }
        if turns.current.is_none() {
            turns.pass_on(); // to this function: no other one waits
        }
        let Some(owner) = turns.turn_of(self.visitor) else { return Poll::Pending };
        self.positions.remove(&owner);
        Poll::Ready(turns.spent)
    }

    /// Passes the turn on. The function goes to the end of the queue of the owner whose turn it
    /// was, and keeps its positions in the others.
    fn end_turn(&mut self) {
        let mut turns = self.pace.turns();
        if let Some(owner) = turns.turn_of(self.visitor) {
            self.positions.insert(owner, turns.enter(owner, self.visitor));
        }
        self.pass_on(turns);
    }

    /// Passes the turn on, if it is this function's.
    fn pass_on(&mut self, mut turns: MutexGuard<'_, VisitTurns>) {
        let spent = self.spent.take();
        if turns.turn_of(self.visitor).is_none() {
            return;
        }
        turns.spent = spent.unwrap_or(turns.spent);
        let next = turns.pass_on();
        drop(turns);
        if let Some(next) = next.filter(|next| !Arc::ptr_eq(next, self.visitor)) {
            next.waker.wake();
        }
    }
}

impl VisitTurns {
    fn next_position(&mut self) -> u64 {
        self.positions += 1;
        self.positions
    }

    /// Owner whose turn the function has.
    fn turn_of(&self, visitor: &Arc<Visitor>) -> Option<OwnerId> {
        let (owner, current) = self.current.as_ref()?;
        Arc::ptr_eq(current, visitor).then_some(*owner)
    }

    /// Gives the function the last position in the queue of `owner`.
    fn enter(&mut self, owner: OwnerId, visitor: &Arc<Visitor>) -> u64 {
        let position = self.next_position();
        let queue = self.queues.entry(owner).or_default();
        queue.visitors.insert(position, Arc::clone(visitor));
        let is_current = self.current.as_ref().is_some_and(|(current, _)| *current == owner);
        if queue.position.is_none() && !is_current {
            queue.position = Some(position);
            self.order.insert(position, owner);
        }
        position
    }

    /// Takes a position from the queue of `owner`.
    fn leave(&mut self, owner: OwnerId, position: u64) {
        let Some(queue) = self.queues.get_mut(&owner) else { return };
        queue.visitors.remove(&position);
        if queue.visitors.is_empty() {
            let in_order = queue.position.and_then(|position| self.order.remove(&position));
            debug_assert!(in_order.is_none_or(|removed| removed == owner));
            self.queues.remove(&owner);
        }
    }

    /// Ends the turn of the current owner, which goes behind the others if more of its functions
    /// wait. The first function of the next owner has its turn, and is returned.
    fn pass_on(&mut self) -> Option<Arc<Visitor>> {
        let position = self.next_position();
        if let Some((last, _)) = self.current.take()
            && let Some(queue) = self.queues.get_mut(&last)
        {
            queue.position = Some(position);
            self.order.insert(position, last);
        }
        let (_, owner) = self.order.pop_first()?;
        let queue = self.queues.get_mut(&owner)?;
        queue.position = None;
        let (_, visitor) = queue.visitors.pop_first()?;
        if queue.visitors.is_empty() {
            self.queues.remove(&owner);
        }
        self.current = Some((owner, Arc::clone(&visitor)));
        Some(visitor)
    }
}

impl TimeSpent {
    /// True if too little is left for a turn that is worth its wait.
    fn is_half_over(&self) -> bool {
        self.visits >= VISITS_AT_ONCE / 2 || self.time >= VISIT_TIME_MAX / 2
    }

    fn is_over(&self) -> bool {
        self.visits >= VISITS_AT_ONCE || self.time >= VISIT_TIME_MAX
    }
}

impl Drop for Visiting<'_> {
    fn drop(&mut self) {
        let mut turns = self.pace.turns();
        for (owner, position) in self.positions.drain() {
            turns.leave(owner, position);
        }
        self.pass_on(turns);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use futures_util::FutureExt;
    use std::cell::{Cell, RefCell};
    use std::rc::Rc;

    const OWNERS: [OwnerId; 2] = [OwnerId(1), OwnerId(2)];

    /// Fault: all functions of all owners took turns visit by visit. A reset that visited 640
    /// sessions waited for 640 visits of each of 256 resets of another owner.
    #[test]
    fn owners_take_turns_of_several_visits() {
        const VISITS: usize = 10 * VISITS_AT_ONCE;
        let pace = Rc::new(VisitPace::default());
        let log: Rc<RefCell<Vec<OwnerId>>> = Rc::default();
        let is_over = Rc::new(Cell::new(false));
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        let function = |owner: OwnerId, visits: usize| {
            let (pace, log, is_over) = (Rc::clone(&pace), Rc::clone(&log), Rc::clone(&is_over));
            async move {
                let visits = (0..visits).take_while(|_| !is_over.get());
                pace.visit_all(owner, visits, |_| {
                    log.borrow_mut().push(owner);
                    0
                })
                .await;
            }
        };
        let local = tokio::task::LocalSet::new();
        local.block_on(&runtime, async {
            let busy: Vec<_> = (0..256)
                .map(|_| tokio::task::spawn_local(function(OWNERS[0], usize::MAX)))
                .collect();
            tokio::task::yield_now().await;
            function(OWNERS[1], VISITS).await;
            is_over.set(true);
            for ends in busy {
                ends.await.unwrap();
            }
        });
        let log = log.take();
        let turns: Vec<(OwnerId, usize)> =
            log.chunk_by(|a, b| a == b).map(|turn| (turn[0], turn.len())).collect();
        let last = turns.iter().rposition(|(owner, _)| *owner == OWNERS[1]).unwrap();
        // The turns before the first visit and in between count. A turn that was cut short by its
        // time may follow on another of the same owner.
        let waits: Vec<_> =
            turns[1..last].iter().filter(|(owner, _)| *owner == OWNERS[0]).collect();
        assert!(waits.iter().all(|(_, visits)| *visits <= VISITS_AT_ONCE), "{turns:?}");
        assert!(turns.contains(&(OWNERS[1], VISITS_AT_ONCE)), "{turns:?}");
    }

    /// Goal: the functions of one owner visit in the order of their calls.
    #[test]
    fn functions_of_one_owner_run_in_order() {
        let (pace, log) = (VisitPace::default(), RefCell::new(Vec::new()));
        let of_owner = Visitor::of(OWNERS[0]);
        let mut turn = Visiting::new(&pace, &of_owner);
        assert!(turn.turn().now_or_never().is_some());
        let visit = |number: u32| {
            pace.visit_all(OWNERS[0], [number], |number| {
                log.borrow_mut().push(number);
                0
            })
        };
        let mut functions: Vec<_> = (0..10).map(|number| Box::pin(visit(number))).collect();
        assert!(functions.iter_mut().all(|function| function.now_or_never().is_none()));
        drop(turn);
        while !functions.is_empty() {
            functions.reverse(); // polled in any order
            functions.retain_mut(|function| function.now_or_never().is_none());
        }
        assert_eq!(log.take(), (0..10).collect::<Vec<_>>());
    }

    /// Goal: a function that waits no longer keeps no turn, before and after it was granted.
    #[test]
    fn a_dropped_function_releases_its_turn() {
        let pace = VisitPace::default();
        let visitors: Vec<_> = (0..5).map(|at| Visitor::of(OWNERS[at.min(1)])).collect();
        let mut functions: Vec<_> =
            visitors.iter().map(|visitor| Visiting::new(&pace, visitor)).collect();
        assert!(functions[0].turn().now_or_never().is_some());
        assert!(functions[1..].iter_mut().all(|other| other.turn().now_or_never().is_none()));
        drop(functions.remove(1));
        drop(functions.remove(0));
        drop(functions.remove(0)); // its turn is granted
        assert!(functions[0].turn().now_or_never().is_some(), "the turn is passed on");
        drop(functions);
        assert!(pace.is_unused());
    }

    /// Fault: a function visited in turns of the owner that came first, behind all its other
    /// functions, also when other owners waited for it.
    #[test]
    fn a_function_uses_turns_of_all_its_owners() {
        const BUSY: usize = 256;
        let pace = VisitPace::default();
        let visitors: Vec<_> = (0..BUSY).map(|_| Visitor::of(OWNERS[0])).collect();
        let mut busy: Vec<_> = visitors.iter().map(|busy| Visiting::new(&pace, busy)).collect();
        let has_turn = |function: &mut Visiting<'_>| function.turn().now_or_never().is_some();
        assert!(has_turn(&mut busy[0]));
        assert!(!busy[1..].iter_mut().any(has_turn));
        let awaited = Visitor::of(OWNERS[0]);
        let mut function = Visiting::new(&pace, &awaited);
        assert!(!has_turn(&mut function));
        awaited.add(OWNERS[1]);
        awaited.add(OWNERS[1]);
        assert!(!has_turn(&mut function));
        for at in 0..BUSY - 1 {
            busy[at].end_turn();
            assert!(has_turn(&mut function), "it has each turn of the owner that joined");
            function.end_turn();
            assert!(has_turn(&mut busy[at + 1]), "the functions of the first one go in order");
            assert!(!has_turn(&mut busy[at]) && !has_turn(&mut function));
        }
        busy[BUSY - 1].end_turn();
        assert!(has_turn(&mut function));
        function.end_turn();
        assert!(has_turn(&mut function), "it has kept its position in the first queue");
        drop(function);
        assert!(has_turn(&mut busy[0]), "it waits in no queue");
        drop(busy);
        assert!(pace.is_unused());
    }

    impl VisitPace {
        fn is_unused(&self) -> bool {
            let turns = self.turns();
            turns.current.is_none() && turns.order.is_empty() && turns.queues.is_empty()
        }
    }
}
