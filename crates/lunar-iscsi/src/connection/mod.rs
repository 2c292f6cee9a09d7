//! One TCP connection in either role: its inputs and outputs. RFC 7143 §4.2, §8, §11.
//!
//! The driver calls `handle(now, Input)`, then `poll()` until it returns
//! [`Wait`](target::Output::Wait). For each PDU found by the framing, the driver first passes
//! `Input::Header`; if its DataSegmentLength is not 0, the machine then returns `Receive(Place)`
//! once, and when the segment is complete the driver passes `Input::Payload`. Nothing of the next
//! PDU is passed before that.

mod coverage;
pub mod initiator;
pub mod target;
mod zeroes;
