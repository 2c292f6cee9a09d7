//! One session, from its login to its end, over one or more connections.

use crate::client::{Executed, Request};
use crate::connection_end::ConnectionEnd;
use crate::connection_handle::{ConnectionHandle, ConnectionState, ConnectionTask, gone};
use crate::numbering::{Mail, Numbering};
use crate::session_context::SessionContext;
use crate::target_connector::{Group, PortalAddress, TargetConnector};
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

/// A session. When the last handle is dropped it is logged out.
#[derive(Clone, Debug)]
pub(crate) struct Session {
    shared: Arc<Shared>,
}

#[derive(Debug)]
struct Shared {
    established: Arc<Established>,
    way: TargetConnector,
    door: PortalAddress,
    news: SessionContext,
    numbering: Arc<Numbering>,
    /// Its connections, logged in or about to be again; never none.
    links: ArcSwap<Vec<Arc<ConnectionHandle>>>,
    /// Held by whoever adds or takes away connections.
    adjusting: Mutex<()>,
    next_cid: AtomicU16,
}

/// A command on its way. Dropped before its answer came, it is aborted.
struct PendingCommand<'a> {
    session: &'a Session,
    link: Arc<ConnectionHandle>,
    id: TaskId,
    wary: Option<WriteTicket>,
    answered: bool,
}

impl Drop for PendingCommand<'_> {
    fn drop(&mut self) {
        if self.answered {
            return;
        }
        let doubt = self.wary.as_ref().map(WriteTicket::doubt);
        let abort = Mail::Abort(self.id, doubt);
        if let Err(Mail::Abort(_, Some(doubt))) = self.link.state.mailbox.put(abort) {
            self.session.shared.news.hold(&self.session.shared.numbering, doubt);
        }
    }
}

impl Session {
    /// Logs in over `tcp`, with one connection.
    pub(crate) async fn open(
        tcp: TcpStream,
        door: PortalAddress,
        way: &TargetConnector,
        news: SessionContext,
    ) -> Result<Self, ConnectionEnd> {
        let numbering = Numbering::new(way.isid()?);
        let life = ConnectionTask {
            way: way.clone(),
            door: door.clone(),
            numbering: Arc::clone(&numbering),
            news: news.clone(),
            state: ConnectionState::new(LEADING),
        };
        let (link, established) = life.begin(tcp).await?;
        let shared = Shared {
            established: Arc::from(established),
            way: way.clone(),
            door,
            news,
            numbering,
            links: ArcSwap::from_pointee(vec![Arc::new(link)]),
            adjusting: Mutex::default(),
            next_cid: AtomicU16::new(LEADING + 1),
        };
        Ok(Self { shared: Arc::new(shared) })
    }

    /// Adds connections, or takes the last ones away when their commands have ended, so that there
    /// are so many: at least one, at most MaxConnections, and one where the target was found to
    /// bear no more. That fewer can be had is told in the log, once. Runs on the runtime of the
    /// session.
    pub(crate) async fn set_connections(&self, wanted: u16) {
        let _turn = self.shared.adjusting.lock().await;
        let most = match self.shared.way.quirks.bears_one() {
            true => 1,
            false => self.shared.established.session.max_connections.max(1),
        };
        let wanted = wanted.clamp(1, most);
        let mut links = (**self.shared.links.load()).clone();
        links.retain(|link| !link.is_gone());
        if links.is_empty() {
            return; // the session is over
        }
        let retired = links.split_off(links.len().min(wanted.into()));
        self.shared.links.store(Arc::new(links.clone()));
        join_all(retired.iter().map(|link| link.dismiss())).await;
        let joins = (links.len()..wanted.into()).map(|_| self.join());
        let mut refused = None;
        for joined in join_all(joins).await {
            match joined {
                Ok(link) => links.push(Arc::new(link)),
                Err(error) => drop(refused.get_or_insert(error)),
            }
        }
        if let Some(error) = refused
            && !self.is_over()
            && self.shared.way.quirks.tells_of_fewer()
        {
            let (portal, there) = (self.portal(), links.len());
            tracing::warn!(portal, %error, "the session has {there} of {wanted} connections");
        }
        self.shared.links.store(Arc::new(links));
    }

    /// One more connection.
    async fn join(&self) -> Result<ConnectionHandle, Error> {
        let shared = &self.shared;
        let end = Instant::now() + shared.way.options.login_time;
        let tcp = shared.door.connect(end).await?;
        let life = ConnectionTask {
            way: shared.way.clone(),
            door: shared.door.clone(),
            numbering: Arc::clone(&shared.numbering),
            news: shared.news.clone(),
            state: ConnectionState::new(shared.next_cid.fetch_add(1, Ordering::Relaxed)),
        };
        Ok(life.begin(tcp).await.map_err(|ended| ended.error)?.0)
    }

    /// How many connections are logged in.
    pub(crate) fn connections(&self) -> usize {
        self.shared.links.load().iter().filter(|link| link.state.is_up()).count()
    }

    /// What the login brought.
    pub(crate) fn established(&self) -> &Arc<Established> {
        &self.shared.established
    }

    /// The portal group that was reached.
    pub(crate) fn group(&self) -> Group {
        Group(self.shared.established.portal_group_tag)
    }

    /// It is in another portal group than the session that it would follow.
    pub(crate) fn elsewhere(&self, wanted: Group, address: SocketAddr) -> Error {
        let named = |group: Group| group.0.map_or("without a tag".to_owned(), |t| t.to_string());
        let what = format!(
            "{address} is in portal group {}, the lost session was in {}: there it may still be \
             alive, and write over what is written anew",
            named(self.group()),
            named(wanted)
        );
        Error::new(ErrorKind::Login, what).hint(
            "make a portal of the same portal group reachable, or, once the lost session has ended \
             at the target, start again",
        )
    }

