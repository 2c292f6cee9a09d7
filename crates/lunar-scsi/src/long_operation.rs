//! Operations on every block of the unit that continue independently of their command: SANITIZE and
//! FORMAT UNIT. SBC-3 §4.11, §5.3, §5.24.
//!
//! While one runs, only commands that report about the unit are processed; after a failure, the
//! blocks stay inaccessible until another one succeeds. Both survive the process, so that half
//! erased data is never presented as good: a section of the unit's persistent state.

mod unit;

use crate::attention::LogicalTime;
use crate::plan::NexusId;
use crate::sense::Sense;
use crate::unit::StateError;
use alloc::vec::Vec;

/// Maximum length of a pattern: one logical block.
pub const PATTERN_BYTES_MAX: usize = 4096;

lunar_wire::wire_enum! {
    /// The command that started the operation.
    pub struct OperationKind(u8) { SANITIZE = 1, FORMAT = 2 }
}

/// The action on all blocks.
#[derive(Clone, Debug, Eq, PartialEq)]
pub enum OperationWork {
    /// Write the blocks, once or several times, with a pattern that restarts in each block.
    Overwrite {
        /// 1 to [`PATTERN_BYTES_MAX`] bytes.
        pattern: Vec<u8>,
        /// At least 1.
        passes: u8,
        /// Invert the pattern between two passes, so that the last one writes it as given.
        invert: bool,
    },
    /// Deallocate the blocks; they read as zeroes.
    Deallocate,
    /// Zero the blocks, and keep them allocated.
    Zero,
}

impl OperationWork {
    /// Number of passes over all blocks.
    pub const fn passes(&self) -> u8 {
        match self {
            Self::Overwrite { passes, .. } => *passes,
            Self::Deallocate | Self::Zero => 1,
        }
    }
}

/// A long operation.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct LongOperation {
    /// SANITIZE or FORMAT UNIT.
    pub kind: OperationKind,
    /// AUSE: after a failure, EXIT FAILURE MODE makes the blocks accessible again.
    pub unrestricted_exit: bool,
    /// The action on all blocks.
    pub work: OperationWork,
}

/// An operation that failed.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct OperationFailure {
    pub(crate) kind: OperationKind,
    pub(crate) unrestricted_exit: bool,
}

#[derive(Clone, Debug, Default, Eq, PartialEq)]
enum Phase {
    #[default]
    Idle,
    Running {
        operation: LongOperation,
        /// Progress in units of 1/65,536.
        progress: u16,
        /// The nexus that began the operation, and the time; `None` after a restart of the process.
        begun: Option<(NexusId, LogicalTime)>,
        /// The previous failure, restored if the operation cannot begin.
        before: Option<OperationFailure>,
    },
    Failed(OperationFailure),
}

/// State of the unit's long operation.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub(crate) struct Operations {
    phase: Phase,
    /// True if all blocks are done and durable, but this result is not durable yet.
    done: bool,
}

impl OperationKind {
    /// Sense of other commands during the operation.
    fn in_progress(self) -> Sense {
        if self == Self::FORMAT { Sense::FORMAT_IN_PROGRESS } else { Sense::SANITIZE_IN_PROGRESS }
    }

    /// Sense of the command itself when it failed.
    pub fn failed(self) -> Sense {
        if self == Self::FORMAT {
            Sense::FORMAT_COMMAND_FAILED
        } else {
            Sense::SANITIZE_COMMAND_FAILED
        }
    }
}

impl OperationFailure {
    /// Sense of commands after the failure.
    fn sense(self) -> Sense {
        if self.kind == OperationKind::FORMAT {
            Sense::MEDIUM_FORMAT_CORRUPTED
        } else {
            Sense::SANITIZE_COMMAND_FAILED
        }
    }
}

/// Processing of a command while a long operation runs, and after one has failed. SBC-3 §4.11,
/// §5.3.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum DuringOperation {
    /// Refused; but after a failed FORMAT UNIT processed, if it needs no medium.
    Refused,
    /// Like `Refused`, but processed after a failed FORMAT UNIT: it formats again.
    Formats,
    /// Like `Refused`, but processed after any failure: SANITIZE.
    Sanitizes,
    /// Processed: it reports about the unit.
    Processed,
}

impl Operations {
    /// Checks whether a command may be processed. `medium`: it requires the medium.
    #[inline]
    pub(crate) fn check(&self, command: DuringOperation, medium: bool) -> Result<(), Sense> {
        if matches!(self.phase, Phase::Idle) {
            return Ok(()); // the common case
        }
        let after_format = matches!(
            self.phase,
            Phase::Failed(OperationFailure { kind: OperationKind::FORMAT, .. })
        );
        let is_processed = match command {
            DuringOperation::Processed => true,
            DuringOperation::Sanitizes => self.failure().is_some(),
            DuringOperation::Formats => after_format,
            DuringOperation::Refused => after_format && !medium,
        };
        if is_processed { Ok(()) } else { self.sense().map_or(Ok(()), Err) }
    }

