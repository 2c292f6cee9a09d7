//! Tasks whose data moves while they run.

use super::{Collected, Planned, Tasks, retry_later};
use crate::abort::AbortSignal;
use crate::session::Session;
use crate::streams::{
    DataInWriter, DataOutReader, DataOutStream, DataStreams, SecondCheck, StreamLimits,
    StreamSegment,
};
use crate::unit::CommandData;
use lunar_block::BufferPool;
use lunar_iscsi::connection::target::{Input, Task};
use lunar_iscsi::framing::{SegmentDigest, TaskId};
use lunar_scsi::sense::Status;
use std::sync::Arc;

impl Tasks {
    /// Begins a task without its data, which moves while it runs. The machine is given
    /// [`Input::Stream`] before any other input of the task.
    #[cold]
    pub(super) fn begin_streams(
        &mut self,
        session: &Arc<Session>,
        task: &Task,
        planned: Planned,
    ) -> Option<Input> {
        let id = task.id;
        if let Some(Collected::Refused) = self.buffers.get(id) {
            drop(self.take_buffer(id));
            return Some(Input::Done { task: id, outcome: retry_later(Status::TASK_SET_FULL) });
        }
        let total_bytes = u32::try_from(planned.collect_bytes).unwrap_or(u32::MAX);
        let stream = Arc::new(DataOutStream::new(total_bytes, self.data_out.buffers()));
        let limits = self.stream_limits.get_or_insert_with(|| StreamLimits::new(&self.limits));
        let (of_data_out, of_data_in) = (limits.of_data_out(), limits.of_data_in());
        let second_check = planned.unit.as_ref().map(|unit| SecondCheck::new(session, unit, task));
        let (inputs, wait_max) = (&self.inputs, self.work.wait_max);
        let abort = AbortSignal::new(&self.awaited);
        let mut data_out =
            DataOutReader::new(id, &stream, inputs, of_data_out, wait_max, second_check);
        data_out.set_came_with_command(task.has_all_data);
        let streams =
            DataStreams { data_out, data_in: DataInWriter::new(id, inputs, of_data_in, &abort) };
        self.inputs.push(Input::Stream(id));
        let data = CommandData::Streams(Box::new(streams));
        let ended = self.begin_with(session, id, planned, data, abort);
        match self.running.get_mut(&id) {
            Some(running) => running.stream = Some(stream),
            None => drop(self.take_buffer(id)),
        }
        ended
    }

    pub(super) fn stream_of(&self, task: TaskId) -> Option<&Arc<DataOutStream>> {
        self.running.get(&task)?.stream.as_ref()
    }

    /// Takes the room for a segment of a stream; `None`: it is discarded.
    #[cold]
    pub(crate) fn begin_segment(
        &self,
        task: TaskId,
        offset_bytes: u32,
        segment_bytes: u32,
        is_final: bool,
    ) -> Option<Box<StreamSegment>> {
        let stream = self.stream_of(task)?;
        stream.begin_segment(task, offset_bytes, segment_bytes, is_final).map(Box::new)
    }

    /// Hands a range of a stream over that was checked. `is_filling` is true while a segment is
    /// arriving in the task's buffer, which holds what came before the task began.
    #[cold]
    pub(crate) fn data_arrived(
        &mut self,
        task: TaskId,
        offset_bytes: u32,
        bytes: u32,
        digest: SegmentDigest,
        is_filling: bool,
    ) {
        let Some(stream) = self.stream_of(task).map(Arc::clone) else {
            drop(self.take_buffer(task));
            return;
        };
        if stream.segment_checked(offset_bytes, bytes, digest) {
            return;
        }
        let buffer = match self.buffers.get_mut(task) {
            Some(Collected::Buffer(buffer)) => buffer,
            _ => return,
        };
        let charged = BufferPool::charged_bytes;
        if offset_bytes == 0 && !is_filling && charged(buffer.len()) <= charged(bytes as usize) {
            if let Some(Collected::Buffer(buffer)) = self.take_buffer(task) {
                stream.add(0, buffer, bytes, digest);
            }
            return;
        }
        // Copied, because the buffer has room for all the data that was announced.
        let (start, end) = (offset_bytes as usize, offset_bytes as usize + bytes as usize);
        if let Some(arrived) = buffer.get(start..end) {
            let mut piece = buffer.pool().take(arrived.len());
            piece.copy_from_slice(arrived);
            stream.add(offset_bytes, piece, bytes, digest);
        }
        if !is_filling {
            drop(self.take_buffer(task));
        }
    }
}
