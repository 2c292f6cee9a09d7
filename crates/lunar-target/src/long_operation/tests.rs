//! Operations that run, fail, are interrupted and resumed.

use super::*;
use crate::abort::AbortSignal;
use crate::disk_unit::DiskUnitOptions;
use crate::execute::execute;
use crate::operation_slots::OPERATIONS_MAX;
use crate::plan_result::PlanResult;
use bytes::Bytes;
use lunar_block::{
    BlockDevice, Effect, Fault, FaultDevice, FaultOperation, MemoryBudget, MemoryDevice,
    MemoryKind, MemoryOwner,
};
use lunar_scsi::long_operation::OperationKind;
use lunar_scsi::plan::Plan;
use std::future::Future;
use std::path::PathBuf;
use std::sync::Mutex;

const BY: NexusId = NexusId(1);
/// Two pieces and a part of one.
const BLOCKS: u64 = 5 * (PIECE_BYTES as u64 / 512) / 2;

/// A disk and a directory for its unit's state, both of which outlive the unit.
struct Rig {
    device: Arc<FaultDevice>,
    state: PathBuf,
}

impl Rig {
    fn new(name: &str) -> Self {
        let memory = MemoryDevice::new(BLOCKS * 512, 512, 4096).unwrap();
        let state = std::env::temp_dir().join(format!("lunar-{name}-{}", std::process::id()));
        let _ = std::fs::remove_dir_all(&state);
        let rig = Self { device: FaultDevice::new(Arc::new(memory), 0), state };
        let old = Bytes::from(vec![0x11; BLOCKS as usize * 512]);
        run(rig.device.write(BlockRange::new(0, BLOCKS), old, true)).unwrap();
        rig
    }

    fn open(&self) -> Arc<DiskUnit> {
        self.open_with(OutOfSpace::Fail)
    }

    fn open_with(&self, out_of_space: OutOfSpace) -> Arc<DiskUnit> {
        let device = Arc::<FaultDevice>::clone(&self.device);
        let options = DiskUnitOptions::new(uuid::Uuid::from_u128(7), device);
        let state = Some(self.state.clone());
        DiskUnit::open(DiskUnitOptions { state, out_of_space, ..options }).unwrap()
    }

    fn content(&self) -> Buffer {
        let buffer = BufferPool::default().take(BLOCKS as usize * 512);
        run(self.device.read(BlockRange::new(0, BLOCKS), buffer)).unwrap()
    }

    #[track_caller]
    fn holds(&self, block: &[u8]) {
        assert!(self.content().chunks(512).all(|is| is == block), "not {:x?}", &block[..8]);
    }

    fn saved(&self) -> bool {
        self.open().scsi().operation().is_some()
    }
}

impl Drop for Rig {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.state);
    }
}

fn run<T>(future: impl Future<Output = T>) -> T {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    tokio::task::LocalSet::new().block_on(&runtime, future)
}

fn sanitize(work: OperationWork) -> LongOperation {
    LongOperation { kind: OperationKind::SANITIZE, unrestricted_exit: false, work }
}

fn overwrite(pattern: &[u8], passes: u8, invert: bool) -> LongOperation {
    sanitize(OperationWork::Overwrite { pattern: pattern.to_vec(), passes, invert })
}

fn begin(unit: &Arc<DiskUnit>, operation: LongOperation) -> StartedOperation {
    unit.begin_operation(operation, BY, OperationOwner::SERVER).unwrap()
}

async fn to_the_end(unit: &Arc<DiskUnit>, operation: LongOperation) -> Result<(), Sense> {
    unit.begin_operation(operation, BY, OperationOwner::SERVER)?.ended.await.expect("an end")
}

/// A block full of a pattern.
fn block(pattern: &[u8]) -> Vec<u8> {
    pattern.iter().copied().cycle().take(512).collect()
}

