//! Tests that files planted by other users, in a folder or in its place, are never read, written or
//! followed.

use super::*;
use crate::UntrustedFile;
use crate::scratch::{NOBODY, ScratchFolder, is_root, make_pipe};
use std::fs;
use std::os::unix::fs::{PermissionsExt, chown, lchown, symlink};
use std::os::unix::net::UnixListener;

/// Creates the state folder with a `planted` file in it.
fn with(scratch: &ScratchFolder, name: &str, planted: Planted) -> StateDirectory {
    let folder = scratch.path("state");
    let _ = fs::remove_dir_all(&folder);
    let state = StateDirectory::create(&folder).unwrap();
    planted.put(&folder.join(name), &scratch.path("victim"));
    state
}

#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum Planted {
    Link,
    HardLink,
    Pipe,
    Socket,
    Folder,
    Foreign,
}

impl Planted {
    /// Returns all kinds that this user can create.
    fn all() -> Vec<Self> {
        let mut all = vec![Self::Link, Self::HardLink, Self::Pipe, Self::Socket, Self::Folder];
        if is_root() {
            all.push(Self::Foreign);
        }
        all
    }

    fn put(self, at: &Path, victim: &Path) {
        match self {
            Self::Link => symlink(victim, at).unwrap(),
            Self::HardLink => fs::hard_link(victim, at).unwrap(),
            Self::Pipe => make_pipe(at),
            Self::Socket => drop(UnixListener::bind(at).unwrap()),
            Self::Folder => fs::create_dir(at).unwrap(),
            Self::Foreign => {
                fs::write(at, "theirs").unwrap();
                chown(at, Some(NOBODY), Some(NOBODY)).unwrap();
            }
        }
    }

    /// Returns words that a refusal of this kind contains.
    fn words(self) -> &'static str {
        match self {
            Self::Link => {
                "is a symbolic link, not a regular file, which could lead to another file"
            }
            Self::HardLink => "has 2 hard links",
            Self::Pipe => "is a pipe, not a regular file",
            Self::Socket => "is a socket, not a regular file",
            Self::Folder => "is a directory, not a regular file",
            Self::Foreign => "belongs to uid 65534, who can change it at any time",
        }
    }
}

/// Returns the words of a refusal, after a check that it includes its remedy.
#[track_caller]
fn refusal<T: std::fmt::Debug>(result: io::Result<T>) -> String {
    let error = result.unwrap_err();
    let refusal = UntrustedFile::of(&error).unwrap_or_else(|| panic!("no refusal: {error}"));
    assert!(!refusal.remedy.is_empty() && error.to_string().contains(&refusal.remedy));
    refusal.what.clone()
}

/// Goal: saved content is read back, only its owner can read the file, and no other file is left.
#[test]
fn saved_content_is_read_back() {
    let scratch = ScratchFolder::new("saved");
    let path = scratch.path("a/b/c");
    assert!(StateDirectory::open(&path).unwrap().is_none());
    let state = StateDirectory::create(&path).unwrap();
    assert!(state.is_empty().unwrap() && state.read("file", 10).unwrap().is_none());
    assert_eq!(fs::metadata(&path).unwrap().mode() & 0o7777, 0o700);
    for text in ["one", "another"] {
        state.save("file", text.as_bytes()).unwrap();
        assert_eq!(state.read("file", 7).unwrap().unwrap(), text.as_bytes());
    }
    assert_eq!(state.read("file", 6).unwrap_err().kind(), ErrorKind::InvalidData);
    state.save_first("id", "id.1", b"first").unwrap();
    state.save_first("id", "id.2", b"second").unwrap();
    assert_eq!(state.read("id", 10).unwrap().unwrap(), b"first");
    state.save_name("mark", b"text").unwrap();
    state.save_name("mark", b"other text").unwrap();
    assert_eq!(state.read("mark", 10).unwrap().unwrap(), b"text");
    let mut names = state.names().unwrap();
    names.sort();
    assert_eq!(names, ["file", "id", "mark"]);
    for name in names {
        assert_eq!(fs::metadata(path.join(name)).unwrap().mode() & 0o7777, 0o600);
    }
    state.remove("mark").unwrap();
    state.remove("mark").unwrap();
    assert!(!state.has("mark").unwrap() && !state.is_empty().unwrap());
    StateDirectory::create(&path).unwrap().discard().unwrap();
    assert!(!path.exists() && scratch.path("a/b").exists());
}

