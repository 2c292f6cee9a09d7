//! Bytes in flight: requested or arrived, and not taken by the socket that they are passed on to.

use bytes::Bytes;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Waker};

/// Counts the bytes in flight of a task or of a connection in one direction.
///
/// Its numbers are atomic because the owner of a [`Bytes`] may be dropped by any thread; in a relay
/// all of them belong to one core.
#[derive(Debug)]
pub struct InFlightMeter {
    bytes_max: usize,
    bytes: AtomicUsize,
    peak_bytes: AtomicUsize,
    /// The meter of the connection, if this is the meter of a task.
    connection: Option<Arc<InFlightMeter>>,
    /// Wakers of the tasks that wait for room in a connection.
    waiting: Mutex<Vec<Waker>>,
}

impl InFlightMeter {
    /// Creates the meter of a connection.
    pub fn for_connection(bytes_max: usize) -> Arc<Self> {
        Arc::new(Self::new(bytes_max, None))
    }

    /// Creates the meter of a task of `connection`.
    pub fn for_task(bytes_max: usize, connection: &Arc<Self>) -> Arc<Self> {
        Arc::new(Self::new(bytes_max, Some(Arc::clone(connection))))
    }

    fn new(bytes_max: usize, connection: Option<Arc<Self>>) -> Self {
        let (bytes, peak_bytes) = (AtomicUsize::new(0), AtomicUsize::new(0));
        Self { bytes_max, bytes, peak_bytes, connection, waiting: Mutex::default() }
    }

    /// Number of bytes in flight.
    pub fn bytes(&self) -> usize {
        self.bytes.load(Ordering::Acquire)
    }

    /// Maximum number of bytes that were in flight at a time.
    pub fn peak_bytes(&self) -> usize {
        self.peak_bytes.load(Ordering::Acquire)
    }

    /// Number of bytes that may be added now.
    pub fn room_bytes(&self) -> usize {
        let own = self.bytes_max.saturating_sub(self.bytes());
        self.connection.as_ref().map_or(own, |connection| own.min(connection.room_bytes()))
    }

    /// Counts bytes until the returned value is dropped; `None` if there is no room.
    pub fn try_add(self: &Arc<Self>, bytes: usize) -> Option<InFlightBytes> {
        if bytes > self.room_bytes() {
            return None;
        }
        let mut meter = Some(self);
        while let Some(one) = meter {
            let now = one.bytes.fetch_add(bytes, Ordering::AcqRel) + bytes;
            one.peak_bytes.fetch_max(now, Ordering::AcqRel);
            meter = one.connection.as_ref();
        }
        Some(InFlightBytes { meter: Arc::clone(self), bytes })
    }

    /// Wakes the task of `context` when bytes of this connection have left.
    pub fn wait(&self, context: &Context<'_>) {
        let mut waiting = self.waiting();
        if !waiting.iter().any(|waker| waker.will_wake(context.waker())) {
            waiting.push(context.waker().clone());
        }
    }

    fn waiting(&self) -> MutexGuard<'_, Vec<Waker>> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn remove(&self, bytes: usize) {
        self.bytes.fetch_sub(bytes, Ordering::AcqRel);
        if let Some(connection) = &self.connection {
            return connection.remove(bytes);
        }
        let waiting = std::mem::take(&mut *self.waiting());
        waiting.into_iter().for_each(Waker::wake);
    }
}

/// Bytes that count as in flight until this is dropped.
#[derive(Debug)]
pub struct InFlightBytes {
    meter: Arc<InFlightMeter>,
    bytes: usize,
}

impl InFlightBytes {
    /// Splits bytes off, which remain counted; all of them if there are fewer.
    #[must_use]
    pub fn split(&mut self, bytes: usize) -> Self {
        let bytes = bytes.min(self.bytes);
        self.bytes -= bytes;
        Self { meter: Arc::clone(&self.meter), bytes }
    }

    /// Adds bytes of the same meter.
    pub fn merge(&mut self, mut other: Self) {
        self.bytes += std::mem::take(&mut other.bytes);
    }

    /// Returns data that counts until its last slice is dropped.
    pub fn attach(self, data: impl AsRef<[u8]> + Send + 'static) -> Bytes {
        Bytes::from_owner(InFlightData { data, _in_flight: self })
    }
}

impl Drop for InFlightBytes {
    fn drop(&mut self) {
        if self.bytes > 0 {
            self.meter.remove(self.bytes);
        }
    }
}

struct InFlightData<T> {
    data: T,
    _in_flight: InFlightBytes,
}

impl<T: AsRef<[u8]>> AsRef<[u8]> for InFlightData<T> {
    fn as_ref(&self) -> &[u8] {
        self.data.as_ref()
    }
}
