//! How results and failures are shown: for people, or as one JSON document.

use serde::Serialize;
use std::fmt;
use std::io::{self, Write};
use std::process::ExitCode;

/// Exit status of a command that failed.
pub const EXIT_FAILED: u8 = 1;
/// Exit status of a command line that makes no sense.
pub const EXIT_USAGE: u8 = 2;

/// For whom the output is.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Format {
    /// People at a terminal.
    Human,
    /// Programs: one JSON document on stdout.
    Json,
}

/// What went wrong and what to do about it; ends the command.
#[derive(Debug)]
pub struct Failure {
    /// What failed and why, in one line.
    pub what: String,
    /// What to do.
    pub hint: Option<String>,
    /// The process's exit status.
    pub exit: u8,
    /// The parts of a failure that is made of several.
    pub parts: Option<Box<Parts>>,
}

/// Several things that are wrong at once.
#[derive(Debug)]
pub struct Parts {
    /// For people, instead of `what` and `hint`: lines that are whole in themselves.
    pub lines: Vec<String>,
    /// For programs, beside `error` and `hint`: a key and its value.
    pub list: (&'static str, serde_json::Value),
}

impl Failure {
    /// A failure of the work itself: exit status 1.
    pub fn new(what: impl Into<String>) -> Self {
        Self { what: what.into(), hint: None, exit: EXIT_FAILED, parts: None }
    }

    /// A command line that makes no sense: exit status 2.
    pub fn usage(what: impl Into<String>) -> Self {
        Self { exit: EXIT_USAGE, ..Self::new(what) }
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

impl From<target::Error> for Failure {
    fn from(error: target::Error) -> Self {
        let target::Error::Listen { address, source } = &error else {
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

impl From<block::Error> for Failure {
    fn from(error: block::Error) -> Self {
        let hint = match error.kind {
            block::ErrorKind::ReadOnly => {
                Some("it is served read-only, or an initiator has write-protected it (SWP)")
            }
            block::ErrorKind::NoSpace => {
                Some("make room on the file system that holds the disk, then try again")
            }
            block::ErrorKind::Disconnected => Some("is the server still running? Try again"),
            block::ErrorKind::Medium => {
                Some("lunar info URL shows reservations; the server's log may say more")
            }
            _ => None,
        };
        Self { hint: hint.map(str::to_owned), ..Self::new(chain(&error)) }
    }
}

impl From<initiator::Error> for Failure {
    fn from(error: initiator::Error) -> Self {
        Self { hint: error.hint.clone(), ..Self::new(chain(&error)) }
    }
}

impl From<initiator::UrlError> for Failure {
    fn from(error: initiator::UrlError) -> Self {
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

/// Says that the command failed, where the reader of this format looks for it.
pub fn report(format: Format, failure: &Failure) -> ExitCode {
    match format {
        Format::Human => {
            let mut stderr = std::io::stderr().lock();
            // Nobody is left to tell when stderr is closed.
            let _ = match &failure.parts {
                Some(parts) => writeln!(stderr, "{}", parts.lines.join("\n")),
                None => writeln!(stderr, "lunar: {failure}"),
            };
        }
        Format::Json => {
            let mut document = serde_json::json!({ "error": failure.what, "hint": failure.hint });
            if let (Some(parts), Some(map)) = (&failure.parts, document.as_object_mut()) {
                let (key, value) = &parts.list;
                map.insert((*key).to_owned(), value.clone());
            }
            let _ = print_json(&document);
        }
    }
    ExitCode::from(failure.exit)
}

/// One JSON document on one line of stdout.
///
/// # Errors
/// When stdout takes no more.
pub fn print_json(document: &impl Serialize) -> Result<(), Failure> {
    let text = serde_json::to_string(document)
        .map_err(|error| Failure::new(format!("cannot write JSON: {error}")))?;
    print_text(&format!("{text}\n"))
}

/// Text on stdout, at once.
///
/// # Errors
/// When stdout takes no more (a closed pipe, a full disk).
pub fn print_text(text: &str) -> Result<(), Failure> {
    let mut stdout = std::io::stdout().lock();
    stdout
        .write_all(text.as_bytes())
        .and_then(|()| stdout.flush())
        .map_err(|error| Failure::new(format!("cannot write to stdout: {error}")))
}

/// A size for people: exact where it is a whole number of a unit, else rounded to three digits.
pub fn size(bytes: u64) -> String {
    const UNITS: [&str; 5] = ["bytes", "KiB", "MiB", "GiB", "TiB"];
    let mut unit = 0;
    while unit + 1 < UNITS.len() && bytes >> (10 * (unit + 1)) > 0 {
        unit += 1;
    }
    let scale = 1u64 << (10 * unit);
    if bytes.is_multiple_of(scale) {
        format!("{} {}", bytes / scale, UNITS[unit])
    } else {
        format!("{:.2} {} ({bytes} bytes)", bytes as f64 / scale as f64, UNITS[unit])
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_for_people() {
        assert_eq!(size(0), "0 bytes");
        assert_eq!(size(512), "512 bytes");
        assert_eq!(size(1 << 30), "1 GiB");
        assert_eq!(size(15 << 40), "15 TiB");
        assert_eq!(size(1536 + (1 << 20)), "1.00 MiB (1050112 bytes)");
    }

    #[test]
    fn a_cause_is_said_once() {
        let source = std::io::Error::from_raw_os_error(98);
        let told = target::Error::Listen { address: "127.0.0.1:1".parse().unwrap(), source };
        assert_eq!(chain(&told).matches("in use").count(), 1);
    }
}