/// Goal: every block begins with the first byte of the pattern; of two passes the last one writes
/// the pattern unchanged. Method: the second pass fails at once, so that the data of the first one
/// is seen.
#[test]
fn overwriting_and_inverting() {
    let rig = Rig::new("overwrite");
    let unit = rig.open();
    let pattern = [1, 2, 3, 0xf0, 5];
    let inverted = pattern.map(|byte| !byte);
    run(to_the_end(&unit, overwrite(&pattern, 1, true))).unwrap();
    rig.holds(&block(&pattern));
    for (passes, first) in [(2, inverted), (3, pattern)] {
        let writes = rig.device.seen(FaultOperation::Write);
        rig.device
            .inject(Fault::new(Effect::Fail(ErrorKind::Medium)).on(FaultOperation::Write).after(3));
        run(to_the_end(&unit, overwrite(&pattern, passes, true))).unwrap_err();
        rig.holds(&block(&first));
        rig.device.heal();
        run(to_the_end(&unit, overwrite(&pattern, passes, true))).unwrap();
        rig.holds(&block(&pattern));
        assert_eq!(rig.device.seen(FaultOperation::Write) - writes, 4 + 3 * u64::from(passes));
    }
    assert!(!unit.has_running_operation() && !rig.saved());
}

#[test]
fn block_erase_deallocates() {
    let rig = Rig::new("erase");
    let unit = rig.open();
    run(to_the_end(&unit, sanitize(OperationWork::Deallocate))).unwrap();
    rig.holds(&[0; 512]);
    let extents = run(rig.device.sparse().unwrap().status(BlockRange::new(0, BLOCKS), 9)).unwrap();
    assert!(extents.iter().all(|extent| extent.state == lunar_block::ExtentState::Unmapped));
    run(to_the_end(&unit, sanitize(OperationWork::Zero))).unwrap();
    rig.holds(&[0; 512]);
}

/// Goal: after a failure in the middle the blocks cannot be accessed, also in the next run of the
/// server, until an operation succeeds.
#[test]
fn a_failure_in_the_middle() {
    let rig = Rig::new("failure");
    let unit = rig.open();
    let bad = Fault::new(Effect::Fail(ErrorKind::Medium)).on(FaultOperation::Write);
    rig.device.inject(bad.at(BlockRange::new(BLOCKS - 1, 1)));
    let failed = run(to_the_end(&unit, overwrite(&[0xaa], 1, false)));
    assert_eq!(failed, Err(Sense::SANITIZE_COMMAND_FAILED));
    drop(unit);
    let unit = rig.open();
    assert_eq!(unit.scsi().overtaken_by_operation(), Sense::SANITIZE_COMMAND_FAILED);
    rig.device.heal();
    run(to_the_end(&unit, overwrite(&[0xaa], 1, false))).unwrap();
    rig.holds(&[0xaa; 512]);
    let unit = rig.open();
    let ready = unit.scsi().overtaken_by_operation();
    assert_eq!(ready, Sense::COMMANDS_CLEARED_BY_DEVICE_SERVER, "no operation is known");
}

/// Goal: an overwrite that finds no room fails, or waits, as configured for writes.
#[test]
fn an_overwrite_without_space() {
    for out_of_space in [OutOfSpace::Fail, OutOfSpace::Hold] {
        let rig = Rig::new("room");
        let unit = rig.open_with(out_of_space);
        let full = Fault::new(Effect::Fail(ErrorKind::NoSpace)).on(FaultOperation::Write);
        rig.device.inject(full.after(1).times(2));
        let result = run(to_the_end(&unit, overwrite(&[0x33], 1, false)));
        if out_of_space == OutOfSpace::Hold {
            result.unwrap();
            rig.holds(&[0x33; 512]);
        } else {
            assert_eq!(result, Err(Sense::SANITIZE_COMMAND_FAILED));
        }
    }
}

/// Goal: a failed flush is a failure of the operation: nothing is durable then.
#[test]
fn a_failed_flush_fails_the_operation() {
    let rig = Rig::new("durable");
    let unit = rig.open();
    rig.device.inject(Fault::new(Effect::Fail(ErrorKind::Medium)).on(FaultOperation::Flush));
    let failed = run(to_the_end(&unit, sanitize(OperationWork::Deallocate)));
    assert_eq!(failed, Err(Sense::SANITIZE_COMMAND_FAILED));
}

/// Goal: an interrupted operation begins anew with the next run, and old data can never be read.
/// Method: the second write hangs, and all state of the first run is dropped.
#[test]
fn interrupted_operations_begin_again() {
    let rig = Rig::new("cut");
    let unit = rig.open();
    rig.device.inject(Fault::new(Effect::Hang).on(FaultOperation::Write).after(1).times(1));
    run(async {
        let begun = begin(&unit, overwrite(&[0x77], 1, false));
        begun.saved.await.unwrap().unwrap();
        while rig.device.hanging() == 0 {
            tokio::task::yield_now().await;
        }
    });
    drop(unit);
    assert!(rig.content().contains(&0x11) && rig.content().contains(&0x77), "half of each");
    assert!(rig.saved());
    let unit = rig.open();
    run(Arc::clone(&unit).resume_operation());
    rig.holds(&[0x77; 512]);
    assert!(unit.scsi().operation().is_none() && !rig.saved());
}

