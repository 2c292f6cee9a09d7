//! SO_BUF_LOCK, for which the dependencies have no safe wrapper.

use std::io;
use std::os::fd::{AsRawFd, BorrowedFd};

/// Lets the system tune both buffers of a socket again after SO_SNDBUF and SO_RCVBUF fixed them.
///
/// # Errors
/// ENOPROTOOPT before Linux 5.14.
pub(crate) fn unlock_buffers(socket: BorrowedFd<'_>) -> io::Result<()> {
    let no_lock: libc::c_int = 0;
    // SAFETY: the descriptor is open while it is borrowed, and the kernel reads as many bytes as
    // the integer has, which lives until the call returns.
    let result = unsafe {
        libc::setsockopt(
            socket.as_raw_fd(),
            libc::SOL_SOCKET,
            libc::SO_BUF_LOCK,
            (&raw const no_lock).cast(),
            size_of_val(&no_lock) as libc::socklen_t,
        )
    };
    if result == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}
