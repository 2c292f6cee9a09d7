//! HTTP on a thread of its own: a unix socket or TCP, with TLS or without, every wait limited.

mod address;
mod charged;
mod connection;
mod connection_slots;
mod directory_lock;
mod socket_file;
mod stall;

use crate::renewal::Slot;
use crate::tls::{self, ServerTls, TlsFiles};
use crate::{Failure, Readable};
use connection::Acceptor;
use std::os::unix::net::UnixListener;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;
use tokio::sync::watch;

pub(crate) use address::runtime_directories;
pub use address::{Address, default_sockets};
pub(crate) use charged::charged;
pub use connection::Peer;
pub use socket_file::SocketFile;
pub(crate) use socket_file::is_live;

/// Threads for work that blocks, as opening files; more of it waits. Changes and recoveries, which
/// disks that hang may hold up for ever, take three of them at most.
const BLOCKING_THREADS_MAX: usize = 8;
/// How long work that still runs may hold up the end.
const STOP_GRACE: Duration = Duration::from_secs(2);

/// Where and how to serve.
#[derive(Clone, Debug)]
pub struct HttpOptions {
    /// Where.
    pub address: Address,
    /// Certificate and key; `None`: without TLS.
    pub tls: Option<TlsFiles>,
    /// What a client may cost.
    pub limits: HttpLimits,
}

/// Named limits of an HTTP server.
#[derive(Clone, Debug)]
pub struct HttpLimits {
    /// Connections at once. One more closes the one that awaits a whole head for the longest time,
    /// or waits while all answer requests.
    pub connections: usize,
    /// Of these, of one address (IPv6: one /64; 127.0.0.0/8). One more closes one of these,
    /// likewise, or is closed at once.
    pub connections_per_address: usize,
    /// Bytes of a request's head.
    pub head_bytes: usize,
    /// How long a head may take to come in, and how long a connection may idle before the next.
    pub head_time: Duration,
    /// How long a TLS handshake may take.
    pub handshake_time: Duration,
    /// How long a client may leave an answer unread.
    pub stall_time: Duration,
}

impl Default for HttpLimits {
    fn default() -> Self {
        Self {
            connections: 64,
            connections_per_address: 16,
            head_bytes: 16 << 10,
            head_time: Duration::from_secs(10),
            handshake_time: Duration::from_secs(10),
            stall_time: Duration::from_secs(30),
        }
    }
}

/// An HTTP server; ends when dropped.
#[derive(Debug)]
pub struct HttpServer {
    address: Address,
    stop: watch::Sender<bool>,
    thread: Option<JoinHandle<()>>,
}

/// What is listened on.
#[derive(Debug)]
pub(crate) enum Listener {
    /// The file is taken away before nobody listens on it any more.
    Unix(SocketFile, UnixListener),
    Tcp(std::net::TcpListener),
}

/// A server that has its address; who connects waits until it serves.
pub struct Bound {
    listener: Listener,
    address: Address,
    tls: Arc<Slot<ServerTls>>,
    limits: HttpLimits,
}

impl Bound {
    /// Listens.
    ///
    /// # Errors
    /// An address that is taken or cannot be had, a certificate that cannot be used.
    pub fn bind(options: HttpOptions) -> Result<Self, Failure> {
        let tls =
            options.tls.as_ref().map(|files| tls::server(files, Readable::Any)).transpose()?;
        let (listener, address) = listen(&options.address)?;
        Ok(Self { listener, address, tls: Slot::new(tls), limits: options.limits })
    }

    /// Where it listens, with the port it got.
    pub fn address(&self) -> &Address {
        &self.address
    }

    /// The certificate that clients are shown.
    pub(crate) fn tls(&self) -> Arc<Slot<ServerTls>> {
        Arc::clone(&self.tls)
    }

    /// Serves `router`, whose handlers find a [`Peer`] among the extensions of each request.
    ///
    /// # Errors
    /// When the system gives no thread.
    pub fn serve(self, router: axum::Router) -> Result<HttpServer, Failure> {
        let thread_failed = |error| Failure::new(format!("no thread for HTTP: {error}"));
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .max_blocking_threads(BLOCKING_THREADS_MAX)
            .thread_name("control")
            .build()
            .map_err(thread_failed)?;
        let (stop, stopped) = watch::channel(false);
        let acceptor = {
            let _guard = runtime.enter();
            Acceptor::new(self.listener, self.tls, router, Arc::new(self.limits))
                .map_err(thread_failed)?
        };
        let thread = std::thread::Builder::new()
            .name("control".to_owned())
            .spawn(move || {
                runtime.block_on(acceptor.run(stopped));
                runtime.shutdown_timeout(STOP_GRACE);
            })
            .map_err(thread_failed)?;
        Ok(HttpServer { address: self.address, stop, thread: Some(thread) })
    }
}

impl HttpServer {
    /// Listens and serves `router`; returns once connections are accepted.
    ///
    /// # Errors
    /// As [`Bound::bind`] and [`Bound::serve`].
    pub fn start(options: HttpOptions, router: axum::Router) -> Result<Self, Failure> {
        Bound::bind(options)?.serve(router)
    }

    /// Where it listens, with the port it got.
    pub fn address(&self) -> &Address {
        &self.address
    }
}

impl Drop for HttpServer {
    fn drop(&mut self) {
        self.stop.send_replace(true);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join(); // a panic there was printed already
        }
    }
}

fn listen(address: &Address) -> Result<(Listener, Address), Failure> {
    match address {
        Address::Unix(path) => {
            let (listener, socket) = socket_file::listen(path)?;
            Ok((Listener::Unix(socket, listener), address.clone()))
        }
        Address::Tcp(wanted) => {
            let failed = |error: std::io::Error| {
                Failure::new(format!("cannot listen on {wanted}: {error}"))
                    .hint("choose another port (0 takes a free one), or an address of this machine")
            };
            let listener = std::net::TcpListener::bind(wanted).map_err(failed)?;
            listener.set_nonblocking(true).map_err(failed)?;
            let bound = listener.local_addr().map_err(failed)?;
            Ok((Listener::Tcp(listener), Address::Tcp(bound)))
        }
    }
}
