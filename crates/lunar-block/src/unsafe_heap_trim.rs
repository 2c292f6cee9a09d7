//! Returns freed memory of the allocator to the system (`malloc_trim(3)`), for which none of our
//! dependencies has a safe wrapper.

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

/// Does nothing: other allocators return memory themselves.
#[cfg(not(target_env = "gnu"))]
pub(crate) fn trim_heap() {}
