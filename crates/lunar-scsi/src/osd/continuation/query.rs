//! The query list of QUERY: criteria for the attributes of the members of a collection.

use super::ContinuationError;
use crate::osd::AttributeName;
use crate::sense::Sense;
use alloc::vec::Vec;
use lunar_wire::Field;

lunar_wire::wire_struct! {
    /// The start of a query list.
    pub struct QueryListHeader [4] {
        0 => query_match: QueryMatchCode,
    }
}

lunar_wire::wire_struct! {
    /// The start of an entry; minimum and maximum follow, each with its length in two bytes.
    pub struct QueryEntryHeader [12] {
        2 => entry_bytes: u16,
        4 => page: u32,
        8 => number: u32,
    }
}

lunar_wire::wire_enum! {
    /// QUERY TYPE.
    pub struct QueryMatchCode(u8) { ANY = 0x00, ALL = 0x01 }
}

/// The number of criteria that an object has to meet.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum QueryMatch {
    /// At least one.
    Any,
    /// All.
    All,
}

/// Maximum number of criteria of a query list.
pub const QUERY_CRITERIA_MAX: usize = 64;
/// Attributes pages of user objects have lower numbers.
const USER_PAGES_END: u32 = 0x3000_0000;
/// Length of an entry up to and including its length.
const LENGTH_END: usize = 4;

/// A criterion: the value of an attribute lies in a range of byte strings.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct QueryCriterion {
    /// The attribute, of a page of user objects.
    pub name: AttributeName,
    /// The least value.
    pub minimum: Vec<u8>,
    /// The greatest value; no bytes: no limit.
    pub maximum: Vec<u8>,
}

impl QueryCriterion {
    /// True if the criterion includes the value of the attribute; a value without bytes is that of
    /// an attribute that is not defined, and is never included.
    ///
    /// Interpretation: values are compared as byte strings, and no bytes are no limit.
    pub fn includes(&self, value: &[u8]) -> bool {
        let is_below = self.maximum.is_empty() || value <= self.maximum.as_slice();
        !value.is_empty() && value >= self.minimum.as_slice() && is_below
    }
}

/// The criteria of QUERY.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct QueryList {
    /// The number of criteria to meet.
    pub query_match: QueryMatch,
    /// The criteria.
    pub criteria: Vec<QueryCriterion>,
}

/// The reason why a query list is invalid.
#[derive(Clone, Copy, Debug, Eq, PartialEq, thiserror::Error)]
pub enum QueryListError {
    /// The list ends inside an entry, or an entry has another length than its parts.
    #[error("a length is invalid at byte {at}")]
    Length {
        /// Offset of the entry.
        at: usize,
    },
    /// More than [`QUERY_CRITERIA_MAX`] criteria.
    #[error("more than {QUERY_CRITERIA_MAX} criteria")]
    TooMany,
    /// The query type is unknown, or the attribute is not one of a user object.
    #[error("a value is invalid at byte {at}")]
    Value {
        /// Offset of the value.
        at: usize,
    },
}

impl QueryListError {
    /// The sense to send if the list is at the start of data-out, as revision 3 has it.
    pub fn sense(&self) -> Sense {
        self.in_segment(0, 0).sense()
    }

    /// The error of a list at `data_at` in a segment, in the descriptor at `at`.
    pub(super) fn in_segment(self, descriptor_at: usize, data_at: usize) -> ContinuationError {
        match self {
            Self::Length { at } => ContinuationError::Length { at: data_at + at },
            Self::TooMany => ContinuationError::TooMany { at: descriptor_at },
            Self::Value { at } => ContinuationError::Value { at: data_at + at },
        }
    }
}

impl QueryList {
    /// Decodes a list. An entry of length 0 ends it, as the end of `bytes` does.
    ///
    /// # Errors
    /// If a length or a value is invalid, or a limit is exceeded.
    pub fn decode(bytes: &[u8]) -> Result<Self, QueryListError> {
        let (header, mut rest) =
            bytes.split_first_chunk().ok_or(QueryListError::Length { at: 0 })?;
        let query_match = match QueryListHeader::decode(header).query_match {
            QueryMatchCode::ANY => QueryMatch::Any,
            QueryMatchCode::ALL => QueryMatch::All,
            _ => return Err(QueryListError::Value { at: 0 }),
        };
        let mut criteria = Vec::new();
        while let Some(length) = rest.get(2..LENGTH_END) {
            let at = bytes.len() - rest.len();
            if u16::get(length) == 0 {
                break;
            }
            if criteria.len() == QUERY_CRITERIA_MAX {
                return Err(QueryListError::TooMany);
            }
            let entry = Entry::split(rest).ok_or(QueryListError::Length { at })?;
            if entry.name.page >= USER_PAGES_END {
                return Err(QueryListError::Value { at: at + 4 });
            }
            if entry.name.number == AttributeName::ALL_NUMBERS {
                return Err(QueryListError::Value { at: at + 8 });
            }
            let (minimum, maximum) = (entry.minimum.to_vec(), entry.maximum.to_vec());
            criteria.push(QueryCriterion { name: entry.name, minimum, maximum });
            rest = entry.rest;
        }
        Ok(Self { query_match, criteria })
    }

    /// Encodes the list. Lengths that two bytes cannot express are cut: a caller keeps to
    /// [`ATTRIBUTE_VALUE_BYTES_MAX`](crate::osd::ATTRIBUTE_VALUE_BYTES_MAX).
    pub fn encode(&self) -> Vec<u8> {
        let query_match = match self.query_match {
            QueryMatch::Any => QueryMatchCode::ANY,
            QueryMatch::All => QueryMatchCode::ALL,
        };
        let mut bytes = QueryListHeader { query_match }.encode().to_vec();
        for QueryCriterion { name, minimum, maximum } in &self.criteria {
            let after = QueryEntryHeader::LEN - LENGTH_END + 4 + minimum.len() + maximum.len();
            let header = QueryEntryHeader {
                entry_bytes: after as u16,
                page: name.page,
                number: name.number,
            };
            bytes.extend_from_slice(&header.encode());
            for value in [minimum, maximum] {
                bytes.extend_from_slice(&(value.len() as u16).to_be_bytes());
                bytes.extend_from_slice(value);
            }
        }
        bytes
    }
}

/// The parts of an entry.
struct Entry<'a> {
    name: AttributeName,
    minimum: &'a [u8],
    maximum: &'a [u8],
    rest: &'a [u8],
}

impl<'a> Entry<'a> {
    /// Splits an entry from the list; `None` if it has another length than its parts.
    fn split(list: &'a [u8]) -> Option<Self> {
        let (header, rest) = list.split_first_chunk()?;
        let QueryEntryHeader { entry_bytes, page, number } = QueryEntryHeader::decode(header);
        let (minimum, rest) = split_value(rest)?;
        let (maximum, rest) = split_value(rest)?;
        // Interpretation: the length counts the bytes after itself; one of the whole entry is
        // accepted as well, because the parts show which it is.
        let whole_bytes = list.len() - rest.len();
        let lengths = [whole_bytes - LENGTH_END, whole_bytes];
        let name = AttributeName { page, number };
        lengths.contains(&entry_bytes.into()).then_some(Self { name, minimum, maximum, rest })
    }
}

/// Splits a value with its length.
fn split_value(bytes: &[u8]) -> Option<(&[u8], &[u8])> {
    let (length, rest) = bytes.split_at_checked(2)?;
    rest.split_at_checked(u16::get(length).into())
}
