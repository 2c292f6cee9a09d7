//! Blocks that lie on LUNs of other targets, to which commands can be passed on.

use crate::BlockRange;
use std::any::Any;
use std::fmt;
use std::sync::Arc;

/// Maximum number of parts of one transfer that is relayed.
pub const RELAY_PARTS_MAX: usize = 256;

/// The translation of the blocks of a device to blocks of LUNs of other targets.
///
/// A relay may pass a READ or a WRITE of blocks that have a translation on to those LUNs, with the
/// same effect as a call of the device. A device that has anything else to do for a
/// transfer, such as writing to a second place, does not offer it.
pub trait RelayMap: Send + Sync {
    /// Adds the parts of `range`, in its order, to `parts`, for a WRITE or a READ. Returns `false`
    /// if some blocks must be read or written by the device itself, at present or always, or if
    /// there are more than [`RELAY_PARTS_MAX`] parts; `parts` is then of no use.
    fn add_parts(&self, range: BlockRange, is_write: bool, parts: &mut Vec<RelayPart>) -> bool;
}

/// Consecutive blocks of a transfer that lie on one LUN.
#[derive(Clone, Debug)]
pub struct RelayPart {
    /// The LUN.
    pub storage: Arc<dyn RelayStorage>,
    /// The blocks there.
    pub range: BlockRange,
    /// Kept until the transfer has ended: the blocks belong to the device as long as this exists.
    pub held: Option<Arc<dyn Any + Send + Sync>>,
}

/// A LUN of another target, as the end of a [`RelayMap`]. Only a relay knows its type.
pub trait RelayStorage: Any + fmt::Debug + Send + Sync {
    /// Returns this value, so that a relay finds its type.
    fn as_any(&self) -> &dyn Any;
}
