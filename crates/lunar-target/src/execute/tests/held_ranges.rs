//! Long commands alongside commands that need the same blocks exclusively.

use super::*;
use futures_util::future::{Either, join_all, select};
use lunar_block::FaultOperation;
use std::pin::Pin;

/// All blocks of the disk: four pieces of a VERIFY.
const ALL: LbaRange = LbaRange { lba: 0, count: 2048 };

fn disk(out_of_space: OutOfSpace) -> (Arc<FaultDevice>, Arc<DiskUnit>) {
    let inner = MemoryDevice::new(ALL.count * 512, 512, 4096).unwrap();
    let device = FaultDevice::new(Arc::new(inner), 0);
    let options =
        DiskUnitOptions::new(uuid::Uuid::from_u128(1), Arc::<FaultDevice>::clone(&device));
    let unit = DiskUnit::open(DiskUnitOptions { out_of_space, ..options }).unwrap();
    (device, unit)
}

/// A runtime with a clock that advances when all tasks wait for it.
fn runtime() -> tokio::runtime::Runtime {
    let mut runtime = tokio::runtime::Builder::new_current_thread();
    runtime.enable_all().start_paused(true).build().unwrap()
}

fn unmap(lba: u64) -> Plan {
    Plan::Unmap { ranges: vec![range(lba, 8)], durable: true }
}

fn zero(lba: u64) -> Plan {
    zero_all(range(lba, 8))
}

fn zero_all(range: LbaRange) -> Plan {
    let (pattern, may_unmap) = (Pattern::Zeroes, false);
    Plan::WriteSame { range, pattern, may_unmap, durable: true }
}

fn all(byte: u8) -> Vec<u8> {
    vec![byte; ALL.count as usize * 512]
}

async fn content_of(unit: &Arc<DiskUnit>, range: LbaRange) -> Bytes {
    let read = Plan::Read { range, from_medium: true };
    let memory = memory_of_an_owner();
    match run_as(unit, &memory, &read, &[], &AbortSignal::default()).await {
        PlanResult::Good(data) => data,
        other => panic!("{other:?}"),
    }
}

fn is_good(ending: Option<PlanResult>) -> bool {
    matches!(ending, Some(PlanResult::Good(_)))
}

/// Polls the commands, and removes those that end GOOD; returns their number.
fn take_good<F: Future<Output = PlanResult>>(commands: &mut Vec<Pin<Box<F>>>) -> usize {
    let before = commands.len();
    commands.retain_mut(|command| !is_good(command.as_mut().now_or_never()));
    before - commands.len()
}

/// Fault: UNMAPs and WRITE SAMEs of 64 sessions held their ranges while they queued for the disk. A
/// COMPARE AND WRITE of another host waited for all of them, and the writes of all initiators
/// behind it, up to 14.8 s.
#[test]
fn one_clear_at_a_time_holds_its_range() {
    for (plan, operation) in
        [(unmap(0), FaultOperation::Unmap), (zero(0), FaultOperation::WriteZeroes)]
    {
        let (device, unit) = disk(OutOfSpace::Fail);
        device.inject(Fault::new(Effect::Hang).on(operation));
        let owners = [(); 3].map(|()| memory_of_an_owner());
        let abort = AbortSignal::default();
        let compare = Plan::CompareAndWrite { range: range(0, 1), durable: true };
        let write = Plan::Write { range: range(0, 1), durable: true };
        runtime().block_on(async {
            let clear = |_| Box::pin(run_as(&unit, &owners[0], &plan, &[], &abort));
            let mut clears: Vec<_> = (0..8).map(clear).collect();
            assert_eq!(take_good(&mut clears), 0);
            let mut compare = Box::pin(run_as(&unit, &owners[1], &compare, &[0; 1024], &abort));
            assert!((&mut compare).now_or_never().is_none());
            let mut write = Box::pin(run_as(&unit, &owners[2], &write, &[7; 512], &abort));
            assert!((&mut write).now_or_never().is_none());
            device.release();
            assert_eq!(take_good(&mut clears), 1);
            assert!(is_good((&mut compare).now_or_never()));
            assert!(is_good((&mut write).now_or_never()));
            assert_eq!(device.seen(operation), 1, "the command waited for one clear only");
            device.heal();
            assert!(join_all(clears).await.into_iter().all(|ending| is_good(Some(ending))));
        });
        assert!(unit.ranges.lock(ALL, true).now_or_never().is_some());
    }
}

