//! One block logical unit from the SCSI view: its properties and its state.
//!
//! A plain value with one owner; the target keeps it under the unit's lock and lets it check each
//! command. This module does no I/O.

pub use crate::primary::{AllAttached, Context, InitiatorPort, Logins, NexusOptions, TargetPort};
pub use crate::state::StateError;
pub use crate::threshold::{Resources, SetCounts, Threshold};

use crate::attention::Attention;
use crate::commands::{self, BLOCK_COMMANDS, CommandRow, CommandTable, Features, Offered};
use crate::conditions::{ChangeCounted, Conditions};
use crate::copy::SegmentRole;
use crate::inquiry;
use crate::log::{self, LogPage, LogSource};
use crate::long_operation::Operations;
use crate::mode::{BlockModes, ModeParameters};
use crate::plan::inform::AbsentUnit;
use crate::plan::medium::MediumState;
use crate::plan::provisioning;
use crate::plan::read_write::checked_range;
use crate::plan::{AwaitingParameterList, LbaRange, NexusId, Plan, Refusal};
use crate::primary::{DeviceServer, DeviceType, PrimaryUnit, UnitIdentity};
use crate::reported_identity::ReportedIdentity;
use crate::reservations::ReservationAccess;
use crate::sense::{BLOCK_SENSE_BYTES_MAX, Sense};
use crate::state::{self, SectionKind};
use crate::threshold::FreeSpaceMonitor;
use crate::vpd::{self, VpdPage};
use alloc::string::String;
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::ops::{Deref, DerefMut};
use lunar_wire::Lun;

/// Properties of a unit; fixed while it is served, except for its size.
#[derive(Clone, Debug)]
pub struct UnitOptions {
    /// Identity: the source of NAA 3, UUID designator and serial number.
    pub uuid: [u8; 16],
    /// The identity of another unit that is reported in place of the own one.
    pub reported_identity: Option<Arc<ReportedIdentity>>,
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
            reported_identity: None,
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
    /// The identity of a block unit with these options.
    pub fn identity(&self) -> UnitIdentity {
        UnitIdentity {
            device_type: DeviceType::BLOCK,
            command_set: inquiry::SBC_3,
            uuid: self.uuid,
            reported: self.reported_identity.clone(),
            product: self.product.clone(),
            features: self.features(),
            volatile_cache: self.write_back,
            sense_bytes_max: BLOCK_SENSE_BYTES_MAX as u8,
        }
    }

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

/// Result of a [`MapStatus`](crate::plan::Plan::MapStatus): extents, and whether each is mapped.
pub type MappedRanges = Vec<(crate::plan::LbaRange, bool)>;

/// One block logical unit: the part that every unit has, its properties, and the state of its
/// blocks. It is used like its [`PrimaryUnit`], which it contains.
#[derive(Debug)]
pub struct BlockUnit {
    primary: PrimaryUnit,
    pub(crate) conditions: ChangeCounted<Conditions>,
    free_space: FreeSpaceMonitor,
}

impl BlockUnit {
    /// Creates a unit without nexuses. Its state is not saved: see
    /// [`keep_state`](PrimaryUnit::keep_state).
    pub fn new(options: UnitOptions) -> Self {
        let primary = PrimaryUnit::new(options.identity());
        let conditions = Conditions {
            options,
            medium: MediumState::Ready,
            modes: BlockModes::default(),
            operations: Operations::default(),
        };
        let conditions = ChangeCounted::new(conditions);
        Self { primary, conditions, free_space: FreeSpaceMonitor::default() }
    }

    /// A number that changes whenever the result of [`check_again`](Self::check_again) may change.
    pub fn revision(&self) -> u64 {
        // Neither of the two ever decreases.
        self.primary.revision() + self.conditions.revision()
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
        let mut reservations = None;
        let mut operations = Operations::default();
        for (kind, bytes) in state::decode(state)? {
            match kind {
                SectionKind::RESERVATIONS => reservations = Some(bytes),
                SectionKind::LONG_OPERATION => operations = Operations::decode(bytes)?,
                _ => return Err(StateError("the state has an unknown section")),
            }
        }
        let reservations = self.primary.decode_reservations(reservations)?;
        self.primary.restore_reservations(reservations);
        self.conditions.operations = operations;
        Ok(())
    }

    /// Encodes the state that must survive the process, with a version and a checksum.
    pub fn persistent_state(&self) -> Vec<u8> {
        let reservations = self.primary.encode_reservations();
        let mut sections = alloc::vec![(SectionKind::RESERVATIONS, reservations)];
        let operation = self.operations().encode();
        if !operation.is_empty() {
            sections.push((SectionKind::LONG_OPERATION, operation));
        }
        state::encode(&sections)
    }

    /// Plans a command: [`DeviceServer::plan`]. The checks of the medium are, in this order: long
    /// operation, medium, write protection.
    ///
    /// # Errors
    /// The refusal to send, if the command may not run.
    pub fn plan(
        &mut self,
        nexus: NexusId,
        context: &Context<'_>,
        cdb: &[u8],
    ) -> Result<Plan, Refusal> {
        DeviceServer::plan(self, nexus, context, cdb)
    }

