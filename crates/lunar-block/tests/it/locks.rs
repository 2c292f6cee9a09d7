//! A served file is served only once; QEMU and Lunar respect each other's locks.

use crate::common::{Scratch, block_on, has_program, open, options, refused, run, run_checked};
use bytes::Bytes;
use lunar_block::{BlockDevice, BlockRange, FileDevice, FileOptions, file_identity};
use std::io::{BufRead, BufReader, Write};
use std::process::{Command, Stdio};

const SIZE_BYTES: u64 = 1 << 20;

/// Goal: a second open of a file fails and names the holder, by whatever path; it succeeds after
/// the first was closed. Two paths have one identity.
#[test]
fn a_second_open_is_refused() {
    let scratch = Scratch::new();
    let path = scratch.0.join("disk.img");
    let other = scratch.0.join("link.img");
    let first = FileDevice::open(options(&path, Some(SIZE_BYTES))).unwrap();
    std::os::unix::fs::symlink(&path, &other).unwrap();
    assert_eq!(file_identity(&other).unwrap(), first.identity().unwrap());
    for path in [&path, &other] {
        let why = refused(options(path, Some(SIZE_BYTES)));
        assert!(why.contains("in use by this process itself"), "{why}");
        let read_only = FileOptions { read_only: true, ..options(path, None) };
        assert!(refused(read_only).contains("in use"));
    }
    drop(first);
    open(&other);
}

/// Goal: the message about a file in use names the process that holds it, and not the process that
/// opens it. Method: `flock` holds the file while its child waits for input.
#[test]
fn another_process_is_the_only_holder_named() {
    let scratch = Scratch::new();
    let path = scratch.0.join("disk.img");
    drop(FileDevice::open(options(&path, Some(SIZE_BYTES))).unwrap());
    let mut holder = Command::new("flock")
        .args([path.to_str().unwrap(), "sh", "-c", "echo locked; read line"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let input = holder.stdin.take().unwrap();
    let mut output = BufReader::new(holder.stdout.take().unwrap());
    output.read_line(&mut String::new()).unwrap();
    let why = refused(options(&path, None));
    assert!(why.contains(&format!("(process {})", holder.id())), "{why}");
    assert!(!why.contains("this process itself"), "{why}");
    drop(input);
    holder.wait().unwrap();
    open(&path);
}

/// Goal: readers share a file that is served read-only; no writer can open it, and writes are
/// refused.
#[test]
fn readers_share() {
    let scratch = Scratch::new();
    let path = scratch.0.join("disk.img");
    drop(FileDevice::open(options(&path, Some(SIZE_BYTES))).unwrap());
    let read_only = FileOptions { read_only: true, ..options(&path, None) };
    let first = FileDevice::open(read_only.clone()).unwrap();
    let second = FileDevice::open(read_only).unwrap();
    assert!(refused(options(&path, None)).contains("in use"));
    let write = first.write(BlockRange::new(0, 1), Bytes::from(vec![1; 512]), false);
    assert_eq!(block_on(write).unwrap_err().kind, lunar_block::ErrorKind::ReadOnly);
    block_on(first.flush()).unwrap();
    assert!(first.is_read_only());
    assert_eq!(crate::common::read_block(&second, 0), [0; 512]);
    drop((first, second));
    open(&path);
}

/// Goal: QEMU's tools neither read nor write a file that Lunar serves; a file served read-only they
/// can read but not write. (`qemu-img info` of a raw file reads no data, so it is allowed, as it is
/// while QEMU itself runs on the file.)
#[test]
fn qemu_does_not_open_served_files() {
    let test = "qemu_does_not_open_served_files";
    if !has_program("qemu-img", test) || !has_program("qemu-io", test) {
        return;
    }
    let scratch = Scratch::new();
    let path = scratch.0.join("disk.img");
    let file = path.to_str().unwrap();
    let copy = scratch.0.join("copy.img");
    let copy = copy.to_str().unwrap();
    let write = ["-f", "raw", "-c", "write -P 1 0 512", file];
    let refuses = |program: &str, arguments: &[&str]| {
        let output = run(program, arguments);
        let why = String::from_utf8_lossy(&output.stderr).into_owned();
        // qemu-io reports a failed open on one stream or the other, depending on its version.
        assert!(!output.status.success(), "{program} {arguments:?} was not refused");
        assert!(why.contains("lock"), "{program} {arguments:?}: {why}");
    };
    let device = FileDevice::open(options(&path, Some(SIZE_BYTES))).unwrap();
    std::fs::File::create(copy).unwrap().set_len(SIZE_BYTES).unwrap();
    refuses("qemu-img", &["convert", "-f", "raw", "-O", "raw", file, copy]);
    refuses("qemu-img", &["convert", "-n", "-f", "raw", "-O", "raw", copy, file]);
    refuses("qemu-img", &["compare", "-f", "raw", "-F", "raw", file, copy]);
    refuses("qemu-img", &["resize", "-f", "raw", file, "2M"]);
    refuses("qemu-io", &["-r", "-U", "-f", "raw", "-c", "read 0 512", file]);
    refuses("qemu-io", &write);
    drop(device);
    let read_only = FileOptions { read_only: true, ..options(&path, None) };
    let device = FileDevice::open(read_only).unwrap();
    run_checked("qemu-img", &["convert", "-f", "raw", "-O", "raw", file, copy]);
    refuses("qemu-io", &write);
    drop(device);
    run_checked("qemu-io", &write);
    assert_eq!(crate::common::read_block(&open(&path), 0), [1; 512]);
}

/// Goal: Lunar refuses a file that QEMU has open, and names QEMU.
#[test]
fn files_open_in_qemu_are_refused() {
    if !has_program("qemu-io", "files_open_in_qemu_are_refused") {
        return;
    }
    let scratch = Scratch::new();
    let path = scratch.0.join("disk.img");
    drop(FileDevice::open(options(&path, Some(SIZE_BYTES))).unwrap());
    let mut qemu = Command::new("qemu-io")
        .args(["-f", "raw", path.to_str().unwrap()])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut input = qemu.stdin.take().unwrap();
    input.write_all(b"read 0 512\n").unwrap();
    let output = BufReader::new(qemu.stdout.take().unwrap());
    // The reply of qemu-io shows that it has opened the file.
    assert!(output.lines().map_while(Result::ok).any(|line| line.contains("512 bytes")));
    let why = refused(options(&path, None));
    assert!(why.contains("qemu-io (process "), "{why}");
    drop(input);
    qemu.wait().unwrap();
    open(&path);
}
