//! Persistent reservations over faults of the server's process and its state file.

use anyhow::{Context, Result, bail, ensure};
use lunar_lab::peers::lunar::Lunar;
use lunar_lab::random::Random;
use lunar_lab::system::scratch::Scratch;
use lunar_testkit::raw::{RawAnswer, RawClient, opcode};
use rustix::process::Signal;
use std::time::Duration;

const TARGET: &str = "iqn.2026-11.org.lunarsan.test:reservations";
const ANSWER_MAX: Duration = Duration::from_secs(60);
const STOP_MAX: Duration = Duration::from_secs(60);
/// Minimum number of kills during a change.
const CHANGES_MIN: u64 = 20;
const GOOD: u8 = 0;
const CONFLICT: u8 = 0x18;
const REGISTER: u8 = 0;
const RESERVE: u8 = 1;
const REGISTER_AND_IGNORE: u8 = 6;
const EXCLUSIVE_ACCESS: u8 = 3;
const APTPL: u8 = 0x01;

fn serve(scratch: &Scratch) -> Result<Lunar> {
    let disk = scratch.path("disk.img");
    Lunar::serve(&[&disk, "--size", "16M", "--name", TARGET])
}

/// Sends SIGKILL, and waits for the end of the process.
fn kill(mut lunar: Lunar) -> Result<()> {
    lunar.server().signal(Signal::KILL)?;
    lunar.server().wait(STOP_MAX)?;
    Ok(())
}

/// Opens a session of initiator `number` and clears its unit attention of the power-on.
fn log_in(lunar: &Lunar, number: u32) -> Result<RawClient> {
    let mut raw = RawClient::log_in_as(lunar.address(), TARGET, number)?;
    raw.execute(&[0; 6], 0)?;
    Ok(raw)
}

/// Sends PERSISTENT RESERVE OUT.
fn send(raw: &mut RawClient, action: u8, kind: u8, keys: [u64; 2], flags: u8) -> Result<()> {
    let mut list = [keys[0].to_be_bytes(), keys[1].to_be_bytes()].concat();
    list.extend_from_slice(&[0, 0, 0, 0, flags, 0, 0, 0]);
    let cdb = [0x5f, action, kind, 0, 0, 0, 0, 0, 24, 0];
    let pdu = raw.command(0xa1, &cdb, 24).with_data(list);
    raw.send(&pdu)
}

/// Returns the status of the command sent before; `None` when the connection ends instead.
fn status(raw: &mut RawClient) -> Result<Option<u8>> {
    match raw.answer(ANSWER_MAX)? {
        RawAnswer::Pdu(pdu) => {
            ensure!(pdu.opcode() == opcode::SCSI_RESPONSE, "{pdu:?}");
            raw.exp_stat_sn = pdu.u32_at(24).wrapping_add(1);
            Ok(Some(pdu.header[3]))
        }
        RawAnswer::Closed => Ok(None),
        RawAnswer::TimedOut => bail!("no answer"),
    }
}

fn out(raw: &mut RawClient, action: u8, kind: u8, keys: [u64; 2], flags: u8) -> Result<()> {
    send(raw, action, kind, keys, flags)?;
    let status = status(raw)?;
    ensure!(status == Some(GOOD), "PERSISTENT RESERVE OUT {action}: status {status:02x?}");
    Ok(())
}

/// Returns the registered keys.
fn keys(raw: &mut RawClient) -> Result<Vec<u64>> {
    let (status, data) = raw.execute(&[0x5e, 0, 0, 0, 0, 0, 0, 2, 0, 0], 512)?;
    ensure!(status == GOOD, "READ KEYS: status {status:#x}");
    let keys = data.get(8..).context("the header")?.chunks_exact(8);
    Ok(keys.map(|key| key.iter().fold(0, |sum, byte| sum << 8 | u64::from(*byte))).collect())
}

/// Sends READ (10) of one block; returns its status.
fn read(raw: &mut RawClient) -> Result<u8> {
    Ok(raw.execute(&[0x28, 0, 0, 0, 0, 0, 0, 0, 1, 0], 512)?.0)
}

/// Reserves exclusive access for initiator 1, with APTPL.
fn reserve(lunar: &Lunar, key: u64) -> Result<()> {
    let mut one = log_in(lunar, 1)?;
    out(&mut one, REGISTER, 0, [0, key], APTPL)?;
    out(&mut one, RESERVE, EXCLUSIVE_ACCESS, [key, 0], 0)
}

/// Checks that initiator 1 has access, that only this key is registered, and that initiator 2 gets
/// a conflict.
fn check_reserved(lunar: &Lunar, key: u64) -> Result<()> {
    let (mut one, mut two) = (log_in(lunar, 1)?, log_in(lunar, 2)?);
    ensure!(read(&mut one)? == GOOD, "the holder");
    ensure!(read(&mut two)? == CONFLICT, "the other one");
    ensure!(keys(&mut two)? == [key], "its key");
    Ok(())
}

