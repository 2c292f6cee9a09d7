//! The data segment that a connection is receiving, and its destination.

use super::Connection;
use crate::streams::StreamSegment;
use lunar_block::MemoryCharge;
use lunar_iscsi::framing::{DataDestination, TaskId};
use lunar_iscsi::pdu::FinalFlag;

/// Destination of the current data segment.
pub(super) enum Receiving {
    Discarded,
    /// Memory for twice the length of the data that has arrived.
    Control {
        data: Vec<u8>,
        charge: MemoryCharge,
        filled: usize,
        segment_bytes: usize,
    },
    Task {
        task: TaskId,
        at: usize,
        end: usize,
    },
    /// The segment at this offset of a stream; its memory is allocated next.
    StreamAt {
        task: TaskId,
        offset_bytes: u32,
    },
    Stream(Box<StreamSegment>),
}

impl Connection {
    pub(super) fn receive(&mut self, destination: DataDestination) {
        self.receiving = match destination {
            DataDestination::Control => {
                let charge = self.memory.control.charge(0);
                Receiving::Control { data: Vec::new(), charge, filled: 0, segment_bytes: 0 }
            }
            DataDestination::Task { task, offset_bytes, buffer_bytes } => {
                self.tasks.reserve(task, buffer_bytes);
                let at = offset_bytes as usize;
                Receiving::Task { task, at, end: buffer_bytes as usize }
            }
            DataDestination::Stream { task, offset_bytes } => {
                Receiving::StreamAt { task, offset_bytes }
            }
            DataDestination::Discard => Receiving::Discarded,
        };
    }

    /// Completes the destination of a segment with its length, and the flags of its header.
    #[inline]
    pub(super) fn begin_segment(&mut self, announced_bytes: u32, flags: u8) {
        match &mut self.receiving {
            Receiving::Discarded | Receiving::Task { .. } | Receiving::Stream(_) => {}
            Receiving::Control { segment_bytes, .. } => {
                // The protocol machine has checked that the length is within
                // MaxRecvDataSegmentLength.
                *segment_bytes = announced_bytes as usize;
            }
            Receiving::StreamAt { task, offset_bytes } => {
                let is_final = flags & FinalFlag::FINAL.0 != 0;
                let segment =
                    self.tasks.begin_segment(*task, *offset_bytes, announced_bytes, is_final);
                self.receiving = segment.map_or(Receiving::Discarded, Receiving::Stream);
            }
        }
    }

    /// Discards the rest of a segment of a stream that has ended.
    pub(super) fn forget_segment(&mut self, task: TaskId) {
        if matches!(&self.receiving, Receiving::Stream(segment) if segment.task == task) {
            self.receiving = Receiving::Discarded;
        }
    }
}
