//! The bottom trait: a disk.

use crate::{
    BackingProbe, Buffer, BufferPool, CreatedFile, Error, ErrorKind, PoisonWatcher, Resize,
    SyncCounts,
};
use bytes::Bytes;
use std::fmt;
use std::ops::Range;
use std::sync::Arc;

/// A boxed future that may cross threads.
pub type BoxFuture<'a, T> = futures_util::future::BoxFuture<'a, T>;

/// The longest physical block.
pub const PHYSICAL_BLOCK_BYTES_MAX: u32 = 64 << 10;

/// The transfer length local disks name as a good one; a multiple of every physical block.
pub const OPTIMAL_TRANSFER_BYTES: u32 = 1 << 20;

/// Shape of a disk.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Geometry {
    /// Logical block length in bytes: 512, 1024, 2048 or 4096.
    pub block_bytes: u32,
    /// How many logical blocks.
    pub block_count: u64,
    /// Physical block length in bytes, a power-of-two multiple of `block_bytes`.
    pub physical_block_bytes: u32,
    /// A good transfer length in bytes; a multiple of `physical_block_bytes`.
    pub optimal_transfer_bytes: u32,
}

impl Geometry {
    /// The shape of a disk of `size_bytes`; `device` is its name in messages.
    ///
    /// # Errors
    /// `Open` for a block length that is not 512, 1024, 2048 or 4096, a physical block that is no
    /// power-of-two multiple of it up to 64 KiB, and a size of 0 or with a part of a block.
    pub fn new(
        device: &str,
        size_bytes: u64,
        block_bytes: u32,
        physical_block_bytes: u32,
    ) -> Result<Self, Error> {
        let refuse = |what: String| Err(Error::new(ErrorKind::Open, device, what));
        if !matches!(block_bytes, 512 | 1024 | 2048 | 4096) {
            return refuse(format!(
                "a block cannot have {block_bytes} bytes; 512, 1024, 2048 and 4096 are possible"
            ));
        }
        if physical_block_bytes < block_bytes
            || !physical_block_bytes.is_power_of_two()
            || physical_block_bytes > PHYSICAL_BLOCK_BYTES_MAX
        {
            return refuse(format!(
                "a physical block cannot have {physical_block_bytes} bytes; powers of two from \
                 the block length ({block_bytes}) to {PHYSICAL_BLOCK_BYTES_MAX} are possible"
            ));
        }
        if size_bytes == 0 {
            return refuse(
                "it is empty: a disk has at least one block (truncate -s 1G FILE makes it longer)"
                    .into(),
            );
        }
        if !size_bytes.is_multiple_of(u64::from(block_bytes)) {
            return refuse(format!(
                "its size of {size_bytes} bytes is not a multiple of the block length of \
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

    /// The bytes of `range`; `None` when a block of it lies past the end.
    #[inline]
    pub fn byte_range(&self, range: BlockRange) -> Option<Range<u64>> {
        let end = range.lba.checked_add(range.count)?;
        if end > self.block_count {
            return None;
        }
        let block = u64::from(self.block_bytes);
        Some(range.lba.checked_mul(block)?..end.checked_mul(block)?)
    }

    /// The bytes of `range`, with the checks every device makes before I/O. `buffer_bytes` is the
    /// length of the buffer at hand; with `exact` it must not be longer than the range.
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

    /// The bytes of `range`.
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

    /// Size of the disk in bytes.
    pub const fn size_bytes(&self) -> u64 {
        self.block_count * self.block_bytes as u64
    }
}

#[cold]
fn unaligned(device: &str, range: BlockRange, have: u64, need: u64) -> Error {
    let what = format!("a buffer of {have} bytes for blocks of {need} bytes");
    Error::new(ErrorKind::Unaligned, device, what).at(range)
}

/// A run of logical blocks.
#[derive(Clone, Copy, Debug, Eq, PartialEq, Hash)]
pub struct BlockRange {
    /// First block.
    pub lba: u64,
    /// How many; 0 is allowed and does nothing.
    pub count: u64,
}

impl BlockRange {
    /// `count` blocks from `lba` on.
    pub const fn new(lba: u64, count: u64) -> Self {
        Self { lba, count }
    }
}

/// What is known of a run of blocks. SBC: GET LBA STATUS.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum ExtentState {
    /// Data was written, or it cannot be told.
    Mapped,
    /// Deallocated: reads as zeroes, takes no room.
    Unmapped,
}

/// A run of blocks in one state.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Extent {
    /// Which blocks.
    pub range: BlockRange,
    /// Their state.
    pub state: ExtentState,
}

/// A disk. Handles are shared by all cores; futures are `Send`.
///
/// Overlapping writes may interleave by block, never within one. Dropping a future may or may not
/// stop what it began; buffers stay alive until the operating system is through with them. A device
/// that queues transfers says in their [`IoContext`](crate::IoContext) which may be cancelled.
pub trait BlockDevice: Send + Sync + fmt::Debug + 'static {
    /// What to call it in messages: a path, a URL.
    fn name(&self) -> &str;

    /// Its shape; only a [`Resize`] changes it, and only the count of blocks.
    fn geometry(&self) -> Geometry;

    /// Reads `range` into the first bytes of `into`, whose length is at least that of the range.
    ///
    /// # Errors
    /// `OutOfRange`, `Unaligned` (buffer too short) before any I/O · `Medium` from the device.
    fn read(&self, range: BlockRange, into: Buffer) -> BoxFuture<'_, Result<Buffer, Error>>;

    /// Reads `range` into the first bytes of `into`, as [`read`](Self::read), if that needs no
    /// waiting; `false`: it does, or fails, which `read` is to say.
    fn try_read_now(&self, _range: BlockRange, _into: &mut [u8]) -> bool {
        false
    }

    /// Writes `from`, exactly as long as `range`. Returned, it is accepted; with `durable` it is on
    /// stable storage.
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

    /// Writes `from`, as [`write`](Self::write), if that needs no waiting; `false`: it does, or
    /// fails, which `write` is to say. Some of it may have been written then.
    fn try_write_now(&self, _range: BlockRange, _from: &[u8], _durable: bool) -> bool {
        false
    }

    /// All writes that returned before are on stable storage after.
    ///
    /// # Errors
    /// `Medium`; from then on every write and flush gives `Poisoned`, until
    /// [`recover`](Self::recover).
    fn flush(&self) -> BoxFuture<'_, Result<(), Error>>;

    /// Says where the device takes memory for work of its own from, before it is first used; else
    /// it has a pool of its own.
    fn set_buffers(&self, _buffers: &BufferPool) {}

    /// The file that was made for this device; `None` if it was there before, and from the second
    /// call on. Whoever opens the device may have it removed again.
    fn take_created(&self) -> Option<CreatedFile> {
        None
    }

    /// Asks for `range` to be brought near, without waiting for it. A hint, for the owner of the
    /// current [`IoContext`](crate::IoContext).
    fn prefetch(&self, _range: BlockRange) {}

    /// Deallocation, where the device can.
    fn sparse(&self) -> Option<&dyn Sparse> {
        None
    }

    /// Atomic writes, where the device can.
    fn atomic(&self) -> Option<&dyn AtomicWrite> {
        None
    }

    /// Another size, where the device can.
    fn resize(&self) -> Option<&dyn Resize> {
        None
    }

    /// Writes are refused.
    fn is_read_only(&self) -> bool {
        false
    }

    /// How I/O is done, for status lines: `inline + io_uring`, `direct, pool`, `memory`.
    fn io_tier(&self) -> String;

    /// Takes writes again after a failed sync, since an operator has decided so; nothing else may.
    /// What the system has cached is dropped, so that what is read from now on is what the medium
    /// has: some of what was written since the last good sync may be missing. On a disk that is
    /// not poisoned it is a flush as any other, which poisons when it fails.
    ///
    /// # Errors
    /// `Medium`: a sync fails still, the disk stays poisoned; else as of a flush.
    fn recover(&self) -> BoxFuture<'_, Result<(), Error>> {
        self.flush()
    }

