//! Errors of disks.

use crate::BlockRange;
use std::sync::Arc;

/// The kind of a failure; it selects the SCSI sense data.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
#[non_exhaustive]
pub enum ErrorKind {
    /// A block lies past the end.
    OutOfRange,
    /// The buffer's length does not fit the range.
    Unaligned,
    /// The device is read-only.
    ReadOnly,
    /// The device has no free space for the write.
    NoSpace,
    /// The device failed.
    Medium,
    /// A sync failed before: data written since the last good sync may be lost.
    Poisoned,
    /// The device cannot be opened: missing, in use, no permission, or an invalid geometry.
    Open,
    /// The connection to a remote device is lost.
    Disconnected,
    /// The exclusive ownership of the device was lost: another owner may write to it.
    Fenced,
    /// The remote device has no room for the command, which had no effect.
    Busy,
}

/// A failure of a disk: its kind, the device, the blocks, and the message of the system.
#[derive(Debug, thiserror::Error)]
#[error(
    "{device}: {what}{}",
    .range.map(|r| format!(" (blocks {}+{})", r.lba, r.count)).unwrap_or_default()
)]
pub struct Error {
    /// The kind of the failure.
    pub kind: ErrorKind,
    /// The device's name.
    pub device: Arc<str>,
    /// The blocks concerned, if the failure concerns particular blocks.
    pub range: Option<BlockRange>,
    /// Description of the failure and, if helpful, of the remedy.
    pub what: String,
    /// The error reported by the operating system or the peer.
    #[source]
    pub source: Option<Box<dyn std::error::Error + Send + Sync>>,
}

impl Error {
    /// Creates a failure of `device`, without a range or a source.
    pub fn new(kind: ErrorKind, device: impl Into<Arc<str>>, what: impl Into<String>) -> Self {
        Self { kind, device: device.into(), range: None, what: what.into(), source: None }
    }

    /// Adds the range of blocks that the failure concerns.
    pub fn at(mut self, range: BlockRange) -> Self {
        self.range = Some(range);
        self
    }

    /// Adds the error that caused this failure.
    pub fn because(mut self, source: impl Into<Box<dyn std::error::Error + Send + Sync>>) -> Self {
        self.source = Some(source.into());
        self
    }
}
