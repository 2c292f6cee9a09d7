//! What is to be sent: PDUs in order, as pieces that leave together.

use crate::tap::TappedConnection;
use crate::turn::TURN_BYTES;
use bytes::{Buf, Bytes, BytesMut};
use iscsi::framing::{Digests, Pdu, encode_head, encode_tail};
use iscsi::pdu::HEADER_BYTES;
use std::collections::VecDeque;
use std::io::{self, IoSlice};
use std::sync::Arc;
use tokio::net::TcpStream;

/// Pieces handed to one system call, at most.
const PIECES_MAX: usize = 128;

/// No more PDUs are handled while this much waits to be sent: a peer that does not read is not
/// served further.
const OUTBOX_BYTES_MAX: usize = 4 << 20;

/// Room for the headers of many PDUs, made at once.
const HEADS_BYTES: usize = 4096;

/// PDUs on their way out of one connection. Data segments are shared, never copied.
#[derive(Debug, Default)]
pub struct Outbox {
    pieces: VecDeque<Bytes>,
    bytes: usize,
    digests: Digests,
    receive_digests: Option<Digests>,
    /// Headers and tails that are not among the pieces yet.
    heads: BytesMut,
    /// Sent since the turn began.
    turn_bytes: usize,
    tap: Option<Arc<TappedConnection>>,
}

impl Outbox {
    /// Appends a PDU with padding and the digests in force.
    pub fn push(&mut self, pdu: Pdu) {
        if self.heads.capacity() - self.heads.len() < HEADER_BYTES {
            self.heads.reserve(HEADS_BYTES);
        }
        let start = self.heads.len();
        encode_head(&pdu, self.digests, &mut self.heads);
        let tap = self.tap.as_deref();
        let copying = tap.map(|tap| tap.begin_sent(&self.heads[start..], &pdu, self.digests));
        if !pdu.data.is_empty() {
            self.seal();
            encode_tail(&pdu, self.digests, &mut self.heads);
        }
        if let (Some(tap), Some(mut copying)) = (&self.tap, copying) {
            if !pdu.data.is_empty() {
                copying.add(&pdu.data);
                copying.add(&self.heads); // what follows the data
            }
            tap.end(copying);
        }
        if !pdu.data.is_empty() {
            self.bytes += pdu.data.len();
            self.pieces.push_back(pdu.data);
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
        self.bytes + self.heads.len()
    }

    /// So much waits that nothing more should be done for this peer.
    pub(crate) fn is_full(&self) -> bool {
        self.bytes() >= OUTBOX_BYTES_MAX
    }

    /// Nothing waits.
    pub fn is_empty(&self) -> bool {
        self.bytes() == 0
    }

    /// Headers and tails collected so far become one piece: PDUs without data share it.
    fn seal(&mut self) {
        if !self.heads.is_empty() {
            self.bytes += self.heads.len();
            self.pieces.push_back(self.heads.split().freeze());
        }
    }

    /// Another turn begins, in which so much may be sent anew.
    pub(crate) fn begin_turn(&mut self) {
        self.turn_bytes = 0;
    }

    /// Sends what the socket takes now, as much as is left of the turn.
    pub(crate) fn write_to(&mut self, tcp: &TcpStream) -> io::Result<()> {
        self.seal();
        while !self.pieces.is_empty() && self.turn_bytes < TURN_BYTES {
            let mut slices = [IoSlice::new(&[]); PIECES_MAX];
            let count = self.pieces.len().min(PIECES_MAX);
            for (slice, piece) in slices.iter_mut().zip(&self.pieces) {
                *slice = IoSlice::new(piece);
            }
            match tcp.try_write_vectored(&slices[..count]) {
                Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
                Ok(sent) => self.advance(sent),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(()),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    fn advance(&mut self, mut sent: usize) {
        self.bytes -= sent;
        self.turn_bytes += sent;
        while let Some(front) = self.pieces.front_mut() {
            if sent < front.len() {
                front.advance(sent);
                return;
            }
            sent -= front.len();
            self.pieces.pop_front();
        }
    }
}
