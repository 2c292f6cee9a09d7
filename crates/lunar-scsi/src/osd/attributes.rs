//! Names of attributes, and the attributes parameters of a CDB: bytes 52 to 79 in one of three
//! formats, which GET/SET CDBFMT selects.

use super::layout::{at, padded};
use super::{CdbEncodeError, OsdOffset, OsdVersion};
use crate::sense::Sense;
use alloc::vec::Vec;

/// The name of an attribute: its page and its number in the page.
#[derive(Clone, Copy, Debug, Default, Eq, Hash, Ord, PartialEq, PartialOrd)]
pub struct AttributeName {
    /// ATTRIBUTES PAGE.
    pub page: u32,
    /// ATTRIBUTE NUMBER.
    pub number: u32,
}

impl AttributeName {
    /// In a request to read: every page.
    pub const ALL_PAGES: u32 = u32::MAX;
    /// In a request to read: every number.
    pub const ALL_NUMBERS: u32 = u32::MAX;

    /// Creates the name of an attribute.
    pub const fn new(page: u32, number: u32) -> Self {
        Self { page, number }
    }
}

/// Maximum length of the value of an attribute: a length of FFFFh means that there is none.
pub const ATTRIBUTE_VALUE_BYTES_MAX: usize = 0xfffe;

lunar_wire::wire_struct! {
    /// Page format: get an attributes page, set an attribute.
    pub struct PageFormat [28] {
        /// 0: none.
        0 => get_page: u32,
        4 => allocation_bytes: u32,
        8 => retrieved_offset: u32,
        /// 0: none.
        12 => set_page: u32,
        16 => set_number: u32,
        20 => set_bytes: u32,
        24 => set_offset: u32,
    }
}

lunar_wire::wire_struct! {
    /// List format: get and set lists of attributes.
    pub struct ListFormat [28] {
        /// 0: none.
        0 => get_list_bytes: u32,
        4 => get_list_offset: u32,
        8 => allocation_bytes: u32,
        12 => retrieved_offset: u32,
        /// 0: none.
        16 => set_list_bytes: u32,
        20 => set_list_offset: u32,
    }
}

lunar_wire::wire_struct! {
    /// Set one attribute with CDB field. OSD-2.
    pub struct SetOneFormat [28] {
        0 => page: u32,
        4 => number: u32,
        8 => value_bytes: u16,
        10 => value: [u8; 18],
    }
}

/// A part of the data-in or data-out buffer.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct BufferRange {
    /// Byte offset.
    pub offset: u64,
    /// Length in bytes; of data-in, the allocation length. If it is 0, so is the offset.
    pub length: u32,
}

/// An attributes page to read, in page format.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct PageToGet {
    /// The page.
    pub page: u32,
    /// Data-in for the page.
    pub retrieved: BufferRange,
}

/// An attribute to set, in page format.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct AttributeToSet {
    /// The name.
    pub name: AttributeName,
    /// The value in data-out; no bytes remove the attribute.
    pub value: BufferRange,
}

/// A list of attributes to read, in list format.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct ListToGet {
    /// The list in data-out, at least one byte.
    pub list: BufferRange,
    /// Data-in for the attributes.
    pub retrieved: BufferRange,
}

/// An attribute with its value.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct InlineAttribute {
    /// The name.
    pub name: AttributeName,
    /// The value, at most [`INLINE_VALUE_BYTES_MAX`]; no bytes remove the attribute.
    pub value: Vec<u8>,
}

/// Maximum length of the value of an attribute in a CDB.
pub const INLINE_VALUE_BYTES_MAX: usize = 18;

/// The attributes that a command reads and sets besides its own function.
#[derive(Clone, Debug, Eq, PartialEq)]
pub enum AttributeParameters {
    /// A page to read and an attribute to set, the latter in data-out.
    Page {
        /// The page to read.
        get: Option<PageToGet>,
        /// The attribute to set.
        set: Option<AttributeToSet>,
    },
    /// A list of attributes to read, and a list of attributes to set, both in data-out.
    List {
        /// The attributes to read.
        get: Option<ListToGet>,
        /// The attributes to set; at least one byte.
        set: Option<BufferRange>,
    },
    /// An attribute to set, in the CDB itself. OSD-2.
    ///
    /// Interpretation: page 0 means that no attribute is set; two sections of the draft contradict
    /// each other.
    SetOne(Option<InlineAttribute>),
}

impl AttributeParameters {
    /// List format without attributes, which every version has.
    pub const NONE: Self = Self::List { get: None, set: None };

    const SET_ONE: u8 = 0b01;
    const PAGE: u8 = 0b10;
    const LIST: u8 = 0b11;

    /// GET/SET CDBFMT.
    pub(super) const fn format(&self) -> u8 {
        match self {
            Self::SetOne(_) => Self::SET_ONE,
            Self::Page { .. } => Self::PAGE,
            Self::List { .. } => Self::LIST,
        }
    }

    /// True if attributes are read.
    pub const fn gets(&self) -> bool {
        matches!(self, Self::Page { get: Some(_), .. } | Self::List { get: Some(_), .. })
    }

    /// True if attributes are set.
    pub const fn sets(&self) -> bool {
        matches!(
            self,
            Self::Page { set: Some(_), .. }
                | Self::List { set: Some(_), .. }
                | Self::SetOne(Some(_))
        )
    }

