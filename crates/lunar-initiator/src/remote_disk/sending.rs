//! Sends the commands of a disk, and sends them again in the next session when one is lost.

use super::RemoteDisk;
use crate::attentions::CacheLossCounts;
use crate::commands::{Attempt, RetryDecision, is_illegal};
use crate::connection_handle::Executed;
use crate::flush_tracker::{CacheLost, FlushMark};
use crate::initiator::REFUSED_PAUSE;
use crate::opcodes::SYNCHRONIZE_CACHE_10;
use crate::paths::DiskPath;
use crate::port_groups::{TRANSITIONING, access_state_of_error};
use crate::queue_depth::{CommandInProgress, RetryState, UnitAnswer};
use crate::recovery::RetryDeadline;
use crate::same_unit::Fingerprint;
use crate::session::Session;
use crate::{Error, ErrorKind};
use bytes::Bytes;
use futures_util::future::join_all;
use futures_util::{FutureExt, TryFutureExt};
use lunar_block::{BlockRange, Buffer, BufferPool};
use lunar_iscsi::connection::initiator::Cdb;
use lunar_scsi::cdb::sbc::Blocks10;
use lunar_scsi::sense::{SenseKey, Status};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, PoisonError};
use std::time::Duration;
use tokio::time::Instant;

/// Maximum number of checks of a unit that reports another change during each.
const CHECKS_MAX: u32 = 16;
/// Interval between two checks of a unit that is not ready yet.
const READY_PAUSE: Duration = Duration::from_millis(100);
/// Time paths have to report a reset.
const RESET_REPORT_TIME: Duration = Duration::from_secs(2);
/// Time a write waits for an aborted one, in addition to the recovery time of a lost session: by
/// then a connection to a target that does not answer ABORT TASK is closed.
const UNCERTAIN_WRITE_TIME: Duration = Duration::from_secs(45);
/// Interval at which a waiting write has lost sessions re-established.
const REESTABLISH_INTERVAL: Duration = Duration::from_secs(1);
/// Load that a command counts for on its path besides its data, in bytes.
const COMMAND_BYTES: u64 = 512;

/// A command that may be sent several times.
struct CommandRequest<'a> {
    cdb: Cdb,
    data_out: Bytes,
    data_in_bytes: u32,
    /// Pool of the caller's buffer, which is lost with a session that is lost: the next one is
    /// charged to the same owner.
    pool: Option<BufferPool>,
    /// Range that the command changes.
    writes: Option<BlockRange>,
    /// Set when the command was sent and its outcome is unknown.
    may_have_run: Option<&'a AtomicBool>,
}

impl CommandRequest<'_> {
    /// Bytes that the command counts for on its path.
    fn load_bytes(&self) -> u64 {
        COMMAND_BYTES + self.data_out.len() as u64 + u64::from(self.data_in_bytes)
    }

    /// True for a command that needs the lease of the disk: COMPARE AND WRITE renews it.
    fn needs_lease(&self) -> bool {
        self.writes.is_some() && self.may_have_run.is_none()
    }
}

/// Result of a command that was sent.
struct CommandEnd {
    path: Arc<DiskPath>,
    session: Session,
    executed: Result<Executed, Error>,
    /// Losses reported before it was sent.
    sent_after: CacheLossCounts,
}

/// A command that ended well.
struct SucceededCommand {
    executed: Executed,
    /// Losses reported before it was sent.
    sent_after: CacheLossCounts,
    /// Session in which it was answered.
    session: Session,
}

/// Progress of a command when it leaves the fast path.
enum FastPathProgress {
    /// The command was not sent. If a path was picked, this path is examined: a policy that takes
    /// turns would otherwise always pass over it.
    Picked(Option<Arc<DiskPath>>),
    /// The command was sent, with this result.
    CommandEnd(CommandEnd),
}

fn bytes_of(data_in: &Option<Buffer>) -> u32 {
    data_in.as_ref().map_or(0, |buffer| buffer.len() as u32)
}

