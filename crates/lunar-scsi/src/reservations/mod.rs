//! The reservations of a unit: RESERVE and RELEASE of SPC-2, and persistent reservations.
//! SPC-4 §5.12.
//!
//! A plain value: the unit queries it for conflicts of a command, passes it the service actions of
//! PERSISTENT RESERVE IN and OUT, and reports the returned unit attentions to the nexuses.
//! Registrations belong to I_T nexuses, not to sessions: they survive a logout, and an initiator
//! that returns still has them.

mod legacy;
mod moving;
mod out;
mod report;
mod state;
mod transport;

pub use moving::{MoveFlags, MoveParameters};
pub use out::{OutAction, OutFlags, OutParameters, OutRequest, ReserveOutcome};
pub use report::{Capabilities, FullStatus, HeldReservation, InAction, ReportHeader};

use crate::share::{Origin, Owner, Shares};
use crate::unit::{InitiatorPort, TargetPort};
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::cmp::Ordering;

/// Maximum number of registrations of one unit; a further one is refused.
pub const REGISTRATIONS_MAX: usize = 1024;
/// Maximum number of registrations of one unit that one initiator name has made, through all its
/// ports and for others. Four times the 32 paths to a disk that ESXi and Windows use at most
/// (decision 092).
pub const REGISTRATIONS_OF_INITIATOR_MAX: usize = 128;
/// Maximum number of registrations of one unit made by initiators of one origin whose names are not
/// proven: the hosts behind one address, or of one IPv6 network.
pub const REGISTRATIONS_OF_ORIGIN_MAX: usize = 512;

const SHARES: Shares = Shares {
    of_all: REGISTRATIONS_MAX,
    of_initiator: REGISTRATIONS_OF_INITIATOR_MAX,
    of_origin: REGISTRATIONS_OF_ORIGIN_MAX,
};

/// One I_T nexus in reservations: initiator port and target port.
///
/// Two values are equal if both ports are. The relative identifier of the target port may have
/// changed since the registration, and is not compared; nor is any other field of the initiator.
#[derive(Clone, Debug)]
pub struct ItNexus {
    initiator: InitiatorPort,
    port: TargetPort,
    origin: Option<Origin>,
    /// Registered in a former run: whether the initiator had proven its name is not known.
    is_restored: bool,
}

impl ItNexus {
    /// Creates the nexus between these ports, of an initiator with a proven name. Names are
    /// compared without case, like all iSCSI names.
    pub fn new(initiator: &InitiatorPort, port: &TargetPort) -> Self {
        let (initiator, port) = (initiator.clone(), port.clone());
        let mut nexus = Self { initiator, port, origin: None, is_restored: false };
        nexus.initiator.name.make_ascii_lowercase();
        nexus.port.name.make_ascii_lowercase();
        nexus
    }

    /// Returns the nexus for an initiator from `origin` without a proven name.
    #[must_use]
    pub fn from_origin(self, origin: Option<Origin>) -> Self {
        Self { origin, ..self }
    }

    /// The same nexus, as the state of a former run has it.
    fn restored(self) -> Self {
        Self { is_restored: true, ..self }
    }

    /// The initiator to which resources of this nexus are charged.
    pub fn owner(&self) -> Owner<'_> {
        Owner { name: &self.initiator.name, origin: self.origin }
    }

    /// The initiator port, with its name in lower case.
    pub const fn initiator(&self) -> &InitiatorPort {
        &self.initiator
    }

    /// The target port, with its name in lower case.
    pub const fn port(&self) -> &TargetPort {
        &self.port
    }
}

impl PartialEq for ItNexus {
    fn eq(&self, other: &Self) -> bool {
        #[cfg(test)]
        tests::count_comparison();
        // The ISID differs most often, and is cheapest to compare.
        self.initiator.isid == other.initiator.isid
            && self.port.portal_group_tag == other.port.portal_group_tag
            && self.initiator.name == other.initiator.name
            && self.port.name == other.port.name
    }
}

impl Eq for ItNexus {}

impl Ord for ItNexus {
    fn cmp(&self, other: &Self) -> Ordering {
        #[cfg(test)]
        tests::count_comparison();
        let isids = self.initiator.isid.cmp(&other.initiator.isid);
        isids
            .then(self.port.portal_group_tag.cmp(&other.port.portal_group_tag))
            .then_with(|| self.initiator.name.cmp(&other.initiator.name))
            .then_with(|| self.port.name.cmp(&other.port.name))
    }
}

