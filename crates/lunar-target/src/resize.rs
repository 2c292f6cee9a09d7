//! Resizing of a unit while initiators use it.

use crate::Error;
use crate::disk_unit::DiskUnit;
use lunar_scsi::plan::LbaRange;
use std::sync::Arc;
use std::time::Duration;

/// Time for which a shrink waits for writes to the removed blocks; if a disk hangs it keeps its
/// size.
const SHRINK_WAIT_MAX: Duration = Duration::from_secs(10);

/// Permission to remove blocks.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Shrink {
    /// A smaller size is refused.
    Refused,
    /// A smaller size is allowed; data beyond it is lost.
    Allowed,
}

impl DiskUnit {
    /// Takes over the size of a remote LUN that has grown at its target.
    pub(crate) fn follow_device_size(&self) {
        if self.device().link().is_none() {
            return;
        }
        let block_count = self.device().geometry().block_count;
        let mut scsi = self.scsi();
        if block_count > scsi.options().block_count {
            scsi.resize(block_count);
        }
    }

    /// Changes the size of the unit durably; initiators get CAPACITY DATA HAS CHANGED. New blocks
    /// can be used when it is reported; access to removed blocks is refused before they are
    /// removed.
    ///
    /// # Errors
    /// The device has a fixed size, the size is impossible, it is smaller and that was not allowed,
    /// or a SANITIZE or FORMAT UNIT is in progress. The size is then unchanged, unless only the
    /// sync failed.
    pub async fn resize(self: &Arc<Self>, size_bytes: u64, shrink: Shrink) -> Result<(), Error> {
        let device = self.device();
        let name = device.name();
        let refuse = |what: String| Error::Options(format!("{name} cannot be resized: {what}"));
        let Some(resize) = device.resize().filter(|_| !self.is_read_only()) else {
            return Err(refuse("it is read-only, or its kind has a fixed size".to_owned()));
        };
        let _alone = self.resizing.lock().await;
        if self.scsi().operation().is_some() {
            return Err(refuse("a SANITIZE or FORMAT UNIT is in progress".to_owned()));
        }
        let old = device.geometry();
        let lost = old.size_bytes().saturating_sub(size_bytes);
        if lost == 0 {
            let resized = resize.resize(size_bytes).await;
            // If only the sync has failed the disk has the new size.
            self.scsi().resize(device.geometry().block_count);
            return Ok(resized?);
        }
        if shrink == Shrink::Refused {
            return Err(refuse(format!("the last {lost} bytes would be lost")));
        }
        let block_bytes = u64::from(old.block_bytes);
        if !size_bytes.is_multiple_of(block_bytes) || size_bytes == 0 {
            return Err(refuse(format!(
                "{size_bytes} is not a multiple of the block size, {block_bytes} bytes"
            )));
        }
        let lba = size_bytes / block_bytes;
        self.scsi().resize(lba);
        // Waits for writes that were checked before.
        let tail = LbaRange { lba, count: old.block_count - lba };
        let nobody = tokio::time::timeout(SHRINK_WAIT_MAX, self.ranges.lock(tail, true)).await;
        let Ok(_nobody) = nobody else {
            self.scsi().resize(old.block_count);
            return Err(refuse(
                "writes to the blocks beyond the new end do not complete".to_owned(),
            ));
        };
        let resized = resize.resize(size_bytes).await;
        self.scsi().resize(device.geometry().block_count);
        Ok(resized?)
    }
}
