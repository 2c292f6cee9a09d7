//! Persistent reservations of a unit: PERSISTENT RESERVE IN and OUT, and the parsing of their
//! data. SPC-4 §6.15 and §6.16.

use crate::commands::{Unit, is_illegal};
use crate::{Error, ErrorKind, Reservation};
use bytes::Bytes;
use lunar_scsi::cdb::spc::{PersistentReserveIn, PersistentReserveOut};
use lunar_scsi::commands::opcode;
use lunar_scsi::reservations::{
    Capabilities, FullStatus, HeldReservation, InAction, OutAction, OutFlags, OutParameters,
    ReportHeader, ReservationType,
};
use lunar_scsi::sense::Status;

const PERSISTENT_RESERVE_IN: u8 = opcode("PERSISTENT RESERVE IN: READ RESERVATION");
const PERSISTENT_RESERVE_OUT: u8 = opcode("PERSISTENT RESERVE OUT: RESERVE");
/// Maximum number of keys that are read. Lunar's target has at most as many registrations.
const KEYS_MAX: usize = 1024;
const KEY_BYTES: usize = size_of::<u64>();
const KEYS_BYTES_MAX: u16 = (ReportHeader::LEN + KEYS_MAX * KEY_BYTES) as u16;
const RESERVATION_BYTES: u16 = (ReportHeader::LEN + HeldReservation::LEN) as u16;
/// Allocation length of READ FULL STATUS: the maximum of the field of the CDB.
const FULL_STATUS_BYTES_MAX: u16 = u16::MAX;
/// R_HOLDER in a full status descriptor. SPC-4 §6.15.5.
const HOLDER: u8 = 0x01;
/// PTPL_C in the capabilities. SPC-4 §6.15.4.
const PERSISTS: u8 = 0x01;
/// Protocol identifier of iSCSI in a TransportID. SPC-4 §7.6.1.
const ISCSI: u8 = 0x05;
/// Maximum length of an iSCSI name, RFC 7143 §4.2.7.1.
const NAME_BYTES_MAX: usize = 223;

/// The type of reservation with which a disk is owned.
pub(crate) const OWNER_TYPE: ReservationType = ReservationType::WRITE_EXCLUSIVE_REGISTRANTS_ONLY;

/// The registrations of a unit.
#[derive(Clone, Debug, Eq, PartialEq)]
pub(crate) struct Registrations {
    /// PRGENERATION: counts the changes of registrations since the unit was switched on.
    pub(crate) generation: u32,
    /// The registered keys; a key may occur several times.
    pub(crate) keys: Vec<u64>,
}

impl Unit {
    /// Reads the registrations.
    ///
    /// # Errors
    /// `Protocol` for malformed data, and for more keys than are read · as
    /// [`command`](Self::command).
    pub(crate) async fn registrations(&self) -> Result<Registrations, Error> {
        parse_keys(&self.reserve_in(InAction::READ_KEYS, KEYS_BYTES_MAX).await?)
    }

    /// Reads the reservation in force. Unlike [`reservation`](Self::reservation), this reports
    /// malformed data and missing support.
    ///
    /// # Errors
    /// `Protocol` for malformed data · as [`command`](Self::command).
    pub(crate) async fn held_reservation(&self) -> Result<Option<Reservation>, Error> {
        parse_reservation(&self.reserve_in(InAction::READ_RESERVATION, RESERVATION_BYTES).await?)
    }

    /// Reads the name of the initiator that holds the reservation. If the unit does not report it,
    /// the text names the key.
    pub(crate) async fn holder_name(&self, held: Reservation) -> String {
        let data = self.reserve_in(InAction::READ_FULL_STATUS, FULL_STATUS_BYTES_MAX).await;
        let name = data.ok().and_then(|data| parse_holder(&data, held.key));
        name.unwrap_or_else(|| format!("the holder of reservation key {:#x}", held.key))
    }

