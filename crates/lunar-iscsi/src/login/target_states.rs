//! The states of the target during a login. Each state is a value that is consumed by the step it
//! allows, so no step can happen twice.

use super::chap::{self, Challenge};
use super::{Admission, ChapRequirement, Claim, Join, SessionType};
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

/// The reason why a login is refused.
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

/// Maps violations to login statuses. RFC 7143 §11.13.5.
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
    Ended,
}

impl State {
    /// Handles one complete text of the initiator.
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
            // The login leaves these states by other events than text.
            Self::First(_) | Self::Identity(_) | Self::Joined(_) | Self::Ended => Ok(self),
        }
    }

    /// True if the stage may end here.
    pub(super) const fn may_leave(&self) -> bool {
        match self {
            Self::Method(state) => state.context.admission.chap.is_none(),
            Self::SecurityEnd(_) | Self::Operational(_) => true,
            _ => false,
        }
    }

    /// Ends SecurityNegotiation and begins LoginOperationalNegotiation.
    pub(super) fn into_operational(self) -> Self {
        match self {
            Self::Method(ExpectMethod { context, .. })
            | Self::SecurityEnd(ExpectSecurityEnd { context }) => {
                Self::Operational(ExpectOperational::new(context))
            }
            other => other,
        }
    }

    /// Ends the login phase, as requested by `request`.
    pub(super) fn into_join(self, request: &LoginRequest) -> Result<ExpectJoined, Refusal> {
        let Self::Operational(state) = self.into_operational() else {
            return Err(Refusal::new(
                LoginStatus::TARGET_ERROR,
                "internal error: the stage cannot end yet",
            ));
        };
        let (session, connection) = state.negotiation.finish()?;
        let Context { claim, admission, user } = *state.context;
        let portal_group_tag = admission.portal_group_tag;
        let cmd_sn = request.cmd_sn;
        let join = Join { claim, user, portal_group_tag, session, connection, cmd_sn };
        Ok(ExpectJoined { join })
    }
}

/// The first text is expected: names and session type. RFC 7143 §6.3.1.
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

/// The policy is deciding about the claim; the rest of the first text waits.
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
            return Err(Refusal::not_authenticated(
                "the initiator skipped the security negotiation, but the target requires CHAP",
            ));
        } else {
            State::Operational(ExpectOperational::new(context))
        };
        let pairs = parse(&self.text)?;
        let rest: Vec<Pair<'_>> =
            pairs.into_iter().filter(|pair| !is_first_declaration(pair)).collect();
        state.handle(&rest, answers)
    }
}

/// Data of all later states.
#[derive(Debug)]
pub(super) struct Context {
    claim: Claim,
    admission: Admission,
    /// The CHAP name, once authenticated.
    user: Option<String>,
}

impl Context {
    /// Handles the keys that are allowed in any stage, and returns those of `stage`.
    ///
    /// # Errors
    /// A key of another stage, or one that only a target may send.
    fn take_stage_keys<'a>(
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
                // Nothing may depend on it, not even its position. RFC 7143 §13.26.2.
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

    /// Like [`take_stage_keys`](Self::take_stage_keys), for the security stage.
    ///
    /// # Errors
    /// Also a key that is not in `allowed`.
    fn take_security_keys<'a>(
        &mut self,
        allowed: &[Key],
        pairs: &[Pair<'a>],
        answers: &mut TextBuilder,
    ) -> Result<Vec<Pair<'a>>, Refusal> {
        let rest = self.take_stage_keys(KeyStage::Security, pairs, answers)?;
        match rest.iter().filter_map(|pair| pair.key).find(|key| !allowed.contains(key)) {
            Some(key) => Err(Violation::WrongStage(key.name()).into()),
            None => Ok(rest),
        }
    }

    /// Answers an AuthMethod in the operational stage, which some initiators propose there, and
    /// returns the other keys (decision 030). Nothing is authenticated there: if authentication is
    /// required, the key stays among the others, and ends the login as a key of another stage.
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

    fn requirement(&self) -> Result<&ChapRequirement, Refusal> {
        let missing = || Refusal::new(LoginStatus::TARGET_ERROR, "CHAP is not configured");
        self.admission.chap.as_ref().ok_or_else(missing)
    }
}

/// The authentication method is expected in the security stage. RFC 7143 §12.1.
#[derive(Debug)]
pub(super) struct ExpectMethod {
    context: Box<Context>,
    /// True if the target has proposed CHAP because the initiator proposed nothing.
    proposed: bool,
}

