//! `lunar ctl add-target`, `remove-target` and `stop`: what drivers need that create disks.

use crate::common::{Scratch, Server, assert_exit, finish, json, lunar, printed};
use std::os::unix::fs::{DirBuilderExt, PermissionsExt};
use std::process::Output;

const FIRST: &str = "iqn.2026-11.org.example:first";
const ADDED: &str = "iqn.2026-11.org.example:added";

/// The directory of a configuration with a state directory.
struct Rig(Scratch);

impl Rig {
    fn new(name: &str) -> Self {
        let rig = Self(Scratch::new(name));
        rig.0.file("lunar.toml", rig.text("").as_bytes());
        rig
    }

    fn text(&self, more: &str) -> String {
        format!(
            "state = \"state\"\n[listen]\nportals = [\"127.0.0.1:0\"]\n\
             [api]\nlisten = \"unix:api.sock\"\n[[target]]\nname = \"{FIRST}\"\n\
             [[target.lun]]\nid = 0\ndevice = \"mem:1M\"\n{more}"
        )
    }

    fn config(&self) -> String {
        self.0.path().join("lunar.toml").display().to_string()
    }

    fn start(&self) -> Server {
        Server::start_command(lunar(&["target", "--config", &self.config()]))
    }

    fn lunar(&self, arguments: &[&str]) -> Output {
        let mut command = lunar(arguments);
        let api = self.0.path().join("api.sock");
        command.env("LUNAR_API", format!("unix:{}", api.display()));
        finish(command, b"")
    }

    #[track_caller]
    fn good(&self, arguments: &[&str]) -> String {
        let output = self.lunar(arguments);
        assert_exit(&output, 0);
        printed(&output)
    }

    fn targets(&self) -> Vec<String> {
        let document = json(&self.lunar(&["ctl", "targets", "--json"]));
        let targets = document["targets"].as_array().unwrap().iter();
        targets.map(|target| target["name"].as_str().unwrap().to_owned()).collect()
    }
}

/// Goal: a target that was added with --persist outlives an apply and a restart, adding and
/// removing it can be repeated, and it is gone for good after its removal.
#[test]
fn a_persisted_target_outlives_apply_and_restart() {
    let rig = Rig::new("persisted-target");
    let server = rig.start();
    let disk = rig.0.path().join("added.img").display().to_string();
    let add = ["ctl", "add-target", ADDED, &disk, "--size", "1M", "--persist"];
    assert!(rig.good(&add).contains(ADDED));
    assert_eq!(rig.good(&add), "no change necessary\n");
    let status = json(&rig.lunar(&["ctl", "status", "--json"]));
    assert_eq!(status["drift"].as_array().unwrap().len(), 0, "{}", status["drift"]);
    let other = rig.lunar(&["ctl", "add-target", ADDED, &disk, "--size", "2M", "--persist"]);
    assert_exit(&other, 1);
    assert!(printed(&other).contains("exists with other settings"), "{}", printed(&other));
    assert!(rig.good(&["apply", &rig.config()]).contains("no differences"));
    // A disk that was enlarged since is no hindrance to an apply.
    rig.good(&["ctl", "resize", "0", "4M", "--target", ADDED]);
    assert!(rig.good(&["apply", &rig.config()]).contains("no differences"));
    assert_eq!(rig.targets(), [FIRST, ADDED]);
    assert!(rig.good(&["ctl", "stop"]).contains("has stopped"));
    assert_exit(&server.end(), 0);

    let server = rig.start();
    assert_eq!(rig.targets(), [FIRST, ADDED]);
    let removed = rig.good(&["ctl", "remove-target", ADDED]);
    assert!(removed.contains("returns with the next apply"), "{removed}");
    assert_eq!(rig.targets(), [FIRST]);
    rig.good(&["apply", &rig.config()]);
    assert_eq!(rig.targets(), [FIRST, ADDED]);
    let remove = ["ctl", "remove-target", ADDED, "--persist"];
    assert!(rig.good(&remove).contains(ADDED));
    assert_eq!(rig.good(&remove), "no change necessary\n");
    let removed_from_file = rig.lunar(&["ctl", "remove-target", FIRST, "--persist"]);
    assert_exit(&removed_from_file, 1);
    assert!(
        printed(&removed_from_file).contains("is in the configuration file"),
        "{}",
        printed(&removed_from_file)
    );
    rig.good(&["apply", &rig.config()]);
    assert_eq!(rig.targets(), [FIRST]);
    rig.good(&["ctl", "stop"]);
    assert_exit(&server.end(), 0);
    let server = rig.start();
    assert_eq!(rig.targets(), [FIRST]);
    assert_exit(&server.stop().0, 0);
}

