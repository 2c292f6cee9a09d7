//! Errors of the initiator role.

use lunar_scsi::sense::{Sense, SenseKey, Status};

/// The kind of a failure.
#[derive(Clone, Debug, Eq, PartialEq)]
#[non_exhaustive]
pub enum ErrorKind {
    /// No TCP connection to the portal.
    Connect,
    /// The target refused the initiator's name or credentials, or did not prove its own identity.
    Authentication,
    /// The target refused the login for another reason.
    Login,
    /// The target cannot serve the login now: it is not available, or out of resources.
    Unavailable,
    /// The session is lost. The outcome of commands in flight is unknown.
    SessionLost,
    /// The command had no effect: the session was lost before it was sent, or the command arrived
    /// damaged and the target discarded it.
    NotSent,
    /// The target did not answer the command in time. Its outcome is unknown: the command is
    /// aborted, and later writes to the same blocks of a [`RemoteDisk`](crate::RemoteDisk) wait
    /// until the abort is done.
    TimedOut,
    /// The unit is not the one that was opened, or has shrunk. Nothing was read from it or
    /// written to it.
    Changed,
    /// The exclusive ownership of the unit was lost: another initiator may write to it.
    Fenced,
    /// Acknowledged writes that were not yet durable may be lost, because the target's cache was
    /// lost, for example by a restart, or because the target could not write them.
    CacheLost,
    /// The target or the initiator refused the request.
    Refused,
    /// CHECK CONDITION with this sense data; `None` if it is missing or malformed.
    Sense(Option<Sense>),
    /// Any other SCSI status that is no success.
    Status(u8),
    /// The target sent an invalid response.
    Protocol,
}

/// An error: its kind, a description and a hint.
#[derive(Clone, Debug, thiserror::Error)]
#[error("{what}")]
pub struct Error {
    /// Kind.
    pub kind: ErrorKind,
    /// Description: what failed and why.
    pub what: String,
    /// Remedy.
    pub hint: Option<String>,
}

impl Error {
    /// Returns an error without a hint.
    pub fn new(kind: ErrorKind, what: impl Into<String>) -> Self {
        Self { kind, what: what.into(), hint: None }
    }

    /// Adds a hint.
    #[must_use]
    pub fn hint(mut self, hint: impl Into<String>) -> Self {
        self.hint = Some(hint.into());
        self
    }

    /// Marks the error as that of a command that had no effect.
    pub(crate) fn not_sent(mut self) -> Self {
        self.kind = ErrorKind::NotSent;
        self
    }

    /// True when the session is lost, or the command did not arrive intact: it may succeed when
    /// sent again, perhaps in another session.
    pub(crate) fn is_lost(&self) -> bool {
        matches!(self.kind, ErrorKind::SessionLost | ErrorKind::NotSent)
    }

    /// True when the target was not reached, did not answer, or is not ready: a later attempt may
    /// succeed although nothing is changed. False for an answer that refuses the request.
    pub fn is_temporary(&self) -> bool {
        match &self.kind {
            ErrorKind::Connect
            | ErrorKind::Unavailable
            | ErrorKind::SessionLost
            | ErrorKind::NotSent
            | ErrorKind::TimedOut => true,
            ErrorKind::Sense(Some(sense)) => sense.key == SenseKey::NOT_READY,
            ErrorKind::Status(status) => {
                matches!(Status(*status), Status::BUSY | Status::TASK_SET_FULL)
            }
            ErrorKind::Authentication
            | ErrorKind::Login
            | ErrorKind::Changed
            | ErrorKind::Fenced
            | ErrorKind::CacheLost
            | ErrorKind::Refused
            | ErrorKind::Sense(None)
            | ErrorKind::Protocol => false,
        }
    }

    /// Returns the sense data, if the error is a CHECK CONDITION.
    pub fn sense(&self) -> Option<&Sense> {
        match &self.kind {
            ErrorKind::Sense(sense) => sense.as_ref(),
            _ => None,
        }
    }
}
