//! The blocks of a claim, and the number of overlapping ranges of two claims.

use lunar_scsi::plan::LbaRange;
use std::ops::Range;
use std::slice;
use std::sync::Arc;

/// Number of spans at most under which a list is indexed. A list of 256 ranges would otherwise take
/// 16 KiB more.
const SPANS_MAX: usize = 8;

/// The blocks of one claim.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum ClaimedBlocks {
    /// One range.
    Range(LbaRange),
    /// Ranges that are not empty, in order and apart from each other.
    List(Arc<[LbaRange]>),
}

/// Counts the ranges of a set that overlap others: those that begin before the end of another one,
/// without those that end before it begins.
#[derive(Debug, Default)]
pub(super) struct OverlapCounter {
    starts: Vec<u64>,
    ends: Vec<u64>,
}

impl ClaimedBlocks {
    /// The blocks of several ranges, in any order.
    pub(crate) fn of(ranges: &[LbaRange]) -> Self {
        if let [range] = ranges {
            return Self::Range(*range);
        }
        let mut sorted: Vec<_> = ranges.iter().filter(|range| range.count > 0).copied().collect();
        sorted.sort_unstable_by_key(|range| range.lba);
        sorted.dedup_by(|next, last| {
            let joins = next.lba <= end(*last);
            if joins {
                last.count = end(*last).max(end(*next)) - last.lba;
            }
            joins
        });
        Self::List(sorted.into())
    }

    /// Number of overlapping pairs of a range of each.
    pub(super) fn overlaps(&self, other: &Self) -> usize {
        match (self, other) {
            (Self::Range(one), Self::Range(other)) => usize::from(overlap(*one, *other)),
            (Self::List(list), Self::Range(range)) | (Self::Range(range), Self::List(list)) => {
                list_overlaps(list, *range)
            }
            (Self::List(one), Self::List(other)) => {
                one.iter().map(|range| list_overlaps(other, *range)).sum()
            }
        }
    }

    pub(crate) fn overlap(&self, other: &Self) -> bool {
        self.overlaps(other) > 0
    }

    /// The ranges, in order and apart from each other.
    pub(crate) fn as_ranges(&self) -> &[LbaRange] {
        match self {
            Self::Range(range) => slice::from_ref(range),
            Self::List(list) => list,
        }
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.ranges().next().is_none()
    }

    /// The blocks from `lba` on.
    pub(crate) fn starting_at(&self, lba: u64) -> Self {
        let cut = |range: LbaRange| {
            let start = range.lba.max(lba).min(end(range));
            LbaRange { lba: start, count: end(range) - start }
        };
        match self {
            Self::Range(range) => Self::Range(cut(*range)),
            Self::List(list) => {
                let rest = &list[list.partition_point(|range| end(*range) <= lba)..];
                Self::List(rest.iter().copied().map(cut).collect())
            }
        }
    }

    fn ranges(&self) -> impl Iterator<Item = LbaRange> {
        self.as_ranges().iter().filter(|range| range.count > 0).copied()
    }

    /// Spans that cover all ranges, in order and apart from each other. A long list has fewer spans
    /// than ranges; they also cover the blocks between.
    pub(super) fn spans(&self) -> impl Iterator<Item = Range<u64>> {
        let (ranges, ranges_per_span) = match self {
            Self::Range(range) => (slice::from_ref(range), 1),
            Self::List(list) => (&**list, list.len().div_ceil(SPANS_MAX).max(1)),
        };
        ranges.chunks(ranges_per_span).filter_map(|chunk| {
            let (first, last) = (chunk.first()?, chunk.last()?);
            (last.count > 0).then(|| first.lba..end(*last))
        })
    }

    /// The single range, unless this is a list.
    pub(super) fn as_range(&self) -> Option<LbaRange> {
        match self {
            Self::Range(range) => Some(*range),
            Self::List(_) => None,
        }
    }
}

impl From<LbaRange> for ClaimedBlocks {
    fn from(range: LbaRange) -> Self {
        Self::Range(range)
    }
}

impl OverlapCounter {
    /// Adds ranges; [`sort`](Self::sort) has to follow.
    pub(super) fn add(&mut self, blocks: &ClaimedBlocks) {
        self.starts.extend(blocks.ranges().map(|range| range.lba));
        self.ends.extend(blocks.ranges().map(end));
    }

    pub(super) fn sort(&mut self) {
        self.starts.sort_unstable();
        self.ends.sort_unstable();
    }

    /// Sum of [`ClaimedBlocks::overlaps`] over the set.
    pub(super) fn count(&self, blocks: &ClaimedBlocks) -> usize {
        let count = |range: LbaRange| {
            let begun = self.starts.partition_point(|start| *start < end(range));
            begun - self.ends.partition_point(|end| *end <= range.lba)
        };
        blocks.ranges().map(count).sum()
    }
}

fn end(range: LbaRange) -> u64 {
    range.lba.saturating_add(range.count)
}

fn overlap(a: LbaRange, b: LbaRange) -> bool {
    a.count > 0 && b.count > 0 && a.lba < end(b) && b.lba < end(a)
}

/// Number of ranges of a sorted list that overlap `range`: those from the first that ends behind
/// its beginning to the last that begins before its end.
fn list_overlaps(list: &[LbaRange], range: LbaRange) -> usize {
    if range.count == 0 {
        return 0;
    }
    let first = list.partition_point(|listed| end(*listed) <= range.lba);
    let rest = list.get(first..).unwrap_or_default();
    rest.partition_point(|listed| listed.lba < end(range))
}
