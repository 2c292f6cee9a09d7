//! Control of the allocator (`malloc_trim(3)`, `mallopt(3)`), for which none of our dependencies
//! has a safe wrapper.

/// Minimum size of allocations that are mappings of their own.
#[cfg(target_env = "gnu")]
const MAPPED_BYTES_MIN: libc::c_int = 1 << 20;

/// Returns whole unused pages of all arenas of the allocator to the system. Threads that allocate
/// meanwhile may wait for the arena being trimmed.
#[cfg(target_env = "gnu")]
pub(crate) fn trim_heap() {
    // SAFETY: `malloc_trim` takes no pointer, locks each arena while it examines it, and changes no
    // memory that is in use.
    unsafe {
        libc::malloc_trim(0);
    }
}

/// Makes large allocations mappings of their own from now on, whatever was freed before. A new
/// mapping is zero without being written: a thread that allocates for another one does not spend
/// milliseconds on zeroing.
#[cfg(target_env = "gnu")]
pub(crate) fn map_large_memory() {
    // SAFETY: `mallopt` takes no pointer, and changes no memory that is in use.
    let was_set = unsafe { libc::mallopt(libc::M_MMAP_THRESHOLD, MAPPED_BYTES_MIN) };
    if was_set == 0 {
        tracing::debug!("cannot set the mmap threshold of the allocator");
    }
}

/// Does nothing: other allocators return memory themselves.
#[cfg(not(target_env = "gnu"))]
pub(crate) fn trim_heap() {}

/// Does nothing.
#[cfg(not(target_env = "gnu"))]
pub(crate) fn map_large_memory() {}
