//! Storages that answer everything but some commands.

use super::{BLOCK, BLOCKS, LINEAR, Rig, TestCommand};
use crate::memory;
use lunar_block::{BlockDevice, Effect, Fault, FaultDevice, FaultOperation};
use lunar_initiator::SessionOptions;
use std::sync::Arc;
use std::time::Duration;

/// Fault: a relayed command that its storage never answered had no limit of time, while a command
/// of the device has.
#[test]
fn a_relayed_command_that_is_not_answered_ends() {
    let device = || memory(BLOCKS * BLOCK as u64, 512, 512);
    let silent = FaultDevice::new(device(), 1);
    let mut session = SessionOptions::new("iqn.2026-11.org.lunarsan.test:switch");
    session.command_seconds = 1;
    let devices = [Arc::<FaultDevice>::clone(&silent) as Arc<dyn BlockDevice>, device()];
    let rig = Rig::on_devices(devices, session, LINEAR, true, false);
    let host = rig.host(false);
    rig.until_relayed(&host);
    let before = rig.relayed();
    silent.inject(Fault::new(Effect::Hang).on(FaultOperation::Read).times(1));
    let read = TestCommand::transfer(0x88, 0, 0, 8, None, 8 * BLOCK as u32);
    let reading = host.execute(lunar_wire::Lun::new(0), read.cdb, read.data_out, read.data_in);
    let limited = async { tokio::time::timeout(Duration::from_secs(20), reading).await };
    let reply = rig.runtime.block_on(limited).expect("an end of the command").unwrap();
    assert_eq!(reply.result.status, 0);
    assert_eq!(rig.relayed().taken_over, before.taken_over + 1, "the device executes it again");
    silent.release();
    rig.end(vec![host]);
}