/// Goal: a reservation with APTPL blocks other initiators after the process was killed.
#[test]
fn a_reservation_outlives_sigkill() -> Result<()> {
    let scratch = Scratch::new("reserve-kill")?;
    let lunar = serve(&scratch)?;
    reserve(&lunar, 0xabcd)?;
    kill(lunar)?;
    let lunar = serve(&scratch)?;
    check_reserved(&lunar, 0xabcd)?;
    let mut one = log_in(&lunar, 1)?;
    out(&mut one, REGISTER, 0, [0xabcd, 0xabcd], 0)?; // APTPL 0: no longer to be kept
    kill(lunar)?;
    let lunar = serve(&scratch)?;
    ensure!(keys(&mut log_in(&lunar, 2)?)?.is_empty(), "forgotten, as asked");
    lunar.stop(STOP_MAX)?;
    Ok(())
}

/// Goal: GOOD means saved, and a saved state is whole.
/// Method: keys change as fast as they can; the process is killed at some moment, by seed. After
/// the start the key is the last one acknowledged, or the one that was under way.
#[test]
fn killed_in_the_midst_of_changes() -> Result<()> {
    let scratch = Scratch::new("reserve-storm")?;
    let mut random = Random::new(7);
    let mut key = 1;
    let mut lunar = serve(&scratch)?;
    reserve(&lunar, key)?;
    // A disk with slow syncs needs more rounds.
    for round in 0..60 {
        if round >= 6 && key > CHANGES_MIN {
            break;
        }
        let mut one = log_in(&lunar, 1)?;
        let lives = Duration::from_millis(20 + random.below(300));
        let server = &*lunar.server();
        let before = key;
        std::thread::scope(|scope| -> Result<()> {
            let killer = scope.spawn(|| {
                std::thread::sleep(lives);
                server.signal(Signal::KILL)
            });
            while send(&mut one, REGISTER_AND_IGNORE, 0, [0, key + 1], APTPL).is_ok() {
                match status(&mut one)? {
                    Some(status) => ensure!(status == GOOD, "status {status:#x}"),
                    None => break,
                }
                key += 1;
            }
            killer.join().expect("it does not panic")
        })?;
        lunar.server().wait(STOP_MAX)?;
        lunar = serve(&scratch)?;
        let found = keys(&mut log_in(&lunar, 2)?)?;
        ensure!(
            found == [key] || found == [key + 1],
            "round {round}: {found:?} after {key} was acknowledged, from {before}"
        );
        key = found[0];
        check_reserved(&lunar, key).with_context(|| format!("round {round}"))?;
    }
    ensure!(key > CHANGES_MIN, "only {key} changes: it was killed before there were any");
    lunar.stop(STOP_MAX)?;
    Ok(())
}

/// Goal: a new state that was cut short by a loss of power spoils neither the old one nor the next.
/// Method: every prefix that is a quarter longer is put where the new state is written.
#[test]
fn a_half_written_state_is_ignored() -> Result<()> {
    let scratch = Scratch::new("reserve-torn")?;
    let mut lunar = serve(&scratch)?;
    reserve(&lunar, 1)?;
    let (state, new) =
        (scratch.path("disk.img.lunar/scsi-state"), scratch.path("disk.img.lunar/scsi-state.new"));
    for quarter in 0..=4_u64 {
        kill(lunar)?;
        let whole = std::fs::read(&state).with_context(|| state.clone())?;
        let cut = whole.len() * usize::try_from(quarter)? / 4;
        std::fs::write(&new, &whole[..cut])?;
        lunar = serve(&scratch)?;
        check_reserved(&lunar, 1 + quarter)?;
        let mut one = log_in(&lunar, 1)?;
        out(&mut one, REGISTER, 0, [1 + quarter, 2 + quarter], APTPL)?;
        ensure!(!std::path::Path::new(&new).exists(), "it has become the state");
    }
    kill(lunar)?;
    check_reserved(&serve(&scratch)?, 6)
}

/// Goal: a damaged state is never taken for "nothing reserved": the disk is not served, and the
/// message says how to proceed.
/// Method: one inverted bit in the middle of the file.
#[test]
fn a_damaged_state_is_not_served() -> Result<()> {
    let scratch = Scratch::new("reserve-damage")?;
    let lunar = serve(&scratch)?;
    reserve(&lunar, 1)?;
    kill(lunar)?;
    let state = scratch.path("disk.img.lunar/scsi-state");
    let mut bytes = std::fs::read(&state)?;
    let midst = bytes.len() / 2;
    bytes[midst] ^= 0x10;
    std::fs::write(&state, &bytes)?;
    let refused = serve(&scratch).err().context("it serves all the same")?;
    let message = format!("{refused:#}");
    ensure!(message.contains(&state) && message.contains("move the file away"), "{message}");
    std::fs::rename(&state, scratch.path("kept"))?;
    let lunar = serve(&scratch)?;
    ensure!(keys(&mut log_in(&lunar, 1)?)?.is_empty());
    Ok(())
}
