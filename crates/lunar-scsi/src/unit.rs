//! One block logical unit from the SCSI view: its properties and its state.
//!
//! A plain value with one owner; the target keeps it under the unit's lock and lets it check each
//! command. This module does no I/O.

pub use crate::state::StateError;
pub use crate::threshold::{Resources, SetCounts, Threshold};

use crate::attention::{Attention, Audience, ByNexus, LogicalTime};
use crate::commands::{self, BLOCK, CommandTable, Features, Offered, Request};
use crate::conditions::{ChangeCounted, Conditions};
use crate::copy::{CopyId, CopyResults, SegmentRole};
use crate::long_operation::Operations;
use crate::mode::{ModePages, SelectRequest};
use crate::nexus_loss::LostNexuses;
use crate::nexuses::Nexuses;
use crate::plan::inform::AbsentUnit;
use crate::plan::medium::MediumState;
use crate::plan::provisioning;
use crate::plan::read_write::checked_range;
use crate::plan::{AwaitingParameterList, LbaRange, NexusId, Plan, Refusal};
use crate::ports::PortGroups;
use crate::primary::DeviceServer;
use crate::reservations::{ItNexus, RegistrationsVersion, ReservationAccess, Reservations};
use crate::rights::Rights;
use crate::sense::Sense;
use crate::share::Origin;
use crate::state::{self, SectionKind};
use crate::threshold::FreeSpaceMonitor;
use crate::unsaved::UnsavedChanges;
use alloc::string::String;
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::fmt;
use lunar_wire::Lun;

/// Properties of a unit; fixed while it is served, except for its size.
#[derive(Clone, Debug)]
pub struct UnitOptions {
    /// Identity: the source of NAA 3, UUID designator and serial number.
    pub uuid: [u8; 16],
    /// PRODUCT IDENTIFICATION, at most 16 characters of ASCII.
    pub product: String,
    /// Logical block length in bytes.
    pub block_bytes: u32,
    /// Number of blocks.
    pub block_count: u64,
    /// Physical block length in bytes.
    pub physical_block_bytes: u32,
    /// MAXIMUM TRANSFER LENGTH, in blocks; longer commands are refused.
    pub transfer_blocks_max: u32,
    /// Limit of MAXIMUM COMPARE AND WRITE LENGTH, in blocks.
    pub compare_and_write_blocks_max: u8,
    /// OPTIMAL TRANSFER LENGTH, in blocks.
    pub optimal_transfer_blocks: u32,
    /// Granularity of deallocation in blocks; `Some` makes the unit thin provisioned (LBPME=1).
    pub unmap_granularity_blocks: Option<u32>,
    /// Threshold at which a thin unit reports little free space, if any.
    pub threshold: Option<Threshold>,
    /// Limits of WRITE ATOMIC; `None` if it is not supported.
    pub atomic: Option<AtomicBlocks>,
    /// Write protected by configuration.
    pub read_only: bool,
    /// RMB: PREVENT ALLOW, START STOP with LOEJ.
    pub removable: bool,
    /// WCE: the unit acknowledges writes before they are durable.
    pub write_back: bool,
}

impl Default for UnitOptions {
    /// A writable, thick, fixed disk of one 512-byte block, with write-through.
    fn default() -> Self {
        Self {
            uuid: [0; 16],
            product: String::new(),
            block_bytes: 512,
            block_count: 1,
            physical_block_bytes: 512,
            transfer_blocks_max: 16_384,
            compare_and_write_blocks_max: crate::vpd::COMPARE_AND_WRITE_BLOCKS_MAX,
            optimal_transfer_blocks: 2048,
            unmap_granularity_blocks: None,
            threshold: None,
            atomic: None,
            read_only: false,
            removable: false,
            write_back: false,
        }
    }
}

impl UnitOptions {
    /// The optional features, on which commands and pages depend.
    pub fn features(&self) -> Features {
        Features::NONE
            .with(Offered::Thin, self.unmap_granularity_blocks.is_some())
            .with(Offered::Removable, self.removable)
            .with(Offered::Atomic, self.atomic.is_some())
            .with(Offered::Threshold, self.threshold.is_some())
    }
}

/// Limits of WRITE ATOMIC.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct AtomicBlocks {
    /// ATOMIC ALIGNMENT and ATOMIC TRANSFER LENGTH GRANULARITY, in blocks.
    pub unit_blocks: u32,
    /// MAXIMUM ATOMIC TRANSFER LENGTH, in blocks; no longer than any other transfer.
    pub blocks_max: u32,
}

