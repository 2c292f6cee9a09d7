//! A matrix of hosts and storages with `lunar switch` between them, on both paths: each host writes
//! to its range of a virtual LUN, and reads the range back; then the blocks are read from the
//! storage without the switch.

mod document;
mod hosts;
mod layout;
mod storages;

pub use hosts::HostPeer;
pub use storages::StoragePeer;

use crate::peers::kernel_initiator::{KernelRequest, use_portals};
use crate::peers::lunar::Lunar;
use crate::system::scratch::Scratch;
use anyhow::{Context, Result, ensure};
use clap::ValueEnum;
use document::PeerVersions;
use hosts::{HostPrograms, compare};
use layout::{FAST, MIB, PATHS, RANGE_BYTES};
use std::path::PathBuf;
use std::time::Instant;
use storages::{SwitchedStorage, VIRTUAL};

/// Maximum number of runs of a host on the fast path: on a busy machine, one may end before the
/// switch has logged in for it.
const RUNS_MAX: usize = 3;

/// Hosts and storages that are paired, and where the result goes.
#[derive(Clone, Debug, Default, clap::Args)]
pub struct SwitchPeers {
    /// Directory created by lab/kernel/fetch, for the kernel and LIO
    pub folder: Option<String>,
    /// Storages [default: all]
    #[arg(long, value_delimiter = ',')]
    pub storage: Vec<StoragePeer>,
    /// Hosts [default: all]
    #[arg(long, value_delimiter = ',')]
    pub host: Vec<HostPeer>,
    /// Seed of all data
    #[arg(long, default_value_t = 1)]
    pub seed: u64,
    /// Write docs/switch-peers.md, or another file
    #[arg(long, num_args = 0..=1, default_missing_value = document::PATH)]
    pub markdown: Option<PathBuf>,
}

/// Result of a host on a path to a storage.
pub struct MatrixCell {
    /// The storage.
    pub storage: StoragePeer,
    /// Position in [`PATHS`].
    path: usize,
    /// The host.
    pub host: HostPeer,
    seed: u64,
    /// Commands that the switch relayed meanwhile.
    pub relayed: u64,
    /// The first failure.
    pub error: Option<String>,
}

impl MatrixCell {
    /// True on the fast path.
    pub fn is_fast(&self) -> bool {
        self.path == FAST
    }

    fn name(&self) -> String {
        format!("{} -> {} switch -> {}", self.host, PATHS[self.path], self.storage)
    }

    /// Checks a result, and that the fast path relayed commands and the slow path did not.
    fn record_result(&mut self, result: Result<()>) {
        let result = result.and_then(|()| {
            let relayed = self.relayed;
            ensure!((relayed > 0) == self.is_fast(), "{relayed} commands were relayed");
            Ok(())
        });
        if let (Err(error), None) = (result, &self.error) {
            self.error = Some(format!("{error:#}"));
        }
    }
}

/// Results of a run.
pub struct SwitchMatrix {
    /// Results of all pairs of hosts and storages, on each path.
    pub cells: Vec<MatrixCell>,
    /// Failures that belong to no cell.
    pub errors: Vec<String>,
    versions: PeerVersions,
}

impl SwitchPeers {
    /// Runs the matrix, prints each result and the table; returns whether all passed.
    ///
    /// # Errors
    /// A server does not start or stop, or the document cannot be written.
    pub fn main(&self) -> Result<bool> {
        let matrix = self.run()?;
        println!("\n{}", document::table_of(&matrix));
        for error in &matrix.errors {
            println!("switch-peers: FAIL: {error}");
        }
        if let Some(path) = &self.markdown {
            std::fs::write(path, document::chapter(&matrix))?;
        }
        let failed = matrix.cells.iter().filter(|cell| cell.error.is_some()).count();
        println!("switch-peers: {} passed, {failed} failed", matrix.cells.len() - failed);
        Ok(failed == 0 && matrix.errors.is_empty())
    }

    /// Runs the matrix, and prints each result.
    ///
    /// # Errors
    /// A server does not start or stop.
    pub fn run(&self) -> Result<SwitchMatrix> {
        let (peers, hosts) = (all_or(&self.storage), all_or(&self.host));
        let programs = HostPrograms::find(&hosts)?;
        let start = |peer: &StoragePeer| SwitchedStorage::start(*peer, self.folder.as_deref());
        let mut storages = peers.iter().map(start).collect::<Result<Vec<_>>>()?;
        let mut matrix =
            SwitchMatrix { cells: Vec::new(), errors: Vec::new(), versions: PeerVersions::find() };
        for storage in &storages {
            for path in 0..PATHS.len() {
                for host in hosts.iter().filter(|host| **host != HostPeer::Kernel) {
                    matrix.cells.push(self.run_host(&programs, storage, path, *host)?);
                }
            }
        }
        if hosts.contains(&HostPeer::Kernel) {
            self.run_kernel(&storages, &mut matrix)?;
        }
        check_storages(&storages, &mut matrix.cells);
        for storage in &mut storages {
            let checked = storage.check_logs();
            let name = |error| format!("{}: {error:#}", storage.peer);
            matrix.errors.extend(checked.err().map(name));
            matrix.versions.lio = matrix.versions.lio.take().or(storage.version());
        }
        storages.into_iter().try_for_each(SwitchedStorage::stop)?;
        Ok(matrix)
    }

    fn cell(&self, storage: StoragePeer, path: usize, host: HostPeer) -> MatrixCell {
        let number = (storage as u64 * PATHS.len() as u64 + path as u64) << 8 | host as u64;
        let seed = self.seed << 16 | number;
        MatrixCell { storage, path, host, seed, relayed: 0, error: None }
    }

