//! Types of the fields of a row.

use crate::reservations::ReservationAccess;

/// Conflict of a command with reservations of other nexuses. SPC-4 §5.12.1, SBC-3 §4.15.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum ReservationConflict {
    /// Fixed by the command, whatever its fields.
    Fixed(ReservationAccess),
    /// `Always` when PREVENT is 0, else like a write.
    Prevent,
    /// Allowed under persistent reservations if it starts the unit and sets no power condition,
    /// else like a write.
    StartStop,
    /// The command checks reservations itself.
    Own,
}

impl ReservationConflict {
    /// The access of a specific CDB; `None` if the command checks reservations itself.
    pub(crate) fn access(self, cdb: &[u8]) -> Option<ReservationAccess> {
        const PREVENT: u8 = 0x03;
        const POWER_CONDITION_AND_START: u8 = 0xf1;
        let fourth = cdb.get(4).copied().unwrap_or(0);
        match self {
            Self::Fixed(access) => Some(access),
            Self::Prevent if fourth & PREVENT == 0 => Some(ReservationAccess::Always),
            Self::StartStop if fourth & POWER_CONDITION_AND_START == 1 => {
                Some(ReservationAccess::Persistent)
            }
            Self::Prevent | Self::StartStop => Some(ReservationAccess::Write),
            Self::Own => None,
        }
    }
}

impl core::fmt::Display for ReservationConflict {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.write_str(match self {
            Self::Fixed(ReservationAccess::Always) => "never conflicts",
            Self::Fixed(ReservationAccess::Persistent) => "conflicts with RESERVE (6)",
            Self::Fixed(ReservationAccess::Read) => "as a read",
            Self::Fixed(ReservationAccess::Write) => "as a write",
            Self::Prevent => "as a write if PREVENT is set",
            Self::StartStop => "as a write unless it only starts",
            Self::Own => "own rules",
        })
    }
}

/// Requirements of a command on the medium.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Medium {
    /// Works without a medium.
    Unneeded,
    /// The medium must be present and the unit ready.
    Ready,
    /// The command writes: the medium must be present and not write protected.
    Writable,
}

/// The units that support a command or a page.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
#[repr(u8)]
pub enum Offered {
    /// All units of the type.
    Always,
    /// Thin provisioned units.
    Thin,
    /// Units with a removable medium.
    Removable,
    /// Units whose device writes several blocks atomically.
    Atomic,
    /// Units with a threshold of free space.
    Threshold,
}

/// The optional features of a unit, on which further commands and pages depend.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Features(u8);

impl Features {
    /// No optional features.
    pub const NONE: Self = Self(1 << Offered::Always as u8);

    /// Adds the feature of these units, if `present`.
    #[must_use]
    pub const fn with(self, units: Offered, present: bool) -> Self {
        if present { Self(self.0 | 1 << units as u8) } else { self }
    }

    /// True if a unit with these features is one of `units`.
    #[inline]
    pub const fn include(self, units: Offered) -> bool {
        self.0 & (1 << units as u8) != 0
    }
}

impl core::fmt::Display for Offered {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.write_str(match self {
            Self::Always => "all",
            Self::Thin => "thin",
            Self::Removable => "removable",
            Self::Atomic => "atomic",
            Self::Threshold => "with a threshold of room",
        })
    }
}

/// Particularities of a command's parameter list.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum ListKind {
    /// None, or the command has no list.
    Plain,
    /// The list itself, not the CDB, contains its length: the executor collects the announced
    /// data-out, up to the plan's maximum.
    OpenEnded,
    /// The list is written into a buffer of the nexus.
    NexusBuffer,
    /// The list may change the reservations.
    Reservations,
}
