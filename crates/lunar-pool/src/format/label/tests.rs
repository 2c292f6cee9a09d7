//! Tests of labels.

use super::*;
use proptest::prelude::*;

fn mirror() -> Label {
    Label {
        kind: PoolKind::MIRROR,
        pool: PoolId([0, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0, 2]),
        slot: 1,
        member_count: 3,
        block_bytes: 512,
        data_blocks: 1024,
        unit_blocks: 128,
        generation: 7,
        current: [1, 2].into_iter().collect(),
        history: History::new(66).next(77),
        vacant: MemberSet::default(),
    }
}

fn valid(bytes: &[u8; LABEL_BYTES]) -> Label {
    match Label::decode(bytes) {
        FoundLabel::Valid(label) => label,
        other => panic!("{other:?}"),
    }
}

/// Returns the result for a label with changed bytes and the right checksum.
fn decode_changed(change: impl FnOnce(&mut [u8; LABEL_BYTES])) -> FoundLabel {
    let mut bytes = mirror().encode();
    change(&mut bytes);
    let sum = checksum(&bytes);
    sum.put(&mut bytes[super::super::CHECKED_BYTES..]);
    Label::decode(&bytes)
}

/// Goal: a label is decoded to its encoded fields, and the bytes are those of the document.
#[test]
fn bytes_of_the_document() {
    let bytes = mirror().encode();
    assert_eq!(valid(&bytes), mirror());
    let number = |at: usize, len: usize| {
        bytes[at..at + len].iter().fold(0u64, |number, byte| number << 8 | u64::from(*byte))
    };
    assert_eq!(number(0, 8), 0x4C75_6E61_7250_4C00);
    let fields = [(8, 2, 1), (10, 1, 2), (11, 1, 0), (12, 4, 512), (16, 8, 1), (24, 8, 2)];
    let more = [(32, 2, 1), (34, 2, 3), (36, 4, 0), (40, 8, 1024), (48, 8, 128), (56, 8, 7)];
    let history = [(64, 8, 6), (72, 8, 77), (80, 8, 66), (88, 8, 0)];
    for (at, len, want) in fields.into_iter().chain(more).chain(history) {
        assert_eq!(number(at, len), want, "at {at}");
    }
    assert!(bytes[328..4092].iter().all(|byte| *byte == 0));
    let vacant = Label { member_count: 4, vacant: [0].into_iter().collect(), ..mirror() };
    let bytes = vacant.encode();
    assert_eq!(bytes[328..336], [0, 0, 0, 0, 0, 0, 0, 1]);
    assert_eq!(valid(&bytes), vacant);
}

/// Goal: slots are taken from the first vacant one on, and vacant ones at the end go.
#[test]
fn slots_are_added_and_removed() {
    let first = mirror();
    assert_eq!((first.next_free_slot(), first.members()), (Some(3), 3));
    let more = first.with_slot(3);
    assert_eq!((more.member_count, more.members(), more.has_slot(3)), (4, 4, true));
    let less = more.without_slot(0);
    assert_eq!((less.member_count, less.members(), less.next_free_slot()), (4, 3, Some(0)));
    assert!(!less.has_slot(0) && less.has_slot(3) && !less.has_slot(4));
    assert_eq!(less.with_slot(0), more);
    let two = Label { current: MemberSet::default(), ..more.without_slot(2).without_slot(3) };
    assert_eq!((two.member_count, two.vacant), (2, MemberSet::default()));
    let full = Label { member_count: MEMBERS_MAX, ..mirror() };
    assert_eq!(full.next_free_slot(), None);
}

/// Goal: a mirror that grows keeps its regions as long as a page has room for them.
#[test]
fn regions_of_grown_mirrors() {
    let limit = u64::from(REGIONS_MAX) * 128;
    for (data_blocks, want) in [(2048, 128), (limit, 128), (limit + 1, 256), (limit * 5, 1024)] {
        let grown = mirror().with_data_blocks(data_blocks);
        assert_eq!((grown.data_blocks, grown.unit_blocks), (data_blocks, want));
        assert!(grown.regions() <= REGIONS_MAX);
    }
    let (one, grown) = (mirror(), mirror().with_data_blocks(4096));
    assert!(!one.is_same_pool(&grown) && one.is_same_pool(&grown.next(one.current, 5)));
}

/// Goal: labels of one generation describe the same slots, unless one is of a stale member;
/// stripes always do.
#[test]
fn slots_of_other_generations() {
    let (one, more) = (mirror(), mirror().with_slot(3));
    assert!(!one.is_same_pool(&more));
    assert!(one.is_same_pool(&more.next(one.current, 5)));
    assert!(one.is_same_pool(&more.at(3)), "it is stale");
    let stripe = |label: Label| Label { kind: PoolKind::STRIPE, ..label };
    assert!(!stripe(one.clone()).is_same_pool(&stripe(more.next(one.current, 5))));
}

/// Goal: any changed bit of a label is found.
#[test]
fn flipped_bits_are_found() {
    let mut bytes = mirror().encode();
    for bit in (0..340 * 8).chain(4092 * 8..4096 * 8) {
        bytes[bit / 8] ^= 1 << (bit % 8);
        assert!(!matches!(Label::decode(&bytes), FoundLabel::Valid(_)), "bit {bit}");
        bytes[bit / 8] ^= 1 << (bit % 8);
    }
    assert_eq!(valid(&bytes), mirror());
}

