//! Test equipment that the crates under test share: it uses none of them.
//!
//! [`raw`] is an iSCSI client written from RFC 7143 alone; [`contract`] holds answers of the
//! HTTP API against its OpenAPI document.

pub mod contract;
pub mod raw;
