//! Text over several PDUs: the C bit, in both directions. RFC 7143 §6.1, §6.2.

use super::pairs::Violation;
use alloc::vec::Vec;
use bytes::Bytes;

/// Maximum text that one side may send as one logical text data segment. RFC 7143 §6.1 requires at
/// least 8 KiB, and 64 KiB for very long authentication items.
pub const TEXT_BYTES_MAX: usize = 65_536;

/// Joins the data segments of PDUs with the C bit and of the PDU without C that ends them.
#[derive(Clone, Debug)]
pub struct Reassembler {
    text: Vec<u8>,
    text_bytes_max: usize,
}

impl Default for Reassembler {
    fn default() -> Self {
        Self::new(TEXT_BYTES_MAX)
    }
}

impl Reassembler {
    /// Creates a reassembler that holds at most `text_bytes_max` bytes.
    pub const fn new(text_bytes_max: usize) -> Self {
        Self { text: Vec::new(), text_bytes_max }
    }

    /// Takes the next data segment; returns the whole text when `more` (the C bit) is not set.
    ///
    /// # Errors
    /// [`Violation::TextTooLong`]; the held text is freed.
    pub fn add(&mut self, segment: &[u8], more: bool) -> Result<Option<Vec<u8>>, Violation> {
        if segment.len() > self.text_bytes_max - self.text.len() {
            self.text = Vec::new();
            return Err(Violation::TextTooLong { text_bytes_max: self.text_bytes_max });
        }
        let bytes = self.text.len() + segment.len();
        if bytes > self.text.capacity() {
            // Doubled, so that few copies are made, but never beyond the limit.
            let capacity = bytes.max(2 * self.text.capacity()).min(self.text_bytes_max);
            self.text.reserve_exact(capacity - self.text.len());
        }
        self.text.extend_from_slice(segment);
        Ok((!more).then(|| core::mem::take(&mut self.text)))
    }

    /// True while part of a text has arrived and the rest is awaited.
    pub fn is_waiting(&self) -> bool {
        !self.text.is_empty()
    }

    /// Memory of the held text.
    pub(crate) fn memory_bytes(&self) -> usize {
        self.text.capacity()
    }

    /// Discards the held text.
    pub fn reset(&mut self) {
        self.text = Vec::new();
    }
}

/// Splits a text into data segments that the peer can receive.
#[derive(Clone, Debug, Default)]
pub struct Segmenter {
    text: Vec<u8>,
    /// Number of bytes taken.
    taken_bytes: usize,
}

impl Segmenter {
    /// Creates a segmenter for `text`.
    pub fn new(mut text: Vec<u8>) -> Self {
        text.shrink_to_fit();
        Self { text, taken_bytes: 0 }
    }

    /// Appends `text` to the remaining text.
    pub fn append(&mut self, text: Vec<u8>) {
        if self.is_empty() {
            *self = Self::new(text);
        } else {
            *self = Self::new([self.rest(), &text].concat());
        }
    }

    /// True if everything was taken.
    pub fn is_empty(&self) -> bool {
        self.rest().is_empty()
    }

    /// Memory of the text.
    pub(crate) fn memory_bytes(&self) -> usize {
        self.text.capacity()
    }

    /// Number of remaining bytes.
    pub fn remaining_bytes(&self) -> usize {
        self.rest().len()
    }

    /// Takes the next data segment of at most `segment_bytes_max` bytes; check
    /// [`is_empty`](Self::is_empty) for the C bit. A segment is a copy: while it waits to be sent,
    /// it must not keep the memory of a longer text.
    pub fn next(&mut self, segment_bytes_max: usize) -> Bytes {
        let rest = self.rest();
        let segment = Bytes::copy_from_slice(&rest[..segment_bytes_max.min(rest.len())]);
        self.taken_bytes += segment.len();
        if self.is_empty() {
            *self = Self::default();
        }
        segment
    }

    fn rest(&self) -> &[u8] {
        self.text.get(self.taken_bytes..).unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::vec;

    /// Goal: memory stays within the limit, in whatever pieces a text arrives, and a sent segment
    /// is not kept by the remaining text.
    #[test]
    fn memory_is_bounded_by_the_limit() {
        for piece_bytes in [1, 100, 700, 8192] {
            let mut reassembler = Reassembler::new(9000);
            while reassembler.add(&vec![b'x'; piece_bytes], true).is_ok() {
                assert!(reassembler.text.capacity() <= 9000, "pieces of {piece_bytes}");
            }
            assert_eq!(reassembler.text.capacity(), 0);
        }
        let mut segmenter = Segmenter::new(vec![b'x'; 1100]);
        let segment = segmenter.next(1000);
        assert_eq!((segment.len(), segmenter.remaining_bytes()), (1000, 100));
        assert!(segment.is_unique(), "nothing else holds what was sent");
        assert_eq!(segmenter.memory_bytes(), 1100);
        let rest = segmenter.next(1000);
        assert!(rest.is_unique() && segmenter.memory_bytes() == 0, "it keeps no longer text");
    }
}
