//! READs in pieces: the memory that they hold, and the commands that they delay.

use super::*;
use crate::execute::READ_PIECE_BYTES;
use crate::unit::Unit;
use lunar_block::BufferPool;

const UNIT_BYTES: usize = 8 * READ_PIECE_BYTES;
const BLOCKS: u16 = (UNIT_BYTES / 512) as u16;
/// Bytes of the answer: PDUs of 8 KiB, the default of MaxRecvDataSegmentLength, with their headers.
const ANSWER_BYTES: usize = UNIT_BYTES + UNIT_BYTES / 8192 * 48;

fn log_in(rig: &Rig) -> Client {
    let mut client = Client::log_in(rig);
    client.command(&[0; 6]); // the first unit attention
    client.out = Outbox::default();
    client
}

impl Client {
    /// Runs some turns in which the peer takes nothing.
    async fn take_some_turns(&mut self) {
        for _ in 0..20 {
            self.turn();
            tokio::task::yield_now().await;
        }
    }

    /// Lets the peer take everything that waits to be sent; returns its number of bytes.
    fn peer_takes_all(&mut self) -> usize {
        std::mem::take(&mut self.out).bytes()
    }
}

/// Goal: a READ holds no more than two pieces of memory, however slowly the peer takes its data,
/// and continues as the peer takes it.
#[test]
fn a_long_read_holds_two_pieces() {
    let rig = Rig::of_unit_bytes(UNIT_BYTES as u64);
    let mut client = log_in(&rig);
    let piece_bytes = BufferPool::charged_bytes(READ_PIECE_BYTES);
    rig.runtime.block_on(async {
        client.read(BLOCKS);
        let (mut sent_bytes, mut rounds) = (0, 0);
        loop {
            client.take_some_turns().await;
            let held_bytes = rig.buffers().in_use_bytes();
            assert!(held_bytes <= 2 * piece_bytes, "{held_bytes} bytes are held");
            match client.peer_takes_all() {
                0 => break,
                bytes => sent_bytes += bytes,
            }
            rounds += 1;
        }
        assert!(client.connection.tasks.are_quiet());
        assert!((4..=8).contains(&rounds), "{rounds} rounds");
        assert_eq!(sent_bytes, ANSWER_BYTES);
    });
    assert_eq!(rig.buffers().in_use_bytes(), 0);
    drop(client);
    rig.end();
}

/// Goal: on a device with atomic writes, a READ whose peer takes nothing delays no command of
/// another host that needs its blocks exclusively: the rest is read at once.
#[test]
fn a_long_read_that_delays_others_reads_the_rest_at_once() {
    let rig = Rig::of_unit_bytes(UNIT_BYTES as u64);
    let mut client = log_in(&rig);
    let last = LbaRange { lba: u64::from(BLOCKS) - 1, count: 1 };
    rig.runtime.block_on(async {
        client.read(BLOCKS);
        client.take_some_turns().await;
        assert!(!client.connection.tasks.are_quiet(), "the READ waits for its peer");
        let other = rig.units[0].ranges.queue_for(&Arc::default(), last, true).unwrap();
        drop(client.has_no_turn(other.granted()).await);
        client.take_all_turns().await;
        assert_eq!(client.peer_takes_all(), ANSWER_BYTES);
    });
    assert_eq!(rig.buffers().in_use_bytes(), 0);
    drop(client);
    rig.end();
}

/// Goal: if no memory is free for the rest, the command ends with BUSY; the others do not wait.
#[test]
fn without_memory_a_long_read_that_delays_others_is_busy() {
    let rig = Rig::with_small_budget(UNIT_BYTES as u64, 8 << 20);
    let mut client = log_in(&rig);
    let last = LbaRange { lba: u64::from(BLOCKS) - 1, count: 1 };
    rig.runtime.block_on(async {
        client.read(BLOCKS);
        client.take_some_turns().await;
        let rest: Vec<_> =
            std::iter::from_fn(|| client.connection.memory.data_in.try_take(1 << 20)).collect();
        let other = rig.units[0].ranges.queue_for(&Arc::default(), last, true).unwrap();
        drop(client.has_no_turn(other.granted()).await);
        client.take_all_turns().await;
        let sent_bytes = client.peer_takes_all();
        assert!(sent_bytes < 3 * READ_PIECE_BYTES, "{sent_bytes} bytes");
        drop(rest);
    });
    drop(client);
    rig.end();
}

/// Goal: an aborted READ sends no further piece, and its memory is free once the peer has taken or
/// lost what was sent.
#[test]
fn an_aborted_long_read_sends_no_more() {
    let rig = Rig::of_unit_bytes(UNIT_BYTES as u64);
    let mut client = log_in(&rig);
    let other = rig.log_in(2);
    rig.runtime.block_on(async {
        client.read(BLOCKS);
        client.take_some_turns().await;
        let unit: Arc<dyn Unit> = rig.units[0].clone();
        let reset = crate::resets::reset_unit(rig.sessions(), &other, &unit);
        client.has_no_turn(reset).await;
        assert!(client.connection.tasks.are_quiet());
        assert!(client.peer_takes_all() < 3 * READ_PIECE_BYTES);
        client.take_some_turns().await;
        assert_eq!(client.peer_takes_all(), 0);
    });
    assert_eq!(rig.buffers().in_use_bytes(), 0);
    drop(client);
    rig.lose(&other);
    rig.end();
}
