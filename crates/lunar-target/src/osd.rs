//! Execution of the commands of object-based storage devices (OSD) on an object store.
//!
//! [`OsdExecutor::execute`] processes a decoded CDB in the five phases of the reference
//! implementation of the DISC:
//!
//! | phase | module |
//! |---|---|
//! | 1. capability verification | `capability` |
//! | 2. attribute pre-process: attributes to get and set are parsed and checked | `attributes` |
//! | 3. execution on the store, together with the attributes to set | `commands` |
//! | 4. attribute post-process: attributes are returned in data-in | `retrieval`, `values` |
//! | 5. sense collection | `sense` |
//!
//! Security keys, queries, tracking collections, copies, snapshots, structure checks, CDB
//! continuation, and LIST with attributes are refused with INVALID FIELD IN CDB.
//!
//! The executor has no other I/O than that of the store. A command and the attributes that it sets
//! are one change of the store, except where the store chooses the ids of new objects, and where
//! the object is removed: its attributes are set and read before.

mod attributes;
mod capability;
mod commands;
mod retrieval;
mod sense;
#[cfg(test)]
mod tests;
mod values;

pub use capability::{CapabilityVerifier, NoSecurity};

use attributes::{AttributeRequest, TIMESTAMP_BYPASS};
use bytes::Bytes;
use commands::{CommandObject, object_of};
use lunar_osd::{AccessKind, AttributeId, ChangeOptions, ObjectId, ObjectStore};
use lunar_scsi::osd::{
    BufferSegment, CommandFunctions, IsolationMethod, ObjectAddress, OsdAction, OsdCdb, OsdCommand,
    TimestampsControl, field_at, pages,
};
use lunar_scsi::sense::{Sense, Status};
use retrieval::OsdDataIn;
use sense::{OsdFailure, OsdProgress, invalid};
use std::sync::Arc;
use values::{CommandResults, page_owner};

/// Maximum length of data-in of a command, in bytes: its memory.
pub const OSD_DATA_IN_BYTES_MAX: u64 = 64 << 20;

/// Maximum number of objects and attributes that a command creates, sets and gets.
pub const OSD_ITEMS_PER_COMMAND_MAX: usize = 1 << 15;

/// Maximum length of the values that a command sets, of all objects that it creates, in bytes: a
/// record of the store has as much room.
pub const OSD_VALUE_BYTES_PER_COMMAND_MAX: usize = 4 << 20;

/// The identity of a device, which attributes of its root show.
#[derive(Clone, Debug, Default)]
pub struct OsdIdentity {
    /// OSD SYSTEM ID: the designator of the device identification page, padded with zeroes.
    pub system_id: [u8; 20],
    /// T10 vendor identification.
    pub vendor: [u8; 8],
    /// Product identification.
    pub product: [u8; 16],
    /// Product model.
    pub model: [u8; 32],
    /// Product revision level.
    pub revision: [u8; 4],
    /// Unit serial number.
    pub serial: String,
}

/// A command with its data.
#[derive(Clone, Debug)]
pub struct OsdRequest<'a> {
    /// The command.
    pub cdb: &'a OsdCdb,
    /// All data-out that the initiator has sent.
    pub data_out: Bytes,
    /// Length of the data-in that the initiator has room for, in bytes.
    pub data_in_bytes_max: usize,
    /// The time of the command in milliseconds since 1970-01-01 UTC.
    pub time: u64,
}

/// The outcome of a command.
#[derive(Clone, Debug)]
pub struct OsdOutcome {
    /// GOOD, or CHECK CONDITION.
    pub status: Status,
    /// The sense, to be sent in descriptor format; none with GOOD.
    pub sense: Option<Sense>,
    /// Data-in, which a [success with a sense](Sense::is_success) has too.
    pub data_in: Vec<u8>,
}

/// Executes OSD commands on a store.
#[derive(Debug)]
pub struct OsdExecutor {
    store: Arc<ObjectStore>,
    identity: OsdIdentity,
    capabilities: Box<dyn CapabilityVerifier>,
    write_back: bool,
}

/// A command that has passed the attribute pre-process.
struct CheckedOsdCommand<'a> {
    request: &'a OsdRequest<'a>,
    object: CommandObject,
    attributes: AttributeRequest,
    options: ChangeOptions,
}

