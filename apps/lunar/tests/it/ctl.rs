//! `lunar ctl`: reads and changes the state of a running server.

use crate::common::{
    Scratch, Server, TEST_TIMEOUT, assert_exit, finish, json, lunar, printed, run,
};
use rustix::pty::OpenptFlags;
use rustix::termios::Winsize;
use serde_json::Value;
use std::fs::File;
use std::io::{Read, Write};
use std::process::{Child, Output};
use std::sync::mpsc;
use std::time::Instant;

const ALICE: &str = "iqn.2026-11.org.example:alice";

/// A runtime directory of a test: servers create their sockets there, and `ctl` searches there.
struct Machine(Scratch);

impl Machine {
    fn new(name: &str) -> Self {
        Self(Scratch::new(name))
    }

    fn start(&self, arguments: &[&str]) -> Server {
        let mut command = lunar(&[&["serve", "--listen", "127.0.0.1:0"], arguments].concat());
        command.env("XDG_RUNTIME_DIR", self.0.path());
        Server::start_command(command)
    }

    fn configured(&self, text: &str) -> (Server, String) {
        let config = self.0.file("lunar.toml", text.as_bytes());
        let mut command = lunar(&["target", "--config", &config]);
        command.env("XDG_RUNTIME_DIR", self.0.path());
        (Server::start_command(command), config)
    }

    fn ctl(&self, arguments: &[&str]) -> Output {
        let mut command = lunar(&[&["ctl"], arguments].concat());
        command.env("XDG_RUNTIME_DIR", self.0.path()).current_dir(self.0.path());
        finish(command, b"")
    }

    #[track_caller]
    fn ctl_json(&self, arguments: &[&str]) -> Value {
        let output = self.ctl(&[arguments, &["--json"]].concat());
        assert_exit(&output, 0);
        json(&output)
    }

    #[track_caller]
    fn ctl_text(&self, arguments: &[&str]) -> String {
        let output = self.ctl(arguments);
        assert_exit(&output, 0);
        String::from_utf8(output.stdout).unwrap()
    }

    /// Returns the lines that a command prints on a terminal with 80 columns.
    fn ctl_terminal(&self, arguments: &[&str]) -> Vec<String> {
        let ours = rustix::pty::openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY).unwrap();
        rustix::pty::grantpt(&ours).unwrap();
        rustix::pty::unlockpt(&ours).unwrap();
        let name = rustix::pty::ptsname(&ours, Vec::new()).unwrap().into_string().unwrap();
        let size = Winsize { ws_row: 24, ws_col: 80, ws_xpixel: 0, ws_ypixel: 0 };
        rustix::termios::tcsetwinsize(&ours, size).unwrap();
        let theirs = File::options().read(true).write(true).open(name).unwrap();
        let mut command = lunar(&[&["ctl"], arguments].concat());
        command.env("XDG_RUNTIME_DIR", self.0.path()).stdout(theirs);
        let mut child = command.spawn().unwrap();
        drop(command);
        // Reading fails after the last holder of the other side has closed it.
        let mut text = Vec::new();
        let _ = File::from(ours).read_to_end(&mut text);
        assert!(child.wait().unwrap().success());
        String::from_utf8(text).unwrap().lines().map(str::to_owned).collect()
    }
}

/// Starts an initiator that stays logged in until its input ends.
fn initiator(url: &str) -> Child {
    let digest = ["--header-digest", "crc32c", "--data-digest", "none"];
    let mut command = lunar(&[&["write", url, "--initiator-name", ALICE][..], &digest].concat());
    let mut child = command.stdin(std::process::Stdio::piped()).spawn().unwrap();
    // The input is shorter than a single write, so that the initiator waits for more.
    child.stdin.as_mut().unwrap().write_all(&[7; 512]).unwrap();
    child
}

/// Polls until `done` returns true.
#[track_caller]
fn wait_until(what: &str, mut done: impl FnMut() -> bool) {
    let start = Instant::now();
    while !done() {
        assert!(start.elapsed() < TEST_TIMEOUT, "{what}: not within {TEST_TIMEOUT:?}");
        std::thread::sleep(std::time::Duration::from_millis(50));
    }
}

