//! A TCP relay that simulates a network with a delay, a rate and windows.
//!
//! Each byte arrives one *delay* after it was taken from its sender, and a sender has at most a
//! *window* of bytes in flight on each connection and in each direction: the credit for a byte
//! returns one delay after its receiver took it, as TCP's would. A connection therefore carries at
//! most window ÷ (2 × delay), as over a real distance. The *rate* is that of one link in each
//! direction, which all connections share; bytes queue for the link, and when 4 ms of bytes are
//! queued, senders wait too.
//!
//! The model leaves out loss and congestion control, reordering, headers of TCP and IP (a rate
//! counts payload), and the establishment of connections, which takes no delay. Bytes held by the
//! kernels between the relay and both ends are not in flight: at the sender they have not left yet,
//! at the receiver they were delivered. With a window, the relay's own sockets have small buffers.
//!
//! One thread carries all connections; it wakes up when bytes are due, and handles all that are due
//! within 50 µs together, so delays may be that much longer.

mod forwarder;
mod pipe;
mod ring;

use self::forwarder::Forwarder;
use std::io;
use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::thread::JoinHandle;
use std::time::Duration;

/// Longest delay: more than a radio signal to the moon takes.
pub const DELAY_MAX: Duration = Duration::from_secs(2);
/// Smallest window in bytes: one frame.
pub const WINDOW_MIN: u64 = 1_500;

/// Model of the network.
#[derive(Clone, Copy, Debug, Default, Eq, Hash, PartialEq)]
pub struct Model {
    /// Delay in each direction.
    pub delay: Duration,
    /// Bytes a second in each direction, shared by all connections; `None`: no limit.
    pub rate_bytes_per_second: Option<u64>,
    /// Bytes in flight on a connection, in each direction; `None`: 64 MiB, the limit of its memory.
    pub window_bytes: Option<u64>,
}

impl Model {
    /// Formats the model for people: `2 ms each way, 1Gbit, windows of 256Ki`. `rate_text` formats
    /// bytes a second.
    pub fn text(&self, rate_text: impl Fn(u64) -> String) -> String {
        let mut parts = vec![format!("{} ms each way", self.delay.as_secs_f64() * 1e3)];
        parts.extend(self.rate_bytes_per_second.map(rate_text));
        let window = |bytes: u64| format!("window {}", crate::report::size_text(bytes));
        parts.extend(self.window_bytes.map(window));
        parts.join(", ")
    }
}

/// A running relay. It and its connections end on drop.
#[derive(Debug)]
pub struct Relay {
    address: SocketAddr,
    /// Closed to stop the thread.
    stop: Option<UnixStream>,
    thread: Option<JoinHandle<()>>,
    cpu_nanos: Arc<AtomicU64>,
}

impl Relay {
    /// Starts a relay that carries connections to its address, on loopback, to `to`.
    ///
    /// # Errors
    /// When the system provides no sockets or thread.
    pub fn start(model: Model, to: SocketAddr) -> io::Result<Self> {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?;
        listener.set_nonblocking(true)?;
        let address = listener.local_addr()?;
        let (stop, stopped) = UnixStream::pair()?;
        let cpu_nanos = Arc::<AtomicU64>::default();
        let forwarder = Forwarder::new(model, to, listener, stopped, Arc::clone(&cpu_nanos));
        let thread = std::thread::Builder::new().name("relay".to_owned());
        let thread = thread.spawn(move || forwarder.run())?;
        Ok(Self { address, stop: Some(stop), thread: Some(thread), cpu_nanos })
    }

    /// Address to connect to.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Processor time that the relay's thread has used so far.
    pub fn processor_time(&self) -> Duration {
        Duration::from_nanos(self.cpu_nanos.load(Relaxed))
    }
}

impl Drop for Relay {
    fn drop(&mut self) {
        drop(self.stop.take());
        if let Some(thread) = self.thread.take() {
            // A panic of the thread was reported by the thread.
            drop(thread.join());
        }
    }
}

#[cfg(test)]
mod tests;
