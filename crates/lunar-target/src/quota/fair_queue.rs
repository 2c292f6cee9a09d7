//! The waiters at a limit, in the order of their turns: start-time fair queueing on two levels.
//!
//! Owners take turns, and below each owner its sessions do. Owners are the same as for memory
//! (decision 095): the connections of one address, and of these the ones that have proven to be the
//! same user. Therefore more sessions do not give an owner a larger share of a limit.
//!
//! Each owner has a mark, and below it each of its sessions: the amount of the limit's time that it
//! has had. The waiter with the smallest mark goes first, so that a session with a deep queue takes
//! no more than one that has a single command at a time. An owner or a session that is new or was
//! away begins at the mark of the last one that went: it has saved up nothing, and waits for no
//! more than one turn of each other.

use super::limit::Cost;
use crate::memory::OwnerKey;
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::task::Waker;

/// Number of owners without a session whose marks are remembered: those that are furthest ahead of
/// the others. Otherwise an owner that logs in anew for each large command would not be charged for
/// any.
const REMEMBERED_OWNERS_MAX: usize = 256;

/// An owner in the queue of one limit.
#[derive(Clone, Copy, Debug, Eq, Hash, PartialEq, Ord, PartialOrd)]
pub(super) struct OwnerNumber(u64);

/// A position in the queue. Positions of an owner are ordered by the mark of their session, then by
/// arrival.
#[derive(Clone, Copy, Debug, Eq, PartialEq, Ord, PartialOrd)]
pub(super) struct QueuePosition {
    owner: OwnerNumber,
    mark: u64,
    arrival: u64,
}

/// A command that waits.
#[derive(Debug, Default)]
struct Waiter {
    waker: Option<Waker>,
    /// The cost of the command, once it has asked for its turn.
    cost: Option<Cost>,
}

/// The waiters of one owner.
#[derive(Debug)]
struct OwnerQueue {
    key: OwnerKey,
    sessions: usize,
    /// Amount of the limit's time that the owner has had.
    mark: u64,
    /// Tie-breaker between owners with the same mark: when this one went last, or began to wait.
    turn: u64,
    /// The largest mark that a session of the owner had when it went.
    session_mark: u64,
    waiting: BTreeMap<QueuePosition, Waiter>,
    /// Waiters that did not come when it was their turn; they are passed over.
    late: BTreeMap<QueuePosition, Waiter>,
}

/// The waiters of all owners at one limit.
#[derive(Debug, Default)]
pub(super) struct FairQueue {
    queues: HashMap<OwnerNumber, OwnerQueue>,
    numbers: HashMap<OwnerKey, OwnerNumber>,
    /// Owners that wait, by mark and turn.
    order: BTreeMap<(u64, u64), OwnerNumber>,
    /// Owners without a session, by mark.
    remembered: BTreeSet<(u64, OwnerNumber)>,
    /// The largest mark that an owner had when one of its sessions went.
    mark: u64,
    /// Last number given to an owner, an arrival or a turn.
    last_number: u64,
}

impl FairQueue {
    /// Adds a session of an owner; [`remove_session`](Self::remove_session) has to follow.
    pub(super) fn add_session(&mut self, key: &OwnerKey) -> OwnerNumber {
        let next = self.next_number();
        let number = *self.numbers.entry(key.clone()).or_insert(OwnerNumber(next));
        let queue = self.queues.entry(number).or_insert_with(|| OwnerQueue::new(key.clone(), next));
        if queue.sessions == 0 {
            self.remembered.remove(&(queue.mark, number));
        }
        queue.sessions += 1;
        number
    }

    /// Removes a session that has no waiters. An owner without sessions is forgotten as soon as a
    /// new one would begin with the same mark.
    pub(super) fn remove_session(&mut self, number: OwnerNumber) {
        let Some(queue) = self.queues.get_mut(&number) else { return };
        queue.sessions -= 1;
        if queue.sessions > 0 {
            return;
        }
        self.remembered.insert((queue.mark, number));
        while let Some(&(mark, number)) = self.remembered.first()
            && (mark <= self.mark || self.remembered.len() > REMEMBERED_OWNERS_MAX)
        {
            self.remembered.pop_first();
            if let Some(queue) = self.queues.remove(&number) {
                self.numbers.remove(&queue.key);
            }
        }
    }

    /// Adds a waiter for a session with this mark.
    pub(super) fn enter(&mut self, owner: OwnerNumber, mark: u64) -> QueuePosition {
        let arrival = self.next_number();
        let enter = |queue: &mut OwnerQueue| {
            if queue.waiting.is_empty() {
                queue.turn = arrival;
            }
            let position = QueuePosition { owner, mark: mark.max(queue.session_mark), arrival };
            queue.waiting.insert(position, Waiter::default());
            position
        };
        self.change(owner, enter).unwrap_or(QueuePosition { owner, mark, arrival })
    }

    /// Notes that the waiter has asked for its turn, with its cost.
    pub(super) fn set_cost(&mut self, position: QueuePosition, cost: Cost) {
        let set_cost = |queue: &mut OwnerQueue| {
            if let Some(waiter) = queue.late.remove(&position) {
                queue.waiting.insert(position, waiter);
            }
            if let Some(waiter) = queue.waiting.get_mut(&position) {
                waiter.cost = Some(cost);
            }
        };
        self.change(position.owner, set_cost);
    }