/// Goal: every reading command reports the state, for people and for programs.
#[test]
fn status_describes_the_running_server() {
    let machine = Machine::new("status");
    let server = machine.start(&["mem:3M", "mem:5M"]);
    let api = server.report["api"].as_str().unwrap();
    let socket = machine.0.path().join(format!("lunar/serve-{}.sock", server.pid()));
    assert_eq!(api, format!("unix:{}", socket.display()));
    let status = machine.ctl_json(&["status"]);
    assert_eq!(status["version"], env!("CARGO_PKG_VERSION"));
    assert_eq!(status["pid"], server.pid());
    assert_eq!((&status["targets"], &status["luns"]), (&1.into(), &2.into()));
    assert_eq!(status["drift"], serde_json::json!([]));
    assert_eq!(status["units"].as_array().unwrap().len(), 2);
    let portal = server.portal();
    assert_eq!(status["portals"][0].as_str().unwrap(), portal.trim_start_matches("iscsi://"));
    let targets = machine.ctl_json(&["targets"]);
    assert_eq!(targets["targets"], server.report["targets"], "as printed at the start");
    let luns = machine.ctl_json(&["luns"]);
    assert_eq!(luns["luns"][1]["size_bytes"], 5 << 20);
    assert_eq!(luns["luns"][1]["target"], server.report["targets"][0]["name"]);
    assert_eq!(machine.ctl_json(&["sessions"])["sessions"], serde_json::json!([]));
    assert_eq!(machine.ctl_text(&["sessions"]), "no sessions\n");
    for (command, words) in [
        ("status", &["version", "drift       none", "unit"][..]),
        ("targets", &["ACCESS", "mem-3m", "all"]),
        ("luns", &["5 MiB", "write-through", "mem:3145728"]),
    ] {
        let text = machine.ctl_text(&[command]);
        for word in words {
            assert!(text.contains(word), "{command}: {text}");
        }
    }
    assert_exit(&server.stop().0, 0);
    assert!(!socket.exists(), "the server removes its socket");
}

/// Goal: a session is listed with its negotiated keys, and can be logged out.
#[test]
fn sessions_are_listed_and_logged_out() {
    let machine = Machine::new("logout");
    let server = machine.start(&["mem:3M"]);
    let mut writer = initiator(&server.lun(0));
    let mut sessions = Value::Null;
    wait_until("a session", || {
        sessions = machine.ctl_json(&["sessions"])["sessions"].clone();
        sessions[0]["initiator"] == ALICE
    });
    let session = &sessions[0];
    assert_eq!(session["target"], server.report["targets"][0]["name"]);
    assert_eq!(session["negotiated"]["error_recovery_level"], 0);
    assert_eq!(session["luns"], serde_json::json!([0]));
    assert!(session["connections"][0]["initiator_address"].as_str().unwrap().starts_with("127."));
    assert!(session["since"].as_str().unwrap().ends_with('Z'));
    let connection = &session["connections"][0];
    assert_eq!(
        (&connection["header_digest"], &connection["data_digest"]),
        (&true.into(), &false.into())
    );
    let longest = connection["initiator_max_recv_data_segment_bytes"].as_u64().unwrap();
    assert!(longest >= 512, "{connection}");
    assert_eq!(session["negotiated"]["protocol_level"], 2);
    let sessions = machine.ctl_text(&["sessions"]);
    for words in [ALICE, "HeaderDigest=CRC32C DataDigest=None"] {
        assert!(sessions.contains(words), "{sessions}");
    }
    // Fault: the table had lines of 230 columns on each terminal.
    let columns = |line: &String| line.chars().count();
    let shown = machine.ctl_terminal(&["sessions"]);
    assert!(shown.len() == 2 && shown.iter().all(|line| columns(line) <= 80), "{shown:#?}");
    let wide = machine.ctl_terminal(&["sessions", "--wide"]);
    assert!(wide.iter().any(|line| columns(line) > 80), "{wide:#?}");
    let tsih = session["tsih"].to_string();
    assert_eq!(machine.ctl_json(&["logout", &tsih])["tsih"], session["tsih"]);
    wait_until("no session", || {
        machine.ctl_json(&["sessions"])["sessions"] == serde_json::json!([])
    });
    let again = machine.ctl(&["logout", &tsih]);
    assert_exit(&again, 1);
    assert!(printed(&again).contains("hint"), "{}", printed(&again));
    let _ = writer.kill();
    let _ = writer.wait();
    assert_exit(&server.stop().0, 0);
}

