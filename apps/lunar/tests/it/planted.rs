//! Files that another user has placed in a world-writable folder: a server that runs as root
//! neither reads nor writes through them, and reports them.

use crate::common::{Scratch, Server, assert_exit, printed, run};
use std::fs;
use std::os::unix::fs::{DirBuilderExt, MetadataExt, PermissionsExt, chown, lchown, symlink};
use std::path::{Path, PathBuf};

/// A user other than this one and root.
const NOBODY: u32 = 65534;
const PRECIOUS: &[u8] = b"precious";

/// A folder where everybody may create, rename and remove files, with private files beside it.
struct Shared {
    scratch: Scratch,
}

impl Shared {
    fn new(name: &str) -> Self {
        let scratch = Scratch::new(name);
        scratch.file("victim", PRECIOUS);
        fs::create_dir(scratch.path().join("ours")).unwrap();
        let shared = scratch.path().join("shared");
        fs::create_dir(&shared).unwrap();
        fs::set_permissions(&shared, PermissionsExt::from_mode(0o777)).unwrap();
        Self { scratch }
    }

    fn victim(&self) -> PathBuf {
        self.scratch.path().join("victim")
    }

    fn ours(&self) -> PathBuf {
        self.scratch.path().join("ours")
    }

    fn path(&self, name: &str) -> PathBuf {
        self.scratch.path().join("shared").join(name)
    }

    fn text(&self, name: &str) -> String {
        self.path(name).to_str().unwrap().to_owned()
    }

    #[track_caller]
    fn assert_untouched(&self) {
        assert_eq!(fs::read(self.victim()).unwrap(), PRECIOUS);
        assert_eq!(fs::read_dir(self.ours()).unwrap().count(), 0, "nothing is written there");
    }

    /// Checks that serving this disk with these options fails, with these words and a hint.
    #[track_caller]
    fn refused(&self, options: &[&str], words: &str) {
        let disk = self.text("disk.img");
        let serve = ["serve", &disk, "--size", "1M", "--listen", "127.0.0.1:0", "--json"];
        let output = run(&[&serve[..], options].concat());
        assert_exit(&output, 1);
        assert!(printed(&output).contains(words), "`{words}` is not in {}", printed(&output));
        self.assert_untouched();
    }
}

/// Changes the owner of a file to another user; prints a line and returns `false` without
/// permission to.
fn give_away(path: &Path) -> bool {
    match lchown(path, Some(NOBODY), Some(NOBODY)) {
        Ok(()) => true,
        Err(error) => {
            println!("skipped in part: only root can make files of another user ({error})");
            false
        }
    }
}

/// Goal: no image is created or opened through a link that another user has put in its place.
#[test]
fn an_image_is_not_created_through_a_link() {
    let shared = Shared::new("planted-image");
    let disk = shared.path("disk.img");
    symlink(shared.ours().join("new"), &disk).unwrap();
    shared.refused(&[], "a symbolic link to a file that does not exist");
    fs::remove_file(&disk).unwrap();
    symlink(shared.victim(), &disk).unwrap();
    if give_away(&disk) {
        shared.refused(&[], "belongs to uid 65534, who can point it");
    }
    fs::remove_file(&disk).unwrap();
    let real = shared.path("real.img");
    symlink(&real, &disk).unwrap();
    fs::write(&real, vec![0; 1 << 20]).unwrap();
    drop(Server::start(&[&shared.text("disk.img")]));
    assert_eq!(fs::metadata(shared.path("real.img.lunar")).unwrap().mode() & 0o7777, 0o700);
}

/// Fault: another user's link to a folder of root, within the path of the image, made a server of
/// root create the image and its state in that folder.
#[test]
fn an_image_is_not_created_beyond_a_link() {
    let shared = Shared::new("planted-above");
    let link = shared.path("d");
    symlink(shared.ours(), &link).unwrap();
    if !give_away(&link) {
        return;
    }
    let state = shared.scratch.path().join("state");
    let state = state.to_str().unwrap();
    for options in [&[][..], &["--state", state]] {
        let disk = shared.text("d/job");
        let serve = ["serve", &disk, "--size", "64K", "--listen", "127.0.0.1:0", "--json"];
        let output = run(&[&serve[..], options].concat());
        assert_exit(&output, 1);
        let words = "belongs to uid 65534, who can point it";
        assert!(printed(&output).contains(words), "{}", printed(&output));
        shared.assert_untouched();
    }
    shared.refused(&["--state", &shared.text("d/state")], "belongs to uid 65534, who can point it");
    shared.refused(
        &["--api", &format!("unix:{}", shared.text("d/api.sock"))],
        "belongs to uid 65534",
    );
    shared.refused(
        &["--api", &format!("unix:{}", shared.text("d/a/api.sock"))],
        "belongs to uid 65534",
    );
    fs::remove_file(&link).unwrap();
    symlink(shared.ours(), &link).unwrap();
    drop(Server::start(&[&shared.text("d/job"), "--size", "64K"]));
    assert!(shared.ours().join("job").exists() && shared.ours().join("job.lunar/uuid").exists());
}

