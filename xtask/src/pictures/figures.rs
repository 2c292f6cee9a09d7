//! Figures that documents of the repository contain.

use anyhow::{Context, Result, ensure};
use std::fmt;

/// A part of a whole: `225 of 230`.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) struct Share {
    pub(super) achieved: u32,
    pub(super) of: u32,
}

impl fmt::Display for Share {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} of {}", self.achieved, self.of)
    }
}

/// Tests of the libiscsi suite that pass on some profile: the last row of the first table.
pub(super) fn conformance(text: &str) -> Result<Share> {
    let row = text.lines().find(|line| line.starts_with("| **all** |"));
    let cells = cells(row.context("CONFORMANCE.md has no row `all`")?);
    Ok(Share { of: number(&cells, 1)?, achieved: number(&cells, 2)? })
}

/// Attacks that did not succeed: "171 of 171 attacks were run, 0 succeeded."
pub(super) fn attacks(text: &str) -> Result<Share> {
    let words = numbers_before(text, &[" attacks were run, ", " succeeded."])?;
    let [run, succeeded] = words[..] else { unreachable!("as many as texts") };
    let achieved = run.checked_sub(succeeded).context("more attacks succeeded than were run")?;
    Ok(Share { achieved, of: run })
}

/// Goals of the benchmark that are met: "25 pass, 2 miss, 0 void, 0 not measured".
pub(super) fn goals(text: &str) -> Result<Share> {
    let counts = numbers_before(text, &[" pass, ", " miss, ", " void, ", " not measured"])?;
    Ok(Share { achieved: counts[0], of: counts.iter().sum() })
}

/// The version of Rust, without its last part.
pub(super) fn rust(text: &str) -> Result<String> {
    let channel = text.lines().find_map(|line| line.strip_prefix("channel = \""));
    let version = channel.context("rust-toolchain.toml has no channel")?.trim_end_matches('"');
    Ok(version.splitn(3, '.').take(2).collect::<Vec<_>>().join("."))
}

/// Rows of the table of README.md: the label, the cell, and whether the figure is MB/s.
const ROWS: &[(&str, &str, bool)] = &[
    ("4 KiB random reads, 32 at a time, IOPS", "rand-read-4Ki-32-tmpfs", false),
    ("256 KiB writes, 8 at a time, MB/s", "write-256Ki-8-tmpfs", true),
    ("durable 4 KiB writes, 32 at a time, IOPS", "rand-write-4Ki-32-disk-through", false),
    ("durable 4 KiB writes, one at a time, IOPS", "rand-write-4Ki-1-disk-through", false),
];

/// The beginnings of the rows of README.md with measured figures.
pub(super) fn table_rows(performance: &str) -> Result<Vec<String>> {
    let row = |(label, cell, is_throughput): &(&str, &str, bool)| {
        let [lunar, tgt] = ["lunar", "tgt"].map(|setup| median(performance, cell, setup));
        let (lunar, tgt) = (lunar?, tgt?);
        let figure = |(iops, megabytes): (f64, f64)| match is_throughput {
            true => grouped(megabytes),
            false => grouped(iops),
        };
        Ok(format!("| {label} | {} | {} |", figure(lunar), figure(tgt)))
    };
    ROWS.iter().map(row).collect()
}

/// The ratio of Lunar to tgt in a cell: median of the rounds.
pub(super) fn ratio(performance: &str, cell: &str, competitor: &str) -> Result<f64> {
    let is_iops = |cells: &[&str]| match cells.first() {
        // | **pass** | part | goal | wanted | median | cell |
        Some(&("**pass**" | "**miss**")) => {
            let figure = cells.get(2).is_some_and(|goal| {
                goal.starts_with("IOPS")
                    || goal.starts_with("throughput")
                    || goal.contains("reads,")
            });
            figure && cells.get(1) == Some(&"tgt") && cells.get(5) == Some(&cell)
        }
        // | cell | ours | theirs | figure | ratio | verdict |
        Some(first) => {
            *first == cell && cells.get(2) == Some(&competitor) && cells.get(3) == Some(&"IOPS")
        }
        None => false,
    };
    let rows = performance.lines().filter(|line| line.starts_with("| ")).map(cells);
    let row = rows.into_iter().find(|cells| is_iops(cells));
    let row = row.with_context(|| format!("docs/performance.md has no ratio of {cell}"))?;
    let median = row[4].split(' ').next().unwrap_or_default();
    median.parse().with_context(|| format!("the ratio of {cell}: {median}"))
}