    /// Reads the name of an initiator that is registered with `key`. If the unit does not report
    /// it, the text names the key.
    pub(crate) async fn registrant_name(&self, key: u64) -> String {
        let data = self.reserve_in(InAction::READ_FULL_STATUS, FULL_STATUS_BYTES_MAX).await;
        let name = data.ok().and_then(|data| {
            let mut all = parse_registrants(&data)?.into_iter();
            all.find(|one| one.key == key)?.name
        });
        name.unwrap_or_else(|| format!("the registrant with key {key:#x}"))
    }

    /// True if the unit can keep reservations while it is switched off.
    ///
    /// # Errors
    /// The errors of [`command`](Self::command).
    pub(crate) async fn keeps_reservations(&self) -> Result<bool, Error> {
        const BYTES: u16 = Capabilities::LEN as u16;
        match self.reserve_in(InAction::REPORT_CAPABILITIES, BYTES).await {
            Ok(data) => {
                let raw = data.first_chunk().map(Capabilities::decode);
                Ok(raw.is_some_and(|raw| raw.bytes >= BYTES && raw.capable & PERSISTS != 0))
            }
            Err(error) if is_illegal(&error) => Ok(false),
            Err(error) => Err(error),
        }
    }

    /// Registers this path with `key`, whatever its key was. With `persists`, the registrations
    /// survive a restart of the target, unless the unit refuses this. Returns true if they do.
    ///
    /// # Errors
    /// The errors of [`command`](Self::command).
    pub(crate) async fn register_key(&self, key: u64, persists: bool) -> Result<bool, Error> {
        let action = OutAction::REGISTER_AND_IGNORE_EXISTING_KEY;
        let flags = OutFlags::NONE.with_if(persists, OutFlags::APTPL);
        let list = OutParameters { key: 0, action_key: key, flags };
        match self.reserve_out(action, list).await {
            Err(error) if persists && is_illegal(&error) => {
                let list = OutParameters { flags: OutFlags::NONE, ..list };
                self.reserve_out(action, list).await.map(|()| false)
            }
            registered => registered.map(|()| persists),
        }
    }

    /// Removes the registration of this path.
    ///
    /// # Errors
    /// The errors of [`command`](Self::command).
    pub(crate) async fn unregister(&self) -> Result<(), Error> {
        self.register_key(0, false).await.map(drop)
    }

    /// Reserves the unit for the registrants; this path is registered with `key`.
    ///
    /// # Errors
    /// RESERVATION CONFLICT if another initiator has reserved the unit · as
    /// [`command`](Self::command).
    pub(crate) async fn reserve(&self, key: u64) -> Result<(), Error> {
        self.reserve_out(OutAction::RESERVE, parameters(key, 0)).await
    }

    /// Removes all registrations with the key `victim` and aborts the commands of these initiators.
    /// If one of them holds the reservation, this path holds it from then on.
    ///
    /// # Errors
    /// RESERVATION CONFLICT if this path is not registered with `key`, or no other path with
    /// `victim` · as [`command`](Self::command).
    pub(crate) async fn preempt(&self, key: u64, victim: u64) -> Result<(), Error> {
        self.reserve_out(OutAction::PREEMPT_AND_ABORT, parameters(key, victim)).await
    }

    /// Removes all registrations and the reservation; this path is registered with `key`.
    ///
    /// # Errors
    /// RESERVATION CONFLICT if this path is not registered · as [`command`](Self::command).
    pub(crate) async fn clear_registrations(&self, key: u64) -> Result<(), Error> {
        self.reserve_out(OutAction::CLEAR, parameters(key, 0)).await
    }

    async fn reserve_in(&self, action: InAction, allocation_bytes: u16) -> Result<Bytes, Error> {
        let cdb = PersistentReserveIn {
            opcode: PERSISTENT_RESERVE_IN,
            service_action: action.0,
            allocation_bytes,
            control: 0,
        };
        let cdb = cdb.encode().to_vec();
        Ok(self.command(cdb, Bytes::new(), allocation_bytes.into()).await?.data_in)
    }

