//! The table of the commands of a type of units, and the lookup of a CDB in it.

use super::usage::CONTROL;
use super::{CommandEntry, CommandRow, Features, OperationClass};
use crate::cdb::{self, variable};
use crate::primary::DeviceServer;
use crate::sense::Sense;
use alloc::format;
use alloc::string::String;
use core::fmt;

/// The commands of units of type `U`, by operation code and service action.
pub struct CommandTable<U: DeviceServer> {
    commands: &'static [CommandEntry<U>],
    /// Index of the first command of each operation code; 255: none.
    first_of_opcode: [u8; 256],
}

/// The reason why a CDB has no command in a table.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum CdbError {
    /// The operation code is unknown.
    Opcode,
    /// The operation code has service actions, but not this one.
    ServiceAction {
        /// Offset and most significant bit of the field in the CDB.
        at: (u16, Option<u8>),
    },
    /// ADDITIONAL CDB LENGTH is not a multiple of four, or is not the length of the received CDB or
    /// of the command.
    AdditionalLength,
}

impl From<CdbError> for Sense {
    /// SPC-4 §4.2.3 for the length, §4.2.5.2 for the service action.
    fn from(error: CdbError) -> Self {
        match error {
            CdbError::Opcode => Self::INVALID_OPERATION_CODE,
            CdbError::ServiceAction { at: (byte, bit) } => Self::invalid_field_in_cdb(byte, bit),
            CdbError::AdditionalLength => {
                Self::invalid_field_in_cdb(variable::ADDITIONAL_BYTES_AT as u16, None)
            }
        }
    }
}

impl<U: DeviceServer> CommandTable<U> {
    /// Creates a table; to be called in a constant or static, so that a wrong table fails to
    /// compile.
    ///
    /// # Panics
    /// If the commands are not in ascending order, are more than 254, or if the usage data of one
    /// of them does not have the form that its operation code requires.
    pub const fn new(commands: &'static [CommandEntry<U>]) -> Self {
        assert!(commands.len() < u8::MAX as usize, "too many commands");
        let mut first_of_opcode = [u8::MAX; 256];
        let mut at = commands.len();
        while at > 0 {
            at -= 1;
            let row = &commands[at].row;
            check_usage(row);
            if at > 0 {
                assert!(is_before(&commands[at - 1].row, row), "not in ascending order");
            }
            first_of_opcode[row.opcode as usize] = at as u8;
        }
        Self { commands, first_of_opcode }
    }

    /// Merges two lists of commands in ascending order, of `N` commands together; to be called in a
    /// constant.
    ///
    /// # Panics
    /// If `N` is not the number of commands.
    pub const fn merge<const A: usize, const B: usize, const N: usize>(
        one: [CommandEntry<U>; A],
        other: [CommandEntry<U>; B],
    ) -> [CommandEntry<U>; N] {
        assert!(A + B == N && A > 0, "another number of commands");
        let mut merged = [one[0]; N];
        let (mut at_one, mut at_other) = (0, 0);
        while at_one + at_other < N {
            let at = at_one + at_other;
            let takes_one =
                at_one < A && (at_other == B || is_before(&one[at_one].row, &other[at_other].row));
            if takes_one {
                merged[at] = one[at_one];
                at_one += 1;
            } else {
                merged[at] = other[at_other];
                at_other += 1;
            }
        }
        merged
    }

    /// All commands, in ascending order of operation codes and service actions.
    pub const fn commands(&self) -> &'static [CommandEntry<U>] {
        self.commands
    }

    /// Finds the command of a CDB among those of units with these features.
    ///
    /// # Errors
    /// If there is none.
    #[inline]
    pub fn find(
        &self,
        features: Features,
        cdb: &[u8],
    ) -> Result<&'static CommandEntry<U>, CdbError> {
        let Some(&opcode) = cdb.first() else { return Err(CdbError::Opcode) };
        let rows = self.rows_of(opcode);
        // Most received commands are the only one with their operation code.
        if let Some(command) = rows.first()
            && command.row.service_action.is_none()
            && command.row.is_offered(features)
        {
            return Ok(command);
        }
        find_among(rows, features, opcode, cdb)
    }

    /// The row of a CDB, whether or not a unit offers the command; `None` if it is unknown.
    #[inline]
    pub fn row(&self, cdb: &[u8]) -> Option<&'static CommandRow> {
        let opcode = *cdb.first()?;
        let action = service_action_of(opcode, cdb);
        let mut rows = self.rows_of(opcode).iter().take_while(|entry| entry.row.opcode == opcode);
        let found = rows.find(|entry| entry.row.service_action.is_none_or(|own| own == action))?;
        Some(&found.row)
    }

    /// The class by which statistics count a CDB. A refused command is counted by the operation
    /// that it requested: in a fixed-length CDB by the operation code alone.
    #[inline]
    pub fn class_of(&self, cdb: &[u8]) -> OperationClass {
        let first = cdb.first().and_then(|opcode| self.rows_of(*opcode).first());
        match first {
            Some(entry) if entry.row.opcode == variable::OPCODE => {
                self.row(cdb).map_or(OperationClass::Other, |row| row.class)
            }
            Some(entry) => entry.row.class,
            None => OperationClass::Other,
        }
    }

    /// The command with this name, for code that builds its CDB.
    ///
    /// # Panics
    /// If no command has this name; in a constant this is an error of compilation.
    pub const fn named(&self, name: &str) -> &'static CommandRow {
        let mut at = 0;
        while at < self.commands.len() {
            if is_same(self.commands[at].row.name.as_bytes(), name.as_bytes()) {
                return &self.commands[at].row;
            }
            at += 1;
        }
        panic!("no command has this name")
    }

    /// Formats the table as Markdown, with one row per command.
    pub fn markdown(&self) -> String {
        let mut text = String::from(
            "| Code | Command | Standard | Reservations | Administrators only | Units | CDB usage \
             | Timeout |\n|---|---|---|---|---|---|---|---|\n",
        );
        for CommandEntry { row, .. } in self.commands {
            let digits = if row.opcode == variable::OPCODE { 4 } else { 2 };
            let action = row.service_action;
            let action = action.map_or_else(String::new, |at| format!("/{at:0digits$x}"));
            let usage = row.usage_bitmap().iter().fold(String::new(), |mut usage, byte| {
                usage.push_str(if usage.is_empty() { "" } else { " " });
                usage.push_str(&format!("{byte:02x}"));
                usage
            });
            let CommandRow { opcode, name, standard, reservation, administration, .. } = row;
            let CommandRow { offered, timeout_seconds, .. } = row;
            text.push_str(&format!(
                "| {opcode:02x}{action} | {name} | {standard} | {reservation} | {administration} \
                 | {offered} | `{usage}` | {timeout_seconds} s |\n"
            ));
        }
        text
    }

    /// The table from the first row of an operation code on; empty if there is none.
    #[inline]
    fn rows_of(&self, opcode: u8) -> &'static [CommandEntry<U>] {
        let first = usize::from(self.first_of_opcode[usize::from(opcode)]);
        self.commands.get(first..).unwrap_or_default()
    }
}

