//! Several paths to one disk: additional sessions if a target allows one connection, several
//! portals, and the loss of paths.

use crate::in_process_server::{InProcessServer, NAME, TEST_TIMEOUT, block_on};
use bytes::Bytes;
use futures_util::FutureExt;
use lunar_block::{BlockDevice, BlockRange, Effect, Fault, FaultOperation};
use lunar_initiator::{ErrorKind, PathPolicy, RemoteDisk, SessionOptions, Url};
use lunar_iscsi::text::Offer;
use lunar_target::CacheMode;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio::task::JoinSet;

/// Access states of target port groups. SPC-4 §6.37.
const OPTIMIZED: u8 = 0;
const NON_OPTIMIZED: u8 = 1;
/// Time that a flush waits for the other paths to report a reset; a path that reports it later
/// causes another error.
const RESET_REPORT_TIME: Duration = Duration::from_secs(2);
const PIECE_BYTES: usize = 4096;
const PIECES: usize = (8 << 20) / PIECE_BYTES;

/// Handling of data from the initiator.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum Mode {
    Pass,
    /// Data is kept in the network and does not arrive yet.
    Hold,
    /// The initiator's side is closed and new connections are refused; data in the network stays
    /// there.
    Cut,
}

/// Data in the network when a line was cut, and the connection to the target.
type DelayedData = (Vec<u8>, TcpStream);

/// A line to a portal, in a network that can fail.
struct FaultyLink {
    address: SocketAddr,
    /// Mode of new connections.
    mode: watch::Sender<Mode>,
    /// Modes of all connections so far, in the order of arrival.
    each: Arc<Mutex<Vec<watch::Sender<Mode>>>>,
    /// Number of bytes from the initiator.
    carried: Arc<AtomicU64>,
    ghosts: Arc<Mutex<Vec<DelayedData>>>,
}

impl FaultyLink {
    async fn to(portal: SocketAddr) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let line = Self {
            address,
            mode: watch::Sender::new(Mode::Pass),
            each: Arc::default(),
            carried: Arc::default(),
            ghosts: Arc::default(),
        };
        let (mode, carried) = (line.mode.subscribe(), Arc::clone(&line.carried));
        let (ghosts, each) = (Arc::clone(&line.ghosts), Arc::clone(&line.each));
        tokio::spawn(async move {
            let mut all = JoinSet::new();
            while let Ok((near, _)) = listener.accept().await {
                let now = *mode.borrow();
                if now == Mode::Cut {
                    continue;
                }
                let own = watch::Sender::new(now);
                let mode = own.subscribe();
                each.lock().unwrap().push(own);
                let far = TcpStream::connect(portal).await.unwrap();
                let (carried, ghosts) = (Arc::clone(&carried), Arc::clone(&ghosts));
                all.spawn(async move {
                    if let Some(ghost) = carry(near, far, mode, &carried).await {
                        ghosts.lock().unwrap().push(ghost);
                    }
                });
            }
        });
        line
    }

    fn set(&self, mode: Mode) {
        self.mode.send_replace(mode);
        for one in self.each.lock().unwrap().iter() {
            one.send_replace(mode);
        }
    }

    /// Sets the mode of one connection.
    fn set_one(&self, number: usize, mode: Mode) {
        self.each.lock().unwrap()[number].send_replace(mode);
    }

    fn carried(&self) -> u64 {
        self.carried.load(Relaxed)
    }

    /// Delivers the data that was in the network when the line was cut; the target accepts it.
    async fn let_ghosts_arrive(&self) -> usize {
        let ghosts = std::mem::take(&mut *self.ghosts.lock().unwrap());
        let count = ghosts.len();
        for (bytes, mut far) in ghosts {
            far.write_all(&bytes).await.unwrap();
            // The target answers, so it has executed the command.
            assert!(far.read(&mut [0; 4096]).await.unwrap() > 0);
        }
        count
    }
}

