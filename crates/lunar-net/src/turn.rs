//! Limits of the work that a connection does before the other connections of its core get their
//! turn.

use crate::outbox::Outbox;
use crate::owner_turns::core_has_single_owner;
use std::cell::Cell;
use std::time::{Duration, Instant};

/// Maximum number of bytes that a connection moves in one turn, sent or not; a PDU that has begun
/// is finished.
pub const TURN_BYTES: usize = 1 << 20;

/// Size of the pieces in which commands move data without sending it: about as much as a core moves
/// in a turn.
pub const MOVED_PIECE_BYTES: usize = 256 << 10;

/// Maximum number of PDUs handled in one turn, and about the maximum number of completions taken.
pub const TURN_PDUS: usize = 64;

/// Number of PDUs handled before their answers are sent, when no other connection has work on this
/// core. The peer cannot begin before it has answers: with few PDUs both sides work concurrently,
/// and the touched memory stays in the cache. With several connections, the peers of the other
/// connections work meanwhile, and one system call for the whole turn costs less.
const BURST_PDUS: usize = 8;

/// Number of bytes of answers after which a burst ends. More bytes would leave the core's own cache
/// before they are copied into the socket.
const BURST_BYTES: usize = 512 << 10;

thread_local! {
    /// Connection of this core that had the last turn, by the address of its outbox.
    static LAST: Cell<usize> = const { Cell::new(0) };
    /// During a turn: the number of bytes that commands may still move without sending them, and
    /// the begin of the turn.
    static MOVE_BUDGET: Cell<Option<(usize, Instant)>> = const { Cell::new(None) };
    /// Bytes moved in this turn or out of turn, and not yet counted for an owner.
    static MOVED: Cell<MovedBytes> = const { Cell::new(MovedBytes::NONE) };
    /// True when the last PDU handled may have taken long.
    static IS_COSTLY: Cell<bool> = const { Cell::new(false) };
}

/// Maximum time of a turn, unless one command takes longer: expensive commands would make turns
/// long that have few bytes and PDUs. About the time of thirty small reads.
pub(crate) const TURN_TIME_MAX: Duration = Duration::from_micros(100);

/// Maximum time of a turn when no other owner has connections on this core and no PDU was costly:
/// longer turns have less overhead.
const ALONE_TIME_MAX: Duration = Duration::from_millis(1);

/// Number of PDUs after which the time is checked, unless they are costly.
const TIMED_PDUS: usize = 8;

/// The allowance of a turn for data that commands move without sending it, such as data that they
/// compare: [`TURN_BYTES`]. A core has one at a time; the turn ends on drop.
#[derive(Debug)]
pub struct MoveBudget {
    began: Instant,
    has_begun_work: bool,
}

impl MoveBudget {
    /// Begins a turn.
    pub fn begin() -> Self {
        let began = Instant::now();
        MOVE_BUDGET.set(Some((TURN_BYTES, began)));
        Self { began, has_begun_work: false }
    }

    /// Returns true if the next piece of work may begin. The first piece of a turn always may, even
    /// if the turn is late, because nothing would wake the core for it again.
    pub fn begin_next(&mut self) -> bool {
        let is_first = !std::mem::replace(&mut self.has_begun_work, true);
        is_first || !(self.has_moved_all() || self.has_lasted(TURN_TIME_MAX))
    }

    /// Number of bytes that commands have moved in this turn, at most [`TURN_BYTES`].
    pub fn moved_bytes(&self) -> usize {
        MOVE_BUDGET.get().map_or(0, |(left, _)| TURN_BYTES - left)
    }

    fn has_moved_all(&self) -> bool {
        matches!(MOVE_BUDGET.get(), Some((0, _)))
    }

    fn has_lasted(&self, time: Duration) -> bool {
        self.began.elapsed() >= time
    }
}

impl Drop for MoveBudget {
    fn drop(&mut self) {
        MOVE_BUDGET.set(None);
    }
}

/// Bytes that a core has moved for an owner.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub(crate) struct MovedBytes {
    /// Bytes that were moved without being sent, such as data that was compared.
    pub(crate) unsent: usize,
    /// Bytes that were copied to be sent, or after they were received.
    pub(crate) copied: usize,
}

impl MovedBytes {
    const NONE: Self = Self { unsent: 0, copied: 0 };
}

/// Counts bytes that a command has moved without sending them.
pub fn count_moved(bytes: usize) {
    MOVE_BUDGET.set(MOVE_BUDGET.get().map(|(left, began)| (left.saturating_sub(bytes), began)));
    let moved = MOVED.get();
    MOVED.set(MovedBytes { unsent: moved.unsent.saturating_add(bytes), ..moved });
}

