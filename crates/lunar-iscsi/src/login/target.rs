//! The target's side of a login. RFC 7143 §6.3, §11.12, §11.13, §12.
//!
//! [`TargetLogin`] checks headers, assembles texts and sends responses; the `Expect…` states of
//! `target_states` interpret a complete text, and each is consumed by its `handle`.

use super::target_states::{
    ExpectFirst, ExpectIdentity, ExpectJoined, Refusal, State, first_declarations,
};
use super::{AdmissionDecision, Claim, Join, Joined};
use crate::framing::{Header, Pdu};
use crate::pdu::{
    FirstByte, LoginFlags, LoginRequest, LoginResponse, LoginStatus, Opcode, Stage, TAG_RESERVED,
};
use crate::text::{Key, KeySet, Pair, Reassembler, Segmenter, TextBuilder, Violation, parse};
use alloc::boxed::Box;
use alloc::string::String;
use alloc::vec::Vec;
use bytes::Bytes;
use lunar_wire::{SerialNumber, U24};

/// The version of RFC 7143. §11.12.4.
const VERSION: u8 = 0;

/// Maximum data segment of a login PDU in both directions: the default MaxRecvDataSegmentLength
/// applies during login. RFC 7143 §6.3.
pub const LOGIN_SEGMENT_BYTES_MAX: usize = 8192;

/// Maximum number of Login Requests in one login. RFC 7143 §6.2 requires at least six exchanges;
/// this limit also allows text in small pieces.
pub const LOGIN_PDUS_MAX: u32 = 256;

/// A request of the login to the connection that runs it.
#[derive(Clone, Debug)]
pub enum Step {
    /// Send this Login Response. Its numbers are already stamped.
    Send(Pdu),
    /// Ask the policy about this claim; answer with [`TargetLogin::identified`].
    Identify(Claim),
    /// Request the session; answer with [`TargetLogin::joined`].
    Join(Join),
    /// The final response was emitted as `Send`: full feature phase begins after it.
    Complete(Box<Established>),
    /// The login was refused or redirected; its response was emitted as `Send`. Close.
    Refused(LoginStatus),
    /// Close without a response.
    Close(&'static str),
}

/// The result of a login.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Established {
    /// Identity of the initiator, and the negotiated parameters.
    pub join: Join,
    /// The session.
    pub joined: Joined,
    /// StatSN of the next response on this connection.
    pub next_stat_sn: SerialNumber,
}

/// The login of one connection in the target role. Counts StatSN until it is complete.
#[derive(Debug)]
pub struct TargetLogin {
    stat_sn: SerialNumber,
    first: Option<LoginRequest>,
    /// The current request, or the last one.
    request: Option<LoginRequest>,
    requests: u32,
    stage: Stage,
    incoming: Reassembler,
    outgoing: Segmenter,
    seen: KeySet,
    /// Values of the first text that may be repeated once (decision 030).
    first_declarations: Vec<(Key, String)>,
    state: State,
    reason: Option<String>,
}

impl TargetLogin {
    /// Creates the login of a new connection; `first_stat_sn` goes into its first response. At most
    /// `text_bytes_max` bytes are held of a text that comes in several requests.
    pub fn new(first_stat_sn: SerialNumber, text_bytes_max: usize) -> Self {
        Self {
            stat_sn: first_stat_sn,
            first: None,
            request: None,
            requests: 0,
            stage: Stage::SECURITY_NEGOTIATION,
            incoming: Reassembler::new(text_bytes_max),
            outgoing: Segmenter::default(),
            seen: KeySet::EMPTY,
            first_declarations: Vec::new(),
            state: State::First(ExpectFirst),
            reason: None,
        }
    }

    /// Memory of the texts and keys of the login.
    pub(crate) fn memory_bytes(&self) -> usize {
        let declarations = self.first_declarations.iter();
        self.incoming.memory_bytes()
            + self.outgoing.memory_bytes()
            + self.seen.memory_bytes()
            + self.first_declarations.capacity() * size_of::<(Key, String)>()
            + declarations.map(|(_, value)| value.capacity()).sum::<usize>()
    }

