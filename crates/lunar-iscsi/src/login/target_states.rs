//! What the target expects next in a login, and what it makes of it. Each state is a value that
//! is consumed by the step it allows, so no step can happen twice.

use super::chap::{self, Challenge};
use super::{Admission, ChapDemand, Claim, Join, SessionType};
use crate::pdu::{LoginRequest, LoginStatus, Stage};
use crate::text::{
    Key, KeyStage, NAME_BYTES_MAX, Negotiation, Pair, Role, Rule, Senders, TextBuilder, Use,
    Violation, parse, receive_unknown, value,
};
use alloc::boxed::Box;
use alloc::string::{String, ToString};
use alloc::vec::Vec;

/// AuthMethod: no proof. RFC 7143 §12.1.
const METHOD_NONE: &str = "None";
/// AuthMethod: CHAP. RFC 7143 §12.1.
const METHOD_CHAP: &str = "CHAP";

/// Why a login is refused.
#[derive(Clone, Debug, Eq, PartialEq)]
pub(super) struct Refusal {
    pub(super) status: LoginStatus,
    pub(super) what: String,
}

impl Refusal {
    pub(super) fn new(status: LoginStatus, what: &str) -> Self {
        Self { status, what: what.to_string() }
    }

    fn not_authenticated(what: &str) -> Self {
        Self::new(LoginStatus::AUTHENTICATION_FAILURE, what)
    }
}

/// The one place that says what a violation costs. RFC 7143 §11.13.5.
impl From<Violation> for Refusal {
    fn from(violation: Violation) -> Self {
        let status = match violation {
            Violation::Missing(_) => LoginStatus::MISSING_PARAMETER,
            _ => LoginStatus::INITIATOR_ERROR,
        };
        Self { status, what: violation.to_string() }
    }
}

#[derive(Debug, Default)]
pub(super) enum State {
    First(ExpectFirst),
    Identity(ExpectIdentity),
    Method(ExpectMethod),
    Algorithm(ExpectAlgorithm),
    Proof(ExpectProof),
    SecurityEnd(ExpectSecurityEnd),
    Operational(Box<ExpectOperational>),
    Joined(ExpectJoined),
    #[default]
    Over,
}

