//! The share of an owner in the commands that relays have at a LUN of a storage.
//!
//! A storage sees one initiator, the switch, and takes its commands in any order, often the order
//! of their arrival. The deep queues of one owner would make the commands of all others wait.
//! Commands beyond the share are executed by the device, where owners take turns.

use super::LINK_COMMANDS_MAX;
use lunar_initiator::RelayedLun;
use lunar_net::OwnerId;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering::Relaxed};
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::time::Duration;
use tokio::time::Instant;

/// Maximum number of commands that relays have at a LUN for all owners together, while several use
/// it.
const SHARED_COMMANDS_MAX: usize = 32;

/// The same while one owner uses it: more help no storage, and each makes the first commands of
/// another owner wait.
const ALONE_COMMANDS_MAX: usize = 128;

/// Mean time of a command from which a LUN is slow, in microseconds.
const SLOW_MICROS: u64 = 20_000;

/// Time for which a LUN counts as slow. Commands of several owners are left to the device, where
/// they take turns.
const SLOW_TIME: Duration = Duration::from_secs(10);

/// Longest time of a command that counts in the mean, in microseconds.
const COUNTED_MICROS_MAX: u64 = 1_000_000;

/// Weight of a command in the mean: one part in this.
const MEAN_WEIGHT: u64 = 8;

/// Number of commands that an owner may have at a LUN that is not slow in any case.
const OWNER_COMMANDS_MIN: usize = 4;

/// Time for which an owner counts after its last command has come.
const ACTIVE_TIME: Duration = Duration::from_secs(1);

/// Number of owners that are told apart. Others share a slot with one of them.
const SLOTS: usize = 64;

/// The commands at a LUN, by owners.
#[derive(Debug)]
struct LunShares {
    origin: Instant,
    /// Time until which devices execute the commands of all owners, in milliseconds.
    avoided_until: AtomicU64,
    /// Mean time of a command, in microseconds.
    mean_micros: AtomicU64,
    /// Time until which the LUN counts as slow, in milliseconds.
    slow_until: AtomicU64,
    slots: [OwnerSlot; SLOTS],
}

#[derive(Debug, Default)]
struct OwnerSlot {
    commands: AtomicUsize,
    /// Time from which the owner does not count, in milliseconds.
    active_until: AtomicU64,
}

/// The commands of one owner at a LUN.
#[derive(Clone, Debug)]
pub(super) struct OwnerShare {
    shares: Arc<LunShares>,
    slot: usize,
}

/// Counts a command until it is dropped.
#[derive(Debug)]
pub(super) struct SharedCommand {
    share: OwnerShare,
    /// Time since which the storage has to answer; `None` while the command waits for its host, and
    /// after the first data of a READ, which waits for the host as well.
    asked: Option<Instant>,
}

impl SharedCommand {
    /// The storage has to answer from now on.
    pub(super) fn ask(&mut self) {
        self.asked = Some(Instant::now());
    }

    /// The storage has requested data of the host.
    pub(super) fn wait_for_host(&mut self) {
        self.asked = None;
    }

    /// The storage has answered: records the time.
    pub(super) fn answered(&mut self) {
        if let Some(asked) = self.asked.take() {
            self.share.shares.note_time(asked.elapsed());
        }
    }
}

fn millis(time: Duration) -> u64 {
    u64::try_from(time.as_millis()).unwrap_or(u64::MAX)
}

impl LunShares {
    fn new() -> Arc<Self> {
        let slots = std::array::from_fn(|_| OwnerSlot::default());
        Arc::new(Self {
            origin: Instant::now(),
            avoided_until: AtomicU64::new(0),
            mean_micros: AtomicU64::new(0),
            slow_until: AtomicU64::new(0),
            slots,
        })
    }

    /// Returns the present time in milliseconds.
    fn now(&self) -> u64 {
        millis(self.origin.elapsed())
    }

