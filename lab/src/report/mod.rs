//! Results in Markdown: tables, and the parts of committed documents that runs write. Terminal,
//! JSON and HTML forms are those of [`lunar_load::report`].

pub mod markdown;
pub mod sections;
