//! A set of regions of a mirror.

use super::REGIONS_MAX;

const WORD_BITS: u32 = u64::BITS;

/// A set of regions, numbered from 0; the number of regions is fixed.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct RegionSet {
    words: Vec<u64>,
    regions: u32,
}

impl RegionSet {
    /// Creates the empty set for a mirror of `regions` regions, at most [`REGIONS_MAX`].
    pub fn new(regions: u32) -> Self {
        debug_assert!(regions <= REGIONS_MAX);
        Self { words: vec![0; regions.div_ceil(WORD_BITS) as usize], regions }
    }

    /// Creates the set of all regions.
    pub fn full(regions: u32) -> Self {
        let mut set = Self::new(regions);
        (0..regions).for_each(|region| set.insert(region));
        set
    }

    /// Decodes the bits of an intent page: region r is the bit of value 2^(r mod 8) in byte r / 8.
    /// Returns `None` if a bit beyond the regions is set.
    pub(super) fn from_bits(bits: &[u8], regions: u32) -> Option<Self> {
        let mut set = Self::new(regions);
        for (index, byte) in bits.iter().enumerate().filter(|(_, byte)| **byte != 0) {
            for bit in (0..u8::BITS).filter(|bit| byte >> bit & 1 == 1) {
                let region = u32::try_from(index).ok()? * u8::BITS + bit;
                if region >= regions {
                    return None;
                }
                set.insert(region);
            }
        }
        Some(set)
    }

    /// Encodes the bits of an intent page.
    pub(super) fn put_bits(&self, bits: &mut [u8]) {
        for region in self.iter() {
            bits[(region / u8::BITS) as usize] |= 1 << (region % u8::BITS);
        }
    }

    /// Returns the number of regions of the mirror.
    pub const fn regions(&self) -> u32 {
        self.regions
    }

    /// True if `region` is in the set.
    #[inline]
    pub fn contains(&self, region: u32) -> bool {
        let word = self.words.get((region / WORD_BITS) as usize);
        word.is_some_and(|word| word >> (region % WORD_BITS) & 1 == 1)
    }

    /// Adds `region`, which exists.
    #[inline]
    pub fn insert(&mut self, region: u32) {
        debug_assert!(region < self.regions);
        self.words[(region / WORD_BITS) as usize] |= 1 << (region % WORD_BITS);
    }

    /// Removes `region`.
    #[inline]
    pub fn remove(&mut self, region: u32) {
        if let Some(word) = self.words.get_mut((region / WORD_BITS) as usize) {
            *word &= !(1 << (region % WORD_BITS));
        }
    }

    /// Adds all regions of `other`, which belongs to the same mirror.
    pub fn insert_all(&mut self, other: &Self) {
        for (word, more) in self.words.iter_mut().zip(&other.words) {
            *word |= more;
        }
    }

    /// Removes all regions that `other` has not.
    pub fn intersect(&mut self, other: &Self) {
        for (word, kept) in self.words.iter_mut().zip(&other.words) {
            *word &= kept;
        }
    }

    /// Removes all regions that `other` has.
    pub fn subtract(&mut self, other: &Self) {
        for (word, gone) in self.words.iter_mut().zip(&other.words) {
            *word &= !gone;
        }
    }

    /// True if `other` has all regions of the set.
    pub fn is_subset(&self, other: &Self) -> bool {
        self.words.iter().zip(&other.words).all(|(own, others)| own & !others == 0)
    }

    /// Returns the first region of the set from `from` on.
    pub fn next(&self, from: u32) -> Option<u32> {
        let first = (from / WORD_BITS) as usize;
        let mut mask = u64::MAX << (from % WORD_BITS);
        for (index, word) in self.words.iter().enumerate().skip(first) {
            let word = word & mask;
            if word != 0 {
                return Some(index as u32 * WORD_BITS + word.trailing_zeros());
            }
            mask = u64::MAX;
        }
        None
    }

    /// Returns the regions of the set in order.
    pub fn iter(&self) -> impl Iterator<Item = u32> {
        let mut from = 0;
        std::iter::from_fn(move || {
            let region = self.next(from)?;
            from = region + 1;
            Some(region)
        })
    }

    /// Returns the number of regions in the set.
    pub fn len(&self) -> u32 {
        self.words.iter().map(|word| word.count_ones()).sum()
    }

    /// True if the set has no region.
    pub fn is_empty(&self) -> bool {
        self.words.iter().all(|word| *word == 0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeSet;

    proptest! {
        /// Goal: a set has the members that were added and not removed, like one of std.
        #[test]
        fn is_a_set(
            regions in 1u32..300,
            steps in proptest::collection::vec((any::<bool>(), 0u32..300), 0..60),
        ) {
            let (mut set, mut model) = (RegionSet::new(regions), BTreeSet::new());
            for (add, region) in steps {
                let region = region % regions;
                if add { set.insert(region); } else { set.remove(region); }
                if add { model.insert(region); } else { model.remove(&region); }
            }
            let want: Vec<u32> = model.iter().copied().collect();
            prop_assert_eq!(set.iter().collect::<Vec<_>>(), want);
            prop_assert_eq!(set.len() as usize, model.len());
            prop_assert_eq!(set.is_empty(), model.is_empty());
            for region in 0..regions {
                prop_assert_eq!(set.contains(region), model.contains(&region));
            }
            let mut bits = [0; 40];
            set.put_bits(&mut bits);
            prop_assert_eq!(RegionSet::from_bits(&bits, regions), Some(set.clone()));
            let mut rest = RegionSet::full(regions);
            prop_assert!(set.is_subset(&rest) && RegionSet::new(regions).is_subset(&set));
            rest.subtract(&set);
            prop_assert_eq!(rest.len() + set.len(), regions);
            prop_assert_eq!(set.is_subset(&rest), set.is_empty());
            rest.insert_all(&set);
            prop_assert_eq!(rest, RegionSet::full(regions));
            prop_assert!(!set.contains(regions + 64));
        }
    }

    /// Goal: a bit beyond the regions is found.
    #[test]
    fn bits_beyond_the_regions_are_refused() {
        assert!(RegionSet::from_bits(&[0xff, 0x01], 9).is_some());
        assert!(RegionSet::from_bits(&[0xff, 0x02], 9).is_none());
    }
}
