//! A storage for tests, with versioned blocks and a volatile cache. A seed determines when it
//! fails, is late or loses power. All storages of a test stop at the same moment when the switch
//! crashes.

use bytes::Bytes;
use lunar_block::{
    AtomicCompareAndWrite, BlockDevice, BlockRange, BoxFuture, Buffer, Clear, Error, ErrorKind,
    Extent, ExtentState, Geometry, SpaceUsage, Sparse,
};
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::SeqCst};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;
use tokio::sync::Notify;

pub const BLOCK: usize = 512;

/// Returns the next number of a sequence that a seed determines.
pub fn next(random: &mut u64) -> u64 {
    *random ^= *random << 13;
    *random ^= *random >> 7;
    *random ^= *random << 17;
    *random
}

/// The bytes of blocks with these versions.
pub fn bytes_of(versions: &[u64]) -> Vec<u8> {
    let block = |version: &u64| version.to_be_bytes().repeat(BLOCK / 8);
    versions.iter().flat_map(block).collect()
}

/// The versions of blocks; each block has one.
pub fn versions_of(bytes: &[u8]) -> Vec<u64> {
    let version = |block: &[u8]| {
        let version = u64::from_be_bytes(block[..8].try_into().unwrap());
        assert!(block == version.to_be_bytes().repeat(BLOCK / 8), "a block is torn");
        version
    };
    bytes.chunks(BLOCK).map(version).collect()
}

/// Counter of the steps of all storages and of the record; the switch crashes at one step.
#[derive(Debug)]
pub struct Steps {
    pub random: Mutex<u64>,
    taken: AtomicU64,
    crash_at: u64,
    crashed: AtomicBool,
    pub crash: Notify,
}

impl Steps {
    pub fn new(seed: u64, crash_at: u64) -> Arc<Self> {
        Arc::new(Self {
            random: Mutex::new(seed),
            taken: AtomicU64::new(0),
            crash_at,
            crashed: AtomicBool::new(false),
            crash: Notify::new(),
        })
    }

    pub fn next(&self) -> u64 {
        next(&mut self.random.lock().unwrap())
    }

    /// True once in `count` times.
    pub fn one_in(&self, count: u64) -> bool {
        self.next().is_multiple_of(count)
    }

    pub fn has_crashed(&self) -> bool {
        self.crashed.load(SeqCst)
    }

    /// Takes a step. Returns false if the switch has crashed: the step has no effect.
    pub fn take_step(&self) -> bool {
        if self.taken.fetch_add(1, SeqCst) == self.crash_at {
            self.crash_now();
        }
        !self.has_crashed()
    }

    pub fn crash_now(&self) {
        self.crashed.store(true, SeqCst);
        self.crash.notify_one();
    }
}

/// Faults of a storage.
#[derive(Clone, Copy, Debug, Default)]
pub struct Faults {
    /// One in this number of operations fails; 0: none.
    pub fail_one_in: u64,
    /// One of this many operations takes seconds; 0: none.
    pub late_one_in: u64,
    pub is_unreachable: bool,
    /// Range and delay: changes of these blocks take longer by the delay.
    pub slow_changes: Option<(BlockRange, Duration)>,
    /// Number of blocks and delay: changes of at least this length take longer by the delay.
    pub slow_long_changes: Option<(usize, Duration)>,
    /// Additional time of a flush.
    pub slow_flush: Duration,
}

#[derive(Debug)]
pub struct Storage {
    name: String,
    steps: Mutex<Arc<Steps>>,
    content: Mutex<Content>,
    pub faults: Mutex<Faults>,
    /// True if the storage supports COMPARE AND WRITE.
    pub compares: bool,
}

#[derive(Debug)]
struct Content {
    versions: Vec<u64>,
    /// The versions on the medium of blocks that were not flushed.
    flushed: BTreeMap<u64, u64>,
    /// Changes in flight.
    pending: BTreeMap<u64, (u64, Vec<u64>)>,
    pending_next: u64,
    losses: u64,
    is_unreported: bool,
}

impl Content {
    fn put(&mut self, lba: u64, versions: &[u64], durable: bool) {
        for (lba, version) in (lba..).zip(versions) {
            let old = std::mem::replace(&mut self.versions[lba as usize], *version);
            match durable {
                true => drop(self.flushed.remove(&lba)),
                false => drop(self.flushed.entry(lba).or_insert(old)),
            }
        }
    }
}