/// Goal: LUNs are added, enlarged and removed; drift reports this, and the output of `--print-toml`
/// is an equivalent configuration.
#[test]
fn luns_are_added_resized_and_removed() {
    let machine = Machine::new("luns");
    let file = machine.0.file("disk.img", &[0; 1 << 20]);
    let (server, config) = machine.configured(&format!(
        "[listen]\nportals = [\"127.0.0.1:0\"]\n[[target]]\nname = \"iqn.2026-11.org.example:a\"\n\
         [[target.lun]]\nid = 0\ndevice = \"{file}\"\n"
    ));
    let size = |lun: u16| json(&run(&["info", &server.lun(lun), "--json"]))["size_bytes"].clone();
    let grown = machine.ctl_text(&["resize", "0", "2M"]);
    assert!(grown.contains("LUN 0"), "{grown}");
    assert_eq!(size(0), 2 << 20);
    let refused = machine.ctl(&["resize", "0", "1M"]);
    assert_exit(&refused, 1);
    assert_eq!(size(0), 2 << 20);
    assert_exit(&machine.ctl(&["resize", "0", "1M", "--shrink"]), 0);
    assert_eq!(size(0), 1 << 20);
    machine.ctl_text(&["resize", "0", "3M"]);
    // A relative path is resolved by the caller, wherever the server was started.
    let added = machine.ctl_text(&["add-lun", "more.img", "--size", "4M", "--print-toml"]);
    assert!(added.contains("more.img"), "{added}");
    assert!(machine.0.path().join("more.img").exists());
    assert_eq!(size(1), 4 << 20);
    assert_exit(&machine.ctl(&["add-lun", "mem:1M", "--id", "1"]), 2);
    assert_exit(&machine.ctl(&["add-lun", "mem:1M", "--cache", "none"]), 2);
    let status = machine.ctl_json(&["status"]);
    assert_eq!(status["drift"].as_array().unwrap().len(), 2, "{status}");
    let text = machine.ctl_text(&["status"]);
    assert!(text.contains("drift       these changes last until a configuration"), "{text}");
    let whole = machine.ctl_text(&["targets", "--print-toml"]);
    let pasted = machine.0.file("pasted.toml", whole.as_bytes());
    assert_exit(&run(&["check", &pasted]), 0);
    let drift = machine.ctl_text(&["status", "--print-toml"]);
    assert!(drift.contains("more.img"));
    assert_eq!(machine.ctl_json(&["status", "--print-toml"])["toml"], drift);
    assert_eq!(machine.ctl_json(&["targets", "--print-toml"])["toml"], whole);
    assert_exit(&machine.ctl(&["remove-lun", "1"]), 0);
    assert_exit(&run(&["info", &server.lun(1)]), 1);
    assert!(machine.0.path().join("more.img").exists(), "the device stays");
    assert_exit(&machine.ctl(&["remove-lun", "1"]), 1);
    assert_exit(&run(&["check", &config]), 0);
    assert_exit(&server.stop().0, 0);
}

/// Goal: logins are redirected, and accepted again.
#[test]
fn logins_are_redirected() {
    let machine = Machine::new("ctl-redirect");
    let (name, elsewhere) = ("iqn.2026-11.org.example:moved", Scratch::new("elsewhere"));
    let there = Server::start(&["mem:3M", "--name", name, "--api", "none"]);
    assert!(there.report["api"].is_null());
    let here = machine.start(&["mem:1M", "--name", name]);
    let size = || json(&run(&["info", &here.lun(0), "--json"]))["size_bytes"].clone();
    assert_eq!(size(), 1 << 20);
    let portal = there.portal();
    machine.ctl_text(&["redirect", portal.trim_start_matches("iscsi://")]);
    assert_eq!(size(), 3 << 20);
    assert!(machine.ctl_text(&["targets"]).contains("redirected to"));
    machine.ctl_text(&["redirect", "none"]);
    assert_eq!(size(), 1 << 20);
    assert_exit(&machine.ctl(&["redirect", "nowhere"]), 2);
    assert_exit(&here.stop().0, 0);
    assert_exit(&there.stop().0, 0);
    drop(elsewhere);
}

