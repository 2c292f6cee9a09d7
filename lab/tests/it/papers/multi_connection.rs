//! `lab papers multi-connection`: its parts, and what an interrupted run leaves.

use super::{PAPER_MAX, paper, report, run, section};
use anyhow::Result;
use lunar_lab::peers::lunar::Lunar;
use lunar_lab::system::scratch::Scratch;
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;
use std::io::{BufRead, BufReader, Read};
use std::os::unix::process::ExitStatusExt;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

const SHORT: &[&str] = &["--warm-up", "0", "--rounds", "1", "--size", "4M"];
/// Maximum time until the processes of a killed run have ended.
const END_MAX: Duration = Duration::from_secs(60);

/// Arguments of a short run.
fn short<'a>(seconds: &'a str, more: &[&'a str]) -> Vec<&'a str> {
    [&["multi-connection", "--seconds", seconds], SHORT, more].concat()
}

/// Permits one run at a time: each removes the namespaces of killed ones.
static ONE: Mutex<()> = Mutex::new(());

fn alone() -> MutexGuard<'static, ()> {
    ONE.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Namespaces that the run with this process ID has left.
fn namespaces(pid: u32) -> Vec<String> {
    let mine = format!("lunar-bench-{pid}-");
    let all = std::fs::read_dir("/run/netns").into_iter().flatten().flatten();
    all.map(|entry| entry.file_name().to_string_lossy().into_owned())
        .filter(|name| name.starts_with(&mine))
        .collect()
}

/// Processes started by the run with this process ID, whatever their parent is now: their arguments
/// contain the name of its target.
fn children(pid: u32) -> Vec<u32> {
    let name = format!("org.lunarsan:bench-{pid}");
    let all = std::fs::read_dir("/proc").unwrap().flatten();
    let all = all.filter_map(|entry| entry.file_name().to_str()?.parse::<u32>().ok());
    let command_line =
        |child: &u32| std::fs::read(format!("/proc/{child}/cmdline")).unwrap_or_default();
    all.filter(|child| {
        let line = command_line(child);
        line.split(|byte| b"/\0".contains(byte)).any(|word| word.ends_with(name.as_bytes()))
    })
    .collect()
}

/// Report of a run, with times long enough that a request ends in every measurement that a test
/// reads; on a busy machine, none may end in a short one.
fn every_part_measured(scratch: &Scratch, more: &[&str]) -> Result<Value> {
    let mut document = Value::Null;
    for seconds in ["0.05", "1", "3"] {
        (document, _) = report(scratch, &[], &short(seconds, more))?;
        let figure = &section(&document, "paper")["rows"][3]["here"];
        let frames = section(&document, "frame_size")["rows"].as_array();
        let mut frames = frames.into_iter().flatten();
        let some = |figure: &Value| figure.as_f64().is_some_and(|figure| figure > 0.0);
        if some(figure) && frames.all(|row| some(&row["bytes_per_second"]["median"])) {
            return Ok(document);
        }
    }
    panic!("nothing is measured: {document}");
}

/// Goal: the report has every part with all its rows, for an own target; frame sizes are measured
/// with frames of these sizes, or the report gives a reason; the figures of the paper are listed;
/// the page has a plot for each part with a curve.
#[test]
fn every_part_is_reported() -> Result<()> {
    let _alone = alone();
    let scratch = Scratch::new("papers")?;
    let page = scratch.path("paper.html");
    let document = every_part_measured(&scratch, &["--html", &page])?;
    assert_eq!(document["paper"], "multi-connection");
    for (key, rows) in
        [("connections_far", 8), ("connections_near", 8), ("queue_depth", 7), ("metro", 4)]
    {
        let section = section(&document, key);
        assert_eq!(section["rows"].as_array().unwrap().len(), rows, "{section}");
        assert_eq!(section["raw_tcp"].as_array().unwrap().len(), 1, "{section}");
    }
    let far = section(&document, "connections_far")["rows"].as_array().unwrap();
    let connections: Vec<_> = far.iter().map(|row| row["connections"].as_u64().unwrap()).collect();
    assert_eq!(connections, [1, 2, 4, 8, 1, 2, 4, 8], "as many as were asked for");
    assert!(far.iter().all(|row| row["delay_us"] == 2000.0), "{far:?}");
    let depths = section(&document, "queue_depth")["rows"].as_array().unwrap();
    let depths: Vec<_> = depths.iter().map(|row| row["depth"].as_u64().unwrap()).collect();
    assert_eq!(depths, [1, 2, 4, 8, 16, 32, 64]);
    let frames = section(&document, "frame_size");
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
    let paper_rows = section(&document, "paper")["rows"].as_array().unwrap();
    let papers: Vec<_> = paper_rows.iter().map(|row| row["paper"].as_str().unwrap()).collect();
    assert_eq!(papers[..5], ["+20 to 60 %", "+20 to 60 %", "+20 to 60 %", "15000", "8"]);
    let page = std::fs::read_to_string(page)?;
    let plots = if frames["rows"].is_array() { 4 } else { 3 };
    assert_eq!(page.matches("<figure>").count(), plots);
    Ok(())
}

/// Goal: an interrupted run ends its target and removes its namespaces.
#[test]
fn an_interrupted_run_leaves_nothing() -> Result<()> {
    let _alone = alone();
    // Interrupts after these parts, up to the frames, and then at the start.
    for until in [Some("Queue depth"), Some("Laboratory and"), None] {
        // A run that ends before it is interrupted is run again with more time.
        let mut interrupted = false;
        for seconds in ["0.3", "1", "3"] {
            interrupted = interrupted || interrupt(until, seconds)?;
        }
        assert!(interrupted, "{until:?}: it ends with 0");
    }
    Ok(())
}

/// Interrupts a run after it has printed this part, and checks that nothing remains; `false`: it
/// ended earlier.
fn interrupt(until: Option<&str>, seconds: &str) -> Result<bool> {
    let mut child = paper(&short(seconds, &[]))?.spawn()?;
    let (pid, begun) = (child.id(), Instant::now());
    let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
    if let Some(until) = until {
        assert!(lines.any(|line| line.unwrap().starts_with(until)), "no part `{until}`");
    }
    let there = children(pid);
    // A signal also succeeds if the process has ended, as it was not waited for yet.
    kill_process(Pid::from_child(&child), Signal::TERM)?;
    let status = child.wait()?;
    // This check comes first: a remaining process would hold the pipe open that is read below.
    assert_eq!((children(pid), namespaces(pid)), (vec![], vec![]));
    let mut rest = String::new();
    child.stderr.take().unwrap().read_to_string(&mut rest)?;
    if status.success() {
        return Ok(false);
    }
    assert!(until.is_none() || !there.is_empty(), "its own target is a process");
    // Before the run catches signals, it dies of one.
    let early = until.is_none() && status.code().is_none();
    assert!(early || (status.code() == Some(1) && rest.contains("interrupted")), "{rest}");
    assert!(begun.elapsed() < PAPER_MAX);
    Ok(true)
}

/// Goal: a killed run takes its processes with it; the next run removes its namespaces, and reports
/// that.
#[test]
fn the_next_run_removes_leftovers_of_a_killed_run() -> Result<()> {
    let _alone = alone();
    // The frames follow the last part that is named; without root there are none.
    let mut killed = None;
    for (until, wanted, seconds) in
        [("Laboratory and", 2, "0.05"), ("Laboratory and", 2, "1"), ("Queue depth", 0, "1")]
    {
        if killed.is_none() {
            killed = kill(until, wanted, seconds)?;
        }
    }
    let (pid, left) = killed.expect("it was killed before its end");
    let scratch = Scratch::new("papers")?;
    let (_, text) = report(&scratch, &[], &short("0.05", &[]))?;
    assert_eq!(namespaces(pid), Vec::<String>::new());
    let words = text.split_whitespace().collect::<Vec<_>>().join(" ");
    assert_eq!(words.contains("of a killed run"), !left.is_empty(), "{left:?}: {text}");
    assert!(left.iter().all(|name| text.contains(name.as_str())), "{left:?}: {text}");
    Ok(())
}

/// Kills a run after it has printed this part, as soon as it has `wanted` namespaces, and waits for
/// its processes to end; returns its process ID and its remaining namespaces. `None`: it ended
/// earlier.
fn kill(until: &str, wanted: usize, seconds: &str) -> Result<Option<(u32, Vec<String>)>> {
    let mut child = paper(&short(seconds, &[]))?.spawn()?;
    let (pid, begun) = (child.id(), Instant::now());
    let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
    assert!(lines.any(|line| line.unwrap().starts_with(until)), "no part `{until}`");
    while namespaces(pid).len() < wanted && child.try_wait()?.is_none() {
        assert!(begun.elapsed() < PAPER_MAX, "it does not end");
        std::thread::sleep(Duration::from_millis(1));
    }
    child.kill()?;
    let killed = child.wait()?.signal().is_some();
    let begun = Instant::now();
    while !children(pid).is_empty() {
        assert!(begun.elapsed() < END_MAX, "{:?} live on", children(pid));
        std::thread::sleep(Duration::from_millis(20));
    }
    Ok(killed.then(|| (pid, namespaces(pid))))
}

/// Goal: a target that is named is only read, and a URL that is no target is refused.
#[test]
fn a_named_target_is_only_read() -> Result<()> {
    let _alone = alone();
    const TARGET: &str = "iqn.2026-11.org.lunarsan.test:papers";
    let server = Lunar::serve(&["mem:4M", "--read-only", "--name", TARGET])?;
    let (url, scratch) = (server.url(TARGET, 0), Scratch::new("papers")?);
    let (document, _) = report(&scratch, &[], &short("0.05", &[&url]))?;
    assert_eq!(section(&document, "connections_far")["rows"].as_array().unwrap().len(), 4);
    for wrong in [&["mem:4M"][..], &[&url, &url], &[&url, "--depth", "3"], &["--delay", "1ms"]] {
        let finished = run(&[], &[&["multi-connection"], wrong].concat())?;
        assert_eq!(finished.end.code(), Some(2), "{}", finished.outputs());
    }
    server.stop(END_MAX)?;
    Ok(())
}
