//! The relay of one connection of a host, with a connection to each storage that it uses.

use super::link::{LinkPhase, StorageAvoidance, StorageLink, UnsettledWrites, WriteEvent};
use super::link_count::{CountedLink, LinkCount};
use super::mapping::TransferDirection;
use super::session::{RelayedCommand, StorageInput, StorageSession, StorageUnit};
use super::shares::{OwnerShare, SharedCommand, StorageShares};
use super::socket::{PortalGroupTag, StorageSocket};
use super::{LINK_COMMANDS_MAX, LINKS_MAX};
use futures_util::FutureExt;
use lunar_block::{BoxFuture, BufferPool, RelayPart};
use lunar_initiator::{RelayedLun, RelayedWriteTicket, random_isid};
use lunar_iscsi::connection::initiator::CloseReason;
use lunar_iscsi::framing::TaskId;
use lunar_iscsi::session::initiator::{InitiatorSession, InitiatorSessionOptions};
use lunar_iscsi::text::{Digest, Offer};
use lunar_target::{
    ConnectionRelay, PartReader, PartWriteEvent, PartWriter, RelayFactory, RelayFailure, RelayHost,
    RelayedPiece,
};
use lunar_wire::{Lun, SerialNumber};
use std::cell::RefCell;
use std::net::SocketAddr;
use std::rc::Rc;
use std::sync::{Arc, Weak};
use std::task::{Context, Poll};
use std::time::Duration;
use tokio::time::Instant;

/// Time to connect to a storage.
const CONNECT_TIME: Duration = Duration::from_secs(5);
/// Pause after a connection to a storage has failed; commands are executed by the device meanwhile.
const RETRY_PAUSE: Duration = Duration::from_secs(5);
/// Pause after a storage has violated the protocol.
const VIOLATION_PAUSE: Duration = Duration::from_secs(300);
/// Pause between attempts to replace a lost session with WRITEs that may still have an effect.
const REPLACE_PAUSE: Duration = Duration::from_secs(1);
/// Longest such pause; they double.
const REPLACE_PAUSE_MAX: Duration = Duration::from_secs(30);

/// Shortest MaxRecvDataSegmentLength of a host for which a storage sends shorter segments.
const WHOLE_SEGMENT_BYTES_MIN: u32 = 8 << 10;
/// Time for a session that replaces a lost one; it ends as soon as it is logged in.
const REPLACE_SESSION_TIME: Duration = Duration::from_secs(10);
/// Default time after which a unit is reset, because its storage has no longer the portal group
/// in which a session with WRITEs was lost.
const RESET_AFTER: Duration = Duration::from_secs(30);

/// The relays of a server: with them, a switch has a fast path.
#[derive(Clone, Debug)]
pub struct SwitchRelays {
    links: Arc<LinkCount>,
    shares: Arc<StorageShares>,
    reset_after: Duration,
}

impl Default for SwitchRelays {
    fn default() -> Self {
        Self { links: Arc::default(), shares: Arc::default(), reset_after: RESET_AFTER }
    }
}

impl SwitchRelays {
    /// Creates the relays of a server.
    pub fn new() -> Self {
        Self::default()
    }

    /// Sets the time, at first 30 seconds, after which LOGICAL UNIT RESET ends the WRITEs of a lost
    /// session that cannot be replaced in its portal group, at a storage that can be reached.
    #[must_use]
    pub fn with_reset_after(self, reset_after: Duration) -> Self {
        Self { reset_after, ..self }
    }

    /// Number of connections to storages that are open or being opened.
    pub fn links(&self) -> usize {
        self.links.all()
    }
}

impl RelayFactory for SwitchRelays {
    fn relay(&self, host: RelayHost) -> Rc<dyn ConnectionRelay> {
        Rc::new(HostRelay { host, relays: self.clone(), storages: RefCell::default() })
    }
}

