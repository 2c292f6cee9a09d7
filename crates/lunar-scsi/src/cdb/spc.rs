//! Layouts of SPC-4 commands.

lunar_wire::wire_struct! {
    /// INQUIRY, SPC-4 §6.6; VPD with EVPD in `flags`.
    pub struct Inquiry [6] {
        0 => opcode: u8,
        /// EVPD 01h.
        1 => flags: u8,
        2 => page: u8,
        3 => allocation_bytes: u16,
        5 => control: u8,
    }
}

lunar_wire::wire_struct! {
    /// REQUEST SENSE, SPC-4 §6.39.
    pub struct RequestSense [6] {
        0 => opcode: u8,
        /// DESC 01h.
        1 => flags: u8,
        4 => allocation_bytes: u8,
        5 => control: u8,
    }
}

lunar_wire::wire_struct! {
    /// REPORT LUNS, SPC-4 §6.33.
    pub struct ReportLuns [12] {
        0 => opcode: u8,
        2 => select_report: u8,
        6 => allocation_bytes: u32,
        11 => control: u8,
    }
}

lunar_wire::wire_struct! {
    /// REPORT SUPPORTED OPERATION CODES, SPC-4 §6.35.
    pub struct ReportSupportedOperationCodes [12] {
        0 => opcode: u8,
        1 => service_action: u8,
        /// RCTD 80h, REPORTING OPTIONS 07h.
        2 => options: u8,
        3 => requested_opcode: u8,
        4 => requested_service_action: u16,
        6 => allocation_bytes: u32,
        11 => control: u8,
    }
}

lunar_wire::wire_struct! {
    /// REPORT SUPPORTED TASK MANAGEMENT FUNCTIONS, SPC-4 §6.36.
    pub struct ReportSupportedTaskManagement [12] {
        0 => opcode: u8,
        1 => service_action: u8,
        /// REPD 80h.
        2 => options: u8,
        6 => allocation_bytes: u32,
        11 => control: u8,
    }
}

lunar_wire::wire_struct! {
    /// REPORT TARGET PORT GROUPS, SPC-4 §6.37.
    pub struct ReportTargetPortGroups [12] {
        0 => opcode: u8,
        /// PARAMETER DATA FORMAT E0h, service action.
        1 => format: u8,
        6 => allocation_bytes: u32,
        11 => control: u8,
    }
}

lunar_wire::wire_struct! {
    /// SET TARGET PORT GROUPS, SPC-4 §6.45.
    pub struct SetTargetPortGroups [12] {
        0 => opcode: u8,
        1 => service_action: u8,
        6 => parameter_bytes: u32,
        11 => control: u8,
    }
}

lunar_wire::wire_struct! {
    /// PREVENT ALLOW MEDIUM REMOVAL, SBC-3 §5.15.
    pub struct PreventAllow [6] {
        0 => opcode: u8,
        /// PREVENT 03h.
        4 => prevent: u8,
        5 => control: u8,
    }
}

lunar_wire::wire_struct! {
    /// RESERVE (6), RELEASE (6), SPC-2 §7.21, §7.16.
    pub struct Reserve6 [6] {
        0 => opcode: u8,
        /// 3RDPTY 10h, third party ID 0Eh, EXTENT 01h: all obsolete.
        1 => flags: u8,
        5 => control: u8,
    }
}

lunar_wire::wire_struct! {
    /// PERSISTENT RESERVE IN, SPC-4 §6.15.
    pub struct PersistentReserveIn [10] {
        0 => opcode: u8,
        1 => service_action: u8,
        7 => allocation_bytes: u16,
        9 => control: u8,
    }
}

lunar_wire::wire_struct! {
    /// PERSISTENT RESERVE OUT, SPC-4 §6.16.
    pub struct PersistentReserveOut [10] {
        0 => opcode: u8,
        1 => service_action: u8,
        2 => scope_and_type: u8,
        5 => parameter_bytes: u32,
        9 => control: u8,
    }
}

