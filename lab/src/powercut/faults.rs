//! What a disk does besides: it fails, is slow, hangs, and loses its power at some moment.

use rustix::io::Errno;
use std::collections::BTreeMap;
use std::ops::Range;
use std::time::Duration;

/// Kinds of calls.
#[derive(Clone, Copy, Debug, Eq, Ord, PartialEq, PartialOrd)]
pub enum Operation {
    /// Data is read.
    Read,
    /// Data is written.
    Write,
    /// Holes are made (fallocate).
    Clear,
    /// A file is made longer or shorter (ftruncate).
    SetLength,
    /// fsync and fdatasync of a file.
    Sync,
    /// fsync of a directory.
    SyncDirectory,
    /// Files and directories are made, renamed, linked and removed.
    Name,
    /// All else: opening, looking up, listing.
    Look,
}

impl Operation {
    /// It changes what is on the disk, or will be.
    fn changes(self) -> bool {
        !matches!(self, Self::Read | Self::Look)
    }
}

/// What is to become of calls of one kind.
#[derive(Clone, Debug, Default)]
struct Rule {
    failure: Option<Failure>,
    delay: Duration,
    held: bool,
    waiting: usize,
    calls: u64,
}

#[derive(Clone, Copy, Debug)]
struct Failure {
    errno: Errno,
    once: bool,
}

/// What is to become of all calls.
#[derive(Debug, Default)]
pub(super) struct Faults {
    rules: BTreeMap<Operation, Rule>,
    /// Bytes of files that cannot be read.
    bad: Vec<(u64, Range<u64>)>,
    frozen: bool,
    ignores_syncs: bool,
    changes_left: Option<u64>,
}

/// Why a call is not made.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) enum Refusal {
    /// The power is gone.
    Frozen,
    /// It was to fail.
    Failed(Errno),
}

impl From<Refusal> for Errno {
    fn from(refusal: Refusal) -> Self {
        match refusal {
            Refusal::Frozen => Self::IO,
            Refusal::Failed(errno) => errno,
        }
    }
}

impl Faults {
    fn rule(&mut self, operation: Operation) -> &mut Rule {
        self.rules.entry(operation).or_default()
    }

    pub(super) fn fail(&mut self, operation: Operation, errno: Errno, once: bool) {
        self.rule(operation).failure = Some(Failure { errno, once });
    }

    pub(super) fn delay(&mut self, operation: Operation, delay: Duration) {
        self.rule(operation).delay = delay;
    }

    pub(super) fn hold(&mut self, operation: Operation, held: bool) {
        self.rule(operation).held = held;
    }

    pub(super) fn set_bad(&mut self, inode: u64, bytes: Range<u64>) {
        self.bad.push((inode, bytes));
    }

    pub(super) fn is_bad(&self, inode: u64, bytes: &Range<u64>) -> bool {
        let meets = |bad: &Range<u64>| bad.start < bytes.end && bytes.start < bad.end;
        self.bad.iter().any(|(of, bad)| *of == inode && meets(bad))
    }

    pub(super) fn freeze_after(&mut self, changes: u64) {
        self.changes_left = Some(changes);
    }

    pub(super) fn freeze(&mut self) {
        self.frozen = true;
    }

    pub(super) fn ignore_syncs(&mut self) {
        self.ignores_syncs = true;
    }

    pub(super) fn ignores_syncs(&self) -> bool {
        self.ignores_syncs
    }

    pub(super) fn is_frozen(&self) -> bool {
        self.frozen
    }

    /// The power is back; all that went wrong was the power's doing.
    pub(super) fn heal(&mut self) {
        *self = Self::default();
    }

    /// How many calls of this kind hang now.
    pub(super) fn waiting(&mut self, operation: Operation) -> usize {
        self.rule(operation).waiting
    }

    /// How many calls of this kind were made.
    pub(super) fn calls(&mut self, operation: Operation) -> u64 {
        self.rule(operation).calls
    }

    /// Whether a call has to wait, and how long at least.
    pub(super) fn wait(&mut self, operation: Operation) -> Option<Duration> {
        let rule = self.rule(operation);
        let waits = rule.held || !rule.delay.is_zero();
        rule.waiting += usize::from(waits);
        waits.then_some(rule.delay)
    }

    /// Whether a call that waited goes on waiting.
    pub(super) fn is_held(&mut self, operation: Operation) -> bool {
        !self.frozen && self.rule(operation).held
    }

    /// A call does not wait any more.
    pub(super) fn waited(&mut self, operation: Operation) {
        let rule = self.rule(operation);
        // Those that waited when the power came back are not counted any more.
        rule.waiting = rule.waiting.saturating_sub(1);
    }

    /// Whether a call is made.
    pub(super) fn admit(&mut self, operation: Operation) -> Result<(), Refusal> {
        if operation.changes() && !self.frozen {
            match &mut self.changes_left {
                Some(0) => self.frozen = true,
                Some(left) => *left -= 1,
                None => {}
            }
        }
        if self.frozen {
            return Err(Refusal::Frozen);
        }
        let rule = self.rule(operation);
        rule.calls += 1;
        match rule.failure {
            Some(failure) => {
                rule.failure = rule.failure.filter(|failure| !failure.once);
                Err(Refusal::Failed(failure.errno))
            }
            None => Ok(()),
        }
    }
}
