//! Files used by benchmarks, and the file systems below them.

use super::process;
use anyhow::{Context, Result};
use lunar_block::output_file;
use std::fs::{DirBuilder, File};
use std::os::unix::fs::{DirBuilderExt, FileExt};
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError};
use tokio::signal::unix::{SignalKind, signal};

const PAGE_BYTES: u64 = 4096;
/// Prefix of file names, before the number of the process and a name.
const PREFIX: &str = "lunar-bench-";

/// A file of its own, removed when dropped or when this program receives a termination signal.
pub struct ScratchFile(PathBuf);

/// All existing scratch files.
static SCRATCH: Mutex<Vec<PathBuf>> = Mutex::new(Vec::new());

/// Removes the scratch files and ends this program when it receives a termination signal. Servers
/// end with their owner.
///
/// # Errors
/// The system gives no thread.
pub fn remove_on_termination_signal() -> Result<()> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_io().build()?;
    let wait = move || {
        if runtime.block_on(told_to_end()).is_ok() {
            scratch().iter().for_each(|path| remove(path));
            std::process::exit(130);
        }
    };
    std::thread::Builder::new().name("signals".to_owned()).spawn(wait)?;
    Ok(())
}

async fn told_to_end() -> std::io::Result<()> {
    let mut interrupt = signal(SignalKind::interrupt())?;
    let mut terminate = signal(SignalKind::terminate())?;
    let mut hangup = signal(SignalKind::hangup())?;
    tokio::select! {
        _ = interrupt.recv() => {}
        _ = terminate.recv() => {}
        _ = hangup.recv() => {}
    }
    Ok(())
}

fn scratch() -> MutexGuard<'static, Vec<PathBuf>> {
    SCRATCH.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Removes the file, and the files that a server keeps state_directory it.
fn remove(path: &Path) {
    drop(std::fs::remove_file(path));
    let mut state = path.as_os_str().to_owned();
    state.push(".lunar");
    drop(std::fs::remove_dir_all(state));
}

/// Removes the files of processes that were killed.
fn remove_left(directory: &Path) {
    for entry in std::fs::read_dir(directory).into_iter().flatten().flatten() {
        let name = entry.file_name();
        let rest = name.to_str().and_then(|name| name.strip_prefix(PREFIX));
        let owner = rest.and_then(|rest| rest.split_once('-')).map(|(owner, _)| owner);
        let owner = owner.and_then(|owner| owner.parse().ok());
        let is_left = owner.is_some_and(|owner| !process::exists(owner));
        if is_left {
            remove(&entry.path());
            // State state_directory a file may exist after the file is gone.
            drop(std::fs::remove_dir_all(entry.path()));
        }
    }
}

impl ScratchFile {
    /// Creates a file that is allocated and written, so that a sync has no allocation to make
    /// durable. Pages are written one by one, as clients that request blocks leave them in the page
    /// cache: from one large write ext4 makes folios of up to a mebibyte, and then walks all
    /// buffers of such a folio for every small write into it. `bytes` is a whole number of pages.
    ///
    /// # Errors
    /// The file exists already, or cannot be written.
    pub fn new(directory: &Path, name: &str, bytes: u64) -> Result<Self> {
        remove_left(directory);
        let path = directory.join(format!("{PREFIX}{}-{name}", std::process::id()));
        let file = File::create_new(&path).with_context(|| path.display().to_string())?;
        scratch().push(path.clone());
        let scratch = Self(path);
        let page = [0x5a; PAGE_BYTES as usize];
        for at in 0..bytes / PAGE_BYTES {
            file.write_all_at(&page, at * PAGE_BYTES)
                .with_context(|| scratch.0.display().to_string())?;
        }
        file.sync_all()?;
        Ok(scratch)
    }

    /// Returns its path.
    pub fn path(&self) -> &Path {
        &self.0
    }
}

impl Drop for ScratchFile {
    fn drop(&mut self) {
        remove(&self.0);
        scratch().retain(|path| *path != self.0);
    }
}

/// A new folder below the system's folder for temporary files, which no other user can enter or
/// have prepared; removed with its content when dropped.
pub struct TemporaryFolder(PathBuf);

