//! The CDB continuation segment: descriptors of a command for which its CDB has no room. OSD-2,
//! revision 4 and later.

mod query;

pub use query::{QUERY_CRITERIA_MAX, QueryCriterion, QueryList, QueryListError, QueryMatch};

use super::{
    CONTINUATION_BYTES_MAX, CONTINUATION_BYTES_MIN, ObjectAddress, ObjectRange, OsdAction,
    OsdCapability, OsdVersion,
};
use crate::sense::Sense;
use alloc::vec::Vec;

lunar_wire::wire_struct! {
    /// The header of the segment.
    pub struct ContinuationHeader [40] {
        /// 01h.
        0 => format: u8,
        /// The same as in the CDB.
        2 => service_action: u16,
        8 => integrity_value: [u8; 32],
    }
}

lunar_wire::wire_struct! {
    /// The start of a descriptor.
    pub struct DescriptorHeader [8] {
        0 => descriptor_type: ContinuationDescriptorType,
        /// PAD LENGTH 07h: the number of bytes after the data.
        3 => pad: u8,
        4 => data_bytes: u32,
    }
}

lunar_wire::wire_struct! {
    /// An entry of a scatter/gather list.
    pub struct ScatterGatherEntry [16] {
        0 => start: u64,
        8 => length: u64,
    }
}

lunar_wire::wire_struct! {
    /// An entry of a list of user objects. Interpretation: no source shows the layout.
    pub struct UserObjectEntry [16] {
        0 => partition: u64,
        8 => object: u64,
    }
}

lunar_wire::wire_struct! {
    /// The source of COPY USER OBJECTS. Interpretation: the bits of the last two bytes.
    pub struct CopySource [18] {
        0 => partition: u64,
        8 => object: u64,
        16 => flags: CopySourceFlags,
        17 => time_of_duplication: u8,
    }
}

lunar_wire::wire_flags! {
    /// Options of the source of a copy.
    pub struct CopySourceFlags(u8) {
        /// The attributes are copied too.
        COPY_ATTRIBUTES = 0x01,
        /// The source does not change during the copy.
        FREEZE = 0x02,
    }
}

lunar_wire::wire_enum! {
    /// The type of a descriptor.
    pub struct ContinuationDescriptorType(u16) {
        /// Ends the list; the end of the segment does so too.
        NO_MORE_DESCRIPTORS = 0x0000,
        SCATTER_GATHER = 0x0001, QUERY = 0x0002,
        /// User objects, as Linux has the code. Only decoded.
        USER_OBJECT_LINUX = 0x0003,
        /// Interpretation: sources have 0003h or 0100h.
        USER_OBJECT = 0x0100,
        COPY_SOURCE = 0x0101, EXTENSION_CAPABILITIES = 0xffee,
    }
}

/// FORMAT of the segment.
const FORMAT: u8 = 0x01;
/// Alignment of descriptors.
const ALIGNMENT: usize = 8;
/// Maximum number of descriptors.
pub const CONTINUATION_DESCRIPTORS_MAX: usize = 8;
/// Maximum number of entries of a scatter/gather list.
pub const SCATTER_GATHER_ENTRIES_MAX: usize = 2048;
/// Maximum number of user objects of a descriptor.
pub const CONTINUATION_OBJECTS_MAX: usize = 1024;
/// Maximum number of extension capabilities.
pub const EXTENSION_CAPABILITIES_MAX: usize = 8;

/// A descriptor.
#[derive(Clone, Debug, Eq, PartialEq)]
pub enum ContinuationDescriptor {
    /// Ranges of the user object, which take the bytes of the command data one after the other.
    ScatterGather(Vec<ObjectRange>),
    /// The criteria of QUERY.
    Query(QueryList),
    /// User objects.
    UserObjects(Vec<ObjectAddress>),
    /// The source of COPY USER OBJECTS.
    CopySource(CopySource),
    /// Capabilities of a command on several objects.
    ///
    /// Interpretation: whole capabilities of OSD-2, one after the other.
    ExtensionCapabilities(Vec<OsdCapability>),
}

/// A decoded CDB continuation segment.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct ContinuationSegment {
    /// The command, whose service action the header repeats.
    pub action: OsdAction,
    /// INTEGRITY CHECK VALUE of the segment, not verified.
    pub integrity_value: [u8; 32],
    /// The descriptors.
    pub descriptors: Vec<ContinuationDescriptor>,
}

