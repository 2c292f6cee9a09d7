//! The one command table: dispatch, REPORT SUPPORTED OPERATION CODES and CONFORMANCE.md come
//! from it.

use crate::plan::{NexusId, Plan, Refusal};
use crate::plan::{capacity, inform, read_write};
use crate::unit::{BlockUnit, Context, UnitOptions};
use alloc::vec::Vec;

/// How a command stands to a reservation another nexus holds. SPC-4 §5.12.1, SBC-3 §4.15.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Reservation {
    /// Never a conflict, not even with RESERVE (6).
    Always,
    /// No conflict with any persistent reservation; one with RESERVE (6).
    Persistent,
    /// Conflicts with exclusive access.
    Read,
    /// Conflicts with exclusive access and write exclusive.
    Write,
    /// `Always` when PREVENT is 0, else `Write`.
    Prevent,
    /// `Persistent` when it starts the unit without a power condition, else `Write`.
    StartStop,
    /// The command judges reservations itself.
    Own,
}

/// What a command wants of the medium.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Medium {
    /// Works without.
    Unneeded,
    /// Must be there, the unit ready.
    Ready,
    /// Will be written: must be there and not be write protected.
    Writable,
}

/// Which units have the command.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Offered {
    /// All.
    Always,
    /// Thin provisioned ones.
    Thin,
    /// Those with a removable medium.
    Removable,
}

/// One command.
#[derive(Clone, Copy, Debug)]
pub struct Command {
    /// Operation code.
    pub opcode: u8,
    /// Service action, where the operation code has them.
    pub service_action: Option<u8>,
    /// The standard's name.
    pub name: &'static str,
    /// Where it is described.
    pub standard: &'static str,
    /// How it stands to reservations.
    pub reservation: Reservation,
    /// What it wants of the medium.
    pub medium: Medium,
    /// Which units have it.
    pub offered: Offered,
    /// Recommended timeout.
    pub timeout_seconds: u32,
    usage: &'static [u8],
    plan: Planner,
}

/// Judges a command of its kind.
pub(crate) type Planner = fn(&mut BlockUnit, &Request<'_>) -> Result<Plan, Refusal>;

/// A command as it came.
#[derive(Debug)]
pub(crate) struct Request<'a> {
    /// From whom.
    #[allow(dead_code)]
    pub nexus: NexusId,
    /// What else is known.
    pub context: &'a Context<'a>,
    /// At least as long as its operation code asks for.
    pub cdb: &'a [u8],
}

impl Command {
    /// Length of its CDB.
    pub const fn cdb_bytes(&self) -> usize {
        self.usage.len()
    }

    /// CDB usage data: the operation code, the service action, and 1 for every other bit that is
    /// evaluated. SPC-4 §6.35.3.
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

    /// Whether a unit of these options has it.
    pub fn is_offered(&self, options: &UnitOptions) -> bool {
        match self.offered {
            Offered::Always => true,
            Offered::Thin => options.unmap_granularity_blocks.is_some(),
            Offered::Removable => options.removable,
        }
    }

    pub(crate) fn plan(
        &self,
        unit: &mut BlockUnit,
        request: &Request<'_>,
    ) -> Result<Plan, Refusal> {
        (self.plan)(unit, request)
    }
}

const NO: Option<u8> = None;

// CDB usage by layout; the first byte becomes the operation code. NACA is evaluated (must be 0),
// GROUP NUMBER is not.
const TEST: &[u8] = &[0, 0, 0, 0, 0, 4];
const PAGE_6: &[u8] = &[0, 0x01, 0xff, 0xff, 0xff, 4];
const BLOCKS_6: &[u8] = &[0, 0x1f, 0xff, 0xff, 0xff, 4];
const CACHED_10: &[u8] = &[0, 0x18, 0xff, 0xff, 0xff, 0xff, 0, 0xff, 0xff, 4];
const CAPACITY_10: &[u8] = &[0, 0, 0xff, 0xff, 0xff, 0xff, 0, 0, 0x01, 4];
const CACHED_16: &[u8] =
    &[0, 0x18, 255, 255, 255, 255, 255, 255, 255, 255, 255, 255, 255, 255, 0, 4];
const CAPACITY_16: &[u8] =
    &[0, 0, 255, 255, 255, 255, 255, 255, 255, 255, 255, 255, 255, 255, 0x01, 4];
const LUNS: &[u8] = &[0, 0, 0xff, 0, 0, 0, 0xff, 0xff, 0xff, 0xff, 0, 4];

/// All commands, by operation code and service action.
pub static COMMANDS: &[Command] = {
    use Medium::{Ready, Unneeded, Writable};
    use Reservation::{Always, Persistent, Read, Write};
    const ALL: Offered = Offered::Always;
    #[rustfmt::skip]
    let table: &[Command] = &[
        command(0x00, NO, "TEST UNIT READY", "SPC-4 §6.47", (Persistent, Ready, ALL), (TEST, 10), inform::ready),
        command(0x12, NO, "INQUIRY", "SPC-4 §6.6", (Always, Unneeded, ALL), (PAGE_6, 10), inform::inquiry),
        command(0x25, NO, "READ CAPACITY (10)", "SBC-3 §5.16", (Persistent, Ready, ALL), (CAPACITY_10, 10), capacity::read_10),
        command(0x28, NO, "READ (10)", "SBC-3 §5.11", (Read, Ready, ALL), (CACHED_10, 30), read_write::read),
        command(0x2a, NO, "WRITE (10)", "SBC-3 §5.33", (Write, Writable, ALL), (CACHED_10, 30), read_write::write),
        command(0x88, NO, "READ (16)", "SBC-3 §5.13", (Read, Ready, ALL), (CACHED_16, 30), read_write::read),
        command(0x8a, NO, "WRITE (16)", "SBC-3 §5.35", (Write, Writable, ALL), (CACHED_16, 30), read_write::write),
        command(0x9e, Some(0x10), "READ CAPACITY (16)", "SBC-3 §5.17", (Persistent, Ready, ALL), (CAPACITY_16, 10), capacity::read_16),
        command(0xa0, NO, "REPORT LUNS", "SPC-4 §6.33", (Always, Unneeded, ALL), (LUNS, 10), inform::luns),
    ];
    table
};

const fn command(
    opcode: u8,
    service_action: Option<u8>,
    name: &'static str,
    standard: &'static str,
    (reservation, medium, offered): (Reservation, Medium, Offered),
    (usage, timeout_seconds): (&'static [u8], u32),
    plan: Planner,
) -> Command {
    Command {
        opcode,
        service_action,
        name,
        standard,
        reservation,
        medium,
        offered,
        timeout_seconds,
        usage,
        plan,
    }
}

/// What looking a CDB up gives.
pub(crate) enum Found {
    /// The command.
    Command(&'static Command),
    /// The operation code has service actions, but not this one.
    NoServiceAction,
    /// No such operation code.
    NoOpcode,
}

/// Finds the command of a CDB among those that `options` offer.
pub(crate) fn find(options: &UnitOptions, cdb: &[u8]) -> Found {
    let Some(&opcode) = cdb.first() else { return Found::NoOpcode };
    let action = cdb.get(1).map_or(0, |byte| byte & 0x1f);
    let mut found = Found::NoOpcode;
    for command in COMMANDS {
        if command.opcode != opcode || !command.is_offered(options) {
            continue;
        }
        match command.service_action {
            Some(own) if own != action => found = Found::NoServiceAction,
            _ => return Found::Command(command),
        }
    }
    found
}
