//! Sizes as people write them.

/// Reads `4096`, `10G`, `64KiB`: bytes, with a suffix K, M, G or T (or KiB … TiB), powers of 1024.
///
/// # Errors
/// A text that says what is wrong.
pub fn parse_size(text: &str) -> Result<u64, String> {
    let text = text.trim();
    let digits = text.bytes().take_while(u8::is_ascii_digit).count();
    let (number, suffix) = text.split_at(digits);
    let shift = match suffix.trim_start().to_ascii_lowercase().as_str() {
        "" => 0,
        "k" | "kib" => 10,
        "m" | "mib" => 20,
        "g" | "gib" => 30,
        "t" | "tib" => 40,
        _ => {
            return Err(format!("`{text}` is no size: write bytes, or a number with K, M, G or T"));
        }
    };
    let number: u64 = number
        .parse()
        .map_err(|_| format!("`{text}` is no size: write a whole number, like 10G or 512MiB"))?;
    number
        .checked_mul(1 << shift)
        .filter(|bytes| i64::try_from(*bytes).is_ok())
        .ok_or_else(|| format!("`{text}` is too large"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_powers_of_1024() {
        for (text, bytes) in [
            ("0", 0),
            ("4096", 4096),
            ("4K", 4096),
            ("4KiB", 4096),
            ("4 kib", 4096),
            ("10G", 10 << 30),
            ("15T", 15 << 40),
            ("15TiB", 15 << 40),
        ] {
            assert_eq!(parse_size(text), Ok(bytes), "{text}");
        }
        for text in ["", "G", "-1", "1.5G", "10GB", "1E", "99999999T", "9223372036854775808", "1 2"]
        {
            assert!(parse_size(text).is_err(), "{text}");
        }
    }
}
