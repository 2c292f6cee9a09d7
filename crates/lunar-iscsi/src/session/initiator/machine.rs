//! The session of an initiator: one CmdSN sequence, one window and one set of tags over all its
//! connections. RFC 7143 §4.2.2.1, §4.2.5.1.

use super::{
    ConnectionEnding, InitiatorSessionOptions, Input, Isid, LoginNumbers, Output, ToConnection,
    ToSession,
};
use crate::pdu::TAG_RESERVED;
use crate::text::SessionParameters;
use alloc::collections::{BTreeMap, VecDeque};
use alloc::vec::Vec;
use hashbrown::HashMap;
use lunar_wire::SerialNumber;

/// A session in the initiator role: no socket, no clock, no lock.
///
/// The session grants CmdSN and Initiator Task Tags; the connections decide how to use them. A
/// request is allegiant to the connection that asked (RFC 7143 §4.2.5.1).
///
/// Contract: before a connection logs in, call [`open`](Self::open); after each
/// [`handle`](Self::handle), call [`poll`](Self::poll) until it returns `None`.
#[derive(Debug)]
pub struct InitiatorSession {
    isid: Isid,
    tsih: u16,
    parameters: Option<SessionParameters>,
    /// CmdSN of the next request.
    cmd_sn: SerialNumber,
    exp_cmd_sn: SerialNumber,
    max_cmd_sn: SerialNumber,
    connections: BTreeMap<u16, Member>,
    /// Requests that wait for the window, oldest first.
    waiting: VecDeque<Waiting>,
    queue_requests_max: u32,
    /// Connections with a running function that blocks numbers, one entry per function.
    holds: Vec<u16>,
    /// Initiator Task Tags in use, and the connection of each.
    tags: HashMap<u32, u16>,
    next_tag: u32,
    /// The connection that logs the session out.
    logging_out: Option<u16>,
    /// The reason why the session is ending, if it is.
    ending: Option<ConnectionEnding>,
    ended: bool,
    outputs: VecDeque<Output>,
}

/// One connection from the session's view.
#[derive(Clone, Copy, Debug, Default)]
struct Member {
    joined: bool,
    /// The newest CmdSN granted to it.
    last_cmd_sn: Option<SerialNumber>,
}

#[derive(Clone, Copy, Debug)]
struct Waiting {
    cid: u16,
    ticket: u64,
    tag: bool,
}

impl InitiatorSession {
    /// Creates a session without connections.
    pub fn new(options: InitiatorSessionOptions) -> Self {
        Self {
            isid: options.isid,
            tsih: 0,
            parameters: None,
            cmd_sn: options.cmd_sn,
            exp_cmd_sn: options.cmd_sn,
            max_cmd_sn: options.cmd_sn.minus(1),
            connections: BTreeMap::new(),
            waiting: VecDeque::new(),
            queue_requests_max: options.queue_requests_max,
            holds: Vec::new(),
            tags: HashMap::new(),
            next_tag: 1,
            logging_out: None,
            ending: None,
            ended: false,
            outputs: VecDeque::new(),
        }
    }

    /// Registers a connection with this CID that is about to log in. `None` if it may not: the
    /// session is ending, the CID is in use, the leading login is not complete, or MaxConnections
    /// is reached.
    pub fn open(&mut self, cid: u16) -> Option<LoginNumbers> {
        let room = match &self.parameters {
            None => self.connections.is_empty(),
            Some(agreed) => self.connections.len() < usize::from(agreed.max_connections),
        };
        if self.ending.is_some() || self.connections.contains_key(&cid) || !room {
            return None;
        }
        self.connections.insert(cid, Member::default());
        Some(LoginNumbers { isid: self.isid, tsih: self.tsih, cmd_sn: self.cmd_sn })
    }

    /// Parameters negotiated by the leading login; `None` before.
    pub fn parameters(&self) -> Option<SessionParameters> {
        self.parameters
    }

