//! Tests of the PDUs a tap keeps and drops, and of its limits.

use super::*;
use bytes::Bytes;
use std::task::Waker;

fn address(port: u16) -> SocketAddr {
    SocketAddr::from(([127, 0, 0, 1], port))
}

fn tapped(snap_bytes: usize) -> (Arc<TappedConnection>, TapReader) {
    let (tap, reader) = Tap::new(snap_bytes);
    (TappedConnection::new(tap, address(1), address(2)), reader)
}

fn next(reader: &mut TapReader) -> Option<TappedPdu> {
    match reader.poll_next(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(pdu) => pdu,
        Poll::Pending => None,
    }
}

fn sent(connection: &TappedConnection, data_bytes: usize) {
    let pdu = Pdu::with_data([7; 48], Bytes::from(vec![9; data_bytes]));
    let mut copying = connection.begin_sent(&pdu.bhs, data_bytes, Digests::default());
    copying.add(&pdu.data);
    copying.add(&[0; 3][..data_bytes.wrapping_neg() & 3]);
    connection.end(copying);
}

/// Goal: a slow reader delays no connection: PDUs without room are counted, and leave a gap in the
/// stream.
#[test]
fn pdus_beyond_the_limit_are_dropped() {
    let (connection, mut reader) = tapped(usize::MAX);
    (0..TAP_PDUS_MAX + 5).for_each(|_| sent(&connection, 0));
    assert_eq!(reader.dropped(), 5);
    for number in 0..TAP_PDUS_MAX {
        let pdu = next(&mut reader).unwrap();
        assert_eq!((pdu.offset as usize, pdu.first), (48 * number, number == 0));
        assert_eq!((pdu.dropped_before, pdu.direction), (0, Direction::Sent));
    }
    assert!(next(&mut reader).is_none());
    sent(&connection, 1);
    sent(&connection, 0);
    let (pdu, after) = (next(&mut reader).unwrap(), next(&mut reader).unwrap());
    assert_eq!((pdu.dropped_before, pdu.offset as usize), (5, 48 * (TAP_PDUS_MAX + 5)));
    assert_eq!(pdu.bytes[8..], [[7; 40].as_slice(), &[9, 0, 0, 0]].concat());
    assert_eq!((after.dropped_before, after.offset), (0, pdu.offset + 52));
    assert_eq!((reader.dropped(), pdu.wire_bytes), (5, 52));
}

/// Goal: bytes are limited too, including those of PDUs that were never completed.
#[test]
fn bytes_beyond_the_limit_are_dropped() {
    const DATA_BYTES: usize = 1 << 20;
    let (connection, mut reader) = tapped(usize::MAX);
    let fit = TAP_BYTES_MAX / (DATA_BYTES + 48);
    (0..fit + 2).for_each(|_| sent(&connection, DATA_BYTES));
    assert_eq!(reader.dropped(), 2);
    let read = next(&mut reader).unwrap();
    sent(&connection, DATA_BYTES);
    assert_eq!(reader.dropped(), 3, "the reader still holds the first PDU");
    drop(read);
    let cut = connection.begin(Direction::Received, DATA_BYTES, Digests::default());
    sent(&connection, DATA_BYTES);
    assert_eq!(reader.dropped(), 4, "another PDU is being copied");
    drop(cut);
    sent(&connection, DATA_BYTES);
    assert_eq!(reader.dropped(), 4);
    let all: Vec<_> = std::iter::from_fn(|| next(&mut reader)).collect();
    assert_eq!(all.len(), fit);
    assert_eq!(all.iter().map(|pdu| pdu.dropped_before).sum::<u64>(), 4);
    drop(all);
    assert_eq!(reader.counts.bytes.load(Relaxed), 0);
}

/// Goal: only the first bytes are kept, with the whole length; PDUs after the end are neither kept
/// nor counted as dropped.
#[test]
fn long_pdus_are_cut() {
    let (connection, mut reader) = tapped(50);
    sent(&connection, 5);
    let pdu = next(&mut reader).unwrap();
    assert_eq!((pdu.bytes.len(), pdu.wire_bytes), (50, 56));
    sent(&connection, 5);
    reader.close();
    sent(&connection, 5);
    assert_eq!(next(&mut reader).map(|pdu| pdu.offset), Some(56));
    assert!(next(&mut reader).is_none());
    assert_eq!(reader.dropped(), 0);
}
