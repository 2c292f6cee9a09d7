//! Changes of the members of a served mirror, scrubs, and split mirrors.

use crate::common::{TEST_TIMEOUT, assert_exit, finish, json, pattern, printed, run};
use crate::pool::{PoolRig, path, states};
use std::fs;
use std::os::unix::fs::FileExt;
use std::time::{Duration, Instant};

const MIB: usize = 1 << 20;
/// Length of the labels at the beginning of a member of a mirror.
const DATA_START: u64 = 1 << 20;

impl PoolRig {
    /// Creates a file for a new member; returns its path.
    fn new_file(&self, name: &str) -> String {
        let file = path(&self.scratch, name);
        fs::File::create(&file).unwrap().set_len(8 << 20).unwrap();
        file.to_str().unwrap().to_owned()
    }

    /// Writes a configuration that lists these files.
    fn list(&mut self, names: &[&str]) {
        let file = |name: &&str| format!("{:?}", path(&self.scratch, name));
        let files: Vec<_> = names.iter().map(file).collect();
        let begin = self.tables.find("members = [").unwrap();
        let end = begin + self.tables[begin..].find('\n').unwrap();
        self.tables.replace_range(begin..end, &format!("members = [{}]", files.join(", ")));
        self.configuration();
    }

    /// The differences of the running server from its configuration.
    fn drift(&self) -> Vec<String> {
        let status = json(&self.lunar(&["ctl", "status", "--json"]));
        let lines = status["drift"].as_array().unwrap().iter();
        lines.map(|line| line.as_str().unwrap().to_owned()).collect()
    }
}

/// Goal: a device is added, replaces a member and is removed while the pool is served; with the
/// configuration as the commands require it, the members are found at the next start.
#[test]
fn members_change_while_the_pool_is_served() {
    let mut rig = PoolRig::new("pool-members", "mirror", 2);
    rig.start();
    let data = pattern(1, 4 * MIB);
    rig.write(&data);
    let third = rig.new_file("2.img");
    let refused = rig.lunar(&["pool", "add", "p", &third]);
    assert_exit(&refused, 1);
    let (text, line) = (printed(&refused), format!("{third:?}"));
    assert!(text.contains("does not list") && text.contains(&line[1..line.len() - 1]), "{text}");

    rig.list(&["0.img", "1.img", "2.img"]);
    let added = rig.lunar(&["pool", "add", "p", &third, "--wait", "--json"]);
    assert_exit(&added, 0);
    assert_eq!(json(&added)["toml"], "");
    assert_eq!(states(&rig.status()), ["current"; 3]);
    assert_eq!(rig.drift(), [""; 0]);
    // The configuration is the running one: the pool stays open.
    let applied = rig.lunar(&["apply", &rig.configuration(), "--json"]);
    assert_eq!(json(&applied)["changes"], serde_json::json!([]), "{}", printed(&applied));

    let fourth = rig.new_file("3.img");
    rig.list(&["0.img", "3.img", "2.img"]);
    let old = path(&rig.scratch, "1.img");
    let old = old.to_str().unwrap();
    assert_exit(&rig.lunar(&["pool", "replace", "p", old, &fourth, "--wait"]), 0);
    let status = rig.status();
    assert_eq!(status["members"][1]["device"], fourth.as_str());
    assert_eq!(status["others"][0]["state"], "replaced");

    let removed = rig.lunar(&["pool", "remove", "p", "2"]);
    assert_exit(&removed, 0);
    assert!(printed(&removed).contains("# [[pool]] p: set\nmembers = ["), "{}", printed(&removed));
    assert!(rig.drift()[0].contains("members"), "{:?}", rig.drift());
    // The next start warns of the device that has no label any more.
    rig.stop("TERM");
    rig.start();
    assert_eq!(states(&rig.status()), ["current"; 2]);
    let step = rig.status()["next_step"].as_str().unwrap().to_owned();
    assert!(step.contains("lunar pool add p file:"), "{step}");
    assert_exit(&rig.lunar(&["pool", "add", "p", &third, "--wait"]), 0);
    assert_eq!(rig.status()["others"], serde_json::json!([]));
    assert_exit(&rig.lunar(&["pool", "remove", "p", &third]), 0);
    rig.list(&["0.img", "3.img"]);
    assert_exit(&rig.lunar(&["apply", &rig.configuration()]), 0);
    assert_eq!(rig.status()["next_step"], serde_json::Value::Null);
    assert_eq!(rig.read(data.len()), data);
    assert_exit(&rig.lunar(&["pool", "remove", "p", "0"]), 1);
    rig.stop("TERM");
    assert!(rig.data_of(3, data.len()) == data);
}

