//! Makes file names survive a power cut.
//!
//! A sync of a file makes its contents durable. The name of the file becomes durable by a sync of
//! its directory, and the name of that directory by a sync of its parent (fsync(2)).

use rustix::fs::{Mode, OFlags, openat};
use rustix::io::Errno;
use std::fs::File;
use std::io;
use std::os::unix::fs::MetadataExt;

/// Makes durable the names in a folder, its own name, and those of its parents up to the root of
/// the file system.
///
/// # Errors
/// The folder cannot be synced, or a parent that this process may read cannot.
pub(crate) fn sync_folder_and_parents(folder: &File) -> io::Result<()> {
    folder.sync_all()?;
    let mut below = folder.metadata()?;
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let mut above = openat(folder, "..", flags, Mode::empty());
    loop {
        let folder: File = match above {
            // A parent that this process may not read was created by someone else.
            Err(Errno::ACCESS | Errno::PERM) => return Ok(()),
            opened => opened?.into(),
        };
        let metadata = folder.metadata()?;
        // A mount point has no name to sync, and the parent of the root is the root itself.
        if metadata.dev() != below.dev() || metadata.ino() == below.ino() {
            return Ok(());
        }
        folder.sync_all()?;
        above = openat(&folder, "..", flags, Mode::empty());
        below = metadata;
    }
}

/// Makes the names in a folder durable; the folder may be open with `O_PATH` only.
///
/// # Errors
/// The folder cannot be opened or synced.
pub(crate) fn sync_folder(folder: &File) -> io::Result<()> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    File::from(openat(folder, ".", flags, Mode::empty())?).sync_all()
}
