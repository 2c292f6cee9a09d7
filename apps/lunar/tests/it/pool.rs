//! Pools that a server serves: created by the program, named in the configuration.

use crate::common::{
    Scratch, Server, TEST_TIMEOUT, assert_exit, finish, json, lunar, pattern, printed, run,
};
use serde_json::Value;
use std::fs;
use std::path::PathBuf;
use std::process::Output;
use std::time::{Duration, Instant};

const TARGET: &str = "iqn.2026-11.org.lunarsan.test:pool";
/// Length of the labels at the beginning of a member of a mirror.
const DATA_START: usize = 1 << 20;
const MIB: usize = 1 << 20;

/// A pool of files, and the server of its LUN.
pub struct PoolRig {
    pub scratch: Scratch,
    /// The lines that `lunar pool create` printed.
    pub tables: String,
    server: Option<Server>,
}

impl PoolRig {
    /// Creates a pool `p` of files `0.img`, `1.img` and so on.
    pub fn new(name: &str, kind: &str, members: usize) -> Self {
        let scratch = Scratch::new(name);
        let files: Vec<_> = (0..members).map(|at| path(&scratch, &format!("{at}.img"))).collect();
        let mut arguments = vec!["pool", "create", "p", "--kind", kind, "--size", "8M"];
        arguments.extend(files.iter().map(|file| file.to_str().unwrap()));
        let created = run(&arguments);
        assert_exit(&created, 0);
        let tables = String::from_utf8(created.stdout).unwrap();
        Self { scratch, tables, server: None }
    }

    pub fn configuration(&self) -> String {
        let text = format!(
            "[listen]\nportals = [\"127.0.0.1:0\"]\n{}[[target]]\nname = \"{TARGET}\"\n\
             lun = [{{ id = 0, device = \"pool:p\" }}]\n",
            self.tables
        );
        self.scratch.file("lunar.toml", text.as_bytes())
    }

    pub fn command(&self, arguments: &[&str]) -> std::process::Command {
        let mut command = lunar(arguments);
        command.env("XDG_RUNTIME_DIR", self.scratch.path());
        command
    }

    pub fn start(&mut self) {
        let command = self.command(&["target", "--config", &self.configuration()]);
        self.server = Some(Server::start_command(command));
    }

    /// Starts a server that refuses its configuration; returns what it prints.
    pub fn refused(&self) -> String {
        let output = finish(self.command(&["target", "--config", &self.configuration()]), b"");
        assert_exit(&output, 1);
        printed(&output)
    }

    /// Stops the server by a signal; returns what it has printed.
    pub fn stop(&mut self, signal: &str) -> String {
        printed(&self.server.take().unwrap().stop_by(signal).0)
    }

    fn url(&self) -> String {
        self.server.as_ref().unwrap().lun(0)
    }

    pub fn lunar(&self, arguments: &[&str]) -> Output {
        finish(self.command(arguments), b"")
    }

    #[track_caller]
    pub fn write(&self, data: &[u8]) {
        assert_exit(&finish(self.command(&["write", &self.url()]), data), 0);
    }

    #[track_caller]
    pub fn read(&self, bytes: usize) -> Vec<u8> {
        let output = self.lunar(&["read", &self.url(), "--length", &bytes.to_string()]);
        assert_exit(&output, 0);
        output.stdout
    }

    #[track_caller]
    pub fn status(&self) -> Value {
        let output = self.lunar(&["pool", "status", "p", "--json"]);
        assert_exit(&output, 0);
        json(&output)["pools"][0].clone()
    }

