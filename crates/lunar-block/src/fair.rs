//! A decorator that shares a slow device fairly between the owners of its commands.

mod contention;
mod queue;
#[cfg(test)]
mod tests;

use crate::{
    AtomicCompareAndWrite, AtomicLimits, AtomicWrite, BackingProbe, BlockDevice, BlockRange,
    BoxFuture, Buffer, BufferPool, Clear, CreatedFile, DeviceLink, Error, ErrorKind,
    ExclusiveOwnership, Extent, Geometry, IoContext, PoisonWatcher, RelayMap, Resize, SpaceUsage,
    Sparse, SyncCounts,
};
use bytes::Bytes;
use futures_util::FutureExt;
use queue::{FairLimits, FairPermit, FairQueue};
use std::future::poll_fn;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

/// Limits of reads, writes, clears and flushes. Together with allocation queries they fit into a
/// command window of 128.
const COMMANDS: FairLimits = FairLimits {
    owners_max: 32,
    shared_max: 80,
    contended_max: 26,
    owner_bytes_max: 8 << 20,
    contended_bytes_max: 6 << 20,
    bytes_max: 32 << 20,
};

/// Limits of allocation queries (GET LBA STATUS), each of which may take another machine long.
const ALLOCATION_QUERIES: FairLimits =
    FairLimits { owners_max: 8, shared_max: 8, contended_max: 3, ..COMMANDS };

/// Maximum number of bytes that a clear counts as. A clear moves no data, but may cost the device
/// as much work as a write. The limit lets the owner of a long clear have other commands in
/// progress.
const CLEAR_BYTES_MAX: u64 = 2 << 20;

/// A device that passes a limited number of commands at a time to an inner device, such as a LUN of
/// another target. Waiting commands are passed on in round-robin order of their owners, which their
/// [`IoContext`] names.
///
/// A command that waits keeps only its own data; it leaves the queue when its future is dropped. A
/// command that was passed on keeps its permit until the inner device has completed it, also if its
/// future is dropped.
#[derive(Debug)]
pub struct FairDevice {
    inner: Arc<dyn BlockDevice>,
    commands: Arc<FairQueue>,
    allocation_queries: Arc<FairQueue>,
}

impl FairDevice {
    /// Wraps `inner`.
    pub fn new(inner: Arc<dyn BlockDevice>) -> Arc<Self> {
        let commands = FairQueue::new(COMMANDS);
        Arc::new(Self { inner, commands, allocation_queries: FairQueue::new(ALLOCATION_QUERIES) })
    }

    /// Returns the inner device.
    pub fn inner(&self) -> &Arc<dyn BlockDevice> {
        &self.inner
    }

    /// Returns the bytes that a clear of these ranges counts as.
    fn clear_bytes(&self, ranges: &[BlockRange]) -> usize {
        let blocks = ranges.iter().fold(0_u64, |sum, range| sum.saturating_add(range.count));
        let bytes = blocks.saturating_mul(self.geometry().block_bytes.into());
        bytes.min(CLEAR_BYTES_MAX) as usize
    }

    /// Runs a command that moves `bytes` when it has a permit in `queue`.
    fn run<T, F>(
        &self,
        queue: &Arc<FairQueue>,
        bytes: usize,
        command: impl FnOnce(Arc<dyn BlockDevice>) -> F + Send + 'static,
    ) -> BoxFuture<'static, Result<T, Error>>
    where
        T: Send + 'static,
        F: Future<Output = Result<T, Error>> + Send + 'static,
    {
        let (queue, inner) = (Arc::clone(queue), Arc::clone(&self.inner));
        Box::pin(async move {
            let (permit, begun) = admit(&queue, bytes, inner.name()).await?;
            let began = permit.began;
            let work = command(Arc::clone(&inner)).boxed();
            let ended = StartedCommand { work: Some(work), permit: Some(permit) }.await;
            if let Some(context) = begun {
                context.end();
            }
            if ended.as_ref().is_err_and(|error| error.kind == ErrorKind::Disconnected) {
                queue.fail_waiting(began, inner.name());
            }
            ended
        })
    }
}

