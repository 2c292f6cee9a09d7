//! A ring buffer for bytes in flight, which grows as needed and is then kept.

use std::io::{self, Read, Write};

/// Minimum capacity.
const SIZE_MIN: usize = 64 << 10;

/// A queue of bytes.
#[derive(Debug, Default)]
pub(super) struct Ring {
    memory: Vec<u8>,
    begin: usize,
    used: usize,
}

impl Ring {
    /// Appends at most `bytes` in one read; 0: the reader has ended.
    pub(super) fn read_from(&mut self, mut from: impl Read, bytes: usize) -> io::Result<usize> {
        if self.memory.len() - self.used < bytes.min(SIZE_MIN) {
            self.grow();
        }
        let size = self.memory.len();
        let at = (self.begin + self.used) % size;
        let end = if at < self.begin { self.begin } else { size };
        let read = from.read(&mut self.memory[at..end.min(at + bytes)])?;
        self.used += read;
        Ok(read)
    }

    /// Removes at most `bytes` in one write, at most those in the queue.
    pub(super) fn write_to(&mut self, mut to: impl Write, bytes: usize) -> io::Result<usize> {
        let end = (self.begin + bytes.min(self.used)).min(self.memory.len());
        let written = to.write(&self.memory[self.begin..end])?;
        self.used -= written;
        // Start at the beginning again when empty, so that long runs stay contiguous.
        self.begin = match self.used {
            0 => 0,
            _ => (self.begin + written) % self.memory.len(),
        };
        Ok(written)
    }

    fn grow(&mut self) {
        let mut larger = vec![0; (self.memory.len() * 2).max(SIZE_MIN)];
        let first = self.used.min(self.memory.len() - self.begin);
        larger[..first].copy_from_slice(&self.memory[self.begin..self.begin + first]);
        larger[first..self.used].copy_from_slice(&self.memory[..self.used - first]);
        (self.memory, self.begin) = (larger, 0);
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)] // a test may unwrap

    use super::*;

    /// Goal: bytes keep their order, whatever the sizes, while the memory wraps around and grows.
    #[test]
    fn bytes_keep_their_order() {
        let mut ring = Ring::default();
        let (mut next_in, mut next_out, mut number) = (0_u8, 0_u8, 1_u64);
        let mut held = 0;
        for step in 0..4_000 {
            number = number.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
            let want = (number >> 33) as usize % 90_000 + 1;
            if held < 300_000 && (step % 2 == 0 || held == 0) {
                let bytes: Vec<u8> = (0..want).map(|at| next_in.wrapping_add(at as u8)).collect();
                let read = ring.read_from(&bytes[..], want).unwrap();
                assert!(read > 0);
                (next_in, held) = (next_in.wrapping_add(read as u8), held + read);
            } else {
                let mut out = Vec::new();
                let written = ring.write_to(&mut out, want).unwrap();
                assert!(written > 0 && written <= want);
                for byte in out {
                    assert_eq!(byte, next_out);
                    next_out = next_out.wrapping_add(1);
                }
                held -= written;
            }
            assert_eq!(ring.used, held);
        }
    }
}
