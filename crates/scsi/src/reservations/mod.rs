//! Who has reserved a unit: RESERVE and RELEASE of SPC-2, and persistent reservations.
//! SPC-4 §5.12.
//!
//! A plain value: the unit asks it whether a command conflicts, hands it the service actions of
//! PERSISTENT RESERVE IN and OUT, and tells the nexuses what it returns. Registrations belong to
//! I_T nexuses, not to sessions: they outlive a logout, and who comes back finds them.

mod legacy;
mod moving;
mod out;
mod report;
mod state;
mod transport;

pub use moving::{MoveFlags, MoveParameters};
pub use out::{OutAction, OutFlags, OutParameters, OutRequest, Outcome};
pub use report::{Capabilities, FullStatus, HeldReservation, InAction, ReportHeader};

use crate::share::{Origin, Owner, Shares};
use crate::unit::{InitiatorPort, TargetPort};
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::cmp::Ordering;

/// Registrations of one unit; a further one is refused.
pub const REGISTRATIONS_MAX: usize = 1024;
/// Registrations of one unit that one initiator name has made, through all its ports and for
/// others. Four times the 32 paths to a disk that ESXi and Windows use at most (decision 092).
pub const REGISTRATIONS_OF_INITIATOR_MAX: usize = 128;
/// Registrations of one unit that initiators of one origin have made whose names are not proven:
/// the hosts behind one address, or of one IPv6 network.
pub const REGISTRATIONS_OF_ORIGIN_MAX: usize = 512;

const SHARES: Shares = Shares {
    of_all: REGISTRATIONS_MAX,
    of_initiator: REGISTRATIONS_OF_INITIATOR_MAX,
    of_origin: REGISTRATIONS_OF_ORIGIN_MAX,
};

/// One I_T nexus as reservations know it: initiator port and target port.
///
/// Equal when both ports are: the relative identifier of the target port may have changed
/// since the registration, and is not compared; nor is anything else about the initiator.
#[derive(Clone, Debug)]
pub struct ItNexus {
    initiator: InitiatorPort,
    port: TargetPort,
    origin: Option<Origin>,
    /// Registered in a former run: whether the initiator had proven its name is not known.
    is_restored: bool,
}

impl ItNexus {
    /// The nexus between these ports, of an initiator that has proven its name. Names are compared
    /// without case, as iSCSI names are.
    pub fn new(initiator: &InitiatorPort, port: &TargetPort) -> Self {
        let (initiator, port) = (initiator.clone(), port.clone());
        let mut nexus = Self { initiator, port, origin: None, is_restored: false };
        nexus.initiator.name.make_ascii_lowercase();
        nexus.port.name.make_ascii_lowercase();
        nexus
    }

    /// The same nexus of an initiator that comes from `origin` and has not proven its name.
    #[must_use]
    pub fn from_origin(self, origin: Option<Origin>) -> Self {
        Self { origin, ..self }
    }

    /// The same nexus, as the state of a former run has it.
    fn restored(self) -> Self {
        Self { is_restored: true, ..self }
    }

    /// The initiator that counts for what this nexus takes.
    pub fn owner(&self) -> Owner<'_> {
        Owner { name: &self.initiator.name, origin: self.origin }
    }

    /// The initiator port, its name in lower case.
    pub const fn initiator(&self) -> &InitiatorPort {
        &self.initiator
    }

    /// The target port, its name in lower case.
    pub const fn port(&self) -> &TargetPort {
        &self.port
    }
}

impl PartialEq for ItNexus {
    fn eq(&self, other: &Self) -> bool {
        #[cfg(test)]
        tests::count_comparison();
        // The ISID differs most often, and costs least to compare.
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

/// How a command stands to what another nexus has reserved. SPC-4 §5.12.1, SBC-3 §4.15.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Access {
    /// Never a conflict: INQUIRY, REPORT LUNS, REQUEST SENSE.
    Always,
    /// No conflict with a persistent reservation, one with RESERVE (6): TEST UNIT READY.
    Persistent,
    /// Conflicts with exclusive access.
    Read,
    /// Conflicts with exclusive access and with write exclusive.
    Write,
}

wire::wire_enum! {
    /// Type of a persistent reservation. SPC-4 §6.15.3.4.
    pub struct ReservationType(u8) {
        WRITE_EXCLUSIVE = 1, EXCLUSIVE_ACCESS = 3,
        WRITE_EXCLUSIVE_REGISTRANTS_ONLY = 5, EXCLUSIVE_ACCESS_REGISTRANTS_ONLY = 6,
        WRITE_EXCLUSIVE_ALL_REGISTRANTS = 7, EXCLUSIVE_ACCESS_ALL_REGISTRANTS = 8,
    }
}

impl ReservationType {
    /// Reads conflict too.
    fn excludes_reads(self) -> bool {
        matches!(
            self,
            Self::EXCLUSIVE_ACCESS
                | Self::EXCLUSIVE_ACCESS_REGISTRANTS_ONLY
                | Self::EXCLUSIVE_ACCESS_ALL_REGISTRANTS
        )
    }

