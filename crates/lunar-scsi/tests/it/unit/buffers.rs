//! READ BUFFER and WRITE BUFFER.

use crate::unit::support::{A, B, Rig};
use lunar_scsi::plan::{NexusId, Plan};
use lunar_scsi::sense::Sense;
use lunar_scsi::share::Origin;

const DATA: u8 = 0x02;
const DESCRIPTOR: u8 = 0x03;
const ECHO: u8 = 0x0a;
const ECHO_DESCRIPTOR: u8 = 0x0b;
const CAPACITY: u32 = 4096;

fn cdb(opcode: u8, mode: u8, buffer: u8, offset: u32, bytes: u32) -> Vec<u8> {
    let [_, offset @ ..] = offset.to_be_bytes();
    let [_, bytes @ ..] = bytes.to_be_bytes();
    [&[opcode, mode, buffer][..], &offset, &bytes, &[0]].concat()
}

fn read(mode: u8, buffer: u8, offset: u32, bytes: u32) -> Vec<u8> {
    cdb(0x3c, mode, buffer, offset, bytes)
}

fn write(mode: u8, buffer: u8, offset: u32, bytes: u32) -> Vec<u8> {
    cdb(0x3b, mode, buffer, offset, bytes)
}

const DONE: Result<Plan, lunar_scsi::plan::Refusal> = Ok(Plan::Reply(Vec::new()));

#[test]
fn descriptors_report_capacities() {
    let mut rig = Rig::thin();
    assert_eq!(rig.reply(&read(DESCRIPTOR, 0, 0, 4)), [0, 0, 0x10, 0]);
    for buffer in 1..=255 {
        assert_eq!(rig.reply(&read(DESCRIPTOR, buffer, 0, 4)), [0; 4], "no such buffer");
        assert_eq!(rig.sense(&read(DATA, buffer, 0, 4)), Sense::invalid_field_in_cdb(2, None));
        let refused = rig.sense(&write(DATA, buffer, 0, 4));
        assert_eq!(refused, Sense::invalid_field_in_cdb(2, None));
    }
    for buffer in [0, 7] {
        assert_eq!(rig.reply(&read(ECHO_DESCRIPTOR, buffer, 9, 255)), [1, 0, 0x10, 0]);
    }
    assert_eq!(rig.reply(&read(DESCRIPTOR, 0, 0, 0)), []);
}

/// Goal: READ BUFFER never returns memory that was not written (FreeBSD's CVE-2024-8178 and
/// CVE-2024-43110). Method: read before, beside and behind the written data.
#[test]
fn read_buffer_returns_only_written_data() {
    let mut rig = Rig::thin();
    assert_eq!(rig.reply(&read(DATA, 0, 0, 1 << 20)), [0; CAPACITY as usize]);
    assert_eq!(rig.sense(&read(ECHO, 0, 0, 4096)), Sense::COMMAND_SEQUENCE_ERROR);
    assert_eq!(rig.send(&write(DATA, 0, 10, 3), &[1, 2, 3]), DONE);
    assert_eq!(rig.reply(&read(DATA, 0, 8, 6)), [0, 0, 1, 2, 3, 0]);
    assert_eq!(rig.reply(&read(DATA, 0, 13, 1 << 20)), [0; CAPACITY as usize - 13]);
    assert_eq!(rig.sense(&read(ECHO, 0, 0, 4096)), Sense::COMMAND_SEQUENCE_ERROR);
    assert_eq!(rig.send(&write(ECHO, 0, 0, 3), &[4, 5, 6]), DONE);
    assert_eq!(rig.reply(&read(ECHO, 0, 0, 4096)), [4, 5, 6], "as long as it was written");
    assert_eq!(rig.send(&write(ECHO, 0, 0, 1), &[7]), DONE);
    assert_eq!(rig.reply(&read(ECHO, 0, 0, 4096)), [7], "the longer one before is gone");
}

/// Goal: data written by one nexus is not visible to another one, nor to its successor.
#[test]
fn buffers_are_of_one_nexus() {
    let mut rig = Rig::thin();
    for mode in [DATA, ECHO] {
        assert_eq!(rig.send(&write(mode, 0, 0, 2), &[0x5a, 0x5b]), DONE);
    }
    let zeroes = Ok(Plan::Reply(vec![0; CAPACITY as usize]));
    assert_eq!(rig.run(B, &read(DATA, 0, 0, 4096)), zeroes);
    assert_eq!(rig.refusal(B, &read(ECHO, 0, 0, 4096)), Sense::COMMAND_SEQUENCE_ERROR);
    assert_eq!(rig.send_from(B, &write(ECHO, 0, 0, 1), &[1]), DONE);
    assert_eq!(rig.reply(&read(ECHO, 0, 0, 4096)), [0x5a, 0x5b]);
    rig.unit.detach(A);
    rig.attach(A);
    assert_eq!(rig.sense(&[0; 6]), Sense::POWER_ON_RESET);
    assert_eq!(rig.run(A, &read(DATA, 0, 0, 4096)), zeroes);
    assert_eq!(rig.sense(&read(ECHO, 0, 0, 4096)), Sense::COMMAND_SEQUENCE_ERROR);
    assert_eq!(rig.send(&write(DATA, 0, 0, 1), &[9]), DONE);
    rig.unit.reset(Some(A));
    assert_eq!(rig.run(A, &read(DATA, 0, 0, 4096)), zeroes, "a reset clears them");
}

