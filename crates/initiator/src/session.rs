//! Sessions: a handle that any thread may use, and the task behind it that owns the connection.

use crate::client::{self, CID, Client, Ended, Executed, Request};
use crate::options::random_isid;
use crate::{Error, ErrorKind, SessionOptions, Url, parse_portal, portal_text};
use block::{Buffer, BufferPool};
use bytes::Bytes;
use iscsi::connection::initiator::{CommandResult, ConnectionLimits, ConnectionOptions};
use iscsi::connection::target::TargetRecord;
use iscsi::login::SessionType;
use iscsi::login::initiator::{ChapAnswer, Established, InitiatorLoginOptions};
use iscsi::session::initiator::{InitiatorSession, SessionOptions as NumberingOptions};
use iscsi::text::Offer;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::{mpsc, oneshot};
use wire::{Lun, SerialNumber};

/// Requests that wait between handles and the connection.
const QUEUE_REQUESTS_MAX: usize = 256;
/// How often a login may be sent elsewhere.
const REDIRECTS_MAX: usize = 4;

/// A session with one target, over one connection. Handles are cheap to clone and may be used from
/// any thread. When the last is dropped the session is logged out.
///
/// There is no recovery: when the connection is lost, so is the session, and every request fails.
#[derive(Clone, Debug)]
pub struct Initiator {
    requests: mpsc::Sender<Request>,
    facts: Arc<Facts>,
}

#[derive(Debug)]
struct Facts {
    established: Established,
    target_name: Option<String>,
    portal: String,
    pool: BufferPool,
}

/// What a command came to: the target's answer, and the data it sent.
#[derive(Clone, Debug)]
pub struct CommandReply {
    /// Status, sense, residuals.
    pub result: CommandResult,
    /// The data that came, `result.data_in_bytes` long.
    pub data_in: Bytes,
}

impl Initiator {
    /// Logs in to the target that `url` names, in a task of the current tokio runtime.
    ///
    /// A redirect by the target is followed, at most four times.
    ///
    /// # Errors
    /// `Connect` · `Authentication` · `Login`.
    pub async fn connect(url: &Url, options: &SessionOptions) -> Result<Self, Error> {
        match &url.unit {
            Some(unit) => Self::open(url, Some(unit.target.clone()), options).await,
            None => Err(Error::new(ErrorKind::Login, "the URL names no target")
                .hint("write iscsi://HOST/TARGET/LUN")),
        }
    }

    async fn open(
        url: &Url,
        target_name: Option<String>,
        options: &SessionOptions,
    ) -> Result<Self, Error> {
        let (mut host, mut port) = (url.host.clone(), url.port);
        for _ in 0..=REDIRECTS_MAX {
            let login = login_options(url, target_name.clone(), options)?;
            match Self::try_open(&host, port, login, options.login_time).await {
                Ok(session) => return Ok(session),
                Err(Ended { redirect: Some(address), error }) => {
                    // Behind a comma stands the portal group, which the login tells anyway.
                    let address = address.split(',').next().unwrap_or_default();
                    (host, port) = parse_portal(address)
                        .map_err(|wrong| Error { hint: Some(wrong.to_string()), ..error })?;
                }
                Err(Ended { error, .. }) => return Err(error),
            }
        }
        Err(Error::new(ErrorKind::Login, format!("{} was sent elsewhere too often", url.portal())))
    }

    async fn try_open(
        host: &str,
        port: u16,
        mut login: InitiatorLoginOptions,
        login_time: Duration,
    ) -> Result<Self, Ended> {
        let portal = portal_text(host, port);
        let target_name = login.target_name.clone();
        let tcp = connect(host, port, login_time).await.map_err(Ended::from)?;
        let mut numbering = InitiatorSession::new(NumberingOptions {
            isid: login.isid,
            cmd_sn: login.cmd_sn,
            queue_requests_max: 1024,
        });
        let Some(numbers) = numbering.open(CID) else {
            return Err(Error::new(ErrorKind::Login, "a new session takes no connection").into());
        };
        (login.isid, login.tsih, login.cmd_sn) = (numbers.isid, numbers.tsih, numbers.cmd_sn);
        let limits = ConnectionLimits { login_time, ..ConnectionLimits::default() };
        let connection = ConnectionOptions { login, session: None, limits };
        let (requests, inbox) = mpsc::channel(QUEUE_REQUESTS_MAX);
        let (answer, logged_in) = oneshot::channel();
        let clock = net::Clock::start();
        let client = Client::new(connection, numbering, inbox, answer, portal.clone(), clock.now());
        tokio::spawn(client::run(tcp, client, clock));
        match logged_in.await {
            Ok(Ok(established)) => {
                let pool = BufferPool::default();
                let facts = Facts { established: *established, target_name, portal, pool };
                Ok(Self { requests, facts: Arc::new(facts) })
            }
            Ok(Err(ended)) => Err(ended),
            Err(_) => Err(gone(&portal).into()),
        }
    }

    /// What the login brought: negotiated keys, portal group, alias.
    pub fn established(&self) -> &Established {
        &self.facts.established
    }

    /// The target's name; `None` in discovery sessions.
    pub fn target_name(&self) -> Option<&str> {
        self.facts.target_name.as_deref()
    }

