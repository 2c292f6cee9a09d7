//! The target of an initiator's sessions: how it is reached, and what logins offer it.

use crate::options::random_isid;
use crate::quirks::Quirks;
use crate::{Error, ErrorKind, SessionOptions, Url};
use lunar_iscsi::connection::initiator::{ConnectionLimits, ConnectionOptions};
use lunar_iscsi::login::SessionType;
use lunar_iscsi::login::initiator::{ChapAnswer, InitiatorLoginOptions};
use lunar_iscsi::session::initiator::LoginNumbers;
use lunar_iscsi::text::{Offer, PROTOCOL_LEVEL_RFC_7143, SessionParameters};
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;
use tokio::net::TcpStream;
use tokio::time::Instant;

/// MaxConnections that every login proposes, so that connections can be added later.
const CONNECTIONS_OFFERED: u16 = 8;

/// The target of an initiator's sessions, and the options that all of them share.
#[derive(Clone, Debug)]
pub(crate) struct TargetConnector {
    pub(crate) url: Url,
    /// `None`: a discovery session.
    pub(crate) target_name: Option<String>,
    /// Options with a fixed ISID, so that a later session replaces an earlier one.
    pub(crate) options: SessionOptions,
    /// Deviations of the target found in earlier sessions.
    pub(crate) quirks: Arc<Quirks>,
}

/// Target portal group that the initiator's first session reached; `None` if there was none yet.
///
/// A login replaces the lost session only in the same portal group, because another group is
/// another nexus (RFC 7143 §6.3.5): through another group the lost session would continue, and its
/// commands could be executed after those of the new one.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) struct PortalGroup(pub(crate) Option<u16>);

impl TargetConnector {
    /// Returns a connector to the target of `url`.
    pub(crate) fn new(
        url: &Url,
        target_name: Option<String>,
        options: &SessionOptions,
    ) -> Result<Self, Error> {
        let mut options = options.clone();
        if options.isid.is_none() {
            options.isid = Some(random_isid().map_err(no_random)?);
        }
        Ok(Self { url: url.clone(), target_name, options, quirks: Arc::default() })
    }

    /// Time limit of a command; `None` if there is no limit.
    pub(crate) fn command_time(&self) -> Option<Duration> {
        let seconds = self.options.command_seconds;
        (seconds > 0).then(|| Duration::from_secs(seconds.into()))
    }

    /// Returns the login options of the connection `cid`, with these session numbers.
    pub(crate) fn connection_options(
        &self,
        cid: u16,
        numbers: LoginNumbers,
        session: Option<SessionParameters>,
    ) -> Result<ConnectionOptions, Error> {
        let Self { url, target_name, options, .. } = self;
        let mut entropy = [0; 33];
        getrandom::fill(&mut entropy).map_err(no_random)?;
        let mut offer = Offer::initiator();
        offer.protocol_level = options.protocol_level;
        if options.protocol_level <= PROTOCOL_LEVEL_RFC_7143 || self.quirks.lacks_newer_keys() {
            offer = offer.without_newer_keys();
        }
        offer.max_connections = options.connections.max(CONNECTIONS_OFFERED);
        // The greater value of both sides holds (RFC 7143 §13.15), so the target decides.
        offer.time_to_wait_seconds = 0;
        offer.header_digest =
            url.header_digest.map_or_else(|| options.header_digest.clone(), |digest| vec![digest]);
        offer.data_digest =
            url.data_digest.map_or_else(|| options.data_digest.clone(), |digest| vec![digest]);
        let chap = options.chap.as_ref().map(|chap| ChapAnswer {
            algorithms: chap.algorithms.clone(),
            credential: chap.initiator.clone(),
            expect_target: chap.target.clone(),
        });
        let session_type =
            if target_name.is_some() { SessionType::Normal } else { SessionType::Discovery };
        let login = InitiatorLoginOptions {
            initiator_name: options.initiator_name.clone(),
            alias: None,
            target_name: target_name.clone(),
            session_type,
            isid: numbers.isid,
            tsih: numbers.tsih,
            cid,
            initiator_task_tag: 0,
            cmd_sn: numbers.cmd_sn,
            offer,
            chap,
            entropy,
        };
        let limits =
            ConnectionLimits { login_time: options.login_time, ..ConnectionLimits::default() };
        Ok(ConnectionOptions { login, session, limits })
    }

    /// Returns the ISID of all sessions.
    pub(crate) fn isid(&self) -> Result<[u8; 6], Error> {
        self.options.isid.map_or_else(|| random_isid().map_err(no_random), Ok)
    }
}

/// Address of a session's connections, as reached by the first of them.
#[derive(Clone, Debug)]
pub(crate) struct PortalAddress {
    pub(crate) address: SocketAddr,
    /// The portal as named by the user, `host:port`.
    pub(crate) portal: String,
}

impl PortalAddress {
    /// Connects to the address, by `end`.
    pub(crate) async fn connect(&self, end: Instant) -> Result<TcpStream, Error> {
        let left = end.saturating_duration_since(Instant::now());
        let connected = lunar_net::connect(self.address, left).await;
        connected.map_err(|error| unreachable(&self.portal, &error))
    }
}

pub(crate) fn no_random(error: getrandom::Error) -> Error {
    Error::new(ErrorKind::Login, format!("the system provides no random numbers: {error}"))
}

/// Returns the error for a portal that cannot be connected to.
pub(crate) fn unreachable(portal: &str, error: &io::Error) -> Error {
    Error::new(ErrorKind::Connect, format!("cannot connect to {portal}: {error}"))
        .hint("check the address, and whether the server is running")
}
