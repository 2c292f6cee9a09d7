//! Shares of tables that all initiators of a unit use: no initiator can fill a table by changing
//! its ISID, or, if its name is not proven, its name.

/// The origin of an initiator as an opaque number, which a target derives from an address; two
/// initiators of the same origin may be one peer with two names.
#[derive(Clone, Copy, Debug, Eq, Hash, PartialEq)]
pub struct Origin(pub u128);

/// The initiator to which a table entry is charged.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Owner<'a> {
    /// Initiator name, in lower case.
    pub name: &'a str,
    /// `None`: the name is proven, or the origin is no longer known.
    pub origin: Option<Origin>,
}

impl Owner<'_> {
    /// The owner of entries that count in total only, in the share of no initiator. No initiator
    /// has this name.
    pub const UNKNOWN: Owner<'static> = Owner { name: "", origin: None };

    /// True if `entry` is charged to the same initiator name. A name claimed from two origins is
    /// two initiators, so that claiming a name does not use up its share.
    fn shares_name(self, entry: Owner<'_>) -> bool {
        self.name == entry.name && (entry.origin.is_none() || entry.origin == self.origin)
    }

    fn shares_origin(self, entry: Owner<'_>) -> bool {
        self.origin.is_some() && entry.origin == self.origin
    }
}

/// Maximum numbers of entries of one table.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Shares {
    /// Maximum of all initiators together.
    pub of_all: usize,
    /// Maximum of one initiator name.
    pub of_initiator: usize,
    /// Maximum of one origin, for initiators whose names are not proven.
    pub of_origin: usize,
}

impl Shares {
    /// True if `owner` may have `more` entries besides the `taken` ones.
    pub fn admit<'o>(
        &self,
        taken: impl Iterator<Item = Owner<'o>>,
        owner: Owner<'_>,
        more: usize,
    ) -> bool {
        let (mut of_all, mut of_initiator, mut of_origin) = (more, more, more);
        for entry in taken {
            of_all += 1;
            of_initiator += usize::from(owner.shares_name(entry));
            of_origin += usize::from(owner.shares_origin(entry));
        }
        let origin_fits = owner.origin.is_none() || of_origin <= self.of_origin;
        of_all <= self.of_all && of_initiator <= self.of_initiator && origin_fits
    }

    /// Index of the entry that a further one of `owner` displaces: the first of the initiator, of
    /// the origin or of all, whichever has reached its share. `None`: there is room. `taken` begins
    /// with the oldest.
    pub fn displaced<'o>(
        &self,
        taken: impl Iterator<Item = Owner<'o>> + Clone,
        owner: Owner<'_>,
    ) -> Option<usize> {
        let first_of = |limit: usize, counts: &dyn Fn(Owner<'_>) -> bool| {
            let is_full = taken.clone().filter(|entry| counts(*entry)).count() >= limit;
            if is_full { taken.clone().position(counts) } else { None }
        };
        first_of(self.of_initiator, &|entry| owner.shares_name(entry))
            .or_else(|| first_of(self.of_origin, &|entry| owner.shares_origin(entry)))
            .or_else(|| first_of(self.of_all, &|_| true))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SHARES: Shares = Shares { of_all: 6, of_initiator: 2, of_origin: 4 };

    fn proven(name: &str) -> Owner<'_> {
        Owner { name, origin: None }
    }

    fn claimed(name: &str, origin: u128) -> Owner<'_> {
        Owner { name, origin: Some(Origin(origin)) }
    }

    fn admits(taken: &[Owner<'_>], owner: Owner<'_>) -> bool {
        let admits = SHARES.admit(taken.iter().copied(), owner, 1);
        let displaced = SHARES.displaced(taken.iter().copied(), owner);
        assert_eq!(admits, displaced.is_none(), "one rule for both");
        admits
    }

    #[test]
    fn entries_of_one_name_are_limited() {
        let taken = [proven("a"), proven("a"), proven("b")];
        assert!(!admits(&taken, proven("a")));
        assert!(admits(&taken, proven("b")));
        assert!(!SHARES.admit(taken.iter().copied(), proven("b"), 2));
    }

    #[test]
    fn entries_of_one_origin_are_limited_for_all_its_names() {
        let taken = ["a", "b", "c", "d"].map(|name| claimed(name, 1));
        assert!(!admits(&taken, claimed("e", 1)));
        assert!(admits(&taken, claimed("e", 2)));
        assert!(admits(&taken, proven("e")), "a proven name has no origin");
    }

    /// Goal: claiming a name takes nothing from the initiator that proves it, nor from one that
    /// claims it from another origin; entries without an origin count for every claim of the name.
    #[test]
    fn unproven_entries_do_not_count_for_the_proven_name() {
        let taken = [claimed("a", 1), claimed("a", 1)];
        assert!(admits(&taken, proven("a")));
        assert!(admits(&taken, claimed("a", 2)));
        assert!(!admits(&taken, claimed("a", 1)));
        assert!(!admits(&[proven("a"), proven("a")], claimed("a", 1)));
    }

    #[test]
    fn the_whole_table_is_limited() {
        let taken = ["a", "b", "c", "d", "e", "f"].map(proven);
        assert!(!admits(&taken, proven("g")));
    }

    #[test]
    fn an_owner_at_its_limit_displaces_its_own_oldest() {
        let displaced = |taken: &[Owner<'_>], owner| {
            SHARES.displaced(taken.iter().copied(), owner) //
        };
        let taken = [proven("x"), proven("a"), proven("b"), proven("a"), proven("c"), proven("d")];
        assert_eq!(displaced(&taken, proven("a")), Some(1));
        assert_eq!(displaced(&taken, proven("e")), Some(0), "the oldest of all");
        let taken = [proven("x"), claimed("a", 1), claimed("b", 1), claimed("c", 1)];
        assert_eq!(displaced(&taken, claimed("d", 1)), None);
        let taken = [&taken[..], &[claimed("d", 1)]].concat();
        assert_eq!(displaced(&taken, claimed("e", 1)), Some(1));
    }
}
