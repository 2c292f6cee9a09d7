//! READ in pieces: the first piece is sent while the rest is being read, and a long READ holds two
//! pieces of memory, however long it is.
//!
//! A READ of one piece is one read of the device. A longer one is several, between which other
//! writes may come. Only WRITE ATOMIC promises that no READ sees a part of it: on devices that have
//! it, a READ in pieces shares its blocks with other READs and writes and excludes WRITE ATOMIC. If
//! a command of another host waits for these blocks, the rest is read at once, so that no host that
//! takes its data slowly delays another.

use super::{Run, Step, Stop};
use crate::plan_result::PlanResult;
use crate::streams::TaskInputs;
use crate::unit::CommandData;
use bytes::Bytes;
use futures_util::FutureExt;
use futures_util::task::AtomicWaker;
use lunar_block::Buffer;
use lunar_iscsi::connection::target::Input;
use lunar_iscsi::framing::TaskId;
use lunar_scsi::plan::LbaRange;
use std::future::{Future, poll_fn};
use std::pin::pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll};
use tokio::sync::OwnedSemaphorePermit;

/// Size of a piece, and of the longest READ that is not divided.
pub(crate) const READ_PIECE_BYTES: usize = 256 << 10;

/// Memory for the data of a READ.
pub(crate) enum ReadMemory {
    None,
    /// A buffer for all of it.
    Whole(Buffer),
    Pieces(PieceReader),
}

impl ReadMemory {
    /// The memory for the data-in of a command, and its data-out.
    pub(crate) fn split(data: CommandData) -> (Self, Bytes) {
        if let CommandData::Pieces(reader) = data {
            return (Self::Pieces(reader), Bytes::new());
        }
        let (data_in, data_out) = data.split();
        (data_in.map_or(Self::None, Self::Whole), data_out)
    }
}

/// Memory of a command whose data-in is sent in pieces, and the destination of the pieces.
#[derive(Debug)]
pub struct PieceReader {
    task: TaskId,
    inputs: TaskInputs,
    buffers: Arc<PieceBuffers>,
}

impl PieceReader {
    /// Reads into `first`, a buffer of [`READ_PIECE_BYTES`], and into a second one if there is one.
    pub(crate) fn new(
        task: TaskId,
        inputs: &TaskInputs,
        first: Buffer,
        second: Option<Buffer>,
    ) -> Self {
        let free = Mutex::new(second.into_iter().chain([first]).collect());
        let buffers = Arc::new(PieceBuffers { free, waker: AtomicWaker::new() });
        Self { task, inputs: inputs.clone(), buffers }
    }
}

/// Buffers of one READ that hold no data now. A lent one returns when its data has been sent.
#[derive(Debug)]
struct PieceBuffers {
    free: Mutex<Vec<Buffer>>,
    /// Waker of the READ while it waits for a buffer.
    waker: AtomicWaker,
}

impl PieceBuffers {
    fn poll_next(&self, context: &Context<'_>) -> Poll<Buffer> {
        if let Some(buffer) = self.free().pop() {
            return Poll::Ready(buffer);
        }
        self.waker.register(context.waker());
        // One may have returned before the waker was registered.
        self.free().pop().map_or(Poll::Pending, Poll::Ready)
    }

    fn free(&self) -> MutexGuard<'_, Vec<Buffer>> {
        self.free.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn lend(self: &Arc<Self>, buffer: Buffer) -> Bytes {
        Bytes::from_owner(LentBuffer { buffer: Some(buffer), home: Arc::clone(self) })
    }
}

/// A buffer whose data is being sent.
struct LentBuffer {
    /// `Some` until it returns.
    buffer: Option<Buffer>,
    home: Arc<PieceBuffers>,
}

impl AsRef<[u8]> for LentBuffer {
    fn as_ref(&self) -> &[u8] {
        self.buffer.as_deref().unwrap_or_default()
    }
}

impl Drop for LentBuffer {
    fn drop(&mut self) {
        self.home.free().extend(self.buffer.take());
        self.home.waker.wake();
    }
}

impl Run<'_> {
    /// Reads `range` with this memory.
    pub(super) async fn read_range(&self, range: LbaRange, memory: ReadMemory) -> Step<PlanResult> {
        let data = match memory {
            ReadMemory::Pieces(reader) => Box::pin(self.read_in_pieces(range, &reader)).await?,
            ReadMemory::Whole(buffer) => self.read_blocks_into(range, buffer).await?,
            ReadMemory::None => self.read_blocks(range).await?,
        };
        lunar_net::count_copied(data.len());
        Ok(PlanResult::Good(data.freeze()))
    }

    /// Passes the data of `range` on in pieces, and returns the last piece.
    async fn read_in_pieces(&self, range: LbaRange, reader: &PieceReader) -> Step<Buffer> {
        let blocks_max = (READ_PIECE_BYTES as u64 / self.block_bytes).max(1);
        let guard = match self.device().atomic() {
            Some(_) => Some(self.lock(range, false).await?),
            None => None,
        };
        let is_locked = guard.is_some();
        let mut turn = None;
        let mut done = 0;
        loop {
            let rest = LbaRange { lba: range.lba + done, count: range.count - done };
            let Some(mut buffer) = self.next_buffer(reader, &mut turn, is_locked).await? else {
                return self.read_blocks_into(rest, self.take_for_rest(rest)?).await;
            };
            let part = LbaRange { count: rest.count.min(blocks_max), ..rest };
            buffer.truncate(self.bytes(part));
            let mut read = pin!(self.read_blocks_into(part, buffer));
            let buffer = match (&mut read).now_or_never() {
                Some(buffer) => buffer?,
                None => {
                    turn = None; // others send while this READ waits for the disk
                    read.await?
                }
            };
            if part == rest {
                return Ok(buffer);
            }
            lunar_net::count_copied(buffer.len());
            reader.inputs.push(Input::DataIn {
                task: reader.task,
                offset_bytes: (done * self.block_bytes) as u32, // of a transfer below 4 GiB
                data: reader.buffers.lend(buffer),
                digest: None,
            });
            done += part.count;
        }
    }

    /// Waits for the turn of this READ among those of its connection, and for a buffer that holds
    /// no data; `None` if the rest must be read at once, because another host waits for the locked
    /// blocks.
    async fn next_buffer(
        &self,
        reader: &PieceReader,
        turn: &mut Option<OwnedSemaphorePermit>,
        is_locked: bool,
    ) -> Step<Option<Buffer>> {
        let mut next = pin!(async {
            if turn.is_none() {
                *turn = Arc::clone(reader.inputs.read_turns()).acquire_owned().await.ok();
            }
            poll_fn(|context| reader.buffers.poll_next(context)).await
        });
        let next = poll_fn(|context| {
            if is_locked && self.abort.is_awaited() {
                return Poll::Ready(None);
            }
            next.as_mut().poll(context).map(Some)
        });
        Ok(self.abort.unless(next).await?)
    }

    /// Memory for the rest of a READ that others wait for. It must not wait for memory in turn.
    fn take_for_rest(&self, rest: LbaRange) -> Step<Buffer> {
        self.memory.buffers.try_take(self.bytes(rest)).ok_or(Stop::Busy)
    }
}
