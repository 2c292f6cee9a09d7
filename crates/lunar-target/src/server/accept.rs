//! The thread that accepts connections.

use crate::Error;
use crate::connection::{self, ConnectionServices};
use crate::open_files::EVICTED_MAX;
use crate::portals::ConnectionPath;
use lunar_net::Cores;
use std::net::{SocketAddr, TcpListener};
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;
use tokio::sync::watch;

/// Pause before accepting again when the system has no descriptor left.
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);
/// Pause before accepting again while evicted connections are not closed yet.
const EVICTED_PAUSE: Duration = Duration::from_millis(1);

/// Accepts on every listener, on a thread of its own, and spreads connections over the cores.
pub(super) fn accept(
    listeners: Vec<TcpListener>,
    services: Arc<ConnectionServices>,
    cores: Arc<Cores>,
    stop: watch::Receiver<bool>,
) -> Result<JoinHandle<()>, Error> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .map_err(Error::Thread)?;
    let mut accepting = Vec::new();
    for (portal, listener) in listeners.into_iter().enumerate() {
        let _guard = runtime.enter();
        let listener = tokio::net::TcpListener::from_std(listener).map_err(Error::Thread)?;
        accepting.push((portal, listener));
    }
    std::thread::Builder::new()
        .name("accept".into())
        .spawn(move || {
            let mut tasks = tokio::task::JoinSet::new();
            for (portal, listener) in accepting {
                let work = accept_on(
                    listener,
                    portal,
                    Arc::clone(&services),
                    Arc::clone(&cores),
                    stop.clone(),
                );
                tasks.spawn_on(work, runtime.handle());
            }
            runtime.block_on(async { while tasks.join_next().await.is_some() {} });
        })
        .map_err(Error::Thread)
}

async fn accept_on(
    listener: tokio::net::TcpListener,
    portal: usize,
    services: Arc<ConnectionServices>,
    cores: Arc<Cores>,
    mut stop: watch::Receiver<bool>,
) {
    let connections = &services.connections;
    loop {
        while connections.evicted_count() >= EVICTED_MAX {
            tokio::time::sleep(EVICTED_PAUSE).await;
        }
        let accepted = tokio::select! {
            accepted = listener.accept() => accepted,
            _ = stop.wait_for(|stop| *stop) => return,
        };
        let accepted = accepted.and_then(|(tcp, peer)| {
            let local = tcp.local_addr()?;
            // IPv4 addresses are given as IPv4, also on a socket of both families.
            let peer = SocketAddr::new(peer.ip().to_canonical(), peer.port());
            Ok((tcp.into_std()?, ConnectionPath { peer, local, portal }))
        });
        match accepted {
            Ok((tcp, path)) => connection::spawn(&services, &cores, tcp, path),
            Err(error) => {
                if is_out_of_files(&error) {
                    connections.make_room();
                }
                connections.warn(None, &format!("cannot accept the connection: {error}"));
                tokio::time::sleep(ACCEPT_PAUSE).await;
            }
        }
    }
}

fn is_out_of_files(error: &std::io::Error) -> bool {
    let errno = rustix::io::Errno::from_io_error(error);
    matches!(errno, Some(rustix::io::Errno::MFILE | rustix::io::Errno::NFILE))
}
