//! The pace at which lost sessions are re-established.

use crate::recovery::Backoff;
use std::time::Duration;
use tokio::time::Instant;

/// Time after which a session counts as lasting, even if no command was answered in it.
const LASTING_TIME: Duration = Duration::from_secs(10);

/// Pauses between the logins of one initiator. They grow with each failed login, and with each
/// session that was lost soon after its login: a target that accepts logins and then closes the
/// connection would otherwise get one login after the other. They start again at the shortest after
/// a session that lasted or answered a command.
#[derive(Debug)]
pub(crate) struct ReloginPace {
    backoff: Backoff,
    /// Time of the last login that succeeded.
    logged_in_at: Instant,
    /// True when the loss of that session is already counted.
    is_counted: bool,
    /// Number of sessions in a row that were lost soon after their login.
    short_sessions: u32,
}

impl ReloginPace {
    /// Starts with the login of the first session.
    pub(crate) fn new() -> Self {
        Self {
            backoff: Backoff::with_system_entropy(),
            logged_in_at: Instant::now(),
            is_counted: false,
            short_sessions: 0,
        }
    }

    /// Records that a session was established.
    pub(crate) fn logged_in(&mut self) {
        self.logged_in_at = Instant::now();
        self.is_counted = false;
    }

    /// Records that the last session was found lost, perhaps again because the attempts to replace
    /// it have ended. Returns the pause before the next login.
    pub(crate) fn session_lost(&mut self, answered_commands: bool) -> Duration {
        if answered_commands || self.logged_in_at.elapsed() >= LASTING_TIME {
            self.restart();
            return Duration::ZERO;
        }
        if !std::mem::replace(&mut self.is_counted, true) {
            self.short_sessions = self.short_sessions.saturating_add(1);
        }
        self.backoff.next_pause()
    }

    /// Returns to the shortest pause.
    pub(crate) fn restart(&mut self) {
        self.backoff.restart();
        self.short_sessions = 0;
    }

    /// Returns the pause after a failed login.
    pub(crate) fn login_failed(&mut self) -> Duration {
        self.backoff.next_pause()
    }

    /// Number of sessions in a row that were lost soon after their login.
    pub(crate) fn short_sessions(&self) -> u32 {
        self.short_sessions
    }

    /// True when the loss of the last session and the next login are worth a warning: of sessions
    /// in a row that are lost soon after their login, the first, second, fourth, eighth and so on.
    pub(crate) fn is_worth_a_warning(&self) -> bool {
        self.short_sessions == 0 || self.short_sessions.is_power_of_two()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Fault: a target that closed each connection right after its login got 400 logins and 800
    /// warnings per second.
    ///
    /// Goal: the pauses grow, and so do the distances between warnings, until a session lasts or
    /// answers a command.
    #[tokio::test(start_paused = true)]
    async fn sessions_that_do_not_last_are_re_established_ever_more_slowly() {
        let mut pace = ReloginPace::new();
        let hour = Duration::from_secs(3600);
        let (begin, mut logins, mut warnings) = (Instant::now(), 0, 0);
        while begin.elapsed() < hour {
            tokio::time::sleep(pace.session_lost(false)).await;
            warnings += u32::from(pace.is_worth_a_warning());
            pace.logged_in();
            logins += 1;
        }
        assert!((1800..3700).contains(&logins), "a login every one to two seconds: {logins}");
        assert!((11..=12).contains(&warnings), "{warnings} warnings");

        let shortest = Duration::from_millis(50);
        assert_eq!(pace.session_lost(true), Duration::ZERO, "it answered a command");
        assert!(pace.is_worth_a_warning());
        for _ in 0..3 {
            assert!(pace.session_lost(false) <= 8 * shortest);
            assert_eq!(pace.short_sessions(), 1, "one session is counted once");
        }
        for _ in 0..10 {
            pace.session_lost(false);
        }
        tokio::time::sleep(LASTING_TIME).await;
        assert_eq!(pace.session_lost(false), Duration::ZERO, "it lasted");
        assert!(pace.is_worth_a_warning());
        assert!(pace.login_failed() <= shortest);
    }
}
