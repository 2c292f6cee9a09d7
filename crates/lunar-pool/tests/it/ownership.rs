//! One host at a time has a pool of shared devices open.

use crate::common::{
    DATA_START, Device, HostDisk, SharedDisk, filled, first_byte, memories, next, snapshots,
};
use lunar_block::{BlockDevice, BlockRange, BufferPool, Error, ErrorKind};
use lunar_pool::{MirrorOptions, OpenOptions, Pool, PoolError, PoolHealth, PoolSpec};
use std::collections::BTreeSet;
use std::num::NonZeroU64;
use std::sync::Arc;

const BLOCKS: u64 = 1280;

/// The devices of a pool, which hosts share.
struct Shelf {
    disks: Vec<Device>,
    shared: Vec<Arc<SharedDisk>>,
}

impl Shelf {
    async fn new(spec: PoolSpec, count: usize, seed: u64) -> Self {
        let disks = memories(count, BLOCKS * 512);
        Pool::create(spec, disks.clone()).await.unwrap();
        let shared = disks.iter().map(|disk| SharedDisk::new(Arc::clone(disk), seed)).collect();
        Self { disks, shared }
    }

    async fn mirror() -> Self {
        Self::new(PoolSpec::Mirror { erase: true }, 2, 0).await
    }

    fn devices(&self, host: &str) -> Vec<Device> {
        self.shared.iter().map(|one| HostDisk::new(one, host) as Device).collect()
    }

    async fn open(&self, host: &str, options: OpenOptions) -> Result<Arc<Pool>, PoolError> {
        Pool::open("pool", self.devices(host), options).await
    }

    fn owners(&self) -> Vec<Option<String>> {
        self.shared.iter().map(|one| one.owner()).collect()
    }
}

fn taking_over() -> OpenOptions {
    OpenOptions { take_over: true, ..OpenOptions::default() }
}

fn with_key(key: u64) -> OpenOptions {
    OpenOptions { owner_key: NonZeroU64::new(key), ..OpenOptions::default() }
}

async fn write(pool: &Pool, lba: u64, value: u8) -> Result<(), Error> {
    pool.write(BlockRange::new(lba, 1), filled(value, 1), false).await
}

async fn assert_fenced(pool: &Pool) {
    let kind = |result: Result<(), Error>| result.unwrap_err().kind;
    assert_eq!(kind(write(pool, 0, 9).await), ErrorKind::Fenced);
    assert_eq!(kind(pool.flush().await), ErrorKind::Fenced);
    let read = pool.read(BlockRange::new(0, 1), BufferPool::default().take(512)).await;
    assert_eq!(kind(read.map(drop)), ErrorKind::Fenced);
    assert!(!pool.try_write_now(BlockRange::new(0, 1), &[9; 512], false));
    assert!(!pool.try_read_now(BlockRange::new(0, 1), &mut [0; 512]));
    assert_eq!(pool.status().health, PoolHealth::Fenced);
}

/// Goal: a pool that is open elsewhere is refused with the owner's name, nothing is written, and
/// members that were free stay free. After it is closed, another host opens it.
#[tokio::test(start_paused = true)]
async fn a_pool_is_open_on_one_host() {
    let shelf = Shelf::mirror().await;
    let first = Pool::open(
        "alone",
        shelf.devices("a")[1..].to_vec(),
        OpenOptions { is_degraded: true, ..OpenOptions::default() },
    );
    let first = first.await.unwrap();
    assert_eq!(shelf.owners(), [None, Some("a".to_owned())]);
    let before = snapshots(&shelf.disks).await;
    let error = shelf.open("b", OpenOptions::default()).await.unwrap_err();
    let PoolError::OwnedElsewhere { device, owner } = error else { panic!("{error}") };
    assert_eq!((device.as_str(), owner.as_str()), (shelf.disks[1].name(), "a"));
    assert_eq!(shelf.owners(), [None, Some("a".to_owned())]);
    for (disk, copy) in shelf.disks.iter().zip(&before) {
        let count = disk.geometry().block_count;
        let (now, then) =
            (crate::common::read(&**disk, 0, count), crate::common::read(&**copy, 0, count));
        assert!(now.await == then.await);
    }
    first.close().await.unwrap();
    assert_eq!(shelf.owners(), [None, None]);
    let second = shelf.open("b", OpenOptions::default()).await.unwrap();
    assert_eq!(shelf.owners(), vec![Some("b".to_owned()); 2]);
    write(&second, 0, 1).await.unwrap();
    second.close().await.unwrap();
    assert_eq!(write(&second, 0, 1).await.unwrap_err().kind, ErrorKind::Fenced);
}

