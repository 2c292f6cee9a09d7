//! A real file system that is too small for the disk on it: messages to initiators, and handling of
//! their writes.

use crate::common::{Scratch, Server, TEST_TIMEOUT, assert_exit, get, json, pattern, printed, run};
use bytes::Bytes;
use lunar_block::{BlockDevice, BlockRange};
use lunar_initiator::{RemoteDisk, SessionOptions, Url};
use serde_json::Value;
use std::os::unix::fs::MetadataExt;
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

const SYSTEM_MEBIBYTES: u64 = 24;
const DISK: &str = "64M";
const TRANSFER_BYTES: usize = 1 << 20;
/// Message of the server when a write waits.
const HELD: &str = "writes wait until space is free";

/// `lunar serve` in its own mount namespace, with its first disk on a small tmpfs there.
struct SmallDiskServer {
    server: Server,
    directory: Scratch,
}

impl SmallDiskServer {
    fn serve(name: &str, arguments: &[&str]) -> Self {
        let directory = Scratch::new(name);
        let path = directory.path().to_str().unwrap().to_owned();
        let disk = format!("{path}/disk.img");
        let script = format!(
            "mount -t tmpfs -o size={SYSTEM_MEBIBYTES}m lunar-test '{path}' && exec \"$@\""
        );
        let mut command = Command::new("unshare");
        if std::fs::metadata("/proc/self").unwrap().uid() != 0 {
            command.arg("--map-root-user");
        }
        command.args(["--mount", "--propagation", "private", "sh", "-c", &script, "sh"]);
        command.args([env!("CARGO_BIN_EXE_lunar"), "serve", "--listen", "127.0.0.1:0"]);
        command.args([&disk, "--size", DISK]).args(arguments);
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        Self { server: Server::start_command(command), directory }
    }

    /// Path of a file beside the disk, in the server's namespace.
    fn neighbour(&self) -> PathBuf {
        let inside = self.directory.path().strip_prefix("/").unwrap();
        PathBuf::from(format!("/proc/{}/root", self.server.pid())).join(inside).join("neighbour")
    }

