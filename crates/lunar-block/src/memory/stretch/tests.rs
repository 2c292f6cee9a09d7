//! Tests of zeroing and deallocation with concurrent atomic writes.

use super::super::tests::poll_to_end;
use super::{RESTARTS_MAX, STRETCH_BYTES};
use crate::memory::CHUNK_BYTES;
use crate::{
    AtomicWrite, BlockDevice, BlockRange, BoxFuture, BufferPool, Clear, Error, MemoryDevice,
    PAGE_BYTES, Resize, Sparse, random,
};
use bytes::Bytes;
use futures_util::FutureExt;

const CHUNK_BLOCKS: u64 = CHUNK_BYTES / 512;
const STRETCH_BLOCKS: u64 = STRETCH_BYTES / 512;

fn device(stretches: u64) -> MemoryDevice {
    MemoryDevice::new(stretches * STRETCH_BYTES, 512, 4096).unwrap()
}

/// Writes `range` atomically, filled with this byte; the write is never pending.
fn write_atomic(device: &MemoryDevice, range: BlockRange, byte: u8) {
    let data = Bytes::from(vec![byte; range.count as usize * 512]);
    let written = device.write_atomic(range, data, false).now_or_never();
    written.expect("an atomic write waits").unwrap();
}

/// Reads `range`; the read is never pending.
fn read(device: &MemoryDevice, range: BlockRange) -> Vec<u8> {
    let into = BufferPool::default().take(range.count as usize * 512);
    let read = device.read(range, into).now_or_never().expect("a read waits");
    read.unwrap().to_vec()
}

/// Fault: zeroing and deallocation held the fence from piece to piece. An atomic write then waited
/// for 16 polls of that connection, and so did all later operations across a chunk boundary. Beside
/// one session of WRITE ATOMIC and 64 of WRITE SAME, another host completed 24 instead of 9,100
/// requests per second. A resize held the fence from its beginning to its end.
#[test]
fn no_transfer_waits_for_the_next_piece_of_another_one() {
    const STRETCHES: u64 = 4;
    type Begin = fn(&MemoryDevice, BlockRange) -> BoxFuture<'_, Result<(), Error>>;
    let begins: [Begin; 3] = [
        |device, range| device.write_zeroes(range, false, false),
        |device, range| device.unmap(range, false),
        |device, _| Resize::resize(device, STRETCH_BYTES),
    ];
    for begin in begins {
        let device = device(STRETCHES);
        let all = BlockRange::new(0, STRETCHES * STRETCH_BLOCKS);
        poll_to_end(device.write_zeroes(all, false, false)).0.unwrap();
        let mut long = begin(&device, all);
        let border = BlockRange::new(CHUNK_BLOCKS - 8, 16);
        for piece in 1..=2 {
            assert!((&mut long).now_or_never().is_none());
            write_atomic(&device, border, piece);
            assert!(read(&device, border).iter().all(|byte| *byte == piece));
            let mut into = vec![0; 16 * 512];
            assert!(device.try_read_now(border, &mut into) && into[0] == piece);
            assert!(device.try_write_now(border, &into, false));
        }
        poll_to_end(long).0.unwrap();
    }
}

/// Goal: a stretch restarts only a few times, however many atomic writes come. Method: the whole
/// stretch is written between any two pieces.
#[test]
fn a_stretch_ends() {
    let device = device(1);
    let all = BlockRange::new(0, STRETCH_BLOCKS);
    let mut zero = device.write_zeroes(all, false, false);
    let mut pending = 0;
    while (&mut zero).now_or_never().is_none() {
        pending += 1;
        write_atomic(&device, all, 7);
    }
    assert_eq!(pending, RESTARTS_MAX);
    assert!(read(&device, all).iter().all(|byte| *byte == 0), "the zeroes were written last");
}

/// Goal: an atomic write elsewhere, or one that ends or begins at the boundary between two pieces,
/// causes no restart of a stretch.
#[test]
fn atomic_writes_at_piece_boundaries_cause_no_restart() {
    const PIECE_BLOCKS: u64 = (256 << 10) / 512;
    let device = device(4);
    let zero = || device.write_zeroes(BlockRange::new(0, STRETCH_BLOCKS), false, false);
    poll_to_end(zero()).0.unwrap();
    let mut zero = zero();
    let mut border = 0;
    while (&mut zero).now_or_never().is_none() {
        border += PIECE_BLOCKS;
        let elsewhere = BlockRange::new(2 * STRETCH_BLOCKS, STRETCH_BLOCKS);
        let before = BlockRange::new(border - CHUNK_BLOCKS - 8, CHUNK_BLOCKS + 8);
        let after = BlockRange::new(border, CHUNK_BLOCKS + 8);
        for range in [elsewhere, before, after] {
            write_atomic(&device, range, 7);
        }
    }
    assert_eq!(border + PIECE_BLOCKS, STRETCH_BLOCKS);
}

