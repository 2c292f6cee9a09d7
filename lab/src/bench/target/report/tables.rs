//! Renders a run for a terminal.

use crate::bench::goal::{GoalOutcome, GoalVerdict, OUTCOMES};
use crate::bench::target::goals;
use crate::bench::target::results::{BenchRun, CellResult, Profile, Share};
use crate::bench::target::servers::Programs;
use crate::system::files;
use anyhow::Result;
use lunar_load::report::{Column, Table, TableCell};
use std::path::Path;
use std::process::Command;

/// Returns the machine, the versions, the folders.
///
/// # Errors
/// There is no such folder.
pub fn facts(programs: &Programs) -> Result<Vec<(String, String)>> {
    let mut facts = lunar_load::report::machine().facts();
    let mut add = |name: &str, value: String| facts.push((name.to_owned(), value));
    add("tmpfs", files::file_system(Path::new("/dev/shm"))?);
    add("disk", files::file_system(&programs.directory)?);
    let sysctl = |name: &str| std::fs::read_to_string(format!("/proc/sys/{name}"));
    let congestion = sysctl("net/ipv4/tcp_congestion_control").unwrap_or_default();
    add("TCP congestion control, of all and of raw TCP", congestion.trim().to_owned());
    add("measured on", version(Path::new("date"), &["-u", "+%F"]));
    let described = ["describe", "--always", "--dirty", "--abbrev=10"];
    add("source", version(Path::new("git"), &described));
    add("lunar", version(&programs.lunar, &["--version"]));
    add("tgt", version(Path::new("tgtd"), &["--version"]));
    add("libiscsi", version(Path::new("dpkg-query"), &["-f", "${Version}", "-W", "libiscsi-dev"]));
    // The probe shows a machine that is always busy as quiet.
    let load = std::fs::read_to_string("/proc/loadavg").unwrap_or_default();
    add("load average when it began", load.split_whitespace().next().unwrap_or("-").to_owned());
    Ok(facts)
}

/// Returns the first line that a program prints; `-`: the program is not installed.
fn version(program: &Path, arguments: &[&str]) -> String {
    let output = Command::new(program).args(arguments).output();
    let printed = output.map(|output| String::from_utf8_lossy(&output.stdout).into_owned());
    let line =
        printed.ok().and_then(|printed| printed.lines().next().map(str::trim).map(str::to_owned));
    line.filter(|line| !line.is_empty()).unwrap_or_else(|| "-".to_owned())
}

/// Prints the facts of the machine, before the first cell.
pub fn print_machine_facts(run: &BenchRun) {
    for (name, value) in &run.facts {
        println!("{name}: {value}");
    }
    println!("{} rounds of {} s; figures are medians (least to most)\n", run.rounds, run.seconds);
}

/// Returns one cell: a line for each setup, one for raw TCP.
pub fn cell_text(cell: &CellResult) -> String {
    let mut table = setups(cell);
    table.title = format!("{}{}", cell.key, if cell.is_void { "  VOID" } else { "" });
    format!("{}{}\n\n", table.text(), raw_tcp(cell))
}

/// Describes raw TCP in the rounds that count, as a sentence.
pub fn raw_tcp(cell: &CellResult) -> String {
    let tcp = |of: fn(&crate::bench::target::results::RawTcpFigures) -> f64| {
        cell.figures(|round| Some(of(&round.raw_tcp))).unwrap_or_default().median
    };
    let (ping, exchange) = (tcp(|tcp| tcp.ping_us), tcp(|tcp| tcp.exchanges_per_second));
    let stream = tcp(|tcp| tcp.stream_bytes_per_second) / 1e6;
    let (variation, rounds) = (cell.probe_variation * 100.0, cell.rounds.len());
    let share = tcp(|tcp| tcp.core_share) * 100.0;
    format!(
        "Raw TCP: ping-pong {ping:.1} us, exchange {exchange:.0}/s, stream {stream:.0} MB/s; \
         the {} varied by {variation:.0} % ({rounds} rounds); a spinning thread had {share:.0} % of its \
         core.",
        cell.probe
    )
}

/// Describes the load by other programs, if there was any.
pub fn disturbance(run: &BenchRun) -> Option<String> {
    let disturbed = run.cells.iter().filter(|cell| cell.is_disturbed()).count();
    (disturbed > 0).then(|| {
        format!(
            "In {disturbed} of {} cells other programs used a tenth of a core or more: the \
             figures of these cells are not those of an idle machine.",
            run.cells.len()
        )
    })
}

