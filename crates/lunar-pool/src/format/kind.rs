//! The kind of a pool.

lunar_wire::wire_enum! {
    /// The byte of a label that names how the pool joins its members.
    pub struct PoolKind(u8) {
        /// Consecutive blocks go to all members in turn, one stripe unit at a time (RAID 0).
        STRIPE = 1,
        /// All members have the same blocks (RAID 1).
        MIRROR = 2,
        /// The blocks of each member follow those of the member before.
        CONCAT = 3,
    }
}

impl PoolKind {
    /// All kinds that this version knows.
    pub const ALL: [Self; 3] = [Self::CONCAT, Self::STRIPE, Self::MIRROR];

    /// Returns the name of the kind for commands and messages.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::STRIPE => "stripe",
            Self::MIRROR => "mirror",
            Self::CONCAT => "concat",
            _ => "unknown",
        }
    }
}
