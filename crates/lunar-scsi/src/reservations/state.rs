//! Persistent state of the reservations, which survives a loss of power: encoding and decoding.
//!
//! | bytes | what |
//! |---|---|
//! | 4 | `LNPR` |
//! | 1 | version, 1 |
//! | 1 | type of the reservation, 0: none |
//! | 4 | count of registrations, then as many of: |
//! | 8 | key |
//! | 1 | 1: holds the reservation |
//! | 6 | ISID |
//! | 2 | target portal group tag |
//! | 2 | relative target port identifier |
//! | 2 + n | initiator name, length first |
//! | 2 + n | target name, length first |
//! | 4 | CRC32C of all before |

use super::transport::NAME_BYTES_MAX;
use super::{ItNexus, REGISTRATIONS_MAX, Registration, ReservationType, Reservations};
use crate::primary::{InitiatorPort, TargetPort};
use crate::unit::StateError;
use alloc::string::String;
use alloc::sync::Arc;
use alloc::vec::Vec;
use lunar_wire::{Field, crc32c};

const MAGIC: [u8; 4] = *b"LNPR";
const VERSION: u8 = 1;

const CUT: StateError = StateError("reservations: the state is cut short");
const WRONG: StateError = StateError("reservations: the state contradicts itself");

impl Reservations {
    /// Encodes the state that must survive; empty if the last registration did not request it
    /// (APTPL). PRGENERATION starts at 0 after each power on, and RESERVE (6) ends with it.
    pub fn encode(&self) -> Vec<u8> {
        if !self.persists {
            return Vec::new();
        }
        let mut state = Vec::from(MAGIC);
        state.extend_from_slice(&[VERSION, self.kind.map_or(0, |kind| kind.0)]);
        state.extend_from_slice(&(self.registrations.len() as u32).to_be_bytes());
        for Registration { nexus, key, holds, .. } in self.registrations.iter() {
            state.extend_from_slice(&key.to_be_bytes());
            state.push(u8::from(*holds));
            state.extend_from_slice(&nexus.initiator.isid);
            state.extend_from_slice(&nexus.port.portal_group_tag.to_be_bytes());
            state.extend_from_slice(&nexus.port.relative_id.to_be_bytes());
            for name in [&nexus.initiator.name, &nexus.port.name] {
                let name = &name[..name.floor_char_boundary(NAME_BYTES_MAX)];
                state.extend_from_slice(&(name.len() as u16).to_be_bytes());
                state.extend_from_slice(name.as_bytes());
            }
        }
        let crc = crc32c(&state);
        state.extend_from_slice(&crc.to_be_bytes());
        state
    }

    /// True if [`encode`](Self::encode) returns a different state than for an earlier copy. Only
    /// commands may have made changes in between, which change no port of a registration.
    pub(super) fn differs_in_state(&self, before: &Self) -> bool {
        if !self.persists && !before.persists {
            return false;
        }
        let same_registrations = Arc::ptr_eq(&self.registrations, &before.registrations)
            || self.registrations == before.registrations;
        self.persists != before.persists || self.kind != before.kind || !same_registrations
    }

    /// Decodes the output of [`encode`](Self::encode); an empty state means no registrations.
    ///
    /// # Errors
    /// If `state` is anything else.
    pub fn decode(state: &[u8], can_persist: bool) -> Result<Self, StateError> {
        let mut reservations = Self::new(can_persist);
        if state.is_empty() {
            return Ok(reservations);
        }
        let (body, crc) = state.split_last_chunk::<4>().ok_or(CUT)?;
        if crc32c(body) != u32::from_be_bytes(*crc) {
            return Err(StateError("reservations: the checksum of the state is wrong"));
        }
        let mut rest = body;
        if take::<[u8; 4]>(&mut rest)? != MAGIC || take::<u8>(&mut rest)? != VERSION {
            return Err(StateError("reservations: state of another kind or version"));
        }
        let kind = ReservationType(take(&mut rest)?);
        reservations.kind = (kind.0 != 0).then_some(kind);
        let count = take::<u32>(&mut rest)? as usize;
        if count > REGISTRATIONS_MAX {
            return Err(WRONG);
        }
        for _ in 0..count {
            let registration = take_registration(&mut rest)?;
            if reservations.find(&registration.nexus).is_some() {
                return Err(WRONG);
            }
            reservations.insert(registration);
        }
        reservations.persists = true;
        if rest.is_empty() && reservations.is_consistent() { Ok(reservations) } else { Err(WRONG) }
    }

    /// True if the invariants of [`Reservations`] hold.
    pub(super) fn is_consistent(&self) -> bool {
        let holders = self.registrations.iter().filter(|entry| entry.holds).count();
        let held = match self.kind {
            None => holders == 0,
            Some(kind) if kind.is_all_registrants() => {
                holders == 0 && !self.registrations.is_empty()
            }
            Some(kind) => kind.name().is_some() && holders == 1,
        };
        let keys = self.registrations.iter().all(|entry| entry.key != 0);
        held && keys && (self.reserved_by.is_none() || self.registrations.is_empty())
    }
}

fn take_registration(rest: &mut &[u8]) -> Result<Registration, StateError> {
    let key = take(rest)?;
    let holds = take::<u8>(rest)?;
    let isid = take(rest)?;
    let portal_group_tag = take(rest)?;
    let relative_id = take(rest)?;
    let initiator = InitiatorPort { name: take_name(rest)?, isid };
    let port = TargetPort { name: take_name(rest)?, portal_group_tag, relative_id };
    if holds > 1 {
        return Err(WRONG);
    }
    let nexus = Arc::new(ItNexus::new(&initiator, &port).restored());
    Ok(Registration { nexus, key, holds: holds == 1, made_by: None })
}

fn take_name(rest: &mut &[u8]) -> Result<String, StateError> {
    let length = usize::from(take::<u16>(rest)?);
    let name = rest.split_off(..length).ok_or(CUT)?;
    if length > NAME_BYTES_MAX {
        return Err(WRONG);
    }
    let name = core::str::from_utf8(name).map_err(|_| WRONG)?;
    Ok(name.into())
}

fn take<F: Field>(rest: &mut &[u8]) -> Result<F, StateError> {
    rest.split_off(..F::SIZE).map(F::get).ok_or(CUT)
}
