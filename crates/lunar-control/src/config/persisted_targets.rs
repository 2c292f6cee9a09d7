//! Targets that outlive a restart although the configuration file lacks them: one file for each in
//! the folder `targets.d` of the state directory.

use super::file::FILE_BYTES_MAX;
use super::lun::check_together;
use super::model::{Configuration, TargetConfig};
use super::target;
use crate::Failure;
use lunar_block::StateDirectory;
use std::io;
use std::path::{Path, PathBuf};

/// The folder in the state directory.
const FOLDER: &str = "targets.d";
/// End of the names of files of targets.
const SUFFIX: &str = ".toml";

/// The folder of targets in the state directory `state`.
fn folder(state: &Path) -> PathBuf {
    state.join(FOLDER)
}

/// Name of the file of a target. Names of targets consist of characters that names of files allow.
fn file_name(target: &str) -> String {
    format!("{}{SUFFIX}", target.to_ascii_lowercase())
}

/// Adds the targets in the state directory to `configuration`, which outranks them. Returns a
/// warning for each target that both have.
///
/// # Errors
/// A file cannot be read, or its target is invalid or conflicts with others.
pub fn add(
    configuration: &mut Configuration,
    state: Option<&Path>,
) -> Result<Vec<String>, Failure> {
    let mut warnings = Vec::new();
    let Some(state) = state else { return Ok(warnings) };
    let path = folder(state);
    let read = || -> io::Result<Vec<(String, Vec<u8>)>> {
        let Some(directory) = StateDirectory::open(&path)? else { return Ok(Vec::new()) };
        let mut names = Vec::new();
        for entry in std::fs::read_dir(&path)? {
            names.extend(entry?.file_name().into_string());
        }
        names.retain(|name| name.ends_with(SUFFIX));
        names.sort();
        let file =
            |name: String| Ok(directory.read(&name, FILE_BYTES_MAX)?.map(|text| (name, text)));
        names.into_iter().filter_map(|name| file(name).transpose()).collect()
    };
    let files = read().map_err(|error| {
        Failure::new(format!("cannot read the targets in {}: {error}", path.display()))
            .hint("make the folder and its files readable for the server's user only")
    })?;
    for (name, text) in files {
        let file = path.join(&name);
        // Positions in this file must not be taken for those in the configuration file.
        let about = |failure: Failure| Failure {
            hint: failure.hint,
            ..Failure::new(format!("{}: {}", file.display(), failure.what))
        };
        let text = String::from_utf8(text).map_err(|_| about(Failure::new("it is not UTF-8")))?;
        let mut target = target::parse(&text, configuration).map_err(about)?;
        target.is_persisted = true;
        if configuration.targets.iter().any(|other| other.name == target.name) {
            warnings.push(format!(
                "{} has no effect: the configuration file has the target {}",
                file.display(),
                target.name
            ));
            continue;
        }
        configuration.targets.push(target);
        check_together(configuration).map_err(about)?;
    }
    Ok(warnings)
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