/// The reason why a CDB continuation segment is invalid.
#[derive(Clone, Copy, Debug, Eq, PartialEq, thiserror::Error)]
pub enum ContinuationError {
    /// A length is not aligned or exceeds what contains it, or a limit of the segment.
    #[error("a length is invalid at byte {at}")]
    Length {
        /// Offset of the field.
        at: usize,
    },
    /// The format is unknown, or the service action is not that of the CDB.
    #[error("the header is invalid at byte {at}")]
    Header {
        /// Offset of the field.
        at: usize,
    },
    /// The command has no descriptor of this type, or not another one.
    #[error("the command has no such descriptor, at byte {at}")]
    Unexpected {
        /// Offset of the descriptor.
        at: usize,
    },
    /// The command needs a descriptor of this type.
    #[error("a descriptor of type {0:?} is missing")]
    Missing(ContinuationDescriptorType),
    /// More entries than a limit allows.
    #[error("too many entries in the descriptor at byte {at}")]
    TooMany {
        /// Offset of the descriptor.
        at: usize,
    },
    /// A value is invalid.
    #[error("a value is invalid at byte {at}")]
    Value {
        /// Offset of the value or of its entry.
        at: usize,
    },
}

impl ContinuationError {
    /// The sense to send. The segment is at the start of data-out.
    pub fn sense(&self) -> Sense {
        match *self {
            Self::Length { .. } => Sense::PARAMETER_LIST_LENGTH_ERROR,
            // The position where the descriptor would be.
            Self::Missing(_) => {
                Sense::invalid_field_in_parameter_list(ContinuationHeader::LEN as u16, None)
            }
            // The segment is not longer than a field pointer reaches.
            Self::Header { at }
            | Self::Unexpected { at }
            | Self::TooMany { at }
            | Self::Value { at } => Sense::invalid_field_in_parameter_list(at as u16, None),
        }
    }
}

impl OsdAction {
    /// The descriptor that the command needs in the CDB continuation segment of OSD-2.
    pub const fn required_descriptor(self) -> Option<ContinuationDescriptorType> {
        match self {
            Self::Query => Some(ContinuationDescriptorType::QUERY),
            Self::CopyUserObjects => Some(ContinuationDescriptorType::COPY_SOURCE),
            Self::ReadMapsAndCompare => Some(ContinuationDescriptorType::USER_OBJECT),
            _ => None,
        }
    }

    /// True if the command may have a descriptor of this type.
    fn allows(self, descriptor_type: ContinuationDescriptorType) -> bool {
        match descriptor_type {
            ContinuationDescriptorType::SCATTER_GATHER => {
                matches!(self, Self::Read | Self::Write | Self::CreateAndWrite)
            }
            // The commands on a second object.
            ContinuationDescriptorType::EXTENSION_CAPABILITIES => matches!(
                self,
                Self::Query
                    | Self::CopyUserObjects
                    | Self::ReadMapsAndCompare
                    | Self::CreateUserTrackingCollection
                    | Self::CreateSnapshot
                    | Self::CreateClone
                    | Self::RefreshSnapshotOrClone
                    | Self::RestorePartitionFromSnapshot
            ),
            other => self.required_descriptor() == Some(other),
        }
    }
}

impl ContinuationDescriptor {
    /// The type under which the descriptor is encoded.
    pub const fn descriptor_type(&self) -> ContinuationDescriptorType {
        match self {
            Self::ScatterGather(_) => ContinuationDescriptorType::SCATTER_GATHER,
            Self::Query(_) => ContinuationDescriptorType::QUERY,
            Self::UserObjects(_) => ContinuationDescriptorType::USER_OBJECT,
            Self::CopySource(_) => ContinuationDescriptorType::COPY_SOURCE,
            Self::ExtensionCapabilities(_) => ContinuationDescriptorType::EXTENSION_CAPABILITIES,
        }
    }

