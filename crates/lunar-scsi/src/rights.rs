//! What an initiator may do to all that use a unit, and which commands do so.

use crate::attention::Attention;
use crate::plan::NexusId;
use crate::sense::Sense;
use crate::unit::BlockUnit;
use core::fmt;

/// What an initiator may do to all that use a unit. By default it may do everything, as the
/// standards have it.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Rights {
    /// It may send the commands that are [`Administration`].
    pub administers_unit: bool,
    /// It may reset the target that it came to.
    pub administers_target: bool,
}

impl Default for Rights {
    fn default() -> Self {
        Self { administers_unit: true, administers_target: true }
    }
}

impl Rights {
    /// # Errors
    /// ACCESS DENIED - NO ACCESS RIGHTS, as SPC-4 §8.3 has it for what access controls forbid.
    pub(crate) fn check_administers(self) -> Result<(), Sense> {
        if self.administers_unit { Ok(()) } else { Err(Sense::ACCESS_DENIED_NO_ACCESS_RIGHTS) }
    }
}

/// Which uses of a command act on all that use the unit, beyond the blocks that any initiator
/// reads and writes: only initiators that administer the unit may send those. Decision 092.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Administration {
    /// None.
    Never,
    /// All.
    Always,
    /// All but starting the unit: no LOEJ, no power condition.
    UnlessStarts,
    /// Those whose parameter list changes something; judged when it has come.
    WhenChanges,
}

impl Administration {
    /// Whether this very command is one, as far as the CDB tells.
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

impl BlockUnit {
    /// What a nexus may do; one that is not attached may do nothing.
    pub(crate) fn rights(&self, nexus: NexusId) -> Rights {
        const NONE: Rights = Rights { administers_unit: false, administers_target: false };
        self.nexuses.get(nexus).map_or(NONE, |nexus| nexus.rights)
    }

    /// Sets what a nexus may do from now on. INQUIRY and REPORT SUPPORTED OPERATION CODES answer by
    /// its rights, so it is told when those to the unit are others than before.
    pub fn set_rights(&mut self, nexus: NexusId, rights: Rights) {
        let Some(state) = self.nexuses.get_mut(nexus) else { return };
        let old = core::mem::replace(&mut state.rights, rights);
        if old.administers_unit != rights.administers_unit {
            self.raise_for(Attention::INQUIRY_DATA_HAS_CHANGED.0, nexus);
            self.conditions.count_change();
        }
    }
}
