//! Copies to members that miss regions, and the recovery of members that were left out.

use super::Mirror;
use super::background_rate::{BackgroundRateLimiter, Rates};
use super::bounded::{JointLimit, LimitFrom, MemberFailure, run_one, run_one_from};
use super::change_queue::ChangeQueue;
use super::member::MirrorMember;
use crate::format::{MemberSet, RegionSet};
use crate::member_device::PreparedLabel;
use crate::member_io::member_failed;
use futures_util::StreamExt;
use futures_util::stream::FuturesOrdered;
use lunar_block::{BlockRange, Buffer, Error, ErrorKind};
use std::sync::atomic::Ordering::SeqCst;
use std::sync::{Arc, Weak};

/// Length of the range that is locked against changes while it is copied.
const PIECE_BYTES: u64 = 1 << 20;

/// Maximum number of pieces that are copied at once while no rate limits the copy: enough that both
/// members always have work.
const PIECES_MAX: usize = 16;

/// Maximum number of bytes of these pieces.
const PIECES_BYTES_MAX: u64 = 4 << 20;

/// Maximum number of losses of sources while one piece is copied.
const PIECE_LOSSES_MAX: u32 = 3;

/// Maximum number of bytes that are copied between two flushes of the target: a flush or a durable
/// change of a user has no more than this to wait for.
const UNFLUSHED_BYTES_MAX: u64 = 16 << 20;

/// Number of times that the pages of the target are written without the membership lock, while
/// regions are marked meanwhile.
const PAGE_ATTEMPTS: u32 = 3;

/// The page that is written behind the membership lock has one part in eight of the time that a
/// member has to answer.
const PAGE_SHARE: u32 = 8;

/// A copy to one member, side by side with reads and changes: one piece at a time is locked, and
/// every change goes to the member as well.
///
/// A stale member becomes current at the end, when all of it is durable and the labels record it.
struct Resync {
    mirror: Arc<Mirror>,
    target: Arc<MirrorMember>,
    /// Number of this copy to the target; a later one ends it.
    number: u64,
}

/// The missing regions in pieces, from the first to the last.
struct MissingPieces<'a> {
    resync: &'a Resync,
    next_region: u32,
    /// The rest of a region.
    rest: Vec<MissingPiece>,
}

/// A piece that is to be copied.
#[derive(Clone, Copy, Debug)]
struct MissingPiece {
    region: u32,
    range: BlockRange,
    /// True for the last piece of the region.
    is_last: bool,
    /// Number of additions to the missing regions before the first piece of the region.
    additions: u64,
}

impl Iterator for MissingPieces<'_> {
    type Item = MissingPiece;

    fn next(&mut self) -> Option<MissingPiece> {
        if self.rest.is_empty() {
            let Resync { mirror, target, .. } = self.resync;
            let region = target.next_missing(self.next_region)?;
            self.next_region = region + 1;
            let additions = target.additions();
            let piece = |range| MissingPiece { region, range, is_last: false, additions };
            self.rest = mirror.pieces(region, PIECE_BYTES).map(piece).collect();
            if let Some(last) = self.rest.last_mut() {
                last.is_last = true;
            }
            self.rest.reverse();
        }
        self.rest.pop()
    }
}

/// The result of copying a piece.
enum Piece {
    Copied,
    /// The region has to be rewritten first.
    RewriteFirst,
    /// Members whose content cannot be used: no source could be read, and the target is a current
    /// member like them; or a source has a loss.
    Bad(Vec<Arc<MirrorMember>>),
}

impl Mirror {
    /// Starts the recovery of all members that are stale, each in a task of its own.
    pub(super) fn recover_stale(self: &Arc<Self>) {
        self.spares.notify_members_changed();
        let is_closed = self.closing.load(SeqCst);
        let is_stale = |one: &Arc<MirrorMember>| !one.receives_changes() && !one.is_retired();
        for member in self.present().filter(is_stale) {
            if !self.is_read_only && !is_closed && !member.is_recovering.swap(true, SeqCst) {
                self.runtime.spawn(recover(Arc::downgrade(self), member));
            }
        }
    }

    /// Starts the copies to current members that miss regions.
    pub(super) fn complete_partial(self: &Arc<Self>) {
        for member in self.present().filter(|one| one.is_current() && !one.holds_all()) {
            if !self.is_read_only && !member.is_recovering.swap(true, SeqCst) {
                self.runtime.spawn(recover(Arc::downgrade(self), member));
            }
        }
    }

