//! Configured devices of a pool that it was opened without: they are opened again and again.

use crate::Failure;
use crate::config::model::PoolMemberConfig;
use crate::daemon::pause::RetryPause;
use std::sync::{Mutex, MutexGuard, PoisonError};
use tokio::time::Instant;

/// A configured device of a pool that is not a member of the open pool.
#[derive(Clone, Debug)]
pub struct AbsentMember {
    /// The device.
    pub config: PoolMemberConfig,
    /// The last failure to open it, or to give it back its slot; in one line.
    pub error: String,
    /// Whether it has no label of a pool: it is new, or was cleared or overwritten.
    pub lacks_label: bool,
    pause: RetryPause,
}

/// A configured device without which a pool was opened.
#[derive(Debug)]
pub struct AbsentDevice {
    /// The device.
    pub config: PoolMemberConfig,
    /// The reason.
    pub failure: Failure,
    /// Whether the reason is that it has no label of a pool.
    pub lacks_label: bool,
}

/// The absent devices of a pool.
#[derive(Debug)]
pub(crate) struct AbsentMembers(Mutex<Vec<AbsentMember>>);

impl AbsentMembers {
    pub(super) fn new(absent: Vec<AbsentDevice>) -> Self {
        let absent = absent.into_iter().map(|AbsentDevice { config, failure, lacks_label }| {
            // A label does not appear by itself, and the device may be wanted for a command.
            let pause = if lacks_label { RetryPause::never() } else { RetryPause::after(&failure) };
            AbsentMember { config, error: failure.what, lacks_label, pause }
        });
        Self(Mutex::new(absent.collect()))
    }

    pub(crate) fn all(&self) -> Vec<AbsentMember> {
        self.list().clone()
    }

    /// The time of the next attempt.
    pub(crate) fn next_due(&self) -> Option<Instant> {
        self.list().iter().filter_map(|absent| absent.pause.due()).min()
    }

    /// Takes devices that are due, each for one attempt.
    pub(crate) fn begin_attempts(&self, count_max: usize) -> Vec<PoolMemberConfig> {
        let due = |absent: &mut AbsentMember| absent.pause.begin().then(|| absent.config.clone());
        self.list().iter_mut().filter_map(due).take(count_max).collect()
    }

    /// Records the end of an attempt: a device that is a member again is not absent any more. A
    /// failure is with `true` if the device has no label.
    pub(crate) fn attempt_ended(
        &self,
        config: &PoolMemberConfig,
        result: Result<(), (Failure, bool)>,
    ) {
        let mut list = self.list();
        let Some(at) = list.iter().position(|absent| absent.config == *config) else { return };
        match result {
            Ok(()) => drop(list.remove(at)),
            Err((failure, lacks_label)) => {
                if !lacks_label {
                    list[at].pause.failed(&failure);
                }
                list[at].lacks_label = lacks_label;
                list[at].error = failure.what;
            }
        }
    }

    /// Forgets the devices that are not wanted any more.
    pub(crate) fn retain(&self, is_wanted: impl Fn(&PoolMemberConfig) -> bool) {
        self.list().retain(|absent| is_wanted(&absent.config));
    }

    fn list(&self) -> MutexGuard<'_, Vec<AbsentMember>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
