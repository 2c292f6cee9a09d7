//! TransportID of an iSCSI initiator port. SPC-4 §7.6.4.6.
//!
//! | byte | what |
//! |---|---|
//! | 0 | 45h: iSCSI, initiator port form |
//! | 2 | number of bytes that follow |
//! | 4 | `name,i,0x<ISID>`, NUL-terminated, padded to a multiple of four, at least 20 bytes |

use crate::primary::InitiatorPort;
use alloc::format;
use alloc::vec;
use alloc::vec::Vec;

/// Maximum length of a TransportID with its header: a name of 223 bytes, separator, ISID, NUL.
pub(super) const TRANSPORT_ID_BYTES_MAX: usize = 4 + 244;
/// Minimum length of a TransportID.
pub(super) const TRANSPORT_ID_BYTES_MIN: usize = 24;

/// Maximum length of an iSCSI name, RFC 7143 §4.2.7.1.
pub(super) const NAME_BYTES_MAX: usize = 223;

const INITIATOR_PORT_FORM: u8 = 0x45;
const SEPARATOR: &str = ",i,0x";
const ISID_DIGITS: usize = 12;

/// Length of the TransportID of a port.
pub(super) fn encoded_bytes(port: &InitiatorPort) -> usize {
    let text_bytes = port.name.len() + SEPARATOR.len() + ISID_DIGITS + 1;
    (4 + text_bytes).next_multiple_of(4).max(TRANSPORT_ID_BYTES_MIN)
}

/// Encodes the TransportID of a port.
pub(super) fn encode(port: &InitiatorPort) -> Vec<u8> {
    let isid = port.isid.iter().fold(0, |isid, byte| (isid << 8) | u64::from(*byte));
    let name = format!("{}{SEPARATOR}{isid:012x}", port.name);
    let mut data = vec![INITIATOR_PORT_FORM, 0, 0, 0];
    data.extend_from_slice(name.as_bytes());
    data.resize(encoded_bytes(port), 0);
    let additional = (data.len() - 4) as u16;
    data[2..4].copy_from_slice(&additional.to_be_bytes());
    data
}

/// Decodes the TransportID that fills `bytes`; `None` if it is invalid, or names no port.
pub(super) fn decode(bytes: &[u8]) -> Option<InitiatorPort> {
    let fits = (TRANSPORT_ID_BYTES_MIN..=TRANSPORT_ID_BYTES_MAX).contains(&bytes.len())
        && bytes.len().is_multiple_of(4);
    let [INITIATOR_PORT_FORM, _, high, low, text @ ..] = bytes else { return None };
    if !fits || usize::from(u16::from_be_bytes([*high, *low])) != text.len() {
        return None;
    }
    let end = text.iter().position(|byte| *byte == 0)?;
    let text = core::str::from_utf8(&text[..end]).ok()?;
    let (name, isid) = text.split_once(SEPARATOR)?;
    if name.is_empty() || name.len() > NAME_BYTES_MAX {
        return None;
    }
    Some(InitiatorPort { name: name.to_ascii_lowercase(), isid: isid_of(isid)? })
}

/// Parses six bytes from at most twelve hexadecimal digits.
fn isid_of(digits: &str) -> Option<[u8; 6]> {
    let are_digits = digits.bytes().all(|digit| digit.is_ascii_hexdigit());
    if !are_digits || digits.len() > ISID_DIGITS {
        return None;
    }
    let [_, _, isid @ ..] = u64::from_str_radix(digits, 16).ok()?.to_be_bytes();
    Some(isid)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn port(name: &str) -> InitiatorPort {
        InitiatorPort { name: name.into(), isid: [0x00, 0x02, 0x3d, 0xab, 0xcd, 0xef] }
    }

    #[test]
    fn transport_id_bytes_of_a_port() {
        let data = encode(&port("iqn.a"));
        assert_eq!(data, b"\x45\0\0\x18iqn.a,i,0x00023dabcdef\0\0");
        assert_eq!(decode(&data), Some(port("iqn.a")));
        assert_eq!(encode(&port("i")).len(), TRANSPORT_ID_BYTES_MIN, "19 characters and a NUL");
        let long = encode(&port(&"n".repeat(NAME_BYTES_MAX)));
        assert_eq!(long.len(), TRANSPORT_ID_BYTES_MAX);
        assert!(decode(&long).is_some());
        assert_eq!(decode(&encode(&port(&"n".repeat(NAME_BYTES_MAX + 1)))), None);
    }

    #[test]
    fn invalid_transport_ids_are_refused() {
        let good = b"\x45\0\0\x18iqn.a,i,0x00023dabcdef\0\0";
        for (at, byte, what) in [
            (0, 0x05, "the form without an ISID"),
            (0, 0x46, "another protocol"),
            (3, 0x14, "a length that lies"),
            (9, b'.', "no separator"),
            (14, b'+', "no digit"),
            (5, 0xff, "no text"),
        ] {
            let mut bytes = *good;
            bytes[at] = byte;
            assert_eq!(decode(&bytes), None, "{what}");
        }
        assert_eq!(decode(b"\x45\0\0\x14,i,0x00023dabcdef\0\0\0"), None, "no name");
        assert_eq!(decode(b"\x45\0\0\x14iqn.a,i,0x\0\0\0\0\0\0\0\0\0\0"), None, "no ISID");
        assert_eq!(decode(b"\x45\0\0\x18iqn.abc,i,0x00023dabcdef"), None, "no NUL");
        assert_eq!(decode(b"\x45\0\0\x18iqn.a,i,0x100023dabcdef\0"), None, "thirteen digits");
    }

    proptest! {
        #[test]
        fn any_transport_id_decodes_or_is_refused(
            mut bytes in prop::collection::vec(any::<u8>(), 0..300), good in any::<bool>(),
        ) {
            if good && bytes.len() >= 4 {
                let [high, low] = ((bytes.len() - 4) as u16).to_be_bytes();
                bytes[..4].copy_from_slice(&[0x45, 0, high, low]);
            }
            if let Some(port) = decode(&bytes) {
                prop_assert_eq!(decode(&encode(&port)), Some(port));
            }
        }

        #[test]
        fn ports_round_trip(name in "[a-z0-9.:-]{1,223}", isid in any::<[u8; 6]>()) {
            let port = InitiatorPort { name, isid };
            prop_assert_eq!(decode(&encode(&port)), Some(port));
        }
    }
}