/// The initiator's end of a nexus, as named in persistent reservations.
#[derive(Clone, Debug, Eq, PartialEq, Ord, PartialOrd)]
pub struct InitiatorPort {
    /// iSCSI name.
    pub name: String,
    /// ISID: identifies the initiator port together with the name, RFC 7143 §4.4.3.
    pub isid: [u8; 6],
}

/// The target port that received a command.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct TargetPort {
    /// Target name.
    pub name: String,
    /// Target portal group tag.
    pub portal_group_tag: u16,
    /// Relative target port identifier, from 1.
    pub relative_id: u16,
}

/// Properties of a session's nexus.
#[derive(Clone, Debug)]
pub struct NexusOptions {
    /// Its two ports, and the origin of the initiator: the same for all units of a session.
    pub ports: Arc<ItNexus>,
    /// Rights of the initiator that affect all users of the unit.
    pub rights: Rights,
    /// Time at which the session began to see the unit. The nexus receives all unit attentions
    /// announced since then, even if it is attached later.
    pub logged_in: LogicalTime,
    /// The nexus whose TARGET COLD RESET ended the initiator's last session, if any.
    pub returns_from: Option<NexusId>,
}

impl NexusOptions {
    /// A nexus that begins now, of an initiator with a proven name and all rights.
    pub fn new(initiator: &InitiatorPort, port: &TargetPort) -> Self {
        Self {
            ports: Arc::new(ItNexus::new(initiator, port)),
            rights: Rights::default(),
            logged_in: LogicalTime::next(),
            returns_from: None,
        }
    }
}

/// Access to the sessions that see a unit but are not attached to it yet: a unit may attach a nexus
/// as late as its first command.
pub trait Logins: fmt::Debug {
    /// [Attaches](BlockUnit::attach_with) the nexus between these ports to `unit`, if there is such
    /// a session that is not attached.
    fn attach(&self, ports: &ItNexus, unit: &mut BlockUnit);
}

/// Sessions of a unit to which every nexus is attached at its beginning.
#[derive(Clone, Copy, Debug)]
pub struct AllAttached;

impl Logins for AllAttached {
    fn attach(&self, _: &ItNexus, _: &mut BlockUnit) {}
}

/// Data for planning a command besides its CDB.
#[derive(Clone, Debug)]
pub struct Context<'a> {
    /// LUNs visible to this initiator, in ascending order, for REPORT LUNS.
    pub luns: &'a [Lun],
    /// The port that received the command.
    pub port: &'a TargetPort,
    /// All ports of the target, including that one, ordered by their relative identifiers.
    pub ports: &'a [TargetPort],
    /// iSCSIProtocolLevel of the session, RFC 7144 §7.1.1: 0, 1 or 2.
    pub protocol_level: u16,
    /// Nexuses that may not be attached yet.
    pub logins: &'a dyn Logins,
    /// Returns the time of day, in milliseconds since 1970-01-01 00:00 UTC. Only few commands need
    /// it.
    pub now_milliseconds: fn() -> u64,
}

impl<'a> Context<'a> {
    /// A session of level 1 on a target with one port, at time 0; all nexuses are attached.
    pub fn new(luns: &'a [Lun], port: &'a TargetPort) -> Self {
        let ports = core::slice::from_ref(port);
        let logins = &AllAttached;
        Self { luns, port, ports, protocol_level: 1, logins, now_milliseconds: || 0 }
    }
}

/// Result of a [`MapStatus`](crate::plan::Plan::MapStatus): extents, and whether each is mapped.
pub type MappedRanges = Vec<(crate::plan::LbaRange, bool)>;

/// One block logical unit: its properties, its nexuses, and its state.
#[derive(Debug)]
pub struct BlockUnit {
    pub(crate) conditions: ChangeCounted<Conditions>,
    features: Features,
    pub(crate) nexuses: Nexuses,
    pub(crate) lost: LostNexuses,
    room: FreeSpaceMonitor,
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

impl BlockUnit {
    /// Creates a unit without nexuses. Its state is not saved: see
    /// [`keep_state`](Self::keep_state).
    pub fn new(options: UnitOptions) -> Self {
        let features = options.features();
        let conditions = Conditions {
            options,
            medium: MediumState::Ready,
            modes: ModePages::default(),
            reservations: Reservations::new(false),
            port_groups: PortGroups::default(),
            operations: Operations::default(),
        };
        Self {
            conditions: ChangeCounted::new(conditions),
            features,
            nexuses: Nexuses::default(),
            lost: LostNexuses::default(),
            room: FreeSpaceMonitor::default(),
            copies: CopyResults::default(),
            unsaved: UnsavedChanges::default(),
            registrations_allowed: usize::MAX,
            keeps_state: false,
            returning: None,
        }
    }

