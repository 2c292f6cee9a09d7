//! What can go wrong in the initiator role.

use lunar_scsi::sense::Sense;

/// The kind of a failure.
#[derive(Clone, Debug, Eq, PartialEq)]
#[non_exhaustive]
pub enum ErrorKind {
    /// No TCP connection to the portal.
    Connect,
    /// The target refused who we are, or did not prove who it is.
    Authentication,
    /// The target refused the login for another reason.
    Login,
    /// The session is gone. Whether commands in flight had an effect is not known.
    SessionLost,
    /// The command had no effect: the session was gone before it was sent, or it arrived damaged
    /// and the target discarded it.
    NotSent,
    /// The target did not answer the command in time. Whether it had an effect is not known: it is
    /// aborted, and what is written to the same blocks of a [`RemoteDisk`](crate::RemoteDisk) from
    /// now on waits until that is done.
    TimedOut,
    /// The unit is not the one that was opened, or has shrunk. Nothing was read from it or
    /// written to it.
    Changed,
    /// Writes that were acknowledged before they were made durable may be lost, because the
    /// target's cache was, for example by a restart, or because the target could not write it.
    CacheLost,
    /// The target did not take the request, or we did not.
    Refused,
    /// CHECK CONDITION with this sense; `None`: none came, or it cannot be read.
    Sense(Option<Sense>),
    /// Any other SCSI status but GOOD.
    Status(u8),
    /// The target answered something that cannot be.
    Protocol,
}

/// A failure: its kind, and in words what failed and what to do.
#[derive(Clone, Debug, thiserror::Error)]
#[error("{what}")]
pub struct Error {
    /// Kind.
    pub kind: ErrorKind,
    /// What failed and why.
    pub what: String,
    /// What to do.
    pub hint: Option<String>,
}

impl Error {
    /// A failure.
    pub fn new(kind: ErrorKind, what: impl Into<String>) -> Self {
        Self { kind, what: what.into(), hint: None }
    }

    /// With advice.
    #[must_use]
    pub fn hint(mut self, hint: impl Into<String>) -> Self {
        self.hint = Some(hint.into());
        self
    }

    /// It happened to a command that had no effect.
    pub(crate) fn not_sent(mut self) -> Self {
        self.kind = ErrorKind::NotSent;
        self
    }

    /// The session is gone, or the command did not reach the target whole: sent again, perhaps in
    /// another session, it may be served.
    pub(crate) fn is_lost(&self) -> bool {
        matches!(self.kind, ErrorKind::SessionLost | ErrorKind::NotSent)
    }

    /// The sense data, if the failure is a CHECK CONDITION.
    pub fn sense(&self) -> Option<&Sense> {
        match &self.kind {
            ErrorKind::Sense(sense) => sense.as_ref(),
            _ => None,
        }
    }
}
