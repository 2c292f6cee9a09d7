//! Lists of attributes in the data-in and data-out buffers.
//!
//! Interpretation: the length of a list in data-out is that in the CDB. The length in its header is
//! ignored, because some initiators leave it 0 and others do not.

mod retrieved;

pub use retrieved::{
    MultiObjectAttributes, ObjectAttributes, RetrievedAttributes, RetrievedListBuilder,
    decode_multi_object_list, decode_retrieved_list,
};

pub(super) use retrieved::{decode_objects, encode_object};

use super::{ATTRIBUTE_VALUE_BYTES_MAX, AttributeName, OsdVersion};
use crate::sense::{FieldPointer, Sense};
use alloc::vec::Vec;
use lunar_wire::Field;

lunar_wire::wire_struct! {
    /// The header of a list of OSD-1.
    pub struct Osd1ListHeader [4] {
        /// LIST TYPE 0Fh.
        0 => list_type: u8,
        2 => list_bytes: u16,
    }
}

lunar_wire::wire_struct! {
    /// The header of a list of OSD-2.
    pub struct Osd2ListHeader [8] {
        /// LIST TYPE 0Fh.
        0 => list_type: u8,
        4 => list_bytes: u32,
    }
}

lunar_wire::wire_struct! {
    /// An entry of a list of attributes to read.
    pub struct NameEntry [8] {
        0 => page: u32,
        4 => number: u32,
    }
}

lunar_wire::wire_struct! {
    /// The start of an entry with a value, of OSD-1. The value follows without padding.
    pub struct Osd1ValueHeader [10] {
        0 => page: u32,
        4 => number: u32,
        8 => value_bytes: u16,
    }
}

lunar_wire::wire_struct! {
    /// The start of an entry with a value, of OSD-2. The value is padded to a multiple of eight
    /// bytes.
    pub struct Osd2ValueHeader [16] {
        0 => page: u32,
        4 => number: u32,
        14 => value_bytes: u16,
    }
}

lunar_wire::wire_enum! {
    /// LIST TYPE.
    pub struct AttributeListType(u8) {
        /// Names of attributes to read.
        NAMES = 0x1,
        /// Attributes with values, to set or that were read.
        VALUES = 0x9,
        /// The attributes of several objects. OSD-2.
        OBJECTS = 0xe,
        /// Attributes, each with its object. OSD-1.
        OBJECT_VALUES = 0xf,
    }
}

/// Maximum number of entries of a list in data-out.
pub const ATTRIBUTE_ENTRIES_MAX: usize = 4096;
/// Alignment of the entries of OSD-2.
const ALIGNMENT: usize = 8;
/// Length of a value that an attribute does not have, in results of OSD-1.
const NO_VALUE: u16 = 0xffff;

/// An attribute with its value. No bytes mean that the attribute is not defined, and to set them
/// removes it.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct AttributeValue<'a> {
    /// The name.
    pub name: AttributeName,
    /// The value, at most [`ATTRIBUTE_VALUE_BYTES_MAX`].
    pub value: &'a [u8],
}

/// The reason why a list of attributes is invalid.
#[derive(Clone, Copy, Debug, Eq, PartialEq, thiserror::Error)]
pub enum AttributeListError {
    /// The list has another LIST TYPE.
    #[error("a list of type {0:?}")]
    Type(AttributeListType),
    /// The list ends inside the header or an entry, or is not aligned.
    #[error("a list ends inside an entry, at byte {at}")]
    Length {
        /// Offset of the entry.
        at: usize,
    },
    /// The list has more than [`ATTRIBUTE_ENTRIES_MAX`] entries.
    #[error("more than {ATTRIBUTE_ENTRIES_MAX} entries")]
    TooMany,
    /// A name that cannot be set stands for several attributes, or a value is too long.
    #[error("{name:?} with its value cannot be set")]
    Value {
        /// Offset of the entry.
        at: usize,
        /// The attribute.
        name: AttributeName,
    },
}

