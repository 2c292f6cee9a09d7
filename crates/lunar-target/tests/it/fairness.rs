//! Tests that one session does not starve another one on its core.

use crate::common::copy::{Segment, copy_cdb, cscd, list};
use crate::common::*;
use bytes::Bytes;
use lunar_block::{BlockDevice, BlockRange, BoxFuture, Buffer, Error, Geometry, MemoryDevice};
use lunar_target::LunOptions;
use lunar_testkit::raw::RawClient;
use std::sync::{Arc, Mutex};
use std::thread::ThreadId;

/// Reads and writes of all devices in order: the device, and the number of blocks.
type Log = Arc<Mutex<Vec<(u8, u64)>>>;

/// A disk in memory that logs its reads and writes. While the test holds the log, the core waits.
#[derive(Debug)]
struct LoggedDisk {
    memory: MemoryDevice,
    number: u8,
    log: Log,
    /// Thread of the last read.
    reader: Mutex<Option<ThreadId>>,
}

impl BlockDevice for LoggedDisk {
    fn name(&self) -> &str {
        self.memory.name()
    }
    fn geometry(&self) -> Geometry {
        self.memory.geometry()
    }
    fn read(&self, range: BlockRange, into: Buffer) -> BoxFuture<'_, Result<Buffer, Error>> {
        self.log.lock().unwrap().push((self.number, range.count));
        *self.reader.lock().unwrap() = Some(std::thread::current().id());
        self.memory.read(range, into)
    }
    fn write(&self, at: BlockRange, from: Bytes, fua: bool) -> BoxFuture<'_, Result<(), Error>> {
        self.log.lock().unwrap().push((self.number, at.count));
        self.memory.write(at, from, fua)
    }
    fn flush(&self) -> BoxFuture<'_, Result<(), Error>> {
        self.memory.flush()
    }
    fn io_tier(&self) -> String {
        self.memory.io_tier()
    }
}

fn send_reads(raw: &mut RawClient, lun: u8, blocks: u16, count: usize) {
    raw.lun[1] = lun;
    for _ in 0..count {
        send_read(raw, 0, blocks);
    }
}

const NOISY: u8 = 0;
const QUIET: u8 = 1;
/// Number of small reads that the quiet session requests.
const SMALL_READS: usize = 121;

/// Sends VERIFY (16) without data of the longest possible transfer, 8 MiB.
fn verifies(raw: &mut RawClient, count: usize) {
    let mut cdb = [0; 16];
    (cdb[0], cdb[12]) = (0x8f, 0x40);
    for _ in 0..count {
        let pdu = raw.command(0x81, &cdb, 0);
        raw.send(&pdu).unwrap();
    }
}

/// Sends EXTENDED COPY of 8 MiB from the first half of the disk to the second.
fn copies(raw: &mut RawClient, count: usize) {
    let segment =
        Segment { from: 0, to: 0, blocks: 16_384, source_lba: 0, destination_lba: 1 << 16 };
    let list = list(1, &[cscd(NOISY.into(), 512)], &[segment]);
    for name in 0..count {
        let mut list = list.clone();
        list[0] = name as u8;
        let pdu = raw.command(0xa1, &copy_cdb(list.len()), list.len() as u32);
        raw.send(&pdu.with_data(list)).unwrap();
    }
}

/// Returns the turns of all connections, with the number of disk reads and writes in each. Two
/// noisy connections send their requests by `send_requests` (`commands` of them), and a quiet one
/// sends few, all on one core.
///
/// The core waits until all requests are sent, so that the result does not depend on time.
fn turns(commands: usize, send_requests: impl Fn(&mut RawClient)) -> Vec<(u8, usize)> {
    let log = Log::default();
    let luns = [NOISY, QUIET].map(|number| {
        let memory = MemoryDevice::new(64 << 20, 512, 4096).unwrap();
        let device = LoggedDisk { memory, number, log: Arc::clone(&log), reader: Mutex::default() };
        let uuid = uuid::Uuid::from_u128(number.into());
        let options = lunar_target::DiskUnitOptions::new(uuid, Arc::new(device));
        let unit = lunar_target::DiskUnit::open(options).unwrap();
        LunOptions::new(number.into(), unit)
    });
    let rig = Rig::with(|options| {
        options.targets[0].luns = luns.into();
        options.cores = 1;
    });
    let mut noisy = [rig.log_in(1), rig.log_in(2)];
    let mut quiet = rig.log_in(3);
    for raw in noisy.iter_mut().chain([&mut quiet]) {
        raw.lun[1] = QUIET;
        raw.execute(&[0; 6], 0).unwrap(); // takes the unit attention after the login
    }
    let held = log.lock().unwrap();
    send_reads(&mut quiet, QUIET, 1, 1);
    for raw in &mut noisy {
        raw.lun[1] = NOISY;
        send_requests(raw);
    }
    send_reads(&mut quiet, QUIET, 1, SMALL_READS - 1);
    drop(held);
    for _ in 0..SMALL_READS {
        assert_eq!(quiet.outcome().unwrap().0, 0);
    }
    for raw in &mut noisy {
        for _ in 0..commands {
            assert_eq!(raw.outcome().unwrap().0, 0);
        }
    }
    for mut raw in noisy {
        raw.lun[1] = 0;
        log_out(raw);
    }
    quiet.lun[1] = 0;
    log_out(quiet);
    rig.stop_cleanly();
    let log = log.lock().unwrap();
    log.chunk_by(|a, b| a.0 == b.0).map(|turn| (turn[0].0, turn.len())).collect()
}

