//! Bodies of requests, charged as they arrive.

use super::problem::Problem;
use axum::http::StatusCode;
use bytes::Bytes;
use http_body_util::BodyExt;
use hyper::body::Body;
use lunar_block::{BufferPool, MemoryCharge, MemoryKind};
use std::fmt::Display;
use std::time::Duration;

/// Maximum size of a request's body in bytes; the largest body is a configuration.
pub const BODY_BYTES_MAX: usize = 4 << 20;
/// Maximum time for receiving a body.
pub const BODY_TIME_MAX: Duration = Duration::from_secs(20);

/// Size up to which a body is short: it is never refused for lack of memory.
const SHORT_BYTES_MAX: usize = 64 << 10;
/// Divisor for the memory of longer bodies: 1/16 of `memory_bytes_max`, which has room for one of
/// the maximum size.
const MEMORY_PART: usize = 16;
/// Memory that the first byte of a body takes.
const CAPACITY_MIN: usize = 4 << 10;

/// Limits on the bodies that are being received, and on those whose requests are not answered yet.
#[derive(Debug)]
pub(crate) struct RequestBodies {
    /// The account of short bodies.
    short: BufferPool,
    /// The account of longer bodies.
    long: BufferPool,
}

/// The bytes of a body that have arrived, with their charge.
#[derive(Debug)]
pub(super) struct ReceivedBody {
    bytes: Vec<u8>,
    charge: MemoryCharge,
    /// Expected size of the whole body.
    announced_bytes: usize,
}

impl RequestBodies {
    pub(crate) fn new(account: &BufferPool) -> Self {
        let [short, long] = [(); 2].map(|()| account.sibling(MemoryKind::Api));
        Self { short, long }
    }

    /// Receives a body.
    pub(super) async fn receive<B>(&self, body: B) -> Result<ReceivedBody, Problem>
    where
        B: Body<Data = Bytes, Error: Display> + Unpin,
    {
        let received = tokio::time::timeout(BODY_TIME_MAX, self.receive_all(body)).await;
        received.unwrap_or_else(|_| {
            let what = format!("the request body took longer than {} s", BODY_TIME_MAX.as_secs());
            Err(Problem::new(StatusCode::REQUEST_TIMEOUT, what))
        })
    }

    async fn receive_all<B>(&self, mut body: B) -> Result<ReceivedBody, Problem>
    where
        B: Body<Data = Bytes, Error: Display> + Unpin,
    {
        let announced = body.size_hint().upper().and_then(|bytes| bytes.try_into().ok());
        let announced_bytes = announced.unwrap_or(BODY_BYTES_MAX).min(BODY_BYTES_MAX);
        let charge = self.short.charge(0);
        let mut received = ReceivedBody { bytes: Vec::new(), charge, announced_bytes };
        while let Some(frame) = body.frame().await {
            let frame = frame.map_err(|error| {
                let what = format!("the request body cannot be received: {error}");
                Problem::new(StatusCode::BAD_REQUEST, what)
            })?;
            if let Ok(data) = frame.into_data() {
                self.add(&mut received, &data)?;
            }
        }
        Ok(received)
    }

    /// Copies `data`: a piece of the connection's input would keep the buffer around it.
    fn add(&self, received: &mut ReceivedBody, data: &[u8]) -> Result<(), Problem> {
        let needed = received.bytes.len().saturating_add(data.len());
        if needed > BODY_BYTES_MAX {
            let what = format!("the request body is longer than {BODY_BYTES_MAX} bytes");
            return Err(Problem::new(StatusCode::PAYLOAD_TOO_LARGE, what));
        }
        if needed > received.bytes.capacity() {
            let capacity = received.next_capacity(needed);
            // Both charges hold while the bytes move.
            let charge = self.charge(capacity, received).ok_or_else(busy)?;
            received.bytes.reserve_exact(capacity - received.bytes.len());
            received.charge = charge;
        }
        received.bytes.extend_from_slice(data);
        Ok(())
    }

