//! Options for the API of a server.

use crate::output::Failure;
use lunar_control::TlsFiles;
use lunar_control::config::{ApiListen, ApiOptions};
use std::path::PathBuf;

/// Options for the API that `lunar ctl` uses.
#[derive(Debug, clap::Args)]
#[command(next_help_heading = "API")]
pub struct ServeApiArgs {
    /// Address of the API: unix:PATH, ADDRESS:PORT or none [default: a unix socket in the runtime
    /// directory]. Changes over TCP require --api-token-file; for other machines TLS is required as
    /// well
    #[arg(long, value_name = "WHERE")]
    api: Option<String>,
    /// File with the token that clients must send over TCP
    #[arg(long, value_name = "FILE", requires = "api")]
    api_token_file: Option<PathBuf>,
    /// File with the certificate and its chain (PEM)
    #[arg(long, value_name = "FILE", requires = "api", requires = "api_key_file")]
    api_certificate_file: Option<PathBuf>,
    /// File with the certificate's private key (PEM)
    #[arg(long, value_name = "FILE", requires = "api_certificate_file")]
    api_key_file: Option<PathBuf>,
}

impl ServeApiArgs {
    /// The API options; `None` if none were given.
    ///
    /// # Errors
    /// Fails if the options are invalid, or would give access to more clients than intended.
    pub fn options(&self) -> Result<Option<ApiOptions>, Failure> {
        let Some(text) = &self.api else { return Ok(None) };
        let listen = ApiListen::parse(text)
            .map_err(|why| Failure::usage(format!("--api {text}")).hint(why))?;
        let tls = match (&self.api_certificate_file, &self.api_key_file) {
            (Some(certificate), Some(key)) => {
                Some(TlsFiles { certificate: certificate.clone(), key: key.clone() })
            }
            _ => None,
        };
        let options = ApiOptions { listen, tls, token_file: self.api_token_file.clone() };
        options.check().map_err(|(what, hint)| Failure::usage(what).hint(hint))?;
        Ok(Some(options))
    }
}
