//! The durable record of the place of an extent.

use std::io;

/// Records durably that an extent has its new place. Calls may block.
pub trait MigrationRecord: Send + Sync {
    /// Makes the new place durable, all of it or nothing. All data is durable there.
    fn commit(&self) -> RecordOutcome;

    /// Makes the former place durable again after a commit that failed.
    ///
    /// # Errors
    /// The record may name either place.
    fn revert(&self) -> io::Result<()>;
}

/// The result of a commit.
#[derive(Debug)]
pub enum RecordOutcome {
    /// The new place is durable.
    Committed,
    /// The commit was not tried, because others use the record at present.
    Busy,
    /// The commit failed; the record may name either place.
    Failed(io::Error),
}