    /// Records the time of a command.
    fn note_time(&self, time: Duration) {
        let micros = u64::try_from(time.as_micros()).unwrap_or(u64::MAX).min(COUNTED_MICROS_MAX);
        // A command of another thread that is lost here is one of many.
        let former = self.mean_micros.load(Relaxed);
        let mut mean = former - former / MEAN_WEIGHT + micros / MEAN_WEIGHT;
        if mean >= SLOW_MICROS {
            self.slow_until.store(self.now().saturating_add(millis(SLOW_TIME)), Relaxed);
            mean = 0;
        }
        self.mean_micros.store(mean, Relaxed);
    }

    fn share(self: &Arc<Self>, owner: OwnerId) -> OwnerShare {
        // Multiplied, so that all bits of the owner count.
        let mixed = owner.0.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 32;
        OwnerShare { shares: Arc::clone(self), slot: (mixed % SLOTS as u64) as usize }
    }
}

impl OwnerShare {
    fn slot(&self) -> &OwnerSlot {
        &self.shares.slots[self.slot]
    }

    /// True if the owner may have a further command at the LUN. The owner counts as active from now
    /// on, also if the device executes the command.
    pub(super) fn has_room(&self) -> bool {
        let (shares, slot) = (&*self.shares, self.slot());
        let now = shares.now();
        slot.active_until.store(now.saturating_add(millis(ACTIVE_TIME)), Relaxed);
        if shares.avoided_until.load(Relaxed) > now {
            return false;
        }
        let (commands, is_slow) =
            (slot.commands.load(Relaxed), shares.slow_until.load(Relaxed) > now);
        if commands < OWNER_COMMANDS_MIN && !is_slow {
            return true;
        }
        let is_active = |slot: &&OwnerSlot| {
            slot.active_until.load(Relaxed) > now || slot.commands.load(Relaxed) > 0
        };
        match (shares.slots.iter().filter(is_active).count(), is_slow) {
            // The owner itself.
            (0 | 1, false) => commands < ALONE_COMMANDS_MAX,
            (0 | 1, true) => commands < SHARED_COMMANDS_MAX,
            (_, true) => false,
            (owners, false) => commands < SHARED_COMMANDS_MAX / owners,
        }
    }

    /// Has devices execute the commands of all owners at the LUN for some time.
    pub(super) fn avoid_lun(&self, time: Duration) {
        let until = self.shares.now().saturating_add(millis(time));
        self.shares.avoided_until.fetch_max(until, Relaxed);
    }

    /// True while devices execute all commands at the LUN.
    pub(super) fn is_avoided(&self) -> bool {
        let until = self.shares.avoided_until.load(Relaxed);
        until > 0 && until > self.shares.now()
    }

    /// Counts a command; `None` if there is no room for it. Several may have been checked since one
    /// has begun.
    pub(super) fn begin(&self) -> Option<SharedCommand> {
        if !self.has_room() {
            return None;
        }
        self.slot().commands.fetch_add(1, Relaxed);
        Some(SharedCommand { share: self.clone(), asked: Some(Instant::now()) })
    }
}

impl Drop for SharedCommand {
    fn drop(&mut self) {
        self.share.slot().commands.fetch_sub(1, Relaxed);
        self.answered();
    }
}

/// The shares of all LUNs that relays use.
#[derive(Debug, Default)]
pub(super) struct StorageShares(Mutex<Vec<(Weak<RelayedLun>, Arc<LunShares>)>>);

impl StorageShares {
    /// Returns the share of an owner in a LUN.
    pub(super) fn share(&self, lun: &Weak<RelayedLun>, owner: OwnerId) -> OwnerShare {
        let mut known = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        known.retain(|(lun, _)| lun.strong_count() > 0);
        if let Some((_, shares)) = known.iter().find(|(other, _)| other.ptr_eq(lun)) {
            return shares.share(owner);
        }
        let shares = LunShares::new();
        known.push((Weak::clone(lun), Arc::clone(&shares)));
        shares.share(owner)
    }
}

// The limit of a connection is not below a share.
const _: () = assert!(LINK_COMMANDS_MAX >= SHARED_COMMANDS_MAX);

#[cfg(test)]
mod tests {
    use super::*;

    /// Begins commands of an owner as long as there is room, at most 1000; returns them.
    fn begin_all(share: &OwnerShare) -> Vec<SharedCommand> {
        std::iter::from_fn(|| share.begin()).take(1000).collect()
    }

