//! SIGKILL under load, at moments that a seed determines, and a start at the same port: what was
//! acknowledged is in the file, whole, and who is connected meanwhile sees latency, not errors.
//!
//! `LUNAR_KILL_ROUNDS` (5) and `LUNAR_SEED` (by chance) say how often and which.

#[path = "kill/load.rs"]
mod load;

use anyhow::{Context, Result, ensure};
use interop::lunar::Lunar;
use interop::process::{End, run};
use interop::scratch::{Random, Scratch};
use load::{Load, Totals};
use rustix::process::Signal;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

const TARGET: &str = "iqn.2026-11.org.lunarsan.test:kill";
const ROUNDS: u64 = 5;
/// Much longer than a restart takes anybody.
const WAIT_MAX: Duration = Duration::from_secs(60);

/// How a round's disk is served.
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

/// QEMU at work on a disk, in one program after the other, until told to stop.
struct Qemu {
    stop: Arc<AtomicBool>,
    runs: Arc<AtomicU64>,
    thread: JoinHandle<Result<Duration>>,
}

impl Qemu {
    fn start(url: String) -> Self {
        let (stop, runs) = (Arc::<AtomicBool>::default(), Arc::<AtomicU64>::default());
        let (until, count) = (Arc::clone(&stop), Arc::clone(&runs));
        let thread = thread::spawn(move || {
            let mut longest = Duration::ZERO;
            while !until.load(Ordering::Relaxed) {
                let turn = count.fetch_add(1, Ordering::Relaxed);
                longest = longest.max(if turn.is_multiple_of(2) {
                    Self::bench(&url)?
                } else {
                    Self::patterns(&url, turn)?
                });
            }
            Ok(longest)
        });
        Self { stop, runs, thread }
    }

    /// Writes at depth 8.
    fn bench(url: &str) -> Result<Duration> {
        let arguments = ["bench", "-f", "raw", "-t", "none", "-w", "-c", "1500", "-d", "8"];
        Self::run("qemu-img", &[&arguments[..], &["-s", "4096", url]].concat())
    }

    /// Writes, flushes and reads back.
    fn patterns(url: &str, turn: u64) -> Result<Duration> {
        let mut commands = Vec::new();
        for step in 0..60 {
            let (byte, at) = (1 + (turn + step) % 255, (step % 16) * 256);
            commands.push(format!("write -P {byte} {at}k 64k"));
            if step % 8 == 0 {
                commands.push("flush".to_owned());
            }
            commands.push(format!("read -P {byte} {at}k 64k"));
        }
        let mut arguments = vec!["-f", "raw", "-t", "none"];
        arguments.extend(commands.iter().flat_map(|command| ["-c", command]));
        arguments.push(url);
        Self::run("qemu-io", &arguments)
    }

    fn run(program: &str, arguments: &[&str]) -> Result<Duration> {
        let finished = run(program, arguments, WAIT_MAX)?;
        let told = ["failed", "Failed", "Error", "error"];
        let clean = told.iter().all(|word| !finished.stdout.contains(word));
        ensure!(finished.succeeded() && clean, "{program} met an error: {}", finished.outputs());
        Ok(finished.took)
    }

    /// Waits for its last program; returns how many there were, and how long the longest took.
    fn finish(self) -> Result<(u64, Duration)> {
        self.stop.store(true, Ordering::Relaxed);
        let longest =
            self.thread.join().map_err(|_| anyhow::anyhow!("QEMU's thread panicked"))??;
        Ok((self.runs.load(Ordering::Relaxed), longest))
    }
}

/// One kill under load.
fn round(scratch: &Scratch, number: u64, seed: u64, totals: &mut Totals) -> Result<()> {
    let profile = PROFILES[(number % PROFILES.len() as u64) as usize];
    let mut random = Random(seed ^ number);
    let (disk, other) = (scratch.path("disk.img"), scratch.path("qemu.img"));
    let head = [disk.as_str(), other.as_str(), "--size", "64M", "--name", TARGET];
    let arguments = [&head[..], profile].concat();
    let mut lunar = Lunar::serve(&arguments)?;
    let address = lunar.address().to_owned();
    let may_lose_cache = profile.contains(&"write-back");
    let load = Load::start(&lunar.url(TARGET, 0), random.next_u64(), may_lose_cache)?;
    let qemu = Qemu::start(lunar.url(TARGET, 1));

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
    let (qemu_runs, qemu_longest) = qemu.finish().context("QEMU across the restart")?;
    totals.qemu_runs += qemu_runs;
    totals.qemu_longest = totals.qemu_longest.max(qemu_longest);
    load.finish(&disk, totals).context("our initiator across the restart")?;
    lunar.stop(WAIT_MAX)?;
    Ok(())
}

/// Goal: a server killed at any moment has lost nothing it acknowledged, and torn nothing; our
/// initiator and QEMU's, connected across kill and start, see no error.
/// Method: 32 writers of our initiator, each with a part of the disk and one write in flight;
/// QEMU's programs on another LUN; in each round another cache mode and way of I/O.
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
