//! What the target tells the unit about a long operation, and asks.

use super::{Failure, LongOperation};
use crate::attention::{Attention, Audience};
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

    /// EXIT FAILURE MODE: the blocks are within reach again. What is returned takes it back
    /// ([`fail_again`](Self::fail_again)), should that not be saved.
    ///
    /// # Errors
    /// What has changed since it was planned forbids it.
    pub fn exit_failure_mode(&mut self) -> Result<Option<Failure>, Sense> {
        let failure = self.operations().exit()?;
        if failure.is_some() {
            self.operations_mut().set_failure(None);
        }
        Ok(failure)
    }

    /// The end of the failure mode could not be saved.
    pub fn fail_again(&mut self, failure: Option<Failure>) {
        if failure.is_some() && self.operation().is_none() {
            self.operations_mut().set_failure(failure);
        }
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

    /// Commands are processed again. Those who were there when it began, and did not ask for it,
    /// are told that the unit has become ready and its medium may have changed: they may have slept
    /// all the while. Who came later has nothing to forget.
    pub fn end_operation(&mut self) {
        let changed = Attention::MEDIUM_MAY_HAVE_CHANGED;
        if let Some((by, begun)) = self.operations_mut().end() {
            self.nexuses.announce(changed, Audience::LoggedInBefore(begun), Some(by));
        }
        self.lost.establish(changed);
    }

    /// It went wrong: the blocks stay out of reach.
    pub fn fail_operation(&mut self) {
        self.operations_mut().fail();
    }
}
