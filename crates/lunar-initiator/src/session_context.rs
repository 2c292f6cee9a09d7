//! What outlives a session: what units said in it, and what it left in doubt.

use crate::attentions::Attentions;
use crate::numbering::Numbering;
use crate::uncertain_writes::{LostSessionWrites, UncertainWrite};
use std::sync::Arc;

/// What a session tells those who hold it, besides answers.
#[derive(Clone, Debug)]
pub(crate) struct SessionContext {
    /// The session's number among those of its [`Initiator`](crate::Initiator).
    pub(crate) number: u64,
    /// What units said unasked.
    pub(crate) attentions: Arc<Attentions>,
    /// Writes that may outlive a session.
    pub(crate) held: Arc<LostSessionWrites>,
}

impl SessionContext {
    /// A write of the session was not answered. If the session is over, it is in doubt until
    /// another has taken its place; otherwise the target has ended it with its connection.
    pub(crate) fn hold(&self, numbering: &Numbering, doubt: UncertainWrite) {
        if numbering.is_over() {
            self.held.hold(self.number, doubt);
        }
    }
}
