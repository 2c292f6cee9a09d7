//! How much a connection does before the others of its core get their turn.

use crate::outbox::Outbox;
use crate::owner_turns::is_core_of_one;
use std::cell::Cell;
use std::time::{Duration, Instant};

/// So much is moved in one turn, to be sent or not: what is begun before is finished.
pub const TURN_BYTES: usize = 1 << 20;

/// What is moved without being sent is moved in pieces of this: about what a turn has time for.
pub const MOVED_PIECE_BYTES: usize = 256 << 10;

/// So many PDUs are handled in one turn, and about as many completions taken.
pub const TURN_PDUS: usize = 64;

/// So many PDUs are handled before what they came to is sent, where nobody else has work on this
/// core. The peer cannot begin before: with few, both work at the same time, and what is touched
/// stays in the cache. Among several connections the peers of the others work meanwhile, and one
/// call for all that the turn came to costs less.
const BURST_PDUS: usize = 8;

/// After so many bytes a burst is over too. More would not stay in a core's own cache until they
/// are sent: what was read would be fetched from further away, to be copied into the socket.
const BURST_BYTES: usize = 512 << 10;

thread_local! {
    /// Which connection of this core had the last turn, by the address of its outbox.
    static LAST: Cell<usize> = const { Cell::new(0) };
    /// In a turn: what commands may still move in it without sending it, and when it began.
    static LEFT: Cell<Option<(usize, Instant)>> = const { Cell::new(None) };
    /// Moved without being sent, in this turn or out of turn, and not counted for an owner yet.
    static MOVED: Cell<usize> = const { Cell::new(0) };
    /// The PDU that was handled last may have taken long.
    static IS_COSTLY: Cell<bool> = const { Cell::new(false) };
}

/// A turn lasts no longer, if one command does not: expensive commands would make turns long that
/// few bytes or PDUs make short. As long as some thirty small reads take.
const TURN_TIME_MAX: Duration = Duration::from_micros(100);

/// Where no other owner has connections on this core, and no PDU was costly: longer turns cost
/// less.
const ALONE_TIME_MAX: Duration = Duration::from_millis(1);

/// The time is looked at after so many PDUs that are not costly.
const TIMED_PDUS: usize = 8;

/// A turn in which commands may move [`TURN_BYTES`] that are no answer, such as those they compare.
/// There is one at a time on a core. It ends when this is
/// dropped.
#[derive(Debug)]
pub struct MovingTurn {
    began: Instant,
    has_begun_one: bool,
}

impl MovingTurn {
    /// Begins one.
    pub fn begin() -> Self {
        let began = Instant::now();
        LEFT.set(Some((TURN_BYTES, began)));
        Self { began, has_begun_one: false }
    }

    /// Whether the next piece of work may be begun. The first one always may, however late it is:
    /// work that is never asked for wakes nobody.
    pub fn begin_next(&mut self) -> bool {
        let is_first = !std::mem::replace(&mut self.has_begun_one, true);
        is_first || !(self.has_moved_all() || self.has_lasted(TURN_TIME_MAX))
    }

    fn has_moved_all(&self) -> bool {
        matches!(LEFT.get(), Some((0, _)))
    }

    fn has_lasted(&self, time: Duration) -> bool {
        self.began.elapsed() >= time
    }
}

impl Drop for MovingTurn {
    fn drop(&mut self) {
        LEFT.set(None);
    }
}

/// A command has moved so many bytes that are no answer.
pub fn count_moved(bytes: usize) {
    LEFT.set(LEFT.get().map(|(left, began)| (left.saturating_sub(bytes), began)));
    MOVED.set(MOVED.get().saturating_add(bytes));
}

/// Bytes that were moved on this core since the last call.
pub(crate) fn take_moved() -> usize {
    MOVED.take()
}

/// The PDU that is handled is none of those that mostly come, and may take long: the time of the
/// turn is looked at behind it.
pub fn mark_costly() {
    IS_COSTLY.set(true);
}

/// Waits for the next turn if nothing more may be moved in this one. To be asked before each
/// [`MOVED_PIECE_BYTES`].
pub async fn may_move() {
    while LEFT.get().is_some_and(|(left, began)| left == 0 || began.elapsed() >= TURN_TIME_MAX) {
        tokio::task::yield_now().await;
    }
}

/// What a connection has done in its turn, which has several bursts.
#[derive(Debug)]
pub(crate) struct PollBudget {
    pdus: usize,
    burst_pdus: usize,
    /// A burst has so many.
    burst_pdus_max: usize,
    time_max: Duration,
    /// Of the bursts before.
    answered_bytes: usize,
    /// What waited to be sent when the burst began.
    outbox_bytes: usize,
    moving: MovingTurn,
}