    /// Has a watcher told of its poison from now on, and at once when it is poisoned; one watcher
    /// at a time. A disk that cannot be poisoned tells nobody.
    fn watch_poison(&self, _watcher: Arc<dyn PoisonWatcher>) {}

    /// Poisons it, since it was poisoned when it was open before and nobody has recovered it. What
    /// the system has cached is dropped, as by [`recover`](Self::recover). Blocks.
    fn poison(&self) {}

    /// Looks at the file behind it; `None`: there is none.
    fn backing(&self) -> Option<Arc<dyn BackingProbe>> {
        None
    }

    /// How its syncs went since it was opened; `None`: it does not count them.
    fn sync_counts(&self) -> Option<SyncCounts> {
        None
    }
}

/// How blocks are made to read as zeroes.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Clear {
    /// As by [`Sparse::unmap`].
    Unmap,
    /// As by [`Sparse::write_zeroes`].
    Zero {
        /// Deallocation is welcome.
        may_unmap: bool,
    },
}

/// What a disk that allocates on demand can do besides.
pub trait Sparse: Send + Sync {
    /// Deallocates `range`; it reads as zeroes after. Parts smaller than the granularity are
    /// zeroed.
    fn unmap(&self, range: BlockRange, durable: bool) -> BoxFuture<'_, Result<(), Error>>;