    /// True if no request waits and no tag is in use.
    pub fn is_idle(&self) -> bool {
        self.waiting.is_empty() && self.tags.is_empty() && self.holds.is_empty()
    }

    /// Sets the tag counter, so that tests see it wrap.
    #[cfg(test)]
    pub(super) fn start_tags_at(&mut self, tag: u32) {
        self.next_tag = tag;
    }

    /// Handles one input.
    pub fn handle(&mut self, input: Input) {
        match input {
            Input::Connection(cid, message) if self.connections.contains_key(&cid) => {
                self.on_connection(cid, message);
            }
            // A late message of a connection that has ended.
            Input::Connection(..) => {}
            Input::End => self.end(ConnectionEnding::Lost),
        }
        self.grant_waiting();
    }

    /// Returns the next output; `None` if nothing is to be done until the next input.
    pub fn poll(&mut self) -> Option<Output> {
        self.outputs.pop_front()
    }

    fn on_connection(&mut self, cid: u16, message: ToSession) {
        match message {
            ToSession::Joined { tsih, parameters } => self.joined(cid, tsih, parameters),
            ToSession::Request { ticket, immediate, tag } => {
                self.request(Waiting { cid, ticket, tag }, immediate);
            }
            ToSession::Withdraw { ticket } => {
                let waited = self.waiting.len();
                self.waiting.retain(|entry| (entry.cid, entry.ticket) != (cid, ticket));
                if self.waiting.len() < waited {
                    self.send(cid, ToConnection::Refused { ticket });
                }
            }
            ToSession::WithdrawAll => self.waiting.retain(|request| request.cid != cid),
            ToSession::TagFree(tag) => {
                self.tags.remove(&tag);
            }
            ToSession::Window { exp_cmd_sn, max_cmd_sn } => self.window(exp_cmd_sn, max_cmd_sn),
            ToSession::Hold => self.holds.push(cid),
            ToSession::Release => {
                if let Some(at) = self.holds.iter().position(|holder| *holder == cid) {
                    self.holds.swap_remove(at);
                }
            }
            ToSession::TasksEnded { lun, before } => {
                self.send_to_others(cid, ToConnection::TasksEnded { lun, before });
            }
            ToSession::LoggingOut => {
                self.ending = Some(ConnectionEnding::SessionLogout);
                self.logging_out = Some(cid);
                self.refuse_waiting();
                self.send_to_others(cid, ToConnection::LoggingOut);
            }
            ToSession::Closed { ending } => self.closed(cid, ending),
        }
    }

    fn joined(&mut self, cid: u16, tsih: u16, parameters: SessionParameters) {
        if let Some(member) = self.connections.get_mut(&cid) {
            member.joined = true;
        }
        if self.parameters.is_none() {
            self.tsih = tsih;
            self.parameters = Some(parameters);
            self.outputs.push_back(Output::Established { tsih, parameters });
        }
    }

    fn request(&mut self, request: Waiting, immediate: bool) {
        let joined = self.connections.get(&request.cid).is_some_and(|member| member.joined);
        if self.ending.is_some() || !joined {
            return self.send(request.cid, ToConnection::Refused { ticket: request.ticket });
        }
        if immediate {
            let cmd_sn = self.cmd_sn;
            return self.grant(request, cmd_sn);
        }
        if self.waiting.is_empty() && self.window_is_open() {
            return self.grant_next(request);
        }
        if self.waiting.len() < self.queue_requests_max as usize {
            self.waiting.push_back(request);
        } else {
            self.send(request.cid, ToConnection::Refused { ticket: request.ticket });
        }
    }

    fn window_is_open(&self) -> bool {
        self.holds.is_empty() && self.cmd_sn.within(self.exp_cmd_sn, self.max_cmd_sn)
    }

    fn grant_waiting(&mut self) {
        while self.ending.is_none() && self.window_is_open() {
            match self.waiting.pop_front() {
                Some(request) => self.grant_next(request),
                None => break,
            }
        }
    }

