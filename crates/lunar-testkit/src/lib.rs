//! Test equipment shared by the crates under test, without dependencies on them.
//!
//! [`raw`] is an iSCSI client written from RFC 7143 alone; [`contract`] checks answers of the HTTP
//! API against its OpenAPI document.

pub mod contract;
pub mod raw;
