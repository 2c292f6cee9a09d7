//! The command table: the source of dispatch, REPORT SUPPORTED OPERATION CODES and CONFORMANCE.md.
//!
//! The row of a command contains all that is known of it; other code reads the row and compares no
//! operation codes.

mod class;
mod fields;

pub use class::{OperationClass, QuotaClass};
pub use fields::{ListKind, Medium, Offered, ReservationConflict};

use crate::long_operation::DuringOperation;
use crate::plan::atomic;
use crate::plan::copy;
use crate::plan::inform::AbsentUnit;
use crate::plan::{NexusId, Plan, Refusal};
use crate::plan::{
    buffers, cache, capacity, defects, diagnostic, exclusive, format, inform, log, medium,
};
use crate::plan::{
    parameters, ports, provisioning, read_write, report, reserve, sanitize, timestamp, verify,
};
use crate::ports::PortAccess;
use crate::reservations::ReservationAccess;
use crate::rights::Administration;
use crate::sense::Sense;
use crate::unit::{BlockUnit, Context, UnitOptions};
use alloc::format;
use alloc::string::String;
use alloc::vec::Vec;

/// One command of the table.
#[derive(Clone, Copy, Debug)]
pub struct CommandRow {
    /// Operation code.
    pub opcode: u8,
    /// Service action, if the operation code has them.
    pub service_action: Option<u8>,
    /// Name in the standard.
    pub name: &'static str,
    /// Section of the standard.
    pub standard: &'static str,
    /// Conflict with reservations.
    pub reservation: ReservationConflict,
    /// Uses that only administrators may make of it.
    pub administration: Administration,
    /// Requirements on the medium.
    pub medium: Medium,
    /// Units that support it.
    pub offered: Offered,
    /// States of the port through which it may come.
    pub ports: PortAccess,
    /// Processing during a long operation.
    pub during_operation: DuringOperation,
    /// True if it runs whatever unit attention is pending, and leaves it pending. SAM-5 §5.14.
    pub despite_attention: bool,
    /// Kind by which it is counted; the same for all commands of an operation code.
    pub class: OperationClass,
    /// Its cost where commands or their data are limited.
    pub quota_class: QuotaClass,
    /// Particularities of its parameter list.
    pub list_kind: ListKind,
    /// True if no later response may pass its response.
    pub fenced: bool,
    /// True if it reports the LUNs that the initiator may see.
    pub reports_luns: bool,
    /// True for a third-party copy command, which page 8Fh lists.
    pub third_party_copy: bool,
    /// Recommended timeout.
    pub timeout_seconds: u32,
    usage: &'static [u8],
    plan: Planner,
    list: Option<ListPlanner>,
    without_unit: Option<AbsentPlanner>,
}