/// The relay of a connection of a host.
#[derive(Debug)]
pub(super) struct HostRelay {
    host: RelayHost,
    relays: SwitchRelays,
    storages: RefCell<Vec<LinkedStorage>>,
}

/// A storage, and the connections to it.
#[derive(Debug)]
struct LinkedStorage {
    lun: Weak<RelayedLun>,
    share: OwnerShare,
    reads: StorageLink,
    writes: StorageLink,
}

impl LinkedStorage {
    fn new(lun: Weak<RelayedLun>, share: OwnerShare) -> Self {
        let avoidance = StorageAvoidance::default();
        let reads = StorageLink::new(avoidance.clone());
        Self { lun, share, reads, writes: StorageLink::new(avoidance) }
    }

    fn link(&self, direction: TransferDirection) -> (StorageLink, OwnerShare) {
        let link = match direction {
            TransferDirection::In => &self.reads,
            TransferDirection::Out => &self.writes,
        };
        (link.clone(), self.share.clone())
    }

    fn host_gone(&self) {
        self.reads.host_gone();
        self.writes.host_gone();
    }
}

impl HostRelay {
    /// Returns the link to a storage for one direction, which is added if there is room for it, and
    /// the host's share in the storage.
    fn link(
        &self,
        part: &RelayPart,
        direction: TransferDirection,
    ) -> Option<(StorageLink, OwnerShare)> {
        let lun = part.storage.as_any().downcast_ref::<RelayedLun>()?;
        let mut storages = self.storages.borrow_mut();
        let is_it = |storage: &LinkedStorage| std::ptr::eq(storage.lun.as_ptr(), lun);
        if let Some(at) = storages.iter().position(is_it) {
            return Some(storages[at].link(direction));
        }
        storages.retain(|storage| {
            let stays = storage.lun.strong_count() > 0;
            if !stays {
                storage.host_gone();
            }
            stays
        });
        if storages.len() >= LINKS_MAX {
            return None;
        }
        let lun = Weak::clone(&shared(part)?);
        let share = self.relays.shares.share(&lun, self.host.owner);
        storages.push(LinkedStorage::new(lun, share));
        storages.last().map(|storage| storage.link(direction))
    }

    /// Connects to a storage, unless that was tried a moment ago.
    fn connect(&self, part: &RelayPart, link: &StorageLink, share: &OwnerShare) {
        match link.phase() {
            LinkPhase::Down(until)
                if until <= Instant::now() && !link.is_avoided() && !share.is_avoided() => {}
            _ => return,
        }
        let Some(lun) = shared(part) else { return };
        let Some(counted) = self.relays.links.begin(self.host.owner) else { return };
        link.set_phase(LinkPhase::Connecting);
        let storage = StorageTask {
            lun,
            link: link.clone(),
            share: share.clone(),
            host: self.host.clone(),
            reset_after: self.relays.reset_after,
            counted: Some(counted),
        };
        self.host.sockets.add(storage.run());
    }
}

/// The LUN of a part, as a handle that does not keep it open.
fn shared(part: &RelayPart) -> Option<Weak<RelayedLun>> {
    part.storage.as_any().downcast_ref::<RelayedLun>().map(RelayedLun::downgrade)
}

impl ConnectionRelay for HostRelay {
    fn is_ready(&self, parts: &[RelayPart], is_write: bool) -> bool {
        let direction = if is_write { TransferDirection::Out } else { TransferDirection::In };
        let mut are_ready = true;
        for part in parts {
            let link = self.link(part, direction);
            let (Some((link, share)), Some(bytes)) = (link, bytes_of(part)) else { return false };
            are_ready &= share.has_room();
            if !link.has_room(if is_write { 0 } else { bytes }) {
                self.connect(part, &link, &share);
                are_ready = false;
            }
        }
        are_ready
    }