/// Copies bytes both ways until an end closes or the line is cut; returns the data that was held,
/// and the connection to the target.
async fn carry(
    mut near: TcpStream,
    mut far: TcpStream,
    mut mode: watch::Receiver<Mode>,
    carried: &AtomicU64,
) -> Option<DelayedData> {
    let (mut there, mut back, mut held) = (vec![0; 64 << 10], vec![0; 64 << 10], Vec::new());
    loop {
        let now = *mode.borrow_and_update();
        match now {
            Mode::Cut => return Some((held, far)),
            Mode::Pass if !held.is_empty() => {
                far.write_all(&held).await.ok()?;
                held.clear();
            }
            _ => {}
        }
        tokio::select! {
            changed = mode.changed() => changed.ok()?,
            read = near.read(&mut there) => {
                let bytes = read.ok().filter(|bytes| *bytes > 0)?;
                carried.fetch_add(bytes as u64, Relaxed);
                match now {
                    Mode::Hold => held.extend_from_slice(&there[..bytes]),
                    _ => far.write_all(&there[..bytes]).await.ok()?,
                }
            }
            read = far.read(&mut back) => {
                let bytes = read.ok().filter(|bytes| *bytes > 0)?;
                near.write_all(&back[..bytes]).await.ok()?;
            }
        }
    }
}

fn options() -> SessionOptions {
    SessionOptions::new("iqn.2026-11.org.lunarsan:paths")
}

fn url(address: SocketAddr) -> Url {
    format!("iscsi://{address}/{NAME}/0").parse().unwrap()
}

/// Opens a disk behind these lines.
async fn open(lines: &[&FaultyLink], mut options: SessionOptions) -> Arc<RemoteDisk> {
    let (first, others) = lines.split_first().unwrap();
    let portal = |line: &&FaultyLink| (line.address.ip().to_string(), line.address.port());
    options.portals = others.iter().map(portal).collect();
    Arc::new(RemoteDisk::connect(&url(first.address), &options).await.unwrap())
}

async fn close(disk: Arc<RemoteDisk>) {
    Arc::into_inner(disk).expect("the port is free").close().await.unwrap();
}

fn range_of(piece: usize) -> BlockRange {
    let blocks = (PIECE_BYTES / 512) as u64;
    BlockRange::new(piece as u64 * blocks, blocks)
}

async fn write(disk: &RemoteDisk, piece: usize, byte: u8) {
    let data = Bytes::from(vec![byte; PIECE_BYTES]);
    disk.write(range_of(piece), data, false).await.unwrap();
}

async fn read(disk: &RemoteDisk, piece: usize) -> u8 {
    let buffer = disk.unit().initiator().pool().take(PIECE_BYTES);
    let read = disk.read(range_of(piece), buffer).await.unwrap();
    assert!(read[1..] == read[..PIECE_BYTES - 1], "piece {piece} is torn");
    read[0]
}

/// Writes each piece and reads it back, `depth` at a time, in `rounds` rounds.
async fn use_disk(disk: &Arc<RemoteDisk>, rounds: u8, depth: usize) {
    let mut workers = JoinSet::new();
    for worker in 0..depth {
        let disk = Arc::clone(disk);
        workers.spawn(async move {
            for round in 1..=rounds {
                for piece in (worker..PIECES).step_by(depth) {
                    write(&disk, piece, round ^ piece as u8).await;
                }
                for piece in (worker..PIECES).step_by(depth) {
                    assert_eq!(read(&disk, piece).await, round ^ piece as u8, "piece {piece}");
                }
            }
        });
    }
    while let Some(done) = workers.join_next().await {
        done.unwrap();
    }
}