    /// Charges `capacity` bytes for a body that has `received` so far; `None` if others leave no
    /// room for it. A body is not refused while it is the only one that is not short: it may be the
    /// configuration that makes room.
    fn charge(&self, capacity: usize, received: &ReceivedBody) -> Option<MemoryCharge> {
        if capacity <= SHORT_BYTES_MAX {
            return Some(self.short.charge(capacity));
        }
        let was_short = received.bytes.capacity() <= SHORT_BYTES_MAX;
        let own_bytes = if was_short { 0 } else { received.charge.bytes() };
        let others_bytes = self.long.held_bytes().saturating_sub(own_bytes);
        if others_bytes == 0 {
            return Some(self.long.charge(capacity));
        }
        let bytes_max = self.long.budget().limit_bytes() / MEMORY_PART;
        let has_room = others_bytes.saturating_add(capacity) <= bytes_max;
        has_room.then(|| self.long.try_charge(capacity)).flatten()
    }
}

impl ReceivedBody {
    pub(super) fn bytes(&self) -> &[u8] {
        &self.bytes
    }

    /// Frees the bytes. The charge continues for the values that were made of them.
    pub(super) fn into_charge(self) -> MemoryCharge {
        self.charge
    }

    fn next_capacity(&self, needed: usize) -> usize {
        let doubled = (self.bytes.capacity() * 2).max(CAPACITY_MIN);
        doubled.min(self.announced_bytes).max(needed)
    }
}

fn busy() -> Problem {
    Problem::busy("too many long bodies are being received").hint("send the request again later")
}

