//! This machine as tests and measurements use it: processes, ports, files and cores.

pub mod cores;
pub mod files;
pub mod namespaces;
pub mod ports;
pub mod process;
pub mod scratch;