    /// Begins a copy to a stale member, which gets all changes from now on. Returns false if it is
    /// not stale.
    async fn begin_copy(&self, member: &Arc<MirrorMember>) -> bool {
        let roster = self.roster.write().await;
        let is_stale = !roster.is_closed && !member.receives_changes() && !member.is_retired();
        if is_stale {
            member.begin_copy();
        }
        is_stale
    }
}

/// Brings a member up to date, again and again until it is current and has everything. Ends when
/// the pool is closed, or when another device gets the slot.
async fn recover(weak: Weak<Mirror>, member: Arc<MirrorMember>) {
    let mut retired = member.retired.subscribe();
    loop {
        let Some(mirror) = weak.upgrade() else { return };
        let mut closed = mirror.closed.subscribe();
        let pause = member.next_recovery_pause(mirror.options.recovery_pause);
        drop(mirror);
        if let Some(pause) = pause {
            tokio::select! {
                _ = closed.wait_for(|closed| *closed) => return,
                _ = retired.wait_for(|retired| *retired) => {}
                () = tokio::time::sleep(pause) => {}
            }
        }
        // Changes of unknown outcome must not reach the member after newer data.
        tokio::select! {
            _ = closed.wait_for(|closed| *closed) => return,
            _ = retired.wait_for(|retired| *retired) => {}
            () = member.wait_until_drained() => {}
        }
        if member.is_retired() {
            member.is_recovering.store(false, SeqCst);
            return;
        }
        let Some(mirror) = weak.upgrade().filter(|mirror| !mirror.closing.load(SeqCst)) else {
            return;
        };
        if let Err(error) = Resync::run(mirror, Arc::clone(&member)).await {
            tracing::warn!("the copy to member {} has failed: {error}", member.device.name());
            continue;
        }
        member.is_recovering.store(false, SeqCst);
        // The member may have been left out again before.
        let is_done = member.is_current() && member.holds_all();
        if is_done || member.is_recovering.swap(true, SeqCst) {
            return;
        }
    }
}

impl Resync {
    /// Copies the missing regions to a member.
    async fn run(mirror: Arc<Mirror>, target: Arc<MirrorMember>) -> Result<(), Error> {
        if !mirror.begin_copy(&target).await && !target.is_current() {
            return Err(Error::new(ErrorKind::Open, &*mirror.name, "the pool is closed"));
        }
        let name = mirror.name.clone();
        tracing::info!("{name}: a copy to member {} has begun", target.device.name());
        let number = target.copies();
        let resync = Self { mirror, target, number };
        let done = resync.copy_all().await;
        match &done {
            Ok(()) => tracing::info!("{name}: member {} is current", resync.target.device.name()),
            Err(error) => resync.fail(error).await,
        }
        done
    }

    async fn copy_all(&self) -> Result<(), Error> {
        self.accept_losses().await?;
        let mut limiter = BackgroundRateLimiter::new(&self.mirror);
        loop {
            while self.target.next_missing(0).is_some() {
                self.copy_missing(&mut limiter).await?;
            }
            self.flush_target().await?;
            if self.finish().await? {
                return Ok(());
            }
        }
    }

    async fn flush_target(&self) -> Result<(), Error> {
        self.within(self.target.flush()).await
    }

    async fn within(&self, work: super::bounded::MemberWork) -> Result<(), Error> {
        let limit = self.mirror.options.member_wait;
        run_one(limit, &self.target, work).await.map_err(|failure| self.failed(failure))
    }

    fn failed(&self, failure: MemberFailure) -> Error {
        match failure {
            MemberFailure::Device(error) => member_failed(&self.mirror.name, None, error),
            other => Error::new(ErrorKind::Medium, self.target.device.name(), other.to_string()),
        }
    }

    /// Accepts earlier losses of a stale member: all that it may have lost is copied. A device that
    /// refuses changes after a failed flush accepts them again.
    async fn accept_losses(&self) -> Result<(), Error> {
        if self.target.is_current() {
            return Ok(());
        }
        let target = Arc::clone(&self.target);
        let recovery = self.target.tracked(async move {
            // The device reports a loss once. The error is no failure of this copy.
            if let Err(error) = target.device.device().recover().await {
                target.fail(error);
            }
            Ok(())
        });
        self.within(recovery).await?;
        let roster = self.mirror.roster.read().await;
        self.refuse_stopped(roster.is_closed)?;
        self.target.accept_losses();
        Ok(())
    }

    /// Fails if the copy has to stop, behind the membership lock.
    fn refuse_stopped(&self, is_closed: bool) -> Result<(), Error> {
        self.mirror.refuse_closed(is_closed)?;
        if self.target.receives_changes() && self.target.copies() == self.number {
            return Ok(());
        }
        let what = "the member was left out before the copy was done";
        Err(Error::new(ErrorKind::Medium, self.target.device.name(), what))
    }

