//! Tests of the unit attention that an initiator receives after its session was lost.

use crate::common::{Rig, TARGET};
use lunar_testkit::raw::RawClient;

const POWER_ON: u16 = 0x2900;
const NEXUS_LOSS: u16 = 0x2907;

/// Returns the additional sense code of the unit attention with which the session begins.
fn first_attention_code(raw: &mut RawClient) -> u16 {
    let command = raw.command(0x80, &[0; 6], 0);
    raw.send(&command).unwrap();
    let (status, _, sense) = raw.outcome().unwrap();
    assert_eq!(status, 2, "a new session gets a unit attention");
    u16::from_be_bytes([sense[2 + 12], sense[2 + 13]])
}

/// Goal: an initiator whose session was lost while the target kept running receives I_T NEXUS LOSS
/// OCCURRED, because it would take unflushed cached data for lost after a power-on. An initiator
/// that has logged out, or is new, receives the power-on.
#[test]
fn a_lost_session_differs_from_a_restart() {
    let rig = Rig::new();
    let log_in = || RawClient::log_in_as(&rig.address, TARGET, 7).unwrap();
    let mut first = log_in();
    assert_eq!(first_attention_code(&mut first), POWER_ON);
    // The same initiator port: this session replaces the first one.
    let mut second = log_in();
    assert_eq!(first_attention_code(&mut second), NEXUS_LOSS);
    crate::common::log_out(second);
    rig.wait_for("the session has ended", |rig| rig.server().sessions().is_empty());
    assert_eq!(first_attention_code(&mut log_in()), POWER_ON);
    rig.stop_cleanly();
}