    fn read(&self, part: &RelayPart, buffers: &BufferPool) -> Option<Box<dyn PartReader>> {
        let (link, share) = self.link(part, TransferDirection::In)?;
        let (bytes, shared) = (bytes_of(part)?, share.begin()?);
        let id = link.begin(bytes, Some(buffers), |id| {
            StorageInput::Begin(RelayedCommand {
                id,
                direction: TransferDirection::In,
                range: part.range,
                bytes,
                fua: false,
                prefix: RelayedPiece::default(),
            })
        })?;
        Some(Box::new(RelayedReader(LinkedTransfer { link, id, shared: Some(shared) })))
    }

    fn write(
        &self,
        part: &RelayPart,
        prefix: RelayedPiece,
        is_durable: bool,
    ) -> Option<Box<dyn PartWriter>> {
        let (link, share) = self.link(part, TransferDirection::Out)?;
        let bytes = bytes_of(part)?;
        let (lun, shared) = (shared(part)?.upgrade()?, share.begin()?);
        let ticket = lun.begin_write(is_durable)?;
        let fua = ticket.has_fua();
        let id = link.begin(bytes, None, |id| {
            StorageInput::Begin(RelayedCommand {
                id,
                direction: TransferDirection::Out,
                range: part.range,
                bytes,
                fua,
                prefix,
            })
        })?;
        let transfer = LinkedTransfer { link, id, shared: Some(shared) };
        Some(Box::new(RelayedWriter { transfer, ticket: Some(ticket) }))
    }

    fn close(&self) {
        self.storages.borrow().iter().for_each(LinkedStorage::host_gone);
    }
}

/// Length of the data of a part.
fn bytes_of(part: &RelayPart) -> Option<u32> {
    let lun = part.storage.as_any().downcast_ref::<RelayedLun>()?;
    u32::try_from(part.range.count.checked_mul(lun.block_bytes().into())?).ok()
}

/// A command that was passed on; aborted if it is dropped before its end.
struct LinkedTransfer {
    link: StorageLink,
    id: TaskId,
    shared: Option<SharedCommand>,
}

impl Drop for LinkedTransfer {
    fn drop(&mut self) {
        self.link.end(self.id, self.shared.take());
    }
}

struct RelayedReader(LinkedTransfer);

impl PartReader for RelayedReader {
    fn poll_next(
        &mut self,
        context: &mut Context<'_>,
    ) -> Poll<Result<Option<RelayedPiece>, RelayFailure>> {
        let next = self.0.link.poll_piece(self.0.id, context);
        if next.is_ready() {
            self.0.shared.iter_mut().for_each(SharedCommand::answered);
        }
        next
    }
}

struct RelayedWriter {
    transfer: LinkedTransfer,
    ticket: Option<RelayedWriteTicket>,
}

impl PartWriter for RelayedWriter {
    fn poll_event(&mut self, context: &mut Context<'_>) -> Poll<PartWriteEvent> {
        let LinkedTransfer { link, id, shared } = &mut self.transfer;
        link.poll_write(*id, context).map(|event| match event {
            WriteEvent::Wants(offset_bytes, bytes) => {
                shared.iter_mut().for_each(SharedCommand::wait_for_host);
                PartWriteEvent::Wants { offset_bytes, bytes }
            }
            WriteEvent::End(result) => {
                if let (Ok(()), Some(ticket)) = (result, self.ticket.take()) {
                    ticket.acknowledged();
                }
                PartWriteEvent::End(result)
            }
        })
    }

    fn give(&mut self, offset_bytes: u32, piece: RelayedPiece) {
        let LinkedTransfer { link, id, shared } = &mut self.transfer;
        shared.iter_mut().for_each(SharedCommand::ask);
        link.request(StorageInput::DataOut { id: *id, offset_bytes, piece });
    }

    fn ended(&mut self) -> BoxFuture<'static, ()> {
        // An error means that the sender is gone, which is the end.
        self.transfer.link.settled(self.transfer.id).map(drop).boxed()
    }
}

