//! Tests on real block devices and full file systems, which only root can set up.

use crate::common::{Loop, Mounted, Scratch, block_on, has_program, is_root, open, options};
use bytes::Bytes;
use lunar_block::contract::Contract;
use lunar_block::{BlockDevice, BlockRange, ErrorKind, FileDevice, FileOptions, Geometry, Sparse};
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};
use std::sync::{Arc, Mutex};

/// Goal: a write to a full file system fails with `NoSpace` and its blocks; after unmapping has
/// made room, writes succeed again.
#[test]
fn no_space() {
    if !is_root("no_space") || !has_program("mount", "no_space") {
        return;
    }
    let scratch = Scratch::new();
    let Some(small) = Mounted::small(&scratch, 256 << 10, "no_space") else { return };
    let device = FileDevice::open(options(&small.0.join("disk.img"), Some(1 << 30))).unwrap();
    let data = Bytes::from(vec![7; 64 << 10]);
    let write = |n: u64| block_on(device.write(BlockRange::new(n * 128, 128), data.clone(), false));
    let written = (0..8).take_while(|n| write(*n).is_ok()).count() as u64;
    assert!((2..=4).contains(&written), "{written} writes of 64 KiB into 256 KiB");
    let error = write(written).unwrap_err();
    assert_eq!((error.kind, error.range), (ErrorKind::NoSpace, Some(BlockRange::new(512, 128))));
    let sparse = device.sparse().unwrap();
    block_on(sparse.unmap(BlockRange::new(0, 512 * 128), false)).unwrap();
    write(written).unwrap();
    drop(device);
    let thick = small.0.join("thick.img");
    let why = crate::common::refused(FileOptions { thin: false, ..options(&thick, Some(1 << 20)) });
    assert!(why.contains("space"), "{why}");
    assert!(!thick.exists(), "a partly created device is removed");
}

/// Goal: a sync that really fails (a block device over a file that cannot grow) is reported once
/// with its cause. Then the device is poisoned for flushes, writes and unmaps, but not for reads;
/// it works again after it is reopened.
#[test]
fn failed_sync_poisons() {
    if !is_root("failed_sync_poisons") || !has_program("losetup", "failed_sync_poisons") {
        return;
    }
    let scratch = Scratch::new();
    let Some(small) = Mounted::small(&scratch, 256 << 10, "failed_sync_poisons") else { return };
    let backing = small.0.join("backing.img");
    std::fs::File::create(&backing).unwrap().set_len(16 << 20).unwrap();
    let Some(disk) = Loop::new(&backing, 512, "failed_sync_poisons") else { return };
    let device = open(&disk.0);
    let write = |lba, durable| {
        let data = Bytes::from(vec![7; 1 << 20]);
        block_on(device.write(BlockRange::new(lba, 2048), data, durable)).map_err(|e| e.kind)
    };
    assert_eq!(write(0, false), Ok(()), "accepted by the page cache");
    let flushed = block_on(device.flush()).map_err(|e| e.kind);
    assert_eq!(flushed, Err(ErrorKind::Medium));
    assert_eq!(write(0, false), Err(ErrorKind::Poisoned));
    assert_eq!(write(0, true), Err(ErrorKind::Poisoned));
    let flushed = block_on(device.flush()).map_err(|e| e.kind);
    assert_eq!(flushed, Err(ErrorKind::Poisoned));
    let unmapped = block_on(device.unmap(BlockRange::new(0, 1), true)).map_err(|e| e.kind);
    assert_eq!(unmapped, Err(ErrorKind::Poisoned));
    assert_eq!(crate::common::read_block(&device, 30_000), [0; 512]);
    drop(device);
    let device = open(&disk.0);
    block_on(device.flush()).unwrap();
    drop(device);
}