impl CheckedOsdCommand<'_> {
    fn command(&self) -> &OsdCommand {
        &self.request.cdb.command
    }

    /// Returns the data of the command in data-out, of which there is enough.
    fn data(&self, length: u64) -> Bytes {
        let end = usize::try_from(length).unwrap_or(usize::MAX).min(self.request.data_out.len());
        self.request.data_out.slice(..end)
    }
}

/// The results of the execution.
#[derive(Debug, Default)]
struct OsdExecution {
    /// The objects whose attributes are returned: several of CREATE, else one.
    objects: Vec<ObjectId>,
    results: CommandResults,
    /// A sense of a command that has succeeded.
    sense: Option<Sense>,
}

impl OsdExecutor {
    /// Creates an executor. With `write_back`, commands are durable after a FLUSH or with FUA only.
    pub fn new(
        store: Arc<ObjectStore>,
        identity: OsdIdentity,
        capabilities: Box<dyn CapabilityVerifier>,
        write_back: bool,
    ) -> Self {
        Self { store, identity, capabilities, write_back }
    }

    /// Executes a command.
    pub async fn execute(&self, request: &OsdRequest<'_>) -> OsdOutcome {
        let mut progress = OsdProgress::new(sense_object(&request.cdb.command));
        let result = self.process(request, &mut progress).await;
        // Phase 5: sense collection.
        progress.collect(request.cdb, result)
    }

    /// Processes the first four phases; returns data-in, and the sense of a success.
    async fn process(
        &self,
        request: &OsdRequest<'_>,
        progress: &mut OsdProgress,
    ) -> Result<(Vec<u8>, Option<Sense>), OsdFailure> {
        // Phase 1: capability verification.
        progress.begin(CommandFunctions::VALIDATION);
        check_cdb(request)?;
        let capabilities = CommandFunctions::COMMAND_CAPABILITY
            | CommandFunctions::SET_CAPABILITY
            | CommandFunctions::GET_CAPABILITY;
        progress.begin(capabilities);
        self.capabilities.verify(request.cdb)?;
        // Phase 2: attribute pre-process.
        let checked = self.check(request).await?;
        progress.complete();
        // Phase 3: execution.
        let mut data_in = OsdDataIn::new(request.data_in_bytes_max);
        let action = request.cdb.command.action();
        if action.attributes_come_first() || action == OsdAction::GetAttributes {
            return self.process_attributes_first(&checked, data_in, progress).await;
        }
        let set = if checked.attributes.set.is_empty() {
            CommandFunctions::NONE
        } else {
            CommandFunctions::SET_ATTRIBUTES
        };
        let command = CommandFunctions::COMMAND | CommandFunctions::IMPLICIT_SET_ATTRIBUTES;
        progress.begin(command | set);
        let executed = self.execute_command(&checked, &mut data_in).await?;
        progress.complete();
        // Phase 4: attribute post-process.
        if let Some(first) = executed.objects.first() {
            progress.object = ObjectAddress::new(first.partition, first.object);
        }
        progress.begin(CommandFunctions::GET_ATTRIBUTES);
        self.retrieve(&checked, &executed, &mut data_in).await?;
        progress.complete();
        Ok((data_in.into_bytes(), executed.sense))
    }

    /// Processes a command whose attributes are read before it ends: one that removes its object
    /// sets them first, GET ATTRIBUTES sets them last.
    async fn process_attributes_first(
        &self,
        checked: &CheckedOsdCommand<'_>,
        mut data_in: OsdDataIn,
        progress: &mut OsdProgress,
    ) -> Result<(Vec<u8>, Option<Sense>), OsdFailure> {
        let removes = checked.command().action().attributes_come_first();
        if removes {
            self.check_removal(checked).await?;
            progress.begin(CommandFunctions::SET_ATTRIBUTES);
            self.set_attributes(checked).await?;
            progress.complete();
        }
        let before = OsdExecution {
            objects: vec![checked.object.id],
            results: CommandResults { used_before: checked.object.used_bytes, append_start: 0 },
            sense: None,
        };
        progress.begin(CommandFunctions::GET_ATTRIBUTES);
        self.retrieve(checked, &before, &mut data_in).await?;
        progress.complete();
        progress.begin(CommandFunctions::COMMAND | CommandFunctions::IMPLICIT_SET_ATTRIBUTES);
        if removes {
            self.execute_command(checked, &mut data_in).await?;
        } else {
            progress.begin(CommandFunctions::SET_ATTRIBUTES);
            self.set_attributes(checked).await?;
        }
        progress.complete();
        Ok((data_in.into_bytes(), None))
    }

