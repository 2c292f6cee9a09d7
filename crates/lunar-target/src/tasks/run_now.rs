//! Commands that run when they are checked, before they are recorded: most reads and writes.

use super::{Collected, Tasks};
use crate::itl_nexus::ItlNexus;
use crate::task_set::QueuedTaskPermit;
use crate::unit::{AcceptedCommand, CommandData};
use bytes::Bytes;
use lunar_iscsi::connection::target::Task;
use std::ops::ControlFlow;

impl Tasks {
    /// Runs a read, or a write whose data came with it, before the task is recorded, if neither
    /// other tasks nor the disk have to be waited for: most commands end here. Otherwise returns
    /// the data, if the command was tried.
    pub(super) fn run_now(
        &mut self,
        nexus: &ItlNexus,
        accepted: &AcceptedCommand,
        task: &Task,
        permit: Option<&QueuedTaskPermit>,
    ) -> ControlFlow<Bytes, Option<CommandData>> {
        let ItlNexus { unit, task_set, .. } = nexus;
        let share = match permit {
            Some(_) => None,
            None => task_set.try_share(task.attribute),
        };
        if share.is_none() && !permit.is_some_and(QueuedTaskPermit::is_granted) {
            return ControlFlow::Continue(None);
        }
        let Some(mut data) = self.data_at_hand(accepted, task) else {
            return ControlFlow::Continue(None);
        };
        if !unit.try_run(&accepted.work, &mut data) {
            return ControlFlow::Continue(Some(data));
        }
        drop(self.take_buffer(task.id));
        ControlFlow::Break(data.into_reply())
    }

    /// The data with which a read or a write can run now: a buffer, if memory is free, or data that
    /// has arrived.
    pub(super) fn data_at_hand(
        &mut self,
        accepted: &AcceptedCommand,
        task: &Task,
    ) -> Option<CommandData> {
        let bytes = accepted.collect_bytes;
        match accepted.data_in_buffer_bytes {
            Some(data_in) if bytes == 0 => {
                return self.data_in.try_take(data_in).map(CommandData::In);
            }
            Some(_) => return None, // bidirectional
            None => {}
        }
        let is_here =
            |data: &Collected| matches!(data, Collected::Buffer(its) if its.len() >= bytes);
        if bytes == 0 || !task.has_all_data || !self.buffers.get(task.id).is_some_and(is_here) {
            return None;
        }
        let Some(Collected::Buffer(mut buffer)) = self.take_buffer(task.id) else { return None };
        buffer.truncate(bytes);
        Some(CommandData::Out(buffer))
    }
}
