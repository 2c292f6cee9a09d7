//! Writes for which the disk has no space.

use super::*;
use crate::abort::AbortSignal;
use crate::disk_unit::{DiskUnit, DiskUnitOptions};
use crate::execute::{QuotaCharge, ReadMemory, execute, try_now};
use crate::long_operation::OperationOwner;
use crate::memory::WorkMemory;
use crate::plan_result::PlanResult;
use crate::unit::CommandData;
use futures_util::FutureExt;
use futures_util::future::join_all;
use lunar_block::{
    BlockDevice, BlockRange, BoxFuture, Buffer, BufferPool, Effect, Fault, FaultDevice,
    FaultOperation, Geometry, MemoryDevice,
};
use lunar_scsi::long_operation::{LongOperation, OperationKind, OperationWork};
use lunar_scsi::plan::{NexusId, Pattern, Plan};
use lunar_scsi::sense::Sense;
use std::sync::atomic::{AtomicU64, Ordering::SeqCst};
use std::sync::{Arc, Mutex};
use std::time::Duration;

const ALL: LbaRange = LbaRange { lba: 0, count: 2048 };

/// A disk that fails all changes for lack of space, and a unit on it.
fn full(out_of_space: OutOfSpace) -> (Arc<FaultDevice>, Arc<DiskUnit>) {
    let memory = Arc::new(MemoryDevice::new(1 << 20, 512, 4096).unwrap());
    let device = FaultDevice::new(memory, 0);
    for operation in [FaultOperation::Write, FaultOperation::WriteZeroes, FaultOperation::Unmap] {
        device.inject(Fault::new(Effect::Fail(ErrorKind::NoSpace)).on(operation));
    }
    let options = DiskUnitOptions::new(uuid::Uuid::from_u128(1), device.clone());
    let unit = DiskUnit::open(DiskUnitOptions { out_of_space, ..options }).unwrap();
    (device, unit)
}

fn changes() -> Vec<(Plan, Bytes)> {
    let range = LbaRange { lba: 8, count: 8 };
    let data = Bytes::from(vec![7; 4096]);
    let both = Bytes::from([vec![0; 4096], vec![7; 4096]].concat());
    let block = data.slice(..512);
    let same = |pattern| Plan::WriteSame { range, pattern, may_unmap: false, durable: true };
    vec![
        (Plan::Write { range, durable: true }, data.clone()),
        (Plan::WriteAtomic { range, durable: true }, data.clone()),
        (Plan::OrWrite { range, durable: true }, data),
        (Plan::CompareAndWrite { range, durable: true }, both),
        (same(Pattern::DataOut), block),
        (same(Pattern::Zeroes), Bytes::new()),
        (Plan::Unmap { ranges: vec![range], durable: true }, Bytes::new()),
    ]
}

fn begin(
    unit: &Arc<DiskUnit>,
    plan: Plan,
    data: Bytes,
    abort: &AbortSignal,
) -> BoxFuture<'static, PlanResult> {
    execute(Arc::clone(unit), unit.generation(), plan, data, abort.clone()).boxed()
}

fn block_on<T>(future: impl Future<Output = T>) -> T {
    let mut runtime = tokio::runtime::Builder::new_current_thread();
    runtime.enable_all().start_paused(true).build().unwrap().block_on(future)
}

#[test]
fn writes_fail_without_space_by_default() {
    for (plan, data) in changes() {
        let (_, unit) = full(OutOfSpace::Fail);
        let ending = block_on(begin(&unit, plan, data, &AbortSignal::default()));
        let PlanResult::Check(sense) = ending else { panic!("{ending:?}") };
        assert_eq!(sense.code, 0x2707);
    }
}

