//! Tests of backing files that are deleted, renamed, replaced or truncated.

use super::super::tests::Scratch;
use crate::{BackingPath, BackingProbe, BackingState, BlockDevice, FileDevice, FileOptions};
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};

const BYTES: u64 = 1 << 20;
const AS_OPENED: BackingState = BackingState {
    is_deleted: false,
    path: BackingPath::Same,
    file_bytes: BYTES,
    disk_bytes: BYTES,
};

fn open(options: FileOptions) -> (Arc<FileDevice>, Arc<dyn BackingProbe>, PathBuf) {
    let path = options.path.clone();
    let device = FileDevice::open(options).unwrap();
    let probe = device.backing().unwrap();
    assert_eq!(probe.read_state().unwrap(), AS_OPENED);
    (device, probe, path)
}

fn disk(scratch: &Scratch) -> (Arc<FileDevice>, Arc<dyn BackingProbe>, PathBuf) {
    open(scratch.options(BYTES))
}

fn resize(path: &Path, bytes: u64) {
    fs::File::options().write(true).open(path).unwrap().set_len(bytes).unwrap();
}

/// Fault: the deletion, renaming, replacement or truncation of a backing file went unnoticed.
#[test]
fn a_probe_detects_changes_of_the_file() {
    let scratch = Scratch::new();
    let (other, moved) = (scratch.0.join("other.img"), scratch.0.join("moved.img"));

    let (device, probe, path) = disk(&scratch);
    fs::remove_file(&path).unwrap();
    let deleted = BackingState { is_deleted: true, path: BackingPath::Missing, ..AS_OPENED };
    assert_eq!(probe.read_state().unwrap(), deleted);
    assert_eq!(
        fs::metadata(probe.open_path()).unwrap().len(),
        BYTES,
        "the file can still be copied"
    );
    drop((device, probe));

    let (device, probe, path) = disk(&scratch);
    fs::write(&other, b"other").unwrap();
    fs::rename(&other, &path).unwrap();
    let replaced = BackingState { is_deleted: true, path: BackingPath::Other, ..AS_OPENED };
    assert_eq!(probe.read_state().unwrap(), replaced);
    drop((device, probe));
    fs::remove_file(&path).unwrap();

    let (device, probe, path) = disk(&scratch);
    fs::rename(&path, &moved).unwrap();
    let renamed = BackingState { path: BackingPath::Missing, ..AS_OPENED };
    assert_eq!(probe.read_state().unwrap(), renamed);
    assert_eq!(probe.new_path().unwrap(), moved.canonicalize().unwrap());
    fs::write(&path, b"other").unwrap();
    assert_eq!(probe.read_state().unwrap().path, BackingPath::Other);
    fs::rename(&moved, &path).unwrap();
    assert_eq!(probe.read_state().unwrap(), AS_OPENED);
    for bytes in [4096, 2 * BYTES] {
        resize(&path, bytes);
        assert_eq!(probe.read_state().unwrap(), BackingState { file_bytes: bytes, ..AS_OPENED });
    }
    drop(device);
}

/// Goal: a symbolic link that leads to another file is detected; one that leads to the same file on
/// another way is not reported.
#[test]
fn a_link_is_followed() {
    let scratch = Scratch::new();
    let (first, link) = (scratch.0.join("first.img"), scratch.0.join("link"));
    fs::write(&first, vec![0; BYTES as usize]).unwrap();
    fs::write(scratch.0.join("other.img"), b"other").unwrap();
    std::os::unix::fs::symlink("first.img", &link).unwrap();
    let (_device, probe, _) = open(FileOptions { path: link.clone(), ..scratch.options(BYTES) });
    for (target, path) in [
        (first.to_str().unwrap(), BackingPath::Same),
        ("other.img", BackingPath::Other),
        ("nothing", BackingPath::Missing),
    ] {
        fs::remove_file(&link).unwrap();
        std::os::unix::fs::symlink(target, &link).unwrap();
        assert_eq!(probe.read_state().unwrap(), BackingState { path, ..AS_OPENED }, "{target}");
    }
}

/// Goal: a disk that its owner resizes never looks truncated. Method: probes look without a pause
/// while the disk grows and shrinks.
#[test]
fn a_resize_by_the_server_is_no_truncation() {
    let scratch = Scratch::new();
    let (device, probe, _) = disk(&scratch);
    let done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let looks = scope.spawn(|| {
            let mut looks = 0;
            while !done.load(SeqCst) || looks == 0 {
                let found = probe.read_state().unwrap();
                assert!(found.file_bytes >= found.disk_bytes, "after {looks} looks: {found:?}");
                looks += 1;
            }
        });
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        for round in 0..500_u64 {
            let bytes = BYTES + (round % 2) * 4096;
            runtime.block_on(device.resize().unwrap().resize(bytes)).unwrap();
        }
        done.store(true, SeqCst);
        looks.join().unwrap();
    });
}

/// Goal: an open probe, such as one whose look hangs, does not prevent the disk from being opened
/// again.
#[test]
fn a_probe_does_not_keep_the_lock() {
    let scratch = Scratch::new();
    let (device, probe, _) = disk(&scratch);
    drop(device);
    let (_again, ..) = disk(&scratch);
    assert_eq!(probe.read_state().unwrap(), AS_OPENED);
}
