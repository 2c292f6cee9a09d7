//! The network model: computes when bytes of a sender arrive, and when the sender may send more. No
//! sockets, no clock; times are relative to the start of the relay.

use super::Model;
use std::collections::VecDeque;
use std::time::Duration;

/// Maximum number of bytes in flight if no window is set: the limit of the relay's memory.
pub(super) const IN_FLIGHT_BYTES_MAX: u64 = 64 << 20;
/// Minimum number of bytes taken from a sender, unless a quarter of its window is less, to avoid
/// many small sends (the silly window syndrome of RFC 9293).
const SEND_BYTES_MIN: u64 = 16 << 10;
/// Length of the queue before the link, as the time to send it: the buffer of a router.
const LINK_QUEUE: Duration = Duration::from_millis(4);
/// Maximum transmission time of bytes that arrive together as one frame; it is short, so that each
/// byte arrives about when it would on a real link.
const LINK_FRAME_TIME: Duration = Duration::from_micros(250);
/// Minimum length of such a frame, in bytes.
const LINK_FRAME_BYTES_MIN: u64 = 1_500;

/// Maximum lateness of a delivery that is attributed to the relay's own wake-up.
const RELAY_LATENESS_MAX: Duration = Duration::from_micros(400);

/// The link that all connections share in one direction: it sends bytes one after the other, at a
/// rate.
#[derive(Clone, Debug, Default)]
pub(super) struct Link {
    /// Bytes a second; `None`: no limit.
    rate: Option<u64>,
    /// Time at which all bytes given to the link have left it.
    free_at: Duration,
}

impl Link {
    pub(super) fn new(model: &Model) -> Self {
        Self { rate: model.rate_bytes_per_second, free_at: Duration::ZERO }
    }

    /// Returns when the queue before the link has space; `None` if it has space now.
    fn has_space_at(&self, now: Duration) -> Option<Duration> {
        let opens_at = self.free_at.saturating_sub(LINK_QUEUE);
        (opens_at > now).then_some(opens_at)
    }

    /// Number of bytes of one frame.
    fn frame_bytes(&self) -> u64 {
        self.rate.map_or(u64::MAX, |rate| {
            let bytes = rate as f64 * LINK_FRAME_TIME.as_secs_f64();
            (bytes as u64).max(LINK_FRAME_BYTES_MIN)
        })
    }

    /// Sends bytes now; returns when they have left the link.
    fn send(&mut self, now: Duration, bytes: u64) -> Duration {
        let Some(rate) = self.rate else { return now };
        let transfer_time = Duration::from_secs_f64(bytes as f64 / rate as f64);
        self.free_at = self.free_at.max(now) + transfer_time;
        self.free_at
    }
}

/// A number of bytes, and the time at which they arrive or their credit returns.
#[derive(Clone, Copy, Debug)]
struct TimedBytes {
    at: Duration,
    bytes: u64,
}

/// One direction of one connection.
#[derive(Clone, Debug)]
pub(super) struct Pipe {
    delay: Duration,
    window: u64,
    /// Number of bytes taken from the sender and not acknowledged yet.
    in_flight: u64,
    /// Times at which taken bytes arrive.
    arrivals: VecDeque<TimedBytes>,
    /// Times at which the sender receives credit for delivered bytes.
    credits: VecDeque<TimedBytes>,
}

impl Pipe {
    pub(super) fn new(model: &Model) -> Self {
        Self {
            delay: model.delay,
            window: model.window_bytes.unwrap_or(IN_FLIGHT_BYTES_MAX).clamp(1, IN_FLIGHT_BYTES_MAX),
            in_flight: 0,
            arrivals: VecDeque::new(),
            credits: VecDeque::new(),
        }
    }

