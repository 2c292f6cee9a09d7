//! Text in full feature phase, both roles: SendTargets and negotiation.
//! RFC 7143 §6.4, §11.10, §11.11, Appendix C.
//!
//! The target's connection keeps one [`TargetExchange`]. For each delivered Text Request, the
//! connection calls [`request`](TargetExchange::request) and carries out the [`TextStep`]s in
//! order.

use super::pairs::{KeySet, Pair, TextBuilder, Violation, is_answer_constant, parse, parse_up_to};
use super::table::{Key, Senders};
use super::{Reassembler, Segmenter, receive_unknown, value};
use crate::connection::target::TargetRecord;
use crate::login::SessionType;
use crate::pdu::{RejectReason, TAG_RESERVED, TextFlags, TextRequest, TextResponse};
use alloc::string::{String, ToString};
use alloc::vec::Vec;
use bytes::Bytes;
use lunar_wire::Lun;

/// Maximum data segment of a Text Response, even if the initiator accepts longer ones. libiscsi
/// accepts the answer to SendTargets in one response only, and declares this length.
pub const TEXT_RESPONSE_BYTES_MAX: u32 = 256 << 10;

/// Maximum text that an initiator accepts as the answer to SendTargets.
pub const TARGETS_BYTES_MAX: usize = 1 << 20;

/// One Text PDU without the numbers that its connection stamps.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct TextSegment {
    /// F and C.
    pub flags: TextFlags,
    /// TTT; the reserved tag in the last response, and in the first request.
    pub target_transfer_tag: u32,
    /// LUN, to be copied by the initiator.
    pub lun: Lun,
    /// Data segment of the PDU.
    pub data: Bytes,
}

/// An action for the target's connection.
#[derive(Clone, Debug, Eq, PartialEq)]
pub enum TextStep {
    /// Send a Text Response with the request's Initiator Task Tag.
    Respond(TextSegment),
    /// Send a Reject that carries the request's header. The negotiation is discarded.
    Reject(RejectReason),
    /// Ask the driver (`Output::ListTargets`), then call [`TargetExchange::targets`].
    ListTargets {
        /// Name of the only target to list; `None` for all that this initiator may see.
        only: Option<String>,
        /// Start behind this name in the order of names; `None`: at the first.
        after: Option<String>,
        /// Minimum length of the requested text; see [`TargetRecord::text_bytes`].
        text_bytes: usize,
    },
    /// Set the initiator's MaxRecvDataSegmentLength from now on.
    PeerSegmentBytesMax(u32),
}

/// Text exchanges of one connection, target role. Only one runs at a time (RFC 7143 §11.10).
#[derive(Debug)]
pub struct TargetExchange {
    session_type: SessionType,
    target_name: Option<String>,
    text_bytes_max: usize,
    next_tag: u32,
    now: Option<Exchange>,
}

/// One sequence of requests with one Initiator Task Tag.
#[derive(Debug)]
struct Exchange {
    initiator_task_tag: u32,
    target_transfer_tag: u32,
    lun: Lun,
    last_flags: TextFlags,
    incoming: Reassembler,
    outgoing: Segmenter,
    seen: KeySet,
    listing: Option<Listing>,
    peer_segment_bytes_max: Option<u32>,
}

/// A list of targets that is produced as the initiator fetches it: no more than the next response
/// is held.
#[derive(Debug)]
struct Listing {
    only: Option<String>,
    /// The last target whose text was produced.
    last: Option<String>,
    /// True if there are further targets behind that one.
    more: bool,
    /// True while the driver's answer is due.
    is_waiting: bool,
}

impl TargetExchange {
    /// Bit that is set in Target Transfer Tags of text, which distinguishes them from those of
    /// R2Ts, which count from 0.
    pub const TAG_BIT: u32 = 0x8000_0000;

    /// Creates the exchanges of a connection that has entered full feature phase; `target_name` is
    /// set in normal sessions. At most `text_bytes_max` bytes are held of a text that comes in
    /// several requests.
    pub const fn new(
        session_type: SessionType,
        target_name: Option<String>,
        text_bytes_max: usize,
    ) -> Self {
        Self { session_type, target_name, text_bytes_max, next_tag: Self::TAG_BIT, now: None }
    }

    /// Handles one Text Request with its data segment. Responses carry at most `segment_bytes_max`
    /// bytes, the initiator's MaxRecvDataSegmentLength.
    pub fn request(
        &mut self,
        request: &TextRequest,
        data: &[u8],
        segment_bytes_max: u32,
        steps: &mut Vec<TextStep>,
    ) {
        if self.is_waiting_for_driver() {
            // A second request while one is outstanding; the first continues.
            steps.push(TextStep::Reject(RejectReason::PROTOCOL_ERROR));
            return;
        }
        if let Err(reason) = self.take(request, data, segment_bytes_max, steps) {
            self.now = None;
            steps.push(TextStep::Reject(reason));
        }
    }

