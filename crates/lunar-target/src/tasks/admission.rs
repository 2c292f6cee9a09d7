//! Commands that wait for the memory of their data: reads before they read, writes before their
//! data is asked for. Some wait for what their own connection holds, others for the process.

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

/// The data of one direction of a connection: how much it may hold, and which commands wait for
/// it, in their order.
pub(super) struct Admission {
    buffers: BufferPool,
    /// What the connection may hold; one buffer alone always fits.
    limit_bytes: usize,
    /// How long a command waits.
    wait_max: Duration,
    waiting: VecDeque<Waiting>,
    /// The request of the first to the process, once its connection has room.
    request: Option<LocalBoxFuture<'static, Buffer>>,
    /// Ends the wait of the first.
    timer: Option<Pin<Box<Sleep>>>,
}

struct Waiting {
    task: TaskId,
    planned: Planned,
    bytes: usize,
    until: Instant,
}

/// How the wait of a command ended.
pub(super) enum Admitted {
    Buffer(TaskId, Planned, Buffer),
    /// No memory was free in time.
    TimedOut(TaskId, Planned, Shortage),
}

/// Whose memory is in use.
pub(super) enum Shortage {
    /// That of its own connection.
    Connection,
    /// That of the process.
    Process,
}

impl Admission {
    pub(super) fn new(buffers: BufferPool, limit_bytes: usize, wait_max: Duration) -> Self {
        let waiting = VecDeque::new();
        Self { buffers, limit_bytes, wait_max, waiting, request: None, timer: None }
    }

    /// A buffer of `bytes`, if there is room now and nobody waits.
    #[inline]
    pub(super) fn try_take(&self, bytes: usize) -> Option<Buffer> {
        if self.waiting.is_empty() { self.try_take_first(bytes) } else { None }
    }

    /// A buffer of `bytes`, if there is room now, before those that wait.
    #[inline]
    pub(super) fn try_take_first(&self, bytes: usize) -> Option<Buffer> {
        if self.has_room(bytes) { self.buffers.try_take(bytes) } else { None }
    }

    #[inline]
    fn has_room(&self, bytes: usize) -> bool {
        let held_bytes = self.buffers.held_bytes();
        held_bytes == 0 || held_bytes + BufferPool::charged_bytes(bytes) <= self.limit_bytes
    }

    /// Has a command wait for a buffer of `bytes`.
    pub(super) fn wait(&mut self, task: TaskId, planned: Planned, bytes: usize) {
        let until = Instant::now() + self.wait_max;
        self.waiting.push_back(Waiting { task, planned, bytes, until });
    }

    /// Memory of the commands that wait, or have waited.
    pub(super) fn memory_bytes(&self) -> usize {
        self.waiting.capacity() * size_of::<Waiting>()
    }

    /// Frees what commands needed that wait no more.
    pub(super) fn free_spare(&mut self) {
        if self.waiting.is_empty() {
            self.waiting = VecDeque::new();
        }
    }

    pub(super) fn find(&self, task: TaskId) -> Option<&Planned> {
        let waiting = self.waiting.iter().find(|waiting| waiting.task == task);
        waiting.map(|waiting| &waiting.planned)
    }

    /// A command waits no more.
    pub(super) fn remove(&mut self, task: TaskId) -> Option<Planned> {
        let at = self.waiting.iter().position(|waiting| waiting.task == task)?;
        if at == 0 {
            self.request = None;
        }
        self.waiting.remove(at).map(|waiting| waiting.planned)
    }

    /// The next command whose wait has ended. The connection polls again as its buffers come back.
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
