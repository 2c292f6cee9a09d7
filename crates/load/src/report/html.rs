//! A report as one HTML page that needs nothing else.

use super::{Report, Section, Table};
use std::fmt::Write;

/// The page.
pub fn page(report: &Report) -> String {
    let mut body = format!("<h1>{}</h1>\n", escaped(&report.title));
    for section in &report.sections {
        body += &section_html(section);
    }
    format!("<!DOCTYPE html>\n<html lang=\"en\"><meta charset=\"utf-8\">\n{body}</html>\n")
}

fn section_html(section: &Section) -> String {
    let mut text = format!("<section><h2>{}</h2>\n", escaped(&section.title));
    for paragraph in section.prose.iter().chain(&section.warnings) {
        // Writing to a text does not fail.
        let _ = writeln!(text, "<p>{}</p>", escaped(paragraph));
    }
    section.tables.iter().for_each(|table| text += &table_html(table));
    text + "</section>\n"
}

fn table_html(table: &Table) -> String {
    let mut text = String::from("<table>");
    for row in &table.rows {
        let cells = row.iter().map(|cell| format!("<td>{}</td>", escaped(&cell.text)));
        let _ = writeln!(text, "<tr>{}</tr>", cells.collect::<String>());
    }
    text + "</table>\n"
}

/// Text as it stands in HTML, in elements and in quoted attributes.
fn escaped(text: &str) -> String {
    text.chars().fold(String::with_capacity(text.len()), |mut text, letter| {
        match letter {
            '&' => text.push_str("&amp;"),
            '<' => text.push_str("&lt;"),
            '>' => text.push_str("&gt;"),
            '"' => text.push_str("&quot;"),
            '\'' => text.push_str("&#39;"),
            other => text.push(other),
        }
        text
    })
}
