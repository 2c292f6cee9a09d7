//! Presentation of a run: for a terminal, as one page with plots, as docs/performance.md.

mod competitors;
pub mod markdown;
pub mod page;
mod reasons;
pub mod tables;
