//! CHAP secrets: read from files or the environment, never from the command line, never shown.

use crate::Failure;
use crate::small_file::{self, Readable};
use lunar_iscsi::login::{ChapAlgorithm, ChapRequirement, Credential, Secret};
use std::os::unix::fs::MetadataExt;
use std::path::Path;

/// Environment variable for a secret, used if there is no file.
pub const SECRET_VARIABLE: &str = "LUNAR_CHAP_SECRET";
/// Minimum length, 96 bits: shorter secrets can be guessed. RFC 7143 §9.2.1.
pub const SECRET_BYTES_MIN: usize = 12;
/// Maximum length; a longer file is taken for a mistake.
const SECRET_BYTES_MAX: usize = 1024;
/// Supported algorithms, strongest first.
pub const ALGORITHMS: [(ChapAlgorithm, &str); 4] = [
    (ChapAlgorithm::Sha3_256, "sha3-256"),
    (ChapAlgorithm::Sha256, "sha-256"),
    (ChapAlgorithm::Sha1, "sha-1"),
    (ChapAlgorithm::Md5, "md5"),
];

/// Reads a secret from a file. One trailing end of line is not part of it.
///
/// A file that other users may read causes a warning, not an error: containers often mount secrets
/// with such a mode.
///
/// # Errors
/// Fails if the file cannot be read, is empty, or is too long for a secret.
pub fn read_file(path: &Path) -> Result<Secret, Failure> {
    read(path, Readable::Any)
}

pub(crate) fn read(path: &Path, readable: Readable) -> Result<Secret, Failure> {
    let failed = |error: std::io::Error| {
        Failure::new(format!("cannot read the secret file {}: {error}", path.display()))
            .hint(hint_of(error.kind()))
    };
    let (mut bytes, metadata) =
        small_file::read(path, SECRET_BYTES_MAX as u64 + 3, readable).map_err(failed)?;
    if metadata.is_file() && metadata.mode() & 0o077 != 0 {
        tracing::warn!("{} is readable by other users: run chmod 600 on it", path.display());
    }
    if bytes.last() == Some(&b'\n') {
        bytes.pop();
        if bytes.last() == Some(&b'\r') {
            bytes.pop();
        }
    }
    let whose = format!("the secret file {}", path.display());
    checked(bytes, &whose)
}

/// Returns what to do about a secret file that cannot be read. An existing file is not to be
/// replaced: initiators have its secret.
fn hint_of(kind: std::io::ErrorKind) -> &'static str {
    match kind {
        std::io::ErrorKind::NotFound => {
            "create one with: (umask 077; head -c 12 /dev/urandom | base64 > FILE)"
        }
        std::io::ErrorKind::PermissionDenied => {
            "make it readable for this user only: chown USER FILE; chmod 600 FILE"
        }
        _ => "name a file that contains the secret",
    }
}

/// The secret for `--chap-user`: from the file if one is named, else from the environment.
///
/// # Errors
/// Fails if neither is present; else same as [`read_file`].
pub fn from_file_or_environment(path: Option<&Path>) -> Result<Secret, Failure> {
    if let Some(path) = path {
        return read_file(path);
    }
    match std::env::var_os(SECRET_VARIABLE) {
        Some(value) => {
            use std::os::unix::ffi::OsStringExt;
            checked(value.into_vec(), SECRET_VARIABLE)
        }
        None => Err(Failure::usage("the CHAP user has no secret").hint(format!(
            "give --chap-secret-file FILE, or set the environment variable {SECRET_VARIABLE}"
        ))),
    }
}

fn checked(bytes: Vec<u8>, whose: &str) -> Result<Secret, Failure> {
    if bytes.is_empty() {
        return Err(Failure::new(format!("{whose} is empty")));
    }
    if bytes.len() > SECRET_BYTES_MAX {
        return Err(Failure::new(format!("{whose} is longer than {SECRET_BYTES_MAX} bytes")));
    }
    Ok(Secret::new(bytes))
}

/// Required length of secrets.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Lengths {
    /// 96 bits or more.
    Safe,
    /// Any length, by request of the user.
    Any,
}

