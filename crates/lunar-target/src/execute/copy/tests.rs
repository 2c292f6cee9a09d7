//! Cost of a copy list before anything is copied.

use super::units::COMPARISONS;
use super::*;
use crate::disk_unit::DiskUnitOptions;
use futures_util::FutureExt;
use lunar_block::{BufferPool, MemoryDevice};
use lunar_scsi::copy::Cscd;
use lunar_scsi::unit::{InitiatorPort, TargetPort};
use lunar_scsi::vpd::{DesignatorType, naa};
use std::time::Duration;

const NEXUS: NexusId = NexusId(1);
/// Blocks of a unit.
const BLOCKS: u64 = 64;

fn units(count: u128) -> Vec<Arc<DiskUnit>> {
    let unit = |uuid| {
        let device = Arc::new(MemoryDevice::new(BLOCKS * 512, 512, 4096).unwrap());
        let options = DiskUnitOptions::new(uuid::Uuid::from_u128(uuid), device);
        let unit = DiskUnit::open(options).unwrap();
        let initiator = InitiatorPort { name: "iqn.i".into(), isid: [0; 6] };
        let port = TargetPort { name: "iqn.t".into(), portal_group_tag: 1, relative_id: 1 };
        unit.scsi().attach(NEXUS, initiator, port);
        unit
    };
    (0..count).map(unit).collect()
}

fn shown(units: &[Arc<DiskUnit>]) -> Vec<Arc<dyn Unit>> {
    units.iter().map(|unit| Arc::<DiskUnit>::clone(unit) as Arc<dyn Unit>).collect()
}

/// A list with CSCD descriptors for the units with UUIDs up to `cscds`, and segments of one block
/// from the first to the last; the last segment lies behind the end of the units.
fn wrong_list(cscds: u128, segments: u16) -> CopyList {
    let cscd = |uuid: u128| Cscd {
        code_set: 1,
        kind: DesignatorType::NAA,
        designator: naa(&uuid.to_be_bytes()).to_be_bytes().into(),
        pad: false,
        block_bytes: 512,
        at: 0,
    };
    let last = cscds as u16 - 1;
    let segment = |number: u16| CopySegment {
        source: number % (last + 1),
        destination: last,
        blocks: 1,
        counts_destination: false,
        concatenates: false,
        source_lba: if number == segments - 1 { BLOCKS } else { 0 },
        destination_lba: 1,
        at: 0,
    };
    let segments = (0..segments).map(segment).collect();
    CopyList { list_identifier: None, cscds: (0..cscds).map(cscd).collect(), segments }
}

/// Begins `copies` copies with this list, each in a command of its own.
fn copy_all(units: &[Arc<DiskUnit>], list: &CopyList, copies: usize) -> Vec<Option<bool>> {
    let (abort, quota_charge) = (AbortSignal::default(), QuotaCharge::default());
    let memory = WorkMemory { buffers: BufferPool::default(), wait_max: Duration::from_secs(1) };
    let shown = shown(units);
    let all = |_| {
        let running = Running::begin(&units[0], NEXUS, None).unwrap();
        let copy = RunningCopy {
            with_units: &|work| work(&shown),
            attach: &|_| {},
            nexus: NEXUS,
            running: &running,
            abort: &abort,
            quota_charge: &quota_charge,
            memory: &memory,
        };
        let done = copy.all(list).now_or_never();
        done.map(|done| matches!(done, Err(Stop::Check(_))))
    };
    (0..copies).map(all).collect()
}

/// Fault: the units of each segment were looked up anew, under the lock of every unit: 256 segments
/// and 64 units took 2 ms of the core.
#[test]
fn a_unit_is_looked_for_once_in_a_list() {
    let (units, list) = (units(64), wrong_list(3, 256));
    let before = COMPARISONS.get();
    assert_eq!(copy_all(&units, &list, 1), [Some(true)]);
    assert_eq!(COMPARISONS.get() - before, 3 * 64);
}

/// Fault: refused lists counted nothing in a turn, so that eight connections of them left a
/// well-behaved one a hundredth of its rate.
#[test]
fn a_refused_list_counts_in_its_turn() {
    let (units, list) = (units(64), wrong_list(2, 256));
    let mut turn = lunar_net::MoveBudget::begin();
    let in_turn = copy_all(&units, &list, 4);
    assert_eq!(in_turn, [None; 4], "a list of most segments is a turn of its own");
    assert!(turn.begin_next() && !turn.begin_next());
    drop(turn);
    assert_eq!(copy_all(&units, &list, 1), [Some(true)], "outside of turns");
    let short_ones = || {
        let _turn = lunar_net::MoveBudget::begin();
        copy_all(&units, &wrong_list(2, 16), 8).iter().filter(|done| **done == Some(true)).count()
    };
    // The time of a turn may be over before the first one ends.
    let ended = (0..1000).map(|_| short_ones()).find(|ended| *ended > 0);
    assert!(ended.is_some_and(|ended| ended < 8), "{ended:?} short ones in a turn");
}

/// Goal: a piece that is deallocated at the source waits for the permit without holding blocks of
/// the destination, and continues when it has the permit.
#[test]
fn pieces_of_zeroes_wait_for_the_permit_first() {
    let units = units(2);
    let mut list = wrong_list(2, 1);
    let segment = &mut list.segments[0];
    (segment.blocks, segment.source_lba, segment.destination_lba) = (16, 0, 0);
    let (abort, quota_charge) = (AbortSignal::default(), QuotaCharge::default());
    let memory = WorkMemory { buffers: BufferPool::default(), wait_max: Duration::from_secs(1) };
    let running = Running::begin(&units[0], NEXUS, None).unwrap();
    let copy = RunningCopy {
        with_units: &|work| work(&shown(&units)),
        attach: &|_| {},
        nexus: NEXUS,
        running: &running,
        abort: &abort,
        quota_charge: &quota_charge,
        memory: &memory,
    };
    let permit = units[1]
        .clear_limit
        .permit(&Arc::default(), &AbortSignal::default())
        .now_or_never()
        .unwrap()
        .unwrap();
    let mut copied = Box::pin(copy.all(&list));
    for _ in 0..3 {
        assert!((&mut copied).now_or_never().is_none());
    }
    let all = LbaRange { lba: 0, count: BLOCKS };
    assert!(units[1].ranges.lock(all, true).now_or_never().is_some());
    drop(permit);
    let ended = std::iter::from_fn(|| Some((&mut copied).now_or_never())).take(10).flatten().next();
    assert!(matches!(ended, Some(Ok(()))));
}
