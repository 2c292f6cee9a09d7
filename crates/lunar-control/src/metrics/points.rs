//! The samples of one metric.

use lunar_block::DurationCounts;
use prometheus_client::encoding::{MetricEncoder, NoLabelSet};
use std::fmt;

const NANOS_PER_SECOND: f64 = 1e9;

/// Encodes the samples of one metric, each with its label values. A label with an empty value is
/// left out.
pub(super) struct Points<'a> {
    encoder: MetricEncoder<'a>,
    labels: &'static [&'static str],
}

impl<'a> Points<'a> {
    pub(super) fn new(encoder: MetricEncoder<'a>, labels: &'static [&'static str]) -> Self {
        Self { encoder, labels }
    }

    pub(super) fn counter(&mut self, values: &[&str], value: u64) -> fmt::Result {
        let set = self.set(values);
        self.encoder.encode_family(&set)?.encode_counter::<NoLabelSet, _, u64>(&value, None)
    }

    pub(super) fn gauge(&mut self, values: &[&str], value: u64) -> fmt::Result {
        let set = self.set(values);
        self.encoder.encode_family(&set)?.encode_gauge(&value)
    }

    pub(super) fn info(&mut self, values: &[&str]) -> fmt::Result {
        let set = self.set(values);
        self.encoder.encode_info(&set)
    }

    pub(super) fn histogram(&mut self, values: &[&str], counts: &DurationCounts) -> fmt::Result {
        let set = self.set(values);
        let seconds = counts.sum_nanos as f64 / NANOS_PER_SECOND;
        self.encoder.encode_family(&set)?.encode_histogram::<NoLabelSet>(
            seconds,
            counts.count(),
            &counts.buckets(),
            None,
        )
    }

    fn set<'v>(&self, values: &[&'v str]) -> Vec<(&'static str, &'v str)> {
        debug_assert_eq!(self.labels.len(), values.len());
        let all = self.labels.iter().copied().zip(values.iter().copied());
        all.filter(|(_, value)| !value.is_empty()).collect()
    }
}