/// Goal: folders and links of another user in the place of a disk's state, beside the disk or in a
/// common folder, are refused. A link of this user is used.
#[test]
fn a_state_folder_of_another_user_is_refused() {
    let shared = Shared::new("planted-folder");
    let encoded = fs::canonicalize(shared.path("")).unwrap().join("disk.img");
    let encoded = encoded.to_str().unwrap().replace('/', "%2F");
    let common = shared.text("");
    for (name, options) in
        [("disk.img.lunar", &[][..]), (encoded.as_str(), &["--state", common.as_str()][..])]
    {
        let folder = shared.path(name);
        fs::DirBuilder::new().mode(0o755).create(&folder).unwrap();
        if !give_away(&folder) {
            return;
        }
        shared.refused(options, "belongs to uid 65534, who can change its contents");
        chown(&folder, Some(0), Some(0)).unwrap();
        fs::set_permissions(&folder, PermissionsExt::from_mode(0o775)).unwrap();
        shared.refused(options, "the group 0 can write to the directory");
        fs::remove_dir(&folder).unwrap();
        symlink(shared.ours(), &folder).unwrap();
        give_away(&folder);
        shared.refused(options, "belongs to uid 65534, who can point it");
        assert!(
            !shared.path("disk.img").exists(),
            "a refused start removes the files that it created"
        );
        fs::remove_file(&folder).unwrap();
    }
    symlink(shared.ours(), shared.path("disk.img.lunar")).unwrap();
    drop(Server::start(&[&shared.text("disk.img"), "--size", "1M"]));
    assert!(shared.ours().join("uuid").exists());
}

/// Goal: links, pipes, hard links and files of another user, in a folder that belonged to that user
/// before, are refused in the place of the identity and of the state. The mark of a poisoned disk
/// counts, whatever kind of file it is.
#[test]
fn files_of_another_user_are_refused() {
    let shared = Shared::new("planted-file");
    let server = Server::start(&[&shared.text("disk.img"), "--size", "1M"]);
    drop(server);
    for name in ["uuid", "scsi-state"] {
        let at = shared.path("disk.img.lunar").join(name);
        let aside = shared.path("aside");
        let _ = fs::rename(&at, &aside);
        symlink(shared.victim(), &at).unwrap();
        shared.refused(&[], &format!("{name} is a symbolic link, not a regular file"));
        fs::remove_file(&at).unwrap();
        fs::hard_link(shared.victim(), &at).unwrap();
        shared.refused(&[], &format!("{name} has 2 hard links"));
        fs::remove_file(&at).unwrap();
        let mode = rustix::fs::Mode::RUSR | rustix::fs::Mode::WUSR;
        rustix::fs::mkfifoat(rustix::fs::CWD, &at, mode).unwrap();
        shared.refused(&[], &format!("{name} is a pipe, not a regular file"));
        fs::remove_file(&at).unwrap();
        fs::write(&at, "theirs").unwrap();
        if give_away(&at) {
            shared.refused(&[], &format!("{name} belongs to uid 65534"));
        }
        fs::remove_file(&at).unwrap();
        let _ = fs::rename(&aside, &at);
    }
    symlink(shared.victim(), shared.path("disk.img.lunar/poisoned")).unwrap();
    let server = Server::start(&[&shared.text("disk.img")]);
    server.until_said("the disk refuses writes");
    drop(server);
    shared.assert_untouched();
}

/// Goal: a report is written to the named file, and never through a link, a pipe or a file of
/// another user; the problem is reported before any measurement.
#[test]
fn a_report_is_not_written_through_a_link() {
    let shared = Shared::new("planted-report");
    let html = shared.text("report.html");
    let bench = |html: &str| {
        let times = ["--seconds", "0.05", "--warm-up", "0", "--rounds", "1", "--depth", "1"];
        run(&[&["bench", "mem:1M", "--html", html][..], &times].concat())
    };
    let refused = |words: &str| {
        let output = bench(&html);
        assert_exit(&output, 1);
        let stderr = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(stderr.contains(words), "`{words}` is not in {stderr}");
        assert!(output.stdout.is_empty(), "nothing is measured: {}", printed(&output));
        shared.assert_untouched();
    };
    symlink(shared.victim(), shared.path("report.html.new")).unwrap();
    refused("report.html.new is a symbolic link");
    fs::remove_file(shared.path("report.html.new")).unwrap();
    for target in [shared.victim(), shared.ours().join("new")] {
        symlink(target, &html).unwrap();
        if give_away(Path::new(&html)) {
            refused("belongs to uid 65534, who can point it");
        }
        fs::remove_file(&html).unwrap();
    }
    fs::hard_link(shared.victim(), &html).unwrap();
    assert_exit(&bench(&html), 0);
    shared.assert_untouched();
    assert!(fs::read_to_string(&html).unwrap().starts_with("<!DOCTYPE html>"));
    let output = bench("/dev/stdout");
    assert_exit(&output, 0);
    assert!(printed(&output).contains("<!DOCTYPE html>"));
    assert_exit(&bench("/dev/null"), 0);
    assert!(!fs::metadata("/dev/null").unwrap().is_file());
}
