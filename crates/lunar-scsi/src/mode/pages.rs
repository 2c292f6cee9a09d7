//! A mode page, its encoding and its checks; the pages that all types of units share. SPC-4 §7.5.

use super::{
    ALL_PAGES, ALL_SUBPAGES, CHANGEABLE, DEFAULT, ModeParameters, SAVED, SenseRequest, wrong,
};
use crate::commands::Offered;
use crate::sense::Sense;
use alloc::format;
use alloc::string::String;
use alloc::vec;
use alloc::vec::Vec;

/// One page of the mode parameters `M`.
#[derive(Debug)]
pub struct ModePage<M: ModeParameters> {
    /// PAGE CODE.
    pub code: u8,
    /// SUBPAGE CODE; 0: the page has the short header, without a subpage code.
    pub subpage: u8,
    /// Name in the standard.
    pub name: &'static str,
    /// Section of the standard.
    pub standard: &'static str,
    /// Units that support it.
    pub offered: Offered,
    /// Ones for changeable bits after the length; may be shorter than the page.
    pub changeable: &'static [u8],
    /// Units on which these bits are changeable.
    pub changes: Offered,
    /// Returns the bytes after the length.
    pub current: fn(&M, &M::Options) -> Vec<u8>,
    /// Applies bytes whose unchangeable bits are unchanged.
    pub apply: fn(&mut M, &M::Options, &[u8]),
}

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

/// Bit in the first byte of a page: a subpage code and a longer length follow.
const SPF: u8 = 0x40;

impl<M: ModeParameters> ModePage<M> {
    /// 0Ah, control. SPC-4 §7.5.8.
    pub const CONTROL: Self = Self {
        code: 0x0a,
        subpage: 0,
        name: "Control",
        standard: "SPC-4 §7.5.8",
        offered: Offered::Always,
        changeable: &[D_SENSE, 0, SWP],
        changes: Offered::Always,
        current: control,
        apply: apply_control,
    };

    /// 1Ch, informational exceptions control. SPC-4 §7.5.13.
    pub const INFORMATIONAL_EXCEPTIONS: Self = Self {
        code: 0x1c,
        subpage: 0,
        name: "Informational Exceptions Control",
        standard: "SPC-4 §7.5.13",
        offered: Offered::Always,
        changeable: &[],
        changes: Offered::Always,
        current: informational_exceptions,
        apply: nothing,
    };

    const fn head_bytes(&self) -> usize {
        if self.subpage == 0 { 2 } else { 4 }
    }

    /// Encodes code and length. SPC-4 §7.5.7.
    fn head(&self, body_bytes: usize) -> Vec<u8> {
        if self.subpage == 0 {
            return vec![self.code, body_bytes as u8]; // pages are short
        }
        let [high, low] = (body_bytes as u16).to_be_bytes();
        vec![self.code | SPF, self.subpage, high, low]
    }

    /// Checks the length in the header of a page in a parameter list; returns the offset of its
    /// body. The error is the offset of the wrong byte, or `None` if the header is truncated.
    fn check_head(&self, list: &[u8], body_bytes: usize) -> Result<usize, Option<usize>> {
        let bytes = self.head_bytes();
        let length_at = if bytes == 2 { 1 } else { 2 };
        let length = list.get(length_at..bytes).ok_or(None)?;
        let length = length.iter().fold(0, |length, byte| (length << 8) | usize::from(*byte));
        if length == body_bytes { Ok(bytes) } else { Err(Some(length_at)) }
    }

    /// The changeable mask, as long as the page.
    fn mask(&self, options: &M::Options, length: usize) -> Vec<u8> {
        let mut mask = Vec::new();
        if M::features(options).include(self.changes) {
            mask.extend_from_slice(self.changeable);
        }
        mask.resize(length, 0);
        mask
    }