    /// Checks a header. Returns `true` if its data segment (at most [`LOGIN_SEGMENT_BYTES_MAX`]
    /// bytes) is to be received as `DataDestination::Control` and passed to
    /// [`on_payload`](Self::on_payload). A request without data segment is complete, and handled
    /// here.
    pub fn on_header(&mut self, header: &Header, steps: &mut Vec<Step>) -> bool {
        if self.is_over() {
            return false;
        }
        if header.opcode() != Opcode::LOGIN_REQUEST {
            // RFC 7143 §4.2.4.
            match self.first {
                None => self.close("the first PDU is not a Login Request", steps),
                Some(_) => self.refuse(
                    Refusal::new(LoginStatus::INVALID_DURING_LOGIN, "not a Login Request"),
                    steps,
                ),
            }
            return false;
        }
        let request = LoginRequest::decode(&header.bhs);
        let checked = self.check(&request);
        // A refusal carries the tags of the request it answers.
        self.request = Some(request);
        self.first.get_or_insert(request);
        if let Err(refusal) = checked {
            self.refuse(refusal, steps);
            return false;
        }
        if request.data_segment_length.value() > 0 {
            return true;
        }
        self.on_payload(Bytes::new(), steps);
        false
    }

    /// Handles the data segment of the request whose header was checked.
    pub fn on_payload(&mut self, data: Bytes, steps: &mut Vec<Step>) {
        if self.is_over() || self.is_waiting_for_driver() {
            return;
        }
        if let Err(refusal) = self.take(&data, steps) {
            self.refuse(refusal, steps);
        }
    }

    /// Handles the answer to [`Step::Identify`].
    pub fn identified(&mut self, answer: AdmissionDecision, steps: &mut Vec<Step>) {
        if !matches!(self.state, State::Identity(_)) {
            return;
        }
        let State::Identity(state) = core::mem::take(&mut self.state) else { return };
        match answer {
            AdmissionDecision::Admit(admission) => {
                let result = self.admit(state, admission, steps);
                if let Err(refusal) = result {
                    self.refuse(refusal, steps);
                }
            }
            AdmissionDecision::Redirect { address, permanent } => {
                let status = if permanent {
                    LoginStatus::TARGET_MOVED_PERMANENTLY
                } else {
                    LoginStatus::TARGET_MOVED_TEMPORARILY
                };
                let mut text = TextBuilder::new();
                // RFC 7143 §13.8: no portal group tag in a redirect.
                let address = address.split(',').next().unwrap_or_default();
                text.key(Key::TargetAddress, address);
                self.end(status, text.into_bytes().into(), steps);
            }
            AdmissionDecision::Refuse(status) => {
                self.refuse(Refusal::new(status, "refused by policy"), steps);
            }
        }
    }

    /// Handles the answer to [`Step::Join`].
    pub fn joined(&mut self, answer: Result<Joined, LoginStatus>, steps: &mut Vec<Step>) {
        if !matches!(self.state, State::Joined(_)) {
            return;
        }
        let State::Joined(ExpectJoined { join }) = core::mem::take(&mut self.state) else {
            return;
        };
        match answer {
            Ok(joined) => {
                let flags = LoginFlags::stage(self.stage, Some(Stage::FULL_FEATURE_PHASE));
                let text = self.outgoing.next(LOGIN_SEGMENT_BYTES_MAX);
                let mut response = self.response(flags);
                response.tsih = joined.tsih;
                response.exp_cmd_sn = joined.exp_cmd_sn;
                response.max_cmd_sn = joined.max_cmd_sn;
                steps.push(Step::Send(Pdu::with_data(response.encode(), text)));
                let next_stat_sn = self.stat_sn;
                steps.push(Step::Complete(Box::new(Established { join, joined, next_stat_sn })));
            }
            Err(status) => self.refuse(Refusal::new(status, "refused by the session"), steps),
        }
    }

    /// True until [`Step::Identify`] or [`Step::Join`] is answered. A request that arrives
    /// meanwhile is refused: RFC 7143 §6.3 allows one outstanding request.
    pub const fn is_waiting_for_driver(&self) -> bool {
        matches!(self.state, State::Identity(_) | State::Joined(_))
    }

    /// True if complete, refused or closed: nothing more is done.
    pub const fn is_over(&self) -> bool {
        matches!(self.state, State::Ended)
    }

    /// The reason of a refusal, for the log.
    pub fn reason(&self) -> Option<&str> {
        self.reason.as_deref()
    }

