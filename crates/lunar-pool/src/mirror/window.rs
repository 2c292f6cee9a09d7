//! The changes of a member that are in flight at a time.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use tokio::sync::oneshot::{self, error::TryRecvError};
use tokio::time::Instant;

/// Bytes for which an operation has more time: a slow line transfers 8 MiB a second.
const UNIT_BYTES: u64 = 256 << 10;

/// Time for this number of bytes, or for a change: a slow disk does 32 of them a second.
const UNIT_TIME_MAX: Duration = Duration::from_nanos(1_000_000_000 / 32);

/// Expected time between the ends of two changes before any was measured.
const INTERVAL_FIRST: Duration = Duration::from_millis(4);

/// Weight of a new interval: one part in this.
const INTERVAL_WEIGHT: u32 = 8;

/// A window of so many changes is none.
const WINDOW_MAX: usize = 1024;

/// Limits the changes of a member that are in flight, once one of them has held up those of the
/// others.
///
/// A disk that does one change after the other takes longer for each the more there are; one that
/// delays all of them does not. Therefore a late change halves the limit, and each full window
/// makes it longer by one. A slow disk stays as fast, and its changes are not late any more; those
/// of a member that delays them are late again.
#[derive(Debug, Default)]
pub(super) struct MemberWindow {
    /// True while there is a limit, without the lock.
    is_limited: AtomicBool,
    state: Mutex<WindowState>,
}

#[derive(Debug)]
struct WindowState {
    /// Maximum number of changes in flight, below [`WINDOW_MAX`].
    limit: Option<usize>,
    in_flight: usize,
    waiting: VecDeque<oneshot::Sender<()>>,
    /// Bytes of the changes that have not ended, waiting ones too, and of running flushes.
    bytes: u64,
    /// Number of changes that have ended since the limit last changed.
    good: usize,
    /// The last time that the limit was halved.
    halved: Option<Instant>,
    last_end: Option<Instant>,
    /// Mean time between the ends of two changes while more were in flight.
    interval: Duration,
}

impl Default for WindowState {
    fn default() -> Self {
        Self {
            limit: None,
            in_flight: 0,
            waiting: VecDeque::new(),
            bytes: 0,
            good: 0,
            halved: None,
            last_end: None,
            interval: INTERVAL_FIRST,
        }
    }
}

impl MemberWindow {
    fn state(&self) -> MutexGuard<'_, WindowState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// True if the number of changes in flight has a limit.
    pub(super) fn is_limited(&self) -> bool {
        self.is_limited.load(SeqCst)
    }

    /// Waits until a change of `bytes` may be sent, if there is a limit.
    pub(super) async fn enter(&self, bytes: u64) -> ChangePermit<'_> {
        let permit = |is_counted| ChangePermit { window: self, bytes, is_counted };
        if !self.is_limited() {
            return permit(false);
        }
        let mut waiting = {
            let mut state = self.state();
            if state.has_room() {
                state.enter(bytes);
                return permit(true);
            }
            let (admit, admitted) = oneshot::channel();
            state.waiting.push_back(admit);
            state.bytes = state.bytes.saturating_add(bytes);
            WaitingChange { window: self, bytes, admitted }
        };
        let _ = (&mut waiting.admitted).await; // the sender is dropped only after it was used
        permit(true)
    }

    /// Counts the bytes that a flush makes durable until the result is dropped.
    pub(super) fn flushing(&self, bytes: u64) -> RunningFlush<'_> {
        let mut state = self.state();
        state.bytes = state.bytes.saturating_add(bytes);
        RunningFlush { window: self, bytes }
    }

    /// Returns the time that one more change is expected to wait until it is sent, and for the data
    /// of those that have not ended.
    pub(super) fn expected_wait(&self) -> Duration {
        let state = self.state();
        let waiting = u32::try_from(state.waiting.len()).unwrap_or(u32::MAX);
        let changes = state.interval.min(UNIT_TIME_MAX).saturating_mul(waiting);
        changes.saturating_add(line_time(state.bytes))
    }

    /// Halves the limit: a change held up others that had ended at `since`.
    pub(super) fn record_late(&self, since: Instant) {
        let mut state = self.state();
        // Changes from before the limit was halved tell nothing of the new one.
        if state.halved.is_none_or(|halved| since >= halved) {
            state.limit = Some(state.in_flight.div_ceil(2).max(1));
            (state.halved, state.good) = (Some(Instant::now()), 0);
            self.is_limited.store(true, SeqCst);
        }
    }

    fn ended(&self, bytes: u64) {
        let mut state = self.state();
        state.bytes = state.bytes.saturating_sub(bytes);
        state.ended();
        self.is_limited.store(state.limit.is_some(), SeqCst);
    }
}