lunar_wire::wire_struct! {
    /// EXTENDED COPY (LID1), SPC-4 §6.5.
    pub struct ExtendedCopy [16] {
        0 => opcode: u8,
        1 => service_action: u8,
        10 => parameter_bytes: u32,
        15 => control: u8,
    }
}

lunar_wire::wire_struct! {
    /// RECEIVE COPY RESULTS, SPC-3 §6.17.
    pub struct ReceiveCopyResults [16] {
        0 => opcode: u8,
        1 => service_action: u8,
        2 => list_identifier: u8,
        10 => allocation_bytes: u32,
        15 => control: u8,
    }
}

lunar_wire::wire_struct! {
    /// MODE SENSE (6), SPC-4 §6.13.
    pub struct ModeSense6 [6] {
        0 => opcode: u8,
        /// DBD 08h.
        1 => flags: u8,
        /// PC C0h, PAGE CODE 3Fh.
        2 => page: u8,
        3 => subpage: u8,
        4 => allocation_bytes: u8,
        5 => control: u8,
    }
}

lunar_wire::wire_struct! {
    /// MODE SENSE (10), SPC-4 §6.14.
    pub struct ModeSense10 [10] {
        0 => opcode: u8,
        /// LLBAA 10h, DBD 08h.
        1 => flags: u8,
        /// PC C0h, PAGE CODE 3Fh.
        2 => page: u8,
        3 => subpage: u8,
        7 => allocation_bytes: u16,
        9 => control: u8,
    }
}

lunar_wire::wire_struct! {
    /// MODE SELECT (6), SPC-4 §6.11.
    pub struct ModeSelect6 [6] {
        0 => opcode: u8,
        /// PF 10h, SP 01h.
        1 => flags: u8,
        4 => parameter_bytes: u8,
        5 => control: u8,
    }
}

lunar_wire::wire_struct! {
    /// MODE SELECT (10), SPC-4 §6.12.
    pub struct ModeSelect10 [10] {
        0 => opcode: u8,
        /// PF 10h, SP 01h.
        1 => flags: u8,
        7 => parameter_bytes: u16,
        9 => control: u8,
    }
}

lunar_wire::wire_struct! {
    /// READ BUFFER, SPC-4 §6.18.
    pub struct ReadBuffer [10] {
        0 => opcode: u8,
        /// MODE SPECIFIC E0h, MODE 1Fh.
        1 => mode: u8,
        2 => buffer_id: u8,
        3 => offset: lunar_wire::U24,
        6 => allocation_bytes: lunar_wire::U24,
        9 => control: u8,
    }
}

lunar_wire::wire_struct! {
    /// WRITE BUFFER, SPC-4 §6.49.
    pub struct WriteBuffer [10] {
        0 => opcode: u8,
        /// MODE SPECIFIC E0h, MODE 1Fh.
        1 => mode: u8,
        2 => buffer_id: u8,
        3 => offset: lunar_wire::U24,
        6 => parameter_bytes: lunar_wire::U24,
        9 => control: u8,
    }
}

lunar_wire::wire_struct! {
    /// REPORT TIMESTAMP, SPC-4 §6.38.
    pub struct ReportTimestamp [12] {
        0 => opcode: u8,
        1 => service_action: u8,
        6 => allocation_bytes: u32,
        11 => control: u8,
    }
}

lunar_wire::wire_struct! {
    /// SEND DIAGNOSTIC, SPC-4 §6.42.
    pub struct SendDiagnostic [6] {
        0 => opcode: u8,
        /// SELF-TEST CODE E0h, PF 10h, SELFTEST 04h, DEVOFFL 02h, UNITOFFL 01h.
        1 => flags: u8,
        3 => parameter_bytes: u16,
        5 => control: u8,
    }
}

lunar_wire::wire_struct! {
    /// LOG SENSE, SPC-4 §6.8.
    pub struct LogSense [10] {
        0 => opcode: u8,
        /// PPC 02h (obsolete), SP 01h.
        1 => flags: u8,
        /// PC C0h, PAGE CODE 3Fh.
        2 => page: u8,
        3 => subpage: u8,
        5 => parameter_pointer: u16,
        7 => allocation_bytes: u16,
        9 => control: u8,
    }
}
