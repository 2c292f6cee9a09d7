//! Phase 2: the attributes that a command sets and gets, parsed and checked before anything
//! changes.

use super::sense::invalid;
use bytes::Bytes;
use lunar_osd::{AttributeId, ObjectCommand, ObjectId, QuotaKind};
use lunar_scsi::osd::pages::{
    self, AttributeAccess, PAGES_OF_OWNER, PageDefiner, PageOwner, StandardAttribute,
};
use lunar_scsi::osd::{
    AttributeName, AttributeParameters, AttributeValue, BufferRange, OsdCdb, OsdVersion,
    decode_get_list, decode_set_list, field_at,
};
use lunar_scsi::sense::Sense;

/// A checked attribute to set. An empty value removes the attribute.
#[derive(Clone, Debug)]
pub(super) struct AttributeChange {
    name: AttributeName,
    value: Bytes,
}

/// The attributes to get.
#[derive(Clone, Debug)]
pub(super) enum AttributesToGet {
    /// None.
    Nothing,
    /// A page, and data-in for it.
    Page(u32, BufferRange),
    /// Attributes by name, and data-in for the list.
    List(Vec<AttributeName>, BufferRange),
}

/// The attributes that a command sets and gets.
#[derive(Clone, Debug)]
pub(super) struct AttributeRequest {
    pub(super) set: Vec<AttributeChange>,
    pub(super) get: AttributesToGet,
}

/// The part of an attribute to set that is invalid.
enum AttributeFault {
    /// The page or number: there is no such attribute, or it cannot be set.
    Name,
    /// The value or its length.
    Value,
}

/// The place of an attribute to set, for field pointers.
enum AttributeSource {
    /// In the CDB.
    Cdb,
    /// The name in the CDB, the value at an offset in data-out.
    Page(u64),
    /// An entry of a list, at an offset in data-out.
    List(u64),
}

impl AttributeSource {
    fn sense(&self, fault: &AttributeFault, name: AttributeName) -> Sense {
        let sense = match (self, fault) {
            (Self::Cdb, AttributeFault::Name) => invalid(field_at::ATTRIBUTES),
            (Self::Cdb, AttributeFault::Value) => invalid(field_at::ATTRIBUTES + 8),
            (Self::Page(_), AttributeFault::Name) => invalid(field_at::ATTRIBUTES + 12),
            (Self::Page(offset), AttributeFault::Value) | (Self::List(offset), _) => {
                invalid_in_list(*offset)
            }
        };
        sense.with_attributes(&[name])
    }
}

/// INVALID FIELD IN PARAMETER LIST at an offset in data-out, if a pointer has room for it.
fn invalid_in_list(offset: u64) -> Sense {
    match u16::try_from(offset) {
        Ok(byte) => Sense::invalid_field_in_parameter_list(byte, None),
        Err(_) => Sense::INVALID_FIELD_IN_PARAMETER_LIST,
    }
}

/// Returns a segment of data-out.
fn segment(data_out: &Bytes, range: BufferRange) -> Result<Bytes, Sense> {
    let start = usize::try_from(range.offset).ok();
    let end = start.and_then(|start| start.checked_add(range.length as usize));
    match (start, end) {
        (Some(start), Some(end)) if end <= data_out.len() => Ok(data_out.slice(start..end)),
        _ => Err(Sense::PARAMETER_LIST_LENGTH_ERROR),
    }
}

impl AttributeRequest {
    /// Number of attributes to set and to get.
    pub(super) fn items(&self) -> usize {
        let get = match &self.get {
            AttributesToGet::List(names, _) => names.len(),
            AttributesToGet::Nothing | AttributesToGet::Page(..) => 0,
        };
        self.set.len().saturating_add(get)
    }

    /// Length of the values to set.
    pub(super) fn value_bytes(&self) -> usize {
        self.set.iter().map(|change| change.value.len()).fold(0, usize::saturating_add)
    }

