//! Tests of features particular to the memory disk; the contract test covers features of all disks.

use super::piece::PIECE_COST;
use super::*;
use crate::{FaultDevice, IoContext, contract};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::SeqCst};

fn make(geometry: Geometry) -> Arc<dyn BlockDevice> {
    let size = geometry.size_bytes();
    let device = MemoryDevice::new(size, geometry.block_bytes, geometry.physical_block_bytes);
    Arc::new(device.unwrap())
}

/// Goal: the disk keeps the contract, alone and below the fault decorator.
#[test]
fn keeps_the_contract() {
    contract::run(&make);
    contract::run(&|geometry| FaultDevice::new(make(geometry), 0));
}

fn block_on<T>(future: impl Future<Output = T>) -> T {
    tokio::runtime::Builder::new_current_thread().build().unwrap().block_on(future)
}

/// Goal: pages appear when they are written and disappear when they are unmapped, on a disk far
/// larger than memory; its map is read without a look at every page.
#[test]
fn sparse_and_large() {
    let device = MemoryDevice::new(15 << 40, 512, 4096).unwrap();
    let last = device.geometry().block_count - 1;
    for lba in [0, 8, 1 << 30, last] {
        device.write_now(BlockRange::new(lba, 1), &[1; 512]).unwrap();
    }
    assert_eq!(device.allocated_bytes(), 4 * 4096);
    let all = BlockRange::new(0, last + 1);
    let extents = block_on(device.extents(all, 100)).unwrap();
    let mapped: Vec<_> = extents
        .iter()
        .filter(|e| e.state == ExtentState::Mapped)
        .map(|e| (e.range.lba, e.range.count))
        .collect();
    assert_eq!(mapped, [(0, 16), (1 << 30, 8), (last - 7, 8)]);
    assert_eq!(block_on(device.extents(all, 2)).unwrap(), extents[..2]);
    block_on(device.deallocate(BlockRange::new(1, last))).unwrap();
    assert_eq!(device.allocated_bytes(), 4096, "the first page still holds block 0");
    block_on(device.deallocate(all)).unwrap();
    assert_eq!(device.allocated_bytes(), 0);
    assert!(device.shards.iter().all(|shard| shard.read().unwrap().is_empty()));
}

const MIB: u64 = 1 << 20;
const BLOCKS: u64 = 64 * MIB / 512;

/// Polls `future` as often as it wakes itself; returns its result and how often it was pending.
pub(super) fn poll_to_end<T>(future: impl Future<Output = T>) -> (T, u64) {
    let wakes = Arc::new(WakeCount::default());
    let waker = Arc::clone(&wakes).into();
    let mut context = std::task::Context::from_waker(&waker);
    let mut future = std::pin::pin!(future);
    let mut pending = 0;
    loop {
        match future.as_mut().poll(&mut context) {
            std::task::Poll::Ready(done) => return (done, pending),
            std::task::Poll::Pending => pending += 1,
        }
        assert_eq!(wakes.0.load(SeqCst), pending, "it wakes itself, once");
    }
}

#[derive(Default)]
struct WakeCount(AtomicU64);

impl std::task::Wake for WakeCount {
    fn wake(self: Arc<Self>) {
        self.0.fetch_add(1, SeqCst);
    }
}

fn chunk_costs(cost: u32) -> u64 {
    u64::from(PIECE_COST.div_ceil(cost)) * CHUNK_BYTES
}

/// Fault: one poll zeroed or cleared 16 MiB, or examined 4096 chunks. Beside 64 sessions with WRITE
/// SAME commands, the request rate of another host fell to 1 %. A piece is 64 KiB of new pages, or
/// 256 KiB of existing ones.
#[test]
fn long_work_is_done_in_pieces() {
    let device = MemoryDevice::new(BLOCKS * 512, 512, 4096).unwrap();
    let all = BlockRange::new(0, BLOCKS);
    let zero = || device.write_zeroes(all, false, false);
    let pieces = |bytes: u64| 64 * MIB / bytes - 1;
    let (zeroed, pending) = poll_to_end(zero());
    zeroed.unwrap();
    assert_eq!(pending, pieces(CHUNK_BYTES), "new pages");
    assert_eq!(device.allocated_bytes(), 64 * MIB);
    let (zeroed, pending) = poll_to_end(zero());
    zeroed.unwrap();
    assert_eq!(pending, pieces(256 << 10), "pages that are there");
    let (extents, pending) = poll_to_end(device.status(all, 9));
    assert_eq!(extents.unwrap().len(), 1);
    assert_eq!(pending, (64 * MIB).div_ceil(chunk_costs(CHUNK_COST)) - 1, "a map");
    let (unmapped, pending) = poll_to_end(device.unmap(all, false));
    unmapped.unwrap();
    assert!(pending >= pieces(256 << 10), "{pending} pieces");
    assert_eq!(device.allocated_bytes(), 0);
    // Short operations complete at once.
    let short = BlockRange::new(1, 8);
    assert_eq!(poll_to_end(device.write_zeroes(short, false, false)).1, 0);
    assert_eq!(poll_to_end(device.unmap(short, false)).1, 0);
    assert_eq!(poll_to_end(device.status(short, 9)).1, 0);
}

