//! The send queue: PDUs in order, as pieces that are sent together.

use crate::tap::TappedConnection;
use crate::turn::TURN_BYTES;
use bytes::{Buf, Bytes};
use lunar_iscsi::framing::{Digests, Pdu, encode_head, encode_tail};
use lunar_iscsi::pdu::Opcode;
use std::collections::VecDeque;
use std::io::{self, IoSlice};
use std::sync::Arc;
use tokio::io::Interest;
use tokio::net::TcpStream;

/// Maximum number of pieces handed to one system call: twice as many slices.
const PIECES_MAX: usize = 64;

/// Maximum number of bytes handed to one system call. The call locks the socket, and
/// acknowledgements wait meanwhile: with a congestion control that paces, reads of 1 MiB were a
/// fifth slower in one call. Two pieces of 256 KiB fit with their headers: a call for the rest, a few
/// bytes, would cost as much as a large one.
const SEND_BYTES_MAX: usize = (512 << 10) + (4 << 10);

/// Default number of queued bytes at which the connection stops handling PDUs: a peer that does not
/// read is not served further. A handler may set less ([`BufferLimits`](crate::BufferLimits)).
pub(crate) const OUTBOX_BYTES_MAX: usize = 4 << 20;

/// Number of sent header bytes from which on the buffer of headers is compacted; also the capacity
/// that it keeps when the queue is empty.
const HEADS_BYTES: usize = 4096;

/// Capacity for pieces that is kept when the queue is empty.
const PIECES_KEPT: usize = 2 * PIECES_MAX;

/// Length up to which the data of a Data-In PDU counts as memory of the outbox. Longer data is
/// charged by the handler that has allocated it; the data of other PDUs always counts.
pub const COUNTED_DATA_IN_BYTES_MAX: usize = 512;

/// Memory of an allocation beyond its length: the allocator's header and rounding, and the counter
/// of a shared buffer.
const ALLOCATION_BYTES: usize = 64;

/// Send queue of one connection. Data segments are shared, never copied.
#[derive(Debug)]
pub struct Outbox {
    pieces: VecDeque<Piece>,
    /// Bytes of all pieces.
    bytes: usize,
    /// Memory of the data of all pieces that nothing else charges.
    data_bytes: usize,
    /// Number of queued bytes at which the queue is full.
    bytes_max: usize,
    digests: Digests,
    receive_digests: Option<Digests>,
    /// Headers, and padding with digests, of all pieces; the first `heads_sent` bytes are sent.
    heads: Vec<u8>,
    heads_sent: usize,
    /// Bytes sent since the turn began.
    turn_bytes: usize,
    tap: Option<Arc<TappedConnection>>,
}

/// Bytes pushed together: PDUs without data share one piece.
#[derive(Debug)]
struct Piece {
    /// Number of header bytes that come first.
    head_bytes: usize,
    /// Data segment that follows, if there is one.
    data: Bytes,
    /// Memory of the data, if nothing else charges it.
    counted_bytes: usize,
}

impl Default for Outbox {
    fn default() -> Self {
        Self {
            pieces: VecDeque::new(),
            bytes: 0,
            data_bytes: 0,
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
            let mut pdu_copy = tap.begin_sent(head, &pdu, self.digests);
            pdu_copy.add(&pdu.data);
            pdu_copy.add(tail);
            tap.end(pdu_copy);
        }
        let counted_bytes = counted_bytes(&pdu);
        self.add(data_start - start, pdu.data, counted_bytes);
        let tail_bytes = self.heads.len() - data_start;
        if tail_bytes > 0 {
            self.add(tail_bytes, Bytes::new(), 0);
        }
    }

    /// Appends header bytes and data to the end of the queue.
    fn add(&mut self, head_bytes: usize, data: Bytes, counted_bytes: usize) {
        self.bytes += head_bytes + data.len();
        self.data_bytes += counted_bytes;
        match self.pieces.back_mut() {
            Some(last) if last.data.is_empty() => {
                last.head_bytes += head_bytes;
                last.data = data;
                last.counted_bytes = counted_bytes;
            }
            _ => self.pieces.push_back(Piece { head_bytes, data, counted_bytes }),
        }
    }

    /// Sets the digests of PDUs pushed, and of PDUs received, from now on.
    pub fn set_digests(&mut self, digests: Digests) {
        self.digests = digests;
        self.receive_digests = Some(digests);
    }

    /// Copies PDUs pushed from now on to `tap`.
    pub(crate) fn set_tap(&mut self, tap: Option<Arc<TappedConnection>>) {
        self.tap = tap;
    }

    /// Takes the digests that the receiving side has to apply, if they were set since the last
    /// call.
    pub(crate) fn take_receive_digests(&mut self) -> Option<Digests> {
        self.receive_digests.take()
    }

    /// Number of bytes that wait.
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// Memory of headers, of the list of pieces, and of data that nothing else charges.
    pub(crate) fn queue_bytes(&self) -> usize {
        self.heads.capacity() + self.pieces.capacity() * size_of::<Piece>() + self.data_bytes
    }

    /// True when the queue is full, so that no further PDU of this peer is handled.
    pub(crate) fn is_full(&self) -> bool {
        self.bytes() >= self.bytes_max
    }

    /// Sets the number of bytes from which on the queue is full.
    pub(crate) fn set_bytes_max(&mut self, bytes_max: usize) {
        self.bytes_max = bytes_max;
    }

