//! Certificate and token of the API, read from files and renewed while the API serves.

use crate::auth::Token;
use crate::config::{ApiOptions, settings};
use crate::difference::ConfigChange;
use crate::slot::Slot;
use crate::tls::{self, ServerTls};
use crate::{Failure, Readable};
use std::sync::Arc;

/// The files of a running API.
#[derive(Debug)]
pub(crate) struct ApiFiles {
    /// The configured files.
    pub(crate) options: ApiOptions,
    /// The certificate for new connections.
    pub(crate) tls: Arc<Slot<ServerTls>>,
    /// The token that new requests must send.
    pub(crate) token: Arc<Slot<Token>>,
}

/// The contents of files that have changed.
#[derive(Debug, Default)]
pub(crate) struct Renewed {
    tls: Option<ServerTls>,
    token: Option<Token>,
    /// The changes, one for each file.
    pub(crate) changes: Vec<ConfigChange>,
}

impl ApiFiles {
    /// Reads the files again.
    ///
    /// # Errors
    /// Fails if a file cannot be read or is invalid; the current values stay in use.
    pub(crate) fn read(&self) -> Result<Renewed, Failure> {
        let tls = self
            .options
            .tls
            .as_ref()
            .map(|files| tls::server(files, Readable::Regular))
            .transpose()?;
        let tls = tls.filter(|new| self.tls.get().is_none_or(|old| !old.same(new)));
        let token = self
            .options
            .token_file
            .as_deref()
            .map(|path| Token::read_if(path, Readable::Regular))
            .transpose()?;
        let token = token.filter(|new| self.token.get().is_none_or(|old| !old.same(new)));
        let keys = settings::of_api(&self.options);
        let changed = |name: &str| {
            let setting = keys.iter().find(|setting| setting.key == name)?;
            Some(ConfigChange::of_file("api", setting))
        };
        let changes = [
            tls.as_ref().and_then(|_| changed("tls")),
            token.as_ref().and_then(|_| changed("token_file")),
        ];
        Ok(Renewed { tls, token, changes: changes.into_iter().flatten().collect() })
    }

    /// Uses the new contents from now on: connections stay open, new connections get the new
    /// certificate, new requests must send the new token.
    pub(crate) fn put(&self, renewed: Renewed) {
        if let Some(tls) = renewed.tls {
            self.tls.put(tls);
        }
        if let Some(token) = renewed.token {
            self.token.put(token);
        }
    }
}
