//! The states of the initiator during a login. Mirrors `target_states`.

use super::chap::{self, Challenge};
use super::initiator::{ChapAnswer, InitiatorLoginOptions};
use super::{ChapAlgorithm, SessionType};
use crate::pdu::{LoginStatus, Stage};
use crate::text::{
    ConnectionParameters, Key, KeyStage, Negotiation, Pair, Role, Senders, SessionParameters,
    TextBuilder, Violation, receive_unknown, value,
};
use alloc::boxed::Box;
use alloc::string::{String, ToString};
use alloc::vec::Vec;

/// The reason why a login fails.
#[derive(Clone, Debug, Eq, PartialEq)]
pub(super) struct Failure {
    pub(super) status: Option<LoginStatus>,
    pub(super) redirect: Option<(String, bool)>,
    pub(super) what: String,
}

impl Failure {
    /// Creates a failure for a target that broke a rule or did not authenticate.
    pub(super) fn violation(what: &str) -> Self {
        Self { status: None, redirect: None, what: what.to_string() }
    }
}

impl From<Violation> for Failure {
    fn from(violation: Violation) -> Self {
        Self { status: None, redirect: None, what: violation.to_string() }
    }
}

/// Values that a target declares in any stage.
#[derive(Debug, Default)]
pub(super) struct TargetDeclarations {
    pub(super) portal_group_tag: Option<u16>,
    pub(super) target_alias: Option<String>,
}

impl TargetDeclarations {
    /// Takes keys that are allowed in any stage, answers unknown keys, and returns the others.
    pub(super) fn take_declarations<'a>(
        &mut self,
        pairs: &[Pair<'a>],
        answers: &mut TextBuilder,
    ) -> Result<Vec<Pair<'a>>, Failure> {
        let mut rest = Vec::new();
        for pair in pairs {
            let Some(key) = pair.key else {
                receive_unknown(pair, answers)?;
                continue;
            };
            match key {
                Key::TargetPortalGroupTag => {
                    let tag = value::number(pair.value).and_then(|tag| u16::try_from(tag).ok());
                    let tag = tag.ok_or(Violation::BadValue(key.name()))?;
                    self.portal_group_tag = Some(tag);
                }
                Key::TargetAlias => self.target_alias = Some(pair.value.to_string()),
                // No meaning here; RFC 7143 §13.8, §13.26.2.
                Key::TargetAddress | Key::NodeArchitecture => {}
                _ if key.info().senders == Senders::Initiator => {
                    return Err(Violation::WrongSender(key.name()).into());
                }
                _ => rest.push(*pair),
            }
        }
        Ok(rest)
    }
}

#[derive(Debug, Default)]
pub(super) enum State {
    Method(ExpectMethod),
    Challenge(ExpectChallenge),
    Proof(ExpectProof),
    Operational(Box<ExpectOperational>),
    #[default]
    Ended,
}

impl State {
    /// Returns the stage of the first request, the stage it requests, and the next state; adds its
    /// keys to `text`.
    pub(super) fn first(
        options: &InitiatorLoginOptions,
        text: &mut TextBuilder,
    ) -> Result<(Stage, Stage, Self), Failure> {
        if options.session_type == SessionType::Normal && options.target_name.is_none() {
            return Err(Violation::Missing(Key::TargetName.name()).into());
        }
        let Some(chap) = &options.chap else {
            let state = ExpectOperational::propose(options, text);
            let stages = (Stage::OPERATIONAL_NEGOTIATION, Stage::FULL_FEATURE_PHASE);
            return Ok((stages.0, stages.1, state));
        };
        // RFC 7143 §9.2.1: one secret must not serve both directions.
        if let Some(target) = &chap.expect_target
            && chap::same_secret(&target.secret, &chap.credential.secret)
        {
            return Err(Failure::violation("the same secret is used for both directions"));
        }
        // None would exempt the target from the required proof.
        let methods = if chap.expect_target.is_some() { "CHAP" } else { "CHAP,None" };
        text.key(Key::AuthMethod, methods);
        let stages = (Stage::SECURITY_NEGOTIATION, Stage::OPERATIONAL_NEGOTIATION);
        Ok((stages.0, stages.1, Self::Method(ExpectMethod)))
    }

