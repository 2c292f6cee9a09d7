//! Login, commands, data in both directions, logout.

use super::requests::*;
use super::rig::{Rig, pattern};
use crate::connection::target::{CloseReason, Outcome};
use crate::framing::DataDestination;
use crate::pdu::{
    DataIn, DataInFlags, LogoutReason, LogoutResponse, LogoutResult, Opcode, ReadyToTransfer,
    ResponseFlags, ScsiResponse, TAG_RESERVED,
};
use bytes::Bytes;
use lunar_wire::SerialNumber;

/// Goal: one session from login to logout. Method: a read with status in its Data-In, a write by
/// immediate data, a logout; every number checked.
#[test]
fn login_read_write_logout() {
    let mut rig = Rig::normal("MaxRecvDataSegmentLength=1024");
    rig.send(1, read(0, 5, 3000).encode(), &[]);
    let task = rig.started(1);
    assert_eq!((task.expected_bytes, task.read, task.write), (3000, true, false));
    let data = Bytes::from(pattern(3000));
    rig.done(1, task.id, Outcome { data_in: data.clone(), ..Outcome::default() });
    let sent = rig.sent(1);
    assert_eq!(
        sent.iter().map(|pdu| pdu.data.len()).collect::<alloc::vec::Vec<_>>(),
        [1024, 1024, 952]
    );
    let last = DataIn::decode(&sent[2].bhs);
    assert_eq!(last.flags, DataInFlags::FINAL | DataInFlags::STATUS);
    assert_eq!((last.data_sn, last.buffer_offset_bytes), (2, 2048));
    assert_eq!(last.stat_sn, SerialNumber(0), "the login response had 2^32 − 1");
    assert_eq!(last.exp_cmd_sn, cmd_sn(1));
    assert_eq!(last.max_cmd_sn, cmd_sn(127));

    rig.send(1, write(1, 6, 512).encode(), &pattern(512));
    let task = rig.started(1);
    assert_eq!(
        rig.link(1).receives.last(),
        Some(&DataDestination::Task { task: task.id, offset_bytes: 0, buffer_bytes: 512 })
    );
    rig.wants(1, task.id, 512);
    assert_eq!(rig.link(1).runs, [task.id]);
    assert_eq!(rig.link(1).buffers[&task.id], pattern(512));
    rig.done(1, task.id, Outcome { data_out_bytes: 512, ..Outcome::default() });
    let response = ScsiResponse::decode(&rig.sent_one(1).bhs);
    assert_eq!((response.status, response.flags), (0, ResponseFlags::FINAL));
    assert_eq!(response.stat_sn, SerialNumber(1));

    rig.send(1, logout(2, 7, LogoutReason::CLOSE_SESSION, 0).encode(), &[]);
    let response = LogoutResponse::decode(&rig.sent_one(1).bhs);
    assert_eq!((response.response, response.stat_sn), (LogoutResult::CLOSED, SerialNumber(2)));
    let times = (response.time_to_wait_seconds, response.time_to_retain_seconds);
    assert_eq!(times, (0, 0), "it may come back at once, and nothing is kept for it");
    assert_eq!(rig.link(1).closed, Some(CloseReason::Ended));
    assert!(rig.ended);
    rig.assert_nothing_left();
}

/// Goal: the data of a long write is requested in bursts, several at a time, and arrives
/// completely.
/// Method: immediate data, unsolicited data up to FirstBurstLength, then R2Ts answered in pieces.
#[test]
fn long_write_by_every_kind_of_data() {
    let mut rig = Rig::normal(
        "MaxRecvDataSegmentLength=65536 FirstBurstLength=1024 MaxBurstLength=1000 \
         MaxOutstandingR2T=2 InitialR2T=No ImmediateData=Yes",
    );
    let data = pattern(4000);
    rig.send(1, write_unsolicited(0, 5, 4000).encode(), &data[..512]);
    let task = rig.started(1);
    rig.wants(1, task.id, 4000);
    rig.send(1, data_out(5, TAG_RESERVED, 0, 512, false).encode(), &data[512..600]);
    assert!(rig.sent(1).is_empty(), "unsolicited data is not over");
    rig.send(1, data_out(5, TAG_RESERVED, 1, 600, true).encode(), &data[600..1000]);
    let mut sent = rig.sent(1);
    let mut expected = 1000;
    let mut r2t_sn = 0;
    while !sent.is_empty() {
        for pdu in core::mem::take(&mut sent) {
            let r2t = ReadyToTransfer::decode(&pdu.bhs);
            assert_eq!(r2t.first.opcode(), Opcode::READY_TO_TRANSFER);
            assert_eq!((r2t.r2t_sn, r2t.buffer_offset_bytes), (r2t_sn, expected));
            assert_eq!((r2t.initiator_task_tag, r2t.lun), (5, task.lun));
            assert_eq!(r2t.stat_sn, SerialNumber(0), "the next, not taken");
            let (at, bytes) = (expected, r2t.desired_length_bytes);
            let (mid, end) = ((at + bytes / 2) as usize, (at + bytes) as usize);
            let tag = r2t.target_transfer_tag;
            rig.send(1, data_out(5, tag, 0, at, false).encode(), &data[at as usize..mid]);
            rig.send(1, data_out(5, tag, 1, mid as u32, true).encode(), &data[mid..end]);
            (expected, r2t_sn) = (expected + bytes, r2t_sn + 1);
            sent.extend(rig.sent(1));
        }
    }
    assert_eq!((expected, r2t_sn), (4000, 3));
    assert_eq!(rig.link(1).runs, [task.id]);
    assert_eq!(rig.link(1).buffers[&task.id], data);
    rig.done(1, task.id, Outcome { data_out_bytes: 4000, ..Outcome::default() });
    assert_eq!(ScsiResponse::decode(&rig.sent_one(1).bhs).status, 0);
    rig.assert_nothing_left();
}
