//! Phase 1: verification of the capability of a command.

use lunar_scsi::osd::{OsdCapability, OsdCdb, SecurityMethod};
use lunar_scsi::sense::Sense;
use std::fmt;

/// Verifies whether the capability in a CDB allows the command.
pub trait CapabilityVerifier: fmt::Debug + Send + Sync {
    /// Verifies a command before anything else of it is done.
    ///
    /// # Errors
    /// The sense to send, with a pointer to the field of the capability that does not fit.
    fn verify(&self, cdb: &OsdCdb) -> Result<(), Sense>;
}

/// The security method NOSEC: capabilities are not protected, and allow every command.
#[derive(Clone, Copy, Debug, Default)]
pub struct NoSecurity;

impl CapabilityVerifier for NoSecurity {
    /// Refuses the other methods: an initiator that asks for protection must not go without it.
    fn verify(&self, cdb: &OsdCdb) -> Result<(), Sense> {
        match cdb.capability.security_method {
            SecurityMethod::NOSEC => Ok(()),
            _ => Err(Sense::invalid_field_in_cdb(OsdCapability::SECURITY_METHOD_AT, None)),
        }
    }
}
