//! The initiator's side of a login. Mirrors `target`. RFC 7143 §6.3, §11.12, §11.13, §12.

use super::initiator_states::{Failure, State, TargetDeclarations};
use super::target::{LOGIN_PDUS_MAX, LOGIN_SEGMENT_BYTES_MAX};
use super::{ChapAlgorithm, Credential, SessionType};
use crate::framing::{Header, Pdu};
use crate::pdu::{FirstByte, LoginFlags, LoginRequest, LoginResponse, LoginStatus, Opcode, Stage};
use crate::text::{
    ConnectionParameters, Key, KeySet, Offer, Reassembler, Segmenter, SessionParameters,
    TextBuilder, Violation, parse,
};
use alloc::boxed::Box;
use alloc::string::String;
use alloc::vec::Vec;
use bytes::Bytes;
use lunar_wire::{SerialNumber, U24};

/// Options of one login.
#[derive(Clone, Debug)]
pub struct InitiatorLoginOptions {
    /// InitiatorName.
    pub initiator_name: String,
    /// InitiatorAlias.
    pub alias: Option<String>,
    /// TargetName; needed for a normal session.
    pub target_name: Option<String>,
    /// Discovery or normal.
    pub session_type: SessionType,
    /// The initiator's part of the session identifier.
    pub isid: [u8; 6],
    /// 0 for a new session, else the session to join.
    pub tsih: u16,
    /// Connection ID.
    pub cid: u16,
    /// The login's Initiator Task Tag; any but the reserved one.
    pub initiator_task_tag: u32,
    /// Initial or current CmdSN of the session.
    pub cmd_sn: SerialNumber,
    /// The values we propose.
    pub offer: Offer,
    /// CHAP credentials. `None`: the login starts in the operational stage.
    pub chap: Option<ChapAnswer>,
    /// Fresh random bytes from the operating system, for our own challenge.
    pub entropy: [u8; 33],
}

impl InitiatorLoginOptions {
    /// True if the login begins a session; otherwise it joins an existing one. RFC 7143 §6.3.1.
    pub(super) const fn is_leading(&self) -> bool {
        self.tsih == 0
    }
}

/// Credentials of the initiator, and those required of the target.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct ChapAnswer {
    /// CHAP_A, best first.
    pub algorithms: Vec<ChapAlgorithm>,
    /// Our name and secret.
    pub credential: Credential,
    /// Mutual CHAP: the login fails if the target does not prove this.
    pub expect_target: Option<Credential>,
}

/// A request of the login to the connection that runs it.
#[derive(Clone, Debug)]
pub enum Step {
    /// Send this Login Request.
    Send(Pdu),
    /// Logged in: full feature phase.
    Complete(Box<Established>),
    /// The login failed; close.
    Failed(LoginFailure),
}

/// The result of a login.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Established {
    /// The session's handle; 0 only in a discovery session of an old target, against
    /// RFC 7143 §11.13.3.
    pub tsih: u16,
    /// Parameters negotiated for the session (valid on its leading connection).
    pub session: SessionParameters,
    /// Parameters negotiated for this connection.
    pub connection: ConnectionParameters,
    /// The next StatSN this connection expects.
    pub exp_stat_sn: SerialNumber,
    /// ExpCmdSN of the target's command window.
    pub exp_cmd_sn: SerialNumber,
    /// MaxCmdSN of the target's command window.
    pub max_cmd_sn: SerialNumber,
    /// TargetPortalGroupTag, if received.
    pub portal_group_tag: Option<u16>,
    /// TargetAlias, if received.
    pub target_alias: Option<String>,
}

/// The reason why a login failed.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct LoginFailure {
    /// The status of the target, if the target refused the login.
    pub status: Option<LoginStatus>,
    /// TargetAddress of a target that moved, and whether it moved permanently. RFC 7143 §11.13.5
    /// class 1.
    pub redirect: Option<(String, bool)>,
    /// Hash of our proof, if the failure is the response to this proof.
    pub proven_by: Option<ChapAlgorithm>,
    /// Description of the failure.
    pub what: String,
}

/// The login of one connection in the initiator role.
#[derive(Debug)]
pub struct InitiatorLogin {
    options: InitiatorLoginOptions,
    stage: Stage,
    /// The next stage requested by the outstanding request.
    asked: Option<Stage>,
    /// A transit to request once all of the text is sent.
    pending: Option<Stage>,
    outstanding: bool,
    /// True if the operational keys were sent, and no response has come since.
    proposal_unanswered: bool,
    response: Option<LoginResponse>,
    responses: u32,
    exp_stat_sn: SerialNumber,
    incoming: Reassembler,
    outgoing: Segmenter,
    seen: KeySet,
    declarations: TargetDeclarations,
    state: State,
}

impl InitiatorLogin {
    /// Creates a login that has sent nothing.
    pub fn new(options: InitiatorLoginOptions) -> Self {
        Self {
            options,
            stage: Stage::OPERATIONAL_NEGOTIATION,
            asked: None,
            pending: None,
            outstanding: false,
            proposal_unanswered: false,
            response: None,
            responses: 0,
            exp_stat_sn: SerialNumber(0),
            incoming: Reassembler::default(),
            outgoing: Segmenter::default(),
            seen: KeySet::EMPTY,
            declarations: TargetDeclarations::default(),
            state: State::Ended,
        }
    }

