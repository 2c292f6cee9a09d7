//! Task Management Function Request and Response. RFC 7143 §11.5, §11.6.

use super::{FinalFlag, FirstByte};
use alloc::format;
use alloc::string::String;
use lunar_wire::{Lun, SerialNumber, U24};

lunar_wire::wire_enum! {
    /// A task management function. RFC 7143 §11.5.1, RFC 7144 §6.3; on the wire bit 7 of the byte
    /// is set as well.
    pub struct ManagementFunction(u8) {
        ABORT_TASK = 1, ABORT_TASK_SET = 2, CLEAR_ACA = 3, CLEAR_TASK_SET = 4,
        LOGICAL_UNIT_RESET = 5, TARGET_WARM_RESET = 6, TARGET_COLD_RESET = 7, TASK_REASSIGN = 8,
        QUERY_TASK = 9, QUERY_TASK_SET = 10, I_T_NEXUS_RESET = 11, QUERY_ASYNCHRONOUS_EVENT = 12,
    }
}

impl ManagementFunction {
    /// The function's row of the table, if its number is known.
    pub fn info(self) -> Option<&'static FunctionInfo> {
        MANAGEMENT_FUNCTIONS.iter().find(|info| info.function == self)
    }

    /// True if the function may end several tasks: the semantics of RFC 7143 §4.2.3.3 or §4.2.3.4
    /// apply.
    pub const fn is_multi_task(self) -> bool {
        matches!(
            self,
            Self::ABORT_TASK_SET
                | Self::CLEAR_TASK_SET
                | Self::LOGICAL_UNIT_RESET
                | Self::TARGET_WARM_RESET
                | Self::TARGET_COLD_RESET
                | Self::I_T_NEXUS_RESET
        )
    }

    /// True if the function resets units, which affects their other users.
    pub const fn is_reset(self) -> bool {
        matches!(self, Self::LOGICAL_UNIT_RESET | Self::TARGET_WARM_RESET | Self::TARGET_COLD_RESET)
    }

    /// True if the function ends the tasks of all units visible to the session; its LUN field is
    /// reserved. RFC 7143 §11.5.3, RFC 7144 §6.3.1.
    pub const fn is_of_all_units(self) -> bool {
        matches!(self, Self::TARGET_WARM_RESET | Self::TARGET_COLD_RESET | Self::I_T_NEXUS_RESET)
    }
}

/// Description of one function.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct FunctionInfo {
    /// The function.
    pub function: ManagementFunction,
    /// Name in the standard.
    pub name: &'static str,
    /// Minimum iSCSIProtocolLevel for requests of this function. RFC 7144 §6.3.
    pub level: u8,
    /// True if a target may reserve the function for administrators: it acts on all units visible
    /// to the session, and on their other users. RFC 7143 §11.5.1.
    pub is_administration: bool,
    /// Scope of the function.
    pub scope: &'static str,
    /// Response of this project's target on success.
    pub answer: ManagementResponse,
    /// Specification of the function.
    pub source: &'static str,
}

macro_rules! functions {
    ($($function:ident $name:literal $level:literal $($only:ident)? ($scope:literal) $answer:ident
        $source:literal;)+)
    => {
        /// Every known task management function, in the order of their codes.
        pub const MANAGEMENT_FUNCTIONS: &[FunctionInfo] = &[$(FunctionInfo {
            function: ManagementFunction::$function, name: $name, level: $level,
            is_administration: false $(|| $only)?, scope: $scope,
            answer: ManagementResponse::$answer, source: $source,
        }),+];
    };
}

/// Marks the rows of functions for administrators.
const ADMINISTRATORS: bool = true;

#[rustfmt::skip]
functions! {
    ABORT_TASK "ABORT TASK" 1 ("one task")
        FUNCTION_COMPLETE "RFC 7143 §11.5.1";
    ABORT_TASK_SET "ABORT TASK SET" 1 ("the session's tasks on a unit")
        FUNCTION_COMPLETE "RFC 7143 §11.5.1";
    CLEAR_ACA "CLEAR ACA" 1 ("a unit")
        FUNCTION_NOT_SUPPORTED "RFC 7143 §11.5.1";
    CLEAR_TASK_SET "CLEAR TASK SET" 1 ("the session's tasks on a unit: TST 001b")
        FUNCTION_COMPLETE "RFC 7143 §11.5.1";
    LOGICAL_UNIT_RESET "LOGICAL UNIT RESET" 1 ("a unit and all its tasks")
        FUNCTION_COMPLETE "RFC 7143 §11.5.1";
    TARGET_WARM_RESET "TARGET WARM RESET" 1 ADMINISTRATORS ("all units the session sees")
        FUNCTION_COMPLETE "RFC 7143 §11.5.1";
    TARGET_COLD_RESET "TARGET COLD RESET" 1 ADMINISTRATORS
        ("the same, and all sessions on these units")
        FUNCTION_COMPLETE "RFC 7143 §11.5.1";
    TASK_REASSIGN "TASK REASSIGN" 1 ("one task")
        REASSIGNMENT_NOT_SUPPORTED "RFC 7143 §11.5.1";
    QUERY_TASK "QUERY TASK" 2 ("one task")
        FUNCTION_SUCCEEDED "RFC 7144 §6.3";
    QUERY_TASK_SET "QUERY TASK SET" 2 ("the session's tasks on a unit")
        FUNCTION_SUCCEEDED "RFC 7144 §6.3";
    I_T_NEXUS_RESET "I_T NEXUS RESET" 2 ("the session, which ends")
        FUNCTION_COMPLETE "RFC 7144 §6.3";
    QUERY_ASYNCHRONOUS_EVENT "QUERY ASYNCHRONOUS EVENT" 2 (
        "the session's unit attentions of a unit"
    )
        FUNCTION_SUCCEEDED "RFC 7144 §6.3";
}

