//! From a signal to the end: sessions are told, commands finish, disks are synced.

use crate::notify;
use crate::output::Failure;
use lunar_control::Caller;
use lunar_control::daemon::{ApplyOptions, Daemon, Origin, Source};
use lunar_control::http::HttpServer;
use lunar_target::ShutdownReport;
use std::convert::Infallible;
use std::io::Write;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;
use tokio::signal::unix::{Signal, SignalKind, signal};

/// How long initiators have to log out.
const GRACE: Duration = Duration::from_secs(5);

/// Signals this soon after the first are the same one: what a terminal sends to a group of
/// processes, `make` and `timeout` send to their child once more.
const ONE_SIGNAL: Duration = Duration::from_secs(1);

/// SIGINT, SIGTERM and SIGHUP, caught from now on.
#[derive(Debug)]
pub struct Signals {
    interrupt: Signal,
    terminate: Signal,
    /// None where whoever started us has us ignore it (`nohup`).
    hangup: Option<Signal>,
    means: Hangup,
    /// There is a terminal that may be closed.
    terminal: bool,
}

/// What SIGHUP means.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Hangup {
    /// The terminal is closed: the end.
    Ends,
    /// Apply the configuration again, or the end: that the terminal is closed says the same signal.
    Applies,
}

/// What a signal asks for.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum Asked {
    End,
    Apply,
}

impl Signals {
    /// Catches them; within a runtime.
    ///
    /// # Errors
    /// When the system refuses.
    pub fn catch(means: Hangup) -> Result<Self, Failure> {
        let catch = |kind| {
            signal(kind).map_err(|error| Failure::new(format!("cannot catch signals: {error}")))
        };
        let interrupt = catch(SignalKind::interrupt())?;
        let terminate = catch(SignalKind::terminate())?;
        let survives = ignores_hangup();
        let terminal = !survives && has_terminal();
        let hangup = match means == Hangup::Ends && survives {
            true => None,
            false => Some(catch(SignalKind::hangup())?),
        };
        Ok(Self { interrupt, terminate, hangup, means, terminal })
    }

    /// The next one.
    async fn next(&mut self) -> Asked {
        let hangup = async {
            match &mut self.hangup {
                Some(hangup) => hangup.recv().await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            _ = hangup => match self.means {
                Hangup::Ends => Asked::End,
                Hangup::Applies if self.terminal && !has_terminal() => Asked::End,
                Hangup::Applies => Asked::Apply,
            },
            _ = self.interrupt.recv() => Asked::End,
            _ = self.terminate.recv() => Asked::End,
        }
    }

    /// The next one that asks for the end.
    async fn end(&mut self) {
        while self.next().await != Asked::End {}
    }

    /// The next one that somebody meant as a further one.
    async fn second(&mut self) {
        let first = tokio::time::Instant::now();
        self.end().await;
        while first.elapsed() < ONE_SIGNAL {
            self.end().await;
        }
    }
}

/// Whether SIGHUP is ignored already: the first bit of the mask that the system shows.
fn ignores_hangup() -> bool {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let mask = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    mask.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok())
        .is_some_and(|mask| mask & 1 != 0)
}

/// Whether we belong to a terminal: one that was closed cannot be opened any more.
fn has_terminal() -> bool {
    std::fs::File::open("/dev/tty").is_ok()
}

