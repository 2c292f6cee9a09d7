use super::*;
use crate::copy::limits::{COPIES_OF_INITIATOR_MAX, COPIES_OF_ORIGIN_MAX};
use crate::primary::{InitiatorPort, TargetPort};
use crate::share::Origin;
use alloc::format;
use alloc::vec;

const A: NexusId = NexusId(1);
const B: NexusId = NexusId(2);

/// The ports of a nexus; each belongs to another initiator.
fn ports(nexus: NexusId) -> Arc<ItNexus> {
    claimed(&format!("iqn.i{}", nexus.0), nexus.0, None)
}

/// A nexus of the initiator that claims the name `name`, one for each `number`.
fn claimed(name: &str, number: u64, origin: Option<Origin>) -> Arc<ItNexus> {
    let [.., high, low] = number.to_be_bytes();
    let initiator = InitiatorPort { name: name.into(), isid: [0, 0, 0, 0, high, low] };
    let port = TargetPort { name: "iqn.t".into(), portal_group_tag: 1, relative_id: 1 };
    Arc::new(ItNexus::new(&initiator, &port).from_origin(origin))
}

fn begin(
    results: &mut CopyResults,
    nexus: NexusId,
    list_identifier: Option<u8>,
) -> Result<CopyId, Refusal> {
    results.begin(nexus, &ports(nexus), list_identifier)
}

fn ended(results: &mut CopyResults, nexus: NexusId, name: u8, end: CopyEnd) {
    let id = begin(results, nexus, Some(name)).unwrap();
    results.end(id, end);
}

#[test]
fn the_progress_of_a_running_copy_can_be_queried() {
    let mut results = CopyResults::default();
    let id = begin(&mut results, A, Some(7)).unwrap();
    results.progress(id, 2, 0x1234);
    for _ in 0..2 {
        let status = results.status(A, 7).unwrap();
        assert_eq!(status, [0, 0, 0, 8, 0, 0, 2, 0, 0, 0, 0x12, 0x34]);
    }
    assert_eq!(results.failure(A, 7).unwrap(), [0; 4], "nothing has failed");
    assert!(results.status(B, 7).is_none(), "another nexus");
    assert!(results.status(A, 8).is_none(), "another name");
    results.end(id, CopyEnd::Completed);
    assert_eq!(results.status(A, 7).unwrap()[4], 1);
    assert!(results.status(A, 7).is_none(), "the result is returned once");
    assert!(results.copies.is_empty());
}

#[test]
fn a_failure_and_its_details_are_reported_once() {
    for details_first in [false, true] {
        let mut results = CopyResults::default();
        ended(&mut results, A, 1, CopyEnd::Failed(vec![0x70, 0, 10]));
        let mut details = None;
        if details_first {
            details = results.failure(A, 1);
        }
        assert_eq!(results.status(A, 1).unwrap()[4], 2);
        let details = details.or_else(|| results.failure(A, 1)).unwrap();
        assert_eq!(details.len(), 63);
        assert_eq!(details[..4], [0, 0, 0, 59]);
        assert_eq!(details[56..], [2, 0, 0, 3, 0x70, 0, 10]);
        assert!(results.copies.is_empty(), "details first: {details_first}");
    }
    let mut results = CopyResults::default();
    ended(&mut results, A, 1, CopyEnd::Aborted);
    assert_eq!(results.failure(A, 1).unwrap(), [0; 4]);
    assert_eq!(results.status(A, 1).unwrap()[4], 2);
    assert!(results.copies.is_empty());
}

#[test]
fn names_are_the_nexus_own_and_in_use_while_the_copy_runs() {
    let mut results = CopyResults::default();
    let id = begin(&mut results, A, Some(0)).unwrap();
    assert_eq!(begin(&mut results, A, Some(0)), Err(Sense::OPERATION_IN_PROGRESS.into()));
    let other = begin(&mut results, B, Some(0)).unwrap();
    results.end(id, CopyEnd::Aborted);
    let again = begin(&mut results, A, Some(0)).unwrap();
    assert_eq!(results.status(A, 0).unwrap()[4], 0, "the old result went");
    results.end(again, CopyEnd::Completed);
    results.end(other, CopyEnd::Completed);
    let unnamed = [(); 2].map(|()| begin(&mut results, A, None).unwrap());
    assert_ne!(unnamed[0], unnamed[1]);
    for id in unnamed {
        results.end(id, CopyEnd::Completed);
    }
    assert_eq!(results.copies.len(), 2, "a copy without identifier leaves no results");
}

