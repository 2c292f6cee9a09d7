//! `lunar target --config`: clients find what the configuration describes.

use crate::common::{
    ELSEWHERE, Scratch, Server, assert_exit, json, lunar, printed, run, run_with_input,
};
use rustix::fs::{Mode, OFlags};
use rustix::pty::{OpenptFlags, grantpt, openpt, ptsname, unlockpt};
use std::os::fd::OwnedFd;
use std::process::Stdio;

const ALICE: &str = "iqn.2026-11.org.example:alice";
const BOB: &str = "iqn.2026-11.org.example:bob";

fn start(scratch: &Scratch, text: &str) -> Server {
    let config = scratch.file("lunar.toml", text.as_bytes());
    assert_exit(&run(&["check", &config]), 0);
    Server::start_command(lunar(&["target", "--config", &config]))
}

/// Goal: a LUN map shows each initiator its own LUNs, two LUNs over one file are one disk, and
/// targets that do not admit an initiator are hidden from it.
#[test]
fn initiators_see_only_their_luns() {
    let scratch = Scratch::new("lun-map");
    scratch.file("shared.img", &[0; 1 << 20]);
    let server = start(
        &scratch,
        &format!(
            "[listen]\nportals = [\"127.0.0.1:0\"]\n[[target]]\n\
             name = \"iqn.2026-11.org.example:one\"\nalias = \"the first\"\n\
             [[target.lun]]\nid = 0\ndevice = \"shared.img\"\n\
             [[target.lun]]\nid = 300\ndevice = \"mem:2M\"\ninitiators = [\"{ALICE}\"]\n\
             [[target.lun]]\nid = 300\ndevice = \"mem:4M\"\ninitiators = [\"{BOB}\"]\n\
             networks = [\"10.0.0.0/8\", \"127.0.0.0/8\"]\n\
             [[target]]\nname = \"iqn.2026-11.org.example:two\"\ninitiators = [\"{BOB}\"]\n\
             [[target.lun]]\nid = 7\ndevice = \"./shared.img\"\n"
        ),
    );
    let names = |who: &str| {
        let found = run(&["discover", &server.portal(), "--initiator-name", who, "--json"]);
        assert_exit(&found, 0);
        json(&found)["targets"].as_array().unwrap().len()
    };
    assert_eq!((names(ALICE), names(BOB)), (1, 2));
    let info = |url: &str, who: &str| run(&["info", url, "--initiator-name", who, "--json"]);
    let alices = info(&server.lun(300), ALICE);
    assert_exit(&alices, 0);
    assert_eq!(json(&alices)["size_bytes"], 2 << 20);
    assert_eq!(json(&alices)["session"]["target_alias"], "the first");
    assert_eq!(json(&info(&server.lun(300), BOB))["size_bytes"], 4 << 20, "the same number");
    assert_exit(&run(&["info", &server.lun(300)]), 1);
    let luns = &server.report["targets"][0]["luns"];
    assert_eq!(luns[1]["initiators"], serde_json::json!([ALICE]));
    assert_eq!(luns[2]["networks"], serde_json::json!(["10.0.0.0/8", "127.0.0.0/8"]));
    assert_eq!(luns[0]["networks"], serde_json::json!([]));
    let two = format!("{}/iqn.2026-11.org.example:two/7", server.portal());
    assert_exit(&info(&two, ALICE), 1);
    let (one, other) = (json(&info(&server.lun(0), BOB)), json(&info(&two, BOB)));
    assert_eq!(one["unit"]["serial_number"], other["unit"]["serial_number"]);
    let write = ["write", &two, "--offset", "5000", "--initiator-name", BOB];
    assert_exit(&run_with_input(&write, b"through the other name"), 0);
    let read = run(&["read", &server.lun(0), "--offset", "5000", "--length", "22"]);
    assert_eq!(read.stdout, b"through the other name");
    assert_exit(&server.stop().0, 0);
}

