//! Checks whether a command may run now, and detects changes of this.
//!
//! A command is checked when it arrives, and again when its data has arrived and nothing is left to
//! wait for: a reservation, a smaller size or a write protection that was set in between counts.
//! [`PrimaryUnit::check`](crate::primary::PrimaryUnit::check) and [`Conditions::check`] decide both
//! times; they change nothing and report no unit attention.

use crate::commands::{CommandRow, Medium};
use crate::long_operation::Operations;
use crate::mode::BlockModes;
use crate::plan::medium::MediumState;
use crate::sense::Sense;
use crate::unit::UnitOptions;
use core::ops::{Deref, DerefMut};

/// All state of a block unit, beside that of every unit, that decides whether a command may run.
#[derive(Debug)]
pub(crate) struct Conditions {
    pub(crate) options: UnitOptions,
    pub(crate) medium: MediumState,
    pub(crate) modes: BlockModes,
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
    /// Checks whether a command may run in the present state: long operation, medium, write
    /// protection, in this order.
    ///
    /// # Errors
    /// The reason why not.
    #[inline]
    pub(crate) fn check(&self, command: &CommandRow) -> Result<(), Sense> {
        let uses_medium = command.medium != Medium::Unneeded;
        self.operations.check(command.during_operation, uses_medium)?;
        if uses_medium {
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
