//! Rights of an initiator that affect all users of a unit, and the commands that require them.

use crate::attention::Attention;
use crate::plan::NexusId;
use crate::primary::PrimaryUnit;
use crate::sense::Sense;
use core::fmt;

/// Rights of an initiator that affect all users of a unit. By default it has all of them, as in the
/// standards.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Rights {
    /// True if it may send the commands of [`Administration`].
    pub administers_unit: bool,
    /// True if it may reset the target it is logged in to.
    pub administers_target: bool,
}

impl Default for Rights {
    fn default() -> Self {
        Self { administers_unit: true, administers_target: true }
    }
}

impl Rights {
    /// Checks the right to administer the unit.
    ///
    /// # Errors
    /// ACCESS DENIED - NO ACCESS RIGHTS, which SPC-4 §8.3 defines for violations of access
    /// controls.
    pub(crate) fn check_administers(self) -> Result<(), Sense> {
        if self.administers_unit { Ok(()) } else { Err(Sense::ACCESS_DENIED_NO_ACCESS_RIGHTS) }
    }
}

/// The uses of a command that affect all users of the unit, beyond the blocks that any initiator
/// reads and writes: only initiators that administer the unit may send these. Decision 092.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Administration {
    /// No uses.
    Never,
    /// All uses.
    Always,
    /// All uses except starting the unit: no LOEJ, no power condition.
    UnlessStarts,
    /// Uses whose parameter list changes something; checked when it has arrived.
    WhenChanges,
}

impl Administration {
    /// True if this CDB is such a use, as far as the CDB determines it.
    pub(crate) fn includes(self, cdb: &[u8]) -> bool {
        const POWER_CONDITION_LOEJ_START: u8 = 0xf3;
        match self {
            Self::Never | Self::WhenChanges => false,
            Self::Always => true,
            Self::UnlessStarts => {
                cdb.get(4).is_none_or(|fourth| fourth & POWER_CONDITION_LOEJ_START != 1)
            }
        }
    }
}

impl fmt::Display for Administration {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Never => "",
            Self::Always => "yes",
            Self::UnlessStarts => "unless it only starts",
            Self::WhenChanges => "if it changes something",
        })
    }
}

impl PrimaryUnit {
    /// Rights of a nexus; one that is not attached has none.
    pub(crate) fn rights(&self, nexus: NexusId) -> Rights {
        const NONE: Rights = Rights { administers_unit: false, administers_target: false };
        self.nexuses.get(nexus).map_or(NONE, |nexus| nexus.rights)
    }

    /// Sets the rights of a nexus. INQUIRY and REPORT SUPPORTED OPERATION CODES depend on them, so
    /// the nexus gets a unit attention if its rights to the unit change.
    pub fn set_rights(&mut self, nexus: NexusId, rights: Rights) {
        let Some(state) = self.nexuses.get_mut(nexus) else { return };
        let old = core::mem::replace(&mut state.rights, rights);
        if old.administers_unit != rights.administers_unit {
            self.raise_for(Attention::INQUIRY_DATA_HAS_CHANGED.0, nexus);
            self.access.count_change();
        }
    }
}