/// Formats [`MANAGEMENT_FUNCTIONS`] as Markdown: code, name, protocol level, allowed users, scope,
/// answer, source.
pub fn management_markdown() -> String {
    let mut text = String::from(
        "| Code | Function | Level | Administrators only | Acts upon | Answer | Source |\n\
         |--:|---|--:|---|---|---|---|\n",
    );
    for info in MANAGEMENT_FUNCTIONS {
        let FunctionInfo { function, name, level, scope, answer, source, .. } = info;
        let restricted = if info.is_administration { "yes" } else { "" };
        let answer = answer.name().unwrap_or_default().replace('_', " ").to_lowercase();
        let code = function.0;
        text.push_str(&format!(
            "| {code} | {name} | {level} | {restricted} | {scope} | {answer} | {source} |\n"
        ));
    }
    text
}

lunar_wire::wire_struct! {
    /// Task management request. RFC 7143 §11.5.
    pub struct TaskManagementRequest [48] {
        0 => first: FirstByte,
        /// Bit 7 set, and the [`ManagementFunction`] in the other seven.
        1 => flags_and_function: u8,
        4 => total_ahs_words: u8,
        5 => data_segment_length: U24,
        8 => lun: Lun,
        16 => initiator_task_tag: u32,
        20 => referenced_task_tag: u32,
        24 => cmd_sn: SerialNumber,
        28 => exp_stat_sn: SerialNumber,
        32 => ref_cmd_sn: SerialNumber,
        36 => exp_data_sn: u32,
    }
}

impl TaskManagementRequest {
    /// The requested function.
    pub const fn function(&self) -> ManagementFunction {
        ManagementFunction(self.flags_and_function & 0x7f)
    }
}

lunar_wire::wire_enum! {
    /// The result of a function. RFC 7143 §11.6.1, RFC 7144 §6.4.2.
    pub struct ManagementResponse(u8) {
        FUNCTION_COMPLETE = 0, TASK_DOES_NOT_EXIST = 1, LUN_DOES_NOT_EXIST = 2,
        TASK_STILL_ALLEGIANT = 3, REASSIGNMENT_NOT_SUPPORTED = 4, FUNCTION_NOT_SUPPORTED = 5,
        AUTHORIZATION_FAILED = 6, FUNCTION_SUCCEEDED = 7, FUNCTION_REJECTED = 255,
    }
}

lunar_wire::wire_struct! {
    /// The end of a task management function. RFC 7143 §11.6.
    pub struct TaskManagementResponse [48] {
        0 => first: FirstByte,
        1 => flags: FinalFlag,
        2 => response: ManagementResponse,
        4 => total_ahs_words: u8,
        5 => data_segment_length: U24,
        /// Additional Response Information, RFC 7144 §6.4.1; zero below protocol level 2.
        8 => information: [u8; 3],
        16 => initiator_task_tag: u32,
        24 => stat_sn: SerialNumber,
        28 => exp_cmd_sn: SerialNumber,
        32 => max_cmd_sn: SerialNumber,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal: the table and the codes match, in order, and every row is in the Markdown.
    #[test]
    fn every_function_is_reported() {
        let text = management_markdown();
        for (at, info) in MANAGEMENT_FUNCTIONS.iter().enumerate() {
            assert_eq!(usize::from(info.function.0), at + 1);
            let name = info.function.name().map(|name| name.replace('_', " "));
            assert_eq!(name, Some(info.name.replace('_', " ")));
            let row = format!("| {} | {} | {} |", at + 1, info.name, info.level);
            assert!(text.contains(&row), "{text}");
        }
        assert!(ManagementFunction(MANAGEMENT_FUNCTIONS.len() as u8 + 1).name().is_none());
        assert_eq!(text.lines().count(), MANAGEMENT_FUNCTIONS.len() + 2);
    }
}