/// Counts bytes of a read or write that a core has copied itself. They do not end a turn, but they
/// raise the time for which the turn may be charged to its owner.
pub fn count_copied(bytes: usize) {
    let moved = MOVED.get();
    MOVED.set(MovedBytes { copied: moved.copied.saturating_add(bytes), ..moved });
}

/// Returns the bytes that were moved on this core since the last call.
pub(crate) fn take_moved() -> MovedBytes {
    MOVED.take()
}

/// True when bytes were moved on this core since the last call of [`take_moved`].
pub(crate) fn has_moved() -> bool {
    MOVED.get() != MovedBytes::NONE
}

/// Marks the current PDU as one of the rarer kinds that may take long: the time of the turn is
/// checked after it.
pub fn mark_costly() {
    IS_COSTLY.set(true);
}

/// Waits for the next turn if this one has no allowance left. Commands call this before they move a
/// piece of [`MOVED_PIECE_BYTES`].
pub async fn wait_to_move() {
    while MOVE_BUDGET
        .get()
        .is_some_and(|(left, began)| left == 0 || began.elapsed() >= TURN_TIME_MAX)
    {
        tokio::task::yield_now().await;
    }
}

/// Budget of a connection in its turn, which consists of bursts.
#[derive(Debug)]
pub(crate) struct PollBudget {
    pdus: usize,
    burst_pdus: usize,
    /// Maximum number of PDUs in a burst.
    burst_pdus_max: usize,
    time_max: Duration,
    /// Bytes sent in earlier bursts.
    answered_bytes: usize,
    /// Bytes that waited to be sent when the burst began.
    outbox_bytes: usize,
    moving: MoveBudget,
}

impl PollBudget {
    /// Begins a turn.
    pub(crate) fn new(out: &Outbox) -> Self {
        let outbox = std::ptr::from_ref(out).addr();
        let is_alone = LAST.replace(outbox) == outbox;
        Self {
            pdus: 0,
            burst_pdus: 0,
            burst_pdus_max: if is_alone { BURST_PDUS } else { TURN_PDUS },
            time_max: if core_has_single_owner() { ALONE_TIME_MAX } else { TURN_TIME_MAX },
            answered_bytes: 0,
            outbox_bytes: out.bytes(),
            moving: MoveBudget::begin(),
        }
    }

    /// Counts a PDU that is about to be handled.
    pub(crate) fn count(&mut self) {
        self.pdus += 1;
        self.burst_pdus += 1;
    }

    /// True when the queued answers should be sent before the next PDU begins.
    pub(crate) fn burst_is_over(&self, out: &Outbox) -> bool {
        self.burst_pdus >= self.burst_pdus_max
            || out.bytes().saturating_sub(self.outbox_bytes) >= BURST_BYTES
    }

    /// Ends the burst, before its answers are sent.
    pub(crate) fn end_burst(&mut self, out: &Outbox) {
        self.answered_bytes += out.bytes().saturating_sub(self.outbox_bytes);
    }

    /// Begins the next burst, after the socket has taken what it could.
    pub(crate) fn begin_burst(&mut self, out: &Outbox) {
        (self.burst_pdus, self.outbox_bytes) = (0, out.bytes());
    }

    #[inline]
    fn is_late(&mut self) -> bool {
        let is_costly = IS_COSTLY.take();
        if is_costly {
            self.time_max = TURN_TIME_MAX;
        }
        (is_costly || self.pdus % TIMED_PDUS == TIMED_PDUS - 1)
            && self.moving.has_lasted(self.time_max)
    }

