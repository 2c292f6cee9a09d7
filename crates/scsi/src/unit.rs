//! One block logical unit as SCSI sees it: what it is, and what state it is in.
//!
//! A plain value with one owner; the target keeps it under the unit's lock and asks it to judge
//! each command. Nothing here does I/O.

pub use crate::state::StateError;
pub use crate::threshold::{Resources, SetCounts, Threshold};

use crate::attention::{Attention, Audience, ByNexus, LogicalTime};
use crate::commands::{self, Found, Request};
use crate::conditions::{Conditions, Revised};
use crate::copy::{CopyId, CopyResults, Party};
use crate::long_operation::Operations;
use crate::mode::{ModePages, SelectRequest};
use crate::nexus_loss::LostNexuses;
use crate::nexuses::Nexuses;
use crate::plan::buffers;
use crate::plan::medium::MediumState;
use crate::plan::read_write::within;
use crate::plan::{LbaRange, NexusId, Parked, Plan, Refusal};
use crate::plan::{copy, format, inform, parameters, ports, provisioning, reserve, sanitize};
use crate::ports::PortGroups;
use crate::reservations::{Access, ItNexus, RegistrationsVersion, Reservations};
use crate::rights::Rights;
use crate::sense::Sense;
use crate::share::Origin;
use crate::state::{self, SectionKind};
use crate::threshold::RoomWatch;
use crate::unsaved::UnsavedChanges;
use alloc::string::String;
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::fmt;
use wire::Lun;

/// What a unit is; fixed while it is served, except for its size.
#[derive(Clone, Debug)]
pub struct UnitOptions {
    /// Identity: NAA 3, UUID designator and serial number come from here.
    pub uuid: [u8; 16],
    /// PRODUCT IDENTIFICATION, at most 16 characters of ASCII.
    pub product: String,
    /// Logical block length in bytes.
    pub block_bytes: u32,
    /// How many blocks.
    pub block_count: u64,
    /// Physical block length in bytes.
    pub physical_block_bytes: u32,
    /// MAXIMUM TRANSFER LENGTH, in blocks; longer commands are refused.
    pub transfer_blocks_max: u32,
    /// OPTIMAL TRANSFER LENGTH, in blocks.
    pub optimal_transfer_blocks: u32,
    /// Some: thin provisioned (LBPME=1), deallocating in runs of this many blocks.
    pub unmap_granularity_blocks: Option<u32>,
    /// Some: a thin unit tells when little room is left.
    pub threshold: Option<Threshold>,
    /// Some: WRITE ATOMIC is offered, within these limits.
    pub atomic: Option<AtomicBlocks>,
    /// Write protected by configuration.
    pub read_only: bool,
    /// RMB: PREVENT ALLOW, START STOP with LOEJ.
    pub removable: bool,
    /// WCE: the unit acknowledges writes before they are durable.
    pub write_back: bool,
}