    /// Deallocates all these ranges, one after the other, as far as the first that fails.
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

    /// Makes `range` read as zeroes; with `may_unmap` deallocation is welcome, else room is kept.
    fn write_zeroes(
        &self,
        range: BlockRange,
        may_unmap: bool,
        durable: bool,
    ) -> BoxFuture<'_, Result<(), Error>>;

    /// Clears the first blocks of `ranges`, which are in order and apart from each other: no more
    /// than is done without a pause. Returns the first block behind those that are cleared. With
    /// `durable`, all that was cleared before is on stable storage once all ranges are cleared.
    ///
    /// Nothing is promised of the whole: whoever calls this until all is cleared may let others
    /// change the blocks between two calls. A device without pauses clears all ranges at once.
    fn clear_piece(
        &self,
        ranges: Vec<BlockRange>,
        clear: Clear,
        durable: bool,
    ) -> BoxFuture<'_, Result<u64, Error>> {
        Box::pin(clear_all(self, ranges, clear, durable))
    }

    /// The state of the blocks from `range.lba` on, as contiguous extents in order, at most
    /// `extents_max` of them and none beyond `range`.
    fn status(
        &self,
        range: BlockRange,
        extents_max: usize,
    ) -> BoxFuture<'_, Result<Vec<Extent>, Error>>;

    /// Deallocation works on aligned runs of this many bytes.
    fn granularity_bytes(&self) -> u32;

    /// How much room there is for what is written, where that can be told. Asks the system, which
    /// may block.
    ///
    /// # Errors
    /// `Medium` when the system does not answer.
    fn room(&self) -> Result<Option<Room>, Error> {
        Ok(None)
    }
}

/// Clears all ranges; returns the first block behind them.
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

/// The room that a sparse disk takes and finds; other files may share what is available.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Room {
    /// Bytes that this disk takes.
    pub used_bytes: u64,
    /// Bytes that can still be taken.
    pub available_bytes: u64,
    /// Bytes that are taken, by whomever, or available: all that there would be for this disk if
    /// it were alone.
    pub total_bytes: u64,
}

/// What an atomic write may be. SBC-4: WRITE ATOMIC (16).
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct AtomicLimits {
    /// Its start and its length are multiples of this; a power-of-two multiple of the logical
    /// block length.
    pub unit_bytes: u32,
    /// It is no longer; a multiple of `unit_bytes`.
    pub bytes_max: u32,
}

impl AtomicLimits {
    /// The bytes of `range`, checked as every write is, and against these limits.
    ///
    /// # Errors
    /// As [`Geometry::checked`]; `Unaligned` for a range that cannot be written atomically.
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
            "an atomic write is of {unit} byte units and of {} bytes at most",
            self.bytes_max
        );
        Err(Error::new(ErrorKind::Unaligned, device, what).at(range))
    }
}

/// What a disk that writes several blocks as one can do besides.
///
/// Of an atomic write that is interrupted (the process ends, power fails, it gives an error)
/// either all blocks were written or none. No other operation of this device comes between its
/// blocks: one `read` gives all of them old or all of them new, and of a `write` or `unmap` to the
/// same blocks at the same time each is whole, the one before or after the other.
pub trait AtomicWrite: Send + Sync {
    /// What may be written so.
    fn limits(&self) -> AtomicLimits;

    /// As [`BlockDevice::write`], all or nothing.
    ///
    /// # Errors
    /// As there; `Unaligned` also for what the limits exclude. Nothing was written then.
    fn write_atomic(
        &self,
        range: BlockRange,
        from: Bytes,
        durable: bool,
    ) -> BoxFuture<'_, Result<(), Error>>;
}
