//! The load generator on libiscsi (lab/libiscsi), the other client of `cargo run --release -p
//! lunar-lab -- libiscsi`: its report matches its work.

use anyhow::{Result, ensure};
use lunar_lab::peers::load_programs::{build_generator, generator_data};
use lunar_lab::peers::lunar::{self, Lunar};
use lunar_lab::system::process;
use lunar_lab::system::scratch::Scratch;
use serde_json::Value;
use std::path::Path;
use std::time::Duration;

const TARGET: &str = "iqn.2026-11.org.lunarsan.test:load";
const LIMIT: Duration = Duration::from_secs(60);
const IO_BYTES: usize = 4096;
/// Number of offsets: few, so that a second reaches nearly all of them.
const BLOCKS: usize = 64;

/// Builds the generator.
fn generator(scratch: &Scratch) -> Result<String> {
    let path = scratch.path("libiscsi-load");
    let options = ["-O1", "-Wall", "-Wextra", "-Wconversion", "-Werror"];
    build_generator(Path::new(&path), &options)?;
    Ok(path)
}

/// Runs the generator for a second; returns its document and checks its figures.
fn run(generator: &str, arguments: &[&str]) -> Result<Value> {
    let common = ["--seconds", "1", "--warm-up", "0.1", "--depth", "8"];
    let text = process::run_checked(generator, &[&common[..], arguments].concat(), LIMIT)?;
    let document: Value = serde_json::from_str(&text)?;
    let figure = |path: &str| document.pointer(path).and_then(Value::as_f64).unwrap();
    assert!(figure("/requests") > 0.0, "{text}");
    assert!(figure("/iops") > 0.0 && figure("/bytes_per_second") > 0.0, "{text}");
    assert!((figure("/iops") * figure("/seconds") - figure("/requests")).abs() < 1.0, "{text}");
    let latency = ["p50", "p99", "p99_9", "max"].map(|name| figure(&format!("/latency_us/{name}")));
    assert!(latency.is_sorted() && latency[0] > 0.0 && figure("/latency_us/mean") > 0.0, "{text}");
    let cpu = figure("/cpu_seconds/user") + figure("/cpu_seconds/system");
    let each = figure("/client_cpu_us_per_request");
    // A few requests may take less time than the kernel's clock resolution.
    assert!(cpu >= 0.0 && (each * figure("/requests") / 1e6 - cpu).abs() < 1e-3, "{text}");
    Ok(document)
}

/// Goal: random and sequential writes arrive at their offsets, as our own `lunar read` shows; the
/// number of offsets that it reports as verified holds the content, the others hold zeroes.
#[test]
fn writes_arrive() -> Result<()> {
    let scratch = Scratch::new("libiscsi-load")?;
    let generator = generator(&scratch)?;
    for (pattern, seed) in [("rand-write", 7), ("write", 8)] {
        let server = Lunar::serve(&["mem:1M", "--name", TARGET])?;
        let url = server.url(TARGET, 0);
        let range = (BLOCKS * IO_BYTES).to_string();
        let seed_text = seed.to_string();
        let common = ["--pattern", pattern, "--range", &range, "--seed", &seed_text];
        let document = run(&generator, &[&common[..], &["--verify", &url]].concat())?;
        let (end, bytes, printed, _) = process::run_for_bytes(
            &lunar::binary()?,
            &["read", &url, "--length", "1M"],
            Vec::new(),
            LIMIT,
        )?;
        ensure!(bytes.len() == 1 << 20, "{end:?} {printed}");
        let written = (0..BLOCKS).filter(|index| {
            let held = &bytes[index * IO_BYTES..(index + 1) * IO_BYTES];
            assert!(
                held == generator_data(seed, *index, IO_BYTES)
                    || held.iter().all(|byte| *byte == 0)
            );
            held.iter().any(|byte| *byte != 0)
        });
        let written = written.count();
        assert!(written > 0, "{pattern} was written to {written} blocks");
        assert_eq!(document["verified"], written, "{pattern}");
        assert!(bytes[BLOCKS * IO_BYTES..].iter().all(|byte| *byte == 0), "{pattern}");
        server.stop(LIMIT)?;
    }
    Ok(())
}

/// Goal: reads are measured, also random ones with large requests.
#[test]
fn reads() -> Result<()> {
    let scratch = Scratch::new("libiscsi-load")?;
    let generator = generator(&scratch)?;
    let server = Lunar::serve(&["mem:16M", "--name", TARGET])?;
    let url = server.url(TARGET, 0);
    for (pattern, io_size) in [("rand-read", "4K"), ("read", "256K"), ("rand-read", "1M")] {
        let document = run(&generator, &["--pattern", pattern, "--io-size", io_size, &url])?;
        assert_eq!(document["verified"], 0);
    }
    server.stop(LIMIT)?;
    Ok(())
}

/// Goal: the generator reports errors and ends, where libiscsi alone would retry for ever: no
/// server, no such target, a server that dies meanwhile.
#[test]
fn the_generator_reports_errors_and_ends() -> Result<()> {
    let scratch = Scratch::new("libiscsi-load")?;
    let generator = generator(&scratch)?;
    let fails = |url: &str, part: &str| -> Result<()> {
        let finished = process::run(&generator, &["--seconds", "20", url], LIMIT)?;
        assert_eq!(finished.signal(), None);
        assert!(!finished.succeeded() && finished.stdout.is_empty(), "{}", finished.outputs());
        assert!(finished.stderr.contains(part), "{}", finished.outputs());
        assert!(finished.took < Duration::from_secs(15), "it took {:?}", finished.took);
        Ok(())
    };
    fails("iscsi://127.0.0.1:1/iqn.2026-11.org:none/0", "does a target listen there?")?;
    fails("http://127.0.0.1", "iscsi://")?;
    let api = format!("unix:{}", scratch.path("api.sock"));
    let server = Lunar::serve(&["mem:16M", "--name", TARGET, "--api", &api])?;
    fails(&server.url("iqn.2026-11.org:none", 0), "Target not found")?;
    let url = server.url(TARGET, 0);
    let killed = std::thread::spawn(move || {
        let logged_in = server.session();
        drop(server);
        logged_in
    });
    fails(&url, "session")?;
    killed.join().unwrap()?;
    Ok(())
}
