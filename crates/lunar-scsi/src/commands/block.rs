//! The commands of block units.

use super::usage::*;
use super::{
    CommandConditions, CommandEntry, CommandRow, CommandTable, ListKind, Medium, Offered,
    OperationClass, QuotaClass, ReservationConflict,
};
use crate::long_operation::DuringOperation;
use crate::plan::atomic;
use crate::plan::copy;
use crate::plan::{cache, capacity, defects, diagnostic, exclusive, format, medium};
use crate::plan::{provisioning, read_write, sanitize, verify};
use crate::ports::PortAccess;
use crate::reservations::ReservationAccess;
use crate::rights::Administration;
use crate::unit::BlockUnit;
use alloc::string::String;

/// Recommended timeout of commands on every block: without IMMED the response comes at the end.
const HOURS: u32 = 12 * 3600;

/// The commands of SBC-3 and those that copy blocks, by operation code and service action.
#[rustfmt::skip]
const SBC_COMMANDS: [CommandEntry<BlockUnit>; 40] = {
    use Administration::{Always, UnlessStarts};
    use DuringOperation::{Formats, Sanitizes};
    use ListKind::{OpenEnded, Plain};
    use Medium::{Ready, Unneeded, Writable};
    use Offered::{Always as All, Atomic, Removable, Thin};
    use OperationClass as Class;
    use PortAccess::Standby;
    use QuotaClass::{Command, BytesOnce, BytesTwice};
    use ReservationConflict::{Prevent, StartStop};
    const NO: Option<u16> = None;
    const FREE: ReservationConflict = ReservationConflict::Fixed(ReservationAccess::Persistent);
    const AS_READ: ReservationConflict = ReservationConflict::Fixed(ReservationAccess::Read);
    const AS_WRITE: ReservationConflict = ReservationConflict::Fixed(ReservationAccess::Write);
    const SHOWS: CommandConditions = (AS_READ, Unneeded, All);
    const SETS: CommandConditions = (AS_WRITE, Unneeded, All);
    const READ: CommandConditions = (AS_READ, Ready, All);
    const WRITE: CommandConditions = (AS_WRITE, Writable, All);
    const READ_THIN: CommandConditions = (AS_READ, Ready, Thin);
    const WRITE_THIN: CommandConditions = (AS_WRITE, Writable, Thin);
    [
    CommandEntry::new(0x04, NO, "FORMAT UNIT", "SBC-3 §5.3",
        WRITE, (FORMAT_6, HOURS), format::format_unit).administered(Always).during(Formats)
        .with_list(OpenEnded, format::format_unit_list),
    CommandEntry::new(0x08, NO, "READ (6)", "SBC-3 §5.10",
        READ, (BLOCKS_6, 30), read_write::read).counted_as(Class::Read).charged(BytesOnce),
    CommandEntry::new(0x0a, NO, "WRITE (6)", "SBC-3 §5.32",
        WRITE, (BLOCKS_6, 30), read_write::write).counted_as(Class::Write).charged(BytesOnce),
    CommandEntry::new(0x1b, NO, "START STOP UNIT", "SBC-3 §5.25",
        (StartStop, Unneeded, All), (START_6, 60), medium::start_stop)
        .administered(UnlessStarts),
    CommandEntry::new(0x1d, NO, "SEND DIAGNOSTIC", "SPC-4 §6.42",
        (AS_WRITE, Ready, All), (DIAGNOSTIC_6, 60), diagnostic::send).on_ports(Standby),
    CommandEntry::new(0x1e, NO, "PREVENT ALLOW MEDIUM REMOVAL", "SBC-3 §5.15",
        (Prevent, Unneeded, Removable), (PREVENT_6, 10), medium::prevent_allow),
    CommandEntry::new(0x25, NO, "READ CAPACITY (10)", "SBC-3 §5.16",
        (FREE, Ready, All), (CAPACITY_10, 10), capacity::read_10),
    CommandEntry::new(0x28, NO, "READ (10)", "SBC-3 §5.11",
        READ, (&blocks_10(DPO_FUA), 30), read_write::read).counted_as(Class::Read)
        .charged(BytesOnce),
    CommandEntry::new(0x2a, NO, "WRITE (10)", "SBC-3 §5.33",
        WRITE, (&blocks_10(DPO_FUA), 30), read_write::write).counted_as(Class::Write)
        .charged(BytesOnce),
    CommandEntry::new(0x2e, NO, "WRITE AND VERIFY (10)", "SBC-3 §5.37",
        WRITE, (&blocks_10(DPO_BYTCHK), 60), verify::write_and_verify).counted_as(Class::Write)
        .charged(BytesTwice),
    CommandEntry::new(0x2f, NO, "VERIFY (10)", "SBC-3 §5.29",
        READ, (&blocks_10(DPO_BYTCHK), 60), verify::verify).counted_as(Class::Verify)
        .charged(BytesOnce),
    CommandEntry::new(0x34, NO, "PRE-FETCH (10)", "SBC-3 §5.8",
        READ, (&blocks_10(0), 30), cache::prefetch).charged(BytesOnce),
    CommandEntry::new(0x35, NO, "SYNCHRONIZE CACHE (10)", "SBC-3 §5.26",
        (AS_WRITE, Ready, All), (&blocks_10(IMMED), 60), cache::synchronize)
        .counted_as(Class::Flush),
    CommandEntry::new(0x37, NO, "READ DEFECT DATA (10)", "SBC-3 §5.18",
        READ, (DEFECTS_10, 10), defects::read_10),
    CommandEntry::new(0x41, NO, "WRITE SAME (10)", "SBC-3 §5.44",
        WRITE, (&blocks_10(UNMAP), 120), provisioning::write_same_10).counted_as(Class::WriteSame)
        .charged(Command),
    CommandEntry::new(0x42, NO, "UNMAP", "SBC-3 §5.28",
        WRITE_THIN, (UNMAP_10, 60), provisioning::unmap).counted_as(Class::Unmap)
        .with_list(Plain, provisioning::unmap_list).charged(Command),
    CommandEntry::new(0x48, Some(0x01), "SANITIZE: OVERWRITE", "SBC-3 §5.24",
        WRITE, (SANITIZE_10, HOURS), sanitize::overwrite).administered(Always).during(Sanitizes)
        .with_list(Plain, sanitize::overwrite_list),
    CommandEntry::new(0x48, Some(0x02), "SANITIZE: BLOCK ERASE", "SBC-3 §5.24",
        WRITE_THIN, (SANITIZE_10, HOURS), sanitize::block_erase).administered(Always)
        .during(Sanitizes),
    CommandEntry::new(0x48, Some(0x1f), "SANITIZE: EXIT FAILURE MODE", "SBC-3 §5.24",
        (AS_WRITE, Ready, All), (SANITIZE_10, 10), sanitize::exit_failure_mode)
        .administered(Always).during(Sanitizes),
    CommandEntry::new(0x83, Some(0), "EXTENDED COPY (LID1)", "SPC-4 §6.5",
        SETS, (COPY_16, 600), copy::extended_copy).counted_as(Class::Copy)
        .with_list(Plain, copy::extended_copy_list).third_party_copy(),
    CommandEntry::new(0x84, Some(0), "RECEIVE COPY RESULTS: COPY STATUS", "SPC-3 §6.17.2",
        SHOWS, (RESULTS_16, 10), copy::status).third_party_copy(),
    CommandEntry::new(0x84, Some(3), "RECEIVE COPY RESULTS: OPERATING PARAMETERS", "SPC-3 §6.17.4",
        SHOWS, (COPY_16, 10), copy::operating_parameters).third_party_copy(),
    CommandEntry::new(0x84, Some(4), "RECEIVE COPY RESULTS: FAILED SEGMENT DETAILS",
        "SPC-3 §6.17.5",
        SHOWS, (RESULTS_16, 10), copy::failure).third_party_copy(),
    CommandEntry::new(0x88, NO, "READ (16)", "SBC-3 §5.13",
        READ, (&blocks_16(DPO_FUA), 30), read_write::read).counted_as(Class::Read)
        .charged(BytesOnce),
    CommandEntry::new(0x89, NO, "COMPARE AND WRITE", "SBC-3 §5.2",
        WRITE, (COMPARE_16, 30), exclusive::compare_and_write).counted_as(Class::CompareAndWrite)
        .charged(BytesTwice),
    CommandEntry::new(0x8a, NO, "WRITE (16)", "SBC-3 §5.35",
        WRITE, (&blocks_16(DPO_FUA), 30), read_write::write).counted_as(Class::Write)
        .charged(BytesOnce),
    CommandEntry::new(0x8b, NO, "ORWRITE (16)", "SBC-3 §5.7",
        WRITE, (&blocks_16(DPO_FUA), 30), exclusive::or_write).counted_as(Class::Write)
        .charged(BytesTwice),
    CommandEntry::new(0x8e, NO, "WRITE AND VERIFY (16)", "SBC-3 §5.39",
        WRITE, (&blocks_16(DPO_BYTCHK), 60), verify::write_and_verify).counted_as(Class::Write)
        .charged(BytesTwice),
    CommandEntry::new(0x8f, NO, "VERIFY (16)", "SBC-3 §5.31",
        READ, (&blocks_16(DPO_BYTCHK), 60), verify::verify).counted_as(Class::Verify)
        .charged(BytesOnce),
    CommandEntry::new(0x90, NO, "PRE-FETCH (16)", "SBC-3 §5.9",
        READ, (&blocks_16(0), 30), cache::prefetch).charged(BytesOnce),
    CommandEntry::new(0x91, NO, "SYNCHRONIZE CACHE (16)", "SBC-3 §5.27",
        (AS_WRITE, Ready, All), (&blocks_16(IMMED), 60), cache::synchronize)
        .counted_as(Class::Flush),
    CommandEntry::new(0x93, NO, "WRITE SAME (16)", "SBC-3 §5.45",
        WRITE, (&blocks_16(UNMAP_NDOB), 120), provisioning::write_same_16)
        .counted_as(Class::WriteSame).charged(Command),
    CommandEntry::new(0x9c, NO, "WRITE ATOMIC (16)", "SBC-4",
        (AS_WRITE, Writable, Atomic), (ATOMIC_16, 30), atomic::write_atomic)
        .counted_as(Class::Write).charged(BytesOnce),
    CommandEntry::new(0x9e, Some(0x10), "READ CAPACITY (16)", "SBC-3 §5.17",
        (FREE, Ready, All), (CAPACITY_16, 10), capacity::read_16),
    CommandEntry::new(0x9e, Some(0x12), "GET LBA STATUS", "SBC-3 §5.4",
        READ_THIN, (STATUS_16, 30), provisioning::lba_status),
    CommandEntry::new(0xa8, NO, "READ (12)", "SBC-3 §5.12",
        READ, (&blocks_12(DPO_FUA), 30), read_write::read).counted_as(Class::Read)
        .charged(BytesOnce),
    CommandEntry::new(0xaa, NO, "WRITE (12)", "SBC-3 §5.34",
        WRITE, (&blocks_12(DPO_FUA), 30), read_write::write).counted_as(Class::Write)
        .charged(BytesOnce),
    CommandEntry::new(0xae, NO, "WRITE AND VERIFY (12)", "SBC-3 §5.38",
        WRITE, (&blocks_12(DPO_BYTCHK), 60), verify::write_and_verify).counted_as(Class::Write)
        .charged(BytesTwice),
    CommandEntry::new(0xaf, NO, "VERIFY (12)", "SBC-3 §5.30",
        READ, (&blocks_12(DPO_BYTCHK), 60), verify::verify).counted_as(Class::Verify)
        .charged(BytesOnce),
    CommandEntry::new(0xb7, NO, "READ DEFECT DATA (12)", "SBC-3 §5.19",
        READ, (DEFECTS_12, 10), defects::read_12),
    ]
};

