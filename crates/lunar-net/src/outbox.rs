//! The send queue: PDUs in order, as pieces that are sent together.

use crate::tap::{PduCopy, TappedConnection};
use crate::turn::TURN_BYTES;
use bytes::{Buf, Bytes};
use lunar_iscsi::framing::{Digests, OpenSegment, Pdu, encode_header, encode_tail};
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
/// fifth slower in one call. Two pieces of 256 KiB fit with their headers: a call for the rest, a
/// few bytes, would cost as much as a large one.
const SEND_BYTES_MAX: usize = (512 << 10) + (4 << 10);

/// Default number of queued bytes at which the connection stops handling PDUs: a peer that does not
/// read is not served further. A handler may set less ([`BufferLimits`](crate::BufferLimits)).
pub(crate) const OUTBOX_BYTES_MAX: usize = 4 << 20;

/// Number of sent header bytes from which on the buffer of headers is compacted; also the capacity
/// that it keeps when the queue is empty.
const HEADER_BUFFER_BYTES: usize = 4096;

/// Capacity for pieces that is kept when the queue is empty.
const PIECES_KEPT: usize = 2 * PIECES_MAX;

/// Length up to which the data of a command (Data-In, Data-Out and immediate data) counts as memory
/// of the outbox. Longer data is charged by the handler that has allocated it; the data of other
/// PDUs always counts.
pub const COUNTED_DATA_IN_BYTES_MAX: usize = 512;

/// Memory of an allocation beyond its length: the allocator's header and rounding, and the counter
/// of a shared buffer.
const ALLOCATION_BYTES: usize = 64;

/// Send queue of one connection. Data segments are shared, never copied.
///
/// A PDU may be *open*: its header announces data that follows in parts
/// ([`push_part`](Self::push_part)). It keeps its position; PDUs pushed meanwhile wait behind it.
#[derive(Debug)]
pub struct Outbox {
    /// Bytes that may be sent now.
    queue: PieceQueue,
    /// Open PDUs, in the order in which they are sent. The data of the first one is appended to
    /// `queue`, that of each further one to `behind` of the open PDU before it.
    open: Vec<OpenPdu>,
    /// Number of queued bytes at which the queue is full.
    bytes_max: usize,
    digests: Digests,
    receive_digests: Option<Digests>,
    /// Bytes sent since the turn began.
    turn_bytes: usize,
    tap: Option<Arc<TappedConnection>>,
}

/// A PDU whose data is not complete.
#[derive(Debug)]
struct OpenPdu {
    segment: OpenSegment,
    opcode: Opcode,
    /// PDUs that wait behind it.
    behind: PieceQueue,
    /// Its copy for the tap.
    copy: Option<PduCopy>,
    /// Copies of the complete PDUs behind it.
    copies_behind: Vec<PduCopy>,
}

/// Bytes in the order of sending.
#[derive(Debug, Default)]
struct PieceQueue {
    pieces: VecDeque<Piece>,
    /// Bytes of all pieces.
    bytes: usize,
    /// Memory of the data of all pieces that nothing else charges.
    data_bytes: usize,
    /// Headers, and padding with digests, of all pieces; the first `header_bytes_sent` bytes are
    /// sent.
    headers: Vec<u8>,
    header_bytes_sent: usize,
}

/// Bytes pushed together: PDUs without data share one piece.
#[derive(Debug)]
struct Piece {
    /// Number of header bytes that come first.
    header_bytes: usize,
    /// Data segment that follows, if there is one.
    data: Bytes,
    /// Memory of the data, if nothing else charges it.
    counted_bytes: usize,
}

impl Default for Outbox {
    fn default() -> Self {
        Self {
            queue: PieceQueue::default(),
            open: Vec::new(),
            bytes_max: OUTBOX_BYTES_MAX,
            digests: Digests::default(),
            receive_digests: None,
            turn_bytes: 0,
            tap: None,
        }
    }
}

impl Outbox {
    /// Appends a PDU with padding and the digests in force, or the beginning of an open PDU.
    pub fn push(&mut self, pdu: Pdu) {
        if pdu.missing_bytes() > 0 || !self.open.is_empty() {
            return self.push_among_open(pdu);
        }
        match &self.tap {
            None => {
                self.queue.push(pdu, self.digests);
            }
            Some(tap) => tap.end(self.queue.push_tapped(pdu, self.digests, tap)),
        }
    }

