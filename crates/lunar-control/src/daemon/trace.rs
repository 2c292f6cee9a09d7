//! Traces of sessions.

use super::Daemon;
use crate::Failure;
use crate::trace::{SNAP_BYTES_MAX, SNAP_BYTES_MIN, TRACE_SECONDS_MAX};
use lunar_target::{Trace, TraceError};
use std::fmt;

impl Daemon {
    /// Starts a trace of a session's PDUs, which runs until it is dropped.
    ///
    /// # Errors
    /// Fails if there is no such session, it is being traced already, there are too many traces, or
    /// a length is out of range.
    pub fn trace(
        &self,
        tsih: u16,
        seconds: u32,
        snap_bytes: Option<u32>,
        by: &dyn fmt::Display,
    ) -> Result<Trace, Failure> {
        if self.is_stopping() {
            return Err(Failure::stopping());
        }
        if !(1..=TRACE_SECONDS_MAX).contains(&seconds) {
            let what = format!(
                "the duration of a trace must be 1 to {TRACE_SECONDS_MAX} s, not {seconds}"
            );
            return Err(Failure::usage(what));
        }
        let kept = snap_bytes.unwrap_or(SNAP_BYTES_MAX);
        if !(SNAP_BYTES_MIN..=SNAP_BYTES_MAX).contains(&kept) {
            let limits = format!("{SNAP_BYTES_MIN} to {SNAP_BYTES_MAX}");
            return Err(Failure::usage(format!(
                "the recorded bytes of a PDU must be {limits}, not {kept}"
            )));
        }
        let trace = self.server().trace(tsih, kept as usize).map_err(|why| refused(tsih, why))?;
        let (initiator, target) = (&trace.session.initiator_name, &trace.session.target_name);
        tracing::info!(target: "audit", %by, tsih, initiator, target, seconds, snap_bytes,
            "trace started");
        Ok(trace)
    }

    /// Ends the trace of a session early.
    ///
    /// # Errors
    /// Fails if there is no such session, or it is not being traced.
    pub fn end_trace(&self, tsih: u16, by: &dyn fmt::Display) -> Result<(), Failure> {
        if !self.server().end_trace(tsih) {
            return Err(Failure::not_found(format!("there is no trace of session {tsih}")));
        }
        tracing::info!(target: "audit", %by, tsih, "trace end requested");
        Ok(())
    }
}

fn refused(tsih: u16, why: TraceError) -> Failure {
    match why {
        TraceError::NoSession => Failure::not_found(format!("there is no session {tsih}"))
            .hint("see `lunar ctl sessions` for the current sessions"),
        TraceError::Traced | TraceError::TooMany => {
            Failure::conflict(format!("session {tsih} cannot be traced: {why}"))
                .hint("wait until another trace ends")
        }
    }
}