    /// Handles the answer to [`TextStep::ListTargets`]: targets in the order of names, and whether
    /// there are `more` behind the last one.
    pub fn targets(
        &mut self,
        records: &[TargetRecord],
        more: bool,
        segment_bytes_max: u32,
        steps: &mut Vec<TextStep>,
    ) {
        let Some(exchange) = &mut self.now else { return };
        let Some(listing) = exchange.listing.as_mut().filter(|listing| listing.is_waiting) else {
            return;
        };
        listing.is_waiting = false;
        listing.last = records.last().map(|record| record.name.clone());
        listing.more = more && listing.last.is_some();
        let mut text = TextBuilder::new();
        for record in records {
            text.key(Key::TargetName, &record.name);
            for (address, portal_group_tag) in &record.addresses {
                text.key(Key::TargetAddress, format_args!("{address},{portal_group_tag}"));
            }
        }
        exchange.outgoing.append(text.into_bytes());
        self.emit(segment_bytes_max, steps);
    }

    /// True until [`TextStep::ListTargets`] is answered.
    pub fn is_waiting_for_driver(&self) -> bool {
        let listing = self.now.as_ref().and_then(|exchange| exchange.listing.as_ref());
        listing.is_some_and(|listing| listing.is_waiting)
    }

    /// Memory of the exchange under way: the text that has come, the rest of the answer, and the
    /// keys.
    pub(crate) fn memory_bytes(&self) -> usize {
        self.now.as_ref().map_or(0, |exchange| {
            exchange.incoming.memory_bytes()
                + exchange.outgoing.memory_bytes()
                + exchange.seen.memory_bytes()
        })
    }

    /// Number of bytes of an answer that are held for later responses.
    #[cfg(test)]
    pub(super) fn held_bytes(&self) -> usize {
        self.now.as_ref().map_or(0, |exchange| exchange.outgoing.remaining_bytes())
    }

    fn take(
        &mut self,
        request: &TextRequest,
        data: &[u8],
        segment_bytes_max: u32,
        steps: &mut Vec<TextStep>,
    ) -> Result<(), RejectReason> {
        let protocol_error = Err(RejectReason::PROTOCOL_ERROR);
        let more = request.flags.has(TextFlags::CONTINUE);
        if more && request.flags.has(TextFlags::FINAL) {
            return protocol_error;
        }
        if request.target_transfer_tag == TAG_RESERVED {
            let tag = self.new_tag();
            self.now = Some(Exchange::new(request, tag, self.text_bytes_max));
        }
        let Some(exchange) = self.now.as_mut().filter(|exchange| exchange.is_covered(request))
        else {
            return protocol_error;
        };
        exchange.last_flags = request.flags;
        if exchange.has_more() {
            if more || !data.is_empty() {
                return protocol_error;
            }
            self.emit(segment_bytes_max, steps);
            return Ok(());
        }
        match exchange.incoming.add(data, more) {
            Ok(Some(text)) => self.answer(&text, segment_bytes_max, steps).map_err(|_| {
                // All errors of text in this phase look the same on the wire, §6.4.
                RejectReason::PROTOCOL_ERROR
            }),
            Ok(None) => {
                self.emit(segment_bytes_max, steps);
                Ok(())
            }
            Err(_) => protocol_error,
        }
    }

    /// Handles one complete text.
    fn answer(
        &mut self,
        text: &[u8],
        segment_bytes_max: u32,
        steps: &mut Vec<TextStep>,
    ) -> Result<(), Violation> {
        let pairs = parse(text)?;
        let Some(exchange) = self.now.as_mut() else { return Ok(()) };
        for pair in &pairs {
            exchange.seen.record(pair)?;
        }
        if let [pair] = pairs.as_slice()
            && pair.key == Some(Key::SendTargets)
        {
            let only = listed(self.session_type, self.target_name.as_deref(), pair.value)?;
            exchange.listing = Some(Listing { only, last: None, more: true, is_waiting: false });
            self.emit(segment_bytes_max, steps);
            return Ok(());
        }
        let continues = pairs.is_empty() && exchange.seen.has(Key::SendTargets);
        if self.session_type == SessionType::Discovery && !continues {
            // RFC 7143 §4.3, §13.21: only SendTargets is accepted there.
            return Err(Violation::WrongStage("a text without SendTargets"));
        }
        let mut answers = TextBuilder::new();
        for pair in &pairs {
            exchange.receive(pair, pairs.len() == 1, &mut answers)?;
        }
        exchange.outgoing = Segmenter::new(answers.into_bytes());
        self.emit(segment_bytes_max, steps);
        Ok(())
    }

