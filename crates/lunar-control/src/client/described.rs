//! The API of the server that a configuration describes.

use super::find::{self, SearchPaths};
use crate::Failure;
use crate::config::ApiListen;
use crate::device_url::DeviceUrl;
use crate::http::{Address, runtime_directories};
use crate::identity;
use serde::Deserialize;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::path::{Path, PathBuf};

/// The API of the server of a configuration.
#[derive(Debug)]
pub struct DescribedApi {
    /// The address.
    pub address: Address,
    /// The server's certificate, for an API with TLS.
    pub certificate: Option<PathBuf>,
    /// File of the token, for an API that requires one.
    pub token_file: Option<PathBuf>,
}

/// The keys of a configuration that lead to its API. Only the server decides whether the other keys
/// are valid.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct ApiKeys {
    state: Option<PathBuf>,
    api: ApiTable,
    target: Vec<TargetKeys>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct ApiTable {
    listen: Option<String>,
    token_file: Option<PathBuf>,
    tls: Option<TlsTable>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct TlsTable {
    certificate_file: Option<PathBuf>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct TargetKeys {
    lun: Vec<LunKeys>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct LunKeys {
    device: Option<String>,
}

/// Finds the running server of the configuration `text`, which was read from `file`: at its `[api]`
/// address, else in the directories where a server without one creates its socket.
///
/// # Errors
/// Fails if the configuration has no API, or as [`find`](find::find).
pub fn find_described(text: &str, file: &Path) -> Result<DescribedApi, Failure> {
    // In a text that is no configuration, nothing is found; the server reports what is wrong.
    let keys: ApiKeys = toml::from_str(text).unwrap_or_default();
    let file = std::path::absolute(file).unwrap_or_else(|_| file.to_owned());
    let base = file.parent().unwrap_or(Path::new("/"));
    let whole = |path: &PathBuf| base.join(path);
    let listen = keys.api.listen.as_deref().map(ApiListen::parse);
    let address = match listen.and_then(Result::ok).unwrap_or_default() {
        ApiListen::Disabled => {
            let what = format!("{} disables the API of its server", file.display());
            return Err(Failure::new(what).hint(
                "remove `listen = \"none\"` from [api] and restart the server, or send it SIGHUP \
                 to apply its configuration",
            ));
        }
        ApiListen::At(Address::Tcp(address)) if address.port() != 0 => {
            Address::Tcp(client_address(address))
        }
        ApiListen::At(Address::Unix(path)) => {
            find::find_in(&SearchPaths { sockets: vec![whole(&path)], ..Default::default() })?
        }
        ApiListen::Default | ApiListen::At(Address::Tcp(_)) => {
            let mut trusted = runtime_directories();
            trusted.extend(find::SYSTEM_DIRECTORIES.map(PathBuf::from));
            let state = keys.state.as_ref().map(whole);
            let shared = match &state {
                Some(_) => Vec::new(),
                None => device_state_directories(&keys, base),
            };
            trusted.extend(state);
            find::find_in(&SearchPaths { trusted, shared, sockets: Vec::new() })?
        }
    };
    let tls = keys.api.tls.unwrap_or_default();
    Ok(DescribedApi {
        address,
        certificate: tls.certificate_file.as_ref().map(whole),
        token_file: keys.api.token_file.as_ref().map(whole),
    })
}

/// The state directories next to the files of the LUNs.
fn device_state_directories(keys: &ApiKeys, base: &Path) -> Vec<PathBuf> {
    let luns = keys.target.iter().flat_map(|target| &target.lun);
    let devices = luns.filter_map(|lun| DeviceUrl::parse(lun.device.as_deref()?).ok());
    let files = devices.filter_map(|device| device.path().map(|path| base.join(path)));
    files.filter_map(|file| identity::directory(&file, None, None).ok()).collect()
}

/// The address at which a client on this machine reaches a socket that listens on `address`.
pub fn client_address(address: SocketAddr) -> SocketAddr {
    let ip = match address.ip() {
        IpAddr::V4(ip) if ip.is_unspecified() => Ipv4Addr::LOCALHOST.into(),
        IpAddr::V6(ip) if ip.is_unspecified() => Ipv6Addr::LOCALHOST.into(),
        ip => ip,
    };
    SocketAddr::new(ip, address.port())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal: an API over TCP is used with its certificate and token, a disabled one is explained.
    #[test]
    fn the_api_of_a_configuration_is_used() {
        let text = "[api]\nlisten = \"0.0.0.0:9000\"\ntoken_file = \"token\"\n\
                    tls = { certificate_file = \"/c.pem\", key_file = \"k.pem\" }\nunknown = 1\n";
        let found = find_described(text, Path::new("/etc/lunar/lunar.toml")).unwrap();
        assert_eq!(found.address.to_string(), "127.0.0.1:9000");
        assert_eq!(found.certificate, Some("/c.pem".into()));
        assert_eq!(found.token_file, Some("/etc/lunar/token".into()));
        let none = find_described("[api]\nlisten = \"none\"\n", Path::new("lunar.toml"));
        assert!(none.unwrap_err().what.contains("disables the API"));
        let unavailable =
            find_described("[api]\nlisten = \"unix:no.sock\"\n", Path::new("/no/a.toml"));
        let unavailable = unavailable.unwrap_err();
        assert!(unavailable.what.contains("no running server was found"), "{unavailable}");
        assert!(unavailable.what.contains("unix:/no/no.sock"), "{unavailable}");
    }
}
