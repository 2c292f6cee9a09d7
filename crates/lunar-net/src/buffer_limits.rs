//! Limits of the data a connection buffers: in this process, and in its socket.

use crate::inbound::CHUNK_BYTES;
use crate::outbox::OUTBOX_BYTES_MAX;
use crate::unsafe_buffer_lock::unlock_buffers;
use socket2::{SockRef, Socket};
use std::io;
use std::os::fd::AsFd;
use tokio::net::TcpStream;

/// Limits of a connection's buffers, as its [`ConnectionHandler`](crate::ConnectionHandler) sets
/// them.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct BufferLimits {
    /// Bytes received by one system call, and so the most that is kept of them while the handler
    /// takes no more. At least 1, at most that of [`LARGEST`](Self::LARGEST).
    pub receive_bytes_max: usize,
    /// Number of bytes waiting to be sent at which no further PDU is handled.
    pub send_bytes_max: usize,
    /// Bytes of data in each of the socket's two buffers; `None`: as the system tunes them. The
    /// memory is twice as large (socket(7), SO_SNDBUF).
    pub socket_bytes_max: Option<u32>,
}

impl BufferLimits {
    /// Default limits: 256 KiB received at once, 4 MiB waiting to be sent, a socket tuned by the
    /// system.
    pub const LARGEST: Self = Self {
        receive_bytes_max: CHUNK_BYTES,
        send_bytes_max: OUTBOX_BYTES_MAX,
        socket_bytes_max: None,
    };
}

/// Memory that a connection holds while it waits for its peer, except the data of its tasks.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct BufferedBytes {
    /// Received and not handled, because the handler takes no more or because too much waits to be
    /// sent.
    pub received: usize,
    /// Headers that wait to be sent, and the list of pieces.
    pub queued: usize,
    /// Memory of the socket: data that is not sent or not acknowledged, and while nothing is
    /// received, the whole receive buffer.
    pub socket: usize,
}

impl BufferedBytes {
    /// True when no memory is held.
    pub(crate) fn is_none(self) -> bool {
        self == Self::default()
    }
}

/// Buffers of one socket: tuned by the system, or limited.
#[derive(Debug, Default)]
pub(crate) enum SocketBuffers {
    #[default]
    Tuned,
    /// Both buffers have a fixed size; these are their sizes before.
    Fixed { receive_bytes: usize, send_bytes: usize },
    /// The system cannot return a fixed buffer to its tuning: unsent data is limited, data in
    /// flight is not.
    UnsentBounded,
}

impl SocketBuffers {
    /// Limits the buffers of `tcp`, or returns them to the system's tuning. A socket that refuses
    /// works with other buffers as well.
    pub(crate) fn set(&mut self, tcp: &TcpStream, bytes_max: Option<u32>) {
        let socket = SockRef::from(tcp);
        let set = match bytes_max {
            Some(bytes) => self.bound(&socket, bytes),
            None => self.tune(&socket),
        };
        if let Err(error) = set {
            tracing::debug!(%error, "cannot set the buffer sizes of a socket");
        }
    }

    fn bound(&mut self, socket: &Socket, bytes: u32) -> io::Result<()> {
        // Only changes that can be undone are made (SO_BUF_LOCK: Linux 5.14).
        if unlock_buffers(socket.as_fd()).is_err() {
            *self = Self::UnsentBounded;
            return socket.set_tcp_notsent_lowat(bytes);
        }
        if matches!(self, Self::Tuned) {
            let receive_bytes = socket.recv_buffer_size()?;
            *self = Self::Fixed { receive_bytes, send_bytes: socket.send_buffer_size()? };
        }
        socket.set_recv_buffer_size(bytes as usize)?;
        socket.set_send_buffer_size(bytes as usize)
    }

    fn tune(&mut self, socket: &Socket) -> io::Result<()> {
        match std::mem::take(self) {
            Self::Tuned => Ok(()),
            Self::Fixed { receive_bytes, send_bytes } => {
                // The system doubles the given value. Its tuning only ever enlarges a buffer.
                socket.set_recv_buffer_size(receive_bytes / 2)?;
                socket.set_send_buffer_size(send_bytes / 2)?;
                unlock_buffers(socket.as_fd())
            }
            // 0 stands for the system's default, tcp(7).
            Self::UnsentBounded => socket.set_tcp_notsent_lowat(0),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal: a socket's buffers are limited and then returned to the system, which enlarges them as
    /// before. Method: after the limit is lifted, a socket is filled and emptied until its send
    /// buffer is larger.
    #[test]
    fn limits_of_socket_buffers_can_be_removed() {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_io().build().unwrap();
        runtime.block_on(async {
            let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
            let mut peer = std::net::TcpStream::connect(listener.local_addr().unwrap()).unwrap();
            let (tcp, _) = listener.accept().unwrap();
            tcp.set_nonblocking(true).unwrap();
            let tcp = TcpStream::from_std(tcp).unwrap();
            let sizes = || {
                let socket = SockRef::from(&tcp);
                (socket.recv_buffer_size().unwrap(), socket.send_buffer_size().unwrap())
            };
            let before = sizes();
            let mut buffers = SocketBuffers::default();
            buffers.set(&tcp, Some(16 << 10));
            if matches!(buffers, SocketBuffers::UnsentBounded) {
                return eprintln!("not tested: this system has no SO_BUF_LOCK");
            }
            assert_eq!(sizes(), (32 << 10, 32 << 10));
            // A smaller size before the limit leaves room to enlarge the buffer.
            let SocketBuffers::Fixed { receive_bytes, send_bytes } = &mut buffers else { panic!() };
            assert_eq!((*receive_bytes, *send_bytes), before);
            *send_bytes = 128 << 10;
            buffers.set(&tcp, None);
            let after = sizes();
            assert_eq!(after, (before.0, 128 << 10));
            let reading =
                std::thread::spawn(move || std::io::copy(&mut peer, &mut std::io::sink()));
            for round in 0.. {
                while tcp.try_write(&[0; 64 << 10]).is_ok() {}
                if sizes().1 > after.1 {
                    break;
                }
                assert!(round < 1_000, "{after:?} is not enlarged");
                tcp.writable().await.unwrap();
            }
            drop(tcp);
            assert!(reading.join().unwrap().unwrap() > 0);
        });
    }
}
