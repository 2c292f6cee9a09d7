//! HTTP server on its own thread: over a unix socket or TCP, with or without TLS, with limits on
//! every wait.

mod address;
mod charged;
mod connection;
mod connection_slots;
mod directory_lock;
mod socket_file;
mod stall;

use crate::slot::Slot;
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
pub(crate) use charged::{IsCharged, charged};
pub use connection::Peer;
pub use socket_file::SocketFile;
pub(crate) use socket_file::is_live;

/// Threads for blocking work, such as opening files; further work waits. Changes and recoveries,
/// which hanging disks may block for ever, occupy at most three of them.
const BLOCKING_THREADS_MAX: usize = 8;
/// Maximum time that a shutdown waits for running work.
const STOP_GRACE: Duration = Duration::from_secs(2);

/// Options of an HTTP server.
#[derive(Clone, Debug)]
pub struct HttpOptions {
    /// The address.
    pub address: Address,
    /// Certificate and key; `None`: without TLS.
    pub tls: Option<TlsFiles>,
    /// Limits for clients.
    pub limits: HttpLimits,
}

/// Named limits of an HTTP server.
#[derive(Clone, Debug)]
pub struct HttpLimits {
    /// Maximum number of connections. Another one closes the connection that has awaited a complete
    /// head for the longest time, or waits while all are answering requests.
    pub connections: usize,
    /// Maximum number of connections of one address (IPv6: one /64; 127.0.0.0/8). Another one
    /// closes one of these in the same way, or is closed at once.
    pub connections_per_address: usize,
    /// Maximum size of a request's head in bytes.
    pub head_bytes: usize,
    /// Maximum time for receiving a head, and maximum idle time before the next one.
    pub head_time: Duration,
    /// Maximum time of a TLS handshake.
    pub handshake_time: Duration,
    /// Maximum time for which a client may leave a response unread.
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

/// A running HTTP server; ends when dropped.
#[derive(Debug)]
pub struct HttpServer {
    address: Address,
    stop: watch::Sender<bool>,
    thread: Option<JoinHandle<()>>,
}

/// A listening socket.
#[derive(Debug)]
pub(crate) enum Listener {
    /// The file is removed before its socket is closed.
    Unix(SocketFile, UnixListener),
    Tcp(std::net::TcpListener),
}

/// A server that is bound to its address; clients that connect wait until it serves.
pub struct BoundServer {
    listener: Listener,
    address: Address,
    tls: Arc<Slot<ServerTls>>,
    limits: HttpLimits,
}

impl BoundServer {
    /// Binds the address.
    ///
    /// # Errors
    /// Fails if the address is taken or not available, or the certificate cannot be used.
    pub fn bind(options: HttpOptions) -> Result<Self, Failure> {
        let tls =
            options.tls.as_ref().map(|files| tls::server(files, Readable::Any)).transpose()?;
        let (listener, address) = listen(&options.address)?;
        Ok(Self { listener, address, tls: Slot::new(tls), limits: options.limits })
    }

    /// The address it is bound to, with the actual port.
    pub fn address(&self) -> &Address {
        &self.address
    }

    /// The certificate for clients.
    pub(crate) fn tls(&self) -> Arc<Slot<ServerTls>> {
        Arc::clone(&self.tls)
    }

    /// Serves `router`, whose handlers find a [`Peer`] among the extensions of each request.
    ///
    /// # Errors
    /// Fails if the system cannot create a thread.
    pub fn serve(self, router: axum::Router) -> Result<HttpServer, Failure> {
        let thread_failed =
            |error| Failure::new(format!("cannot start a thread for HTTP: {error}"));
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
    /// Binds the address and serves `router`; returns once connections are accepted.
    ///
    /// # Errors
    /// Same as [`BoundServer::bind`] and [`BoundServer::serve`].
    pub fn start(options: HttpOptions, router: axum::Router) -> Result<Self, Failure> {
        BoundServer::bind(options)?.serve(router)
    }

    /// The address it is bound to, with the actual port.
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
