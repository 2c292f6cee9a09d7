//! A TCP connection that never blocks: PDUs are queued, sent as far as the socket takes them, and
//! received as they are complete. Digests are computed here. RFC 7143 §11.2, §13.1.

use anyhow::Result;
use lunar_testkit::raw::RawPdu;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use socket2::{Domain, Protocol, SockAddr, Socket, Type};
use std::io::{ErrorKind, Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpStream};
use std::time::Duration;

/// Bytes of a basic header segment.
const HEADER_BYTES: usize = 48;

/// Receive buffer of a connection whose responses are to stay in the server.
const SMALL_RECEIVE_BUFFER_BYTES: usize = 1152;

/// Maximum segment size of such a connection.
const SHORT_SEGMENT_BYTES: u32 = 536;

/// Maximum number of bytes that one call reads from the socket.
const READ_BYTES: usize = 64 << 10;

/// One TCP connection. Dropping it resets it, so that many connections leave no sockets in
/// TIME_WAIT.
pub struct TcpConnection {
    tcp: TcpStream,
    output: Vec<u8>,
    output_sent: usize,
    input: Vec<u8>,
    input_used: usize,
    is_closed: bool,
    /// Adds CRC32C after each header.
    pub header_digest: bool,
    /// Adds CRC32C after each data segment.
    pub data_digest: bool,
    sent_bytes: u64,
}

impl TcpConnection {
    /// Connects from this address of the loopback network.
    ///
    /// # Errors
    /// The server refuses, does not answer within `limit`, or no local port is free.
    pub fn open(server: SocketAddr, from: Ipv4Addr, limit: Duration) -> Result<Self> {
        Self::over(
            Socket::new(Domain::IPV4, Type::STREAM, Some(Protocol::TCP))?,
            server,
            from,
            limit,
        )
    }

    /// Connects like [`open`](Self::open), but with small buffers, so that unread data stays in the
    /// server: a small receive buffer here, and short segments, by whose length Linux sizes the
    /// send buffer there.
    ///
    /// # Errors
    /// The errors of [`open`](Self::open).
    pub fn open_small(server: SocketAddr, from: Ipv4Addr, limit: Duration) -> Result<Self> {
        let socket = Socket::new(Domain::IPV4, Type::STREAM, Some(Protocol::TCP))?;
        socket.set_recv_buffer_size(SMALL_RECEIVE_BUFFER_BYTES)?;
        socket.set_tcp_mss(SHORT_SEGMENT_BYTES)?;
        Self::over(socket, server, from, limit)
    }

    fn over(socket: Socket, server: SocketAddr, from: Ipv4Addr, limit: Duration) -> Result<Self> {
        socket.bind(&SockAddr::from(SocketAddr::from((from, 0))))?;
        socket.connect_timeout(&SockAddr::from(server), limit)?;
        socket.set_linger(Some(Duration::ZERO))?;
        socket.set_tcp_nodelay(true)?;
        socket.set_nonblocking(true)?;
        Ok(Self {
            tcp: socket.into(),
            output: Vec::new(),
            output_sent: 0,
            input: Vec::new(),
            input_used: 0,
            is_closed: false,
            header_digest: false,
            data_digest: false,
            sent_bytes: 0,
        })
    }

    /// Appends a PDU to the send queue, with digests if they were negotiated.
    pub fn queue(&mut self, pdu: &RawPdu) {
        let bytes = pdu.bytes();
        if !self.header_digest && !self.data_digest {
            return self.queue_bytes(&bytes);
        }
        let header_end = HEADER_BYTES + pdu.segments.len();
        let (header, data) = bytes.split_at(header_end);
        for (part, has_digest) in [(header, self.header_digest), (data, self.data_digest)] {
            self.output.extend_from_slice(part);
            if has_digest && !part.is_empty() {
                self.output.extend_from_slice(&digest(part));
            }
        }
    }

