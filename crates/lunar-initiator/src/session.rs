//! One session, from its login to its end, over one or more connections.

use crate::client::ConnectionParts;
use crate::connection_end::ConnectionEnd;
use crate::connection_handle::{
    ConnectionHandle, ConnectionState, Executed, HandleRequest, session_over_error,
};
use crate::connection_task::ConnectionTask;
use crate::session_context::SessionContext;
use crate::shared_session_state::{ConnectionMessage, SharedSessionState};
use crate::target_connector::{PortalAddress, PortalGroup, TargetConnector};
use crate::uncertain_writes::WriteTicket;
use crate::{Error, ErrorKind};
use arc_swap::ArcSwap;
use bytes::Bytes;
use futures_util::future::join_all;
use lunar_block::Buffer;
use lunar_iscsi::connection::initiator::Cdb;
use lunar_iscsi::connection::target::TargetRecord;
use lunar_iscsi::framing::TaskId;
use lunar_iscsi::login::initiator::Established;
use lunar_wire::Lun;
use std::cmp::Reverse;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU16, Ordering};
use tokio::net::TcpStream;
use tokio::sync::mpsc::error::TrySendError;
use tokio::sync::{Mutex, oneshot};
use tokio::time::Instant;

/// CID of the leading connection.
const LEADING: u16 = 0;

/// A session. It is logged out when the last handle is dropped.
#[derive(Clone, Debug)]
pub(crate) struct Session {
    shared: Arc<Shared>,
}

#[derive(Debug)]
struct Shared {
    established: Arc<Established>,
    connector: TargetConnector,
    address: PortalAddress,
    session_context: SessionContext,
    session_state: Arc<SharedSessionState>,
    /// Connections, logged in or being re-established; never empty.
    connections: ArcSwap<Vec<Arc<ConnectionHandle>>>,
    /// Locked while connections are added or removed.
    adjusting: Mutex<()>,
    next_cid: AtomicU16,
}

/// A command in flight. It is aborted if dropped before its response has arrived.
struct PendingCommand<'a> {
    session: &'a Session,
    connection: Arc<ConnectionHandle>,
    id: TaskId,
    ticket: Option<WriteTicket>,
    answered: bool,
}

impl Drop for PendingCommand<'_> {
    fn drop(&mut self) {
        if self.answered {
            return;
        }
        let uncertain = self.ticket.as_ref().map(WriteTicket::make_uncertain);
        let abort = ConnectionMessage::Abort(self.id, uncertain);
        if let Err(ConnectionMessage::Abort(_, Some(uncertain))) =
            self.connection.state.mailbox.put(abort)
        {
            self.session.shared.session_context.hold(&self.session.shared.session_state, uncertain);
        }
    }
}

impl Session {
    /// Logs in over `tcp`, with one connection.
    pub(crate) async fn open(
        tcp: TcpStream,
        address: PortalAddress,
        connector: &TargetConnector,
        session_context: SessionContext,
    ) -> Result<Self, ConnectionEnd> {
        let session_state = SharedSessionState::new(connector.isid()?);
        let parts = ConnectionParts {
            connector: connector.clone(),
            address: address.clone(),
            session_state: Arc::clone(&session_state),
            session_context: session_context.clone(),
            state: ConnectionState::new(LEADING),
        };
        let (connection, established) = ConnectionTask(parts).begin(tcp).await?;
        let shared = Shared {
            established: Arc::from(established),
            connector: connector.clone(),
            address,
            session_context,
            session_state,
            connections: ArcSwap::from_pointee(vec![Arc::new(connection)]),
            adjusting: Mutex::default(),
            next_cid: AtomicU16::new(LEADING + 1),
        };
        Ok(Self { shared: Arc::new(shared) })
    }

