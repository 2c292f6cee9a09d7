//! The counters of one LUN: a set for each counting thread, so that cores do not compete for cache
//! lines.

use super::OperationClass;
use super::report::{CommandErrors, OperationStatistics};
use crate::lock::lock;
use lunar_block::{Durations, thread_number};
use lunar_scsi::sense::Status;
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Mutex, OnceLock};

/// Number of sets; threads beyond it share them.
const SETS: usize = 16;

/// Kinds of errors that are counted separately for one LUN; further ones count as CHECK CONDITION
/// without sense. The kinds come from this code, not from peers; the limit guards against a device
/// that invents codes.
const ERROR_KINDS_MAX: usize = 128;

#[derive(Debug, Default)]
pub(super) struct LunCounters {
    /// Created when a thread first counts: most LUNs are used by few threads, or by none.
    sets: [OnceLock<Box<Set>>; SETS],
    errors: Mutex<BTreeMap<(OperationClass, ErrorKind), u64>>,
}

#[derive(Debug, Default)]
struct Set {
    operations: [OperationCounters; OperationClass::ALL.len()],
}

#[derive(Debug, Default)]
struct OperationCounters {
    started: AtomicU64,
    received_bytes: AtomicU64,
    sent_bytes: AtomicU64,
    ended: Durations,
}

/// Kind of a failed command.
#[derive(Clone, Copy, Debug, Eq, PartialEq, Ord, PartialOrd)]
pub(super) enum ErrorKind {
    /// CHECK CONDITION with this sense key and additional sense code with qualifier.
    Check(u8, u16),
    /// Another status.
    Status(u8),
    /// The command was aborted, without an answer.
    Aborted,
}

/// Bytes that a command moved, when it ended.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Moved {
    pub(super) received_bytes: u64,
    pub(super) sent_bytes: u64,
}

impl LunCounters {
    pub(super) fn started(&self, operation: OperationClass, commands: u64) {
        add(&self.of(operation).started, commands);
    }

    /// Counts commands that have ended after `nanos` each, and moved `moved` together.
    pub(super) fn ended(&self, operation: OperationClass, commands: u64, nanos: u64, moved: Moved) {
        let counters = self.of(operation);
        counters.ended.count_all(nanos, commands);
        if moved.received_bytes > 0 {
            add(&counters.received_bytes, moved.received_bytes);
        }
        if moved.sent_bytes > 0 {
            add(&counters.sent_bytes, moved.sent_bytes);
        }
    }

    pub(super) fn failed(&self, operation: OperationClass, kind: ErrorKind) {
        let mut errors = lock(&self.errors);
        let full = errors.len() >= ERROR_KINDS_MAX && !errors.contains_key(&(operation, kind));
        let kind = if full { ErrorKind::Status(Status::CHECK_CONDITION.0) } else { kind };
        *errors.entry((operation, kind)).or_default() += 1;
    }

    fn of(&self, operation: OperationClass) -> &OperationCounters {
        let set = self.sets[thread_number() % SETS].get_or_init(Box::default);
        &set.operations[operation as usize]
    }

    /// Sums of all threads, by operation.
    pub(super) fn read(&self) -> Vec<OperationStatistics> {
        let read = |operation: OperationClass| {
            let mut sum = OperationStatistics::of(operation);
            let sets = self.sets.iter().filter_map(OnceLock::get);
            let counters: Vec<_> = sets.map(|set| &set.operations[operation as usize]).collect();
            for one in &counters {
                sum.durations.add(&one.ended.read());
                sum.received_bytes += one.received_bytes.load(Relaxed);
                sum.sent_bytes += one.sent_bytes.load(Relaxed);
            }
            // Read after the ended ones: a command that starts meanwhile counts as in flight, and
            // none has ended that did not start.
            let started: u64 = counters.iter().map(|one| one.started.load(Relaxed)).sum();
            sum.in_flight = started.saturating_sub(sum.durations.count());
            sum
        };
        OperationClass::ALL.map(read).into()
    }

    pub(super) fn errors(&self) -> Vec<CommandErrors> {
        let errors = lock(&self.errors);
        errors.iter().map(|((operation, kind), count)| kind.report(*operation, *count)).collect()
    }
}

