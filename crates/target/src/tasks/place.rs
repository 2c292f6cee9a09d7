//! A command's place in the task set of its unit, given back while it pays. SAM-5 §8.

use crate::abort::{AbortSignal, Aborted};
use crate::ranges::{RangeGuard, RangeQueued};
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
    queued: RangeQueued,
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
    held: Mutex<Option<RangeGuard>>,
}

impl PlaceQueued {
    pub(super) fn new(unit: &LogicalUnit, attribute: TaskAttribute) -> Self {
        Self { attribute, queued: queue(unit, attribute) }
    }

    /// Nobody goes before.
    pub(super) fn is_granted(&self) -> bool {
        self.queued.is_granted()
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
                *held = Some(queue(&self.unit, self.attribute).granted().await);
            }
        };
        abort.unless(again).await
    }
}

fn queue(unit: &LogicalUnit, attribute: TaskAttribute) -> RangeQueued {
    match attribute {
        TaskAttribute::HEAD_OF_QUEUE => unit.order.at_head(TASK_SET),
        TaskAttribute::ORDERED => unit.order.queue(TASK_SET, true),
        _ => unit.order.queue(TASK_SET, false),
    }
}
