//! The self-test of SEND DIAGNOSTIC.

use super::{Run, Step, Stop};
use lunar_scsi::plan::LbaRange;
use lunar_scsi::sense::Sense;

impl Run<'_> {
    /// Reads each of the ranges. A block that cannot be read fails the test; the log has the
    /// reason.
    pub(super) async fn self_test(&self, reads: &[LbaRange]) -> Step<()> {
        self.enter()?;
        for range in reads {
            self.read_blocks(*range).await.map_err(|stop| match stop {
                Stop::Check(_) => Stop::Check(Sense::LOGICAL_UNIT_FAILED_SELF_TEST),
                other => other,
            })?;
        }
        Ok(())
    }
}
