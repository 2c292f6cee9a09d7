//! Writes a run as docs/performance.md.

use super::competitors::{self, CLOSE, CloseCompetitor};
use super::reasons;
use super::tables;
use crate::bench::goal::{GoalOutcome, GoalVerdict};
use crate::bench::target::cells::NULL;
use crate::bench::target::results::{BenchRun, CellResult, Profile};
use crate::report::markdown::table;
use lunar_load::report::{Column, Table, TableCell, size_text};
use std::fmt::Write;
use std::path::{Component, Path, PathBuf};

/// Text that does not come from a run.
const TEMPLATE: &str = include_str!("../../../../performance.template.md");
/// Explanation of profiles, if there are any.
const PROFILES: &str = include_str!("../../../../profiles.template.md");

/// Returns the chapter.
///
/// `at`: the file that it is for, from which the links to the pictures start.
pub fn chapter(run: &BenchRun, at: &Path) -> String {
    let which = match run.is_full {
        true => "All cells.",
        false => "The short form: the cells that goals need.",
    };
    let parts = [
        ("benchmarks", "[benchmarks.md](benchmarks.md)".to_owned()),
        ("facts", format!("{}\n{}", facts(run), tables::disturbance(run).unwrap_or_default())),
        ("which", which.to_owned()),
        ("rounds", run.rounds.to_string()),
        ("seconds", run.seconds.to_string()),
        ("goals", goals(&run.goals)),
        ("competitors", competitors_text(&competitors::close_figures(run))),
        ("profiles", profiles(run, at)),
        ("durability", durability(run)),
        ("figures", run.cells.iter().map(figures_of).collect()),
    ];
    parts.iter().fold(TEMPLATE.to_owned(), |text, (name, part)| {
        text.replace(&format!("{{{{{name}}}}}"), part.trim_end())
    })
}

fn facts(run: &BenchRun) -> String {
    let mut facts = Table::new([Column::text("name", ""), Column::text("value", "")]);
    for (name, value) in &run.facts {
        facts.row([name, value].map(|text| TableCell::text(text.clone())));
    }
    table(&facts)
}

fn goals(goals: &[GoalVerdict]) -> String {
    let mut all = Table::new([
        Column::text("outcome", ""),
        Column::text("part", "part"),
        Column::text("goal", "goal"),
        Column::text("wanted", "wanted"),
        Column::number("got", "median of the rounds"),
        Column::text("cell", "cell"),
    ]);
    for goal in goals {
        let note = goal.note.as_ref().map_or(String::new(), |note| format!(" ({note})"));
        all.row([
            TableCell::text(format!("**{}**", goal.outcome.text())),
            TableCell::text(goal.part.clone()),
            TableCell::text(format!("{}{note}", goal.what)),
            TableCell::text(goal.wanted_text()),
            TableCell::text(goal.got_text()),
            TableCell::text(goal.from.clone()),
        ]);
    }
    format!("{}\n{}\n", table(&all), tables::counts(goals))
}

fn competitors_text(figures: &[CloseCompetitor]) -> String {
    if figures.is_empty() {
        return format!("In no cell of this run is a competitor ahead, or closer than {CLOSE}.\n");
    }
    let mut leads = Table::new([
        Column::text("cell", "cell"),
        Column::text("ours", "ours"),
        Column::text("theirs", "theirs"),
        Column::text("figure", "figure"),
        Column::number("ratio", "ours is better by"),
        Column::text("who", ""),
    ]);
    for figure in figures {
        let ratio = figure.ratio;
        let spread = match figure.is_paired {
            true => ratio.text(2),
            false => format!("{:.2}", ratio.median),
        };
        let who = if ratio.median < 1.0 { "theirs is ahead" } else { "close" };
        let CloseCompetitor { cell, ours, theirs, what, .. } = figure;
        leads.row([
            TableCell::text(cell.to_string()),
            TableCell::text(ours.to_string()),
            TableCell::text(theirs.to_string()),
            TableCell::text(what.to_string()),
            TableCell::text(spread),
            TableCell::text(who),
        ]);
    }
    format!(
        "Figures in which a competitor is ahead, or Lunar less than {CLOSE} times better. A ratio \
         below 1 means that the competitor is better. tgt and Lunar are compared round by round; \
         Lunar's client and libiscsi's, both on Lunar, by medians of two cells.\n\n{}",
        table(&leads)
    )
}