    /// Handles one complete text of the target; `granted` is the stage it leads to, if any.
    pub(super) fn handle(
        self,
        options: &InitiatorLoginOptions,
        pairs: &[Pair<'_>],
        granted: Option<Stage>,
        answers: &mut TextBuilder,
    ) -> Result<Self, Failure> {
        let in_operational = matches!(self, Self::Operational(_));
        let stage = if in_operational { KeyStage::Operational } else { KeyStage::Security };
        for pair in pairs {
            if let Some(info) = pair.key.map(Key::info)
                && info.stage != stage
            {
                return Err(Violation::WrongStage(info.name).into());
            }
        }
        let state = match self {
            Self::Method(state) => state.handle(options, pairs, granted, answers)?,
            Self::Challenge(state) => state.handle(options, pairs, answers)?,
            Self::Proof(state) => state.handle(options, pairs, granted)?,
            Self::Operational(state) => state.handle(pairs, granted, answers)?,
            Self::Ended => Self::Ended,
        };
        match granted {
            Some(Stage::OPERATIONAL_NEGOTIATION) if !in_operational => {
                Ok(ExpectOperational::propose(options, answers))
            }
            _ => Ok(state),
        }
    }

    /// The hash of the proof that was sent and not answered yet.
    pub(super) const fn proven_by(&self) -> Option<ChapAlgorithm> {
        match self {
            Self::Proof(proof) => proof.proven_by,
            _ => None,
        }
    }

    /// True if our proposals include keys that RFC 3720 does not define.
    pub(super) const fn has_proposed_newer_keys(&self) -> bool {
        match self {
            Self::Operational(state) => {
                let negotiation = &state.negotiation;
                negotiation.has_proposed(Key::TaskReporting)
                    || negotiation.has_proposed(Key::ProtocolLevel)
            }
            _ => false,
        }
    }

    /// The stage that the next request asks for.
    pub(super) const fn requested_stage(&self) -> Option<Stage> {
        match self {
            Self::Method(_) | Self::Proof(_) => Some(Stage::OPERATIONAL_NEGOTIATION),
            Self::Challenge(_) | Self::Ended => None,
            Self::Operational(_) => Some(Stage::FULL_FEATURE_PHASE),
        }
    }

    /// Returns the negotiated parameters.
    pub(super) fn finish(
        self,
        options: &InitiatorLoginOptions,
    ) -> Result<(SessionParameters, ConnectionParameters), Failure> {
        let negotiation = match self {
            Self::Operational(state) => state.negotiation,
            _ => negotiation(options),
        };
        Ok(negotiation.finish()?)
    }
}

/// AuthMethod was proposed.
#[derive(Debug)]
pub(super) struct ExpectMethod;

impl ExpectMethod {
    fn handle(
        self,
        options: &InitiatorLoginOptions,
        pairs: &[Pair<'_>],
        granted: Option<Stage>,
        answers: &mut TextBuilder,
    ) -> Result<State, Failure> {
        let chap = chap_of(options)?;
        let [Pair { key: Some(Key::AuthMethod), value, .. }] = pairs else {
            return Err(Failure::violation("the target did not select an AuthMethod"));
        };
        match *value {
            "CHAP" if granted.is_none() => {
                answers.key(Key::ChapA, chap::list(&chap.algorithms));
                Ok(State::Challenge(ExpectChallenge))
            }
            "None" if chap.expect_target.is_none() => {
                Ok(State::Proof(ExpectProof { ours: None, proven_by: None }))
            }
            _ => Err(Violation::BadAnswer(Key::AuthMethod.name()).into()),
        }
    }
}

/// CHAP_A was proposed.
#[derive(Debug)]
pub(super) struct ExpectChallenge;

impl ExpectChallenge {
    fn handle(
        self,
        options: &InitiatorLoginOptions,
        pairs: &[Pair<'_>],
        answers: &mut TextBuilder,
    ) -> Result<State, Failure> {
        let chap = chap_of(options)?;
        only(pairs, &[Key::ChapA, Key::ChapI, Key::ChapC])?;
        let algorithm = value::number(required(pairs, Key::ChapA)?)
            .and_then(ChapAlgorithm::numbered)
            .filter(|algorithm| chap.algorithms.contains(algorithm))
            .ok_or(Violation::BadAnswer(Key::ChapA.name()))?;
        let (chap_i, chap_c) = (required(pairs, Key::ChapI)?, required(pairs, Key::ChapC)?);
        let theirs = Challenge::received(algorithm, chap_i, chap_c)
            .ok_or(Violation::BadValue(Key::ChapC.name()))?;
        answers.key(Key::ChapN, &chap.credential.user);
        let response = theirs.response(&chap.credential.secret);
        answers.key(Key::ChapR, value::hex_text(&response));
        let ours = chap.expect_target.is_some();
        let ours = ours.then(|| Challenge::fresh(algorithm, &options.entropy));
        if let Some(ours) = &ours {
            if ours.is_reflection_of(&theirs) {
                return Err(Failure::violation(
                    "the target used the same CHAP challenge as this initiator",
                ));
            }
            answers.key(Key::ChapI, ours.identifier);
            answers.key(Key::ChapC, value::hex_text(&ours.bytes));
        }
        Ok(State::Proof(ExpectProof { ours, proven_by: Some(algorithm) }))
    }
}

/// Our proof was sent; the target may have to authenticate, too.
#[derive(Debug)]
pub(super) struct ExpectProof {
    /// Our challenge, until it is answered.
    ours: Option<Challenge>,
    /// The hash of our proof; `None` if none was required.
    proven_by: Option<ChapAlgorithm>,
}

impl ExpectProof {
    fn handle(
        self,
        options: &InitiatorLoginOptions,
        pairs: &[Pair<'_>],
        granted: Option<Stage>,
    ) -> Result<State, Failure> {
        let chap = chap_of(options)?;
        let Some((ours, expected)) = self.ours.as_ref().zip(chap.expect_target.as_ref()) else {
            only(pairs, &[])?;
            return Ok(State::Proof(self));
        };
        only(pairs, &[Key::ChapN, Key::ChapR])?;
        if pairs.is_empty() && granted.is_none() {
            // The target must act first; send another request.
            return Ok(State::Proof(self));
        }
        let (user, response) = (required(pairs, Key::ChapN)?, required(pairs, Key::ChapR)?);
        let named = chap::same_name(user, &expected.user);
        let proven = ours.is_answered_by(response, &expected.secret);
        // Our own response sent back proves nothing: the two secrets differ, see `first`.
        if !(named & proven) {
            return Err(Failure::violation("the target failed to authenticate itself"));
        }
        Ok(State::Proof(Self { ours: None, proven_by: None }))
    }
}

/// Our proposals were sent.
#[derive(Debug)]
pub(super) struct ExpectOperational {
    negotiation: Negotiation,
}

impl ExpectOperational {
    fn propose(options: &InitiatorLoginOptions, text: &mut TextBuilder) -> State {
        let mut negotiation = negotiation(options);
        negotiation.propose(text);
        State::Operational(Box::new(Self { negotiation }))
    }

