//! The table of mode pages, and the contents of each page. SPC-4 §7.5, SBC-3 §6.4.

use super::{ModePages, wrong};
use crate::commands::Offered::{self, Always, Threshold};
use crate::sense::Sense;
use crate::unit::UnitOptions;
use alloc::format;
use alloc::string::String;
use alloc::vec;
use alloc::vec::Vec;

/// One page: its codes, its name and section in the standard, the units that support it, its bytes
/// after the length, its changeable bits and the units on which they are, and the effect of
/// changes.
pub(super) struct Page {
    pub(super) code: u8,
    /// 0: the page has the short header, without a subpage code.
    pub(super) subpage: u8,
    pub(super) offered: Offered,
    name: &'static str,
    standard: &'static str,
    pub(super) current: fn(&ModePages, &UnitOptions) -> Vec<u8>,
    /// Ones for changeable bits; may be shorter than the page.
    changeable: &'static [u8],
    changes: Offered,
    pub(super) apply: fn(&mut ModePages, &UnitOptions, &[u8]),
}

/// Every page, in ascending order.
pub(super) const PAGES: &[Page] = &[
    Page {
        code: 0x01,
        subpage: 0,
        offered: Always,
        name: "Read-Write Error Recovery",
        standard: "SBC-3 §6.4.7",
        current: error_recovery,
        changeable: &[0, 0, 0, 0, 0, LBPERE],
        changes: Threshold,
        apply: apply_error_recovery,
    },
    Page {
        code: 0x08,
        subpage: 0,
        offered: Always,
        name: "Caching",
        standard: "SBC-3 §6.4.5",
        current: caching,
        changeable: &[],
        changes: Always,
        apply: nothing,
    },
    Page {
        code: 0x0a,
        subpage: 0,
        offered: Always,
        name: "Control",
        standard: "SPC-4 §7.5.8",
        current: control,
        changeable: &[D_SENSE, 0, SWP],
        changes: Always,
        apply: apply_control,
    },
    Page {
        code: 0x1c,
        subpage: 0,
        offered: Always,
        name: "Informational Exceptions Control",
        standard: "SPC-4 §7.5.13",
        current: informational_exceptions,
        changeable: &[],
        changes: Always,
        apply: nothing,
    },
    Page {
        code: 0x1c,
        subpage: 0x02,
        offered: Threshold,
        name: "Logical Block Provisioning",
        standard: "SBC-3 §6.4.6",
        current: provisioning,
        changeable: &[0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, ENABLED, 0, 0, 0, 255, 255, 255, 255],
        changes: Threshold,
        apply: apply_provisioning,
    },
];

/// Formats the pages as Markdown for CONFORMANCE.md, with one row per page and the bits that MODE
/// SELECT changes.
pub fn markdown() -> String {
    let head = "| Code | Page | Standard | Units | Changeable |\n|---|---|---|---|---|\n";
    let mut text = String::from(head);
    for page in PAGES {
        let Page { code, subpage, offered, name, standard, changeable, .. } = page;
        let mut bits = String::new();
        for (at, mask) in changeable.iter().enumerate().filter(|(_, mask)| **mask != 0) {
            let comma = if bits.is_empty() { "" } else { ", " };
            let at = at + page.head_bytes();
            bits.push_str(&format!("{comma}byte {at}: `{mask:02x}`"));
        }
        if !bits.is_empty() && page.changes != page.offered {
            bits.push_str(&format!(" ({})", page.changes));
        }
        let sub = if *subpage == 0 { String::new() } else { format!("/{subpage:02x}") };
        text.push_str(&format!("| {code:02x}{sub} | {name} | {standard} | {offered} | {bits} |\n"));
    }
    text
}

/// Byte 2 of the caching page.
const WCE: u8 = 0x04;
/// Byte 2 of the control page: TST 001b, one task set per I_T nexus.
const TST_PER_NEXUS: u8 = 0x20;
const D_SENSE: u8 = 0x04;
const GLTSD: u8 = 0x02;
/// Byte 3: QUEUE ALGORITHM MODIFIER 1, commands are reordered freely.
const REORDERED: u8 = 0x10;
/// Byte 4.
const SWP: u8 = 0x08;
/// Byte 2 of the informational exceptions page: there are none to report.
const DEXCPT: u8 = 0x08;
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

/// Bit in the first byte of a page: a subpage code and a longer length follow.
const SPF: u8 = 0x40;
impl Page {
    const fn head_bytes(&self) -> usize {
        if self.subpage == 0 { 2 } else { 4 }
    }

    /// Encodes code and length. SPC-4 §7.5.5.
    pub(super) fn head(&self, body_bytes: usize) -> Vec<u8> {
        if self.subpage == 0 {
            return vec![self.code, body_bytes as u8]; // pages are short
        }
        let [high, low] = (body_bytes as u16).to_be_bytes();
        vec![self.code | SPF, self.subpage, high, low]
    }

    /// Checks the length in the header of a page in a parameter list; returns the offset of its
    /// body. The error is the offset of the wrong byte, or `None` if the header is truncated.
    pub(super) fn check_head(
        &self,
        list: &[u8],
        body_bytes: usize,
    ) -> Result<usize, Option<usize>> {
        let bytes = self.head_bytes();
        let length_at = if bytes == 2 { 1 } else { 2 };
        let length = list.get(length_at..bytes).ok_or(None)?;
        let length = length.iter().fold(0, |length, byte| (length << 8) | usize::from(*byte));
        if length == body_bytes { Ok(bytes) } else { Err(Some(length_at)) }
    }

