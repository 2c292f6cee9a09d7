//! Sense data: key, additional code, information. SPC-4 §4.5.

mod descriptors;

pub use descriptors::SenseDescriptors;

use crate::copy::CopyFault;
use alloc::vec;
use alloc::vec::Vec;
use core::fmt;
use descriptors::{DESCRIPTORS_BYTES_MAX, HEADER_BYTES, Split};
use lunar_wire::Field;

lunar_wire::wire_enum! {
    /// Status byte. SAM-5 §5.3.1.
    pub struct Status(u8) {
        GOOD = 0x00, CHECK_CONDITION = 0x02, CONDITION_MET = 0x04, BUSY = 0x08,
        RESERVATION_CONFLICT = 0x18, TASK_SET_FULL = 0x28, ACA_ACTIVE = 0x30, TASK_ABORTED = 0x40,
    }
}

lunar_wire::wire_enum! {
    /// Sense key. SPC-4 §4.5.6.
    pub struct SenseKey(u8) {
        NO_SENSE = 0x0, RECOVERED_ERROR = 0x1, NOT_READY = 0x2, MEDIUM_ERROR = 0x3,
        HARDWARE_ERROR = 0x4, ILLEGAL_REQUEST = 0x5, UNIT_ATTENTION = 0x6, DATA_PROTECT = 0x7,
        BLANK_CHECK = 0x8, COPY_ABORTED = 0xa, ABORTED_COMMAND = 0xb, MISCOMPARE = 0xe,
    }
}

/// The reason why a command failed; encoded in fixed or descriptor format.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Sense {
    /// Sense key.
    pub key: SenseKey,
    /// Additional sense code and qualifier, as `0xAAQQ`.
    pub code: u16,
    /// INFORMATION: an LBA, or the offset of a miscompare.
    pub information: Option<u64>,
    /// Sense-key specific field pointer: the position of the error in the CDB (or parameter list).
    pub field: Option<FieldPointer>,
    /// The point at which an EXTENDED COPY stopped, and the status of a unit that it copies from or
    /// to.
    pub copy: Option<CopyFault>,
    /// Sense-key specific progress indication, in units of 1/65,536.
    pub progress: Option<u16>,
    /// Further descriptors.
    pub descriptors: SenseDescriptors,
}

/// Points at the byte (and bit) in error. SPC-4 §4.5.2.4.2.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct FieldPointer {
    /// True: in the CDB; false: in the data-out parameter list.
    pub in_cdb: bool,
    /// Byte offset.
    pub byte: u16,
    /// Most significant bit of the field, if the field is not whole bytes.
    pub bit: Option<u8>,
}

/// Layout of sense data; the control mode page's D_SENSE bit selects it.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub enum SenseFormat {
    /// Response code 70h, 18 bytes.
    #[default]
    Fixed,
    /// Response code 72h, 8 bytes and descriptors.
    Descriptor,
}

/// Sense data as bytes, in the format of the unit's control page.
pub type SenseBytes = Vec<u8>;

/// Maximum length of the output of [`Sense::encode`] without a [`CopyFault`]: header, information,
/// sense-key specific.
pub const PLAIN_SENSE_BYTES_MAX: usize = 8 + 12 + 8;

/// Maximum length without [further descriptors](SenseDescriptors), which block units do not have:
/// the same, command-specific information and forwarded sense data.
pub const BLOCK_SENSE_BYTES_MAX: usize = PLAIN_SENSE_BYTES_MAX + 12 + 4 + PLAIN_SENSE_BYTES_MAX;

/// Maximum length of all sense data. SPC-4 §4.5.2.1.
pub const SENSE_BYTES_MAX: usize = DESCRIPTOR_HEADER_BYTES + DESCRIPTORS_BYTES_MAX;

/// Length of descriptor format sense data up to the first descriptor.
const DESCRIPTOR_HEADER_BYTES: usize = 8;

/// Length of the fixed format output of [`Sense::encode`]. SPC-4 §4.5.3.
pub const FIXED_SENSE_BYTES: usize = 18;

const CURRENT_FIXED: u8 = 0x70;
const DEFERRED_FIXED: u8 = 0x71;
const CURRENT_DESCRIPTOR: u8 = 0x72;
const DEFERRED_DESCRIPTOR: u8 = 0x73;
const VALID: u8 = 0x80;
/// SDAT_OVFL in byte 4 of descriptor format sense data: descriptors were left out.
const OVERFLOW: u8 = 0x80;
/// SKSV: the sense-key specific bytes are valid.
const FIELD_VALID: u8 = 0x80;
const IN_CDB: u8 = 0x40;
const BIT_VALID: u8 = 0x08;
const DESCRIPTOR_INFORMATION: u8 = 0x00;
const DESCRIPTOR_SENSE_KEY_SPECIFIC: u8 = 0x02;