/// Returns the setups of a cell, as a table.
pub fn setups(cell: &CellResult) -> Table {
    let mut table = Table::new([
        Column::text("setup", "setup"),
        Column::number("iops", "IOPS"),
        Column::number("bytes_per_second", "MB/s"),
        Column::number("p50_us", "p50 us"),
        Column::number("p99_us", "p99 us"),
        Column::number("p99_9_us", "p99.9 us"),
        Column::number("target_cpu_seconds_per_100k", "CPU s/100k"),
        Column::number("target_busy", "target busy"),
        Column::number("client_busy", "client busy"),
    ]);
    for setup in &cell.setups {
        let figure = |of: fn(&crate::bench::target::results::Sample) -> Option<f64>,
                      unit: f64,
                      decimals| {
            let spread = cell.setup(setup, of);
            spread.map_or_else(TableCell::none, |spread| TableCell::median(spread, unit, decimals))
        };
        let iops = cell.setup(setup, |sample| Some(sample.iops));
        table.row([
            TableCell::text(setup.clone()),
            iops.map_or_else(TableCell::none, |iops| TableCell::spread(iops, 1.0, 0)),
            figure(|sample| Some(sample.bytes_per_second), 1e6, 1),
            figure(|sample| sample.p50_us, 1.0, 0),
            figure(|sample| sample.p99_us, 1.0, 0),
            figure(|sample| sample.p99_9_us, 1.0, 0),
            // The unit changes from microseconds per request to tenths of seconds per 100,000.
            figure(|sample| sample.target_cpu_us, 10.0, 3),
            figure(|sample| sample.target_busy.map(|busy| busy * 100.0), 1.0, 0),
            figure(|sample| sample.client_busy.map(|busy| busy * 100.0), 1.0, 0),
        ]);
    }
    table
}

/// Returns one line for each goal, and the count of each outcome.
pub fn goals_text(goals: &[GoalVerdict]) -> String {
    let notes = goals.iter().filter_map(|goal| Some((goal, goal.note.as_ref()?)));
    let notes: String = notes.map(|(goal, note)| format!("{}: {note}\n", goal.what)).collect();
    format!("{}{notes}{}\n", goals_table(goals).text(), counts(goals))
}

/// Returns the parts of the time: a line for each, and the processor use of both ends.
pub fn profile(profile: &Profile) -> String {
    let mut table = shares(profile);
    table.title = format!("{}, {}: {}", profile.cell, profile.setup, profile.file);
    table.text()
}

/// Returns parts of the work by their samples, then the processor time of both ends.
pub fn shares(profile: &Profile) -> Table {
    let mut table = Table::new([
        Column::text("part", "where"),
        Column::number("samples", "samples"),
        Column::number("share", "share"),
    ]);
    let percent = |share: f64| TableCell::new(format!("{:.1} %", share * 100.0), share);
    for Share { part, samples, share } in &profile.shares {
        table.row([TableCell::text(part.clone()), TableCell::count(*samples), percent(*share)]);
    }
    table.row([TableCell::text("all"), TableCell::count(profile.samples), percent(1.0)]);
    let busy = [
        ("busy: the target, of one core", profile.sample.target_busy),
        ("busy: the client (not sampled), of one core", profile.sample.client_busy),
    ];
    for (who, busy) in busy {
        table.row([
            TableCell::text(who),
            TableCell::new("", ()),
            busy.map_or_else(TableCell::none, percent),
        ]);
    }
    table
}

/// Returns the goals as a table.
pub fn goals_table(goals: &[GoalVerdict]) -> Table {
    let mut table = Table::new([
        Column::text("outcome", "goals"),
        Column::text("part", "part"),
        Column::text("what", "what"),
        Column::number("got", "median (least to most)"),
        Column::text("wanted", "wanted"),
    ]);
    for goal in goals {
        table.row([
            TableCell::text(goal.outcome.text()),
            TableCell::text(goal.part.clone()),
            TableCell::text(goal.what.clone()),
            TableCell::text(goal.got_text()),
            TableCell::text(goal.wanted_text()),
        ]);
    }
    table
}

/// Returns `19 pass, 1 miss, 0 void, 1 not measured`, and whether the run passes.
pub fn counts(goals: &[GoalVerdict]) -> String {
    let count = |outcome: GoalOutcome| {
        let count = goals.iter().filter(|goal| goal.outcome == outcome).count();
        format!("{count} {}", outcome.text())
    };
    let met = if goals::are_met(goals) { "kept" } else { "broken" };
    format!("{} (the rule that {} is {met})", OUTCOMES.map(count).join(", "), goals::RULE)
}