    /// Number of bytes that may be taken from the sender now.
    pub(super) fn sendable_bytes(&mut self, now: Duration, link: &Link) -> u64 {
        while let Some(credit) = self.credits.front().filter(|credit| credit.at <= now) {
            self.in_flight -= credit.bytes;
            self.credits.pop_front();
        }
        let sendable_bytes = self.window - self.in_flight;
        match sendable_bytes < SEND_BYTES_MIN.min(self.window.div_ceil(4))
            || link.has_space_at(now).is_some()
        {
            true => 0,
            false => sendable_bytes,
        }
    }

    /// Records that `bytes`, at most [`sendable_bytes`](Self::sendable_bytes), were taken from the
    /// sender.
    pub(super) fn take(&mut self, now: Duration, bytes: u64, link: &mut Link) {
        self.in_flight += bytes;
        let mut left = bytes;
        while left > 0 {
            let piece = left.min(link.frame_bytes());
            let at = link.send(now, piece) + self.delay;
            self.arrivals.push_back(TimedBytes { at, bytes: piece });
            left -= piece;
        }
    }

    /// Number of bytes that have arrived and wait for the receiver.
    pub(super) fn arrived(&self, now: Duration) -> u64 {
        self.arrivals.iter().take_while(|next| next.at <= now).map(|next| next.bytes).sum()
    }

    /// Records that the receiver took `bytes`, at most those that had arrived.
    pub(super) fn deliver(&mut self, now: Duration, bytes: u64) {
        let mut left = bytes;
        while left > 0
            && let Some(next) = self.arrivals.front_mut()
        {
            let piece = left.min(next.bytes);
            next.bytes -= piece;
            left -= piece;
            // A small delay is due to the relay's wake-up, not to a busy receiver.
            let taken =
                if now.saturating_sub(next.at) <= RELAY_LATENESS_MAX { next.at } else { now };
            if next.bytes == 0 {
                self.arrivals.pop_front();
            }
            self.return_credit(taken + self.delay, piece);
        }
    }

    /// Returns credit for `bytes` to the sender at this time.
    fn return_credit(&mut self, at: Duration, bytes: u64) {
        match self.credits.back_mut() {
            // In order, as acknowledgements are; credits of the same time are merged.
            Some(last) if last.at >= at => last.bytes += bytes,
            _ => self.credits.push_back(TimedBytes { at, bytes }),
        }
    }

    /// True when all taken bytes have been delivered.
    pub(super) fn is_empty(&self) -> bool {
        self.arrivals.is_empty()
    }

