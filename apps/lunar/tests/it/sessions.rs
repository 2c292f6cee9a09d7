//! End to end: a server, and clients that discover, describe, read and write its disks.

use crate::common::{
    Scratch, Server, assert_exit, finish, json, lunar, pattern, printed, run, run_with_input,
};
use std::time::Duration;

fn path(scratch: &Scratch, name: &str) -> String {
    scratch.path().join(name).to_str().unwrap().to_owned()
}

/// Writes `data` at `offset` and reads it back, with more arguments for both.
#[track_caller]
fn round_trip(url: &str, offset: usize, data: &[u8], arguments: &[&str]) {
    let at = offset.to_string();
    let write = run_with_input(&[&["write", url, "--offset", &at], arguments].concat(), data);
    assert_exit(&write, 0);
    let length = data.len().to_string();
    let read = ["read", url, "--offset", &at, "--length", &length];
    let read = run(&[&read[..], arguments].concat());
    assert_exit(&read, 0);
    assert!(read.stdout == data, "{url} {arguments:?}");
}

/// Goal: served disks are discovered, described and used, with output in the documented form.
#[test]
fn memory_is_served_found_and_used() {
    let server = Server::start(&["mem:64M", "mem:8M", "--block-size", "4096"]);
    let report = &server.report;
    assert_eq!(report["targets"][0]["name"], "iqn.2026-11.org.lunarsan:mem-64m");
    let lun = &report["targets"][0]["luns"][0];
    assert_eq!(lun["size_bytes"], 64 << 20);
    assert_eq!((&lun["block_bytes"], &lun["cache"]), (&4096.into(), &"write-through".into()));
    assert_eq!(report["clients"].as_array().unwrap().len(), 4);

    let found = run(&["discover", &server.portal(), "--json"]);
    assert_exit(&found, 0);
    let found = json(&found);
    assert_eq!(found["targets"].as_array().unwrap().len(), 1);
    assert_eq!(found["targets"][0]["name"], report["targets"][0]["name"]);
    let portal = &found["targets"][0]["portals"][0];
    assert_eq!(portal["address"], server.portal().trim_start_matches("iscsi://"));
    assert_eq!(portal["portal_group"], 1);
    let human = run(&["discover", &server.portal()]);
    assert!(printed(&human).contains("mem-64m") && printed(&human).contains("portal group 1"));

    let info = run(&["info", &server.lun(0), "--json"]);
    assert_exit(&info, 0);
    let info = json(&info);
    assert_eq!((&info["size_bytes"], &info["block_bytes"]), (&(64 << 20).into(), &4096.into()));
    assert_eq!((&info["thin"], &info["read_only"]), (&true.into(), &false.into()));
    let uuid: String = lun["uuid"].as_str().unwrap().replace('-', "");
    assert_eq!(info["unit"]["serial_number"], uuid.as_str());
    assert_eq!(info["unit"]["write_cache"], false);
    assert_eq!(info["unit"]["reservation"], serde_json::Value::Null);
    assert_eq!(info["session"]["header_digest"], "none");
    assert_eq!(info["session"]["error_recovery_level"], 0);
    assert!(printed(&run(&["info", &server.lun(1)])).contains("8 MiB"));

    let data = pattern(1, 9 << 20);
    round_trip(&server.lun(0), 12_345, &data, &[]);
    round_trip(&server.lun(1), 0, &data[..8 << 20], &[]);
    for missing in [2, 255, 256, 16_383] {
        let output = run(&["info", &server.lun(missing)]);
        assert_exit(&output, 1);
        assert!(printed(&output).contains("no such LUN"), "{}", printed(&output));
    }
    let absent = format!("{}/iqn.2026-11.org.example:absent/0", server.portal());
    assert_exit(&run(&["info", &absent]), 1);
    assert_exit(&server.stop().0, 0);
}

