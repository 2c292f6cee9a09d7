//! PDUs as packets: TCP over the original IP version, in segments as large as IP allows.
//!
//! Bytes, addresses, ports and order are those of the connection. The real segmentation and initial
//! sequence numbers are not available from the system.

use super::pcapng::{self, Packet};
use lunar_target::{Direction, TappedPdu};
use std::net::{IpAddr, SocketAddr};

/// Maximum number of bytes of a PDU in one packet: IP limits a packet to 65,535 bytes with headers.
pub(super) const SEGMENT_BYTES_MAX: usize = 60 << 10;

const TCP_BYTES: usize = 20;
const TCP: u8 = 6;
/// Data offset: five words.
const TCP_OFFSET: u8 = (TCP_BYTES as u8 / 4) << 4;
const ACK: u8 = 0x10;
/// Set on the last segment of a PDU.
const PSH: u8 = 0x08;
/// The largest window without scaling.
const WINDOW: u16 = u16::MAX;
const TIME_TO_LIVE: u8 = 64;
/// First sequence number of both directions; the connection is established when the trace begins.
const FIRST_SEQUENCE: u32 = 1 << 16;

/// A PDU with its position in the connection.
pub(super) struct TcpSegments<'a> {
    from: SocketAddr,
    to: SocketAddr,
    inbound: bool,
    sequence: u32,
    acknowledged: u32,
    wire_bytes: usize,
    /// The captured bytes, from the beginning of the PDU.
    bytes: &'a [u8],
    dropped_before: u64,
    comment: &'static str,
}

impl<'a> TcpSegments<'a> {
    /// Builds a packet for a captured PDU.
    pub(super) fn new(pdu: &'a TappedPdu) -> Self {
        let [peer, local] = [pdu.peer, pdu.local]
            .map(|address| SocketAddr::new(address.ip().to_canonical(), address.port()));
        let inbound = pdu.direction == Direction::Received;
        let (from, to) = if inbound { (peer, local) } else { (local, peer) };
        Self {
            from,
            to,
            inbound,
            sequence: FIRST_SEQUENCE.wrapping_add(pdu.offset),
            acknowledged: FIRST_SEQUENCE.wrapping_add(pdu.other_offset),
            wire_bytes: pdu.wire_bytes,
            bytes: &pdu.bytes,
            dropped_before: pdu.dropped_before,
            comment: "",
        }
    }

    /// Builds a packet for a PDU that was never sent, placed just before the captured `pdu`.
    pub(super) fn synthetic(pdu: &TappedPdu, bytes: &'a [u8], comment: &'static str) -> Self {
        let segments = TcpSegments::new(pdu);
        let (next, acknowledged) = match pdu.direction {
            Direction::Sent => (segments.sequence, segments.acknowledged),
            Direction::Received => (segments.acknowledged, segments.sequence),
        };
        let (from, to) = match pdu.direction {
            Direction::Sent => (segments.from, segments.to),
            Direction::Received => (segments.to, segments.from),
        };
        let sequence = next.wrapping_sub(bytes.len() as u32);
        let (inbound, wire_bytes, dropped_before) = (false, bytes.len(), 0);
        Self {
            from,
            to,
            inbound,
            sequence,
            acknowledged,
            wire_bytes,
            bytes,
            dropped_before,
            comment,
        }
    }

    /// Appends the packets of the PDU.
    pub(super) fn write(&self, out: &mut Vec<u8>, at: u64) {
        let mut start = 0;
        while start < self.wire_bytes {
            let end = self.wire_bytes.min(start + SEGMENT_BYTES_MAX);
            let kept = self.bytes.get(start..).unwrap_or_default();
            let kept = &kept[..kept.len().min(end - start)];
            let segment = Segment {
                from: self.from,
                to: self.to,
                sequence: self.sequence.wrapping_add(start as u32),
                acknowledged: self.acknowledged,
                flags: ACK | if end == self.wire_bytes { PSH } else { 0 },
                payload_bytes: end - start,
            };
            let headers = segment.headers(kept);
            let packet = Packet {
                at,
                original_bytes: (headers.len() + end - start) as u32,
                inbound: self.inbound,
                dropped_before: if start == 0 { self.dropped_before } else { 0 },
                comment: self.comment,
            };
            pcapng::packet(out, packet, [&headers, kept]);
            start = end;
        }
    }
}

/// A TCP segment.
struct Segment {
    from: SocketAddr,
    to: SocketAddr,
    sequence: u32,
    acknowledged: u32,
    flags: u8,
    payload_bytes: usize,
}

impl Segment {
    /// The headers; the checksum covers the captured part of the payload.
    fn headers(&self, kept: &[u8]) -> Vec<u8> {
        let tcp_bytes = (TCP_BYTES + self.payload_bytes) as u16; // at most SEGMENT_BYTES_MAX more
        let mut tcp = Vec::with_capacity(TCP_BYTES);
        tcp.extend(self.from.port().to_be_bytes());
        tcp.extend(self.to.port().to_be_bytes());
        tcp.extend(self.sequence.to_be_bytes());
        tcp.extend(self.acknowledged.to_be_bytes());
        tcp.extend([TCP_OFFSET, self.flags]);
        tcp.extend(WINDOW.to_be_bytes());
        tcp.extend([0; 4]); // checksum, urgent pointer
        let (mut ip, addresses) = match (self.from.ip(), self.to.ip()) {
            (IpAddr::V4(from), IpAddr::V4(to)) => (ipv4(tcp_bytes, from.octets(), to.octets()), 12),
            (from, to) => (ipv6(tcp_bytes, octets(from), octets(to)), 8),
        };
        let pseudo = [[0, TCP], tcp_bytes.to_be_bytes()].concat();
        let sum = checksum(&[&ip[addresses..], &pseudo, &tcp, kept]);
        tcp[16..18].copy_from_slice(&sum.to_be_bytes());
        ip.extend(tcp);
        ip
    }
}

