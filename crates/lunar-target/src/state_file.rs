//! A unit's state on disk, which is replaced as a whole or not at all.

use crate::Error;
use lunar_block::StateDirectory;
use std::path::PathBuf;

/// The file in the unit's state directory.
const NAME: &str = "scsi-state";
/// The largest state file that is read.
const STATE_BYTES_MAX: u64 = 1 << 20;

/// One file in a unit's state directory. Its content is versioned and checksummed by `scsi`.
#[derive(Debug)]
pub(crate) struct StateFile {
    directory: PathBuf,
}

impl StateFile {
    pub(crate) fn new(directory: PathBuf) -> Self {
        Self { directory }
    }

    /// Loads the state that was saved last; `None` if nothing was saved yet.
    ///
    /// # Errors
    /// [`Error::State`]: the file cannot be read, is longer than any state, or other users may
    /// change it.
    pub(crate) fn load(&self) -> Result<Option<Vec<u8>>, Error> {
        let load = || match StateDirectory::open(&self.directory)? {
            Some(directory) => directory.read(NAME, STATE_BYTES_MAX),
            None => Ok(None),
        };
        load().map_err(|error| self.failed(&error))
    }

    /// Replaces the state durably. If it fails, the old state stays, except when the medium fails
    /// after the rename.
    ///
    /// # Errors
    /// [`Error::State`]: the file cannot be written, or other users may change the directory.
    pub(crate) fn save(&self, state: &[u8]) -> Result<(), Error> {
        // Each save opens the directory anew, and makes it durable even if it exists: the API's
        // socket may have recreated it just now, after it was removed.
        let directory = StateDirectory::create(&self.directory);
        let saved = directory.and_then(|directory| directory.save(NAME, state));
        saved.map_err(|error| self.failed(&error))
    }

    /// Path of the file, for messages.
    pub(crate) fn describe(&self) -> PathBuf {
        self.directory.join(NAME)
    }

    fn failed(&self, error: &std::io::Error) -> Error {
        Error::State { path: self.describe(), what: error.to_string() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs::{self, File};
    use std::process::Command;

    /// Goal: a save that fails for lack of file descriptors leaves the old state: a SANITIZE that
    /// was refused must not be resumed by the next start. Method: in a process with few
    /// descriptors, with each number of them left.
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

    /// Goal: a state is neither read nor written through files that another user has put in its
    /// directory, or in place of the directory: the file behind it stays as it was, a pipe blocks
    /// no caller, and the error names the obstacle and the remedy. Method: all of these, under the
    /// name of the state and of the next one.
    #[test]
    fn files_planted_by_others_are_refused() {
        use std::os::unix::fs::{chown, lchown, symlink};
        let base = std::env::temp_dir().join(format!("lunar-planted-{}", std::process::id()));
        let (directory, victim) = (base.join("disk.img.lunar"), base.join("victim"));
        fs::create_dir(&base).unwrap();
        fs::write(&victim, b"precious").unwrap();
        let file = StateFile::new(directory.clone());
        let refused = |result: Result<(), Error>, words: &str| {
            let message = result.unwrap_err().to_string();
            assert!(message.contains(words), "`{words}` is not in: {message}");
            assert_eq!(fs::read(&victim).unwrap(), b"precious", "{words}");
        };
        for name in ["scsi-state", "scsi-state.new"] {
            let at = directory.join(name);
            let check = |words: &str| {
                match name {
                    "scsi-state" => refused(file.load().map(drop), words),
                    _ => refused(file.save(b"new"), words),
                }
                fs::remove_file(&at).unwrap();
            };
            file.save(b"old").unwrap();
            drop(fs::remove_file(&at));
            symlink(&victim, &at).unwrap();
            check("is a symbolic link, not a regular file");
            fs::hard_link(&victim, &at).unwrap();
            check("has 2 hard links");
            assert!(Command::new("mkfifo").arg(&at).status().unwrap().success());
            check("is a pipe, not a regular file");
            fs::write(&at, b"theirs").unwrap();
            match chown(&at, Some(65534), None) {
                Ok(()) => check("belongs to uid 65534"),
                Err(error) => println!("skipped: files of another user ({error})"),
            }
        }
        let other = base.join("other");
        fs::rename(&directory, &other).unwrap();
        symlink(&other, &directory).unwrap();
        file.save(b"by a link of ours").unwrap();
        assert_eq!(file.load().unwrap().unwrap(), b"by a link of ours");
        if lchown(&directory, Some(65534), None).is_ok() {
            refused(file.load().map(drop), "belongs to uid 65534, who can point it");
            refused(file.save(b"new"), "belongs to uid 65534, who can point it");
        }
        fs::remove_dir_all(base).unwrap();
    }
}
