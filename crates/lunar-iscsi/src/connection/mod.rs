//! One TCP connection, both roles: what goes in, what comes out. RFC 7143 §4.2, §8, §11.
//!
//! A machine is driven like this: `handle(now, Input)`, then `poll()` until it answers
//! [`Wait`](target::Output::Wait). For each PDU the framing finds, first `Input::Header`; if its
//! DataSegmentLength is not 0, the machine then says `Receive(Place)` once, and when the segment is
//! complete `Input::Payload` follows. Nothing of the next PDU is handed over before.

pub mod initiator;
pub mod target;
