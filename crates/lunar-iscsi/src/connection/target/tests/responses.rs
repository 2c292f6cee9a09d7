//! Data-In, residuals, status and sense. RFC 7143 §11.4, §11.7.

use super::requests::*;
use super::rig::{Rig, pattern};
use crate::connection::target::Outcome;
use crate::framing::ahs::encode_command;
use crate::pdu::{
    CommandFlags, DataIn, DataInFlags, Opcode, ReadyToTransfer, ResponseFlags, ScsiCommand,
    ScsiResponse,
};
use alloc::vec::Vec;
use bytes::Bytes;

fn data_in(bytes: usize) -> Outcome {
    Outcome { data_in: Bytes::from(pattern(bytes)), ..Outcome::default() }
}

/// Goal: Data-In is split at MaxRecvDataSegmentLength and at MaxBurstLength, with F at the end of
/// each sequence, DataSN without gaps, and the status only in the last PDU.
#[test]
fn sequences() {
    let mut rig = Rig::normal("MaxRecvDataSegmentLength=1024 MaxBurstLength=2560");
    rig.send(1, read(0, 5, 6000).encode(), &[]);
    let task = rig.started(1).id;
    rig.done(1, task, data_in(6000));
    let sent = rig.sent(1);
    let pdus: Vec<_> = sent.iter().map(|pdu| DataIn::decode(&pdu.bhs)).collect();
    let lengths: Vec<_> = sent.iter().map(|pdu| pdu.data.len()).collect();
    assert_eq!(lengths, [1024, 1024, 512, 1024, 1024, 512, 880]);
    let finals: Vec<_> = pdus.iter().map(|pdu| pdu.flags.has(DataInFlags::FINAL)).collect();
    assert_eq!(finals, [false, false, true, false, false, true, true]);
    assert!(pdus.iter().map(|pdu| pdu.data_sn).eq(0..7));
    let with_status = pdus.iter().filter(|pdu| pdu.flags.has(DataInFlags::STATUS));
    assert_eq!(with_status.count(), 1);
    let whole: Vec<u8> = sent.iter().flat_map(|pdu| pdu.data.to_vec()).collect();
    assert_eq!(whole, pattern(6000));
    for (pdu, raw) in pdus.iter().zip(&sent) {
        assert_eq!(
            raw.data[..],
            pattern(6000)[pdu.buffer_offset_bytes as usize..][..raw.data.len()]
        );
    }
}

/// Goal: residuals match RFC 7143 §11.4.5.2, in Data-In and in responses.
#[test]
fn residuals() {
    const R: CommandFlags = CommandFlags::READ;
    const W: CommandFlags = CommandFlags::WRITE;
    let (over, under) = (ResponseFlags::OVERFLOW, ResponseFlags::UNDERFLOW);
    let none = ResponseFlags::NONE;
    // direction, expected, data-in and data-out of the command, sent, flag, residual
    let cases = [
        (R, 512, 512, 0, 512, none, 0),
        (R, 0, 512, 0, 0, over, 512),
        (R, 10_000, 512, 0, 512, under, 9488),
        (R, 200, 512, 0, 200, over, 312),
        (R, 512, 0, 0, 0, under, 512),
        (CommandFlags::NONE, 0, 512, 0, 0, over, 512),
        (CommandFlags::NONE, 0, 0, 0, 0, none, 0),
        (W, 512, 0, 512, 0, none, 0),
        (W, 512, 0, 256, 0, under, 256),
        (W, 512, 0, 1024, 0, over, 512),
        (W, 512, 512, 0, 0, under, 512), // a READ sent with W
    ];
    let mut rig = Rig::normal("");
    for (number, (flags, expected, read, written, sent_bytes, flag, residual)) in
        cases.into_iter().enumerate()
    {
        let command = command(number as u32, 5, flags.with(CommandFlags::FINAL), expected);
        rig.send(1, command.encode(), &[]);
        let task = rig.started(1).id;
        rig.done(1, task, Outcome { data_out_bytes: written, ..data_in(read) });
        let pdu = rig.sent_one(1);
        let context = (flags, expected, read, written);
        if sent_bytes > 0 {
            let pdu_in = DataIn::decode(&pdu.bhs);
            assert_eq!(pdu.data.len(), sent_bytes, "{context:?}");
            assert_eq!(u32::from(pdu_in.flags.0 & 0x06), u32::from(flag.0), "{context:?}");
            assert_eq!(pdu_in.residual_bytes, residual, "{context:?}");
        } else {
            let response = ScsiResponse::decode(&pdu.bhs);
            assert_eq!(response.flags, ResponseFlags::FINAL | flag, "{context:?}");
            assert_eq!(response.residual_bytes, residual, "{context:?}");
            assert_eq!((response.status, response.exp_data_sn), (0, 0));
        }
    }
    rig.assert_nothing_left();
}

