//! Where a daemon's API is.

use std::fmt;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};

/// Where a server listens or a client connects.
#[derive(Clone, Debug, Eq, PartialEq)]
pub enum Address {
    /// A socket in the file system.
    Unix(PathBuf),
    /// TCP; port 0 takes a free one.
    Tcp(SocketAddr),
}

impl Address {
    /// Reads `unix:PATH` or `ADDRESS:PORT`.
    ///
    /// # Errors
    /// A text that says what is wrong and what is meant.
    pub fn parse(text: &str) -> Result<Self, String> {
        if let Some(path) = text.strip_prefix("unix:") {
            return match path.is_empty() || path.contains('\0') {
                true => Err("`unix:` wants a path: unix:/run/lunar/api.sock".to_owned()),
                false => Ok(Self::Unix(path.into())),
            };
        }
        if text.starts_with('/') || text.starts_with("./") {
            return Err(format!("a path is written unix:{text}"));
        }
        text.parse().map(Self::Tcp).map_err(|_| {
            format!("`{text}` is no address: write unix:PATH, 127.0.0.1:9000 or [::1]:9000")
        })
    }

    /// Whether only this machine gets there.
    pub fn is_local(&self) -> bool {
        match self {
            Self::Unix(_) => true,
            Self::Tcp(address) => address.ip().to_canonical().is_loopback(),
        }
    }
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Unix(path) => write!(f, "unix:{}", path.display()),
            Self::Tcp(address) => write!(f, "{address}"),
        }
    }
}

/// Who listens: it gives the socket its name.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Purpose {
    /// `lunar target`, of which a machine has one: `api.sock`.
    Daemon,
    /// `lunar serve`, of which there may be many: each has a name of its own.
    Serve,
}

/// The socket of a server whose user names none: in `$RUNTIME_DIRECTORY` (which systemd makes),
/// else in a directory of ours in `$XDG_RUNTIME_DIR`, else in the state directory. `None`: there
/// is none of these.
pub fn default_socket(purpose: Purpose, state: Option<&Path>) -> Option<PathBuf> {
    let directory = runtime_directories().into_iter().next();
    let directory = directory.or_else(|| state.map(Path::to_owned))?;
    Some(directory.join(match purpose {
        Purpose::Daemon => "api.sock".to_owned(),
        Purpose::Serve => format!("serve-{}.sock", std::process::id()),
    }))
}

/// The directories for sockets that the environment names, best first.
pub(crate) fn runtime_directories() -> Vec<PathBuf> {
    let absolute = |variable| {
        let value = std::env::var_os(variable)?;
        // systemd joins several with colons; the first is the service's main one.
        let first = std::env::split_paths(&value).next()?;
        first.is_absolute().then_some(first)
    };
    let systemd = absolute("RUNTIME_DIRECTORY");
    let user = absolute("XDG_RUNTIME_DIR").map(|directory| directory.join("lunar"));
    systemd.into_iter().chain(user).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_read_and_told() {
        for text in ["unix:/run/lunar/api.sock", "unix:api.sock", "127.0.0.1:0", "[::1]:9000"] {
            assert_eq!(Address::parse(text).unwrap().to_string(), text);
        }
        for text in ["", "unix:", "/run/api.sock", "localhost:9000", "127.0.0.1", ":9000", "none"] {
            assert!(Address::parse(text).is_err(), "{text}");
        }
        for (text, local) in
            [("unix:x", true), ("127.9.9.9:1", true), ("[::ffff:127.0.0.1]:1", true)]
        {
            assert_eq!(Address::parse(text).unwrap().is_local(), local);
        }
        assert!(!Address::parse("0.0.0.0:1").unwrap().is_local());
    }
}
