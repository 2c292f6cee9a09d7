//! Loss of the server of a remote disk, as its user sees it.

use crate::common::{ELSEWHERE, Scratch, Server, TEST_TIMEOUT, lunar, pattern};
use bytes::Bytes;
use lunar_block::{BlockDevice, BlockRange};
use lunar_initiator::{ErrorKind, RemoteDisk, SessionOptions, Url};
use std::sync::Arc;
use std::time::{Duration, Instant};

const NAME: &str = "iqn.2026-11.org.lunarsan.test:recovery";

/// A server that can be killed and restarted at the same port.
struct RestartableServer {
    scratch: Scratch,
    address: String,
    server: Option<Server>,
}

impl RestartableServer {
    fn new(name: &str, options: &[&str]) -> Self {
        let scratch = Scratch::new(name);
        let mut restartable = Self { scratch, address: ELSEWHERE.to_owned(), server: None };
        restartable.start("disk.img", options);
        let portal = restartable.server.as_ref().unwrap().portal();
        restartable.address = portal.strip_prefix("iscsi://").unwrap().to_owned();
        restartable
    }

    fn start(&mut self, file: &str, options: &[&str]) {
        let path = self.scratch.path().join(file);
        let head = ["serve", path.to_str().unwrap(), "--size", "8M", "--name", NAME];
        let all = [&head[..], &["--listen", &self.address], options].concat();
        self.server = Some(Server::start_command(lunar(&all)));
    }

    fn kill(&mut self) {
        let (last, _) = self.server.take().unwrap().stop_by("KILL");
        assert_eq!(last.status.code(), None, "{}", crate::common::printed(&last));
    }

    async fn connect(&self, recovery_seconds: u32) -> RemoteDisk {
        let url: Url = self.server.as_ref().unwrap().lun(0).parse().unwrap();
        let mut options = SessionOptions::new("iqn.2026-11.org.lunarsan:recovery");
        options.recovery_seconds = recovery_seconds;
        RemoteDisk::connect(&url, &options).await.unwrap()
    }
}

fn block_on<T>(future: impl Future<Output = T>) -> T {
    let mut runtime = tokio::runtime::Builder::new_current_thread();
    runtime.enable_all().build().unwrap().block_on(async {
        tokio::time::timeout(2 * TEST_TIMEOUT, future).await.expect("nothing hangs")
    })
}

async fn read(disk: &RemoteDisk, lba: u64, blocks: u64) -> Result<Vec<u8>, lunar_block::Error> {
    let buffer = disk.unit().initiator().pool().take(blocks as usize * 512);
    Ok(disk.read(BlockRange::new(lba, blocks), buffer).await?.to_vec())
}

async fn write(disk: &RemoteDisk, lba: u64, data: &[u8]) -> Result<(), lunar_block::Error> {
    let range = BlockRange::new(lba, data.len() as u64 / 512);
    disk.write(range, Bytes::copy_from_slice(data), false).await
}

fn kind_of(error: &lunar_block::Error) -> ErrorKind {
    let source = std::error::Error::source(error).unwrap();
    source.downcast_ref::<lunar_initiator::Error>().unwrap().kind.clone()
}

/// Goal: a connected initiator only sees a delay across a kill and a restart, and no error, however
/// many commands are in flight; acknowledged data is there.
#[test]
fn a_restart_is_only_a_delay() {
    let mut restartable = RestartableServer::new("recovery-restart", &[]);
    let data = pattern(1, 1 << 20);
    block_on(async {
        let disk = Arc::new(restartable.connect(60).await);
        write(&disk, 0, &data).await.unwrap();
        restartable.kill();
        let mut writes = tokio::task::JoinSet::new();
        for (at, piece) in data.chunks(4096).enumerate() {
            let (disk, piece) = (Arc::clone(&disk), piece.to_vec());
            writes.spawn(async move { write(&disk, 4096 + at as u64 * 8, &piece).await });
        }
        tokio::time::sleep(Duration::from_secs(1)).await;
        restartable.start("disk.img", &[]);
        while let Some(written) = writes.join_next().await {
            written.unwrap().unwrap();
        }
        assert!(read(&disk, 0, 2048).await.unwrap() == data, "data written before the restart");
        assert!(read(&disk, 4096, 2048).await.unwrap() == data, "data written during the restart");
        disk.flush().await.unwrap();
        Arc::into_inner(disk).unwrap().close().await.unwrap();
    });
}

