//! Log pages for LOG SENSE. SPC-4 §7.3, SBC-3 §6.3.
//!
//! No log parameter has a threshold or is saved, so there is no LOG SELECT: the pages show the
//! current state.

use crate::commands::Features;
use crate::commands::Offered::{self, Always, Threshold};
use crate::primary::TargetPort;
use crate::sense::Sense;
use crate::unit::SetCounts;
use alloc::format;
use alloc::string::String;
use alloc::vec::Vec;

/// The fields of a LOG SENSE.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct LogRequest {
    /// PC: cumulative or threshold values, current or default.
    pub page_control: u8,
    /// PAGE CODE.
    pub page: u8,
    /// SUBPAGE CODE.
    pub subpage: u8,
    /// PARAMETER POINTER: the first parameter to return.
    pub parameter_pointer: u16,
}

/// The data for the pages.
#[derive(Clone, Copy, Debug)]
pub struct LogSource<'a> {
    /// Optional features of the unit.
    pub features: Features,
    /// All ports of the target.
    pub ports: &'a [TargetPort],
    /// Used and free space when last measured.
    pub resources: Option<SetCounts>,
}

/// One page: its codes, its name and section in the standard, the units that support it, and the
/// contents after its header.
#[derive(Debug)]
pub struct LogPage {
    code: u8,
    subpage: u8,
    name: &'static str,
    standard: &'static str,
    offered: Offered,
    body: Body,
}

#[derive(Debug)]
enum Body {
    /// A list of page codes.
    Codes(fn(&[LogPage], Features) -> Vec<u8>),
    /// Log parameters, in ascending order of parameter codes.
    Parameters(fn(&LogSource<'_>) -> Vec<LogParameter>),
}

/// One log parameter.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct LogParameter {
    /// PARAMETER CODE.
    pub code: u16,
    /// The bytes after the header.
    pub bytes: Vec<u8>,
}

const ALL_SUBPAGES: u8 = 0xff;

/// All pages of block units, in ascending order; the source of both lists of pages and of
/// CONFORMANCE.md.
pub const BLOCK_PAGES: &[LogPage] = &[
    LogPage::SUPPORTED_PAGES,
    LogPage::SUPPORTED_SUBPAGES,
    LogPage::new(
        (0x0c, 0),
        "Logical Block Provisioning",
        "SBC-3 §6.3",
        Threshold,
        logical_block_provisioning,
    ),
    LogPage::PROTOCOL_SPECIFIC_PORT,
];

impl LogPage {
    /// 00h: each page code once. SPC-4 §7.3.
    pub const SUPPORTED_PAGES: Self = Self {
        code: 0x00,
        subpage: 0x00,
        name: "Supported Log Pages",
        standard: "SPC-4 §7.3",
        offered: Always,
        body: Body::Codes(supported_pages),
    };

    /// 00h/FFh: page code and subpage code of each. SPC-4 §7.3.
    pub const SUPPORTED_SUBPAGES: Self = Self {
        subpage: ALL_SUBPAGES,
        name: "Supported Log Pages and Subpages",
        body: Body::Codes(supported_subpages),
        ..Self::SUPPORTED_PAGES
    };

    /// 18h: each port by its relative identifier. SPC-4 §7.3.
    pub const PROTOCOL_SPECIFIC_PORT: Self = Self::new(
        (0x18, 0),
        "Protocol Specific Port",
        "SPC-4 §7.3",
        Always,
        protocol_specific_ports,
    );

