//! Two servers of LUNs in memory, each behind a relay with a delay; disks in this process.

use super::Device;
use crate::bench::INITIATOR;
use crate::peers::lunar::Lunar;
use anyhow::{Context, Result};
use lunar_block::{BlockRange, MemoryDevice};
use lunar_initiator::SessionOptions;
use lunar_load::relay::Model;
use lunar_load::remote::RemoteSubjects;
use lunar_pool::{OpenOptions, Pool, PoolSpec};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

const TARGET: &str = "iqn.2026-11.org.lunarsan.bench:pool";

/// Delay of the relays in each direction.
const DELAY: Duration = Duration::from_millis(1);

/// Delay to a storage that is four times slower.
const SLOW_DELAY: Duration = Duration::from_millis(4);

/// Bytes in flight on a connection: with the delay, they limit the throughput of a LUN.
const WINDOW_BYTES: u64 = 256 << 10;

/// Size of a member in this process.
pub const MEMORY_BYTES: u64 = 64 << 20;

/// Number of LUNs of each server.
const LUNS: usize = 8;

/// Length of a write that fills a disk.
const FILL_BYTES: u64 = 1 << 20;

/// The distance of a remote LUN.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Distance {
    /// A delay of 1 ms in each direction.
    Near,
    /// A delay of 4 ms in each direction.
    Slow,
}

/// Two servers with LUNs that nobody uses yet.
pub struct Storages {
    servers: Vec<(Lunar, u32)>,
    sessions: RemoteSubjects,
}

impl Storages {
    /// Starts the servers.
    ///
    /// # Errors
    /// A server does not listen in time.
    pub fn start(program: &Path, disk_bytes: u64) -> Result<Self> {
        let start = |_| {
            let device = format!("mem:{disk_bytes}");
            let mut arguments = vec![device.as_str(); LUNS];
            arguments.extend(["--name", TARGET]);
            anyhow::Ok((Lunar::serve_measured(None, program, &arguments)?, 0))
        };
        let servers = (0..2).map(start).collect::<Result<_>>()?;
        Ok(Self { servers, sessions: RemoteSubjects::default() })
    }

    /// Opens an unused LUN of a server, in a session of its own.
    ///
    /// # Errors
    /// The login fails.
    pub async fn lun(&mut self, server: usize, distance: Distance) -> Result<Device> {
        let (server, next) = self.servers.get_mut(server).context("a server")?;
        let url = server.url(TARGET, *next).parse()?;
        *next += 1;
        let delay = if distance == Distance::Near { DELAY } else { SLOW_DELAY };
        let window_bytes = Some(WINDOW_BYTES);
        let model = Model { delay, window_bytes, ..Model::default() };
        let options = SessionOptions::new(INITIATOR);
        Ok(self.sessions.open(&url, &options, Some(model)).await?.disk)
    }

    /// Opens one unused LUN of each server.
    ///
    /// # Errors
    /// A login fails.
    pub async fn pair(&mut self, second: Distance) -> Result<Vec<Device>> {
        Ok(vec![self.lun(0, Distance::Near).await?, self.lun(1, second).await?])
    }
}

/// Creates a disk in memory of this size.
///
/// # Errors
/// None with this size.
pub fn memory(bytes: u64) -> Result<Device> {
    Ok(Arc::new(MemoryDevice::new(bytes, 512, 4096)?))
}

/// Creates a pool of these members, and opens it.
///
/// # Errors
/// A member does not fit, or fails.
pub async fn pool(spec: PoolSpec, members: Vec<Device>) -> Result<Arc<Pool>> {
    Pool::create(spec, members.clone()).await?;
    let options = OpenOptions { is_unowned: true, ..OpenOptions::default() };
    Ok(Pool::open("pool", members, options).await?)
}

/// Writes all blocks, so that reads find data everywhere.
///
/// # Errors
/// A write fails.
pub async fn filled(device: Device) -> Result<Device> {
    let geometry = device.geometry();
    let piece = FILL_BYTES / u64::from(geometry.block_bytes);
    let data = bytes::Bytes::from(vec![0x5a; FILL_BYTES as usize]);
    for lba in (0..geometry.block_count).step_by(piece as usize) {
        let count = piece.min(geometry.block_count - lba);
        let bytes = count as usize * geometry.block_bytes as usize;
        device.write(BlockRange::new(lba, count), data.slice(..bytes), false).await?;
    }
    Ok(device)
}
