//! Reasons why a goal is missed: the best result that the figures of the run allow.

use crate::bench::goal::GoalVerdict;
use crate::bench::target::cells::{LUNAR, NULL};
use crate::bench::target::goals::{CPU_BY_NULL, FOUR_BY_ONE};
use crate::bench::target::results::{BenchRun, CellResult, Profile, Sample};

/// Part of a profile that a null target does not have.
const READING: &str = "kernel: files, reading";
/// Cell with the same requests, from memory.
const FROM_MEMORY: &str = "rand-read-4Ki-32-mem-null";

/// Returns the reason for a missed goal; `None`: the run shows none beyond its figures.
pub fn of(goal: &GoalVerdict, run: &BenchRun) -> Option<String> {
    let cell = run.cells.iter().find(|cell| cell.key == goal.from)?;
    match &goal.what {
        what if what == CPU_BY_NULL => cpu_by_null(goal, cell, run),
        what if what == FOUR_BY_ONE => four_by_one(cell),
        _ => None,
    }
}

/// Computes the least ratio that a target can reach if it reads by a system call: the null target
/// reads no file, so the cost of Lunar's reading is added to the null target's total.
fn cpu_by_null(goal: &GoalVerdict, cell: &CellResult, run: &BenchRun) -> Option<String> {
    let (ours, null) = (cpu(cell, &LUNAR.name())?, cpu(cell, &NULL.name())?);
    let profile = run.profiles.iter().find(|one| one.cell == cell.key && is_ours(one))?;
    let share = profile.shares.iter().find(|share| share.part == READING)?.share;
    let reading = share * ours;
    let ratio_min = (null + reading) / null;
    let so = if ratio_min > goal.wanted {
        format!(
            ", so {} is out of reach for a target that reads by one system call per request",
            goal.wanted
        )
    } else {
        String::new()
    };
    let mut text = format!(
        "A read takes {ours:.2} us of the target's core; {:.0} % of it, {reading:.2} us, are the \
         system call that reads the file, which the null target ({null:.2} us) lacks. These two \
         alone are {ratio_min:.2} times the null target's cost{so}; the rest of Lunar (SCSI, the \
         ranges that keep blocks whole, statistics) takes {:.2} us.",
        share * 100.0,
        ours - null - reading,
    );
    let memory = run.cells.iter().find(|cell| cell.key == FROM_MEMORY);
    let ratio = memory.and_then(|cell| {
        cell.figures(|round| {
            let cpu = |name: &str| round.setups.get(name)?.target_cpu_us;
            Some(cpu(&LUNAR.name())? / cpu(&NULL.name())?)
        })
    });
    if let Some(ratio) = ratio {
        text += &format!(
            " From memory, without a file, Lunar takes {} times the null target's \
             ({FROM_MEMORY}).",
            ratio.text(2)
        );
    }
    Some(text)
}

/// Explains that more connections cannot add throughput if one already fills the cores.
fn four_by_one(cell: &CellResult) -> Option<String> {
    let (one, four) = (LUNAR.name(), LUNAR.connections(4).name());
    let busy = |name: &str, of: fn(&Sample) -> Option<f64>| Some(cell.setup(name, of)?.median);
    let target = busy(&one, |sample| sample.target_busy)?;
    let client = busy(&one, |sample| sample.client_busy)?;
    let (one_cpu, four_cpu) = (cpu(cell, &one)?, cpu(cell, &four)?);
    let depth = u32::from(cell.depth);
    Some(format!(
        "With one connection the target is busy for {:.0} % of a core and the client for {:.0} %, \
         and there are two cores: at the same cost of a request they have room for {:.2} times as \
         many, however many connections carry them. Four connections share the depth, {} requests \
         each, so fewer of them come with one wake-up and one system call: {four_cpu:.2} us of the \
         target for each instead of {one_cpu:.2} us, and two threads of the target wait for the \
         same cores as the client's.",
        target * 100.0,
        client * 100.0,
        2.0 / (target + client),
        depth / 4,
    ))
}

fn cpu(cell: &CellResult, setup: &str) -> Option<f64> {
    Some(cell.setup(setup, |sample| sample.target_cpu_us)?.median)
}

fn is_ours(profile: &Profile) -> bool {
    profile.setup == LUNAR.name()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bench::target::goals;
    use crate::bench::target::results::{Round, Share};

    fn cell(key: &str, setups: &[(&str, f64)]) -> CellResult {
        let sample = |cpu| Sample {
            iops: 1000.0,
            target_cpu_us: Some(cpu),
            target_busy: Some(0.9),
            client_busy: Some(0.7),
            ..Sample::default()
        };
        let setups = setups.iter().map(|(name, cpu)| ((*name).to_owned(), sample(*cpu))).collect();
        let rounds = vec![Round { setups, ..Round::default() }];
        CellResult {
            key: key.to_owned(),
            depth: 32,
            rounds,
            kept: vec![0],
            ..CellResult::default()
        }
    }

    fn run() -> BenchRun {
        let share = Share { part: READING.to_owned(), samples: 400, share: 0.4 };
        BenchRun {
            cells: vec![
                cell("rand-read-4Ki-32-tmpfs", &[("lunar", 2.0), ("null target", 1.0)]),
                cell("rand-read-4Ki-32-tmpfs-two-cores", &[("lunar", 2.0), (FOUR, 3.0)]),
                cell(FROM_MEMORY, &[("lunar", 1.2), ("null target", 1.0)]),
            ],
            profiles: vec![Profile {
                cell: "rand-read-4Ki-32-tmpfs".to_owned(),
                setup: "lunar".to_owned(),
                shares: vec![share],
                ..Profile::default()
            }],
            ..BenchRun::default()
        }
    }

    const FOUR: &str = "lunar, 4 connections";

    fn reason(what: &str, run: &BenchRun) -> Option<String> {
        let goals = goals::verdicts(run);
        of(goals.iter().find(|goal| goal.what == what).unwrap(), run)
    }

    /// Goal: the part that the null target lacks is reported with the ratio that remains possible,
    /// from the figures of the run; without a profile there is no reason.
    #[test]
    fn a_file_is_more_than_a_null_target() {
        let text = reason(CPU_BY_NULL, &run()).unwrap();
        for part in ["2.00 us", "40 % of it, 0.80 us", "(1.00 us)", "1.80 times", "0.20 us."] {
            assert!(text.contains(part), "no {part} in {text}");
        }
        assert!(text.contains("so 1.4 is out of reach"), "{text}");
        assert!(text.contains("takes 1.20 (1.20 to 1.20) times"), "{text}");
        let mut cheap = run();
        cheap.profiles[0].shares[0].share = 0.1;
        let cheap = reason(CPU_BY_NULL, &cheap).unwrap();
        assert!(cheap.contains("1.20 times the null target's cost; the rest"), "{cheap}");
        let without = BenchRun { profiles: Vec::new(), ..run() };
        assert_eq!(reason(CPU_BY_NULL, &without), None);
        let mut short = run();
        short.cells.pop();
        assert!(!reason(CPU_BY_NULL, &short).unwrap().contains("From memory"));
    }

    /// Goal: if one connection fills the cores, the text states their remaining capacity.
    #[test]
    fn cores_have_an_end() {
        let text = reason(FOUR_BY_ONE, &run()).unwrap();
        for part in ["90 % of a core", "70 %", "1.25 times", "8 requests each", "3.00 us"] {
            assert!(text.contains(part), "no {part} in {text}");
        }
        assert_eq!(reason("1 MiB reads, of raw TCP's stream", &run()), None);
    }
}