    /// Creates a page of parameters: page code and subpage code, name, section of the standard,
    /// units that support it, contents.
    pub const fn new(
        (code, subpage): (u8, u8),
        name: &'static str,
        standard: &'static str,
        offered: Offered,
        parameters: fn(&LogSource<'_>) -> Vec<LogParameter>,
    ) -> Self {
        Self { code, subpage, name, standard, offered, body: Body::Parameters(parameters) }
    }
}

/// Formats the pages as Markdown for CONFORMANCE.md, with one row per page.
pub fn markdown() -> String {
    let mut text = String::from("| Code | Page | Standard | Units |\n|---|---|---|---|\n");
    for LogPage { code, subpage, name, standard, offered, .. } in BLOCK_PAGES {
        let subpage = if *subpage == 0 { String::new() } else { format!("/{subpage:02x}") };
        text.push_str(&format!("| {code:02x}{subpage} | {name} | {standard} | {offered} |\n"));
    }
    text
}

/// Builds a whole page of `pages`; the command truncates it to its allocation length.
///
/// # Errors
/// INVALID FIELD IN CDB for a missing page, kind of values, or first parameter.
pub fn page(
    pages: &[LogPage],
    source: &LogSource<'_>,
    request: LogRequest,
) -> Result<Vec<u8>, Sense> {
    const CUMULATIVE: u8 = 1;
    let LogRequest { page_control, page, subpage, parameter_pointer } = request;
    let same_code = offered(pages, source.features).filter(|known| known.code == page);
    let Some(found) = same_code.clone().find(|known| known.subpage == subpage) else {
        let is_known_code = same_code.count() > 0;
        let at = if is_known_code { (3, None) } else { (2, Some(5)) };
        return Err(Sense::invalid_field_in_cdb(at.0, at.1));
    };
    let body = match found.body {
        Body::Codes(codes) => {
            if parameter_pointer != 0 {
                return Err(Sense::invalid_field_in_cdb(5, None));
            }
            codes(pages, source.features)
        }
        Body::Parameters(_) if page_control != CUMULATIVE => {
            return Err(Sense::invalid_field_in_cdb(2, Some(7)));
        }
        Body::Parameters(parameters) => encode(&parameters(source), parameter_pointer)?,
    };
    Ok(with_header(found, &body))
}

fn with_header(page: &LogPage, body: &[u8]) -> Vec<u8> {
    /// DS: the parameters are not saved.
    const DISABLE_SAVE: u8 = 0x80;
    /// SPF: byte 1 is a subpage code.
    const SUBPAGE_FORMAT: u8 = 0x40;
    let mut first = page.code;
    first |= if matches!(page.body, Body::Parameters(_)) { DISABLE_SAVE } else { 0 };
    first |= if page.subpage != 0 { SUBPAGE_FORMAT } else { 0 };
    // The longest page has eight bytes per port, and a target has few ports.
    let [high, low] = u16::try_from(body.len()).unwrap_or(u16::MAX).to_be_bytes();
    let mut data = alloc::vec![first, page.subpage, high, low];
    data.extend_from_slice(body);
    data
}

/// Encodes the parameters from `first` on; there must be at least one.
fn encode(parameters: &[LogParameter], first: u16) -> Result<Vec<u8>, Sense> {
    /// FORMAT AND LINKING 11b: a list in binary.
    const BINARY_LIST: u8 = 0x03;
    let from = parameters.iter().position(|parameter| parameter.code >= first);
    let listed = match from {
        Some(from) => &parameters[from..],
        None if first == 0 => &[],
        None => return Err(Sense::invalid_field_in_cdb(5, None)),
    };
    let mut body = Vec::new();
    for LogParameter { code, bytes } in listed {
        body.extend_from_slice(&code.to_be_bytes());
        body.extend_from_slice(&[BINARY_LIST, bytes.len() as u8]);
        body.extend_from_slice(bytes);
    }
    Ok(body)
}

fn offered(pages: &[LogPage], features: Features) -> impl Iterator<Item = &LogPage> + Clone {
    pages.iter().filter(move |page| features.include(page.offered))
}

/// 00h.
fn supported_pages(pages: &[LogPage], features: Features) -> Vec<u8> {
    let mut codes: Vec<u8> = offered(pages, features).map(|page| page.code).collect();
    codes.dedup();
    codes
}

/// 00h/FFh.
fn supported_subpages(pages: &[LogPage], features: Features) -> Vec<u8> {
    offered(pages, features).flat_map(|page| [page.code, page.subpage]).collect()
}

/// 0Ch: available and used space, in threshold sets of VPD page B2h; empty before the first
/// measurement. Available space is shared with other data on the same file system.
fn logical_block_provisioning(source: &LogSource<'_>) -> Vec<LogParameter> {
    const AVAILABLE: u16 = 0x0001;
    const USED: u16 = 0x0002;
    /// SCOPE 10b: "not dedicated to any logical unit".
    const SHARED: u8 = 0x02;
    /// SCOPE 01b: "dedicated to the logical unit".
    const OWN: u8 = 0x01;
    let Some(SetCounts { used, available }) = source.resources else { return Vec::new() };
    let parameter = |code, count: u32, scope| {
        let mut bytes = Vec::from(count.to_be_bytes());
        bytes.extend_from_slice(&[scope, 0, 0, 0]);
        LogParameter { code, bytes }
    };
    alloc::vec![parameter(AVAILABLE, available, SHARED), parameter(USED, used, OWN)]
}

/// 18h: each port by its relative identifier, with the protocol iSCSI. No standard defines more for
/// an iSCSI port.
fn protocol_specific_ports(source: &LogSource<'_>) -> Vec<LogParameter> {
    const PROTOCOL_ISCSI: u8 = 0x05;
    let ports = source.ports.iter();
    ports
        .map(|port| LogParameter {
            code: port.relative_id,
            bytes: alloc::vec![PROTOCOL_ISCSI, 0, 0, 0],
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::unit::UnitOptions;
    use crate::vpd::tests::{options, port};

    const CUMULATIVE: LogRequest =
        LogRequest { page_control: 1, page: 0, subpage: 0, parameter_pointer: 0 };

    /// Goal: both lists contain exactly the existing pages. Method: request every page and subpage.
    #[test]
    fn lists_contain_exactly_the_existing_pages() {
        let threshold = crate::unit::Threshold { set_exponent: 11, available_sets: 1 };
        let options = UnitOptions { threshold: Some(threshold), ..options() };
        let ports = [port()];
        let source = LogSource { features: options.features(), ports: &ports, resources: None };
        let list =
            |subpage| page(BLOCK_PAGES, &source, LogRequest { subpage, ..CUMULATIVE }).unwrap();
        let (mut pages, mut subpages) = (Vec::new(), Vec::new());
        for code in 0..0x40 {
            for subpage in 0..=255 {
                let request = LogRequest { page: code, subpage, ..CUMULATIVE };
                if let Ok(data) = page(BLOCK_PAGES, &source, request) {
                    assert_eq!((data[0] & 0x3f, data[1]), (code, subpage));
                    assert_eq!(data[0] & 0x40 != 0, subpage != 0);
                    assert_eq!(usize::from(data[2]) * 256 + usize::from(data[3]) + 4, data.len());
                    pages.push(code);
                    subpages.extend_from_slice(&[code, subpage]);
                }
            }
        }
        pages.dedup();
        assert_eq!(list(0)[4..], pages);
        assert_eq!(list(ALL_SUBPAGES)[4..], subpages);
        assert_eq!(markdown().lines().count(), BLOCK_PAGES.len() + 2);
    }

    #[test]
    fn an_unsupported_page_is_refused_with_a_field_pointer() {
        let (options, ports) = (options(), [port()]);
        let source = LogSource { features: options.features(), ports: &ports, resources: None };
        let refused = |request| page(BLOCK_PAGES, &source, request).unwrap_err();
        let wrong = LogRequest { page: 0x0d, ..CUMULATIVE };
        assert_eq!(refused(wrong), Sense::invalid_field_in_cdb(2, Some(5)));
        let wrong = LogRequest { page: 0x18, subpage: 1, ..CUMULATIVE };
        assert_eq!(refused(wrong), Sense::invalid_field_in_cdb(3, None));
        let wrong = LogRequest { page: 0x18, page_control: 0, ..CUMULATIVE };
        assert_eq!(refused(wrong), Sense::invalid_field_in_cdb(2, Some(7)));
        let wrong = LogRequest { parameter_pointer: 1, ..CUMULATIVE };
        assert_eq!(refused(wrong), Sense::invalid_field_in_cdb(5, None));
    }

    #[test]
    fn parameters_from_the_pointer_on() {
        let options = options();
        let mut ports = [port(), port()];
        ports[0].relative_id = 2;
        ports[1].relative_id = 0x0105;
        let source = LogSource { features: options.features(), ports: &ports, resources: None };
        let request =
            |parameter_pointer| LogRequest { page: 0x18, parameter_pointer, ..CUMULATIVE };
        let second = [1, 5, 3, 4, 5, 0, 0, 0];
        let both = [&[0x98, 0, 0, 16, 0, 2, 3, 4, 5, 0, 0, 0][..], &second].concat();
        for pointer in 0..=2 {
            assert_eq!(page(BLOCK_PAGES, &source, request(pointer)).unwrap(), both);
        }
        for pointer in [3, 0x0105] {
            assert_eq!(page(BLOCK_PAGES, &source, request(pointer)).unwrap()[4..], second);
        }
        let sense = page(BLOCK_PAGES, &source, request(0x0106)).unwrap_err();
        assert_eq!(sense, Sense::invalid_field_in_cdb(5, None));
    }
}
