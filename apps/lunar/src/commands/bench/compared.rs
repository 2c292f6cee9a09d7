//! The disks of a run: their names in plots, and what a completed write means on each.

use super::BenchCommand;
use super::cells::Disk;
use crate::output::Failure;
use lunar_control::device_url::DeviceUrl;
use lunar_load::report::{Column, Section, Table, TableCell};

/// State of the data of a write that has completed.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) enum WriteState {
    /// On stable storage, by the options of this run.
    Durable,
    /// On stable storage, as the LUN reports: it has no write cache.
    WriteThrough,
    /// Perhaps in the write cache of the LUN.
    TargetCache,
    /// Perhaps in the page cache of this machine.
    PageCache,
    /// In the memory of this process.
    Memory,
}

impl WriteState {
    const fn text(self) -> &'static str {
        match self {
            Self::Durable => "durable when they complete (--durable)",
            Self::WriteThrough => "durable when they complete (the LUN reports no write cache)",
            Self::TargetCache => "perhaps in the write cache of the LUN",
            Self::PageCache => "perhaps in the page cache of this machine",
            Self::Memory => "in the memory of this process",
        }
    }

    const fn reaches_medium(self) -> bool {
        matches!(self, Self::Durable | Self::WriteThrough)
    }
}

/// One disk.
#[derive(Clone, Debug)]
pub(super) struct ComparedDisk {
    pub(super) url: String,
    /// Short name, unique in the run.
    pub(super) name: String,
    access: &'static str,
    writes: WriteState,
}

/// The disks of a run, in the order of the command line.
#[derive(Clone, Debug, Default)]
pub(super) struct ComparedDisks(pub(super) Vec<ComparedDisk>);

impl ComparedDisks {
    /// Adds an open disk.
    pub(super) fn add(&mut self, url: &str, disk: &Disk, durable: bool) -> Result<(), Failure> {
        let parsed = DeviceUrl::parse(url)?;
        let (access, cached) = match (&parsed, disk) {
            (_, Disk::Remote(remote)) if remote.disk.has_write_cache() => {
                ("LUN, over iSCSI", WriteState::TargetCache)
            }
            (_, Disk::Remote(_)) => ("LUN, over iSCSI", WriteState::WriteThrough),
            (DeviceUrl::Memory { .. }, _) => ("memory of this process", WriteState::Memory),
            (DeviceUrl::Pool(_), _) => ("pool, in this process", WriteState::PageCache),
            _ => ("file or block device of this machine", WriteState::PageCache),
        };
        let writes = match cached {
            WriteState::Memory | WriteState::WriteThrough => cached,
            _ if durable => WriteState::Durable,
            _ => cached,
        };
        let short = short_name(url, &parsed);
        let is_taken = self.0.iter().any(|disk| disk.name == short);
        let name = if is_taken { format!("{short} #{}", self.0.len() + 1) } else { short };
        self.0.push(ComparedDisk { url: url.to_owned(), name, access, writes });
        Ok(())
    }

    /// Returns the name of the disk with this position on the command line.
    pub(super) fn name(&self, position: usize) -> String {
        self.0.get(position).map(|disk| disk.name.clone()).unwrap_or_default()
    }

    /// A warning if writes are measured that are durable on some of the disks only.
    pub(super) fn warning(&self, args: &BenchCommand) -> Option<String> {
        let writes = args.pattern.iter().any(|name| name.pattern().writes());
        let names = |durable: bool| {
            let some = self.0.iter().filter(|disk| disk.writes.reaches_medium() == durable);
            some.map(|disk| disk.name.as_str()).collect::<Vec<_>>().join(", ")
        };
        let (durable, others) = (names(true), names(false));
        if !writes || durable.is_empty() || others.is_empty() {
            return None;
        }
        let remedy = match args.durable {
            true => "leave memory out",
            false => "--durable makes all writes durable, except those to memory",
        };
        Some(format!(
            "writes are not compared like with like: those to {durable} are durable when they \
             complete, those to {others} are not; {remedy}"
        ))
    }

    /// The first section of the report.
    pub(super) fn section(&self, args: &BenchCommand) -> Section {
        let mut section = Section::new("compared", "What was compared");
        let mut table = Table::new([
            Column::text("name", "name"),
            Column::text("url", "disk"),
            Column::text("access", "access"),
            Column::text("writes", "data of completed writes"),
        ]);
        for disk in &self.0 {
            let texts = [&disk.name, &disk.url, disk.access, disk.writes.text()];
            table.row(texts.map(TableCell::text));
        }
        section.tables.push(table);
        section.warnings.extend(self.warning(args));
        section
    }
}

/// Returns a short name of a disk: the last part of its path or of the name of its target.
fn short_name(url: &str, parsed: &DeviceUrl) -> String {
    match parsed {
        DeviceUrl::Iscsi(_) => {
            let mut parts = url.rsplit('/');
            let lun = parts.next().unwrap_or_default();
            let target = parts.next().unwrap_or_default();
            format!("{}/{lun}", target.rsplit(':').next().unwrap_or_default())
        }
        DeviceUrl::File(path) => {
            path.file_name().map_or_else(|| url.to_owned(), |name| name.display().to_string())
        }
        _ => url.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_short() {
        for (url, name) in [
            ("iscsi://127.0.0.1:3260/iqn.2026-11.org.lunarsan:demo/0", "demo/0"),
            ("iscsi://a/iqn.2026-11.org.example/3", "iqn.2026-11.org.example/3"),
            ("file:/srv/disks/vm.img", "vm.img"),
            ("mem:8M", "mem:8M"),
        ] {
            assert_eq!(short_name(url, &DeviceUrl::parse(url).unwrap()), name);
        }
    }
}
