//! The lowest storage trait: a disk.

use crate::{
    BackingProbe, Buffer, BufferPool, CreatedFile, Error, ErrorKind, ExclusiveOwnership,
    PoisonWatcher, RelayMap, Resize, SyncCounts,
};
use bytes::Bytes;
use std::fmt;
use std::ops::Range;
use std::sync::Arc;

/// A boxed future that can be sent to another thread.
pub type BoxFuture<'a, T> = futures_util::future::BoxFuture<'a, T>;

/// The greatest length of a physical block.
pub const PHYSICAL_BLOCK_BYTES_MAX: u32 = 64 << 10;

/// The optimal transfer length that local disks report; a multiple of every physical block.
pub const OPTIMAL_TRANSFER_BYTES: u32 = 1 << 20;

/// Block lengths and size of a disk.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Geometry {
    /// Logical block length in bytes: 512, 1024, 2048 or 4096.
    pub block_bytes: u32,
    /// Number of logical blocks.
    pub block_count: u64,
    /// Physical block length in bytes, a power-of-two multiple of `block_bytes`.
    pub physical_block_bytes: u32,
    /// The optimal transfer length in bytes; a multiple of `physical_block_bytes`.
    pub optimal_transfer_bytes: u32,
}

impl Geometry {
    /// Computes the geometry of a disk of `size_bytes`; `device` is its name in messages.
    ///
    /// # Errors
    /// `Open` for a block length other than 512, 1024, 2048 or 4096, for a physical block that is
    /// not a power-of-two multiple of it up to 64 KiB, and for a size that is 0 or no multiple of
    /// the block length.
    pub fn new(
        device: &str,
        size_bytes: u64,
        block_bytes: u32,
        physical_block_bytes: u32,
    ) -> Result<Self, Error> {
        let refuse = |what: String| Err(Error::new(ErrorKind::Open, device, what));
        if !matches!(block_bytes, 512 | 1024 | 2048 | 4096) {
            return refuse(format!(
                "the block size must be 512, 1024, 2048 or 4096 bytes, not {block_bytes}"
            ));
        }
        if physical_block_bytes < block_bytes
            || !physical_block_bytes.is_power_of_two()
            || physical_block_bytes > PHYSICAL_BLOCK_BYTES_MAX
        {
            return refuse(format!(
                "the physical block size must be a power of two from the block size \
                 ({block_bytes}) to {PHYSICAL_BLOCK_BYTES_MAX}, not {physical_block_bytes}"
            ));
        }
        if size_bytes == 0 {
            return refuse(
                "it is empty: a disk must have at least one block (extend the file with truncate \
                 -s 1G FILE)"
                    .into(),
            );
        }
        if !size_bytes.is_multiple_of(u64::from(block_bytes)) {
            return refuse(format!(
                "its size of {size_bytes} bytes is not a multiple of the block size of \
                 {block_bytes} bytes"
            ));
        }
        Ok(Self {
            block_bytes,
            block_count: size_bytes / u64::from(block_bytes),
            physical_block_bytes,
            optimal_transfer_bytes: OPTIMAL_TRANSFER_BYTES,
        })
    }

    /// Returns the bytes of `range`; `None` when a block lies past the end.
    #[inline]
    pub fn byte_range(&self, range: BlockRange) -> Option<Range<u64>> {
        let end = range.lba.checked_add(range.count)?;
        if end > self.block_count {
            return None;
        }
        let block = u64::from(self.block_bytes);
        Some(range.lba.checked_mul(block)?..end.checked_mul(block)?)
    }

    /// Returns the bytes of `range` after the checks that every device makes before I/O.
    /// `buffer_bytes` is the length of the caller's buffer; with `exact` the buffer must not be
    /// longer than the range.
    ///
    /// # Errors
    /// `OutOfRange`, `Unaligned`.
    #[inline]
    pub fn checked(
        &self,
        device: &str,
        range: BlockRange,
        buffer_bytes: usize,
        exact: bool,
    ) -> Result<Range<u64>, Error> {
        let bytes = self.checked_range(device, range)?;
        let need = bytes.end - bytes.start;
        let have = buffer_bytes as u64;
        if have < need || (exact && have != need) {
            return Err(unaligned(device, range, have, need));
        }
        Ok(bytes)
    }

