//! Connects and logs in to the target of a session.

use crate::connection_end::ConnectionEnd;
use crate::options::random_isid;
use crate::quirks::Quirks;
use crate::session::Session;
use crate::session_context::SessionContext;
use crate::{Error, ErrorKind, SessionOptions, Url, parse_portal, portal_text};
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

/// Greatest number of redirects that a login follows.
const REDIRECTS_MAX: usize = 4;
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
pub(crate) struct Group(pub(crate) Option<u16>);

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

    /// Logs in, in a task of the current tokio runtime, in this portal group or in any. Follows at
    /// most four redirects. After a first session, other portals are tried as well if the portal
    /// refuses the login.
    pub(crate) async fn log_in(
        &self,
        session_context: SessionContext,
        group: Option<Group>,
    ) -> Result<Session, Error> {
        let session = self.log_in_anywhere(session_context, group).await;
        if session.is_err() {
            // The target may be replaced by another one or a newer version when it comes back.
            self.quirks.forget_unknown_newer_keys();
        }
        session
    }

    async fn log_in_anywhere(
        &self,
        session_context: SessionContext,
        group: Option<Group>,
    ) -> Result<Session, Error> {
        let first = self.log_in_at(&self.url.host, self.url.port, &session_context, group).await;
        let Err(error) = first else { return first };
        if group.is_some() && error.kind != ErrorKind::Authentication {
            for (host, port) in &self.options.portals {
                match self.log_in_at(host, *port, &session_context, group).await {
                    Ok(session) => return Ok(session),
                    Err(error) => tracing::debug!(%error, "login at another portal failed"),
                }
            }
        }
        Err(error)
    }

    async fn log_in_at(
        &self,
        host: &str,
        port: u16,
        session_context: &SessionContext,
        group: Option<Group>,
    ) -> Result<Session, Error> {
        let (mut host, mut port) = (host.to_owned(), port);
        for _ in 0..=REDIRECTS_MAX {
            match self.reach(&host, port, session_context, group).await {
                Ok(session) => return Ok(session),
                Err(ConnectionEnd { redirect: Some(address), error, .. }) => {
                    // The portal group follows a comma; the login reports it anyway.
                    let address = address.split(',').next().unwrap_or_default();
                    (host, port) = parse_portal(address)
                        .map_err(|wrong| Error { hint: Some(wrong.to_string()), ..error })?;
                }
                Err(ConnectionEnd { error, .. }) => return Err(error),
            }
        }
        let what = format!("{} was redirected too many times", self.url.portal());
        Err(Error::new(ErrorKind::Login, what))
    }

    /// Logs in at the first address of the host that accepts the login in the right portal group.
    async fn reach(
        &self,
        host: &str,
        port: u16,
        session_context: &SessionContext,
        group: Option<Group>,
    ) -> Result<Session, ConnectionEnd> {
        let portal = portal_text(host, port);
        let end = Instant::now() + self.options.login_time;
        let mut last = None;
        for address in addresses(host, port, end).await? {
            let tcp = match connect(&portal, address, end).await {
                Ok(tcp) => tcp,
                Err(error) => {
                    last = Some(error);
                    continue;
                }
            };
            let door = PortalAddress { address, portal: portal.clone() };
            let session = self.open(tcp, door, session_context, end).await?;
            match group {
                Some(group) if session.group() != group => {
                    last = Some(session.elsewhere(group, address));
                }
                _ => {
                    // A discovery session has one connection (RFC 7143 §13.2).
                    if self.target_name.is_some() {
                        session.set_connections(self.options.connections).await;
                    }
                    return Ok(session);
                }
            }
        }
        Err(last.unwrap_or_else(|| unreachable(&portal, &io::ErrorKind::NotFound.into())).into())
    }

    /// Logs in over `tcp`. If the target closes the connection instead of answering the newer keys,
    /// the login is repeated, since the connection may have been cut by chance. If the second
    /// attempt ends the same way, the third leaves the keys out.
    async fn open(
        &self,
        tcp: TcpStream,
        door: PortalAddress,
        session_context: &SessionContext,
        end: Instant,
    ) -> Result<Session, ConnectionEnd> {
        let mut opened = Session::open(tcp, door.clone(), self, session_context.clone()).await;
        if is_closed_over_newer_keys(&opened) {
            let tcp = door.connect(end).await?;
            opened = Session::open(tcp, door.clone(), self, session_context.clone()).await;
        }
        if is_closed_over_newer_keys(&opened) {
            opened = self.open_without_newer_keys(door, session_context, end).await;
        }
        let session = opened?;
        if session.established().tsih == 0 {
            tracing::warn!(
                portal = session.portal(),
                "the target assigned TSIH 0 to the discovery session, which violates RFC 7143 \
                 §11.13.3; the session is used anyway"
            );
        }
        Ok(session)
    }

    /// Logs in without the newer keys. On success, later logins leave them out, until one fails.
    async fn open_without_newer_keys(
        &self,
        door: PortalAddress,
        session_context: &SessionContext,
        end: Instant,
    ) -> Result<Session, ConnectionEnd> {
        let tcp = door.connect(end).await?;
        let older = self.without_newer_keys();
        let session = Session::open(tcp, door, &older, session_context.clone()).await?;
        tracing::warn!(
            portal = session.portal(),
            "the target closed the connection twice after TaskReporting and iSCSIProtocolLevel; \
             logged in without them (protocol level 1 omits them from the start)"
        );
        self.quirks.note_unknown_newer_keys();
        Ok(session)
    }

    /// Returns a copy for a target that does not support the newer keys.
    fn without_newer_keys(&self) -> Self {
        let mut connector = self.clone();
        connector.options.protocol_level = PROTOCOL_LEVEL_RFC_7143;
        connector
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
        connect(&self.portal, self.address, end).await
    }
}

/// True when the target closed the connection instead of answering the newer keys.
fn is_closed_over_newer_keys(opened: &Result<Session, ConnectionEnd>) -> bool {
    matches!(opened, Err(ended) if ended.closed_over_newer_keys)
}

pub(crate) fn no_random(error: getrandom::Error) -> Error {
    Error::new(ErrorKind::Login, format!("the system provides no random numbers: {error}"))
}

/// Resolves the addresses of a host.
async fn addresses(host: &str, port: u16, end: Instant) -> Result<Vec<SocketAddr>, Error> {
    let portal = portal_text(host, port);
    let found = tokio::time::timeout_at(end, tokio::net::lookup_host((host, port))).await;
    let found = found.unwrap_or_else(|_| Err(io::ErrorKind::TimedOut.into()));
    Ok(found.map_err(|error| unreachable(&portal, &error))?.collect())
}

async fn connect(portal: &str, address: SocketAddr, end: Instant) -> Result<TcpStream, Error> {
    let left = end.saturating_duration_since(Instant::now());
    lunar_net::connect(address, left).await.map_err(|error| unreachable(portal, &error))
}

fn unreachable(portal: &str, error: &io::Error) -> Error {
    Error::new(ErrorKind::Connect, format!("cannot connect to {portal}: {error}"))
        .hint("check the address, and whether the server is running")
}
