//! SCSI responses that no other response may overtake: unit attentions after an abort of several
//! tasks, and the response to PREEMPT AND ABORT. RFC 7143 §4.2.2.3.3, §4.2.2.3.4 a), f).
//!
//! The fences run one after the other: all earlier responses are acknowledged on all connections,
//! then the fenced response; meanwhile all other responses are held.

use super::ToConnection;
use super::machine::{REQUESTS_KEPT_MAX, TargetSession};
use crate::framing::TaskId;
use alloc::collections::{BTreeSet, VecDeque};

#[derive(Debug)]
struct FencedResponse {
    id: u64,
    /// The connection that sends the response.
    cid: u16,
    task: TaskId,
    stage: Stage,
}

#[derive(Debug)]
enum Stage {
    /// Another fence is active.
    Waiting,
    /// Earlier responses are being acknowledged on these connections.
    Before(BTreeSet<u16>),
    /// The response is being acknowledged.
    After,
}

/// The queue of fences: one is active at a time, in the order of the requests.
#[derive(Debug, Default)]
pub(super) struct FencedResponses {
    queue: VecDeque<FencedResponse>,
}

impl FencedResponses {
    /// True if no fence is active or waits.
    pub(super) fn are_none(&self) -> bool {
        self.queue.is_empty()
    }

    pub(super) fn free_spare(&mut self) {
        if self.queue.is_empty() {
            self.queue.shrink_to(REQUESTS_KEPT_MAX);
        }
    }

    #[cfg(test)]
    pub(super) fn capacity(&self) -> usize {
        self.queue.capacity()
    }

    /// True if a fence is active.
    pub(super) fn is_active(&self) -> bool {
        self.queue.front().is_some_and(|front| !matches!(front.stage, Stage::Waiting))
    }

    /// Removes the fence of a task that ended; `true` if it was active, as its response will never
    /// be sent.
    pub(super) fn task_ended(&mut self, task: TaskId) -> bool {
        let stood = self.is_active();
        let front = self.queue.front().map(|front| front.id);
        self.queue.retain(|fenced| fenced.task != task || matches!(fenced.stage, Stage::After));
        stood && self.queue.front().map(|front| front.id) != front
    }

    /// Removes the fences of a closed connection, which acknowledges nothing more; `true` if the
    /// active one was removed.
    pub(super) fn connection_closed(&mut self, cid: u16) -> bool {
        let stood = self.is_active();
        let front = self.queue.front().map(|front| front.id);
        self.queue.retain(|fenced| fenced.cid != cid);
        if let Some(FencedResponse { stage: Stage::Before(waiting), .. }) = self.queue.front_mut() {
            waiting.remove(&cid);
        }
        stood && self.queue.front().map(|front| front.id) != front
    }
}

impl TargetSession {
    /// Queues a fence for the response of a connection.
    pub(super) fn fence_response(&mut self, cid: u16, task: TaskId) {
        if !self.tasks.contains_key(task) {
            return;
        }
        if !self.holds_responses() || !self.has_fences() {
            return self.send(cid, ToConnection::SendFenced { task });
        }
        let (id, stage) = (self.managements.new_id(), Stage::Waiting);
        self.managements.fenced.queue.push_back(FencedResponse { id, cid, task, stage });
    }

    /// Handles an acknowledgement; `false` if it does not belong to a fenced response.
    pub(super) fn response_fenced(&mut self, cid: u16, id: u64) -> bool {
        let front = self.managements.fenced.queue.front_mut();
        let Some(front) = front.filter(|front| front.id == id) else { return false };
        match &mut front.stage {
            Stage::Waiting => {}
            Stage::Before(waiting) => {
                waiting.remove(&cid);
            }
            Stage::After => {
                self.managements.fenced.queue.pop_front();
                self.release();
            }
        }
        true
    }

    pub(super) fn step_fenced(&mut self) {
        let management_is_fenced = self.managements.management_is_fenced();
        let Some(front) = self.managements.fenced.queue.front_mut() else { return };
        let (id, cid, task) = (front.id, front.cid, front.task);
        match &front.stage {
            Stage::Waiting if !management_is_fenced => {
                let all: BTreeSet<u16> = self.connections.keys().collect();
                front.stage = Stage::Before(all.clone());
                for cid in all {
                    self.send(cid, ToConnection::Fence { id });
                }
            }
            Stage::Before(waiting) if waiting.is_empty() => {
                front.stage = Stage::After;
                self.send(cid, ToConnection::SendFenced { task });
                self.send(cid, ToConnection::Fence { id });
            }
            _ => {}
        }
    }
}