/// Goal: a pool that cannot be opened is not taken over.
#[tokio::test(start_paused = true)]
async fn an_incomplete_pool_is_not_taken_over() {
    let shelf = Shelf::mirror().await;
    let pool = shelf.open("a", OpenOptions::default()).await.unwrap();
    let half = shelf.devices("b")[..1].to_vec();
    let error = Pool::open("pool", half, taking_over()).await.unwrap_err();
    assert!(matches!(error, PoolError::Missing { .. }), "{error}");
    write(&pool, 0, 1).await.unwrap();
}

/// Goal: the loss of one member fences the whole pool: nothing is read or written, neither by users
/// nor by the pool itself, also on a member that no other host can reach.
#[tokio::test(start_paused = true)]
async fn a_lost_member_fences_the_pool() {
    let shelf = Shelf::mirror().await;
    let local = Arc::clone(&shelf.disks[1]);
    let shared = HostDisk::new(&shelf.shared[0], "a") as Device;
    let pool = Pool::open("pool", vec![shared, Arc::clone(&local)], OpenOptions::default());
    let pool = pool.await.unwrap();
    write(&pool, 0, 1).await.unwrap();
    write(&pool, 500, 1).await.unwrap();
    let other = HostDisk::new(&shelf.shared[0], "b");
    let key = NonZeroU64::new(7).unwrap();
    let claim = lunar_block::OwnershipClaim { key, take_over: true, fence: Arc::default() };
    other.ownership().unwrap().acquire(claim).await.unwrap();
    let before = snapshots(std::slice::from_ref(&local)).await.remove(0);
    write(&pool, 1, 2).await.unwrap_err();
    assert_fenced(&pool).await;
    // The copies and the intent log of the mirror have time to do harm.
    tokio::time::sleep(std::time::Duration::from_secs(600)).await;
    pool.close().await.unwrap_err();
    let count = local.geometry().block_count;
    let now = crate::common::read(&*local, 0, count).await;
    let then = crate::common::read(&*before, 0, count).await;
    let differs: Vec<usize> =
        (0..now.len()).step_by(512).filter(|at| now[*at] != then[*at]).collect();
    let of_the_change = (DATA_START as usize + 1) * 512;
    assert!(differs.iter().all(|at| *at == of_the_change), "{differs:?}");
}

/// Acquires a disk for another host, as if a pool there did.
async fn take_away(shared: &Arc<SharedDisk>, take_over: bool) -> Arc<HostDisk> {
    let other = HostDisk::new(shared, "b");
    let key = NonZeroU64::new(7).unwrap();
    let claim = lunar_block::OwnershipClaim { key, take_over, fence: Arc::default() };
    other.ownership().unwrap().acquire(claim).await.unwrap();
    other
}

fn copying_slowly() -> MirrorOptions {
    let rate = NonZeroU64::new(1);
    MirrorOptions { resync_bytes_per_second_max: rate, ..MirrorOptions::default() }
}

/// Goal: the loss of a member that is not current does not end the pool, which can do without it.
/// One that lied about its reservations did, with all data on the other member.
#[tokio::test(start_paused = true)]
async fn a_lost_member_that_is_stale_leaves_the_pool_alone() {
    let shelf = Shelf::mirror().await;
    let pool = shelf.open("a", OpenOptions::default()).await.unwrap();
    write(&pool, 0, 1).await.unwrap();
    pool.close().await.unwrap();
    let degraded = OpenOptions { is_degraded: true, ..OpenOptions::default() };
    let alone = Pool::open("pool", shelf.devices("a")[..1].to_vec(), degraded).await.unwrap();
    write(&alone, 1, 2).await.unwrap();
    alone.close().await.unwrap();
    // The second member is stale, and taken away before anything is copied to it.
    let options = OpenOptions { mirror: copying_slowly(), ..OpenOptions::default() };
    let pool = shelf.open("a", options).await.unwrap();
    take_away(&shelf.shared[1], true).await;
    let waited = tokio::time::timeout(std::time::Duration::from_secs(60), async {
        while pool.status().health != PoolHealth::Fenced {
            tokio::time::sleep(std::time::Duration::from_millis(50)).await;
        }
    });
    waited.await.expect_err("the pool goes on");
    write(&pool, 2, 3).await.unwrap();
    pool.flush().await.unwrap();
    assert_eq!(first_byte(&*pool, 1).await, 2);
    take_away(&shelf.shared[0], true).await;
    write(&pool, 2, 3).await.unwrap_err();
    assert_fenced(&pool).await;
}

