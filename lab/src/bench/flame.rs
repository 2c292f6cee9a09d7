//! Flame graphs: one box for each call, as wide as its part of the samples, over its caller.
//!
//! Our own, and small: SVG without a script, with a tooltip in each box and colours that say whose
//! code it is.

mod rules;
mod stacks;

pub use rules::shares;
pub use stacks::{FIELDS, Stack, parse};

use std::collections::BTreeMap;
use std::fmt::Write;

/// Whose code it is: a colour.
#[derive(Clone, Copy, Debug, Eq, Ord, PartialEq, PartialOrd)]
pub enum Kind {
    Network,
    Files,
    Kernel,
    Own,
    Runtime,
    Library,
    Unknown,
}

/// Kinds, their colours and their names in the legend.
const LEGEND: [(Kind, &str, &str); 7] = [
    (Kind::Network, "#8fb8de", "kernel: network"),
    (Kind::Files, "#a3d39c", "kernel: files"),
    (Kind::Kernel, "#c9bfe3", "kernel: waiting, waking, the rest"),
    (Kind::Own, "#f4a261", "the program's own code"),
    (Kind::Runtime, "#f6d58e", "runtime and other crates"),
    (Kind::Library, "#e3a6b8", "C library"),
    (Kind::Unknown, "#d0d0d0", "not known"),
];

const WIDTH: f64 = 1200.0;
const MARGIN: f64 = 8.0;
const ROW: f64 = 16.0;
/// Title and legend.
const HEAD: f64 = 50.0;
/// Of one letter, in a font whose letters are all alike.
const LETTER: f64 = 6.1;
const LEGEND_SQUARE: f64 = 10.0;

/// Calls that are nested deeper are not drawn.
const DEPTH_MAX: usize = 96;
/// Boxes with less than one of so many samples are not drawn.
const NARROWEST: u64 = 1000;
/// Nor are more boxes than these: the widest are. It keeps the file below 150 KB.
const BOXES_MAX: usize = 500;

/// A call with all that it calls.
#[derive(Default)]
struct Node {
    samples: u64,
    callees: BTreeMap<(String, Kind), Node>,
}

/// A call that is drawn.
#[derive(Debug, PartialEq)]
struct Drawn<'a> {
    name: &'a str,
    kind: Kind,
    /// How many calls are below it.
    depth: usize,
    /// How many samples stand left of it.
    at: u64,
    samples: u64,
}

/// All stacks as one tree: threads, and in them calls.
fn fold(stacks: &[Stack]) -> Node {
    let mut all = Node::default();
    for stack in stacks {
        let thread = (stack.thread.clone(), Kind::Unknown);
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

/// The boxes, callers before those they call.
fn layout(all: &Node) -> Vec<Drawn<'_>> {
    let mut drawn = vec![Drawn {
        name: "all samples",
        kind: Kind::Unknown,
        depth: 0,
        at: 0,
        samples: all.samples,
    }];
    place(all, (0, 1), all.samples, &mut drawn);
    // None is wider than its caller, and the order is kept among equals: no caller goes missing.
    drawn.sort_by_key(|one| std::cmp::Reverse(one.samples));
    drawn.truncate(BOXES_MAX);
    drawn
}

/// `from`: where the first callee begins, and how deep it is.
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

/// A picture that needs nothing else.
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
        // Writing to a text does not fail.
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

/// Its tooltip, its box, and as much of its name as has room.
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

fn colour(kind: Kind) -> &'static str {
    LEGEND.iter().find(|(one, ..)| *one == kind).map_or("#fff", |(_, colour, _)| colour)
}

/// The beginning of a name in so many letters; nothing where it would say nothing.
fn clipped(name: &str, letters: usize) -> String {
    const LEAST: usize = 3;
    match (name.chars().count() <= letters, letters) {
        (true, _) => name.to_owned(),
        (_, ..LEAST) => String::new(),
        _ => name.chars().take(letters - 1).chain(['…']).collect(),
    }
}

/// Names come from programs: nothing of them is markup, and nothing is no letter of XML.
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
