//! Frame size: two network namespaces, connected by two cables with different MTUs.
//!
//! A target runs in one namespace, a bench in the other. A `veth` pair passes segments on as they
//! are: with segmentation offload, TCP would send 64 KiB segments whatever the MTU, and the frame
//! size would have no effect. `gso_max_segs 1` at both ends makes TCP send segments of one frame;
//! the frames are counted to verify this. Merging at the receiver (GRO) is off on `veth` unless
//! switched on.

use super::{MultiConnection, end_with_this, own_url};
use crate::peers::lunar::release_binary;
use crate::system::namespaces::{self, Namespace, clear_up, connect, ip};
use anyhow::{Context, Result, anyhow};
use lunar_load::Spread;
use lunar_load::report::{
    Axis, AxisScale, AxisUnit, Column, Plot, Section, Series, Table, TableCell,
};
use serde_json::Value;
use std::process::Stdio;

/// MTUs in bytes: standard Ethernet and jumbo frames.
const MTUS: [u32; 2] = [1500, 9000];
/// Numbers of connections to measure.
const CONNECTIONS: [u16; 2] = [1, 4];
/// Bytes that the kernel counts on a `veth` for each frame in addition to the MTU: the Ethernet
/// header.
const FRAME_HEADER: f64 = 14.0;
/// Address range of the cables, reserved for benchmarks by RFC 2544.
const NETWORK: &str = "198.18.0.0/15";
/// Port of the target in its namespace.
const PORT: u16 = 3260;

/// Two namespaces with their cables, removed when dropped.
#[derive(Debug)]
struct TestNetwork {
    target: Namespace,
    client: Namespace,
}

/// Results of one MTU.
#[derive(Debug)]
struct Figure {
    mtu: u32,
    connections: u16,
    bytes_per_second: Spread,
    client_micros: f64,
}

/// Measures the throughput of large frames relative to small ones, with one connection; `None`: it
/// could not be measured.
pub(super) async fn measure(asked: &MultiConnection) -> Result<(Section, Option<f64>)> {
    let mut section = Section::new("frame_size", "Frame size");
    section.warnings.extend(clear_up());
    let cables = match TestNetwork::lay() {
        Ok(cables) => cables,
        Err(why) => {
            section.warnings.push(format!("not measured: {}", namespaces::explained(&why)));
            return Ok((section, None));
        }
    };
    section.prose.push(
        "Sequential reads of 64 KiB, 32 outstanding, between two network namespaces over veth \
         pairs with MTU 1500 and 9000, which take turns. Segmentation offload is off at both ends \
         (gso_max_segs 1): each segment is one frame, as the last column shows. No delay, no rate \
         limit."
            .to_owned(),
    );
    let before = cables.counts()?;
    let figures = cables.bench(asked).await?;
    let after = cables.counts()?;
    let mut table = Table::new([
        Column::number("mtu_bytes", "MTU"),
        Column::number("connections", "connections"),
        Column::number("bytes_per_second", "MB/s"),
        Column::number("of_small_frames", "of MTU 1500"),
        Column::number("client_cpu_us_per_request", "client CPU, us"),
        Column::number("bytes_per_frame", "bytes per frame"),
    ]);
    let first = |connections: u16| {
        figures.iter().find(|figure| figure.connections == connections && figure.mtu == MTUS[0])
    };
    let mut larger = None;
    for figure in &figures {
        let at = usize::from(figure.mtu != MTUS[0]);
        let frame = (after[at].0 - before[at].0) / (after[at].1 - before[at].1).max(1.0);
        if frame > f64::from(figure.mtu) + FRAME_HEADER && figure.connections == CONNECTIONS[0] {
            section.warnings.push(format!(
                "frames of {frame:.0} bytes were counted with an MTU of {}: an offload is \
                 enabled, so these figures are not valid",
                figure.mtu
            ));
        }
        let small = first(figure.connections).map_or(0.0, |small| small.bytes_per_second.median);
        let ratio = super::part(figure.bytes_per_second.median, small);
        if figure.mtu == MTUS[1] && figure.connections == CONNECTIONS[0] {
            larger = ratio;
        }
        table.row([
            TableCell::count(figure.mtu.into()),
            TableCell::count(figure.connections.into()),
            TableCell::spread(figure.bytes_per_second, 1e6, 1),
            ratio.map_or_else(TableCell::none, |ratio| TableCell::number(ratio, 2)),
            TableCell::number(figure.client_micros, 1),
            TableCell::number(frame, 0),
        ]);
    }
    section.tables.push(table);
    section.plots.push(plot(&figures));
    Ok((section, larger))
}

