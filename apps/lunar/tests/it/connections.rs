//! Sessions over several connections (MC/S): sharing of work, adding and removing connections.

use crate::common::{Server, TEST_TIMEOUT, pattern};
use bytes::Bytes;
use lunar_block::{BlockDevice, BlockRange};
use lunar_initiator::{RemoteDisk, SessionOptions, Url};
use std::net::SocketAddr;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::AbortHandle;

const PIECE_BYTES: usize = 4096;

/// A relay between initiator and server, with access to each connection in the order of arrival.
struct Relay {
    address: SocketAddr,
    links: Arc<Mutex<Vec<Link>>>,
}

struct Link {
    to_target_bytes: Arc<AtomicU64>,
    halves: [AbortHandle; 2],
}

impl Relay {
    async fn to(server: &Server) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let portal = server.portal().strip_prefix("iscsi://").unwrap().to_owned();
        let links = Arc::<Mutex<Vec<Link>>>::default();
        let list = Arc::clone(&links);
        tokio::spawn(async move {
            while let Ok((near, _)) = listener.accept().await {
                let Ok(far) = TcpStream::connect(&portal).await else { continue };
                let (near_in, near_out) = near.into_split();
                let (far_in, far_out) = far.into_split();
                let to_target_bytes = Arc::<AtomicU64>::default();
                let there = tokio::spawn(pass(near_in, far_out, Arc::clone(&to_target_bytes)));
                let back = tokio::spawn(pass(far_in, near_out, Arc::default()));
                let halves = [there.abort_handle(), back.abort_handle()];
                list.lock().unwrap().push(Link { to_target_bytes, halves });
            }
        });
        Self { address, links }
    }

    /// Bytes that each connection so far has carried to the target.
    fn carried(&self) -> Vec<u64> {
        self.links.lock().unwrap().iter().map(|link| link.to_target_bytes.load(Relaxed)).collect()
    }

    /// Closes a connection on both sides.
    fn cut(&self, number: usize) {
        self.links.lock().unwrap()[number].halves.iter().for_each(AbortHandle::abort);
    }
}

async fn pass(mut from: OwnedReadHalf, mut to: OwnedWriteHalf, carried: Arc<AtomicU64>) {
    let mut buffer = vec![0; 64 << 10];
    while let Ok(bytes @ 1..) = from.read(&mut buffer).await {
        carried.fetch_add(bytes as u64, Relaxed);
        if to.write_all(&buffer[..bytes]).await.is_err() {
            return;
        }
    }
}

struct Rig {
    relay: Relay,
    disk: Arc<RemoteDisk>,
    server: Server,
}

impl Rig {
    async fn new(connections: u16) -> Self {
        let server = Server::start(&["mem:4M"]);
        let relay = Relay::to(&server).await;
        let mut url: Url = server.lun(0).parse().unwrap();
        (url.host, url.port) = (relay.address.ip().to_string(), relay.address.port());
        let mut options = SessionOptions::new("iqn.2026-11.org.lunarsan:connections");
        options.connections = connections;
        let disk = Arc::new(RemoteDisk::connect(&url, &options).await.unwrap());
        Self { relay, disk, server }
    }

    fn connections(&self) -> usize {
        self.disk.unit().initiator().connections()
    }

