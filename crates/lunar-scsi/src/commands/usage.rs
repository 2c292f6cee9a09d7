//! CDB usage data by layout. The operation code and the service action are 0 here, the table adds
//! them. In CONTROL, NACA is evaluated (it must be 0); GROUP NUMBER is not. SPC-4 §6.35.3.

use crate::cdb::variable::{ADDITIONAL_BYTES_AT, CONTROL_AT, SERVICE_ACTION_AT};

/// Bits of CONTROL that are evaluated: NACA.
pub const CONTROL: u8 = 0x04;

/// Returns the usage data of a variable-length CDB of `N` bytes, all of whose bytes after the
/// service action are evaluated. A unit clears the bytes that its command ignores.
pub const fn variable_length<const N: usize>() -> [u8; N] {
    let mut usage = [0; N];
    usage[CONTROL_AT] = CONTROL;
    usage[ADDITIONAL_BYTES_AT] = 0xff;
    let mut at = SERVICE_ACTION_AT + 2;
    while at < N {
        usage[at] = 0xff;
        at += 1;
    }
    usage
}

pub(crate) const NO_FIELDS_6: &[u8] = &[0, 0, 0, 0, 0, 4];
pub(crate) const DESC_6: &[u8] = &[0, 0x01, 0, 0, 0xff, 4];
pub(crate) const PAGE_6: &[u8] = &[0, 0x01, 0xff, 0xff, 0xff, 4];
pub(crate) const BLOCKS_6: &[u8] = &[0, 0x1f, 0xff, 0xff, 0xff, 4];
pub(crate) const START_6: &[u8] = &[0, 0x01, 0, 0, 0xf7, 4];
pub(crate) const PREVENT_6: &[u8] = &[0, 0, 0, 0, 0x03, 4];
pub(crate) const SELECT_6: &[u8] = &[0, 0x11, 0, 0, 0xff, 4];
pub(crate) const MODES_6: &[u8] = &[0, 0x08, 0xff, 0xff, 0xff, 4];
pub(crate) const SELECT_10: &[u8] = &[0, 0x11, 0, 0, 0, 0, 0, 0xff, 0xff, 4];
pub(crate) const MODES_10: &[u8] = &[0, 0x18, 0xff, 0xff, 0, 0, 0, 0xff, 0xff, 4];
pub(crate) const CAPACITY_10: &[u8] = &[0, 0, 0xff, 0xff, 0xff, 0xff, 0, 0, 0x01, 4];
pub(crate) const UNMAP_10: &[u8] = &[0, 0x01, 0, 0, 0, 0, 0, 0xff, 0xff, 4];
pub(crate) const PERSISTENT_IN_10: &[u8] = &[0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 4];
pub(crate) const PERSISTENT_OUT_10: &[u8] = &[0, 0, 0xff, 0, 0, 0xff, 0xff, 0xff, 0xff, 4];
pub(crate) const BUFFER_10: &[u8] = &[0, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 4];
pub(crate) const DEFECTS_10: &[u8] = &[0, 0, 0x1f, 0, 0, 0, 0, 0xff, 0xff, 4];
pub(crate) const DEFECTS_12: &[u8] = &[0, 0x1f, 0, 0, 0, 0, 0xff, 0xff, 0xff, 0xff, 0, 4];
pub(crate) const DIAGNOSTIC_6: &[u8] = &[0, 0xe4, 0, 0xff, 0xff, 4];
pub(crate) const LOGS_10: &[u8] = &[0, 0x03, 0xff, 0xff, 0, 0xff, 0xff, 0xff, 0xff, 4];
pub(crate) const FORMAT_6: &[u8] = &[0, 0xff, 0, 0, 0, 4];
pub(crate) const SANITIZE_10: &[u8] = &[0, 0xa0, 0, 0, 0, 0, 0, 0xff, 0xff, 4];
pub(crate) const TIMESTAMP_12: &[u8] = &[0, 0, 0, 0, 0, 0, 0xff, 0xff, 0xff, 0xff, 0, 4];
pub(crate) const LUNS_12: &[u8] = &[0, 0, 0xff, 0, 0, 0, 0xff, 0xff, 0xff, 0xff, 0, 4];
pub(crate) const CODES_12: &[u8] = &[0, 0, 0x87, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0, 4];
pub(crate) const FUNCTIONS_12: &[u8] = &[0, 0, 0x80, 0, 0, 0, 0xff, 0xff, 0xff, 0xff, 0, 4];
pub(crate) const GROUPS_IN_12: &[u8] = &[0, 0xe0, 0, 0, 0, 0, 0xff, 0xff, 0xff, 0xff, 0, 4];
pub(crate) const GROUPS_OUT_12: &[u8] = &[0, 0, 0, 0, 0, 0, 0xff, 0xff, 0xff, 0xff, 0, 4];
pub(crate) const CAPACITY_16: &[u8] =
    &[0, 0, 255, 255, 255, 255, 255, 255, 255, 255, 255, 255, 255, 255, 0x01, 4];
pub(crate) const COPY_16: &[u8] = &[0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 255, 255, 255, 255, 0, 4];
pub(crate) const RESULTS_16: &[u8] = &[0, 0, 255, 0, 0, 0, 0, 0, 0, 0, 255, 255, 255, 255, 0, 4];
pub(crate) const STATUS_16: &[u8] =
    &[0, 0, 255, 255, 255, 255, 255, 255, 255, 255, 255, 255, 255, 255, 0, 4];
pub(crate) const COMPARE_16: &[u8] =
    &[0, 0x18, 255, 255, 255, 255, 255, 255, 255, 255, 0, 0, 0, 255, 0, 4];
pub(crate) const ATOMIC_16: &[u8] =
    &[0, 0x18, 255, 255, 255, 255, 255, 255, 255, 255, 0, 0, 255, 255, 0, 4];

/// The layouts of 10, 12 and 16 bytes that most block commands share, with `flags` as byte 1.
pub(crate) const fn blocks_10(flags: u8) -> [u8; 10] {
    [0, flags, 255, 255, 255, 255, 0, 255, 255, 4]
}
pub(crate) const fn blocks_12(flags: u8) -> [u8; 12] {
    [0, flags, 255, 255, 255, 255, 255, 255, 255, 255, 0, 4]
}
pub(crate) const fn blocks_16(flags: u8) -> [u8; 16] {
    [0, flags, 255, 255, 255, 255, 255, 255, 255, 255, 255, 255, 255, 255, 0, 4]
}
pub(crate) const DPO_FUA: u8 = 0x18;
pub(crate) const DPO_BYTCHK: u8 = 0x16;
pub(crate) const IMMED: u8 = 0x02;
pub(crate) const UNMAP: u8 = 0x18;
pub(crate) const UNMAP_NDOB: u8 = 0x19;
