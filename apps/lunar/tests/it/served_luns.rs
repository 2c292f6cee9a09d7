//! A LUN of one server, served again by another one.

use crate::common::{
    ELSEWHERE, Scratch, Server, TEST_TIMEOUT, assert_exit, get, json, lunar, pattern, printed, run,
    run_with_input,
};
use bytes::Bytes;
use lunar_block::{BlockDevice, BlockRange, Geometry, contract::Contract};
use lunar_initiator::blocking::Connector;
use lunar_initiator::{RemoteDisk, SessionOptions};
use serde_json::Value;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

const STORAGE: &str = "iqn.2026-11.org.lunarsan.test:storage";

/// A server of one file, at an address that stays the same, and a server of its LUN.
struct Chain {
    scratch: Scratch,
    address: String,
    storage: Option<Server>,
    front: Server,
}

impl Chain {
    fn new(name: &str, storage_options: &[&str], front_options: &[&str]) -> Self {
        let scratch = Scratch::new(name);
        let storage = storage(&scratch, ELSEWHERE, storage_options);
        let address = storage.portal().strip_prefix("iscsi://").unwrap().to_owned();
        let front = Server::start(&[&[storage.lun(0).as_str()], front_options].concat());
        Self { scratch, address, storage: Some(storage), front }
    }

    /// Kills the server of the file, and starts another one.
    fn restart_storage(&mut self, options: &[&str]) {
        drop(self.storage.take().unwrap().stop_by("KILL"));
        self.storage = Some(storage(&self.scratch, &self.address, options));
    }

    /// Opens the served LUN as initiator `number`.
    fn open(&self, connector: &Connector, number: u32) -> Arc<RemoteDisk> {
        let name = format!("iqn.2026-11.org.lunarsan.test:host{number}");
        let url = self.front.lun(0).parse().unwrap();
        let disk = connector.open(&url, &SessionOptions::new(name)).unwrap();
        Arc::clone(disk.remote())
    }
}

fn storage(scratch: &Scratch, address: &str, options: &[&str]) -> Server {
    let file = scratch.path().join("disk.img");
    let head = ["serve", file.to_str().unwrap(), "--size", "8M", "--name", STORAGE];
    Server::start_command(lunar(&[&head[..], &["--listen", address], options].concat()))
}

fn block_on<T>(future: impl Future<Output = T>) -> T {
    let mut runtime = tokio::runtime::Builder::new_current_thread();
    runtime.enable_all().build().unwrap().block_on(async {
        tokio::time::timeout(2 * TEST_TIMEOUT, future).await.expect("nothing hangs")
    })
}

async fn write(disk: &RemoteDisk, lba: u64, data: &[u8]) {
    let range = BlockRange::new(lba, data.len() as u64 / 512);
    disk.write(range, Bytes::copy_from_slice(data), false).await.unwrap();
}

async fn read(disk: &RemoteDisk, lba: u64, bytes: usize) -> Vec<u8> {
    let buffer = disk.unit().initiator().pool().take(bytes);
    let range = BlockRange::new(lba, bytes as u64 / 512);
    disk.read(range, buffer).await.unwrap().to_vec()
}

/// Sends SYNCHRONIZE CACHE (10). Returns true for GOOD, false for MEDIUM ERROR, WRITE ERROR.
async fn synchronize(disk: &RemoteDisk) -> bool {
    let (unit, cdb) = (disk.unit(), [0x35, 0, 0, 0, 0, 0, 0, 0, 0, 0]);
    let reply = unit.initiator().execute(unit.lun(), cdb, Bytes::new(), 0).await.unwrap();
    let (status, sense) = (reply.result.status, reply.result.sense);
    if status != 0 {
        assert_eq!((sense[2], sense[12], sense[13]), (3, 0x0c, 0), "{sense:02x?}");
    }
    status == 0
}

