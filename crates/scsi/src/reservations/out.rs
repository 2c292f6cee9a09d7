//! PERSISTENT RESERVE OUT: registering, reserving, preempting. SPC-4 §6.16 and §5.12.

use super::{ItNexus, Registration, ReservationType, Reservations, SHARES, moving};
use crate::attention::Attention;
use crate::plan::Refusal;
use crate::sense::Sense;
use crate::unit::TargetPort;
use alloc::sync::Arc;
use alloc::vec;
use alloc::vec::Vec;

wire::wire_enum! {
    /// Service actions of PERSISTENT RESERVE OUT. SPC-4 §6.16.2.
    pub struct OutAction(u8) {
        REGISTER = 0, RESERVE = 1, RELEASE = 2, CLEAR = 3, PREEMPT = 4, PREEMPT_AND_ABORT = 5,
        REGISTER_AND_IGNORE_EXISTING_KEY = 6, REGISTER_AND_MOVE = 7,
    }
}

wire::wire_flags! {
    /// Byte 20 of the parameter list. SPC-4 §6.16.3.
    pub struct OutFlags(u8) { SPEC_I_PT = 0x08, ALL_TG_PT = 0x04, APTPL = 0x01 }
}

wire::wire_struct! {
    /// The parameter list of every action but REGISTER AND MOVE. SPC-4 §6.16.3.
    pub struct OutParameters [24] {
        0  => key: u64,
        8  => action_key: u64,
        20 => flags: OutFlags,
    }
}

/// A list for REGISTER may be this long, so that SPEC_I_PT with its TransportIDs is refused for
/// what it is.
const REGISTER_LIST_BYTES_MAX: usize = 4096;

/// What the CDB of a PERSISTENT RESERVE OUT says.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct OutRequest {
    /// SERVICE ACTION, five bits.
    pub service_action: u8,
    /// SCOPE and TYPE, byte 2.
    pub scope_and_type: u8,
    /// PARAMETER LIST LENGTH.
    pub parameter_bytes: u32,
}

/// What else has to be done for a PERSISTENT RESERVE OUT before it ends with GOOD.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct Outcome {
    /// Unit attentions to establish, and for whom; never for the sender.
    pub attentions: Vec<(ItNexus, Attention)>,
    /// PREEMPT AND ABORT: whose tasks on the unit are to be aborted; never the sender's.
    pub abort: Vec<ItNexus>,
    /// What [`Reservations::encode`] gives has changed and must be saved.
    pub save: bool,
}

impl OutRequest {
    /// Judges the CDB before its parameter list is collected.
    ///
    /// # Errors
    /// INVALID FIELD IN CDB: no such service action, or a scope or type that is none where one is
    /// needed. PARAMETER LIST LENGTH ERROR: not 24 bytes, or for REGISTER AND MOVE not 24 and a
    /// TransportID, or for the other registrations too many for SPEC_I_PT.
    pub fn check(&self) -> Result<(), Sense> {
        if self.action().name().is_none() {
            return Err(Sense::invalid_field_in_cdb(1, Some(4)));
        }
        let bytes = self.parameter_bytes as usize;
        let fits = match self.action() {
            OutAction::REGISTER_AND_MOVE => moving::is_list_length(bytes),
            OutAction::REGISTER | OutAction::REGISTER_AND_IGNORE_EXISTING_KEY => {
                (OutParameters::LEN..=REGISTER_LIST_BYTES_MAX).contains(&bytes)
            }
            _ => bytes == OutParameters::LEN,
        };
        if !fits {
            return Err(Sense::PARAMETER_LIST_LENGTH_ERROR);
        }
        if self.action() == OutAction::RESERVE { self.kind().map(|_| ()) } else { Ok(()) }
    }

    fn action(&self) -> OutAction {
        OutAction(self.service_action)
    }

    /// The type to reserve with; the scope must be the logical unit.
    fn kind(&self) -> Result<ReservationType, Sense> {
        if self.scope_and_type >> 4 != 0 {
            return Err(Sense::invalid_field_in_cdb(2, Some(7)));
        }
        let kind = ReservationType(self.scope_and_type);
        if kind.name().is_none() {
            return Err(Sense::invalid_field_in_cdb(2, Some(3)));
        }
        Ok(kind)
    }
}

