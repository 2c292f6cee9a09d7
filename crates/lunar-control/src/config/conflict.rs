//! Detection of disks that conflict with each other.

use super::model::{LunConfig, UnitConfig};
use crate::device_url::DeviceUrl;
use lunar_block::{FileIdentity, file_identity};
use std::path::{Path, PathBuf};

/// The disks of a configuration, collected one by one.
#[derive(Debug, Default)]
pub struct Disks<'c> {
    seen: Vec<(Option<FileLocation>, &'c LunConfig)>,
}

/// The file behind a path, independent of the spelling of the path.
#[derive(Debug, Eq, PartialEq)]
pub enum FileLocation {
    /// An existing file.
    File(FileIdentity),
    /// The path of a file that does not exist yet.
    Path(PathBuf),
}

impl FileLocation {
    /// The file that `path` leads to at this moment.
    pub fn of(path: &Path) -> Self {
        if let Ok(file) = file_identity(path) {
            return Self::File(file);
        }
        let parent = path.parent().filter(|parent| !parent.as_os_str().is_empty());
        let parent = std::fs::canonicalize(parent.unwrap_or(Path::new(".")));
        Self::Path(match (parent, path.file_name()) {
            (Ok(parent), Some(name)) => parent.join(name),
            _ => path.to_owned(),
        })
    }
}

impl<'c> Disks<'c> {
    /// Adds `lun`. Returns a message and a hint if the LUN conflicts with an earlier one.
    pub fn add(&mut self, lun: &'c LunConfig) -> Option<(String, &'static str)> {
        let unit = &lun.unit;
        let location = unit.device.path().map(FileLocation::of);
        let against = self.seen.iter().find_map(|(seen, other_lun)| {
            let other = &other_lun.unit;
            if location.is_some() && location == *seen {
                let renamed = UnitConfig { device: other.device.clone(), ..unit.clone() };
                let differ = renamed != *other || !lun.same_limits(other_lun);
                return differ.then(|| {
                    let what = match unit.device == other.device {
                        true => format!("{} is listed twice", unit.device),
                        false => format!("{} and {} are the same file", unit.device, other.device),
                    };
                    (
                        format!("{what} with different settings"),
                        "two LUNs with the same file are one disk: give both the same settings",
                    )
                });
            }
            if unit.device == other.device && matches!(unit.device, DeviceUrl::Virtual(_)) {
                let hint = "give each a `uuid`: a virtual LUN without one is known by its number";
                return Some(("two virtual LUNs have this number".to_owned(), hint));
            }
            if unit.options.pool.is_some() && unit.device == other.device {
                let hint = "a pool is served as one LUN";
                return Some((format!("{} is listed twice", unit.device), hint));
            }
            (unit.uuid.is_some() && unit.uuid == other.uuid).then(|| {
                (
                    format!("its uuid is the same as that of {}", other.device),
                    "give each disk its own UUID",
                )
            })
        });
        self.seen.push((location, lun));
        against
    }
}
