//! Command tables: the source of dispatch, REPORT SUPPORTED OPERATION CODES and CONFORMANCE.md.
//!
//! A table belongs to a type of units; that of block units is [`BLOCK_COMMANDS`]. The row of a
//! command contains all that is known of it; other code reads the row and compares no operation
//! codes. The planners of the command stand beside its row, in its [`CommandEntry`].

mod block;
mod class;
mod fields;
mod primary;
mod table;
pub mod usage;

pub use block::{BLOCK_COMMANDS, COMMANDS, markdown, opcode, row, service_action};
pub use class::{OperationClass, QuotaClass};
pub use fields::{Features, ListKind, Medium, Offered, ReservationConflict};
pub use table::{CdbError, CommandTable};

use crate::cdb;
use crate::long_operation::DuringOperation;
use crate::plan::inform::AbsentUnit;
use crate::plan::{AwaitingParameterList, NexusId, Refusal};
use crate::ports::PortAccess;
use crate::primary::{Context, DeviceServer};
use crate::rights::Administration;
use crate::sense::Sense;
use alloc::vec::Vec;
use core::fmt;
use core::ops::Deref;

/// One command of a table, without its planners.
#[derive(Clone, Copy, Debug)]
pub struct CommandRow {
    /// Operation code.
    pub opcode: u8,
    /// Service action, if the operation code has them: 16 bits in a variable-length CDB, else 5.
    pub service_action: Option<u16>,
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
    /// Kind by which it is counted; in a fixed-length CDB the same for all commands of an operation
    /// code.
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
    without_unit: Option<AbsentPlanner>,
}

/// A command of units of type `U`: its row, and its planners.
pub struct CommandEntry<U: DeviceServer> {
    /// All that is known of the command.
    pub row: CommandRow,
    plan: Planner<U>,
    list: Option<ListPlanner<U>>,
}

