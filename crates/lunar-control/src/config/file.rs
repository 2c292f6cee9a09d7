//! Typed reading of TOML tables, with the position of every problem.

use super::named_limits::limit_keys;
use serde::{Deserialize, Serialize};
use std::collections::BTreeSet;
use std::ops::Range;
use toml::Spanned;
use toml::de::{DeTable, DeValue};

/// Maximum size of a configuration in bytes.
pub const FILE_BYTES_MAX: u64 = 4 << 20;
/// Maximum number of problems that are listed.
const PROBLEMS_MAX: usize = 100;

/// A problem in the file.
#[derive(Clone, Debug, Deserialize, Eq, PartialEq, Serialize)]
pub struct ConfigProblem {
    /// Line, from 1.
    pub line: usize,
    /// Column in characters, from 1.
    pub column: usize,
    /// The error.
    pub error: String,
    /// The remedy.
    pub hint: Option<String>,
}

/// A range of bytes in the text.
pub type TextSpan = Range<usize>;

/// A value with its position.
#[derive(Clone, Debug)]
pub struct Located<T> {
    /// The value.
    pub value: T,
    /// The position.
    pub span: TextSpan,
}

/// Collects problems against a text.
#[derive(Debug)]
pub struct Problems<'t> {
    text: &'t str,
    list: Vec<ConfigProblem>,
}

impl<'t> Problems<'t> {
    /// Creates an empty list.
    pub fn new(text: &'t str) -> Self {
        Self { text, list: Vec::new() }
    }

    /// Adds a problem at `span`.
    pub fn add(&mut self, span: &TextSpan, error: impl Into<String>, hint: Option<String>) {
        if self.list.len() >= PROBLEMS_MAX {
            return;
        }
        let (line, column) = position(self.text, span.start);
        self.list.push(ConfigProblem { line, column, error: error.into(), hint });
    }

    /// Whether there are no problems so far.
    pub fn is_empty(&self) -> bool {
        self.list.is_empty()
    }

    /// All problems, in the order of the text.
    pub fn into_sorted(mut self) -> Vec<ConfigProblem> {
        self.list.sort_by_key(|problem| (problem.line, problem.column));
        self.list
    }
}

/// Line and column, both from 1; a column is a character.
fn position(text: &str, offset: usize) -> (usize, usize) {
    let before = text.get(..offset.min(text.len())).unwrap_or(text);
    let line_start = before.rfind('\n').map_or(0, |newline| newline + 1);
    (before.matches('\n').count() + 1, before[line_start..].chars().count() + 1)
}

/// Parses TOML; syntax errors go to `problems`.
pub fn parse<'t>(text: &'t str, problems: &mut Problems<'_>) -> Spanned<DeTable<'t>> {
    let (document, errors) = DeTable::parse_recoverable(text);
    // The parser guesses where the text continues: further errors follow from the first one.
    if let Some(error) = errors.into_iter().next() {
        let span = error.span().unwrap_or(0..0);
        let message = error.message().lines().collect::<Vec<_>>().join(", ");
        problems.add(&span, message, Some("correct the TOML syntax at this position".to_owned()));
    }
    document
}

/// Reads one table. The keys that were read are the known ones; [`finish`](Self::finish) reports
/// the others.
#[derive(Debug)]
pub struct TableReader<'d, 't> {
    table: &'d DeTable<'t>,
    /// Position of the table.
    pub span: TextSpan,
    /// Name of the table in messages.
    name: String,
    known: BTreeSet<&'static str>,
}

impl<'d, 't> TableReader<'d, 't> {
    /// Reads `table`, called `name` in messages.
    pub fn new(table: &'d DeTable<'t>, span: TextSpan, name: impl Into<String>) -> Self {
        Self { table, span, name: name.into(), known: BTreeSet::new() }
    }

    fn get(&mut self, key: &'static str) -> Option<&'d Spanned<DeValue<'t>>> {
        self.known.insert(key);
        self.table.get(key)
    }

    /// Whether the key is present.
    pub fn has(&self, key: &str) -> bool {
        self.table.contains_key(key)
    }