    /// Waits until a write waits for room.
    async fn held(&self) {
        while !self.server.has_said(HELD) {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }

    async fn connect(&self, lun: u16) -> RemoteDisk {
        let url: Url = self.server.lun(lun).parse().unwrap();
        let mut options = SessionOptions::new("iqn.2026-11.org.lunarsan:room");
        options.recovery_seconds = 2;
        RemoteDisk::connect(&url, &options).await.unwrap()
    }
}

fn block_on<T>(future: impl Future<Output = T>) -> T {
    let mut runtime = tokio::runtime::Builder::new_current_thread();
    runtime.enable_all().build().unwrap().block_on(async {
        tokio::time::timeout(4 * crate::common::TEST_TIMEOUT, future).await.expect("nothing hangs")
    })
}

/// Writes the first `bytes` of the disk.
async fn fill(disk: &RemoteDisk, bytes: &[u8]) -> Result<(), lunar_block::Error> {
    let blocks = (TRANSFER_BYTES / 512) as u64;
    for (index, piece) in bytes.chunks(TRANSFER_BYTES).enumerate() {
        let range = BlockRange::new(index as u64 * blocks, piece.len() as u64 / 512);
        disk.write(range, Bytes::copy_from_slice(piece), true).await?;
    }
    Ok(())
}

async fn content(disk: &RemoteDisk, bytes: usize) -> Vec<u8> {
    let mut all = Vec::new();
    let blocks = (TRANSFER_BYTES / 512) as u64;
    for index in 0..bytes.div_ceil(TRANSFER_BYTES) {
        let range = BlockRange::new(index as u64 * blocks, blocks);
        let buffer = disk.unit().initiator().pool().take(TRANSFER_BYTES);
        all.extend_from_slice(&disk.read(range, buffer).await.unwrap());
    }
    all.truncate(bytes);
    all
}

/// Goal: a disk without room holds writes only; when there is room, they complete, and no data is
/// lost.
/// Method: another file takes a third of the file system; more is written than is left; while these
/// writes wait, the other disk and existing data are used; then the other file is removed.
#[test]
fn a_full_file_system_holds_writes_until_there_is_space() {
    let small = SmallDiskServer::serve("hold", &["mem:16M", "--out-of-space", "hold"]);
    std::fs::write(small.neighbour(), vec![1; 8 << 20]).unwrap();
    let data = pattern(8, 20 << 20);
    block_on(async {
        let disk = small.connect(0).await;
        let mut filling = Box::pin(fill(&disk, &data));
        tokio::select! {
            filled = &mut filling => panic!("there is no room for it: {filled:?}"),
            () = small.held() => {}
        }
        let waiting = tokio::time::timeout(Duration::from_secs(2), &mut filling).await;
        assert!(waiting.is_err(), "there is no room for it: {waiting:?}");
        assert_eq!(content(&disk, 1 << 20).await, data[..1 << 20], "reads go on");
        let other = small.connect(1).await;
        fill(&other, &data[..4 << 20]).await.unwrap();
        assert_eq!(content(&other, 4 << 20).await, data[..4 << 20]);
        std::fs::remove_file(small.neighbour()).unwrap();
        filling.await.unwrap();
        assert_eq!(content(&disk, data.len()).await, data);
    });
    let (last, _) = small.server.stop();
    assert_exit(&last, 0);
    let printed = crate::common::printed(&last);
    assert!(printed.contains("writes wait") && printed.contains("no writes wait"), "{printed}");
}

/// Goal: a waiting write does not prevent a shutdown. Method: a busy machine may take longer, but
/// not in every attempt.
#[test]
fn a_held_write_does_not_delay_a_shutdown() {
    let in_time = || time_to_end_beside_a_held_write() < Duration::from_secs(8);
    assert!((0..3).any(|_| in_time()), "8 s and more each time");
}

fn time_to_end_beside_a_held_write() -> Duration {
    let small = SmallDiskServer::serve("held-stop", &["mem:16M", "--out-of-space", "hold"]);
    std::fs::write(small.neighbour(), vec![1; 20 << 20]).unwrap();
    let data = pattern(9, 8 << 20);
    block_on(async {
        let disk = small.connect(0).await;
        let mut filling = Box::pin(fill(&disk, &data));
        tokio::select! {
            filled = &mut filling => panic!("there is no room for it: {filled:?}"),
            () = small.held() => {}
        }
        let stopped = tokio::task::spawn_blocking(|| small.server.stop());
        let (stopped, filled) = tokio::join!(stopped, filling);
        assert!(filled.is_err(), "it cannot have been written");
        let (last, took) = stopped.unwrap();
        assert_exit(&last, 0);
        took
    })
}

/// Goal: without the option, writes to a full file system fail.
#[test]
fn a_full_file_system_fails_writes_by_default() {
    let small = SmallDiskServer::serve("fail", &[]);
    let data = pattern(10, 30 << 20);
    block_on(async {
        let disk = small.connect(0).await;
        let error = fill(&disk, &data).await.expect_err("there is no room for it");
        assert_eq!(error.kind, lunar_block::ErrorKind::NoSpace, "{error}");
        assert_eq!(content(&disk, 8 << 20).await, data[..8 << 20], "the written data is there");
    });
}

/// Goal: a threshold is refused if the available room is not known.
#[test]
fn a_threshold_requires_known_free_space() {
    let scratch = Scratch::new("no-room");
    let disk = scratch.path().join("disk.img");
    let disk = disk.to_str().unwrap();
    for arguments in [&["mem:1M"][..], &[disk, "--size", "1M", "--no-thin"]] {
        let common = ["serve", "--listen", "127.0.0.1:0", "--thin-threshold", "90%"];
        let refused = crate::common::run(&[&common, arguments].concat());
        assert_exit(&refused, 1);
        assert!(crate::common::printed(&refused).contains("thin_threshold is not possible for"));
    }
    for wrong in ["90", "0%", "100%", "x%", "%"] {
        let refused = crate::common::run(&["serve", "mem:1M", "--thin-threshold", wrong]);
        assert_exit(&refused, 2);
    }
}

/// The room at the server's last check, in threshold sets: the first parameter of log page 0Ch.
async fn room_seen(disk: &RemoteDisk) -> u32 {
    const LOG_SENSE: [u8; 10] = [0x4d, 0, 0x4c, 0, 0, 0, 0, 0, 64, 0];
    let (initiator, lun) = (disk.unit().initiator(), disk.unit().lun());
    let reply = initiator.execute(lun, LOG_SENSE.to_vec(), Bytes::new(), 64).await.unwrap();
    assert!(reply.result.sense.is_empty(), "reported twice: {:?}", &reply.result.sense[..]);
    assert_eq!(reply.data_in[4..6], [0, 1], "the available space");
    u32::from_be_bytes(reply.data_in[8..12].try_into().unwrap())
}

/// Goal: initiators are notified once before the room runs out, whoever uses it.
/// Method: another file fills the file system beyond the threshold, is removed, and fills it again.
#[test]
fn a_reached_threshold_is_reported() {
    const TEST_UNIT_READY: [u8; 6] = [0; 6];
    let small = SmallDiskServer::serve("threshold", &["--thin-threshold", "50%"]);
    block_on(async {
        let disk = small.connect(0).await;
        let page = disk.unit().vpd_page(0xb2).await.unwrap().expect("it is thin");
        assert_eq!(page[0], 11, "threshold sets of a mebibyte");
        for _ in 0..2 {
            std::fs::write(small.neighbour(), vec![1; 16 << 20]).unwrap();
            let sense = loop {
                let initiator = disk.unit().initiator();
                let lun = disk.unit().lun();
                let ready = initiator.execute(lun, TEST_UNIT_READY.to_vec(), Bytes::new(), 0).await;
                let sense = ready.unwrap().result.sense;
                if !sense.is_empty() {
                    break sense;
                }
                tokio::time::sleep(Duration::from_millis(50)).await;
            };
            assert_eq!((sense[0], sense[2]), (0xf0, 6), "a unit attention, with information");
            assert_eq!((&sense[3..7], &sense[12..14]), (&[0, 0, 0, 16][..], &[0x38, 0x07][..]));
            // The server has checked again by then, and is silent: another message would be
            // returned by room_seen.
            tokio::time::sleep(Duration::from_millis(2500)).await;
            assert!(room_seen(&disk).await < 20);
            std::fs::remove_file(small.neighbour()).unwrap();
            // The server notifies again after it has seen that there was room meanwhile.
            while room_seen(&disk).await < 20 {
                tokio::time::sleep(Duration::from_millis(50)).await;
            }
            disk.unit().test_ready().await.unwrap();
        }
    });
}

/// Goal: allocated and free space are reported; a reached threshold and failed writes are faults
/// until there is space again, and are logged.
/// Fault: thin disks ran out of space unseen.
/// Method: another file reaches the threshold, then writes fill the rest; then it is removed.
#[test]
fn free_space_is_reported() {
    let sockets = Scratch::new("space-api");
    let api = format!("unix:{}/api.sock", sockets.path().display());
    let more = ["--thin-threshold", "50%", "--api", &api, "--metrics", "127.0.0.1:0"];
    let small = SmallDiskServer::serve("space", &more);
    let ctl = |what: &str| json(&run(&["ctl", "--api", &api, what, "--json"]));
    let until = |health: &str, error: &str| {
        let begin = Instant::now();
        loop {
            let status = ctl("status");
            let troubles = status["troubles"].as_array().unwrap();
            let has = |trouble: &Value| trouble["error"].as_str().unwrap().contains(error);
            if status["health"] == health && (error.is_empty() || troubles.iter().any(has)) {
                break;
            }
            assert!(begin.elapsed() < TEST_TIMEOUT, "no {error} in {status}");
            std::thread::sleep(Duration::from_millis(50));
        }
    };
    let lun = &ctl("luns")["luns"][0];
    assert_eq!(lun["allocated_bytes"], 0, "{lun}");
    // The state directory is there as well.
    assert_eq!(lun["free_bytes"].as_u64().unwrap().div_ceil(1 << 20), SYSTEM_MEBIBYTES, "{lun}");
    std::fs::write(small.neighbour(), vec![1; 16 << 20]).unwrap();
    until("degraded", "7 MiB are free, its threshold of 50 % is reached");
    let data = pattern(11, 10 << 20);
    let full = block_on(async { fill(&small.connect(0).await, &data).await });
    assert_eq!(full.unwrap_err().kind, lunar_block::ErrorKind::NoSpace);
    until("degraded", "is out of space: writes fail");
    small.server.until_said("no space left: writes fail");
    until_measured(|| ctl("luns")["luns"][0]["free_bytes"].as_u64().unwrap() < 1 << 20);
    let unit = &ctl("status")["units"][0];
    let allocated_bytes = unit["allocated_bytes"].as_u64().unwrap();
    assert_eq!(allocated_bytes.div_ceil(1 << 20), 8, "{unit}");
    let metrics = get(small.server.report["metrics"].as_str().unwrap());
    assert!(metrics.contains("lunar_lun_free_bytes{"), "{metrics}");
    let allocated = metrics.lines().find(|line| line.starts_with("lunar_lun_allocated_bytes{"));
    assert!(allocated.unwrap().ends_with(&format!(" {allocated_bytes}")), "{allocated:?}");
    let listed = printed(&run(&["ctl", "--api", &api, "luns"]));
    assert!(listed.contains("ALLOCATED") && listed.contains("8.00 MiB"), "{listed}");
    std::fs::remove_file(small.neighbour()).unwrap();
    until("good", "");
    small.server.until_said("writes no longer fail for lack of space");
    small.server.until_said("free space is above the threshold again");
    assert_exit(&small.server.stop().0, 0);
}

fn until_measured(is_so: impl Fn() -> bool) {
    let begin = Instant::now();
    while !is_so() {
        assert!(begin.elapsed() < TEST_TIMEOUT, "the space was not measured again");
        std::thread::sleep(Duration::from_millis(50));
    }
}