impl Reservations {
    /// Does what a PERSISTENT RESERVE OUT of `nexus` asks for; `ports` are all of the target it
    /// came to. Nothing is changed by a refusal.
    ///
    /// # Errors
    /// As [`OutRequest::check`]; RESERVATION CONFLICT when the sender is not registered, gave
    /// another key, or when RESERVE (6) is in effect; INVALID FIELD IN PARAMETER LIST for
    /// SPEC_I_PT, which is not offered (decision 041), and for APTPL without a place for the state;
    /// INVALID RELEASE OF PERSISTENT RESERVATION; INSUFFICIENT REGISTRATION RESOURCES when there
    /// are as many registrations as there may be, of all or of this initiator.
    pub fn out(
        &mut self,
        nexus: &ItNexus,
        ports: &[TargetPort],
        request: OutRequest,
        list: &[u8],
    ) -> Result<Outcome, Refusal> {
        request.check()?;
        if list.len() != request.parameter_bytes as usize {
            return Err(Sense::PARAMETER_LIST_LENGTH_ERROR.into());
        }
        if self.reserved_by.is_some() {
            return Err(Refusal::ReservationConflict);
        }
        let before = self.clone();
        let mut outcome = match request.action() {
            OutAction::REGISTER_AND_MOVE => self.register_and_move(nexus, ports, list)?,
            _ => self.act(nexus, ports, request, list)?,
        };
        outcome.save = self.differs_in_state(&before);
        Ok(outcome)
    }

    fn act(
        &mut self,
        nexus: &ItNexus,
        ports: &[TargetPort],
        request: OutRequest,
        list: &[u8],
    ) -> Result<Outcome, Refusal> {
        let bytes = list.first_chunk().ok_or(Sense::PARAMETER_LIST_LENGTH_ERROR)?;
        let parameters = OutParameters::decode(bytes);
        let ignore_key = request.action() == OutAction::REGISTER_AND_IGNORE_EXISTING_KEY;
        if ignore_key || request.action() == OutAction::REGISTER {
            if !parameters.flags.has(OutFlags::SPEC_I_PT) && list.len() != OutParameters::LEN {
                return Err(Sense::PARAMETER_LIST_LENGTH_ERROR.into());
            }
            return self.register(nexus, ports, parameters, ignore_key);
        }
        let at = self.registered_with(nexus, parameters.key)?;
        match request.action() {
            OutAction::RESERVE => self.reserve_as(at, request.kind()?),
            OutAction::RELEASE => self.release_as(at, request.scope_and_type),
            OutAction::CLEAR => Ok(self.clear(at)),
            _ => self.preempt(at, request, parameters.action_key),
        }
    }

    /// SPC-4 §5.12.7. An action key of 0 unregisters. With ALL_TG_PT the initiator port registers
    /// through every port of the target, as if it had asked through each: one that is registered
    /// with another key is a conflict, and then nothing is done at all.
    fn register(
        &mut self,
        nexus: &ItNexus,
        ports: &[TargetPort],
        parameters: OutParameters,
        ignore_key: bool,
    ) -> Result<Outcome, Refusal> {
        let OutParameters { key, action_key, flags } = parameters;
        for (flag, bit, offered) in
            [(OutFlags::SPEC_I_PT, 3, false), (OutFlags::APTPL, 0, self.can_persist)]
        {
            if flags.has(flag) && !offered {
                return Err(Sense::invalid_field_in_parameter_list(20, Some(bit)).into());
            }
        }
        let mut nexuses = vec![nexus.clone()];
        if flags.has(OutFlags::ALL_TG_PT) {
            let through = |port| ItNexus::new(&nexus.initiator, port).from_origin(nexus.origin);
            let each = ports.iter().map(through);
            nexuses.extend(each.filter(|other| other != nexus));
        }
        if !ignore_key {
            self.check_keys(&nexuses, key)?;
        }
        let absent = nexuses.iter().filter(|nexus| self.find(nexus).is_none()).count();
        if action_key != 0 && absent > 0 {
            self.check_room(nexus, absent)?;
        } else if action_key == 0 && absent == nexuses.len() {
            return Ok(Outcome::default());
        }
        let outcome = if action_key == 0 {
            self.unregister(&nexuses)
        } else {
            nexuses.into_iter().for_each(|nexus| self.set_key(nexus, action_key));
            Outcome::default()
        };
        self.persists = flags.has(OutFlags::APTPL);
        self.generation = self.generation.wrapping_add(1);
        Ok(outcome)
    }