    /// Decodes the parameters in `format`.
    pub(super) fn decode(version: OsdVersion, format: u8, bytes: &[u8; 28]) -> Result<Self, Sense> {
        match format {
            Self::SET_ONE if version.is_osd2() => Self::decode_set_one(bytes),
            Self::PAGE => Self::decode_page(version, &PageFormat::decode(bytes)),
            Self::LIST => Self::decode_list(version, &ListFormat::decode(bytes)),
            _ => Err(Sense::invalid_field_in_cdb(at::FORMAT, Some(5))),
        }
    }

    fn decode_set_one(bytes: &[u8; 28]) -> Result<Self, Sense> {
        let raw = SetOneFormat::decode(bytes);
        if raw.page == 0 {
            return Ok(Self::SetOne(None));
        }
        let name = settable(raw.page, raw.number, 0)?;
        let value = raw.value.get(..raw.value_bytes.into()).ok_or(invalid(8))?.to_vec();
        Ok(Self::SetOne(Some(InlineAttribute { name, value })))
    }

    fn decode_page(version: OsdVersion, raw: &PageFormat) -> Result<Self, Sense> {
        let mut get = None;
        if raw.get_page != 0 {
            let retrieved = range(version, raw.allocation_bytes, raw.retrieved_offset, 8)?;
            get = Some(PageToGet { page: raw.get_page, retrieved });
        }
        let mut set = None;
        if raw.set_page != 0 {
            let name = settable(raw.set_page, raw.set_number, 12)?;
            if raw.set_bytes as usize > ATTRIBUTE_VALUE_BYTES_MAX {
                return Err(invalid(20));
            }
            let value = range(version, raw.set_bytes, raw.set_offset, 24)?;
            set = Some(AttributeToSet { name, value });
        }
        Ok(Self::Page { get, set })
    }

    fn decode_list(version: OsdVersion, raw: &ListFormat) -> Result<Self, Sense> {
        let mut get = None;
        if raw.get_list_bytes != 0 {
            let list = range(version, raw.get_list_bytes, raw.get_list_offset, 4)?;
            let retrieved = range(version, raw.allocation_bytes, raw.retrieved_offset, 12)?;
            get = Some(ListToGet { list, retrieved });
        }
        let mut set = None;
        if raw.set_list_bytes != 0 {
            set = Some(range(version, raw.set_list_bytes, raw.set_list_offset, 20)?);
        }
        Ok(Self::List { get, set })
    }

    /// Encodes the parameters; offsets that are not needed are [`OsdOffset::UNUSED`].
    pub(super) fn encode(&self, version: OsdVersion) -> Result<[u8; 28], CdbEncodeError> {
        let offset = |range: Option<BufferRange>| match range {
            Some(BufferRange { offset, length: 1.. }) => OsdOffset::encode(version, offset)
                .map(|code| code.0)
                .ok_or(CdbEncodeError::Offset(offset)),
            _ => Ok(OsdOffset::UNUSED.0),
        };
        let length = |range: Option<BufferRange>| range.map_or(0, |range| range.length);
        match self {
            Self::SetOne(None) => Ok([0; 28]),
            Self::SetOne(Some(InlineAttribute { name, value })) => Ok(SetOneFormat {
                page: name.page,
                number: name.number,
                value_bytes: u16::try_from(value.len()).unwrap_or(u16::MAX),
                value: padded(value),
            }
            .encode()),
            Self::Page { get, set } => {
                let retrieved = get.map(|get| get.retrieved);
                let value = set.map(|set| set.value);
                let name = set.map_or(AttributeName::default(), |set| set.name);
                Ok(PageFormat {
                    get_page: get.map_or(0, |get| get.page),
                    allocation_bytes: length(retrieved),
                    retrieved_offset: offset(retrieved)?,
                    set_page: name.page,
                    set_number: name.number,
                    set_bytes: length(value),
                    set_offset: offset(value)?,
                }
                .encode())
            }
            Self::List { get, set } => {
                let (list, retrieved) = (get.map(|get| get.list), get.map(|get| get.retrieved));
                Ok(ListFormat {
                    get_list_bytes: length(list),
                    get_list_offset: offset(list)?,
                    allocation_bytes: length(retrieved),
                    retrieved_offset: offset(retrieved)?,
                    set_list_bytes: length(*set),
                    set_list_offset: offset(*set)?,
                }
                .encode())
            }
        }
    }
}

/// INVALID FIELD IN CDB at an offset in the attributes parameters.
pub(super) fn invalid(offset: u16) -> Sense {
    Sense::invalid_field_in_cdb(at::ATTRIBUTES + offset, None)
}

/// Checks that page and number, at `offset` and after it, name one attribute.
fn settable(page: u32, number: u32, offset: u16) -> Result<AttributeName, Sense> {
    if page == AttributeName::ALL_PAGES {
        return Err(invalid(offset));
    }
    if number == AttributeName::ALL_NUMBERS {
        return Err(invalid(offset + 4));
    }
    Ok(AttributeName { page, number })
}

/// Decodes a range; if there are no bytes, the offset has no meaning.
fn range(version: OsdVersion, length: u32, code: u32, offset: u16) -> Result<BufferRange, Sense> {
    if length == 0 {
        return Ok(BufferRange::default());
    }
    match OsdOffset(code).decode(version) {
        Some(offset) => Ok(BufferRange { offset, length }),
        None => Err(invalid(offset)),
    }
}
