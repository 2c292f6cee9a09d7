//! A relay of bytes between two sockets: the cost of a switch that knows no protocol.
//!
//! One thread serves all connections. It waits in `poll`, receives up to `HOT_BYTES` into one
//! buffer and sends them on. Bytes that the other socket does not take at once are kept, and
//! nothing more is received for it meanwhile.

use crate::system::process::ServerProcess;
use anyhow::{Context, Result, ensure};
use rustix::event::{PollFd, PollFlags, poll};
use std::io::{ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::time::Duration;

/// Size of the buffer through which all bytes go: it stays in the processor's cache.
const HOT_BYTES: usize = 256 << 10;
/// Maximum number of connections at once; more connections wait in the listener.
const CONNECTIONS_MAX: usize = 64;
/// Maximum time until it listens.
const START_MAX: Duration = Duration::from_secs(60);
/// Text that the program prints before its address.
const LISTENING: &str = "listening on ";

/// A relay of bytes to another address: an upper bound for a switch, on one thread
#[derive(Debug, clap::Args)]
pub struct ByteRelay {
    /// Address to listen on; port 0: a free one
    #[arg(long, value_name = "ADDRESS:PORT", default_value = "127.0.0.1:0")]
    listen: SocketAddr,
    /// Address to connect to, once for each connection
    #[arg(long, value_name = "ADDRESS:PORT")]
    to: SocketAddr,
}

impl ByteRelay {
    /// Relays until the process is killed.
    ///
    /// # Errors
    /// The address cannot be used.
    pub fn run(&self) -> Result<()> {
        let listener = TcpListener::bind(self.listen)
            .with_context(|| format!("listening on {}: is the port taken?", self.listen))?;
        let mut out = std::io::stdout();
        writeln!(out, "{LISTENING}{}", listener.local_addr()?)?;
        out.flush()?;
        serve(&listener, self.to)
    }
}

/// Two connected sockets.
struct SocketPair {
    sockets: [TcpStream; 2],
    /// Bytes that came from the socket of the same index, and that the other one has not taken.
    kept: [Vec<u8>; 2],
}

impl SocketPair {
    fn new(host: TcpStream, to: SocketAddr) -> Result<Self> {
        let sockets = [host, TcpStream::connect(to)?];
        for socket in &sockets {
            socket.set_nodelay(true)?;
            socket.set_nonblocking(true)?;
        }
        Ok(Self { sockets, kept: [Vec::new(), Vec::new()] })
    }

    /// Returns the events to wait for at a socket.
    fn awaited(&self, at: usize) -> PollFlags {
        let mut flags = PollFlags::empty();
        flags.set(PollFlags::IN, self.kept[at].is_empty());
        flags.set(PollFlags::OUT, !self.kept[1 - at].is_empty());
        flags
    }

    /// Moves bytes in both directions, as far as sockets are `ready`.
    ///
    /// # Errors
    /// A connection is over.
    fn turn(&mut self, ready: [bool; 2], hot: &mut [u8]) -> Result<()> {
        for from in 0..2 {
            if !self.kept[from].is_empty() && ready[1 - from] {
                let sent = send(&self.sockets[1 - from], &self.kept[from])?;
                self.kept[from].drain(..sent);
            }
            if self.kept[from].is_empty() && ready[from] {
                let bytes = match (&self.sockets[from]).read(hot) {
                    Err(error) if error.kind() == ErrorKind::WouldBlock => continue,
                    received => received?,
                };
                ensure!(bytes > 0, "the peer closed the connection");
                let sent = send(&self.sockets[1 - from], &hot[..bytes])?;
                self.kept[from].extend_from_slice(&hot[sent..bytes]);
            }
        }
        Ok(())
    }
}

/// Sends as much as the socket takes; returns the number of bytes.
fn send(mut socket: &TcpStream, data: &[u8]) -> Result<usize> {
    let mut sent = 0;
    while sent < data.len() {
        match socket.write(&data[sent..]) {
            Ok(bytes) => sent += bytes,
            Err(error) if error.kind() == ErrorKind::WouldBlock => break,
            Err(error) => return Err(error.into()),
        }
    }
    Ok(sent)
}

/// Relays all connections.
///
/// # Errors
/// The system gives no more sockets.
fn serve(listener: &TcpListener, to: SocketAddr) -> Result<()> {
    listener.set_nonblocking(true)?;
    let mut pairs: Vec<SocketPair> = Vec::new();
    let mut hot = vec![0; HOT_BYTES];
    let mut ready: Vec<bool> = Vec::new();
    loop {
        let mut waiting: Vec<PollFd<'_>> = Vec::new();
        for pair in &pairs {
            let fds = pair.sockets.iter().enumerate();
            waiting.extend(fds.map(|(at, socket)| PollFd::new(socket, pair.awaited(at))));
        }
        if pairs.len() < CONNECTIONS_MAX {
            waiting.push(PollFd::new(listener, PollFlags::IN));
        }
        match poll(&mut waiting, None) {
            Ok(_) | Err(rustix::io::Errno::INTR) => {}
            Err(error) => return Err(error).context("waiting for sockets"),
        }
        ready.clear();
        ready.extend(waiting.iter().map(|one| !one.revents().is_empty()));
        drop(waiting);
        let listener_at = 2 * pairs.len();
        let mut at = 0;
        pairs.retain_mut(|pair| {
            at += 2;
            // The end of a connection affects this pair alone.
            pair.turn([ready[at - 2], ready[at - 1]], &mut hot).is_ok()
        });
        if ready.get(listener_at) == Some(&true) {
            match listener.accept() {
                // A connection whose other end refuses is closed.
                Ok((socket, _)) => pairs.extend(SocketPair::new(socket, to).ok()),
                Err(error) if error.kind() == ErrorKind::WouldBlock => {}
                Err(error) => return Err(error).context("taking a connection"),
            }
        }
    }
}

/// A byte relay in a process of its own, which ends with its owner.
pub struct RelayServer {
    server: ServerProcess,
    address: String,
}

impl RelayServer {
    /// Starts `BY lab byte-relay` on a free port of `ip`. `by` is a program with its arguments that
    /// becomes the relay, or empty.
    ///
    /// # Errors
    /// The relay does not listen.
    pub fn start(by: &[&str], ip: &str, to: &str) -> Result<Self> {
        let own = std::env::current_exe()?;
        let own = own.to_str().context("a path in UTF-8")?;
        let listen = format!("{ip}:0");
        let line = [by, &[own, "byte-relay", "--listen", &listen, "--to", to]].concat();
        let mut server = ServerProcess::start(line[0], &line[1..])?;
        let line = server.wait_for_line(LISTENING, START_MAX)?;
        let address = line.strip_prefix(LISTENING).context("the relay printed no address")?;
        Ok(Self { address: address.trim().to_owned(), server })
    }

    /// Returns its address.
    pub fn address(&self) -> &str {
        &self.address
    }

    /// Returns the number of its process.
    pub fn pid(&self) -> u32 {
        self.server.id()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::thread;

    /// Goal: all bytes arrive in order in both directions, also when an end reads late, and the end
    /// of one socket closes the other.
    #[test]
    fn bytes_arrive() {
        const BYTES: usize = 8 << 20;
        let far = TcpListener::bind("127.0.0.1:0").unwrap();
        let near = TcpListener::bind("127.0.0.1:0").unwrap();
        let (address, to) = (near.local_addr().unwrap(), far.local_addr().unwrap());
        // This relay ends with the test's process.
        thread::spawn(move || serve(&near, to));
        let data: Vec<u8> = (0..BYTES).map(|at| (at / 7) as u8).collect();
        let mut host = TcpStream::connect(address).unwrap();
        let (mut storage, _) = far.accept().unwrap();
        thread::scope(|scope| {
            // Both ends send first, so that both directions are full before anybody reads.
            let sent = [&host, &storage].map(|socket| {
                let (mut socket, data) = (socket.try_clone().unwrap(), &data);
                scope.spawn(move || socket.write_all(data).unwrap())
            });
            for socket in [&mut host, &mut storage] {
                let mut received = vec![0; BYTES];
                socket.read_exact(&mut received).unwrap();
                assert!(received == data);
            }
            for thread in sent {
                thread.join().unwrap();
            }
        });
        drop(storage);
        assert_eq!(host.read(&mut [0]).unwrap(), 0);
    }
}
