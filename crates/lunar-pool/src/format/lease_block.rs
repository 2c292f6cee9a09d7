//! The lease block of a member: the owner of a device whose target has no persistent reservations.

use super::checksum_of;
use lunar_wire::Field;
use std::fmt;
use std::num::NonZeroU64;
use std::time::Duration;

/// Length of the content of a lease block; the rest of the block is zero.
pub const LEASE_BYTES: usize = 512;

/// Maximum length of the name of an owner, in bytes.
pub const OWNER_NAME_BYTES_MAX: usize = 224;

/// Maximum length of a lease.
pub const LEASE_TIME_MAX: Duration = Duration::from_secs(600);

const MAGIC: [u8; 8] = *b"LunarLS\0";
const VERSION: u16 = 1;
const CHECKED_BYTES: usize = LEASE_BYTES - 4;

lunar_wire::wire_struct! {
    /// The bytes of a lease block, docs/formats/pool.md.
    pub struct LeaseBlockBytes [512] {
        0 => magic: [u8; 8],
        8 => version: u16,
        10 => phase: u8,
        12 => millis: u32,
        16 => key: u64,
        24 => sequence: u64,
        32 => name: [u8; 224],
        508 => checksum: u32,
    }
}

/// Phase of a lease.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum LeasePhase {
    /// The owner uses the device.
    InUse,
    /// The owner has taken the device over, and waits until the former owner has stopped.
    Waiting,
}

/// The lease of a device.
#[derive(Clone, Eq, PartialEq)]
pub struct LeaseBlock {
    /// Key of this acquisition; its upper half names the owner.
    pub key: NonZeroU64,
    /// Sequence number; each renewal increases it.
    pub sequence: u64,
    /// Time for which others have to see the same block before they may take the device, up to
    /// [`LEASE_TIME_MAX`].
    pub time: Duration,
    /// Phase of the lease.
    pub phase: LeasePhase,
    /// Name of the owner, for messages.
    pub owner: String,
}

/// Result of reading a lease block.
#[derive(Clone, Debug, Eq, PartialEq)]
pub enum FoundLease {
    /// Other bytes: nobody has the device.
    None,
    /// A damaged lease, or one of a later version: somebody may have the device.
    Unusable,
    /// A valid lease.
    Valid(LeaseBlock),
}

impl fmt::Debug for LeaseBlock {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { key, sequence, time, phase, owner } = self;
        write!(f, "LeaseBlock({owner:?}, {key:#x}, {sequence}, {time:?}, {phase:?})")
    }
}

impl LeasePhase {
    const fn code(self) -> u8 {
        match self {
            Self::InUse => 1,
            Self::Waiting => 2,
        }
    }

    fn from_code(code: u8) -> Option<Self> {
        [Self::InUse, Self::Waiting].into_iter().find(|phase| phase.code() == code)
    }
}

impl LeaseBlock {
    /// Decodes untrusted bytes.
    pub fn decode(bytes: &[u8; LEASE_BYTES]) -> FoundLease {
        if bytes[..MAGIC.len()] != MAGIC {
            return FoundLease::None;
        }
        Self::decode_known(bytes).map_or(FoundLease::Unusable, FoundLease::Valid)
    }

    fn decode_known(bytes: &[u8; LEASE_BYTES]) -> Option<Self> {
        let raw = LeaseBlockBytes::decode(bytes);
        if raw.checksum != checksum_of(&bytes[..CHECKED_BYTES]) || raw.version != VERSION {
            return None;
        }
        let time = Duration::from_millis(raw.millis.into());
        let is_possible = !time.is_zero() && time <= LEASE_TIME_MAX;
        Some(Self {
            key: NonZeroU64::new(raw.key)?,
            sequence: raw.sequence,
            time: is_possible.then_some(time)?,
            phase: LeasePhase::from_code(raw.phase)?,
            owner: shown_name(&raw.name),
        })
    }

    /// Encodes the lease. A longer name or time than the maximum is cut.
    pub fn encode(&self) -> [u8; LEASE_BYTES] {
        let mut name = [0; OWNER_NAME_BYTES_MAX];
        let end = self.owner.floor_char_boundary(OWNER_NAME_BYTES_MAX);
        name[..end].copy_from_slice(&self.owner.as_bytes()[..end]);
        let raw = LeaseBlockBytes {
            magic: MAGIC,
            version: VERSION,
            phase: self.phase.code(),
            millis: (self.time.min(LEASE_TIME_MAX).as_millis() as u32).max(1),
            key: self.key.get(),
            sequence: self.sequence,
            name,
            checksum: 0,
        };
        let mut bytes = raw.encode();
        let sum = checksum_of(&bytes[..CHECKED_BYTES]);
        sum.put(&mut bytes[CHECKED_BYTES..]);
        bytes
    }
}