impl PollBudget {
    /// Begins one.
    pub(crate) fn new(out: &Outbox) -> Self {
        let outbox = std::ptr::from_ref(out).addr();
        let is_alone = LAST.replace(outbox) == outbox;
        Self {
            pdus: 0,
            burst_pdus: 0,
            burst_pdus_max: if is_alone { BURST_PDUS } else { TURN_PDUS },
            time_max: if is_core_of_one() { ALONE_TIME_MAX } else { TURN_TIME_MAX },
            answered_bytes: 0,
            outbox_bytes: out.bytes(),
            moving: MovingTurn::begin(),
        }
    }

    /// A PDU is about to be handled.
    pub(crate) fn count(&mut self) {
        self.pdus += 1;
        self.burst_pdus += 1;
    }

    /// What there is should be sent before the next PDU is begun.
    pub(crate) fn burst_is_over(&self, out: &Outbox) -> bool {
        self.burst_pdus >= self.burst_pdus_max
            || out.bytes().saturating_sub(self.outbox_bytes) >= BURST_BYTES
    }

    /// The burst is about to be sent.
    pub(crate) fn end_burst(&mut self, out: &Outbox) {
        self.answered_bytes += out.bytes().saturating_sub(self.outbox_bytes);
    }

    /// It was sent, as far as the socket took it, and the next begins.
    pub(crate) fn begin_burst(&mut self, out: &Outbox) {
        (self.burst_pdus, self.outbox_bytes) = (0, out.bytes());
    }

    fn is_late(&mut self) -> bool {
        let is_costly = IS_COSTLY.take();
        if is_costly {
            self.time_max = TURN_TIME_MAX;
        }
        (is_costly || self.pdus % TIMED_PDUS == TIMED_PDUS - 1)
            && self.moving.has_lasted(self.time_max)
    }

    /// No further PDU is to be begun.
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
        pin!(may_move()).poll(&mut Context::from_waker(Waker::noop())).is_ready()
    }

    /// How many PDUs the next turn of a connection has in its first burst.
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
    fn bursts_end_by_bytes_too() {
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

    /// Goal: what is moved and not sent ends a turn as answers do. Named by: VERIFY of 8 MiB
    /// counted as one PDU; one initiator with 64 sessions left another one half a request a second.
    #[test]
    fn what_is_moved_ends_a_turn() {
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
        assert!(may_move_now(), "outside of turns all may be moved");
        LEFT.set(Some((TURN_BYTES, Instant::now() - TURN_TIME_MAX)));
        assert!(!may_move_now(), "the time of the turn is over");
        LEFT.set(None);
    }

    /// Fault: a core that lost the processor as it began a turn took no work in it, and was not
    /// woken for it again: commands with a permit waited for up to 4 s for the next event.
    #[test]
    fn a_turn_begins_one_piece_of_work_at_least() {
        let mut late = MovingTurn::begin();
        late.began -= 2 * TURN_TIME_MAX;
        assert!(late.begin_next());
        assert!(!late.begin_next());
        drop(late);
        let mut moves_all = MovingTurn::begin();
        count_moved(TURN_BYTES);
        assert!(moves_all.begin_next());
        assert!(!moves_all.begin_next());
        drop(moves_all);
        let mut in_time = MovingTurn::begin();
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

    /// Goal: one costly PDU ends a turn when the time is over. Named by: eight Text Requests of
    /// 275 us each in a turn; with 64 such connections a good one had 93 requests a second.
    #[test]
    fn time_is_looked_at_behind_costly_pdus() {
        let out = Outbox::default();
        let mut turn = PollBudget::new(&out);
        turn.moving.began -= TURN_TIME_MAX;
        turn.count();
        assert!(!turn.is_over(&out));
        turn.count();
        mark_costly();
        assert!(turn.is_over(&out));
        assert!(!turn.is_over(&out), "the mark is for one PDU");
    }

    /// Goal: plain requests are not cut short where nobody else works; a costly one is. Named by: a
    /// busy machine ended each fifth turn of 4 KiB writes in the midst of what it received.
    #[test]
    fn turns_are_longer_where_nobody_else_works() {
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

    /// Goal: a connection that has its core alone sends early; with others it sends a turn at once.
    #[test]
    fn bursts_are_short_where_nobody_else_works() {
        let (one, other) = (Outbox::default(), Outbox::default());
        burst(&one);
        assert_eq!([burst(&one), burst(&one)], [BURST_PDUS; 2]);
        assert_eq!([burst(&other), burst(&one)], [TURN_PDUS; 2]);
        assert_eq!(burst(&one), BURST_PDUS);
    }
}