    /// Appends a PDU that is open or waits behind an open one.
    #[cold]
    fn push_among_open(&mut self, pdu: Pdu) {
        let segment = OpenSegment::of(&pdu, self.digests);
        let opcode = pdu.opcode();
        let queue = self.open.last_mut().map_or(&mut self.queue, |last| &mut last.behind);
        let copy = match &self.tap {
            Some(tap) => Some(queue.push_tapped(pdu, self.digests, tap)),
            None => {
                queue.push(pdu, self.digests);
                None
            }
        };
        if let Some(segment) = segment {
            let (behind, copies_behind) = (PieceQueue::default(), Vec::new());
            self.open.push(OpenPdu { segment, opcode, behind, copy, copies_behind });
        } else if let Some(last) = self.open.last_mut() {
            last.copies_behind.extend(copy);
        }
    }

    /// Appends the next part of the data of the open PDU with this Initiator Task Tag; more than is
    /// missing is dropped. `digest` is sent as the data digest of the PDU when the part completes
    /// it; `None`: the digest of its data. Without an open PDU of this tag the part is dropped.
    pub fn push_part(&mut self, initiator_task_tag: u32, mut data: Bytes, digest: Option<u32>) {
        let is_meant = |open: &OpenPdu| open.segment.initiator_task_tag() == initiator_task_tag;
        let Some(at) = self.open.iter().position(is_meant) else { return };
        let (before, rest) = self.open.split_at_mut(at);
        let Some(open) = rest.first_mut() else { return };
        let queue = before.last_mut().map_or(&mut self.queue, |before| &mut before.behind);
        data.truncate(open.segment.missing_bytes());
        if let Some(copy) = &mut open.copy {
            copy.add(&data);
        }
        let is_complete = open.segment.add(&data);
        let counted_bytes = counted_bytes(open.opcode, data.len());
        queue.add(0, data, counted_bytes);
        if is_complete {
            let start = queue.headers.len();
            open.segment.encode_tail(digest, &mut queue.headers);
            let tail_bytes = queue.headers.len() - start;
            if let Some(copy) = &mut open.copy {
                copy.add(&queue.headers[start..]);
            }
            if tail_bytes > 0 {
                queue.add(tail_bytes, Bytes::new(), 0);
            }
            self.close(at);
        }
    }