fn profiles(run: &BenchRun, at: &Path) -> String {
    let missed = |goal: &&GoalVerdict| {
        goal.outcome == GoalOutcome::Miss && run.cells.iter().any(|cell| cell.key == goal.from)
    };
    let missed: Vec<&GoalVerdict> = run.goals.iter().filter(missed).collect();
    if run.profiles.is_empty() {
        return match missed.is_empty() {
            true => "No goal of a cell was missed in this run.",
            false => "This run was made without `--profiles`, or perf was not available.",
        }
        .to_owned();
    }
    let of = |profile: &Profile| profile_text(profile, &missed, run, at);
    let each: String = run.profiles.iter().map(of).collect();
    let mut text = format!("{PROFILES}\n{each}");
    let is_left = |goal: &&&GoalVerdict| !run.profiles.iter().any(|one| one.cell == goal.from);
    for goal in missed.iter().filter(is_left) {
        let _ = writeln!(text, "There is no profile of `{}`: {}.\n", goal.from, goal.what);
    }
    text
}

fn profile_text(profile: &Profile, missed: &[&GoalVerdict], run: &BenchRun, at: &Path) -> String {
    let Profile { cell, setup, seconds, sample, .. } = profile;
    // The null target is only a reference, and has no goals to miss.
    let goals = missed.iter().filter(|goal| goal.from == *cell && *setup != NULL.name());
    let goals = goals.map(|goal| {
        let (what, got, wanted) = (&goal.what, goal.got_text(), goal.wanted_text());
        let why = reasons::of(goal, run).map_or(String::new(), |why| format!("{why}\n\n"));
        format!("Missed: {what}; {got}, wanted {wanted}. {why}")
    });
    let link = relative(Path::new(&profile.file), at.parent().unwrap_or(Path::new("")));
    format!(
        "### {cell}, {setup}\n\n{}Sampled for {seconds} s at {:.0} IOPS.\n\n{}\n\
         [![Flame graph of {cell}, {setup}]({link})]({link})\n\n",
        goals.collect::<String>(),
        sample.iops,
        table(&tables::shares(profile)),
        link = link.display(),
    )
}

/// Returns the relative path to a file from a folder; both are given relative to the same folder.
fn relative(file: &Path, folder: &Path) -> PathBuf {
    if file.is_absolute() != folder.is_absolute() {
        return file.to_owned();
    }
    let named = |part: &Component<'_>| *part != Component::CurDir;
    let to: Vec<Component<'_>> = file.components().filter(named).collect();
    let from: Vec<Component<'_>> = folder.components().filter(named).collect();
    let alike = to.iter().zip(&from).take_while(|(one, other)| one == other).count();
    let up = from[alike..].iter().map(|_| Component::ParentDir);
    up.chain(to[alike..].iter().copied()).collect()
}

fn durability(run: &BenchRun) -> String {
    let columns = [("store", "store"), ("target", "target"), ("text", "")];
    let mut all = Table::new(columns.map(|(key, label)| Column::text(key, label)));
    for row in &run.durability {
        all.row([&row.store, &row.contestant, &row.text].map(|text| TableCell::text(text.clone())));
    }
    table(&all)
}

fn figures_of(cell: &CellResult) -> String {
    let size = size_text(cell.io_bytes);
    let shared = if cell.is_shared { ", both on both cores" } else { "" };
    let void = if cell.is_void { " **void**" } else { "" };
    format!(
        "\n### {}\n\n{}, {size}, depth {}, {}{shared}.{void} {}\n\n{}",
        cell.key,
        cell.pattern,
        cell.depth,
        cell.store,
        tables::raw_tcp(cell),
        table(&tables::setups(cell)),
    )
}

#[cfg(test)]
mod tests {
    use super::super::competitors::tests::run;
    use super::*;
    use crate::bench::target::goals;
    use crate::bench::target::results::{Durability, Sample, Share};

    /// Goal: the chapter has the machine, the goals with their outcome, competitors, durability and
    /// the figures of the run.
    #[test]
    fn a_small_chapter() {
        let mut run = run();
        run.goals = goals::verdicts(&run);
        run.durability = vec![Durability {
            store: "tmpfs".to_owned(),
            contestant: "tgt".to_owned(),
            text: "a|b".to_owned(),
        }];
        let text = chapter(&run, Path::new(""));
        for line in [
            "| processor | one |",
            "The short form: the cells that goals need. 1 rounds of 1 s",
            "| **miss** | tgt | IOPS, 4 KiB random reads, depth 32, file in tmpfs | at least 4 | \
             1.05 (1.05 to 1.05) | rand-read-4Ki-32-tmpfs |",
            "| **not measured** | tgt | throughput, 256 KiB reads | at least 1.5 | - | \
             read-256Ki-8-tmpfs |",
            "-tmpfs | lunar | tgt | p99 | 0.75 (0.75 to 0.75) | theirs is ahead |",
            "| rand-read-4Ki-32-tmpfs-libiscsi | lunar | lunar by libiscsi | IOPS | 0.50 | \
             theirs is ahead |",
            "| tmpfs | tgt | a\\|b |",
            "do not edit it. [benchmarks.md](benchmarks.md) explains",
            "### rand-read-4Ki-32-tmpfs\n\nrand-read, 4Ki, depth 32, tmpfs. Raw TCP: ping-pong \
             50.0 us, exchange 400000/s, stream 3000 MB/s; the pipelined exchange varied by 0 % (1 \
             rounds); a spinning thread had 98 % of its core.",
            "| setup | IOPS | MB/s | p50 us | p99 us | p99.9 us | CPU s/100k | target busy | \
             client busy |\n|---|--:|--:|--:|--:|--:|--:|--:|--:|\n| lunar | 105000 \
             (105000 to 105000) | 430.1 | 10 | 40 | 80 | 0.952 | 100 | 50 |",
        ] {
            assert!(text.contains(line), "no {line:?} in\n{text}");
        }
        assert!(text.ends_with("|\n") && !text.contains("{{"), "{text}");
    }

