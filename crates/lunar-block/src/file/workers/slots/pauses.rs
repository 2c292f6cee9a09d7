//! Pauses of owners whose jobs compute for a long time without a break.
//!
//! A job that cannot be interrupted, such as a search for the end of gigabytes of data, keeps its
//! slot until it ends. Another owner that sends one request at a time would wait for such a job
//! with every request, because the slot becomes free between its requests. The owner of the long
//! job therefore pauses until each other owner could have used the slot for as long. Urgent jobs,
//! which other owners wait for, do not pause.

use super::super::queue::JobOwner;
use std::collections::HashMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// An owner needs the slots if its last job ended or was queued within this time.
const ACTIVE_TIME: Duration = Duration::from_millis(100);

/// Maximum length of a pause.
const PAUSE_MAX: Duration = Duration::from_secs(1);

/// The owners of recent jobs.
#[derive(Debug, Default)]
pub(super) struct OwnerPauses {
    /// Key: the address of the owner. The entry of a dropped owner expires like any other; until
    /// then it counts as one owner too many.
    owners: HashMap<usize, OwnerTimes>,
}

#[derive(Clone, Copy, Debug)]
struct OwnerTimes {
    /// Time at which the last job ended or was queued.
    active: Instant,
    paused_until: Instant,
}

impl OwnerPauses {
    /// Records that a job of this owner is queued.
    pub(super) fn queued(&mut self, owner: &JobOwner, now: Instant) {
        let new = OwnerTimes { active: now, paused_until: now };
        self.owners.entry(key(owner)).or_insert(new).active = now;
    }

    /// Records that a job of this owner has computed for `time`. The owner pauses if this is more
    /// than `slice`, and as long as there are other owners.
    pub(super) fn ended(
        &mut self,
        owner: &JobOwner,
        time: Duration,
        slice: Duration,
        now: Instant,
    ) {
        self.owners.retain(|_, times| {
            now.saturating_duration_since(times.active.max(times.paused_until)) < ACTIVE_TIME
        });
        self.queued(owner, now);
        let others = u32::try_from(self.owners.len() - 1).unwrap_or(u32::MAX);
        if time > slice
            && let Some(times) = self.owners.get_mut(&key(owner))
        {
            times.paused_until = now + time.saturating_mul(others).min(PAUSE_MAX);
        }
    }

    pub(super) fn is_paused(&self, owner: &JobOwner, now: Instant) -> bool {
        self.owners.get(&key(owner)).is_some_and(|times| now < times.paused_until)
    }

    /// Returns `true` if the owner has had a job recently.
    #[cfg(test)]
    pub(super) fn is_recorded(&self, owner: &JobOwner) -> bool {
        self.owners.contains_key(&key(owner))
    }
}

fn key(owner: &JobOwner) -> usize {
    owner.as_ref().map_or(0, |owner| Arc::as_ptr(owner).addr())
}

#[cfg(test)]
mod tests {
    use super::*;

    const SLICE: Duration = Duration::from_millis(1);

    /// Fault: alongside two GET LBA STATUS commands at a time, of a file with 4 GB of data, the
    /// rate of long reads of another host fell to 5 %. Goal: after a job of many slices its owner
    /// pauses, so that each other owner gets as much time. A short job, and a job without other
    /// owners, cause no pause.
    #[test]
    fn long_jobs_are_followed_by_a_pause() {
        let (mut pauses, begin) = (OwnerPauses::default(), Instant::now());
        let [one, other, third]: [JobOwner; 3] = [(); 3].map(|()| Some(Arc::default()));
        let at = |millis| begin + Duration::from_millis(millis);
        let long = Duration::from_millis(50);
        pauses.ended(&one, long, SLICE, at(0));
        assert!(!pauses.is_paused(&one, at(0)), "there is no other owner");
        pauses.queued(&other, at(10));
        pauses.ended(&one, long, SLICE, at(50));
        assert!(pauses.is_paused(&one, at(99)) && !pauses.is_paused(&one, at(100)));
        assert!(!pauses.is_paused(&other, at(50)));
        pauses.ended(&other, SLICE, SLICE, at(101));
        assert!(!pauses.is_paused(&other, at(101)), "it was short");
        pauses.queued(&third, at(110));
        pauses.ended(&one, long, SLICE, at(150));
        assert!(pauses.is_paused(&one, at(249)) && !pauses.is_paused(&one, at(250)));
        pauses.ended(&one, long, SLICE, at(400));
        assert!(!pauses.is_paused(&one, at(400)), "the others have had no jobs for long");
        assert_eq!(pauses.owners.len(), 1);
        pauses.queued(&other, at(500));
        pauses.ended(&one, 60 * PAUSE_MAX, SLICE, at(500));
        assert!(pauses.is_paused(&one, at(1499)) && !pauses.is_paused(&one, at(1500)), "bounded");
    }
}
