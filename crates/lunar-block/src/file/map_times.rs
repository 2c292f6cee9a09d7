//! The maps that a device has made lately, by their blocks, and whether they were short.

use crate::BlockRange;
use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// Time after which a short map may have become long, because data was written.
const SHORT_TIME: Duration = Duration::from_secs(10);

/// Maximum number of short maps that are known; the oldest is forgotten for another one.
const KNOWN_MAX: usize = 256;

/// The short maps of a device.
///
/// The time of a map depends on the data behind its first block, not on who asks: a server that
/// exports disks to many hosts sends short and long maps as one owner. A map that was short when it
/// was last made therefore does not wait for long ones, and has a slot of its own. Once it may be
/// long: it may have waited for the file's lock while a long map was made, which takes processor
/// time.
#[derive(Debug, Default)]
pub(super) struct MapTimes(Mutex<HashMap<MapKey, ShortMap>>);

#[derive(Clone, Copy, Debug)]
struct ShortMap {
    made: Instant,
    /// True if it was long since.
    was_long: bool,
}

/// The request for a map: its range, and the maximum number of extents.
type MapKey = (u64, u64, usize);

impl MapTimes {
    /// Returns `true` if this map was short one of the last two times, and that not long ago.
    pub(super) fn is_short(&self, range: BlockRange, extents_max: usize) -> bool {
        let known = self.known().get(&key(range, extents_max)).copied();
        known.is_some_and(|short| short.made.elapsed() < SHORT_TIME)
    }

    /// Records the time of this map.
    pub(super) fn record(&self, range: BlockRange, extents_max: usize, is_short: bool) {
        let mut known = self.known();
        let key = key(range, extents_max);
        if !is_short {
            match known.get_mut(&key) {
                Some(short) if !short.was_long => short.was_long = true,
                _ => _ = known.remove(&key),
            }
            return;
        }
        if known.len() >= KNOWN_MAX && !known.contains_key(&key) {
            let oldest = known.iter().min_by_key(|(_, short)| short.made).map(|(key, _)| *key);
            oldest.and_then(|oldest| known.remove(&oldest));
        }
        known.insert(key, ShortMap { made: Instant::now(), was_long: false });
    }

    fn known(&self) -> MutexGuard<'_, HashMap<MapKey, ShortMap>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn key(range: BlockRange, extents_max: usize) -> MapKey {
    (range.lba, range.count, extents_max)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal: a map is short if it was short lately, until it is long twice; few maps are known.
    #[test]
    fn known_maps_are_bounded() {
        let times = MapTimes::default();
        let range = |lba: usize| BlockRange::new(lba as u64, 8);
        assert!(!times.is_short(range(0), 1));
        for lba in 0..=KNOWN_MAX {
            times.record(range(lba), 1, true);
        }
        assert!(!times.is_short(range(0), 1), "the oldest is forgotten");
        assert!(times.is_short(range(KNOWN_MAX), 1) && !times.is_short(range(KNOWN_MAX), 2));
        for is_short in [false, true, false] {
            times.record(range(1), 1, is_short);
            assert!(times.is_short(range(1), 1));
        }
        times.record(range(1), 1, false);
        assert!(!times.is_short(range(1), 1) && times.is_short(range(2), 1));
        times.record(range(0), 1, true);
        assert!(times.is_short(range(2), 1), "there was room");
        assert_eq!(times.known().len(), KNOWN_MAX);
    }
}
