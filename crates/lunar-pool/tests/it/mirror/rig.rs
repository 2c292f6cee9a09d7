//! A mirror of memory disks with volatile caches and injected faults.

use crate::common::{DATA_START, Device, VolatileDevice, filled, memories, read};
use lunar_block::{
    BlockDevice, BlockRange, Effect, Error, ErrorKind, Fault, FaultDevice, FaultOperation,
};
use lunar_pool::{
    MemberState, MirrorOptions, OpenOptions, Pool, PoolError, PoolHealth, PoolSpec, PoolStatus,
};
use std::sync::Arc;
use std::time::Duration;

/// Number of blocks of a region of these mirrors.
pub const REGION: u64 = 128;

/// Number of blocks of the mirrors.
pub const BLOCKS: u64 = 10 * REGION;

/// Time after which a member is left out.
pub const WAIT: Duration = Duration::from_secs(2);

/// A mirror, and the layers of its members from the disk up.
pub struct Rig {
    pub disks: Vec<Device>,
    pub caches: Vec<Arc<VolatileDevice>>,
    pub faults: Vec<Arc<FaultDevice>>,
    pub pool: Arc<Pool>,
}

impl Rig {
    /// Creates a mirror whose members are equal from the beginning.
    pub async fn new(count: usize) -> Self {
        Self::with_options(count, OpenOptions::default()).await
    }

    pub async fn with_options(count: usize, options: OpenOptions) -> Self {
        let disks = memories(count, BLOCKS * 512);
        Pool::create(PoolSpec::Mirror { erase: true }, disks.clone()).await.unwrap();
        Self::open(disks, 1, options).await.unwrap()
    }

    pub async fn open(
        disks: Vec<Device>,
        seed: u64,
        options: OpenOptions,
    ) -> Result<Self, PoolError> {
        let caches: Vec<_> =
            disks.iter().map(|disk| VolatileDevice::new(Arc::clone(disk))).collect();
        let fault = |(seed, cache): (u64, &Arc<VolatileDevice>)| {
            FaultDevice::new(Arc::clone(cache) as Device, seed)
        };
        let faults: Vec<_> = (seed..).zip(&caches).map(fault).collect();
        let members = faults.iter().map(|fault| Arc::clone(fault) as Device).collect();
        let pool = Pool::open("pool", members, options).await?;
        Ok(Self { disks, caches, faults, pool })
    }

    pub async fn try_write(&self, lba: u64, value: u8) -> Result<(), Error> {
        self.pool.write(BlockRange::new(lba, 1), filled(value, 1), false).await
    }

    pub async fn write(&self, lba: u64, value: u8) {
        self.try_write(lba, value).await.unwrap();
    }

    /// Returns the first byte of a block of the pool.
    pub async fn byte(&self, lba: u64) -> u8 {
        read(&*self.pool, lba, 1).await[0]
    }

    /// Returns the first byte of a block of the pool on the disk of a member.
    pub async fn byte_on(&self, member: usize, lba: u64) -> u8 {
        read(&*self.disks[member], DATA_START + lba, 1).await[0]
    }

    pub fn inject(&self, member: usize, effect: Effect, operation: FaultOperation) {
        self.faults[member].inject(Fault::new(effect).on(operation));
    }

    /// Makes the next write of a member fail that touches a block of the pool.
    pub fn fail_write(&self, member: usize, lba: u64) {
        let fault = Fault::new(Effect::Fail(ErrorKind::Disconnected)).on(FaultOperation::Write);
        self.faults[member].inject(fault.at(BlockRange::new(DATA_START + lba, 1)).times(1));
    }

    pub fn state(&self, member: usize) -> MemberState {
        self.pool.status().members[member].state
    }

    /// Waits, in virtual time, until the status is as wanted.
    pub async fn until(&self, what: &str, is_wanted: impl Fn(&PoolStatus) -> bool) {
        for _ in 0..100_000 {
            if is_wanted(&self.pool.status()) {
                return;
            }
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
        panic!("{what}: {:#?}", self.pool.status());
    }

    pub async fn until_healthy(&self) {
        self.until("healthy", |status| status.health == PoolHealth::Healthy).await;
    }

    /// Checks that the data on the disks of all members is equal.
    pub async fn assert_same(&self) {
        let first = read(&*self.disks[0], DATA_START, BLOCKS).await;
        for disk in &self.disks[1..] {
            let other = read(&**disk, DATA_START, BLOCKS).await;
            let differs = first.chunks(512).zip(other.chunks(512)).position(|(a, b)| a != b);
            assert_eq!(differs, None, "the first block that differs");
        }
    }

    /// Leaves the pool as a crash would, and opens it again. The caches of the members stay.
    pub async fn crash_and_reopen(self, options: OpenOptions) -> Result<Self, PoolError> {
        let disks = self.disks.clone();
        drop(self);
        Self::open(disks, 1, options).await
    }
}

pub fn degraded() -> OpenOptions {
    OpenOptions { is_degraded: true, ..OpenOptions::default() }
}

/// Lets the marks go of regions that were flushed.
pub async fn marks_go() {
    tokio::time::sleep(2 * MirrorOptions::default().mark_time).await;
}

/// Options with this time for which marks stay.
pub fn with_mark_time(mark_time: Duration) -> OpenOptions {
    let mirror = MirrorOptions { mark_time, ..MirrorOptions::default() };
    OpenOptions { mirror, ..OpenOptions::default() }
}

/// Options with recoveries that begin after an hour, so that a test sees what is before.
pub fn without_recovery() -> OpenOptions {
    let recovery_pause = Duration::from_secs(3600);
    let mirror = MirrorOptions { recovery_pause, ..MirrorOptions::default() };
    OpenOptions { mirror, ..OpenOptions::default() }
}
