//! One host at a time has a pool open whose devices have no persistent reservations: by leases.

use crate::common::{
    Device, LeasedDisk, LeasedHostDisk, filled, first_byte, memories, memory, next, read,
};
use lunar_block::{BlockDevice, BlockRange, Error, ErrorKind};
use lunar_pool::format::{
    FoundLease, LEASE_BYTES, LEASE_TIME_MAX, LeaseBlock, LeasePhase, MemberLayout,
};
use lunar_pool::{OpenOptions, Pool, PoolError, PoolHealth, PoolSpec};
use std::collections::BTreeSet;
use std::num::NonZeroU64;
use std::sync::Arc;
use std::sync::atomic::Ordering::SeqCst;
use std::time::Duration;
use tokio::sync::watch;
use tokio::time::{Instant, sleep};

const BLOCKS: u64 = 1280;
const LEASE_TIME: Duration = Duration::from_secs(30);
const STRIPE: PoolSpec = PoolSpec::Stripe { unit_bytes: 4096 };

/// The devices of a pool, which hosts share.
struct Shelf {
    disks: Vec<Arc<LeasedDisk>>,
}

/// A host of the pool.
struct Host<'a> {
    shelf: &'a Shelf,
    name: String,
    key: u64,
    is_cut: Arc<watch::Sender<bool>>,
}

impl Shelf {
    async fn of(spec: PoolSpec, disks: Vec<Device>, seed: u64, flight_time_max: Duration) -> Self {
        Pool::create(spec, disks.clone()).await.unwrap();
        let shared =
            |(at, disk): (usize, Device)| LeasedDisk::new(disk, seed + at as u64, flight_time_max);
        Self { disks: disks.into_iter().enumerate().map(shared).collect() }
    }

    async fn new(spec: PoolSpec) -> Self {
        Self::of(spec, memories(2, BLOCKS * 512), 1, Duration::ZERO).await
    }

    fn host(&self, name: &str, key: u64) -> Host<'_> {
        let is_cut = Arc::new(watch::Sender::new(false));
        Host { shelf: self, name: name.to_owned(), key, is_cut }
    }

    fn lease_lba(&self) -> u64 {
        let geometry = self.disks[0].disk.geometry();
        let (block_bytes, block_count) = (geometry.block_bytes, geometry.block_count);
        MemberLayout { block_bytes, block_count }.lease()
    }

    async fn lease(&self, at: usize) -> FoundLease {
        let bytes = read(&*self.disks[at].disk, self.lease_lba(), 1).await;
        LeaseBlock::decode(bytes.first_chunk().unwrap())
    }

    async fn put_lease(&self, at: usize, bytes: &[u8; LEASE_BYTES]) {
        let (range, bytes) = (BlockRange::new(self.lease_lba(), 1), bytes.to_vec());
        self.disks[at].disk.write(range, bytes.into(), true).await.unwrap();
    }
}

impl Host<'_> {
    fn devices(&self) -> Vec<Device> {
        let seen = |disk| LeasedHostDisk::new(disk, &self.name, &self.is_cut) as Device;
        self.shelf.disks.iter().map(seen).collect()
    }

    async fn open_with(&self, take_over: bool) -> Result<Arc<Pool>, PoolError> {
        let options = OpenOptions {
            take_over,
            owner_key: NonZeroU64::new(self.key << 32),
            owner_name: self.name.clone(),
            lease_time: Some(LEASE_TIME),
            ..OpenOptions::default()
        };
        Pool::open("pool", self.devices(), options).await
    }

    async fn open(&self) -> Result<Arc<Pool>, PoolError> {
        self.open_with(false).await
    }

    fn cut(&self, is_cut: bool) {
        self.is_cut.send_replace(is_cut);
    }

    async fn assert_refused(&self, by: &str) {
        let error = self.open().await.unwrap_err();
        let PoolError::OwnedElsewhere { owner, .. } = error else { panic!("{error}") };
        assert_eq!(owner, by);
    }
}

async fn write(pool: &Pool, lba: u64, value: u8) -> Result<(), Error> {
    pool.write(BlockRange::new(lba, 1), filled(value, 1), false).await
}

fn kind(result: Result<(), Error>) -> ErrorKind {
    result.unwrap_err().kind
}

/// Waits until the renewal of a lease has had its turn.
async fn after_renewals() {
    sleep(LEASE_TIME / 2).await;
}

