//! `lunar bench --suite multi-connection` and the network options of `lunar bench`, in short runs:
//! checks the reports, not the speed.

use crate::common::{
    PATIENCE, Scratch, Server, assert_exit, json, lunar, run, run_within, said, signal,
};
use serde_json::Value;
use std::io::{BufRead, BufReader, Read};
use std::os::unix::process::ExitStatusExt;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// Timeout for a whole short suite, even on a busy machine.
const SUITE_MAX: Duration = Duration::from_secs(240);
const SHORT: &[&str] = &["--warm-up", "0", "--rounds", "1", "--size", "4M"];

/// Arguments of a short suite.
fn suite(seconds: &str) -> Vec<&str> {
    let suite = ["bench", "--suite", "multi-connection", "--seconds", seconds];
    [&suite[..], SHORT].concat()
}

/// Permits one suite at a time: each removes the namespaces of killed ones.
static ONE: Mutex<()> = Mutex::new(());

fn alone() -> MutexGuard<'static, ()> {
    ONE.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Namespaces that the suite with this process ID has left.
fn namespaces(pid: u32) -> Vec<String> {
    let mine = format!("lunar-bench-{pid}-");
    let all = std::fs::read_dir("/run/netns").into_iter().flatten().flatten();
    all.map(|entry| entry.file_name().to_string_lossy().into_owned())
        .filter(|name| name.starts_with(&mine))
        .collect()
}

/// Processes started by the suite with this process ID, whatever their parent is now: their
/// arguments contain the name of its target.
fn children(pid: u32) -> Vec<u32> {
    let name = format!("org.lunarsan:bench-{pid}");
    let all = std::fs::read_dir("/proc").unwrap().flatten();
    let all = all.filter_map(|entry| entry.file_name().to_str()?.parse::<u32>().ok());
    let told = |child: &u32| std::fs::read(format!("/proc/{child}/cmdline")).unwrap_or_default();
    all.filter(|child| {
        let told = told(child);
        told.split(|byte| b"/\0".contains(byte)).any(|word| word.ends_with(name.as_bytes()))
    })
    .collect()
}

fn section<'a>(told: &'a Value, key: &str) -> &'a Value {
    let sections = told["sections"].as_array().unwrap();
    sections.iter().find(|section| section["key"] == key).unwrap_or_else(|| panic!("{key}: {told}"))
}

/// Report of a suite, with times long enough that a request ends in every measurement that a test
/// reads; on a busy machine, none may end in a short one.
fn every_part_measured(more: &[&str]) -> Value {
    let mut told = Value::Null;
    for seconds in ["0.05", "1", "3"] {
        let output = run_within(&[&suite(seconds)[..], more].concat(), SUITE_MAX);
        assert_exit(&output, 0);
        told = json(&output);
        let most = &section(&told, "paper")["rows"][3]["here"];
        let frames = section(&told, "frame_size")["rows"].as_array();
        let mut frames = frames.into_iter().flatten();
        let some = |figure: &Value| figure.as_f64().is_some_and(|figure| figure > 0.0);
        if some(most) && frames.all(|row| some(&row["bytes_per_second"]["median"])) {
            return told;
        }
    }
    panic!("nothing is measured: {told}");
}

/// Goal: the report has every part with all its rows, for the suite's own target; frame sizes are
/// measured with frames of these sizes, or the report gives a reason; the figures of the paper are
/// listed; the page has a plot for each part with a curve.
#[test]
fn every_part_is_told() {
    let _alone = alone();
    let scratch = Scratch::new("suite");
    let page = scratch.path().join("suite.html").to_str().unwrap().to_owned();
    let told = every_part_measured(&["--json", "--html", &page]);
    assert_eq!(told["suite"], "multi-connection");
    for (key, rows) in
        [("connections_far", 8), ("connections_near", 8), ("queue_depth", 7), ("metro", 4)]
    {
        let section = section(&told, key);
        assert_eq!(section["rows"].as_array().unwrap().len(), rows, "{section}");
        assert_eq!(section["raw_tcp"].as_array().unwrap().len(), 1, "{section}");
    }
    let far = section(&told, "connections_far")["rows"].as_array().unwrap();
    let connections: Vec<_> = far.iter().map(|row| row["connections"].as_u64().unwrap()).collect();
    assert_eq!(connections, [1, 2, 4, 8, 1, 2, 4, 8], "as many as were asked for");
    assert!(far.iter().all(|row| row["delay_us"] == 2000.0), "{far:?}");
    let depths = section(&told, "queue_depth")["rows"].as_array().unwrap();
    let depths: Vec<_> = depths.iter().map(|row| row["depth"].as_u64().unwrap()).collect();
    assert_eq!(depths, [1, 2, 4, 8, 16, 32, 64]);
    let frames = section(&told, "frame_size");
    match frames["rows"].as_array() {
        Some(rows) => {
            assert_eq!(rows.len(), 4, "{frames}");
            for row in rows {
                let (mtu, frame) = (&row["mtu_bytes"], row["bytes_per_frame"].as_f64().unwrap());
                let mtu = mtu.as_f64().unwrap();
                assert!(frame > mtu / 4.0 && frame <= mtu + 14.0, "an offload is on: {row}");
            }
        }
        None => assert!(frames["warnings"][0].as_str().unwrap().contains("root"), "{frames}"),
    }
    let beside = section(&told, "paper")["rows"].as_array().unwrap();
    let papers: Vec<_> = beside.iter().map(|row| row["paper"].as_str().unwrap()).collect();
    assert_eq!(papers[..5], ["+20 to 60 %", "+20 to 60 %", "+20 to 60 %", "15000", "8"]);
    let page = std::fs::read_to_string(page).unwrap();
    let plots = if frames["rows"].is_array() { 4 } else { 3 };
    assert_eq!(page.matches("<figure>").count(), plots);
}

