//! Making sockets.

use socket2::{Domain, Protocol, SockRef, Socket, TcpKeepalive, Type};
use std::io;
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::time::Duration;

/// Connections that wait to be accepted, at most.
const BACKLOG: i32 = 4096;
/// Silence after which the kernel asks whether the peer is still there.
const KEEPALIVE: Duration = Duration::from_secs(60);
/// How long sent bytes may stay unacknowledged before the connection counts as lost.
const UNACKNOWLEDGED_MAX: Duration = Duration::from_secs(60);

/// Listens on `address`; non-blocking. `[::]` takes IPv4 as well where the system allows.
///
/// # Errors
/// As the system says: in use, no permission, no such address.
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
/// As the system says.
pub async fn connect(address: SocketAddr, timeout: Duration) -> io::Result<tokio::net::TcpStream> {
    let connecting = tokio::net::TcpStream::connect(address);
    let stream = tokio::time::timeout(timeout, connecting)
        .await
        .map_err(|_| io::Error::from(io::ErrorKind::TimedOut))??;
    refuse_itself(&SockRef::from(&stream), address)?;
    set_options(&SockRef::from(&stream))?;
    Ok(stream)
}

/// Where nobody listens on a port of this machine from which the system gives out ports, it gives
/// sooner or later this very one to who asks for it, and connects the socket to itself (RFC 9293,
/// simultaneous open). Then nobody is there, and the port is free for who should be.
fn refuse_itself(socket: &SockRef<'_>, peer: SocketAddr) -> io::Result<()> {
    if socket.local_addr()?.as_socket() != Some(peer) {
        return Ok(());
    }
    socket.set_linger(Some(Duration::ZERO))?; // no TIME-WAIT, which would keep the port
    Err(io::ErrorKind::ConnectionRefused.into())
}

/// Makes an accepted socket ready for a core: non-blocking, no delay, keep-alive.
///
/// # Errors
/// As the system says; the connection is then of no use.
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

    /// Goal: a socket that the system has connected to itself is nobody's, and its port is free at
    /// once; another connection from the same address is one. Named by: a restarted server that
    /// found its port taken by the client that waited for it.
    #[test]
    fn nobody_is_connected_to_itself() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let other = TcpStream::connect(address).unwrap();
        refuse_itself(&SockRef::from(&other), address).unwrap();

        let socket = Socket::new(Domain::IPV4, Type::STREAM, Some(Protocol::TCP)).unwrap();
        socket.bind(&"127.0.0.1:0".parse::<SocketAddr>().unwrap().into()).unwrap();
        let itself = socket.local_addr().unwrap();
        socket.connect(&itself).unwrap();
        let address = itself.as_socket().unwrap();
        let error = refuse_itself(&SockRef::from(&socket), address).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::ConnectionRefused);
        drop(socket);
        let again = Socket::new(Domain::IPV4, Type::STREAM, Some(Protocol::TCP)).unwrap();
        again.bind(&itself).unwrap();
    }
}
