//! START STOP UNIT, PREVENT ALLOW MEDIUM REMOVAL.

use super::{Plan, Refusal};
use crate::attention::Attention;
use crate::cdb::first;
use crate::cdb::sbc::StartStop;
use crate::cdb::spc::PreventAllow;
use crate::commands::Request;
use crate::sense::Sense;
use crate::unit::BlockUnit;
use alloc::vec::Vec;

/// The state of the medium.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub(crate) enum MediumState {
    /// Accessible.
    #[default]
    Ready,
    /// Present, but START STOP UNIT has stopped the unit.
    Stopped,
    /// Ejected.
    Ejected,
}

impl MediumState {
    /// Checks that a command that needs the medium may run.
    pub(crate) fn check(self) -> Result<(), Sense> {
        match self {
            Self::Ready => Ok(()),
            Self::Stopped => Err(Sense::NOT_READY_INITIALIZING_COMMAND_REQUIRED),
            Self::Ejected => Err(Sense::MEDIUM_NOT_PRESENT),
        }
    }
}

/// START STOP UNIT. SBC-3 §5.25.
pub(crate) fn start_stop(unit: &mut BlockUnit, request: &Request<'_>) -> Result<Plan, Refusal> {
    const IMMED: u8 = 0x01;
    const POWER_CONDITION: u8 = 0xf0;
    const NO_FLUSH: u8 = 0x04;
    const LOAD_EJECT: u8 = 0x02;
    const START: u8 = 0x01;
    let raw = StartStop::decode(&first(request.cdb));
    // A unit without a motor is ready in each power condition, and enters it at once. START and
    // LOEJ are then ignored.
    if raw.condition & POWER_CONDITION != 0 {
        return Ok(Plan::Reply(Vec::new()));
    }
    let start = raw.condition & START != 0;
    if raw.condition & LOAD_EJECT != 0 {
        load_or_eject(unit, request, start)?;
    } else if unit.medium() == MediumState::Ejected {
        MediumState::Ejected.check()?;
    } else {
        // Without LOEJ "the logical unit shall take no action regarding loading or ejecting the
        // medium". A removable unit has no stopped power condition here: it would look empty to
        // initiators that watch it become ready, and there is no motor to start again.
        let ready = start || unit.options().removable;
        unit.set_medium(if ready { MediumState::Ready } else { MediumState::Stopped });
    }
    if start || raw.condition & NO_FLUSH != 0 {
        return Ok(Plan::Reply(Vec::new()));
    }
    Ok(Plan::Flush { immediate: raw.flags & IMMED != 0 })
}

/// Loads or ejects the medium; both are refused while a nexus prevents removal.
fn load_or_eject(unit: &mut BlockUnit, request: &Request<'_>, load: bool) -> Result<(), Refusal> {
    if !unit.options().removable {
        return Err(Sense::invalid_field_in_cdb(4, Some(1)).into());
    }
    if unit.nexuses.is_removal_prevented() {
        return Err(Sense::MEDIUM_REMOVAL_PREVENTED.into());
    }
    if load {
        if unit.medium() == MediumState::Ejected {
            let changed = Attention::MEDIUM_MAY_HAVE_CHANGED;
            unit.raise(changed.0, Some(request.nexus));
        }
        unit.set_medium(MediumState::Ready);
    } else {
        unit.set_medium(MediumState::Ejected);
    }
    Ok(())
}

/// PREVENT ALLOW MEDIUM REMOVAL. SBC-3 §5.15: a separate setting of each nexus.
pub(crate) fn prevent_allow(unit: &mut BlockUnit, request: &Request<'_>) -> Result<Plan, Refusal> {
    let raw = PreventAllow::decode(&first(request.cdb));
    match raw.prevent & 3 {
        prevent @ (0 | 1) => unit.nexuses.set_prevented(request.nexus, prevent == 1),
        _ => return Err(Sense::invalid_field_in_cdb(4, Some(1)).into()),
    }
    Ok(Plan::Reply(Vec::new()))
}