    /// Adds connections, or removes the last ones when their commands have ended, until there are
    /// `wanted`: at least one, at most MaxConnections, and only one if the target was found to
    /// support no more. A shortage is logged once. Runs on the runtime of the session.
    pub(crate) async fn set_connections(&self, wanted: u16) {
        let _guard = self.shared.adjusting.lock().await;
        let connections_max = match self.shared.connector.quirks.one_connection_only() {
            true => 1,
            false => self.shared.established.session.max_connections.max(1),
        };
        let wanted = wanted.clamp(1, connections_max);
        let mut connections = (**self.shared.connections.load()).clone();
        connections.retain(|connection| !connection.is_gone());
        if connections.is_empty() {
            return; // the session is over
        }
        let retired = connections.split_off(connections.len().min(wanted.into()));
        self.shared.connections.store(Arc::new(connections.clone()));
        join_all(retired.iter().map(|connection| connection.dismiss())).await;
        let joins = (connections.len()..wanted.into()).map(|_| self.add_connection());
        let mut refused = None;
        for joined in join_all(joins).await {
            match joined {
                Ok(connection) => connections.push(Arc::new(connection)),
                Err(error) => drop(refused.get_or_insert(error)),
            }
        }
        if let Some(error) = refused
            && !self.is_over()
            && self.shared.connector.quirks.should_report_fewer_connections()
        {
            let (portal, open) = (self.portal(), connections.len());
            tracing::warn!(
                portal,
                %error,
                "cannot open all connections: the session has {open} of {wanted}"
            );
        }
        self.shared.connections.store(Arc::new(connections));
    }

    /// Adds one connection.
    async fn add_connection(&self) -> Result<ConnectionHandle, Error> {
        let shared = &self.shared;
        let end = Instant::now() + shared.connector.options.login_time;
        let tcp = shared.address.connect(end).await?;
        let parts = ConnectionParts {
            connector: shared.connector.clone(),
            address: shared.address.clone(),
            session_state: Arc::clone(&shared.session_state),
            session_context: shared.session_context.clone(),
            state: ConnectionState::new(shared.next_cid.fetch_add(1, Ordering::Relaxed)),
        };
        Ok(ConnectionTask(parts).begin(tcp).await.map_err(|ended| ended.error)?.0)
    }

    /// Number of connections that are logged in.
    pub(crate) fn connections(&self) -> usize {
        self.shared.connections.load().iter().filter(|connection| connection.state.is_up()).count()
    }

    /// Result of the leading login.
    pub(crate) fn established(&self) -> &Arc<Established> {
        &self.shared.established
    }

    /// Portal group that was reached.
    pub(crate) fn group(&self) -> PortalGroup {
        PortalGroup(self.shared.established.portal_group_tag)
    }

    /// Returns the error for a session in another portal group than the one it would replace.
    pub(crate) fn wrong_portal_group_error(
        &self,
        wanted: PortalGroup,
        address: SocketAddr,
    ) -> Error {
        let named =
            |group: PortalGroup| group.0.map_or("without a tag".to_owned(), |t| t.to_string());
        let what = format!(
            "{address} is in portal group {}, the lost session was in portal group {}: the old \
             session may still be alive there, and its delayed writes could overwrite new data",
            named(self.group()),
            named(wanted)
        );
        Error::new(ErrorKind::Login, what).hint(
            "make a portal of the same portal group reachable; or reopen the disk after the old \
             session has ended at the target",
        )
    }

    /// The portal that was connected to, as `host:port`.
    pub(crate) fn portal(&self) -> &str {
        &self.shared.address.portal
    }

    /// Address that was connected to.
    pub(crate) fn address(&self) -> SocketAddr {
        self.shared.address.address
    }

    /// Number of the session among those of its `Initiator`.
    pub(crate) fn number(&self) -> u64 {
        self.shared.session_context.number
    }

    /// True when the session takes no more requests.
    pub(crate) fn is_over(&self) -> bool {
        self.shared.session_state.is_over()
    }

    /// True when the target answered a command in this session.
    pub(crate) fn has_answered_commands(&self) -> bool {
        self.shared.session_state.has_answered_commands()
    }

    /// Returns the error that ended the session.
    pub(crate) fn end_error(&self) -> Error {
        self.shared
            .session_state
            .cause()
            .cloned()
            .unwrap_or_else(|| session_over_error(self.portal()))
    }

    /// Returns the connection with the fewest bytes in flight. If commands must stay in order,
    /// returns the busy connection, or else the first. If none is logged in, returns one that has
    /// not ended for good: it answers its requests with an error.
    fn choose(&self) -> Arc<ConnectionHandle> {
        let connections = self.shared.connections.load();
        let busy = |connection: &ConnectionHandle| connection.state.outstanding_bytes() > 0;
        let up = connections.iter().enumerate().filter(|(_, connection)| connection.state.is_up());
        let chosen = match connections.len() {
            1 => None,
            _ if self.shared.connector.quirks.needs_single_connection() => {
                up.max_by_key(|(at, connection)| (busy(connection), Reverse(*at)))
            }
            _ => up.min_by_key(|(_, connection)| connection.state.outstanding_bytes()),
        };
        let chosen = chosen.map(|(_, connection)| connection);
        let chosen = chosen.or_else(|| connections.iter().find(|connection| !connection.is_gone()));
        Arc::clone(chosen.unwrap_or(&connections[0]))
    }