/// Goal: a pool that is open elsewhere is refused with the owner's name while its leases are
/// renewed, for a long time; after its release, another host opens it at once.
#[tokio::test(start_paused = true)]
async fn a_pool_is_open_on_one_host() {
    let shelf = Shelf::new(STRIPE).await;
    let (a, b) = (shelf.host("host-a", 1), shelf.host("host-b", 2));
    let pool = a.open().await.unwrap();
    for round in 0..4 {
        b.assert_refused("host-a").await;
        write(&pool, 0, round).await.unwrap();
        sleep(LEASE_TIME).await;
    }
    let FoundLease::Valid(lease) = shelf.lease(1).await else { panic!() };
    assert_eq!((lease.owner.as_str(), lease.phase), ("host-a", LeasePhase::InUse));
    pool.close().await.unwrap();
    assert_eq!(shelf.lease(0).await, FoundLease::None);
    let begun = Instant::now();
    let other = b.open().await.unwrap();
    assert_eq!(begun.elapsed(), Duration::ZERO);
    assert_eq!(first_byte(&*other, 0).await, 3);
    assert_eq!(kind(write(&pool, 0, 1).await), ErrorKind::Fenced);
    other.close().await.unwrap();
}

/// Goal: the pool of a host that was killed is taken after the length of its leases, not before.
#[tokio::test(start_paused = true)]
async fn a_pool_is_taken_when_its_leases_have_ended() {
    let shelf = Shelf::new(PoolSpec::Mirror { erase: true }).await;
    let pool = shelf.host("host-a", 1).open().await.unwrap();
    write(&pool, 0, 7).await.unwrap();
    pool.flush().await.unwrap();
    drop(pool);
    let begun = Instant::now();
    let pool = shelf.host("host-b", 2).open().await.unwrap();
    assert!((LEASE_TIME..LEASE_TIME * 3 / 2).contains(&begun.elapsed()), "{:?}", begun.elapsed());
    assert_eq!(first_byte(&*pool, 0).await, 7);
    write(&pool, 0, 8).await.unwrap();
    pool.close().await.unwrap();
}

/// Goal: a host that was killed gets its pool back with its key at once; a former run that exists
/// all the same finds itself fenced.
#[tokio::test(start_paused = true)]
async fn a_host_returns_with_its_key() {
    let shelf = Shelf::new(STRIPE).await;
    let a = shelf.host("host-a", 1);
    let former = a.open().await.unwrap();
    let begun = Instant::now();
    let pool = a.open().await.unwrap();
    assert_eq!(begun.elapsed(), Duration::ZERO);
    after_renewals().await;
    assert_eq!(kind(write(&former, 0, 1).await), ErrorKind::Fenced);
    assert_eq!(former.status().health, PoolHealth::Fenced);
    write(&pool, 0, 2).await.unwrap();
    former.close().await.unwrap_err();
    write(&pool, 0, 3).await.unwrap();
    after_renewals().await;
    pool.close().await.unwrap();
}

/// Goal: a take-over fences an owner that is alive, and the new owner writes only when the former
/// one cannot. A take-over that is interrupted shortens this for nobody: neither for another host
/// nor for the host that repeats it.
#[tokio::test(start_paused = true)]
async fn a_take_over_waits_for_the_former_owner() {
    let shelf = Shelf::new(STRIPE).await;
    let (a, b, c) = (shelf.host("host-a", 1), shelf.host("host-b", 2), shelf.host("host-c", 3));
    let former = a.open().await.unwrap();
    write(&former, 0, 1).await.unwrap();
    let begun = Instant::now();
    let interrupted = tokio::time::timeout(LEASE_TIME / 6, b.open_with(true)).await;
    interrupted.expect_err("it waits");
    let begun_again = Instant::now();
    let (taken, (), ()) = tokio::join!(
        b.open_with(true),
        async {
            sleep(LEASE_TIME / 6).await;
            c.assert_refused("host-b").await;
        },
        async {
            after_renewals().await;
            assert_eq!(kind(write(&former, 0, 2).await), ErrorKind::Fenced);
        }
    );
    let taken = taken.unwrap();
    assert!(begun_again.elapsed() >= LEASE_TIME, "{:?}", begun_again.elapsed());
    assert!(begun.elapsed() < LEASE_TIME * 3 / 2);
    assert_eq!(first_byte(&*taken, 0).await, 1);
    write(&taken, 0, 3).await.unwrap();
    taken.close().await.unwrap();
    // A take-over that ends without use leaves its leases, which end by themselves.
    let former = a.open().await.unwrap();
    tokio::time::timeout(LEASE_TIME / 6, b.open_with(true)).await.expect_err("it waits");
    let begun = Instant::now();
    let taken = c.open().await.unwrap();
    assert!(begun.elapsed() >= LEASE_TIME, "{:?}", begun.elapsed());
    assert_eq!(kind(write(&former, 0, 2).await), ErrorKind::Fenced);
    write(&taken, 0, 3).await.unwrap();
}

