//! Whose turn it is at a limit, as a plain value: start-time fair queueing.
//!
//! Each who comes (a session at a unit) has a mark: how much of the limit's time it has had. The
//! one with the least goes first, so that one with a deep queue takes no more than one that has a
//! single command at a time, and one that was away does not save up for later.
//!
//! Each is asked on its own core. A core that is held up, as by a write that the system does not
//! return from, must not hold up the others: the second watches the first, and goes before it when
//! it does not come.

use super::bucket::Bucket;
use super::limit::{Cost, Limit};
use std::collections::BTreeMap;
use std::task::Waker;
use std::time::Duration;
use wire::Time;

/// How long the one whose turn it is may take to come.
const GRACE: Duration = Duration::from_millis(20);

/// A place among those that wait: by the time had, then by arrival.
#[derive(Clone, Copy, Debug, Eq, PartialEq, Ord, PartialOrd)]
pub(super) struct Place {
    mark: u64,
    arrival: u64,
}

/// What the one that waits is told.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) enum Turn {
    /// It may go, and has paid; this is its mark from now on.
    Go(u64),
    /// Its turn comes then.
    At(Time),
    /// Somebody is before it: it will be woken.
    Behind,
}

/// One that waits.
#[derive(Debug, Default)]
struct Waiter {
    waker: Option<Waker>,
    /// What it pays, once it has asked.
    cost: Option<Cost>,
    /// It did not come when it was its turn: until it does, it is as if it were not there.
    late: bool,
}

/// A limit and those that wait at it.
#[derive(Debug, Default)]
pub(super) struct Turns {
    commands: Option<Bucket>,
    bytes: Option<Bucket>,
    waiting: BTreeMap<Place, Waiter>,
    /// The one whose turn it is, and since when that is known.
    due: Option<(Place, Time)>,
    arrivals: u64,
    /// The mark of the last that went.
    mark: u64,
}

impl Turns {
    /// Another limit from now on. Returns who should look again.
    pub(super) fn set(&mut self, limit: Limit, now: Time) -> Vec<Waker> {
        set_bucket(&mut self.commands, limit.iops(), now);
        set_bucket(&mut self.bytes, limit.bytes_per_second(), now);
        self.waiting.values_mut().filter_map(|waiter| waiter.waker.take()).collect()
    }

    /// Whether one could go at once that is not waiting yet: then it has paid.
    pub(super) fn try_go(&mut self, mark: u64, cost: Cost, now: Time) -> Option<u64> {
        if self.waiting.values().any(|waiter| !waiter.late) || self.ready_at(cost, now) > now {
            return None;
        }
        Some(self.go(mark, cost, now))
    }

    /// Takes a place for one with this mark.
    pub(super) fn enter(&mut self, mark: u64) -> Place {
        let place = Place { mark: mark.max(self.mark), arrival: self.arrivals };
        self.arrivals += 1;
        self.waiting.insert(place, Waiter::default());
        place
    }

    /// Asks for the turn; who does not get it leaves its waker.
    pub(super) fn ask(&mut self, place: Place, cost: Cost, now: Time, waker: &Waker) -> Turn {
        let ready_at = self.ready_at(cost, now);
        if let Some(own) = self.waiting.get_mut(&place) {
            (own.late, own.cost) = (false, Some(cost));
        }
        let until = match self.ahead_of(place) {
            [None, _] => ready_at,
            [Some(first), None] => self.watch(first, ready_at, now),
            _ => {
                self.leave_waker(place, waker);
                return Turn::Behind;
            }
        };
        if until <= now {
            let mark = self.go(place.mark, cost, now);
            self.waiting.remove(&place);
            return Turn::Go(mark);
        }
        self.leave_waker(place, waker);
        Turn::At(until)
    }

    /// The first two of those that go before `place`.
    fn ahead_of(&self, place: Place) -> [Option<Place>; 2] {
        let before = self.waiting.range(..place).filter(|(_, waiter)| !waiter.late);
        let mut before = before.map(|(place, _)| *place);
        [before.next(), before.next()]
    }

