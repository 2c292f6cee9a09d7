//! The initiator role: sessions with targets, discovery, and a remote LUN as a `BlockDevice`.
//!
//! [`RemoteDisk`] suits most programs: a disk behind a URL that any number of tasks may use at
//! once. It needs a tokio runtime when it is connected, and none of its own after that.
//!
//! ```
//! use lunar_block::{BlockDevice, BlockRange};
//! use lunar_initiator::{RemoteDisk, SessionOptions, Url};
//!
//! # include!(concat!(env!("CARGO_MANIFEST_DIR"), "/doc/server.rs"));
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() -> Result<(), Box<dyn std::error::Error>> {
//! # let (server, text) = serve();
//! let url: Url = text.parse()?; // iscsi://HOST[:PORT]/TARGET/LUN
//! let mut options = SessionOptions::new("iqn.2026-11.org.example:host");
//! options.connections = 4;
//! let disk = RemoteDisk::connect(&url, &options).await?;
//!
//! let first = BlockRange::new(0, 8);
//! let data = vec![7; 8 * disk.geometry().block_bytes as usize];
//! disk.write(first, data.clone().into(), false).await?;
//! disk.flush().await?; // from here on it is durable
//! let buffer = disk.unit().initiator().pool().take(data.len());
//! assert_eq!(disk.read(first, buffer).await?[..], data);
//!
//! // Any other command of the unit, with data both ways if it has any.
//! let inquiry = vec![0x12, 0, 0, 0, 36, 0];
//! let reply = disk.unit().command(inquiry, Default::default(), 36).await?;
//! assert_eq!(reply.data_in.len(), 36);
//! disk.close().await?;
//! # let end = move || server.shutdown(std::time::Duration::from_secs(5), &mut |_| {});
//! # tokio::task::spawn_blocking(end).await?;
//! # Ok(())
//! # }
//! ```
//!
//! | item | purpose |
//! |---|---|
//! | [`RemoteDisk`] | a disk, over one or more connections and portals |
//! | [`Unit`] | one LUN and its commands, sent one by one |
//! | [`Initiator`] | a session: raw commands, adding and removing connections |
//! | [`discover`] | lists the targets of a portal |
//! | [`blocking`] | the same for programs without a runtime |
//!
//! Lost connections and sessions are re-established, and commands that may be repeated are sent
//! again; the caller only sees a delay, up to [`SessionOptions::recovery_seconds`]. Every wait is
//! limited: a login ([`SessionOptions::login_time`]), silence (a target that has sent nothing for 5
//! s is pinged, and the connection closed 5 s later), a command
//! ([`SessionOptions::command_seconds`]), its abort (30 s).
#![forbid(unsafe_code)]
#![warn(missing_docs)]

mod attentions;
pub mod blocking;
mod client;
mod commands;
mod completion_barrier;
mod connection_end;
mod connection_handle;
mod connection_task;
mod error;
mod flush_tracker;
mod initiator;
mod opcodes;
mod options;
mod paths;
mod persistent_reservations;
mod port_groups;
mod queue_depth;
mod quirks;
mod recovery;
mod relogin_pace;
mod remote_disk;
mod same_unit;
mod session;
mod session_context;
mod session_login;
mod session_supervisor;
mod shared_session_state;
mod target_connector;
mod uncertain_writes;
mod url;

pub use self::initiator::{CommandReply, Initiator, discover};
pub use commands::{Capacity, Designator, DeviceMode, Identity, Reservation, Unit};
pub use error::{Error, ErrorKind};
pub use lunar_iscsi::connection::initiator::{Cdb, CommandResult, Residual};
pub use lunar_iscsi::connection::target::TargetRecord;
pub use lunar_scsi::reported_identity::ReportedIdentity;
pub use options::{
    COMMAND_SECONDS, Chap, PathPolicy, RECOVERY_SECONDS, SessionOptions, random_isid,
};
pub use remote_disk::{RelayedLun, RelayedWriteTicket, RemoteDisk};
pub use url::{NAME_BYTES_MAX, PORT_DEFAULT, UnitPath, Url, UrlError, parse_portal, portal_text};
