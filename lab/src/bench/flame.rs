//! Flame graphs: one box for each call, over its caller, as wide as its share of the samples.
//!
//! A small implementation of our own: SVG without a script, with a tooltip in each box and colours
//! that show the origin of the code.

mod rules;
mod stacks;

pub use rules::shares;
pub use stacks::{FIELDS, Stack, parse};

use std::collections::BTreeMap;
use std::fmt::Write;

/// Origin of the code of a call, shown as a colour.
#[derive(Clone, Copy, Debug, Eq, Ord, PartialEq, PartialOrd)]
pub enum CodeKind {
    Network,
    Files,
    Kernel,
    Own,
    Runtime,
    Library,
    Unknown,
}

/// Kinds, their colours and their names in the legend.
const LEGEND: [(CodeKind, &str, &str); 7] = [
    (CodeKind::Network, "#8fb8de", "kernel: network"),
    (CodeKind::Files, "#a3d39c", "kernel: files"),
    (CodeKind::Kernel, "#c9bfe3", "kernel: waiting, waking, other"),
    (CodeKind::Own, "#f4a261", "code of the program"),
    (CodeKind::Runtime, "#f6d58e", "runtime and other crates"),
    (CodeKind::Library, "#e3a6b8", "C library"),
    (CodeKind::Unknown, "#d0d0d0", "unknown"),
];

const WIDTH: f64 = 1200.0;
const MARGIN: f64 = 8.0;
const ROW: f64 = 16.0;
/// Height of title and legend.
const HEAD: f64 = 50.0;
/// Width of one letter in a monospace font.
const LETTER: f64 = 6.1;
const LEGEND_SQUARE: f64 = 10.0;

/// Calls that are nested deeper are not drawn.
const DEPTH_MAX: usize = 96;
/// Boxes with less than one in this many samples are not drawn.
const NARROWEST: u64 = 1000;
/// Maximum number of boxes: only the widest are drawn. It keeps the file below 150 KB.
const BOXES_MAX: usize = 500;

/// A call with all its callees.
#[derive(Default)]
struct Node {
    samples: u64,
    callees: BTreeMap<(String, CodeKind), Node>,
}

/// A call that is drawn.
#[derive(Debug, PartialEq)]
struct Drawn<'a> {
    name: &'a str,
    kind: CodeKind,
    /// Number of callers above it.
    depth: usize,
    /// Number of samples to the left of it.
    at: u64,
    samples: u64,
}

/// Merges all stacks into one tree: threads, and in them calls.
fn fold(stacks: &[Stack]) -> Node {
    let mut all = Node::default();
    for stack in stacks {
        let thread = (stack.thread.clone(), CodeKind::Unknown);
        let parts = rules::parts(stack);
        let calls = stack.frames.iter().zip(parts);
        let calls = calls.map(|(frame, (_, kind))| (frame.name.clone(), kind));
        all.samples += 1;
        let mut node = &mut all;
        for call in std::iter::once(thread).chain(calls).take(DEPTH_MAX) {
            node = node.callees.entry(call).or_default();
            node.samples += 1;
        }
    }
    all
}

/// Returns the boxes, callers before callees.
fn layout(all: &Node) -> Vec<Drawn<'_>> {
    let mut drawn = vec![Drawn {
        name: "all samples",
        kind: CodeKind::Unknown,
        depth: 0,
        at: 0,
        samples: all.samples,
    }];
    place(all, (0, 1), all.samples, &mut drawn);
    // No box is wider than its caller, and the sort is stable, so that the cut never drops a caller
    // of a box that stays.
    drawn.sort_by_key(|one| std::cmp::Reverse(one.samples));
    drawn.truncate(BOXES_MAX);
    drawn
}

/// Places a node and its callees; `from` is the first sample and the depth of the node.
fn place<'a>(node: &'a Node, from: (u64, usize), all: u64, drawn: &mut Vec<Drawn<'a>>) {
    let (mut at, depth) = from;
    for ((name, kind), callee) in &node.callees {
        let samples = callee.samples;
        if samples * NARROWEST >= all {
            drawn.push(Drawn { name, kind: *kind, depth, at, samples });
            place(callee, (at, depth + 1), all, drawn);
        }
        at += samples;
    }
}