    /// Parses and checks the attributes of a command on an object of this kind.
    ///
    /// # Errors
    /// The sense to send; nothing has changed.
    pub(super) fn parse(cdb: &OsdCdb, data_out: &Bytes, owner: PageOwner) -> Result<Self, Sense> {
        let version = cdb.version;
        match &cdb.attributes {
            AttributeParameters::SetOne(one) => {
                let mut set = Vec::new();
                if let Some(one) = one {
                    let value = Bytes::copy_from_slice(&one.value);
                    set.push(checked_change(owner, one.name, value, &AttributeSource::Cdb)?);
                }
                Ok(Self { set, get: AttributesToGet::Nothing })
            }
            AttributeParameters::Page { get, set } => {
                let mut changes = Vec::new();
                if let Some(set) = set {
                    let (value, source) =
                        (segment(data_out, set.value)?, AttributeSource::Page(set.value.offset));
                    changes.push(checked_change(owner, set.name, value, &source)?);
                }
                let get = match get {
                    None => AttributesToGet::Nothing,
                    Some(get) if is_readable(owner, get.page) => {
                        AttributesToGet::Page(get.page, get.retrieved)
                    }
                    Some(_) => return Err(invalid(field_at::ATTRIBUTES)),
                };
                Ok(Self { set: changes, get })
            }
            AttributeParameters::List { get, set } => {
                let mut changes = Vec::new();
                if let Some(range) = set {
                    changes = set_list(version, data_out, *range, owner)?;
                }
                let get = match get {
                    None => AttributesToGet::Nothing,
                    Some(get) => {
                        let names = get_list(version, data_out, get.list, owner)?;
                        AttributesToGet::List(names, get.retrieved)
                    }
                };
                Ok(Self { set: changes, get })
            }
        }
    }
}

/// Decodes and checks a list of attributes to set.
fn set_list(
    version: OsdVersion,
    data_out: &Bytes,
    range: BufferRange,
    owner: PageOwner,
) -> Result<Vec<AttributeChange>, Sense> {
    let list = segment(data_out, range)?;
    let values = decode_set_list(version, &list).map_err(|error| error.sense(range.offset))?;
    let mut changes = Vec::with_capacity(values.len());
    for AttributeValue { name, value } in values {
        // The value lies in the list, after the header of the entry: page and number first.
        let value = list.slice_ref(value);
        let header = if version.is_osd2() { 16 } else { 10 };
        let at = (value.as_ptr() as usize).saturating_sub(list.as_ptr() as usize);
        let at = if value.is_empty() { 0 } else { at.saturating_sub(header) };
        let source = AttributeSource::List(range.offset.saturating_add(at as u64));
        changes.push(checked_change(owner, name, value, &source)?);
    }
    Ok(changes)
}

/// Decodes and checks a list of attributes to get.
fn get_list(
    version: OsdVersion,
    data_out: &Bytes,
    range: BufferRange,
    owner: PageOwner,
) -> Result<Vec<AttributeName>, Sense> {
    let list = segment(data_out, range)?;
    let names = decode_get_list(version, &list).map_err(|error| error.sense(range.offset))?;
    let header = if version.is_osd2() { 8 } else { 4 };
    let mut wildcards = 0;
    for (index, name) in names.iter().enumerate() {
        let is_wildcard =
            name.page == AttributeName::ALL_PAGES || name.number == AttributeName::ALL_NUMBERS;
        wildcards += usize::from(is_wildcard);
        let is_unknown = name.page != AttributeName::ALL_PAGES && !is_readable(owner, name.page);
        if is_unknown || wildcards > WILDCARDS_MAX {
            let at = range.offset.saturating_add(header + 8 * index as u64);
            return Err(invalid_in_list(at).with_attributes(&[*name]));
        }
    }
    Ok(names)
}

/// True if objects of this kind can have the page.
fn is_readable(owner: PageOwner, page: u32) -> bool {
    PageOwner::of(page).is_some_and(|of| of == owner || of == PageOwner::Any)
}

/// Checks an attribute to set.
fn checked_change(
    owner: PageOwner,
    name: AttributeName,
    value: Bytes,
    source: &AttributeSource,
) -> Result<AttributeChange, Sense> {
    check_attribute(owner, name, &value).map_err(|fault| source.sense(&fault, name))?;
    Ok(AttributeChange { name, value })
}