    #[track_caller]
    pub fn until_healthy(&self) {
        let begin = Instant::now();
        while self.status()["health"] != "healthy" {
            assert!(begin.elapsed() < TEST_TIMEOUT, "{:#}", self.status());
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    /// The data that a member of a mirror holds at the beginning.
    pub fn data_of(&self, member: usize, bytes: usize) -> Vec<u8> {
        let file = fs::read(path(&self.scratch, &format!("{member}.img"))).unwrap();
        file[DATA_START..DATA_START + bytes].to_vec()
    }
}

pub fn path(scratch: &Scratch, name: &str) -> PathBuf {
    scratch.path().join(name)
}

pub fn states(status: &Value) -> Vec<&str> {
    let members = status["members"].as_array().unwrap().iter();
    members.map(|member| member["state"].as_str().unwrap()).collect()
}

/// Goal: each kind of pool can be created, served and read; a stop leaves nothing to be copied.
#[test]
fn pools_of_every_kind_are_served() {
    for (kind, members, size_mib) in [("concat", 2, 13), ("stripe", 2, 13), ("mirror", 3, 6)] {
        let mut rig = PoolRig::new(&format!("pool-{kind}"), kind, members);
        rig.start();
        let status = rig.status();
        assert_eq!((&status["kind"], &status["health"]), (&kind.into(), &"healthy".into()));
        assert_eq!(states(&status), vec!["current"; members]);
        let size_bytes = status["size_bytes"].as_u64().unwrap();
        assert!(size_bytes >= size_mib * MIB as u64, "{kind}: {size_bytes}");
        let data = pattern(1, 5 * MIB);
        rig.write(&data);
        let output = rig.stop("TERM");
        assert!(!output.contains("WARN"), "{output}");
        rig.start();
        assert_eq!(rig.read(data.len()), data, "{kind}");
        assert_eq!(rig.status()["copied_bytes"], 0, "{kind}");
        rig.stop("TERM");
    }
}

/// Goal: what was acknowledged is read after a kill, and both members have it.
#[test]
fn a_killed_mirror_loses_nothing_and_becomes_equal() {
    let mut rig = PoolRig::new("pool-kill", "mirror", 2);
    rig.start();
    let data = pattern(2, 4 * MIB);
    rig.write(&data);
    rig.stop("KILL");
    rig.start();
    assert_eq!(rig.read(data.len()), data);
    rig.until_healthy();
    rig.stop("TERM");
    for member in 0..2 {
        assert!(rig.data_of(member, data.len()) == data, "member {member}");
    }
}

/// Goal: a mirror that lacks a member is served only if the configuration permits it; a member that
/// returns gets what it has missed.
#[test]
fn a_mirror_without_a_member_is_served_by_permission() {
    let mut rig = PoolRig::new("pool-degraded", "mirror", 2);
    let (member, aside) = (path(&rig.scratch, "1.img"), path(&rig.scratch, "aside.img"));
    fs::rename(&member, &aside).unwrap();
    assert!(rig.refused().contains("1.img does not exist"), "{}", rig.refused());
    fs::write(&member, b"").unwrap();
    let refused = rig.refused();
    assert!(refused.contains("degraded = true in the [[pool]] p"), "{refused}");
    fs::remove_file(&member).unwrap();
    rig.tables = rig.tables.replace("name = \"p\"", "name = \"p\"\ndegraded = true");
    rig.start();
    assert_eq!(states(&rig.status()), ["current", "missing"]);
    assert!(rig.status()["next_step"].as_str().unwrap().contains("make member 1 available"));
    let data = pattern(3, 4 * MIB);
    rig.write(&data);
    let output = rig.stop("TERM");
    assert!(output.contains("the pool p is served without file:"), "{output}");
    fs::rename(&aside, &member).unwrap();
    rig.start();
    assert_eq!(rig.read(data.len()), data);
    rig.until_healthy();
    rig.stop("TERM");
    assert!(rig.data_of(1, data.len()) == data);
}

/// Goal: a stripe of mirrors is one disk; each mirror is shown.
#[test]
fn a_stripe_of_mirrors_is_served() {
    let mut rig = PoolRig::new("pool-raid10", "raid10", 4);
    rig.start();
    let data = pattern(4, 5 * MIB);
    rig.write(&data);
    let pools = json(&rig.lunar(&["pool", "status", "--json"]));
    let names = pools["pools"].as_array().unwrap().iter().map(|pool| &pool["name"]);
    assert!(names.eq(["p-0", "p-1", "p"].iter()), "{pools:#}");
    rig.stop("KILL");
    rig.start();
    assert_eq!(rig.read(data.len()), data);
    rig.stop("TERM");
}

/// Goal: a change of a served pool closes it and opens it again, and tells so; nothing is lost.
#[test]
fn a_changed_pool_is_reopened() {
    let mut rig = PoolRig::new("pool-reopen", "mirror", 2);
    rig.start();
    let data = pattern(5, 2 * MIB);
    rig.write(&data);
    rig.tables = rig.tables.replace("name = \"p\"", "name = \"p\"\nmember_wait_seconds = 5");
    let applied = rig.lunar(&["apply", &rig.configuration(), "--json"]);
    assert_exit(&applied, 0);
    let changes = &json(&applied)["changes"];
    let line = changes[0]["line"].as_str().unwrap();
    assert!(line.starts_with("~ pool:p member_wait_seconds: none -> 5 (the unit is closed"));
    assert_eq!((&changes[0]["effect"], &changes[1]), (&"reopens".into(), &Value::Null));
    assert_eq!(rig.status()["health"], "healthy");
    assert_eq!(rig.read(data.len()), data);
    let toml = rig.lunar(&["ctl", "targets", "--print-toml"]);
    assert!(printed(&toml).contains("[[pool]]\nname = \"p\""), "{}", printed(&toml));
    rig.stop("TERM");
}

/// Goal: a disk that is a member is not taken by another pool before its label is cleared.
#[test]
fn members_are_protected_until_they_are_cleared() {
    let rig = PoolRig::new("pool-clear", "mirror", 2);
    let [first, second] = ["0.img", "1.img"].map(|name| path(&rig.scratch, name));
    let members = [first.to_str().unwrap(), second.to_str().unwrap()];
    let create = || run(&["pool", "create", "q", "--kind", "stripe", members[0], members[1]]);
    let refused = create();
    assert_exit(&refused, 1);
    assert!(printed(&refused).contains("lunar pool clear"), "{}", printed(&refused));
    for member in members {
        assert_exit(&run(&["pool", "clear", member]), 0);
    }
    assert_exit(&create(), 0);
}
