//! The system's allocator with a count of allocated bytes: `GlobalAlloc` is an unsafe trait.

use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

/// An allocator that counts in [`allocated_bytes`].
pub struct CountingAllocator;

static ALLOCATED: AtomicUsize = AtomicUsize::new(0);

/// Returns the memory that the process has allocated and not freed, including the overhead of the
/// glibc allocator for each piece.
pub fn allocated_bytes() -> usize {
    ALLOCATED.load(Relaxed)
}

fn chunk_bytes(layout: Layout) -> usize {
    (layout.size() + size_of::<usize>()).next_multiple_of(16).max(32)
}

// SAFETY: the system's allocator does all the work; the count touches none of the memory.
unsafe impl GlobalAlloc for CountingAllocator {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        ALLOCATED.fetch_add(chunk_bytes(layout), Relaxed);
        // SAFETY: the caller keeps the contract of `alloc`.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, memory: *mut u8, layout: Layout) {
        ALLOCATED.fetch_sub(chunk_bytes(layout), Relaxed);
        // SAFETY: the caller keeps the contract of `dealloc`; `memory` is from `alloc`.
        unsafe { System.dealloc(memory, layout) }
    }
}