    /// Sends the next piece once there is enough text for it; the last piece ends the exchange if
    /// the initiator agrees.
    fn emit(&mut self, segment_bytes_max: u32, steps: &mut Vec<TextStep>) {
        let Some(exchange) = &mut self.now else { return };
        let bytes = segment_bytes_max.min(TEXT_RESPONSE_BYTES_MAX) as usize;
        let missing = bytes.saturating_sub(exchange.outgoing.remaining_bytes());
        if let Some(listing) = &mut exchange.listing
            && listing.more
            && missing > 0
        {
            steps.push(listing.ask(missing));
            return;
        }
        let data = exchange.outgoing.next(bytes);
        let more = exchange.has_more();
        let last = !more && exchange.last_flags.has(TextFlags::FINAL);
        let flags =
            TextFlags::NONE.with_if(more, TextFlags::CONTINUE).with_if(last, TextFlags::FINAL);
        let target_transfer_tag = if last { TAG_RESERVED } else { exchange.target_transfer_tag };
        let lun = exchange.lun;
        steps.push(TextStep::Respond(TextSegment { flags, target_transfer_tag, lun, data }));
        if last {
            // RFC 7143 §6.4: effective once the sequence is complete.
            let bytes = exchange.peer_segment_bytes_max.take();
            steps.extend(bytes.map(TextStep::PeerSegmentBytesMax));
            self.now = None;
        }
    }

    fn new_tag(&mut self) -> u32 {
        let tag = self.next_tag;
        let next = tag.wrapping_add(1) | Self::TAG_BIT;
        self.next_tag = if next == TAG_RESERVED { Self::TAG_BIT } else { next };
        tag
    }
}

impl Listing {
    fn ask(&mut self, text_bytes: usize) -> TextStep {
        self.is_waiting = true;
        TextStep::ListTargets { only: self.only.clone(), after: self.last.clone(), text_bytes }
    }
}

impl Exchange {
    fn new(request: &TextRequest, target_transfer_tag: u32, text_bytes_max: usize) -> Self {
        Self {
            initiator_task_tag: request.initiator_task_tag,
            target_transfer_tag,
            lun: request.lun,
            last_flags: request.flags,
            incoming: Reassembler::new(text_bytes_max),
            outgoing: Segmenter::default(),
            seen: KeySet::EMPTY,
            listing: None,
            peer_segment_bytes_max: None,
        }
    }

    /// True if the initiator has to fetch more of the answer.
    fn has_more(&self) -> bool {
        !self.outgoing.is_empty() || self.listing.as_ref().is_some_and(|listing| listing.more)
    }

    /// True if `request` begins or continues this exchange.
    const fn is_covered(&self, request: &TextRequest) -> bool {
        let tag = request.target_transfer_tag;
        request.initiator_task_tag == self.initiator_task_tag
            && (tag == TAG_RESERVED || tag == self.target_transfer_tag)
    }

    /// Handles one pair of a normal session; `is_only_pair`: it is the only pair of the text.
    fn receive(
        &mut self,
        pair: &Pair<'_>,
        is_only_pair: bool,
        answers: &mut TextBuilder,
    ) -> Result<(), Violation> {
        let Some(key) = pair.key else {
            if is_only_pair && !pair.name.starts_with("X-") {
                // The text contains nothing else to answer; libiscsi drops the connection after a
                // text response it does not know. §6.4 lets a target end a negotiation with a
                // Reject.
                return Err(Violation::WrongStage("an unknown key"));
            }
            return receive_unknown(pair, answers);
        };
        let info = key.info();
        if is_answer_constant(pair.value) {
            return Err(Violation::ReservedValue(info.name.to_string()));
        }
        match key {
            Key::MaxRecvDataSegmentLength => {
                let bytes = super::negotiate::admissible(key, pair.value);
                self.peer_segment_bytes_max = Some(bytes.ok_or(Violation::BadValue(info.name))?);
                Ok(())
            }
            Key::InitiatorAlias | Key::NodeArchitecture => Ok(()),
            _ if info.senders == Senders::Target => Err(Violation::WrongSender(info.name)),
            // SendTargets must be alone (Appendix C); the others belong to the login.
            _ => Err(Violation::WrongStage(info.name)),
        }
    }
}