    /// Appends bytes to the send queue as they are.
    pub fn queue_bytes(&mut self, bytes: &[u8]) {
        self.output.extend_from_slice(bytes);
    }

    /// Returns the number of bytes that are queued and not sent.
    pub fn unsent_bytes(&self) -> usize {
        self.output.len() - self.output_sent
    }

    /// Returns the number of bytes that the socket has accepted since the last call.
    pub fn take_sent_bytes(&mut self) -> u64 {
        std::mem::take(&mut self.sent_bytes)
    }

    /// True once the peer has closed or reset the connection, as far as is known.
    pub fn is_closed(&self) -> bool {
        self.is_closed
    }

    /// Sends as much as the socket accepts; returns whether it accepted anything.
    pub fn send(&mut self) -> bool {
        self.send_at_most(usize::MAX)
    }

    /// Sends at most this many bytes; returns whether the socket accepted any.
    pub fn send_at_most(&mut self, bytes_max: usize) -> bool {
        let end = self.output.len().min(self.output_sent.saturating_add(bytes_max));
        let begin = self.output_sent;
        while self.output_sent < end && !self.is_closed {
            match self.tcp.write(&self.output[self.output_sent..end]) {
                Ok(count) => self.output_sent += count,
                Err(error) if error.kind() == ErrorKind::WouldBlock => break,
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(_) => self.is_closed = true,
            }
        }
        let count = self.output_sent - begin;
        self.sent_bytes += count as u64;
        if self.output_sent == self.output.len() {
            self.output.clear();
            self.output_sent = 0;
        }
        count > 0
    }

    /// Sends all queued bytes; returns whether the socket accepted them within `limit`.
    pub fn send_all(&mut self, limit: Duration) -> bool {
        let until = std::time::Instant::now() + limit;
        while self.unsent_bytes() > 0 && !self.is_closed {
            if !self.send() {
                let left = until.saturating_duration_since(std::time::Instant::now());
                if left.is_zero() {
                    break;
                }
                self.wait(PollFlags::OUT, left);
            }
        }
        self.unsent_bytes() == 0
    }

    /// Returns the next PDU, if all of it has arrived.
    pub fn receive(&mut self) -> Option<RawPdu> {
        loop {
            if let Some(pdu) = self.take_pdu() {
                return Some(pdu);
            }
            if !self.read_some() {
                return None;
            }
        }
    }

    /// Reads and discards at most this many bytes, up to 4 KiB; detects the end of the connection.
    pub fn discard(&mut self, bytes_max: usize) {
        let mut bytes = [0; 4096];
        let end = bytes_max.min(bytes.len());
        self.is_closed |= match self.tcp.read(&mut bytes[..end]) {
            Ok(count) => count == 0,
            Err(error) => !matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::Interrupted),
        };
    }

    /// Waits until the socket is readable, at most `limit`.
    pub fn wait_readable(&self, limit: Duration) {
        self.wait(PollFlags::IN, limit);
    }

    /// Closes the sending half.
    pub fn close_sending(&self) {
        // A connection that is gone already has nothing to close.
        drop(self.tcp.shutdown(std::net::Shutdown::Write));
    }

    fn wait(&self, flags: PollFlags, limit: Duration) {
        let timeout = Timespec::try_from(limit).ok();
        // The caller checks the socket again, whatever ended the wait.
        let _ = poll(&mut [PollFd::new(&self.tcp, flags)], timeout.as_ref());
    }

    fn read_some(&mut self) -> bool {
        if self.is_closed {
            return false;
        }
        self.input.drain(..self.input_used);
        self.input_used = 0;
        // Zeroed memory; resize() would write byte by byte in builds that are not optimized.
        let mut read = vec![0; READ_BYTES];
        let result = self.tcp.read(&mut read);
        let count = *result.as_ref().unwrap_or(&0);
        self.input.extend_from_slice(&read[..count]);
        self.is_closed = match result {
            Ok(count) => count == 0,
            Err(error) => !matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::Interrupted),
        };
        count > 0
    }

    fn take_pdu(&mut self) -> Option<RawPdu> {
        let bytes = &self.input[self.input_used..];
        let header = bytes.get(..HEADER_BYTES)?;
        let length = u32::from_be_bytes([0, header[5], header[6], header[7]]) as usize;
        let segments_end = HEADER_BYTES + usize::from(header[4]) * 4;
        let data_begin = segments_end + if self.header_digest { 4 } else { 0 };
        let data_end = data_begin + length;
        let padded = data_begin + length.next_multiple_of(4);
        let end = padded + if self.data_digest && length > 0 { 4 } else { 0 };
        if bytes.len() < end {
            return None;
        }
        let pdu = RawPdu {
            header: header.to_vec(),
            segments: bytes[HEADER_BYTES..segments_end].to_vec(),
            data: bytes[data_begin..data_end].to_vec(),
        };
        self.input_used += end;
        Some(pdu)
    }
}

