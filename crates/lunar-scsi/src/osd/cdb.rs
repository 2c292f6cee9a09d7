//! CDBs of all versions as one type.

mod build;
mod parse;

use super::layout::{RawCdb, at};
use super::{
    AttributeParameters, IsolationMethod, OsdAction, OsdCapability, OsdCommand, OsdOffset,
    OsdSecurityParameters, OsdVersion, TimestampsControl,
};
use crate::cdb::variable;
use crate::sense::Sense;
use alloc::vec::Vec;
use lunar_wire::Field;

/// Options of every command.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct OsdOptions {
    /// DPO: the data are not worth a cache.
    pub dpo: bool,
    /// FUA: the data are durable when the command ends.
    pub fua: bool,
    /// ISOLATION. OSD-2; FLUSH and its relatives have FLUSH SCOPE in its bits.
    pub isolation: IsolationMethod,
    /// TIMESTAMPS CONTROL.
    pub timestamps: TimestampsControl,
    /// IMMED_TR: status is returned before the command ends, and a tracking collection shows the
    /// progress. OSD-2, of commands [with tracking](OsdAction::has_tracking).
    pub immediate: bool,
}

impl Default for OsdOptions {
    fn default() -> Self {
        Self {
            dpo: false,
            fua: false,
            isolation: IsolationMethod::DEFAULT,
            timestamps: TimestampsControl::UPDATE,
            immediate: false,
        }
    }
}

/// A decoded CDB.
///
/// ```
/// use lunar_scsi::osd::{ObjectAddress, ObjectRange, OsdCdb, OsdCommand, OsdVersion};
///
/// let object = ObjectAddress::new(0x1_0000, 0x1_0005);
/// let range = ObjectRange { start: 4096, length: 512 };
/// let cdb = OsdCdb::new(OsdVersion::Osd2, OsdCommand::Read { object, range });
/// let bytes = cdb.encode().unwrap();
/// assert_eq!(bytes.len(), 236);
/// assert_eq!(OsdCdb::decode(&bytes), Ok(cdb));
/// ```
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct OsdCdb {
    /// The version, which determines the length.
    pub version: OsdVersion,
    /// CONTROL.
    pub control: u8,
    /// Options of every command.
    pub options: OsdOptions,
    /// The command.
    pub command: OsdCommand,
    /// CDB CONTINUATION LENGTH: the length of the segment at the start of data-out; 0: none.
    pub continuation_bytes: u32,
    /// Attributes to read and to set.
    pub attributes: AttributeParameters,
    /// The claimed right to the command.
    pub capability: OsdCapability,
    /// Integrity check values.
    pub security: OsdSecurityParameters,
}

/// Minimum length of a CDB continuation segment: its header and one descriptor header.
pub const CONTINUATION_BYTES_MIN: u32 = 48;
/// Maximum length of a CDB continuation segment, which an attribute of the root reports.
pub const CONTINUATION_BYTES_MAX: u32 = 64 << 10;

/// The reason why a CDB cannot be built.
#[derive(Clone, Debug, Eq, PartialEq, thiserror::Error)]
pub enum CdbEncodeError {
    /// CDBs of revision 3 are only decoded.
    #[error("CDBs of OSD-2 revision 3 are not built")]
    Version,
    /// The version does not have the command.
    #[error("{} is not a command of {version:?}", action.name())]
    Action {
        /// The command.
        action: OsdAction,
        /// The version.
        version: OsdVersion,
    },
    /// The version has no code for an offset in a buffer.
    #[error("the version has no code for the offset {0} in a buffer")]
    Offset(u64),
    /// A field has a value that a device server would refuse.
    #[error("a device server would refuse the command: {0}")]
    Refused(Sense),
    /// A field has a value for which the version has no room.
    #[error("the version has no room for a field of the command")]
    NoRoom,
}

const DPO: u8 = 0x10;
const FUA: u8 = 0x08;
const ISOLATION: u8 = 0x07;
const IMMEDIATE: u8 = 0x80;
/// Offset of the continuation length in bytes 32 to 51.
const LAST_AT: usize = 16;

impl OsdCdb {
    /// Creates a CDB without options, attributes and security.
    pub fn new(version: OsdVersion, command: OsdCommand) -> Self {
        Self {
            version,
            control: 0,
            options: OsdOptions::default(),
            command,
            continuation_bytes: 0,
            attributes: AttributeParameters::NONE,
            capability: OsdCapability::default(),
            security: OsdSecurityParameters::default(),
        }
    }

