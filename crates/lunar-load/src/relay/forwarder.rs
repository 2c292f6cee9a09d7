//! The thread of a relay: its sockets, driven by the model.

use super::Model;
use super::pipe::{Link, Pipe};
use super::ring::Ring;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::time::{ClockId, clock_gettime};
use socket2::{Domain, Protocol, Socket, Type};
use std::io::{self, ErrorKind};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::{Duration, Instant};

/// Time within which all due bytes are handled together.
const WAKE_INTERVAL: Duration = Duration::from_micros(50);
/// Maximum number of bytes of one read.
const READ_MAX: u64 = 256 << 10;
/// Maximum number of reads of one connection before the others are served.
const READS_MAX: usize = 4;
/// Maximum number of connections of one relay. More are closed at once.
const CONNECTIONS_MAX: usize = 256;
/// Bounds of the socket buffers if there is a window; the minimum is the size of loopback's frames,
/// 64 KiB.
const SOCKET_BUFFER_MIN: u64 = 64 << 10;
const SOCKET_BUFFER_MAX: u64 = 1 << 20;
/// Pause between attempts when the system provides no more sockets.
const ACCEPT_PAUSE: Duration = Duration::from_millis(10);

/// The thread's state: all connections of a relay.
pub(super) struct Forwarder {
    model: Model,
    to: SocketAddr,
    listener: TcpListener,
    stopped: UnixStream,
    cpu_nanos: Arc<AtomicU64>,
    begin: Instant,
    /// Towards the target, and back.
    links: [Link; 2],
    connections: Vec<Connection>,
}

/// One connection: two sockets, and the state of each direction.
struct Connection {
    client: TcpStream,
    target: TcpStream,
    connecting: bool,
    directions: [RelayDirection; 2],
}

/// One direction of a connection.
struct RelayDirection {
    pipe: Pipe,
    ring: Ring,
    /// True when the sender has no more bytes, or the receiver is gone.
    ended: bool,
    /// True when the receiver was notified of the end.
    closed: bool,
}

/// Result of a wait.
struct Ready {
    /// True when connections wait to be accepted.
    has_new_connections: bool,
    /// For each connection, the sockets that are ready: client, target.
    readable: Vec<[bool; 2]>,
}

impl Forwarder {
    pub(super) fn new(
        model: Model,
        to: SocketAddr,
        listener: TcpListener,
        stopped: UnixStream,
        cpu_nanos: Arc<AtomicU64>,
    ) -> Self {
        let link = Link::new(&model);
        Self {
            model,
            to,
            listener,
            stopped,
            cpu_nanos,
            begin: Instant::now(),
            links: [link.clone(), link],
            connections: Vec::new(),
        }
    }

    /// Runs until the relay is stopped.
    pub(super) fn run(mut self) {
        while let Some(ready) = self.wait() {
            let begin = self.begin;
            for (connection, readable) in self.connections.iter_mut().zip(ready.readable) {
                connection.forward(readable, &mut self.links, begin);
            }
            self.connections.retain(|connection| !connection.is_over());
            if ready.has_new_connections
                && let Err(error) = self.accept()
            {
                tracing::warn!(%error, "the relay cannot accept a connection");
                std::thread::sleep(ACCEPT_PAUSE);
            }
            let time = clock_gettime(ClockId::ThreadCPUTime);
            let nanos = time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64;
            self.cpu_nanos.store(nanos, Relaxed);
        }
    }

    /// Waits for sockets or until bytes are due; `None` when the relay is to stop.
    fn wait(&mut self) -> Option<Ready> {
        let now = self.begin.elapsed();
        let mut next_event: Option<Duration> = None;
        let mut interests = Vec::with_capacity(self.connections.len());
        for connection in &mut self.connections {
            let (sides, due) = connection.interests(&self.links, now);
            interests.push(sides);
            next_event = [next_event, due].into_iter().flatten().min();
        }
        let mut sockets = vec![
            PollFd::new(&self.stopped, PollFlags::IN),
            PollFd::new(&self.listener, PollFlags::IN),
        ];
        let mut sides = Vec::new();
        for (at, (connection, flags)) in self.connections.iter().zip(interests).enumerate() {
            let both = [&connection.client, &connection.target];
            for (side, (socket, flags)) in both.into_iter().zip(flags).enumerate() {
                // A socket without requested events would report its end again and again.
                if !flags.is_empty() {
                    sockets.push(PollFd::new(socket, flags));
                    sides.push((at, side));
                }
            }
        }
        let pause = next_event.map(|next_event| {
            let pause = next_event.saturating_sub(now).max(WAKE_INTERVAL);
            Timespec {
                tv_sec: i64::try_from(pause.as_secs()).unwrap_or(i64::MAX),
                tv_nsec: pause.subsec_nanos().into(),
            }
        });
        match poll(&mut sockets, pause.as_ref()) {
            Ok(_) | Err(rustix::io::Errno::INTR) => {}
            Err(error) => {
                tracing::warn!(%error, "the relay cannot wait for its sockets");
                return None;
            }
        }
        let is_ready = |socket: &PollFd<'_>| !socket.revents().is_empty();
        let mut readable = vec![[false; 2]; self.connections.len()];
        for (socket, (at, side)) in sockets[2..].iter().zip(sides) {
            readable[at][side] = is_ready(socket);
        }
        (!is_ready(&sockets[0]))
            .then(|| Ready { has_new_connections: is_ready(&sockets[1]), readable })
    }

    fn accept(&mut self) -> io::Result<()> {
        loop {
            let client = match self.listener.accept() {
                Ok((client, _)) => client,
                Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok(()),
                Err(error) => return Err(error),
            };
            if self.connections.len() < CONNECTIONS_MAX {
                let connection = Connection::new(client, self.to, &self.model)?;
                self.connections.push(connection);
            }
        }
    }
}

