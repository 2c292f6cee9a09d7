//! The task that runs one connection of a session.

use crate::client::{ConnectionClient, ConnectionParts, LoginAnswer};
use crate::connection_end::ConnectionEnd;
use crate::connection_handle::{ConnectionHandle, HandleRequest, session_over_error};
use crate::recovery::Backoff;
use crate::shared_session_state::ConnectionMessage;
use crate::{Error, ErrorKind};
use lunar_iscsi::login::initiator::Established;
use std::sync::Arc;
use std::time::Duration;
use tokio::net::TcpStream;
use tokio::sync::{mpsc, oneshot, watch};
use tokio::task::AbortHandle;
use tokio::time::Instant;

/// Greatest number of requests queued between the handles and the connection.
const QUEUE_REQUESTS_MAX: usize = 256;
/// Greatest number of attempts in a row to re-establish a connection that never becomes usable;
/// after them the session continues without it.
const RETRIES_MAX: u32 = 8;
/// Time after which a connection counts as having worked, even if it executed no command.
const WORKED_TIME: Duration = Duration::from_secs(60);

/// The task of a connection: logs in, and reconnects while its session continues.
#[derive(Debug)]
pub(crate) struct ConnectionTask(pub(crate) ConnectionParts);

/// Aborts the connection's task unless its login was awaited to the end: an abandoned login
/// must not replace a later one.
struct LoginGuard(Option<AbortHandle>);

impl Drop for LoginGuard {
    fn drop(&mut self) {
        if let Some(task) = self.0.take() {
            task.abort();
        }
    }
}

impl ConnectionTask {
    /// Logs in over `tcp`, in a task of the current tokio runtime.
    pub(crate) async fn begin(
        self,
        tcp: TcpStream,
    ) -> Result<(ConnectionHandle, Box<Established>), ConnectionEnd> {
        let (requests, inbox) = mpsc::channel(QUEUE_REQUESTS_MAX);
        let (life, alive) = watch::channel(());
        let link = ConnectionHandle { requests, state: Arc::clone(&self.0.state), alive };
        let (answer, logged_in) = oneshot::channel();
        let clock = lunar_net::Clock::start();
        let portal = self.0.address.portal.clone();
        let client = self.client(inbox, Some(answer), clock)?;
        let task = tokio::spawn(self.run(tcp, client, clock, life));
        let mut unawaited = LoginGuard(Some(task.abort_handle()));
        let answer = logged_in.await;
        unawaited.0 = None;
        match answer {
            Ok(Ok(established)) => Ok((link, established)),
            Ok(Err(ended)) => Err(ended),
            Err(_) => Err(session_over_error(&portal).into()),
        }
    }

    /// Returns the connection's state machines, ready to log in.
    fn client(
        &self,
        inbox: mpsc::Receiver<HandleRequest>,
        login: Option<LoginAnswer>,
        clock: lunar_net::Clock,
    ) -> Result<ConnectionClient, Error> {
        let session = self.0.session_state.parameters();
        let Some(numbers) = self.0.session_state.open(self.0.state.cid, &self.0.state.mailbox)
        else {
            let what =
                format!("the session with {} accepts no further connection", self.0.address.portal);
            return Err(Error::new(ErrorKind::Login, what));
        };
        let options = self.0.connector.connection_options(self.0.state.cid, numbers, session);
        let options = options.inspect_err(|error| {
            let ending = lunar_iscsi::session::initiator::ConnectionEnding::NotJoined;
            self.0.session_state.remove_connection(self.0.state.cid, ending, None, error);
        })?;
        Ok(ConnectionClient::new(options, &self.0, inbox, login, clock.now()))
    }

    /// Runs the connection until its session is over or continues without it.
    async fn run(
        self,
        mut tcp: TcpStream,
        mut client: ConnectionClient,
        clock: lunar_net::Clock,
        life: watch::Sender<()>,
    ) {
        let mut retries = Retries::new();
        let (error, mut requests) = loop {
            let begin = Instant::now();
            lunar_net::drive(tcp, &mut client, clock).await;
            if client.has_worked() || (client.was_up() && begin.elapsed() >= WORKED_TIME) {
                retries = Retries::new();
            }
            let (ended, mut requests) = client.finish();
            tracing::debug!(portal = %self.0.address.portal, "connection ended: {}", ended.error);
            match self.again(&mut requests, &mut retries, &ended.error).await {
                Some(socket) => match self.client(requests, None, clock) {
                    Ok(next) => (tcp, client) = (socket, next),
                    Err(_) => return self.close_mailbox(),
                },
                None => break (ended.error, requests),
            }
        };
        self.close_mailbox();
        drop(life);
        while let Some(request) = requests.recv().await {
            request.refuse(&error);
        }
    }

    /// Closes the mailbox, which has no reader any more, and keeps the uncertain writes found in
    /// it.
    fn close_mailbox(&self) {
        for message in self.0.state.mailbox.close() {
            if let ConnectionMessage::Abort(_, Some(uncertain)) = message {
                self.0.session_context.hold(&self.0.session_state, uncertain);
            }
        }
    }

    /// Connects another socket for a session that continues, and refuses requests meanwhile.
    /// Returns `None` when the session is over or continues without this connection.
    async fn again(
        &self,
        requests: &mut mpsc::Receiver<HandleRequest>,
        retries: &mut Retries,
        error: &Error,
    ) -> Option<TcpStream> {
        let wanted = || !self.0.session_state.is_over() && !self.0.state.is_retired();
        while wanted() {
            let Some(pause) = retries.next_pause() else {
                self.log_end_of_retries(error);
                return None;
            };
            let pause = tokio::time::sleep(pause);
            tokio::pin!(pause);
            loop {
                tokio::select! {
                    request = requests.recv() => request?.refuse(error),
                    () = &mut pause => break,
                }
            }
            let end = Instant::now() + self.0.connector.options.login_time;
            match self.0.address.connect(end).await {
                Ok(tcp) if wanted() => return Some(tcp),
                Ok(_) => {}
                Err(error) => tracing::debug!(%error, "cannot re-establish a connection"),
            }
        }
        None
    }

    /// Logs that the session continues with the remaining connections.
    fn log_end_of_retries(&self, error: &Error) {
        if self.0.connector.quirks.should_report_fewer_connections() {
            tracing::warn!(
                portal = %self.0.address.portal,
                %error,
                "a connection was closed or refused {RETRIES_MAX} times in a row; the session \
                 continues with the others"
            );
        }
    }
}

/// Counts the attempts in a row to re-establish a connection, with the pauses before them.
struct Retries {
    begun: u32,
    backoff: Backoff,
}

impl Retries {
    fn new() -> Self {
        Self { begun: 0, backoff: Backoff::with_system_entropy() }
    }

    /// Returns the pause before the next attempt; `None` when all attempts are used up.
    fn next_pause(&mut self) -> Option<Duration> {
        if self.begun == RETRIES_MAX {
            return None;
        }
        self.begun += 1;
        Some(self.backoff.next_pause())
    }
}
