//! The part of a logical unit that all peripheral device types share. SPC-4.

use crate::commands::{CommandTable, Features};
use crate::plan::{NexusId, PrimaryPlan};
use crate::rights::Rights;

/// A type of logical units, with its commands. SPC-4 calls the device server the part of a unit
/// that processes commands.
pub trait DeviceServer: Sized + 'static {
    /// The action for one of its commands.
    type Plan: From<PrimaryPlan>;

    /// The commands of this type of units.
    fn commands() -> &'static CommandTable<Self>;

    /// The optional features of the unit, on which commands and pages depend.
    fn features(&self) -> Features;

    /// The rights of a nexus.
    fn rights(&self, nexus: NexusId) -> Rights;
}
