//! WRITE ATOMIC.

use super::hold::LockMode;
use super::{Run, Step, block_range, internal_failure};
use bytes::Bytes;
use lunar_block::ErrorKind;
use lunar_scsi::plan::LbaRange;
use std::sync::Arc;

impl Run<'_> {
    /// Writes atomically. The device ensures that no single read or write of its own comes in
    /// between; the range is also locked exclusively, against commands that work in several steps.
    pub(super) async fn write_atomic(
        &self,
        range: LbaRange,
        data: Bytes,
        durable: bool,
    ) -> Step<()> {
        if self.device().atomic().is_none() {
            return Err(internal_failure().into()); // the table refuses it on such units
        }
        let work = || -> crate::detached_writes::MediumChange {
            let (device, data) = (Arc::clone(self.unit.device()), data.clone());
            Box::pin(async move {
                let none = || {
                    let what = "the device no longer supports atomic writes";
                    lunar_block::Error::new(ErrorKind::Medium, device.name(), what)
                };
                let atomic = device.atomic().ok_or_else(none)?;
                atomic.write_atomic(block_range(range), data, durable).await
            })
        };
        let written = self.with_space(range.into(), LockMode::Exclusive, work).await;
        lunar_net::count_moved(data.len());
        written.map(drop)
    }
}
