//! Mode pages as bytes, and valid and invalid MODE SELECT lists.

use super::*;
use crate::unit::UnitOptions;
use crate::vpd::tests::options;
use proptest::prelude::*;

const SIX: SenseRequest = SenseRequest {
    is_ten_byte: false,
    no_block_descriptor: false,
    long_lba: false,
    page_control: 0,
    page: ALL_PAGES,
    subpage: 0,
};
const SELECT_6: SelectRequest =
    SelectRequest { is_ten_byte: false, page_format: true, save: false };
const SELECT_10: SelectRequest = SelectRequest { is_ten_byte: true, ..SELECT_6 };

fn sense(request: SenseRequest) -> Vec<u8> {
    BlockModes::default().sense(&options(), request).unwrap()
}

/// Goal: the list for CONFORMANCE.md has every page, in order, with the bits that can change.
#[test]
fn the_pages_as_text() {
    let text = markdown();
    assert_eq!(text.lines().count(), BlockModes::PAGES.len() + 2);
    assert!(text.lines().all(|line| line.matches('|').count() == 6), "{text}");
    assert!(BlockModes::PAGES.is_sorted_by_key(|page| (page.code, page.subpage)));
    let control = "| 0a | Control | SPC-4 §7.5.8 | all | byte 2: `04`, byte 4: `08` |";
    assert!(text.lines().any(|line| line == control), "{text}");
}

#[test]
fn all_pages_6_bytes() {
    let data = sense(SIX);
    assert_eq!(data[..4], [67, 0, 0x10, 8]);
    assert_eq!(data[4..12], [0, 0x20, 0, 0, 0, 0, 2, 0]);
    assert_eq!(data[12..24], [1, 10, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0]);
    assert_eq!(data[24..44], [8, 18, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0]);
    assert_eq!(data[44..56], [10, 10, 0x22, 0x10, 0, 0, 0, 0, 0, 0, 0, 0]);
    assert_eq!(data[56..], [0x1c, 10, 8, 0, 0, 0, 0, 0, 0, 0, 0, 0]);
    assert_eq!(sense(SenseRequest { subpage: ALL_SUBPAGES, ..SIX }), data);
}

/// Goal: each I_T nexus has its own task set, which current and default values report; an initiator
/// cannot change that. SPC-4 §7.5.8, decision 087.
#[test]
fn mode_pages_report_one_task_set_per_nexus() {
    let tst = |page_control| sense(SenseRequest { page: 0x0a, page_control, ..SIX })[14] >> 5;
    assert_eq!([0, DEFAULT, CHANGEABLE].map(tst), [0b001, 0b001, 0b000]);
}