/// Connects to a storage and drives the session.
struct StorageTask {
    lun: Weak<RelayedLun>,
    link: StorageLink,
    share: OwnerShare,
    host: RelayHost,
    reset_after: Duration,
    /// Held while the link is in use.
    counted: Option<CountedLink>,
}

/// The end of a session with a storage.
#[derive(Clone, Copy, Debug, Default)]
struct SessionEnd {
    /// True if the storage violated the protocol.
    is_violation: bool,
    /// Portal group that the login has reached; `None` if it was not complete.
    portal_group: Option<PortalGroupTag>,
    /// The portal, if the storage was connected to.
    portal: Option<SocketAddr>,
    /// True if the storage has answered LOGICAL UNIT RESET.
    has_reset: bool,
}

/// A session that is only to replace a lost one.
#[derive(Clone, Copy, Debug)]
struct SessionReplacement {
    /// The portal; `None`: the one that the disk uses.
    portal: Option<SocketAddr>,
    /// True to reset the unit, which ends the commands of all sessions.
    resets_unit: bool,
}

impl StorageTask {
    async fn run(self) {
        let Ok(isid) = random_isid() else { return self.down(RETRY_PAUSE) };
        let end = self.session(isid, &self.link, None).await;
        self.down(RETRY_PAUSE);
        if end.is_violation {
            self.share.avoid_lun(VIOLATION_PAUSE);
        }
        self.link.lost();
        let unsettled = self.link.take_unsettled();
        if !unsettled.is_empty() {
            // Not one of the core's own tasks: a stopping server does not wait for it.
            tokio::task::spawn_local(self.replace(isid, end, unsettled));
        }
    }

    fn down(&self, pause: Duration) {
        self.link.set_phase(LinkPhase::Down(Instant::now() + pause));
    }

    /// Replaces a lost session, so that its WRITEs have no further effect: their tasks have ended
    /// when the storage answers the login of another session with the same ISID, in the same
    /// portal group (RFC 7143 §6.3.5). If that does not return, the unit is reset: the storage has
    /// read all that the lost connection had sent long before, and has ended its tasks then.
    async fn replace(mut self, isid: [u8; 6], lost: SessionEnd, unsettled: UnsettledWrites) {
        drop(self.counted.take());
        let (lost_at, mut pause) = (Instant::now(), REPLACE_PAUSE);
        // The portal of the lost session leads to its portal group, others maybe not.
        for portal in [lost.portal, None].into_iter().cycle() {
            if self.lun.strong_count() == 0 {
                break;
            }
            let link = StorageLink::new(StorageAvoidance::default());
            let resets_unit = lost_at.elapsed() >= self.reset_after;
            let replacement = SessionReplacement { portal, resets_unit };
            let end = self.session(isid, &link, Some(replacement)).await;
            let is_same_group = end.portal_group.is_some() && end.portal_group == lost.portal_group;
            if is_same_group || end.has_reset {
                break;
            }
            tokio::time::sleep(pause).await;
            pause = (2 * pause).min(REPLACE_PAUSE_MAX);
        }
        drop(unsettled);
    }

