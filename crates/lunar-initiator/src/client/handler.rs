//! A connection as its driver sees it.

use super::{ConnectionClient, LogoutProgress, PendingRequest, SegmentDestination};
use crate::{Error, ErrorKind};
use bytes::Bytes;
use lunar_iscsi::connection::initiator::Input;
use lunar_iscsi::framing::{Header, SegmentDigest};
use lunar_net::Outbox;
use lunar_wire::Time;
use std::task::{Context, Poll};

impl lunar_net::ConnectionHandler for ConnectionClient {
    fn header(&mut self, now: Time, header: Header, out: &mut Outbox) {
        self.segment_bytes = header.data_segment_bytes() as usize;
        self.filling = SegmentDestination::Discarded;
        self.handle(now, Input::Header(header), out);
    }

    fn header_digest_error(&mut self, now: Time, out: &mut Outbox) {
        self.handle(now, Input::HeaderDigestError, out);
    }

    fn payload_buffer(&mut self, _missing: usize) -> &mut [u8] {
        match &mut self.filling {
            SegmentDestination::Discarded => &mut [],
            SegmentDestination::Control { buffer, filled } => {
                buffer.get_mut(*filled..).unwrap_or_default()
            }
            SegmentDestination::Command { id, at } => match self.pending.get_mut(id) {
                Some(PendingRequest::Command { data_in: Some(buffer), .. }) => {
                    buffer.get_mut(*at..).unwrap_or_default()
                }
                _ => &mut [],
            },
        }
    }

    fn payload_filled(&mut self, bytes: usize) {
        match &mut self.filling {
            SegmentDestination::Discarded => {}
            SegmentDestination::Control { filled, .. } => *filled += bytes,
            SegmentDestination::Command { at, .. } => *at += bytes,
        }
    }

    fn payload_end(&mut self, now: Time, digest: SegmentDigest, out: &mut Outbox) {
        let data = match std::mem::replace(&mut self.filling, SegmentDestination::Discarded) {
            SegmentDestination::Control { buffer, .. } => Bytes::from(buffer),
            _ => Bytes::new(),
        };
        self.handle(now, Input::Payload { data, digest }, out);
    }

    fn poll_work(&mut self, now: Time, context: &mut Context<'_>, out: &mut Outbox) -> Poll<()> {
        let mut worked = false;
        if !self.started {
            // The login request is ready in the state machine from the start.
            self.started = true;
            self.handle_outputs(now, out);
            worked = true;
        }
        if self.link.mailbox.poll(context) {
            self.link.mailbox.take(&mut self.inbox);
            self.process_inbox(now);
            self.handle_outputs(now, out);
            worked = true;
        }
        worked |= self.poll_requests(now, context, out);
        self.leave_when_drained(now, out);
        worked |= self.has_messages();
        self.exchange_messages(now, out);
        if worked { Poll::Ready(()) } else { Poll::Pending }
    }

    fn deadline(&self) -> Option<Time> {
        let drained = match self.leaving {
            LogoutProgress::Draining(by) if self.logged_in => Some(by),
            _ => None,
        };
        let aborted = self.abort_deadline();
        let due = self.due.front().map(|(_, by)| *by);
        [self.deadline, drained, aborted, self.aborts_from, due].into_iter().flatten().min()
    }

    fn elapsed(&mut self, now: Time, out: &mut Outbox) {
        if self.abort_deadline().is_some_and(|by| by <= now) {
            self.aborts.clear();
            self.waiting_aborts.clear();
            let what = format!("{} did not answer an ABORT TASK", self.portal);
            self.session_state.end(&Error::new(ErrorKind::SessionLost, what));
        }
        self.fail_overdue(now);
        self.send_aborts(now);
        self.handle(now, Input::Deadline, out);
    }

    fn peer_closed(&mut self, now: Time, out: &mut Outbox) {
        self.handle(now, Input::PeerClosed, out);
    }

    fn can_receive(&self) -> bool {
        true
    }

    fn is_over(&self) -> bool {
        self.close_reason.is_some()
    }
}
