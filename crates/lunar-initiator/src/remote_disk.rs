//! A LUN of a remote target as a disk.

mod identity;
mod layout;
mod ownership;
mod relayed;
mod sending;

use self::layout::Layout;
use self::ownership::DiskOwnership;
pub use self::relayed::{RelayedLun, RelayedWriteTicket};
use crate::commands::{DeviceMode, Unit};
use crate::flush_tracker::{FlushMark, FlushTracker};
use crate::paths::{DiskPath, PathKey, Paths};
use crate::same_unit::Fingerprint;
use crate::uncertain_writes::UncertainWrites;
use crate::{Error, ErrorKind, PathPolicy, Url};
use bytes::Bytes;
use futures_util::FutureExt;
use lunar_block::{
    AtomicCompareAndWrite, BlockDevice, BlockRange, BoxFuture, Buffer, Clear, DeviceLink,
    ExclusiveOwnership, Extent, ExtentState, Geometry, RelayMap, Sparse,
};
use lunar_iscsi::connection::initiator::Cdb;
use lunar_scsi::cdb::sbc::{self, Blocks16, LbaStatus, ServiceActionIn16};
use lunar_scsi::commands::{opcode, service_action};
use lunar_scsi::sense::{SenseKey, Status};
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

/// Maximum time for the answer to the probe of COMPARE AND WRITE: less than a server waits at its
/// start for a storage.
const PROBE_TIME: Duration = Duration::from_secs(2);

const READ_16: u8 = opcode("READ (16)");
const WRITE_16: u8 = opcode("WRITE (16)");
const WRITE_SAME_16: u8 = opcode("WRITE SAME (16)");
const COMPARE_AND_WRITE: u8 = opcode("COMPARE AND WRITE");
const GET_LBA_STATUS: u8 = opcode("GET LBA STATUS");
const GET_LBA_STATUS_ACTION: u8 = service_action("GET LBA STATUS");
const FUA: u8 = 0x08;
/// WRITE SAME: the unit may deallocate the blocks.
const MAY_UNMAP: u8 = 0x08;
/// Longest transfer if the target reports no limit, and the longest used in any case.
const TRANSFER_BYTES_MAX: u64 = 8 << 20;
/// Longest WRITE SAME if the target reports no limit, and the longest used in any case.
const WRITE_SAME_BYTES_MAX: u64 = 32 << 20;
/// Optimal transfer length if the target reports none.
const OPTIMAL_TRANSFER_BYTES: u32 = 1 << 20;
/// Maximum number of extents requested with one GET LBA STATUS.
const EXTENTS_MAX: usize = 1024;

/// A disk behind a session. Reads and writes are split at the longest transfer of the target; a
/// split write is not atomic if the session is lost half-way.
///
/// When the session is lost, unanswered commands are sent again in the next one, up to
/// [`SessionOptions::recovery_seconds`](crate::SessionOptions::recovery_seconds): the caller only
/// sees a delay. This is safe, because the tasks of the lost session have ended when the target
/// answers the new login, and every command of a disk can be executed twice. Before any command is
/// sent again, the disk checks by designators, block length and capacity that the unit is the one
/// that was opened; another unit is never used. A disk that has grown at the target grows when a
/// command finds it; one that has shrunk is no longer used.
///
/// If the target has a volatile write cache, a restart may lose writes that were acknowledged but
/// not flushed, or the target may report later that it could not write them. The next flush then
/// fails once, as do all flushes that ran meanwhile: a caller that gets `CacheLost` (behind
/// `Medium`) has to repeat all its writes since the last flush that succeeded. In a session of
/// several connections a flush also waits for the commands in flight when it is answered, because
/// their responses may report such a loss.
#[derive(Debug)]
pub struct RemoteDisk {
    unit: Unit,
    name: Arc<str>,
    /// The geometry when the disk was opened.
    opened_geometry: Geometry,
    /// Number of blocks, which only grows.
    block_count: AtomicU64,
    /// Maximum number of blocks of one READ or WRITE.
    transfer_blocks: u64,
    /// Maximum number of blocks of one WRITE SAME.
    write_same_blocks: u64,
    /// Maximum number of blocks of one COMPARE AND WRITE, as reported by the target.
    compare_and_write_limit: u8,
    /// The same limit once the target is known to execute the command; 0 before that, or if it does
    /// not know the command.
    compare_and_write_blocks: AtomicU8,
    /// LBPME, LBPRZ and LBPWS: WRITE SAME deallocates, and deallocated blocks are zeroes.
    can_unmap: bool,
    thin: bool,
    granularity_bytes: u32,
    mode: Arc<Mutex<DeviceMode>>,
    fingerprint: Arc<Fingerprint>,
    /// True if the last check has found another unit, which is logged once.
    is_replaced: AtomicBool,
    paths: Arc<Paths>,
    uncertain_writes: Arc<UncertainWrites>,
    unflushed: Arc<FlushTracker>,
    /// The LUN for relays, which open sessions of their own to it.
    relayed: Arc<RelayedLun>,
    ownership: DiskOwnership,
    /// The layout of the paths, if the disk created them itself.
    layout: Option<Layout>,
}

