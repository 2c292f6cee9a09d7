//! Control plane: configuration of a server, changes while it runs, and the API with its access
//! control.
//!
//! ```
//! use lunar_control::config::parse;
//! use std::path::Path;
//!
//! let text = r#"
//!     [[target]]
//!     name = "iqn.2026-11.org.example:disk"
//!     lun = [{ id = 0, device = "mem:64M" }]
//! "#;
//! let configuration = parse(text, Path::new("lunar.toml")).unwrap();
//! assert_eq!(configuration.targets.len(), 1);
//!
//! // One failure lists all problems, with their lines and what to do.
//! let failure = parse("[[target]]\nnmae = 1", Path::new("lunar.toml")).unwrap_err();
//! let problems = failure.parts.unwrap().lines;
//! assert!(problems.iter().any(|line| line.contains("nmae")), "{problems:?}");
//! ```
#![forbid(unsafe_code)]
#![warn(missing_docs)]

pub mod api;
mod auth;
pub mod client;
pub mod config;
pub mod daemon;
pub mod device_url;
pub mod difference;
mod failure;
pub mod http;
pub mod identity;
mod machine_memory;
pub mod metrics;
mod open_pool;
mod renewal;
pub mod secrets;
mod slot;
mod small_file;
pub mod time;
mod tls;
pub mod trace;
pub mod units;

pub use auth::{Caller, Token};
pub use failure::{ErrorList, Failure, FailureKind, chain};
pub use machine_memory::{
    MEMORY_BYTES_MAX_DEFAULT_MIN, memory_bytes_max_default, process_memory_bytes,
};
pub use open_pool::{
    AbsentDevice, AbsentMember, OpenPool, PoolDevices, ScrubEnd, ServedPool, ServedPools,
};
pub use small_file::Readable;
pub use tls::TlsFiles;
