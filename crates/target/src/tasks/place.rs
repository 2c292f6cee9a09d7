//! A command's place in the task set of its unit, given back while it pays. SAM-5 §8.

use crate::abort::{AbortSignal, Aborted};
use crate::ranges::{RangeGuard, RangeLocks, RangeQueued, Share};
use crate::unit::LogicalUnit;
use iscsi::pdu::TaskAttribute;
use scsi::plan::LbaRange;
use std::sync::Arc;
use tokio::sync::Mutex;

/// The task set is one range for ordering's sake.
const TASK_SET: LbaRange = LbaRange { lba: 0, count: 1 };

/// A command that has come to its unit.
#[derive(Debug)]
pub(super) struct PlaceQueued {
    attribute: TaskAttribute,
    queued: Queued,
}

/// A place that is waited for, or held already.
#[derive(Debug)]
enum Queued {
    /// Of a SIMPLE task, where all are.
    Share(Share<Arc<RangeLocks>>),
    Queue(RangeQueued),
}

/// A place that is held: it is let go when dropped.
#[derive(Debug)]
enum Held {
    Share { _share: Share<Arc<RangeLocks>> },
    Guard { _guard: RangeGuard },
}

/// A place in the task set: others wait for it, as their attributes say.
///
/// A limit may stretch a copy to hours. Whoever came later with an ORDERED command, and all that
/// came after it, would wait as long: who has to wait for a limit gives the place back, and takes
/// another one when it has paid.
#[derive(Debug)]
pub(crate) struct TaskPlace {
    unit: Arc<LogicalUnit>,
    attribute: TaskAttribute,
    /// `None`: it is given back. Locked while a new one is waited for.
    held: Mutex<Option<Held>>,
}

impl PlaceQueued {
    pub(super) fn new(unit: &LogicalUnit, attribute: TaskAttribute) -> Self {
        Self { attribute, queued: Queued::new(unit, attribute) }
    }

    /// Nobody goes before.
    pub(super) fn is_granted(&self) -> bool {
        match &self.queued {
            Queued::Share(_) => true,
            Queued::Queue(queued) => queued.is_granted(),
        }
    }

    /// Waits for those that go before, at the unit whose place it is.
    pub(super) async fn granted(self, unit: &Arc<LogicalUnit>) -> TaskPlace {
        let held = Mutex::new(Some(self.queued.granted().await));
        TaskPlace { unit: Arc::clone(unit), attribute: self.attribute, held }
    }
}

impl TaskPlace {
    /// Others may go. One that is just being taken again is left: nobody waits for it yet.
    pub(crate) fn give_back(&self) {
        if let Ok(mut held) = self.held.try_lock() {
            drop(held.take());
        }
    }

    /// Waits for those that have come meanwhile, unless it was taken again already.
    pub(crate) async fn take_back(&self, abort: &AbortSignal) -> Result<(), Aborted> {
        let again = async {
            let mut held = self.held.lock().await;
            if held.is_none() {
                *held = Some(Queued::new(&self.unit, self.attribute).granted().await);
            }
        };
        abort.unless(again).await
    }
}

impl Queued {
    fn new(unit: &LogicalUnit, attribute: TaskAttribute) -> Self {
        match attribute {
            TaskAttribute::HEAD_OF_QUEUE => Self::Queue(unit.order.at_head(TASK_SET)),
            TaskAttribute::ORDERED => Self::Queue(unit.order.queue(TASK_SET, true)),
            _ => match RangeLocks::try_share(Arc::clone(&unit.order)) {
                Some(share) => Self::Share(share),
                None => Self::Queue(unit.order.queue(TASK_SET, false)),
            },
        }
    }

    async fn granted(self) -> Held {
        match self {
            Self::Share(share) => Held::Share { _share: share },
            Self::Queue(queued) => Held::Guard { _guard: queued.granted().await },
        }
    }
}

/// The place of a SIMPLE task that is done at once, unless there are others than SIMPLE ones.
pub(super) fn place_at_hand(
    unit: &LogicalUnit,
    attribute: TaskAttribute,
) -> Option<Share<&RangeLocks>> {
    match attribute {
        TaskAttribute::HEAD_OF_QUEUE | TaskAttribute::ORDERED => None,
        _ => RangeLocks::try_share(&*unit.order),
    }
}