/// Runs `lunar bench --json` in a network namespace, and returns the document.
async fn bench(namespace: &str, arguments: &[&str]) -> Result<Value> {
    let output = tokio::process::Command::new("ip")
        .args(["netns", "exec", namespace])
        .arg(release_binary()?)
        .args(end_with_this())
        .args(["bench", "--json"])
        .args(arguments)
        .stdin(Stdio::null())
        .stderr(Stdio::inherit())
        .kill_on_drop(true)
        .output()
        .await
        .context("running lunar bench in another network namespace")?;
    let document: Value = serde_json::from_slice(&output.stdout).unwrap_or_default();
    match output.status.success() {
        true => Ok(document),
        false => Err(anyhow!("a bench in another network namespace failed: {}", document["error"])),
    }
}

fn plot(figures: &[Figure]) -> Plot {
    let line = |connections: u16| Series {
        label: format!("connections {connections}"),
        points: figures
            .iter()
            .filter(|figure| figure.connections == connections)
            .map(|figure| (f64::from(figure.mtu), figure.bytes_per_second.median))
            .collect(),
        ..Series::default()
    };
    Plot {
        title: "Throughput by frame size".to_owned(),
        x: Axis::new("MTU, bytes", AxisUnit::Count, AxisScale::Log2),
        y: Axis::new("throughput", AxisUnit::BytesPerSecond, AxisScale::Linear),
        series: CONNECTIONS.map(line).into(),
    }
}

impl TestNetwork {
    /// Creates the namespaces and cables.
    ///
    /// # Errors
    /// Returns the message of `ip`.
    fn lay() -> Result<Self, String> {
        let cables =
            Self { target: Namespace::create("target")?, client: Namespace::create("client")? };
        for (number, mtu) in MTUS.iter().enumerate() {
            let [here, there] = [1, 2].map(|side| format!("{}/24", address(number, side)));
            let sides = [(&cables.target, here.as_str()), (&cables.client, there.as_str())];
            let options = ["mtu", &mtu.to_string(), "gso_max_segs", "1"];
            connect(&cable(number), sides, &options)?;
        }
        Ok(cables)
    }

    /// Measures both MTUs in one bench, so that they take turns.
    async fn bench(&self, asked: &MultiConnection) -> Result<Vec<Figure>> {
        let inside = ["ip", "netns", "exec", self.target.name()];
        let network = ["--network", NETWORK];
        let _target = asked.own_target(&inside, &format!("0.0.0.0:{PORT}"), &network)?;
        let urls = [0, 1].map(|number| own_url(&format!("{}:{PORT}", address(number, 1))));
        let counts = CONNECTIONS.map(|count| count.to_string()).join(",");
        let rounds = asked.common.rounds.to_string();
        let times = [asked.seconds, asked.warm_up].map(|time| time.as_secs_f64().to_string());
        let [seconds, warm_up] = times;
        let work = ["--pattern", "read", "--io-size", "64K", "--depth", "32"];
        let times = ["--rounds", &rounds, "--seconds", &seconds, "--warm-up", &warm_up];
        let asked = [&[&*urls[0], &*urls[1], "--connections", &counts], &work[..], &times].concat();
        let document = bench(self.client.name(), &asked).await?;
        let results = document["results"].as_array().map(Vec::as_slice).unwrap_or_default();
        let number = |value: &Value| value.as_f64().unwrap_or_default();
        let figure = |result: &Value| {
            let rate = &result["bytes_per_second"];
            Figure {
                mtu: MTUS[usize::from(result["url"] != urls[0].as_str())],
                connections: result["connections"].as_u64().unwrap_or_default() as u16,
                bytes_per_second: Spread {
                    median: number(&rate["median"]),
                    least: number(&rate["least"]),
                    most: number(&rate["most"]),
                },
                client_micros: number(&result["client_cpu_us_per_request"]["median"]),
            }
        };
        Ok(results.iter().map(figure).collect())
    }

    /// Bytes and frames that the client has received on each cable.
    fn counts(&self) -> Result<[(f64, f64); 2]> {
        let mut counts = [(0.0, 0.0); 2];
        for (number, count) in counts.iter_mut().enumerate() {
            let here = cable(number);
            let output = ip(&["-n", self.client.name(), "-json", "-stats", "link", "show", &here]);
            let output = output.map_err(|why| anyhow!("cannot count frames: {why}"))?;
            let document: Value = serde_json::from_str(&output).unwrap_or_default();
            let received = &document[0]["stats64"]["rx"];
            let figure = |key: &str| received[key].as_f64();
            *count = figure("bytes")
                .zip(figure("packets"))
                .context("cannot count frames: `ip -json -stats link show` does not report them")?;
        }
        Ok(counts)
    }
}

fn cable(number: usize) -> String {
    format!("cable{number}")
}

fn address(number: usize, side: u8) -> String {
    format!("198.18.{number}.{side}")
}