/// Goal: held writes are executed once there is space; commands that only read are not held.
#[test]
fn held_writes_wait_until_there_is_space() {
    for (plan, data) in changes() {
        let (device, unit) = full(OutOfSpace::Hold);
        block_on(async {
            let abort = AbortSignal::default();
            let mut write = begin(&unit, plan.clone(), data, &abort);
            tokio::time::sleep(HOLD_INTERVAL * 20).await;
            assert!((&mut write).now_or_never().is_none(), "{plan:?}");
            let read = Plan::Read { range: LbaRange { lba: 8, count: 8 }, from_medium: false };
            let read = begin(&unit, read, Bytes::new(), &abort).await;
            assert!(matches!(read, PlanResult::Good(bytes) if bytes == vec![0; 4096]));
            device.heal();
            assert!(matches!(write.await, PlanResult::Good(_)), "{plan:?}");
            let read = Plan::Read { range: LbaRange { lba: 8, count: 8 }, from_medium: false };
            let PlanResult::Good(bytes) = begin(&unit, read, Bytes::new(), &abort).await else {
                panic!("{plan:?}: it cannot be read")
            };
            let zeroes = matches!(
                plan,
                Plan::Unmap { .. } | Plan::WriteSame { pattern: Pattern::Zeroes, .. }
            );
            assert_eq!(bytes, vec![if zeroes { 0 } else { 7 }; 4096], "{plan:?}");
        });
        assert_eq!(unit.held_writes(), 0);
    }
}

/// Goal: an aborted write waits no longer, releases its range, and is never written.
#[test]
fn held_writes_can_be_aborted() {
    let (device, unit) = full(OutOfSpace::Hold);
    for (plan, data) in changes() {
        block_on(async {
            let abort = AbortSignal::default();
            let mut write = begin(&unit, plan.clone(), data, &abort);
            assert!((&mut write).now_or_never().is_none(), "{plan:?}");
            abort.raise();
            assert!(matches!(write.await, PlanResult::Aborted), "{plan:?}");
        });
    }
    device.heal();
    let all = Plan::Read { range: LbaRange { lba: 0, count: 64 }, from_medium: false };
    let read = block_on(begin(&unit, all, Bytes::new(), &AbortSignal::default()));
    assert!(matches!(read, PlanResult::Good(bytes) if bytes == vec![0; 64 * 512]));
}

/// Goal: a SANITIZE does not wait for held writes, for it may be the command that makes room; the
/// held writes end with an error, and are never written.
#[test]
fn a_long_operation_overtakes_held_writes() {
    for (plan, data) in changes() {
        let (device, unit) = full(OutOfSpace::Hold);
        block_on(tokio::task::LocalSet::new().run_until(async {
            let abort = AbortSignal::default();
            let mut write = begin(&unit, plan.clone(), data, &abort);
            assert!((&mut write).now_or_never().is_none(), "{plan:?}");
            let work = OperationWork::Overwrite { pattern: vec![9], passes: 1, invert: false };
            let kind = OperationKind::SANITIZE;
            let operation = LongOperation { kind, unrestricted_exit: false, work };
            let begun =
                unit.begin_operation(operation, NexusId(1), OperationOwner::SERVER).unwrap();
            let ending = tokio::time::timeout(HOLD_INTERVAL * 20, write).await;
            let Ok(PlanResult::Check(sense)) = ending else { panic!("{plan:?}: {ending:?}") };
            assert_eq!(sense.code, Sense::SANITIZE_IN_PROGRESS.code, "{plan:?}");
            device.heal();
            assert_eq!(begun.ended.await, Ok(Ok(())), "{plan:?}");
            let all = Plan::Read { range: LbaRange { lba: 0, count: 64 }, from_medium: false };
            let read = begin(&unit, all, Bytes::new(), &abort).await;
            assert!(matches!(read, PlanResult::Good(bytes) if bytes == vec![9; 64 * 512]));
        }));
    }
}

/// Goal: only a part of the commands of a session may be held, so that it can reach its other
/// units.
#[test]
fn held_writes_of_a_session_are_limited() {
    let (device, unit) = full(OutOfSpace::Hold);
    let abort = AbortSignal::default();
    block_on(async {
        let mut writes: Vec<_> = (0..40)
            .map(|lba| {
                let plan = Plan::Write { range: LbaRange { lba, count: 1 }, durable: false };
                begin(&unit, plan, Bytes::from(vec![7; 512]), &abort)
            })
            .collect();
        let ended: Vec<_> = writes.iter_mut().map(|write| write.now_or_never()).collect();
        assert!(ended[..32].iter().all(Option::is_none));
        assert!(ended[32..].iter().all(|ending| matches!(ending, Some(PlanResult::Busy))));
        device.heal();
        writes.truncate(32);
        let all = join_all(writes).await;
        assert!(all.iter().all(|ending| matches!(ending, PlanResult::Good(_))));
    });
}

