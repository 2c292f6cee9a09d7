//! State of a unit on disk, made by the real binary: fixtures of released versions, and those of
//! this build to compare them with. docs/formats.md describes every byte.

use crate::peers::lunar::Lunar;
use crate::system::scratch::Scratch;
use anyhow::{Context, Result, bail, ensure};
use lunar_testkit::raw::RawClient;
use rustix::process::Signal;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// Name of the target in all fixtures.
pub const TARGET: &str = "iqn.2026-11.org.lunarsan.test:state";
/// Size of the disks that the fixtures belong to.
pub const DISK_BYTES: u64 = 8 << 20;
/// UUID of the units.
pub const UUID: &str = "0b0f3c1e-7d55-4f0e-9b1d-2f6c5c1f9a10";
/// Keys of the initiators of numbers 0 and 1; the first holds the reservation.
pub const KEYS: [u64; 2] = [0x1111_2222_3333_4444, 0x5555_6666_7777_8888];
/// Reservation type: Write Exclusive, Registrants Only.
pub const RESERVATION_TYPE: u8 = 5;
/// Overwrite pattern of the unfinished SANITIZE.
pub const PATTERN: [u8; 3] = [0xc0, 0xff, 0xee];
/// Number of its passes.
pub const PASSES: u8 = 2;

const WAIT_MAX: Duration = Duration::from_secs(20);

/// Files of a unit's state by their names.
pub type Files = BTreeMap<String, Vec<u8>>;

/// A version, and its fixtures by the names of their scenes.
pub type Version = (String, BTreeMap<String, Files>);

/// A unit in a certain state.
struct Scene {
    name: &'static str,
    options: &'static [&'static str],
    bring_about: fn(&str) -> Result<()>,
}

const SCENES: &[Scene] = &[
    Scene { name: "reserved", options: &[], bring_about: reserve },
    // Slow enough to be killed in the middle.
    Scene { name: "sanitizing", options: &["--maintenance-rate", "1Mbit"], bring_about: sanitize },
];

/// Returns the folder of the fixtures: a subfolder for each version, and in it one for each scene.
pub fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../testdata/state")
}

/// Makes the state of every scene with this build, each under its name.
///
/// # Errors
/// The server fails to reach the state.
pub fn make() -> Result<BTreeMap<String, Files>> {
    let made = SCENES.iter().map(|scene| {
        let files = scene.make().with_context(|| scene.name.to_owned())?;
        Ok((scene.name.to_owned(), files))
    });
    made.collect()
}

/// Writes the fixtures of this version. An existing fixture is never changed: it is the state of a
/// release.
///
/// # Errors
/// A different fixture of this version exists.
pub fn write_fixtures() -> Result<()> {
    let version = folder().join(env!("CARGO_PKG_VERSION"));
    for (name, files) in make()? {
        let scene = version.join(&name);
        if scene.exists() {
            if read(&scene)? != files {
                bail!(
                    "{} differs from the state that this build writes: assign a new version \
                     number to the format (docs/formats.md) and to the workspace, and run this \
                     again",
                    scene.display()
                );
            }
            continue;
        }
        std::fs::create_dir_all(&scene)?;
        for (file, bytes) in files {
            std::fs::write(scene.join(file), bytes)?;
        }
        println!("{}", scene.display());
    }
    Ok(())
}

/// Returns the fixtures of each version, the newest last.
///
/// # Errors
/// The fixtures cannot be read, or there are none.
pub fn fixtures() -> Result<Vec<Version>> {
    let mut versions = Vec::new();
    for (version, path) in entries(&folder())? {
        let numbers: Result<Vec<u32>, _> = version.split('.').map(str::parse).collect();
        let numbers = numbers.with_context(|| format!("{version} is not a version"))?;
        let scenes = entries(&path)?.into_iter().map(|(name, path)| Ok((name, read(&path)?)));
        versions.push((numbers, version, scenes.collect::<Result<_>>()?));
    }
    versions.sort_by(|a, b| a.0.cmp(&b.0));
    ensure!(!versions.is_empty(), "there are no fixtures in {}", folder().display());
    Ok(versions.into_iter().map(|(_, version, scenes)| (version, scenes)).collect())
}

fn entries(folder: &Path) -> Result<Vec<(String, PathBuf)>> {
    let listed = std::fs::read_dir(folder).with_context(|| folder.display().to_string())?;
    let named = listed.map(|entry| {
        let entry = entry?;
        Ok((entry.file_name().to_string_lossy().into_owned(), entry.path()))
    });
    named.collect()
}