impl TemporaryFolder {
    /// # Errors
    /// The folder exists already, or cannot be made.
    pub fn new(name: &str) -> Result<Self> {
        let below = std::env::temp_dir();
        remove_left(&below);
        let path = below.join(format!("{PREFIX}{}-{name}", std::process::id()));
        let made = DirBuilder::new().mode(0o700).create(&path);
        made.with_context(|| path.display().to_string())?;
        Ok(Self(path))
    }

    /// Returns the path of a file in the folder.
    pub fn path(&self, name: &str) -> PathBuf {
        self.0.join(name)
    }
}

impl Drop for TemporaryFolder {
    fn drop(&mut self) {
        drop(std::fs::remove_dir_all(&self.0));
    }
}

/// Writes a file whole or not at all: if this program ends meanwhile, the previous file stays. A
/// path that is no regular file, as a pipe, is written directly.
///
/// # Errors
/// The file cannot be written, or a file of another user is in the way.
pub fn write_atomically(path: &Path, text: &str) -> Result<()> {
    output_file::write(path, text.as_bytes())
        .with_context(|| format!("cannot write to {}", path.display()))
}

/// Checks that a file can be written, before measurements are made for it.
///
/// # Errors
/// See [`write_atomically`].
pub fn check_writable(path: &Path) -> Result<()> {
    output_file::check(path).with_context(|| format!("cannot write to {}", path.display()))
}

/// Returns the file system of a directory: `ext4 on /dev/vda`.
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

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Read;
    use std::os::fd::AsRawFd;

    /// Goal: a file is removed with its owner, and the leftovers of a killed process with the next
    /// file; files of others stay.
    #[test]
    fn closed_relays_close_their_connections() {
        let folder = std::env::temp_dir().join(format!("bench-files-{}", std::process::id()));
        std::fs::create_dir_all(&folder).unwrap();
        let left = folder.join(format!("{PREFIX}{}-tmpfs", u32::MAX));
        let others = folder.join(format!("{PREFIX}1-tmpfs"));
        std::fs::write(&left, "left").unwrap();
        let state_directory = folder.join(format!("{PREFIX}{}-disk.lunar", u32::MAX));
        std::fs::create_dir(&state_directory).unwrap();
        std::fs::write(&others, "in use").unwrap();
        let scratch = ScratchFile::new(&folder, "own", 2 * PAGE_BYTES).unwrap();
        assert!(scratch.path().exists() && others.exists());
        assert!(!left.exists() && !state_directory.exists());
        let path = scratch.path().to_owned();
        drop(scratch);
        assert!(!path.exists() && !super::scratch().contains(&path));
        std::fs::remove_dir_all(&folder).unwrap();
    }

    /// Goal: a file is replaced by a whole one and no temporary file remains; a path that is no
    /// regular file keeps its type; if the replacement fails, the previous file is kept.
    #[test]
    fn a_file_is_replaced_as_a_whole() {
        let folder = std::env::temp_dir().join(format!("bench-whole-{}", std::process::id()));
        std::fs::create_dir_all(&folder).unwrap();
        let path = folder.join("run.json");
        for text in ["one", "another"] {
            write_atomically(&path, text).unwrap();
            assert_eq!(std::fs::read_to_string(&path).unwrap(), text);
        }
        assert_eq!(std::fs::read_dir(&folder).unwrap().count(), 1);
        std::fs::create_dir(folder.join("run.json.new")).unwrap();
        let error = write_atomically(&path, "none").unwrap_err();
        assert!(
            format!("{error:#}").contains(&format!("cannot write to {}", path.display())),
            "{error:#}"
        );
        assert_eq!(std::fs::read_to_string(&path).unwrap(), "another");
        std::fs::remove_dir_all(&folder).unwrap();
        let (mut reader, writer) = std::io::pipe().unwrap();
        let pipe = format!("/proc/self/fd/{}", writer.as_raw_fd());
        write_atomically(Path::new(&pipe), "through").unwrap();
        drop(writer);
        let mut came = String::new();
        reader.read_to_string(&mut came).unwrap();
        assert_eq!(came, "through");
    }
}
