//! Traces: the PDUs of one session, copied for an observer.
//!
//! Only the full feature phase is traced, in which no credentials are sent. A connection detects a
//! trace by one number, which it compares in every turn.

use crate::session_info::SessionInfo;
use lunar_block::{BufferPool, MemoryCharge, MemoryKind};
use lunar_net::{Tap, TapReader, TappedPdu};
use std::pin::Pin;
use std::sync::atomic::{AtomicU32, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll};
use std::time::SystemTime;
use thiserror::Error;
use tokio::sync::oneshot;

/// Limit of concurrent traces of a server; each may hold [`lunar_net::TAP_BYTES_MAX`].
pub const TRACES_MAX: usize = 4;

/// Reason why no trace is begun.
#[derive(Clone, Copy, Debug, Eq, Error, PartialEq)]
pub enum TraceError {
    /// There is no such session.
    #[error("the session does not exist")]
    NoSession,
    /// The session is traced already.
    #[error("the session is already being traced")]
    Traced,
    /// [`TRACES_MAX`] traces of other sessions run.
    #[error("the limit of {TRACES_MAX} traces is reached")]
    TooMany,
}

/// Slot for the trace of a session.
#[derive(Debug, Default)]
pub(crate) struct TraceSlot {
    /// Incremented when a trace begins or ends.
    generation: AtomicU32,
    active: Mutex<Option<ActiveTrace>>,
}

#[derive(Debug)]
struct ActiveTrace {
    tap: Arc<Tap>,
    stop: oneshot::Sender<()>,
}

impl TraceSlot {
    /// Number of the current trace, which is cheap to read.
    pub(crate) fn generation(&self) -> u32 {
        self.generation.load(Ordering::Acquire)
    }

    /// Returns the tap that receives PDUs now, with the number of the trace.
    pub(crate) fn tap(&self) -> (u32, Option<Arc<Tap>>) {
        let active = self.active();
        (self.generation(), active.as_ref().map(|active| Arc::clone(&active.tap)))
    }

    fn active(&self) -> MutexGuard<'_, Option<ActiveTrace>> {
        self.active.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Begins a trace and returns its number; `None` if one runs already.
    fn begin(&self, active: ActiveTrace) -> Option<u32> {
        let mut current = self.active();
        if current.is_some() {
            return None;
        }
        *current = Some(active);
        Some(self.generation.fetch_add(1, Ordering::Release).wrapping_add(1))
    }

    /// Ends the trace with its session: PDUs that its connections send in this turn still belong to
    /// the trace.
    pub(crate) fn session_ended(&self) {
        drop(self.remove(None));
    }

    /// Ends the trace; returns true if there was one.
    pub(crate) fn end(&self) -> bool {
        self.remove(None).is_some_and(|active| active.stop.send(()).is_ok())
    }

    /// Ends the trace and returns its state; if `only` is given, only the trace with that number.
    fn remove(&self, only: Option<u32>) -> Option<ActiveTrace> {
        let mut current = self.active();
        if only.is_some_and(|number| number != self.generation()) {
            return None;
        }
        let active = current.take();
        if active.is_some() {
            self.generation.fetch_add(1, Ordering::Release);
        }
        active
    }
}

/// A running trace. It ends when it is dropped or stopped, or when its session ends.
#[derive(Debug)]
pub struct Trace {
    reader: TapReader,
    stopped: oneshot::Receiver<()>,
    is_stopped: bool,
    slot: Arc<TraceSlot>,
    number: u32,
    /// State of the session when the trace began.
    pub session: SessionInfo,
    _limit_guard: TraceLimitGuard,
    _charge: MemoryCharge,
}

impl Trace {
    /// Copies the first `snap_bytes` of each PDU from now on, for the session with this slot. The
    /// memory is taken from `buffers`.
    pub(crate) fn begin(
        slot: &Arc<TraceSlot>,
        limit: &TraceLimit,
        buffers: &BufferPool,
        snap_bytes: usize,
        session: SessionInfo,
    ) -> Result<Self, TraceError> {
        let limit_guard = limit.try_acquire().ok_or(TraceError::TooMany)?;
        let charge = buffers.sibling(MemoryKind::Trace).charge(lunar_net::TAP_BYTES_MAX);
        let (tap, reader) = Tap::new(snap_bytes);
        let (stop, stopped) = oneshot::channel();
        let number = slot.begin(ActiveTrace { tap, stop }).ok_or(TraceError::Traced)?;
        Ok(Self {
            reader,
            stopped,
            is_stopped: false,
            slot: Arc::clone(slot),
            number,
            session,
            _limit_guard: limit_guard,
            _charge: charge,
        })
    }

    /// The next PDU; `None` if the trace is over.
    pub fn poll_next(&mut self, context: &mut Context<'_>) -> Poll<Option<TappedPdu>> {
        if !self.is_stopped
            && let Poll::Ready(stopped) = Pin::new(&mut self.stopped).poll(context)
        {
            self.is_stopped = true;
            if stopped.is_ok() {
                self.reader.close();
            }
        }
        self.reader.poll_next(context)
    }

    /// Stops taking PDUs; those already taken can still be read.
    pub fn stop(&mut self) {
        self.slot.remove(Some(self.number));
        self.reader.close();
    }

    /// PDUs that were dropped because they were not read fast enough.
    pub fn dropped(&self) -> u64 {
        self.reader.dropped()
    }

    /// Time at which the trace began.
    pub fn began(&self) -> SystemTime {
        self.reader.began()
    }
}

impl Drop for Trace {
    fn drop(&mut self) {
        self.slot.remove(Some(self.number));
    }
}

/// Number of running traces.
#[derive(Clone, Debug, Default)]
pub(crate) struct TraceLimit(Arc<AtomicUsize>);

#[derive(Debug)]
struct TraceLimitGuard(TraceLimit);

impl TraceLimit {
    fn try_acquire(&self) -> Option<TraceLimitGuard> {
        let guard = TraceLimitGuard(self.clone());
        (self.0.fetch_add(1, Ordering::Relaxed) < TRACES_MAX).then_some(guard)
    }
}

impl Drop for TraceLimitGuard {
    fn drop(&mut self) {
        self.0.0.fetch_sub(1, Ordering::Relaxed);
    }
}
