//! Whether a command may run now, and how it is noticed that this may have changed.
//!
//! A command is judged when it comes, and again when its data has come and nothing is left to wait
//! for: a reservation, a smaller size or a write protection that was set in between counts. Both
//! times [`Conditions::check`] decides; it changes nothing and tells no unit attention.

use crate::commands::{Command, Medium};
use crate::long_operation::Operations;
use crate::mode::ModePages;
use crate::plan::Refusal;
use crate::plan::medium::MediumState;
use crate::ports::PortGroups;
use crate::reservations::{ItNexus, Reservations};
use crate::sense::Sense;
use crate::unit::UnitOptions;
use core::ops::{Deref, DerefMut};

/// Everything a unit knows that decides whether a command may run.
#[derive(Debug)]
pub(crate) struct Conditions {
    pub(crate) options: UnitOptions,
    pub(crate) medium: MediumState,
    pub(crate) modes: ModePages,
    pub(crate) reservations: Reservations,
    pub(crate) port_groups: PortGroups,
    pub(crate) operations: Operations,
}

/// A value and how often it was borrowed mutably: no change goes uncounted.
#[derive(Debug)]
pub(crate) struct Revised<T> {
    value: T,
    revision: u64,
}

impl<T> Revised<T> {
    pub(crate) fn new(value: T) -> Self {
        Self { value, revision: 0 }
    }

    /// Counts a change of something beside the value that decides as well.
    pub(crate) fn count_change(&mut self) {
        self.revision += 1;
    }

    /// While it is the same, so is the value.
    pub(crate) fn revision(&self) -> u64 {
        self.revision
    }
}

impl<T> Deref for Revised<T> {
    type Target = T;

    fn deref(&self) -> &T {
        &self.value
    }
}

impl<T> DerefMut for Revised<T> {
    fn deref_mut(&mut self) -> &mut T {
        self.revision += 1;
        &mut self.value
    }
}

impl Conditions {
    /// Judges what all commands have in common, in this order: reservations, state of the port,
    /// long operation, medium, write protection. `ports` are those of the nexus that sends the
    /// command, `port_group` is the group of the target port that it comes through.
    ///
    /// # Errors
    /// The refusal to send, when the command may not run.
    #[inline]
    pub(crate) fn check(
        &self,
        command: &Command,
        ports: Option<&ItNexus>,
        port_group: u16,
        cdb: &[u8],
    ) -> Result<(), Refusal> {
        if let Some(access) = command.reservation.access(cdb) {
            // Ours: the target asks for a nexus it never attached.
            let ports = ports.ok_or(Sense::INTERNAL_TARGET_FAILURE)?;
            if self.reservations.conflict(ports, access) {
                return Err(Refusal::ReservationConflict);
            }
        }
        self.port_groups.check(port_group, cdb)?;
        self.operations.check(cdb, command.medium != Medium::Unneeded)?;
        if command.medium != Medium::Unneeded {
            self.medium.check()?;
        }
        if command.medium == Medium::Writable {
            self.check_writable()?;
        }
        Ok(())
    }

    /// The medium is not write protected.
    pub(crate) fn check_writable(&self) -> Result<(), Sense> {
        self.modes.write_protection(&self.options).map_or(Ok(()), Err)
    }
}
