//! EXTENDED COPY (LID1) and RECEIVE COPY RESULTS: decoded lists, checked segments.

use crate::unit::support::{A, B, COUNT, Rig, options};
use lunar_scsi::copy::{
    CSCD_DESCRIPTORS_MAX, CopyEnd, CopyFault, CopyList, Move, Reported, SEGMENT_DESCRIPTORS_MAX,
    SegmentRole,
};
use lunar_scsi::plan::{LbaRange, Plan, Refusal};
use lunar_scsi::sense::{FieldPointer, Sense, SenseKey};
use lunar_scsi::unit::UnitOptions;
use lunar_scsi::vpd::{DesignatorType, naa};
use proptest::prelude::*;

const COPY: u8 = 0x83;
const RESULTS: u8 = 0x84;

/// Checks the invariants of every decoded list.
pub fn check(list: &CopyList) {
    assert!(list.cscds.len() <= usize::from(CSCD_DESCRIPTORS_MAX));
    assert!(list.segments.len() <= usize::from(SEGMENT_DESCRIPTORS_MAX));
    for cscd in &list.cscds {
        assert!(cscd.designator.len() <= 20);
    }
    for (number, segment) in list.segments.iter().enumerate() {
        for index in [segment.source, segment.destination] {
            assert!(usize::from(index) < list.cscds.len());
        }
        let unit = options();
        if let Some(Ok(found)) = list.plan_move(number, &unit, &unit) {
            assert_eq!(found.source.count * 512, found.bytes);
            assert!(found.source.lba + found.source.count <= COUNT);
            assert!(found.destination.lba + found.destination.count <= COUNT);
        }
    }
    assert!(list.plan_move(list.segments.len(), &options(), &options()).is_none());
}

/// An identification CSCD descriptor with the NAA designator of a unit of this UUID.
fn cscd(uuid: [u8; 16], block_bytes: u32) -> Vec<u8> {
    let mut bytes = vec![0; 32];
    bytes[0] = 0xe4;
    bytes[4..8].copy_from_slice(&[1, 3, 0, 8]);
    bytes[8..16].copy_from_slice(&naa(&uuid).to_be_bytes());
    bytes[28..].copy_from_slice(&block_bytes.to_be_bytes());
    bytes
}

fn segment(source: u16, destination: u16, blocks: u16, from: u64, to: u64) -> Vec<u8> {
    let mut bytes = vec![2, 0, 0, 0x18];
    bytes.extend(source.to_be_bytes());
    bytes.extend(destination.to_be_bytes());
    bytes.extend([0, 0]);
    bytes.extend(blocks.to_be_bytes());
    bytes.extend(from.to_be_bytes());
    bytes.extend(to.to_be_bytes());
    bytes
}

fn list(cscds: &[Vec<u8>], segments: &[Vec<u8>]) -> Vec<u8> {
    let (cscds, segments) = (cscds.concat(), segments.concat());
    let mut bytes = vec![0x5a, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0];
    bytes[2..4].copy_from_slice(&(cscds.len() as u16).to_be_bytes());
    bytes[8..12].copy_from_slice(&(segments.len() as u32).to_be_bytes());
    [bytes, cscds, segments].concat()
}

/// Two CSCDs of 512-byte blocks, one segment between them.
fn example() -> Vec<u8> {
    list(&[cscd([7; 16], 512), cscd([8; 16], 512)], &[segment(0, 1, 16, 100, 200)])
}

fn pointing(sense: Sense, byte: u16) -> Sense {
    sense.with_field(FieldPointer { in_cdb: false, byte, bit: None })
}

fn copy_cdb(bytes: usize) -> Vec<u8> {
    let mut cdb = vec![0; 16];
    cdb[0] = COPY;
    cdb[10..14].copy_from_slice(&(bytes as u32).to_be_bytes());
    cdb
}

fn results_cdb(action: u8, name: u8, allocation_bytes: u8) -> Vec<u8> {
    let mut cdb = vec![0; 16];
    (cdb[0], cdb[1], cdb[2], cdb[13]) = (RESULTS, action, name, allocation_bytes);
    cdb
}

fn send(list: &[u8]) -> Result<Plan, Refusal> {
    Rig::thin().send(&copy_cdb(list.len()), list)
}

#[track_caller]
fn read(list: &[u8]) -> CopyList {
    match send(list) {
        Ok(Plan::Copy { list }) => list,
        other => panic!("{other:?}"),
    }
}