/// Waits for a permit for a command of the current [`IoContext`]. Returns the context if its
/// transfer was marked as begun.
async fn admit(
    queue: &Arc<FairQueue>,
    bytes: usize,
    device: &str,
) -> Result<(FairPermit, Option<Arc<IoContext>>), Error> {
    let context = IoContext::current();
    let owner = context.as_ref().map(|context| Arc::clone(context.owner()));
    let is_urgent = context.as_ref().is_some_and(|context| context.has_foreign_waiters());
    let mut queued = match queue.enter(owner, bytes, is_urgent) {
        Ok(permit) => return Ok((permit, None)),
        Err(queued) => queued,
    };
    if let Some(context) = &context {
        context.allow_cancel();
    }
    let admitted = poll_fn(|task| {
        if context.as_ref().is_some_and(|context| context.has_foreign_waiters()) {
            queued.promote();
        }
        Pin::new(&mut queued.admitted).poll(task)
    })
    .await;
    let cancelled = || Error::new(ErrorKind::Medium, device, "the command was cancelled");
    let permit = admitted.map_err(|_| cancelled())??;
    match &context {
        Some(context) if !context.begin() => Err(cancelled()),
        _ => Ok((permit, context)),
    }
}

/// A command that was passed to the inner device. If it is dropped, it is completed in a task, and
/// keeps its permit until then, because the inner device still works on it.
struct StartedCommand<T: Send + 'static> {
    work: Option<BoxFuture<'static, T>>,
    permit: Option<FairPermit>,
}

impl<T: Send + 'static> Future for StartedCommand<T> {
    type Output = T;

    fn poll(mut self: Pin<&mut Self>, task: &mut Context<'_>) -> Poll<T> {
        let Some(work) = &mut self.work else { return Poll::Pending };
        let done = work.as_mut().poll(task);
        if done.is_ready() {
            self.work = None;
            self.permit = None;
        }
        done
    }
}

impl<T: Send + 'static> Drop for StartedCommand<T> {
    fn drop(&mut self) {
        let (work, permit) = (self.work.take(), self.permit.take());
        // Without a runtime the command is dropped.
        if let (Some(work), Ok(runtime)) = (work, tokio::runtime::Handle::try_current()) {
            runtime.spawn(async move {
                drop(work.await);
                drop(permit);
            });
        }
    }
}

fn without(device: &dyn BlockDevice, what: &str) -> Error {
    Error::new(ErrorKind::Medium, device.name(), what)
}

fn sparse_of(device: &dyn BlockDevice) -> Result<&dyn Sparse, Error> {
    device.sparse().ok_or_else(|| without(device, "it does not support deallocation"))
}

impl BlockDevice for FairDevice {
    fn name(&self) -> &str {
        self.inner.name()
    }

    fn geometry(&self) -> Geometry {
        self.inner.geometry()
    }

    fn read(&self, range: BlockRange, into: Buffer) -> BoxFuture<'_, Result<Buffer, Error>> {
        self.run(
            &self.commands,
            into.len(),
            move |inner| async move { inner.read(range, into).await },
        )
    }

    fn try_read_now(&self, range: BlockRange, into: &mut [u8]) -> bool {
        self.inner.try_read_now(range, into)
    }

    fn write(
        &self,
        range: BlockRange,
        from: Bytes,
        durable: bool,
    ) -> BoxFuture<'_, Result<(), Error>> {
        self.run(&self.commands, from.len(), move |inner| async move {
            inner.write(range, from, durable).await
        })
    }

    fn try_write_now(&self, range: BlockRange, from: &[u8], durable: bool) -> bool {
        self.inner.try_write_now(range, from, durable)
    }

    /// Flushes the inner device. A loss that is found while the flush waits makes it fail, although
    /// it was reported to another flush.
    fn flush(&self) -> BoxFuture<'_, Result<(), Error>> {
        let losses = self.inner.cache_losses();
        self.run(&self.commands, 0, move |inner| async move {
            inner.flush().await?;
            if inner.cache_losses() == losses {
                return Ok(());
            }
            let what = "acknowledged writes that were not flushed may be lost";
            Err(Error::new(ErrorKind::Medium, inner.name(), what))
        })
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
        self.inner.compare_and_write().is_some().then_some(self)
    }

    fn ownership(&self) -> Option<&dyn ExclusiveOwnership> {
        self.inner.ownership()
    }

    fn resize(&self) -> Option<&dyn Resize> {
        self.inner.resize()
    }

    /// Relayed transfers bypass the queue: each connection of a host has its own connections to
    /// storage.
    fn relay_map(&self) -> Option<&dyn RelayMap> {
        self.inner.relay_map()
    }

    fn is_read_only(&self) -> bool {
        self.inner.is_read_only()
    }

    fn io_tier(&self) -> String {
        self.inner.io_tier()
    }

    fn recover(&self) -> BoxFuture<'_, Result<(), Error>> {
        self.inner.recover()
    }

    fn watch_poison(&self, watcher: Arc<dyn PoisonWatcher>) {
        self.inner.watch_poison(watcher);
    }

    fn poison(&self) {
        self.inner.poison();
    }

    fn backing(&self) -> Option<Arc<dyn BackingProbe>> {
        self.inner.backing()
    }

    fn link(&self) -> Option<DeviceLink> {
        self.inner.link()
    }

    fn sync_counts(&self) -> Option<SyncCounts> {
        self.inner.sync_counts()
    }
}