    /// Goal: a missed setup has its parts, its goals and its picture, with a path relative to the
    /// written file; a setup without a profile is mentioned; a run without profiles gives the
    /// reason in a sentence.
    #[test]
    fn profiles_are_shown() {
        let mut run = run();
        let at = Path::new("docs/performance.md");
        assert!(chapter(&run, at).contains("No goal of a cell was missed in this run."));
        assert!(!chapter(&run, at).contains("A sample belongs to"));
        run.goals = goals::verdicts(&run);
        assert!(chapter(&run, at).contains("This run was made without `--profiles`, or"));
        let share = |part: &str, samples: u64| Share {
            part: part.to_owned(),
            samples,
            share: samples as f64 / 1000.0,
        };
        let sample = Sample { iops: 104_000.0, target_busy: Some(0.985), ..Sample::default() };
        run.profiles = vec![Profile {
            cell: "rand-read-4Ki-32-tmpfs".to_owned(),
            setup: "lunar".to_owned(),
            file: "docs/profiles/rand-read-4Ki-32-tmpfs.svg".to_owned(),
            seconds: 2.0,
            samples: 1000,
            shares: vec![share("kernel: files, reading", 600), share("Lunar: a|b", 400)],
            sample,
        }];
        let text = chapter(&run, at);
        for line in [
            "### rand-read-4Ki-32-tmpfs, lunar\n\nMissed: IOPS, 4 KiB random reads, depth 32, file \
             in tmpfs; 1.05 (1.05 to 1.05), wanted at least 4. ",
            "Sampled for 2 s at 104000 IOPS.\n\n| where | samples | share |\n|---|--:|--:|\n\
             | kernel: files, reading | 600 | 60.0 % |\n| Lunar: a\\|b | 400 | 40.0 % |\n\
             | all | 1000 | 100.0 % |\n| busy: the target, of one core |  | 98.5 % |\n\
             | busy: the client (not sampled), of one core |  | - |\n\n[![Flame graph of \
             rand-read-4Ki-32-tmpfs, lunar](profiles/rand-read-4Ki-32-tmpfs.svg)]\
             (profiles/rand-read-4Ki-32-tmpfs.svg)\n",
            "A sample belongs to the part of",
            "There is no profile of `rand-read-4Ki-32-tmpfs-libiscsi`: IOPS, the same",
        ] {
            assert!(text.contains(line), "no {line:?} in\n{text}");
        }
        let order = ["## Where competitors", "## Where the time goes", "### rand", "## Durability"];
        let order = order.map(|title| text.find(title).unwrap());
        assert!(order.is_sorted(), "{order:?}");
    }

    /// Goal: pictures are linked relative to the folder of the file that names them.
    #[test]
    fn relative_paths_between_files() {
        let way = |file: &str, folder: &str| relative(Path::new(file), Path::new(folder));
        assert_eq!(way("docs/profiles/x.svg", "docs"), Path::new("profiles/x.svg"));
        assert_eq!(way("./profiles/x.svg", ""), Path::new("profiles/x.svg"));
        assert_eq!(way("/tmp/p/x.svg", "/tmp/q/r"), Path::new("../../p/x.svg"));
        assert_eq!(way("/tmp/p/x.svg", "docs"), Path::new("/tmp/p/x.svg"));
    }

    /// Goal: a run that was written is read back unchanged.
    #[test]
    fn a_run_is_read_again() {
        let mut run = run();
        run.goals = goals::verdicts(&run);
        let text = serde_json::to_string(&run).unwrap();
        let again: BenchRun = serde_json::from_str(&text).unwrap();
        assert_eq!(chapter(&again, Path::new("")), chapter(&run, Path::new("")));
        // A run that was written before there were profiles.
        let old = text.replace(",\"profiles\":[]", "");
        assert!(old.len() < text.len());
        let old: BenchRun = serde_json::from_str(&old).unwrap();
        assert_eq!(chapter(&old, Path::new("")), chapter(&run, Path::new("")));
    }
}
