//! Tests which links a lookup follows, and where it ends.

use super::*;
use crate::scratch::{NOBODY, ScratchFolder, is_root};
use std::fs;
use std::os::unix::fs::{lchown, symlink};

fn identity(path: &Path) -> FileIdentity {
    FileIdentity::of(&fs::metadata(path).unwrap())
}

#[track_caller]
fn refusal<T: std::fmt::Debug>(result: io::Result<T>) -> String {
    let error = result.unwrap_err();
    UntrustedFile::of(&error).unwrap_or_else(|| panic!("no refusal: {error}")).what.clone()
}

/// Goal: a lookup ends at the same file as the kernel's. Paths have links of this user at the end
/// and on the way, absolute and relative ones, `.`, `..`, doubled and trailing slashes, and links
/// in /proc.
#[test]
fn a_lookup_finds_the_same_file_as_the_kernel() {
    let scratch = ScratchFolder::new("lookup");
    fs::create_dir_all(scratch.path("a/b/c")).unwrap();
    fs::write(scratch.path("a/b/file"), "").unwrap();
    symlink("a/b", scratch.path("relative")).unwrap();
    symlink(scratch.path("a"), scratch.path("absolute")).unwrap();
    symlink("../../absolute/b/", scratch.path("a/b/back")).unwrap();
    symlink("relative/file", scratch.path("last")).unwrap();
    let opened = File::open(scratch.path("a")).unwrap();
    let descriptor = format!("/proc/self/fd/{}", std::os::fd::AsRawFd::as_raw_fd(&opened));
    let names = ["a/b/file", "last", "relative/file", "absolute/b/file", "a/./b/../b//file"];
    let more = ["relative/back/file", "absolute/b/back/back/c/../file", "relative/../b/file"];
    let mut paths: Vec<_> = names.iter().chain(&more).map(|name| scratch.path(name)).collect();
    paths.push(Path::new(&descriptor).join("b/file"));
    let resolved = fs::canonicalize(scratch.path("a/b/file")).unwrap();
    for path in &paths {
        let entry = PathEntry::find(path).unwrap();
        let found = FileIdentity::of(&entry.found.unwrap().1);
        assert_eq!(found, identity(path), "{}", path.display());
        assert_eq!(entry.name, "file");
        assert_eq!(resolve_path(path).unwrap(), resolved, "{}", path.display());
    }
    for name in ["a", "a/", "a/.", "a/b/..", "absolute", "absolute/", "relative/..", "last/.."] {
        let path = scratch.path(name);
        let found = FolderEntry::find(&path, None);
        match fs::metadata(&path) {
            Ok(_) => {
                let found = found.unwrap().unwrap().folder.metadata().unwrap();
                assert_eq!(FileIdentity::of(&found), identity(&path), "{name}");
                assert_eq!(resolve_path(&path).unwrap(), fs::canonicalize(&path).unwrap());
            }
            Err(error) => assert_eq!(error.kind(), found.unwrap_err().kind(), "{name}"),
        }
    }
    assert!(PathEntry::find(&scratch.path("a/b/new")).unwrap().found.is_none());
    assert_eq!(
        resolve_path(&scratch.path("relative/new")).unwrap(),
        resolved.with_file_name("new")
    );
    assert_eq!(resolve_path(Path::new("/../tmp/..")).unwrap(), Path::new("/"));
    assert_eq!(resolve_path(Path::new(".")).unwrap(), std::env::current_dir().unwrap());
    for name in ["none/new", "a/b/file/new", "a/b/file/"] {
        let (ours, theirs) =
            (PathEntry::find(&scratch.path(name)), fs::metadata(scratch.path(name)));
        assert_eq!(ours.unwrap_err().kind(), theirs.unwrap_err().kind(), "{name}");
    }
}

/// Fault: only a link at the end of a path was checked. Another user's link to a folder, on the
/// way, made a server of root create files and folders in places where only root may.
#[test]
fn links_of_others_on_the_way_are_refused() {
    let scratch = ScratchFolder::new("on-the-way");
    if !is_root() {
        return;
    }
    fs::create_dir(scratch.path("theirs")).unwrap();
    fs::create_dir(scratch.path("ours")).unwrap();
    fs::write(scratch.path("ours/file"), "").unwrap();
    let link = scratch.path("theirs/link");
    symlink("../ours", &link).unwrap();
    symlink("theirs/link", scratch.path("own")).unwrap();
    let all = ["theirs/link/file", "theirs/link/new", "theirs/link/../ours/file", "own/file"];
    for name in all {
        PathEntry::find(&scratch.path(name)).unwrap();
    }
    lchown(&link, Some(NOBODY), Some(NOBODY)).unwrap();
    for path in all.map(|name| scratch.path(name)) {
        let what = refusal(PathEntry::find(&path));
        assert!(what.contains("belongs to uid 65534, who can point it"), "{what}");
        refusal(resolve_path(&path));
    }
    let state = scratch.path("theirs/link/state");
    refusal(crate::StateDirectory::create(&state));
    refusal(crate::StateDirectory::open(&state));
    refusal(crate::output_file::write(&state, b"text"));
    let left: Vec<_> = fs::read_dir(scratch.path("ours")).unwrap().collect();
    assert_eq!(left.len(), 1, "{left:?}");
}

/// Goal: a folder is created with all missing parents, for its owner alone, but not below a link to
/// a missing target, which may be a file system that is not mounted.
#[test]
fn folders_are_not_created_through_links() {
    let scratch = ScratchFolder::new("made");
    symlink("missing", scratch.path("link")).unwrap();
    for name in ["link", "link/state"] {
        let refused = FolderEntry::find(&scratch.path(name), Some(0o700)).unwrap_err();
        assert_eq!(refused.kind(), io::ErrorKind::NotFound, "{name}");
    }
    assert!(!scratch.path("missing").exists());
    let made = FolderEntry::find(&scratch.path("a/b/"), Some(0o700)).unwrap().unwrap();
    assert_eq!(fs::metadata(scratch.path("a/b")).unwrap().mode() & 0o7777, 0o700);
    // The folder is removed from its current place, and no other folder is.
    fs::rename(scratch.path("a"), scratch.path("moved")).unwrap();
    fs::create_dir_all(scratch.path("a/b")).unwrap();
    made.remove().unwrap();
    assert!(!scratch.path("moved/b").exists() && scratch.path("a/b").exists());
    fs::create_dir(scratch.path("moved/b")).unwrap();
    made.remove().unwrap();
    assert!(scratch.path("moved/b").exists(), "another folder of that name");
}