    /// A number that changes whenever the result of [`check_again`](Self::check_again) may change.
    pub fn revision(&self) -> u64 {
        self.conditions.revision()
    }

    /// Declares that the caller saves [`persistent_state`](Self::persistent_state), so APTPL is
    /// accepted from now on. Call it before [`restore`](Self::restore) and before the first nexus
    /// is attached.
    pub fn keep_state(&mut self) {
        self.keeps_state = true;
        self.conditions.reservations = Reservations::new(true);
    }

    /// The properties of the unit.
    pub fn options(&self) -> &UnitOptions {
        &self.conditions.options
    }

    /// Restores the state of an earlier run: persistent reservations, and a long operation that has
    /// not ended (returned by [`operation`](Self::operation)) or has failed.
    ///
    /// # Errors
    /// If `state` is not an output of [`persistent_state`](Self::persistent_state); the unit is
    /// unchanged then.
    pub fn restore(&mut self, state: &[u8]) -> Result<(), StateError> {
        let mut reservations = Reservations::new(self.keeps_state);
        let mut operations = Operations::default();
        for (kind, bytes) in state::decode(state)? {
            match kind {
                SectionKind::RESERVATIONS => {
                    reservations = Reservations::decode(bytes, self.keeps_state)?;
                }
                SectionKind::LONG_OPERATION => operations = Operations::decode(bytes)?,
                _ => return Err(StateError("the state has a part that is not known here")),
            }
        }
        self.conditions.reservations = reservations;
        self.conditions.operations = operations;
        Ok(())
    }

