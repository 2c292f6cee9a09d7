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