#[track_caller]
fn refused(list: &[u8]) -> Sense {
    match send(list) {
        Err(Refusal::Check(sense)) => sense,
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_list_is_read() {
    let found = read(&example());
    check(&found);
    assert_eq!(found.list_identifier, Some(0x5a));
    let [first, second] = &found.cscds[..] else { panic!("{found:?}") };
    assert_eq!((first.code_set, first.kind, first.block_bytes), (1, DesignatorType::NAA, 512));
    assert!(first.designates(&options().uuid, None) && !second.designates(&options().uuid, None));
    assert!(second.designates(&[8; 16], None));
    let segment = found.segments[0];
    assert_eq!((segment.source, segment.destination, segment.blocks), (0, 1, 16));
    assert_eq!((segment.source_lba, segment.destination_lba), (100, 200));
    assert!(!segment.counts_destination && !segment.concatenates);
}

/// Goal: every designator of page 83h that fits a descriptor identifies the unit.
/// Method: each designator of the page that belongs to the unit; and that of the port.
#[test]
fn designators_of_page_83_are_understood() {
    let page = Rig::thin().reply(&[0x12, 1, 0x83, 1, 0, 0]);
    let mut rest = &page[4..];
    let mut known = 0;
    while let [_, second, _, length, ..] = *rest {
        let (designator, after) = rest.split_at(4 + usize::from(length));
        rest = after;
        if length > 20 {
            continue;
        }
        let mut raw = cscd([0; 16], 512);
        raw[4..8 + usize::from(length)].copy_from_slice(designator);
        raw[8 + usize::from(length)..28].fill(0);
        if second & 0x30 != 0 {
            let sense = refused(&list(&[raw], &[]));
            assert_eq!(sense, Sense::invalid_field_in_parameter_list(21, Some(5)));
            continue;
        }
        let found = read(&list(&[raw], &[]));
        assert!(found.cscds[0].designates(&options().uuid, None), "{designator:x?}");
        let other = UnitOptions { uuid: [9; 16], ..options() };
        assert!(!found.cscds[0].designates(&other.uuid, None), "{designator:x?}");
        known += 1;
    }
    assert!(known >= 2, "NAA and UUID");
}

#[test]
fn list_id_usage_controls_the_list_identifier() {
    let mut bytes = example();
    for (usage, name) in [(0x00, Some(0x5a)), (0x10, Some(0x5a)), (0x27, Some(0x5a))] {
        bytes[1] = usage; // STR and PRIORITY have no effect
        assert_eq!(read(&bytes).list_identifier, name);
    }
    bytes[1] = 0x18;
    assert_eq!(refused(&bytes), Sense::invalid_field_in_parameter_list(0, None));
    bytes[0] = 0;
    assert_eq!(read(&bytes).list_identifier, None);
    bytes[1] = 0x08;
    assert_eq!(refused(&bytes), Sense::invalid_field_in_parameter_list(1, Some(4)));
}

/// Goal: a list that ends too early is refused wherever it ends. Method: all lengths; wrong lengths
/// inside.
#[test]
fn lengths_are_checked() {
    let whole = example();
    for bytes in 1..whole.len() {
        assert_eq!(refused(&whole[..bytes]), Sense::PARAMETER_LIST_LENGTH_ERROR, "{bytes}");
    }
    for (at, value) in [(3, 65), (3, 63), (2, 1), (11, 27), (11, 29), (8, 0xff), (15, 1)] {
        let mut bytes = whole.clone();
        bytes[at] = value;
        let sense = refused(&bytes);
        // The next part of a truncated list begins elsewhere, and is not of its type.
        let other = Sense::UNSUPPORTED_SEGMENT_DESCRIPTOR_TYPE_CODE;
        assert!(
            sense == Sense::PARAMETER_LIST_LENGTH_ERROR || sense.code == other.code,
            "byte {at}: {sense}"
        );
    }
    let mut inline = [whole, vec![0; 4]].concat();
    inline[15] = 4;
    assert_eq!(refused(&inline), pointing(Sense::INLINE_DATA_LENGTH_EXCEEDED, 12));
}

#[test]
fn empty_and_endless_lists() {
    let mut rig = Rig::thin();
    assert_eq!(rig.plan(&copy_cdb(0)), Plan::Reply(vec![]));
    let error = Sense::PARAMETER_LIST_LENGTH_ERROR;
    assert_eq!(rig.sense(&copy_cdb(0x1_0000)), error);
    assert_eq!(rig.sense(&copy_cdb(u32::MAX as usize)), error);
    let nothing = read(&list(&[], &[]));
    assert!(nothing.cscds.is_empty() && nothing.segments.is_empty());
}

#[test]
fn descriptor_counts_are_limited_as_reported() {
    let cscds = |count: u16| vec![cscd([7; 16], 512); count.into()];
    let segments = |count: u16| vec![segment(0, 0, 1, 0, 8); count.into()];
    let longest_list =
        read(&list(&cscds(CSCD_DESCRIPTORS_MAX), &segments(SEGMENT_DESCRIPTORS_MAX)));
    check(&longest_list);
    assert_eq!(longest_list.segments.len(), usize::from(SEGMENT_DESCRIPTORS_MAX));
    let sense = refused(&list(&cscds(CSCD_DESCRIPTORS_MAX + 1), &segments(1)));
    assert_eq!(sense, pointing(Sense::TOO_MANY_TARGET_DESCRIPTORS, 2));
    let sense = refused(&list(&cscds(1), &segments(SEGMENT_DESCRIPTORS_MAX + 1)));
    assert_eq!(sense, pointing(Sense::TOO_MANY_SEGMENT_DESCRIPTORS, 8));
    // Too many of both: MAXIMUM DESCRIPTOR LIST LENGTH is exceeded.
    let both = list(&cscds(CSCD_DESCRIPTORS_MAX + 1), &segments(SEGMENT_DESCRIPTORS_MAX + 1));
    assert_eq!(refused(&both), Sense::PARAMETER_LIST_LENGTH_ERROR);
}

/// Goal: every type except the two listed by OPERATING PARAMETERS is refused.
#[test]
fn other_descriptors_are_refused_at_their_byte() {
    for kind in (0..=0xff).filter(|kind| *kind != 0xe4) {
        let mut bytes = example();
        bytes[48] = kind;
        let sense = refused(&bytes);
        assert_eq!(sense, pointing(Sense::UNSUPPORTED_TARGET_DESCRIPTOR_TYPE_CODE, 48));
    }
    for kind in (0..=0xff).filter(|kind| *kind != 0x02) {
        let mut bytes = example();
        bytes[80] = kind;
        let sense = refused(&bytes);
        assert_eq!(sense, pointing(Sense::UNSUPPORTED_SEGMENT_DESCRIPTOR_TYPE_CODE, 80));
    }
}

#[test]
fn fields_of_descriptors_are_checked() {
    let invalid = Sense::invalid_field_in_parameter_list;
    let device = pointing(Sense::INCORRECT_COPY_TARGET_DEVICE_TYPE, 49);
    let null = pointing(Sense::UNREACHABLE_COPY_TARGET, 49);
    let unreachable = |byte| {
        let fault = CopyFault { segment: 0, reported: None };
        pointing(Sense::UNREACHABLE_COPY_TARGET, byte).with_copy(fault)
    };
    for (at, value, sense) in [
        (49, 0x20, null),                 // NUL
        (49, 0x01, device),               // a tape
        (51, 0x01, invalid(50, None)),    // an initiator port
        (53, 0x13, invalid(53, Some(5))), // of a port
        (55, 21, invalid(55, None)),      // longer than there is room for
        (81, 0x04, invalid(81, Some(2))), // FCO
        (83, 0x17, invalid(82, None)),    // another length
        (85, 0x02, unreachable(84)),      // a missing CSCD
        (86, 0xff, unreachable(86)),
    ] {
        let mut bytes = example();
        bytes[at] = value;
        assert_eq!(refused(&bytes), sense, "byte {at} = {value:#x}");
    }
    let mut bytes = example();
    bytes[49] = 0xc0; // LU ID TYPE
    assert_eq!(read(&bytes), read(&example()));
}

fn planned_move(bytes: &[u8], from: &UnitOptions, to: &UnitOptions) -> Result<Move, Sense> {
    read(bytes).plan_move(0, from, to).unwrap()
}

fn large() -> UnitOptions {
    UnitOptions { uuid: [8; 16], block_bytes: 4096, block_count: 1000, ..options() }
}

#[test]
fn segments_become_moves() {
    let found = planned_move(&example(), &options(), &options()).unwrap();
    let (source, destination) =
        (LbaRange { lba: 100, count: 16 }, LbaRange { lba: 200, count: 16 });
    assert_eq!(found, Move { source, destination, bytes: 8192 });
    // Up to the very end, and an empty range right behind it.
    let ends = |blocks, from, to| list(&[cscd([7; 16], 512)], &[segment(0, 0, blocks, from, to)]);
    assert!(planned_move(&ends(1, COUNT - 1, 0), &options(), &options()).is_ok());
    assert!(planned_move(&ends(0, COUNT, COUNT), &options(), &options()).is_ok());
}

#[test]
fn segments_that_leave_a_unit_are_refused() {
    for (from, to, party) in [
        (COUNT - 15, 0, SegmentRole::Source),
        (u64::MAX, 0, SegmentRole::Source),
        (0, COUNT - 15, SegmentRole::Destination),
        (0, u64::MAX - 3, SegmentRole::Destination),
    ] {
        let cscds = [cscd([7; 16], 512)];
        let bytes = list(&cscds, &[segment(0, 0, 1, 0, 8), segment(0, 0, 16, from, to)]);
        let sense = read(&bytes).plan_move(1, &options(), &options()).unwrap().unwrap_err();
        let aborted = Sense::COPY_REFUSED_BY_UNIT;
        assert_eq!((aborted.key, aborted.code), (SenseKey::COPY_ABORTED, 0));
        let (lba, byte) = match party {
            SegmentRole::Source => (from, 76 + 12),
            SegmentRole::Destination => (to, 76 + 20),
        };
        let unit_sense = Sense::LBA_OUT_OF_RANGE.with_information(lba.max(COUNT));
        let reported = Some(Reported::check(party, &unit_sense));
        let fault = CopyFault { segment: 1, reported };
        assert_eq!(sense, pointing(aborted, byte).with_copy(fault));
    }
}

/// Goal: between different block lengths only whole blocks of both are copied (SPC-3 §6.3.7); a
/// segment with remaining bytes is refused, because these are neither kept nor padded.
#[test]
fn segments_between_block_lengths() {
    let bytes = |blocks, flags: u8, pads: u8| {
        let mut segment = segment(0, 1, blocks, 96, 7);
        segment[1] = flags;
        let mut to = cscd([8; 16], 4096);
        to[28] |= pads;
        list(&[cscd([7; 16], 512), to], &[segment])
    };
    let small = options();
    let found = planned_move(&bytes(16, 0, 0), &small, &large()).unwrap();
    assert_eq!(found.source, LbaRange { lba: 96, count: 16 });
    assert_eq!(found.destination, LbaRange { lba: 7, count: 2 });
    let found = planned_move(&bytes(3, 2, 0), &small, &large()).unwrap(); // DC: of the destination
    assert_eq!((found.source.count, found.destination.count), (24, 3));
    let sense = planned_move(&bytes(15, 0, 0), &small, &large()).unwrap_err();
    let fault = CopyFault { segment: 0, reported: None };
    let inexact = pointing(Sense::UNEXPECTED_INEXACT_SEGMENT, 80 + 10).with_copy(fault);
    assert_eq!(sense, inexact);
    let invalid = Sense::invalid_field_in_parameter_list;
    assert_eq!(planned_move(&bytes(15, 1, 0), &small, &large()), Err(invalid(81, Some(0))));
    assert_eq!(planned_move(&bytes(15, 0, 4), &small, &large()), Err(invalid(48 + 28, Some(2))));
    assert!(planned_move(&bytes(16, 1, 4), &small, &large()).is_ok(), "nothing is left over");
    // The block length must be the unit's.
    assert_eq!(planned_move(&bytes(16, 0, 0), &large(), &large()), Err(invalid(16 + 29, None)));
    assert_eq!(planned_move(&bytes(16, 0, 0), &small, &small), Err(invalid(48 + 29, None)));
}

#[test]
fn copy_results_are_fetched_by_list_identifier() {
    let mut rig = Rig::thin();
    let unknown = Sense::invalid_field_in_cdb(2, None);
    assert_eq!(rig.sense(&results_cdb(0, 7, 255)), unknown);
    assert_eq!(rig.sense(&results_cdb(4, 7, 255)), unknown);
    let id = rig.unit.begin_copy(A, Some(7)).unwrap();
    rig.unit.copies().progress(id, 1, 512);
    assert_eq!(rig.reply(&results_cdb(0, 7, 255)), [0, 0, 0, 8, 0, 0, 1, 0, 0, 0, 2, 0]);
    assert_eq!(rig.reply(&results_cdb(0, 7, 5)).len(), 5);
    assert_eq!(rig.refusal(B, &results_cdb(0, 7, 255)), unknown, "another's copy");
    rig.unit.copies().end(id, CopyEnd::Completed);
    rig.unit.reset(None);
    assert_eq!(rig.sense(&results_cdb(0, 7, 255)), Sense::RESET_BY_FUNCTION);
    assert_eq!(rig.sense(&results_cdb(0, 7, 255)), unknown, "gone with the reset");
    let id = rig.unit.begin_copy(A, Some(7)).unwrap();
    rig.unit.copies().end(id, CopyEnd::Completed);
    rig.unit.detach(A);
    rig.attach(A);
    assert_eq!(rig.sense(&[0; 6]), Sense::POWER_ON_RESET);
    assert_eq!(rig.sense(&results_cdb(0, 7, 255)), unknown, "gone with the nexus");
    let parameters = rig.reply(&results_cdb(3, 0, 255));
    assert_eq!(parameters[parameters.len() - 3..], [2, 0x02, 0xe4]);
    let held_data = rig.sense(&results_cdb(1, 7, 255));
    assert_eq!(held_data, Sense::invalid_field_in_cdb(1, Some(4)), "nothing is ever held");
}

/// Goal: a copy is refused for the same reasons as a READ or a WRITE.
#[test]
fn units_are_checked_as_for_reads_and_writes() {
    let rig = Rig::new(UnitOptions { read_only: true, ..options() });
    assert_eq!(rig.unit.check_copy(A, SegmentRole::Source), Ok(()));
    let refusal = rig.unit.check_copy(A, SegmentRole::Destination);
    assert_eq!(refusal, Err(Sense::WRITE_PROTECTED.into()));
    let mut rig = Rig::thin();
    assert_eq!(rig.run(B, &[0x16, 0, 0, 0, 0, 0]), Ok(Plan::Reply(vec![])));
    for party in [SegmentRole::Source, SegmentRole::Destination] {
        assert_eq!(rig.unit.check_copy(A, party), Err(Refusal::ReservationConflict));
        assert_eq!(rig.unit.check_copy(B, party), Ok(()));
    }
    assert_eq!(rig.run(B, &[0x1b, 0, 0, 0, 0, 0]), Ok(Plan::Flush { immediate: false }));
    let stopped = Sense::NOT_READY_INITIALIZING_COMMAND_REQUIRED;
    assert_eq!(rig.unit.check_copy(B, SegmentRole::Source), Err(stopped.into()));
}

/// Lists that are almost correct: counts, types and lengths that mostly fit.
fn lists() -> impl Strategy<Value = Vec<u8>> {
    let cscd = (0..4_u8, prop_oneof![Just(512_u32), Just(4096), any::<u32>()])
        .prop_map(|(unit, block_bytes)| cscd([unit; 16], block_bytes));
    let number = || prop_oneof![0..4_u16, any::<u16>()];
    let lba = || prop_oneof![0..64_u64, Just(COUNT - 1), any::<u64>()];
    let segment = (number(), number(), any::<u16>(), lba(), lba()).prop_map(
        |(source, destination, blocks, from, to)| segment(source, destination, blocks, from, to),
    );
    let changes = prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 0..4);
    let cscds = prop::collection::vec(cscd, 0..70);
    (cscds, prop::collection::vec(segment, 0..8), changes, any::<bool>()).prop_map(
        |(cscds, segments, changes, cut)| {
            let mut bytes = list(&cscds, &segments);
            for (at, value) in changes {
                let at = at.index(bytes.len());
                if cut && at > 0 {
                    bytes.truncate(at);
                } else {
                    bytes[at] = value;
                }
            }
            bytes
        },
    )
}

proptest! {
    /// Goal: no list leads outside the limits or a unit. Method: almost correct lists, and noise.
    #[test]
    fn any_list_is_handled(
        near in lists(),
        noise in prop::collection::vec(any::<u8>(), 1..=400),
    ) {
        for bytes in [near, noise] {
            if let Ok(Plan::Copy { list }) = send(&bytes) {
                check(&list);
            }
        }
    }
}
