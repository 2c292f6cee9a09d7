//! Tests of COMPARE AND WRITE and ORWRITE from sessions on two cores: no other such command and no
//! write comes between their read and their write.

use crate::common::*;
use lunar_block::{Effect, Fault, FaultOperation};
use lunar_testkit::raw::RawClient;
use std::time::Duration;

const ROUNDS: u16 = 40;
const MISCOMPARE: u8 = 0x0e;

/// Sends COMPARE AND WRITE or ORWRITE (16) of `blocks` at `lba`, with all its data; returns status
/// and sense.
fn exclusive(raw: &mut RawClient, opcode: u8, lba: u8, blocks: u8, data: &[u8]) -> (u8, Vec<u8>) {
    let mut cdb = [0; 16];
    (cdb[0], cdb[9], cdb[13]) = (opcode, lba, blocks);
    let pdu = raw.command(0xa1, &cdb, data.len() as u32);
    raw.send(&pdu.clone().with_data(data.to_vec())).unwrap();
    let answer = answer_to(raw, pdu.u32_at(16));
    (answer.header[3], answer.data.get(2..).unwrap_or_default().to_vec())
}

fn read_block(raw: &mut RawClient, lba: u32) -> Vec<u8> {
    let (status, data) = raw.execute(&ten(0x28, lba, 1), 512).unwrap();
    assert_eq!(status, 0);
    data
}

/// Starts a server with a disk that delays the write of every such command.
fn slow_rig() -> Rig {
    let rig = Rig::new();
    let slow = Effect::Delay(Duration::from_millis(2));
    rig.device.inject(Fault::new(slow).on(FaultOperation::Write));
    rig
}

/// Runs `work` concurrently in two sessions, which the server has on two cores.
fn in_two_sessions(rig: &Rig, work: impl Fn(&mut RawClient, u16) + Sync) {
    std::thread::scope(|scope| {
        for number in [1, 2] {
            let mut raw = rig.log_in(number);
            let work = &work;
            scope.spawn(move || {
                work(&mut raw, number as u16 - 1);
                log_out(raw);
            });
        }
    });
}

/// Goal: no increment by COMPARE AND WRITE is lost. Method: each session reads the counter and
/// replaces it by its successor if it is unchanged; if not, it begins again, and the sense data
/// name the differing byte.
#[test]
fn counts_from_two_cores_are_not_lost() {
    let rig = slow_rig();
    in_two_sessions(&rig, |raw, _| {
        for _ in 0..ROUNDS {
            loop {
                let old = read_block(raw, 5);
                let count = u16::from_be_bytes([old[510], old[511]]);
                let mut new = old.clone();
                new[510..].copy_from_slice(&(count + 1).to_be_bytes());
                let (status, sense) = exclusive(raw, 0x89, 5, 1, &[old, new].concat());
                if status == 0 {
                    break;
                }
                assert_eq!((status, sense[0], sense[2]), (2, 0xf0, MISCOMPARE));
                let offset = u32::from_be_bytes(sense[3..7].try_into().unwrap());
                assert!(matches!(offset, 510 | 511), "byte {offset}");
            }
        }
    });
    let mut raw = rig.log_in(3);
    assert_eq!(read_block(&mut raw, 5)[510..], (2 * ROUNDS).to_be_bytes());
    log_out(raw);
    rig.stop_cleanly();
}

/// Goal: no bit set by ORWRITE is lost. Method: each session sets its own bytes in one block.
#[test]
fn bits_from_two_cores_are_not_lost() {
    let rig = slow_rig();
    in_two_sessions(&rig, |raw, session| {
        for round in 0..ROUNDS {
            let mut bits = [0; 512];
            bits[usize::from(2 * round + session)] = 0xff;
            assert_eq!(exclusive(raw, 0x8b, 9, 1, &bits).0, 0);
        }
    });
    let mut raw = rig.log_in(3);
    let all = read_block(&mut raw, 9);
    let (set, rest) = all.split_at(usize::from(2 * ROUNDS));
    assert!(set.iter().all(|byte| *byte == 0xff), "{set:x?}");
    assert!(rest.iter().all(|byte| *byte == 0));
    log_out(raw);
    rig.stop_cleanly();
}
