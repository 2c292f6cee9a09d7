//! The results for people and for programs.

use super::BenchCommand;
use super::cells::{Measurement, Row};
use super::network::model_text;
use crate::output;
use lunar_load::Spread;
use lunar_load::probe::ProbeResults;
use lunar_load::report::{RAW_TCP, latency_json, spread_json, time_text};
use serde_json::{Value, json};
use std::fmt::Write;

/// The header above the rows.
pub(super) fn head(args: &BenchCommand) -> String {
    let network =
        args.network.model().map(|model| format!("through a relay: {}\n", model_text(&model)));
    let [pattern, size, depth, conns] = ["pattern", "size", "depth", "conns"];
    network.unwrap_or_default()
        + &line(
            [pattern, size, depth, conns],
            ["IOPS", "(least to most)", "MB/s"],
            ["p50", "p99", "p99.9", "max", "CPU/req", "target"],
        )
        + "\n"
}

/// The rows of one combination, one for each disk, and that of raw TCP.
pub(super) fn rows(measurement: &Measurement, compare: bool) -> String {
    let Measurement { cell, rows, probed } = measurement;
    let mut text = String::new();
    let first = rows.first().map_or(0.0, |row| row.measured.requests_per_second.median);
    let (size, depth) = (short_size(cell.io_bytes), cell.depth.to_string());
    for row in rows {
        let one = &row.measured;
        let connections = row.connections.map_or("-".to_owned(), |count| count.to_string());
        let warning = row.warning().map(|why| format!("warning: {why}\n")).unwrap_or_default();
        if one.no_figures_reason().is_some() {
            let what = [cell.pattern.text(), &size, &depth, &connections];
            // Writing to a string cannot fail.
            let _ = write!(text, "{}  {}\n{warning}", line(what, ["-"; 3], ["-"; 6]), row.url);
            continue;
        }
        let time = |percent| time_text(one.latency.percentile(percent));
        let line = line(
            [cell.pattern.text(), &size, &depth, &connections],
            rates(one.requests_per_second, one.bytes_per_second.median).each_ref().map(|r| &**r),
            [
                &time(50.0),
                &time(99.0),
                &time(99.9),
                &time_text(one.latency.max()),
                &micros(one.client_cpu_micros),
                &micros(one.target_cpu_micros),
            ],
        );
        let median = one.requests_per_second.median;
        let ratio = match compare && first > 0.0 {
            true => format!("  {:.2}", median / first),
            false => String::new(),
        };
        let _ = write!(text, "{line}{ratio}  {}\n{warning}", row.url);
    }
    if let Some(probed) = probed {
        let exchanges = probed.exchanges_per_second();
        let rates = rates(exchanges, exchanges.median * cell.io_bytes as f64);
        let line = line(
            [RAW_TCP, &size, &depth, &cell.connections.to_string()],
            rates.each_ref().map(|rate| &**rate),
            ["-"; 6],
        );
        let _ = writeln!(
            text,
            "{line}  this machine's loopback: one at a time {:.1} us, stream {:.0} MB/s",
            probed.ping_micros().median,
            probed.stream_bytes_per_second().median / 1e6
        );
        if let Some(why) = probed.variation_warning() {
            let _ = writeln!(text, "warning: {why}");
        }
    }
    text
}

fn line(what: [&str; 4], rates: [&str; 3], times: [&str; 6]) -> String {
    let [pattern, size, depth, connections] = what;
    let [iops, ends, bytes] = rates;
    let [p50, p99, p999, max, client, target] = times;
    format!(
        "{pattern:<10} {size:>8} {depth:>5} {connections:>5}  {iops:>9} {ends:<19} {bytes:>9} \
         {p50:>9} {p99:>9} {p999:>9} {max:>9} {client:>8} {target:>8}"
    )
}

fn rates(requests: Spread, bytes: f64) -> [String; 3] {
    let Spread { median, least, most } = requests;
    [format!("{median:.0}"), format!("({least:.0} to {most:.0})"), format!("{:.1}", bytes / 1e6)]
}

fn micros(spread: Option<Spread>) -> String {
    spread.map_or("-".to_owned(), |spread| format!("{:.1} us", spread.median))
}

/// All results, with the names and units that docs/benchmarks.md describes.
pub(super) fn document(args: &BenchCommand, all: &[Measurement]) -> Value {
    let results = all
        .iter()
        .flat_map(|measurement| measurement.rows.iter().map(move |row| result(measurement, row)));
    let probes = all.iter().filter_map(|measurement| {
        let Measurement { cell, probed, .. } = measurement;
        probed.as_ref().map(|probed| {
            json!({
                "pattern": cell.pattern.text(),
                "io_bytes": cell.io_bytes,
                "depth": cell.depth,
                "connections": cell.connections,
                "probe": probe(probed),
            })
        })
    });
    let model = args.network.model();
    json!({
        "rounds": args.rounds,
        "seconds": args.seconds,
        "warm_up_seconds": args.warm_up,
        "paced_iops": args.iops,
        "range_bytes": args.size,
        "seed": args.seed,
        "durable": args.durable,
        "machine": lunar_load::report::machine(),
        "network": model.map(|model| json!({
            "delay_us": model.delay.as_secs_f64() * 1e6,
            "bytes_per_second": model.rate_bytes_per_second,
            "window_bytes": model.window_bytes,
        })),
        "results": results.collect::<Vec<_>>(),
        "raw_tcp": probes.collect::<Vec<_>>(),
    })
}

fn result(measurement: &Measurement, row: &Row) -> Value {
    let (cell, one) = (&measurement.cell, &row.measured);
    let rate = |spread| one.no_figures_reason().is_none().then(|| spread_json(spread));
    json!({
        "url": row.url,
        "pattern": cell.pattern.text(),
        "io_bytes": cell.io_bytes,
        "depth": cell.depth,
        "connections": row.connections,
        "iops": rate(one.requests_per_second),
        "bytes_per_second": rate(one.bytes_per_second),
        "latency_us": latency_json(&one.latency),
        "client_cpu_us_per_request": one.client_cpu_micros.map(spread_json),
        "target_cpu_us_per_request": one.target_cpu_micros.map(spread_json),
        "warning": row.warning(),
    })
}

/// The results of a probe as JSON.
fn probe(probed: &ProbeResults) -> Value {
    json!({
        "ping_us": spread_json(probed.ping_micros()),
        "exchanges_per_second": spread_json(probed.exchanges_per_second()),
        "stream_bytes_per_second": spread_json(probed.stream_bytes_per_second()),
        "warning": probed.variation_warning(),
    })
}

fn short_size(bytes: u64) -> String {
    output::size(bytes).replace(" bytes", " B").replace("iB", "i")
}
