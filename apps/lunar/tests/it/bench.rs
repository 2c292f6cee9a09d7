//! `lunar bench`: measures what the options request. Speed itself is not tested.

use crate::common::{Scratch, Server, assert_exit, json, pattern, printed, run, run_within};
use serde_json::Value;
use std::time::Duration;

/// Timeout for everything in these tests, even on a busy machine.
const BENCH_MAX: Duration = Duration::from_secs(300);

/// Runs two rounds, each long enough that a request ends in it; on a busy machine, none may end in
/// a short one.
fn bench(arguments: &[&str]) -> Value {
    let mut document = Value::Null;
    for seconds in ["0.2", "1", "3"] {
        let quick = ["bench", "--json", "--rounds", "2", "--warm-up", "0.05", "--seconds", seconds];
        let output = run_within(&[&quick[..], arguments].concat(), BENCH_MAX);
        assert_exit(&output, 0);
        document = json(&output);
        let mut results = document["results"].as_array().unwrap().iter();
        if results.all(|result| result["iops"]["least"].as_f64().is_some_and(|iops| iops > 0.0)) {
            return document;
        }
    }
    panic!("nothing is measured: {document}");
}

fn number(value: &Value) -> f64 {
    value.as_f64().unwrap_or_else(|| panic!("{value}"))
}

/// Goal: every combination is measured on every disk, with the requested number of connections, and
/// the figures are consistent.
#[test]
fn every_combination_is_measured() {
    let server = Server::start(&["mem:4M"]);
    let scratch = Scratch::new("bench");
    let file = scratch.file("disk.img", &vec![1; 1 << 20]);
    let document = bench(&[
        &server.lun(0),
        &file,
        "--depth",
        "1,8",
        "--connections",
        "1,3",
        "--io-size",
        "4K,64K",
    ]);
    let results = document["results"].as_array().unwrap();
    assert_eq!(results.len(), 2 * 2 * 2 * 2);
    for (index, result) in results.iter().enumerate() {
        let remote = index % 2 == 0;
        let connections = if index / 4 % 2 == 0 { 1 } else { 3 };
        assert_eq!(result["connections"].as_u64(), remote.then_some(connections), "{result}");
        assert_eq!(result["depth"], if index / 2 % 2 == 0 { 1 } else { 8 });
        assert_eq!(result["io_bytes"], if index < 8 { 4096 } else { 65536 });
        let (iops, rate) = (&result["iops"], &result["bytes_per_second"]);
        let expected = number(&iops["median"]) * number(&result["io_bytes"]);
        assert!((number(&rate["median"]) / expected - 1.0).abs() < 1e-6, "{result}");
        assert!(number(&iops["least"]) <= number(&iops["median"]), "{result}");
        assert!(number(&iops["median"]) <= number(&iops["most"]), "{result}");
        let latency = &result["latency_us"];
        let times = ["p50", "p99", "p99_9", "max"].map(|key| number(&latency[key]));
        assert!(times[0] > 0.0 && times.is_sorted(), "{latency}");
        assert!(number(&latency["requests"]) > 0.0);
        assert!(number(&result["client_cpu_us_per_request"]["median"]) > 0.0);
    }
    assert_eq!(
        std::fs::read(&file).unwrap(),
        vec![1; 1 << 20],
        "a benchmark that reads changes nothing"
    );
    assert_exit(&server.stop().0, 0);
}

/// Goal: write patterns write within the range; a fixed rate is kept and not exceeded.
#[test]
fn writes_stay_in_the_range_and_a_rate_is_kept() {
    let before = pattern(5, 4 << 20);
    let server = Server::start(&["mem:4M"]);
    let url = server.lun(0);
    assert_exit(&crate::common::run_with_input(&["write", &url], &before), 0);
    let document = bench(&[&url, "--pattern", "rand-write,write", "--size", "1M", "--depth", "4"]);
    assert_eq!(document["results"].as_array().unwrap().len(), 2);
    let after = run(&["read", &url]).stdout;
    assert!(after[..1 << 20] != before[..1 << 20], "written");
    assert!(after[1 << 20..] == before[1 << 20..], "nothing behind the range is written");

    let document = bench(&[&url, "--iops", "200", "--depth", "16"]);
    let result = &document["results"][0];
    // On a busy machine, requests due in the warm-up may come late, but no others.
    assert!((1.0..=255.0).contains(&number(&result["iops"]["most"])), "{result}");
    assert_exit(&server.stop().0, 0);
}

/// Goal: human output is a table with a row for each disk, and a ratio; invalid options are
/// refused.
#[test]
fn the_human_format_is_a_table() {
    let arguments = ["bench", "mem:1M", "mem:2M", "--depth", "1", "--seconds", "1"];
    let output = run(&[&arguments[..], &["--compare", "--rounds", "1"]].concat());
    assert_exit(&output, 0);
    let text = printed(&output);
    let lines: Vec<_> = text.lines().collect();
    assert_eq!(lines.len(), 3, "{text}");
    assert!(lines[0].starts_with("pattern") && lines[0].contains("p99.9       max"), "{text}");
    assert!(lines[1].ends_with("  1.00  mem:1M") && lines[2].ends_with("  mem:2M"), "{text}");
    for (wrong, status, why) in [
        (["mem:1M", "--depth", "0"], 2, "must be 1 to 4096, not 0"),
        (["mem:64M", "--io-size=16M", "--depth=65"], 2, "exceed the maximum of 1073741824 bytes"),
        (["mem:1M", "--io-size", "1000"], 2, "requests of 1000 bytes"),
        (["mem:1M", "--size", "2M"], 2, "the range of 2097152 bytes"),
        (["mem:1M", "--seconds", "0"], 2, "too short"),
        (["mem:1M", "--seconds", "long"], 2, "a number of seconds"),
        // An invalid value after a valid one is found before the valid one is measured.
        (["mem:1M", "--io-size", "4K,1000"], 2, "mem:1M: requests of 1000 bytes"),
        (["mem:1M", "--depth", "4,5000"], 2, "must be 1 to 4096, not 5000"),
        (["nowhere.img", "--depth", "1"], 1, "nowhere.img"),
    ] {
        let output = run(&[&["bench"], &wrong[..]].concat());
        assert_exit(&output, status);
        let stderr = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(stderr.contains(why), "{wrong:?}: {stderr}");
        assert!(output.stdout.is_empty(), "{wrong:?}: {}", printed(&output));
    }
}