/// Goal: a take-over that fails while it waits leaves its leases, so that no other host writes
/// before the former owner cannot.
#[tokio::test(start_paused = true)]
async fn a_take_over_that_fails_leaves_its_leases() {
    let shelf = Shelf::new(STRIPE).await;
    let (a, b, c) = (shelf.host("host-a", 1), shelf.host("host-b", 2), shelf.host("host-c", 3));
    let former = a.open().await.unwrap();
    let begun = Instant::now();
    let (failed, ()) = tokio::join!(b.open_with(true), async {
        sleep(LEASE_TIME / 6).await;
        let FoundLease::Valid(lease) = shelf.lease(0).await else { panic!() };
        assert_eq!((lease.owner.as_str(), lease.phase), ("host-b", LeasePhase::Waiting));
        shelf.put_lease(0, &[0; LEASE_BYTES]).await;
    });
    let PoolError::Device(error) = failed.unwrap_err() else { panic!() };
    assert_eq!(error.kind, ErrorKind::Fenced);
    let failed_at = begun.elapsed();
    let FoundLease::Valid(lease) = shelf.lease(1).await else { panic!() };
    assert_eq!((lease.owner.as_str(), lease.phase), ("host-b", LeasePhase::Waiting));
    let taken = c.open().await.unwrap();
    assert!(begun.elapsed() >= failed_at + LEASE_TIME / 2, "{:?}", begun.elapsed());
    assert_eq!(kind(write(&former, 0, 2).await), ErrorKind::Fenced);
    write(&taken, 0, 3).await.unwrap();
}

/// Goal: an owner whose renewals hang writes nothing more before another host may; it finds itself
/// fenced when its devices answer again. If nobody has taken them, it continues.
#[tokio::test(start_paused = true)]
async fn an_owner_that_is_cut_off_stops_in_time() {
    for is_taken in [false, true] {
        let shelf = Shelf::new(STRIPE).await;
        let (a, b) = (shelf.host("host-a", 1), shelf.host("host-b", 2));
        let former = a.open().await.unwrap();
        write(&former, 0, 1).await.unwrap();
        sleep(LEASE_TIME / 10).await;
        a.cut(true);
        // One write waits for its session, others come later.
        let waiting = tokio::spawn({
            let former = Arc::clone(&former);
            async move { write(&former, 8, 2).await }
        });
        sleep(LEASE_TIME * 2 / 3).await;
        assert_eq!(kind(write(&former, 0, 3).await), ErrorKind::Disconnected);
        assert!(!former.try_write_now(BlockRange::new(0, 1), &[9; 512], false));
        let taken = match is_taken {
            true => {
                let taken = b.open().await.unwrap();
                write(&taken, 0, 4).await.unwrap();
                write(&taken, 8, 4).await.unwrap();
                Some(taken)
            }
            false => None,
        };
        a.cut(false);
        let waited = waiting.await.unwrap();
        after_renewals().await;
        match &taken {
            Some(taken) => {
                assert_eq!(kind(waited), ErrorKind::Disconnected);
                assert_eq!(kind(write(&former, 0, 5).await), ErrorKind::Fenced);
                assert_eq!(former.status().health, PoolHealth::Fenced);
                assert_eq!(first_byte(&**taken, 0).await, 4);
                assert_eq!(first_byte(&**taken, 8).await, 4);
                assert_eq!(shelf.disks[0].writers(), ["host-a", "host-b"]);
            }
            None => {
                write(&former, 0, 5).await.unwrap();
                b.assert_refused("host-a").await;
            }
        }
    }
}