    /// Sense for REQUEST SENSE: progress, or failure.
    pub(crate) fn sense(&self) -> Option<Sense> {
        match &self.phase {
            Phase::Idle => None,
            Phase::Running { operation, progress, .. } => {
                Some(operation.kind.in_progress().with_progress(*progress))
            }
            Phase::Failed(failure) => Some(failure.sense()),
        }
    }

    pub(crate) fn failure(&self) -> Option<OperationFailure> {
        match &self.phase {
            Phase::Failed(failure) => Some(*failure),
            _ => None,
        }
    }

    /// The operation that runs, or must continue after a restart.
    pub(crate) fn running(&self) -> Option<&LongOperation> {
        match &self.phase {
            Phase::Running { operation, .. } => Some(operation),
            _ => None,
        }
    }

    /// Checks AUSE of a SANITIZE. "If a sanitize operation in the restricted completion mode
    /// completes with an error, and a subsequent SANITIZE command requests the unrestricted
    /// completion mode", it is refused: AUSE must not make blocks accessible that a restricted
    /// operation left inaccessible.
    pub(crate) fn check_exit(&self, unrestricted: bool) -> Result<(), Sense> {
        let restricted = self.failure().is_some_and(|failure| {
            failure.kind == OperationKind::SANITIZE && !failure.unrestricted_exit
        });
        if restricted && unrestricted {
            return Err(Sense::invalid_field_in_cdb(1, Some(5)));
        }
        Ok(())
    }

    /// Begins an operation: from now on other commands are refused.
    pub(crate) fn begin(&mut self, operation: LongOperation, by: NexusId) {
        let (before, begun) = (self.failure(), Some((by, LogicalTime::next())));
        self.phase = Phase::Running { operation, progress: 0, begun, before };
        self.done = false;
    }

    /// Withdraws an operation that cannot begin, and restores the previous state.
    pub(crate) fn withdraw(&mut self) {
        if let Phase::Running { before, .. } = &self.phase {
            self.phase = before.map_or(Phase::Idle, Phase::Failed);
        }
    }

    /// Sets the progress: `blocks` of `all_blocks` blocks are done, over all passes.
    pub(crate) fn set_progress(&mut self, blocks: u64, all_blocks: u64) {
        if let Phase::Running { progress, .. } = &mut self.phase {
            let share = (u128::from(blocks) << 16) / u128::from(all_blocks.max(1));
            *progress = u16::try_from(share).unwrap_or(u16::MAX);
        }
    }

    /// Records that all blocks are done and durable: later saved state contains no operation.
    pub(crate) fn set_done(&mut self) {
        self.done = true;
    }

    /// Ends an operation whose result is durable: commands are processed again. Returns the nexus
    /// that began it and the time, because the other nexuses of that time must be informed.
    pub(crate) fn end(&mut self) -> Option<(NexusId, LogicalTime)> {
        match core::mem::take(&mut self.phase) {
            Phase::Running { begun, .. } => begun,
            _ => None,
        }
    }

    pub(crate) fn fail(&mut self) {
        if let Phase::Running { operation, .. } = &self.phase {
            let LongOperation { kind, unrestricted_exit, .. } = *operation;
            self.phase = Phase::Failed(OperationFailure { kind, unrestricted_exit });
        }
    }

    /// The failure that EXIT FAILURE MODE would end, if allowed: a failed SANITIZE that permits it.
    pub(crate) fn exit(&self) -> Result<Option<OperationFailure>, Sense> {
        const SERVICE_ACTION: Option<u8> = Some(4);
        if self.running().is_some() {
            return self.sense().map_or(Ok(None), Err);
        }
        match self.failure() {
            Some(OperationFailure { kind, unrestricted_exit })
                if kind != OperationKind::SANITIZE || !unrestricted_exit =>
            {
                Err(Sense::invalid_field_in_cdb(1, SERVICE_ACTION))
            }
            failure => Ok(failure),
        }
    }

    /// Sets or clears the failure: EXIT FAILURE MODE, or (`Some`) its reversal if it could not be
    /// saved.
    pub(crate) fn set_failure(&mut self, failure: Option<OperationFailure>) {
        self.phase = failure.map_or(Phase::Idle, Phase::Failed);
    }

    /// Encodes the state that must survive; empty if there is none.
    ///
    /// | bytes | what |
    /// |---|---|
    /// | 1 | 1: to be done, 2: failed |
    /// | 1 | kind |
    /// | 1 | 1: unrestricted exit |
    /// | 1 | 0: no work, 1: overwrite, 2: deallocate, 3: zero |
    /// | 1 | passes |
    /// | 1 | 1: invert |
    /// | n | pattern |
    pub(crate) fn encode(&self) -> Vec<u8> {
        match &self.phase {
            Phase::Running { operation, .. } if !self.done => {
                let LongOperation { kind, unrestricted_exit, work } = operation;
                let (code, invert, pattern) = match work {
                    OperationWork::Overwrite { pattern, invert, .. } => {
                        (1, *invert, pattern.as_slice())
                    }
                    OperationWork::Deallocate => (2, false, &[][..]),
                    OperationWork::Zero => (3, false, &[][..]),
                };
                let mut bytes = alloc::vec![1, kind.0, u8::from(*unrestricted_exit), code];
                bytes.extend_from_slice(&[work.passes(), u8::from(invert)]);
                bytes.extend_from_slice(pattern);
                bytes
            }
            Phase::Failed(OperationFailure { kind, unrestricted_exit }) => {
                alloc::vec![2, kind.0, u8::from(*unrestricted_exit), 0, 0, 0]
            }
            _ => Vec::new(),
        }
    }

