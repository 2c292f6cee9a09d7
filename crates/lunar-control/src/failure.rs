//! Errors with cause and remedy: one line for people, fields for programs.

use std::fmt;
use std::io;

/// Category of a failure.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum FailureKind {
    /// The operation failed.
    Failed,
    /// The request is invalid.
    Usage,
    /// The requested object does not exist.
    NotFound,
    /// The current state does not permit the operation.
    Conflict,
    /// The server is stopping.
    Stopping,
    /// Another machine is unreachable or not ready: the operation may succeed later.
    Unavailable,
}

/// An error and its remedy.
#[derive(Debug)]
pub struct Failure {
    /// The error and its cause, in one line.
    pub what: String,
    /// The remedy.
    pub hint: Option<String>,
    /// The category.
    pub kind: FailureKind,
    /// The parts, if the failure consists of several.
    pub parts: Option<Box<ErrorList>>,
}

/// Several errors at once.
#[derive(Debug)]
pub struct ErrorList {
    /// Complete lines for people, shown instead of `what` and `hint`. Empty: `what` is sufficient.
    pub lines: Vec<String>,
    /// A key and value for programs, in addition to `error` and `hint`.
    pub list: (&'static str, serde_json::Value),
}

impl Failure {
    /// An operation that failed.
    pub fn new(what: impl Into<String>) -> Self {
        Self { what: what.into(), hint: None, kind: FailureKind::Failed, parts: None }
    }

    /// An invalid request.
    pub fn usage(what: impl Into<String>) -> Self {
        Self { kind: FailureKind::Usage, ..Self::new(what) }
    }

    /// An object that does not exist.
    pub fn not_found(what: impl Into<String>) -> Self {
        Self { kind: FailureKind::NotFound, ..Self::new(what) }
    }

    /// A conflict with the current state.
    pub fn conflict(what: impl Into<String>) -> Self {
        Self { kind: FailureKind::Conflict, ..Self::new(what) }
    }

    /// The server is stopping: it accepts no changes.
    pub fn stopping() -> Self {
        let what = "the server is stopping and refuses changes";
        Self { kind: FailureKind::Stopping, ..Self::new(what) }
            .hint("try again after the server has restarted")
    }

    /// Whether the operation may succeed later although nothing is changed.
    pub fn is_temporary(&self) -> bool {
        self.kind == FailureKind::Unavailable
    }

    /// Adds a hint.
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
                "use an address of this machine (see `ip address`), or 0.0.0.0 for all"
            }
            io::ErrorKind::PermissionDenied => "choose a port number of 1024 or higher",
            _ => "choose another address or port, or stop the server that uses it",
        })
    }
}

impl From<lunar_block::Error> for Failure {
    fn from(error: lunar_block::Error) -> Self {
        let hint = match error.kind {
            lunar_block::ErrorKind::ReadOnly => {
                Some("the disk is served read-only, or an initiator has write-protected it (SWP)")
            }
            lunar_block::ErrorKind::NoSpace => {
                Some("free space on the file system of the disk, then try again")
            }
            lunar_block::ErrorKind::Disconnected => {
                Some("check that the server is running, then try again")
            }
            lunar_block::ErrorKind::Medium => {
                Some("check the reservations with `lunar info URL`, and the log of the server")
            }
            _ => None,
        };
        Self { hint: hint.map(str::to_owned), ..Self::new(chain(&error)) }
    }
}

impl From<lunar_initiator::Error> for Failure {
    fn from(error: lunar_initiator::Error) -> Self {
        let kind = match error.is_temporary() {
            true => FailureKind::Unavailable,
            false => FailureKind::Failed,
        };
        Self { kind, hint: error.hint.clone(), ..Self::new(chain(&error)) }
    }
}

impl From<lunar_initiator::UrlError> for Failure {
    fn from(error: lunar_initiator::UrlError) -> Self {
        Self::usage(error.what).hint(error.hint)
    }
}

/// An error with all its causes, each once, in one line.
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
    fn a_cause_is_printed_once() {
        let source = std::io::Error::from_raw_os_error(98);
        let error = lunar_target::Error::Listen { address: "127.0.0.1:1".parse().unwrap(), source };
        assert_eq!(chain(&error).matches("in use").count(), 1);
    }
}
