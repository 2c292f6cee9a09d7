//! What is measured: one combination of size, depth, connections and pattern, on every disk.

use super::{Bench, PatternName};
use crate::device_url::{self, Opened};
use crate::output::Failure;
use control::device_url::{DeviceUrl, LocalOptions};
use load::{Failed, Lane, Measured, Work};
use std::collections::HashMap;

/// One combination.
#[derive(Clone, Copy, Debug)]
pub(super) struct Cell {
    pub(super) pattern: PatternName,
    pub(super) io_bytes: u64,
    pub(super) depth: u16,
    pub(super) connections: u16,
}

/// What one disk came to in all rounds.
#[derive(Clone, Debug)]
pub(super) struct Row {
    pub(super) url: String,
    /// Connections that there were; `None`: the disk is of this machine.
    pub(super) connections: Option<usize>,
    pub(super) measured: Measured,
}

/// The disks that are open, by URL and connections.
#[derive(Debug, Default)]
pub(super) struct Disks {
    open: HashMap<(String, u16), Opened>,
}

impl Disks {
    /// The disk, opened when it is wanted first; `writes`: it will be written to.
    async fn get(&mut self, args: &Bench, url: &str, cell: &Cell) -> Result<&Opened, Failure> {
        let parsed = DeviceUrl::parse(url)?;
        let connections = if parsed.portal().is_some() { cell.connections } else { 1 };
        let key = (url.to_owned(), connections);
        if !self.open.contains_key(&key) {
            let mut options = args.session.options(parsed.portal())?;
            options.connections = connections;
            let writes = args.pattern.iter().any(|name| name.pattern().writes());
            let read_only = parsed.path().is_some() && !writes;
            let local = LocalOptions { read_only, ..LocalOptions::default() };
            let opened = device_url::open(&parsed, &local, &options).await?;
            self.open.insert(key.clone(), opened);
        }
        self.open.get(&key).ok_or_else(|| Failure::new(format!("{url} is not open")))
    }

    /// Logs out everywhere.
    pub(super) async fn close(self) -> Result<(), Failure> {
        for (_, opened) in self.open {
            opened.close().await?;
        }
        Ok(())
    }
}

/// Measures a combination on every disk, which take turns.
pub(super) async fn measure(
    args: &Bench,
    cell: &Cell,
    disks: &mut Disks,
) -> Result<Vec<Row>, Failure> {
    let work = args.work(cell)?;
    let (mut lanes, mut rows) = (Vec::new(), Vec::new());
    for url in &args.urls {
        let opened = disks.get(args, url, cell).await?;
        let connections = match opened {
            Opened::Remote(disk) => Some(disk.unit().initiator().connections()),
            Opened::Local(_) => None,
        };
        lanes.push(Lane { device: opened.shared(), work, target: None });
        rows.push((url.clone(), connections));
    }
    let measured = load::take_turns(lanes, args.rounds).await.map_err(failure)?;
    let rows = rows.into_iter().zip(measured);
    Ok(rows.map(|((url, connections), measured)| Row { url, connections, measured }).collect())
}

/// What kept a disk from being measured.
pub(super) fn failure(failed: Failed) -> Failure {
    match failed {
        Failed::Work(wrong) => Failure::usage(wrong.to_string()),
        Failed::Disk(error) => error.into(),
    }
}

impl Bench {
    /// What a combination asks of each disk.
    fn work(&self, cell: &Cell) -> Result<Work, Failure> {
        let io_bytes = u32::try_from(cell.io_bytes)
            .map_err(|_| Failure::usage("a request has less than 4 GiB"))?;
        let (warm_up, time) = self.times();
        Ok(Work {
            pattern: cell.pattern.pattern(),
            io_bytes,
            range_bytes: self.size,
            depth: cell.depth.into(),
            pace: self.pace(),
            warm_up,
            time,
            seed: self.seed,
        })
    }
}