fn read(folder: &Path) -> Result<Files> {
    let read = |(name, path)| Ok((name, std::fs::read(path)?));
    entries(folder)?.into_iter().map(read).collect()
}

impl Scene {
    fn make(&self) -> Result<Files> {
        let unit =
            StoredUnit::new(&Files::from([("uuid".to_owned(), format!("{UUID}\n").into())]))?;
        let mut lunar = unit.serve(self.options)?;
        (self.bring_about)(lunar.address())?;
        lunar.server().signal(Signal::KILL)?;
        lunar.server().wait(WAIT_MAX)?;
        unit.files()
    }
}

/// A disk of zeroes with a state beside it.
pub struct StoredUnit {
    scratch: Scratch,
}

impl StoredUnit {
    /// Creates a unit with these files as its state.
    ///
    /// # Errors
    /// The files cannot be written.
    pub fn new(files: &Files) -> Result<Self> {
        let scratch = Scratch::new("state")?;
        std::fs::File::create(scratch.path("disk.img"))?.set_len(DISK_BYTES)?;
        let unit = Self { scratch };
        unit.put(files)?;
        Ok(unit)
    }

    /// Replaces its state.
    ///
    /// # Errors
    /// The files cannot be written.
    pub fn put(&self, files: &Files) -> Result<()> {
        let folder = self.scratch.path("disk.img.lunar");
        drop(std::fs::remove_dir_all(&folder));
        std::fs::create_dir(&folder)?;
        for (name, bytes) in files {
            std::fs::write(Path::new(&folder).join(name), bytes)?;
        }
        Ok(())
    }

    /// Returns the current files of its state.
    ///
    /// # Errors
    /// The files cannot be read.
    pub fn files(&self) -> Result<Files> {
        read(Path::new(&self.scratch.path("disk.img.lunar")))
    }

    /// Returns the path of the disk.
    pub fn disk(&self) -> String {
        self.scratch.path("disk.img")
    }

    /// Serves the unit.
    ///
    /// # Errors
    /// The server refuses the unit.
    pub fn serve(&self, options: &[&str]) -> Result<Lunar> {
        let disk = self.disk();
        // Without `--api none` its socket could lie among the files of the state.
        Lunar::serve(&[&[disk.as_str(), "--name", TARGET, "--api", "none"], options].concat())
    }
}

/// Registers both initiators with a persistent registration (APTPL); the first reserves. SPC-4
/// §6.16.
fn reserve(address: &str) -> Result<()> {
    const REGISTER: u8 = 0;
    const RESERVE: u8 = 1;
    const APTPL: u8 = 1;
    let mut first = RawClient::log_in_as(address, TARGET, 0)?;
    let mut second = RawClient::log_in_as(address, TARGET, 1)?;
    let out = |raw: &mut RawClient, action: u8, key: u64, service_key: u64| {
        let cdb = [0x5f, action, RESERVATION_TYPE, 0, 0, 0, 0, 0, 24, 0];
        let mut list = [0; 24];
        list[..8].copy_from_slice(&key.to_be_bytes());
        list[8..16].copy_from_slice(&service_key.to_be_bytes());
        list[20] = APTPL;
        let outcome = raw.execute_with(&cdb, &list)?;
        ensure!(outcome.status == 0, "PERSISTENT RESERVE OUT {action}: {outcome:02x?}");
        Ok(())
    };
    out(&mut first, REGISTER, 0, KEYS[0])?;
    out(&mut second, REGISTER, 0, KEYS[1])?;
    out(&mut first, RESERVE, KEYS[0], 0)
}

/// Begins SANITIZE OVERWRITE with IMMED and AUSE. SBC-3 §5.24.
fn sanitize(address: &str) -> Result<()> {
    let mut raw = RawClient::log_in_as(address, TARGET, 0)?;
    let list = [&[PASSES, 0, 0, PATTERN.len() as u8], &PATTERN[..]].concat();
    let cdb = [0x48, 0xa1, 0, 0, 0, 0, 0, 0, list.len() as u8, 0];
    let outcome = raw.execute_with(&cdb, &list)?;
    ensure!(outcome.status == 0, "SANITIZE OVERWRITE: {outcome:02x?}");
    Ok(())
}