    /// Returns whether the value of a key is a table.
    pub fn is_table(&self, key: &str) -> bool {
        matches!(self.table.get(key).map(|value| value.get_ref()), Some(DeValue::Table(_)))
    }

    /// Position of the value of a key that is present.
    pub fn span_of(&self, key: &str) -> Option<TextSpan> {
        Some(self.table.get(key)?.span())
    }

    /// Reads a string.
    pub fn string(
        &mut self,
        key: &'static str,
        problems: &mut Problems<'_>,
    ) -> Option<Located<String>> {
        let value = self.get(key)?;
        string_of(value, key, problems)
    }

    /// Reads a string that must be present.
    pub fn required(
        &mut self,
        key: &'static str,
        problems: &mut Problems<'_>,
    ) -> Option<Located<String>> {
        if !self.has(key) {
            self.known.insert(key);
            problems.add(
                &self.span,
                format!("{} has no `{key}`", self.name),
                Some(format!("add a line {key} = \"…\"")),
            );
        }
        self.string(key, problems)
    }

    /// Reads true or false.
    pub fn boolean(&mut self, key: &'static str, problems: &mut Problems<'_>) -> Option<bool> {
        let value = self.get(key)?;
        match value.get_ref() {
            DeValue::Boolean(is) => Some(*is),
            other => {
                mismatch(key, "true or false", other, &value.span(), problems);
                None
            }
        }
    }

    /// Reads an integer within `range`.
    pub fn integer(
        &mut self,
        key: &'static str,
        range: std::ops::RangeInclusive<u64>,
        problems: &mut Problems<'_>,
    ) -> Option<Located<u64>> {
        let value = self.get(key)?;
        let DeValue::Integer(integer) = value.get_ref() else {
            mismatch(key, "a whole number", value.get_ref(), &value.span(), problems);
            return None;
        };
        let read = u64::from_str_radix(integer.as_str(), integer.radix());
        match read {
            Ok(number) if range.contains(&number) => {
                Some(Located { value: number, span: value.span() })
            }
            _ => {
                let (low, high) = (range.start(), range.end());
                problems.add(
                    &value.span(),
                    format!("`{key}` is {integer}"),
                    Some(format!("the allowed range is {low} to {high}")),
                );
                None
            }
        }
    }

    /// Reads a size within `range`: `"64GiB"`, or bytes as a number.
    pub fn size(
        &mut self,
        key: &'static str,
        range: std::ops::RangeInclusive<u64>,
        problems: &mut Problems<'_>,
    ) -> Option<Located<u64>> {
        let value = self.get(key)?;
        let DeValue::String(text) = value.get_ref() else {
            return self.integer(key, range, problems);
        };
        let hint = match crate::units::parse_size(text) {
            Ok(bytes) if range.contains(&bytes) => {
                return Some(Located { value: bytes, span: value.span() });
            }
            Ok(_) => format!("the allowed range is {} to {} bytes", range.start(), range.end()),
            Err(why) => why,
        };
        problems.add(&value.span(), format!("`{key}` is {text:?}"), Some(hint));
        None
    }

    /// Reads a list of strings.
    pub fn strings(
        &mut self,
        key: &'static str,
        problems: &mut Problems<'_>,
    ) -> Option<Vec<Located<String>>> {
        let strings = self.strings_or_empty(key, problems)?;
        self.refuse_empty(key, problems);
        Some(strings)
    }

    /// Like [`strings`](Self::strings), for keys where an empty list has a meaning.
    pub fn strings_or_empty(
        &mut self,
        key: &'static str,
        problems: &mut Problems<'_>,
    ) -> Option<Vec<Located<String>>> {
        let value = self.get(key)?;
        let DeValue::Array(items) = value.get_ref() else {
            mismatch(
                key,
                "a list of strings, like [\"…\"]",
                value.get_ref(),
                &value.span(),
                problems,
            );
            return None;
        };
        Some(items.iter().filter_map(|item| string_of(item, key, problems)).collect())
    }

