//! One TCP connection in either role: its inputs and outputs. RFC 7143 §4.2, §8, §11.
//!
//! The driver calls `handle(now, Input)`, then `poll()` until it returns
//! [`Wait`](target::Output::Wait). For each PDU found by the framing, the driver first passes
//! `Input::Header`; if its DataSegmentLength is not 0, the machine then returns `Receive` once,
//! with the destination of the data, and when the segment is complete the driver passes
//! `Input::Payload`. No input of the next PDU is passed before that.

mod coverage;
pub mod initiator;
pub mod target;
mod zeroes;

/// Inputs and outputs are moved with every PDU, so rare large values in them are boxed.
#[cfg(target_pointer_width = "64")]
const _: () = {
    assert!(size_of::<target::Input>() <= 96 && size_of::<target::Output>() <= 104);
    assert!(size_of::<initiator::Input>() <= 88 && size_of::<initiator::Output>() <= 104);
};
