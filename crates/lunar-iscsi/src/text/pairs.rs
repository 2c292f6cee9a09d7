//! Pairs `key=value\0`. RFC 7143 §6.1.

use super::table::Key;
use alloc::boxed::Box;
use alloc::collections::BTreeSet;
use alloc::string::{String, ToString};
use alloc::vec::Vec;
use core::fmt::{Display, Write};

/// An error in a peer's text. During login it is answered with status 0200h, in full feature phase
/// with Reject "protocol error".
#[derive(Clone, Debug, Eq, PartialEq, thiserror::Error)]
#[non_exhaustive]
#[allow(missing_docs)] // see the messages
pub enum Violation {
    #[error("the text does not end with a zero byte")]
    Unterminated,
    #[error("the text is not UTF-8")]
    NotUtf8,
    #[error("a key without an equals sign")]
    NoValue,
    #[error("an invalid key name (RFC 7143 §6.1)")]
    KeyName,
    #[error("more than {text_bytes_max} bytes of text")]
    TextTooLong { text_bytes_max: usize },
    #[error("more than {pairs_max} pairs")]
    TooManyPairs { pairs_max: usize },
    #[error("the value of {0} is too long")]
    ValueTooLong(&'static str),
    #[error("{0} was sent twice")]
    Repeated(String),
    #[error("{0} must not be sent by this side")]
    WrongSender(&'static str),
    #[error("{0} is not allowed in this stage or phase")]
    WrongStage(&'static str),
    #[error("{0} has an invalid value")]
    BadValue(&'static str),
    #[error("{0} was answered with a value that was not offered")]
    BadAnswer(&'static str),
    #[error("{0} was proposed with a value that is only allowed in answers")]
    ReservedValue(String),
    #[error("the negotiated value of {0} is not acceptable")]
    Unacceptable(&'static str),
    #[error("{0} is missing")]
    Missing(&'static str),
    #[error("the peer sent text before it had received all of the pending text")]
    OutOfTurn,
}

/// An answer to a proposal, which is never a proposal itself. One of three. RFC 7143 §6.2.
pub const REJECT: &str = "Reject";
/// See [`REJECT`].
pub const IRRELEVANT: &str = "Irrelevant";
/// See [`REJECT`].
pub const NOT_UNDERSTOOD: &str = "NotUnderstood";

/// True if `value` is one of the constants that are only answers.
pub fn is_answer_constant(value: &str) -> bool {
    matches!(value, REJECT | IRRELEVANT | NOT_UNDERSTOOD)
}

/// Maximum length of a key name in bytes. RFC 7143 §6.1.
pub const KEY_BYTES_MAX: usize = 63;

/// Maximum number of pairs in one negotiation (a login, or a text exchange): four times the number
/// of all known keys. Limits the work and the `NotUnderstood` answers.
pub const PAIRS_MAX: usize = 160;

/// A received pair.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Pair<'a> {
    /// The key, if it is known.
    pub key: Option<Key>,
    /// The name of the key.
    pub name: &'a str,
    /// The text after the first `=`.
    pub value: &'a str,
}

/// Parses a complete text. Zero bytes after the last delimiter are tolerated, for peers that count
/// their padding into the DataSegmentLength.
///
/// # Errors
/// Any [`Violation`] of the format; the meaning of the values is checked later.
pub fn parse(text: &[u8]) -> Result<Vec<Pair<'_>>, Violation> {
    parse_up_to(text, PAIRS_MAX)
}

/// Like [`parse`], with a limit of `pairs_max`.
///
/// # Errors
/// The errors of [`parse`].
pub fn parse_up_to(text: &[u8], pairs_max: usize) -> Result<Vec<Pair<'_>>, Violation> {
    let mut pairs = Vec::new();
    let Some(text) = trim(text)? else { return Ok(pairs) };
    for piece in text.split(|byte| *byte == 0) {
        if pairs.len() == pairs_max {
            return Err(Violation::TooManyPairs { pairs_max });
        }
        let piece = core::str::from_utf8(piece).map_err(|_| Violation::NotUtf8)?;
        let (name, value) = piece.split_once('=').ok_or(Violation::NoValue)?;
        let key = Key::named(name);
        match key.map(Key::info) {
            Some(info) if info.value_bytes_max().is_some_and(|max| value.len() > max) => {
                return Err(Violation::ValueTooLong(info.name));
            }
            None if !is_key_name(name) => return Err(Violation::KeyName),
            _ => pairs.push(Pair { key, name, value }),
        }
    }
    Ok(pairs)
}

/// Removes the last delimiter and following padding; `None` for an empty text.
fn trim(text: &[u8]) -> Result<Option<&[u8]>, Violation> {
    match text {
        [] => Ok(None),
        [.., 0] => {
            let end = text.iter().rposition(|byte| *byte != 0);
            Ok(end.and_then(|end| text.get(..=end)))
        }
        _ => Err(Violation::Unterminated),
    }
}

/// Checks for a standard-label: a capital letter, then letters, digits, and `.-+@_`; `X#` is
/// accepted because RFC 3720 used it.
fn is_key_name(name: &str) -> bool {
    let name_bytes = name.strip_prefix("X#").unwrap_or(name).as_bytes();
    let first_ok = name.as_bytes().first().is_some_and(u8::is_ascii_uppercase);
    first_ok
        && name.len() <= KEY_BYTES_MAX
        && name_bytes.iter().all(|byte| byte.is_ascii_alphanumeric() || b".-+@_".contains(byte))
}

/// A text to send.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct TextBuilder(String);

impl TextBuilder {
    /// Creates an empty text.
    pub const fn new() -> Self {
        Self(String::new())
    }

    /// Adds `name=value` and its delimiter.
    pub fn pair(&mut self, name: &str, value: impl Display) {
        // Writing to a String cannot fail.
        let _ = write!(self.0, "{name}={value}\0");
    }

    /// Adds a known key.
    pub fn key(&mut self, key: Key, value: impl Display) {
        self.pair(key.name(), value);
    }

    /// Appends all pairs of `other`.
    pub fn append(&mut self, other: Self) {
        self.0.push_str(&other.0);
    }

    /// True if no pair was added.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// The bytes, with a delimiter after every pair.
    pub fn into_bytes(self) -> Vec<u8> {
        self.0.into_bytes()
    }
}

/// Keys that one side has sent in a negotiation, to detect repetitions. RFC 7143 §6.3, §6.4.
#[derive(Clone, Debug, Default)]
pub struct KeySet {
    known: u64,
    unknown: BTreeSet<Box<str>>,
    /// Memory of the unknown keys.
    unknown_bytes: usize,
}

/// Memory of an unknown key besides its name: an entry of a half full node of the set, and what an
/// allocator adds to the name.
const UNKNOWN_KEY_BYTES: usize = 2 * size_of::<Box<str>>() + 16;

const _: () = assert!(Key::COUNT <= u64::BITS as usize);

impl KeySet {
    /// The empty set.
    pub const EMPTY: Self = Self { known: 0, unknown: BTreeSet::new(), unknown_bytes: 0 };

    /// Adds a known key.
    pub const fn insert(&mut self, key: Key) {
        self.known |= 1 << key as u64;
    }

    /// Adds the key of a pair.
    ///
    /// # Errors
    /// [`Violation::Repeated`] if the set contains the key (TargetAddress may be repeated), and
    /// [`Violation::TooManyPairs`] after [`PAIRS_MAX`] unknown keys.
    pub fn record(&mut self, pair: &Pair<'_>) -> Result<(), Violation> {
        match pair.key {
            Some(Key::TargetAddress) => Ok(()),
            Some(key) if self.has(key) => Err(Violation::Repeated(key.name().to_string())),
            Some(key) => {
                self.insert(key);
                Ok(())
            }
            None if self.unknown.contains(pair.name) => {
                Err(Violation::Repeated(pair.name.to_string()))
            }
            None if self.unknown.len() == PAIRS_MAX => {
                Err(Violation::TooManyPairs { pairs_max: PAIRS_MAX })
            }
            None => {
                self.unknown.insert(pair.name.into());
                self.unknown_bytes += pair.name.len() + UNKNOWN_KEY_BYTES;
                Ok(())
            }
        }
    }

    /// Memory of the keys.
    pub(crate) const fn memory_bytes(&self) -> usize {
        self.unknown_bytes
    }

    /// True if `key` was sent.
    pub const fn has(&self, key: Key) -> bool {
        self.known & 1 << key as u64 != 0
    }
}
