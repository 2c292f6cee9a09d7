//! Rules 1 to 10 and 26, 34: numbers, tags, order, connections.

use super::RequiredRole::{Both, Initiator, Target};
use super::Requirement;

pub(super) const REQUIREMENTS: &[Requirement] = &[
    Requirement {
        number: 1,
        sections: "4.2.2.1",
        role: Both,
        rule: "CmdSN, ExpCmdSN and MaxCmdSN are compared by serial number arithmetic: numbering \
               continues past 2^32",
        tests: &[
            "wire::serial::tests::order_holds_across_the_wrap",
            "wire::serial::tests::numbers_less_than_2_31_apart_are_ordered",
            "iscsi::session::target::window::tests::moves_forward_in_order",
            "iscsi::sim::tests::order::a_full_window_wraps",
        ],
    },
    Requirement {
        number: 1,
        sections: "4.2.2.2",
        role: Both,
        rule: "StatSN is compared likewise, and starts at any value",
        tests: &[
            "iscsi::connection::target::numbering::tests::acknowledgement_is_serial",
            "iscsi::login::tests::pair::one_exchange_without_chap",
        ],
    },
    Requirement {
        number: 2,
        sections: "4.2.2.1",
        role: Target,
        rule: "a numbered command outside the window, or a duplicate inside it, is silently \
               ignored with its data; the connection continues",
        tests: &["iscsi::connection::target::tests::ordering::outside_the_window_is_ignored"],
    },
    Requirement {
        number: 3,
        sections: "4.2.2.1",
        role: Target,
        rule: "immediate commands do not advance CmdSN and may be outside the window; one task \
               management function and one other immediate command are always accepted",
        tests: &[
            "iscsi::connection::target::tests::ordering::immediate_requests",
            "iscsi::connection::target::tests::ordering::immediate_requests_have_a_separate_limit",
        ],
    },
    Requirement {
        number: 3,
        sections: "4.2.2.1",
        role: Initiator,
        rule: "immediate commands carry the current CmdSN, do not use it up, and do not wait",
        tests: &[
            "iscsi::connection::initiator::tests::transfer::a_closed_window_holds_commands_back",
            "iscsi::sim::tests::order::immediate_commands_do_not_wait",
        ],
    },
    Requirement {
        number: 4,
        sections: "4.2.2.1",
        role: Target,
        rule: "MaxCmdSN is never below ExpCmdSN − 1 and never moves back",
        tests: &[
            "iscsi::session::target::window::tests::moves_forward_in_order",
            "iscsi::connection::target::numbering::tests::window_moves_forward",
            "iscsi::connection::target::tests::ordering::window_closes_and_opens",
            "iscsi::connection::target::tests::hostile::random_sessions",
        ],
    },
    Requirement {
        number: 4,
        sections: "4.2.2.1",
        role: Target,
        rule: "commands are delivered in the order of CmdSN over all connections of the session",
        tests: &[
            "iscsi::connection::target::tests::ordering::order_across_connections",
            "iscsi::sim::tests::order::commands_start_in_order_over_all_connections",
        ],
    },
    Requirement {
        number: 4,
        sections: "4.2.2.1",
        role: Initiator,
        rule: "commands are sent in order and within the last announced window; an inconsistent \
               window is ignored",
        tests: &[
            "iscsi::session::initiator::tests::one_window_for_all_connections",
            "iscsi::connection::initiator::tests::hostile::an_invalid_window_is_ignored",
            "iscsi::sim::tests::order::a_full_window_wraps",
        ],
    },
    Requirement {
        number: 5,
        sections: "4.2.2.1",
        role: Target,
        rule: "no status precedes the acknowledgement of its command: the ExpCmdSN in the same \
               PDU includes the command",
        tests: &[
            "iscsi::sim::tests::order::no_status_precedes_its_acknowledgement",
            "iscsi::connection::target::tests::ordering::order_across_connections",
        ],
    },
    Requirement {
        number: 6,
        sections: "4.2.2.2",
        role: Initiator,
        rule: "a gap in StatSN ends the session (ErrorRecoveryLevel 0)",
        tests: &["iscsi::connection::initiator::tests::hostile::every_invalid_pdu_is_a_violation"],
    },
    Requirement {
        number: 6,
        sections: "4.2.2.2",
        role: Initiator,
        rule: "ExpStatSN of every request acknowledges all status before it",
        tests: &["iscsi::connection::initiator::tests::life::status_is_acknowledged"],
    },
    Requirement {
        number: 6,
        sections: "4.2.2.2",
        role: Target,
        rule: "StatSN advances with every status and with nothing else, without gaps",
        tests: &[
            "iscsi::connection::target::tests::responses::stat_sn_has_no_gap",
            "iscsi::connection::target::tests::hostile::random_sessions",
        ],
    },
    Requirement {
        number: 7,
        sections: "4.2.2.4, 11.7.5",
        role: Target,
        rule: "DataSN counts from 0 over all Data-In PDUs of a command; in a bidirectional \
               command R2Ts share the count",
        tests: &[
            "iscsi::connection::target::tests::responses::sequences",
            "iscsi::connection::target::tests::responses::bidirectional",
        ],
    },
    Requirement {
        number: 7,
        sections: "4.2.2.4, 11.7.5",
        role: Initiator,
        rule: "DataSN of Data-Out counts from 0 in each sequence, unsolicited and solicited",
        tests: &[
            "iscsi::connection::initiator::tests::transfer::a_write_sends_negotiated_data",
            "iscsi::connection::initiator::tests::transfer::ready_to_transfer_is_answered_in_order",
        ],
    },
    Requirement {
        number: 7,
        sections: "4.2.2.4, 7.9",
        role: Both,
        rule: "a DataSN or R2TSN out of order is detected",
        tests: &[
            "iscsi::connection::target::tests::data_out::wrong_data_sn",
            "iscsi::connection::initiator::tests::hostile::every_invalid_pdu_is_a_violation",
        ],
    },
    Requirement {
        number: 8,
        sections: "4.2.3.3",
        role: Target,
        rule: "a multi-task function waits for solicited data, for a limited time, and for the \
               commands before it",
        tests: &[
            "iscsi::connection::target::tests::management::logical_unit_reset",
            "iscsi::connection::target::tests::management::missing_data_delays_a_reset_briefly",
            "iscsi::connection::target::tests::management::overtaken_commands",
        ],
    },
    Requirement {
        number: 8,
        sections: "4.2.2.3.3, 4.2.3.3",
        role: Target,
        rule: "the response of a multi-task function is sent after all earlier responses are \
               acknowledged; later responses wait for its acknowledgement",
        tests: &[
            "iscsi::connection::target::tests::management::responses_are_fenced",
            "iscsi::connection::target::tests::management::a_fence_ignores_ended_connections",
        ],
    },
    Requirement {
        number: 8,
        sections: "4.2.3.3",
        role: Initiator,
        rule: "until a multi-task function is answered, R2Ts of its tasks are answered; then the \
               tasks have ended on every connection",
        tests: &[
            "iscsi::connection::initiator::tests::manage::r2ts_are_answered_during_a_reset",
            "iscsi::connection::initiator::tests::manage::a_reset_ends_the_older_tasks_of_its_unit",
            "iscsi::connection::initiator::tests::manage::another_connections_function_ends_tasks",
            "iscsi::sim::tests::manage::functions_during_io",
        ],
    },
    Requirement {
        number: 8,
        sections: "4.2.2.3.4, 4.2.3.3",
        role: Target,
        rule: "a unit attention caused by a function of another session is fenced on the session \
               that lost tasks",
        tests: &[concat!(
            "iscsi::connection::target::tests::fast_abort::",
            "unit_attentions_are_fenced",
        )],
    },
    Requirement {
        number: 9,
        sections: "4.2.3.4, 13.23",
        role: Both,
        rule: "FastAbort semantics apply only if both sides negotiated them",
        tests: &[
            "iscsi::text::tests::negotiation::answers_of_a_target",
            "iscsi::text::tests::negotiation::answers_to_an_initiator",
            "iscsi::connection::target::tests::management::logical_unit_reset",
            "iscsi::connection::initiator::tests::level_two::terminated_without_agreement",
        ],
    },
    Requirement {
        number: 9,
        sections: "4.2.3.4, 11.9.1",
        role: Target,
        rule: "with FastAbort no data is waited for, and every other connection that loses tasks \
               receives an Asynchronous Message 5 for each unit; the tags stay valid until its \
               acknowledgement",
        tests: &[
            "iscsi::connection::target::tests::fast_abort::one_connection_needs_no_acknowledgement",
            "iscsi::connection::target::tests::fast_abort::other_connections_are_informed",
            "iscsi::connection::target::tests::fast_abort::each_unit_has_its_message",
            "iscsi::connection::target::tests::fast_abort::third_parties_are_informed",
            "iscsi::connection::target::tests::fast_abort::tags_are_freed_by_the_acknowledgement",
        ],
    },
    Requirement {
        number: 9,
        sections: "4.2.3.4, 11.9.1",
        role: Initiator,
        rule: "with FastAbort no more data is sent for the tasks of a function, and the message \
               is acknowledged with a NOP-Out",
        tests: &[
            "iscsi::connection::initiator::tests::level_two::data_stops_with_the_function",
            concat!(
                "iscsi::connection::initiator::tests::level_two::",
                "terminated_tasks_end_and_are_acknowledged",
            ),
        ],
    },
    Requirement {
        number: 10,
        sections: "4.2.5.1",
        role: Both,
        rule: "all PDUs of a task travel on the connection of its command",
        tests: &[
            "iscsi::connection::target::tests::ordering::data_on_another_connection",
            "iscsi::sim::tests::order::commands_start_in_order_over_all_connections",
        ],
    },
    Requirement {
        number: 26,
        sections: "7.2.1",
        role: Target,
        rule: "a command that is repeated with its CmdSN and tag is executed once",
        tests: &["iscsi::connection::target::tests::ordering::outside_the_window_is_ignored"],
    },
    Requirement {
        number: 26,
        sections: "7.2.1, 7.3",
        role: Initiator,
        rule: "at ErrorRecoveryLevel 0 nothing is sent again: a rejected command fails, and a \
               NOP-Out uses its CmdSN",
        tests: &["iscsi::connection::initiator::tests::life::a_rejected_command_leaves_no_gap"],
    },
    Requirement {
        number: 34,
        sections: "11.2.1.8",
        role: Initiator,
        rule: "Initiator Task Tags are unique in the session, and never the reserved one",
        tests: &["iscsi::session::initiator::tests::tags_are_unique"],
    },
    Requirement {
        number: 34,
        sections: "11.2.1.8",
        role: Target,
        rule: "the reserved tag on a task is a format error; a tag in use is rejected",
        tests: &[
            "iscsi::connection::target::tests::service::format_errors_end_the_session",
            "iscsi::connection::target::tests::ordering::a_tag_in_use",
        ],
    },
];