/// Goal: `lunar serve` and a configuration give the same portal groups, and discovery reports them.
#[test]
fn portals_are_in_groups() {
    let scratch = Scratch::new("groups");
    let served = lunar(
        &[
            &["serve", "mem:1M", "--name", "iqn.2026-11.org.example:one"][..],
            &["--listen", "127.0.0.1:0", "--portal-group", "1"],
            &["--listen", "127.0.0.1:0", "--portal-group", "2"],
        ]
        .concat(),
    );
    let configured = "[listen]\nportals = [\"127.0.0.1:0\",\n\
        { listen = \"127.0.0.1:0\", portal_group = 2 }]\n\
        [[target]]\nname = \"iqn.2026-11.org.example:one\"\n\
        [[target.lun]]\nid = 0\ndevice = \"mem:1M\"\n";
    for server in [Server::start_command(served), start(&scratch, configured)] {
        assert_eq!(server.report["targets"][0]["portal_groups"], serde_json::json!([1, 2]));
        assert_eq!(server.report["portals"][1]["portal_group"], 2);
        let url = |portal: usize| server.report["portals"][portal]["url"].as_str().unwrap();
        let found = run(&["discover", url(1), "--json"]);
        assert_exit(&found, 0);
        let portals = json(&found)["targets"][0]["portals"].clone();
        let address = |portal: usize| url(portal).trim_start_matches("iscsi://");
        let expected = serde_json::json!([
            { "address": address(0), "portal_group": 1 },
            { "address": address(1), "portal_group": 2 },
        ]);
        assert_eq!(portals, expected);
        assert_exit(&server.stop().0, 0);
    }
}

/// Goal: each initiator has its own credential, and discovery another one.
#[test]
fn credentials_belong_to_initiators() {
    let scratch = Scratch::new("credentials");
    let [alice, bob, find] = ["alice", "bob", "find"]
        .map(|name| scratch.file(name, format!("hunter2 of {name}\n").as_bytes()));
    let server = start(
        &scratch,
        &format!(
            "[listen]\nportals = [\"127.0.0.1:0\"]\n\
             [discovery]\nchap = {{ user = \"find\", secret_file = \"find\" }}\n[[target]]\n\
             name = \"iqn.2026-11.org.example:one\"\n\
             chap = [{{ initiator = \"{ALICE}\", user = \"alice\", secret_file = \"alice\" }},\n\
             {{ user = \"bob\", secret_file = \"bob\", algorithms = [\"sha-256\"] }}]\n\
             [[target.lun]]\nid = 0\ndevice = \"mem:1M\"\n"
        ),
    );
    let status = |command: &str, who: &str, user: &str, file: &str| {
        let url = if command == "info" { server.lun(0) } else { server.portal() };
        let who = ["--initiator-name", who, "--chap-user", user, "--chap-secret-file", file];
        let output = run(&[&[command, url.as_str()], &who[..]].concat());
        assert!(!printed(&output).contains("hunter2"));
        output.status.code()
    };
    assert_eq!(status("info", ALICE, "alice", &alice), Some(0));
    assert_eq!(status("info", BOB, "bob", &bob), Some(0));
    assert_eq!(status("info", ALICE, "bob", &bob), Some(1), "hers alone counts for her");
    assert_eq!(status("info", BOB, "alice", &alice), Some(1), "hers is not for others");
    assert_eq!(status("discover", ALICE, "find", &find), Some(0));
    assert_eq!(status("discover", ALICE, "alice", &alice), Some(1));
    assert_exit(&run(&["discover", &server.portal()]), 1);
}

/// Goal: a server whose terminal is closed shuts down in order; under `nohup` it stays.
#[test]
fn a_closed_terminal_shuts_a_server_down() {
    let scratch = Scratch::new("hangup");
    let disk = scratch.path().join("disk.img").display().to_string();
    let mut command = hears_of_hangups();
    command.args([env!("CARGO_BIN_EXE_lunar"), "serve", "--listen", "127.0.0.1:0", &disk]);
    command.args(["--size", "1M"]).stdin(Stdio::null());
    command.stdout(Stdio::piped()).stderr(Stdio::piped());
    let (stopped, _) = Server::start_command(command).stop_by("HUP");
    assert_exit(&stopped, 0);
    assert!(printed(&stopped).contains("syncing"), "{}", printed(&stopped));
    let mut nohup = std::process::Command::new("nohup");
    nohup.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    nohup.arg(env!("CARGO_BIN_EXE_lunar")).args(["serve", "--listen", "127.0.0.1:0", &disk]);
    let server = Server::start_command(nohup);
    crate::common::signal(server.pid(), "HUP");
    std::thread::sleep(std::time::Duration::from_millis(200));
    assert_exit(&run(&["info", &server.lun(0)]), 0);
    assert_exit(&server.stop().0, 0);
}

