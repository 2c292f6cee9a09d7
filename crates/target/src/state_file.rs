//! A unit's state on disk: replaced whole or not at all.

use crate::Error;
use std::fs::{self, File};
use std::io::{ErrorKind, Write};
use std::path::{Path, PathBuf};

/// The largest state file that is read.
const STATE_BYTES_MAX: u64 = 1 << 20;

/// One file in a unit's state directory. What it holds is versioned and checksummed by `scsi`.
#[derive(Debug)]
pub(crate) struct StateFile {
    directory: PathBuf,
}

impl StateFile {
    pub(crate) fn new(directory: PathBuf) -> Self {
        Self { directory }
    }

    fn path(&self) -> PathBuf {
        self.directory.join("scsi-state")
    }

    /// What was saved last; `None` if nothing ever was.
    pub(crate) fn load(&self) -> Result<Option<Vec<u8>>, Error> {
        let path = self.path();
        match fs::metadata(&path) {
            Err(error) if error.kind() == ErrorKind::NotFound => Ok(None),
            Err(error) => Err(failed(&path, &error)),
            Ok(meta) if meta.len() > STATE_BYTES_MAX => Err(Error::State {
                path,
                what: format!("{} bytes long, more than any state has", meta.len()),
            }),
            Ok(_) => fs::read(&path).map(Some).map_err(|error| failed(&path, &error)),
        }
    }

    /// Replaces the state; durable when it returns.
    pub(crate) fn save(&self, state: &[u8]) -> Result<(), Error> {
        let path = self.path();
        self.replace(&path, state).map_err(|error| failed(&path, &error))
    }

    fn replace(&self, path: &Path, state: &[u8]) -> std::io::Result<()> {
        fs::create_dir_all(&self.directory)?;
        let new = self.directory.join("scsi-state.new");
        let mut file = File::create(&new)?;
        file.write_all(state)?;
        file.sync_all()?;
        fs::rename(&new, path)?;
        File::open(&self.directory)?.sync_all()
    }

    /// Where it lies, for messages.
    pub(crate) fn describe(&self) -> PathBuf {
        self.path()
    }
}

fn failed(path: &Path, error: &std::io::Error) -> Error {
    Error::State { path: path.to_owned(), what: error.to_string() }
}
