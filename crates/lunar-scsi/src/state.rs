//! The persistent state of a unit as bytes: sections with a magic number, a version and a CRC32C,
//! which detect torn or foreign files.
//!
//! ```text
//! 0   magic "LunarLU\0"
//! 8   version, 16 bits
//! 10  sections: kind (16 bits), length in bytes (32 bits), bytes
//! end CRC32C of all before, 32 bits, big-endian
//! ```

use alloc::vec::Vec;
use lunar_wire::{Field, crc32c};

/// The reason why the state of an earlier run is refused.
#[derive(Clone, Copy, Debug, Eq, PartialEq, thiserror::Error)]
#[error("{0}")]
pub struct StateError(pub &'static str);

const FOREIGN: StateError = StateError("this is not the state of a logical unit");
const DAMAGED: StateError = StateError("the state is damaged: its checksum does not match");
const LATER: StateError = StateError("the state was written by a later version");
const TRUNCATED: StateError = StateError("the state contradicts itself: a section is cut short");

lunar_wire::wire_enum! {
    /// The contents of a section.
    pub struct SectionKind(u16) { RESERVATIONS = 1, LONG_OPERATION = 2 }
}

const MAGIC: [u8; 8] = *b"LunarLU\0";
const VERSION: u16 = 1;
const HEAD_BYTES: usize = 10;
const CRC_BYTES: usize = 4;
const SECTION_HEAD_BYTES: usize = 6;

/// Encodes the sections.
pub(crate) fn encode(sections: &[(SectionKind, Vec<u8>)]) -> Vec<u8> {
    let mut state = MAGIC.to_vec();
    state.extend_from_slice(&VERSION.to_be_bytes());
    for (kind, bytes) in sections {
        state.extend_from_slice(&kind.0.to_be_bytes());
        // Sections are a few kilobytes: reservations and mode pages have their own limits.
        state.extend_from_slice(&(bytes.len() as u32).to_be_bytes());
        state.extend_from_slice(bytes);
    }
    let sum = crc32c(&state);
    state.extend_from_slice(&sum.to_be_bytes());
    state
}

/// Decodes the sections of a state, in order.
pub(crate) fn decode(state: &[u8]) -> Result<Vec<(SectionKind, &[u8])>, StateError> {
    if state.get(..MAGIC.len()) != Some(&MAGIC) {
        return Err(FOREIGN);
    }
    let (body, sum) = state.split_last_chunk::<CRC_BYTES>().ok_or(DAMAGED)?;
    if body.len() < HEAD_BYTES || crc32c(body) != u32::get(sum) {
        return Err(DAMAGED);
    }
    if u16::get(&body[MAGIC.len()..HEAD_BYTES]) != VERSION {
        return Err(LATER);
    }
    let mut sections = Vec::new();
    let mut rest = &body[HEAD_BYTES..];
    while !rest.is_empty() {
        let (head, after) = rest.split_at_checked(SECTION_HEAD_BYTES).ok_or(TRUNCATED)?;
        let bytes = usize::try_from(u32::get(&head[2..])).unwrap_or(usize::MAX);
        let (section, after) = after.split_at_checked(bytes).ok_or(TRUNCATED)?;
        sections.push((SectionKind(u16::get(&head[..2])), section));
        rest = after;
    }
    Ok(sections)
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::vec;

    fn example() -> Vec<u8> {
        encode(&[(SectionKind(9), vec![1, 2, 3]), (SectionKind::RESERVATIONS, vec![])])
    }

    #[test]
    fn sections_round_trip() {
        let state = example();
        let sections: [(SectionKind, &[u8]); 2] =
            [(SectionKind(9), &[1, 2, 3]), (SectionKind::RESERVATIONS, &[])];
        assert_eq!(decode(&state).unwrap(), sections);
    }

    /// Goal: all damage is detected. Method: flip each bit, cut at each byte.
    #[test]
    fn damaged_state_is_detected() {
        let whole = example();
        for at in 0..whole.len() {
            assert!(decode(&whole[..at]).is_err(), "cut at {at}");
            for bit in 0..8 {
                let mut flipped = whole.clone();
                flipped[at] ^= 1 << bit;
                assert!(decode(&flipped).is_err(), "byte {at}, bit {bit}");
            }
        }
        assert_eq!(decode(b"something else entirely"), Err(FOREIGN));
    }

    #[test]
    fn a_later_version_is_reported_as_such() {
        let mut body = example();
        body.truncate(body.len() - CRC_BYTES);
        body[9] = 2;
        let sum = crc32c(&body);
        body.extend_from_slice(&sum.to_be_bytes());
        assert_eq!(decode(&body), Err(LATER));
    }
}
