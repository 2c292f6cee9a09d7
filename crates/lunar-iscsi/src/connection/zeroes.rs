//! Zeroes for the rest of a PDU whose data will not come.

use bytes::Bytes;

/// Length of one part.
const PART_BYTES: usize = 64 << 10;

static ZEROES: [u8; PART_BYTES] = [0; PART_BYTES];

/// Returns parts of `bytes` zeroes in all, without allocating memory for them.
pub(super) fn zeroes(bytes: usize) -> impl Iterator<Item = Bytes> {
    let rest = bytes % PART_BYTES;
    let parts =
        core::iter::repeat_n(PART_BYTES, bytes / PART_BYTES).chain((rest > 0).then_some(rest));
    parts.map(|part| Bytes::from_static(&ZEROES[..part]))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_parts_have_the_length() {
        for bytes in [0, 1, PART_BYTES - 1, PART_BYTES, PART_BYTES + 1, 5 * PART_BYTES + 7] {
            assert_eq!(zeroes(bytes).map(|part| part.len()).sum::<usize>(), bytes);
            assert!(zeroes(bytes).all(|part| !part.is_empty()));
        }
    }
}
