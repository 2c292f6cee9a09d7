//! Distribution of the times that requests took.

use hdrhistogram::Histogram;
use std::time::Duration;

/// Maximum time that is distinguished; longer ones count as this.
const LONGEST: Duration = Duration::from_secs(3600);
/// Decimal digits to which values are kept: an error of 1 %.
const DIGITS: u8 = 2;

/// A distribution of times.
#[derive(Clone, Debug)]
pub struct Latency {
    /// `None` if the histogram could not be created; nothing is recorded then.
    times: Option<Histogram<u64>>,
}

impl Default for Latency {
    fn default() -> Self {
        let longest = LONGEST.as_nanos() as u64;
        Self { times: Histogram::new_with_bounds(1, longest, DIGITS).ok() }
    }
}

impl Latency {
    /// Records the time of one request.
    pub fn record(&mut self, time: Duration) {
        if let Some(times) = &mut self.times {
            times.saturating_record(u64::try_from(time.as_nanos()).unwrap_or(u64::MAX).max(1));
        }
    }

    /// Adds all times of `other`.
    pub fn add(&mut self, other: &Self) {
        if let (Some(times), Some(more)) = (&mut self.times, &other.times) {
            // Both have the same bounds.
            let _ = times.add(more);
        }
    }

    /// Number of recorded times.
    pub fn count(&self) -> u64 {
        self.times.as_ref().map_or(0, Histogram::len)
    }

    /// Time that `percent` of a hundred requests did not exceed; zero if there were none.
    pub fn percentile(&self, percent: f64) -> Duration {
        let times = self.times.as_ref().filter(|times| !times.is_empty());
        Duration::from_nanos(times.map_or(0, |times| times.value_at_percentile(percent)))
    }

    /// Returns the distribution: parts of all requests, from all down to a few, with the time that
    /// each part exceeded; eight points for each power of ten. The last part is at least two
    /// requests.
    pub fn curve(&self) -> Vec<(f64, Duration)> {
        let all = self.count() as f64;
        let rests = (0..).map(|step| 10_f64.powf(-f64::from(step) / 8.0));
        let rests = rests.take_while(|rest| rest * all >= 2.0);
        rests.map(|rest| (rest, self.percentile(100.0 * (1.0 - rest)))).collect()
    }

    /// Maximum time.
    pub fn max(&self) -> Duration {
        Duration::from_nanos(self.times.as_ref().map_or(0, Histogram::max))
    }

    /// Mean time.
    pub fn mean(&self) -> Duration {
        Duration::from_nanos(self.times.as_ref().map_or(0.0, Histogram::mean) as u64)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal: percentiles are correct to one part in a hundred, also after adding distributions, and
    /// an empty one has zeroes.
    #[test]
    fn percentiles() {
        let (mut low, mut high) = (Latency::default(), Latency::default());
        assert_eq!(
            (low.percentile(99.0), low.max(), low.count()),
            (Duration::ZERO, Duration::ZERO, 0)
        );
        for micros in 1..=900 {
            low.record(Duration::from_micros(micros));
        }
        for micros in 901..=1000 {
            high.record(Duration::from_micros(micros));
        }
        low.add(&high);
        assert_eq!(low.count(), 1000);
        for percent in [1.0, 50.0, 99.0, 99.9] {
            let wanted = percent * 10.0;
            let reported = low.percentile(percent).as_nanos() as f64 / 1000.0;
            assert!(
                (wanted..wanted * 1.02 + 1.0).contains(&reported),
                "{percent} %: {reported} µs"
            );
        }
        let curve = low.curve();
        assert_eq!(curve.len(), 8 * 2 + 6, "down to 2 of 1000");
        assert!(curve.is_sorted_by(|(rest, time), (less, longer)| rest > less && time <= longer));
        assert!(curve[0].1 < Duration::from_micros(3) && Latency::default().curve().is_empty());
        low.record(Duration::from_secs(100_000));
        assert!(low.max() >= LONGEST * 99 / 100);
    }
}