    /// When the second goes before the first, unless the first goes until then.
    fn watch(&mut self, first: Place, ready_at: Time, now: Time) -> Time {
        let cost = self.waiting.get(&first).and_then(|waiter| waiter.cost);
        let first_at = cost.map_or(now, |cost| self.ready_at(cost, now));
        if first_at > now {
            self.due = None;
            return ready_at.max(first_at.after(GRACE));
        }
        let since = match self.due {
            Some((due, since)) if due == first => since,
            _ => now,
        };
        self.due = Some((first, since));
        if since.after(GRACE) <= now {
            if let Some(waiter) = self.waiting.get_mut(&first) {
                waiter.late = true;
            }
            return ready_at;
        }
        ready_at.max(since.after(GRACE))
    }

    fn leave_waker(&mut self, place: Place, waker: &Waker) {
        if let Some(own) = self.waiting.get_mut(&place) {
            own.waker = Some(waker.clone());
        }
    }

    /// Gives a place up.
    pub(super) fn leave(&mut self, place: Place) {
        self.waiting.remove(&place);
    }

    /// The one whose turn is next, and the one that watches it: to be woken whenever somebody
    /// goes, comes or leaves.
    pub(super) fn next(&mut self) -> Vec<Waker> {
        let waiting = self.waiting.values_mut().filter(|waiter| !waiter.late);
        waiting.take(2).filter_map(|waiter| waiter.waker.take()).collect()
    }

    fn ready_at(&mut self, cost: Cost, now: Time) -> Time {
        let commands = self.commands.as_mut().filter(|_| cost.commands > 0);
        let bytes = self.bytes.as_mut().filter(|_| cost.bytes > 0);
        let commands = commands.map_or(now, |bucket| bucket.ready_at(now));
        commands.max(bytes.map_or(now, |bucket| bucket.ready_at(now)))
    }

    fn go(&mut self, mark: u64, cost: Cost, now: Time) -> u64 {
        self.mark = self.mark.max(mark);
        let mut time = 0;
        for (bucket, units) in [(&mut self.commands, cost.commands), (&mut self.bytes, cost.bytes)]
        {
            if let Some(bucket) = bucket {
                bucket.take(units, now);
                let nanos = u64::try_from(bucket.time_of(units).as_nanos()).unwrap_or(u64::MAX);
                time = nanos.max(time);
            }
        }
        self.mark.saturating_add(time)
    }
}

