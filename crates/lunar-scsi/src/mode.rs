//! Mode parameters: what an initiator may look at and set. SPC-4 §7.5, SBC-3 §6.4.
//!
//! What can be changed has its effect: D_SENSE and SWP of the control page; where there is a
//! threshold of room, LBPERE, and the threshold itself. WCE cannot: whether a write is durable is
//! the operator's promise, not an initiator's choice. Nothing is saved; a reset brings the defaults
//! back.

mod pages;

use crate::sense::{Sense, SenseFormat};
use crate::unit::UnitOptions;
use alloc::vec;
use alloc::vec::Vec;
use pages::{PAGES, Page, find_page};

pub(crate) use pages::THRESHOLD_DESCRIPTOR_AT;
pub use pages::markdown;

/// The mode parameters of a unit that can change.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct ModePages {
    descriptor_sense: bool,
    software_write_protect: bool,
    /// LBPERE was set to 0.
    provisioning_silent: bool,
    /// ENABLED of the threshold was set to 0.
    threshold_disabled: bool,
    /// THRESHOLD COUNT, where it is not the default.
    threshold_count: Option<u32>,
}

/// What a MODE SENSE asks for.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct SenseRequest {
    /// MODE SENSE (10), not (6).
    pub ten: bool,
    /// DBD: no block descriptor.
    pub no_block_descriptor: bool,
    /// LLBAA: a block descriptor with a 64 bit count; (10) only.
    pub long_lba: bool,
    /// PC: current, changeable, default, saved.
    pub page_control: u8,
    /// PAGE CODE.
    pub page: u8,
    /// SUBPAGE CODE.
    pub subpage: u8,
}

/// What a MODE SELECT says of its parameter list.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct SelectRequest {
    /// MODE SELECT (10), not (6).
    pub ten: bool,
    /// PF: pages as the standard has them.
    pub page_format: bool,
    /// SP: save them.
    pub save: bool,
}

impl SelectRequest {
    /// Judges the CDB before its parameter list is collected.
    ///
    /// # Errors
    /// INVALID FIELD IN CDB: pages in a vendor's format, or that are to be saved.
    pub fn check(&self) -> Result<(), Sense> {
        if !self.page_format {
            return Err(Sense::invalid_field_in_cdb(1, Some(4)));
        }
        if self.save { Err(Sense::invalid_field_in_cdb(1, Some(0))) } else { Ok(()) }
    }
}

const ALL_PAGES: u8 = 0x3f;
const ALL_SUBPAGES: u8 = 0xff;
const CHANGEABLE: u8 = 1;
const DEFAULT: u8 = 2;
const SAVED: u8 = 3;

/// Device-specific parameter. SBC-3 §6.4.1.
const WP: u8 = 0x80;
const DPOFUA: u8 = 0x10;
const SHORT_DESCRIPTOR_BYTES: usize = 8;
const LONG_DESCRIPTOR_BYTES: usize = 16;
/// In the byte of the MODE SELECT (10) header that says how long block descriptors are.
const LONGLBA: u8 = 0x01;

impl ModePages {
    /// The format sense data is sent in (D_SENSE).
    pub fn sense_format(&self) -> SenseFormat {
        if self.descriptor_sense { SenseFormat::Descriptor } else { SenseFormat::Fixed }
    }

    /// Why the medium cannot be written, if it cannot: by configuration, or by SWP.
    pub fn write_protection(&self, options: &UnitOptions) -> Option<Sense> {
        if options.read_only {
            Some(Sense::WRITE_PROTECTED)
        } else if self.software_write_protect {
            Some(Sense::LOGICAL_UNIT_SOFTWARE_WRITE_PROTECTED)
        } else {
            None
        }
    }

    /// A reset brings the defaults back.
    pub fn reset(&mut self) {
        *self = Self::default();
    }

    /// The mode data, whole; the command cuts it to its allocation length.
    ///
    /// # Errors
    /// INVALID FIELD IN CDB for a page or subpage that is none; SAVING PARAMETERS NOT SUPPORTED
    /// for saved values.
    pub fn sense(&self, options: &UnitOptions, request: SenseRequest) -> Result<Vec<u8>, Sense> {
        let pages = self.pages(options, request)?;
        let long = request.ten && request.long_lba;
        let descriptor =
            if request.no_block_descriptor { Vec::new() } else { block_descriptor(options, long) };
        let protected = if self.write_protection(options).is_some() { WP } else { 0 };
        let header_bytes = if request.ten { 8 } else { 4 };
        // A few pages of some twenty bytes: MODE DATA LENGTH, itself not counted, fits one byte.
        let total = (header_bytes + descriptor.len() + pages.len()) as u8;
        let descriptor_bytes = descriptor.len() as u8;
        let mut data = if request.ten {
            let longlba = if long { LONGLBA } else { 0 };
            vec![0, total - 2, 0, protected | DPOFUA, longlba, 0, 0, descriptor_bytes]
        } else {
            vec![total - 1, 0, protected | DPOFUA, descriptor_bytes]
        };
        data.extend(descriptor);
        data.extend(pages);
        Ok(data)
    }

    /// Whether crossing the threshold is told.
    pub(crate) fn reports_provisioning(&self) -> bool {
        !self.provisioning_silent
    }

    /// THRESHOLD COUNT, if there is a threshold and it is enabled.
    pub(crate) fn threshold_count(&self, options: &UnitOptions) -> Option<u32> {
        let threshold = options.threshold.filter(|_| !self.threshold_disabled)?;
        Some(self.threshold_count.unwrap_or(threshold.available_sets))
    }

