//! The virtualization switch: virtual LUNs on the LUNs of storage targets.

mod configuration;
mod fast_path;
mod hosts;
mod loss;
mod migration;

use crate::common::{ELSEWHERE, Scratch, Server, TEST_TIMEOUT, lunar};
use bytes::Bytes;
use lunar_block::{BlockDevice, BlockRange};
use lunar_initiator::blocking::Connector;
use lunar_initiator::{RemoteDisk, SessionOptions};
use std::sync::Arc;

const VIRTUAL: &str = "iqn.2026-11.org.lunarsan.test:virtual";
const MIB: u64 = 1 << 20;

/// Two storages of 32 MiB each, called `a` and `b`, and a switch.
struct Rig {
    scratch: Scratch,
    storages: [Option<Server>; 2],
    /// The addresses of the storages, which stay the same.
    addresses: [String; 2],
    switch: Server,
}

/// The options of the storages and of the switch.
#[derive(Clone, Copy, Debug, Default)]
struct RigOptions<'a> {
    /// Further arguments of the storages.
    storage: &'a [&'a str],
    /// Further keys of the storages in the configuration.
    storage_keys: &'a str,
    /// Query of the URLs of the storages: options of the sessions with them.
    storage_query: &'a str,
    /// The virtual LUNs.
    luns: &'a str,
    /// Further arguments of the switch.
    switch: &'a [&'a str],
}

fn storage_name(at: usize) -> String {
    format!("iqn.2026-11.org.lunarsan.test:storage-{}", ["a", "b"][at])
}

fn storage(scratch: &Scratch, at: usize, address: &str, options: &[&str]) -> Server {
    let file = scratch.path().join(format!("{}.img", ["a", "b"][at]));
    let (file, name) = (file.to_str().unwrap(), storage_name(at));
    let head = ["serve", file, "--size", "32M", "--name", &name, "--listen", address];
    Server::start_command(lunar(&[&head[..], options].concat()))
}

impl Rig {
    fn new(name: &str, options: RigOptions<'_>) -> Self {
        let scratch = Scratch::new(name);
        let storages = [0, 1].map(|at| storage(&scratch, at, ELSEWHERE, options.storage));
        let addresses = storages
            .each_ref()
            .map(|server| server.portal().strip_prefix("iscsi://").unwrap().to_owned());
        let config = configuration_text(&scratch, &addresses, options);
        let config = scratch.file("switch.toml", config.as_bytes());
        let head = ["switch", "--config", &config];
        let switch = Server::start_command(lunar(&[&head[..], options.switch].concat()));
        Self { scratch, storages: storages.map(Some), addresses, switch }
    }

    fn configuration(&self, options: RigOptions<'_>) -> String {
        let text = configuration_text(&self.scratch, &self.addresses, options);
        self.scratch.file("switch.toml", text.as_bytes())
    }

    fn api(&self) -> String {
        api(&self.scratch)
    }

    /// The URL of the LUN of a storage.
    fn storage_url(&self, at: usize) -> String {
        self.storages[at].as_ref().unwrap().lun(0)
    }

    fn kill_storage(&mut self, at: usize) {
        drop(self.storages[at].take().unwrap().stop_by("KILL"));
    }

    fn start_storage(&mut self, at: usize, options: &[&str]) {
        self.storages[at] = Some(storage(&self.scratch, at, &self.addresses[at], options));
    }

    /// Stops the switch, and starts it again with the same configuration.
    fn restart_switch(&mut self) {
        // The API's socket is free only after the end of the first switch.
        let placeholder = Server::start(&["mem:1M", "--api", "none"]);
        let first = std::mem::replace(&mut self.switch, placeholder);
        drop(first.stop());
        let config = self.scratch.path().join("switch.toml");
        let again = lunar(&["switch", "--config", config.to_str().unwrap()]);
        self.switch = Server::start_command(again);
    }