impl PartialOrd for ItNexus {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

/// Conflict of a command with reservations of other nexuses. SPC-4 §5.12.1, SBC-3 §4.15.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum ReservationAccess {
    /// Never a conflict: INQUIRY, REPORT LUNS, REQUEST SENSE.
    Always,
    /// No conflict with a persistent reservation, but with RESERVE (6): TEST UNIT READY.
    Persistent,
    /// Conflicts with exclusive access.
    Read,
    /// Conflicts with exclusive access and with write exclusive.
    Write,
}

lunar_wire::wire_enum! {
    /// Type of a persistent reservation. SPC-4 §6.15.3.4.
    pub struct ReservationType(u8) {
        WRITE_EXCLUSIVE = 1, EXCLUSIVE_ACCESS = 3,
        WRITE_EXCLUSIVE_REGISTRANTS_ONLY = 5, EXCLUSIVE_ACCESS_REGISTRANTS_ONLY = 6,
        WRITE_EXCLUSIVE_ALL_REGISTRANTS = 7, EXCLUSIVE_ACCESS_ALL_REGISTRANTS = 8,
    }
}

impl ReservationType {
    /// True if reads conflict too.
    fn excludes_reads(self) -> bool {
        matches!(
            self,
            Self::EXCLUSIVE_ACCESS
                | Self::EXCLUSIVE_ACCESS_REGISTRANTS_ONLY
                | Self::EXCLUSIVE_ACCESS_ALL_REGISTRANTS
        )
    }

    /// True if one registrant holds the reservation and all registrants have access.
    fn is_registrants_only(self) -> bool {
        matches!(
            self,
            Self::WRITE_EXCLUSIVE_REGISTRANTS_ONLY | Self::EXCLUSIVE_ACCESS_REGISTRANTS_ONLY
        )
    }

    /// True if all registrants hold the reservation.
    fn is_all_registrants(self) -> bool {
        matches!(
            self,
            Self::WRITE_EXCLUSIVE_ALL_REGISTRANTS | Self::EXCLUSIVE_ACCESS_ALL_REGISTRANTS
        )
    }
}

#[derive(Clone, Debug, Eq, PartialEq)]
struct Registration {
    /// Shared, because the table is copied often.
    nexus: Arc<ItNexus>,
    /// Never 0.
    key: u64,
    /// True if it holds the reservation; never set if all registrants hold it.
    holds: bool,
    /// The nexus that made the registration by REGISTER AND MOVE; not saved with the state.
    made_by: Option<Arc<ItNexus>>,
}

impl Registration {
    /// The initiator to which the registration is charged: the one that made it.
    fn owner(&self) -> Owner<'_> {
        self.made_by.as_deref().unwrap_or(&self.nexus).owner()
    }

    /// The initiator in whose share it counts. A registration of an earlier run may have been made
    /// under a name that was only claimed: it counts in no share.
    fn counts_for(&self) -> Owner<'_> {
        match self.nexus.is_restored {
            true => Owner::UNKNOWN,
            false => self.owner(),
        }
    }
}

/// PRGENERATION of a unit and the number of registered nexuses. Every service action that changes a
/// registration increments PRGENERATION (SPC-4 §5.12.6); reserving and releasing do not.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct RegistrationsVersion {
    generation: u32,
    registered: usize,
}

/// The reservations of one unit. A copy is cheap: only later changes cost.
///
/// Invariants: `kind` is one of the six types. With an all registrants type there is a registration
/// and none `holds`; with another type exactly one `holds`; without a type none. `reserved_by`
/// (RESERVE (6)) excludes registrations.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Reservations {
    /// Registrations ordered by nexus, because every command looks up its own, even among a
    /// thousand. Shared with copies of this value until one of them changes.
    registrations: Arc<Vec<Registration>>,
    kind: Option<ReservationType>,
    generation: u32,
    /// True if the last registration requested that the state survives a loss of power.
    persists: bool,
    /// True if the state can be saved.
    can_persist: bool,
    reserved_by: Option<ItNexus>,
}

impl Reservations {
    /// Creates empty reservations. Unless the state can be saved (`can_persist`), APTPL is refused,
    /// as REPORT CAPABILITIES reports.
    pub fn new(can_persist: bool) -> Self {
        Self {
            registrations: Arc::default(),
            kind: None,
            generation: 0,
            persists: false,
            can_persist,
            reserved_by: None,
        }
    }

