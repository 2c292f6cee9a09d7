//! Options of a server's API: its address, TLS and token.

use crate::auth::Token;
use crate::daemon::Daemon;
use crate::http::{Address, BoundServer, HttpLimits, HttpOptions, HttpServer, default_sockets};
use crate::renewal::{ApiFiles, Slot};
use crate::tls::TlsFiles;
use crate::{Failure, api};
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// The address of the API.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub enum ApiListen {
    /// A unix socket at a default path, if one can be created.
    #[default]
    Default,
    /// No API.
    Nowhere,
    /// At this address.
    At(Address),
}

impl ApiListen {
    /// Reads `unix:PATH`, `ADDRESS:PORT` or `none`.
    ///
    /// # Errors
    /// Returns a text that says what is wrong and which forms are valid.
    pub fn parse(text: &str) -> Result<Self, String> {
        if text == "none" { Ok(Self::Nowhere) } else { Address::parse(text).map(Self::At) }
    }
}

/// The API settings of a configuration or command line.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct ApiOptions {
    /// The address.
    pub listen: ApiListen,
    /// TLS certificate and key, for TCP.
    pub tls: Option<TlsFiles>,
    /// File of the required token, for TCP.
    pub token_file: Option<PathBuf>,
}

impl ApiOptions {
    /// Refuses settings that would give access to more clients than intended.
    ///
    /// # Errors
    /// Returns the error and its remedy.
    pub fn check(&self) -> Result<(), (String, String)> {
        let wrong = |what: String, hint: &str| Err((what, hint.to_owned()));
        match &self.listen {
            ApiListen::At(address @ Address::Tcp(_)) => {
                let proven = self.tls.is_some() && self.token_file.is_some();
                if !address.is_local() && !proven {
                    return wrong(
                        format!("other machines can reach an API at {address}"),
                        "configure both TLS (a certificate and its key) and a token file",
                    );
                }
                Ok(())
            }
            _ if self.tls.is_some() || self.token_file.is_some() => wrong(
                "TLS and a token require an API over TCP".to_owned(),
                "use an address and a port, or omit TLS and the token: a unix socket is protected \
                 by its file mode",
            ),
            _ => Ok(()),
        }
    }
}

/// An API that is bound to its address.
pub struct BoundApi {
    bound: BoundServer,
    files: ApiFiles,
}

impl ApiOptions {
    /// Binds the API to its address; `None`: no API. A default address that cannot be bound is only
    /// logged: the disks are served anyway. `is_daemon`: this server is the daemon of its machine
    /// rather than one of many. `state`: the directory to fall back to.
    ///
    /// # Errors
    /// Fails if an explicitly configured address, certificate or token cannot be used.
    pub fn bind(&self, is_daemon: bool, state: Option<&Path>) -> Result<Option<BoundApi>, Failure> {
        let address = match &self.listen {
            ApiListen::Nowhere => return Ok(None),
            ApiListen::At(address) => address.clone(),
            ApiListen::Default => return Ok(bind_default(is_daemon, state)),
        };
        self.check().map_err(|(what, hint)| Failure::usage(what).hint(hint))?;
        let token = self.token_file.as_deref().map(Token::read).transpose()?;
        let http = HttpOptions { address, tls: self.tls.clone(), limits: HttpLimits::default() };
        Ok(Some(BoundApi::new(BoundServer::bind(http)?, self.clone(), token)))
    }
}

impl BoundApi {
    fn new(bound: BoundServer, options: ApiOptions, token: Option<Token>) -> Self {
        let files = ApiFiles { options, tls: bound.tls(), token: Slot::new(token) };
        Self { bound, files }
    }

    /// The address it is bound to, with the actual port.
    pub fn address(&self) -> &Address {
        self.bound.address()
    }

    /// Serves the API over `daemon`, which has just started.
    ///
    /// # Errors
    /// Fails if the system cannot create a thread.
    pub fn serve(self, daemon: Arc<Daemon>) -> Result<HttpServer, Failure> {
        let router = api::router_with(Arc::clone(&daemon), Arc::clone(&self.files.token));
        daemon.renew_with(self.files);
        self.bound.serve(router)
    }
}

fn bind_default(is_daemon: bool, state: Option<&Path>) -> Option<BoundApi> {
    let mut why = "there is neither a runtime directory nor a state directory".to_owned();
    for path in default_sockets(is_daemon, state) {
        let address = Address::Unix(path);
        let http = HttpOptions { address, tls: None, limits: HttpLimits::default() };
        match BoundServer::bind(http) {
            Ok(bound) => return Some(BoundApi::new(bound, ApiOptions::default(), None)),
            Err(failure) => why = failure.to_string(),
        }
    }
    tracing::info!("the API for `lunar ctl` is disabled: {why}");
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal: an address that other machines reach requires TLS and a token; a socket requires
    /// neither.
    #[test]
    fn what_others_reach_is_protected() {
        let options = |listen: &str, tls: bool, token: bool| ApiOptions {
            listen: ApiListen::parse(listen).unwrap(),
            tls: tls.then(|| TlsFiles { certificate: "c".into(), key: "k".into() }),
            token_file: token.then(|| "t".into()),
        };
        for (listen, tls, token, fine) in [
            ("none", false, false, true),
            ("unix:a", false, false, true),
            ("unix:a", true, false, false),
            ("unix:a", false, true, false),
            ("none", false, true, false),
            ("127.0.0.1:0", false, false, true),
            ("127.0.0.1:0", false, true, true),
            ("[::1]:0", true, true, true),
            ("0.0.0.0:0", false, false, false),
            ("0.0.0.0:0", true, false, false),
            ("192.0.2.1:9000", false, true, false),
            ("[::]:9000", true, true, true),
        ] {
            assert_eq!(options(listen, tls, token).check().is_ok(), fine, "{listen} {tls} {token}");
        }
        assert!(ApiListen::parse("nowhere").is_err());
    }
}