    /// True when no further PDU may begin.
    #[inline]
    pub(crate) fn is_over(&mut self, out: &Outbox) -> bool {
        let answered = self.answered_bytes + out.bytes().saturating_sub(self.outbox_bytes);
        self.pdus >= TURN_PDUS
            || answered >= TURN_BYTES
            || self.moving.has_moved_all()
            || self.is_late()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::owner_turns::{OwnerId, OwnerTurns};
    use std::future::Future;
    use std::pin::pin;
    use std::task::{Context, Waker};

    fn may_move_now() -> bool {
        pin!(wait_to_move()).poll(&mut Context::from_waker(Waker::noop())).is_ready()
    }

    /// Number of PDUs in the first burst of the next turn of a connection.
    fn burst(out: &Outbox) -> usize {
        let mut turn = PollBudget::new(out);
        (1..)
            .take_while(|_| {
                turn.count();
                !turn.burst_is_over(out)
            })
            .count()
            + 1
    }

    /// Goal: few large answers end a burst as many small ones do.
    #[test]
    fn large_answers_end_a_burst() {
        let mut out = Outbox::default();
        let mut turn = PollBudget::new(&out);
        turn.count();
        assert!(!turn.burst_is_over(&out));
        out.push(lunar_iscsi::framing::Pdu::with_data([0; 48], vec![0; BURST_BYTES].into()));
        assert!(turn.burst_is_over(&out));
        turn.end_burst(&out);
        turn.begin_burst(&out);
        assert!(!turn.burst_is_over(&out));
    }

    /// Goal: data that is moved and not sent ends a turn as answers do. Fault: VERIFY of 8 MiB
    /// counted as one PDU. Beside 64 sessions of one initiator, another initiator completed one
    /// request in two seconds.
    #[test]
    fn moved_bytes_end_a_turn() {
        let out = Outbox::default();
        count_moved(TURN_BYTES);
        let mut turn = PollBudget::new(&out);
        turn.moving.began += Duration::from_secs(60);
        turn.count();
        count_moved(TURN_BYTES - 1);
        assert!(!turn.is_over(&out) && may_move_now());
        count_moved(1);
        assert!(turn.is_over(&out) && !may_move_now());
        drop(turn);
        assert!(may_move_now(), "outside of turns there is no limit");
        MOVE_BUDGET.set(Some((TURN_BYTES, Instant::now() - TURN_TIME_MAX)));
        assert!(!may_move_now(), "the time of the turn is over");
        MOVE_BUDGET.set(None);
    }

    /// Fault: a core that was preempted at the beginning of a turn began no work in that turn, and
    /// was not woken again: commands with a permit waited up to 4 s for the next event.
    #[test]
    fn a_turn_begins_one_piece_of_work_at_least() {
        let mut late = MoveBudget::begin();
        late.began -= 2 * TURN_TIME_MAX;
        assert!(late.begin_next());
        assert!(!late.begin_next());
        drop(late);
        let mut moves_all = MoveBudget::begin();
        count_moved(TURN_BYTES);
        assert!(moves_all.begin_next());
        assert!(!moves_all.begin_next());
        drop(moves_all);
        let mut in_time = MoveBudget::begin();
        in_time.began += Duration::from_secs(60);
        assert!(in_time.begin_next() && in_time.begin_next());
    }

    /// Goal: a few PDUs that take long end a turn.
    #[test]
    fn time_ends_a_turn() {
        let out = Outbox::default();
        let mut turn = PollBudget::new(&out);
        turn.moving.began -= ALONE_TIME_MAX;
        for _ in 1..TIMED_PDUS {
            assert!(!turn.is_over(&out));
            turn.count();
        }
        assert!(turn.is_over(&out));
    }

    /// Goal: one costly PDU ends a turn when the time is over. Fault: a turn handled eight Text
    /// Requests of 275 us each. Beside 64 such connections, another one completed 93 requests a
    /// second.
    #[test]
    fn time_is_checked_after_costly_pdus() {
        let out = Outbox::default();
        let mut turn = PollBudget::new(&out);
        turn.moving.began -= TURN_TIME_MAX;
        turn.count();
        assert!(!turn.is_over(&out));
        turn.count();
        mark_costly();
        assert!(turn.is_over(&out));
        assert!(!turn.is_over(&out), "a mark counts for one PDU only");
    }

    /// Goal: a turn without costly requests may be longer when no other owner has connections; a
    /// turn with a costly request may not. Fault: a busy machine ended each fifth turn of 4 KiB
    /// writes in the middle of the data it had received.
    #[test]
    fn turns_are_longer_without_other_owners() {
        let out = Outbox::default();
        let time_max = |is_costly: bool| {
            let mut turn = PollBudget::new(&out);
            turn.count();
            if is_costly {
                mark_costly();
            }
            turn.is_over(&out);
            turn.time_max
        };
        assert_eq!([time_max(false), time_max(true)], [ALONE_TIME_MAX, TURN_TIME_MAX]);
        let [mut one, mut other] = [1, 2].map(|_| OwnerTurns::default());
        one.set_owner(Some(OwnerId(1)));
        assert_eq!(time_max(false), ALONE_TIME_MAX);
        other.set_owner(Some(OwnerId(2)));
        assert_eq!(time_max(false), TURN_TIME_MAX);
    }

    /// Goal: a connection alone on its core sends in short bursts; with others it sends once a
    /// turn.
    #[test]
    fn bursts_are_short_without_other_connections() {
        let (one, other) = (Outbox::default(), Outbox::default());
        burst(&one);
        assert_eq!([burst(&one), burst(&one)], [BURST_PDUS; 2]);
        assert_eq!([burst(&other), burst(&one)], [TURN_PDUS; 2]);
        assert_eq!(burst(&one), BURST_PDUS);
    }
}
