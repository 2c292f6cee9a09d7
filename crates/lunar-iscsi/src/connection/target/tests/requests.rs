//! Builders for the requests of an initiator.

use super::rig::FIRST_CMD_SN;
use crate::pdu::{
    CommandFlags, DataOut, FinalFlag, FirstByte, LogoutReason, LogoutRequest, ManagementFunction,
    NopOut, Opcode, ScsiCommand, TAG_RESERVED, TaskAttribute, TaskManagementRequest, TextFlags,
    TextRequest,
};
use lunar_wire::{Lun, SerialNumber, U24};

/// The CmdSN of the `number`th command after the login.
pub(super) fn cmd_sn(number: u32) -> SerialNumber {
    FIRST_CMD_SN.plus(number)
}

pub(super) fn command(number: u32, tag: u32, flags: CommandFlags, bytes: u32) -> ScsiCommand {
    ScsiCommand {
        first: FirstByte::plain(Opcode::SCSI_COMMAND),
        flags: flags.with_attribute(TaskAttribute::SIMPLE),
        priority: 0,
        total_ahs_words: 0,
        data_segment_length: U24::default(),
        lun: Lun::new(1),
        initiator_task_tag: tag,
        expected_data_transfer_length: bytes,
        cmd_sn: cmd_sn(number),
        exp_stat_sn: SerialNumber(0),
        cdb: [0x28; 16],
    }
}

pub(super) fn read(number: u32, tag: u32, bytes: u32) -> ScsiCommand {
    command(number, tag, CommandFlags::FINAL | CommandFlags::READ, bytes)
}

/// Builds a write without unsolicited Data-Out.
pub(super) fn write(number: u32, tag: u32, bytes: u32) -> ScsiCommand {
    command(number, tag, CommandFlags::FINAL | CommandFlags::WRITE, bytes)
}

/// Builds a write followed by unsolicited Data-Out.
pub(super) fn write_unsolicited(number: u32, tag: u32, bytes: u32) -> ScsiCommand {
    command(number, tag, CommandFlags::WRITE, bytes)
}

pub(super) fn data_out(tag: u32, ttt: u32, data_sn: u32, offset: u32, last: bool) -> DataOut {
    DataOut {
        first: FirstByte::plain(Opcode::DATA_OUT),
        flags: FinalFlag::NONE.with_if(last, FinalFlag::FINAL),
        total_ahs_words: 0,
        data_segment_length: U24::default(),
        lun: if ttt == TAG_RESERVED { Lun::ZERO } else { Lun::new(1) },
        initiator_task_tag: tag,
        target_transfer_tag: ttt,
        exp_stat_sn: SerialNumber(0),
        data_sn,
        buffer_offset_bytes: offset,
    }
}

pub(super) fn management(
    number: u32,
    tag: u32,
    function: ManagementFunction,
) -> TaskManagementRequest {
    TaskManagementRequest {
        first: FirstByte::immediate(Opcode::TASK_MANAGEMENT_REQUEST),
        flags_and_function: 0x80 | function.0,
        total_ahs_words: 0,
        data_segment_length: U24::default(),
        lun: Lun::new(1),
        initiator_task_tag: tag,
        referenced_task_tag: TAG_RESERVED,
        cmd_sn: cmd_sn(number),
        exp_stat_sn: SerialNumber(0),
        ref_cmd_sn: SerialNumber(0),
        exp_data_sn: 0,
    }
}

/// Builds ABORT TASK of task `of` with the CmdSN of the `referenced_number`th command.
pub(super) fn abort_task(
    number: u32,
    tag: u32,
    referenced_tag: u32,
    referenced_number: u32,
) -> TaskManagementRequest {
    TaskManagementRequest {
        referenced_task_tag: referenced_tag,
        ref_cmd_sn: cmd_sn(referenced_number),
        ..management(number, tag, ManagementFunction::ABORT_TASK)
    }
}

pub(super) fn nop_out(number: u32, tag: u32) -> NopOut {
    NopOut {
        first: FirstByte::plain(Opcode::NOP_OUT),
        flags: FinalFlag::FINAL,
        total_ahs_words: 0,
        data_segment_length: U24::default(),
        lun: Lun::ZERO,
        initiator_task_tag: tag,
        target_transfer_tag: TAG_RESERVED,
        cmd_sn: cmd_sn(number),
        exp_stat_sn: SerialNumber(0),
    }
}

/// Builds a NOP-Out that acknowledges everything before `exp_stat_sn` and answers the ping with tag
/// `ttt`.
pub(super) fn pong(number: u32, ttt: u32, exp_stat_sn: SerialNumber) -> NopOut {
    NopOut {
        first: FirstByte::immediate(Opcode::NOP_OUT),
        target_transfer_tag: ttt,
        exp_stat_sn,
        ..nop_out(number, TAG_RESERVED)
    }
}

pub(super) fn text(number: u32, tag: u32) -> TextRequest {
    TextRequest {
        first: FirstByte::plain(Opcode::TEXT_REQUEST),
        flags: TextFlags::FINAL,
        total_ahs_words: 0,
        data_segment_length: U24::default(),
        lun: Lun::ZERO,
        initiator_task_tag: tag,
        target_transfer_tag: TAG_RESERVED,
        cmd_sn: cmd_sn(number),
        exp_stat_sn: SerialNumber(0),
    }
}

pub(super) fn logout(number: u32, tag: u32, reason: LogoutReason, cid: u16) -> LogoutRequest {
    LogoutRequest {
        first: FirstByte::immediate(Opcode::LOGOUT_REQUEST),
        flags_and_reason: 0x80 | reason.0,
        total_ahs_words: 0,
        data_segment_length: U24::default(),
        initiator_task_tag: tag,
        cid,
        cmd_sn: cmd_sn(number),
        exp_stat_sn: SerialNumber(0),
    }
}