    fn run_host(
        &self,
        programs: &HostPrograms,
        storage: &SwitchedStorage,
        path: usize,
        host: HostPeer,
    ) -> Result<MatrixCell> {
        let (began, switch) = (Instant::now(), &storage.switches[path]);
        let mut cell = self.cell(storage.peer, path, host);
        let before = switch.relayed_commands()?;
        let mut result = Ok(());
        for _ in 0..RUNS_MAX {
            result = programs.run(host, &switch.url(VIRTUAL, 0), cell.seed);
            cell.relayed = switch.relayed_commands()? - before;
            if result.is_err() || !cell.is_fast() || cell.relayed > 0 {
                break;
            }
        }
        cell.record_result(result);
        print(&cell, began);
        Ok(cell)
    }

    /// Boots the guest, which uses all switches.
    fn run_kernel(&self, storages: &[SwitchedStorage], matrix: &mut SwitchMatrix) -> Result<()> {
        let (began, host) = (Instant::now(), HostPeer::Kernel);
        let folder = self.folder.as_ref();
        let folder = folder.context("the kernel needs the folder that lab/kernel/fetch makes")?;
        let scratch = Scratch::new("switch-kernel")?;
        let (mut cells, mut switches, mut data) = (Vec::new(), Vec::new(), Vec::new());
        for storage in storages {
            for (path, switch) in storage.switches.iter().enumerate() {
                let cell = self.cell(storage.peer, path, host);
                data.extend(host.data(cell.seed));
                cells.push(cell);
                switches.push((switch, switch.relayed_commands()?));
            }
        }
        let file = scratch.path("data");
        std::fs::write(&file, data)?;
        let port =
            |switch: &Lunar| switch.address().rsplit(':').next().unwrap_or_default().to_owned();
        let ports: Vec<String> = switches.iter().map(|(switch, _)| port(switch)).collect();
        let reply = use_portals(
            folder,
            &KernelRequest {
                target: VIRTUAL,
                ports: &ports.iter().map(String::as_str).collect::<Vec<_>>(),
                data: &file,
                mebibytes: RANGE_BYTES / MIB,
                offset_mebibytes: host.offset() / MIB,
            },
        )?;
        matrix.versions.kernel = Some(reply.version);
        for ((mut cell, (switch, before)), error) in
            cells.into_iter().zip(switches).zip(reply.errors)
        {
            cell.relayed = switch.relayed_commands()? - before;
            cell.record_result(error.map_or(Ok(()), |error| Err(anyhow::anyhow!(error))));
            print(&cell, began);
            matrix.cells.push(cell);
        }
        Ok(())
    }
}

/// Compares the blocks on the storages with the data that the hosts have written.
fn check_storages(storages: &[SwitchedStorage], cells: &mut [MatrixCell]) {
    for storage in storages {
        for path in 0..PATHS.len() {
            let blocks = storage.read_without_switch(path);
            let own = |cell: &&mut MatrixCell| cell.storage == storage.peer && cell.path == path;
            for cell in cells.iter_mut().filter(own) {
                let result = match &blocks {
                    Ok(blocks) => {
                        let range = cell.host.offset()..cell.host.offset() + RANGE_BYTES;
                        compare(cell.host, cell.seed, &blocks[range])
                    }
                    Err(error) => Err(anyhow::anyhow!("{error:#}")),
                };
                if let (Err(error), None) = (&result, &cell.error) {
                    println!("switch-peers: FAIL: {}: on the storage: {error:#}", cell.name());
                }
                cell.record_result(result.context("on the storage"));
            }
        }
    }
}

fn print(cell: &MatrixCell, began: Instant) {
    let (name, seconds) = (cell.name(), began.elapsed().as_secs_f64());
    match &cell.error {
        None => println!("switch-peers: pass: {name} ({seconds:.1} s), {} relayed", cell.relayed),
        Some(error) => println!("switch-peers: FAIL: {name} ({seconds:.1} s): {error}"),
    }
}

/// Returns the chosen values, or all.
fn all_or<T: ValueEnum + Clone>(chosen: &[T]) -> Vec<T> {
    if chosen.is_empty() { T::value_variants().to_vec() } else { chosen.to_vec() }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal: a cell fails if its host failed, if other data is on the storage, if the fast path
    /// relayed nothing, or the slow path did; the first failure is kept.
    #[test]
    fn failures_of_cells() {
        let peers = SwitchPeers { seed: 1, ..SwitchPeers::default() };
        let error_of = |path, relayed, result| {
            let mut cell = peers.cell(StoragePeer::Tgt, path, HostPeer::Qemu);
            cell.relayed = relayed;
            cell.record_result(result);
            cell.record_result(Ok(()));
            cell.error
        };
        assert_eq!(error_of(FAST, 1, Ok(())), None);
        assert_eq!(error_of(1 - FAST, 0, Ok(())), None);
        let cases = [(FAST, 0), (1 - FAST, 3)];
        let errors = cases.map(|(path, relayed)| error_of(path, relayed, Ok(())).unwrap());
        assert_eq!(errors, ["0 commands were relayed", "3 commands were relayed"]);
        let first = error_of(FAST, 0, Err(anyhow::anyhow!("first")));
        assert_eq!(first.as_deref(), Some("first"));
        let mut data = HostPeer::Libiscsi.data(5);
        assert!(compare(HostPeer::Libiscsi, 5, &data).is_ok());
        assert!(compare(HostPeer::Libiscsi, 6, &data).is_err());
        data[RANGE_BYTES - 1] ^= 1;
        assert!(compare(HostPeer::Libiscsi, 5, &data).is_err());
    }
}