/// Goal: both digests, each alone, and a choice by the target, protect the data and do not change
/// it.
#[test]
fn digests_are_negotiated() {
    let server = Server::start(&["mem:16M"]);
    let data = pattern(2, 3 << 20);
    for (header, value) in [("none", "none"), ("crc32c", "crc32c")] {
        for (body, body_value) in [("none", "none"), ("crc32c", "crc32c")] {
            let digests = ["--header-digest", header, "--data-digest", body];
            round_trip(&server.lun(0), 4096, &data, &digests);
            let info = json(&run(&[&["info", &server.lun(0), "--json"], &digests[..]].concat()));
            assert_eq!(info["session"]["header_digest"], value);
            assert_eq!(info["session"]["data_digest"], body_value);
        }
    }
    let url = format!("{}?header_digest=crc32c&data_digest=crc32c", server.lun(0));
    round_trip(&url, 777, &data, &[]);
}

/// Goal: CHAP admits clients with the right secret, in both directions, and no secret is ever
/// shown.
#[test]
fn chap_is_proven_both_ways() {
    let scratch = Scratch::new("chap");
    let ours = scratch.file("ours", b"hunter2-of-the-initiator\n");
    let theirs = scratch.file("theirs", b"hunter2-of-the-target\n");
    let wrong = scratch.file("wrong", b"hunter2-of-somebody-else\n");
    let server = Server::start(&[
        "mem:16M",
        "--chap-user",
        "vm",
        "--chap-secret-file",
        &ours,
        "--mutual-chap-user",
        "san",
        "--mutual-chap-secret-file",
        &theirs,
    ]);
    let one_way = ["--chap-user", "vm", "--chap-secret-file", &ours];
    let mutual =
        [&one_way[..], &["--mutual-chap-user", "san", "--mutual-chap-secret-file", &theirs]]
            .concat();
    let data = pattern(3, 1 << 20);
    round_trip(&server.lun(0), 0, &data, &one_way);
    round_trip(&server.lun(0), 512, &data, &mutual);
    let named = server.lun(0).replace("iscsi://", "iscsi://vm@");
    round_trip(&named, 0, &data, &["--chap-secret-file", &ours]);
    let mut environment = lunar(&["info", &named]);
    environment.env("LUNAR_CHAP_SECRET", "hunter2-of-the-initiator");
    assert_exit(&finish(environment, b""), 0);

    let refused: [&[&str]; 5] = [
        &[],
        &["--chap-user", "vm", "--chap-secret-file", &wrong],
        &["--chap-user", "nobody", "--chap-secret-file", &ours],
        &[
            "--chap-user",
            "vm",
            "--chap-secret-file",
            &ours,
            "--mutual-chap-user",
            "san",
            "--mutual-chap-secret-file",
            &wrong,
        ],
        &[
            "--chap-user",
            "vm",
            "--chap-secret-file",
            &ours,
            "--mutual-chap-user",
            "other",
            "--mutual-chap-secret-file",
            &theirs,
        ],
    ];
    for arguments in refused {
        for format in [&[][..], &["--json"]] {
            let url = server.lun(0);
            let mut command = lunar(&[&["info", &url], arguments, format].concat());
            command.env("RUST_LOG", "trace");
            let output = finish(command, b"");
            assert_exit(&output, 1);
            assert!(!printed(&output).contains("hunter2"), "{}", printed(&output));
        }
    }
    let (last, _) = server.stop();
    assert_exit(&last, 0);
    assert!(!printed(&last).contains("hunter2"), "{}", printed(&last));
}

