//! Target Transfer Tags of terminated tasks for which the initiator may still send data.
//! RFC 7143 §4.2.3.4 c), g).

use crate::sorted_map::SortedMap;
use lunar_wire::{Lun, SerialNumber};

#[derive(Debug)]
struct Tag {
    lun: Lun,
    /// StatSN of the Asynchronous Message that reported its end, once that was sent.
    reported_by: Option<SerialNumber>,
}

/// Tags of terminated tasks. Data with one of these tags is discarded, even if its Initiator Task
/// Tag belongs to a new task.
#[derive(Debug)]
pub(super) struct TerminatedTags {
    /// Limit for an initiator that does not acknowledge: the oldest tag is removed. Its data is
    /// then that of an unknown task, and discarded as well.
    tags_max: usize,
    tags: SortedMap<u32, Tag>,
}

impl TerminatedTags {
    pub(super) fn new(tags_max: usize) -> Self {
        Self { tags_max: tags_max.max(1), tags: SortedMap::default() }
    }

    pub(super) fn add(&mut self, lun: Lun, tag: u32) {
        if self.tags.len() >= self.tags_max {
            let oldest = self.tags.keys().next();
            oldest.and_then(|oldest| self.tags.remove(oldest));
        }
        self.tags.insert(tag, Tag { lun, reported_by: None });
    }

    /// True if data carries one of these tags. With the F bit the requested data is complete, and
    /// the tag is freed: no task waits for it. RFC 7143 §11.7.1.
    pub(super) fn take_data(&mut self, tag: u32, is_final: bool) -> bool {
        match is_final {
            true => self.tags.remove(tag).is_some(),
            false => self.tags.contains_key(tag),
        }
    }

    /// Records that the Asynchronous Message with this StatSN reported the end of all tasks of this
    /// unit.
    pub(super) fn mark_reported(&mut self, lun: Lun, stat_sn: SerialNumber) {
        for tag in self.tags.values_mut().filter(|tag| tag.lun == lun) {
            tag.reported_by.get_or_insert(stat_sn);
        }
    }

    /// Frees the tags of a unit when a NOP-Out that is not a ping acknowledges the message: no more
    /// data follows. RFC 7143 §11.9.1.
    pub(super) fn acknowledged(&mut self, lun: Lun, exp_stat_sn: SerialNumber) {
        let is_over = |tag: &Tag| {
            tag.lun == lun && tag.reported_by.is_some_and(|stat_sn| stat_sn.before(exp_stat_sn))
        };
        self.tags.retain(|tag| !is_over(tag));
    }

    /// Frees all tags: no more data is received.
    pub(super) fn clear(&mut self) {
        self.tags = SortedMap::default();
    }

    /// Memory of the tags in bytes.
    pub(super) fn memory_bytes(&self) -> usize {
        self.tags.memory_bytes()
    }

    /// Number of tags.
    #[cfg(test)]
    pub(super) fn len(&self) -> usize {
        self.tags.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal: tags are freed when the message about their unit is acknowledged, not by any other
    /// PDU.
    #[test]
    fn an_acknowledged_message_frees_the_tags_of_its_unit() {
        let (one, other) = (Lun::new(1), Lun::new(2));
        let mut terminated_tags = TerminatedTags::new(8);
        let contains =
            |terminated_tags: &mut TerminatedTags, tag| terminated_tags.take_data(tag, false);
        terminated_tags.add(one, 10);
        terminated_tags.add(other, 11);
        terminated_tags.acknowledged(one, SerialNumber(9));
        assert!(contains(&mut terminated_tags, 10), "not reported yet");
        terminated_tags.mark_reported(one, SerialNumber(u32::MAX));
        terminated_tags.add(one, 12);
        terminated_tags.acknowledged(one, SerialNumber(u32::MAX));
        assert!(contains(&mut terminated_tags, 10), "a StatSN is acknowledged by the next one");
        terminated_tags.acknowledged(other, SerialNumber(0));
        assert!(contains(&mut terminated_tags, 10), "of another unit");
        terminated_tags.acknowledged(one, SerialNumber(0));
        assert!(!contains(&mut terminated_tags, 10));
        assert!(
            contains(&mut terminated_tags, 11) && contains(&mut terminated_tags, 12),
            "of the next message"
        );
    }

    /// Goal: a tag whose data has arrived completely is free, whether or not the message is
    /// acknowledged.
    #[test]
    fn the_final_data_frees_its_tag() {
        let mut terminated_tags = TerminatedTags::new(8);
        terminated_tags.add(Lun::ZERO, 10);
        assert!(terminated_tags.take_data(10, false) && terminated_tags.take_data(10, true));
        assert!(!terminated_tags.take_data(10, true), "no data is due any more");
        assert!(!terminated_tags.take_data(11, true), "of no task that was aborted");
    }

    /// Goal: an initiator that never acknowledges uses bounded memory; the newest tags stay.
    #[test]
    fn tags_are_bounded() {
        let mut terminated_tags = TerminatedTags::new(100);
        for tag in 0..10_000 {
            terminated_tags.add(Lun::ZERO, tag);
        }
        assert_eq!(terminated_tags.len(), 100);
        assert!(terminated_tags.memory_bytes() <= 200 * 24);
        assert!(
            terminated_tags.take_data(9_999, false) && !terminated_tags.take_data(9_899, false)
        );
        terminated_tags.mark_reported(Lun::ZERO, SerialNumber(1));
        terminated_tags.acknowledged(Lun::ZERO, SerialNumber(2));
        assert_eq!(terminated_tags.memory_bytes(), 0);
    }
}