    /// Returns the bytes of `range`.
    ///
    /// # Errors
    /// `OutOfRange`.
    #[inline]
    pub fn checked_range(&self, device: &str, range: BlockRange) -> Result<Range<u64>, Error> {
        self.byte_range(range).ok_or_else(|| self.out_of_range(device, range))
    }

    #[cold]
    fn out_of_range(&self, device: &str, range: BlockRange) -> Error {
        let what = format!("past the end of {} blocks", self.block_count);
        Error::new(ErrorKind::OutOfRange, device, what).at(range)
    }

    /// Returns the size of the disk in bytes.
    pub const fn size_bytes(&self) -> u64 {
        self.block_count * self.block_bytes as u64
    }
}

#[cold]
fn unaligned(device: &str, range: BlockRange, have: u64, need: u64) -> Error {
    let what = format!("a buffer of {have} bytes for blocks of {need} bytes");
    Error::new(ErrorKind::Unaligned, device, what).at(range)
}

/// A run of consecutive logical blocks.
#[derive(Clone, Copy, Debug, Eq, PartialEq, Hash)]
pub struct BlockRange {
    /// First block.
    pub lba: u64,
    /// Number of blocks; 0 is allowed and does nothing.
    pub count: u64,
}

impl BlockRange {
    /// Creates the range of `count` blocks from `lba` on.
    pub const fn new(lba: u64, count: u64) -> Self {
        Self { lba, count }
    }
}

/// Allocation state of a run of blocks. SBC: GET LBA STATUS.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum ExtentState {
    /// The blocks hold data, or their state is unknown.
    Mapped,
    /// The blocks are deallocated: they read as zeroes and use no space.
    Unmapped,
}

/// A run of blocks in one state.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Extent {
    /// The blocks of the run.
    pub range: BlockRange,
    /// The state of the blocks.
    pub state: ExtentState,
}

/// State of the connection to a device that another machine provides.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum DeviceLink {
    /// The other machine answers.
    Connected,
    /// The connection is lost and is being re-established; commands wait for a limited time.
    Waiting,
    /// The other machine refuses the connection, or provides another device now. Commands fail.
    Failed,
}

impl DeviceLink {
    /// All states.
    pub const ALL: [Self; 3] = [Self::Connected, Self::Waiting, Self::Failed];

    /// Returns the name of the state in status and metrics.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Connected => "connected",
            Self::Waiting => "waiting",
            Self::Failed => "failed",
        }
    }
}

