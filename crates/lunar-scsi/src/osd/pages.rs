//! Attributes pages and the attributes of the standard pages.
//!
//! Each constant is the name of an attribute, or of the first of several; [`ATTRIBUTES`] is the
//! table of all, [`PAGES`] that of the pages.

mod formats;

pub use formats::{
    CurrentCommandPage, ObjectErrorRecoveryPage, ObjectSecurityPage, ObjectTimestampsPage,
    Osd1CurrentCommandPage, OsdPageHeader, PAGE_HEADER_BYTES, PartitionErrorRecoveryPage,
    PartitionQuotasPage, PartitionSecurityPage, PartitionTimestampsPage, RetrievedPage,
    RootQuotasPage, RootSecurityPage, RootSecurityPageEnd, RootTimestampsPage, UserQuotasPage,
    decode_page, encode_page,
};

use super::AttributeName;

/// Base of the pages of user objects.
pub const USER: u32 = 0;
/// Base of the pages of partitions.
pub const PARTITION: u32 = 0x3000_0000;
/// Base of the pages of collections.
pub const COLLECTION: u32 = 0x6000_0000;
/// Base of the pages of the root.
pub const ROOT: u32 = 0x9000_0000;
/// Number of pages from each base.
pub const PAGES_OF_OWNER: u32 = 0x3000_0000;
/// The first page that any object may have.
pub const ANY_OBJECT: u32 = 0xf000_0000;
/// The Current Command page of every object.
pub const CURRENT_COMMAND: u32 = 0xffff_fffe;

/// Offset of the Directory page from a base.
pub const DIRECTORY: u32 = 0;
/// Offset of the Information page.
pub const INFORMATION: u32 = 1;
/// Offset of the Quotas page.
pub const QUOTAS: u32 = 2;
/// Offset of the Timestamps page.
pub const TIMESTAMPS: u32 = 3;
/// Offset of the Attributes Access page of a partition, the Command Tracking page of a collection,
/// and the Collections page of a user object.
pub const SPECIFIC: u32 = 4;
/// Offset of the Policy/Security page.
pub const SECURITY: u32 = 5;
/// Offset of the Error Recovery page.
pub const ERROR_RECOVERY: u32 = 6;

/// The objects with a page.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum PageOwner {
    /// User objects.
    User,
    /// Partitions.
    Partition,
    /// Collections.
    Collection,
    /// The root.
    Root,
    /// All objects.
    Any,
}

impl PageOwner {
    /// The owner of a page; `None` for reserved pages and [`AttributeName::ALL_PAGES`].
    pub const fn of(page: u32) -> Option<Self> {
        match page {
            ..PARTITION => Some(Self::User),
            PARTITION..COLLECTION => Some(Self::Partition),
            COLLECTION..ROOT => Some(Self::Collection),
            ROOT..0xc000_0000 => Some(Self::Root),
            ANY_OBJECT..=CURRENT_COMMAND => Some(Self::Any),
            _ => None,
        }
    }

    /// Returns the number of the first page of the range of the owner.
    pub const fn base(self) -> u32 {
        match self {
            Self::User => USER,
            Self::Partition => PARTITION,
            Self::Collection => COLLECTION,
            Self::Root => ROOT,
            Self::Any => ANY_OBJECT,
        }
    }
}

/// The definer of a page.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum PageDefiner {
    /// The standard.
    Standard,
    /// Reserved by the standard.
    Reserved,
    /// Another standard.
    OtherStandard,
    /// The manufacturer of the device.
    Manufacturer,
    /// Applications. Their attributes can be set.
    Application,
    /// The vendor of the device.
    Vendor,
}

impl PageDefiner {
    /// The definer of a page by its number.
    pub const fn of(page: u32) -> Self {
        if page >= ROOT + PAGES_OF_OWNER {
            return if page == CURRENT_COMMAND { Self::Standard } else { Self::Reserved };
        }
        match page % PAGES_OF_OWNER {
            ..0x80 => Self::Standard,
            0x80..0x8000 => Self::Reserved,
            0x8000..0xf000 => Self::OtherStandard,
            0xf000..0x1_0000 => Self::Manufacturer,
            0x1_0000..0x2000_0000 => Self::Application,
            _ => Self::Vendor,
        }
    }
}

