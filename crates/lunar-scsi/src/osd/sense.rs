//! Sense data of object-based storage devices: descriptors, and the additional sense codes that
//! OSD commands have.

use super::{AttributeName, ObjectAddress, OsdVersion};
use crate::sense::{Sense, SenseKey};
use alloc::vec::Vec;

/// Types of descriptors. SPC-4 §4.5.2.1.
mod descriptor {
    pub(super) const COMMAND_SPECIFIC: u8 = 0x01;
    pub(super) const OBJECT_IDENTIFICATION: u8 = 0x06;
    pub(super) const RESPONSE_INTEGRITY_VALUE: u8 = 0x07;
    pub(super) const ATTRIBUTE_IDENTIFICATION: u8 = 0x08;
}

lunar_wire::wire_flags! {
    /// Functions of a command: parts that are performed one after the other.
    pub struct CommandFunctions(u32) {
        /// The validation of CDB and credential.
        VALIDATION = 0x8000_0000,
        /// The check whether the capability allows the command.
        COMMAND_CAPABILITY = 0x2000_0000,
        /// The command itself.
        COMMAND = 0x1000_0000,
        /// The implicit change of attributes, such as timestamps.
        IMPLICIT_SET_ATTRIBUTES = 0x0010_0000,
        /// The check whether the capability allows the attributes to set.
        SET_CAPABILITY = 0x0000_2000,
        SET_ATTRIBUTES = 0x0000_1000,
        /// The check whether the capability allows the attributes to read.
        GET_CAPABILITY = 0x0000_0020,
        GET_ATTRIBUTES = 0x0000_0010,
        ALL = 0xb010_3030,
    }
}

lunar_wire::wire_struct! {
    /// The body of the object identification descriptor, after its additional length.
    pub struct ObjectIdentificationBody [30] {
        6 => not_initiated: CommandFunctions,
        10 => completed: CommandFunctions,
        14 => partition: u64,
        22 => object: u64,
    }
}

lunar_wire::wire_struct! {
    /// The body of the command-specific information descriptor.
    pub struct CommandSpecificBody [10] {
        2 => information: u64,
    }
}

lunar_wire::wire_struct! {
    /// An attribute in the attribute identification descriptor.
    pub struct SenseAttribute [8] {
        0 => page: u32,
        4 => number: u32,
    }
}

/// The object of a command that failed, and how far the command came. A function in neither set
/// has failed.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct ObjectIdentification {
    /// Functions that were not started.
    pub not_initiated: CommandFunctions,
    /// Functions that have ended.
    pub completed: CommandFunctions,
    /// The object.
    pub object: ObjectAddress,
}

/// Maximum number of attributes that sense data name: with them, the other descriptors of a command
/// fit in the sense data too.
pub const SENSE_ATTRIBUTES_MAX: usize = 14;

/// Number of bytes before the first attribute in the attribute identification descriptor.
///
/// Interpretation: the first attribute is at byte 4 of the descriptor; one source has byte 8.
const ATTRIBUTES_AT: usize = 2;

impl Sense {
    /// Adds the object identification descriptor, which every error of an OSD command has.
    #[must_use]
    pub fn with_object_identification(self, identification: &ObjectIdentification) -> Self {
        let ObjectIdentification { not_initiated, completed, object } = *identification;
        let ObjectAddress { partition, object } = object;
        let body = ObjectIdentificationBody { not_initiated, completed, partition, object };
        self.with_descriptor(descriptor::OBJECT_IDENTIFICATION, &body.encode())
    }

    /// The object identification descriptor.
    pub fn object_identification(&self) -> Option<ObjectIdentification> {
        let body = self.descriptors.get(descriptor::OBJECT_IDENTIFICATION)?.first_chunk()?;
        let ObjectIdentificationBody { not_initiated, completed, partition, object } =
            ObjectIdentificationBody::decode(body);
        let object = ObjectAddress { partition, object };
        Some(ObjectIdentification { not_initiated, completed, object })
    }

    /// Adds the response integrity check value, of which `version` has the length.
    #[must_use]
    pub fn with_response_integrity_value(self, version: OsdVersion, value: &[u8; 32]) -> Self {
        let value = &value[..version.integrity_value_bytes()];
        self.with_descriptor(descriptor::RESPONSE_INTEGRITY_VALUE, value)
    }

    /// The response integrity check value: 20 bytes up to OSD-2 revision 3, then 32.
    pub fn response_integrity_value(&self) -> Option<&[u8]> {
        self.descriptors.get(descriptor::RESPONSE_INTEGRITY_VALUE)
    }

