//! Tables of figures with their text for people and their value for programs.

use crate::{Latency, Spread};
use serde_json::{Map, Value, json};
use std::time::Duration;

/// Rows of figures under named columns.
#[derive(Clone, Debug, Default)]
pub struct Table {
    /// Name in JSON if a section has several tables.
    pub key: &'static str,
    /// Caption; empty: none.
    pub title: String,
    pub(crate) columns: Vec<Column>,
    pub(crate) rows: Vec<Vec<TableCell>>,
}

/// One column.
#[derive(Clone, Debug)]
pub struct Column {
    /// Name in JSON, which ends with the unit (`latency_us`).
    pub key: &'static str,
    /// Name for people.
    pub label: String,
    /// True when cells are aligned to the right.
    pub is_number: bool,
}

/// One figure, or a name.
#[derive(Clone, Debug, PartialEq)]
pub struct TableCell {
    pub(crate) text: String,
    pub(crate) value: Value,
}

impl Column {
    /// Returns a column of names.
    pub fn text(key: &'static str, label: impl Into<String>) -> Self {
        Self { key, label: label.into(), is_number: false }
    }

    /// Returns a column of figures.
    pub fn number(key: &'static str, label: impl Into<String>) -> Self {
        Self { key, label: label.into(), is_number: true }
    }
}

impl TableCell {
    /// Returns a cell with a text for people and another value for programs.
    pub fn new(text: impl Into<String>, value: impl Into<Value>) -> Self {
        Self { text: text.into(), value: value.into() }
    }

    /// Returns a cell with a name.
    pub fn text(text: impl Into<String>) -> Self {
        let text = text.into();
        Self { value: text.clone().into(), text }
    }

    /// Returns a cell with a figure, shown with this number of decimals.
    pub fn number(value: f64, decimals: usize) -> Self {
        Self::new(format!("{value:.decimals$}"), value)
    }

    /// Returns a cell with a count.
    pub fn count(value: u64) -> Self {
        Self::new(value.to_string(), value)
    }

    /// Returns a cell with a size, like `64Ki`; bytes in JSON.
    pub fn size(bytes: u64) -> Self {
        Self::new(size_text(bytes), bytes)
    }

    /// Returns a cell for a figure that is unknown or was not measured: `-`, and null.
    pub fn none() -> Self {
        Self::new("-", Value::Null)
    }

    /// Returns a cell with the median, least and greatest of several rounds, shown in units of
    /// `unit`.
    pub fn spread(spread: Spread, unit: f64, decimals: usize) -> Self {
        let Spread { median, least, most } = spread;
        let shown = Spread { median: median / unit, least: least / unit, most: most / unit };
        Self::new(shown.text(decimals), spread_json(spread))
    }

    /// Returns a cell that shows only the median, with the whole spread in JSON.
    pub fn median(spread: Spread, unit: f64, decimals: usize) -> Self {
        Self::new(format!("{:.decimals$}", spread.median / unit), spread_json(spread))
    }

    /// Returns a cell with the median of a figure in microseconds, such as processor time; `None`:
    /// the figure is not known.
    pub fn micros(spread: Option<Spread>) -> Self {
        spread.map_or_else(Self::none, |spread| Self::median(spread, 1.0, 1))
    }

    /// Returns a cell with a time, with three digits and a unit; microseconds in JSON.
    pub fn time(time: Duration) -> Self {
        Self::new(time_text(time), time.as_nanos() as f64 / 1e3)
    }
}

impl std::fmt::Display for TableCell {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.text)
    }
}

impl Table {
    /// Returns a table without rows.
    pub fn new(columns: impl IntoIterator<Item = Column>) -> Self {
        Self { columns: columns.into_iter().collect(), ..Self::default() }
    }

    /// Sets the key and the title, for the second table of a section and later ones.
    #[must_use]
    pub fn named(mut self, key: &'static str, title: impl Into<String>) -> Self {
        (self.key, self.title) = (key, title.into());
        self
    }

    /// Appends a row. Missing cells are `-`, excess ones are left out.
    pub fn row(&mut self, cells: impl IntoIterator<Item = TableCell>) {
        let mut row: Vec<TableCell> = cells.into_iter().collect();
        row.resize(self.columns.len(), TableCell::none());
        self.rows.push(row);
    }

    /// Returns the columns, in order.
    pub fn columns(&self) -> &[Column] {
        &self.columns
    }

    /// Returns the rows, with a cell for each column.
    pub fn rows(&self) -> &[Vec<TableCell>] {
        &self.rows
    }

    /// True when there are no rows.
    pub fn is_empty(&self) -> bool {
        self.rows.is_empty()
    }

    /// Formats the table for a terminal, each column as wide as its widest cell.
    pub fn text(&self) -> String {
        let labels: Vec<&str> = self.columns.iter().map(|column| column.label.as_str()).collect();
        let texts = self.rows.iter().map(|row| row.iter().map(|cell| cell.text.as_str()).collect());
        let lines: Vec<Vec<&str>> = std::iter::once(labels).chain(texts).collect();
        let mut text = String::new();
        if !self.title.is_empty() {
            text.push_str(&self.title);
            text.push('\n');
        }
        for line in &lines {
            let mut shown = String::new();
            for (at, (cell, column)) in line.iter().zip(&self.columns).enumerate() {
                let wide = lines.iter().filter_map(|line| line.get(at));
                let wide = wide.map(|cell| cell.chars().count()).max().unwrap_or_default();
                let gap = if at == 0 { "" } else { "  " };
                shown += &match column.is_number {
                    true => format!("{gap}{cell:>wide$}"),
                    false => format!("{gap}{cell:<wide$}"),
                };
            }
            text.push_str(shown.trim_end());
            text.push('\n');
        }
        text
    }

    /// Returns the table as JSON: an object for each row.
    pub fn json(&self) -> Value {
        let row = |row: &Vec<TableCell>| {
            let fields = self.columns.iter().zip(row);
            let fields = fields.map(|(column, cell)| (column.key.to_owned(), cell.value.clone()));
            Value::Object(fields.collect::<Map<_, _>>())
        };
        self.rows.iter().map(row).collect()
    }
}

/// Returns a spread as JSON: `median`, `least`, `most`.
pub fn spread_json(spread: Spread) -> Value {
    json!({ "median": spread.median, "least": spread.least, "most": spread.most })
}

/// Returns a distribution as JSON, in microseconds; null if there were no requests.
pub fn latency_json(latency: &Latency) -> Value {
    let has_requests = latency.count() > 0;
    let micros = |time: Duration| has_requests.then(|| time.as_nanos() as f64 / 1e3);
    json!({
        "mean": micros(latency.mean()),
        "p50": micros(latency.percentile(50.0)),
        "p99": micros(latency.percentile(99.0)),
        "p99_9": micros(latency.percentile(99.9)),
        "max": micros(latency.max()),
        "requests": latency.count(),
    })
}

/// Formats a time with three digits and a unit.
pub fn time_text(time: Duration) -> String {
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

/// Formats a size: `512`, `4Ki`, `1Mi`; with one decimal if not a whole number of the unit.
pub fn size_text(bytes: u64) -> String {
    let (mut unit, units) = (0, ["", "Ki", "Mi", "Gi", "Ti"]);
    while unit + 1 < units.len() && bytes >> (10 * (unit + 1)) > 0 {
        unit += 1;
    }
    let scale = 1_u64 << (10 * unit);
    match bytes.is_multiple_of(scale) {
        true => format!("{}{}", bytes / scale, units[unit]),
        false => format!("{:.1}{}", bytes as f64 / scale as f64, units[unit]),
    }
}