impl State {
    /// One complete text of the initiator.
    pub(super) fn handle(
        self,
        pairs: &[Pair<'_>],
        answers: &mut TextBuilder,
    ) -> Result<Self, Refusal> {
        match self {
            Self::Method(state) => state.handle(pairs, answers),
            Self::Algorithm(state) => state.handle(pairs, answers),
            Self::Proof(state) => state.handle(pairs, answers),
            Self::SecurityEnd(state) => state.handle(pairs, answers),
            Self::Operational(state) => state.handle(pairs, answers),
            // The login calls these with other things than text.
            Self::First(_) | Self::Identity(_) | Self::Joined(_) | Self::Over => Ok(self),
        }
    }

    /// The stage may end here.
    pub(super) const fn may_leave(&self) -> bool {
        match self {
            Self::Method(state) => state.context.admission.chap.is_none(),
            Self::SecurityEnd(_) | Self::Operational(_) => true,
            _ => false,
        }
    }

    /// SecurityNegotiation ends, LoginOperationalNegotiation begins.
    pub(super) fn into_operational(self) -> Self {
        match self {
            Self::Method(ExpectMethod { context, .. })
            | Self::SecurityEnd(ExpectSecurityEnd { context }) => {
                Self::Operational(ExpectOperational::new(context))
            }
            other => other,
        }
    }

    /// The login phase ends; `request` asked for it.
    pub(super) fn into_join(self, request: &LoginRequest) -> Result<ExpectJoined, Refusal> {
        let Self::Operational(state) = self.into_operational() else {
            return Err(Refusal::new(LoginStatus::TARGET_ERROR, "left a stage that holds"));
        };
        let (session, connection) = state.negotiation.finish()?;
        let Context { claim, admission, user } = *state.context;
        let portal_group_tag = admission.portal_group_tag;
        let cmd_sn = request.cmd_sn;
        let join = Join { claim, user, portal_group_tag, session, connection, cmd_sn };
        Ok(ExpectJoined { join })
    }
}

/// The first text: names and session type. RFC 7143 §6.3.1.
#[derive(Debug)]
pub(super) struct ExpectFirst;

impl ExpectFirst {
    pub(super) fn handle(
        self,
        request: &LoginRequest,
        pairs: &[Pair<'_>],
    ) -> Result<ExpectIdentity, Refusal> {
        let session_type = match find(pairs, Key::SessionType) {
            None => SessionType::Normal,
            Some(word) => session_type(word).ok_or(Violation::BadValue("SessionType"))?,
        };
        let target_name = find(pairs, Key::TargetName).map(name).transpose()?;
        if session_type == SessionType::Normal && target_name.is_none() {
            return Err(Violation::Missing("TargetName").into());
        }
        let initiator_name = find(pairs, Key::InitiatorName);
        let initiator_name = initiator_name.ok_or(Violation::Missing("InitiatorName"))?;
        let claim = Claim {
            initiator_name: name(initiator_name)?,
            initiator_alias: find(pairs, Key::InitiatorAlias).map(ToString::to_string),
            target_name,
            session_type,
            isid: request.isid,
            tsih: request.tsih,
            cid: request.cid,
        };
        Ok(ExpectIdentity { claim, text: Vec::new() })
    }
}

/// The policy is asked who this is; the rest of the first text waits.
#[derive(Debug)]
pub(super) struct ExpectIdentity {
    pub(super) claim: Claim,
    pub(super) text: Vec<u8>,
}

impl ExpectIdentity {
    pub(super) fn admitted(
        self,
        stage: Stage,
        admission: Admission,
        answers: &mut TextBuilder,
    ) -> Result<State, Refusal> {
        let claim = self.claim;
        // RFC 7143 §6.3.1, §13.6.
        answers.key(Key::TargetPortalGroupTag, admission.portal_group_tag);
        if let Some(alias) = &admission.target_alias
            && claim.session_type == SessionType::Normal
        {
            answers.key(Key::TargetAlias, alias);
        }
        let context = Box::new(Context { claim, admission, user: None });
        let state = if stage == Stage::SECURITY_NEGOTIATION {
            State::Method(ExpectMethod { context, proposed: false })
        } else if context.admission.chap.is_some() {
            return Err(Refusal::not_authenticated("the initiator skips the security stage"));
        } else {
            State::Operational(ExpectOperational::new(context))
        };
        let pairs = parse(&self.text)?;
        let rest: Vec<Pair<'_>> = pairs.into_iter().filter(|pair| !is_opening(pair)).collect();
        state.handle(&rest, answers)
    }
}

/// What all later states know.
#[derive(Debug)]
pub(super) struct Context {
    claim: Claim,
    admission: Admission,
    /// The CHAP name, once proven.
    user: Option<String>,
}

impl Context {
    /// Sorts out what any stage allows and what none does; gives the keys of `stage`.
    fn sort<'a>(
        &mut self,
        stage: KeyStage,
        pairs: &[Pair<'a>],
        answers: &mut TextBuilder,
    ) -> Result<Vec<Pair<'a>>, Refusal> {
        let mut rest = Vec::new();
        for pair in pairs {
            let Some(key) = pair.key else {
                receive_unknown(pair, answers)?;
                continue;
            };
            let info = key.info();
            if info.senders == Senders::Target {
                return Err(Violation::WrongSender(info.name).into());
            }
            match key {
                // Nothing may depend on it, not even where it stands. RFC 7143 §13.26.2.
                Key::NodeArchitecture => {}
                Key::InitiatorAlias => self.claim.initiator_alias = Some(pair.value.to_string()),
                // Names and session type belong to the first request.
                _ if info.stage == KeyStage::Any || info.used == Use::FullFeatureOnly => {
                    return Err(Violation::WrongStage(info.name).into());
                }
                _ if info.stage != stage => return Err(Violation::WrongStage(info.name).into()),
                _ => rest.push(*pair),
            }
        }
        Ok(rest)
    }