    /// Copies the missing regions once; others may be added meanwhile. While a rate limits the
    /// copy, one piece is copied at a time; otherwise the number grows with each piece. Flushes of
    /// the target are between the pieces.
    async fn copy_missing(&self, limiter: &mut BackgroundRateLimiter) -> Result<(), Error> {
        let options = &self.mirror.options;
        let rates = Rates {
            busy: options.resync_busy_bytes_per_second_max,
            idle: options.resync_bytes_per_second_max,
        };
        let block = u64::from(self.mirror.geometry().block_bytes);
        let mut pieces = MissingPieces { resync: self, next_region: 0, rest: Vec::new() };
        let mut copies = FuturesOrdered::new();
        let (mut bytes, mut unflushed, mut failed) = (0, 0, None);
        let (mut window, mut is_limited) = (1, false);
        loop {
            while failed.is_none() && copies.len() < window && bytes < PIECES_BYTES_MAX {
                let rate = limiter.rate(&self.mirror, rates);
                is_limited = rate.is_some();
                if is_limited && !copies.is_empty() {
                    window = 1;
                    break;
                }
                // Nothing is locked during a pause.
                limiter.pause(&self.mirror, rate).await;
                let Some(piece) = pieces.next() else { break };
                limiter.begin_piece(piece.range.count * block);
                bytes += piece.range.count * block;
                unflushed += piece.range.count * block;
                let must_flush = unflushed >= UNFLUSHED_BYTES_MAX;
                if must_flush {
                    unflushed = 0;
                }
                copies.push_back(async move {
                    let mut copied = self.copy_piece(piece.region, piece.range).await;
                    if copied.is_ok() && must_flush {
                        copied = self.flush_target().await;
                    }
                    (piece, copied)
                });
            }
            // After a failure the others run to their end: dropped writes would stay open.
            let Some((piece, copied)) = copies.next().await else {
                return failed.map_or(Ok(()), Err);
            };
            bytes -= piece.range.count * block;
            failed = failed.or(copied.err());
            window = if is_limited { 1 } else { PIECES_MAX.min(window + 1) };
            // Copies end in order, so all pieces of the region are copied.
            if piece.is_last && failed.is_none() {
                self.mirror.intents.copied(piece.region);
                self.target.copied(piece.region, piece.additions);
            }
        }
    }

    async fn copy_piece(&self, region: u32, piece: BlockRange) -> Result<(), Error> {
        let mut losses = 0;
        loop {
            self.mirror.rewrite_region(region).await?;
            let bad = match self.try_piece(region, piece).await? {
                Piece::Copied => return Ok(()),
                Piece::RewriteFirst => continue,
                Piece::Bad(bad) => bad,
            };
            losses += 1;
            if losses > PIECE_LOSSES_MAX {
                return Err(self.failed(MemberFailure::Lost));
            }
            // Decides which member's content counts, for all members that miss the region.
            let failed: Vec<_> = bad.into_iter().filter(|one| !one.has_lost()).collect();
            self.mirror.leave_out(&failed).await?;
        }
    }

    async fn try_piece(&self, region: u32, piece: BlockRange) -> Result<Piece, Error> {
        let _turn = ChangeQueue::enter(&self.mirror.queue, piece).await;
        let roster = self.mirror.roster.read().await;
        self.refuse_stopped(roster.is_closed)?;
        if self.target.is_current() && self.target.holds(region, region) {
            return Ok(Piece::Copied);
        }
        if self.mirror.rewrites.contains(region) {
            return Ok(Piece::RewriteFirst);
        }
        let data = match self.read_from_others(piece).await? {
            Ok(data) => data,
            Err(bad) => return Ok(Piece::Bad(bad)),
        };
        let (limit, write) = (self.mirror.options.member_wait, data.freeze());
        let write = self.target.write(piece, write, false);
        let written = run_one_from(limit, LimitFrom::Copy, &self.target, write).await;
        written.map_err(|failure| self.failed(failure))?;
        self.mirror.copied_blocks.fetch_add(piece.count, SeqCst);
        Ok(Piece::Copied)
    }

