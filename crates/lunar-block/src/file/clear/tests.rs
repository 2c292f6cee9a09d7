//! Tests of pieces with given times, and of the lock between pieces.

use super::*;
use crate::file::FileDevice;
use crate::file::tests::{MINUTE, Scratch, open_disk, open_with_map_slots, open_with_slots};
use crate::file::workers::{ComputingSlots, JobLimits, SlotTimes};
use crate::{BlockDevice, BlockRange, BufferPool, ForeignWaiters, IoContext, MemoryOwner, Sparse};
use bytes::Bytes;
use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use std::sync::Arc;
use std::sync::mpsc;

const KIB: u64 = 1 << 10;
const MIB: u64 = 1 << 20;
const TIB: u64 = 1 << 40;

fn block_on<T>(future: impl Future<Output = T>) -> T {
    tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap().block_on(future)
}

/// Clears `bytes` in pieces that take `time` each; returns the number of pieces and the longest
/// time.
fn clear(bytes: u64, time: impl Fn(u64) -> Duration) -> (u64, Duration) {
    let mut size = PieceSize::new(4096);
    let (mut left, mut pieces, mut longest) = (bytes, 0, Duration::ZERO);
    while left > 0 {
        let piece = size.bytes().min(left);
        let took = time(piece);
        size.adapt(piece, took);
        (left, pieces, longest) = (left - piece, pieces + 1, longest.max(took));
    }
    (pieces, longest)
}

/// Fault: the lock of a file was held for a gibibyte. Method: the test supplies the time of a
/// piece.
#[test]
fn pieces_are_short_in_time() {
    // Nanoseconds in which tmpfs zeroes a page, and in which it frees one.
    for page_nanos in [800, 40] {
        let time = |bytes: u64| Duration::from_nanos(2000 + bytes / 4096 * page_nanos);
        let (pieces, longest) = clear(1024 * MIB, time);
        assert!(longest <= PIECE_TIME, "{longest:?}");
        let total = time(1024 * MIB);
        let few = total.as_nanos() / PIECE_TIME.as_nanos() * 4 + 20;
        assert!(u128::from(pieces) <= few, "{pieces} pieces for {total:?}");
    }
    // If pieces become slower, only the first one is too long; later ones are shorter.
    let mut size = PieceSize::new(4096);
    while size.bytes() < 4 * MIB {
        size.adapt(size.bytes(), Duration::from_micros(20));
    }
    for shorter in [2 * MIB, MIB, 512 * KIB, 256 * KIB, 256 * KIB] {
        size.adapt(size.bytes(), Duration::from_millis(2));
        assert_eq!(size.bytes(), shorter);
    }
}

/// Goal: a huge range without data takes few calls, even if each call is expensive, as for a file
/// on another machine.
#[test]
fn huge_ranges_need_few_calls() {
    for call in [Duration::from_nanos(500), Duration::from_millis(2)] {
        let (pieces, _) = clear(15 * TIB, |_| call);
        assert!(pieces < 15 * TIB / PIECE_BYTES_MAX + 20, "{pieces} calls of {call:?}");
    }
    // A piece that was cut short by the end of its range does not make later ones longer.
    let mut size = PieceSize::new(MIB);
    size.adapt(4096, Duration::ZERO);
    assert_eq!(size.bytes(), MIB);
}

/// Fault: the short time of a range without data made the next piece a gibibyte of data. Pieces end
/// at multiples of their size, and follow each other without gaps.
#[test]
fn pieces_with_data_are_short() {
    let scratch = Scratch::new();
    let disk = open_disk(&scratch.options(2048 * MIB));
    let data = 1024 * MIB + 4096..1088 * MIB;
    for at in (data.start..data.end).step_by(MIB as usize) {
        disk.write(&(at..at + 4096), &[1; 4096]).unwrap();
    }
    let pieces = std::cell::RefCell::new(Vec::new());
    let all = 12_288..2048 * MIB - 512;
    let record = |piece: &std::ops::Range<u64>| {
        pieces.borrow_mut().push(piece.clone());
        Ok(())
    };
    disk.clear_sectors(&mut all.clone(), &mut PieceSize::new(4096), record, || false).unwrap();
    let pieces = pieces.into_inner();
    assert_eq!(pieces[0], 12_288..256 * KIB);
    assert_eq!(pieces.last().unwrap().end, all.end);
    for (piece, next) in pieces.iter().zip(&pieces[1..]) {
        assert_eq!(piece.end, next.start);
        assert_eq!(piece.end % (256 * KIB), 0);
    }
    for piece in pieces {
        let has_data = piece.start < data.end && data.start < piece.end;
        assert!(!has_data || piece.end - piece.start <= DATA_PIECE_BYTES_MAX, "{piece:?}");
    }
}

