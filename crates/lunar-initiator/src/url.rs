//! `iscsi://` URLs of a portal, or of a LUN of a target, in the form of libiscsi and QEMU but
//! without secrets.

use lunar_iscsi::text::Digest;
use std::fmt;
use std::str::FromStr;

/// Default port of iSCSI. RFC 7143 §4.2.7; IANA.
pub const PORT_DEFAULT: u16 = 3260;
/// The longest iSCSI name in bytes. RFC 7143 §4.2.7.1.
pub const NAME_BYTES_MAX: usize = 223;
const SCHEME: &str = "iscsi://";

/// `iscsi://[user@]host[:port][/target/lun][?header_digest=…&data_digest=…]`.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Url {
    /// CHAP user, if named.
    pub user: Option<String>,
    /// Host name or address; IPv6 without brackets.
    pub host: String,
    /// TCP port.
    pub port: u16,
    /// The LUN; `None` in the URL of a portal.
    pub unit: Option<UnitPath>,
    /// The HeaderDigest that must be negotiated.
    pub header_digest: Option<Digest>,
    /// The DataDigest that must be negotiated.
    pub data_digest: Option<Digest>,
}

/// A LUN of a target.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct UnitPath {
    /// iSCSI name of the target.
    pub target: String,
    /// 0 to 16,383.
    pub lun: u16,
}

/// A malformed URL, with a hint. Never repeats text that may be a secret.
#[derive(Clone, Debug, Eq, PartialEq, thiserror::Error)]
#[error("{what}")]
pub struct UrlError {
    /// The mistake.
    pub what: String,
    /// The remedy.
    pub hint: String,
}

fn wrong(what: impl Into<String>, hint: impl Into<String>) -> UrlError {
    UrlError { what: what.into(), hint: hint.into() }
}

impl Url {
    /// True when `text` begins with `iscsi://`, in upper or lower case.
    pub fn has_scheme(text: &str) -> bool {
        text.get(..SCHEME.len()).is_some_and(|start| start.eq_ignore_ascii_case(SCHEME))
    }

    /// Returns `host:port`, with an IPv6 address in brackets.
    pub fn portal(&self) -> String {
        portal_text(&self.host, self.port)
    }
}

impl FromStr for Url {
    type Err = UrlError;

    fn from_str(text: &str) -> Result<Self, UrlError> {
        // Checked first, so that no message below can repeat a secret.
        refuse_secret(text)?;
        if !Self::has_scheme(text) {
            return Err(wrong(
                format!("`{text}` does not begin with {SCHEME}"),
                "write iscsi://HOST[:PORT] or iscsi://HOST[:PORT]/TARGET/LUN",
            ));
        }
        if let Some(character) = text.chars().find(|c| c.is_whitespace() || c.is_control()) {
            return Err(wrong(
                format!("the URL contains the character {character:?}"),
                "remove spaces and control characters",
            ));
        }
        let rest = &text[SCHEME.len()..];
        let (rest, query) = match rest.split_once('?') {
            Some((rest, query)) => (rest, query),
            None => (rest, ""),
        };
        let (authority, path) = match rest.split_once('/') {
            Some((authority, path)) => (authority, path),
            None => (rest, ""),
        };
        let (user, portal) = match authority.rsplit_once('@') {
            Some(("", _)) => return Err(wrong("the user before @ is empty", "write USER@HOST")),
            Some((user, portal)) => (Some(user.to_owned()), portal),
            None => (None, authority),
        };
        let (host, port) = parse_portal(portal)?;
        let unit = if path.is_empty() { None } else { Some(parse_unit(path)?) };
        let mut url = Self { user, host, port, unit, header_digest: None, data_digest: None };
        for option in query.split('&').filter(|option| !option.is_empty()) {
            url.set_option(option)?;
        }
        Ok(url)
    }
}

/// Refuses secrets: libiscsi's form `user%secret@` would put them into process lists and shell
/// histories.
fn refuse_secret(text: &str) -> Result<(), UrlError> {
    let authority = text.split_once("://").map_or(text, |(_, rest)| rest);
    let user = match authority.rfind('@') {
        Some(at) => &authority[..at],
        // `%` in brackets begins the zone of a link-local address.
        None if authority.starts_with('[') => "",
        None => authority.split(['/', '?']).next().unwrap_or_default(),
    };
    if user.contains('%') || (authority.contains('@') && user.contains(':')) {
        return Err(wrong(
            "the URL contains a secret, which other users of this machine could read",
            "write only USER@ and give the secret with --chap-secret-file FILE or in the \
             environment variable LUNAR_CHAP_SECRET",
        ));
    }
    Ok(())
}