    /// Decodes a CDB. Reserved bits are ignored; the capability and the security parameters are not
    /// verified.
    ///
    /// # Errors
    /// The sense to send: INVALID OPERATION CODE, or INVALID FIELD IN CDB with a pointer to the
    /// first field that has no valid value.
    pub fn decode(cdb: &[u8]) -> Result<Self, Sense> {
        let raw = RawCdb::decode(cdb)?;
        let RawCdb { version, start, .. } = raw;
        let action = OsdAction::from_code(version, start.service_action);
        let action =
            action.ok_or(Sense::invalid_field_in_cdb(variable::SERVICE_ACTION_AT as u16, None))?;
        let options = decode_options(&raw, action)?;
        let command = parse::command(&raw, action)?;
        let continuation_bytes = continuation_bytes(&raw, action)?;
        let format = start.format >> 4 & 0b11;
        let attributes = AttributeParameters::decode(version, format, &raw.attributes)?;
        Ok(Self {
            version,
            control: start.control,
            options,
            command,
            continuation_bytes,
            attributes,
            capability: OsdCapability::decode(version, &raw.capability),
            security: OsdSecurityParameters {
                integrity_value: raw.integrity_value,
                nonce: Field::get(&raw.nonce),
                data_in_integrity_offset: OsdOffset(raw.data_in_integrity_offset),
                data_out_integrity_offset: OsdOffset(raw.data_out_integrity_offset),
            },
        })
    }

    /// Encodes the CDB, which [`decode`](Self::decode) decodes to the same value.
    ///
    /// # Errors
    /// If the version cannot express a field, or a device server would refuse it.
    pub fn encode(&self) -> Result<Vec<u8>, CdbEncodeError> {
        let version = self.version;
        if version == OsdVersion::Osd2R03 {
            return Err(CdbEncodeError::Version);
        }
        let action = self.command.action();
        let code = action.code(version).ok_or(CdbEncodeError::Action { action, version })?;
        let (mut start, mut parameters) = build::command(version, code, &self.command);
        start.control = self.control;
        start.options |= if self.options.dpo { DPO } else { 0 };
        start.options |= if self.options.fua { FUA } else { 0 };
        start.options |= self.options.isolation.0 & ISOLATION;
        start.timestamps_control = self.options.timestamps.0;
        start.format |= if self.options.immediate { IMMEDIATE } else { 0 };
        start.format |= self.attributes.format() << 4;
        if self.continuation_bytes != 0 {
            self.continuation_bytes.put(&mut parameters[LAST_AT..]);
        }
        let mut nonce = [0; 12];
        self.security.nonce.put(&mut nonce);
        let raw = RawCdb {
            version,
            start,
            parameters,
            attributes: self.attributes.encode(version)?,
            capability: self.capability.encode(version),
            integrity_value: self.security.integrity_value,
            nonce,
            data_in_integrity_offset: self.security.data_in_integrity_offset.0,
            data_out_integrity_offset: self.security.data_out_integrity_offset.0,
        };
        let bytes = raw.encode();
        // One comparison finds every field that the version lacks or that has no valid value.
        match Self::decode(&bytes) {
            Ok(decoded) if decoded == *self => Ok(bytes),
            Ok(_) => Err(CdbEncodeError::NoRoom),
            Err(sense) => Err(CdbEncodeError::Refused(sense)),
        }
    }
}

fn decode_options(raw: &RawCdb, action: OsdAction) -> Result<OsdOptions, Sense> {
    let start = &raw.start;
    let mut isolation = IsolationMethod(start.options & ISOLATION);
    if !raw.version.is_osd2() {
        isolation = IsolationMethod::DEFAULT;
    } else if action.has_flush_scope() {
        // Interpretation: the two low bits are FLUSH SCOPE, and there is no isolation.
        if start.options & 0x04 != 0 {
            return Err(Sense::invalid_field_in_cdb(at::OPTIONS, Some(2)));
        }
        isolation = IsolationMethod::DEFAULT;
    } else if isolation.name().is_none() {
        return Err(Sense::invalid_field_in_cdb(at::OPTIONS, Some(2)));
    }
    // Interpretation: vendor specific values are refused, as reserved ones are.
    let timestamps = TimestampsControl(start.timestamps_control);
    if timestamps.name().is_none() {
        return Err(Sense::invalid_field_in_cdb(at::TIMESTAMPS_CONTROL, None));
    }
    let immediate = raw.version == OsdVersion::Osd2 && start.format & IMMEDIATE != 0;
    if immediate && !action.has_tracking() {
        return Err(Sense::invalid_field_in_cdb(at::FORMAT, Some(7)));
    }
    Ok(OsdOptions {
        dpo: start.options & DPO != 0,
        fua: start.options & FUA != 0,
        isolation,
        timestamps,
        immediate,
    })
}

fn continuation_bytes(raw: &RawCdb, action: OsdAction) -> Result<u32, Sense> {
    if raw.version != OsdVersion::Osd2 || !action.has_continuation() {
        return Ok(0);
    }
    let bytes = u32::get(&raw.parameters[LAST_AT..]);
    let is_valid = bytes.is_multiple_of(8)
        && (CONTINUATION_BYTES_MIN..=CONTINUATION_BYTES_MAX).contains(&bytes);
    if bytes != 0 && !is_valid {
        return Err(Sense::invalid_field_in_cdb(at::LAST, None));
    }
    Ok(bytes)
}
