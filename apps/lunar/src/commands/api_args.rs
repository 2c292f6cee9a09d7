//! Options common to all commands that connect to a running server.

use crate::output::Failure;
use lunar_control::Token;
use lunar_control::client::{self, ApiClient};
use lunar_control::http::Address;
use std::path::PathBuf;

/// Address of the server, with token and certificates.
#[derive(Debug, clap::Args)]
#[command(next_help_heading = "Server")]
pub struct ApiArgs {
    /// Address of the server's API: unix:PATH or ADDRESS:PORT [default: the only server that runs
    /// here]
    #[arg(long, global = true, value_name = "WHERE", env = "LUNAR_API")]
    api: Option<String>,
    /// File with the token that the TCP port requires
    #[arg(long, global = true, value_name = "FILE", env = "LUNAR_API_TOKEN_FILE")]
    token_file: Option<PathBuf>,
    /// Use TLS, and trust the certificates in this file (PEM) and those signed by them
    #[arg(long, global = true, value_name = "FILE", env = "LUNAR_API_CA_FILE")]
    ca_file: Option<PathBuf>,
}

impl ApiArgs {
    /// A client of the selected server.
    ///
    /// # Errors
    /// Fails if no server or several are found, or if a file cannot be read.
    pub fn client(&self) -> Result<ApiClient, Failure> {
        let address = match &self.api {
            Some(text) => Address::parse(text)
                .map_err(|why| Failure::usage(format!("--api {text}")).hint(why))?,
            None => client::find()?,
        };
        let token = self.token_file.as_deref().map(Token::read).transpose()?;
        Ok(ApiClient { address, trusted: self.ca_file.clone(), token })
    }
}
