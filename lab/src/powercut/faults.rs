//! Faults of a disk: errors, delays, hanging calls, and power cuts at a chosen moment.

use rustix::io::Errno;
use std::collections::BTreeMap;
use std::ops::Range;
use std::time::Duration;

/// Kinds of calls.
#[derive(Clone, Copy, Debug, Eq, Ord, PartialEq, PartialOrd)]
pub enum CallKind {
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
    /// Other calls: opening, looking up, listing.
    Look,
}

impl CallKind {
    /// True if it changes data on the disk, at once or later.
    fn changes(self) -> bool {
        !matches!(self, Self::Read | Self::Look)
    }
}

/// Faults of calls of one kind.
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

/// Faults of all calls.
#[derive(Debug, Default)]
pub(super) struct Faults {
    rules: BTreeMap<CallKind, Rule>,
    /// Bytes of files that cannot be read.
    bad: Vec<(u64, Range<u64>)>,
    frozen: bool,
    ignores_syncs: bool,
    changes_left: Option<u64>,
}

/// Reason why a call is refused.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) enum Refusal {
    /// The power is off.
    Frozen,
    /// The call was set to fail.
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
    fn rule(&mut self, operation: CallKind) -> &mut Rule {
        self.rules.entry(operation).or_default()
    }

    pub(super) fn fail(&mut self, operation: CallKind, errno: Errno, once: bool) {
        self.rule(operation).failure = Some(Failure { errno, once });
    }

    pub(super) fn delay(&mut self, operation: CallKind, delay: Duration) {
        self.rule(operation).delay = delay;
    }

    pub(super) fn hold(&mut self, operation: CallKind, held: bool) {
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

    /// Ends all faults when the power is back.
    pub(super) fn heal(&mut self) {
        *self = Self::default();
    }

    /// Returns the number of calls of this kind that hang now.
    pub(super) fn waiting(&mut self, operation: CallKind) -> usize {
        self.rule(operation).waiting
    }

    /// Returns the number of calls of this kind.
    pub(super) fn calls(&mut self, operation: CallKind) -> u64 {
        self.rule(operation).calls
    }

    /// Returns whether a call has to wait, and the minimum time.
    pub(super) fn wait(&mut self, operation: CallKind) -> Option<Duration> {
        let rule = self.rule(operation);
        let waits = rule.held || !rule.delay.is_zero();
        rule.waiting += usize::from(waits);
        waits.then_some(rule.delay)
    }

    /// True while calls of this kind are held.
    pub(super) fn is_held(&mut self, operation: CallKind) -> bool {
        !self.frozen && self.rule(operation).held
    }

    /// Records that a call no longer waits.
    pub(super) fn waited(&mut self, operation: CallKind) {
        let rule = self.rule(operation);
        // Calls that waited when the power came back are no longer counted.
        rule.waiting = rule.waiting.saturating_sub(1);
    }

    /// Decides whether a call is executed.
    pub(super) fn admit(&mut self, operation: CallKind) -> Result<(), Refusal> {
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