impl Default for UnitOptions {
    /// A writable, thick, fixed disk of one block of 512 bytes that writes through.
    fn default() -> Self {
        Self {
            uuid: [0; 16],
            product: String::new(),
            block_bytes: 512,
            block_count: 1,
            physical_block_bytes: 512,
            transfer_blocks_max: 16_384,
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

/// What WRITE ATOMIC may write.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct AtomicBlocks {
    /// ATOMIC ALIGNMENT and ATOMIC TRANSFER LENGTH GRANULARITY, in blocks.
    pub unit_blocks: u32,
    /// MAXIMUM ATOMIC TRANSFER LENGTH, in blocks; no longer than any other transfer.
    pub blocks_max: u32,
}

/// Who is at the other end of a nexus; persistent reservations name it.
#[derive(Clone, Debug, Eq, PartialEq, Ord, PartialOrd)]
pub struct InitiatorPort {
    /// iSCSI name.
    pub name: String,
    /// ISID: together with the name the initiator port, RFC 7143 §4.4.3.
    pub isid: [u8; 6],
}

/// The port of ours a command came through.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct TargetPort {
    /// Target name.
    pub name: String,
    /// Target portal group tag.
    pub portal_group_tag: u16,
    /// Relative target port identifier, from 1.
    pub relative_id: u16,
}

/// A nexus of a session, as the target knows it.
#[derive(Clone, Debug)]
pub struct NexusOptions {
    /// Its ends, and where the initiator comes from: the same for all units of a session.
    pub ports: Arc<ItNexus>,
    /// What the initiator may do to all that use the unit.
    pub rights: Rights,
    /// When the session began to see the unit: the nexus is told what is announced from then on,
    /// however late it is attached.
    pub logged_in: LogicalTime,
    /// The nexus whose TARGET COLD RESET ended the initiator's last session, if one did.
    pub returns_from: Option<NexusId>,
}

impl NexusOptions {
    /// A nexus that begins now, of an initiator that has proven its name and may do everything.
    pub fn new(initiator: &InitiatorPort, port: &TargetPort) -> Self {
        Self {
            ports: Arc::new(ItNexus::new(initiator, port)),
            rights: Rights::default(),
            logged_in: LogicalTime::next(),
            returns_from: None,
        }
    }
}

/// The sessions that see a unit, some of which it does not know yet: a unit may come to know a
/// nexus with its first command only.
pub trait Logins: fmt::Debug {
    /// [Attaches](BlockUnit::attach_with) the nexus between these ports to `unit`, if there is such
    /// a session and the unit does not know it.
    fn attach(&self, ports: &ItNexus, unit: &mut BlockUnit);
}

/// Every nexus is attached when it begins.
#[derive(Clone, Copy, Debug)]
pub struct AllAttached;

impl Logins for AllAttached {
    fn attach(&self, _: &ItNexus, _: &mut BlockUnit) {}
}

/// What the planner may know of a command besides its CDB.
#[derive(Clone, Debug)]
pub struct Context<'a> {
    /// LUNs this initiator sees, in ascending order, for REPORT LUNS.
    pub luns: &'a [Lun],
    /// The port it came through.
    pub port: &'a TargetPort,
    /// All ports of the target, that one included, ordered by their relative identifiers.
    pub ports: &'a [TargetPort],
    /// iSCSIProtocolLevel of the session, RFC 7144 §7.1.1: 0, 1 or 2.
    pub protocol_level: u16,
    /// Nexuses that the unit may not know yet.
    pub logins: &'a dyn Logins,
    /// Tells the time of day, in milliseconds since 1970-01-01 00:00 UTC. Few commands ask.
    pub now_milliseconds: fn() -> u64,
}

impl<'a> Context<'a> {
    /// A session of level 1 on a target with one port, at the beginning of time; the unit knows all
    /// nexuses that there are.
    pub fn new(luns: &'a [Lun], port: &'a TargetPort) -> Self {
        let ports = core::slice::from_ref(port);
        let logins = &AllAttached;
        Self { luns, port, ports, protocol_level: 1, logins, now_milliseconds: || 0 }
    }
}

/// Extents as [`MapStatus`](crate::plan::Plan::MapStatus) found them.
pub type MappedRanges = Vec<(crate::plan::LbaRange, bool)>;

/// One block logical unit: what it is, who uses it, and what they have done to it.
#[derive(Debug)]
pub struct BlockUnit {
    pub(crate) conditions: Revised<Conditions>,
    pub(crate) nexuses: Nexuses,
    pub(crate) lost: LostNexuses,
    room: RoomWatch,
    copies: CopyResults,
    pub(crate) unsaved: UnsavedChanges,
    /// How many more registrations there may be, of those that all units share.
    pub(crate) registration_room: usize,
    keeps_state: bool,
    /// The nexus whose initiator asked for the reset that ended its own session, and has not come
    /// back yet.
    returning: Option<NexusId>,
}

impl BlockUnit {
    /// A unit no one uses yet. Its state is not kept: see [`keep_state`](Self::keep_state).
    pub fn new(options: UnitOptions) -> Self {
        let conditions = Conditions {
            options,
            medium: MediumState::Ready,
            modes: ModePages::default(),
            reservations: Reservations::new(false),
            port_groups: PortGroups::default(),
            operations: Operations::default(),
        };
        Self {
            conditions: Revised::new(conditions),
            nexuses: Nexuses::default(),
            lost: LostNexuses::default(),
            room: RoomWatch::default(),
            copies: CopyResults::default(),
            unsaved: UnsavedChanges::default(),
            registration_room: usize::MAX,
            keeps_state: false,
            returning: None,
        }
    }

