//! Pacing of requests that are due at a fixed rate.

use rustix::time::{
    Itimerspec, TimerfdClockId, TimerfdFlags, TimerfdTimerFlags, Timespec, timerfd_create,
    timerfd_settime,
};
use std::io;
use std::os::fd::OwnedFd;
use std::time::Duration;
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;
use tokio::sync::Mutex;
use tokio::time::Instant;

/// Releases requests one by one, each when it is due. The caller with the next request waits for
/// the timer, and all others wait for that caller: one timer is enough, and no thread spins.
///
/// Tokio's own timer has steps of 1 ms, most of which would count as latency of the disk.
#[derive(Debug)]
pub(crate) struct Pacer {
    begin: Instant,
    per_second: f64,
    /// Number of the next request, and the timer; `None` if the system provides none, and tokio's
    /// is used.
    next: Mutex<(u64, Option<Timer>)>,
}

impl Pacer {
    /// Starts at `begin`, with an even pace. Needs a runtime with I/O.
    pub(crate) fn new(begin: Instant, per_second: f64) -> Self {
        let timer = Timer::new();
        if let Err(error) = &timer {
            tracing::warn!(
                %error,
                "requests start at intervals of 1 ms: a finer timer is not available"
            );
        }
        Self { begin, per_second, next: Mutex::new((0, timer.ok())) }
    }

    /// Waits until the next request is due and returns that time; `None` if it is not before `end`.
    pub(crate) async fn wait_until_due(&self, end: Instant) -> Option<Instant> {
        let mut next = self.next.lock().await;
        let due = self.begin + Duration::from_secs_f64(next.0 as f64 / self.per_second);
        let now = Instant::now();
        if due >= end || now >= end {
            return None;
        }
        next.0 += 1;
        if let (Some(timer), true) = (&next.1, due > now)
            && let Err(error) = timer.wait(due - now).await
        {
            tracing::warn!(%error, "requests start at intervals of 1 ms: the timer failed");
            next.1 = None;
        }
        // Used without a timer, and in tests, whose clock stands still until a task waits for it.
        if Instant::now() < due {
            tokio::time::sleep_until(due).await;
        }
        Some(due)
    }
}

/// A timer of the kernel, exact up to the time to wake a thread.
#[derive(Debug)]
struct Timer(AsyncFd<OwnedFd>);

impl Timer {
    // `AsyncFd` is deprecated for types that may not own the descriptor that they return; `OwnedFd`
    // owns its descriptor. The replacement is unsafe.
    #[allow(deprecated)]
    fn new() -> io::Result<Self> {
        let flags = TimerfdFlags::NONBLOCK | TimerfdFlags::CLOEXEC;
        let timer = timerfd_create(TimerfdClockId::Monotonic, flags)?;
        AsyncFd::with_interest(timer, Interest::READABLE).map(Self)
    }

    async fn wait(&self, time: Duration) -> io::Result<()> {
        let none = Timespec { tv_sec: 0, tv_nsec: 0 };
        let time = Timespec {
            tv_sec: i64::try_from(time.as_secs()).unwrap_or(i64::MAX),
            tv_nsec: time.subsec_nanos().into(),
        };
        let once = Itimerspec { it_interval: none, it_value: time };
        timerfd_settime(self.0.get_ref(), TimerfdTimerFlags::empty(), &once)?;
        loop {
            let mut ready = self.0.readable().await?;
            let read = |timer: &AsyncFd<OwnedFd>| {
                Ok(rustix::io::read(timer.get_ref(), &mut [0_u8; 8]).map(drop)?)
            };
            if let Ok(done) = ready.try_io(read) {
                return done;
            }
        }
    }
}
