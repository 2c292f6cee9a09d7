//! Freed memory goes back to the system. A process of its own: what others free would count.
#![cfg(all(target_os = "linux", target_env = "gnu"))]

use lunar_block::{BufferPool, MemoryBudget};
use std::time::{Duration, Instant};

const MIB: usize = 1 << 20;
const PIECE: usize = 4096;
/// One piece of so many lives on: each part of the heap is still in use somewhere.
const KEPT_ONE_OF: usize = 16;

/// Anonymous memory of this process in RAM.
fn resident_bytes() -> usize {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find(|line| line.starts_with("RssAnon:")).unwrap();
    line.split_whitespace().nth(1).unwrap().parse::<usize>().unwrap() << 10
}

/// Fault: memory of 40,000 commands that had ended stayed with the process, and buffers were
/// allocated beside it: 400 MiB were resident where 218 were charged, of 256.
#[test]
fn small_memory_goes_back_though_some_is_kept() {
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
