//! The durable record of the blocks of an extent.

use std::io;

/// Records durably that an extent is at its destination. Calls may block.
pub trait MigrationRecord: Send + Sync {
    /// Makes the destination durable, all of it or nothing. All data is durable there.
    fn commit(&self) -> RecordOutcome;

    /// Makes the source durable again after a commit that failed.
    ///
    /// # Errors
    /// The record may name the source or the destination.
    fn revert(&self) -> io::Result<()>;
}

/// The result of a commit.
#[derive(Debug)]
pub enum RecordOutcome {
    /// The destination is durable.
    Committed,
    /// The commit was not tried, because others use the record at present.
    Busy,
    /// The commit failed; the record may name the source or the destination.
    Failed(io::Error),
}