/// Goal: a served LUN of another server keeps the contract of a disk: splits, zeroes, unmapping,
/// limits, concurrency.
#[test]
fn a_served_lun_keeps_the_contract() {
    let connector = Connector::start().unwrap();
    let servers: Mutex<Vec<Server>> = Mutex::default();
    let make = |shape: Geometry| {
        let storage = Server::start(&[
            &format!("mem:{}", shape.size_bytes()),
            "--block-size",
            &shape.block_bytes.to_string(),
            "--physical-block-size",
            &shape.physical_block_bytes.to_string(),
        ]);
        let front = Server::start(&[&storage.lun(0)]);
        let options = SessionOptions::new("iqn.2026-11.org.lunarsan.test:contract");
        let disk = connector.open(&front.lun(0).parse().unwrap(), &options).unwrap();
        servers.lock().unwrap().extend([front, storage]);
        Arc::<RemoteDisk>::clone(disk.remote()) as Arc<dyn BlockDevice>
    };
    Contract::new(&make).run();
    for server in servers.into_inner().unwrap() {
        assert_exit(&server.stop().0, 0);
    }
}

/// Goal: what is written through one server is read through the other, and the identity of the
/// served LUN is its own and stays the same when the server restarts.
#[test]
fn a_served_lun_is_the_same_disk() {
    let mut chain = Chain::new("served", &[], &[]);
    let connector = Connector::start().unwrap();
    let data = pattern(1, 64 << 10);
    block_on(write(&chain.open(&connector, 1), 16, &data));
    let url = chain.storage.as_ref().unwrap().lun(0);
    let direct = run(&["read", &url, "--offset", "8K", "--length", "64K"]);
    assert_eq!(direct.stdout, data);

    let identity =
        |url: &str| json(&run(&["info", url, "--json"]))["unit"]["serial_number"].clone();
    let (own, remote) = (identity(&chain.front.lun(0)), identity(&url));
    assert!(own.is_string() && own != remote, "{own} {remote}");
    let again = Server::start(&[&url]);
    let before = std::mem::replace(&mut chain.front, again);
    assert_exit(&before.stop().0, 0);
    assert_eq!(identity(&chain.front.lun(0)), own);
}

/// Goal: one LUN of another target is one disk: it is not served twice without common locks.
#[test]
fn a_lun_is_served_once() {
    let chain = Chain::new("served-twice", &[], &[]);
    let url = chain.storage.as_ref().unwrap().lun(0);
    let twice = run(&["serve", &url, &url, "--listen", "127.0.0.1:0"]);
    assert_exit(&twice, 1);
    assert!(printed(&twice).contains("only once"), "{}", printed(&twice));
}

/// Goal: the restart of the server with the disk is a delay for hosts of the other server.
#[test]
fn a_restart_of_the_storage_only_delays_io() {
    let mut chain = Chain::new("served-restart", &[], &[]);
    let connector = Connector::start().unwrap();
    let disk = chain.open(&connector, 1);
    let data = pattern(2, 1 << 20);
    block_on(write(&disk, 0, &data));
    let reader = Arc::clone(&disk);
    chain.restart_storage(&[]);
    assert_eq!(block_on(read(&reader, 0, data.len())), data);
    block_on(write(&disk, 2048, &data));
    assert_eq!(block_on(read(&disk, 2048, data.len())), data);
}

/// Goal: when the storage has lost a write cache, the next flush of every host fails, once,
/// although the sync that finds the loss fails for one of them only.
/// Method: two hosts of a write-back unit over write-back storage, which is killed after their
/// writes.
#[test]
fn every_host_gets_a_loss_reported() {
    let cached = ["--cache", "write-back"];
    let mut chain = Chain::new("served-loss", &cached, &cached);
    let connector = Connector::start().unwrap();
    let hosts = [1, 2].map(|number| chain.open(&connector, number));
    block_on(async {
        for (host, lba) in hosts.iter().zip([0, 64]) {
            write(host, lba, &pattern(lba, 4096)).await;
        }
    });
    chain.restart_storage(&cached);
    block_on(async {
        for (number, host) in hosts.iter().enumerate() {
            assert!(!synchronize(host).await, "the write of host {number} may be lost");
            assert!(synchronize(host).await, "host {number}: reported once");
        }
        for (host, lba) in hosts.iter().zip([0, 64]) {
            write(host, lba, &pattern(lba, 4096)).await;
            assert!(synchronize(host).await, "later writes are kept");
        }
    });
}