/// Goal: a mirror continues without a member whose lease is over because its storage is
/// unreachable, and is not fenced; the member gets what it has missed when the storage returns.
#[tokio::test(start_paused = true)]
async fn a_mirror_goes_on_without_an_unreachable_member() {
    let shelf = Shelf::new(PoolSpec::Mirror { erase: true }).await;
    let (a, b) = (shelf.host("host-a", 1), shelf.host("host-b", 2));
    let is_cut = Arc::new(watch::Sender::new(false));
    let cut_off = LeasedHostDisk::new(&shelf.disks[1], "host-a", &is_cut) as Device;
    let devices = vec![a.devices().remove(0), cut_off];
    let options = OpenOptions { lease_time: Some(LEASE_TIME), ..OpenOptions::default() };
    let pool = Pool::open("pool", devices, options).await.unwrap();
    write(&pool, 0, 1).await.unwrap();
    is_cut.send_replace(true);
    sleep(LEASE_TIME * 3).await;
    write(&pool, 0, 2).await.unwrap();
    assert_eq!(pool.status().health, PoolHealth::Degraded);
    let PoolError::OwnedElsewhere { .. } = b.open().await.unwrap_err() else { panic!() };
    is_cut.send_replace(false);
    let returned = async {
        while pool.status().health != PoolHealth::Healthy {
            sleep(Duration::from_millis(50)).await;
        }
    };
    tokio::time::timeout(LEASE_TIME * 4, returned).await.expect("the member returns");
    let PoolError::OwnedElsewhere { .. } = b.open().await.unwrap_err() else { panic!() };
    pool.close().await.unwrap();
    assert_eq!(first_byte(&*shelf.disks[1].disk, crate::common::DATA_START).await, 2);
}

/// Goal: a lease that cannot be read is not taken for a free device, and ends; other content of the
/// block, and blocks of 4096 bytes, need nothing.
#[tokio::test(start_paused = true)]
async fn strange_lease_blocks() {
    let shelf = Shelf::new(STRIPE).await;
    shelf.put_lease(0, &[0xa5; LEASE_BYTES]).await;
    let a = shelf.host("host-a", 1);
    let begun = Instant::now();
    let pool = a.open().await.unwrap();
    assert_eq!(begun.elapsed(), Duration::ZERO);
    let FoundLease::Valid(lease) = shelf.lease(0).await else { panic!() };
    pool.close().await.unwrap();
    let mut later_version = lease.encode();
    later_version[9] = 2;
    shelf.put_lease(0, &later_version).await;
    let pool = a.open().await.unwrap();
    assert!(begun.elapsed() >= LEASE_TIME_MAX, "{:?}", begun.elapsed());
    pool.close().await.unwrap();
    let disks = (0..2).map(|_| memory(BLOCKS * 512, 4096, 4096)).collect();
    let shelf = Shelf::of(STRIPE, disks, 1, Duration::ZERO).await;
    let pool = shelf.host("host-a", 1).open().await.unwrap();
    after_renewals().await;
    assert_eq!(shelf.lease_lba(), 48);
    let FoundLease::Valid(lease) = shelf.lease(1).await else { panic!() };
    assert!(lease.sequence > 1);
    shelf.host("host-b", 2).assert_refused("host-a").await;
    pool.close().await.unwrap();
}

/// Goal: devices whose target has neither reservations nor COMPARE AND WRITE are used without
/// protection, and nothing is written to their lease block.
#[tokio::test(start_paused = true)]
async fn a_target_without_any_protection() {
    let shelf = Shelf::new(STRIPE).await;
    let is_cut = Arc::new(watch::Sender::new(false));
    let seen = |disk| {
        let disk = LeasedHostDisk::new(disk, "host-a", &is_cut);
        disk.compares.store(false, SeqCst);
        disk as Device
    };
    let devices: Vec<Device> = shelf.disks.iter().map(seen).collect();
    let pool = Pool::open("pool", devices, OpenOptions::default()).await.unwrap();
    write(&pool, 0, 1).await.unwrap();
    assert_eq!(shelf.lease(0).await, FoundLease::None);
    pool.close().await.unwrap();
}