    /// The portal that was connected to, as `host:port`.
    pub fn portal(&self) -> &str {
        &self.facts.portal
    }

    /// Where data-in buffers come from.
    pub fn pool(&self) -> &BufferPool {
        &self.facts.pool
    }

    /// Executes a SCSI command: `cdb` of 1 to 1,020 bytes, `data_out` sent as it is, at most
    /// `data_in_max` bytes received. Any SCSI status is an answer, not an error.
    ///
    /// # Errors
    /// `SessionLost` (whether it had an effect is then not known) · `Refused`.
    pub async fn execute(
        &self,
        lun: Lun,
        cdb: impl Into<Bytes>,
        data_out: Bytes,
        data_in_max: u32,
    ) -> Result<CommandReply, Error> {
        let buffer = match data_in_max {
            0 => None,
            bytes => Some(self.facts.pool.take(bytes as usize)),
        };
        let executed = self.execute_into(lun, cdb.into(), data_out, buffer).await?;
        let Executed { result, data_in } = executed;
        let data_in = match data_in {
            Some(mut buffer) => {
                buffer.truncate(result.data_in_bytes as usize);
                buffer.freeze()
            }
            None => Bytes::new(),
        };
        Ok(CommandReply { result, data_in })
    }

    /// The same, with the caller's buffer, which comes back however the command ended.
    pub(crate) async fn execute_into(
        &self,
        lun: Lun,
        cdb: Bytes,
        data_out: Bytes,
        data_in: Option<Buffer>,
    ) -> Result<Executed, Error> {
        let (answer, answered) = oneshot::channel();
        self.ask(Request::Execute { lun, cdb, data_out, data_in, answer }).await?;
        answered.await.map_err(|_| gone(&self.facts.portal))?
    }

    /// Logs out and ends the session, for all handles.
    ///
    /// # Errors
    /// When the target did not answer the logout.
    pub async fn log_out(&self) -> Result<(), Error> {
        let (answer, answered) = oneshot::channel();
        self.ask(Request::Logout { answer }).await?;
        answered.await.map_err(|_| gone(&self.facts.portal))?
    }

    async fn ask(&self, request: Request) -> Result<(), Error> {
        self.requests.send(request).await.map_err(|_| gone(&self.facts.portal))
    }
}

/// Asks the portal of `url` which targets this initiator may see. RFC 7143 Appendix C.
///
/// # Errors
/// As [`Initiator::connect`].
pub async fn discover(url: &Url, options: &SessionOptions) -> Result<Vec<TargetRecord>, Error> {
    let session = Initiator::open(url, None, options).await?;
    let (answer, answered) = oneshot::channel();
    session.ask(Request::SendTargets { answer }).await?;
    let targets = answered.await.map_err(|_| gone(session.portal()))??;
    // The answer is here; a logout that fails takes nothing from it.
    if let Err(error) = session.log_out().await {
        tracing::debug!(%error, "logout of the discovery session");
    }
    Ok(targets)
}

fn gone(portal: &str) -> Error {
    Error::new(ErrorKind::SessionLost, format!("the session with {portal} is over"))
}

impl From<Error> for Ended {
    fn from(error: Error) -> Self {
        Self { error, redirect: None }
    }
}

fn login_options(
    url: &Url,
    target_name: Option<String>,
    options: &SessionOptions,
) -> Result<InitiatorLoginOptions, Error> {
    let random = |error| Error::new(ErrorKind::Login, format!("no random numbers: {error}"));
    let mut entropy = [0; 33];
    getrandom::fill(&mut entropy).map_err(random)?;
    let isid = match options.isid {
        Some(isid) => isid,
        None => random_isid().map_err(random)?,
    };
    let mut offer = Offer::initiator();
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
    Ok(InitiatorLoginOptions {
        initiator_name: options.initiator_name.clone(),
        alias: None,
        target_name,
        session_type,
        isid,
        tsih: 0,
        cid: CID,
        initiator_task_tag: 0,
        cmd_sn: SerialNumber(1),
        offer,
        chap,
        entropy,
    })
}

/// Tries every address of the host in turn, within `time` in all.
async fn connect(host: &str, port: u16, time: Duration) -> Result<tokio::net::TcpStream, Error> {
    let portal = portal_text(host, port);
    let failed = |error: &std::io::Error| {
        Error::new(ErrorKind::Connect, format!("cannot connect to {portal}: {error}"))
            .hint("check the address, and whether the server is running")
    };
    let end = tokio::time::Instant::now() + time;
    let addresses: Vec<SocketAddr> =
        tokio::time::timeout_at(end, tokio::net::lookup_host((host, port)))
            .await
            .map_err(|_| failed(&std::io::ErrorKind::TimedOut.into()))?
            .map_err(|error| failed(&error))?
            .collect();
    let mut last = std::io::Error::from(std::io::ErrorKind::NotFound);
    for address in addresses {
        let left = end.saturating_duration_since(tokio::time::Instant::now());
        match net::connect(address, left).await {
            Ok(tcp) => return Ok(tcp),
            Err(error) => last = error,
        }
    }
    Err(failed(&last))
}
