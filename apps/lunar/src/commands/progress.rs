//! How far long work is: a bar on a terminal, else a line now and then, always on stderr.

use crate::output;
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use std::io::{self, IsTerminal, Write};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

/// Between two lines where there is no terminal.
const LINE_EVERY: Duration = Duration::from_secs(10);
/// A rate and the time left need two numbers and their units.
const TEMPLATE: &str =
    "{msg} {wide_bar} {binary_bytes} of {binary_total_bytes}, {binary_bytes_per_sec}, {eta} left";

/// The bar that is on the terminal now.
static SHOWN: Mutex<Option<ProgressBar>> = Mutex::new(None);

fn show(bar: Option<ProgressBar>) {
    *SHOWN.lock().unwrap_or_else(PoisonError::into_inner) = bar;
}

/// Stderr for the log: its lines go above the bar, if there is one, and not into it.
#[derive(Debug)]
pub struct LogWriter;

impl Write for LogWriter {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let shown = SHOWN.lock().unwrap_or_else(PoisonError::into_inner).clone();
        let write = || io::stderr().write_all(bytes).map(|()| bytes.len());
        match shown {
            Some(bar) => bar.suspend(write),
            None => write(),
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(()) // standard error holds nothing back
    }
}

/// Work on so many bytes.
#[derive(Debug)]
pub struct Progress {
    what: &'static str,
    bar: ProgressBar,
    told: Option<Mutex<Instant>>,
}

impl Progress {
    /// Begins to show it; `what` is one word that says what is done.
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
        Self { what, bar, told: (!terminal).then(|| Mutex::new(Instant::now())) }
    }

    /// So many bytes more are done.
    pub fn add(&self, bytes: u64) {
        self.bar.inc(bytes);
        let Some(told) = &self.told else { return };
        let mut told = told.lock().unwrap_or_else(PoisonError::into_inner);
        if told.elapsed() >= LINE_EVERY {
            *told = Instant::now();
            let (done, all) = (self.bar.position(), self.bar.length().unwrap_or_default());
            eprintln!("{}: {} of {}", self.what, output::size(done), output::size(all));
        }
    }

    /// No more than so many bytes are done: the rest has to be done again.
    pub fn back_to(&self, bytes: u64) {
        self.bar.set_position(bytes);
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        show(None);
        self.bar.finish_and_clear();
    }
}
