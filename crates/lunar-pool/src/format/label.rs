//! The label of a member.

use super::{
    MemberLayout, MemberSet, PoolId, PoolKind, REGIONS_MAX, checksum, layout::REGION_BYTES_MIN,
};
use lunar_wire::Field;
use std::fmt;

/// Length of a label.
pub const LABEL_BYTES: usize = 4096;

/// Minimum number of members of a pool.
pub const MEMBERS_MIN: u16 = 2;

/// Maximum number of members of a pool.
pub const MEMBERS_MAX: u16 = 64;

/// Maximum number of generations for which a label shows whether another one belongs to its
/// history.
pub const HISTORY_GENERATIONS_MAX: usize = 32;

const MAGIC: [u8; 8] = *b"LunarPL\0";
const VERSION: u16 = 1;

lunar_wire::wire_struct! {
    /// The bytes of a label, docs/formats/pool.md.
    pub struct LabelBytes [4096] {
        0 => magic: [u8; 8],
        8 => version: u16,
        10 => kind: PoolKind,
        12 => block_bytes: u32,
        16 => pool: PoolId,
        32 => slot: u16,
        34 => member_count: u16,
        40 => data_blocks: u64,
        48 => unit_blocks: u64,
        56 => generation: u64,
        64 => current: MemberSet,
        72 => ids: GenerationIds,
        328 => vacant: MemberSet,
        4092 => checksum: u32,
    }
}

/// The ids of a history, as they are encoded in a label; 0: none.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct GenerationIds([u64; HISTORY_GENERATIONS_MAX]);

impl Field for GenerationIds {
    const SIZE: usize = HISTORY_GENERATIONS_MAX * size_of::<u64>();

    fn get(bytes: &[u8]) -> Self {
        let mut ids = [0; HISTORY_GENERATIONS_MAX];
        for (id, bytes) in ids.iter_mut().zip(bytes.chunks_exact(size_of::<u64>())) {
            *id = u64::get(bytes);
        }
        Self(ids)
    }

    fn put(self, bytes: &mut [u8]) {
        for (id, bytes) in self.0.iter().zip(bytes.chunks_exact_mut(size_of::<u64>())) {
            id.put(bytes);
        }
    }
}

/// The label of a member: the member, its pool, and the members that have all data.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Label {
    /// The kind of the pool; one of [`PoolKind::ALL`].
    pub kind: PoolKind,
    /// The pool.
    pub pool: PoolId,
    /// Slot of this member, from 0.
    pub slot: u16,
    /// Number of slots of the pool, from [`MEMBERS_MIN`] to [`MEMBERS_MAX`].
    pub member_count: u16,
    /// Length of a block of every member.
    pub block_bytes: u32,
    /// Number of blocks of data of this member; equal for all members except in a concatenation.
    pub data_blocks: u64,
    /// Number of blocks of a stripe unit; of a region, for a mirror; of all members together, for a
    /// concatenation.
    pub unit_blocks: u64,
    /// Generation, from 1; increases whenever the set of current members changes.
    pub generation: u64,
    /// Members that had all data in this generation.
    pub current: MemberSet,
    /// Random ids of this generation and of those before.
    pub history: History,
    /// Slots of a mirror that have no member, because it was removed.
    pub vacant: MemberSet,
}

/// Random ids of the generations of a pool, the latest first. Two parts of a mirror that were
/// written independently have different ids for the same generation.
#[derive(Clone, Eq, PartialEq)]
pub struct History {
    /// From 1 to [`HISTORY_GENERATIONS_MAX`] ids, none of which is 0.
    ids: Vec<u64>,
}

/// Result of reading a label.
#[derive(Clone, Debug, Eq, PartialEq)]
pub enum FoundLabel {
    /// Other bytes: the device is not a member.
    None,
    /// A damaged label, or one that this version does not know.
    Unusable(Unusable),
    /// A valid label.
    Valid(Label),
}

