//! Pace of the functions that visit other sessions: resets, PREEMPT AND ABORT, TARGET COLD RESET.
//!
//! One function of a server visits at a time. Owners take turns, and the functions of one owner
//! take the owner's turns in the order of their arrival. An owner with a function at each of its
//! units delays a function of another owner by one turn of its own at a time. A turn covers several
//! visits, since each change of the function costs a pass through the queue of a core.

use lunar_net::OwnerId;
use std::collections::{HashMap, VecDeque};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};
use tokio::sync::oneshot;

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

#[derive(Debug, Default)]
struct VisitTurns {
    /// Owner of the function that has its turn, or is about to have it.
    current: Option<OwnerId>,
    /// Work since the last yield, while no function has its turn.
    spent: Spent,
    /// Owners of the waiting functions, except the current one, in the order of their turns.
    order: VecDeque<OwnerId>,
    /// Waiting functions of each owner, in the order of their arrival.
    waiting: HashMap<OwnerId, VecDeque<oneshot::Sender<Spent>>>,
}

/// Work since other work of the core had its turn.
#[derive(Clone, Copy, Debug, Default)]
struct Spent {
    visits: usize,
    time: Duration,
}

/// The turn of one function. The next function has its turn when this is dropped.
#[derive(Debug)]
struct VisitTurn<'a> {
    pace: &'a VisitPace,
    spent: Spent,
}

/// A function that waits for its turn.
struct Waiter<'a> {
    pace: &'a VisitPace,
    granted: oneshot::Receiver<Spent>,
}

impl VisitPace {
    /// Makes visits, in turns of `owner`. `visit` returns the number of tasks that it aborted. The
    /// iterator is advanced only in these turns.
    pub(crate) async fn visit_all<V>(
        &self,
        owner: OwnerId,
        visits: impl IntoIterator<Item = V>,
        mut visit: impl FnMut(V) -> usize,
    ) {
        let mut visits = visits.into_iter();
        loop {
            let mut turn = self.turn(owner).await;
            if turn.spent.is_half_over() {
                tokio::task::yield_now().await;
                turn.spent = Spent::default();
            }
            let (began, spent_before) = (Instant::now(), turn.spent.time);
            while !turn.spent.is_over() {
                let Some(next) = visits.next() else { return };
                turn.spent.visits += 1 + visit(next);
                turn.spent.time = spent_before + began.elapsed();
            }
        }
    }

    /// Waits for the next turn of a function of `owner`.
    async fn turn(&self, owner: OwnerId) -> VisitTurn<'_> {
        loop {
            let granted = {
                let mut turns = self.turns();
                if turns.current.is_none() {
                    turns.current = Some(owner);
                    return VisitTurn { pace: self, spent: turns.spent };
                }
                turns.enter(owner)
            };
            let mut waiter = Waiter { pace: self, granted };
            // An error only if a turn was lost with a panic.
            if let Ok(spent) = (&mut waiter.granted).await {
                return VisitTurn { pace: self, spent };
            }
        }
    }

    /// Grants the turn to the next function that still waits.
    fn pass_on(&self, mut spent: Spent) {
        loop {
            let next = {
                let mut turns = self.turns();
                let next = turns.leave_first();
                if next.is_none() {
                    turns.spent = spent;
                }
                next
            };
            let Some(next) = next else { return };
            match next.send(spent) {
                Ok(()) => return,
                Err(back) => spent = back, // the function waits no longer
            }
        }
    }

    fn turns(&self) -> MutexGuard<'_, VisitTurns> {
        self.turns.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl VisitTurns {
    fn enter(&mut self, owner: OwnerId) -> oneshot::Receiver<Spent> {
        let (grant, granted) = oneshot::channel();
        let of_owner = self.waiting.entry(owner).or_default();
        if of_owner.is_empty() && self.current != Some(owner) {
            self.order.push_back(owner);
        }
        of_owner.push_back(grant);
        granted
    }

    /// Ends the turn of the current owner, which goes behind the others if more of its functions
    /// wait. Removes the first function of the next owner.
    fn leave_first(&mut self) -> Option<oneshot::Sender<Spent>> {
        let last = self.current.take().filter(|last| self.waiting.contains_key(last));
        self.order.extend(last);
        let owner = self.order.pop_front()?;
        let of_owner = self.waiting.get_mut(&owner)?;
        let first = of_owner.pop_front();
        if of_owner.is_empty() {
            self.waiting.remove(&owner);
        }
        self.current = Some(owner);
        first
    }
}

impl Spent {
    /// True if too little is left for a turn that is worth its wait.
    fn is_half_over(&self) -> bool {
        self.visits >= VISITS_AT_ONCE / 2 || self.time >= VISIT_TIME_MAX / 2
    }

    fn is_over(&self) -> bool {
        self.visits >= VISITS_AT_ONCE || self.time >= VISIT_TIME_MAX
    }
}

impl Drop for VisitTurn<'_> {
    fn drop(&mut self) {
        self.pace.pass_on(self.spent);
    }
}

impl Drop for Waiter<'_> {
    fn drop(&mut self) {
        self.granted.close();
        if let Ok(spent) = self.granted.try_recv() {
            self.pace.pass_on(spent); // granted to a function that waits no longer
        }
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
        // What came before the first visit and in between; a turn that was cut short by its time
        // may follow on another of the same owner.
        let waits: Vec<_> =
            turns[1..last].iter().filter(|(owner, _)| *owner == OWNERS[0]).collect();
        assert!(waits.iter().all(|(_, visits)| *visits <= VISITS_AT_ONCE), "{turns:?}");
        assert!(turns.contains(&(OWNERS[1], VISITS_AT_ONCE)), "{turns:?}");
    }

    /// Goal: the functions of one owner visit in the order of their calls.
    #[test]
    fn functions_of_one_owner_go_in_order() {
        let (pace, log) = (VisitPace::default(), RefCell::new(Vec::new()));
        let turn = pace.turn(OWNERS[0]).now_or_never().unwrap();
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
    fn a_function_that_is_dropped_keeps_no_turn() {
        let pace = VisitPace::default();
        let turn = pace.turn(OWNERS[0]).now_or_never().unwrap();
        let mut waiting: Vec<_> = (0..4).map(|_| Box::pin(pace.turn(OWNERS[1]))).collect();
        assert!(waiting.iter_mut().all(|turn| turn.now_or_never().is_none()));
        drop(waiting.remove(0));
        drop(turn);
        drop(waiting.remove(0)); // its turn is granted
        let turn = (&mut waiting[0]).now_or_never().expect("the turn is passed on");
        drop((turn, waiting));
        assert!(pace.turn(OWNERS[0]).now_or_never().is_some());
        let turns = pace.turns();
        assert!(turns.current.is_none() && turns.order.is_empty() && turns.waiting.is_empty());
    }
}
