//! The moment at which a command begins: its data has arrived, its place in the task set is
//! granted, and its blocks are free. SAM-5 §8 calls the command enabled from here on.
//!
//! Between the check that let the command pass and this moment the peer may have taken its time
//! to send data. Changes in between count, once: SPC-4 §5.12.1 has reservations checked before a
//! command is enabled, and not after. Nearly always nothing has changed, which one look at the
//! revision of the unit's state shows.

use super::{Run, Step};
use crate::long_operation::Generation;
use crate::session::{Session, SessionKey};
use lunar_iscsi::connection::target::HeaderCdb;
use lunar_net::OwnerId;
use lunar_scsi::plan::Plan;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

/// A checked command, with the data to check it again.
#[derive(Clone, Debug)]
pub(crate) struct CheckedCommand {
    /// The [`generation`](crate::disk_unit::DiskUnit::generation) from before the check.
    pub(crate) generation: Generation,
    /// The whole CDB, however long it is.
    cdb: HeaderCdb,
}

/// A command of a session that may or may not have begun.
pub(super) struct Entry<'a> {
    session: &'a Session,
    cdb: &'a [u8],
    plan: &'a Plan,
    /// Reset to false while the command waits for room.
    pub(super) has_begun: AtomicBool,
}

impl CheckedCommand {
    /// A command with this CDB.
    pub(crate) fn new(generation: Generation, cdb: HeaderCdb) -> Self {
        Self { generation, cdb }
    }
}

impl<'a> Entry<'a> {
    pub(super) fn new(session: &'a Session, checked: &'a CheckedCommand, plan: &'a Plan) -> Self {
        Self { session, cdb: &checked.cdb, plan, has_begun: AtomicBool::new(false) }
    }

    /// Ports of the nexus that sent the command.
    pub(super) fn nexus(&self) -> &SessionKey {
        &self.session.key
    }

    /// Owner for whom the command takes a core's time.
    pub(super) fn time_owner(&self) -> OwnerId {
        self.session.time_owner
    }
}

impl Run<'_> {
    /// Marks the command as begun, unless it has begun already or may not run any more.
    pub(super) fn enter(&self) -> Step<()> {
        let Some(entry) = &self.entry else { return Ok(()) };
        if entry.has_begun.swap(true, Relaxed) || self.unit.is_unchanged_since(self.generation) {
            return Ok(());
        }
        let Entry { session, cdb, plan, .. } = entry;
        let view = session.view();
        let context = session.context(&view);
        let scsi = self.unit.scsi();
        Ok(scsi.check_again(session.nexus, &context, cdb, plan.ranges())?)
    }
}