    /// Finds the object of a command, and parses and checks its attributes.
    async fn check<'a>(
        &self,
        request: &'a OsdRequest<'a>,
    ) -> Result<CheckedOsdCommand<'a>, OsdFailure> {
        let cdb = request.cdb;
        let object = self.find_object(&cdb.command).await?;
        let owner = page_owner(object.kind);
        let attributes = AttributeRequest::parse(cdb, &request.data_out, owner)?;
        retrieval::check_page_of_many_objects(cdb, &attributes.get)?;
        check_items(&cdb.command, &attributes).map_err(|()| invalid(cdb.version.length_at()))?;
        let bypasses = cdb.options.timestamps == TimestampsControl::BYPASS
            || self.bypasses_timestamps(object.id).await?;
        let options = ChangeOptions {
            durable: !self.write_back || cdb.options.fua,
            time: Some(request.time).filter(|_| !bypasses),
        };
        Ok(CheckedOsdCommand { request, object, attributes, options })
    }

    /// True if an attribute of the partition, or of the root, says that timestamps are not updated.
    async fn bypasses_timestamps(&self, id: ObjectId) -> Result<bool, OsdFailure> {
        let (owner, name) = match id.partition {
            0 => (ObjectId::ROOT, pages::ROOT_TIMESTAMP_BYPASS),
            partition => (ObjectId::of_partition(partition), pages::PARTITION_TIMESTAMP_BYPASS),
        };
        let name = AttributeId::new(name.page, name.number);
        let value = self.store.attribute(owner, name).await?;
        Ok(value.is_some_and(|value| *value == [TIMESTAMP_BYPASS]))
    }

    /// Records the time of an access, unless timestamps are bypassed.
    async fn record_access(
        &self,
        checked: &CheckedOsdCommand<'_>,
        access: AccessKind,
    ) -> Result<(), OsdFailure> {
        if let Some(time) = checked.options.time {
            self.store.record_access(checked.object.id, access, time).await?;
        }
        Ok(())
    }
}

/// Refuses objects and attributes that are more than a command may have together.
fn check_items(command: &OsdCommand, attributes: &AttributeRequest) -> Result<(), ()> {
    let objects = match *command {
        OsdCommand::Create { count, .. } => usize::from(count.max(1)),
        _ => 1,
    };
    let items = attributes.items().saturating_add(1).saturating_mul(objects);
    let bytes = attributes.value_bytes().saturating_mul(objects);
    match items <= OSD_ITEMS_PER_COMMAND_MAX && bytes <= OSD_VALUE_BYTES_PER_COMMAND_MAX {
        true => Ok(()),
        false => Err(()),
    }
}

/// Returns the object that sense data shows until it is known better.
fn sense_object(command: &OsdCommand) -> ObjectAddress {
    object_of(command).map_or(ObjectAddress::ROOT, |(address, ..)| address)
}

/// Checks the parts of a CDB that need neither the store nor attributes.
fn check_cdb(request: &OsdRequest<'_>) -> Result<(), Sense> {
    let OsdRequest { cdb, data_out, .. } = request;
    if object_of(&cdb.command).is_none() {
        return Err(invalid(lunar_scsi::cdb::variable::SERVICE_ACTION_AT as u16));
    }
    let isolation = cdb.options.isolation;
    if isolation != IsolationMethod::DEFAULT && isolation != IsolationMethod::NO_ISOLATION {
        return Err(Sense::invalid_field_in_cdb(field_at::OPTIONS, Some(2)));
    }
    // An attribute of the root reports a maximum of 0.
    if cdb.continuation_bytes != 0 {
        return Err(invalid(field_at::LAST));
    }
    let data_in = cdb.data_in_segments().map_err(|error| error.sense())?;
    if data_in.bytes().min(request.data_in_bytes_max as u64) > OSD_DATA_IN_BYTES_MAX {
        return Err(invalid(cdb.version.length_at()));
    }
    let segments = cdb.data_out_segments().map_err(|error| error.sense())?;
    let data = segments.get(BufferSegment::CommandData);
    if data.is_some_and(|data| data.end() > data_out.len() as u64) {
        return Err(invalid(cdb.version.length_at()));
    }
    Ok(())
}