    /// Checks that bits outside the mask are unchanged; `at` is the offset of `body` in the
    /// parameter list.
    fn check(
        &self,
        options: &M::Options,
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

/// Encodes the requested pages.
pub(super) fn sense<M: ModeParameters>(
    modes: &M,
    options: &M::Options,
    request: SenseRequest,
) -> Result<Vec<u8>, Sense> {
    let all = request.page == ALL_PAGES;
    let features = M::features(options);
    let of_code =
        |page: &&ModePage<M>| features.include(page.offered) && (all || page.code == request.page);
    if !M::PAGES.iter().any(|page| of_code(&page)) {
        return Err(Sense::invalid_field_in_cdb(2, Some(5)));
    }
    let is_requested = |page: &&ModePage<M>| {
        of_code(page) && (request.subpage == ALL_SUBPAGES || page.subpage == request.subpage)
    };
    if !M::PAGES.iter().any(|page| is_requested(&page))
        || (all && !matches!(request.subpage, 0 | 0xff))
    {
        return Err(Sense::invalid_field_in_cdb(3, None));
    }
    if request.page_control == SAVED {
        return Err(Sense::SAVING_PARAMETERS_NOT_SUPPORTED);
    }
    let mut data = Vec::new();
    for page in M::PAGES.iter().filter(is_requested) {
        let current = page.current;
        let body = match request.page_control {
            CHANGEABLE => page.mask(options, current(modes, options).len()),
            DEFAULT => current(&M::default(), options),
            _ => current(modes, options),
        };
        data.extend(page.head(body.len()));
        data.extend(body);
    }
    Ok(data)
}

/// Returns the parameters after the pages of a list from `at` on.
pub(super) fn select<M: ModeParameters>(
    modes: &M,
    options: &M::Options,
    list: &[u8],
    mut at: usize,
) -> Result<M, Sense> {
    let mut changed = *modes;
    while at < list.len() {
        let page = find_page::<M>(options, list, at)?;
        let current = (page.current)(&changed, options);
        at += page.check_head(&list[at..], current.len()).map_err(|found| match found {
            Some(in_head) => wrong(at + in_head, None),
            None => Sense::PARAMETER_LIST_LENGTH_ERROR,
        })?;
        let body = list.get(at..at + current.len()).ok_or(Sense::PARAMETER_LIST_LENGTH_ERROR)?;
        page.check(options, at, &current, body)?;
        (page.apply)(&mut changed, options, body);
        at += body.len();
    }
    Ok(changed)
}

/// Returns the page at `at` of a list; PS is reserved there and ignored.
fn find_page<M: ModeParameters>(
    options: &M::Options,
    list: &[u8],
    at: usize,
) -> Result<&'static ModePage<M>, Sense> {
    let first = list.get(at).ok_or(Sense::PARAMETER_LIST_LENGTH_ERROR)?;
    let subpage = match first & SPF {
        0 => 0,
        _ => *list.get(at + 1).ok_or(Sense::PARAMETER_LIST_LENGTH_ERROR)?,
    };
    if first & SPF != 0 && subpage == 0 {
        return Err(wrong(at, Some(6))); // subpage 0 has the short header
    }
    let features = M::features(options);
    let mut of_code = M::PAGES
        .iter()
        .filter(|page| page.code == first & 0x3f && features.include(page.offered))
        .peekable();
    if of_code.peek().is_none() {
        return Err(wrong(at, Some(5)));
    }
    of_code.find(|page| page.subpage == subpage).ok_or(wrong(at + 1, None))
}

/// Formats pages as Markdown, with one row per page and the bits that MODE SELECT changes.
pub(super) fn markdown<M: ModeParameters>() -> String {
    let head = "| Code | Page | Standard | Units | Changeable |\n|---|---|---|---|---|\n";
    let mut text = String::from(head);
    for page in M::PAGES {
        let ModePage { code, subpage, offered, name, standard, changeable, .. } = page;
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

/// 0Ah. GLTSD: there are no log parameters to save. TST: decision 087.
fn control<M: ModeParameters>(modes: &M, _: &M::Options) -> Vec<u8> {
    let control = modes.control();
    let mut body = vec![0; 10];
    body[0] = TST_PER_NEXUS | GLTSD | if control.descriptor_sense { D_SENSE } else { 0 };
    body[1] = REORDERED;
    body[2] = if control.software_write_protect { SWP } else { 0 };
    body
}

fn apply_control<M: ModeParameters>(modes: &mut M, _: &M::Options, body: &[u8]) {
    let control = modes.control_mut();
    control.descriptor_sense = body[0] & D_SENSE != 0;
    control.software_write_protect = body[2] & SWP != 0;
}

/// 1Ch.
fn informational_exceptions<M: ModeParameters>(_: &M, _: &M::Options) -> Vec<u8> {
    let mut body = vec![0; 10];
    body[0] = DEXCPT;
    body
}

/// Applies a page without changeable bits.
pub(super) fn nothing<M: ModeParameters>(_: &mut M, _: &M::Options, _: &[u8]) {}
