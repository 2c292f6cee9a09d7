//! Presentation of a run: for a terminal, as one page with plots, as docs/performance.md.

pub mod markdown;
pub mod page;
mod reasons;
mod rivals;
pub mod tables;
