//! The mode parameters of block units. SBC-3 §6.4.
//!
//! Besides those of the control page, an initiator may set, with a threshold of free space, LBPERE
//! and the threshold itself. WCE is not changeable: the operator, not an initiator, decides whether
//! writes are durable.

use super::pages::{self, nothing};
use super::{ControlParameters, ModePage, ModeParameters};
use crate::commands::Features;
use crate::commands::Offered::{Always, Threshold};
use crate::sense::Sense;
use crate::unit::UnitOptions;
use alloc::string::String;
use alloc::vec;
use alloc::vec::Vec;

/// The changeable mode parameters of a block unit.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct BlockModes {
    control: ControlParameters,
    /// True if LBPERE was set to 0.
    provisioning_silent: bool,
    /// True if ENABLED of the threshold was set to 0.
    threshold_disabled: bool,
    /// THRESHOLD COUNT, if it is not the default.
    threshold_count: Option<u32>,
}

/// Device-specific parameter. SBC-3 §6.4.1.
const WP: u8 = 0x80;
const DPOFUA: u8 = 0x10;

/// Byte 2 of the caching page.
const WCE: u8 = 0x04;
/// Byte 7 of the error recovery page: crossing the threshold is reported by a unit attention.
const LBPERE: u8 = 0x80;
/// Byte 0 of a threshold descriptor. THRESHOLD TYPE and ARMING stay 0: a count of threshold sets,
/// armed decreasing.
const ENABLED: u8 = 0x80;
/// Byte 1: the threshold is compared with the parameter of this code in log page 0Ch, available
/// resources.
const AVAILABLE_RESOURCES: u8 = 0x01;
/// Offset of the only threshold descriptor in the page.
pub(crate) const THRESHOLD_DESCRIPTOR_AT: u8 = 16;

impl ModeParameters for BlockModes {
    type Options = UnitOptions;

    const PAGES: &'static [ModePage<Self>] = &[
        ModePage {
            code: 0x01,
            subpage: 0,
            name: "Read-Write Error Recovery",
            standard: "SBC-3 §6.4.7",
            offered: Always,
            changeable: &[0, 0, 0, 0, 0, LBPERE],
            changes: Threshold,
            current: error_recovery,
            apply: apply_error_recovery,
        },
        ModePage {
            code: 0x08,
            subpage: 0,
            name: "Caching",
            standard: "SBC-3 §6.4.5",
            offered: Always,
            changeable: &[],
            changes: Always,
            current: caching,
            apply: nothing,
        },
        ModePage::CONTROL,
        ModePage::INFORMATIONAL_EXCEPTIONS,
        ModePage {
            code: 0x1c,
            subpage: 0x02,
            name: "Logical Block Provisioning",
            standard: "SBC-3 §6.4.6",
            offered: Threshold,
            changeable: &[0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, ENABLED, 0, 0, 0, 255, 255, 255, 255],
            changes: Threshold,
            current: provisioning,
            apply: apply_provisioning,
        },
    ];

    fn features(options: &UnitOptions) -> Features {
        options.features()
    }

    fn control(&self) -> &ControlParameters {
        &self.control
    }

    fn control_mut(&mut self) -> &mut ControlParameters {
        &mut self.control
    }

    /// WP, and DPOFUA: FUA is supported. SBC-3 §6.4.1.
    fn device_specific(&self, options: &UnitOptions) -> u8 {
        DPOFUA | if self.write_protection(options).is_some() { WP } else { 0 }
    }

    /// SBC-3 §6.4.2. A count that does not fit is all ones.
    fn block_descriptor(options: &UnitOptions, long: bool) -> Vec<u8> {
        let mut descriptor = Vec::new();
        if long {
            descriptor.extend_from_slice(&options.block_count.to_be_bytes());
            descriptor.extend_from_slice(&[0; 4]);
        } else {
            let count = u32::try_from(options.block_count).unwrap_or(u32::MAX);
            descriptor.extend_from_slice(&count.to_be_bytes());
        }
        // The short form has 24 bits for the length, its first byte is reserved.
        descriptor.extend_from_slice(&options.block_bytes.to_be_bytes());
        descriptor
    }
}

impl BlockModes {
    /// The reason why the medium is write protected, if it is: configuration, or SWP.
    pub fn write_protection(&self, options: &UnitOptions) -> Option<Sense> {
        if options.read_only {
            Some(Sense::WRITE_PROTECTED)
        } else if self.control.software_write_protect {
            Some(Sense::LOGICAL_UNIT_SOFTWARE_WRITE_PROTECTED)
        } else {
            None
        }
    }

    /// True if crossing the threshold is reported.
    pub(crate) fn reports_provisioning(&self) -> bool {
        !self.provisioning_silent
    }

    /// THRESHOLD COUNT, if there is a threshold and it is enabled.
    pub(crate) fn threshold_count(&self, options: &UnitOptions) -> Option<u32> {
        let threshold = options.threshold.filter(|_| !self.threshold_disabled)?;
        Some(self.threshold_count.unwrap_or(threshold.available_sets))
    }
}

/// Formats the pages as Markdown for CONFORMANCE.md, with one row per page and the bits that MODE
/// SELECT changes.
pub fn markdown() -> String {
    pages::markdown::<BlockModes>()
}

/// 01h, read-write error recovery: the initiator can only change whether the threshold of free
/// space is reported. SBC-3 §6.4.7.
fn error_recovery(modes: &BlockModes, options: &UnitOptions) -> Vec<u8> {
    let mut body = vec![0; 10];
    let reports = options.threshold.is_some() && modes.reports_provisioning();
    body[5] = if reports { LBPERE } else { 0 };
    body
}

fn apply_error_recovery(modes: &mut BlockModes, options: &UnitOptions, body: &[u8]) {
    modes.provisioning_silent = options.threshold.is_some() && body[5] & LBPERE == 0;
}

/// 08h, caching. SBC-3 §6.4.5.
fn caching(_: &BlockModes, options: &UnitOptions) -> Vec<u8> {
    let mut body = vec![0; 18];
    body[0] = if options.write_back { WCE } else { 0 };
    body
}

/// 1Ch/02h, logical block provisioning: one threshold, reported on every nexus (SITUA is 0).
/// SBC-3 §6.4.6.
fn provisioning(modes: &BlockModes, options: &UnitOptions) -> Vec<u8> {
    let mut body = vec![0; 12];
    let enabled = modes.threshold_count(options).is_some();
    body.extend_from_slice(&[if enabled { ENABLED } else { 0 }, AVAILABLE_RESOURCES, 0, 0]);
    let default = options.threshold.map_or(0, |threshold| threshold.available_sets);
    body.extend_from_slice(&modes.threshold_count.unwrap_or(default).to_be_bytes());
    body
}

fn apply_provisioning(modes: &mut BlockModes, options: &UnitOptions, body: &[u8]) {
    modes.threshold_disabled = body[12] & ENABLED == 0;
    let count = body[16..20].iter().fold(0, |count, byte| (count << 8) | u32::from(*byte));
    let default = options.threshold.map(|threshold| threshold.available_sets);
    modes.threshold_count = (Some(count) != default).then_some(count);
}
