//! The only sockets of iSCSI: listening, connecting, framing, and one loop that drives a protocol
//! state machine of either role.
//!
//! A connection is a [`ConnectionHandler`] (a state machine and its surroundings) that [`drive`]
//! runs on one of the [`Cores`]: all PDUs of a received chunk are handled, then all PDUs they
//! produced are sent with one system call. The PDUs of a turn are limited, so that every connection
//! of a core gets its turn. Large payloads are received directly into the buffer of the handler.
//!
//! Sockets that pass data to each other are driven in one task, a [`SocketGroup`].
//!
//! ```
//! use lunar_net::{CoreOptions, Cores};
//!
//! # fn main() -> std::io::Result<()> {
//! let (sender, received) = std::sync::mpsc::channel();
//! let cores = Cores::start(CoreOptions { count: 2, latency_mode: false }, |core| core)?;
//! // A job runs on one core from its beginning to its end; its future need not be `Send`.
//! cores.spawn(move || async move {
//!     let local = std::rc::Rc::new(7);
//!     tokio::task::yield_now().await;
//!     sender.send(*local).unwrap();
//! });
//! drop(cores); // waits for all jobs
//! assert_eq!(received.recv(), Ok(7));
//! # Ok(())
//! # }
//! ```
#![deny(unsafe_code)]
#![warn(missing_docs)]

mod buffer_limits;
mod busy_poll;
mod clock;
mod cores;
mod drive;
mod group;
mod in_flight;
mod inbound;
mod outbox;
mod owner_turns;
mod placement;
#[cfg(any(test, feature = "sim"))]
pub mod sim;
mod socket;
mod tap;
mod turn;
#[allow(unsafe_code)]
mod unsafe_buffer_lock;
#[allow(unsafe_code)]
mod unsafe_socket_memory;

pub use buffer_limits::{BufferLimits, BufferedBytes};
pub use clock::Clock;
pub use cores::{
    CoreOptions, CoreWrapper, Cores, LocalFuture, in_turns_of, spawn_local, spawn_local_for,
};
pub use drive::{ConnectionHandler, DrivenSocket, HELD_CHECK_INTERVAL, drive};
pub use group::{SocketGroup, SocketGroupHandle};
pub use in_flight::{InFlightBytes, InFlightMeter};
pub use inbound::CopyCount;
pub use outbox::{COUNTED_DATA_IN_BYTES_MAX, Outbox};
pub use owner_turns::OwnerId;
pub use socket::{connect, listen, prepare};
pub use tap::{
    Direction, TAP_BYTES_MAX, TAP_PDUS_MAX, Tap, TapChange, TapReader, TappedConnection, TappedPdu,
};
pub use turn::{
    MOVED_PIECE_BYTES, MoveBudget, TURN_BYTES, TURN_PDUS, count_copied, count_moved, mark_costly,
    wait_to_move,
};