    /// Another one whenever the answer of [`check_again`](Self::check_again) may be another one.
    pub fn revision(&self) -> u64 {
        self.conditions.revision()
    }

    /// Promises a place for [`persistent_state`](Self::persistent_state): APTPL is accepted from
    /// now on. To be called before [`restore`](Self::restore) and before anyone is attached.
    pub fn keep_state(&mut self) {
        self.keeps_state = true;
        self.conditions.reservations = Reservations::new(true);
    }

    /// What it is.
    pub fn options(&self) -> &UnitOptions {
        &self.conditions.options
    }

    /// Takes up the state of a former run: reservations that persist, a long operation that did not
    /// come to its end ([`operation`](Self::operation) says so) or failed.
    ///
    /// # Errors
    /// When `state` is not what [`persistent_state`](Self::persistent_state) once gave; the unit
    /// is as it was then.
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

    /// What must survive the process: versioned, with a checksum.
    pub fn persistent_state(&self) -> Vec<u8> {
        let Conditions { reservations, operations, .. } = &*self.conditions;
        let mut sections = alloc::vec![(SectionKind::RESERVATIONS, reservations.encode())];
        let operation = operations.encode();
        if !operation.is_empty() {
            sections.push((SectionKind::LONG_OPERATION, operation));
        }
        state::encode(&sections)
    }

    /// As [`attach_with`](Self::attach_with), for [`NexusOptions::new`].
    pub fn attach(&mut self, nexus: NexusId, initiator: InitiatorPort, port: TargetPort) {
        self.attach_with(nexus, NexusOptions::new(&initiator, &port));
    }

    /// An initiator has logged in: the unit knows its nexus from now on, at the latest with its
    /// first command or whatever else concerns it alone. The initiator is told of the power-on
    /// first, or, after an I_T NEXUS RESET, of the loss of its nexus and what came since, unless it
    /// [is expected back](Self::expect_return); then of what was announced since its login.
    pub fn attach_with(&mut self, nexus: NexusId, options: NexusOptions) {
        let NexusOptions { ports, rights, logged_in, returns_from } = options;
        self.conditions.count_change();
        if self.reservations().knows_otherwise(&ports) {
            self.conditions.reservations.nexus_attached(&ports);
        }
        let found_again = self.lost.find_again(&ports);
        self.nexuses.attach(nexus, ports, rights, logged_in);
        let returns = |by: &mut NexusId| returns_from == Some(*by);
        if self.returning.take_if(returns).is_some() {
            return;
        }
        match found_again {
            // The queue has everything that was announced until now.
            Some(attentions) => self.nexuses.set_attentions(nexus, attentions),
            None => self.nexuses.establish_first(nexus, Attention::POWER_ON_RESET),
        }
    }

    /// A nexus is lost: what belongs to it alone goes, persistent reservations stay.
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

    /// Returns the number of nexuses that the unit knows.
    pub fn nexus_count(&self) -> usize {
        self.nexuses.len()
    }

    /// Judges a command, in this order: unit attention, operation code, CONTROL, the initiator's
    /// rights, reservations, state of the port, long operation, medium, write protection, then the
    /// command's own fields.
    ///
    /// # Errors
    /// The refusal to send, when the command may not run.
    pub fn plan(
        &mut self,
        nexus: NexusId,
        context: &Context<'_>,
        cdb: &[u8],
    ) -> Result<Plan, Refusal> {
        if !tells_despite_attention(cdb)
            && let Some(attention) = self.take_attention(nexus)
        {
            return Err(attention.sense().into());
        }
        let command = match commands::find(self.options(), cdb) {
            Found::Command(command) => command,
            Found::NoServiceAction => return Err(Sense::invalid_field_in_cdb(1, Some(4)).into()),
            Found::NoOpcode => return Err(Sense::INVALID_OPERATION_CODE.into()),
        };
        check_control(cdb, command.cdb_bytes())?;
        let ports = self.nexuses.get(nexus).map(|nexus| &*nexus.ports);
        if command.administration.includes(cdb) {
            self.rights(nexus).check_administers()?;
        }
        self.conditions.check(command, ports, context.port.portal_group_tag, cdb)?;
        command.plan(self, &Request { nexus, context, cdb })
    }

