//! What one connection may cost.

use core::time::Duration;

/// Bounds for everything a peer can make a connection in the target role hold or wait for.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct ConnectionLimits {
    /// SCSI commands known at once, immediate ones included. The session's command window bounds
    /// the others; what is beyond both is answered TASK SET FULL.
    pub tasks_max: usize,
    /// Immediate requests known at once, of task management and of all others each; one more is
    /// rejected. RFC 7143 §4.2.2.1 asks for one of each at least. So many logouts of other
    /// connections may be under way, too.
    pub immediate_commands_max: usize,
    /// Terminated tasks whose Target Transfer Tags are kept until the initiator acknowledges their
    /// end or has sent their data: as many as it may have under way, the session's command window
    /// and immediate ones.
    pub retired_tasks_max: usize,
    /// Requests the session has not judged yet; beyond it [`can_receive`] says no.
    ///
    /// [`can_receive`]: super::TargetConnection::can_receive
    pub unjudged_requests_max: usize,
    /// Ping data and text of requests that wait for their turn, together. In a discovery session
    /// at most `text_bytes_max`.
    pub control_bytes_max: usize,
    /// A text that comes in several Login or Text Requests. RFC 7143 §6.1 asks for 8192 at least.
    pub text_bytes_max: usize,
    /// Data-out of one command that is ever received into a buffer.
    pub data_out_bytes_max: u32,
    /// From the first byte of time to the end of the login.
    pub login_seconds: u32,
    /// Silence after which the initiator is pinged with a NOP-In.
    pub ping_after_seconds: u32,
    /// How long the answer to a ping may take before the connection counts as dead.
    pub ping_timeout_seconds: u32,
    /// How long a discovery session may be silent; it is not pinged, RFC 7143 §7.4.3.
    pub discovery_idle_seconds: u32,
    /// How long the initiator may owe data-out without any of it coming. How long a task may take
    /// in all: [`DATA_OUT_BYTES_PER_SECOND_MIN`]. Then the connection is closed.
    ///
    /// [`DATA_OUT_BYTES_PER_SECOND_MIN`]: super::DATA_OUT_BYTES_PER_SECOND_MIN
    pub data_out_seconds: u32,
    /// How long an aborted task waits for the data that was asked for before. An initiator that
    /// follows RFC 7143 §4.2.3.3 sends it at once, but some never do.
    pub quiesce_seconds: u32,
}

impl Default for ConnectionLimits {
    fn default() -> Self {
        Self {
            tasks_max: 512,
            immediate_commands_max: 16,
            retired_tasks_max: 128 + 16,
            unjudged_requests_max: 64,
            control_bytes_max: 1 << 20,
            text_bytes_max: 16 << 10,
            data_out_bytes_max: 64 << 20,
            login_seconds: 15,
            ping_after_seconds: 30,
            ping_timeout_seconds: 30,
            discovery_idle_seconds: 120,
            data_out_seconds: 30,
            quiesce_seconds: 3,
        }
    }
}

pub(super) const fn seconds(count: u32) -> Duration {
    Duration::from_secs(count as u64)
}
