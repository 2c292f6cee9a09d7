//! The initiator role: sessions with targets, discovery, and a remote LUN as a `BlockDevice`.
#![forbid(unsafe_code)]
#![warn(missing_docs)]

mod attentions;
pub mod blocking;
mod client;
mod commands;
mod doubts;
mod error;
mod initiator;
mod keeper;
mod link;
mod numbering;
mod options;
mod paths;
mod port_groups;
mod recovery;
mod remote_disk;
mod same_unit;
mod session;
mod unflushed;
mod url;
mod way;

pub use self::initiator::{CommandReply, Initiator, discover};
pub use commands::{Capacity, Designator, Identity, Mode, Reservation, Unit};
pub use error::{Error, ErrorKind};
pub use iscsi::connection::initiator::{CommandResult, Residual};
pub use iscsi::connection::target::TargetRecord;
pub use options::{COMMAND_SECONDS, Chap, PathPolicy, RECOVERY_SECONDS, SessionOptions, random_isid};
pub use remote_disk::RemoteDisk;
pub use url::{NAME_BYTES_MAX, PORT_DEFAULT, UnitPath, Url, UrlError, parse_portal, portal_text};