    /// Checks whether a command that [`plan`](Self::plan) accepted may still run, once its data has
    /// arrived and nothing is left to wait for; `ranges` are the [blocks of its
    /// plan](Plan::ranges). See [`DeviceServer::check_again`].
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
        DeviceServer::check_again(self, nexus, context, cdb)?;
        for range in ranges {
            checked_range(self, range.lba, range.count)?;
        }
        Ok(())
    }

    /// Continues a command whose parameter list has arrived: [`DeviceServer::resume`].
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
        DeviceServer::resume(self, nexus, context, awaiting, data)
    }

    /// Encodes sense for the initiator: fixed or descriptor format, depending on D_SENSE.
    pub fn encode_sense(&self, sense: &Sense) -> Vec<u8> {
        DeviceServer::encode_sense(self, sense)
    }

    /// Handles LOGICAL UNIT RESET, or a reset of the target, as
    /// [`PrimaryUnit::reset`] does; a stopped unit is started, and mode parameters have their
    /// defaults again.
    pub fn reset(&mut self, by: Option<NexusId>) {
        let conditions = &mut *self.conditions;
        if conditions.medium == MediumState::Stopped {
            conditions.medium = MediumState::Ready;
        }
        conditions.modes.reset();
        self.primary.reset(by);
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
        if self.reservations().conflict(&nexus.ports, access) {
            return Err(Refusal::ReservationConflict);
        }
        if let Some(sense) = self.not_ready() {
            return Err(sense.into());
        }
        if party == SegmentRole::Destination {
            self.check_writable()?;
        }
        Ok(())
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

    pub(crate) fn medium(&self) -> MediumState {
        self.conditions.medium
    }

    pub(crate) fn set_medium(&mut self, medium: MediumState) {
        self.conditions.medium = medium;
    }

    fn threshold_count(&self) -> Option<u32> {
        self.conditions.modes.threshold_count(self.options())
    }

    /// Records a measurement of free space; `true` if the threshold was just reached. The
    /// initiators receive THIN PROVISIONING SOFT THRESHOLD REACHED unless LBPERE is 0.
    /// SBC-3 §4.7.3.7.
    pub fn observe_free_space(&mut self, resources: Resources) -> bool {
        let Some(threshold) = self.options().threshold else { return false };
        let count = self.threshold_count();
        let set_bytes = threshold.set_bytes(self.options().block_bytes);
        let reached = self.free_space.observe(resources, set_bytes, count);
        if reached && self.conditions.modes.reports_provisioning() {
            self.raise(Attention::SOFT_THRESHOLD_REACHED.0, None);
        }
        reached
    }

    /// True if the threshold is reached, by the last measurement.
    pub fn is_below_threshold(&self) -> bool {
        self.free_space.is_reached()
    }

    /// The space measured last, in threshold sets, for log page 0Ch; `None` for units without a
    /// threshold and before the first measurement.
    pub fn resources(&self) -> Option<SetCounts> {
        let threshold = self.options().threshold?;
        let set_bytes = threshold.set_bytes(self.options().block_bytes);
        self.free_space.resources().map(|resources| resources.in_sets(set_bytes))
    }

    pub(crate) fn operations(&self) -> &Operations {
        &self.conditions.operations
    }

    pub(crate) fn operations_mut(&mut self) -> &mut Operations {
        &mut self.conditions.operations
    }

    pub(crate) fn check_writable(&self) -> Result<(), Sense> {
        self.conditions.check_writable()
    }
}

impl Deref for BlockUnit {
    type Target = PrimaryUnit;

    fn deref(&self) -> &PrimaryUnit {
        &self.primary
    }
}

impl DerefMut for BlockUnit {
    fn deref_mut(&mut self) -> &mut PrimaryUnit {
        &mut self.primary
    }
}

impl DeviceServer for BlockUnit {
    type Plan = Plan;
    type Modes = BlockModes;

    const VPD_PAGES: &'static [VpdPage<Self>] = vpd::BLOCK_PAGES;
    const LOG_PAGES: &'static [LogPage] = log::BLOCK_PAGES;

    fn commands() -> &'static CommandTable<Self> {
        &BLOCK_COMMANDS
    }

    fn primary(&self) -> &PrimaryUnit {
        &self.primary
    }

    fn primary_mut(&mut self) -> &mut PrimaryUnit {
        &mut self.primary
    }

    #[inline]
    fn check_medium(&self, row: &CommandRow) -> Result<(), Sense> {
        self.conditions.check(row)
    }

    fn not_ready(&self) -> Option<Sense> {
        self.operations().sense().or_else(|| self.medium().check().err())
    }

    fn modes(&self) -> (&BlockModes, &UnitOptions) {
        (&self.conditions.modes, &self.conditions.options)
    }

    fn set_modes(&mut self, modes: BlockModes) {
        let before = self.threshold_count();
        self.conditions.modes = modes;
        if self.threshold_count() != before {
            self.free_space.rearm();
        }
    }

    fn log_source<'a>(&'a self, context: &'a Context<'_>) -> LogSource<'a> {
        let features = self.primary.identity().features;
        LogSource { features, ports: context.ports, resources: self.resources() }
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
