//! REGISTER AND MOVE: the holder moves its reservation to another nexus. SPC-4 §5.12.8.

use super::out::ReserveOutcome;
use super::transport::{self, TRANSPORT_ID_BYTES_MAX, TRANSPORT_ID_BYTES_MIN};
use super::{ItNexus, Registration, Reservations};
use crate::plan::Refusal;
use crate::primary::TargetPort;
use crate::sense::Sense;
use alloc::sync::Arc;

lunar_wire::wire_flags! {
    /// Byte 17 of the parameter list. SPC-4 §6.16.4.
    pub struct MoveFlags(u8) { UNREG = 0x02, APTPL = 0x01 }
}

lunar_wire::wire_struct! {
    /// The parameter list of REGISTER AND MOVE; a TransportID follows. SPC-4 §6.16.4.
    pub struct MoveParameters [24] {
        0  => key: u64,
        8  => action_key: u64,
        17 => flags: MoveFlags,
        18 => relative_id: u16,
        20 => transport_id_bytes: u32,
    }
}

/// True for a valid length of the parameter list.
pub(super) fn is_list_length(bytes: usize) -> bool {
    bytes
        .checked_sub(MoveParameters::LEN)
        .is_some_and(|bytes| (TRANSPORT_ID_BYTES_MIN..=TRANSPORT_ID_BYTES_MAX).contains(&bytes))
}

impl Reservations {
    /// Registers the nexus that the list names and makes it the holder. Its target port must belong
    /// to the target that received the command; the list cannot name ports of other targets that
    /// export the unit.
    pub(super) fn register_and_move(
        &mut self,
        nexus: &ItNexus,
        ports: &[TargetPort],
        list: &[u8],
    ) -> Result<ReserveOutcome, Refusal> {
        let (head, transport_id) = list
            .split_first_chunk::<{ MoveParameters::LEN }>()
            .ok_or(Sense::PARAMETER_LIST_LENGTH_ERROR)?;
        let parameters = MoveParameters::decode(head);
        let sender = self.registered_with(nexus, parameters.key)?;
        let Some(kind) = self.kind else {
            return Err(Sense::invalid_field_in_cdb(1, Some(4)).into());
        };
        if kind.is_all_registrants() || !self.is_holder(&self.registrations[sender]) {
            return Err(Refusal::ReservationConflict);
        }
        let new = self.destination(nexus, ports, &parameters, transport_id)?;
        let at = match self.find(&new) {
            Some(at) => at,
            None => {
                self.check_limits(nexus, 1)?;
                let made_by = Some(Arc::new(nexus.clone()));
                let new = Arc::new(new);
                self.insert(Registration { nexus: new, key: 0, holds: false, made_by })
            }
        };
        self.registrations_mut()[at].key = parameters.action_key;
        self.establish(at, kind);
        if parameters.flags.has(MoveFlags::UNREG)
            && let Some(sender) = self.find(nexus)
        {
            self.registrations_mut().remove(sender);
        }
        self.persists = parameters.flags.has(MoveFlags::APTPL);
        self.generation = self.generation.wrapping_add(1);
        Ok(ReserveOutcome::default())
    }

    /// Checks the parameters; returns the nexus that the reservation moves to.
    fn destination(
        &self,
        sender: &ItNexus,
        ports: &[TargetPort],
        parameters: &MoveParameters,
        transport_id: &[u8],
    ) -> Result<ItNexus, Sense> {
        let wrong = |byte, bit| Err(Sense::invalid_field_in_parameter_list(byte, bit));
        if parameters.action_key == 0 {
            return wrong(8, None);
        }
        if parameters.flags.has(MoveFlags::APTPL) && !self.can_persist {
            return wrong(17, Some(0));
        }
        let mut known = ports.iter().filter(|port| port.relative_id == parameters.relative_id);
        let Some(port) = known.next() else { return wrong(18, None) };
        if parameters.transport_id_bytes as usize != transport_id.len() {
            return wrong(20, None);
        }
        let Some(initiator) = transport::decode(transport_id) else { return wrong(24, None) };
        let new = ItNexus::new(&initiator, port);
        if new == *sender { wrong(24, None) } else { Ok(new) }
    }
}