    /// Sends a command at once, and waits for its response. The buffer is returned if the target
    /// answered. The command is aborted if the future is dropped or the target takes too long.
    /// `ticket` is the ticket of a write, used if its outcome becomes unknown.
    pub(crate) fn execute(
        &self,
        lun: Lun,
        cdb: Cdb,
        data_out: Bytes,
        data_in: Option<Buffer>,
        ticket: Option<WriteTicket>,
    ) -> impl Future<Output = Result<Executed, Error>> + Send + '_ {
        let connection = self.choose();
        let (answer, answered) = oneshot::channel();
        let data_bytes = data_out.len() + data_in.as_ref().map_or(0, |buffer| buffer.len());
        let load = connection.state.load(data_bytes);
        let id = connection.state.new_id();
        let request = HandleRequest::Execute { id, lun, cdb, data_out, data_in, load, answer };
        // The request is sent before the future is built, so the future does not store it.
        let taken = match connection.requests.try_send(request) {
            Err(TrySendError::Full(request)) => {
                let connection = Arc::clone(&connection);
                Err(Box::pin(async move { connection.requests.send(request).await.is_ok() }))
            }
            taken => Ok(taken.is_ok()),
        };
        let pending = PendingCommand { session: self, connection, id, ticket, answered: false };
        self.executed(answered, pending, taken)
    }

    /// Waits for the response to a command. `taken` is true when the connection has taken the
    /// command, or a future that waits for room. If the future is dropped before it is polled,
    /// `answered` is dropped before the abort is requested: a request that is still queued is then
    /// not sent.
    async fn executed(
        &self,
        answered: oneshot::Receiver<Result<Executed, Error>>,
        mut pending: PendingCommand<'_>,
        taken: Result<bool, impl Future<Output = bool> + Send + Unpin>,
    ) -> Result<Executed, Error> {
        let taken = match taken {
            Ok(taken) => taken,
            Err(room) => room.await,
        };
        if !taken {
            pending.answered = true;
            return Err(self.end_error().not_sent());
        }
        let executed = answered.await.map_err(|_| self.end_error()).flatten();
        match &executed {
            // The command is aborted on drop.
            Err(error) if error.kind == ErrorKind::TimedOut => {}
            Err(error) if error.kind == ErrorKind::SessionLost => {
                pending.answered = true;
                if let Some(ticket) = &pending.ticket {
                    self.shared
                        .session_context
                        .hold(&self.shared.session_state, ticket.make_uncertain());
                }
            }
            _ => pending.answered = true,
        }
        executed
    }

    /// Waits until all commands in flight at the unit `lun` are over, and so have delivered the
    /// unit's reports: on another connection these may arrive later than a response that was sent
    /// after them. Commands end by their response, by the command time and the time for an ABORT
    /// TASK after it, or with the session. Returns `false` if responses were lost with the session.
    ///
    /// An aborted command delivered nothing and consumed no report: a unit attention remains until
    /// it is reported (SAM-5 §5.14).
    pub(crate) async fn wait_for_commands(&self, lun: Lun) -> bool {
        let session_state = &self.shared.session_state;
        let Some(barrier) = session_state.command_barrier(lun) else { return true };
        barrier.end().await;
        !session_state.has_lost_responses()
    }

    /// Lists the targets. RFC 7143 Appendix C.
    pub(crate) async fn send_targets(&self) -> Result<Vec<TargetRecord>, Error> {
        let (answer, answered) = oneshot::channel();
        let sent = self.choose().requests.send(HandleRequest::SendTargets { answer }).await;
        sent.map_err(|_| self.end_error())?;
        answered.await.map_err(|_| self.end_error())?
    }

    /// Logs out, for all handles. A session that is already over counts as logged out.
    pub(crate) async fn log_out(&self) -> Result<(), Error> {
        let (answer, answered) = oneshot::channel();
        if self.choose().requests.send(HandleRequest::Logout { answer }).await.is_err() {
            return Ok(());
        }
        answered.await.map_err(|_| self.end_error())?
    }
}
