//! One session, from its login to its end, over one connection.

use crate::attentions::Attentions;
use crate::client::{self, CID, Client, Ended, Executed, News, Request};
use crate::options::random_isid;
use crate::{Error, ErrorKind, SessionOptions, Url, parse_portal, portal_text};
use block::Buffer;
use bytes::Bytes;
use iscsi::connection::initiator::{ConnectionLimits, ConnectionOptions};
use iscsi::connection::target::TargetRecord;
use iscsi::login::SessionType;
use iscsi::login::initiator::{ChapAnswer, Established, InitiatorLoginOptions};
use iscsi::session::initiator::{InitiatorSession, SessionOptions as NumberingOptions};
use iscsi::text::Offer;
use std::io;
use std::net::SocketAddr;
use std::sync::{Arc, OnceLock};
use tokio::net::TcpStream;
use tokio::sync::{mpsc, oneshot};
use tokio::task::AbortHandle;
use tokio::time::Instant;
use wire::{Lun, SerialNumber};

/// Requests that wait between handles and the connection.
const QUEUE_REQUESTS_MAX: usize = 256;
/// How often a login may be sent elsewhere.
const REDIRECTS_MAX: usize = 4;

/// Where sessions lead, and how they are made: the same each time.
#[derive(Clone, Debug)]
pub(crate) struct Way {
    pub(crate) url: Url,
    /// `None`: a discovery session.
    pub(crate) target_name: Option<String>,
    /// With an ISID, so that a later session takes the place of an earlier one.
    pub(crate) options: SessionOptions,
}

/// The portal group that the first session of an initiator reached; `None`: there was none yet.
///
/// A login takes the place of the lost session in the same portal group only, for another is
/// another nexus (RFC 7143 §6.3.5): there the lost session would live on, and what it was sent
/// could still be executed after what the next one was sent.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) struct Group(Option<u16>);

/// A session. When the last handle is dropped it is logged out.
#[derive(Clone, Debug)]
pub(crate) struct Session {
    requests: mpsc::Sender<Request>,
    facts: Arc<Facts>,
    news: News,
}

#[derive(Debug)]
struct Facts {
    established: Arc<Established>,
    portal: String,
}

/// Ends the connection's task, unless its login was awaited to the end: a login that somebody has
/// given up must not take the place of a later one.
struct Unawaited(Option<AbortHandle>);

impl Drop for Unawaited {
    fn drop(&mut self) {
        if let Some(task) = self.0.take() {
            task.abort();
        }
    }
}

impl Way {
    /// The way to what `url` names.
    pub(crate) fn new(
        url: &Url,
        target_name: Option<String>,
        options: &SessionOptions,
    ) -> Result<Self, Error> {
        let mut options = options.clone();
        if options.isid.is_none() {
            options.isid = Some(random_isid().map_err(no_random)?);
        }
        Ok(Self { url: url.clone(), target_name, options })
    }

