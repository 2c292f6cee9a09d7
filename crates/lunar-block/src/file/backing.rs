//! The backing file of a [`FileDevice`](super::FileDevice), compared with the file that was opened.

use super::FileIdentity;
use super::sparse::space_usage;
use crate::{BackingPath, BackingProbe, BackingState, SpaceUsage};
use rustix::fs::SeekFrom;
use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError};

/// A probe with a duplicate of the descriptor of a disk. The locks are released when the disk is
/// closed, even while this duplicate is open.
#[derive(Debug)]
pub(super) struct Backing {
    file: File,
    /// The absolute path, including its symbolic links.
    path: PathBuf,
    /// The identity of the file; `None` for a block device, whose node may disappear and reappear.
    identity: Option<FileIdentity>,
    /// True if the file had a directory entry when it was opened and its file system counts links.
    is_linked: bool,
    /// True for a thin file.
    is_thin: bool,
    /// Size of the disk in bytes. The lock is held while the file is resized.
    disk_bytes: Mutex<u64>,
}

impl Backing {
    pub(super) fn new(
        file: &File,
        path: &Path,
        disk_bytes: u64,
        is_thin: bool,
    ) -> io::Result<Self> {
        let metadata = file.metadata()?;
        let is_device = metadata.file_type().is_block_device();
        Ok(Self {
            file: file.try_clone()?,
            path: std::path::absolute(path)?,
            identity: (!is_device).then(|| FileIdentity::of(&metadata)),
            is_linked: !is_device && metadata.nlink() > 0,
            is_thin: !is_device && is_thin,
            disk_bytes: Mutex::new(disk_bytes),
        })
    }

    /// Locks out probes while the size of the file changes.
    pub(super) fn lock_size(&self) -> MutexGuard<'_, u64> {
        self.disk_bytes.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl BackingProbe for Backing {
    fn read_state(&self) -> io::Result<BackingState> {
        let disk_bytes = self.lock_size();
        let metadata = self.file.metadata()?;
        let file_bytes = match self.identity {
            Some(_) => metadata.len(),
            None => rustix::fs::seek(&self.file, SeekFrom::End(0))?,
        };
        let mut state = BackingState {
            is_deleted: self.is_linked && metadata.nlink() == 0,
            path: BackingPath::Same,
            file_bytes,
            disk_bytes: *disk_bytes,
        };
        drop(disk_bytes);
        if let Some(identity) = self.identity {
            state.path = match std::fs::metadata(&self.path) {
                Ok(found) if FileIdentity::of(&found) == identity => BackingPath::Same,
                Ok(_) => BackingPath::Other,
                Err(error) if is_missing(&error) => BackingPath::Missing,
                // A parent folder that cannot be entered says nothing about the file.
                Err(_) => BackingPath::Same,
            };
        }
        Ok(state)
    }

    fn space_usage(&self) -> io::Result<Option<SpaceUsage>> {
        self.is_thin.then(|| space_usage(&self.file)).transpose()
    }

    fn open_path(&self) -> PathBuf {
        format!("/proc/{}/fd/{}", std::process::id(), self.file.as_raw_fd()).into()
    }

    fn path(&self) -> PathBuf {
        self.path.clone()
    }

    fn new_path(&self) -> Option<PathBuf> {
        let path = std::fs::read_link(self.open_path()).ok()?;
        let found = std::fs::metadata(&path).ok()?;
        (Some(FileIdentity::of(&found)) == self.identity).then_some(path)
    }
}

fn is_missing(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::NotADirectory)
}

#[cfg(test)]
mod tests;
