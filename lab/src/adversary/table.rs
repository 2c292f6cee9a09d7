//! Results as rows of docs/adversary.md and as JSON.

use super::attack::Attack;
use super::measurement::{MeasuredLoad, Measurement};
use super::verdict::breaches;
use crate::report::markdown;
use crate::report::sections::{replaced, section};
use anyhow::{Context, Result};
use lunar_load::report::Column;
use serde_json::{Value, json};
use std::collections::HashMap;

/// Path of the committed table.
pub const PATH: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../docs/adversary.md");
/// A part of the document that a run writes.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Part {
    /// The table of the current server.
    Now,
    /// The table of an earlier server.
    Before,
}

impl Part {
    /// Returns the name in the document's marks.
    fn name(self) -> &'static str {
        match self {
            Self::Now => "now",
            Self::Before => "before",
        }
    }
}

/// Returns `holds`, or the breaches of the attack.
pub fn verdict(measured: &Measurement) -> String {
    let found: Vec<String> = breaches(measured).iter().map(ToString::to_string).collect();
    if found.is_empty() { "holds".to_owned() } else { format!("**{}**", found.join("; ")) }
}

/// Returns the head of a table. The second table is of a server of one commit, which the text
/// names.
fn head(part: Part) -> String {
    let columns = [
        Column::text("attack", "attack"),
        Column::text("summary", "what it does"),
        Column::number("fault", "fault"),
        Column::number("memory", "peak memory MiB"),
        Column::number("latency", "worst latency ms"),
        Column::number("iops", "IOPS share"),
        Column::text("verdict", "verdict"),
        Column::text("commit", "commit"),
    ];
    let shown = if part == Part::Now { columns.len() } else { columns.len() - 1 };
    markdown::head(&columns[..shown])
}

/// Returns the row of an attack, with the commit of the server if the table has a column for it.
pub fn row(measured: &Measurement, commit: Option<&str>) -> String {
    let attack = &measured.attack;
    let fault = if attack.fault == 0 { String::new() } else { attack.fault.to_string() };
    let worst = measured.worst.max(measured.worst_new_session).as_millis();
    let (worst, share) = match measured.process_end {
        Some(_) => ("–".to_owned(), "–".to_owned()),
        None => (worst.to_string(), share(measured)),
    };
    let cells = [
        format!("`{}`", attack.name),
        attack.summary.to_owned(),
        fault,
        (measured.peak_bytes >> 20).to_string(),
        worst,
        share,
        // A message of the server may contain characters that end a cell; rows are split again.
        verdict(measured).replace('|', "/"),
    ];
    markdown::row(cells.into_iter().chain(commit.map(str::to_owned)))
}

/// Returns the requests a second as a share of those before the attack; in brackets, if it was
/// measured, the share alongside a benign load of equal CPU.
fn share(measured: &Measurement) -> String {
    let quiet = measured.quiet.iops().max(1.0);
    let part = |iops: f64| format!("{:.0} %", iops / quiet * 100.0);
    let attack = part(measured.attack_load.iops());
    match measured.benign {
        Some(_) => format!("{attack} ({})", part(measured.expected_iops())),
        None => attack,
    }
}

/// Returns one line that reports the result during a run.
pub fn line(measured: &Measurement) -> String {
    format!(
        "{:<30} peak {:>4} MiB, worst {:>5} ms, new session {:>5} ms, IOPS {:.0} to {}, \
         {:.2} cores of {:.2}, {} sessions lost: {}",
        measured.attack.name,
        measured.peak_bytes >> 20,
        measured.worst.as_millis(),
        measured.worst_new_session.as_millis(),
        measured.quiet.iops(),
        share(measured),
        measured.attack_load.server_cores,
        measured.attack_load.cores,
        measured.sessions_lost,
        verdict(measured)
    )
}

/// Returns everything that was measured. Times in seconds, memory in bytes.
pub fn document(all: &[Measurement], seed: u64) -> Value {
    let attacks: Vec<Value> = all.iter().map(value).collect();
    json!({ "seed": seed, "attacks": attacks })
}