/// Returns the time that a slow line takes, longer for long changes only.
fn line_time(bytes: u64) -> Duration {
    UNIT_TIME_MAX.saturating_mul(u32::try_from(bytes / UNIT_BYTES).unwrap_or(u32::MAX))
}

impl WindowState {
    fn enter(&mut self, bytes: u64) {
        self.in_flight += 1;
        self.bytes = self.bytes.saturating_add(bytes);
    }

    fn has_room(&self) -> bool {
        self.limit.is_none_or(|limit| self.in_flight < limit)
    }

    fn ended(&mut self) {
        let now = Instant::now();
        self.in_flight -= 1;
        if let Some(last) = self.last_end {
            self.interval -= self.interval / INTERVAL_WEIGHT;
            self.interval += (now - last) / INTERVAL_WEIGHT;
        }
        self.last_end = (self.in_flight > 0).then_some(now);
        if let Some(limit) = self.limit {
            self.good += 1;
            if self.good >= limit {
                self.limit = (limit < WINDOW_MAX).then_some(limit + 1);
                self.good = 0;
            }
        }
        while self.has_room()
            && let Some(admit) = self.waiting.pop_front()
        {
            // A change that is gone waits no more.
            self.in_flight += usize::from(admit.send(()).is_ok());
        }
    }
}

/// A change that waits to be sent.
struct WaitingChange<'a> {
    window: &'a MemberWindow,
    bytes: u64,
    admitted: oneshot::Receiver<()>,
}

impl Drop for WaitingChange<'_> {
    fn drop(&mut self) {
        match self.admitted.try_recv() {
            Ok(()) => self.window.ended(self.bytes),
            // The change was dropped before it was admitted.
            Err(TryRecvError::Empty) => {
                let mut state = self.window.state();
                state.bytes = state.bytes.saturating_sub(self.bytes);
            }
            // The change was admitted, and has its permit.
            Err(TryRecvError::Closed) => {}
        }
    }
}

/// The permit of a change to be in the window, until it is dropped.
pub(super) struct ChangePermit<'a> {
    window: &'a MemberWindow,
    bytes: u64,
    /// True if the change counts as in flight.
    is_counted: bool,
}

impl ChangePermit<'_> {
    /// Records that the change did not end at once.
    pub(super) fn record_sent(&mut self) {
        if !std::mem::replace(&mut self.is_counted, true) {
            self.window.state().enter(self.bytes);
        }
    }
}

impl Drop for ChangePermit<'_> {
    fn drop(&mut self) {
        if self.is_counted {
            self.window.ended(self.bytes);
        }
    }
}

/// A flush that is in progress until it is dropped.
pub(super) struct RunningFlush<'a> {
    window: &'a MemberWindow,
    bytes: u64,
}

