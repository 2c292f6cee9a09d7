//! Lists of attributes that were read, of one object or of several.

use super::{
    AttributeListError, AttributeListType, AttributeValue, NO_VALUE, decode_header, encode_header,
    header_bytes, put_value, split_number, split_value,
};
use crate::osd::{ATTRIBUTE_VALUE_BYTES_MAX, ObjectType, OsdVersion};
use alloc::vec::Vec;

lunar_wire::wire_struct! {
    /// The header of one object in a list of several objects. OSD-2.
    pub struct ObjectHeader [16] {
        0 => object: u64,
        8 => object_type: ObjectType,
        /// Interpretation: four bytes. The drafts have two, at byte 14; that is the same for lists
        /// of less than 64 KiB, and longer ones would have no length.
        12 => list_bytes: u32,
    }
}

/// Builds a list of attributes that were read. Lengths count all entries, also those beyond the
/// allocation length, which are cut.
#[derive(Clone, Debug)]
pub struct RetrievedListBuilder {
    version: OsdVersion,
    list_type: AttributeListType,
    allocation_bytes: usize,
    /// Entries, of which the last may be cut.
    entries: Vec<u8>,
    /// Length of all entries.
    list_bytes: u64,
}

impl RetrievedListBuilder {
    /// Begins the list of one object.
    pub fn new(version: OsdVersion, allocation_bytes: usize) -> Self {
        Self::with_type(version, AttributeListType::VALUES, allocation_bytes)
    }

    /// Begins the list of several objects.
    pub fn for_objects(version: OsdVersion, allocation_bytes: usize) -> Self {
        let list_type = match version.is_osd2() {
            true => AttributeListType::OBJECTS,
            false => AttributeListType::OBJECT_VALUES,
        };
        Self::with_type(version, list_type, allocation_bytes)
    }

    fn with_type(
        version: OsdVersion,
        list_type: AttributeListType,
        allocation_bytes: usize,
    ) -> Self {
        Self { version, list_type, allocation_bytes, entries: Vec::new(), list_bytes: 0 }
    }

    /// Adds an attribute to the list of one object.
    pub fn push(&mut self, value: &AttributeValue<'_>) {
        let mut entry = Vec::new();
        put_result(self.version, value, &mut entry);
        self.append(&entry);
    }

    /// Adds an object with its attributes to the list of several objects.
    pub fn push_object(
        &mut self,
        object: u64,
        object_type: ObjectType,
        values: &[AttributeValue<'_>],
    ) {
        self.append(&encode_object(self.version, object, object_type, values));
    }

    fn append(&mut self, entry: &[u8]) {
        self.list_bytes = self.list_bytes.saturating_add(entry.len() as u64);
        let room = self.allocation_bytes.saturating_sub(self.entries.len());
        self.entries.extend_from_slice(&entry[..entry.len().min(room)]);
    }

    /// True if further entries would only change the length in the header.
    pub fn is_full(&self) -> bool {
        self.entries.len() >= self.allocation_bytes
    }

    /// Returns the list, at most as long as the allocation length.
    pub fn finish(self) -> Vec<u8> {
        let mut list = encode_header(self.version, self.list_type, self.list_bytes);
        list.extend_from_slice(&self.entries);
        list.truncate(self.allocation_bytes);
        list
    }
}

/// Encodes one object of a list of several objects.
pub(in crate::osd) fn encode_object(
    version: OsdVersion,
    object: u64,
    object_type: ObjectType,
    values: &[AttributeValue<'_>],
) -> Vec<u8> {
    let mut entries = Vec::new();
    if !version.is_osd2() {
        for value in values {
            entries.extend_from_slice(&object.to_be_bytes());
            put_result(version, value, &mut entries);
        }
        return entries;
    }
    values.iter().for_each(|value| put_result(version, value, &mut entries));
    let list_bytes = u32::try_from(entries.len()).unwrap_or(u32::MAX);
    let mut bytes = ObjectHeader { object, object_type, list_bytes }.encode().to_vec();
    bytes.extend_from_slice(&entries);
    bytes
}

/// Appends an entry of a result.
///
/// Interpretation: a value that is not defined has a length of FFFFh in OSD-1, of 0 in OSD-2; one
/// that is too long is shown as not defined.
fn put_result(version: OsdVersion, value: &AttributeValue<'_>, list: &mut Vec<u8>) {
    let is_defined = (1..=ATTRIBUTE_VALUE_BYTES_MAX).contains(&value.value.len());
    let shown = if is_defined { value.value } else { &[] };
    let value_bytes = match (is_defined, version.is_osd2()) {
        (true, _) => shown.len() as u16,
        (false, true) => 0,
        (false, false) => NO_VALUE,
    };
    put_value(version, &AttributeValue { name: value.name, value: shown }, value_bytes, list);
}

/// Attributes that were read of one object. Their order has no meaning.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct RetrievedAttributes<'a> {
    /// The attributes that arrived.
    pub values: Vec<AttributeValue<'a>>,
    /// True if the allocation length was too small for all.
    pub is_truncated: bool,
}

/// Attributes that were read of several objects.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct MultiObjectAttributes<'a> {
    /// The objects that arrived.
    pub objects: Vec<ObjectAttributes<'a>>,
    /// True if the allocation length was too small for all.
    pub is_truncated: bool,
}

/// An object with its attributes.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct ObjectAttributes<'a> {
    /// The id in the partition, or of the partition.
    pub object: u64,
    /// The type; `None` in OSD-1, and of device servers that do not show it.
    pub object_type: Option<ObjectType>,
    /// The attributes that arrived.
    pub values: Vec<AttributeValue<'a>>,
}

