//! SIGTERM with initiators connected: they are notified, commands finish, connections close within
//! five seconds, no data is lost.

use anyhow::{Result, ensure};
use lunar_lab::peers::lunar::Lunar;
use lunar_lab::system::process::ServerProcess;
use lunar_lab::system::scratch::Scratch;
use lunar_testkit::raw::{RawAnswer, RawClient, opcode};
use std::time::Duration;

const TARGET: &str = "iqn.2026-11.org.lunarsan.test:stopping";
/// Limit of a stop: five seconds are promised for the sessions; the rest is for a busy machine.
const STOP_MAX: Duration = Duration::from_secs(6);
/// Limit of a wait; longer than a busy machine needs.
const WAIT_MAX: Duration = Duration::from_secs(60);
const TRIES: usize = 3;

fn serve(scratch: &Scratch) -> Result<Lunar> {
    let disk = scratch.path("disk.img");
    Lunar::serve(&[&disk, "--size", "256M", "--name", TARGET])
}

/// Goal: initiators that stay silent do not delay the stop; each receives an Asynchronous Message
/// before its connection is closed. RFC 7143 §11.9.
#[test]
fn silent_initiators_are_informed_and_disconnected() -> Result<()> {
    stops_in_time(stop_with_silent_initiators)
}

/// Repeats a stop until one is in time; fails if none is.
fn stops_in_time(stop: fn() -> Result<Duration>) -> Result<()> {
    let mut times = Vec::new();
    while times.len() < TRIES {
        let took = stop()?;
        if took < STOP_MAX {
            return Ok(());
        }
        times.push(took);
    }
    anyhow::bail!("it took {times:?}")
}

fn stop_with_silent_initiators() -> Result<Duration> {
    let scratch = Scratch::new("stop-silent")?;
    let lunar = serve(&scratch)?;
    let mut sessions = Vec::new();
    for number in 0..3 {
        let mut raw = RawClient::log_in_as(lunar.address(), TARGET, number)?;
        raw.read_block(0)?;
        sessions.push(raw);
    }
    let stuck_in_login = RawClient::connect(lunar.address())?;
    let took = lunar.stop(WAIT_MAX)?;
    for raw in &mut sessions {
        let mut is_informed = false;
        loop {
            match raw.answer(Duration::from_secs(1))? {
                RawAnswer::Pdu(pdu) => is_informed |= pdu.opcode() == opcode::ASYNC_MESSAGE,
                RawAnswer::Closed => break,
                RawAnswer::TimedOut => {
                    anyhow::bail!("a connection is still open after the server has stopped")
                }
            }
        }
        ensure!(is_informed, "a session was closed without an Asynchronous Message");
    }
    drop(stuck_in_login);
    Ok(took)
}

/// Goal: a server under load stops in time too. Method: iscsi-perf reads at depth 32 meanwhile.
#[test]
fn a_busy_server_stops() -> Result<()> {
    stops_in_time(stop_under_load)
}

fn stop_under_load() -> Result<Duration> {
    let scratch = Scratch::new("stop-busy")?;
    let lunar = serve(&scratch)?;
    let url = lunar.url(TARGET, 0);
    let load =
        ServerProcess::start("iscsi-perf", &["-r", "-m", "32", "-b", "8", "-t", "60", &url])?;
    std::thread::sleep(Duration::from_secs(2));
    let took = lunar.stop(WAIT_MAX)?;
    drop(load);
    Ok(took)
}

/// Goal: data acknowledged before the stop is there after a start.
#[test]
fn a_restart_keeps_the_data() -> Result<()> {
    let scratch = Scratch::new("restart")?;
    let limit = Duration::from_secs(60);
    let lunar = serve(&scratch)?;
    let image = scratch.pattern("image.raw", 5, 256 << 20)?;
    let url = lunar.url(TARGET, 0);
    let convert = ["convert", "-n", "-f", "raw", "-O", "raw", &image, &url];
    lunar_lab::system::process::run_checked("qemu-img", &convert, limit)?;
    lunar.stop(WAIT_MAX)?;
    let lunar = serve(&scratch)?;
    let url = lunar.url(TARGET, 0);
    let compare = ["compare", "-f", "raw", "-F", "raw", &image, &url];
    lunar_lab::system::process::run_checked("qemu-img", &compare, limit)?;
    Ok(())
}
