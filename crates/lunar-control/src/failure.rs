//! What went wrong, why, and what to do: for people as a line, for programs as fields.

use std::fmt;
use std::io;

/// Whose mistake a failure is.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum FailureKind {
    /// The work itself failed.
    Failed,
    /// What was asked for makes no sense.
    Usage,
    /// There is no such thing.
    NotFound,
    /// It cannot be done as things are.
    Conflict,
    /// It cannot be done any more: the server is stopping.
    Stopping,
}

/// What went wrong and what to do about it.
#[derive(Debug)]
pub struct Failure {
    /// What failed and why, in one line.
    pub what: String,
    /// What to do.
    pub hint: Option<String>,
    /// Whose mistake it is.
    pub kind: FailureKind,
    /// The parts of a failure that is made of several.
    pub parts: Option<Box<Parts>>,
}

/// Several things that are wrong at once.
#[derive(Debug)]
pub struct Parts {
    /// For people, instead of `what` and `hint`: lines that are whole in themselves. None: `what`
    /// says it all.
    pub lines: Vec<String>,
    /// For programs, beside `error` and `hint`: a key and its value.
    pub list: (&'static str, serde_json::Value),
}

impl Failure {
    /// A failure of the work itself.
    pub fn new(what: impl Into<String>) -> Self {
        Self { what: what.into(), hint: None, kind: FailureKind::Failed, parts: None }
    }

    /// What was asked for makes no sense.
    pub fn usage(what: impl Into<String>) -> Self {
        Self { kind: FailureKind::Usage, ..Self::new(what) }
    }

    /// There is no such thing.
    pub fn not_found(what: impl Into<String>) -> Self {
        Self { kind: FailureKind::NotFound, ..Self::new(what) }
    }

    /// It cannot be done as things are.
    pub fn conflict(what: impl Into<String>) -> Self {
        Self { kind: FailureKind::Conflict, ..Self::new(what) }
    }

    /// The server is stopping: it takes no changes.
    pub fn stopping() -> Self {
        let what = "the server is stopping: nothing that it serves changes any more";
        Self { kind: FailureKind::Stopping, ..Self::new(what) }
            .hint("ask again when it has been started anew")
    }

    /// With advice.
    #[must_use]
    pub fn hint(mut self, hint: impl Into<String>) -> Self {
        self.hint = Some(hint.into());
        self
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.what)?;
        match &self.hint {
            Some(hint) => write!(f, " (hint: {hint})"),
            None => Ok(()),
        }
    }
}

impl From<lunar_target::Error> for Failure {
    fn from(error: lunar_target::Error) -> Self {
        let lunar_target::Error::Listen { address, source } = &error else {
            return Self::new(chain(&error));
        };
        Self::new(format!("cannot listen on {address}: {source}")).hint(match source.kind() {
            io::ErrorKind::AddrNotAvailable => {
                "name an address of this machine (`ip address` lists them), or 0.0.0.0 for all"
            }
            io::ErrorKind::PermissionDenied => "choose a port from 1024 on",
            _ => "choose another address or port, or stop the server that uses it",
        })
    }
}

impl From<lunar_block::Error> for Failure {
    fn from(error: lunar_block::Error) -> Self {
        let hint = match error.kind {
            lunar_block::ErrorKind::ReadOnly => {
                Some("it is served read-only, or an initiator has write-protected it (SWP)")
            }
            lunar_block::ErrorKind::NoSpace => {
                Some("make room on the file system that holds the disk, then try again")
            }
            lunar_block::ErrorKind::Disconnected => Some("is the server still running? Try again"),
            lunar_block::ErrorKind::Medium => {
                Some("lunar info URL shows reservations; the server's log may say more")
            }
            _ => None,
        };
        Self { hint: hint.map(str::to_owned), ..Self::new(chain(&error)) }
    }
}

impl From<lunar_initiator::Error> for Failure {
    fn from(error: lunar_initiator::Error) -> Self {
        Self { hint: error.hint.clone(), ..Self::new(chain(&error)) }
    }
}

impl From<lunar_initiator::UrlError> for Failure {
    fn from(error: lunar_initiator::UrlError) -> Self {
        Self::usage(error.what).hint(error.hint)
    }
}

/// An error with all its causes, each said once, in one line.
pub fn chain(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut next = error.source();
    while let Some(cause) = next {
        let cause_text = cause.to_string();
        if !text.contains(&cause_text) {
            text.push_str(": ");
            text.push_str(&cause_text);
        }
        next = cause.source();
    }
    text.replace('\n', " ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cause_is_said_once() {
        let source = std::io::Error::from_raw_os_error(98);
        let told = lunar_target::Error::Listen { address: "127.0.0.1:1".parse().unwrap(), source };
        assert_eq!(chain(&told).matches("in use").count(), 1);
    }
}
