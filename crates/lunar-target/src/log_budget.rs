//! Limits on log lines that peers can cause; otherwise a flood of them would fill the disk.

use lunar_net::Clock;
use lunar_wire::Time;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

/// Lines that may come at once.
const LINES_BURST: u32 = 20;
/// Time for each further line after the burst.
const LINE_INTERVAL: Duration = Duration::from_secs(1);

/// Budget of log lines of one kind.
#[derive(Debug)]
pub struct LogBudget(Mutex<State>);

#[derive(Debug)]
struct State {
    lines: u32,
    since: Time,
    suppressed: u64,
}

impl Default for LogBudget {
    fn default() -> Self {
        Self(Mutex::new(State { lines: LINES_BURST, since: Time::ZERO, suppressed: 0 }))
    }
}

impl LogBudget {
    /// Takes a line from the budget. Returns the number of lines left out before it, or `None` if
    /// this one is to be left out too.
    pub fn take_line(&self, now: Time) -> Option<u64> {
        let mut state = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let earned = now.since(state.since).as_nanos() / LINE_INTERVAL.as_nanos();
        if earned > 0 {
            let earned = u32::try_from(earned).unwrap_or(u32::MAX);
            state.lines = state.lines.saturating_add(earned).min(LINES_BURST);
            state.since = now;
        }
        if state.lines == 0 {
            state.suppressed += 1;
            return None;
        }
        state.lines -= 1;
        Some(std::mem::take(&mut state.suppressed))
    }
}

/// A budget for lines about errors of one unit, with its clock.
#[derive(Debug)]
pub(crate) struct ErrorLines {
    clock: Clock,
    budget: LogBudget,
}

impl Default for ErrorLines {
    fn default() -> Self {
        Self { clock: Clock::start(), budget: LogBudget::default() }
    }
}

impl ErrorLines {
    /// Writes a line, unless such lines come in a flood. `write` gets the number of lines left out
    /// before it, if there are any.
    pub(crate) fn write(&self, write: impl FnOnce(Option<u64>)) {
        if let Some(suppressed) = self.budget.take_line(self.clock.now()) {
            write((suppressed > 0).then_some(suppressed));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_burst_then_a_line_a_second() {
        let budget = LogBudget::default();
        let suppressed = |seconds: u64| -> Vec<u64> {
            let now = Time::ZERO.after(Duration::from_secs(seconds));
            (0..50).filter_map(|_| budget.take_line(now)).collect()
        };
        assert_eq!(suppressed(0), [0; LINES_BURST as usize]);
        assert_eq!(suppressed(1), [30]);
        assert_eq!(suppressed(3), [49, 0]);
        assert_eq!(suppressed(1000).len(), LINES_BURST as usize);
    }

    /// Goal: a peer that causes an error with each of its commands does not fill the log. The clock
    /// stands still.
    #[test]
    fn errors_in_a_flood_are_left_out() {
        let mut runtime = tokio::runtime::Builder::new_current_thread();
        runtime.enable_time().start_paused(true).build().unwrap().block_on(async {
            let (lines, mut written) = (ErrorLines::default(), Vec::new());
            for _ in 0..1000 {
                lines.write(|suppressed| written.push(suppressed));
            }
            assert_eq!(written, [None; LINES_BURST as usize]);
            tokio::time::advance(LINE_INTERVAL).await;
            lines.write(|suppressed| written.push(suppressed));
            assert_eq!(written.last(), Some(&Some(1000 - u64::from(LINES_BURST))));
        });
    }
}
