//! Turns of a core by owner: who has many connections has no more of the core than who has one.
//!
//! In a round each connection that has something to do gets its chance, and the sockets are looked
//! at once: a round ends when the runtime wakes those that yielded in it, or wakes up itself. The
//! connections of one owner have [`ROUND_TIME_MAX`] together in each round; those for whom nothing
//! is left come first in the next one, in the order in which they came.

use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, HashMap};
use std::future::poll_fn;
use std::rc::Rc;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

/// How long the connections of one owner work in a round, if one turn does not take longer. Others
/// wait for as long, which a request that is alone under way feels at once.
const ROUND_TIME_MAX: Duration = Duration::from_micros(100);

/// Whose connection it is, such as all those from one address; the same on all cores.
#[derive(Clone, Copy, Debug, Eq, Hash, PartialEq)]
pub struct OwnerId(pub usize);

thread_local! {
    /// The number of this core's round.
    static ROUND: Cell<u64> = const { Cell::new(0) };
    /// Those who have connections on this core.
    static OWNERS: RefCell<HashMap<OwnerId, Rc<Owner>>> = RefCell::default();
}

/// What the connections of an owner have done on this core, and which of them wait.
#[derive(Debug, Default)]
struct Owner {
    /// The last round in which they worked.
    round: Cell<u64>,
    /// For how long they worked in it.
    worked: Cell<Duration>,
    /// Connections for which no time was left, by their tickets. Only the first one is woken.
    waiting: RefCell<BTreeMap<u64, Option<Waker>>>,
    next_ticket: Cell<u64>,
}

/// The place of a connection among those of its owner. Without an owner it always has its turn.
#[derive(Debug, Default)]
pub(crate) struct OwnerTurns(Option<(OwnerId, Rc<Owner>)>);

/// A place among the connections of an owner that wait; given up when dropped.
struct Ticket<'a> {
    owner: &'a Owner,
    number: u64,
}

impl OwnerTurns {
    /// The connection is of this owner from now on.
    pub(crate) fn set_owner(&mut self, owner: Option<OwnerId>) {
        if self.0.as_ref().map(|(id, _)| *id) != owner {
            self.leave();
            self.0 = owner.map(|id| {
                let owners =
                    |owners: &mut HashMap<_, Rc<Owner>>| Rc::clone(owners.entry(id).or_default());
                (id, OWNERS.with_borrow_mut(owners))
            });
        }
    }

    /// Whether the connection may do something now: its owner has time, and no other one waits.
    pub(crate) fn may_go_on(&self) -> bool {
        let Some((_, owner)) = &self.0 else { return true };
        owner.has_time() && owner.waiting.borrow().is_empty()
    }

    /// Waits until the connection may have its turn.
    pub(crate) async fn wait(&self) {
        let Some((_, owner)) = &self.0 else { return };
        if self.may_go_on() {
            return;
        }
        let ticket = Ticket::take(owner);
        poll_fn(|context| owner.poll_first(ticket.number, context)).await;
        while !owner.has_time() {
            yield_for_round().await;
        }
    }

    /// The connection has worked for so long.
    pub(crate) fn count(&self, worked: Duration) {
        if let Some((_, owner)) = &self.0 {
            owner.worked.set(owner.worked() + worked);
            owner.round.set(ROUND.get());
        }
    }

    /// Whether there is an owner for whom time is counted.
    pub(crate) fn are_counted(&self) -> bool {
        self.0.is_some()
    }

    fn leave(&mut self) {
        let Some((id, owner)) = self.0.take() else { return };
        // The table and this one.
        if Rc::strong_count(&owner) <= 2 {
            // A thread that ends may have dropped the table before its connections.
            let _ = OWNERS.try_with(|owners| owners.borrow_mut().remove(&id));
        }
    }
}

impl Drop for OwnerTurns {
    fn drop(&mut self) {
        self.leave();
    }
}

impl Owner {
    /// For how long it worked in this round.
    fn worked(&self) -> Duration {
        if self.round.get() == ROUND.get() { self.worked.get() } else { Duration::ZERO }
    }

    fn has_time(&self) -> bool {
        self.worked() < ROUND_TIME_MAX
    }

    /// Ready when this ticket is the first one.
    fn poll_first(&self, number: u64, context: &Context<'_>) -> Poll<()> {
        let mut waiting = self.waiting.borrow_mut();
        if waiting.first_key_value().is_some_and(|(first, _)| *first == number) {
            return Poll::Ready(());
        }
        waiting.insert(number, Some(context.waker().clone()));
        Poll::Pending
    }
}

impl<'a> Ticket<'a> {
    fn take(owner: &'a Owner) -> Self {
        let number = owner.next_ticket.replace(owner.next_ticket.get() + 1);
        owner.waiting.borrow_mut().insert(number, None);
        Self { owner, number }
    }
}

