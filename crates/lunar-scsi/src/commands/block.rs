//! The commands of block units.

use super::usage::*;
use super::{
    CommandConditions, CommandEntry, CommandRow, CommandTable, ListKind, Medium, Offered,
    OperationClass, QuotaClass, ReservationConflict,
};
use crate::long_operation::DuringOperation;
use crate::plan::atomic;
use crate::plan::copy;
use crate::plan::{
    buffers, cache, capacity, defects, diagnostic, exclusive, format, inform, log, medium,
};
use crate::plan::{
    parameters, ports, provisioning, read_write, report, reserve, sanitize, timestamp, verify,
};
use crate::ports::PortAccess;
use crate::reservations::ReservationAccess;
use crate::rights::Administration;
use crate::unit::BlockUnit;
use alloc::string::String;

/// Recommended timeout of commands on every block: without IMMED the response comes at the end.
const HOURS: u32 = 12 * 3600;

/// All commands, by operation code and service action.
#[rustfmt::skip]
pub static COMMANDS: &[CommandEntry<BlockUnit>] = {
    use Administration::{Always, UnlessStarts, WhenChanges};
    use DuringOperation::{Formats, Processed, Sanitizes};
    use ListKind::{NexusBuffer, OpenEnded, Plain, Reservations};
    use Medium::{Ready, Unneeded, Writable};
    use Offered::{Always as All, Atomic, Removable, Thin};
    use OperationClass as Class;
    use PortAccess::{EchoBuffer, Standby, Unavailable};
    use QuotaClass::{Command, Once, Twice};
    use ReservationConflict::{Own, Prevent, StartStop};
    const NO: Option<u16> = None;
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
    CommandEntry::new(0x00, NO, "TEST UNIT READY", "SPC-4 §6.47",
        (FREE, Ready, All), (NO_FIELDS_6, 10), inform::ready)
        .without_unit(inform::ready_without_unit),
    CommandEntry::new(0x03, NO, "REQUEST SENSE", "SPC-4 §6.39",
        TELL, (DESC_6, 10), inform::request_sense).always()
        .without_unit(inform::sense_without_unit),
    CommandEntry::new(0x04, NO, "FORMAT UNIT", "SBC-3 §5.3",
        WRITE, (FORMAT_6, HOURS), format::format_unit).administered(Always).during(Formats)
        .with_list(OpenEnded, format::format_unit_list),
    CommandEntry::new(0x08, NO, "READ (6)", "SBC-3 §5.10",
        READ, (BLOCKS_6, 30), read_write::read).counted_as(Class::Read).charged(Once),
    CommandEntry::new(0x0a, NO, "WRITE (6)", "SBC-3 §5.32",
        WRITE, (BLOCKS_6, 30), read_write::write).counted_as(Class::Write).charged(Once),
    CommandEntry::new(0x12, NO, "INQUIRY", "SPC-4 §6.6",
        TELL, (PAGE_6, 10), inform::inquiry).always().without_unit(inform::inquiry_without_unit),
    CommandEntry::new(0x15, NO, "MODE SELECT (6)", "SPC-4 §6.11",
        SETS, (SELECT_6, 10), parameters::mode_select_6).administered(WhenChanges).on_ports(Standby)
        .with_list(Plain, parameters::mode_select_6_list),
    CommandEntry::new(0x16, NO, "RESERVE (6)", "SPC-2 §7.21",
        RESERVE, (NO_FIELDS_6, 10), reserve::reserve_6),
    CommandEntry::new(0x17, NO, "RELEASE (6)", "SPC-2 §7.16",
        RESERVE, (NO_FIELDS_6, 10), reserve::release_6),
    CommandEntry::new(0x1a, NO, "MODE SENSE (6)", "SPC-4 §6.13",
        SHOWS, (MODES_6, 10), parameters::mode_sense_6).on_ports(Standby),
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
        READ, (&blocks_10(DPO_FUA), 30), read_write::read).counted_as(Class::Read).charged(Once),
    CommandEntry::new(0x2a, NO, "WRITE (10)", "SBC-3 §5.33",
        WRITE, (&blocks_10(DPO_FUA), 30), read_write::write).counted_as(Class::Write)
        .charged(Once),
    CommandEntry::new(0x2e, NO, "WRITE AND VERIFY (10)", "SBC-3 §5.37",
        WRITE, (&blocks_10(DPO_BYTCHK), 60), verify::write_and_verify).counted_as(Class::Write)
        .charged(Twice),
    CommandEntry::new(0x2f, NO, "VERIFY (10)", "SBC-3 §5.29",
        READ, (&blocks_10(DPO_BYTCHK), 60), verify::verify).counted_as(Class::Verify)
        .charged(Once),
    CommandEntry::new(0x34, NO, "PRE-FETCH (10)", "SBC-3 §5.8",
        READ, (&blocks_10(0), 30), cache::prefetch).charged(Once),
    CommandEntry::new(0x35, NO, "SYNCHRONIZE CACHE (10)", "SBC-3 §5.26",
        (AS_WRITE, Ready, All), (&blocks_10(IMMED), 60), cache::synchronize)
        .counted_as(Class::Flush),
    CommandEntry::new(0x37, NO, "READ DEFECT DATA (10)", "SBC-3 §5.18",
        READ, (DEFECTS_10, 10), defects::read_10),
    CommandEntry::new(0x3b, NO, "WRITE BUFFER", "SPC-4 §6.49",
        SETS, (BUFFER_10, 10), buffers::write).on_ports(EchoBuffer)
        .with_list(NexusBuffer, buffers::write_list),
    CommandEntry::new(0x3c, NO, "READ BUFFER", "SPC-4 §6.18",
        SHOWS, (BUFFER_10, 10), buffers::read).on_ports(EchoBuffer),
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
    CommandEntry::new(0x4d, NO, "LOG SENSE", "SPC-4 §6.8",
        (FREE, Unneeded, All), (LOGS_10, 10), log::log_sense).on_ports(Standby).during(Processed),
    CommandEntry::new(0x55, NO, "MODE SELECT (10)", "SPC-4 §6.12",
        SETS, (SELECT_10, 10), parameters::mode_select_10).administered(WhenChanges)
        .on_ports(Standby).with_list(Plain, parameters::mode_select_10_list),
    CommandEntry::new(0x5a, NO, "MODE SENSE (10)", "SPC-4 §6.14",
        SHOWS, (MODES_10, 10), parameters::mode_sense_10).on_ports(Standby),
    CommandEntry::new(0x5e, Some(0), "PERSISTENT RESERVE IN: READ KEYS", "SPC-4 §6.15",
        RESERVE, (PERSISTENT_IN_10, 10), reserve::persistent_in).on_ports(Standby),
    CommandEntry::new(0x5e, Some(1), "PERSISTENT RESERVE IN: READ RESERVATION", "SPC-4 §6.15",
        RESERVE, (PERSISTENT_IN_10, 10), reserve::persistent_in).on_ports(Standby),
    CommandEntry::new(0x5e, Some(2), "PERSISTENT RESERVE IN: REPORT CAPABILITIES", "SPC-4 §6.15",
        RESERVE, (PERSISTENT_IN_10, 10), reserve::persistent_in).on_ports(Standby),
    CommandEntry::new(0x5e, Some(3), "PERSISTENT RESERVE IN: READ FULL STATUS", "SPC-4 §6.15",
        RESERVE, (PERSISTENT_IN_10, 10), reserve::persistent_in).on_ports(Standby),
    CommandEntry::new(0x5f, Some(0), "PERSISTENT RESERVE OUT: REGISTER", "SPC-4 §6.16",
        RESERVE, (PERSISTENT_OUT_10, 10), reserve::persistent_out).on_ports(Standby)
        .with_list(Reservations, reserve::persistent_out_list),
    CommandEntry::new(0x5f, Some(1), "PERSISTENT RESERVE OUT: RESERVE", "SPC-4 §6.16",
        RESERVE, (PERSISTENT_OUT_10, 10), reserve::persistent_out).on_ports(Standby)
        .with_list(Reservations, reserve::persistent_out_list),
    CommandEntry::new(0x5f, Some(2), "PERSISTENT RESERVE OUT: RELEASE", "SPC-4 §6.16",
        RESERVE, (PERSISTENT_OUT_10, 10), reserve::persistent_out).on_ports(Standby)
        .with_list(Reservations, reserve::persistent_out_list),
    CommandEntry::new(0x5f, Some(3), "PERSISTENT RESERVE OUT: CLEAR", "SPC-4 §6.16",
        RESERVE, (PERSISTENT_OUT_10, 10), reserve::persistent_out).on_ports(Standby)
        .with_list(Reservations, reserve::persistent_out_list),
    CommandEntry::new(0x5f, Some(4), "PERSISTENT RESERVE OUT: PREEMPT", "SPC-4 §6.16",
        RESERVE, (PERSISTENT_OUT_10, 10), reserve::persistent_out).on_ports(Standby)
        .with_list(Reservations, reserve::persistent_out_list),
    CommandEntry::new(0x5f, Some(5), "PERSISTENT RESERVE OUT: PREEMPT AND ABORT", "SPC-4 §6.16",
        RESERVE, (PERSISTENT_OUT_10, 10), reserve::persistent_out).on_ports(Standby)
        .with_list(Reservations, reserve::persistent_out_list).fenced(),
    CommandEntry::new(0x5f, Some(6), "PERSISTENT RESERVE OUT: REGISTER AND IGNORE EXISTING KEY",
        "SPC-4 §6.16",
        RESERVE, (PERSISTENT_OUT_10, 10), reserve::persistent_out).on_ports(Standby)
        .with_list(Reservations, reserve::persistent_out_list),
    CommandEntry::new(0x5f, Some(7), "PERSISTENT RESERVE OUT: REGISTER AND MOVE", "SPC-4 §6.16",
        RESERVE, (PERSISTENT_OUT_10, 10), reserve::persistent_out).on_ports(Standby)
        .with_list(Reservations, reserve::persistent_out_list),
    CommandEntry::new(0x83, Some(0), "EXTENDED COPY (LID1)", "SPC-4 §6.5",
        SETS, (COPY_16, 600), copy::extended_copy).counted_as(Class::Copy)
        .with_list(Plain, copy::extended_copy_list).third_party_copy(),
    CommandEntry::new(0x84, Some(0), "RECEIVE COPY RESULTS: COPY STATUS", "SPC-3 §6.17.2",
        SHOWS, (RESULTS_16, 10), copy::status).third_party_copy(),
    CommandEntry::new(0x84, Some(3), "RECEIVE COPY RESULTS: OPERATING PARAMETERS", "SPC-3 §6.17.4",
        SHOWS, (COPY_16, 10), copy::operating_parameters).third_party_copy(),
    CommandEntry::new(0x84, Some(4), "RECEIVE COPY RESULTS: FAILED SEGMENT DETAILS", "SPC-3 §6.17.5",
        SHOWS, (RESULTS_16, 10), copy::failure).third_party_copy(),
    CommandEntry::new(0x88, NO, "READ (16)", "SBC-3 §5.13",
        READ, (&blocks_16(DPO_FUA), 30), read_write::read).counted_as(Class::Read).charged(Once),
    CommandEntry::new(0x89, NO, "COMPARE AND WRITE", "SBC-3 §5.2",
        WRITE, (COMPARE_16, 30), exclusive::compare_and_write).counted_as(Class::CompareAndWrite)
        .charged(Twice),
    CommandEntry::new(0x8a, NO, "WRITE (16)", "SBC-3 §5.35",
        WRITE, (&blocks_16(DPO_FUA), 30), read_write::write).counted_as(Class::Write)
        .charged(Once),
    CommandEntry::new(0x8b, NO, "ORWRITE (16)", "SBC-3 §5.7",
        WRITE, (&blocks_16(DPO_FUA), 30), exclusive::or_write).counted_as(Class::Write)
        .charged(Twice),
    CommandEntry::new(0x8e, NO, "WRITE AND VERIFY (16)", "SBC-3 §5.39",
        WRITE, (&blocks_16(DPO_BYTCHK), 60), verify::write_and_verify).counted_as(Class::Write)
        .charged(Twice),
    CommandEntry::new(0x8f, NO, "VERIFY (16)", "SBC-3 §5.31",
        READ, (&blocks_16(DPO_BYTCHK), 60), verify::verify).counted_as(Class::Verify)
        .charged(Once),
    CommandEntry::new(0x90, NO, "PRE-FETCH (16)", "SBC-3 §5.9",
        READ, (&blocks_16(0), 30), cache::prefetch).charged(Once),
    CommandEntry::new(0x91, NO, "SYNCHRONIZE CACHE (16)", "SBC-3 §5.27",
        (AS_WRITE, Ready, All), (&blocks_16(IMMED), 60), cache::synchronize)
        .counted_as(Class::Flush),
    CommandEntry::new(0x93, NO, "WRITE SAME (16)", "SBC-3 §5.45",
        WRITE, (&blocks_16(UNMAP_NDOB), 120), provisioning::write_same_16)
        .counted_as(Class::WriteSame).charged(Command),
    CommandEntry::new(0x9c, NO, "WRITE ATOMIC (16)", "SBC-4",
        (AS_WRITE, Writable, Atomic), (ATOMIC_16, 30), atomic::write_atomic)
        .counted_as(Class::Write).charged(Once),
    CommandEntry::new(0x9e, Some(0x10), "READ CAPACITY (16)", "SBC-3 §5.17",
        (FREE, Ready, All), (CAPACITY_16, 10), capacity::read_16),
    CommandEntry::new(0x9e, Some(0x12), "GET LBA STATUS", "SBC-3 §5.4",
        READ_THIN, (STATUS_16, 30), provisioning::lba_status),
    CommandEntry::new(0xa0, NO, "REPORT LUNS", "SPC-4 §6.33",
        TELL, (LUNS_12, 10), inform::luns).always().without_unit(inform::luns_without_unit)
        .reports_luns(),
    CommandEntry::new(0xa3, Some(0x0a), "REPORT TARGET PORT GROUPS", "SPC-4 §6.37",
        (FREE, Unneeded, All), (GROUPS_IN_12, 10), ports::report_groups).on_ports(Unavailable)
        .during(Processed),
    CommandEntry::new(0xa3, Some(0x0c), "REPORT SUPPORTED OPERATION CODES", "SPC-4 §6.35",
        SHOWS, (CODES_12, 10), report::operation_codes).during(Processed),
    CommandEntry::new(0xa3, Some(0x0d), "REPORT SUPPORTED TASK MANAGEMENT FUNCTIONS",
        "SPC-4 §6.36",
        SHOWS, (FUNCTIONS_12, 10), report::task_management).during(Processed),
    CommandEntry::new(0xa3, Some(0x0f), "REPORT TIMESTAMP", "SPC-4 §6.38",
        (FREE, Unneeded, All), (TIMESTAMP_12, 10), timestamp::report).during(Processed),
    CommandEntry::new(0xa4, Some(0x0a), "SET TARGET PORT GROUPS", "SPC-4 §6.45",
        SETS, (GROUPS_OUT_12, 10), ports::set_groups).administered(Always).on_ports(Unavailable)
        .with_list(Plain, ports::set_groups_list),
    CommandEntry::new(0xa8, NO, "READ (12)", "SBC-3 §5.12",
        READ, (&blocks_12(DPO_FUA), 30), read_write::read).counted_as(Class::Read).charged(Once),
    CommandEntry::new(0xaa, NO, "WRITE (12)", "SBC-3 §5.34",
        WRITE, (&blocks_12(DPO_FUA), 30), read_write::write).counted_as(Class::Write)
        .charged(Once),
    CommandEntry::new(0xae, NO, "WRITE AND VERIFY (12)", "SBC-3 §5.38",
        WRITE, (&blocks_12(DPO_BYTCHK), 60), verify::write_and_verify).counted_as(Class::Write)
        .charged(Twice),
    CommandEntry::new(0xaf, NO, "VERIFY (12)", "SBC-3 §5.30",
        READ, (&blocks_12(DPO_BYTCHK), 60), verify::verify).counted_as(Class::Verify)
        .charged(Once),
    CommandEntry::new(0xb7, NO, "READ DEFECT DATA (12)", "SBC-3 §5.19",
        READ, (DEFECTS_12, 10), defects::read_12),
    ]
};

/// The table of block units.
pub static BLOCK: CommandTable<BlockUnit> = CommandTable::new(COMMANDS);

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
    BLOCK.markdown()
}

/// Operation code of the command with this name, for code that builds its CDB. To be called in a
/// constant: an unknown name then fails to compile.
pub const fn opcode(name: &str) -> u8 {
    BLOCK.named(name).opcode
}

/// Service action of the command with this name, in a CDB of fixed length; like [`opcode`].
pub const fn service_action(name: &str) -> u8 {
    match BLOCK.named(name).service_action {
        Some(action) if action <= 0x1f => action as u8,
        _ => panic!("the command has no service action of five bits"),
    }
}

/// The row of a CDB, whether or not a unit offers the command; `None` if it is unknown.
#[inline]
pub fn row(cdb: &[u8]) -> Option<&'static CommandRow> {
    BLOCK.row(cdb)
}
