//! Shutdown after a signal: sessions are logged out, commands finish, disks are synced.

use crate::notify;
use crate::output::Failure;
use lunar_control::Caller;
use lunar_control::daemon::{ApplyOptions, ConfigOrigin, ConfigSource, Daemon};
use lunar_control::http::HttpServer;
use lunar_target::ShutdownReport;
use std::convert::Infallible;
use std::io::Write;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;
use tokio::signal::unix::{Signal, SignalKind, signal};

/// Time for initiators to log out.
const GRACE: Duration = Duration::from_secs(5);

/// Signals within this time after the first count as the same one: when a terminal signals a group
/// of processes, `make` and `timeout` send the signal to their child again.
const REPETITION_TIME: Duration = Duration::from_secs(1);

/// Handlers of SIGINT, SIGTERM and SIGHUP.
#[derive(Debug)]
pub struct Signals {
    interrupt: Signal,
    terminate: Signal,
    /// `None` if the parent process has set SIGHUP to be ignored (`nohup`).
    hangup: Option<Signal>,
    on_hangup: HangupAction,
    /// Whether the process has a terminal, which may be closed.
    terminal: bool,
}

/// Effect of SIGHUP.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum HangupAction {
    /// Shuts down: the terminal was closed.
    Ends,
    /// Applies the configuration again; shuts down if the terminal was closed, which raises the
    /// same signal.
    Applies,
}

/// Action requested by a signal.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum SignalAction {
    End,
    Apply,
}

impl Signals {
    /// Installs the handlers; must be called within a runtime.
    ///
    /// # Errors
    /// Fails if the system refuses.
    pub fn catch(on_hangup: HangupAction) -> Result<Self, Failure> {
        let catch = |kind| {
            signal(kind).map_err(|error| Failure::new(format!("cannot catch signals: {error}")))
        };
        let interrupt = catch(SignalKind::interrupt())?;
        let terminate = catch(SignalKind::terminate())?;
        let is_ignored = ignores_hangup();
        let terminal = !is_ignored && has_terminal();
        let hangup = match on_hangup == HangupAction::Ends && is_ignored {
            true => None,
            false => Some(catch(SignalKind::hangup())?),
        };
        Ok(Self { interrupt, terminate, hangup, on_hangup, terminal })
    }

    /// Waits for the next signal.
    async fn next(&mut self) -> SignalAction {
        let hangup = async {
            match &mut self.hangup {
                Some(hangup) => hangup.recv().await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            _ = hangup => match self.on_hangup {
                HangupAction::Ends => SignalAction::End,
                HangupAction::Applies if self.terminal && !has_terminal() => SignalAction::End,
                HangupAction::Applies => SignalAction::Apply,
            },
            _ = self.interrupt.recv() => SignalAction::End,
            _ = self.terminate.recv() => SignalAction::End,
        }
    }

    /// Waits for the next signal that requests a shutdown.
    async fn wait_for_shutdown(&mut self) {
        while self.next().await != SignalAction::End {}
    }

    /// Waits for a further signal that is not a repetition of the first.
    async fn wait_for_repeated_shutdown(&mut self) {
        let first = tokio::time::Instant::now();
        self.wait_for_shutdown().await;
        while first.elapsed() < REPETITION_TIME {
            self.wait_for_shutdown().await;
        }
    }
}

/// Whether SIGHUP is ignored already: the first bit of the mask in `/proc/self/status`.
fn ignores_hangup() -> bool {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let mask = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    mask.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok())
        .is_some_and(|mask| mask & 1 != 0)
}

/// Whether the process has a terminal: after the terminal is closed, it cannot be opened.
fn has_terminal() -> bool {
    std::fs::File::open("/dev/tty").is_ok()
}

