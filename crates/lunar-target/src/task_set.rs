//! Task sets, which order the commands of an I_T nexus at a unit. SAM-5 §8.
//!
//! Each session has a task set of its own at each unit (TST 001b, SPC-4 §7.5.8; decision 087): no
//! command waits for one of another initiator.

use crate::abort::{AbortSignal, Aborted};
use crate::ranges::{RangeGuard, RangeLocks, RangeQueued, RangeShare};
use lunar_iscsi::pdu::TaskAttribute;
use lunar_scsi::plan::LbaRange;
use std::sync::Arc;
use tokio::sync::Mutex;

/// The range that stands for the whole task set.
const ALL: LbaRange = LbaRange { lba: 0, count: 1 };

/// The task set of one I_T nexus at one unit: SIMPLE tasks share it, an ORDERED one holds it alone,
/// a HEAD OF QUEUE one takes it at once. Clones are the same set.
#[derive(Clone, Debug, Default)]
pub(crate) struct TaskSet {
    locks: Arc<RangeLocks>,
}

/// A command that has entered a task set.
#[derive(Debug)]
pub(crate) struct QueuedTaskPermit {
    attribute: TaskAttribute,
    queued: Queued,
}

/// A permit that a command waits for or already holds.
#[derive(Debug)]
enum Queued {
    /// Share of a SIMPLE task, among SIMPLE tasks only.
    Share(RangeShare<Arc<RangeLocks>>),
    Queue(RangeQueued),
}

/// A held permit, released when dropped.
#[derive(Debug)]
enum HeldTaskPermit {
    Share { _share: RangeShare<Arc<RangeLocks>> },
    Guard { _guard: RangeGuard },
}

/// Permit of a command in its task set: other commands wait for it, as their attributes require.
///
/// With a limit, a copy may take hours. A later ORDERED command, and all commands after that, would
/// wait as long. Therefore a command that has to wait for a limit returns its permit, and takes
/// another one when it has been charged.
#[derive(Debug)]
pub(crate) struct TaskPermit {
    task_set: TaskSet,
    attribute: TaskAttribute,
    /// The held permit; `None` after it was returned. Locked while the command waits for a new one.
    held: Mutex<Option<HeldTaskPermit>>,
}

impl TaskSet {
    /// Queues a command after those that go before it by their attributes.
    #[inline]
    pub(crate) fn enter(&self, attribute: TaskAttribute) -> QueuedTaskPermit {
        let queued = match attribute {
            TaskAttribute::HEAD_OF_QUEUE => Queued::Queue(self.locks.at_head(ALL)),
            TaskAttribute::ORDERED => Queued::Queue(self.locks.queue(ALL, true)),
            _ => match RangeLocks::try_share(Arc::clone(&self.locks)) {
                Some(share) => Queued::Share(share),
                None => Queued::Queue(self.locks.queue(ALL, false)),
            },
        };
        QueuedTaskPermit { attribute, queued }
    }

    /// Returns the permit of a SIMPLE task that ends at once, unless there are tasks of other
    /// attributes.
    #[inline]
    pub(crate) fn try_share(&self, attribute: TaskAttribute) -> Option<RangeShare<&RangeLocks>> {
        match attribute {
            TaskAttribute::HEAD_OF_QUEUE | TaskAttribute::ORDERED => None,
            _ => RangeLocks::try_share(&*self.locks),
        }
    }
}

impl QueuedTaskPermit {
    /// True when no command goes before this one.
    pub(crate) fn is_granted(&self) -> bool {
        match &self.queued {
            Queued::Share(_) => true,
            Queued::Queue(queued) => queued.is_granted(),
        }
    }

    /// Waits for the commands that go before this one.
    pub(crate) async fn granted(self) -> TaskPermit {
        let task_set = TaskSet { locks: Arc::clone(self.queued.locks()) };
        let held = Mutex::new(Some(self.queued.granted().await));
        TaskPermit { task_set, attribute: self.attribute, held }
    }
}

impl TaskPermit {
    /// Releases the permit for other commands. A permit that [`take_back`](Self::take_back) is
    /// waiting for is not released: no command waits for it yet.
    pub(crate) fn release(&self) {
        if let Ok(mut held) = self.held.try_lock() {
            drop(held.take());
        }
    }

    /// Takes a new permit after commands that have arrived meanwhile, unless the permit was taken
    /// back already.
    pub(crate) async fn take_back(&self, abort: &AbortSignal) -> Result<(), Aborted> {
        let again = async {
            let mut held = self.held.lock().await;
            if held.is_none() {
                *held = Some(self.task_set.enter(self.attribute).queued.granted().await);
            }
        };
        abort.unless(again).await
    }
}

impl Queued {
    fn locks(&self) -> &Arc<RangeLocks> {
        match self {
            Self::Share(share) => share.locks(),
            Self::Queue(queued) => queued.locks(),
        }
    }

    async fn granted(self) -> HeldTaskPermit {
        match self {
            Self::Share(share) => HeldTaskPermit::Share { _share: share },
            Self::Queue(queued) => HeldTaskPermit::Guard { _guard: queued.granted().await },
        }
    }
}
