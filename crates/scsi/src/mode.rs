//! Mode parameters: what an initiator may look at and set. SPC-4 §7.5, SBC-3 §6.4.
//!
//! D_SENSE and SWP of the control page can be changed, and both have their effect. WCE cannot:
//! whether a write is durable is the operator's promise, not an initiator's choice. Nothing is
//! saved; a reset brings the defaults back.

use crate::sense::{Sense, SenseFormat};
use crate::unit::UnitOptions;
use alloc::format;
use alloc::string::String;
use alloc::vec;
use alloc::vec::Vec;

/// The mode parameters of a unit that can change.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct ModePages {
    descriptor_sense: bool,
    software_write_protect: bool,
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

/// One page: its name and section in the standard, its bytes behind code and length, which of
/// their bits can change, and what it means to have changed them.
struct Page {
    code: u8,
    name: &'static str,
    standard: &'static str,
    current: fn(&ModePages, &UnitOptions) -> Vec<u8>,
    /// Ones where bits can change; shorter than the page where the rest cannot.
    changeable: &'static [u8],
    apply: fn(&mut ModePages, &[u8]),
}

/// Every page, in ascending order. None has subpages.
const PAGES: &[Page] = &[
    Page {
        code: 0x01,
        name: "Read-Write Error Recovery",
        standard: "SBC-3 §6.4.7",
        current: error_recovery,
        changeable: &[],
        apply: nothing,
    },
    Page {
        code: 0x08,
        name: "Caching",
        standard: "SBC-3 §6.4.5",
        current: caching,
        changeable: &[],
        apply: nothing,
    },
    Page {
        code: 0x0a,
        name: "Control",
        standard: "SPC-4 §7.5.8",
        current: control,
        changeable: &[D_SENSE, 0, SWP],
        apply: apply_control,
    },
    Page {
        code: 0x1c,
        name: "Informational Exceptions Control",
        standard: "SPC-4 §7.5.13",
        current: informational_exceptions,
        changeable: &[],
        apply: nothing,
    },
];

/// The pages as Markdown, for CONFORMANCE.md: one row a page, with the bits that MODE SELECT
/// changes.
pub fn markdown() -> String {
    let mut text = String::from("| Code | Page | Standard | Changeable |\n|---|---|---|---|\n");
    for Page { code, name, standard, changeable, .. } in PAGES {
        let mut bits = String::new();
        for (at, mask) in changeable.iter().enumerate().filter(|(_, mask)| **mask != 0) {
            let comma = if bits.is_empty() { "" } else { ", " };
            bits.push_str(&format!("{comma}byte {}: `{mask:02x}`", at + 2));
        }
        text.push_str(&format!("| {code:02x} | {name} | {standard} | {bits} |\n"));
    }
    text
}

const ALL_PAGES: u8 = 0x3f;
const ALL_SUBPAGES: u8 = 0xff;
const CHANGEABLE: u8 = 1;
const DEFAULT: u8 = 2;
const SAVED: u8 = 3;

/// Device-specific parameter. SBC-3 §6.4.1.
const WP: u8 = 0x80;
const DPOFUA: u8 = 0x10;
/// Byte 2 of the caching page.
const WCE: u8 = 0x04;
/// Byte 2 of the control page.
const D_SENSE: u8 = 0x04;
const GLTSD: u8 = 0x02;
/// Byte 3: QUEUE ALGORITHM MODIFIER 1, commands are reordered freely.
const REORDERED: u8 = 0x10;
/// Byte 4.
const SWP: u8 = 0x08;
/// Byte 2 of the informational exceptions page: there are none to report.
const DEXCPT: u8 = 0x08;

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

    fn pages(&self, options: &UnitOptions, request: SenseRequest) -> Result<Vec<u8>, Sense> {
        let all = request.page == ALL_PAGES;
        if !all && !PAGES.iter().any(|page| page.code == request.page) {
            return Err(Sense::invalid_field_in_cdb(2, Some(5)));
        }
        if !matches!(request.subpage, 0 | ALL_SUBPAGES) {
            return Err(Sense::invalid_field_in_cdb(3, None));
        }
        if request.page_control == SAVED {
            return Err(Sense::SAVING_PARAMETERS_NOT_SUPPORTED);
        }
        let mut data = Vec::new();
        for page in PAGES.iter().filter(|page| all || page.code == request.page) {
            let body = match request.page_control {
                CHANGEABLE => page.mask((page.current)(self, options).len()),
                DEFAULT => (page.current)(&Self::default(), options),
                _ => (page.current)(self, options),
            };
            data.extend_from_slice(&[page.code, body.len() as u8]);
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
        while let Some([first, ..]) = list.get(at..) {
            let page = find_page(*first, at)?;
            let current = (page.current)(&changed, options);
            let length = list.get(at + 1).ok_or(Sense::PARAMETER_LIST_LENGTH_ERROR)?;
            if usize::from(*length) != current.len() {
                return Err(wrong(at + 1, None));
            }
            at += 2;
            let body =
                list.get(at..at + current.len()).ok_or(Sense::PARAMETER_LIST_LENGTH_ERROR)?;
            page.check(at, &current, body)?;
            (page.apply)(&mut changed, body);
            at += body.len();
        }
        let is_new = changed != *self;
        *self = changed;
        Ok(is_new)
    }
}

