//! Mode parameters that an initiator may read and set. SPC-4 §7.5, SBC-3 §6.4.
//!
//! Changeable parameters have an effect: D_SENSE and SWP of the control page; with a threshold of
//! free space, LBPERE and the threshold itself. WCE is not changeable: the operator, not an
//! initiator, decides whether writes are durable. Nothing is saved; a reset restores the defaults.

mod pages;

use crate::sense::{Sense, SenseFormat};
use crate::unit::UnitOptions;
use alloc::vec;
use alloc::vec::Vec;
use pages::{PAGES, Page, find_page};

pub(crate) use pages::THRESHOLD_DESCRIPTOR_AT;
pub use pages::markdown;

/// The changeable mode parameters of a unit.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct ModePages {
    descriptor_sense: bool,
    software_write_protect: bool,
    /// True if LBPERE was set to 0.
    provisioning_silent: bool,
    /// True if ENABLED of the threshold was set to 0.
    threshold_disabled: bool,
    /// THRESHOLD COUNT, if it is not the default.
    threshold_count: Option<u32>,
}

/// The fields of a MODE SENSE.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct SenseRequest {
    /// True for MODE SENSE (10), false for (6).
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

/// The fields of a MODE SELECT.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct SelectRequest {
    /// True for MODE SELECT (10), false for (6).
    pub ten: bool,
    /// PF: pages in the format of the standard.
    pub page_format: bool,
    /// SP: save the pages.
    pub save: bool,
}

impl SelectRequest {
    /// Checks the CDB before its parameter list is received.
    ///
    /// # Errors
    /// INVALID FIELD IN CDB: pages in a vendor's format, or pages to save.
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
/// Bit in the byte of the MODE SELECT (10) header that determines the length of block descriptors.
const LONGLBA: u8 = 0x01;

impl ModePages {
    /// The format of sense data (D_SENSE).
    pub fn sense_format(&self) -> SenseFormat {
        if self.descriptor_sense { SenseFormat::Descriptor } else { SenseFormat::Fixed }
    }

    /// The reason why the medium is write protected, if it is: configuration, or SWP.
    pub fn write_protection(&self, options: &UnitOptions) -> Option<Sense> {
        if options.read_only {
            Some(Sense::WRITE_PROTECTED)
        } else if self.software_write_protect {
            Some(Sense::LOGICAL_UNIT_SOFTWARE_WRITE_PROTECTED)
        } else {
            None
        }
    }

    /// Restores the defaults after a reset.
    pub fn reset(&mut self) {
        *self = Self::default();
    }

    /// Builds the whole mode data; the command truncates it to its allocation length.
    ///
    /// # Errors
    /// INVALID FIELD IN CDB for an unknown page or subpage; SAVING PARAMETERS NOT SUPPORTED for
    /// saved values.
    pub fn sense(&self, options: &UnitOptions, request: SenseRequest) -> Result<Vec<u8>, Sense> {
        let pages = self.pages(options, request)?;
        let long = request.ten && request.long_lba;
        let descriptor =
            if request.no_block_descriptor { Vec::new() } else { block_descriptor(options, long) };
        let protected = if self.write_protection(options).is_some() { WP } else { 0 };
        let header_bytes = if request.ten { 8 } else { 4 };
        // A few pages of about twenty bytes: MODE DATA LENGTH, which excludes itself, fits one
        // byte.
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

    /// True if crossing the threshold is reported.
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
        let features = options.features();
        let of_code =
            |page: &&Page| features.include(page.offered) && (all || page.code == request.page);
        if !PAGES.iter().any(|page| of_code(&page)) {
            return Err(Sense::invalid_field_in_cdb(2, Some(5)));
        }
        let is_requested = |page: &&Page| {
            of_code(page) && (request.subpage == ALL_SUBPAGES || page.subpage == request.subpage)
        };
        if !PAGES.iter().any(|page| is_requested(&page))
            || (all && !matches!(request.subpage, 0 | 0xff))
        {
            return Err(Sense::invalid_field_in_cdb(3, None));
        }
        if request.page_control == SAVED {
            return Err(Sense::SAVING_PARAMETERS_NOT_SUPPORTED);
        }
        let mut data = Vec::new();
        for page in PAGES.iter().filter(is_requested) {
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

    /// Applies a parameter list completely or not at all; `true` if something changed, and every
    /// other nexus must be informed (MODE PARAMETERS CHANGED).
    ///
    /// # Errors
    /// The errors of [`SelectRequest::check`]; PARAMETER LIST LENGTH ERROR if a header, descriptor
    /// or page is truncated; INVALID FIELD IN PARAMETER LIST, pointing at the first bit that
    /// differs from the unit's value and is not changeable.
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

/// Checks header and block descriptor of a MODE SELECT; returns the offset of the pages.
///
/// The device-specific parameter and MODE DATA LENGTH are reserved here.
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

/// Checks that a block descriptor has the current values; 0 and all ones keep the capacity. The
/// error is the offset of the first difference.
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

/// Builds a block descriptor. SBC-3 §6.4.2. A count that does not fit is all ones.
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

#[cfg(test)]
mod tests;
