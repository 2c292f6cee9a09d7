//! Disks that several hosts reach, with exclusive ownership.

use super::Device;
use bytes::Bytes;
use lunar_block::{
    BlockDevice, BlockRange, BoxFuture, Buffer, Error, ErrorKind, ExclusiveOwnership, Geometry,
    OwnershipClaim, OwnershipGrant,
};
use std::num::NonZeroU64;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::SeqCst};
use std::sync::{Arc, Mutex};

/// A disk that several hosts reach.
#[derive(Debug)]
pub struct SharedDisk {
    disk: Device,
    owner: Mutex<Option<(NonZeroU64, String)>>,
    /// State of the random delays; 0 for none.
    random: AtomicU64,
}

impl SharedDisk {
    /// Creates a shared disk. With a seed, each operation waits for a random number of turns of
    /// other tasks, before and after it takes effect.
    pub fn new(disk: Device, seed: u64) -> Arc<Self> {
        Arc::new(Self { disk, owner: Mutex::default(), random: AtomicU64::new(seed) })
    }

    /// Returns the name of the host that owns the disk.
    pub fn owner(&self) -> Option<String> {
        self.owner.lock().unwrap().as_ref().map(|(_, name)| name.clone())
    }

    async fn delay(&self) {
        let mut state = self.random.load(SeqCst);
        if state != 0 {
            let turns = super::next(&mut state) % 4;
            self.random.store(state.max(1), SeqCst);
            for _ in 0..turns {
                tokio::task::yield_now().await;
            }
        }
    }
}

/// A shared disk as one host sees it.
#[derive(Debug)]
pub struct HostDisk {
    shared: Arc<SharedDisk>,
    host: String,
    claim: Mutex<Option<OwnershipClaim>>,
    /// False for a disk that refuses every acquisition with an error.
    is_acquirable: AtomicBool,
    /// Content that a former owner writes before the next acquisition takes effect.
    last_writes: Mutex<Option<Bytes>>,
}

impl HostDisk {
    pub fn new(shared: &Arc<SharedDisk>, host: &str) -> Arc<Self> {
        let (shared, host) = (Arc::clone(shared), host.to_owned());
        Arc::new(Self {
            shared,
            host,
            claim: Mutex::default(),
            is_acquirable: true.into(),
            last_writes: Mutex::default(),
        })
    }

    /// Makes every acquisition fail.
    pub fn refuse_acquisition(&self) {
        self.is_acquirable.store(false, SeqCst);
    }

    /// Has a former owner write all blocks before the next acquisition takes effect.
    pub fn write_before_acquisition(&self, all: Bytes) {
        *self.last_writes.lock().unwrap() = Some(all);
    }

    /// Fails if another host owns the disk; discovers the loss of the ownership.
    fn access(&self, is_write: bool) -> Result<(), Error> {
        let error = |kind| Err(Error::new(kind, self.name(), "another host owns the disk"));
        let owner = self.shared.owner.lock().unwrap().as_ref().map(|(key, _)| *key);
        match &*self.claim.lock().unwrap() {
            Some(claim) if owner != Some(claim.key) => {
                claim.fence.set_lost();
                error(ErrorKind::Fenced)
            }
            None if is_write && owner.is_some() => error(ErrorKind::Medium),
            _ => Ok(()),
        }
    }
}

impl ExclusiveOwnership for HostDisk {
    fn acquire(&self, claim: OwnershipClaim) -> BoxFuture<'_, Result<OwnershipGrant, Error>> {
        Box::pin(async move {
            self.shared.delay().await;
            if !self.is_acquirable.load(SeqCst) {
                let what = "its reservations change endlessly";
                return Err(Error::new(ErrorKind::Medium, self.name(), what));
            }
            let last_writes = self.last_writes.lock().unwrap().take();
            if let Some(all) = last_writes {
                let range = BlockRange::new(0, self.geometry().block_count);
                self.shared.disk.write(range, all, true).await?;
            }
            let mut owner = self.shared.owner.lock().unwrap();
            if let Some((key, name)) = &*owner
                && *key != claim.key
                && !claim.take_over
            {
                return Ok(OwnershipGrant::OwnedBy(name.clone()));
            }
            *owner = Some((claim.key, self.host.clone()));
            *self.claim.lock().unwrap() = Some(claim);
            Ok(OwnershipGrant::Acquired)
        })
    }

    fn check(&self) -> BoxFuture<'_, Result<(), Error>> {
        Box::pin(async { self.access(false) })
    }

    fn release(&self) -> BoxFuture<'_, Result<(), Error>> {
        Box::pin(async {
            let mut owner = self.shared.owner.lock().unwrap();
            let claim = self.claim.lock().unwrap().clone();
            if owner.as_ref().map(|(key, _)| *key) == claim.map(|claim| claim.key) {
                *owner = None;
                *self.claim.lock().unwrap() = None;
            }
            Ok(())
        })
    }
}

impl BlockDevice for HostDisk {
    fn name(&self) -> &str {
        self.shared.disk.name()
    }

    fn geometry(&self) -> Geometry {
        self.shared.disk.geometry()
    }

    fn read(&self, range: BlockRange, into: Buffer) -> BoxFuture<'_, Result<Buffer, Error>> {
        Box::pin(async move {
            self.shared.delay().await;
            self.access(false)?;
            let read = self.shared.disk.read(range, into).await;
            self.shared.delay().await;
            read
        })
    }

    fn write(
        &self,
        range: BlockRange,
        from: Bytes,
        durable: bool,
    ) -> BoxFuture<'_, Result<(), Error>> {
        Box::pin(async move {
            self.shared.delay().await;
            self.access(true)?;
            let written = self.shared.disk.write(range, from, durable).await;
            self.shared.delay().await;
            written
        })
    }

    fn flush(&self) -> BoxFuture<'_, Result<(), Error>> {
        Box::pin(async {
            self.access(false)?;
            self.shared.disk.flush().await
        })
    }

    fn ownership(&self) -> Option<&dyn ExclusiveOwnership> {
        Some(self)
    }

    fn io_tier(&self) -> String {
        "shared".to_owned()
    }
}
