//! From login to logout, and what happens besides.

use super::bench::Bench;
use crate::connection::initiator::{CloseReason, Input, Output, Residual};
use crate::framing::TaskId;
use crate::pdu::*;
use wire::U24;

impl Bench {
    pub fn logout_response(&mut self, tag: u32) -> [u8; 48] {
        LogoutResponse {
            first: FirstByte::plain(Opcode::LOGOUT_RESPONSE),
            flags: FinalFlag::FINAL,
            response: LogoutResult::CLOSED,
            total_ahs_words: 0,
            data_segment_length: U24::default(),
            initiator_task_tag: tag,
            stat_sn: self.stat_sn.take(),
            exp_cmd_sn: self.exp_cmd_sn,
            max_cmd_sn: self.max_cmd_sn,
            time_to_wait_seconds: 2,
            time_to_retain_seconds: 0,
        }
        .encode()
    }
}

/// Goal: the plain way through: login, a read with its status in a SCSI Response, logout.
#[test]
fn login_command_logout() {
    let mut bench = Bench::new();
    bench.execute(1, &[], 512);
    let sent = bench.sent_command();
    assert_eq!(sent.expected_data_transfer_length, 512);
    assert!(sent.flags.has(CommandFlags::READ) && sent.flags.has(CommandFlags::FINAL));
    assert!(!sent.flags.has(CommandFlags::WRITE));
    let tag = sent.initiator_task_tag;
    bench.target(bench.data_in(tag, 0, 0).encode(), &[7; 512]);
    let response = bench.response(tag);
    bench.target(response.encode(), &[]);
    let told = bench.told();
    let [Output::Completed { id: TaskId(1), result: Ok(result) }] = &told[..] else {
        panic!("{told:?}")
    };
    assert_eq!((result.status, result.data_in_bytes), (0, 512));
    assert_eq!(result.residual, Residual::None);
    bench.assert_nothing_left();

    bench.handle(Input::Logout { reason: LogoutReason::CLOSE_SESSION, cid: None });
    let logout = LogoutRequest::decode(&bench.sent(Opcode::LOGOUT_REQUEST).bhs);
    assert_eq!(logout.reason(), LogoutReason::CLOSE_SESSION);
    let answer = bench.logout_response(logout.initiator_task_tag);
    bench.target(answer, &[]);
    let told = bench.told();
    let [Output::LoggedOut { result: Ok(reply) }, Output::Close(CloseReason::LoggedOut)] =
        &told[..]
    else {
        panic!("{told:?}")
    };
    assert_eq!(reply.result, LogoutResult::CLOSED);
    bench.assert_nothing_left();
    assert_eq!(bench.wait, None, "no timer is left");
}