/// Returns a name of other hosts in a form that can be shown.
fn shown_name(name: &[u8; OWNER_NAME_BYTES_MAX]) -> String {
    let end = name.iter().position(|byte| *byte == 0).unwrap_or(name.len());
    let text = String::from_utf8_lossy(&name[..end]);
    let is_shown = |c: &char| !c.is_control() && !c.is_whitespace();
    let mut name: String = text.chars().filter(is_shown).collect();
    name.truncate(name.floor_char_boundary(OWNER_NAME_BYTES_MAX));
    name
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn lease() -> LeaseBlock {
        LeaseBlock {
            key: NonZeroU64::new(0x0102_0304_0506_0708).unwrap(),
            sequence: 9,
            time: Duration::from_secs(60),
            phase: LeasePhase::InUse,
            owner: "iqn.host".to_owned(),
        }
    }

    fn with(at: usize, value: u8) -> FoundLease {
        let mut bytes = lease().encode();
        bytes[at] = value;
        let sum = checksum_of(&bytes[..CHECKED_BYTES]);
        sum.put(&mut bytes[CHECKED_BYTES..]);
        LeaseBlock::decode(&bytes)
    }

    /// Goal: the bytes are those of the document.
    #[test]
    fn bytes_of_the_document() {
        let bytes = lease().encode();
        assert_eq!(&bytes[..8], b"LunarLS\0");
        assert_eq!(&bytes[8..16], [0, 1, 1, 0, 0, 0, 0xea, 0x60]);
        assert_eq!(&bytes[16..24], [1, 2, 3, 4, 5, 6, 7, 8]);
        assert_eq!(&bytes[24..32], [0, 0, 0, 0, 0, 0, 0, 9]);
        assert_eq!(&bytes[32..41], b"iqn.host\0");
        assert!(bytes[41..508].iter().all(|byte| *byte == 0));
        let waiting = LeaseBlock { phase: LeasePhase::Waiting, ..lease() };
        assert_eq!(waiting.encode()[10], 2);
    }

    /// Goal: other bytes are no lease; a damaged lease and one of a later version are not taken for
    /// a free device; times have a limit, and names contain no control characters.
    #[test]
    fn hostile_blocks() {
        assert_eq!(LeaseBlock::decode(&[0; LEASE_BYTES]), FoundLease::None);
        assert_eq!(LeaseBlock::decode(&[0xff; LEASE_BYTES]), FoundLease::None);
        for bit in 8 * 8..LEASE_BYTES * 8 {
            let mut bytes = lease().encode();
            bytes[bit / 8] ^= 1 << (bit % 8);
            assert_eq!(LeaseBlock::decode(&bytes), FoundLease::Unusable, "bit {bit}");
        }
        for (at, value) in [(9, 2), (10, 0), (10, 3), (12, 1)] {
            assert_eq!(with(at, value), FoundLease::Unusable, "byte {at}: {value}");
        }
        let no_key = LeaseBlockBytes { key: 0, ..LeaseBlockBytes::decode(&lease().encode()) };
        let mut bytes = no_key.encode();
        let sum = checksum_of(&bytes[..CHECKED_BYTES]);
        sum.put(&mut bytes[CHECKED_BYTES..]);
        assert_eq!(LeaseBlock::decode(&bytes), FoundLease::Unusable);
        for byte in [b'\n', 0x1b, 0xff] {
            let FoundLease::Valid(found) = with(33, byte) else { panic!("byte {byte:#x}") };
            assert!(!found.owner.chars().any(char::is_control), "{:?}", found.owner);
        }
    }

    proptest! {
        /// Goal: every lease survives encoding, with the part of its name that fits.
        #[test]
        fn encoding_keeps_leases(
            key in 1u64..,
            sequence: u64,
            millis in 1u64..=600_000,
            is_waiting: bool,
            owner in "[a-zé日.:-]{0,120}",
        ) {
            let lease = LeaseBlock {
                key: NonZeroU64::new(key).unwrap(),
                sequence,
                time: Duration::from_millis(millis),
                phase: if is_waiting { LeasePhase::Waiting } else { LeasePhase::InUse },
                owner,
            };
            let FoundLease::Valid(found) = LeaseBlock::decode(&lease.encode()) else {
                panic!("{lease:?}")
            };
            prop_assert!(lease.owner.starts_with(&found.owner));
            prop_assert!(found.owner.len() + 3 > lease.owner.len().min(OWNER_NAME_BYTES_MAX));
            prop_assert_eq!(found.clone(), LeaseBlock { owner: found.owner, ..lease });
        }

        /// Goal: no content makes decoding panic, and only whole leases are valid.
        #[test]
        fn any_bytes_are_decoded(bytes in proptest::collection::vec(any::<u8>(), LEASE_BYTES)) {
            let mut block = [0; LEASE_BYTES];
            block.copy_from_slice(&bytes);
            prop_assert_eq!(LeaseBlock::decode(&block), FoundLease::None);
            block[..8].copy_from_slice(&MAGIC);
            prop_assert_eq!(LeaseBlock::decode(&block), FoundLease::Unusable);
        }
    }
}
