//! Measures of contention: how much other owners use a device, and whether their commands take
//! longer when an owner has many commands in the device.

use std::time::Duration;
use tokio::time::Instant;

/// Time constant of [`BusyShare`]: an initiator that sends one command after another is idle
/// between two of them for much less.
const SHARE_TIME: Duration = Duration::from_millis(100);

/// Share below which an owner without commands is forgotten.
const FORGOTTEN_SHARE: f64 = 0.01;

/// Number of commands that are not counted when the limit has changed: they began behind the
/// commands that the other limit had allowed.
const SKIPPED: usize = 8;

/// Number of commands of which the median is taken.
const SAMPLES: usize = 16;

/// Commands wait for each other in the device if they take this many times as long.
const SLOWER: f64 = 1.5;

/// A result is used for this many times the time that the trial took, within the limits below.
const VALID_FACTOR: u32 = 8;
const VALID_MIN: Duration = Duration::from_secs(1);
const VALID_MAX: Duration = Duration::from_secs(10);

/// The share of recent time in which an owner had commands, weighted by age. A new owner counts
/// in full at first.
#[derive(Debug)]
pub(super) struct BusyShare {
    /// The share at `since`.
    share: f64,
    since: Instant,
    is_busy: bool,
}

impl BusyShare {
    pub(super) fn new(now: Instant) -> Self {
        Self { share: 1.0, since: now, is_busy: false }
    }

    /// Records whether the owner has commands from now on.
    pub(super) fn set(&mut self, is_busy: bool, now: Instant) {
        if self.is_busy != is_busy {
            *self = Self { share: self.at(now), since: now, is_busy };
        }
    }

    /// Returns the share, from 0 to 1.
    pub(super) fn at(&self, now: Instant) -> f64 {
        let limit = if self.is_busy { 1.0 } else { 0.0 };
        let age = now.saturating_duration_since(self.since);
        limit + (self.share - limit) * (-age.as_secs_f64() / SHARE_TIME.as_secs_f64()).exp()
    }

    pub(super) fn is_forgotten(&self, now: Instant) -> bool {
        !self.is_busy && self.at(now) < FORGOTTEN_SHARE
    }
}

/// A trial of the effect that many commands of one owner have on the commands of others.
///
/// A device that works on commands one after another serves nobody faster with many of them, but
/// makes each one wait longer: an owner with few commands gets less. If the time of a command is
/// latency, the number of other commands makes no difference, and a low limit only slows the
/// owner of many. The trial compares both: it takes the median time of commands of the owners with
/// fewer commands while the owner with most has few, and then while it has many. The owner with
/// most commands has no influence on the result.
#[derive(Debug, Default)]
pub(super) struct DepthTrial {
    phase: Phase,
    /// Begin of the trial; `None` before the first command.
    begun: Option<Instant>,
    /// Begin of the current limit.
    since: Option<Instant>,
    skipped: usize,
    times: Vec<Duration>,
}

#[derive(Clone, Copy, Debug, Default)]
enum Phase {
    /// Few commands of each owner are allowed.
    #[default]
    Few,
    /// Many commands are allowed; the median time of a command with few is this one.
    Many(Duration),
    /// The trial has ended; many commands are allowed if this is true, until the trial is repeated.
    Decided(bool, Instant),
}

impl DepthTrial {
    /// True while an owner may have many commands although others are active.
    pub(super) fn allows_many(&self, now: Instant) -> bool {
        match self.phase {
            Phase::Few => false,
            Phase::Many(_) => true,
            Phase::Decided(many, until) => many && now < until,
        }
    }

    /// Records a command that ran from `began` to `now`, of an owner beside one that has at least
    /// as many and would have more.
    pub(super) fn record(&mut self, began: Instant, now: Instant) {
        if let Phase::Decided(_, until) = self.phase {
            if now < until {
                return;
            }
            *self = Self { begun: Some(now), ..Self::default() };
            self.enter(Phase::Few, now);
        }
        let since = *self.since.get_or_insert(began);
        let trial_begun = *self.begun.get_or_insert(began);
        if began < since {
            return;
        }
        if self.skipped < SKIPPED {
            self.skipped += 1;
            return;
        }
        self.times.push(now.saturating_duration_since(began));
        if self.times.len() < SAMPLES {
            return;
        }
        self.times.sort_unstable();
        let median = self.times[SAMPLES / 2];
        match self.phase {
            Phase::Few => self.enter(Phase::Many(median), now),
            Phase::Many(few) => {
                let many = median <= few.mul_f64(SLOWER);
                let took = now.saturating_duration_since(trial_begun);
                let valid = took.saturating_mul(VALID_FACTOR).clamp(VALID_MIN, VALID_MAX);
                self.enter(Phase::Decided(many, now + valid), now);
            }
            Phase::Decided(..) => {}
        }
    }

    fn enter(&mut self, phase: Phase, now: Instant) {
        self.phase = phase;
        self.since = Some(now);
        self.skipped = 0;
        self.times.clear();
    }
}
