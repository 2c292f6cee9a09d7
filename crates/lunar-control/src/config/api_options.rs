//! Settings of a server's API: its address, TLS and token.

use crate::http::Address;
use crate::tls::TlsFiles;
use std::path::PathBuf;

/// The address of the API.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub enum ApiListen {
    /// A unix socket at a default path, if one can be created.
    #[default]
    Default,
    /// No API.
    Disabled,
    /// At this address.
    At(Address),
}

impl ApiListen {
    /// Reads `unix:PATH`, `ADDRESS:PORT` or `none`.
    ///
    /// # Errors
    /// Returns a text that says what is wrong and which forms are valid.
    pub fn parse(text: &str) -> Result<Self, String> {
        if text == "none" { Ok(Self::Disabled) } else { Address::parse(text).map(Self::At) }
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

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal: an address that other machines reach requires TLS and a token; a socket requires
    /// neither.
    #[test]
    fn a_remote_api_address_requires_tls_and_a_token() {
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
