//! PERSISTENT RESERVE OUT: registering, reserving, preempting. SPC-4 §6.16 and §5.12.

use super::{ItNexus, Registration, ReservationType, Reservations, SHARES, moving};
use crate::attention::Attention;
use crate::plan::Refusal;
use crate::primary::TargetPort;
use crate::sense::Sense;
use alloc::sync::Arc;
use alloc::vec;
use alloc::vec::Vec;

lunar_wire::wire_enum! {
    /// Service actions of PERSISTENT RESERVE OUT. SPC-4 §6.16.2.
    pub struct OutAction(u8) {
        REGISTER = 0, RESERVE = 1, RELEASE = 2, CLEAR = 3, PREEMPT = 4, PREEMPT_AND_ABORT = 5,
        REGISTER_AND_IGNORE_EXISTING_KEY = 6, REGISTER_AND_MOVE = 7,
    }
}

lunar_wire::wire_flags! {
    /// Byte 20 of the parameter list. SPC-4 §6.16.3.
    pub struct OutFlags(u8) { SPEC_I_PT = 0x08, ALL_TG_PT = 0x04, APTPL = 0x01 }
}

lunar_wire::wire_struct! {
    /// The parameter list of every action except REGISTER AND MOVE. SPC-4 §6.16.3.
    pub struct OutParameters [24] {
        0  => key: u64,
        8  => action_key: u64,
        20 => flags: OutFlags,
    }
}

/// Maximum length of a list for REGISTER, so that SPEC_I_PT with its TransportIDs is refused by its
/// flag and not by its length.
const REGISTER_LIST_BYTES_MAX: usize = 4096;

/// The fields of a PERSISTENT RESERVE OUT CDB.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct OutRequest {
    /// SERVICE ACTION, five bits.
    pub service_action: u8,
    /// SCOPE and TYPE, byte 2.
    pub scope_and_type: u8,
    /// PARAMETER LIST LENGTH.
    pub parameter_bytes: u32,
}

/// Further actions for a PERSISTENT RESERVE OUT before it ends with GOOD.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct ReserveOutcome {
    /// Unit attentions to establish, with their nexuses; never for the sender.
    pub attentions: Vec<(ItNexus, Attention)>,
    /// PREEMPT AND ABORT: nexuses whose tasks on the unit are to be aborted; never the sender.
    pub abort: Vec<ItNexus>,
    /// True if the output of [`Reservations::encode`] has changed and must be saved.
    pub save: bool,
}

impl OutRequest {
    /// Checks the CDB before its parameter list is received.
    ///
    /// # Errors
    /// INVALID FIELD IN CDB: unknown service action, or an invalid scope or type if one is needed.
    /// PARAMETER LIST LENGTH ERROR: not 24 bytes, or for REGISTER AND MOVE not 24 and a
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

    /// Returns the type of the reservation; the scope must be the logical unit.
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
    /// Carries out a PERSISTENT RESERVE OUT of `nexus`; `ports` are all ports of the target that
    /// received it. A refusal changes nothing.
    ///
    /// # Errors
    /// The errors of [`OutRequest::check`]; RESERVATION CONFLICT if the sender is not registered,
    /// sent another key, or if RESERVE (6) is in effect; INVALID FIELD IN PARAMETER LIST for
    /// SPEC_I_PT, which is not supported (decision 041), and for APTPL if the unit cannot save its
    /// state; INVALID RELEASE OF PERSISTENT RESERVATION; INSUFFICIENT REGISTRATION RESOURCES if the
    /// maximum number of registrations exists, of all or of this initiator.
    pub fn out(
        &mut self,
        nexus: &ItNexus,
        ports: &[TargetPort],
        request: OutRequest,
        list: &[u8],
    ) -> Result<ReserveOutcome, Refusal> {
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
    ) -> Result<ReserveOutcome, Refusal> {
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

    /// Registers or unregisters. SPC-4 §5.12.7. An action key of 0 unregisters. With ALL_TG_PT the
    /// initiator port registers through every port of the target, as if requested through each: a
    /// port registered with another key is a conflict, and then nothing is changed.
    fn register(
        &mut self,
        nexus: &ItNexus,
        ports: &[TargetPort],
        parameters: OutParameters,
        ignore_key: bool,
    ) -> Result<ReserveOutcome, Refusal> {
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
            self.check_limits(nexus, absent)?;
        } else if action_key == 0 && absent == nexuses.len() {
            return Ok(ReserveOutcome::default());
        }
        let outcome = if action_key == 0 {
            self.unregister(&nexuses)
        } else {
            nexuses.into_iter().for_each(|nexus| self.set_key(nexus, action_key));
            ReserveOutcome::default()
        };
        self.persists = flags.has(OutFlags::APTPL);
        self.generation = self.generation.wrapping_add(1);
        Ok(outcome)
    }

    /// Checks the keys. The sender's own key must be correct, or 0 if it has none, and so must the
    /// key of every further registered nexus. Unregistered nexuses are no conflict: a sender with a
    /// correct key may add a port that was added later.
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

