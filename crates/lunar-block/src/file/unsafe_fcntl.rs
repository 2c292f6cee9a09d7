//! Locks of an open file description (`fcntl_locking(2)`, F_OFD_SETLK), for which none of our
//! dependencies has a safe wrapper.

use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;

/// Takes a read lock on one byte; it lasts until the last duplicate of the descriptor is closed.
/// Read locks of different owners do not exclude each other.
pub(super) fn lock_byte(file: &File, byte: i64) -> io::Result<()> {
    let mut lock = flock(libc::F_RDLCK, byte, 1);
    call(file, libc::F_OFD_SETLK, &mut lock)
}

/// Releases all locks of this kind, for all duplicates of the descriptor.
pub(super) fn unlock_bytes(file: &File) -> io::Result<()> {
    // A length of 0 means up to the end of the file.
    let mut lock = flock(libc::F_UNLCK, 0, 0);
    call(file, libc::F_OFD_SETLK, &mut lock)
}

/// Returns true when another owner holds a lock on the byte.
pub(super) fn is_byte_locked(file: &File, byte: i64) -> io::Result<bool> {
    let mut lock = flock(libc::F_WRLCK, byte, 1);
    call(file, libc::F_OFD_GETLK, &mut lock)?;
    Ok(libc::c_int::from(lock.l_type) != libc::F_UNLCK)
}

fn flock(kind: libc::c_int, first: i64, count: i64) -> libc::flock {
    libc::flock {
        l_type: kind as libc::c_short,
        l_whence: libc::SEEK_SET as libc::c_short,
        l_start: first,
        l_len: count,
        // The kernel requires 0 here.
        l_pid: 0,
    }
}

fn call(file: &File, command: libc::c_int, lock: &mut libc::flock) -> io::Result<()> {
    loop {
        // SAFETY: `file` is open for the whole call, and both commands read and write exactly one
        // `struct flock`, which `lock` borrows exclusively.
        let result = unsafe { libc::fcntl(file.as_raw_fd(), command, std::ptr::from_mut(lock)) };
        if result != -1 {
            return Ok(());
        }
        let error = io::Error::last_os_error();
        if error.kind() != io::ErrorKind::Interrupted {
            return Err(error);
        }
    }
}
