//! Placeholder purpose line.
fn main() {}