impl Storage {
    pub fn new(name: &str, blocks: u64, steps: &Arc<Steps>, compares: bool) -> Arc<Self> {
        let content = Content {
            versions: (0..blocks).map(|_| 1 + steps.next() % 1000).collect(),
            flushed: BTreeMap::new(),
            pending: BTreeMap::new(),
            pending_next: 0,
            losses: 0,
            is_unreported: false,
        };
        Arc::new(Self {
            name: name.to_owned(),
            steps: Mutex::new(Arc::clone(steps)),
            content: Mutex::new(content),
            faults: Mutex::default(),
            compares,
        })
    }

    fn content(&self) -> MutexGuard<'_, Content> {
        self.content.lock().unwrap()
    }

    fn steps(&self) -> Arc<Steps> {
        Arc::clone(&self.steps.lock().unwrap())
    }

    /// The versions of all blocks.
    pub fn versions(&self) -> Vec<u64> {
        self.content().versions.clone()
    }

    /// Number of changes that have begun and not ended.
    pub fn changes_in_flight(&self) -> usize {
        self.content().pending.len()
    }

    /// Overwrites blocks that must not be in use any more.
    pub fn overwrite_with_garbage(&self, range: BlockRange) {
        let garbage: Vec<u64> = (0..range.count).map(|at| u64::MAX - at).collect();
        self.content().put(range.lba, &garbage, true);
    }

    /// Loses each block that was not flushed with a chance of one in two.
    pub fn cut_power(&self) {
        let steps = self.steps();
        let mut content = self.content();
        let flushed = std::mem::take(&mut content.flushed);
        if flushed.is_empty() {
            return;
        }
        for (lba, version) in flushed {
            if steps.one_in(2) {
                content.versions[lba as usize] = version;
            }
        }
        content.losses += 1;
        content.is_unreported = true;
    }

    /// Called when the switch has crashed: changes in flight are applied or not, at random, and the
    /// power of the storage may be cut. The next run of the switch has the steps `steps`.
    pub fn crash(&self, steps: &Arc<Steps>) {
        let mut content = self.content();
        for (_, (lba, versions)) in std::mem::take(&mut content.pending) {
            if steps.one_in(2) {
                content.put(lba, &versions, false);
            }
        }
        drop(content);
        *self.steps.lock().unwrap() = Arc::clone(steps);
        *self.faults.lock().unwrap() = Faults::default();
    }

    fn failed(&self, what: &str) -> Error {
        Error::new(ErrorKind::Medium, &*self.name, what)
    }

    /// Waits as long as an operation takes; then takes the step, or fails.
    async fn step(&self) -> Result<(), Error> {
        let (steps, faults) = (self.steps(), *self.faults.lock().unwrap());
        let is_late = faults.late_one_in > 0 && steps.one_in(faults.late_one_in);
        let delay = if is_late { 2500 + steps.next() % 3000 } else { steps.next() % 6 };
        if delay > 0 {
            tokio::time::sleep(Duration::from_millis(delay)).await;
        }
        if self.faults.lock().unwrap().is_unreachable {
            tokio::time::sleep(Duration::from_millis(500 + steps.next() % 6000)).await;
            return Err(self.failed("it is unreachable"));
        }
        if faults.fail_one_in > 0 && steps.one_in(faults.fail_one_in) {
            return Err(self.failed("it has failed"));
        }
        match steps.take_step() {
            true => Ok(()),
            false => std::future::pending().await,
        }
    }

    async fn change(&self, lba: u64, versions: Vec<u64>, durable: bool) -> Result<(), Error> {
        let id = {
            let mut content = self.content();
            content.pending_next += 1;
            let id = content.pending_next;
            content.pending.insert(id, (lba, versions.clone()));
            id
        };
        let Faults { slow_changes, slow_long_changes, .. } = *self.faults.lock().unwrap();
        if let Some((blocks, delay)) = slow_long_changes
            && versions.len() >= blocks
        {
            tokio::time::sleep(delay).await;
        }
        if let Some((range, delay)) = slow_changes
            && range.lba < lba + versions.len() as u64
            && lba < range.lba + range.count
        {
            tokio::time::sleep(delay).await;
        }
        let stepped = self.step().await;
        let mut content = self.content();
        content.pending.remove(&id);
        if stepped.is_err() && self.steps().one_in(2) {
            // The change was made, and its answer was lost.
            content.put(lba, &versions, false);
        }
        stepped?;
        content.put(lba, &versions, durable);
        Ok(())
    }
}

