//! PERSISTENT RESERVE IN: reports registrations and the reservation. SPC-4 §6.15.

use super::{Registration, ReservationType, Reservations, transport};
use crate::plan::Refusal;
use crate::sense::Sense;
use alloc::vec::Vec;

lunar_wire::wire_enum! {
    /// Service actions of PERSISTENT RESERVE IN. SPC-4 §6.15.1.
    pub struct InAction(u8) {
        READ_KEYS = 0, READ_RESERVATION = 1, REPORT_CAPABILITIES = 2, READ_FULL_STATUS = 3,
    }
}

lunar_wire::wire_struct! {
    /// The header of keys, reservation and full status. SPC-4 §6.15.2.
    pub struct ReportHeader [8] {
        0 => generation: u32,
        4 => additional_bytes: u32,
    }
}

lunar_wire::wire_struct! {
    /// The reservation after the header. SPC-4 §6.15.3.
    pub struct HeldReservation [16] {
        0  => key: u64,
        /// SCOPE, always 0, and TYPE.
        13 => kind: ReservationType,
    }
}

lunar_wire::wire_struct! {
    /// The capabilities. SPC-4 §6.15.4.
    pub struct Capabilities [8] {
        0 => bytes: u16,
        /// CRH, SIP_C, ATP_C, PTPL_C.
        2 => capable: u8,
        /// TMV, ALLOW COMMANDS, PTPL_A.
        3 => active: u8,
        4 => types: u16,
    }
}

lunar_wire::wire_struct! {
    /// A full status descriptor; a TransportID follows. SPC-4 §6.15.5.
    pub struct FullStatus [24] {
        0  => key: u64,
        /// ALL_TG_PT, never set here, and R_HOLDER: registrations with ALL_TG_PT are reported nexus
        /// by nexus, because one of them may hold the reservation and the others not.
        12 => flags: u8,
        13 => kind: ReservationType,
        18 => relative_id: u16,
        20 => transport_id_bytes: u32,
    }
}

/// All six types. SPC-4 §6.15.4, PERSISTENT RESERVATION TYPE MASK.
const TYPE_MASK: u16 = 0x8000 | 0x4000 | 0x2000 | 0x0800 | 0x0200 | 0x0001;
/// CRH: RESERVE and RELEASE of SPC-2 with the exceptions of SPC-4 §5.12.3.
const COMPATIBLE_HANDLING: u8 = 0x10;
/// ATP_C: ALL_TG_PT.
const ALL_TARGET_PORTS: u8 = 0x04;
/// PTPL_C in byte 2, PTPL_A in byte 3.
const PERSISTS: u8 = 0x01;
/// TMV, and ALLOW COMMANDS 011b: TEST UNIT READY is allowed through every type; MODE SENSE, REPORT
/// SUPPORTED OPERATION CODES and similar commands through write exclusive, not exclusive access.
const MASK_VALID_ALLOW_3: u8 = 0x80 | 0x30;

impl Reservations {
    /// Returns the parameter data of a service action: at least `wanted_bytes` of it, if there are
    /// as many. Lists of all initiators are long, so data that will not be sent is not built.
    ///
    /// # Errors
    /// RESERVATION CONFLICT while RESERVE (6) is in effect, for every nexus (SPC-2 §5.5.1); INVALID
    /// FIELD IN CDB for an unknown service action.
    pub fn report(&self, service_action: u8, wanted_bytes: usize) -> Result<Vec<u8>, Refusal> {
        if self.reserved_by.is_some() && InAction(service_action) <= InAction::READ_FULL_STATUS {
            return Err(Refusal::ReservationConflict);
        }
        let data = match InAction(service_action) {
            InAction::READ_KEYS => self.read_keys(wanted_bytes),
            InAction::READ_RESERVATION => self.read_reservation(),
            InAction::REPORT_CAPABILITIES => self.report_capabilities(),
            InAction::READ_FULL_STATUS => self.read_full_status(wanted_bytes),
            _ => return Err(Sense::invalid_field_in_cdb(1, Some(4)).into()),
        };
        Ok(data)
    }

    /// READ KEYS. ADDITIONAL LENGTH counts all keys, however many are returned (SPC-4 §4.2.5.6).
    fn read_keys(&self, wanted_bytes: usize) -> Vec<u8> {
        const KEY_BYTES: usize = size_of::<u64>();
        let mut data = self.header(self.registrations.len() * KEY_BYTES).encode().to_vec();
        let wanted = wanted_bytes.saturating_sub(data.len()).div_ceil(KEY_BYTES);
        let keys = self.registrations.iter().take(wanted);
        data.extend(keys.flat_map(|entry| entry.key.to_be_bytes()));
        data
    }

    /// READ RESERVATION. The key is 0 if all registrants hold the reservation.
    fn read_reservation(&self) -> Vec<u8> {
        let Some(kind) = self.kind else { return self.with_header(Vec::new()) };
        let holder = self.registrations.iter().find(|entry| entry.holds);
        let held = HeldReservation { key: holder.map_or(0, |entry| entry.key), kind };
        self.with_header(held.encode().to_vec())
    }

    fn report_capabilities(&self) -> Vec<u8> {
        let capable = if self.can_persist { PERSISTS } else { 0 };
        let active = if self.persists { PERSISTS } else { 0 };
        let capabilities = Capabilities {
            bytes: Capabilities::LEN as u16,
            capable: COMPATIBLE_HANDLING | ALL_TARGET_PORTS | capable,
            active: MASK_VALID_ALLOW_3 | active,
            types: TYPE_MASK,
        };
        capabilities.encode().to_vec()
    }

    /// READ FULL STATUS. ADDITIONAL LENGTH counts all descriptors, however many are returned
    /// (SPC-4 §4.2.5.6).
    fn read_full_status(&self, wanted_bytes: usize) -> Vec<u8> {
        let lengths = self.registrations.iter().map(|entry| {
            FullStatus::LEN + transport::encoded_bytes(&entry.nexus.initiator) //
        });
        let header = self.header(lengths.sum());
        let mut data = header.encode().to_vec();
        for entry in self.registrations.iter() {
            if data.len() >= wanted_bytes {
                break;
            }
            let holds = self.kind.filter(|_| self.is_holder(entry));
            data.extend(full_status(entry, holds));
        }
        data
    }

    /// Puts PRGENERATION and ADDITIONAL LENGTH before `body`.
    fn with_header(&self, body: Vec<u8>) -> Vec<u8> {
        let mut data = self.header(body.len()).encode().to_vec();
        data.extend(body);
        data
    }

    fn header(&self, additional_bytes: usize) -> ReportHeader {
        // At most `REGISTRATIONS_MAX` descriptors of a few hundred bytes.
        ReportHeader { generation: self.generation, additional_bytes: additional_bytes as u32 }
    }
}

/// Builds one full status descriptor; `holds` is the reservation's type if this nexus holds it.
fn full_status(entry: &Registration, holds: Option<ReservationType>) -> Vec<u8> {
    let transport_id = transport::encode(&entry.nexus.initiator);
    let status = FullStatus {
        key: entry.key,
        flags: u8::from(holds.is_some()),
        kind: holds.unwrap_or(ReservationType(0)),
        relative_id: entry.nexus.port.relative_id,
        transport_id_bytes: transport_id.len() as u32,
    };
    let mut data = status.encode().to_vec();
    data.extend(transport_id);
    data
}
