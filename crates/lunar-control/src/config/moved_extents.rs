//! Extents of virtual LUNs that were moved while they were in use. The state directory has their
//! locations, which outrank those of the configuration file.

use super::virtual_lun::{ExtentConfig, StorageConfig, VirtualDiskConfig};
use crate::Failure;
use crate::small_file::{self, Readable};
use lunar_block::StateDirectory;
use serde::{Deserialize, Serialize};
use std::io::{self, ErrorKind};
use std::path::Path;
use std::sync::Arc;

/// The file in the state directory.
const FILE: &str = "moved-extents.json";
/// Maximum length of the file.
const FILE_BYTES_MAX: u64 = 16 << 20;
/// The format of the file.
const VERSION: u32 = 1;
/// Maximum number of former locations of an extent that are kept, the latest ones.
const FORMER_MAX: usize = 64;

/// Effect of moved extents on the extents that a configuration has.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum MovedExtentsUse {
    /// Former locations are problems of the configuration.
    Refuse,
    /// Former locations are replaced by the present ones: the LUN is served where its data is.
    Replace,
    /// The configuration is read as it is.
    Ignore,
}

/// The virtual LUNs with extents that were moved, or are being moved.
#[derive(Clone, Debug, Deserialize, Eq, PartialEq, Serialize)]
pub struct MovedExtents {
    version: u32,
    luns: Vec<MovedLun>,
}

/// A virtual LUN with extents that were moved.
#[derive(Clone, Debug, Deserialize, Eq, PartialEq, Serialize)]
pub struct MovedLun {
    /// Name of the LUN: its UUID, or its target and number.
    pub name: String,
    /// The locations of its extents; empty if none was moved yet.
    extents: Vec<MovedExtent>,
    /// A move that has not ended.
    pub pending: Option<PendingMove>,
}

/// A move that has not ended.
#[derive(Clone, Debug, Deserialize, Eq, PartialEq, Serialize)]
pub struct PendingMove {
    /// Position of the extent in the LUN.
    pub extent: usize,
    /// The destination.
    pub to: StoredExtent,
    /// Maximum rate of the copy while hosts use the LUN, if it is not the default.
    pub bytes_per_second: Option<u64>,
}

/// An extent of a LUN: its location, and the former ones.
#[derive(Clone, Debug, Deserialize, Eq, PartialEq, Serialize)]
struct MovedExtent {
    #[serde(rename = "place")]
    location: StoredExtent,
    former: Vec<StoredExtent>,
}

/// Consecutive blocks of a storage, which is known by its name or by its target and LUN.
#[derive(Clone, Debug, Deserialize, Eq, PartialEq, Serialize)]
pub struct StoredExtent {
    storage: String,
    target: String,
    lun: u16,
    start_bytes: u64,
    length_bytes: u64,
}

/// The comparison of written extents with those in force.
#[derive(Debug, Eq, PartialEq)]
pub enum WrittenExtents {
    /// The extents in force, or another disk.
    Valid,
    /// The extent at this position was moved. The extents in force, if the others are right.
    Former(usize, Option<VirtualDiskConfig>),
}

impl Default for MovedExtents {
    fn default() -> Self {
        Self { version: VERSION, luns: Vec::new() }
    }
}

impl StoredExtent {
    fn of(extent: &ExtentConfig) -> Self {
        let unit = extent.storage.url.unit.as_ref();
        Self {
            storage: extent.storage.name.clone(),
            target: unit.map_or_else(String::new, |unit| unit.target.to_ascii_lowercase()),
            lun: unit.map_or(0, |unit| unit.lun),
            start_bytes: extent.start_bytes,
            length_bytes: extent.length_bytes,
        }
    }

    fn is_on(&self, storage: &StorageConfig) -> bool {
        let is_unit = storage.url.unit.as_ref().is_some_and(|unit| {
            unit.lun == self.lun && unit.target.eq_ignore_ascii_case(&self.target)
        });
        is_unit || storage.name == self.storage
    }

    /// True if `extent` begins here, on the same storage.
    fn begins(&self, extent: &ExtentConfig) -> bool {
        self.is_on(&extent.storage) && self.start_bytes == extent.start_bytes
    }

    fn overlaps(&self, extent: &ExtentConfig) -> bool {
        self.is_on(&extent.storage)
            && self.start_bytes < extent.end_bytes()
            && extent.start_bytes < self.start_bytes.saturating_add(self.length_bytes)
    }

    /// Returns the extent on one of these storages.
    pub fn on(&self, storages: &[Arc<StorageConfig>]) -> Option<ExtentConfig> {
        let storage = storages.iter().find(|storage| self.is_on(storage))?;
        Some(ExtentConfig {
            storage: Arc::clone(storage),
            start_bytes: self.start_bytes,
            length_bytes: self.length_bytes,
        })
    }
}

