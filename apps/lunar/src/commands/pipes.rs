//! Threads for stdin and stdout: a blocked pipe must not keep a session's task from answering the
//! target.

use super::transfer::ByteSpan;
use crate::output::Failure;
use bytes::Bytes;
use lunar_block::{Buffer, BufferPool};
use std::io::{ErrorKind, Read, Write};
use tokio::sync::{mpsc, oneshot};

/// Maximum number of pieces between a pipe and the disk.
const PIECES_MAX: usize = 2;

/// A piece of stdin.
#[derive(Debug)]
pub struct Piece {
    /// Position on the disk; shorter than requested if stdin has ended.
    pub span: ByteSpan,
    /// The bytes.
    pub data: Buffer,
}

/// Reads stdin as the bytes of `span`, piece by piece.
#[derive(Debug)]
pub struct StdinReader {
    pieces: mpsc::Receiver<Result<Piece, Failure>>,
    has_more_data: oneshot::Receiver<Result<bool, Failure>>,
}

impl StdinReader {
    /// Starts reading.
    ///
    /// # Errors
    /// Fails if the system cannot create a thread.
    pub fn open(span: ByteSpan, pool: BufferPool) -> Result<Self, Failure> {
        let (send, pieces) = mpsc::channel(PIECES_MAX);
        let (report_more_data, has_more_data) = oneshot::channel();
        thread("stdin", move || {
            let mut stdin = std::io::stdin().lock();
            for wanted in span.pieces() {
                let mut data = pool.take((wanted.end - wanted.start) as usize);
                let read = fill(&mut stdin, &mut data);
                let ended = read.as_ref().map_or(true, |read| *read < data.len());
                let piece = read.map(|read| {
                    data.truncate(read);
                    Piece { span: ByteSpan { end: wanted.start + read as u64, ..wanted }, data }
                });
                if send.blocking_send(piece).is_err() || ended {
                    return; // the receiver was dropped
                }
            }
            drop(send);
            let _ = report_more_data.send(fill(&mut stdin, &mut [0]).map(|read| read > 0));
        })?;
        Ok(Self { pieces, has_more_data })
    }

    /// The next piece; `None` when the span is full or stdin has ended.
    ///
    /// # Errors
    /// Fails if stdin cannot be read.
    pub async fn next(&mut self) -> Result<Option<Piece>, Failure> {
        self.pieces.recv().await.transpose()
    }

    /// Whether stdin has more data than was read. To be called when the span is full; waits for the
    /// end of stdin or for more data.
    ///
    /// # Errors
    /// Fails if stdin cannot be read.
    pub async fn has_more_data(self) -> Result<bool, Failure> {
        self.has_more_data.await.unwrap_or(Ok(false))
    }
}

/// Writes to stdout.
#[derive(Debug)]
pub struct StdoutWriter {
    pieces: mpsc::Sender<Bytes>,
    done: oneshot::Receiver<std::io::Result<()>>,
}

impl StdoutWriter {
    /// Starts the thread that writes.
    ///
    /// # Errors
    /// Fails if the system cannot create a thread.
    pub fn open() -> Result<Self, Failure> {
        let (pieces, mut receive) = mpsc::channel::<Bytes>(PIECES_MAX);
        let (report_done, done) = oneshot::channel();
        thread("stdout", move || {
            let mut stdout = std::io::stdout().lock();
            let mut result = Ok(());
            while let Some(piece) = receive.blocking_recv() {
                result = stdout.write_all(&piece);
                if result.is_err() {
                    break;
                }
            }
            let _ = report_done.send(result.and_then(|()| stdout.flush()));
        })?;
        Ok(Self { pieces, done })
    }

    /// Queues a piece. Returns `false` if stdout cannot be written; [`close`](Self::close) returns
    /// the reason.
    pub async fn put(&self, piece: Bytes) -> bool {
        self.pieces.send(piece).await.is_ok()
    }

    /// Waits until everything is written.
    ///
    /// # Errors
    /// Fails if stdout could not be written.
    pub async fn close(self) -> Result<(), Failure> {
        drop(self.pieces);
        match self.done.await {
            Ok(Ok(())) => Ok(()),
            Ok(Err(error)) => Err(Failure::new(format!("cannot write to stdout: {error}"))),
            Err(_) => Err(Failure::new("cannot write to stdout")),
        }
    }
}

fn thread(name: &str, work: impl FnOnce() + Send + 'static) -> Result<(), Failure> {
    std::thread::Builder::new()
        .name(name.to_owned())
        .spawn(work)
        .map(drop)
        .map_err(|error| Failure::new(format!("cannot start a thread: {error}")))
}

/// Reads until `buffer` is full or the input ends; returns the number of bytes.
fn fill(input: &mut impl Read, buffer: &mut [u8]) -> Result<usize, Failure> {
    let mut filled = 0;
    while filled < buffer.len() {
        match input.read(&mut buffer[filled..]) {
            Ok(0) => break,
            Ok(bytes) => filled += bytes,
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            Err(error) => return Err(Failure::new(format!("cannot read stdin: {error}"))),
        }
    }
    Ok(filled)
}
