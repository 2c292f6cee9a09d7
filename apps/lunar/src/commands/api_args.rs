//! Options of all commands that speak with a running server.

use crate::output::Failure;
use lunar_control::Token;
use lunar_control::client::{self, Client};
use lunar_control::http::Address;
use std::path::PathBuf;

/// Which server, and what it wants to be shown.
#[derive(Debug, clap::Args)]
#[command(next_help_heading = "Server")]
pub struct ApiArgs {
    /// Where its API is: unix:PATH or ADDRESS:PORT [default: the only server that runs here]
    #[arg(long, global = true, value_name = "WHERE", env = "LUNAR_API")]
    api: Option<String>,
    /// The file with the token that its TCP port wants
    #[arg(long, global = true, value_name = "FILE", env = "LUNAR_API_TOKEN_FILE")]
    token_file: Option<PathBuf>,
    /// Speak TLS, and trust the certificates in this file (PEM) and those they have signed
    #[arg(long, global = true, value_name = "FILE", env = "LUNAR_API_CA_FILE")]
    ca_file: Option<PathBuf>,
}

impl ApiArgs {
    /// A client of the server that is meant.
    ///
    /// # Errors
    /// No server found, or several; files that cannot be read.
    pub fn client(&self) -> Result<Client, Failure> {
        let address = match &self.api {
            Some(text) => Address::parse(text)
                .map_err(|why| Failure::usage(format!("--api {text}")).hint(why))?,
            None => client::find()?,
        };
        let token = self.token_file.as_deref().map(Token::read).transpose()?;
        Ok(Client { address, trusted: self.ca_file.clone(), token })
    }
}
