//! Renders a run: the table, and docs/switch-peers.md.

use super::{HostPeer, MatrixCell, StoragePeer, SwitchMatrix};
use crate::bench::facts::first_line;
use crate::peers::lunar::binary;
use crate::report::markdown::table;
use clap::ValueEnum;
use lunar_load::report::{Column, Table, TableCell};
use std::path::Path;

/// The document.
pub const PATH: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../docs/switch-peers.md");
/// Text that does not come from a run.
const TEMPLATE: &str = include_str!("../../switch-peers.template.md");

/// Versions of the programs.
pub struct PeerVersions {
    rows: Vec<(&'static str, String)>,
    /// Version of the kernel of LIO.
    pub lio: Option<String>,
    /// Versions of the kernel and of open-iscsi of the host.
    pub kernel: Option<String>,
}

impl PeerVersions {
    /// Asks the programs of this machine.
    pub fn find() -> Self {
        let line = |program: &str, words: &[&str]| first_line(Path::new(program), words);
        let package = |name| line("dpkg-query", &["-W", "-f", "${Version}", name]);
        let described = ["describe", "--always", "--dirty", "--abbrev=10"];
        let rows = vec![
            ("date", line("date", &["-u", "+%F"])),
            ("source", line("git", &described)),
            ("Lunar", line(&binary().unwrap_or_default(), &["--version"])),
            ("libiscsi", package("libiscsi-dev")),
            ("QEMU", package("qemu-utils")),
            ("tgt", package("tgt")),
            ("istgt", package("istgt")),
        ];
        Self { rows, lio: None, kernel: None }
    }

    fn table(&self) -> Table {
        let mut table = Table::new([Column::text("name", ""), Column::text("version", "version")]);
        let mut row = |name: &str, version: &str| table.row([name, version].map(TableCell::text));
        self.rows.iter().for_each(|(name, version)| row(name, version));
        for (name, version) in [("LIO", &self.lio), ("Linux with open-iscsi", &self.kernel)] {
            version.iter().for_each(|version| row(name, version));
        }
        table
    }
}

/// Returns the table: a row for each host, a column for each storage.
pub fn table_of(matrix: &SwitchMatrix) -> String {
    let has = |storage: &&StoragePeer| matrix.cells.iter().any(|cell| cell.storage == **storage);
    let storages: Vec<_> = StoragePeer::value_variants().iter().filter(has).collect();
    let mut columns = vec![Column::text("host", "host")];
    columns.extend(storages.iter().map(|storage| Column::text("storage", storage.to_string())));
    let mut all = Table::new(columns);
    for host in HostPeer::value_variants() {
        if matrix.cells.iter().any(|cell| cell.host == *host) {
            let mut row = vec![TableCell::text(host.to_string())];
            let text = |storage: &&StoragePeer| TableCell::text(pair(matrix, **storage, *host));
            row.extend(storages.iter().map(text));
            all.row(row);
        }
    }
    table(&all)
}

/// Returns the results of both paths.
fn pair(matrix: &SwitchMatrix, storage: StoragePeer, host: HostPeer) -> String {
    let own = |cell: &&MatrixCell| cell.storage == storage && cell.host == host;
    let text = |cell: &MatrixCell| match (&cell.error, cell.is_fast()) {
        (Some(_), _) => "**FAIL**".to_owned(),
        (None, false) => "pass".to_owned(),
        (None, true) => format!("pass, {} relayed", cell.relayed),
    };
    matrix.cells.iter().filter(own).map(text).collect::<Vec<_>>().join("; ")
}

/// Returns docs/switch-peers.md.
pub fn chapter(matrix: &SwitchMatrix) -> String {
    let parts = [("matrix", table_of(matrix)), ("versions", table(&matrix.versions.table()))];
    parts.iter().fold(TEMPLATE.to_owned(), |text, (name, part)| {
        text.replace(&format!("{{{{{name}}}}}"), part.trim_end())
    })
}
