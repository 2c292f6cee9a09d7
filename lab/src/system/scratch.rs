//! A folder for one test, removed when the test ends.

use super::process;
use crate::random::pattern;
use anyhow::{Context, Result};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};

/// A new folder below the system's folder for temporary files.
pub struct Scratch {
    folder: PathBuf,
}

impl Scratch {
    /// Makes the folder; `name` identifies it in failures.
    ///
    /// # Errors
    /// The folder cannot be made.
    pub fn new(name: &str) -> Result<Self> {
        Self::inside(std::env::temp_dir(), name)
    }

    /// Makes the folder in memory where there is a tmpfs for it, so that syncs of other tests do
    /// not delay its files.
    ///
    /// # Errors
    /// The folder cannot be made.
    pub fn in_memory(name: &str) -> Result<Self> {
        let memory = Path::new("/dev/shm");
        if memory.is_dir() { Self::inside(memory, name) } else { Self::new(name) }
    }

    /// Makes the folder below another one.
    ///
    /// # Errors
    /// The folder cannot be made.
    pub fn inside(parent: impl AsRef<Path>, name: &str) -> Result<Self> {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let name = format!("lunar-{name}-{}-{number}", std::process::id());
        let folder = parent.as_ref().join(name);
        std::fs::create_dir(&folder).with_context(|| folder.display().to_string())?;
        Ok(Self { folder })
    }

    /// True if this is the scratch folder of a process that has ended.
    pub fn is_left_over(folder: &Path) -> bool {
        let name = folder.file_name().and_then(|name| name.to_str()).unwrap_or_default();
        let mut parts = name.rsplit('-').map(|part| part.parse::<u32>().ok());
        let (number, process) = (parts.next().flatten(), parts.next().flatten());
        folder.parent() == Some(&std::env::temp_dir())
            && name.starts_with("lunar-")
            && number.is_some()
            && process.is_some_and(|process| !process::exists(process))
    }

    /// Returns its path.
    pub fn folder(&self) -> &Path {
        &self.folder
    }

    /// Returns the path of a file in it, as text for a command line.
    pub fn path(&self, name: &str) -> String {
        self.folder.join(name).display().to_string()
    }

    /// Writes a file that only this user may read, as secrets require.
    ///
    /// # Errors
    /// The file cannot be written.
    pub fn secret(&self, name: &str, text: &str) -> Result<String> {
        use std::os::unix::fs::PermissionsExt;
        let path = self.path(name);
        std::fs::write(&path, text)?;
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o600))?;
        Ok(path)
    }

    /// Writes `bytes` pseudo-random bytes that `seed` determines.
    ///
    /// # Errors
    /// The file cannot be written.
    pub fn pattern(&self, name: &str, seed: u64, bytes: usize) -> Result<String> {
        let path = self.path(name);
        std::fs::write(&path, pattern(seed, bytes))?;
        Ok(path)
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        drop(std::fs::remove_dir_all(&self.folder));
    }
}
