//! READ BUFFER and WRITE BUFFER: an initiator writes data to a buffer of the unit and reads it
//! back, to test its path to the unit. Firmware cannot be loaded.
//!
//! Each nexus has its own two buffers. Data of other nexuses, or other contents of memory, are
//! never visible through them.

use super::inform::truncated;
use super::{NexusId, PrimaryPlan, Refusal};
use crate::cdb::first;
use crate::cdb::spc::{ReadBuffer, WriteBuffer};
use crate::commands::Request;
use crate::primary::{DeviceServer, PrimaryUnit};
use crate::sense::Sense;
use crate::share::Shares;
use alloc::vec::Vec;

/// Length of the data buffer and of the echo buffer of a nexus. The echo buffer's capacity has 13
/// bits.
pub const BUFFER_BYTES_MAX: usize = 4096;
/// Maximum total length of the buffers of a nexus.
pub const NEXUS_BUFFER_BYTES_MAX: usize = 2 * BUFFER_BYTES_MAX;
const _: () = assert!(BUFFER_BYTES_MAX < 1 << 13);

/// Maximum numbers of nexuses of one unit whose buffers hold data. When a further nexus writes, the
/// nexus that logged in first loses its data, as with a reset of the unit.
const SHARES: Shares = Shares { of_all: 16, of_initiator: 4, of_origin: 8 };

lunar_wire::wire_enum! {
    /// MODE. SPC-4 §6.18, §6.49.
    pub struct BufferMode(u8) {
        DATA = 0x02, DESCRIPTOR = 0x03, ECHO = 0x0a, ECHO_DESCRIPTOR = 0x0b
    }
}

const MODE: u8 = 0x1f;
const MODE_SPECIFIC: u8 = 0xe0;
/// ID of the only data buffer.
const DATA_BUFFER_ID: u8 = 0;

/// The data written by one nexus; allocated with the first write.
#[derive(Debug, Default)]
pub(crate) struct NexusBuffers {
    /// Written data; zeroes follow up to the capacity.
    data: Vec<u8>,
    /// Data of the last write; `None` before the first one.
    echo: Option<Vec<u8>>,
}

impl PrimaryUnit {
    /// Returns the buffers of a nexus for writing. If the nexus has none yet and the limit is
    /// reached, removes the buffers of another nexus.
    ///
    /// # Errors
    /// Internal error: the nexus was never attached.
    fn buffers_to_write(&mut self, nexus: NexusId) -> Result<&mut NexusBuffers, Sense> {
        let writer = self.nexuses.get(nexus).ok_or(Sense::INTERNAL_TARGET_FAILURE)?;
        if self.nexuses.buffers_of(nexus).is_none() {
            let full = || self.nexuses.buffers().filter_map(|(id, _)| self.nexuses.get(id));
            let displaced =
                SHARES.displaced(full().map(|other| other.ports.owner()), writer.ports.owner());
            let displaced = displaced.and_then(|index| self.nexuses.buffers().nth(index));
            if let Some((displaced, _)) = displaced {
                self.nexuses.forget_buffers(displaced);
            }
        }
        Ok(self.nexuses.buffers_mut(nexus))
    }
}

/// READ BUFFER. SPC-4 §6.18.
pub(crate) fn read<U: DeviceServer>(
    unit: &mut U,
    request: &Request<'_>,
) -> Result<U::Plan, Refusal> {
    let raw = ReadBuffer::decode(&first(request.cdb));
    check_mode_specific(raw.mode)?;
    let written = unit.primary().nexuses.buffers_of(request.nexus);
    let reply = match BufferMode(raw.mode & MODE) {
        BufferMode::DATA => {
            let from = data_offset(raw.buffer_id, raw.offset, 0)?;
            let mut data = written.map(|buffers| buffers.data.clone()).unwrap_or_default();
            data.resize(BUFFER_BYTES_MAX, 0);
            data.split_off(from)
        }
        // A missing buffer has a descriptor of zeroes. OFFSET BOUNDARY 0: any byte.
        BufferMode::DESCRIPTOR => {
            let exists = raw.buffer_id == DATA_BUFFER_ID;
            let [.., high, low] = (if exists { BUFFER_BYTES_MAX } else { 0 }).to_be_bytes();
            alloc::vec![0, 0, high, low]
        }
        // BUFFER ID and BUFFER OFFSET are ignored in both echo modes.
        BufferMode::ECHO => {
            let echo = written.and_then(|buffers| buffers.echo.clone());
            echo.ok_or(Sense::COMMAND_SEQUENCE_ERROR)?
        }
        BufferMode::ECHO_DESCRIPTOR => {
            // EBOS, "the device server maintains a separate echo buffer" for each nexus.
            const EBOS: u8 = 0x01;
            let [.., high, low] = BUFFER_BYTES_MAX.to_be_bytes();
            alloc::vec![EBOS, 0, high, low]
        }
        _ => return Err(Sense::invalid_field_in_cdb(1, Some(4)).into()),
    };
    Ok(PrimaryPlan::Reply(truncated(reply, raw.allocation_bytes.value())).into())
}

