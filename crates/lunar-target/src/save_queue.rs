//! Changes of the reservations, and their persistence.
//!
//! A change is made at once, under the lock of the unit. The next save carries all changes made
//! while a save ran: each initiator waits for two saves at most, whatever the number of changes. An
//! aborted command ends while the save continues: a disk that hangs under the state may hang for
//! any time.

use crate::abort::{AbortSignal, Aborted};
use crate::disk_unit::DiskUnit;
use crate::plan_result::{PlanResult, internal_failure};
use crate::registration_room::{CountedRegistrations, RegistrationRoom};
use bytes::Bytes;
use lunar_scsi::plan::{Plan, Refusal};
use lunar_scsi::share::Origin;
use lunar_scsi::unit::BlockUnit;
use lunar_scsi::unsaved::ReservationsSnapshot;
use std::sync::{Arc, MutexGuard, PoisonError};
use tokio::sync::oneshot;
use tokio::task::JoinHandle;

/// The commands that wait until their changes of the reservations are saved. Locked only under the
/// lock of the SCSI state.
#[derive(Debug, Default)]
pub(crate) struct SaveQueue {
    waiting: Vec<oneshot::Sender<bool>>,
    /// Task that saves, and looks for further changes when a save is done.
    saver: Option<JoinHandle<()>>,
}

/// A change of the reservations that is being saved.
#[derive(Debug)]
pub(crate) struct UnsavedChange {
    saved: oneshot::Receiver<bool>,
}

impl SaveQueue {
    /// True when a task saves, or is about to.
    pub(crate) fn saves(&self) -> bool {
        self.saver.as_ref().is_some_and(|saver| !saver.is_finished())
    }

    /// Number of commands that wait for a save that has not begun.
    #[cfg(test)]
    pub(crate) fn waiting(&self) -> usize {
        self.waiting.len()
    }
}

impl UnsavedChange {
    /// Waits until the change is saved. A change that is answered with an error was rolled back.
    pub(crate) async fn saved(self, abort: &AbortSignal) -> PlanResult {
        match abort.unless(self.saved).await {
            Ok(Ok(true)) => PlanResult::Good(Bytes::new()),
            Ok(_) => PlanResult::Check(internal_failure()),
            Err(Aborted) => PlanResult::Aborted,
        }
    }
}

impl DiskUnit {
    /// Applies `change` of an initiator from `origin` to the reservations, as far as there is room
    /// for registrations. Starts a save if the resulting plan needs one.
    pub(crate) fn change_reservations(
        self: &Arc<Self>,
        room: &RegistrationRoom,
        origin: Option<Origin>,
        change: impl FnOnce(&mut BlockUnit) -> Result<Plan, Refusal>,
    ) -> (Result<Plan, Refusal>, Option<UnsavedChange>) {
        let mut scsi = self.scsi();
        scsi.set_registrations_allowed(room.registrations_left_for(origin));
        let planned = change(&mut scsi);
        if planned.is_ok() {
            self.count_registrations(&scsi, room);
        }
        let is_unsaved =
            matches!(&planned, Ok(Plan::SaveState | Plan::AbortTasksOf { save: true, .. }));
        // Before the lock is released: a save that fails now would roll the change back without an
        // error to this command.
        let unsaved = is_unsaved.then(|| self.queue_for_save());
        (planned, unsaved)
    }

    /// Counts the current registrations.
    pub(crate) fn count_registrations(&self, scsi: &BlockUnit, room: &RegistrationRoom) {
        self.counted_registrations().update(room, scsi);
    }

    /// The counted registrations. Locked only under the lock of the SCSI state.
    pub(crate) fn counted_registrations(&self) -> MutexGuard<'_, CountedRegistrations> {
        self.registrations.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn queue_for_save(self: &Arc<Self>) -> UnsavedChange {
        let (sender, saved) = oneshot::channel();
        let mut queue = self.save_queue();
        if queue.waiting.len() == queue.waiting.capacity() {
            // However long a save takes, aborted commands do not accumulate.
            queue.waiting.retain(|waiting| !waiting.is_closed());
        }
        queue.waiting.push(sender);
        if !queue.saves() {
            // A task of its own: the connection of a command is polled only as far as its owner has
            // time on the core, and other commands wait for this save.
            queue.saver = Some(tokio::spawn(save_changes(Arc::clone(self))));
        }
        UnsavedChange { saved }
    }

    /// The changes that the next save carries, and the commands that wait for it. `None` if all is
    /// saved.
    fn begin_save(&self) -> Option<(ReservationsSnapshot, Vec<oneshot::Sender<bool>>)> {
        let mut scsi = self.scsi();
        let mut queue = self.save_queue();
        if !scsi.has_unsaved_changes() {
            queue.saver = None;
            return None;
        }
        Some((scsi.begin_save(), std::mem::take(&mut queue.waiting)))
    }

    /// Rolls unsaved changes back; returns the commands that wait for one of them.
    fn roll_back(&self) -> Vec<oneshot::Sender<bool>> {
        let mut scsi = self.scsi();
        scsi.roll_back();
        self.counted_registrations().recount_after_rollback(&scsi);
        std::mem::take(&mut self.save_queue().waiting)
    }
}

/// Saves the reservations until no change is left.
async fn save_changes(unit: Arc<DiskUnit>) {
    while let Some((snapshot, mut waiting)) = unit.begin_save() {
        let saved = unit.save_state().await;
        match &saved {
            Ok(()) => unit.scsi().end_save(snapshot),
            Err(error) => {
                unit.save_errors.write(|suppressed| {
                    tracing::error!(%error, suppressed, "cannot save persistent reservations");
                });
                waiting.extend(unit.roll_back());
                // If the changes are on the medium after all, the next start must not load them.
                let _ = unit.save_state().await;
            }
        }
        for waiting in waiting {
            let _ = waiting.send(saved.is_ok()); // an aborted command no longer waits
        }
    }
}
