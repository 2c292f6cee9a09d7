//! Limits of one connection.

use core::time::Duration;

/// Limits on the memory and time that a peer can make a target connection spend.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct ConnectionLimits {
    /// SCSI commands known at once, including immediate ones. The session's command window limits
    /// the non-immediate commands; a command beyond both limits is answered TASK SET FULL.
    pub tasks_max: usize,
    /// Immediate requests known at once, counted separately for task management and for all others;
    /// one more is rejected. RFC 7143 §4.2.2.1 requires at least one of each. Also the maximum
    /// number of pending logouts of other connections.
    pub immediate_commands_max: usize,
    /// Terminated tasks whose Target Transfer Tags are kept until the initiator acknowledges their
    /// end or has sent their data: as many as may be open, from the session's command window and
    /// immediate commands.
    pub retired_tasks_max: usize,
    /// Requests that the session has neither accepted nor refused; at this number [`can_receive`]
    /// returns false.
    ///
    /// [`can_receive`]: super::TargetConnection::can_receive
    pub undecided_requests_max: usize,
    /// Total bytes of ping data and text in requests that wait for delivery. In a discovery session
    /// at most `text_bytes_max`.
    pub control_bytes_max: usize,
    /// Bytes of a text split over several Login or Text Requests. RFC 7143 §6.1 requires at least
    /// 8192.
    pub text_bytes_max: usize,
    /// Maximum data-out of one command that is received into a buffer.
    pub data_out_bytes_max: u32,
    /// Memory of PDUs that are kept because the initiator may ask for them again; the oldest are
    /// dropped, and a SNACK for them is rejected. At ErrorRecoveryLevel 0 nothing is kept.
    pub resend_bytes_max: usize,
    /// Time from the first byte to the end of the login.
    pub login_seconds: u32,
    /// Silence after which the initiator is pinged with a NOP-In.
    pub ping_after_seconds: u32,
    /// Time after an unanswered ping until the connection is considered dead.
    pub ping_timeout_seconds: u32,
    /// Maximum idle time of a discovery session, which is not pinged: RFC 7143 §7.4.3.
    pub discovery_idle_seconds: u32,
    /// Time for which the initiator may owe data-out without any of it arriving, before the
    /// connection is closed. The total time of a task is limited by
    /// [`DATA_OUT_BYTES_PER_SECOND_MIN`].
    ///
    /// [`DATA_OUT_BYTES_PER_SECOND_MIN`]: super::DATA_OUT_BYTES_PER_SECOND_MIN
    pub data_out_seconds: u32,
    /// Time for which a Data-In PDU may wait for the next part of its data, while others wait
    /// behind it. The PDU is then filled with zeroes, and its task fails.
    pub data_in_part_seconds: u32,
    /// Time for which an aborted task waits for data requested before. An initiator that follows
    /// RFC 7143 §4.2.3.3 sends it at once, but some never do.
    pub quiesce_seconds: u32,
}

impl Default for ConnectionLimits {
    fn default() -> Self {
        Self {
            tasks_max: 512,
            immediate_commands_max: 16,
            retired_tasks_max: 128 + 16,
            undecided_requests_max: 64,
            control_bytes_max: 1 << 20,
            text_bytes_max: 16 << 10,
            data_out_bytes_max: 64 << 20,
            resend_bytes_max: 4 << 20,
            login_seconds: 15,
            ping_after_seconds: 30,
            ping_timeout_seconds: 30,
            discovery_idle_seconds: 120,
            data_out_seconds: 30,
            data_in_part_seconds: 15,
            quiesce_seconds: 3,
        }
    }
}

pub(super) const fn seconds(count: u32) -> Duration {
    Duration::from_secs(count as u64)
}
