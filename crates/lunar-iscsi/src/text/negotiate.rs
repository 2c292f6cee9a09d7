//! Operational parameters: proposals, answers, results, for both roles. RFC 7143 §6.2, §13.

use super::pairs::{
    IRRELEVANT, KeySet, NOT_UNDERSTOOD, Pair, REJECT, TextBuilder, Violation, is_answer_constant,
};
use super::table::{KEYS, Key, Rule, Senders, ValueKind};
use super::value;
use super::{ConnectionParameters, Digest, Offer, SessionParameters, TaskReporting};
use crate::framing::Digests;
use crate::login::SessionType;
use alloc::string::{String, ToString};
use alloc::vec;
use alloc::vec::Vec;

/// Our role on the connection.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Role {
    /// We propose first.
    Initiator,
    /// We answer, and declare.
    Target,
}

/// The operational negotiation of one login.
///
/// The initiator calls [`propose`](Self::propose) once. Each side passes the other's pairs to
/// [`receive`](Self::receive), which writes the answers. At the end of the login,
/// [`finish`](Self::finish) returns the results. A key without agreement keeps its default.
#[derive(Clone, Debug)]
pub struct Negotiation {
    role: Role,
    offer: Offer,
    session_type: SessionType,
    leading: bool,
    agreed: [Option<u32>; Key::COUNT],
    proposed: KeySet,
    peer_segment_bytes_max: Option<u32>,
    own_segment_declared: bool,
}

impl Negotiation {
    /// Creates the negotiation of one login; `leading` unless it joins an existing session.
    pub const fn new(role: Role, offer: Offer, session_type: SessionType, leading: bool) -> Self {
        Self {
            role,
            offer,
            session_type,
            leading,
            agreed: [None; Key::COUNT],
            proposed: KeySet::EMPTY,
            peer_segment_bytes_max: None,
            own_segment_declared: false,
        }
    }

    /// Writes all proposals and our MaxRecvDataSegmentLength. A key whose default suits us is
    /// proposed as well (RFC 7143 §6.2: defaults should not be relied upon), except keys that old
    /// targets do not know.
    pub fn propose(&mut self, text: &mut TextBuilder) {
        for info in KEYS {
            if (info.normal_only && self.session_type == SessionType::Discovery)
                || (info.used == super::table::Use::LeadingOnly && !self.leading)
            {
                continue;
            }
            let Some(value) = self.proposal(info.key) else { continue };
            self.proposed.insert(info.key);
            // These values decide by themselves; an answer is optional. RFC 7143 §6.2.2.
            match (info.rule, self.wanted_flag(info.key)) {
                (Rule::And, false) => self.agreed[info.key as usize] = Some(0),
                (Rule::Or, true) => self.agreed[info.key as usize] = Some(1),
                _ => {}
            }
            text.key(info.key, value);
        }
        self.declare(text);
    }

    /// True if we have proposed a value of this key.
    pub const fn has_proposed(&self, key: Key) -> bool {
        self.proposed.has(key)
    }

    /// Writes our MaxRecvDataSegmentLength, unless already done.
    pub fn declare(&mut self, text: &mut TextBuilder) {
        if !self.own_segment_declared {
            self.own_segment_declared = true;
            let key = Key::MaxRecvDataSegmentLength;
            text.key(key, self.wanted_number(key));
        }
    }

