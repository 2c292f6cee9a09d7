//! Changes of the reservations that are not on stable storage yet.
//!
//! A change takes effect for all commands at once, and its command ends with GOOD when it is saved.
//! One save includes the changes of many commands. If it fails, all of them are reverted, and all
//! later changes with them, which depend on them: none of their commands has ended.

use crate::primary::PrimaryUnit;
use crate::reservations::Reservations;

/// The unsaved changes of the reservations.
#[derive(Debug, Default)]
pub(crate) struct UnsavedChanges {
    /// The reservations on stable storage; `None` if the current ones are.
    saved: Option<Reservations>,
    /// True if there are changes since the last save began.
    is_changed_since: bool,
}

/// The reservations that a save in progress writes.
#[derive(Debug)]
pub struct ReservationsSnapshot(Reservations);

impl UnsavedChanges {
    /// Records that a command has changed the reservations, which were `before`; `in_state` is true
    /// if their saved form has changed. Returns whether the command has to wait for a save. A
    /// command that changed nothing in the saved form waits if it depends on unsaved changes.
    pub(crate) fn add(&mut self, before: Reservations, in_state: bool) -> bool {
        if self.saved.is_none() {
            if !in_state {
                return false;
            }
            self.saved = Some(before);
        }
        self.is_changed_since = true;
        true
    }
}

impl PrimaryUnit {
    /// True if there are unsaved changes of the reservations.
    pub fn has_unsaved_changes(&self) -> bool {
        self.unsaved.saved.is_some()
    }

    /// Begins a save of the unit's state, which includes all changes so far. Only one may run at a
    /// time.
    pub fn begin_save(&mut self) -> ReservationsSnapshot {
        self.unsaved.is_changed_since = false;
        ReservationsSnapshot(self.reservations().clone())
    }

    /// Ends a save that has succeeded.
    pub fn end_save(&mut self, snapshot: ReservationsSnapshot) {
        self.unsaved.saved = self.unsaved.is_changed_since.then_some(snapshot.0);
    }

    /// Reverts all unsaved changes after a failed save.
    pub fn roll_back(&mut self) {
        if let Some(saved) = self.unsaved.saved.take() {
            self.access.reservations = saved;
        }
    }
}
