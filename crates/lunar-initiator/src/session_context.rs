//! State kept across sessions: unit attentions and writes of unknown outcome.

use crate::attentions::Attentions;
use crate::shared_session_state::SharedSessionState;
use crate::uncertain_writes::{LostSessionWrites, UncertainWrite};
use std::sync::Arc;

/// Context of a session: its number, and the state it shares with later sessions.
#[derive(Clone, Debug)]
pub(crate) struct SessionContext {
    /// Number of the session among those of its [`Initiator`](crate::Initiator).
    pub(crate) number: u64,
    /// Unit attentions of the target's units.
    pub(crate) attentions: Arc<Attentions>,
    /// Writes of lost sessions whose outcome is unknown.
    pub(crate) lost_session_writes: Arc<LostSessionWrites>,
}

impl SessionContext {
    /// Keeps an unanswered write if the session is over: the outcome is unknown until another
    /// session replaces it. If the session continues, the target has ended the write with its
    /// connection, and `uncertain` is dropped.
    pub(crate) fn hold(&self, session_state: &SharedSessionState, uncertain: UncertainWrite) {
        if session_state.is_over() {
            self.lost_session_writes.hold(self.number, uncertain);
        }
    }
}