/// Goal: a stop of the server does not end an operation: the next run does the remaining work.
#[test]
fn a_stop_is_not_the_end() {
    let rig = Rig::new("stop");
    let unit = rig.open();
    unit.stop_operation(true);
    run(async {
        let begun = begin(&unit, sanitize(OperationWork::Deallocate));
        begun.ended.await.unwrap_err();
        while unit.has_running_operation() {
            tokio::task::yield_now().await;
        }
    });
    rig.holds(&[0x11; 512]);
    assert!(rig.saved());
    unit.stop_operation(false);
    run(Arc::clone(&unit).resume_operation());
    rig.holds(&[0; 512]);
}

/// Goal: an operation whose state cannot be saved does not begin.
#[test]
fn a_change_waits_for_the_saved_state() {
    let rig = Rig::new("unsaved");
    let unit = rig.open();
    std::fs::write(&rig.state, b"a file where a directory should be").unwrap();
    let failed = run(to_the_end(&unit, sanitize(OperationWork::Deallocate)));
    std::fs::remove_file(&rig.state).unwrap();
    assert_eq!(failed, Err(internal_failure()));
    rig.holds(&[0x11; 512]);
    assert!(unit.scsi().operation().is_none());
}

/// Goal: EXIT FAILURE MODE ends a failure that allowed for it, also for the next run; if it is
/// answered with an error it does not.
#[test]
fn exit_failure_mode_is_saved() {
    let rig = Rig::new("exit");
    let unit = rig.open();
    rig.device
        .inject(Fault::new(Effect::Fail(ErrorKind::Medium)).on(FaultOperation::Write).times(1));
    let unrestricted = LongOperation { unrestricted_exit: true, ..overwrite(&[1], 1, false) };
    run(to_the_end(&unit, unrestricted)).unwrap_err();
    let exit = async || {
        let (plan, data) = (Plan::ExitFailureMode, Bytes::new());
        execute(Arc::clone(&unit), Generation::default(), plan, data, AbortSignal::default()).await
    };
    let aside = rig.state.with_extension("aside");
    std::fs::rename(&rig.state, &aside).unwrap();
    std::fs::write(&rig.state, b"a file where a directory should be").unwrap();
    assert!(matches!(run(exit()), PlanResult::Check(sense) if sense == internal_failure()));
    assert_eq!(unit.scsi().overtaken_by_operation(), Sense::SANITIZE_COMMAND_FAILED);
    std::fs::remove_file(&rig.state).unwrap();
    std::fs::rename(&aside, &rig.state).unwrap();
    assert!(matches!(run(exit()), PlanResult::Good(_)));
    let ready = Sense::COMMANDS_CLEARED_BY_DEVICE_SERVER;
    assert_eq!(unit.scsi().overtaken_by_operation(), ready);
    assert_eq!(rig.open().scsi().overtaken_by_operation(), ready);
}

/// Goal: a command checked before an operation touches no block after the operation began: it reads
/// no half-erased data, and writes nothing over erased blocks. Method: commands with an older
/// generation.
#[test]
fn commands_from_before_are_too_late() {
    let rig = Rig::new("late");
    let unit = rig.open();
    let before = unit.generation();
    let range = LbaRange { lba: 0, count: 1 };
    let plans = [
        Plan::Read { range, from_medium: false },
        Plan::Write { range, durable: true },
        Plan::Unmap { ranges: vec![range], durable: true },
        Plan::Verify { range, compare: lunar_scsi::plan::Compare::Medium },
    ];
    let execute = async |plan: &Plan, generation| {
        let data = Bytes::from(vec![0x99; 512]);
        execute(Arc::clone(&unit), generation, plan.clone(), data, AbortSignal::default()).await
    };
    for plan in &plans[..1] {
        assert!(matches!(run(execute(plan, before)), PlanResult::Good(_)));
    }
    rig.device.inject(Fault::new(Effect::Hang).on(FaultOperation::Write).times(1));
    run(async {
        let begun = begin(&unit, overwrite(&[0x77], 1, false));
        while rig.device.hanging() == 0 {
            tokio::task::yield_now().await;
        }
        let mut late = Box::pin(execute(&plans[1], before));
        assert!(futures_util::poll!(&mut late).is_pending(), "it waits for its blocks");
        rig.device.release();
        let PlanResult::Check(_) = late.await else { panic!("a write that was too late") };
        begun.ended.await.unwrap().unwrap();
    });
    for plan in &plans {
        match run(execute(plan, before)) {
            PlanResult::Check(sense) => assert_eq!(sense, Sense::COMMANDS_CLEARED_BY_DEVICE_SERVER),
            other => panic!("{plan:?}: {other:?}"),
        }
    }
    rig.holds(&[0x77; 512]);
    assert!(matches!(run(execute(&plans[1], unit.generation())), PlanResult::Good(_)));
}

