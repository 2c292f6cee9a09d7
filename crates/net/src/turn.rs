//! How much a connection does before the others of its core get their turn.

use crate::outbox::Outbox;

/// So much is answered in one turn, and sent: what is begun before is finished.
pub const TURN_BYTES: usize = 1 << 20;

/// So many PDUs are handled in one turn, and about as many completions taken, unless the role says
/// otherwise. What they come to leaves together, and the peer cannot begin before: with few, both
/// work at the same time, and what is touched stays in the cache. With 8 instead of 64 a target
/// answered a quarter more random reads of 4 KiB at depth 32.
pub const TURN_PDUS: usize = 8;

/// What a connection has done in its turn.
#[derive(Debug)]
pub(crate) struct Turn {
    pdus: usize,
    pdus_max: usize,
    outbox_bytes: usize,
}

impl Turn {
    /// Begins one.
    pub(crate) fn new(pdus_max: usize, out: &Outbox) -> Self {
        Self { pdus: 0, pdus_max, outbox_bytes: out.bytes() }
    }

    /// A PDU is about to be handled.
    pub(crate) fn count(&mut self) {
        self.pdus += 1;
    }

    /// No further PDU is to be begun.
    pub(crate) fn is_over(&self, out: &Outbox) -> bool {
        let answered = out.bytes().saturating_sub(self.outbox_bytes);
        self.pdus >= self.pdus_max || answered >= TURN_BYTES
    }
}