/// Goal: names lead to no file outside the folder.
#[test]
fn names_are_plain() {
    let scratch = ScratchFolder::new("names");
    let state = StateDirectory::create(&scratch.path("state")).unwrap();
    for name in ["", ".", "..", "../victim", "/etc/passwd", "a/b", "a\0b"] {
        let invalid =
            |error: io::Error| assert_eq!(error.kind(), ErrorKind::InvalidInput, "{name}");
        invalid(state.read(name, 10).unwrap_err());
        invalid(state.has(name).unwrap_err());
        invalid(state.save(name, b"").unwrap_err());
        invalid(state.save_first(name, "aside", b"").unwrap_err());
        invalid(state.save_first("aside", name, b"").unwrap_err());
        invalid(state.save_name(name, b"").unwrap_err());
        invalid(state.remove(name).unwrap_err());
    }
    assert!(state.is_empty().unwrap());
    scratch.victim_is_unchanged();
}

/// Goal: a planted file is refused by its kind when it is read, and is not opened; a lookup of the
/// name finds it, and it can be removed by name.
#[test]
fn planted_files_are_not_read() {
    let scratch = ScratchFolder::new("read");
    for planted in Planted::all() {
        let state = with(&scratch, "file", planted);
        let what = refusal(state.read("file", 100));
        assert!(what.contains(planted.words()), "{planted:?}: {what}");
        assert!(state.has("file").unwrap());
        state.save_name("file", b"changed").unwrap();
        assert_eq!(state.remove("file").is_ok(), planted != Planted::Folder);
        scratch.victim_is_unchanged();
    }
    let devices = StateDirectory::open(Path::new("/dev")).unwrap().unwrap();
    assert!(refusal(devices.read("zero", 1)).contains("is a device, not a regular file"));
}

/// Goal: nothing is written through a file planted where new or first content is written; files
/// left there by a crash are replaced.
#[test]
fn planted_files_are_not_written() {
    let scratch = ScratchFolder::new("write");
    for planted in Planted::all() {
        let state = with(&scratch, "file.new", planted);
        let what = refusal(state.save("file", b"changed"));
        assert!(what.starts_with("file.new ") && what.contains(planted.words()), "{what}");
        assert!(!state.has("file").unwrap());
        let state = with(&scratch, "file.1", planted);
        let exists = state.save_first("file", "file.1", b"changed").unwrap_err();
        assert_eq!(exists.kind(), ErrorKind::AlreadyExists, "{planted:?}");
        assert!(!state.has("file").unwrap());
        let state = with(&scratch, "file", planted);
        state.save_first("file", "file.1", b"changed").unwrap();
        refusal(state.read("file", 100));
        scratch.victim_is_unchanged();
    }
    let state = with(&scratch, "other", Planted::Folder);
    fs::write(scratch.path("state/file.new"), "half a").unwrap();
    state.save("file", b"whole").unwrap();
    assert_eq!(state.read("file", 10).unwrap().unwrap(), b"whole");
    assert!(!state.has("file.new").unwrap());
}

/// Goal: a link planted under the name of the content is replaced by a save, not followed.
#[test]
fn a_save_replaces_a_link() {
    let scratch = ScratchFolder::new("replace");
    for planted in [Planted::Link, Planted::HardLink] {
        let state = with(&scratch, "file", planted);
        state.save("file", b"changed").unwrap();
        assert_eq!(state.read("file", 10).unwrap().unwrap(), b"changed");
        scratch.victim_is_unchanged();
    }
}

