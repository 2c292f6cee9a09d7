//! Rules for values of the command line and of the configuration file.

use lunar_block::PHYSICAL_BLOCK_BYTES_MAX;
use lunar_initiator::{NAME_BYTES_MAX, PORT_DEFAULT};
use lunar_target::Portal;
use std::net::{IpAddr, SocketAddr};

/// Checks that `name` is an iSCSI name in its normal form. RFC 7143 §4.2.7.
///
/// # Errors
/// Returns what is wrong with the name.
pub fn check_name(name: &str) -> Result<(), String> {
    if name.len() > NAME_BYTES_MAX {
        return Err(format!("an iSCSI name must not exceed {NAME_BYTES_MAX} bytes"));
    }
    if name.bytes().any(|b| b.is_ascii_uppercase()) {
        return Err(format!("write the iSCSI name in lower case: {}", name.to_lowercase()));
    }
    let is_invalid =
        |c: &char| !(c.is_ascii_lowercase() || c.is_ascii_digit() || ".-:".contains(*c));
    if let Some(invalid) = name.chars().find(is_invalid) {
        return Err(format!(
            "an iSCSI name consists of a-z, 0-9, `.`, `-` and `:`; {invalid:?} is not allowed"
        ));
    }
    match name.split_once('.') {
        Some(("iqn", rest)) => check_iqn(rest),
        Some(("eui", hex)) if is_hex(hex, &[16]) => Ok(()),
        Some(("eui", _)) => Err("`eui.` must be followed by 16 hexadecimal digits".to_owned()),
        Some(("naa", hex)) if is_hex(hex, &[16, 32]) => Ok(()),
        Some(("naa", _)) => {
            Err("`naa.` must be followed by 16 or 32 hexadecimal digits".to_owned())
        }
        _ => Err("an iSCSI name must begin with `iqn.`, `eui.` or `naa.`".to_owned()),
    }
}

/// Checks `yyyy-mm.reversed.domain[:anything]`. RFC 7143 §4.2.7.4.
fn check_iqn(rest: &str) -> Result<(), String> {
    const IQN_FORM: &str = "write iqn.YEAR-MONTH.REVERSED-DOMAIN[:NAME], for example \
                         iqn.2026-11.org.example:disk";
    let digits =
        |text: &str, count: usize| text.len() == count && text.bytes().all(|b| b.is_ascii_digit());
    let (date, rest) = rest.split_once('.').ok_or(IQN_FORM)?;
    let (year, month) = date.split_once('-').ok_or(IQN_FORM)?;
    let month_fits = digits(month, 2) && matches!(month.parse(), Ok(1..=12));
    if !digits(year, 4) || !month_fits {
        return Err(IQN_FORM.to_owned());
    }
    let authority = rest.split(':').next().unwrap_or_default();
    let labels_fit = authority.split('.').all(|label| !label.is_empty());
    if labels_fit { Ok(()) } else { Err(IQN_FORM.to_owned()) }
}

fn is_hex(text: &str, lengths: &[usize]) -> bool {
    lengths.contains(&text.len()) && text.bytes().all(|b| b.is_ascii_hexdigit())
}

/// Reads an address to listen on: `127.0.0.1:3260`, `[::1]:3260`, or without the port.
///
/// # Errors
/// Returns a text that says which forms are valid.
pub fn parse_listen(text: &str) -> Result<SocketAddr, String> {
    if let Ok(address) = text.parse::<SocketAddr>() {
        return Ok(address);
    }
    if let Some(port) = text.strip_prefix("localhost") {
        return parse_listen(&format!("127.0.0.1{port}"));
    }
    let bare = text.strip_prefix('[').and_then(|t| t.strip_suffix(']')).unwrap_or(text);
    match bare.parse::<IpAddr>() {
        Ok(address) => Ok(SocketAddr::new(address, PORT_DEFAULT)),
        Err(_) if text.parse::<u16>().is_ok() => Err(format!("write 127.0.0.1:{text}")),
        Err(_) => Err("write ADDRESS:PORT, for example 127.0.0.1:3260 or [::1]:3260".to_owned()),
    }
}

