//! Commands that wait for memory for their data: reads before they read, writes before their data
//! is requested. Some wait for memory of their own connection, others for memory of the process.

use super::Planned;
use futures_util::future::LocalBoxFuture;
use lunar_block::{Buffer, BufferPool};
use lunar_iscsi::framing::TaskId;
use std::collections::VecDeque;
use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;
use tokio::time::{Instant, Sleep};

/// The data of one direction of a connection: its limit, and the commands that wait for memory, in
/// order.
pub(super) struct Admission {
    buffers: BufferPool,
    /// Limit of the connection in bytes; a single buffer always fits.
    limit_bytes: usize,
    /// Longest wait of a command.
    wait_max: Duration,
    waiting: VecDeque<Waiting>,
    /// Request of the first command for memory of the process, once its connection has room.
    request: Option<LocalBoxFuture<'static, Buffer>>,
    /// Timer that ends the wait of the first command.
    timer: Option<Pin<Box<Sleep>>>,
}

struct Waiting {
    task: TaskId,
    planned: Planned,
    bytes: usize,
    until: Instant,
}

/// Result of the wait of a command.
pub(super) enum Admitted {
    Buffer(TaskId, Planned, Buffer),
    /// No memory was free in time.
    TimedOut(TaskId, Planned, Shortage),
}

/// Owner of the memory that is exhausted.
pub(super) enum Shortage {
    /// The connection.
    Connection,
    /// The process.
    Process,
}

impl Admission {
    pub(super) fn new(buffers: BufferPool, limit_bytes: usize, wait_max: Duration) -> Self {
        let waiting = VecDeque::new();
        Self { buffers, limit_bytes, wait_max, waiting, request: None, timer: None }
    }

    /// The account of the buffers.
    pub(super) fn buffers(&self) -> &BufferPool {
        &self.buffers
    }

    /// Takes a buffer of `bytes`, if there is room now and no command waits.
    #[inline]
    pub(super) fn try_take(&self, bytes: usize) -> Option<Buffer> {
        if self.waiting.is_empty() { self.try_take_first(bytes) } else { None }
    }

    /// Takes a buffer of `bytes`, if there is room now, before waiting commands.
    #[inline]
    pub(super) fn try_take_first(&self, bytes: usize) -> Option<Buffer> {
        if self.has_room(bytes) { self.buffers.try_take(bytes) } else { None }
    }

    #[inline]
    fn has_room(&self, bytes: usize) -> bool {
        let held_bytes = self.buffers.held_bytes();
        held_bytes == 0 || held_bytes + BufferPool::charged_bytes(bytes) <= self.limit_bytes
    }

    /// Queues a command for a buffer of `bytes`.
    pub(super) fn wait(&mut self, task: TaskId, planned: Planned, bytes: usize) {
        let until = Instant::now() + self.wait_max;
        self.waiting.push_back(Waiting { task, planned, bytes, until });
    }

    /// Memory of the waiting commands, including spare capacity.
    pub(super) fn memory_bytes(&self) -> usize {
        self.waiting.capacity() * size_of::<Waiting>()
    }

    /// Frees memory of commands that no longer wait.
    pub(super) fn free_spare(&mut self) {
        if self.waiting.is_empty() && self.waiting.capacity() > 0 {
            self.waiting = VecDeque::new();
        }
    }

    pub(super) fn find(&self, task: TaskId) -> Option<&Planned> {
        let waiting = self.waiting.iter().find(|waiting| waiting.task == task);
        waiting.map(|waiting| &waiting.planned)
    }

    /// True when no command waits.
    #[inline]
    pub(super) fn is_idle(&self) -> bool {
        self.waiting.is_empty()
    }

    /// Removes a command that no longer waits.
    pub(super) fn remove(&mut self, task: TaskId) -> Option<Planned> {
        let at = self.waiting.iter().position(|waiting| waiting.task == task)?;
        if at == 0 {
            self.request = None;
        }
        self.waiting.remove(at).map(|waiting| waiting.planned)
    }

    /// The next command whose wait has ended. The connection polls again when its buffers are
    /// returned.
    pub(super) fn poll_next(&mut self, context: &mut Context<'_>) -> Option<Admitted> {
        let Waiting { bytes, until, .. } = *self.waiting.front()?;
        let timer = self.timer.get_or_insert_with(|| Box::pin(tokio::time::sleep_until(until)));
        if timer.deadline() != until {
            timer.as_mut().reset(until);
        }
        if let Poll::Ready(buffer) = self.poll_request(bytes, context) {
            let Waiting { task, planned, .. } = self.pop()?;
            return Some(Admitted::Buffer(task, planned, buffer));
        }
        let timer = self.timer.as_mut()?;
        if timer.as_mut().poll(context).is_pending() {
            return None;
        }
        let why = if self.has_room(bytes) { Shortage::Process } else { Shortage::Connection };
        let Waiting { task, planned, .. } = self.pop()?;
        Some(Admitted::TimedOut(task, planned, why))
    }

    fn poll_request(&mut self, bytes: usize, context: &mut Context<'_>) -> Poll<Buffer> {
        if self.request.is_none() && !self.has_room(bytes) {
            return Poll::Pending;
        }
        let buffers = &self.buffers;
        let request = self.request.get_or_insert_with(|| {
            let buffers = buffers.clone();
            Box::pin(async move { buffers.take_when_free(bytes).await })
        });
        request.as_mut().poll(context)
    }

    fn pop(&mut self) -> Option<Waiting> {
        self.request = None;
        self.waiting.pop_front()
    }
}
