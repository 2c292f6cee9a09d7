//! Progress of long work: a bar on a terminal, else a line at intervals, always on stderr.

use crate::output;
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use std::io::{self, IsTerminal, Write};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

/// Interval of lines without a terminal.
const LINE_INTERVAL: Duration = Duration::from_secs(10);
/// Layout of the bar; a rate and the remaining time need two numbers with units.
const TEMPLATE: &str =
    "{msg} {wide_bar} {binary_bytes} of {binary_total_bytes}, {binary_bytes_per_sec}, {eta} left";

/// The bar on the terminal.
static VISIBLE_BAR: Mutex<Option<ProgressBar>> = Mutex::new(None);

fn show(bar: Option<ProgressBar>) {
    *VISIBLE_BAR.lock().unwrap_or_else(PoisonError::into_inner) = bar;
}

/// Stderr for the log: log lines are printed above the bar, not into it.
#[derive(Debug)]
pub struct LogWriter;

impl Write for LogWriter {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let shown = VISIBLE_BAR.lock().unwrap_or_else(PoisonError::into_inner).clone();
        let write = || io::stderr().write_all(bytes).map(|()| bytes.len());
        match shown {
            Some(bar) => bar.suspend(write),
            None => write(),
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(()) // stderr is not buffered
    }
}

/// Progress of work on a number of bytes.
#[derive(Debug)]
pub struct ProgressMeter {
    what: &'static str,
    bar: ProgressBar,
    /// Time of the last line; `None` on a terminal.
    last_line: Option<Mutex<Instant>>,
}

impl ProgressMeter {
    /// Starts the display; `what` names the work in one word.
    pub fn begin(what: &'static str, total_bytes: u64) -> Self {
        let terminal = std::io::stderr().is_terminal();
        let target = match terminal {
            true => ProgressDrawTarget::stderr(),
            false => ProgressDrawTarget::hidden(),
        };
        let bar = ProgressBar::with_draw_target(Some(total_bytes), target).with_message(what);
        if let Ok(style) = ProgressStyle::with_template(TEMPLATE) {
            bar.set_style(style);
        }
        show(terminal.then(|| bar.clone()));
        Self { what, bar, last_line: (!terminal).then(|| Mutex::new(Instant::now())) }
    }

    /// Adds bytes that are done.
    pub fn add(&self, bytes: u64) {
        self.bar.inc(bytes);
        self.print_line();
    }

    /// Sets the number of bytes that are done.
    pub fn set(&self, bytes: u64) {
        self.bar.set_position(bytes);
        self.print_line();
    }

    /// Without a terminal, prints a line if the last one is long ago.
    fn print_line(&self) {
        let Some(last_line) = &self.last_line else { return };
        let mut last_line = last_line.lock().unwrap_or_else(PoisonError::into_inner);
        if last_line.elapsed() >= LINE_INTERVAL {
            *last_line = Instant::now();
            let (done, all) = (self.bar.position(), self.bar.length().unwrap_or_default());
            eprintln!("{}: {} of {}", self.what, output::size(done), output::size(all));
        }
    }

    /// Resets the position: bytes after it have to be done again.
    pub fn reset_to(&self, bytes: u64) {
        self.bar.set_position(bytes);
    }
}

impl Drop for ProgressMeter {
    fn drop(&mut self) {
        show(None);
        self.bar.finish_and_clear();
    }
}