    /// The changeable mask, as long as the page.
    pub(super) fn mask(&self, options: &UnitOptions, length: usize) -> Vec<u8> {
        let mut mask = Vec::new();
        if options.features().include(self.changes) {
            mask.extend_from_slice(self.changeable);
        }
        mask.resize(length, 0);
        mask
    }

    /// Checks that bits outside the mask are unchanged; `at` is the offset of `body` in the
    /// parameter list.
    pub(super) fn check(
        &self,
        options: &UnitOptions,
        at: usize,
        current: &[u8],
        body: &[u8],
    ) -> Result<(), Sense> {
        let mask = self.mask(options, current.len());
        for (index, ((old, new), mask)) in current.iter().zip(body).zip(mask).enumerate() {
            if let Some(bit) = ((old ^ new) & !mask).checked_ilog2() {
                return Err(wrong(at + index, Some(bit as u8)));
            }
        }
        Ok(())
    }
}

/// Returns the page at `at` of a list; PS is reserved there and ignored.
pub(super) fn find_page(
    options: &UnitOptions,
    list: &[u8],
    at: usize,
) -> Result<&'static Page, Sense> {
    let first = list.get(at).ok_or(Sense::PARAMETER_LIST_LENGTH_ERROR)?;
    let subpage = match first & SPF {
        0 => 0,
        _ => *list.get(at + 1).ok_or(Sense::PARAMETER_LIST_LENGTH_ERROR)?,
    };
    if first & SPF != 0 && subpage == 0 {
        return Err(wrong(at, Some(6))); // subpage 0 has the short header
    }
    let features = options.features();
    let mut of_code = PAGES
        .iter()
        .filter(|page| page.code == first & 0x3f && features.include(page.offered))
        .peekable();
    if of_code.peek().is_none() {
        return Err(wrong(at, Some(5)));
    }
    of_code.find(|page| page.subpage == subpage).ok_or(wrong(at + 1, None))
}

/// 01h, read-write error recovery: the initiator can only change whether the threshold of free
/// space is reported. SBC-3 §6.4.7.
fn error_recovery(mode: &ModePages, options: &UnitOptions) -> Vec<u8> {
    let mut body = vec![0; 10];
    let reports = options.threshold.is_some() && mode.reports_provisioning();
    body[5] = if reports { LBPERE } else { 0 };
    body
}

fn apply_error_recovery(mode: &mut ModePages, options: &UnitOptions, body: &[u8]) {
    mode.provisioning_silent = options.threshold.is_some() && body[5] & LBPERE == 0;
}

/// 08h, caching. SBC-3 §6.4.5.
fn caching(_: &ModePages, options: &UnitOptions) -> Vec<u8> {
    let mut body = vec![0; 18];
    body[0] = if options.write_back { WCE } else { 0 };
    body
}

/// 0Ah, control. SPC-4 §7.5.8. GLTSD: there are no log parameters to save. TST: decision 087.
fn control(mode: &ModePages, _: &UnitOptions) -> Vec<u8> {
    let mut body = vec![0; 10];
    body[0] = TST_PER_NEXUS | GLTSD | if mode.descriptor_sense { D_SENSE } else { 0 };
    body[1] = REORDERED;
    body[2] = if mode.software_write_protect { SWP } else { 0 };
    body
}

fn apply_control(mode: &mut ModePages, _: &UnitOptions, body: &[u8]) {
    mode.descriptor_sense = body[0] & D_SENSE != 0;
    mode.software_write_protect = body[2] & SWP != 0;
}

/// 1Ch, informational exceptions control. SPC-4 §7.5.13.
fn informational_exceptions(_: &ModePages, _: &UnitOptions) -> Vec<u8> {
    let mut body = vec![0; 10];
    body[0] = DEXCPT;
    body
}

/// 1Ch/02h, logical block provisioning: one threshold, reported on every nexus (SITUA is 0).
/// SBC-3 §6.4.6.
fn provisioning(mode: &ModePages, options: &UnitOptions) -> Vec<u8> {
    let mut body = vec![0; 12];
    let enabled = mode.threshold_count(options).is_some();
    body.extend_from_slice(&[if enabled { ENABLED } else { 0 }, AVAILABLE_RESOURCES, 0, 0]);
    let default = options.threshold.map_or(0, |threshold| threshold.available_sets);
    body.extend_from_slice(&mode.threshold_count.unwrap_or(default).to_be_bytes());
    body
}

fn apply_provisioning(mode: &mut ModePages, options: &UnitOptions, body: &[u8]) {
    mode.threshold_disabled = body[12] & ENABLED == 0;
    let count = body[16..20].iter().fold(0, |count, byte| (count << 8) | u32::from(*byte));
    let default = options.threshold.map(|threshold| threshold.available_sets);
    mode.threshold_count = (Some(count) != default).then_some(count);
}

fn nothing(_: &mut ModePages, _: &UnitOptions, _: &[u8]) {}