/// Goal: an interrupted suite ends its target and removes its namespaces.
#[test]
fn an_interrupted_suite_leaves_nothing() {
    let _alone = alone();
    // Interrupts after these parts, up to the frames, and then at the start.
    for until in [Some("Queue length"), Some("Lab against"), None] {
        // A suite that ends before it is interrupted is run again with more time.
        let interrupted = ["0.3", "1", "3"].iter().any(|seconds| interrupt(until, seconds));
        assert!(interrupted, "{until:?}: it ends with 0");
    }
}

/// Interrupts a suite after it has printed this part, and checks that nothing remains; `false`: it
/// ended earlier.
fn interrupt(until: Option<&str>, seconds: &str) -> bool {
    let mut child = lunar(&suite(seconds)).spawn().unwrap();
    let (pid, begun) = (child.id(), Instant::now());
    let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
    if let Some(until) = until {
        assert!(lines.any(|line| line.unwrap().starts_with(until)), "no part `{until}`");
    }
    let there = children(pid);
    // A signal also succeeds if the process has ended, as it was not waited for yet.
    signal(pid, "TERM");
    let status = child.wait().unwrap();
    // This check comes first: a remaining process would hold the pipe open that is read below.
    assert_eq!((children(pid), namespaces(pid)), (vec![], vec![]));
    let mut rest = String::new();
    child.stderr.take().unwrap().read_to_string(&mut rest).unwrap();
    if status.success() {
        return false;
    }
    assert!(until.is_none() || !there.is_empty(), "its own target is a process");
    // Before the suite catches signals, it dies of one.
    let early = until.is_none() && status.code().is_none();
    assert!(early || (status.code() == Some(1) && rest.contains("interrupted")), "{rest}");
    assert!(begun.elapsed() < SUITE_MAX);
    true
}

/// Goal: a killed suite takes its processes with it; the next run removes its namespaces, and
/// reports that.
#[test]
fn a_killed_suite_leaves_nothing_for_long() {
    let _alone = alone();
    // The frames follow the last part that is named; without root there are none.
    let (pid, left) = ["0.05", "1"]
        .iter()
        .find_map(|seconds| kill("Lab against", 2, seconds))
        .or_else(|| kill("Queue length", 0, "1"))
        .expect("it was killed before its end");
    let output = run_within(&suite("0.05"), SUITE_MAX);
    assert_exit(&output, 0);
    assert_eq!(namespaces(pid), Vec::<String>::new());
    let text = said(&output);
    assert_eq!(text.contains("suite that was killed"), !left.is_empty(), "{left:?}: {text}");
    assert!(left.iter().all(|name| text.contains(name.as_str())), "{left:?}: {text}");
}

/// Kills a suite after it has printed this part, as soon as it has `wanted` namespaces, and waits
/// for its processes to end; returns its process ID and its remaining namespaces. `None`: it ended
/// earlier.
fn kill(until: &str, wanted: usize, seconds: &str) -> Option<(u32, Vec<String>)> {
    let mut child = lunar(&suite(seconds)).spawn().unwrap();
    let (pid, begun) = (child.id(), Instant::now());
    let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
    assert!(lines.any(|line| line.unwrap().starts_with(until)), "no part `{until}`");
    while namespaces(pid).len() < wanted && child.try_wait().unwrap().is_none() {
        assert!(begun.elapsed() < SUITE_MAX, "it does not end");
        std::thread::sleep(Duration::from_millis(1));
    }
    child.kill().unwrap();
    let killed = child.wait().unwrap().signal().is_some();
    let begun = Instant::now();
    while !children(pid).is_empty() {
        assert!(begun.elapsed() < PATIENCE, "{:?} live on", children(pid));
        std::thread::sleep(Duration::from_millis(20));
    }
    killed.then(|| (pid, namespaces(pid)))
}

/// Goal: a process started by the suite ends with it, even if the suite ends before the process can
/// request that from the system. Fault: such a process lived on, and kept the pipes of the suite's
/// parent open.
#[test]
fn a_process_does_not_outlive_one_that_is_gone() {
    let mut gone = std::process::Command::new("true").spawn().unwrap();
    gone.wait().unwrap();
    let parent = gone.id().to_string();
    let serve = ["--end-with-parent", &parent, "serve", "mem:1M", "--listen", "127.0.0.1:0"];
    let output = run_within(&serve, PATIENCE);
    assert_exit(&output, 0);
    assert_eq!(said(&output), "", "it serves nothing");
}

