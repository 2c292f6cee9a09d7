//! A session with a storage over a socket.

use super::link::{LinkPhase, StorageLink};
use super::session::{IncomingDestination, StorageInput, StorageOutput, StorageSession};
use bytes::Bytes;
use lunar_block::Buffer;
use lunar_iscsi::connection::initiator::CloseReason;
use lunar_iscsi::framing::{Header, SegmentDigest, TaskId};
use lunar_net::{BufferLimits, BufferedBytes, ConnectionHandler, InFlightBytes, Outbox, OwnerId};
use lunar_target::{RelayHost, RelaySocketMemory, RelayedPiece};
use lunar_wire::Time;
use std::task::{Context, Poll};
use std::time::Duration;

/// Time in which a storage must answer once the switch reads from it again; the switch does not
/// read while the host takes its data slowly.
const AFTER_HOLD_TIME: Duration = Duration::from_secs(5);

/// Maximum number of bytes received at once, and so kept while the host takes no data.
const RECEIVE_BYTES_MAX: usize = 64 << 10;

/// TargetPortalGroupTag of a login, if the storage has named it.
pub(super) type PortalGroupTag = Option<u16>;

/// Handler of the connection to a storage.
pub(super) struct StorageSocket {
    session: StorageSession,
    link: StorageLink,
    owner: OwnerId,
    memory: RelaySocketMemory,
    segment: IncomingData,
    announced_bytes: u32,
    /// Time before which silence of the storage has no consequence, because the switch did not read
    /// from it.
    held_until: Option<Time>,
    is_held: bool,
    close: Option<CloseReason>,
    is_started: bool,
}

/// The data segment of the current PDU.
enum IncomingData {
    Discarded,
    Session { buffer: Vec<u8>, filled: usize },
    Command { buffer: Buffer, filled: usize, in_flight: InFlightBytes },
}

impl StorageSocket {
    pub(super) fn new(session: StorageSession, link: StorageLink, host: &RelayHost) -> Self {
        Self {
            session,
            link,
            owner: host.owner,
            memory: RelaySocketMemory::new(&host.buffers),
            segment: IncomingData::Discarded,
            announced_bytes: 0,
            held_until: None,
            is_held: false,
            close: None,
            is_started: false,
        }
    }

    /// The reason why the connection has ended.
    pub(super) fn close_reason(&self) -> Option<&CloseReason> {
        self.close.as_ref()
    }

    /// Target portal group that the login has reached; `None` if it was not complete.
    pub(super) fn portal_group(&self) -> Option<PortalGroupTag> {
        self.session.established().map(|established| established.portal_group_tag)
    }

    /// True if the storage has reset the unit.
    pub(super) fn has_reset_unit(&self) -> bool {
        self.session.has_reset_unit()
    }

    fn handle(&mut self, now: Time, input: StorageInput, out: &mut Outbox) {
        self.session.handle(now, input);
        self.handle_outputs(out);
    }

    fn handle_outputs(&mut self, out: &mut Outbox) {
        while let Some(output) = self.session.poll() {
            self.handle_output(output, out);
        }
    }

    fn handle_output(&mut self, output: StorageOutput, out: &mut Outbox) {
        match output {
            StorageOutput::Send(pdu) => out.push(pdu),
            StorageOutput::SendData { initiator_task_tag, data, digest } => {
                out.push_part(initiator_task_tag, data, digest);
            }
            StorageOutput::Receive(destination) => self.segment = self.incoming_data(destination),
            StorageOutput::FullFeature(digests) => out.set_digests(digests),
            StorageOutput::Up(true) => self.link.set_phase(LinkPhase::Up),
            StorageOutput::Up(false) => self.link.set_phase(LinkPhase::Connecting),
            StorageOutput::DataIn { id, bytes, digest, .. } => self.data_in(id, bytes, digest),
            StorageOutput::Wants { id, offset_bytes, bytes } => {
                self.link.wants(id, offset_bytes, bytes);
            }
            StorageOutput::End { id, result } => self.link.ended(id, result),
            StorageOutput::Settled(id) => self.link.settle(id),
            StorageOutput::Close(reason) => self.close = Some(reason),
        }
    }

