//! A decorator that makes a disk fail, in a scripted way or at random.

use crate::device::clear_all;
use crate::{
    AtomicCompareAndWrite, AtomicLimits, AtomicWrite, BackingProbe, BlockDevice, BlockRange,
    BoxFuture, Buffer, BufferPool, Clear, CreatedFile, DeviceLink, Error, ErrorKind,
    ExclusiveOwnership, Extent, Geometry, PoisonWatcher, Resize, SpaceUsage, Sparse, SyncCounts,
};
use bytes::Bytes;
use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::SeqCst};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use tokio::sync::watch;

/// An operation of a disk.
#[derive(Clone, Copy, Debug, Eq, Hash, PartialEq)]
pub enum FaultOperation {
    /// [`BlockDevice::read`].
    Read,
    /// [`BlockDevice::write`], [`AtomicWrite::write_atomic`].
    Write,
    /// [`BlockDevice::flush`].
    Flush,
    /// [`Sparse::unmap`].
    Unmap,
    /// [`Sparse::write_zeroes`].
    WriteZeroes,
    /// [`Sparse::status`].
    Status,
}

/// The effect of a fault on an operation.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Effect {
    /// The operation fails at once, without reaching the disk. A failed flush poisons the disk, as
    /// a real one does.
    Fail(ErrorKind),
    /// The operation begins later. This needs a tokio runtime with a clock.
    Delay(Duration),
    /// The operation begins when [`FaultDevice::release`] is called.
    Hang,
    /// A write writes this many blocks from its beginning and then fails with `Medium`; an atomic
    /// write writes none. Other operations fail at once.
    Tear {
        /// Number of blocks that are written.
        blocks: u64,
    },
}

/// An effect, and the conditions under which it occurs. All conditions must hold.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Fault {
    effect: Effect,
    operation: Option<FaultOperation>,
    range: Option<BlockRange>,
    passes: u64,
    times: Option<u64>,
    per_million: u32,
}

impl Fault {
    /// Creates a fault of every operation.
    pub const fn new(effect: Effect) -> Self {
        Self {
            effect,
            operation: None,
            range: None,
            passes: 0,
            times: None,
            per_million: 1_000_000,
        }
    }

    /// Limits the fault to this kind of operation.
    pub const fn on(mut self, operation: FaultOperation) -> Self {
        self.operation = Some(operation);
        self
    }

    /// Limits the fault to operations that touch one of these blocks.
    pub const fn at(mut self, range: BlockRange) -> Self {
        self.range = Some(range);
        self
    }

    /// Skips the first `passes` matching operations.
    pub const fn after(mut self, passes: u64) -> Self {
        self.passes = passes;
        self
    }

    /// Limits the fault to this many occurrences.
    pub const fn times(mut self, times: u64) -> Self {
        self.times = Some(times);
        self
    }

    /// Makes the fault occur at random, drawn from the seed of the device: in `per_million` of a
    /// million matching operations.
    pub const fn per_million(mut self, per_million: u32) -> Self {
        self.per_million = per_million;
        self
    }

    fn fits(&self, operation: FaultOperation, range: Option<BlockRange>) -> bool {
        let touches = |mine: BlockRange, other: BlockRange| {
            mine.lba < other.lba.saturating_add(other.count)
                && other.lba < mine.lba.saturating_add(mine.count)
        };
        self.operation.is_none_or(|mine| mine == operation)
            && self.range.is_none_or(|mine| range.is_some_and(|range| touches(mine, range)))
    }
}

/// A disk that passes all operations to an inner disk, apart from injected faults.
///
/// With the same seed and one task, the same faults occur at the same operations in every run.
#[derive(Debug)]
pub struct FaultDevice {
    inner: Arc<dyn BlockDevice>,
    state: Mutex<State>,
    /// Counts calls of `release`.
    released: watch::Sender<u64>,
    hanging: AtomicUsize,
    poisoned: AtomicBool,
    watcher: Mutex<Option<Arc<dyn PoisonWatcher>>>,
}

#[derive(Debug)]
struct State {
    random: u64,
    faults: Vec<Fault>,
    space_usage: Option<SpaceUsage>,
    seen: HashMap<FaultOperation, u64>,
    fired: u64,
}

impl FaultDevice {
    /// Wraps `inner`, without faults yet. `seed` determines the random faults.
    pub fn new(inner: Arc<dyn BlockDevice>, seed: u64) -> Arc<Self> {
        let (faults, seen) = (Vec::new(), HashMap::new());
        let state = State { random: seed, faults, space_usage: None, seen, fired: 0 };
        Arc::new(Self {
            inner,
            state: Mutex::new(state),
            released: watch::Sender::new(0),
            hanging: AtomicUsize::new(0),
            poisoned: AtomicBool::new(false),
            watcher: Mutex::default(),
        })
    }