/// The entries of a result as far as they arrived.
struct Arrived<'a> {
    list_type: AttributeListType,
    entries: &'a [u8],
    is_truncated: bool,
}

/// Splits a result into header and entries; `None` if not even the header arrived.
fn arrived(version: OsdVersion, list: &[u8]) -> Option<Arrived<'_>> {
    let (list_type, list_bytes, entries) = decode_header(version, list)?;
    // OSD-1 has no room for the length of a longer list.
    let is_open_ended = !version.is_osd2() && list_bytes == u16::MAX.into();
    let end = usize::try_from(list_bytes).ok().filter(|_| !is_open_ended).unwrap_or(usize::MAX);
    let is_truncated = end > entries.len();
    Some(Arrived { list_type, entries: &entries[..end.min(entries.len())], is_truncated })
}

/// Decodes the attributes of one object from data-in. Bytes behind the list are ignored.
///
/// # Errors
/// If this is no such list, or its length ends inside an entry.
pub fn decode_retrieved_list(
    version: OsdVersion,
    list: &[u8],
) -> Result<RetrievedAttributes<'_>, AttributeListError> {
    let Some(Arrived { list_type, entries, is_truncated }) = arrived(version, list) else {
        return Ok(RetrievedAttributes { values: Vec::new(), is_truncated: true });
    };
    if list_type != AttributeListType::VALUES {
        return Err(AttributeListError::Type(list_type));
    }
    let at = header_bytes(version);
    let values = decode_values(version, entries, at, is_truncated)?;
    Ok(RetrievedAttributes { values, is_truncated })
}

/// Decodes entries, of which the last may be incomplete if `is_truncated`.
fn decode_values(
    version: OsdVersion,
    entries: &[u8],
    at: usize,
    is_truncated: bool,
) -> Result<Vec<AttributeValue<'_>>, AttributeListError> {
    let (mut values, mut rest) = (Vec::new(), entries);
    while !rest.is_empty() {
        let Some(entry) = split_value(version, rest) else {
            if is_truncated {
                break;
            }
            return Err(AttributeListError::Length { at: at + entries.len() - rest.len() });
        };
        values.push(AttributeValue { name: entry.name, value: entry.value.unwrap_or(&[]) });
        rest = entry.rest;
    }
    Ok(values)
}

/// Decodes the attributes of several objects from data-in.
///
/// # Errors
/// The same as those of [`decode_retrieved_list`].
pub fn decode_multi_object_list(
    version: OsdVersion,
    list: &[u8],
) -> Result<MultiObjectAttributes<'_>, AttributeListError> {
    let Some(Arrived { list_type, entries, is_truncated }) = arrived(version, list) else {
        return Ok(MultiObjectAttributes { objects: Vec::new(), is_truncated: true });
    };
    let objects = match list_type {
        AttributeListType::OBJECTS if version.is_osd2() => {
            decode_objects(version, entries, is_truncated)?
        }
        AttributeListType::OBJECT_VALUES if !version.is_osd2() => {
            decode_object_values(version, entries, is_truncated)?
        }
        other => return Err(AttributeListError::Type(other)),
    };
    Ok(MultiObjectAttributes { objects, is_truncated })
}

/// Decodes objects that each have a header. OSD-2.
pub(in crate::osd) fn decode_objects(
    version: OsdVersion,
    entries: &[u8],
    is_truncated: bool,
) -> Result<Vec<ObjectAttributes<'_>>, AttributeListError> {
    let (mut objects, mut rest) = (Vec::new(), entries);
    while !rest.is_empty() {
        let at = header_bytes(version) + entries.len() - rest.len();
        let Some((header, body)) = rest.split_first_chunk() else {
            if is_truncated {
                break;
            }
            return Err(AttributeListError::Length { at });
        };
        let ObjectHeader { object, object_type, list_bytes } = ObjectHeader::decode(header);
        let end = usize::try_from(list_bytes).unwrap_or(usize::MAX);
        if end > body.len() && !is_truncated {
            return Err(AttributeListError::Length { at });
        }
        let (own, after) = body.split_at(end.min(body.len()));
        let values = decode_values(version, own, at + ObjectHeader::LEN, end > own.len())?;
        let object_type = Some(object_type).filter(|object_type| object_type.0 != 0);
        objects.push(ObjectAttributes { object, object_type, values });
        rest = after;
    }
    Ok(objects)
}

/// Decodes attributes that each have an object id. OSD-1.
pub(in crate::osd) fn decode_object_values(
    version: OsdVersion,
    entries: &[u8],
    is_truncated: bool,
) -> Result<Vec<ObjectAttributes<'_>>, AttributeListError> {
    let (mut objects, mut rest): (Vec<ObjectAttributes<'_>>, _) = (Vec::new(), entries);
    while !rest.is_empty() {
        let at = header_bytes(version) + entries.len() - rest.len();
        let split = split_number::<u64>(rest)
            .and_then(|(object, rest)| Some((object, split_value(version, rest)?)));
        let Some((object, entry)) = split else {
            if is_truncated {
                break;
            }
            return Err(AttributeListError::Length { at });
        };
        let value = AttributeValue { name: entry.name, value: entry.value.unwrap_or(&[]) };
        match objects.last_mut().filter(|last| last.object == object) {
            Some(last) => last.values.push(value),
            None => {
                let values = Vec::from([value]);
                objects.push(ObjectAttributes { object, object_type: None, values });
            }
        }
        rest = entry.rest;
    }
    Ok(objects)
}