impl AttributeListError {
    /// The sense to send if the list begins at `list_offset` in data-out.
    pub fn sense(&self, list_offset: u64) -> Sense {
        let invalid = |at: usize| match u16::try_from(list_offset.saturating_add(at as u64)) {
            Ok(byte) => Sense::INVALID_FIELD_IN_PARAMETER_LIST.with_field(FieldPointer {
                in_cdb: false,
                byte,
                bit: None,
            }),
            Err(_) => Sense::INVALID_FIELD_IN_PARAMETER_LIST,
        };
        match self {
            Self::Type(_) => invalid(0),
            Self::Length { .. } | Self::TooMany => Sense::PARAMETER_LIST_LENGTH_ERROR,
            Self::Value { at, name } => invalid(*at).with_attributes(&[*name]),
        }
    }
}

/// Length of the header of a list.
const fn header_bytes(version: OsdVersion) -> usize {
    if version.is_osd2() { Osd2ListHeader::LEN } else { Osd1ListHeader::LEN }
}

/// Encodes the header of a list. A length that OSD-1 has no room for is FFFFh.
fn encode_header(version: OsdVersion, list_type: AttributeListType, list_bytes: u64) -> Vec<u8> {
    let list_type = list_type.0;
    if version.is_osd2() {
        let list_bytes = u32::try_from(list_bytes).unwrap_or(u32::MAX);
        Osd2ListHeader { list_type, list_bytes }.encode().to_vec()
    } else {
        let list_bytes = u16::try_from(list_bytes).unwrap_or(u16::MAX);
        Osd1ListHeader { list_type, list_bytes }.encode().to_vec()
    }
}

/// Splits the header from a list: the type, the length in the header, and the entries.
fn decode_header(version: OsdVersion, list: &[u8]) -> Option<(AttributeListType, u64, &[u8])> {
    let (list_type, list_bytes, entries) = if version.is_osd2() {
        let (header, entries) = list.split_first_chunk()?;
        let Osd2ListHeader { list_type, list_bytes } = Osd2ListHeader::decode(header);
        (list_type, list_bytes.into(), entries)
    } else {
        let (header, entries) = list.split_first_chunk()?;
        let Osd1ListHeader { list_type, list_bytes } = Osd1ListHeader::decode(header);
        (list_type, list_bytes.into(), entries)
    };
    Some((AttributeListType(list_type & 0x0f), list_bytes, entries))
}

/// Splits a list in data-out, which must have `expected` type and be aligned.
fn entries_of(
    version: OsdVersion,
    expected: AttributeListType,
    list: &[u8],
) -> Result<&[u8], AttributeListError> {
    let (list_type, _, entries) =
        decode_header(version, list).ok_or(AttributeListError::Length { at: 0 })?;
    if list_type != expected {
        return Err(AttributeListError::Type(list_type));
    }
    if version.is_osd2() && !list.len().is_multiple_of(ALIGNMENT) {
        return Err(AttributeListError::Length { at: list.len() / ALIGNMENT * ALIGNMENT });
    }
    Ok(entries)
}

/// Decodes a list of attributes to read.
///
/// # Errors
/// If the list is not such a list, ends inside an entry, or exceeds a limit.
pub fn decode_get_list(
    version: OsdVersion,
    list: &[u8],
) -> Result<Vec<AttributeName>, AttributeListError> {
    let entries = entries_of(version, AttributeListType::NAMES, list)?;
    let (entries, rest) = entries.as_chunks::<{ NameEntry::LEN }>();
    if !rest.is_empty() {
        return Err(AttributeListError::Length { at: list.len() - rest.len() });
    }
    if entries.len() > ATTRIBUTE_ENTRIES_MAX {
        return Err(AttributeListError::TooMany);
    }
    let name = |entry| {
        let NameEntry { page, number } = NameEntry::decode(entry);
        AttributeName { page, number }
    };
    Ok(entries.iter().map(name).collect())
}

/// Encodes a list of attributes to read. The header has no length, because only device servers set
/// it.
pub fn encode_get_list(version: OsdVersion, names: &[AttributeName]) -> Vec<u8> {
    let mut list = encode_header(version, AttributeListType::NAMES, 0);
    for AttributeName { page, number } in names.iter().copied() {
        list.extend_from_slice(&NameEntry { page, number }.encode());
    }
    list
}

