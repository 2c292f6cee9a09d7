//! Checks whether a command may run now, and detects changes of this.
//!
//! A command is checked when it arrives, and again when its data has arrived and nothing is left to
//! wait for: a reservation, a smaller size or a write protection that was set in between counts.
//! [`Conditions::check`] decides both times; it changes nothing and reports no unit attention.

use crate::commands::{CommandRow, Medium};
use crate::long_operation::Operations;
use crate::mode::ModePages;
use crate::plan::Refusal;
use crate::plan::medium::MediumState;
use crate::ports::PortGroups;
use crate::reservations::{ItNexus, Reservations};
use crate::sense::Sense;
use crate::unit::UnitOptions;
use core::ops::{Deref, DerefMut};

/// All state of a unit that decides whether a command may run.
#[derive(Debug)]
pub(crate) struct Conditions {
    pub(crate) options: UnitOptions,
    pub(crate) medium: MediumState,
    pub(crate) modes: ModePages,
    pub(crate) reservations: Reservations,
    pub(crate) port_groups: PortGroups,
    pub(crate) operations: Operations,
}

/// A value whose changes are counted: each mutable borrow increments the revision.
#[derive(Debug)]
pub(crate) struct ChangeCounted<T> {
    value: T,
    revision: u64,
}

impl<T> ChangeCounted<T> {
    pub(crate) fn new(value: T) -> Self {
        Self { value, revision: 0 }
    }

    /// Counts a change of other data that influences the decision.
    pub(crate) fn count_change(&mut self) {
        self.revision += 1;
    }

    /// The revision; while it is unchanged, the value is unchanged.
    pub(crate) fn revision(&self) -> u64 {
        self.revision
    }
}

impl<T> Deref for ChangeCounted<T> {
    type Target = T;

    fn deref(&self) -> &T {
        &self.value
    }
}

impl<T> DerefMut for ChangeCounted<T> {
    fn deref_mut(&mut self) -> &mut T {
        self.revision += 1;
        &mut self.value
    }
}

impl Conditions {
    /// Checks the conditions that all commands share, in this order: reservations, port state, long
    /// operation, medium, write protection. `ports` are those of the nexus that sends the command,
    /// `port_group` is the group of the target port that received it.
    ///
    /// # Errors
    /// The refusal to send, if the command may not run.
    #[inline]
    pub(crate) fn check(
        &self,
        command: &CommandRow,
        ports: Option<&ItNexus>,
        port_group: u16,
        cdb: &[u8],
    ) -> Result<(), Refusal> {
        if let Some(access) = command.reservation.access(cdb) {
            // An internal error: the nexus was never attached.
            let ports = ports.ok_or(Sense::INTERNAL_TARGET_FAILURE)?;
            if self.reservations.conflict(ports, access) {
                return Err(Refusal::ReservationConflict);
            }
        }
        self.port_groups.check(port_group, command.ports, cdb)?;
        self.operations.check(command.during_operation, command.medium != Medium::Unneeded)?;
        if command.medium != Medium::Unneeded {
            self.medium.check()?;
        }
        if command.medium == Medium::Writable {
            self.check_writable()?;
        }
        Ok(())
    }

    /// Checks that the medium is not write protected.
    pub(crate) fn check_writable(&self) -> Result<(), Sense> {
        self.modes.write_protection(&self.options).map_or(Ok(()), Err)
    }
}
