//! A unit's state that cannot be saved for now, since its file system hangs. The server runs in
//! this process, so that the test can observe its end meanwhile.

use crate::targets::{OWN, own_options};
use anyhow::{Result, ensure};
use lunar_block::MemoryDevice;
use lunar_lab::powercut::{CallKind, HangGuard, PowerCutDisk};
use lunar_target::{DiskUnit, DiskUnitOptions, Server};
use lunar_testkit::raw::{RawAnswer, RawClient, RawPdu, opcode};
use rustix::io::Errno;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Time limit longer than any step, even on a busy machine.
const TEST_TIMEOUT: Duration = Duration::from_secs(60);
const GRACE: Duration = Duration::from_secs(3);
const POLL: Duration = Duration::from_millis(5);
const ABORT_TASK: u8 = 1;
const LOGOUT_RESPONSE: u8 = 0x26;

/// Starts a server of one disk in memory, whose state is on `state`.
fn serve(state: &PowerCutDisk) -> Result<Server> {
    let memory = Arc::new(MemoryDevice::new(1 << 20, 512, 4096)?);
    let unit = DiskUnitOptions::new(uuid::Uuid::from_u128(1), memory);
    let unit = DiskUnitOptions { state: Some(state.path("disk.lunar").into()), ..unit };
    let unit = DiskUnit::open(unit)?;
    Ok(Server::start(own_options(unit)?)?)
}

fn log_in(server: &Server, number: u32) -> Result<RawClient> {
    let mut raw = RawClient::log_in_as(&server.addresses()[0].to_string(), OWN, number)?;
    raw.execute(&[0; 6], 0)?;
    Ok(raw)
}

fn log_out(mut raw: RawClient) -> Result<()> {
    let tag = raw.new_tag();
    let logout = RawPdu::new(0x40 | opcode::LOGOUT, 0x80)
        .put_u32(16, tag)
        .put_u32(24, raw.cmd_sn)
        .put_u32(28, raw.exp_stat_sn);
    raw.send(&logout)?;
    raw.expect(LOGOUT_RESPONSE)?;
    raw.wait_until_closed(TEST_TIMEOUT)
}

/// Sends REGISTER with APTPL of key 1, which replaces `key`; returns its task tag.
fn register(raw: &mut RawClient, key: u8) -> Result<u32> {
    let mut list = vec![0; 24];
    (list[7], list[15], list[20]) = (key, 1, 1);
    let pdu = raw.command(0xa1, &[0x5f, 0, 0, 0, 0, 0, 0, 0, 24, 0], 24);
    raw.send(&pdu.clone().with_data(list))?;
    Ok(pdu.u32_at(16))
}

/// Sends such a REGISTER and aborts it once `saving` holds a save; the response to the abort comes
/// first.
fn register_and_abort(raw: &mut RawClient, key: u8, saving: &HangGuard<'_>) -> Result<()> {
    let register = register(raw, key)?;
    saving.wait_for(1, TEST_TIMEOUT)?;
    let tag = raw.new_tag();
    let abort = RawPdu::new(0x40 | opcode::TASK_MANAGEMENT, 0x80 | ABORT_TASK)
        .put_u32(16, tag)
        .put_u32(20, register)
        .put_u32(24, raw.cmd_sn)
        .put_u32(28, raw.exp_stat_sn);
    raw.send(&abort)?;
    let RawAnswer::Pdu(first) = raw.answer(TEST_TIMEOUT)? else { anyhow::bail!("silence") };
    ensure!((first.u32_at(16), first.header[2]) == (tag, 0), "{first:02x?}");
    raw.exp_stat_sn = first.u32_at(24).wrapping_add(1);
    Ok(())
}

/// Goal: a reservation whose save hangs can be aborted, as can those that wait for it; the unit
/// continues, and its session ends. A change that cannot be saved in the end does not take effect.
#[test]
fn a_hanging_save_is_aborted() -> Result<()> {
    let state = PowerCutDisk::mount("hanging-save")?;
    let server = serve(&state)?;
    let saving = state.hold(CallKind::Sync);
    let mut raw = log_in(&server, 1)?;
    for round in 0..20 {
        // After the first round the key counts as registered, although it is not saved.
        register_and_abort(&mut raw, u8::from(round > 0), &saving)?;
    }
    raw.write_blocks(0, &[1; 512])?;
    register(&mut raw, 1)?;
    log_out(raw)?;
    state.fail(CallKind::Sync, Errno::IO);
    drop(saving);
    let mut raw = log_in(&server, 2)?;
    let until = Instant::now() + TEST_TIMEOUT;
    while raw.execute(&[0x5e, 0, 0, 0, 0, 0, 0, 0, 255, 0], 255)?.1[7] != 0 {
        ensure!(Instant::now() < until, "the change of a failed save is not reverted");
        std::thread::sleep(POLL);
    }
    log_out(raw)?;
    let report = server.shutdown(GRACE, &mut |_| {});
    ensure!(report.failed_syncs.is_empty() && report.connections_cut == 0, "{report:?}");
    Ok(())
}

/// Goal: a save that hangs, without a command that waits for it, does not keep the server from
/// ending, and the server reports it.
#[test]
fn a_server_ends_while_a_save_hangs() -> Result<()> {
    let state = PowerCutDisk::mount("hanging-end")?;
    let server = serve(&state)?;
    let saving = state.hold(CallKind::Sync);
    let mut raw = log_in(&server, 1)?;
    register_and_abort(&mut raw, 0, &saving)?;
    log_out(raw)?;
    let mut lines = Vec::new();
    let report = server.shutdown(GRACE, &mut |line| lines.push(line.to_owned()));
    ensure!(report.failed_syncs.is_empty() && report.connections_cut == 0, "{report:?}");
    let hangs = |line: &String| line.contains("NOT RESPONDING: a save is still pending");
    ensure!(lines.iter().any(hangs), "{lines:?}");
    drop(saving);
    Ok(())
}