    /// The portal that was connected to, as `host:port`.
    pub(crate) fn portal(&self) -> &str {
        &self.shared.door.portal
    }

    /// Its number among those of its `Initiator`.
    pub(crate) fn number(&self) -> u64 {
        self.shared.news.number
    }

    /// It takes no more requests.
    pub(crate) fn is_over(&self) -> bool {
        self.shared.numbering.is_over()
    }

    /// Why it is over.
    pub(crate) fn why(&self) -> Error {
        self.shared.numbering.cause().cloned().unwrap_or_else(|| gone(self.portal()))
    }

    /// The connection with the least to do; the one that has anything to do, or else the first,
    /// where none may overtake another. Where none is logged in, one that is not gone for good: it
    /// says what becomes of what it is given.
    fn choose(&self) -> Arc<ConnectionHandle> {
        let links = self.shared.links.load();
        let busy = |link: &ConnectionHandle| link.state.outstanding_bytes() > 0;
        let up = links.iter().enumerate().filter(|(_, link)| link.state.is_up());
        let chosen = match links.len() {
            1 => None,
            _ if self.shared.way.quirks.wants_order() => {
                up.max_by_key(|(at, link)| (busy(link), Reverse(*at)))
            }
            _ => up.min_by_key(|(_, link)| link.state.outstanding_bytes()),
        };
        let chosen = chosen.map(|(_, link)| link);
        let chosen = chosen.or_else(|| links.iter().find(|link| !link.is_gone()));
        Arc::clone(chosen.unwrap_or(&links[0]))
    }

    /// Sends a command at once, and waits for its answer. The buffer comes back if the target
    /// answered. If the future is dropped, or the target takes too long, the command is aborted.
    /// `wary`: of a write, what to do when its fate becomes unknown.
    pub(crate) fn execute(
        &self,
        lun: Lun,
        cdb: Cdb,
        data_out: Bytes,
        data_in: Option<Buffer>,
        wary: Option<WriteTicket>,
    ) -> impl Future<Output = Result<Executed, Error>> + Send + '_ {
        let link = self.choose();
        let (answer, answered) = oneshot::channel();
        let data_bytes = data_out.len() + data_in.as_ref().map_or(0, |buffer| buffer.len());
        let load = link.state.load(data_bytes);
        let id = link.state.new_id();
        let request = Request::Execute { id, lun, cdb, data_out, data_in, load, answer };
        // The future is made when the request is gone: it has no room for it.
        let taken = match link.requests.try_send(request) {
            Err(TrySendError::Full(request)) => {
                let link = Arc::clone(&link);
                Err(Box::pin(async move { link.requests.send(request).await.is_ok() }))
            }
            taken => Ok(taken.is_ok()),
        };
        let on_its_way = PendingCommand { session: self, link, id, wary, answered: false };
        self.executed(answered, on_its_way, taken)
    }

    /// `taken`: whether the connection has taken the command, or what tells once there is room.
    /// Dropped before it is polled, `answered` goes before the abort is asked for: what is still to
    /// be taken is not sent then.
    async fn executed(
        &self,
        answered: oneshot::Receiver<Result<Executed, Error>>,
        mut on_its_way: PendingCommand<'_>,
        taken: Result<bool, impl Future<Output = bool> + Send + Unpin>,
    ) -> Result<Executed, Error> {
        let taken = match taken {
            Ok(taken) => taken,
            Err(room) => room.await,
        };
        if !taken {
            on_its_way.answered = true;
            return Err(self.why().not_sent());
        }
        let executed = answered.await.map_err(|_| self.why()).flatten();
        match &executed {
            // Dropped, it has the command aborted.
            Err(error) if error.kind == ErrorKind::TimedOut => {}
            Err(error) if error.kind == ErrorKind::SessionLost => {
                on_its_way.answered = true;
                if let Some(wary) = &on_its_way.wary {
                    self.shared.news.hold(&self.shared.numbering, wary.doubt());
                }
            }
            _ => on_its_way.answered = true,
        }
        executed
    }

    /// Waits until all that is under way now at the unit `lun` is over, and so has brought what the
    /// unit had to say: on another connection that may come later than what was said after it.
    /// Commands end by their answer, by the command time and the time for an ABORT TASK after it,
    /// or with the session. `false`: with the session answers were lost.
    ///
    /// A command that was aborted has brought nothing, and so took nothing of what there is to say:
    /// a unit attention goes on until it is reported (SAM-5 §5.14).
    pub(crate) async fn hear_out(&self, lun: Lun) -> bool {
        let numbering = &self.shared.numbering;
        let Some(hearing) = numbering.listen(lun) else { return true };
        hearing.end().await;
        !numbering.is_unheard()
    }

    /// Asks for the targets. RFC 7143 Appendix C.
    pub(crate) async fn send_targets(&self) -> Result<Vec<TargetRecord>, Error> {
        let (answer, answered) = oneshot::channel();
        let asked = self.choose().requests.send(Request::SendTargets { answer }).await;
        asked.map_err(|_| self.why())?;
        answered.await.map_err(|_| self.why())?
    }

    /// Logs out, for all handles. A session that is over already is logged out.
    pub(crate) async fn log_out(&self) -> Result<(), Error> {
        let (answer, answered) = oneshot::channel();
        if self.choose().requests.send(Request::Logout { answer }).await.is_err() {
            return Ok(());
        }
        answered.await.map_err(|_| self.why())?
    }
}
