//! SIGKILL under load, at moments that a seed determines, and a start at the same port:
//! acknowledged data is in the file, whole, and connected clients see latency, not errors.
//!
//! `LUNAR_KILL_ROUNDS` (5) sets the number of rounds, `LUNAR_SEED` (random) their seed.

mod load;
mod qemu;

use anyhow::{Context, Result, ensure};
use load::{Load, Totals};
use lunar_lab::peers::lunar::Lunar;
use lunar_lab::random::Random;
use lunar_lab::system::ports::free_port;
use lunar_lab::system::process::End;
use lunar_lab::system::scratch::Scratch;
use qemu::Qemu;
use rustix::process::Signal;
use std::thread;
use std::time::{Duration, Instant};

const TARGET: &str = "iqn.2026-11.org.lunarsan.test:kill";
const ROUNDS: u64 = 5;
/// Time limit much longer than any client needs after a restart.
const WAIT_MAX: Duration = Duration::from_secs(60);

/// Options of a round's disk.
const PROFILES: [&[&str]; 4] = [
    &["--cache", "write-through", "--io", "buffered"],
    &["--cache", "write-back", "--io", "buffered"],
    &["--cache", "write-through", "--io", "direct"],
    &["--cache", "write-back", "--io", "direct"],
];

fn number(variable: &str) -> Result<Option<u64>> {
    match std::env::var(variable) {
        Ok(text) => Ok(Some(text.parse().with_context(|| format!("{variable}={text}"))?)),
        Err(_) => Ok(None),
    }
}

/// Runs one kill under load.
fn round(scratch: &Scratch, number: u64, seed: u64, totals: &mut Totals) -> Result<()> {
    let profile = PROFILES[(number % PROFILES.len() as u64) as usize];
    let mut random = Random::new(seed ^ number);
    let (disk, other) = (scratch.path("disk.img"), scratch.path("qemu.img"));
    let head = [disk.as_str(), other.as_str(), "--size", "64M", "--name", TARGET];
    let arguments = [&head[..], profile].concat();
    let address = format!("127.0.0.1:{}", free_port()?);
    let mut lunar = Lunar::serve_on(&address, &arguments)?;
    let may_lose_cache = profile.contains(&"write-back");
    let load = Load::start(&lunar.url(TARGET, 0), random.next_u64(), may_lose_cache)?;
    let qemu = Qemu::start(&lunar.url(TARGET, 1), WAIT_MAX)?;

    thread::sleep(Duration::from_millis(200 + random.below(1000)));
    lunar.server().signal(Signal::KILL)?;
    let end = lunar.server().wait(WAIT_MAX)?;
    ensure!(end != End::TimedOut, "SIGKILL did not end it");
    load.wait_until_still(WAIT_MAX)?;
    totals.unanswered += load.unanswered();
    totals.verified += load.verify(&disk).context("after the kill, before the start")?;

    thread::sleep(Duration::from_millis(random.below(500)));
    let lunar = Lunar::serve_on(&address, &arguments)?;
    load.wait_until_all_went_on(WAIT_MAX)?;
    let qemu = qemu.finish(WAIT_MAX).context("QEMU across the restart")?;
    totals.qemu_commands += qemu.commands;
    totals.qemu_longest = totals.qemu_longest.max(qemu.longest);
    load.finish(&disk, totals).context("our initiator across the restart")?;
    lunar.stop(WAIT_MAX)?;
    Ok(())
}

/// Goal: a server killed at any moment has lost no acknowledged data, and torn none; our initiator
/// and QEMU's, connected across kill and start, see no error.
/// Method: 32 writers of our initiator, each with a part of the disk and one write in flight; one
/// `qemu-io` on another LUN; in each round another cache mode and I/O mode.
#[test]
fn acknowledged_means_kept() -> Result<()> {
    let rounds = number("LUNAR_KILL_ROUNDS")?.unwrap_or(ROUNDS);
    let clock = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH)?;
    let seed = number("LUNAR_SEED")?.unwrap_or(clock.as_nanos() as u64);
    println!("LUNAR_SEED={seed} LUNAR_KILL_ROUNDS={rounds}");
    let began = Instant::now();
    let scratch = Scratch::new("kill")?;
    let mut totals = Totals::default();
    for number in 0..rounds {
        round(&scratch, number, seed, &mut totals)
            .with_context(|| format!("round {number}, LUNAR_SEED={seed}"))?;
    }
    println!("{rounds} kills in {:.0?}: {totals}", began.elapsed());
    ensure!(totals.acknowledged > 0 && totals.unanswered > 0, "the load was none: {totals}");
    Ok(())
}
