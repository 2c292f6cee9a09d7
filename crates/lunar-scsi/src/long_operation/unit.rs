//! The unit's functions for long operations.

use super::{LongOperation, OperationFailure};
use crate::attention::{Attention, Audience};
use crate::plan::NexusId;
use crate::sense::Sense;
use crate::unit::BlockUnit;

impl BlockUnit {
    /// The operation that runs, or must continue after a restart.
    pub fn operation(&self) -> Option<&LongOperation> {
        self.operations().running()
    }

    /// Sense of a command that was checked before an operation began, and reaches its blocks only
    /// now.
    pub fn overtaken_by_operation(&self) -> Sense {
        // Already over, but the command still belongs to the time before it.
        self.operations().sense().unwrap_or(Sense::COMMANDS_CLEARED_BY_DEVICE_SERVER)
    }

    /// Begins the operation of a plan: from now on other commands are refused.
    ///
    /// # Errors
    /// A change since the plan was made forbids the operation.
    pub fn begin_operation(&mut self, operation: LongOperation, by: NexusId) -> Result<(), Sense> {
        if self.operation().is_some() {
            return self.operations().sense().map_or(Ok(()), Err);
        }
        self.operations().check_exit(operation.unrestricted_exit)?;
        self.medium().check()?;
        self.check_writable()?;
        self.operations_mut().begin(operation, by);
        Ok(())
    }

    /// EXIT FAILURE MODE: makes the blocks accessible again. The return value reverses this
    /// ([`restore_failure`](Self::restore_failure)) if it cannot be saved.
    ///
    /// # Errors
    /// A change since the plan was made forbids it.
    pub fn exit_failure_mode(&mut self) -> Result<Option<OperationFailure>, Sense> {
        let failure = self.operations().exit()?;
        if failure.is_some() {
            self.operations_mut().set_failure(None);
        }
        Ok(failure)
    }

    /// Restores a failure whose end could not be saved.
    pub fn restore_failure(&mut self, failure: Option<OperationFailure>) {
        if failure.is_some() && self.operation().is_none() {
            self.operations_mut().set_failure(failure);
        }
    }

    /// Withdraws an operation that cannot begin, and restores the previous state.
    pub fn withdraw_operation(&mut self) {
        self.operations_mut().withdraw();
    }

    /// Sets the progress: `blocks` of `all_blocks` blocks are done, over all passes.
    pub fn set_operation_progress(&mut self, blocks: u64, all_blocks: u64) {
        self.operations_mut().set_progress(blocks, all_blocks);
    }

    /// Records that all blocks are done and durable: [`persistent_state`](Self::persistent_state)
    /// reports this from now on. Once that is saved, call [`end_operation`](Self::end_operation).
    pub fn set_operation_done(&mut self) {
        self.operations_mut().set_done();
    }

    /// Ends the operation: commands are processed again. Nexuses that existed at its beginning,
    /// except the one that requested it, receive the unit attention that the unit has become ready
    /// and its medium may have changed, because they may have been idle meanwhile. Later nexuses
    /// have no old data.
    pub fn end_operation(&mut self) {
        let changed = Attention::MEDIUM_MAY_HAVE_CHANGED;
        if let Some((by, begun)) = self.operations_mut().end() {
            self.nexuses.announce(changed, Audience::LoggedInBefore(begun), Some(by));
        }
        self.lost.establish(changed);
    }

    /// Records a failure: the blocks stay inaccessible.
    pub fn fail_operation(&mut self) {
        self.operations_mut().fail();
    }
}
