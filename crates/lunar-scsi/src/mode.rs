//! Mode parameters that an initiator may read and set. SPC-4 §7.5, SBC-3 §6.4.
//!
//! Each type of units has its [`ModeParameters`] with its pages; those of SPC-4 are common to all.
//! Nothing is saved; a reset restores the defaults.

mod block;
mod pages;

use crate::commands::Features;
use crate::sense::{Sense, SenseFormat};
use alloc::vec;
use alloc::vec::Vec;

pub(crate) use block::THRESHOLD_DESCRIPTOR_AT;
pub use block::{BlockModes, markdown};
pub use pages::ModePage;

/// The changeable parameters of the control page, which every type of units has. SPC-4 §7.5.8.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct ControlParameters {
    /// D_SENSE.
    pub descriptor_sense: bool,
    /// SWP.
    pub software_write_protect: bool,
}

impl ControlParameters {
    /// The format of sense data (D_SENSE).
    pub fn sense_format(&self) -> SenseFormat {
        if self.descriptor_sense { SenseFormat::Descriptor } else { SenseFormat::Fixed }
    }
}

/// The fields of a MODE SENSE.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct SenseRequest {
    /// True for MODE SENSE (10), false for (6).
    pub is_ten_byte: bool,
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
    pub is_ten_byte: bool,
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

/// Bit in the byte of the MODE SELECT (10) header that determines the length of block descriptors.
const LONGLBA: u8 = 0x01;

/// The changeable mode parameters of a type of units. The default values apply until MODE SELECT
/// changes them, and again after a reset.
pub trait ModeParameters: Copy + Default + Eq + 'static {
    /// The properties of a unit that its pages report.
    type Options;

    /// All pages, in ascending order.
    const PAGES: &'static [ModePage<Self>];

    /// The optional features of a unit.
    fn features(options: &Self::Options) -> Features;

    /// The parameters of the control page.
    fn control(&self) -> &ControlParameters;

    /// The parameters of the control page, for changes.
    fn control_mut(&mut self) -> &mut ControlParameters;

    /// DEVICE-SPECIFIC PARAMETER of the header. SPC-4 §7.5.5.
    fn device_specific(&self, options: &Self::Options) -> u8;

    /// The block descriptor, in its long form if `long`; empty if the type has none. SPC-4 §7.5.6.
    fn block_descriptor(options: &Self::Options, long: bool) -> Vec<u8>;

    /// Restores the defaults after a reset.
    fn reset(&mut self) {
        *self = Self::default();
    }

    /// Builds the whole mode data; the command truncates it to its allocation length.
    ///
    /// # Errors
    /// INVALID FIELD IN CDB for an unknown page or subpage; SAVING PARAMETERS NOT SUPPORTED for
    /// saved values.
    fn sense(&self, options: &Self::Options, request: SenseRequest) -> Result<Vec<u8>, Sense> {
        let pages = pages::sense(self, options, request)?;
        let long = request.is_ten_byte && request.long_lba;
        let descriptor = match request.no_block_descriptor {
            true => Vec::new(),
            false => Self::block_descriptor(options, long),
        };
        let long = long && !descriptor.is_empty();
        let device_specific = self.device_specific(options);
        let header_bytes = if request.is_ten_byte { 8 } else { 4 };
        // A few pages of about twenty bytes: MODE DATA LENGTH, which excludes itself, fits one
        // byte.
        let total = (header_bytes + descriptor.len() + pages.len()) as u8;
        let descriptor_bytes = descriptor.len() as u8;
        let mut data = if request.is_ten_byte {
            let longlba = if long { LONGLBA } else { 0 };
            vec![0, total - 2, 0, device_specific, longlba, 0, 0, descriptor_bytes]
        } else {
            vec![total - 1, 0, device_specific, descriptor_bytes]
        };
        data.extend(descriptor);
        data.extend(pages);
        Ok(data)
    }

    /// Applies a parameter list completely or not at all; `true` if something changed, and every
    /// other nexus must be informed (MODE PARAMETERS CHANGED).
    ///
    /// # Errors
    /// The errors of [`SelectRequest::check`]; PARAMETER LIST LENGTH ERROR if a header, descriptor
    /// or page is truncated; INVALID FIELD IN PARAMETER LIST, pointing at the first bit that
    /// differs from the unit's value and is not changeable.
    fn select(
        &mut self,
        options: &Self::Options,
        request: SelectRequest,
        list: &[u8],
    ) -> Result<bool, Sense> {
        request.check()?;
        if list.is_empty() {
            return Ok(false);
        }
        let at = check_head::<Self>(options, request, list)?;
        let changed = pages::select(self, options, list, at)?;
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
fn check_head<M: ModeParameters>(
    options: &M::Options,
    request: SelectRequest,
    list: &[u8],
) -> Result<usize, Sense> {
    let (medium_type_at, length_at, head_bytes) =
        if request.is_ten_byte { (2, 6, 8) } else { (1, 3, 4) };
    let head = list.get(..head_bytes).ok_or(Sense::PARAMETER_LIST_LENGTH_ERROR)?;
    if head[medium_type_at] != 0 {
        return Err(wrong(medium_type_at, None));
    }
    let long = request.is_ten_byte && head[4] & LONGLBA != 0;
    let own = M::block_descriptor(options, long);
    let descriptor_bytes =
        head[length_at..].iter().fold(0, |length, byte| (length << 8) | usize::from(*byte));
    if descriptor_bytes != 0 && descriptor_bytes != own.len() {
        return Err(wrong(length_at, None));
    }
    let end = head_bytes + descriptor_bytes;
    let descriptor = list.get(head_bytes..end).ok_or(Sense::PARAMETER_LIST_LENGTH_ERROR)?;
    check_descriptor(&own, long, descriptor).map_err(|at| wrong(head_bytes + at, None))?;
    Ok(end)
}

/// Checks that a block descriptor has the current values; 0 and all ones keep the capacity. The
/// error is the offset of the first difference.
fn check_descriptor(own: &[u8], long: bool, descriptor: &[u8]) -> Result<(), usize> {
    if descriptor.is_empty() {
        return Ok(());
    }
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

#[cfg(test)]
mod tests;
