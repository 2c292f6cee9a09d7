//! How a disk's commands find their session, and are sent again in the next when it is lost.

use super::RemoteDisk;
use crate::client::Executed;
use crate::commands::{Attempt, Verdict, is_illegal};
use crate::recovery::Patience;
use crate::same_unit::Fingerprint;
use crate::session::Session;
use crate::unflushed::{Lost, Mark};
use crate::{Error, ErrorKind};
use block::Buffer;
use bytes::Bytes;
use scsi::cdb::sbc::Blocks10;
use scsi::sense::{SenseKey, Status};
use std::sync::PoisonError;
use std::time::Duration;
use tokio::time::Instant;

const SYNCHRONIZE_CACHE_10: u8 = 0x35;
/// How often a unit is asked who it is because it told of another change meanwhile.
const CHECKS_MAX: u32 = 16;
/// Between two looks at a unit that is not ready yet.
const READY_PAUSE: Duration = Duration::from_millis(100);

/// The unit was looked at in this session after so many unit attentions.
#[derive(Clone, Debug)]
pub(super) struct Checked {
    session: u64,
    attentions: u64,
    result: Result<(), Error>,
}

impl RemoteDisk {
    /// Executes a command that may be executed twice, in as many sessions as it takes. `data_in`
    /// or another buffer as long comes back.
    pub(super) async fn send(
        &self,
        cdb: Bytes,
        data_out: Bytes,
        data_in: Option<Buffer>,
    ) -> Result<Executed, Error> {
        Ok(self.send_counting(cdb, data_out, data_in).await?.0)
    }

    /// A write: until it is flushed it may be lost, unless `durable` by itself.
    pub(super) async fn send_write(
        &self,
        cdb: Bytes,
        data: Bytes,
        durable: bool,
    ) -> Result<(), Error> {
        let (_, sent_after) = self.send_counting(cdb, data, None).await?;
        if !durable && self.mode().write_cache {
            self.unflushed.acknowledged(sent_after, self.attentions.resets());
        }
        Ok(())
    }

    /// Makes all acknowledged writes durable, for an operation that began at `since`.
    pub(super) async fn send_flush(&self, since: Mark) -> Result<(), Error> {
        let flush = self.unflushed.begin(since, self.attentions.resets());
        let flush = flush.map_err(|Lost| self.cache_lost())?;
        let cdb = Blocks10 {
            opcode: SYNCHRONIZE_CACHE_10,
            flags: 0,
            lba: 0,
            group: 0,
            count: 0,
            control: 0,
        };
        match self.send(Bytes::copy_from_slice(&cdb.encode()), Bytes::new(), None).await {
            Ok(_) => {}
            // A unit without a cache may not know the command; then there is nothing to flush.
            Err(error) if is_illegal(&error) && !self.mode().write_cache => {}
            Err(error) => return Err(error),
        }
        let ended = self.unflushed.end(flush, self.attentions.resets());
        ended.map_err(|Lost| self.cache_lost())
    }

    fn cache_lost(&self) -> Error {
        let what = format!(
            "{}: the target has restarted or was reset; what it acknowledged but had not yet made \
             durable may be lost",
            self.name
        );
        Error::new(ErrorKind::CacheLost, what)
            .hint("write again what was written since the last flush that succeeded")
    }