macro_rules! senses {
    ($($(#[$doc:meta])* $name:ident = $key:ident, $code:literal;)+) => {
        impl Sense { $(
            $(#[$doc])*
            pub const $name: Self = Self::new(SenseKey::$key, $code);
        )+

            /// The name of this combination of key and additional code, if it has one here.
            pub fn name(&self) -> Option<&'static str> {
                match (self.key, self.code) {
                    $((SenseKey::$key, $code) => Some(stringify!($name)),)+
                    _ => None,
                }
            }
        }
    };
}

senses! {
    /// Nothing to report.
    NO_ADDITIONAL_SENSE = NO_SENSE, 0x0000;
    /// Stopped by START STOP UNIT.
    NOT_READY_INITIALIZING_COMMAND_REQUIRED = NOT_READY, 0x0402;
    /// LOGICAL UNIT NOT ACCESSIBLE: its group is standby; another port may be usable.
    TARGET_PORT_IN_STANDBY_STATE = NOT_READY, 0x040b;
    /// LOGICAL UNIT NOT ACCESSIBLE: its group is unavailable.
    TARGET_PORT_IN_UNAVAILABLE_STATE = NOT_READY, 0x040c;
    /// FORMAT UNIT is running.
    FORMAT_IN_PROGRESS = NOT_READY, 0x0404;
    /// SANITIZE is running.
    SANITIZE_IN_PROGRESS = NOT_READY, 0x041b;
    /// The medium was ejected.
    MEDIUM_NOT_PRESENT = NOT_READY, 0x3a00;
    /// The device failed a write.
    WRITE_ERROR = MEDIUM_ERROR, 0x0c00;
    /// The device failed a read.
    UNRECOVERED_READ_ERROR = MEDIUM_ERROR, 0x1100;
    /// FORMAT UNIT has failed, and the contents of the blocks are undefined.
    MEDIUM_FORMAT_CORRUPTED = MEDIUM_ERROR, 0x3100;
    /// FORMAT UNIT fails.
    FORMAT_COMMAND_FAILED = MEDIUM_ERROR, 0x3101;
    /// SANITIZE fails, or has failed.
    SANITIZE_COMMAND_FAILED = MEDIUM_ERROR, 0x3103;
    /// An internal error of the device, not of a specific block.
    INTERNAL_TARGET_FAILURE = HARDWARE_ERROR, 0x4400;
    /// The self-test could not read its blocks.
    LOGICAL_UNIT_FAILED_SELF_TEST = HARDWARE_ERROR, 0x3e03;
    /// The expected data transfer length does not fit the command.
    INVALID_FIELD_IN_COMMAND_INFORMATION_UNIT = ILLEGAL_REQUEST, 0x0e03;
    /// A parameter list that ends inside a field.
    PARAMETER_LIST_LENGTH_ERROR = ILLEGAL_REQUEST, 0x1a00;
    /// The command is unknown.
    INVALID_OPERATION_CODE = ILLEGAL_REQUEST, 0x2000;
    /// The initiator does not administer the unit.
    ACCESS_DENIED_NO_ACCESS_RIGHTS = ILLEGAL_REQUEST, 0x2002;
    /// The range exceeds the end of the unit.
    LBA_OUT_OF_RANGE = ILLEGAL_REQUEST, 0x2100;
    /// The echo buffer was read before it was written.
    COMMAND_SEQUENCE_ERROR = ILLEGAL_REQUEST, 0x2c00;
    /// An invalid CDB field; better with [`Sense::invalid_field_in_cdb`].
    INVALID_FIELD_IN_CDB = ILLEGAL_REQUEST, 0x2400;
    /// No unit has this LUN.
    LOGICAL_UNIT_NOT_SUPPORTED = ILLEGAL_REQUEST, 0x2500;
    /// An invalid parameter field; better with [`Sense::invalid_field_in_parameter_list`].
    INVALID_FIELD_IN_PARAMETER_LIST = ILLEGAL_REQUEST, 0x2600;
    /// EXTENDED COPY has too many CSCD descriptors.
    TOO_MANY_TARGET_DESCRIPTORS = ILLEGAL_REQUEST, 0x2606;
    /// EXTENDED COPY has a CSCD descriptor of an unknown type.
    UNSUPPORTED_TARGET_DESCRIPTOR_TYPE_CODE = ILLEGAL_REQUEST, 0x2607;
    /// EXTENDED COPY has too many segment descriptors.
    TOO_MANY_SEGMENT_DESCRIPTORS = ILLEGAL_REQUEST, 0x2608;
    /// EXTENDED COPY has a segment descriptor of an unknown type.
    UNSUPPORTED_SEGMENT_DESCRIPTOR_TYPE_CODE = ILLEGAL_REQUEST, 0x2609;
    /// EXTENDED COPY has inline data.
    INLINE_DATA_LENGTH_EXCEEDED = ILLEGAL_REQUEST, 0x260b;
    /// EXTENDED COPY has the list identifier of a running one.
    OPERATION_IN_PROGRESS = ILLEGAL_REQUEST, 0x0016;
    /// A unit that EXTENDED COPY copies from or to refused, or failed.
    THIRD_PARTY_DEVICE_FAILURE = COPY_ABORTED, 0x0d01;
    /// A segment names a copy source or destination without a descriptor, or a null device.
    UNREACHABLE_COPY_TARGET = COPY_ABORTED, 0x0804;
    /// One of the units of a segment refused it; its sense data is forwarded.
    COPY_REFUSED_BY_UNIT = COPY_ABORTED, 0x0000;
    /// This initiator has no such unit.
    COPY_TARGET_DEVICE_NOT_REACHABLE = COPY_ABORTED, 0x0d02;
    /// The unit has another peripheral device type.
    INCORRECT_COPY_TARGET_DEVICE_TYPE = COPY_ABORTED, 0x0d03;
    /// A segment is not whole blocks of both units.
    UNEXPECTED_INEXACT_SEGMENT = COPY_ABORTED, 0x260a;
    /// The scope or type of RELEASE differs from that of the reservation.
    INVALID_RELEASE_OF_PERSISTENT_RESERVATION = ILLEGAL_REQUEST, 0x2604;
    /// MODE SENSE requested saved values.
    SAVING_PARAMETERS_NOT_SUPPORTED = ILLEGAL_REQUEST, 0x3900;
    /// PREVENT ALLOW MEDIUM REMOVAL forbids the ejection.
    MEDIUM_REMOVAL_PREVENTED = ILLEGAL_REQUEST, 0x5302;
    /// No room for another registration.
    INSUFFICIENT_REGISTRATION_RESOURCES = ILLEGAL_REQUEST, 0x5504;
    /// The command needs more of a resource than is available.
    INSUFFICIENT_RESOURCES = ILLEGAL_REQUEST, 0x5503;
    /// Power on, reset, or bus device reset occurred.
    POWER_ON_RESET = UNIT_ATTENTION, 0x2900;
    /// LOGICAL UNIT RESET or TARGET RESET; BUS DEVICE RESET FUNCTION OCCURRED.
    RESET_BY_FUNCTION = UNIT_ATTENTION, 0x2903;
    /// I_T NEXUS LOSS OCCURRED.
    NEXUS_LOSS = UNIT_ATTENTION, 0x2907;
    /// Another nexus changed mode parameters.
    MODE_PARAMETERS_CHANGED = UNIT_ATTENTION, 0x2a01;
    /// Another nexus preempted or cleared the reservation.
    RESERVATIONS_PREEMPTED = UNIT_ATTENTION, 0x2a03;
    /// Another nexus released the reservation.
    RESERVATIONS_RELEASED = UNIT_ATTENTION, 0x2a04;
    /// Another nexus removed this one's registration.
    REGISTRATIONS_PREEMPTED = UNIT_ATTENTION, 0x2a05;
    /// Another nexus set the state of a target port group.
    ASYMMETRIC_ACCESS_STATE_CHANGED = UNIT_ATTENTION, 0x2a06;
    /// The unit was resized.
    CAPACITY_DATA_HAS_CHANGED = UNIT_ATTENTION, 0x2a09;
    /// A medium was loaded; NOT READY TO READY CHANGE.
    MEDIUM_MAY_HAVE_CHANGED = UNIT_ATTENTION, 0x2800;
    /// Another nexus aborted this one's commands; COMMANDS CLEARED BY ANOTHER INITIATOR.
    COMMANDS_CLEARED_BY_ANOTHER_INITIATOR = UNIT_ATTENTION, 0x2f00;
    /// A thin unit has little free space left.
    THIN_PROVISIONING_SOFT_THRESHOLD_REACHED = UNIT_ATTENTION, 0x3807;
    /// The answer to INQUIRY has changed.
    INQUIRY_DATA_HAS_CHANGED = UNIT_ATTENTION, 0x3f03;
    /// A LUN was added or removed.
    REPORTED_LUNS_DATA_HAS_CHANGED = UNIT_ATTENTION, 0x3f0e;
    /// READ of an OSD beyond the end; better with [`Sense::read_past_end`].
    READ_PAST_END_OF_USER_OBJECT = RECOVERED_ERROR, 0x3b17;
    /// A resource of an OSD is exhausted.
    SYSTEM_RESOURCE_FAILURE = HARDWARE_ERROR, 0x5500;
    /// The audit value of a capability is frozen.
    SECURITY_AUDIT_VALUE_FROZEN = ILLEGAL_REQUEST, 0x2404;
    /// The working key of a capability is frozen.
    SECURITY_WORKING_KEY_FROZEN = ILLEGAL_REQUEST, 0x2405;
    /// The nonce of an OSD command was used before.
    NONCE_NOT_UNIQUE = ILLEGAL_REQUEST, 0x2406;
    /// The time of a nonce is too old or too new.
    NONCE_TIMESTAMP_OUT_OF_RANGE = ILLEGAL_REQUEST, 0x2407;
    /// INVALID DATA-OUT BUFFER INTEGRITY CHECK VALUE.
    INVALID_DATA_OUT_INTEGRITY_VALUE = ILLEGAL_REQUEST, 0x260f;
    /// A partition or collection is not empty.
    PARTITION_OR_COLLECTION_CONTAINS_USER_OBJECTS = ILLEGAL_REQUEST, 0x2c0a;
    /// A quota of an OSD would be exceeded; better with [`Sense::quota_error`].
    QUOTA_ERROR = DATA_PROTECT, 0x5507;
    /// A write to a unit that is write protected by configuration.
    WRITE_PROTECTED = DATA_PROTECT, 0x2700;
    /// A write to a unit that is write protected by the SWP bit of the control mode page.
    LOGICAL_UNIT_SOFTWARE_WRITE_PROTECTED = DATA_PROTECT, 0x2702;
    /// The device has no free space left for a thin unit.
    SPACE_ALLOCATION_FAILED = DATA_PROTECT, 0x2707;
    /// The amount of data differs from the request. RFC 7143 §11.4.7.2
    INCORRECT_AMOUNT_OF_DATA = ABORTED_COMMAND, 0x0c0d;
    /// Unsolicited data without agreement. RFC 7143 §11.4.7.2
    UNEXPECTED_UNSOLICITED_DATA = ABORTED_COMMAND, 0x0c0c;
    /// A data digest did not match. RFC 7143 §11.4.7.2
    PROTOCOL_SERVICE_CRC_ERROR = ABORTED_COMMAND, 0x4705;
    /// Data requested by a SNACK cannot be sent again. RFC 7143 §11.4.7.2
    SNACK_REJECTED = ABORTED_COMMAND, 0x1113;
    /// Two commands have the same tag.
    OVERLAPPED_COMMANDS_ATTEMPTED = ABORTED_COMMAND, 0x4e00;
    /// An operation on the whole unit began between a command's check and its access to blocks.
    COMMANDS_CLEARED_BY_DEVICE_SERVER = ABORTED_COMMAND, 0x2f02;
    /// Compared data differ; better with [`Sense::miscompare`].
    MISCOMPARE_DURING_VERIFY = MISCOMPARE, 0x1d00;
}

impl Sense {
    /// Creates a sense without information or pointer.
    pub const fn new(key: SenseKey, code: u16) -> Self {
        let descriptors = SenseDescriptors::NONE;
        Self { key, code, information: None, field: None, copy: None, progress: None, descriptors }
    }

    /// Adds INFORMATION.
    #[must_use]
    pub const fn with_information(mut self, information: u64) -> Self {
        self.information = Some(information);
        self
    }

    /// Adds a field pointer; only encoded with ILLEGAL REQUEST and COPY ABORTED.
    #[must_use]
    pub const fn with_field(mut self, field: FieldPointer) -> Self {
        self.field = Some(field);
        self
    }

    /// Adds a progress indication; only encoded with NOT READY and NO SENSE.
    #[must_use]
    pub const fn with_progress(mut self, progress: u16) -> Self {
        self.progress = Some(progress);
        self
    }

    /// ILLEGAL REQUEST, INVALID FIELD IN CDB, pointing at byte `byte` and, if the field is not
    /// whole bytes, at its most significant bit.
    pub const fn invalid_field_in_cdb(byte: u16, bit: Option<u8>) -> Self {
        Self::INVALID_FIELD_IN_CDB.with_field(FieldPointer { in_cdb: true, byte, bit })
    }

    /// ILLEGAL REQUEST, INVALID FIELD IN PARAMETER LIST, with the same pointer into the data-out.
    pub const fn invalid_field_in_parameter_list(byte: u16, bit: Option<u8>) -> Self {
        Self::INVALID_FIELD_IN_PARAMETER_LIST.with_field(FieldPointer { in_cdb: false, byte, bit })
    }

    /// Adds the point at which an EXTENDED COPY stopped.
    #[must_use]
    pub const fn with_copy(mut self, copy: CopyFault) -> Self {
        self.copy = Some(copy);
        self
    }

    /// Adds a further descriptor, whose bytes after the additional length are `body`. Each type
    /// occurs at most once, SPC-4 §4.5.2.1; information and sense-key specific bytes have their own
    /// fields.
    #[must_use]
    pub fn with_descriptor(mut self, kind: u8, body: &[u8]) -> Self {
        self.descriptors.add(kind, body);
        self
    }

    /// MISCOMPARE DURING VERIFY OPERATION at `offset_bytes` into the compared data-out.
    pub const fn miscompare(offset_bytes: u64) -> Self {
        Self::MISCOMPARE_DURING_VERIFY.with_information(offset_bytes)
    }

    /// Encodes the sense for a SCSI response or REQUEST SENSE.
    pub fn encode(&self, format: SenseFormat) -> SenseBytes {
        match format {
            SenseFormat::Fixed => self.encode_fixed(),
            SenseFormat::Descriptor => self.encode_descriptor(),
        }
    }

    /// Decodes sense data of either format, current or deferred, as an initiator receives it.
    /// `None` if it is neither, or too short for a key.
    pub fn decode(bytes: &[u8]) -> Option<Self> {
        match bytes.first()? & !VALID {
            CURRENT_FIXED | DEFERRED_FIXED => Self::decode_fixed(bytes),
            CURRENT_DESCRIPTOR | DEFERRED_DESCRIPTOR => Self::decode_descriptor(bytes),
            _ => None,
        }
    }

    /// True if sense data reports an error of an earlier command.
    pub fn is_deferred(bytes: &[u8]) -> bool {
        bytes
            .first()
            .is_some_and(|code| matches!(code & !VALID, DEFERRED_FIXED | DEFERRED_DESCRIPTOR))
    }

    /// Encodes fixed format. SPC-4 §4.5.3. INFORMATION has 32 bits here: a larger value is omitted,
    /// VALID stays 0.
    fn encode_fixed(&self) -> SenseBytes {
        let mut bytes = vec![0; FIXED_SENSE_BYTES];
        bytes[0] = CURRENT_FIXED;
        bytes[2] = self.key.0 & 0x0f;
        if let Some(information) = self.information.and_then(|value| u32::try_from(value).ok()) {
            bytes[0] |= VALID;
            information.put(&mut bytes[3..7]);
        }
        self.code.put(&mut bytes[12..14]);
        if let Some(specific) = self.sense_key_specific() {
            bytes[15..18].copy_from_slice(&specific);
        }
        if let Some(copy) = &self.copy {
            bytes[8..12].copy_from_slice(&copy.command_specific(FIXED_SENSE_BYTES as u8));
            bytes.extend_from_slice(&copy.forwarded_fixed());
        }
        bytes[7] = (bytes.len() - 8) as u8;
        bytes
    }

    /// Encodes descriptor format. SPC-4 §4.5.2. The further descriptors come last; one that does
    /// not fit is left out with all after it.
    fn encode_descriptor(&self) -> SenseBytes {
        let mut bytes = vec![0; DESCRIPTOR_HEADER_BYTES];
        bytes[0] = CURRENT_DESCRIPTOR;
        bytes[1] = self.key.0 & 0x0f;
        self.code.put(&mut bytes[2..4]);
        if let Some(information) = self.information {
            bytes.extend_from_slice(&[DESCRIPTOR_INFORMATION, 0x0a, VALID, 0]);
            bytes.extend_from_slice(&information.to_be_bytes());
        }
        if let Some([first, second, third]) = self.sense_key_specific() {
            bytes.extend_from_slice(&[DESCRIPTOR_SENSE_KEY_SPECIFIC, 0x06, 0, 0]);
            bytes.extend_from_slice(&[first, second, third, 0]);
        }
        if let Some(copy) = &self.copy {
            bytes.extend_from_slice(&copy.descriptors());
        }
        let mut is_cut = self.descriptors.is_cut();
        for descriptor in self.descriptors.encoded() {
            if bytes.len() + descriptor.len() > SENSE_BYTES_MAX {
                is_cut = true;
                break;
            }
            bytes.extend_from_slice(descriptor);
        }
        bytes[4] = if is_cut { OVERFLOW } else { 0 };
        bytes[7] = (bytes.len() - DESCRIPTOR_HEADER_BYTES) as u8;
        bytes
    }

    /// The three sense-key specific bytes, depending on the key: a progress indication, a field
    /// pointer, or with COPY ABORTED a segment pointer, whose SD bit is 0 here because it counts
    /// from the start of the parameter list. SPC-4 §4.5.2.4.
    fn sense_key_specific(&self) -> Option<[u8; 3]> {
        if let Some(progress) = self.progress.filter(|_| shows_progress(self.key)) {
            let [high, low] = progress.to_be_bytes();
            return Some([FIELD_VALID, high, low]);
        }
        let field = self.field.filter(|_| points(self.key))?;
        let mut first = FIELD_VALID;
        if field.in_cdb && self.key == SenseKey::ILLEGAL_REQUEST {
            first |= IN_CDB;
        }
        if let Some(bit) = field.bit {
            first |= BIT_VALID | (bit & 0x07);
        }
        let [high, low] = field.byte.to_be_bytes();
        Some([first, high, low])
    }

    fn decode_fixed(bytes: &[u8]) -> Option<Self> {
        let key = SenseKey(bytes.get(2)? & 0x0f);
        // Bytes beyond ADDITIONAL SENSE LENGTH are not sense data.
        let end = 8 + usize::from(bytes.get(7).copied().unwrap_or(0));
        let bytes = &bytes[..bytes.len().min(end)];
        let code = bytes.get(12..14).map_or(0, u16::get);
        let information = bytes
            .get(3..7)
            .filter(|_| bytes[0] & VALID != 0)
            .map(|information| u64::from(u32::get(information)));
        let specific = bytes.get(15..18);
        let field = specific.and_then(|specific| field_pointer(key, specific));
        let progress = specific.and_then(|specific| progress_indication(key, specific));
        Some(Self { information, field, progress, ..Self::new(key, code) })
    }

    fn decode_descriptor(bytes: &[u8]) -> Option<Self> {
        let key = SenseKey(bytes.get(1)? & 0x0f);
        let code = bytes.get(2..4).map_or(0, u16::get);
        let mut sense = Self::new(key, code);
        let end = DESCRIPTOR_HEADER_BYTES + usize::from(bytes.get(7).copied().unwrap_or(0));
        let rest = bytes[..bytes.len().min(end)].get(DESCRIPTOR_HEADER_BYTES..).unwrap_or(&[]);
        for descriptor in (Split { rest }) {
            match descriptor[0] {
                DESCRIPTOR_INFORMATION if descriptor.len() >= 12 && descriptor[2] & VALID != 0 => {
                    sense.information = Some(u64::get(&descriptor[4..12]));
                }
                DESCRIPTOR_SENSE_KEY_SPECIFIC if descriptor.len() >= 7 => {
                    sense.field = field_pointer(key, &descriptor[4..7]);
                    sense.progress = progress_indication(key, &descriptor[4..7]);
                }
                DESCRIPTOR_INFORMATION | DESCRIPTOR_SENSE_KEY_SPECIFIC => {}
                kind => sense.descriptors.add(kind, &descriptor[HEADER_BYTES..]),
            }
        }
        if bytes.get(4).is_some_and(|flags| flags & OVERFLOW != 0) {
            sense.descriptors.set_cut();
        }
        Some(sense)
    }
}

/// One readable line: `ILLEGAL_REQUEST 24h/00h (INVALID_FIELD_IN_CDB), CDB byte 2 bit 5`.
impl fmt::Display for Sense {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [code, qualifier] = self.code.to_be_bytes();
        write!(f, "{:?} {code:02X}h/{qualifier:02X}h", self.key)?;
        if let Some(name) = self.name() {
            write!(f, " ({name})")?;
        }
        if let Some(field) = self.field {
            let source = if field.in_cdb { "CDB" } else { "parameter list" };
            write!(f, ", {source} byte {}", field.byte)?;
            if let Some(bit) = field.bit {
                write!(f, " bit {bit}")?;
            }
        }
        if let Some(progress) = self.progress {
            write!(f, ", {} % done", u32::from(progress) * 100 / 65_536)?;
        }
        match self.information {
            Some(information) => write!(f, ", information {information}"),
            None => Ok(()),
        }
    }
}

impl core::error::Error for Sense {}

/// True if the sense-key specific bytes of this key point at a field.
fn points(key: SenseKey) -> bool {
    matches!(key, SenseKey::ILLEGAL_REQUEST | SenseKey::COPY_ABORTED)
}

/// True if the sense-key specific bytes of this key are a progress indication. SPC-4 §4.5.2.4.4.
fn shows_progress(key: SenseKey) -> bool {
    matches!(key, SenseKey::NO_SENSE | SenseKey::NOT_READY)
}

/// Decodes three sense-key specific bytes as a progress indication, if valid.
fn progress_indication(key: SenseKey, bytes: &[u8]) -> Option<u16> {
    let valid = shows_progress(key) && bytes[0] & FIELD_VALID != 0;
    valid.then(|| u16::get(&bytes[1..3]))
}

/// Decodes three sense-key specific bytes as a field pointer, if valid.
fn field_pointer(key: SenseKey, bytes: &[u8]) -> Option<FieldPointer> {
    /// SD: a segment pointer that counts from a segment descriptor.
    const IN_SEGMENT: u8 = 0x20;
    let in_segment = key == SenseKey::COPY_ABORTED && bytes[0] & IN_SEGMENT != 0;
    let valid = points(key) && !in_segment && bytes[0] & FIELD_VALID != 0;
    valid.then(|| FieldPointer {
        in_cdb: bytes[0] & IN_CDB != 0,
        byte: u16::get(&bytes[1..3]),
        bit: (bytes[0] & BIT_VALID != 0).then_some(bytes[0] & 0x07),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn fixed_bytes_of_an_invalid_cdb_field() {
        let bytes = Sense::invalid_field_in_cdb(2, Some(5)).encode(SenseFormat::Fixed);
        assert_eq!(bytes, [0x70, 0, 5, 0, 0, 0, 0, 10, 0, 0, 0, 0, 0x24, 0, 0, 0xcd, 0, 2]);
    }

    #[test]
    fn descriptor_bytes_of_an_invalid_parameter() {
        let bytes =
            Sense::invalid_field_in_parameter_list(0x1234, None).encode(SenseFormat::Descriptor);
        let expected = [0x72, 5, 0x26, 0, 0, 0, 0, 8, 2, 6, 0, 0, 0x80, 0x12, 0x34, 0];
        assert_eq!(bytes, expected);
    }

    #[test]
    fn descriptor_bytes_of_a_miscompare() {
        let bytes = Sense::miscompare(0x0102_0304_0506).encode(SenseFormat::Descriptor);
        let expected = [0x72, 0xe, 0x1d, 0, 0, 0, 0, 12, 0, 10, 0x80, 0, 0, 0, 1, 2, 3, 4, 5, 6];
        assert_eq!(bytes, expected);
    }

    /// Goal: VALID is set correctly. Method: an LBA on each side of 32 bits, fixed format.
    #[test]
    fn fixed_information_is_valid_only_where_it_fits() {
        let fits = Sense::UNRECOVERED_READ_ERROR.with_information(0xffff_ffff);
        let bytes = fits.encode(SenseFormat::Fixed);
        assert_eq!(bytes[..7], [0xf0, 0, 3, 0xff, 0xff, 0xff, 0xff]);
        let large = Sense::UNRECOVERED_READ_ERROR.with_information(0x1_0000_0000);
        let bytes = large.encode(SenseFormat::Fixed);
        assert_eq!(bytes[..7], [0x70, 0, 3, 0, 0, 0, 0]);
        assert_eq!(Sense::decode(&bytes).unwrap().information, None);
        let bytes = large.encode(SenseFormat::Descriptor);
        assert_eq!(Sense::decode(&bytes), Some(large));
    }

    /// Goal: a field pointer is only encoded with ILLEGAL REQUEST, and its bit number has three
    /// bits.
    #[test]
    fn field_pointers_need_illegal_request() {
        let field = FieldPointer { in_cdb: true, byte: 1, bit: Some(0xff) };
        let elsewhere = Sense::UNRECOVERED_READ_ERROR.with_field(field);
        for format in [SenseFormat::Fixed, SenseFormat::Descriptor] {
            let plain = Sense::UNRECOVERED_READ_ERROR.encode(format);
            assert_eq!(elsewhere.encode(format), plain);
        }
        let mut bytes = Sense::INVALID_FIELD_IN_CDB.with_field(field).encode(SenseFormat::Fixed);
        assert_eq!(bytes[15], 0xcf);
        bytes[2] = 3;
        assert_eq!(Sense::decode(&bytes), Some(Sense::new(SenseKey::MEDIUM_ERROR, 0x2400)));
    }

    /// Goal: with NOT READY and NO SENSE the same bytes are a progress indication.
    /// SPC-4 §4.5.2.4.4.
    #[test]
    fn progress_needs_not_ready_or_no_sense() {
        let fixed = Sense::SANITIZE_IN_PROGRESS.with_progress(0x8001).encode(SenseFormat::Fixed);
        assert_eq!(fixed, [0x70, 0, 2, 0, 0, 0, 0, 10, 0, 0, 0, 0, 4, 0x1b, 0, 0x80, 0x80, 1]);
        for format in [SenseFormat::Fixed, SenseFormat::Descriptor] {
            for sense in [Sense::FORMAT_IN_PROGRESS, Sense::NO_ADDITIONAL_SENSE] {
                let sense = sense.with_progress(0xffff);
                assert_eq!(Sense::decode(&sense.encode(format)), Some(sense));
            }
            let elsewhere = Sense::WRITE_ERROR.with_progress(1);
            assert_eq!(elsewhere.encode(format), Sense::WRITE_ERROR.encode(format));
        }
        let text =
            std::string::ToString::to_string(&Sense::FORMAT_IN_PROGRESS.with_progress(0x8000));
        assert!(text.ends_with("04h/04h (FORMAT_IN_PROGRESS), 50 % done"), "{text}");
    }

    /// Goal: descriptors of other command sets follow, and can be read again; fixed format has no
    /// room for them.
    #[test]
    fn further_descriptors() {
        let command_specific = [0, 0, 0, 0, 0, 0, 0, 0, 0x12, 0x34];
        let sense = Sense::invalid_field_in_cdb(16, None)
            .with_descriptor(0x01, &command_specific)
            .with_descriptor(0x06, &[7; 0x1e]);
        let bytes = sense.encode(SenseFormat::Descriptor);
        assert_eq!(bytes[..8], [0x72, 5, 0x24, 0, 0, 0, 0, 8 + 12 + 32]);
        assert_eq!(bytes[8..16], [2, 6, 0, 0, 0xc0, 0, 16, 0]);
        assert_eq!(bytes[16..28], [&[1, 0x0a][..], &command_specific].concat());
        assert_eq!(bytes[28..], [&[6, 0x1e][..], &[7; 0x1e]].concat());
        let decoded = Sense::decode(&bytes).unwrap();
        assert_eq!(decoded, sense);
        assert_eq!(decoded.descriptors.get(0x01), Some(&command_specific[..]));
        assert_eq!(decoded.descriptors.get(0x08), None);
        let plain = Sense::invalid_field_in_cdb(16, None);
        assert_eq!(sense.encode(SenseFormat::Fixed), plain.encode(SenseFormat::Fixed));
    }

    /// Goal: 252 bytes are the maximum, and can be reached. A descriptor beyond is left out with
    /// all after it, and SDAT_OVFL says so.
    #[test]
    fn the_longest_sense_data() {
        let whole =
            Sense::WRITE_ERROR.with_descriptor(0x80, &[1; 200]).with_descriptor(6, &[2; 40]);
        let bytes = whole.encode(SenseFormat::Descriptor);
        assert_eq!((bytes.len(), bytes[4], bytes[7]), (SENSE_BYTES_MAX, 0, 244));
        assert_eq!(Sense::decode(&bytes), Some(whole.clone()));
        let bytes = whole.clone().with_information(5).encode(SenseFormat::Descriptor);
        assert_eq!((bytes.len(), bytes[4], bytes[7]), (8 + 12 + 202, 0x80, 12 + 202));
        assert!(Sense::decode(&bytes).unwrap().descriptors.is_cut());
        for body in [&[0; 243][..], &[0; 300]] {
            let too_long = Sense::WRITE_ERROR.with_descriptor(0x80, body).with_descriptor(6, &[]);
            let bytes = too_long.encode(SenseFormat::Descriptor);
            assert_eq!(bytes, [0x72, 3, 0x0c, 0, 0x80, 0, 0, 0]);
        }
    }

    #[test]
    fn deferred_and_foreign_codes() {
        assert!(Sense::is_deferred(&[0xf1]));
        assert!(Sense::is_deferred(&[0x73]));
        assert!(!Sense::is_deferred(&[0x70]) && !Sense::is_deferred(&[]));
        assert_eq!(Sense::decode(&[0x7f, 0, 0, 0]), None, "vendor specific");
        assert_eq!(Sense::decode(&[0x70, 0]), None, "no key");
        assert_eq!(Sense::decode(&[0x70, 0, 6]), Some(Sense::new(SenseKey::UNIT_ATTENTION, 0)));
    }

    #[test]
    fn display_names_sense_code_and_field() {
        let sense = Sense::invalid_field_in_cdb(2, Some(5));
        let text = "ILLEGAL_REQUEST 24h/00h (INVALID_FIELD_IN_CDB), CDB byte 2 bit 5";
        assert_eq!(alloc::format!("{sense}"), text);
        let sense = Sense::new(SenseKey(9), 0x80ff).with_information(7);
        assert_eq!(alloc::format!("{sense}"), "SenseKey(0x9) 80h/FFh, information 7");
        assert_eq!(Sense::NEXUS_LOSS.name(), Some("NEXUS_LOSS"));
        assert_eq!(Sense::new(SenseKey::NO_SENSE, 0x2907).name(), None, "another key");
    }

    /// Goal: bytes beyond ADDITIONAL SENSE LENGTH are not read.
    #[test]
    fn bytes_beyond_additional_sense_length_are_ignored() {
        let mut bytes = Sense::invalid_field_in_cdb(1, None).encode(SenseFormat::Fixed);
        bytes[7] = 6;
        assert_eq!(Sense::decode(&bytes), Some(Sense::INVALID_FIELD_IN_CDB));
        bytes[7] = 0;
        assert_eq!(Sense::decode(&bytes), Some(Sense::new(SenseKey::ILLEGAL_REQUEST, 0)));
    }

    proptest! {
        /// Goal: hostile sense data never causes a panic. Method: random bytes after each response
        /// code.
        #[test]
        fn any_bytes_decode(
            code in 0x70_u8..0x74, rest in proptest::collection::vec(any::<u8>(), 0..300),
        ) {
            let mut bytes = rest;
            bytes.insert(0, code);
            let _ = Sense::decode(&bytes);
            for cut in 0..bytes.len() {
                let _ = Sense::decode(&bytes[..cut]);
            }
        }

        /// Goal: encoding and decoding lose nothing. Method: encode, decode, compare, both formats.
        #[test]
        fn sense_round_trips(
            code in any::<u16>(), information in proptest::option::of(any::<u32>()),
            byte in any::<u16>(), bit in proptest::option::of(0_u8..8), in_cdb in any::<bool>(),
        ) {
            let mut sense = Sense::new(SenseKey::ILLEGAL_REQUEST, code)
                .with_field(FieldPointer { in_cdb, byte, bit });
            sense.information = information.map(u64::from);
            for format in [SenseFormat::Fixed, SenseFormat::Descriptor] {
                let bytes = sense.encode(format);
                prop_assert!(bytes.len() <= SENSE_BYTES_MAX);
                prop_assert_eq!(Sense::decode(&bytes), Some(sense.clone()));
            }
        }

        /// Goal: many descriptors are encoded whole, in order, as many as fit, and nothing is lost
        /// without a sign. Method: random descriptors, with and without others before them; encode,
        /// decode, compare with the list.
        #[test]
        fn many_descriptors_are_cut_between_two(
            list in proptest::collection::vec(
                (3_u8..=255, proptest::collection::vec(any::<u8>(), 0..60)), 0..16,
            ),
            information in proptest::option::of(any::<u64>()),
            byte in proptest::option::of(any::<u16>()),
        ) {
            let mut sense = Sense { information, ..Sense::INVALID_FIELD_IN_CDB };
            sense.field = byte.map(|byte| FieldPointer { in_cdb: true, byte, bit: None });
            let plain_bytes = sense.encode(SenseFormat::Descriptor).len();
            let fixed = sense.encode(SenseFormat::Fixed);
            for (kind, body) in &list {
                sense = sense.with_descriptor(*kind, body);
            }
            prop_assert_eq!(sense.encode(SenseFormat::Fixed), fixed);
            let bytes = sense.encode(SenseFormat::Descriptor);
            prop_assert!(bytes.len() <= SENSE_BYTES_MAX);
            prop_assert_eq!(usize::from(bytes[7]) + 8, bytes.len());
            let decoded = Sense::decode(&bytes).unwrap();
            let kept: Vec<_> =
                decoded.descriptors.iter().map(|(kind, body)| (kind, body.to_vec())).collect();
            prop_assert_eq!(&kept[..], &list[..kept.len()]);
            let kept_bytes: usize = kept.iter().map(|(_, body)| 2 + body.len()).sum();
            prop_assert_eq!(plain_bytes + kept_bytes, bytes.len());
            prop_assert_eq!(decoded.descriptors.is_cut(), kept.len() < list.len());
            if let Some((_, next)) = list.get(kept.len()) {
                prop_assert!(bytes.len() + 2 + next.len() > SENSE_BYTES_MAX);
            } else {
                prop_assert_eq!(decoded, sense);
            }
        }
    }
}
