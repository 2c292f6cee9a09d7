//! Commands that commands of other owners wait for.
//!
//! A connection polls its commands in its owner's turns, and an owner with thousands of busy
//! connections has a turn for each of them now and then only. A command that holds blocks which
//! another owner needs, or that is next at a limit, must not delay the other owner by so much: its
//! connection polls it out of turn until it delays nobody.

use crate::abort::AbortSignal;
use futures_util::task::AtomicWaker;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::task::Context;

/// Signals a connection that some of its commands are awaited.
#[derive(Debug, Default)]
pub(crate) struct AwaitedSignal {
    raised: AtomicBool,
    /// Waker of the connection while it waits for its turn.
    waker: AtomicWaker,
}

impl AwaitedSignal {
    pub(crate) fn raise(&self) {
        self.raised.store(true, SeqCst);
        self.waker.wake();
    }

    /// Returns true if the signal was raised since the last call. The waker is woken when it is
    /// raised next.
    pub(crate) fn poll(&self, context: &Context<'_>) -> bool {
        self.waker.register(context.waker());
        self.raised.load(SeqCst) && self.raised.swap(false, SeqCst)
    }
}

/// Commands that are awaited from now on. Their connections are signalled when this is dropped; no
/// lock that a command may need must be held then.
#[derive(Debug, Default)]
#[must_use]
pub(crate) struct AwaitedCommands(Vec<AbortSignal>);

impl AwaitedCommands {
    pub(crate) fn push(&mut self, command: AbortSignal) {
        self.0.push(command);
    }
}

impl Drop for AwaitedCommands {
    fn drop(&mut self) {
        self.0.iter().for_each(AbortSignal::signal_connection);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Arc;
    use std::sync::atomic::AtomicUsize;
    use std::task::{Wake, Waker};

    #[derive(Default)]
    struct Wakes(AtomicUsize);

    impl Wake for Wakes {
        fn wake(self: Arc<Self>) {
            self.0.fetch_add(1, SeqCst);
        }
    }

    /// Goal: a connection that waits for its turn is woken for each command that becomes awaited;
    /// one that had none of them before is told as well.
    #[test]
    fn the_connection_is_woken() {
        let (signal, wakes) = (Arc::<AwaitedSignal>::default(), Arc::<Wakes>::default());
        let waker = Waker::from(Arc::clone(&wakes));
        let context = Context::from_waker(&waker);
        let [one, other] = [(); 2].map(|()| AbortSignal::new(&signal));
        let guard = one.awaited();
        assert!(signal.poll(&context) && !signal.poll(&context));
        assert_eq!(wakes.0.load(SeqCst), 0);
        other.count_awaited();
        let mut commands = AwaitedCommands::default();
        commands.push(other.clone());
        assert_eq!(wakes.0.load(SeqCst), 0, "not while the caller has locks");
        drop(commands);
        assert_eq!(wakes.0.load(SeqCst), 1);
        assert!(signal.poll(&context) && one.is_awaited() && other.is_awaited());
        drop(guard);
        other.uncount_awaited();
        assert!(!one.is_awaited() && !other.is_awaited() && !signal.poll(&context));
    }
}
