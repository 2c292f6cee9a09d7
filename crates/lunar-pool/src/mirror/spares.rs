//! Spare devices, which replace members that are left out for too long.

use super::Mirror;
use super::slots::MemberSlot;
use crate::PoolError;
use crate::status::{UnusedDevice, UnusedState};
use lunar_block::{BlockDevice, DeviceLink};
use std::sync::atomic::Ordering::SeqCst;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;
use tokio::sync::Notify;
use tokio::time::Instant;

/// Interval at which the connection of a member that is left out is checked.
const LINK_POLL: Duration = Duration::from_secs(5);

/// Time after which a spare device that has failed is tried again.
const SPARE_RETRY: Duration = Duration::from_secs(60);

/// The spare devices of a mirror, and other devices that are not members.
#[derive(Debug)]
pub(super) struct Spares {
    state: Mutex<SpareState>,
    /// Notified when members have changed their states.
    changed: Arc<Notify>,
}

#[derive(Debug)]
struct SpareState {
    spares: Vec<Spare>,
    others: Vec<UnusedDevice>,
}

#[derive(Clone, Debug)]
struct Spare {
    device: Arc<dyn BlockDevice>,
    failure: String,
    /// The device has failed, and is not tried before this time.
    retry_at: Option<Instant>,
}

/// A slot whose member a spare device is to replace at some time.
#[derive(Clone, Copy, Debug)]
struct Vacancy {
    slot: u16,
    due: Instant,
}

impl Spares {
    pub(super) fn new(
        spares: Vec<(Arc<dyn BlockDevice>, String)>,
        others: Vec<UnusedDevice>,
    ) -> Self {
        let spare = |(device, failure)| Spare { device, failure, retry_at: None };
        let spares = spares.into_iter().map(spare).collect();
        Self { state: Mutex::new(SpareState { spares, others }), changed: Arc::default() }
    }

    fn state(&self) -> MutexGuard<'_, SpareState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn status(&self) -> Vec<UnusedDevice> {
        let state = self.state();
        let spare = |spare: &Spare| {
            UnusedDevice::new(spare.device.name(), UnusedState::Spare, spare.failure.clone())
        };
        state.spares.iter().map(spare).chain(state.others.iter().cloned()).collect()
    }

    pub(super) fn notify_members_changed(&self) {
        self.changed.notify_one();
    }

    /// Records that another device has the slot of a device.
    pub(super) fn add_replaced(&self, device: &str, failure: String) {
        let device = UnusedDevice::new(device, UnusedState::Replaced, failure);
        self.state().others.push(device);
    }

    /// Returns the first spare device that may be tried now.
    fn ready(&self) -> Option<Spare> {
        let now = Instant::now();
        let state = self.state();
        state.spares.iter().find(|spare| spare.retry_at.is_none_or(|at| at <= now)).cloned()
    }

    /// Returns the time at which the next spare device may be tried.
    fn ready_at(&self) -> Option<Instant> {
        let state = self.state();
        state.spares.iter().map(|spare| spare.retry_at.unwrap_or_else(Instant::now)).min()
    }

    fn remove(&self, device: &Arc<dyn BlockDevice>) {
        self.state().spares.retain(|spare| !Arc::ptr_eq(&spare.device, device));
    }

    fn record_failure(&self, device: &Arc<dyn BlockDevice>, error: &PoolError) {
        let mut state = self.state();
        if let Some(spare) = state.spares.iter_mut().find(|one| Arc::ptr_eq(&one.device, device)) {
            spare.failure = error.to_string();
            spare.retry_at = Some(Instant::now() + SPARE_RETRY);
        }
    }
}

impl Mirror {
    /// Starts the task that lets spare devices replace members.
    pub(super) fn start_spares(self: &Arc<Self>) {
        if self.spares.ready_at().is_some() {
            self.runtime.spawn(replace_members(Arc::downgrade(self)));
        }
    }

    /// Returns the slot whose member is to be replaced next.
    fn next_vacancy(&self) -> Option<Vacancy> {
        let now = Instant::now();
        let slots = self.slots.all();
        let due = |taken: &MemberSlot| match taken {
            MemberSlot::Vacant => None,
            MemberSlot::Missing => Some(now),
            MemberSlot::Taken(member) => {
                let since = member.left_out_since()?;
                let is_gone = member.device.device().link() == Some(DeviceLink::Failed);
                Some(if is_gone { now } else { since + self.options.spare_wait })
            }
        };
        let vacancies = (0..).zip(slots.iter());
        let vacancies =
            vacancies.filter_map(|(slot, taken)| Some(Vacancy { slot, due: due(taken)? }));
        vacancies.min_by_key(|vacancy| vacancy.due)
    }

    /// Lets a spare device replace a member, if it is still left out.
    async fn replace_by_spare(self: &Arc<Self>, slot: u16, spare: Spare) {
        let is_out = |taken: &MemberSlot| match taken {
            MemberSlot::Vacant => false,
            MemberSlot::Missing => true,
            MemberSlot::Taken(member) => member.left_out_since().is_some(),
        };
        let name = spare.device.name();
        match self.replace_if(slot, Arc::clone(&spare.device), is_out).await {
            Ok(()) => {
                self.spares.remove(&spare.device);
                tracing::warn!("{}: spare device {name} replaces member {slot}", self.name);
            }
            // The member has returned, or was removed.
            Err(PoolError::NoSuchMember { .. }) => {}
            Err(error) => {
                self.spares.record_failure(&spare.device, &error);
                tracing::warn!(
                    "{}: spare device {name} cannot replace member {slot}: {error}",
                    self.name
                );
            }
        }
    }
}

/// Replaces members that are left out for too long, as long as there are spare devices. Ends when
/// the pool is closed.
async fn replace_members(weak: Weak<Mirror>) {
    loop {
        let Some(mirror) = weak.upgrade().filter(|mirror| !mirror.closing.load(SeqCst)) else {
            return;
        };
        let (changed, mut closed) = (Arc::clone(&mirror.spares.changed), mirror.closed.subscribe());
        let vacancy = mirror.next_vacancy();
        // Taken after the call: the time at which a slot became vacant must not be later than now.
        let now = Instant::now();
        if let (Some(Vacancy { slot, due }), Some(spare)) = (vacancy, mirror.spares.ready())
            && due <= now
        {
            mirror.replace_by_spare(slot, spare).await;
            continue;
        }
        let wake_at = match (vacancy, mirror.spares.ready_at()) {
            (_, None) => return,
            (None, _) => None,
            (Some(vacancy), Some(ready)) => {
                Some(vacancy.due.max(ready).clamp(now, now + LINK_POLL))
            }
        };
        drop(mirror);
        let timer = async {
            match wake_at {
                Some(at) => tokio::time::sleep_until(at).await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            _ = closed.wait_for(|closed| *closed) => return,
            () = changed.notified() => {}
            () = timer => {}
        }
    }
}