    /// Unregisters nexuses. SPC-4 §5.12.11.3: the reservation ends with its holder; with an all
    /// registrants type it ends with the last registrant.
    fn unregister(&mut self, nexuses: &[ItNexus]) -> ReserveOutcome {
        let held = self.registrations.iter().any(|entry| entry.holds);
        for nexus in nexuses {
            if let Some(at) = self.find(nexus) {
                self.registrations_mut().remove(at);
            }
        }
        let holds = self.registrations.iter().any(|entry| entry.holds);
        let mut outcome = ReserveOutcome::default();
        let Some(kind) = self.kind else { return outcome };
        if (held && !holds) || self.registrations.is_empty() {
            self.kind = None;
            if kind.is_registrants_only() {
                self.add_attentions(&mut outcome, Attention::RESERVATIONS_RELEASED, |_| true);
            }
        }
        outcome
    }

    /// Reserves. SPC-4 §5.12.9. The holder may repeat the same reservation.
    fn reserve_as(&mut self, at: usize, kind: ReservationType) -> Result<ReserveOutcome, Refusal> {
        match self.kind {
            None => self.establish(at, kind),
            Some(held) if held == kind && self.is_holder(&self.registrations[at]) => {}
            Some(_) => return Err(Refusal::ReservationConflict),
        }
        Ok(ReserveOutcome::default())
    }

    /// Releases. SPC-4 §5.12.11.2. A release by a nexus that is not the holder has no effect, which
    /// is no error.
    fn release_as(&mut self, at: usize, scope_and_type: u8) -> Result<ReserveOutcome, Refusal> {
        let mut outcome = ReserveOutcome::default();
        let Some(kind) = self.kind.filter(|_| self.is_holder(&self.registrations[at])) else {
            return Ok(outcome);
        };
        if scope_and_type != kind.0 {
            return Err(Sense::INVALID_RELEASE_OF_PERSISTENT_RESERVATION.into());
        }
        self.kind = None;
        self.registrations_mut()[at].holds = false;
        if kind.is_registrants_only() || kind.is_all_registrants() {
            self.add_attentions(&mut outcome, Attention::RESERVATIONS_RELEASED, |index| {
                index != at
            });
        }
        Ok(outcome)
    }

    /// Clears all registrations and the reservation. SPC-4 §5.12.11.6.
    fn clear(&mut self, at: usize) -> ReserveOutcome {
        let mut outcome = ReserveOutcome::default();
        self.add_attentions(&mut outcome, Attention::RESERVATIONS_PREEMPTED, |index| index != at);
        self.registrations_mut().clear();
        self.kind = None;
        self.generation = self.generation.wrapping_add(1);
        outcome
    }

    /// PREEMPT and PREEMPT AND ABORT. SPC-4 §5.12.11.4 and §5.12.11.5.
    ///
    /// With the key of the reservation's holder (0 if all registrants hold it) the sender takes
    /// over the reservation; any other key only removes registrations.
    fn preempt(
        &mut self,
        at: usize,
        request: OutRequest,
        victim: u64,
    ) -> Result<ReserveOutcome, Refusal> {
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
        let mut outcome = ReserveOutcome::default();
        self.remove_victims(at, victim, takes_over, &mut outcome);
        if let (Some(new_kind), Some(at)) = (new_kind, self.find(&sender)) {
            if self.kind != Some(new_kind) {
                self.add_attentions(&mut outcome, Attention::RESERVATIONS_RELEASED, |index| {
                    index != at
                });
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

    /// Removes the registrations with the victim's key, or all if it is 0. A sender that preempts a
    /// reservation keeps its registration; one that only removes registrations may remove its own.
    fn remove_victims(
        &mut self,
        sender: usize,
        victim: u64,
        keeps_sender: bool,
        outcome: &mut ReserveOutcome,
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

    /// Checks that `more` registrations of `nexus` exceed neither the limit of the unit nor those
    /// of the initiator and its origin.
    pub(super) fn check_limits(&self, nexus: &ItNexus, more: usize) -> Result<(), Sense> {
        let taken = self.registrations.iter().map(Registration::counts_for);
        if SHARES.admit(taken, nexus.owner(), more) {
            Ok(())
        } else {
            Err(Sense::INSUFFICIENT_REGISTRATION_RESOURCES)
        }
    }

    /// Makes one registration the holder of a reservation of this type, replacing an earlier one.
    pub(super) fn establish(&mut self, at: usize, kind: ReservationType) {
        for (index, entry) in self.registrations_mut().iter_mut().enumerate() {
            entry.holds = index == at && !kind.is_all_registrants();
        }
        self.kind = Some(kind);
    }

    /// Returns the registration of `nexus`, if `key` is its key.
    pub(super) fn registered_with(&self, nexus: &ItNexus, key: u64) -> Result<usize, Refusal> {
        self.find(nexus)
            .filter(|at| self.registrations[*at].key == key)
            .ok_or(Refusal::ReservationConflict)
    }

    /// Adds a unit attention for every registered nexus whose index satisfies `is_affected`.
    fn add_attentions(
        &self,
        outcome: &mut ReserveOutcome,
        attention: Attention,
        is_affected: impl Fn(usize) -> bool,
    ) {
        let others = self.registrations.iter().enumerate();
        let attentions = others
            .filter(|(index, _)| is_affected(*index))
            .map(|(_, entry)| (ItNexus::clone(&entry.nexus), attention));
        outcome.attentions.extend(attentions);
    }
}
