//! Quota charges of running commands, for data that they move in pieces.

use super::UnitQuota;
use super::limit::Cost;
use crate::abort::{AbortSignal, Aborted};
use crate::session::Session;
use crate::task_set::TaskPermit;
use std::future::{Future, poll_fn};
use std::pin::pin;
use std::sync::Arc;
use std::task::Poll;

/// Quota account of a running command.
#[derive(Clone, Debug, Default)]
pub(crate) struct QuotaCharge {
    /// The charged session; `None` if the command is not limited.
    session: Option<Arc<Session>>,
    /// Permit of the command in the task set, which blocks other tasks; released while the
    /// command waits for its quota.
    permit: Option<Arc<TaskPermit>>,
}

impl QuotaCharge {
    /// The account of a command of this session with this permit, if it has one.
    pub(crate) fn of(session: &Arc<Session>, permit: Option<TaskPermit>) -> Self {
        Self { session: Some(Arc::clone(session)), permit: permit.map(Arc::new) }
    }

    /// Charges a piece of work at the unit with these limits. Waits for the command's turn, without
    /// its permit in the task set. The caller must hold no lock that other commands may wait for.
    ///
    /// When the turn of the command at a limit has come, the commands of other owners wait for it:
    /// a command that waits here is awaited, and does no more out of turn than that.
    pub(crate) async fn charge(
        &self,
        unit: &Arc<UnitQuota>,
        cost: Cost,
        abort: &AbortSignal,
    ) -> Result<(), Aborted> {
        let Some(session) = self.session.as_ref().filter(|_| self.is_limited(unit)) else {
            return Ok(());
        };
        let queue = session.quota.queue_of_begun(unit);
        abort.check()?;
        let mut charged = pin!(queue.charge(cost));
        if poll_fn(|context| Poll::Ready(charged.as_mut().poll(context))).await.is_ready() {
            return Ok(());
        }
        if let Some(permit) = &self.permit {
            permit.release();
        }
        let awaited = abort.awaited();
        abort.unless(charged).await?;
        drop(awaited);
        abort.yield_now().await?;
        match &self.permit {
            Some(permit) => permit.take_back(abort).await,
            None => Ok(()),
        }
    }

    /// True when the command's work at the unit with these limits is limited.
    pub(crate) fn is_limited(&self, unit: &UnitQuota) -> bool {
        let session = self.session.as_ref();
        session.is_some_and(|session| session.quota.is_limited_at(unit))
    }
}
