//! Data-in that a unit gives in pieces.

use super::{FlightLimit, InFlight, TaskInputs};
use crate::abort::{AbortSignal, Aborted};
use crate::relay::RelayedPiece;
use bytes::Bytes;
use lunar_iscsi::connection::target::Input;
use lunar_iscsi::framing::TaskId;

/// Sends the data-in of a command in pieces, before the command ends.
///
/// To be used by the future of the command's execution, which the connection polls.
#[derive(Debug)]
pub struct DataInWriter {
    task: TaskId,
    inputs: TaskInputs,
    limit: FlightLimit,
    abort: AbortSignal,
}

/// A piece that is being sent.
struct SentPiece {
    data: Bytes,
    _in_flight: InFlight,
}

impl AsRef<[u8]> for SentPiece {
    fn as_ref(&self) -> &[u8] {
        &self.data
    }
}

impl DataInWriter {
    pub(crate) fn new(
        task: TaskId,
        inputs: &TaskInputs,
        limit: FlightLimit,
        abort: &AbortSignal,
    ) -> Self {
        Self { task, inputs: inputs.clone(), limit, abort: abort.clone() }
    }

    /// Sends a piece, which begins at `offset_bytes` of the data-in. Waits while the peer has not
    /// taken [`DATA_IN_TASK_BYTES_MAX`](super::DATA_IN_TASK_BYTES_MAX) of earlier pieces. Pieces
    /// follow each other without a gap; the last one may be given with the end of the command.
    ///
    /// The data counts as in flight until the socket has taken it. It stays charged to the account
    /// of its buffer.
    ///
    /// # Errors
    /// The command was aborted.
    pub fn send(
        &self,
        offset_bytes: u32,
        data: Bytes,
    ) -> impl Future<Output = Result<(), Aborted>> {
        self.send_piece(offset_bytes, data.into())
    }

    /// Sends a piece as [`send`](Self::send) does, with its digest if it has one and is sent as one
    /// segment.
    pub(crate) async fn send_piece(
        &self,
        offset_bytes: u32,
        RelayedPiece { data, digest }: RelayedPiece,
    ) -> Result<(), Aborted> {
        if data.is_empty() {
            return self.abort.check();
        }
        let bytes = u32::try_from(data.len()).unwrap_or(u32::MAX).min(self.limit.task_bytes());
        let in_flight = match self.limit.try_acquire(bytes) {
            Some(in_flight) => Some(in_flight),
            None => self.abort.unless(self.limit.acquire(bytes)).await?,
        };
        self.abort.check()?;
        let Some(_in_flight) = in_flight else { return Err(Aborted) };
        let data = Bytes::from_owner(SentPiece { data, _in_flight });
        self.inputs.push(Input::DataIn { task: self.task, offset_bytes, data, digest });
        Ok(())
    }
}