impl Page {
    /// The changeable mask, as long as the page.
    fn mask(&self, length: usize) -> Vec<u8> {
        let mut mask = self.changeable.to_vec();
        mask.resize(length, 0);
        mask
    }

    /// Bits outside the mask are as they are; `at` is where `body` lies in the parameter list.
    fn check(&self, at: usize, current: &[u8], body: &[u8]) -> Result<(), Sense> {
        let mask = self.mask(current.len());
        for (index, ((old, new), mask)) in current.iter().zip(body).zip(mask).enumerate() {
            if let Some(bit) = ((old ^ new) & !mask).checked_ilog2() {
                return Err(wrong(at + index, Some(bit as u8)));
            }
        }
        Ok(())
    }
}

/// INVALID FIELD IN PARAMETER LIST; lists have at most 65,535 bytes.
fn wrong(at: usize, bit: Option<u8>) -> Sense {
    Sense::invalid_field_in_parameter_list(at as u16, bit)
}

/// The page that a list means at `at`; PS is reserved there and ignored.
fn find_page(first: u8, at: usize) -> Result<&'static Page, Sense> {
    const SPF: u8 = 0x40;
    if first & SPF != 0 {
        return Err(wrong(at, Some(6)));
    }
    PAGES.iter().find(|page| page.code == first & 0x3f).ok_or(wrong(at, Some(5)))
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

/// 01h, read-write error recovery: nothing of it is the initiator's to steer. SBC-3 §6.4.7.
fn error_recovery(_: &ModePages, _: &UnitOptions) -> Vec<u8> {
    vec![0; 10]
}

/// 08h, caching. SBC-3 §6.4.5.
fn caching(_: &ModePages, options: &UnitOptions) -> Vec<u8> {
    let mut body = vec![0; 18];
    body[0] = if options.write_back { WCE } else { 0 };
    body
}

/// 0Ah, control. SPC-4 §7.5.8. GLTSD: there are no log parameters to save.
fn control(mode: &ModePages, _: &UnitOptions) -> Vec<u8> {
    let mut body = vec![0; 10];
    body[0] = GLTSD | if mode.descriptor_sense { D_SENSE } else { 0 };
    body[1] = REORDERED;
    body[2] = if mode.software_write_protect { SWP } else { 0 };
    body
}

fn apply_control(mode: &mut ModePages, body: &[u8]) {
    mode.descriptor_sense = body[0] & D_SENSE != 0;
    mode.software_write_protect = body[2] & SWP != 0;
}

/// 1Ch, informational exceptions control. SPC-4 §7.5.13.
fn informational_exceptions(_: &ModePages, _: &UnitOptions) -> Vec<u8> {
    let mut body = vec![0; 10];
    body[0] = DEXCPT;
    body
}