/// Goal: the configuration file outranks the state directory, with a warning, and a damaged file
/// there is named.
#[test]
fn the_configuration_outranks_persisted_targets() {
    let rig = Rig::new("outranked-target");
    let server = rig.start();
    rig.good(&["ctl", "add-target", ADDED, "mem:1M", "--persist"]);
    let own =
        format!("[[target]]\nname = \"{ADDED}\"\n[[target.lun]]\nid = 5\ndevice = \"mem:2M\"\n");
    rig.0.file("lunar.toml", rig.text(&own).as_bytes());
    let applied = rig.good(&["apply", &rig.config()]);
    assert!(applied.contains("has no effect"), "{applied}");
    let file = rig.0.path().join(format!("state/targets.d/{ADDED}.toml"));
    std::fs::write(&file, "name = 1\n").unwrap();
    let refused = rig.lunar(&["apply", &rig.config()]);
    assert_exit(&refused, 1);
    assert!(printed(&refused).contains("targets.d/"), "{}", printed(&refused));
    std::fs::remove_file(&file).unwrap();
    rig.good(&["apply", &rig.config()]);
    assert_exit(&server.stop().0, 0);
}

/// Goal: the lines that `--print-toml` prints for a changed persisted target keep the change when
/// they are added to the configuration file; without them an apply undoes the change.
#[test]
fn printed_lines_keep_changes_of_a_persisted_target() {
    let rig = Rig::new("changed-persisted-target");
    let server = rig.start();
    rig.good(&["ctl", "add-target", ADDED, "mem:1M", "--persist"]);
    let print = ["ctl", "status", "--print-toml"];
    assert_eq!(rig.good(&print), "");
    let add = ["ctl", "add-lun", "mem:2M", "--target", ADDED, "--print-toml"];
    let lines = rig.good(&add);
    assert_eq!(rig.good(&print), lines);
    let undone = rig.good(&["apply", &rig.config()]);
    assert!(undone.contains(&format!("- {ADDED} LUN 1")), "{undone}");
    assert_eq!(rig.good(&add), lines);
    rig.0.file("lunar.toml", rig.text(&lines).as_bytes());
    let applied = rig.good(&["apply", &rig.config()]);
    assert!(applied.contains("no differences"), "{applied}");
    assert!(applied.contains("can be removed"), "{applied}");
    assert_exit(&server.stop().0, 0);
}

/// Goal: a target that the state directory cannot keep is not served either, and can be added once
/// the directory is writable.
#[test]
fn a_target_that_cannot_be_kept_is_not_served() {
    let rig = Rig::new("unkept-target");
    let server = rig.start();
    // A file in place of the folder refuses also root, who may write to any folder.
    let folder = rig.0.path().join("state/targets.d");
    std::fs::create_dir_all(folder.parent().unwrap()).unwrap();
    std::fs::write(&folder, "").unwrap();
    let disk = rig.0.path().join("added.img").display().to_string();
    let add = ["ctl", "add-target", ADDED, &disk, "--size", "1M", "--persist"];
    let refused = rig.lunar(&add);
    assert_exit(&refused, 1);
    let message = printed(&refused);
    assert!(message.contains("cannot change the targets in"), "{message}");
    assert!(message.contains("targets.d"), "{message}");
    assert_eq!(rig.targets(), [FIRST]);
    std::fs::remove_file(&folder).unwrap();
    rig.good(&add);
    assert_eq!(rig.targets(), [FIRST, ADDED]);
    assert_exit(&server.stop().0, 0);
}

