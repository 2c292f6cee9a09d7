//! The table of keys for readers: range, default and negotiation rule of each key, and the default
//! value of this project's target.

use super::negotiate::{Negotiation, Role};
use super::table::{KEYS, KeyInfo, KeyStage, Rule, Scope, Senders, Use, ValueKind};
use super::{Offer, TextBuilder};
use crate::login::SessionType;
use alloc::format;
use alloc::string::{String, ToString};

/// Formats all keys as Markdown: name, values, default, result function, the target's own value,
/// use, stage, senders, scope, source.
pub fn markdown() -> String {
    let mut text = String::from(
        "| Key | Values | Default | Result | Target | Use | Stage | Senders | Scope | Source |\n\
         |---|---|---|---|---|---|---|---|---|---|\n",
    );
    for info in KEYS {
        let KeyInfo { name, source, .. } = info;
        let default = info.default.map_or_else(|| "–".to_string(), |value| info.value_text(value));
        let (values, target) = (values(info.kind), target_value(info));
        let (rule, used, stage) = (rule(info), used(info), stage(info.stage));
        let (senders, scope) = (senders(info.senders), scope(info.scope));
        text.push_str(&format!(
            "| {name} | {values} | {default} | {rule} | {target} | {used} | {stage} | {senders} \
             | {scope} | {source} |\n"
        ));
    }
    text
}

/// The value that a target with default configuration would propose for this key in a normal
/// session.
fn target_value(info: &KeyInfo) -> String {
    let mut negotiation =
        Negotiation::new(Role::Target, Offer::target(), SessionType::Normal, true);
    let mut text = TextBuilder::new();
    negotiation.propose(&mut text);
    let text = text.into_bytes();
    let pairs = text.split(|byte| *byte == 0).filter_map(|pair| core::str::from_utf8(pair).ok());
    let mut values = pairs.filter_map(|pair| pair.split_once('='));
    let found = values.find(|(name, _)| *name == info.name);
    found.map_or_else(|| "–".to_string(), |(_, value)| value.replace(',', ", "))
}

fn values(kind: ValueKind) -> String {
    match kind {
        ValueKind::Number { min, max } => format!("{min} to {max}"),
        ValueKind::Boolean => "Yes, No".to_string(),
        ValueKind::List(words) => format!("list of {}", words.join(", ")),
        ValueKind::Word(words) => words.join(", "),
        ValueKind::Name => "iSCSI name".to_string(),
        ValueKind::Text => "text".to_string(),
        ValueKind::Binary { bytes_max } => format!("binary, at most {bytes_max} bytes"),
    }
}

fn rule(info: &KeyInfo) -> &'static str {
    match info.rule {
        Rule::Minimum => "minimum",
        Rule::Maximum => "maximum",
        Rule::And => "AND",
        Rule::Or => "OR",
        Rule::FirstSupported => "first supported",
        Rule::Declare => "declared",
        Rule::Query => "asked",
        Rule::Authentication => "authentication",
        Rule::Obsolete if info.kind == ValueKind::Boolean => "obsolete: No",
        Rule::Obsolete => "obsolete: Reject",
    }
}

fn used(info: &KeyInfo) -> String {
    let used = match info.used {
        Use::LeadingOnly => "LO",
        Use::InitializeOnly => "IO",
        Use::FullFeatureOnly => "FFPO",
        Use::All => "ALL",
    };
    if info.normal_only { format!("{used}, not in discovery") } else { used.to_string() }
}

const fn stage(stage: KeyStage) -> &'static str {
    match stage {
        KeyStage::Security => "security",
        KeyStage::Operational => "operational",
        KeyStage::Any => "any",
    }
}

const fn senders(senders: Senders) -> &'static str {
    match senders {
        Senders::Initiator => "initiator",
        Senders::Target => "target",
        Senders::Both => "both",
    }
}

const fn scope(scope: Scope) -> &'static str {
    match scope {
        Scope::Session => "SW",
        Scope::Connection => "CO",
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::vec::Vec;

    /// Goal: the report has one row per key with as many columns as the head; ranges, defaults and
    /// our own values are those of the table and the offer.
    #[test]
    fn every_key_has_one_row() {
        let text = markdown();
        let rows: Vec<&str> = text.lines().skip(2).collect();
        assert_eq!(rows.len(), KEYS.len());
        let columns = |row: &str| row.matches('|').count();
        assert!(text.lines().all(|row| columns(row) == columns(rows[0])), "{text}");
        let row = |name: &str| {
            let start = format!("| {name} |");
            *rows.iter().find(|row| row.starts_with(&start)).expect("a row")
        };
        let burst = "| MaxBurstLength | 512 to 16777215 | 262144 | minimum | 1048576 | LO, not";
        assert!(row("MaxBurstLength").starts_with(burst), "{}", row("MaxBurstLength"));
        assert!(row("HeaderDigest").contains("| None | first supported | None, CRC32C | IO |"));
        assert!(row("InitialR2T").contains("| Yes | OR | No |"));
        assert!(row("IFMarker").contains("obsolete: No | – |"));
        assert!(row("IFMarkInt").contains("obsolete: Reject | – |"));
    }
}