impl Connection {
    fn new(client: TcpStream, to: SocketAddr, model: &Model) -> io::Result<Self> {
        let target = Socket::new(Domain::for_address(to), Type::STREAM, Some(Protocol::TCP))?;
        let client = Socket::from(client);
        for socket in [&client, &target] {
            socket.set_nonblocking(true)?;
            socket.set_tcp_nodelay(true)?;
            if let Some(window) = model.window_bytes {
                let buffer_bytes = window.clamp(SOCKET_BUFFER_MIN, SOCKET_BUFFER_MAX) as usize;
                socket.set_recv_buffer_size(buffer_bytes)?;
                socket.set_send_buffer_size(buffer_bytes)?;
            }
        }
        let in_progress = Some(rustix::io::Errno::INPROGRESS.raw_os_error());
        let connecting = match target.connect(&to.into()) {
            Ok(()) => false,
            Err(error) if error.raw_os_error() == in_progress => true,
            Err(error) => return Err(error),
        };
        let direction = || RelayDirection {
            pipe: Pipe::new(model),
            ring: Ring::default(),
            ended: false,
            closed: false,
        };
        Ok(Self {
            client: client.into(),
            target: target.into(),
            connecting,
            directions: [direction(), direction()],
        })
    }

    /// Returns the events to wait for on each socket, and the time at which bytes are due.
    fn interests(
        &mut self,
        links: &[Link; 2],
        now: Duration,
    ) -> ([PollFlags; 2], Option<Duration>) {
        if self.connecting {
            return ([PollFlags::empty(), PollFlags::OUT], None);
        }
        let (mut sides, mut next_event) = ([PollFlags::empty(); 2], None);
        for (from, (direction, link)) in self.directions.iter_mut().zip(links).enumerate() {
            let reads = !direction.ended && direction.pipe.sendable_bytes(now, link) > 0;
            sides[from].set(PollFlags::IN, reads);
            sides[1 - from].set(PollFlags::OUT, direction.pipe.arrived(now) > 0);
            let due = direction.pipe.next_event(now, link, !direction.ended && !reads);
            next_event = [next_event, due].into_iter().flatten().min();
        }
        (sides, next_event)
    }

    /// Moves the bytes that can be moved now, in both directions.
    fn forward(&mut self, readable: [bool; 2], links: &mut [Link; 2], begin: Instant) {
        if self.connecting && !self.is_connected() {
            return;
        }
        let sockets = [&self.client, &self.target];
        let mut failed = false;
        for (from, (direction, link)) in self.directions.iter_mut().zip(links).enumerate() {
            let (sender, receiver) = (sockets[from], sockets[1 - from]);
            failed |= direction.deliver(receiver, begin).is_err();
            failed |= readable[from] && direction.take(sender, link, begin).is_err();
            direction.close(receiver);
        }
        if failed {
            self.reset();
        }
    }

    /// Ends the connection at once, in both directions.
    fn reset(&mut self) {
        for socket in [&self.client, &self.target] {
            // The socket may be disconnected already.
            let _ = socket.shutdown(Shutdown::Both);
        }
        self.directions
            .iter_mut()
            .for_each(|direction| (direction.ended, direction.closed) = (true, true));
    }

    /// Checks whether the target has answered; a refusal ends both directions.
    fn is_connected(&mut self) -> bool {
        match (self.target.take_error(), self.target.peer_addr()) {
            (Ok(None), Ok(_)) => self.connecting = false,
            (Ok(None), Err(error)) if error.kind() == ErrorKind::NotConnected => {}
            _ => self.reset(),
        }
        !self.connecting && !self.is_over()
    }

    fn is_over(&self) -> bool {
        self.directions.iter().all(|direction| direction.closed)
    }
}

impl RelayDirection {
    /// Passes bytes that have arrived to the receiver.
    fn deliver(&mut self, receiver: &TcpStream, begin: Instant) -> io::Result<()> {
        let mut now = begin.elapsed();
        let mut left = self.pipe.arrived(now);
        while left > 0 && !self.closed {
            match self.ring.write_to(receiver, usize::try_from(left).unwrap_or(usize::MAX)) {
                Ok(written) => {
                    now = begin.elapsed();
                    self.pipe.deliver(now, written as u64);
                    left -= written as u64;
                }
                Err(error) if is_transient(&error) => return Ok(()),
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    /// Closes the receiver's side after the sender's end, once all bytes are delivered.
    fn close(&mut self, receiver: &TcpStream) {
        if self.ended && !self.closed && self.pipe.is_empty() {
            self.closed = true;
            // The socket may be disconnected already.
            let _ = receiver.shutdown(Shutdown::Write);
        }
    }

    /// Takes bytes from the sender while it may send.
    fn take(&mut self, sender: &TcpStream, link: &mut Link, begin: Instant) -> io::Result<()> {
        for _ in 0..READS_MAX {
            let now = begin.elapsed();
            let sendable_bytes = self.pipe.sendable_bytes(now, link).min(READ_MAX);
            if sendable_bytes == 0 {
                return Ok(());
            }
            match self.ring.read_from(sender, sendable_bytes as usize) {
                Ok(0) => {
                    self.ended = true;
                    return Ok(());
                }
                Ok(read) => {
                    self.pipe.take(begin.elapsed(), read as u64, link);
                    if (read as u64) < sendable_bytes {
                        return Ok(());
                    }
                }
                Err(error) if is_transient(&error) => return Ok(()),
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }
}

fn is_transient(error: &io::Error) -> bool {
    matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::Interrupted)
}
