//! Freed memory returns to the system. The test needs a process of its own, because memory freed by
//! other tests would count.
#![cfg(all(target_os = "linux", target_env = "gnu"))]

use lunar_block::{BufferPool, MemoryBudget};
use std::time::{Duration, Instant};

const MIB: usize = 1 << 20;
const PIECE: usize = 4096;
/// One of this many pieces stays allocated, so that every part of the heap contains an allocation.
const KEPT_ONE_OF: usize = 16;

/// Returns the anonymous memory of this process in RAM.
fn resident_bytes() -> usize {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find(|line| line.starts_with("RssAnon:")).unwrap();
    line.split_whitespace().nth(1).unwrap().parse::<usize>().unwrap() << 10
}

/// Fault: memory of 40,000 completed commands stayed with the process, and buffers were allocated
/// in addition: 400 MiB were resident although 218 MiB of 256 MiB were charged.
#[test]
fn freed_small_memory_returns_although_some_remains() {
    let budget = MemoryBudget::new(256 * MIB);
    budget.start_heap_trimmer().unwrap();
    let pool = BufferPool::with_budget(&budget);
    let charge = pool.charge(128 * MIB);
    let mut pieces: Vec<Vec<u8>> = (0..128 * MIB / PIECE).map(|_| vec![1; PIECE]).collect();
    let before = resident_bytes();
    assert!(before > 128 * MIB);
    let mut number = 0;
    pieces.retain(|_| {
        number += 1;
        number % KEPT_ONE_OF == 0
    });
    drop(charge);
    let until = Instant::now() + Duration::from_secs(60);
    while resident_bytes() > before / 4 {
        assert!(Instant::now() < until, "{before} bytes before, {} now", resident_bytes());
        std::thread::yield_now();
    }
    assert!(pieces.iter().all(|piece| piece[0] == 1));
}

/// True when the system has a page for this byte.
fn is_resident(byte: &u8) -> bool {
    use std::os::unix::fs::FileExt;
    let pages = std::fs::File::open("/proc/self/pagemap").unwrap();
    let mut entry = [0; 8];
    let highest = if cfg!(target_endian = "little") { 7 } else { 0 };
    let page = std::ptr::from_ref(byte).addr() / PIECE;
    pages.read_exact_at(&mut entry, 8 * page as u64).unwrap();
    entry[highest] & 0x80 != 0 // bit 63, proc_pid_pagemap(5)
}

/// Fault: the allocator reused freed memory of 8 MiB buffers beyond the pool's limit and zeroed it
/// on the threads of the cores. While one host sent READs of 8 MiB and reset its connection, the
/// request rate of another host fell to 25 %.
#[test]
fn large_buffers_are_not_zeroed_when_taken() {
    const BYTES: usize = 8 * MIB;
    let budget = MemoryBudget::new(256 * MIB);
    budget.start_heap_trimmer().unwrap();
    let pool = BufferPool::new(0);
    for round in 0..8 {
        let mut buffers: Vec<_> = (0..4).map(|_| pool.take(BYTES)).collect();
        for buffer in &mut buffers {
            let pages = buffer.chunks(PIECE).filter(|page| is_resident(&page[0])).count();
            assert!(pages < BYTES / PIECE / 2, "{pages} pages were written in round {round}");
            buffer.fill(1);
        }
    }
}