    /// Sends the first request. Call it once.
    pub fn start(&mut self, steps: &mut Vec<Step>) {
        let mut text = TextBuilder::new();
        self.open(&mut text);
        match State::first(&self.options, &mut text) {
            Ok((stage, next, state)) => {
                self.stage = stage;
                self.state = state;
                self.proposal_unanswered = stage == Stage::OPERATIONAL_NEGOTIATION;
                self.say(text, Some(next), steps);
            }
            Err(failure) => self.fail(failure, steps),
        }
    }

    /// Checks a header. Returns `true` if its data segment (at most [`LOGIN_SEGMENT_BYTES_MAX`]
    /// bytes) is to be received as `DataDestination::Control` and passed to
    /// [`on_payload`](Self::on_payload).
    pub fn on_header(&mut self, header: &Header, steps: &mut Vec<Step>) -> bool {
        if self.is_over() {
            return false;
        }
        let response = match self.check(header) {
            Ok(response) => response,
            Err(failure) => {
                self.fail(failure, steps);
                return false;
            }
        };
        self.outstanding = false;
        self.proposal_unanswered = false;
        self.exp_stat_sn = response.stat_sn.next();
        self.response = Some(response);
        if response.data_segment_length.value() > 0 {
            return true;
        }
        self.on_payload(Bytes::new(), steps);
        false
    }

    /// Handles the data segment of the response whose header was checked.
    pub fn on_payload(&mut self, data: Bytes, steps: &mut Vec<Step>) {
        let Some(response) = self.response.take() else { return };
        let result = if response.status == LoginStatus::SUCCESS {
            self.take(&response, &data, steps)
        } else {
            Err(refused(response.status, &data))
        };
        if let Err(failure) = result {
            self.fail(failure, steps);
        }
    }

    /// True if the login is complete or failed.
    pub const fn is_over(&self) -> bool {
        matches!(self.state, State::Ended)
    }

    /// True if keys that RFC 3720 does not define were proposed and the target has not responded
    /// since. Old targets close the connection on such keys.
    pub fn newer_keys_are_unanswered(&self) -> bool {
        self.proposal_unanswered && self.state.has_proposed_newer_keys()
    }

    /// Adds the names, which the first request of every connection must carry, and the session
    /// type, which only the leading login carries. RFC 7143 §6.3.1, §13.21.
    fn open(&self, text: &mut TextBuilder) {
        let options = &self.options;
        text.key(Key::InitiatorName, &options.initiator_name);
        if let Some(alias) = &options.alias {
            text.key(Key::InitiatorAlias, alias);
        }
        if let Some(name) = &options.target_name {
            text.key(Key::TargetName, name);
        }
        if options.is_leading() {
            let word = match options.session_type {
                SessionType::Normal => "Normal",
                SessionType::Discovery => "Discovery",
            };
            text.key(Key::SessionType, word);
        }
    }

    /// Checks the header without its text. RFC 7143 §6.3, §11.13.
    fn check(&mut self, header: &Header) -> Result<LoginResponse, Failure> {
        let response = LoginResponse::decode(&header.bhs);
        let flags = response.flags;
        self.responses += 1;
        let wrong = if header.opcode() != Opcode::LOGIN_RESPONSE {
            Some("the target answered the login with another PDU than a Login Response")
        } else if !self.outstanding {
            Some("a Login Response without a request")
        } else if self.responses > LOGIN_PDUS_MAX {
            Some("the login takes too many PDUs")
        } else if response.initiator_task_tag != self.options.initiator_task_tag {
            Some("a Login Response with another Initiator Task Tag")
        } else if response.data_segment_length.value() as usize > LOGIN_SEGMENT_BYTES_MAX {
            Some("the data segment of a Login Response exceeds 8192 bytes")
        } else if response.status != LoginStatus::SUCCESS {
            None
        } else if response.version_active != 0 {
            Some("an unsupported iSCSI version")
        } else if flags.current() != self.stage {
            Some("a Login Response for another stage")
        } else {
            self.wrong_transit(flags)
        };
        wrong.map_or(Ok(response), |what| Err(Failure::violation(what)))
    }

