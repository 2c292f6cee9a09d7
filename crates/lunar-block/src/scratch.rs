//! A temporary folder for one test.

use std::fs;
use std::path::{Path, PathBuf};

/// A user other than this one and root.
pub(crate) const NOBODY: u32 = 65534;
const PRECIOUS: &str = "precious";

/// A folder that is removed when dropped. It contains the file `victim`, which must not change.
pub(crate) struct ScratchFolder(PathBuf);

impl ScratchFolder {
    pub(crate) fn new(name: &str) -> Self {
        let base = std::env::temp_dir().join(format!("lunar-block-{name}-{}", std::process::id()));
        let _ = fs::remove_dir_all(&base);
        fs::create_dir(&base).unwrap();
        fs::write(base.join("victim"), PRECIOUS).unwrap();
        Self(base)
    }

    pub(crate) fn folder(&self) -> &Path {
        &self.0
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.0.join(name)
    }

    #[track_caller]
    pub(crate) fn victim_is_unchanged(&self) {
        assert_eq!(fs::read_to_string(self.path("victim")).unwrap(), PRECIOUS);
    }
}

impl Drop for ScratchFolder {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

pub(crate) fn make_pipe(at: &Path) {
    use rustix::fs::{CWD, Mode, mkfifoat};
    mkfifoat(CWD, at, Mode::RUSR | Mode::WUSR).unwrap();
}

/// Returns true when this test may create files of another user; prints a note if not.
pub(crate) fn is_root() -> bool {
    let is_root = rustix::process::geteuid().is_root();
    if !is_root {
        println!("skipped in part: only root can make files of another user");
    }
    is_root
}