/// Checks that `text` is `host:port`, the form that initiators receive.
///
/// # Errors
/// Returns a text that says which form is valid.
pub fn check_advertised(text: &str) -> Result<(), String> {
    let is_allowed = |c: char| c.is_ascii_alphanumeric() || ".-_:[]".contains(c);
    if !text.chars().all(is_allowed)
        || !text.rsplit(']').next().is_some_and(|end| end.contains(':'))
    {
        return Err("write HOST:PORT, IPv6 as [ADDRESS]:PORT".to_owned());
    }
    lunar_initiator::parse_portal(text).map(|_| ()).map_err(|error| error.hint)
}

/// Checks that `text` is `host:port[,portal group tag]`, the form that a redirected initiator
/// receives.
///
/// # Errors
/// Returns a text that says which form is valid.
pub fn check_redirect(text: &str) -> Result<(), String> {
    let (address, tag) = text.split_once(',').unwrap_or((text, "1"));
    let tag_fits = tag.bytes().all(|b| b.is_ascii_digit()) && tag.parse::<u16>().is_ok();
    if !tag_fits {
        return Err("write HOST:PORT or HOST:PORT,PORTAL-GROUP-TAG".to_owned());
    }
    check_advertised(address)
}

/// Returns an error if `portal` overlaps one of the `others`: an address can be listened on once,
/// and the unspecified address includes all addresses of its family.
pub fn check_portal_overlap<'p>(
    mut others: impl Iterator<Item = &'p Portal>,
    portal: &Portal,
) -> Option<String> {
    let address = portal.listen;
    let overlaps = |other: &SocketAddr| {
        let is_wildcard = other.ip().is_unspecified() || address.ip().is_unspecified();
        other.ip() == address.ip() || (is_wildcard && other.is_ipv4() == address.is_ipv4())
    };
    let same_port = |other: &&Portal| other.listen.port() == address.port() && address.port() != 0;
    let other = others.find(|other| same_port(other) && overlaps(&other.listen))?.listen;
    Some(match other == address {
        true => format!("{address} is listed twice"),
        false => {
            format!("{address} and {other} overlap: one includes the other")
        }
    })
}

/// Hint for an address in two portal groups.
pub const PORTAL_GROUP_HINT: &str = "give both portals the same portal group, or other addresses";

/// Returns an error if one of the `others` advertises the address of `portal` in another portal
/// group. RFC 7143 §4.4.1 assigns every network portal to exactly one group.
pub fn check_one_portal_group<'p>(
    mut others: impl Iterator<Item = &'p Portal>,
    portal: &Portal,
) -> Option<String> {
    let advertised = portal.advertise.as_ref()?;
    let same = |other: &&Portal| other.advertise.as_ref() == Some(advertised);
    let other = others.find(|other| same(other) && other.portal_group != portal.portal_group)?;
    Some(format!(
        "{advertised} is already advertised for {}, in another portal group",
        other.listen
    ))
}

/// Whether `address` can be reached from this machine only.
pub fn is_loopback(address: &SocketAddr) -> bool {
    address.ip().to_canonical().is_loopback()
}

/// Checks that the devices support the block sizes.
///
/// # Errors
/// Returns a text that says which sizes are valid.
pub fn check_block_sizes(block_bytes: u64, physical_bytes: u64) -> Result<(), String> {
    if !matches!(block_bytes, 512 | 1024 | 2048 | 4096) {
        return Err("the block size must be 512, 1024, 2048 or 4096".to_owned());
    }
    let fits = physical_bytes.is_power_of_two()
        && (block_bytes..=u64::from(PHYSICAL_BLOCK_BYTES_MAX)).contains(&physical_bytes);
    if fits {
        Ok(())
    } else {
        Err(format!(
            "the physical block size must be a power of two from the block size ({block_bytes}) \
             to {PHYSICAL_BLOCK_BYTES_MAX}"
        ))
    }
}

