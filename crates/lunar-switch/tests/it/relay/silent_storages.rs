//! Storages that answer everything but some commands.

use super::{BLOCK, BLOCKS, LINEAR, Rig, TestCommand};
use crate::memory;
use lunar_block::{BlockDevice, Effect, Fault, FaultDevice, FaultOperation};
use lunar_initiator::SessionOptions;
use lunar_wire::Lun;
use std::sync::Arc;
use std::time::Duration;

/// Returns a switch whose commands may last a second, and the first storage's device.
fn rig_with_limit() -> (Rig, Arc<FaultDevice>) {
    let device = || memory(BLOCKS * BLOCK as u64, 512, 512);
    let silent = FaultDevice::new(device(), 1);
    let mut session = SessionOptions::new("iqn.2026-11.org.lunarsan.test:switch");
    session.command_seconds = 1;
    let devices = [Arc::<FaultDevice>::clone(&silent) as Arc<dyn BlockDevice>, device()];
    (Rig::on_devices(devices, session, LINEAR, true, false), silent)
}

/// Fault: a relayed command that its storage never answered had no time limit, unlike a command
/// that the device executes.
#[test]
fn a_relayed_command_that_is_not_answered_ends() {
    let (rig, silent) = rig_with_limit();
    let host = rig.host(false);
    rig.until_relayed(&host);
    let before = rig.relayed();
    silent.inject(Fault::new(Effect::Hang).on(FaultOperation::Read).times(1));
    let read = TestCommand::transfer(0x88, 0, 0, 8, None, 8 * BLOCK as u32);
    let reading = host.execute(Lun::new(0), read.cdb, read.data_out, read.data_in);
    let limited = async { tokio::time::timeout(Duration::from_secs(20), reading).await };
    let reply = rig.runtime.block_on(limited).expect("an end of the command").unwrap();
    assert_eq!(reply.result.status, 0);
    assert_eq!(rig.relayed().taken_over, before.taken_over + 1, "the device executes it again");
    silent.release();
    rig.end(vec![host]);
}

/// Fault: a relayed WRITE that was late was executed again by the device, and answered, while the
/// storage could still execute the first one: then it destroyed newer data of other hosts.
#[test]
fn a_late_write_ends_when_the_storage_has_answered_its_abort() {
    let (rig, silent) = rig_with_limit();
    let host = rig.host(false);
    rig.until_relayed(&host);
    let write = || TestCommand::transfer(0x8a, 0, 0, 8, Some(vec![0x11; 8 * BLOCK].into()), 0);
    let execute = |command: TestCommand| {
        let run = host.execute(Lun::new(0), command.cdb, command.data_out, command.data_in);
        async { run.await.unwrap().result.status }
    };
    // The first WRITE opens the session for WRITEs.
    let before = rig.relayed();
    while rig.relayed().commands == before.commands {
        assert_eq!(rig.runtime.block_on(execute(write())), 0);
    }
    silent.inject(Fault::new(Effect::Hang).on(FaultOperation::Write).times(1));
    let status = rig.runtime.block_on(execute(write()));
    assert_ne!(status, 0, "GOOD while the storage still has the first WRITE");
    // Others wait for the storage, too.
    let status = rig.runtime.block_on(async {
        let mut waiting = std::pin::pin!(execute(write()));
        assert!(futures_util::poll!(&mut waiting).is_pending());
        silent.release();
        waiting.await
    });
    assert_eq!(status, 0);
    rig.end(vec![host]);
}