impl Url {
    fn set_option(&mut self, option: &str) -> Result<(), UrlError> {
        let (key, value) = option.split_once('=').unwrap_or((option, ""));
        let slot = match key {
            "header_digest" => &mut self.header_digest,
            "data_digest" => &mut self.data_digest,
            _ => {
                return Err(wrong(
                    format!("unknown option `{key}` in the URL"),
                    "the options are header_digest and data_digest",
                ));
            }
        };
        if slot.is_some() {
            return Err(wrong(format!("`{key}` is given twice in the URL"), "remove one"));
        }
        *slot = Some(match value.to_ascii_lowercase().as_str() {
            "crc32c" => Digest::Crc32c,
            "none" => Digest::None,
            _ => {
                return Err(wrong(
                    format!("invalid value of {key}: `{value}`"),
                    "write crc32c or none",
                ));
            }
        });
        Ok(())
    }
}

/// Parses `host`, `host:port`, `[v6]` or `[v6]:port`.
///
/// # Errors
/// The mistake, and the accepted form.
pub fn parse_portal(text: &str) -> Result<(String, u16), UrlError> {
    let (host, port) = match text.strip_prefix('[') {
        Some(rest) => {
            let (host, rest) = rest.split_once(']').ok_or_else(|| {
                wrong(format!("`{text}`: the bracket is not closed"), "write [2001:db8::1]:3260")
            })?;
            let address = host.split('%').next().unwrap_or_default();
            if address.parse::<std::net::Ipv6Addr>().is_err() {
                return Err(wrong(
                    format!("`{host}` is not an IPv6 address"),
                    "use brackets only for IPv6 addresses",
                ));
            }
            match rest.strip_prefix(':') {
                Some(port) => (host, Some(port)),
                None if rest.is_empty() => (host, None),
                None => {
                    return Err(wrong(
                        format!("unexpected `{rest}` after the bracket"),
                        "write [ADDRESS]:PORT",
                    ));
                }
            }
        }
        None if text.matches(':').count() > 1 => {
            return Err(wrong(
                format!("`{text}`: an IPv6 address without brackets"),
                "write [ADDRESS] or [ADDRESS]:PORT, for example [2001:db8::1]:3260",
            ));
        }
        None => match text.split_once(':') {
            Some((host, port)) => (host, Some(port)),
            None => (text, None),
        },
    };
    if host.is_empty() {
        return Err(wrong("the host is missing", "write HOST or HOST:PORT"));
    }
    let port = match port {
        None => PORT_DEFAULT,
        Some(port) => match port.parse() {
            Ok(port) if port != 0 && port_is_plain(text) => port,
            _ => {
                return Err(wrong(
                    format!("`{port}` is not a port"),
                    "write a port from 1 to 65535",
                ));
            }
        },
    };
    Ok((host.to_owned(), port))
}

/// True when the port has only digits: `parse` alone would accept `+3260`.
fn port_is_plain(text: &str) -> bool {
    text.rsplit(':').next().is_some_and(|port| port.bytes().all(|b| b.is_ascii_digit()))
}

fn parse_unit(path: &str) -> Result<UnitPath, UrlError> {
    let Some((target, lun)) = path.split_once('/') else {
        return Err(wrong(
            format!("the URL contains the target {path} but no LUN"),
            "write iscsi://HOST/TARGET/LUN, for example …/0",
        ));
    };
    let target = decode(target)?;
    if target.is_empty() || target.len() > NAME_BYTES_MAX {
        return Err(wrong(
            format!("a target name must have 1 to {NAME_BYTES_MAX} bytes"),
            "write iscsi://HOST/TARGET/LUN",
        ));
    }
    let lun = decode(lun)?;
    match lun.parse::<u16>() {
        Ok(number) if number <= lunar_wire::Lun::UNIT_MAX && !lun.starts_with('+') => {
            Ok(UnitPath { target, lun: number })
        }
        _ => Err(wrong(
            format!("`{lun}` is not a LUN"),
            format!("write a LUN from 0 to {}", lunar_wire::Lun::UNIT_MAX),
        )),
    }
}

/// Decodes escapes such as `%3A`, as libiscsi and QEMU do (RFC 3986).
fn decode(text: &str) -> Result<String, UrlError> {
    let mut bytes = Vec::with_capacity(text.len());
    let mut parts = text.split('%');
    bytes.extend(parts.next().unwrap_or_default().bytes());
    let invalid = || {
        wrong(
            format!("`{text}` contains an invalid escape"),
            "write % and two hexadecimal digits, %3A for a colon, %25 for %",
        )
    };
    for part in parts {
        let digits = part.get(..2).filter(|two| two.bytes().all(|b| b.is_ascii_hexdigit()));
        let byte = digits.and_then(|two| u8::from_str_radix(two, 16).ok()).ok_or_else(invalid)?;
        bytes.push(byte);
        bytes.extend(part.bytes().skip(2));
    }
    let decoded = String::from_utf8(bytes).map_err(|_| invalid())?;
    match decoded.chars().any(|c| c.is_whitespace() || c.is_control()) {
        true => Err(invalid()),
        false => Ok(decoded),
    }
}

