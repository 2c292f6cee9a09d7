//! A unit gets another size while initiators use it.

use crate::Error;
use crate::unit::LogicalUnit;
use lunar_scsi::plan::LbaRange;
use std::sync::Arc;
use std::time::Duration;

/// Writes to blocks that go are waited for so long; a disk that hangs keeps its size.
const SHRINK_WAIT_MAX: Duration = Duration::from_secs(10);

/// Whether blocks may be given up.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Shrink {
    /// A smaller size is refused.
    Refused,
    /// What lies beyond a smaller size is lost.
    Allowed,
}

impl LogicalUnit {
    /// Gives the unit another size, durably; initiators are told CAPACITY DATA HAS CHANGED. New
    /// blocks can be used once they are told, blocks that go are refused before they go.
    ///
    /// # Errors
    /// A device whose size is not ours to change, a size that is impossible, a smaller one that
    /// was not allowed, a SANITIZE or FORMAT UNIT that is under way; the size is as it was then,
    /// unless only the sync failed.
    pub async fn resize(self: &Arc<Self>, size_bytes: u64, shrink: Shrink) -> Result<(), Error> {
        let device = self.device();
        let name = device.name();
        let refuse = |what: String| Error::Options(format!("{name} cannot be resized: {what}"));
        let Some(resize) = device.resize().filter(|_| !self.is_read_only()) else {
            return Err(refuse("it is read-only, or of a kind that has one size".to_owned()));
        };
        let _alone = self.resizing.lock().await;
        if self.scsi().operation().is_some() {
            return Err(refuse("a SANITIZE or FORMAT UNIT is under way".to_owned()));
        }
        let old = device.geometry();
        let lost = old.size_bytes().saturating_sub(size_bytes);
        if lost == 0 {
            let resized = resize.resize(size_bytes).await;
            // A disk of which only the sync has failed has that size.
            self.scsi().resize(device.geometry().block_count);
            return Ok(resized?);
        }
        if shrink == Shrink::Refused {
            return Err(refuse(format!("the last {lost} bytes would be lost")));
        }
        let block_bytes = u64::from(old.block_bytes);
        if !size_bytes.is_multiple_of(block_bytes) || size_bytes == 0 {
            return Err(refuse(format!("{size_bytes} is no multiple of {block_bytes} bytes")));
        }
        let lba = size_bytes / block_bytes;
        self.scsi().resize(lba);
        // Writes that were judged before come first.
        let tail = LbaRange { lba, count: old.block_count - lba };
        let nobody = tokio::time::timeout(SHRINK_WAIT_MAX, self.ranges.lock(tail, true)).await;
        let Ok(_nobody) = nobody else {
            self.scsi().resize(old.block_count);
            return Err(refuse("writes to the blocks that would go do not end".to_owned()));
        };
        let resized = resize.resize(size_bytes).await;
        self.scsi().resize(device.geometry().block_count);
        Ok(resized?)
    }
}
