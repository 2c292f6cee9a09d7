//! Time limits and pauses for re-establishing a lost session.

use crate::{Error, ErrorKind};
use std::time::Duration;
use tokio::time::Instant;

/// First pause between two logins; doubled each time.
const PAUSE_MIN: Duration = Duration::from_millis(50);
/// Longest pause between two logins.
const PAUSE_MAX: Duration = Duration::from_secs(2);

/// Pauses between logins: they double up to a limit, each varied at random between a half and the
/// whole, so that the initiators of a restarted target do not all log in at once.
#[derive(Debug)]
pub(crate) struct Backoff {
    pause: Duration,
    random: u64,
}

impl Backoff {
    /// Starts with the shortest pause. The caller provides `entropy`.
    pub(crate) fn new(entropy: u64) -> Self {
        Self { pause: PAUSE_MIN, random: entropy | 1 }
    }

    /// Starts with the shortest pause and system entropy; without entropy all pauses are alike,
    /// which does no harm.
    pub(crate) fn with_system_entropy() -> Self {
        let mut entropy = [0; 8];
        let _ = getrandom::fill(&mut entropy);
        Self::new(u64::from_be_bytes(entropy))
    }

    /// Returns to the shortest pause.
    pub(crate) fn restart(&mut self) {
        self.pause = PAUSE_MIN;
    }

    pub(crate) fn next_pause(&mut self) -> Duration {
        // xorshift64: it suffices that two initiators differ.
        self.random ^= self.random << 13;
        self.random ^= self.random >> 7;
        self.random ^= self.random << 17;
        let half = self.pause / 2;
        let spread = half.as_micros() as u64;
        self.pause = (self.pause * 2).min(PAUSE_MAX);
        half + Duration::from_micros(self.random % (spread + 1))
    }
}

/// Deadline of one command for repetitions; starts with its first loss.
#[derive(Debug)]
pub(crate) struct RetryDeadline {
    recovery: Duration,
    /// The deadline, once it is set.
    until: Option<Instant>,
    /// The first loss.
    loss: Option<Error>,
    losses: u32,
    /// True when the command may have had an effect.
    sent: bool,
}

impl RetryDeadline {
    pub(crate) fn new(recovery: Duration) -> Self {
        Self { recovery, until: None, loss: None, losses: 0, sent: false }
    }

    /// Records that a session was lost, or found lost. Returns the deadline for the next one.
    ///
    /// # Errors
    /// The loss, when there is no time left.
    pub(crate) fn lost(&mut self, loss: Error) -> Result<Instant, Error> {
        let now = Instant::now();
        self.losses += 1;
        self.sent |= loss.kind == ErrorKind::SessionLost;
        self.loss.get_or_insert(loss);
        let until = *self.until.get_or_insert(now + self.recovery);
        if now < until { Ok(until) } else { Err(self.over("no login was attempted")) }
    }

    /// Returns the deadline, if a session was lost.
    pub(crate) fn until(&self) -> Option<Instant> {
        self.until
    }

    /// Returns the error for the end of the deadline. `tried` describes the attempts.
    pub(crate) fn over(&self, tried: &str) -> Error {
        let loss = self.loss.clone();
        let mut error = loss.unwrap_or_else(|| Error::new(ErrorKind::SessionLost, "lost"));
        error.kind = if self.sent { ErrorKind::SessionLost } else { ErrorKind::NotSent };
        if !self.recovery.is_zero() {
            let again = match self.losses {
                0 | 1 => String::new(),
                losses => format!(" (lost {losses} times)"),
            };
            let seconds = self.recovery.as_secs();
            error.what = format!(
                "{}{again}, and was not re-established within {seconds} s: {tried}",
                error.what
            );
            error.hint = Some(
                "check that the server is running, or use a longer --recovery-seconds to wait \
                 longer"
                    .to_owned(),
            );
        }
        error
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal: pauses grow to a limit and no further, and differ between initiators.
    #[test]
    fn pauses_double_and_are_spread() {
        let mut first = Backoff::new(1);
        let mut second = Backoff::new(2_000_003);
        let mut pause_max = PAUSE_MIN;
        let mut differ = 0;
        for _ in 0..100 {
            let (a, b) = (first.next_pause(), second.next_pause());
            for pause in [a, b] {
                assert!((pause_max / 2..=pause_max).contains(&pause), "{pause:?} of {pause_max:?}");
            }
            differ += u32::from(a != b);
            pause_max = (pause_max * 2).min(PAUSE_MAX);
        }
        assert_eq!(pause_max, PAUSE_MAX);
        assert!(differ > 90);
        assert!(Backoff::new(0).next_pause() <= PAUSE_MIN);
    }

    /// Goal: without recovery time there is no wait; the error shows whether the command was sent.
    #[test]
    fn without_recovery_time_a_loss_is_an_error() {
        let lost = Error::new(ErrorKind::SessionLost, "it closed the connection");
        let error = RetryDeadline::new(Duration::ZERO).lost(lost.clone()).unwrap_err();
        assert_eq!((error.kind, error.what.as_str()), (ErrorKind::SessionLost, &*lost.what));
        let error = RetryDeadline::new(Duration::ZERO).lost(lost.clone().not_sent()).unwrap_err();
        assert_eq!(error.kind, ErrorKind::NotSent);
        let mut deadline = RetryDeadline::new(Duration::from_secs(5));
        let until = deadline.lost(lost.clone().not_sent()).unwrap();
        assert_eq!(deadline.lost(lost).unwrap(), until, "the time runs from the first loss");
        let error = deadline.over("3 logins failed");
        assert_eq!(error.kind, ErrorKind::SessionLost);
        let wanted = "it closed the connection (lost 2 times), and was not re-established within \
                      5 s: 3 logins failed";
        assert_eq!(error.what, wanted);
    }
}
