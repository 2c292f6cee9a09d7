//! The part of a logical unit that all peripheral device types share: its identity, its nexuses
//! with their unit attentions and rights, reservations, and states of target ports. SPC-4.
//!
//! A type of units consists of a [`PrimaryUnit`] and a [`DeviceServer`] around it, which adds the
//! commands and the state of its own command set.

mod context;
mod device_server;

pub use context::{AllAttached, Context, InitiatorPort, Logins, NexusOptions, TargetPort};
pub use device_server::DeviceServer;

use crate::attention::{Attention, Audience, ByNexus};
use crate::commands::{CommandRow, Features};
use crate::conditions::ChangeCounted;
use crate::copy::{CopyId, CopyResults};
use crate::nexus_loss::LostNexuses;
use crate::nexuses::Nexuses;
use crate::plan::{NexusId, Refusal};
use crate::ports::PortGroups;
use crate::reported_identity::ReportedIdentity;
use crate::reservations::{ItNexus, RegistrationsVersion, Reservations};
use crate::sense::Sense;
use crate::share::Origin;
use crate::state::StateError;
use crate::unsaved::UnsavedChanges;
use alloc::string::String;
use alloc::sync::Arc;
use alloc::vec::Vec;

lunar_wire::wire_enum! {
    /// PERIPHERAL DEVICE TYPE. SPC-4 §6.6.2.
    pub struct DeviceType(u8) {
        BLOCK = 0x00, OBJECT = 0x11, WELL_KNOWN = 0x1e, NONE = 0x1f,
    }
}

/// The properties of a unit that INQUIRY reports; fixed while it is served.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct UnitIdentity {
    /// PERIPHERAL DEVICE TYPE, in the first byte of all INQUIRY data.
    pub device_type: DeviceType,
    /// Version descriptor of the command set of this type.
    pub command_set: u16,
    /// Source of NAA 3, UUID designator and serial number.
    pub uuid: [u8; 16],
    /// The identity reported in place of all that is derived from `uuid`, if it is that of another
    /// unit.
    pub reported: Option<Arc<ReportedIdentity>>,
    /// PRODUCT IDENTIFICATION, at most 16 characters of ASCII.
    pub product: String,
    /// Optional features, on which commands and pages depend; also RMB.
    pub features: Features,
    /// V_SUP: the unit has a volatile cache.
    pub volatile_cache: bool,
    /// MAXIMUM SUPPORTED SENSE DATA LENGTH: no sense data of the unit is longer.
    pub sense_bytes_max: u8,
}

/// The state that every unit has, whatever its type.
#[derive(Debug)]
pub struct PrimaryUnit {
    identity: UnitIdentity,
    pub(crate) access: ChangeCounted<AccessConditions>,
    pub(crate) nexuses: Nexuses,
    pub(crate) lost: LostNexuses,
    copies: CopyResults,
    pub(crate) unsaved: UnsavedChanges,
    /// Number of registrations that the next command may add, by the limit that all units share.
    pub(crate) registrations_allowed: usize,
    /// True if the state can be saved, so that APTPL is accepted.
    keeps_state: bool,
    /// The nexus whose initiator requested a reset that ended its own session, and has not returned
    /// yet.
    returning: Option<NexusId>,
}

/// The shared state that decides whether a nexus may use the unit.
#[derive(Debug)]
pub(crate) struct AccessConditions {
    pub(crate) reservations: Reservations,
    pub(crate) port_groups: PortGroups,
}

impl PrimaryUnit {
    /// Creates a unit without nexuses. Its state is not saved: see
    /// [`keep_state`](Self::keep_state).
    pub fn new(identity: UnitIdentity) -> Self {
        let reservations = Reservations::new(false);
        let port_groups = PortGroups::default();
        Self {
            identity,
            access: ChangeCounted::new(AccessConditions { reservations, port_groups }),
            nexuses: Nexuses::default(),
            lost: LostNexuses::default(),
            copies: CopyResults::default(),
            unsaved: UnsavedChanges::default(),
            registrations_allowed: usize::MAX,
            keeps_state: false,
            returning: None,
        }
    }

    /// The identity of the unit.
    pub fn identity(&self) -> &UnitIdentity {
        &self.identity
    }

    /// A number that changes whenever [`check`](Self::check) may give another result.
    pub fn revision(&self) -> u64 {
        self.access.revision()
    }

    /// Declares that the caller saves the state of the unit, so APTPL is accepted from now on. Call
    /// it before the state is restored and before the first nexus is attached.
    pub fn keep_state(&mut self) {
        self.keeps_state = true;
        self.access.reservations = Reservations::new(true);
    }

    /// Encodes the persistent reservations.
    pub fn encode_reservations(&self) -> Vec<u8> {
        self.access.reservations.encode()
    }