impl RemoteDisk {
    /// Opens a unit and reads its properties. The disk uses only the session of the unit.
    ///
    /// # Errors
    /// `Refused` when it is no disk · the errors of the commands.
    pub async fn open(unit: Unit, url: &Url) -> Result<Self, Error> {
        Self::open_at(unit, url, PathKey::default(), PathPolicy::default()).await
    }

    async fn open_at(
        unit: Unit,
        url: &Url,
        key: PathKey,
        policy: PathPolicy,
    ) -> Result<Self, Error> {
        let identity = unit.identity().await?;
        if identity.qualifier != 0 || identity.device_type != 0 {
            let what = match identity.qualifier {
                0 => format!("{url} is not a disk (device type {:02x}h)", identity.device_type),
                _ => format!("{url}: no such LUN, or this initiator may not see it"),
            };
            return Err(Error::new(ErrorKind::Refused, what)
                .hint("check the LUN in the URL, and the LUN mapping of the target"));
        }
        let path = DiskPath::new(unit.clone(), key, 0);
        unit.test_ready().await?;
        let capacity = unit.capacity().await?;
        let fingerprint = Fingerprint::of(&unit, &identity, &capacity).await?;
        let limits = unit.block_limits().await?;
        let mode = unit.mode().await?;
        let provisioning = unit.vpd_page(0xb2).await?.unwrap_or_default();
        let block = u64::from(capacity.block_bytes);
        let blocks_of = |bytes: u64| (bytes / block).max(1);
        let limited = |blocks: u64, limit: u64| if blocks == 0 { limit } else { blocks.min(limit) };
        let transfer_limit = limits.map_or(0, |limits| u64::from(limits.transfer_blocks_max));
        let write_same_limit = limits.map_or(0, |limits| limits.write_same_blocks_max);
        let granularity = limits.map_or(0, |limits| limits.unmap_granularity_blocks);
        let optimal =
            limits.map_or(0, |l| l.optimal_transfer_blocks).checked_mul(capacity.block_bytes);
        let physical = capacity.physical_block_bytes.min(lunar_block::PHYSICAL_BLOCK_BYTES_MAX);
        // LBPWS of the provisioning page, SBC-3 §6.5.4.
        let write_same_unmaps = provisioning.get(1).is_some_and(|flags| flags & 0x40 != 0);
        // The first command checks the unit again: the session may have changed meanwhile.
        let paths = Arc::new(Paths::new(path, policy));
        let mode = mode.unwrap_or_default();
        let relayed = RelayedLun::new(url, unit.lun(), &paths, fingerprint, mode);
        Ok(Self {
            unit,
            name: url.to_string().into(),
            block_count: AtomicU64::new(capacity.block_count),
            opened_geometry: Geometry {
                block_bytes: capacity.block_bytes,
                block_count: capacity.block_count,
                physical_block_bytes: physical,
                optimal_transfer_bytes: optimal
                    .filter(|bytes| *bytes > 0 && bytes.is_multiple_of(physical))
                    .unwrap_or(OPTIMAL_TRANSFER_BYTES),
            },
            transfer_blocks: limited(transfer_limit, blocks_of(TRANSFER_BYTES_MAX)),
            compare_and_write_limit: limits.map_or(0, |limits| limits.compare_and_write_blocks_max),
            compare_and_write_blocks: AtomicU8::new(0),
            write_same_blocks: limited(write_same_limit, blocks_of(WRITE_SAME_BYTES_MAX)),
            can_unmap: capacity.thin && capacity.unmapped_reads_zeroes && write_same_unmaps,
            thin: capacity.thin,
            granularity_bytes: granularity
                .checked_mul(capacity.block_bytes)
                .filter(|bytes| *bytes > 0)
                .unwrap_or(physical),
            mode: Arc::clone(&relayed.mode),
            fingerprint: Arc::clone(&relayed.fingerprint),
            is_replaced: AtomicBool::new(false),
            unflushed: Arc::clone(&relayed.unflushed),
            relayed,
            paths,
            uncertain_writes: Arc::default(),
            ownership: DiskOwnership::default(),
            layout: None,
        })
    }

