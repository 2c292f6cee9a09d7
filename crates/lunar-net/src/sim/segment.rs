//! The data segment that a handler receives.

use bytes::Bytes;
use lunar_iscsi::framing::DataDestination;

/// The data segment of the current PDU, with its buffer.
#[derive(Debug, Default)]
pub(super) struct IncomingSegment {
    /// Length that the header announced.
    pub(super) announced_bytes: usize,
    /// Empty if the segment is discarded.
    buffer: Vec<u8>,
    filled: usize,
    is_control: bool,
}

impl IncomingSegment {
    /// Begins the segment of a header, which has no destination yet.
    pub(super) fn announce(&mut self, bytes: u32) {
        *self = Self { announced_bytes: bytes as usize, ..Self::default() };
    }

    /// Allocates the buffer if `destination` is kept here. `is_wanted`: whether a stream takes its
    /// data.
    pub(super) fn receive(&mut self, destination: DataDestination, is_wanted: bool) {
        let is_kept = match destination {
            DataDestination::Control => true,
            DataDestination::Stream { .. } => is_wanted,
            DataDestination::Task { .. } | DataDestination::Discard => false,
        };
        self.is_control = destination == DataDestination::Control;
        self.buffer = vec![0; if is_kept { self.announced_bytes } else { 0 }];
    }

    pub(super) fn room(&mut self) -> &mut [u8] {
        &mut self.buffer[self.filled..]
    }

    pub(super) fn filled(&mut self, bytes: usize) {
        self.filled += bytes;
    }

    /// Takes the data of a segment for the machine itself; empty for any other.
    pub(super) fn control_data(&mut self) -> Bytes {
        if self.is_control { self.take().into() } else { Bytes::new() }
    }

    /// Takes the data; empty if it was discarded.
    pub(super) fn take(&mut self) -> Vec<u8> {
        std::mem::take(self).buffer
    }
}