impl RemoteDisk {
    /// Executes a command that may be executed twice, in as many sessions as needed. Returns
    /// `data_in` or another buffer of the same length.
    pub(super) fn send(
        &self,
        cdb: Cdb,
        data_out: Bytes,
        data_in: Option<Buffer>,
    ) -> impl Future<Output = Result<Executed, Error>> + Send + '_ {
        self.send_counting(cdb, data_out, data_in, None).map_ok(|done| done.executed)
    }

    /// Executes a write to `range`, which may be lost until it is flushed unless it is `durable`.
    pub(super) async fn send_write(
        &self,
        cdb: Cdb,
        range: BlockRange,
        data: Bytes,
        durable: bool,
    ) -> Result<(), Error> {
        let SucceededCommand { sent_after, .. } =
            self.send_counting(cdb, data, None, Some(range)).await?;
        if !durable && self.mode().write_cache {
            self.unflushed.acknowledged(sent_after, self.paths.reported_losses());
        }
        Ok(())
    }

    /// Executes COMPARE AND WRITE, whose data is the old content of `range` and the new one.
    /// Returns the offset of the first difference; `None` if it has written.
    ///
    /// If the command is sent again because its outcome is unknown, a difference may be its own
    /// work: it has written if the blocks have the new content.
    pub(super) async fn send_compare_and_write(
        &self,
        cdb: Cdb,
        range: BlockRange,
        data: Bytes,
        durable: bool,
    ) -> Result<Option<u64>, Error> {
        let may_have_run = AtomicBool::new(false);
        let new = data.slice(data.len() / 2..);
        let sent = CommandRequest {
            cdb,
            data_out: data,
            data_in_bytes: 0,
            pool: None,
            writes: Some(range),
            may_have_run: Some(&may_have_run),
        };
        match self.send_whole(sent, None).await {
            Ok(SucceededCommand { sent_after, .. }) => {
                if !durable && self.mode().write_cache {
                    self.unflushed.acknowledged(sent_after, self.paths.reported_losses());
                }
                Ok(None)
            }
            Err(error) => {
                let miscompare = error.sense().filter(|sense| sense.key == SenseKey::MISCOMPARE);
                let Some(sense) = miscompare else { return Err(error) };
                // An offset beyond the data is not used.
                let offset = sense.information.filter(|offset| *offset < new.len() as u64);
                if may_have_run.into_inner() {
                    let buffer = self.unit.initiator().pool().take(new.len());
                    if self.read_piece(range, buffer).await?[..] == new[..] {
                        return Ok(None);
                    }
                }
                Ok(Some(offset.unwrap_or(0)))
            }
        }
    }

    /// Makes all acknowledged writes durable, for an operation that began at `since`.
    pub(super) async fn send_flush(&self, since: FlushMark) -> Result<(), Error> {
        let flush = self.unflushed.begin(since, self.paths.reported_losses());
        if flush.is_err() {
            Box::pin(self.collect_unit_attentions()).await;
        }
        let flush = flush.map_err(|CacheLost| self.cache_lost())?;
        let cdb = Blocks10 {
            opcode: SYNCHRONIZE_CACHE_10,
            flags: 0,
            lba: 0,
            group: 0,
            count: 0,
            control: 0,
        };
        match self.send_counting(cdb.encode().into(), Bytes::new(), None, None).await {
            // A reset is reported once in a session, perhaps on another connection whose response
            // is still in flight.
            Ok(SucceededCommand { session, .. }) if self.unflushed.needs(flush) => {
                if !session.wait_for_commands(self.unit.lun()).await {
                    self.unflushed.lose();
                }
            }
            Ok(_) => {}
            // A unit without a cache may not support the command; then there is nothing to flush.
            Err(error) if is_illegal(&error) && !self.mode().write_cache => {}
            Err(error) => return Err(error),
        }
        let ended = self.unflushed.end(flush, self.paths.reported_losses());
        if ended.is_err() {
            Box::pin(self.collect_unit_attentions()).await;
        }
        ended.map_err(|CacheLost| self.cache_lost())
    }

    /// Sends TEST UNIT READY on all paths. Each path reports a reset separately; a path that has
    /// not reported it yet must not report it later as if it were another one.
    async fn collect_unit_attentions(&self) {
        if !self.paths.are_several() {
            return;
        }
        let ask = |path: Arc<DiskPath>| async move {
            let session = path.unit.initiator().session_now()?;
            // Unit attentions are recorded as they arrive; readiness does not matter here.
            path.unit.in_session(&session).test_ready().await.ok()
        };
        let answers = join_all(self.paths.all().into_iter().map(ask));
        let until = Instant::now() + RESET_REPORT_TIME;
        tokio::select! {
            _ = answers => {}
            () = self.unit.initiator().timer(until) => {}
        }
        self.unflushed.mark(self.paths.reported_losses());
    }

    fn cache_lost(&self) -> Error {
        let what = format!(
            "{}: the target restarted, was reset or failed to write; acknowledged writes that \
             were not yet flushed may be lost",
            self.name
        );
        Error::new(ErrorKind::CacheLost, what)
            .hint("repeat the writes since the last successful flush")
    }

    /// Executes a command that changes `writes`; also returns the session in which it was answered
    /// and the losses reported before it was sent.
    fn send_counting(
        &self,
        cdb: Cdb,
        data_out: Bytes,
        data_in: Option<Buffer>,
        writes: Option<BlockRange>,
    ) -> impl Future<Output = Result<SucceededCommand, Error>> + Send + '_ {
        let data_in_bytes = bytes_of(&data_in);
        let pool = data_in.as_ref().map(Buffer::pool);
        let may_have_run = None;
        self.send_whole(
            CommandRequest { cdb, data_out, data_in_bytes, pool, writes, may_have_run },
            data_in,
        )
    }

    /// Executes a command as [`send_counting`](Self::send_counting) does.
    async fn send_whole(
        &self,
        sent: CommandRequest<'_>,
        data_in: Option<Buffer>,
    ) -> Result<SucceededCommand, Error> {
        self.refuse_fenced()?;
        if sent.needs_lease() {
            self.refuse_without_lease()?;
        }
        let writes = sent.writes;
        // The rest is rare and large, so its future is boxed.
        let (path, session) = match self.way_now(writes) {
            Ok(way) => way,
            Err(picked) => {
                let begun = FastPathProgress::Picked(picked);
                return Box::pin(self.send_patiently(sent, data_in, begun)).await;
            }
        };
        let in_progress = path.queue_depth.begin(sent.load_bytes());
        let (executed, sent_after) = self.try_once(in_progress, &session, &sent, data_in).await;
        if executed.as_ref().is_ok_and(Executed::is_good) {
            return executed.map(|executed| SucceededCommand { executed, sent_after, session });
        }
        let met = FastPathProgress::CommandEnd(CommandEnd { path, session, executed, sent_after });
        Box::pin(self.send_patiently(sent, None, met)).await
    }

    /// Returns a path and its session if the command can be sent at once; else the path that was
    /// picked, if any.
    fn way_now(
        &self,
        writes: Option<BlockRange>,
    ) -> Result<(Arc<DiskPath>, Session), Option<Arc<DiskPath>>> {
        let path = self.paths.pick_now().ok_or(None)?;
        let waits = writes.is_some_and(|range| self.uncertain_writes.overlaps(range));
        match ready_now(&path) {
            Some(session) if !waits && !path.queue_depth.is_limited() => Ok((path, session)),
            _ => Err(Some(path)),
        }
    }

    /// Sends a command once; also returns the losses reported before.
    fn try_once<'a>(
        &self,
        in_progress: CommandInProgress<'a>,
        session: &'a Session,
        sent: &CommandRequest<'_>,
        data_in: Option<Buffer>,
    ) -> impl Future<Output = (Result<Executed, Error>, CacheLossCounts)> + Send + 'a + use<'a>
    {
        let sent_after = self.paths.reported_losses();
        let ticket = sent.writes.map(|range| self.uncertain_writes.ticket(range));
        let (cdb, data_out) = (sent.cdb.clone(), sent.data_out.clone());
        let executed = session.execute(self.unit.lun(), cdb, data_out, data_in, ticket);
        executed.map(move |executed| {
            let answer = executed.as_ref().ok().map(|ended| UnitAnswer::of(ended.result.status));
            in_progress.end(answer);
            (executed, sent_after)
        })
    }

    /// Sends a command until it ends or its time is over.
    async fn send_patiently(
        &self,
        sent: CommandRequest<'_>,
        mut data_in: Option<Buffer>,
        begun: FastPathProgress,
    ) -> Result<SucceededCommand, Error> {
        let (mut picked, mut met) = match begun {
            FastPathProgress::Picked(path) => (path, None),
            FastPathProgress::CommandEnd(met) => (None, Some(met)),
        };
        let initiator = self.unit.initiator();
        let (cdb, writes) = (&sent.cdb, sent.writes);
        let mut deadline = initiator.retry_deadline();
        let (mut attempt, mut checks, mut was_doubted) = (Attempt::default(), 0, false);
        loop {
            self.refuse_fenced()?;
            let again = match met.take() {
                Some(met) => Some(met),
                None => {
                    let path = match picked.take().or_else(|| self.paths.pick_now()) {
                        Some(path) => path,
                        None => Box::pin(self.paths.pick(&mut deadline)).await?,
                    };
                    let on = (path, &mut deadline, &mut checks);
                    Box::pin(self.send_on(on, &sent, &mut attempt.turn, &mut data_in)).await?
                }
            };
            let Some(CommandEnd { path, session, executed, sent_after }) = again else { continue };
            let executed = match executed {
                Err(error) if error.is_lost() => {
                    let was_sent = writes.is_some() && error.kind == ErrorKind::SessionLost;
                    if let Some(may_have_run) = sent.may_have_run.filter(|_| was_sent) {
                        may_have_run.store(true, Ordering::Relaxed);
                    }
                    self.lost(error, was_sent, &mut deadline)?;
                    if session.is_over() {
                        path.reestablish();
                    } else {
                        // The session takes no commands for now, or data arrived damaged.
                        path.pause(None);
                        Box::pin(initiator.pause(REFUSED_PAUSE)).await;
                    }
                    attempt = Attempt::default();
                    continue;
                }
                executed => executed?,
            };
            match attempt.interpret_end(initiator.command_time(), cdb, &executed.result) {
                Ok(RetryDecision::Good) => {
                    return Ok(SucceededCommand { executed, sent_after, session });
                }
                Ok(RetryDecision::Again | RetryDecision::Refused) => data_in = executed.data_in,
                Err(error) => {
                    match self.doubted_by(&error).filter(|_| !was_doubted) {
                        Some(held) => {
                            was_doubted = true;
                            let at = (&*path, &session);
                            Box::pin(self.resolve_doubt(&held, at, &mut deadline)).await?;
                        }
                        None => Box::pin(self.other_path(&path, error, &mut deadline)).await?,
                    }
                    data_in = executed.data_in;
                    attempt = Attempt::default();
                }
            }
        }
    }

    /// Waits until the command can be sent on this path, and sends it; `None` if another path
    /// should be picked.
    async fn send_on(
        &self,
        (path, deadline, checks): (Arc<DiskPath>, &mut RetryDeadline, &mut u32),
        sent: &CommandRequest<'_>,
        turn: &mut RetryState,
        data_in: &mut Option<Buffer>,
    ) -> Result<Option<CommandEnd>, Error> {
        let ready = match ready_now(&path) {
            Some(session) => Some(session),
            None => Box::pin(self.ready(&path, deadline, checks)).await?,
        };
        let Some(session) = ready else { return Ok(None) };
        *checks = 0;
        if let Some(range) = sent.writes.filter(|range| self.uncertain_writes.overlaps(*range)) {
            Box::pin(self.wait_for_uncertain_writes(range, deadline)).await?;
            return Ok(None); // the session may be another one by now
        }
        let in_progress = match turn.refusals > 0 || path.queue_depth.is_limited() {
            true => {
                let timer = |until| path.unit.initiator().timer(until);
                let wait = path.queue_depth.wait(turn, sent.load_bytes(), timer);
                let in_progress = Box::pin(wait).await;
                let is_as_before =
                    ready_now(&path).is_some_and(|now| now.number() == session.number());
                let overlaps = |range| self.uncertain_writes.overlaps(range);
                if !is_as_before || sent.writes.is_some_and(overlaps) {
                    return Ok(None);
                }
                in_progress
            }
            false => path.queue_depth.begin(sent.load_bytes()),
        };
        // The buffer of a lost command is lost with it.
        let another = || Some(sent.pool.as_ref()?.take(sent.data_in_bytes as usize));
        let buffer = data_in.take().or_else(another);
        // Its lease may have ended while the command waited.
        if sent.needs_lease() {
            self.refuse_without_lease()?;
        }
        let (executed, sent_after) = self.try_once(in_progress, &session, sent, buffer).await;
        Ok(Some(CommandEnd { path, session, executed, sent_after }))
    }

    /// Handles the loss of a path, or a path that cannot be used. If another path is usable, the
    /// command may be sent again however short the recovery time is; except for a write that was
    /// `sent`, which has to wait.
    ///
    /// # Errors
    /// When there is no time left.
    fn lost(&self, error: Error, sent: bool, deadline: &mut RetryDeadline) -> Result<(), Error> {
        match deadline.lost(error) {
            Err(_) if !sent && self.paths.are_several() && self.paths.pick_now().is_some() => {
                Ok(())
            }
            lost => lost.map(drop),
        }
    }

    /// Handles a command that was refused because of the access state of its port: it moves to
    /// another path, or waits for the state to change.
    ///
    /// # Errors
    /// When the access state is not the reason, or there is no time left.
    async fn other_path(
        &self,
        path: &DiskPath,
        error: Error,
        deadline: &mut RetryDeadline,
    ) -> Result<(), Error> {
        let met = match access_state_of_error(&error) {
            Some(met) if met == TRANSITIONING || self.paths.are_several() => met,
            _ => return Err(error),
        };
        path.pause(Some(met));
        if self.lost(error.clone().not_sent(), false, deadline).is_err() {
            return Err(error);
        }
        if !self.paths.are_several() {
            self.unit.initiator().pause(READY_PAUSE).await;
        }
        Ok(())
    }

    /// Waits until no earlier write to `range`, perhaps sent over another path, may still be
    /// executed.
    async fn wait_for_uncertain_writes(
        &self,
        range: BlockRange,
        deadline: &RetryDeadline,
    ) -> Result<(), Error> {
        const WHY: &str = "a write to the same blocks may still be executed by the target";
        let initiator = self.unit.initiator();
        let whole = UNCERTAIN_WRITE_TIME + initiator.recovery();
        let until = deadline.until().unwrap_or_else(|| Instant::now() + whole);
        while !self.paths.are_closed() {
            // The session whose end is awaited may have no other user that re-establishes it.
            self.paths.reestablish_lost();
            let look = until.min(Instant::now() + REESTABLISH_INTERVAL);
            tokio::select! {
                biased;
                () = self.uncertain_writes.wait_for_overlaps(range) => return Ok(()),
                () = initiator.timer(look) => {}
            }
            if Instant::now() >= until {
                return Err(match deadline.until() {
                    Some(_) => deadline.over(&format!("{WHY}; {}", self.paths.describe_attempts())),
                    None => Error::new(ErrorKind::NotSent, WHY).hint("try again later"),
                });
            }
        }
        Ok(()) // the next command reports that the disk is closed
    }

    /// Returns a session in which the unit was verified, on any path.
    ///
    /// # Errors
    /// When there is no time left · the result of verifying the unit.
    pub(super) async fn verified_session(
        &self,
        deadline: &mut RetryDeadline,
    ) -> Result<Session, Error> {
        let mut checks = 0;
        loop {
            self.refuse_fenced()?;
            let path = match self.paths.pick_now() {
                Some(path) => path,
                None => self.paths.pick(deadline).await?,
            };
            if let Some(session) = ready_now(&path) {
                return Ok(session);
            }
            if let Some(session) = self.ready(&path, deadline, &mut checks).await? {
                return Ok(session);
            }
        }
    }

    /// Returns a session of this path in which the unit was verified to be the one that was opened.
    /// `None` if another path should be picked.
    ///
    /// Each waiting caller checks for itself: a few dozen commands after a restart cost less than a
    /// lock that a caller whose future is not polled could hold.
    async fn ready(
        &self,
        path: &DiskPath,
        deadline: &mut RetryDeadline,
        checks: &mut u32,
    ) -> Result<Option<Session>, Error> {
        let initiator = path.unit.initiator();
        loop {
            let several = self.paths.are_several();
            let session = if several {
                let Some(session) = initiator.session_now() else { return Ok(None) };
                session
            } else {
                match initiator.session_now() {
                    Some(session) => session,
                    None => Box::pin(initiator.session(deadline)).await?,
                }
            };
            match path.verdict(&session) {
                Some(Ok(())) => return Ok(Some(session)),
                Some(Err(_)) if several => return Ok(None),
                Some(Err(wrong)) => return Err(wrong),
                None => {}
            }
            *checks += 1;
            if *checks > CHECKS_MAX {
                let what = format!("{} reports changes endlessly", self.name);
                return Err(Error::new(ErrorKind::Protocol, what));
            }
            match Box::pin(self.examine(path, &session)).await {
                Ok(true) => {}
                Ok(false) => {
                    path.pause(None);
                    let what = format!("the target port at {} is not active", initiator.portal());
                    self.lost(Error::new(ErrorKind::NotSent, what), false, deadline)?;
                    *checks = 0;
                }
                Err(error) if error.is_lost() => {
                    path.pause(None);
                    self.lost(error, false, deadline)?;
                    *checks = 0;
                }
                Err(error) if error.kind == ErrorKind::Fenced => return Err(error),
                Err(error) if several => {
                    path.pause(access_state_of_error(&error));
                    if self.lost(error.clone().not_sent(), false, deadline).is_err() {
                        return Err(error);
                    }
                    *checks = 0;
                }
                Err(error) if is_transient(&error) && deadline.until().is_some() => {
                    Box::pin(self.pause(deadline, error)).await?;
                    *checks = 0;
                }
                Err(error) => return Err(error),
            }
            if several {
                return Ok(None);
            }
        }
    }

    /// Verifies the unit after it has reported its attentions; `false` if the port of this path is
    /// not active.
    async fn examine(&self, path: &DiskPath, session: &Session) -> Result<bool, Error> {
        let unit = path.unit.in_session(session);
        let several = self.paths.are_several();
        let held = self.ownership.held();
        // Attentions that arrive from here on cause another check.
        let before = path.attentions.count();
        if several && !path.read_access_states(&unit, &self.paths).await? {
            return Ok(false);
        }
        unit.test_ready().await?;
        // The unit attention for the begin of the session may have ended another command, on a
        // connection whose response is not read yet.
        if !path.attentions.has_reported_start(session.number())
            && !session.wait_for_commands(unit.lun()).await
        {
            return Err(session.end_error());
        }
        path.attentions.record_session_start(session.number());
        let attentions = if several { before } else { path.attentions.count() };
        let identity = unit.identity().await?;
        let capacity = unit.capacity().await?;
        let now = Fingerprint::of(&unit, &identity, &capacity).await?;
        let mode = unit.mode().await?.unwrap_or_default();
        let in_use = self.block_count.load(Ordering::Acquire);
        let result = self.fingerprint.check(&now, in_use, &self.name);
        match &result {
            Err(error) if !self.is_replaced.swap(true, Ordering::AcqRel) => {
                tracing::error!(%error, "the unit is not the disk that was opened");
            }
            Err(_) => {}
            Ok(()) if now.block_count > in_use => {
                self.is_replaced.store(false, Ordering::Release);
                self.block_count.fetch_max(now.block_count, Ordering::AcqRel);
                tracing::info!(disk = &*self.name, blocks = now.block_count, "the disk has grown");
            }
            Ok(()) => self.is_replaced.store(false, Ordering::Release),
        }
        *self.mode.lock().unwrap_or_else(PoisonError::into_inner) = mode;
        if let (Some(held), Ok(())) = (&held, &result) {
            self.confirm_ownership(&unit, held).await?;
        }
        path.record_verification(session, attentions, result);
        if !self.ownership.is_still(&held) {
            path.forget_verification();
        }
        Ok(true)
    }

    /// Waits a moment for a unit that is becoming ready.
    async fn pause(&self, deadline: &RetryDeadline, error: Error) -> Result<(), Error> {
        match deadline.until() {
            Some(until) if Instant::now() < until => {
                self.unit.initiator().pause(READY_PAUSE).await;
                Ok(())
            }
            _ => Err(deadline.over(&format!("the unit is not ready: {error}"))),
        }
    }
}

/// Returns the session of this path if the unit was verified in it.
fn ready_now(path: &DiskPath) -> Option<Session> {
    let session = path.unit.initiator().session_now()?;
    matches!(path.verdict(&session), Some(Ok(()))).then_some(session)
}

/// True for an error that a target may report for a unit while it starts.
fn is_transient(error: &Error) -> bool {
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
