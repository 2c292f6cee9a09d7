//! Format and opening of a store.

use super::commit::Committer;
use super::{CommittedState, FormatOptions, SharedStore};
use crate::StoreError;
use crate::allocator::Allocator;
use crate::block_io::{BLOCK_BYTES, BlockIo};
use crate::format::{
    AccessedRow, BlobRow, ExtentRow, LogGroup, LogPosition, MemberRow, MembershipRow, ObjectRow,
    PartitionRow, RecordHeader, RootRow, RowKey, SharedRow, StoreLayout, Superblock,
};
use crate::index::{ChunkFile, Index, IndexRows, RowEditor, RowLayers, damaged};
use crate::log::LogRing;
use bytes::Bytes;
use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Mutex, PoisonError, RwLock};

/// Writes an empty store.
pub(super) fn format(io: &BlockIo, options: FormatOptions) -> Result<(), StoreError> {
    let layout = StoreLayout::for_device(io.block_count(), options.log_bytes)
        .ok_or_else(|| StoreError::NotAStore("the device does not suit its log".into()))?;
    // An interrupted format must not leave the superblock of another store.
    for start in layout.superblocks() {
        io.write_blocking(start, vec![0; BLOCK_BYTES as usize].into())?;
    }
    io.flush_blocking()?;
    let mut store = [0; 16];
    getrandom::fill(&mut store).map_err(|error| StoreError::index(&error))?;
    let store = u128::from_be_bytes(store);
    let mut superblock =
        Superblock { layout, store, generation: 1, index_bytes: 0, chunks: Vec::new() };
    superblock.write(io)?;
    superblock.generation = 2;
    superblock.write(io)?;
    let allocator = Arc::new(Mutex::new(allocator_of(&superblock)));
    let index = Index::open(ChunkFile::new(io.clone(), allocator, superblock), 1 << 20)?;
    let position = LogPosition { number: 1, block: 0, opening: 1 }.encode();
    index.apply([(&RowKey::LogPosition.encode()[..], Some(&position[..]))].into_iter())
}

/// Returns the allocator with the fixed areas and the chunks of the index.
pub(crate) fn allocator_of(superblock: &Superblock) -> Allocator {
    let layout = superblock.layout;
    let mut allocator = Allocator::new(layout.block_count, layout.reserve());
    allocator.reserve(0..layout.data().start);
    allocator.reserve(layout.data().end..layout.block_count);
    for start in superblock.chunks.iter().flatten() {
        allocator.reserve(*start..start + layout.chunk_blocks);
    }
    allocator
}

/// Opens a store and replays its log.
pub(super) fn open(
    io: BlockIo,
    cache_bytes: usize,
) -> Result<(Arc<SharedStore>, Committer), StoreError> {
    let superblock = Superblock::read(&io)?;
    let layout = superblock.layout;
    // Nothing is free before the bitmap is known.
    let mut none = Allocator::new(layout.block_count, layout.reserve());
    none.reserve(0..layout.block_count);
    let allocator = Arc::new(Mutex::new(none));
    let file = ChunkFile::new(io.clone(), Arc::clone(&allocator), superblock.clone());
    let index = Index::open(file, cache_bytes)?;
    let rows = index.rows()?;
    let position = rows.get(&RowKey::LogPosition.encode())?;
    let position = position.and_then(|value| LogPosition::decode(&value));
    let position = position
        .filter(|position| position.block < layout.log_blocks && position.number < u64::MAX / 2)
        .filter(|position| position.opening < u64::MAX / 2)
        .ok_or_else(|| StoreError::damaged("the position of the log is missing"))?;
    let mut loaded = allocator_of(&superblock);
    load_bitmap(&rows, &mut loaded)?;
    drop(rows);
    *allocator.lock().unwrap_or_else(PoisonError::into_inner) = loaded;
    let LogPosition { number, block, opening } = position;
    let next = RecordHeader { store: superblock.store, opening, number };
    let shared = Arc::new(SharedStore {
        io: io.clone(),
        layout,
        allocator,
        index: Mutex::new(Some(Arc::new(index))),
        state: RwLock::new(CommittedState::default()),
        readers: Mutex::new(Arc::new(())),
        accessed: Mutex::default(),
    });
    let mut committer = Committer {
        shared: Arc::clone(&shared),
        log: LogRing::new(io, layout, next, block),
        freed: Vec::new(),
        retired: VecDeque::new(),
        unmaps: VecDeque::new(),
        running: None,
        requested: Vec::new(),
        is_flushed: false,
        has_removed: true,
        reclaim_cursor: Default::default(),
        stopped: None,
        wake: None,
    };
    if committer.replay()? {
        // Freed blocks whose space the device had not got back are not known any more.
        let free = shared.allocator().free_runs(layout.data());
        committer.plan_unmaps(free);
    }
    // Records behind the end of the log have the number of an earlier opening.
    committer.log.next.opening += 1;
    committer.checkpoint_always()?;
    Ok((shared, committer))
}