#[test]
fn running_copies_are_limited_and_forgotten_ones_count() {
    let mut results = CopyResults::default();
    let by = |name: u8| NexusId(u64::from(name % 2) + 1);
    let ids: Vec<_> =
        (0..COPIES_MAX).map(|name| begin(&mut results, by(name), Some(name)).unwrap()).collect();
    let other = NexusId(3);
    assert_eq!(begin(&mut results, other, None), Err(Refusal::Busy));
    results.forget_nexus(A);
    assert!(results.status(A, 0).is_none());
    assert_eq!(begin(&mut results, other, None), Err(Refusal::Busy));
    results.end(ids[0], CopyEnd::Completed);
    let id = begin(&mut results, other, Some(1)).unwrap();
    results.end(id, CopyEnd::Completed);
    results.reset();
    assert!(results.status(other, 1).is_none());
    for id in ids {
        results.end(id, CopyEnd::Completed);
    }
    assert!(results.copies.is_empty());
}

/// Goal: one initiator leaves room for the copies of others, whatever its ISID; so do all
/// initiators of one origin, whatever their names.
#[test]
fn running_copies_are_shared() {
    let mut results = CopyResults::default();
    for number in 0..u64::from(COPIES_OF_INITIATOR_MAX) {
        results.begin(NexusId(number), &claimed("iqn.a", number, None), None).unwrap();
    }
    let again = results.begin(NexusId(90), &claimed("iqn.a", 90, None), None);
    assert_eq!(again, Err(Refusal::Busy));
    results.begin(NexusId(91), &claimed("iqn.b", 0, None), None).unwrap();
    let mut results = CopyResults::default();
    let origin = Some(Origin(7));
    for number in 0..u64::from(COPIES_OF_ORIGIN_MAX) {
        let by = claimed(&format!("iqn.{number}"), 0, origin);
        results.begin(NexusId(number), &by, None).unwrap();
    }
    let one_more = claimed("iqn.c", 0, origin);
    assert_eq!(results.begin(NexusId(90), &one_more, None), Err(Refusal::Busy));
    results.begin(NexusId(91), &claimed("iqn.c", 0, Some(Origin(8))), None).unwrap();
}

/// Goal: the results of all nexuses together are bounded, and an initiator with many nexuses
/// displaces its own.
#[test]
fn results_of_all_nexuses_are_limited() {
    let mut results = CopyResults::default();
    ended(&mut results, B, 0, CopyEnd::Completed);
    for number in 0..2000 {
        let nexus = NexusId(100 + number);
        let id = results.begin(nexus, &claimed("iqn.a", number, None), Some(1)).unwrap();
        results.end(id, CopyEnd::Completed);
    }
    assert_eq!(results.copies.len(), 1 + RESULT_SHARES.of_initiator);
    assert!(results.status(NexusId(2099), 1).is_some());
    assert!(results.status(B, 0).is_some());
    for number in 0..2000 {
        ended(&mut results, NexusId(5000 + number), 1, CopyEnd::Completed);
    }
    assert_eq!(results.copies.len(), RESULT_SHARES.of_all);
}

#[test]
fn copy_results_are_limited_and_the_oldest_is_dropped() {
    let mut results = CopyResults::default();
    ended(&mut results, B, 0, CopyEnd::Completed);
    for name in 0..=RESULTS_MAX as u8 {
        ended(&mut results, A, name, CopyEnd::Completed);
    }
    assert!(results.status(A, 0).is_none());
    assert!(results.status(A, 1).is_some());
    assert!(results.status(B, 0).is_some(), "one initiator does not push out another's");
}

#[test]
fn counts_above_32_bits() {
    assert_eq!(transfer_count(0), (0, 0));
    assert_eq!(transfer_count(u32::MAX.into()), (0, u32::MAX));
    assert_eq!(transfer_count(1 << 32), (1, 1 << 22));
    assert_eq!(transfer_count(u64::MAX), (4, (1 << 24) - 1));
}

#[test]
fn operating_parameters_bytes() {
    let reply = operating_parameters();
    assert_eq!(reply.len(), 46);
    assert_eq!(reply[..12], [0, 0, 0, 42, 1, 0, 0, 0, 0, 64, 1, 0]);
    assert_eq!(reply[12..20], [0, 0, 0x24, 0, 0x0f, 0xff, 0xf0, 0]);
    assert_eq!(reply[20..34], [0; 14]);
    assert_eq!(reply[34..40], [0, 16, 16, 9, 0, 0]);
    assert_eq!(reply[40..], [0, 0, 0, 2, 0x02, 0xe4]);
}