    /// Returns the unit, for other commands. They use the path through which the disk was opened.
    pub fn unit(&self) -> &Unit {
        &self.unit
    }

    /// True when acknowledged writes may still be in a volatile cache (WCE).
    pub fn has_write_cache(&self) -> bool {
        self.mode().write_cache
    }

    /// Number of times acknowledged writes that were not flushed may have been lost: the target
    /// restarted, was reset, or could not write. The next flush fails once, for one caller only;
    /// this count informs each of several writers that share the disk. A failed flush counts too.
    ///
    /// A loss is counted at the latest when a read or a flush finds the written data gone.
    pub fn losses(&self) -> u64 {
        self.unflushed.losses(self.paths.reported_losses())
    }

    /// Asks the target whether it knows COMPARE AND WRITE, and offers
    /// [`compare_and_write`](BlockDevice::compare_and_write) if it does. Not done for every disk:
    /// the probe is a COMPARE AND WRITE of zero blocks, which istgt 0.4 never answers. After two
    /// seconds it is aborted, and the command is not offered. The reported limit is not sufficient:
    /// tgt 1.0.85 reports one and does not know the command.
    pub async fn offer_compare_and_write(&self) {
        if self.compare_and_write_limit > 0 && has_compare_and_write(&self.name, &self.unit).await {
            self.compare_and_write_blocks.store(self.compare_and_write_limit, Ordering::Release);
        }
    }