    fn incoming_data(&self, destination: IncomingDestination) -> IncomingData {
        let bytes = self.announced_bytes;
        match destination {
            IncomingDestination::Session => {
                // At most MaxRecvDataSegmentLength: the machine refuses longer ones.
                let buffer = vec![0; bytes as usize];
                IncomingData::Session { buffer, filled: 0 }
            }
            IncomingDestination::Command(id) => match self.link.begin_segment(id, bytes) {
                Some((buffer, in_flight)) => IncomingData::Command { buffer, filled: 0, in_flight },
                None => IncomingData::Discarded,
            },
            IncomingDestination::Discarded => IncomingData::Discarded,
        }
    }

    fn data_in(&mut self, id: TaskId, bytes: u32, digest: Option<u32>) {
        let segment = std::mem::replace(&mut self.segment, IncomingData::Discarded);
        if let IncomingData::Command { buffer, filled, in_flight } = segment
            && filled == bytes as usize
        {
            let data = in_flight.attach(buffer);
            self.link.data_in(id, RelayedPiece { data, digest });
        }
    }
}

impl ConnectionHandler for StorageSocket {
    fn header(&mut self, now: Time, header: Header, out: &mut Outbox) {
        self.segment = IncomingData::Discarded;
        self.announced_bytes = header.data_segment_bytes();
        self.handle(now, StorageInput::Header(header), out);
    }

    fn header_digest_error(&mut self, now: Time, out: &mut Outbox) {
        self.handle(now, StorageInput::HeaderDigestError, out);
    }

    fn payload_buffer(&mut self, _missing: usize) -> &mut [u8] {
        match &mut self.segment {
            IncomingData::Discarded => &mut [],
            IncomingData::Session { buffer, filled } => {
                buffer.get_mut(*filled..).unwrap_or_default()
            }
            IncomingData::Command { buffer, filled, .. } => {
                buffer.get_mut(*filled..).unwrap_or_default()
            }
        }
    }

    fn payload_filled(&mut self, bytes: usize) {
        match &mut self.segment {
            IncomingData::Discarded => {}
            IncomingData::Session { filled, .. } | IncomingData::Command { filled, .. } => {
                *filled += bytes;
            }
        }
    }

    fn payload_end(&mut self, now: Time, digest: SegmentDigest, out: &mut Outbox) {
        let data = match std::mem::replace(&mut self.segment, IncomingData::Discarded) {
            IncomingData::Session { buffer, .. } => buffer.into(),
            segment => {
                self.segment = segment;
                Bytes::new()
            }
        };
        self.handle(now, StorageInput::Payload { data, digest }, out);
    }

    fn poll_work(&mut self, now: Time, context: &mut Context<'_>, out: &mut Outbox) -> Poll<()> {
        let mut worked = !std::mem::replace(&mut self.is_started, true);
        self.handle_outputs(out); // the Login Request
        while let Poll::Ready(input) = self.link.poll_request(context) {
            self.handle(now, input, out);
            worked = true;
        }
        let is_held = !self.link.may_receive();
        if self.is_held && !is_held {
            self.held_until = Some(now.after(AFTER_HOLD_TIME));
            self.session.resumed(now);
            worked = true;
        }
        self.is_held = is_held;
        if worked { Poll::Ready(()) } else { Poll::Pending }
    }

    fn deadline(&self) -> Option<Time> {
        match (self.session.deadline(), self.held_until) {
            _ if self.is_held => None,
            (Some(deadline), Some(held_until)) => Some(deadline.max(held_until)),
            (deadline, _) => deadline,
        }
    }

    fn elapsed(&mut self, now: Time, out: &mut Outbox) {
        self.handle(now, StorageInput::Deadline, out);
    }

    fn peer_closed(&mut self, now: Time, out: &mut Outbox) {
        self.handle(now, StorageInput::PeerClosed, out);
    }

    fn owner(&self) -> Option<OwnerId> {
        Some(self.owner)
    }

    fn buffer_limits(&self) -> BufferLimits {
        let limits = self.memory.buffer_limits();
        let receive_bytes_max = limits.receive_bytes_max.min(RECEIVE_BYTES_MAX);
        BufferLimits { receive_bytes_max, ..limits }
    }

    fn may_hold(&mut self, bytes: BufferedBytes) -> bool {
        self.memory.may_hold(bytes)
    }

    fn can_receive(&self) -> bool {
        self.link.may_receive()
    }

    fn is_over(&self) -> bool {
        self.session.is_closed()
    }
}
