//! Operation codes without a constant in `lunar_scsi`.

pub(crate) const INQUIRY: u8 = 0x12;
pub(crate) const MODE_SENSE_6: u8 = 0x1a;
pub(crate) const READ_CAPACITY_10: u8 = 0x25;
pub(crate) const SERVICE_ACTION_IN_16: u8 = 0x9e;
pub(crate) const REPORT_LUNS: u8 = 0xa0;
pub(crate) const SYNCHRONIZE_CACHE_10: u8 = 0x35;
pub(crate) const SYNCHRONIZE_CACHE_16: u8 = 0x91;