    /// Checks that a transit was requested, goes forward, and not further than requested.
    /// RFC 7143 §6.3.
    fn wrong_transit(&self, flags: LoginFlags) -> Option<&'static str> {
        if !flags.has(LoginFlags::TRANSIT) {
            return None;
        }
        let next = flags.next();
        match self.asked {
            _ if flags.has(LoginFlags::CONTINUE) => Some("T and C in one response"),
            None => Some("a stage transition that was not requested"),
            Some(asked) if next > asked || next <= self.stage || next == Stage(2) => {
                Some("a transition to a stage that was not requested")
            }
            Some(_) => None,
        }
    }

    /// Takes a data segment; once its text is complete, the state handles it.
    fn take(
        &mut self,
        response: &LoginResponse,
        data: &[u8],
        steps: &mut Vec<Step>,
    ) -> Result<(), Failure> {
        let more = response.flags.has(LoginFlags::CONTINUE);
        if !self.outgoing.is_empty() {
            if more || !data.is_empty() {
                return Err(Violation::OutOfTurn.into());
            }
            self.emit(steps);
            return Ok(());
        }
        let Some(text) = self.incoming.add(data, more)? else {
            // RFC 7143 §6.2: an empty request fetches the rest.
            self.send(None, false, Bytes::new(), steps);
            return Ok(());
        };
        let granted = response.flags.has(LoginFlags::TRANSIT).then(|| response.flags.next());
        let pairs = parse(&text)?;
        for pair in &pairs {
            self.seen.record(pair)?;
        }
        let mut answers = TextBuilder::new();
        let rest = self.declarations.take_declarations(&pairs, &mut answers)?;
        let state = core::mem::take(&mut self.state);
        let state = state.handle(&self.options, &rest, granted, &mut answers)?;
        if granted == Some(Stage::FULL_FEATURE_PHASE) {
            let established = self.established(response, state)?;
            steps.push(Step::Complete(Box::new(established)));
            return Ok(());
        }
        self.stage = granted.unwrap_or(self.stage);
        self.state = state;
        self.proposal_unanswered = granted == Some(Stage::OPERATIONAL_NEGOTIATION);
        let ask = self.state.requested_stage();
        self.say(answers, ask, steps);
        Ok(())
    }

    fn established(
        &mut self,
        response: &LoginResponse,
        state: State,
    ) -> Result<Established, Failure> {
        let known = self.options.tsih;
        // No connection ever joins a discovery session, and old targets give it no handle.
        let needed = self.options.session_type == SessionType::Normal;
        if (response.tsih == 0 && needed) || (known != 0 && response.tsih != known) {
            return Err(Failure::violation("the final Login Response has no TSIH"));
        }
        let (session, connection) = state.finish(&self.options)?;
        Ok(Established {
            tsih: response.tsih,
            session,
            connection,
            exp_stat_sn: self.exp_stat_sn,
            exp_cmd_sn: response.exp_cmd_sn,
            max_cmd_sn: response.max_cmd_sn,
            portal_group_tag: self.declarations.portal_group_tag,
            target_alias: self.declarations.target_alias.take(),
        })
    }

    /// Sends `text`, with a request for the stage `next` in its last piece.
    fn say(&mut self, text: TextBuilder, next: Option<Stage>, steps: &mut Vec<Step>) {
        self.outgoing = Segmenter::new(text.into_bytes());
        self.pending = next;
        self.emit(steps);
    }

    fn emit(&mut self, steps: &mut Vec<Step>) {
        let text = self.outgoing.next(LOGIN_SEGMENT_BYTES_MAX);
        let more = !self.outgoing.is_empty();
        let next = if more { None } else { self.pending };
        self.send(next, more, text, steps);
    }

    fn send(&mut self, next: Option<Stage>, more: bool, text: Bytes, steps: &mut Vec<Step>) {
        self.asked = next;
        self.outstanding = true;
        let options = &self.options;
        let request = LoginRequest {
            first: FirstByte::immediate(Opcode::LOGIN_REQUEST),
            flags: LoginFlags::stage(self.stage, next).with_if(more, LoginFlags::CONTINUE),
            version_max: 0,
            version_min: 0,
            total_ahs_words: 0,
            data_segment_length: U24::truncate(0),
            isid: options.isid,
            tsih: options.tsih,
            initiator_task_tag: options.initiator_task_tag,
            cid: options.cid,
            cmd_sn: options.cmd_sn,
            exp_stat_sn: self.exp_stat_sn,
        };
        steps.push(Step::Send(Pdu::with_data(request.encode(), text)));
    }

    fn fail(&mut self, failure: Failure, steps: &mut Vec<Step>) {
        let Failure { status, redirect, what } = failure;
        let proven_by = self.state.proven_by();
        steps.push(Step::Failed(LoginFailure { status, redirect, proven_by, what }));
        self.state = State::Ended;
        self.incoming.reset();
        self.outgoing = Segmenter::default();
    }
}

/// Builds the failure for a status other than success, with the new address if the target moved.
fn refused(status: LoginStatus, text: &[u8]) -> Failure {
    let moved = [LoginStatus::TARGET_MOVED_TEMPORARILY, LoginStatus::TARGET_MOVED_PERMANENTLY];
    let mut redirect = None;
    if moved.contains(&status) {
        let pairs = parse(text).unwrap_or_default();
        let address = pairs.iter().find(|pair| pair.key == Some(Key::TargetAddress));
        let permanent = status == LoginStatus::TARGET_MOVED_PERMANENTLY;
        redirect = address.map(|pair| (pair.value.into(), permanent));
    }
    let what = alloc::format!("the target responded with status {status:?}");
    Failure { status: Some(status), redirect, what }
}
