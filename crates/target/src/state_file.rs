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

    /// Replaces the state; durable when it returns. When it fails, the old one stays as far as that
    /// is in our hands: after the rename only the medium can fail.
    pub(crate) fn save(&self, state: &[u8]) -> Result<(), Error> {
        let path = self.path();
        self.replace(&path, state).map_err(|error| failed(&path, &error))
    }

    fn replace(&self, path: &Path, state: &[u8]) -> std::io::Result<()> {
        // Also where it is there: the API's socket may have brought it back a moment ago, after
        // somebody has removed it.
        block::durable::make_directory(&self.directory)?;
        // Before anything is replaced: there may be no file descriptor left for it.
        let directory = File::open(&self.directory)?;
        let new = self.directory.join("scsi-state.new");
        let mut file = File::create(&new)?;
        file.write_all(state)?;
        file.sync_all()?;
        fs::rename(&new, path)?;
        directory.sync_all()
    }

    /// Where it lies, for messages.
    pub(crate) fn describe(&self) -> PathBuf {
        self.path()
    }
}

fn failed(path: &Path, error: &std::io::Error) -> Error {
    Error::State { path: path.to_owned(), what: error.to_string() }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::process::Command;

    /// Goal: a save that fails for want of file descriptors leaves the old state: a SANITIZE that
    /// was refused must not be taken up by the next start. Method: in a process of few, with each
    /// number of them left.
    #[test]
    fn a_failed_save_replaces_nothing() {
        const FEW: &str = "LUNAR_TEST_FEW_FILES";
        if std::env::var_os(FEW).is_none() {
            let test = "state_file::tests::a_failed_save_replaces_nothing";
            let shell = format!("ulimit -n 64; exec \"$0\" --exact {test} --test-threads 1");
            let mut child = Command::new("sh");
            child.args(["-c", &shell]).arg(std::env::current_exe().unwrap()).env(FEW, "1");
            let output = child.output().unwrap();
            assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stdout));
            return;
        }
        let directory = std::env::temp_dir().join(format!("lunar-few-{}", std::process::id()));
        let file = StateFile::new(directory.clone());
        file.save(b"old").unwrap();
        let mut failures = 0;
        for left in 0..8 {
            let mut taken = Vec::new();
            while let Ok(null) = File::open("/dev/null") {
                taken.push(null);
            }
            taken.truncate(taken.len() - left);
            let saved = file.save(b"new");
            drop(taken);
            let expected: &[u8] = if saved.is_ok() { b"new" } else { b"old" };
            assert_eq!(file.load().unwrap().unwrap(), expected, "{left} left");
            failures += usize::from(saved.is_err());
        }
        assert!((1..8).contains(&failures), "{failures} failures");
        fs::remove_dir_all(directory).unwrap();
    }
}
