//! Traces: the PDUs of a session as a pcapng stream.

mod digests;
mod frames;
mod pcapng;
pub mod reader;

use bytes::Bytes;
use frames::TcpSegments;
use hyper::body::{Body, Frame};
use lunar_target::{SessionInfo, TappedPdu, Trace};
use pcapng::Counts;
use std::convert::Infallible;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::{Duration, SystemTime, UNIX_EPOCH};
use tokio::time::{Interval, MissedTickBehavior, Sleep};

/// Default duration of a trace.
pub const TRACE_SECONDS: u32 = 10;
/// Maximum duration of a trace.
pub const TRACE_SECONDS_MAX: u32 = 600;
/// Default size limit of a trace.
pub const TRACE_SIZE: &str = "1G";
/// Default size limit of a trace in bytes.
pub const TRACE_BYTES: u64 = 1 << 30;
/// Minimum length that is kept of a PDU: the header.
pub const SNAP_BYTES_MIN: u32 = 48;
/// Maximum length of a PDU: headers, header digest, 16 MiB of data, data digest.
pub const SNAP_BYTES_MAX: u32 = (16 << 20) + 2048;
/// Media type of a trace; pcapng has none of its own.
pub const CONTENT_TYPE: &str = "application/vnd.tcpdump.pcap";

/// Interval of statistics blocks, sent even without PDUs, so that a closed connection is noticed.
const COUNTS_INTERVAL: Duration = Duration::from_secs(1);
/// Size at which a piece of the response is complete.
const PIECE_BYTES: usize = 256 << 10;

/// A trace as the body of a response.
#[derive(Debug)]
pub(crate) struct TraceBody {
    trace: Trace,
    /// Origin of the request, for the log.
    requested_by: String,
    started_nanos: u64,
    written: u64,
    /// Data to be sent.
    out: Vec<u8>,
    /// Remaining size.
    bytes_left: u64,
    time: Pin<Box<Sleep>>,
    statistics_interval: Interval,
    is_finished: bool,
}

impl TraceBody {
    /// Starts sending `trace`, for `time` or until `bytes_max` bytes. Must be called within a
    /// runtime.
    pub(crate) fn new(trace: Trace, requested_by: String, time: Duration, bytes_max: u64) -> Self {
        let started_nanos = nanoseconds_since_1970(trace.began());
        let mut out = Vec::new();
        let application = concat!("lunar ", env!("CARGO_PKG_VERSION"));
        pcapng::section_header(&mut out, std::env::consts::ARCH, application, COMMENT);
        pcapng::interface(&mut out, &description(&trace.session));
        let mut statistics_interval = tokio::time::interval(COUNTS_INTERVAL);
        statistics_interval.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let time = Box::pin(tokio::time::sleep(time));
        Self {
            trace,
            requested_by,
            started_nanos,
            written: 0,
            out,
            bytes_left: bytes_max,
            time,
            statistics_interval,
            is_finished: false,
        }
    }

    fn write(&mut self, pdu: &TappedPdu) {
        let since = u64::try_from(pdu.at.as_nanos()).unwrap_or(u64::MAX);
        let at = self.started_nanos.saturating_add(since);
        if pdu.first {
            let example = digests::example(pdu.digests);
            TcpSegments::synthetic(pdu, &example, digests::COMMENT).write(&mut self.out, at);
        }
        TcpSegments::new(pdu).write(&mut self.out, at);
        self.written += 1;
    }

    fn write_counts(&mut self) {
        let dropped = self.trace.dropped();
        let counts = Counts {
            began: self.started_nanos,
            now: nanoseconds_since_1970(SystemTime::now()),
            received: self.written + dropped,
            dropped,
        };
        pcapng::statistics(&mut self.out, counts);
    }
}

/// Comment for the reader of the file.
const COMMENT: &str = "iSCSI PDUs of one session in full feature phase, with digests and padding, \
                       as they were received or queued to be sent. The packets around them are \
                       synthetic: addresses, ports and byte order are those of the connection; \
                       segments and initial sequence numbers are not. The interface statistics \
                       count PDUs.";

fn description(session: &SessionInfo) -> String {
    let target = session.target_name.as_deref().unwrap_or("discovery");
    format!("session {}: {} at {target}", session.tsih, session.initiator_name)
}

fn nanoseconds_since_1970(time: SystemTime) -> u64 {
    let since = time.duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_nanos()).unwrap_or(u64::MAX)
}

impl Body for TraceBody {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        let body = &mut *self;
        if body.is_finished {
            return Poll::Ready(None);
        }
        if body.time.as_mut().poll(context).is_ready() {
            body.trace.stop();
        }
        while body.out.len() < PIECE_BYTES && !body.is_finished {
            match body.trace.poll_next(context) {
                Poll::Ready(Some(pdu)) => {
                    body.write(&pdu);
                    body.is_finished = body.out.len() as u64 >= body.bytes_left;
                }
                Poll::Ready(None) => body.is_finished = true,
                Poll::Pending => break,
            }
        }
        if body.statistics_interval.poll_tick(context).is_ready() || body.is_finished {
            body.write_counts();
        }
        if body.out.is_empty() {
            return Poll::Pending;
        }
        let piece = std::mem::take(&mut body.out);
        body.bytes_left = body.bytes_left.saturating_sub(piece.len() as u64);
        Poll::Ready(Some(Ok(Frame::data(piece.into()))))
    }
}

impl Drop for TraceBody {
    fn drop(&mut self) {
        let (by, tsih) = (&self.requested_by, self.trace.session.tsih);
        let (pdus, dropped) = (self.written, self.trace.dropped());
        tracing::info!(target: "audit", by, tsih, pdus, dropped, "trace ended");
    }
}

#[cfg(test)]
mod tests;