    /// Handles the peer's `pairs`: the operational keys of one complete text. Adds answers to
    /// `answers`.
    ///
    /// # Errors
    /// The [`Violation`] that ends the login.
    pub fn receive(
        &mut self,
        pairs: &[Pair<'_>],
        answers: &mut TextBuilder,
    ) -> Result<(), Violation> {
        // FirstBurstLength last: its answer depends on MaxBurstLength in the same text.
        let (last, first): (Vec<&Pair<'_>>, Vec<&Pair<'_>>) =
            pairs.iter().partition(|pair| pair.key == Some(Key::FirstBurstLength));
        for pair in first.into_iter().chain(last) {
            self.receive_one(pair, answers)?;
        }
        Ok(())
    }

    /// Returns the parameters of session and connection.
    ///
    /// # Errors
    /// [`Violation::Unacceptable`] if the negotiated value of a digest is not in our offer.
    pub fn finish(&self) -> Result<(SessionParameters, ConnectionParameters), Violation> {
        for key in [Key::HeaderDigest, Key::DataDigest] {
            if !self.wanted_words(key).contains(&(self.value(key) as usize)) {
                return Err(Violation::Unacceptable(key.name()));
            }
        }
        Ok((self.session_parameters(), self.connection_parameters()))
    }

    fn receive_one(&mut self, pair: &Pair<'_>, answers: &mut TextBuilder) -> Result<(), Violation> {
        let Some(key) = pair.key else { return receive_unknown(pair, answers) };
        let info = key.info();
        let wrong_sender = match self.role {
            Role::Initiator => Senders::Initiator,
            Role::Target => Senders::Target,
        };
        if info.senders == wrong_sender {
            return Err(Violation::WrongSender(info.name));
        }
        if self.proposed.has(key) {
            return self.take_answer(key, pair.value);
        }
        if is_answer_constant(pair.value) {
            return Err(Violation::ReservedValue(info.name.to_string()));
        }
        if info.rule == Rule::Declare {
            return self.take_declaration(key, pair.value);
        }
        self.take_proposal(key, pair.value, answers)
    }

    fn take_declaration(&mut self, key: Key, value: &str) -> Result<(), Violation> {
        if key == Key::MaxRecvDataSegmentLength {
            let bytes = admissible(key, value).ok_or(Violation::BadValue(key.name()))?;
            self.peer_segment_bytes_max = Some(bytes);
        }
        // X#NodeArchitecture must have no effect (RFC 7143 §13.26.2); the login itself reads the
        // other declarations.
        Ok(())
    }

    fn take_proposal(
        &mut self,
        key: Key,
        value: &str,
        answers: &mut TextBuilder,
    ) -> Result<(), Violation> {
        let info = key.info();
        if matches!(info.rule, Rule::Query | Rule::Authentication) {
            return Err(Violation::WrongStage(info.name));
        }
        let late = info.used == super::table::Use::LeadingOnly && !self.leading;
        let chosen = if late { None } else { self.choose(key, value) };
        match chosen {
            Some(chosen) => {
                self.agreed[key as usize] = Some(chosen);
                answers.key(key, key.info().value_text(chosen));
            }
            None => answers.key(key, self.refusal(key, value)),
        }
        Ok(())
    }

    /// Returns the answer to a proposal without an acceptable value: `Reject`, except for markers,
    /// for which RFC 7143 §13.25 also allows `No`. A target answers `No`: an initiator that
    /// proposes markers supports that value, and continues without markers.
    fn refusal(&self, key: Key, value: &str) -> &'static str {
        let info = key.info();
        let marker = info.rule == Rule::Obsolete && info.kind == ValueKind::Boolean;
        if marker && self.role == Role::Target && value::boolean(value).is_some() {
            value::boolean_text(false)
        } else {
            REJECT
        }
    }

    /// Chooses a value from a proposal; `None` if it is not valid, or none of its values suits us.
    fn choose(&self, key: Key, value: &str) -> Option<u32> {
        match key.info().rule {
            Rule::Minimum => Some(admissible(key, value)?.min(self.wanted_number(key))),
            Rule::Maximum => Some(admissible(key, value)?.max(self.wanted_number(key))),
            Rule::And => Some(u32::from(value::boolean(value)? && self.wanted_flag(key))),
            Rule::Or => Some(u32::from(value::boolean(value)? || self.wanted_flag(key))),
            Rule::FirstSupported => {
                let words = self.wanted_words(key);
                let mut proposed = value.split(',').filter_map(|word| word_number(key, word));
                proposed.find(|number| words.contains(&(*number as usize)))
            }
            Rule::Declare | Rule::Query | Rule::Authentication | Rule::Obsolete => None,
        }
    }

