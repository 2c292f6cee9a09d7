//! Description of the requests sent to a disk.

use lunar_block::Geometry;
use std::time::Duration;

/// Maximum number of requests in flight at once.
pub const DEPTH_MAX: usize = 4096;
/// Maximum number of bytes of all requests in flight at once: each has its own buffer.
pub const IN_FLIGHT_BYTES_MAX: u64 = 1 << 30;
/// Shortest time that is measured.
const TIME_MIN: Duration = Duration::from_millis(10);

/// Direction and order of the requests.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum AccessPattern {
    /// Reads at random offsets.
    RandomRead,
    /// Writes at random offsets.
    RandomWrite,
    /// Sequential reads.
    Read,
    /// Sequential writes.
    Write,
}

impl AccessPattern {
    /// True when data on the disk is overwritten.
    pub fn writes(self) -> bool {
        matches!(self, Self::RandomWrite | Self::Write)
    }

    /// Returns the value of `--pattern` in `lunar bench`.
    pub const fn name(self) -> &'static str {
        match self {
            Self::RandomRead => "rand-read",
            Self::RandomWrite => "rand-write",
            Self::Read => "read",
            Self::Write => "write",
        }
    }

    /// True when offsets are random.
    pub fn is_random(self) -> bool {
        matches!(self, Self::RandomRead | Self::RandomWrite)
    }
}

/// Times at which requests begin.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Pace {
    /// Closed loop: a request begins when another one has ended.
    Closed,
    /// Open loop: this number of requests is due each second, evenly. The time that a late request
    /// waits counts as its latency.
    PerSecond(f64),
}

/// Description of the load on a disk.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Workload {
    /// Direction and order of the requests.
    pub pattern: AccessPattern,
    /// Bytes of one request, a multiple of the block length.
    pub io_bytes: u32,
    /// Length of the range from the beginning of the disk to which requests are sent; `None`: the
    /// whole disk.
    pub range_bytes: Option<u64>,
    /// Maximum number of requests in flight at once.
    pub depth: usize,
    /// Times at which they begin.
    pub pace: Pace,
    /// Time before the measurement starts.
    pub warm_up: Duration,
    /// Time of the measurement.
    pub time: Duration,
    /// Seed of the random offsets.
    pub seed: u64,
    /// True when each write has to be on stable storage before it completes.
    pub durable: bool,
}

/// Reason why a workload is impossible on a disk.
#[derive(Clone, Debug, Eq, PartialEq, thiserror::Error)]
#[error("{0}")]
pub struct WorkloadError(pub String);

impl Workload {
    /// Returns the number of different offsets for requests on a disk with this geometry.
    ///
    /// # Errors
    /// When the work is impossible on the disk.
    pub fn offset_count(&self, geometry: &Geometry) -> Result<u64, WorkloadError> {
        let refuse = |what: String| Err(WorkloadError(what));
        let (io, block) = (u64::from(self.io_bytes), u64::from(geometry.block_bytes));
        if io == 0 || !io.is_multiple_of(block) {
            return refuse(format!(
                "requests of {io} bytes are not a multiple of the block size of the disk, {block} \
                 bytes"
            ));
        }
        if self.depth == 0 || self.depth > DEPTH_MAX {
            return refuse(format!("the depth must be 1 to {DEPTH_MAX}, not {}", self.depth));
        }
        if self.depth as u64 * io > IN_FLIGHT_BYTES_MAX {
            let (depth, most) = (self.depth, IN_FLIGHT_BYTES_MAX);
            return refuse(format!(
                "{depth} outstanding requests of {io} bytes exceed the maximum of {most} bytes: \
                 choose a smaller depth or smaller requests"
            ));
        }
        if self.time < TIME_MIN {
            return refuse(format!("{:?} is too short to measure anything", self.time));
        }
        if let Pace::PerSecond(rate) = self.pace
            && !(rate.is_finite() && rate > 0.0)
        {
            return refuse(format!("invalid rate of {rate} requests per second"));
        }
        let size = geometry.size_bytes();
        let range = self.range_bytes.unwrap_or(size);
        if range > size || range < io {
            return refuse(format!(
                "the range of {range} bytes is smaller than a request ({io} bytes) or larger than \
                 the disk ({size} bytes)"
            ));
        }
        Ok(range / io)
    }
}