/// Serves until a signal or a request of the API asks for a shutdown, then shuts down in order.
///
/// # Errors
/// Fails if a disk could not be synced, or a second signal aborted the shutdown: data may be lost.
pub async fn serve_until_signal(
    daemon: Arc<Daemon>,
    api: Option<HttpServer>,
    mut signals: Signals,
) -> Result<(), Failure> {
    let state = Arc::new(ApplyState::default());
    loop {
        let action = tokio::select! {
            action = signals.next() => action,
            () = daemon.stop_requested() => SignalAction::End,
        };
        if action == SignalAction::End {
            break;
        }
        // An apply that waits has not read the file yet.
        if !state.is_waiting.swap(true, Ordering::AcqRel) {
            apply(&daemon, &state);
        }
    }
    notify::stopping();
    say("stopping: initiators have 5 seconds to log out; a second signal aborts the shutdown");
    let (done, report) = tokio::sync::oneshot::channel();
    // The server's shutdown blocks; signals must still be handled meanwhile.
    std::thread::Builder::new()
        .name("shutdown".to_owned())
        .spawn(move || {
            // The API stays up: it refuses changes, and reports the progress of the shutdown.
            let report = daemon.shutdown(GRACE, &mut |progress| log_progress(progress));
            drop(api);
            // After a second signal, the receiver of the report is gone.
            let _ = done.send(report);
        })
        .map_err(|error| Failure::new(format!("cannot stop the server: {error}")))?;
    tokio::select! {
        report = report => match report {
            Ok(report) => report_shutdown(&report),
            Err(_) => Err(Failure::new(
                "the shutdown failed because of an internal error: acknowledged writes may be lost",
            )),
        },
        never = extend() => match never {},
        () = signals.wait_for_repeated_shutdown() => {
            say("SHUTDOWN ABORTED by a second signal");
            Err(Failure::new(
                "the shutdown was aborted before it was complete: acknowledged writes may be lost",
            )
                .hint("next time, send one signal and wait for the final sync"))
        }
    }
}

/// State of applying the file: whatever the number of signals, one apply runs and one waits.
#[derive(Debug, Default)]
struct ApplyState {
    running: Mutex<()>,
    is_waiting: AtomicBool,
}

/// Applies the daemon's own file on another thread, as signals must still be handled meanwhile.
fn apply(daemon: &Arc<Daemon>, state: &Arc<ApplyState>) {
    let (daemon, shared) = (Arc::clone(daemon), Arc::clone(state));
    let thread = std::thread::Builder::new().name("apply".to_owned()).spawn(move || {
        let _guard = shared.running.lock().unwrap_or_else(PoisonError::into_inner);
        shared.is_waiting.store(false, Ordering::Release);
        notify::reloading();
        let applied =
            daemon.apply(&ConfigSource::OwnFile, ApplyOptions::default(), &Caller::Signal);
        match (applied, daemon.origin()) {
            (Ok(applied), ConfigOrigin::File { path: file, .. }) => {
                let changes = applied.difference.changes.len();
                let message = format!("{} applied, changes: {changes}", file.display());
                notify::ready(&message);
                say(&message);
                say_lines(applied.difference.changes.iter().map(|change| change.line.as_str()));
            }
            (Ok(_), ConfigOrigin::Arguments) => notify::ready(""),
            (Err(failure), _) => {
                let message = format!("configuration not applied: {failure}");
                notify::ready(&message);
                say(&message);
                let parts = failure.parts.iter();
                say_lines(parts.flat_map(|parts| &parts.lines).map(String::as_str));
            }
        }
    });
    if let Err(error) = thread {
        state.is_waiting.store(false, Ordering::Release);
        say(&format!("configuration not applied: cannot start a thread: {error}"));
    }
}

fn say_lines<'l>(lines: impl Iterator<Item = &'l str>) {
    lines.for_each(|line| say(&format!("  {line}")));
}

/// Extends the service manager's timeout repeatedly.
async fn extend() -> Infallible {
    loop {
        tokio::time::sleep(notify::EXTEND_EVERY).await;
        notify::extend();
    }
}

/// Reports progress to people and to the service manager.
fn log_progress(progress: &str) {
    notify::status(progress);
    say(progress);
}

fn report_shutdown(report: &ShutdownReport) -> Result<(), Failure> {
    if report.connections_cut > 0 {
        say(&format!(
            "{} connections closed: their initiators did not log out in time",
            report.connections_cut
        ));
    }
    if report.failed_syncs.is_empty() {
        say("stopped");
        return Ok(());
    }
    let failed: Vec<_> =
        report.failed_syncs.iter().map(|(unit, why)| format!("{unit}: {why}")).collect();
    Err(Failure::new(format!("the final sync failed: {}", failed.join("; ")))
        .hint("treat data written since the last successful flush as lost"))
}

fn say(text: &str) {
    // If stderr is closed, the text cannot be printed.
    let _ = writeln!(std::io::stderr().lock(), "lunar: {text}");
}