    /// Fault: the deep queues of one address at a storage that takes commands in their order made
    /// each command of another one wait for seconds.
    #[tokio::test(start_paused = true)]
    async fn owners_share_a_lun() {
        let shares = LunShares::new();
        let [deep, modest] = [1, 2].map(|owner| shares.share(OwnerId(owner)));
        assert_ne!(deep.slot, modest.slot);
        let alone = begin_all(&deep);
        assert_eq!(alone.len(), ALONE_COMMANDS_MAX);
        let one = modest.begin().unwrap();
        drop(alone);
        assert_eq!(begin_all(&deep).len(), SHARED_COMMANDS_MAX / 2);
        drop(one);
        tokio::time::sleep(ACTIVE_TIME / 2).await;
        assert_eq!(begin_all(&deep).len(), SHARED_COMMANDS_MAX / 2, "it goes on in a moment");
        tokio::time::sleep(ACTIVE_TIME).await;
        assert_eq!(begin_all(&deep).len(), ALONE_COMMANDS_MAX);
    }

    /// Fault: at a disk of 100 commands a second, the commands that relays had there were a wait of
    /// seconds for the other owner, who waited less without a relay.
    #[tokio::test(start_paused = true)]
    async fn a_slow_lun_is_left_to_the_device() {
        let shares = LunShares::new();
        let [deep, modest] = [1, 2].map(|owner| shares.share(OwnerId(owner)));
        let (first, second) = (begin_all(&deep), modest.begin().unwrap());
        assert_eq!(first.len(), ALONE_COMMANDS_MAX);
        for command in first {
            tokio::time::sleep(Duration::from_millis(10)).await;
            drop(command);
        }
        drop(second);
        assert!(deep.has_room(), "the other one does not use it at present");
        let until = Instant::now() + SLOW_TIME / 2;
        while Instant::now() < until {
            assert!(modest.begin().is_none() && deep.begin().is_none());
            tokio::time::sleep(ACTIVE_TIME / 2).await;
        }
        tokio::time::sleep(2 * ACTIVE_TIME).await;
        assert_eq!(begin_all(&deep).len(), SHARED_COMMANDS_MAX, "it is alone");
        tokio::time::sleep(SLOW_TIME).await;
        assert!(modest.begin().is_some(), "it is tried again");
    }

    /// Fault: the time for which a host withheld the data of one WRITE made the LUN slow, so that
    /// no host had the fast path for ten seconds.
    #[tokio::test(start_paused = true)]
    async fn the_time_of_a_host_does_not_count() {
        let shares = LunShares::new();
        let [slow, other] = [1, 2].map(|owner| shares.share(OwnerId(owner)));
        for _ in 0..100 {
            let mut write = slow.begin().unwrap();
            write.wait_for_host();
            tokio::time::sleep(Duration::from_secs(1)).await;
            write.ask();
            tokio::time::sleep(Duration::from_millis(1)).await;
            drop(write);
            let mut read = slow.begin().unwrap();
            tokio::time::sleep(Duration::from_millis(1)).await;
            read.answered();
            tokio::time::sleep(Duration::from_secs(1)).await;
            drop(read);
            assert!(other.begin().is_some());
        }
    }

    /// Fault: a storage that had violated the protocol was used at once by the next connection.
    #[tokio::test(start_paused = true)]
    async fn a_storage_that_violated_is_avoided_by_all() {
        let shares = LunShares::new();
        let [one, other] = [1, 2].map(|owner| shares.share(OwnerId(owner)));
        one.avoid_lun(Duration::from_secs(300));
        tokio::time::sleep(Duration::from_secs(299)).await;
        assert!(!other.has_room());
        tokio::time::sleep(Duration::from_secs(2)).await;
        assert!(other.has_room());
    }

    /// Goal: with many owners, each may have some commands.
    #[tokio::test(start_paused = true)]
    async fn many_owners_have_some_commands() {
        let shares = LunShares::new();
        let all: Vec<_> = (0..40).map(|owner| shares.share(OwnerId(owner)).begin()).collect();
        assert_eq!(begin_all(&shares.share(OwnerId(1000))).len(), OWNER_COMMANDS_MIN);
        drop(all);
    }
}