/// Goal: a kept target whose file is gone does not stop the start of the server: it is skipped and
/// reported, and is served again when the file is back. While it is served, an apply does not skip
/// it: its data exists only as long as the server has the file open.
#[test]
fn a_kept_target_without_its_file_is_skipped() {
    let rig = Rig::new("skipped-target");
    let server = rig.start();
    let disk = rig.0.path().join("added.img");
    let added = disk.display().to_string();
    rig.good(&["ctl", "add-target", ADDED, &added, "--size", "1M", "--persist"]);
    let aside = rig.0.path().join("aside.img");
    std::fs::rename(&disk, &aside).unwrap();
    let refused = rig.lunar(&["apply", &rig.config()]);
    assert_exit(&refused, 1);
    assert!(printed(&refused).contains("does not exist"), "{}", printed(&refused));
    assert_eq!(rig.targets(), [FIRST, ADDED]);
    assert_exit(&server.stop().0, 0);

    let checked = rig.good(&["check", &rig.config()]);
    let warning = format!("the kept target {ADDED} is not served: file:{added} does not exist");
    assert!(checked.contains(&format!("warning: {warning}")), "{checked}");
    let server = rig.start();
    assert_eq!(rig.targets(), [FIRST]);
    let status = json(&rig.lunar(&["ctl", "status", "--json"]));
    assert_eq!(status["health"], "degraded");
    assert_eq!(status["troubles"][0]["target"], ADDED);
    assert_eq!(status["troubles"][0]["error"], warning);
    assert!(rig.good(&["apply", &rig.config()]).contains(&warning));
    std::fs::rename(&aside, &disk).unwrap();
    rig.good(&["apply", &rig.config()]);
    assert_eq!(rig.targets(), [FIRST, ADDED]);
    assert_eq!(json(&rig.lunar(&["ctl", "status", "--json"]))["health"], "good");
    assert_exit(&server.stop().0, 0);

    std::fs::remove_file(&disk).unwrap();
    let server = rig.start();
    rig.good(&["ctl", "remove-target", ADDED, "--persist"]);
    assert_eq!(json(&rig.lunar(&["ctl", "status", "--json"]))["health"], "good");
    assert!(server.has_said(&warning));
    assert_exit(&server.stop().0, 0);
}

/// Goal: `lunar check` also checks the targets that the state directory keeps.
#[test]
fn check_reads_persisted_targets() {
    let rig = Rig::new("checked-target");
    let folder = rig.0.path().join("state/targets.d");
    std::fs::DirBuilder::new().recursive(true).mode(0o700).create(&folder).unwrap();
    let file = folder.join(format!("{ADDED}.toml"));
    std::fs::write(&file, format!("name = \"{ADDED}\"\n[[lun]]\nid = 0\ndevice = \"mem:1M\"\n"))
        .unwrap();
    let checked = rig.good(&["check", &rig.config()]);
    assert!(checked.contains("targets: 2, LUNs: 2"), "{checked}");
    std::fs::write(&file, "name = 1\n").unwrap();
    let refused = rig.lunar(&["check", &rig.config()]);
    assert_exit(&refused, 1);
    assert!(printed(&refused).contains("targets.d/"), "{}", printed(&refused));
    // Only the user of the server can read the folder: that is no fault of the configuration.
    std::fs::set_permissions(&folder, PermissionsExt::from_mode(0o777)).unwrap();
    let unread = rig.good(&["check", &rig.config()]);
    assert!(unread.contains("targets: 1, LUNs: 1"), "{unread}");
    assert!(unread.contains("warning: cannot read the targets in"), "{unread}");
}