    /// Also returns after how many resets the command was sent that was answered.
    async fn send_counting(
        &self,
        cdb: Bytes,
        data_out: Bytes,
        mut data_in: Option<Buffer>,
    ) -> Result<(Executed, u64), Error> {
        let (initiator, lun) = (self.unit.initiator(), self.unit.lun());
        let bytes = data_in.as_ref().map_or(0, |buffer| buffer.len() as u32);
        let mut patience = initiator.patience();
        let mut attempt = Attempt::default();
        loop {
            let session = self.ready(&mut patience).await?;
            let sent_after = self.attentions.resets();
            // The buffer of a command that was lost is gone with it.
            let buffer = data_in.take().or_else(|| initiator.buffer(bytes));
            let executed = session.execute(lun, cdb.clone(), data_out.clone(), buffer).await;
            let executed = match executed {
                Err(error) if error.is_lost() => {
                    patience.lost(error)?;
                    attempt = Attempt::default();
                    continue;
                }
                executed => executed?,
            };
            match attempt.judge(initiator, &cdb, &executed.result).await? {
                Verdict::Good => return Ok((executed, sent_after)),
                Verdict::Again => data_in = executed.data_in,
            }
        }
    }

    /// A session in which the unit was found to be the one that was opened.
    ///
    /// Whoever waits asks for itself: a few dozen questions after a restart cost less than a lock
    /// that a caller who is not polled could hold.
    async fn ready(&self, patience: &mut Patience) -> Result<Session, Error> {
        let mut checks = 0;
        loop {
            let session = self.unit.initiator().session(patience).await?;
            if let Some(result) = self.verdict(&session) {
                return result.map(|()| session);
            }
            checks += 1;
            if checks > CHECKS_MAX {
                let what = format!("{} tells of changes without end", self.name);
                return Err(Error::new(ErrorKind::Protocol, what));
            }
            match self.examine(&session).await {
                Err(error) if error.is_lost() => drop(patience.lost(error)?),
                Err(error) if is_passing(&error) && patience.until().is_some() => {
                    self.pause(patience, error).await?;
                    checks = 0;
                }
                result => result?,
            }
        }
    }

    /// What the unit was found to be, if it has said nothing new since.
    fn verdict(&self, session: &Session) -> Option<Result<(), Error>> {
        let checked = self.checked.lock().unwrap_or_else(PoisonError::into_inner);
        let checked = checked.as_ref()?;
        let now = (session.number(), self.attentions.count());
        ((checked.session, checked.attentions) == now).then(|| checked.result.clone())
    }

    /// Asks the unit who it is, once it has said what it has to say of itself.
    async fn examine(&self, session: &Session) -> Result<(), Error> {
        let unit = self.unit.in_session(session);
        unit.test_ready().await?;
        self.attentions.begun(session.number());
        let attentions = self.attentions.count();
        let identity = unit.identity().await?;
        let capacity = unit.capacity().await?;
        let now = Fingerprint::of(&unit, &identity, &capacity).await?;
        let mode = unit.mode().await?.unwrap_or_default();
        let result = self.fingerprint.check(&now, &self.name);
        if let Err(error) = &result {
            tracing::error!(%error, "not the disk that was opened");
        }
        *self.mode.lock().unwrap_or_else(PoisonError::into_inner) = mode;
        let checked = Checked { session: session.number(), attentions, result };
        *self.checked.lock().unwrap_or_else(PoisonError::into_inner) = Some(checked);
        Ok(())
    }

    /// Waits a moment for a unit that comes up.
    async fn pause(&self, patience: &Patience, error: Error) -> Result<(), Error> {
        match patience.until() {
            Some(until) if Instant::now() < until => {
                self.unit.initiator().pause(READY_PAUSE).await;
                Ok(())
            }
            _ => Err(patience.over(&format!("the unit is not ready: {error}"))),
        }
    }
}

/// A target that has just started may say so of a unit.
fn is_passing(error: &Error) -> bool {
    const LOGICAL_UNIT_NOT_SUPPORTED: u16 = 0x2500;
    match &error.kind {
        ErrorKind::Sense(Some(sense)) => {
            sense.key == SenseKey::NOT_READY
                || sense.key == SenseKey::UNIT_ATTENTION
                || sense.code == LOGICAL_UNIT_NOT_SUPPORTED
        }
        ErrorKind::Status(status) => {
            matches!(Status(*status), Status::BUSY | Status::TASK_SET_FULL)
        }
        _ => false,
    }
}