async fn until(what: &str, mut done: impl FnMut() -> bool) {
    let begin = Instant::now();
    while !done() {
        assert!(begin.elapsed() < TEST_TIMEOUT, "{what}");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

/// Goal: if a target allows one connection, the requested number of connections is made as separate
/// sessions, which share the work, and are added and removed while commands run.
#[test]
fn sessions_replace_refused_connections() {
    let offer = Offer { max_connections: 1, ..Offer::default() };
    let server = InProcessServer::with(CacheMode::WriteThrough, offer);
    block_on(async {
        for policy in [PathPolicy::LeastOutstanding, PathPolicy::RoundRobin] {
            let line = FaultyLink::to(server.portal(0)).await;
            let options = SessionOptions { connections: 4, path_policy: policy, ..options() };
            let disk = open(&[&line], options).await;
            assert_eq!((disk.paths(), disk.connections()), (4, 4));
            until("all are there", || server.sessions() == 4).await;
            let changes = async {
                for wanted in [1, 6, 2, 4] {
                    disk.set_connections(wanted).await;
                    assert_eq!(disk.connections(), usize::from(wanted));
                    tokio::time::sleep(Duration::from_millis(20)).await;
                }
            };
            tokio::join!(use_disk(&disk, 2, 32), changes);
            until("the others have left", || server.sessions() == 4).await;
            use_disk(&disk, 1, 32).await;
            close(disk).await;
            until("all have left", || server.sessions() == 0).await;
        }
    });
    server.end();
}

/// Goal: a lost path only causes a delay, whichever it is; the other paths continue, and the path
/// is used again when it is back.
#[test]
fn a_lost_path_is_only_a_delay() {
    let server = InProcessServer::new();
    block_on(async {
        let lines =
            [FaultyLink::to(server.portal(0)).await, FaultyLink::to(server.portal(1)).await];
        let disk = open(&[&lines[0], &lines[1]], options()).await;
        assert_eq!(disk.paths(), 2);
        let over = AtomicBool::new(false);
        let cuts = async {
            for cut in 0..6 {
                tokio::time::sleep(Duration::from_millis(60)).await;
                let line = &lines[cut % 2];
                line.set(Mode::Cut);
                // The read in progress and all new commands use the other path.
                let (other, before) = (&lines[1 - cut % 2], lines[1 - cut % 2].carried());
                until("the other carries on", || other.carried() > before).await;
                line.set(Mode::Pass);
                until("it is back", || disk.paths() == 2).await;
            }
            over.store(true, Relaxed);
        };
        let work = async {
            while !over.load(Relaxed) {
                use_disk(&disk, 1, 16).await;
            }
        };
        tokio::join!(work, cuts);
        let before = lines.each_ref().map(FaultyLink::carried);
        use_disk(&disk, 1, 16).await;
        let carried = [0, 1].map(|line| lines[line].carried() - before[line]);
        assert!(carried.iter().all(|bytes| *bytes > 1 << 20), "both are used: {carried:?}");
        disk.flush().await.unwrap();
        close(disk).await;
    });
    server.end();
}

/// Goal: a path that is back is used, even with one command at a time. Fault: it was never used
/// again: it was selected, skipped because it had not been probed yet, and the next path was used.
#[test]
fn a_path_that_is_back_is_used() {
    let server = InProcessServer::new();
    block_on(async {
        for policy in [PathPolicy::LeastOutstanding, PathPolicy::RoundRobin] {
            let lines =
                [FaultyLink::to(server.portal(0)).await, FaultyLink::to(server.portal(1)).await];
            let options = SessionOptions { path_policy: policy, ..options() };
            let disk = open(&[&lines[0], &lines[1]], options).await;
            for line in &lines {
                line.set(Mode::Cut);
                // A read detects the loss, and starts the recovery. A write would wait for it.
                while disk.paths() == 2 {
                    read(&disk, 0).await;
                }
                line.set(Mode::Pass);
                until("it is back", || disk.paths() == 2).await;
                let before = line.carried();
                let begin = Instant::now();
                while line.carried() < before + PIECE_BYTES as u64 {
                    assert!(begin.elapsed() < TEST_TIMEOUT, "{policy:?} passes over it");
                    write(&disk, 0, 2).await;
                }
            }
            close(disk).await;
        }
    });
    server.end();
}

/// Goal: a write that was abandoned on a lost path cannot overwrite a later one, which waits until
/// the target has ended the lost session. Method: hold the first write in the network, cut the
/// line, write again, and deliver the first write late.
#[test]
fn no_late_write_overwrites_a_later_one() {
    let server = InProcessServer::with(CacheMode::WriteThrough, Offer::default());
    block_on(async {
        let (slow, other) =
            (FaultyLink::to(server.portal(0)).await, FaultyLink::to(server.portal(1)).await);
        let disk = open(&[&slow, &other], options()).await;
        let witness = RemoteDisk::connect(&url(server.portal(1)), &options()).await.unwrap();
        write(&disk, 0, 1).await;
        slow.set(Mode::Hold);
        // One write is sent on each path.
        let held = slow.carried();
        let mut first: Vec<_> = (0..2).map(|_| Box::pin(write(&disk, 0, 2).fuse())).collect();
        while slow.carried() == held {
            for write in &mut first {
                let _ = write.as_mut().now_or_never();
            }
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        slow.set(Mode::Cut);
        until("the path is lost", || disk.paths() == 1).await;
        drop(first);
        let second = tokio::spawn({
            let disk = Arc::clone(&disk);
            async move { write(&disk, 0, 3).await }
        });
        for piece in 1..50 {
            write(&disk, piece, 4).await; // other blocks do not wait
        }
        assert!(!second.is_finished(), "the fate of the first write is not known");
        assert_eq!(slow.let_ghosts_arrive().await, 1);
        assert_eq!(read(&witness, 0).await, 2, "it was executed late");
        assert!(!second.is_finished());
        slow.set(Mode::Pass);
        second.await.unwrap();
        assert_eq!(read(&witness, 0).await, 3);
        witness.close().await.unwrap();
        close(disk).await;
    });
    server.end();
}

/// Goal: the same if the path is removed: its uncertain writes are still tracked.
#[test]
fn uncertain_writes_of_a_removed_path_are_tracked() {
    let offer = Offer { max_connections: 1, ..Offer::default() };
    let server = InProcessServer::with(CacheMode::WriteThrough, offer);
    block_on(async {
        let line = FaultyLink::to(server.portal(0)).await;
        let options =
            SessionOptions { connections: 2, path_policy: PathPolicy::RoundRobin, ..options() };
        let disk = open(&[&line], options).await;
        let witness = RemoteDisk::connect(&url(server.portal(1)), &self::options()).await.unwrap();
        write(&disk, 0, 1).await;
        write(&disk, 0, 1).await;
        line.set_one(1, Mode::Hold);
        let held = line.carried();
        let mut first: Vec<_> = (0..2).map(|_| Box::pin(write(&disk, 0, 2).fuse())).collect();
        let begin = Instant::now();
        while line.carried() < held + 2 * PIECE_BYTES as u64 {
            assert!(begin.elapsed() < TEST_TIMEOUT, "both are sent");
            for write in &mut first {
                let _ = write.as_mut().now_or_never();
            }
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        line.mode.send_replace(Mode::Cut);
        line.set_one(1, Mode::Cut);
        until("the path is lost", || disk.paths() == 1).await;
        drop(first);
        let fewer = tokio::spawn({
            let disk = Arc::clone(&disk);
            async move { disk.set_connections(1).await }
        });
        let second = tokio::spawn({
            let disk = Arc::clone(&disk);
            async move { write(&disk, 0, 3).await }
        });
        for piece in 1..50 {
            write(&disk, piece, 4).await;
        }
        assert!(!second.is_finished(), "the fate of the first write is not known");
        assert_eq!(line.let_ghosts_arrive().await, 1);
        assert_eq!(read(&witness, 0).await, 2, "it was executed late");
        assert!(!second.is_finished());
        line.mode.send_replace(Mode::Pass);
        second.await.unwrap();
        fewer.await.unwrap();
        assert_eq!(read(&witness, 0).await, 3);
        until("one session is left", || server.sessions() == 2).await; // plus the witness
        witness.close().await.unwrap();
        close(disk).await;
    });
    server.end();
}

/// Goal: a path added after a reset does not hide the reset: a flush that uses it fails like any
/// other, even if the path that would have reported the reset is lost by then.
#[test]
fn a_path_added_late_hides_no_reset() {
    let server = InProcessServer::new();
    block_on(async {
        let lines =
            [FaultyLink::to(server.portal(0)).await, FaultyLink::to(server.portal(1)).await];
        lines[1].set(Mode::Cut);
        let disk = open(&[&lines[0], &lines[1]], options()).await;
        write(&disk, 0, 1).await;
        reset(&server).await;
        lines[1].set(Mode::Pass);
        until("the other path is there", || disk.paths() == 2).await;
        lines[0].set(Mode::Cut);
        until("the first path is lost", || disk.paths() == 1).await;
        let error = disk.flush().await.expect_err("the write may be lost");
        assert_eq!(kind_of(&error), ErrorKind::CacheLost, "{error}");
        lines[0].set(Mode::Pass);
        close(disk).await;
    });
    server.end();
}

/// Goal: without a recovery time, the other path is still used.
#[test]
fn without_recovery_time_the_other_path_is_used() {
    let server = InProcessServer::with(CacheMode::WriteThrough, Offer::default());
    block_on(async {
        let lines =
            [FaultyLink::to(server.portal(0)).await, FaultyLink::to(server.portal(1)).await];
        let options = SessionOptions { recovery_seconds: 0, ..options() };
        let disk = open(&[&lines[0], &lines[1]], options).await;
        write(&disk, 0, 7).await;
        for line in [0, 1, 0] {
            lines[line].set(Mode::Cut);
            for _ in 0..50 {
                assert_eq!(read(&disk, 0).await, 7);
            }
            lines[line].set(Mode::Pass);
            until("it is back", || disk.paths() == 2).await;
        }
        close(disk).await;
    });
    server.end();
}

fn kind_of(error: &lunar_block::Error) -> ErrorKind {
    let source = std::error::Error::source(error).unwrap();
    source.downcast_ref::<lunar_initiator::Error>().unwrap().kind.clone()
}

/// Resets the disk as in `nexus.rs`: another initiator's flush receives the error, and an operator
/// recovers the disk.
async fn reset(server: &InProcessServer) {
    let failure = Fault::new(Effect::Fail(lunar_block::ErrorKind::Medium));
    server.device.inject(failure.on(FaultOperation::Flush).times(1));
    let other = RemoteDisk::connect(&url(server.portal(0)), &options()).await.unwrap();
    other.flush().await.unwrap_err();
    server.unit.recover().await.unwrap();
    other.close().await.unwrap();
}

/// Goal: commands use active ports, optimized ones first, follow state changes, and wait if no port
/// is active.
#[test]
fn access_states_are_followed() {
    const STANDBY: u8 = 2;
    let server = InProcessServer::with(CacheMode::WriteThrough, Offer::default());
    block_on(async {
        let lines =
            [FaultyLink::to(server.portal(0)).await, FaultyLink::to(server.portal(1)).await];
        let disk = open(&[&lines[0], &lines[1]], options()).await;
        let operator = RemoteDisk::connect(&url(server.portal(0)), &options()).await.unwrap();
        for (states, used) in [
            ([STANDBY, OPTIMIZED], [false, true]),
            ([OPTIMIZED, NON_OPTIMIZED], [true, false]),
            ([NON_OPTIMIZED, OPTIMIZED], [false, true]),
            ([NON_OPTIMIZED, STANDBY], [true, false]),
            ([OPTIMIZED, OPTIMIZED], [true, true]),
        ] {
            set_states(&operator, states).await;
            use_disk(&disk, 1, 4).await; // detects the states
            let before = lines.each_ref().map(FaultyLink::carried);
            use_disk(&disk, 1, 4).await;
            let carried = [0, 1].map(|line| lines[line].carried() - before[line] > 1 << 20);
            assert_eq!(carried, used, "{states:?}");
        }
        set_states(&operator, [OPTIMIZED, STANDBY]).await;
        lines[0].set(Mode::Cut);
        until("the path is lost", || disk.paths() == 1).await;
        let waits = tokio::spawn({
            let disk = Arc::clone(&disk);
            async move { write(&disk, 0, 9).await }
        });
        tokio::time::sleep(Duration::from_millis(300)).await;
        assert!(!waits.is_finished(), "a port in standby takes no writes");
        set_states(&operator, [STANDBY, NON_OPTIMIZED]).await;
        waits.await.unwrap();
        lines[0].set(Mode::Pass);
        let other = open(&[&lines[0], &lines[1]], options()).await;
        assert_eq!(read(&other, 0).await, 9, "opened through the port that is active");
        close(other).await;
        operator.close().await.unwrap();
        close(disk).await;
    });
    server.end();
}

/// Sends SET TARGET PORT GROUPS for the groups 1 and 300.
async fn set_states(operator: &RemoteDisk, [first, second]: [u8; 2]) {
    let list = vec![0, 0, 0, 0, first, 0, 0, 1, second, 0, 0x01, 0x2c];
    let cdb = vec![0xa4, 0x0a, 0, 0, 0, 0, 0, 0, 0, list.len() as u8, 0, 0];
    operator.unit().command(cdb, Bytes::from(list), 0).await.unwrap();
}

/// Goal: one reset is reported once, though each path receives it, and a flush over one path covers
/// writes over all; if one path is sufficient, another has reported the reset before it is needed.
/// Method: repeated if the paths had no time to report.
#[test]
fn a_reset_is_reported_once() {
    const TRIES: usize = 8;
    let server = InProcessServer::new();
    for rests in [false, true] {
        block_on(async {
            for _ in 0..TRIES {
                if is_told_once(&server, rests).await {
                    return;
                }
            }
            panic!("no path reports it within {RESET_REPORT_TIME:?}");
        });
    }
    server.end();
}

/// Whether a reset is reported once; `false`: a path that did not report within
/// [`RESET_REPORT_TIME`] causes another report. The second path may be idle.
async fn is_told_once(server: &InProcessServer, rests: bool) -> bool {
    let lines = [FaultyLink::to(server.portal(0)).await, FaultyLink::to(server.portal(1)).await];
    let disk = open(&[&lines[0], &lines[1]], options()).await;
    let operator = RemoteDisk::connect(&url(server.portal(0)), &options()).await.unwrap();
    let second = if rests { NON_OPTIMIZED } else { OPTIMIZED };
    set_states(&operator, [OPTIMIZED, second]).await;
    operator.close().await.unwrap();
    use_disk(&disk, 1, 1).await; // detects the reset
    for piece in 0..8 {
        write(&disk, piece, 1).await;
    }
    disk.flush().await.unwrap();
    for piece in 0..8 {
        write(&disk, piece, 2).await;
    }
    reset(server).await;
    let begin = Instant::now();
    let error = disk.flush().await.expect_err("the cache may have lost something");
    let in_time = begin.elapsed() < RESET_REPORT_TIME;
    assert_eq!(kind_of(&error), ErrorKind::CacheLost, "{error}");
    let before = lines[1].carried();
    for piece in 0..8 {
        write(&disk, piece, 3).await;
    }
    if rests {
        assert!(lines[1].carried() - before < PIECE_BYTES as u64, "it does not rest");
        lines[0].set(Mode::Cut);
        until("the path is lost", || disk.paths() == 1).await;
        write(&disk, 0, 3).await;
    }
    let again = disk.flush().await;
    assert!(again.is_ok() || !in_time, "the loss is reported once: {again:?}");
    close(disk).await;
    again.is_ok()
}

/// Goal: a disk can be opened while one of its portals is down, and uses that path when it is back.
#[test]
fn a_portal_may_be_missing() {
    let server = InProcessServer::with(CacheMode::WriteThrough, Offer::default());
    block_on(async {
        let lines =
            [FaultyLink::to(server.portal(0)).await, FaultyLink::to(server.portal(1)).await];
        for missing in [0, 1] {
            lines[missing].set(Mode::Cut);
            let options = SessionOptions { connections: 2, ..options() };
            let disk = open(&[&lines[0], &lines[1]], options).await;
            assert_eq!((disk.paths(), disk.connections()), (1, 2));
            use_disk(&disk, 1, 4).await;
            lines[missing].set(Mode::Pass);
            until("it is there", || disk.paths() == 2 && disk.connections() == 4).await;
            use_disk(&disk, 1, 4).await;
            close(disk).await;
        }
        lines.iter().for_each(|line| line.set(Mode::Cut));
        let error = RemoteDisk::connect(&url(lines[0].address), &options()).await.unwrap_err();
        assert!(error.to_string().contains(&lines[0].address.to_string()), "{error}");
    });
    server.end();
}

/// Goal: a command that hangs in the target ends with an error that names device and blocks when
/// its time is over; later writes to its blocks are not overwritten by it.
#[test]
fn a_command_that_hangs_has_its_time() {
    let server = InProcessServer::with(CacheMode::WriteThrough, Offer::default());
    block_on(async {
        let options = SessionOptions { command_seconds: 3, ..options() };
        let disk = RemoteDisk::connect(&url(server.portal(0)), &options).await.unwrap();
        server.device.inject(Fault::new(Effect::Hang).on(FaultOperation::Write).times(1));
        let data = Bytes::from(vec![1; PIECE_BYTES]);
        let error = disk.write(range_of(3), data, false).await.unwrap_err();
        let printed = error.to_string();
        assert!(printed.contains("did not answer a command within 3 s"), "{printed}");
        assert!(printed.contains("/0") && printed.contains("blocks 24+8"), "{printed}");
        let options = SessionOptions { command_seconds: 0, ..options };
        let patient = RemoteDisk::connect(&url(server.portal(0)), &options).await.unwrap();
        // Before that, the two writes are concurrent, and nothing orders them.
        until("it is aborted", || server.unit.detached_write_count() == 1).await;
        let mut second = Box::pin(write(&patient, 3, 2));
        let waited = tokio::time::timeout(Duration::from_millis(100), second.as_mut()).await;
        assert!(waited.is_err(), "its blocks are not free");
        server.device.release();
        second.await;
        assert_eq!(read(&patient, 3).await, 2);
        patient.close().await.unwrap();
        disk.close().await.unwrap();
    });
    server.end();
}
