//! What this crate and the Java modules must encode and decode alike: the vectors in `testdata/`,
//! which `testdata/make_vectors.py` writes and which share code with neither.

mod logins;
mod negotiation;
mod pdus;

use std::process::Command;

/// Goal: the vectors are what the script says; nobody bends them to what a language does.
#[test]
fn the_script_writes_these() {
    let script = concat!(env!("CARGO_MANIFEST_DIR"), "/../../testdata/make_vectors.py");
    let status = Command::new("python3").args([script, "--check"]).status().unwrap();
    assert!(status.success(), "run testdata/make_vectors.py");
}

/// The bytes of hexadecimal digits; `-` stands for none.
fn bytes_of(hex: &str) -> Vec<u8> {
    let digits = if hex == "-" { "" } else { hex };
    let byte = |at| u8::from_str_radix(&digits[at..at + 2], 16).unwrap();
    (0..digits.len()).step_by(2).map(byte).collect()
}

/// Every line that is no comment.
fn lines(text: &str) -> impl Iterator<Item = &str> {
    text.lines().filter(|line| !line.is_empty() && !line.starts_with('#'))
}
