//! Rules 11, 35 to 38, 41 to 43: data, residuals, status.

use super::Must;
use super::RequiredRole::{Both, Initiator, Target};

pub(super) const MUSTS: &[Must] = &[
    Must {
        number: 11,
        sections: "4.2.5.2, 13.14",
        role: Target,
        rule: "unsolicited data, immediate data included, is at most FirstBurstLength and what \
               was agreed to; more ends the command",
        tests: &[
            "iscsi::connection::target::tests::data_out::unsolicited_data_that_was_not_agreed_to",
        ],
    },
    Must {
        number: 11,
        sections: "4.2.5.2, 13.14",
        role: Initiator,
        rule: "if any unsolicited Data-Out is sent, it is all up to FirstBurstLength",
        tests: &[
            "iscsi::connection::initiator::tests::transfer::a_write_opens_with_what_was_agreed",
        ],
    },
    Must {
        number: 11,
        sections: "4.2.5.2",
        role: Initiator,
        rule: "unsolicited Data-Out follows in the order of the commands",
        tests: &["iscsi::connection::initiator::tests::transfer::unsolicited_data_in_order"],
    },
    Must {
        number: 35,
        sections: "11.3.1, 11.3.4",
        role: Initiator,
        rule: "F says that no unsolicited Data-Out follows; it is set when all data is immediate",
        tests: &[
            "iscsi::connection::initiator::tests::transfer::a_write_opens_with_what_was_agreed",
            "iscsi::connection::initiator::tests::transfer::a_command_without_data",
            "iscsi::connection::initiator::tests::life::login_command_logout",
        ],
    },
    Must {
        number: 35,
        sections: "11.3.1",
        role: Target,
        rule: "a command with neither W nor F is a format error; a missing F where all data is \
               immediate leaves nobody waiting",
        tests: &[
            "iscsi::connection::target::tests::service::format_errors_end_the_session",
            "iscsi::connection::target::tests::data_out::all_data_immediate_without_f",
        ],
    },
    Must {
        number: 36,
        sections: "11.4.5.2",
        role: Target,
        rule: "a residual is the difference of what the command moves and what was expected, with \
               O or U; each direction has its own",
        tests: &[
            "iscsi::connection::target::tests::responses::residuals",
            "iscsi::connection::target::tests::responses::bidirectional",
            "iscsi::sim::tests::transfer::residuals",
            "iscsi::sim::tests::transfer::both_directions_refused",
        ],
    },
    Must {
        number: 37,
        sections: "11.4.1, 11.4.3",
        role: Initiator,
        rule: "O and U together are refused; a residual counts only with \"completed at target\"",
        tests: &[
            "iscsi::connection::initiator::tests::hostile::every_trick_is_a_violation",
            "iscsi::connection::initiator::tests::transfer::a_target_failure_has_no_residual",
        ],
    },
    Must {
        number: 37,
        sections: "11.4.1, 11.4.2, 11.4.3",
        role: Target,
        rule: "no PDU has O and U both, or a status without \"completed at target\": each that any \
               test sees is looked at",
        tests: &[
            "iscsi::connection::target::tests::hostile::storms",
            "iscsi::connection::target::tests::hostile::random_headers",
        ],
    },
    Must {
        number: 37,
        sections: "11.4.2",
        role: Target,
        rule: "no response before the last PDU of the sequences that are due; where that does not \
               come in time, the connection is closed",
        tests: &[
            "iscsi::connection::target::tests::data_out::check_condition_waits_for_all_data",
            concat!(
                "iscsi::connection::target::tests::data_time::",
                "a_failed_command_whose_data_never_ends",
            ),
            "iscsi::connection::target::tests::data_time::an_r2t_that_is_never_answered",
        ],
    },
    Must {
        number: 38,
        sections: "11.4.7",
        role: Both,
        rule: "sense data stands behind its SenseLength, and a SenseLength that lies is noticed",
        tests: &[
            "iscsi::connection::target::tests::responses::sense_follows_data",
            "iscsi::connection::target::tests::hostile::storms",
            "iscsi::connection::initiator::tests::transfer::check_condition_with_sense",
            "iscsi::connection::initiator::tests::hostile::every_trick_is_a_violation",
        ],
    },
    Must {
        number: 41,
        sections: "11.7.1, 13.12, 13.13",
        role: Target,
        rule: "Data-In keeps to MaxRecvDataSegmentLength and MaxBurstLength, with F at the end of \
               each sequence",
        tests: &["iscsi::connection::target::tests::responses::sequences"],
    },
    Must {
        number: 41,
        sections: "11.7.3",
        role: Target,
        rule: "status comes with Data-In only without sense and not for commands in both \
               directions",
        tests: &[
            "iscsi::connection::target::tests::responses::sense_follows_data",
            "iscsi::connection::target::tests::responses::bidirectional",
            "iscsi::connection::target::tests::hostile::storms",
        ],
    },
    Must {
        number: 41,
        sections: "11.7.1",
        role: Initiator,
        rule: "S without F is refused",
        tests: &["iscsi::connection::initiator::tests::hostile::every_trick_is_a_violation"],
    },
    Must {
        number: 42,
        sections: "11.7.7",
        role: Both,
        rule: "Data-In and Data-Out of length 0 are taken",
        tests: &[
            "iscsi::connection::target::tests::data_out::data_out_without_data",
            "iscsi::connection::target::tests::data_out::final_bit",
            "iscsi::connection::initiator::tests::transfer::data_in_without_data",
        ],
    },
    Must {
        number: 43,
        sections: "11.8, 13.13",
        role: Target,
        rule: "an R2T asks for 1 to MaxBurstLength bytes, where the one before ended",
        tests: &[
            "iscsi::connection::target::tests::basics::long_write_by_every_kind_of_data",
            "iscsi::sim::tests::transfer::every_size_around_the_borders_arrives_whole",
        ],
    },
    Must {
        number: 43,
        sections: "11.8, 13.17",
        role: Target,
        rule: "no more R2Ts are open than MaxOutstandingR2T",
        tests: &["iscsi::connection::target::tests::data_out::open_sequences_are_counted"],
    },
    Must {
        number: 43,
        sections: "11.8",
        role: Initiator,
        rule: "the R2Ts of a task are answered in their order; one outside of these bounds ends \
               the connection",
        tests: &[
            "iscsi::connection::initiator::tests::transfer::ready_to_transfer_is_answered_in_order",
            "iscsi::connection::initiator::tests::hostile::every_trick_is_a_violation",
        ],
    },
];