/// Goal: the server logs in to storage that requires CHAP, with credentials from its arguments or
/// its configuration; without them, or with a wrong secret, it says so and does not start.
#[test]
fn storage_that_requires_chap() {
    let scratch = Scratch::new("served-chap");
    let (secret, wrong) = (scratch.file("secret", b"a secret of 20 bytes"), "0123456789abcdef");
    let wrong = scratch.file("wrong", wrong.as_bytes());
    let chap = ["--chap-user", "front", "--chap-secret-file", &secret];
    let storage = storage(&scratch, ELSEWHERE, &chap);
    let url = storage.lun(0);

    fn by(file: &str) -> [&str; 4] {
        ["--device-chap-user", "front", "--device-chap-secret-file", file]
    }
    let front = Server::start(&[&[url.as_str()], &by(&secret)[..]].concat());
    let data = pattern(3, 4096);
    assert_exit(&run_with_input(&["write", &front.lun(0)], &data), 0);
    assert_eq!(run(&["read", &front.lun(0), "--length", "4K"]).stdout, data);
    assert_exit(&front.stop().0, 0);

    let with_user = url.replace("iscsi://", "iscsi://front@");
    let serve =
        |arguments: &[&str]| run(&[&["serve", "--listen", "127.0.0.1:0"], arguments].concat());
    let refused = serve(&[&[url.as_str()], &by(&wrong)[..]].concat());
    assert!(!refused.status.success(), "{}", printed(&refused));
    for (arguments, words) in [
        (vec![with_user.as_str()], "--device-chap-secret-file"),
        (vec![&url, "--device-chap-secret-file", &secret], "--device-chap-user"),
        (vec![&with_user, by("x")[0], "back", by("x")[2], &secret], "different users"),
    ] {
        let refused = serve(&arguments);
        assert_exit(&refused, 2);
        assert!(printed(&refused).contains(words), "{}", printed(&refused));
    }

    let config = |keys: &str| {
        let text = format!(
            "[listen]\nportals = [\"127.0.0.1:0\"]\n[[target]]\n\
             name = \"iqn.2026-11.org.lunarsan.test:front\"\n[[target.lun]]\nid = 0\n{keys}\n"
        );
        scratch.file("lunar.toml", text.as_bytes())
    };
    let chap = |file: &str| {
        format!(
            "device = \"{url}\"\ndevice_chap = {{ user = \"front\", secret_file = \"{file}\" }}"
        )
    };
    let front = Server::start_command(lunar(&["target", "--config", &config(&chap(&secret))]));
    assert_eq!(run(&["read", &front.lun(0), "--length", "4K"]).stdout, data);
    assert_exit(&front.stop().0, 0);
    for (keys, words) in [
        (format!("device = \"{with_user}\""), "there is no secret"),
        (chap(&secret).replace("iscsi://", "iscsi://back@"), "the user differs"),
        (chap(&secret).replace(&url, "mem:1M"), "only for a remote LUN"),
        (format!("{}\nsize = \"1G\"", chap(&secret)), "`size` is not allowed"),
    ] {
        let checked = run(&["check", &config(&keys)]);
        assert!(
            !checked.status.success() && printed(&checked).contains(words),
            "{}",
            printed(&checked)
        );
    }
}

/// The state of the link in the status of a server, which also counts as its health.
fn link(api: &str) -> (String, String) {
    let status = json(&run(&["ctl", "--api", api, "status", "--json"]));
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    (text(&status["units"][0]["link"]), text(&status["health"]))
}

fn until_link(api: &str, state: &str, health: &str) {
    let begin = Instant::now();
    while link(api) != (state.to_owned(), health.to_owned()) {
        assert!(begin.elapsed() < TEST_TIMEOUT, "{:?}, not {state}", link(api));
        std::thread::sleep(Duration::from_millis(50));
    }
}

