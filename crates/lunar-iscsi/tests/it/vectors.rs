//! Tests with the vectors in `testdata/`, which this crate and the Java modules must encode and
//! decode alike. `testdata/make_vectors.py` writes them and shares code with neither.

mod logins;
mod negotiation;
mod pdus;

use std::process::Command;

/// Goal: the vectors match the script, so that nobody adapts them to an implementation.
#[test]
fn the_vectors_match_the_script() {
    let script = concat!(env!("CARGO_MANIFEST_DIR"), "/../../testdata/make_vectors.py");
    let status = Command::new("python3").args([script, "--check"]).status().unwrap();
    assert!(status.success(), "run testdata/make_vectors.py");
}

/// Parses hexadecimal digits; `-` stands for no bytes.
fn bytes_of(hex: &str) -> Vec<u8> {
    let digits = if hex == "-" { "" } else { hex };
    let byte = |at| u8::from_str_radix(&digits[at..at + 2], 16).unwrap();
    (0..digits.len()).step_by(2).map(byte).collect()
}

/// All lines that are not comments.
fn lines(text: &str) -> impl Iterator<Item = &str> {
    text.lines().filter(|line| !line.is_empty() && !line.starts_with('#'))
}
