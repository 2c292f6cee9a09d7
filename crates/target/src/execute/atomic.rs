//! WRITE ATOMIC.

use super::{Run, Step, block_range, internal_failure};
use bytes::Bytes;
use scsi::plan::LbaRange;

impl Run<'_> {
    /// The device sees to it that no single read or write of it comes in between; the range is
    /// held alone as well, against commands that do their work in several.
    pub(super) async fn write_atomic(
        &self,
        range: LbaRange,
        data: Bytes,
        durable: bool,
    ) -> Step<()> {
        let _guard = self.lock(range, true).await?;
        self.abort.check()?;
        let Some(atomic) = self.device().atomic() else {
            return Err(internal_failure().into()); // the table refuses it on such units
        };
        let range = block_range(range);
        self.with_room(|| atomic.write_atomic(range, data.clone(), durable)).await
    }
}
