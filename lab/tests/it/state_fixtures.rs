//! State of a unit on disk: every state that a released version wrote is read unchanged, and this
//! build writes the same bytes as the newest of those versions.

use anyhow::{Context, Result, ensure};
use lunar_lab::peers::lunar::binary;
use lunar_lab::state_fixtures::{
    Files, KEYS, PASSES, PATTERN, RESERVATION_TYPE, StoredUnit, TARGET, UUID, Version, fixtures,
    make,
};
use lunar_lab::system::process::run;
use lunar_testkit::raw::RawClient;
use lunar_wire::crc32c;
use std::time::{Duration, Instant};

const TEST_TIMEOUT: Duration = Duration::from_secs(60);
const STATE: &str = "scsi-state";
/// Offset of the version in a state file.
const VERSION_AT: usize = 8;
const CRC_BYTES: usize = 4;

/// CRC32C of each file of each released fixture. A released fixture is not changed: a new format
/// gets a new version number, and fixtures of its own (`cargo run -p lunar-lab -- state-fixture`).
const RELEASED: &[(&str, &str, &str, u32)] = &[
    ("0.1.0", "reserved", "scsi-state", 0xbc36_4b6b),
    ("0.1.0", "reserved", "uuid", 0xcba0_d05a),
    ("0.1.0", "sanitizing", "scsi-state", 0x65bf_03a8),
    ("0.1.0", "sanitizing", "uuid", 0xcba0_d05a),
];

fn files_of<'a>(scene: &str, version: &'a Version) -> Result<&'a Files> {
    version.1.get(scene).with_context(|| format!("{} has no {scene}", version.0))
}

/// Goal: a format, or a fixture, does not change unnoticed.
#[test]
fn formats_equal_the_released_ones() -> Result<()> {
    let fixtures = fixtures()?;
    let (newest, scenes) = fixtures.last().context("a newest version")?;
    for (name, files) in make()? {
        let kept = scenes.get(&name).with_context(|| format!("{newest} has no {name}"))?;
        ensure!(
            *kept == files,
            "{name}: this build writes another state than {newest}: the format needs a new version \
             number, and the workspace a new version with fixtures (docs/formats.md)\n{newest}: \
             {kept:02x?}\nnow: {files:02x?}"
        );
    }
    let mut known = Vec::new();
    for (version, scenes) in &fixtures {
        for (scene, files) in scenes {
            for (file, bytes) in files {
                known.push((version.as_str(), scene.as_str(), file.as_str(), crc32c(bytes)));
            }
        }
    }
    ensure!(known == RELEASED, "the fixtures are not those that were released: {known:#x?}");
    Ok(())
}

/// Goal: a state of each released version is read: identity, registrations, reservation, and
/// PRGENERATION, which begins at 0 with each power on.
#[test]
fn reservations_are_found() -> Result<()> {
    for version in fixtures()? {
        let unit = StoredUnit::new(files_of("reserved", &version)?)?;
        let lunar = unit.serve(&[])?;
        let mut raw = RawClient::log_in_as(lunar.address(), TARGET, 1)?;
        let (status, keys) = raw.execute(&[0x5e, 0, 0, 0, 0, 0, 0, 0, 255, 0], 255)?;
        let expected = [&[0; 4][..], &16_u32.to_be_bytes(), &KEYS[0].to_be_bytes()].concat();
        let expected = [&expected[..], &KEYS[1].to_be_bytes()].concat();
        ensure!((status, keys) == (0, expected), "{}: READ KEYS", version.0);
        let (status, held) = raw.execute(&[0x5e, 1, 0, 0, 0, 0, 0, 0, 255, 0], 255)?;
        ensure!(status == 0 && held.len() == 24, "{}: READ RESERVATION {held:02x?}", version.0);
        ensure!(held[8..16] == KEYS[0].to_be_bytes(), "{}: the holder {held:02x?}", version.0);
        ensure!(held[21] == RESERVATION_TYPE, "{}: the type {held:02x?}", version.0);
        raw.write_blocks(0, &[1; 512]).context("the second one is registered")?;
        let mut stranger = RawClient::log_in_as(lunar.address(), TARGET, 2)?;
        ensure!(stranger.write_blocks(0, &[2; 512]).is_err(), "a stranger wrote");
        let (_, serial) = stranger.execute(&[0x12, 1, 0x80, 0, 255, 0], 255)?;
        let digits = UUID.replace('-', "");
        let serial = String::from_utf8_lossy(&serial[4..]).into_owned();
        ensure!(serial.replace('-', "").contains(&digits), "{}: it is {serial}", version.0);
    }
    Ok(())
}