/// Fault: the core's own thread slept for the lock of the file while another connection deallocated
/// or zeroed blocks. Method: a piece waits for its range, which is held.
#[test]
fn writes_leave_the_core_during_a_piece() {
    let scratch = Scratch::new();
    let device = FileDevice::open(scratch.options(2 * MIB)).unwrap();
    let (one, other) = (BlockRange::new(0, 2048), BlockRange::new(2048, 1));
    let ones = Bytes::from(vec![1; 512]);
    let by_hand = || device.try_write_now(other, &ones, false);
    for deallocate in [true, false] {
        let held = device.disk.ranges.lock(&(0..512), false);
        std::thread::scope(|scope| {
            let clear = scope.spawn(|| match deallocate {
                true => block_on(device.unmap(one, false)),
                false => block_on(device.write_zeroes(one, false, false)),
            });
            while !device.disk.clears.is_piece_in_progress() {
                std::thread::yield_now();
            }
            assert!(!by_hand());
            let before = device.workers.jobs();
            block_on(device.write(other, ones.clone(), false)).unwrap();
            assert_eq!(device.workers.jobs(), before + 1);
            drop(held);
            clear.join().unwrap().unwrap();
        });
        assert!(!device.disk.clears.is_piece_in_progress());
        let again = device.disk.clears.try_inline();
        assert!(again.is_some());
    }
    assert_eq!(device.disk.clears.queued_transfers.load(SeqCst), 0);
    assert_eq!(device.disk.clears.inline_transfers.load(SeqCst), 0);
}

/// Fault: the thread that clears took the lock again before the waiting transfers woke, so they got
/// it only every few milliseconds. Between two pieces the lock is now left to waiting transfers.
#[test]
fn clears_give_way_between_pieces() {
    let scratch = Scratch::new();
    let disk = Arc::new(open_disk(&scratch.options(64 * MIB)));
    let clears = &disk.clears;
    let pauses = || clears.pauses.load(SeqCst);
    let clear = || {
        // Stands for a piece that holds the lock long enough that a pause is due.
        let held = |_: &std::ops::Range<u64>| {
            clears.count_held(HELD_TIME_MAX);
            Ok(())
        };
        disk.clear_sectors(&mut (0..MIB), &mut PieceSize::new(MIB), held, || false).unwrap();
    };
    (0..4).for_each(|_| clear());
    assert_eq!(pauses(), 0, "nobody waits");
    let waits = disk.transfer();
    (0..4).for_each(|_| clear());
    assert_eq!(pauses(), 4, "short jobs one after the other give way as well");
    clears.held_nanos.store(0, SeqCst);
    clears.pause();
    assert_eq!(pauses(), 4, "it was just held");
    drop(waits);
    clear();
    clear();
    assert_eq!(pauses(), 4);
    assert_eq!(clears.queued_transfers.load(SeqCst), 0);
}

/// Goal: a piece begins when the inline transfers before it have ended, and none begins meanwhile.
#[test]
fn inline_transfers_and_pieces_exclude() {
    let clears = ClearCoordinator::default();
    let inline = clears.try_inline().unwrap();
    drop(clears.begin_piece()); // a long inline transfer does not delay the piece forever
    drop(inline);
    let piece = clears.begin_piece();
    assert!(clears.try_inline().is_none());
    drop(piece);
    assert!(clears.try_inline().is_some());
    assert_eq!(clears.inline_transfers.load(SeqCst), 0);
}

