//! Backing files: whether the file under a disk is still the one that was opened.

use crate::SpaceUsage;
use std::fmt::Debug;
use std::io;
use std::path::PathBuf;

/// The state of a backing file at one moment.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct BackingState {
    /// True when the file no longer has a name: its data is lost when it is closed.
    pub is_deleted: bool,
    /// The current target of the path by which the disk was opened.
    pub path: BackingPath,
    /// Size of the file in bytes.
    pub file_bytes: u64,
    /// Size of the disk in bytes; a longer file is served only up to this size.
    pub disk_bytes: u64,
}

/// The current target of a backing file's path.
#[derive(Clone, Debug, Eq, PartialEq)]
pub enum BackingPath {
    /// The file that is open; also used if the target cannot be determined.
    Same,
    /// The path leads to no file.
    Missing,
    /// The path leads to another file.
    Other,
}

/// Examines the backing file of a disk without keeping the disk open.
pub trait BackingProbe: Debug + Send + Sync {
    /// Returns the current state of the file. May block until the file system responds.
    ///
    /// # Errors
    /// The file system no longer has the file, or cannot read its metadata.
    fn read_state(&self) -> io::Result<BackingState>;

    /// Returns the space of a thin file; `None` if all of it is allocated anyway. May block, as
    /// [`read_state`](Self::read_state).
    ///
    /// # Errors
    /// The file system reports an error.
    fn space_usage(&self) -> io::Result<Option<SpaceUsage>> {
        Ok(None)
    }

    /// Returns the path by which other processes can open the file, even if it is deleted:
    /// `/proc/PID/fd/N`.
    fn open_path(&self) -> PathBuf;

    /// Returns the path by which the file was opened.
    fn path(&self) -> PathBuf;

    /// Returns the current name of the file if it was renamed and has a name. May block, as
    /// [`read_state`](Self::read_state).
    fn new_path(&self) -> Option<PathBuf>;
}
