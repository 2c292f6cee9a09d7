//! The control plane: what is to be served and what is, the HTTP API, metrics.
#![forbid(unsafe_code)]
#![warn(missing_docs)]