/// Goal: a member that is not current and that another host owns does not keep the pool closed.
#[tokio::test(start_paused = true)]
async fn a_stale_member_that_is_owned_elsewhere_is_left_out() {
    for is_degraded in [false, true] {
        let shelf = Shelf::mirror().await;
        let degraded = OpenOptions { is_degraded: true, ..OpenOptions::default() };
        let alone = Pool::open("pool", shelf.devices("a")[..1].to_vec(), degraded).await.unwrap();
        write(&alone, 1, 2).await.unwrap();
        alone.close().await.unwrap();
        let other = take_away(&shelf.shared[1], false).await;
        let options = OpenOptions { is_degraded, ..OpenOptions::default() };
        let pool = shelf.open("a", options).await.unwrap();
        let left_out = pool.take_left_out();
        let [one] = &left_out[..] else { panic!("{left_out:?}") };
        assert!(matches!(&one.error, PoolError::OwnedElsewhere { .. }), "{}", one.error);
        assert!(pool.take_left_out().is_empty());
        assert_eq!(first_byte(&*pool, 1).await, 2);
        other.ownership().unwrap().release().await.unwrap();
        pool.rejoin(Arc::clone(&one.device)).await.unwrap();
        while pool.status().health != PoolHealth::Healthy {
            tokio::time::sleep(std::time::Duration::from_millis(50)).await;
        }
        pool.close().await.unwrap();
    }
}

/// Goal: a member that another host owns, and that has all data by the label which that host wrote
/// last, keeps the pool closed, also a degraded one.
#[tokio::test(start_paused = true)]
async fn a_member_that_becomes_current_elsewhere_is_not_left_out() {
    let shelf = Shelf::mirror().await;
    let degraded = OpenOptions { is_degraded: true, ..OpenOptions::default() };
    let alone = Pool::open("pool", shelf.devices("b")[..1].to_vec(), degraded.clone()).await;
    let alone = alone.unwrap();
    write(&alone, 1, 2).await.unwrap();
    alone.close().await.unwrap();
    let before = snapshots(&shelf.disks).await.remove(0);
    let pool = shelf.open("b", OpenOptions::default()).await.unwrap();
    while pool.status().health != PoolHealth::Healthy {
        tokio::time::sleep(std::time::Duration::from_millis(50)).await;
    }
    pool.close().await.unwrap();
    let (disk, all) = (&shelf.disks[0], BlockRange::new(0, BLOCKS));
    let last = crate::common::read(&**disk, 0, BLOCKS).await;
    disk.write(all, crate::common::read(&*before, 0, BLOCKS).await, true).await.unwrap();
    take_away(&shelf.shared[1], false).await;
    let first = HostDisk::new(&shelf.shared[0], "a");
    first.write_before_acquisition(last);
    let devices = vec![first as Device, HostDisk::new(&shelf.shared[1], "a")];
    let error = Pool::open("pool", devices, degraded).await.unwrap_err();
    assert!(matches!(error, PoolError::OwnedElsewhere { .. }), "{error}");
    assert_eq!(shelf.owners(), [None, Some("b".to_owned())]);
}

/// Goal: a degraded mirror opens without a current member that cannot be acquired, but not without
/// one that another host owns; a complete one does not open.
#[tokio::test(start_paused = true)]
async fn a_degraded_mirror_opens_without_a_member_that_fails() {
    for refused in 0..2 {
        let shelf = Shelf::mirror().await;
        let mut devices = shelf.devices("a");
        let broken = HostDisk::new(&shelf.shared[refused], "a");
        broken.refuse_acquisition();
        devices[refused] = broken;
        let open = |is_degraded| {
            let options = OpenOptions { is_degraded, ..OpenOptions::default() };
            Pool::open("pool", devices.clone(), options)
        };
        let error = open(false).await.unwrap_err();
        assert!(matches!(error, PoolError::Device(_)), "{error}");
        assert_eq!(shelf.owners(), [None, None]);
        let pool = open(true).await.unwrap();
        assert!(Arc::ptr_eq(&pool.take_left_out()[0].device, &devices[refused]));
        write(&pool, 0, 1).await.unwrap();
        pool.close().await.unwrap();
        take_away(&shelf.shared[1 - refused], false).await;
        let error = open(true).await.unwrap_err();
        assert!(matches!(error, PoolError::OwnedElsewhere { .. }), "{error}");
    }
}

