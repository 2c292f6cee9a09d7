//! Turns of a core by owner: who has many connections has no more of the core than who has one.
//!
//! In a round each connection that has something to do gets its chance, and the sockets are looked
//! at once: a round ends when the runtime wakes those that yielded in it. The connections of one
//! owner have [`ROUND_TIME_MAX`] together in each round; those for whom nothing is left come first
//! in the next one, in the order in which they came.

use std::cell::RefCell;
use std::collections::{HashMap, VecDeque};
use std::time::Duration;

/// How long the connections of one owner work in a round, if one turn does not take longer.
const ROUND_TIME_MAX: Duration = Duration::from_micros(250);

/// Whose connection it is, such as all those from one address; the same on all cores.
#[derive(Clone, Copy, Debug, Eq, Hash, PartialEq)]
pub struct OwnerId(pub usize);

thread_local! {
    static ROUND: RefCell<Round> = RefCell::default();
}

/// What the owners of a core have done since the sockets were looked at.
#[derive(Debug, Default)]
struct Round {
    number: u64,
    owners: HashMap<OwnerId, OwnerRound>,
    next_ticket: u64,
}

#[derive(Debug, Default)]
struct OwnerRound {
    worked: Duration,
    /// Connections for which no time was left, in the order in which they came.
    waiting: VecDeque<u64>,
}

/// A place among the connections of an owner that wait for the next round; given up when dropped.
struct Ticket {
    owner: OwnerId,
    number: u64,
}

/// Waits until a connection of `owner` may have its turn; returns whether it had to.
pub(crate) async fn wait_for_turn(owner: OwnerId) -> bool {
    if with_round(|round| round.may_begin(owner, None)) {
        return false;
    }
    let ticket = Ticket::take(owner);
    loop {
        yield_for_round().await;
        if with_round(|round| round.may_begin(owner, Some(ticket.number))) {
            return true;
        }
    }
}

/// A connection of `owner` has had its turn.
pub(crate) fn count_turn(owner: OwnerId, worked: Duration) {
    with_round(|round| round.owners.entry(owner).or_default().worked += worked);
}

/// Lets the other connections of the core have their turns, and the runtime look at the sockets.
pub(crate) async fn yield_for_round() {
    let number = with_round(|round| round.number);
    tokio::task::yield_now().await;
    with_round(|round| round.end(number));
}

fn with_round<T>(act: impl FnOnce(&mut Round) -> T) -> T {
    ROUND.with_borrow_mut(act)
}

impl Round {
    fn may_begin(&self, owner: OwnerId, ticket: Option<u64>) -> bool {
        let Some(owner) = self.owners.get(&owner) else { return true };
        owner.worked < ROUND_TIME_MAX && owner.waiting.front().copied() == ticket
    }

    /// The round of that number is over: the runtime has woken those that yielded in it.
    fn end(&mut self, number: u64) {
        if self.number != number {
            return;
        }
        self.number += 1;
        self.owners.retain(|_, owner| !owner.waiting.is_empty());
        self.owners.values_mut().for_each(|owner| owner.worked = Duration::ZERO);
    }
}

impl Ticket {
    fn take(owner: OwnerId) -> Self {
        with_round(|round| {
            let number = round.next_ticket;
            round.next_ticket += 1;
            round.owners.entry(owner).or_default().waiting.push_back(number);
            Self { owner, number }
        })
    }
}

impl Drop for Ticket {
    fn drop(&mut self) {
        with_round(|round| {
            if let Some(owner) = round.owners.get_mut(&self.owner) {
                owner.waiting.retain(|number| *number != self.number);
            }
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::rc::Rc;
    use std::task::{Context, Poll};

    /// Turns of 250 us each by connections that always have something to do, in their order.
    fn turns(connections: &[usize], turns: usize) -> Vec<(usize, usize)> {
        let log: Rc<RefCell<Vec<(usize, usize)>>> = Rc::default();
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        let local = tokio::task::LocalSet::new();
        for (connection, owner) in connections.iter().copied().enumerate() {
            let log = Rc::clone(&log);
            local.spawn_local(async move {
                while log.borrow().len() < turns {
                    wait_for_turn(OwnerId(owner)).await;
                    log.borrow_mut().push((owner, connection));
                    count_turn(OwnerId(owner), ROUND_TIME_MAX);
                    yield_for_round().await;
                }
            });
        }
        runtime.block_on(local);
        log.take()
    }

    /// Goal: an owner with one connection has as many turns as one with 20, and each of those has
    /// as many as the others. Named by: 64 sessions of one host that sent Text Requests left
    /// another host 93 requests a second of 50,000.
    #[test]
    fn owners_have_equal_turns() {
        let mut connections = vec![7; 20];
        connections.push(8);
        let log = turns(&connections, 400);
        let of = |is: &dyn Fn(&(usize, usize)) -> bool| log.iter().filter(|turn| is(turn)).count();
        assert!((195..=205).contains(&of(&|(owner, _)| *owner == 8)), "{log:?}");
        for connection in 0..20 {
            assert!(
                (9..=11).contains(&of(&|(_, its)| *its == connection)),
                "{connection} in {log:?}"
            );
        }
    }

    /// Goal: what is given up while it waits holds nobody up.
    #[test]
    fn a_connection_that_is_dropped_gives_its_place_up() {
        let owner = OwnerId(1);
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        runtime.block_on(async {
            count_turn(owner, ROUND_TIME_MAX);
            let mut waits = Box::pin(wait_for_turn(owner));
            let poll = |context: &mut Context<'_>| Poll::Ready(waits.as_mut().poll(context));
            assert!(std::future::poll_fn(poll).await.is_pending());
            drop(waits);
            assert!(wait_for_turn(owner).await);
            assert!(!wait_for_turn(owner).await, "the round has time left");
        });
    }
}