    /// As [`sort`](Self::sort), for the security stage, where only `allowed` has its turn.
    fn sort_security<'a>(
        &mut self,
        allowed: &[Key],
        pairs: &[Pair<'a>],
        answers: &mut TextBuilder,
    ) -> Result<Vec<Pair<'a>>, Refusal> {
        let rest = self.sort(KeyStage::Security, pairs, answers)?;
        match rest.iter().filter_map(|pair| pair.key).find(|key| !allowed.contains(key)) {
            Some(key) => Err(Violation::WrongStage(key.name()).into()),
            None => Ok(rest),
        }
    }

    /// Answers an AuthMethod of the operational stage, where some initiators propose it, and gives
    /// the other keys (decision 030). Nothing is proven there: where a proof is demanded the key
    /// stays among the others, and ends the login as a key of another stage.
    fn take_late_method<'a>(
        &self,
        pairs: &[Pair<'a>],
        answers: &mut TextBuilder,
    ) -> Result<Vec<Pair<'a>>, Refusal> {
        let mut rest = pairs.to_vec();
        if self.admission.chap.is_some() {
            return Ok(rest);
        }
        rest.retain(|pair| pair.key != Some(Key::AuthMethod));
        if let Some(methods) = find(pairs, Key::AuthMethod) {
            choose_method(methods, METHOD_NONE)?;
            answers.key(Key::AuthMethod, METHOD_NONE);
        }
        Ok(rest)
    }

    fn demand(&self) -> Result<&ChapDemand, Refusal> {
        let missing = || Refusal::new(LoginStatus::TARGET_ERROR, "no CHAP is configured");
        self.admission.chap.as_ref().ok_or_else(missing)
    }
}

/// Security stage: which method? RFC 7143 §12.1.
#[derive(Debug)]
pub(super) struct ExpectMethod {
    context: Box<Context>,
    /// We have proposed CHAP because the initiator proposed nothing.
    proposed: bool,
}

