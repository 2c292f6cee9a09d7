//! What can go wrong with a disk.

use crate::BlockRange;
use std::sync::Arc;

/// The kind of a failure; SCSI sense is chosen by it.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
#[non_exhaustive]
pub enum ErrorKind {
    /// A block lies past the end.
    OutOfRange,
    /// The buffer's length does not fit the range.
    Unaligned,
    /// The device takes no writes.
    ReadOnly,
    /// There is no room for the write.
    NoSpace,
    /// The device failed.
    Medium,
    /// A sync failed before: nothing written since may be trusted.
    Poisoned,
    /// The device cannot be opened: missing, in use, no permission, an impossible shape.
    Open,
    /// The connection to a remote device is lost.
    Disconnected,
}

/// A failure of a disk: its kind, which device, which blocks, and what the system said.
#[derive(Debug, thiserror::Error)]
#[error(
    "{device}: {what}{}",
    .range.map(|r| format!(" (blocks {}+{})", r.lba, r.count)).unwrap_or_default()
)]
pub struct Error {
    /// Kind.
    pub kind: ErrorKind,
    /// The device's name.
    pub device: Arc<str>,
    /// Which blocks, where it matters.
    pub range: Option<BlockRange>,
    /// What failed, and where it helps what to do.
    pub what: String,
    /// What the operating system or the peer said.
    #[source]
    pub source: Option<Box<dyn std::error::Error + Send + Sync>>,
}

impl Error {
    /// A failure of `device`.
    pub fn new(kind: ErrorKind, device: impl Into<Arc<str>>, what: impl Into<String>) -> Self {
        Self { kind, device: device.into(), range: None, what: what.into(), source: None }
    }

    /// It concerns these blocks.
    pub fn at(mut self, range: BlockRange) -> Self {
        self.range = Some(range);
        self
    }

    /// This is behind it.
    pub fn because(mut self, source: impl Into<Box<dyn std::error::Error + Send + Sync>>) -> Self {
        self.source = Some(source.into());
        self
    }
}
