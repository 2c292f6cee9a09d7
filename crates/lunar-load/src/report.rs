//! Results of a measurement, as a value: for a terminal, as JSON, and as one HTML page.
//!
//! A [`Report`] is a list of sections; a [`Section`] has a title, prose, warnings, tables and
//! plots. Each figure is a [`TableCell`], with its text for people and its value for programs.

mod html;
mod machine;
mod plot;
mod probe;
mod table;

pub use html::page;
pub use machine::{Machine, machine};
pub use plot::{Axis, AxisScale, AxisUnit, Plot, Series};
pub use probe::{RAW_TCP, probe_row, probe_table};
pub use table::{Column, Table, TableCell, latency_json, size_text, spread_json, time_text};

use serde_json::{Map, Value, json};
use std::fmt::Write;

/// The results of one run.
#[derive(Clone, Debug, Default)]
pub struct Report {
    /// Title.
    pub title: String,
    /// Paragraphs.
    pub prose: Vec<String>,
    /// Conditions of the measurement: name and value.
    pub facts: Vec<(String, String)>,
    /// Sections, in order.
    pub sections: Vec<Section>,
}

/// One section of a report.
#[derive(Clone, Debug, Default)]
pub struct Section {
    /// Name in JSON, in lower case with underscores.
    pub key: &'static str,
    /// Heading.
    pub title: String,
    /// Paragraphs, above the tables.
    pub prose: Vec<String>,
    /// Reasons why figures are unreliable or missing.
    pub warnings: Vec<String>,
    /// Figures. The first table is `rows` in JSON, the others have their own keys.
    pub tables: Vec<Table>,
    /// Plots of the figures. All that they show is in the tables too.
    pub plots: Vec<Plot>,
}

impl Section {
    /// Returns an empty section with a key and a title.
    pub fn new(key: &'static str, title: impl Into<String>) -> Self {
        Self { key, title: title.into(), ..Self::default() }
    }

    /// Formats the section for a terminal: heading, prose, tables, warnings.
    pub fn text(&self) -> String {
        let mut text = format!("{}\n", self.title);
        for paragraph in &self.prose {
            text.push_str(&wrapped(paragraph));
        }
        for table in &self.tables {
            text.push('\n');
            text.push_str(&table.text());
        }
        for warning in &self.warnings {
            text.push_str(&wrapped(&format!("warning: {warning}")));
        }
        text
    }

    /// Returns the section as JSON: `key`, `title`, `prose`, `warnings`, and each table's rows
    /// under its key.
    pub fn json(&self) -> Value {
        let mut map = Map::new();
        map.insert("key".into(), self.key.into());
        map.insert("title".into(), self.title.clone().into());
        map.insert("prose".into(), json!(self.prose));
        map.insert("warnings".into(), json!(self.warnings));
        for (number, table) in self.tables.iter().enumerate() {
            let key = if number == 0 { "rows" } else { table.key };
            map.insert(key.into(), table.json());
        }
        Value::Object(map)
    }
}

impl Report {
    /// Returns the report as JSON: `title`, `facts`, `sections`.
    pub fn json(&self) -> Value {
        let facts = self.facts.iter().map(|(name, value)| (name.clone(), value.clone().into()));
        json!({
            "title": self.title,
            "facts": facts.collect::<Map<_, _>>(),
            "sections": self.sections.iter().map(Section::json).collect::<Vec<_>>(),
        })
    }
}

/// Maximum number of columns of prose on a terminal.
const PROSE_COLUMNS: usize = 100;

/// Wraps a paragraph at spaces.
fn wrapped(paragraph: &str) -> String {
    let (mut text, mut columns) = (String::new(), 0);
    for word in paragraph.split_whitespace() {
        let wide = word.chars().count();
        let gap = match columns {
            0 => "",
            _ if columns + 1 + wide > PROSE_COLUMNS => {
                columns = 0;
                "\n"
            }
            _ => " ",
        };
        columns += wide + usize::from(gap == " ");
        // Writing to a string does not fail.
        let _ = write!(text, "{gap}{word}");
    }
    text.push('\n');
    text
}

#[cfg(test)]
mod tests;