/// Computes the CRC32C of a header or data segment in wire order: RFC 7143 §13.1.
pub fn digest(bytes: &[u8]) -> [u8; 4] {
    /// The polynomial 0x11EDC6F41 without its highest bit, bits reversed.
    const POLYNOMIAL: u32 = 0x82f6_3b78;
    let mut crc = u32::MAX;
    for byte in bytes {
        crc ^= u32::from(*byte);
        for _ in 0..8 {
            crc = (crc >> 1) ^ if crc & 1 == 1 { POLYNOMIAL } else { 0 };
        }
    }
    // The register's lowest byte is sent first.
    (!crc).swap_bytes().to_be_bytes()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal: digests are equal to those of RFC 7143 Appendix A.4.
    #[test]
    fn digests_are_those_of_the_rfc() {
        assert_eq!(digest(&[0; 32]), [0xaa, 0x36, 0x91, 0x8a]);
        assert_eq!(digest(&[0xff; 32]), [0x43, 0xab, 0xa8, 0x62]);
        let ascending: Vec<u8> = (0..32).collect();
        assert_eq!(digest(&ascending), [0x4e, 0x79, 0xdd, 0x46]);
    }

    /// Goal: PDUs are assembled from pieces of any size, with digests and without.
    #[test]
    fn pdus_are_assembled() -> Result<()> {
        let listener = std::net::TcpListener::bind("127.0.0.1:0")?;
        let limit = Duration::from_secs(10);
        for digests in [false, true] {
            let digests_of = usize::from(digests);
            let mut client =
                TcpConnection::open(listener.local_addr()?, Ipv4Addr::new(127, 7, 7, 7), limit)?;
            let (mut tcp, peer) = listener.accept()?;
            assert_eq!(peer.ip(), Ipv4Addr::new(127, 7, 7, 7));
            (client.header_digest, client.data_digest) = (digests, digests);
            let sent = [RawPdu::new(0x20, 0x80), RawPdu::new(0x25, 0x81).with_data(vec![7; 9])];
            for pdu in &sent {
                client.queue(pdu);
            }
            // The peer returns the bytes of the client one by one.
            assert!(client.send_all(limit));
            let mut bytes = vec![0; 48 + 48 + 12 + if digests { 12 } else { 0 }];
            tcp.read_exact(&mut bytes)?;
            let mut received = Vec::new();
            for (number, byte) in bytes.iter().enumerate() {
                assert_eq!(
                    received.len(),
                    usize::from(number >= bytes.len() - 60 - 8 * digests_of)
                );
                tcp.write_all(&[*byte])?;
                client.wait_readable(limit);
                received.extend(client.receive());
            }
            assert_eq!(received.len(), 2);
            assert_eq!(received[0].header, sent[0].header);
            assert_eq!(received[1].data, sent[1].data);
            drop(tcp);
            client.wait_readable(limit);
            assert!(client.receive().is_none() && client.is_closed());
        }
        Ok(())
    }
}