/// Number of pieces per mebibyte of data that is moved but not sent, or read by long reads.
const PIECES: usize = (1 << 20) / lunar_net::MOVED_PIECE_BYTES;

/// Minimum number of small reads in a turn of the quiet session: the time is first checked after
/// these.
const SMALL_READS_OF_TURN: usize = 8;

/// Asserts that before the last small read no turn of the noisy sessions had more than `in_turn`
/// reads, and that both noisy sessions together had at most `in_turn` reads for each turn of the
/// quiet one.
fn assert_turns_are_bounded(turns: &[(u8, usize)], in_turn: usize) {
    let in_all = in_turn * SMALL_READS.div_ceil(SMALL_READS_OF_TURN);
    let last = turns.iter().rposition(|(disk, _)| *disk == QUIET).unwrap();
    for (disk, reads) in &turns[..last] {
        assert!(*disk == QUIET || *reads <= in_turn, "{turns:?}");
    }
    let before: usize =
        turns[..last].iter().filter(|(disk, _)| *disk == NOISY).map(|(_, n)| n).sum();
    assert!(
        before <= in_all,
        "{before} noisy reads before the last small one, at most {in_all} expected: {turns:?}"
    );
}

/// Goal: with two noisy connections that request as much as they may and a quiet one that requests
/// little, all on one core, each turn of a noisy connection is bounded: between two turns of the
/// quiet connection, at most two mebibytes are read for each noisy one (a mebibyte per turn, two
/// turns in succession).
#[test]
fn a_busy_session_leaves_turns_to_an_idle_one() {
    const LARGE: u16 = 2048;
    let turns = turns(60, |raw| send_reads(raw, NOISY, LARGE, 60));
    // Each read is done in pieces.
    assert_eq!(turns.iter().map(|(_, reads)| reads).sum::<usize>(), SMALL_READS + 120 * PIECES);
    assert_turns_are_bounded(&turns, 4 * PIECES);
}

/// Goal: data that is only compared counts in a turn like data that is sent. Fault: VERIFY of 8 MiB
/// counted as one PDU, and 64 of them were done in one turn. Beside 64 sessions of one initiator,
/// another initiator at another target completed one request in two seconds.
#[test]
fn verifies_leave_turns_to_an_idle_session() {
    let turns = turns(20, |raw| verifies(raw, 20));
    assert_eq!(
        turns.iter().map(|(_, reads)| reads).sum::<usize>(),
        SMALL_READS + 2 * 20 * 8 * PIECES
    );
    // A turn may move a mebibyte for new requests and one for continued ones, and there may be
    // three such turns before other connections have one.
    assert_turns_are_bounded(&turns, 12 * PIECES);
}

/// Fault: reads and writes of third-party copies did not count, and each copy moved 2 MiB in each
/// turn of its connection. Beside eight copies, the request rate of a well-behaved initiator fell
/// to 6 %.
#[test]
fn copies_leave_turns_to_an_idle_session() {
    const COPIES: usize = 6;
    let turns = turns(COPIES, |raw| copies(raw, COPIES));
    let moves: usize = turns.iter().map(|(_, moves)| moves).sum();
    assert_eq!(moves, SMALL_READS + 2 * COPIES * 8 * 2 * PIECES);
    assert_turns_are_bounded(&turns, 12 * PIECES);
}

/// Fault: connections went to the core with the fewest of them, so a host with many idle ones on
/// one core sent those of other hosts to the other core. Goal: the connections of each host are
/// spread over the cores. Method: of two hosts, each has a connection on one of two cores; the next
/// two connections of the first host go to the core of the other host and to its own core.
#[test]
fn connections_of_a_host_spread_over_the_cores() {
    let memory = MemoryDevice::new(1 << 20, 512, 4096).unwrap();
    let device =
        Arc::new(LoggedDisk { memory, number: 0, log: Log::default(), reader: Mutex::default() });
    let disk = unit(Arc::<LoggedDisk>::clone(&device));
    let rig = Rig::with(|options| {
        options.targets[0].luns = [LunOptions::new(0, disk)].into();
        options.cores = 2;
    });
    let sources = ["127.0.0.2", "127.0.0.3", "127.0.0.2", "127.0.0.2"];
    let (mut connections, mut cores) = (Vec::new(), Vec::new());
    for (number, source) in (1..).zip(sources) {
        let mut raw = connect_from(source, &rig.address);
        assert_eq!(join(&mut raw, number, 0, 1).0, 0);
        assert_eq!(raw.execute(&[0; 6], 0).unwrap().0, 0, "TEST UNIT READY");
        send_reads(&mut raw, 0, 1, 1);
        assert_eq!(raw.outcome().unwrap().0, 0);
        cores.push(device.reader.lock().unwrap().take());
        connections.push(raw);
    }
    let at_first: Vec<_> = cores.iter().map(|core| *core == cores[0]).collect();
    assert_eq!(at_first, [true, false, false, true]);
    connections.into_iter().for_each(log_out);
    rig.stop_cleanly();
}
