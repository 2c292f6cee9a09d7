//! Giving freed memory of the allocator back to the system (`malloc_trim(3)`), for which there is
//! no safe wrapper among our dependencies.

/// Gives whole pages back that the allocator holds and nobody uses, of all its arenas. Threads that
/// allocate meanwhile may wait for the arena that it is at.
#[cfg(target_env = "gnu")]
pub(crate) fn trim_heap() {
    // SAFETY: it takes no pointer, locks each arena while it looks at it, and changes no memory
    // that is in use.
    unsafe {
        libc::malloc_trim(0);
    }
}

/// Other allocators are left to give memory back themselves.
#[cfg(not(target_env = "gnu"))]
pub(crate) fn trim_heap() {}
