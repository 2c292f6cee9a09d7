//! Scheduler of the waiters at a limit, as a plain value. [`FairQueue`] defines the order of
//! waiters, and buckets the time.
//!
//! Each waiter is polled on its own core. A core that is blocked, as by a write that does not
//! return from the system, must not delay the others: the second waiter watches the first, and goes
//! before the first if that does not come.

use super::bucket::Bucket;
use super::fair_queue::{FairQueue, OwnerNumber, QueuePosition};
use super::limit::{Cost, Limit};
use crate::memory::OwnerKey;
use lunar_wire::Time;
use std::task::Waker;
use std::time::Duration;

/// Time that the waiter whose turn it is may take to come.
const GRACE: Duration = Duration::from_millis(20);

/// Answer to a waiter that asks for its turn.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) enum SchedulerAnswer {
    /// The waiter may go, and has been charged; with the new mark of its session.
    Go(u64),
    /// The turn of the waiter comes at this time.
    At(Time),
    /// Another waiter is ahead: this one will be woken.
    Behind,
}

/// A limit and its waiters.
#[derive(Debug, Default)]
pub(super) struct FairScheduler {
    commands: Option<Bucket>,
    bytes: Option<Bucket>,
    queue: FairQueue,
    /// The waiter whose turn it is, and since when.
    due: Option<(QueuePosition, Time)>,
}

impl FairScheduler {
    /// Changes the limit from now on. Returns the wakers of the waiters that must ask again.
    pub(super) fn set(&mut self, limit: Limit, now: Time) -> Vec<Waker> {
        set_bucket(&mut self.commands, limit.iops(), now);
        set_bucket(&mut self.bytes, limit.bytes_per_second(), now);
        self.queue.take_wakers()
    }

    /// Adds a session of an owner; [`remove_session`](Self::remove_session) has to follow.
    pub(super) fn add_session(&mut self, owner: &OwnerKey) -> OwnerNumber {
        self.queue.add_session(owner)
    }

    /// Removes a session that does not wait.
    pub(super) fn remove_session(&mut self, owner: OwnerNumber) {
        self.queue.remove_session(owner);
    }

    /// Charges a session with this mark, which is not waiting, if it can go at once; returns its
    /// new mark.
    pub(super) fn try_admit(
        &mut self,
        owner: OwnerNumber,
        mark: u64,
        cost: Cost,
        now: Time,
    ) -> Option<u64> {
        if !self.queue.is_empty() || self.ready_at(cost, now) > now {
            return None;
        }
        let position = self.queue.enter(owner, mark);
        Some(self.admit(position, cost, now))
    }

    /// Adds a waiter for a session with this mark.
    pub(super) fn enter(&mut self, owner: OwnerNumber, mark: u64) -> QueuePosition {
        self.queue.enter(owner, mark)
    }

    /// Asks for the turn of a waiter; its waker is stored if it has to wait.
    pub(super) fn request_turn(
        &mut self,
        position: QueuePosition,
        cost: Cost,
        now: Time,
        waker: &Waker,
    ) -> SchedulerAnswer {
        let ready_at = self.ready_at(cost, now);
        self.queue.set_cost(position, cost);
        let until = match self.queue.first_two() {
            [Some(first), _] if first == position => {
                // The waiter has come: it is not late, however long the limit delays it.
                self.due = None;
                ready_at
            }
            [Some(first), Some(second)] if second == position => self.watch(first, ready_at, now),
            _ => {
                self.queue.set_waker(position, waker);
                return SchedulerAnswer::Behind;
            }
        };
        if until <= now {
            return SchedulerAnswer::Go(self.admit(position, cost, now));
        }
        self.queue.set_waker(position, waker);
        SchedulerAnswer::At(until)
    }

