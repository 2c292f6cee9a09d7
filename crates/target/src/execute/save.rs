//! Changes of the reservations, and their saving. Aborted, the command ends; the saving goes on: a
//! disk that hangs under the state hangs as long as it will.

use super::{Ending, internal_failure};
use crate::abort::{AbortSignal, Aborted};
use crate::fair_mutex::FairGuard;
use crate::unit::LogicalUnit;
use block::MemoryOwner;
use bytes::Bytes;
use scsi::unit::{BlockUnit, Checkpoint};
use std::sync::Arc;

/// A change of the reservations that may have to be saved. While it lives nobody else makes one: a
/// change that cannot be saved is taken back, and what came after it would be built on it.
pub(crate) struct Reserving {
    alone: FairGuard,
    before: Checkpoint,
    after: Checkpoint,
}

impl Reserving {
    /// Waits for its turn among those of `owner`, and for that of the owner, then has `change`
    /// change the reservations.
    pub(crate) async fn change<T>(
        unit: &LogicalUnit,
        owner: &Arc<MemoryOwner>,
        abort: &AbortSignal,
        change: impl FnOnce(&mut BlockUnit) -> T,
    ) -> Result<(Self, T), Aborted> {
        let alone = abort.unless(unit.reserving.lock(owner)).await?;
        let mut scsi = unit.scsi();
        let before = scsi.checkpoint();
        let changed = change(&mut scsi);
        Ok((Self { alone, before, after: scsi.checkpoint() }, changed))
    }

    /// Saves it. What is answered with an error does not hold.
    pub(crate) async fn save(self, unit: &Arc<LogicalUnit>, abort: &AbortSignal) -> Ending {
        let unit = Arc::clone(unit);
        let saving = tokio::spawn(async move {
            let Self { alone, before, after } = self; // all of it: the turn ends with the saving
            let saved = unit.save_state().await;
            if let Err(error) = &saved {
                unit.save_errors.write(|untold| {
                    tracing::error!(%error, untold, "reservations could not be saved");
                });
                unit.scsi().roll_back(before, &after);
                // Should the change be on the medium after all, the next start must not show it.
                let _ = unit.save_state().await;
            }
            drop(alone);
            saved
        });
        match abort.unless(saving).await {
            Ok(Ok(Ok(()))) => Ending::Good(Bytes::new()),
            Ok(_) => Ending::Check(internal_failure()),
            Err(Aborted) => Ending::Aborted,
        }
    }
}