    /// Logs in, in a task of the current tokio runtime, as the session of this `number`, in this
    /// portal group or in any. Redirects are followed, at most four times.
    pub(crate) async fn log_in(
        &self,
        number: u64,
        attentions: &Arc<Attentions>,
        group: Option<Group>,
    ) -> Result<Session, Error> {
        let (mut host, mut port) = (self.url.host.clone(), self.url.port);
        for _ in 0..=REDIRECTS_MAX {
            let news = || News {
                number,
                attentions: Arc::clone(attentions),
                ended: Arc::new(OnceLock::new()),
            };
            match self.reach(&host, port, &news, group).await {
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
        let what = format!("{} was sent elsewhere too often", self.url.portal());
        Err(Error::new(ErrorKind::Login, what))
    }

    /// Logs in at the first address of the host that takes us in the right portal group.
    async fn reach(
        &self,
        host: &str,
        port: u16,
        news: &(dyn Fn() -> News + Sync),
        group: Option<Group>,
    ) -> Result<Session, Ended> {
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
            let (login, news) = (self.login_options()?, news());
            let session = Session::open(tcp, portal.clone(), login, &self.options, news).await?;
            match group {
                Some(group) if session.group() != group => {
                    last = Some(session.elsewhere(group, address));
                }
                _ => return Ok(session),
            }
        }
        Err(last.unwrap_or_else(|| unreachable(&portal, &io::ErrorKind::NotFound.into())).into())
    }

    fn login_options(&self) -> Result<InitiatorLoginOptions, Error> {
        let Self { url, target_name, options } = self;
        let mut entropy = [0; 33];
        getrandom::fill(&mut entropy).map_err(no_random)?;
        let isid = match options.isid {
            Some(isid) => isid,
            None => random_isid().map_err(no_random)?,
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
            target_name: target_name.clone(),
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
}

impl Session {
    async fn open(
        tcp: TcpStream,
        portal: String,
        mut login: InitiatorLoginOptions,
        options: &SessionOptions,
        news: News,
    ) -> Result<Self, Ended> {
        let login_time = options.login_time;
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
        let (to, told) = (portal.clone(), news.clone());
        let client = Client::new(connection, numbering, inbox, answer, to, told, clock.now());
        let task = tokio::spawn(client::run(tcp, client, clock));
        let mut unawaited = Unawaited(Some(task.abort_handle()));
        let answer = logged_in.await;
        unawaited.0 = None;
        match answer {
            Ok(Ok(established)) => {
                let established = Arc::from(established);
                let facts = Facts { established, portal };
                Ok(Self { requests, facts: Arc::new(facts), news })
            }
            Ok(Err(ended)) => Err(ended),
            Err(_) => Err(gone(&portal).into()),
        }
    }

    /// What the login brought.
    pub(crate) fn established(&self) -> &Arc<Established> {
        &self.facts.established
    }

    /// The portal group that was reached.
    pub(crate) fn group(&self) -> Group {
        Group(self.facts.established.portal_group_tag)
    }

    /// It is in another portal group than the session that it would follow.
    fn elsewhere(&self, wanted: Group, address: SocketAddr) -> Error {
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
        &self.facts.portal
    }

    /// Its number among those of its `Initiator`.
    pub(crate) fn number(&self) -> u64 {
        self.news.number
    }

    /// It takes no more requests.
    pub(crate) fn is_over(&self) -> bool {
        self.requests.is_closed()
    }

    /// Why it is over.
    pub(crate) fn why(&self) -> Error {
        self.news.ended.get().cloned().unwrap_or_else(|| gone(self.portal()))
    }

    /// Executes a command. The buffer comes back if the target answered.
    pub(crate) async fn execute(
        &self,
        lun: Lun,
        cdb: Bytes,
        data_out: Bytes,
        data_in: Option<Buffer>,
    ) -> Result<Executed, Error> {
        let (answer, answered) = oneshot::channel();
        let request = Request::Execute { lun, cdb, data_out, data_in, answer };
        if self.requests.send(request).await.is_err() {
            return Err(self.why().not_sent());
        }
        answered.await.map_err(|_| self.why())?
    }

    /// Asks for the targets. RFC 7143 Appendix C.
    pub(crate) async fn send_targets(&self) -> Result<Vec<TargetRecord>, Error> {
        let (answer, answered) = oneshot::channel();
        let asked = self.requests.send(Request::SendTargets { answer }).await;
        asked.map_err(|_| self.why())?;
        answered.await.map_err(|_| self.why())?
    }

    /// Logs out, for all handles. A session that is over already is logged out.
    pub(crate) async fn log_out(&self) -> Result<(), Error> {
        let (answer, answered) = oneshot::channel();
        if self.requests.send(Request::Logout { answer }).await.is_err() {
            return Ok(());
        }
        answered.await.map_err(|_| self.why())?
    }
}

fn gone(portal: &str) -> Error {
    Error::new(ErrorKind::SessionLost, format!("the session with {portal} is over"))
}

fn no_random(error: getrandom::Error) -> Error {
    Error::new(ErrorKind::Login, format!("no random numbers: {error}"))
}

impl From<Error> for Ended {
    fn from(error: Error) -> Self {
        Self { error, redirect: None }
    }
}

/// The addresses of a host.
async fn addresses(host: &str, port: u16, end: Instant) -> Result<Vec<SocketAddr>, Error> {
    let portal = portal_text(host, port);
    let found = tokio::time::timeout_at(end, tokio::net::lookup_host((host, port))).await;
    let found = found.unwrap_or_else(|_| Err(io::ErrorKind::TimedOut.into()));
    Ok(found.map_err(|error| unreachable(&portal, &error))?.collect())
}

async fn connect(portal: &str, address: SocketAddr, end: Instant) -> Result<TcpStream, Error> {
    let left = end.saturating_duration_since(Instant::now());
    net::connect(address, left).await.map_err(|error| unreachable(portal, &error))
}

fn unreachable(portal: &str, error: &io::Error) -> Error {
    Error::new(ErrorKind::Connect, format!("cannot connect to {portal}: {error}"))
        .hint("check the address, and whether the server is running")
}