/// Goal: the contract holds on a block device, buffered and direct, with sectors of 512 and 4096
/// bytes; blocks of 512 bytes in larger sectors are written by read-modify-write.
#[test]
fn contract_on_block_devices() {
    if !is_root("contract_on_block_devices") || !has_program("losetup", "contract_on_block_devices")
    {
        return;
    }
    let scratch = Scratch::new();
    let probe = scratch.0.join("probe.img");
    std::fs::File::create(&probe).unwrap().set_len(4096).unwrap();
    if Loop::new(&probe, 512, "contract_on_block_devices").is_none() {
        return;
    }
    let next = AtomicU32::new(0);
    for (direct, sector_bytes) in [(false, 512), (false, 4096), (true, 512), (true, 4096)] {
        let attached = Mutex::new(None);
        let last = Mutex::new(None);
        let make = |shape: Geometry| -> Arc<dyn BlockDevice> {
            // The previous loop device is detached first, because there are few. Its last writes
            // may be a moment late, so it shares no file with this one.
            *attached.lock().unwrap() = None;
            let number = next.fetch_add(1, Relaxed);
            let path = scratch.0.join(format!("{number}.img"));
            std::fs::File::create(&path).unwrap().set_len(shape.size_bytes()).unwrap();
            let device = Loop::new(&path, sector_bytes, "contract_on_block_devices");
            let device = device.expect("a loop device");
            let options = FileOptions {
                direct,
                block_bytes: shape.block_bytes,
                physical_block_bytes: shape.physical_block_bytes,
                ..options(&device.0, None)
            };
            *attached.lock().unwrap() = Some(device);
            *last.lock().unwrap() = Some(options.clone());
            FileDevice::open(options).unwrap()
        };
        let reopen = |device: Arc<dyn BlockDevice>| -> Arc<dyn BlockDevice> {
            drop(device);
            FileDevice::open(last.lock().unwrap().clone().unwrap()).unwrap()
        };
        Contract::new(&make).reopening(&reopen).size_multiple_of(4096).run();
    }
}

/// Goal: the contract holds on a file system whose blocks are smaller than those of the disk: a
/// partly allocated block counts as data.
#[test]
fn contract_on_small_file_system_blocks() {
    let test = "contract_on_small_file_system_blocks";
    if !is_root(test) || !has_program("mkfs.ext4", test) {
        return;
    }
    let scratch = Scratch::new();
    let image = scratch.0.join("image");
    std::fs::File::create(&image).unwrap().set_len(256 << 20).unwrap();
    crate::common::run_checked("mkfs.ext4", &["-q", "-b", "1024", image.to_str().unwrap()]);
    let Some(disk) = Loop::new(&image, 512, test) else { return };
    let ext4 = ["-t", "ext4", disk.0.to_str().unwrap()];
    let Some(mounted) = Mounted::new(&scratch, &ext4, test) else { return };
    let next = AtomicU32::new(0);
    let make = |shape: Geometry| -> Arc<dyn BlockDevice> {
        let number = next.fetch_add(1, Relaxed);
        let options = FileOptions {
            direct: number % 2 == 1,
            block_bytes: shape.block_bytes,
            physical_block_bytes: shape.physical_block_bytes,
            ..options(&mounted.0.join(format!("{number}.img")), Some(shape.size_bytes()))
        };
        FileDevice::open(options).unwrap()
    };
    Contract::new(&make).size_multiple_of(4096).run();
}

/// Goal: a mounted block device is refused.
#[test]
fn mounted_is_refused() {
    if !is_root("mounted_is_refused") || !has_program("mkfs.ext4", "mounted_is_refused") {
        return;
    }
    let scratch = Scratch::new();
    let backing = scratch.0.join("backing.img");
    std::fs::File::create(&backing).unwrap().set_len(16 << 20).unwrap();
    let Some(disk) = Loop::new(&backing, 512, "mounted_is_refused") else { return };
    crate::common::run_checked("mkfs.ext4", &["-q", disk.0.to_str().unwrap()]);
    let ext4 = ["-t", "ext4", disk.0.to_str().unwrap()];
    let Some(mounted) = Mounted::new(&scratch, &ext4, "mounted_is_refused") else { return };
    assert!(crate::common::refused(options(&disk.0, None)).contains("in use"), "mounted");
    drop(mounted);
    drop(open(&disk.0));
}

/// Goal: uncached data of a block device is not read inline, because the core would wait for the
/// device. The file system in memory (devtmpfs) that holds its node says nothing about its data.
#[test]
fn block_devices_are_read_inline_only_where_they_are_cached() {
    let test = "block_devices_are_read_inline_only_where_they_are_cached";
    if !is_root(test) || !has_program("losetup", test) {
        return;
    }
    let scratch = Scratch::new();
    let backing = scratch.0.join("backing.img");
    std::fs::File::create(&backing).unwrap().set_len(16 << 20).unwrap();
    let Some(disk) = Loop::new(&backing, 512, test) else { return };
    let device = open(&disk.0);
    let mut block = [1; 512];
    assert!(!device.try_read_now(BlockRange::new(20_000, 1), &mut block), "the block was not read");
    assert_eq!(crate::common::read_block(&device, 20_000), [0; 512]);
    assert!(device.try_read_now(BlockRange::new(20_000, 1), &mut block));
    assert_eq!(block, [0; 512]);
}
