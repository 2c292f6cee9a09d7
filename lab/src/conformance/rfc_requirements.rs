//! Requirements of RFC 7143 that implementations miss, rule by rule, with the tests that show them.
//! The part `musts` of CONFORMANCE.md is made of this table; a test that is named here must exist.

mod login;
mod numbering;
mod service;
mod text;
mod transfer;

use crate::report::markdown;
use lunar_load::report::{Column, Table, TableCell};

/// Party that a rule binds.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum RequiredRole {
    /// The target.
    Target,
    /// The initiator.
    Initiator,
    /// Both, each in its own way.
    Both,
}

/// One rule, or the part of one that the same tests show.
#[derive(Clone, Copy, Debug)]
pub struct Requirement {
    /// Number of the rule, from 1; its parts share a number.
    pub number: u8,
    /// Sections of RFC 7143, or of the RFC that is named, with commas.
    pub sections: &'static str,
    /// Party that the rule binds.
    pub role: RequiredRole,
    /// Text of the rule; for a feature that is not implemented, the way in which it is refused.
    pub rule: &'static str,
    /// Tests as `crate::module::test`; files of integration tests are modules of `crate::tests`.
    pub tests: &'static [&'static str],
}

/// Number of rules.
pub const RULES: u8 = 60;

/// Returns every row, in the order of the rules.
pub fn all() -> Vec<&'static Requirement> {
    let parts = [
        numbering::REQUIREMENTS,
        login::REQUIREMENTS,
        text::REQUIREMENTS,
        transfer::REQUIREMENTS,
        service::REQUIREMENTS,
    ];
    let mut all: Vec<&Requirement> = parts.into_iter().flatten().collect();
    all.sort_by_key(|must| must.number);
    all
}

/// Returns the table in Markdown.
pub fn markdown() -> String {
    let mut table = Table::new([
        Column::number("rule", "Rule"),
        Column::text("rfc", "RFC 7143"),
        Column::text("role", "Binds"),
        Column::text("says", "Requirement"),
        Column::text("tests", "Shown by"),
    ]);
    for Requirement { number, sections, role, rule, tests } in all() {
        let role = match role {
            RequiredRole::Target => "target",
            RequiredRole::Initiator => "initiator",
            RequiredRole::Both => "both",
        };
        let tests: Vec<String> = tests.iter().map(|test| format!("`{test}`")).collect();
        table.row([
            TableCell::count((*number).into()),
            TableCell::text(*sections),
            TableCell::text(role),
            TableCell::text(*rule),
            TableCell::text(tests.join("<br>")),
        ]);
    }
    markdown::table(&table)
}

#[cfg(test)]
pub(crate) mod tests;