/// Goal: pieces of several ranges clear all of the ranges and nothing else, and come to an end.
#[test]
fn pieces_clear_all_ranges() {
    let device = device(4);
    let all = BlockRange::new(0, 4 * STRETCH_BLOCKS);
    let ranges = [
        BlockRange::new(1, 8),
        BlockRange::new(CHUNK_BLOCKS - 8, 2 * STRETCH_BLOCKS),
        BlockRange::new(3 * STRETCH_BLOCKS, 5 * CHUNK_BLOCKS),
    ];
    let clears = [Clear::Unmap, Clear::Zero { may_unmap: true }, Clear::Zero { may_unmap: false }];
    for clear in clears {
        let data = Bytes::from(vec![7; all.count as usize * 512]);
        device.write(all, data, false).now_or_never().unwrap().unwrap();
        let (mut from, mut pieces) = (0, 0);
        loop {
            let rest: Vec<_> = ranges
                .iter()
                .filter(|range| range.lba + range.count > from)
                .map(|range| {
                    let lba = range.lba.max(from);
                    BlockRange::new(lba, range.lba + range.count - lba)
                })
                .collect();
            if rest.is_empty() {
                break;
            }
            let piece = device.clear_piece(rest, clear, false).now_or_never();
            let cleared = piece.expect("a piece waits").unwrap();
            assert!(cleared > from);
            (from, pieces) = (cleared, pieces + 1);
        }
        assert!((8..=12).contains(&pieces), "{pieces} pieces of 256 KiB");
        let content = read(&device, all);
        for (lba, block) in content.chunks(512).enumerate() {
            let lba = lba as u64;
            let mut holding =
                ranges.iter().filter(|range| (range.lba..range.lba + range.count).contains(&lba));
            let expected = if holding.next().is_some() { 0 } else { 7 };
            assert!(block.iter().all(|byte| *byte == expected), "{clear:?}: block {lba}");
        }
    }
}

const PAGES: u64 = 2 * STRETCH_BYTES / PAGE_BYTES as u64;

/// Contents of all pages, one byte per page.
type Pages = Vec<u8>;

fn fill(pages: &mut Pages, range: BlockRange, byte: u8) {
    pages[range.lba as usize..][..range.count as usize].fill(byte);
}

/// Goal: zeroing and deallocation of up to a stretch tear no atomic write, at any point in time.
/// Method: one of them is polled between atomic writes of random ranges; in the end the disk holds
/// the data that it would hold if each write had come as a whole before or after it.
#[test]
fn atomic_writes_are_not_split() {
    let seed = std::hash::BuildHasher::hash_one(&std::hash::RandomState::new(), 0);
    println!("seed {seed:#x}");
    let mut random = seed;
    let device = device(2);
    for round in 0..200 {
        let before = contents(&device);
        let (cleared, writes) = race(&device, &mut random);
        let found = contents(&device);
        let expected = expected(&before, cleared, &writes, &found);
        let differs = (0..PAGES as usize).find(|at| found[*at] != expected[*at]);
        assert_eq!(differs, None, "round {round}: {cleared:?} among {writes:?}");
    }
}

fn contents(device: &MemoryDevice) -> Pages {
    let bytes = read(device, BlockRange::new(0, PAGES * 8));
    bytes.iter().step_by(PAGE_BYTES).copied().collect()
}

/// Draws a range of at most `count_max` pages; short ranges are more frequent.
fn random_range(random: &mut u64, count_max: u64) -> BlockRange {
    let mut draw = |below: u64| random::next(random) % below;
    let count_max = if draw(2) == 0 { count_max } else { 40 };
    let count = 1 + draw(count_max);
    BlockRange::new(draw(PAGES - count + 1), count)
}

fn in_blocks(range: BlockRange) -> BlockRange {
    BlockRange::new(range.lba * 8, range.count * 8)
}

/// Clears a range while atomic writes come in between; returns the range and the writes.
fn race(device: &MemoryDevice, random: &mut u64) -> (BlockRange, Vec<(BlockRange, u8)>) {
    const STRETCH_PAGES: u64 = STRETCH_BYTES / PAGE_BYTES as u64;
    let cleared = random_range(random, STRETCH_PAGES);
    let may_unmap = random::next(random).is_multiple_of(2);
    let mut zero = device.write_zeroes(in_blocks(cleared), may_unmap, false);
    let mut writes = Vec::new();
    loop {
        if random::next(random).is_multiple_of(2) {
            let range = random_range(random, STRETCH_PAGES);
            let byte = 1 + random::next(random) as u8 % 255;
            write_atomic(device, in_blocks(range), byte);
            assert!(read(device, in_blocks(range)).iter().all(|found| *found == byte));
            writes.push((range, byte));
        } else if let Some(done) = (&mut zero).now_or_never() {
            done.unwrap();
            return (cleared, writes);
        }
    }
}

/// Computes the expected contents. Writes of which a page was `found` cleared came before the
/// clearing, and so did the writes that they overwrote; all other writes came after it.
fn expected(
    before: &Pages,
    cleared: BlockRange,
    writes: &[(BlockRange, u8)],
    found: &Pages,
) -> Pages {
    let is_in = |range: BlockRange, page: u64| (range.lba..range.lba + range.count).contains(&page);
    let mut is_before = vec![false; writes.len()];
    for page in (0..PAGES).filter(|page| is_in(cleared, *page)) {
        let last = writes.iter().rposition(|(range, _)| is_in(*range, page));
        if let Some(last) = last.filter(|_| found[page as usize] == 0) {
            is_before[last] = true;
        }
    }
    for later in (0..writes.len()).rev() {
        for earlier in 0..later {
            let both =
                |page: &u64| is_in(writes[earlier].0, *page) && is_in(writes[later].0, *page);
            let overlap = (cleared.lba..cleared.lba + cleared.count).any(|page| both(&page));
            is_before[earlier] |= is_before[later] && overlap;
        }
    }
    let mut pages = before.clone();
    writes.iter().for_each(|(range, byte)| fill(&mut pages, *range, *byte));
    let outside = pages;
    let mut pages = before.clone();
    for turn in [true, false] {
        for (write, _) in writes.iter().zip(&is_before).filter(|(_, before)| **before == turn) {
            fill(&mut pages, write.0, write.1);
        }
        if turn {
            fill(&mut pages, cleared, 0);
        }
    }
    let page = |at: u64| if is_in(cleared, at) { pages[at as usize] } else { outside[at as usize] };
    (0..PAGES).map(page).collect()
}
