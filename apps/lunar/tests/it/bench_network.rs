//! The network options of `lunar bench`, in short runs: checks the reports, not the speed.

use crate::common::{
    Scratch, Server, TEST_TIMEOUT, assert_exit, json, lunar, printed, run, run_within,
};
use serde_json::Value;
use std::io::{BufRead, BufReader, Read};
use std::time::{Duration, Instant};

/// Goal: a process started by another program ends with it, even if that program ends before the
/// process can request that from the system. Fault: such a process lived on, and kept the pipes of
/// the program's parent open.
#[test]
fn a_process_ends_with_its_parent() {
    let mut gone = std::process::Command::new("true").spawn().unwrap();
    gone.wait().unwrap();
    let parent = gone.id().to_string();
    let serve = ["--end-with-parent", &parent, "serve", "mem:1M", "--listen", "127.0.0.1:0"];
    let output = run_within(&serve, TEST_TIMEOUT);
    assert_exit(&output, 0);
    assert_eq!(printed(&output), "", "it serves nothing");
}

/// Goal: through a relay no request is faster than its delays; the network, the probes and the
/// processor time of the target are reported. A slow machine keeps all bounds as well.
#[test]
fn a_relay_delays_every_request() {
    let server = Server::start(&["mem:4M"]);
    let quick = ["bench", "--rounds", "2", "--seconds", "1", "--warm-up", "0"];
    let network = ["--delay", "3ms", "--rate", "100Mbit", "--window", "64K", "--depth", "4"];
    let url = server.lun(0);
    let asked = [&quick[..], &[&url], &network, &["--io-size", "64K"]].concat();
    let output = run(&[&asked[..], &["--json"]].concat());
    assert_exit(&output, 0);
    let document = json(&output);
    assert_eq!(document["network"]["delay_us"], 3000.0);
    assert_eq!(document["network"]["bytes_per_second"], 12_500_000);
    assert_eq!(document["network"]["window_bytes"], 65536);
    let result = &document["results"][0];
    assert!(result["latency_us"]["p50"].as_f64().unwrap() >= 6000.0, "{result}");
    let most = result["bytes_per_second"]["most"].as_f64().unwrap();
    // Requests that began before the measurement may end within it.
    assert!(most <= 12_500_000.0 * 1.2 + 4.0 * 65536.0, "{result}");
    assert!(result["target_cpu_us_per_request"]["median"].is_number(), "{result}");
    let probe = &document["raw_tcp"][0]["probe"];
    assert!(probe["ping_us"]["least"].as_f64().unwrap() >= 6000.0, "{probe}");
    let output = run(&asked);
    let text = printed(&output);
    assert!(text.contains("relay: 3 ms each way, 100Mbit, window 64Ki"), "{text}");
    assert!(text.contains("\nraw TCP "), "{text}");
    for wrong in [["--delay", "3"], ["--rate", "5"], ["--window", "1"]] {
        assert_exit(&run(&[&["bench", &url], &wrong[..]].concat()), 2);
    }
    assert_exit(&run(&["bench", "mem:1M", "--delay", "1ms"]), 2);
    let past = run(&["bench", &url, "--delay", "1ms", "--portal", "127.0.0.1:1"]);
    assert_exit(&past, 2);
    assert!(printed(&past).contains("bypass the simulated network"), "{}", printed(&past));
    assert_exit(&server.stop().0, 0);
    let refused = run(&["bench", &url, "--delay", "1ms"]);
    let direct = run(&["bench", &url]);
    assert_exit(&refused, 1);
    assert_eq!(refused.stderr, direct.stderr, "the reason and the hint are the same");
}

/// Waits until a server with metrics has received so many reads that a measurement must be running.
fn until_measured(server: &Server) {
    let begin = Instant::now();
    loop {
        let page = crate::common::get(server.report["metrics"].as_str().unwrap());
        let reads = page
            .lines()
            .find(|line| line.starts_with("lunar_commands_total{") && line.contains("op=\"read\""));
        let reads = reads.and_then(|line| line.rsplit(' ').next()?.parse::<u64>().ok());
        if reads.is_some_and(|reads| reads >= 50) {
            return;
        }
        assert!(begin.elapsed() < TEST_TIMEOUT, "no client has read it: {page}");
        std::thread::sleep(Duration::from_millis(10));
    }
}