    /// Adds a fault. If several faults match an operation, the one added first takes effect.
    pub fn inject(&self, fault: Fault) {
        self.state().faults.push(fault);
    }

    /// Removes all faults and the poison. Operations that hang continue to hang.
    pub fn heal(&self) {
        self.state().faults.clear();
        self.poisoned.store(false, SeqCst);
    }

    /// Reports `space_usage` instead of the real one. Writes beyond it succeed unless a fault is
    /// injected.
    pub fn override_space_usage(&self, space_usage: SpaceUsage) {
        self.state().space_usage = Some(space_usage);
    }

    /// Releases all operations that hang now or are about to.
    pub fn release(&self) {
        self.released.send_modify(|count| *count += 1);
    }

    /// Returns the number of operations that hang now.
    pub fn hanging(&self) -> usize {
        self.hanging.load(SeqCst)
    }

    /// Returns the number of operations of a kind so far.
    pub fn seen(&self, operation: FaultOperation) -> u64 {
        self.state().seen.get(&operation).copied().unwrap_or_default()
    }

    /// Returns the number of faults that took effect.
    pub fn fired(&self) -> u64 {
        self.state().fired
    }

    fn watcher(&self) -> Option<Arc<dyn PoisonWatcher>> {
        self.watcher.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Applies the effect of the fault that an operation gets, if any. `Some` is the number of
    /// blocks that may be written before the operation fails.
    async fn apply_effect(
        &self,
        operation: FaultOperation,
        range: Option<BlockRange>,
    ) -> Result<Option<u64>, Error> {
        let (effect, released) = self.draw(operation, range);
        let changes = !matches!(operation, FaultOperation::Read | FaultOperation::Status);
        if changes && self.poisoned.load(SeqCst) {
            return Err(self.error(ErrorKind::Poisoned, range));
        }
        match effect {
            None => Ok(None),
            Some(Effect::Delay(duration)) => {
                tokio::time::sleep(duration).await;
                Ok(None)
            }
            Some(Effect::Hang) => {
                self.hang(released).await;
                Ok(None)
            }
            Some(Effect::Tear { blocks }) if operation == FaultOperation::Write => Ok(Some(blocks)),
            Some(Effect::Tear { .. }) => Err(self.error(ErrorKind::Medium, range)),
            Some(Effect::Fail(kind)) => {
                if operation == FaultOperation::Flush {
                    BlockDevice::poison(self);
                }
                Err(self.error(kind, range))
            }
        }
    }

    /// Returns the effect on an operation, and a receiver of later releases. A test that has seen
    /// the fault fire may release it even before the operation hangs.
    fn draw(
        &self,
        operation: FaultOperation,
        range: Option<BlockRange>,
    ) -> (Option<Effect>, watch::Receiver<u64>) {
        let released = self.released.subscribe();
        (self.state().draw(operation, range), released)
    }

    async fn hang(&self, mut released: watch::Receiver<u64>) {
        /// Keeps the count right when a hanging future is dropped.
        struct Hanging<'a>(&'a AtomicUsize);
        impl Drop for Hanging<'_> {
            fn drop(&mut self) {
                self.0.fetch_sub(1, SeqCst);
            }
        }
        self.hanging.fetch_add(1, SeqCst);
        let _counted = Hanging(&self.hanging);
        // The sender lives as long as `self`.
        let _ = released.changed().await;
    }

    fn error(&self, kind: ErrorKind, range: Option<BlockRange>) -> Error {
        Error { range, ..Error::new(kind, self.name(), "a fault was injected") }
    }

    /// Returns an error if the range is not valid on this disk: an injected fault must not hide the
    /// refusal of a bad request.
    fn check(&self, range: BlockRange, buffer_bytes: usize, exact: bool) -> Result<(), Error> {
        self.geometry().checked(self.name(), range, buffer_bytes, exact).map(drop)
    }

    fn inner_sparse(&self) -> Result<&dyn Sparse, Error> {
        let none =
            || Error::new(ErrorKind::Medium, self.name(), "it does not support deallocation");
        self.inner.sparse().ok_or_else(none)
    }
}