impl Drop for RunningFlush<'_> {
    fn drop(&mut self) {
        let mut state = self.window.state();
        state.bytes = state.bytes.saturating_sub(self.bytes);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use futures_util::future::join_all;
    use tokio::time::sleep;

    const GRACE: Duration = Duration::from_millis(500);

    fn millis(millis: u64) -> Duration {
        Duration::from_millis(millis)
    }

    /// Does changes, `depth` at a time, for a minute. Returns their number, and that of the late
    /// ones.
    async fn work(window: &MemberWindow, depth: usize, device: impl AsyncFn()) -> (u64, u64) {
        let end = Instant::now() + Duration::from_secs(60);
        let user = async || {
            let (mut done, mut late) = (0, 0);
            while Instant::now() < end {
                let mut permit = window.enter(4096).await;
                let sent = Instant::now();
                permit.record_sent();
                device().await;
                drop(permit);
                done += 1;
                if sent.elapsed() > GRACE {
                    late += 1;
                    window.record_late(sent);
                }
            }
            (done, late)
        };
        let users = join_all((0..depth).map(|_| user())).await;
        users.into_iter().fold((0, 0), |sum, one| (sum.0 + one.0, sum.1 + one.1))
    }

    /// Fault: a disk of 62 writes a second under 64 at a time was late with each. Goal: it is late
    /// with few, stays as fast, and the next one is expected to wait for its turn.
    #[tokio::test(start_paused = true)]
    async fn a_slow_disk_is_late_with_few() {
        let (window, arm) = (MemberWindow::default(), tokio::sync::Mutex::new(()));
        let device = async || {
            let _arm = arm.lock().await;
            sleep(millis(16)).await;
        };
        let (done, late) = work(&window, 64, device).await;
        println!("counted: done={done} late={late}");
        assert!(done > 60 * 60 && late < done / 8, "{done} changes, {late} late");
        let state = window.state();
        assert_eq!((state.in_flight, state.waiting.len()), (0, 0));
        assert!((millis(10)..millis(40)).contains(&state.interval), "{:?}", state.interval);
    }

    /// Fault: a member that delayed all changes had the time of a slow disk. Goal: it is late with
    /// each, also with one at a time.
    #[tokio::test(start_paused = true)]
    async fn a_delay_stays_late() {
        let window = MemberWindow::default();
        let (done, late) = work(&window, 64, async || sleep(millis(600)).await).await;
        assert_eq!(done, late);
        assert_eq!(window.state().limit, Some(1));
    }

    /// Goal: a member that is only far away has no limit, and one that was late has none again when
    /// it is late no more.
    #[tokio::test(start_paused = true)]
    async fn a_distant_member_has_no_limit() {
        let window = MemberWindow::default();
        let (done, _) = work(&window, 64, async || sleep(millis(400)).await).await;
        assert_eq!(done, 64 * 150);
        assert_eq!(window.state().limit, None);
        window.state().limit = Some(WINDOW_MAX);
        window.is_limited.store(true, SeqCst);
        work(&window, 2000, async || sleep(millis(400)).await).await;
        assert_eq!(window.state().limit, None);
        assert!(!window.is_limited.load(SeqCst));
    }

    /// Goal: a change that is dropped while it waits, or after it was admitted, keeps no permit.
    #[tokio::test]
    async fn dropped_changes_keep_no_permit() {
        let window = MemberWindow::default();
        window.state().limit = Some(1);
        window.is_limited.store(true, SeqCst);
        let first = window.enter(4096).await;
        let mut waiting: Vec<_> = (0..3).map(|_| Box::pin(window.enter(4096))).collect();
        for one in &mut waiting {
            assert!(futures_util::poll!(one).is_pending());
        }
        drop(waiting.remove(0));
        drop(first);
        assert_eq!(window.state().in_flight, 2, "the others were admitted: the limit is 2 now");
        drop(waiting.remove(0));
        assert_eq!(window.state().in_flight, 1);
        drop(waiting.remove(0).await);
        let state = window.state();
        assert_eq!((state.in_flight, state.waiting.len()), (0, 0));
    }

    /// Goal: flushes and long changes have the time of a slow line for their data.
    #[tokio::test]
    async fn data_has_time() {
        let window = MemberWindow::default();
        let flush = window.flushing(4 << 20);
        assert_eq!(window.expected_wait(), millis(500));
        let mut change = window.enter(1 << 20).await;
        change.record_sent();
        assert_eq!(window.expected_wait(), millis(625));
        drop((flush, change));
        assert_eq!(window.expected_wait(), Duration::ZERO);
        let flush = window.flushing(u64::MAX);
        assert!(window.expected_wait() > Duration::from_secs(1 << 26));
        drop(flush);
    }
}