/// A disk. Handles are shared by all cores; futures are `Send`.
///
/// Overlapping writes may interleave by block, but never within a block. Dropping a future may or
/// may not stop the operation; buffers stay alive until the operating system no longer uses them. A
/// device that queues transfers records in their [`IoContext`](crate::IoContext) whether they can
/// be cancelled.
pub trait BlockDevice: Send + Sync + fmt::Debug + 'static {
    /// Returns the name of the disk for messages: a path or a URL.
    fn name(&self) -> &str;

    /// Returns the geometry. Only a [`Resize`] changes it, and only the number of blocks; a device
    /// of another machine may also grow by itself.
    fn geometry(&self) -> Geometry;

    /// Reads `range` into the first bytes of `into`, whose length is at least that of the range.
    ///
    /// # Errors
    /// `OutOfRange`, `Unaligned` (buffer too short) before any I/O · `Medium` from the device.
    fn read(&self, range: BlockRange, into: Buffer) -> BoxFuture<'_, Result<Buffer, Error>>;

    /// Reads `range` into the first bytes of `into`, as [`read`](Self::read), if no waiting is
    /// needed. Returns `false` when the read would wait or fails; `read` then reports the error.
    fn try_read_now(&self, _range: BlockRange, _into: &mut [u8]) -> bool {
        false
    }

    /// Writes `from`, whose length is exactly that of `range`. The write is accepted when the
    /// future completes; with `durable` the data is on stable storage by then.
    ///
    /// # Errors
    /// `OutOfRange`, `Unaligned` before any I/O · `ReadOnly` · `NoSpace` · `Medium` · `Poisoned`
    /// after a sync has failed once.
    fn write(
        &self,
        range: BlockRange,
        from: Bytes,
        durable: bool,
    ) -> BoxFuture<'_, Result<(), Error>>;

    /// Writes `from`, as [`write`](Self::write), if no waiting is needed. Returns `false` when the
    /// write would wait or fails; part of `from` may have been written, and `write` then reports
    /// the error.
    fn try_write_now(&self, _range: BlockRange, _from: &[u8], _durable: bool) -> bool {
        false
    }

    /// Puts all writes that completed before the call on stable storage.
    ///
    /// # Errors
    /// `Medium`; from then on every write and flush gives `Poisoned`, until
    /// [`recover`](Self::recover).
    fn flush(&self) -> BoxFuture<'_, Result<(), Error>>;

    /// Returns the number of times that acknowledged writes, which no flush had made durable, may
    /// have been lost. Only one flush fails after a loss; this count reports the loss to the other
    /// users of the device. Returns `None` for a device that cannot lose such writes, or refuses
    /// all further writes and flushes after a loss.
    fn cache_losses(&self) -> Option<u64> {
        None
    }

    /// Sets the pool from which the device takes memory for its own work, before its first use.
    /// Without this call the device has a pool of its own.
    fn set_buffers(&self, _buffers: &BufferPool) {}

    /// Returns the file that was created for this device, so that the caller can remove it again.
    /// Returns `None` if the file existed before, and from the second call on.
    fn take_created(&self) -> Option<CreatedFile> {
        None
    }

    /// Starts to load `range` into the cache without waiting. This is a hint, on behalf of the
    /// owner of the current [`IoContext`](crate::IoContext).
    fn prefetch(&self, _range: BlockRange) {}

    /// Returns the interface for deallocation, if the device supports it.
    fn sparse(&self) -> Option<&dyn Sparse> {
        None
    }

    /// Returns the interface for atomic writes, if the device supports them.
    fn atomic(&self) -> Option<&dyn AtomicWrite> {
        None
    }

    /// Returns the interface for COMPARE AND WRITE, if the device has other users than this process
    /// and supports it.
    fn compare_and_write(&self) -> Option<&dyn AtomicCompareAndWrite> {
        None
    }

    /// Returns the interface for exclusive ownership, if other machines can write to the device.
    fn ownership(&self) -> Option<&dyn ExclusiveOwnership> {
        None
    }

    /// Returns the interface for changes of size, if the device supports them.
    fn resize(&self) -> Option<&dyn Resize> {
        None
    }

    /// Returns the translation to LUNs of other targets, if a relay may pass transfers on to them.
    fn relay_map(&self) -> Option<&dyn RelayMap> {
        None
    }

    /// Returns true when the disk refuses writes.
    fn is_read_only(&self) -> bool {
        false
    }

    /// Names the I/O methods in use, for status lines: `inline + io_uring`, `direct, pool`,
    /// `memory`.
    fn io_tier(&self) -> String;

    /// Accepts writes again after a failed sync. Only an operator's decision may lead to this call.
    /// The system's cache of the disk is dropped, so that later reads return the contents of the
    /// medium: data written since the last good sync may be missing. On a disk that is not poisoned
    /// this is an ordinary flush, which poisons the disk when it fails.
    ///
    /// # Errors
    /// `Medium` when syncs still fail: the disk stays poisoned. Other errors as of a flush.
    fn recover(&self) -> BoxFuture<'_, Result<(), Error>> {
        self.flush()
    }

    /// Registers a watcher that is notified when the disk becomes poisoned, and at once if it is
    /// poisoned already. A disk has one watcher at a time; a disk that cannot be poisoned never
    /// notifies it.
    fn watch_poison(&self, _watcher: Arc<dyn PoisonWatcher>) {}

    /// Poisons the disk because it was poisoned when it was last open and has not been recovered.
    /// The system's cache is dropped, as by [`recover`](Self::recover). This call blocks.
    fn poison(&self) {}

    /// Returns a probe of the file behind the disk; `None` if there is no file.
    fn backing(&self) -> Option<Arc<dyn BackingProbe>> {
        None
    }

    /// Returns the state of the connection to the device; `None` for a device of this machine.
    fn link(&self) -> Option<DeviceLink> {
        None
    }

    /// Returns counts of the syncs since the disk was opened; `None` if it does not count them.
    fn sync_counts(&self) -> Option<SyncCounts> {
        None
    }
}