    /// True when no bytes wait.
    pub fn is_empty(&self) -> bool {
        self.bytes() == 0
    }

    /// Begins a turn, with a full allowance of bytes to send.
    pub(crate) fn begin_turn(&mut self) {
        self.turn_bytes = 0;
    }

    /// Number of bytes sent in this turn.
    pub(crate) fn turn_bytes(&self) -> usize {
        self.turn_bytes
    }

    /// Sends what the socket takes now, up to the allowance of the turn.
    pub(crate) fn write_to(&mut self, tcp: &TcpStream) -> io::Result<()> {
        while !self.pieces.is_empty() && self.turn_bytes < TURN_BYTES {
            // sendmsg(2), because writev(2) does additional work for files.
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

    /// Returns the first slices, for one system call.
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
            self.data_bytes = 0;
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
            self.data_bytes -= front.counted_bytes;
            self.pieces.pop_front();
        }
        // Move the rest once the sent part is larger than it.
        if self.heads_sent >= HEADS_BYTES.max(self.heads.len() / 2) {
            self.heads.drain(..self.heads_sent);
            self.heads_sent = 0;
        }
    }
}

/// Memory of the data of a PDU, if nothing else charges it.
fn counted_bytes(pdu: &Pdu) -> usize {
    let is_charged = pdu.opcode() == Opcode::DATA_IN && pdu.data.len() > COUNTED_DATA_IN_BYTES_MAX;
    if pdu.data.is_empty() || is_charged { 0 } else { pdu.data.len() + ALLOCATION_BYTES }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal: bytes are sent once and in order, however little the socket takes at a time, and sent
    /// headers soon release their memory. Method: PDUs with and without data and digests are pushed
    /// while parts of the stream are taken; the result equals their encoding.
    #[test]
    fn bytes_are_sent_in_order() {
        let (mut outbox, mut expected, mut sent_bytes) =
            (Outbox::default(), Vec::new(), Vec::new());
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
            assert_eq!(outbox.bytes(), expected.len() - sent_bytes.len());
            taken_bytes = (taken_bytes * 5 + 3) % 331;
            take(&mut outbox, taken_bytes, &mut sent_bytes);
            assert!(
                outbox.heads.len() <= 2 * (outbox.bytes() + HEADS_BYTES),
                "sent headers release their memory"
            );
            if number % 1000 == 999 {
                take(&mut outbox, usize::MAX, &mut sent_bytes);
                assert!(outbox.is_empty());
            }
        }
        assert_eq!(sent_bytes, expected);
    }

    /// Fault: nothing counted short answers, texts and pings that waited to be sent: one peer took
    /// all memory with 48 bytes for each 4 KiB.
    /// Goal: data that nothing else charges counts until it is sent; long data of reads does not.
    #[test]
    fn data_counts_until_it_is_sent() {
        let mut outbox = Outbox::default();
        let empty = outbox.queue_bytes();
        let bhs = |opcode: Opcode| {
            let mut bhs = [0; 48];
            bhs[0] = opcode.0;
            bhs
        };
        let small = COUNTED_DATA_IN_BYTES_MAX;
        let mut counted = 0;
        for (opcode, bytes, counts) in [
            (Opcode::DATA_IN, small, true),
            (Opcode::DATA_IN, small + 1, false),
            (Opcode::DATA_IN, 0, false),
            (Opcode::TEXT_RESPONSE, 8192, true),
            (Opcode::NOP_IN, 1, true),
            (Opcode::SCSI_RESPONSE, 20, true),
            (Opcode::SCSI_RESPONSE, 0, false),
        ] {
            outbox.push(Pdu::with_data(bhs(opcode), Bytes::from(vec![1; bytes])));
            counted += if counts { bytes + ALLOCATION_BYTES } else { 0 };
            assert_eq!(outbox.data_bytes, counted, "{opcode:?} of {bytes} bytes");
        }
        assert!(outbox.queue_bytes() >= empty + counted);
        let mut sent = Vec::new();
        take(&mut outbox, 48 + small, &mut sent);
        assert_eq!(outbox.data_bytes, counted - small - ALLOCATION_BYTES);
        take(&mut outbox, usize::MAX, &mut sent);
        assert_eq!(outbox.data_bytes, 0);
    }

    /// Goal: one system call is handed no more than the limit, and the rest follows.
    #[test]
    fn large_sends_are_split() {
        let data = Bytes::from(vec![7; SEND_BYTES_MAX + SEND_BYTES_MAX / 2]);
        let mut outbox = Outbox::default();
        outbox.push(Pdu::with_data([1; 48], data));
        let all = outbox.bytes();
        let handed = |outbox: &Outbox| outbox.slices().iter().map(|part| part.len()).sum::<usize>();
        assert_eq!(handed(&outbox), SEND_BYTES_MAX);
        outbox.advance(SEND_BYTES_MAX);
        assert_eq!(handed(&outbox), all - SEND_BYTES_MAX);
    }

    /// Takes bytes like a socket with this much room.
    fn take(outbox: &mut Outbox, mut room: usize, sent_bytes: &mut Vec<u8>) {
        while room > 0 && !outbox.is_empty() {
            let before = sent_bytes.len();
            for slice in outbox.slices() {
                sent_bytes.extend_from_slice(
                    &slice[..slice.len().min(room - (sent_bytes.len() - before))],
                );
            }
            let sent = sent_bytes.len() - before;
            outbox.advance(sent);
            room -= sent;
        }
    }
}