impl Lengths {
    /// The lengths for an option `allow_short_secrets`.
    pub fn of(allow_short: bool) -> Self {
        if allow_short { Self::Any } else { Self::Safe }
    }
}

/// Refuses secrets shorter than 96 bits, unless any length is permitted. RFC 7143 §9.2.1.
///
/// # Errors
/// Returns the error and its remedy, without the secret.
pub fn check_length(secret: &Secret, lengths: Lengths) -> Result<(), Failure> {
    if lengths == Lengths::Any || secret.expose().len() >= SECRET_BYTES_MIN {
        return Ok(());
    }
    Err(Failure::new(format!("the CHAP secret is shorter than {SECRET_BYTES_MIN} bytes (96 bits)"))
        .hint(
            "create a longer one with: head -c 12 /dev/urandom | base64 > FILE; or accept the \
             short one, which can be guessed, with --allow-short-secrets (in a configuration: \
             allow_short_secrets)",
        ))
}

/// Checks that both directions use different secrets, as otherwise the response of one could be
/// replayed in the other. RFC 7143 §9.2.1.
///
/// # Errors
/// Fails if both secrets are the same.
pub fn check_mutual(initiator: &Secret, target: &Secret) -> Result<(), Failure> {
    if initiator != target {
        return Ok(());
    }
    Err(Failure::new("the mutual CHAP secret is the same as the secret of an initiator")
        .hint("give the target a secret that no initiator uses"))
}

/// A requirement with every supported algorithm, strongest first.
pub fn chap_requirement(initiator: Credential, target: Option<Credential>) -> ChapRequirement {
    let algorithms = ALGORITHMS.iter().map(|(algorithm, _)| *algorithm).collect();
    ChapRequirement { algorithms, initiator, target }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::path::PathBuf;

    fn file(name: &str, content: &[u8]) -> PathBuf {
        let path =
            std::env::temp_dir().join(format!("lunar-secrets-{}-{name}", std::process::id()));
        std::fs::write(&path, content).unwrap();
        path
    }

    /// Goal: one newline at the end, as editors write it, is removed; spaces at the end and binary
    /// bytes are kept.
    #[test]
    fn one_end_of_line_is_stripped_and_nothing_else() {
        for (name, content, secret) in [
            ("plain", &b"twelve bytes"[..], &b"twelve bytes"[..]),
            ("newline", b"twelve bytes\n", b"twelve bytes"),
            ("dos", b"twelve bytes\r\n", b"twelve bytes"),
            ("two", b"twelve bytes\n\n", b"twelve bytes\n"),
            ("space", b" twelve bytes ", b" twelve bytes "),
            ("binary", b"\xff\x00\xfe", b"\xff\x00\xfe"),
        ] {
            let path = file(name, content);
            assert_eq!(read_file(&path).unwrap().expose(), secret, "{name}");
            std::fs::remove_file(path).unwrap();
        }
    }

    /// Goal: only a file that does not exist is created: another one may contain a secret in use.
    #[test]
    fn a_secret_in_use_is_not_replaced() {
        use std::io::ErrorKind::{IsADirectory, NotFound, PermissionDenied};
        assert!(hint_of(NotFound).contains("> FILE"));
        assert!(hint_of(PermissionDenied).contains("chmod"));
        for kind in [PermissionDenied, IsADirectory] {
            assert!(!hint_of(kind).contains("> FILE"), "{kind}");
        }
    }

    #[test]
    fn invalid_secrets_are_refused() {
        for (name, content) in [("empty", &b"\n"[..]), ("long", &[b'x'; 2000][..])] {
            let path = file(name, content);
            assert!(read_file(&path).is_err(), "{name}");
            std::fs::remove_file(path).unwrap();
        }
        assert!(read_file(Path::new("/nonexistent/secret")).is_err());
        let short = Secret::new(*b"eleven byte");
        assert!(check_length(&short, Lengths::Safe).is_err());
        assert!(check_length(&short, Lengths::of(true)).is_ok());
        assert!(check_length(&Secret::new(*b"twelve bytes"), Lengths::of(false)).is_ok());
        let one = Secret::new(*b"twelve bytes");
        assert!(check_mutual(&one, &one.clone()).is_err());
    }
}
