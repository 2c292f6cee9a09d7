//! A sample of the adversary's attacks, each a few seconds long: the server must not hang, be
//! killed, pass its memory limit or lose data. `cargo run -p lunar-lab -- adversary` runs all of
//! them for longer.

use anyhow::{Context, Result, ensure};
use lunar_lab::adversary::attack::Attack;
use lunar_lab::adversary::attacker::Attacker;
use lunar_lab::adversary::attacks::all;
use lunar_lab::adversary::measurement::Measurement;
use lunar_lab::adversary::runner::{AttackOptions, run};
use lunar_lab::adversary::verdict::{Breach, breaches};
use lunar_lab::adversary::{server, table};
use lunar_load::ListeningProcess;
use rustix::process::{Pid, Signal, kill_process};
use std::fs::{File, OpenOptions, read_dir, read_link};
use std::io::Write;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

/// The sample: at least one attack for each fault that an earlier server had.
const SAMPLE: &[&str] = &[
    "benign-readers",
    "read-8m-edtl-1",
    "read-8m",
    "answers-by-bytes",
    "write-withheld-ordered",
    "reserve-out-withheld",
    "writes-8m-deep",
    "send-targets-unread",
    "login-c-bit",
    "sessions-1024-ordered",
    "sessions-1024-pings-ahead",
    "idle-connections-few-files",
    "registrations-by-isid",
    "compare-and-write-wide",
    "verify-64-sessions",
];

/// Lock for single runs, since each attack needs the whole machine.
static ONE_AT_A_TIME: Mutex<()> = Mutex::new(());

/// Maximum number of tries of an attack: on a busy machine a client may wait for a processor for
/// longer than it may wait for the server.
const TRIES: usize = 3;

fn options() -> AttackOptions {
    AttackOptions {
        quiet: Duration::from_millis(500),
        attack: Duration::from_secs(3),
        aftermath: Duration::from_millis(500),
        parent: server::default_parent(),
        seed: 17,
    }
}

/// Goal: the server withstands each attack of the sample.
/// Method: an attack that only delayed the client is tried again.
#[test]
fn the_server_withstands_a_sample() -> Result<()> {
    let _alone = ONE_AT_A_TIME.lock().unwrap_or_else(PoisonError::into_inner);
    let all = all();
    let mut failed = Vec::new();
    for name in SAMPLE {
        let attack = all.iter().find(|attack| attack.name == *name).context(*name)?;
        let mut tries = 0;
        loop {
            tries += 1;
            let measured = run(attack, &options()).with_context(|| (*name).to_owned())?;
            println!("{}", table::line(&measured));
            let found = breaches(&measured);
            let is_slow = |breach: &Breach| {
                matches!(breach, Breach::Stopped(_) | Breach::LockedOut(..) | Breach::Starved(_))
            };
            if found.is_empty() {
                break;
            }
            if tries == TRIES || !found.iter().all(is_slow) {
                failed.push(table::line(&measured));
                break;
            }
        }
    }
    ensure!(failed.is_empty(), "attacks that succeeded:\n{}", failed.join("\n"));
    Ok(())
}

/// Runs an attack that the test defines.
fn measure(act: fn(&Attacker) -> Result<()>) -> Result<Measurement> {
    let _alone = ONE_AT_A_TIME.lock().unwrap_or_else(PoisonError::into_inner);
    run(&Attack::new("test", 1, act).before_login(), &options())
}

/// Returns the process of the server.
fn process(attacker: &Attacker) -> Result<(u32, Pid)> {
    let owner = ListeningProcess::of_listener(attacker.server).context("no process listens")?;
    let number = Pid::from_raw(i32::try_from(owner.pid)?).context("no process")?;
    Ok((owner.pid, number))
}

/// Goal: a server that does not respond for three seconds counts as stopped.
/// Method: SIGSTOP and SIGCONT instead of an attack.
#[test]
fn a_server_that_stops_is_noticed() -> Result<()> {
    let measured = measure(|attacker| {
        let (_, server) = process(attacker)?;
        kill_process(server, Signal::STOP)?;
        std::thread::sleep(Duration::from_secs(3));
        Ok(kill_process(server, Signal::CONT)?)
    })?;
    let found = breaches(&measured);
    ensure!(found.iter().any(|breach| matches!(breach, Breach::Stopped(_))), "{found:?}");
    ensure!(found.iter().any(|breach| matches!(breach, Breach::LockedOut(..))), "{found:?}");
    Ok(())
}

/// Goal: a server that is killed counts as killed, and acknowledged data is still compared.
#[test]
fn a_server_that_is_killed_is_noticed() -> Result<()> {
    let measured = measure(|attacker| Ok(kill_process(process(attacker)?.1, Signal::KILL)?))?;
    let found = breaches(&measured);
    ensure!(matches!(found[..], [Breach::Killed(_)]), "{found:?}");
    Ok(())
}

/// Goal: data that changes without a write of the client is detected.
/// Method: the attack writes into the file of the shared disk.
#[test]
fn changed_data_is_detected() -> Result<()> {
    let measured = measure(|attacker| {
        let (number, _) = process(attacker)?;
        let mut disk = shared_disk(number)?;
        Ok(disk.write_all(&vec![0xba; 32 << 20])?)
    })?;
    let found = breaches(&measured);
    ensure!(found.iter().any(|breach| matches!(breach, Breach::Data(_))), "{found:?}");
    Ok(())
}

/// Opens the disk of the well-behaved client through the server process of this number.
fn shared_disk(server: u32) -> Result<File> {
    for entry in read_dir(format!("/proc/{server}/fd"))? {
        let path = entry?.path();
        if read_link(&path).is_ok_and(|target| target.ends_with("shared.img")) {
            return Ok(OpenOptions::new().write(true).open(path)?);
        }
    }
    anyhow::bail!("the server does not have it open")
}