/// IPv4 header, RFC 791.
fn ipv4(payload_bytes: u16, from: [u8; 4], to: [u8; 4]) -> Vec<u8> {
    let mut header = vec![0x45, 0];
    header.extend((payload_bytes + 20).to_be_bytes());
    header.extend([0, 0, 0x40, 0]); // no identification: do not fragment
    header.extend([TIME_TO_LIVE, TCP, 0, 0]);
    header.extend(from);
    header.extend(to);
    let sum = checksum(&[&header]);
    header[10..12].copy_from_slice(&sum.to_be_bytes());
    header
}

/// IPv6 header, RFC 8200.
fn ipv6(payload_bytes: u16, from: [u8; 16], to: [u8; 16]) -> Vec<u8> {
    let mut header = vec![0x60, 0, 0, 0];
    header.extend(payload_bytes.to_be_bytes());
    header.extend([TCP, TIME_TO_LIVE]);
    header.extend(from);
    header.extend(to);
    header
}

fn octets(address: IpAddr) -> [u8; 16] {
    match address {
        IpAddr::V4(address) => address.to_ipv6_mapped().octets(),
        IpAddr::V6(address) => address.octets(),
    }
}

/// Internet checksum, RFC 1071; all parts but the last have even length.
fn checksum(parts: &[&[u8]]) -> u16 {
    let words = parts.iter().flat_map(|part| part.chunks(2));
    let mut sum: u64 = words
        .map(|word| u64::from(u16::from_be_bytes([word[0], word.get(1).copied().unwrap_or(0)])))
        .sum();
    while sum > 0xffff {
        sum = (sum & 0xffff) + (sum >> 16);
    }
    !(sum as u16)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn segments<'a>(wire_bytes: usize, bytes: &'a [u8], addresses: [&str; 2]) -> TcpSegments<'a> {
        let [from, to] = addresses.map(|address| address.parse().unwrap());
        TcpSegments {
            from,
            to,
            inbound: true,
            sequence: u32::MAX - 10,
            acknowledged: 77,
            wire_bytes,
            bytes,
            dropped_before: 2,
            comment: "",
        }
    }

    /// The original length and the captured bytes of each packet.
    fn packets(file: &[u8]) -> Vec<(usize, Vec<u8>)> {
        let number = |at: usize| u32::from_be_bytes(*file[at..].first_chunk().unwrap()) as usize;
        let mut packets = Vec::new();
        let mut at = 0;
        while at < file.len() {
            let bytes = &file[at + 28..at + 28 + number(at + 20)];
            packets.push((number(at + 24), bytes.to_vec()));
            at += number(at + 4);
        }
        packets
    }

    /// Goal: a long PDU is split into consecutive segments, the last one with PSH; bytes that were
    /// not captured still count in the lengths.
    #[test]
    fn segments_follow_each_other() {
        let bytes: Vec<u8> = (0..SEGMENT_BYTES_MAX + 100).map(|at| (at % 253) as u8).collect();
        let mut out = Vec::new();
        let wire_bytes = 2 * SEGMENT_BYTES_MAX + 4;
        segments(wire_bytes, &bytes, ["192.0.2.1:5", "192.0.2.2:6"]).write(&mut out, 1);
        let packets = packets(&out);
        let lengths: Vec<_> = packets.iter().map(|(length, kept)| (*length, kept.len())).collect();
        let whole = 40 + SEGMENT_BYTES_MAX;
        assert_eq!(lengths, [(whole, whole), (whole, 140), (44, 40)]);
        let payload: Vec<u8> = packets.iter().flat_map(|(_, kept)| kept[40..].to_vec()).collect();
        assert_eq!(payload, bytes);
        let mut sequence = u32::MAX - 10;
        for (number, (length, kept)) in packets.iter().enumerate() {
            assert_eq!(kept[24..28], sequence.to_be_bytes());
            assert_eq!(kept[28..32], 77u32.to_be_bytes());
            assert_eq!(usize::from(u16::from_be_bytes([kept[2], kept[3]])), *length);
            assert_eq!(kept[33], if number == 2 { 0x18 } else { 0x10 });
            sequence = sequence.wrapping_add((length - 40) as u32);
        }
    }

    /// Goal: each checksum and the data it covers sum to zero, RFC 1071; addresses of both families
    /// are in the right place.
    #[test]
    fn checksums_are_right() {
        for (addresses, headers) in
            [(["192.0.2.1:5", "192.0.2.2:6"], 40), (["[2001:db8::1]:5", "[2001:db8::2]:6"], 60)]
        {
            for bytes in [&[1u8, 2, 3, 4, 5][..], &[0xff; 1000]] {
                let mut out = Vec::new();
                segments(bytes.len(), bytes, addresses).write(&mut out, 1);
                let [(_, packet)] = &packets(&out)[..] else { panic!("one packet") };
                let (ip, tcp) = packet.split_at(headers - 20);
                let addresses = if headers == 40 { 12 } else { 8 };
                let pseudo = [[0, TCP], (tcp.len() as u16).to_be_bytes()].concat();
                assert_eq!(checksum(&[&ip[addresses..], &pseudo, tcp]), 0);
                assert!(headers == 60 || checksum(&[ip]) == 0);
                assert_eq!(&tcp[20..], bytes);
            }
        }
    }
}
