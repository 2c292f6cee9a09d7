//! Unit attentions and deferred errors, recorded as they arrive with the response to any command.

use lunar_iscsi::connection::initiator::CommandResult;
use lunar_scsi::commands::OperationClass;
use lunar_scsi::sense::{Sense, SenseKey, Status};
use lunar_wire::Lun;
use std::collections::HashMap;
use std::ops::Add;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// POWER ON, RESET, OR BUS DEVICE RESET OCCURRED, and its special cases up to DEVICE INTERNAL
/// RESET: after any of them a volatile cache may be empty. SPC-4 annex F.
const RESETS: std::ops::RangeInclusive<u16> = 0x2900..=0x2904;
/// NOT READY TO READY CHANGE, MEDIUM MAY HAVE CHANGED: written data may be gone with the old
/// medium. Lunar's target reports it when an operator resumes a disk whose sync had failed.
const MEDIUM_MAY_HAVE_CHANGED: u16 = 0x2800;
/// I_T NEXUS LOSS OCCURRED: only the session was lost; the unit kept its cache.
const NEXUS_LOSS: u16 = 0x2907;

/// Sense keys with which a flush fails. Its own error concerns writes acknowledged before.
const FAILURES: [SenseKey; 2] = [SenseKey::MEDIUM_ERROR, SenseKey::HARDWARE_ERROR];

/// Number of times a unit reported a loss from its volatile cache.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub(crate) struct CacheLossCounts {
    /// Number of times the whole cache may have been lost.
    pub(crate) resets: u64,
    /// Number of times an acknowledged write could not be made durable later.
    pub(crate) failures: u64,
}

impl Add for CacheLossCounts {
    type Output = Self;

    fn add(self, other: Self) -> Self {
        Self { resets: self.resets + other.resets, failures: self.failures + other.failures }
    }
}

/// Unit attentions of a target's units, recorded for the units that are watched.
#[derive(Debug, Default)]
pub(crate) struct Attentions {
    units: Mutex<HashMap<Lun, Arc<UnitAttentions>>>,
}

/// Unit attentions of one unit.
#[derive(Debug, Default)]
pub(crate) struct UnitAttentions {
    seen: Mutex<AttentionState>,
}

#[derive(Clone, Copy, Debug, Default)]
struct AttentionState {
    count: u64,
    losses: CacheLossCounts,
    /// The last session in which the unit reported a reset.
    reset_in: Option<u64>,
    /// The last session in which the unit reported that only the nexus was lost.
    nexus_lost_in: Option<u64>,
}

impl Attentions {
    /// Returns the record of the unit `lun`, and starts it if there is none.
    pub(crate) fn of(&self, lun: Lun) -> Arc<UnitAttentions> {
        Arc::clone(self.units().entry(lun).or_default())
    }

    /// Records how a command of session `number` ended.
    pub(crate) fn record(&self, lun: Lun, number: u64, opcode: u8, result: &CommandResult) {
        if Status(result.status) != Status::CHECK_CONDITION {
            return;
        }
        let sense = Sense::decode(&result.sense);
        let is_key = |key: SenseKey| sense.as_ref().is_some_and(|sense| sense.key == key);
        // SPC-4 §4.5.7: error of an earlier command. A recovered error is no loss.
        let deferred = Sense::is_deferred(&result.sense) && !is_key(SenseKey::RECOVERED_ERROR);
        // A target may report such an error only once, so concurrent flushes may end with GOOD.
        let is_flush = OperationClass::of(&[opcode]) == OperationClass::Flush;
        let flush_failed = is_flush && FAILURES.into_iter().any(is_key);
        let failed = deferred || flush_failed;
        let attention = is_key(SenseKey::UNIT_ATTENTION);
        if !failed && !attention {
            return;
        }
        let code = sense.map_or(0, |sense| sense.code);
        let [asc, ascq] = code.to_be_bytes();
        let what = match (deferred, flush_failed) {
            (true, _) => "deferred error",
            (_, true) => "failed flush",
            _ => "unit attention",
        };
        tracing::info!(?lun, code = format!("{asc:02x}h/{ascq:02x}h"), "{what}");
        let units = self.units();
        let Some(unit) = units.get(&lun) else { return };
        if failed {
            unit.seen().losses.failures += 1;
        }
        if attention {
            unit.note(code, number);
        }
    }

    /// Counts a reset: the response to a command of the unit `lun` is lost while its session
    /// continues, and the unit does not repeat a unit attention.
    pub(crate) fn record_lost_response(&self, lun: Lun) {
        if let Some(unit) = self.units().get(&lun) {
            unit.seen().losses.resets += 1;
        }
    }

    fn units(&self) -> MutexGuard<'_, HashMap<Lun, Arc<UnitAttentions>>> {
        self.units.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl AttentionState {
    fn has_reported_start(&self, session: u64) -> bool {
        [self.reset_in, self.nexus_lost_in].contains(&Some(session))
    }
}

impl UnitAttentions {
    fn note(&self, code: u16, session: u64) {
        let mut seen = self.seen();
        seen.count += 1;
        if RESETS.contains(&code) || code == MEDIUM_MAY_HAVE_CHANGED {
            seen.losses.resets += 1;
            seen.reset_in = Some(session);
        } else if code == NEXUS_LOSS {
            seen.nexus_lost_in = Some(session);
        }
    }