/// The IOPS and the MB/s of a setup in a cell.
fn median(performance: &str, cell: &str, setup: &str) -> Result<(f64, f64)> {
    let heading = format!("### {cell}");
    let lines = performance.lines().skip_while(|line| *line != heading).skip(1);
    let mut lines = lines.take_while(|line| !line.starts_with("### "));
    let row = lines.find(|line| line.starts_with(&format!("| {setup} |")));
    let row = cells(row.with_context(|| format!("{cell} has no row of {setup}"))?);
    ensure!(row.len() > 2, "{cell}: a short row");
    let first = |text: &str| text.split(' ').next().unwrap_or_default().parse::<f64>();
    Ok((first(row[1])?, first(row[2])?))
}

fn cells(row: &str) -> Vec<&str> {
    row.trim_matches('|').split('|').map(str::trim).collect()
}

fn number(cells: &[&str], index: usize) -> Result<u32> {
    let text = cells.get(index).context("a short row")?;
    text.parse().with_context(|| format!("no number: {text}"))
}

/// The numbers before these texts, which follow each other in one line.
fn numbers_before(text: &str, texts: &[&str]) -> Result<Vec<u32>> {
    let has_all = |line: &&str| texts.iter().all(|text| line.contains(text));
    let line = text.lines().find(has_all).with_context(|| format!("no line with {texts:?}"))?;
    let number = |after: &&str| {
        let before = line.split(*after).next().unwrap_or_default();
        let digits = before.rsplit(|letter: char| !letter.is_ascii_digit()).next();
        digits.unwrap_or_default().parse().with_context(|| format!("no number before {after}"))
    };
    texts.iter().map(number).collect()
}

/// A number without decimals, in groups of three digits.
fn grouped(number: f64) -> String {
    let digits = format!("{:.0}", number.round());
    let mut text = String::new();
    for (index, digit) in digits.chars().enumerate() {
        if index > 0 && (digits.len() - index) % 3 == 0 {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal: figures are found in texts of the documents' form; a text without them is an error.
    #[test]
    fn figures_are_found() -> Result<()> {
        let share = |achieved, of| Share { achieved, of };
        assert_eq!(conformance("| a |\n| **all** | 230 | 225 |  |  |\n")?, share(225, 230));
        assert_eq!(attacks("x. 171 of 171 attacks were run, 2 succeeded.\n")?, share(169, 171));
        assert_eq!(goals("25 pass, 2 miss, 1 void, 0 not measured (x)")?, share(25, 28));
        assert_eq!(rust("[toolchain]\nchannel = \"1.95.0\"\n")?, "1.95");
        assert!(conformance("").is_err() && attacks("").is_err() && goals("1 pass").is_err());
        Ok(())
    }

    /// Goal: medians and ratios are those of the cell and the competitor.
    #[test]
    fn cells_are_found() -> Result<()> {
        let text = "| **pass** | tgt | CPU of the target | at most 0.25 | 0.12 (1 to 2) | a |\n\
                    | **pass** | tgt | IOPS, reads | at least 4 | 8.53 (7 to 9) | a |\n\
                    | b | lunar | tgt aio | IOPS | 0.82 (0.7 to 0.8) | theirs is ahead |\n\
                    ### a\n| lunar | 442208 (1 to 2) | 1811.3 |\n\
                    ### b\n| tgt | 7 (1 to 2) | 0.5 |\n";
        assert_eq!(ratio(text, "a", "tgt")?, 8.53);
        assert_eq!(ratio(text, "b", "tgt aio")?, 0.82);
        assert!(ratio(text, "b", "tgt").is_err());
        assert_eq!(median(text, "a", "lunar")?, (442_208.0, 1811.3));
        assert!(median(text, "a", "tgt").is_err());
        let texts = [442_208.0, 868.5, 1e6].map(grouped);
        assert_eq!(texts, ["442,208", "869", "1,000,000"]);
        Ok(())
    }
}
