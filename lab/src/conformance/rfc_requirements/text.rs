//! Rules 12 to 18, 25, 28, 45, 53 to 58: text requests and negotiation.

use super::RequiredRole::{Both, Target};
use super::Requirement;

pub(super) const REQUIREMENTS: &[Requirement] = &[
    Requirement {
        number: 12,
        sections: "6.1",
        role: Both,
        rule: "pairs end in a zero byte; text without one is refused",
        tests: &[
            "iscsi::text::tests::format::pairs_are_taken_apart",
            "iscsi::text::tests::format::malformed_text_is_refused",
        ],
    },
    Requirement {
        number: 12,
        sections: "6.1",
        role: Both,
        rule: "8192 bytes of text are accepted in a PDU, 64 KiB over several, and a value may \
               span PDUs",
        tests: &[
            "iscsi::login::tests::target::segments_around_8192_bytes",
            "iscsi::text::tests::format::lengths_around_the_limits",
            "iscsi::login::tests::target::any_split",
        ],
    },
    Requirement {
        number: 12,
        sections: "6.1",
        role: Both,
        rule: "numbers are decimal or begin with 0x, binary values with 0x or 0b",
        tests: &[
            "iscsi::text::value::tests::numbers_of_both_kinds",
            "iscsi::text::value::tests::binary_of_both_kinds",
            "iscsi::login::tests::chap::a_correct_proof_is_accepted",
        ],
    },
    Requirement {
        number: 13,
        sections: "6.1",
        role: Both,
        rule: "a key name begins with a capital letter and has at most 63 bytes, a simple value \
               255",
        tests: &["iscsi::text::tests::format::malformed_text_is_refused"],
    },
    Requirement {
        number: 13,
        sections: "6.3",
        role: Both,
        rule: "a key that comes twice ends the login; names and session type may be said once \
               more as they were ([030](docs/decisions/030-text-negotiation.md))",
        tests: &[
            "iscsi::text::tests::format::a_repeated_key_is_refused",
            "iscsi::login::tests::target::the_first_request",
            "iscsi::login::tests::target::stages_and_keys",
            "iscsi::login::tests::transcripts::repeated_names_in_a_login",
            "lab::tests::it::hostile::login_text_of_odd_sizes",
        ],
    },
    Requirement {
        number: 14,
        sections: "6.2, 11.10.2, 11.12.2",
        role: Both,
        rule: "C excludes F and T, and is answered with an empty PDU, in login and after",
        tests: &[
            "iscsi::login::tests::target::headers",
            "iscsi::login::tests::target::any_split",
            "iscsi::login::tests::target::a_long_answer",
            "iscsi::login::tests::initiator::wrong_headers",
            "iscsi::login::tests::initiator::a_slow_target",
            "iscsi::text::tests::exchange::pieces_by_the_c_bit",
        ],
    },
    Requirement {
        number: 15,
        sections: "6.2",
        role: Both,
        rule: "an unknown key is answered with NotUnderstood, or with a Reject where it stands \
               alone after the login ([030](docs/decisions/030-text-negotiation.md)); a \
               key of this RFC never is",
        tests: &[
            "iscsi::text::tests::negotiation::answers_of_a_target",
            "iscsi::text::tests::negotiation::known_keys_are_understood",
            "iscsi::text::tests::exchange::send_targets_values",
            "iscsi::login::tests::initiator::a_slow_target",
        ],
    },
    Requirement {
        number: 16,
        sections: "6.2",
        role: Both,
        rule: "Reject, Irrelevant and NotUnderstood are not valid proposals",
        tests: &[
            "iscsi::text::tests::negotiation::violations_of_an_initiator",
            "iscsi::text::tests::exchange::a_refused_exchange_holds_no_memory",
            "iscsi::login::tests::initiator::wrong_answers",
        ],
    },
    Requirement {
        number: 17,
        sections: "6.2.1",
        role: Both,
        rule: "the first supported value of a list is selected, unknown values are skipped, None \
               is answered only if it was offered",
        tests: &[
            "iscsi::text::tests::negotiation::answers_of_a_target",
            "iscsi::text::tests::negotiation::answers_to_an_initiator",
            "iscsi::login::tests::chap::authmethod_none_only_if_offered",
            "iscsi::login::tests::chap::algorithm_lists",
        ],
    },
    Requirement {
        number: 18,
        sections: "6.2.2",
        role: Both,
        rule: "a number out of range is rejected; Yes and No are combined by AND or OR as defined \
               for the key",
        tests: &[
            "iscsi::text::tests::negotiation::answers_of_a_target",
            "iscsi::text::tests::negotiation::answers_to_an_initiator",
            "iscsi::login::tests::pair::both_sides_agree",
        ],
    },
    Requirement {
        number: 25,
        sections: "6.4, 11.10.4, 11.11.4",
        role: Target,
        rule: "during a negotiation the response has a Target Transfer Tag; a failure or a reset \
               keeps the old values",
        tests: &[
            "iscsi::text::tests::exchange::a_new_segment_length",
            "iscsi::text::tests::exchange::a_new_request_resets_the_negotiation",
        ],
    },
    Requirement {
        number: 28,
        sections: "7.4.1, 13.21",
        role: Both,
        rule: "a discovery session has ErrorRecoveryLevel 0 and one connection, whatever is \
               proposed",
        tests: &[
            "iscsi::text::tests::negotiation::discovery_overrides",
            "iscsi::login::tests::pair::both_sides_agree",
        ],
    },
    Requirement {
        number: 45,
        sections: "11.10.4, 11.11.4",
        role: Both,
        rule: "requests that continue a text copy the Target Transfer Tag and the LUN of the \
               response",
        tests: &["iscsi::connection::initiator::tests::life::send_targets"],
    },
    Requirement {
        number: 53,
        sections: "13.14",
        role: Both,
        rule: "FirstBurstLength never exceeds MaxBurstLength, in any order of the keys",
        tests: &[
            "iscsi::text::tests::negotiation::first_burst_in_any_order",
            "iscsi::login::tests::pair::both_sides_agree",
        ],
    },
    Requirement {
        number: 54,
        sections: "4.3, 13.21",
        role: Target,
        rule: "a discovery session accepts SendTargets and the logout of the session; all other \
               requests are rejected",
        tests: &["iscsi::connection::target::tests::service::discovery_sessions_do_not_read"],
    },
    Requirement {
        number: 54,
        sections: "C",
        role: Target,
        rule: "SendTargets gives no other target than its own in a normal session, though All is \
               taken there ([030](docs/decisions/030-text-negotiation.md))",
        tests: &[
            "iscsi::text::tests::exchange::send_targets_values",
            "iscsi::connection::target::tests::service::text_in_a_normal_session",
        ],
    },
    Requirement {
        number: 55,
        sections: "13.23",
        role: Both,
        rule: "an offer of TaskReporting includes RFC3720 and ResponseFence",
        tests: &["iscsi::text::tests::negotiation::incomplete_lists_of_values"],
    },
    Requirement {
        number: 56,
        sections: "13.24, 7144 7.1.1",
        role: Both,
        rule: "the lower iSCSIProtocolLevel is used",
        tests: &["iscsi::text::tests::negotiation::answers_of_a_target"],
    },
    Requirement {
        number: 57,
        sections: "13.25",
        role: Target,
        rule: "the keys of markers are refused, with No or Reject, never NotUnderstood",
        tests: &[
            "iscsi::text::tests::negotiation::answers_of_a_target",
            "iscsi::text::tests::negotiation::known_keys_are_understood",
        ],
    },
    Requirement {
        number: 58,
        sections: "13",
        role: Both,
        rule: "a key that is not negotiated has its default; two values are combined as defined \
               for the key",
        tests: &[
            "iscsi::text::tests::negotiation::defaults_and_result_functions",
            "iscsi::login::tests::transcripts::no_operational_stage",
        ],
    },
];