impl State {
    fn draw(&mut self, operation: FaultOperation, range: Option<BlockRange>) -> Option<Effect> {
        *self.seen.entry(operation).or_default() += 1;
        for index in 0..self.faults.len() {
            let fault = self.faults[index];
            if !fault.fits(operation, range) || fault.times == Some(0) {
                continue;
            }
            if fault.passes > 0 {
                self.faults[index].passes -= 1;
                continue;
            }
            if fault.per_million < 1_000_000 && self.chance() >= fault.per_million {
                continue;
            }
            self.faults[index].times = fault.times.map(|times| times - 1);
            self.fired += 1;
            return Some(fault.effect);
        }
        None
    }

    /// Draws a number from 0 to 999,999.
    fn chance(&mut self) -> u32 {
        (crate::random::next(&mut self.random) % 1_000_000) as u32
    }
}

impl BlockDevice for FaultDevice {
    fn name(&self) -> &str {
        self.inner.name()
    }

    fn geometry(&self) -> Geometry {
        self.inner.geometry()
    }

    fn read(&self, range: BlockRange, into: Buffer) -> BoxFuture<'_, Result<Buffer, Error>> {
        Box::pin(async move {
            self.check(range, into.len(), false)?;
            self.apply_effect(FaultOperation::Read, Some(range)).await?;
            self.inner.read(range, into).await
        })
    }

    fn write(
        &self,
        range: BlockRange,
        from: Bytes,
        durable: bool,
    ) -> BoxFuture<'_, Result<(), Error>> {
        Box::pin(async move {
            self.check(range, from.len(), true)?;
            let Some(blocks) = self.apply_effect(FaultOperation::Write, Some(range)).await? else {
                return self.inner.write(range, from, durable).await;
            };
            let blocks = blocks.min(range.count);
            let bytes = blocks as usize * self.geometry().block_bytes as usize;
            let part = BlockRange::new(range.lba, blocks);
            self.inner.write(part, from.slice(..bytes), false).await?;
            Err(self.error(ErrorKind::Medium, Some(range)))
        })
    }

    fn flush(&self) -> BoxFuture<'_, Result<(), Error>> {
        Box::pin(async move {
            self.apply_effect(FaultOperation::Flush, None).await?;
            self.inner.flush().await
        })
    }

    fn link(&self) -> Option<DeviceLink> {
        self.inner.link()
    }

    fn cache_losses(&self) -> Option<u64> {
        self.inner.cache_losses()
    }

    fn set_buffers(&self, buffers: &BufferPool) {
        self.inner.set_buffers(buffers);
    }

    fn take_created(&self) -> Option<CreatedFile> {
        self.inner.take_created()
    }

    fn prefetch(&self, range: BlockRange) {
        self.inner.prefetch(range);
    }

    fn sparse(&self) -> Option<&dyn Sparse> {
        self.inner.sparse().is_some().then_some(self)
    }

    fn atomic(&self) -> Option<&dyn AtomicWrite> {
        self.inner.atomic().is_some().then_some(self)
    }

    fn compare_and_write(&self) -> Option<&dyn AtomicCompareAndWrite> {
        self.inner.compare_and_write()
    }

    fn ownership(&self) -> Option<&dyn ExclusiveOwnership> {
        self.inner.ownership()
    }

    fn resize(&self) -> Option<&dyn Resize> {
        self.inner.resize()
    }

    fn is_read_only(&self) -> bool {
        self.inner.is_read_only()
    }

    fn io_tier(&self) -> String {
        format!("{}, with faults", self.inner.io_tier())
    }

    fn recover(&self) -> BoxFuture<'_, Result<(), Error>> {
        Box::pin(async move {
            if !self.sync_counts().is_some_and(|counts| counts.poisoned) {
                return self.flush().await;
            }
            let (effect, released) = self.draw(FaultOperation::Flush, None);
            match effect {
                Some(Effect::Fail(kind)) => return Err(self.error(kind, None)),
                Some(Effect::Hang) => self.hang(released).await,
                _ => {}
            }
            self.inner.recover().await?;
            if let Some(watcher) = self.watcher() {
                let failed = self.error(ErrorKind::Medium, None);
                watcher.recovering().map_err(|error| failed.because(error))?;
            }
            self.poisoned.store(false, SeqCst);
            Ok(())
        })
    }

    fn watch_poison(&self, watcher: Arc<dyn PoisonWatcher>) {
        self.inner.watch_poison(Arc::clone(&watcher));
        let mut mine = self.watcher.lock().unwrap_or_else(PoisonError::into_inner);
        *mine = Some(Arc::clone(&watcher));
        drop(mine);
        if self.poisoned.load(SeqCst) {
            watcher.poisoned();
        }
    }

    fn poison(&self) {
        self.poisoned.store(true, SeqCst);
        if let Some(watcher) = self.watcher() {
            watcher.poisoned();
        }
    }

    fn backing(&self) -> Option<Arc<dyn BackingProbe>> {
        self.inner.backing()
    }

    fn sync_counts(&self) -> Option<SyncCounts> {
        let mut counts = self.inner.sync_counts().unwrap_or_default();
        counts.poisoned |= self.poisoned.load(SeqCst);
        Some(counts)
    }
}

