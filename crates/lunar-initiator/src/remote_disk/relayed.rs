//! The LUN of a disk as a relay reaches it: over sessions of its own, to the same unit.
//!
//! Acknowledged writes of these sessions count among those of the disk: its next flush covers them,
//! and reports their loss.

use super::RemoteDisk;
use crate::attentions::CacheLossCounts;
use crate::commands::{Capacity, DeviceMode, parse_capacity_16, parse_designators};
use crate::flush_tracker::FlushTracker;
use crate::paths::Paths;
use crate::same_unit::Fingerprint;
use crate::{Error, ErrorKind, Url};
use lunar_block::{BlockRange, DeviceLink, RELAY_PARTS_MAX, RelayMap, RelayPart, RelayStorage};
use lunar_iscsi::connection::initiator::ConnectionOptions;
use lunar_iscsi::session::initiator::LoginNumbers;
use lunar_wire::Lun;
use std::any::Any;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::time::Duration;

/// The LUN of a [`RemoteDisk`] for relays, which open sessions of their own to it.
#[derive(Debug)]
pub struct RelayedLun {
    name: Arc<str>,
    lun: Lun,
    block_bytes: u32,
    paths: Arc<Paths>,
    pub(super) fingerprint: Arc<Fingerprint>,
    pub(super) mode: Arc<Mutex<DeviceMode>>,
    pub(super) unflushed: Arc<FlushTracker>,
    /// This value.
    this: Weak<Self>,
}

/// A relayed write that is about to be sent.
#[derive(Debug)]
pub struct RelayedWriteTicket {
    lun: Arc<RelayedLun>,
    sent_after: CacheLossCounts,
    is_durable: bool,
}

impl RelayedLun {
    pub(super) fn new(
        url: &Url,
        lun: Lun,
        paths: &Arc<Paths>,
        fingerprint: Fingerprint,
        mode: DeviceMode,
    ) -> Arc<Self> {
        Arc::new_cyclic(|this| Self {
            this: Weak::clone(this),
            name: url.to_string().into(),
            lun,
            block_bytes: fingerprint.block_bytes,
            paths: Arc::clone(paths),
            fingerprint: Arc::new(fingerprint),
            mode: Arc::new(Mutex::new(mode)),
            unflushed: Arc::new(FlushTracker::new(paths.reported_losses())),
        })
    }

    /// Returns a handle that does not keep the disk's sessions open.
    pub fn downgrade(&self) -> Weak<Self> {
        Weak::clone(&self.this)
    }

    /// Records that acknowledged writes may be lost: the next flush of the disk reports it.
    pub fn record_loss(&self) {
        self.unflushed.lose();
    }

    /// Name of the disk for messages.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The LUN.
    pub fn lun(&self) -> Lun {
        self.lun
    }

    /// Length of a block in bytes.
    pub fn block_bytes(&self) -> u32 {
        self.block_bytes
    }

    /// Address of the portal that a path of the disk uses now; `None` while no session is up.
    pub fn address(&self) -> Option<SocketAddr> {
        Some(self.paths.pick_now()?.unit.initiator().session_now()?.address())
    }

    /// Time for which a command may last, from the options of the disk; `None`: without limit.
    pub fn command_time(&self) -> Option<Duration> {
        self.paths.pick_now()?.unit.initiator().command_time()
    }

    /// Options of the login of a further session, with these numbers: names and credentials are
    /// those of the disk.
    ///
    /// # Errors
    /// The system provides no random numbers.
    pub fn connection_options(&self, numbers: LoginNumbers) -> Result<ConnectionOptions, Error> {
        let path = self.paths.pick_now().ok_or_else(|| {
            Error::new(ErrorKind::NotSent, format!("{}: no path is up", self.name))
        })?;
        path.unit.initiator().connector().connection_options(0, numbers, None)
    }

    /// Returns whether the unit of a session is the one of the disk, by the body of its device
    /// identification page and the data of READ CAPACITY (16). A unit without designators is
    /// not recognized.
    pub fn is_same_unit(&self, designators: &[u8], capacity: &[u8]) -> bool {
        let Ok(Capacity { block_bytes, block_count, .. }) = parse_capacity_16(capacity) else {
            return false;
        };
        let now =
            Fingerprint::by_designators(parse_designators(designators), block_bytes, block_count);
        let known = &self.fingerprint;
        now.has_designators() && known.check(&now, known.block_count, &self.name).is_ok()
    }

    /// Returns a ticket for a write that is to be sent; `None` if a durable write needs a flush,
    /// because the unit has a write cache and does not support FUA.
    pub fn begin_write(self: &Arc<Self>, is_durable: bool) -> Option<RelayedWriteTicket> {
        let mode = self.mode();
        if is_durable && !mode.fua && mode.write_cache {
            return None;
        }
        let (lun, sent_after) = (Arc::clone(self), self.paths.reported_losses());
        Some(RelayedWriteTicket { lun, sent_after, is_durable })
    }

    fn mode(&self) -> DeviceMode {
        *self.mode.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl RelayedWriteTicket {
    /// True if the WRITE is to be sent with FUA.
    pub fn has_fua(&self) -> bool {
        self.is_durable && self.lun.mode().fua
    }

    /// Records that the write was acknowledged: unless it is durable, it is covered by the next
    /// flush of the disk.
    pub fn acknowledged(self) {
        if !self.is_durable && self.lun.mode().write_cache {
            self.lun.unflushed.acknowledged(self.sent_after, self.lun.paths.reported_losses());
        }
    }
}

impl RelayStorage for RelayedLun {
    fn as_any(&self) -> &dyn Any {
        self
    }
}

impl RelayMap for RemoteDisk {
    /// Blocks with writes of unknown outcome are used by the disk itself, which waits for these;
    /// so is a disk with an owner, whose registrations belong to its own sessions.
    fn add_parts(&self, range: BlockRange, _is_write: bool, parts: &mut Vec<RelayPart>) -> bool {
        let is_free = self.check_range(range).is_ok()
            && !self.ownership.has_owner()
            && !self.uncertain_writes.overlaps(range)
            && self.paths.link() == DeviceLink::Connected;
        let pieces = Self::pieces(range, self.transfer_blocks).take(RELAY_PARTS_MAX + 1);
        let part = |range| {
            let storage = Arc::clone(&self.relayed) as Arc<_>;
            RelayPart { storage, range, held: None }
        };
        if is_free {
            parts.extend(pieces.map(part));
        }
        is_free && parts.len() <= RELAY_PARTS_MAX
    }
}