#[cfg(test)]
mod tests {
    use super::*;
    use hyper::body::{Frame, SizeHint};
    use lunar_block::MemoryBudget;
    use std::convert::Infallible;
    use std::pin::{Pin, pin};
    use std::task::{Context, Poll, Waker};
    use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};

    const LIMIT: usize = 64 << 20;

    /// A body whose pieces a test sends.
    struct SentBody {
        pieces: UnboundedReceiver<Vec<u8>>,
        announced_bytes: Option<u64>,
    }

    impl Body for SentBody {
        type Data = Bytes;
        type Error = Infallible;

        fn poll_frame(
            mut self: Pin<&mut Self>,
            context: &mut Context<'_>,
        ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
            let piece = self.pieces.poll_recv(context);
            piece.map(|piece| piece.map(|piece| Ok(Frame::data(Bytes::from(piece)))))
        }

        fn size_hint(&self) -> SizeHint {
            self.announced_bytes.map_or_else(SizeHint::default, SizeHint::with_exact)
        }
    }

    fn announced(bytes: usize) -> (UnboundedSender<Vec<u8>>, SentBody) {
        let (sender, pieces) = unbounded_channel();
        (sender, SentBody { pieces, announced_bytes: Some(bytes as u64) })
    }

    fn rig() -> (BufferPool, RequestBodies, impl Fn() -> usize) {
        let pool = BufferPool::with_budget(&MemoryBudget::new(LIMIT));
        let bodies = RequestBodies::new(&pool);
        let budget = pool.clone();
        (pool, bodies, move || budget.budget().usage().by_kind[MemoryKind::Api as usize])
    }

    /// Polls a future once.
    fn now<T>(future: impl Future<Output = T>) -> Option<T> {
        match pin!(future).poll(&mut Context::from_waker(Waker::noop())) {
            Poll::Ready(value) => Some(value),
            Poll::Pending => None,
        }
    }

    fn refusal(received: Option<Result<ReceivedBody, Problem>>) -> StatusCode {
        received.expect("an end").expect_err("a refusal").status
    }

    /// Fault: the announced size was charged before a body arrived. 64 connections with one byte
    /// each took 256 MiB for 20 s, and initiators got BUSY.
    #[tokio::test(start_paused = true)]
    async fn a_stalled_body_holds_little_memory_and_times_out() {
        let (_pool, bodies, used_bytes) = rig();
        let began = tokio::time::Instant::now();
        let (mut senders, mut receiving) = (Vec::new(), Vec::new());
        for _ in 0..64 {
            let (sender, body) = announced(BODY_BYTES_MAX);
            senders.push(sender);
            let mut waits = Box::pin(bodies.receive(body));
            assert!(now(&mut waits).is_none());
            receiving.push(waits);
        }
        assert_eq!(used_bytes(), 0, "nothing has arrived");
        for (sender, waits) in senders.iter().zip(&mut receiving) {
            sender.send(vec![b'{']).unwrap();
            assert!(now(waits).is_none());
        }
        assert_eq!(used_bytes(), 64 * CAPACITY_MIN);
        for waits in receiving {
            assert_eq!(refusal(Some(waits.await)), StatusCode::REQUEST_TIMEOUT);
        }
        assert_eq!(began.elapsed(), BODY_TIME_MAX);
        assert_eq!(used_bytes(), 0);
    }

    /// Goal: the longer bodies that are held together have 1/16 of the memory. A body that is the
    /// only longer one, and a short one, are received however much memory is in use.
    #[tokio::test(start_paused = true)]
    async fn long_bodies_hold_a_part_of_the_memory() {
        let (pool, bodies, used_bytes) = rig();
        let (first_sender, body) = announced(BODY_BYTES_MAX);
        let mut first = Box::pin(bodies.receive(body));
        first_sender.send(vec![b' '; BODY_BYTES_MAX - 1]).unwrap();
        assert!(now(&mut first).is_none());
        assert_eq!(used_bytes(), BODY_BYTES_MAX - 1);

        let receive = |bytes: usize| {
            let (sender, body) = announced(bytes);
            sender.send(vec![b' '; bytes]).unwrap();
            drop(sender);
            now(bodies.receive(body))
        };
        assert_eq!(refusal(receive(SHORT_BYTES_MAX + 1)), StatusCode::SERVICE_UNAVAILABLE);
        let short = receive(SHORT_BYTES_MAX).expect("an end").expect("it is short");
        assert_eq!(used_bytes(), BODY_BYTES_MAX - 1 + SHORT_BYTES_MAX);
        drop((first, short));
        assert_eq!(used_bytes(), 0);

        let _others = pool.charge(LIMIT);
        let in_use = used_bytes();
        let alone = receive(BODY_BYTES_MAX).expect("an end").expect("it is alone");
        assert_eq!(refusal(receive(SHORT_BYTES_MAX + 1)), StatusCode::SERVICE_UNAVAILABLE);
        receive(SHORT_BYTES_MAX).expect("an end").expect("it is short");
        let charge = alone.into_charge();
        assert_eq!(used_bytes() - in_use, BODY_BYTES_MAX, "until the request is answered");
        drop(charge);
        assert_eq!(used_bytes(), in_use);
    }

    /// Goal: a body arrives whole, in pieces of any size, announced or not, and takes no more
    /// memory than it is charged.
    #[test]
    fn a_body_arrives_whole() {
        let (_pool, bodies, used_bytes) = rig();
        let whole: Vec<u8> = (0..200_000_u32).map(|at| (at % 251) as u8).collect();
        for (piece_bytes, is_announced) in [(1, true), (7_919, true), (65_536, false)] {
            let (sender, mut body) = announced(whole.len());
            if !is_announced {
                body.announced_bytes = None;
            }
            for piece in whole.chunks(piece_bytes) {
                sender.send(piece.to_vec()).unwrap();
            }
            drop(sender);
            let received = now(bodies.receive_all(body)).expect("an end").expect("a body");
            assert_eq!(received.bytes(), whole);
            assert_eq!(received.bytes.capacity(), received.charge.bytes());
            assert_eq!(used_bytes(), received.charge.bytes());
            let bytes_max = if is_announced { whole.len() } else { 2 * whole.len() };
            assert!(used_bytes() <= bytes_max, "{}", used_bytes());
        }
    }

    /// Goal: a body that is longer than the maximum is refused, announced or not.
    #[tokio::test(start_paused = true)]
    async fn a_body_that_is_too_long_is_refused() {
        let (_pool, bodies, used_bytes) = rig();
        for announced_bytes in [Some(BODY_BYTES_MAX as u64 + 1), None] {
            let (sender, mut body) = announced(0);
            body.announced_bytes = announced_bytes;
            sender.send(vec![b' '; BODY_BYTES_MAX]).unwrap();
            sender.send(vec![b' ']).unwrap();
            assert_eq!(refusal(now(bodies.receive(body))), StatusCode::PAYLOAD_TOO_LARGE);
            assert_eq!(used_bytes(), 0);
        }
    }
}
