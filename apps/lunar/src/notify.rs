//! What the service manager is told (sd_notify): nothing where none asked, and no more than words
//! where it does not listen.

use sd_notify::NotifyState;
use std::time::Duration;

/// How often a manager that waits for our end hears that it is being worked on.
pub const EXTEND_EVERY: Duration = Duration::from_secs(2);

/// How long it may wait for the next word. A final sync is never cut short, however long.
const EXTEND_BY: Duration = Duration::from_secs(30);

/// Connections are accepted.
pub fn ready(status: &str) {
    send(&[NotifyState::Ready, NotifyState::Status(&one_line(status))]);
}

/// A configuration is being applied; [`ready`] has to follow.
pub fn reloading() {
    match NotifyState::monotonic_usec_now() {
        Ok(now) => send(&[NotifyState::Reloading, now]),
        Err(error) => tracing::warn!("no time for the service manager: {error}"),
    }
}

/// What is being done.
pub fn status(status: &str) {
    send(&[NotifyState::Status(&one_line(status))]);
}

/// The end has begun; [`extend`] has to follow within [`EXTEND_EVERY`].
pub fn stopping() {
    send(&[NotifyState::Stopping]);
    extend();
}

/// The end is still being worked on.
pub fn extend() {
    let micros = u32::try_from(EXTEND_BY.as_micros()).unwrap_or(u32::MAX);
    send(&[NotifyState::ExtendTimeoutUsec(micros)]);
}

/// A newline would begin another assignment.
fn one_line(text: &str) -> String {
    text.replace(['\n', '\r'], " ")
}

fn send(states: &[NotifyState<'_>]) {
    if let Err(error) = sd_notify::notify(states) {
        tracing::warn!("cannot tell the service manager ($NOTIFY_SOCKET): {error}");
    }
}
