//! The system's allocator, which counts what is allocated: `GlobalAlloc` is an unsafe trait.

use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

/// Counts in [`allocated_bytes`].
pub struct CountingAllocator;

static ALLOCATED: AtomicUsize = AtomicUsize::new(0);

/// Memory that the process has allocated and not given back, with what the allocator of glibc adds
/// to each piece.
pub fn allocated_bytes() -> usize {
    ALLOCATED.load(Relaxed)
}

fn chunk_bytes(layout: Layout) -> usize {
    (layout.size() + size_of::<usize>()).next_multiple_of(16).max(32)
}

// SAFETY: the system's allocator does it all; counting touches none of the memory.
unsafe impl GlobalAlloc for CountingAllocator {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        ALLOCATED.fetch_add(chunk_bytes(layout), Relaxed);
        // SAFETY: the caller keeps to what `alloc` asks for.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, memory: *mut u8, layout: Layout) {
        ALLOCATED.fetch_sub(chunk_bytes(layout), Relaxed);
        // SAFETY: the caller keeps to what `dealloc` asks for; `memory` is from `alloc`.
        unsafe { System.dealloc(memory, layout) }
    }
}
