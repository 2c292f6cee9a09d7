//! Backing files that are deleted, renamed, replaced or truncated under a running server.

use crate::common::*;
use serde_json::Value;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::time::{Duration, Instant};

const BYTES: usize = 1 << 20;
/// Longer than the interval of two checks of a file.
const TWO_ROUNDS: Duration = Duration::from_millis(4500);

struct Machine {
    scratch: Scratch,
    server: Server,
}

impl Machine {
    /// Serves new disks `0.img`, `1.img`, … with random data from a configuration.
    fn new(name: &str, disks: usize) -> Self {
        let scratch = Scratch::new(name);
        let mut text = "[listen]\nportals = [\"127.0.0.1:0\"]\n[metrics]\nlisten = \
                        \"127.0.0.1:0\"\n[[target]]\nname = \"iqn.2026-11.org.example:a\"\n"
            .to_owned();
        for disk in 0..disks {
            scratch.file(&format!("{disk}.img"), &data(disk));
            text += &format!("[[target.lun]]\nid = {disk}\ndevice = \"file:{disk}.img\"\n");
        }
        let config = scratch.file("lunar.toml", text.as_bytes());
        let mut command = lunar(&["target", "--config", &config]);
        command.env("XDG_RUNTIME_DIR", scratch.path());
        Self { server: Server::start_command(command), scratch }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.scratch.path().join(name)
    }

    fn run(&self, arguments: &[&str]) -> Output {
        let mut command = lunar(arguments);
        command.env("XDG_RUNTIME_DIR", self.scratch.path()).current_dir(self.scratch.path());
        finish(command, b"")
    }

    #[track_caller]
    fn ctl(&self, arguments: &[&str]) {
        assert_exit(&self.run(&[&["ctl"], arguments].concat()), 0);
    }

    fn status(&self) -> Value {
        json(&self.run(&["ctl", "status", "--json"]))
    }

    /// Waits until the faults are these, by LUN and a part of the error; returns the hints.
    #[track_caller]
    fn until_troubles(&self, wanted: &[(u16, &str)]) -> Vec<String> {
        let begun = Instant::now();
        loop {
            let status = self.status();
            let troubles = status["troubles"].as_array().unwrap().clone();
            let as_wanted = |(trouble, (lun, part)): (&Value, &(u16, &str))| {
                trouble["lun"] == *lun && trouble["error"].as_str().unwrap().contains(part)
            };
            if troubles.len() == wanted.len() && troubles.iter().zip(wanted).all(as_wanted) {
                let health = if wanted.is_empty() { "good" } else { "degraded" };
                assert_eq!(status["health"], health);
                let hint = |trouble: &Value| trouble["hint"].as_str().unwrap().to_owned();
                return troubles.iter().map(hint).collect();
            }
            assert!(
                begun.elapsed() < TEST_TIMEOUT,
                "not {wanted:?}: {} {troubles:?}",
                status["health"]
            );
            std::thread::sleep(Duration::from_millis(100));
        }
    }

    #[track_caller]
    fn metric(&self, lun: u16, value: u8) {
        let page = get(self.server.report["metrics"].as_str().unwrap());
        let labels = format!("target=\"iqn.2026-11.org.example:a\",lun=\"{lun}\"");
        let line = format!("lunar_lun_backing_fault{{{labels}}} {value}");
        assert!(page.lines().any(|other| other == line), "{line}: {page}");
    }

    fn write(&self, lun: u16, offset: &str, bytes: &[u8]) {
        let url = self.server.lun(lun);
        assert_exit(&run_with_input(&["write", &url, "--offset", offset], bytes), 0);
    }

    fn stop(self) -> String {
        let (stopped, _) = self.server.stop();
        assert_exit(&stopped, 0);
        printed(&stopped)
    }
}

fn data(disk: usize) -> Vec<u8> {
    pattern(disk as u64, BYTES)
}

fn resize(path: &Path, bytes: u64) {
    fs::File::options().write(true).open(path).unwrap().set_len(bytes).unwrap();
}

/// Runs the command that follows `before` in a hint.
#[track_caller]
fn run_hint(hint: &str, before: &str) {
    let command = hint.split_once(before).unwrap().1.split_once(". ");
    let command = command.map_or(hint.split_once(before).unwrap().1, |(command, _)| command);
    let ran = Command::new("sh").args(["-ec", command]).output().unwrap();
    assert!(ran.status.success(), "{command}: {}", printed(&ran));
}