/// Goal: a user gets a remedy if there is no server, if there are several, or if it belongs to
/// another user.
#[test]
fn a_missing_server_is_explained() {
    let machine = Machine::new("find");
    let none = machine.ctl(&["status"]);
    assert_exit(&none, 1);
    assert!(printed(&none).contains("--api"), "{}", printed(&none));
    let (one, two) = (machine.start(&["mem:1M"]), machine.start(&["mem:2M"]));
    let several = machine.ctl(&["status", "--json"]);
    assert_exit(&several, 2);
    let hint = json(&several)["hint"].as_str().unwrap().to_owned();
    for server in [&one, &two] {
        let api = server.report["api"].as_str().unwrap();
        assert!(hint.contains(api), "{hint}");
        let named = machine.ctl_json(&["--api", api, "status"]);
        assert_eq!(named["pid"], server.pid());
    }
    assert_exit(&two.stop().0, 0);
    assert_eq!(machine.ctl_json(&["status"])["pid"], one.pid(), "the only one left");
    let (pid, api) = (one.pid(), one.report["api"].as_str().unwrap().to_owned());
    drop(one); // killed: its socket remains
    let dead = machine.ctl(&["status"]);
    assert_exit(&dead, 1);
    assert!(printed(&dead).contains("no running server"), "{}", printed(&dead));
    assert!(
        printed(&machine.ctl(&["--api", &api, "status"])).contains("no server is listening there")
    );
    let next = machine.start(&["mem:1M"]);
    let left = machine.0.path().join(format!("lunar/serve-{pid}.sock"));
    assert!(!left.exists(), "the next server removes it");
    assert_exit(&next.stop().0, 0);
    for wrong in [&["status", "--api", "nonsense"][..], &["resize", "0", "big"], &[]] {
        assert_exit(&machine.ctl(wrong), 2);
    }
}

/// Goal: the server of a configuration is found from any directory, wherever its socket is.
/// Fault: `lunar apply FILE` did not look at `[api]` and `state` in FILE, and the message of
/// `lunar ctl` named no socket.
#[test]
fn the_server_of_a_configuration_is_found() {
    for (api, socket) in [
        ("state = \"state\"\n", "state/api.sock"),
        ("", "disk.img.lunar/api.sock"),
        ("state = \"state\"\n[api]\nlisten = \"unix:other/here.sock\"\n", "other/here.sock"),
        ("[api]\nlisten = \"127.0.0.1:0\"\n", ""),
    ] {
        let scratch = Scratch::new("described");
        let elsewhere = Scratch::new("described-elsewhere");
        let text = format!(
            "{api}[listen]\nportals = [\"127.0.0.1:0\"]\n[[target]]\n\
             name = \"iqn.2026-11.org.example:a\"\n[[target.lun]]\nid = 0\n\
             device = \"disk.img\"\nsize = \"1M\"\n"
        );
        let config = scratch.file("lunar.toml", text.as_bytes());
        let from = |directory: &Scratch, arguments: &[&str]| {
            let mut command = lunar(arguments);
            command.current_dir(directory.path());
            finish(command, b"")
        };
        let early = from(&elsewhere, &["apply", &config]);
        assert_exit(&early, 1);
        let path = scratch.path().join(socket).display().to_string();
        let tried = path.replace("api.sock", "*.sock");
        assert!(printed(&early).contains("no running server was found"), "{}", printed(&early));
        // Beside a disk that does not exist yet there is nothing to try.
        if api.contains("state") {
            assert!(printed(&early).contains(&tried), "{}", printed(&early));
        }
        let server = Server::start_command(lunar(&["target", "--config", &config]));
        if socket.is_empty() {
            let port = server.report["api"].as_str().unwrap().to_owned();
            let text = text.replace("127.0.0.1:0\"\n[listen]", &format!("{port}\"\n[listen]"));
            scratch.file("lunar.toml", text.as_bytes());
        } else {
            assert_eq!(server.report["api"], format!("unix:{path}"));
            assert!(from(&elsewhere, &["apply", &config]).status.success());
            let lost = from(&elsewhere, &["ctl", "status", "--json"]);
            assert_exit(&lost, 1);
            let lost = json(&lost);
            assert!(lost["error"].as_str().unwrap().contains("/run/lunar/*.sock"), "{lost}");
            let hint = lost["hint"].as_str().unwrap();
            assert!(hint.contains("--api") && hint.contains(&format!("unix:{path}")), "{hint}");
        }
        let found = from(&elsewhere, &["ctl", "--config", &config, "status", "--json"]);
        assert_exit(&found, 0);
        assert_eq!(json(&found)["pid"], server.pid());
        assert_exit(&server.stop().0, 0);
    }
}

