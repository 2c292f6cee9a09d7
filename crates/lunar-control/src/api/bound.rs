//! The API of a server at its address, and its start.

use crate::Failure;
use crate::auth::Token;
use crate::config::{ApiListen, ApiOptions};
use crate::daemon::Daemon;
use crate::http::{Address, BoundServer, HttpLimits, HttpOptions, HttpServer, default_sockets};
use crate::renewal::ApiFiles;
use crate::slot::Slot;
use std::path::Path;
use std::sync::Arc;

/// An API that is bound to its address.
pub struct BoundApi {
    bound: BoundServer,
    files: ApiFiles,
}

impl BoundApi {
    /// Binds the API to its address; `None`: no API. A default address that cannot be bound is only
    /// logged: the disks are served anyway. `is_daemon`: this server is the daemon of its machine
    /// rather than one of many. `state`: the directory to fall back to.
    ///
    /// # Errors
    /// Fails if an explicitly configured address, certificate or token cannot be used.
    pub fn bind(
        options: &ApiOptions,
        is_daemon: bool,
        state: Option<&Path>,
    ) -> Result<Option<Self>, Failure> {
        let address = match &options.listen {
            ApiListen::Disabled => return Ok(None),
            ApiListen::At(address) => address.clone(),
            ApiListen::Default => return Ok(bind_default(is_daemon, state)),
        };
        options.check().map_err(|(what, hint)| Failure::usage(what).hint(hint))?;
        let token = options.token_file.as_deref().map(Token::read).transpose()?;
        let http = HttpOptions { address, tls: options.tls.clone(), limits: HttpLimits::default() };
        Ok(Some(Self::new(BoundServer::bind(http)?, options.clone(), token)))
    }

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
        let router = super::router_with(Arc::clone(&daemon), Arc::clone(&self.files.token));
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
