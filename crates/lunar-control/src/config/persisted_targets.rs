//! Targets that outlive a restart although the configuration file lacks them: one file for each in
//! the folder `targets.d` of the state directory.

use super::file::FILE_BYTES_MAX;
use super::lun::check_together;
use super::model::{Configuration, SkippedTarget, TargetConfig};
use super::target;
use crate::Failure;
use crate::device_url::DeviceUrl;
use lunar_block::StateDirectory;
use serde::Deserialize;
use std::io;
use std::path::{Path, PathBuf};

/// The folder in the state directory.
const FOLDER: &str = "targets.d";
/// Extension of the files.
const SUFFIX: &str = ".toml";

/// The folder of targets in the state directory `state`.
fn folder(state: &Path) -> PathBuf {
    state.join(FOLDER)
}

/// Returns the name of the file of a target: an iSCSI name has only characters that are valid in
/// file names.
fn file_name(target: &str) -> String {
    format!("{}{SUFFIX}", target.to_ascii_lowercase())
}

/// The keys of a target's file that name its backing files.
#[derive(Debug, Deserialize)]
struct TargetKeys {
    name: String,
    lun: Vec<LunKeys>,
}

#[derive(Debug, Deserialize)]
struct LunKeys {
    id: u16,
    device: String,
}

/// The file of a target in the state directory.
#[derive(Debug)]
pub struct PersistedTarget {
    path: PathBuf,
    text: Vec<u8>,
}

/// Reads the files of the targets in the state directory.
///
/// # Errors
/// The folder or a file cannot be read.
pub fn read(state: Option<&Path>) -> Result<Vec<PersistedTarget>, Failure> {
    let Some(path) = state.map(folder) else { return Ok(Vec::new()) };
    let read = || -> io::Result<Vec<PersistedTarget>> {
        let Some(directory) = StateDirectory::open(&path)? else { return Ok(Vec::new()) };
        let mut names = Vec::new();
        for entry in std::fs::read_dir(&path)? {
            names.extend(entry?.file_name().into_string());
        }
        names.retain(|name| name.ends_with(SUFFIX));
        names.sort();
        let file = |name: String| {
            let text = directory.read(&name, FILE_BYTES_MAX)?;
            Ok(text.map(|text| PersistedTarget { path: path.join(name), text }))
        };
        names.into_iter().filter_map(|name| file(name).transpose()).collect()
    };
    read().map_err(|error| {
        Failure::new(format!("cannot read the targets in {}: {error}", path.display()))
            .hint("make the folder and its files readable for the server's user only")
    })
}

/// Adds targets of the state directory to `configuration`; a target of the configuration takes
/// precedence. A target whose backing file does not exist is skipped, unless `served` contains the
/// target, so that the other targets are served without delay. Returns warnings.
///
/// # Errors
/// A target is invalid or conflicts with others.
pub fn add(
    configuration: &mut Configuration,
    files: Vec<PersistedTarget>,
    served: &[TargetConfig],
) -> Result<Vec<String>, Failure> {
    let mut warnings = Vec::new();
    for PersistedTarget { path, text } in files {
        // Positions in this file must not be taken for those in the configuration file.
        let about = |failure: Failure| Failure {
            hint: failure.hint,
            ..Failure::new(format!("{}: {}", path.display(), failure.what))
        };
        let text = String::from_utf8(text).map_err(|_| about(Failure::new("it is not UTF-8")))?;
        // One missing file would otherwise make the whole configuration invalid.
        let skipped = missing_file(&text).filter(|skipped| !has(served, &skipped.name));
        if let Some(skipped) = skipped.filter(|skipped| !has(&configuration.targets, &skipped.name))
        {
            warnings.push(format!("{}; {}", skipped.error(), skipped.hint()));
            configuration.skipped_targets.push(skipped);
            continue;
        }
        let mut target = target::parse(&text, configuration).map_err(about)?;
        target.is_persisted = true;
        if has(&configuration.targets, &target.name) {
            warnings.push(format!(
                "{} has no effect, and can be removed: the configuration file has the target {}",
                path.display(),
                target.name
            ));
            continue;
        }
        configuration.targets.push(target);
        check_together(configuration).map_err(about)?;
    }
    Ok(warnings)
}

fn has(targets: &[TargetConfig], name: &str) -> bool {
    targets.iter().any(|target| target.name.eq_ignore_ascii_case(name))
}

/// Returns the target in `text` as one to skip if the backing file of a LUN does not exist. A file
/// that cannot be examined counts as existing: opening it reports the cause.
fn missing_file(text: &str) -> Option<SkippedTarget> {
    let keys: TargetKeys = toml::from_str(text).ok()?;
    let is_missing = |path: &Path| path.try_exists().is_ok_and(|exists| !exists);
    keys.lun.into_iter().find_map(|lun| {
        let device = DeviceUrl::parse(&lun.device).ok()?;
        let is_missing = device.path().is_some_and(is_missing);
        is_missing.then(|| SkippedTarget { name: keys.name.clone(), lun: lun.id, device })
    })
}

/// Stores the file of a target, durably.
///
/// # Errors
/// The file cannot be written.
pub fn save(state: &Path, target: &TargetConfig, text: &str) -> Result<(), Failure> {
    let save =
        || StateDirectory::create(&folder(state))?.save(&file_name(&target.name), text.as_bytes());
    save().map_err(|error| cannot_store(state, &error))
}

/// Removes the file of a target, durably; succeeds if there is none.
///
/// # Errors
/// The file cannot be removed.
pub fn remove(state: &Path, target: &str) -> Result<(), Failure> {
    let remove = || match StateDirectory::open(&folder(state))? {
        Some(directory) => directory.remove(&file_name(target)),
        None => Ok(()),
    };
    remove().map_err(|error| cannot_store(state, &error))
}

fn cannot_store(state: &Path, error: &io::Error) -> Failure {
    Failure::new(format!("cannot change the targets in {}: {error}", folder(state).display()))
        .hint("make the `state` directory of the configuration writable")
}