/// Goal: a server whose socket was removed together with the state of a disk that is no longer
/// served can be reached again.
#[test]
fn a_server_whose_socket_was_removed_is_reached_again() {
    let scratch = Scratch::new("ctl-gone");
    let disk = scratch.path().join("vm.img").display().to_string();
    let server = Server::start(&[&disk, "--size", "1M"]);
    let api = server.report["api"].as_str().unwrap().to_owned();
    let state = scratch.path().join("vm.img.lunar");
    assert_eq!(api, format!("unix:{}", state.join("api.sock").display()));
    assert_exit(&run(&["ctl", "--api", &api, "remove-lun", "0"]), 0);
    std::fs::remove_dir_all(&state).unwrap();
    wait_until("the API is there again", || {
        run(&["ctl", "--api", &api, "status"]).status.success()
    });
    let added = run(&["ctl", "--api", &api, "add-lun", &disk]);
    assert_exit(&added, 0);
    let (stopped, _) = server.stop();
    assert_exit(&stopped, 0);
    assert!(
        printed(&stopped).contains("was removed; it was created again"),
        "{}",
        printed(&stopped)
    );
    assert!(!state.join("api.sock").exists(), "the server removes it");
}

/// Goal: limits are set while a LUN is in use, reported as drift, printed for pasting, and removed.
#[test]
fn limits_are_set_and_lifted() {
    let machine = Machine::new("limits");
    let (server, config) = machine.configured(
        "[listen]\nportals = [\"127.0.0.1:0\"]\n[[target]]\n\
         name = \"iqn.2026-11.org.example:a\"\n\
         [[target.lun]]\nid = 0\ndevice = \"mem:4M\"\nlimit = { iops = 5000 }\n",
    );
    let output = machine.ctl_text(&["limit", "0", "--iops", "10", "--bandwidth", "200Mbit"]);
    assert!(output.contains("limit: { iops = 5000 } -> { iops = 10, bandwidth = "), "{output}");
    let output = machine.ctl_text(&["limit", "0", "--bandwidth", "20Mbit"]);
    let whole = "limit: { iops = 10, bandwidth = \"200Mbit\" } -> { bandwidth = \"20Mbit\" }";
    assert!(output.contains(whole), "one replaces the other: {output}");
    let began = Instant::now();
    // The read takes 1.6 seconds, less at most a mebibyte and a burst that pass without delay.
    assert_exit(&run(&["read", &server.lun(0), "--offset", "0", "--length", "4M"]), 0);
    assert!(began.elapsed().as_millis() > 1000, "{:?}", began.elapsed());
    let own = ["limit", "--initiator", ALICE, "--iops", "500", "--print-toml"];
    let lines = machine.ctl_text(&own);
    assert!(lines.contains("limit = [{ initiator = "), "{lines}");
    machine.ctl_text(&["limit", "--each-initiator", "--iops", "900"]);
    let status = machine.ctl_json(&["status"]);
    assert_eq!(status["drift"].as_array().unwrap().len(), 2, "{status}");
    let whole = machine.ctl_text(&["targets", "--print-toml"]);
    assert!(whole.contains("iops = 900"), "{whole}");
    assert_exit(&run(&["check", &machine.0.file("pasted.toml", whole.as_bytes())]), 0);
    assert_exit(&machine.ctl(&["limit", "7", "--none"]), 1);
    for wrong in [
        &["limit", "0", "--iops", "9"][..],
        &["limit", "0"],
        &["limit", "--iops", "10"],
        &["limit", "0", "--initiator", ALICE, "--each-initiator", "--none"],
    ] {
        assert_exit(&machine.ctl(wrong), 2);
    }
    machine.ctl_text(&["limit", "0", "--none"]);
    machine.ctl_text(&["limit", "--initiator", ALICE, "--none"]);
    let mut apply = lunar(&["apply", &config]);
    apply.env("XDG_RUNTIME_DIR", machine.0.path());
    assert_exit(&finish(apply, b""), 0);
    assert_eq!(machine.ctl_json(&["status"])["drift"], serde_json::json!([]));
    assert_exit(&server.stop().0, 0);
}