/// Fault: a WRITE SAME or UNMAP held its range from its first piece to its last, and waited between
/// pieces for the turns of its connection: 5 to 20 s alongside a thousand other sessions of its
/// host. A command of another host that needed one of the blocks exclusively waited as long, as did
/// the writes of all initiators that were queued behind it.
#[test]
fn clears_hold_nothing_between_two_pieces() {
    let (_, unit) = disk(OutOfSpace::Fail);
    let (one, other) = (memory_of_an_owner(), memory_of_an_owner());
    let abort = AbortSignal::default();
    let last = range(ALL.count - 1, 1);
    let compare = Plan::CompareAndWrite { range: last, durable: true };
    let atomic = Plan::WriteAtomic { range: range(0, 64), durable: true };
    let other_commands =
        [(zero_all(last), &[][..]), (compare, &[0; 1024]), (atomic, vec![7; 64 * 512].leak())];
    let (zero, unmap) = (zero_all(ALL), Plan::Unmap { ranges: vec![ALL], durable: true });
    runtime().block_on(async {
        // A piece is 64 KiB of new pages, or 256 KiB of old ones.
        for (plan, pieces) in [(&zero, 16), (&zero, 4), (&unmap, 4)] {
            let mut clear = Box::pin(run_as(&unit, &one, plan, &[], &abort));
            for piece in 1..pieces {
                assert!((&mut clear).now_or_never().is_none(), "{plan:?}: piece {piece}");
                for (plan, data) in &other_commands {
                    let ending = run_as(&unit, &other, plan, data, &abort).now_or_never();
                    assert!(is_good(ending), "{plan:?} between two pieces");
                }
            }
            assert!(is_good(Some(clear.await)), "{plan:?}");
            let cleared = content_of(&unit, range(64, ALL.count - 64)).await;
            assert!(cleared.iter().all(|byte| *byte == 0), "{plan:?}");
        }
    });
    assert!(unit.ranges.lock(ALL, true).now_or_never().is_some());
}

/// Goal: blocks that the device clears in one piece are cleared under one lock; a claim that waits
/// when a piece ends comes before the next one.
#[test]
fn waiting_claims_run_between_two_pieces() {
    let (device, unit) = disk(OutOfSpace::Fail);
    let (one, other) = (memory_of_an_owner(), memory_of_an_owner());
    let abort = AbortSignal::default();
    // One piece, and two.
    let (short, long) = (zero(1024), zero_all(range(0, 256)));
    let compare = Plan::CompareAndWrite { range: range(200, 1), durable: true };
    runtime().block_on(async {
        assert!(is_good(run_as(&unit, &one, &short, &[], &abort).now_or_never()));
        assert_eq!(device.seen(FaultOperation::WriteZeroes), 1);
        device.inject(Fault::new(Effect::Hang).on(FaultOperation::WriteZeroes));
        let mut long = Box::pin(run_as(&unit, &one, &long, &[], &abort));
        assert!((&mut long).now_or_never().is_none());
        let mut compare = Box::pin(run_as(&unit, &other, &compare, &[0; 1024], &abort));
        assert!((&mut compare).now_or_never().is_none());
        device.heal();
        device.release();
        assert!((&mut long).now_or_never().is_none(), "the first piece");
        assert!((&mut long).now_or_never().is_none(), "the other command runs first");
        assert_eq!(device.seen(FaultOperation::WriteZeroes), 2);
        assert!(is_good((&mut compare).now_or_never()));
        assert!(is_good(Some(long.await)));
        assert_eq!(device.seen(FaultOperation::WriteZeroes), 3);
    });
}