    /// Time at which the second waiter goes before the first, unless the first has gone by then.
    fn watch(&mut self, first: QueuePosition, ready_at: Time, now: Time) -> Time {
        let first_at = self.queue.cost(first).map_or(now, |cost| self.ready_at(cost, now));
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
            self.queue.set_late(first);
            return ready_at;
        }
        ready_at.max(since.after(GRACE))
    }

    /// Removes a waiter.
    pub(super) fn leave(&mut self, position: QueuePosition) {
        self.queue.leave(position);
    }

    /// Wakers of the next waiter and of the one that watches it, to be woken whenever a waiter
    /// goes, comes or leaves.
    pub(super) fn next(&mut self) -> Vec<Waker> {
        let next = self.queue.first_two().into_iter().flatten();
        next.filter_map(|position| self.queue.take_waker(position)).collect()
    }

    fn ready_at(&mut self, cost: Cost, now: Time) -> Time {
        let commands = self.commands.as_mut().filter(|_| cost.commands > 0);
        let bytes = self.bytes.as_mut().filter(|_| cost.bytes > 0);
        let commands = commands.map_or(now, |bucket| bucket.ready_at(now));
        commands.max(bytes.map_or(now, |bucket| bucket.ready_at(now)))
    }

    fn admit(&mut self, position: QueuePosition, cost: Cost, now: Time) -> u64 {
        let mut time = 0;
        for (bucket, units) in [(&mut self.commands, cost.commands), (&mut self.bytes, cost.bytes)]
        {
            if let Some(bucket) = bucket {
                bucket.take(units, now);
                let nanos = u64::try_from(bucket.time_of(units).as_nanos()).unwrap_or(u64::MAX);
                time = nanos.max(time);
            }
        }
        self.queue.admit(position, time)
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

    fn turns(iops: Option<u64>, bytes: Option<u64>) -> FairScheduler {
        let mut turns = FairScheduler::default();
        turns.set(Limit::new(iops, bytes).unwrap(), at(0));
        turns
    }

    const ONE: Cost = Cost { commands: 1, bytes: 4096 };

    /// Adds a session of the owner with this number.
    fn session(turns: &mut FairScheduler, owner: u32) -> OwnerNumber {
        turns.add_session(&OwnerKey::of_address(std::net::Ipv4Addr::from(owner).into()))
    }

    /// Adds a waiter for the only session of an owner.
    fn enter(turns: &mut FairScheduler, owner: u32) -> QueuePosition {
        let session = session(turns, owner);
        turns.enter(session, 0)
    }

    /// Runs sessions of different owners that always have a next command, until `until`; returns
    /// the number of commands of each.
    fn run(turns: &mut FairScheduler, costs: &[Cost], until: Time) -> Vec<u64> {
        let sessions: Vec<_> = costs.iter().enumerate().map(|(at, cost)| (at, *cost)).collect();
        run_owners(turns, &sessions, at(0), until)
    }

    /// Runs sessions of the owners with these numbers that always have a next command. Returns the
    /// number of commands of each session.
    fn run_owners(
        turns: &mut FairScheduler,
        sessions: &[(usize, Cost)],
        mut now: Time,
        until: Time,
    ) -> Vec<u64> {
        let owners: Vec<_> =
            sessions.iter().map(|(owner, _)| session(turns, *owner as u32)).collect();
        let mut done = vec![0; sessions.len()];
        let mut positions: Vec<_> = owners.iter().map(|owner| turns.enter(*owner, 0)).collect();
        while now < until {
            let mut wake = until;
            let mut any = false;
            for (source, (_, cost)) in sessions.iter().enumerate() {
                match turns.request_turn(positions[source], *cost, now, Waker::noop()) {
                    SchedulerAnswer::Go(mark) => {
                        done[source] += 1;
                        positions[source] = turns.enter(owners[source], mark);
                        any = true;
                    }
                    SchedulerAnswer::At(time) => wake = wake.min(time),
                    SchedulerAnswer::Behind => {}
                }
            }
            if !any {
                assert!(wake > now, "no waiter is released, and no time is known");
                now = wake;
            }
        }
        positions.into_iter().for_each(|position| turns.leave(position));
        owners.into_iter().for_each(|owner| turns.remove_session(owner));
        done
    }

    /// Goal: an owner that moves much with each command and one that moves little get the same
    /// share of the bandwidth, whatever the order of asking.
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

    /// Fault: sessions and not owners had equal shares of a limit. Beside 2,000 sessions of one
    /// address, another host completed 2 of 5,000 commands a second at a unit with a limit, and
    /// each of its commands took 3.2 s. Method: 50 sessions.
    #[test]
    fn a_limit_is_shared_by_owners_whatever_their_sessions() {
        let mut turns = turns(Some(1000), None);
        let mut sessions = vec![(1, ONE); 50];
        sessions.push((2, ONE));
        let done = run_owners(&mut turns, &sessions, at(0), at(3_000));
        let (of_one, of_other) = (&done[..50], done[50]);
        let sum: u64 = of_one.iter().sum();
        assert!(of_other.abs_diff(sum) <= 1, "{of_other} of the other host, {sum} of the first");
        assert!(sum + of_other >= 3_000, "{sum} + {of_other}: the rate is used up");
        let (least, most) = (of_one.iter().min().unwrap(), of_one.iter().max().unwrap());
        assert!(most - least <= 1, "sessions of one owner: {least} to {most}");
    }

    /// Goal: sessions of one owner share by time, not by commands, as owners do.
    #[test]
    fn sessions_of_an_owner_share_its_share_evenly() {
        let large = Cost { commands: 1, bytes: 1 << 20 };
        let mut turns = turns(None, Some(100 << 20));
        let sessions = [(1, large), (1, ONE), (2, ONE)];
        let done = run_owners(&mut turns, &sessions, at(0), at(10_000));
        let bytes = [done[0] << 20, done[1] << 12, done[2] << 12];
        assert!(bytes[0].abs_diff(bytes[1]) <= 2 << 20, "{bytes:?}");
        assert!((bytes[0] + bytes[1]).abs_diff(bytes[2]) <= 2 << 20, "{bytes:?}");
    }

    /// Goal: an owner that logs in anew for each large command is charged for it all the same.
    #[test]
    fn a_new_login_gives_an_owner_no_advantage() {
        let large = Cost { commands: 1, bytes: 64 << 20 };
        let mut turns = turns(None, Some(100 << 20));
        let (mut now, mut bytes) = (at(0), [0; 2]);
        let steady = session(&mut turns, 1);
        let mut steady_position = turns.enter(steady, 0);
        let mut other = session(&mut turns, 2);
        let mut other_position = turns.enter(other, 0);
        while now < at(20_000) {
            let mut wake = at(20_000);
            match turns.request_turn(steady_position, ONE, now, Waker::noop()) {
                SchedulerAnswer::Go(mark) => {
                    bytes[0] += ONE.bytes;
                    steady_position = turns.enter(steady, mark);
                    continue;
                }
                SchedulerAnswer::At(time) => wake = wake.min(time),
                SchedulerAnswer::Behind => {}
            }
            match turns.request_turn(other_position, large, now, Waker::noop()) {
                SchedulerAnswer::Go(_) => {
                    bytes[1] += large.bytes;
                    turns.remove_session(other);
                    other = session(&mut turns, 2);
                    other_position = turns.enter(other, 0);
                    continue;
                }
                SchedulerAnswer::At(time) => wake = wake.min(time),
                SchedulerAnswer::Behind => {}
            }
            now = wake;
        }
        assert!(bytes[0].abs_diff(bytes[1]) <= 2 * large.bytes, "{bytes:?}");
    }

    /// Goal: an owner or a session that was away for long, or is new, gets no precedence for its
    /// absence, and the others get none over it.
    #[test]
    fn absence_is_not_saved_up() {
        let mut turns = turns(Some(1000), None);
        let sessions = [(1, ONE), (1, ONE), (2, ONE)];
        let away = session(&mut turns, 1);
        run_owners(&mut turns, &sessions, at(0), at(10_000));
        let sessions = [(1, ONE), (1, ONE), (2, ONE), (3, ONE), (3, ONE)];
        let done = run_owners(&mut turns, &sessions, at(10_000), at(13_000));
        let expected = [500, 500, 1000, 500, 500];
        for (count, expected) in done.iter().zip(expected) {
            assert!(count.abs_diff(expected) <= 2, "{done:?}");
        }
        turns.remove_session(away);
    }

    /// Goal: a waiter that does not come when it is its turn, because its core is blocked, delays
    /// the others only for a moment; when it comes it is the first again.
    #[test]
    fn absent_waiters_are_skipped() {
        // All of one owner, each of another one, or mixed.
        for owners in [[1; 5], [1, 2, 3, 4, 5], [1, 1, 2, 2, 2]] {
            let mut turns = turns(Some(100), None);
            let stuck = enter(&mut turns, owners[0]);
            let new = session(&mut turns, owners[3]);
            let first = turns.try_admit(new, 0, ONE, at(0));
            assert!(first.is_none(), "not past one that has only just come");
            let others = [enter(&mut turns, owners[1]), enter(&mut turns, owners[2])];
            let watcher = usize::from(owners[1] == owners[0] && owners[2] != owners[0]);
            let (watcher, other) = (others[watcher], others[1 - watcher]);
            let SchedulerAnswer::At(time) = turns.request_turn(watcher, ONE, at(0), Waker::noop())
            else {
                panic!()
            };
            assert!(time <= at(50), "{time:?}");
            assert!(matches!(
                turns.request_turn(watcher, ONE, time, Waker::noop()),
                SchedulerAnswer::Go(_)
            ));
            let next = turns.request_turn(other, ONE, time, Waker::noop());
            assert!(
                matches!(next, SchedulerAnswer::Go(_)),
                "the waiter is not awaited a second time"
            );
            assert!(
                turns.try_admit(new, 0, ONE, time).is_some(),
                "and no waiter that has just arrived"
            );
            let last = enter(&mut turns, owners[4]);
            let later = time.after(Duration::from_secs(1));
            assert!(
                matches!(
                    turns.request_turn(stuck, ONE, later, Waker::noop()),
                    SchedulerAnswer::Go(_)
                ),
                "first"
            );
            assert!(matches!(
                turns.request_turn(last, ONE, later, Waker::noop()),
                SchedulerAnswer::Go(_)
            ));
            assert!(turns.queue.is_empty());
        }
    }

    /// Fault: if the limit delayed a waiter for longer than the time that it may take to come, the
    /// next one went before it when both came at the same moment.
    #[test]
    fn a_waiter_that_is_present_is_not_skipped() {
        let mut turns = turns(Some(10), None);
        let new = session(&mut turns, 1);
        let two = Cost { commands: 2, bytes: 0 };
        assert!(turns.try_admit(new, 0, two, at(0)).is_some(), "one command of debt: 100 ms");
        let (first, second) = (enter(&mut turns, 2), enter(&mut turns, 3));
        let SchedulerAnswer::At(_) = turns.request_turn(second, ONE, at(0), Waker::noop()) else {
            panic!()
        };
        let SchedulerAnswer::At(time) = turns.request_turn(first, ONE, at(0), Waker::noop()) else {
            panic!()
        };
        assert!(
            matches!(turns.request_turn(second, ONE, time, Waker::noop()), SchedulerAnswer::At(_)),
            "overtakes"
        );
        assert!(matches!(
            turns.request_turn(first, ONE, time, Waker::noop()),
            SchedulerAnswer::Go(_)
        ));
    }

    #[test]
    fn a_dropped_waiter_releases_the_next() {
        let mut turns = turns(Some(10), None);
        let first = enter(&mut turns, 1);
        let second = enter(&mut turns, 2);
        assert!(
            matches!(turns.request_turn(second, ONE, at(0), Waker::noop()), SchedulerAnswer::At(_)),
            "it watches"
        );
        let third = enter(&mut turns, 3);
        assert_eq!(turns.request_turn(third, ONE, at(0), Waker::noop()), SchedulerAnswer::Behind);
        turns.leave(third);
        let new = session(&mut turns, 4);
        assert!(turns.try_admit(new, 0, ONE, at(0)).is_none(), "not past those that wait");
        turns.leave(first);
        assert_eq!(turns.next().len(), 1, "the second is to be woken");
        assert!(matches!(
            turns.request_turn(second, ONE, at(0), Waker::noop()),
            SchedulerAnswer::Go(_)
        ));
        assert!(turns.queue.is_empty() && turns.next().is_empty());
        // A burst of one command: the next has to wait for a tenth of a second.
        let third = enter(&mut turns, 3);
        let SchedulerAnswer::At(time) = turns.request_turn(third, ONE, at(0), Waker::noop()) else {
            panic!()
        };
        assert!(time > at(0) && time <= at(101));
        assert_eq!(turns.set(Limit::NONE, at(0)).len(), 1);
        assert!(
            matches!(turns.request_turn(third, ONE, at(0), Waker::noop()), SchedulerAnswer::Go(_)),
            "no limit"
        );
    }
}