/// All commands of block units, by operation code and service action.
pub static COMMANDS: &[CommandEntry<BlockUnit>] =
    &CommandTable::merge::<30, 40, 70>(CommandTable::PRIMARY, SBC_COMMANDS);

/// The table of block units.
pub static BLOCK_COMMANDS: CommandTable<BlockUnit> = CommandTable::new(COMMANDS);

// Statistics count a refused command by its operation code alone.
const _: () = {
    let mut at = 1;
    while at < COMMANDS.len() {
        let (one, next) = (&COMMANDS[at - 1].row, &COMMANDS[at].row);
        assert!(one.opcode != next.opcode || one.class as usize == next.class as usize);
        at += 1;
    }
};

/// Formats the table as Markdown for CONFORMANCE.md, with one row per command.
pub fn markdown() -> String {
    BLOCK_COMMANDS.markdown()
}

/// Operation code of the command with this name, for code that builds its CDB. To be called in a
/// constant: an unknown name then fails to compile.
pub const fn opcode(name: &str) -> u8 {
    BLOCK_COMMANDS.named(name).opcode
}

/// Service action of the command with this name, in a CDB of fixed length; like [`opcode`].
pub const fn service_action(name: &str) -> u8 {
    match BLOCK_COMMANDS.named(name).service_action {
        Some(action) if action <= 0x1f => action as u8,
        _ => panic!("the command has no service action of five bits"),
    }
}

/// The row of a CDB, whether or not a unit offers the command; `None` if it is unknown.
#[inline]
pub fn row(cdb: &[u8]) -> Option<&'static CommandRow> {
    BLOCK_COMMANDS.row(cdb)
}
