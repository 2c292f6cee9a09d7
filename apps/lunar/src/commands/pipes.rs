//! Stdin and stdout from threads of their own: a pipe that waits must not keep a session's task
//! from answering its target.

use super::transfer::Span;
use crate::output::Failure;
use bytes::Bytes;
use lunar_block::{Buffer, BufferPool};
use std::io::{ErrorKind, Read, Write};
use tokio::sync::{mpsc, oneshot};

/// Pieces that wait between a pipe and the disk.
const PIECES_MAX: usize = 2;

/// A piece of stdin.
#[derive(Debug)]
pub struct Piece {
    /// Where it goes; shorter than was asked for when stdin ended.
    pub span: Span,
    /// Its bytes.
    pub data: Buffer,
}

/// Reads stdin as the bytes of `span`, piece by piece.
#[derive(Debug)]
pub struct Input {
    pieces: mpsc::Receiver<Result<Piece, Failure>>,
    goes_on: oneshot::Receiver<Result<bool, Failure>>,
}

impl Input {
    /// Begins to read.
    ///
    /// # Errors
    /// When there can be no thread.
    pub fn open(span: Span, pool: BufferPool) -> Result<Self, Failure> {
        let (send, pieces) = mpsc::channel(PIECES_MAX);
        let (tell, goes_on) = oneshot::channel();
        thread("stdin", move || {
            let mut stdin = std::io::stdin().lock();
            for wanted in span.pieces() {
                let mut data = pool.take((wanted.end - wanted.start) as usize);
                let read = fill(&mut stdin, &mut data);
                let ended = read.as_ref().map_or(true, |read| *read < data.len());
                let piece = read.map(|read| {
                    data.truncate(read);
                    Piece { span: Span { end: wanted.start + read as u64, ..wanted }, data }
                });
                if send.blocking_send(piece).is_err() || ended {
                    return; // nobody waits for more
                }
            }
            drop(send);
            let _ = tell.send(fill(&mut stdin, &mut [0]).map(|read| read > 0));
        })?;
        Ok(Self { pieces, goes_on })
    }

    /// The next piece; `None` when the span is filled or stdin has ended.
    ///
    /// # Errors
    /// When stdin cannot be read.
    pub async fn next(&mut self) -> Result<Option<Piece>, Failure> {
        self.pieces.recv().await.transpose()
    }

    /// Whether stdin holds more than was read. Call it when the span is filled; it waits for the
    /// end of stdin, or for more.
    ///
    /// # Errors
    /// When stdin cannot be read.
    pub async fn goes_on(self) -> Result<bool, Failure> {
        self.goes_on.await.unwrap_or(Ok(false))
    }
}

/// Writes to stdout.
#[derive(Debug)]
pub struct Output {
    pieces: mpsc::Sender<Bytes>,
    done: oneshot::Receiver<std::io::Result<()>>,
}

impl Output {
    /// Gets ready to write.
    ///
    /// # Errors
    /// When there can be no thread.
    pub fn open() -> Result<Self, Failure> {
        let (pieces, mut receive) = mpsc::channel::<Bytes>(PIECES_MAX);
        let (tell, done) = oneshot::channel();
        thread("stdout", move || {
            let mut stdout = std::io::stdout().lock();
            let mut result = Ok(());
            while let Some(piece) = receive.blocking_recv() {
                result = stdout.write_all(&piece);
                if result.is_err() {
                    break;
                }
            }
            let _ = tell.send(result.and_then(|()| stdout.flush()));
        })?;
        Ok(Self { pieces, done })
    }

    /// Writes a piece, soon. `false`: stdout takes no more; [`close`](Self::close) says why.
    pub async fn put(&self, piece: Bytes) -> bool {
        self.pieces.send(piece).await.is_ok()
    }

    /// Waits until all is written.
    ///
    /// # Errors
    /// When stdout took no more.
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

/// Reads until `buffer` is full or the input ends; returns how many bytes came.
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
