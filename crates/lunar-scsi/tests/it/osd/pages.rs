//! Attributes pages.

use lunar_scsi::osd::pages::{
    self, ATTRIBUTES, AttributeAccess, AttributeLength, CurrentCommandPage, PAGES, PageDefiner,
    PageOwner, PartitionSecurityPage, RootQuotasPage, RootSecurityPage, StandardAttribute,
    StandardPage, decode_page, encode_page,
};
use lunar_scsi::osd::{AttributeName, OsdTime};
use std::collections::BTreeSet;

/// Goal: pages belong to the objects of the standard, at the limits of each range too.
#[test]
fn owners_and_definers() {
    for (first, last, owner) in [
        (0, 0x2fff_ffff, Some(PageOwner::User)),
        (0x3000_0000, 0x5fff_ffff, Some(PageOwner::Partition)),
        (0x6000_0000, 0x8fff_ffff, Some(PageOwner::Collection)),
        (0x9000_0000, 0xbfff_ffff, Some(PageOwner::Root)),
        (0xc000_0000, 0xefff_ffff, None),
        (0xf000_0000, 0xffff_fffe, Some(PageOwner::Any)),
        (u32::MAX, u32::MAX, None),
    ] {
        assert_eq!((PageOwner::of(first), PageOwner::of(last)), (owner, owner), "{first:x}");
        if let Some(owner) = owner {
            assert_eq!(owner.base(), first);
        }
    }
    for base in [pages::USER, pages::PARTITION, pages::COLLECTION, pages::ROOT] {
        for (first, last, definer) in [
            (0, 0x7f, PageDefiner::Standard),
            (0x80, 0x7fff, PageDefiner::Reserved),
            (0x8000, 0xefff, PageDefiner::OtherStandard),
            (0xf000, 0xffff, PageDefiner::Manufacturer),
            (0x1_0000, 0x1fff_ffff, PageDefiner::Application),
            (0x2000_0000, 0x2fff_ffff, PageDefiner::Vendor),
        ] {
            let found = (PageDefiner::of(base + first), PageDefiner::of(base + last));
            assert_eq!(found, (definer, definer), "{base:x} {first:x}");
        }
    }
    assert_eq!(PageDefiner::of(pages::CURRENT_COMMAND), PageDefiner::Standard);
    assert_eq!(PageDefiner::of(u32::MAX), PageDefiner::Reserved);
}

/// Goal: both tables are consistent: no page or number twice, and each attribute has a page.
#[test]
fn tables_are_consistent() {
    let numbers: BTreeSet<u32> = PAGES.iter().map(|page| page.page).collect();
    assert_eq!(numbers.len(), PAGES.len());
    let mut labels = BTreeSet::new();
    for (index, attribute) in ATTRIBUTES.iter().enumerate() {
        let StandardAttribute { first, last_number, label, .. } = *attribute;
        assert!(numbers.contains(&first.page), "{label}");
        assert!(first.number > 0 && last_number >= first.number, "{label}");
        assert!(labels.insert(label), "{label}");
        for other in &ATTRIBUTES[..index] {
            let is_apart = other.last_number < first.number || last_number < other.first.number;
            assert!(other.first.page != first.page || is_apart, "{label} {}", other.label);
        }
    }
    let system_id = StandardAttribute::find(AttributeName::new(0x9000_0001, 3)).unwrap();
    assert_eq!((system_id.label, system_id.length), ("ROOT_SYSTEM_ID", AttributeLength::Fixed(20)));
    let length = StandardAttribute::find(pages::USER_LOGICAL_LENGTH).unwrap();
    assert_eq!((length.first.number, length.access), (0x82, AttributeAccess::Settable));
    let key = StandardAttribute::find(AttributeName::new(0x3000_0005, 0x800f)).unwrap();
    assert_eq!(key.first, pages::PARTITION_WORKING_KEY_IDS);
    assert!(key.length.allows(0) && key.length.allows(7) && !key.length.allows(8));
    assert_eq!(StandardAttribute::find(AttributeName::new(0x3000_0005, 0x8010)), None);
}

/// Goal: initiators find the eleven attributes by which Linux recognizes a device.
#[test]
fn attributes_that_linux_reads() {
    for number in [4, 5, 6, 7, 8, 9, 0x80, 0x81, 0xc0, 0x100, 3] {
        let name = AttributeName::new(0x9000_0001, number);
        assert!(StandardAttribute::find(name).is_some(), "{number:x}");
    }
}

/// Goal: page identifications have 40 bytes and end with a zero byte.
#[test]
fn identifications() {
    let directory = StandardPage::find(pages::ROOT).unwrap().identification();
    assert_eq!(directory[..27], *b"INCITS  T10 Root Directory\0");
    for page in &PAGES {
        let bytes = page.identification();
        assert!(bytes[8..].starts_with(page.name.as_bytes()) && bytes[39] == 0, "{}", page.name);
    }
}

/// Goal: pages have the lengths of the standard, and are cut without a change of their length.
#[test]
fn pages_as_a_whole() {
    assert_eq!((RootQuotasPage::LEN, RootSecurityPage::LEN), (0x24, 0x3f));
    assert_eq!((PartitionSecurityPage::LEN, CurrentCommandPage::LEN), (0x96, 0x44));
    let body = pages::RootTimestampsPage {
        attributes_accessed: OsdTime::from_millis(1),
        attributes_modified: OsdTime::from_millis(2),
        bypass: 0x7f,
    };
    let number = pages::ROOT + pages::TIMESTAMPS;
    let page = encode_page(number, &body.encode(), 100);
    assert_eq!(page, *b"\x90\0\0\x03\0\0\0\x0d\0\0\0\0\0\x01\0\0\0\0\0\x02\x7f");
    for cut in 0..page.len() {
        let short = encode_page(number, &body.encode(), cut);
        assert_eq!(short, page[..cut]);
        let Some(found) = decode_page(&short) else { continue };
        assert_eq!((found.page, found.body.len(), found.is_truncated), (number, cut - 8, true));
    }
    let found = decode_page(&page).unwrap();
    assert_eq!(pages::RootTimestampsPage::decode(found.body.try_into().unwrap()), body);
    assert!(!found.is_truncated && decode_page(&page[..7]).is_none());
}