    /// The sender's own key must be right, 0 where it has none, and so must that of every further
    /// nexus that is registered. Those that are not are no conflict: who has shown its own key
    /// may add a port that came later.
    fn check_keys(&self, nexuses: &[ItNexus], key: u64) -> Result<(), Refusal> {
        for (index, nexus) in nexuses.iter().enumerate() {
            let right = match self.find(nexus) {
                Some(at) => self.registrations[at].key == key,
                None => index > 0 || key == 0,
            };
            if !right {
                return Err(Refusal::ReservationConflict);
            }
        }
        Ok(())
    }

    /// Registers a nexus, or changes its key.
    fn set_key(&mut self, nexus: ItNexus, key: u64) {
        match self.find(&nexus) {
            Some(at) => self.registrations_mut()[at].key = key,
            None => {
                let nexus = Arc::new(nexus);
                self.insert(Registration { nexus, key, holds: false, made_by: None });
            }
        }
    }

    /// SPC-4 §5.12.11.3: the holder takes its reservation with it; all registrants hold theirs
    /// until the last one goes.
    fn unregister(&mut self, nexuses: &[ItNexus]) -> Outcome {
        let held = self.registrations.iter().any(|entry| entry.holds);
        for nexus in nexuses {
            if let Some(at) = self.find(nexus) {
                self.registrations_mut().remove(at);
            }
        }
        let holds = self.registrations.iter().any(|entry| entry.holds);
        let mut outcome = Outcome::default();
        let Some(kind) = self.kind else { return outcome };
        if (held && !holds) || self.registrations.is_empty() {
            self.kind = None;
            if kind.is_registrants_only() {
                self.tell(&mut outcome, Attention::RESERVATIONS_RELEASED, |_| true);
            }
        }
        outcome
    }

    /// SPC-4 §5.12.9. Who holds it already may reserve the same again.
    fn reserve_as(&mut self, at: usize, kind: ReservationType) -> Result<Outcome, Refusal> {
        match self.kind {
            None => self.establish(at, kind),
            Some(held) if held == kind && self.is_holder(&self.registrations[at]) => {}
            Some(_) => return Err(Refusal::ReservationConflict),
        }
        Ok(Outcome::default())
    }

    /// SPC-4 §5.12.11.2. Who does not hold it releases nothing, and that is no error.
    fn release_as(&mut self, at: usize, scope_and_type: u8) -> Result<Outcome, Refusal> {
        let mut outcome = Outcome::default();
        let Some(kind) = self.kind.filter(|_| self.is_holder(&self.registrations[at])) else {
            return Ok(outcome);
        };
        if scope_and_type != kind.0 {
            return Err(Sense::INVALID_RELEASE_OF_PERSISTENT_RESERVATION.into());
        }
        self.kind = None;
        self.registrations_mut()[at].holds = false;
        if kind.is_registrants_only() || kind.is_all_registrants() {
            self.tell(&mut outcome, Attention::RESERVATIONS_RELEASED, |index| index != at);
        }
        Ok(outcome)
    }

    /// SPC-4 §5.12.11.6.
    fn clear(&mut self, at: usize) -> Outcome {
        let mut outcome = Outcome::default();
        self.tell(&mut outcome, Attention::RESERVATIONS_PREEMPTED, |index| index != at);
        self.registrations_mut().clear();
        self.kind = None;
        self.generation = self.generation.wrapping_add(1);
        outcome
    }