    /// Reports a problem if the list `key` is present and empty, because an empty list could mean
    /// no initiator or all.
    pub fn refuse_empty(&mut self, key: &'static str, problems: &mut Problems<'_>) {
        let Some(value) = self.get(key) else { return };
        if matches!(value.get_ref(), DeValue::Array(items) if items.is_empty()) {
            let hint = "list at least one value, or omit the key".to_owned();
            problems.add(&value.span(), format!("`{key}` is empty"), Some(hint));
        }
    }

    /// Reads a nested table.
    pub fn table(
        &mut self,
        key: &'static str,
        problems: &mut Problems<'_>,
    ) -> Option<TableReader<'d, 't>> {
        let value = self.get(key)?;
        match value.get_ref() {
            DeValue::Table(table) => Some(TableReader::new(table, value.span(), self.path_of(key))),
            other => {
                mismatch(key, "a table", other, &value.span(), problems);
                None
            }
        }
    }

    /// Reads an array of tables: `[[key]]`.
    pub fn tables(
        &mut self,
        key: &'static str,
        problems: &mut Problems<'_>,
    ) -> Vec<TableReader<'d, 't>> {
        let items = self.items(key);
        let mut tables = Vec::with_capacity(items.len());
        for item in items {
            match item.get_ref() {
                DeValue::Table(table) => {
                    tables.push(TableReader::new(table, item.span(), self.path_of(key)));
                }
                other => mismatch(key, "tables: [[…]]", other, &item.span(), problems),
            }
        }
        tables
    }

    /// Returns the items of a list of mixed types; a value that is not a list counts as its only
    /// item.
    pub fn items(&mut self, key: &'static str) -> Vec<&'d Spanned<DeValue<'t>>> {
        match self.get(key) {
            None => Vec::new(),
            Some(value) => match value.get_ref() {
                DeValue::Array(items) => items.iter().collect(),
                _ => vec![value],
            },
        }
    }

    /// Reports unknown keys. `later` are keys that later versions will have.
    pub fn finish(&self, later: &[&str], problems: &mut Problems<'_>) {
        for key in self.table.keys() {
            let name = key.get_ref().as_ref();
            if self.known.contains(name) {
                continue;
            }
            let hint = if later.contains(&name) {
                "not supported in this version".to_owned()
            } else if let Some(near) = nearest(name, &self.known) {
                format!("did you mean `{near}`?")
            } else {
                let known: Vec<_> = self.known.iter().copied().collect();
                let table = table_of_key(name)
                    .map_or_else(String::new, |table| format!("it belongs in {table}; "));
                format!("{table}known keys here: {}", known.join(", "))
            };
            problems.add(&key.span(), format!("unknown key `{name}` in {}", self.name), Some(hint));
        }
    }

    fn path_of(&self, key: &str) -> String {
        if self.name == TOP_TABLE_NAME {
            format!("[{key}]")
        } else {
            format!("{}.{key}", self.name)
        }
    }
}

/// Name of the outermost table in messages.
pub const TOP_TABLE_NAME: &str = "the file";

/// Reads a string, or adds a problem.
pub fn string_of(
    value: &Spanned<DeValue<'_>>,
    key: &str,
    problems: &mut Problems<'_>,
) -> Option<Located<String>> {
    match value.get_ref() {
        DeValue::String(text) => Some(Located { value: text.to_string(), span: value.span() }),
        other => {
            mismatch(key, "a string in quotes", other, &value.span(), problems);
            None
        }
    }
}

/// Adds a problem: a value has the wrong type.
pub fn mismatch(
    key: &str,
    wanted: &str,
    got: &DeValue<'_>,
    span: &TextSpan,
    problems: &mut Problems<'_>,
) {
    let got = match got {
        DeValue::String(_) => "a string",
        DeValue::Integer(_) => "a whole number",
        DeValue::Float(_) => "a number with a fraction",
        DeValue::Boolean(_) => "true or false",
        DeValue::Datetime(_) => "a date",
        DeValue::Array(_) => "a list",
        DeValue::Table(_) => "a table",
    };
    problems.add(span, format!("`{key}` is {got}"), Some(format!("write {wanted}")));
}