/// Goal: if the target requires CHAP, so does discovery: with the same credentials, others, or none
/// if the options say so. Method: discovery and a LUN, each with every credential.
#[test]
fn discovery_requires_authentication_too() {
    let scratch = Scratch::new("discovery-chap");
    let [vm, find] = ["vm", "find"]
        .map(|name| scratch.file(name, format!("hunter2 of {name} and all\n").as_bytes()));
    let chap = ["mem:1M", "--chap-user", "vm", "--chap-secret-file", &vm];
    let other = ["--discovery-chap-user", "find", "--discovery-chap-secret-file", &find];
    let (none, vms) = (&[][..], &["--chap-user", "vm", "--chap-secret-file", &vm][..]);
    let finds = &["--chap-user", "find", "--chap-secret-file", &find][..];
    for (options, discovery, lun) in [
        (&chap[..], [false, true, false], [false, true, false]),
        (&[&chap[..], &other].concat(), [false, false, true], [false, true, false]),
        (&[&chap[..], &["--no-discovery-chap"]].concat(), [true; 3], [false, true, false]),
        (&[&["mem:1M"], &other[..]].concat(), [false, false, true], [true; 3]),
        (&["mem:1M"][..], [true; 3], [true; 3]),
    ] {
        let server = Server::start(options);
        assert_eq!(server.report["discovery_chap"], !discovery[0], "{options:?}");
        assert_eq!(server.report["targets"][0]["chap"], !lun[0], "{options:?}");
        let lets_in = |command: &str, url: &str| {
            [none, vms, finds].map(|who| {
                let output = run(&[&[command, url], who].concat());
                assert!(!printed(&output).contains("hunter2"));
                output.status.success()
            })
        };
        assert_eq!(lets_in("discover", &server.portal()), discovery, "{options:?}");
        assert_eq!(lets_in("info", &server.lun(0)), lun, "{options:?}");
        assert_exit(&server.stop().0, 0);
    }
}

/// Goal: secrets below 96 bits are refused unless they are allowed, on both sides; and no secret
/// may be used for both directions, including discovery.
#[test]
fn short_secrets_have_to_be_allowed() {
    let scratch = Scratch::new("short-secrets");
    let [short, same] = [("short", "hunter2"), ("same", "hunter2 hunter2 hunter2")]
        .map(|(name, secret)| scratch.file(name, secret.as_bytes()));
    let chap = ["--chap-user", "u", "--chap-secret-file", &short];
    let serve = [&["serve", "mem:1M", "--listen", "127.0.0.1:0"], &chap[..]].concat();
    let refused = run(&serve);
    assert_exit(&refused, 1);
    assert!(printed(&refused).contains("96 bits"), "{}", printed(&refused));
    let server = Server::start(&[&["mem:1M", "--allow-short-secrets"], &chap[..]].concat());
    let url = server.lun(0);
    let info = [&["info", &url], &chap[..]].concat();
    assert_exit(&run(&info), 1);
    assert_exit(&run(&[&info[..], &["--allow-short-secrets"]].concat()), 0);
    assert_exit(&server.stop().0, 0);
    let mutual = ["--mutual-chap-user", "t", "--mutual-chap-secret-file", &same];
    let find = ["--discovery-chap-user", "d", "--discovery-chap-secret-file", &same];
    let both = run(&[&serve[..], &["--allow-short-secrets"], &mutual, &find].concat());
    assert_exit(&both, 1);
    assert!(printed(&both).contains("the mutual CHAP secret is the same"), "{}", printed(&both));
}

/// Goal: a server on IPv6 and on several portals is discovered and used through each of them.
#[test]
fn several_portals_and_ipv6() {
    let arguments = ["serve", "mem:16M", "--listen", "[::1]:0", "--listen", "127.0.0.1:0"];
    let server = Server::start_command(lunar(&arguments));
    assert!(server.portal().starts_with("iscsi://[::1]:"), "{}", server.portal());
    let data = pattern(4, 100_000);
    round_trip(&server.lun(0), 99, &data, &[]);
    let name = server.report["targets"][0]["name"].as_str().unwrap();
    let second = server.report["portals"][1]["url"].as_str().unwrap();
    let url = format!("{second}/{name}/0");
    let read = run(&["read", &url, "--offset", "99", "--length", "100000"]);
    assert!(read.stdout == data);
    let found = json(&run(&["discover", &server.portal(), "--json"]));
    assert_eq!(found["targets"][0]["portals"].as_array().unwrap().len(), 2, "{found}");
}