    fn handle(
        mut self: Box<Self>,
        pairs: &[Pair<'_>],
        granted: Option<Stage>,
        answers: &mut TextBuilder,
    ) -> Result<State, Failure> {
        let mut replies = TextBuilder::new();
        self.negotiation.receive(pairs, &mut replies)?;
        if granted.is_some() && !replies.is_empty() {
            // RFC 7143 §11.13.6.
            return Err(Failure::violation("the response that ends the stage contains a proposal"));
        }
        answers.append(replies);
        Ok(State::Operational(self))
    }
}

fn negotiation(options: &InitiatorLoginOptions) -> Negotiation {
    let (offer, leading) = (options.offer.clone(), options.is_leading());
    Negotiation::new(Role::Initiator, offer, options.session_type, leading)
}

fn chap_of(options: &InitiatorLoginOptions) -> Result<&ChapAnswer, Failure> {
    let missing = || Failure::violation("the target requires CHAP, but no CHAP user is configured");
    options.chap.as_ref().ok_or_else(missing)
}

fn required<'a>(pairs: &[Pair<'a>], key: Key) -> Result<&'a str, Violation> {
    let pair = pairs.iter().find(|pair| pair.key == Some(key));
    pair.map(|pair| pair.value).ok_or(Violation::Missing(key.name()))
}

fn only(pairs: &[Pair<'_>], allowed: &[Key]) -> Result<(), Violation> {
    let other = pairs.iter().filter_map(|pair| pair.key).find(|key| !allowed.contains(key));
    other.map_or(Ok(()), |key| Err(Violation::WrongStage(key.name())))
}
