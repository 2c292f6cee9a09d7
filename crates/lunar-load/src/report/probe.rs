//! Results of probes as rows of a table.

use super::{Column, Table, TableCell};
use crate::probe::ProbeResults;

/// Name of the probes, in place of that of a disk.
pub const RAW_TCP: &str = "raw TCP";

/// Returns a table of probes, without rows.
pub fn probe_table() -> Table {
    Table::new([
        Column::text("beside", "load in the same rounds"),
        Column::number("ping_us", "one at a time, us"),
        Column::number("exchanges_per_second", "pipelined, per second"),
        Column::number("stream_bytes_per_second", "stream, MB/s"),
    ])
    .named("raw_tcp", RAW_TCP)
}

/// Returns a row of the table; `load` names the load that was measured in the same rounds.
pub fn probe_row(load: &str, probed: &ProbeResults) -> [TableCell; 4] {
    [
        TableCell::text(load),
        TableCell::spread(probed.ping_micros(), 1.0, 1),
        TableCell::spread(probed.exchanges_per_second(), 1.0, 0),
        TableCell::spread(probed.stream_bytes_per_second(), 1e6, 0),
    ]
}