    fn grant_next(&mut self, request: Waiting) {
        let cmd_sn = self.cmd_sn.take();
        if let Some(member) = self.connections.get_mut(&request.cid) {
            member.last_cmd_sn = Some(cmd_sn);
        }
        self.grant(request, cmd_sn);
    }

    fn grant(&mut self, request: Waiting, cmd_sn: SerialNumber) {
        let Waiting { cid, ticket, tag } = request;
        let initiator_task_tag = if tag { self.new_tag(cid) } else { TAG_RESERVED };
        self.send(cid, ToConnection::Grant { ticket, cmd_sn, initiator_task_tag });
    }

    /// Allocates a tag that is not in use, and was not used for as long as possible, so that a late
    /// PDU is not taken for an answer to a newer request.
    fn new_tag(&mut self, cid: u16) -> u32 {
        while self.next_tag == TAG_RESERVED || self.tags.contains_key(&self.next_tag) {
            self.next_tag = self.next_tag.wrapping_add(1);
        }
        let tag = self.next_tag;
        self.next_tag = tag.wrapping_add(1);
        self.tags.insert(tag, cid);
        tag
    }

    /// Applies the window of a PDU if it is newer. RFC 7143 §4.2.2.1: a MaxCmdSN below ExpCmdSN − 1
    /// invalidates both, and PDUs of several connections may arrive out of order.
    fn window(&mut self, exp_cmd_sn: SerialNumber, max_cmd_sn: SerialNumber) {
        if max_cmd_sn.before(exp_cmd_sn.minus(1)) || exp_cmd_sn.after(self.cmd_sn) {
            return;
        }
        if exp_cmd_sn.after(self.exp_cmd_sn) {
            self.exp_cmd_sn = exp_cmd_sn;
        }
        if max_cmd_sn.after(self.max_cmd_sn) {
            self.max_cmd_sn = max_cmd_sn;
        }
    }

    fn closed(&mut self, cid: u16, ending: ConnectionEnding) {
        let member = self.connections.remove(&cid).unwrap_or_default();
        self.waiting.retain(|request| request.cid != cid);
        self.tags.retain(|_, user| *user != cid);
        self.holds.retain(|holder| *holder != cid);
        let session_goes = match ending {
            ConnectionEnding::SessionLogout | ConnectionEnding::Violation => true,
            ConnectionEnding::ConnectionLogout | ConnectionEnding::NotJoined => false,
            // The target closes the others first; the logout response is still to come.
            ConnectionEnding::Lost if self.logging_out.is_some() => self.logging_out == Some(cid),
            ConnectionEnding::Lost => self.leaves_gap(member),
        };
        if session_goes || self.connections.is_empty() {
            self.end(ending);
        }
    }

    /// True if a CmdSN may be lost with the connection. If the CmdSN never reached the target, it
    /// would block every later one: at ErrorRecoveryLevel 0 only a new session helps.
    fn leaves_gap(&self, member: Member) -> bool {
        member.last_cmd_sn.is_some_and(|last| !last.before(self.exp_cmd_sn))
    }

    fn end(&mut self, ending: ConnectionEnding) {
        let ending = *self.ending.get_or_insert(ending);
        self.refuse_waiting();
        let cids: Vec<u16> = self.connections.keys().copied().collect();
        for cid in cids {
            self.send(cid, ToConnection::Close);
        }
        if self.connections.is_empty() && !self.ended {
            self.ended = true;
            self.outputs.push_back(Output::Ended(ending));
        }
    }

    fn refuse_waiting(&mut self) {
        while let Some(Waiting { cid, ticket, .. }) = self.waiting.pop_front() {
            self.send(cid, ToConnection::Refused { ticket });
        }
    }

    fn send(&mut self, cid: u16, message: ToConnection) {
        self.outputs.push_back(Output::ToConnection(cid, message));
    }

    fn send_to_others(&mut self, cid: u16, message: ToConnection) {
        let others: Vec<u16> =
            self.connections.keys().copied().filter(|other| *other != cid).collect();
        for other in others {
            self.send(other, message);
        }
    }
}
