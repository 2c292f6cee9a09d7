//! Rules 27, 29, 30, 39, 40, 44, 48 to 51, 59: errors, task management, logout, pings.

use super::RequiredRole::{Both, Initiator, Target};
use super::Requirement;

pub(super) const REQUIREMENTS: &[Requirement] = &[
    Requirement {
        number: 27,
        sections: "7.3",
        role: Target,
        rule: "a Reject alone ends no task; the CmdSN of a rejected command is still expected",
        tests: &[
            "iscsi::connection::target::tests::data_out::damaged_immediate_data_leaves_a_gap",
            "iscsi::connection::target::tests::data_out::data_digest_error",
            "iscsi::connection::target::tests::ordering::a_tag_in_use",
        ],
    },
    Requirement {
        number: 29,
        sections: "7.7",
        role: Both,
        rule: "a format error closes every connection of the session",
        tests: &[
            "iscsi::connection::target::tests::service::format_errors_end_the_session",
            "iscsi::connection::initiator::tests::hostile::every_invalid_pdu_is_a_violation",
            "iscsi::session::initiator::tests::a_violation_ends_the_session",
        ],
    },
    Requirement {
        number: 30,
        sections: "7.8",
        role: Target,
        rule: "a data digest error is rejected with reason 02h, and CHECK CONDITION follows after \
               all data has arrived",
        tests: &[
            "iscsi::connection::target::tests::data_out::data_digest_error",
            "iscsi::connection::target::tests::data_out::check_condition_waits_for_all_data",
        ],
    },
    Requirement {
        number: 30,
        sections: "7.8",
        role: Both,
        rule: "a header digest error closes the connection",
        tests: &[
            "iscsi::connection::target::tests::service::header_digest_error",
            "iscsi::connection::initiator::tests::hostile::every_invalid_pdu_is_a_violation",
            "iscsi::sim::tests::faults::a_flipped_bit_is_detected",
        ],
    },
    Requirement {
        number: 30,
        sections: "7.8, 4.2.2.1",
        role: Target,
        rule: "a damaged PDU for an unknown task is rejected as well, but not one that is ignored \
               for its CmdSN",
        tests: &[
            "iscsi::connection::target::tests::data_out::damaged_pdus_of_no_task_are_rejected",
        ],
    },
    Requirement {
        number: 39,
        sections: "11.5.1, 11.6.1",
        role: Target,
        rule: "ABORT TASK applies to tasks of its own connection, not to task management; \
               RefCmdSN identifies a command that has not arrived",
        tests: &[
            "iscsi::connection::target::tests::management::refused_functions",
            "iscsi::connection::target::tests::management::abort_task_of_unknown_tasks",
            "iscsi::connection::target::tests::management::abort_task_before_delivery",
        ],
    },
    Requirement {
        number: 39,
        sections: "11.5.4, 11.5.5",
        role: Initiator,
        rule: "ABORT TASK contains tag and CmdSN of its task, or its own CmdSN if the task was \
               created by an immediate command",
        tests: &[
            "iscsi::connection::initiator::tests::manage::abort_task",
            "iscsi::connection::initiator::tests::manage::abort_of_an_immediate_task",
        ],
    },
    Requirement {
        number: 40,
        sections: "11.5.1, 4.2.3.3",
        role: Target,
        rule: "LOGICAL UNIT RESET is answered when all affected tasks have ended, including those \
               of other sessions",
        tests: &[
            "iscsi::connection::target::tests::management::logical_unit_reset",
            "iscsi::connection::target::tests::management::aborted_by_another_session",
            "target::tests::it::life::two_resets_at_once",
        ],
    },
    Requirement {
        number: 40,
        sections: "11.5.1, 4.2.3.2",
        role: Target,
        rule: "CLEAR TASK SET ends the tasks of the task set defined by TST: those of the \
               requesting session",
        tests: &[
            "target::tests::it::attentions::clearing_reaches_the_own_nexus_only",
            "target::tests::it::hang::a_hanging_write_is_aborted_in_every_way",
        ],
    },
    Requirement {
        number: 40,
        sections: "11.5.1",
        role: Target,
        rule: "TARGET COLD RESET closes every session of the target",
        tests: &[
            "target::tests::it::joining::a_cold_reset_ends_every_session",
            "iscsi::connection::target::tests::level_two::target_cold_reset_is_answered",
        ],
    },
    Requirement {
        number: 40,
        sections: "11.5.1, 11.6.1",
        role: Target,
        rule: "a target reset by an unauthorized initiator is answered with \"function \
               authorization failed\", and nothing is aborted",
        tests: &[
            "target::tests::it::administer::resets_of_the_target_are_for_administrators",
            "iscsi::session::target::tests::resets_of_the_target_are_for_administrators",
        ],
    },
    Requirement {
        number: 44,
        sections: "11.9.1",
        role: Initiator,
        rule: "a request to log out is followed within the given time; a request to negotiate is \
               answered with a Text Request",
        tests: &[
            "iscsi::connection::initiator::tests::life::a_requested_logout",
            "iscsi::connection::initiator::tests::life::a_requested_negotiation",
        ],
    },
    Requirement {
        number: 44,
        sections: "11.9.1",
        role: Initiator,
        rule: "an announced drop of a connection or session is reported to the owner with the \
               time to wait; no reconnection without the owner",
        tests: &["iscsi::connection::initiator::tests::life::an_announced_drop_is_reported"],
    },
    Requirement {
        number: 48,
        sections: "11.14, 11.15",
        role: Target,
        rule: "a logout closes the session or one connection after its tasks have ended and after \
               the Logout Response, which permits an immediate reconnection; removal for recovery \
               is answered with 2 (ErrorRecoveryLevel 0)",
        tests: &[
            "iscsi::connection::target::tests::service::logout_with_tasks",
            "iscsi::connection::target::tests::service::logouts_of_several_connections",
            "iscsi::sim::tests::life::logout_during_io",
            "iscsi::connection::target::tests::basics::login_read_write_logout",
        ],
    },
    Requirement {
        number: 48,
        sections: "11.14",
        role: Initiator,
        rule: "nothing new is sent after a Logout Request, nor on the other connections if it \
               closes the session",
        tests: &[
            "iscsi::session::initiator::tests::a_session_logout_stops_all",
            "iscsi::connection::initiator::tests::life::a_requested_logout",
        ],
    },
    Requirement {
        number: 48,
        sections: "11.14.5",
        role: Target,
        rule: "an initiator that reconnects is notified of the commands that ended with its \
               connection: 47h/7Fh",
        tests: &["target::tests::it::joining::a_connection_of_a_full_session_replaces_another"],
    },
    Requirement {
        number: 49,
        sections: "11.16, 13.20",
        role: Target,
        rule: "recovery of ErrorRecoveryLevel 1 and 2 is not offered: the level is negotiated to \
               0, a SNACK is rejected with reason 03h, TASK REASSIGN refused",
        tests: &[
            "iscsi::text::tests::negotiation::answers_of_a_target",
            "iscsi::connection::target::tests::service::opcodes_of_the_other_role_are_violations",
            "iscsi::connection::target::tests::management::refused_functions",
        ],
    },
    Requirement {
        number: 50,
        sections: "11.17.1, 7.3",
        role: Target,
        rule: "if a rejected PDU ends a task, CHECK CONDITION follows",
        tests: &["iscsi::connection::target::tests::data_out::wrong_fields"],
    },
    Requirement {
        number: 50,
        sections: "11.17.1",
        role: Target,
        rule: "reason 0Bh is never used: every Reject seen by a test is checked",
        tests: &[
            "iscsi::connection::target::tests::hostile::random_sessions",
            "iscsi::connection::target::tests::hostile::random_headers",
        ],
    },
    Requirement {
        number: 51,
        sections: "11.18, 11.19",
        role: Target,
        rule: "a ping is returned with its data, up to MaxRecvDataSegmentLength; an unsolicited \
               NOP-In has no data",
        tests: &[
            "iscsi::connection::target::tests::ordering::pings",
            "iscsi::connection::target::tests::service::a_longer_segment_is_declared",
            "iscsi::connection::target::tests::service::silence",
            "iscsi::connection::target::tests::ordering::a_reopened_window_is_reported",
        ],
    },
    Requirement {
        number: 51,
        sections: "11.18, 11.19",
        role: Initiator,
        rule: "a ping of the target is answered with its LUN and tag, immediate, without a task \
               tag; an own ping must be returned with its data",
        tests: &[
            "iscsi::connection::initiator::tests::life::a_ping_is_answered",
            "iscsi::connection::initiator::tests::life::a_ping_is_echoed",
        ],
    },
    Requirement {
        number: 59,
        sections: "7144 4.1, 7144 6.3",
        role: Both,
        rule: "at protocol level 1 RFC 7144 is disabled: its functions are answered \"not \
               supported\", priority and status qualifier are zero",
        tests: &[
            "iscsi::connection::target::tests::level_two::level_1_has_no_functions_of_rfc_7144",
            "iscsi::connection::initiator::tests::level_two::level_1_has_no_functions_of_rfc_7144",
        ],
    },
    Requirement {
        number: 59,
        sections: "7144 6.3",
        role: Target,
        rule: "at level 2: QUERY TASK, QUERY TASK SET, I_T NEXUS RESET, QUERY ASYNCHRONOUS EVENT",
        tests: &[
            "iscsi::connection::target::tests::level_two::query_task_finds_running_tasks",
            concat!(
                "iscsi::connection::target::tests::level_two::",
                "query_task_of_a_command_that_did_not_arrive",
            ),
            "iscsi::connection::target::tests::level_two::query_task_set",
            "iscsi::connection::target::tests::level_two::query_asynchronous_event",
            "iscsi::connection::target::tests::level_two::i_t_nexus_reset",
        ],
    },
    Requirement {
        number: 59,
        sections: "7144 4.2",
        role: Target,
        rule: "the version descriptor is 0960h plus the level of the requesting session",
        tests: &[
            "scsi::tests::it::unit::nexus::the_protocol_level_changes_descriptor_and_functions",
        ],
    },
    Requirement {
        number: 59,
        sections: "7144 5.1.1, 7144 5.2.1",
        role: Both,
        rule: "at level 2: command priority and status qualifier",
        tests: &[
            "iscsi::connection::target::tests::level_two::priority_and_status_qualifier",
            "iscsi::connection::initiator::tests::level_two::priority_and_status_qualifier",
        ],
    },
];
