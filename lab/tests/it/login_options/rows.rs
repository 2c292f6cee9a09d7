//! The table: configurations of the targets, our offers, and the expected results.

use crate::login_options::peers::Setup;
use crate::login_options::{NO, RATHER, RATHER_NOT, YES};
use crate::targets::TargetKind;
use lunar_iscsi::text::Digest;

/// Configuration of both sides.
#[derive(Clone, Copy, Debug)]
pub struct Row {
    /// Keys of the target; other keys have the peer's own value.
    keys: &'static [(&'static str, &'static str)],
    pub header_digest: &'static [Digest],
    pub data_digest: &'static [Digest],
    /// True for mutual CHAP, false for one-way CHAP; `None`: no CHAP.
    pub chap: Option<bool>,
}

const PLAIN: Row = Row { keys: &[], header_digest: NO, data_digest: NO, chap: None };

const fn keys(keys: &'static [(&'static str, &'static str)]) -> Row {
    Row { keys, ..PLAIN }
}

const fn digests(header_digest: &'static [Digest], data_digest: &'static [Digest]) -> Row {
    Row { header_digest, data_digest, ..PLAIN }
}

const IMMEDIATE: (&str, &str) = ("ImmediateData", "Yes");
const NOT_IMMEDIATE: (&str, &str) = ("ImmediateData", "No");
const R2T: (&str, &str) = ("InitialR2T", "Yes");
const NO_R2T: (&str, &str) = ("InitialR2T", "No");
const SEGMENT: (&str, &str) = ("MaxRecvDataSegmentLength", "1024");
const BURST: (&str, &str) = ("MaxBurstLength", "4096");
const FIRST: (&str, &str) = ("FirstBurstLength", "2048");

/// The table.
pub const ROWS: &[Row] = &[
    PLAIN,
    // Unsolicited and immediate data.
    keys(&[IMMEDIATE, R2T]),
    keys(&[IMMEDIATE, NO_R2T]),
    keys(&[NOT_IMMEDIATE, R2T]),
    keys(&[NOT_IMMEDIATE, NO_R2T]),
    // Lengths, alone and together with the keys above.
    keys(&[("MaxRecvDataSegmentLength", "512")]),
    keys(&[("MaxRecvDataSegmentLength", "131072")]),
    keys(&[FIRST, BURST]),
    keys(&[("FirstBurstLength", "512"), ("MaxBurstLength", "512")]),
    keys(&[("FirstBurstLength", "65536"), ("MaxBurstLength", "65536")]),
    keys(&[SEGMENT, FIRST, BURST, IMMEDIATE, NO_R2T]),
    keys(&[SEGMENT, FIRST, BURST, NOT_IMMEDIATE, NO_R2T]),
    keys(&[SEGMENT, FIRST, BURST, IMMEDIATE, R2T]),
    keys(&[SEGMENT, FIRST, BURST, NOT_IMMEDIATE, R2T]),
    keys(&[("MaxOutstandingR2T", "1"), BURST, FIRST]),
    keys(&[("MaxOutstandingR2T", "4"), BURST, FIRST, NOT_IMMEDIATE]),
    // Digests that are required, preferred, or left to the target.
    digests(YES, NO),
    digests(NO, YES),
    digests(YES, YES),
    digests(RATHER, RATHER),
    digests(RATHER_NOT, RATHER_NOT),
    digests(RATHER, NO),
    // Both digests with the shortest PDUs, which have the most padding and digests.
    Row { header_digest: YES, data_digest: YES, ..keys(&[SEGMENT, FIRST, BURST, NO_R2T]) },
    Row { header_digest: YES, data_digest: YES, ..keys(&[SEGMENT, NOT_IMMEDIATE, R2T]) },
    // CHAP, alone and with digests.
    Row { chap: Some(false), ..PLAIN },
    Row { chap: Some(true), ..PLAIN },
    Row { chap: Some(true), ..digests(YES, YES) },
    Row { chap: Some(false), ..keys(&[SEGMENT, FIRST, BURST, NOT_IMMEDIATE, NO_R2T]) },
];

/// Expected results of the negotiation.
#[derive(Clone, Copy, Debug)]
pub struct ExpectedParameters {
    pub immediate_data: bool,
    pub initial_r2t: bool,
    pub max_burst_bytes: u32,
    pub first_burst_bytes: u32,
    pub max_outstanding_r2t: u16,
    pub time_to_wait_seconds: u16,
    pub send_data_segment_bytes_max: u32,
    pub header_digest: bool,
    pub data_digest: bool,
}

impl Row {
    fn key(&self, key: &str) -> Option<&'static str> {
        self.keys.iter().find(|(name, _)| *name == key).map(|(_, value)| *value)
    }

    fn number(&self, key: &str) -> Option<u32> {
        self.key(key).and_then(|value| value.parse().ok())
    }

    /// True if this peer can be configured so.
    pub fn fits(&self, who: TargetKind) -> bool {
        // istgt 0.4 accepts no other value of InitialR2T.
        who != TargetKind::Istgt || self.key("InitialR2T") != Some("No")
    }

    pub fn setup(&self, who: TargetKind) -> Setup {
        let mut keys: Vec<_> = self.keys.to_vec();
        // tgt would answer Yes.
        if who == TargetKind::Tgt && self.key("InitialR2T").is_none() {
            keys.push(NO_R2T);
        }
        let mutual = self.chap == Some(true);
        Setup { keys, chap: self.chap.is_some(), mutual, discovery_chap: false }
    }

    pub fn expects(&self, who: TargetKind) -> ExpectedParameters {
        // Default values of each peer, and proposals of our initiator.
        let (segment, burst, first, r2ts) = match who {
            TargetKind::Own => (262_144, 1 << 20, 262_144, 8),
            TargetKind::Tgt => (8192, 262_144, 65_536, 1),
            TargetKind::Istgt => (65_536, 262_144, 65_536, 8),
        };
        // istgt 0.4 never declares less, whatever its configuration.
        let segment_min = if who == TargetKind::Istgt { 8192 } else { 512 };
        let crc = |offered: &[Digest]| match who {
            // The first digest of the initiator's list that the target supports.
            TargetKind::Own | TargetKind::Istgt => offered[0] == Digest::Crc32c,
            TargetKind::Tgt => offered.contains(&Digest::Crc32c),
        };
        let max_burst_bytes = self.number("MaxBurstLength").unwrap_or(burst);
        let first = self.number("FirstBurstLength").unwrap_or(first);
        ExpectedParameters {
            immediate_data: self.key("ImmediateData") != Some("No"),
            initial_r2t: match who {
                TargetKind::Istgt => true,
                _ => self.key("InitialR2T") == Some("Yes"),
            },
            max_burst_bytes,
            first_burst_bytes: first.min(max_burst_bytes),
            max_outstanding_r2t: self
                .number("MaxOutstandingR2T")
                .map_or(r2ts, |number| number as u16),
            // The target decides the time.
            time_to_wait_seconds: if who == TargetKind::Istgt { 0 } else { 2 },
            send_data_segment_bytes_max: self
                .number("MaxRecvDataSegmentLength")
                .map_or(segment, |number| number.max(segment_min)),
            header_digest: crc(self.header_digest),
            data_digest: crc(self.data_digest),
        }
    }
}
