//! Placeholder purpose line.