/// The method by which blocks are made to read as zeroes.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Clear {
    /// Deallocation, as by [`Sparse::unmap`].
    Unmap,
    /// Writing of zeroes, as by [`Sparse::write_zeroes`].
    Zero {
        /// True when deallocation is allowed.
        may_unmap: bool,
    },
}

/// Operations of a disk that allocates space on demand.
pub trait Sparse: Send + Sync {
    /// Deallocates `range`, which then reads as zeroes. Parts smaller than the granularity are
    /// zeroed.
    fn unmap(&self, range: BlockRange, durable: bool) -> BoxFuture<'_, Result<(), Error>>;

    /// Deallocates all these ranges in order and stops at the first that fails.
    fn unmap_all(
        &self,
        ranges: Vec<BlockRange>,
        durable: bool,
    ) -> BoxFuture<'_, Result<(), Error>> {
        Box::pin(async move {
            for (at, range) in ranges.iter().enumerate() {
                self.unmap(*range, durable && at + 1 == ranges.len()).await?;
            }
            Ok(())
        })
    }

    /// Makes `range` read as zeroes. With `may_unmap` the space may be deallocated; otherwise it is
    /// kept.
    fn write_zeroes(
        &self,
        range: BlockRange,
        may_unmap: bool,
        durable: bool,
    ) -> BoxFuture<'_, Result<(), Error>>;

    /// Clears blocks from the beginning of `ranges`, at most as many as the device clears without a
    /// pause. The ranges are in order and do not touch. Returns the block after the last cleared
    /// one. With `durable`, the call that clears the last block also puts the blocks cleared by
    /// earlier calls on stable storage.
    ///
    /// The ranges are not cleared as one operation: a caller that repeats this until all are
    /// cleared may let other commands change the blocks between two calls. A device without pauses
    /// clears all ranges at once.
    fn clear_piece(
        &self,
        ranges: Vec<BlockRange>,
        clear: Clear,
        durable: bool,
    ) -> BoxFuture<'_, Result<u64, Error>> {
        Box::pin(clear_all(self, ranges, clear, durable))
    }

    /// Returns the state of the blocks from `range.lba` on, as contiguous extents in order: at most
    /// `extents_max` of them, and none beyond `range`.
    fn status(
        &self,
        range: BlockRange,
        extents_max: usize,
    ) -> BoxFuture<'_, Result<Vec<Extent>, Error>>;

    /// Returns the granularity: deallocation works on aligned runs of this many bytes.
    fn granularity_bytes(&self) -> u32;

    /// Returns the space that the disk uses and has available, if known. The call queries the
    /// system and may block.
    ///
    /// # Errors
    /// `Medium` when the system reports an error.
    fn space_usage(&self) -> Result<Option<SpaceUsage>, Error> {
        Ok(None)
    }
}

