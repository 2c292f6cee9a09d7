//! Options of a mirror.

use std::num::NonZeroU64;
use std::time::Duration;

/// Default time for which a member is waited for behind another.
const MEMBER_WAIT: Duration = Duration::from_secs(2);

/// Default pause before the recovery of a failed member.
const RECOVERY_PAUSE: Duration = Duration::from_secs(1);

/// Default rate of copies while users have operations.
const RESYNC_BUSY_BYTES_PER_SECOND: u64 = 32 << 20;

/// Default time after which a spare device replaces a member that is out.
const SPARE_WAIT: Duration = Duration::from_secs(5 * 60);

/// Default time for which a mark stays. Most programs write to a region again within it, if they do
/// at all: databases, and file systems that commit every 5 s.
const MARK_TIME: Duration = Duration::from_secs(60);

/// Options of an open mirror.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct MirrorOptions {
    /// Time for which a member is waited for after another one has answered, and after which a read
    /// is sent to another member. A later member is left out; when its changes have ended, the
    /// regions that it missed are copied to it. While no member answers, all are waited for.
    ///
    /// A member that is later by a quarter of this time has held up the others: it is left out when
    /// it has done so for more than 5 of 10 seconds. A member that data is copied to is waited for
    /// no longer than this quarter. With much work that has not ended, a member has more time.
    pub member_wait: Duration,
    /// Pause before a member that has failed is recovered; it doubles with each attempt, up to a
    /// minute, until the member was current for a minute.
    pub recovery_pause: Duration,
    /// Time for which a member may be out before a spare device replaces it. While data is copied
    /// to the member, it is not replaced.
    pub spare_wait: Duration,
    /// Time for which a region stays marked on the members after its last change. Another change
    /// within this time needs no page with marks, and a crash within it makes the next opening copy
    /// the region.
    pub mark_time: Duration,
    /// Maximum rate of a copy while users have no operations; `None`: as fast as the members.
    pub resync_bytes_per_second_max: Option<NonZeroU64>,
    /// Maximum rate of a copy while users have operations; `None`: as fast as the members.
    pub resync_busy_bytes_per_second_max: Option<NonZeroU64>,
}

impl Default for MirrorOptions {
    fn default() -> Self {
        Self {
            member_wait: MEMBER_WAIT,
            recovery_pause: RECOVERY_PAUSE,
            spare_wait: SPARE_WAIT,
            mark_time: MARK_TIME,
            resync_bytes_per_second_max: None,
            resync_busy_bytes_per_second_max: NonZeroU64::new(RESYNC_BUSY_BYTES_PER_SECOND),
        }
    }
}