impl ExpectMethod {
    fn handle(mut self, pairs: &[Pair<'_>], answers: &mut TextBuilder) -> Result<State, Refusal> {
        let allowed = [Key::AuthMethod, Key::ChapA];
        let rest = self.context.sort_security(&allowed, pairs, answers)?;
        let (method, algorithms) = (find(&rest, Key::AuthMethod), find(&rest, Key::ChapA));
        let wanted = if self.context.admission.chap.is_some() { METHOD_CHAP } else { METHOD_NONE };
        let Some(methods) = method else {
            return self.without_method(algorithms, answers);
        };
        choose_method(methods, wanted)?;
        if !self.proposed {
            answers.key(Key::AuthMethod, wanted);
        }
        match (wanted, algorithms) {
            (METHOD_CHAP, None) => Ok(State::Algorithm(ExpectAlgorithm { context: self.context })),
            (METHOD_CHAP, Some(list)) => {
                ExpectAlgorithm { context: self.context }.challenge(list, answers)
            }
            (_, None) => Ok(State::SecurityEnd(ExpectSecurityEnd { context: self.context })),
            (_, Some(_)) => Err(Violation::WrongStage(Key::ChapA.name()).into()),
        }
    }

    /// No AuthMethod: where a proof is demanded the target proposes (RFC 7143 §6.3.2), once.
    fn without_method(
        self,
        algorithms: Option<&str>,
        answers: &mut TextBuilder,
    ) -> Result<State, Refusal> {
        if algorithms.is_some() {
            return Err(Violation::WrongStage(Key::ChapA.name()).into());
        }
        if self.proposed {
            return Err(Violation::Missing(Key::AuthMethod.name()).into());
        }
        let proposed = self.context.admission.chap.is_some();
        if proposed {
            answers.key(Key::AuthMethod, METHOD_CHAP);
        }
        Ok(State::Method(Self { proposed, ..self }))
    }
}

/// CHAP is chosen; which hash? RFC 7143 §12.1.3.
#[derive(Debug)]
pub(super) struct ExpectAlgorithm {
    context: Box<Context>,
}

impl ExpectAlgorithm {
    fn handle(mut self, pairs: &[Pair<'_>], answers: &mut TextBuilder) -> Result<State, Refusal> {
        let rest = self.context.sort_security(&[Key::ChapA], pairs, answers)?;
        let list = find(&rest, Key::ChapA).ok_or(Violation::Missing(Key::ChapA.name()))?;
        self.challenge(list, answers)
    }

    fn challenge(self, list: &str, answers: &mut TextBuilder) -> Result<State, Refusal> {
        let allowed = &self.context.demand()?.algorithms;
        let algorithm = chap::choose(list, allowed)
            .ok_or_else(|| Refusal::not_authenticated("no CHAP algorithm in common"))?;
        let challenge = Challenge::fresh(algorithm, &self.context.admission.entropy);
        answers.key(Key::ChapA, algorithm.number());
        answers.key(Key::ChapI, challenge.identifier);
        answers.key(Key::ChapC, value::hex_text(&challenge.bytes));
        Ok(State::Proof(ExpectProof { context: self.context, challenge }))
    }
}

/// The challenge is out; who answers it knows the secret.
#[derive(Debug)]
pub(super) struct ExpectProof {
    context: Box<Context>,
    challenge: Challenge,
}

impl ExpectProof {
    fn handle(mut self, pairs: &[Pair<'_>], answers: &mut TextBuilder) -> Result<State, Refusal> {
        let allowed = [Key::ChapN, Key::ChapR, Key::ChapI, Key::ChapC];
        let rest = self.context.sort_security(&allowed, pairs, answers)?;
        let take = |key: Key| find(&rest, key).ok_or(Violation::Missing(key.name()));
        let (user, response) = (take(Key::ChapN)?, take(Key::ChapR)?);
        let demand = self.context.demand()?;
        let expected = &demand.initiator;
        // Both are computed whatever the other says. CHAP_N is text: `0x…` is a name like any.
        let named = chap::same_name(user, &expected.user);
        let proven = self.challenge.is_answered_by(response, &expected.secret);
        if !(named & proven) {
            return Err(Refusal::not_authenticated("wrong CHAP name or response"));
        }
        // RFC 7143 §9.2.1: a response that we would give ourselves proves nothing.
        if let Some(own) = &demand.target
            && chap::same_secret(&own.secret, &expected.secret)
        {
            return Err(Refusal::not_authenticated("one secret for both directions"));
        }
        if find(&rest, Key::ChapI).is_some() || find(&rest, Key::ChapC).is_some() {
            self.prove(take(Key::ChapI)?, take(Key::ChapC)?, answers)?;
        }
        self.context.user = Some(user.to_string());
        Ok(State::SecurityEnd(ExpectSecurityEnd { context: self.context }))
    }

    /// The initiator asks the target to prove itself. RFC 7143 §9.2.1 says what to look at first.
    fn prove(&self, chap_i: &str, chap_c: &str, answers: &mut TextBuilder) -> Result<(), Refusal> {
        let demand = self.context.demand()?;
        let own = demand
            .target
            .as_ref()
            .ok_or_else(|| Refusal::not_authenticated("target authentication is not configured"))?;
        let theirs = Challenge::received(self.challenge.algorithm, chap_i, chap_c)
            .ok_or(Violation::BadValue(Key::ChapC.name()))?;
        if theirs.is_reflection_of(&self.challenge) {
            return Err(Refusal::not_authenticated("our own challenge came back"));
        }
        answers.key(Key::ChapN, &own.user);
        answers.key(Key::ChapR, value::hex_text(&theirs.response(&own.secret)));
        Ok(())
    }
}

/// Nothing is left to prove; the initiator ends the stage when it likes.
#[derive(Debug)]
pub(super) struct ExpectSecurityEnd {
    context: Box<Context>,
}

impl ExpectSecurityEnd {
    fn handle(mut self, pairs: &[Pair<'_>], answers: &mut TextBuilder) -> Result<State, Refusal> {
        self.context.sort_security(&[], pairs, answers)?;
        Ok(State::SecurityEnd(self))
    }
}

/// Operational keys, until the initiator asks for full feature phase.
#[derive(Debug)]
pub(super) struct ExpectOperational {
    context: Box<Context>,
    negotiation: Negotiation,
}

impl ExpectOperational {
    fn new(context: Box<Context>) -> Box<Self> {
        let claim = &context.claim;
        let offer = context.admission.offer.clone();
        let leading = claim.tsih == 0;
        let negotiation = Negotiation::new(Role::Target, offer, claim.session_type, leading);
        Box::new(Self { context, negotiation })
    }