/// Goal: names and networks restrict access; a wrong name is refused, the right one admitted.
#[test]
fn access_is_checked_by_name_and_network() {
    let ours = "iqn.2026-11.org.example:ours";
    let arguments = ["mem:1M", "--initiator", ours, "--network", "127.0.0.0/8"];
    let server = Server::start(&arguments);
    assert_exit(&run(&["info", &server.lun(0), "--initiator-name", ours]), 0);
    let other = "iqn.2026-11.org.example:other";
    assert_exit(&run(&["info", &server.lun(0), "--initiator-name", other]), 1);
    let found = run(&["discover", &server.portal(), "--initiator-name", other, "--json"]);
    assert_eq!(json(&found)["targets"].as_array().unwrap().len(), 0, "not shown either");
    let elsewhere = Server::start(&["mem:1M", "--network", "192.0.2.0/24"]);
    assert_exit(&run(&["info", &elsewhere.lun(0)]), 1);
}

/// Goal: a read-only disk reports this and refuses writes; the contents of the file are served.
#[test]
fn a_read_only_file_is_served_as_it_is() {
    let scratch = Scratch::new("read-only");
    let data = pattern(5, 2 << 20);
    let file = scratch.file("disk.img", &data);
    let server = Server::start(&[&file, "--read-only"]);
    assert!(run(&["read", &server.lun(0)]).stdout == data);
    assert_eq!(json(&run(&["info", &server.lun(0), "--json"]))["read_only"], true);
    assert_exit(&run_with_input(&["write", &server.lun(0)], b"x"), 1);
    assert_exit(&server.stop().0, 0);
    assert!(std::fs::read(&file).unwrap() == data);
}

/// Goal: data written through a server is in the file, even after a restart.
#[test]
fn a_file_keeps_what_was_written() {
    let scratch = Scratch::new("keeps");
    let file = path(&scratch, "disk.img");
    let data = pattern(6, 5_000_001);
    for io in ["buffered", "direct"] {
        for cache in ["write-through", "write-back"] {
            let arguments = [file.as_str(), "--size", "16M", "--io", io, "--cache", cache];
            let server = Server::start(&arguments);
            round_trip(&server.lun(0), 333, &data, &[]);
            let info = json(&run(&["info", &server.lun(0), "--json"]));
            assert_eq!(info["unit"]["write_cache"], cache == "write-back");
            assert_exit(&server.stop().0, 0);
            assert!(std::fs::read(&file).unwrap()[333..][..data.len()] == data);
        }
    }
}

/// A client with an open session: it has written a mebibyte of sevens and waits for more input.
struct OpenSession {
    client: Option<std::process::Child>,
}

impl OpenSession {
    fn with(server: &Server) -> Self {
        // The server does not come back: a longer wait for it would show nothing more.
        let mut client = lunar(&["write", &server.lun(0), "--recovery-seconds", "2", "--json"]);
        let mut client = client.stdin(std::process::Stdio::piped()).spawn().unwrap();
        let stdin = client.stdin.as_mut().unwrap();
        std::io::Write::write_all(stdin, &vec![7; 1 << 20]).unwrap();
        let start = std::time::Instant::now();
        while run(&["read", &server.lun(0), "--length", "1"]).stdout != [7] {
            assert!(start.elapsed() < crate::common::TEST_TIMEOUT, "the client does not write");
            std::thread::sleep(Duration::from_millis(20));
        }
        Self { client: Some(client) }
    }

    /// Stops the process: it no longer answers the server, and its socket stays open.
    fn freeze(&self) {
        crate::common::signal(self.client.as_ref().unwrap().id(), "STOP");
    }

    /// Ends the client's input and waits for the client to end.
    fn finish(mut self) -> std::process::Output {
        let mut client = self.client.take().unwrap();
        drop(client.stdin.take());
        client.wait_with_output().unwrap()
    }
}

