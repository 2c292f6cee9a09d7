//! What was measured, for people and for programs.

use super::Bench;
use super::cells::{Cell, Row};
use crate::output;
use load::{Latency, Spread};
use serde_json::{Value, json};
use std::fmt::Write;
use std::time::Duration;

/// Over the rows.
pub(super) fn head() -> String {
    format!(
        "{:<10} {:>8} {:>5} {:>5}  {:>9} {:<19} {:>9} {:>9} {:>9} {:>9} {:>7}\n",
        "pattern",
        "size",
        "depth",
        "conns",
        "IOPS",
        "(least to most)",
        "MB/s",
        "p50",
        "p99",
        "p99.9",
        "CPU/req"
    )
}

/// The rows of one combination, one for each disk.
pub(super) fn rows(cell: &Cell, rows: &[Row], compare: bool) -> String {
    let mut text = String::new();
    let first = rows.first().map_or(0.0, |row| row.measured.requests_per_second.median);
    for row in rows {
        let one = &row.measured;
        let Spread { median, least, most } = one.requests_per_second;
        let connections = row.connections.map_or("-".to_owned(), |count| count.to_string());
        let line = format!(
            "{:<10} {:>8} {:>5} {:>5}  {:>9.0} {:<19} {:>9.1} {:>9} {:>9} {:>9} {:>7}",
            cell.pattern.text(),
            short_size(cell.io_bytes),
            cell.depth,
            connections,
            median,
            format!("({least:.0} to {most:.0})"),
            one.bytes_per_second.median / 1e6,
            duration(one.latency.percentile(50.0)),
            duration(one.latency.percentile(99.0)),
            duration(one.latency.percentile(99.9)),
            format!("{:.1} us", one.client_cpu_micros.median),
        );
        let ratio = match compare && first > 0.0 {
            true => format!("  {:.2}", median / first),
            false => String::new(),
        };
        // Writing to a text does not fail.
        let _ = writeln!(text, "{line}{ratio}  {}", row.url);
    }
    text
}

/// Everything, with the names and units that docs/benchmarks.md tells.
pub(super) fn document(args: &Bench, all: &[(Cell, Vec<Row>)]) -> Value {
    let rows = all.iter().flat_map(|(cell, rows)| {
        rows.iter().map(move |row| {
            let one = &row.measured;
            json!({
                "url": row.url,
                "pattern": cell.pattern.text(),
                "io_bytes": cell.io_bytes,
                "depth": cell.depth,
                "connections": row.connections,
                "iops": spread(one.requests_per_second),
                "bytes_per_second": spread(one.bytes_per_second),
                "latency_us": latency(&one.latency),
                "client_cpu_us_per_request": spread(one.client_cpu_micros),
            })
        })
    });
    json!({
        "rounds": args.rounds,
        "seconds": args.seconds,
        "warm_up_seconds": args.warm_up,
        "rate": args.rate,
        "range_bytes": args.size,
        "seed": args.seed,
        "results": rows.collect::<Vec<_>>(),
    })
}

fn spread(of: Spread) -> Value {
    json!({ "median": of.median, "least": of.least, "most": of.most })
}

fn latency(of: &Latency) -> Value {
    let micros = |time: Duration| time.as_nanos() as f64 / 1e3;
    json!({
        "mean": micros(of.mean()),
        "p50": micros(of.percentile(50.0)),
        "p99": micros(of.percentile(99.0)),
        "p99_9": micros(of.percentile(99.9)),
        "max": micros(of.max()),
        "requests": of.count(),
    })
}

fn short_size(bytes: u64) -> String {
    output::size(bytes).replace(" bytes", " B").replace("iB", "i")
}

/// Three digits, and their unit.
fn duration(time: Duration) -> String {
    let micros = time.as_nanos() as f64 / 1e3;
    match micros {
        ..10.0 => format!("{micros:.2} us"),
        ..100.0 => format!("{micros:.1} us"),
        ..1e4 => format!("{micros:.0} us"),
        ..1e5 => format!("{:.1} ms", micros / 1e3),
        ..1e7 => format!("{:.0} ms", micros / 1e3),
        _ => format!("{:.1} s", micros / 1e6),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_have_three_digits() {
        let told = [1_234, 98_700, 987_000, 12_345_000, 654_321_000, 12_000_000_000]
            .map(|nanos| duration(Duration::from_nanos(nanos)));
        assert_eq!(told, ["1.23 us", "98.7 us", "987 us", "12.3 ms", "654 ms", "12.0 s"]);
    }
}