/// Creates one slot, which a job leaves only when it ends, and time slices without length.
fn one_slot() -> ComputingSlots {
    one_slot_with_rests(0)
}

/// Creates a slot of the shortest time slices, which rests after each job.
fn one_slot_with_rests(rest_factor: u32) -> ComputingSlots {
    let times = SlotTimes {
        computing_check: if rest_factor > 0 { Duration::ZERO } else { MINUTE },
        begin_max: MINUTE,
        computing_max: MINUTE,
        time_slice: Duration::ZERO,
        rest_factor,
    };
    ComputingSlots::with_times(1, times)
}

/// Fault: a WRITE SAME of 256 MiB held the slot to its end, and long reads of all files waited for
/// it: those of a host alongside 12 others took 8.7 s. Method: a read of one owner arrives while
/// clears of three files, of another owner, wait for the slot.
#[test]
fn clears_leave_their_slot_to_other_owners() {
    const BYTES: u64 = 8 * MIB;
    let slots = one_slot();
    let scratches: Vec<_> = (0..4).map(|_| Scratch::new()).collect();
    let open = |scratch: &Scratch| open_with_slots(&scratch.options(BYTES), &slots);
    let devices: Vec<_> = scratches.iter().map(open).collect();
    let all = BlockRange::new(0, BYTES / 512);
    let (ones, zeroes) = (Bytes::from(vec![1; BYTES as usize]), vec![0; BYTES as usize]);
    for device in &devices {
        block_on(device.write(all, ones.clone(), true)).unwrap();
    }
    let (reads, clears) = devices.split_first().unwrap();
    let (one, other): (Arc<MemoryOwner>, Arc<MemoryOwner>) = Default::default();
    let before: Vec<_> = clears.iter().map(|device| device.workers.jobs()).collect();
    let jobs = |at: usize| clears[at].workers.jobs() - before[at];
    let syncs = |device: &FileDevice| device.sync_counts().unwrap().durations.count();
    let synced: Vec<_> = clears.iter().map(|device| syncs(device)).collect();
    // A job holds the slot until the others wait for it.
    let (end, held) = hold(&devices[0], &slots);
    let mut clearing: Vec<_> = clears
        .iter()
        .map(|device| {
            let (context, clear) = (IoContext::new(&one), device.write_zeroes(all, false, true));
            async move { context.scope(clear).await }.boxed()
        })
        .collect();
    assert!(clearing.iter_mut().all(|clear| clear.now_or_never().is_none()));
    let pool = BufferPool::default();
    let context = IoContext::new(&other);
    let mut read = context.scope(reads.read(all, pool.take(BYTES as usize))).boxed();
    assert!((&mut read).now_or_never().is_none());
    assert_eq!(slots.waiting(), 4);
    drop(end);
    block_on(held);
    assert!(block_on(read).unwrap()[..] == ones[..]);
    // The future of the first clear has not been polled, and therefore has queued no second job.
    let last = clears[0].read(BlockRange::new(BYTES / 512 - 1, 1), pool.take(512));
    assert_eq!(block_on(last).unwrap()[..], [1; 512], "the read waited for the whole clear");
    for result in block_on(futures_util::future::join_all(clearing)) {
        result.unwrap();
    }
    for (at, device) in clears.iter().enumerate() {
        let cleared = block_on(device.read(all, pool.take(BYTES as usize))).unwrap();
        assert!(cleared[..] == zeroes);
        assert_eq!(syncs(device), synced[at] + 1);
        assert!(at > 0 || jobs(at) >= 2, "{} jobs", jobs(at));
    }
    assert_eq!(slots.waiting(), 0);
}

/// Goal: a clear that no job waits for is one job, however long it takes.
#[test]
fn a_lone_clear_is_one_job() {
    let slots = one_slot();
    let scratch = Scratch::new();
    let device = open_with_slots(&scratch.options(64 * MIB), &slots);
    let before = device.workers.jobs();
    block_on(device.write_zeroes(BlockRange::new(0, 64 * MIB / 512), false, false)).unwrap();
    assert_eq!(device.workers.jobs() - before, 1);
}