    /// Runs one session.
    async fn session(
        &self,
        isid: [u8; 6],
        link: &StorageLink,
        replacement: Option<SessionReplacement>,
    ) -> SessionEnd {
        let Some((mut session, address)) = self.prepare(isid) else {
            return SessionEnd::default();
        };
        match replacement {
            Some(SessionReplacement { resets_unit: true, .. }) => session.reset_unit(),
            Some(_) => link.host_gone(),
            None => {}
        }
        let address = replacement.and_then(|one| one.portal).unwrap_or(address);
        let tcp = match lunar_net::connect(address, CONNECT_TIME).await {
            Ok(tcp) => tcp,
            Err(error) => {
                tracing::debug!(%address, %error, "a relay cannot connect to its storage");
                return SessionEnd::default();
            }
        };
        let mut socket = StorageSocket::new(session, link.clone(), &self.host);
        let driving = lunar_net::drive(tcp, &mut socket, self.host.clock);
        match replacement {
            // A login that was complete counts also if the storage does not answer the logout.
            Some(_) => drop(tokio::time::timeout(REPLACE_SESSION_TIME, driving).await),
            None => drop(driving.await),
        }
        let reason = socket.close_reason();
        tracing::debug!(%address, ?reason, "a session of a relay has ended");
        if let Some(CloseReason::Violation(what)) = reason {
            tracing::warn!(
                %address,
                "a storage violated the protocol: {what}; the relay does not use it for {} s",
                VIOLATION_PAUSE.as_secs()
            );
        }
        let is_violation = matches!(reason, Some(CloseReason::Violation(_)));
        SessionEnd {
            is_violation,
            portal_group: socket.portal_group(),
            portal: Some(address),
            has_reset: socket.has_reset_unit(),
        }
    }

    fn prepare(&self, isid: [u8; 6]) -> Option<(StorageSession, SocketAddr)> {
        let lun = self.lun.upgrade()?;
        let address = lun.address()?;
        let queue_requests_max = 2 * LINK_COMMANDS_MAX as u32;
        let cmd_sn = SerialNumber(1);
        let mut session =
            InitiatorSession::new(InitiatorSessionOptions { isid, cmd_sn, queue_requests_max });
        let mut options = lun.connection_options(session.open(0)?).ok()?;
        if let Some(bytes) = self.host.digest_bytes_max {
            limit_segments(&mut options.login.offer, bytes);
        }
        let unit = Arc::new(LunOfStorage { number: lun.lun(), lun: Weak::clone(&self.lun) });
        let mut session = StorageSession::new(self.host.clock.now(), unit, session, options);
        session.limit_commands(lun.command_time());
        Some((session, address))
    }
}

/// Has the storage send no longer segments than the host receives, so that their digests pass
/// through. Not if data digests are not preferred, nor for hosts that receive very short ones: more
/// segments would cost more than digests.
fn limit_segments(offer: &mut Offer, host_bytes_max: u32) {
    let uses_digests = offer.data_digest.first() == Some(&Digest::Crc32c);
    if uses_digests && host_bytes_max >= WHOLE_SEGMENT_BYTES_MIN {
        let bytes_max = &mut offer.max_recv_data_segment_bytes;
        *bytes_max = host_bytes_max.min(*bytes_max);
    }
}

/// The LUN of a storage, to a session.
#[derive(Debug)]
struct LunOfStorage {
    number: Lun,
    lun: Weak<RelayedLun>,
}

impl StorageUnit for LunOfStorage {
    fn lun(&self) -> Lun {
        self.number
    }

    fn is_same(&self, designators: &[u8], capacity: &[u8]) -> bool {
        self.lun.upgrade().is_some_and(|lun| lun.is_same_unit(designators, capacity))
    }

    fn deferred_error(&self) {
        if let Some(lun) = self.lun.upgrade() {
            lun.record_loss();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal: a storage with data digests sends no longer segments than the host receives, and
    /// segments of the usual length to hosts that receive very short ones.
    #[test]
    fn segments_fit_the_host() {
        let limited = |digests: &[Digest], host_bytes_max| {
            let mut offer = Offer { data_digest: digests.to_vec(), ..Offer::initiator() };
            limit_segments(&mut offer, host_bytes_max);
            offer.max_recv_data_segment_bytes
        };
        let usual = Offer::initiator().max_recv_data_segment_bytes;
        let preferred = [Digest::Crc32c, Digest::None];
        assert_eq!(limited(&preferred, 16_384), 16_384);
        assert_eq!(limited(&preferred, 512), usual);
        assert_eq!(limited(&preferred, usual + 1), usual);
        assert_eq!(limited(&[Digest::None, Digest::Crc32c], 16_384), usual);
    }
}
