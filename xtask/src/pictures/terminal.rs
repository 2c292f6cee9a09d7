//! The terminal session of README.md.

use super::svg::{document, escaped};
use std::fmt::Write;

/// Columns of the terminal: longer lines continue in the next row.
const COLUMNS: usize = 64;
const LETTER: f64 = 8.4;
const ROW: usize = 20;
const MARGIN: usize = 16;

/// Draws the recording; lines that begin with a prompt are commands.
pub(super) fn draw(recording: &str) -> String {
    let mut rows = Vec::new();
    for line in recording.lines() {
        let is_command = line.starts_with("$ ") || line.starts_with("# ");
        let letters: Vec<char> = line.chars().collect();
        rows.extend(
            letters.chunks(COLUMNS).map(|row| (is_command, row.iter().collect::<String>())),
        );
    }
    let width = (COLUMNS as f64 * LETTER) as usize + 2 * MARGIN;
    let height = rows.len() * ROW + 2 * MARGIN;
    let mut body = format!(
        "<rect width=\"{width}\" height=\"{height}\" rx=\"6\" fill=\"#0d1117\"/>\n\
         <g font-family=\"DejaVu Sans Mono, Menlo, Consolas, monospace\" font-size=\"14\" \
         fill=\"#c9d1d9\">\n"
    );
    for (index, (is_command, row)) in rows.iter().enumerate() {
        let colour = if *is_command { " fill=\"#7ee787\"" } else { "" };
        let length = row.chars().count() as f64 * LETTER;
        let y = MARGIN + index * ROW + 14;
        // Renderers collapse plain spaces.
        let row = escaped(row).replace(' ', "\u{a0}");
        // A String takes every write.
        let _ = writeln!(
            body,
            "<text x=\"{MARGIN}\" y=\"{y}\" textLength=\"{length:.1}\"{colour}>{row}</text>"
        );
    }
    body.push_str("</g>\n");
    let title = "Terminal session: Lunar serves a disk, Linux formats and mounts it";
    let comment = "from docs/images/quick-start.txt, which `lab/kernel/run mount` recorded";
    document((width, height), title, comment, &body)
}
