//! Whose turn it is at a limit, as a plain value: start-time fair queueing.
//!
//! Each who comes (a session at a unit) has a mark: how much of the limit's time it has had. The
//! one with the least goes first, so that one with a deep queue takes no more than one that has a
//! single command at a time, and one that was away does not save up for later.

use super::bucket::Bucket;
use super::limit::{Cost, Limit};
use std::collections::BTreeMap;
use std::task::Waker;
use wire::Time;

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

/// A limit and those that wait at it.
#[derive(Debug, Default)]
pub(super) struct Turns {
    commands: Option<Bucket>,
    bytes: Option<Bucket>,
    waiting: BTreeMap<Place, Option<Waker>>,
    arrivals: u64,
    /// The mark of the last that went.
    mark: u64,
}

impl Turns {
    /// Another limit from now on. Returns who should look again.
    pub(super) fn set(&mut self, limit: Limit, now: Time) -> Vec<Waker> {
        set_bucket(&mut self.commands, limit.iops(), now);
        set_bucket(&mut self.bytes, limit.bytes_per_second(), now);
        self.waiting.values_mut().filter_map(Option::take).collect()
    }

    /// Whether one could go at once that is not waiting yet: then it has paid.
    pub(super) fn try_go(&mut self, mark: u64, cost: Cost, now: Time) -> Option<u64> {
        if !self.waiting.is_empty() || self.ready_at(cost, now) > now {
            return None;
        }
        Some(self.go(mark, cost, now))
    }

    /// Takes a place for one with this mark.
    pub(super) fn enter(&mut self, mark: u64) -> Place {
        let place = Place { mark: mark.max(self.mark), arrival: self.arrivals };
        self.arrivals += 1;
        self.waiting.insert(place, None);
        place
    }

    /// Asks for the turn; who does not get it leaves its waker.
    pub(super) fn ask(&mut self, place: Place, cost: Cost, now: Time, waker: &Waker) -> Turn {
        let ready_at = self.ready_at(cost, now);
        let is_first = self.waiting.first_key_value().is_some_and(|(first, _)| *first == place);
        if is_first && ready_at <= now {
            let mark = self.go(place.mark, cost, now);
            self.waiting.remove(&place);
            return Turn::Go(mark);
        }
        if let Some(left) = self.waiting.get_mut(&place) {
            *left = Some(waker.clone());
        }
        if is_first { Turn::At(ready_at) } else { Turn::Behind }
    }

    /// Gives a place up.
    pub(super) fn leave(&mut self, place: Place) {
        self.waiting.remove(&place);
    }

    /// The one whose turn is next, to be woken whenever somebody goes, comes or leaves.
    pub(super) fn next(&mut self) -> Option<Waker> {
        self.waiting.first_entry().and_then(|mut first| first.get_mut().take())
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

    #[test]
    fn who_leaves_lets_the_next_go() {
        let mut turns = turns(Some(10), None);
        let first = turns.enter(0);
        let second = turns.enter(0);
        assert_eq!(turns.ask(second, ONE, at(0), Waker::noop()), Turn::Behind);
        assert!(turns.try_go(0, ONE, at(0)).is_none(), "not past those that wait");
        turns.leave(first);
        assert!(turns.next().is_some(), "the second is to be woken");
        assert!(matches!(turns.ask(second, ONE, at(0), Waker::noop()), Turn::Go(_)));
        assert!(turns.waiting.is_empty() && turns.next().is_none());
        // A burst of one: the next has to wait for its tenth of a second.
        let third = turns.enter(0);
        let Turn::At(time) = turns.ask(third, ONE, at(0), Waker::noop()) else { panic!() };
        assert!(time > at(0) && time <= at(101));
        assert_eq!(turns.set(Limit::NONE, at(0)).len(), 1);
        assert!(matches!(turns.ask(third, ONE, at(0), Waker::noop()), Turn::Go(_)), "no limit");
    }
}
