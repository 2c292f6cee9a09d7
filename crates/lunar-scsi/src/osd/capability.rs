//! Capabilities and the security parameters of a CDB, decoded but not verified.

use super::layout::{at, padded};
use super::{
    CapabilityFormat, ObjectAddress, ObjectDescriptorType, ObjectRange, ObjectType, OsdOffset,
    OsdTime, OsdVersion, Permissions, SecurityMethod,
};
use lunar_wire::Field;

lunar_wire::wire_struct! {
    /// The part of a capability that all formats share.
    pub struct CapabilityStart [56] {
        /// CAPABILITY FORMAT 0Fh.
        0 => format: u8,
        /// KEY VERSION F0h, INTEGRITY CHECK VALUE ALGORITHM 0Fh.
        1 => key_and_algorithm: u8,
        /// SECURITY METHOD 0Fh.
        2 => security_method: u8,
        4 => expiration: OsdTime,
        10 => audit: [u8; 20],
        30 => discriminator: [u8; 12],
        42 => created: OsdTime,
        48 => object_type: ObjectType,
        49 => permissions: Permissions,
        /// OBJECT DESCRIPTOR TYPE F0h.
        55 => descriptor_type: u8,
    }
}

lunar_wire::wire_struct! {
    /// The object descriptor of OSD-1.
    pub struct Osd1Descriptor [24] {
        0 => policy_access_tag: u32,
        4 => partition: u64,
        12 => object: u64,
    }
}

lunar_wire::wire_struct! {
    /// The object descriptor of OSD-2.
    pub struct Osd2Descriptor [48] {
        0 => allowed_attributes_access: u32,
        4 => policy_access_tag: u32,
        8 => boot_epoch: u16,
        16 => partition: u64,
        24 => object: u64,
        32 => range_length: u64,
        40 => range_start: u64,
    }
}

/// A capability: the right to certain commands on an object, as a CDB claims it.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct OsdCapability {
    /// CAPABILITY FORMAT.
    pub format: CapabilityFormat,
    /// KEY VERSION, at most 15: the working key of the credential.
    pub key_version: u8,
    /// INTEGRITY CHECK VALUE ALGORITHM, at most 15.
    pub integrity_algorithm: u8,
    /// SECURITY METHOD.
    pub security_method: SecurityMethod,
    /// CAPABILITY EXPIRATION TIME; 0: never.
    pub expiration: OsdTime,
    /// AUDIT.
    pub audit: [u8; 20],
    /// CAPABILITY DISCRIMINATOR.
    pub discriminator: [u8; 12],
    /// OBJECT CREATED TIME; 0: any.
    pub created: OsdTime,
    /// OBJECT TYPE.
    pub object_type: ObjectType,
    /// PERMISSIONS BIT MASK.
    pub permissions: Permissions,
    /// OBJECT DESCRIPTOR TYPE.
    pub descriptor_type: ObjectDescriptorType,
    /// OBJECT DESCRIPTOR.
    pub descriptor: CapabilityDescriptor,
}

/// The object of a capability. Fields that the format does not have are 0.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct CapabilityDescriptor {
    /// ALLOWED ATTRIBUTES ACCESS: the number of an attribute in the attributes access page. OSD-2.
    pub allowed_attributes_access: u32,
    /// POLICY ACCESS TAG; 0: any.
    pub policy_access_tag: u32,
    /// BOOT EPOCH; 0: any. OSD-2.
    pub boot_epoch: u16,
    /// ALLOWED PARTITION_ID and ALLOWED OBJECT_ID.
    pub object: ObjectAddress,
    /// ALLOWED RANGE. OSD-2.
    pub range: ObjectRange,
}

impl Default for OsdCapability {
    /// The capability of no format, of which all bytes are zero.
    fn default() -> Self {
        Self::decode(OsdVersion::Osd2, &[0; 104])
    }
}

impl OsdCapability {
    /// Offset of CAPABILITY FORMAT in a CDB, for field pointers.
    pub const FORMAT_AT: u16 = at::CAPABILITY;
    /// Offset of KEY VERSION and INTEGRITY CHECK VALUE ALGORITHM.
    pub const KEY_VERSION_AT: u16 = at::CAPABILITY + 1;
    /// Offset of SECURITY METHOD.
    pub const SECURITY_METHOD_AT: u16 = at::CAPABILITY + 2;
    /// Offset of CAPABILITY EXPIRATION TIME.
    pub const EXPIRATION_AT: u16 = at::CAPABILITY + 4;
    /// Offset of OBJECT CREATED TIME.
    pub const CREATED_AT: u16 = at::CAPABILITY + 42;
    /// Offset of OBJECT TYPE.
    pub const OBJECT_TYPE_AT: u16 = at::CAPABILITY + 48;
    /// Offset of PERMISSIONS BIT MASK.
    pub const PERMISSIONS_AT: u16 = at::CAPABILITY + 49;
    /// Offset of OBJECT DESCRIPTOR TYPE.
    pub const DESCRIPTOR_TYPE_AT: u16 = at::CAPABILITY + 55;
    /// Offset of BOOT EPOCH.
    pub const BOOT_EPOCH_AT: u16 = at::CAPABILITY + 64;
    /// Offset of ALLOWED RANGE LENGTH.
    pub const RANGE_LENGTH_AT: u16 = at::CAPABILITY + 88;
    /// Offset of ALLOWED RANGE STARTING BYTE ADDRESS.
    pub const RANGE_START_AT: u16 = at::CAPABILITY + 96;

