//! A relay for TCP that is a network: with a delay, a rate and windows.
//!
//! Each byte arrives one *delay* after it was taken from its sender, and a sender has at most a
//! *window* of bytes under way on each connection and in each direction: the credit for a byte
//! comes back one delay after its receiver took it, as TCP's would. So a connection carries
//! window ÷ (2 × delay) at most, as over a real distance. The *rate* is that of one link in each
//! direction, which all connections share; what waits for it waits in line, and when 4 ms of bytes
//! wait, senders wait too.
//!
//! Not in the model: loss and congestion control, reordering, headers of TCP and IP (a rate counts
//! payload), and the making of connections, which takes no delay. What the kernels between the
//! relay and both ends hold is not under way: at the sender it has not left yet, at the receiver it
//! was delivered. Where there is a window, the relay's own sockets hold little.
//!
//! One thread carries all connections; it wakes up for whatever is due, and what is due within
//! 50 µs is done together, so delays may be that much longer.

mod carrier;
mod pipe;
mod ring;

use self::carrier::Carrier;
use std::io;
use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::thread::JoinHandle;
use std::time::Duration;

/// The longest delay: a message to the moon and back takes less.
pub const DELAY_MAX: Duration = Duration::from_secs(2);
/// The smallest window in bytes: one frame.
pub const WINDOW_MIN: u64 = 1_500;

/// What the network is like.
#[derive(Clone, Copy, Debug, Default, Eq, Hash, PartialEq)]
pub struct Model {
    /// Each way.
    pub delay: Duration,
    /// Bytes a second in each direction, shared by all connections; `None`: no limit.
    pub rate_bytes_per_second: Option<u64>,
    /// Bytes under way on a connection, in each direction; `None`: 64 MiB, which its memory is
    /// limited by.
    pub window_bytes: Option<u64>,
}

/// A relay that is running. It ends when it is dropped, and its connections with it.
#[derive(Debug)]
pub struct Relay {
    address: SocketAddr,
    /// Closed: the thread is to end.
    stop: Option<UnixStream>,
    thread: Option<JoinHandle<()>>,
    cpu_nanos: Arc<AtomicU64>,
}

impl Relay {
    /// Carries whatever connects to its address, on loopback, to `to`.
    ///
    /// # Errors
    /// When the system gives no sockets or no thread.
    pub fn start(model: Model, to: SocketAddr) -> io::Result<Self> {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?;
        listener.set_nonblocking(true)?;
        let address = listener.local_addr()?;
        let (stop, stopped) = UnixStream::pair()?;
        let cpu_nanos = Arc::<AtomicU64>::default();
        let carrier = Carrier::new(model, to, listener, stopped, Arc::clone(&cpu_nanos));
        let thread = std::thread::Builder::new().name("relay".to_owned());
        let thread = thread.spawn(move || carrier.run())?;
        Ok(Self { address, stop: Some(stop), thread: Some(thread), cpu_nanos })
    }

    /// Where to connect.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// What its thread has had of the processors so far.
    pub fn processor_time(&self) -> Duration {
        Duration::from_nanos(self.cpu_nanos.load(Relaxed))
    }
}

impl Drop for Relay {
    fn drop(&mut self) {
        drop(self.stop.take());
        if let Some(thread) = self.thread.take() {
            // A panic of the thread has been told by the thread.
            drop(thread.join());
        }
    }
}

#[cfg(test)]
mod tests;