    fn take_answer(&mut self, key: Key, value: &str) -> Result<(), Violation> {
        let info = key.info();
        let later = matches!(key, Key::TaskReporting | Key::ProtocolLevel);
        match value {
            REJECT | IRRELEVANT => return Ok(()),
            // Keys unknown to old targets; for the other keys §6.2 calls it an error.
            NOT_UNDERSTOOD if later => return Ok(()),
            _ => {}
        }
        let answer = if matches!(info.kind, ValueKind::List(_)) {
            word_number(key, value)
        } else if info.kind == ValueKind::Boolean {
            value::boolean(value).map(u32::from)
        } else {
            admissible(key, value)
        };
        let answer = answer.ok_or(Violation::BadAnswer(info.name))?;
        let follows = match info.rule {
            Rule::Minimum => answer <= self.wanted_number(key),
            Rule::Maximum => answer >= self.wanted_number(key),
            Rule::And => self.wanted_flag(key) || answer == 0,
            Rule::Or => !self.wanted_flag(key) || answer == 1,
            Rule::FirstSupported => self.wanted_words(key).contains(&(answer as usize)),
            _ => false,
        };
        if !follows {
            return Err(Violation::BadAnswer(info.name));
        }
        self.agreed[key as usize] = Some(answer);
        Ok(())
    }

    fn proposal(&self, key: Key) -> Option<String> {
        match key.info().rule {
            // Old targets do not support the key, and behave as its default requires.
            Rule::Minimum if key == Key::ProtocolLevel && self.wanted_number(key) == 1 => None,
            Rule::Minimum | Rule::Maximum => Some(self.wanted_number(key).to_string()),
            Rule::And | Rule::Or => Some(value::boolean_text(self.wanted_flag(key)).to_string()),
            Rule::FirstSupported => self.proposal_list(key),
            Rule::Declare | Rule::Query | Rule::Authentication | Rule::Obsolete => None,
        }
    }

    fn proposal_list(&self, key: Key) -> Option<String> {
        let numbers = self.wanted_words(key);
        let default_only = numbers.iter().all(|number| *number == 0);
        if key == Key::TaskReporting && default_only {
            return None;
        }
        let words: Vec<String> =
            numbers.iter().map(|number| key.info().value_text(*number as u32)).collect();
        (!words.is_empty()).then(|| words.join(","))
    }

    /// Our preferred value of a numeric key, within its valid range.
    fn wanted_number(&self, key: Key) -> u32 {
        let offer = &self.offer;
        let discovery = self.session_type == SessionType::Discovery;
        let wanted = match key {
            // RFC 7143 §13.21, §7.4.1.
            Key::MaxConnections if discovery => 1,
            Key::ErrorRecoveryLevel if discovery => 0,
            Key::MaxConnections => u32::from(offer.max_connections),
            Key::MaxRecvDataSegmentLength => offer.max_recv_data_segment_bytes,
            Key::MaxBurstLength => offer.max_burst_bytes,
            // RFC 7143 §13.14.
            Key::FirstBurstLength => offer.first_burst_bytes.min(self.burst_bytes_max()),
            Key::DefaultTime2Wait => u32::from(offer.time_to_wait_seconds),
            Key::DefaultTime2Retain => u32::from(offer.time_to_retain_seconds),
            Key::MaxOutstandingR2t => u32::from(offer.max_outstanding_r2t),
            Key::ErrorRecoveryLevel => u32::from(offer.error_recovery_level),
            Key::ProtocolLevel => u32::from(offer.protocol_level),
            _ => 0,
        };
        match key.info().kind {
            ValueKind::Number { min, max } => wanted.clamp(min, max),
            _ => wanted,
        }
    }

    /// The limit of FirstBurstLength: the negotiated MaxBurstLength, else the one that an initiator
    /// proposes with it; for a target without a proposal, the default.
    fn burst_bytes_max(&self) -> u32 {
        let key = Key::MaxBurstLength;
        let default = key.info().default.filter(|_| self.role == Role::Target).unwrap_or(u32::MAX);
        self.agreed[key as usize].unwrap_or_else(|| self.wanted_number(key).min(default))
    }

    const fn wanted_flag(&self, key: Key) -> bool {
        match key {
            Key::InitialR2t => self.offer.initial_r2t,
            Key::ImmediateData => self.offer.immediate_data,
            Key::DataPduInOrder => self.offer.data_pdu_in_order,
            Key::DataSequenceInOrder => self.offer.data_sequence_in_order,
            _ => false,
        }
    }

    /// Values that we accept for a list key, as indices into its list, best first.
    fn wanted_words(&self, key: Key) -> Vec<usize> {
        let digests = |list: &[Digest]| match list {
            [] => vec![Digest::None as usize],
            list => list.iter().map(|digest| *digest as usize).collect(),
        };
        match key {
            Key::HeaderDigest => digests(&self.offer.header_digest),
            Key::DataDigest => digests(&self.offer.data_digest),
            Key::TaskReporting => self.wanted_reporting(),
            _ => Vec::new(),
        }
    }

