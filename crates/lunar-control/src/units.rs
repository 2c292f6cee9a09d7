//! Parsing and formatting of sizes and rates.

/// Reads `4096`, `10G`, `64KiB`: bytes, with a suffix K, M, G or T (or KiB … TiB), powers of 1024.
///
/// # Errors
/// Returns a text that says what is wrong.
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
            return Err(format!(
                "`{text}` is not a size: write bytes, or a number with K, M, G or T"
            ));
        }
    };
    let number: u64 = number
        .parse()
        .map_err(|_| format!("`{text}` is not a size: write a whole number, like 10G or 512MiB"))?;
    number
        .checked_mul(1 << shift)
        .filter(|bytes| i64::try_from(*bytes).is_ok())
        .ok_or_else(|| format!("`{text}` is too large"))
}

/// Formats a size for [`parse_size`], if it is a whole number of KiB or more.
pub fn size_text(bytes: u64) -> Option<String> {
    let unit = [(40, "TiB"), (30, "GiB"), (20, "MiB"), (10, "KiB")];
    let (shift, unit) =
        unit.into_iter().find(|(shift, _)| bytes > 0 && bytes.trailing_zeros() >= *shift)?;
    Some(format!("{}{unit}", bytes >> shift))
}

/// Formats a rate in bytes per second for [`parse_rate`].
pub fn rate_text(bytes_per_second: u64) -> String {
    let bits = u128::from(bytes_per_second) * 8;
    for (factor, unit) in [(1_000_000_000, "Gbit"), (1_000_000, "Mbit"), (1_000, "kbit")] {
        if bits >= factor && bits.is_multiple_of(factor) {
            return format!("{}{unit}", bits / factor);
        }
    }
    format!("{bits}bit")
}

/// Minimum rate, at which work still ends in a reasonable time.
const RATE_BITS_MIN: u64 = 8_000;

/// Reads `100Mbit`, `1Gbit`, `1.5Gbit`: bits per second, decimal. Returns bytes per second.
///
/// # Errors
/// Returns a text that says what is wrong.
pub fn parse_rate(text: &str) -> Result<u64, String> {
    let wrong = || format!("`{text}` is not a rate: write bits per second, like 100Mbit or 1Gbit");
    let lower = text.trim().to_ascii_lowercase();
    let number = lower.strip_suffix("bit").ok_or_else(wrong)?;
    let (number, factor) = match number.char_indices().last() {
        Some((at, 'k')) => (&number[..at], 1_000),
        Some((at, 'm')) => (&number[..at], 1_000_000),
        Some((at, 'g')) => (&number[..at], 1_000_000_000),
        _ => (number, 1),
    };
    let (whole, part) = number.trim().split_once('.').unwrap_or((number.trim(), "0"));
    let digits = |text: &str| !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    if !digits(whole) || !digits(part) || part.len() > 3 {
        return Err(wrong());
    }
    let thousandths = format!("{whole}{part:0<3}").parse::<u64>().map_err(|_| wrong())?;
    let bits = thousandths.checked_mul(factor).ok_or_else(wrong)? / 1_000;
    if bits < RATE_BITS_MIN {
        return Err(format!("`{text}` is too slow: the minimum is {} kbit", RATE_BITS_MIN / 1_000));
    }
    Ok(bits / 8)
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

    #[test]
    fn rates_are_decimal_bits() {
        for (text, bytes) in [
            ("8000bit", 1_000),
            ("1Gbit", 125_000_000),
            ("1.5 gbit", 187_500_000),
            ("100Mbit", 12_500_000),
            ("64kbit", 8_000),
        ] {
            assert_eq!(parse_rate(text), Ok(bytes), "{text}");
        }
        for text in [
            "",
            "1",
            "bit",
            "1G",
            "-1Gbit",
            "1.Gbit",
            ".5Gbit",
            "1.2345Gbit",
            "7kbit",
            "99999999999999Gbit",
            "1Tbit",
            "ébit",
        ] {
            assert!(parse_rate(text).is_err(), "{text}");
        }
    }
}