fn check_attribute(
    owner: PageOwner,
    name: AttributeName,
    value: &[u8],
) -> Result<(), AttributeFault> {
    if PageOwner::of(name.page) != Some(owner) {
        return Err(AttributeFault::Name);
    }
    let is_valid = match PageDefiner::of(name.page) {
        // The identification of a page ends with a zero.
        PageDefiner::Application if name.number == 0 => {
            value.is_empty() || value.len() <= pages::IDENTIFICATION_BYTES && value.contains(&0)
        }
        PageDefiner::Application => true,
        PageDefiner::Standard => {
            let attribute = StandardAttribute::find(name).filter(|attribute| {
                attribute.access == AttributeAccess::Settable
                    // The clock of the system is not adjusted.
                    && attribute.first != pages::ROOT_ADJUSTABLE_CLOCK
            });
            let attribute = attribute.ok_or(AttributeFault::Name)?;
            attribute.length.allows(value.len()) && is_valid_value(attribute.first, value)
        }
        _ => return Err(AttributeFault::Name),
    };
    if is_valid { Ok(()) } else { Err(AttributeFault::Value) }
}

/// Maximum number of entries of a list to get that name all pages or all numbers of a page: each
/// reads all attributes of the object.
const WILDCARDS_MAX: usize = 16;

/// The value of a timestamp bypass attribute with which timestamps are not updated.
pub(super) const TIMESTAMP_BYPASS: u8 = 0x7f;

/// True if an attribute of the standard can have this value, whose length is right.
fn is_valid_value(name: AttributeName, value: &[u8]) -> bool {
    match name {
        // NOSEC.
        pages::ROOT_DEFAULT_SECURITY_METHOD
        | pages::ROOT_PARTITION_DEFAULT_METHOD
        | pages::PARTITION_DEFAULT_SECURITY_METHOD => value == [0],
        pages::ROOT_TIMESTAMP_BYPASS | pages::PARTITION_TIMESTAMP_BYPASS => {
            value == [0] || value == [TIMESTAMP_BYPASS]
        }
        // The default, and no isolation.
        pages::ROOT_DEFAULT_ISOLATION => value == [0] || value == [1],
        pages::USER_LOGICAL_LENGTH => number(value) <= i64::MAX as u64,
        _ => true,
    }
}

/// Reads a big-endian number of up to eight bytes.
fn number(value: &[u8]) -> u64 {
    value.iter().take(8).fold(0, |number, byte| number << 8 | u64::from(*byte))
}

impl AttributeChange {
    /// Returns the command of the store that sets the attribute of `owner`.
    pub(super) fn command(&self, owner: ObjectId) -> ObjectCommand {
        let Self { name, value } = self;
        if let Some(quota) = quota(*name) {
            // Quotas of four bytes have their own highest value, which means none.
            let limit = match number(value) {
                limit if limit == u64::from(u32::MAX) && value.len() == 4 => u64::MAX,
                limit => limit,
            };
            return ObjectCommand::SetQuota { owner, quota, limit };
        }
        if *name == pages::USER_LOGICAL_LENGTH {
            return ObjectCommand::SetLength { object: owner, length: number(value) };
        }
        if name.page == pages::USER_COLLECTIONS.page {
            let collection = Some(number(value)).filter(|_| !value.is_empty());
            return ObjectCommand::SetMembership { object: owner, number: name.number, collection };
        }
        let id = AttributeId::new(name.page, name.number);
        let value = Some(value.clone()).filter(|value| !value.is_empty());
        ObjectCommand::SetAttribute { owner, id, value }
    }
}

/// Returns the quota with this name.
pub(super) fn quota(name: AttributeName) -> Option<QuotaKind> {
    let bases = [pages::ROOT, pages::PARTITION, pages::USER];
    if !bases.contains(&(name.page / PAGES_OF_OWNER * PAGES_OF_OWNER)) {
        return None;
    }
    if name.page % PAGES_OF_OWNER != pages::QUOTAS || StandardAttribute::find(name).is_none() {
        return None;
    }
    match name.number {
        n if n == pages::USER_LENGTH_MAX.number => Some(QuotaKind::ObjectLength),
        n if n == pages::PARTITION_CAPACITY_QUOTA.number => Some(QuotaKind::Capacity),
        n if n == pages::PARTITION_OBJECT_COUNT_QUOTA.number => Some(QuotaKind::ObjectCount),
        n if n == pages::ROOT_COLLECTIONS_PER_USER_OBJECT.number => Some(QuotaKind::Memberships),
        n if n == pages::ROOT_PARTITION_COUNT_QUOTA.number => Some(QuotaKind::PartitionCount),
        _ => None,
    }
}