    /// Whether a command that [`plan`](Self::plan) let pass may still run, once its data has come
    /// and nothing is left to wait for; `ranges` are the [blocks of its plan](Plan::ranges). A unit
    /// attention that has come up since is left to the next command: SAM-5 §5.14 has it told before
    /// a command enters the task set, not after.
    ///
    /// # Errors
    /// The refusal to send, for what has changed: the initiator's rights, reservations, the state
    /// of the port, a long operation, the medium, write protection, the size of the unit.
    pub fn check_again(
        &self,
        nexus: NexusId,
        context: &Context<'_>,
        cdb: &[u8],
        ranges: &[LbaRange],
    ) -> Result<(), Refusal> {
        if let Found::Command(command) = commands::find(self.options(), cdb) {
            if command.administration.includes(cdb) {
                self.rights(nexus).check_administers()?;
            }
            let ports = self.nexuses.get(nexus).map(|nexus| &*nexus.ports);
            self.conditions.check(command, ports, context.port.portal_group_tag, cdb)?;
        }
        for range in ranges {
            within(self, range.lba, range.count)?;
        }
        Ok(())
    }

    /// Goes on with a command whose parameter list has come, if it
    /// [may still run](Self::check_again).
    ///
    /// # Errors
    /// As [`plan`](Self::plan).
    pub fn resume(
        &mut self,
        nexus: NexusId,
        context: &Context<'_>,
        parked: Parked,
        data: &[u8],
    ) -> Result<Plan, Refusal> {
        self.check_again(nexus, context, &parked.cdb, &[])?;
        match parked.cdb.first() {
            Some(0x04) => format::format_unit_list(self, nexus, &parked.cdb, data),
            Some(0x48) => sanitize::overwrite_list(self, nexus, &parked.cdb, data),
            Some(0x3b) => buffers::write_list(self, nexus, &parked.cdb, data),
            Some(0x42) => provisioning::unmap_list(self, data),
            Some(0x15 | 0x55) => parameters::mode_select_list(self, nexus, &parked.cdb, data),
            Some(0xa4) if parked.cdb.get(1).is_some_and(|action| action & 0x1f == 0x0a) => {
                ports::set_groups_list(self, nexus, context, data)
            }
            Some(0x5f) => reserve::persistent_out_list(self, nexus, context, &parked.cdb, data),
            Some(0x83) => copy::extended_copy_list(data),
            _ => Err(Sense::INVALID_OPERATION_CODE.into()),
        }
    }

    /// Sense as the initiator gets it: fixed or descriptor, as D_SENSE says.
    pub fn encode_sense(&self, sense: &Sense) -> Vec<u8> {
        sense.encode(self.modes().sense_format())
    }

    /// LOGICAL UNIT RESET, or a reset of the target around it. All nexuses are told but the one
    /// that asked for it, if one did: it knows.
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

    /// A nexus has asked for a reset that ends its session (TARGET COLD RESET). When its initiator
    /// logs in again, perhaps with another ISID, it gets no unit attention of that, as with every
    /// reset: it knows. [`NexusOptions::returns_from`] says that a nexus is its next one.
    pub fn expect_return(&mut self, nexus: NexusId) {
        self.returning = Some(nexus);
    }

    /// The copies this unit was told to carry out, and what became of them.
    pub fn copies(&mut self) -> &mut CopyResults {
        &mut self.copies
    }

    /// A copy of `nexus` begins; a result of its name is dropped.
    ///
    /// # Errors
    /// OPERATION IN PROGRESS while another one of its nexus has the name; BUSY when too many run,
    /// of all or of this initiator. Ours: the target asks for a nexus it never attached.
    pub fn begin_copy(
        &mut self,
        nexus: NexusId,
        list_identifier: Option<u8>,
    ) -> Result<CopyId, Refusal> {
        let by = self.nexuses.get(nexus).ok_or(Sense::INTERNAL_TARGET_FAILURE)?;
        self.copies.begin(nexus, &by.ports, list_identifier)
    }

