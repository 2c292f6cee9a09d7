//! Limits of streams, without a connection.

use super::*;
use crate::abort::{AbortSignal, Aborted};
use bytes::Bytes;
use futures_util::FutureExt;
use lunar_block::{BufferPool, MemoryKind, MemoryOwner};
use lunar_iscsi::connection::target::Input;
use lunar_iscsi::framing::{SegmentDigest, TaskId};
use std::time::Duration;

const TASK: TaskId = TaskId(1);
const PIECE_BYTES: usize = 256 << 10;

fn data_in_writer() -> (DataInWriter, TaskInputs, AbortSignal) {
    let (inputs, abort) = (TaskInputs::default(), AbortSignal::default());
    let limit = StreamLimits::new(&Limits::default()).of_data_in();
    (DataInWriter::new(TASK, &inputs, limit, &abort), inputs, abort)
}

/// Goal: a unit waits while its peer takes nothing, continues as the peer takes data, and its wait
/// ends with an abort.
#[test]
fn data_in_waits_for_its_peer() {
    let (writer, inputs, abort) = data_in_writer();
    let piece = || Bytes::from(vec![7; PIECE_BYTES]);
    let at = |number: usize| (number * PIECE_BYTES) as u32;
    let pieces_max = DATA_IN_TASK_BYTES_MAX as usize / PIECE_BYTES;
    for number in 0..pieces_max {
        assert_eq!(writer.send(at(number), piece()).now_or_never(), Some(Ok(())));
    }
    let mut waits = Box::pin(writer.send(at(pieces_max), piece()));
    assert_eq!((&mut waits).now_or_never(), None);
    let first = inputs.pop();
    assert!(matches!(&first, Some(Input::DataIn { task: TASK, offset_bytes: 0, .. })));
    assert_eq!((&mut waits).now_or_never(), None, "the socket has not taken it");
    drop(first);
    assert_eq!((&mut waits).now_or_never(), Some(Ok(())));
    let mut waits = Box::pin(writer.send(at(pieces_max + 1), piece()));
    assert_eq!((&mut waits).now_or_never(), None);
    abort.raise();
    assert_eq!((&mut waits).now_or_never(), Some(Err(Aborted)));
    // A piece longer than the limit is sent alone.
    let (writer, ..) = data_in_writer();
    let long = || Bytes::from(vec![7; 3 * DATA_IN_TASK_BYTES_MAX as usize]);
    assert_eq!(writer.send(0, long()).now_or_never(), Some(Ok(())));
    assert_eq!(writer.send(0, long()).now_or_never(), None);
}

/// A reader of `total_bytes`, its stream, and the account of its memory.
fn reader(total_bytes: u32) -> (DataOutReader, Arc<DataOutStream>, TaskInputs, BufferPool) {
    let owner = Arc::<MemoryOwner>::default();
    let buffers = BufferPool::default().account(&owner, MemoryKind::DataOut);
    let stream = Arc::new(DataOutStream::new(total_bytes, &buffers));
    let inputs = TaskInputs::default();
    let limit = StreamLimits::new(&Limits::default()).of_data_out();
    let wait_max = Duration::from_secs(1);
    let reader = DataOutReader::new(TASK, &stream, &inputs, limit, wait_max, None);
    (reader, stream, inputs, buffers)
}

/// Lets a segment arrive whose bytes are its number.
fn arrive(stream: &Arc<DataOutStream>, offset_bytes: u32, bytes: u32, number: u8, is_final: bool) {
    let mut segment = stream.begin_segment(TASK, offset_bytes, bytes, is_final).unwrap();
    let room = segment.room();
    assert_eq!(room.len(), bytes as usize);
    room.fill(number);
    segment.filled(bytes as usize);
    segment.finish();
    let digest = SegmentDigest::Matched(number.into());
    assert!(stream.segment_checked(offset_bytes, bytes, digest));
}

fn next(reader: &mut DataOutReader) -> Option<Option<DataOutPiece>> {
    reader.next().now_or_never().map(|piece| piece.unwrap())
}

fn wanted(inputs: &TaskInputs) -> Vec<(u32, u32)> {
    let range = |input| match input {
        Input::Wants { task: TASK, offset_bytes, bytes } => (offset_bytes, bytes),
        other => panic!("{other:?}"),
    };
    std::iter::from_fn(|| inputs.pop()).map(range).collect()
}

