//! Keys with their values, as TOML and as JSON.

use crate::device_url::DeviceUrl;
use lunar_iscsi::login::Secret;
use std::path::Path;

/// The value of a key.
#[derive(Clone, Debug, Eq, PartialEq)]
pub enum Value {
    /// true or false.
    Flag(bool),
    /// A plain number.
    Number(u64),
    /// A size in bytes.
    Size(u64),
    /// A rate in bytes per second.
    Rate(u64),
    /// A text.
    Text(String),
    /// A list.
    List(Vec<Value>),
    /// A table.
    Table(Vec<(&'static str, Value)>),
}

impl Value {
    pub(super) fn text(text: impl Into<String>) -> Self {
        Self::Text(text.into())
    }

    /// Converts a path to an absolute one, as its reader may be in another directory.
    pub(super) fn path(path: &Path) -> Self {
        let whole = std::path::absolute(path);
        Self::Text(whole.as_deref().unwrap_or(path).display().to_string())
    }

    pub(super) fn device(device: &DeviceUrl) -> Self {
        let whole = device.path().and_then(|path| std::path::absolute(path).ok());
        Self::Text(whole.map_or_else(|| device.clone(), DeviceUrl::File).to_string())
    }

    /// The value as TOML.
    pub fn toml(&self) -> String {
        match self {
            Self::Flag(is) => is.to_string(),
            Self::Number(number) => number.to_string(),
            Self::Size(bytes) => match crate::units::size_text(*bytes) {
                Some(text) => format!("\"{text}\""),
                None => bytes.to_string(),
            },
            Self::Rate(bytes) => format!("\"{}\"", crate::units::rate_text(*bytes)),
            Self::Text(text) => quoted(text),
            Self::List(items) => {
                format!("[{}]", items.iter().map(Self::toml).collect::<Vec<_>>().join(", "))
            }
            Self::Table(entries) => {
                let entries =
                    entries.iter().map(|(key, value)| format!("{key} = {}", value.toml()));
                format!("{{ {} }}", entries.collect::<Vec<_>>().join(", "))
            }
        }
    }

    /// The value as JSON: sizes in bytes, rates in bits per second.
    pub fn json(&self) -> serde_json::Value {
        match self {
            Self::Flag(is) => (*is).into(),
            Self::Number(number) | Self::Size(number) => (*number).into(),
            Self::Rate(bytes) => bytes.saturating_mul(8).into(),
            Self::Text(text) => text.as_str().into(),
            Self::List(items) => items.iter().map(Self::json).collect(),
            Self::Table(entries) => {
                let entries = entries.iter().map(|(key, value)| ((*key).to_owned(), value.json()));
                serde_json::Value::Object(entries.collect())
            }
        }
    }
}

/// A basic string of TOML, always on one line.
fn quoted(text: &str) -> String {
    let mut quoted = String::from("\"");
    for letter in text.chars() {
        match letter {
            '"' => quoted.push_str("\\\""),
            '\\' => quoted.push_str("\\\\"),
            letter if letter.is_control() => {
                quoted.push_str(&format!("\\u{:04X}", u32::from(letter)));
            }
            letter => quoted.push(letter),
        }
    }
    quoted.push('"');
    quoted
}

/// A key of a table with its value.
#[derive(Clone, Debug)]
pub struct Setting {
    /// The key.
    pub key: &'static str,
    /// The value; `None`: not set.
    pub value: Option<Value>,
    /// Whether a file without the key has the same effect.
    pub default: bool,
    /// Contents of the secret files that the value names.
    pub(super) secrets: Vec<Secret>,
}

impl Setting {
    pub(super) fn new(key: &'static str, value: Option<Value>, default: bool) -> Self {
        Self { key, value, default, secrets: Vec::new() }
    }

    pub(super) fn optional(key: &'static str, value: Option<Value>) -> Self {
        let default = value.is_none();
        Self::new(key, value, default)
    }

    pub(super) fn list(key: &'static str, items: Vec<Value>) -> Self {
        Self::optional(key, (!items.is_empty()).then_some(Value::List(items)))
    }

    /// Creates a setting with this value, and `default` if the file omits the key.
    pub(super) fn with_default<T: PartialEq>(
        key: &'static str,
        value: T,
        default: T,
        convert: fn(T) -> Value,
    ) -> Self {
        let same = value == default;
        Self::new(key, Some(convert(value)), same)
    }

    /// Whether both are equal; a secret file with changed contents makes them unequal.
    pub fn same(&self, other: &Self) -> bool {
        self.value == other.value && self.secrets == other.secrets
    }

    /// Whether only secrets differ, which must not be shown.
    pub fn differs_in_secrets_only(&self, other: &Self) -> bool {
        self.value == other.value && self.secrets != other.secrets
    }
}
