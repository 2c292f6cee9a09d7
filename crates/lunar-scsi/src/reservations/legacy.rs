//! RESERVE (6) and RELEASE (6). SPC-2 §7.16 and §7.21, with the exceptions of SPC-4 §5.12.3 that
//! CRH announces.

use super::{ItNexus, Reservations};
use crate::plan::Refusal;

impl Reservations {
    /// RESERVE (6): reserves the whole unit for this nexus.
    ///
    /// # Errors
    /// RESERVATION CONFLICT if another nexus has reserved it, or while keys are registered; not for
    /// a nexus that already has access by a persistent reservation.
    pub fn reserve(&mut self, nexus: &ItNexus) -> Result<(), Refusal> {
        if self.may_pass_without_effect(nexus)? {
            return Ok(());
        }
        match &self.reserved_by {
            Some(owner) if owner != nexus => Err(Refusal::ReservationConflict),
            _ => {
                self.reserved_by = Some(nexus.clone());
                Ok(())
            }
        }
    }

    /// RELEASE (6). A reservation of another nexus stays, which is no error.
    ///
    /// # Errors
    /// RESERVATION CONFLICT while keys are registered, with the same exception.
    pub fn release(&mut self, nexus: &ItNexus) -> Result<(), Refusal> {
        if !self.may_pass_without_effect(nexus)? {
            self.nexus_lost(nexus);
        }
        Ok(())
    }

    /// True if the command ends with GOOD and has no effect, because the nexus has access by a
    /// persistent reservation. RESERVATION CONFLICT if keys are registered and it has none.
    fn may_pass_without_effect(&self, nexus: &ItNexus) -> Result<bool, Refusal> {
        if self.registrations.is_empty() {
            return Ok(false);
        }
        match self.kind {
            Some(kind) if self.has_access(nexus, kind) => Ok(true),
            _ => Err(Refusal::ReservationConflict),
        }
    }
}