    /// Removes an open PDU that is complete, and appends the PDUs behind it to the queue that
    /// contains it.
    fn close(&mut self, at: usize) {
        let OpenPdu { behind, copy, copies_behind, .. } = self.open.remove(at);
        let copies = copy.into_iter().chain(copies_behind);
        match at.checked_sub(1).and_then(|before| self.open.get_mut(before)) {
            Some(before) => {
                before.behind.append(behind);
                before.copies_behind.extend(copies);
            }
            None => {
                self.queue.append(behind);
                if let Some(tap) = &self.tap {
                    copies.for_each(|copy| tap.end(copy));
                }
            }
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

    /// Number of bytes that wait, also behind open PDUs.
    pub fn bytes(&self) -> usize {
        self.queue.bytes + self.open.iter().map(|open| open.behind.bytes).sum::<usize>()
    }

    /// Memory of headers, of the list of pieces, and of data that nothing else charges.
    pub(crate) fn queue_bytes(&self) -> usize {
        let open = self.open.iter().map(|open| open.behind.memory_bytes());
        let copies = self.open.iter().map(|open| open.copies_behind.capacity());
        self.queue.memory_bytes()
            + self.open.capacity() * size_of::<OpenPdu>()
            + open.sum::<usize>()
            + copies.sum::<usize>() * size_of::<PduCopy>()
    }

    /// True when the queue is full, so that no further PDU of this peer is handled.
    pub(crate) fn is_full(&self) -> bool {
        self.bytes() >= self.bytes_max
    }

    /// Sets the number of bytes from which on the queue is full.
    pub(crate) fn set_bytes_max(&mut self, bytes_max: usize) {
        self.bytes_max = bytes_max;
    }

    /// True when no bytes can be sent now: none wait, or all wait behind an open PDU.
    pub fn is_empty(&self) -> bool {
        self.queue.bytes == 0
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
        while !self.queue.pieces.is_empty() && self.turn_bytes < TURN_BYTES {
            // sendmsg(2), because writev(2) does additional work for files.
            let slices = self.queue.slices();
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

    fn advance(&mut self, sent: usize) {
        self.turn_bytes += sent;
        self.queue.advance(sent);
    }
}

impl PieceQueue {
    /// Appends a PDU with padding and digests, or the beginning of an open one; returns the number
    /// of bytes before its data.
    #[inline]
    fn push(&mut self, pdu: Pdu, digests: Digests) -> usize {
        let start = self.headers.len();
        encode_header(&pdu, digests, &mut self.headers);
        let header_bytes = self.headers.len() - start;
        if !pdu.data.is_empty() && pdu.missing_bytes() == 0 {
            encode_tail(&pdu, digests, &mut self.headers);
        }
        let tail_bytes = self.headers.len() - start - header_bytes;
        let counted_bytes = counted_bytes(pdu.opcode(), pdu.data.len());
        self.add(header_bytes, pdu.data, counted_bytes);
        if tail_bytes > 0 {
            self.add(tail_bytes, Bytes::new(), 0);
        }
        header_bytes
    }

    /// Appends a PDU as [`push`](Self::push) does; returns its copy for the tap.
    #[cold]
    fn push_tapped(&mut self, pdu: Pdu, digests: Digests, tap: &TappedConnection) -> PduCopy {
        let (start, data) = (self.headers.len(), pdu.data.clone());
        let data_bytes = pdu.data_segment_bytes() as usize;
        let header_bytes = self.push(pdu, digests);
        let (header, tail) = self.headers[start..].split_at(header_bytes);
        let mut copy = tap.begin_sent(header, data_bytes, digests);
        copy.add(&data);
        copy.add(tail);
        copy
    }

    /// Appends header bytes and data to the end of the queue.
    fn add(&mut self, header_bytes: usize, data: Bytes, counted_bytes: usize) {
        self.bytes += header_bytes + data.len();
        self.data_bytes += counted_bytes;
        match self.pieces.back_mut() {
            Some(last) if last.data.is_empty() => {
                last.header_bytes += header_bytes;
                last.data = data;
                last.counted_bytes = counted_bytes;
            }
            _ => self.pieces.push_back(Piece { header_bytes, data, counted_bytes }),
        }
    }

    /// Appends another queue, of which nothing was sent.
    fn append(&mut self, other: Self) {
        self.headers.extend_from_slice(&other.headers);
        for piece in other.pieces {
            self.add(piece.header_bytes, piece.data, piece.counted_bytes);
        }
    }

    /// Memory of headers, of the list of pieces, and of data that nothing else charges.
    fn memory_bytes(&self) -> usize {
        self.headers.capacity() + self.pieces.capacity() * size_of::<Piece>() + self.data_bytes
    }

    /// Returns the first slices, for one system call.
    fn slices(&self) -> Vec<IoSlice<'_>> {
        let mut headers = &self.headers[self.header_bytes_sent..];
        let mut slices = Vec::with_capacity(2 * self.pieces.len().min(PIECES_MAX));
        let mut room = SEND_BYTES_MAX;
        for piece in self.pieces.iter().take(PIECES_MAX) {
            let header;
            (header, headers) = headers.split_at(piece.header_bytes);
            for part in [header, &piece.data] {
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
        if self.bytes == 0 {
            self.data_bytes = 0;
            self.pieces.clear();
            self.pieces.shrink_to(PIECES_KEPT);
            self.headers.clear();
            self.headers.shrink_to(HEADER_BUFFER_BYTES);
            self.header_bytes_sent = 0;
            return;
        }
        while let Some(front) = self.pieces.front_mut() {
            let header_bytes = sent.min(front.header_bytes);
            let data_bytes = (sent - header_bytes).min(front.data.len());
            front.header_bytes -= header_bytes;
            front.data.advance(data_bytes);
            self.header_bytes_sent += header_bytes;
            sent -= header_bytes + data_bytes;
            if front.header_bytes + front.data.len() > 0 {
                break;
            }
            self.data_bytes -= front.counted_bytes;
            self.pieces.pop_front();
        }
        // Move the rest once the sent part is larger than it.
        if self.header_bytes_sent >= HEADER_BUFFER_BYTES.max(self.headers.len() / 2) {
            self.headers.drain(..self.header_bytes_sent);
            self.header_bytes_sent = 0;
        }
    }
}

/// Memory of `bytes` of data of a PDU, if nothing else charges it.
fn counted_bytes(opcode: Opcode, bytes: usize) -> usize {
    let is_of_command = [Opcode::DATA_IN, Opcode::DATA_OUT, Opcode::SCSI_COMMAND].contains(&opcode);
    let is_charged = bytes > COUNTED_DATA_IN_BYTES_MAX && is_of_command;
    if bytes == 0 || is_charged { 0 } else { bytes + ALLOCATION_BYTES }
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
            encode_header(&pdu, digests, &mut expected);
            expected.extend_from_slice(&pdu.data);
            encode_tail(&pdu, digests, &mut expected);
            outbox.set_digests(digests);
            outbox.push(pdu);
            assert_eq!(outbox.bytes(), expected.len() - sent_bytes.len());
            taken_bytes = (taken_bytes * 5 + 3) % 331;
            take(&mut outbox, taken_bytes, &mut sent_bytes);
            assert!(
                outbox.queue.headers.len() <= 2 * (outbox.bytes() + HEADER_BUFFER_BYTES),
                "sent headers release their memory"
            );
            if number % 1000 == 999 {
                take(&mut outbox, usize::MAX, &mut sent_bytes);
                assert!(outbox.is_empty());
            }
        }
        assert_eq!(sent_bytes, expected);
    }

    /// Fault: nothing counted short answers, texts and pings that waited to be sent: a peer used up
    /// all memory: each 48 bytes that it sent queued 4 KiB. Goal: data that nothing else charges
    /// counts until it is sent; long data of reads and writes does not.
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
            (Opcode::DATA_OUT, small, true),
            (Opcode::DATA_OUT, small + 1, false),
            (Opcode::SCSI_COMMAND, small + 1, false),
            (Opcode::TEXT_RESPONSE, 8192, true),
            (Opcode::NOP_IN, 1, true),
            (Opcode::SCSI_RESPONSE, 20, true),
            (Opcode::SCSI_RESPONSE, 0, false),
        ] {
            outbox.push(Pdu::with_data(bhs(opcode), Bytes::from(vec![1; bytes])));
            counted += if counts { bytes + ALLOCATION_BYTES } else { 0 };
            assert_eq!(outbox.queue.data_bytes, counted, "{opcode:?} of {bytes} bytes");
        }
        assert!(outbox.queue_bytes() >= empty + counted);
        let mut sent = Vec::new();
        take(&mut outbox, 48 + small, &mut sent);
        assert_eq!(outbox.queue.data_bytes, counted - small - ALLOCATION_BYTES);
        take(&mut outbox, usize::MAX, &mut sent);
        assert_eq!(outbox.queue.data_bytes, 0);
    }

    /// Goal: one system call is handed no more than the limit, and the rest follows.
    #[test]
    fn large_sends_are_split() {
        let data = Bytes::from(vec![7; SEND_BYTES_MAX + SEND_BYTES_MAX / 2]);
        let mut outbox = Outbox::default();
        outbox.push(Pdu::with_data([1; 48], data));
        let all = outbox.bytes();
        let handed =
            |outbox: &Outbox| outbox.queue.slices().iter().map(|part| part.len()).sum::<usize>();
        assert_eq!(handed(&outbox), SEND_BYTES_MAX);
        outbox.advance(SEND_BYTES_MAX);
        assert_eq!(handed(&outbox), all - SEND_BYTES_MAX);
    }

    /// Goal: a PDU that is sent in parts keeps its position; PDUs pushed meanwhile follow it, open
    /// ones included, and the stream equals that of whole PDUs. Everything that is held counts.
    /// Method: PDUs of random lengths are opened, completed in random order, and sent meanwhile.
    #[test]
    fn open_pdus_keep_their_positions() {
        let mut state = 7_u64;
        let mut random = move |below: usize| {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            (state >> 33) as usize % below
        };
        for round in 0..300 {
            let digests = Digests { header: round % 2 == 0, data: round % 3 != 0 };
            let (mut outbox, mut expected, mut sent) = (Outbox::default(), Vec::new(), Vec::new());
            outbox.set_digests(digests);
            let mut missing: Vec<(u32, Bytes)> = Vec::new();
            for tag in 0..12_u32 {
                let mut bhs = [0; 48];
                bhs[0] = Opcode::DATA_IN.0;
                bhs[16..20].copy_from_slice(&tag.to_be_bytes());
                let data = Bytes::from(vec![tag as u8 + 1; random(700)]);
                let whole = Pdu::with_data(bhs, data.clone());
                encode_header(&whole, digests, &mut expected);
                expected.extend_from_slice(&data);
                encode_tail(&whole, digests, &mut expected);
                let here = random(data.len() + 1);
                let pdu = Pdu::open(bhs, data.len() as u32, data.slice(..here));
                if pdu.missing_bytes() > 0 {
                    missing.push((tag, data.slice(here..)));
                }
                outbox.push(pdu);
                while random(3) > 0 && !missing.is_empty() {
                    complete_some(&mut outbox, &mut missing, &mut random);
                    take(&mut outbox, random(900), &mut sent);
                }
            }
            outbox.push_part(99, Bytes::from_static(b"of no open PDU"), None);
            while !missing.is_empty() {
                complete_some(&mut outbox, &mut missing, &mut random);
            }
            assert_eq!(outbox.bytes(), expected.len() - sent.len());
            assert!(outbox.queue_bytes() >= outbox.queue.data_bytes);
            take(&mut outbox, usize::MAX, &mut sent);
            assert!(sent == expected, "round {round}");
            assert!(outbox.open.is_empty() && outbox.bytes() == 0);
            assert_eq!(outbox.queue.data_bytes, 0);
        }
    }

    /// Pushes a part of one of the missing data segments.
    fn complete_some(
        outbox: &mut Outbox,
        missing: &mut Vec<(u32, Bytes)>,
        random: &mut impl FnMut(usize) -> usize,
    ) {
        let at = random(missing.len());
        let (tag, data) = &mut missing[at];
        let part = data.split_to(1 + random(data.len()));
        outbox.push_part(*tag, part, None);
        if data.is_empty() {
            missing.swap_remove(at);
        }
    }

    /// Goal: the digest given with the last part is sent as it is; bytes behind an open PDU count
    /// as waiting, and are not sent before it is complete.
    #[test]
    fn a_given_digest_is_sent() {
        let mut outbox = Outbox::default();
        outbox.set_digests(Digests { header: false, data: true });
        outbox.push(Pdu::open([1; 48], 6, Bytes::from_static(b"ab")));
        outbox.push(Pdu::new([0; 48]));
        assert_eq!(outbox.bytes(), 48 + 2 + 48);
        let mut sent = Vec::new();
        take(&mut outbox, usize::MAX, &mut sent);
        assert_eq!((sent.len(), outbox.bytes()), (50, 48));
        assert!(outbox.is_empty() && outbox.queue_bytes() >= 48);
        outbox.push_part(0x0101_0101, Bytes::from_static(b"cd"), Some(1));
        outbox.push_part(0x0101_0101, Bytes::from_static(b"efgh"), Some(0x0403_0201));
        take(&mut outbox, usize::MAX, &mut sent);
        assert_eq!(sent[48..60], *b"abcdef\0\0\x01\x02\x03\x04");
        assert_eq!((sent.len(), outbox.bytes()), (60 + 48, 0));
    }

    /// Takes bytes like a socket with this much room.
    fn take(outbox: &mut Outbox, mut room: usize, sent_bytes: &mut Vec<u8>) {
        while room > 0 && !outbox.is_empty() {
            let before = sent_bytes.len();
            for slice in outbox.queue.slices() {
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
