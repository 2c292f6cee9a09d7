//! Rules 19 to 24, 31 to 33, 46, 47, 52, 60: logins, CHAP, session reinstatement.

use super::RequiredRole::{Both, Initiator, Target};
use super::Requirement;

pub(super) const REQUIREMENTS: &[Requirement] = &[
    Requirement {
        number: 19,
        sections: "6.3, 6.3.1",
        role: Both,
        rule: "the first Login Request contains InitiatorName, and TargetName except in discovery \
               sessions",
        tests: &[
            "iscsi::login::tests::target::the_first_request",
            "iscsi::login::tests::pair::one_exchange_without_chap",
        ],
    },
    Requirement {
        number: 19,
        sections: "6.3",
        role: Both,
        rule: "one Login Request is outstanding at a time",
        tests: &[
            "iscsi::login::tests::target::one_request_outstanding",
            "iscsi::login::tests::initiator::a_slow_target",
        ],
    },
    Requirement {
        number: 20,
        sections: "4.2.4",
        role: Target,
        rule: "anything but a Login Request closes the connection before a login, and is answered \
               with status 020Bh during one",
        tests: &[
            "iscsi::login::tests::target::other_requests",
            "lab::tests::it::hostile::requests_before_login",
        ],
    },
    Requirement {
        number: 21,
        sections: "6.3, 11.12.3",
        role: Both,
        rule: "transitions go forward, and only to a stage that was requested; stage 2 and a \
               transition to the same stage are errors",
        tests: &[
            "iscsi::login::tests::target::headers",
            "iscsi::login::tests::target::stages_and_keys",
            "iscsi::login::tests::initiator::wrong_headers",
            "iscsi::login::tests::initiator::wrong_chap_steps",
        ],
    },
    Requirement {
        number: 21,
        sections: "6.3",
        role: Both,
        rule: "a renegotiated key ends the login",
        tests: &[
            "iscsi::login::tests::target::stages_and_keys",
            "iscsi::login::tests::initiator::wrong_answers",
        ],
    },
    Requirement {
        number: 22,
        sections: "6.3.1, 13.9",
        role: Target,
        rule: "the first Login Response contains TargetPortalGroupTag",
        tests: &[
            "iscsi::login::tests::transcripts::operational_at_once",
            "iscsi::login::tests::transcripts::mutual_chap",
        ],
    },
    Requirement {
        number: 23,
        sections: "6.3.4",
        role: Target,
        rule: "a login with the TSIH and CID of a connection replaces that connection; the old \
               connection and its tasks end first",
        tests: &["target::tests::it::joining::a_connection_of_a_full_session_replaces_another"],
    },
    Requirement {
        number: 24,
        sections: "6.3.5",
        role: Target,
        rule: "a login with TSIH 0 and the initiator name, ISID and portal group of a session \
               replaces that session",
        tests: &[
            "target::tests::it::joining::a_session_replaces_another_one",
            "target::tests::it::joining::one_session_of_a_name_at_a_time",
        ],
    },
    Requirement {
        number: 24,
        sections: "7.4.2.1, 7.4.2.2",
        role: Target,
        rule: "a discovery session without a target replaces the one with the same initiator, \
               ISID and address",
        tests: &["target::tests::it::joining::a_discovery_session_replaces_another_one"],
    },
    Requirement {
        number: 31,
        sections: "9.2, 11.13.5, 12.1.3",
        role: Target,
        rule: "a missing CHAP key is answered with status 0207h, a key out of order with 0200h, a \
               wrong response with 0201h",
        tests: &[
            "iscsi::login::tests::chap::steps_out_of_order",
            "iscsi::login::tests::chap::wrong_proofs",
        ],
    },
    Requirement {
        number: 32,
        sections: "9.2.1, 12.1.3",
        role: Both,
        rule: "one-way and mutual CHAP with every hash",
        tests: &[
            "iscsi::login::tests::chap::known_answers",
            "iscsi::login::tests::pair::chap_with_every_hash",
            "iscsi::sim::tests::life::chap",
            "lunar::tests::it::sessions::chap_is_proven_both_ways",
        ],
    },
    Requirement {
        number: 32,
        sections: "9.2.1",
        role: Both,
        rule: "secrets shorter than 96 bits, and the same secret for both directions, are refused",
        tests: &[
            "lunar::tests::it::check::secrets_are_checked_without_printing_them",
            "iscsi::login::tests::chap::mutual_attacks",
            "iscsi::login::tests::initiator::reused_secrets_and_guessed_challenges_are_refused",
        ],
    },
    Requirement {
        number: 32,
        sections: "9.2.1",
        role: Both,
        rule: "random secrets of 128 bits and more are accepted; the message about a short secret \
               names a command that creates one from the random device of the system",
        tests: &["lunar::tests::it::check::a_secret_created_by_the_suggested_command_is_accepted"],
    },
    Requirement {
        number: 32,
        sections: "12.1.3",
        role: Both,
        rule: "binary values of CHAP have at most 1024 bytes",
        tests: &[
            "iscsi::login::tests::chap::mutual_attacks",
            "iscsi::login::tests::initiator::wrong_chap_steps",
        ],
    },
    Requirement {
        number: 33,
        sections: "9.2.1",
        role: Target,
        rule: "a reflected challenge ends the login and the connection, and so does a CHAP \
               response that equals its own",
        tests: &[
            "iscsi::login::tests::chap::mutual_attacks",
            "iscsi::login::tests::chap::a_reflected_chap_response_is_refused",
            "iscsi::connection::target::tests::service::a_refused_login_is_closed",
        ],
    },
    Requirement {
        number: 33,
        sections: "9.2.1",
        role: Initiator,
        rule: "the challenge of the target is never reflected; a CHAP response that equals its \
               own is not accepted",
        tests: &[
            "iscsi::login::tests::initiator::reused_secrets_and_guessed_challenges_are_refused",
            "iscsi::login::tests::initiator::a_target_that_fails_to_authenticate_is_refused",
        ],
    },
    Requirement {
        number: 46,
        sections: "11.12.5, 11.12.6, 11.12.7",
        role: Target,
        rule: "ISID, TSIH, CID and Initiator Task Tag stay the same during a login",
        tests: &["iscsi::login::tests::target::names_cannot_change_during_a_login"],
    },
    Requirement {
        number: 46,
        sections: "11.12.6, 11.13.3",
        role: Target,
        rule: "TSIH 0 creates a session, and the final response contains its TSIH; an unknown \
               TSIH is refused",
        tests: &[
            "target::tests::it::joining::a_session_replaces_another_one",
            "target::tests::it::joining::a_connection_of_a_full_session_replaces_another",
        ],
    },
    Requirement {
        number: 46,
        sections: "11.13.3",
        role: Initiator,
        rule: "a final Login Response without TSIH is refused",
        tests: &[
            "iscsi::login::tests::initiator::wrong_answers",
            "iscsi::login::tests::initiator::random_responses",
        ],
    },
    Requirement {
        number: 47,
        sections: "11.13.5",
        role: Target,
        rule: "the connection is closed after a Login Response whose status is not success",
        tests: &["iscsi::connection::target::tests::service::a_refused_login_is_closed"],
    },
    Requirement {
        number: 47,
        sections: "11.13.5",
        role: Both,
        rule: "a redirection contains TargetAddress, and the initiator follows it",
        tests: &[
            "iscsi::login::tests::pair::redirects",
            "lunar::tests::it::daemon::redirects_are_followed_to_an_end",
        ],
    },
    Requirement {
        number: 52,
        sections: "13.8, C",
        role: Target,
        rule: "TargetAddress has a portal group tag in SendTargets and none in a redirection; \
               IPv6 addresses are in brackets",
        tests: &[
            "iscsi::connection::target::tests::service::send_targets",
            "iscsi::login::tests::pair::redirects",
            "lunar::tests::it::sessions::several_portals_and_ipv6",
        ],
    },
    Requirement {
        number: 60,
        sections: "4.4.3",
        role: Initiator,
        rule: "two sessions with the same target never share an ISID: it is random, or from a pool",
        tests: &[
            "initiator::options::tests::isids_differ",
            "iscsi::session::initiator::tests::isids_are_never_shared_with_one_target",
        ],
    },
];