/// Goal: status and metrics show the state of the connection to the storage, also without commands
/// of hosts: lost, back again, refused.
#[test]
fn the_state_of_the_connection_is_shown() {
    let scratch = Scratch::new("served-link");
    let api = format!("unix:{}", scratch.path().join("api.sock").display());
    let options = ["--api", api.as_str(), "--metrics", "127.0.0.1:0"];
    let mut chain = Chain::new("served-link-disk", &[], &options);
    until_link(&api, "connected", "good");
    let metrics = chain.front.report["metrics"].as_str().unwrap().to_owned();
    let shown = |state: &str| {
        let sample = format!("lun=\"0\",state=\"{state}\"}} 1");
        get(&metrics)
            .lines()
            .any(|line| line.starts_with("lunar_lun_link{") && line.ends_with(&sample))
    };
    assert!(shown("connected") && !shown("waiting"));

    drop(chain.storage.take().unwrap().stop_by("KILL"));
    until_link(&api, "waiting", "degraded");
    assert!(shown("waiting") && !shown("connected"));
    chain.storage = Some(storage(&chain.scratch, &chain.address, &[]));
    until_link(&api, "connected", "good");

    drop(chain.storage.take().unwrap().stop_by("KILL"));
    let secret = scratch.file("secret", b"a secret of 20 bytes");
    let chap = ["--chap-user", "other", "--chap-secret-file", &secret];
    chain.storage = Some(storage(&chain.scratch, &chain.address, &chap));
    until_link(&api, "failed", "degraded");
    assert!(shown("failed"));
}

/// Goal: a disk that grows at the storage grows for the hosts of the other server, which get a unit
/// attention.
#[test]
fn growth_of_the_storage_is_passed_on() {
    let scratch = Scratch::new("served-growth");
    let api = format!("unix:{}", scratch.path().join("api.sock").display());
    let chain = Chain::new("served-growth-disk", &["--api", &api], &[]);
    let connector = Connector::start().unwrap();
    let disk = chain.open(&connector, 1);
    disk.stay_connected();
    assert_exit(&run(&["ctl", "--api", &api, "resize", "0", "16M"]), 0);
    let begin = Instant::now();
    while disk.geometry().size_bytes() != 16 << 20 {
        assert!(begin.elapsed() < TEST_TIMEOUT, "{:?}", disk.geometry());
        std::thread::sleep(Duration::from_millis(50));
    }
    let data = pattern(9, 4096);
    block_on(write(&disk, (12 << 20) / 512, &data));
    assert_eq!(block_on(read(&disk, (12 << 20) / 512, 4096)), data);
}

/// Adds 1 to a counter in a block `times` times, by COMPARE AND WRITE.
async fn count(disk: &RemoteDisk, times: u64) {
    let (unit, mut done) = (disk.unit(), 0);
    while done < times {
        let old = read(disk, 0, 512).await;
        let counted = u64::from_be_bytes(old[..8].try_into().unwrap()) + 1;
        let data = [&old[..], &counted.to_be_bytes(), &old[8..]].concat();
        let mut cdb = [0; 16];
        (cdb[0], cdb[13]) = (0x89, 1);
        let reply = unit.initiator().execute(unit.lun(), cdb, data.into(), 0).await.unwrap();
        match reply.result.status {
            0 => done += 1,
            // MISCOMPARE, or the unit attention of the first command.
            _ => assert!([0x0e, 6].contains(&(reply.result.sense[2] & 0x0f))),
        }
    }
}

/// Goal: COMPARE AND WRITE reaches the storage, so that it also excludes hosts that use the storage
/// directly.
/// Method: two hosts, one of them through the front, count in the same block.
#[test]
fn compare_and_write_reaches_the_storage() {
    const TIMES: u64 = 200;
    let chain = Chain::new("served-compare", &[], &[]);
    let connector = Connector::start().unwrap();
    let served = chain.open(&connector, 1);
    let url = chain.storage.as_ref().unwrap().lun(0).parse().unwrap();
    let options = SessionOptions::new("iqn.2026-11.org.lunarsan.test:direct");
    let direct = connector.open(&url, &options).unwrap();
    let direct = Arc::clone(direct.remote());
    block_on(async { tokio::join!(count(&served, TIMES), count(&direct, TIMES)) });
    let counted = block_on(read(&direct, 0, 512));
    assert_eq!(counted[..8], (2 * TIMES).to_be_bytes());
}