/// The reason why a label cannot be used.
#[derive(Clone, Debug, Eq, PartialEq, thiserror::Error)]
pub enum Unusable {
    /// The checksum does not match.
    #[error("its checksum is wrong")]
    Checksum,
    /// The label has a later version.
    #[error("it has version {0}, this program knows {VERSION}")]
    Version(u16),
    /// The label has a kind of a later version.
    #[error("it belongs to a pool of an unknown kind, {0:?}")]
    Kind(PoolKind),
    /// The fields contradict each other.
    #[error("its fields contradict each other")]
    Fields,
    /// The label describes another block length than that of the device.
    #[error("it describes blocks of {label} bytes, the device has blocks of {device} bytes")]
    BlockLength {
        /// Length in the label.
        label: u32,
        /// Length of the device.
        device: u32,
    },
    /// The device is too small for the data that the label describes.
    #[error("it describes {label} blocks of data, the device has room for {device}")]
    Size {
        /// Number of blocks in the label.
        label: u64,
        /// Number of blocks for which the device has room.
        device: u64,
    },
    /// The unit does not fit the size.
    #[error("its unit of {0} blocks does not fit its size")]
    Unit(u64),
    /// The blocks of the label cannot be read.
    #[error("it cannot be read: {0}")]
    Unreadable(String),
}

impl History {
    /// Creates the history of the first generation.
    ///
    /// # Panics
    /// When `id` is 0.
    pub fn new(id: u64) -> Self {
        assert_ne!(id, 0, "an id of 0 means none");
        Self { ids: vec![id] }
    }

    /// Returns the history with one more generation.
    ///
    /// # Panics
    /// When `id` is 0.
    #[must_use]
    pub fn next(&self, id: u64) -> Self {
        let mut next = Self::new(id);
        next.ids.extend(self.ids.iter().take(HISTORY_GENERATIONS_MAX - 1));
        next
    }

    /// Returns the ids, the latest first.
    pub fn ids(&self) -> &[u64] {
        &self.ids
    }

    fn from_field(ids: GenerationIds) -> Option<Self> {
        let ids: Vec<u64> = ids.0.into_iter().take_while(|id| *id != 0).collect();
        (!ids.is_empty()).then_some(Self { ids })
    }

    fn to_field(&self) -> GenerationIds {
        let mut ids = [0; HISTORY_GENERATIONS_MAX];
        ids[..self.ids.len()].copy_from_slice(&self.ids);
        GenerationIds(ids)
    }
}

impl fmt::Debug for History {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.ids.iter().map(|id| format!("{id:x}"))).finish()
    }
}

impl Label {
    /// Decodes untrusted bytes.
    pub fn decode(bytes: &[u8; LABEL_BYTES]) -> FoundLabel {
        if bytes[..MAGIC.len()] != MAGIC {
            return FoundLabel::None;
        }
        match Self::decode_known(bytes) {
            Ok(label) => FoundLabel::Valid(label),
            Err(why) => FoundLabel::Unusable(why),
        }
    }

    fn decode_known(bytes: &[u8; LABEL_BYTES]) -> Result<Self, Unusable> {
        let raw = LabelBytes::decode(bytes);
        if raw.checksum != checksum(bytes) {
            return Err(Unusable::Checksum);
        }
        if raw.version != VERSION {
            return Err(Unusable::Version(raw.version));
        }
        if !PoolKind::ALL.contains(&raw.kind) {
            return Err(Unusable::Kind(raw.kind));
        }
        let history = History::from_field(raw.ids).ok_or(Unusable::Fields)?;
        let label = Self {
            kind: raw.kind,
            pool: raw.pool,
            slot: raw.slot,
            member_count: raw.member_count,
            block_bytes: raw.block_bytes,
            data_blocks: raw.data_blocks,
            unit_blocks: raw.unit_blocks,
            generation: raw.generation,
            current: raw.current,
            history,
            vacant: raw.vacant,
        };
        if label.is_consistent() { Ok(label) } else { Err(Unusable::Fields) }
    }

    fn is_consistent(&self) -> bool {
        // Java reads these as signed numbers.
        let positive = |number: u64| number > 0 && i64::try_from(number).is_ok();
        (MEMBERS_MIN..=MEMBERS_MAX).contains(&self.member_count)
            && self.slot < self.member_count
            && self.current.is_within(self.member_count)
            && self.vacant_is_consistent()
            && positive(self.data_blocks)
            && positive(self.unit_blocks)
            && positive(self.generation)
            && self.generation < i64::MAX as u64
    }