/// WRITE BUFFER. SPC-4 §6.49. A length of 0 changes nothing.
pub(crate) fn write<U: DeviceServer>(_: &mut U, request: &Request<'_>) -> Result<U::Plan, Refusal> {
    let raw = WriteBuffer::decode(&first(request.cdb));
    check_mode_specific(raw.mode)?;
    let bytes = raw.parameter_bytes.value();
    match BufferMode(raw.mode & MODE) {
        BufferMode::DATA => {
            data_offset(raw.buffer_id, raw.offset, bytes)?;
        }
        BufferMode::ECHO => check_end(0, bytes)?,
        _ => return Err(Sense::invalid_field_in_cdb(1, Some(4)).into()),
    }
    if bytes == 0 {
        return Ok(PrimaryPlan::Reply(Vec::new()).into());
    }
    Ok(PrimaryPlan::Parameters { bytes, awaiting: request.awaiting() }.into())
}

/// WRITE BUFFER with its data.
pub(crate) fn write_list<U: DeviceServer>(
    unit: &mut U,
    request: &Request<'_>,
    list: &[u8],
) -> Result<U::Plan, Refusal> {
    let raw = WriteBuffer::decode(&first(request.cdb));
    let buffers = unit.primary_mut().buffers_to_write(request.nexus)?;
    if BufferMode(raw.mode & MODE) == BufferMode::ECHO {
        check_end(0, raw.parameter_bytes.value())?;
        let bytes = list.len().min(BUFFER_BYTES_MAX);
        buffers.echo = Some(list[..bytes].to_vec());
    } else {
        let from = data_offset(raw.buffer_id, raw.offset, raw.parameter_bytes.value())?;
        let bytes = list.len().min(BUFFER_BYTES_MAX - from);
        let end = from + bytes;
        if buffers.data.len() < end {
            buffers.data.resize(end, 0);
        }
        buffers.data[from..end].copy_from_slice(&list[..bytes]);
    }
    Ok(PrimaryPlan::Reply(Vec::new()).into())
}

/// Checks that the mode-specific bits are 0: none of the supported modes uses them.
fn check_mode_specific(mode: u8) -> Result<(), Sense> {
    if mode & MODE_SPECIFIC != 0 {
        return Err(Sense::invalid_field_in_cdb(1, Some(7)));
    }
    Ok(())
}

/// Checks buffer ID, offset and length; returns the offset in the data buffer.
fn data_offset(buffer_id: u8, offset: lunar_wire::U24, bytes: u32) -> Result<usize, Sense> {
    if buffer_id != DATA_BUFFER_ID {
        return Err(Sense::invalid_field_in_cdb(2, None));
    }
    if offset.value() as usize > BUFFER_BYTES_MAX {
        return Err(Sense::invalid_field_in_cdb(3, None));
    }
    check_end(offset.value(), bytes)?;
    Ok(offset.value() as usize)
}

/// Checks that a range ends inside the buffer; both values have 24 bits.
fn check_end(offset: u32, bytes: u32) -> Result<(), Sense> {
    if (offset + bytes) as usize > BUFFER_BYTES_MAX {
        return Err(Sense::invalid_field_in_cdb(6, None));
    }
    Ok(())
}