/// Goal: a command that waits for another command to clear blocks ends when it is aborted. A
/// clearing command that hangs at the disk also ends when it is aborted, and does not delay the
/// next one.
#[test]
fn aborted_clears_release_the_next_one() {
    let (device, unit) = disk(OutOfSpace::Fail);
    device.inject(Fault::new(Effect::Hang).on(FaultOperation::Unmap));
    let (one, other) = (memory_of_an_owner(), memory_of_an_owner());
    let aborts = [(); 3].map(|()| AbortSignal::default());
    let plans = [unmap(0), unmap(16), unmap(32)];
    runtime().block_on(async {
        let mut hangs = Box::pin(run_as(&unit, &one, &plans[0], &[], &aborts[0]));
        let mut waits = Box::pin(run_as(&unit, &one, &plans[1], &[], &aborts[1]));
        let mut next = Box::pin(run_as(&unit, &other, &plans[2], &[], &aborts[2]));
        assert!((&mut hangs).now_or_never().is_none());
        assert!((&mut waits).now_or_never().is_none());
        assert!((&mut next).now_or_never().is_none());
        aborts[1].raise();
        assert!(matches!((&mut waits).now_or_never(), Some(PlanResult::Aborted)));
        device.heal();
        aborts[0].raise();
        assert!(matches!(hangs.await, PlanResult::Aborted));
        assert_eq!((unit.detached_write_count(), device.seen(FaultOperation::Unmap)), (1, 1));
        assert!(is_good(Some(next.await)));
        device.release();
        drop(unit.ranges.lock(ALL, true).await);
    });
}

/// Goal: a WRITE SAME that waits for room does not delay an UNMAP, which makes room.
#[test]
fn clears_that_wait_for_space_block_no_others() {
    let (device, unit) = disk(OutOfSpace::Hold);
    let no_room = Fault::new(Effect::Fail(ErrorKind::NoSpace));
    device.inject(no_room.on(FaultOperation::WriteZeroes));
    let (one, other) = (memory_of_an_owner(), memory_of_an_owner());
    let abort = AbortSignal::default();
    let (zero, unmap) = (zero(0), unmap(16));
    runtime().block_on(async {
        let mut waits = Box::pin(run_as(&unit, &one, &zero, &[], &abort));
        assert!((&mut waits).now_or_never().is_none());
        assert_eq!(unit.held_writes(), 1);
        assert!(is_good(run_as(&unit, &other, &unmap, &[], &abort).now_or_never()));
        device.heal();
        assert!(is_good(Some(waits.await)));
    });
}

/// Goal: a command that holds blocks exclusively for long delays the clears of other blocks only
/// for a moment.
#[test]
fn clears_that_wait_for_their_range_block_no_others() {
    let (_, unit) = disk(OutOfSpace::Fail);
    let (one, other) = (memory_of_an_owner(), memory_of_an_owner());
    let abort = AbortSignal::default();
    let (zero, unmap) = (zero(0), unmap(16));
    runtime().block_on(async {
        let alone = unit.ranges.lock(range(0, 1), true).await;
        let mut waits = Box::pin(run_as(&unit, &one, &zero, &[], &abort));
        assert!((&mut waits).now_or_never().is_none());
        let others = Box::pin(run_as(&unit, &other, &unmap, &[], &abort));
        let Either::Right((ending, waits)) = select(waits, others).await else {
            panic!("the range of the clear is not free");
        };
        assert!(is_good(Some(ending)));
        drop(alone);
        assert!(is_good(Some(waits.await)));
    });
}