    /// Caching and write protection as last reported by the unit.
    fn mode(&self) -> DeviceMode {
        *self.mode.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// True when blocks can be deallocated (LBPME).
    pub fn is_thin(&self) -> bool {
        self.thin
    }

    /// Checks that `range` lies on the disk and `bytes` fit it, exactly or at least.
    fn check(
        &self,
        range: BlockRange,
        bytes: usize,
        exact: bool,
    ) -> Result<(), lunar_block::Error> {
        self.check_range(range)?;
        let wanted = range.count * u64::from(self.opened_geometry.block_bytes);
        let too_long = exact && bytes as u64 > wanted;
        if bytes as u64 >= wanted && !too_long {
            return Ok(());
        }
        let what = "the buffer length does not match the blocks";
        Err(lunar_block::Error::new(
            lunar_block::ErrorKind::Unaligned,
            Arc::clone(&self.name),
            what,
        )
        .at(range))
    }

    /// Checks that `range` lies on the disk, before it is used in calculations.
    fn check_range(&self, range: BlockRange) -> Result<(), lunar_block::Error> {
        match range.lba.checked_add(range.count) {
            Some(end) if end <= self.geometry().block_count => Ok(()),
            _ => {
                let kind = lunar_block::ErrorKind::OutOfRange;
                Err(lunar_block::Error::new(
                    kind,
                    Arc::clone(&self.name),
                    "past the end of the disk",
                )
                .at(range))
            }
        }
    }

    fn failed(&self, range: Option<BlockRange>, error: Error) -> lunar_block::Error {
        let kind = match &error.kind {
            ErrorKind::SessionLost
            | ErrorKind::NotSent
            | ErrorKind::Changed
            | ErrorKind::Authentication
            | ErrorKind::Protocol => lunar_block::ErrorKind::Disconnected,
            ErrorKind::Fenced => lunar_block::ErrorKind::Fenced,
            ErrorKind::Status(status)
                if matches!(Status(*status), Status::BUSY | Status::TASK_SET_FULL) =>
            {
                lunar_block::ErrorKind::Busy
            }
            ErrorKind::Sense(Some(sense)) => match (sense.key, sense.code) {
                (SenseKey::DATA_PROTECT, 0x2707) => lunar_block::ErrorKind::NoSpace,
                (SenseKey::DATA_PROTECT, _) => lunar_block::ErrorKind::ReadOnly,
                (SenseKey::ILLEGAL_REQUEST, 0x2100) => lunar_block::ErrorKind::OutOfRange,
                _ => lunar_block::ErrorKind::Medium,
            },
            _ => lunar_block::ErrorKind::Medium,
        };
        let range = range.map(|range| failed_blocks(range, &error));
        let what = error.what.clone();
        let failed = lunar_block::Error::new(kind, Arc::clone(&self.name), what).because(error);
        match range {
            Some(range) => failed.at(range),
            None => failed,
        }
    }

    /// Splits `range` into pieces of at most `blocks_max` blocks.
    fn pieces(range: BlockRange, blocks_max: u64) -> impl Iterator<Item = BlockRange> {
        let end = range.lba + range.count;
        let mut lba = range.lba;
        std::iter::from_fn(move || {
            let count = (end - lba).min(blocks_max);
            let piece = BlockRange::new(lba, count);
            lba += count;
            (count > 0).then_some(piece)
        })
    }

    fn bytes_of(&self, blocks: u64) -> usize {
        (blocks * u64::from(self.opened_geometry.block_bytes)) as usize
    }

    async fn read_all(
        &self,
        range: BlockRange,
        into: Buffer,
    ) -> Result<Buffer, lunar_block::Error> {
        self.check(range, into.len(), false)?;
        if range.count == 0 {
            return Ok(into);
        }
        let whole = self.bytes_of(range.count);
        if range.count <= self.transfer_blocks && into.len() == whole {
            return self.read_piece(range, into).await.map_err(|e| self.failed(Some(range), e));
        }
        Box::pin(self.read_pieces(range, into)).await
    }

    async fn read_pieces(
        &self,
        range: BlockRange,
        mut into: Buffer,
    ) -> Result<Buffer, lunar_block::Error> {
        for piece in Self::pieces(range, self.transfer_blocks) {
            let bytes = self.bytes_of(piece.count);
            let at = self.bytes_of(piece.lba - range.lba);
            let buffer = into.pool().take(bytes);
            let read = self.read_piece(piece, buffer).await;
            let read = read.map_err(|error| self.failed(Some(piece), error))?;
            into[at..at + bytes].copy_from_slice(&read);
        }
        Ok(into)
    }

    /// Fills `buffer`, whose length is exactly that of `piece`.
    async fn read_piece(&self, piece: BlockRange, buffer: Buffer) -> Result<Buffer, Error> {
        let bytes = buffer.len();
        let cdb = transfer(READ_16, 0, piece);
        let answered = self.send(cdb, Bytes::new(), Some(buffer)).await?;
        let received_bytes = answered.result.data_in_bytes;
        match answered.data_in {
            Some(filled) if received_bytes as usize == bytes => Ok(filled),
            _ => {
                let what = format!(
                    "READ ended with status GOOD after only {received_bytes} of {bytes} bytes"
                );
                Err(Error::new(ErrorKind::Protocol, what))
            }
        }
    }

    async fn write_all(
        &self,
        range: BlockRange,
        from: Bytes,
        durable: bool,
    ) -> Result<(), lunar_block::Error> {
        self.check(range, from.len(), true)?;
        let by_fua = durable && self.mode().fua;
        let flags = if by_fua { FUA } else { 0 };
        let since = self.mark();
        for piece in Self::pieces(range, self.transfer_blocks) {
            let at = self.bytes_of(piece.lba - range.lba);
            let data = from.slice(at..at + self.bytes_of(piece.count));
            let cdb = transfer(WRITE_16, flags, piece);
            let written = self.send_write(cdb, piece, data, by_fua).await;
            written.map_err(|error| self.failed(Some(piece), error))?;
        }
        self.flush_if(durable && !by_fua, since).await
    }

    async fn compare(
        &self,
        range: BlockRange,
        old_and_new: Bytes,
        durable: bool,
    ) -> Result<Option<u64>, lunar_block::Error> {
        self.check_range(range)?;
        let is_supported = (1..=u64::from(self.blocks_max())).contains(&range.count);
        if !is_supported || old_and_new.len() != 2 * self.bytes_of(range.count) {
            let what = "the target does not support a COMPARE AND WRITE of this length";
            let kind = lunar_block::ErrorKind::Unaligned;
            return Err(lunar_block::Error::new(kind, Arc::clone(&self.name), what).at(range));
        }
        let by_fua = durable && self.mode().fua;
        let cdb = compare_and_write_cdb(range, if by_fua { FUA } else { 0 });
        let since = self.mark();
        let compared = self.send_compare_and_write(cdb, range, old_and_new, by_fua).await;
        let compared = compared.map_err(|error| self.failed(Some(range), error))?;
        self.flush_if(durable && !by_fua && compared.is_none(), since).await?;
        Ok(compared)
    }

    /// Returns the mark of an operation that ends with a flush. Called before its first write.
    fn mark(&self) -> FlushMark {
        self.unflushed.mark(self.paths.reported_losses())
    }

    /// Flushes if `wanted`, for an operation that began at `since`.
    async fn flush_if(&self, wanted: bool, since: FlushMark) -> Result<(), lunar_block::Error> {
        if wanted { Box::pin(self.flush_all(since)).await } else { Ok(()) }
    }

    async fn flush_all(&self, since: FlushMark) -> Result<(), lunar_block::Error> {
        self.send_flush(since).await.map_err(|error| self.failed(None, error))
    }

    async fn zero(
        &self,
        range: BlockRange,
        may_unmap: bool,
        durable: bool,
    ) -> Result<(), lunar_block::Error> {
        self.check_range(range)?;
        let since = self.mark();
        for piece in Self::pieces(range, self.write_same_blocks) {
            self.write_same(piece, may_unmap).await?;
        }
        self.flush_if(durable, since).await
    }

    /// Zeroes the first blocks of `ranges` with one WRITE SAME. Returns the first block behind
    /// them.
    ///
    /// With `durable`, each piece is flushed: a flush at the end would not notice that the target
    /// lost an earlier piece, if another caller has been told of the loss.
    async fn zero_piece(
        &self,
        ranges: Vec<BlockRange>,
        may_unmap: bool,
        durable: bool,
    ) -> Result<u64, lunar_block::Error> {
        for range in &ranges {
            self.check_range(*range)?;
        }
        let mut pieces =
            ranges.iter().flat_map(|range| Self::pieces(*range, self.write_same_blocks));
        let Some(piece) = pieces.next() else {
            return Ok(ranges.last().map_or(0, |range| range.lba));
        };
        let since = self.mark();
        self.write_same(piece, may_unmap).await?;
        self.flush_if(durable, since).await?;
        Ok(piece.lba + piece.count)
    }

    /// Zeroes `piece`, at most [`Self::write_same_blocks`], with one command.
    async fn write_same(
        &self,
        piece: BlockRange,
        may_unmap: bool,
    ) -> Result<(), lunar_block::Error> {
        let flags = if may_unmap && self.can_unmap { MAY_UNMAP } else { 0 };
        let block = Bytes::from(vec![0; self.opened_geometry.block_bytes as usize]);
        let written = self.send_write(transfer(WRITE_SAME_16, flags, piece), piece, block, false);
        written.await.map_err(|error| self.failed(Some(piece), error))
    }

    async fn extents(
        &self,
        range: BlockRange,
        extents_max: usize,
    ) -> Result<Vec<Extent>, lunar_block::Error> {
        self.check_range(range)?;
        let extents_max = extents_max.min(EXTENTS_MAX);
        if range.count == 0 || extents_max == 0 {
            return Ok(Vec::new());
        }
        let bytes = 8 + 16 * extents_max as u32;
        let cdb = ServiceActionIn16 {
            opcode: GET_LBA_STATUS,
            service_action: GET_LBA_STATUS_ACTION,
            lba: range.lba,
            allocation_bytes: bytes,
            flags: 0,
            control: 0,
        };
        let cdb = cdb.encode().into();
        let buffer = self.unit.initiator().buffer(bytes);
        match self.send(cdb, Bytes::new(), buffer).await {
            Ok(answered) => Ok(parse_extents(range, answered.data_in())),
            Err(error) if crate::commands::is_illegal(&error) => {
                Ok(vec![Extent { range, state: ExtentState::Mapped }])
            }
            Err(error) => Err(self.failed(Some(range), error)),
        }
    }
}

/// True unless the unit refuses COMPARE AND WRITE of no blocks as an unknown command, or does not
/// answer it.
async fn has_compare_and_write(name: &str, unit: &Unit) -> bool {
    const INVALID_COMMAND_OPERATION_CODE: u16 = 0x2000;
    let cdb = compare_and_write_cdb(BlockRange::new(0, 0), 0);
    let answer = tokio::time::timeout(PROBE_TIME, unit.command(cdb, Bytes::new(), 0)).await;
    let Ok(answer) = answer else {
        tracing::info!(
            "{name}: the target does not answer a COMPARE AND WRITE of no blocks, so it is not used"
        );
        return false;
    };
    let sense = answer.as_ref().err().and_then(Error::sense);
    sense.is_none_or(|sense| sense.code != INVALID_COMMAND_OPERATION_CODE)
}

/// `range` has at most 255 blocks.
fn compare_and_write_cdb(range: BlockRange, flags: u8) -> Cdb {
    let (lba, count) = (range.lba, range.count as u8);
    let opcode = COMPARE_AND_WRITE;
    sbc::CompareAndWrite { opcode, flags, lba, count, group: 0, control: 0 }.encode().into()
}

/// Returns the failed block that the sense data names if it lies in `range`, else `range`.
fn failed_blocks(range: BlockRange, error: &Error) -> BlockRange {
    const INFORMATION_IS_LBA: [SenseKey; 2] = [SenseKey::MEDIUM_ERROR, SenseKey::HARDWARE_ERROR];
    let sense = error.sense().filter(|sense| INFORMATION_IS_LBA.contains(&sense.key));
    match sense.and_then(|sense| sense.information) {
        Some(lba) if lba >= range.lba && lba - range.lba < range.count => BlockRange::new(lba, 1),
        _ => range,
    }
}

/// Parses the descriptors of GET LBA STATUS up to the first that is not contiguous with the one
/// before, or not within `range`. Without any extent, the whole range counts as mapped.
fn parse_extents(range: BlockRange, data: &[u8]) -> Vec<Extent> {
    let end = range.lba + range.count;
    let mut lba = range.lba;
    let mut extents: Vec<Extent> = Vec::new();
    for raw in data.get(8..).unwrap_or_default().as_chunks::<16>().0 {
        let status = LbaStatus::decode(raw);
        let status_end = status.lba.saturating_add(status.count.into()).min(end);
        if status.lba > lba || status_end <= lba {
            break;
        }
        // 1 deallocated, 2 anchored: both read as zeroes where LBPRZ is set.
        let state = if status.status == 1 { ExtentState::Unmapped } else { ExtentState::Mapped };
        let count = status_end - lba;
        match extents.last_mut() {
            Some(last) if last.state == state => last.range.count += count,
            _ => extents.push(Extent { range: BlockRange::new(lba, count), state }),
        }
        lba = status_end;
    }
    if extents.is_empty() {
        extents.push(Extent { range, state: ExtentState::Mapped });
    }
    extents
}

fn transfer(opcode: u8, flags: u8, range: BlockRange) -> Cdb {
    // Pieces are no longer than the target's limit, a 32-bit field, or the defaults above.
    let count = range.count as u32;
    Blocks16 { opcode, flags, lba: range.lba, count, group: 0, control: 0 }.encode().into()
}

impl BlockDevice for RemoteDisk {
    fn name(&self) -> &str {
        &self.name
    }