impl Sparse for FaultDevice {
    fn unmap(&self, range: BlockRange, durable: bool) -> BoxFuture<'_, Result<(), Error>> {
        Box::pin(async move {
            self.geometry().checked_range(self.name(), range)?;
            self.apply_effect(FaultOperation::Unmap, Some(range)).await?;
            self.inner_sparse()?.unmap(range, durable).await
        })
    }

    fn write_zeroes(
        &self,
        range: BlockRange,
        may_unmap: bool,
        durable: bool,
    ) -> BoxFuture<'_, Result<(), Error>> {
        Box::pin(async move {
            self.geometry().checked_range(self.name(), range)?;
            self.apply_effect(FaultOperation::WriteZeroes, Some(range)).await?;
            self.inner_sparse()?.write_zeroes(range, may_unmap, durable).await
        })
    }

    /// Clears a piece of one range, subject to the faults of its operation; clears several ranges
    /// whole.
    fn clear_piece(
        &self,
        ranges: Vec<BlockRange>,
        clear: Clear,
        durable: bool,
    ) -> BoxFuture<'_, Result<u64, Error>> {
        Box::pin(async move {
            let [first] = ranges[..] else {
                return clear_all(self, ranges, clear, durable).await;
            };
            self.geometry().checked_range(self.name(), first)?;
            let operation = match clear {
                Clear::Unmap => FaultOperation::Unmap,
                Clear::Zero { .. } => FaultOperation::WriteZeroes,
            };
            self.apply_effect(operation, Some(first)).await?;
            self.inner_sparse()?.clear_piece(ranges, clear, durable).await
        })
    }

    fn status(
        &self,
        range: BlockRange,
        extents_max: usize,
    ) -> BoxFuture<'_, Result<Vec<Extent>, Error>> {
        Box::pin(async move {
            self.geometry().checked_range(self.name(), range)?;
            self.apply_effect(FaultOperation::Status, Some(range)).await?;
            self.inner_sparse()?.status(range, extents_max).await
        })
    }

    fn granularity_bytes(&self) -> u32 {
        self.inner.sparse().map_or(self.geometry().block_bytes, Sparse::granularity_bytes)
    }

    fn space_usage(&self) -> Result<Option<SpaceUsage>, Error> {
        match self.state().space_usage {
            Some(space_usage) => Ok(Some(space_usage)),
            None => self.inner_sparse()?.space_usage(),
        }
    }
}

impl AtomicWrite for FaultDevice {
    fn limits(&self) -> AtomicLimits {
        let none = AtomicLimits { unit_bytes: self.geometry().block_bytes, bytes_max: 0 };
        self.inner.atomic().map_or(none, AtomicWrite::limits)
    }