impl MovedLun {
    /// Compares the extents that a configuration has with those in force.
    pub fn compare(
        &self,
        written: &VirtualDiskConfig,
        storages: &[Arc<StorageConfig>],
    ) -> WrittenExtents {
        let is_present = |(at, moved): (usize, &MovedExtent)| {
            written.extents.get(at).is_some_and(|extent| {
                moved.location.begins(extent) && extent.length_bytes >= moved.location.length_bytes
            })
        };
        let is_former = |(at, moved): (usize, &MovedExtent)| {
            written.extents.get(at).is_some_and(|extent| {
                let is_same = |former: &StoredExtent| former.begins(extent);
                extent.length_bytes <= moved.location.length_bytes
                    && moved.former.iter().any(is_same)
            })
        };
        let mut all = self.extents.iter().enumerate();
        if all.all(is_present) {
            return WrittenExtents::Valid;
        }
        let extents = self.extents.iter().enumerate();
        let mut former = extents.clone().filter(|one| is_former(*one) && !is_present(*one));
        if let Some((first, _)) = former.next() {
            let is_known = extents.clone().all(|one| is_present(one) || is_former(one));
            let in_force = if is_known { self.in_force(written, storages) } else { None };
            return WrittenExtents::Former(first, in_force);
        }
        let overlaps = |extent: &ExtentConfig| {
            let mut former = self.extents.iter().flat_map(|moved| &moved.former);
            let mut present = self.extents.iter().map(|moved| &moved.location);
            former.any(|former| former.overlaps(extent))
                && !present.any(|present| present.overlaps(extent))
        };
        match written.extents.iter().position(overlaps) {
            Some(at) => WrittenExtents::Former(at, None),
            None => WrittenExtents::Valid,
        }
    }

    /// Returns the extents in force, and those that are written behind them.
    fn in_force(
        &self,
        written: &VirtualDiskConfig,
        storages: &[Arc<StorageConfig>],
    ) -> Option<VirtualDiskConfig> {
        let location = |(at, moved): (usize, &MovedExtent)| {
            let written = written.extents.get(at).filter(|extent| moved.location.begins(extent));
            written.cloned().or_else(|| moved.location.on(storages))
        };
        let mut extents =
            self.extents.iter().enumerate().map(location).collect::<Option<Vec<_>>>()?;
        extents.extend(written.extents.iter().skip(extents.len()).cloned());
        Some(VirtualDiskConfig { extents, ..written.clone() })
    }

    /// Returns the locations of the extents as text.
    pub fn locations(&self) -> String {
        let locations = self.extents.iter().map(|moved| {
            let StoredExtent { storage, start_bytes, length_bytes, .. } = &moved.location;
            format!(
                "{storage}:{}+{}",
                super::virtual_lun::bytes_text(*start_bytes),
                super::virtual_lun::bytes_text(*length_bytes)
            )
        });
        locations.collect::<Vec<_>>().join(", ")
    }
}

impl MovedExtents {
    /// Reads the moved extents of a server with this state directory; none if there are none.
    ///
    /// # Errors
    /// The file cannot be read or understood.
    pub fn load(state: &Path) -> Result<Self, String> {
        let path = state.join(FILE);
        let cannot = |why: String| format!("cannot read {}: {why}", path.display());
        let bytes = match small_file::read(&path, FILE_BYTES_MAX, Readable::Regular) {
            Err(error) if error.kind() == ErrorKind::NotFound => return Ok(Self::default()),
            read => read.map_err(|error| cannot(error.to_string()))?.0,
        };
        let read: Self =
            serde_json::from_slice(&bytes).map_err(|error| cannot(error.to_string()))?;
        match read.version {
            VERSION => Ok(read),
            other => Err(cannot(format!("it has the format {other} of a later version"))),
        }
    }

    /// Stores the moved extents, durably.
    ///
    /// # Errors
    /// The state directory cannot be written.
    pub fn save(&self, state: &Path) -> io::Result<()> {
        let text = serde_json::to_vec_pretty(self)?;
        StateDirectory::create(state)?.save(FILE, &text)
    }

    /// All LUNs with moves.
    pub fn luns(&self) -> &[MovedLun] {
        &self.luns
    }

    /// The LUN with this name.
    pub fn lun(&self, name: &str) -> Option<&MovedLun> {
        self.luns.iter().find(|lun| lun.name == name)
    }

    /// Records that a move of an extent of the LUN has begun.
    pub fn begin(&mut self, name: &str, extent: usize, to: &ExtentConfig, rate: Option<u64>) {
        let to = StoredExtent::of(to);
        let pending = Some(PendingMove { extent, to, bytes_per_second: rate });
        match self.luns.iter_mut().find(|lun| lun.name == name) {
            Some(lun) => lun.pending = pending,
            None => {
                self.luns.push(MovedLun { name: name.to_owned(), extents: Vec::new(), pending });
            }
        }
    }

    /// Records that a move was cancelled.
    pub fn cancel(&mut self, name: &str) {
        if let Some(lun) = self.luns.iter_mut().find(|lun| lun.name == name) {
            lun.pending = None;
        }
        self.luns.retain(|lun| lun.pending.is_some() || !lun.extents.is_empty());
    }

    /// Records that the extents of the LUN are now those of `disk`: one was moved `from` the former
    /// location.
    pub fn commit(&mut self, name: &str, disk: &VirtualDiskConfig, from: (usize, &ExtentConfig)) {
        let Some(lun) = self.luns.iter_mut().find(|lun| lun.name == name) else { return };
        lun.pending = None;
        let mut before = std::mem::take(&mut lun.extents).into_iter();
        for extent in &disk.extents {
            let former = before.next().map_or_else(Vec::new, |moved| moved.former);
            lun.extents.push(MovedExtent { location: StoredExtent::of(extent), former });
        }
        if let Some(moved) = lun.extents.get_mut(from.0) {
            let former = StoredExtent::of(from.1);
            moved.former.retain(|other| *other != former);
            moved.former.push(former);
            let surplus = moved.former.len().saturating_sub(FORMER_MAX);
            moved.former.drain(..surplus);
        }
    }
}

/// The failure to read or write the moved extents.
pub fn cannot_store(error: &io::Error) -> Failure {
    Failure::new(format!("cannot record the move in the state directory: {error}"))
        .hint("make the `state` directory of the configuration writable")
}