    /// Whether a copy that `nexus` asked for may read this unit, or write it: what a READ or WRITE
    /// of that nexus would be refused for besides its blocks. A waiting unit attention is not told,
    /// and states of port groups do not matter: copies go through no port.
    ///
    /// # Errors
    /// The refusal.
    pub fn check_copy(&self, nexus: NexusId, party: Party) -> Result<(), Refusal> {
        let access = match party {
            Party::Source => Access::Read,
            Party::Destination => Access::Write,
        };
        let known = self.nexuses.get(nexus).ok_or(Sense::INTERNAL_TARGET_FAILURE)?;
        if self.conditions.reservations.conflict(&known.ports, access) {
            return Err(Refusal::ReservationConflict);
        }
        if let Some(sense) = self.conditions.operations.sense() {
            return Err(sense.into());
        }
        self.conditions.medium.check()?;
        if party == Party::Destination {
            self.conditions.check_writable()?;
        }
        Ok(())
    }

    /// Establishes a unit attention (`0xAAQQ`) for every nexus but one.
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

    /// A nexus was told of its LUNs, by whichever of its units: it need not be told that they have
    /// changed any more. SPC-4 §6.33.
    pub fn luns_were_reported(&mut self, nexus: NexusId) {
        self.clear_attention(nexus, Attention::REPORTED_LUNS_DATA_HAS_CHANGED);
    }

    /// It has another size from now on; all nexuses are told. Blocks beyond a smaller one are
    /// refused at once. SBC-3 §4.8.
    pub fn resize(&mut self, block_count: u64) {
        if self.options().block_count != block_count {
            self.conditions.options.block_count = block_count;
            self.raise(Attention::CAPACITY_DATA_HAS_CHANGED.0, None);
        }
    }

    /// WCE, as the caching page has it.
    pub fn write_cache_enabled(&self) -> bool {
        self.options().write_back
    }

    /// Whether a write must be durable before GOOD.
    pub(crate) fn is_durable(&self, fua: bool) -> bool {
        fua || !self.write_cache_enabled()
    }

    /// The next unit attention of a nexus, cleared by being told.
    pub(crate) fn take_attention(&mut self, nexus: NexusId) -> Option<Attention> {
        self.nexuses.attentions(nexus)?.take()
    }

