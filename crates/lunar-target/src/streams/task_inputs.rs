//! Inputs of a connection's machine from commands that run.

use lunar_iscsi::connection::target::Input;
use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use tokio::sync::Semaphore;

/// Inputs that the running tasks of a connection give before they end, and that its machine has not
/// received: pieces of data-in, and ranges of data-out that are wanted.
#[derive(Clone, Debug, Default)]
pub(crate) struct TaskInputs(Arc<QueuedInputs>);

#[derive(Debug)]
struct QueuedInputs {
    /// One permit. The READ that has it sends; the others wait, so that the first READ ends soonest
    /// and no memory is read before it can be sent. A READ that waits for its disk gives it back.
    read_turns: Arc<Semaphore>,
    /// False when there is no input, as nearly always: a connection looks after each command.
    any: AtomicBool,
    inputs: Mutex<VecDeque<Input>>,
}

impl Default for QueuedInputs {
    fn default() -> Self {
        let inputs = Mutex::default();
        Self { read_turns: Arc::new(Semaphore::new(1)), any: AtomicBool::new(false), inputs }
    }
}

impl TaskInputs {
    /// Adds an input. The connection takes it when it has polled the task.
    pub(crate) fn push(&self, input: Input) {
        self.inputs().push_back(input);
        self.0.any.store(true, Relaxed);
    }

    /// Removes the oldest input.
    #[inline]
    pub(crate) fn pop(&self) -> Option<Input> {
        if self.0.any.load(Relaxed) { self.pop_queued() } else { None }
    }

    #[cold]
    fn pop_queued(&self) -> Option<Input> {
        let input = self.inputs().pop_front();
        self.0.any.store(input.is_some(), Relaxed);
        input
    }

    /// The turns of the long READs of the connection.
    pub(crate) fn read_turns(&self) -> &Arc<Semaphore> {
        &self.0.read_turns
    }

    /// Memory of the queue, without the data.
    pub(crate) fn memory_bytes(&self) -> usize {
        self.inputs().capacity() * size_of::<Input>()
    }

    /// Frees memory that is not needed any more.
    pub(crate) fn free_spare(&self) {
        self.inputs().shrink_to_fit();
    }

    fn inputs(&self) -> MutexGuard<'_, VecDeque<Input>> {
        self.0.inputs.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
