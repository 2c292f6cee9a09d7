//! Paying while a command runs, for what it moves in pieces.

use super::limit::Cost;
use crate::abort::{AbortSignal, Aborted};
use crate::session::Session;
use crate::unit::LogicalUnit;
use std::sync::Arc;

/// Who pays for a running command.
#[derive(Debug, Default)]
pub(crate) struct Dues {
    /// `None`: nobody, it is free.
    session: Option<Arc<Session>>,
}

impl Dues {
    /// Of a command of this session.
    pub(crate) fn of(session: &Arc<Session>) -> Self {
        Self { session: Some(Arc::clone(session)) }
    }

    /// Pays for a piece, waiting for its turn. No lock that others want may be held.
    pub(crate) async fn pay(
        &self,
        unit: &Arc<LogicalUnit>,
        cost: Cost,
        abort: &AbortSignal,
    ) -> Result<(), Aborted> {
        let line = self.session.as_ref().and_then(|session| session.quota.line(&unit.quota));
        match line {
            Some(line) => abort.unless(line.pay(cost)).await,
            None => Ok(()),
        }
    }

    /// Whether what it does to `unit` is limited.
    pub(crate) fn is_limited(&self, unit: &LogicalUnit) -> bool {
        let session = self.session.as_ref();
        session.is_some_and(|session| session.quota.line(&unit.quota).is_some())
    }
}