    /// True if a command of `nexus` ends with RESERVATION CONFLICT.
    ///
    /// RESERVE, RELEASE and PERSISTENT RESERVE IN and OUT check reservations themselves; do not
    /// call this function for them.
    #[inline]
    pub fn conflict(&self, nexus: &ItNexus, access: ReservationAccess) -> bool {
        let is_reserved = self.reserved_by.is_some() || self.kind.is_some();
        is_reserved && self.conflicts_with_holder(nexus, access)
    }

    fn conflicts_with_holder(&self, nexus: &ItNexus, access: ReservationAccess) -> bool {
        if access == ReservationAccess::Always {
            return false;
        }
        if let Some(owner) = &self.reserved_by {
            return owner != nexus;
        }
        let Some(kind) = self.kind else { return false };
        match access {
            ReservationAccess::Always | ReservationAccess::Persistent => false,
            ReservationAccess::Read if !kind.excludes_reads() => false,
            ReservationAccess::Read | ReservationAccess::Write => !self.has_access(nexus, kind),
        }
    }

    /// True if the registration of `nexus` is out of date: its port has another relative identifier
    /// now, or its initiator has proven its name since the registrations were restored.
    pub(crate) fn needs_update(&self, nexus: &ItNexus) -> bool {
        self.find(nexus).is_some_and(|at| {
            let known = &self.registrations[at].nexus;
            known.port.relative_id != nexus.port.relative_id
                || known.is_restored && nexus.origin.is_none()
        })
    }

    /// Updates the registration of a nexus that is attached (again): its relative identifier, and,
    /// for a registration of an earlier run, the initiator for which it counts, once that has
    /// proven its name.
    pub fn nexus_attached(&mut self, nexus: &ItNexus) {
        if self.needs_update(nexus)
            && let Some(at) = self.find(nexus)
        {
            let known = Arc::make_mut(&mut self.registrations_mut()[at].nexus);
            known.port.relative_id = nexus.port.relative_id;
            known.is_restored &= nexus.origin.is_some();
        }
    }

    /// Handles the loss of a nexus: its RESERVE (6) ends, registrations and persistent reservations
    /// stay.
    pub fn nexus_lost(&mut self, nexus: &ItNexus) {
        if self.reserved_by.as_ref() == Some(nexus) {
            self.reserved_by = None;
        }
    }

    /// Handles LOGICAL UNIT RESET or TARGET RESET: RESERVE (6) ends, the rest stays.
    pub fn reset(&mut self) {
        self.reserved_by = None;
    }

    /// Number of registered nexuses.
    pub(crate) fn registered(&self) -> usize {
        self.registrations.len()
    }

    /// The version of the registrations: while it is equal, they are equal, unless changes were
    /// reverted in between.
    pub(crate) fn version(&self) -> RegistrationsVersion {
        RegistrationsVersion { generation: self.generation, registered: self.registered() }
    }

    /// Origins of the initiators of all registrations.
    pub(crate) fn origins(&self) -> impl Iterator<Item = Option<Origin>> {
        self.registrations.iter().map(|entry| entry.owner().origin)
    }

    fn registrations_mut(&mut self) -> &mut Vec<Registration> {
        Arc::make_mut(&mut self.registrations)
    }

    fn find(&self, nexus: &ItNexus) -> Option<usize> {
        self.registrations.binary_search_by(|entry| (*entry.nexus).cmp(nexus)).ok()
    }

    /// Adds a registration of a nexus that has none; returns its index.
    fn insert(&mut self, new: Registration) -> usize {
        let at = self.registrations.partition_point(|entry| entry.nexus < new.nexus);
        self.registrations_mut().insert(at, new);
        at
    }

    /// True if the unit is reserved and this registration holds the reservation, alone or with
    /// others.
    fn is_holder(&self, registration: &Registration) -> bool {
        self.kind.is_some_and(|kind| registration.holds || kind.is_all_registrants())
    }

    fn has_access(&self, nexus: &ItNexus, kind: ReservationType) -> bool {
        self.find(nexus)
            .is_some_and(|at| kind.is_registrants_only() || self.is_holder(&self.registrations[at]))
    }
}

#[cfg(test)]
pub(crate) mod tests;
