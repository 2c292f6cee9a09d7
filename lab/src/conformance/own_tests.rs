//! Table of our tests for features that libiscsi 1.19 does not test: the part `own` of
//! CONFORMANCE.md.

use crate::report::markdown::table;
use lunar_load::report::{Column, Table, TableCell};

/// Feature, section of the standard, and test: `crate::module::test`.
pub const OWN_TESTS: &[(&str, &str, &str)] = &[
    (
        "VPD pages: listed in ascending order, each there, no other; cut to any length",
        "SPC-4 §7.8.13",
        "lab::tests::it::standard_scsi::vpd_pages_in_ascending_order",
    ),
    (
        "REPORT LUNS: each SELECT REPORT, short allocation lengths, through every unit",
        "SPC-4 §6.33",
        "lab::tests::it::standard_scsi::report_luns_selects",
    ),
    (
        "LUN addressing: peripheral, flat space, well known; LUNs without a unit",
        "SAM-5 §4.7",
        "lab::tests::it::standard_scsi::lun_addressing_forms",
    ),
    (
        "REPORT TARGET PORT GROUPS: every group, in agreement with page 83h",
        "SPC-4 §6.37",
        "lab::tests::it::standard_scsi::target_port_groups_and_device_identification_agree",
    ),
    (
        "MISCOMPARE: sense data has the offset, in both formats, and nothing is written",
        "SBC-3 §5.2",
        "lab::tests::it::standard_scsi::a_miscompare_reports_its_offset",
    ),
    (
        "EXTENDED COPY: several segments as long as 16 bits let them be",
        "SPC-4 §6.4",
        "lab::tests::it::standard_scsi::extended_copy_of_large_segments",
    ),
    (
        "SANITIZE continues after aborts, resets and logout, on slow and fast disks",
        "SBC-3 §4.11",
        "target::tests::it::sanitize::the_end_of_the_command_does_not_end_the_operation",
    ),
    (
        "SendTargets with bad keys and values, in both session types: the session continues",
        "RFC 7143 Appendix C",
        "lab::tests::it::standard_iscsi::send_targets_with_bad_keys_and_values",
    ),
    (
        "NOP-Out with and without data, in order or immediate, with a tag or none",
        "RFC 7143 §11.18",
        "lab::tests::it::standard_iscsi::nop_out_with_and_without_data",
    ),
    (
        "NOP-Out with more data than the initiator takes back",
        "RFC 7143 §13.12",
        "lab::tests::it::standard_iscsi::a_long_nop_out_is_echoed_truncated",
    ),
    (
        "CHAP: names that begin with 0x and 0b, both ways",
        "RFC 7143 §12.1.3",
        "lab::tests::it::standard_iscsi::chap_names_that_begin_like_numbers",
    ),
    (
        "CHAP: responses in base64 that are too long, too short or no base64",
        "RFC 7143 §12.1.3",
        "lab::tests::it::standard_iscsi::an_oversized_base64_chap_response",
    ),
    (
        "Logout while commands run",
        "RFC 7143 §11.14",
        "lab::tests::it::standard_iscsi::logout_during_input_and_output",
    ),
];

/// Returns the table in Markdown.
pub fn markdown() -> String {
    let columns = [("what", "What"), ("standard", "Standard"), ("test", "Test")];
    let mut all = Table::new(columns.map(|(key, label)| Column::text(key, label)));
    for (what, standard, test) in OWN_TESTS {
        let test = format!("`{test}`");
        all.row([TableCell::text(*what), TableCell::text(*standard), TableCell::text(test)]);
    }
    table(&all)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::conformance::rfc_requirements::tests::check_exists;
    use anyhow::Result;

    /// Goal: every test that CONFORMANCE.md names exists.
    #[test]
    fn every_test_exists() -> Result<()> {
        for (what, _, test) in OWN_TESTS {
            check_exists(test)?;
            assert!(!what.contains('|'), "{what}");
        }
        Ok(())
    }
}