    /// Returns the time of the next event: bytes arrive, or a sender that `wants` to send more may
    /// do so.
    pub(super) fn next_event(&self, now: Duration, link: &Link, wants: bool) -> Option<Duration> {
        let arrival = self.arrivals.iter().map(|next| next.at).find(|at| *at > now);
        let credit = self.credits.front().map(|credit| credit.at).filter(|_| wants);
        let link = link.has_space_at(now).filter(|_| wants);
        [arrival, credit, link].into_iter().flatten().min()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const DELAY: Duration = Duration::from_millis(2);

    fn model(rate: Option<u64>, window: Option<u64>) -> Model {
        Model { delay: DELAY, rate_bytes_per_second: rate, window_bytes: window }
    }

    /// Returns the bytes that busy senders deliver in a second over `connections` connections,
    /// simulated by events.
    fn delivered_in_a_second(model: &Model, connections: usize) -> u64 {
        let mut link = Link::new(model);
        let mut pipes = vec![Pipe::new(model); connections];
        let (mut now, mut delivered_in_a_second) = (Duration::ZERO, 0);
        while now < Duration::from_secs(1) {
            for pipe in &mut pipes {
                let arrived = pipe.arrived(now);
                pipe.deliver(now, arrived);
                delivered_in_a_second += arrived;
                let sendable_bytes = pipe.sendable_bytes(now, &link).min(256 << 10);
                pipe.take(now, sendable_bytes, &mut link);
                assert!(pipe.in_flight <= pipe.window);
            }
            let wakes = pipes.iter().filter_map(|pipe| pipe.next_event(now, &link, true));
            let next_event = wakes.min().unwrap();
            now = next_event.max(now + Duration::from_nanos(1));
        }
        delivered_in_a_second
    }

    /// Goal: bytes arrive after the delay and not before, and the credit for them returns one delay
    /// after that.
    #[test]
    fn bytes_and_their_credit_are_delayed() {
        let model = model(None, Some(1000));
        let (mut link, mut pipe) = (Link::new(&model), Pipe::new(&model));
        let at = Duration::from_micros;
        assert_eq!(pipe.sendable_bytes(at(0), &link), 1000);
        pipe.take(at(0), 600, &mut link);
        pipe.take(at(100), 400, &mut link);
        assert_eq!(pipe.sendable_bytes(at(200), &link), 0);
        assert_eq!(pipe.arrived(at(1_999)), 0);
        assert_eq!(pipe.next_event(at(200), &link, true), Some(at(2_000)));
        assert_eq!(pipe.arrived(at(2_000)), 600);
        // The receiver takes a part at once, the rest later: credit returns for each separately.
        pipe.deliver(at(2_000), 500);
        pipe.deliver(at(2_500), 500);
        assert!(pipe.is_empty());
        assert_eq!(pipe.next_event(at(2_500), &link, true), Some(at(4_000)));
        assert_eq!(pipe.next_event(at(2_500), &link, false), None);
        assert_eq!(pipe.sendable_bytes(at(3_999), &link), 0);
        assert_eq!(pipe.sendable_bytes(at(4_000), &link), 500);
        assert_eq!(pipe.sendable_bytes(at(4_500), &link), 1000);
    }

    /// Goal: a connection carries its window in each round trip, four carry four times as much.
    #[test]
    fn the_window_limits_each_connection() {
        let model = model(None, Some(256 << 10));
        let limit = f64::from(256 << 10) / (2.0 * DELAY.as_secs_f64());
        for connections in [1, 4] {
            let part =
                delivered_in_a_second(&model, connections) as f64 / (limit * connections as f64);
            assert!((0.98..=1.0).contains(&part), "{connections} carry {part} of the window");
        }
    }

    /// Goal: the rate is shared by all connections, and used up whatever their number.
    #[test]
    fn the_rate_limits_all_together() {
        let rate = 125_000_000;
        for connections in [1, 8] {
            for window in [None, Some(1 << 20)] {
                let delivered_in_a_second =
                    delivered_in_a_second(&model(Some(rate), window), connections) as f64;
                let part = delivered_in_a_second / rate as f64;
                assert!((0.98..=1.0).contains(&part), "{connections}, {window:?}: {part}");
            }
        }
        // A window smaller than rate times round trip limits a single connection first.
        let part =
            delivered_in_a_second(&model(Some(rate), Some(256 << 10)), 1) as f64 / rate as f64;
        assert!((0.3..0.55).contains(&part), "{part}");
    }

    /// Goal: the link delays bytes by those queued before them, and takes no more when its queue is
    /// full.
    #[test]
    fn bytes_wait_for_the_link() {
        let model = model(Some(1_000_000), None);
        let (mut link, mut pipe) = (Link::new(&model), Pipe::new(&model));
        let at = Duration::from_micros;
        pipe.take(at(0), 3_000, &mut link);
        assert_eq!((pipe.arrived(at(3_499)), pipe.arrived(at(3_500))), (0, 1_500));
        assert_eq!(pipe.arrived(at(5_000)), 3_000);
        assert!(pipe.sendable_bytes(at(0), &link) > 0, "3 ms wait: there is room");
        pipe.take(at(0), 3_000, &mut link);
        assert_eq!(pipe.sendable_bytes(at(0), &link), 0);
        assert_eq!(pipe.next_event(at(0), &link, true), Some(at(2_000)));
        assert!(pipe.sendable_bytes(at(2_000), &link) > 0);
    }
}