    /// Records that the unit executed a command of a session, and so has reported how the session
    /// began. A unit that reported nothing is assumed to have lost its cache.
    pub(crate) fn record_session_start(&self, session: u64) {
        let mut seen = self.seen();
        if !seen.has_reported_start(session) {
            seen.losses.resets += 1;
            seen.reset_in = Some(session);
        }
    }

    /// True when the unit has reported how session `session` began.
    pub(crate) fn has_reported_start(&self, session: u64) -> bool {
        self.seen().has_reported_start(session)
    }

    /// Number of unit attentions.
    pub(crate) fn count(&self) -> u64 {
        self.seen().count
    }

    /// Number of times a volatile cache may have been lost.
    pub(crate) fn resets(&self) -> u64 {
        self.reported_losses().resets
    }

    /// Losses that the unit reported from its cache.
    pub(crate) fn reported_losses(&self) -> CacheLossCounts {
        self.seen().losses
    }

    fn seen(&self) -> MutexGuard<'_, AttentionState> {
        self.seen.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use bytes::Bytes;
    use lunar_iscsi::connection::initiator::Residual;
    use lunar_iscsi::pdu::ServiceResponse;
    use lunar_scsi::sense::SenseFormat;

    const READ: u8 = 0x88;

    fn ended(sense: Sense) -> CommandResult {
        CommandResult {
            response: ServiceResponse::COMMAND_COMPLETED,
            status: Status::CHECK_CONDITION.0,
            status_qualifier: 0,
            sense: Bytes::copy_from_slice(&sense.encode(SenseFormat::Fixed)),
            data_in_bytes: 0,
            residual: Residual::None,
            read_residual: Residual::None,
        }
    }

    /// Goal: a session that begins with a power-on, or with no unit attention, may have lost the
    /// cache; a session that begins with a nexus loss alone has not.
    #[test]
    fn only_a_nexus_loss_keeps_the_cache() {
        let attentions = Attentions::default();
        let unit = attentions.of(Lun::ZERO);
        let power_on = ended(Sense::POWER_ON_RESET);
        attentions.record(Lun::ZERO, 1, READ, &power_on);
        unit.record_session_start(1);
        assert_eq!((unit.resets(), unit.count()), (1, 1), "reported, and counted once");
        attentions.record(Lun::ZERO, 2, READ, &ended(Sense::NEXUS_LOSS));
        unit.record_session_start(2);
        assert_eq!(unit.resets(), 1);
        unit.record_session_start(3);
        unit.record_session_start(3);
        assert_eq!(unit.resets(), 2, "nothing was reported");
        attentions.record(Lun::ZERO, 3, READ, &ended(Sense::RESET_BY_FUNCTION));
        assert_eq!(unit.resets(), 3, "in the middle of a session as well");
        attentions.record(Lun::new(1), 3, READ, &power_on);
        assert_eq!(unit.resets(), 3, "another unit's");
        attentions.record(Lun::ZERO, 3, READ, &ended(Sense::MEDIUM_MAY_HAVE_CHANGED));
        assert_eq!(unit.resets(), 4, "the written data may not be on the medium");
        attentions.record_lost_response(Lun::new(1));
        assert_eq!(unit.resets(), 4, "another unit's");
        attentions.record_lost_response(Lun::ZERO);
        assert_eq!(unit.resets(), 5, "the cause is unknown");
    }

    /// Goal: an error of an earlier command is counted in both formats, also when its sense is cut
    /// off; a recovered error and an error of the command itself are not.
    #[test]
    fn deferred_errors_are_counted() {
        let attentions = Attentions::default();
        let unit = attentions.of(Lun::ZERO);
        let see = |sense: &[u8]| {
            let sense = Bytes::copy_from_slice(sense);
            let result = CommandResult { sense, ..ended(Sense::WRITE_ERROR) };
            attentions.record(Lun::ZERO, 1, READ, &result);
            unit.reported_losses().failures
        };
        let mut fixed = Sense::WRITE_ERROR.with_information(7).encode(SenseFormat::Fixed);
        assert_eq!(see(&fixed), 0, "of the command itself");
        fixed[0] |= 1;
        assert_eq!((fixed[0], see(&fixed)), (0xf1, 1));
        let mut described = Sense::WRITE_ERROR.encode(SenseFormat::Descriptor);
        described[0] = 0x73;
        assert_eq!(see(&described), 2);
        assert_eq!(see(&[0x71]), 3, "cut off");
        fixed[2] = SenseKey::RECOVERED_ERROR.0;
        assert_eq!(see(&fixed), 3, "recovered");
        assert_eq!((unit.count(), unit.resets()), (0, 0), "no unit attention");
    }

    /// Goal: data that a flush could not write is counted as well, for both flush commands and both
    /// failure keys; a flush that was refused or aborted is not counted.
    #[test]
    fn failed_flushes_are_counted() {
        let attentions = Attentions::default();
        let unit = attentions.of(Lun::ZERO);
        let see = |opcode: u8, sense: Sense| {
            attentions.record(Lun::ZERO, 1, opcode, &ended(sense));
            unit.reported_losses().failures
        };
        assert_eq!(see(0x35, Sense::WRITE_ERROR), 1);
        assert_eq!(see(0x91, Sense::new(SenseKey::HARDWARE_ERROR, 0x4400)), 2);
        assert_eq!(see(0x35, Sense::INVALID_OPERATION_CODE), 2);
        assert_eq!(see(0x35, Sense::new(SenseKey::ABORTED_COMMAND, 0)), 2);
        assert_eq!(see(READ, Sense::WRITE_ERROR), 2);
    }
}
