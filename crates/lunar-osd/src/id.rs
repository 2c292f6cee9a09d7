//! Names of objects and attributes.

/// The first id of partitions and of objects in a partition that a caller or the store may choose.
/// OSD-2 §4.6.
pub const FIRST_ID: u64 = 0x1_0000;

/// The name of an object; with `object` 0 of a partition, and with both 0 of the root.
#[derive(Clone, Copy, Debug, Eq, Hash, Ord, PartialEq, PartialOrd)]
pub struct ObjectId {
    /// The id of the partition.
    pub partition: u64,
    /// The id in the partition.
    pub object: u64,
}

impl ObjectId {
    /// The root object, which every store has.
    pub const ROOT: Self = Self::new(0, 0);

    /// Creates the name of an object.
    pub const fn new(partition: u64, object: u64) -> Self {
        Self { partition, object }
    }

    /// Creates the name of a partition as the owner of attributes.
    pub const fn of_partition(partition: u64) -> Self {
        Self::new(partition, 0)
    }
}

/// The name of an attribute of an object.
#[derive(Clone, Copy, Debug, Eq, Hash, Ord, PartialEq, PartialOrd)]
pub struct AttributeId {
    /// The attributes page.
    pub page: u32,
    /// The number in the page.
    pub number: u32,
}

impl AttributeId {
    /// Creates the name of an attribute.
    pub const fn new(page: u32, number: u32) -> Self {
        Self { page, number }
    }
}
