//! Disks that several hosts reach, and that have no persistent reservations.

use super::Device;
use bytes::Bytes;
use lunar_block::{
    AtomicCompareAndWrite, BlockDevice, BlockRange, BoxFuture, Buffer, BufferPool, Error,
    ErrorKind, ExclusiveOwnership, Geometry, OwnershipClaim, OwnershipGrant, WriteLease,
};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::SeqCst};
use std::sync::{Arc, Mutex};
use std::time::Duration;
use tokio::sync::watch;
use tokio::time::sleep;

/// A disk that several hosts reach.
#[derive(Debug)]
pub struct LeasedDisk {
    pub disk: Device,
    /// Hosts whose writes took effect, each after the others; not COMPARE AND WRITE.
    writers: Mutex<Vec<String>>,
    /// Held by a COMPARE AND WRITE.
    comparing: tokio::sync::Mutex<()>,
    /// State of the random delays.
    random: AtomicU64,
    /// Maximum time for which a write is in flight.
    flight_time_max: Duration,
}

impl LeasedDisk {
    /// Creates a shared disk. Writes take effect after a random time below `flight_time_max`, other
    /// commands after a fraction of it.
    pub fn new(disk: Device, seed: u64, flight_time_max: Duration) -> Arc<Self> {
        let random = AtomicU64::new(seed);
        let (writers, comparing) = (Mutex::default(), tokio::sync::Mutex::default());
        Arc::new(Self { disk, writers, comparing, random, flight_time_max })
    }

    /// Returns the hosts that have written, in the order of their writes, without repetitions.
    pub fn writers(&self) -> Vec<String> {
        self.writers.lock().unwrap().clone()
    }

    async fn delay(&self, is_write: bool) {
        let mut state = self.random.load(SeqCst);
        let random = super::next(&mut state);
        self.random.store(state, SeqCst);
        let part = if is_write { 1 } else { 16 };
        let nanos = self.flight_time_max.as_nanos() as u64 / part;
        if nanos > 0 {
            sleep(Duration::from_nanos(random % nanos)).await;
        }
    }

    fn record(&self, host: &str) {
        let mut writers = self.writers.lock().unwrap();
        if writers.last().is_none_or(|last| last != host) {
            writers.push(host.to_owned());
        }
    }
}

/// A shared disk as one host sees it: like a remote disk, it holds commands back while the host is
/// cut off, and checks the lease when it sends a write.
#[derive(Debug)]
pub struct LeasedHostDisk {
    pub shared: Arc<LeasedDisk>,
    host: String,
    is_cut: Arc<watch::Sender<bool>>,
    lease: Mutex<Option<Arc<WriteLease>>>,
    /// True if the target knows COMPARE AND WRITE.
    pub compares: AtomicBool,
}

impl LeasedHostDisk {
    /// Commands of the host wait while `is_cut` is true.
    pub fn new(
        shared: &Arc<LeasedDisk>,
        host: &str,
        is_cut: &Arc<watch::Sender<bool>>,
    ) -> Arc<Self> {
        Arc::new(Self {
            shared: Arc::clone(shared),
            host: host.to_owned(),
            is_cut: Arc::clone(is_cut),
            lease: Mutex::default(),
            compares: AtomicBool::new(true),
        })
    }

    async fn send(&self, needs_lease: bool) -> Result<(), Error> {
        self.is_cut.subscribe().wait_for(|is_cut| !is_cut).await.unwrap();
        let is_over = self.lease.lock().unwrap().as_ref().is_some_and(|lease| lease.is_over());
        if needs_lease && is_over {
            return Err(Error::new(ErrorKind::Disconnected, self.name(), "its lease is over"));
        }
        self.shared.delay(needs_lease).await;
        Ok(())
    }
}

impl ExclusiveOwnership for LeasedHostDisk {
    fn acquire(&self, _: OwnershipClaim) -> BoxFuture<'_, Result<OwnershipGrant, Error>> {
        Box::pin(std::future::ready(Ok(OwnershipGrant::Unsupported)))
    }

    fn check(&self) -> BoxFuture<'_, Result<(), Error>> {
        Box::pin(std::future::ready(Ok(())))
    }

    fn set_lease(&self, lease: Option<Arc<WriteLease>>) {
        *self.lease.lock().unwrap() = lease;
    }

    fn release(&self) -> BoxFuture<'_, Result<(), Error>> {
        Box::pin(std::future::ready(Ok(())))
    }
}

impl AtomicCompareAndWrite for LeasedHostDisk {
    fn blocks_max(&self) -> u8 {
        1
    }

    fn compare_and_write(
        &self,
        range: BlockRange,
        old_and_new: Bytes,
        durable: bool,
    ) -> BoxFuture<'_, Result<Option<u64>, Error>> {
        Box::pin(async move {
            self.send(false).await?;
            let exclusive = self.shared.comparing.lock().await;
            let (old, new) = old_and_new.split_at(old_and_new.len() / 2);
            let buffer = BufferPool::default().take(old.len());
            let found = self.shared.disk.read(range, buffer).await?;
            let difference = (0..old.len()).find(|at| found[*at] != old[*at]);
            if difference.is_none() {
                let new = Bytes::copy_from_slice(new);
                self.shared.disk.write(range, new, durable).await?;
            }
            drop(exclusive);
            self.shared.delay(false).await;
            Ok(difference.map(|at| at as u64))
        })
    }
}

impl BlockDevice for LeasedHostDisk {
    fn name(&self) -> &str {
        self.shared.disk.name()
    }

    fn geometry(&self) -> Geometry {
        self.shared.disk.geometry()
    }

    fn read(&self, range: BlockRange, into: Buffer) -> BoxFuture<'_, Result<Buffer, Error>> {
        Box::pin(async move {
            self.send(false).await?;
            self.shared.disk.read(range, into).await
        })
    }

    fn write(
        &self,
        range: BlockRange,
        from: Bytes,
        durable: bool,
    ) -> BoxFuture<'_, Result<(), Error>> {
        Box::pin(async move {
            self.send(true).await?;
            self.shared.record(&self.host);
            self.shared.disk.write(range, from, durable).await
        })
    }

    fn flush(&self) -> BoxFuture<'_, Result<(), Error>> {
        Box::pin(async {
            self.send(false).await?;
            self.shared.disk.flush().await
        })
    }

    fn ownership(&self) -> Option<&dyn ExclusiveOwnership> {
        Some(self)
    }

    fn compare_and_write(&self) -> Option<&dyn AtomicCompareAndWrite> {
        if self.compares.load(SeqCst) { Some(self) } else { None }
    }

    fn io_tier(&self) -> String {
        "leased".to_owned()
    }
}
