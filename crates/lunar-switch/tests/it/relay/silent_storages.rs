//! Storages that answer everything but some commands.

use super::{BLOCK, BLOCKS, LINEAR, Rig, TestCommand};
use crate::memory;
use bytes::Bytes;
use lunar_block::{BlockDevice, BlockRange, BoxFuture, Buffer, Error, Geometry};
use lunar_initiator::SessionOptions;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};
use std::time::Duration;
use tokio::sync::Semaphore;

/// A device of which some READs do not end until they are released.
#[derive(Debug)]
struct SilentDevice {
    inner: Arc<dyn BlockDevice>,
    silent_reads: AtomicUsize,
    released: Semaphore,
}

impl BlockDevice for SilentDevice {
    fn name(&self) -> &str {
        "silent"
    }

    fn geometry(&self) -> Geometry {
        self.inner.geometry()
    }

    fn io_tier(&self) -> String {
        self.inner.io_tier()
    }

    fn read(&self, range: BlockRange, into: Buffer) -> BoxFuture<'_, Result<Buffer, Error>> {
        let is_silent =
            self.silent_reads.fetch_update(SeqCst, SeqCst, |reads| reads.checked_sub(1)).is_ok();
        Box::pin(async move {
            if is_silent {
                drop(self.released.acquire().await);
            }
            self.inner.read(range, into).await
        })
    }

    fn write(
        &self,
        range: BlockRange,
        from: Bytes,
        durable: bool,
    ) -> BoxFuture<'_, Result<(), Error>> {
        self.inner.write(range, from, durable)
    }

    fn flush(&self) -> BoxFuture<'_, Result<(), Error>> {
        self.inner.flush()
    }
}

/// Fault: a relayed command that its storage never answered had no limit of time, while a command
/// of the device has.
#[test]
fn a_relayed_command_that_is_not_answered_ends() {
    let device = || memory(BLOCKS * BLOCK as u64, 512, 512);
    let silent = Arc::new(SilentDevice {
        inner: device(),
        silent_reads: AtomicUsize::new(0),
        released: Semaphore::new(0),
    });
    let mut session = SessionOptions::new("iqn.2026-11.org.lunarsan.test:switch");
    session.command_seconds = 1;
    let devices = [Arc::clone(&silent) as Arc<dyn BlockDevice>, device()];
    let rig = Rig::on_devices(devices, session, LINEAR, true, false);
    let host = rig.host(false);
    rig.until_relayed(&host);
    let before = rig.relayed();
    silent.silent_reads.store(1, SeqCst);
    let read = TestCommand::transfer(0x88, 0, 0, 8, None, 8 * BLOCK as u32);
    let reading = host.execute(lunar_wire::Lun::new(0), read.cdb, read.data_out, read.data_in);
    let limited = async { tokio::time::timeout(Duration::from_secs(20), reading).await };
    let reply = rig.runtime.block_on(limited).expect("an end of the command").unwrap();
    assert_eq!(reply.result.status, 0);
    assert_eq!(rig.relayed().taken_over, before.taken_over + 1, "the device executes it again");
    silent.released.close();
    rig.end(vec![host]);
}