/// Opens a store that will not be changed, and replays its log.
pub(crate) fn open_only(io: BlockIo, cache_bytes: usize) -> Result<Arc<SharedStore>, StoreError> {
    open(io, cache_bytes).map(|(shared, _)| shared)
}

fn load_bitmap(rows: &IndexRows, allocator: &mut Allocator) -> Result<(), StoreError> {
    let (mut from, to) = (RowKey::BitmapPage(0), RowKey::BitmapPage(u64::MAX).encode());
    while let Some((key, bits)) = rows.find(&from.encode(), &to, false)? {
        let page = match RowKey::decode(&key) {
            Some(RowKey::BitmapPage(page)) if allocator.load_page(page, &bits) => page,
            _ => return Err(StoreError::damaged("a page of the bitmap is invalid")),
        };
        from = RowKey::BitmapPage(page + 1);
    }
    Ok(())
}

/// Returns true if a record may contain this row.
fn is_valid(key: RowKey, value: Option<&[u8]>) -> bool {
    let Some(value) = value else {
        return !matches!(key, RowKey::LogPosition | RowKey::BitmapPage(_));
    };
    match key {
        RowKey::LogPosition | RowKey::BitmapPage(_) => false,
        RowKey::Root => RootRow::decode(value).is_some(),
        RowKey::Partition(..) => PartitionRow::decode(value).is_some(),
        RowKey::Object(..) => ObjectRow::decode(value).is_some(),
        RowKey::Attribute(..) => value.len() <= super::ATTRIBUTE_BYTES_MAX,
        RowKey::Extent(..) => ExtentRow::decode(value).is_some(),
        RowKey::Blob(_) => BlobRow::decode(value).is_some(),
        RowKey::Removed(..) => value.is_empty(),
        RowKey::SharedAttributes(_) | RowKey::SharedData(_) => SharedRow::decode(value).is_some(),
        RowKey::Membership(..) => MembershipRow::decode(value).is_some(),
        RowKey::Member(..) => MemberRow::decode(value).is_some(),
        RowKey::Accessed(_) => AccessedRow::decode(value).is_some(),
    }
}

/// The changes of blobs in a record.
#[derive(Default)]
struct BlobChanges {
    new: Vec<(u64, BlobRow)>,
    removed: Vec<(u64, BlobRow)>,
}

impl Committer {
    /// Applies the records of the log up to its end. Returns true if there are any.
    fn replay(&mut self) -> Result<bool, StoreError> {
        let mut found = false;
        let mut reserved = self.reserve_blobs()?;
        while let Some((group, count)) = self.log.read_next()? {
            let blobs = self.blob_changes(&group)?;
            let Some(deferred) = self.data_of(&group, &blobs)? else { break };
            self.apply_record(group, blobs, deferred, &mut reserved)?;
            self.log.pass(count);
            self.checkpoint_if_due();
            self.make_room()?;
            found = true;
        }
        // Blobs of records behind the end.
        let mut allocator = self.shared.allocator();
        reserved.used_runs().into_iter().for_each(|run| allocator.free(run));
        drop(allocator);
        Ok(found)
    }

