//! Rules 11, 35 to 38, 41 to 43: data, residuals, status.

use super::RequiredRole::{Both, Initiator, Target};
use super::Requirement;

pub(super) const REQUIREMENTS: &[Requirement] = &[
    Requirement {
        number: 11,
        sections: "4.2.5.2, 13.14",
        role: Target,
        rule: "unsolicited data, including immediate data, is limited by FirstBurstLength and the \
               negotiated keys; more ends the command",
        tests: &[
            "iscsi::connection::target::tests::data_out::unsolicited_data_that_was_not_negotiated",
        ],
    },
    Requirement {
        number: 11,
        sections: "4.2.5.2, 13.14",
        role: Initiator,
        rule: "if unsolicited Data-Out is sent, all of it up to FirstBurstLength is sent",
        tests: &["iscsi::connection::initiator::tests::transfer::a_write_sends_negotiated_data"],
    },
    Requirement {
        number: 11,
        sections: "4.2.5.2",
        role: Initiator,
        rule: "unsolicited Data-Out follows in the order of the commands",
        tests: &["iscsi::connection::initiator::tests::transfer::unsolicited_data_in_order"],
    },
    Requirement {
        number: 35,
        sections: "11.3.1, 11.3.4",
        role: Initiator,
        rule: "F means that no unsolicited Data-Out follows; it is set if all data is immediate",
        tests: &[
            "iscsi::connection::initiator::tests::transfer::a_write_sends_negotiated_data",
            "iscsi::connection::initiator::tests::transfer::a_command_without_data",
            "iscsi::connection::initiator::tests::life::login_command_logout",
        ],
    },
    Requirement {
        number: 35,
        sections: "11.3.1",
        role: Target,
        rule: "a command with neither W nor F is a format error; a missing F does not cause a \
               wait if all data is immediate",
        tests: &[
            "iscsi::connection::target::tests::service::format_errors_end_the_session",
            "iscsi::connection::target::tests::data_out::all_data_immediate_without_f",
        ],
    },
    Requirement {
        number: 36,
        sections: "11.4.5.2",
        role: Target,
        rule: "the residual is the difference between the transferred and the expected length, \
               with O or U; each direction has its own",
        tests: &[
            "iscsi::connection::target::tests::responses::residuals",
            "iscsi::connection::target::tests::responses::bidirectional",
            "iscsi::sim::tests::transfer::residuals",
            "iscsi::sim::tests::transfer::both_directions_refused",
        ],
    },
    Requirement {
        number: 37,
        sections: "11.4.1, 11.4.3",
        role: Initiator,
        rule: "O and U together are refused; a residual counts only with \"completed at target\"",
        tests: &[
            "iscsi::connection::initiator::tests::hostile::every_invalid_pdu_is_a_violation",
            "iscsi::connection::initiator::tests::transfer::a_target_failure_has_no_residual",
        ],
    },
    Requirement {
        number: 37,
        sections: "11.4.1, 11.4.2, 11.4.3",
        role: Target,
        rule: "no PDU has both O and U, or a status without \"completed at target\": every PDU \
               seen by a test is checked",
        tests: &[
            "iscsi::connection::target::tests::hostile::random_sessions",
            "iscsi::connection::target::tests::hostile::random_headers",
        ],
    },
    Requirement {
        number: 37,
        sections: "11.4.2",
        role: Target,
        rule: "no response precedes the last PDU of the outstanding sequences; if that PDU does \
               not arrive in time, the connection is closed",
        tests: &[
            "iscsi::connection::target::tests::data_out::check_condition_waits_for_all_data",
            concat!(
                "iscsi::connection::target::tests::data_time::",
                "missing_data_of_a_failed_command_closes_the_connection",
            ),
            "iscsi::connection::target::tests::data_time::an_unanswered_r2t_closes_the_connection",
        ],
    },
    Requirement {
        number: 38,
        sections: "11.4.7",
        role: Both,
        rule: "sense data follows its SenseLength; a wrong SenseLength is detected",
        tests: &[
            "iscsi::connection::target::tests::responses::sense_follows_data",
            "iscsi::connection::target::tests::hostile::random_sessions",
            "iscsi::connection::initiator::tests::transfer::check_condition_with_sense",
            "iscsi::connection::initiator::tests::hostile::every_invalid_pdu_is_a_violation",
        ],
    },
    Requirement {
        number: 41,
        sections: "11.7.1, 13.12, 13.13",
        role: Target,
        rule: "Data-In respects MaxRecvDataSegmentLength and MaxBurstLength, with F at the end of \
               each sequence",
        tests: &["iscsi::connection::target::tests::responses::sequences"],
    },
    Requirement {
        number: 41,
        sections: "11.7.3",
        role: Target,
        rule: "status is sent with Data-In only without sense, and never for bidirectional \
               commands",
        tests: &[
            "iscsi::connection::target::tests::responses::sense_follows_data",
            "iscsi::connection::target::tests::responses::bidirectional",
            "iscsi::connection::target::tests::hostile::random_sessions",
        ],
    },
    Requirement {
        number: 41,
        sections: "11.7.1",
        role: Initiator,
        rule: "S without F is refused",
        tests: &["iscsi::connection::initiator::tests::hostile::every_invalid_pdu_is_a_violation"],
    },
    Requirement {
        number: 42,
        sections: "11.7.7",
        role: Both,
        rule: "Data-In and Data-Out PDUs of length 0 are accepted",
        tests: &[
            "iscsi::connection::target::tests::data_out::data_out_without_data",
            "iscsi::connection::target::tests::data_out::final_bit",
            "iscsi::connection::initiator::tests::transfer::data_in_without_data",
        ],
    },
    Requirement {
        number: 43,
        sections: "11.8, 13.13",
        role: Target,
        rule: "an R2T requests 1 to MaxBurstLength bytes, starting where the previous one ended",
        tests: &[
            "iscsi::connection::target::tests::basics::long_write_by_every_kind_of_data",
            "iscsi::sim::tests::transfer::every_size_around_the_borders_arrives_whole",
        ],
    },
    Requirement {
        number: 43,
        sections: "11.8, 13.17",
        role: Target,
        rule: "at most MaxOutstandingR2T R2Ts are outstanding",
        tests: &["iscsi::connection::target::tests::data_out::open_sequences_are_counted"],
    },
    Requirement {
        number: 43,
        sections: "11.8",
        role: Initiator,
        rule: "the R2Ts of a task are answered in order; one that violates these limits ends the \
               connection",
        tests: &[
            "iscsi::connection::initiator::tests::transfer::ready_to_transfer_is_answered_in_order",
            "iscsi::connection::initiator::tests::hostile::every_invalid_pdu_is_a_violation",
        ],
    },
];