/// Goal: a member that returns is acquired before it is written to; one that another host owns is
/// refused. A device that is added is acquired, too, and all are released at the end.
#[tokio::test(start_paused = true)]
async fn members_that_come_later_are_acquired() {
    let shelf = Shelf::mirror().await;
    shelf.open("a", OpenOptions::default()).await.unwrap().close().await.unwrap();
    let degraded = OpenOptions { is_degraded: true, ..OpenOptions::default() };
    let devices = shelf.devices("a");
    let pool = Pool::open("pool", devices[..1].to_vec(), degraded).await.unwrap();
    write(&pool, 0, 1).await.unwrap();
    let other = HostDisk::new(&shelf.shared[1], "b");
    let key = NonZeroU64::new(7).unwrap();
    let claim = lunar_block::OwnershipClaim { key, take_over: false, fence: Arc::default() };
    other.ownership().unwrap().acquire(claim).await.unwrap();
    let error = pool.rejoin(Arc::clone(&devices[1])).await.unwrap_err();
    assert!(matches!(error, PoolError::OwnedElsewhere { .. }), "{error}");
    other.ownership().unwrap().release().await.unwrap();
    pool.rejoin(Arc::clone(&devices[1])).await.unwrap();
    assert_eq!(shelf.owners(), vec![Some("a".to_owned()); 2]);
    let third = SharedDisk::new(memories(1, BLOCKS * 512).remove(0), 0);
    pool.add(HostDisk::new(&third, "a")).await.unwrap();
    assert_eq!(third.owner().as_deref(), Some("a"));
    while pool.status().health != PoolHealth::Healthy {
        tokio::time::sleep(std::time::Duration::from_millis(50)).await;
    }
    pool.close().await.unwrap();
    assert_eq!((shelf.owners(), third.owner()), (vec![None; 2], None));
}

/// Goal: a host that was killed gets its pool back with its key; another host does not.
#[tokio::test(start_paused = true)]
async fn a_host_returns_with_its_key() {
    let shelf = Shelf::mirror().await;
    let killed = shelf.open("a", with_key(5)).await.unwrap();
    write(&killed, 0, 1).await.unwrap();
    killed.flush().await.unwrap();
    drop(killed);
    let error = shelf.open("b", with_key(6)).await.unwrap_err();
    assert!(matches!(error, PoolError::OwnedElsewhere { .. }), "{error}");
    let pool = shelf.open("a", with_key(5)).await.unwrap();
    assert_eq!(first_byte(&*pool, 0).await, 1);
}

/// Goal: after a take-over, the former owner acknowledges nothing, and the new one has all that was
/// acknowledged before. Method: hosts take a pool over from each other while the owner writes; each
/// operation of a device takes effect at a random time.
#[tokio::test(start_paused = true)]
async fn two_hosts_never_both_acknowledge() {
    for seed in 1..=60 {
        let mirror = PoolSpec::Mirror { erase: true };
        let (spec, count) = match seed % 3 {
            0 => (PoolSpec::Stripe { unit_bytes: 4096 }, 2),
            1 => (mirror, 3),
            _ => (mirror, 2),
        };
        Trial::new(spec, count, seed).await.run().await;
    }
}

struct Trial {
    shelf: Shelf,
    seed: u64,
    random: u64,
    /// The values that each block may have.
    model: Vec<BTreeSet<u8>>,
}

impl Trial {
    const LBAS: u64 = 24;

    async fn new(spec: PoolSpec, count: usize, seed: u64) -> Self {
        let shelf = Shelf::new(spec, count, seed).await;
        Self { shelf, seed, random: seed, model: vec![BTreeSet::from([0]); Self::LBAS as usize] }
    }

    async fn run(mut self) {
        let mut owner = self.shelf.open("host 0", OpenOptions::default()).await.unwrap();
        for round in 1..6 {
            let writes: Vec<(u64, u8)> = (0..next(&mut self.random) % 40)
                .map(|_| (next(&mut self.random) % Self::LBAS, next(&mut self.random) as u8))
                .collect();
            let turns = next(&mut self.random) % 60;
            let host = format!("host {round}");
            let taking = async {
                for _ in 0..turns {
                    tokio::task::yield_now().await;
                }
                self.shelf.open(&host, taking_over()).await.unwrap()
            };
            let writing = async {
                let mut ended = Vec::new();
                for (lba, value) in writes {
                    ended.push((lba, value, write(&owner, lba * 50, value).await));
                }
                ended
            };
            let (taken, ended) = tokio::join!(taking, writing);
            for (lba, value, result) in ended {
                let values = &mut self.model[lba as usize];
                if result.is_ok() {
                    values.clear();
                }
                values.insert(value);
            }
            let late = write(&owner, 0, 255).await;
            assert!(late.is_err(), "seed {}, round {round}: both acknowledge", self.seed);
            assert_fenced(&owner).await;
            owner = taken;
            for lba in 0..Self::LBAS {
                let value = first_byte(&*owner, lba * 50).await;
                let allowed = &mut self.model[lba as usize];
                let seed = self.seed;
                assert!(allowed.contains(&value), "seed {seed}, block {lba}: {value}, {allowed:?}");
                *allowed = BTreeSet::from([value]);
            }
            write(&owner, 0, 7).await.unwrap();
            self.model[0] = BTreeSet::from([7]);
        }
    }
}