    fn write_atomic(
        &self,
        range: BlockRange,
        from: Bytes,
        durable: bool,
    ) -> BoxFuture<'_, Result<(), Error>> {
        Box::pin(async move {
            self.limits().checked(self.geometry(), self.name(), range, from.len())?;
            if self.apply_effect(FaultOperation::Write, Some(range)).await?.is_some() {
                return Err(self.error(ErrorKind::Medium, Some(range)));
            }
            let none =
                || Error::new(ErrorKind::Medium, self.name(), "atomic writes are not supported");
            self.inner.atomic().ok_or_else(none)?.write_atomic(range, from, durable).await
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{BufferPool, MemoryDevice};
    use std::pin::pin;

    fn device(seed: u64) -> Arc<FaultDevice> {
        FaultDevice::new(Arc::new(MemoryDevice::new(1 << 16, 512, 512).unwrap()), seed)
    }

    fn block_on<T>(future: impl Future<Output = T>) -> T {
        let mut runtime = tokio::runtime::Builder::new_current_thread();
        runtime.enable_time().start_paused(true).build().unwrap().block_on(future)
    }

    fn write(device: &FaultDevice, lba: u64, count: u64) -> Result<(), ErrorKind> {
        let data = Bytes::from(vec![7; count as usize * 512]);
        block_on(device.write(BlockRange::new(lba, count), data, false)).map_err(|e| e.kind)
    }

    /// Goal: a fault occurs on its operation and blocks, after its passes, and as often as
    /// configured.
    #[test]
    fn scripted() {
        let device = device(0);
        let fault = Fault::new(Effect::Fail(ErrorKind::NoSpace)).on(FaultOperation::Write);
        device.inject(fault.at(BlockRange::new(10, 2)).after(1).times(2));
        let read = device.read(BlockRange::new(10, 1), BufferPool::default().take(512));
        assert!(block_on(read).is_ok());
        assert_eq!(write(&device, 9, 1), Ok(()));
        assert_eq!(write(&device, 12, 1), Ok(()));
        assert_eq!(write(&device, 11, 1), Ok(()), "the first passes");
        assert_eq!(write(&device, 9, 2), Err(ErrorKind::NoSpace));
        assert_eq!(write(&device, 11, 5), Err(ErrorKind::NoSpace));
        assert_eq!(write(&device, 11, 5), Ok(()));
        assert_eq!(write(&device, 11, 500), Err(ErrorKind::OutOfRange));
        assert_eq!((device.fired(), device.seen(FaultOperation::Write)), (2, 6));
    }

    /// Goal: a torn write leaves its first blocks new and its last ones old.
    #[test]
    fn torn() {
        let device = device(0);
        device.inject(Fault::new(Effect::Tear { blocks: 2 }).times(1));
        assert_eq!(write(&device, 0, 4), Err(ErrorKind::Medium));
        let all = device.read(BlockRange::new(0, 4), BufferPool::default().take(2048));
        let all = block_on(all).unwrap();
        assert_eq!((&all[..1024], &all[1024..]), (&[7; 1024][..], &[0; 1024][..]));
    }

    /// Goal: a failed flush poisons the disk until it is healed.
    #[test]
    fn failed_flush() {
        let device = device(0);
        let fault = Fault::new(Effect::Fail(ErrorKind::Medium)).on(FaultOperation::Flush);
        device.inject(fault.times(1));
        let kind = |result: Result<(), Error>| result.map_err(|e| e.kind);
        assert_eq!(kind(block_on(device.flush())), Err(ErrorKind::Medium));
        assert_eq!(kind(block_on(device.flush())), Err(ErrorKind::Poisoned));
        assert_eq!(write(&device, 0, 1), Err(ErrorKind::Poisoned));
        device.heal();
        assert_eq!(kind(block_on(device.flush())), Ok(()));
    }

    /// Goal: a hanging operation continues after its release, and a delayed one after its delay; a
    /// hanging future that is dropped is no longer counted.
    #[test]
    fn late() {
        let device = device(0);
        device.inject(Fault::new(Effect::Hang).on(FaultOperation::Flush).times(2));
        device
            .inject(Fault::new(Effect::Delay(Duration::from_secs(3600))).on(FaultOperation::Write));
        block_on(async {
            let mut flush = device.flush();
            let mut dropped = device.flush();
            for hanging in [&mut flush, &mut dropped] {
                assert!(futures_util::poll!(hanging).is_pending());
            }
            assert_eq!(device.hanging(), 2);
            drop(dropped);
            assert_eq!(device.hanging(), 1);
            device.release();
            flush.await.unwrap();
            assert_eq!(device.hanging(), 0);
            let begin = tokio::time::Instant::now();
            device.write(BlockRange::new(0, 1), Bytes::from(vec![1; 512]), false).await.unwrap();
            assert!(begin.elapsed() >= Duration::from_secs(3600));
        });
    }

    /// Goal: an operation that is released after its fault fired but before it hangs does not hang
    /// forever.
    #[test]
    fn released_early() {
        let device = device(0);
        device.inject(Fault::new(Effect::Hang));
        let (effect, released) = device.draw(FaultOperation::Flush, None);
        assert_eq!((effect, device.fired()), (Some(Effect::Hang), 1));
        device.heal();
        device.release();
        block_on(async { assert!(futures_util::poll!(pin!(device.hang(released))).is_ready()) });
        assert_eq!(device.hanging(), 0);
    }

    /// Goal: random faults follow the seed: the same in every run, at about the configured rate.
    #[test]
    fn random_faults_follow_the_seed() {
        let run = |seed| {
            let device = device(seed);
            device.inject(Fault::new(Effect::Fail(ErrorKind::Medium)).per_million(100_000));
            (0..1000).map(|_| write(&device, 0, 1).is_err()).collect::<Vec<_>>()
        };
        assert_eq!(run(1), run(1));
        assert_ne!(run(1), run(2));
        let failed = run(3).iter().filter(|failed| **failed).count();
        assert!((50..200).contains(&failed), "{failed} of 1000");
    }
}
