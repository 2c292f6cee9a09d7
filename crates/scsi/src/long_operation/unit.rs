//! What the target tells the unit about a long operation, and asks.

use super::LongOperation;
use crate::attention::Attention;
use crate::plan::NexusId;
use crate::sense::Sense;
use crate::unit::BlockUnit;

impl BlockUnit {
    /// The operation that runs, or has to go on after a restart.
    pub fn operation(&self) -> Option<&LongOperation> {
        self.operations().running()
    }

    /// What a command is told that was judged before an operation began, and comes to its blocks
    /// only now.
    pub fn overtaken_by_operation(&self) -> Sense {
        // Over already: the command belongs to the time before it all the same.
        self.operations().sense().unwrap_or(Sense::COMMANDS_CLEARED_BY_DEVICE_SERVER)
    }

    /// Begins the operation of a plan: from now on other commands are refused.
    ///
    /// # Errors
    /// What has changed since it was planned forbids it.
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

    /// The operation cannot begin: all is as before.
    pub fn withdraw_operation(&mut self) {
        self.operations_mut().withdraw();
    }

    /// So many blocks of `of_blocks` are done, over all passes.
    pub fn set_operation_progress(&mut self, blocks: u64, of_blocks: u64) {
        self.operations_mut().set_progress(blocks, of_blocks);
    }

    /// All is done, and durable: [`persistent_state`](Self::persistent_state) says so from now on.
    /// Once that is saved, [`end_operation`](Self::end_operation).
    pub fn set_operation_done(&mut self) {
        self.operations_mut().set_done();
    }

    /// Commands are processed again; all nexuses but the one that asked are told that the unit has
    /// become ready.
    pub fn end_operation(&mut self) {
        let by = self.operations_mut().end();
        self.raise(Attention::MEDIUM_MAY_HAVE_CHANGED.0, by);
    }

    /// It went wrong: the blocks stay out of reach.
    pub fn fail_operation(&mut self) {
        self.operations_mut().fail();
    }
}
