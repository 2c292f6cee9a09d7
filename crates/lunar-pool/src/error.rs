//! Reasons why a pool cannot be created, opened or changed.

use crate::format::{History, Label, MEMBERS_MAX, MEMBERS_MIN, PoolId, PoolKind, Unusable};
use lunar_block::ErrorKind;

/// A reason why a pool was not created, opened or changed. Nothing was written to the members of a
/// pool that was not opened.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum PoolError {
    /// The number of members is impossible.
    #[error("a pool has from {MEMBERS_MIN} to {MEMBERS_MAX} members, not {0}")]
    MemberCount(usize),
    /// One device was given twice.
    #[error("{device} was named twice")]
    NamedTwice {
        /// The device.
        device: String,
    },
    /// The device has no label.
    #[error("{device} has no label of a pool: it is not a member, or was overwritten")]
    NotAMember {
        /// The device.
        device: String,
    },
    /// The label of the device cannot be used.
    #[error("the label of {device} cannot be used: {why}")]
    Unusable {
        /// The device.
        device: String,
        /// The reason.
        why: Unusable,
    },
    /// The devices are members of different pools.
    #[error(
        "{device} is a member of pool {pool}, {other} of pool {other_pool}: they do not belong \
         together"
    )]
    Foreign {
        /// A device.
        device: String,
        /// Its pool.
        pool: PoolId,
        /// The first device.
        other: String,
        /// The pool of the first device.
        other_pool: PoolId,
    },
    /// The labels of one pool describe different sizes or kinds.
    #[error("{device} and {other} have labels of one pool that describe different sizes or kinds")]
    Shape {
        /// A device.
        device: String,
        /// The first device.
        other: String,
    },
    /// Two devices have the label of one member.
    #[error(
        "{device} (generation {generation}) and {other} (generation {other_generation}) both are \
         member {slot}: one is a copy of the other, or was replaced by it; leave one of them out"
    )]
    Cloned {
        /// Slot of the member.
        slot: u16,
        /// A device.
        device: String,
        /// Generation of its label.
        generation: u64,
        /// The other device.
        other: String,
        /// Generation of the label of the other device.
        other_generation: u64,
    },
    /// Members that have all data, or all members of a stripe or concatenation, are missing.
    #[error(
        "{} of {member_count} missing{}", members_text(slots),
        .causes.iter().map(|cause| format!("; {cause}")).collect::<String>()
    )]
    Missing {
        /// Slots of the members.
        slots: Vec<u16>,
        /// Number of members of the pool.
        member_count: u16,
        /// Failures of devices whose labels could not be read.
        causes: Vec<String>,
    },
    /// No member is present that has all data.
    #[error("no member is present that has all data of generation {generation}")]
    NoneCurrent {
        /// Generation of the newest label.
        generation: u64,
    },
    /// Each side of a mirror was written without the other (split brain).
    #[error("{0}")]
    Split(Box<SplitMirror>),
    /// The device is a member of a pool already.
    #[error("{device} is a member of pool {pool} already: clear its label if it is not needed")]
    InUse {
        /// The device.
        device: String,
        /// Its pool.
        pool: PoolId,
    },
    /// The device has a damaged label, or one of a later version.
    #[error("{device} has a label that cannot be used ({why}): clear it if it is not needed")]
    InUnknownUse {
        /// The device.
        device: String,
        /// The reason.
        why: Unusable,
    },
    /// The device is too small.
    #[error(
        "{device} is too small: a member needs 1 MiB and 4 KiB for labels, and room for data{}",
        .need_blocks.map(|blocks| format!(" ({blocks} blocks in all)")).unwrap_or_default()
    )]
    TooSmall {
        /// The device.
        device: String,
        /// Required number of blocks, if it is known.
        need_blocks: Option<u64>,
    },
    /// The block lengths differ.
    #[error("{device} has blocks of {block_bytes} bytes, the other members of {other_bytes}")]
    BlockLength {
        /// The device.
        device: String,
        /// Its block length.
        block_bytes: u32,
        /// Block length of the other members.
        other_bytes: u32,
    },
    /// The stripe unit is impossible.
    #[error(
        "a stripe unit of {unit_bytes} bytes is impossible: it is a multiple of the physical block \
         of {physical_block_bytes} bytes, and at most 1 GiB"
    )]
    Unit {
        /// The unit.
        unit_bytes: u32,
        /// The longest physical block of the members.
        physical_block_bytes: u32,
    },
    /// The pool is too large.
    #[error("the pool would be larger than 2^63 bytes")]
    TooLarge,
    /// The device is read-only.
    #[error("{device} is read-only")]
    ReadOnly {
        /// The device.
        device: String,
    },
    /// The device cannot be erased by deallocation.
    #[error("{device} cannot be erased: it does not support deallocation")]
    NotErasable {
        /// The device.
        device: String,
    },
    /// Only a mirror can do this.
    #[error("a {} cannot {operation}: only a mirror can", .kind.as_str())]
    NotAMirror {
        /// The kind of the pool.
        kind: PoolKind,
        /// The operation.
        operation: &'static str,
    },
    /// The pool has no member at this slot.
    #[error("the pool has no member {slot}")]
    NoSuchMember {
        /// The slot.
        slot: u16,
    },
    /// A mirror keeps two members.
    #[error("a mirror keeps at least {MEMBERS_MIN} members: replace the member instead")]
    TooFewMembers,
    /// No device belongs to the side that is to be kept.
    #[error("no device belongs to the side of the mirror that is to be kept")]
    NoSuchSide,
    /// A scrub runs already.
    #[error("a scrub runs already")]
    ScrubRuns,
    /// The member has data that no other current member has.
    #[error(
        "member {slot} ({device}) has data that no other current member has: wait until another \
         member has everything"
    )]
    LastCurrent {
        /// The slot.
        slot: u16,
        /// The device.
        device: String,
    },
    /// Writes that the pool sent to the device earlier are still pending, and might overwrite newer
    /// data.
    #[error("earlier writes to {device} have not ended: try again when it answers")]
    Unsettled {
        /// The device.
        device: String,
    },
    /// The device does not support deallocation, unlike the members of the pool.
    #[error("{device} does not support deallocation, unlike the members of the pool")]
    NotSparse {
        /// The device.
        device: String,
    },
    /// Another host has a member.
    #[error(
        "{device} is owned by {owner}: close the pool there, or take it over, which ends its use \
         there"
    )]
    OwnedElsewhere {
        /// The device.
        device: String,
        /// Name of the owner.
        owner: String,
    },
    /// A member failed.
    #[error(transparent)]
    Device(#[from] lunar_block::Error),
}

