//! Locks a backing file in the way QEMU locks its images.
//!
//! QEMU gives every permission on an image a number. It holds a read lock (of the open file
//! description) on byte `100 + n` for each permission it uses, and on byte `200 + n` for each
//! permission it does not share. A process that opens the image takes its locks, then checks
//! whether another process holds the opposite byte. `flock` is also taken, and first: it decides
//! between two Lunar processes that start at the same moment, and warns programs that use only
//! `flock`.

use super::unsafe_fcntl::{is_byte_locked, lock_byte, unlock_bytes};
use rustix::fs::{FlockOperation, OFlags};
use std::ffi::OsStr;
use std::fs::File;
use std::io;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::Path;

/// Permissions, with QEMU's numbers.
const CONSISTENT_READ: i64 = 0;
const WRITE: i64 = 1;
const WRITE_UNCHANGED: i64 = 2;
const RESIZE: i64 = 3;

/// First byte of the locks of permissions in use.
const USED: i64 = 100;
/// First byte of the locks of permissions that are not shared.
const NOT_SHARED: i64 = 200;

/// Maximum number of holders named in a message.
const HOLDERS_MAX: usize = 3;

/// The identity of a file or device; equal for two paths to one file.
#[derive(Clone, Copy, Debug, Eq, Hash, Ord, PartialEq, PartialOrd)]
pub struct FileIdentity {
    /// Device number: of the file system, or of the block device itself.
    pub device: u64,
    /// Inode number; 0 for a block device.
    pub inode: u64,
}

impl FileIdentity {
    pub(crate) fn of(metadata: &std::fs::Metadata) -> Self {
        if metadata.file_type().is_block_device() {
            Self { device: metadata.rdev(), inode: 0 }
        } else {
            Self { device: metadata.dev(), inode: metadata.ino() }
        }
    }
}

/// The reason why a file cannot be locked.
#[derive(Debug, thiserror::Error)]
pub(super) enum LockError {
    #[error("it is in use by {0}, which excludes other users")]
    InUse(String),
    #[error("it cannot be locked")]
    System(#[source] io::Error),
}

/// Locks `file` until it is closed. A writer excludes all others; readers share with readers.
pub(super) fn lock(file: &File, writer: bool) -> Result<(), LockError> {
    let operation = if writer {
        FlockOperation::NonBlockingLockExclusive
    } else {
        FlockOperation::NonBlockingLockShared
    };
    match rustix::fs::flock(file, operation) {
        Ok(()) => {}
        Err(rustix::io::Errno::WOULDBLOCK) => return Err(in_use(file)),
        Err(errno) => return Err(LockError::System(errno.into())),
    }
    let all: &[i64] = &[CONSISTENT_READ, WRITE, WRITE_UNCHANGED, RESIZE];
    let changes: &[i64] = &[WRITE, WRITE_UNCHANGED, RESIZE];
    let (used, not_shared) = if writer { (all, all) } else { (&all[..1], changes) };
    for permission in used {
        lock_byte(file, USED + permission).map_err(LockError::System)?;
    }
    for permission in not_shared {
        lock_byte(file, NOT_SHARED + permission).map_err(LockError::System)?;
    }
    let opposite = used.iter().map(|p| NOT_SHARED + p).chain(not_shared.iter().map(|p| USED + p));
    for byte in opposite {
        if is_byte_locked(file, byte).map_err(LockError::System)? {
            return Err(in_use(file));
        }
    }
    Ok(())
}

/// Unlocks before `file` is closed. A process that was forked at this moment holds a duplicate of
/// the descriptor until it runs its own program, and would hold the locks until then.
pub(super) fn unlock(file: &File) {
    // If this fails, the close that follows unlocks.
    let _ = unlock_bytes(file);
    let _ = rustix::fs::flock(file, FlockOperation::Unlock);
}

fn in_use(file: &File) -> LockError {
    LockError::InUse(holders(file).unwrap_or_else(|_| "another process".into()))
}

/// Names the processes that have the file open, as far as this user may see them.
fn holders(file: &File) -> io::Result<String> {
    let wanted = FileIdentity::of(&file.metadata()?);
    let mut found = Vec::new();
    for process in std::fs::read_dir("/proc")?.flatten() {
        let id = process.file_name().to_string_lossy().parse::<u32>();
        let Ok(id) = id else { continue };
        let open = open_files(&process.path(), wanted);
        if id == std::process::id() && open > 1 {
            found.push("this process itself".into());
        } else if id != std::process::id() && open > 0 {
            let name = std::fs::read_to_string(process.path().join("comm")).unwrap_or_default();
            found.push(format!("{} (process {id})", name.trim_end()));
        }
        if found.len() == HOLDERS_MAX {
            break;
        }
    }
    if found.is_empty() {
        return Ok("another process".into());
    }
    Ok(found.join(", "))
}

/// Returns the number of descriptors of a process that refer to the file and may hold its locks.
fn open_files(process: &Path, wanted: FileIdentity) -> usize {
    let Ok(descriptors) = std::fs::read_dir(process.join("fd")) else { return 0 };
    let same = |path: &Path| {
        std::fs::metadata(path).is_ok_and(|metadata| FileIdentity::of(&metadata) == wanted)
    };
    let descriptors = descriptors.flatten().filter(|descriptor| same(&descriptor.path()));
    descriptors.filter(|descriptor| !is_path_only(process, &descriptor.file_name())).count()
}

/// Returns true if a descriptor only names the file (O_PATH), as one of this process does while it
/// opens the file: such a descriptor holds no lock.
fn is_path_only(process: &Path, descriptor: &OsStr) -> bool {
    let info = std::fs::read_to_string(process.join("fdinfo").join(descriptor));
    let flags = info
        .iter()
        .flat_map(|info| info.lines())
        .find_map(|line| u32::from_str_radix(line.strip_prefix("flags:")?.trim(), 8).ok());
    flags.is_some_and(|flags| OFlags::from_bits_retain(flags).contains(OFlags::PATH))
}