#[test]
fn mode_sense_10_bytes() {
    let ten = SenseRequest { is_ten_byte: true, page: 0x0a, ..SIX };
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

/// Goal: a capacity above 32 bits is all ones in the short form, and complete in the long form.
#[test]
fn large_units() {
    let large = UnitOptions { block_count: 0x1_0000_0000, ..options() };
    let data = BlockModes::default().sense(&large, SIX).unwrap();
    assert_eq!(data[4..12], [0xff, 0xff, 0xff, 0xff, 0, 0, 2, 0]);
    let long = SenseRequest { is_ten_byte: true, long_lba: true, ..SIX };
    let data = BlockModes::default().sense(&large, long).unwrap();
    assert_eq!(data[8..16], [0, 0, 0, 1, 0, 0, 0, 0]);
}

#[test]
fn mode_data_report_cache_and_write_protection() {
    let options = UnitOptions { write_back: true, read_only: true, ..options() };
    let data = BlockModes::default().sense(&options, SenseRequest { page: 8, ..SIX }).unwrap();
    assert_eq!(data[2], 0x90, "WP and DPOFUA");
    assert_eq!(data[12..15], [8, 18, 4]);
    let protection = BlockModes::default().write_protection(&options);
    assert_eq!(protection, Some(Sense::WRITE_PROTECTED));
}

/// Goal: each page works alone with each page control. Method: all page codes and page controls.
#[test]
fn pages_and_page_controls() {
    for page in 0..=ALL_PAGES {
        for page_control in 0..4 {
            let request = SenseRequest { page, page_control, ..SIX };
            let reply = BlockModes::default().sense(&options(), request);
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
    let refused = BlockModes::default().sense(&options(), subpage);
    assert_eq!(refused, Err(Sense::invalid_field_in_cdb(3, None)));
}

#[test]
fn changeable_bits() {
    let request = SenseRequest { page_control: CHANGEABLE, ..SIX };
    let data = sense(request);
    assert_eq!(data[26..44], [0; 18], "WCE is the operator's");
    assert_eq!(data[44..56], [10, 10, 4, 0, 8, 0, 0, 0, 0, 0, 0, 0]);
}

/// Builds a control page for MODE SELECT (6).
fn control_list(byte_2: u8, byte_4: u8) -> Vec<u8> {
    vec![0, 0, 0, 0, 10, 10, byte_2, 0x10, byte_4, 0, 0, 0, 0, 0, 0, 0]
}

/// Goal: changes take effect, are visible, and end with a reset.
#[test]
fn descriptor_sense_and_write_protect() {
    let mut mode = BlockModes::default();
    assert_eq!(mode.select(&options(), SELECT_6, &control_list(0x22, 0)), Ok(false));
    assert_eq!(mode.select(&options(), SELECT_6, &control_list(0x26, 0)), Ok(true));
    assert_eq!(mode.control().sense_format(), SenseFormat::Descriptor);
    assert_eq!(mode.write_protection(&options()), None);
    assert_eq!(mode.select(&options(), SELECT_6, &control_list(0x22, 8)), Ok(true));
    assert_eq!(mode.control().sense_format(), SenseFormat::Fixed);
    let software = Some(Sense::LOGICAL_UNIT_SOFTWARE_WRITE_PROTECTED);
    assert_eq!(mode.write_protection(&options()), software);
    let request = SenseRequest { page: 0xa, ..SIX };
    let current = mode.sense(&options(), request).unwrap();
    assert_eq!((current[2], current[16]), (0x90, 8));
    let default = SenseRequest { page_control: DEFAULT, ..request };
    let data = mode.sense(&options(), default).unwrap();
    assert_eq!((data[2], data[16]), (0x90, 0), "the header is current, the page is not");
    mode.reset();
    assert_eq!(mode, BlockModes::default());
}

/// Goal: MODE SELECT accepts the output of MODE SENSE. Method: all forms, all pages, sent back.
#[test]
fn sensed_mode_pages_can_be_selected() {
    for (is_ten_byte, long_lba, no_block_descriptor) in
        [(false, false, false), (false, false, true), (true, true, false), (true, false, true)]
    {
        let data = sense(SenseRequest { is_ten_byte, long_lba, no_block_descriptor, ..SIX });
        let request = SelectRequest { is_ten_byte, ..SELECT_6 };
        let mut mode = BlockModes::default();
        assert_eq!(mode.select(&options(), request, &data), Ok(false));
    }
}

#[test]
fn unchangeable_bits_are_refused_with_a_field_pointer() {
    let mut mode = BlockModes::default();
    let tst = (6, 0x02, 6, 5);
    let gltsd = (6, 0x20, 6, 1);
    for (at, value, byte, bit) in [tst, gltsd, (7, 0x90, 7, 7), (8, 0x0c, 8, 2), (15, 1, 15, 0)] {
        // The list also has a changeable value, which must not be applied.
        let mut list = control_list(0x26, 8);
        list[at] = value;
        let refused = mode.select(&options(), SELECT_6, &list);
        assert_eq!(refused, Err(Sense::invalid_field_in_parameter_list(byte, Some(bit))));
    }
    let cache = [0, 0, 0, 0, 8, 18, 4, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0];
    let refused = mode.select(&options(), SELECT_6, &cache);
    assert_eq!(refused, Err(Sense::invalid_field_in_parameter_list(6, Some(2))));
    assert_eq!(mode, BlockModes::default());
}

/// Goal: a list is applied completely or not at all: a valid page before an invalid one has no
/// effect.
#[test]
fn an_invalid_page_refuses_the_whole_list() {
    let mut mode = BlockModes::default();
    let mut list = control_list(0x26, 8);
    list.extend_from_slice(&[0x1c, 10, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0]);
    let refused = mode.select(&options(), SELECT_6, &list);
    assert_eq!(refused, Err(Sense::invalid_field_in_parameter_list(18, Some(3))));
    list[16] = 0x3f;
    let refused = mode.select(&options(), SELECT_6, &list);
    assert_eq!(refused, Err(Sense::invalid_field_in_parameter_list(16, Some(5))));
    list[16] = 0x4a;
    let refused = mode.select(&options(), SELECT_6, &list);
    assert_eq!(refused, Err(Sense::invalid_field_in_parameter_list(17, None)), "subpage 10");
    list[17] = 0;
    let refused = mode.select(&options(), SELECT_6, &list);
    assert_eq!(refused, Err(Sense::invalid_field_in_parameter_list(16, Some(6))));
    list[16] = 0x1c;
    list[17] = 9;
    let refused = mode.select(&options(), SELECT_6, &list);
    assert_eq!(refused, Err(Sense::invalid_field_in_parameter_list(17, None)));
    assert_eq!(mode, BlockModes::default());
}

/// Goal: a truncated list is refused. Method: every prefix of a valid one.
#[test]
fn truncated_lists_are_refused() {
    let whole = {
        let mut list = vec![0, 0, 0, 8, 0, 0x20, 0, 0, 0, 0, 2, 0];
        list.extend_from_slice(&control_list(0x26, 0)[4..]);
        list
    };
    for cut in 0..=whole.len() {
        let mut mode = BlockModes::default();
        let answer = mode.select(&options(), SELECT_6, &whole[..cut]);
        match cut {
            0 | 12 => assert_eq!(answer, Ok(false)),
            24 => assert_eq!(answer, Ok(true)),
            _ => assert_eq!(answer, Err(Sense::PARAMETER_LIST_LENGTH_ERROR), "{cut}"),
        }
    }
}

#[test]
fn block_descriptors_cannot_change_the_size() {
    let mut mode = BlockModes::default();
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
    let mut mode = BlockModes::default();
    let mut ten = |head: [u8; 8]| mode.select(&options(), SELECT_10, &head);
    assert_eq!(ten([0, 0, 0, 0, 0, 0, 0, 0]), Ok(false));
    assert_eq!(ten([0, 0, 0, 0, 1, 0, 0, 8]), wrong(6), "a short one, called long");
    assert_eq!(ten([0, 0, 0, 0, 0, 0, 1, 8]), wrong(6));
    assert_eq!(ten([0, 0, 1, 0, 0, 0, 0, 0]), wrong(2));
    let short = Err(Sense::PARAMETER_LIST_LENGTH_ERROR);
    assert_eq!(ten([0, 0, 0, 0, 1, 0, 0, 16]), short);
}

#[test]
fn mode_select_requires_pf_and_refuses_sp() {
    let mut mode = BlockModes::default();
    let save = SelectRequest { save: true, ..SELECT_6 };
    let refused = mode.select(&options(), save, &control_list(0x26, 0));
    assert_eq!(refused, Err(Sense::invalid_field_in_cdb(1, Some(0))));
    let vendor = SelectRequest { page_format: false, ..SELECT_6 };
    let refused = mode.select(&options(), vendor, &control_list(0x26, 0));
    assert_eq!(refused, Err(Sense::invalid_field_in_cdb(1, Some(4))));
}

proptest! {
    /// Goal: hostile lists never cause a panic and change only changeable bits.
    /// Method: random bytes, also after a valid header with a valid page code.
    #[test]
    fn any_list_is_handled(
        is_ten_byte in any::<bool>(), code in prop::sample::select(vec![1_u8, 8, 10, 0x1c]),
        bytes in prop::collection::vec(any::<u8>(), 0..80),
    ) {
        let request = SelectRequest { is_ten_byte, ..SELECT_6 };
        let mut list = vec![0; if is_ten_byte { 8 } else { 4 }];
        list.extend_from_slice(&[code, if code == 8 { 18 } else { 10 }]);
        list.extend_from_slice(&bytes);
        for list in [&bytes, &list] {
            let mut mode = BlockModes::default();
            match mode.select(&options(), request, list) {
                Ok(changed) => prop_assert_eq!(changed, mode != BlockModes::default()),
                Err(_) => prop_assert_eq!(mode, BlockModes::default()),
            }
        }
    }

    /// Goal: any MODE SENSE is answered or refused, and the answer contains its own length.
    #[test]
    fn any_mode_sense_reports_its_own_length(
        is_ten_byte in any::<bool>(), no_block_descriptor in any::<bool>(),
        long_lba in any::<bool>(), page_control in any::<u8>(), page in any::<u8>(),
        subpage in any::<u8>(),
    ) {
        let request = SenseRequest {
            is_ten_byte,
            no_block_descriptor,
            long_lba,
            page_control,
            page,
            subpage,
        };
        if let Ok(data) = BlockModes::default().sense(&options(), request) {
            let length = match is_ten_byte {
                true => usize::from(data[1]) + 2,
                false => usize::from(data[0]) + 1,
            };
            prop_assert_eq!(length, data.len());
        }
    }
}
