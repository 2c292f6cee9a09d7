//! Backing files: whether the file under a disk is still the one that was opened.

use std::fmt::Debug;
use std::io;
use std::path::PathBuf;

/// A backing file at one moment.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct BackingState {
    /// No name leads to the file any more: its data is gone once it is closed.
    pub is_deleted: bool,
    /// The present target of the path by which the disk was opened.
    pub path: BackingPath,
    /// Size of the file in bytes.
    pub file_bytes: u64,
    /// Size of the disk in bytes; a file that is longer is served up to here.
    pub disk_bytes: u64,
}

/// The present target of a backing file's path.
#[derive(Clone, Debug, Eq, PartialEq)]
pub enum BackingPath {
    /// The file that is open; also where that cannot be told.
    Same,
    /// Nothing.
    Missing,
    /// Another file.
    Other,
}

/// Looks at the backing file of a disk; does not keep the disk open.
pub trait BackingProbe: Debug + Send + Sync {
    /// Looks. May block, for as long as the file system does not answer.
    ///
    /// # Errors
    /// The file system does not know the file any more, or cannot read what it knows of it.
    fn look(&self) -> io::Result<BackingState>;

    /// Path by which other processes open the file, also when it is deleted: `/proc/PID/fd/N`.
    fn open_path(&self) -> PathBuf;

    /// Path that the file was opened by.
    fn path(&self) -> PathBuf;

    /// Name that the file has now, if it was renamed and has one. May block, as
    /// [`look`](Self::look).
    fn new_path(&self) -> Option<PathBuf>;
}