/// Goal: an initiator is limited at one LUN, and a LUN is added with a limit; the lists show the
/// limits in force, drift and the lines to paste agree with them, and the next apply removes them.
#[test]
fn limits_in_force_are_reported() {
    let machine = Machine::new("limits-shown");
    let (server, config) = machine.configured(
        "[listen]\nportals = [\"127.0.0.1:0\"]\n[[target]]\n\
         name = \"iqn.2026-11.org.example:a\"\nlimit = [{ iops = 5000 }]\n\
         [[target.lun]]\nid = 0\ndevice = \"mem:4M\"\n\
         initiator_limit = [{ bandwidth = \"100Mbit\" }]\n",
    );
    machine.ctl_text(&["limit", "0", "--initiator", ALICE, "--iops", "300"]);
    let output = machine.ctl_text(&["limit", "0", "--each-initiator", "--bandwidth", "20Mbit"]);
    assert!(output.contains("LUN 0 initiator_limit: [{ bandwidth = \"100Mbit\" }"), "{output}");
    let began = Instant::now();
    // The read takes 1.6 seconds for an initiator without a limit of its own.
    assert_exit(&run(&["read", &server.lun(0), "--offset", "0", "--length", "4M"]), 0);
    assert!(began.elapsed().as_millis() > 1000, "{:?}", began.elapsed());
    let add = ["add-lun", "mem:1M", "--limit-iops", "40", "--limit-bandwidth", "50Mbit"];
    let added = machine.ctl_text(&add);
    assert!(added.contains("limit = { iops = 40, bandwidth = \"50Mbit\" }"), "{added}");

    let luns = machine.ctl_json(&["luns"])["luns"].clone();
    let rate = |bits: u64| serde_json::json!({ "iops": null, "bandwidth_bits_per_second": bits });
    assert_eq!(luns[0]["limit"]["iops"], Value::Null);
    let mut each = rate(20_000_000);
    each["initiator"] = Value::Null;
    assert_eq!(luns[0]["initiator_limits"][0], each);
    let alice = &luns[0]["initiator_limits"][1];
    assert_eq!((&alice["initiator"], &alice["iops"]), (&ALICE.into(), &300.into()));
    assert_eq!(luns[1]["limit"]["iops"], 40);
    let target = machine.ctl_json(&["targets"])["targets"][0].clone();
    assert_eq!(target["initiator_limits"][0]["iops"], 5000);
    let text = machine.ctl_text(&["luns"]);
    for words in ["limit 40 IOPS 50Mbit", "limit of each initiator 20Mbit", ALICE] {
        assert!(text.contains(words), "{text}");
    }
    assert!(machine.ctl_text(&["targets"]).contains("limit of each initiator 5000 IOPS"));

    let drift = machine.ctl_json(&["status"])["drift"].to_string();
    assert!(drift.contains("initiator_limit") && drift.contains("iops = 40"), "{drift}");
    let lines = machine.ctl_text(&["status", "--print-toml"]);
    let own = format!("{{ initiator = \"{ALICE}\", iops = 300 }}");
    let limits = format!("initiator_limit = [{{ bandwidth = \"20Mbit\" }}, {own}]");
    assert!(lines.contains(&limits), "{lines}");
    assert!(lines.contains("limit = { iops = 40, bandwidth = \"50Mbit\" }"), "{lines}");
    let whole = machine.ctl_text(&["targets", "--print-toml"]);
    assert_exit(&run(&["check", &machine.0.file("pasted.toml", whole.as_bytes())]), 0);

    for wrong in [&["limit", "0", "--each-initiator", "--iops", "9"][..], &["add-lun", "mem:1M"]] {
        let more: &[&str] = if wrong[0] == "add-lun" { &["--limit-iops", "9"] } else { &[] };
        assert_exit(&machine.ctl(&[wrong, more].concat()), 2);
    }
    let mut apply = lunar(&["apply", &config]);
    apply.env("XDG_RUNTIME_DIR", machine.0.path());
    assert_exit(&finish(apply, b""), 0);
    let luns = machine.ctl_json(&["luns"])["luns"].clone();
    assert_eq!(luns[0]["initiator_limits"].as_array().unwrap().len(), 1, "{luns}");
    assert_eq!(machine.ctl_json(&["status"])["drift"], serde_json::json!([]));
    assert_exit(&server.stop().0, 0);
}

