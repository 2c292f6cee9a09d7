//! The threshold of free space: VPD page B2h, mode pages 01h and 1Ch/02h, the unit attention.

use crate::unit::support::{A, B, Rig, options};
use lunar_scsi::plan::{Plan, Refusal};
use lunar_scsi::sense::Sense;
use lunar_scsi::unit::{Resources, SetCounts, Threshold, UnitOptions};

const SET: u64 = 1 << 20;

fn rig() -> Rig {
    let threshold = Some(Threshold { set_exponent: 11, available_sets: 0x0102 });
    Rig::new(UnitOptions { threshold, ..options() })
}

fn observe(rig: &mut Rig, available_sets: u64) -> bool {
    let available_bytes = available_sets * SET;
    rig.unit.observe_free_space(Resources { used_bytes: 5 * SET, available_bytes })
}

fn mode_sense(page_control: u8, page: u8, subpage: u8) -> [u8; 6] {
    [0x1a, 0x08, page_control << 6 | page, subpage, 255, 0]
}

/// Sends MODE SELECT (6) of one page.
fn mode_select(rig: &mut Rig, page: &[u8]) -> Result<Plan, Refusal> {
    let list = [&[0; 4], page].concat();
    rig.send(&[0x15, 0x10, 0, 0, list.len() as u8, 0], &list)
}

const DEFAULT: [u8; 24] =
    [0x5c, 2, 0, 20, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0x80, 1, 0, 0, 0, 0, 1, 2];

fn with_count(enabled: bool, count: u32) -> [u8; 24] {
    let mut page = DEFAULT;
    page[16] = if enabled { 0x80 } else { 0 };
    page[20..].copy_from_slice(&count.to_be_bytes());
    page
}

/// Goal: log page 0Ch reports the space of units with a threshold, after the first measurement.
/// SBC-3 §6.3.
#[test]
fn the_log_page_reports_free_space() {
    let log = |parameter| [0x4d, 0, 0x4c, 0, 0, 0, parameter, 0, 255, 0];
    let refused = Rig::thin().sense(&log(0));
    assert_eq!(refused, Sense::invalid_field_in_cdb(2, Some(5)), "no threshold, no page");
    let mut rig = rig();
    assert_eq!(rig.reply(&log(0)), [0x8c, 0, 0, 0], "not measured yet");
    observe(&mut rig, 0x0304);
    let used = [0, 2, 3, 8, 0, 0, 0, 5, 1, 0, 0, 0];
    let both = [&[0x8c, 0, 0, 24, 0, 1, 3, 8, 0, 0, 3, 4, 2, 0, 0, 0][..], &used].concat();
    assert_eq!(rig.reply(&log(0)), both);
    assert_eq!(rig.reply(&log(1)), both);
    assert_eq!(rig.reply(&log(2))[4..], used);
    assert_eq!(rig.sense(&log(3)), Sense::invalid_field_in_cdb(5, None));
    let pages = rig.reply(&[0x4d, 0, 0, 0, 0, 0, 0, 0, 255, 0]);
    assert_eq!(pages[4..], [0x00, 0x0c, 0x18]);
}

#[test]
fn the_page_as_bytes() {
    let mut rig = rig();
    for page_control in [0, 2] {
        let data = rig.reply(&mode_sense(page_control, 0x1c, 2));
        assert_eq!(data[4..], DEFAULT);
    }
    let mut changeable = [0; 24];
    changeable[..4].copy_from_slice(&DEFAULT[..4]);
    changeable[16] = 0x80;
    changeable[20..].fill(0xff);
    assert_eq!(rig.reply(&mode_sense(1, 0x1c, 2))[4..], changeable);
    let saved = rig.sense(&mode_sense(3, 0x1c, 2));
    assert_eq!(saved, Sense::SAVING_PARAMETERS_NOT_SUPPORTED);
}

/// Goal: each page code and subpage code returns the right pages. SPC-4 §6.13.
#[test]
fn page_and_subpage_codes() {
    let mut rig = rig();
    let exceptions = rig.reply(&mode_sense(0, 0x1c, 0));
    assert_eq!(exceptions.len(), 4 + 12);
    let both = rig.reply(&mode_sense(0, 0x1c, 0xff));
    assert_eq!(both[4..], [&exceptions[4..], &DEFAULT].concat());
    let all = rig.reply(&mode_sense(0, 0x3f, 0));
    let all_of_all = rig.reply(&mode_sense(0, 0x3f, 0xff));
    assert_eq!(all_of_all[4..], [&all[4..], &DEFAULT].concat());
    for (page, subpage) in [(0x1c, 1), (0x0a, 2), (0x3f, 2)] {
        let sense = rig.sense(&mode_sense(0, page, subpage));
        assert_eq!(sense, Sense::invalid_field_in_cdb(3, None));
    }
    let sense = Rig::thin().sense(&mode_sense(0, 0x1c, 2));
    assert_eq!(sense, Sense::invalid_field_in_cdb(3, None), "without a threshold no such page");
}