impl Drop for OpenSession {
    fn drop(&mut self) {
        if let Some(mut client) = self.client.take() {
            let _ = client.kill();
            let _ = client.wait();
        }
    }
}

/// Goal: SIGTERM ends the server at once if the initiator logs out on request, and the client
/// reports that it could not make its data durable.
#[test]
fn sigterm_with_an_open_session() {
    let server = Server::start(&["mem:16M"]);
    let session = OpenSession::with(&server);
    let (last, _) = server.stop();
    assert_exit(&last, 0);
    assert!(
        !printed(&last).contains("connections closed"),
        "no wait for sessions: {}",
        printed(&last)
    );
    let client = session.finish();
    assert_exit(&client, 1);
    assert!(json(&client)["error"].is_string(), "{}", printed(&client));
}

/// Goal: SIGTERM ends the server in 5 seconds if the initiator does not answer. Method: a busy
/// machine may take longer, but not in every attempt.
#[test]
fn sigterm_with_a_frozen_initiator() {
    let in_time = || time_to_end_of_a_frozen_one() < Duration::from_secs(8);
    assert!((0..3).any(|_| in_time()), "8 s and more each time");
}

fn time_to_end_of_a_frozen_one() -> Duration {
    let server = Server::start(&["mem:16M"]);
    let session = OpenSession::with(&server);
    session.freeze();
    let (last, took) = server.stop();
    assert_exit(&last, 0);
    assert!(printed(&last).contains("connections closed"), "{}", printed(&last));
    assert!(took > Duration::from_secs(3), "{took:?}: initiators are given time");
    took
}

/// Sends the signals while the process is stopped, so that they arrive at once, however long
/// sending takes.
fn signals_at_once(pid: u32, names: &[&str]) {
    use rustix::process::{WaitId, WaitIdOptions, waitid};
    crate::common::signal(pid, "STOP");
    // Waits until all threads have stopped.
    waitid(WaitId::Pid(crate::common::process(pid)), WaitIdOptions::STOPPED).unwrap();
    names.iter().for_each(|name| crate::common::signal(pid, name));
    crate::common::signal(pid, "CONT");
}

/// Goal: signals in quick succession count as one, so that the final sync is not cut short: a
/// terminal signals all its processes, and `make` signals its child again.
#[test]
fn a_signal_repeated_at_once_counts_once() {
    let server = Server::start(&["mem:16M"]);
    let session = OpenSession::with(&server);
    session.freeze();
    signals_at_once(server.pid(), &["TERM", "INT"]);
    let last = server.end();
    assert_exit(&last, 0);
    assert!(printed(&last).contains("stopped"), "{}", printed(&last));
}

/// Goal: a second signal aborts the shutdown at once, with a message and exit status 1.
#[test]
fn a_second_signal_aborts_the_shutdown() {
    let server = Server::start(&["mem:16M"]);
    let session = OpenSession::with(&server);
    session.freeze();
    crate::common::signal(server.pid(), "TERM");
    server.until_said("stopping");
    // The delay is in the middle: signals count as one for a second, and the initiator has five
    // seconds.
    std::thread::sleep(Duration::from_millis(2500));
    crate::common::signal(server.pid(), "INT");
    let last = server.end();
    assert_exit(&last, 1);
    assert!(printed(&last).contains("SHUTDOWN ABORTED"), "{}", printed(&last));
}

/// Goal: a second server on a file is refused with a message, and does not affect the first.
#[test]
fn a_file_has_one_server() {
    let scratch = Scratch::new("locked");
    let file = path(&scratch, "disk.img");
    let server = Server::start(&[&file, "--size", "1M"]);
    for arguments in
        [&["serve", file.as_str(), "--listen", "127.0.0.1:0"][..], &["write", file.as_str()]]
    {
        let refused = run(arguments);
        assert_exit(&refused, 1);
        assert!(printed(&refused).contains("in use"), "{}", printed(&refused));
    }
    assert_exit(&server.stop().0, 0);
    assert_exit(&Server::start(&[&file]).stop().0, 0);
}
