//! What is to be sent: PDUs in order, as pieces that leave together.

use crate::tap::TappedConnection;
use crate::turn::TURN_BYTES;
use bytes::{Buf, Bytes};
use lunar_iscsi::framing::{Digests, Pdu, encode_head, encode_tail};
use std::collections::VecDeque;
use std::io::{self, IoSlice};
use std::sync::Arc;
use tokio::io::Interest;
use tokio::net::TcpStream;

/// Pieces handed to one system call, at most: twice as many slices.
const PIECES_MAX: usize = 64;

/// Bytes handed to one system call, at most. The socket is locked meanwhile, and acknowledgements
/// wait: with a congestion control that paces, reads of 1 MiB were a fifth slower in one call.
const SEND_BYTES_MAX: usize = 512 << 10;

/// No more PDUs are handled while this much waits to be sent: a peer that does not read is not
/// served further. A role may set less ([`BufferLimits`](crate::BufferLimits)).
pub(crate) const OUTBOX_BYTES_MAX: usize = 4 << 20;

/// So many bytes of headers that were sent are kept before those behind them are moved, and so much
/// room when there is nothing to be sent.
const HEADS_BYTES: usize = 4096;

/// Room for pieces that is kept when there is nothing to be sent.
const PIECES_KEPT: usize = 2 * PIECES_MAX;

/// PDUs on their way out of one connection. Data segments are shared, never copied.
#[derive(Debug)]
pub struct Outbox {
    pieces: VecDeque<Piece>,
    /// Of all pieces.
    bytes: usize,
    /// From so many on it is full.
    bytes_max: usize,
    digests: Digests,
    receive_digests: Option<Digests>,
    /// Headers and tails: of the pieces, behind what was sent.
    heads: Vec<u8>,
    heads_sent: usize,
    /// Sent since the turn began.
    turn_bytes: usize,
    tap: Option<Arc<TappedConnection>>,
}

/// What was pushed together: PDUs without data share one.
#[derive(Debug)]
struct Piece {
    /// So many bytes of the heads come first.
    head_bytes: usize,
    /// Then a data segment, if there is one.
    data: Bytes,
}

impl Default for Outbox {
    fn default() -> Self {
        Self {
            pieces: VecDeque::new(),
            bytes: 0,
            bytes_max: OUTBOX_BYTES_MAX,
            digests: Digests::default(),
            receive_digests: None,
            heads: Vec::new(),
            heads_sent: 0,
            turn_bytes: 0,
            tap: None,
        }
    }
}

impl Outbox {
    /// Appends a PDU with padding and the digests in force.
    pub fn push(&mut self, pdu: Pdu) {
        let start = self.heads.len();
        encode_head(&pdu, self.digests, &mut self.heads);
        let data_start = self.heads.len();
        if !pdu.data.is_empty() {
            encode_tail(&pdu, self.digests, &mut self.heads);
        }
        if let Some(tap) = &self.tap {
            let (head, tail) = self.heads[start..].split_at(data_start - start);
            let mut copying = tap.begin_sent(head, &pdu, self.digests);
            copying.add(&pdu.data);
            copying.add(tail);
            tap.end(copying);
        }
        self.add(data_start - start, pdu.data);
        let tail_bytes = self.heads.len() - data_start;
        if tail_bytes > 0 {
            self.add(tail_bytes, Bytes::new());
        }
    }

    /// So many bytes of the heads and some data leave behind all else.
    fn add(&mut self, head_bytes: usize, data: Bytes) {
        self.bytes += head_bytes + data.len();
        match self.pieces.back_mut() {
            Some(last) if last.data.is_empty() => {
                last.head_bytes += head_bytes;
                last.data = data;
            }
            _ => self.pieces.push_back(Piece { head_bytes, data }),
        }
    }

    /// Digests for what is pushed, and for what is received, from now on.
    pub fn set_digests(&mut self, digests: Digests) {
        self.digests = digests;
        self.receive_digests = Some(digests);
    }

    /// Copies what is pushed from now on.
    pub(crate) fn set_tap(&mut self, tap: Option<Arc<TappedConnection>>) {
        self.tap = tap;
    }

    /// Digests that the receiving side has to take over, once.
    pub(crate) fn take_receive_digests(&mut self) -> Option<Digests> {
        self.receive_digests.take()
    }

    /// How many bytes wait.
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// Memory of headers and of the list of pieces; data segments are not in it.
    pub(crate) fn queue_bytes(&self) -> usize {
        self.heads.capacity() + self.pieces.capacity() * size_of::<Piece>()
    }

    /// So much waits that nothing more should be done for this peer.
    pub(crate) fn is_full(&self) -> bool {
        self.bytes() >= self.bytes_max
    }

    /// From so many bytes on it is full.
    pub(crate) fn set_bytes_max(&mut self, bytes_max: usize) {
        self.bytes_max = bytes_max;
    }

    /// Nothing waits.
    pub fn is_empty(&self) -> bool {
        self.bytes() == 0
    }

    /// Another turn begins, in which so much may be sent anew.
    pub(crate) fn begin_turn(&mut self) {
        self.turn_bytes = 0;
    }