/// Fault: a VERIFY held its range while its pieces waited for turns: one session of VERIFYs made
/// the COMPARE AND WRITEs of other hosts take 2 s.
#[test]
fn verify_holds_no_range() {
    let (device, unit) = disk(OutOfSpace::Fail);
    let (memory, abort) = (memory_of_an_owner(), AbortSignal::default());
    let zeroes: &'static [u8] = all(0).leak();
    let verify = |compare| Plan::Verify { range: ALL, compare };
    let write = Plan::WriteAndVerify { range: ALL, compare: Compare::Medium };
    let plans = [Compare::Medium, Compare::Bytes, Compare::OneBlock].map(verify);
    for plan in plans.iter().chain([&write]) {
        device.inject(Fault::new(Effect::Hang).on(FaultOperation::Read).after(1));
        let data = if matches!(plan, Plan::Verify { compare: Compare::OneBlock, .. }) {
            &zeroes[..512]
        } else {
            zeroes
        };
        let mut verify = Box::pin(run_as(&unit, &memory, plan, data, &abort));
        assert!((&mut verify).now_or_never().is_none());
        assert_eq!(device.hanging(), 1, "{plan:?}");
        let alone = unit.ranges.lock(ALL, true).now_or_never();
        assert!(alone.is_some(), "{plan:?}");
        drop(alone);
        device.heal();
        device.release();
        assert!(is_good((&mut verify).now_or_never()), "{plan:?}");
    }
}

/// Goal: a VERIFY sees an atomic write whole or not at all, even if the write comes between two of
/// its pieces, or may.
#[test]
fn atomic_writes_are_never_verified_in_part() {
    let (device, unit) = disk(OutOfSpace::Fail);
    let (memory, abort) = (memory_of_an_owner(), AbortSignal::default());
    let (mut old, mut new) = (all(5), all(5));
    *old.last_mut().unwrap() = 9;
    new[0] = 9;
    good(&unit, Plan::Write { range: ALL, durable: true }, &old);
    let verify = || Plan::Verify { range: ALL, compare: Compare::OneBlock };
    let plan = verify();
    device.inject(Fault::new(Effect::Hang).on(FaultOperation::Read).after(3));
    let mut running = Box::pin(run_as(&unit, &memory, &plan, &[5; 512], &abort));
    assert!((&mut running).now_or_never().is_none());
    assert_eq!((device.seen(FaultOperation::Read), device.hanging()), (4, 1));
    let atomic = Plan::WriteAtomic { range: ALL, durable: true };
    let written = run_as(&unit, &memory, &atomic, new.leak(), &abort).now_or_never();
    assert!(is_good(written));
    device.heal();
    device.release();
    let Some(PlanResult::Check(sense)) = (&mut running).now_or_never() else {
        panic!("no block is other than the pattern");
    };
    assert_eq!((sense.key, sense.information), (SenseKey::MISCOMPARE, Some(0)));
    // The VERIFY begins while an exclusive lock is held.
    let _alone = unit.ranges.lock(range(0, 1), true).now_or_never().unwrap();
    let before = device.seen(FaultOperation::Read);
    assert_eq!(sense_of(&unit, verify(), &[5; 512]).information, Some(0));
    assert_eq!(device.seen(FaultOperation::Read), before + 1, "the first piece differs");
}

/// A disk that logs the lengths of its reads in bytes.
#[derive(Debug)]
struct ReadLog {
    inner: MemoryDevice,
    reads: Mutex<Vec<usize>>,
}

impl BlockDevice for ReadLog {
    fn name(&self) -> &str {
        "read-log"
    }

    fn geometry(&self) -> lunar_block::Geometry {
        self.inner.geometry()
    }