    /// Removes a waiter.
    pub(super) fn leave(&mut self, position: QueuePosition) {
        self.change(position.owner, |queue| {
            queue.waiting.remove(&position);
            queue.late.remove(&position);
        });
    }

    /// Passes over a waiter until it asks again.
    pub(super) fn set_late(&mut self, position: QueuePosition) {
        self.change(position.owner, |queue| {
            if let Some(waiter) = queue.waiting.remove(&position) {
                queue.late.insert(position, waiter);
            }
        });
    }

    /// Removes a waiter that goes now and takes this much of the limit's time. Returns the new mark
    /// of its session.
    pub(super) fn admit(&mut self, position: QueuePosition, nanos: u64) -> u64 {
        let turn = self.next_number();
        let admit = |queue: &mut OwnerQueue| {
            queue.waiting.remove(&position);
            queue.session_mark = queue.session_mark.max(position.mark);
            let mark = queue.mark;
            (queue.mark, queue.turn) = (mark.saturating_add(nanos), turn);
            mark
        };
        let mark = self.change(position.owner, admit).unwrap_or_default();
        self.mark = self.mark.max(mark);
        position.mark.saturating_add(nanos)
    }

    /// The next waiter, and the one that watches it: the first of the next owner, if there is
    /// another one.
    pub(super) fn first_two(&self) -> [Option<QueuePosition>; 2] {
        let mut owners = self.order.values().filter_map(|number| self.queues.get(number));
        let positions = |queue: &'_ OwnerQueue| -> [Option<QueuePosition>; 2] {
            let mut positions = queue.waiting.keys().copied();
            [positions.next(), positions.next()]
        };
        let [first, second] = owners.next().map_or([None; 2], positions);
        [first, owners.next().map_or(second, |queue| positions(queue)[0])]
    }

    /// True if there is no waiter; late ones do not count.
    pub(super) fn is_empty(&self) -> bool {
        self.order.is_empty()
    }

    /// The cost of a waiter that has asked for its turn.
    pub(super) fn cost(&self, position: QueuePosition) -> Option<Cost> {
        self.queues.get(&position.owner)?.waiting.get(&position)?.cost
    }

    /// Stores the waker of a waiter.
    pub(super) fn set_waker(&mut self, position: QueuePosition, waker: &Waker) {
        if let Some(waiter) = self.waiter(position) {
            waiter.waker = Some(waker.clone());
        }
    }

    /// Takes the waker of a waiter.
    pub(super) fn take_waker(&mut self, position: QueuePosition) -> Option<Waker> {
        self.waiter(position)?.waker.take()
    }

    /// Takes the wakers of all waiters, late ones as well.
    pub(super) fn take_wakers(&mut self) -> Vec<Waker> {
        let queues = self.queues.values_mut();
        let waiters =
            queues.flat_map(|queue| queue.waiting.values_mut().chain(queue.late.values_mut()));
        waiters.filter_map(|waiter| waiter.waker.take()).collect()
    }

    fn waiter(&mut self, position: QueuePosition) -> Option<&mut Waiter> {
        self.queues.get_mut(&position.owner)?.waiting.get_mut(&position)
    }

    /// Changes the queue of an owner, and updates the owner's position among the others.
    fn change<T>(
        &mut self,
        owner: OwnerNumber,
        change: impl FnOnce(&mut OwnerQueue) -> T,
    ) -> Option<T> {
        let queue = self.queues.get_mut(&owner)?;
        let has_waited = !queue.waiting.is_empty();
        if has_waited {
            self.order.remove(&(queue.mark, queue.turn));
        }
        let value = change(queue);
        if !queue.waiting.is_empty() {
            if !has_waited {
                queue.mark = queue.mark.max(self.mark);
            }
            self.order.insert((queue.mark, queue.turn), owner);
        }
        Some(value)
    }

    fn next_number(&mut self) -> u64 {
        self.last_number += 1;
        self.last_number
    }
}

impl OwnerQueue {
    fn new(key: OwnerKey, turn: u64) -> Self {
        let (waiting, late) = (BTreeMap::new(), BTreeMap::new());
        Self { key, sessions: 0, mark: 0, turn, session_mark: 0, waiting, late }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn owner(number: u32) -> OwnerKey {
        OwnerKey::of_address(std::net::Ipv4Addr::from(number).into())
    }

    /// Goal: marks of owners that are gone are remembered while they matter, and not all of them:
    /// addresses cost a peer nothing, but memory is limited.
    #[test]
    fn records_of_former_owners_are_bounded() {
        let mut queue = FairQueue::default();
        let logs_in = |queue: &mut FairQueue, number: u32| {
            let own = queue.add_session(&owner(number));
            let position = queue.enter(own, 0);
            queue.admit(position, number.into());
            queue.remove_session(own);
        };
        for number in 1..=3000 {
            logs_in(&mut queue, number);
        }
        assert_eq!(queue.queues.len(), REMEMBERED_OWNERS_MAX);
        assert_eq!(queue.numbers.len(), REMEMBERED_OWNERS_MAX);
        let ahead = queue.add_session(&owner(3000));
        assert_eq!((queue.queues[&ahead].mark, queue.remembered.len()), (3000, 255));
        let position = queue.enter(ahead, 0);
        queue.admit(position, 1);
        queue.remove_session(ahead);
        assert_eq!(queue.queues.len(), 1, "the others begin at mark 3000 in any case");
        assert!(queue.order.is_empty() && queue.remembered.len() == 1);
    }
}