    async fn reserve_out(&self, action: OutAction, list: OutParameters) -> Result<(), Error> {
        let cdb = PersistentReserveOut {
            opcode: PERSISTENT_RESERVE_OUT,
            service_action: action.0,
            scope_and_type: OWNER_TYPE.0,
            parameter_bytes: OutParameters::LEN as u32,
            control: 0,
        };
        let list = Bytes::copy_from_slice(&list.encode());
        self.command(cdb.encode().to_vec(), list, 0).await.map(drop)
    }
}

fn parameters(key: u64, action_key: u64) -> OutParameters {
    OutParameters { key, action_key, flags: OutFlags::NONE }
}

/// True if a command ended with RESERVATION CONFLICT.
pub(crate) fn is_conflict(error: &Error) -> bool {
    error.kind == ErrorKind::Status(Status::RESERVATION_CONFLICT.0)
}

/// Splits data into its header and the body that the header names.
fn parse_report<'a>(data: &'a [u8], command: &str) -> Result<(ReportHeader, &'a [u8]), Error> {
    let invalid = || {
        let what = format!("the response to PERSISTENT RESERVE IN ({command}) is invalid");
        Error::new(ErrorKind::Protocol, what)
    };
    let (header, body) = data.split_first_chunk().ok_or_else(invalid)?;
    let header = ReportHeader::decode(header);
    let body = body.get(..header.additional_bytes as usize).ok_or_else(invalid)?;
    Ok((header, body))
}

fn parse_keys(data: &[u8]) -> Result<Registrations, Error> {
    let (header, body) = parse_report(data, "READ KEYS")?;
    let (keys, rest) = body.as_chunks::<KEY_BYTES>();
    if !rest.is_empty() {
        let what = "the response to PERSISTENT RESERVE IN (READ KEYS) ends within a key";
        return Err(Error::new(ErrorKind::Protocol, what));
    }
    let keys = keys.iter().map(|key| u64::from_be_bytes(*key)).collect();
    Ok(Registrations { generation: header.generation, keys })
}

fn parse_reservation(data: &[u8]) -> Result<Option<Reservation>, Error> {
    let (_, body) = parse_report(data, "READ RESERVATION")?;
    if body.is_empty() {
        return Ok(None);
    }
    let Some(held) = body.first_chunk().map(HeldReservation::decode) else {
        let what = "the response to PERSISTENT RESERVE IN (READ RESERVATION) is too short";
        return Err(Error::new(ErrorKind::Protocol, what));
    };
    Ok(Some(Reservation { key: held.key, kind: held.kind.0 & 0x0f }))
}

/// A registration as READ FULL STATUS reports it.
struct Registrant {
    key: u64,
    is_holder: bool,
    name: Option<String>,
}

/// Returns the name of the initiator that holds the reservation; of all registrants that hold it,
/// the first.
fn parse_holder(data: &[u8], key: u64) -> Option<String> {
    let mut registrants = parse_registrants(data)?;
    if let Some(at) = registrants.iter().position(|one| one.is_holder) {
        return registrants.swap_remove(at).name;
    }
    registrants.into_iter().filter(|one| one.key == key).find_map(|one| one.name)
}

/// Returns the registrations. Descriptors are read up to the first incomplete one.
fn parse_registrants(data: &[u8]) -> Option<Vec<Registrant>> {
    let mut rest = data.get(ReportHeader::LEN..)?;
    let additional = ReportHeader::decode(data.first_chunk()?).additional_bytes as usize;
    rest = rest.get(..additional).unwrap_or(rest);
    let mut registrants = Vec::new();
    while let Some((raw, tail)) = rest.split_first_chunk() {
        let status = FullStatus::decode(raw);
        let Some((transport_id, tail)) = tail.split_at_checked(status.transport_id_bytes as usize)
        else {
            break;
        };
        registrants.push(Registrant {
            key: status.key,
            is_holder: status.flags & HOLDER != 0,
            name: initiator_name(transport_id),
        });
        rest = tail;
    }
    Some(registrants)
}

