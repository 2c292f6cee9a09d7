//! Phase 5: collection of sense data.

use super::OsdOutcome;
use lunar_osd::{ObjectId, QuotaKind, StoreError};
use lunar_scsi::osd::{
    AttributeName, CommandFunctions, ObjectAddress, ObjectIdentification, OsdCdb, OsdCommand,
    OsdVersion, field_at, pages,
};
use lunar_scsi::sense::{Sense, Status};

/// The reason why a command failed.
#[derive(Clone, Debug)]
pub(super) enum OsdFailure {
    /// The command is not valid.
    Refused(Sense),
    /// The store refused the command, or failed.
    Store(StoreError),
}

impl From<Sense> for OsdFailure {
    fn from(sense: Sense) -> Self {
        Self::Refused(sense)
    }
}

impl From<StoreError> for OsdFailure {
    fn from(error: StoreError) -> Self {
        Self::Store(error)
    }
}

/// INVALID FIELD IN CDB at a whole field.
pub(super) const fn invalid(field: u16) -> Sense {
    Sense::invalid_field_in_cdb(field, None)
}

/// The functions of a command that have begun and ended.
#[derive(Clone, Copy, Debug)]
pub(super) struct OsdProgress {
    started: CommandFunctions,
    completed: CommandFunctions,
    /// The object that sense data shows.
    pub(super) object: ObjectAddress,
}

impl OsdProgress {
    pub(super) const fn new(object: ObjectAddress) -> Self {
        let (started, completed) = (CommandFunctions::NONE, CommandFunctions::NONE);
        Self { started, completed, object }
    }

    /// Records that functions have begun.
    pub(super) fn begin(&mut self, functions: CommandFunctions) {
        self.started = self.started.with(functions);
    }

    /// Records that all functions that have begun have ended.
    pub(super) fn complete(&mut self) {
        self.completed = self.started;
    }

    /// Adds the descriptor that every error of an OSD command has.
    fn describe(&self, sense: Sense) -> Sense {
        let not_initiated = CommandFunctions(CommandFunctions::ALL.0 & !self.started.0);
        let Self { completed, object, .. } = *self;
        sense.with_object_identification(&ObjectIdentification { not_initiated, completed, object })
    }

    /// Makes the outcome of a command of its data-in, or of its failure.
    pub(super) fn collect(
        &self,
        cdb: &OsdCdb,
        result: Result<(Vec<u8>, Option<Sense>), OsdFailure>,
    ) -> OsdOutcome {
        let (data_in, sense) = match result {
            Ok(reply) => reply,
            Err(OsdFailure::Refused(sense)) => (Vec::new(), Some(sense)),
            Err(OsdFailure::Store(error)) => (Vec::new(), Some(sense_of(&error, cdb))),
        };
        match sense {
            None => OsdOutcome { status: Status::GOOD, sense: None, data_in },
            Some(sense) => {
                let sense = Some(self.describe(sense));
                OsdOutcome { status: Status::CHECK_CONDITION, sense, data_in }
            }
        }
    }
}

/// Returns the sense of an error of the store.
fn sense_of(error: &StoreError, cdb: &OsdCdb) -> Sense {
    match error {
        StoreError::NoSuchPartition(_) => invalid(field_at::PARTITION),
        StoreError::NoSuchObject(_) | StoreError::WrongObjectKind(_) => invalid(field_at::OBJECT),
        StoreError::IdInUse(_) | StoreError::InvalidId(_) => match cdb.command {
            OsdCommand::CreatePartition { .. } => invalid(field_at::PARTITION),
            _ => invalid(field_at::OBJECT),
        },
        StoreError::PartitionNotEmpty(_) | StoreError::CollectionNotEmpty(_) => {
            Sense::PARTITION_OR_COLLECTION_CONTAINS_USER_OBJECTS
        }
        StoreError::ReadOnlySnapshot(_) => Sense::WRITE_PROTECTED,
        StoreError::QuotaExceeded { owner, quota, .. } => {
            Sense::quota_error(quota_attribute(*owner, *quota))
        }
        StoreError::InvalidNumber(_) | StoreError::AttributeTooLong(_) => {
            Sense::INVALID_FIELD_IN_PARAMETER_LIST
        }
        StoreError::OutOfRange { .. } => invalid(range_at(cdb.version, &cdb.command)),
        StoreError::NoSpace | StoreError::CommandTooLarge(_) => Sense::SYSTEM_RESOURCE_FAILURE,
        StoreError::Damaged(_) => Sense::UNRECOVERED_READ_ERROR,
        _ => Sense::INTERNAL_TARGET_FAILURE,
    }
}

/// Returns the offset of the field that decides on the last byte of a command.
fn range_at(version: OsdVersion, command: &OsdCommand) -> u16 {
    match command {
        OsdCommand::Append { .. } => version.length_at(),
        _ => version.start_at(),
    }
}

/// Returns the attribute that has a quota.
fn quota_attribute(owner: ObjectId, quota: QuotaKind) -> AttributeName {
    match (quota, owner) {
        (QuotaKind::ObjectLength, ObjectId::ROOT) => pages::ROOT_DEFAULT_OBJECT_LENGTH_MAX,
        (QuotaKind::ObjectLength, ObjectId { object: 0, .. }) => {
            pages::PARTITION_DEFAULT_OBJECT_LENGTH_MAX
        }
        (QuotaKind::ObjectLength, _) => pages::USER_LENGTH_MAX,
        (QuotaKind::Capacity, _) => pages::PARTITION_CAPACITY_QUOTA,
        (QuotaKind::ObjectCount, _) => pages::PARTITION_OBJECT_COUNT_QUOTA,
        (QuotaKind::Memberships, _) => pages::PARTITION_COLLECTIONS_PER_USER_OBJECT,
        (QuotaKind::PartitionCount, _) => pages::ROOT_PARTITION_COUNT_QUOTA,
    }
}