/// Decodes a list of attributes to set.
///
/// # Errors
/// If the list is not such a list, ends inside an entry, exceeds a limit, or has an entry that
/// cannot be set.
pub fn decode_set_list(
    version: OsdVersion,
    list: &[u8],
) -> Result<Vec<AttributeValue<'_>>, AttributeListError> {
    let mut rest = entries_of(version, AttributeListType::VALUES, list)?;
    let mut values = Vec::new();
    while !rest.is_empty() {
        let at = list.len() - rest.len();
        if values.len() == ATTRIBUTE_ENTRIES_MAX {
            return Err(AttributeListError::TooMany);
        }
        let entry = split_value(version, rest).ok_or(AttributeListError::Length { at })?;
        let name = entry.name;
        let is_one =
            name.page != AttributeName::ALL_PAGES && name.number != AttributeName::ALL_NUMBERS;
        let value = entry.value.filter(|_| is_one);
        let value = value.ok_or(AttributeListError::Value { at, name })?;
        values.push(AttributeValue { name, value });
        rest = entry.rest;
    }
    Ok(values)
}

/// Encodes a list of attributes to set, without a length in the header.
///
/// # Errors
/// If a value is too long or a name stands for several attributes.
pub fn encode_set_list(
    version: OsdVersion,
    values: &[AttributeValue<'_>],
) -> Result<Vec<u8>, AttributeListError> {
    let mut list = encode_header(version, AttributeListType::VALUES, 0);
    for value in values {
        let name = value.name;
        let is_one =
            name.page != AttributeName::ALL_PAGES && name.number != AttributeName::ALL_NUMBERS;
        if !is_one || value.value.len() > ATTRIBUTE_VALUE_BYTES_MAX {
            return Err(AttributeListError::Value { at: list.len(), name });
        }
        let value_bytes = value.value.len() as u16;
        put_value(version, value, value_bytes, &mut list);
    }
    Ok(list)
}

/// Appends an entry with a value.
fn put_value(version: OsdVersion, value: &AttributeValue, value_bytes: u16, list: &mut Vec<u8>) {
    let AttributeName { page, number } = value.name;
    if version.is_osd2() {
        list.extend_from_slice(&Osd2ValueHeader { page, number, value_bytes }.encode());
        list.extend_from_slice(value.value);
        list.extend(core::iter::repeat_n(0, padding(value.value.len())));
    } else {
        list.extend_from_slice(&Osd1ValueHeader { page, number, value_bytes }.encode());
        list.extend_from_slice(value.value);
    }
}

/// Number of bytes to the next aligned offset.
const fn padding(bytes: usize) -> usize {
    bytes.next_multiple_of(ALIGNMENT) - bytes
}

/// The first entry of a list of values.
struct SplitValue<'a> {
    name: AttributeName,
    /// `None` if the length is FFFFh.
    value: Option<&'a [u8]>,
    rest: &'a [u8],
}

/// Splits the first entry from a list of values; `None` if the list ends inside it. The padding of
/// the last entry may be missing.
fn split_value(version: OsdVersion, list: &[u8]) -> Option<SplitValue<'_>> {
    let (name, value_bytes, rest) = if version.is_osd2() {
        let (header, rest) = list.split_first_chunk()?;
        let Osd2ValueHeader { page, number, value_bytes } = Osd2ValueHeader::decode(header);
        (AttributeName { page, number }, value_bytes, rest)
    } else {
        let (header, rest) = list.split_first_chunk()?;
        let Osd1ValueHeader { page, number, value_bytes } = Osd1ValueHeader::decode(header);
        (AttributeName { page, number }, value_bytes, rest)
    };
    if value_bytes == NO_VALUE {
        return Some(SplitValue { name, value: None, rest });
    }
    let (value, rest) = rest.split_at_checked(value_bytes.into())?;
    let padding = if version.is_osd2() { padding(value.len()) } else { 0 };
    let rest = rest.get(padding..).unwrap_or(&[]);
    Some(SplitValue { name, value: Some(value), rest })
}

/// Reads a big-endian number at the start of `bytes`, and returns the rest.
fn split_number<F: Field>(bytes: &[u8]) -> Option<(F, &[u8])> {
    let (number, rest) = bytes.split_at_checked(F::SIZE)?;
    Some((F::get(number), rest))
}
