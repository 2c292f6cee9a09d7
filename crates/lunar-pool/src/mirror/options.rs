//! Options of a mirror.

use std::num::NonZeroU64;
use std::time::Duration;

/// Default time for which a member may be later than another one.
const MEMBER_WAIT: Duration = Duration::from_secs(2);

/// Default pause before the recovery of a failed member.
const RECOVERY_PAUSE: Duration = Duration::from_secs(1);

/// Default rate of copies while users have operations.
const RESYNC_BUSY_BYTES_PER_SECOND: u64 = 32 << 20;

/// Default time after which a spare device replaces a member that is left out.
const SPARE_WAIT: Duration = Duration::from_secs(5 * 60);

/// Default time for which a mark stays. Databases, and file systems that commit every 5 s, write to
/// a region again within this time if they do at all.
const MARK_TIME: Duration = Duration::from_secs(60);

/// Options of an open mirror.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct MirrorOptions {
    /// Time limit for a member, measured from the answer of another member. A read is sent to
    /// another member after this time. A member that exceeds the limit is left out; when its
    /// pending changes have ended, the regions that it missed are copied to it. While no member
    /// answers, there is no limit.
    ///
    /// A member that answers later than another one by a quarter of this time has delayed the
    /// operation: the member is left out when it has delayed operations for more than 5 of 10
    /// seconds. The target of a copy has only this quarter as its limit. A member with much pending
    /// work has more time.
    pub member_wait: Duration,
    /// Pause before a member that has failed is recovered; it doubles with each attempt, up to a
    /// minute, until the member was current for a minute.
    pub recovery_pause: Duration,
    /// Time for which a member may be left out before a spare device replaces it. While data is
    /// copied to the member, it is not replaced.
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