/// Clears all ranges and returns the first block behind them.
pub(crate) async fn clear_all<S: Sparse + ?Sized>(
    sparse: &S,
    ranges: Vec<BlockRange>,
    clear: Clear,
    durable: bool,
) -> Result<u64, Error> {
    let end = ranges.last().map_or(0, |range| range.lba.saturating_add(range.count));
    match clear {
        Clear::Unmap => sparse.unmap_all(ranges, durable).await?,
        Clear::Zero { may_unmap } => {
            for (at, range) in ranges.iter().enumerate() {
                let durable = durable && at + 1 == ranges.len();
                sparse.write_zeroes(*range, may_unmap, durable).await?;
            }
        }
    }
    Ok(end)
}

/// Space that a sparse disk uses and has available; other files may share the available space.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct SpaceUsage {
    /// Bytes allocated by this disk.
    pub used_bytes: u64,
    /// Bytes that are still available.
    pub available_bytes: u64,
    /// Bytes allocated by any file, or available: the space that this disk would have if it were
    /// the only file.
    pub total_bytes: u64,
}

/// Limits of atomic writes. SBC-4: WRITE ATOMIC (16).
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct AtomicLimits {
    /// Alignment of the start and of the length of a write; a power-of-two multiple of the logical
    /// block length.
    pub unit_bytes: u32,
    /// Maximum length of a write; a multiple of `unit_bytes`.
    pub bytes_max: u32,
}

impl AtomicLimits {
    /// Returns the bytes of `range` after the checks of every write and of these limits.
    ///
    /// # Errors
    /// The errors of [`Geometry::checked`]; `Unaligned` for a range that cannot be written
    /// atomically.
    pub fn checked(
        self,
        geometry: Geometry,
        device: &str,
        range: BlockRange,
        buffer_bytes: usize,
    ) -> Result<Range<u64>, Error> {
        let bytes = geometry.checked(device, range, buffer_bytes, true)?;
        let unit = u64::from(self.unit_bytes);
        let len = bytes.end - bytes.start;
        let fits = len <= u64::from(self.bytes_max);
        if fits && bytes.start.is_multiple_of(unit) && len.is_multiple_of(unit) {
            return Ok(bytes);
        }
        let what = format!(
            "an atomic write must be aligned to {unit} bytes and have at most {} bytes",
            self.bytes_max
        );
        Err(Error::new(ErrorKind::Unaligned, device, what).at(range))
    }
}

/// Operations of a disk that can write several blocks as one.
///
/// If an atomic write is interrupted (the process ends, power fails, an error occurs), either all
/// of its blocks are written or none. No other operation of this device comes between its blocks:
/// one `read` returns all of them old or all of them new. A `write` or `unmap` of the same blocks
/// at the same time is applied as a whole, before or after the atomic write.
pub trait AtomicWrite: Send + Sync {
    /// Returns the limits of atomic writes.
    fn limits(&self) -> AtomicLimits;

    /// Writes as [`BlockDevice::write`], all blocks or none.
    ///
    /// # Errors
    /// The errors of `write`; `Unaligned` also for a range that the limits exclude. Nothing is
    /// written then.
    fn write_atomic(
        &self,
        range: BlockRange,
        from: Bytes,
        durable: bool,
    ) -> BoxFuture<'_, Result<(), Error>>;
}

/// Atomic compare and write on a disk of another machine: atomic also for the disk's other users.
/// SBC-3: COMPARE AND WRITE.
pub trait AtomicCompareAndWrite: Send + Sync {
    /// Returns the maximum number of blocks of one operation.
    fn blocks_max(&self) -> u8;

    /// Compares the blocks of `range` with the first half of `old_and_new` and, if they are equal,
    /// writes the second half. Returns the offset in bytes of the first difference; `None` if it
    /// has written.
    ///
    /// # Errors
    /// The errors of [`BlockDevice::write`].
    fn compare_and_write(
        &self,
        range: BlockRange,
        old_and_new: Bytes,
        durable: bool,
    ) -> BoxFuture<'_, Result<Option<u64>, Error>>;
}