impl ErrorKind {
    /// Kind of a failure with this status and sense data; `None` if the command did not fail.
    pub(super) fn of(status: u8, sense: &[u8]) -> Option<Self> {
        match Status(status) {
            Status::GOOD | Status::CONDITION_MET => None,
            Status::CHECK_CONDITION => {
                Some(read_sense(sense).map_or(Self::Status(status), |(k, c)| Self::Check(k, c)))
            }
            _ => Some(Self::Status(status)),
        }
    }

    fn report(self, operation: OperationClass, count: u64) -> CommandErrors {
        let (status, sense) = match self {
            Self::Check(key, code) => (Some(Status::CHECK_CONDITION.0), Some((key, code))),
            Self::Status(status) => (Some(status), None),
            Self::Aborted => (None, None),
        };
        CommandErrors { operation, status, sense, count }
    }
}

/// Sense key, and additional sense code with qualifier. SPC-4 §4.5.
fn read_sense(sense: &[u8]) -> Option<(u8, u16)> {
    const VALID: u8 = 0x80;
    let byte = |at: usize| sense.get(at).copied();
    let (key, code) = match byte(0)? & !VALID {
        0x70 | 0x71 => (2, 12),
        0x72 | 0x73 => (1, 2),
        _ => return None,
    };
    Some((byte(key)? & 0x0f, u16::from_be_bytes([byte(code)?, byte(code + 1)?])))
}

/// Adds without ordering: the sums are only read.
pub(super) fn add(counter: &AtomicU64, value: u64) {
    counter.fetch_add(value, Relaxed);
}

#[cfg(test)]
mod tests {
    use super::*;
    use lunar_scsi::sense::{Sense, SenseFormat, SenseKey};

    /// Goal: the counts of several threads add up, and commands that have not ended are in flight.
    #[test]
    fn threads_add_up() {
        let counters = LunCounters::default();
        let moved = Moved { received_bytes: 512, sent_bytes: 0 };
        std::thread::scope(|scope| {
            for _ in 0..SETS + 3 {
                scope.spawn(|| {
                    for round in 0..100 {
                        counters.started(OperationClass::Write, 1);
                        if round != 0 {
                            counters.ended(OperationClass::Write, 1, 5_000, moved);
                        }
                    }
                });
            }
        });
        let threads = (SETS + 3) as u64;
        let read = counters.read();
        let write = &read[OperationClass::Write as usize];
        assert_eq!(write.durations.count(), threads * 99);
        assert_eq!(write.durations.sum_nanos, threads * 99 * 5_000);
        assert_eq!((write.received_bytes, write.sent_bytes), (threads * 99 * 512, 0));
        assert_eq!(write.in_flight, threads);
        assert_eq!(
            read[OperationClass::Read as usize],
            OperationStatistics::of(OperationClass::Read)
        );
    }

    #[test]
    fn sense_is_read_in_both_formats() {
        let check = Status::CHECK_CONDITION.0;
        for information in [None, Some(7)] {
            let sense = Sense { information, ..Sense::new(SenseKey::MEDIUM_ERROR, 0x1100) };
            for format in [SenseFormat::Fixed, SenseFormat::Descriptor] {
                let kind = ErrorKind::of(check, &sense.encode(format));
                assert_eq!(kind, Some(ErrorKind::Check(3, 0x1100)), "{format:?}");
            }
        }
        assert_eq!(ErrorKind::of(check, &[0x70, 0, 3]), Some(ErrorKind::Status(check)));
        assert_eq!(ErrorKind::of(0, &[]), None);
        assert_eq!(ErrorKind::of(check, &[]), Some(ErrorKind::Status(check)));
        assert_eq!(ErrorKind::of(0x18, &[]), Some(ErrorKind::Status(0x18)));
    }

    /// Goal: however many kinds of errors there are, the number of kept ones is bounded.
    #[test]
    fn kinds_of_errors_are_bounded() {
        let counters = LunCounters::default();
        for code in 0..1_000 {
            counters.failed(OperationClass::Read, ErrorKind::Check(3, code));
        }
        let errors = counters.errors();
        assert_eq!(errors.len(), ERROR_KINDS_MAX + 1);
        assert_eq!(errors.iter().map(|errors| errors.count).sum::<u64>(), 1_000);
    }
}
