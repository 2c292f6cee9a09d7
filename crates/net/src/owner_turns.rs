//! Turns of a core by owner: who has many connections has no more of the core than who has one.
//!
//! In a round each connection that has something to do gets its chance, and the sockets are looked
//! at once: a round ends when the runtime wakes those that yielded in it, or wakes up itself. The
//! connections of one owner have [`ROUND_TIME_MAX`] together in each round; those for whom nothing
//! is left come first in the next one, in the order in which they came.

use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, HashMap};
use std::future::poll_fn;
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
    static OWNERS: RefCell<Owners> = RefCell::default();
}

/// Those who have connections on this core.
#[derive(Debug, Default)]
struct Owners {
    places: HashMap<OwnerId, usize>,
    owners: Vec<Owner>,
    /// Places among them that nobody has.
    free: Vec<usize>,
}

/// What the connections of an owner have done on this core, and which of them wait.
#[derive(Debug, Default)]
struct Owner {
    connections: usize,
    /// The last round in which they worked.
    round: u64,
    /// For how long they worked in it.
    worked: Duration,
    /// Connections for which no time was left, by their tickets. Only the first one is woken.
    waiting: BTreeMap<u64, Option<Waker>>,
    next_ticket: u64,
}

/// The place of a connection among those of its owner. Without an owner it always has its turn, and
/// may move from thread to thread.
#[derive(Debug, Default)]
pub(crate) struct OwnerTurns(Option<(OwnerId, usize)>);

/// A place among the connections of an owner that wait; given up when dropped.
struct Ticket {
    owner: usize,
    number: u64,
}

impl OwnerTurns {
    /// The connection is of this owner from now on.
    pub(crate) fn set_owner(&mut self, owner: Option<OwnerId>) {
        if self.0.map(|(id, _)| id) != owner {
            self.leave();
            self.0 = owner.map(|id| (id, OWNERS.with_borrow_mut(|owners| owners.join(id))));
        }
    }

    /// Whether the connection may do something now: its owner has time, and no other one waits.
    pub(crate) fn may_go_on(&self) -> bool {
        let Some((_, owner)) = self.0 else { return true };
        with_owner(owner, |owner| owner.has_time() && owner.waiting.is_empty())
    }

    /// Waits until the connection may have its turn.
    pub(crate) async fn wait(&self) {
        let Some((_, owner)) = self.0 else { return };
        if self.may_go_on() {
            return;
        }
        let ticket = Ticket::take(owner);
        poll_fn(|context| ticket.poll_first(context)).await;
        while !with_owner(owner, |owner| owner.has_time()) {
            yield_for_round().await;
        }
    }

    /// The connection has worked for so long.
    pub(crate) fn count(&self, worked: Duration) {
        if let Some((_, owner)) = self.0 {
            with_owner(owner, |owner| {
                owner.worked = owner.worked() + worked;
                owner.round = ROUND.get();
            });
        }
    }

    /// Whether there is an owner for whom time is counted.
    pub(crate) fn are_counted(&self) -> bool {
        self.0.is_some()
    }

    fn leave(&mut self) {
        if let Some((id, owner)) = self.0.take() {
            // A thread that ends may have dropped the table before its connections.
            let _ = OWNERS.try_with(|owners| owners.borrow_mut().leave(id, owner));
        }
    }
}

impl Drop for OwnerTurns {
    fn drop(&mut self) {
        self.leave();
    }
}

fn with_owner<T>(owner: usize, act: impl FnOnce(&mut Owner) -> T) -> T {
    OWNERS.with_borrow_mut(|owners| act(&mut owners.owners[owner]))
}

impl Owners {
    fn join(&mut self, id: OwnerId) -> usize {
        let place = *self.places.entry(id).or_insert_with(|| {
            self.free.pop().unwrap_or_else(|| {
                self.owners.push(Owner::default());
                self.owners.len() - 1
            })
        });
        self.owners[place].connections += 1;
        place
    }

    fn leave(&mut self, id: OwnerId, place: usize) {
        self.owners[place].connections -= 1;
        if self.owners[place].connections == 0 {
            self.places.remove(&id);
            self.owners[place] = Owner::default();
            self.free.push(place);
        }
    }
}

impl Owner {
    /// For how long it worked in this round.
    fn worked(&self) -> Duration {
        if self.round == ROUND.get() { self.worked } else { Duration::ZERO }
    }

    fn has_time(&self) -> bool {
        self.worked() < ROUND_TIME_MAX
    }
}

impl Ticket {
    fn take(owner: usize) -> Self {
        let number = with_owner(owner, |owner| {
            owner.next_ticket += 1;
            owner.waiting.insert(owner.next_ticket, None);
            owner.next_ticket
        });
        Self { owner, number }
    }

    /// Ready when it is the first one.
    fn poll_first(&self, context: &Context<'_>) -> Poll<()> {
        let waker = context.waker().clone();
        let (poll, _dropped_late) = with_owner(self.owner, |owner| {
            if owner.waiting.first_key_value().is_some_and(|(first, _)| *first == self.number) {
                return (Poll::Ready(()), None);
            }
            (Poll::Pending, owner.waiting.insert(self.number, Some(waker)))
        });
        poll
    }
}

impl Drop for Ticket {
    fn drop(&mut self) {
        // A waker that is dropped may drop a connection, which needs the table.
        let wakers = OWNERS.try_with(|owners| {
            let waiting = &mut owners.borrow_mut().owners[self.owner].waiting;
            let removed = waiting.remove(&self.number);
            (removed, waiting.first_entry().and_then(|mut first| first.get_mut().take()))
        });
        if let Ok((_, Some(first))) = wakers {
            first.wake();
        }
    }
}

/// Whether no more than one owner has connections on this core.
pub(crate) fn is_core_of_one() -> bool {
    OWNERS.with_borrow(|owners| owners.places.len() <= 1)
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
    use std::rc::Rc;

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
            for waits in [&mut first, &mut second] {
                let poll = poll_fn(|context| Poll::Ready(waits.as_mut().poll(context)));
                assert!(poll.await.is_pending());
            }
            assert!(!third.may_go_on());
            drop(first);
            second.await;
            assert!(third.may_go_on(), "the round has time left");
            assert!(is_core_of_one());
            let stranger = of(2);
            assert!(!is_core_of_one());
            drop(stranger);
            assert!(is_core_of_one());
            drop((other, third));
            assert_eq!(OWNERS.with_borrow(|owners| owners.places.len()), 1);
        });
        assert_eq!(OWNERS.with_borrow(|owners| (owners.places.len(), owners.free.len())), (0, 2));
    }
}