/// Goal: an operation keeps its rate limit, and still stops at once.
#[test]
fn a_rate_is_kept() {
    let rig = Rig::new("rate");
    let open = |rate: u64| {
        let device = Arc::<FaultDevice>::clone(&rig.device);
        DiskUnit::open(DiskUnitOptions {
            maintenance_bytes_per_second: Some(rate),
            state: Some(rig.state.clone()),
            ..DiskUnitOptions::new(uuid::Uuid::from_u128(7), device)
        })
        .unwrap()
    };
    let began = Instant::now();
    run(to_the_end(&open(BLOCKS * 512 * 5), overwrite(&[0x55], 1, false))).unwrap();
    assert!(began.elapsed() >= Duration::from_millis(200), "took {:?}", began.elapsed());
    rig.holds(&[0x55; 512]);
    // At this rate the operation would take most of an hour.
    let unit = open(1_000);
    let writes = rig.device.seen(FaultOperation::Write);
    run(async {
        let begun = begin(&unit, overwrite(&[0x66], 1, false));
        begun.saved.await.unwrap().unwrap();
        while rig.device.seen(FaultOperation::Write) == writes {
            tokio::task::yield_now().await;
        }
        unit.stop_operation(true);
        begun.ended.await.unwrap_err();
    });
    assert!(!unit.has_running_operation() && rig.saved(), "the next run continues the operation");
}

/// Goal: a rate of 0, which no configuration allows, counts as the slowest one, and no rate leads
/// to a time that a clock cannot hold.
#[test]
fn the_slowest_pace_is_one() {
    for rate in [0, 1, u64::MAX] {
        let mut pace = Pace::new(Some(rate));
        assert!(pace.piece_bytes() >= u64::from(PHYSICAL_BLOCK_BYTES_MAX));
        let stopping = AtomicBool::new(true);
        run(pace.wait(u64::MAX, &stopping));
        run(pace.wait(u64::MAX, &stopping));
    }
}

/// A disk whose writes take at least the time of a turn, and that logs them.
#[derive(Debug)]
struct SlowWrites {
    inner: MemoryDevice,
    number: usize,
    log: Arc<Mutex<Vec<CoreWork>>>,
    /// Owners of the writes.
    owners: Mutex<Vec<Option<Arc<MemoryOwner>>>>,
}

/// Work of a core.
#[derive(Clone, Debug, PartialEq)]
enum CoreWork {
    /// A write to a disk, and its length.
    Write {
        disk: usize,
        bytes: usize,
    },
    OtherOwner,
}

/// Time of a write: several turns of an owner alongside another one.
const WRITE_TIME: Duration = Duration::from_micros(300);

impl BlockDevice for SlowWrites {
    fn name(&self) -> &str {
        "slow"
    }

    fn geometry(&self) -> lunar_block::Geometry {
        self.inner.geometry()
    }

    fn read(
        &self,
        range: BlockRange,
        into: Buffer,
    ) -> lunar_block::BoxFuture<'_, Result<Buffer, lunar_block::Error>> {
        self.inner.read(range, into)
    }

    fn write(
        &self,
        range: BlockRange,
        from: Bytes,
        durable: bool,
    ) -> lunar_block::BoxFuture<'_, Result<(), lunar_block::Error>> {
        Box::pin(async move {
            let began = Instant::now();
            while began.elapsed() < WRITE_TIME {}
            let turn = CoreWork::Write { disk: self.number, bytes: from.len() };
            self.log.lock().unwrap().push(turn);
            let context = IoContext::current();
            let owner = context.map(|context| Arc::clone(context.owner()));
            self.owners.lock().unwrap().push(owner);
            self.inner.write(range, from, durable).await
        })
    }

    fn flush(&self) -> lunar_block::BoxFuture<'_, Result<(), lunar_block::Error>> {
        self.inner.flush()
    }

    fn io_tier(&self) -> String {
        self.inner.io_tier()
    }
}

