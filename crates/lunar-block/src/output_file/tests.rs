//! Tests that outputs are written as a whole, and never into files planted by another user.

use super::*;
use crate::UntrustedFile;
use crate::scratch::{NOBODY, ScratchFolder, is_root, make_pipe};
use std::fs;
use std::io::Read;
use std::os::fd::AsRawFd;
use std::os::unix::fs::{PermissionsExt, lchown, symlink};
use std::path::PathBuf;

/// Creates a folder in which all users may create files, like /tmp.
fn shared(name: &str) -> ScratchFolder {
    let scratch = ScratchFolder::new(name);
    fs::set_permissions(scratch.folder(), PermissionsExt::from_mode(0o1777)).unwrap();
    scratch
}

#[track_caller]
fn refusal(path: &Path) -> String {
    // The calls run one after the other: a pipe that is not refused would hang the second.
    let checked = check(path).unwrap_err();
    let written = write(path, b"changed").unwrap_err();
    assert_eq!(checked.to_string(), written.to_string());
    UntrustedFile::of(&written).unwrap_or_else(|| panic!("{written}")).what.clone()
}

/// Goal: a file is replaced as a whole; no other file is left, and its permissions stay. If it
/// cannot be replaced, the previous file stays.
#[test]
fn a_file_is_replaced() {
    let shared = shared("replaced");
    let path = shared.path("report.html");
    check(&path).unwrap();
    assert!(!path.exists());
    for text in ["one", "another"] {
        write(&path, text.as_bytes()).unwrap();
        assert_eq!(fs::read_to_string(&path).unwrap(), text);
        fs::set_permissions(&path, PermissionsExt::from_mode(0o640)).unwrap();
    }
    assert_eq!(fs::metadata(&path).unwrap().mode() & 0o777, 0o640);
    assert_eq!(fs::read_dir(shared.folder()).unwrap().count(), 2);
    fs::write(shared.path("report.html.new"), "left by a killed process").unwrap();
    write(&path, b"more").unwrap();
    assert_eq!(fs::read_dir(shared.folder()).unwrap().count(), 2);
    fs::create_dir(shared.path("report.html.new")).unwrap();
    assert!(refusal(&path).contains("report.html.new is a directory"));
    assert_eq!(fs::read_to_string(&path).unwrap(), "more");
    assert_eq!(write(shared.folder(), b"").unwrap_err().kind(), ErrorKind::IsADirectory);
    assert_eq!(check(&shared.path("no/such")).unwrap_err().kind(), ErrorKind::NotFound);
}

/// Goal: a pipe, a device and a descriptor of this process are written directly; a link of this
/// user is followed and stays.
#[test]
fn streams_and_links_of_this_user_are_written() {
    let shared = shared("streams");
    let (mut reader, writer) = std::io::pipe().unwrap();
    let descriptor = PathBuf::from(format!("/proc/self/fd/{}", writer.as_raw_fd()));
    let link = shared.path("to-descriptor");
    symlink(&descriptor, &link).unwrap();
    for path in [&descriptor, &link] {
        check(path).unwrap();
        write(path, b"through").unwrap();
    }
    drop(writer);
    let mut came = String::new();
    reader.read_to_string(&mut came).unwrap();
    assert_eq!(came, "throughthrough");
    let file = File::create(shared.path("redirected")).unwrap();
    write(Path::new(&format!("/proc/self/fd/{}", file.as_raw_fd())), b"redirected").unwrap();
    assert_eq!(fs::read(shared.path("redirected")).unwrap(), b"redirected");
    write(Path::new("/dev/null"), b"nothing").unwrap();
    let pipe = shared.path("pipe");
    make_pipe(&pipe);
    let reader = std::thread::spawn({
        let pipe = pipe.clone();
        move || fs::read(pipe).unwrap()
    });
    check(&pipe).unwrap();
    write(&pipe, b"by name").unwrap();
    assert_eq!(reader.join().unwrap(), b"by name");
    symlink("deeper", shared.path("latest")).unwrap();
    symlink(shared.path("one.html"), shared.path("deeper")).unwrap();
    write(&shared.path("latest"), b"report").unwrap();
    assert_eq!(fs::read(shared.path("one.html")).unwrap(), b"report");
    assert!(shared.path("latest").is_symlink() && shared.path("deeper").is_symlink());
}

/// Goal: nothing is written through a link, into a pipe or over a file that another user has put in
/// a shared folder. Another user's file under the name itself is replaced; its data is not changed.
#[test]
fn files_planted_by_others_are_not_written_to() {
    if !is_root() {
        return;
    }
    let shared = shared("planted");
    let theirs = |name: &str| lchown(shared.path(name), Some(NOBODY), Some(NOBODY)).unwrap();
    let (link, pipe, file) = (shared.path("link"), shared.path("pipe"), shared.path("file"));
    symlink(shared.path("victim"), &link).unwrap();
    theirs("link");
    assert!(refusal(&link).contains("belongs to uid 65534, who can point it"));
    shared.victim_is_unchanged();
    fs::remove_file(&link).unwrap();
    symlink(shared.path("dangling"), &link).unwrap();
    theirs("link");
    refusal(&link);
    assert!(!shared.path("dangling").exists());
    make_pipe(&pipe);
    theirs("pipe");
    assert!(refusal(&pipe).contains("is a pipe of uid 65534"));
    fs::hard_link(shared.path("victim"), &file).unwrap();
    write(&file, b"report").unwrap();
    assert_eq!(fs::read(&file).unwrap(), b"report");
    for plant in [
        |victim: &Path, next: &Path| symlink(victim, next).unwrap(),
        |victim: &Path, next: &Path| fs::hard_link(victim, next).unwrap(),
        |_: &Path, next: &Path| make_pipe(next),
    ] {
        let next = shared.path("file.new");
        plant(&shared.path("victim"), &next);
        assert!(refusal(&file).starts_with("file.new "));
        fs::remove_file(next).unwrap();
        shared.victim_is_unchanged();
    }
    assert_eq!(fs::read(&file).unwrap(), b"report");
}
