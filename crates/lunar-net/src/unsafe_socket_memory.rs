//! SO_MEMINFO, for which the dependencies have no safe wrapper.

use std::io;
use std::os::fd::{AsRawFd, BorrowedFd};

/// Number of values of SK_MEMINFO, in their order (sock_diag(7)); the kernel returns as many as
/// fit.
const VALUES: usize = 9;
/// Memory of data that was received and not read.
const RMEM_ALLOC: usize = 0;
/// Maximum size of the receive buffer.
const RCVBUF: usize = 1;
/// Memory of data that is not sent or not acknowledged.
const WMEM_QUEUED: usize = 5;

/// Memory that the kernel holds for a socket, in bytes.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) struct SocketMemory {
    /// Received and not read.
    pub(crate) received: usize,
    /// Greatest amount that may be received and not read.
    pub(crate) received_max: usize,
    /// Not sent, or not acknowledged.
    pub(crate) queued: usize,
}

impl SocketMemory {
    /// Queries the memory of `socket`.
    ///
    /// # Errors
    /// ENOPROTOOPT before Linux 4.6.
    pub(crate) fn of(socket: BorrowedFd<'_>) -> io::Result<Self> {
        let mut values = [0_u32; VALUES];
        let mut bytes = size_of_val(&values) as libc::socklen_t;
        // SAFETY: the descriptor is open while it is borrowed, and the kernel writes at most
        // `bytes` bytes to `values`, which is as long and lives until the call returns.
        let result = unsafe {
            libc::getsockopt(
                socket.as_raw_fd(),
                libc::SOL_SOCKET,
                libc::SO_MEMINFO,
                values.as_mut_ptr().cast(),
                &raw mut bytes,
            )
        };
        if result != 0 {
            return Err(io::Error::last_os_error());
        }
        Ok(Self {
            received: values[RMEM_ALLOC] as usize,
            received_max: values[RCVBUF] as usize,
            queued: values[WMEM_QUEUED] as usize,
        })
    }
}