/// Goal: SIGHUP makes a server with a configuration apply it. If the terminal was closed, which
/// raises the same signal, the server shuts down in order and applies nothing.
#[test]
fn a_closed_terminal_is_no_reload() {
    let scratch = Scratch::new("terminal");
    let target = "[[target]]\nname = \"iqn.2026-11.org.example:t\"\n[[target.lun]]\nid = 0\n";
    let text = format!("[listen]\nportals = [\"127.0.0.1:0\"]\n{target}device = \"d.img\"\n");
    let config = scratch.file("lunar.toml", (text + "size = \"1M\"\n").as_bytes());
    let log = scratch.path().join("log");
    let (terminal, end) = open_terminal();
    // setsid(1) makes the terminal on stdin the controlling terminal of the server.
    let mut command = hears_of_hangups();
    command.args(["setsid", "--ctty", env!("CARGO_BIN_EXE_lunar"), "target", "--config", &config]);
    command.stdin(end).stdout(Stdio::piped()).stderr(std::fs::File::create(&log).unwrap());
    let server = Server::start_command(command);
    drop(terminal);
    let start = std::time::Instant::now();
    let read = || std::fs::read_to_string(&log).unwrap();
    while !read().contains("stopped") {
        assert!(start.elapsed() < crate::common::TEST_TIMEOUT, "the server continues: {}", read());
        std::thread::sleep(std::time::Duration::from_millis(20));
    }
    assert!(!read().contains("applied"), "{}", read());
    drop(server);
}

/// Resets SIGHUP to its default for the started program, even if the tests run under `nohup`.
fn hears_of_hangups() -> std::process::Command {
    let mut command = std::process::Command::new("env");
    command.arg("--default-signal=HUP");
    command
}

/// Opens both ends of a terminal, which is closed when the first one is dropped.
fn open_terminal() -> (OwnedFd, OwnedFd) {
    let terminal = openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY | OpenptFlags::CLOEXEC).unwrap();
    grantpt(&terminal).unwrap();
    unlockpt(&terminal).unwrap();
    let name = ptsname(&terminal, Vec::new()).unwrap();
    let flags = OFlags::RDWR | OFlags::NOCTTY | OFlags::CLOEXEC;
    let end = rustix::fs::open(name.as_c_str(), flags, Mode::empty()).unwrap();
    (terminal, end)
}

/// Goal: a redirected login reaches the other server; a redirection loop ends.
#[test]
fn redirects_are_followed_to_an_end() {
    let scratch = Scratch::new("redirect");
    let name = "iqn.2026-11.org.example:moved";
    let there = Server::start(&["mem:3M", "--name", name]);
    let address = there.portal();
    let address = address.trim_start_matches("iscsi://");
    let here = start(
        &scratch,
        &format!(
            "[listen]\nportals = [\"127.0.0.1:0\"]\n[[target]]\nname = \"{name}\"\n\
             redirect = \"{address}\"\n"
        ),
    );
    let moved = format!("{}/{name}/0", here.portal());
    let info = run(&["info", &moved, "--json"]);
    assert_exit(&info, 0);
    assert_eq!(json(&info)["size_bytes"], 3 << 20);
    assert_eq!(json(&info)["session"]["portal"], address);
    // The server redirects every login to its own address.
    let itself = std::net::TcpListener::bind(ELSEWHERE).unwrap().local_addr().unwrap();
    let circle = start(
        &scratch,
        &format!(
            "[listen]\nportals = [\"{itself}\"]\n[[target]]\nname = \"{name}\"\n\
             redirect = \"{itself}\"\n"
        ),
    );
    let lost = run(&["info", &format!("{}/{name}/0", circle.portal())]);
    assert_exit(&lost, 1);
    assert!(printed(&lost).contains("redirected too many times"), "{}", printed(&lost));
}
