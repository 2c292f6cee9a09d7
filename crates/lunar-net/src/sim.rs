//! Both roles of iSCSI over sockets, and a double of a relay between them: test equipment, with the
//! feature `sim`.
//!
//! [`TargetSocket`] and [`InitiatorSocket`] are handlers around the protocol machines of a session
//! with one connection. A [`TestRelay`] connects one of the former, for a host, to any number of
//! the latter, for storage targets, in one [`SocketGroup`](crate::SocketGroup). It passes commands
//! on by their LUN, and their data in pieces, with the limits of [`RelayLimits`]. It has no policy,
//! no cache, and no recovery.
#![allow(clippy::expect_used, clippy::unwrap_used)] // test equipment: its expectations are the test

mod initiator_socket;
mod relay;
mod segment;
mod target_socket;
#[cfg(test)]
mod tests;

pub use initiator_socket::{InitiatorSocket, Requester};
pub use relay::{RelayLimits, RelayedHost, RelayedStorage, TestRelay};
pub use target_socket::{TargetSocket, TaskExecutor};

/// The name of the targets.
pub const TARGET_NAME: &str = "iqn.2026-01.example:target";
