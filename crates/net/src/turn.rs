//! How much a connection does before the others of its core get their turn.

use crate::outbox::Outbox;

/// So much is answered in one turn, and sent: what is begun before is finished.
pub const TURN_BYTES: usize = 1 << 20;

/// So many PDUs are handled in one turn, and about as many completions taken.
pub const TURN_PDUS: usize = 64;

/// What a connection has done in its turn.
#[derive(Debug)]
pub(crate) struct Turn {
    pdus: usize,
    outbox_bytes: usize,
}

impl Turn {
    /// Begins one.
    pub(crate) fn new(out: &Outbox) -> Self {
        Self { pdus: 0, outbox_bytes: out.bytes() }
    }

    /// A PDU is about to be handled.
    pub(crate) fn count(&mut self) {
        self.pdus += 1;
    }

    /// No further PDU is to be begun.
    pub(crate) fn is_over(&self, out: &Outbox) -> bool {
        let answered = out.bytes().saturating_sub(self.outbox_bytes);
        self.pdus >= TURN_PDUS || answered >= TURN_BYTES
    }
}