    /// One registrant holds it, all registrants have access.
    fn is_registrants_only(self) -> bool {
        matches!(
            self,
            Self::WRITE_EXCLUSIVE_REGISTRANTS_ONLY | Self::EXCLUSIVE_ACCESS_REGISTRANTS_ONLY
        )
    }

    /// All registrants hold it.
    fn is_all_registrants(self) -> bool {
        matches!(
            self,
            Self::WRITE_EXCLUSIVE_ALL_REGISTRANTS | Self::EXCLUSIVE_ACCESS_ALL_REGISTRANTS
        )
    }
}

#[derive(Clone, Debug, Eq, PartialEq)]
struct Registration {
    /// Shared, as copies of the table are made often.
    nexus: Arc<ItNexus>,
    /// Never 0.
    key: u64,
    /// Holds the reservation; never set where all registrants hold it.
    holds: bool,
    /// The nexus that made it for this one, by REGISTER AND MOVE; not kept with the state.
    made_by: Option<Arc<ItNexus>>,
}

impl Registration {
    /// The initiator that it counts for: the one that made it.
    fn owner(&self) -> Owner<'_> {
        self.made_by.as_deref().unwrap_or(&self.nexus).owner()
    }

    /// The initiator that it counts for when `asker` wants more. Registrations of a former run may
    /// have been made under a name that was claimed: they take nothing from who has proven it.
    fn owner_for(&self, asker: Owner<'_>) -> Owner<'_> {
        match self.nexus.is_restored && asker.origin.is_none() {
            true => Owner::UNKNOWN,
            false => self.owner(),
        }
    }
}

/// PRGENERATION of a unit and how many nexuses are registered. Every service action that changes a
/// registration counts up PRGENERATION (SPC-4 §5.12.6); reserving and releasing do not.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct RegistrationsVersion {
    generation: u32,
    registered: usize,
}

/// The reservations of one unit. A copy costs no more than what changes after it.
///
/// Invariants: `kind` is one of the six types. With an all registrants type there is a
/// registration and none `holds`; with another type exactly one `holds`; without a type none.
/// `reserved_by` (RESERVE (6)) excludes registrations.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Reservations {
    /// Ordered by nexus: every command looks for its own, also among a thousand of others. Shared
    /// with copies of this value until one of them changes.
    registrations: Arc<Vec<Registration>>,
    kind: Option<ReservationType>,
    generation: u32,
    /// The last registration asked for the state to survive a loss of power.
    persists: bool,
    /// There is a place where it can survive.
    can_persist: bool,
    reserved_by: Option<ItNexus>,
}

impl Reservations {
    /// Nothing registered, nothing reserved. Without a place to save its state (`can_persist`)
    /// APTPL is refused, and REPORT CAPABILITIES says so.
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

    /// Whether a command of `nexus` ends with RESERVATION CONFLICT.
    ///
    /// RESERVE, RELEASE and PERSISTENT RESERVE IN and OUT judge themselves; do not ask for them.
    pub fn conflict(&self, nexus: &ItNexus, access: Access) -> bool {
        if access == Access::Always {
            return false;
        }
        if let Some(owner) = &self.reserved_by {
            return owner != nexus;
        }
        let Some(kind) = self.kind else { return false };
        match access {
            Access::Always | Access::Persistent => false,
            Access::Read if !kind.excludes_reads() => false,
            Access::Read | Access::Write => !self.has_access(nexus, kind),
        }
    }

    /// Whether the port of a registered nexus has another relative identifier now, or it is known
    /// only now that its initiator proves its name.
    pub(crate) fn knows_otherwise(&self, nexus: &ItNexus) -> bool {
        self.find(nexus).is_some_and(|at| {
            let known = &self.registrations[at].nexus;
            known.port.relative_id != nexus.port.relative_id
                || known.is_restored && nexus.origin.is_none()
        })
    }

    /// A nexus is there (again): learns the relative identifier its port has now. What an initiator
    /// registered in a former run counts for it once it has proven its name.
    pub fn nexus_attached(&mut self, nexus: &ItNexus) {
        if self.knows_otherwise(nexus)
            && let Some(at) = self.find(nexus)
        {
            let known = Arc::make_mut(&mut self.registrations_mut()[at].nexus);
            known.port.relative_id = nexus.port.relative_id;
            known.is_restored &= nexus.origin.is_some();
        }
    }

    /// A nexus is lost: its RESERVE (6) ends, registrations and persistent reservations stay.
    pub fn nexus_lost(&mut self, nexus: &ItNexus) {
        if self.reserved_by.as_ref() == Some(nexus) {
            self.reserved_by = None;
        }
    }

    /// LOGICAL UNIT RESET or TARGET RESET: RESERVE (6) ends, the rest stays.
    pub fn reset(&mut self) {
        self.reserved_by = None;
    }

    /// How many nexuses are registered.
    pub(crate) fn registered(&self) -> usize {
        self.registrations.len()
    }

    /// While it is the same, so are the registrations, unless changes were taken back in between.
    pub(crate) fn version(&self) -> RegistrationsVersion {
        RegistrationsVersion { generation: self.generation, registered: self.registered() }
    }

    /// Where the initiators of the registrations come from.
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

    /// Whether it is reserved, and by this registration among others or alone.
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