    /// Starts the switch again after it was killed.
    fn restart_killed_switch(&mut self) {
        let config = self.scratch.path().join("switch.toml");
        let again = lunar(&["switch", "--config", config.to_str().unwrap()]);
        let killed = std::mem::replace(&mut self.switch, Server::start_command(again));
        drop(killed.end());
    }

    /// Opens a virtual LUN as host `number`.
    fn open(&self, connector: &Connector, number: u32, lun: u16) -> Arc<RemoteDisk> {
        let name = format!("iqn.2026-11.org.lunarsan.test:host{number}");
        let url = self.switch.lun(lun).parse().unwrap();
        let disk = connector.open(&url, &SessionOptions::new(name)).unwrap();
        Arc::clone(disk.remote())
    }
}

fn api(scratch: &Scratch) -> String {
    format!("unix:{}", scratch.path().join("api.sock").display())
}

fn configuration_text(
    scratch: &Scratch,
    addresses: &[String; 2],
    options: RigOptions<'_>,
) -> String {
    let mut text = format!(
        "state = \"state\"\n[listen]\nportals = [\"127.0.0.1:0\"]\n[api]\nlisten = \"{}\"\n\
         [metrics]\nlisten = \"127.0.0.1:0\"\n",
        api(scratch)
    );
    for (at, address) in addresses.iter().enumerate() {
        let (name, keys) = (storage_name(at), options.storage_keys);
        let url = format!("iscsi://{address}/{name}/0{}", options.storage_query);
        let short = ["a", "b"][at];
        text.push_str(&format!("[[storage]]\nname = \"{short}\"\nurl = \"{url}\"\n{keys}\n"));
    }
    format!("{text}[[target]]\nname = \"{VIRTUAL}\"\n{}", options.luns)
}

/// A LUN with these lines.
fn lun(id: u16, keys: &str) -> String {
    format!("[[target.lun]]\nid = {id}\n{keys}\n")
}

/// An extent, in MiB.
fn extent(storage: &str, start: u64, length: u64) -> String {
    format!("{{ storage = \"{storage}\", start = \"{start}MiB\", length = \"{length}MiB\" }}")
}

fn extents(list: &[String]) -> String {
    format!("extents = [{}]", list.join(", "))
}

fn block_on<T>(future: impl Future<Output = T>) -> T {
    let mut runtime = tokio::runtime::Builder::new_current_thread();
    runtime.enable_all().build().unwrap().block_on(async {
        tokio::time::timeout(2 * TEST_TIMEOUT, future).await.expect("nothing hangs")
    })
}

async fn try_write(disk: &RemoteDisk, offset: u64, data: &[u8]) -> Result<(), lunar_block::Error> {
    let range = BlockRange::new(offset / 512, data.len() as u64 / 512);
    disk.write(range, Bytes::copy_from_slice(data), false).await
}

async fn try_read(
    disk: &RemoteDisk,
    offset: u64,
    bytes: usize,
) -> Result<Vec<u8>, lunar_block::Error> {
    let buffer = disk.unit().initiator().pool().take(bytes);
    let range = BlockRange::new(offset / 512, bytes as u64 / 512);
    Ok(disk.read(range, buffer).await?[..bytes].to_vec())
}

async fn write(disk: &RemoteDisk, offset: u64, data: &[u8]) {
    try_write(disk, offset, data).await.unwrap();
}

async fn read(disk: &RemoteDisk, offset: u64, bytes: usize) -> Vec<u8> {
    try_read(disk, offset, bytes).await.unwrap()
}

/// Sends a command with these data; returns status and sense.
async fn command(disk: &RemoteDisk, cdb: &[u8], data: &[u8]) -> (u8, Vec<u8>) {
    let (unit, data) = (disk.unit(), Bytes::copy_from_slice(data));
    let reply = unit.initiator().execute(unit.lun(), cdb.to_vec(), data, 0).await.unwrap();
    (reply.result.status, reply.result.sense.to_vec())
}