/// Goal: first content that a kill has left under two names is read, and the other name is removed.
#[test]
fn a_file_linked_when_the_process_was_killed_is_read() {
    let scratch = ScratchFolder::new("linked");
    let state = StateDirectory::create(&scratch.path("state")).unwrap();
    state.save("id.1", b"content").unwrap();
    fs::hard_link(scratch.path("state/id.1"), scratch.path("state/id")).unwrap();
    state.save("id.2", b"other").unwrap();
    assert_eq!(state.read("id", 10).unwrap().unwrap(), b"content");
    assert!(!state.has("id.1").unwrap() && state.has("id.2").unwrap());
}

/// Goal: the descriptor stays with the folder that was checked. A link of this user to the folder
/// works; another user's link and a link to itself do not.
#[test]
fn a_link_of_this_user_to_the_folder_is_followed() {
    let scratch = ScratchFolder::new("link");
    let (folder, link, chain) =
        (scratch.path("state"), scratch.path("link"), scratch.path("chain"));
    StateDirectory::create(&folder).unwrap();
    symlink("state", &link).unwrap();
    symlink(&link, &chain).unwrap();
    let state = StateDirectory::create(&chain).unwrap();
    fs::remove_file(&link).unwrap();
    fs::create_dir(&link).unwrap();
    state.save("file", b"content").unwrap();
    assert!(folder.join("file").exists() && !link.join("file").exists());
    symlink("loop", scratch.path("loop")).unwrap();
    let error = StateDirectory::open(&scratch.path("loop")).unwrap_err();
    assert_eq!(Errno::from_io_error(&error), Some(Errno::LOOP));
    fs::remove_dir(&link).unwrap();
    symlink("state", &link).unwrap();
    if is_root() {
        lchown(&link, Some(NOBODY), Some(NOBODY)).unwrap();
        for path in [&link, &chain] {
            let what = refusal(StateDirectory::create(path));
            assert!(what.contains("belongs to uid 65534, who can point it"), "{what}");
            refusal(StateDirectory::open(path));
        }
    }
}

/// Goal: a folder that other users own or may write to is refused, and so is a file that is not a
/// folder; if shared folders are allowed, only a sticky one is accepted.
#[test]
fn folders_that_others_change_are_refused() {
    let scratch = ScratchFolder::new("others");
    let folder = scratch.path("state");
    StateDirectory::create(&folder).unwrap();
    for (mode, words) in [
        (0o770, "the group "),
        (0o707, "everybody can write"),
        (0o777, "everybody can write"),
        (0o1777, "everybody can write"),
        (0o1770, "the group "),
    ] {
        fs::set_permissions(&folder, PermissionsExt::from_mode(mode)).unwrap();
        let what = refusal(StateDirectory::open(&folder));
        assert!(what.contains(words), "{mode:o}: {what}");
        refusal(StateDirectory::create(&folder));
        let shared = trusted::open_folder(&folder, SharedFolder::AllowedIfSticky);
        assert_eq!(shared.is_ok(), mode & 0o1000 != 0, "{mode:o}");
    }
    fs::set_permissions(&folder, PermissionsExt::from_mode(0o755)).unwrap();
    StateDirectory::open(&folder).unwrap().unwrap();
    if is_root() {
        chown(&folder, Some(NOBODY), Some(NOBODY)).unwrap();
        let what = refusal(StateDirectory::create(&folder));
        assert!(what.contains("belongs to uid 65534, who can change its contents"), "{what}");
        refusal(trusted::open_folder(&folder, SharedFolder::AllowedIfSticky));
    }
    let what = refusal(StateDirectory::create(&scratch.path("victim")));
    assert!(what.contains("is a regular file, not a directory"), "{what}");
    let below = StateDirectory::create(&scratch.path("victim/state")).unwrap_err();
    assert_eq!(below.kind(), ErrorKind::NotADirectory);
    scratch.victim_is_unchanged();
}
