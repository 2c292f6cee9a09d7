//! Creation of sockets.

use socket2::{Domain, Protocol, SockRef, Socket, TcpKeepalive, Type};
use std::io;
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::time::Duration;

/// Maximum number of connections that wait to be accepted.
const BACKLOG: i32 = 4096;
/// Silence after which the kernel checks whether the peer is still alive.
const KEEPALIVE: Duration = Duration::from_secs(60);
/// Time that sent bytes may stay unacknowledged before the connection counts as lost.
const UNACKNOWLEDGED_MAX: Duration = Duration::from_secs(60);

/// Listens on `address`; non-blocking. `[::]` accepts IPv4 as well if the system allows.
///
/// # Errors
/// Errors of the system: address in use, no permission, no such address.
pub fn listen(address: SocketAddr) -> io::Result<TcpListener> {
    let socket = Socket::new(Domain::for_address(address), Type::STREAM, Some(Protocol::TCP))?;
    socket.set_reuse_address(true)?;
    if address.is_ipv6() && address.ip().is_unspecified() {
        socket.set_only_v6(false)?;
    }
    socket.bind(&address.into())?;
    socket.listen(BACKLOG)?;
    socket.set_nonblocking(true)?;
    Ok(socket.into())
}

/// Connects to `address` within `timeout` and prepares the socket.
///
/// # Errors
/// Errors of the system, and timeout.
pub async fn connect(address: SocketAddr, timeout: Duration) -> io::Result<tokio::net::TcpStream> {
    let connecting = tokio::net::TcpStream::connect(address);
    let stream = tokio::time::timeout(timeout, connecting)
        .await
        .map_err(|_| io::Error::from(io::ErrorKind::TimedOut))??;
    refuse_self_connection(&SockRef::from(&stream), address)?;
    set_options(&SockRef::from(&stream))?;
    Ok(stream)
}

/// Refuses a socket that is connected to itself. If no process listens on a local port in the
/// ephemeral range, the system at some time assigns this port to the connecting socket and connects
/// it to itself (RFC 9293, simultaneous open). There is no peer, and the port must become free for
/// the server.
fn refuse_self_connection(socket: &SockRef<'_>, peer: SocketAddr) -> io::Result<()> {
    if socket.local_addr()?.as_socket() != Some(peer) {
        return Ok(());
    }
    socket.set_linger(Some(Duration::ZERO))?; // no TIME-WAIT, which would keep the port
    Err(io::ErrorKind::ConnectionRefused.into())
}

/// Prepares an accepted socket for a core: non-blocking, no delay, keep-alive.
///
/// # Errors
/// Errors of the system; the connection is then unusable.
pub fn prepare(stream: &TcpStream) -> io::Result<()> {
    stream.set_nonblocking(true)?;
    set_options(&SockRef::from(stream))
}

fn set_options(socket: &SockRef<'_>) -> io::Result<()> {
    socket.set_tcp_nodelay(true)?;
    socket.set_tcp_keepalive(
        &TcpKeepalive::new().with_time(KEEPALIVE).with_interval(KEEPALIVE / 4),
    )?;
    socket.set_tcp_user_timeout(Some(UNACKNOWLEDGED_MAX))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal: a socket that the system has connected to itself is refused, and its port is free at
    /// once; another connection from the same address is accepted. Fault: a restarted server
    /// that found its port taken by the client that waited for it.
    #[test]
    fn self_connections_are_refused() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let other = TcpStream::connect(address).unwrap();
        refuse_self_connection(&SockRef::from(&other), address).unwrap();

        let socket = Socket::new(Domain::IPV4, Type::STREAM, Some(Protocol::TCP)).unwrap();
        socket.bind(&"127.0.0.1:0".parse::<SocketAddr>().unwrap().into()).unwrap();
        let itself = socket.local_addr().unwrap();
        socket.connect(&itself).unwrap();
        let address = itself.as_socket().unwrap();
        let error = refuse_self_connection(&SockRef::from(&socket), address).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::ConnectionRefused);
        drop(socket);
        let again = Socket::new(Domain::IPV4, Type::STREAM, Some(Protocol::TCP)).unwrap();
        again.bind(&itself).unwrap();
    }
}