impl Sparse for FairDevice {
    fn unmap(&self, range: BlockRange, durable: bool) -> BoxFuture<'_, Result<(), Error>> {
        self.run(&self.commands, self.clear_bytes(&[range]), move |inner| async move {
            sparse_of(&*inner)?.unmap(range, durable).await
        })
    }

    fn unmap_all(
        &self,
        ranges: Vec<BlockRange>,
        durable: bool,
    ) -> BoxFuture<'_, Result<(), Error>> {
        self.run(&self.commands, self.clear_bytes(&ranges), move |inner| async move {
            sparse_of(&*inner)?.unmap_all(ranges, durable).await
        })
    }

    fn write_zeroes(
        &self,
        range: BlockRange,
        may_unmap: bool,
        durable: bool,
    ) -> BoxFuture<'_, Result<(), Error>> {
        self.run(&self.commands, self.clear_bytes(&[range]), move |inner| async move {
            sparse_of(&*inner)?.write_zeroes(range, may_unmap, durable).await
        })
    }

    fn clear_piece(
        &self,
        ranges: Vec<BlockRange>,
        clear: Clear,
        durable: bool,
    ) -> BoxFuture<'_, Result<u64, Error>> {
        self.run(&self.commands, self.clear_bytes(&ranges), move |inner| async move {
            sparse_of(&*inner)?.clear_piece(ranges, clear, durable).await
        })
    }

    fn status(
        &self,
        range: BlockRange,
        extents_max: usize,
    ) -> BoxFuture<'_, Result<Vec<Extent>, Error>> {
        self.run(&self.allocation_queries, 0, move |inner| async move {
            sparse_of(&*inner)?.status(range, extents_max).await
        })
    }

    fn granularity_bytes(&self) -> u32 {
        self.inner.sparse().map_or(self.geometry().block_bytes, Sparse::granularity_bytes)
    }

    fn space_usage(&self) -> Result<Option<SpaceUsage>, Error> {
        sparse_of(&*self.inner)?.space_usage()
    }
}

impl AtomicWrite for FairDevice {
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
        self.run(&self.commands, from.len(), move |inner| async move {
            let none = || without(&*inner, "atomic writes are not supported");
            inner.atomic().ok_or_else(none)?.write_atomic(range, from, durable).await
        })
    }
}

impl AtomicCompareAndWrite for FairDevice {
    fn blocks_max(&self) -> u8 {
        self.inner.compare_and_write().map_or(0, AtomicCompareAndWrite::blocks_max)
    }

    fn compare_and_write(
        &self,
        range: BlockRange,
        old_and_new: Bytes,
        durable: bool,
    ) -> BoxFuture<'_, Result<Option<u64>, Error>> {
        self.run(&self.commands, old_and_new.len(), move |inner| async move {
            let none = || without(&*inner, "COMPARE AND WRITE is not supported");
            let compares = inner.compare_and_write().ok_or_else(none)?;
            compares.compare_and_write(range, old_and_new, durable).await
        })
    }
}
