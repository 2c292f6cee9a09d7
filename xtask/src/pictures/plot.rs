//! The plot of README.md: requests per second of Lunar relative to tgt.

use super::figures::ratio;
use super::svg::{document, escaped};
use anyhow::Result;
use std::fmt::Write;

/// A workload: label, cell of docs/performance.md, competitor.
const WORKLOADS: &[(&str, &str, &str)] = &[
    ("4 KiB reads, 32 at a time", "rand-read-4Ki-32-tmpfs", "tgt"),
    ("4 KiB writes, 32 at a time", "rand-write-4Ki-32-tmpfs", "tgt"),
    ("256 KiB writes, 8 at a time", "write-256Ki-8-tmpfs", "tgt"),
    ("4 KiB reads, 32 at a time, by libiscsi", "rand-read-4Ki-32-tmpfs-libiscsi", "tgt"),
    ("256 KiB reads, 8 at a time", "read-256Ki-8-tmpfs", "tgt"),
    ("durable 4 KiB writes, 32 at a time", "rand-write-4Ki-32-disk-through", "tgt"),
    ("4 KiB reads, one at a time", "rand-read-4Ki-1-tmpfs", "tgt"),
    ("durable 4 KiB writes, one at a time", "rand-write-4Ki-1-disk-through", "tgt"),
    ("direct 4 KiB reads, 8 at a time, tgt aio", "rand-read-4Ki-8-disk-direct", "tgt aio"),
];

const WIDTH: usize = 360;
const MARGIN: usize = 12;
/// Width of a bar of ratio 1.
const UNIT: f64 = 33.0;
const TOP: usize = 52;
const ROW: usize = 38;

/// The card has its own background, so that it is readable on every page.
const STYLE: &str = "<style>
.card { fill: #ffffff; stroke: #d0d7de } text { fill: #1f2328; font: 13px sans-serif }
.title { font-weight: bold } .bar { fill: #1f6feb } .behind { fill: #bc4c00 }
.one { stroke: #1f2328; stroke-width: 1.5 }
@media (prefers-color-scheme: dark) {
.card { fill: #0d1117; stroke: #3d444d } text { fill: #f0f6fc }
.bar { fill: #4493f8 } .behind { fill: #f0883e } .one { stroke: #f0f6fc } }
</style>
";

pub(super) fn draw(performance: &str) -> Result<String> {
    let height = TOP + WORKLOADS.len() * ROW + MARGIN;
    let mut body = format!(
        "{STYLE}<rect class=\"card\" x=\"0.5\" y=\"0.5\" width=\"{}\" height=\"{}\" rx=\"6\"/>\n\
         <text class=\"title\" x=\"{MARGIN}\" y=\"22\">Requests per second, Lunar ÷ tgt</text>\n\
         <text x=\"{MARGIN}\" y=\"40\">The vertical lines are tgt.</text>\n",
        WIDTH - 1,
        height - 1
    );
    for (index, (label, cell, competitor)) in WORKLOADS.iter().enumerate() {
        let ratio = ratio(performance, cell, competitor)?;
        let top = TOP + index * ROW;
        let (bar, class) = (ratio * UNIT, if ratio < 1.0 { "behind" } else { "bar" });
        writeln!(
            body,
            "<text x=\"{MARGIN}\" y=\"{}\">{}</text>\n\
             <rect class=\"{class}\" x=\"{MARGIN}\" y=\"{}\" width=\"{bar:.1}\" height=\"12\"/>\n\
             <text x=\"{:.1}\" y=\"{}\">{ratio:.2}</text>",
            top + 12,
            escaped(label),
            top + 17,
            MARGIN as f64 + bar.max(UNIT) + 6.0,
            top + 28
        )?;
    }
    let one = MARGIN as f64 + UNIT;
    for top in (0..WORKLOADS.len()).map(|index| TOP + index * ROW) {
        let (from, to) = (top + 15, top + 31);
        writeln!(body, "<path class=\"one\" d=\"M{one:.1} {from}V{to}\"/>")?;
    }
    let title = "Requests per second of Lunar relative to tgt";
    Ok(document((WIDTH, height), title, "from docs/performance.md", &body))
}
