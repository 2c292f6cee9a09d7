//! Limits of the real binary in real time: a limited LUN gets its limit, another LUN of the same
//! session gets the rest of the machine. However busy the machine is, nothing exceeds its limit;
//! the lower bound depends on the machine and is tested with the simulated clock of `quota`.

use crate::common::{Scratch, Server, assert_exit, lunar, printed, run};
use lunar_block::{BlockDevice, BlockRange};
use lunar_initiator::{Initiator, RemoteDisk, SessionOptions, Unit, Url};
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::task::JoinSet;

const SECONDS: u64 = 2;
const DEPTH: usize = 16;

/// Reads `blocks` blocks at a time from two LUNs of one session concurrently; returns the commands
/// per second of each.
fn rates(portal: &str, target: &str, blocks: u64) -> [f64; 2] {
    let url: Url = format!("{portal}/{target}/0").parse().unwrap();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let options = SessionOptions::new("iqn.2026-11.org.lunarsan:limits");
        let session = Initiator::connect(&url, &options).await.unwrap();
        let begin = Instant::now();
        let until = begin + Duration::from_secs(SECONDS);
        let load = |lun: u16| {
            let (session, url) = (session.clone(), url.clone());
            async move {
                let unit = Unit::new(session.clone(), lun);
                let disk = Arc::new(RemoteDisk::open(unit, &url).await.unwrap());
                let mut all = JoinSet::new();
                for _ in 0..DEPTH {
                    all.spawn(read(Arc::clone(&disk), session.clone(), blocks, until));
                }
                let done: u32 = all.join_all().await.into_iter().sum();
                f64::from(done) / begin.elapsed().as_secs_f64()
            }
        };
        let (first, second) = tokio::join!(load(0), load(1));
        session.log_out().await.unwrap();
        [first, second]
    })
}

/// Reads sequentially; returns the number of reads.
async fn read(disk: Arc<RemoteDisk>, session: Initiator, blocks: u64, until: Instant) -> u32 {
    let mut done = 0;
    while Instant::now() < until {
        let buffer = session.pool().take(blocks as usize * 512);
        disk.read(BlockRange::new(0, blocks), buffer).await.unwrap();
        done += 1;
    }
    done
}

/// Duration of the burst that may pass after a pause.
const BURST_SECONDS: f64 = 0.05;

/// The maximum rate under a limit: its burst, and one command that exceeds the rest of the limit,
/// are added.
fn rate_max(limit: f64) -> f64 {
    limit + (limit * BURST_SECONDS + 1.0) / SECONDS as f64
}

/// Number of attempts: an unlimited LUN gets more, and LUNs that share a limit get fair shares,
/// unless the machine is busy, which is unlikely in so many consecutive attempts.
const TRIES: usize = 5;

fn assert_limited(rates: impl Fn() -> [f64; 2], limit: f64) {
    let mut measured = Vec::new();
    for _ in 0..TRIES {
        let [limited, free] = rates();
        let bounds = 0.1 * limit..=rate_max(limit);
        assert!(bounds.contains(&limited), "{limited}/s instead of {limit}/s");
        if free > 1.5 * limited {
            return;
        }
        measured.push([limited, free]);
    }
    panic!("with a limit of {limit}/s and without: {measured:?}");
}

/// Goal: the keys of a configuration limit the objects they name, and no others.
#[test]
fn a_configured_limit_is_kept_and_used() {
    let scratch = Scratch::new("limits");
    for limit in [
        "limit = { iops = 100 }",
        "initiator_limit = [{ initiator = \"iqn.2026-11.org.lunarsan:LIMITS\", iops = 100 }]",
        "limit = { iops = 100000, bandwidth = \"13.107Mbit\" }", // 100 times 16 KiB
    ] {
        let file = scratch.file(
            "lunar.toml",
            format!(
                "[listen]\nportals = [\"127.0.0.1:0\"]\n[data_path]\ncores = 1\n\
                 [[target]]\nname = \"iqn.2026-11.org.example:t\"\n\
                 [[target.lun]]\nid = 0\ndevice = \"mem:16M\"\n{limit}\n\
                 [[target.lun]]\nid = 1\ndevice = \"mem:16M\"\n"
            )
            .as_bytes(),
        );
        let server = Server::start_command(lunar(&["target", "--config", &file]));
        let portal = server.portal();
        assert_limited(|| rates(&portal, "iqn.2026-11.org.example:t", 32), 100.0);
        assert_exit(&server.stop().0, 0);
    }
}

/// Goal: a target's limit applies to all LUNs together, for the named initiator.
#[test]
fn a_limit_of_a_target_is_for_all_its_luns() {
    let scratch = Scratch::new("target-limits");
    let file = scratch.file(
        "lunar.toml",
        b"[listen]\nportals = [\"127.0.0.1:0\"]\n\
          [[target]]\nname = \"iqn.2026-11.org.example:t\"\n\
          limit = [{ initiator = \"iqn.2026-11.org.lunarsan:other\", iops = 10 }, { iops = 200 }]\n\
          [[target.lun]]\nid = 0\ndevice = \"mem:16M\"\n\
          [[target.lun]]\nid = 1\ndevice = \"mem:16M\"\n",
    );
    let server = Server::start_command(lunar(&["target", "--config", &file]));
    let is_fair = || {
        let [first, second] = rates(&server.portal(), "iqn.2026-11.org.example:t", 8);
        let both = first + second;
        assert!(
            (20.0..=rate_max(200.0)).contains(&both),
            "{first}/s and {second}/s instead of 200/s"
        );
        first.min(second) > 0.5 * both / 2.0
    };
    assert!((0..TRIES).any(|_| is_fair()), "uneven shares each time");
    assert_exit(&server.stop().0, 0);
}

/// Goal: `lunar serve` limits each LUN, and reports a value that is too low.
#[test]
fn serve_limits() {
    let server = Server::start(&["mem:16M", "mem:8M", "--limit-iops", "100"]);
    let target = server.report["targets"][0]["name"].as_str().unwrap().to_owned();
    let [first, second] = rates(&server.portal(), &target, 8);
    for rate in [first, second] {
        assert!((10.0..=rate_max(100.0)).contains(&rate), "{rate}/s instead of 100/s");
    }
    assert_exit(&server.stop().0, 0);
    for (arguments, why) in [
        (["--limit-iops", "9"], "10.."),
        (["--limit-bandwidth", "9Mbit"], "the minimum is 10Mbit"),
        (["--limit-bandwidth", "fast"], "like 100Mbit"),
    ] {
        let output = run(&[&["serve", "mem:1M"], arguments.as_slice()].concat());
        assert_exit(&output, 2);
        let stderr = String::from_utf8_lossy(&output.stderr).into_owned() + &printed(&output);
        assert!(stderr.contains(why), "{stderr}");
    }
}
