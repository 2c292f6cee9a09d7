//! SO_MEMINFO, for which there is no safe wrapper among our dependencies.

use std::io;
use std::os::fd::{AsRawFd, BorrowedFd};

/// Values of SK_MEMINFO in their order (sock_diag(7)); the kernel gives as many as fit.
const VALUES: usize = 9;
/// Memory of data that was received and not read.
const RMEM_ALLOC: usize = 0;
/// The most that the receive buffer may hold.
const RCVBUF: usize = 1;
/// Memory of data that was not sent, or is not acknowledged.
const WMEM_QUEUED: usize = 5;

/// Memory that the kernel holds for a socket, in bytes.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) struct SocketMemory {
    /// Received and not read.
    pub(crate) received: usize,
    /// The most that may be received and not read.
    pub(crate) received_max: usize,
    /// Not sent, or not acknowledged.
    pub(crate) queued: usize,
}

impl SocketMemory {
    /// That of `socket`.
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
