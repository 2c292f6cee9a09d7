//! The initiator role: sessions with targets, discovery, and a remote LUN as a `BlockDevice`.
#![forbid(unsafe_code)]
#![warn(missing_docs)]

mod url;

pub use url::{NAME_BYTES_MAX, PORT_DEFAULT, UnitPath, Url, UrlError, parse_portal, portal_text};