fn range(lba: u64, count: u64) -> LbaRange {
    LbaRange { lba, count }
}

fn write(lba: u64, count: u64) -> Plan {
    Plan::Write { range: range(lba, count), durable: true }
}

/// Begins a command of this nexus.
fn begin_of(
    nexus: u64,
    unit: &Arc<DiskUnit>,
    plan: Plan,
    data: Bytes,
    abort: &AbortSignal,
) -> BoxFuture<'static, PlanResult> {
    let (unit, abort) = (Arc::clone(unit), abort.clone());
    Box::pin(async move {
        let memory =
            WorkMemory { buffers: BufferPool::default(), wait_max: Duration::from_secs(1) };
        let run = Run {
            unit: &unit,
            generation: unit.generation(),
            block_bytes: 512,
            nexus: NexusId(nexus),
            abort,
            quota_charge: QuotaCharge::default(),
            memory,
            entry: None,
            held: Mutex::default(),
        };
        run.ending(&plan, data, ReadMemory::None).await
    })
}

fn bytes(byte: u8, blocks: usize) -> Bytes {
    Bytes::from(vec![byte; blocks * 512])
}

async fn content(unit: &Arc<DiskUnit>, range: LbaRange) -> Bytes {
    let read = Plan::Read { range, from_medium: false };
    match begin(unit, read, Bytes::new(), &AbortSignal::default()).await {
        PlanResult::Good(data) => data,
        other => panic!("{other:?}"),
    }
}

fn is_good(ending: Option<PlanResult>) -> bool {
    matches!(ending, Some(PlanResult::Good(_)))
}

/// Fault: a held write locked its blocks for as long as there was no space. A COMPARE AND WRITE of
/// another host to some of these blocks, which were allocated, waited forever, and so did the
/// writes of all initiators behind it.
#[test]
fn held_writes_lock_no_blocks() {
    for (plan, data) in changes() {
        let (device, unit) = full(OutOfSpace::Hold);
        block_on(async {
            let mut waits = begin(&unit, plan.clone(), data, &AbortSignal::default());
            assert!((&mut waits).now_or_never().is_none());
            assert_eq!(unit.held_writes(), 1);
            let alone = unit.ranges.lock(ALL, true).now_or_never();
            assert!(alone.is_some(), "{plan:?}");
            tokio::time::sleep(HOLD_INTERVAL * 3).await;
            device.heal();
            assert!((&mut waits).now_or_never().is_none(), "{plan:?}: its blocks are not free");
            drop(alone);
            assert!(is_good(Some(waits.await)), "{plan:?}");
        });
        assert_eq!(unit.held_writes(), 0);
    }
}

/// Goal: a later write of the same nexus to some of the blocks comes after the held one, however
/// much room there is for it; a write of another nexus does not wait, nor does one to other blocks.
#[test]
fn later_writes_of_the_nexus_wait() {
    for is_aborted in [false, true] {
        let (device, unit) = full(OutOfSpace::Hold);
        device.heal();
        let no_room = Fault::new(Effect::Fail(ErrorKind::NoSpace)).on(FaultOperation::Write);
        device.inject(no_room.at(BlockRange::new(15, 1)));
        let (abort, never) = (AbortSignal::default(), AbortSignal::default());
        let same = |plan, data| begin_of(1, &unit, plan, data, &never);
        let other = |plan, data| begin_of(2, &unit, plan, data, &never);
        block_on(async {
            let mut held = begin_of(1, &unit, write(8, 8), bytes(1, 8), &abort);
            assert!((&mut held).now_or_never().is_none());
            let mut later = same(write(8, 2), bytes(2, 2));
            assert!((&mut later).now_or_never().is_none(), "the held write is earlier");
            let mut last = same(write(9, 1), bytes(3, 1));
            assert!((&mut last).now_or_never().is_none(), "two earlier writes are held");
            let mut whole = vec![0; 1024];
            whole[512..].fill(4);
            let compare = Plan::CompareAndWrite { range: range(14, 1), durable: true };
            assert!(is_good(other(compare, whole.into()).now_or_never()));
            assert!(is_good(same(write(7, 1), bytes(5, 1)).now_or_never()));
            assert_eq!(unit.held_writes(), 3);
            assert_eq!(content(&unit, range(14, 1)).await, bytes(4, 1));
            if is_aborted {
                abort.raise();
                assert!(matches!(held.await, PlanResult::Aborted));
            } else {
                device.heal();
                assert!(is_good(Some(held.await)));
            }
            assert!(is_good(Some(later.await)));
            assert!(is_good(Some(last.await)));
            let first = if is_aborted { 0 } else { 1 };
            let blocks = content(&unit, range(7, 9)).await;
            let blocks: Vec<u8> = blocks.chunks(512).map(|block| block[0]).collect();
            let fourth = if is_aborted { 4 } else { 1 };
            assert_eq!(blocks, [5, 2, 3, first, first, first, first, fourth, first]);
        });
        assert_eq!(unit.held_writes(), 0);
    }
}