    fn geometry(&self) -> Geometry {
        Geometry { block_count: self.block_count.load(Ordering::Acquire), ..self.opened_geometry }
    }

    fn read(
        &self,
        range: BlockRange,
        into: Buffer,
    ) -> BoxFuture<'_, Result<Buffer, lunar_block::Error>> {
        self.read_all(range, into).boxed()
    }

    fn write(
        &self,
        range: BlockRange,
        from: Bytes,
        durable: bool,
    ) -> BoxFuture<'_, Result<(), lunar_block::Error>> {
        self.write_all(range, from, durable).boxed()
    }

    fn flush(&self) -> BoxFuture<'_, Result<(), lunar_block::Error>> {
        async { self.flush_all(self.mark()).await }.boxed()
    }

    fn compare_and_write(&self) -> Option<&dyn AtomicCompareAndWrite> {
        if self.blocks_max() > 0 { Some(self) } else { None }
    }

    fn ownership(&self) -> Option<&dyn ExclusiveOwnership> {
        Some(self)
    }

    fn link(&self) -> Option<DeviceLink> {
        Some(self.paths.link())
    }

    fn cache_losses(&self) -> Option<u64> {
        Some(self.losses())
    }

    fn sparse(&self) -> Option<&dyn Sparse> {
        if self.can_unmap { Some(self) } else { None }
    }

    fn relay_map(&self) -> Option<&dyn RelayMap> {
        Some(self)
    }

    fn is_read_only(&self) -> bool {
        self.mode().write_protected
    }

    fn io_tier(&self) -> String {
        "iscsi".to_owned()
    }
}

