//! Measures plain TCP between two threads of this process: the baseline for the figures of disks
//! behind it, which shows whether the machine was quiet during the measurement.
//!
//! There are three shapes: a *ping-pong* of one request at a time, a *pipelined exchange* with as
//! many requests in flight as the disk has, and a *stream* in the direction of the data. Requests
//! and answers have the sizes of iSCSI's: a header of 48 bytes, and the data with one of them. The
//! answers come from a thread of this process over loopback, through a relay if the disks are
//! reached through one: a remote host and the network to it are not measured.

mod client;
mod server;

use self::server::ProbeServer;
use crate::Spread;
use crate::relay::{Model, Relay};
use std::io;
use std::time::Duration;

/// Length of an iSCSI header. RFC 7143 §11.2.1.
const HEADER_BYTES: usize = 48;
/// Share of a round's time for which each probe runs.
const SHARE_OF_ROUND: f64 = 0.1;
/// Minimum and maximum of that time.
const TIME_MIN: Duration = Duration::from_millis(50);
const TIME_MAX: Duration = Duration::from_millis(500);
/// Time before a stream is measured, and the least time for which it is measured: a congestion
/// control that searches for its rate (BBR) streams faster or slower at first.
const STREAM_TIME: Duration = Duration::from_millis(300);
/// Time without data from the peer after which its connection counts as lost.
const SILENCE_MAX: Duration = Duration::from_secs(30);
/// Maximum variation of a probe on a quiet machine, as a share of the median.
pub const VARIATION_MAX: f64 = 0.25;

/// Shape of the requests of a probe.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct ProbeShape {
    /// True when data goes with the requests, not with the answers.
    pub writes: bool,
    /// Bytes of data of a request.
    pub io_bytes: u32,
    /// Number of requests in flight at once, over all connections.
    pub depth: u16,
    /// Number of connections.
    pub connections: u16,
}

/// Both ends of a probe; they end on drop.
#[derive(Debug)]
pub struct Probe {
    server: ProbeServer,
    /// Set if the answers come through a relay.
    relay: Option<Relay>,
}

/// Result of one round of probes.
#[derive(Clone, Copy, Debug)]
struct Round {
    ping: Duration,
    exchanges_per_second: f64,
    stream_bytes_per_second: f64,
}

/// Results of all rounds.
#[derive(Clone, Debug, Default)]
pub struct ProbeResults {
    rounds: Vec<Round>,
}

impl Probe {
    /// Starts the thread that answers, behind a relay of this model if there is one.
    ///
    /// # Errors
    /// When the system provides no sockets or threads.
    pub fn start(model: Option<Model>) -> io::Result<Self> {
        let server = ProbeServer::start()?;
        let address = server.address();
        let relay = model.map(|model| Relay::start(model, address)).transpose()?;
        Ok(Self { server, relay })
    }

    /// Runs one round of all three shapes and adds it to `probed`; blocks meanwhile. `round` is the
    /// time of a disk's round, of which each shape takes a tenth; a stream takes longer.
    ///
    /// # Errors
    /// When a connection is lost.
    pub fn round(
        &self,
        shape: ProbeShape,
        round: Duration,
        probed: &mut ProbeResults,
    ) -> io::Result<()> {
        let time = round.mul_f64(SHARE_OF_ROUND).clamp(TIME_MIN, TIME_MAX);
        let address = match &self.relay {
            Some(relay) => relay.address(),
            None => self.server.address(),
        };
        let single = ProbeShape { depth: 1, connections: 1, ..shape };
        let (count, took) = client::exchange(address, single, time)?;
        let (exchanges, exchanged) = client::exchange(address, shape, time)?;
        let (bytes, streamed) = client::stream(address, shape, time.max(STREAM_TIME))?;
        probed.rounds.push(Round {
            ping: took.div_f64(count.max(1) as f64),
            exchanges_per_second: exchanges as f64 / exchanged.as_secs_f64(),
            stream_bytes_per_second: bytes as f64 / streamed.as_secs_f64(),
        });
        Ok(())
    }
}

impl ProbeResults {
    /// Microseconds from a single request to its answer, the mean of each round.
    pub fn ping_micros(&self) -> Spread {
        Spread::of(self.rounds.iter().map(|round| round.ping.as_secs_f64() * 1e6))
    }

    /// Answers a second with as many requests in flight as the depth.
    pub fn exchanges_per_second(&self) -> Spread {
        Spread::of(self.rounds.iter().map(|round| round.exchanges_per_second))
    }

    /// Bytes a second in one direction, without requests.
    pub fn stream_bytes_per_second(&self) -> Spread {
        Spread::of(self.rounds.iter().map(|round| round.stream_bytes_per_second))
    }

    /// Returns a warning if a figure varied by more than a quarter between rounds: the machine was
    /// not quiet.
    pub fn variation_warning(&self) -> Option<String> {
        let all = [
            ("ping-pong", self.ping_micros()),
            ("pipelined exchange", self.exchanges_per_second()),
            ("stream", self.stream_bytes_per_second()),
        ];
        let part = |spread: Spread| (spread.most - spread.least) / spread.median.max(f64::EPSILON);
        let variations = all.into_iter().map(|(name, spread)| (name, part(spread)));
        let (name, most) = variations.max_by(|(_, one), (_, other)| one.total_cmp(other))?;
        (most > VARIATION_MAX).then(|| {
            format!(
                "the machine was not idle: raw TCP ({name}) varied by {:.0} % between rounds",
                most * 100.0
            )
        })
    }
}

#[cfg(test)]
mod tests;