/// Fault: operations ran in tasks that counted for no owner, and each moved a mebibyte in each pass
/// of the core's queue. When one session had sent SANITIZE to each LUN of a target, another host
/// had one turn for each pass over all LUNs. Method: no owner has a connection any more; an owner
/// works alongside the operations that another one has requested, and alongside resumed ones.
#[test]
fn operations_share_the_turns_of_their_owner() {
    const DISKS: usize = 16;
    for is_resumed in [false, true] {
        let log = Arc::new(Mutex::new(Vec::new()));
        let open = |number| {
            let inner = MemoryDevice::new(BLOCKS * 512, 512, 4096).unwrap();
            let device =
                SlowWrites { inner, number, log: Arc::clone(&log), owners: Mutex::default() };
            let id = uuid::Uuid::from_u128(number as u128);
            DiskUnit::open(DiskUnitOptions::new(id, Arc::new(device))).unwrap()
        };
        let units: Vec<_> = (0..DISKS).map(open).collect();
        run(async {
            for unit in &units {
                let operation = overwrite(&[0x77], 1, false);
                if is_resumed {
                    unit.scsi().begin_operation(operation, BY).unwrap();
                    tokio::task::spawn_local(Arc::clone(unit).resume_operation());
                } else {
                    let owner = OperationOwner { time: OwnerId(7), buffers: None };
                    drop(unit.begin_operation(operation, BY, owner).unwrap());
                }
            }
            let other = lunar_net::in_turns_of(OwnerId(8), async {
                while units.iter().any(|unit| unit.scsi().operation().is_some()) {
                    log.lock().unwrap().push(CoreWork::OtherOwner);
                    tokio::task::yield_now().await;
                }
            });
            other.await;
        });
        let log = log.lock().unwrap();
        let turns = log.split(|turn| *turn == CoreWork::OtherOwner);
        assert!(turns.map(<[_]>::len).max() <= Some(2), "{log:?}");
        for number in 0..DISKS {
            let bytes = |turn: &CoreWork| match turn {
                CoreWork::Write { disk, bytes } if *disk == number => *bytes,
                _ => 0,
            };
            assert_eq!(log.iter().map(bytes).sum::<usize>(), BLOCKS as usize * 512);
            assert!(log.iter().all(|turn| bytes(turn) <= lunar_net::MOVED_PIECE_BYTES));
        }
    }
}

/// Fault: operations were work of the server at a disk, and not of the initiator that had requested
/// them, which had a second share of the workers that way.
#[test]
fn the_disk_works_for_the_owner_of_an_operation() {
    let inner = MemoryDevice::new(512, 512, 512).unwrap();
    let (log, owners) = (Arc::default(), Mutex::default());
    let device = Arc::new(SlowWrites { inner, number: 0, log, owners });
    let of_unit = Arc::<SlowWrites>::clone(&device);
    let unit = DiskUnit::open(DiskUnitOptions::new(uuid::Uuid::from_u128(7), of_unit));
    let (unit, owner) = (unit.unwrap(), Arc::default());
    let account = BufferPool::default().account(&owner, MemoryKind::Work);
    for buffers in [Some(account), None] {
        let owner = OperationOwner { time: OwnerId(7), buffers };
        run(async {
            let operation = overwrite(&[0x77], 1, false);
            unit.begin_operation(operation, BY, owner).unwrap().ended.await.unwrap().unwrap();
        });
    }
    let owners = device.owners.lock().unwrap();
    assert!(matches!(&owners[..], [Some(first), None] if Arc::ptr_eq(first, &owner)));
}