/// Goal: a spare device of the configuration replaces a member that is missing at the start.
#[test]
fn a_spare_device_replaces_a_missing_member() {
    let mut rig = PoolRig::new("pool-spare", "mirror", 2);
    let spare = rig.new_file("2.img");
    let keys = format!("name = \"p\"\ndegraded = true\nspares = [{spare:?}]");
    rig.tables = rig.tables.replace("name = \"p\"", &keys);
    rig.start();
    assert_eq!(rig.status()["others"][0]["state"], "spare");
    let data = pattern(2, 2 * MIB);
    rig.write(&data);
    rig.stop("TERM");
    fs::remove_file(path(&rig.scratch, "1.img")).unwrap();
    rig.start();
    rig.until_healthy();
    assert_eq!(rig.status()["members"][1]["device"], spare.as_str());
    rig.stop("TERM");
    assert!(rig.data_of(2, data.len()) == data);
}

/// Goal: a scrub finds a block that differs and makes it equal, says which member was wrong where
/// there is a majority, and can be stopped.
#[test]
fn a_scrub_repairs_a_member() {
    let mut rig = PoolRig::new("pool-scrub", "mirror", 3);
    rig.start();
    let data = pattern(3, 4 * MIB);
    rig.write(&data);
    let file = fs::File::options().write(true).open(path(&rig.scratch, "1.img")).unwrap();
    file.write_all_at(&[0xff; 512], DATA_START + 8192).unwrap();
    let scrubbed = rig.lunar(&["pool", "scrub", "p", "--wait", "--json"]);
    assert_exit(&scrubbed, 0);
    let report = json(&scrubbed);
    assert_eq!((&report["state"], &report["different_blocks"]), (&"complete".into(), &1.into()));
    assert_eq!(report["members"][0]["slot"], 1);
    assert_eq!(report["members"][0]["outvoted_blocks"], 1);
    assert_eq!(rig.status()["scrub"], report);
    let shown = printed(&rig.lunar(&["pool", "status", "p"]));
    assert!(shown.contains("member 1 was outvoted in 1 blocks"), "{shown}");

    assert_exit(&rig.lunar(&["pool", "scrub", "p", "--rate", "8Mbit"]), 0);
    let second = rig.lunar(&["pool", "scrub", "p"]);
    assert_exit(&second, 1);
    assert!(printed(&second).contains("a scrub runs already"), "{}", printed(&second));
    let stopped = rig.lunar(&["pool", "scrub", "p", "--stop", "--json"]);
    assert_eq!(json(&stopped)["state"], "stopped");
    assert_exit(&rig.lunar(&["pool", "scrub", "p", "--stop"]), 1);
    rig.stop("TERM");
    assert!(rig.data_of(1, data.len()) == data);
}

/// Goal: only a mirror can be scrubbed, and the others say why.
#[test]
fn a_stripe_refuses_what_needs_a_mirror() {
    let mut rig = PoolRig::new("pool-no-mirror", "stripe", 2);
    rig.start();
    let refused = rig.lunar(&["pool", "scrub", "p"]);
    assert_exit(&refused, 1);
    assert!(printed(&refused).contains("has its data once"), "{}", printed(&refused));
    let refused = rig.lunar(&["pool", "remove", "p", "0"]);
    assert_exit(&refused, 1);
    assert!(printed(&refused).contains("only a mirror can"), "{}", printed(&refused));
    rig.stop("TERM");
}

/// Goal: a mirror whose members were served apart is refused with both histories; one side is kept
/// by a command, and the other gets its data.
#[test]
fn a_split_mirror_is_resolved() {
    let mut rig = PoolRig::new("pool-split", "mirror", 2);
    rig.tables = rig.tables.replace("name = \"p\"", "name = \"p\"\ndegraded = true");
    let aside = path(&rig.scratch, "aside.img");
    let files = ["0.img", "1.img"].map(|name| path(&rig.scratch, name));
    let mut sides = Vec::new();
    for (seed, missing) in [(4, &files[1]), (5, &files[0])] {
        fs::rename(missing, &aside).unwrap();
        rig.start();
        sides.push(pattern(seed, 2 * MIB));
        rig.write(&sides[sides.len() - 1]);
        rig.stop("TERM");
        fs::rename(&aside, missing).unwrap();
    }
    let refused = rig.refused();
    assert!(refused.contains("is split") && refused.contains("lunar pool resolve p"), "{refused}");
    let config = rig.configuration();
    let resolve =
        |more: &[&str]| run(&[&["pool", "resolve", "p", "--config", &config], more].concat());
    let shown = resolve(&[]);
    assert_exit(&shown, 1);
    assert!(printed(&shown).contains("history") && printed(&shown).contains("--keep"));
    let kept = files[0].to_str().unwrap();
    assert_exit(&resolve(&["--keep", kept]), 0);
    assert!(printed(&resolve(&[])).contains("is not split"));
    rig.start();
    let held = resolve(&[]);
    assert_exit(&held, 1);
    assert_eq!(rig.read(sides[0].len()), sides[0]);
    rig.until_healthy();
    rig.stop("TERM");
    assert!(rig.data_of(1, sides[0].len()) == sides[0]);
}

