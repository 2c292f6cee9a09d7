//! The commands that all types of units share. SPC-4.

use super::usage::*;
use super::{
    CommandConditions, CommandEntry, CommandTable, ListKind, Medium, Offered, ReservationConflict,
};
use crate::long_operation::DuringOperation;
use crate::plan::{buffers, inform, log, parameters, ports, report, reserve, timestamp};
use crate::ports::PortAccess;
use crate::primary::DeviceServer;
use crate::reservations::ReservationAccess;
use crate::rights::Administration;

impl<U: DeviceServer> CommandTable<U> {
    /// The commands that all types of units share, by operation code and service action.
    #[rustfmt::skip]
    pub const PRIMARY: [CommandEntry<U>; 30] = {
        use Administration::{Always, WhenChanges};
        use DuringOperation::Processed;
        use ListKind::{NexusBuffer, Plain, Reservations};
        use Medium::{Ready, Unneeded};
        use Offered::Always as All;
        use PortAccess::{EchoBuffer, Standby, Unavailable};
        use ReservationConflict::{Fixed, Own};
        const NO: Option<u16> = None;
        const FREE: ReservationConflict = Fixed(ReservationAccess::Persistent);
        const SHOWS: CommandConditions = (Fixed(ReservationAccess::Read), Unneeded, All);
        const SETS: CommandConditions = (Fixed(ReservationAccess::Write), Unneeded, All);
        const RESERVE: CommandConditions = (Own, Unneeded, All);
        const TELL: CommandConditions = (Fixed(ReservationAccess::Always), Unneeded, All);
        [
        CommandEntry::new(0x00, NO, "TEST UNIT READY", "SPC-4 §6.47",
            (FREE, Ready, All), (NO_FIELDS_6, 10), inform::ready)
            .without_unit(inform::ready_without_unit),
        CommandEntry::new(0x03, NO, "REQUEST SENSE", "SPC-4 §6.39",
            TELL, (DESC_6, 10), inform::request_sense).always()
            .without_unit(inform::sense_without_unit),
        CommandEntry::new(0x12, NO, "INQUIRY", "SPC-4 §6.6",
            TELL, (PAGE_6, 10), inform::inquiry).always()
            .without_unit(inform::inquiry_without_unit),
        CommandEntry::new(0x15, NO, "MODE SELECT (6)", "SPC-4 §6.11",
            SETS, (SELECT_6, 10), parameters::mode_select_6).administered(WhenChanges)
            .on_ports(Standby).with_list(Plain, parameters::mode_select_6_list),
        CommandEntry::new(0x16, NO, "RESERVE (6)", "SPC-2 §7.21",
            RESERVE, (NO_FIELDS_6, 10), reserve::reserve_6),
        CommandEntry::new(0x17, NO, "RELEASE (6)", "SPC-2 §7.16",
            RESERVE, (NO_FIELDS_6, 10), reserve::release_6),
        CommandEntry::new(0x1a, NO, "MODE SENSE (6)", "SPC-4 §6.13",
            SHOWS, (MODES_6, 10), parameters::mode_sense_6).on_ports(Standby),
        CommandEntry::new(0x3b, NO, "WRITE BUFFER", "SPC-4 §6.49",
            SETS, (BUFFER_10, 10), buffers::write).on_ports(EchoBuffer)
            .with_list(NexusBuffer, buffers::write_list),
        CommandEntry::new(0x3c, NO, "READ BUFFER", "SPC-4 §6.18",
            SHOWS, (BUFFER_10, 10), buffers::read).on_ports(EchoBuffer),
        CommandEntry::new(0x4d, NO, "LOG SENSE", "SPC-4 §6.8",
            (FREE, Unneeded, All), (LOGS_10, 10), log::log_sense).on_ports(Standby)
            .during(Processed),
        CommandEntry::new(0x55, NO, "MODE SELECT (10)", "SPC-4 §6.12",
            SETS, (SELECT_10, 10), parameters::mode_select_10).administered(WhenChanges)
            .on_ports(Standby).with_list(Plain, parameters::mode_select_10_list),
        CommandEntry::new(0x5a, NO, "MODE SENSE (10)", "SPC-4 §6.14",
            SHOWS, (MODES_10, 10), parameters::mode_sense_10).on_ports(Standby),
        CommandEntry::new(0x5e, Some(0), "PERSISTENT RESERVE IN: READ KEYS", "SPC-4 §6.15",
            RESERVE, (PERSISTENT_IN_10, 10), reserve::persistent_in).on_ports(Standby),
        CommandEntry::new(0x5e, Some(1), "PERSISTENT RESERVE IN: READ RESERVATION", "SPC-4 §6.15",
            RESERVE, (PERSISTENT_IN_10, 10), reserve::persistent_in).on_ports(Standby),
        CommandEntry::new(0x5e, Some(2), "PERSISTENT RESERVE IN: REPORT CAPABILITIES",
            "SPC-4 §6.15",
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
        ]
    };
}
