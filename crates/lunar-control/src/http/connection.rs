//! Accepts connections and serves them.

use super::connection_slots::{AnswerGuard, ConnectionSlot, ConnectionSlots};
use super::stall::StallLimit;
use super::{HttpLimits, Listener, SocketFile, socket_file};
use crate::slot::Slot;
use crate::tls::ServerTls;
use axum::{Extension, Router};
use hyper::body::{Body, Frame, SizeHint};
use hyper::server::conn::http1;
use hyper::service::{Service, service_fn};
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::service::TowerToHyperService;
use std::convert::Infallible;
use std::net::{IpAddr, SocketAddr};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, UnixListener};
use tokio::sync::watch;
use tokio::task::JoinSet;

/// Pause before the next accept when the system has no free descriptor.
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);
/// Interval of checks that the socket file still exists.
const LOOK_EVERY: Duration = Duration::from_secs(2);
/// Maximum time for running requests to finish when the server ends.
const END_GRACE: Duration = Duration::from_secs(1);

/// The client of a connection.
#[derive(Clone, Debug, Eq, PartialEq)]
pub enum Peer {
    /// A process of this machine, identified by the kernel.
    Unix {
        /// User ID of the process.
        uid: u32,
    },
    /// A client of a TCP port.
    Tcp {
        /// Address of the client.
        address: SocketAddr,
        /// Whether the connection uses TLS.
        tls: bool,
    },
}

enum Accepting {
    /// The file is dropped first, while the socket still listens.
    Unix(SocketFile, UnixListener),
    Tcp(TcpListener, Arc<Slot<ServerTls>>),
}

/// Accepts connections until the server ends.
pub(super) struct Acceptor {
    accepting: Accepting,
    router: Router,
    limits: Arc<HttpLimits>,
    /// Whether the permanent loss of the socket was logged.
    told_gone: bool,
}

impl Acceptor {
    /// Must be called within a runtime.
    pub(super) fn new(
        listener: Listener,
        tls: Arc<Slot<ServerTls>>,
        router: Router,
        limits: Arc<HttpLimits>,
    ) -> std::io::Result<Self> {
        let accepting = match listener {
            Listener::Unix(file, listener) => {
                Accepting::Unix(file, UnixListener::from_std(listener)?)
            }
            Listener::Tcp(listener) => Accepting::Tcp(TcpListener::from_std(listener)?, tls),
        };
        Ok(Self { accepting, router, limits, told_gone: false })
    }

    pub(super) async fn run(mut self, mut stop: watch::Receiver<bool>) {
        let limits = &self.limits;
        let slots = ConnectionSlots::new(limits.connections, limits.connections_per_address);
        let mut connections = JoinSet::new();
        let mut look = tokio::time::interval(LOOK_EVERY);
        loop {
            // While all connections answer requests, further ones wait in the socket's queue.
            tokio::select! {
                () = slots.wait_for_slot() => {}
                () = stopped(&mut stop) => break,
            }
            let accepted = tokio::select! {
                accepted = self.accept() => accepted,
                _ = look.tick() => {
                    self.listen_again().await;
                    continue;
                }
                () = stopped(&mut stop) => break,
            };
            while connections.try_join_next().is_some() {}
            match accepted {
                Ok(accepted) => {
                    let Some((slot, closed)) = slots.take(accepted.address()) else { continue };
                    let served = Served {
                        router: self.router.clone(),
                        limits: Arc::clone(&self.limits),
                        stop: stop.clone(),
                        slot: Arc::new(slot),
                    };
                    connections.spawn(async move {
                        tokio::select! {
                            () = accepted.serve(served) => {}
                            Ok(()) = closed => tracing::debug!(
                                "API connection closed to make room for another one"
                            ),
                        }
                    });
                }
                Err(error) => {
                    tracing::warn!("cannot accept an API connection: {error}");
                    tokio::time::sleep(ACCEPT_PAUSE).await;
                }
            }
        }
        drop(self.accepting);
        let all = async { while connections.join_next().await.is_some() {} };
        let _ = tokio::time::timeout(END_GRACE, all).await; // connections that do not end are cut
    }