/// Draws a self-contained picture.
pub fn svg(title: &str, stacks: &[Stack]) -> String {
    let tree = fold(stacks);
    let drawn = layout(&tree);
    let rows = 1 + drawn.iter().map(|one| one.depth).max().unwrap_or_default();
    let height = HEAD + rows as f64 * ROW + MARGIN;
    let mut svg = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH} {height}\" \
         width=\"{WIDTH}\" height=\"{height}\">\n\
         <style>text{{font:10px monospace}}g rect{{stroke:#fff;stroke-width:.5}}</style>\n\
         <rect width=\"{WIDTH}\" height=\"{height}\" fill=\"#fff\"/>\n\
         <text x=\"{MARGIN}\" y=\"18\" style=\"font-size:13px\">{}</text>\n",
        escaped(title)
    );
    svg += &legend();
    for one in &drawn {
        svg += &a_box(one, tree.samples, height);
    }
    svg + "</svg>\n"
}

fn legend() -> String {
    let (mut text, mut x) = (String::new(), MARGIN);
    for (_, colour, name) in LEGEND {
        let after = x + LEGEND_SQUARE + 4.0;
        // Writing to a string does not fail.
        let _ = writeln!(
            text,
            "<rect x=\"{x:.1}\" y=\"28\" width=\"{LEGEND_SQUARE}\" height=\"{LEGEND_SQUARE}\" \
             fill=\"{colour}\"/><text x=\"{after:.1}\" y=\"37\">{}</text>",
            escaped(name)
        );
        x = after + (name.chars().count() + 2) as f64 * LETTER;
    }
    text
}

/// Draws the tooltip, the box, and as much of the name as fits.
fn a_box(one: &Drawn<'_>, all: u64, height: f64) -> String {
    let scale = (WIDTH - 2.0 * MARGIN) / all.max(1) as f64;
    let (x, width) = (MARGIN + one.at as f64 * scale, one.samples as f64 * scale);
    let y = height - MARGIN - (one.depth + 1) as f64 * ROW;
    let percent = one.samples as f64 * 100.0 / all.max(1) as f64;
    let name = escaped(one.name);
    let samples = if one.samples == 1 { "sample" } else { "samples" };
    let mut text = format!(
        "<g><title>{name}: {} {samples}, {percent:.1} %</title><rect x=\"{x:.1}\" y=\"{y}\" \
         width=\"{width:.1}\" height=\"{ROW}\" fill=\"{}\"/>",
        one.samples,
        colour(one.kind),
    );
    let shown = clipped(one.name, ((width - 4.0) / LETTER) as usize);
    if !shown.is_empty() {
        let _ = write!(
            text,
            "<text x=\"{:.1}\" y=\"{}\">{}</text>",
            x + 2.0,
            y + 12.0,
            escaped(&shown)
        );
    }
    text + "</g>\n"
}

fn colour(kind: CodeKind) -> &'static str {
    LEGEND.iter().find(|(one, ..)| *one == kind).map_or("#fff", |(_, colour, _)| colour)
}

/// Cuts a name to this many letters; empty if too few letters would remain.
fn clipped(name: &str, letters: usize) -> String {
    const LEAST: usize = 3;
    match (name.chars().count() <= letters, letters) {
        (true, _) => name.to_owned(),
        (_, ..LEAST) => String::new(),
        _ => name.chars().take(letters - 1).chain(['…']).collect(),
    }
}

/// Escapes a name, which comes from another program: the result contains no markup and no character
/// that XML forbids.
fn escaped(text: &str) -> String {
    let mut escaped = String::with_capacity(text.len());
    for letter in text.chars() {
        match letter {
            '&' => escaped.push_str("&amp;"),
            '<' => escaped.push_str("&lt;"),
            '>' => escaped.push_str("&gt;"),
            '"' => escaped.push_str("&quot;"),
            '\u{fffe}' | '\u{ffff}' => escaped.push('?'),
            letter if letter.is_control() => escaped.push('?'),
            letter => escaped.push(letter),
        }
    }
    escaped
}

#[cfg(test)]
mod tests;
