//! Target Transfer Tags of terminated tasks, while the initiator may still send data for them.
//! RFC 7143 §4.2.3.4 c), g).

use alloc::collections::BTreeMap;
use wire::{Lun, SerialNumber};

/// Tags that are kept for an initiator that does not acknowledge; the oldest makes room. Its data
/// is then that of a task that is not known, and discarded as well.
const RETIRED_TAGS_MAX: usize = 4096;

#[derive(Debug)]
struct Tag {
    lun: Lun,
    /// StatSN of the Asynchronous Message that told of its end, once that was sent.
    told: Option<SerialNumber>,
}

/// Data that bears one of these tags is discarded, also if its Initiator Task Tag names a new task.
#[derive(Debug, Default)]
pub(super) struct Retired {
    tags: BTreeMap<u32, Tag>,
}

impl Retired {
    pub(super) fn add(&mut self, lun: Lun, tag: u32) {
        if self.tags.len() >= RETIRED_TAGS_MAX {
            self.tags.pop_first();
        }
        self.tags.insert(tag, Tag { lun, told: None });
    }

    pub(super) fn contains(&self, tag: u32) -> bool {
        self.tags.contains_key(&tag)
    }

    /// An Asynchronous Message with this StatSN tells of the end of all tasks of this unit.
    pub(super) fn told(&mut self, lun: Lun, stat_sn: SerialNumber) {
        for tag in self.tags.values_mut().filter(|tag| tag.lun == lun) {
            tag.told.get_or_insert(stat_sn);
        }
    }

    /// A NOP-Out that is no ping acknowledges that message: nothing more comes. RFC 7143 §11.9.1.
    pub(super) fn acknowledged(&mut self, lun: Lun, exp_stat_sn: SerialNumber) {
        let is_over = |tag: &Tag| {
            tag.lun == lun && tag.told.is_some_and(|stat_sn| stat_sn.before(exp_stat_sn))
        };
        self.tags.retain(|_, tag| !is_over(tag));
    }

    /// How many there are.
    #[cfg(test)]
    pub(super) fn len(&self) -> usize {
        self.tags.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal: tags go when the message about their unit is acknowledged, not with any other.
    #[test]
    fn tags_go_with_their_acknowledgement() {
        let (one, other) = (Lun::new(1), Lun::new(2));
        let mut retired = Retired::default();
        retired.add(one, 10);
        retired.add(other, 11);
        retired.acknowledged(one, SerialNumber(9));
        assert!(retired.contains(10), "not told yet");
        retired.told(one, SerialNumber(u32::MAX));
        retired.add(one, 12);
        retired.acknowledged(one, SerialNumber(u32::MAX));
        assert!(retired.contains(10), "a StatSN is acknowledged by the next one");
        retired.acknowledged(other, SerialNumber(0));
        assert!(retired.contains(10), "of another unit");
        retired.acknowledged(one, SerialNumber(0));
        assert!(!retired.contains(10));
        assert!(retired.contains(11) && retired.contains(12), "of the next message");
    }

    /// Goal: an initiator that never acknowledges costs bounded memory; the newest stay.
    #[test]
    fn tags_are_bounded() {
        let mut retired = Retired::default();
        for tag in 0..10_000 {
            retired.add(Lun::ZERO, tag);
        }
        assert_eq!(retired.len(), RETIRED_TAGS_MAX);
        assert!(retired.contains(9_999) && !retired.contains(0));
    }
}