    /// Decodes the data of a descriptor, whose header is at `at`.
    fn decode(
        descriptor_type: ContinuationDescriptorType,
        data: &[u8],
        at: usize,
    ) -> Result<Self, ContinuationError> {
        let data_at = at + DescriptorHeader::LEN;
        match descriptor_type {
            ContinuationDescriptorType::SCATTER_GATHER => {
                let range = |entry: &[u8; ScatterGatherEntry::LEN]| {
                    let ScatterGatherEntry { start, length } = ScatterGatherEntry::decode(entry);
                    ObjectRange { start, length }
                };
                let list = entries(data, at, SCATTER_GATHER_ENTRIES_MAX, range)?;
                check_ranges(&list, data_at)?;
                Ok(Self::ScatterGather(list))
            }
            ContinuationDescriptorType::QUERY => QueryList::decode(data)
                .map(Self::Query)
                .map_err(|error| error.in_segment(at, data_at)),
            ContinuationDescriptorType::USER_OBJECT => {
                let object = |entry: &[u8; UserObjectEntry::LEN]| {
                    let UserObjectEntry { partition, object } = UserObjectEntry::decode(entry);
                    ObjectAddress { partition, object }
                };
                entries(data, at, CONTINUATION_OBJECTS_MAX, object).map(Self::UserObjects)
            }
            ContinuationDescriptorType::COPY_SOURCE => {
                let data = data.try_into().map_err(|_| ContinuationError::Length { at: at + 4 })?;
                Ok(Self::CopySource(CopySource::decode(data)))
            }
            ContinuationDescriptorType::EXTENSION_CAPABILITIES => {
                let capability = |bytes: &[u8; OsdCapability::BYTES]| {
                    OsdCapability::decode(OsdVersion::Osd2, bytes)
                };
                entries(data, at, EXTENSION_CAPABILITIES_MAX, capability)
                    .map(Self::ExtensionCapabilities)
            }
            _ => Err(ContinuationError::Unexpected { at }),
        }
    }

    fn encode(&self) -> Vec<u8> {
        match self {
            Self::ScatterGather(list) => {
                let entry = |range: &ObjectRange| {
                    ScatterGatherEntry { start: range.start, length: range.length }.encode()
                };
                list.iter().flat_map(entry).collect()
            }
            Self::Query(list) => list.encode(),
            Self::UserObjects(list) => {
                let entry = |object: &ObjectAddress| {
                    let ObjectAddress { partition, object } = *object;
                    UserObjectEntry { partition, object }.encode()
                };
                list.iter().flat_map(entry).collect()
            }
            Self::CopySource(source) => source.encode().to_vec(),
            Self::ExtensionCapabilities(list) => {
                list.iter().flat_map(|capability| capability.encode(OsdVersion::Osd2)).collect()
            }
        }
    }
}

/// Decodes whole entries, at least one.
fn entries<const N: usize, T>(
    data: &[u8],
    at: usize,
    max: usize,
    decode: impl Fn(&[u8; N]) -> T,
) -> Result<Vec<T>, ContinuationError> {
    let (entries, rest) = data.as_chunks::<N>();
    if entries.is_empty() || !rest.is_empty() {
        return Err(ContinuationError::Length { at: at + 4 });
    }
    if entries.len() > max {
        return Err(ContinuationError::TooMany { at });
    }
    Ok(entries.iter().map(decode).collect())
}

/// Checks that each range, and all together, end within 2^64 bytes.
fn check_ranges(list: &[ObjectRange], data_at: usize) -> Result<(), ContinuationError> {
    let mut total = 0_u64;
    for (index, range) in list.iter().enumerate() {
        let at = data_at + index * ScatterGatherEntry::LEN;
        range.start.checked_add(range.length).ok_or(ContinuationError::Value { at })?;
        total = total.checked_add(range.length).ok_or(ContinuationError::Value { at })?;
    }
    Ok(())
}

