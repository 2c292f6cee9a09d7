//! Logins of sessions: over which portal and address, and with which keys.

use crate::connection_end::ConnectionEnd;
use crate::session::Session;
use crate::session_context::SessionContext;
use crate::target_connector::{PortalAddress, PortalGroup, TargetConnector, unreachable};
use crate::{Error, ErrorKind, parse_portal, portal_text};
use lunar_iscsi::text::PROTOCOL_LEVEL_RFC_7143;
use std::io;
use std::net::SocketAddr;
use tokio::net::TcpStream;
use tokio::time::Instant;

/// Greatest number of redirects that a login follows.
const REDIRECTS_MAX: usize = 4;

impl TargetConnector {
    /// Logs in, in a task of the current tokio runtime, in this portal group or in any. Follows at
    /// most four redirects. After a first session, other portals are tried as well if the portal
    /// refuses the login.
    pub(crate) async fn log_in(
        &self,
        session_context: SessionContext,
        group: Option<PortalGroup>,
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
        group: Option<PortalGroup>,
    ) -> Result<Session, Error> {
        let first = self
            .log_in_following_redirects(&self.url.host, self.url.port, &session_context, group)
            .await;
        let Err(error) = first else { return first };
        if group.is_some() && error.kind != ErrorKind::Authentication {
            for (host, port) in &self.options.portals {
                match self.log_in_following_redirects(host, *port, &session_context, group).await {
                    Ok(session) => return Ok(session),
                    Err(error) => tracing::debug!(%error, "login at another portal failed"),
                }
            }
        }
        Err(error)
    }

    async fn log_in_following_redirects(
        &self,
        host: &str,
        port: u16,
        session_context: &SessionContext,
        group: Option<PortalGroup>,
    ) -> Result<Session, Error> {
        let (mut host, mut port) = (host.to_owned(), port);
        for _ in 0..=REDIRECTS_MAX {
            match self.log_in_at_host(&host, port, session_context, group).await {
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
    async fn log_in_at_host(
        &self,
        host: &str,
        port: u16,
        session_context: &SessionContext,
        group: Option<PortalGroup>,
    ) -> Result<Session, ConnectionEnd> {
        let portal = portal_text(host, port);
        let end = Instant::now() + self.options.login_time;
        let mut last = None;
        for socket_address in addresses(host, port, end).await? {
            let address = PortalAddress { address: socket_address, portal: portal.clone() };
            let tcp = match address.connect(end).await {
                Ok(tcp) => tcp,
                Err(error) => {
                    last = Some(error);
                    continue;
                }
            };
            let session = self.open(tcp, address, session_context, end).await?;
            match group {
                Some(group) if session.group() != group => {
                    last = Some(session.wrong_portal_group_error(group, socket_address));
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
        address: PortalAddress,
        session_context: &SessionContext,
        end: Instant,
    ) -> Result<Session, ConnectionEnd> {
        let mut opened = Session::open(tcp, address.clone(), self, session_context.clone()).await;
        if is_closed_over_newer_keys(&opened) {
            let tcp = address.connect(end).await?;
            opened = Session::open(tcp, address.clone(), self, session_context.clone()).await;
        }
        if is_closed_over_newer_keys(&opened) {
            opened = self.open_without_newer_keys(address, session_context, end).await;
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
        address: PortalAddress,
        session_context: &SessionContext,
        end: Instant,
    ) -> Result<Session, ConnectionEnd> {
        let tcp = address.connect(end).await?;
        let older = self.without_newer_keys();
        let session = Session::open(tcp, address, &older, session_context.clone()).await?;
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
}

/// True when the target closed the connection instead of answering the newer keys.
fn is_closed_over_newer_keys(opened: &Result<Session, ConnectionEnd>) -> bool {
    matches!(opened, Err(ended) if ended.closed_over_newer_keys)
}

/// Resolves the addresses of a host.
async fn addresses(host: &str, port: u16, end: Instant) -> Result<Vec<SocketAddr>, Error> {
    let portal = portal_text(host, port);
    let found = tokio::time::timeout_at(end, tokio::net::lookup_host((host, port))).await;
    let found = found.unwrap_or_else(|_| Err(io::ErrorKind::TimedOut.into()));
    Ok(found.map_err(|error| unreachable(&portal, &error))?.collect())
}