    /// Checks the header without its text. RFC 7143 §6.3, §11.12.
    fn check(&mut self, request: &LoginRequest) -> Result<(), Refusal> {
        let wrong = |what| Err(Refusal::new(LoginStatus::INITIATOR_ERROR, what));
        self.requests += 1;
        if self.requests > LOGIN_PDUS_MAX {
            return wrong("too many Login Requests");
        }
        if self.is_waiting_for_driver() {
            return wrong("a second Login Request while one is outstanding");
        }
        if request.version_min > VERSION {
            let what = "no common iSCSI version";
            return Err(Refusal::new(LoginStatus::UNSUPPORTED_VERSION, what));
        }
        if request.data_segment_length.value() as usize > LOGIN_SEGMENT_BYTES_MAX {
            return wrong("the data segment exceeds 8192 bytes");
        }
        if request.total_ahs_words != 0 {
            return wrong("an additional header segment is not allowed in a login");
        }
        if request.initiator_task_tag == TAG_RESERVED {
            return wrong("the reserved Initiator Task Tag");
        }
        if let Some(first) = &self.first
            && !same_login(first, request)
        {
            return wrong("ISID, TSIH, CID, Initiator Task Tag, version or CmdSN changed");
        }
        if let Some(what) = self.wrong_stage(request) {
            return wrong(what);
        }
        if self.first.is_none() {
            self.stage = request.flags.current();
        }
        Ok(())
    }