/// Escapes the characters of a target name that have a meaning in a URL.
fn encode(target: &str) -> String {
    target.chars().fold(String::new(), |mut text, character| {
        match character {
            '%' | '/' | '?' | '#' | '@' => text.push_str(&format!("%{:02X}", character as u32)),
            _ => text.push(character),
        }
        text
    })
}

/// Formats `host:port`, with an IPv6 address in brackets.
pub fn portal_text(host: &str, port: u16) -> String {
    if host.contains(':') { format!("[{host}]:{port}") } else { format!("{host}:{port}") }
}

impl fmt::Display for Url {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(SCHEME)?;
        if let Some(user) = &self.user {
            write!(f, "{user}@")?;
        }
        f.write_str(&self.portal())?;
        if let Some(unit) = &self.unit {
            write!(f, "/{}/{}", encode(&unit.target), unit.lun)?;
        }
        let mut separator = '?';
        for (key, digest) in
            [("header_digest", self.header_digest), ("data_digest", self.data_digest)]
        {
            if let Some(digest) = digest {
                let value = if digest == Digest::Crc32c { "crc32c" } else { "none" };
                write!(f, "{separator}{key}={value}")?;
                separator = '&';
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal: a URL is parsed and formatted back to the same text. Method: one URL of each form.
    #[test]
    fn every_form_is_parsed_and_formatted_unchanged() {
        for text in [
            "iscsi://127.0.0.1:3260",
            "iscsi://[2001:db8::1]:3260",
            "iscsi://san.example:860/iqn.2026-11.org.example:vm/0",
            "iscsi://vm@[::1]:3260/iqn.2026-11.org.example:vm/16383",
            "iscsi://h:1/t/1?header_digest=crc32c",
            "iscsi://h:1/t/1?header_digest=none&data_digest=crc32c",
            "iscsi://[fe80::1%eth0]:3260",
        ] {
            let url: Url = text.parse().unwrap_or_else(|e| panic!("{text}: {e}"));
            assert_eq!(url.to_string(), text);
        }
    }

    #[test]
    fn omitted_parts_have_defaults() {
        let url: Url = "iscsi://[::1]/iqn.2026-11.org.example:vm/7".parse().unwrap();
        assert_eq!((url.host.as_str(), url.port), ("::1", 3260));
        assert_eq!(url.unit.unwrap().lun, 7);
        assert_eq!("iscsi://host/".parse::<Url>().unwrap().unit, None);
    }

    /// Goal: escapes are decoded, as libiscsi and QEMU do, and a decoded name is formatted so that
    /// it is parsed to the same name.
    #[test]
    fn escapes_are_decoded() {
        let url: Url = "iscsi://host/iqn.2026-11.org.example%3avm%2Fa/%37".parse().unwrap();
        let unit = url.unit.clone().unwrap();
        assert_eq!((unit.target.as_str(), unit.lun), ("iqn.2026-11.org.example:vm/a", 7));
        let text = url.to_string();
        assert_eq!(text, "iscsi://host:3260/iqn.2026-11.org.example:vm%2Fa/7");
        assert_eq!(text.parse::<Url>().unwrap(), url);
    }

    #[test]
    fn malformed_urls_are_refused() {
        for text in [
            "iscsi://host/target%/0",
            "iscsi://host/target%3/0",
            "iscsi://host/target%+1/0",
            "iscsi://host/target%0A/0",
            "iscsi://host/target%20/0",
            "iscsi://host/target%ff/0",
            "iscsi://host/target%é/0",
            "",
            "iscsi://",
            "http://host",
            "iscsi:host",
            "iscsi://host:0",
            "iscsi://host:+1",
            "iscsi://host:70000",
            "iscsi://::1",
            "iscsi://[::1",
            "iscsi://[host]",
            "iscsi://[::1]x",
            "iscsi://host/target",
            "iscsi://host//0",
            "iscsi://host/target/x",
            "iscsi://host/target/16384",
            "iscsi://host/target/+1",
            "iscsi://host/target/0/1",
            "iscsi://host?x=1",
            "iscsi://host?header_digest=md5",
            "iscsi://@host",
            "iscsi://host?data_digest=none&data_digest=none",
            "iscsi://ho st",
            "iscsi://host\n",
        ] {
            assert!(text.parse::<Url>().is_err(), "{text:?}");
        }
    }

    /// Goal: a secret in a URL is refused, and the message does not repeat it.
    #[test]
    fn secrets_are_refused_and_not_repeated() {
        for text in [
            "iscsi://user%hunter2hunter2@host/target/0",
            "iscsi://user:hunter2hunter2@host/target/0",
            "iscsi://user%hunter2/hunter2@host/target/0",
            "iscsi://user%hunter2hunter2",
            "ISCSI://user%hunter2hunter2@host",
            "user%hunter2hunter2@host",
        ] {
            let error = text.parse::<Url>().unwrap_err();
            assert!(!format!("{error} {} {error:?}", error.hint).contains("hunter2"), "{text}");
            assert!(error.hint.contains("--chap-secret-file"), "{text}");
        }
    }
}