impl Drop for Ticket<'_> {
    fn drop(&mut self) {
        let mut waiting = self.owner.waiting.borrow_mut();
        waiting.remove(&self.number);
        let first = waiting.first_entry().and_then(|mut first| first.get_mut().take());
        drop(waiting);
        if let Some(waker) = first {
            waker.wake();
        }
    }
}

/// Whether no more than one owner has connections on this core.
pub(crate) fn is_core_of_one() -> bool {
    OWNERS.with_borrow(|owners| owners.len() <= 1)
}

/// The runtime has looked at the sockets: the owners have their time again.
pub(crate) fn end_round() {
    ROUND.set(ROUND.get().wrapping_add(1));
}

/// Lets the other connections of the core have their turns, and the runtime look at the sockets.
pub(crate) async fn yield_for_round() {
    let number = ROUND.get();
    tokio::task::yield_now().await;
    // The first one that is woken ends the round.
    if ROUND.get() == number {
        end_round();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(owner: usize) -> OwnerTurns {
        let mut turns = OwnerTurns::default();
        turns.set_owner(Some(OwnerId(owner)));
        turns
    }

    /// Turns by connections that always have something to do, in their order, as (owner,
    /// connection); and how often they were polled.
    fn turns(connections: &[usize], turns: usize) -> (Vec<(usize, usize)>, usize) {
        let log: Rc<RefCell<Vec<(usize, usize)>>> = Rc::default();
        let polls: Rc<Cell<usize>> = Rc::default();
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        let local = tokio::task::LocalSet::new();
        for (connection, owner) in connections.iter().copied().enumerate() {
            let (log, polls) = (Rc::clone(&log), Rc::clone(&polls));
            local.spawn_local(async move {
                let turns_of_it = of(owner);
                while log.borrow().len() < turns {
                    let mut waits = std::pin::pin!(turns_of_it.wait());
                    poll_fn(|context| {
                        polls.set(polls.get() + 1);
                        waits.as_mut().poll(context)
                    })
                    .await;
                    log.borrow_mut().push((owner, connection));
                    turns_of_it.count(ROUND_TIME_MAX);
                    yield_for_round().await;
                }
            });
        }
        runtime.block_on(local);
        (log.take(), polls.get())
    }

    /// Goal: an owner with one connection has as many turns as one with 20, and each of those has
    /// as many as the others. Named by: 64 sessions of one host that sent Text Requests left
    /// another host 93 requests a second of 50,000.
    #[test]
    fn owners_have_equal_turns() {
        let mut connections = vec![7; 20];
        connections.push(8);
        let (log, _) = turns(&connections, 400);
        let of = |is: &dyn Fn(&(usize, usize)) -> bool| log.iter().filter(|turn| is(turn)).count();
        assert!((195..=205).contains(&of(&|(owner, _)| *owner == 8)), "{log:?}");
        for connection in 0..20 {
            assert!(
                (9..=11).contains(&of(&|(_, its)| *its == connection)),
                "{connection} in {log:?}"
            );
        }
    }

    /// Goal: those that wait behind others of their owner are not polled until it is their turn.
    /// Named by: 8,000 sessions of one host that had something to send; each round of a core
    /// polled them all, and left another host 2 % of its requests.
    #[test]
    fn who_waits_is_left_alone() {
        let (log, polls) = turns(&[7; 500], 2000);
        assert!(polls < 5 * log.len(), "{polls} polls");
    }

    /// Goal: what is given up while it waits holds nobody up, and an owner without connections is
    /// forgotten.
    #[test]
    fn a_connection_that_is_dropped_gives_its_place_up() {
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        runtime.block_on(async {
            let (one, other, third) = (of(1), of(1), of(1));
            one.count(ROUND_TIME_MAX);
            let mut first = Box::pin(one.wait());
            let mut second = Box::pin(other.wait());
            let mut last = tokio::spawn(async {}); // something for the runtime to do
            for waits in [&mut first, &mut second] {
                let poll = poll_fn(|context| Poll::Ready(waits.as_mut().poll(context)));
                assert!(poll.await.is_pending());
            }
            assert!(!third.may_go_on());
            drop(first);
            second.await;
            assert!(third.may_go_on(), "the round has time left");
            (&mut last).await.unwrap();
            assert!(is_core_of_one());
            let stranger = of(2);
            assert!(!is_core_of_one());
            drop(stranger);
            assert!(is_core_of_one());
            drop((other, third));
            assert_eq!(OWNERS.with_borrow(HashMap::len), 1);
        });
        assert_eq!(OWNERS.with_borrow(HashMap::len), 0);
    }
}