    fn wrong_stage(&self, request: &LoginRequest) -> Option<&'static str> {
        let (flags, current) = (request.flags, request.flags.current());
        let negotiation = [Stage::SECURITY_NEGOTIATION, Stage::OPERATIONAL_NEGOTIATION];
        if !negotiation.contains(&current) {
            return Some("an invalid current stage");
        }
        if self.first.is_some() && current != self.stage {
            return Some("a current stage that the login has not reached");
        }
        if !flags.has(LoginFlags::TRANSIT) {
            return None;
        }
        let next = flags.next();
        let forward = next == Stage::FULL_FEATURE_PHASE
            || (next == Stage::OPERATIONAL_NEGOTIATION && current != next);
        if flags.has(LoginFlags::CONTINUE) {
            Some("T and C in one request")
        } else if !forward {
            Some("an invalid next stage")
        } else {
            None
        }
    }

    /// Takes a data segment; once its text is complete, the state handles it.
    fn take(&mut self, data: &[u8], steps: &mut Vec<Step>) -> Result<(), Refusal> {
        let Some(request) = self.request else { return Ok(()) };
        let more = request.flags.has(LoginFlags::CONTINUE);
        if !self.outgoing.is_empty() {
            // RFC 7143 §6.2: a response with C is answered with an empty request.
            return if more || !data.is_empty() {
                Err(Violation::OutOfTurn.into())
            } else {
                self.emit(steps)
            };
        }
        let Some(text) = self.incoming.add(data, more)? else {
            self.send(LoginFlags::stage(self.stage, None), Bytes::new(), steps);
            return Ok(());
        };
        let mut pairs = parse(&text)?;
        pairs.retain(|pair| !self.repeats_declaration(pair));
        for pair in &pairs {
            self.seen.record(pair)?;
        }
        let mut answers = TextBuilder::new();
        self.state = match core::mem::take(&mut self.state) {
            State::First(state) => {
                let next = state.handle(&request, &pairs)?;
                self.first_declarations = first_declarations(&pairs);
                steps.push(Step::Identify(next.claim.clone()));
                self.state = State::Identity(ExpectIdentity { text, ..next });
                return Ok(());
            }
            state => state.handle(&pairs, &mut answers)?,
        };
        self.outgoing = Segmenter::new(answers.into_bytes());
        self.emit(steps)
    }

    /// True for a name or the session type that is repeated unchanged: libiscsi opens its second
    /// stage like its first when the target declines the CHAP it offers.
    fn repeats_declaration(&mut self, pair: &Pair<'_>) -> bool {
        let position = self
            .first_declarations
            .iter()
            .position(|(key, value)| pair.key == Some(*key) && pair.value == value.as_str());
        position.map(|index| self.first_declarations.swap_remove(index)).is_some()
    }

    fn admit(
        &mut self,
        state: ExpectIdentity,
        admission: super::Admission,
        steps: &mut Vec<Step>,
    ) -> Result<(), Refusal> {
        let mut answers = TextBuilder::new();
        self.state = state.admitted(self.stage, admission, &mut answers)?;
        self.outgoing = Segmenter::new(answers.into_bytes());
        self.emit(steps)
    }

    /// Sends the next piece of the outgoing text; the last piece carries the transit if it was
    /// requested and can be granted.
    fn emit(&mut self, steps: &mut Vec<Step>) -> Result<(), Refusal> {
        let Some(request) = self.request else { return Ok(()) };
        if self.outgoing.remaining_bytes() > LOGIN_SEGMENT_BYTES_MAX {
            let text = self.outgoing.next(LOGIN_SEGMENT_BYTES_MAX);
            let flags = LoginFlags::stage(self.stage, None).with(LoginFlags::CONTINUE);
            self.send(flags, text, steps);
            return Ok(());
        }
        let asked = request.flags.has(LoginFlags::TRANSIT).then(|| request.flags.next());
        let granted = asked.filter(|_| self.state.may_leave());
        if granted == Some(Stage::FULL_FEATURE_PHASE) {
            let state = core::mem::take(&mut self.state).into_join(&request)?;
            steps.push(Step::Join(state.join.clone()));
            self.state = State::Joined(state);
            return Ok(());
        }
        let flags = LoginFlags::stage(self.stage, granted);
        let text = self.outgoing.next(LOGIN_SEGMENT_BYTES_MAX);
        self.send(flags, text, steps);
        if let Some(next) = granted {
            self.stage = next;
            self.state = core::mem::take(&mut self.state).into_operational();
        }
        Ok(())
    }

    fn send(&mut self, flags: LoginFlags, text: Bytes, steps: &mut Vec<Step>) {
        let response = self.response(flags);
        steps.push(Step::Send(Pdu::with_data(response.encode(), text)));
    }

    fn refuse(&mut self, refusal: Refusal, steps: &mut Vec<Step>) {
        self.reason = Some(refusal.what);
        self.end(refusal.status, Bytes::new(), steps);
    }

    /// Sends a response with a status other than success; T, CSG and NSG are reserved then.
    fn end(&mut self, status: LoginStatus, text: Bytes, steps: &mut Vec<Step>) {
        let mut response = self.response(LoginFlags::NONE);
        response.status = status;
        steps.push(Step::Send(Pdu::with_data(response.encode(), text)));
        steps.push(Step::Refused(status));
        self.finish();
    }

    fn close(&mut self, why: &'static str, steps: &mut Vec<Step>) {
        self.reason = Some(why.into());
        steps.push(Step::Close(why));
        self.finish();
    }

    /// Releases all held data.
    fn finish(&mut self) {
        self.state = State::Ended;
        self.incoming.reset();
        self.outgoing = Segmenter::default();
    }

    /// Builds a response to the current request. Until the session reports its window, the numbers
    /// say that nothing but the login's own CmdSN is expected.
    fn response(&mut self, flags: LoginFlags) -> LoginResponse {
        let request = self.request.or(self.first);
        let cmd_sn = request.map_or(SerialNumber(0), |request| request.cmd_sn);
        LoginResponse {
            first: FirstByte::plain(Opcode::LOGIN_RESPONSE),
            flags,
            version_max: VERSION,
            version_active: VERSION,
            total_ahs_words: 0,
            data_segment_length: U24::truncate(0),
            isid: request.map_or([0; 6], |request| request.isid),
            tsih: request.map_or(0, |request| request.tsih),
            initiator_task_tag: request.map_or(0, |request| request.initiator_task_tag),
            stat_sn: self.stat_sn.take(),
            exp_cmd_sn: cmd_sn,
            max_cmd_sn: cmd_sn,
            status: LoginStatus::SUCCESS,
        }
    }
}

/// True if the fixed fields are unchanged during a login. RFC 7143 §11.12.4 to §11.12.8: CmdSN may
/// rise while other connections of the session continue.
fn same_login(first: &LoginRequest, request: &LoginRequest) -> bool {
    let identity = |login: &LoginRequest| {
        let tags = (login.isid, login.tsih, login.cid, login.initiator_task_tag);
        (tags, login.version_max, login.version_min)
    };
    let cmd_sn_ok = if first.tsih == 0 {
        first.cmd_sn == request.cmd_sn
    } else {
        !request.cmd_sn.before(first.cmd_sn)
    };
    identity(first) == identity(request) && cmd_sn_ok
}