    fn pages(&self, options: &UnitOptions, request: SenseRequest) -> Result<Vec<u8>, Sense> {
        let all = request.page == ALL_PAGES;
        let of_code =
            |page: &&Page| page.offered.includes(options) && (all || page.code == request.page);
        if !PAGES.iter().any(|page| of_code(&page)) {
            return Err(Sense::invalid_field_in_cdb(2, Some(5)));
        }
        let asked = |page: &&Page| {
            of_code(page) && (request.subpage == ALL_SUBPAGES || page.subpage == request.subpage)
        };
        if !PAGES.iter().any(|page| asked(&page)) || (all && !matches!(request.subpage, 0 | 0xff)) {
            return Err(Sense::invalid_field_in_cdb(3, None));
        }
        if request.page_control == SAVED {
            return Err(Sense::SAVING_PARAMETERS_NOT_SUPPORTED);
        }
        let mut data = Vec::new();
        for page in PAGES.iter().filter(asked) {
            let body = match request.page_control {
                CHANGEABLE => page.mask(options, (page.current)(self, options).len()),
                DEFAULT => (page.current)(&Self::default(), options),
                _ => (page.current)(self, options),
            };
            data.extend(page.head(body.len()));
            data.extend(body);
        }
        Ok(data)
    }

    /// Takes over a parameter list, all of it or nothing; `true` when something changed, and
    /// every other nexus is to be told (MODE PARAMETERS CHANGED).
    ///
    /// # Errors
    /// As [`SelectRequest::check`]; PARAMETER LIST LENGTH ERROR when a header, descriptor or page
    /// is cut short; INVALID FIELD IN PARAMETER LIST, pointing at the first bit that is not as
    /// the unit has it and cannot change.
    pub fn select(
        &mut self,
        options: &UnitOptions,
        request: SelectRequest,
        list: &[u8],
    ) -> Result<bool, Sense> {
        request.check()?;
        if list.is_empty() {
            return Ok(false);
        }
        let mut changed = *self;
        let mut at = check_head(options, request, list)?;
        while at < list.len() {
            let page = find_page(options, list, at)?;
            let current = (page.current)(&changed, options);
            at += page.check_head(&list[at..], current.len()).map_err(|found| match found {
                Some(in_head) => wrong(at + in_head, None),
                None => Sense::PARAMETER_LIST_LENGTH_ERROR,
            })?;
            let body =
                list.get(at..at + current.len()).ok_or(Sense::PARAMETER_LIST_LENGTH_ERROR)?;
            page.check(options, at, &current, body)?;
            (page.apply)(&mut changed, options, body);
            at += body.len();
        }
        let is_new = changed != *self;
        *self = changed;
        Ok(is_new)
    }
}

/// INVALID FIELD IN PARAMETER LIST; lists have at most 65,535 bytes.
fn wrong(at: usize, bit: Option<u8>) -> Sense {
    Sense::invalid_field_in_parameter_list(at as u16, bit)
}

/// Judges header and block descriptor of a MODE SELECT; returns where the pages begin.
///
/// The device-specific parameter is reserved here, and MODE DATA LENGTH too.
fn check_head(options: &UnitOptions, request: SelectRequest, list: &[u8]) -> Result<usize, Sense> {
    let (medium_type_at, length_at, head_bytes) = if request.ten { (2, 6, 8) } else { (1, 3, 4) };
    let head = list.get(..head_bytes).ok_or(Sense::PARAMETER_LIST_LENGTH_ERROR)?;
    if head[medium_type_at] != 0 {
        return Err(wrong(medium_type_at, None));
    }
    let long = request.ten && head[4] & LONGLBA != 0;
    let descriptor_bytes =
        head[length_at..].iter().fold(0, |length, byte| (length << 8) | usize::from(*byte));
    let expected = if long { LONG_DESCRIPTOR_BYTES } else { SHORT_DESCRIPTOR_BYTES };
    if descriptor_bytes != 0 && descriptor_bytes != expected {
        return Err(wrong(length_at, None));
    }
    let end = head_bytes + descriptor_bytes;
    let descriptor = list.get(head_bytes..end).ok_or(Sense::PARAMETER_LIST_LENGTH_ERROR)?;
    check_descriptor(options, long, descriptor).map_err(|at| wrong(head_bytes + at, None))?;
    Ok(end)
}

/// A block descriptor may say what is so; 0 and all ones leave the capacity as it is. The error
/// is where it says something else.
fn check_descriptor(options: &UnitOptions, long: bool, descriptor: &[u8]) -> Result<(), usize> {
    if descriptor.is_empty() {
        return Ok(());
    }
    let own = block_descriptor(options, long);
    let count_bytes = if long { 8 } else { 4 };
    let count = &descriptor[..count_bytes];
    let unchanged = count.iter().all(|byte| *byte == 0) || count.iter().all(|byte| *byte == 0xff);
    if !unchanged && count != &own[..count_bytes] {
        return Err(0);
    }
    match (count_bytes..own.len()).find(|at| descriptor[*at] != own[*at]) {
        Some(at) => Err(at),
        None => Ok(()),
    }
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
    // The short form has 24 bits for it, its first byte is reserved.
    descriptor.extend_from_slice(&options.block_bytes.to_be_bytes());
    descriptor
}

#[cfg(test)]
mod tests;