    fn vacant_is_consistent(&self) -> bool {
        let is_possible = self.vacant.is_empty() || self.kind == PoolKind::MIRROR;
        is_possible
            && self.vacant.is_within(self.member_count)
            && self.vacant.0 & self.current.0 == 0
            && !self.vacant.contains(self.slot)
            && self.members() >= MEMBERS_MIN
    }

    /// Returns the number of members: slots that are not vacant.
    pub fn members(&self) -> u16 {
        self.member_count.saturating_sub(self.vacant.len())
    }

    /// True if the pool has a member at this slot.
    pub fn has_slot(&self, slot: u16) -> bool {
        slot < self.member_count && !self.vacant.contains(slot)
    }

    /// Returns the slot of another member of the mirror, below [`MEMBERS_MAX`]: the first vacant
    /// one, or a new one.
    pub fn next_free_slot(&self) -> Option<u16> {
        let first = (0..self.member_count).find(|slot| self.vacant.contains(*slot));
        first.or((self.member_count < MEMBERS_MAX).then_some(self.member_count))
    }

    /// Returns the label of the same generation in which `slot` has a member; it is
    /// [`next_free_slot`](Self::next_free_slot).
    #[must_use]
    pub fn with_slot(&self, slot: u16) -> Self {
        let mut label = self.clone();
        label.member_count = label.member_count.max(slot + 1);
        label.vacant.remove(slot);
        label
    }

    /// Returns the label of the same generation in which `slot`, which is not current, has no
    /// member. Vacant slots at the end do not exist any more.
    #[must_use]
    pub fn without_slot(&self, slot: u16) -> Self {
        let mut label = self.clone();
        label.vacant.insert(slot);
        while label.vacant.contains(label.member_count - 1) {
            label.member_count -= 1;
            label.vacant.remove(label.member_count);
        }
        label
    }

    /// Encodes the label.
    pub fn encode(&self) -> [u8; LABEL_BYTES] {
        debug_assert!(self.is_consistent(), "{self:?}");
        let raw = LabelBytes {
            magic: MAGIC,
            version: VERSION,
            kind: self.kind,
            block_bytes: self.block_bytes,
            pool: self.pool,
            slot: self.slot,
            member_count: self.member_count,
            data_blocks: self.data_blocks,
            unit_blocks: self.unit_blocks,
            generation: self.generation,
            current: self.current,
            ids: self.history.to_field(),
            vacant: self.vacant,
            checksum: 0,
        };
        let mut bytes = raw.encode();
        let sum = checksum(&bytes);
        sum.put(&mut bytes[super::CHECKED_BYTES..]);
        bytes
    }

    /// Checks the label against the device on which it was found.
    ///
    /// # Errors
    /// The reason why the label cannot belong to this device.
    pub fn check(&self, layout: MemberLayout) -> Result<(), Unusable> {
        if self.block_bytes != layout.block_bytes {
            let (label, device) = (self.block_bytes, layout.block_bytes);
            return Err(Unusable::BlockLength { label, device });
        }
        if self.data_blocks > layout.data_blocks_max() {
            let (label, device) = (self.data_blocks, layout.data_blocks_max());
            return Err(Unusable::Size { label, device });
        }
        if self.unit_fits() { Ok(()) } else { Err(Unusable::Unit(self.unit_blocks)) }
    }

    fn unit_fits(&self) -> bool {
        let bytes = |blocks: u64| blocks.checked_mul(u64::from(self.block_bytes));
        let Some((unit_bytes, size_bytes)) = bytes(self.unit_blocks).zip(bytes(self.data_blocks))
        else {
            return false;
        };
        match self.kind {
            PoolKind::MIRROR => {
                self.unit_blocks.is_power_of_two()
                    && unit_bytes >= REGION_BYTES_MIN
                    && self.data_blocks.div_ceil(self.unit_blocks) <= u64::from(REGIONS_MAX)
            }
            PoolKind::CONCAT => {
                self.unit_blocks > self.data_blocks && i64::try_from(unit_bytes).is_ok()
            }
            _ => {
                let total = size_bytes.checked_mul(u64::from(self.member_count));
                i32::try_from(unit_bytes).is_ok()
                    && self.data_blocks.is_multiple_of(self.unit_blocks)
                    && total.is_some_and(|total| i64::try_from(total).is_ok())
            }
        }
    }

