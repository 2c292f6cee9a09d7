//! Counters of a thread in the kernel (`getrusage(2)`, RUSAGE_THREAD), for which none of our
//! dependencies has a safe wrapper.

/// Returns the number of times that this thread has waited: its voluntary context switches. Returns
/// 0 if the kernel does not report it.
pub(super) fn thread_waits() -> u64 {
    let mut usage = std::mem::MaybeUninit::<libc::rusage>::zeroed();
    // SAFETY: the kernel writes one `struct rusage` to the address, which is valid for that.
    let result = unsafe { libc::getrusage(libc::RUSAGE_THREAD, usage.as_mut_ptr()) };
    if result != 0 {
        return 0;
    }
    // SAFETY: all bytes are initialized, at least with zeroes, and any bits are valid integers.
    let usage = unsafe { usage.assume_init() };
    u64::try_from(usage.ru_nvcsw).unwrap_or(0)
}