/// Checks that the size is a whole number of blocks.
///
/// # Errors
/// Returns a text that says which sizes are valid.
pub fn check_size(bytes: u64, block_bytes: u32) -> Result<(), String> {
    if bytes == 0 || !bytes.is_multiple_of(block_bytes.into()) || i64::try_from(bytes).is_err() {
        return Err(format!(
            "the size must be a multiple of the block size, {block_bytes}, and not 0"
        ));
    }
    Ok(())
}

/// Reads a fill level, `90%`.
///
/// # Errors
/// Returns a text that says which values are valid.
pub fn parse_threshold(text: &str) -> Result<u8, String> {
    let number = text.trim().strip_suffix('%').and_then(|number| number.trim_end().parse().ok());
    number
        .filter(|percent| (1..=99).contains(percent))
        .ok_or_else(|| "write a percentage of the capacity, 1% to 99%, like 90%".to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names() {
        for name in [
            "iqn.2026-11.org.lunarsan:disk",
            "iqn.2001-04.com.example",
            "iqn.2001-04.com.example:storage:diskarrays-sn-a8675309",
            "eui.02004567a425678d",
            "naa.52004567ba64678d",
            "naa.62004567ba64678d0123456789abcdef",
        ] {
            assert_eq!(check_name(name), Ok(()), "{name}");
        }
        for name in [
            "",
            "disk",
            "iqn.",
            "iqn.2026.org",
            "iqn.2026-13.org.x",
            "iqn.2026-00.org",
            "iqn.26-11.org",
            "iqn.2026-11",
            "iqn.2026-11.",
            "iqn.2026-11.org..x",
            "iqn.2026-11.:x",
            "IQN.2026-11.org",
            "iqn.2026-11.org:a b",
            "iqn.2026-11.org:ä",
            "iqn.2026-11.org:a_b",
            "eui.1",
            "naa.1",
            "eui.02004567a425678g",
            "iqn.2026-+1.org",
        ] {
            assert!(check_name(name).is_err(), "{name}");
        }
        let long = format!("iqn.2026-11.org.x:{}", "a".repeat(205));
        assert_eq!(long.len(), 223);
        assert!(check_name(&long).is_ok());
        assert!(check_name(&format!("{long}a")).is_err());
    }

    #[test]
    fn addresses() {
        for (text, address) in [
            ("127.0.0.1:0", "127.0.0.1:0"),
            ("127.0.0.1", "127.0.0.1:3260"),
            ("::1", "[::1]:3260"),
            ("[::1]", "[::1]:3260"),
            ("[::]:1", "[::]:1"),
        ] {
            assert_eq!(parse_listen(text), Ok(address.parse().unwrap()), "{text}");
        }
        // Fault: `localhost` was refused.
        assert_eq!(parse_listen("localhost:9").unwrap().to_string(), "127.0.0.1:9");
        assert_eq!(parse_listen("localhost").unwrap().to_string(), "127.0.0.1:3260");
        assert!(parse_listen("localhost.example:3260").is_err());
        assert_eq!(parse_listen("3260").unwrap_err(), "write 127.0.0.1:3260");
        for text in ["192.0.2.7:3260", "san.example:860", "[2001:db8::1]:3260"] {
            assert_eq!(check_advertised(text), Ok(()), "{text}");
        }
        for text in ["", "host", "host:", "host:0", "a b:1", "a,b:1", "[::1]", "::1:3260", "x:y"] {
            assert!(check_advertised(text).is_err(), "{text}");
        }
        assert!(check_redirect("192.0.2.8:3260,2").is_ok());
        assert!(check_redirect("192.0.2.8:3260,x").is_err());
        assert!(is_loopback(&"[::ffff:127.0.0.1]:1".parse().unwrap()));
        assert!(!is_loopback(&"0.0.0.0:1".parse().unwrap()));
    }

    #[test]
    fn block_sizes() {
        assert!(check_block_sizes(512, 4096).is_ok());
        assert!(check_block_sizes(4096, 4096).is_ok());
        for (block, physical) in
            [(256, 4096), (520, 4096), (4096, 512), (512, 6000), (512, 1 << 17)]
        {
            assert!(check_block_sizes(block, physical).is_err(), "{block} {physical}");
        }
    }
}