    /// Reads a piece. Returns the members that failed if no source could be read and the target is
    /// a current member, too; or a source that has a loss.
    async fn read_from_others(
        &self,
        piece: BlockRange,
    ) -> Result<Result<Buffer, Vec<Arc<MirrorMember>>>, Error> {
        let mut tried: MemberSet = [self.target.slot].into_iter().collect();
        let mut bad = Vec::new();
        let bytes = piece.count as usize * self.mirror.geometry().block_bytes as usize;
        while let Some(source) = self.mirror.choose(piece, tried) {
            let buffer = self.mirror.buffers().take_when_free(bytes).await;
            if let Some(data) = self.mirror.read_checked(&source, piece, buffer).await {
                return Ok(Ok(data));
            }
            if source.has_lost() {
                return Ok(Err(vec![source]));
            }
            tried.insert(source.slot);
            bad.push(source);
        }
        if !bad.is_empty() && self.target.is_current() {
            return Ok(Err(bad));
        }
        let what = match bad.last() {
            Some(source) => format!("it cannot be read: {}", source.last_failure()),
            None => "no current member has these blocks".to_owned(),
        };
        Err(Error::new(ErrorKind::Medium, &*self.mirror.name, what).at(piece))
    }

    /// Finishes the copy, whose data is durable. Returns false if the target misses more regions.
    ///
    /// The changes since then need no flush: they were sent to the target as to the others, and
    /// their regions are marked until flushes of all of them have succeeded. Most of the work is
    /// done before the membership lock is acquired, for which all changes wait. Behind the lock,
    /// the label of the target is written, and a page if more regions were marked meanwhile.
    async fn finish(&self) -> Result<bool, Error> {
        let mirror = &self.mirror;
        if self.target.is_current() {
            let roster = mirror.roster.read().await;
            self.refuse_stopped(roster.is_closed)?;
            return Ok(self.target.next_missing(0).is_none());
        }
        let limit = JointLimit::begin(mirror.options.member_wait);
        let (marked, _prepared) = self.prepare(limit).await?;
        let mut roster = mirror.roster.write().await;
        self.refuse_stopped(roster.is_closed)?;
        if self.target.next_missing(0).is_some() {
            return Ok(false);
        }
        self.mark_more(&marked).await?;
        if self.target.has_lost() {
            return Err(self.failed(MemberFailure::Lost));
        }
        if self.target.is_unsettled() {
            // The target is about to be left out.
            return Err(self.failed(MemberFailure::Late(mirror.options.member_wait)));
        }
        let mut current = mirror.current();
        current.push(Arc::clone(&self.target));
        let recorded = mirror.set_current(&mut roster, current, false).await;
        drop(roster);
        mirror.recover_stale();
        recorded?;
        if self.target.is_current() {
            return Ok(true);
        }
        let what = format!("its label could not be written: {}", self.target.last_failure());
        Err(Error::new(ErrorKind::Medium, self.target.device.name(), what))
    }

    /// Writes the pages of the target and reads its labels, while changes continue. Returns the
    /// marks of the pages.
    async fn prepare(&self, limit: JointLimit) -> Result<(RegionSet, PreparedLabel<'_>), Error> {
        let (mirror, target) = (&self.mirror, &self.target);
        let failed = |failure| self.failed(failure);
        let buffers = mirror.buffers();
        let prepared = tokio::time::timeout(limit.left(), target.device.prepare_label(&buffers));
        let late = |_| self.failed(MemberFailure::Late(mirror.options.member_wait));
        let prepared = prepared.await.map_err(late)??;
        let mut marked = mirror.intents.write_pages(target, 2, limit).await.map_err(failed)?;
        for _ in 1..PAGE_ATTEMPTS {
            if mirror.intents.on_members().is_subset(&marked) {
                break;
            }
            marked = mirror.intents.write_pages(target, 2, limit).await.map_err(failed)?;
        }
        Ok((marked, prepared))
    }

    /// Writes a page of the target if more regions are marked than in its pages. Called behind the
    /// membership lock, held alone.
    async fn mark_more(&self, marked: &RegionSet) -> Result<(), Error> {
        if self.mirror.intents.on_members().is_subset(marked) {
            return Ok(());
        }
        let limit = JointLimit::begin(self.mirror.options.member_wait / PAGE_SHARE);
        let written = self.mirror.intents.write_pages(&self.target, 1, limit).await;
        written.map(drop).map_err(|failure| self.failed(failure))
    }

    async fn fail(&self, error: &Error) {
        if self.target.copies() != self.number || self.mirror.closing.load(SeqCst) {
            return;
        }
        // Also if the member was current: a write of this copy may be detached.
        self.target.fail(error);
        if let Err(error) = self.mirror.leave_out(&[Arc::clone(&self.target)]).await {
            tracing::warn!("{}: {error}", self.mirror.name);
        }
    }
}