    async fn until_connections(&self, wanted: usize) {
        let begin = Instant::now();
        while self.connections() != wanted {
            assert!(begin.elapsed() < TEST_TIMEOUT, "{} of {wanted}", self.connections());
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }

    /// Writes pieces derived from the seed all over the disk, `depth` at a time, and reads them
    /// back.
    async fn use_disk(&self, seed: u64, depth: usize) {
        let pieces = (4 << 20) / PIECE_BYTES;
        let mut workers = tokio::task::JoinSet::new();
        for worker in 0..depth {
            let disk = Arc::clone(&self.disk);
            workers.spawn(async move {
                for at in (worker..pieces).step_by(depth) {
                    write(&disk, at, &pattern(seed + at as u64, PIECE_BYTES)).await;
                }
                for at in (worker..pieces).step_by(depth) {
                    let same = read(&disk, at).await == pattern(seed + at as u64, PIECE_BYTES);
                    assert!(same, "piece {at} of seed {seed}");
                }
            });
        }
        while let Some(done) = workers.join_next().await {
            done.unwrap();
        }
    }

    async fn close_and_stop(self) {
        Arc::into_inner(self.disk).unwrap().close().await.unwrap();
        let (last, _) = self.server.stop();
        crate::common::assert_exit(&last, 0);
    }
}

fn range_of(piece: usize) -> BlockRange {
    let blocks = (PIECE_BYTES / 512) as u64;
    BlockRange::new(piece as u64 * blocks, blocks)
}

async fn write(disk: &RemoteDisk, piece: usize, data: &[u8]) {
    disk.write(range_of(piece), Bytes::copy_from_slice(data), false).await.unwrap();
}

async fn read(disk: &RemoteDisk, piece: usize) -> Vec<u8> {
    let buffer = disk.unit().initiator().pool().take(PIECE_BYTES);
    disk.read(range_of(piece), buffer).await.unwrap().to_vec()
}

fn run(test: impl Future<Output = ()>) {
    let mut runtime = tokio::runtime::Builder::new_multi_thread();
    runtime.worker_threads(2).enable_all().build().unwrap().block_on(async {
        tokio::time::timeout(4 * TEST_TIMEOUT, test).await.expect("nothing hangs");
    });
}

/// Goal: the connections of a session share its work evenly, and all data is correct. Method:
/// repeated if the machine was busy, as a connection whose core is slow gets less work.
#[test]
fn work_is_shared() {
    const TRIES: usize = 8;
    run(async {
        let mut attempts = Vec::new();
        for _ in 0..TRIES {
            let rig = Rig::new(4).await;
            assert_eq!(rig.connections(), 4);
            rig.use_disk(1, 64).await;
            let carried = rig.relay.carried();
            assert_eq!(carried.len(), 4, "{carried:?}");
            rig.close_and_stop().await;
            let (least, most) = (*carried.iter().min().unwrap(), *carried.iter().max().unwrap());
            if least * 2 > most && least > 512 << 10 {
                return;
            }
            attempts.push(carried);
        }
        panic!("uneven in each attempt: {attempts:?}");
    });
}

/// Goal: connections are added and removed while commands run, without any effect on the commands.
#[test]
fn connections_are_added_and_removed_under_load() {
    run(async {
        let rig = Rig::new(1).await;
        let initiator = rig.disk.unit().initiator().clone();
        let changes = async {
            for wanted in [3, 1, 8, 2, 100, 1, 4] {
                let there = initiator.set_connections(wanted).await.unwrap();
                assert_eq!(there, usize::from(wanted.min(8)), "MaxConnections is 8");
                tokio::time::sleep(Duration::from_millis(30)).await;
            }
        };
        tokio::join!(rig.use_disk(7, 32), changes);
        rig.until_connections(4).await;
        rig.use_disk(9, 32).await;
        drop(initiator);
        rig.close_and_stop().await;
    });
}

/// Goal: the loss of an idle connection, even the leading one, does not affect the session: the
/// others continue, and the connection is re-established.
#[test]
fn an_idle_connection_is_re_established() {
    run(async {
        let rig = Rig::new(3).await;
        rig.use_disk(3, 16).await;
        let mut there = 3;
        for number in [2, 0, 1] {
            rig.relay.cut(number);
            let begin = Instant::now();
            there += 1;
            while rig.relay.carried().len() < there || rig.connections() < 3 {
                assert!(begin.elapsed() < TEST_TIMEOUT, "{number}: {:?}", rig.relay.carried());
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
            rig.use_disk(10 + number as u64, 16).await;
        }
        assert_eq!(rig.relay.carried().len(), 6, "each was re-established once");
        rig.close_and_stop().await;
    });
}

/// Goal: if a connection with outstanding commands is lost, the session is re-established with all
/// its connections, and users of the disk only see a delay. Method: cut connections repeatedly, by
/// seed.
#[test]
fn a_busy_connection_is_lost_without_an_error() {
    run(async {
        let rig = Rig::new(3).await;
        let cuts = async {
            for cut in 0..6_usize {
                tokio::time::sleep(Duration::from_millis(40)).await;
                let last = rig.relay.carried().len();
                rig.relay.cut(last - 1 - cut % 3);
            }
        };
        tokio::join!(rig.use_disk(5, 32), cuts);
        rig.until_connections(3).await;
        rig.use_disk(6, 32).await;
        rig.close_and_stop().await;
    });
}

/// Goal: a command whose caller no longer waits is aborted at the target. Method: a LUN limited to
/// ten commands per second receives the commands of fifty seconds; after these are dropped, another
/// command is answered long before their turns would have come.
#[test]
fn dropped_commands_are_aborted() {
    const ALL_TURNS: Duration = Duration::from_secs(50);
    run(async {
        let server = Server::start(&["mem:4M", "--limit-iops", "10"]);
        let url: Url = server.lun(0).parse().unwrap();
        let mut options = SessionOptions::new("iqn.2026-11.org.lunarsan:connections");
        options.connections = 2;
        let disk = Arc::new(RemoteDisk::connect(&url, &options).await.unwrap());
        let begin = Instant::now();
        for _ in 0..2 {
            let mut reads = tokio::task::JoinSet::new();
            for _ in 0..250 {
                let disk = Arc::clone(&disk);
                reads.spawn(async move { read(&disk, 0).await });
            }
            reads.join_next().await.unwrap().unwrap();
            reads.shutdown().await;
        }
        read(&disk, 1).await;
        assert!(begin.elapsed() < ALL_TURNS * 3 / 5, "{:?}", begin.elapsed());
        Arc::into_inner(disk).unwrap().close().await.unwrap();
        crate::common::assert_exit(&server.stop().0, 0);
    });
}
