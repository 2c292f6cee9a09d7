//! Names that outlive a power cut.
//!
//! A file's sync keeps what is in it; its name is kept by a sync of the directory it is in, and
//! the name of that directory by one of the directory above (fsync(2)).

use rustix::fs::{Mode, OFlags, openat};
use rustix::io::Errno;
use std::fs::File;
use std::io;
use std::os::unix::fs::MetadataExt;

/// Makes a folder durable, with every name in it and its own, up to the root of its file system.
///
/// # Errors
/// It cannot be synced, or one above it that we may read cannot.
pub(crate) fn keep_folder(folder: &File) -> io::Result<()> {
    folder.sync_all()?;
    let mut below = folder.metadata()?;
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let mut above = openat(folder, "..", flags, Mode::empty());
    loop {
        let folder: File = match above {
            // Where we may not read, somebody else made the names.
            Err(Errno::ACCESS | Errno::PERM) => return Ok(()),
            opened => opened?.into(),
        };
        let metadata = folder.metadata()?;
        // Where another file system is mounted, no name was made; above the root is the root.
        if metadata.dev() != below.dev() || metadata.ino() == below.ino() {
            return Ok(());
        }
        folder.sync_all()?;
        above = openat(&folder, "..", flags, Mode::empty());
        below = metadata;
    }
}

/// Makes the names in a folder durable, which may be open with `O_PATH` only.
///
/// # Errors
/// The folder cannot be opened or synced.
pub(crate) fn keep_names(folder: &File) -> io::Result<()> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    File::from(openat(folder, ".", flags, Mode::empty())?).sync_all()
}