    fn read(
        &self,
        range: BlockRange,
        into: Buffer,
    ) -> lunar_block::BoxFuture<'_, Result<Buffer, lunar_block::Error>> {
        self.reads.lock().unwrap().push(range.count as usize * 512);
        self.inner.read(range, into)
    }

    fn write(
        &self,
        range: BlockRange,
        from: Bytes,
        durable: bool,
    ) -> lunar_block::BoxFuture<'_, Result<(), lunar_block::Error>> {
        self.inner.write(range, from, durable)
    }

    fn flush(&self) -> lunar_block::BoxFuture<'_, Result<(), lunar_block::Error>> {
        self.inner.flush()
    }

    fn atomic(&self) -> Option<&dyn lunar_block::AtomicWrite> {
        self.inner.atomic()
    }

    fn io_tier(&self) -> String {
        self.inner.io_tier()
    }
}

/// Longest transfer.
const LONGEST: LbaRange = LbaRange { lba: 0, count: 16_384 };
const LONGEST_BYTES: usize = LONGEST.count as usize * 512;

fn disk_with_read_log() -> (Arc<ReadLog>, Arc<DiskUnit>) {
    let inner = MemoryDevice::new(LONGEST_BYTES as u64, 512, 4096).unwrap();
    let device = Arc::new(ReadLog { inner, reads: Mutex::default() });
    let of_unit = Arc::<ReadLog>::clone(&device);
    let options = DiskUnitOptions::new(uuid::Uuid::from_u128(1), of_unit);
    (device, DiskUnit::open(options).unwrap())
}

/// Polls a command in turns until it ends; returns the greatest number of bytes that were counted
/// as moved in one of them, and the number of turns.
fn counted_in_turns(command: impl Future<Output = PlanResult>) -> (usize, usize) {
    let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
    runtime.block_on(async {
        let mut command = std::pin::pin!(command);
        let (mut most, mut all) = (0, 0);
        loop {
            let turn = lunar_net::MoveBudget::begin();
            let polled = command.as_mut().now_or_never();
            (most, all) = (most.max(turn.moved_bytes()), all + turn.moved_bytes());
            drop(turn);
            match polled {
                None => tokio::task::yield_now().await,
                Some(PlanResult::Good(_)) => return (most, all),
                Some(other) => panic!("{other:?}"),
            }
        }
    })
}

/// Fault: while a command held blocks exclusively, or waited for some, VERIFY read all of its
/// blocks at once: 8 MiB in one poll of its connection, for 512 bytes of data-out.
#[test]
fn verify_reads_pieces_beside_exclusive_commands() {
    let (device, unit) = disk_with_read_log();
    let (memory, abort) = (memory_of_an_owner(), AbortSignal::default());
    let all: &'static [u8] = vec![0; LONGEST_BYTES].leak();
    let atomic_bytes = device.atomic().unwrap().limits().bytes_max as usize;
    let last = range(LONGEST.count - 1, 1);
    for (compare, data) in [(Compare::OneBlock, &all[..512]), (Compare::Bytes, all)] {
        for is_held in [false, true] {
            let held = is_held.then(|| unit.ranges.lock(last, true).now_or_never().unwrap());
            let plan = Plan::Verify { range: LONGEST, compare };
            counted_in_turns(run_as(&unit, &memory, &plan, data, &abort));
            drop(held);
            let reads = std::mem::take(&mut *device.reads.lock().unwrap());
            let border = if is_held { atomic_bytes } else { 0 };
            let longest = reads.iter().max().unwrap();
            assert_eq!(
                (*longest, reads.len()),
                (PIECE_BYTES + border, LONGEST_BYTES / PIECE_BYTES)
            );
        }
    }
}