/// Length of the value of an attribute in bytes.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum AttributeLength {
    /// Always the same.
    Fixed(u16),
    /// The same, or 0 if the device does not have the attribute.
    Optional(u16),
    /// Any.
    Variable,
}

impl AttributeLength {
    /// True if a value may have this length.
    pub fn allows(self, bytes: usize) -> bool {
        match self {
            Self::Fixed(length) => bytes == usize::from(length),
            Self::Optional(length) => bytes == 0 || bytes == usize::from(length),
            Self::Variable => true,
        }
    }
}

/// Whether an application may set an attribute.
///
/// Interpretation: sources show few accesses; quotas, tags, defaults and names can be set, and the
/// logical length of user objects.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum AttributeAccess {
    /// Only the device sets the attribute.
    ReadOnly,
    /// SET ATTRIBUTES sets the attribute.
    Settable,
}

/// A page of the standard.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct StandardPage {
    /// The number.
    pub page: u32,
    /// The name in the page identification.
    pub name: &'static str,
}

/// Length of attribute 0 of every page: the page identification.
pub const IDENTIFICATION_BYTES: usize = 40;
/// Length of the vendor identification at its start.
const VENDOR_BYTES: usize = 8;
/// The vendor of the pages of the standard.
const STANDARD_VENDOR: &[u8; VENDOR_BYTES] = b"INCITS  ";

impl StandardPage {
    /// The page with this number.
    pub fn find(page: u32) -> Option<&'static Self> {
        PAGES.iter().find(|standard| standard.page == page)
    }

    /// The page identification.
    pub fn identification(&self) -> [u8; IDENTIFICATION_BYTES] {
        let mut bytes = [0; IDENTIFICATION_BYTES];
        bytes[..VENDOR_BYTES].copy_from_slice(STANDARD_VENDOR);
        // The last byte stays 0.
        let name = bytes[VENDOR_BYTES..IDENTIFICATION_BYTES - 1].iter_mut();
        name.zip(self.name.bytes()).for_each(|(to, from)| *to = from);
        bytes
    }
}

const fn page(page: u32, name: &'static str) -> StandardPage {
    StandardPage { page, name }
}

/// All pages of the standard.
///
/// Interpretation: of the names, sources show those of Directory, Information, Root Quotas, Root
/// Timestamps, Root Policy/Security, Collections and Current Command; the others are analogous.
pub static PAGES: [StandardPage; 27] = [
    page(USER, "T10 User Object Directory"),
    page(USER + INFORMATION, "T10 User Object Information"),
    page(USER + QUOTAS, "T10 User Object Quotas"),
    page(USER + TIMESTAMPS, "T10 User Object Timestamps"),
    page(USER + SPECIFIC, "T10 Collections"),
    page(USER + SECURITY, "T10 User Object Policy/Security"),
    page(USER + ERROR_RECOVERY, "T10 User Object Error Recovery"),
    page(PARTITION, "T10 Partition Directory"),
    page(PARTITION + INFORMATION, "T10 Partition Information"),
    page(PARTITION + QUOTAS, "T10 Partition Quotas"),
    page(PARTITION + TIMESTAMPS, "T10 Partition Timestamps"),
    page(PARTITION + SPECIFIC, "T10 Attributes Access"),
    page(PARTITION + SECURITY, "T10 Partition Policy/Security"),
    page(PARTITION + ERROR_RECOVERY, "T10 Partition Error Recovery"),
    page(COLLECTION, "T10 Collection Directory"),
    page(COLLECTION + INFORMATION, "T10 Collection Information"),
    page(COLLECTION + TIMESTAMPS, "T10 Collection Timestamps"),
    page(COLLECTION + SPECIFIC, "T10 Command Tracking"),
    page(COLLECTION + SECURITY, "T10 Collection Policy/Security"),
    page(COLLECTION + ERROR_RECOVERY, "T10 Collection Error Recovery"),
    page(ROOT, "T10 Root Directory"),
    page(ROOT + INFORMATION, "T10 Root Information"),
    page(ROOT + QUOTAS, "T10 Root Quotas"),
    page(ROOT + TIMESTAMPS, "T10 Root Timestamps"),
    page(ROOT + SECURITY, "T10 Root Policy/Security"),
    page(ROOT + ERROR_RECOVERY, "T10 Root Error Recovery"),
    page(CURRENT_COMMAND, "T10 Current Command"),
];

