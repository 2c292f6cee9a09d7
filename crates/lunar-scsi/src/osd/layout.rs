//! Layouts of CDBs.

use super::OsdVersion;
use crate::cdb::variable;
use crate::sense::Sense;
use lunar_wire::Field;

lunar_wire::wire_struct! {
    /// The first bytes of a CDB, the same in all versions.
    pub struct OsdCdbStart [32] {
        0 => opcode: u8,
        1 => control: u8,
        7 => additional_bytes: u8,
        8 => service_action: u16,
        /// DPO 10h, FUA 08h, ISOLATION 07h (OSD-2), FLUSH SCOPE 03h.
        10 => options: u8,
        /// IMMED_TR 80h, LIST_ATTR 40h, GET/SET CDBFMT 30h; the rest depends on the command.
        11 => format: u8,
        12 => timestamps_control: u8,
        /// DUPLICATION METHOD of the commands that copy.
        14 => duplication_method: u8,
        /// TIME OF DUPLICATION METHOD of CREATE SNAPSHOT and CREATE CLONE. Interpretation: no
        /// source shows where the field is.
        15 => time_of_duplication: u8,
        16 => partition: u64,
        24 => object: u64,
    }
}

lunar_wire::wire_struct! {
    /// A CDB of OSD-1.
    pub struct Osd1Cdb [200] {
        0 => start: [u8; 32],
        32 => parameters: [u8; 20],
        52 => attributes: [u8; 28],
        80 => capability: [u8; 80],
        160 => integrity_value: [u8; 20],
        180 => nonce: [u8; 12],
        192 => data_in_integrity_offset: u32,
        196 => data_out_integrity_offset: u32,
    }
}

lunar_wire::wire_struct! {
    /// A CDB of OSD-2 revision 3.
    pub struct Osd2R03Cdb [224] {
        0 => start: [u8; 32],
        32 => parameters: [u8; 20],
        52 => attributes: [u8; 28],
        80 => capability: [u8; 104],
        184 => integrity_value: [u8; 20],
        204 => nonce: [u8; 12],
        216 => data_in_integrity_offset: u32,
        220 => data_out_integrity_offset: u32,
    }
}

lunar_wire::wire_struct! {
    /// A CDB of OSD-2.
    pub struct Osd2Cdb [236] {
        0 => start: [u8; 32],
        32 => parameters: [u8; 20],
        52 => attributes: [u8; 28],
        80 => capability: [u8; 104],
        184 => integrity_value: [u8; 32],
        216 => nonce: [u8; 12],
        228 => data_in_integrity_offset: u32,
        232 => data_out_integrity_offset: u32,
    }
}

lunar_wire::wire_struct! {
    /// Bytes 32 to 51 of OSD-1.
    pub struct Osd1Parameters [20] {
        0 => list_identifier: u32,
        /// LENGTH or ALLOCATION LENGTH; FORMATTED CAPACITY; in its first two bytes NUMBER OF USER
        /// OBJECTS.
        4 => length: u64,
        /// STARTING BYTE ADDRESS or INITIAL OBJECT_ID.
        12 => start: u64,
    }
}

lunar_wire::wire_struct! {
    /// Bytes 32 to 51 of OSD-2.
    pub struct Osd2Parameters [20] {
        /// The same as in OSD-1.
        0 => length: u64,
        /// The same as in OSD-1; MATCHES COLLECTION_ID, or the source of a copy. Interpretation: no
        /// source shows where snapshots and clones have their source.
        8 => start: u64,
        /// CDB CONTINUATION LENGTH; LIST IDENTIFIER; the length of a query list (revision 3); in
        /// its first two bytes MAP TYPE. Interpretation: MAP TYPE is here in revision 5 too.
        16 => last: u32,
    }
}

lunar_wire::wire_struct! {
    /// Bytes 24 to 31 of SET KEY and SET MASTER KEY.
    pub struct KeyIdentification [8] {
        /// KEY VERSION 0Fh, or the Diffie-Hellman group.
        0 => version_or_group: u8,
        1 => identifier: [u8; 7],
    }
}

lunar_wire::wire_struct! {
    /// Bytes 32 to 51 of SET MASTER KEY. Interpretation: the same in all versions.
    pub struct MasterKeyParameters [20] {
        0 => parameter_list_bytes: u32,
        4 => allocation_bytes: u32,
        16 => last: u32,
    }
}