    /// Decodes the persistent reservations of an earlier run, if they were saved.
    ///
    /// # Errors
    /// If `state` is not an output of [`encode_reservations`](Self::encode_reservations).
    pub fn decode_reservations(&self, state: Option<&[u8]>) -> Result<Reservations, StateError> {
        match state {
            Some(bytes) => Reservations::decode(bytes, self.keeps_state),
            None => Ok(Reservations::new(self.keeps_state)),
        }
    }

    /// Restores the persistent reservations of an earlier run.
    pub fn restore_reservations(&mut self, reservations: Reservations) {
        self.access.reservations = reservations;
    }

    /// Like [`attach_with`](Self::attach_with), for [`NexusOptions::new`].
    pub fn attach(&mut self, nexus: NexusId, initiator: InitiatorPort, port: TargetPort) {
        self.attach_with(nexus, NexusOptions::new(&initiator, &port));
    }

    /// Attaches the nexus of an initiator that has logged in, at the latest with its first command
    /// or another event that concerns it alone. The initiator first receives the power-on, or,
    /// after an I_T NEXUS RESET, the loss of its nexus and the conditions since, unless it [is
    /// expected to return](Self::expect_login_after_reset); then the announcements since its login.
    pub fn attach_with(&mut self, nexus: NexusId, options: NexusOptions) {
        let NexusOptions { ports, rights, logged_in, returns_from } = options;
        self.access.count_change();
        if self.reservations().needs_update(&ports) {
            self.access.reservations.nexus_attached(&ports);
        }
        let missed = self.lost.take(&ports);
        self.nexuses.attach(nexus, ports, rights, logged_in);
        let returns = |by: &mut NexusId| returns_from == Some(*by);
        if self.returning.take_if(returns).is_some() {
            return;
        }
        match missed {
            // The queue contains all announcements up to now.
            Some(attentions) => self.nexuses.set_attentions(nexus, attentions),
            None => self.nexuses.establish_first(nexus, Attention::POWER_ON_RESET),
        }
    }

    /// The ports of an attached nexus.
    pub fn ports(&self, nexus: NexusId) -> Option<&ItNexus> {
        self.nexuses.get(nexus).map(|nexus| &*nexus.ports)
    }

    /// Detaches a lost nexus: its own state is removed, persistent reservations stay.
    pub fn detach(&mut self, nexus: NexusId) {
        if let Some((lost, attentions)) = self.nexuses.detach(nexus) {
            self.access.reservations.nexus_lost(&lost.ports);
            if lost.is_lost {
                self.lost.remember(lost.ports, attentions);
            }
        }
        self.copies.forget_nexus(nexus);
    }

    /// Returns up to `count` of the nexuses that the unit knows, from `first` on, in the order of
    /// their logins.
    pub fn nexuses_from(&self, first: NexusId, count: usize) -> Vec<NexusId> {
        self.nexuses.from(first, count)
    }

    /// Returns the nexus that logged in last, of those that the unit knows.
    pub fn last_nexus(&self) -> Option<NexusId> {
        self.nexuses.last()
    }

    /// Returns the number of attached nexuses.
    pub fn nexus_count(&self) -> usize {
        self.nexuses.len()
    }

    /// Checks the conditions that all types of units share, in this order: the initiator's rights,
    /// reservations, port state.
    ///
    /// # Errors
    /// The refusal to send, if the command may not run.
    #[inline]
    pub fn check(
        &self,
        row: &CommandRow,
        nexus: NexusId,
        context: &Context<'_>,
        cdb: &[u8],
    ) -> Result<(), Refusal> {
        if row.administration.includes(cdb) {
            self.rights(nexus).check_administers()?;
        }
        if let Some(access) = row.reservation.access(cdb) {
            // An internal error: the nexus was never attached.
            let nexus = self.nexuses.get(nexus).ok_or(Sense::INTERNAL_TARGET_FAILURE)?;
            if self.reservations().conflict(&nexus.ports, access) {
                return Err(Refusal::ReservationConflict);
            }
        }
        Ok(self.port_groups().check(context.port.portal_group_tag, row.ports, cdb)?)
    }

    /// Handles LOGICAL UNIT RESET, or a reset of the target. All nexuses are informed except the
    /// one that requested it, if any.
    pub fn reset(&mut self, by: Option<NexusId>) {
        self.nexuses.reset();
        self.access.reservations.reset();
        self.copies.reset();
        self.raise(Attention::RESET_BY_FUNCTION.0, by);
    }

    /// Records that a nexus has requested a reset that ends its session (TARGET COLD RESET). When
    /// its initiator logs in again, possibly with another ISID, it gets no unit attention for its
    /// own reset, as with every reset. [`NexusOptions::returns_from`] identifies the new nexus.
    pub fn expect_login_after_reset(&mut self, nexus: NexusId) {
        self.returning = Some(nexus);
    }

