//! iSCSI, RFC 7143, in both roles, as values: no I/O, no clock, no randomness.
//!
//! A driver, such as the crate `lunar-net`, passes received bytes through a
//! [`Deframer`](framing::Deframer) to a state machine of [`connection`], and sends the PDUs that
//! the machine returns. The machines of the connections of a session share one of [`session`].
//!
//! ```
//! use lunar_iscsi::framing::{Deframer, Digests, Event, Pdu, encode_header, encode_tail};
//!
//! // A NOP-Out with five bytes of ping data, and a CRC32C over header and data.
//! let digests = Digests { header: true, data: true };
//! let ping = Pdu::with_data([0; 48], b"hello".as_slice().into());
//! let mut sent = Vec::new();
//! encode_header(&ping, digests, &mut sent);
//! sent.extend_from_slice(&ping.data);
//! encode_tail(&ping, digests, &mut sent);
//! assert_eq!(sent.len(), 48 + 4 + 8 + 4); // header, digest, padded data, digest
//!
//! let mut deframer = Deframer::new();
//! deframer.set_digests(digests);
//! let (mut at, mut payload) = (0, Vec::new());
//! while at < sent.len() {
//!     let (used, event) = deframer.push(&sent[at..]);
//!     match event {
//!         Some(Event::Header(header)) => assert_eq!(header.data_segment_bytes(), 5),
//!         Some(Event::Payload { bytes }) => payload.extend_from_slice(&sent[at..at + bytes]),
//!         Some(Event::PayloadEnd { digest }) => assert!(digest.is_ok()),
//!         other => panic!("{other:?}"),
//!     }
//!     at += used;
//! }
//! assert_eq!(payload, b"hello");
//! ```
#![no_std]
#![forbid(unsafe_code)]

extern crate alloc;
#[cfg(test)]
extern crate std;

pub mod connection;
pub mod framing;
pub mod login;
pub mod pdu;
pub mod session;
#[cfg(any(test, feature = "sim"))]
pub mod sim;
mod sorted_map;
pub mod text;
