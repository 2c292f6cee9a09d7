//! Changes of the reservations that are not on stable storage yet.
//!
//! A change holds for all commands at once, and its command ends with GOOD when it is saved. One
//! save carries the changes of many commands. If it fails they are all taken back, and with them
//! those that came since, which were built on them: none of their commands has ended.

use crate::reservations::Reservations;
use crate::unit::BlockUnit;

/// Which changes of the reservations are not saved.
#[derive(Debug, Default)]
pub(crate) struct UnsavedChanges {
    /// The reservations that are on stable storage. `None`: the present ones are.
    saved: Option<Reservations>,
    /// There are changes that came after the last save began.
    is_changed_since: bool,
}

/// The reservations that a save carries.
#[derive(Debug)]
pub struct CarriedReservations(Reservations);

impl UnsavedChanges {
    /// A command has changed the reservations, which were as `before`; `in_state`: what is saved
    /// of them is another one now. Returns whether the command has to wait for a save: also if it
    /// changed nothing, but stands on changes that are not saved.
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

impl BlockUnit {
    /// Whether there are changes of the reservations that are not saved.
    pub fn has_unsaved_changes(&self) -> bool {
        self.unsaved.saved.is_some()
    }

    /// A save of [`persistent_state`](Self::persistent_state) begins, which carries all changes so
    /// far. One runs at a time.
    pub fn begin_save(&mut self) -> CarriedReservations {
        self.unsaved.is_changed_since = false;
        CarriedReservations(self.reservations().clone())
    }

    /// That save has succeeded.
    pub fn end_save(&mut self, carried: CarriedReservations) {
        self.unsaved.saved = self.unsaved.is_changed_since.then_some(carried.0);
    }

    /// Takes back all changes that are not saved: a save has failed.
    pub fn roll_back(&mut self) {
        if let Some(saved) = self.unsaved.saved.take() {
            self.conditions.reservations = saved;
        }
    }
}
