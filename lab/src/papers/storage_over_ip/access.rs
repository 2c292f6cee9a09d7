//! One path to a file, with the client that uses it.

use super::files;
use super::qemu::Qemu;
use anyhow::Result;
use bytes::Bytes;
use lunar_block::{BlockDevice, BlockRange, BufferPool};
use lunar_initiator::RemoteDisk;
use lunar_load::{Latency, split_mix_64};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Location of the file.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) enum FileLocation {
    Local,
    Iscsi,
    Nfs,
}

/// The client that sends requests.
#[derive(Debug)]
pub(super) enum Client {
    /// This program, on a local file.
    Local(Arc<dyn BlockDevice>),
    /// This program, by its initiator.
    Remote(Arc<RemoteDisk>),
    Qemu(Qemu),
}

/// A path with its client.
#[derive(Debug)]
pub(super) struct DiskAccess {
    pub(super) location: FileLocation,
    pub(super) client: Client,
    /// The measured file on this machine.
    pub(super) file: PathBuf,
}

/// Reads or writes every record of a file once.
#[derive(Debug)]
pub(super) struct Task {
    pub(super) record_bytes: u64,
    pub(super) writes: bool,
    /// Value of the written bytes.
    pub(super) byte: u8,
    /// Offsets of the records, in the order of the requests.
    pub(super) offsets: Vec<u64>,
}

/// Results of a task.
#[derive(Clone, Debug, Default)]
pub(super) struct TaskResult {
    /// Total time of the requests, plus the flush at the end for writes.
    pub(super) time: Duration,
    /// Latency of each request.
    pub(super) latency: Latency,
}

impl FileLocation {
    pub(super) const fn name(self) -> &'static str {
        match self {
            Self::Local => "local",
            Self::Iscsi => "iSCSI",
            Self::Nfs => "NFS",
        }
    }
}

impl Task {
    /// Creates a task in an order determined by `seed`.
    pub(super) fn new(size_bytes: u64, record_bytes: u64, writes: bool, seed: u64) -> Self {
        let count = size_bytes / record_bytes;
        let mut offsets: Vec<u64> = (0..count).map(|number| number * record_bytes).collect();
        // Shuffle by Fisher and Yates.
        for last in (1..offsets.len()).rev() {
            let other = split_mix_64(seed, last as u64) % (last as u64 + 1);
            offsets.swap(last, other as usize);
        }
        // The byte is never zero, which a new file holds, and differs between consecutive passes.
        let byte = (seed % 61) as u8 + 1;
        Self { record_bytes, writes, byte, offsets }
    }

    /// Total number of bytes.
    pub(super) fn bytes(&self) -> u64 {
        self.record_bytes * self.offsets.len() as u64
    }
}

impl DiskAccess {
    /// Runs the task, and checks the file after writes.
    pub(super) async fn pass(&self, task: &Task) -> Result<TaskResult> {
        let pass = match &self.client {
            Client::Local(device) => run_task(device.as_ref(), task).await?,
            Client::Remote(disk) => run_task(disk.as_ref(), task).await?,
            Client::Qemu(qemu) => qemu.pass(task).await?,
        };
        if task.writes {
            let (path, bytes, byte) = (self.file.clone(), task.bytes(), task.byte);
            let checked = tokio::task::spawn_blocking(move || files::check(&path, bytes, byte));
            checked.await??;
        }
        Ok(pass)
    }

    /// Closes the client.
    pub(super) async fn close(self) -> Result<()> {
        if let Client::Remote(disk) = self.client {
            disk.log_out().await?;
        }
        Ok(())
    }
}

/// Runs a task with this program's client, one request at a time.
async fn run_task(device: &dyn BlockDevice, task: &Task) -> Result<TaskResult> {
    let block_bytes = u64::from(device.geometry().block_bytes);
    let blocks = task.record_bytes / block_bytes;
    let mut buffer = BufferPool::default().take_zeroed(task.record_bytes as usize);
    let data = Bytes::from(vec![task.byte; task.record_bytes as usize]);
    let mut pass = TaskResult::default();
    for offset in &task.offsets {
        let range = BlockRange::new(offset / block_bytes, blocks);
        let begun = Instant::now();
        if task.writes {
            device.write(range, data.clone(), false).await?;
        } else {
            buffer = device.read(range, buffer).await?;
        }
        pass.add(begun.elapsed());
    }
    if task.writes {
        let begun = Instant::now();
        device.flush().await?;
        pass.time += begun.elapsed();
    }
    Ok(pass)
}

impl TaskResult {
    /// Adds a request.
    pub(super) fn add(&mut self, took: Duration) {
        self.time += took;
        self.latency.record(took);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal: every record is accessed once, in an order that differs from that of the file and
    /// depends on the seed.
    #[test]
    fn every_record_comes_once() {
        let task = Task::new((64 << 20) + 5, 1 << 20, true, 3);
        let (again, other) =
            (Task::new(64 << 20, 1 << 20, true, 3), Task::new(64 << 20, 1 << 20, true, 4));
        assert_eq!(task.offsets, again.offsets);
        assert_ne!(task.offsets, other.offsets);
        assert_ne!(task.byte, other.byte);
        assert_eq!(task.bytes(), 64 << 20);
        let neighbours = task.offsets.windows(2).filter(|pair| pair[0] + (1 << 20) == pair[1]);
        assert!(neighbours.count() < 8, "{:?}", task.offsets);
        let mut sorted = task.offsets;
        sorted.sort_unstable();
        assert!(sorted.iter().enumerate().all(|(at, offset)| *offset == (at as u64) << 20));
    }
}
