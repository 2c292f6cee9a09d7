//! The results in the form of the paper and in full.

use super::access::{DiskAccess, FileLocation, Task, TaskResult};
use super::files::Disk;
use super::paper::{RECORDS, Record};
use crate::peers::nfs::NfsServer;
use anyhow::{Context, Result};
use lunar_load::report::{
    Axis, AxisScale, AxisUnit, Column, Plot, Section, Series, Table, TableCell,
};
use lunar_load::{Latency, Spread};

/// A kB as IOzone counts it.
const KILOBYTE: f64 = 1024.0;
const LOCATIONS: [FileLocation; 3] = [FileLocation::Iscsi, FileLocation::Local, FileLocation::Nfs];

/// Several paths that take turns, used by one client.
#[derive(Debug)]
pub(super) struct Group {
    pub(super) key: &'static str,
    pub(super) title: String,
    pub(super) prose: Vec<String>,
    pub(super) warnings: Vec<String>,
    pub(super) accesses: Vec<DiskAccess>,
    /// Server and file of the NFS access.
    pub(super) nfs: Option<NfsServer>,
    pub(super) nfs_file: Option<Disk>,
}

/// Results of one path with one record size.
#[derive(Clone, Debug)]
pub(super) struct Figures {
    pub(super) location: FileLocation,
    pub(super) writes: bool,
    pub(super) record_bytes: u64,
    pub(super) bytes_per_second: Spread,
    /// Percentage of the local file in each round; `None`: there is no local access, or this is it.
    pub(super) percent_of_local: Option<Spread>,
    /// Latency over all rounds.
    pub(super) latency: Latency,
}

impl Figures {
    /// True for reads, or writes, of this location.
    fn is_of(&self, location: FileLocation, writes: bool) -> bool {
        self.location == location && self.writes == writes
    }
}

/// Title and results of a group.
pub(super) type GroupResults = (String, Vec<Figures>);

impl Group {
    pub(super) fn new(key: &'static str, title: &str) -> Self {
        Self {
            key,
            title: title.to_owned(),
            prose: Vec::new(),
            warnings: Vec::new(),
            accesses: Vec::new(),
            nfs: None,
            nfs_file: None,
        }
    }

    /// Measures all records, reading and writing, in rounds; within a round the accesses take
    /// turns.
    pub(super) async fn measure(
        &self,
        records: &[u64],
        rounds: u16,
        seed: u64,
    ) -> Result<Vec<Figures>> {
        let mut all = Vec::new();
        let mut number = seed;
        for record_bytes in records {
            for writes in [false, true] {
                let mut passes: Vec<Vec<(u64, TaskResult)>> = vec![Vec::new(); self.accesses.len()];
                for _ in 0..rounds {
                    number = number.wrapping_add(1);
                    for (access, passes) in self.accesses.iter().zip(&mut passes) {
                        let size_bytes = size_of(access)?;
                        let task = Task::new(size_bytes, *record_bytes, writes, number);
                        passes.push((task.bytes(), access.pass(&task).await?));
                    }
                }
                all.extend(self.figures(*record_bytes, writes, &passes));
            }
        }
        Ok(all)
    }

    fn figures(
        &self,
        record_bytes: u64,
        writes: bool,
        passes: &[Vec<(u64, TaskResult)>],
    ) -> Vec<Figures> {
        let rate = |(bytes, pass): &(u64, TaskResult)| {
            *bytes as f64 / pass.time.as_secs_f64().max(f64::MIN_POSITIVE)
        };
        let local = self.accesses.iter().position(|access| access.location == FileLocation::Local);
        let local = local.map(|at| &passes[at]);
        let both = self.accesses.iter().zip(passes);
        let figures = both.map(|(access, passes)| {
            let of_local = local.filter(|_| access.location != FileLocation::Local).map(|local| {
                let pairs = passes.iter().zip(local);
                Spread::of(pairs.map(|(one, local)| rate(one) / rate(local) * 100.0))
            });
            let mut latency = Latency::default();
            passes.iter().for_each(|(_, pass)| latency.add(&pass.latency));
            Figures {
                location: access.location,
                writes,
                record_bytes,
                bytes_per_second: Spread::of(passes.iter().map(rate)),
                percent_of_local: of_local,
                latency,
            }
        });
        figures.collect()
    }