/// Returns the targets that a SendTargets value covers; Appendix C. In a normal session that is the
/// session's own target, also for `All`, which the RFC does not require there but libiscsi sends.
fn listed(
    session_type: SessionType,
    own: Option<&str>,
    value: &str,
) -> Result<Option<String>, Violation> {
    let wrong = Err(Violation::BadValue(Key::SendTargets.name()));
    let name = value.to_lowercase();
    match (session_type, own) {
        (SessionType::Discovery, _) if value == "All" => Ok(None),
        (SessionType::Discovery, _) if is_iscsi_name(&name) => Ok(Some(name)),
        (SessionType::Normal, Some(own)) if matches!(value, "" | "All") || name == own => {
            Ok(Some(own.to_string()))
        }
        _ => wrong,
    }
}

/// True if the name has one of the three formats of RFC 7143 §4.2.7.
fn is_iscsi_name(name: &str) -> bool {
    ["iqn.", "eui.", "naa."].iter().any(|format| name.starts_with(format))
}

/// One text exchange, initiator role.
#[derive(Debug)]
pub struct InitiatorExchange {
    answer: Reassembler,
}

/// The next step of an exchange.
#[derive(Clone, Debug, Eq, PartialEq)]
pub enum ExchangeStep {
    /// Send this segment, with the same Initiator Task Tag.
    Request(TextSegment),
    /// The whole answer: parse it with [`parse_targets`] or [`parse`].
    Done(Vec<u8>),
}

impl InitiatorExchange {
    /// Begins with SendTargets; `None` requests all targets, `Some("")` the session's own target.
    pub fn send_targets(only: Option<&str>) -> (Self, TextSegment) {
        let mut text = TextBuilder::new();
        text.key(Key::SendTargets, only.unwrap_or("All"));
        Self::new(text)
    }

    /// Begins with `text`, which must fit into one PDU.
    pub fn new(text: TextBuilder) -> (Self, TextSegment) {
        let first = TextSegment {
            flags: TextFlags::FINAL,
            target_transfer_tag: TAG_RESERVED,
            lun: Lun::ZERO,
            data: text.into_bytes().into(),
        };
        (Self { answer: Reassembler::new(TARGETS_BYTES_MAX) }, first)
    }

    /// Handles one Text Response with its data segment.
    ///
    /// # Errors
    /// [`Violation`] if its flags contradict each other, or if the text has no end.
    pub fn response(
        &mut self,
        response: &TextResponse,
        data: &[u8],
    ) -> Result<ExchangeStep, Violation> {
        let last = response.flags.has(TextFlags::FINAL);
        let more = response.flags.has(TextFlags::CONTINUE);
        let tag = response.target_transfer_tag;
        if (last && more) || (!last && tag == TAG_RESERVED) {
            return Err(Violation::OutOfTurn);
        }
        match self.answer.add(data, !last)? {
            Some(text) => Ok(ExchangeStep::Done(text)),
            None => Ok(ExchangeStep::Request(TextSegment {
                flags: TextFlags::FINAL,
                target_transfer_tag: tag,
                lun: response.lun,
                data: Bytes::new(),
            })),
        }
    }
}

/// Parses the records of a SendTargets answer, Appendix C. An address without portal group tag
/// counts as group 1; keys that do not belong there are skipped.
///
/// # Errors
/// [`Violation`] of the format; an address before any name; `SendTargets` itself, which is a
/// refusal.
pub fn parse_targets(text: &[u8]) -> Result<Vec<TargetRecord>, Violation> {
    let mut records: Vec<TargetRecord> = Vec::new();
    for pair in parse_up_to(text, TARGETS_BYTES_MAX)? {
        match pair.key {
            Some(Key::TargetName) => {
                let name = pair.value.to_string();
                records.push(TargetRecord { name, addresses: Vec::new() });
            }
            Some(Key::TargetAddress) => {
                let record = records.last_mut().ok_or(Violation::Missing("TargetName"))?;
                record.addresses.push(address(pair.value)?);
            }
            Some(Key::SendTargets) => return Err(Violation::BadAnswer("SendTargets")),
            _ => {}
        }
    }
    Ok(records)
}

/// Parses `host[:port][,tag]`.
fn address(text: &str) -> Result<(String, u16), Violation> {
    let (host, tag) = text.rsplit_once(',').unwrap_or((text, "1"));
    let tag = value::number(tag).and_then(|tag| u16::try_from(tag).ok());
    match tag {
        Some(tag) if !host.is_empty() => Ok((host.to_string(), tag)),
        _ => Err(Violation::BadValue(Key::TargetAddress.name())),
    }
}
