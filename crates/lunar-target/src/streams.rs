//! Data of commands that moves while they run: data-out that a unit takes as it arrives, and
//! data-in that it gives in pieces. Decision 106.
//!
//! A command whose unit says so ([`AcceptedCommand::streams`](crate::AcceptedCommand::streams))
//! gets [`DataStreams`] instead of buffers. Each direction has a limit of bytes in flight for the
//! task, and one for all such tasks of its connection.

mod data_in;
mod data_out;
mod task_inputs;

pub use data_in::DataInWriter;
pub use data_out::{DataOutError, DataOutPiece, DataOutReader};
pub(crate) use data_out::{DataOutStream, SecondCheck, StreamEnd, StreamSegment};
pub(crate) use task_inputs::TaskInputs;

use crate::options::Limits;
use std::sync::Arc;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

/// Longest range of data-out that is requested at once: its data becomes several R2Ts if it is
/// longer than MaxBurstLength.
pub const DATA_OUT_RANGE_BYTES_MAX: u32 = 256 << 10;

/// Maximum data-out in flight of a task that takes it as it arrives: requested, or arrived and not
/// dropped by the unit. Unsolicited data comes on top of it, up to FirstBurstLength.
pub const DATA_OUT_TASK_BYTES_MAX: u32 = 4 * DATA_OUT_RANGE_BYTES_MAX;

/// Maximum data-out in flight of all such tasks of a connection, and at most
/// [`Limits::data_out_bytes`].
pub const DATA_OUT_CONNECTION_BYTES_MAX: u32 = 16 * DATA_OUT_TASK_BYTES_MAX;

/// Maximum data-in in flight of a task that gives it in pieces: given by the unit, and not taken by
/// the socket.
pub const DATA_IN_TASK_BYTES_MAX: u32 = 1 << 20;

/// Maximum data-in in flight of all such tasks of a connection, and at most
/// [`Limits::data_in_bytes`].
pub const DATA_IN_CONNECTION_BYTES_MAX: u32 = 16 * DATA_IN_TASK_BYTES_MAX;

/// The streams of a command.
#[derive(Debug)]
pub struct DataStreams {
    /// Its data-out, as it arrives.
    pub data_out: DataOutReader,
    /// Takes its data-in, in pieces.
    pub data_in: DataInWriter,
}

/// The limits that the streams of a connection share.
#[derive(Debug)]
pub(crate) struct StreamLimits {
    data_out: Arc<Semaphore>,
    data_out_bytes: u32,
    data_in: Arc<Semaphore>,
    data_in_bytes: u32,
}

impl StreamLimits {
    pub(crate) fn new(limits: &Limits) -> Self {
        let lower = |bytes_max: u32, limit: usize| {
            bytes_max.min(u32::try_from(limit).unwrap_or(bytes_max)).max(1)
        };
        let data_out_bytes = lower(DATA_OUT_CONNECTION_BYTES_MAX, limits.data_out_bytes);
        let data_in_bytes = lower(DATA_IN_CONNECTION_BYTES_MAX, limits.data_in_bytes);
        Self {
            data_out: Arc::new(Semaphore::new(data_out_bytes as usize)),
            data_out_bytes,
            data_in: Arc::new(Semaphore::new(data_in_bytes as usize)),
            data_in_bytes,
        }
    }

    /// The data-out in flight of a new task.
    pub(crate) fn of_data_out(&self) -> FlightLimit {
        FlightLimit::new(DATA_OUT_TASK_BYTES_MAX.min(self.data_out_bytes), &self.data_out)
    }

    /// The data-in in flight of a new task.
    pub(crate) fn of_data_in(&self) -> FlightLimit {
        FlightLimit::new(DATA_IN_TASK_BYTES_MAX.min(self.data_in_bytes), &self.data_in)
    }
}

/// Limit of the bytes in flight of one task in one direction, and of its connection.
#[derive(Debug)]
pub(crate) struct FlightLimit {
    task_bytes: u32,
    task: Arc<Semaphore>,
    connection: Arc<Semaphore>,
}

/// Bytes that count as in flight until this is dropped.
#[derive(Debug)]
struct InFlight {
    task: OwnedSemaphorePermit,
    connection: OwnedSemaphorePermit,
}

impl FlightLimit {
    fn new(task_bytes: u32, connection: &Arc<Semaphore>) -> Self {
        let task = Arc::new(Semaphore::new(task_bytes as usize));
        Self { task_bytes, task, connection: Arc::clone(connection) }
    }

    /// Number of bytes that the task may have in flight.
    fn task_bytes(&self) -> u32 {
        self.task_bytes
    }

    /// True when no byte of the task is in flight.
    fn is_unused(&self) -> bool {
        self.task.available_permits() == self.task_bytes as usize
    }

    /// Counts `bytes`, at most those of the task, if there is room now.
    fn try_acquire(&self, bytes: u32) -> Option<InFlight> {
        let of = |limit: &Arc<Semaphore>| Arc::clone(limit).try_acquire_many_owned(bytes).ok();
        Some(InFlight { task: of(&self.task)?, connection: of(&self.connection)? })
    }

    /// Counts `bytes`, at most those of the task, when there is room; `None` never comes, because
    /// the limits are not closed.
    async fn acquire(&self, bytes: u32) -> Option<InFlight> {
        let of = |limit: &Arc<Semaphore>| Arc::clone(limit).acquire_many_owned(bytes);
        let task = of(&self.task).await.ok()?;
        Some(InFlight { task, connection: of(&self.connection).await.ok()? })
    }
}

impl InFlight {
    /// Takes `bytes` out, or all if they are fewer.
    fn take(&mut self, bytes: usize) -> Option<Self> {
        let bytes = bytes.min(self.task.num_permits());
        Some(Self { task: self.task.split(bytes)?, connection: self.connection.split(bytes)? })
    }

    /// Adds bytes of the same task.
    fn add(&mut self, other: Self) {
        self.task.merge(other.task);
        self.connection.merge(other.connection);
    }
}

#[cfg(test)]
mod tests;