/// Fault: a map or a deallocation of a disk with few, scattered blocks searched for the next one
/// 4096 times in one poll.
#[test]
fn searches_count_towards_a_piece() {
    const CHUNKS: u64 = 1000;
    let device = MemoryDevice::new(CHUNKS * 64 * MIB, 512, 4096).unwrap();
    let all = BlockRange::new(0, device.geometry().block_count);
    for at in 0..CHUNKS {
        device.write_now(BlockRange::new(at * 64 * MIB / 512, 1), &[1; 512]).unwrap();
    }
    let pieces_min = CHUNKS * u64::from(SEARCH_COST) / u64::from(PIECE_COST);
    let (extents, pending) = poll_to_end(device.status(all, 9999));
    assert_eq!(extents.unwrap().len() as u64, 2 * CHUNKS);
    assert!(pending >= pieces_min, "{pending} pieces");
    let (unmapped, pending) = poll_to_end(device.unmap(all, false));
    unmapped.unwrap();
    assert!(pending >= pieces_min, "{pending} pieces");
    assert_eq!(device.allocated_bytes(), 0);
}

/// Fault: one poll cleared all of the removed part of a disk that became shorter.
#[test]
fn a_resize_is_done_in_pieces() {
    let device = MemoryDevice::new(BLOCKS * 512, 512, 4096).unwrap();
    poll_to_end(device.write_zeroes(BlockRange::new(0, BLOCKS), false, false)).0.unwrap();
    let (resized, pending) = poll_to_end(Resize::resize(&device, MIB));
    resized.unwrap();
    assert!(pending >= 63 * 4 - 1, "{pending} pieces");
    assert_eq!(device.allocated_bytes(), MIB);
}

/// Fault: while one future of a connection zeroed a range, no other future of it completed.
#[test]
fn others_run_between_pieces() {
    use futures_util::{FutureExt, StreamExt, stream::FuturesUnordered};
    let device = MemoryDevice::new(BLOCKS * 512, 512, 4096).unwrap();
    let all = BlockRange::new(0, BLOCKS);
    let mut order = Vec::new();
    block_on(async {
        let zero = || device.write_zeroes(all, false, false).map(|done| (true, done)).boxed();
        let mut futures: FuturesUnordered<_> = (0..8).map(|_| zero()).collect();
        assert!(futures.next().now_or_never().is_none());
        // The future wakes itself, so the set stops after two polls: each zeroes at most one piece.
        assert!(device.allocated_bytes() <= 2 * CHUNK_BYTES);
        let write = device.write(BlockRange::new(0, 1), Bytes::from(vec![1; 512]), false);
        futures.push(write.map(|done| (false, done)).boxed());
        while let Some((zeroes, done)) = futures.next().await {
            done.unwrap();
            order.push(zeroes);
        }
    });
    assert!(!order[0], "{order:?}");
}

/// Goal: a transfer can be cancelled between two pieces, and then does nothing more; during a
/// piece, and before the first one, it cannot be cancelled.
#[test]
fn cancelled_between_pieces() {
    use futures_util::FutureExt;
    let device = MemoryDevice::new(BLOCKS * 512, 512, 4096).unwrap();
    let all = BlockRange::new(0, BLOCKS);
    let context = IoContext::new(&Arc::default());
    let mut zero = context.scope(device.write_zeroes(all, false, false)).boxed();
    assert!(!context.cancel());
    assert!((&mut zero).now_or_never().is_none());
    assert!(context.cancel());
    let error = (&mut zero).now_or_never().unwrap().unwrap_err();
    assert_eq!(error.kind, ErrorKind::Medium);
    assert_eq!(device.allocated_bytes(), CHUNK_BYTES);
    let context = IoContext::new(&Arc::default());
    poll_to_end(context.scope(device.write_zeroes(all, false, false))).0.unwrap();
    assert!(!context.cancel(), "it is over");
}
