//! Writes for which there is no room.

use crate::abort::AbortSignal;
use crate::execute::{Ending, execute};
use crate::room::OutOfSpace;
use crate::unit::{LogicalUnit, LogicalUnitOptions};
use lunar_block::{Effect, ErrorKind, Fault, FaultDevice, MemoryDevice, Operation};
use bytes::Bytes;
use futures_util::FutureExt;
use futures_util::future::{BoxFuture, join_all};
use lunar_scsi::long_operation::{LongOperation, OperationKind, Work};
use lunar_scsi::plan::{LbaRange, NexusId, Pattern, Plan};
use lunar_scsi::sense::Sense;
use std::sync::Arc;

/// A disk without room for anything, and a unit over it.
fn full(out_of_space: OutOfSpace) -> (Arc<FaultDevice>, Arc<LogicalUnit>) {
    let memory = Arc::new(MemoryDevice::new(1 << 20, 512, 4096).unwrap());
    let device = FaultDevice::new(memory, 0);
    for operation in [Operation::Write, Operation::WriteZeroes, Operation::Unmap] {
        device.inject(Fault::new(Effect::Fail(ErrorKind::NoSpace)).on(operation));
    }
    let options = LogicalUnitOptions::new(uuid::Uuid::from_u128(1), device.clone());
    let unit = LogicalUnit::open(LogicalUnitOptions { out_of_space, ..options }).unwrap();
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
    unit: &Arc<LogicalUnit>,
    plan: Plan,
    data: Bytes,
    abort: &AbortSignal,
) -> BoxFuture<'static, Ending> {
    execute(Arc::clone(unit), unit.operation_generation(), plan, data, abort.clone()).boxed()
}

fn block_on<T>(future: impl Future<Output = T>) -> T {
    let mut runtime = tokio::runtime::Builder::new_current_thread();
    runtime.enable_all().start_paused(true).build().unwrap().block_on(future)
}

#[test]
fn they_fail_where_that_was_chosen() {
    for (plan, data) in changes() {
        let (_, unit) = full(OutOfSpace::Fail);
        let ending = block_on(begin(&unit, plan, data, &AbortSignal::default()));
        let Ending::Check(sense) = ending else { panic!("{ending:?}") };
        assert_eq!(sense.code, 0x2707);
    }
}

/// Goal: held, they are done once there is room; whoever only reads is not held.
#[test]
fn they_wait_until_there_is_room() {
    for (plan, data) in changes() {
        let (device, unit) = full(OutOfSpace::Hold);
        block_on(async {
            let abort = AbortSignal::default();
            let mut write = begin(&unit, plan.clone(), data, &abort);
            tokio::time::sleep(super::HOLD_INTERVAL * 20).await;
            assert!((&mut write).now_or_never().is_none(), "{plan:?}");
            let read = Plan::Read { range: LbaRange { lba: 8, count: 8 }, from_medium: false };
            let read = begin(&unit, read, Bytes::new(), &abort).await;
            assert!(matches!(read, Ending::Good(bytes) if bytes == vec![0; 4096]));
            device.heal();
            assert!(matches!(write.await, Ending::Good(_)), "{plan:?}");
            let read = Plan::Read { range: LbaRange { lba: 8, count: 8 }, from_medium: false };
            let Ending::Good(bytes) = begin(&unit, read, Bytes::new(), &abort).await else {
                panic!("{plan:?}: it cannot be read")
            };
            let zeroes = matches!(
                plan,
                Plan::Unmap { .. } | Plan::WriteSame { pattern: Pattern::Zeroes, .. }
            );
            assert_eq!(bytes, vec![if zeroes { 0 } else { 7 }; 4096], "{plan:?}");
        });
        assert_eq!(unit.held.load(std::sync::atomic::Ordering::SeqCst), 0);
    }
}

/// Goal: what is aborted waits no longer, lets its range go, and is never written.
#[test]
fn they_can_be_aborted() {
    let (device, unit) = full(OutOfSpace::Hold);
    for (plan, data) in changes() {
        block_on(async {
            let abort = AbortSignal::default();
            let mut write = begin(&unit, plan.clone(), data, &abort);
            assert!((&mut write).now_or_never().is_none(), "{plan:?}");
            abort.raise();
            assert!(matches!(write.await, Ending::Aborted), "{plan:?}");
        });
    }
    device.heal();
    let all = Plan::Read { range: LbaRange { lba: 0, count: 64 }, from_medium: false };
    let read = block_on(begin(&unit, all, Bytes::new(), &AbortSignal::default()));
    assert!(matches!(read, Ending::Good(bytes) if bytes == vec![0; 64 * 512]));
}

/// Goal: a SANITIZE does not wait for what is held, for it may be what makes room; what was held is
/// told, and never written.
#[test]
fn a_long_operation_overtakes_them() {
    for (plan, data) in changes() {
        let (device, unit) = full(OutOfSpace::Hold);
        block_on(tokio::task::LocalSet::new().run_until(async {
            let abort = AbortSignal::default();
            let mut write = begin(&unit, plan.clone(), data, &abort);
            assert!((&mut write).now_or_never().is_none(), "{plan:?}");
            let work = Work::Overwrite { pattern: vec![9], passes: 1, invert: false };
            let kind = OperationKind::SANITIZE;
            let operation = LongOperation { kind, unrestricted_exit: false, work };
            let begun = unit.begin_operation(operation, NexusId(1)).unwrap();
            let ending = tokio::time::timeout(super::HOLD_INTERVAL * 20, write).await;
            let Ok(Ending::Check(sense)) = ending else { panic!("{plan:?}: {ending:?}") };
            assert_eq!(sense.code, Sense::SANITIZE_IN_PROGRESS.code, "{plan:?}");
            device.heal();
            assert_eq!(begun.ended.await, Ok(Ok(())), "{plan:?}");
            let all = Plan::Read { range: LbaRange { lba: 0, count: 64 }, from_medium: false };
            let read = begin(&unit, all, Bytes::new(), &abort).await;
            assert!(matches!(read, Ending::Good(bytes) if bytes == vec![9; 64 * 512]));
        }));
    }
}

/// Goal: not all commands of a session may be held, or it could not reach its other units.
#[test]
fn only_so_many_wait() {
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
        assert!(ended[32..].iter().all(|ending| matches!(ending, Some(Ending::Busy))));
        device.heal();
        writes.truncate(32);
        let all = join_all(writes).await;
        assert!(all.iter().all(|ending| matches!(ending, Ending::Good(_))));
    });
}
