//! What is to be sent: PDUs in order, as pieces that leave together.

use crate::tap::TappedConnection;
use crate::turn::TURN_BYTES;
use bytes::{Buf, Bytes};
use iscsi::framing::{Digests, Pdu, encode_head, encode_tail};
use std::collections::VecDeque;
use std::io::{self, IoSlice};
use std::sync::Arc;
use tokio::net::TcpStream;

/// Pieces handed to one system call, at most.
const PIECES_MAX: usize = 128;

/// No more PDUs are handled while this much waits to be sent: a peer that does not read is not
/// served further.
const OUTBOX_BYTES_MAX: usize = 4 << 20;

/// PDUs on their way out of one connection. Data segments are shared, never copied.
#[derive(Debug, Default)]
pub struct Outbox {
    pieces: VecDeque<Bytes>,
    bytes: usize,
    digests: Digests,
    receive_digests: Option<Digests>,
    scratch: Vec<u8>,
    /// Sent since the turn began.
    turn_bytes: usize,
    tap: Option<Arc<TappedConnection>>,
}

impl Outbox {
    /// Appends a PDU with padding and the digests in force.
    pub fn push(&mut self, pdu: &Pdu) {
        let start = self.scratch.len();
        encode_head(pdu, self.digests, &mut self.scratch);
        let tap = self.tap.as_deref();
        let copying = tap.map(|tap| tap.begin_sent(&self.scratch[start..], pdu, self.digests));
        self.push_data(pdu);
        if let (Some(tap), Some(mut copying)) = (&self.tap, copying) {
            if !pdu.data.is_empty() {
                copying.add(&pdu.data);
                copying.add(&self.scratch); // what follows the data: nothing was sealed since
            }
            tap.end(copying);
        }
    }

    fn push_data(&mut self, pdu: &Pdu) {
        if pdu.data.is_empty() {
            return;
        }
        self.seal();
        self.bytes += pdu.data.len();
        self.pieces.push_back(pdu.data.clone());
        encode_tail(pdu, self.digests, &mut self.scratch);
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
        self.bytes + self.scratch.len()
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
        if !self.scratch.is_empty() {
            self.bytes += self.scratch.len();
            self.pieces.push_back(Bytes::copy_from_slice(&self.scratch));
            self.scratch.clear();
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