/// Plans a command of its kind.
pub(crate) type Planner = fn(&mut BlockUnit, &Request<'_>) -> Result<Plan, Refusal>;

/// Plans a command whose parameter list has arrived.
pub(crate) type ListPlanner = fn(&mut BlockUnit, &Request<'_>, &[u8]) -> Result<Plan, Refusal>;

/// Returns the data-in of a command for a LUN without a unit.
pub(crate) type AbsentPlanner = fn(AbsentUnit, &Context<'_>, &[u8]) -> Result<Vec<u8>, Sense>;

/// A received command.
#[derive(Debug)]
pub(crate) struct Request<'a> {
    /// The nexus it came from.
    pub nexus: NexusId,
    /// Further data about the request.
    pub context: &'a Context<'a>,
    /// The CDB; at least as long as its operation code requires.
    pub cdb: &'a [u8],
}

impl CommandRow {
    /// Length of the command's CDB.
    pub const fn cdb_bytes(&self) -> usize {
        self.usage.len()
    }

    /// CDB usage data: the operation code, the service action, and 1 for every other evaluated bit.
    /// SPC-4 §6.35.3.
    pub fn usage_bitmap(&self) -> Vec<u8> {
        let mut bitmap = self.usage.to_vec();
        if let Some(byte) = bitmap.first_mut() {
            *byte = self.opcode;
        }
        if let (Some(byte), Some(action)) = (bitmap.get_mut(1), self.service_action) {
            *byte |= action;
        }
        bitmap
    }

    /// True if a unit with these options supports the command.
    pub fn is_offered(&self, options: &UnitOptions) -> bool {
        self.offered.includes(options)
    }

    pub(crate) fn plan(
        &self,
        unit: &mut BlockUnit,
        request: &Request<'_>,
    ) -> Result<Plan, Refusal> {
        (self.plan)(unit, request)
    }

    /// Plans the command with its parameter list.
    ///
    /// # Errors
    /// The refusal; INVALID COMMAND OPERATION CODE if the command has no list.
    pub(crate) fn plan_list(
        &self,
        unit: &mut BlockUnit,
        request: &Request<'_>,
        list: &[u8],
    ) -> Result<Plan, Refusal> {
        let plan = self.list.ok_or(Sense::INVALID_OPERATION_CODE)?;
        plan(unit, request, list)
    }

    /// Returns the data-in of the command for a LUN without a unit.
    ///
    /// # Errors
    /// The refusal of the command, or of all commands that such a LUN does not process.
    pub(crate) fn answer_without_unit(
        &self,
        unit: AbsentUnit,
        context: &Context<'_>,
        cdb: &[u8],
    ) -> Result<Vec<u8>, Sense> {
        let answer = self.without_unit.ok_or_else(|| unit.refusal())?;
        answer(unit, context, cdb)
    }
}

/// Additions to a row. The initial values are those of most commands.
impl CommandRow {
    /// Uses for administrators only.
    const fn administered(self, administration: Administration) -> Self {
        Self { administration, ..self }
    }

    /// Processing on ports that are not active.
    const fn on_ports(self, ports: PortAccess) -> Self {
        Self { ports, ..self }
    }

    /// Processing during a long operation.
    const fn during(self, during_operation: DuringOperation) -> Self {
        Self { during_operation, ..self }
    }

    /// Processing despite a unit attention, on every port and during a long operation.
    const fn always(self) -> Self {
        let ports = PortAccess::Unavailable;
        let during_operation = DuringOperation::Processed;
        Self { despite_attention: true, ports, during_operation, ..self }
    }

    const fn counted_as(self, class: OperationClass) -> Self {
        Self { class, ..self }
    }

    const fn charged(self, quota_class: QuotaClass) -> Self {
        Self { quota_class, ..self }
    }

    /// A parameter list, and its planner.
    const fn with_list(self, list_kind: ListKind, list: ListPlanner) -> Self {
        Self { list_kind, list: Some(list), ..self }
    }

    /// An answer if the LUN has no unit.
    const fn without_unit(self, answer: AbsentPlanner) -> Self {
        Self { without_unit: Some(answer), ..self }
    }

    const fn fenced(self) -> Self {
        Self { fenced: true, ..self }
    }

    const fn reports_luns(self) -> Self {
        Self { reports_luns: true, ..self }
    }

    const fn third_party_copy(self) -> Self {
        Self { third_party_copy: true, ..self }
    }
}

// CDB usage data by layout; the first byte becomes the operation code. In CONTROL, NACA is
// evaluated (it must be 0); GROUP NUMBER is not.
const NO_FIELDS_6: &[u8] = &[0, 0, 0, 0, 0, 4];
const DESC_6: &[u8] = &[0, 0x01, 0, 0, 0xff, 4];
const PAGE_6: &[u8] = &[0, 0x01, 0xff, 0xff, 0xff, 4];
const BLOCKS_6: &[u8] = &[0, 0x1f, 0xff, 0xff, 0xff, 4];
const START_6: &[u8] = &[0, 0x01, 0, 0, 0xf7, 4];
const PREVENT_6: &[u8] = &[0, 0, 0, 0, 0x03, 4];
const SELECT_6: &[u8] = &[0, 0x11, 0, 0, 0xff, 4];
const MODES_6: &[u8] = &[0, 0x08, 0xff, 0xff, 0xff, 4];
const SELECT_10: &[u8] = &[0, 0x11, 0, 0, 0, 0, 0, 0xff, 0xff, 4];
const MODES_10: &[u8] = &[0, 0x18, 0xff, 0xff, 0, 0, 0, 0xff, 0xff, 4];
const CAPACITY_10: &[u8] = &[0, 0, 0xff, 0xff, 0xff, 0xff, 0, 0, 0x01, 4];
const UNMAP_10: &[u8] = &[0, 0x01, 0, 0, 0, 0, 0, 0xff, 0xff, 4];
const PERSISTENT_IN_10: &[u8] = &[0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 4];
const PERSISTENT_OUT_10: &[u8] = &[0, 0, 0xff, 0, 0, 0xff, 0xff, 0xff, 0xff, 4];
const BUFFER_10: &[u8] = &[0, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 4];
const DEFECTS_10: &[u8] = &[0, 0, 0x1f, 0, 0, 0, 0, 0xff, 0xff, 4];
const DEFECTS_12: &[u8] = &[0, 0x1f, 0, 0, 0, 0, 0xff, 0xff, 0xff, 0xff, 0, 4];
const DIAGNOSTIC_6: &[u8] = &[0, 0xe4, 0, 0xff, 0xff, 4];
const LOGS_10: &[u8] = &[0, 0x03, 0xff, 0xff, 0, 0xff, 0xff, 0xff, 0xff, 4];
const FORMAT_6: &[u8] = &[0, 0xff, 0, 0, 0, 4];
const SANITIZE_10: &[u8] = &[0, 0xa0, 0, 0, 0, 0, 0, 0xff, 0xff, 4];
const TIMESTAMP_12: &[u8] = &[0, 0, 0, 0, 0, 0, 0xff, 0xff, 0xff, 0xff, 0, 4];
const LUNS_12: &[u8] = &[0, 0, 0xff, 0, 0, 0, 0xff, 0xff, 0xff, 0xff, 0, 4];
const CODES_12: &[u8] = &[0, 0, 0x87, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0, 4];
const FUNCTIONS_12: &[u8] = &[0, 0, 0x80, 0, 0, 0, 0xff, 0xff, 0xff, 0xff, 0, 4];
const GROUPS_IN_12: &[u8] = &[0, 0xe0, 0, 0, 0, 0, 0xff, 0xff, 0xff, 0xff, 0, 4];
const GROUPS_OUT_12: &[u8] = &[0, 0, 0, 0, 0, 0, 0xff, 0xff, 0xff, 0xff, 0, 4];
const CAPACITY_16: &[u8] =
    &[0, 0, 255, 255, 255, 255, 255, 255, 255, 255, 255, 255, 255, 255, 0x01, 4];
const COPY_16: &[u8] = &[0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 255, 255, 255, 255, 0, 4];
const RESULTS_16: &[u8] = &[0, 0, 255, 0, 0, 0, 0, 0, 0, 0, 255, 255, 255, 255, 0, 4];
const STATUS_16: &[u8] = &[0, 0, 255, 255, 255, 255, 255, 255, 255, 255, 255, 255, 255, 255, 0, 4];
const COMPARE_16: &[u8] = &[0, 0x18, 255, 255, 255, 255, 255, 255, 255, 255, 0, 0, 0, 255, 0, 4];
const ATOMIC_16: &[u8] = &[0, 0x18, 255, 255, 255, 255, 255, 255, 255, 255, 0, 0, 255, 255, 0, 4];

/// The layouts of 10, 12 and 16 bytes that most block commands share, with `flags` as byte 1.
const fn blocks_10(flags: u8) -> [u8; 10] {
    [0, flags, 255, 255, 255, 255, 0, 255, 255, 4]
}
const fn blocks_12(flags: u8) -> [u8; 12] {
    [0, flags, 255, 255, 255, 255, 255, 255, 255, 255, 0, 4]
}
const fn blocks_16(flags: u8) -> [u8; 16] {
    [0, flags, 255, 255, 255, 255, 255, 255, 255, 255, 255, 255, 255, 255, 0, 4]
}
const DPO_FUA: u8 = 0x18;
const DPO_BYTCHK: u8 = 0x16;
const IMMED: u8 = 0x02;
const UNMAP: u8 = 0x18;
const UNMAP_NDOB: u8 = 0x19;

/// Recommended timeout of commands on every block: without IMMED the response comes at the end.
const HOURS: u32 = 12 * 3600;

/// All commands, by operation code and service action.
#[rustfmt::skip]
pub static COMMANDS: &[CommandRow] = {
    use Administration::{Always, UnlessStarts, WhenChanges};
    use DuringOperation::{Formats, Processed, Sanitizes};
    use ListKind::{NexusBuffer, OpenEnded, Plain, Reservations};
    use Medium::{Ready, Unneeded, Writable};
    use Offered::{Always as All, Atomic, Removable, Thin};
    use OperationClass as Class;
    use PortAccess::{EchoBuffer, Standby, Unavailable};
    use QuotaClass::{Command, Once, Twice};
    use ReservationConflict::{Own, Prevent, StartStop};
    const NO: Option<u8> = None;
    const ALWAYS: ReservationConflict = ReservationConflict::Fixed(ReservationAccess::Always);
    const FREE: ReservationConflict = ReservationConflict::Fixed(ReservationAccess::Persistent);
    const AS_READ: ReservationConflict = ReservationConflict::Fixed(ReservationAccess::Read);
    const AS_WRITE: ReservationConflict = ReservationConflict::Fixed(ReservationAccess::Write);
    const SHOWS: CommandConditions = (AS_READ, Unneeded, All);
    const SETS: CommandConditions = (AS_WRITE, Unneeded, All);
    const RESERVE: CommandConditions = (Own, Unneeded, All);
    const READ: CommandConditions = (AS_READ, Ready, All);
    const WRITE: CommandConditions = (AS_WRITE, Writable, All);
    const READ_THIN: CommandConditions = (AS_READ, Ready, Thin);
    const WRITE_THIN: CommandConditions = (AS_WRITE, Writable, Thin);
    const TELL: CommandConditions = (ALWAYS, Unneeded, All);
    &[
    command(0x00, NO, "TEST UNIT READY", "SPC-4 §6.47",
        (FREE, Ready, All), (NO_FIELDS_6, 10), inform::ready)
        .without_unit(inform::ready_without_unit),
    command(0x03, NO, "REQUEST SENSE", "SPC-4 §6.39",
        TELL, (DESC_6, 10), inform::request_sense).always()
        .without_unit(inform::sense_without_unit),
    command(0x04, NO, "FORMAT UNIT", "SBC-3 §5.3",
        WRITE, (FORMAT_6, HOURS), format::format_unit).administered(Always).during(Formats)
        .with_list(OpenEnded, format::format_unit_list),
    command(0x08, NO, "READ (6)", "SBC-3 §5.10",
        READ, (BLOCKS_6, 30), read_write::read).counted_as(Class::Read).charged(Once),
    command(0x0a, NO, "WRITE (6)", "SBC-3 §5.32",
        WRITE, (BLOCKS_6, 30), read_write::write).counted_as(Class::Write).charged(Once),
    command(0x12, NO, "INQUIRY", "SPC-4 §6.6",
        TELL, (PAGE_6, 10), inform::inquiry).always().without_unit(inform::inquiry_without_unit),
    command(0x15, NO, "MODE SELECT (6)", "SPC-4 §6.11",
        SETS, (SELECT_6, 10), parameters::mode_select_6).administered(WhenChanges).on_ports(Standby)
        .with_list(Plain, parameters::mode_select_6_list),
    command(0x16, NO, "RESERVE (6)", "SPC-2 §7.21",
        RESERVE, (NO_FIELDS_6, 10), reserve::reserve_6),
    command(0x17, NO, "RELEASE (6)", "SPC-2 §7.16",
        RESERVE, (NO_FIELDS_6, 10), reserve::release_6),
    command(0x1a, NO, "MODE SENSE (6)", "SPC-4 §6.13",
        SHOWS, (MODES_6, 10), parameters::mode_sense_6).on_ports(Standby),
    command(0x1b, NO, "START STOP UNIT", "SBC-3 §5.25",
        (StartStop, Unneeded, All), (START_6, 60), medium::start_stop)
        .administered(UnlessStarts),
    command(0x1d, NO, "SEND DIAGNOSTIC", "SPC-4 §6.42",
        (AS_WRITE, Ready, All), (DIAGNOSTIC_6, 60), diagnostic::send).on_ports(Standby),
    command(0x1e, NO, "PREVENT ALLOW MEDIUM REMOVAL", "SBC-3 §5.15",
        (Prevent, Unneeded, Removable), (PREVENT_6, 10), medium::prevent_allow),
    command(0x25, NO, "READ CAPACITY (10)", "SBC-3 §5.16",
        (FREE, Ready, All), (CAPACITY_10, 10), capacity::read_10),
    command(0x28, NO, "READ (10)", "SBC-3 §5.11",
        READ, (&blocks_10(DPO_FUA), 30), read_write::read).counted_as(Class::Read).charged(Once),
    command(0x2a, NO, "WRITE (10)", "SBC-3 §5.33",
        WRITE, (&blocks_10(DPO_FUA), 30), read_write::write).counted_as(Class::Write)
        .charged(Once),
    command(0x2e, NO, "WRITE AND VERIFY (10)", "SBC-3 §5.37",
        WRITE, (&blocks_10(DPO_BYTCHK), 60), verify::write_and_verify).counted_as(Class::Write)
        .charged(Twice),
    command(0x2f, NO, "VERIFY (10)", "SBC-3 §5.29",
        READ, (&blocks_10(DPO_BYTCHK), 60), verify::verify).counted_as(Class::Verify)
        .charged(Once),
    command(0x34, NO, "PRE-FETCH (10)", "SBC-3 §5.8",
        READ, (&blocks_10(0), 30), cache::prefetch).charged(Once),
    command(0x35, NO, "SYNCHRONIZE CACHE (10)", "SBC-3 §5.26",
        (AS_WRITE, Ready, All), (&blocks_10(IMMED), 60), cache::synchronize)
        .counted_as(Class::Flush),
    command(0x37, NO, "READ DEFECT DATA (10)", "SBC-3 §5.18",
        READ, (DEFECTS_10, 10), defects::read_10),
    command(0x3b, NO, "WRITE BUFFER", "SPC-4 §6.49",
        SETS, (BUFFER_10, 10), buffers::write).on_ports(EchoBuffer)
        .with_list(NexusBuffer, buffers::write_list),
    command(0x3c, NO, "READ BUFFER", "SPC-4 §6.18",
        SHOWS, (BUFFER_10, 10), buffers::read).on_ports(EchoBuffer),
    command(0x41, NO, "WRITE SAME (10)", "SBC-3 §5.44",
        WRITE, (&blocks_10(UNMAP), 120), provisioning::write_same_10).counted_as(Class::WriteSame)
        .charged(Command),
    command(0x42, NO, "UNMAP", "SBC-3 §5.28",
        WRITE_THIN, (UNMAP_10, 60), provisioning::unmap).counted_as(Class::Unmap)
        .with_list(Plain, provisioning::unmap_list).charged(Command),
    command(0x48, Some(0x01), "SANITIZE: OVERWRITE", "SBC-3 §5.24",
        WRITE, (SANITIZE_10, HOURS), sanitize::overwrite).administered(Always).during(Sanitizes)
        .with_list(Plain, sanitize::overwrite_list),
    command(0x48, Some(0x02), "SANITIZE: BLOCK ERASE", "SBC-3 §5.24",
        WRITE_THIN, (SANITIZE_10, HOURS), sanitize::block_erase).administered(Always)
        .during(Sanitizes),
    command(0x48, Some(0x1f), "SANITIZE: EXIT FAILURE MODE", "SBC-3 §5.24",
        (AS_WRITE, Ready, All), (SANITIZE_10, 10), sanitize::exit_failure_mode)
        .administered(Always).during(Sanitizes),
    command(0x4d, NO, "LOG SENSE", "SPC-4 §6.8",
        (FREE, Unneeded, All), (LOGS_10, 10), log::log_sense).on_ports(Standby).during(Processed),
    command(0x55, NO, "MODE SELECT (10)", "SPC-4 §6.12",
        SETS, (SELECT_10, 10), parameters::mode_select_10).administered(WhenChanges)
        .on_ports(Standby).with_list(Plain, parameters::mode_select_10_list),
    command(0x5a, NO, "MODE SENSE (10)", "SPC-4 §6.14",
        SHOWS, (MODES_10, 10), parameters::mode_sense_10).on_ports(Standby),
    command(0x5e, Some(0), "PERSISTENT RESERVE IN: READ KEYS", "SPC-4 §6.15",
        RESERVE, (PERSISTENT_IN_10, 10), reserve::persistent_in).on_ports(Standby),
    command(0x5e, Some(1), "PERSISTENT RESERVE IN: READ RESERVATION", "SPC-4 §6.15",
        RESERVE, (PERSISTENT_IN_10, 10), reserve::persistent_in).on_ports(Standby),
    command(0x5e, Some(2), "PERSISTENT RESERVE IN: REPORT CAPABILITIES", "SPC-4 §6.15",
        RESERVE, (PERSISTENT_IN_10, 10), reserve::persistent_in).on_ports(Standby),
    command(0x5e, Some(3), "PERSISTENT RESERVE IN: READ FULL STATUS", "SPC-4 §6.15",
        RESERVE, (PERSISTENT_IN_10, 10), reserve::persistent_in).on_ports(Standby),
    command(0x5f, Some(0), "PERSISTENT RESERVE OUT: REGISTER", "SPC-4 §6.16",
        RESERVE, (PERSISTENT_OUT_10, 10), reserve::persistent_out).on_ports(Standby)
        .with_list(Reservations, reserve::persistent_out_list),
    command(0x5f, Some(1), "PERSISTENT RESERVE OUT: RESERVE", "SPC-4 §6.16",
        RESERVE, (PERSISTENT_OUT_10, 10), reserve::persistent_out).on_ports(Standby)
        .with_list(Reservations, reserve::persistent_out_list),
    command(0x5f, Some(2), "PERSISTENT RESERVE OUT: RELEASE", "SPC-4 §6.16",
        RESERVE, (PERSISTENT_OUT_10, 10), reserve::persistent_out).on_ports(Standby)
        .with_list(Reservations, reserve::persistent_out_list),
    command(0x5f, Some(3), "PERSISTENT RESERVE OUT: CLEAR", "SPC-4 §6.16",
        RESERVE, (PERSISTENT_OUT_10, 10), reserve::persistent_out).on_ports(Standby)
        .with_list(Reservations, reserve::persistent_out_list),
    command(0x5f, Some(4), "PERSISTENT RESERVE OUT: PREEMPT", "SPC-4 §6.16",
        RESERVE, (PERSISTENT_OUT_10, 10), reserve::persistent_out).on_ports(Standby)
        .with_list(Reservations, reserve::persistent_out_list),
    command(0x5f, Some(5), "PERSISTENT RESERVE OUT: PREEMPT AND ABORT", "SPC-4 §6.16",
        RESERVE, (PERSISTENT_OUT_10, 10), reserve::persistent_out).on_ports(Standby)
        .with_list(Reservations, reserve::persistent_out_list).fenced(),
    command(0x5f, Some(6), "PERSISTENT RESERVE OUT: REGISTER AND IGNORE EXISTING KEY",
        "SPC-4 §6.16",
        RESERVE, (PERSISTENT_OUT_10, 10), reserve::persistent_out).on_ports(Standby)
        .with_list(Reservations, reserve::persistent_out_list),
    command(0x5f, Some(7), "PERSISTENT RESERVE OUT: REGISTER AND MOVE", "SPC-4 §6.16",
        RESERVE, (PERSISTENT_OUT_10, 10), reserve::persistent_out).on_ports(Standby)
        .with_list(Reservations, reserve::persistent_out_list),
    command(0x83, Some(0), "EXTENDED COPY (LID1)", "SPC-4 §6.5",
        SETS, (COPY_16, 600), copy::extended_copy).counted_as(Class::Copy)
        .with_list(Plain, copy::extended_copy_list).third_party_copy(),
    command(0x84, Some(0), "RECEIVE COPY RESULTS: COPY STATUS", "SPC-3 §6.17.2",
        SHOWS, (RESULTS_16, 10), copy::status).third_party_copy(),
    command(0x84, Some(3), "RECEIVE COPY RESULTS: OPERATING PARAMETERS", "SPC-3 §6.17.4",
        SHOWS, (COPY_16, 10), copy::operating_parameters).third_party_copy(),
    command(0x84, Some(4), "RECEIVE COPY RESULTS: FAILED SEGMENT DETAILS", "SPC-3 §6.17.5",
        SHOWS, (RESULTS_16, 10), copy::failure).third_party_copy(),
    command(0x88, NO, "READ (16)", "SBC-3 §5.13",
        READ, (&blocks_16(DPO_FUA), 30), read_write::read).counted_as(Class::Read).charged(Once),
    command(0x89, NO, "COMPARE AND WRITE", "SBC-3 §5.2",
        WRITE, (COMPARE_16, 30), exclusive::compare_and_write).counted_as(Class::CompareAndWrite)
        .charged(Twice),
    command(0x8a, NO, "WRITE (16)", "SBC-3 §5.35",
        WRITE, (&blocks_16(DPO_FUA), 30), read_write::write).counted_as(Class::Write)
        .charged(Once),
    command(0x8b, NO, "ORWRITE (16)", "SBC-3 §5.7",
        WRITE, (&blocks_16(DPO_FUA), 30), exclusive::or_write).counted_as(Class::Write)
        .charged(Twice),
    command(0x8e, NO, "WRITE AND VERIFY (16)", "SBC-3 §5.39",
        WRITE, (&blocks_16(DPO_BYTCHK), 60), verify::write_and_verify).counted_as(Class::Write)
        .charged(Twice),
    command(0x8f, NO, "VERIFY (16)", "SBC-3 §5.31",
        READ, (&blocks_16(DPO_BYTCHK), 60), verify::verify).counted_as(Class::Verify)
        .charged(Once),
    command(0x90, NO, "PRE-FETCH (16)", "SBC-3 §5.9",
        READ, (&blocks_16(0), 30), cache::prefetch).charged(Once),
    command(0x91, NO, "SYNCHRONIZE CACHE (16)", "SBC-3 §5.27",
        (AS_WRITE, Ready, All), (&blocks_16(IMMED), 60), cache::synchronize)
        .counted_as(Class::Flush),
    command(0x93, NO, "WRITE SAME (16)", "SBC-3 §5.45",
        WRITE, (&blocks_16(UNMAP_NDOB), 120), provisioning::write_same_16)
        .counted_as(Class::WriteSame).charged(Command),
    command(0x9c, NO, "WRITE ATOMIC (16)", "SBC-4",
        (AS_WRITE, Writable, Atomic), (ATOMIC_16, 30), atomic::write_atomic)
        .counted_as(Class::Write).charged(Once),
    command(0x9e, Some(0x10), "READ CAPACITY (16)", "SBC-3 §5.17",
        (FREE, Ready, All), (CAPACITY_16, 10), capacity::read_16),
    command(0x9e, Some(0x12), "GET LBA STATUS", "SBC-3 §5.4",
        READ_THIN, (STATUS_16, 30), provisioning::lba_status),
    command(0xa0, NO, "REPORT LUNS", "SPC-4 §6.33",
        TELL, (LUNS_12, 10), inform::luns).always().without_unit(inform::luns_without_unit)
        .reports_luns(),
    command(0xa3, Some(0x0a), "REPORT TARGET PORT GROUPS", "SPC-4 §6.37",
        (FREE, Unneeded, All), (GROUPS_IN_12, 10), ports::report_groups).on_ports(Unavailable)
        .during(Processed),
    command(0xa3, Some(0x0c), "REPORT SUPPORTED OPERATION CODES", "SPC-4 §6.35",
        SHOWS, (CODES_12, 10), report::operation_codes).during(Processed),
    command(0xa3, Some(0x0d), "REPORT SUPPORTED TASK MANAGEMENT FUNCTIONS",
        "SPC-4 §6.36",
        SHOWS, (FUNCTIONS_12, 10), report::task_management).during(Processed),
    command(0xa3, Some(0x0f), "REPORT TIMESTAMP", "SPC-4 §6.38",
        (FREE, Unneeded, All), (TIMESTAMP_12, 10), timestamp::report).during(Processed),
    command(0xa4, Some(0x0a), "SET TARGET PORT GROUPS", "SPC-4 §6.45",
        SETS, (GROUPS_OUT_12, 10), ports::set_groups).administered(Always).on_ports(Unavailable)
        .with_list(Plain, ports::set_groups_list),
    command(0xa8, NO, "READ (12)", "SBC-3 §5.12",
        READ, (&blocks_12(DPO_FUA), 30), read_write::read).counted_as(Class::Read).charged(Once),
    command(0xaa, NO, "WRITE (12)", "SBC-3 §5.34",
        WRITE, (&blocks_12(DPO_FUA), 30), read_write::write).counted_as(Class::Write)
        .charged(Once),
    command(0xae, NO, "WRITE AND VERIFY (12)", "SBC-3 §5.38",
        WRITE, (&blocks_12(DPO_BYTCHK), 60), verify::write_and_verify).counted_as(Class::Write)
        .charged(Twice),
    command(0xaf, NO, "VERIFY (12)", "SBC-3 §5.30",
        READ, (&blocks_12(DPO_BYTCHK), 60), verify::verify).counted_as(Class::Verify)
        .charged(Once),
    command(0xb7, NO, "READ DEFECT DATA (12)", "SBC-3 §5.19",
        READ, (DEFECTS_12, 10), defects::read_12),
    ]
};

type CommandConditions = (ReservationConflict, Medium, Offered);

const fn command(
    opcode: u8,
    service_action: Option<u8>,
    name: &'static str,
    standard: &'static str,
    (reservation, medium, offered): (ReservationConflict, Medium, Offered),
    (usage, timeout_seconds): (&'static [u8], u32),
    plan: Planner,
) -> CommandRow {
    CommandRow {
        opcode,
        service_action,
        name,
        standard,
        reservation,
        administration: Administration::Never,
        medium,
        offered,
        ports: PortAccess::Active,
        during_operation: DuringOperation::Refused,
        despite_attention: false,
        class: OperationClass::Other,
        quota_class: QuotaClass::Free,
        list_kind: ListKind::Plain,
        fenced: false,
        reports_luns: false,
        third_party_copy: false,
        timeout_seconds,
        usage,
        plan,
        list: None,
        without_unit: None,
    }
}

/// Formats the table as Markdown for CONFORMANCE.md, with one row per command.
pub fn markdown() -> String {
    let mut text = String::from(
        "| Code | Command | Standard | Reservations | Administrators only | Units | CDB usage \
         | Timeout |\n|---|---|---|---|---|---|---|---|\n",
    );
    for command in COMMANDS {
        let action = command.service_action.map_or_else(String::new, |at| format!("/{at:02x}"));
        let usage = command.usage_bitmap().iter().fold(String::new(), |mut usage, byte| {
            usage.push_str(if usage.is_empty() { "" } else { " " });
            usage.push_str(&format!("{byte:02x}"));
            usage
        });
        let CommandRow { opcode, name, standard, reservation, administration, .. } = command;
        let CommandRow { offered, timeout_seconds, .. } = command;
        text.push_str(&format!(
            "| {opcode:02x}{action} | {name} | {standard} | {reservation} | {administration} \
             | {offered} | `{usage}` | {timeout_seconds} s |\n"
        ));
    }
    text
}

/// The result of a CDB lookup.
pub(crate) enum CdbLookup {
    /// The command.
    Command(&'static CommandRow),
    /// The operation code has service actions, but not this one.
    NoServiceAction,
    /// The operation code is unknown.
    NoOpcode,
}

/// Index of the first command of each operation code in the table; 255: none.
static FIRST_OF_OPCODE: [u8; 256] = {
    assert!(COMMANDS.len() < 255);
    let mut first = [u8::MAX; 256];
    let mut at = COMMANDS.len();
    while at > 0 {
        at -= 1;
        first[COMMANDS[at].opcode as usize] = at as u8;
    }
    first
};

// Statistics count a refused command by its operation code alone.
const _: () = {
    let mut at = 1;
    while at < COMMANDS.len() {
        let (one, next) = (&COMMANDS[at - 1], &COMMANDS[at]);
        assert!(one.opcode != next.opcode || one.class as usize == next.class as usize);
        at += 1;
    }
};

/// Operation code of the command with this name, for code that builds its CDB. To be called in a
/// constant: an unknown name then fails to compile.
pub const fn opcode(name: &str) -> u8 {
    named(name).opcode
}

/// Service action of the command with this name; like [`opcode`].
pub const fn service_action(name: &str) -> u8 {
    match named(name).service_action {
        Some(action) => action,
        None => panic!("the command has no service action"),
    }
}

const fn named(name: &str) -> &'static CommandRow {
    let mut at = 0;
    while at < COMMANDS.len() {
        if is_same(COMMANDS[at].name.as_bytes(), name.as_bytes()) {
            return &COMMANDS[at];
        }
        at += 1;
    }
    panic!("no command has this name")
}

const fn is_same(a: &[u8], b: &[u8]) -> bool {
    let mut at = 0;
    while at < a.len() && at < b.len() && a[at] == b[at] {
        at += 1;
    }
    at == a.len() && at == b.len()
}

/// The row of a CDB, whether or not a unit offers the command; `None` if it is unknown.
#[inline]
pub fn row(cdb: &[u8]) -> Option<&'static CommandRow> {
    let opcode = *cdb.first()?;
    let action = service_action_of(cdb);
    let mut rows = rows_of(opcode).iter().take_while(|row| row.opcode == opcode);
    rows.find(|row| row.service_action.is_none_or(|own| own == action))
}

/// The table from the first row of an operation code on; empty if there is none.
#[inline]
fn rows_of(opcode: u8) -> &'static [CommandRow] {
    COMMANDS.get(usize::from(FIRST_OF_OPCODE[usize::from(opcode)])..).unwrap_or_default()
}

fn service_action_of(cdb: &[u8]) -> u8 {
    cdb.get(1).map_or(0, |byte| byte & 0x1f)
}

/// Finds the command of a CDB among those that `options` offer.
pub(crate) fn find(options: &UnitOptions, cdb: &[u8]) -> CdbLookup {
    let Some(&opcode) = cdb.first() else { return CdbLookup::NoOpcode };
    let action = service_action_of(cdb);
    let mut found = CdbLookup::NoOpcode;
    let rows = rows_of(opcode);
    // Most received commands are the only one with their operation code.
    if let Some(command) = rows.first()
        && command.service_action.is_none()
        && command.is_offered(options)
    {
        return CdbLookup::Command(command);
    }
    let same_opcode = rows.iter().take_while(|command| command.opcode == opcode);
    for command in same_opcode.filter(|command| command.is_offered(options)) {
        match command.service_action {
            Some(own) if own != action => found = CdbLookup::NoServiceAction,
            _ => return CdbLookup::Command(command),
        }
    }
    found
}