fn value(measured: &Measurement) -> Value {
    let load = |load: &MeasuredLoad| {
        json!({
            "iops": load.iops(),
            "iops_by_second": load.seconds,
            "server_cores": load.server_cores,
            "server_and_adversary_cores": load.cores,
        })
    };
    let found: Vec<String> = breaches(measured).iter().map(ToString::to_string).collect();
    json!({
        "name": measured.attack.name,
        "fault": measured.attack.fault,
        "sent": measured.sent,
        "longest_pause_of_the_adversary_seconds": measured.pause.as_secs_f64(),
        "peak_memory_bytes": measured.peak_bytes,
        "in_control_group": measured.has_group,
        "worst_latency_seconds": measured.worst.as_secs_f64(),
        "worst_new_session_seconds": measured.worst_new_session.as_secs_f64(),
        "last_new_session_error": measured.new_session_error,
        "sessions_lost": measured.sessions_lost,
        "refusals": measured.refusals,
        "before": load(&measured.quiet),
        "during": load(&measured.attack_load),
        "beside_benign_load": measured.benign.as_ref().map(load),
        "expected_iops": measured.expected_iops(),
        "breaches": found,
    })
}

/// Replaces the row of an attack in the committed document.
///
/// # Errors
/// The document cannot be read or written, or has lost its marks.
pub fn renew(part: Part, row: &str, order: &[Attack], setting: &str) -> Result<()> {
    let old = std::fs::read_to_string(PATH).context(PATH)?;
    let text = renewed(part, section(&old, part.name())?, row, order, setting);
    std::fs::write(PATH, replaced(&old, part.name(), &text)?).context(PATH)
}

/// Replaces the old row in a table, in the order of the attacks; drops rows of attacks that no
/// longer exist.
fn renewed(part: Part, old: &str, row: &str, order: &[Attack], setting: &str) -> String {
    let name = |row: &str| row.split('`').nth(1).map(str::to_owned);
    let mut rows: HashMap<String, &str> =
        old.lines().filter_map(|line| Some((name(line)?, line))).collect();
    rows.extend(name(row).map(|name| (name, row.trim_end())));
    let rows: Vec<&str> =
        order.iter().filter_map(|attack| rows.get(attack.name).copied()).collect();
    let succeeded = rows.iter().filter(|row| row.contains("| **")).count();
    let (measured, all) = (rows.len(), order.len());
    let count = format!("{measured} of {all} attacks were run, {succeeded} succeeded.");
    format!("{setting} {count}\n\n{}{}\n", head(part), rows.join("\n"))
}

#[cfg(test)]
mod tests {
    use super::super::measurement::ProcessEnd;
    use super::*;
    use std::time::Duration;

    /// Goal: rows contain the measurements; the row of a killed server has no latencies.
    #[test]
    fn rows_are_written() {
        let attack = Attack::new("a", 1, |_| Ok(())).summary("Sends.").fault(3);
        let mut measured = Measurement::new(&attack);
        measured.logins = 1;
        measured.peak_bytes = 40 << 20;
        measured.worst = Duration::from_millis(12);
        measured.worst_new_session = Duration::from_millis(30);
        measured.quiet = MeasuredLoad { seconds: vec![1000.0], ..MeasuredLoad::default() };
        measured.attack_load = MeasuredLoad { seconds: vec![900.0; 3], ..MeasuredLoad::default() };
        let now = "| `a` | Sends. | 3 | 40 | 30 | 90 % | holds | 1ab |\n";
        assert_eq!(row(&measured, Some("1ab")), now);
        let how = "exit | 1".to_owned();
        measured.process_end = Some(ProcessEnd { after: Duration::from_millis(1500), how });
        let killed = "| `a` | Sends. | 3 | 40 | – | – | **killed: exit / 1 after 1.5 s** |\n";
        assert_eq!(row(&measured, None), killed);
    }

    /// Goal: a row is renewed in place, new rows are inserted in order, and the count covers all
    /// rows.
    #[test]
    fn rows_are_renewed() {
        let order = ["a", "b", "c"].map(|name| Attack::new(name, 1, |_| Ok(())));
        let old = "1 processor. 2 of 3 …\n\n| attack |\n|---|\n| `gone` | x |\n| `c` | **ended** |";
        let one = renewed(Part::Before, old, "| `a` | old |\n", &order, "1 processor.");
        let two = renewed(Part::Before, &one, "| `a` | new |\n", &order, "1 processor.");
        assert!(
            two.starts_with("1 processor. 2 of 3 attacks were run, 1 succeeded.\n\n| attack |")
        );
        assert!(two.ends_with("--:|---|\n| `a` | new |\n| `c` | **ended** |\n"), "{two}");
    }

    /// Goal: the committed document has marks for the table, and the text around the table stays.
    #[test]
    fn the_document_has_marks_for_the_table() -> Result<()> {
        let committed = std::fs::read_to_string(PATH)?;
        for part in [Part::Now, Part::Before] {
            let written = replaced(&committed, part.name(), "| new |")?;
            assert_eq!(section(&written, part.name())?, "| new |");
            let old = section(&committed, part.name())?;
            assert_eq!(replaced(&written, part.name(), old)?, committed);
        }
        Ok(())
    }
}
