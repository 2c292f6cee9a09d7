//! Where a server's API is to be, as options.

use crate::output::Failure;
use lunar_control::TlsFiles;
use lunar_control::api_options::{ApiListen, ApiOptions};
use std::path::PathBuf;

/// The API that `lunar ctl` uses.
#[derive(Debug, clap::Args)]
#[command(next_help_heading = "API")]
pub struct ServeApiArgs {
    /// Where its API is: unix:PATH, ADDRESS:PORT or none [default: a unix socket in the runtime
    /// directory]. Changes over TCP want --api-token-file, other machines TLS as well
    #[arg(long, value_name = "WHERE")]
    api: Option<String>,
    /// The file with the token that clients over TCP have to show
    #[arg(long, value_name = "FILE", requires = "api")]
    api_token_file: Option<PathBuf>,
    /// The file with its certificate, and those that lead to the root (PEM)
    #[arg(long, value_name = "FILE", requires = "api", requires = "api_key_file")]
    api_certificate_file: Option<PathBuf>,
    /// The file with the certificate's private key (PEM)
    #[arg(long, value_name = "FILE", requires = "api_certificate_file")]
    api_key_file: Option<PathBuf>,
}

impl ServeApiArgs {
    /// What is said; `None`: nothing.
    ///
    /// # Errors
    /// What makes no sense, or would let in more than is meant.
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