    /// The running copies of this unit, and the results of those that have ended.
    pub fn copies(&mut self) -> &mut CopyResults {
        &mut self.copies
    }

    /// Begins a copy of `nexus`; an earlier result with its identifier is dropped.
    ///
    /// # Errors
    /// OPERATION IN PROGRESS while another copy of the nexus has the identifier; BUSY if the limit
    /// of running copies is reached, of the unit or of this initiator. Internal error if the nexus
    /// was never attached.
    pub fn begin_copy(
        &mut self,
        nexus: NexusId,
        list_identifier: Option<u8>,
    ) -> Result<CopyId, Refusal> {
        let sender = self.nexuses.get(nexus).ok_or(Sense::INTERNAL_TARGET_FAILURE)?;
        self.copies.begin(nexus, &sender.ports, list_identifier)
    }

    /// Establishes a unit attention (`0xAAQQ`) for every nexus except one.
    pub fn raise(&mut self, attention_code: u16, except: Option<NexusId>) {
        self.nexuses.announce(Attention(attention_code), Audience::All, except);
        self.lost.establish(Attention(attention_code));
    }

    /// Establishes a unit attention (`0xAAQQ`) for one nexus.
    pub fn raise_for(&mut self, attention_code: u16, nexus: NexusId) {
        if let Some(attentions) = self.nexuses.attentions(nexus) {
            attentions.establish(Attention(attention_code));
        }
    }

    /// Clears the unit attention of changed LUNs, because this unit or another one of the initiator
    /// reports the LUNs. The plan of REPORT LUNS leaves it pending: the command may still end BUSY.
    /// SPC-4 §6.33.
    pub fn luns_were_reported(&mut self, nexus: NexusId) {
        if let Some(attentions) = self.nexuses.attentions(nexus) {
            attentions.clear(Attention::REPORTED_LUNS_DATA_HAS_CHANGED);
        }
    }

    /// Takes the next unit attention of a nexus, which clears it.
    pub(crate) fn take_attention(&mut self, nexus: NexusId) -> Option<Attention> {
        self.nexuses.attentions(nexus)?.take()
    }

    /// The states of the target ports.
    pub(crate) fn port_groups(&self) -> &PortGroups {
        &self.access.port_groups
    }

    pub(crate) fn set_port_groups(&mut self, groups: PortGroups) {
        self.access.port_groups = groups;
    }

    pub(crate) fn reservations(&self) -> &Reservations {
        &self.access.reservations
    }

    /// Sets the number of registrations that the next command may add. The limits of one unit apply
    /// as well.
    pub fn set_registrations_allowed(&mut self, registrations: usize) {
        self.registrations_allowed = registrations;
    }

    /// Version of the registrations. Equal versions mean equal origins, unless changes were
    /// [reverted](Self::roll_back) in between.
    pub fn registrations_version(&self) -> RegistrationsVersion {
        self.reservations().version()
    }

    /// The origin of each registration; `None` for an initiator with a proven name, and for a
    /// registration whose origin was not saved.
    pub fn registration_origins(&self) -> impl Iterator<Item = Option<Origin>> {
        self.reservations().origins()
    }

    /// Returns the reservations for changes, and the ports of a nexus.
    ///
    /// # Errors
    /// Internal error: the nexus was never attached.
    pub(crate) fn reservations_mut(
        &mut self,
        nexus: NexusId,
    ) -> Result<(&mut Reservations, &ItNexus), Sense> {
        let nexus = self.nexuses.get(nexus).ok_or(Sense::INTERNAL_TARGET_FAILURE)?;
        Ok((&mut self.access.reservations, &nexus.ports))
    }

    /// Returns the nexus between these ports, and attaches it if necessary; `None` without such a
    /// session.
    fn find(&mut self, ports: &ItNexus, logins: &dyn Logins) -> Option<NexusId> {
        self.nexuses.find(ports).or_else(|| {
            logins.attach(ports, self);
            self.nexuses.find(ports)
        })
    }

    /// Establishes unit attentions for the nexuses of these ports, if they exist.
    pub(crate) fn establish_attentions(
        &mut self,
        attentions: Vec<(ItNexus, Attention)>,
        logins: &dyn Logins,
    ) {
        if attentions.is_empty() {
            return;
        }
        for (ports, attention) in &attentions {
            let nexus = self.find(ports, logins);
            if let Some(queue) = nexus.and_then(|nexus| self.nexuses.attentions(nexus)) {
                queue.establish(*attention);
            }
        }
        self.lost.establish_each(&ByNexus::new(attentions));
    }

    /// Returns the nexuses between these ports, without ports that have no session.
    pub(crate) fn find_all(&mut self, ports: &[ItNexus], logins: &dyn Logins) -> Vec<NexusId> {
        ports.iter().filter_map(|ports| self.find(ports, logins)).collect()
    }
}