    /// Returns the label of another member of the same pool.
    #[must_use]
    pub fn at(&self, slot: u16) -> Self {
        Self { slot, ..self.clone() }
    }

    /// Returns the label of the next generation.
    ///
    /// # Panics
    /// When `id` is 0.
    #[must_use]
    pub fn next(&self, current: MemberSet, id: u64) -> Self {
        let (generation, history) = (self.generation + 1, self.history.next(id));
        Self { generation, history, current, ..self.clone() }
    }

    /// True if an older label, or one of the same generation, belongs to the history of this one,
    /// or is older than this history.
    pub fn descends_from(&self, older: &Self) -> bool {
        debug_assert!(self.generation >= older.generation);
        let back = self.generation - older.generation;
        let id = usize::try_from(back).ok().and_then(|back| self.history.ids.get(back));
        id.is_none_or(|id| *id == older.history.ids[0])
    }

    /// True if the sizes of two labels of members that belong together fit: a stripe or a
    /// concatenation is resized in a new generation.
    fn has_same_size(&self, other: &Self) -> bool {
        let is_resized = self.generation != other.generation;
        let same_unit = self.unit_blocks == other.unit_blocks;
        match self.kind {
            PoolKind::CONCAT => same_unit || is_resized,
            PoolKind::STRIPE => same_unit && (self.data_blocks == other.data_blocks || is_resized),
            _ => same_unit && self.data_blocks == other.data_blocks,
        }
    }

    /// Returns the label of a mirror with more blocks. Regions become larger if an intent page
    /// would have too few bits for them.
    #[must_use]
    pub fn with_data_blocks(&self, data_blocks: u64) -> Self {
        let mut unit_blocks = self.unit_blocks;
        while data_blocks.div_ceil(unit_blocks) > u64::from(REGIONS_MAX) {
            unit_blocks *= 2;
        }
        Self { data_blocks, unit_blocks, ..self.clone() }
    }

    /// True if the label names its own member as one with all data.
    pub fn names_itself(&self) -> bool {
        self.current.contains(self.slot)
    }

    /// True if this label belongs to `history`, whose latest generation is `generation`, or that
    /// generation belongs to the history of this label. A generation that is too old for `history`
    /// counts as a part of it; one that is too old for the history of this label does not.
    pub fn shares_history_with(&self, generation: u64, history: &History) -> bool {
        let id = |history: &History, back: u64| {
            usize::try_from(back).ok().and_then(|back| history.ids.get(back)).copied()
        };
        match self.generation.checked_sub(generation) {
            Some(back) => id(&self.history, back) == history.ids.first().copied(),
            None => {
                let id = id(history, generation - self.generation);
                id.is_none_or(|id| id == self.history.ids[0])
            }
        }
    }

    /// True if all fields match that are equal on all labels of a pool.
    ///
    /// The members and the size of a mirror change in a new generation, so labels of other
    /// generations, and those of stale members, may have other ones.
    pub fn is_same_pool(&self, other: &Self) -> bool {
        let is_changed = self.kind == PoolKind::MIRROR
            && (self.generation != other.generation
                || self.history.ids.first() != other.history.ids.first()
                || !self.names_itself()
                || !other.names_itself());
        self.kind == other.kind
            && self.pool == other.pool
            && self.block_bytes == other.block_bytes
            && (is_changed
                || (self.member_count == other.member_count
                    && self.vacant == other.vacant
                    && self.has_same_size(other)))
    }

    /// Returns the number of regions of a mirror.
    pub fn regions(&self) -> u32 {
        let regions = self.data_blocks.div_ceil(self.unit_blocks).min(u64::from(REGIONS_MAX));
        regions as u32
    }
}

#[cfg(test)]
mod tests;