    /// Length of the format of OSD-2, which extension capabilities have too.
    pub const BYTES: usize = 104;

    /// True if the object descriptor is that of OSD-1. The format decides, because initiators send
    /// capabilities of OSD-1 in CDBs of OSD-2; there is no room for more than OSD-1 in its CDBs.
    fn has_osd1_descriptor(version: OsdVersion, format: CapabilityFormat) -> bool {
        !version.is_osd2() || format == CapabilityFormat::OSD1
    }

    /// Offset of POLICY ACCESS TAG.
    pub fn policy_access_tag_at(&self, version: OsdVersion) -> u16 {
        let is_osd1 = Self::has_osd1_descriptor(version, self.format);
        at::CAPABILITY + if is_osd1 { 56 } else { 60 }
    }

    /// Decodes the capability in a CDB of `version`. Bytes beyond its length there are zero.
    pub fn decode(version: OsdVersion, bytes: &[u8; Self::BYTES]) -> Self {
        let start = CapabilityStart::decode(&padded(bytes));
        let format = CapabilityFormat(start.format & 0x0f);
        let descriptor = if Self::has_osd1_descriptor(version, format) {
            let raw = Osd1Descriptor::decode(&padded(&bytes[56..]));
            CapabilityDescriptor {
                policy_access_tag: raw.policy_access_tag,
                object: ObjectAddress::new(raw.partition, raw.object),
                ..CapabilityDescriptor::default()
            }
        } else {
            let raw = Osd2Descriptor::decode(&padded(&bytes[56..]));
            CapabilityDescriptor {
                allowed_attributes_access: raw.allowed_attributes_access,
                policy_access_tag: raw.policy_access_tag,
                boot_epoch: raw.boot_epoch,
                object: ObjectAddress::new(raw.partition, raw.object),
                range: ObjectRange { start: raw.range_start, length: raw.range_length },
            }
        };
        Self {
            format,
            key_version: start.key_and_algorithm >> 4,
            integrity_algorithm: start.key_and_algorithm & 0x0f,
            security_method: SecurityMethod(start.security_method & 0x0f),
            expiration: start.expiration,
            audit: start.audit,
            discriminator: start.discriminator,
            created: start.created,
            object_type: start.object_type,
            permissions: start.permissions,
            descriptor_type: ObjectDescriptorType(start.descriptor_type >> 4),
            descriptor,
        }
    }

    /// Encodes the capability for a CDB of `version`. Fields that the format does not have are
    /// left out.
    pub fn encode(&self, version: OsdVersion) -> [u8; Self::BYTES] {
        let start = CapabilityStart {
            format: self.format.0 & 0x0f,
            key_and_algorithm: self.key_version << 4 | self.integrity_algorithm & 0x0f,
            security_method: self.security_method.0 & 0x0f,
            expiration: self.expiration,
            audit: self.audit,
            discriminator: self.discriminator,
            created: self.created,
            object_type: self.object_type,
            permissions: self.permissions,
            descriptor_type: self.descriptor_type.0 << 4,
        };
        let descriptor = &self.descriptor;
        let ObjectAddress { partition, object } = descriptor.object;
        let policy_access_tag = descriptor.policy_access_tag;
        let mut bytes = padded(&start.encode());
        let rest = &mut bytes[56..];
        if Self::has_osd1_descriptor(version, self.format) {
            let raw = Osd1Descriptor { policy_access_tag, partition, object };
            rest[..Osd1Descriptor::LEN].copy_from_slice(&raw.encode());
        } else {
            let raw = Osd2Descriptor {
                allowed_attributes_access: descriptor.allowed_attributes_access,
                policy_access_tag,
                boot_epoch: descriptor.boot_epoch,
                partition,
                object,
                range_length: descriptor.range.length,
                range_start: descriptor.range.start,
            };
            rest.copy_from_slice(&raw.encode());
        }
        bytes
    }
}

/// REQUEST NONCE.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct RequestNonce {
    /// The time of the request.
    pub time: OsdTime,
    /// The random number.
    pub random: [u8; 6],
}

impl Field for RequestNonce {
    const SIZE: usize = 12;

    fn get(bytes: &[u8]) -> Self {
        Self { time: OsdTime::get(&bytes[..6]), random: Field::get(&bytes[6..]) }
    }

    fn put(self, bytes: &mut [u8]) {
        self.time.put(&mut bytes[..6]);
        self.random.put(&mut bytes[6..]);
    }
}

/// The security parameters of a CDB.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct OsdSecurityParameters {
    /// REQUEST INTEGRITY CHECK VALUE: 20 bytes before revision 4 of OSD-2; then the others are 0.
    pub integrity_value: [u8; 32],
    /// REQUEST NONCE.
    pub nonce: RequestNonce,
    /// DATA-IN INTEGRITY CHECK VALUE OFFSET. Not decoded, because most security methods ignore the
    /// field.
    pub data_in_integrity_offset: OsdOffset,
    /// DATA-OUT INTEGRITY CHECK VALUE OFFSET, not decoded either.
    pub data_out_integrity_offset: OsdOffset,
}

impl Default for OsdSecurityParameters {
    /// Parameters without integrity check values.
    fn default() -> Self {
        Self {
            integrity_value: [0; 32],
            nonce: RequestNonce::default(),
            data_in_integrity_offset: OsdOffset::UNUSED,
            data_out_integrity_offset: OsdOffset::UNUSED,
        }
    }
}
