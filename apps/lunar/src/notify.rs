//! Messages to the service manager (sd_notify): none without a notification socket; a failed
//! message is only logged.

use sd_notify::NotifyState;
use std::time::Duration;

/// Interval of messages during shutdown, for a manager that waits for it.
pub const EXTEND_EVERY: Duration = Duration::from_secs(2);

/// Time that the manager may wait for the next message. A final sync is never interrupted, however
/// long it takes.
const EXTEND_BY: Duration = Duration::from_secs(30);

/// Reports that connections are accepted.
pub fn ready(status: &str) {
    send(&[NotifyState::Ready, NotifyState::Status(&one_line(status))]);
}

/// Reports that a configuration is being applied; [`ready`] has to follow.
pub fn reloading() {
    match NotifyState::monotonic_usec_now() {
        Ok(now) => send(&[NotifyState::Reloading, now]),
        Err(error) => tracing::warn!(
            "cannot report the reload to the service manager: the clock cannot be read: {error}"
        ),
    }
}

/// Reports the current work.
pub fn status(status: &str) {
    send(&[NotifyState::Status(&one_line(status))]);
}

/// Reports that the shutdown has begun; [`extend`] has to follow within [`EXTEND_EVERY`].
pub fn stopping() {
    send(&[NotifyState::Stopping]);
    extend();
}

/// Reports that the shutdown is still in progress.
pub fn extend() {
    let micros = u32::try_from(EXTEND_BY.as_micros()).unwrap_or(u32::MAX);
    send(&[NotifyState::ExtendTimeoutUsec(micros)]);
}

/// Replaces newlines, which would begin another assignment.
fn one_line(text: &str) -> String {
    text.replace(['\n', '\r'], " ")
}

fn send(states: &[NotifyState<'_>]) {
    if let Err(error) = sd_notify::notify(states) {
        tracing::warn!("cannot notify the service manager ($NOTIFY_SOCKET): {error}");
    }
}