/// Fault: an UNMAP that waited behind a held write of its nexus kept the deallocation permit for a
/// second, and so did each further UNMAP. The UNMAPs of other hosts waited for all of these.
#[test]
fn commands_behind_a_held_write_have_no_permit() {
    let or = Plan::OrWrite { range: range(8, 8), durable: true };
    for ((first, data), (clear, pattern)) in changes().into_iter().flat_map(|first| {
        let clears = changes().into_iter().skip(5);
        clears.map(move |clear| (first.clone(), clear))
    }) {
        let (device, unit) = full(OutOfSpace::Hold);
        let never = AbortSignal::default();
        let has_permit = || {
            let permit = unit.clear_limit.permit(&Arc::default(), &never).now_or_never();
            permit.is_some()
        };
        block_on(async {
            let mut held = begin(&unit, first.clone(), data, &never);
            assert!((&mut held).now_or_never().is_none());
            assert!(has_permit(), "{first:?} is held");
            let mut behind = begin(&unit, clear.clone(), pattern.clone(), &never);
            assert!((&mut behind).now_or_never().is_none());
            assert_eq!(unit.held_writes(), 2);
            assert!(has_permit(), "{clear:?} is behind {first:?}");
            device.heal();
            assert!(is_good(Some(held.await)) && is_good(Some(behind.await)));
            // The first one is held while the other one waits for its blocks.
            device.inject(Fault::new(Effect::Fail(ErrorKind::NoSpace)).on(FaultOperation::Write));
            let blocks = unit.ranges.lock(ALL, true).await;
            let mut held = begin(&unit, or.clone(), bytes(7, 8), &never);
            assert!((&mut held).now_or_never().is_none());
            let mut behind = begin(&unit, clear.clone(), pattern, &never);
            assert!((&mut behind).now_or_never().is_none());
            assert!(!has_permit(), "{clear:?} waits for its blocks");
            drop(blocks);
            assert!((&mut held).now_or_never().is_none());
            assert!((&mut behind).now_or_never().is_none());
            assert!(has_permit(), "{clear:?} waits for room");
            device.heal();
            assert!(is_good(Some(held.await)) && is_good(Some(behind.await)));
        });
        assert_eq!(unit.held_writes(), 0);
    }
}

/// Goal: while some write waits for room, `try_now` writes nothing, since it does not know the
/// nexus.
#[test]
fn try_now_writes_nothing_while_a_write_is_held() {
    let device = Arc::new(MemoryDevice::new(1 << 20, 512, 4096).unwrap());
    let options = DiskUnitOptions::new(uuid::Uuid::from_u128(1), device);
    let unit = DiskUnit::open(options).unwrap();
    let generation = unit.generation();
    let plan = Plan::Write { range: range(8, 1), durable: true };
    let write = || {
        let mut data = CommandData::Out(BufferPool::default().take(512));
        try_now(&unit, generation, &plan, &mut data)
    };
    let held = unit.hold(NexusId(1), range(8, 1).into());
    assert!(!write());
    drop(held);
    assert!(write());
}