/// Goal: a target that is named is only read, and a URL that is no target is refused.
#[test]
fn a_named_target_is_only_read() {
    let _alone = alone();
    let server = Server::start(&["mem:4M", "--read-only"]);
    let url = server.lun(0);
    let output = run_within(&[&suite("0.05")[..], &["--json", &url]].concat(), SUITE_MAX);
    assert_exit(&output, 0);
    let told = json(&output);
    assert_eq!(section(&told, "connections_far")["rows"].as_array().unwrap().len(), 4);
    for wrong in [&["mem:4M"][..], &[&url, &url], &[&url, "--depth", "3"], &["--delay", "1ms"]] {
        let suite = ["bench", "--json", "--suite", "multi-connection"];
        assert_exit(&run(&[&suite[..], wrong].concat()), 2);
    }
    assert_exit(&server.stop().0, 0);
}

/// Goal: through a relay no request is faster than its delays; the network, the probes and the
/// processor time of the target are reported. A slow machine keeps all bounds as well.
#[test]
fn a_network_stands_between() {
    let server = Server::start(&["mem:4M"]);
    let quick = ["bench", "--rounds", "2", "--seconds", "1", "--warm-up", "0"];
    let network = ["--delay", "3ms", "--rate", "100Mbit", "--window", "64K", "--depth", "4"];
    let url = server.lun(0);
    let asked = [&quick[..], &[&url], &network, &["--io-size", "64K"]].concat();
    let output = run(&[&asked[..], &["--json"]].concat());
    assert_exit(&output, 0);
    let told = json(&output);
    assert_eq!(told["network"]["delay_us"], 3000.0);
    assert_eq!(told["network"]["bytes_per_second"], 12_500_000);
    assert_eq!(told["network"]["window_bytes"], 65536);
    let result = &told["results"][0];
    assert!(result["latency_us"]["p50"].as_f64().unwrap() >= 6000.0, "{result}");
    let most = result["bytes_per_second"]["most"].as_f64().unwrap();
    // Requests that began before the measurement may end within it.
    assert!(most <= 12_500_000.0 * 1.2 + 4.0 * 65536.0, "{result}");
    assert!(result["target_cpu_us_per_request"]["median"].is_number(), "{result}");
    let probe = &told["raw_tcp"][0]["probe"];
    assert!(probe["ping_us"]["least"].as_f64().unwrap() >= 6000.0, "{probe}");
    let output = run(&asked);
    let text = said(&output);
    assert!(text.contains("relay: 3 ms each way, 100Mbit, windows of 64Ki"), "{text}");
    assert!(text.contains("\nraw TCP "), "{text}");
    for wrong in [["--delay", "3"], ["--rate", "5"], ["--window", "1"]] {
        assert_exit(&run(&[&["bench", &url], &wrong[..]].concat()), 2);
    }
    assert_exit(&run(&["bench", "mem:1M", "--delay", "1ms"]), 2);
    let past = run(&["bench", &url, "--delay", "1ms", "--portal", "127.0.0.1:1"]);
    assert_exit(&past, 2);
    assert!(said(&past).contains("past the relay"), "{}", said(&past));
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
        assert!(begin.elapsed() < PATIENCE, "nobody reads: {page}");
        std::thread::sleep(Duration::from_millis(10));
    }
}

/// Goal: a message about a target that is lost behind a relay names the portal that the user gave.
#[test]
fn a_lost_target_has_its_own_name() {
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
fn a_lost_connection_is_told() {
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
    assert!(said(&through).contains(&format!("redirects to {portal}")), "{}", said(&through));
    assert_exit(&run(&[&["bench", &url], &quick[..]].concat()), 0);
}

/// Name of the server's first target.
fn name(server: &Server) -> String {
    server.report["targets"][0]["name"].as_str().unwrap().to_owned()
}

/// Goal: a directory that is not on NFS is not measured as NFS.
#[test]
fn a_directory_that_is_no_nfs_is_refused() {
    let scratch = Scratch::new("no-nfs");
    let directory = scratch.path().to_str().unwrap();
    let suite = ["bench", "--suite", "storage-over-ip", "--size", "16M"];
    for wrong in [directory, "/nowhere"] {
        let output = run(&[&suite[..], &["--nfs-directory", wrong]].concat());
        assert_exit(&output, 2);
        let text = said(&output);
        assert!(text.contains(wrong) && text.contains("an NFS that is mounted"), "{text}");
    }
}

/// Goal: if no request ended in the time, no figures are reported, and a warning names a remedy.
/// Method: a network that is slower than the time.
#[test]
fn of_no_requests_no_figures_are_told() {
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
    let text = said(&run(&asked));
    assert!(text.contains("warning: no request ended") && !text.contains("0.00 us"), "{text}");
    assert_exit(&server.stop().0, 0);
}