lunar_wire::wire_struct! {
    /// Bytes 32 to 51 of PERFORM SCSI COMMAND. Interpretation: the same in all versions.
    pub struct ScsiCommandParameters [20] {
        0 => cdb: [u8; 16],
        16 => last: u32,
    }
}

lunar_wire::wire_struct! {
    /// Bytes 32 to 51 of PERFORM TASK MANAGEMENT FUNCTION. Interpretation: the same in all
    /// versions.
    pub struct TaskManagementParameters [20] {
        0 => allocation_bytes: u16,
        7 => function: u8,
        8 => tag: u64,
        16 => last: u32,
    }
}

/// Offsets of fields that all versions have at the same place, for field pointers.
pub mod at {
    /// FUA, ISOLATION and FLUSH SCOPE.
    pub const OPTIONS: u16 = 10;
    /// GET/SET CDBFMT and options of single commands.
    pub const FORMAT: u16 = 11;
    /// TIMESTAMPS CONTROL.
    pub const TIMESTAMPS_CONTROL: u16 = 12;
    /// PARTITION_ID.
    pub const PARTITION: u16 = 16;
    /// USER_OBJECT_ID or COLLECTION_OBJECT_ID.
    pub const OBJECT: u16 = 24;
    /// The first field that depends on the version.
    pub const PARAMETERS: u16 = 32;
    /// The last of these fields, of OSD-2: CDB CONTINUATION LENGTH.
    pub const LAST: u16 = 48;
    /// Attributes parameters.
    pub const ATTRIBUTES: u16 = 52;
    /// The capability.
    pub const CAPABILITY: u16 = 80;
}

impl OsdVersion {
    /// Offset of LENGTH, for field pointers.
    pub const fn length_at(self) -> u16 {
        if self.is_osd2() { at::PARAMETERS } else { at::PARAMETERS + 4 }
    }

    /// Offset of STARTING BYTE ADDRESS and INITIAL OBJECT_ID.
    pub const fn start_at(self) -> u16 {
        self.length_at() + 8
    }

    /// Offset of LIST IDENTIFIER.
    pub const fn list_identifier_at(self) -> u16 {
        if self.is_osd2() { at::LAST } else { at::PARAMETERS }
    }

    /// Offset of REQUEST INTEGRITY CHECK VALUE.
    pub const fn integrity_value_at(self) -> u16 {
        at::CAPABILITY + self.capability_bytes() as u16
    }

    /// Offset of REQUEST NONCE.
    pub const fn nonce_at(self) -> u16 {
        self.integrity_value_at() + self.integrity_value_bytes() as u16
    }

    /// Offset of DATA-IN INTEGRITY CHECK VALUE OFFSET.
    pub const fn data_in_integrity_at(self) -> u16 {
        self.nonce_at() + 12
    }

    /// Offset of DATA-OUT INTEGRITY CHECK VALUE OFFSET.
    pub const fn data_out_integrity_at(self) -> u16 {
        self.nonce_at() + 16
    }

    /// Length of the capability.
    pub const fn capability_bytes(self) -> usize {
        match self {
            Self::Osd1 => 80,
            Self::Osd2R03 | Self::Osd2 => 104,
        }
    }
}

/// The parts of a CDB; those that are shorter in some version end with zeroes there.
pub(super) struct RawCdb {
    pub(super) version: OsdVersion,
    pub(super) start: OsdCdbStart,
    pub(super) parameters: [u8; 20],
    pub(super) attributes: [u8; 28],
    pub(super) capability: [u8; 104],
    pub(super) integrity_value: [u8; 32],
    pub(super) nonce: [u8; 12],
    pub(super) data_in_integrity_offset: u32,
    pub(super) data_out_integrity_offset: u32,
}

/// Copies the fields of a layout into [`RawCdb`].
macro_rules! raw_cdb {
    ($version:expr, $layout:ty, $bytes:expr) => {{
        let bytes = $bytes.first_chunk();
        let raw = <$layout>::decode(bytes.ok_or(BAD_LENGTH)?);
        RawCdb {
            version: $version,
            start: OsdCdbStart::decode(&raw.start),
            parameters: raw.parameters,
            attributes: raw.attributes,
            capability: padded(&raw.capability),
            integrity_value: padded(&raw.integrity_value),
            nonce: raw.nonce,
            data_in_integrity_offset: raw.data_in_integrity_offset,
            data_out_integrity_offset: raw.data_out_integrity_offset,
        }
    }};
}