/// An attribute of the standard, or several with numbers in sequence.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct StandardAttribute {
    /// The name, with the first number.
    pub first: AttributeName,
    /// The last number.
    pub last_number: u32,
    /// The name of the constant.
    pub label: &'static str,
    /// The length of the value.
    pub length: AttributeLength,
    /// Whether it can be set.
    pub access: AttributeAccess,
}

impl StandardAttribute {
    /// The attribute of the standard with this name. The page identifications (number 0) and the
    /// entries of directories are not in the table.
    pub fn find(name: AttributeName) -> Option<&'static Self> {
        ATTRIBUTES.iter().find(|attribute| {
            attribute.first.page == name.page
                && (attribute.first.number..=attribute.last_number).contains(&name.number)
        })
    }
}

macro_rules! attributes {
    ($($page:expr => {
        $($label:ident = $first:literal $(..= $last:literal)?, $length:expr, $access:ident;)+
    })+) => {
        $($(
            #[doc = concat!("Attribute ", stringify!($first), " of its page.")]
            pub const $label: AttributeName = AttributeName::new($page, $first);
        )+)+

        /// All attributes of the standard pages.
        pub static ATTRIBUTES: &[StandardAttribute] = &[$($(
            StandardAttribute {
                first: $label,
                last_number: last($first, &[$($last)?]),
                label: stringify!($label),
                length: $length,
                access: AttributeAccess::$access,
            },
        )+)+];
    };
}

/// The last number of a row.
const fn last(first: u32, last: &[u32]) -> u32 {
    match last {
        [last, ..] => *last,
        [] => first,
    }
}

use AttributeLength::{Fixed, Optional, Variable};