/// Goal: buffers use bounded memory however many nexuses there are, and one initiator with many
/// nexuses leaves others theirs.
#[test]
fn buffers_of_few_nexuses_are_kept() {
    const CROWD: std::ops::Range<u64> = 1000..1100;
    for (same_name, origin, kept) in
        [(true, None, 4), (false, None, 16), (false, Some(Origin(7)), 8)]
    {
        let mut rig = Rig::thin();
        // The last nexus to log in is the last to be displaced.
        rig.attach_named(NexusId(5000), "iqn.late", None);
        assert_eq!(rig.send_from(NexusId(5000), &write(ECHO, 0, 0, 1), &[9]), DONE);
        for number in CROWD {
            let name = if same_name { "iqn.one".to_owned() } else { format!("iqn.i{number}") };
            rig.attach_named(NexusId(number), &name, origin);
            for mode in [ECHO, DATA] {
                assert_eq!(rig.send_from(NexusId(number), &write(mode, 0, 0, 1), &[7]), DONE);
            }
        }
        let mut holds = |nexus| match rig.run(nexus, &read(ECHO, 0, 0, 1)) {
            Ok(reply) => reply == Plan::Reply(vec![if nexus == NexusId(5000) { 9 } else { 7 }]),
            Err(refusal) => refusal != Sense::COMMAND_SEQUENCE_ERROR.into(),
        };
        let of_crowd = CROWD.filter(|number| holds(NexusId(*number))).count();
        let late = holds(NexusId(5000));
        assert_eq!(of_crowd + usize::from(late && kept == 16), kept, "{same_name} {origin:?}");
        assert!(late, "{same_name} {origin:?}");
        assert!(holds(NexusId(CROWD.end - 1)), "the last that wrote");
    }
}

#[test]
fn beyond_the_end_is_refused() {
    let mut rig = Rig::thin();
    assert_eq!(rig.reply(&read(DATA, 0, CAPACITY, 4)), []);
    assert_eq!(rig.reply(&read(DATA, 0, CAPACITY - 1, 4)), [0]);
    let refused = Sense::invalid_field_in_cdb(3, None);
    for offset in [CAPACITY + 1, 0xff_ffff] {
        assert_eq!(rig.sense(&read(DATA, 0, offset, 4)), refused);
        assert_eq!(rig.sense(&write(DATA, 0, offset, 0)), refused);
    }
    let refused = Sense::invalid_field_in_cdb(6, None);
    for (offset, bytes) in [(0, CAPACITY + 1), (CAPACITY, 1), (1, CAPACITY), (9, 0xff_ffff)] {
        assert_eq!(rig.sense(&write(DATA, 0, offset, bytes)), refused);
    }
    assert_eq!(rig.sense(&write(ECHO, 0, 0, CAPACITY + 1)), refused);
    let all = vec![3; CAPACITY as usize];
    for mode in [DATA, ECHO] {
        assert_eq!(rig.send(&write(mode, 0, 0, CAPACITY), &all), DONE);
        assert_eq!(rig.reply(&write(mode, 0, 0, 0)), [], "of no bytes");
        assert_eq!(rig.reply(&read(mode, 0, 0, CAPACITY)), all);
        assert_eq!(rig.reply(&read(mode, 0, 0, 3)), [3; 3]);
    }
}

/// Goal: firmware, vendor specific buffers and error history are refused.
#[test]
fn other_modes_are_refused() {
    let mut rig = Rig::thin();
    for mode in (0..32).filter(|mode| ![DATA, DESCRIPTOR, ECHO, ECHO_DESCRIPTOR].contains(mode)) {
        let refused = Sense::invalid_field_in_cdb(1, Some(4));
        assert_eq!(rig.sense(&read(mode, 0, 0, 4)), refused);
        assert_eq!(rig.sense(&write(mode, 0, 0, 4)), refused);
    }
    for mode in [DESCRIPTOR, ECHO_DESCRIPTOR] {
        let refused = Sense::invalid_field_in_cdb(1, Some(4));
        assert_eq!(rig.sense(&write(mode, 0, 0, 4)), refused);
    }
    let refused = Sense::invalid_field_in_cdb(1, Some(7));
    assert_eq!(rig.sense(&read(0x20 | DATA, 0, 0, 4)), refused);
    assert_eq!(rig.sense(&write(0x80 | ECHO, 0, 0, 4)), refused);
}
