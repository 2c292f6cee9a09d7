//! LUNs of targets to measure, each behind a simulated network if one is wanted.

use crate::relay::{Model, Relay};
use crate::{ListeningProcess, Subject, Workload};
use lunar_initiator::{RemoteDisk, SessionOptions, Url};
use std::collections::HashMap;
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;

/// Reason why a LUN could not be opened or closed.
#[derive(Debug, thiserror::Error)]
pub enum RemoteError {
    /// The name of the host has no address.
    #[error("cannot find the address of {0}")]
    Address(String),
    /// The system provides no socket or thread for a relay.
    #[error("cannot start a relay: {0}")]
    Relay(#[source] io::Error),
    /// The target refuses, or does not answer.
    #[error(transparent)]
    Target(#[from] lunar_initiator::Error),
    /// The target redirects past the relay, so that the network would not be simulated.
    #[error("{url} redirects to {portal}, which bypasses the simulated network")]
    Redirected {
        /// URL of the LUN.
        url: Box<Url>,
        /// Portal that the target redirects to.
        portal: String,
    },
}

/// An open LUN.
#[derive(Clone, Debug)]
pub struct RemoteSubject {
    /// The LUN, with its session.
    pub disk: Arc<RemoteDisk>,
    /// Relay between client and target.
    pub relay: Option<Arc<Relay>>,
    /// Process that listens on the portal, if it runs on this machine.
    pub target: Option<ListeningProcess>,
}

impl RemoteSubject {
    /// Returns the LUN as the subject of a measurement with this workload.
    pub fn subject(&self, work: Workload) -> Subject {
        let (target, relay) = (self.target, self.relay.clone());
        Subject { device: Arc::<RemoteDisk>::clone(&self.disk), work, target, relay }
    }
}

/// An open LUN, with the URL, the number of connections and the network that it was opened with.
type Opened = (Url, u16, Option<Model>, RemoteSubject);

/// Open LUNs. Each has one session for a number of connections and a network.
#[derive(Debug, Default)]
pub struct RemoteSubjects {
    open: Vec<Opened>,
    /// One relay for each network and portal.
    relays: HashMap<(Model, SocketAddr), Arc<Relay>>,
    /// Addresses of relays, and the portals that they stand for.
    relayed: Vec<(String, String)>,
}

impl RemoteSubjects {
    /// Returns the LUN behind a network of this model; logs in on first use.
    ///
    /// # Errors
    /// Same as [`RemoteError`].
    pub async fn open(
        &mut self,
        url: &Url,
        options: &SessionOptions,
        model: Option<Model>,
    ) -> Result<RemoteSubject, RemoteError> {
        let same = |(open, connections, network, _): &&Opened| {
            open == url && *connections == options.connections && *network == model
        };
        if let Some((_, _, _, subject)) = self.open.iter().find(same) {
            return Ok(subject.clone());
        }
        if model.is_some() {
            check_reachable(url, options).await?;
        }
        let (path, relay, target) = self.path(url, model).await?;
        let disk = Arc::new(RemoteDisk::connect(&path, options).await?);
        let portal = disk.unit().initiator().portal();
        if relay.is_some() && path.portal() != portal {
            return Err(RemoteError::Redirected { url: Box::new(url.clone()), portal });
        }
        let subject = RemoteSubject { disk, relay, target };
        self.open.push((url.clone(), options.connections, model, subject.clone()));
        Ok(subject)
    }

    /// Returns the URL to connect to, which names the relay if there is one, and the process that
    /// listens on the portal.
    async fn path(
        &mut self,
        url: &Url,
        model: Option<Model>,
    ) -> Result<(Url, Option<Arc<Relay>>, Option<ListeningProcess>), RemoteError> {
        let found = tokio::net::lookup_host((url.host.as_str(), url.port)).await;
        let address = found.ok().and_then(|mut addresses| addresses.next());
        let address = address.ok_or_else(|| RemoteError::Address(url.host.clone()))?;
        let target = ListeningProcess::of_listener(address);
        let Some(model) = model else {
            return Ok((url.clone(), None, target));
        };
        let relay = match self.relays.get(&(model, address)) {
            Some(relay) => Arc::clone(relay),
            None => {
                let relay = Arc::new(Relay::start(model, address).map_err(RemoteError::Relay)?);
                self.relays.insert((model, address), Arc::clone(&relay));
                relay
            }
        };
        self.relayed.push((relay.address().to_string(), url.portal()));
        let (host, port) = (relay.address().ip().to_string(), relay.address().port());
        Ok((Url { host, port, ..url.clone() }, Some(relay), target))
    }

    /// Replaces addresses of relays in a message by the portals that the user named.
    pub fn with_portal_names(&self, message: &str) -> String {
        self.relayed
            .iter()
            .fold(message.to_owned(), |message, (relay, portal)| message.replace(relay, portal))
    }

    /// Ends all sessions.
    ///
    /// # Errors
    /// A target does not answer the logout.
    pub async fn close(&mut self) -> Result<(), RemoteError> {
        for (_, _, _, subject) in std::mem::take(&mut self.open) {
            subject.disk.log_out().await?;
        }
        Ok(())
    }
}

/// Logs in without the relay first: the relay accepts all connections, so the reason of a target's
/// refusal would be lost.
async fn check_reachable(url: &Url, options: &SessionOptions) -> Result<(), RemoteError> {
    let options = SessionOptions { connections: 1, ..options.clone() };
    Ok(RemoteDisk::connect(url, &options).await?.log_out().await?)
}