impl BlockDevice for Storage {
    fn name(&self) -> &str {
        &self.name
    }

    fn geometry(&self) -> Geometry {
        let bytes = self.content().versions.len() as u64 * BLOCK as u64;
        Geometry::new(&self.name, bytes, BLOCK as u32, BLOCK as u32).unwrap()
    }

    fn read(&self, range: BlockRange, mut into: Buffer) -> BoxFuture<'_, Result<Buffer, Error>> {
        Box::pin(async move {
            self.step().await?;
            let content = self.content();
            let versions = &content.versions[range.lba as usize..][..range.count as usize];
            let bytes = bytes_of(versions);
            into[..bytes.len()].copy_from_slice(&bytes);
            Ok(into)
        })
    }

    fn write(
        &self,
        range: BlockRange,
        from: Bytes,
        durable: bool,
    ) -> BoxFuture<'_, Result<(), Error>> {
        assert_eq!(from.len(), range.count as usize * BLOCK);
        Box::pin(self.change(range.lba, versions_of(&from), durable))
    }

    fn flush(&self) -> BoxFuture<'_, Result<(), Error>> {
        Box::pin(async move {
            let slow_flush = self.faults.lock().unwrap().slow_flush;
            if slow_flush > Duration::ZERO {
                tokio::time::sleep(slow_flush).await;
            }
            self.step().await?;
            let mut content = self.content();
            if std::mem::take(&mut content.is_unreported) {
                return Err(self.failed("writes were lost"));
            }
            content.flushed.clear();
            Ok(())
        })
    }

    fn cache_losses(&self) -> Option<u64> {
        Some(self.content().losses)
    }

    fn sparse(&self) -> Option<&dyn Sparse> {
        Some(self)
    }

    fn compare_and_write(&self) -> Option<&dyn AtomicCompareAndWrite> {
        self.compares.then_some(self)
    }

    fn io_tier(&self) -> String {
        "test".into()
    }
}

impl Sparse for Storage {
    fn unmap(&self, range: BlockRange, durable: bool) -> BoxFuture<'_, Result<(), Error>> {
        Box::pin(self.change(range.lba, vec![0; range.count as usize], durable))
    }

    fn write_zeroes(
        &self,
        range: BlockRange,
        _may_unmap: bool,
        durable: bool,
    ) -> BoxFuture<'_, Result<(), Error>> {
        Sparse::unmap(self, range, durable)
    }

    fn clear_piece(
        &self,
        ranges: Vec<BlockRange>,
        _clear: Clear,
        durable: bool,
    ) -> BoxFuture<'_, Result<u64, Error>> {
        Box::pin(async move {
            let first = ranges[0];
            Sparse::unmap(self, first, durable).await?;
            Ok(first.lba + first.count)
        })
    }

    fn status(
        &self,
        range: BlockRange,
        _extents_max: usize,
    ) -> BoxFuture<'_, Result<Vec<Extent>, Error>> {
        let all = Extent { range, state: ExtentState::Mapped };
        Box::pin(std::future::ready(Ok(vec![all])))
    }

    fn granularity_bytes(&self) -> u32 {
        BLOCK as u32
    }

    fn space_usage(&self) -> Result<Option<SpaceUsage>, Error> {
        Ok(None)
    }
}

impl AtomicCompareAndWrite for Storage {
    fn blocks_max(&self) -> u8 {
        8
    }

    fn compare_and_write(
        &self,
        range: BlockRange,
        old_and_new: Bytes,
        durable: bool,
    ) -> BoxFuture<'_, Result<Option<u64>, Error>> {
        Box::pin(async move {
            let half = old_and_new.len() / 2;
            self.step().await?;
            let mut content = self.content();
            let versions = &content.versions[range.lba as usize..][..range.count as usize];
            let present = bytes_of(versions);
            let differs =
                present.iter().zip(&old_and_new[..half]).position(|(one, two)| one != two);
            if differs.is_none() {
                content.put(range.lba, &versions_of(&old_and_new[half..]), durable);
            }
            Ok(differs.map(|at| at as u64))
        })
    }
}
