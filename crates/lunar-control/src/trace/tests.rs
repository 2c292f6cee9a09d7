//! Tests of the layout of blocks, and of the reader with arbitrary input.

use super::pcapng::{self, Counts, Packet};
use super::reader::{BlockReader, NoBlock, TraceCounts};

/// The words of a block in the file.
fn words(bytes: &[u8]) -> Vec<u32> {
    let (words, rest) = bytes.as_chunks::<4>();
    assert!(rest.is_empty(), "blocks are whole words");
    words.iter().map(|word| u32::from_be_bytes(*word)).collect()
}

/// Goal: each block has the layout of the specification.
#[test]
fn blocks_are_laid_out_as_specified() {
    let mut out = Vec::new();
    let option = |code: u32, bytes: u32| code << 16 | bytes;
    pcapng::section_header(&mut out, "h", "a", "c");
    let header = [0x0a0d_0d0a, 56, 0x1a2b_3c4d, 1 << 16, u32::MAX, u32::MAX];
    let [c, h, a] = [b'c', b'h', b'a'].map(|letter| u32::from(letter) << 24);
    let options = [option(1, 1), c, option(2, 1), h, option(4, 1), a, 0, 56];
    assert_eq!(words(&out), [&header[..], &options].concat());
    out.clear();
    pcapng::interface(&mut out, "abcd");
    let text = u32::from_be_bytes(*b"abcd");
    let interface = [1, 40, 101 << 16, 0, option(3, 4), text, option(9, 1), 9 << 24, 0, 40];
    assert_eq!(words(&out), interface);
    out.clear();
    let packet = Packet {
        at: 0x1_0000_0002,
        original_bytes: 70_000,
        inbound: true,
        dropped_before: 3,
        comment: "",
    };
    pcapng::packet(&mut out, packet, [&[1, 2, 3, 4], &[5]]);
    let head = [6, 64, 0, 1, 2, 5, 70_000, 0x0102_0304, 5 << 24];
    let options = [option(2, 4), 1, option(4, 8), 0, 3, 0, 64];
    assert_eq!(words(&out), [&head[..], &options].concat());
    out.clear();
    let counts = Counts { began: 1, now: 1 << 32, received: 10, dropped: 4 };
    pcapng::statistics(&mut out, counts);
    let head = [5, 76, 0, 1, 0, option(2, 8), 0, 1, option(3, 8), 1, 0];
    let tail = [option(4, 8), 0, 10, option(5, 8), 0, 4, 0, 76];
    assert_eq!(words(&out), [&head[..], &tail].concat());
}

fn file() -> Vec<u8> {
    let mut out = Vec::new();
    pcapng::section_header(&mut out, "hardware", "application", "a comment");
    pcapng::interface(&mut out, "session 1");
    for (inbound, comment) in [(true, "made up"), (false, "")] {
        let packet = Packet { at: 5, original_bytes: 9, inbound, dropped_before: 1, comment };
        pcapng::packet(&mut out, packet, [&[1; 40], &[2; 9]]);
    }
    pcapng::statistics(&mut out, Counts { began: 1, now: 9, received: 7, dropped: 2 });
    out
}

/// Goal: whole blocks are returned in order, however the stream is split; the last counts are
/// available.
#[test]
fn blocks_are_read_completely() {
    let file = file();
    for piece in 1..file.len() {
        let mut reader = BlockReader::default();
        let mut out = Vec::new();
        for bytes in file.chunks(piece) {
            let blocks = reader.push(bytes).unwrap();
            let length = blocks.len().checked_sub(4).map(|at| words(&blocks[at..])[0]);
            assert!(length.is_none_or(|length| (12..=blocks.len() as u32).contains(&length)));
            out.extend(blocks);
        }
        assert_eq!(out, file);
        assert_eq!(reader.counts(), TraceCounts { pdus: 5, dropped: 2 });
    }
}

/// Goal: other data is refused; no input makes the reader panic or return bytes that were not
/// received.
#[test]
fn other_bytes_are_refused() {
    for length in [0u32, 8, 13, 1 << 20, u32::MAX] {
        let head = [6u32.to_be_bytes(), length.to_be_bytes()].concat();
        assert_eq!(BlockReader::default().push(&head), Err(NoBlock), "{length}");
    }
    let file = file();
    for at in 0..file.len() {
        for value in [0, 1, 0x7f, 0xff] {
            let mut changed = file.clone();
            changed[at] = value;
            let mut reader = BlockReader::default();
            let taken = changed.chunks(7).map_while(|bytes| reader.push(bytes).ok());
            assert!(changed.starts_with(&taken.flatten().collect::<Vec<_>>()));
        }
    }
}