/// Goal: without access to a server's socket, the error names its owner, and the exit status is 1.
/// Method: a socket that nobody may connect to, and root without the capability to bypass that.
#[test]
fn a_socket_of_another_user_is_reported() {
    use std::os::unix::fs::{MetadataExt, PermissionsExt};
    let machine = Machine::new("permission");
    let server = machine.start(&["mem:1M"]);
    let api = server.report["api"].as_str().unwrap().to_owned();
    let socket = api.trim_start_matches("unix:");
    std::fs::set_permissions(socket, PermissionsExt::from_mode(0o000)).unwrap();
    let root = std::fs::metadata("/proc/self").unwrap().uid() == 0;
    for (arguments, json) in [(&["--api", &api][..], false), (&["--api", &api, "--json"], true)] {
        let plain = lunar(&[&["ctl", "status"], arguments].concat());
        let mut command = match root {
            false => plain,
            true => {
                let mut command = std::process::Command::new("setpriv");
                command.args(["--bounding-set", "-dac_override,-dac_read_search"]);
                command.arg(plain.get_program()).args(plain.get_args());
                command.stdout(std::process::Stdio::piped()).stderr(std::process::Stdio::piped());
                command
            }
        };
        command.env("XDG_RUNTIME_DIR", machine.0.path());
        let refused = finish(command, b"");
        assert_exit(&refused, 1);
        let output = printed(&refused);
        for words in
            ["cannot reach a server at", "Permission denied", "only its owner may use the socket"]
        {
            assert!(output.contains(words), "{output}");
        }
        assert_eq!(refused.stdout.is_empty(), !json, "{output}");
    }
    assert_exit(&server.stop().0, 0);
}

/// Goal: the state of a stopping server can be read, and says so; a change is refused. Method: a
/// connection that stays open delays the shutdown for seconds; all requests are sent repeatedly
/// from before the shutdown on. The change would fail at any time for another reason.
#[test]
fn a_stopping_server_refuses_changes() {
    let machine = Machine::new("ends");
    let server = machine.start(&["mem:1M"]);
    let portal = server.portal();
    let stays = std::net::TcpStream::connect(portal.trim_start_matches("iscsi://")).unwrap();
    assert_exit(&run(&["info", &server.lun(0)]), 0);
    std::thread::scope(|all| {
        let (asked, asks) = mpsc::channel();
        let until = |arguments: &'static [&str], stops: fn(&Output) -> bool| {
            let (machine, asked) = (&machine, asked.clone());
            all.spawn(move || {
                wait_until("it is stopping", || {
                    let output = machine.ctl(arguments);
                    let _ = asked.send(());
                    stops(&output)
                });
            })
        };
        let refused = until(&["add-lun", "mem:1M", "--id", "0"], |output| {
            let stopping = printed(output).contains("the server is stopping");
            assert_exit(output, if stopping { 1 } else { 2 });
            stopping
        });
        let as_json = until(&["status", "--json"], |output| {
            assert_exit(output, 0);
            json(output)["stopping"] == true
        });
        let as_text = until(&["status"], |output| {
            assert_exit(output, 0);
            printed(output).contains("stopping")
        });
        for _ in 0..3 {
            asks.recv_timeout(TEST_TIMEOUT).expect("an answer");
        }
        let stopped = all.spawn(|| server.stop());
        [refused, as_json, as_text].into_iter().for_each(|asked| asked.join().unwrap());
        drop(stays);
        assert_exit(&stopped.join().unwrap().0, 0);
    });
}
