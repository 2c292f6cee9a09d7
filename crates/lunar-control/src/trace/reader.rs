//! Splits a pcapng stream from a server into whole blocks.

use super::pcapng::{block, option};

/// Maximum length of a block: a packet with its options and comment.
const BLOCK_BYTES_MAX: usize = 128 << 10;
/// Length of the type and length fields.
const HEAD_BYTES: usize = 8;
/// Minimum length of a block, with the length repeated at its end.
const BLOCK_BYTES_MIN: usize = 12;
/// Length of the interface and time fields, before the options of a statistics block.
const STATISTICS_FIXED_BYTES: usize = 12;

/// Counts in a trace.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct TraceCounts {
    /// Number of PDUs in the trace.
    pub pdus: u64,
    /// Number of PDUs that are missing in the trace.
    pub dropped: u64,
}

/// Collects bytes into whole blocks.
#[derive(Debug, Default)]
pub struct BlockReader {
    rest: Vec<u8>,
    counts: TraceCounts,
}

/// Error: the stream is not a trace of this program.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct NoBlock;

impl BlockReader {
    /// The counts of the last statistics block.
    pub fn counts(&self) -> TraceCounts {
        self.counts
    }

    /// Adds bytes; returns all blocks that are now complete.
    ///
    /// # Errors
    /// Fails if the bytes are not a trace of this program.
    pub fn push(&mut self, bytes: &[u8]) -> Result<Vec<u8>, NoBlock> {
        self.rest.extend_from_slice(bytes);
        let mut end = 0;
        while let Some(head) = self.rest[end..].first_chunk::<HEAD_BYTES>() {
            let [kind, length] = [&head[..4], &head[4..]].map(number);
            let length = usize::try_from(length).map_err(|_| NoBlock)?;
            if !(BLOCK_BYTES_MIN..=BLOCK_BYTES_MAX).contains(&length) || length % 4 != 0 {
                return Err(NoBlock);
            }
            let Some(block) = self.rest.get(end..end + length) else { break };
            if u64::from(block::STATISTICS) == kind {
                self.counts = counts(&block[HEAD_BYTES..length - 4]).ok_or(NoBlock)?;
            }
            end += length;
        }
        let rest = self.rest.split_off(end);
        Ok(std::mem::replace(&mut self.rest, rest))
    }
}

/// The counts in a statistics block.
fn counts(body: &[u8]) -> Option<TraceCounts> {
    let mut options = body.get(STATISTICS_FIXED_BYTES..)?;
    let (mut received, mut dropped) = (None, None);
    while let Some((head, rest)) = options.split_first_chunk::<4>() {
        let code = u16::from_be_bytes([head[0], head[1]]);
        let length = usize::from(u16::from_be_bytes([head[2], head[3]]));
        let value = rest.get(..length)?;
        match code {
            option::ISB_RECEIVED => received = Some(number(value)),
            option::ISB_DROPPED => dropped = Some(number(value)),
            _ => {}
        }
        options = rest.get(length.next_multiple_of(4)..)?;
    }
    let (received, dropped) = (received?, dropped?);
    Some(TraceCounts { pdus: received.saturating_sub(dropped), dropped })
}

/// Decodes a big-endian number of at most eight bytes.
fn number(bytes: &[u8]) -> u64 {
    bytes.iter().take(8).fold(0, |number, byte| number << 8 | u64::from(*byte))
}