impl AtomicCompareAndWrite for RemoteDisk {
    fn blocks_max(&self) -> u8 {
        self.compare_and_write_blocks.load(Ordering::Acquire)
    }

    fn compare_and_write(
        &self,
        range: BlockRange,
        old_and_new: Bytes,
        durable: bool,
    ) -> BoxFuture<'_, Result<Option<u64>, lunar_block::Error>> {
        self.compare(range, old_and_new, durable).boxed()
    }
}

impl Sparse for RemoteDisk {
    /// Deallocates by WRITE SAME with zeroes: UNMAP alone guarantees nothing, and blocks that it
    /// leaves allocated would keep their data.
    fn unmap(
        &self,
        range: BlockRange,
        durable: bool,
    ) -> BoxFuture<'_, Result<(), lunar_block::Error>> {
        self.zero(range, true, durable).boxed()
    }

    fn write_zeroes(
        &self,
        range: BlockRange,
        may_unmap: bool,
        durable: bool,
    ) -> BoxFuture<'_, Result<(), lunar_block::Error>> {
        self.zero(range, may_unmap, durable).boxed()
    }

    /// Sends one WRITE SAME, of at most 32 MiB: a server that exports the disk lets commands of
    /// other hosts run between two of them, and many may take seconds.
    fn clear_piece(
        &self,
        ranges: Vec<BlockRange>,
        clear: Clear,
        durable: bool,
    ) -> BoxFuture<'_, Result<u64, lunar_block::Error>> {
        let may_unmap = clear != Clear::Zero { may_unmap: false };
        self.zero_piece(ranges, may_unmap, durable).boxed()
    }

    fn status(
        &self,
        range: BlockRange,
        extents_max: usize,
    ) -> BoxFuture<'_, Result<Vec<Extent>, lunar_block::Error>> {
        self.extents(range, extents_max).boxed()
    }

    fn granularity_bytes(&self) -> u32 {
        self.granularity_bytes
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use lunar_scsi::sense::Sense;

    #[test]
    fn pieces_cover_the_range_once() {
        let pieces: Vec<_> = RemoteDisk::pieces(BlockRange::new(5, 20), 8).collect();
        let expected = [BlockRange::new(5, 8), BlockRange::new(13, 8), BlockRange::new(21, 4)];
        assert_eq!(pieces, expected);
        assert_eq!(RemoteDisk::pieces(BlockRange::new(5, 0), 8).count(), 0);
    }

    /// Goal: an error names the block that the medium could not read, if the sense data does.
    #[test]
    fn the_block_at_fault_is_named() {
        let range = BlockRange::new(100, 50);
        let error = |key: SenseKey, information: Option<u64>| {
            let sense = Sense { key, information, ..Sense::POWER_ON_RESET };
            Error::new(ErrorKind::Sense(Some(sense)), "x")
        };
        let medium = SenseKey::MEDIUM_ERROR;
        assert_eq!(failed_blocks(range, &error(medium, Some(149))), BlockRange::new(149, 1));
        for (key, information) in [
            (medium, None),
            (medium, Some(99)),
            (medium, Some(150)),
            (medium, Some(u64::MAX)),
            (SenseKey::MISCOMPARE, Some(120)), // here INFORMATION is an offset in bytes
        ] {
            assert_eq!(failed_blocks(range, &error(key, information)), range);
        }
    }

    /// Goal: extents are contiguous and within the range, also for a malformed response.
    #[test]
    fn extents_of_any_answer_are_in_order() {
        let descriptor =
            |lba: u64, count: u32, status: u8| LbaStatus { lba, count, status }.encode().to_vec();
        let answer = |parts: &[Vec<u8>]| [vec![0; 8], parts.concat()].concat();
        let range = BlockRange::new(10, 100);
        let good = answer(&[descriptor(8, 12, 0), descriptor(20, 30, 1), descriptor(50, 99, 0)]);
        let extents = parse_extents(range, &good);
        let shape: Vec<_> = extents.iter().map(|e| (e.range.lba, e.range.count, e.state)).collect();
        let (mapped, unmapped) = (ExtentState::Mapped, ExtentState::Unmapped);
        assert_eq!(shape, [(10, 10, mapped), (20, 30, unmapped), (50, 60, mapped)]);
        for hostile in [
            vec![],
            vec![0; 7],
            answer(&[descriptor(u64::MAX, u32::MAX, 1)]),
            answer(&[descriptor(0, 0, 1), descriptor(0, 5, 1)]),
            answer(&[descriptor(11, 5, 1)]),
        ] {
            let whole = [Extent { range, state: mapped }];
            assert_eq!(parse_extents(range, &hostile), whole, "{hostile:?}");
        }
    }
}