    /// Encodes the state that must survive the process, with a version and a checksum.
    pub fn persistent_state(&self) -> Vec<u8> {
        let Conditions { reservations, operations, .. } = &*self.conditions;
        let mut sections = alloc::vec![(SectionKind::RESERVATIONS, reservations.encode())];
        let operation = operations.encode();
        if !operation.is_empty() {
            sections.push((SectionKind::LONG_OPERATION, operation));
        }
        state::encode(&sections)
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
        self.conditions.count_change();
        if self.reservations().needs_update(&ports) {
            self.conditions.reservations.nexus_attached(&ports);
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

    /// Detaches a lost nexus: its own state is removed, persistent reservations stay.
    pub fn detach(&mut self, nexus: NexusId) {
        if let Some((lost, attentions)) = self.nexuses.detach(nexus) {
            self.conditions.reservations.nexus_lost(&lost.ports);
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

    /// Plans a command. Checks, in this order: unit attention, operation code, CONTROL, the
    /// initiator's rights, reservations, port state, long operation, medium, write protection, then
    /// the command's own fields.
    ///
    /// # Errors
    /// The refusal to send, if the command may not run.
    pub fn plan(
        &mut self,
        nexus: NexusId,
        context: &Context<'_>,
        cdb: &[u8],
    ) -> Result<Plan, Refusal> {
        let found = BLOCK.find(self.features, cdb);
        if !found.is_ok_and(|command| command.row.despite_attention)
            && let Some(attention) = self.take_attention(nexus)
        {
            return Err(attention.sense().into());
        }
        let command = found.map_err(Sense::from)?;
        let row = &command.row;
        row.check_control(cdb)?;
        let ports = self.nexuses.get(nexus).map(|nexus| &*nexus.ports);
        if row.administration.includes(cdb) {
            self.rights(nexus).check_administers()?;
        }
        self.conditions.check(row, ports, context.port.portal_group_tag, cdb)?;
        command.plan(self, &Request { nexus, context, row, cdb })
    }

    /// Checks whether a command that [`plan`](Self::plan) accepted may still run, once its data has
    /// arrived and nothing is left to wait for; `ranges` are the [blocks of its
    /// plan](Plan::ranges). A unit attention established since then is left to the next command:
    /// SAM-5 §5.14 has it reported before a command enters the task set, not after.
    ///
    /// # Errors
    /// The refusal to send, because of a change: the initiator's rights, reservations, the port
    /// state, a long operation, the medium, write protection, the size of the unit.
    pub fn check_again(
        &self,
        nexus: NexusId,
        context: &Context<'_>,
        cdb: &[u8],
        ranges: &[LbaRange],
    ) -> Result<(), Refusal> {
        let command = &BLOCK.find(self.features, cdb).map_err(Sense::from)?.row;
        if command.administration.includes(cdb) {
            self.rights(nexus).check_administers()?;
        }
        let ports = self.nexuses.get(nexus).map(|nexus| &*nexus.ports);
        self.conditions.check(command, ports, context.port.portal_group_tag, cdb)?;
        for range in ranges {
            checked_range(self, range.lba, range.count)?;
        }
        Ok(())
    }

    /// Continues a command whose parameter list has arrived, if it [may still
    /// run](Self::check_again).
    ///
    /// # Errors
    /// The errors of [`plan`](Self::plan).
    pub fn resume(
        &mut self,
        nexus: NexusId,
        context: &Context<'_>,
        awaiting: AwaitingParameterList,
        data: &[u8],
    ) -> Result<Plan, Refusal> {
        self.check_again(nexus, context, &awaiting.cdb, &[])?;
        let cdb = &awaiting.cdb;
        let command = BLOCK.find(self.features, cdb).map_err(Sense::from)?;
        command.plan_list(self, &Request { nexus, context, row: &command.row, cdb }, data)
    }

    /// Encodes sense for the initiator: fixed or descriptor format, depending on D_SENSE.
    pub fn encode_sense(&self, sense: &Sense) -> Vec<u8> {
        sense.encode(self.modes().sense_format())
    }

    /// Handles LOGICAL UNIT RESET, or a reset of the target. All nexuses are informed except the
    /// one that requested it, if any.
    pub fn reset(&mut self, by: Option<NexusId>) {
        self.nexuses.reset();
        let conditions = &mut *self.conditions;
        if conditions.medium == MediumState::Stopped {
            conditions.medium = MediumState::Ready;
        }
        conditions.modes.reset();
        conditions.reservations.reset();
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

    /// Checks whether a copy requested by `nexus` may read or write this unit: the checks of a READ
    /// or WRITE of that nexus except those of the blocks. A pending unit attention is not reported,
    /// and port states do not matter, because copies use no port.
    ///
    /// # Errors
    /// The refusal.
    pub fn check_copy(&self, nexus: NexusId, party: SegmentRole) -> Result<(), Refusal> {
        let access = match party {
            SegmentRole::Source => ReservationAccess::Read,
            SegmentRole::Destination => ReservationAccess::Write,
        };
        let nexus = self.nexuses.get(nexus).ok_or(Sense::INTERNAL_TARGET_FAILURE)?;
        if self.conditions.reservations.conflict(&nexus.ports, access) {
            return Err(Refusal::ReservationConflict);
        }
        if let Some(sense) = self.conditions.operations.sense() {
            return Err(sense.into());
        }
        self.conditions.medium.check()?;
        if party == SegmentRole::Destination {
            self.conditions.check_writable()?;
        }
        Ok(())
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

    /// Changes the size of the unit; all nexuses are informed. Blocks beyond a smaller size are
    /// refused at once. SBC-3 §4.8.
    pub fn resize(&mut self, block_count: u64) {
        if self.options().block_count != block_count {
            self.conditions.options.block_count = block_count;
            self.raise(Attention::CAPACITY_DATA_HAS_CHANGED.0, None);
        }
    }

    /// WCE of the caching page.
    pub fn write_cache_enabled(&self) -> bool {
        self.options().write_back
    }

    /// True if a write must be durable before GOOD.
    pub(crate) fn is_durable(&self, fua: bool) -> bool {
        fua || !self.write_cache_enabled()
    }

    /// Takes the next unit attention of a nexus, which clears it.
    pub(crate) fn take_attention(&mut self, nexus: NexusId) -> Option<Attention> {
        self.nexuses.attentions(nexus)?.take()
    }

    pub(crate) fn medium(&self) -> MediumState {
        self.conditions.medium
    }

    pub(crate) fn set_medium(&mut self, medium: MediumState) {
        self.conditions.medium = medium;
    }

    pub(crate) fn port_groups(&self) -> &PortGroups {
        &self.conditions.port_groups
    }

    pub(crate) fn set_port_groups(&mut self, groups: PortGroups) {
        self.conditions.port_groups = groups;
    }

    pub(crate) fn modes(&self) -> &ModePages {
        &self.conditions.modes
    }

    /// Applies MODE SELECT of a nexus; `true` if a parameter changed. Every change affects all
    /// users of the unit, so it requires the right to administer the unit.
    pub(crate) fn select_modes(
        &mut self,
        nexus: NexusId,
        request: SelectRequest,
        list: &[u8],
    ) -> Result<bool, Sense> {
        let Conditions { modes, options, .. } = &*self.conditions;
        let before = modes.threshold_count(options);
        let mut selected = *modes;
        let changed = selected.select(options, request, list)?;
        if changed {
            self.rights(nexus).check_administers()?;
        }
        self.conditions.modes = selected;
        if self.modes().threshold_count(self.options()) != before {
            self.room.rearm();
        }
        Ok(changed)
    }

    /// Records a measurement of free space; `true` if the threshold was just reached. The
    /// initiators receive THIN PROVISIONING SOFT THRESHOLD REACHED unless LBPERE is 0.
    /// SBC-3 §4.7.3.7.
    pub fn observe_free_space(&mut self, resources: Resources) -> bool {
        let Some(threshold) = self.options().threshold else { return false };
        let count = self.modes().threshold_count(self.options());
        let set_bytes = threshold.set_bytes(self.options().block_bytes);
        let reached = self.room.observe(resources, set_bytes, count);
        if reached && self.modes().reports_provisioning() {
            self.raise(Attention::SOFT_THRESHOLD_REACHED.0, None);
        }
        reached
    }

    /// The space measured last, in threshold sets, for log page 0Ch; `None` for units without a
    /// threshold and before the first measurement.
    pub fn resources(&self) -> Option<SetCounts> {
        let threshold = self.options().threshold?;
        let set_bytes = threshold.set_bytes(self.options().block_bytes);
        self.room.resources().map(|resources| resources.in_sets(set_bytes))
    }

    pub(crate) fn operations(&self) -> &Operations {
        &self.conditions.operations
    }

    pub(crate) fn operations_mut(&mut self) -> &mut Operations {
        &mut self.conditions.operations
    }

    pub(crate) fn reservations(&self) -> &Reservations {
        &self.conditions.reservations
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
        Ok((&mut self.conditions.reservations, &nexus.ports))
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

    pub(crate) fn check_writable(&self) -> Result<(), Sense> {
        self.conditions.check_writable()
    }
}

impl DeviceServer for BlockUnit {
    type Plan = Plan;

    fn commands() -> &'static CommandTable<Self> {
        &BLOCK
    }

    fn features(&self) -> Features {
        self.features
    }

    fn rights(&self, nexus: NexusId) -> Rights {
        self.rights(nexus)
    }
}

/// Plans a command for a LUN without a unit, and for the REPORT LUNS well known unit.
///
/// Without a unit INQUIRY answers that there is none (qualifier 3, type 1Fh), REPORT LUNS answers,
/// REQUEST SENSE returns LOGICAL UNIT NOT SUPPORTED as parameter data. The well known unit answers
/// these and TEST UNIT READY as a separate unit (type 1Eh). SPC-4 §8.
///
/// # Errors
/// All other commands: LOGICAL UNIT NOT SUPPORTED; of the well known unit, INVALID COMMAND
/// OPERATION CODE.
pub fn absent_unit_plan(lun: Lun, context: &Context<'_>, cdb: &[u8]) -> Result<Plan, Refusal> {
    let unit = if lun == Lun::REPORT_LUNS { AbsentUnit::WellKnown } else { AbsentUnit::Missing };
    if let Some(at) = cdb.first().and_then(|opcode| crate::cdb::control_at(*opcode)) {
        commands::check_control(cdb, at)?;
    }
    let command = commands::row(cdb).ok_or_else(|| unit.refusal())?;
    Ok(Plan::Reply(command.answer_without_unit(unit, context, cdb)?))
}

/// Builds the answer to GET LBA STATUS for these extents, truncated to the allocation length.
/// SBC-3 §5.4.2.
pub fn lba_status_reply(extents: &[(LbaRange, bool)], allocation_bytes: u32) -> Vec<u8> {
    provisioning::status_reply(extents, allocation_bytes)
}