/// Goal: a message about a target that is lost behind a relay names the portal that the user gave.
#[test]
fn a_lost_target_behind_a_relay_is_named() {
    let server = Server::start(&["mem:4M", "--metrics", "127.0.0.1:0"]);
    let (url, portal) = (server.lun(0), server.portal());
    let portal = portal.trim_start_matches("iscsi://").to_owned();
    let arguments = ["bench", &url, "--delay", "1ms", "--depth", "1", "--seconds", "20"];
    let mut child = lunar(&[&arguments[..], &["--recovery-seconds", "0"]].concat());
    let mut child = child.spawn().unwrap();
    let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
    assert!(lines.any(|line| line.unwrap().starts_with("pattern")));
    until_measured(&server);
    server.stop_by("KILL");
    let mut stderr = String::new();
    child.stderr.take().unwrap().read_to_string(&mut stderr).unwrap();
    assert_eq!(child.wait().unwrap().code(), Some(1), "{stderr}");
    let failed = stderr.lines().find(|line| line.starts_with("lunar: ")).unwrap_or_default();
    assert!(failed.contains(&portal), "{portal}: {stderr}");
}

/// Goal: a connection that is lost during a measurement is reported in the result, not only on
/// stderr.
#[test]
fn a_lost_connection_is_reported() {
    let scratch = Scratch::new("lost");
    let disk = scratch.path().join("disk.img").to_str().unwrap().to_owned();
    let serve = |listen: &str| {
        let name = ["--name", "iqn.2026-11.org.lunarsan.test:lost", "--listen", listen];
        let disk = ["serve", &disk, "--size", "4M", "--metrics", "127.0.0.1:0"];
        Server::start_command(lunar(&[&disk[..], &name].concat()))
    };
    let server = serve(crate::common::ELSEWHERE);
    let (url, portal) = (server.lun(0), server.portal());
    let portal = portal.trim_start_matches("iscsi://");
    let measured = ["bench", &url, "--depth", "1", "--seconds", "8", "--warm-up", "0"];
    let mut command = lunar(&[&measured[..], &["--rounds", "1", "--json"]].concat());
    let child = command.spawn().unwrap();
    until_measured(&server);
    server.stop_by("KILL");
    // The lost request waits for the new server, even after the end of the measurement.
    let server = serve(portal);
    let output = child.wait_with_output().unwrap();
    assert_exit(&output, 0);
    let result = &json(&output)["results"][0];
    assert!(result["warning"].as_str().unwrap().contains("a connection was lost"), "{result}");
    assert_exit(&server.stop().0, 0);
}

/// Goal: a target that redirects is not measured past the requested network.
#[test]
fn a_redirect_past_the_network_is_refused() {
    let (there, scratch) = (Server::start(&["mem:4M"]), Scratch::new("redirect"));
    let socket = scratch.path().join("api").to_str().unwrap().to_owned();
    let socket = format!("unix:{socket}");
    let here = Server::start(&["mem:4M", "--api", &socket, "--name", &name(&there)]);
    let portal = there.portal().trim_start_matches("iscsi://").to_owned();
    assert_exit(&run(&["ctl", "--api", &socket, "redirect", &portal]), 0);
    let url = here.lun(0);
    let quick = ["--seconds", "0.1", "--warm-up", "0", "--rounds", "1", "--depth", "1"];
    let through = run(&[&["bench", &url, "--delay", "1ms"], &quick[..]].concat());
    assert_exit(&through, 1);
    assert!(printed(&through).contains(&format!("redirects to {portal}")), "{}", printed(&through));
    assert_exit(&run(&[&["bench", &url], &quick[..]].concat()), 0);
}

/// Name of the server's first target.
fn name(server: &Server) -> String {
    server.report["targets"][0]["name"].as_str().unwrap().to_owned()
}

/// Goal: if no request ended in the time, no figures are reported, and a warning names a remedy.
/// Method: a network that is slower than the time.
#[test]
fn without_requests_no_figures_are_reported() {
    let server = Server::start(&["mem:4M"]);
    let url = server.lun(0);
    let short = ["--seconds", "0.05", "--warm-up", "0", "--rounds", "1", "--depth", "1"];
    let asked = [&["bench", &url, "--delay", "300ms"], &short[..]].concat();
    let output = run(&[&asked[..], &["--json"]].concat());
    assert_exit(&output, 0);
    let result = &json(&output)["results"][0];
    for key in ["iops", "bytes_per_second", "client_cpu_us_per_request"] {
        assert_eq!(result[key], Value::Null, "{result}");
    }
    assert_eq!(result["latency_us"]["p50"], Value::Null, "{result}");
    assert_eq!(result["latency_us"]["requests"], 0, "{result}");
    assert!(result["warning"].as_str().unwrap().contains("--seconds"), "{result}");
    let text = printed(&run(&asked));
    assert!(text.contains("warning: no request completed") && !text.contains("0.00 us"), "{text}");
    assert_exit(&server.stop().0, 0);
}
