use super::*;
use alloc::vec;

const A: NexusId = NexusId(1);
const B: NexusId = NexusId(2);

fn ended(results: &mut CopyResults, nexus: NexusId, name: u8, end: CopyEnd) {
    let id = results.begin(nexus, Some(name)).unwrap();
    results.end(id, end);
}

#[test]
fn a_running_copy_tells_how_far_it_is_as_often_as_asked() {
    let mut results = CopyResults::default();
    let id = results.begin(A, Some(7)).unwrap();
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
    assert!(results.status(A, 7).is_none(), "told once");
    assert!(results.copies.is_empty());
}

#[test]
fn a_failure_is_told_once_and_its_details_once() {
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
    let id = results.begin(A, Some(0)).unwrap();
    assert_eq!(results.begin(A, Some(0)), Err(Sense::OPERATION_IN_PROGRESS.into()));
    let other = results.begin(B, Some(0)).unwrap();
    results.end(id, CopyEnd::Aborted);
    let again = results.begin(A, Some(0)).unwrap();
    assert_eq!(results.status(A, 0).unwrap()[4], 0, "the old result went");
    results.end(again, CopyEnd::Completed);
    results.end(other, CopyEnd::Completed);
    let unnamed = [(); 2].map(|()| results.begin(A, None).unwrap());
    assert_ne!(unnamed[0], unnamed[1]);
    for id in unnamed {
        results.end(id, CopyEnd::Completed);
    }
    assert_eq!(results.copies.len(), 2, "what has no name leaves nothing");
}

#[test]
fn running_copies_are_limited_and_forgotten_ones_count() {
    let mut results = CopyResults::default();
    let ids: Vec<_> = (0..COPIES_MAX).map(|name| results.begin(A, Some(name)).unwrap()).collect();
    assert_eq!(results.begin(B, None), Err(Refusal::Busy));
    results.forget_nexus(A);
    assert!(results.status(A, 0).is_none());
    assert_eq!(results.begin(B, None), Err(Refusal::Busy));
    results.end(ids[0], CopyEnd::Completed);
    let id = results.begin(B, Some(1)).unwrap();
    results.end(id, CopyEnd::Completed);
    results.reset();
    assert!(results.status(B, 1).is_none());
    for id in ids {
        results.end(id, CopyEnd::Completed);
    }
    assert!(results.copies.is_empty());
}

#[test]
fn results_are_limited_and_the_oldest_gives_way() {
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
fn counts_that_32_bits_do_not_hold() {
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
