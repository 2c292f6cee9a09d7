//! Addresses of the API.

use std::fmt;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};

/// An address that a server listens on or a client connects to.
#[derive(Clone, Debug, Eq, PartialEq)]
pub enum Address {
    /// A unix socket in the file system.
    Unix(PathBuf),
    /// A TCP address; port 0 selects a free port.
    Tcp(SocketAddr),
}

impl Address {
    /// Reads `unix:PATH` or `ADDRESS:PORT`.
    ///
    /// # Errors
    /// Returns a text that says what is wrong and which forms are valid.
    pub fn parse(text: &str) -> Result<Self, String> {
        if let Some(path) = text.strip_prefix("unix:") {
            return match path.is_empty() || path.contains('\0') {
                true => Err("`unix:` requires a path: unix:/run/lunar/api.sock".to_owned()),
                false => Ok(Self::Unix(path.into())),
            };
        }
        if text.starts_with('/') || text.starts_with("./") {
            return Err(format!("write a path as unix:{text}"));
        }
        text.parse().map(Self::Tcp).map_err(|_| {
            format!("`{text}` is not an address: write unix:PATH, 127.0.0.1:9000 or [::1]:9000")
        })
    }

    /// Whether only this machine can reach the address.
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

/// Default socket paths, best first, for servers without a configured one: in `$RUNTIME_DIRECTORY`
/// (created by systemd), else in `$XDG_RUNTIME_DIR/lunar`, else in the state directory. Empty if
/// there is none of these.
///
/// In a runtime directory, `lunar target` uses `api.sock`, and each `lunar serve` uses a name of
/// its own. In a state directory, which belongs to one server, that server uses `api.sock`. A
/// server that finds `api.sock` in use takes a name of its own too.
pub fn default_sockets(is_daemon: bool, state: Option<&Path>) -> Vec<PathBuf> {
    let runtime = runtime_directories().into_iter().next();
    let uses_api_sock = is_daemon || runtime.is_none();
    let Some(directory) = runtime.or_else(|| state.map(Path::to_owned)) else {
        return Vec::new();
    };
    let own = directory.join(format!("{PROCESS_SOCKET_PREFIX}{}.sock", std::process::id()));
    if uses_api_sock { vec![directory.join("api.sock"), own] } else { vec![own] }
}

const PROCESS_SOCKET_PREFIX: &str = "serve-";

/// Whether the path has the name of a socket of a single process.
pub(super) fn is_process_socket(path: &Path) -> bool {
    let name = path.file_name().and_then(|name| name.to_str()).unwrap_or_default();
    let number =
        name.strip_prefix(PROCESS_SOCKET_PREFIX).and_then(|rest| rest.strip_suffix(".sock"));
    number.is_some_and(|number| number.parse::<u32>().is_ok())
}

/// Directories for sockets, from the environment, best first.
pub(crate) fn runtime_directories() -> Vec<PathBuf> {
    let absolute = |variable| {
        let value = std::env::var_os(variable)?;
        // systemd joins several directories with colons; the first is the service's main one.
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
    fn addresses_round_trip() {
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