/// Goal: a short data-in cut from a long buffer does not keep that buffer in memory, and data that
/// the executor left out counts in the residual.
#[test]
fn unsent_data_is_not_kept_in_memory() {
    let mut rig = Rig::normal("MaxRecvDataSegmentLength=65536");
    for (number, (expected, left_out)) in
        [(1, 0), (200, 0), (9_000, 8 << 20)].into_iter().enumerate()
    {
        rig.send(1, read(number as u32, 5, expected).encode(), &[]);
        let task = rig.started(1).id;
        let whole = Bytes::from(pattern(10_000));
        let data_in_bytes = 10_000 + left_out;
        rig.done(1, task, Outcome { data_in_bytes, data_in: whole.clone(), ..Outcome::default() });
        let pdu = rig.sent_one(1);
        assert_eq!(pdu.data, whole[..expected as usize]);
        assert_eq!(DataIn::decode(&pdu.bhs).residual_bytes, data_in_bytes - expected);
        assert_eq!(whole.is_unique(), expected < 5_000, "{expected} bytes");
    }
    rig.assert_nothing_left();
}

/// Goal: a status with sense is sent in its own SCSI Response, after the data.
#[test]
fn sense_follows_data() {
    let mut rig = Rig::normal("");
    rig.send(1, read(0, 5, 1024).encode(), &[]);
    let task = rig.started(1).id;
    let sense = Bytes::from_static(&[0x70, 0, 3, 0, 0, 0, 0, 10, 0, 0, 0, 0, 0x11, 0, 0, 0, 0, 0]);
    rig.done(1, task, Outcome { status: 2, sense: sense.clone(), ..data_in(512) });
    let sent = rig.sent(1);
    let data = DataIn::decode(&sent[0].bhs);
    assert_eq!(data.flags, DataInFlags::FINAL);
    let response = ScsiResponse::decode(&sent[1].bhs);
    assert_eq!((response.status, response.exp_data_sn), (2, 1));
    assert_eq!((response.flags.0 & 0x06, response.residual_bytes), (0x02, 512));
    assert_eq!(sent[1].data[..2], [0, 18]);
    assert_eq!(sent[1].data[2..], sense);
}

/// Goal: a bidirectional command with an extended CDB has one count for R2T and Data-In, two
/// residuals, and its status in a SCSI Response. RFC 7143 §4.2.2.4, §11.4.6, §11.7.3.
#[test]
fn bidirectional() {
    let mut rig = Rig::normal("InitialR2T=Yes ImmediateData=No");
    let cdb = pattern(200);
    let (start, ahs) = encode_command(&cdb, Some(1000));
    let flags = CommandFlags::FINAL | CommandFlags::READ | CommandFlags::WRITE;
    let pdu = ScsiCommand { cdb: start, ..command(0, 5, flags, 512) };
    rig.send_whole(1, pdu.encode(), &ahs, &[], true);
    let task = rig.started(1);
    assert_eq!(*task.cdb, *cdb);
    assert_eq!((task.expected_bytes, task.expected_read_bytes), (512, Some(1000)));
    rig.wants(1, task.id, 512);
    let r2t = ReadyToTransfer::decode(&rig.sent_one(1).bhs);
    assert_eq!(r2t.r2t_sn, 0);
    rig.send(1, data_out(5, r2t.target_transfer_tag, 0, 0, true).encode(), &pattern(512));
    assert_eq!(rig.link(1).runs, [task.id]);
    rig.done(1, task.id, Outcome { data_out_bytes: 500, ..data_in(1200) });
    let sent = rig.sent(1);
    let data = DataIn::decode(&sent[0].bhs);
    assert_eq!((data.data_sn, sent[0].data.len()), (1, 1000));
    assert_eq!(data.flags, DataInFlags::FINAL);
    let response = ScsiResponse::decode(&sent[1].bhs);
    let flags = ResponseFlags::FINAL | ResponseFlags::UNDERFLOW | ResponseFlags::BIDI_READ_OVERFLOW;
    assert_eq!(response.flags, flags);
    assert_eq!((response.residual_bytes, response.bidi_read_residual_bytes), (12, 200));
    assert_eq!(response.exp_data_sn, 1);
}

/// Goal: only statuses and rejects consume a StatSN, without gaps.
#[test]
fn stat_sn_has_no_gap() {
    let mut rig = Rig::normal("");
    for number in 0..6 {
        rig.send(1, read(number, 5, 512).encode(), &[]);
        let task = rig.started(1).id;
        let bytes = if number % 2 == 0 { 512 } else { 0 };
        rig.done(1, task, data_in(bytes));
        let pdu = rig.sent_one(1);
        let is_data = pdu.opcode() == Opcode::DATA_IN;
        assert_eq!(is_data, number % 2 == 0);
        assert_eq!(ScsiResponse::decode(&pdu.bhs).stat_sn.0, number);
    }
}