    /// How many bytes were sent in this turn.
    pub(crate) fn turn_bytes(&self) -> usize {
        self.turn_bytes
    }

    /// Sends what the socket takes now, as much as is left of the turn.
    pub(crate) fn write_to(&mut self, tcp: &TcpStream) -> io::Result<()> {
        while !self.pieces.is_empty() && self.turn_bytes < TURN_BYTES {
            // sendmsg(2): what writev(2) does besides is for files.
            let slices = self.slices();
            let send = || socket2::SockRef::from(tcp).send_vectored(&slices);
            match tcp.try_io(Interest::WRITABLE, send) {
                Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
                Ok(sent) => self.advance(sent),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(()),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    /// What leaves first, for one system call.
    fn slices(&self) -> Vec<IoSlice<'_>> {
        let mut heads = &self.heads[self.heads_sent..];
        let mut slices = Vec::with_capacity(2 * self.pieces.len().min(PIECES_MAX));
        let mut room = SEND_BYTES_MAX;
        for piece in self.pieces.iter().take(PIECES_MAX) {
            let head;
            (head, heads) = heads.split_at(piece.head_bytes);
            for part in [head, &piece.data] {
                let part = &part[..part.len().min(room)];
                if !part.is_empty() {
                    slices.push(IoSlice::new(part));
                    room -= part.len();
                }
            }
            if room == 0 {
                break;
            }
        }
        slices
    }

    fn advance(&mut self, mut sent: usize) {
        self.bytes -= sent;
        self.turn_bytes += sent;
        if self.bytes == 0 {
            self.pieces.clear();
            self.pieces.shrink_to(PIECES_KEPT);
            self.heads.clear();
            self.heads.shrink_to(HEADS_BYTES);
            self.heads_sent = 0;
            return;
        }
        while let Some(front) = self.pieces.front_mut() {
            let head_bytes = sent.min(front.head_bytes);
            let data_bytes = (sent - head_bytes).min(front.data.len());
            front.head_bytes -= head_bytes;
            front.data.advance(data_bytes);
            self.heads_sent += head_bytes;
            sent -= head_bytes + data_bytes;
            if front.head_bytes + front.data.len() > 0 {
                break;
            }
            self.pieces.pop_front();
        }
        // Once that is more than what is moved for it.
        if self.heads_sent >= HEADS_BYTES.max(self.heads.len() / 2) {
            self.heads.drain(..self.heads_sent);
            self.heads_sent = 0;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal: bytes leave once and in order, however little the socket takes at a time, and heads
    /// that were sent take no room for long. Method: PDUs with and without data and digests are
    /// pushed while pieces of the stream are taken; what leaves is what they encode to.
    #[test]
    fn bytes_leave_in_order() {
        let (mut outbox, mut expected, mut left) = (Outbox::default(), Vec::new(), Vec::new());
        let mut taken_bytes = 1;
        for number in 0..3000_usize {
            let data = vec![number as u8; (number % 7) * 33];
            let digests = Digests { header: number % 3 == 0, data: number % 5 == 0 };
            let pdu = Pdu::with_data([number as u8 ^ 0xff; 48], Bytes::from(data));
            encode_head(&pdu, digests, &mut expected);
            expected.extend_from_slice(&pdu.data);
            encode_tail(&pdu, digests, &mut expected);
            outbox.set_digests(digests);
            outbox.push(pdu);
            assert_eq!(outbox.bytes(), expected.len() - left.len());
            taken_bytes = (taken_bytes * 5 + 3) % 331;
            take(&mut outbox, taken_bytes, &mut left);
            assert!(outbox.heads.len() <= 2 * (outbox.bytes() + HEADS_BYTES), "room comes back");
            if number % 1000 == 999 {
                take(&mut outbox, usize::MAX, &mut left);
                assert!(outbox.is_empty());
            }
        }
        assert_eq!(left, expected);
    }

    /// Goal: one system call is handed no more than it should have, and the rest follows.
    #[test]
    fn large_sends_are_cut() {
        let data = Bytes::from(vec![7; SEND_BYTES_MAX + SEND_BYTES_MAX / 2]);
        let mut outbox = Outbox::default();
        outbox.push(Pdu::with_data([1; 48], data));
        let all = outbox.bytes();
        let handed = |outbox: &Outbox| outbox.slices().iter().map(|part| part.len()).sum::<usize>();
        assert_eq!(handed(&outbox), SEND_BYTES_MAX);
        outbox.advance(SEND_BYTES_MAX);
        assert_eq!(handed(&outbox), all - SEND_BYTES_MAX);
    }

    /// As a socket does that has room for so many bytes.
    fn take(outbox: &mut Outbox, mut room: usize, left: &mut Vec<u8>) {
        while room > 0 && !outbox.is_empty() {
            let before = left.len();
            for slice in outbox.slices() {
                left.extend_from_slice(&slice[..slice.len().min(room - (left.len() - before))]);
            }
            let sent = left.len() - before;
            outbox.advance(sent);
            room -= sent;
        }
    }
}
