//! Existing disks with another size or block size than configured, and readable secret files.

use crate::common::{Scratch, Server, assert_exit, finish, json, lunar, printed, run};
use std::os::unix::fs::PermissionsExt;
use std::process::Command;

fn size_of(server: &Server) -> u64 {
    server.report["targets"][0]["luns"][0]["size_bytes"].as_u64().unwrap()
}

/// Goal: an existing file grows only by request, in the same way with `lunar serve` and `lunar
/// target`, and the log reports it.
/// Fault: `lunar target` enlarged it silently, `lunar serve` refused to start.
#[test]
fn a_file_grows_only_by_request() {
    let scratch = Scratch::new("grow");
    let disk = scratch.file("disk.img", &[0; 1 << 20]);
    let kept = Server::start(&[&disk, "--size", "2M"]);
    assert_eq!(size_of(&kept), 1 << 20);
    assert!(kept.has_said("is served with its current size of 1048576 bytes"));
    assert_exit(&kept.stop().0, 0);
    let grown = Server::start(&[&disk, "--size", "2M", "--grow"]);
    assert_eq!(size_of(&grown), 2 << 20);
    assert!(grown.has_said("was enlarged from 1048576 to 2097152 bytes"));
    assert_exit(&grown.stop().0, 0);

    let config = |size: &str| {
        let text = format!(
            "state = \"state\"\n[listen]\nportals = [\"127.0.0.1:0\"]\n[[target]]\n\
             name = \"iqn.2026-11.org.example:a\"\n[[target.lun]]\nid = 0\n\
             device = \"disk.img\"\nsize = \"{size}\"\n"
        );
        scratch.file("lunar.toml", text.as_bytes())
    };
    let file = config("3M");
    let server = Server::start_command(lunar(&["target", "--config", &file]));
    assert_eq!(size_of(&server), 2 << 20);
    let api = server.report["api"].as_str().unwrap().to_owned();
    let ctl = |arguments: &[&str]| {
        let mut command = lunar(arguments);
        command.env("LUNAR_API", &api);
        finish(command, b"")
    };
    let status = json(&ctl(&["ctl", "status", "--json"]));
    assert!(status["drift"][0].as_str().unwrap().contains("LUN 0 size: \"3MiB\""), "{status}");
    // A request that is no configuration enlarges no existing file either.
    let other = scratch.file("other.img", &[0; 1 << 20]);
    let refused = ctl(&["ctl", "add-lun", &other, "--size", "2M"]);
    assert_exit(&refused, 1);
    assert!(printed(&refused).contains("lunar ctl resize"), "{}", printed(&refused));
    assert_exit(&ctl(&["apply", &file]), 0);
    let luns = json(&ctl(&["ctl", "luns", "--json"]));
    assert_eq!(luns["luns"][0]["size_bytes"], 3 << 20);
    assert_exit(&server.stop().0, 0);
    let file = config("4M");
    let server = Server::start_command(lunar(&["target", "--config", &file, "--grow"]));
    assert_eq!(size_of(&server), 4 << 20);
    assert!(server.has_said("was enlarged from 3145728 to 4194304 bytes"));
    assert_exit(&server.stop().0, 0);
}

/// Goal: an existing disk is not served with another block size, until the administrator says so.
/// Fault: the partition table and file systems of such a disk were lost to initiators.
#[test]
fn another_block_size_is_refused() {
    let scratch = Scratch::new("block-size");
    let old = scratch.file("old.img", &[0; 1 << 20]);
    let new = scratch.path().join("new.img").display().to_string();
    assert_exit(&Server::start(&[&old]).stop().0, 0);
    let create = [&new, "--size", "1M", "--block-size", "4096"];
    assert_exit(&Server::start(&create).stop().0, 0);
    for (disk, block_size) in [(&old, "4096"), (&new, "512")] {
        let serve = ["serve", disk, "--listen", "127.0.0.1:0", "--block-size", block_size];
        let refused = run(&[&serve[..], &["--json"]].concat());
        assert_exit(&refused, 1);
        let refused = json(&refused);
        assert!(refused["error"].as_str().unwrap().contains("has blocks of"), "{refused}");
        let (_, command) = refused["hint"].as_str().unwrap().split_once("unreadable: ").unwrap();
        assert!(Command::new("sh").args(["-c", command]).status().unwrap().success());
        for _ in 0..2 {
            let changed = Server::start(&serve[1..]);
            let block_bytes = &changed.report["targets"][0]["luns"][0]["block_bytes"];
            assert_eq!(block_bytes.to_string(), block_size);
            assert_exit(&changed.stop().0, 0);
        }
    }
}

/// Goal: a secret file that other users can read is used with a warning, as the manual says.
#[test]
fn a_readable_secret_file_causes_a_warning() {
    let scratch = Scratch::new("readable-secret");
    let secret = scratch.file("secret", b"swordfish swordfish");
    let serve = ["mem:1M", "--chap-user", "u", "--chap-secret-file", &secret];
    let silent = Server::start(&serve);
    assert!(!silent.has_said("readable by other users"));
    assert_exit(&silent.stop().0, 0);
    std::fs::set_permissions(&secret, PermissionsExt::from_mode(0o640)).unwrap();
    let warned = Server::start(&serve);
    warned.until_said("secret is readable by other users: run chmod 600 on it");
    assert_exit(&warned.stop().0, 0);
    let manual = include_str!("../../../../dist/man/lunar.toml.5");
    assert!(manual.contains("If other users can read it, it is used nevertheless, with a warning"));
}
