//! Finds the figures in which competitors equal or beat Lunar.

use crate::bench::target::results::{BenchRun, CellResult, Sample};
use lunar_load::Spread;

/// Ratio up to which a competitor is close.
pub const CLOSE: f64 = 1.1;

/// A cell and figure in which a competitor is ahead or close.
#[derive(Clone, Debug, PartialEq)]
pub struct CloseCompetitor {
    pub cell: String,
    pub ours: String,
    pub theirs: String,
    pub what: &'static str,
    /// Ratio by which the figure of Lunar is better; below 1 the competitor is better.
    pub ratio: Spread,
    /// True for a ratio of figures of the same round; otherwise the ratio is that of medians of two
    /// cells.
    pub is_paired: bool,
}

/// A figure, and whether a higher value is better.
type Figure = (&'static str, fn(&Sample) -> Option<f64>, bool);

const FIGURES: [Figure; 5] = [
    ("IOPS", |sample| Some(sample.iops), true),
    ("CPU of the target", |sample| sample.target_cpu_us, false),
    ("p50", |sample| sample.p50_us, false),
    ("p99", |sample| sample.p99_us, false),
    ("p99.9", |sample| sample.p99_9_us, false),
];

/// Compares setups of Lunar with those of tgt with the same client, in the same cell, and our
/// client with libiscsi's on Lunar, each in a cell of its own. Void cells are left out.
pub fn close_figures(run: &BenchRun) -> Vec<CloseCompetitor> {
    let sound = || run.cells.iter().filter(|cell| !cell.is_void);
    let mut found = Vec::new();
    for cell in sound() {
        for ours in cell.setups.iter().filter(|setup| setup.starts_with("lunar")) {
            for competitor in ["tgt", "tgt aio"] {
                let theirs = ours.replacen("lunar", competitor, 1);
                if cell.setups.contains(&theirs) {
                    found.extend(
                        FIGURES.iter().filter_map(|figure| paired(cell, ours, &theirs, figure)),
                    );
                }
            }
        }
    }
    for theirs in sound().filter(|cell| cell.setups.iter().any(|setup| setup == BY_LIBISCSI)) {
        let like = |cell: &&CellResult| {
            (&cell.store, &cell.pattern, cell.io_bytes, cell.depth, cell.is_shared)
                == (&theirs.store, &theirs.pattern, theirs.io_bytes, theirs.depth, theirs.is_shared)
                && cell.setups.iter().any(|setup| setup == "lunar")
        };
        if let Some(ours) = sound().find(like) {
            found.extend(FIGURES.iter().filter_map(|figure| clients(ours, theirs, figure)));
        }
    }
    found
}

const BY_LIBISCSI: &str = "lunar by libiscsi";

fn paired(cell: &CellResult, ours: &str, theirs: &str, figure: &Figure) -> Option<CloseCompetitor> {
    let (what, of, more) = *figure;
    let ratio = cell.figures(|round| {
        let (one, other) = (of(round.setups.get(ours)?)?, of(round.setups.get(theirs)?)?);
        better(one, other, more)
    })?;
    let (cell, ours, theirs) = (cell.key.clone(), ours.to_owned(), theirs.to_owned());
    (ratio.median < CLOSE).then_some(CloseCompetitor {
        cell,
        ours,
        theirs,
        what,
        ratio,
        is_paired: true,
    })
}

/// Compares two clients of Lunar by their medians, since they were not measured alternately.
fn clients(ours: &CellResult, theirs: &CellResult, figure: &Figure) -> Option<CloseCompetitor> {
    let (what, of, more) = *figure;
    let (one, other) = (ours.setup("lunar", of)?.median, theirs.setup(BY_LIBISCSI, of)?.median);
    let ratio = better(one, other, more)?;
    (ratio < CLOSE).then(|| CloseCompetitor {
        cell: theirs.key.clone(),
        ours: "lunar".to_owned(),
        theirs: BY_LIBISCSI.to_owned(),
        what,
        ratio: Spread::of([ratio]),
        is_paired: false,
    })
}

fn better(ours: f64, theirs: f64, more: bool) -> Option<f64> {
    let (above, below) = if more { (ours, theirs) } else { (theirs, ours) };
    (below > 0.0).then(|| above / below)
}

#[cfg(test)]
pub mod tests {
    use super::*;
    use crate::bench::target::results::{RawTcpFigures, Round};

    /// Creates a run of two cells: in one tgt is close in IOPS and ahead in p99, in the other
    /// libiscsi leads as a client.
    pub fn run() -> BenchRun {
        let sample = |iops, p99| Sample {
            iops,
            bytes_per_second: iops * 4096.0,
            p50_us: Some(10.0),
            p99_us: Some(p99),
            p99_9_us: Some(2.0 * p99),
            target_cpu_us: Some(1e6 / iops),
            target_busy: Some(1.0),
            client_busy: Some(0.5),
        };
        let raw_tcp = RawTcpFigures {
            ping_us: 50.0,
            exchanges_per_second: 4e5,
            stream_bytes_per_second: 3e9,
            core_share: 0.98,
        };
        let cell = |key: &str, setups: &[(&str, Sample)]| CellResult {
            key: key.to_owned(),
            store: "tmpfs".to_owned(),
            pattern: "rand-read".to_owned(),
            io_bytes: 4096,
            depth: 32,
            setups: setups.iter().map(|(name, _)| (*name).to_owned()).collect(),
            probe: "pipelined exchange".to_owned(),
            rounds: vec![Round {
                raw_tcp,
                setups: setups
                    .iter()
                    .map(|(name, one)| ((*name).to_owned(), one.clone()))
                    .collect(),
            }],
            kept: vec![0],
            ..CellResult::default()
        };
        let slow = Sample { target_cpu_us: Some(100.0), ..sample(100_000.0, 30.0) };
        let pair = [("lunar", sample(105_000.0, 40.0)), ("tgt", slow.clone())];
        let theirs = [("lunar by libiscsi", sample(210_000.0, 20.0)), ("tgt by libiscsi", slow)];
        BenchRun {
            facts: vec![("processor".to_owned(), "one".to_owned())],
            rounds: 1,
            seconds: 1.0,
            cells: vec![
                cell("rand-read-4Ki-32-tmpfs", &pair),
                cell("rand-read-4Ki-32-tmpfs-libiscsi", &theirs),
            ],
            ..BenchRun::default()
        }
    }

    /// Goal: cells in which a competitor is close or ahead are reported, with the figure; other
    /// cells and void cells are not.
    #[test]
    fn cells_with_close_competitors_are_reported() {
        let mut run = run();
        let competitors: Vec<_> = close_figures(&run);
        let competitors: Vec<_> =
            competitors.iter().map(|one| (one.theirs.as_str(), one.what, one.is_paired)).collect();
        assert_eq!(
            competitors,
            [
                ("tgt", "IOPS", true),
                ("tgt", "p50", true),
                ("tgt", "p99", true),
                ("tgt", "p99.9", true),
                ("tgt by libiscsi", "p50", true),
                ("lunar by libiscsi", "IOPS", false),
                ("lunar by libiscsi", "CPU of the target", false),
                ("lunar by libiscsi", "p50", false),
                ("lunar by libiscsi", "p99", false),
                ("lunar by libiscsi", "p99.9", false),
            ]
        );
        run.cells[0].is_void = true;
        assert_eq!(close_figures(&run).len(), 1);
    }
}