/// Serves until a signal comes that means the end, then ends in good order.
///
/// # Errors
/// When a disk could not be synced, or a second signal cut the end short: data may be lost.
pub async fn serve_until_signal(
    daemon: Arc<Daemon>,
    api: Option<HttpServer>,
    mut signals: Signals,
) -> Result<(), Failure> {
    let turn = Arc::new(Turn::default());
    while signals.next().await == Asked::Apply {
        // One that waits has not read the file yet.
        if !turn.waits.swap(true, Ordering::AcqRel) {
            apply(&daemon, &turn);
        }
    }
    notify::stopping();
    say("stopping: initiators have 5 seconds to log out; a second signal gives up");
    let (done, report) = tokio::sync::oneshot::channel();
    // The server's end blocks; signals must still be heard meanwhile.
    std::thread::Builder::new()
        .name("shutdown".to_owned())
        .spawn(move || {
            // The API goes on: it refuses changes, and tells how far the end is.
            let report = daemon.shutdown(GRACE, &mut |progress| told(progress));
            drop(api);
            // When a second signal came, nobody waits for the report any more.
            let _ = done.send(report);
        })
        .map_err(|error| Failure::new(format!("cannot stop the server: {error}")))?;
    tokio::select! {
        report = report => match report {
            Ok(report) => judge(&report),
            Err(_) => Err(Failure::new("the server's end failed: data may not be on the disks")),
        },
        never = extend() => match never {},
        () = signals.second() => {
            say("GIVEN UP at the second signal");
            Err(Failure::new("stopped before the end: acknowledged writes may be lost")
                .hint("send one signal, and wait for the final sync"))
        }
    }
}

/// Whose turn it is to apply the file: however many signals come, one applies it and one waits.
#[derive(Debug, Default)]
struct Turn {
    applies: Mutex<()>,
    waits: AtomicBool,
}

/// Applies the daemon's own file, on a thread of its own: signals must still be heard meanwhile.
fn apply(daemon: &Arc<Daemon>, turn: &Arc<Turn>) {
    let (daemon, turns) = (Arc::clone(daemon), Arc::clone(turn));
    let thread = std::thread::Builder::new().name("apply".to_owned()).spawn(move || {
        let _alone = turns.applies.lock().unwrap_or_else(PoisonError::into_inner);
        turns.waits.store(false, Ordering::Release);
        notify::reloading();
        let applied = daemon.apply(&Source::OwnFile, ApplyOptions::default(), &Caller::Signal);
        match (applied, daemon.origin()) {
            (Ok(applied), Origin::File { path: file, .. }) => {
                let changes = applied.difference.changes.len();
                let told = format!("{} applied, changes: {changes}", file.display());
                notify::ready(&told);
                say(&told);
                say_lines(applied.difference.changes.iter().map(|change| change.line.as_str()));
            }
            (Ok(_), Origin::Arguments) => notify::ready(""),
            (Err(failure), _) => {
                let told = format!("not applied: {failure}");
                notify::ready(&told);
                say(&told);
                let parts = failure.parts.iter();
                say_lines(parts.flat_map(|parts| &parts.lines).map(String::as_str));
            }
        }
    });
    if let Err(error) = thread {
        turn.waits.store(false, Ordering::Release);
        say(&format!("not applied: no thread for it: {error}"));
    }
}

fn say_lines<'l>(lines: impl Iterator<Item = &'l str>) {
    lines.for_each(|line| say(&format!("  {line}")));
}

/// Asks the service manager for patience, without end.
async fn extend() -> Infallible {
    loop {
        tokio::time::sleep(notify::EXTEND_EVERY).await;
        notify::extend();
    }
}

/// Progress, for people and for the service manager.
fn told(progress: &str) {
    notify::status(progress);
    say(progress);
}

fn judge(report: &ShutdownReport) -> Result<(), Failure> {
    if report.connections_cut > 0 {
        say(&format!("{} connections were cut: they did not log out", report.connections_cut));
    }
    if report.failed_syncs.is_empty() {
        say("stopped");
        return Ok(());
    }
    let failed: Vec<_> =
        report.failed_syncs.iter().map(|(unit, why)| format!("{unit}: {why}")).collect();
    Err(Failure::new(format!("the final sync failed: {}", failed.join("; ")))
        .hint("treat what was written since the last successful flush as lost"))
}

fn say(text: &str) {
    // Nobody is left to tell when stderr is closed.
    let _ = writeln!(std::io::stderr().lock(), "lunar: {text}");
}