/// Goal: each nexus is informed once per crossing, with the offset of the descriptor.
/// SBC-3 §4.7.3.7.
#[test]
fn each_nexus_is_informed_once_per_crossing() {
    let mut rig = rig();
    assert!(!observe(&mut rig, 0x0103));
    assert!(observe(&mut rig, 0x0101));
    assert!(!observe(&mut rig, 0x0100));
    let reached = Sense::THIN_PROVISIONING_SOFT_THRESHOLD_REACHED.with_information(16);
    for nexus in [A, B] {
        assert_eq!(rig.refusal(nexus, &[0; 6]), reached);
        assert!(rig.run(nexus, &[0; 6]).is_ok());
    }
    assert!(!observe(&mut rig, 0x0200));
    assert!(observe(&mut rig, 0));
    assert_eq!(rig.refusal(B, &[0; 6]), reached, "space became available and was used again");
    let counts = rig.unit.resources();
    assert_eq!(counts, Some(SetCounts { used: 5, available: 0 }));
}

#[test]
fn lbpere_enables_threshold_reports() {
    let mut rig = rig();
    let page = rig.reply(&mode_sense(0, 1, 0))[4..].to_vec();
    assert_eq!(page, [1, 10, 0, 0, 0, 0, 0, 0x80, 0, 0, 0, 0]);
    let mut silent = page;
    silent[7] = 0;
    assert_eq!(mode_select(&mut rig, &silent), Ok(Plan::Reply(vec![])));
    assert_eq!(rig.refusal(B, &[0; 6]), Sense::MODE_PARAMETERS_CHANGED);
    assert!(observe(&mut rig, 0));
    for nexus in [A, B] {
        assert!(rig.run(nexus, &[0; 6]).is_ok());
    }
    let refused = mode_select(&mut Rig::thin(), &[1, 10, 0, 0, 0, 0, 0, 0x80, 0, 0, 0, 0]);
    let wrong = Sense::invalid_field_in_parameter_list(4 + 7, Some(7));
    assert_eq!(refused, Err(wrong.into()), "without a threshold there is no unit attention");
}

#[test]
fn an_initiator_may_move_the_threshold() {
    let mut rig = rig();
    assert_eq!(mode_select(&mut rig, &DEFAULT), Ok(Plan::Reply(vec![])));
    assert!(rig.run(B, &[0; 6]).is_ok(), "nothing has changed");
    assert!(observe(&mut rig, 20));
    rig.refusal(A, &[0; 6]);
    rig.refusal(B, &[0; 6]);
    assert!(mode_select(&mut rig, &with_count(true, 10)).is_ok());
    assert_eq!(rig.refusal(B, &[0; 6]), Sense::MODE_PARAMETERS_CHANGED);
    assert_eq!(rig.reply(&mode_sense(0, 0x1c, 2))[4..], with_count(true, 10));
    assert_eq!(rig.reply(&mode_sense(2, 0x1c, 2))[4..], DEFAULT);
    assert!(!observe(&mut rig, 20));
    assert!(observe(&mut rig, 9), "the new threshold is reported as well");
    rig.refusal(A, &[0; 6]);
    assert!(mode_select(&mut rig, &with_count(false, 10)).is_ok());
    assert!(!observe(&mut rig, 20) && !observe(&mut rig, 0), "it is off");
    rig.unit.reset(None);
    assert_eq!(rig.refusal(A, &[0; 6]), Sense::RESET_BY_FUNCTION);
    assert_eq!(rig.reply(&mode_sense(0, 0x1c, 2))[4..], DEFAULT);
}

#[test]
fn unchangeable_provisioning_bits_are_refused() {
    for (at, value, bit) in [(4, 1, 0), (16, 0x88, 3), (16, 0x81, 0), (17, 2, 1), (18, 1, 0)] {
        let mut page = with_count(true, 10);
        page[at] = value;
        let wrong = Sense::invalid_field_in_parameter_list(4 + at as u16, Some(bit));
        // THRESHOLD RESOURCE 2 differs from 1 in two bits; the pointer names the upper one.
        assert_eq!(mode_select(&mut rig(), &page), Err(wrong.into()), "byte {at}");
    }
    let mut long = DEFAULT.to_vec();
    long[3] = 21;
    long.push(0);
    let wrong = Sense::invalid_field_in_parameter_list(4 + 2, None);
    assert_eq!(mode_select(&mut rig(), &long), Err(wrong.into()));
    for cut in 1..DEFAULT.len() {
        let refused = mode_select(&mut rig(), &DEFAULT[..cut]);
        assert_eq!(refused, Err(Sense::PARAMETER_LIST_LENGTH_ERROR.into()), "{cut} bytes");
    }
}