fn set_bucket(bucket: &mut Option<Bucket>, per_second: Option<u64>, now: Time) {
    match (bucket.as_mut(), per_second) {
        (Some(bucket), Some(rate)) => bucket.set_rate(rate, now),
        (None, Some(rate)) => *bucket = Some(Bucket::new(rate, now)),
        (_, None) => *bucket = None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(millis: u64) -> Time {
        Time::from_nanos(millis * 1_000_000)
    }

    fn turns(iops: Option<u64>, bytes: Option<u64>) -> Turns {
        let mut turns = Turns::default();
        turns.set(Limit::new(iops, bytes).unwrap(), at(0));
        turns
    }

    const ONE: Cost = Cost { commands: 1, bytes: 4096 };

    /// Runs sources that always have a next command, for so long; what each has done.
    fn run(turns: &mut Turns, costs: &[Cost], until: Time) -> Vec<u64> {
        let mut now = at(0);
        let mut done = vec![0; costs.len()];
        let mut places: Vec<_> = costs.iter().map(|_| turns.enter(0)).collect();
        while now < until {
            let mut wake = until;
            let mut any = false;
            for (source, cost) in costs.iter().enumerate() {
                match turns.ask(places[source], *cost, now, Waker::noop()) {
                    Turn::Go(mark) => {
                        done[source] += 1;
                        places[source] = turns.enter(mark);
                        any = true;
                    }
                    Turn::At(time) => wake = wake.min(time),
                    Turn::Behind => {}
                }
            }
            if !any {
                assert!(wake > now, "nobody goes, and nobody says when");
                now = wake;
            }
        }
        done
    }

    /// Goal: who moves much with each command and who moves little get the same share of the
    /// bandwidth, whatever the order of asking.
    #[test]
    fn shares_are_of_time_not_of_commands() {
        let large = Cost { commands: 1, bytes: 1 << 20 };
        let mut turns = turns(None, Some(100 << 20));
        let done = run(&mut turns, &[large, ONE], at(10_000));
        let bytes = [done[0] << 20, done[1] << 12];
        assert!(bytes[0].abs_diff(bytes[1]) <= 2 << 20, "{bytes:?}");
        let all = bytes[0] + bytes[1];
        assert!(all.abs_diff(1000 << 20) <= (5 << 20) + (2 << 20), "{all}: the rate is used up");
    }

    #[test]
    fn commands_are_shared_evenly() {
        let mut turns = turns(Some(1000), None);
        let done = run(&mut turns, &[ONE; 4], at(10_000));
        assert!(done.iter().all(|count| count.abs_diff(2_512) <= 2), "{done:?}");
    }

    /// Goal: who was away for long is not let before all others for as long.
    #[test]
    fn absence_is_not_saved_up() {
        let mut turns = turns(Some(1000), None);
        run(&mut turns, &[ONE], at(10_000));
        let waiting = turns.waiting.keys().next().unwrap().mark;
        let new = turns.enter(0);
        let second = turns.enter(turns.mark);
        assert!(new.mark >= turns.mark && new < second);
        assert!(waiting - new.mark <= 1_000_000, "at most one command before the other");
    }

    /// Goal: one that does not come when it is its turn, because its core is held up, holds up
    /// nobody for longer than a moment; when it comes it is the first again.
    #[test]
    fn who_does_not_come_is_passed() {
        let mut turns = turns(Some(100), None);
        let stuck = turns.enter(0);
        let first = turns.try_go(0, ONE, at(0));
        assert!(first.is_none(), "not past one that has only just come");
        let others = [turns.enter(0), turns.enter(0)];
        let Turn::At(time) = turns.ask(others[0], ONE, at(0), Waker::noop()) else { panic!() };
        assert!(time <= at(50), "{time:?}");
        assert!(matches!(turns.ask(others[0], ONE, time, Waker::noop()), Turn::Go(_)));
        let next = turns.ask(others[1], ONE, time, Waker::noop());
        assert!(matches!(next, Turn::Go(_)), "nobody waits for it a second time");
        assert!(turns.try_go(0, ONE, time).is_some(), "nor who has just come");
        let last = turns.enter(0);
        let later = time.after(Duration::from_secs(1));
        assert!(matches!(turns.ask(stuck, ONE, later, Waker::noop()), Turn::Go(_)), "it is first");
        assert!(matches!(turns.ask(last, ONE, later, Waker::noop()), Turn::Go(_)));
        assert!(turns.waiting.is_empty());
    }

    #[test]
    fn who_leaves_lets_the_next_go() {
        let mut turns = turns(Some(10), None);
        let first = turns.enter(0);
        let second = turns.enter(0);
        assert!(matches!(turns.ask(second, ONE, at(0), Waker::noop()), Turn::At(_)), "it watches");
        let third = turns.enter(0);
        assert_eq!(turns.ask(third, ONE, at(0), Waker::noop()), Turn::Behind);
        turns.leave(third);
        assert!(turns.try_go(0, ONE, at(0)).is_none(), "not past those that wait");
        turns.leave(first);
        assert_eq!(turns.next().len(), 1, "the second is to be woken");
        assert!(matches!(turns.ask(second, ONE, at(0), Waker::noop()), Turn::Go(_)));
        assert!(turns.waiting.is_empty() && turns.next().is_empty());
        // A burst of one: the next has to wait for its tenth of a second.
        let third = turns.enter(0);
        let Turn::At(time) = turns.ask(third, ONE, at(0), Waker::noop()) else { panic!() };
        assert!(time > at(0) && time <= at(101));
        assert_eq!(turns.set(Limit::NONE, at(0)).len(), 1);
        assert!(matches!(turns.ask(third, ONE, at(0), Waker::noop()), Turn::Go(_)), "no limit");
    }
}