/// Fault: a backing file that was deleted or replaced by a rename went unnoticed, health stayed
/// good, and the data was lost when the server ended. Method: run the command of the hint, compare
/// the copy with the writes of initiators before and after it, and serve the copy.
#[test]
fn a_deleted_file_is_reported_and_can_be_saved() {
    let machine = Machine::new("backing deleted", 3);
    machine.until_troubles(&[]);
    machine.metric(0, 0);
    let path = |disk: usize| machine.path(&format!("{disk}.img"));
    machine.write(0, "0", &[1; 4096]);
    fs::remove_file(path(0)).unwrap();
    machine.write(0, "64K", &[2; 4096]);
    fs::write(machine.path("new.img"), data(9)).unwrap();
    fs::rename(machine.path("new.img"), path(1)).unwrap();
    let hints = machine.until_troubles(&[(0, "was deleted"), (1, "was deleted")]);
    machine.metric(0, 1);
    machine.metric(1, 1);
    machine.metric(2, 0);
    for hint in &hints {
        run_hint(hint, "then save the data: ");
    }
    let mut wanted = data(0);
    wanted[..4096].fill(1);
    wanted[64 << 10..68 << 10].fill(2);
    assert!(fs::read(machine.path("0.img.saved")).unwrap() == wanted);
    assert!(fs::read(machine.path("1.img.saved")).unwrap() == data(1));

    // The administrator moves the copy to the name of the first disk, and applies the new second
    // file.
    fs::rename(machine.path("0.img.saved"), path(0)).unwrap();
    assert_exit(&machine.run(&["apply", "lunar.toml"]), 0);
    machine.until_troubles(&[]);
    machine.metric(0, 0);
    machine.write(1, "0", &[3; 512]);
    assert_eq!(fs::read(path(1)).unwrap()[..512], [3; 512], "the new file is the disk");
    let read = run(&["read", &machine.server.lun(0), "--length", "1M"]);
    assert!(read.stdout == wanted);
    let log = machine.stop();
    let lines = log.lines().filter(|line| line.contains("backing file was deleted")).count();
    assert_eq!(lines, 2, "{log}");
}

/// Fault: a renamed backing file went unnoticed as well: no data is lost, but the next start does
/// not find the file.
#[test]
fn a_renamed_file_is_reported() {
    let machine = Machine::new("backing renamed", 2);
    let path = |name: &str| machine.path(name);
    fs::rename(path("0.img"), path("a.img")).unwrap();
    fs::rename(path("1.img"), path("b.img")).unwrap();
    fs::write(path("1.img"), b"another").unwrap();
    let hints = machine.until_troubles(&[(0, "no longer exists"), (1, "is now a different file")]);
    assert!(hints[1].contains(path("b.img").canonicalize().unwrap().to_str().unwrap()));
    machine.metric(0, 1);
    run_hint(&hints[0], "move it back: ");
    fs::rename(path("b.img"), path("1.img")).unwrap();
    machine.until_troubles(&[]);
    machine.metric(0, 0);
    let log = machine.stop();
    for words in ["backing file was renamed to", "the fault of the backing file has ended"] {
        assert_eq!(log.lines().filter(|line| line.contains(words)).count(), 2, "{log}");
    }
}

/// Fault: a backing file truncated by another program went unnoticed. A file that is extended again
/// has lost its data all the same, so that an operator has to recover it.
#[test]
fn a_truncated_file_is_reported_until_it_is_recovered() {
    let machine = Machine::new("backing truncated", 2);
    let path = machine.path("0.img");
    resize(&path, 4096);
    let hints = machine.until_troubles(&[(0, "truncated by another program, to 4096 of 1048576")]);
    machine.metric(0, 1);
    assert!(hints[0].ends_with("lunar ctl recover 0 --accept-loss"), "{hints:?}");
    resize(&path, BYTES as u64);
    std::thread::sleep(TWO_ROUNDS);
    machine.until_troubles(&[(0, "truncated by another program, to 4096 of 1048576")]);
    resize(&path, 8192);
    machine.ctl(&["recover", "0", "--accept-loss"]);
    machine.until_troubles(&[]);
    assert_eq!(fs::metadata(&path).unwrap().len(), BYTES as u64);
    let read = run(&["read", &machine.server.lun(0), "--length", "1M"]);
    let mut wanted = data(0);
    wanted[4096..].fill(0);
    assert!(read.stdout == wanted);
    std::thread::sleep(TWO_ROUNDS);
    machine.until_troubles(&[]);
    let log = machine.stop();
    assert!(log.contains("was truncated by another program") && log.contains("lost"), "{log}");
}

/// Goal: no fault is reported for a disk resized by the server, for a file that another program has
/// extended, which is logged once and can be used, and for disks without a file.
#[test]
fn harmless_changes_of_files_are_no_fault() {
    let machine = Machine::new("backing good", 3);
    let path = machine.path("1.img");
    machine.ctl(&["add-lun", "mem:1M", "--id", "7"]);
    resize(&path, 2 * BYTES as u64);
    for bytes in ["2M", "1M", "3M"] {
        machine.ctl(&["resize", "0", bytes, "--shrink"]);
    }
    std::thread::sleep(TWO_ROUNDS);
    machine.until_troubles(&[]);
    let info = run(&["info", &machine.server.lun(1), "--json"]);
    assert_eq!(json(&info)["size_bytes"], BYTES);
    machine.ctl(&["resize", "1", "2M"]);
    assert_eq!(json(&run(&["info", &machine.server.lun(1), "--json"]))["size_bytes"], 2 * BYTES);
    std::thread::sleep(TWO_ROUNDS);
    machine.until_troubles(&[]);
    machine.metric(1, 0);
    let log = machine.stop();
    let lines = log.lines().filter(|line| line.contains("backing file")).collect::<Vec<_>>();
    assert!(lines.len() == 1 && lines[0].contains("the backing file has grown"), "{log}");
}
