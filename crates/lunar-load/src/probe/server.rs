//! The server side of a probe: threads that send the responses.

use super::{HEADER_BYTES, SILENCE_MAX};
use std::io::{self, BufRead, BufReader, BufWriter, Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::thread::JoinHandle;

/// Bytes of one read or write.
pub(super) const PIECE: usize = 256 << 10;

/// Kinds of request, in the first four bytes of a header.
pub(super) const EXCHANGE: u32 = 0;
pub(super) const STREAM_DOWN: u32 = 1;
pub(super) const STREAM_UP: u32 = 2;

/// Returns a header: the kind, and the bytes of data with the request and with the answer.
pub(super) fn header(kind: u32, request: u32, answer: u32) -> [u8; HEADER_BYTES] {
    let mut header = [0; HEADER_BYTES];
    for (field, word) in header.chunks_exact_mut(4).zip([kind, request, answer]) {
        field.copy_from_slice(&word.to_be_bytes());
    }
    header
}

/// Answers the connections of a probe; ends on drop.
#[derive(Debug)]
pub(super) struct ProbeServer {
    address: SocketAddr,
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl ProbeServer {
    pub(super) fn start() -> io::Result<Self> {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?;
        let address = listener.local_addr()?;
        let stop = Arc::<AtomicBool>::default();
        let stopped = Arc::clone(&stop);
        let thread = std::thread::Builder::new().name("probe".to_owned()).spawn(move || {
            while let Ok((socket, _)) = listener.accept() {
                if stopped.load(Relaxed) {
                    return;
                }
                // A connection without a thread is closed, and the probe fails.
                let name = std::thread::Builder::new().name("probe-answer".to_owned());
                drop(name.spawn(move || drop(answer(socket))));
            }
        })?;
        Ok(Self { address, stop, thread: Some(thread) })
    }

    pub(super) fn address(&self) -> SocketAddr {
        self.address
    }
}

impl Drop for ProbeServer {
    fn drop(&mut self) {
        self.stop.store(true, Relaxed);
        // Wakes the thread.
        let woken = TcpStream::connect(self.address);
        if let (Ok(_), Some(thread)) = (woken, self.thread.take()) {
            drop(thread.join());
        }
    }
}

/// Answers one connection until it ends.
fn answer(socket: TcpStream) -> io::Result<()> {
    socket.set_nodelay(true)?;
    socket.set_read_timeout(Some(SILENCE_MAX))?;
    socket.set_write_timeout(Some(SILENCE_MAX))?;
    let mut from = BufReader::with_capacity(PIECE, socket.try_clone()?);
    let mut to = BufWriter::with_capacity(PIECE, socket);
    let zeroes = vec![0; PIECE];
    let mut header = [0; HEADER_BYTES];
    loop {
        // Answers to all requests received so far are sent in one piece.
        if from.buffer().is_empty() {
            to.flush()?;
        }
        from.read_exact(&mut header)?;
        let word = |at: usize| {
            let bytes = header[at..at + 4].iter();
            bytes.fold(0_u32, |word, byte| word << 8 | u32::from(*byte))
        };
        match word(0) {
            STREAM_DOWN => loop {
                to.get_mut().write_all(&zeroes)?;
            },
            STREAM_UP => {
                let bytes = discard(&mut from, u64::MAX)?;
                to.write_all(&bytes.to_be_bytes())?;
                return to.flush();
            }
            _ => {}
        }
        discard(&mut from, word(4).into())?;
        to.write_all(&header)?;
        let mut left = word(8) as usize;
        while left > 0 {
            let piece = left.min(PIECE);
            to.write_all(&zeroes[..piece])?;
            left -= piece;
        }
    }
}

/// Reads and discards this number of bytes, or all until the end.
fn discard(from: &mut impl BufRead, bytes: u64) -> io::Result<u64> {
    let mut gone = 0;
    while gone < bytes {
        let held = from.fill_buf()?.len();
        if held == 0 {
            break;
        }
        let piece = (bytes - gone).min(held as u64);
        from.consume(piece as usize);
        gone += piece;
    }
    Ok(gone)
}