/// Goal: an unfinished SANITIZE of each released version is continued.
#[test]
fn an_interrupted_sanitize_is_resumed() -> Result<()> {
    for version in fixtures()? {
        let unit = StoredUnit::new(files_of("sanitizing", &version)?)?;
        let lunar = unit.serve(&["--maintenance-rate", "8Mbit"])?;
        let mut raw = RawClient::log_in_as(lunar.address(), TARGET, 0)?;
        let outcome = raw.run(&[0x28, 0, 0, 0, 0, 0, 0, 0, 1, 0], 512)?;
        ensure!(outcome.sense_codes() == (2, 0x041b), "{}: in progress {outcome:x?}", version.0);
        drop(lunar);
        let lunar = unit.serve(&[])?;
        let mut raw = RawClient::log_in_as(lunar.address(), TARGET, 0)?;
        let began = Instant::now();
        while raw.execute(&[0; 6], 0)?.0 != 0 {
            ensure!(began.elapsed() < TEST_TIMEOUT, "{}: it does not end", version.0);
            std::thread::sleep(Duration::from_millis(20));
        }
        let pattern: Vec<u8> = PATTERN.into_iter().cycle().take(512).collect();
        ensure!(raw.read_block(9_999)? == pattern, "{}: {PASSES} passes", version.0);
    }
    Ok(())
}

/// Starts a server, which must refuse with exit status 1 and these words, and change no file.
fn refused(unit: &StoredUnit, files: &Files, words: &str) -> Result<()> {
    unit.put(files)?;
    let disk = unit.disk();
    let arguments = ["serve", &disk, "--name", TARGET, "--listen", "127.0.0.1:0"];
    let finished = run(&binary()?, &arguments, TEST_TIMEOUT)?;
    let lunar_lab::system::process::End::Exited(status) = finished.end else {
        anyhow::bail!("it serves: {}", finished.outputs());
    };
    ensure!(status.code() == Some(1), "{}", finished.outputs());
    ensure!(finished.stderr.contains(words), "`{words}` is not in {}", finished.outputs());
    ensure!(finished.stderr.contains(STATE), "which file? {}", finished.outputs());
    ensure!(unit.files()? == *files, "a state that was refused was changed");
    Ok(())
}

/// Goal: a state of a later version is refused with that reason; a truncated or changed one as
/// well.
#[test]
fn unreadable_state_is_refused() -> Result<()> {
    let fixtures = fixtures()?;
    let good = files_of("reserved", fixtures.last().context("a newest version")?)?;
    let unit = StoredUnit::new(good)?;
    let state = good[STATE].clone();
    let with = |state: Vec<u8>| {
        let mut files = good.clone();
        files.insert(STATE.to_owned(), state);
        files
    };
    let mut later = state[..state.len() - CRC_BYTES].to_vec();
    later[VERSION_AT + 1] += 1;
    later.extend_from_slice(&crc32c(&later).to_be_bytes());
    refused(&unit, &with(later), "later version")?;
    for cut in [1, VERSION_AT, state.len() / 2, state.len() - 1] {
        refused(&unit, &with(state[..cut].to_vec()), "the state")?;
    }
    for at in [0, VERSION_AT, state.len() / 2, state.len() - 1] {
        let mut changed = state.clone();
        changed[at] ^= 0x10;
        refused(&unit, &with(changed), "the state")?;
    }
    unit.put(good)?;
    unit.serve(&[]).context("the good one again")?;
    Ok(())
}
