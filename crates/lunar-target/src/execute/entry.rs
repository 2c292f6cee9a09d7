//! The moment at which a command begins: its data is there, its place in the task set is granted,
//! the blocks it wants are free. SAM-5 §8 calls it enabled from here on.
//!
//! Between the judgement that let it pass and this moment a peer may have taken its time to send
//! data. What has changed meanwhile counts, once: SPC-4 §5.12.1 has reservations judged before a
//! command is enabled, and not after. Nearly always nothing has changed, which one look at the
//! revision of the unit's state shows.

use super::{Run, Step};
use crate::long_operation::Generation;
use crate::session::Session;
use lunar_scsi::plan::Plan;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

/// As long as the longest CDB of a command that is known.
const CDB_BYTES: usize = 16;

/// A command as it was judged, and what it takes to judge it again.
#[derive(Clone, Copy, Debug)]
pub(crate) struct JudgedCommand {
    /// The unit's [`generation`](crate::unit::LogicalUnit::generation) from before.
    pub(crate) generation: Generation,
    cdb: [u8; CDB_BYTES],
}

/// A command of a session that has not begun, or has.
pub(super) struct Entry<'a> {
    session: &'a Session,
    cdb: &'a [u8],
    plan: &'a Plan,
    /// False again while it waits for room.
    pub(super) has_begun: AtomicBool,
}

impl JudgedCommand {
    /// Of a CDB, of which nothing matters behind these bytes.
    pub(crate) fn new(generation: Generation, cdb: [u8; CDB_BYTES]) -> Self {
        Self { generation, cdb }
    }
}

impl<'a> Entry<'a> {
    pub(super) fn new(session: &'a Session, judged: &'a JudgedCommand, plan: &'a Plan) -> Self {
        Self { session, cdb: &judged.cdb, plan, has_begun: AtomicBool::new(false) }
    }
}

impl Run<'_> {
    /// Has the command begin, unless it has begun or may not run any more.
    pub(super) fn enter(&self) -> Step<()> {
        let Some(entry) = &self.entry else { return Ok(()) };
        if entry.has_begun.swap(true, Relaxed) || self.unit.revision() == self.generation.revision {
            return Ok(());
        }
        let Entry { session, cdb, plan, .. } = entry;
        let view = session.view();
        let context = session.context(&view);
        let scsi = self.unit.scsi();
        Ok(scsi.check_again(session.nexus, &context, cdb, plan.ranges())?)
    }
}