    /// Decodes the output of [`encode`](Self::encode).
    pub(crate) fn decode(state: &[u8]) -> Result<Self, StateError> {
        const WRONG: StateError = StateError("the operation in the state is none that there is");
        let Some((head, pattern)) = state.split_first_chunk::<6>() else {
            return if state.is_empty() { Ok(Self::default()) } else { Err(WRONG) };
        };
        let [phase, kind, unrestricted, work, passes, invert] = *head;
        let kind = OperationKind(kind);
        let pattern_fits = match work {
            1 => (1..=PATTERN_BYTES_MAX).contains(&pattern.len()) && passes > 0,
            _ => pattern.is_empty(),
        };
        if kind.name().is_none() || unrestricted > 1 || invert > 1 || !pattern_fits {
            return Err(WRONG);
        }
        let unrestricted_exit = unrestricted == 1;
        let work = match (phase, work) {
            (1, 1) => {
                OperationWork::Overwrite { pattern: pattern.to_vec(), passes, invert: invert == 1 }
            }
            (1, 2) => OperationWork::Deallocate,
            (1, 3) => OperationWork::Zero,
            (2, 0) => {
                let phase = Phase::Failed(OperationFailure { kind, unrestricted_exit });
                return Ok(Self { phase, ..Self::default() });
            }
            _ => return Err(WRONG),
        };
        let operation = LongOperation { kind, unrestricted_exit, work };
        let phase = Phase::Running { operation, progress: 0, begun: None, before: None };
        Ok(Self { phase, ..Self::default() })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const BY: NexusId = NexusId(2);

    fn erase(unrestricted_exit: bool) -> LongOperation {
        LongOperation {
            kind: OperationKind::SANITIZE,
            unrestricted_exit,
            work: OperationWork::Deallocate,
        }
    }

    #[test]
    fn progress_is_a_share_of_65536() {
        let mut operations = Operations::default();
        operations.begin(erase(false), BY);
        for (blocks, all_blocks, share) in [
            (0, 8, 0),
            (1, 8, 0x2000),
            (7, 8, 0xe000),
            (8, 8, 0xffff),
            (u64::MAX / 2, u64::MAX, 0x7fff),
        ] {
            operations.set_progress(blocks, all_blocks);
            let sense = operations.sense().unwrap();
            assert_eq!(sense, Sense::SANITIZE_IN_PROGRESS.with_progress(share));
        }
        operations.set_progress(1, 0);
    }

    /// Goal: an operation that could not begin leaves an earlier failure unchanged.
    #[test]
    fn a_withdrawn_operation_leaves_the_earlier_failure() {
        let mut operations = Operations::default();
        operations.begin(erase(true), BY);
        operations.fail();
        let failed = operations.clone();
        operations.begin(erase(false), BY);
        operations.withdraw();
        assert_eq!(operations.phase, failed.phase);
        assert!(operations.exit().unwrap().is_some());
        operations.set_failure(None);
        assert_eq!(operations.phase, Phase::Idle);
        operations.withdraw();
        operations.fail();
        assert_eq!(operations.phase, Phase::Idle);
    }

    /// Goal: the result is saved only when all blocks are done, and reported only when it is saved.
    #[test]
    fn a_result_is_saved_before_it_is_reported() {
        let mut operations = Operations::default();
        assert!(operations.encode().is_empty());
        operations.begin(erase(false), BY);
        assert_eq!(operations.encode(), [1, 1, 0, 2, 1, 0]);
        operations.set_done();
        assert!(operations.encode().is_empty() && operations.sense().is_some());
        assert!(operations.end().is_some_and(|(by, _)| by == BY));
        assert_eq!(operations.sense(), None);
        operations.begin(erase(false), BY);
        assert!(!operations.encode().is_empty(), "the next one is not done yet");
    }

    proptest! {
        /// Goal: any bytes are refused, or encode to an equal state.
        #[test]
        fn state_is_restored_as_saved(
            head in prop::array::uniform6(0_u8..4),
            pattern in prop::collection::vec(any::<u8>(), 0..8),
        ) {
            let state = [&head[..], &pattern].concat();
            if let Ok(operations) = Operations::decode(&state) {
                let again = operations.encode();
                prop_assert_eq!(Operations::decode(&again).unwrap(), operations);
            }
        }
    }
}