/// Goal: a clear that stops after each piece clears all blocks of its ranges and no others, and an
/// error ends it.
#[test]
fn stopped_clears_continue_where_they_stopped() {
    let scratch = Scratch::new();
    let disk = open_disk(&scratch.options(8 * MIB));
    let ranges = [512..MIB + 512, 2 * MIB..2 * MIB + 512, 3 * MIB - 512..8 * MIB - 512];
    for deallocate in [true, false] {
        disk.write(&(0..8 * MIB), &vec![1; 8 * MIB as usize]).unwrap();
        let block_range = |bytes: &std::ops::Range<u64>| {
            let range = BlockRange::new(bytes.start / 512, (bytes.end - bytes.start) / 512);
            (range, bytes.clone())
        };
        let parts: Vec<_> = ranges.iter().map(block_range).collect();
        let mut clear = disk.unfinished_clear(&parts, deallocate);
        let mut jobs = 0;
        while clear.next_range().is_some() {
            disk.continue_clear(&mut clear, || true).unwrap();
            jobs += 1;
        }
        assert!(jobs >= 6, "{jobs} jobs");
        let mut data = vec![0; 8 * MIB as usize];
        disk.read(&(0..8 * MIB), &mut data).unwrap();
        let mut expected = vec![1; 8 * MIB as usize];
        for bytes in &ranges {
            expected[bytes.start as usize..bytes.end as usize].fill(0);
        }
        assert!(data == expected);
    }
    let mut left = 0..8 * MIB;
    let fails = |piece: &std::ops::Range<u64>| match piece.start {
        0 => Ok(()),
        _ => Err(std::io::ErrorKind::StorageFull.into()),
    };
    let mut size = PieceSize::new(4096);
    disk.clear_sectors(&mut left, &mut size, fails, || true).unwrap();
    assert_eq!(left, 256 * KIB..8 * MIB);
    disk.clear_sectors(&mut left, &mut size, fails, || true).unwrap_err();
    assert_eq!(left, 256 * KIB..8 * MIB);
}

/// Creates a file of this many extents, each of 64 KiB in 256 KiB.
fn write_extents(device: &FileDevice, extents: u64) {
    let data = Bytes::from(vec![1; 128 * 512]);
    for extent in 0..extents {
        let range = BlockRange::new(extent * 512, 128);
        block_on(device.write(range, data.clone(), true)).unwrap();
    }
}

/// Fault: GET LBA STATUS of a file with thousands of extents held the slot for up to 13 ms, and
/// each job of another host waited for it. Method: a map of one owner arrives while a map of
/// another owner waits for the slot.
#[test]
fn maps_leave_their_slot_to_other_owners() {
    const BYTES: u64 = 8 * MIB;
    const EXTENTS: u64 = 16;
    let (slots, map_slots) = (one_slot(), one_slot());
    let scratches = [Scratch::new(), Scratch::new()];
    let open = |scratch: &Scratch| open_with_map_slots(&scratch.options(BYTES), &slots, &map_slots);
    let [mapped, other_disk] = scratches.each_ref().map(open);
    write_extents(&mapped, EXTENTS);
    let before = mapped.workers.jobs();
    let (one, other): (Arc<MemoryOwner>, Arc<MemoryOwner>) = Default::default();
    let all = BlockRange::new(0, BYTES / 512);
    // A job holds the slot until the others wait for it.
    let (end, held) = hold(&other_disk, &map_slots);
    let context = IoContext::new(&one);
    let mut map = context.scope(mapped.status(all, 100)).boxed();
    assert!((&mut map).now_or_never().is_none());
    let context = IoContext::new(&other);
    let mut other_map = context.scope(other_disk.status(all, 100)).boxed();
    assert!((&mut other_map).now_or_never().is_none());
    assert_eq!((slots.waiting(), map_slots.waiting()), (0, 2));
    drop(end);
    block_on(held);
    assert_eq!(block_on(other_map).unwrap().len(), 1);
    assert_eq!(mapped.workers.jobs(), before + 1, "a part of the map");
    assert_eq!(block_on(map).unwrap().len() as u64, 2 * EXTENTS);
    assert!(mapped.workers.jobs() > before + 1);
}