impl ContinuationSegment {
    /// Decodes the segment of a CDB with the command `action`.
    ///
    /// # Errors
    /// If a length or value is invalid, a limit is exceeded, or the descriptors are not those of
    /// the command. Each type occurs once at most.
    pub fn decode(segment: &[u8], action: OsdAction) -> Result<Self, ContinuationError> {
        let limits = CONTINUATION_BYTES_MIN as usize..=CONTINUATION_BYTES_MAX as usize;
        if !limits.contains(&segment.len()) || !segment.len().is_multiple_of(ALIGNMENT) {
            return Err(ContinuationError::Length { at: 0 });
        }
        let (header, mut rest) =
            segment.split_first_chunk().ok_or(ContinuationError::Length { at: 0 })?;
        let header = ContinuationHeader::decode(header);
        if header.format != FORMAT {
            return Err(ContinuationError::Header { at: 0 });
        }
        if action.code(OsdVersion::Osd2) != Some(header.service_action) {
            return Err(ContinuationError::Header { at: 2 });
        }
        let mut descriptors: Vec<ContinuationDescriptor> = Vec::new();
        while let Some((header, body)) = rest.split_first_chunk() {
            let at = segment.len() - rest.len();
            let header = DescriptorHeader::decode(header);
            let mut descriptor_type = header.descriptor_type;
            match descriptor_type {
                ContinuationDescriptorType::NO_MORE_DESCRIPTORS => break,
                ContinuationDescriptorType::USER_OBJECT_LINUX => {
                    descriptor_type = ContinuationDescriptorType::USER_OBJECT;
                }
                _ => {}
            }
            if descriptors.len() == CONTINUATION_DESCRIPTORS_MAX {
                return Err(ContinuationError::TooMany { at });
            }
            let is_repeated =
                descriptors.iter().any(|other| other.descriptor_type() == descriptor_type);
            if is_repeated || !action.allows(descriptor_type) {
                return Err(ContinuationError::Unexpected { at });
            }
            let (data, after) =
                split_data(&header, body).ok_or(ContinuationError::Length { at: at + 4 })?;
            descriptors.push(ContinuationDescriptor::decode(descriptor_type, data, at)?);
            rest = after;
        }
        let segment = Self { action, integrity_value: header.integrity_value, descriptors };
        segment.check_required()?;
        Ok(segment)
    }

    fn check_required(&self) -> Result<(), ContinuationError> {
        let Some(required) = self.action.required_descriptor() else { return Ok(()) };
        let is_required = |found: &&ContinuationDescriptor| found.descriptor_type() == required;
        if self.descriptors.iter().any(|found| is_required(&found)) {
            Ok(())
        } else {
            Err(ContinuationError::Missing(required))
        }
    }

    /// Encodes the segment; `None` if the command has no SERVICE ACTION in OSD-2, or its segment
    /// exceeds a limit or has other descriptors than the command.
    pub fn encode(&self) -> Option<Vec<u8>> {
        let header = ContinuationHeader {
            format: FORMAT,
            service_action: self.action.code(OsdVersion::Osd2)?,
            integrity_value: self.integrity_value,
        };
        let mut segment = header.encode().to_vec();
        for descriptor in &self.descriptors {
            let data = descriptor.encode();
            let pad = data.len().next_multiple_of(ALIGNMENT) - data.len();
            let header = DescriptorHeader {
                descriptor_type: descriptor.descriptor_type(),
                pad: pad as u8,
                data_bytes: u32::try_from(data.len()).ok()?,
            };
            segment.extend_from_slice(&header.encode());
            segment.extend_from_slice(&data);
            segment.extend(core::iter::repeat_n(0, pad));
        }
        if self.descriptors.is_empty() {
            segment.extend_from_slice(&[0; DescriptorHeader::LEN]);
        }
        let decoded = Self::decode(&segment, self.action);
        decoded.is_ok_and(|decoded| decoded == *self).then_some(segment)
    }

    /// The scatter/gather list, if there is one.
    pub fn scatter_gather(&self) -> Option<&[ObjectRange]> {
        self.descriptors.iter().find_map(|descriptor| match descriptor {
            ContinuationDescriptor::ScatterGather(list) => Some(list.as_slice()),
            _ => None,
        })
    }

    /// True if the scatter/gather list, if there is one, has the LENGTH of the command. Otherwise
    /// the command is refused at LENGTH.
    pub fn has_length(&self, length: u64) -> bool {
        let Some(list) = self.scatter_gather() else { return true };
        let sum = list.iter().try_fold(0_u64, |sum, range| sum.checked_add(range.length));
        sum == Some(length)
    }
}

/// Splits the data of a descriptor, with its padding, from the rest of the segment.
fn split_data<'a>(header: &DescriptorHeader, body: &'a [u8]) -> Option<(&'a [u8], &'a [u8])> {
    let data_bytes = usize::try_from(header.data_bytes).ok()?;
    let all_bytes = data_bytes.checked_add(usize::from(header.pad & 0x07))?;
    if !all_bytes.is_multiple_of(ALIGNMENT) {
        return None;
    }
    let (all, rest) = body.split_at_checked(all_bytes)?;
    Some((&all[..data_bytes], rest))
}