/// A disk that has room only for blocks below `room`. If a write needs more, its first blocks are
/// written.
#[derive(Debug)]
struct SmallDisk {
    inner: MemoryDevice,
    room: AtomicU64,
}

impl BlockDevice for SmallDisk {
    fn name(&self) -> &str {
        self.inner.name()
    }

    fn geometry(&self) -> Geometry {
        self.inner.geometry()
    }

    fn read(
        &self,
        range: BlockRange,
        into: Buffer,
    ) -> BoxFuture<'_, Result<Buffer, lunar_block::Error>> {
        self.inner.read(range, into)
    }

    fn write(
        &self,
        range: BlockRange,
        from: Bytes,
        durable: bool,
    ) -> BoxFuture<'_, Result<(), lunar_block::Error>> {
        Box::pin(async move {
            let fits = self.room.load(SeqCst).saturating_sub(range.lba).min(range.count);
            let part = BlockRange::new(range.lba, fits);
            self.inner.write(part, from.slice(..fits as usize * 512), durable).await?;
            match fits == range.count {
                true => Ok(()),
                false => Err(lunar_block::Error::new(
                    ErrorKind::NoSpace,
                    self.name(),
                    "the disk is full",
                )),
            }
        })
    }

    fn flush(&self) -> BoxFuture<'_, Result<(), lunar_block::Error>> {
        self.inner.flush()
    }

    fn io_tier(&self) -> String {
        self.inner.io_tier()
    }
}

/// Goal: a command that reads and writes atomically leaves no data on the medium while it waits for
/// space, and then checks the data that was written in between.
#[test]
fn atomic_commands_wait_for_space_as_a_whole() {
    let compare = Plan::CompareAndWrite { range: range(0, 4), durable: true };
    let verified = |now: u8| Bytes::from([bytes(now, 4), bytes(3, 4)].concat());
    let or = Plan::OrWrite { range: range(0, 4), durable: true };
    for (plan, data, becomes) in [
        (&compare, verified(1), Some([3, 3, 3, 3])),
        (&or, bytes(2, 4), Some([3, 3, 3, 3])),
        (&compare, verified(1), None),
        (&or, bytes(2, 4), Some([6, 3, 3, 3])),
    ] {
        let inner = MemoryDevice::new(1 << 20, 512, 4096).unwrap();
        let device = Arc::new(SmallDisk { inner, room: AtomicU64::new(4) });
        let options =
            DiskUnitOptions::new(uuid::Uuid::from_u128(1), Arc::<SmallDisk>::clone(&device));
        let out_of_space = OutOfSpace::Hold;
        let unit = DiskUnit::open(DiskUnitOptions { out_of_space, ..options }).unwrap();
        let never = AbortSignal::default();
        let is_changed = becomes.is_none_or(|blocks| blocks[0] == 6);
        block_on(async {
            let filled = begin(&unit, write(0, 4), bytes(1, 4), &never).await;
            assert!(is_good(Some(filled)));
            device.room.store(2, SeqCst);
            let mut waits = begin(&unit, plan.clone(), data, &never);
            assert!((&mut waits).now_or_never().is_none());
            assert!(content(&unit, range(0, 4)).await == bytes(1, 4), "{plan:?}");
            tokio::time::sleep(HOLD_INTERVAL * 3).await;
            assert!((&mut waits).now_or_never().is_none());
            assert!(content(&unit, range(0, 4)).await == bytes(1, 4), "{plan:?}");
            if is_changed {
                let other_write = begin_of(2, &unit, write(0, 1), bytes(4, 1), &never);
                assert!(is_good(other_write.now_or_never()));
            }
            device.room.store(4, SeqCst);
            let ending = waits.await;
            let blocks = content(&unit, range(0, 4)).await;
            let blocks: Vec<u8> = blocks.chunks(512).map(|block| block[0]).collect();
            match becomes {
                Some(becomes) => {
                    assert!(is_good(Some(ending)), "{plan:?}");
                    assert_eq!(blocks, becomes);
                }
                None => {
                    let PlanResult::Check(sense) = ending else { panic!("{ending:?}") };
                    assert_eq!((sense.code, sense.information), (0x1d00, Some(0)));
                    assert_eq!(blocks, [4, 1, 1, 1]);
                }
            }
        });
    }
}
