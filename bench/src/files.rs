//! Files that are measured on, and what they lie on.

use anyhow::{Context, Result};
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

const PAGE_BYTES: u64 = 4096;

/// A file of its own, removed when dropped.
pub struct Scratch(PathBuf);

impl Scratch {
    /// Allocated and written, so that a sync has no allocation to make durable, and by pages, as
    /// clients that ask for blocks leave it in the page cache: of what is written in one piece,
    /// ext4 makes folios of up to a mebibyte, and then walks all buffers of such a folio for every
    /// small write into it. `bytes` is a whole number of pages.
    ///
    /// # Errors
    /// It is there already, or cannot be written.
    pub fn new(directory: &Path, name: &str, bytes: u64) -> Result<Self> {
        let path = directory.join(format!("lunar-bench-{}-{name}", std::process::id()));
        let file = File::create_new(&path).with_context(|| path.display().to_string())?;
        let scratch = Self(path);
        let page = [0x5a; PAGE_BYTES as usize];
        for at in 0..bytes / PAGE_BYTES {
            file.write_all_at(&page, at * PAGE_BYTES)?;
        }
        file.sync_all()?;
        Ok(scratch)
    }

    /// Where it is.
    pub fn path(&self) -> &Path {
        &self.0
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        drop(std::fs::remove_file(&self.0));
        let mut state = self.0.clone().into_os_string();
        state.push(".lunar");
        drop(std::fs::remove_dir_all(state));
    }
}

/// The file system of a directory: `ext4 on /dev/vda`.
///
/// # Errors
/// There is no such directory.
pub fn file_system(directory: &Path) -> Result<String> {
    let mounts = std::fs::read_to_string("/proc/self/mounts")?;
    let directory = directory.canonicalize()?;
    let mut best = ("?", "?", "");
    for line in mounts.lines() {
        let mut fields = line.split_whitespace();
        if let (Some(device), Some(at), Some(kind)) = (fields.next(), fields.next(), fields.next())
            && directory.starts_with(at)
            && at.len() >= best.2.len()
        {
            best = (device, kind, at);
        }
    }
    let (device, kind, _) = best;
    Ok(format!("{kind} on {device}"))
}
