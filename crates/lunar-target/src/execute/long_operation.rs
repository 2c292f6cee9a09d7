//! SANITIZE and FORMAT UNIT: begin an operation, and wait for its end unless IMMED is set.

use super::{Run, Step, Stop, internal_failure};
use crate::long_operation::OperationOwner;
use lunar_scsi::long_operation::LongOperation;
use lunar_scsi::plan::NexusId;
use std::sync::Arc;

impl Run<'_> {
    pub(super) async fn long_operation(
        &self,
        operation: LongOperation,
        by: NexusId,
        immediate: bool,
    ) -> Step<()> {
        let owner = match &self.entry {
            Some(entry) => OperationOwner {
                time: entry.time_owner(),
                buffers: Some(self.memory.buffers.clone()),
            },
            None => OperationOwner::SERVER,
        };
        let begun = self.unit.begin_operation(operation, by, owner)?;
        // If the command is aborted, only the command ends; the operation continues.
        let ending = if immediate { begun.saved } else { begun.ended };
        match self.abort.unless(ending).await? {
            Ok(result) => Ok(result?),
            // The server stops, and resumes the operation with its next start.
            Err(_) => Err(Stop::Check(self.unit.scsi().overtaken_by_operation())),
        }
    }

    /// Leaves the failure mode and saves the state. If the change is answered with an error, it is
    /// undone. If the command is aborted, only the command ends; the save continues.
    pub(super) async fn exit_failure_mode(&self) -> Step<()> {
        let failure = self.unit.scsi().exit_failure_mode()?;
        let unit = Arc::clone(self.unit);
        let saving = tokio::spawn(async move {
            let saved = unit.save_state().await;
            if let Err(error) = &saved {
                unit.save_errors.write(|suppressed| {
                    tracing::error!(
                        %error,
                        suppressed,
                        "cannot save the result of EXIT FAILURE MODE"
                    );
                });
                unit.scsi().restore_failure(failure);
                // In case the changed state is on the medium after all.
                let _ = unit.save_state().await;
            }
            saved
        });
        match self.abort.unless(saving).await? {
            Ok(Ok(())) => Ok(()),
            _ => Err(Stop::Check(internal_failure())),
        }
    }
}
