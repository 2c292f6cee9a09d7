//! Ranges of a transfer that were received, requested or sent; used by both roles.

/// Completed bytes of a transfer: sorted ranges that neither touch nor overlap.
///
/// In the common case of data in order this is one range from 0, which needs no allocation.
#[derive(Debug, Default)]
pub(super) struct Coverage {
    /// End of the range that begins at 0.
    contiguous: u32,
    /// Ranges behind the first gap.
    ranges: alloc::vec::Vec<(u32, u32)>,
}

/// The reason why a range is refused.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) enum RangeError {
    /// The range reaches beyond the end of the transfer.
    BeyondEnd,
    /// The range is not the next one although order was negotiated.
    OutOfOrder,
    /// A part of the range was covered before.
    Overlaps,
    /// Too many gaps.
    TooScattered,
}

impl RangeError {
    pub(super) fn as_str(self) -> &'static str {
        match self {
            Self::BeyondEnd => "exceeds the expected data length",
            Self::OutOfOrder => "is out of order",
            Self::Overlaps => "repeats a part of the data",
            Self::TooScattered => "leaves too many gaps in the data",
        }
    }
}

impl Coverage {
    /// Maximum number of gaps in a transfer at one time.
    const RANGES_MAX: usize = 1024;

    /// Number of covered bytes from the start without a gap.
    pub(super) fn contiguous(&self) -> u32 {
        self.contiguous
    }

    /// True if there is a gap between covered bytes.
    pub(super) fn has_gap(&self) -> bool {
        !self.ranges.is_empty()
    }

    /// Memory of the ranges behind the first gap.
    pub(super) fn memory_bytes(&self) -> usize {
        self.ranges.capacity() * size_of::<(u32, u32)>()
    }

    /// Number of all covered bytes.
    pub(super) fn total(&self) -> u32 {
        self.contiguous + self.ranges.iter().map(|(start, end)| end - start).sum::<u32>()
    }

    /// Creates a coverage of `bytes` bytes from the start.
    pub(super) fn from_start(bytes: u32) -> Self {
        Self { contiguous: bytes, ranges: alloc::vec::Vec::new() }
    }

    /// Adds `bytes` bytes at `offset` of a transfer of `total` bytes.
    pub(super) fn add(
        &mut self,
        offset: u32,
        bytes: u32,
        total: u32,
        in_order: bool,
    ) -> Result<(), RangeError> {
        let end =
            offset.checked_add(bytes).filter(|end| *end <= total).ok_or(RangeError::BeyondEnd)?;
        if in_order && offset != self.contiguous {
            return Err(RangeError::OutOfOrder);
        }
        if bytes == 0 {
            return Ok(());
        }
        let after = self.ranges.partition_point(|(start, _)| *start < offset);
        let touches_next = match self.ranges.get(after) {
            Some((start, _)) if *start < end => return Err(RangeError::Overlaps),
            next => next.is_some_and(|(start, _)| *start == end),
        };
        let before = match after.checked_sub(1) {
            Some(before) => &mut self.ranges[before].1,
            None => &mut self.contiguous,
        };
        match (*before, touches_next) {
            (last_end, _) if last_end > offset => return Err(RangeError::Overlaps),
            (last_end, false) if last_end == offset => *before = end,
            (last_end, true) if last_end == offset => {
                let next_end = self.ranges[after].1;
                match after.checked_sub(1) {
                    Some(before) => self.ranges[before].1 = next_end,
                    None => self.contiguous = next_end,
                }
                self.ranges.remove(after);
            }
            (_, true) => self.ranges[after].0 = offset,
            (_, false) if self.ranges.len() >= Self::RANGES_MAX => {
                return Err(RangeError::TooScattered);
            }
            (_, false) => self.ranges.insert(after, (offset, end)),
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::vec::Vec;
    use proptest::prelude::*;

    #[test]
    fn in_order_means_the_next_byte() {
        let mut done = Coverage::default();
        assert_eq!(done.add(0, 4, 10, true), Ok(()));
        assert_eq!(done.add(5, 1, 10, true), Err(RangeError::OutOfOrder));
        assert_eq!(done.add(4, 7, 10, true), Err(RangeError::BeyondEnd));
        assert_eq!(done.add(u32::MAX, 2, 10, true), Err(RangeError::BeyondEnd));
        assert_eq!(done.add(4, 0, 10, true), Ok(()), "empty pieces are allowed");
        assert_eq!(done.add(4, 6, 10, true), Ok(()));
        assert_eq!((done.contiguous(), done.total()), (10, 10));
    }

    proptest! {
        /// Goal: ranges in any order are accepted once and counted correctly.
        /// Method: random ranges, compared with a bitmap.
        #[test]
        fn agrees_with_a_bitmap(pieces: Vec<(u8, u8)>) {
            let (mut done, mut bits) = (Coverage::default(), [false; 256]);
            for (offset, bytes) in pieces {
                let range = usize::from(offset)..usize::from(offset) + usize::from(bytes);
                let want = if range.end > 256 {
                    Err(RangeError::BeyondEnd)
                } else if bits[range.clone()].contains(&true) {
                    Err(RangeError::Overlaps)
                } else {
                    bits[range].fill(true);
                    Ok(())
                };
                prop_assert_eq!(done.add(offset.into(), bytes.into(), 256, false), want);
                prop_assert_eq!(done.total() as usize, bits.iter().filter(|bit| **bit).count());
                let start = bits.iter().take_while(|bit| **bit).count();
                prop_assert_eq!(done.contiguous() as usize, start);
            }
        }
    }
}
