//! What TCP alone does between two threads of this process: the ground on which figures of disks
//! behind it stand, and whether that ground moves while they are measured.
//!
//! Three shapes: a *ping-pong* of one request at a time, a *pipelined exchange* with as many under
//! way as the disk has, and a *stream* in the direction of the data. Requests and answers have the
//! sizes of iSCSI's: a header of 48 bytes, and the data with one of them. The answers come from a
//! thread of this process over loopback, through a relay where the disks are reached through one:
//! what a remote host and the network to it can do is not measured.

mod answerer;
mod asker;

use self::answerer::Answerer;
use crate::Spread;
use crate::relay::{Model, Relay};
use std::io;
use std::time::Duration;

/// A header of iSCSI. RFC 7143 §11.2.1.
const HEADER_BYTES: usize = 48;
/// How much of the time of a round each of its probes gets.
const PART_OF_ROUND: f64 = 0.1;
/// But no less and no more than this.
const TIME_MIN: Duration = Duration::from_millis(50);
const TIME_MAX: Duration = Duration::from_millis(500);
/// A stream is given so long before it counts, and counts for no less than that: a congestion
/// control that looks for its rate (BBR) streams faster or slower at first than it will.
const STREAM_TIME: Duration = Duration::from_millis(300);
/// Somebody who does not answer for so long is gone.
const SILENCE_MAX: Duration = Duration::from_secs(30);
/// A probe that moves by more than this part of its median tells of a machine that is not quiet.
pub const QUIET: f64 = 0.25;

/// The shape of what is asked.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Shape {
    /// Data goes with the requests, not with the answers.
    pub writes: bool,
    /// Bytes of data of a request.
    pub io_bytes: u32,
    /// Requests under way at once, over all connections.
    pub depth: u16,
    /// Connections.
    pub connections: u16,
}

/// Both ends of a probe; they end when it is dropped.
#[derive(Debug)]
pub struct Probe {
    answerer: Answerer,
    /// Where the answers come through one.
    relay: Option<Relay>,
}

/// What one round of probes came to.
#[derive(Clone, Copy, Debug)]
struct Round {
    ping: Duration,
    exchanges_per_second: f64,
    stream_bytes_per_second: f64,
}

/// What all rounds came to.
#[derive(Clone, Debug, Default)]
pub struct Probed {
    rounds: Vec<Round>,
}

impl Probe {
    /// Starts the thread that answers, behind a relay of this model if there is one.
    ///
    /// # Errors
    /// When the system gives no sockets or no threads.
    pub fn start(model: Option<Model>) -> io::Result<Self> {
        let answerer = Answerer::start()?;
        let address = answerer.address();
        let relay = model.map(|model| Relay::start(model, address)).transpose()?;
        Ok(Self { answerer, relay })
    }

    /// One round of all three, added to `probed`; blocks for its time. `round` is the time of a
    /// round of a disk, of which each of the three takes a tenth; a stream needs longer.
    ///
    /// # Errors
    /// When a connection is lost.
    pub fn round(&self, shape: Shape, round: Duration, probed: &mut Probed) -> io::Result<()> {
        let time = round.mul_f64(PART_OF_ROUND).clamp(TIME_MIN, TIME_MAX);
        let address = match &self.relay {
            Some(relay) => relay.address(),
            None => self.answerer.address(),
        };
        let alone = Shape { depth: 1, connections: 1, ..shape };
        let (count, took) = asker::exchange(address, alone, time)?;
        let (exchanges, exchanged) = asker::exchange(address, shape, time)?;
        let (bytes, streamed) = asker::stream(address, shape, time.max(STREAM_TIME))?;
        probed.rounds.push(Round {
            ping: took.div_f64(count.max(1) as f64),
            exchanges_per_second: exchanges as f64 / exchanged.as_secs_f64(),
            stream_bytes_per_second: bytes as f64 / streamed.as_secs_f64(),
        });
        Ok(())
    }
}

impl Probed {
    /// Microseconds from a request to its answer when it is the only one, the mean of a round.
    pub fn ping_micros(&self) -> Spread {
        Spread::of(self.rounds.iter().map(|round| round.ping.as_secs_f64() * 1e6))
    }

    /// Answers a second when as many as the depth are under way.
    pub fn exchanges_per_second(&self) -> Spread {
        Spread::of(self.rounds.iter().map(|round| round.exchanges_per_second))
    }

    /// Bytes a second in one direction, without requests.
    pub fn stream_bytes_per_second(&self) -> Spread {
        Spread::of(self.rounds.iter().map(|round| round.stream_bytes_per_second))
    }

    /// What moved by more than a quarter between rounds, if anything did: the machine was not
    /// quiet.
    pub fn unrest(&self) -> Option<String> {
        let all = [
            ("ping-pong", self.ping_micros()),
            ("pipelined exchange", self.exchanges_per_second()),
            ("stream", self.stream_bytes_per_second()),
        ];
        let part = |spread: Spread| (spread.most - spread.least) / spread.median.max(f64::EPSILON);
        let moved = all.into_iter().map(|(name, spread)| (name, part(spread)));
        let (name, most) = moved.max_by(|(_, one), (_, other)| one.total_cmp(other))?;
        (most > QUIET).then(|| {
            format!(
                "the machine was not quiet: raw TCP ({name}) moved by {:.0} % between rounds",
                most * 100.0
            )
        })
    }
}

#[cfg(test)]
mod tests;
