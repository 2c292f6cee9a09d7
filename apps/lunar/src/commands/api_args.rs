//! Options common to all commands that connect to a running server.

use crate::output::Failure;
use lunar_control::Token;
use lunar_control::client::{self, ApiClient, DescribedApi};
use lunar_control::http::Address;
use std::path::{Path, PathBuf};

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
        match self.address()? {
            Some(address) => self.client_at(address, None, self.ca_file.clone()),
            None => self.client_at(client::find()?, None, self.ca_file.clone()),
        }
    }

    /// A client of the selected server, else of the server of the configuration `text`, which was
    /// read from `file`.
    ///
    /// # Errors
    /// Same as [`client`](Self::client).
    pub fn client_of(&self, text: &str, file: &Path) -> Result<ApiClient, Failure> {
        if let Some(address) = self.address()? {
            return self.client_at(address, None, self.ca_file.clone());
        }
        let DescribedApi { address, certificate, token_file } = client::find_described(text, file)?;
        self.client_at(address, token_file, self.ca_file.clone().or(certificate))
    }

    fn address(&self) -> Result<Option<Address>, Failure> {
        let parse = |text: &String| {
            Address::parse(text).map_err(|why| Failure::usage(format!("--api {text}")).hint(why))
        };
        self.api.as_ref().map(parse).transpose()
    }

    /// A client of the server at `address`, whose token is in `token_file` unless the options name
    /// a file.
    fn client_at(
        &self,
        address: Address,
        token_file: Option<PathBuf>,
        trusted: Option<PathBuf>,
    ) -> Result<ApiClient, Failure> {
        let token_file = self.token_file.as_ref().or(token_file.as_ref());
        let token = token_file.map(|file| Token::read(file)).transpose()?;
        Ok(ApiClient { address, trusted, token })
    }
}