/// Returns the iSCSI name in a TransportID, in a form that can be shown. SPC-4 §7.6.4.6.
fn initiator_name(transport_id: &[u8]) -> Option<String> {
    let [protocol, _, _, _, text @ ..] = transport_id else { return None };
    if protocol & 0x0f != ISCSI {
        return None;
    }
    let end = text.iter().position(|byte| *byte == 0).unwrap_or(text.len());
    let text = String::from_utf8_lossy(&text[..end]);
    let name = text.split_once(",i,").map_or(&*text, |(name, _)| name);
    let is_shown = |c: &char| !c.is_control() && !c.is_whitespace();
    let name: String = name.chars().filter(is_shown).take(NAME_BYTES_MAX).collect();
    Some(name).filter(|name| !name.is_empty())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn report(generation: u32, additional_bytes: u32, body: &[u8]) -> Vec<u8> {
        let header = ReportHeader { generation, additional_bytes };
        [&header.encode()[..], body].concat()
    }

    fn held() -> [u8; HeldReservation::LEN] {
        HeldReservation { key: 7, kind: OWNER_TYPE }.encode()
    }

    /// Goal: short data and wrong lengths are errors, not "no reservation" and not "no keys".
    #[test]
    fn short_data_is_refused() {
        let good = report(3, 16, &held());
        let reservation = Reservation { key: 7, kind: 5 };
        assert_eq!(parse_reservation(&good).unwrap(), Some(reservation));
        assert_eq!(parse_reservation(&report(3, 0, &[])).unwrap(), None);
        let keys = report(9, 16, &[0, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0, 2]);
        assert_eq!(parse_keys(&keys).unwrap(), Registrations { generation: 9, keys: vec![1, 2] });
        for end in 0..good.len() {
            assert!(parse_reservation(&good[..end]).is_err(), "{end} bytes");
            assert!(parse_keys(&keys[..end]).is_err(), "{end} bytes");
        }
        assert!(parse_reservation(&report(3, 8, &held())).is_err());
        assert!(parse_reservation(&report(3, u32::MAX, &held())).is_err());
        assert!(parse_keys(&report(3, 12, &held())).is_err());
    }

    fn descriptor(key: u64, flags: u8, id: &[u8], id_bytes: u32) -> Vec<u8> {
        let kind = ReservationType(0);
        let status = FullStatus { key, flags, kind, relative_id: 1, transport_id_bytes: id_bytes };
        [&status.encode()[..], id].concat()
    }

    /// Goal: the holder is named, whatever the order of the descriptors; malformed data names
    /// nobody, and a name has nothing that changes a terminal.
    #[test]
    fn the_holder_is_named() {
        let id = |name: &[u8]| [&b"\x45\0\0\x18"[..], name, b",i,0x00023dabcdef\0\0"].concat();
        let (one, two) = (id(b"iqn.one"), id(b"iqn.two"));
        let length = one.len() as u32;
        let both = [descriptor(1, 0, &one, length), descriptor(2, HOLDER, &two, length)].concat();
        let data = report(1, both.len() as u32, &both);
        assert_eq!(parse_holder(&data, 2).as_deref(), Some("iqn.two"));
        for end in 0..data.len() {
            assert_ne!(parse_holder(&data[..end], 9).as_deref(), Some("iqn.one"), "{end} bytes");
        }
        let by_key = descriptor(1, 0, &one, length);
        assert_eq!(parse_holder(&report(1, length + 24, &by_key), 1).as_deref(), Some("iqn.one"));
        for (id, id_bytes) in [
            (&one[..], u32::MAX),
            (&one[..], 0),
            (&b"\x46\0\0\0iqn.x\0\0\0"[..], 12),
            (&b"\x45\0\0\0\x1b\n\0\0"[..], 8),
        ] {
            let malformed = descriptor(1, HOLDER, id, id_bytes);
            assert_eq!(parse_holder(&report(1, 99, &malformed), 1), None, "{id:?}");
        }
        let strange = initiator_name(b"\x05\0\0\0iqn.\x1b[31m\xff").unwrap();
        assert!(!strange.contains('\x1b') && strange.starts_with("iqn."));
    }
}