    /// Takes the free blocks that the records use, so that no checkpoint of the replay takes them
    /// for the index. Returns them as a bitmap.
    fn reserve_blobs(&self) -> Result<Allocator, StoreError> {
        let layout = self.shared.layout;
        let mut reserved = Allocator::new(layout.block_count, layout.reserve());
        let (mut log, area) = (self.log.clone(), layout.data());
        while let Some((group, count)) = log.read_next()? {
            for (key, value) in &group.rows {
                let Some(RowKey::Blob(start)) = RowKey::decode(key) else { continue };
                let Some(blob) = value.as_deref().and_then(BlobRow::decode) else { continue };
                let blocks = blob.blocks(start);
                if area.start > blocks.start || area.end < blocks.end {
                    continue;
                }
                let mut allocator = self.shared.allocator();
                for run in allocator.free_runs(blocks) {
                    allocator.claim(run.clone());
                    reserved.claim(run);
                }
            }
            log.pass(count);
        }
        Ok(reserved)
    }

    /// Checks the rows of a record, and returns those of blobs that come and go.
    fn blob_changes(&self, group: &LogGroup) -> Result<BlobChanges, StoreError> {
        let (state, index) = (self.shared.state(), self.shared.index()?.rows()?);
        let rows = RowEditor::new(RowLayers { overlays: state.overlays(), index: &index });
        let mut changes = BlobChanges::default();
        for (key, value) in &group.rows {
            let key = RowKey::decode(key).filter(|key| is_valid(*key, value.as_deref()));
            let key = key.ok_or_else(|| StoreError::damaged("a row in the log is invalid"))?;
            let RowKey::Blob(start) = key else { continue };
            let before = rows.get(key, BlobRow::decode)?;
            match (before, value.as_deref().and_then(BlobRow::decode)) {
                (None, Some(new)) => changes.new.push((start, new)),
                (Some(old), None) => changes.removed.push((start, old)),
                (Some(old), Some(new)) if old.checksums != new.checksums => {
                    return Err(damaged(key));
                }
                _ => {}
            }
        }
        Ok(changes)
    }

    /// Returns the data that the record contains for its new blobs. Returns `None` if other data is
    /// not on the device: then the record was never acknowledged.
    fn data_of(
        &self,
        group: &LogGroup,
        blobs: &BlobChanges,
    ) -> Result<Option<HashMap<u64, Bytes>>, StoreError> {
        let in_record: HashMap<u64, &Bytes> =
            group.data.iter().map(|(start, data)| (*start, data)).collect();
        let mut deferred = HashMap::new();
        for (start, blob) in &blobs.new {
            let area = self.shared.layout.data();
            let blocks = blob.checksums.len() as u64;
            if !area.contains(start) || area.end - start < blocks {
                return Err(damaged(RowKey::Blob(*start)));
            }
            let Some(data) = in_record.get(start) else {
                if !blob.matches(&self.shared.io.read_blocking(*start, blocks)?) {
                    return Ok(None);
                }
                continue;
            };
            let mut data = data.to_vec();
            data.resize((blocks * BLOCK_BYTES) as usize, 0);
            if !blob.matches(&data) {
                return Err(damaged(RowKey::Blob(*start)));
            }
            deferred.insert(*start, data.into());
        }
        Ok(Some(deferred))
    }

    fn apply_record(
        &mut self,
        group: LogGroup,
        blobs: BlobChanges,
        deferred: HashMap<u64, Bytes>,
        reserved: &mut Allocator,
    ) -> Result<(), StoreError> {
        for (start, blob) in &blobs.new {
            // Blocks that were not free before the replay have another owner.
            if !reserved.release(blob.blocks(*start)) {
                return Err(damaged(RowKey::Blob(*start)));
            }
        }
        self.freed.extend(blobs.removed.iter().map(|(start, blob)| blob.blocks(*start)));
        let mut state = self.shared.state_mut();
        let active = &mut state.active;
        active.deferred_bytes += deferred.values().map(Bytes::len).sum::<usize>();
        active.deferred.extend(deferred);
        group.rows.into_iter().for_each(|(key, value)| active.rows.put(key, value));
        Ok(())
    }
}