/// Fault: an operation at each of 256 units took a mebibyte of the server's memory each, whatever
/// was in use, for as long as the operations lasted: no other initiator had memory for a command or
/// a login. Method: the writes of all disks hang.
#[test]
fn a_few_operations_of_an_owner_work_at_a_time() {
    const DISKS: usize = 4 * OPERATIONS_MAX;
    let budget = MemoryBudget::new(64 << 20);
    let pool = BufferPool::with_budget(&budget);
    let open = |number| {
        let memory = MemoryDevice::new(BLOCKS * 512, 512, 4096).unwrap();
        let device = FaultDevice::new(Arc::new(memory), 0);
        device.inject(Fault::new(Effect::Hang).on(FaultOperation::Write));
        let id = uuid::Uuid::from_u128(number as u128);
        let unit = DiskUnit::open(DiskUnitOptions::new(id, Arc::<FaultDevice>::clone(&device)));
        (unit.unwrap(), device)
    };
    let disks: Vec<_> = (0..=DISKS).map(open).collect();
    let slots = Arc::default();
    disks.iter().for_each(|(unit, _)| unit.share_operation_slots(&slots));
    let begin = |number: usize, owner| {
        let buffers = Some(pool.account(&Arc::default(), MemoryKind::Work));
        let owner = OperationOwner { time: OwnerId(owner), buffers };
        disks[number].0.begin_operation(overwrite(&[0x77], 1, false), BY, owner).unwrap()
    };
    let hanging = || disks.iter().map(|(_, device)| device.hanging()).sum::<usize>();
    let work = async |expected: usize| {
        while hanging() < expected {
            tokio::task::yield_now().await;
        }
        for _ in 0..100 {
            tokio::task::yield_now().await;
        }
        assert_eq!(hanging(), expected);
        assert_eq!(pool.in_use_bytes(), expected * BufferPool::charged_bytes(PIECE_BYTES));
    };
    run(async {
        let mut begun = Vec::new();
        for number in 0..DISKS {
            let mut one = begin(number, 7);
            (&mut one.saved).await.unwrap().unwrap(); // also of those that wait
            begun.push(one);
        }
        work(OPERATIONS_MAX).await;
        begun.push(begin(DISKS, 8));
        work(OPERATIONS_MAX + 1).await;
        for (_, device) in &disks {
            device.heal();
            device.release();
        }
        for one in begun {
            one.ended.await.unwrap().unwrap();
        }
    });
    assert_eq!(budget.usage().used_bytes, pool.pooled_bytes(), "all is given back");
}

/// Goal: an operation that waits for a slot stops like one that works.
#[test]
fn an_operation_that_waits_stops() {
    let rig = Rig::new("operation-waits");
    let unit = rig.open();
    let slots = Arc::<OperationSlots>::default();
    unit.share_operation_slots(&slots);
    run(async {
        let mut taken = Vec::new();
        for _ in 0..OPERATIONS_MAX {
            taken.push(slots.take(OperationOwner::SERVER.time).await);
        }
        let mut begun = begin(&unit, overwrite(&[0x77], 1, false));
        (&mut begun.saved).await.unwrap().unwrap();
        unit.stop_operation(true);
        begun.ended.await.unwrap_err();
    });
    assert!(!unit.has_running_operation() && rig.saved(), "the next run continues the operation");
}

/// Fault: operations that waited for room at full disks kept their slots, also after a restart: no
/// other operation of their owner continued.
#[test]
fn operations_that_wait_for_space_release_their_slots() {
    let open = |number: usize| {
        let memory = MemoryDevice::new(BLOCKS * 512, 512, 4096).unwrap();
        let device = FaultDevice::new(Arc::new(memory), 0);
        let inner = Arc::<FaultDevice>::clone(&device);
        let options = DiskUnitOptions::new(uuid::Uuid::from_u128(number as u128), inner);
        let options = DiskUnitOptions { out_of_space: OutOfSpace::Hold, ..options };
        (DiskUnit::open(options).unwrap(), device)
    };
    let disks: Vec<_> = (0..=OPERATIONS_MAX).map(open).collect();
    let slots = Arc::default();
    disks.iter().for_each(|(unit, _)| unit.share_operation_slots(&slots));
    let (with_room, full) = disks.split_last().unwrap();
    run(async {
        let mut waiting = Vec::new();
        for (unit, device) in full {
            let no_room = Fault::new(Effect::Fail(ErrorKind::NoSpace)).on(FaultOperation::Write);
            device.inject(no_room);
            waiting.push(begin(unit, overwrite(&[0x77], 1, false)));
            while device.fired() == 0 {
                tokio::task::yield_now().await;
            }
        }
        to_the_end(&with_room.0, overwrite(&[0x77], 1, false)).await.unwrap();
        full.iter().for_each(|(_, device)| device.heal());
        for one in waiting {
            one.ended.await.unwrap().unwrap();
        }
    });
}
