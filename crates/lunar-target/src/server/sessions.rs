//! Information about the current sessions, and traces of them.

use super::Server;
use crate::session_info::SessionInfo;
use crate::session_table::SessionTable;
use crate::trace::{Trace, TraceError};

impl Server {
    /// The current sessions, ordered by TSIH. There may be thousands: a caller that needs one of
    /// them, or one after the other, uses [`session`](Self::session) or
    /// [`session_after`](Self::session_after).
    pub fn sessions(&self) -> Vec<SessionInfo> {
        self.table().each().map(|session| session.info()).collect()
    }

    /// The session with this TSIH.
    pub fn session(&self, tsih: u16) -> Option<SessionInfo> {
        let session = self.table().lock().get(tsih);
        session.map(|session| session.info())
    }

    /// The session with the smallest TSIH greater than `tsih`; the first one comes after 0.
    pub fn session_after(&self, tsih: u16) -> Option<SessionInfo> {
        let session = self.table().lock().after(tsih);
        session.map(|session| session.info())
    }

    /// Number of current sessions.
    pub fn session_count(&self) -> usize {
        self.table().lock().count()
    }

    /// Copies the first `snap_bytes` of each PDU of a session from now on.
    ///
    /// # Errors
    /// The session does not exist or is traced already, or there are too many traces.
    pub fn trace(&self, tsih: u16, snap_bytes: usize) -> Result<Trace, TraceError> {
        let session = self.table().lock().get(tsih).ok_or(TraceError::NoSession)?;
        let (slot, limit) = (&session.trace, &self.traces);
        let trace = Trace::begin(slot, limit, self.buffers(), snap_bytes, session.info())?;
        if session.has_ended() {
            session.trace.session_ended(); // in case it ended before the trace began
        }
        Ok(trace)
    }

    /// Ends the trace of a session; returns true if there was one.
    pub fn end_trace(&self, tsih: u16) -> bool {
        let session = self.table().lock().get(tsih);
        session.is_some_and(|session| session.trace.end())
    }

    fn table(&self) -> &SessionTable {
        &self.manager.sessions
    }
}
