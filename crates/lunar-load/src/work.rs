//! What is asked of a disk.

use lunar_block::Geometry;
use std::time::Duration;

/// Requests under way at once, at most.
pub const DEPTH_MAX: usize = 4096;
/// Bytes of all requests that are under way at once, at most: each has a buffer of its own.
pub const UNDER_WAY_BYTES_MAX: u64 = 1 << 30;
/// The shortest time that is measured.
const TIME_MIN: Duration = Duration::from_millis(10);

/// Where requests go, and which way.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Pattern {
    /// Reads at random places.
    RandomRead,
    /// Writes at random places.
    RandomWrite,
    /// Reads one behind the other.
    Read,
    /// Writes one behind the other.
    Write,
}

impl Pattern {
    /// What the disk holds is overwritten.
    pub fn writes(self) -> bool {
        matches!(self, Self::RandomWrite | Self::Write)
    }

    /// Each request goes to a place of its own.
    pub fn is_random(self) -> bool {
        matches!(self, Self::RandomRead | Self::RandomWrite)
    }
}

/// When requests begin.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Pace {
    /// When another one has ended.
    Closed,
    /// So many a second, evenly; those for which there is no room yet wait, and their wait counts.
    PerSecond(f64),
}

/// What is asked of a disk.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Work {
    /// Where, and which way.
    pub pattern: Pattern,
    /// Bytes of one request: whole blocks.
    pub io_bytes: u32,
    /// Bytes from the beginning of the disk that are used; `None`: all.
    pub range_bytes: Option<u64>,
    /// Requests under way at once, at most.
    pub depth: usize,
    /// When they begin.
    pub pace: Pace,
    /// Done before anything is measured.
    pub warm_up: Duration,
    /// How long is measured.
    pub time: Duration,
    /// Random places follow from it.
    pub seed: u64,
}

/// Why something cannot be asked of a disk.
#[derive(Clone, Debug, Eq, PartialEq, thiserror::Error)]
#[error("{0}")]
pub struct WorkError(pub String);

impl Work {
    /// How many different places there are for requests on a disk of this shape.
    ///
    /// # Errors
    /// When the work makes no sense there.
    pub fn places(&self, geometry: &Geometry) -> Result<u64, WorkError> {
        let refuse = |what: String| Err(WorkError(what));
        let (io, block) = (u64::from(self.io_bytes), u64::from(geometry.block_bytes));
        if io == 0 || !io.is_multiple_of(block) {
            return refuse(format!("requests of {io} bytes on a disk with blocks of {block}"));
        }
        if self.depth == 0 || self.depth > DEPTH_MAX {
            return refuse(format!("a depth of {}: 1 to {DEPTH_MAX} are possible", self.depth));
        }
        if self.depth as u64 * io > UNDER_WAY_BYTES_MAX {
            let (depth, most) = (self.depth, UNDER_WAY_BYTES_MAX);
            return refuse(format!(
                "{depth} requests of {io} bytes under way at once: together they may have {most} \
                 bytes at most, so choose a smaller depth or smaller requests"
            ));
        }
        if self.time < TIME_MIN {
            return refuse(format!("{:?} is too short to measure anything", self.time));
        }
        if let Pace::PerSecond(rate) = self.pace
            && !(rate.is_finite() && rate > 0.0)
        {
            return refuse(format!("a rate of {rate} requests a second"));
        }
        let size = geometry.size_bytes();
        let range = self.range_bytes.unwrap_or(size);
        if range > size || range < io {
            return refuse(format!(
                "requests of {io} bytes in a range of {range} on a disk of {size} bytes"
            ));
        }
        Ok(range / io)
    }
}
