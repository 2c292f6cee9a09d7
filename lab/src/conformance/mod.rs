//! Conformance: the libiscsi suite on our target, the RFC's rules with the tests that show them,
//! and CONFORMANCE.md, which contains both.

pub mod document;
pub mod faults;
pub mod foreign;
pub mod own_tests;
pub mod profiles;
pub mod report;
pub mod rfc_requirements;
pub mod suite;
