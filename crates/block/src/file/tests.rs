//! What is particular to files; what all disks have in common is in the contract test.

use super::*;
use crate::contract::Contract;
use std::path::PathBuf;

/// A directory that goes away with the test.
struct Scratch(PathBuf);

impl Scratch {
    fn new() -> Self {
        use std::sync::atomic::{AtomicU32, Ordering::Relaxed};
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let name = format!("block-{}-{}", std::process::id(), NEXT.fetch_add(1, Relaxed));
        let path = std::env::temp_dir().join(name);
        std::fs::create_dir(&path).unwrap();
        Self(path)
    }

    fn options(&self, size_bytes: u64) -> FileOptions {
        FileOptions {
            path: self.0.join("disk.img"),
            create_size_bytes: Some(size_bytes),
            block_bytes: 512,
            physical_block_bytes: 4096,
            direct: false,
            read_only: false,
            thin: true,
        }
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

fn block_on<T>(future: impl Future<Output = T>) -> T {
    tokio::runtime::Builder::new_current_thread().build().unwrap().block_on(future)
}

fn refused(options: FileOptions) -> String {
    let error = FileDevice::open(options).unwrap_err();
    assert_eq!(error.kind, ErrorKind::Open);
    error.to_string()
}

/// A new file has its size and takes no room; it keeps its data and its size when opened again.
#[test]
fn created_and_kept() {
    let scratch = Scratch::new();
    let pool = crate::BufferPool::default();
    let device = FileDevice::open(scratch.options(15 << 40)).unwrap();
    assert_eq!(device.geometry().size_bytes(), 15 << 40);
    let last = BlockRange::new(device.geometry().block_count - 1, 1);
    block_on(device.write(last, Bytes::from(vec![9; 512]), true)).unwrap();
    drop(device);
    let device = FileDevice::open(scratch.options(1 << 20)).unwrap();
    assert_eq!(device.geometry().size_bytes(), 15 << 40);
    let read = block_on(device.read(last, pool.take(512))).unwrap();
    assert_eq!(read[..], [9; 512]);
    drop(read);
    assert_eq!(pool.in_use_bytes(), 0);
}

/// What cannot be opened is refused with a sentence that says why, and no file is made or changed.
#[test]
fn refusals() {
    let scratch = Scratch::new();
    let options = scratch.options(1 << 20);
    let missing = FileOptions { create_size_bytes: None, ..options.clone() };
    assert!(refused(missing.clone()).contains("does not exist"));
    for bad in [0, 1000] {
        refused(FileOptions { create_size_bytes: Some(bad), ..options.clone() });
    }
    refused(FileOptions { block_bytes: 520, ..options.clone() });
    refused(FileOptions { physical_block_bytes: 256, ..options.clone() });
    assert!(!options.path.exists());
    std::fs::write(&options.path, b"").unwrap();
    assert!(refused(missing.clone()).contains("empty"));
    std::fs::write(&options.path, [1; 1000]).unwrap();
    assert!(refused(missing).contains("not a multiple"));
    assert_eq!(std::fs::read(&options.path).unwrap(), [1; 1000]);
    let directory = FileOptions { path: scratch.0.clone(), ..options };
    assert!(refused(directory).contains("neither"));
}

fn keeps_the_contract(how: impl Fn(FileOptions) -> FileOptions, size_unit_bytes: u32) {
    let scratch = Scratch::new();
    let next = std::sync::atomic::AtomicU32::new(0);
    let last = std::sync::Mutex::new(None);
    let make = |shape: Geometry| -> Arc<dyn BlockDevice> {
        let number = next.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
        let options = how(FileOptions {
            path: scratch.0.join(format!("{number}.img")),
            block_bytes: shape.block_bytes,
            physical_block_bytes: shape.physical_block_bytes,
            ..scratch.options(shape.size_bytes())
        });
        *last.lock().unwrap() = Some(FileOptions { create_size_bytes: None, ..options.clone() });
        FileDevice::open(options).unwrap()
    };
    let reopen = |device: Arc<dyn BlockDevice>| -> Arc<dyn BlockDevice> {
        drop(device);
        FileDevice::open(last.lock().unwrap().clone().unwrap()).unwrap()
    };
    Contract::new(&make).reopening(&reopen).sizes_in(size_unit_bytes).run();
}

/// Through the page cache, thin.
#[test]
fn contract_buffered() {
    keeps_the_contract(|options| options, 512);
}

/// Through the page cache, all room taken at once.
#[test]
fn contract_thick() {
    keeps_the_contract(|options| FileOptions { thin: false, ..options }, 512);
}

/// Past the page cache.
#[test]
fn contract_direct() {
    keeps_the_contract(|options| FileOptions { direct: true, ..options }, 4096);
}