/// Keeps one of these slots in use, by a job of this device, until the sender is dropped. Returns
/// when the job has the slot: an earlier job returns its slot a moment after its result.
fn hold<'a>(
    device: &'a FileDevice,
    slots: &'a ComputingSlots,
) -> (mpsc::Sender<()>, BoxFuture<'a, ()>) {
    let (end, ended) = mpsc::channel::<()>();
    let (begin, begun) = mpsc::channel::<()>();
    let limits = JobLimits { permits: None, slots: Some(slots), is_continued: false };
    let job = device.workers.run_within(limits, move || {
        drop(begin);
        _ = ended.recv();
    });
    let mut held = job.map(Result::unwrap).boxed();
    assert!((&mut held).now_or_never().is_none());
    _ = begun.recv(); // fails when the job has begun
    (end, held)
}

/// Fault: SEEK_HOLE over gigabytes of data took 40 ms and more in the slot of transfers, so maps of
/// three hosts made writes of others wait for 3.6 s. Goal: maps and transfers do not wait for each
/// other.
#[test]
fn maps_hold_no_slot_of_transfers() {
    const BYTES: u64 = 4 * MIB;
    let (slots, map_slots) = (one_slot(), one_slot());
    let scratches = [Scratch::new(), Scratch::new()];
    let open = |scratch: &Scratch| open_with_map_slots(&scratch.options(BYTES), &slots, &map_slots);
    let [mapped, other_disk] = scratches.each_ref().map(open);
    let all = BlockRange::new(0, BYTES / 512);
    let (end, held) = hold(&other_disk, &slots);
    let mut map = mapped.status(all, 9);
    let ended = (&mut map).now_or_never();
    assert_eq!((slots.waiting(), map_slots.waiting()), (0, 0));
    ended.unwrap_or_else(|| block_on(map)).unwrap();
    drop(end);
    block_on(held);
    let (end, held) = hold(&mapped, &map_slots);
    let mut waits = mapped.status(all, 8); // another map than the first, which was short
    assert!((&mut waits).now_or_never().is_none());
    assert_eq!((slots.waiting(), map_slots.waiting()), (0, 1));
    let ones = Bytes::from(vec![1; BYTES as usize]);
    block_on(other_disk.write(all, ones.clone(), false)).unwrap();
    let buffer = BufferPool::default().take(BYTES as usize);
    assert!(block_on(other_disk.read(all, buffer)).unwrap()[..] == ones[..]);
    block_on(other_disk.write_zeroes(all, false, false)).unwrap();
    assert_eq!(map_slots.waiting(), 1);
    drop(end);
    block_on(held);
    assert_eq!(block_on(waits).unwrap().len(), 1);
}