/// Goal: ranges are requested as they are wanted, none crosses the end of one, and no more than the
/// limit until pieces are dropped.
#[test]
fn ranges_are_requested_within_the_limit() {
    const RANGE: u32 = DATA_OUT_RANGE_BYTES_MAX;
    let (mut reader, stream, inputs, buffers) = reader(10 * RANGE);
    reader.want(1000);
    reader.want(RANGE);
    assert!(next(&mut reader).is_none());
    assert_eq!(wanted(&inputs), [(0, 1000), (1000, RANGE)]);
    reader.want_all();
    assert!(next(&mut reader).is_none());
    let second = 1000 + RANGE;
    assert_eq!(wanted(&inputs), [(second, RANGE), (second + RANGE, RANGE)]);
    arrive(&stream, 0, 1000, 1, true);
    let piece = next(&mut reader).unwrap().unwrap();
    assert_eq!((piece.offset_bytes, piece.data.len()), (0, 1000));
    assert_eq!(piece.digest, SegmentDigest::Matched(1));
    arrive(&stream, 1000, RANGE, 2, true);
    let kept = next(&mut reader).unwrap().unwrap();
    assert!(next(&mut reader).is_none());
    assert_eq!(wanted(&inputs), [], "both pieces are kept");
    drop((piece, kept));
    assert!(next(&mut reader).is_none());
    // With the two that are due, that is the limit of four ranges.
    let third = second + 2 * RANGE;
    assert_eq!(wanted(&inputs), [(third, RANGE), (third + RANGE, RANGE)]);
    assert!(next(&mut reader).is_none());
    assert_eq!(wanted(&inputs), []);
    stream.end(StreamEnd::Aborted);
    assert!(matches!(reader.next().now_or_never(), Some(Err(DataOutError::Aborted))));
    assert!(stream.begin_segment(TASK, second, 1000, true).is_none());
    assert_eq!(buffers.held_bytes(), 0);
}

/// Goal: short segments of a sequence share a buffer, in the order of each of two sequences that
/// come alternately, and are given at the latest when all that was wanted is there.
#[test]
fn short_segments_share_a_buffer() {
    let (mut reader, stream, inputs, buffers) = reader(40_000);
    reader.want(20_000);
    reader.want_all();
    assert!(next(&mut reader).is_none());
    assert_eq!(wanted(&inputs), [(0, 20_000), (20_000, 20_000)]);
    for number in 0..20 {
        arrive(&stream, number * 1000, 1000, number as u8, false);
        arrive(&stream, 20_000 + number * 1000, 1000, 20 + number as u8, number == 19);
    }
    assert!(buffers.held_bytes() <= 6 * BufferPool::charged_bytes(16 << 10));
    let mut all = vec![0; 40_000];
    while let Some(piece) = next(&mut reader).unwrap() {
        assert_eq!(piece.digest, SegmentDigest::None);
        let at = piece.offset_bytes as usize;
        all[at..at + piece.data.len()].copy_from_slice(&piece.data);
    }
    assert!(all.iter().enumerate().all(|(at, byte)| at / 1000 == usize::from(*byte)));
    assert_eq!(buffers.held_bytes(), 0);
}

/// Fault: each segment of one byte gave back the charge of a page, although all shared a buffer: 64
/// of them left the rest of a range of 256 KiB without a charge.
#[test]
fn short_segments_give_back_the_charge_of_their_buffer_only() {
    let (mut reader, stream, _, buffers) = reader(DATA_OUT_RANGE_BYTES_MAX);
    reader.want_all();
    assert!(next(&mut reader).is_none());
    let reserved_bytes = buffers.held_bytes();
    assert!(reserved_bytes >= DATA_OUT_RANGE_BYTES_MAX as usize);
    for offset_bytes in 0..100 {
        arrive(&stream, offset_bytes, 1, 0, false);
        assert_eq!(buffers.held_bytes(), reserved_bytes);
    }
}

/// Goal: unsolicited data comes unwanted, is not requested again, and what is beyond the command's
/// data is dropped.
#[test]
fn unsolicited_data_is_not_requested() {
    let (mut reader, stream, inputs, _buffers) = reader(10_000);
    arrive(&stream, 0, 4000, 1, false);
    reader.want_all();
    arrive(&stream, 4000, 4000, 2, true);
    let piece = next(&mut reader).unwrap().unwrap();
    assert_eq!(
        (piece.offset_bytes, piece.data.len(), piece.digest),
        (0, 8000, SegmentDigest::None)
    );
    assert_eq!(wanted(&inputs), [(0, 10_000)]);
    arrive(&stream, 8000, 3000, 3, true);
    let piece = next(&mut reader).unwrap().unwrap();
    assert_eq!(
        (piece.offset_bytes, piece.data.len(), piece.digest),
        (8000, 2000, SegmentDigest::None)
    );
    assert!(next(&mut reader).unwrap().is_none());
}
