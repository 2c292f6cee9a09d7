//! What was measured, as a value: for a terminal, for programs, and as one HTML page.
//!
//! A [`Report`] is a list of sections; a [`Section`] has a title, prose, warnings, tables and
//! plots. Figures are written once, as [`Cell`]s: each has its text for people and its value for
//! programs.

mod html;
mod machine;
mod plot;
mod table;

pub use html::page;
pub use machine::{Machine, machine};
pub use plot::{Axis, Plot, Scale, Series, Unit};
pub use table::{Cell, Column, Table, latency_json, size_text, spread_json, time_text};

use serde_json::{Map, Value, json};
use std::fmt::Write;

/// Everything that one run tells.
#[derive(Clone, Debug, Default)]
pub struct Report {
    /// What it is about.
    pub title: String,
    /// One paragraph each.
    pub prose: Vec<String>,
    /// What it was measured with: name and value.
    pub facts: Vec<(String, String)>,
    /// Its parts, in order.
    pub sections: Vec<Section>,
}

/// One part of a report.
#[derive(Clone, Debug, Default)]
pub struct Section {
    /// Its name in JSON, in lower case with underscores.
    pub key: &'static str,
    /// Its heading.
    pub title: String,
    /// One paragraph each, over the tables.
    pub prose: Vec<String>,
    /// What spoils the figures, or kept some from being measured.
    pub warnings: Vec<String>,
    /// Its figures. The first one is `rows` in JSON, another one stands under its own key.
    pub tables: Vec<Table>,
    /// Pictures of them. All that they show stands in the tables too.
    pub plots: Vec<Plot>,
}

impl Section {
    /// With a key and a title, and nothing in it yet.
    pub fn new(key: &'static str, title: impl Into<String>) -> Self {
        Self { key, title: title.into(), ..Self::default() }
    }

    /// For a terminal: heading, prose, tables, warnings.
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

    /// For programs: `key`, `title`, `prose`, `warnings`, and each table's rows under its key.
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
    /// For programs: `title`, `facts`, `sections`.
    pub fn json(&self) -> Value {
        let facts = self.facts.iter().map(|(name, value)| (name.clone(), value.clone().into()));
        json!({
            "title": self.title,
            "facts": facts.collect::<Map<_, _>>(),
            "sections": self.sections.iter().map(Section::json).collect::<Vec<_>>(),
        })
    }
}

/// Columns of a terminal that prose is kept within.
const PROSE_COLUMNS: usize = 100;

/// A paragraph in lines, broken at spaces.
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
        // Writing to a text does not fail.
        let _ = write!(text, "{gap}{word}");
    }
    text.push('\n');
    text
}

#[cfg(test)]
mod tests;