/// Fault: a server that exports LUNs of another one sends the maps of all its hosts, and is one
/// owner there. Its short maps waited for its long ones: a host with eight long maps left the
/// others less than one map a second, instead of 171. Goal: a new job waits for one slice of the
/// long maps of its owner only. Method: three maps wait for their second slices.
#[test]
fn a_new_job_waits_for_one_slice_of_long_maps() {
    const BYTES: u64 = 8 * MIB;
    let (slots, map_slots) = (one_slot(), one_slot_with_rests(1));
    let scratch = Scratch::new();
    let mapped = open_with_map_slots(&scratch.options(BYTES), &slots, &map_slots);
    write_extents(&mapped, 16);
    let owner: Arc<MemoryOwner> = Arc::default();
    let contexts = [(); 4].map(|()| IoContext::new(&owner));
    let all = BlockRange::new(0, BYTES / 512);
    let first = hold(&mapped, &map_slots);
    let map = |at: usize| contexts[at].scope(mapped.status(all, 100)).boxed();
    let [mut one, mut two, mut three] = [0, 1, 2].map(map);
    let mut poll_all = || {
        for map in [&mut one, &mut two, &mut three] {
            assert!(map.now_or_never().is_none());
        }
    };
    poll_all();
    drop(first.0);
    block_on(first.1);
    // A slot that rests has waiting jobs and none in use, so both are counted at one moment. A map
    // that leaves the first queue is passed to the second by a job that still has the slot.
    while mapped.maps.waiting() > 0 || map_slots.jobs() > 0 {
        std::thread::yield_now(); // each map has had a slice
    }
    let second = hold(&mapped, &map_slots);
    poll_all();
    let (begin, begun) = mpsc::channel();
    let (end, ended) = mpsc::channel::<()>();
    let permits = Some(&mapped.maps);
    let limits = JobLimits { permits, slots: Some(&map_slots), is_continued: false };
    let job = move || {
        begin.send(()).unwrap();
        _ = ended.recv();
    };
    let mut new = contexts[3].scope(mapped.workers.run_within(limits, job)).boxed();
    assert!((&mut new).now_or_never().is_none());
    drop(second.0);
    block_on(second.1);
    begun.recv_timeout(MINUTE).unwrap();
    assert_eq!(mapped.maps.waiting(), 2, "one map has had a second slice");
    drop(end);
    block_on(new).unwrap();
    for map in [one, two, three] {
        assert_eq!(block_on(map).unwrap().len(), 32);
    }
}

/// A transfer that others wait for.
#[derive(Debug)]
struct Awaited;

impl ForeignWaiters for Awaited {
    fn are_waiting(&self) -> bool {
        true
    }
}

/// Fault: a clear that others waited for left its slot to other jobs of its own owner after each
/// slice: with maps of that owner between them, UNMAP of another host waited for 3.1 s.
#[test]
fn an_awaited_clear_keeps_its_slot_from_jobs_of_its_owner() {
    const BYTES: u64 = 8 * MIB;
    let slots = one_slot();
    let scratches = [Scratch::new(), Scratch::new()];
    let open = |scratch: &Scratch| open_with_slots(&scratch.options(BYTES), &slots);
    let [cleared, other_disk] = scratches.each_ref().map(open);
    let all = BlockRange::new(0, BYTES / 512);
    let ones = Bytes::from(vec![1; BYTES as usize]);
    for device in [&cleared, &other_disk] {
        block_on(device.write(all, ones.clone(), true)).unwrap();
    }
    let before = cleared.workers.jobs();
    let (end, held) = hold(&other_disk, &slots);
    let owner = Arc::default();
    let context = IoContext::new(&owner);
    let buffer = BufferPool::default().take(BYTES as usize);
    let mut read = context.scope(other_disk.read(all, buffer)).boxed();
    assert!((&mut read).now_or_never().is_none());
    let context = IoContext::with_foreign_waiters(&owner, Some(Arc::new(Awaited)));
    let mut clear = context.scope(cleared.write_zeroes(all, false, false)).boxed();
    assert!((&mut clear).now_or_never().is_none());
    assert_eq!(slots.waiting(), 2);
    drop(end);
    block_on(held);
    block_on(clear).unwrap();
    assert_eq!(cleared.workers.jobs() - before, 1);
    assert!(block_on(read).unwrap()[..] == ones[..]);
}

/// Fault: a clear searched for the end of the data in its next piece, gigabytes later, although it
/// needs the start only. Method: the position of the file shows where the last search ended.
#[test]
fn a_clear_does_not_search_for_the_end_of_data() {
    const START: u64 = 8 * MIB;
    const DATA: u64 = 12 * MIB;
    const END: u64 = 32 * MIB;
    let scratch = Scratch::new();
    let disk = open_disk(&scratch.options(END));
    disk.write(&(DATA..END), &vec![1; (END - DATA) as usize]).unwrap();
    let mut size = PieceSize::new(4096);
    while size.bytes() < START {
        size.adapt(size.bytes(), Duration::ZERO);
    }
    disk.clear_sectors(&mut (START..DATA + MIB), &mut size, |_| Ok(()), || false).unwrap();
    assert_eq!(rustix::fs::tell(&disk.file).unwrap(), DATA);
}
