//! Helpers shared by the tests on the real machine.
// Each test file uses a part of them, and a test fails by a panic.
#![allow(dead_code, clippy::unwrap_used, clippy::expect_used)]

use lunar_block::{BufferPool, FileDevice, FileOptions};
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};

/// A directory that is removed after the test.
pub struct Scratch(pub PathBuf);

impl Scratch {
    pub fn new() -> Self {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let name = format!("block-host-{}-{}", std::process::id(), NEXT.fetch_add(1, Relaxed));
        let path = std::env::temp_dir().join(name);
        std::fs::create_dir(&path).unwrap();
        Self(path)
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

pub fn options(path: &Path, create_size_bytes: Option<u64>) -> FileOptions {
    FileOptions {
        path: path.to_owned(),
        create_size_bytes,
        block_bytes: 512,
        physical_block_bytes: 4096,
        direct: false,
        io_uring: false,
        read_only: false,
        thin: true,
    }
}

/// Returns the message of a refused open.
pub fn refused(options: FileOptions) -> String {
    let error = FileDevice::open(options).expect_err("it is in use");
    assert_eq!(error.kind, lunar_block::ErrorKind::Open);
    error.to_string()
}

pub fn open(path: &Path) -> Arc<FileDevice> {
    FileDevice::open(options(path, None)).unwrap()
}

pub fn block_on<T>(future: impl Future<Output = T>) -> T {
    tokio::runtime::Builder::new_current_thread().build().unwrap().block_on(future)
}

/// Returns true when a program is installed; otherwise prints that `test` did not run.
pub fn has_program(program: &str, test: &str) -> bool {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let found = std::env::split_paths(&path).any(|directory| directory.join(program).is_file());
    if !found {
        eprintln!("SKIPPED: {test}: {program} is not installed");
    }
    found
}

/// Returns true when the test may mount and attach; otherwise prints that `test` did not run.
pub fn is_root(test: &str) -> bool {
    let root = rustix::process::geteuid().is_root();
    if !root {
        eprintln!("SKIPPED: {test}: it needs root");
    }
    root
}

pub fn run(program: &str, arguments: &[&str]) -> Output {
    Command::new(program).args(arguments).output().unwrap()
}

/// Runs a program that must succeed; returns its standard output.
pub fn run_checked(program: &str, arguments: &[&str]) -> String {
    let output = run(program, arguments);
    let text = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{program} {arguments:?}: {text}");
    String::from_utf8_lossy(&output.stdout).trim().to_owned()
}

/// A mounted file system.
pub struct Mounted(pub PathBuf);

impl Mounted {
    /// Mounts with `arguments` on a new directory. Returns `None`, with a printed note, if even
    /// root may not mount.
    pub fn new(scratch: &Scratch, arguments: &[&str], test: &str) -> Option<Self> {
        let path = scratch.0.join("mounted");
        std::fs::create_dir(&path).unwrap();
        let output = run("mount", &[arguments, &[path.to_str().unwrap()]].concat());
        if !output.status.success() {
            let why = String::from_utf8_lossy(&output.stderr).into_owned();
            eprintln!("SKIPPED: {test}: no mount: {}", why.trim());
            return None;
        }
        Some(Self(path))
    }

    /// Mounts a file system in memory that is full after `size_bytes`.
    pub fn small(scratch: &Scratch, size_bytes: u64, test: &str) -> Option<Self> {
        Self::new(scratch, &["-t", "tmpfs", "-o", &format!("size={size_bytes}"), "tmpfs"], test)
    }
}

impl Drop for Mounted {
    fn drop(&mut self) {
        // The unmount is lazy, because a process that another test has just forked may hold a file
        // for a moment.
        let _ = run("umount", &["-l", self.0.to_str().unwrap()]);
    }
}

/// A block device over a file.
pub struct Loop(pub PathBuf);

impl Loop {
    /// Attaches a loop device; `None`, with a printed note, if the machine has none.
    pub fn new(file: &Path, sector_bytes: u32, test: &str) -> Option<Self> {
        let sector = format!("--sector-size={sector_bytes}");
        let output = run("losetup", &["--find", "--show", &sector, file.to_str().unwrap()]);
        if !output.status.success() {
            let why = String::from_utf8_lossy(&output.stderr).into_owned();
            eprintln!("SKIPPED: {test}: no loop device: {}", why.trim());
            return None;
        }
        Some(Self(String::from_utf8_lossy(&output.stdout).trim().into()))
    }
}

impl Drop for Loop {
    fn drop(&mut self) {
        let _ = run("losetup", &["--detach", self.0.to_str().unwrap()]);
    }
}

/// Reads one block.
pub fn read_block(device: &FileDevice, lba: u64) -> Vec<u8> {
    use lunar_block::{BlockDevice, BlockRange};
    let pool = BufferPool::default();
    block_on(device.read(BlockRange::new(lba, 1), pool.take(512))).unwrap().to_vec()
}