    /// Adds the attribute identification descriptor: the attributes that an error is about, of
    /// which [`SENSE_ATTRIBUTES_MAX`] are shown.
    #[must_use]
    pub fn with_attributes(self, names: &[AttributeName]) -> Self {
        let mut body = Vec::from([0; ATTRIBUTES_AT]);
        for AttributeName { page, number } in names.iter().copied().take(SENSE_ATTRIBUTES_MAX) {
            body.extend_from_slice(&SenseAttribute { page, number }.encode());
        }
        self.with_descriptor(descriptor::ATTRIBUTE_IDENTIFICATION, &body)
    }

    /// The attributes that the error is about.
    pub fn attributes(&self) -> Vec<AttributeName> {
        let body = self.descriptors.get(descriptor::ATTRIBUTE_IDENTIFICATION);
        let names = body.and_then(|body| body.get(ATTRIBUTES_AT..)).unwrap_or(&[]);
        let name = |bytes| {
            let SenseAttribute { page, number } = SenseAttribute::decode(bytes);
            AttributeName { page, number }
        };
        names.as_chunks().0.iter().map(name).collect()
    }

    /// Adds command-specific information: with [`Self::READ_PAST_END_OF_USER_OBJECT`], the number
    /// of bytes that were read.
    #[must_use]
    pub fn with_command_specific_information(self, information: u64) -> Self {
        let body = CommandSpecificBody { information };
        self.with_descriptor(descriptor::COMMAND_SPECIFIC, &body.encode())
    }

    /// Command-specific information.
    pub fn command_specific_information(&self) -> Option<u64> {
        let body = self.descriptors.get(descriptor::COMMAND_SPECIFIC)?.first_chunk()?;
        Some(CommandSpecificBody::decode(body).information)
    }

    /// READ PAST END OF USER OBJECT, after `bytes` were read. The data and the attributes are
    /// transferred nevertheless.
    pub fn read_past_end(bytes: u64) -> Self {
        Self::READ_PAST_END_OF_USER_OBJECT.with_command_specific_information(bytes)
    }

    /// QUOTA ERROR, with the attribute that has the limit.
    pub fn quota_error(quota: AttributeName) -> Self {
        Self::QUOTA_ERROR.with_attributes(&[quota])
    }

    /// True if the command has succeeded in spite of the sense: NO SENSE and RECOVERED ERROR.
    pub fn is_success(&self) -> bool {
        matches!(self.key, SenseKey::NO_SENSE | SenseKey::RECOVERED_ERROR)
    }
}

/// A sense of OSD commands.
#[derive(Clone, Debug)]
pub struct OsdSenseEntry {
    /// Key and additional code.
    pub sense: Sense,
    /// The commands and circumstances.
    pub when: &'static str,
}

/// All senses of OSD commands, without those that every device server has.
pub static OSD_SENSES: [OsdSenseEntry; 19] = [
    entry(Sense::INVALID_OPERATION_CODE, "the command that PERFORM SCSI COMMAND embeds"),
    entry(Sense::INVALID_FIELD_IN_CDB, "a field, id or range, with a pointer"),
    entry(Sense::SECURITY_AUDIT_VALUE_FROZEN, "the audit value of the capability is frozen"),
    entry(Sense::SECURITY_WORKING_KEY_FROZEN, "the working key of the capability is frozen"),
    entry(Sense::NONCE_NOT_UNIQUE, "a request with the nonce was received before"),
    entry(Sense::NONCE_TIMESTAMP_OUT_OF_RANGE, "the time of the nonce is too old or too new"),
    entry(Sense::INVALID_FIELD_IN_PARAMETER_LIST, "an attribute, list or descriptor"),
    entry(Sense::INVALID_DATA_OUT_INTEGRITY_VALUE, "data-out differ from their check value"),
    entry(Sense::PARAMETER_LIST_LENGTH_ERROR, "a list ends inside an entry"),
    entry(Sense::COMMAND_SEQUENCE_ERROR, "the second step of SET MASTER KEY without the first"),
    entry(Sense::PARTITION_OR_COLLECTION_CONTAINS_USER_OBJECTS, "removal of one with contents"),
    entry(Sense::READ_PAST_END_OF_USER_OBJECT, "READ beyond the logical length"),
    entry(Sense::QUOTA_ERROR, "a quota would be exceeded, with its attribute"),
    entry(Sense::SYSTEM_RESOURCE_FAILURE, "a resource of the device server is exhausted"),
    entry(Sense::FORMAT_IN_PROGRESS, "other commands during FORMAT OSD"),
    entry(Sense::FORMAT_COMMAND_FAILED, "FORMAT OSD failed"),
    entry(Sense::INTERNAL_TARGET_FAILURE, "an error of the store"),
    entry(Sense::OPERATION_IN_PROGRESS, "a tracking collection is in use by a command"),
    entry(Sense::POWER_ON_RESET, "the first command of a nexus"),
];

const fn entry(sense: Sense, when: &'static str) -> OsdSenseEntry {
    OsdSenseEntry { sense, when }
}