impl ExpectMethod {
    fn handle(mut self, pairs: &[Pair<'_>], answers: &mut TextBuilder) -> Result<State, Refusal> {
        let allowed = [Key::AuthMethod, Key::ChapA];
        let rest = self.context.take_security_keys(&allowed, pairs, answers)?;
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

    /// Handles a missing AuthMethod: if authentication is required, the target proposes it
    /// (RFC 7143 §6.3.2), once.
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

/// CHAP was chosen; the hash is expected. RFC 7143 §12.1.3.
#[derive(Debug)]
pub(super) struct ExpectAlgorithm {
    context: Box<Context>,
}

impl ExpectAlgorithm {
    fn handle(mut self, pairs: &[Pair<'_>], answers: &mut TextBuilder) -> Result<State, Refusal> {
        let rest = self.context.take_security_keys(&[Key::ChapA], pairs, answers)?;
        let list = find(&rest, Key::ChapA).ok_or(Violation::Missing(Key::ChapA.name()))?;
        self.challenge(list, answers)
    }

    fn challenge(self, list: &str, answers: &mut TextBuilder) -> Result<State, Refusal> {
        let allowed = &self.context.requirement()?.algorithms;
        let algorithm = chap::choose(list, allowed)
            .ok_or_else(|| Refusal::not_authenticated("no common CHAP algorithm"))?;
        let challenge = Challenge::fresh(algorithm, &self.context.admission.entropy);
        answers.key(Key::ChapA, algorithm.number());
        answers.key(Key::ChapI, challenge.identifier);
        answers.key(Key::ChapC, value::hex_text(&challenge.bytes));
        Ok(State::Proof(ExpectProof { context: self.context, challenge }))
    }
}

/// The challenge was sent; the correct response proves knowledge of the secret.
#[derive(Debug)]
pub(super) struct ExpectProof {
    context: Box<Context>,
    challenge: Challenge,
}

impl ExpectProof {
    fn handle(mut self, pairs: &[Pair<'_>], answers: &mut TextBuilder) -> Result<State, Refusal> {
        let allowed = [Key::ChapN, Key::ChapR, Key::ChapI, Key::ChapC];
        let rest = self.context.take_security_keys(&allowed, pairs, answers)?;
        let take = |key: Key| find(&rest, key).ok_or(Violation::Missing(key.name()));
        let (user, response) = (take(Key::ChapN)?, take(Key::ChapR)?);
        let requirement = self.context.requirement()?;
        let expected = &requirement.initiator;
        // Both comparisons always run, so that the time does not show which one failed. CHAP_N is
        // text: `0x…` is a name like any other.
        let named = chap::same_name(user, &expected.user);
        let proven = self.challenge.is_answered_by(response, &expected.secret);
        if !(named & proven) {
            return Err(Refusal::not_authenticated("wrong CHAP name or response"));
        }
        // RFC 7143 §9.2.1: a response that this target would send itself proves nothing.
        if let Some(own) = &requirement.target
            && chap::same_secret(&own.secret, &expected.secret)
        {
            return Err(Refusal::not_authenticated("the same secret is used for both directions"));
        }
        if find(&rest, Key::ChapI).is_some() || find(&rest, Key::ChapC).is_some() {
            self.authenticate_target(take(Key::ChapI)?, take(Key::ChapC)?, answers)?;
        }
        self.context.user = Some(user.to_string());
        Ok(State::SecurityEnd(ExpectSecurityEnd { context: self.context }))
    }

    /// Authenticates the target on request of the initiator, after the checks of RFC 7143 §9.2.1.
    fn authenticate_target(
        &self,
        chap_i: &str,
        chap_c: &str,
        answers: &mut TextBuilder,
    ) -> Result<(), Refusal> {
        let requirement = self.context.requirement()?;
        let own = requirement
            .target
            .as_ref()
            .ok_or_else(|| Refusal::not_authenticated("target authentication is not configured"))?;
        let initiator_challenge = Challenge::received(self.challenge.algorithm, chap_i, chap_c)
            .ok_or(Violation::BadValue(Key::ChapC.name()))?;
        if initiator_challenge.is_reflection_of(&self.challenge) {
            return Err(Refusal::not_authenticated(
                "the initiator returned the challenge of the target",
            ));
        }
        answers.key(Key::ChapN, &own.user);
        answers.key(Key::ChapR, value::hex_text(&initiator_challenge.response(&own.secret)));
        Ok(())
    }
}

/// Authentication is complete; the initiator may end the stage.
#[derive(Debug)]
pub(super) struct ExpectSecurityEnd {
    context: Box<Context>,
}

impl ExpectSecurityEnd {
    fn handle(mut self, pairs: &[Pair<'_>], answers: &mut TextBuilder) -> Result<State, Refusal> {
        self.context.take_security_keys(&[], pairs, answers)?;
        Ok(State::SecurityEnd(self))
    }
}

/// Operational keys are expected, until the initiator requests full feature phase.
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
        let rest = self.context.take_stage_keys(KeyStage::Operational, &pairs, answers)?;
        self.negotiation.receive(&rest, answers)?;
        self.negotiation.declare(answers);
        Ok(State::Operational(self))
    }
}

/// The negotiation is complete; the session is being created or found.
#[derive(Debug)]
pub(super) struct ExpectJoined {
    pub(super) join: Join,
}

/// Checks that the initiator's list of methods contains the wanted one.
fn choose_method(methods: &str, wanted: &str) -> Result<(), Refusal> {
    if methods.split(',').any(|word| word == wanted) {
        Ok(())
    } else {
        Err(Refusal::not_authenticated("no common authentication method"))
    }
}

/// The value of a key, if present.
fn find<'a>(pairs: &[Pair<'a>], key: Key) -> Option<&'a str> {
    pairs.iter().find(|pair| pair.key == Some(key)).map(|pair| pair.value)
}

/// True for a declaration that [`ExpectFirst`] has already read.
fn is_first_declaration(pair: &Pair<'_>) -> bool {
    use Key::{InitiatorAlias, InitiatorName, SessionType, TargetName};
    let keys = [InitiatorAlias, InitiatorName, SessionType, TargetName];
    pair.key.is_some_and(|key| keys.contains(&key) && key.info().rule == Rule::Declare)
}

/// Returns the names and the session type declared in the first text.
pub(super) fn first_declarations(pairs: &[Pair<'_>]) -> Vec<(Key, String)> {
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

/// Normalises an iSCSI name: not empty, no control characters, in lower case (as RFC 3722). The
/// length limit applies to the lower-case form, which is longer for some letters
/// (RFC 7143 §4.2.7.1).
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
