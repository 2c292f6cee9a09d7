//! Tests of sense data of faults found by the protocol layer, over TCP: they have the unit's
//! format.

use crate::common::*;
use lunar_testkit::raw::RawClient;

/// Sends a write with more immediate data than its expected length; returns the sense data.
fn fault(raw: &mut RawClient, lun: u8) -> Vec<u8> {
    let write = raw.command(0xa0, &ten(0x2a, 0, 1), 512).put(9, &[lun]).with_data(vec![0; 1024]);
    raw.send(&write).unwrap();
    let answer = answer_to(raw, write.u32_at(16));
    assert_eq!(answer.header[3], 2, "CHECK CONDITION");
    let length = usize::from(u16::from_be_bytes([answer.data[0], answer.data[1]]));
    answer.data[2..2 + length].to_vec()
}

/// Sends MODE SELECT (6) of the control page with or without D_SENSE.
fn descriptor_format(raw: &mut RawClient, on: bool) {
    let list = [0, 0, 0, 0, 10, 10, if on { 0x26 } else { 0x22 }, 0x10, 0, 0, 0, 0, 0, 0, 0, 0];
    let select = raw.command(0xa0, &[0x15, 0x10, 0, 0, 16, 0], 16).with_data(list);
    raw.send(&select).unwrap();
    assert_eq!(answer_to(raw, select.u32_at(16)).header[3], 0, "MODE SELECT");
}

/// Goal: with D_SENSE set, faults of a transfer are reported in descriptor format, like all other
/// sense data; without it, and without a unit, in fixed format. Fault: it was always fixed
/// format.
#[test]
fn sense_of_transfer_faults_has_the_units_format() {
    let rig = Rig::new();
    let mut raw = rig.log_in(1);
    for on in [false, true, false] {
        descriptor_format(&mut raw, on);
        let sense = fault(&mut raw, 0);
        if on {
            assert_eq!(sense, [0x72, 0x0b, 0x0c, 0x0d, 0, 0, 0, 0]);
        } else {
            assert_eq!((sense[0], sense[2], &sense[12..14]), (0x70, 0x0b, &[0x0c, 0x0d][..]));
        }
        assert_eq!(fault(&mut raw, 9)[0], 0x70, "no unit");
    }
    assert_eq!(raw.read_block(0).unwrap(), vec![0; 512]);
    log_out(raw);
    rig.stop_cleanly();
}
