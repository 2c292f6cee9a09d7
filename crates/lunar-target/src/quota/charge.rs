//! Paying while a command runs, for what it moves in pieces.

use super::limit::Cost;
use crate::abort::{AbortSignal, Aborted};
use crate::session::Session;
use crate::tasks::TaskPlace;
use crate::unit::LogicalUnit;
use std::future::{Future, poll_fn};
use std::pin::pin;
use std::sync::Arc;
use std::task::Poll;

/// Who pays for a running command.
#[derive(Clone, Debug, Default)]
pub(crate) struct QuotaCharge {
    /// `None`: nobody, it is free.
    session: Option<Arc<Session>>,
    /// What the command holds up others with, unless it has to wait for its turn.
    place: Option<Arc<TaskPlace>>,
}

impl QuotaCharge {
    /// Of a command of this session with this place, if it has one.
    pub(crate) fn of(session: &Arc<Session>, place: Option<TaskPlace>) -> Self {
        Self { session: Some(Arc::clone(session)), place: place.map(Arc::new) }
    }

    /// Pays for a piece, waiting for its turn, without its place in the task set. No lock that
    /// others want may be held.
    pub(crate) async fn pay(
        &self,
        unit: &Arc<LogicalUnit>,
        cost: Cost,
        abort: &AbortSignal,
    ) -> Result<(), Aborted> {
        let Some(session) = self.session.as_ref().filter(|_| self.is_limited(unit)) else {
            return Ok(());
        };
        let line = session.quota.line_of_begun(&unit.quota);
        abort.check()?;
        let mut paying = pin!(line.pay(cost));
        if poll_fn(|context| Poll::Ready(paying.as_mut().poll(context))).await.is_ready() {
            return Ok(());
        }
        if let Some(place) = &self.place {
            place.give_back();
        }
        abort.unless(paying).await?;
        match &self.place {
            Some(place) => place.take_back(abort).await,
            None => Ok(()),
        }
    }

    /// Whether what it does to `unit` is limited.
    pub(crate) fn is_limited(&self, unit: &LogicalUnit) -> bool {
        let session = self.session.as_ref();
        session.is_some_and(|session| session.quota.is_limited_at(&unit.quota))
    }
}