/// The two sides of a mirror that were written independently (split brain): each has data that the
/// other side lacks.
#[derive(Clone, Debug, Eq, PartialEq, thiserror::Error)]
#[error(
    "the mirror {pool} is split: {} were each written without the other since generation \
     {common_generation}; decide which side is kept",
    .sides.each_ref().map(|side| side.to_string()).join(" and ")
)]
pub struct SplitMirror {
    /// The pool.
    pub pool: PoolId,
    /// The last generation that both sides have; 0 if it is too long ago.
    pub common_generation: u64,
    /// The side with the newest label first.
    pub sides: [MirrorSide; 2],
}

/// The members of one side of a split mirror.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct MirrorSide {
    /// Names of the devices.
    pub devices: Vec<String>,
    /// Generation of the newest label.
    pub generation: u64,
    /// Random ids of that generation and of those before.
    pub history: History,
}

impl std::fmt::Display for MirrorSide {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let devices = self.devices.join(", ");
        write!(f, "{devices} (generation {}, history {:?})", self.generation, self.history)
    }
}

impl SplitMirror {
    /// Describes a split between the newest label and one that does not belong to its history.
    pub(crate) fn new(newest: (&Label, Vec<String>), other: (&Label, Vec<String>)) -> Self {
        let side = |(label, devices): (&Label, Vec<String>)| MirrorSide {
            devices,
            generation: label.generation,
            history: label.history.clone(),
        };
        let (pool, common_generation) = (newest.0.pool, common_generation(newest.0, other.0));
        Self { pool, common_generation, sides: [side(newest), side(other)] }
    }
}

/// Returns the last generation for which both labels have the same id.
fn common_generation(one: &Label, other: &Label) -> u64 {
    let id = |label: &Label, generation: u64| {
        let back = label.generation.checked_sub(generation)?;
        label.history.ids().get(usize::try_from(back).ok()?).copied()
    };
    let last = one.generation.min(other.generation);
    let generations = (1..=last).rev().take(crate::format::HISTORY_GENERATIONS_MAX);
    let mut common = generations.filter(|generation| {
        let both = id(one, *generation).zip(id(other, *generation));
        both.is_some_and(|(one, other)| one == other)
    });
    common.next().unwrap_or(0)
}

fn members_text(slots: &[u16]) -> String {
    match slots {
        [slot] => format!("member {slot}"),
        _ => {
            let slots: Vec<String> = slots.iter().map(u16::to_string).collect();
            format!("members {}", slots.join(", "))
        }
    }
}

impl PoolError {
    /// Converts the error to one of a device named `pool`.
    pub fn into_device_error(self, pool: &str) -> lunar_block::Error {
        match self {
            Self::Device(error) => error,
            other => lunar_block::Error::new(ErrorKind::Open, pool, other.to_string()),
        }
    }
}