    /// Our values of TaskReporting. RFC 7143 §13.23: a side that proposes any value must propose
    /// RFC3720 and ResponseFence too. The former is the default in any case.
    fn wanted_reporting(&self) -> Vec<usize> {
        let mut list: Vec<usize> =
            self.offer.task_reporting.iter().map(|kind| *kind as usize).collect();
        let proposes = self.role == Role::Initiator && list.iter().any(|number| *number != 0);
        for must in [TaskReporting::ResponseFence, TaskReporting::Rfc3720] {
            if proposes && !list.contains(&(must as usize)) {
                list.push(must as usize);
            }
        }
        list
    }

    /// The effective value: negotiated, or the default.
    fn value(&self, key: Key) -> u32 {
        self.agreed[key as usize].or(key.info().default).unwrap_or(0)
    }

    fn session_parameters(&self) -> SessionParameters {
        let flag = |key| self.value(key) == 1;
        let short = |key| u16::try_from(self.value(key)).unwrap_or(u16::MAX);
        let byte = |key| u8::try_from(self.value(key)).unwrap_or(u8::MAX);
        let max_burst_bytes = self.value(Key::MaxBurstLength);
        let error_recovery_level = byte(Key::ErrorRecoveryLevel);
        let data_sequence_in_order = flag(Key::DataSequenceInOrder);
        // RFC 7143 §13.19: recovery of sequences in order only covers the last R2T.
        let one_r2t = error_recovery_level > 0 && data_sequence_in_order;
        SessionParameters {
            session_type: self.session_type,
            max_connections: short(Key::MaxConnections),
            initial_r2t: flag(Key::InitialR2t),
            immediate_data: flag(Key::ImmediateData),
            max_burst_bytes,
            // RFC 7143 §13.14, whatever the order of the two keys.
            first_burst_bytes: self.value(Key::FirstBurstLength).min(max_burst_bytes),
            time_to_wait_seconds: short(Key::DefaultTime2Wait),
            time_to_retain_seconds: short(Key::DefaultTime2Retain),
            max_outstanding_r2t: if one_r2t { 1 } else { short(Key::MaxOutstandingR2t) },
            data_pdu_in_order: flag(Key::DataPduInOrder),
            data_sequence_in_order,
            error_recovery_level,
            task_reporting: match self.value(Key::TaskReporting) {
                1 => TaskReporting::ResponseFence,
                2 => TaskReporting::FastAbort,
                _ => TaskReporting::Rfc3720,
            },
            protocol_level: byte(Key::ProtocolLevel),
        }
    }

    fn connection_parameters(&self) -> ConnectionParameters {
        let default = ConnectionParameters::default();
        ConnectionParameters {
            digests: Digests {
                header: self.value(Key::HeaderDigest) == Digest::Crc32c as u32,
                data: self.value(Key::DataDigest) == Digest::Crc32c as u32,
            },
            send_data_segment_bytes_max: self
                .peer_segment_bytes_max
                .unwrap_or(default.send_data_segment_bytes_max),
            receive_data_segment_bytes_max: if self.own_segment_declared {
                self.wanted_number(Key::MaxRecvDataSegmentLength)
            } else {
                default.receive_data_segment_bytes_max
            },
        }
    }
}

/// Answers a key that this implementation does not know: `NotUnderstood`, once. RFC 7143 §6.2.
pub(crate) fn receive_unknown(pair: &Pair<'_>, answers: &mut TextBuilder) -> Result<(), Violation> {
    if is_answer_constant(pair.value) {
        return Err(Violation::ReservedValue(pair.name.to_string()));
    }
    answers.pair(pair.name, NOT_UNDERSTOOD);
    Ok(())
}

/// Parses a number inside the key's range.
pub(super) fn admissible(key: Key, text: &str) -> Option<u32> {
    let ValueKind::Number { min, max } = key.info().kind else { return None };
    let number = u32::try_from(value::number(text)?).ok()?;
    (min..=max).contains(&number).then_some(number)
}

/// The index of a word in the key's list.
fn word_number(key: Key, word: &str) -> Option<u32> {
    let ValueKind::List(words) = key.info().kind else { return None };
    words.iter().position(|known| *known == word).map(|at| at as u32)
}