attributes! {
    ROOT + INFORMATION => {
        ROOT_SYSTEM_ID = 0x3, Fixed(20), ReadOnly;
        ROOT_VENDOR_ID = 0x4, Fixed(8), ReadOnly;
        ROOT_PRODUCT_ID = 0x5, Fixed(16), ReadOnly;
        ROOT_PRODUCT_MODEL = 0x6, Fixed(32), ReadOnly;
        ROOT_PRODUCT_REVISION = 0x7, Fixed(4), ReadOnly;
        ROOT_SERIAL_NUMBER = 0x8, Variable, ReadOnly;
        ROOT_OSD_NAME = 0x9, Variable, Settable;
        ROOT_CONTINUATION_BYTES_MAX = 0xa, Fixed(4), ReadOnly;
        ROOT_TOTAL_CAPACITY = 0x80, Fixed(8), ReadOnly;
        ROOT_USED_CAPACITY = 0x81, Fixed(8), ReadOnly;
        ROOT_ACCESSIBILITY = 0x83, Fixed(4), ReadOnly;
        ROOT_PARTITION_COUNT = 0xc0, Fixed(8), ReadOnly;
        ROOT_CLOCK = 0x100, Fixed(6), ReadOnly;
        ROOT_DEFAULT_ISOLATION = 0x110, Fixed(1), Settable;
        ROOT_SUPPORTED_ISOLATION = 0x111, Fixed(32), ReadOnly;
        ROOT_DATA_ATOMICITY_GUARANTEE = 0x120, Fixed(8), ReadOnly;
        ROOT_DATA_ATOMICITY_ALIGNMENT = 0x121, Fixed(8), ReadOnly;
        ROOT_ATTRIBUTES_ATOMICITY_GUARANTEE = 0x122, Fixed(8), ReadOnly;
        ROOT_ATOMICITY_MULTIPLIER = 0x123, Fixed(1), ReadOnly;
        ROOT_SNAPSHOTS_MAX = 0x1c1, Optional(4), ReadOnly;
        ROOT_CLONES_MAX = 0x1c2, Optional(4), ReadOnly;
        ROOT_BRANCH_DEPTH_MAX = 0x1cc, Optional(4), ReadOnly;
        ROOT_DUPLICATION_METHODS = 0x200..=0x2ff, Optional(4), ReadOnly;
        ROOT_TIME_OF_DUPLICATION_METHODS = 0x300..=0x30f, Optional(4), ReadOnly;
        ROOT_FREEZE_SUPPORT = 0x310, Optional(4), ReadOnly;
        ROOT_REFRESH_SUPPORT = 0x311, Optional(1), ReadOnly;
        ROOT_CONTINUATION_DESCRIPTORS = 0x700_0001..=0x700_ffff, Optional(4), ReadOnly;
    }
    ROOT + QUOTAS => {
        ROOT_DEFAULT_OBJECT_LENGTH_MAX = 0x1, Fixed(8), Settable;
        ROOT_PARTITION_CAPACITY_QUOTA = 0x1_0001, Fixed(8), Settable;
        ROOT_PARTITION_OBJECT_COUNT = 0x1_0002, Fixed(8), Settable;
        ROOT_COLLECTIONS_PER_USER_OBJECT = 0x1_0081, Fixed(4), Settable;
        ROOT_PARTITION_COUNT_QUOTA = 0x2_0002, Fixed(8), Settable;
    }
    ROOT + TIMESTAMPS => {
        ROOT_ATTRIBUTES_ACCESSED = 0x2, Fixed(6), ReadOnly;
        ROOT_ATTRIBUTES_MODIFIED = 0x3, Fixed(6), ReadOnly;
        ROOT_TIMESTAMP_BYPASS = 0xffff_fffe, Fixed(1), Settable;
    }
    ROOT + SECURITY => {
        ROOT_DEFAULT_SECURITY_METHOD = 0x1, Fixed(1), Settable;
        ROOT_OLDEST_VALID_NONCE = 0x2, Fixed(6), Settable;
        ROOT_NEWEST_VALID_NONCE = 0x3, Fixed(6), Settable;
        ROOT_PARTITION_DEFAULT_METHOD = 0x6, Fixed(1), Settable;
        ROOT_SUPPORTED_METHODS = 0x7, Fixed(2), ReadOnly;
        ROOT_ADJUSTABLE_CLOCK = 0x9, Fixed(6), Settable;
        ROOT_BOOT_EPOCH = 0xa, Fixed(2), ReadOnly;
        ROOT_MASTER_KEY_ID = 0x7ffd, Optional(7), ReadOnly;
        ROOT_KEY_ID = 0x7ffe, Optional(7), ReadOnly;
        ROOT_INTEGRITY_ALGORITHMS = 0x8000_0000..=0x8000_000f, Fixed(1), ReadOnly;
        ROOT_DIFFIE_HELLMAN_GROUPS = 0x8000_0010..=0x8000_001f, Fixed(1), ReadOnly;
    }
    ROOT + ERROR_RECOVERY => {
        ROOT_DAMAGE_SUMMARY = 0x1, Fixed(1), ReadOnly;
        ROOT_CONTAINED_DAMAGE = 0x2, Fixed(1), ReadOnly;
        ROOT_DATA_DAMAGE_TIME = 0x3, Fixed(6), ReadOnly;
        ROOT_ATTRIBUTES_DAMAGE_TIME = 0x4, Fixed(6), ReadOnly;
        ROOT_CONTAINED_DAMAGE_TIME = 0x5, Fixed(6), ReadOnly;
        ROOT_DAMAGED_COUNT = 0x6, Fixed(8), ReadOnly;
    }
    PARTITION + INFORMATION => {
        PARTITION_ID = 0x1, Fixed(8), ReadOnly;
        PARTITION_USERNAME = 0x9, Variable, Settable;
        PARTITION_USED_CAPACITY = 0x81, Fixed(8), ReadOnly;
        PARTITION_ACCESSIBILITY = 0x83, Fixed(4), ReadOnly;
        PARTITION_USED_CAPACITY_INCREMENT = 0x84, Optional(8), ReadOnly;
        PARTITION_OBJECT_COUNT = 0xc1, Fixed(8), ReadOnly;
        PARTITION_ACTUAL_DATA_SPACE = 0xd1, Optional(8), ReadOnly;
        PARTITION_RESERVED_DATA_SPACE = 0xd2, Optional(8), ReadOnly;
        PARTITION_SNAPSHOT_METHOD = 0x200, Optional(4), Settable;
        PARTITION_CLONE_METHOD = 0x201, Optional(4), Settable;
        PARTITION_SNAPSHOT_TIME = 0x300, Optional(4), Settable;
        PARTITION_CLONE_TIME = 0x301, Optional(4), Settable;
    }
    PARTITION + QUOTAS => {
        PARTITION_DEFAULT_OBJECT_LENGTH_MAX = 0x1, Fixed(8), Settable;
        PARTITION_CAPACITY_QUOTA = 0x1_0001, Fixed(8), Settable;
        PARTITION_OBJECT_COUNT_QUOTA = 0x1_0002, Fixed(8), Settable;
        PARTITION_COLLECTIONS_PER_USER_OBJECT = 0x1_0081, Fixed(4), Settable;
    }
    PARTITION + TIMESTAMPS => {
        PARTITION_CREATED = 0x1, Fixed(6), ReadOnly;
        PARTITION_ATTRIBUTES_ACCESSED = 0x2, Fixed(6), ReadOnly;
        PARTITION_ATTRIBUTES_MODIFIED = 0x3, Fixed(6), ReadOnly;
        PARTITION_DATA_ACCESSED = 0x4, Fixed(6), ReadOnly;
        PARTITION_DATA_MODIFIED = 0x5, Fixed(6), ReadOnly;
        PARTITION_TIMESTAMP_BYPASS = 0xffff_fffe, Fixed(1), Settable;
    }
    PARTITION + SPECIFIC => {
        PARTITION_ATTRIBUTES_ACCESS = 0x1..=0xffff_fffe, Variable, Settable;
    }
    PARTITION + SECURITY => {
        PARTITION_DEFAULT_SECURITY_METHOD = 0x1, Fixed(1), Settable;
        PARTITION_OLDEST_VALID_NONCE = 0x2, Fixed(6), Settable;
        PARTITION_NEWEST_VALID_NONCE = 0x3, Fixed(6), Settable;
        PARTITION_NONCE_LIST_DEPTH = 0x4, Fixed(2), Settable;
        PARTITION_FROZEN_WORKING_KEYS = 0x5, Fixed(2), Settable;
        PARTITION_KEY_ID = 0x7fff, Optional(7), ReadOnly;
        PARTITION_WORKING_KEY_IDS = 0x8000..=0x800f, Optional(7), ReadOnly;
        PARTITION_POLICY_ACCESS_TAG = 0x4000_0001, Fixed(4), Settable;
        PARTITION_USER_OBJECT_POLICY_ACCESS_TAG = 0x4000_0002, Fixed(4), Settable;
    }
    PARTITION + ERROR_RECOVERY => {
        PARTITION_DAMAGE_SUMMARY = 0x1, Fixed(1), ReadOnly;
        PARTITION_CONTAINED_DAMAGE = 0x2, Fixed(1), ReadOnly;
        PARTITION_DATA_DAMAGE_TIME = 0x3, Fixed(6), ReadOnly;
        PARTITION_ATTRIBUTES_DAMAGE_TIME = 0x4, Fixed(6), ReadOnly;
        PARTITION_CONTAINED_DAMAGE_TIME = 0x5, Fixed(6), ReadOnly;
        PARTITION_DAMAGED_COUNT = 0x6, Fixed(8), ReadOnly;
    }
    COLLECTION + INFORMATION => {
        COLLECTION_PARTITION_ID = 0x1, Fixed(8), ReadOnly;
        COLLECTION_ID = 0x2, Fixed(8), ReadOnly;
        COLLECTION_USERNAME = 0x9, Variable, Settable;
        COLLECTION_TYPE = 0xa, Fixed(1), ReadOnly;
        COLLECTION_USED_CAPACITY = 0x81, Fixed(8), ReadOnly;
        COLLECTION_ACCESSIBILITY = 0x83, Fixed(4), ReadOnly;
    }
    COLLECTION + TIMESTAMPS => {
        COLLECTION_CREATED = 0x1, Fixed(6), ReadOnly;
        COLLECTION_ATTRIBUTES_ACCESSED = 0x2, Fixed(6), ReadOnly;
        COLLECTION_ATTRIBUTES_MODIFIED = 0x3, Fixed(6), ReadOnly;
        COLLECTION_DATA_ACCESSED = 0x4, Fixed(6), ReadOnly;
        COLLECTION_DATA_MODIFIED = 0x5, Fixed(6), ReadOnly;
    }
    COLLECTION + SPECIFIC => {
        TRACKING_PERCENT_COMPLETE = 0x1, Fixed(1), ReadOnly;
        TRACKING_ACTIVE_COMMAND = 0x2, Fixed(2), ReadOnly;
        TRACKING_ENDED_STATUS = 0x3, Fixed(2), ReadOnly;
        TRACKING_SENSE_DATA = 0x4, Variable, ReadOnly;
        TRACKING_MEMBER_COUNT = 0x10, Fixed(8), ReadOnly;
        TRACKING_PROCESSED_COUNT = 0x11, Optional(8), ReadOnly;
        TRACKING_NEWER_SKIPPED_COUNT = 0x12, Optional(8), ReadOnly;
        TRACKING_MISSING_SKIPPED_COUNT = 0x13, Optional(8), ReadOnly;
    }
    COLLECTION + SECURITY => {
        COLLECTION_POLICY_ACCESS_TAG = 0x4000_0001, Fixed(4), Settable;
    }
    COLLECTION + ERROR_RECOVERY => {
        COLLECTION_DAMAGE_SUMMARY = 0x1, Fixed(1), ReadOnly;
        COLLECTION_DATA_DAMAGE_TIME = 0x3, Fixed(6), ReadOnly;
        COLLECTION_ATTRIBUTES_DAMAGE_TIME = 0x4, Fixed(6), ReadOnly;
    }
    USER + INFORMATION => {
        USER_PARTITION_ID = 0x1, Fixed(8), ReadOnly;
        USER_OBJECT_ID = 0x2, Fixed(8), ReadOnly;
        USER_USERNAME = 0x9, Variable, Settable;
        USER_USED_CAPACITY = 0x81, Fixed(8), ReadOnly;
        USER_LOGICAL_LENGTH = 0x82, Fixed(8), Settable;
        USER_ACCESSIBILITY = 0x83, Fixed(4), ReadOnly;
        USER_ACTUAL_DATA_SPACE = 0xd1, Optional(8), ReadOnly;
        USER_RESERVED_DATA_SPACE = 0xd2, Optional(8), ReadOnly;
    }
    USER + QUOTAS => {
        USER_LENGTH_MAX = 0x1, Fixed(8), Settable;
    }
    USER + TIMESTAMPS => {
        USER_CREATED = 0x1, Fixed(6), ReadOnly;
        USER_ATTRIBUTES_ACCESSED = 0x2, Fixed(6), ReadOnly;
        USER_ATTRIBUTES_MODIFIED = 0x3, Fixed(6), ReadOnly;
        USER_DATA_ACCESSED = 0x4, Fixed(6), ReadOnly;
        USER_DATA_MODIFIED = 0x5, Fixed(6), ReadOnly;
    }
    USER + SPECIFIC => {
        USER_COLLECTIONS = 0x1..=0xffff_ff00, Optional(8), Settable;
    }
    USER + SECURITY => {
        USER_POLICY_ACCESS_TAG = 0x4000_0001, Fixed(4), Settable;
    }
    USER + ERROR_RECOVERY => {
        USER_DAMAGE_SUMMARY = 0x1, Fixed(1), ReadOnly;
        USER_DATA_DAMAGE_TIME = 0x3, Fixed(6), ReadOnly;
        USER_ATTRIBUTES_DAMAGE_TIME = 0x4, Fixed(6), ReadOnly;
    }
    CURRENT_COMMAND => {
        CURRENT_RESPONSE_INTEGRITY_VALUE = 0x1, Variable, ReadOnly;
        CURRENT_OBJECT_TYPE = 0x2, Fixed(1), ReadOnly;
        CURRENT_PARTITION_ID = 0x3, Fixed(8), ReadOnly;
        CURRENT_OBJECT_ID = 0x4, Fixed(8), ReadOnly;
        CURRENT_APPEND_START = 0x5, Fixed(8), ReadOnly;
        CURRENT_CAPACITY_CHANGE = 0x6, Fixed(8), ReadOnly;
    }
}

lunar_wire::wire_enum! {
    /// The value of [`COLLECTION_TYPE`].
    pub struct CollectionType(u8) { LINKED = 0x00, TRACKING = 0x01, SPONTANEOUS = 0xef }
}