/// Goal: hostile fields with the right checksum are refused, with their reason.
#[test]
fn hostile_fields_are_refused() {
    let refused = |at: usize, value: &[u8]| match decode_changed(|bytes| {
        bytes[at..at + value.len()].copy_from_slice(value);
    }) {
        FoundLabel::Unusable(why) => why,
        other => panic!("at {at}: {other:?}"),
    };
    assert_eq!(refused(8, &[0, 2]), Unusable::Version(2));
    assert_eq!(refused(10, &[0]), Unusable::Kind(PoolKind(0)));
    assert_eq!(refused(10, &[4]), Unusable::Kind(PoolKind(4)));
    for (at, value) in [
        (32, &[0, 3][..]),
        (34, &[0, 1]),
        (34, &[0, 65]),
        (40, &[0; 8]),
        (40, &[0xff; 8]),
        (48, &[0; 8]),
        (56, &[0; 8]),
        (56, &[0x7f, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff]),
        (64, &[0, 0, 0, 0, 0, 0, 0, 8]),
        (72, &[0; 8]),
        (328, &[0, 0, 0, 0, 0, 0, 0, 3]),
        (328, &[0, 0, 0, 0, 0, 0, 0, 2]),
        (328, &[0, 0, 0, 0, 0, 0, 0, 8]),
    ] {
        assert_eq!(refused(at, value), Unusable::Fields, "at {at}: {value:?}");
    }
}

/// Goal: a label is refused on a device that cannot have it.
#[test]
fn labels_fit_their_device() {
    let layout = MemberLayout { block_bytes: 512, block_count: 2048 + 1024 + 8 };
    let with = |change: fn(&mut Label)| {
        let mut label = mirror();
        change(&mut label);
        label.check(layout)
    };
    assert_eq!(with(|_| {}), Ok(()));
    let lengths = Unusable::BlockLength { label: 4096, device: 512 };
    assert_eq!(with(|label| label.block_bytes = 4096), Err(lengths));
    let size = Unusable::Size { label: 1025, device: 1024 };
    assert_eq!(with(|label| label.data_blocks = 1025), Err(size));
    assert_eq!(with(|label| label.unit_blocks = 64), Err(Unusable::Unit(64)));
    assert_eq!(with(|label| label.unit_blocks = 192), Err(Unusable::Unit(192)));
    let stripe =
        |unit_blocks| Label { kind: PoolKind::STRIPE, unit_blocks, ..mirror() }.check(layout);
    assert_eq!(stripe(8), Ok(()));
    assert_eq!(stripe(10), Err(Unusable::Unit(10)), "1024 is not a multiple");
    assert_eq!(stripe(1 << 55), Err(Unusable::Unit(1 << 55)));
    let concat =
        |unit_blocks| Label { kind: PoolKind::CONCAT, unit_blocks, ..mirror() }.check(layout);
    assert_eq!(concat(1025), Ok(()));
    assert_eq!(concat(1024), Err(Unusable::Unit(1024)), "no other member has blocks");
}

/// Goal: a label knows the generations that led to it, as many as it has room for.
#[test]
fn history() {
    let (first, all) = (mirror(), MemberSet::first(3));
    let (mut next, mut other) = (first.clone(), first.clone());
    for step in 1..HISTORY_GENERATIONS_MAX as u64 {
        (next, other) = (next.next(all, step), other.next(all, 1000 + step));
        assert!(next.descends_from(&first) && next.descends_from(&next));
        assert!(!next.descends_from(&other));
    }
    for step in 1..100 {
        next = next.next(all, step);
    }
    assert_eq!(next.history.ids().len(), HISTORY_GENERATIONS_MAX);
    assert!(next.descends_from(&first), "too long ago for an answer");
    assert_eq!(valid(&next.encode()), next);
}

fn labels() -> impl Strategy<Value = Label> {
    let pool = any::<[u8; 16]>().prop_map(PoolId);
    let kind = prop_oneof![Just(PoolKind::CONCAT), Just(PoolKind::STRIPE), Just(PoolKind::MIRROR)];
    let ids = proptest::collection::vec(1u64.., 1..=HISTORY_GENERATIONS_MAX);
    let slots = (MEMBERS_MIN..=MEMBERS_MAX).prop_flat_map(|count| (0..count, Just(count)));
    let numbers = (1..i64::MAX as u64, 1..i64::MAX as u64, 1..i64::MAX as u64);
    (pool, kind, ids, slots, numbers, any::<u32>(), any::<u64>()).prop_map(
        |(pool, kind, ids, (slot, member_count), numbers, block_bytes, current)| Label {
            kind,
            pool,
            slot,
            member_count,
            block_bytes,
            data_blocks: numbers.0,
            unit_blocks: numbers.1,
            generation: numbers.2,
            current: MemberSet(current & MemberSet::first(member_count).0),
            history: History { ids },
            vacant: MemberSet::default(),
        },
    )
}

proptest! {
    /// Goal: every label survives encoding; checks of hostile sizes do not overflow.
    #[test]
    fn encoding_keeps_labels(label in labels(), block_count: u64) {
        prop_assert_eq!(valid(&label.encode()), label.clone());
        for block_bytes in [512, 1024, 2048, 4096] {
            let layout = MemberLayout { block_bytes, block_count };
            if label.check(layout).is_ok() {
                prop_assert!(layout.data_start() + label.data_blocks <= layout.label(1));
            }
            let same = Label { block_bytes, ..label.clone() };
            let _ = same.check(layout);
        }
    }

    /// Goal: no bytes behind the magic and before a right checksum are trusted without checks.
    #[test]
    fn any_bytes_decode(bytes in proptest::collection::vec(any::<u8>(), 8..400)) {
        let found = decode_changed(|label| label[8..bytes.len()].copy_from_slice(&bytes[8..]));
        if let FoundLabel::Valid(label) = found {
            prop_assert!(label.is_consistent());
        }
    }
}