/// Plans a command of its kind.
pub type Planner<U> = fn(&mut U, &Request<'_>) -> Result<<U as DeviceServer>::Plan, Refusal>;

/// Plans a command whose parameter list has arrived.
pub type ListPlanner<U> =
    fn(&mut U, &Request<'_>, &[u8]) -> Result<<U as DeviceServer>::Plan, Refusal>;

/// Returns the data-in of a command for a LUN without a unit.
type AbsentPlanner = fn(AbsentUnit, &Context<'_>, &[u8]) -> Result<Vec<u8>, Sense>;

/// Conditions that most rows share with others: reservations, medium, units.
pub type CommandConditions = (ReservationConflict, Medium, Offered);

/// A received command.
#[derive(Debug)]
pub struct Request<'a> {
    /// The nexus it came from.
    pub nexus: NexusId,
    /// Further data about the request.
    pub context: &'a Context<'a>,
    /// The command.
    pub row: &'static CommandRow,
    /// The CDB; at least as long as the command requires.
    pub cdb: &'a [u8],
}

impl Request<'_> {
    /// The command as one that waits for its parameter list.
    pub fn awaiting(&self) -> AwaitingParameterList {
        AwaitingParameterList { cdb: self.cdb.to_vec(), kind: self.row.list_kind }
    }
}

impl CommandRow {
    /// Length of the command's CDB.
    pub const fn cdb_bytes(&self) -> usize {
        self.usage.len()
    }

    /// Offset of CONTROL in the CDB: the second byte of a variable-length CDB, else the last.
    /// SPC-4 §4.2.2, §4.2.3.
    pub const fn control_at(&self) -> usize {
        match self.opcode {
            cdb::variable::OPCODE => cdb::variable::CONTROL_AT,
            _ => self.usage.len() - 1,
        }
    }

    /// CDB usage data: the operation code, the service action, and 1 for every other evaluated bit.
    /// SPC-4 §6.35.3.
    pub fn usage_bitmap(&self) -> Vec<u8> {
        let mut bitmap = self.usage.to_vec();
        self.write_codes(&mut bitmap);
        bitmap
    }

    /// Writes the operation code and the service action to a CDB whose service action is 0.
    pub fn write_codes(&self, cdb: &mut [u8]) {
        if let Some(byte) = cdb.first_mut() {
            *byte = self.opcode;
        }
        let Some(action) = self.service_action else { return };
        if self.opcode == cdb::variable::OPCODE {
            let at = cdb::variable::SERVICE_ACTION_AT;
            if let Some(field) = cdb.get_mut(at..at + 2) {
                field.copy_from_slice(&action.to_be_bytes());
            }
        } else if let Some(byte) = cdb.get_mut(1) {
            *byte |= action as u8; // five bits, as the table asserts
        }
    }

    /// True if a unit with these features supports the command.
    #[inline]
    pub const fn is_offered(&self, features: Features) -> bool {
        features.include(self.offered)
    }

    /// Checks that the CDB is long enough, and that its CONTROL byte does not request auto
    /// contingent allegiance (NORMACA is 0). SAM-5 §5.2.
    ///
    /// # Errors
    /// INVALID FIELD IN CDB, pointing at NACA.
    #[inline]
    pub(crate) fn check_control(&self, cdb: &[u8]) -> Result<(), Sense> {
        check_control(cdb, self.control_at())
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

/// Checks that NACA of the CONTROL byte at this offset is 0.
#[inline]
pub(crate) fn check_control(cdb: &[u8], at: usize) -> Result<(), Sense> {
    const NACA: u8 = 0x04;
    match cdb.get(at) {
        Some(control) if control & NACA == 0 => Ok(()),
        // CDBs have at most 260 bytes.
        _ => Err(Sense::invalid_field_in_cdb(at as u16, Some(2))),
    }
}

impl<U: DeviceServer> CommandEntry<U> {
    /// Creates a command: operation code, service action, name, section of the standard,
    /// conditions, CDB usage data and recommended timeout in seconds, planner. The other
    /// properties have the values of most commands.
    pub const fn new(
        opcode: u8,
        service_action: Option<u16>,
        name: &'static str,
        standard: &'static str,
        (reservation, medium, offered): CommandConditions,
        (usage, timeout_seconds): (&'static [u8], u32),
        plan: Planner<U>,
    ) -> Self {
        let row = CommandRow {
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
            without_unit: None,
        };
        Self { row, plan, list: None }
    }

    /// Plans the command.
    #[inline]
    pub(crate) fn plan(&self, unit: &mut U, request: &Request<'_>) -> Result<U::Plan, Refusal> {
        (self.plan)(unit, request)
    }

    /// Plans the command with its parameter list.
    ///
    /// # Errors
    /// The refusal; INVALID COMMAND OPERATION CODE if the command has no list.
    pub(crate) fn plan_list(
        &self,
        unit: &mut U,
        request: &Request<'_>,
        list: &[u8],
    ) -> Result<U::Plan, Refusal> {
        let plan = self.list.ok_or(Sense::INVALID_OPERATION_CODE)?;
        plan(unit, request, list)
    }
}

/// Additions to a row. The initial values are those of most commands.
impl<U: DeviceServer> CommandEntry<U> {
    /// Sets the uses for administrators only.
    #[must_use]
    pub const fn administered(mut self, administration: Administration) -> Self {
        self.row.administration = administration;
        self
    }

    /// Sets the processing on ports that are not active.
    #[must_use]
    pub const fn on_ports(mut self, ports: PortAccess) -> Self {
        self.row.ports = ports;
        self
    }

    /// Sets the processing during a long operation.
    #[must_use]
    pub const fn during(mut self, during_operation: DuringOperation) -> Self {
        self.row.during_operation = during_operation;
        self
    }

    /// Sets processing despite a unit attention, on every port and during a long operation.
    #[must_use]
    pub const fn always(mut self) -> Self {
        self.row.despite_attention = true;
        self.on_ports(PortAccess::Unavailable).during(DuringOperation::Processed)
    }

    /// Sets the class of statistics.
    #[must_use]
    pub const fn counted_as(mut self, class: OperationClass) -> Self {
        self.row.class = class;
        self
    }

    /// Sets the cost.
    #[must_use]
    pub const fn charged(mut self, quota_class: QuotaClass) -> Self {
        self.row.quota_class = quota_class;
        self
    }

    /// Adds a parameter list, and its planner.
    #[must_use]
    pub const fn with_list(mut self, list_kind: ListKind, list: ListPlanner<U>) -> Self {
        self.row.list_kind = list_kind;
        self.list = Some(list);
        self
    }

    /// Adds an answer if the LUN has no unit.
    pub(crate) const fn without_unit(mut self, answer: AbsentPlanner) -> Self {
        self.row.without_unit = Some(answer);
        self
    }

    /// Lets no later response pass the response.
    #[must_use]
    pub const fn fenced(mut self) -> Self {
        self.row.fenced = true;
        self
    }

    /// Marks a command that reports the LUNs that the initiator may see.
    #[must_use]
    pub const fn reports_luns(mut self) -> Self {
        self.row.reports_luns = true;
        self
    }

    /// Marks a third-party copy command.
    #[must_use]
    pub const fn third_party_copy(mut self) -> Self {
        self.row.third_party_copy = true;
        self
    }
}

impl<U: DeviceServer> Clone for CommandEntry<U> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<U: DeviceServer> Copy for CommandEntry<U> {}

impl<U: DeviceServer> Deref for CommandEntry<U> {
    type Target = CommandRow;

    fn deref(&self) -> &CommandRow {
        &self.row
    }
}

impl<U: DeviceServer> fmt::Debug for CommandEntry<U> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.row.fmt(f)
    }
}