    pub(crate) fn clear_attention(&mut self, nexus: NexusId, attention: Attention) {
        if let Some(attentions) = self.nexuses.attentions(nexus) {
            attentions.clear(attention);
        }
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

    /// MODE SELECT of a nexus; `true` when something changed. Every change is one for all that use
    /// the unit, so the initiator must administer it.
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

    /// Takes notice of how much room there is; `true` when that has just become little, and the
    /// initiators are told (THIN PROVISIONING SOFT THRESHOLD REACHED) unless they do not want to
    /// know. SBC-3 §4.7.3.7.
    pub fn observe_room(&mut self, resources: Resources) -> bool {
        let Some(threshold) = self.options().threshold else { return false };
        let count = self.modes().threshold_count(self.options());
        let set_bytes = threshold.set_bytes(self.options().block_bytes);
        let reached = self.room.observe(resources, set_bytes, count);
        if reached && self.modes().reports_provisioning() {
            self.raise(Attention::SOFT_THRESHOLD_REACHED.0, None);
        }
        reached
    }

    /// How much room there was last, for log page 0Ch: in threshold sets, of units that have a
    /// threshold.
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

    /// How many registrations the next command may add, besides what limits those of one unit.
    pub fn set_registration_room(&mut self, registrations: usize) {
        self.registration_room = registrations;
    }

    /// While it is the same, so is where the registrations come from, unless changes were
    /// [taken back](Self::roll_back) in between.
    pub fn registrations_version(&self) -> RegistrationsVersion {
        self.reservations().version()
    }

    /// Where each registration comes from; `None`: of an initiator that has proven its name, or not
    /// known any more.
    pub fn registration_origins(&self) -> impl Iterator<Item = Option<Origin>> {
        self.reservations().origins()
    }

    /// The reservations, to be changed, and who a nexus is to them.
    ///
    /// # Errors
    /// Ours: the target asks for a nexus it never attached.
    pub(crate) fn reservations_mut(
        &mut self,
        nexus: NexusId,
    ) -> Result<(&mut Reservations, &ItNexus), Sense> {
        let nexus = self.nexuses.get(nexus).ok_or(Sense::INTERNAL_TARGET_FAILURE)?;
        Ok((&mut self.conditions.reservations, &nexus.ports))
    }

    /// The nexus between these ports, if it is there: it is attached if it was not yet.
    fn find(&mut self, ports: &ItNexus, logins: &dyn Logins) -> Option<NexusId> {
        self.nexuses.find(ports).or_else(|| {
            logins.attach(ports, self);
            self.nexuses.find(ports)
        })
    }

    /// Establishes unit attentions for the nexuses of these ports, as far as they are there.
    pub(crate) fn tell(&mut self, attentions: Vec<(ItNexus, Attention)>, logins: &dyn Logins) {
        if attentions.is_empty() {
            return;
        }
        for (ports, attention) in &attentions {
            let there = self.find(ports, logins);
            if let Some(waiting) = there.and_then(|nexus| self.nexuses.attentions(nexus)) {
                waiting.establish(*attention);
            }
        }
        self.lost.establish_each(&ByNexus::new(attentions));
    }

    /// Which of these are there now.
    pub(crate) fn present(&mut self, ports: &[ItNexus], logins: &dyn Logins) -> Vec<NexusId> {
        ports.iter().filter_map(|ports| self.find(ports, logins)).collect()
    }

    pub(crate) fn check_writable(&self) -> Result<(), Sense> {
        self.conditions.check_writable()
    }
}

/// INQUIRY, REPORT LUNS and REQUEST SENSE are done whatever unit attention waits. SAM-5 §5.14.
fn tells_despite_attention(cdb: &[u8]) -> bool {
    matches!(cdb.first(), Some(0x03 | 0x12 | 0xa0))
}

/// The CDB is long enough, and its CONTROL byte does not ask for auto contingent allegiance
/// (NORMACA is 0). SAM-5 §5.2.
fn check_control(cdb: &[u8], bytes: usize) -> Result<(), Sense> {
    const NACA: u8 = 0x04;
    let last = bytes.saturating_sub(1);
    match cdb.get(last) {
        Some(control) if control & NACA == 0 => Ok(()),
        // CDBs have at most 16 bytes here.
        _ => Err(Sense::invalid_field_in_cdb(last as u16, Some(2))),
    }
}

/// Judges a command for a LUN that has no unit, and for the REPORT LUNS well known unit.
///
/// Without a unit INQUIRY answers that nothing is there (qualifier 3, type 1Fh), REPORT LUNS
/// answers, REQUEST SENSE tells LOGICAL UNIT NOT SUPPORTED as parameter data. The well known unit
/// answers these, and TEST UNIT READY, as a unit of its own (type 1Eh). SPC-4 §8.
///
/// # Errors
/// Everything else: LOGICAL UNIT NOT SUPPORTED; of the well known unit, INVALID COMMAND OPERATION
/// CODE.
pub fn absent_unit_plan(lun: Lun, context: &Context<'_>, cdb: &[u8]) -> Result<Plan, Refusal> {
    const WELL_KNOWN: u8 = 0x1e;
    let is_well_known = lun == Lun::REPORT_LUNS;
    let refusal = if is_well_known {
        Sense::INVALID_OPERATION_CODE
    } else {
        Sense::LOGICAL_UNIT_NOT_SUPPORTED
    };
    if let Some(bytes) = cdb.first().and_then(|opcode| crate::cdb::length(*opcode)) {
        check_control(cdb, bytes)?;
    }
    let reply = match cdb.first() {
        Some(0x00) if is_well_known => Vec::new(),
        Some(0x03) if is_well_known => inform::sense_data(&Sense::NO_ADDITIONAL_SENSE, cdb),
        Some(0x03) => inform::sense_data(&refusal, cdb),
        Some(0x12) => {
            let mut reply = inform::inquiry_of_no_unit(context, cdb)?;
            if let Some(byte) = reply.first_mut()
                && is_well_known
            {
                *byte = WELL_KNOWN;
            }
            reply
        }
        Some(0xa0) => inform::luns_reply(context, cdb)?,
        _ => return Err(refusal.into()),
    };
    Ok(Plan::Reply(reply))
}

/// What GET LBA STATUS answers for these extents, cut to the allocation length. SBC-3 §5.4.2.
pub fn lba_status_reply(extents: &[(LbaRange, bool)], allocation_bytes: u32) -> Vec<u8> {
    provisioning::status_reply(extents, allocation_bytes)
}