const BAD_LENGTH: Sense = Sense::invalid_field_in_cdb(variable::ADDITIONAL_BYTES_AT as u16, None);

impl RawCdb {
    /// Splits a CDB whose operation code and length are those of a version.
    pub(super) fn decode(cdb: &[u8]) -> Result<Self, Sense> {
        let start = cdb.first_chunk().ok_or(BAD_LENGTH)?;
        if OsdCdbStart::decode(start).opcode != variable::OPCODE {
            return Err(Sense::INVALID_OPERATION_CODE);
        }
        let version = version(cdb).ok_or(BAD_LENGTH)?;
        Ok(match version {
            OsdVersion::Osd1 => raw_cdb!(version, Osd1Cdb, cdb),
            OsdVersion::Osd2R03 => raw_cdb!(version, Osd2R03Cdb, cdb),
            OsdVersion::Osd2 => raw_cdb!(version, Osd2Cdb, cdb),
        })
    }

    /// Joins the parts. Parts that are shorter in the version lose their ends.
    pub(super) fn encode(&self) -> alloc::vec::Vec<u8> {
        let cdb_bytes = self.version.cdb_bytes();
        let mut cdb = alloc::vec::Vec::with_capacity(cdb_bytes);
        cdb.extend_from_slice(&self.start.encode());
        cdb.extend_from_slice(&self.parameters);
        cdb.extend_from_slice(&self.attributes);
        cdb.extend_from_slice(&self.capability[..self.version.capability_bytes()]);
        cdb.extend_from_slice(&self.integrity_value[..self.version.integrity_value_bytes()]);
        cdb.extend_from_slice(&self.nonce);
        cdb.extend_from_slice(&self.data_in_integrity_offset.to_be_bytes());
        cdb.extend_from_slice(&self.data_out_integrity_offset.to_be_bytes());
        cdb
    }
}

/// The version with the length of this CDB.
fn version(cdb: &[u8]) -> Option<OsdVersion> {
    let announced = variable::announced_bytes(cdb)?;
    // Some initiators send 200 bytes with the ADDITIONAL CDB LENGTH of 236.
    if cdb.len() == OsdVersion::Osd1.cdb_bytes() && announced == OsdVersion::Osd2.cdb_bytes() {
        return Some(OsdVersion::Osd1);
    }
    let is_of = |version: &OsdVersion| announced == version.cdb_bytes() && announced <= cdb.len();
    OsdVersion::ALL.into_iter().find(is_of)
}

/// Copies bytes to the start of a longer array.
pub(super) fn padded<const N: usize>(bytes: &[u8]) -> [u8; N] {
    let mut array = [0; N];
    for (to, from) in array.iter_mut().zip(bytes) {
        *to = *from;
    }
    array
}

/// The numbers in bytes 32 to 51 that most commands have.
#[derive(Clone, Copy, Default)]
pub(super) struct Numbers {
    pub(super) length: u64,
    pub(super) start: u64,
    /// LIST IDENTIFIER of OSD-1, the last four bytes of OSD-2.
    pub(super) last: u32,
}

impl Numbers {
    pub(super) fn decode(version: OsdVersion, parameters: &[u8; 20]) -> Self {
        if version.is_osd2() {
            let raw = Osd2Parameters::decode(parameters);
            Self { length: raw.length, start: raw.start, last: raw.last }
        } else {
            let raw = Osd1Parameters::decode(parameters);
            Self { length: raw.length, start: raw.start, last: raw.list_identifier }
        }
    }

    pub(super) fn encode(self, version: OsdVersion) -> [u8; 20] {
        let Self { length, start, last } = self;
        if version.is_osd2() {
            Osd2Parameters { length, start, last }.encode()
        } else {
            Osd1Parameters { list_identifier: last, length, start }.encode()
        }
    }
}

/// The first two bytes of LENGTH, as NUMBER OF USER OBJECTS.
pub(super) fn count_in(length: u64) -> u16 {
    u16::get(&length.to_be_bytes()[..2])
}