    fn handle(
        mut self: Box<Self>,
        pairs: &[Pair<'_>],
        answers: &mut TextBuilder,
    ) -> Result<State, Refusal> {
        let pairs = self.context.take_late_method(pairs, answers)?;
        let rest = self.context.sort(KeyStage::Operational, &pairs, answers)?;
        self.negotiation.receive(&rest, answers)?;
        self.negotiation.declare(answers);
        Ok(State::Operational(self))
    }
}

/// All is negotiated; the session is being made or found.
#[derive(Debug)]
pub(super) struct ExpectJoined {
    pub(super) join: Join,
}

/// Whether the initiator's list of methods has the one that is wanted.
fn choose_method(methods: &str, wanted: &str) -> Result<(), Refusal> {
    if methods.split(',').any(|word| word == wanted) {
        Ok(())
    } else {
        Err(Refusal::not_authenticated("no authentication method in common"))
    }
}

/// The value of a key, if it is there.
fn find<'a>(pairs: &[Pair<'a>], key: Key) -> Option<&'a str> {
    pairs.iter().find(|pair| pair.key == Some(key)).map(|pair| pair.value)
}

/// Read by [`ExpectFirst`] already.
fn is_opening(pair: &Pair<'_>) -> bool {
    use Key::{InitiatorAlias, InitiatorName, SessionType, TargetName};
    let opening = [InitiatorAlias, InitiatorName, SessionType, TargetName];
    pair.key.is_some_and(|key| opening.contains(&key) && key.info().rule == Rule::Declare)
}

/// The names and the session type, as the first text declares them.
pub(super) fn opening(pairs: &[Pair<'_>]) -> Vec<(Key, String)> {
    let keys = [Key::InitiatorName, Key::SessionType, Key::TargetName];
    let declared = keys.into_iter().filter_map(|key| Some((key, find(pairs, key)?)));
    declared.map(|(key, value)| (key, value.to_string())).collect()
}

fn session_type(word: &str) -> Option<SessionType> {
    match word {
        "Normal" => Some(SessionType::Normal),
        "Discovery" => Some(SessionType::Discovery),
        _ => None,
    }
}

/// An iSCSI name: not empty, no control characters, in lower case (RFC 3722 as far as that). Some
/// letters are longer so; it is what becomes of a name that has a longest form (RFC 7143 §4.2.7.1).
fn name(text: &str) -> Result<String, Violation> {
    if text.is_empty() || text.chars().any(char::is_control) {
        return Err(Violation::BadValue("an iSCSI name"));
    }
    let name = text.to_lowercase();
    if name.len() > NAME_BYTES_MAX {
        return Err(Violation::BadValue("an iSCSI name"));
    }
    Ok(name)
}