    /// Recreates a removed socket, without which no client could reach the server. A socket is
    /// removed, for example, with the state directory of a disk that is no longer served.
    async fn listen_again(&mut self) {
        let Accepting::Unix(file, _) = &self.accepting else { return };
        if !file.is_gone() {
            return;
        }
        let path = file.path().to_owned();
        let name = path.display().to_string();
        let made = tokio::task::spawn_blocking(move || socket_file::listen_again(&path)).await;
        let made = made.map_err(|error| error.to_string());
        let made = made.and_then(|made| made.map_err(|failure| failure.to_string()));
        let made = made.and_then(|(listener, file)| {
            let listener = UnixListener::from_std(listener).map_err(|error| error.to_string())?;
            Ok(Accepting::Unix(file, listener))
        });
        match made {
            Ok(accepting) => {
                tracing::warn!("API socket unix:{name} was removed; it was created again");
                self.accepting = accepting;
                self.told_gone = false;
            }
            Err(why) if !std::mem::replace(&mut self.told_gone, true) => {
                tracing::warn!(
                    "API socket unix:{name} was removed and cannot be created again: {why}"
                );
            }
            Err(_) => {}
        }
    }

    async fn accept(&self) -> std::io::Result<Accepted> {
        match &self.accepting {
            Accepting::Unix(_, listener) => {
                let (stream, _) = listener.accept().await?;
                let uid = stream.peer_cred()?.uid();
                Ok(Accepted::Unix(stream, uid))
            }
            Accepting::Tcp(listener, tls) => {
                let (stream, address) = listener.accept().await?;
                let _ = stream.set_nodelay(true); // an error costs speed only
                Ok(Accepted::Tcp(stream, address, tls.get()))
            }
        }
    }
}

/// Completes when the server is to end.
async fn stopped(stop: &mut watch::Receiver<bool>) {
    let _ = stop.wait_for(|stop| *stop).await; // a dropped sender means the end, too
}

enum Accepted {
    Unix(tokio::net::UnixStream, u32),
    /// Uses TLS if there is a certificate.
    Tcp(tokio::net::TcpStream, SocketAddr, Option<Arc<ServerTls>>),
}

struct Served {
    router: Router,
    limits: Arc<HttpLimits>,
    stop: watch::Receiver<bool>,
    slot: Arc<ConnectionSlot>,
}

impl Accepted {
    /// The remote address, if the connection came over a network.
    fn address(&self) -> Option<IpAddr> {
        match self {
            Self::Unix(..) => None,
            Self::Tcp(_, address, _) => Some(address.ip()),
        }
    }

    async fn serve(self, served: Served) {
        match self {
            Self::Unix(stream, uid) => served.http(stream, Peer::Unix { uid }).await,
            Self::Tcp(stream, address, None) => {
                served.http(stream, Peer::Tcp { address, tls: false }).await;
            }
            Self::Tcp(stream, address, Some(tls)) => {
                let handshake = tls.acceptor.accept(stream);
                match tokio::time::timeout(served.limits.handshake_time, handshake).await {
                    Ok(Ok(stream)) => {
                        served.http(stream, Peer::Tcp { address, tls: true }).await;
                    }
                    Ok(Err(error)) => {
                        tracing::debug!(
                            peer = %address,
                            "API connection closed: the TLS handshake failed: {error}"
                        );
                    }
                    Err(_) => tracing::debug!(
                        peer = %address,
                        "API connection closed: the TLS handshake took too long"
                    ),
                }
            }
        }
    }
}

impl Served {
    async fn http(mut self, stream: impl AsyncRead + AsyncWrite + Unpin, peer: Peer) {
        let stream = TokioIo::new(StallLimit::new(stream, self.limits.stall_time));
        let router = TowerToHyperService::new(self.router.layer(Extension(peer)));
        let slot = Arc::clone(&self.slot);
        let service = service_fn(move |request| {
            let guard = slot.begin_answer();
            let response = router.call(request);
            async move {
                Ok::<_, Infallible>(response.await?.map(|body| AnswerBody { body, _guard: guard }))
            }
        });
        let connection = http1::Builder::new()
            .timer(TokioTimer::new())
            .header_read_timeout(self.limits.head_time)
            .max_buf_size(self.limits.head_bytes)
            .serve_connection(stream, service);
        tokio::pin!(connection);
        let ended = tokio::select! {
            ended = connection.as_mut() => ended,
            () = stopped(&mut self.stop) => {
                connection.as_mut().graceful_shutdown();
                connection.await
            }
        };
        if let Err(error) = ended {
            tracing::debug!("API connection failed: {error}");
        }
    }
}

/// The body of a response; until it is dropped, the connection counts as answering a request.
struct AnswerBody {
    body: axum::body::Body,
    _guard: AnswerGuard,
}

impl Body for AnswerBody {
    type Data = <axum::body::Body as Body>::Data;
    type Error = axum::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Self::Data>, Self::Error>>> {
        Pin::new(&mut self.body).poll_frame(context)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}