/// Goal: the wait is limited, and its error lists the attempts; without a recovery time, the loss
/// is an error at once; a target that comes back later is used again.
#[test]
fn the_wait_is_limited() {
    let mut restartable = RestartableServer::new("recovery-end", &[]);
    block_on(async {
        let (patient, impatient) = (restartable.connect(10).await, restartable.connect(0).await);
        restartable.kill();
        let begin = Instant::now();
        let error = read(&impatient, 0, 1).await.unwrap_err();
        assert_eq!(error.kind, lunar_block::ErrorKind::Disconnected);
        assert!(
            !error.to_string().contains("not re-established within"),
            "nothing was tried: {error}"
        );
        let error = read(&patient, 0, 1).await.unwrap_err();
        assert!(begin.elapsed() >= Duration::from_secs(10), "{:?}", begin.elapsed());
        let printed = error.to_string();
        assert!(
            printed.contains("not re-established within 10 s")
                && printed.contains("cannot connect"),
            "{printed}"
        );
        restartable.start("disk.img", &[]);
        read(&patient, 0, 1).await.unwrap();
        assert!(read(&impatient, 0, 1).await.is_err());
    });
}

/// Goal: another disk under the same name is never used in place of the opened one.
#[test]
fn another_disk_is_not_used() {
    let mut restartable = RestartableServer::new("recovery-other", &[]);
    block_on(async {
        let disk = restartable.connect(60).await;
        restartable.kill();
        restartable.start("other.img", &[]);
        for _ in 0..2 {
            let error = write(&disk, 0, &[1; 512]).await.unwrap_err();
            assert_eq!(kind_of(&error), ErrorKind::Changed, "{error}");
        }
        let other = std::fs::read(restartable.scratch.path().join("other.img")).unwrap();
        assert!(other.iter().all(|byte| *byte == 0), "nothing was written");
        restartable.kill();
        // Until the loss is detected, the result of this session's check holds.
        tokio::time::sleep(Duration::from_millis(200)).await;
        restartable.start("disk.img", &[]);
        write(&disk, 0, &[2; 512]).await.unwrap();
        let stored = std::fs::read(restartable.scratch.path().join("disk.img")).unwrap();
        assert_eq!(stored[..512], [2; 512]);
    });
}

/// Goal: data that a write-back target acknowledged and may have lost is reported by the next
/// flush, once; data flushed before is not, and without a volatile cache nothing is lost.
#[test]
fn a_lost_cache_is_reported() {
    let mut restartable = RestartableServer::new("recovery-cache", &["--cache", "write-back"]);
    let options = ["--cache", "write-back"];
    block_on(async {
        let disk = restartable.connect(60).await;
        write(&disk, 0, &[1; 512]).await.unwrap();
        disk.flush().await.unwrap();
        restartable.kill();
        restartable.start("disk.img", &options);
        disk.flush().await.expect("all was flushed before");
        write(&disk, 0, &[2; 512]).await.unwrap();
        restartable.kill();
        restartable.start("disk.img", &options);
        write(&disk, 8, &[3; 512]).await.expect("a write is no flush");
        let error = disk.flush().await.unwrap_err();
        assert_eq!(kind_of(&error), ErrorKind::CacheLost, "{error}");
        disk.flush().await.expect("the loss is reported once");
        restartable.kill();
        restartable.start("disk.img", &[]);
        write(&disk, 0, &[4; 512]).await.unwrap();
        assert!(!disk.has_write_cache(), "it is write-through now");
        restartable.kill();
        restartable.start("disk.img", &[]);
        disk.flush().await.expect("nothing was volatile");
    });
}
