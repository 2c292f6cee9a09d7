//! Output of results and failures: as text for people, or as one JSON document.

use serde::Serialize;
use std::io::Write;
use std::process::ExitCode;

pub use lunar_control::{Failure, FailureKind};

/// Exit status of a command that failed.
pub const EXIT_FAILED: u8 = 1;
/// Exit status of an invalid command line.
pub const EXIT_USAGE: u8 = 2;

/// Format of the output.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Format {
    /// Text for people.
    Human,
    /// One JSON document on stdout for programs.
    Json,
}

/// Contents of stdout while a command runs.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Stdout {
    /// The command's results, as text or a document.
    Text,
    /// Bytes of a disk. A document with an error would be mistaken for them.
    Data,
}

/// Reports a failure in the format and to the stream that its reader expects.
pub fn report(format: Format, stdout: Stdout, failure: &Failure) -> ExitCode {
    match format {
        Format::Human => {
            let mut stderr = std::io::stderr().lock();
            // If stderr is closed, the failure cannot be reported.
            let _ = match &failure.parts {
                Some(parts) if !parts.lines.is_empty() => {
                    writeln!(stderr, "{}", parts.lines.join("\n"))
                }
                _ => writeln!(stderr, "lunar: {failure}"),
            };
        }
        Format::Json => {
            let mut document = serde_json::json!({ "error": failure.what, "hint": failure.hint });
            if let (Some(parts), Some(map)) = (&failure.parts, document.as_object_mut()) {
                let (key, value) = &parts.list;
                map.insert((*key).to_owned(), value.clone());
            }
            // If stdout cannot be written, the failure goes to stderr: the failed write may be the
            // failure itself.
            if stdout == Stdout::Data || print_json(&document).is_err() {
                // If stderr is closed too, the failure cannot be reported.
                let _ = writeln!(std::io::stderr(), "{document}");
            }
        }
    }
    ExitCode::from(match failure.kind {
        FailureKind::Usage => EXIT_USAGE,
        FailureKind::Failed
        | FailureKind::NotFound
        | FailureKind::Conflict
        | FailureKind::Stopping
        | FailureKind::Unavailable => EXIT_FAILED,
    })
}

/// Prints a JSON document on one line of stdout.
///
/// # Errors
/// Fails if stdout cannot be written.
pub fn print_json(document: &impl Serialize) -> Result<(), Failure> {
    let text = serde_json::to_string(document)
        .map_err(|error| Failure::new(format!("cannot write JSON: {error}")))?;
    print_text(&format!("{text}\n"))
}

/// Prints text to stdout, unbuffered.
///
/// # Errors
/// Fails if stdout cannot be written (a closed pipe, a full disk).
pub fn print_text(text: &str) -> Result<(), Failure> {
    let mut stdout = std::io::stdout().lock();
    stdout
        .write_all(text.as_bytes())
        .and_then(|()| stdout.flush())
        .map_err(|error| Failure::new(format!("cannot write to stdout: {error}")))
}

/// Formats a size for people: exact if it is a whole number of a unit, else rounded to three
/// digits.
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

/// Formats a size that changes for people: rounded to three digits.
pub fn rounded_size(bytes: u64) -> String {
    let text = size(bytes);
    text.split_once(" (").map_or(text.clone(), |(rounded, _)| rounded.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_for_people() {
        assert_eq!(rounded_size(1536 + (1 << 20)), "1.00 MiB");
        assert_eq!(rounded_size(1 << 30), "1 GiB");
        assert_eq!(size(0), "0 bytes");
        assert_eq!(size(512), "512 bytes");
        assert_eq!(size(1 << 30), "1 GiB");
        assert_eq!(size(15 << 40), "15 TiB");
        assert_eq!(size(1536 + (1 << 20)), "1.00 MiB (1050112 bytes)");
    }
}