impl<U: DeviceServer> fmt::Debug for CommandTable<U> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.commands.iter().map(|entry| entry.row.name)).finish()
    }
}

/// Finds the command of a CDB in `rows`, which begin with those of its operation code.
fn find_among<U: DeviceServer>(
    rows: &'static [CommandEntry<U>],
    features: Features,
    opcode: u8,
    cdb: &[u8],
) -> Result<&'static CommandEntry<U>, CdbError> {
    let same_opcode = rows.iter().take_while(|entry| entry.row.opcode == opcode);
    let mut offered = same_opcode.filter(|entry| entry.row.is_offered(features)).peekable();
    if offered.peek().is_none() {
        return Err(CdbError::Opcode);
    }
    let variable = opcode == variable::OPCODE;
    if variable && !variable::has_valid_length(cdb) {
        return Err(CdbError::AdditionalLength);
    }
    let action = service_action_of(opcode, cdb);
    let is_requested =
        |entry: &&CommandEntry<U>| entry.row.service_action.is_none_or(|own| own == action);
    let at = if variable { (variable::SERVICE_ACTION_AT as u16, None) } else { (1, Some(4)) };
    let command = offered.find(is_requested).ok_or(CdbError::ServiceAction { at })?;
    if variable && variable::announced_bytes(cdb) != Some(command.row.cdb_bytes()) {
        return Err(CdbError::AdditionalLength);
    }
    Ok(command)
}

/// The service action that a CDB contains, if its operation code has them. SPC-4 §4.2.5.2.
#[inline]
fn service_action_of(opcode: u8, cdb: &[u8]) -> u16 {
    match opcode {
        variable::OPCODE => variable::service_action(cdb),
        _ => cdb.get(1).map_or(0, |byte| u16::from(byte & 0x1f)),
    }
}

/// True if the codes of a row are before those of another one.
const fn is_before(row: &CommandRow, next: &CommandRow) -> bool {
    match (row.service_action, next.service_action) {
        _ if row.opcode != next.opcode => row.opcode < next.opcode,
        (Some(action), Some(next_action)) => action < next_action,
        _ => false,
    }
}

/// Asserts that the usage data has the form of the command's CDB.
const fn check_usage(row: &CommandRow) {
    let bytes = row.usage.len();
    assert!(row.usage[0] == 0, "the table adds the operation code");
    if row.opcode == variable::OPCODE {
        let additional = bytes - variable::HEADER_BYTES;
        assert!(bytes <= variable::CDB_BYTES_MAX && additional > 0 && additional.is_multiple_of(4));
        assert!(row.usage[variable::ADDITIONAL_BYTES_AT] == 0xff);
        let at = variable::SERVICE_ACTION_AT;
        assert!(row.service_action.is_some() && row.usage[at] == 0 && row.usage[at + 1] == 0);
    } else {
        match cdb::length(row.opcode) {
            Some(fixed) => assert!(bytes == fixed, "not the length of the operation code"),
            None => assert!(bytes >= 6 && bytes <= cdb::FIXED_BYTES_MAX),
        }
        if let Some(action) = row.service_action {
            assert!(action <= 0x1f && row.usage[1] & 0x1f == 0, "service actions have five bits");
        }
    }
    assert!(row.usage[row.control_at()] == CONTROL, "NACA is evaluated, and nothing else");
}

const fn is_same(a: &[u8], b: &[u8]) -> bool {
    let mut at = 0;
    while at < a.len() && at < b.len() && a[at] == b[at] {
        at += 1;
    }
    at == a.len() && at == b.len()
}

#[cfg(test)]
mod tests;