    /// The section of the report; `tcp` is the throughput of raw TCP in bytes per second.
    pub(super) fn section(&self, figures: &[Figures], tcp: f64) -> Section {
        let mut section = Section::new(self.key, self.title.clone());
        section.prose.clone_from(&self.prose);
        section.warnings.clone_from(&self.warnings);
        let mut table = Table::new([
            Column::text("location", "location"),
            Column::text("direction", ""),
            Column::number("record_bytes", "record"),
            Column::number("bytes_per_second", "MB/s"),
            Column::number("kb_per_second", "kB/s"),
            Column::number("percent_of_local", "% of local"),
            Column::number("p50_us", "p50"),
            Column::number("p99_us", "p99"),
        ]);
        for one in figures {
            let time = |percent| TableCell::time(one.latency.percentile(percent));
            let of_local = one.percent_of_local.map(|of| TableCell::spread(of, 1.0, 0));
            table.row([
                TableCell::text(one.location.name()),
                TableCell::text(direction(one.writes)),
                TableCell::size(one.record_bytes),
                TableCell::spread(one.bytes_per_second, 1e6, 0),
                TableCell::number(one.bytes_per_second.median / KILOBYTE, 0),
                of_local.unwrap_or_else(TableCell::none),
                time(50.0),
                time(99.0),
            ]);
        }
        if !table.is_empty() {
            section.tables.push(table);
        }
        section.plots = plots(figures, tcp);
        section
    }
}

fn size_of(access: &DiskAccess) -> Result<u64> {
    let data = std::fs::metadata(&access.file);
    let data = data.with_context(|| format!("cannot access {}", access.file.display()))?;
    Ok(data.len())
}

const fn direction(writes: bool) -> &'static str {
    if writes { "write" } else { "read" }
}

/// Throughput and latency by record size, for reads and writes.
fn plots(figures: &[Figures], tcp: f64) -> Vec<Plot> {
    let mut plots = Vec::new();
    let ceiling = figures.iter().map(|one| (one.record_bytes as f64, tcp)).collect();
    let ceiling = Series { label: "raw TCP".to_owned(), points: ceiling, ..Series::default() };
    for writes in [false, true] {
        let series = |y: fn(&Figures) -> f64| {
            LOCATIONS.map(|location| {
                let of = figures.iter().filter(|one| one.is_of(location, writes));
                let points = of.map(|one| (one.record_bytes as f64, y(one)));
                Series {
                    label: location.name().to_owned(),
                    points: points.collect(),
                    ..Series::default()
                }
            })
        };
        let name = direction(writes);
        plots.push(Plot {
            title: format!("Random {name}"),
            x: Axis::new("record", AxisUnit::Bytes, AxisScale::Log2),
            y: Axis::new("rate", AxisUnit::BytesPerSecond, AxisScale::Linear),
            series: some(
                series(|one| one.bytes_per_second.median).into_iter().chain([ceiling.clone()]),
            ),
        });
        plots.push(Plot {
            title: format!("Response time, random {name}: median"),
            x: Axis::new("record", AxisUnit::Bytes, AxisScale::Log2),
            y: Axis::new("delay", AxisUnit::Micros, AxisScale::Log10),
            series: some(series(|one| one.latency.percentile(50.0).as_secs_f64() * 1e6)),
        });
    }
    plots.into_iter().filter(Plot::has_line).collect()
}

/// Series that have points.
fn some(series: impl IntoIterator<Item = Series>) -> Vec<Series> {
    series.into_iter().filter(|series| !series.points.is_empty()).collect()
}