    /// PREEMPT and PREEMPT AND ABORT. SPC-4 §5.12.11.4 and §5.12.11.5.
    ///
    /// The key of the reservation's holder (0 where all registrants hold it) takes the
    /// reservation over; any other key only removes registrations.
    fn preempt(&mut self, at: usize, request: OutRequest, victim: u64) -> Result<Outcome, Refusal> {
        let everyone = victim == 0;
        let takes_over = match self.kind {
            Some(kind) if kind.is_all_registrants() => everyone,
            Some(_) => self.registrations.iter().any(|entry| entry.holds && entry.key == victim),
            None => false,
        };
        if everyone && !takes_over {
            return Err(Sense::invalid_field_in_parameter_list(8, None).into());
        }
        if !everyone && !self.registrations.iter().any(|entry| entry.key == victim) {
            return Err(Refusal::ReservationConflict);
        }
        let new_kind = if takes_over { Some(request.kind()?) } else { None };
        let sender = Arc::clone(&self.registrations[at].nexus);
        let mut outcome = Outcome::default();
        self.remove_victims(at, victim, takes_over, &mut outcome);
        if let (Some(new_kind), Some(at)) = (new_kind, self.find(&sender)) {
            if self.kind != Some(new_kind) {
                self.tell(&mut outcome, Attention::RESERVATIONS_RELEASED, |index| index != at);
            }
            self.establish(at, new_kind);
        } else if self.registrations.is_empty() {
            self.kind = None;
        }
        if request.action() != OutAction::PREEMPT_AND_ABORT {
            outcome.abort.clear();
        }
        self.generation = self.generation.wrapping_add(1);
        Ok(outcome)
    }

    /// Removes the registrations with the victim's key, or all where it is 0. Who preempts a
    /// reservation keeps its own; who only removes registrations may remove its own.
    fn remove_victims(
        &mut self,
        sender: usize,
        victim: u64,
        keeps_sender: bool,
        outcome: &mut Outcome,
    ) {
        let mut indices = 0..;
        self.registrations_mut().retain(|entry| {
            let own = indices.next() == Some(sender);
            let stays = (victim != 0 && entry.key != victim) || (own && keeps_sender);
            if !stays && !own {
                let nexus = ItNexus::clone(&entry.nexus);
                outcome.attentions.push((nexus.clone(), Attention::REGISTRATIONS_PREEMPTED));
                outcome.abort.push(nexus);
            }
            stays
        });
    }

    /// There is room for so many more registrations, and `nexus` has not used its share up.
    pub(super) fn check_room(&self, nexus: &ItNexus, more: usize) -> Result<(), Sense> {
        let asker = nexus.owner();
        let taken = self.registrations.iter().map(|entry| entry.owner_for(asker));
        if SHARES.admit(taken, asker, more) {
            Ok(())
        } else {
            Err(Sense::INSUFFICIENT_REGISTRATION_RESOURCES)
        }
    }

    /// Makes one registration the holder of a reservation of this type, whatever was before.
    pub(super) fn establish(&mut self, at: usize, kind: ReservationType) {
        for (index, entry) in self.registrations_mut().iter_mut().enumerate() {
            entry.holds = index == at && !kind.is_all_registrants();
        }
        self.kind = Some(kind);
    }

    /// The registration of `nexus`, if `key` is its key.
    pub(super) fn registered_with(&self, nexus: &ItNexus, key: u64) -> Result<usize, Refusal> {
        self.find(nexus)
            .filter(|at| self.registrations[*at].key == key)
            .ok_or(Refusal::ReservationConflict)
    }

    /// Establishes a unit attention for every registered nexus whose index is concerned.
    fn tell(&self, outcome: &mut Outcome, attention: Attention, concerned: impl Fn(usize) -> bool) {
        let told = self.registrations.iter().enumerate();
        let told = told
            .filter(|(index, _)| concerned(*index))
            .map(|(_, entry)| (ItNexus::clone(&entry.nexus), attention));
        outcome.attentions.extend(told);
    }
}