/// The tables below the top, each with the keys that no other table has, for hints; those of
/// `[limits]` are in the table of limits.
const TABLE_KEYS: &[(&str, &[&str])] = &[
    ("[listen]", &["portals"]),
    ("[data_path]", &["cores", "latency_mode", "io_uring"]),
    ("[[storage]]", &["url", "on_storage_loss"]),
    (
        "[[pool]]",
        &["members", "spares", "degraded", "member_wait_seconds", "resync_rate", "lease_seconds"],
    ),
    (
        "[[target]]",
        &[
            "name",
            "alias",
            "max_connections",
            "header_digest",
            "data_digest",
            "error_recovery_level",
            "redirect",
        ],
    ),
    (
        "[[target.lun]]",
        &[
            "id",
            "uuid",
            "device",
            "extents",
            "stripe",
            "mirror",
            "device_chap",
            "identity",
            "size",
            "cache",
            "io",
            "block_size",
            "physical_block_size",
            "read_only",
            "removable",
            "thin",
            "thin_threshold",
            "out_of_space",
            "maintenance_rate",
        ],
    ),
    (
        "chap = { … }",
        &[
            "user",
            "secret_file",
            "mutual_user",
            "mutual_secret_file",
            "algorithms",
            "allow_short_secrets",
        ],
    ),
    ("the top level, before any [section]", &["state"]),
];

/// Returns the table that a key belongs to, if exactly one has it.
fn table_of_key(key: &str) -> Option<&'static str> {
    if limit_keys().any(|limit| limit == key) {
        return Some("[limits]");
    }
    TABLE_KEYS.iter().find(|(_, keys)| keys.contains(&key)).map(|(table, _)| *table)
}

/// Returns the known key of which `word` is probably a misspelling.
fn nearest<'k>(word: &str, known: &BTreeSet<&'k str>) -> Option<&'k str> {
    let allowed = 1 + word.chars().count() / 4;
    known
        .iter()
        .map(|candidate| (edit_distance(word, candidate), *candidate))
        .filter(|(distance, _)| *distance <= allowed)
        .min()
        .map(|(_, candidate)| candidate)
}

/// Edit distance with transpositions (optimal string alignment); `_` and `-` count as equal.
fn edit_distance(left: &str, right: &str) -> usize {
    let normal = |text: &str| -> Vec<char> {
        text.to_lowercase().chars().map(|c| if c == '-' { '_' } else { c }).take(64).collect()
    };
    let (left, right) = (normal(left), normal(right));
    let mut rows = vec![vec![0; right.len() + 1]; left.len() + 1];
    for i in 0..=left.len() {
        for j in 0..=right.len() {
            rows[i][j] = if i == 0 || j == 0 {
                i + j
            } else {
                let changed = rows[i - 1][j - 1] + usize::from(left[i - 1] != right[j - 1]);
                let mut cost = changed.min(rows[i - 1][j] + 1).min(rows[i][j - 1] + 1);
                if i > 1 && j > 1 && left[i - 1] == right[j - 2] && left[i - 2] == right[j - 1] {
                    cost = cost.min(rows[i - 2][j - 2] + 1);
                }
                cost
            };
        }
    }
    rows[left.len()][right.len()]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nearest_finds_misspelt_keys() {
        let known = BTreeSet::from(["cache", "device", "physical_block_size", "io", "id"]);
        for (word, expected) in [
            ("cahce", Some("cache")),
            ("devic", Some("device")),
            ("physical-block-size", Some("physical_block_size")),
            ("Cache", Some("cache")),
            ("colour", None),
        ] {
            assert_eq!(nearest(word, &known), expected, "{word}");
        }
        assert_eq!(edit_distance("kitten", "sitting"), 3);
        assert_eq!(edit_distance("", "abc"), 3);
    }

    #[test]
    fn columns_count_characters() {
        assert_eq!(position("äö = 1\nü = 2", "äö = 1\nü = ".len()), (2, 5));
        assert_eq!(position("", 0), (1, 1));
        assert_eq!(position("a", 99), (1, 2));
    }
}
