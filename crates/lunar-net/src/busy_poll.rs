//! Latency mode: a core polls for more work for a while before it sleeps.
//!
//! Waking a sleeping core takes longer than reading a few blocks. For low latency, at the cost of
//! processor time, each core polls the system for events for a while, without waiting.

use std::cell::{Cell, RefCell};
use std::future::poll_fn;
use std::task::{Context, Poll, Waker};
use std::time::{Duration, Instant};

/// Time for which an idle core polls: a few round trips of a small request between two machines,
/// and short compared with the pauses of an idle disk.
const BUSY_POLL_MAX: Duration = Duration::from_micros(100);

/// State of busy polling of one core.
struct BusyPoller {
    /// True in latency mode.
    enabled: Cell<bool>,
    /// True when a connection worked since the last poll.
    busy: Cell<bool>,
    /// Waker of the polling task while it sleeps.
    sleeper: RefCell<Option<Waker>>,
}

thread_local! {
    static POLLER: BusyPoller = const {
        BusyPoller {
            enabled: Cell::new(false),
            busy: Cell::new(false),
            sleeper: RefCell::new(None),
        }
    };
}

/// Records that a connection of this core worked.
pub(crate) fn mark_busy() {
    POLLER.with(|poller| {
        if poller.enabled.get() && !poller.busy.replace(true) {
            let sleeper = poller.sleeper.borrow_mut().take();
            sleeper.into_iter().for_each(Waker::wake);
        }
    });
}

/// Polls the sockets of this core while it is busy and for [`BUSY_POLL_MAX`] after that. Runs
/// forever, as a task alongside the connections.
pub(crate) async fn poll_while_busy() {
    POLLER.with(|poller| poller.enabled.set(true));
    loop {
        poll_fn(until_busy).await;
        let mut since = Instant::now();
        while since.elapsed() < BUSY_POLL_MAX {
            // The runtime fetches pending events, without waiting, before this task continues.
            tokio::task::yield_now().await;
            if POLLER.with(|poller| poller.busy.take()) {
                since = Instant::now();
            }
        }
    }
}

fn until_busy(context: &mut Context<'_>) -> Poll<()> {
    POLLER.with(|poller| {
        if poller.busy.take() {
            return Poll::Ready(());
        }
        *poller.sleeper.borrow_mut() = Some(context.waker().clone());
        Poll::Pending
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::rc::Rc;
    use tokio::task::LocalSet;

    /// Goal: a core polls while connections work, stops some time after, and begins again. Method:
    /// polls are counted as turns of another task of the core that has no work.
    #[test]
    fn a_core_polls_after_it_was_busy_and_then_sleeps() {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        let local = LocalSet::new();
        local.block_on(&runtime, async {
            let polls = Rc::new(Cell::new(0_u64));
            let counted = Rc::clone(&polls);
            let mut poller = Box::pin(poll_while_busy());
            let poller = tokio::task::spawn_local(poll_fn(move |context| -> Poll<()> {
                counted.set(counted.get() + 1);
                poller.as_mut().poll(context)
            }));
            let polls_until_asleep = async || {
                // The core sleeps once a long time passes without a poll.
                loop {
                    let before = polls.get();
                    tokio::time::sleep(BUSY_POLL_MAX * 100).await;
                    if polls.get() == before {
                        return before;
                    }
                }
            };
            let asleep = polls_until_asleep().await;
            assert_eq!(asleep, 1, "no connection has worked yet");
            for _ in 0..2 {
                let before = polls_until_asleep().await;
                mark_busy();
                assert!(polls_until_asleep().await > before + 1, "the core polled after the work");
            }
            poller.abort();
        });
    }

    /// Goal: without latency mode nothing is recorded, and no task is woken.
    #[test]
    fn without_latency_mode_nothing_is_recorded() {
        mark_busy();
        POLLER.with(|poller| assert!(!poller.busy.get() && poller.sleeper.borrow().is_none()));
    }
}