/// Goal: at no time two hosts write, nothing that was acknowledged is lost, and at the end one host
/// has the pool. Method: a host writes, is cut off and returns at random times, while another one
/// opens the pool or takes it over; commands are in flight for random times below a third of the
/// lease.
#[tokio::test(start_paused = true)]
async fn two_hosts_never_both_write() {
    for seed in 1..=60 {
        let (spec, count) = match seed % 3 {
            0 => (PoolSpec::Mirror { erase: true }, 2),
            1 => (PoolSpec::Concat, 2),
            _ => (STRIPE, 2),
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
    const LBAS: u64 = 12;

    async fn new(spec: PoolSpec, count: usize, seed: u64) -> Self {
        // A mirror does not wait long for its members.
        let flight_time_max = match spec {
            PoolSpec::Mirror { .. } => Duration::from_millis(100),
            _ => LEASE_TIME / 3,
        };
        let disks = memories(count, BLOCKS * 512);
        let shelf = Shelf::of(spec, disks, seed << 8, flight_time_max).await;
        Self { shelf, seed, random: seed, model: vec![BTreeSet::from([0]); Self::LBAS as usize] }
    }

    fn below(&mut self, time: Duration) -> Duration {
        Duration::from_nanos(next(&mut self.random) % time.as_nanos() as u64)
    }

    async fn run(mut self) {
        let mut key = 1;
        let mut owner = self.shelf.host("host 0", key).open().await.unwrap();
        for round in 1..4 {
            key += 1;
            let (cut_at, cut_time) = (self.below(LEASE_TIME), self.below(LEASE_TIME * 3));
            let (open_at, take_over) =
                (self.below(LEASE_TIME * 2), next(&mut self.random).is_multiple_of(2));
            let former = self.shelf.host(&format!("host {round} before"), key);
            // The owner of this round opens the pool again under a name of its own.
            owner.close().await.unwrap();
            let pool = former.open().await.unwrap();
            let other = self.shelf.host(&format!("host {round}"), key + 100);
            let cutting = async {
                sleep(cut_at).await;
                former.cut(true);
                sleep(cut_time).await;
                former.cut(false);
            };
            let opening = async {
                sleep(open_at).await;
                loop {
                    match other.open_with(take_over).await {
                        Ok(pool) => break pool,
                        Err(PoolError::OwnedElsewhere { .. }) if !take_over => {
                            former.cut(true);
                            sleep(LEASE_TIME / 7).await;
                        }
                        Err(error) => panic!("seed {}: {error}", self.seed),
                    }
                }
            };
            let pauses: Vec<(u64, u8, Duration)> = (0..60)
                .map(|_| {
                    let pause = LEASE_TIME / 12;
                    let random = next(&mut self.random);
                    (random % Self::LBAS, (random >> 32) as u8, pause * (random % 7) as u32 / 7)
                })
                .collect();
            let writing = async {
                let mut ended = Vec::new();
                for (lba, value, pause) in pauses {
                    sleep(pause).await;
                    ended.push((lba, value, write(&pool, lba * 50, value).await.is_ok()));
                }
                ended
            };
            let (ended, taken) = tokio::join!(writing, async {
                let ((), taken) = tokio::join!(cutting, opening);
                // A write that waits for its session does not wait for the next round.
                former.cut(false);
                // The new owner writes while the former one still tries to.
                for lba in Self::LBAS..Self::LBAS + 4 {
                    write(&taken, lba * 50, 1).await.unwrap();
                }
                taken
            });
            self.check(ended, &pool, &taken).await;
            owner = taken;
        }
        for disk in &self.shelf.disks {
            let writers = disk.writers();
            let once: BTreeSet<&String> = writers.iter().collect();
            assert_eq!(once.len(), writers.len(), "seed {}: {writers:?}", self.seed);
        }
    }

    async fn check(&mut self, ended: Vec<(u64, u8, bool)>, former: &Pool, taken: &Pool) {
        let seed = self.seed;
        for (lba, value, is_acknowledged) in ended {
            let values = &mut self.model[lba as usize];
            if is_acknowledged {
                values.clear();
            }
            values.insert(value);
        }
        sleep(LEASE_TIME).await;
        assert_eq!(kind(write(former, 0, 255).await), ErrorKind::Fenced, "seed {seed}");
        for lba in 0..Self::LBAS {
            let value = first_byte(taken, lba * 50).await;
            let allowed = &mut self.model[lba as usize];
            assert!(allowed.contains(&value), "seed {seed}, block {lba}: {value}, {allowed:?}");
            *allowed = BTreeSet::from([value]);
        }
    }
}