/// Goal: an atomic write that covers the border of two pieces is verified whole or not at all, even
/// if it begins and ends far from the border.
#[test]
fn atomic_writes_over_a_border_are_verified_whole() {
    const PIECE_BLOCKS: u64 = PIECE_BYTES as u64 / 512;
    let (device, unit) = disk(OutOfSpace::Fail);
    let (memory, abort) = (memory_of_an_owner(), AbortSignal::default());
    let plan = Plan::Verify { range: ALL, compare: Compare::OneBlock };
    // Old blocks differ behind the border, new ones before it.
    for (first, count) in [(8, ALL.count - 16), (PIECE_BLOCKS, PIECE_BLOCKS + 8)] {
        let mut old = all(5);
        old[2 * PIECE_BYTES] = 9;
        good(&unit, Plan::Write { range: ALL, durable: true }, &old);
        device.inject(Fault::new(Effect::Hang).on(FaultOperation::Read).after(2));
        let mut running = Box::pin(run_as(&unit, &memory, &plan, &[5; 512], &abort));
        assert!((&mut running).now_or_never().is_none());
        let mut new = vec![5; count as usize * 512];
        new[0] = 9;
        let atomic = Plan::WriteAtomic { range: range(first, count), durable: true };
        assert!(is_good(run_as(&unit, &memory, &atomic, new.leak(), &abort).now_or_never()));
        device.heal();
        device.release();
        let Some(PlanResult::Check(sense)) = (&mut running).now_or_never() else {
            panic!("no block is other than the pattern");
        };
        let at = first * 512;
        assert_eq!((sense.key, sense.information), (SenseKey::MISCOMPARE, Some(at)));
    }
}

/// Fault: the data that COMPARE AND WRITE, ORWRITE, WRITE ATOMIC and WRITE AND VERIFY move was not
/// counted: 16 MiB for an ORWRITE.
#[test]
fn commands_that_move_data_count_it() {
    let (device, unit) = disk_with_read_log();
    let (memory, abort) = (memory_of_an_owner(), AbortSignal::default());
    let blocks = |count| LbaRange { lba: 0, count };
    let bytes = |count: usize| -> &'static [u8] { vec![0; count * 512].leak() };
    let durable = false;
    let (compare_and_write, or_write, atomic) = (
        Plan::CompareAndWrite { range: blocks(255), durable },
        Plan::OrWrite { range: blocks(1024), durable },
        Plan::WriteAtomic { range: blocks(1024), durable },
    );
    for (plan, data, moved_blocks) in [
        (compare_and_write, bytes(510), 510),
        (or_write, bytes(1024), 2048),
        (atomic, bytes(1024), 1024),
    ] {
        let (most, _) = counted_in_turns(run_as(&unit, &memory, &plan, data, &abort));
        assert_eq!(most, moved_blocks * 512, "{plan:?}");
    }
    let plan = Plan::WriteAndVerify { range: LONGEST, compare: Compare::Bytes };
    device.reads.lock().unwrap().clear();
    let data = bytes(LONGEST.count as usize);
    let (most, all) = counted_in_turns(run_as(&unit, &memory, &plan, data, &abort));
    assert_eq!((most <= lunar_net::TURN_BYTES, all), (true, LONGEST_BYTES));
    assert!(device.reads.lock().unwrap().iter().all(|bytes| *bytes == PIECE_BYTES));
}

/// Goal: a WRITE AND VERIFY that compares keeps its blocks from commands that need them
/// exclusively, and continues out of turn.
#[test]
fn write_and_verify_holds_its_range_to_the_end() {
    let (device, unit) = disk(OutOfSpace::Fail);
    let (memory, abort) = (memory_of_an_owner(), AbortSignal::default());
    device.inject(Fault::new(Effect::Hang).on(FaultOperation::Read).after(1));
    let plan = Plan::WriteAndVerify { range: ALL, compare: Compare::Bytes };
    let mut running = Box::pin(run_as(&unit, &memory, &plan, all(3).leak(), &abort));
    assert!((&mut running).now_or_never().is_none());
    let mut alone = Box::pin(unit.ranges.lock(ALL, true));
    assert!((&mut alone).now_or_never().is_none());
    device.heal();
    device.release();
    assert!(is_good((&mut running).now_or_never()));
    assert!((&mut alone).now_or_never().is_some());
}