/// The table of the paper, and the new results in the same form: those of the first group with all
/// three paths, else of the first group with iSCSI and local.
pub(super) fn comparison_with_paper(groups: &[GroupResults]) -> Section {
    let has = |group: &&GroupResults, location| group.1.iter().any(|one| one.location == location);
    let both =
        |group: &&GroupResults| has(group, FileLocation::Iscsi) && has(group, FileLocation::Local);
    let all = |group: &&GroupResults| both(group) && has(group, FileLocation::Nfs);
    let none = Vec::new();
    let group = groups.iter().find(all).or_else(|| groups.iter().find(both));
    let figures = group.map_or(&none, |(_, figures)| figures);
    let mut section = Section::new("paper", "Comparison with the paper");
    section.prose.extend(group.map(|(title, _)| format!("Figures from: {title}.")));
    section.prose.push(
        "kB/s, 1 kB = 1024 bytes; columns are record sizes in kB; the source is in brackets. In \
         the paper (CESNET technical report 5/2002): two machines with a Pentium III 500, gigabit \
         Ethernet, one SCSI disk, 384 MB of memory for a file of 1 GB, IOzone. Here: one machine, \
         loopback, a file that fits into memory. Absolute rates are not comparable; percentages \
         of the local rate are, with the caveat that a faster local file makes every network look \
         slower."
            .to_owned(),
    );
    section.prose.push(
        "Writes are equally durable with all access methods: they may stay in the cache of the \
         server, and one flush at the end of each pass (fdatasync, SYNCHRONIZE CACHE, COMMIT) is \
         included in its time."
            .to_owned(),
    );
    let shown: Vec<&Record> = RECORDS
        .iter()
        .filter(|record| figures.iter().any(|one| one.record_bytes == record.bytes()))
        .collect();
    let columns = || {
        let sizes = shown.iter().map(|of| Column::number(of.key, of.kilobytes.to_string()));
        std::iter::once(Column::text("row", "")).chain(sizes)
    };
    let mut rates = Table::new(columns()).named("rates", "kB/s");
    let mut percents = Table::new(columns()).named("percent_of_local", "Percent of local");
    for writes in [false, true] {
        for location in LOCATIONS {
            let of = |record: &Record| {
                let found = |one: &&Figures| {
                    one.is_of(location, writes) && one.record_bytes == record.bytes()
                };
                figures.iter().find(found)
            };
            let name = |whose| {
                TableCell::text(format!("{} {} ({whose})", location.name(), direction(writes)))
            };
            let row = |name, cell: &dyn Fn(&Record) -> TableCell| {
                std::iter::once(name).chain(shown.iter().map(|of| cell(of))).collect::<Vec<_>>()
            };
            let rate = |one: &Figures| TableCell::number(one.bytes_per_second.median / KILOBYTE, 0);
            rates.row(row(name("here"), &|at| of(at).map_or_else(TableCell::none, rate)));
            let paper =
                |at: &Record| TableCell::number(at.kilobytes_per_second(location, writes), 0);
            rates.row(row(name("paper"), &paper));
            if location == FileLocation::Local {
                continue;
            }
            let percent = |one: &Figures| Some(TableCell::number(one.percent_of_local?.median, 0));
            let percent = |at: &Record| of(at).and_then(percent).unwrap_or_else(TableCell::none);
            percents.row(row(name("here"), &percent));
            percents
                .row(row(name("paper"), &|at| TableCell::number(at.percent(location, writes), 0)));
        }
    }
    section.tables = vec![rates, percents];
    section.plots = [false, true].map(|writes| percent_plot(figures, &shown, writes)).into();
    section.plots.retain(Plot::has_line);
    section
}

fn percent_plot(figures: &[Figures], shown: &[&Record], writes: bool) -> Plot {
    let mut series = Vec::new();
    for location in [FileLocation::Iscsi, FileLocation::Nfs] {
        let ours = figures.iter().filter(|one| one.is_of(location, writes));
        let ours =
            ours.filter_map(|one| Some((one.record_bytes as f64, one.percent_of_local?.median)));
        let paper = shown.iter().map(|of| (of.bytes() as f64, of.percent(location, writes)));
        series.push(Series {
            label: format!("{}, here", location.name()),
            points: ours.collect(),
            ..Series::default()
        });
        series.push(Series {
            label: format!("{}, paper", location.name()),
            points: paper.collect(),
            ..Series::default()
        });
    }
    Plot {
        title: format!("Random {}: percent of local", direction(writes)),
        x: Axis::new("record", AxisUnit::Bytes, AxisScale::Log2),
        y: Axis::new("of local", AxisUnit::Percent, AxisScale::Linear),
        series: some(series),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn group(title: &str, locations: &[FileLocation]) -> GroupResults {
        let figures = locations.iter().map(|location| Figures {
            location: *location,
            writes: false,
            record_bytes: RECORDS[0].bytes(),
            bytes_per_second: Spread::of([1e6]),
            percent_of_local: (*location != FileLocation::Local).then(|| Spread::of([50.0])),
            latency: Latency::default(),
        });
        (title.to_owned(), figures.collect())
    }

    /// Goal: if only this program's client has an NFS (`--nfs-directory`), its figures, including
    /// NFS, are shown beside the paper's; else those of the first group.
    #[test]
    fn figures_of_the_paper_cover_all_access_methods() {
        let tools = group("tools", &[FileLocation::Local, FileLocation::Iscsi]);
        let own = group("own", &[FileLocation::Local, FileLocation::Iscsi, FileLocation::Nfs]);
        let section = comparison_with_paper(&[tools.clone(), own]).json();
        let rows = section["rows"].as_array().unwrap();
        let nfs = rows.iter().find(|row| row["row"] == "NFS read (here)").unwrap();
        assert!(nfs[RECORDS[0].key].is_number(), "{nfs}");
        assert!(section["prose"][0].as_str().unwrap().contains("own"), "{section}");
        let section = comparison_with_paper(&[tools.clone(), tools]).json();
        assert!(section["prose"][0].as_str().unwrap().contains("tools"), "{section}");
    }
}