fn nothing(_: &mut ModePages, _: &[u8]) {}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::vpd::tests::options;
    use proptest::prelude::*;

    const SIX: SenseRequest = SenseRequest {
        ten: false,
        no_block_descriptor: false,
        long_lba: false,
        page_control: 0,
        page: ALL_PAGES,
        subpage: 0,
    };
    const SELECT_6: SelectRequest = SelectRequest { ten: false, page_format: true, save: false };
    const SELECT_10: SelectRequest = SelectRequest { ten: true, ..SELECT_6 };

    fn sense(request: SenseRequest) -> Vec<u8> {
        ModePages::default().sense(&options(), request).unwrap()
    }

    /// Goal: the list for CONFORMANCE.md has every page, in order, with the bits that can change.
    #[test]
    fn the_pages_as_text() {
        let text = markdown();
        assert_eq!(text.lines().count(), PAGES.len() + 2);
        assert!(text.lines().all(|line| line.matches('|').count() == 5), "{text}");
        assert!(PAGES.is_sorted_by_key(|page| page.code));
        let control = "| 0a | Control | SPC-4 §7.5.8 | byte 2: `04`, byte 4: `08` |";
        assert!(text.lines().any(|line| line == control), "{text}");
    }

    #[test]
    fn all_pages_6_bytes() {
        let data = sense(SIX);
        assert_eq!(data[..4], [67, 0, 0x10, 8]);
        assert_eq!(data[4..12], [0, 0x20, 0, 0, 0, 0, 2, 0]);
        assert_eq!(data[12..24], [1, 10, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0]);
        assert_eq!(data[24..44], [8, 18, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0]);
        assert_eq!(data[44..56], [10, 10, 2, 0x10, 0, 0, 0, 0, 0, 0, 0, 0]);
        assert_eq!(data[56..], [0x1c, 10, 8, 0, 0, 0, 0, 0, 0, 0, 0, 0]);
        assert_eq!(sense(SenseRequest { subpage: ALL_SUBPAGES, ..SIX }), data);
    }

    #[test]
    fn mode_sense_10_bytes() {
        let ten = SenseRequest { ten: true, page: 0x0a, ..SIX };
        let data = sense(ten);
        assert_eq!(data[..8], [0, 26, 0, 0x10, 0, 0, 0, 8]);
        assert_eq!(data[8..16], [0, 0x20, 0, 0, 0, 0, 2, 0]);
        assert_eq!(data[16..18], [10, 10]);
        let data = sense(SenseRequest { long_lba: true, ..ten });
        assert_eq!(data[..8], [0, 34, 0, 0x10, 1, 0, 0, 16]);
        assert_eq!(data[8..24], [0, 0, 0, 0, 0, 0x20, 0, 0, 0, 0, 0, 0, 0, 0, 2, 0]);
        let data = sense(SenseRequest { no_block_descriptor: true, ..ten });
        assert_eq!(data[..10], [0, 18, 0, 0x10, 0, 0, 0, 0, 10, 10]);
    }

    /// A capacity past 32 bits shows as all ones, and whole in the long form.
    #[test]
    fn large_units() {
        let large = UnitOptions { block_count: 0x1_0000_0000, ..options() };
        let data = ModePages::default().sense(&large, SIX).unwrap();
        assert_eq!(data[4..12], [0xff, 0xff, 0xff, 0xff, 0, 0, 2, 0]);
        let long = SenseRequest { ten: true, long_lba: true, ..SIX };
        let data = ModePages::default().sense(&large, long).unwrap();
        assert_eq!(data[8..16], [0, 0, 0, 1, 0, 0, 0, 0]);
    }

    #[test]
    fn cache_and_protection_are_the_real_ones() {
        let options = UnitOptions { write_back: true, read_only: true, ..options() };
        let data = ModePages::default().sense(&options, SenseRequest { page: 8, ..SIX }).unwrap();
        assert_eq!(data[2], 0x90, "WP and DPOFUA");
        assert_eq!(data[12..15], [8, 18, 4]);
        let protection = ModePages::default().write_protection(&options);
        assert_eq!(protection, Some(Sense::WRITE_PROTECTED));
    }

    /// Goal: each page alone, each control. Method: all page codes and page controls.
    #[test]
    fn pages_and_page_controls() {
        for page in 0..=ALL_PAGES {
            for page_control in 0..4 {
                let request = SenseRequest { page, page_control, ..SIX };
                let reply = ModePages::default().sense(&options(), request);
                if !matches!(page, 1 | 8 | 0xa | 0x1c | 0x3f) {
                    assert_eq!(reply, Err(Sense::invalid_field_in_cdb(2, Some(5))), "{page:#x}");
                } else if page_control == SAVED {
                    assert_eq!(reply, Err(Sense::SAVING_PARAMETERS_NOT_SUPPORTED));
                } else {
                    let reply = reply.unwrap();
                    assert_eq!(usize::from(reply[0]), reply.len() - 1);
                }
            }
        }
        let subpage = SenseRequest { page: 0xa, subpage: 1, ..SIX };
        let refused = ModePages::default().sense(&options(), subpage);
        assert_eq!(refused, Err(Sense::invalid_field_in_cdb(3, None)));
    }

    #[test]
    fn changeable_bits() {
        let request = SenseRequest { page_control: CHANGEABLE, ..SIX };
        let data = sense(request);
        assert_eq!(data[26..44], [0; 18], "WCE is the operator's");
        assert_eq!(data[44..56], [10, 10, 4, 0, 8, 0, 0, 0, 0, 0, 0, 0]);
    }

    /// A control page as MODE SELECT (6) sends it.
    fn control_list(byte_2: u8, byte_4: u8) -> Vec<u8> {
        vec![0, 0, 0, 0, 10, 10, byte_2, 0x10, byte_4, 0, 0, 0, 0, 0, 0, 0]
    }

    /// Goal: what is changed has its effect, is seen, and goes with a reset.
    #[test]
    fn descriptor_sense_and_write_protect() {
        let mut mode = ModePages::default();
        assert_eq!(mode.select(&options(), SELECT_6, &control_list(2, 0)), Ok(false));
        assert_eq!(mode.select(&options(), SELECT_6, &control_list(6, 0)), Ok(true));
        assert_eq!(mode.sense_format(), SenseFormat::Descriptor);
        assert_eq!(mode.write_protection(&options()), None);
        assert_eq!(mode.select(&options(), SELECT_6, &control_list(2, 8)), Ok(true));
        assert_eq!(mode.sense_format(), SenseFormat::Fixed);
        let software = Some(Sense::LOGICAL_UNIT_SOFTWARE_WRITE_PROTECTED);
        assert_eq!(mode.write_protection(&options()), software);
        let request = SenseRequest { page: 0xa, ..SIX };
        let current = mode.sense(&options(), request).unwrap();
        assert_eq!((current[2], current[16]), (0x90, 8));
        let default = SenseRequest { page_control: DEFAULT, ..request };
        let data = mode.sense(&options(), default).unwrap();
        assert_eq!((data[2], data[16]), (0x90, 0), "the header is current, the page is not");
        mode.reset();
        assert_eq!(mode, ModePages::default());
    }

    /// Goal: what MODE SENSE gives, MODE SELECT takes. Method: all forms, all pages, sent back.
    #[test]
    fn what_was_sensed_can_be_selected() {
        for (ten, long_lba, no_block_descriptor) in
            [(false, false, false), (false, false, true), (true, true, false), (true, false, true)]
        {
            let data = sense(SenseRequest { ten, long_lba, no_block_descriptor, ..SIX });
            let request = SelectRequest { ten, ..SELECT_6 };
            let mut mode = ModePages::default();
            assert_eq!(mode.select(&options(), request, &data), Ok(false));
        }
    }

    #[test]
    fn what_cannot_change_is_refused_at_its_bit() {
        let mut mode = ModePages::default();
        for (at, value, byte, bit) in
            [(6, 0, 6, 1), (7, 0x90, 7, 7), (8, 0x0c, 8, 2), (15, 1, 15, 0)]
        {
            // Something changeable is in the list as well: it must not be taken over.
            let mut list = control_list(6, 8);
            list[at] = value;
            let refused = mode.select(&options(), SELECT_6, &list);
            assert_eq!(refused, Err(Sense::invalid_field_in_parameter_list(byte, Some(bit))));
        }
        let cache = [0, 0, 0, 0, 8, 18, 4, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0];
        let refused = mode.select(&options(), SELECT_6, &cache);
        assert_eq!(refused, Err(Sense::invalid_field_in_parameter_list(6, Some(2))));
        assert_eq!(mode, ModePages::default());
    }

    /// All or nothing: a good page before a bad one is not taken over.
    #[test]
    fn a_bad_page_spoils_the_list() {
        let mut mode = ModePages::default();
        let mut list = control_list(6, 8);
        list.extend_from_slice(&[0x1c, 10, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0]);
        let refused = mode.select(&options(), SELECT_6, &list);
        assert_eq!(refused, Err(Sense::invalid_field_in_parameter_list(18, Some(3))));
        list[16] = 0x3f;
        let refused = mode.select(&options(), SELECT_6, &list);
        assert_eq!(refused, Err(Sense::invalid_field_in_parameter_list(16, Some(5))));
        list[16] = 0x4a;
        let refused = mode.select(&options(), SELECT_6, &list);
        assert_eq!(refused, Err(Sense::invalid_field_in_parameter_list(16, Some(6))));
        list[16] = 0x1c;
        list[17] = 9;
        let refused = mode.select(&options(), SELECT_6, &list);
        assert_eq!(refused, Err(Sense::invalid_field_in_parameter_list(17, None)));
        assert_eq!(mode, ModePages::default());
    }

    /// Goal: a list that ends inside something is refused. Method: every prefix of a good one.
    #[test]
    fn cut_lists() {
        let whole = {
            let mut list = vec![0, 0, 0, 8, 0, 0x20, 0, 0, 0, 0, 2, 0];
            list.extend_from_slice(&control_list(6, 0)[4..]);
            list
        };
        for cut in 0..=whole.len() {
            let mut mode = ModePages::default();
            let answer = mode.select(&options(), SELECT_6, &whole[..cut]);
            match cut {
                0 | 12 => assert_eq!(answer, Ok(false)),
                24 => assert_eq!(answer, Ok(true)),
                _ => assert_eq!(answer, Err(Sense::PARAMETER_LIST_LENGTH_ERROR), "{cut}"),
            }
        }
    }

    #[test]
    fn block_descriptors_say_what_is_so() {
        let mut mode = ModePages::default();
        let mut six = |descriptor: [u8; 8]| {
            let mut list = vec![0, 0, 0, 8];
            list.extend_from_slice(&descriptor);
            mode.select(&options(), SELECT_6, &list)
        };
        assert_eq!(six([0, 0x20, 0, 0, 0, 0, 2, 0]), Ok(false));
        assert_eq!(six([0, 0, 0, 0, 0, 0, 2, 0]), Ok(false));
        assert_eq!(six([0xff, 0xff, 0xff, 0xff, 0, 0, 2, 0]), Ok(false));
        let wrong = |at| Err(Sense::invalid_field_in_parameter_list(at, None));
        assert_eq!(six([0, 0x10, 0, 0, 0, 0, 2, 0]), wrong(4));
        assert_eq!(six([0, 0, 0, 0, 0, 0, 4, 0]), wrong(10));
        let mut mode = ModePages::default();
        let mut ten = |head: [u8; 8]| mode.select(&options(), SELECT_10, &head);
        assert_eq!(ten([0, 0, 0, 0, 0, 0, 0, 0]), Ok(false));
        assert_eq!(ten([0, 0, 0, 0, 1, 0, 0, 8]), wrong(6), "a short one, called long");
        assert_eq!(ten([0, 0, 0, 0, 0, 0, 1, 8]), wrong(6));
        assert_eq!(ten([0, 0, 1, 0, 0, 0, 0, 0]), wrong(2));
        let short = Err(Sense::PARAMETER_LIST_LENGTH_ERROR);
        assert_eq!(ten([0, 0, 0, 0, 1, 0, 0, 16]), short);
    }

    #[test]
    fn what_the_cdb_must_say() {
        let mut mode = ModePages::default();
        let save = SelectRequest { save: true, ..SELECT_6 };
        let refused = mode.select(&options(), save, &control_list(6, 0));
        assert_eq!(refused, Err(Sense::invalid_field_in_cdb(1, Some(0))));
        let vendor = SelectRequest { page_format: false, ..SELECT_6 };
        let refused = mode.select(&options(), vendor, &control_list(6, 0));
        assert_eq!(refused, Err(Sense::invalid_field_in_cdb(1, Some(4))));
    }

    proptest! {
        /// Goal: hostile lists never panic and change only what can change.
        /// Method: random bytes, also behind a good header with a good page code.
        #[test]
        fn any_list_is_judged(
            ten in any::<bool>(), code in prop::sample::select(vec![1_u8, 8, 10, 0x1c]),
            bytes in prop::collection::vec(any::<u8>(), 0..80),
        ) {
            let request = SelectRequest { ten, ..SELECT_6 };
            let mut list = vec![0; if ten { 8 } else { 4 }];
            list.extend_from_slice(&[code, if code == 8 { 18 } else { 10 }]);
            list.extend_from_slice(&bytes);
            for list in [&bytes, &list] {
                let mut mode = ModePages::default();
                match mode.select(&options(), request, list) {
                    Ok(changed) => prop_assert_eq!(changed, mode != ModePages::default()),
                    Err(_) => prop_assert_eq!(mode, ModePages::default()),
                }
            }
        }

        /// Any MODE SENSE is answered or refused, and says its own length.
        #[test]
        fn any_request_is_answered(
            ten in any::<bool>(), no_block_descriptor in any::<bool>(), long_lba in any::<bool>(),
            page_control in any::<u8>(), page in any::<u8>(), subpage in any::<u8>(),
        ) {
            let request =
                SenseRequest { ten, no_block_descriptor, long_lba, page_control, page, subpage };
            if let Ok(data) = ModePages::default().sense(&options(), request) {
                let length = if ten { usize::from(data[1]) + 2 } else { usize::from(data[0]) + 1 };
                prop_assert_eq!(length, data.len());
            }
        }
    }
}
