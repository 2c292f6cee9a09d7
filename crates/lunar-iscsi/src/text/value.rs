//! Values of RFC 7143 §6.1: numbers, Booleans, lists, binary strings.

use alloc::string::String;
use alloc::vec::Vec;
use base64::Engine;
use base64::engine::{DecodePaddingMode, GeneralPurpose, GeneralPurposeConfig};
use core::fmt::Write;

/// Base64 with or without padding, since peers differ, but not with partial padding.
const BASE64: GeneralPurpose = GeneralPurpose::new(
    &base64::alphabet::STANDARD,
    GeneralPurposeConfig::new().with_decode_padding_mode(DecodePaddingMode::Indifferent),
);

/// Parses a numerical-value: a decimal-constant without leading zeros, or a hex-constant; below
/// 2^64.
pub fn number(text: &str) -> Option<u64> {
    if let Some(digits) = after_prefix(text, b'x') {
        return accumulate(digits, 16);
    }
    if text.len() > 1 && text.starts_with('0') {
        return None;
    }
    accumulate(text.as_bytes(), 10)
}

/// Parses a numerical-range `low~high`, both included.
pub fn range(text: &str) -> Option<(u64, u64)> {
    let (low, high) = text.split_once('~')?;
    let (low, high) = (number(low)?, number(high)?);
    (low <= high).then_some((low, high))
}

/// Parses `Yes` or `No`.
pub fn boolean(text: &str) -> Option<bool> {
    match text {
        "Yes" => Some(true),
        "No" => Some(false),
        _ => None,
    }
}

/// The word for a Boolean.
pub const fn boolean_text(value: bool) -> &'static str {
    if value { "Yes" } else { "No" }
}

/// Parses a binary-value as hex-constant or base64-constant, at most `bytes_max` bytes once
/// decoded. The length is checked before decoding.
pub fn binary(text: &str, bytes_max: usize) -> Option<Vec<u8>> {
    if let Some(digits) = after_prefix(text, b'x') {
        let fits = !digits.is_empty() && digits.len().div_ceil(2) <= bytes_max;
        return if fits { hex(digits) } else { None };
    }
    let digits = after_prefix(text, b'b')?;
    let is_partly_padded = digits.ends_with(b"=") && digits.len() % 4 != 0;
    let is_too_long = digits.len() > bytes_max.div_ceil(3).saturating_mul(4);
    if digits.is_empty() || is_partly_padded || is_too_long {
        return None;
    }
    let bytes = BASE64.decode(digits).ok()?;
    (!bytes.is_empty() && bytes.len() <= bytes_max).then_some(bytes)
}

/// Formats a binary-value as hex-constant, which every peer can read.
pub fn hex_text(bytes: &[u8]) -> String {
    let mut text = String::with_capacity(2 + 2 * bytes.len());
    text.push_str("0x");
    for byte in bytes {
        // Writing to a String cannot fail.
        let _ = write!(text, "{byte:02x}");
    }
    text
}

/// Returns the digits after `0x` or `0X` (or `0b`, `0B`).
fn after_prefix(text: &str, letter: u8) -> Option<&[u8]> {
    match text.as_bytes() {
        [b'0', mark, digits @ ..] if mark.eq_ignore_ascii_case(&letter) => Some(digits),
        _ => None,
    }
}

fn accumulate(digits: &[u8], radix: u32) -> Option<u64> {
    if digits.is_empty() {
        return None;
    }
    digits.iter().try_fold(0_u64, |value, byte| {
        let digit = char::from(*byte).to_digit(radix)?;
        value.checked_mul(u64::from(radix))?.checked_add(u64::from(digit))
    })
}

/// Decodes n digits to (n + 1) / 2 bytes; if n is odd, the first digit is a byte of its own.
fn hex(digits: &[u8]) -> Option<Vec<u8>> {
    let nibble = |byte: &u8| char::from(*byte).to_digit(16).map(|digit| digit as u8);
    let (head, rest) = digits.split_at(digits.len() % 2);
    let mut bytes = Vec::with_capacity(digits.len().div_ceil(2));
    if let [digit] = head {
        bytes.push(nibble(digit)?);
    }
    for pair in rest.chunks_exact(2) {
        bytes.push(nibble(&pair[0])? << 4 | nibble(&pair[1])?);
    }
    Some(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::vec;
    use proptest::prelude::*;

    #[test]
    fn numbers_of_both_kinds() {
        assert_eq!(number("0"), Some(0));
        assert_eq!(number("18446744073709551615"), Some(u64::MAX));
        assert_eq!(number("18446744073709551616"), None);
        assert_eq!(number("0xfF"), Some(255));
        assert_eq!(number("0X0000000000000000000001"), Some(1));
        for bad in ["", "01", "-1", "+1", "1 ", "0x", "0xg", "1e3", "١"] {
            assert_eq!(number(bad), None, "{bad}");
        }
        assert_eq!(range("1~0x10"), Some((1, 16)));
        assert_eq!(range("2~1"), None);
    }

    #[test]
    fn binary_of_both_kinds() {
        assert_eq!(binary("0x123", 2), Some(vec![0x01, 0x23]));
        assert_eq!(binary("0X0001", 2), Some(vec![0, 1]));
        assert_eq!(binary("0bAQID", 3), Some(vec![1, 2, 3]));
        assert_eq!(binary("0BAQI=", 2), Some(vec![1, 2]));
        assert_eq!(binary("0bAQI", 2), Some(vec![1, 2]));
        for bad in ["", "0x", "0b", "0b=", "0b====", "0xzz", "0b*", "12", "0x010203", "0bAQIDBA=="]
        {
            assert_eq!(binary(bad, 2), None, "{bad}");
        }
        assert_eq!(binary("0bAQ=", 2), None, "padded by half");
    }

    proptest! {
        /// Goal: formatted values are parsed unchanged; a limit one below the length refuses them.
        #[test]
        fn binary_comes_back(bytes in proptest::collection::vec(any::<u8>(), 1..1024)) {
            prop_assert_eq!(binary(&hex_text(&bytes), bytes.len()), Some(bytes.clone()));
            prop_assert_eq!(binary(&hex_text(&bytes), bytes.len() - 1), None);
            let mut base64 = String::from("0b");
            BASE64.encode_string(&bytes, &mut base64);
            prop_assert_eq!(binary(&base64, bytes.len()), Some(bytes.clone()));
            prop_assert_eq!(binary(&base64, bytes.len() - 1), None);
        }
    }
}