/// Goal: a copy in progress is shown, with what is left.
#[test]
fn the_copy_to_a_new_member_is_shown() {
    let mut rig = PoolRig::new("pool-copy", "mirror", 2);
    rig.start();
    rig.write(&pattern(6, 4 * MIB));
    let new = rig.new_file("2.img");
    rig.list(&["0.img", "1.img", "2.img"]);
    assert_exit(&rig.lunar(&["pool", "add", "p", &new]), 0);
    let begin = Instant::now();
    while rig.status()["health"] != "healthy" {
        let shown = printed(&rig.lunar(&["pool", "status"]));
        assert!(shown.contains("being copied to it") || shown.contains("healthy"), "{shown}");
        assert!(begin.elapsed() < TEST_TIMEOUT, "{shown}");
        std::thread::sleep(Duration::from_millis(10));
    }
    rig.stop("TERM");
}

/// Goal: commands without a server find the members of a pool in a configuration, and leave the
/// pool closed; while a server has it, they are refused.
#[test]
fn a_pool_is_used_without_a_server() {
    let mut rig = PoolRig::new("pool-alone", "mirror", 2);
    let config = rig.configuration();
    let at = |arguments: &[&'static str]| [arguments, &["--config", &*config]].concat();
    let data = pattern(7, 3 * MIB);
    assert_exit(&finish(rig.command(&at(&["write", "pool:p"])), &data), 0);
    let read = || run(&at(&["read", "pool:p", "--length", "3M"])).stdout;
    assert!(read() == data);
    let copy = path(&rig.scratch, "copy.img");
    let to = copy.to_str().unwrap();
    assert_exit(&run(&["copy", "pool:p", to, "--verify", "--config", &config]), 0);
    assert!(fs::read(&copy).unwrap()[..data.len()] == data);
    let info = run(&at(&["info", "pool:p", "--json"]));
    assert_eq!(json(&info)["size_bytes"].as_u64().unwrap(), fs::metadata(&copy).unwrap().len());
    let bench = run(&at(&["bench", "pool:p", "--seconds", "0.2", "--rounds", "1", "--depth", "4"]));
    assert!(bench.status.success(), "{}", printed(&bench));
    let too_long = finish(rig.command(&at(&["write", "pool:p", "--length", "1G"])), b"");
    assert_exit(&too_long, 1);
    assert!(!printed(&too_long).contains("panicked"), "{}", printed(&too_long));
    let unknown = run(&at(&["read", "pool:q"]));
    assert!(printed(&unknown).contains("the configured pools are p"), "{}", printed(&unknown));

    rig.start();
    assert_eq!(rig.status()["copied_bytes"], 0);
    assert_eq!(rig.read(data.len()), data);
    let held = run(&at(&["read", "pool:p"]));
    assert_exit(&held, 1);
    assert!(printed(&held).contains("in use"), "{}", printed(&held));
    rig.stop("TERM");
}

/// Goal: pools of files grow while they are served, and have their new size after a restart.
#[test]
fn pools_grow_while_they_are_served() {
    for kind in ["mirror", "stripe", "concat"] {
        let mut rig = PoolRig::new(&format!("pool-grow-{kind}"), kind, 2);
        rig.start();
        let data = pattern(8, 3 * MIB);
        rig.write(&data);
        let resized = rig.lunar(&["ctl", "resize", "0", "40M", "--json"]);
        assert_exit(&resized, 0);
        assert_eq!(json(&resized)["toml"], "", "{kind}");
        let size_bytes = || rig.status()["size_bytes"].as_u64().unwrap();
        assert_eq!(size_bytes(), 40 << 20, "{kind}");
        let smaller = rig.lunar(&["ctl", "resize", "0", "20M", "--shrink"]);
        assert_exit(&smaller, 1);
        assert!(printed(&smaller).contains("cannot become smaller"), "{}", printed(&smaller));
        assert_eq!(rig.drift(), [""; 0], "{kind}");
        rig.stop("TERM");
        rig.start();
        assert_eq!(rig.status()["size_bytes"].as_u64().unwrap(), 40 << 20, "{kind}");
        assert_eq!(rig.read(data.len()), data, "{kind}");
        rig.stop("TERM");
    }
}
